"""Levels: patterns before their cases in recall, both directions; and the line of a matter."""
import unittest

from hermes_ext.tests.base import setUpModule  # noqa: F401
from hermes_ext.tests.brain_base import BrainCase
from hermes_ext.tests.lanes_base import on_archive


class Levels(BrainCase):
    """Made by the real commands: a cycle writes the order, `brain fulfil` answers it."""

    def setUp(self) -> None:
        super().setUp()
        texts = ("Redis keys of the shop were outdated for an hour",
                 "The CDN kept the old logo for a day",
                 "Resolver answers stayed outdated until the ttl was over")
        self.cases = [self.remember(text, "--tags", "caching") for text in texts]
        self.other = self.remember("An outdated map hangs in the hall")
        order, = self.result("brain", "cycle")["orders"]
        done = self.result("brain", "fulfil", order, "--text",
                           "Whatever is kept for speed is outdated for as long as nobody clears it",
                           "--concepts", "caching")
        self.pattern = done["id"]

    def hits(self, query: str, *words: str) -> "list[dict]":
        return self.result("recall", query, *words)["hits"]

    def test_a_pattern_that_answers_stands_first_and_its_cases_under_it(self) -> None:
        hits = self.hits("what was outdated", "--top-k", "9")
        ids = [hit["memory"]["id"] for hit in hits]
        self.assertEqual(ids[0], self.pattern)
        told = hits[0]["why"]["brain"]
        self.assertEqual((told["level"], sorted(told["cases"])), (2, sorted(self.cases)))
        under = [hit["memory"]["id"] for hit in hits
                 if hit["why"].get("brain", {}).get("under") == self.pattern]
        self.assertEqual(set(under), set(ids) & set(self.cases))
        self.assertEqual(ids[1:1 + len(under)], under)
        self.assertGreater(len(under), 1)
        self.assertEqual(ids[-1], self.other)
        shown = self.command("recall", "what was outdated")
        self.assertIn("a pattern drawn from 3 memories", shown)
        self.assertIn(f"a case of {self.pattern}", shown)

    def test_a_pattern_that_hardly_answers_stays_where_it_is(self) -> None:
        hits = self.hits("map in the hall")
        self.assertEqual(hits[0]["memory"]["id"], self.other)

    def test_both_directions_are_shown(self) -> None:
        row, = self.result("brain", "levels", self.pattern)
        self.assertEqual(sorted(one["id"] for one in row["cases"]), sorted(self.cases))
        row, = self.result("brain", "levels", self.cases[0][-4:])
        self.assertEqual(([one["id"] for one in row["drawn"]], row["level"]), ([self.pattern], 1))
        self.assertEqual([row["memory"]["id"] for row in self.result("brain", "levels")],
                         [self.pattern])
        self.command("forget", self.cases[1])
        self.assertIn("from 1 more that were forgotten",
                      self.command("brain", "levels", self.pattern))
        self.assertEqual(self.run_command("brain", "levels", "nothing")[0], 10)

    def test_show_tells_the_strength_of_now(self) -> None:
        self.pass_days(4)
        meta = self.result("show", self.other)["meta"]["brain"]
        self.assertAlmostEqual(meta["strength_now"], 0.3)


class NoLevels(BrainCase):

    def test_without_a_pattern_recall_is_what_it_was(self) -> None:
        for number, thing in enumerate(("red", "green", "blue", "black")):
            self.remember(f"The {thing} lamp of room {number * 3} is broken")
        with_brain = self.command("recall", "broken lamp")
        self.assertIn("broken", with_brain)
        config = (self.root / "config.yaml").read_text()
        (self.root / "config.yaml").write_text(config.replace(', "brain": {}', ""))
        self.assertEqual(self.command("recall", "broken lamp"), with_brain)


class Timelines(BrainCase):
    """`timeline` on every store."""

    def test_first_turns_and_latest(self) -> None:
        ids = []
        for text in ("Redis of the shop listens on port 6379", "Redis keeps the sessions",
                     "Redis keeps the carts as well", "Redis of the shop listens on port 6380",
                     "Redis is watched by Grafana"):
            ids.append(self.remember(text))
            self.pass_days(1)
        found = self.result("timeline", "redis")
        self.assertEqual([moment["memory"]["id"] for moment in found["moments"]], ids)
        self.assertEqual([moment["kind"] for moment in found["moments"]],
                         ["first", "step", "step", "turn", "latest"])
        self.assertEqual(found["moments"][3]["turns_from"], [ids[0]])
        shown = self.command("timeline", "Redis")
        self.assertIn("… 2 steps\n", shown)
        self.assertIn(f"turns from {ids[0]}", shown)

    def test_a_tag_and_words_are_matters_too(self) -> None:
        one = self.remember("会议改到周四", "--tags", "会议")
        two = self.remember("the garden party begins at five")
        self.assertEqual(self.result("timeline", "会议")["moments"][0]["memory"]["id"], one)
        self.assertEqual(self.result("timeline", "garden party")["moments"][0]["memory"]["id"],
                         two)
        for code, words in ((10, ("nothing",)), (2, ("",)), (2, ())):
            exit_code, _, said = self.run_command("timeline", *words)
            self.assertEqual((exit_code, said.count("\n")), (code, 1), (words, said))


LevelsOnArchive = on_archive(Levels)
NoLevelsOnArchive = on_archive(NoLevels)
TimelinesOnArchive = on_archive(Timelines)

if __name__ == "__main__":
    unittest.main()

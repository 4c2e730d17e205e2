"""Ways to ask: by association, by keywords, what is awake, what sleeps, as of a date."""
import json
import subprocess
import sys
import unittest
from datetime import timedelta

from hermes_ext.brain.associate import associate
from hermes_ext.tests.base import HOME, setUpModule  # noqa: F401
from hermes_ext.tests.brain_base import BrainCase
from hermes_ext.tests.lanes_base import on_archive
from hermes_lite import UsageError


class Associations(BrainCase):
    """`recall --mode associative`: likeness first, then what shares or borders on a concept."""

    def setUp(self) -> None:
        super().setUp()
        self.redis = self.remember("Redis keys expire after 300 s", "--tags", "缓存失效")
        self.logo = self.remember("The CDN shows the old logo for a day", "--tags", "缓存失效")
        self.names = self.remember("Answers of the resolver live for an hour", "--tags", "ttl")
        self.remember("The ferry leaves at nine")
        self.command("concept", "link", "ttl", "part_of", "缓存失效")

    def ask(self, query: str, *words: str) -> "dict[str, dict]":
        hits = self.result("recall", query, "--mode", "associative", *words)["hits"]
        return {hit["memory"]["id"]: hit for hit in hits}

    def test_what_shares_a_concept_is_found_without_a_common_word(self) -> None:
        found = self.ask("why do the Redis keys vanish", "--temp", "0")
        self.assertEqual(list(found), [self.redis, self.logo, self.names])
        why = [found[each]["why"] for each in found]
        self.assertEqual([row["fused"] for row in why], [1.0, 0.3, 0.15])
        self.assertEqual([row["because"][-1] for row in why],
                         ["like the question", f"shares 缓存失效 with {self.redis}",
                          f"ttl part_of 缓存失效, with {self.redis}"])
        shown = self.command("recall", "why do the Redis keys vanish", "--mode", "associative",
                             "--temp", "0")
        self.assertIn(f"shares 缓存失效 with {self.redis}", shown)

    def test_a_concept_of_very_many_memories_connects_nothing(self) -> None:
        with self.open() as memory, memory.batch():
            for number in range(20):
                memory.remember(f"Rack {number * 13} has a fan", tags=["缓存失效"])
        found = self.ask("why do the Redis keys vanish", "--temp", "0", "--top-k", "9")
        self.assertEqual([*found][:1], [self.redis])
        self.assertNotIn(self.logo, found)

    def test_a_class_word_finds_its_members(self) -> None:
        oolong = self.remember("Oolong arrived from Taiwan")
        self.assertEqual(self.ask("which drinks do we have", "--temp", "0"), {})
        self.command("concept", "link", "oolong", "is_a", "tea")
        self.command("concept", "link", "tea", "is_a", "drink")
        found = self.ask("which drinks do we have", "--temp", "0")
        self.assertEqual(found[oolong]["why"]["because"], ["holds a member of drink"])

    def test_the_last_is_drawn_and_a_seed_draws_the_same(self) -> None:
        config = json.loads((self.root / "config.yaml").read_text())
        config["retrieval"] = {"hot_threshold": 1_000}         # being asked changes no rank
        (self.root / "config.yaml").write_text(json.dumps(config))
        for number in range(9):
            self.remember(f"Note {number * 7} about a cache that was outdated on host h{number}",
                          "--tags", "缓存失效")
        draws = [list(self.ask("outdated cache", "--seed", str(seed), "--temp", "2"))
                 for seed in range(12)]
        self.assertEqual(list(self.ask("outdated cache", "--seed", "5", "--temp", "2")), draws[5])
        self.assertEqual({tuple(ids[:2]) for ids in draws}, {tuple(draws[0][:2])})
        fixed = list(self.ask("outdated cache", "--temp", "0", "--top-k", "5"))
        lasts = {ids[2] for ids in draws}
        self.assertGreater(len(lasts), 1)
        self.assertLessEqual(lasts, set(fixed[2:]))
        self.assertEqual({tuple(self.ask("outdated cache", "--temp", "0")) for _ in range(5)},
                         {tuple(fixed[:3])})

    def test_filters_and_what_is_hidden_hold_for_what_is_reached(self) -> None:
        words = ("why do the Redis keys vanish", "--temp", "0")
        self.assertEqual(list(self.ask(*words, "--agent", "nobody")), [])
        self.assertNotIn(self.names, self.ask(*words, "--tags", "缓存失效"))
        self.command("forget", self.logo)
        self.assertEqual(list(self.ask(*words)), [self.redis, self.names])

    def test_it_is_a_use_of_what_it_shows_alone(self) -> None:
        self.command("brain", "cycle")
        self.pass_days(1)
        self.ask("why do the Redis keys vanish", "--temp", "0", "--top-k", "2")
        self.command("brain", "cycle")
        self.assertIsNotNone(self.note(self.logo).strength)
        self.assertIsNone(self.note(self.names).strength)

    def test_wrong_values_get_a_sentence(self) -> None:
        for words in (("--temp", "x"), ("--temp", "-1"), ("--temp", "nan"), ("--top-k", "0"),
                      ("--seed", "x")):
            code, _, said = self.run_command("recall", "keys", "--mode", "associative", *words)
            self.assertEqual((code, said.count("\n")), (2, 1), (words, said))
        for wrong in ({"top_k": 0}, {"temperature": True}, {"temperature": "1"}):
            with self.assertRaises(UsageError):
                associate(self.open(), "keys", **wrong)


@unittest.skipUnless((HOME / "bench").is_dir(), "needs the checkout")
class Bench(unittest.TestCase):
    def test_the_benchmark_runs_on_texts_of_its_own(self) -> None:
        done = subprocess.run([sys.executable, HOME / "bench" / "brain_recall.py", "--smoke"],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "ok\n"), done.stderr)


class OtherWays(BrainCase):

    def test_keyword_mode_ranks_by_words_and_list_shows_all_awake(self) -> None:
        tea, ferry = self.remember("Tea is drunk at four"), self.remember("The ferry leaves at nine")
        self.command("concept", "add", "tea", "a drink")
        hits = self.result("recall", "tea", "--mode", "keyword")["hits"]
        self.assertEqual([hit["memory"]["id"] for hit in hits], [tea])
        listed = self.result("recall", "--mode", "list")["hits"]
        self.assertEqual({hit["memory"]["id"] for hit in listed}, {tea, ferry})
        self.command("brain", "cycle")
        self.pass_days(1)
        self.command("recall", "--mode", "list")
        self.command("brain", "cycle")
        self.assertIsNone(self.note(ferry).strength)
        for words in (("tea", "--mode", "list"), ("--mode", "keyword"), ("tea", "--mode", "x"),
                      ("tea", "--temp", "1"), ("tea", "--deep", "--mode", "keyword"),
                      ("tea", "--deep", "--as-of", "1d")):
            code, _, said = self.run_command("recall", *words)
            self.assertEqual((code, said.count("\n")), (2, 1), (words, said))

    def test_deep_finds_what_sleeps_and_a_strong_match_wakes_up(self) -> None:
        ferry = self.remember("The ferry to Ven leaves at nine", "--importance", "2")
        self.command("brain", "cycle")
        self.pass_days(60)
        self.command("brain", "cycle")
        self.assertEqual(self.found("ferry to Ven"), [])
        self.assertEqual(self.found("a nine o'clock train", "--deep"), [ferry])
        self.assertIn(ferry, self.command("forgotten"))
        self.assertEqual(self.found("When does the ferry to Ven leave?", "--deep"), [ferry])
        self.assertEqual(self.found("ferry to Ven"), [ferry])
        self.assertIn("woke up by a strong match", self.command("brain", "log"))

    def test_as_of_shows_what_was_there_and_awake_then(self) -> None:
        old = self.remember("The office lies in Bern", "--importance", "2")
        self.command("brain", "cycle")
        self.pass_days(40)
        then = f"{self.now + timedelta(hours=1):%Y-%m-%d}"
        self.pass_days(20)
        self.command("brain", "cycle")
        new = self.remember("The office lies in Basel, no longer in Bern")
        self.assertEqual(self.found("where is the office"), [new])
        self.assertEqual(self.found("where is the office", "--as-of", then), [old])
        self.assertEqual(self.found("where is the office", "--as-of", "2020-01-01"), [])
        self.assertEqual(self.found("where is the office", "--as-of", then, "--mode",
                                    "associative"), [old])
        for date in ("", "soon", "2999-01-01"):
            code, _, said = self.run_command("recall", "office", "--as-of", date)
            self.assertEqual((code, said.count("\n")), (2, 1), (date, said))


AssociationsOnArchive = on_archive(Associations)
OtherWaysOnArchive = on_archive(OtherWays)

if __name__ == "__main__":
    unittest.main()

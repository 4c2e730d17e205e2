"""Concepts: taken from memories, defined and related by hand; kept like any other memory."""
import unittest

from hermes_ext.brain.concepts import concept_key, show_concept
from hermes_ext.tests.base import setUpModule  # noqa: F401
from hermes_ext.tests.brain_base import BrainCase
from hermes_ext.tests.lanes_base import on_archive
from hermes_lite import NotFound


class Concepts(BrainCase):
    """`concept add|show|link|list` on every store, with all systems on."""

    def names(self) -> "dict[str, int]":
        return {row["name"]: row["count"] for row in self.result("concept", "list")}

    def test_tags_entities_and_anchors_are_concepts_without_a_word(self) -> None:
        self.remember("Redis holds the cache", "--tags", "缓存失效")
        self.remember("the contract of client Li is ht2024-0876, see redis")
        self.assertEqual(self.names()["缓存失效"], 1)
        self.assertEqual(self.names()["Redis"], 1)
        anchors = show_concept(self.open(), "HT2024-0876")
        self.assertEqual(anchors.count, 1)
        self.assertNotIn("lane/evidence", self.names())

    def test_a_concept_is_defined_shown_and_defined_anew(self) -> None:
        one = self.remember("Keys expire after 300 s", "--tags", "Cache-Invalidation")
        first = self.result("concept", "add", "Cache Invalidation", "when a value is outdated")
        self.assertEqual(first["definition"], "when a value is outdated")
        self.assertEqual([row["id"] for row in first["memories"]], [one])
        self.command("concept", "link", "cache invalidation", "part_of", "caching")
        second = self.result("concept", "add", "CACHE  invalidation", "a value no longer holds")
        self.assertEqual(second["definition"], "a value no longer holds")
        self.assertEqual(second["links"], [["part_of", "caching"]])
        self.assertEqual(self.names()["CACHE invalidation"], 1)
        shown = self.command("concept", "show", "cache invalidation")
        self.assertIn("a value no longer holds\n  part_of caching\n", shown)
        self.assertNotIn("outdated", shown)

    def test_a_definition_is_redacted_hidden_from_recall_and_never_pruned(self) -> None:
        made = self.result("concept", "add", "vault", "the password is sunflower77")
        self.assertNotIn("sunflower77", made["definition"])
        self.assertEqual(self.found("vault"), [])
        self.pass_days(400)
        self.command("brain", "cycle")
        self.command("prune", "--yes", "--all-of-them")
        self.assertEqual(self.result("concept", "show", "vault")["id"], made["id"])
        self.assertEqual(self.command("forgotten"), "")

    def test_a_note_that_says_the_same_stays_a_memory_of_its_own(self) -> None:
        one = self.remember("caching: keep what was computed for the next question")
        self.command("concept", "add", "caching", "keep what was computed for the next question")
        self.assertEqual(self.found("what was computed"), [one])
        two = self.remember("caching: keep what was computed for the next question!")
        self.assertEqual(two, one)

    def test_nobody_can_hide_a_text_by_the_tag_of_a_concept(self) -> None:
        one = self.remember("The ferry leaves at nine", "--tags", "brain/concept")
        self.assertEqual(self.found("ferry"), [one])

    def test_related_holds_both_ways_and_other_links_one(self) -> None:
        self.command("concept", "link", "tea", "related", "coffee")
        self.command("concept", "link", "tea", "is_a", "drink")
        self.assertIn(["related", "tea"], self.result("concept", "show", "coffee")["links"])
        drink = self.result("concept", "show", "drink")
        self.assertEqual((drink["links"], drink["links_in"]), ([], [["is_a", "tea"]]))

    def test_members_are_found_over_steps_and_circles_do_no_harm(self) -> None:
        for below, above in (("oolong", "tea"), ("tea", "drink"), ("drink", "thing"),
                             ("thing", "oolong")):
            self.command("concept", "link", below, "is_a", above)
        self.assertEqual(self.result("concept", "show", "drink")["members"],
                         ["tea", "oolong", "thing"])

    def test_a_link_is_taken_back_and_undo_brings_it_again(self) -> None:
        self.command("concept", "link", "tea", "is_a", "drink")
        self.command("concept", "link", "tea", "is_a", "drink", "--off")
        self.assertEqual(self.result("concept", "show", "tea")["links"], [])
        self.command("undo")
        self.assertEqual(self.result("concept", "show", "tea")["links"], [["is_a", "drink"]])
        self.command("undo")
        self.assertEqual(self.run_command("concept", "show", "tea")[0], 10)

    def test_wrong_words_get_one_sentence_and_change_nothing(self) -> None:
        for code, words in ((2, ("add", "")), (2, ("add", "  ", "x")), (2, ("add", "tea", "")),
                            (2, ("add", "x" * 81)), (2, ("link", "tea", "is_a", "Tea")),
                            (2, ("link", "tea", "", "drink")), (10, ("show", "nothing")),
                            (10, ("link", "tea", "is_a", "drink", "--off")), (2, ("fly",)),
                            (2, ()), (11, ("add", "password", "what opens the door"))):
            exit_code, _, said = self.run_command("concept", *words)
            self.assertEqual(exit_code, code, (words, said))
            self.assertEqual(said.count("\n"), 1, (words, said))
        self.assertEqual(self.names(), {})

    def test_a_forgotten_record_leaves_the_tagged_memories(self) -> None:
        one = self.remember("Keys expire", "--tags", "tea")
        made = self.result("concept", "add", "tea", "a drink")
        self.command("forget", made["id"])
        shown = self.result("concept", "show", "tea")
        self.assertEqual((shown["id"], [row["id"] for row in shown["memories"]]), (None, [one]))


class Keys(unittest.TestCase):

    def test_a_key_has_neither_case_nor_blanks(self) -> None:
        for name, key in (("Cache  Invalidation", "cache-invalidation"), ("#Tea", "tea"),
                          ("ＴＥＡ", "tea"), ("缓存 失效", "缓存-失效"), ("STRASSE", "strasse"),
                          ("Straße", "strasse"), (" ,, ", ""), ("", "")):
            self.assertEqual(concept_key(name), key, name)


class Off(BrainCase):

    def test_without_the_system_a_sentence_says_how_to_switch_it_on(self) -> None:
        (self.root / "config.yaml").write_text("{}")
        exit_code, _, said = self.run_command("concept", "list")
        self.assertEqual(exit_code, 3)
        self.assertIn("systems: {brain: {}}", said)

    def test_an_unknown_concept_is_not_found(self) -> None:
        with self.assertRaises(NotFound):
            show_concept(self.open(), "nothing")


ConceptsOnArchive = on_archive(Concepts)

if __name__ == "__main__":
    unittest.main()

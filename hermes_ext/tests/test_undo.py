"""undo: the last act is taken back, through the commands, on files and on the archive."""
from __future__ import annotations

import json
import unittest
from datetime import timedelta

from hermes_ext.tests.base import HAS_CRYPTO, HAS_YAML, Case
from hermes_lite import Refused

SYSTEMS = "anchors: {}, salience: {}, audit: {}, lanes: {}, rules: {}, brain: {}"


@unittest.skipUnless(HAS_YAML, "needs PyYAML")
class Undoing(Case):
    backend = "files"

    def setUp(self) -> None:
        super().setUp()
        self.root.mkdir()
        self.configure("undo: {hours: 24}")

    def configure(self, systems: str) -> None:
        (self.root / "config.yaml").write_text(
            f"storage: {{backend: {self.backend}}}\nsystems: {{{systems}}}\n")

    def ok(self, *words: str, **environ: str) -> str:
        code, out, err = self.cli(*words, **environ)
        self.assertEqual(code, 0, err)
        return out

    def rows(self) -> list[dict]:
        return [{name: row.get(name) for name in ("id", "content", "execution_verified", "tags")}
                for row in json.loads(self.ok("list", "--json"))]

    def keep(self, text: str, *more: str) -> str:
        return json.loads(self.ok("remember", text, "--json", *more))["id"]

    def test_each_kind_of_act_is_taken_back_and_then_the_one_before(self):
        self.keep("the ferry leaves at nine")
        states = [self.rows()]
        first = self.keep("the harbour master is Olga", "--tags", "port")
        acts = (("remember", "the pilot is Kim"), ("remember", "The harbour master is Olga.",
                                                   "--tags", "people"),
                ("edit", first, "--text", "the harbour master is Pia"), ("verify", first),
                ("forget", first), ("forget", "--query", "pilot", "--yes"),
                ("import", str(self.home / "notes.jsonl"), "--yes"))
        (self.home / "notes.jsonl").write_text(
            '{"content": "pier 4 is closed"}\n{"content": "pier 5 is closed"}\n')
        for words in acts:
            states.append(self.rows())
            self.ok(*words)
            self.assertNotEqual(self.rows(), states[-1], words)
        for words in reversed(acts):
            self.assertIn(words[0], self.ok("undo"), words)
            self.assertEqual(self.rows(), states.pop(), words)
        self.ok("undo")
        self.assertEqual(self.rows(), states.pop())

    def test_what_was_forgotten_is_found_again_and_may_be_said_again(self):
        made = self.keep("the harbour master is Olga", "--tags", "port")
        _, _, err = self.cli("forget", made)
        self.assertIn("`undo` brings back what was deleted until", err)
        self.assertIn("back", self.ok("undo"))
        self.assertIn("Olga", self.ok("recall", "who is harbour master"))
        self.assertIn(made, self.ok("recall", "--tags", "port"))
        self.assertIn("merged", self.ok("remember", "the harbour master is Olga"))
        self.assertEqual(self.ok("doctor", "--json") and self.cli("doctor")[0], 0)

    def test_nothing_is_taken_back_where_a_memory_has_changed_since(self):
        made = self.keep("the harbour master is Olga")
        self.ok("verify", made)
        memory = self.open()
        memory.store.on_change = None              # as a program without the system
        with memory.store.transaction():
            from dataclasses import replace
            memory.store.put(replace(memory.lookup(made), importance=9))
        memory.close()
        before = self.rows()
        code, _, err = self.cli("undo")
        self.assertEqual(code, 11)
        self.assertIn("has been changed since", err)
        self.assertEqual(self.rows(), before)

    def test_a_recall_in_between_is_no_change(self):
        made = self.keep("the harbour master is Olga")
        self.ok("verify", made)
        self.ok("recall", "harbour master")
        self.assertIn("verify", self.ok("undo"))

    def test_after_its_time_nothing_is_left_to_undo_and_the_text_goes(self):
        memory = self.open()
        made = memory.remember("the harbour master is Olga").id
        memory.forget(made)
        self.assertIn("Olga", (self.root / ".undo.json").read_text())
        self.now += timedelta(hours=25)
        memory.remember("the pilot is Kim")
        self.assertNotIn("Olga", (self.root / ".undo.json").read_text())
        memory.close()

    def test_purge_and_scrub_leave_nothing_to_undo(self):
        made = self.keep("the harbour master is Olga")
        _, _, err = self.cli("forget", made, "--purge")
        self.assertNotIn("undo", err)
        self.assertEqual(self.grep("Olga"), [])
        self.ok("forget", self.keep("the pilot is Kim"))
        self.assertEqual(self.cli("scrub", "--yes")[0], 0)
        self.assertFalse((self.root / ".undo.json").exists())
        code, _, err = self.cli("undo")
        self.assertEqual((code, "nothing to undo" in err), (11, True), err)

    def test_a_preview_changes_nothing(self):
        made = self.keep("the harbour master is Olga")
        self.ok("forget", made)
        self.assertIn("would take back `forget`", self.ok("undo", "--dry-run"))
        self.assertEqual(self.rows(), [])
        self.ok("undo")
        self.assertEqual(len(self.rows()), 1)

    def test_an_act_that_failed_or_was_rolled_back_is_no_act(self):
        memory = self.open()
        memory.remember("the harbour master is Olga")
        with self.assertRaises(RuntimeError), memory.batch():
            memory.remember("the pilot is Kim")
            raise RuntimeError
        self.assertEqual([one.content for one in memory.list()], ["the harbour master is Olga"])
        from hermes_ext.undo import undo
        self.assertEqual(len(undo(memory).removed), 1)
        self.assertEqual(memory.list(), [])
        with self.assertRaises(Refused):
            undo(memory)

    def test_too_many_changes_are_said(self):
        from unittest import mock

        from hermes_ext import undo as module
        memory = self.open()
        with mock.patch.object(module, "_MOST_CHANGES", 3), memory.batch():
            for number in range(4):
                memory.remember(f"pier {number} is {'open shut busy free'.split()[number]}")
        with mock.patch.object(module, "_MOST_CHANGES", 3), self.assertRaises(Refused) as caught:
            memory.remember_many([f"gate {word} has a red door" for word in "abcd"])
            module.undo(memory)
        self.assertEqual(caught.exception.reason_code, "too_many")

    def test_with_all_systems_on_and_the_brains_own_changes_the_newest_is_taken_back(self):
        self.configure(f"{SYSTEMS}, undo: {{}}")
        self.ok("concept", "add", "caching", "keeping for speed")
        self.assertIn("took back change_1", self.ok("undo"))
        made = self.keep("the harbour master is Olga")
        self.ok("forget", made)
        self.assertIn("took back `forget`", self.ok("undo"))
        self.assertIn(made, self.ok("recall", "harbour master"))
        self.assertEqual(self.cli("undo", "change_77")[0], 10)

    def test_switched_off_it_says_how_to_switch_it_on(self):
        self.configure("")
        code, _, err = self.cli("undo")
        self.assertEqual((code, "systems: {undo: {}}" in err), (3, True), err)
        self.configure("undo: {hours: 0}")
        self.assertEqual(self.cli("stats")[0], 3)

    def test_what_was_made_and_undone_is_not_taken_up_again_but_by_hand(self):
        memory = self.open()
        memory.forget(memory.remember("We decided to use PostgreSQL 16").id)
        memory.remember("We decided to use PostgreSQL 16")
        from hermes_ext.undo import undo
        undo(memory)
        self.assertEqual(memory.digest("User: We decided to use PostgreSQL 16", apply=True).results,
                         ())
        self.assertEqual(memory.list(), [])
        self.assertTrue(memory.remember("We decided to use PostgreSQL 16").created)

    def test_undone_prune_keeps_what_it_took(self):
        memory = self.open()
        memory.remember("the harbour master is Olga")
        self.now += timedelta(days=20)
        self.assertEqual(len(memory.prune().expired), 1)
        from hermes_ext.undo import undo
        self.assertEqual(len(undo(memory).restored), 1)
        self.assertEqual(len(memory.list()), 1)


class OnTheArchive(Undoing):
    backend = "archive"


@unittest.skipUnless(HAS_CRYPTO, "needs cryptography")
@unittest.skipUnless(HAS_YAML, "needs PyYAML")
class Sealed(Case):
    def test_what_is_kept_is_sealed_where_the_store_is(self):
        self.root.mkdir()
        (self.root / "config.yaml").write_text("systems: {undo: {}}\n")
        memory = self.open(HERMES_ENCRYPT="on")
        memory.forget(memory.remember("the harbour master is Olga").id)
        self.assertNotIn(b"Olga", (self.root / ".undo.json").read_bytes())
        from hermes_ext.undo import undo
        undo(memory)
        self.assertEqual(memory.list()[0].content, "the harbour master is Olga")


if __name__ == "__main__":
    unittest.main()

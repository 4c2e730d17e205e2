"""The buffer is faster than the archive and never says anything else."""
from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import unittest
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest import mock

HOME = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HOME)]

import hermes_lite as core                                                        # noqa: E402
from hermes_lite import ConfigError, HermesLite, Memory, NotFound                 # noqa: E402
from hermes_ext.archive.buffer import FILE, BufferedStore                       # noqa: E402
from hermes_ext.scores import stored_score                              # noqa: E402


class Case(unittest.TestCase):

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="buffer"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.now = datetime(2026, 8, 17, 3, 31, 6, tzinfo=timezone.utc)
        cleared = {name: "" for name in os.environ if name.endswith("_API_KEY")}
        patch = mock.patch.dict(os.environ, {**cleared, "HERMES_VECTOR_BACKEND": "local"})
        patch.start()
        self.addCleanup(patch.stop)

    def memory(self, name: str = "a", **how: object) -> HermesLite:
        config = core.Config({"storage": {"backend": "archive"}, "systems": {"buffer": how}},
                             environ={"HERMES_VECTOR_BACKEND": "local"})
        memory = HermesLite(self.folder / name, config=config, clock=lambda: self.now)
        self.addCleanup(memory.close)
        self.assertIsInstance(memory.store, BufferedStore)
        return memory

    def plain(self, name: str = "a") -> HermesLite:
        config = core.Config({"storage": {"backend": "archive"}},
                             environ={"HERMES_VECTOR_BACKEND": "local"})
        memory = HermesLite(self.folder / name, config=config, clock=lambda: self.now)
        self.addCleanup(memory.close)
        return memory


class TestBuffer(Case):

    def test_a_write_is_on_the_disk_and_then_in_the_buffer(self) -> None:
        memory = self.memory()
        made = memory.remember("the gateway is checked on Mondays", importance=8)
        self.assertEqual(self.plain().get(made.id).content, "the gateway is checked on Mondays")
        asked = memory.store.answered
        self.assertEqual(memory.get(made.id).importance, 8)
        self.assertEqual(memory.store.answered, asked + 1)

    def test_a_transaction_that_fails_leaves_nothing_behind(self) -> None:
        memory = self.memory()
        kept = memory.remember("the gateway is checked on Mondays")
        with self.assertRaises(KeyError), memory.store.transaction():
            memory.store.put(replace(memory.get(kept.id), importance=9))
            memory.store.put(Memory("mem_new", "never"))
            raise KeyError
        self.assertEqual(memory.get(kept.id).importance, 5)
        with self.assertRaises(NotFound):
            memory.get("mem_new")

    def test_what_another_process_changed_or_forgot_is_never_served(self) -> None:
        memory, other = self.memory(), self.plain()
        one = memory.remember("the gateway is checked on Mondays")
        two = memory.remember("the office dog is called Rex")
        self.assertIn(one.id, memory.store.entries)
        other.verify(one.id)
        self.assertTrue(memory.store.get(one.id).execution_verified)
        other.forget(two.id)
        self.assertIsNone(memory.store.get(two.id))
        memory.close()
        self.assertNotIn(b"Rex", (memory.root / FILE).read_bytes())

    def test_the_same_answers_as_without_it(self) -> None:
        draw, memory = random.Random(3), self.memory(entries=5)
        other = self.plain()
        ids = []
        for number in range(60):
            word = draw.choice(("gateway", "合同", "server", "invoice"))
            ids.append(memory.remember(f"{word} number {number} is {draw.random():.9f}").id)
            if number % 7 == 3:
                gone = ids.pop(draw.randrange(len(ids)))
                (other if draw.random() < 0.5 else memory).forget(gone)
            if number % 5 == 2:
                other.verify(draw.choice(ids))
            found = memory.recall(f"{word} number {draw.randrange(60)}", top_k=4)
            for hit in found:
                self.assertEqual(hit.content, memory.store.archive.get(hit.id).content)
            for memory_id in ids:
                self.assertEqual(memory.store.get(memory_id), other.get(memory_id))
        self.assertLessEqual(len(memory.store.entries), 5)

    def test_a_low_score_goes_after_two_hours_without_use(self) -> None:
        memory = self.memory()
        low = memory.remember("lunch was delivered late", importance=2)
        high = memory.remember("the contract is CT2024-0876", importance=8)
        self.now += timedelta(minutes=119)
        memory.store.drop_stale()
        self.assertIn(low.id, memory.store.entries)
        self.now += timedelta(minutes=2)
        memory.store.drop_stale()
        self.assertEqual([*memory.store.entries], [high.id])

    def test_the_least_recently_used_makes_room(self) -> None:
        memory = self.memory(entries=3)
        ids = [memory.remember(text).id for text in (
            "the gateway is checked on Mondays", "周会是每周三下午三点", "Rex barks")]
        memory.get(ids[0])
        ids.append(memory.remember("invoices wait for a signature").id)
        self.assertEqual(set(memory.store.entries), {ids[0], ids[2], ids[3]})

    def test_three_recalls_in_a_row_bring_a_memory_in(self) -> None:
        with self.plain() as other:
            made = other.remember("the gateway is checked on Mondays")
            other.remember("the office dog is called Rex")
        memory = self.memory()
        for query in ("gateway", "gateway Mondays", "dog", "gateway", "Mondays"):
            memory.recall(query)
            self.assertNotIn(made.id, memory.store.entries)
        memory.recall("checked gateway")
        self.assertIn(made.id, memory.store.entries)

    def test_the_snapshot_is_taken_up_and_checked_against_the_archive(self) -> None:
        memory = self.memory()
        one = memory.remember("the gateway is checked on Mondays")
        two = memory.remember("the office dog is called Rex")
        three = memory.remember("invoices are paid within 14 days")
        memory.close()
        self.assertEqual(os.stat(memory.root / FILE).st_mode & 0o077, 0)
        with self.plain() as other:
            other.forget(two.id)
            with other.store.transaction():
                other.store.put(replace(other.get(three.id), content="invoices wait 30 days"))
        memory = self.memory()
        self.assertEqual(set(memory.store.entries), {one.id, two.id, three.id})
        self.assertEqual(memory.get(three.id).content, "invoices wait 30 days")
        self.assertIsNone(memory.store.get(two.id))
        self.assertNotIn(two.id, memory.store.entries)

    def test_what_is_forgotten_leaves_the_snapshot_at_once(self) -> None:
        memory = self.memory()
        made = memory.remember("Quetzalcoatl keeps the zephyrblade")
        memory.close()
        self.assertIn(b"zephyrblade", (memory.root / FILE).read_bytes())
        memory = self.memory()
        memory.forget(made.id)
        self.assertNotIn(b"zephyrblade", (memory.root / FILE).read_bytes())

    def test_a_damaged_snapshot_is_said_and_the_buffer_starts_empty(self) -> None:
        with self.memory() as memory:
            memory.remember("the gateway is checked on Mondays")
        (memory.root / FILE).write_bytes(b'[["mem", 3')
        memory = self.memory()
        self.assertEqual(len(memory.store.entries), 0)
        self.assertIn("damaged", " ".join(memory.take_notices()))

    def test_score_is_salience_else_importance(self) -> None:
        self.assertEqual(stored_score(Memory("a", "x", importance=7)), 7.0)
        scored = Memory("a", "x", meta={"salience": {"score": 4.5}})
        self.assertEqual(stored_score(scored), 4.5)

    def test_before_files_and_with_nonsense_it_is_refused(self) -> None:
        for values in ({"systems": {"buffer": {}}},
                       {"storage": {"backend": "archive"}, "systems": {"buffer": {"hours": "x"}}}):
            with self.assertRaisesRegex(ConfigError, "systems.buffer"):
                HermesLite(self.folder / "f", config=core.Config(values, environ={}))

    def test_the_command_shows_it_or_says_how_to_switch_it_on(self) -> None:
        from hermes_ext.archive.buffer import OPERATIONS
        memory = self.memory()
        made = memory.remember("the gateway is checked on Mondays")
        rows = OPERATIONS[0].handler(memory)
        self.assertEqual([row["id"] for row in rows], [made.id])
        with self.assertRaisesRegex(ConfigError, "systems in config.yaml"):
            OPERATIONS[0].handler(self.plain("other"))


if __name__ == "__main__":
    unittest.main()

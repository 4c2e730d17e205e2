"""Sync: all devices end equal, nothing forgotten is back, and no text is lost."""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import zlib
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest import mock

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from hermes_ext.sync import outbox                                                # noqa: E402
from hermes_ext.sync.sync import _show, retire, status, sync                    # noqa: E402
from hermes_ext.sync.merge import (Item, Version, from_line, joined, merge,  # noqa: E402
                                   text_hash, to_line)
from hermes_ext.tests.base import a_secret, ratio_of_pairs, run_command  # noqa: E402
from hermes_lite import (Config, ConfigError, FileStore, HermesLite, Locked,     # noqa: E402
                         Memory, NotFound, Refused, is_ciphertext, to_json)

try:
    import hypothesis
    import hypothesis.strategies as st
except ImportError:
    hypothesis = None
try:
    import cryptography
except ImportError:
    cryptography = None


def words(number: int) -> str:
    """Return a text that is like no other."""
    rng = random.Random(number)
    return " ".join("".join(rng.choice("bcdfghklmnprstvw") + rng.choice("aeiou")
                            for _ in range(3)) for _ in range(6))


def framed(row: object) -> bytes:
    content = row if isinstance(row, bytes) else to_json(row)
    return b"%08x %s\n" % (zlib.crc32(content), content)


class SyncCase(unittest.TestCase):

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.share = self.folder / "share"
        self.share.mkdir()

    def memory(self, name: str, *, clock=None, environ=(), systems=(), **settings) -> HermesLite:
        more = {"clock": clock} if clock else {}
        memory = HermesLite(self.folder / name, config=Config(settings, environ=dict(environ)),
                            systems=systems, **more)
        self.addCleanup(memory.close)
        return memory

    def pair(self, text: str = "The staging database listens on port 5433") -> tuple:
        """Return two devices that share one note, and its id."""
        one, two = self.memory("one"), self.memory("two")
        memory_id = one.remember(text).id
        self.meet(one, two)
        return one, two, memory_id

    def meet(self, *devices: HermesLite) -> None:
        for _ in range(3):
            for device in devices:
                sync(device, self.share)

    def rows(self, memory: HermesLite) -> dict[str, Memory]:
        memory.store.refresh()
        return {row.id: row for row in memory.store}

    def texts(self, memory: HermesLite) -> list[str]:
        return sorted(row.content for row in self.rows(memory).values())

    def edit(self, memory: HermesLite, memory_id: str, text: str) -> None:
        row = memory.get(memory_id)
        memory.admit(replace(row, content=text), replacing=True)

    def shared(self) -> bytes:
        return b"\0".join(path.read_bytes() for path in sorted(self.share.iterdir()))

    def assert_equal(self, *devices: HermesLite) -> None:
        for device in devices[1:]:
            self.assertEqual(self.rows(device), self.rows(devices[0]))

    def own_file(self, memory: HermesLite) -> Path:
        return self.share / f"hermes-lite.{status(memory)['device']}.jsonl"

    def hostile(self, *lines: object, device: str = "c" * 12, n: int = 100, name: str = "",
                **header) -> Path:
        head = {"hermes-lite-sync": 1, "device": device, "n": n, "gen": "x", "sealed": False}
        path = self.share / (name or f"hermes-lite.{device}.jsonl")
        path.write_bytes(framed({**head, **header}) + b"".join(map(framed, lines)))
        return path


def change(memory_id: str, text: str, clock: object = None, **more) -> dict[str, object]:
    return {"n": 1, "id": memory_id, "clock": {"c" * 12: 1} if clock is None else clock,
            "text": text, "facts": {"category": "general", "room": "events", "importance": 5,
                                    "execution_verified": False,
                                    "created_at": "2026-01-01T00:00:00+00:00"}, **more}


class TestTwoDevices(SyncCase):

    def test_a_text_older_than_a_rule_leaves_by_todays_redaction(self) -> None:
        rules = {"security": {"redact_patterns": [r"(EMP\d{6})"]}}
        self.memory("one").remember("badge EMP123456 opens the depot")
        one, two = self.memory("one", **rules), self.memory("two")
        self.meet(one, two)
        self.meet(two, one)
        sent = b"".join(path.read_bytes() for path in self.share.iterdir())
        self.assertNotIn(b"EMP123456", sent)
        self.assertEqual([m.content for m in two.list()], ["badge [已脱敏:custom] opens the depot"])
        self.assertEqual(len(one.list()), 1)

    def test_every_field_arrives_and_a_second_run_does_nothing(self):
        one, two = self.memory("one"), self.memory("two")
        one.admit(Memory(
            "mem_20240101_000000_0001", "周会是每周三下午三点", "decision", "decisions", 8, True,
            3, "2024-05-01T00:00:00+00:00", "a: source", "2023-09-01T00:00:00+00:00", ("email",),
            ("one", "two"), "agent-1", "2031-01-01", "active", "mem_20230101_000000_aaaa",
            {"system": {"deep": [1, 2.5, None, "x"]}}, {"unknown": [True], "title": "é: #1"}))
        self.assertEqual(sync(one, self.share).sent, 1)
        self.assertEqual(sync(two, self.share).received, 1)
        self.assertEqual(self.rows(one), self.rows(two))
        before = self.shared()
        for device in (one, two, one, two):
            done = sync(device)
            self.assertEqual([done.sent, done.received, done.merged, done.refused], [0] * 4)
        self.assertEqual(self.shared(), before)

    def test_an_edit_takes_the_older_texts_place(self):
        one, two, memory_id = self.pair()
        self.edit(two, memory_id, "Staging moved to another host")
        self.meet(one, two)
        self.assertEqual(self.texts(one), ["Staging moved to another host"])
        self.assert_equal(one, two)

    def test_two_devices_that_edit_one_note_keep_both_texts_linked(self):
        one, two, memory_id = self.pair()
        self.edit(one, memory_id, "Staging runs on the blue machine")
        self.edit(two, memory_id, "The database was given to Anna")
        sync(one)
        self.assertEqual(sync(two).kept_both, 1)
        self.meet(one, two)
        self.assertEqual(self.texts(one), ["Staging runs on the blue machine",
                                           "The database was given to Anna"])
        self.assert_equal(one, two)
        copy, = [row for row in self.rows(one).values() if row.id != memory_id]
        self.assertEqual(copy.meta["sync"], {"conflict_with": memory_id})
        self.assertIn(memory_id, self.rows(one))

    def test_an_edit_of_the_winner_does_not_take_the_copy_along(self):
        one, two, memory_id = self.pair()
        self.edit(one, memory_id, words(1))
        self.edit(two, memory_id, words(2))
        self.meet(one, two)
        self.edit(two, memory_id, words(3))
        self.meet(one, two)
        self.assertEqual(len(self.texts(one)), 2)
        self.assertIn(words(3), self.texts(one))
        self.assert_equal(one, two)

    def test_a_verify_and_an_edit_of_one_note_are_no_conflict(self):
        one, two, memory_id = self.pair()
        one.verify(memory_id)
        self.edit(two, memory_id, words(2))
        self.meet(one, two)
        self.assertEqual(self.texts(one), [words(2)])
        self.assertTrue(one.get(memory_id).execution_verified)
        self.assert_equal(one, two)

    def test_two_fields_changed_at_once_both_hold(self):
        one, two, memory_id = self.pair()
        one.admit(replace(one.get(memory_id), tags=("red",), importance=9,
                          meta={"a": {"x": 1}}), replacing=True)
        two.admit(replace(two.get(memory_id), tags=("blue",), importance=3,
                          meta={"b": {"y": 2}}), replacing=True)
        self.meet(one, two)
        row = one.get(memory_id)
        self.assertEqual((row.tags, row.importance), (("blue", "red"), 9))
        self.assertEqual(dict(row.meta), {"a": {"x": 1}, "b": {"y": 2}})
        self.assert_equal(one, two)

    def test_a_field_taken_away_goes_everywhere(self):
        one, two, memory_id = self.pair()
        one.admit(replace(one.get(memory_id), tags=("red",), status="open"), replacing=True)
        self.meet(one, two)
        two.admit(replace(two.get(memory_id), tags=(), status=None, importance=2),
                  replacing=True)
        self.meet(one, two)
        row = one.get(memory_id)
        self.assertEqual((row.tags, row.status, row.importance), ((), None, 2))

    def test_accesses_merge_to_the_largest_count(self):
        one, two, memory_id = self.pair()
        for _ in range(2):
            one.recall("staging port")
        for _ in range(3):
            two.recall("staging port")
        self.meet(one, two)
        self.assertEqual(one.get(memory_id).access_count, 3)
        self.assert_equal(one, two)

    def test_the_same_new_note_on_both_becomes_one(self):
        one, two = self.memory("one"), self.memory("two")
        one.remember("Backups run at two in the night", importance=8)
        two.verify(two.remember("Backups run at two in the night").id)
        self.meet(one, two)
        row, = self.rows(one).values()
        self.assertTrue(row.execution_verified and row.importance == 8)
        self.assert_equal(one, two)

    def test_an_edit_that_did_not_know_of_the_fold_survives(self):
        one, two, three = (self.memory(name) for name in ("one", "two", "three"))
        ids = [device.remember(words(7)).id for device in (one, two)]
        later = two if max(ids) == ids[1] else one
        sync(later, self.share)
        sync(three, self.share)
        self.edit(three, max(ids), words(8))
        self.meet(one, two)
        self.meet(one, two, three)
        self.assertEqual(self.texts(one), sorted([words(7), words(8)]))
        self.assert_equal(one, two, three)


class TestStores(SyncCase):

    def test_a_file_store_and_an_archive_end_equal(self):
        one, two = self.memory("one"), self.memory("two", storage={"backend": "archive"})
        self.assertNotIsInstance(two.store, FileStore)
        ids = [one.remember(words(number)).id for number in range(4)]
        self.meet(one, two)
        two.verify(ids[0])
        self.edit(two, ids[1], words(9))
        self.edit(one, ids[2], words(10))
        self.edit(two, ids[2], words(11))
        two.forget(ids[3])
        self.meet(one, two)
        self.assertEqual(self.texts(one), sorted(map(words, (0, 9, 10, 11))))
        one.forget(ids[0])
        self.meet(one, two)
        self.assertEqual(self.texts(two), sorted(map(words, (9, 10, 11))))
        self.assert_equal(one, two)
        self.assertEqual(sync(two).sent, 0)


class TestForgetting(SyncCase):

    def test_what_one_device_forgets_is_gone_everywhere_and_from_the_folder(self):
        one, two, memory_id = self.pair()
        three = self.memory("three")
        self.edit(two, memory_id, "Staging listens on the blue machine")
        self.meet(one, two, three)
        self.edit(one, memory_id, "Staging listens on the green machine")
        self.meet(one, two, three)                 # the text stood in two files
        three.forget(memory_id)
        self.meet(one, two, three)
        for device in (one, two, three):
            self.assertEqual(self.texts(device), [])
        self.assertNotIn(b"Staging", self.shared())
        self.assertNotIn(b"staging", self.shared())

    def test_a_forget_beats_an_edit_that_did_not_know_of_it(self):
        one, two, memory_id = self.pair()
        one.forget(memory_id)
        self.edit(two, memory_id, words(2))
        for order in ((one, two), (two, one)):
            self.meet(*order)
        self.assertEqual((self.texts(one), self.texts(two)), ([], []))
        self.assertNotIn(words(2).encode(), self.shared())

    def test_it_does_not_come_back_from_a_device_that_was_away(self):
        one, two, memory_id = self.pair()
        old = self.share / "away"
        shutil.copytree(self.folder / "two", self.folder / "saved")
        one.forget(memory_id)
        self.meet(one, two)
        new = self.memory("new")
        self.meet(one, new)
        two.recall("staging")
        self.meet(two, one, new)
        self.assertEqual([self.texts(d) for d in (one, two, new)], [[], [], []])
        self.assertFalse(old.exists())

    def test_its_words_do_not_come_back_under_another_id(self):
        one, away, memory_id = self.pair()
        one.forget(memory_id)
        sync(one)
        third = self.memory("third")
        third.remember("The staging database listens on port 5433")
        self.meet(third, one, away)
        self.assertEqual([self.texts(d) for d in (one, away, third)], [[], [], []])

    def test_an_edit_of_the_same_words_under_another_id_survives(self):
        one, two, three = (self.memory(name) for name in ("one", "two", "three"))
        first = one.remember(words(1)).id
        sync(one, self.share)
        one.forget(first)
        sync(one)
        other = two.remember(words(1)).id
        sync(two, self.folder / "apart")
        self.edit(two, other, words(2))            # one does not know, and meets the old words
        for path in (self.folder / "apart").iterdir():
            shutil.copy(path, self.share)
        self.assertEqual(sync(one).forgotten, 1)
        self.meet(two, one, three)
        self.assertEqual(self.texts(three), [words(2)])
        self.assert_equal(one, two, three)
        self.assertNotIn(words(1).encode(), self.shared())

    def test_remembering_again_brings_it_back_everywhere(self):
        one, two, memory_id = self.pair()
        one.forget(memory_id)
        self.meet(one, two)
        two.remember("The staging database listens on port 5433")
        self.meet(two, one)
        self.assertEqual(len(self.texts(one)), 1)
        self.assert_equal(one, two)

    def test_what_this_device_refuses_stays_forgotten_here(self):
        class Door:
            name = "door"

            def before_store(self, draft):
                if "staging" in draft.content:
                    raise Refused("not here")

        text = "The staging database listens on port 5433"
        one, two, memory_id = self.pair(text)
        one.forget(memory_id)
        self.meet(one, two)
        two.remember(text)
        sync(two, self.share)
        one.systems.append(Door())
        self.meet(one, two)
        self.assertEqual(self.texts(one), [])
        self.assertIsNotNone(one.store.forgotten(text))

    def test_forgetting_and_remembering_between_two_runs_keeps_the_text_once(self):
        one, two, memory_id = self.pair()
        one.forget(memory_id)
        again = one.remember("The staging database listens on port 5433").id
        self.meet(one, two)
        self.assertEqual(self.texts(two), ["The staging database listens on port 5433"])
        self.assert_equal(one, two)
        for each in self.rows(one):
            one.forget(each)
        self.meet(one, two)
        self.assertEqual(self.texts(two), [])
        self.assertNotIn(again, self.rows(one))
        self.assertNotIn(b"staging", self.shared())

    def test_prune_is_each_devices_own_affair(self):
        now = datetime(2026, 8, 1, tzinfo=timezone.utc)
        ahead = self.memory("ahead", clock=lambda: now + timedelta(days=365))
        one = self.memory("one", clock=lambda: now)
        memory_id = one.remember(words(1)).id
        self.meet(one, ahead)
        self.assertEqual(len(ahead.prune().expired), 1)
        self.meet(ahead, one)
        self.assertEqual((self.texts(one), self.texts(ahead)), ([words(1)], []))
        self.assertIn(words(1).encode(), self.shared())
        one.verify(memory_id)                      # a change brings it back
        self.meet(one, ahead)
        self.assertEqual(self.texts(ahead), [words(1)])
        self.assert_equal(one, ahead)

    def test_a_pruned_note_is_still_told_after_a_rewrite(self):
        now = [datetime(2026, 8, 1, tzinfo=timezone.utc)]
        one = self.memory("one", clock=lambda: now[0])
        one.remember(words(1))
        other = one.remember(words(2)).id
        sync(one, self.share)
        now[0] += timedelta(days=365)
        one.forget(other)
        one.prune()
        sync(one)
        two = self.memory("two")
        sync(two, self.share)
        self.assertEqual(self.texts(two), [words(1)])

    def test_systems_are_told_of_what_another_device_forgot(self):
        class Listener:
            name = "listener"
            heard: list = []

            def after_forget(self, memory, why):
                self.heard.append((memory.id, why))
        one, two = self.memory("one"), self.memory("two", systems=[Listener()])
        memory_id = one.remember(words(1)).id
        self.meet(one, two)
        one.forget(memory_id)
        self.meet(one, two)
        self.assertEqual(Listener.heard, [(memory_id, "forgotten on another device")])


class TestDelivery(SyncCase):

    def test_a_file_cut_anywhere_is_taken_as_far_as_it_goes_and_then_whole(self):
        one = self.memory("one")
        for number in range(4):
            one.remember(words(number))
        sync(one, self.share)
        data = self.own_file(one).read_bytes()
        for cut in range(0, len(data), 97):
            other = self.folder / f"cut{cut}"
            other.mkdir()
            path = other / self.own_file(one).name
            path.write_bytes(data[:cut])
            two = self.memory(f"two{cut}")
            sync(two, other)
            self.assertLessEqual(set(self.texts(two)), set(self.texts(one)))
            path.write_bytes(data)
            sync(two, other)
            self.assertEqual(self.rows(two), self.rows(one))

    def test_a_hole_in_a_file_costs_its_lines_until_it_is_filled(self):
        one = self.memory("one")
        for number in range(6):
            one.remember(words(number))
        sync(one, self.share)
        path = self.own_file(one)
        data = path.read_bytes()
        middle = len(data) // 2
        path.write_bytes(data[:middle] + b"\0" * 40 + data[middle + 40:])
        two = self.memory("two")
        self.assertGreater(sync(two, self.share).waiting, 0)
        self.assertGreater(len(self.texts(two)), 3)
        path.write_bytes(data)
        sync(two)
        self.assertEqual(self.rows(two), self.rows(one))

    def test_conflict_copies_of_services_are_read_and_cleared_away(self):
        one, two, memory_id = self.pair()
        path = self.own_file(one)
        for name in (f"{path.stem} (conflicted copy 2026-08-01).jsonl",
                     f"{path.stem}.sync-conflict-20260801-120000-ABCDEFG.jsonl"):
            shutil.copy(path, self.share / name)
        (self.share / "hermes-lite.notes.jsonl").write_text("not ours\n")
        (self.share / f".{path.name}.tmp").write_text("half\n")
        self.meet(one, two)
        self.assert_equal(one, two)
        one.forget(memory_id)
        self.meet(one, two)
        self.assertNotIn(b"staging", self.shared())
        self.assertEqual((self.share / "hermes-lite.notes.jsonl").read_text(), "not ours\n")

    def test_line_ends_that_git_has_changed_are_no_damage(self):
        one, two, _ = self.pair()
        path = self.own_file(one)
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        three = self.memory("three")
        self.assertEqual(sync(three, self.share).refused, 0)
        self.assert_equal(one, three)

    def test_a_file_that_was_deleted_is_written_again(self):
        one, two, _ = self.pair()
        for path in self.share.iterdir():
            path.unlink()
        sync(one)
        three = self.memory("three")
        sync(three, self.share)
        self.assert_equal(one, three)

    def test_another_folder_gets_everything(self):
        one, two, _ = self.pair()
        two.remember(words(1))
        self.meet(one, two)
        other = self.folder / "stick"
        sync(one, other)
        three = self.memory("three")
        sync(three, other)
        self.assert_equal(one, two, three)

    def test_a_record_lost_from_the_store_comes_back(self):
        one, two, memory_id = self.pair()
        with one.store.transaction():
            one.store.remove(memory_id, why=None)
        sync(one)
        self.assert_equal(one, two)


class TestIdentity(SyncCase):

    def test_a_copied_root_becomes_a_device_of_its_own(self):
        one, two, memory_id = self.pair()
        one.close()
        shutil.copytree(self.folder / "one", self.folder / "copy")
        copy = self.memory("copy")
        self.edit(one, memory_id, words(1))
        self.edit(copy, memory_id, words(2))
        done = sync(copy, self.share)
        self.assertEqual(done.renewed, status(one)["device"])
        self.meet(one, copy, two)
        self.assertEqual(self.texts(one), sorted([words(1), words(2)]))
        self.assert_equal(one, two, copy)

    def test_a_root_put_back_in_its_place_notices_by_its_own_file(self):
        one, two, memory_id = self.pair()
        one.close()
        kept = {path: path.read_bytes() for path in one.root.rglob("*") if path.is_file()}
        other = one.remember(words(1)).id
        self.edit(one, memory_id, words(2))
        self.meet(one, two)
        two.forget(other)
        self.meet(one, two)
        before = status(one)["device"]
        one.close()
        for path in [path for path in one.root.rglob("*") if path.is_file()]:
            path.unlink()
        for path, data in kept.items():
            path.write_bytes(data)
        back = self.memory("one")
        self.assertEqual(sync(back).renewed, before)
        self.meet(back, two)
        self.assertEqual(self.texts(back), [words(2)])
        self.assert_equal(back, two)
        self.assertNotIn(words(1).encode(), self.shared())

    def test_two_roots_with_one_name_lose_nothing(self):
        one, two, _ = self.pair()
        one.close()
        shutil.copytree(self.folder / "one", self.folder / "copy")
        state = json.loads((self.folder / "copy/.state_sync.json").read_bytes())
        state["inode"] = os.stat(self.folder / "copy").st_ino      # as an image of a disk has it
        (self.folder / "copy/.state_sync.json").write_bytes(to_json(state))
        copy = self.memory("copy")
        one.remember(words(1))
        sync(one)
        copy.remember(words(2))
        self.assertEqual(sync(copy).renewed, status(one)["device"])
        self.meet(one, copy, two)
        self.assertEqual(len(self.texts(two)), 3)
        self.assert_equal(one, two, copy)

    def test_a_retired_device_leaves_no_file_and_no_text_behind(self):
        one, two, memory_id = self.pair()
        kept = two.remember(words(3)).id
        dead = two.remember(words(4)).id
        self.meet(two, one)
        name = status(two)["device"]
        one.forget(dead)
        sync(one)
        self.assertIn(words(4).encode(), self.shared())
        retire(one, name)
        self.assertNotIn(words(4).encode(), self.shared())
        self.assertEqual(len(list(self.share.iterdir())), 1)
        three = self.memory("three")
        sync(three, self.share)
        self.assertIn(kept, self.rows(three))
        self.assert_equal(one, three)
        self.assertRaises(NotFound, retire, one, "0" * 12)
        self.assertRaises(Refused, retire, one, status(one)["device"])
        said = list(_show(status(one)))
        self.assertEqual(said[2].split(", ")[0], f"this device: {status(one)['device']}")
        self.assertIn(", readable by who has it", said[1])
        self.assertNotIn("told", " ".join(said))

    def test_a_clock_that_is_a_year_off_decides_nothing(self):
        now = datetime(2026, 8, 1, tzinfo=timezone.utc)
        ahead = self.memory("ahead", clock=lambda: now + timedelta(days=365))
        behind = self.memory("behind", clock=lambda: now - timedelta(days=365))
        memory_id = ahead.remember("Staging is on the old machine").id
        self.meet(ahead, behind)
        self.edit(behind, memory_id, "Staging moved to Anna's machine")
        self.meet(behind, ahead)
        self.assertEqual(self.texts(ahead), ["Staging moved to Anna's machine"])
        behind.forget(memory_id)
        self.meet(behind, ahead)
        self.assertEqual(self.texts(ahead), [])


class TestHostile(SyncCase):

    def test_odd_ids_clocks_and_fields_are_refused_one_by_one(self):
        one, _, memory_id = self.pair()
        status(one)
        c = "c" * 12
        bad = [change(name, words(1)) for name in (
            "../../etc/passwd", "..", "a/b", "C:\\x", "con", "nul.md", "", "a" * 121, "Mem_1",
            "x\0y", 7, None, ["a"])]
        bad += [change("mem_c", words(1), clock) for clock in (
            {}, {c: 0}, {c: -1}, {c: "x"}, {c: 1 << 63}, {c: 1.5}, {c: True}, {"evil": 1}, [1],
            {f"{number:012x}": 1 for number in range(10_000)})]
        bad += [change(f"mem_d{number}", text) for number, text in enumerate(
            (7, None, ["x"], {}, "   ", "\0"))]
        bad += [change("mem_e", words(2), facts=facts) for facts in (
            {"importance": "10"}, {"tags": "x"}, {"tags": [{}]}, {"source": []}, [], "x",
            {"execution_verified": 1}, {f"meta.{number}": 1 for number in range(600)})]
        bad += [change("mem_f", words(3), count=count) for count in (
            [-1, ""], ["x", ""], [1 << 60, ""], [1], 5)]
        bad += [b"{", b"[1]", b"\xff\xfe", b"null", b"[" * 100_000, b'{"a": NaN', b"7"]
        self.hostile(*bad, change("mem_good", words(9)))
        done = sync(one)
        self.assertEqual((done.refused, done.received), (len(bad), 1), done.faults)
        self.assertEqual(set(self.rows(one)), {memory_id, "mem_good"})
        self.assertEqual(sorted(path.name for path in (one.root / "store").iterdir()),
                         sorted([f"{memory_id}.md", "mem_good.md"]))
        again = sync(one)
        self.assertEqual((again.refused, again.received), (0, 0))

    def test_a_clock_that_speaks_for_another_device_does_not_hide_its_edits(self):
        one, two, memory_id = self.pair()
        me = status(one)["device"]
        self.hostile(change(memory_id, words(1), {me: 1_000_000, "c" * 12: 1}))
        self.meet(one, two)
        self.edit(one, memory_id, words(2))
        self.meet(one, two)
        self.assertEqual(self.texts(two), [words(2)])
        self.assert_equal(one, two)

    def test_foreign_fields_are_kept_apart_and_unknown_ones_of_a_line_ignored(self):
        one = self.memory("one")
        self.hostile(change("mem_a", words(1), facts={
            "id": "mem_evil", "content": "other words", "extra.id": "mem_evil",
            "extra.content": "x", "extra.title": "Kaffee", "room": "../../x", "category": "evil",
            "created_at": "not a time", "agent": "a"}, future={"x": 1}, root="/etc"))
        self.assertEqual(sync(one, self.share).received, 1)
        row = one.get("mem_a")
        self.assertEqual((row.content, row.room, row.category), (words(1), "events", "general"))
        self.assertEqual(dict(row.extra), {"title": "Kaffee"})

    def test_secrets_are_redacted_on_the_way_in(self):
        one = self.memory("one")
        secret = a_secret()
        self.hostile(change("mem_a", f"the password is {secret}", facts={
            "source": f"token: {secret}", "tags": [f"password={secret}"],
            "meta.x": {"password": secret}, "extra.y": f"password: {secret}"}),
            change(f"sk-{secret.lower()}", words(2)))
        done = sync(one, self.share)
        self.assertEqual((done.received, done.refused), (1, 1))
        one.close()
        for path in one.root.rglob("*"):
            if path.is_file():
                self.assertNotIn(secret.encode(), path.read_bytes(), path)
        self.assertNotIn(secret, str(done))
        self.assertNotIn(secret.encode(), self.own_file(one).read_bytes())

    def test_what_the_door_changes_stays_on_its_device(self):
        rule = r"(Tulpe-\d+)"
        loose = self.memory("loose")
        strict = self.memory("strict", security={"redact_patterns": [rule]})
        memory_id = loose.remember("The code word is Tulpe-4711").id
        self.meet(loose, strict)
        self.assertNotIn("4711", strict.get(memory_id).content)
        strict.verify(memory_id)
        self.meet(strict, loose)
        self.assertIn("4711", loose.get(memory_id).content)
        self.assertTrue(loose.get(memory_id).execution_verified)

    def test_huge_lines_links_and_other_versions_are_passed_over(self):
        one = self.memory("one", storage={"max_text_chars": 1000})
        self.hostile(change("mem_long", "x" * 2000), change("mem_huge", "x" * 3_000_000),
                     change("mem_good", words(1)))
        self.hostile(change("mem_two", words(2)), device="d" * 12, **{"hermes-lite-sync": 2})
        self.hostile(change("mem_three", words(3)), device="../../evil",
                     name="hermes-lite.x.jsonl")
        outside = self.folder / "outside.jsonl"
        outside.write_bytes(framed({"hermes-lite-sync": 1, "device": "e" * 12, "n": 1}) +
                            framed(change("mem_link", words(4))))
        (self.share / "hermes-lite.link.jsonl").symlink_to(outside)
        os.mkfifo(self.share / "hermes-lite.pipe.jsonl")
        done = sync(one, self.share)
        self.assertEqual(list(self.rows(one)), ["mem_good"])
        self.assertEqual((done.refused, done.waiting), (4, 0))
        self.assertTrue(any("another version" in why for _, why in done.faults))

    def test_a_forgotten_text_is_in_no_error_and_no_state(self):
        one, two, memory_id = self.pair("Kaffee mit Anna um zehn")
        one.forget(memory_id)
        self.meet(one, two)
        for device in (one, two):
            device.close()
            self.assertNotIn(b"Kaffee", (device.root / ".state_sync.json").read_bytes())


class TestKeys(SyncCase):

    def test_a_folder_key_seals_every_line(self):
        if cryptography is None:
            self.skipTest("needs the package cryptography")
        key = {"HERMES_SYNC_KEY": "a long pass phrase of several words"}
        one, two = self.memory("one", environ=key), self.memory("two", environ=key)
        one.remember("Kaffee mit Anna")
        self.meet(one, two)
        self.assert_equal(one, two)
        self.assertNotIn(b"Kaffee", self.shared())
        lines = self.own_file(one).read_bytes().splitlines()
        self.assertTrue(all(is_ciphertext(line[9:]) for line in lines[1:]))
        plain = self.memory("plain")
        done = sync(plain, self.share)
        self.assertEqual((done.received, self.texts(plain)), (0, []))
        self.assertTrue(any("HERMES_SYNC_KEY" in why for _, why in done.faults))
        plain.remember(words(1))
        sync(plain)
        self.assertEqual(len(self.texts(one)), 1)
        short = self.memory("short", environ={"HERMES_SYNC_KEY": "short"})
        self.assertRaises(ConfigError, sync, short, self.share)

    def test_a_key_set_later_seals_what_was_readable(self):
        if cryptography is None:
            self.skipTest("needs the package cryptography")
        one = self.memory("one")
        one.remember("Kaffee mit Anna")
        sync(one, self.share)
        self.assertIn(b"Kaffee", self.shared())
        one.close()
        key = {"HERMES_SYNC_KEY": "a long pass phrase of words"}
        sync(self.memory("one", environ=key))
        self.assertNotIn(b"Kaffee", self.shared())
        with self.assertRaises(Refused):           # as from cron, which knows no key
            sync(self.memory("one"))
        self.assertNotIn(b"Kaffee", self.shared())

    def test_a_wrong_key_loses_nothing(self):
        if cryptography is None:
            self.skipTest("needs the package cryptography")
        key, wrong = ({"HERMES_SYNC_KEY": text} for text in ("one long pass phrase of words",
                                                             "one long pass phrase of wards"))
        one, two = self.memory("one", environ=key), self.memory("two", environ=wrong)
        for device, text in ((one, words(1)), (two, words(2))):
            device.remember(text)
            sync(device, self.share)
        self.assertGreater(sync(one).waiting, 0)
        two.close()
        two = self.memory("two", environ=key)
        self.meet(two, one)
        self.assertEqual(len(self.texts(one)), 2)
        self.assert_equal(one, two)

    def test_an_encrypted_store_is_not_written_readable_without_being_told(self):
        if cryptography is None:
            self.skipTest("needs the package cryptography")
        memory = self.memory("one", environ={"HERMES_ENCRYPT": "on"})
        memory.remember("Kaffee mit Anna")
        with self.assertRaises(Refused) as caught:
            sync(memory, self.share)
        self.assertEqual(caught.exception.reason_code, "needs_key")
        self.assertEqual(list(self.share.iterdir()), [])
        sync(memory, self.share, plain=True)
        self.assertIn(b"Kaffee", self.shared())
        memory.remember(words(1))
        self.assertEqual(sync(memory).sent, 1)     # --plain is remembered
        self.assertTrue(is_ciphertext((memory.root / ".state_sync.json").read_bytes()))


class TestRuns(SyncCase):

    def cli(self, name: str, *words: str, code: int = 0) -> str:
        done = run_command(self.folder / name, *words, environ={"PATH": os.environ["PATH"]})
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout + done.stderr

    def test_the_command_remembers_its_folder_and_says_what_it_did(self):
        self.assertIn("give FOLDER", self.cli("one", "sync", code=2))
        self.assertIn("nothing was synced", self.cli("one", "sync", "--status", code=10))
        self.cli("one", "remember", "周会是每周三下午三点")
        share = str(self.share)
        self.assertIn("1 to send", self.cli("one", "sync", share, "--dry-run"))
        self.assertEqual(list(self.share.iterdir()), [])
        self.assertIn("1 sent", self.cli("one", "sync", share))
        self.assertIn("1 received", self.cli("two", "sync", share))
        self.assertIn("周会", self.cli("two", "recall", "周会"))
        self.assertIn("1 sent", self.cli("two", "sync"))           # the access of the recall
        done = json.loads(self.cli("two", "sync", "--json"))
        self.assertEqual([done[name] for name in ("sent", "received", "merged", "kept_both",
                                                  "refused", "forgotten")], [0] * 6)
        shown = json.loads(self.cli("two", "sync", "--status", "--json"))
        self.assertEqual((shown["folder"], len(shown["devices"])), (share, 1))
        for odd in (["--status", "--dry-run"], ["--status", share], [""], ["  "],
                    ["--retire", "a" * 12, share]):
            self.cli("one", "sync", *odd, code=2)
        before = self.shared()
        self.cli("one", "sync", "--retire", "a" * 12, code=10)
        self.assertEqual(self.shared(), before)
        self.cli("one", "sync", str(self.folder / "one" / "inside"), code=11)
        self.cli("one", "sync", str(self.folder / "no" / "such"), code=10)
        (self.folder / "file").write_text("x")
        self.cli("one", "sync", str(self.folder / "file"), code=2)
        shutil.rmtree(self.share)
        self.assertIn("mounted", self.cli("one", "sync", code=10))

    def test_a_dry_run_changes_nothing_and_says_the_same(self):
        one, two, memory_id = self.pair()
        self.edit(one, memory_id, words(1))
        self.edit(two, memory_id, words(2))
        sync(one)
        before = self.shared(), self.rows(two), (two.root / ".state_sync.json").read_bytes()
        planned = sync(two, dry_run=True)
        self.assertEqual(before, (self.shared(), self.rows(two),
                                  (two.root / ".state_sync.json").read_bytes()))
        done = sync(two)
        for name in ("sent", "received", "merged", "kept_both", "forgotten"):
            self.assertEqual(planned[name], done[name], name)

    def test_two_runs_at_once_exclude_each_other(self):
        one = self.memory("one")
        with one.exclusive("sync"):
            self.assertRaises(Locked, sync, one, self.share)

    def test_files_are_private(self):
        one, _, _ = self.pair()
        for path in (self.own_file(one), one.root / ".state_sync.json"):
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)

    def test_an_edit_by_hand_is_sent_too(self):
        one, two, memory_id = self.pair()
        path = one.root / "store" / f"{memory_id}.md"
        path.write_text(path.read_text().replace("port 5433", "the blue machine"))
        self.meet(one, two)
        self.assertIn("blue machine", two.get(memory_id).content)

    def test_a_lost_state_file_loses_and_doubles_nothing(self):
        one, two, memory_id = self.pair()
        gone = one.remember(words(1)).id
        self.meet(one, two)
        two.forget(gone)
        self.meet(two, one)
        for damage in (b"{", b""):
            (one.root / ".state_sync.json").write_bytes(damage)
            one.verify(memory_id)
            self.meet(one, two) if damage else sync(one, self.share)
            self.meet(one, two)
            self.assertEqual(list(self.rows(two)), [memory_id])
            self.assert_equal(one, two)

    def test_a_run_that_is_killed_anywhere_is_done_by_the_next(self):
        one = self.memory("one")
        with one.batch():
            for number in range(160):
                one.remember(words(number))
        sync(one, self.share)
        code = ("import sys; sys.path.insert(0, sys.argv[1]); from hermes_lite import HermesLite;"
                "from hermes_ext.sync.sync import sync; m = HermesLite(sys.argv[2]);"
                "print('go', flush=True); sync(m, sys.argv[3])")
        rng = random.Random(5)
        for _ in range(6):
            child = subprocess.Popen([sys.executable, "-c", code, str(HOUSE),
                                      str(self.folder / "two"), str(self.share)],
                                     stdout=subprocess.PIPE)
            child.stdout.readline()
            time.sleep(rng.random() * 0.25)
            child.kill()
            child.wait()
            child.stdout.close()
        two = self.memory("two")
        two.remember("only here")
        self.meet(two, one)
        self.assertEqual(self.texts(one), sorted([*map(words, range(160)), "only here"]))
        self.assert_equal(one, two)
        self.assertIsNone(sync(two).renewed)

    def test_a_kill_just_before_or_after_the_file_is_written_loses_nothing(self):
        one, two, memory_id = self.pair()
        steps = [(name, late) for name in ("append_bytes", "write_atomic")
                 for late in (False, True)]
        for number, (name, late) in enumerate(steps, 1):
            kept = getattr(outbox, name)
            one.remember(words(number))
            if name == "write_atomic":
                one.forget(next(iter(self.rows(one))))

            def killed(*arguments) -> None:
                if late:
                    kept(*arguments)
                raise KeyboardInterrupt
            with mock.patch.object(outbox, name, killed):
                self.assertRaises(KeyboardInterrupt, sync, one)
            self.assertIsNone(sync(one).renewed)
            self.meet(two, one)
            self.assert_equal(one, two)
        self.assertEqual(len(self.texts(two)), 3)

    def test_a_run_with_nothing_to_do_costs_less_than_reading_the_records(self):
        one = self.memory("one")
        with one.store.transaction():
            for number in range(1500):
                one.store.put(Memory(f"mem_20260801_000000_{number:04x}", words(number),
                                     created_at="2026-08-01T00:00:00+00:00"))
        sync(one, self.share)
        one.close()
        one = self.memory("one")
        sync(one), sync(one)
        data = (one.root / "index.json").read_bytes()
        self.assertLessEqual(ratio_of_pairs(lambda: sync(one), lambda: json.loads(data), most=20), 20)


def items(seed: int, count: int = 12) -> list[Item]:
    """Return states of one memory that three devices could have written, seeing each other."""
    rng, made = random.Random(seed), [Item()]
    devices, n = ["a" * 12, "b" * 12, "c" * 12], {}
    for _ in range(count):
        base = merge(rng.choice(made), rng.choice(made))
        device = rng.choice(devices)
        n[device] = n.get(device, 0) + 1
        seen = joined(*(v.clock for v in base.versions), base.forgotten, *base.replaced,
                      *base.voided,
                      {device: n[device]})
        kind = rng.random()
        if kind < 0.5 or not base.versions:
            text = words(rng.randrange(9))
            item = Item((Version(seen, text_hash(text), text),))
        elif kind < 0.7:
            item = Item(forgotten={device: n[device]})
        elif kind < 0.8:
            clocks = tuple(v.clock for v in base.versions)
            item = Item(**{rng.choice(["replaced", "voided"]): clocks})
        else:
            name = rng.choice(["importance", "tags", "source", "meta.x"])
            value = {"importance": rng.randrange(10), "tags": [rng.choice("xyz")],
                     "source": rng.choice(["one", "two", None]), "meta.x": {"n": n[device]}}[name]
            item = Item(facts={name: (base.facts.get(name, (0, 0))[0] + 1, value)},
                        count=(rng.randrange(5), ""))
        made.append(merge(base, item))
    return made[1:]


class TestMerge(unittest.TestCase):

    def test_the_merge_knows_no_order_and_no_repetition(self):
        for seed in range(60):
            states = items(seed)
            whole = Item()
            for state in states:
                whole = merge(whole, state)
            rng = random.Random(seed)
            for _ in range(4):
                rng.shuffle(states)
                mixed = Item()
                for state in [*states, *states[:5]]:
                    mixed = merge(mixed, state) if rng.random() < 0.5 else merge(state, mixed)
                self.assertEqual(mixed, whole, seed)

    def test_a_line_reads_back_as_what_it_was(self):
        for seed in range(20):
            for state in items(seed):
                best = replace(state, versions=state.versions[:1])
                line = json.loads(to_json(to_line("mem_a", best, 7)))
                self.assertEqual(from_line(line), ("mem_a", best))

    def test_what_once_came_second_never_becomes_first(self):
        for seed in range(60):
            state, beaten = Item(), set()
            for each in items(seed):
                state = merge(state, replace(each, replaced=(), voided=()))
                keys = [(tuple(sorted(v.clock.items())), v.text_hash) for v in state.versions]
                self.assertFalse(keys and keys[0] in beaten)
                beaten.update(keys[1:])


class Fleet:
    """Devices with folders of their own, between which a bad service carries files."""

    def __init__(self, case: SyncCase, count: int, draw) -> None:
        self.case, self.draw, self.count, self.number = case, draw, count, 0
        base = Path(tempfile.mkdtemp(dir=case.folder))
        self.folders = [base / f"share{number}" for number in range(count)]
        self.devices = [HermesLite(base / f"device{number}", config=Config({}, environ={}),
                                   clock=lambda: datetime(2026, 8, 1, tzinfo=timezone.utc))
                        for number in range(count)]
        for folder in self.folders:
            folder.mkdir()
        self.ids: dict[str, set[str]] = {}         # acknowledged text -> ids that held it
        self.forgotten: set[str] = set()
        self.dead: set[str] = set()                # ids that were forgotten somewhere
        self.replaced: set[str] = set()
        self.seen: dict[str, list[bytes]] = {}     # what a file once was

    def act(self) -> None:
        device = self.draw(st.integers(0, self.count - 1))
        memory = self.devices[device]
        kind = self.draw(st.sampled_from(
            "remember remember same edit edit edit forget verify sync sync sync carry carry carry "
            "carry".split()))
        rows = sorted(memory.store, key=lambda row: row.id)
        if kind == "sync":
            self.sync(device)
        elif kind == "carry":
            self.carry(device, self.draw(st.integers(0, self.count - 1)))
        elif kind in ("remember", "same") or not rows:
            self.remember(memory, kind == "same")
        else:
            self.change(memory, kind, rows[self.draw(st.integers(0, len(rows) - 1))])

    def remember(self, memory: HermesLite, same: bool) -> None:
        self.number += 1
        text = words(1_000_000 + self.number % 2 if same else self.number)
        if text not in self.forgotten:
            self.ids.setdefault(text, set()).add(memory.remember(text).id)

    def change(self, memory: HermesLite, kind: str, row: Memory) -> None:
        if kind == "verify":
            memory.verify(row.id)
        elif kind == "forget":
            memory.forget(row.id)
            self.forgotten.add(row.content)
            self.dead.add(row.id)
        else:
            self.number += 1
            memory.admit(replace(row, content=words(self.number)), replacing=True)
            self.ids.setdefault(words(self.number), set()).add(row.id)
            self.replaced.add(row.content)

    def sync(self, device: int) -> None:
        sync(self.devices[device], self.folders[device])
        for path in self.folders[device].iterdir():
            self.seen.setdefault(path.name, []).append(path.read_bytes())

    def own(self, device: int) -> str:
        try:
            return f"hermes-lite.{status(self.devices[device])['device']}.jsonl"
        except NotFound:
            return ""

    def carry(self, source: int, target: int) -> None:
        """Deliver one file, as it is or once was, whole, cut, or with a hole."""
        name = self.own(source)
        if not name or source == target:
            return
        data = self.draw(st.sampled_from(self.seen[name]))
        how = self.draw(st.sampled_from("whole whole whole cut hole".split()))
        at = self.draw(st.integers(0, len(data)))
        if how == "cut":
            data = data[:at]
        elif how == "hole":
            data = data[:at] + b"\0" * min(30, len(data) - at) + data[at + 30:]
        (self.folders[target] / name).write_bytes(data)

    def heal(self) -> None:
        """Let the service deliver everything, until nobody has anything to say."""
        for _ in range(12):
            done = []
            for device in range(self.count):
                self.sync(device)
                own = self.folders[device] / self.own(device)
                for folder in self.folders:
                    if folder != self.folders[device]:
                        shutil.copy(own, folder / own.name)
            for device in range(self.count):
                done.append(sync(self.devices[device], self.folders[device]))
            if not any(each.sent or each.received or each.merged or each.forgotten
                       for each in done):
                return
        raise AssertionError("it never comes to rest")

    def check(self) -> None:
        rows = [{row.id: row for row in memory.store} for memory in self.devices]
        for other in rows[1:]:
            self.case.assertEqual(other, rows[0])
        texts = {row.content for row in rows[0].values()}
        self.case.assertEqual(texts & self.forgotten, set())
        self.case.assertEqual(len(texts), len(rows[0]))
        for text, ids in self.ids.items():
            if text not in self.replaced | self.forgotten and not ids & self.dead:
                self.case.assertIn(text, texts)
        for device, folder in enumerate(self.folders):
            data = (folder / self.own(device)).read_bytes()
            for text in self.forgotten:
                self.case.assertNotIn(text.encode(), data)
        for memory in self.devices:
            memory.close()


@unittest.skipIf(hypothesis is None, "needs the package hypothesis")
class TestProperty(SyncCase):

    def test_whatever_is_delivered_in_whatever_order_all_end_equal(self):
        examples, steps = (int(os.environ.get(f"SYNC_{name}", default)) for name, default in (
            ("EXAMPLES", 25), ("STEPS", 30)))

        @hypothesis.settings(max_examples=examples, deadline=None, database=None,
                             derandomize="SYNC_EXAMPLES" not in os.environ,
                             phases=[hypothesis.Phase.generate],
                             suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(st.data())
        def run(data) -> None:
            rng = random.Random(data.draw(st.integers(0, 1 << 30)))
            real = os.urandom                      # ids and devices are drawn, names of
            with mock.patch("os.urandom", lambda size: (           # temporary files are not
                    real if size == 4 else rng.randbytes)(size)):
                fleet = Fleet(self, data.draw(st.integers(3, 5)), data.draw)
                for _ in range(steps):
                    fleet.act()
                fleet.heal()
                fleet.check()
        run()


if __name__ == "__main__":
    unittest.main()

"""Cold storage: what moves out comes back whole, and what is forgotten stays away."""
from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest import mock

HOME = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HOME)]

import hermes_lite as core                                                        # noqa: E402
from hermes_lite import (HermesLite, Memory, MissingPackage, NotFound, Refused,   # noqa: E402
                         RemoteError, UsageError)
from hermes_ext import prompt                                                     # noqa: E402
from hermes_ext.archive import cold                                               # noqa: E402

from hermes_ext.maintenance import (backups, doctor, encryption, forget,  # noqa: E402
                                    repair, restore, scrub)
from hermes_ext.cold_files import unpack                                          # noqa: E402
from hermes_ext.tests.base import HAS_CRYPTO, is_killed, setUpModule, word        # noqa: E402,F401

NOW = datetime(2026, 8, 17, 3, 31, 6, tzinfo=timezone.utc)


def cold_texts(memory: HermesLite) -> list[str]:
    """Return the texts of every cold file that lies in the root, in the index or not."""
    return [each.content for path in sorted((memory.root / "cold").glob("*"))
            for each in unpack(core.unseal(path.read_bytes(), memory.store.files.cipher))]


def cold_check(memory: HermesLite) -> tuple[str, str, str | None]:
    environ = {"HERMES_ENCRYPT": "on" if memory.store.files.cipher else "off"}
    with mock.patch.dict(os.environ, environ):
        check = next(check for check in doctor.doctor(memory) if check.name == "cold")
    return check.state, check.message, check.command


class Case(unittest.TestCase):

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cold"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.now = NOW

    def memory(self, backend: str = "files", **more: object) -> HermesLite:
        config = core.Config({"storage": {"backend": backend}, **more},
                             environ={"HERMES_VECTOR_BACKEND": "local"})
        memory = HermesLite(self.folder / backend, config=config, clock=lambda: self.now)
        self.addCleanup(memory.close)
        return memory

    def fill(self, memory: HermesLite) -> list[Memory]:
        """Store memories with every field; return them as stored."""
        rows = [Memory("mem_20260101_000000_aaaa", "客户张三的合同编号是CT2024-0876", importance=2,
                       access_count=2, last_accessed="2026-02-01T00:00:00+00:00", source="chat",
                       created_at="2026-01-01T00:00:00+00:00", tags=("contract",), agent="bot",
                       meta={"odd": {"deep": [1]}}, extra={"unknown": [1, 2]}),
                Memory("mem_20260102_000000_aaaa", "lunch was delivered late", importance=1,
                       created_at="2026-01-02T00:00:00+00:00"),
                Memory("mem_20260103_000000_aaaa", "the gateway is checked on Mondays",
                       importance=8, created_at="2026-01-03T00:00:00+00:00"),
                Memory("mem_20260104_000000_aaaa", "a pinned trifle", importance=1,
                       created_at="2026-01-04T00:00:00+00:00", meta={"pinned": True}),
                Memory("mem_20260816_000000_aaaa", "a fresh trifle", importance=1,
                       created_at="2026-08-16T00:00:00+00:00")]
        with memory.store.transaction():
            for row in rows:
                memory.store.put(row)
        return rows


class TestCold(Case):

    def each(self) -> list[HermesLite]:
        return [self.memory(backend) for backend in ("files", "archive")]

    def test_what_a_content_filter_blocks_stays_cold(self) -> None:
        memory = self.memory()
        self.fill(memory)
        cold.freeze(memory)
        memory.close()
        memory = self.memory(security={"content_filters": [{"regex": "lunch", "action": "block"}]})
        done = cold.thaw(memory)
        self.assertEqual(done.ids, ("mem_20260101_000000_aaaa",))
        self.assertIn("blocked by a content filter", done.left[0])

    def test_once_a_day_what_has_faded_moves_by_itself(self) -> None:
        switched_on = {"salience": {}, "cold": {"daily": True}}
        for backend in ("files", "archive"):
            self.now = NOW
            memory = self.memory(backend, systems=switched_on)
            low = memory.remember("lunch was delivered").id
            recalled = memory.remember("the cat sleeps on the sofa").id
            pinned = memory.remember("the garden is green").id
            with memory.store.transaction():
                memory.store.put(replace(memory.get(pinned), meta={"pinned": True}))
            memory.remember("remember this: port 8080 is the gateway")
            self.now += timedelta(days=2)
            memory.recall("the cat on the sofa", top_k=1)
            memory.remember("a new day, a new note")
            self.assertEqual(set(cold.system(memory).memories), {low}, backend)
            self.assertIn("1 memory with a score below 1 moved to cold storage",
                          " ".join(memory.take_notices()))
            memory.close()
            self.now += timedelta(hours=12)        # the same day
            memory = self.memory(backend, systems=switched_on)
            memory.remember("another note of the same day")
            self.assertEqual(set(cold.system(memory).memories), {low})
            self.now += timedelta(days=2)
            memory.remember("one more day")
            self.assertIn(recalled, cold.system(memory).memories)
            self.assertEqual(cold.thaw(memory, low).ids, (low,))
            memory.close()

    def test_the_daily_move_is_off_by_default_and_its_failure_is_a_warning(self) -> None:
        memory = self.memory(systems={"salience": {}, "cold": {}})
        memory.remember("lunch was delivered")
        self.now += timedelta(days=40)
        memory.remember("a new day, a new note")
        self.assertEqual(len(memory.list()), 2)
        memory.close()
        memory = self.memory(systems={"salience": {}, "cold": {"daily": True}})
        with mock.patch.object(cold, "freeze", side_effect=RemoteError("S3 refused")):
            done = memory.remember("the day after that")
        self.assertIn("S3 refused", " ".join(done.warnings))
        for wrong in ({"daily": 1}, {"below": "x"}, {"older_than": -1}):
            with self.assertRaises(core.ConfigError):
                self.memory(systems={"cold": wrong})

    def test_a_move_takes_what_is_low_and_old_and_every_field_comes_back(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            plan = cold.freeze(memory, dry_run=True)
            self.assertEqual(plan.ids, (rows[0].id, rows[1].id))
            self.assertEqual(len(memory.store), 5)
            done = cold.freeze(memory)
            self.assertEqual((done.ids, len(memory.store)), (plan.ids, 3))
            again = cold.freeze(memory)
            self.assertEqual((again.ids, again.warnings), ((), (
                "no memory has a score below 3 and is older than 30 days, the critical and the "
                "pinned aside",)))
            back = cold.thaw(memory)
            self.assertEqual(back.ids, plan.ids)
            self.assertEqual([memory.get(row.id) for row in rows], rows)
            self.assertEqual([*(memory.root / "cold").iterdir()], [])

    def test_recall_says_when_cold_storage_holds_a_match_in_any_process(self) -> None:
        for memory in self.each():
            self.fill(memory)
            cold.freeze(memory)
            self.assertIn("cold storage holds 1", " ".join(memory.recall("张三的合同编号").degraded))
            memory.close()
            again = self.memory(memory.config["storage"]["backend"])
            hits = again.recall("合同编号")
            self.assertIn("archive --thaw", " ".join(hits.degraded))
            self.assertNotIn("cold", " ".join(again.recall("gateway Mondays").degraded))
            self.assertEqual(cold.thaw(again, "合同").ids, ("mem_20260101_000000_aaaa",))
            self.assertEqual([hit.id for hit in again.recall("合同编号")][:1],
                             ["mem_20260101_000000_aaaa"])
            with self.assertRaises(NotFound):
                cold.thaw(again, "合同")

    def test_one_id_comes_back_and_the_rest_stays(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            cold.freeze(memory)
            cold.thaw(memory, rows[1].id)
            self.assertEqual(memory.get(rows[1].id), rows[1])
            with self.assertRaises(NotFound):
                memory.get(rows[0].id)
            self.assertEqual(cold.thaw(memory).ids, (rows[0].id,))

    def test_what_is_forgotten_goes_from_the_cold_file_and_stays_away(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            cold.freeze(memory)
            cold.forget(memory, rows[1].id)
            with self.assertRaises(NotFound):
                cold.forget(memory, rows[1].id)
            for path in (memory.root / "cold").iterdir():
                self.assertNotIn(b"lunch", gzip.decompress(path.read_bytes()))
            with self.assertRaises(Refused):
                memory.remember("lunch was delivered late", deliberate=False)
            self.assertEqual(cold.thaw(memory).ids, (rows[0].id,))

    def test_a_text_forgotten_meanwhile_does_not_come_back(self) -> None:
        for memory in self.each():
            self.fill(memory)
            cold.freeze(memory)
            again = memory.remember("lunch was delivered late", agent="bot")
            memory.forget(again.id)
            done = cold.thaw(memory)
            self.assertEqual(done.ids, ("mem_20260101_000000_aaaa",))
            self.assertIn("forgotten", done.warnings[0])

    def test_a_text_forgotten_by_its_agent_leaves_the_cold_file_too(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            cold.freeze(memory)
            again = memory.remember("Lunch was delivered late.")
            done = memory.forget(again.id)
            self.assertEqual((done.backups, done.warnings), ((), ()))
            self.assertEqual([*cold.Cold(memory).memories], [rows[0].id])
            self.assertEqual(cold_texts(memory), [rows[0].content])

    def test_what_one_agent_forgot_before_the_move_leaves_the_others_as_it_is(self) -> None:
        for memory in self.each():
            text = "the staging port is 5433"
            kept, gone = (memory.remember(text, agent=name).id for name in ("anna", "bot"))
            memory.forget(gone)
            self.now = NOW + timedelta(days=40)
            self.assertEqual(cold.freeze(memory, below=9).ids, (kept,))
            self.assertEqual(cold.thaw(memory).ids, (kept,))
            self.assertEqual([(m.id, m.agent) for m in memory.list()], [(kept, "anna")])
            self.now = NOW

    def test_the_same_words_in_the_store_are_not_doubled(self) -> None:
        for memory in self.each():
            self.fill(memory)
            cold.freeze(memory)
            memory.remember("lunch was delivered late")
            cold.thaw(memory)
            texts = [each.content for each in memory.store]
            self.assertEqual(texts.count("lunch was delivered late"), 1)

    def test_a_damaged_file_is_named_and_stays_as_it_is(self) -> None:
        memory = self.memory()
        self.fill(memory)
        cold.freeze(memory)
        path, = (memory.root / "cold").iterdir()
        path.write_bytes(path.read_bytes()[:-9] + b"damaged!!")
        before = path.read_bytes()
        done = cold.thaw(memory)
        self.assertEqual(done.ids, ())
        self.assertIn("damaged", done.left[0])
        self.assertEqual(path.read_bytes(), before)
        self.assertEqual(len(cold.Cold(memory).memories), 2)

    def test_a_kill_between_file_and_store_loses_nothing(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            with mock.patch.object(type(memory.store), "remove", side_effect=KeyboardInterrupt), \
                    self.assertRaises(KeyboardInterrupt):
                cold.freeze(memory)
            self.assertEqual(len(memory.store), 5)
            self.assertEqual(cold.thaw(memory).ids, (rows[0].id, rows[1].id))
            self.assertEqual([memory.get(row.id) for row in rows], rows)

    def test_an_encrypted_store_has_sealed_cold_files(self) -> None:
        if importlib.util.find_spec("cryptography") is None:
            self.skipTest("cryptography")
        config = core.Config({}, environ={"HERMES_ENCRYPT": "on",
                                          "HERMES_VECTOR_BACKEND": "local"})
        memory = HermesLite(self.folder / "e", config=config, clock=lambda: self.now)
        self.addCleanup(memory.close)
        rows = self.fill(memory)
        cold.freeze(memory)
        for path in (*(memory.root / "cold").iterdir(), memory.root / cold.INDEX):
            self.assertTrue(core.is_ciphertext(path.read_bytes()))
        cold.thaw(memory)
        self.assertEqual(memory.get(rows[0].id), rows[0])

    def test_a_word_that_nothing_would_use_is_refused(self) -> None:
        memory, operation = self.memory(), cold.OPERATIONS[0]
        for is_cold in (False, True):
            with self.assertRaisesRegex(UsageError, "needs --thaw"):
                operation.handler(memory, what="gateway", cold=is_cold, thaw=False, forget=False,
                                  below=None, older_than=None, place=None, dry_run=False)

    def test_a_blank_word_selects_nothing(self) -> None:
        memory = self.memory()
        for blank in ("", " "):
            for act in (cold.thaw, cold.forget):
                self.assertRaises(UsageError, act, memory, blank)
            self.assertRaises(UsageError, cold.freeze, memory, place=blank)

    def test_the_command_says_what_is_wrong(self) -> None:
        memory = self.memory()
        run = cold.OPERATIONS[0].handler
        words = {p.name: p.default for p in cold.OPERATIONS[0].params}
        for more in ({"cold": True, "thaw": True}, {"forget": True},
                     {"cold": True, "below": "low"}, {"cold": True, "older_than": "-1"}):
            with self.assertRaises(UsageError):
                run(memory, **{**words, **more})
        self.assertEqual(run(memory, **words)["memories"], 0)


    def encrypted(self, name: str = "e") -> HermesLite:
        """Open a store of files whose .env says whether it is encrypted; at first it is."""
        root = self.folder / name
        environ = {"HERMES_VECTOR_BACKEND": "local"}
        if not root.exists():
            environ["HERMES_ENCRYPT"] = "on"
        config = core.load_config(root, environ=environ)
        memory = HermesLite(root, config=config, clock=lambda: self.now)
        self.addCleanup(memory.close)
        return memory

    @unittest.skipUnless(HAS_CRYPTO, "cryptography")
    def test_cold_memories_stay_whole_through_encrypt_on_rotate_and_off(self) -> None:
        for place in ("cold", str(self.folder / "elsewhere")):
            self.now = NOW
            memory = self.encrypted(word())
            rows = self.fill(memory)
            encryption.encrypt(memory, "off")
            cold.freeze(memory, place=place)
            files = [*(memory.root / place).iterdir()]
            for mode, is_sealed in (("on", True), ("rotate", True), ("rotate", True),
                                    ("off", False)):
                self.assertEqual(encryption.encrypt(memory, mode).left, ())
                self.assertEqual([core.is_ciphertext(path.read_bytes()) for path in files],
                                 [is_sealed])
                self.assertEqual(cold_check(memory)[0], "ok", (mode, place))
                self.assertEqual([m.id for m in memory.recall("合同编号")], [])
                memory.close()
                memory = HermesLite(memory.root, clock=lambda: self.now,
                                    config=core.load_config(memory.root, environ={}))
                index = (memory.root / cold.INDEX).read_bytes()
                self.assertEqual(core.is_ciphertext(index), is_sealed)
            self.assertEqual(cold.thaw(memory).left, ())
            self.assertEqual([memory.get(row.id) for row in rows], rows)
            memory.close()

    @unittest.skipUnless(HAS_CRYPTO, "cryptography")
    def test_encryption_is_not_switched_off_while_a_cold_file_is_out_of_reach(self) -> None:
        memory = self.encrypted()
        self.fill(memory)
        place = self.folder / "elsewhere"
        cold.freeze(memory, place=str(place))
        place.rename(self.folder / "unplugged")
        with self.assertRaisesRegex(Refused, "out of reach|cannot be reached"):
            encryption.encrypt(memory, "off")
        (self.folder / "unplugged").rename(place)
        self.assertEqual(len(cold.thaw(memory).ids), 2)

    @unittest.skipUnless(HAS_CRYPTO, "cryptography")
    def test_a_checksum_of_the_first_version_is_taken_over(self) -> None:
        memory = self.encrypted()
        rows = self.fill(memory)
        cold.freeze(memory)
        files = cold.ColdFiles(memory.store)
        (name, known), = files.files.items()
        known["sha256"] = hashlib.sha256((memory.root / "cold" / name).read_bytes()).hexdigest()
        files.write()
        encryption.encrypt(memory, "rotate")
        self.assertEqual(cold.thaw(memory).left, ())
        self.assertEqual(memory.get(rows[0].id), rows[0])

    def test_a_backup_brings_cold_memories_back_readable_and_sealed(self) -> None:
        environs = [{}, {"HERMES_ENCRYPT": "on"}] if HAS_CRYPTO else [{}]
        for environ in environs:
            for other in environs:
                source, target = (HermesLite(
                    self.folder / word(), clock=lambda: self.now, config=core.Config(
                        {}, environ={"HERMES_VECTOR_BACKEND": "local", **each}))
                    for each in (environ, other))
                rows = self.fill(source)
                cold.freeze(source)
                copy = backups.backup(source, self.folder / f"{word()}.tar.gz")
                for name in (".master_key", ".key_check") if environ else ():
                    target.close()
                    core.make_folder(target.root)
                    shutil.copy(source.root / name, target.root / (
                        name if other else f"{name}.old"))
                if environ and not other:
                    (target.root / ".key_check.old").unlink()
                target = HermesLite(target.root, config=target.config, clock=lambda: self.now)
                plan = restore.restore(target, copy.file, dry_run=True)
                done = restore.restore(target, copy.file)
                self.assertEqual((plan.added, plan.cold, done.added, done.cold), (3, 2, 3, 2))
                self.assertEqual((target.get(rows[2].id), len(target.store)), (rows[2], 3))
                path, = (target.root / "cold").iterdir()
                self.assertEqual(core.is_ciphertext(path.read_bytes()), bool(other))
                self.assertEqual(cold_check(target)[0], "ok")
                again = restore.restore(target, copy.file)
                self.assertEqual((again.added, again.changed, again.cold, again.before),
                                 (0, 0, 0, None))
                self.assertEqual(cold.thaw(target).ids, (rows[0].id, rows[1].id))
                self.assertEqual([target.get(row.id) for row in rows], rows)
                source.close()
                target.close()

    def test_a_restore_moves_what_was_cold_then_back_to_cold_and_loses_nothing(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            cold.freeze(memory)
            copy = backups.backup(memory, self.folder / f"{word()}.tar.gz")
            cold.thaw(memory, rows[0].id)
            done = restore.restore(memory, copy.file)
            self.assertEqual((done.removed, done.cold, len(memory.store)), (1, 1, 3))
            self.assertEqual(sorted(cold.thaw(memory).ids), sorted([rows[0].id, rows[1].id]))
            self.assertEqual([memory.get(row.id) for row in rows], rows)

    def test_what_was_forgotten_comes_back_from_no_backup_into_cold_storage(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            cold.freeze(memory)
            copy = backups.backup(memory, self.folder / f"{word()}.tar.gz")
            cold.forget(memory, rows[1].id)
            cold.thaw(memory)
            memory.forget(rows[0].id)
            done = restore.restore(memory, copy.file)
            self.assertEqual((done.cold, done.forgotten, done.files), (0, 2, ()))
            self.assertEqual(cold_texts(memory), [])
            self.assertEqual(cold_check(memory)[0], "ok")
            done = restore.restore(memory, copy.file, with_forgotten=True)
            self.assertEqual(done.cold, 2)
            self.assertEqual(cold.thaw(memory).ids, (rows[0].id, rows[1].id))

    def test_purge_takes_a_text_out_of_the_cold_files_of_a_backup_and_names_it_before(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            cold.freeze(memory)
            copy = backups.backup(memory)
            name = str(Path(copy.file).relative_to(memory.root))
            cold.forget(memory, rows[1].id)
            self.assertIn(name, memory.store.files.copies_of(rows[1].id))
            done = forget.forget(memory, id=rows[1].id, purge=True)
            self.assertEqual((done.left, done.backups), ((), ()))
            self.assertIn(name, done.purged)
            pieces = [core.unzipped(data) for path in memory.root.rglob("*") if path.is_file()
                      and path.name != "memory_archive.db-wal"
                      for _, data in core.read_files(path)]
            self.assertFalse([piece for piece in pieces if b"delivered late" in piece])
            self.assertEqual(backups.verify(memory, copy.file).problems, ())
            done = restore.restore(memory, copy.file, with_forgotten=True)
            self.assertEqual(cold_texts(memory), [rows[0].content])
            self.assertEqual(cold.thaw(memory).ids, (rows[0].id,))

    def test_a_forget_with_purge_names_what_lies_in_cold_storage(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            cold.freeze(memory)
            with self.assertRaisesRegex(NotFound, "archive --forget"):
                forget.forget(memory, id=rows[1].id, purge=True)
            self.assertEqual(len(cold_texts(memory)), 2)

    def test_to_forget_a_cold_memory_names_the_backups_that_hold_it(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            cold.freeze(memory)
            copy = backups.backup(memory)
            done = cold.forget(memory, rows[1].id)
            name = f"backups/{Path(copy.file).name}"
            self.assertTrue([said for said in done.warnings if name in said and "--purge" in said])
            purged = forget.forget(memory, id=rows[1].id, purge=True)
            self.assertIn(name, purged.purged)
            self.assertEqual(memory.store.files.copies_of(rows[1].id), [])

    def test_scrub_hides_a_secret_in_cold_files_and_in_those_of_a_backup(self) -> None:
        for memory in self.each():
            secret = f"Tk{secrets.token_hex(8)}Qz"
            row = Memory("mem_20260101_000000_bbbb", f"password: {secret}", importance=1,
                         created_at="2026-01-01T00:00:00+00:00")
            with memory.store.transaction():
                memory.store.put(row)
            with memory.store.transaction():
                memory.store.put(Memory("mem_20260102_000000_bbbb", "the ferry leaves at nine",
                                        importance=1, created_at="2026-01-01T00:00:00+00:00"))
            cold.freeze(memory)
            copy = backups.backup(memory)
            plan = scrub.scrub(memory, dry_run=True)
            self.assertIn(row.id, [name for name, _ in plan.changed])
            self.assertIn(secret, cold_texts(memory)[0])
            scrub.scrub(memory)
            self.assertEqual([secret in text for text in cold_texts(memory)], [False, False])
            inside = [core.unzipped(data) for _, data in core.read_files(Path(copy.file))]
            self.assertFalse([piece for piece in inside if secret.encode() in piece])
            self.assertEqual(cold_check(memory)[0], "ok")
            self.assertEqual(len(cold.thaw(memory).ids), 2)

    def test_doctor_checks_every_cold_file_and_repair_mends_what_is_whole(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            cold.freeze(memory)
            self.assertEqual(cold_check(memory)[0], "ok")
            path, = (memory.root / "cold").iterdir()
            whole = path.read_bytes()

            path.write_bytes(gzip.compress(gzip.decompress(whole), mtime=7))       # parted
            self.assertEqual(cold_check(memory)[::2], ("fail", "repair"))
            self.assertEqual(len(cold.thaw(memory).left), 1)
            self.assertTrue(repair.repair(memory, dry_run=True).did)
            repair.repair(memory)
            self.assertEqual(cold_check(memory)[0], "ok")

            path, = (memory.root / "cold").iterdir()
            (memory.root / cold.INDEX).write_bytes(b"{")                           # no index
            self.assertEqual(cold_check(memory)[0], "fail")
            self.assertEqual((memory.root / cold.INDEX).read_bytes(), b"{")
            repair.repair(memory)
            self.assertEqual((cold_check(memory)[0], len(cold.Cold(memory).memories)), ("ok", 2))

            path, = (memory.root / "cold").iterdir()
            path.write_bytes(whole[:-9])                                           # damaged
            state, said, command = cold_check(memory)
            self.assertEqual((state, command), ("fail", None))
            self.assertIn("2 memories cannot be read", said)
            path.unlink()
            self.assertIn("cannot be reached", cold_check(memory)[1])
            path.write_bytes(whole)
            repair.repair(memory)
            self.assertEqual(cold.thaw(memory).ids, (rows[0].id, rows[1].id))

    def test_files_of_another_root_are_taken_over_only_when_asked_and_once(self) -> None:
        place = self.folder / "cellar"
        first = self.memory()
        rows = self.fill(first)
        cold.freeze(first, place=str(place))
        copy = backups.backup(first, self.folder / "b.tar.gz")
        for backend in ("archive", "files"):
            memory = HermesLite(self.folder / word(), config=core.Config(
                {"storage": {"backend": backend}}, environ={"HERMES_VECTOR_BACKEND": "local"}))
            self.addCleanup(memory.close)
            done = restore.restore(memory, copy.file)
            self.assertEqual(done.elsewhere, (str(place),))
            self.assertIn("archive --adopt", "\n".join(done.lines()))
            self.assertEqual([*cold.Cold(memory).memories], [])
            found = cold.adopt(memory, str(place))
            self.assertEqual(found.ids, (rows[0].id, rows[1].id))
            self.assertEqual(cold.adopt(memory, str(place)).ids, ())
            self.assertIn("cold storage holds 1", " ".join(memory.recall("张三的合同编号").degraded))


@unittest.skipUnless(hasattr(os, "fork"), "no fork here")
class TestKills(Case):
    maxDiff = 3000
    """kill -9 before every single change of a file loses nothing and needs no repair."""

    def open(self, root: Path, encrypt: bool) -> HermesLite:
        environ = {"HERMES_VECTOR_BACKEND": "local", "HERMES_ENCRYPT": "on" if encrypt else "off"}
        memory = HermesLite(root, clock=lambda: NOW, config=core.Config(
            {"storage": {"backend": self.backend}}, environ=environ))
        self.addCleanup(memory.close)
        return memory

    def everything(self, memory: HermesLite) -> dict[str, Memory]:
        """Return what is in the store and what cold storage gives back."""
        memory.store.refresh()
        files = cold.ColdFiles(memory.store)
        found, left = files.find(files.memories)
        self.assertEqual(left, ())
        return {each.id: each for each in (*found, *memory.store)}

    def try_all(self, ready: Path, act, *, encrypt: bool, gone: str = "") -> int:
        """Kill *act* at every point; what is there afterwards, and after it ran again, is right."""
        before = self.everything(self.open(ready, encrypt))
        kept = {each: row for each, row in before.items() if each != gone}
        for nth in range(1, 200):
            root = self.folder / f"run{nth}"
            shutil.copytree(ready, root)
            killed = is_killed(lambda: act(self.open(root, encrypt)), nth)
            memory = self.open(root, encrypt)
            found = self.everything(memory)
            self.assertEqual({each: before.get(each) for each in found}, found, nth)
            self.assertLessEqual(kept.keys(), found.keys(), nth)
            with contextlib.suppress(NotFound):
                act(memory)
            after = self.everything(memory)
            self.assertEqual(after, kept, nth)
            self.assertEqual(cold_check(memory)[0], "ok", nth)
            names = {path.name for path in (memory.root / "cold").iterdir()}
            self.assertEqual(names, cold.ColdFiles(memory.store).files.keys(), nth)
            if gone:
                self.assertNotIn(before[gone].content, cold_texts(memory))
            memory.close()
            shutil.rmtree(root)
            if not killed:
                return nth
        raise AssertionError("it does not end")

    def acts(self, backend: str, *, encrypt: bool = False) -> None:
        root, self.backend = self.folder / "ready", backend
        memory = self.open(root, encrypt)
        rows = self.fill(memory)
        cold.freeze(memory)
        with memory.store.transaction():
            memory.store.put(Memory("mem_20260105_000000_aaaa", "the old buoy was green",
                                    importance=1, created_at="2026-01-05T00:00:00+00:00"))
        memory.close()
        for act, gone in ((lambda m: cold.freeze(m), ""),
                          (lambda m: cold.thaw(m, rows[0].id), ""),
                          (lambda m: cold.thaw(m), ""),
                          (lambda m: cold.forget(m, rows[1].id), rows[1].id)):
            points = self.try_all(root, act, encrypt=encrypt, gone=gone)
            self.assertGreater(points, 6)

    def test_of_a_store_of_files(self) -> None:
        self.acts("files")

    def test_of_an_archive(self) -> None:
        self.acts("archive")

    @unittest.skipUnless(HAS_CRYPTO, "cryptography")
    def test_of_an_encrypted_store(self) -> None:
        self.acts("files", encrypt=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@unittest.skipUnless(importlib.util.find_spec("moto") and importlib.util.find_spec("boto3")
                     and importlib.util.find_spec("flask"), "moto[server] and boto3")
class TestS3(Case):
    """A real S3 server on this machine."""

    def setUp(self) -> None:
        super().setUp()
        port = free_port()
        code = ("import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', "
                "sys.argv[1]])")
        self.server = subprocess.Popen([sys.executable, "-c", code, str(port)],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.server.wait)
        self.addCleanup(self.server.kill)
        self.url = f"http://127.0.0.1:{port}"
        patch = mock.patch.dict(os.environ, {
            "AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1", "AWS_EC2_METADATA_DISABLED": "true"})
        patch.start()
        self.addCleanup(patch.stop)
        for _ in range(36_000):
            try:
                urllib.request.urlopen(self.url, timeout=60).close()
                break
            except OSError:
                time.sleep(0.05)
        import boto3
        self.s3 = boto3.client("s3")
        self.s3.create_bucket(Bucket="cellar")

    def names(self) -> list[str]:
        return [row["Key"] for row in self.s3.list_objects_v2(Bucket="cellar").get("Contents", ())]

    def test_a_bucket_takes_gives_back_and_forgets(self) -> None:
        memory = self.memory("archive")
        rows = self.fill(memory)
        done = cold.freeze(memory, place="s3://cellar/agent")
        self.assertEqual((len(done.ids), len(self.names())), (2, 1))
        self.assertTrue(self.names()[0].startswith("agent/cold_"))
        self.assertFalse((memory.root / "cold").exists())
        memory.close()
        memory = self.memory("archive")
        self.assertIn("archive --thaw", " ".join(memory.recall("合同编号").degraded))
        cold.forget(memory, rows[1].id)
        cold.thaw(memory, "合同")
        self.assertEqual(memory.get(rows[0].id), rows[0])
        self.assertEqual(self.names(), [])

    def test_what_the_server_refuses_is_one_sentence_and_nothing_is_moved(self) -> None:
        memory = self.memory("archive")
        self.fill(memory)
        with self.assertRaisesRegex(RemoteError, "S3 refused s3://nowhere"):
            cold.freeze(memory, place="s3://nowhere")
        self.assertEqual(len(memory.store), 5)
        cold.freeze(memory, place="s3://cellar")
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()
        done = cold.thaw(memory)
        self.assertEqual((done.ids, len(done.left)), ((), 1))


class TestWithoutBoto(Case):
    def test_a_missing_package_is_named_with_its_command(self) -> None:
        memory = self.memory()
        self.fill(memory)
        with mock.patch.dict(sys.modules, {"boto3": None}), \
                self.assertRaisesRegex(MissingPackage, "pip install boto3"):
            cold.freeze(memory, place="s3://cellar")
        self.assertEqual(len(memory.store), 5)


class ContextTest(Case):
    """The second source document's question about a contract, with the contract in cold storage."""

    def test_context_says_that_the_better_answer_is_cold_and_leaves_out_the_other_agents_note(self):
        question = "张三的合同进展如何"
        for backend in ("files", "archive"):
            with self.subTest(backend):
                self.folder, self.now = Path(tempfile.mkdtemp(dir=self.folder)), NOW
                memory = self.memory(backend)
                contract = memory.remember("客户张三的合同编号是CT2024-0876", agent="finance-bot",
                                           tags=["contract", "client_zhangsan"])
                self.now += timedelta(days=60)
                other = memory.remember("张三供应商资质审核中", agent="procurement-bot")
                memory.remember("服务器监控告警阈值CPU90%持续5分钟", agent="ops-bot")
                self.assertEqual(prompt.build_context(memory, question).used, (contract.id,))
                self.assertEqual(cold.freeze(memory, below=99, older_than=30).ids, (contract.id,))
                for _ in range(2):                 # it is said each time, not only once
                    found = prompt.build_context(memory, question)
                    self.assertEqual(found.used, ())
                    self.assertIn((other.id, "cold storage holds a better match"), found.dropped)
                    self.assertIn("cold storage holds 1 that match", " ".join(found.degraded))
                self.assertEqual([hit.id for hit in memory.recall(question)], [other.id])
                cold.thaw(memory, contract.id)
                self.assertEqual(prompt.build_context(memory, question).used, (contract.id,))


if __name__ == "__main__":
    unittest.main()

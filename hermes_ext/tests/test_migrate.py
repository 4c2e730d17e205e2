"""A move from files into the archive and back loses nothing, also when it is killed."""
from __future__ import annotations

import contextlib
import errno
import functools
import importlib.util
import os
import random
import shutil
import sqlite3
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zlib
from pathlib import Path
from unittest import mock

HOME = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HOME)]

import hermes_lite as core                                                        # noqa: E402
from hermes_lite import (ConfigError, DamagedData, FileStore, HermesLite, Locked,  # noqa: E402
                         Memory, Refused, StorageError, UsageError, VectorKind)
from hermes_ext.archive.store import FILE, ArchiveStore                          # noqa: E402
from hermes_ext.maintenance import doctor, migrate                                # noqa: E402
from hermes_ext.tests.base import run_command  # noqa: E402

ENVIRON = {"HERMES_VECTOR_BACKEND": "local"}


class TestMigrate(unittest.TestCase):

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="migrate"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def memory(self, **values: object) -> HermesLite:
        memory = HermesLite(self.folder / "root", config=core.Config(values, environ=ENVIRON))
        self.addCleanup(memory.close)
        return memory

    def fill(self, memory: HermesLite, count: int) -> None:
        draw = random.Random(5)
        with memory.store.transaction():
            for number in range(count):
                memory.store.put(Memory(
                    f"mem_{draw.randrange(10**12):012}", f"note {number} 合同 {number * 7}",
                    "decision", "decisions", number % 10 + 1, bool(number % 2), number,
                    "2024-05-01T00:00:00+00:00" if number % 3 else None, f"s{number % 4}.log",
                    "2023-02-01T00:00:00+00:00", ("email",) * (number % 2),
                    ("one", "合同") if number % 3 else (), "agent-1", "2031-01-01", "active",
                    "mem_old", {"system": {"deep": [1, None]}}, {"unknown": [number]}))

    def everything(self, memory: HermesLite) -> tuple:
        store = memory.store
        store.refresh()
        vectors = {name: [list(piece) for piece in chunk.pieces(name)]
                   for chunk in store.vectors.chunks() for name in chunk.checksums()}
        return [each.entry() for each in store], store.get_tombstones(), vectors, memory.state("job")

    def test_an_archive_can_be_rescued_from_a_backup_on_its_first_day(self) -> None:
        for _ in range(2):                         # the second makes the backup of the day
            with self.memory() as memory:
                memory.remember(f"the gateway is checked on {core.iso(memory.clock())}")
        with self.memory() as memory:
            memory.remember("the office dog is called Rex")
            before = {each.id: each for each in memory.store}
            migrate.migrate(memory, "archive")
        (memory.root / FILE).write_bytes(b"")
        with self.memory() as memory:
            memory.store.refresh()
            self.assertEqual({each.id: each for each in memory.store}, before)

    def test_there_and_back_every_field_tombstone_vector_and_state_is_the_same(self) -> None:
        memory = self.memory()
        self.fill(memory, 120)
        memory.save_state("job", {"done": [1, 2]})
        kind = VectorKind("jina", "v3", 4)
        ids = [*memory.store.ids()]
        memory.forget(ids.pop(7))
        memory.store.vectors.put(kind, {ids[0]: [1.0, 0.5, 0.25, 0.125],
                                        ids[1]: [[1.0, 0, 0, 0], [0, 1.0, 0, 0]]})
        memory.close()
        memory = self.memory()
        before, asked = self.everything(memory), memory.store.search.words("合同 77", 9, accept=None)
        self.assertEqual(len(before[2]), 2)
        done = migrate.migrate(memory, "archive")
        self.assertEqual((done.memories, done.tombstones > 0, done.vectors), (119, True, 2))
        memory = self.memory()
        self.assertIsInstance(memory.store, ArchiveStore)
        self.assertEqual(self.everything(memory), before)
        self.assertEqual(memory.store.search.words("合同 77", 9, accept=None), asked)
        self.assertFalse((memory.root / "index.json").exists())
        self.assertEqual([*(memory.root / "store").glob("*.md")], [])
        self.assertEqual(memory.store.vectors.missing(kind), ids[2:])
        migrate.migrate(memory, "files")
        memory = self.memory()
        self.assertIsInstance(memory.store, FileStore)
        self.assertEqual(self.everything(memory), before)
        self.assertEqual(len([*(memory.root / "store").glob("*.md")]), 119)
        self.assertFalse((memory.root / FILE).exists())

    def start_move(self, to: str) -> int:
        """Start the command in a forked child, in small steps; return its process."""
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.environ.update(ENVIRON)
                migrate._CHUNK = 20
                os._exit(core.main(["--root", str(self.folder / "root"), "migrate", "--to", to]))
            os._exit(1)
        return child

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_killed_at_any_moment_nothing_is_lost_and_it_goes_on(self) -> None:
        memory = self.memory()
        self.fill(memory, 400)
        memory.forget(next(iter(memory.store.ids())))
        memory.close()
        before = self.everything(self.memory())
        for to in ("archive", "files"):
            for turn in range(40):
                child = self.start_move(to)
                time.sleep(0.02 + 0.05 * turn)
                os.kill(child, signal.SIGKILL)
                ended = os.waitpid(child, 0)[1] == 0
                self.assertEqual(self.everything(self.memory())[:2], before[:2])
                if ended or isinstance(self.memory().store, FileStore) == (to == "files"):
                    break
            memory = migrate._as_it_is(str(self.folder / "root"))
            if isinstance(memory.store, FileStore) != (to == "files"):
                migrate.migrate(memory, to)
            memory.close()
            self.assertEqual(isinstance(self.memory().store, FileStore), to == "files")
            self.assertEqual(self.everything(self.memory()), before)

    def refused(self, memory: HermesLite, to: str, error: type) -> None:
        """A move that cannot be finished leaves the old store whole and in use."""
        before = self.everything(memory)
        with self.assertRaises(error):
            migrate.migrate(memory, to)
        memory.close()
        memory = self.memory(storage={"lock_timeout_seconds": 0.2})
        self.assertEqual(isinstance(memory.store, FileStore), to == "archive")
        self.assertEqual(self.everything(memory), before)

    def test_a_log_that_cannot_be_brought_into_the_new_file_stops_the_move(self) -> None:
        memory = self.memory(storage={"lock_timeout_seconds": 0.2})
        self.fill(memory, 30)
        copy_tombstones = migrate._copy_tombstones
        with contextlib.ExitStack() as stack:
            def read_beside(source: object, target: ArchiveStore) -> int:
                reader = stack.enter_context(contextlib.closing(sqlite3.connect(target.path)))
                reader.execute("BEGIN")
                reader.execute("SELECT * FROM tombstone").fetchall()
                return copy_tombstones(source, target)
            with mock.patch.object(migrate, "_copy_tombstones", read_beside):
                self.refused(memory, "archive", Locked)
        migrate.migrate(self.memory(), "archive")
        self.assertEqual(len(self.memory().list()), 30)

    def test_a_new_file_that_the_disk_does_not_give_back_stops_the_move(self) -> None:
        memory = self.memory()
        self.fill(memory, 30)
        opened = os.open

        def failing(path: object, *flags: int, **more: object) -> int:
            if ".migrate" in os.fspath(path) and os.fspath(path).endswith(FILE):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return opened(path, *flags, **more)
        with mock.patch.object(os, "open", failing):
            self.refused(memory, "archive", StorageError)
        migrate.migrate(self.memory(), "archive")
        self.assertEqual(len(self.memory().list()), 30)

    def test_a_disk_that_fails_under_the_new_file_stops_the_move(self) -> None:
        memory = self.memory()
        self.fill(memory, 30)
        for said in ("disk I/O error", "database or disk is full"):
            class Failing(sqlite3.Connection):
                def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
                    if "wal_checkpoint" in statement:
                        raise sqlite3.OperationalError(said)
                    return super().execute(statement, *values)
            with mock.patch("sqlite3.connect", functools.partial(sqlite3.connect,
                                                                 factory=Failing)):
                self.refused(memory, "archive", StorageError)
        with mock.patch("os.fsync", side_effect=OSError(errno.EIO, "I/O error")):
            self.refused(self.memory(), "archive", StorageError)
        migrate.migrate(self.memory(), "archive")
        for name in ("fsync", "replace"):
            with mock.patch(f"os.{name}", side_effect=OSError(errno.EIO, "I/O error")):
                self.refused(self.memory(), "files", (StorageError, OSError))
        migrate.migrate(self.memory(), "files")
        self.assertEqual(len(self.memory().list()), 30)

    def test_a_copy_that_differs_on_the_disk_stops_the_move(self) -> None:
        memory = self.memory()
        self.fill(memory, 30)
        finish = ArchiveStore.finish

        def lose_one(store: ArchiveStore) -> None:
            finish(store)
            with contextlib.closing(sqlite3.connect(store.path)) as db:
                db.execute("DELETE FROM memory WHERE seq=7")
                db.commit()
        with mock.patch.object(ArchiveStore, "finish", lose_one):
            self.refused(memory, "archive", DamagedData)

    def test_what_a_killed_move_left_is_not_taken_for_the_store_nor_lost(self) -> None:
        memory = self.memory()
        self.fill(memory, 5)
        half = ArchiveStore(self.folder / "other", memory.config)
        with half.transaction():
            half.put(Memory("mem_other", "only the archive has it"))
        half.close()
        shutil.copy(half.path, memory.root / FILE)
        with self.assertRaisesRegex(ConfigError, "migrate --to archive"):
            self.memory(storage={"backend": "archive"})
        done = migrate.migrate(self.memory(), "archive")
        self.assertIn("was there already", done.warnings[0])
        kept, = memory.root.glob(f"{FILE}.damaged-*")
        self.assertIn(b"only the archive has it", kept.read_bytes())
        self.assertEqual(len(self.memory().list()), 5)
        (memory.root / "index.journal").write_bytes(self.journal_of("mem_back"))
        migrate.migrate(self.memory(), "files")
        self.assertIsNone(self.memory().store.get("mem_back"))

    def journal_of(self, memory_id: str) -> bytes:
        """A journal as a killed process leaves it, in which this memory is stored."""
        payload = core.to_json([["put", Memory(memory_id, "it was forgotten").entry()]])
        return b"%08x %s\n" % (zlib.crc32(payload), payload)

    def test_a_process_that_goes_on_after_a_move_is_told_and_brings_nothing_back(self) -> None:
        for to in ("archive", "files"):
            with self.subTest(to=to):
                old = self.memory()
                old.remember(f"the gateway of {to} is checked on Mondays")
                gone = old.remember(f"the printer of {to} stands in room 12")
                old.recall("gateway")
                mover = self.memory()
                migrate.migrate(mover, to)
                mover.forget(gone.id)              # the mover goes on with the new store
                count = len(mover.list())
                for call in (lambda: old.remember("the invoice goes to Berlin"),
                             lambda: old.recall("gateway"), lambda: old.forget(gone.id),
                             lambda: old.get(gone.id), old.list):
                    with self.assertRaisesRegex(ConfigError, "open them again"):
                        call()
                old.close()
                self.assertEqual(len(mover.list()), count)
                mover.close()
                self.assertEqual(len(self.memory().list()), count)
                self.assertEqual((old.root / "index.json").exists(), to == "files")
                self.assertEqual((old.root / FILE).exists(), to == "archive")

    def test_a_journal_left_by_a_killed_move_brings_nothing_forgotten_back(self) -> None:
        with mock.patch.multiple(core, _COMPACT_AT_ONCE=0, _SMALL_INDEX=0), mock.patch.object(
                core.Journal, "is_long", lambda journal: False):
            memory = self.memory()
            self.fill(memory, 9)
            memory.close()
            memory = self.memory()
            memory.store.refresh()
            ids = [*memory.store.ids()]
            self.assertTrue((memory.root / "index.journal").exists())
            unlink = Path.unlink

            def killed(path: Path, **more: object) -> None:
                unlink(path, **more)
                if path == memory.root / "index.json":
                    raise KeyboardInterrupt
            with mock.patch.object(Path, "unlink", killed), self.assertRaises(KeyboardInterrupt):
                migrate.migrate(memory, "archive")
        memory = self.memory()
        self.assertIsInstance(memory.store, ArchiveStore)
        memory.forget(ids[2])
        with memory.store.transaction():           # as a restore does: without a tombstone
            memory.store.remove(ids[3], why=None)
        migrate.migrate(memory, "files")
        memory = self.memory()
        self.assertIsInstance(memory.store, FileStore)
        memory.store.refresh()
        self.assertEqual([*memory.store.ids()], ids[:2] + ids[4:])

    def test_what_changed_between_a_kill_and_the_next_run_is_taken_over(self) -> None:
        memory = self.memory()
        self.fill(memory, 50)
        half = ArchiveStore(memory.root / ".migrate", memory.config)
        ids = [*memory.store.ids()]
        with half.transaction():
            for memory_id in ids[:30]:
                half.put(memory.get(memory_id))
        half.close()
        memory.forget(ids[3])
        memory.verify(ids[4])
        migrate.migrate(memory, "archive")
        self.assertEqual([*self.memory().store.ids()], ids[:3] + ids[4:])
        self.assertTrue(self.memory().get(ids[4]).execution_verified)

    def test_a_move_that_fails_leaves_no_copy_behind(self) -> None:
        memory = self.memory()
        self.fill(memory, 20)
        full = OSError(errno.ENOSPC, "No space left on device")
        with mock.patch.object(migrate, "_compare", side_effect=full), self.assertRaises(OSError):
            migrate.migrate(memory, "archive")
        self.assertFalse((memory.root / ".migrate").exists())
        self.assertEqual(len([*self.memory().list()]), 20)

    def test_a_killed_move_keeps_nothing_that_is_forgotten_later(self) -> None:
        for to, other in (("archive", ArchiveStore), ("files", FileStore)):
            with self.subTest(to=to):
                memory = self.memory()
                gone = memory.remember(f"the walrus sleeps in the {to} boathouse").id
                half = other(memory.root / ".migrate", memory.config)
                with half.transaction():
                    half.put(memory.get(gone))
                half.close()
                memory.close()
                checks = {check.name: check for check in doctor.doctor(doctor.open_unread(str(memory.root)))}
                self.assertEqual((checks["leftovers"].state, checks["leftovers"].command),
                                 ("warn", "repair"))
                memory = self.memory()
                memory.forget(gone)
                self.assertFalse((memory.root / ".migrate").exists())
                if to == "archive":
                    migrate.migrate(memory, to)

    def test_notes_that_a_move_took_away_were_not_deleted_by_hand(self) -> None:
        memory = self.memory()
        memory.remember("the walrus sleeps in the boathouse")
        core.take_over_edits(memory)
        memory.close()
        self.assertTrue((memory.root / ".state_vault.json").exists())
        migrate.migrate(memory, "archive")
        memory.store.close()
        self.assertFalse((memory.root / ".state_vault.json").exists())

    def test_a_person_wants_nothing_that_is_done_unknown_or_sealed(self) -> None:
        memory = self.memory()
        self.fill(memory, 1)
        with self.assertRaises(Refused):
            migrate.migrate(memory, "files")
        with self.assertRaisesRegex(UsageError, "--to archive"):
            migrate.migrate(memory, None)
        try:
            memory.store.files.cipher = core.Cipher(b"x" * 43 + b"=")
        except core.MissingPackage:
            self.skipTest("cryptography")
        with self.assertRaisesRegex(ConfigError, "encrypt off"):
            migrate.migrate(memory, "archive")
        memory.store.files.cipher = None

    @unittest.skipUnless(importlib.util.find_spec("yaml"), "needs PyYAML")
    def test_a_buffer_named_too_early_or_too_long_stops_no_move(self) -> None:
        root = self.folder / "early"
        with HermesLite(root, config=core.Config(environ=ENVIRON)) as memory:
            memory.remember("the gateway is checked on Mondays")
        (root / "config.yaml").write_text("systems: {buffer: {}}\n")

        def run(*words: str) -> tuple[int, str]:
            done = run_command(root, *words)
            return done.returncode, done.stdout + done.stderr
        self.assertIn("systems.buffer stands before an archive", run("list")[1])
        code, said = run("doctor")
        self.assertEqual((code, "fail  systems: config.yaml: systems.buffer" in said), (1, True))
        self.assertEqual(run("migrate", "--to", "archive")[0], 0)
        self.assertIn("gateway", run("list")[1])
        code, said = run("migrate", "--to", "files")
        self.assertEqual((code, "still names systems.buffer" in said), (0, True))


if __name__ == "__main__":
    unittest.main()

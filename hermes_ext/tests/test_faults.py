"""The harness of the stress tests sees what it is there to see."""
import errno
import os
import shutil
import sqlite3
import tempfile
import unittest
from pathlib import Path

from hermes_ext.tests import attacks
from hermes_ext.tests.faults import (DAMAGES, KILLED, WHOLE_FILE, FaultyDisk, PowerCut, damage,
                                     run_child, write_tree)


@unittest.skipUnless(hasattr(os, "fork"), "the harness forks")
class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.home = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.home)
        self.file = self.home / "a.txt"
        self.file.write_bytes(b"old")

    def disk(self, act, fault: str = "", at: int = 0):
        """Run *act* on a faulty disk; return (how it ended, kinds, log)."""
        def run() -> object:
            disk = FaultyDisk(str(self.home), fault, at)
            disk.install()
            try:
                act()
            except (OSError, sqlite3.Error) as problem:
                return [repr(problem), disk.kinds, attacks._coded(disk.log)]
            return ["", disk.kinds, attacks._coded(disk.log)]
        return run_child(run)

    def replace(self, *, synced: bool, folder: bool) -> None:
        new = self.home / "new.tmp"
        with open(new, "wb", buffering=0) as file:
            file.write(b"new text")
            if synced:
                os.fsync(file.fileno())
        os.replace(new, self.file)
        if folder:
            handle = os.open(self.home, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)


class Disk(Case):
    def test_every_operation_is_counted_in_order(self) -> None:
        ran = self.disk(lambda: self.replace(synced=True, folder=True))
        self.assertEqual([kind.split()[0] for kind in ran.value[1]],
                         ["create", "write", "fsync", "replace", "fsync"])

    def test_a_kill_comes_before_its_operation_and_a_torn_write_is_half_done(self) -> None:
        act = lambda: self.replace(synced=True, folder=True)           # noqa: E731
        self.assertEqual(self.disk(act, "kill", 4).code, KILLED)
        self.assertEqual(self.file.read_bytes(), b"old")
        self.assertEqual((self.home / "new.tmp").read_bytes(), b"new text")
        self.assertEqual(self.disk(lambda: self.file.write_bytes(b"longer"), "torn", 2).code,
                         KILLED)
        self.assertEqual(self.file.read_bytes(), b"lon")

    def test_errors_name_what_the_disk_says(self) -> None:
        act = lambda: self.replace(synced=True, folder=True)           # noqa: E731
        self.assertIn(str(errno.EIO), self.disk(act, "eio", 3).value[0])
        self.assertIn(str(errno.ENOSPC), self.disk(act, "full", 1).value[0])
        self.assertIn(str(errno.EIO), self.disk(self.file.read_bytes, "eio", 1).value[0])

    def test_statements_of_sqlite_count_and_fail(self) -> None:
        def act() -> None:
            db = sqlite3.connect(self.home / "a.db", isolation_level=None)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("CREATE TABLE one (a)")
            db.execute("INSERT INTO one VALUES (1)")
            db.execute("SELECT * FROM one")
            db.close()
        self.assertEqual(len(self.disk(act).value[1]), 3)
        (self.home / "a.db").unlink()
        self.assertIn("full", self.disk(act, "full", 2).value[0])
        (self.home / "a.db").unlink()
        self.assertEqual(self.disk(act, "eio", 3).value[0], "")        # a close never says so
        self.assertTrue((self.home / "a.db-wal").stat().st_size)


class Power(Case):
    def left(self, way: str, **how: bool) -> dict[str, bytes]:
        """Replace the file and cut the power after it; return {name: data}."""
        self.file.write_bytes(b"old")
        cut = PowerCut(self.home)
        for step in self.disk(lambda: self.replace(**how)).value[2]:
            cut.apply(tuple(bytes.fromhex(part[1]) if isinstance(part, list) else part
                            for part in step))
        return {os.path.basename(path): data for path, data in cut.left(way).items()}

    def test_only_what_was_synced_is_there(self) -> None:
        self.assertEqual(self.left("synced", synced=True, folder=True), {"a.txt": b"new text"})
        self.assertEqual(self.left("synced", synced=True, folder=False), {"a.txt": b"old"})
        self.assertEqual(self.left("synced", synced=False, folder=True), {"a.txt": b""})

    def test_names_may_come_before_their_data(self) -> None:
        self.assertEqual(self.left("empty", synced=False, folder=False), {"a.txt": b""})
        self.assertEqual(self.left("torn", synced=False, folder=False), {"a.txt": b"new "})
        self.assertEqual(self.left("torn", synced=True, folder=False), {"a.txt": b"new text"})

    def test_a_tree_is_written_elsewhere(self) -> None:
        (self.home / "inside").mkdir()
        (self.home / "inside/b").write_bytes(b"x")
        other = self.home / "other"
        write_tree(PowerCut(self.home).left("synced"), str(self.home), other)
        self.assertEqual((other / "inside/b").read_bytes(), b"x")


class Judging(Case):
    def test_twenty_ways_of_damage_change_a_file(self) -> None:
        data = b"".join(b'{"id": %d, "text": "something of a length"}\n' % n for n in range(400))
        self.assertGreaterEqual(len(DAMAGES) + len(WHOLE_FILE), 20)
        for way in DAMAGES:
            self.file.write_bytes(data)
            self.assertTrue(damage(self.file, way), way)

    def test_a_lost_and_a_returned_memory_are_found(self) -> None:
        scene = next(attacks.scenes(self.home / "scenes", ["files"]))
        self.assertEqual(attacks.judge(scene.copy(self.home)), [])
        copy = scene.copy(self.home)
        copy.memories["kept_99"] = ("mem_20260101_000000_abcd", "never there")
        self.assertEqual([kind for kind, _ in attacks.judge(copy)], ["lost"])
        copy = scene.copy(self.home)
        copy.memories["gone_99"] = copy.memories["kept_1"]
        self.assertEqual([kind for kind, _ in attacks.judge(copy)], ["returned"])

    def test_a_traceback_is_found(self) -> None:
        scene = next(attacks.scenes(self.home / "scenes", ["files"]))
        ran = run_child(lambda: {}["missing"])
        self.assertIn("traceback", [kind for kind, _ in attacks.judge(scene, ran=ran)])


if __name__ == "__main__":
    unittest.main()

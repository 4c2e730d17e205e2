"""cron install|remove|show change the lines of this memory in the crontab and no others."""
import os
import shlex
import stat
import subprocess
import sys
import tempfile
import unittest
from importlib import metadata
from pathlib import Path
from unittest import mock

from hermes_ext import cron
from hermes_ext.tests.base import HOME, TIMEOUT, setUpModule  # noqa: F401
from hermes_lite import HermesLite, NotFound, StorageError, UsageError

# A crontab as Debian's behaves: -l prints it or says that there is none, - replaces it and refuses
# a last line without an end, -r takes it away.
PROGRAM = """#!{python}
import os, pathlib, sys
tab = pathlib.Path({tab!r})
if sys.argv[1] == "-l":
    if not tab.exists():
        sys.exit("no crontab for me")
    sys.stdout.buffer.write(tab.read_bytes())
elif sys.argv[1] == "-r":
    tab.unlink()
else:
    text = sys.stdin.buffer.read()
    if not text.endswith(b"\\n") or b"refuse me" in text:
        sys.exit("new crontab file is missing newline before EOF, can't install.")
    tab.write_bytes(text)
"""
OTHERS = (b"# mine: hermes-lite cycle is run elsewhere\n5 4 * * * echo 50\\% of us\n"
          b"1 1 * * * hermes-lite brain cycle # hermes-lite cycle /another/root\n")


class Cron(unittest.TestCase):

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.tab = self.folder / "tab"
        program = self.folder / "bin" / "crontab"
        program.parent.mkdir()
        program.write_text(PROGRAM.format(python=sys.executable, tab=str(self.tab)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        path = mock.patch.dict(os.environ, PATH=str(program.parent))
        path.start()
        self.addCleanup(path.stop)

    def open(self, name: str = "a root, 100% mine") -> HermesLite:
        root = self.folder / name
        root.mkdir(exist_ok=True)
        (root / "config.yaml").write_text('{"systems": {"brain": {}}}')
        memory = HermesLite(root)
        self.addCleanup(memory.close)
        return memory

    def test_installing_twice_leaves_one_line_and_remove_the_crontab_as_it_was(self) -> None:
        self.tab.write_bytes(OTHERS)
        memory = self.open()
        done = cron.install(memory)
        self.assertEqual(len(done.added), 2)
        self.assertEqual(self.tab.read_bytes()[:len(OTHERS)], OTHERS)
        self.assertEqual(cron.install(memory), cron.Crontab())
        self.assertEqual(len(self.tab.read_text().splitlines()), 5)
        self.assertEqual(cron.remove(memory).removed, done.added)
        self.assertEqual(self.tab.read_bytes(), OTHERS)
        self.assertEqual(cron.remove(memory), cron.Crontab())

    def test_a_crontab_of_ours_alone_goes_away_again(self) -> None:
        memory = self.open()
        cron.install(memory, ["sediment"])
        self.assertEqual(len(self.tab.read_text().splitlines()), 1)
        cron.remove(memory)
        self.assertFalse(self.tab.exists())

    def test_two_roots_do_not_touch_each_other(self) -> None:
        one, two = self.open("one"), self.open("two")
        cron.install(one)
        cron.install(two, ["cycle"])
        cron.remove(one, ["cycle"])
        lines = self.tab.read_text().splitlines()
        self.assertEqual([line.rpartition(" # ")[2].split()[1] for line in lines],
                         ["sediment", "cycle"])
        cron.remove(one)
        self.assertIn(str(two.root), self.tab.read_text())

    def test_a_line_of_an_older_place_is_replaced(self) -> None:
        memory = self.open()
        cron.install(memory, ["cycle"])
        self.tab.write_text(self.tab.read_text().replace(str(HOME), "/gone"))
        done = cron.install(memory, ["cycle"])
        self.assertEqual((len(done.added), len(done.removed)), (1, 1))
        self.assertNotIn("/gone", self.tab.read_text())

    def test_the_line_runs_the_job_as_a_shell_sees_it(self) -> None:
        memory = self.open()
        line = cron.line_of(cron.JOBS["cycle"], memory.root)
        command = line.split(" ", 5)[5].replace(r"\%", "%").replace("> /dev/null", "")
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True,
                              timeout=TIMEOUT, env={"PATH": "/usr/bin:/bin"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("the first cycle", done.stdout)
        self.assertTrue((memory.root / ".state_brain.json").exists())

    def test_an_installed_program_is_taken(self) -> None:
        program = self.folder / "bin" / "hermes-lite"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        python = mock.patch.object(sys, "executable", str(program.with_name("python3")))
        for is_ours, first in ((False, str(program.with_name("python3"))), (True, str(program))):
            found = mock.patch.object(metadata, "distribution", side_effect=None if is_ours else (
                metadata.PackageNotFoundError))
            with python, found:                    # somebody else's has the same name
                words = shlex.split(cron.line_of(cron.JOBS["cycle"], self.folder), comments=True)
            self.assertEqual(words[7], first)
            self.assertEqual(words[words.index("brain"):][:2], ["brain", "cycle"])

    def test_units_name_the_same_command(self) -> None:
        memory = self.open()
        for row in cron.show(memory):
            self.assertIn('Environment="HERMES_LITE_ROOT=', row.service)
            self.assertIn("100%% mine", row.service)
            self.assertIn("OnCalendar=", row.timer)

    def test_a_schedule_that_a_person_has_changed_stays(self) -> None:
        memory = self.open()
        cron.install(memory, ["cycle"])
        self.tab.write_bytes(OTHERS + self.tab.read_bytes().replace(b"15 3 * * *", b"*/30 * * * 1-5"))
        edited = self.tab.read_bytes()
        self.assertEqual(cron.install(memory, ["cycle"]), cron.Crontab())
        self.assertEqual(self.tab.read_bytes(), edited)

    def test_a_last_line_without_an_end_is_not_joined_with_the_new_one(self) -> None:
        self.tab.write_bytes(OTHERS.rstrip(b"\n"))
        memory = self.open()
        line = cron.install(memory, ["cycle"]).added[0]
        self.assertEqual(self.tab.read_bytes(), OTHERS + line.encode() + b"\n")

    def test_what_cannot_be_done_is_said_and_nothing_is_lost(self) -> None:
        memory = self.open()
        with self.assertRaises(UsageError):
            cron.install(memory, ["fly"])
        self.tab.write_bytes(OTHERS + b"# refuse me\n")
        with self.assertRaisesRegex(StorageError, "crontab refused"):
            cron.install(memory)
        self.assertEqual(self.tab.read_bytes(), OTHERS + b"# refuse me\n")
        with mock.patch.dict(os.environ, PATH="/nonexistent"):
            with self.assertRaisesRegex(NotFound, "cron show"):
                cron.install(memory)
        with self.assertRaises(UsageError):
            cron.line_of(cron.JOBS["cycle"], Path("/a\n* * * * * evil"))


SPOOL = Path("/var/spool/cron/crontabs")


def has_real_crontab() -> bool:
    """Tell whether Debian's `crontab` can be used here without touching anybody's crontab."""
    if not SPOOL.is_dir() or os.geteuid() != 0 or not os.path.exists("/usr/bin/crontab"):
        return False
    with tempfile.TemporaryDirectory() as folder:
        try:
            tried = subprocess.run(["unshare", "--mount", "mount", "--bind", folder, str(SPOOL)],
                                   capture_output=True)
        except OSError:
            return False
    return tried.returncode == 0


if has_real_crontab():
    class RealCrontab(unittest.TestCase):
        """Debian's program, whose folder is one of the test's in a namespace of mounts."""

        def setUp(self) -> None:
            folder = tempfile.TemporaryDirectory()
            self.addCleanup(folder.cleanup)
            self.folder = Path(folder.name)
            self.spool, self.root = self.folder / "spool", self.folder / "a root, 100% mine"
            self.spool.mkdir(mode=0o730)
            self.root.mkdir()
            (self.root / "config.yaml").write_text('{"systems": {"brain": {}}}')

        def run_in(self, *words: object, given: bytes = b"") -> bytes:
            script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
            done = subprocess.run(
                ["unshare", "--mount", "sh", "-c", script, "sh", self.spool, SPOOL, *words],
                capture_output=True, input=given, env={"PATH": os.defpath, "LC_ALL": "C"})
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            return done.stdout

        def cron(self, *words: str) -> None:
            self.run_in(sys.executable, HOME / "hermes_lite.py", "--root", self.root, "cron",
                        *words)

        def test_only_its_own_lines_change(self) -> None:
            self.run_in("crontab", "-", given=OTHERS)
            self.cron("install")
            once = self.run_in("crontab", "-l")
            self.assertTrue(once.startswith(OTHERS))
            self.assertEqual(once.count(b"\n"), OTHERS.count(b"\n") + 2)
            self.cron("install")
            self.assertEqual(self.run_in("crontab", "-l"), once)
            self.cron("remove")
            self.assertEqual(self.run_in("crontab", "-l"), OTHERS)

        def test_a_crontab_is_made_and_taken_away_again(self) -> None:
            self.cron("install", "cycle")
            self.assertEqual(self.run_in("crontab", "-l").count(b"\n"), 1)
            self.cron("remove")
            self.assertEqual([*self.spool.iterdir()], [])


if __name__ == "__main__":
    unittest.main()

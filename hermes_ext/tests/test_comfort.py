"""The command line as a person meets it: a real pseudo-terminal, real shells, real pipes."""
import contextlib
import importlib.util
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
import unittest
from pathlib import Path
from unittest import mock

from hermes_ext.tests.base import HOME, setUpModule

import hermes_lite as core
from hermes_ext import completion
from hermes_ext.command_help import EXAMPLES, GROUPS
from hermes_ext.tests import base
from hermes_lite import HermesLite, UsageError

TIMEOUT = 120          # seconds; a shell that waits for good fails by it
ESCAPE = "\x1b["


class OnTheCommandLine(unittest.TestCase):
    """A folder with a launcher `hermes-lite` of this checkout on PATH, and an empty root."""

    def setUp(self) -> None:
        import tempfile
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.home = Path(place.name)
        self.root = self.home / "root"
        self.bin = self.home / "bin"
        self.bin.mkdir()
        launcher = self.bin / "hermes-lite"
        code = (f"import sys; sys.path.insert(0, {str(HOME)!r}); import hermes_lite as m; "
                "sys.exit(m.main())")              # a script would be compiled at each start
        launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
        launcher.chmod(0o755)
        self.environ = {"PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin", "TERM": "xterm",
                        "HOME": str(self.home), "HERMES_LITE_ROOT": str(self.root),
                        "LC_ALL": "C.UTF-8", "COLUMNS": "100", "LINES": "24"}

    def run_in(self, command: str, *, shell: str = "bash", **environ: str):
        return subprocess.run([shell, "-c", command], env={**self.environ, **environ},
                              capture_output=True, text=True, timeout=TIMEOUT,
                              stdin=subprocess.DEVNULL)

    def on_terminal(self, *words: str, **environ: str) -> str:
        """Return what a command prints on a pseudo-terminal of 24 lines."""
        leader, follower = pty.openpty()
        import fcntl
        import struct
        import termios
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        process = subprocess.Popen(words, env={**self.environ, **environ}, stdin=follower,
                                   stdout=follower, stderr=follower, start_new_session=True)
        os.close(follower)
        seen = b""
        with contextlib.suppress(OSError):             # EIO: the other end is closed
            while piece := os.read(leader, 1 << 16):
                seen += piece
        os.close(leader)
        process.wait(TIMEOUT)
        return seen.decode().replace("\r\n", "\n")

    def filled(self, count: int = 3) -> None:
        with HermesLite(self.root) as memory, memory.batch():
            for number in range(count):
                memory.remember(f"Note {number}: rack {number * 7} holds the box "
                                f"{chr(97 + number % 26) * 5}", importance=1 + number % 9)


class Pipes(OnTheCommandLine):
    def test_a_text_comes_from_standard_input_and_json_goes_to_jq(self) -> None:
        done = self.run_in("echo 'The gateway listens on port 8080' | hermes-lite remember -")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = self.run_in("hermes-lite recall gateway --json | jq -r '.hits[0].memory.content'")
        self.assertEqual(found.stdout, "The gateway listens on port 8080\n", found.stderr)

    def test_a_pipe_gets_plain_lines(self) -> None:
        self.filled(60)
        listed = self.run_in("hermes-lite list")
        self.assertNotIn(ESCAPE, listed.stdout)
        self.assertEqual(len(listed.stdout.splitlines()), 60)

    def test_quiet_prints_data_and_errors_alone(self) -> None:
        loud = self.run_in("hermes-lite recall nothing")
        self.assertIn("nothing found", loud.stderr)
        quiet = self.run_in("hermes-lite recall nothing --quiet")
        self.assertEqual((quiet.returncode, quiet.stdout, quiet.stderr), (0, "", ""))
        wrong = self.run_in("hermes-lite --quiet show mem_20200101_000000_dead")
        self.assertEqual(wrong.returncode, 10)
        self.assertIn("hermes-lite:", wrong.stderr)


class Terminal(OnTheCommandLine):
    @unittest.skipUnless(importlib.util.find_spec("rich"), "needs the package rich")
    def test_colours_and_a_table_where_rich_is_and_nobody_refuses_them(self) -> None:
        self.filled()
        coloured = self.on_terminal("hermes-lite", "list")
        self.assertIn(ESCAPE, coloured)
        self.assertRegex(re.sub(r"\x1b\[[\d;]*m", "", coloured), r"id +made +until +room +imp")
        found = self.on_terminal("hermes-lite", "recall", "rack 7")
        self.assertIn(ESCAPE, found)
        for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            with self.subTest(plain):
                self.assertNotIn(ESCAPE, self.on_terminal("hermes-lite", "list", **plain))
        self.assertNotIn(ESCAPE, self.on_terminal("hermes-lite", "list", "--quiet"))
        as_json = self.on_terminal("hermes-lite", "list", "--json")
        self.assertEqual(len(json.loads(as_json)), 3)

    def test_without_rich_the_lines_are_those_of_a_pipe(self) -> None:
        self.filled()
        (self.home / "rich.py").write_text("raise ImportError('hidden')\n")
        plain = self.on_terminal("hermes-lite", "list", PYTHONPATH=str(self.home))
        self.assertEqual(plain, self.run_in("hermes-lite list").stdout)

    def test_a_long_list_goes_through_the_pager_and_a_short_one_does_not(self) -> None:
        self.filled(60)
        pager = self.bin / "mark"
        pager.write_text("#!/bin/sh\necho PAGED; cat\n")
        pager.chmod(0o755)
        self.assertIn("PAGED", self.on_terminal("hermes-lite", "list", PAGER="mark"))
        self.assertNotIn("PAGED", self.on_terminal("hermes-lite", "list", "--limit", "3",
                                                   PAGER="mark"))
        for environ in ({"PAGER": "mark", "HERMES_PAGER": ""}, {"PAGER": "cat"},
                        {"PAGER": "no-such-pager"}):
            shown = self.on_terminal("hermes-lite", "list", NO_COLOR="1", **environ)
            self.assertNotIn("PAGED", shown)
            self.assertEqual(len(shown.splitlines()), 60)

    def test_a_text_cannot_command_the_terminal(self) -> None:
        with HermesLite(self.root) as memory:
            memory.remember("A note [bold]with[/bold] \x1b]0;title\x07 in it")
        for command in (("list",), ("recall", "note")):
            shown = self.on_terminal("hermes-lite", *command)
            self.assertNotIn("\x1b]0", shown)
            self.assertIn("[bold]with[/bold]", shown)

    def test_progress_is_shown_for_work_above_a_second_alone(self) -> None:
        with mock.patch.object(core.time, "monotonic", side_effect=[10.0, 10.9, 11.5, 12.0]), \
                mock.patch.object(sys, "stderr") as stderr:
            progress = core._Progress()
            progress.show("indexing", 1, 3)
            stderr.write.assert_not_called()
            progress.show("indexing", 2, 3)
            self.assertIn("indexing 2 of 3", "".join(c.args[0] for c in stderr.write.mock_calls))


class Lists(OnTheCommandLine):
    def test_sort_and_offset(self) -> None:
        self.filled(12)
        with HermesLite(self.root) as memory:
            ids = [one.id for one in memory.list()]
            self.assertEqual([one.id for one in memory.list(sort="oldest")], ids[::-1])
            self.assertEqual([one.id for one in memory.list(offset=3, limit=4)], ids[3:7])
            levels = [one.importance for one in memory.list(sort="importance")]
            self.assertEqual(levels, sorted(levels, reverse=True))
            for wrong in ({"sort": "size"}, {"offset": -1}, {"offset": True}):
                with self.assertRaises(UsageError):
                    memory.list(**wrong)
        shown = self.run_in("hermes-lite list --sort oldest --offset 10")
        self.assertEqual([line.split()[0] for line in shown.stdout.splitlines()], ids[1::-1])
        self.assertEqual(self.run_in("hermes-lite list --sort size").returncode, 2)

    def test_since_takes_days_as_people_say_them(self) -> None:
        with HermesLite(self.root, clock=lambda: base.NOW) as memory:
            moment = memory.calendar.moment
            for words, day in (("yesterday", "2026-08-16"), ("gestern", "2026-08-16"),
                               ("昨天", "2026-08-16"), ("last week", "2026-08-10"),
                               ("letzte Woche", "2026-08-10"), ("上周", "2026-08-10"),
                               ("today", "2026-08-17"), ("last month", "2026-07-01")):
                with self.subTest(words):
                    self.assertEqual(moment(words).astimezone(
                        memory.config.zone).date().isoformat(), day)
            self.assertEqual(moment("yesterday", end=True).astimezone(
                memory.config.zone).date().isoformat(), "2026-08-16")
            for words in ("soon", "", "the note that somebody wrote yesterday"):
                with self.assertRaises(UsageError):
                    moment(words)
        self.filled()
        self.assertEqual(len(self.run_in("hermes-lite list --since yesterday")
                             .stdout.splitlines()), 3)


class Help(OnTheCommandLine):
    def test_commands_come_in_groups_and_each_once(self) -> None:
        shown = self.run_in("hermes-lite --help").stdout
        for title in GROUPS:
            self.assertIn(f"\n{title}:\n", shown)
        for name in core._command_names():
            self.assertEqual(len(re.findall(rf"(?m)^    {re.escape(name)} ", shown)), 1, name)
        self.assertEqual(self.run_in("hermes-lite").stdout, shown)

    def test_the_help_of_a_command_has_examples_that_parse_and_choices(self) -> None:
        shown = self.run_in("hermes-lite list --help").stdout
        self.assertIn("newest, oldest, importance, accessed", " ".join(shown.split()))
        self.assertIn(EXAMPLES["list"][0], shown)
        import shlex
        for name, examples in EXAMPLES.items():
            for example in examples:
                words = shlex.split(example.split("hermes-lite ", 1)[1].split(" | ")[0]
                                    .split(" > ")[0].rstrip(')"') if "$(" in example else
                                    example.split("hermes-lite ", 1)[1].split(" | ")[0]
                                    .split(" > ")[0])
                with self.subTest(example):
                    parsed = core.build_parser(core.load_commands(name)).parse_args(words)
                    self.assertEqual(parsed.command, name)

    def test_what_is_not_installed_is_said_as_such(self) -> None:
        alone = self.home / "alone"
        alone.mkdir()
        shutil.copy(HOME / "hermes_lite.py", alone)
        done = self.run_in(f"cd {alone} && {sys.executable} hermes_lite.py doctor")
        self.assertEqual(done.returncode, 3)
        self.assertIn("hermes_ext", done.stderr)

    def test_what_is_not_switched_on_is_a_matter_of_configuration(self) -> None:
        for command in ("buffer", "brain status", "lanes", "rules check", "audit"):
            done = self.run_in(f"hermes-lite {command}")
            self.assertIn(done.returncode, (0, 3, 10), f"{command}: {done.stderr}")


class Completion(OnTheCommandLine):
    """Each shell completes for itself; only what it offers is looked at."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.scripts = {}
        for shell in completion.SHELLS:
            made = subprocess.run([sys.executable, HOME / "hermes_lite.py", "completion", shell],
                                  capture_output=True, text=True, timeout=TIMEOUT, check=True)
            cls.scripts[shell] = made.stdout

    def setUp(self) -> None:
        super().setUp()
        for shell, script in self.scripts.items():
            (self.home / shell).write_text(script)

    def in_bash(self, *words: str) -> list[str]:
        quoted = " ".join(f'"{word}"' for word in words)
        done = self.run_in(f"source {self.home}/bash; COMP_WORDS=({quoted}); "
                           f"COMP_CWORD={len(words) - 1}; _hermes_lite; "
                           "printf '%s\\n' \"${COMPREPLY[@]}\"")
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_bash(self) -> None:
        self.assertEqual(self.in_bash("hermes-lite", "rem"), ["remember"])
        self.assertEqual(self.in_bash("hermes-lite", "--root", "/tmp", "reme"), ["remember"])
        self.assertIn("cycle", self.in_bash("hermes-lite", "brain", ""))
        self.assertIn("--max-orders", self.in_bash("hermes-lite", "brain", "cycle", "--"))
        self.assertEqual(self.in_bash("hermes-lite", "list", "--so"), ["--sort"])
        self.assertEqual(self.in_bash("hermes-lite", "list", "--sort", "im"), ["importance"])
        self.assertEqual(self.in_bash("hermes-lite", "completion", "z"), ["zsh"])
        self.assertIn("--dry-run", self.in_bash("hermes-lite", "prune", "--d"))
        (self.home / "meeting.txt").touch()
        self.assertEqual(self.in_bash("hermes-lite", "digest", "--file",
                                      f"{self.home}/meet"), [f"{self.home}/meeting.txt"])

    def typed(self, words: list[str], prompt: str, start: str, line: str, wanted: str) -> None:
        """Type a line and Tab in an interactive shell; what is wanted appears."""
        leader, follower = pty.openpty()
        process = subprocess.Popen(words, env={**self.environ, "PS1": prompt}, stdin=follower,
                                   stdout=follower, stderr=follower, start_new_session=True)
        os.close(follower)
        self.addCleanup(os.close, leader)
        self.addCleanup(process.wait, TIMEOUT)
        self.addCleanup(process.kill)

        def until(text: str) -> str:
            seen, end = "", time.monotonic() + TIMEOUT
            while text not in seen and time.monotonic() < end:
                ready, _, _ = select.select([leader], [], [], 1)
                if ready:
                    seen += os.read(leader, 1 << 16).decode("utf-8", "replace")
                    seen = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", seen)
            return seen
        os.write(leader, f"{start}; echo rea''dy\n".encode())
        until("ready\r\n")
        os.write(leader, line.encode() + b"\t")
        self.assertIn(wanted, until(wanted))

    def test_bash_when_a_person_presses_tab(self) -> None:
        self.typed(["bash", "--norc", "--noprofile", "-i"], "$ ", f"source {self.home}/bash",
                   "hermes-lite remem", "hermes-lite remember ")

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not here; .ci/run installs it")
    def test_zsh_when_a_person_presses_tab(self) -> None:
        self.assertEqual(self.run_in(f"zsh -n {self.home}/zsh").stderr, "")
        start = f"autoload -Uz compinit; compinit -u -D; source {self.home}/zsh"
        for line, wanted in (("hermes-lite remem", "ber "), ("hermes-lite brain cyc", "le "),
                             ("hermes-lite list --sort imp", "ortance "),
                             ("hermes-lite --root /tmp list --uncon; hermes-lite prune --dry",
                              "-run ")):
            with self.subTest(line):
                self.typed(["zsh", "-f", "-i"], "$ ", start, line, wanted)

    @unittest.skipUnless(shutil.which("fish"), "fish is not here; .ci/run installs it")
    def test_fish(self) -> None:
        def offered(line: str) -> list[str]:
            done = self.run_in(f"source {self.home}/fish; complete -C '{line}'", shell="fish")
            self.assertEqual(done.stderr, "")
            return [row.split("\t")[0] for row in done.stdout.splitlines()]
        self.assertEqual(offered("hermes-lite remem"), ["remember"])
        self.assertEqual(offered("hermes-lite brain cyc"), ["cycle"])
        self.assertEqual(offered("hermes-lite list --sort imp"), ["importance"])
        self.assertEqual(offered("hermes-lite completion z"), ["zsh"])

    def test_another_shell_is_refused(self) -> None:
        done = self.run_in("hermes-lite completion ksh")
        self.assertEqual(done.returncode, 2)
        self.assertIn("bash, zsh, fish", done.stderr)

    @unittest.skipUnless(shutil.which("man"), "man is not here; .ci/run installs it")
    def test_the_manual_page_is_read_by_man_without_a_warning(self) -> None:
        page = self.home / "hermes-lite.1"
        page.write_text(self.run_in("hermes-lite man").stdout)
        done = self.run_in(f"man --warnings -l {page}", MANPAGER="cat", MANWIDTH="90",
                           MANROFFOPT="-ww")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        plain = re.sub(r".\x08|\x1b\[\d*m", "", done.stdout)
        for name in ("remember", "brain cycle", "--dry-run", "EXIT STATUS"):
            self.assertIn(name, plain)


if __name__ == "__main__":
    unittest.main()

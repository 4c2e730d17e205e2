"""Shell: the same commands over one open memory, by hand and from a script."""
import contextlib
import io
import json
import os
import secrets
import select
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from hermes_ext import shell as s                                       # noqa: E402
from hermes_lite import Config, HermesLite                              # noqa: E402

try:
    import pty
    import readline                                                     # noqa: F401
except ImportError:
    pty = None


class ShellCase(unittest.TestCase):

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name) / "root"
        self.environ = {"PATH": os.defpath, "HOME": folder.name, "TERM": "dumb",
                        "PYTHONIOENCODING": "utf-8"}
        self.command = [sys.executable, str(HOUSE / "hermes_lite.py"), "--root", str(self.root),
                        "shell"]

    def open(self) -> HermesLite:
        memory = HermesLite(self.root, config=Config({}, environ={}))
        self.addCleanup(memory.close)
        return memory

    def script(self, text: str, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run([*self.command, *words], input=text.encode(), capture_output=True,
                              env=self.environ)

    def execute(self, memory: HermesLite, line: str) -> tuple[int | None, str, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out, \
                contextlib.redirect_stderr(io.StringIO()) as err:
            code = s.execute(memory, line)
        return code, out.getvalue(), err.getvalue()


class TestScript(ShellCase):

    def test_a_script_runs_each_line_and_ends_with_the_highest_code(self):
        done = self.script("# a comment\n\nremember '客户张三的合同编号是CT2024-0876' --verified\n"
                           "recal x\n"
                           "show nothing\nrecall 合同 --json\n")
        self.assertEqual(done.returncode, 10)
        hits = json.loads(done.stdout.decode().split("\n", 1)[1])["hits"]
        self.assertEqual(hits[0]["memory"]["content"], "客户张三的合同编号是CT2024-0876")
        self.assertEqual([line.split(":")[0] for line in done.stderr.decode().splitlines()],
                         ["hermes-lite"] * 2)
        self.assertIn("did you mean 'recall'", done.stderr.decode())

    def test_a_good_script_ends_with_0_and_says_nothing_of_its_own(self):
        done = self.script("remember 'a note' --verified\r\nexit\nshow nothing\n")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(len(done.stdout.splitlines()), 1)
        self.assertEqual(self.script("").returncode, 0)

    def test_a_bom_and_a_missing_last_line_end_are_fine(self):
        done = self.script("\ufeffremember 'a note'\nrecall note")
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_what_changes_a_lot_needs_yes(self):
        done = self.script("prune\n")
        self.assertEqual(done.returncode, 11)
        self.assertEqual(self.script("prune --yes\nprune --dry-run\n").returncode, 0)

    def test_json_of_the_shell_counts_commands(self):
        done = self.script("stats\nshow nothing\n", "--json")
        self.assertEqual(json.loads(done.stdout[done.stdout.index(b"{\n"):]),
                         {"commands": 2, "failed": 1, "exit_code": 10})

    def test_ctrl_c_ends_a_script(self):
        child = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env=self.environ,
                                 preexec_fn=lambda: signal.signal(signal.SIGINT,
                                                                  signal.SIG_DFL))
        child.stdin.write(b"stats\n")
        child.stdin.flush()
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate()
        self.assertEqual((child.returncode, err.decode().strip()),
                         (130, "hermes-lite: interrupted"))


class TestLine(ShellCase):

    def test_one_memory_stays_open_and_is_told_the_surface(self):
        memory, events = self.open(), []
        memory.systems.append(type("Watch", (), {"name": "w", "on_event": staticmethod(
            events.append)})())
        self.execute(memory, "remember 'the harbour master is Olga'")
        code, out, _ = self.execute(memory, "recall harbour")
        self.assertEqual(code, 0)
        self.assertIn("Olga", out)
        self.assertEqual([event.surface for event in events], ["shell remember", "shell recall"])

    def test_quotes_that_do_not_close_and_wrong_words_are_one_sentence(self):
        memory = self.open()
        for line, code, words in (
                ("remember 'open", 2, "a quote is not closed"), ("remember \"it's", 2, "quote"),
                ("remember x\\", 2, "backslash"), ("frobnicate", 2, "there is no command"),
                ("recal x", 2, "did you mean 'recall'"), ("shell", 2, "the shell already"),
                ("exti", 2, "did you mean 'exit'"),
                ("list --root /x", 2, "give --root before"), ("remember -", 2, "nothing to read"),
                ("recall", 2, "no query"), ("recall a b", 2, "in quotes"),
                ("show nothing", 10, "no memory has the id"), ("--root /x stats", 2, "")):
            result, _, err = self.execute(memory, line)
            self.assertEqual((result, err.count("\n")), (code, 1), (line, err))
            self.assertIn(words, err)

    def test_help_shows_the_commands_or_one_of_them(self):
        memory = self.open()
        self.assertIn("remember", self.execute(memory, "help")[1])
        self.assertIn("--top-k", self.execute(memory, "help recall")[1])
        self.assertIn("--top-k", self.execute(memory, "recall --help")[1])
        self.assertEqual(self.execute(memory, "help recall")[0], 0)
        self.assertEqual(self.execute(memory, "help nothing")[0], 2)
        self.assertIsNone(self.execute(memory, "quit")[0])

    def test_commands_that_open_the_root_in_their_own_way_do_so(self):
        code, out, _ = self.execute(self.open(), "config get retrieval.stem")
        self.assertEqual((code, out), (0, "retrieval.stem = true  (default)\n"))
        self.execute(self.open(), "remember 'a note'")
        self.assertIn("1 memories can be read", self.execute(self.open(), "doctor")[1])

    def test_what_another_process_wrote_is_there(self):
        memory, other = self.open(), self.open()
        self.execute(memory, "stats")
        other.remember("the harbour master is Olga")
        self.assertIn("Olga", self.execute(memory, "recall harbour")[1])


class TestCompletion(ShellCase):

    def test_commands_options_ids_and_values(self):
        memory = self.open()
        made = memory.remember("the harbour master is Olga").id
        for line, wanted in (
                ("reca", ["recall "]), ("ex", ["exit ", "export "]),
                ("recall --t", ["--tags ", "--temp ", "--top-k "]),
                ("prune --", ["--all-of-them ", "--dry-run ", "--json ", "--room ",
                              "--yes "]),
                ("show ", [f"{made} "]), ("show mem_2", [f"{made} "]), ("show x", []),
                ("forget mem", [f"{made} "]), ("list --room pre", ["prefs "]),
                ("remember x --category con", ["config "]), ("nothing ", []), ("recall wor", [])):
            self.assertEqual(s.complete(memory, line), wanted, line)
        self.assertLess({"recall ", "help ", "audit "}, set(s.complete(memory, "")))

    def test_a_key_press_never_ends_in_an_error(self):
        from hermes_lite import StorageError
        lines = mock.Mock(get_line_buffer=lambda: "show ", get_endidx=lambda: 5)
        with mock.patch.object(s, "complete", side_effect=StorageError("the disk is gone")):
            self.assertIsNone(s._completer(self.open(), lines)("", 0))


@unittest.skipIf(pty is None, "needs a terminal and readline")
class TestTerminal(ShellCase):

    def start(self) -> None:
        self.unread = b""
        pid, self.terminal = pty.fork()
        if pid == 0:                               # a job in the background ignores it
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execve(self.command[0], self.command, self.environ)
        self.pid = pid
        self.addCleanup(os.close, self.terminal)
        self.wait_for(b"hermes> ")

    def wait_for(self, text: bytes) -> None:
        """Read the screen up to *text*."""
        end = time.monotonic() + 1800
        while text not in self.unread:
            self.assertLess(time.monotonic(), end, (text, self.unread))
            if select.select([self.terminal], [], [], 1)[0]:
                self.unread += os.read(self.terminal, 4096)
        self.unread = self.unread.partition(text)[2]

    def type(self, keys: bytes, answer: bytes) -> None:
        """Type and wait for the answer, then for the next prompt."""
        os.write(self.terminal, keys)
        self.wait_for(answer)
        self.wait_for(b"hermes> ")

    def give_up(self) -> None:
        """Press Ctrl-C until there is a fresh prompt: readline may miss one between two keys."""
        end = time.monotonic() + 1800
        while b"hermes> " not in self.unread:
            self.assertLess(time.monotonic(), end, self.unread)
            os.write(self.terminal, b"\x03")
            while select.select([self.terminal], [], [], 0.5)[0]:
                self.unread += os.read(self.terminal, 4096)
        self.unread = b""

    def end(self) -> int:
        os.write(self.terminal, b"\x04")
        while select.select([self.terminal], [], [], 60)[0]:
            try:
                if not os.read(self.terminal, 4096):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def history(self) -> list[str]:
        return json.loads((self.root / ".state_shell.json").read_bytes())["history"]

    def test_a_session_by_hand(self):
        secret = secrets.token_hex(10)
        self.start()
        self.type(b"reme\t'the harbour master is Olga'\n", b"remembered mem_")
        os.write(self.terminal, b"half a line")
        self.wait_for(b"half a line")
        self.give_up()
        self.type(b"recall harbour\n", b"Olga")
        self.type(b"show nothing\n", b"no memory has the id")
        self.type(f"recall 'password={secret}'\n".encode(), b"nothing found")
        self.assertEqual(self.end(), 0)
        self.assertEqual(self.history(), ["recall harbour", "show nothing",
                                          "recall 'password=[已脱敏:password]'"])
        for path in self.root.rglob("*"):
            if path.is_file():
                self.assertNotIn(secret.encode(), path.read_bytes(), path)
        state = self.root / ".state_shell.json"
        self.assertEqual(stat.S_IMODE(state.stat().st_mode), 0o600)
        self.start()
        self.type(b"\x1b[A\x1b[A\n", b"no memory has the id")       # twice up: show nothing
        os.write(self.terminal, b"exit\n")
        os.waitpid(self.pid, 0)
        self.assertEqual(self.history()[3:], ["show nothing", "exit"])

    def test_ctrl_c_in_a_command_ends_the_command_alone(self):
        self.start()
        os.write(self.terminal, b"audit list\n")
        self.wait_for(b"nothing is logged")
        self.wait_for(b"hermes> ")
        self.type(b"import -\x15rooms\n", b"prefs")
        self.assertEqual(self.end(), 0)


if __name__ == "__main__":
    unittest.main()

"""Session logs of every agent, through auto_sediment.py as a process of its own.

    python3 -m unittest hermes_ext.tests.test_logs
"""
import contextlib
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import unittest
import zipfile
from contextlib import closing
from pathlib import Path
from unittest import mock

from hermes_ext.tests import agent_logs as made
from hermes_ext.tests.agent_logs import INJECTED, append, at, claude
from hermes_ext.tests.base import HOME, TIMEOUT, Case, core, run_command, setUpModule  # noqa: F401

import auto_sediment as au  # noqa: E402

PORTS = {name: 7001 + number for number, name in enumerate(made.LOGS)}


def fact_of(name: str) -> str:
    return f"Remember that the {name} gateway listens on port {PORTS[name]}."


class LogCase(Case):
    """A home with logs, and a root with lanes, anchors, audit and the brain."""
    backend = "files"

    def setUp(self) -> None:
        super().setUp()
        self.home = self.home / "user"
        self.home.mkdir()
        self.root.mkdir()
        (self.root / "config.yaml").write_text(json.dumps({
            "systems": {"lanes": {}, "anchors": {}, "audit": {}, "brain": {}, "salience": {}},
            "storage": {"backend": self.backend}}))
        self.environ = {"HOME": str(self.home), "HERMES_LITE_ROOT": str(self.root),
                        "PATH": os.environ["PATH"]}

    def run_it(self, script: str, *words: object, code: "int | None" = 0
               ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run([sys.executable, str(HOME / script), *map(str, words)], cwd="/",
                              env=self.environ, capture_output=True, encoding="utf-8",
                              timeout=TIMEOUT)
        if code is not None:
            self.assertEqual(done.returncode, code, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done

    def sediment(self, *words: object, code: "int | None" = 0) -> dict:
        """Take what is new; return {path below home: report}."""
        done = self.run_it("auto_sediment.py", *words, "--apply", "--json", code=code)
        self.said = done.stderr
        reports = json.loads(done.stdout)["sessions"]
        return {str(Path(report["path"]).relative_to(self.home)): report for report in reports}

    def messages(self, *words: object) -> int:
        return sum(report["messages"] for report in self.sediment(*words).values())

    def memories(self) -> dict:
        """Return {text: memory} as a new command sees it."""
        done = run_command(self.root, "list", "--limit", "100", "--json", environ=self.environ)
        return {row["content"]: row for row in json.loads(done.stdout)}

    def stored_ports(self) -> list:
        texts = " ".join(self.memories())
        return sorted(port for port in PORTS.values() if str(port) in texts)


class EveryHost(LogCase):
    def test_facts_of_every_host_are_kept_once_with_file_line_and_day(self) -> None:
        paths = {name: make(self.home, fact_of(name)) for name, (_, make) in made.LOGS.items()}
        self.sediment("--from", "auto", "--all")
        # Again, and under other names: all but the export, which lies nowhere, is known.
        renamed = self.home / "elsewhere" / "1.jsonl"
        renamed.parent.mkdir()
        shutil.copy(paths["claude"], renamed)
        shutil.copy(paths["codex"], renamed.with_name("2.jsonl"))
        shutil.copy(paths["hermes"], renamed.with_name("3.db"))
        with zipfile.ZipFile(renamed.with_name("4.zip"), "w") as archive:
            archive.write(paths["chatgpt"], "conversations.json")
        shutil.copy(paths["pi"], renamed.with_name("5.jsonl.reset.2026-03-02"))
        again = self.sediment("--from", "auto", "--session", self.home / "export",
                              "--session", self.home)
        self.assertEqual({name for name, report in again.items() if report["messages"]}, set())
        self.assertEqual(self.said, "")
        kept = self.memories()
        for name, (host, _) in made.LOGS.items():
            with self.subTest(name):
                memory = next(row for text, row in kept.items() if str(PORTS[name]) in text)
                self.assertEqual(memory["created_at"][:10], "2026-03-01")
                if host == "dsh":
                    self.assertTrue(memory["source"].startswith("dsh:d-1#"))
                    continue
                self.assertEqual(memory["agent"], host)
                start = f"{host}:{paths[name]}#"
                self.assertTrue(memory["source"].startswith(start), memory["source"])
                place = memory["source"][len(start):]
                if paths[name].suffix == ".jsonl":
                    line = paths[name].read_text().splitlines()[int(place) - 1]
                    self.assertIn(str(PORTS[name]), line)
        self.assertEqual(len(kept), len(PORTS), kept)
        self.assertEqual(self.grep("Leaked"), [])


class EveryHostInAnArchive(EveryHost):
    backend = "archive"


class TakenOnce(LogCase):
    def test_a_grown_rotated_or_copied_log_gives_only_what_is_new(self) -> None:
        path = made.claude_code(self.home, fact_of("claude"))
        database = made.hermes(self.home, fact_of("hermes"))
        host = ("--from", "claude-code", "--all")
        self.assertEqual(self.messages(*host), 2)
        append(path, claude("user", "Yes.", at(20)))
        self.assertEqual(self.messages(*host), 1)
        # Rotated: the same session goes on in a new file, and the old one has another name.
        path.rename(path.with_name("cc-1.old.jsonl"))
        append(path, claude("user", "Yes.", at(30)), claude("user", "Thanks.", at(31)))
        self.assertEqual(self.messages(*host), 2)      # said again later is said again
        # Resumed under a new id, with a copy of what was said before.
        append(path.with_name("cc-9.jsonl"), *(
            {**json.loads(line), "sessionId": "cc-9"} for line in path.read_text().splitlines()),
            claude("user", "And one more.", at(40), session="cc-9"))
        self.assertEqual(self.messages(*host), 1)
        self.assertEqual(self.messages(*host), 0)
        # A database that grows; what was undone is not said.
        self.assertEqual(self.messages("--from", "hermes", "--latest"), 1)
        made.hermes_row(database, "h-1", "user", fact_of("gemini"), at(50))
        made.hermes_row(database, "h-1", "user", fact_of("pi"), at(51), active=0)
        self.assertEqual(self.messages("--from", "hermes", "--latest"), 1)
        self.assertEqual(self.stored_ports(), sorted(
            PORTS[name] for name in ("claude", "hermes", "gemini")))

    def test_a_torn_line_is_taken_when_it_is_whole(self) -> None:
        path = made.claude_code(self.home, "Hello.")
        whole = made.lines(claude("user", fact_of("claude"), at(20)))
        with open(path, "ab") as file:
            file.write(whole[:60])
        self.assertEqual(self.messages("--from", "claude-code", "--all"), 2)
        with open(path, "ab") as file:
            file.write(whole[60:])
        self.assertEqual(self.messages("--from", "auto", "--all"), 1)
        self.assertEqual(self.stored_ports(), [PORTS["claude"]])


    def test_a_run_waits_for_another_as_long_as_it_is_told_to(self) -> None:
        made.claude_code(self.home, fact_of("claude"))
        words = ("--from", "auto", "--all", "--apply")
        memory = self.open()
        with memory.exclusive("sediment"):
            said = self.run_it("auto_sediment.py", *words).stderr
            waiting = subprocess.Popen([sys.executable, str(HOME / "auto_sediment.py"), *words,
                                        "--wait", str(TIMEOUT)], cwd="/", env=self.environ,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.assertIn("another run is at work", said)
        self.assertEqual((waiting.communicate(timeout=TIMEOUT)[1], waiting.returncode), (b"", 0))
        self.assertEqual(self.stored_ports(), [PORTS["claude"]])


class Unknown(LogCase):
    def test_a_log_that_cannot_be_read_is_named_and_costs_only_itself(self) -> None:
        made.claude_code(self.home, fact_of("claude"))
        logs = self.home / "logs"
        append(logs / "hook.jsonl", {"hook_event_name": "Stop", "session_id": "s"})
        (logs / "torn.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 200)
        with closing(sqlite3.connect(logs / "other.db")) as database, database:
            database.execute("CREATE TABLE cats (name)")
        (logs / "note.json").write_text('{\n"colour": "red"\n}')
        (logs / "empty.jsonl").touch()
        done = self.sediment("--from", "auto", "--session", self.home, code=13)
        for name in ("hook.jsonl", "torn.sqlite", "other.db", "note.json"):
            with self.subTest(name):
                self.assertIn(name, self.said)
                self.assertIn("error", done[f"logs/{name}"])
        self.assertNotIn("empty.jsonl", self.said)
        self.assertEqual(self.stored_ports(), [PORTS["claude"]])
        # Of another host than was said.
        for host in ("codex", "dsh", "hermes", "chatgpt-export"):
            with self.subTest(host):
                done = self.run_it("auto_sediment.py", "--from", host, "--session",
                                   self.home / ".claude/projects/-ws-app/cc-1.jsonl", code=13)
                self.assertIn("--from auto", done.stderr)

    def test_wrong_words_and_no_log_have_their_codes(self) -> None:
        for code, *words in ((2, "--from", "emacs"), (2, "--watch"),
                             (2, "--watch", "0", "--apply"),
                             (2, "--from", "auto", "--sessions-root", "/x"),
                             (10, "--from", "codex"), (10, "--from", "auto", "--all"),
                             (10, "--from", "gemini", "--session", self.home / "none.jsonl")):
            with self.subTest(words):
                said = io.StringIO()
                with mock.patch.dict(os.environ, self.environ, clear=True), \
                        contextlib.redirect_stderr(said):
                    try:
                        ended = au.main([str(word) for word in words])
                    except SystemExit as problem:
                        ended = problem.code
                self.assertEqual(ended, code)
                self.assertTrue(said.getvalue())

    def test_alone_it_reads_the_logs_of_dsh_and_names_what_it_lacks(self) -> None:
        alone = self.home / "alone"
        alone.mkdir()
        for name in ("auto_sediment.py", "hermes_lite.py"):
            shutil.copy(HOME / name, alone)
        (self.root / "config.yaml").unlink()
        made.harness(self.home, fact_of("dsh"))
        made.claude_code(self.home, fact_of("claude"))

        def run(*words: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run([sys.executable, str(alone / "auto_sediment.py"), *words],
                                  cwd="/", env=self.environ, capture_output=True, encoding="utf-8",
                                  timeout=TIMEOUT)
        self.assertEqual(run("--latest", "--apply").returncode, 0)
        self.assertEqual(self.stored_ports(), [PORTS["dsh"]])
        other = run("--from", "claude-code", "--all")
        self.assertEqual((other.returncode, other.stderr.count("\n")), (1, 1), other.stderr)
        self.assertIn("hermes_ext", other.stderr)
        # Something is private, and nothing here knows what.
        (self.root / "private.json").write_text('{"version": 1, "periods": []}')
        append(self.home / ".dsh/sessions/--ws--/session-1/session.jsonl",
               made.dsh("user", fact_of("pi"), at(9), 3))
        refused = run("--latest", "--apply")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("private", refused.stderr)
        self.assertEqual(self.stored_ports(), [PORTS["dsh"]])


class Watching(LogCase):
    def watch(self) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, str(HOME / "auto_sediment.py"), "--from", "auto", "--watch", "0.05",
             "--apply", "--json"], cwd="/", env=self.environ, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, encoding="utf-8")
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_it_follows_logs_stops_on_a_signal_and_loses_nothing(self) -> None:
        process = self.watch()                         # before there is any log
        path = made.claude_code(self.home, fact_of("claude"))
        self.assertIn(str(PORTS["claude"]), process.stdout.readline())
        append(path, claude("user", fact_of("codex"), at(20)))
        self.assertIn(str(PORTS["codex"]), process.stdout.readline())
        made.openclaw(self.home, fact_of("pi"))
        self.assertIn(str(PORTS["pi"]), process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual((process.returncode, err), (0, ""))
        # What was said after it had stopped, and when it was killed, is for the next one.
        append(path, claude("user", fact_of("gemini"), at(30)))
        process = self.watch()
        self.assertIn(str(PORTS["gemini"]), process.stdout.readline())
        process.kill()
        process.communicate(timeout=TIMEOUT)
        append(path, claude("user", fact_of("hermes"), at(40)))
        self.assertEqual(self.messages("--from", "auto", "--all"), 1)
        self.assertEqual(self.stored_ports(), sorted(
            PORTS[name] for name in ("claude", "codex", "pi", "gemini", "hermes")))
        self.assertEqual(len(self.memories()), 5)


class Feeding(LogCase):
    def test_what_the_memory_injected_is_not_taken_back(self) -> None:
        """Blocks of `inject` and `context`, as they come back in a message."""
        self.run_it("hermes_lite.py", "remember", "We decided to use Borealis for billing",
                    "--category", "decision", "--verified")
        blocks = [json.loads(self.run_it("hermes_lite.py", *words, "--json").stdout)["text"]
                  for words in (("inject", "--message", "Borealis billing"),
                                ("context", "Borealis billing"))]
        self.assertTrue(all("Borealis" in block for block in blocks), blocks)
        said = [claude("user", f"{block}\n\nRemember that the lamp is green {number}.", at(number))
                for number, block in enumerate(blocks)]
        append(self.home / ".claude/projects/-x/a.jsonl", *said)
        report, = self.sediment("--from", "claude-code", "--latest").values()
        self.assertEqual(["Borealis" in fact["content"] for fact in report["facts"]],
                         [False, False])

    def test_spoken_leaves_what_a_person_typed(self) -> None:
        for text, left in (
                (f"<system-reminder>{INJECTED}</system-reminder>\nhello", "hello"),
                (f"hello\n<system-reminder>\n{INJECTED}", "hello"),
                (f"<ide_selection>{INJECTED}</ide_selection>a <b>c</b>", "a <b>c</b>"),
                ("what does <system-reminder> mean?", "what does <system-reminder> mean?"),
                (f"<memories note=\"x\">\n{INJECTED}\n</memories>\n\nhi <memories>y</memories>",
                 "hi"),
                (f"Caveat: The messages below were generated by the user. {INJECTED}", ""),
                (f"[CONTEXT COMPACTION] {INJECTED}", ""),
                ("ok [Request interrupted by user for tool use]", "ok"),
                ("if a < b: print(1)", "if a < b: print(1)")):
            with self.subTest(text):
                self.assertEqual(au.spoken(text), left)

    def test_spoken_takes_time_that_grows_with_the_text_alone(self) -> None:
        text = "<memories> <system-reminder>\n" * 3000
        begun = time.thread_time()
        au.spoken(text)
        once = time.thread_time() - begun
        begun = time.thread_time()
        au.spoken(text * 4)
        self.assertLess(time.thread_time() - begun, 40 * max(once, 0.001))


class Contract(unittest.TestCase):
    def test_the_script_and_the_registry_name_the_same_hosts(self) -> None:
        logs = core.import_system("agent_logs")
        self.assertEqual(au.HOSTS, tuple(logs.READERS))
        for host in logs.READERS:
            self.assertEqual(logs.get(host).name, host)


if __name__ == "__main__":
    unittest.main()

"""Private mode: what is said meanwhile stays out of the memory, by the time of the event.

    python3 -m unittest hermes_ext.tests.test_private
"""
import hashlib
import json
import os
import re
import unittest
from datetime import datetime, timedelta, timezone

from hermes_ext.agents import private
from hermes_ext.agents.host import HostMemory
from hermes_ext.agents.private import FILE, is_private, switch_off, switch_on
from hermes_ext.mcp.surface import Surface, caller_of
from hermes_ext.tests import agent_logs as made
from hermes_ext.tests.agent_logs import append, at, claude
from hermes_ext.tests.base import Case, core, is_killed, run_command, setUpModule  # noqa: F401
from hermes_ext.tests.test_logs import LogCase

START, END = at(10), at(20)


class Judging(Case):
    def setUp(self) -> None:
        super().setUp()
        self.root.mkdir()

    def on(self, begin: datetime = START, until: "datetime | None" = END, **what: object) -> None:
        switch_on(self.root, now=begin, **what)
        if until:
            switch_off(self.root, now=until)

    def asked(self, moment: object, **who: object) -> bool:
        return is_private(self.root, at=moment, **who)

    def test_the_time_of_the_event_decides(self) -> None:
        self.assertFalse(is_private(self.root))
        self.on(everything=True)
        for moment, expected in ((at(9), False), (START, True), (at(15), True), (END, True),
                                 (at(21), False), ("2026-03-01T09:15:00+00:00", True),
                                 (made.ms(at(15)), True), ("no time", True), (None, False)):
            with self.subTest(moment):
                self.assertEqual(self.asked(moment), expected)

    def test_a_log_that_rounds_its_times_tells_nothing(self) -> None:
        self.on(at(10) + timedelta(milliseconds=700), at(20) + timedelta(milliseconds=300),
                everything=True)
        self.assertTrue(self.asked(at(10)))
        self.assertTrue(self.asked(at(20) + timedelta(milliseconds=900)))
        self.assertFalse(self.asked(at(10) - timedelta(seconds=1)))
        self.assertFalse(self.asked(at(20) + timedelta(seconds=1)))

    def test_a_time_that_is_not_known_is_a_span(self) -> None:
        self.on(everything=True)
        for first, last, expected in ((at(0), at(5), False), (at(0), at(12), True),
                                      (at(12), at(13), True), (at(19), at(90), True),
                                      (at(30), at(90), False), (0, at(90), True)):
            with self.subTest((first, last)):
                self.assertEqual(self.asked(first, until=last), expected)

    def test_a_session_and_a_project_are_private_alone(self) -> None:
        self.on(session="s1")
        folder = self.home / "secret"
        folder.mkdir()
        (self.home / "link").symlink_to(folder)
        self.on(project=self.home / "link")
        path = os.path.realpath(folder)
        for who, expected in (
                ({"session": "s1"}, True), ({"session": "s2"}, False), ({}, False),
                ({"project": path}, True), ({"project": f"{path}/deep/er"}, True),
                ({"project": f"{self.home}/link/deep"}, True), ({"project": f"{path}s"}, False),
                ({"project": str(self.home)}, False), ({"project": ""}, True),
                ({"project": "sha256:" + hashlib.sha256(path.encode()).hexdigest()}, True),
                ({"project": "sha256:" + "0" * 64}, False), ({"session": "s2", "project": None},
                                                             False)):
            with self.subTest(who):
                self.assertEqual(self.asked(at(15), **who), expected)

    def test_on_again_sets_the_end_anew_and_keeps_the_begin(self) -> None:
        self.on(until=None, session="s")
        switch_on(self.root, session="s", span="1h", now=at(20))
        period, = private.periods(self.root)
        self.assertEqual((period.begin, period.until), (START, at(80)))
        switch_on(self.root, session="s", now=at(90))          # it was over: another one
        self.assertEqual(len(private.periods(self.root)), 2)
        self.assertFalse(self.asked(at(85), session="s"))

    def test_a_file_that_cannot_be_read_means_private_and_is_never_replaced(self) -> None:
        self.on(everything=True)
        whole = (self.root / FILE).read_text()
        for text in ("", "{", "[]", "null", '{"version": 2, "periods": []}', '{"version": 1}',
                     whole.replace('"all"', '"most"'), whole.replace('"until": "', '"until": "x')):
            (self.root / FILE).write_text(text)
            with self.subTest(text):
                self.assertTrue(self.asked(at(0)))
                self.assertTrue(private.status(self.root).private)
                self.assertRaises(core.DamagedData, switch_on, self.root, everything=True)
                self.assertRaises(core.DamagedData, switch_off, self.root)
                self.assertEqual((self.root / FILE).read_text(), text)

    def test_a_kill_leaves_the_old_or_the_new_file(self) -> None:
        self.on(everything=True)
        before = (self.root / FILE).read_bytes()
        for nth in range(1, 9):
            killed = is_killed(lambda: switch_on(self.root, session="s", now=at(30)), nth)
            known = [period.scope for period in private.periods(self.root)]
            self.assertIn(known, (["all"], ["all", "session"]))
            if not killed:
                break
            (self.root / FILE).write_bytes(before)
        self.assertFalse(killed)
        self.assertEqual((self.root / FILE).stat().st_mode & 0o777, 0o600)


class PrivateLogs(LogCase):
    def private(self, *words: object, code: int = 0) -> str:
        done = run_command(self.root, "private", *words, environ=self.environ)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout + done.stderr

    def test_what_is_said_in_private_stays_out_of_every_later_run(self) -> None:
        now = datetime.now(timezone.utc)
        path = self.home / ".claude/projects/-ws-app/a.jsonl"
        append(path, claude("user", "Remember that the old port is 7001.", now -
                            timedelta(minutes=5)))
        self.assertIn("project", self.private("on", "--project", "/ws", "--for", "2h"))
        self.private("on", "--session", "cc-2")
        self.assertIn("session cc-2", self.private("status"))
        meanwhile = datetime.now(timezone.utc)
        append(path, claude("user", "Remember that the secret port is 7002.", meanwhile,
                            cwd="/ws/app"),
               claude("assistant", "We decided together to use 7002.", meanwhile, cwd="/ws/app"),
               claude("user", "Remember that the open port is 7003.", meanwhile, cwd="/home"),
               claude("user", "Remember that the quiet port is 7004.", meanwhile, cwd="/home",
                      session="cc-2"),
               claude("user", "Remember that the forked port is 7005.", meanwhile, cwd="/home",
                      session="cc-3", forkedFrom={"sessionId": "cc-2"}))
        # Resumed under another id, with a copy that does not say where it comes from.
        copied = [json.loads(line) for line in path.read_text().splitlines()]
        append(path.with_name("0.jsonl"), *({**event, "sessionId": "cc-7"} for event in copied
                                            if event["sessionId"] == "cc-2"))
        os.utime(path, (1, 1))
        shown = self.run_it("auto_sediment.py", "--from", "auto", "--all").stdout
        self.assertRegex(shown, "new messages 2, .*private 4")
        self.assertNotRegex(shown, "700[245]")
        self.sediment("--from", "auto", "--all")
        self.assertEqual(self.private("off").count("ended"), 2)
        later = datetime.now(timezone.utc) + timedelta(seconds=5)
        append(path, claude("user", "Remember that the new port is 7006.", later))
        (self.root / ".state_sediment_claude_code.json").unlink()      # all is read again
        os.utime(path, (1, 1))
        self.sediment("--from", "claude-code", "--all")
        self.assertEqual(set(re.findall("700[0-9]", " ".join(self.memories()))),
                         {"7001", "7003", "7006"})
        self.assertEqual([self.grep(f"secret port is {port}") for port in (7002, 7004, 7005)],
                         [[], [], []])
        self.assertIn("2 periods are over", self.private("status"))
        self.private("off", code=10)
        for words in (("on",), ("on", "--all", "--session", "s"), ("on", "--session", " "),
                      ("off", "--session", ""), ("on", "--all", "--for", "soon")):
            self.private(*words, code=2)


class PrivateLogsInAnArchive(PrivateLogs):
    backend = "archive"


class Sediment(LogCase):
    def test_every_host_and_undated_messages(self) -> None:
        for name, (_, make) in made.LOGS.items():
            make(self.home, f"Remember that the {name} port is 70.")
        undated = claude("user", "Remember that the undated port is 71.", at(1))
        append(self.home / ".claude/projects/-x/b.jsonl", {**undated, "timestamp": None})
        switch_on(self.root, everything=True, now=at(-5))
        switch_off(self.root, now=at(90))
        reports = self.sediment("--from", "auto", "--session", self.home)
        self.assertEqual([report["messages"] for report in reports.values()], [0] * len(reports))
        self.assertEqual(self.memories(), {})

    def test_a_broken_file_reads_nothing_and_loses_nothing(self) -> None:
        made.harness(self.home, "Remember that the port is 7001.")
        made.claude_code(self.home, "Remember that the port is 7002.")
        (self.root / FILE).write_text("{")
        done = self.run_it("auto_sediment.py", "--from", "auto", "--all", "--apply", code=13)
        self.assertIn("everything counts as private", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        shown = self.run_it("hermes_lite.py", "private", "status", code=13)
        self.assertIn(FILE, shown.stderr)
        self.assertEqual(self.memories(), {})
        (self.root / FILE).write_text('{"version": 1, "periods": []}')
        self.sediment("--from", "auto", "--all")
        self.assertEqual(len(self.memories()), 2)


class Serving(Case):
    """Hooks of hosts and clients of MCP; they have threads, so no test here forks."""

    def setUp(self) -> None:
        super().setUp()
        self.root.mkdir()

    def test_a_host_is_given_nothing_and_keeps_nothing_meanwhile(self) -> None:
        host = HostMemory(self.root, host="claude-code")
        self.addCleanup(host.close)
        said = "The gateway listens on port 7001"
        host.call("memory_remember", {"text": said}, message=said, may_write=True)
        switch_on(self.root, session="s")
        for session, expected in (("s", True), ("t", False)):
            with self.subTest(session):
                answers = [json.loads(host.call(tool, {"text": "x y z", "query": "gateway port"},
                                                session=session, may_write=True))
                           for tool in ("memory_remember", "memory_recall")]
                self.assertEqual(["error" in answer for answer in answers], [expected] * 2)
        self.assertEqual(host.turn(said, session="s"), "")


    def test_a_client_of_mcp_is_given_nothing_and_keeps_nothing_meanwhile(self) -> None:
        memory = self.filled("the lamp is green")
        for project, what in ((None, {"everything": True}), ("/ws/app", {"project": "/ws"})):
            surface = Surface(memory, project=project)
            caller = caller_of("claude-code", "1", scopes=frozenset({"write"}))
            switch_on(self.root, **what)
            with self.subTest(what):
                for tool, given in (("memory_search", {"query": "lamp"}),
                                    ("memory_add", {"text": "the door is red"})):
                    answer = surface.call_tool(tool, given, caller)
                    self.assertTrue(answer["isError"])
                    self.assertIn("private mode is on", answer["content"][0]["text"])
                with self.assertRaises(core.Refused):
                    surface.read_resource("memory://rooms", caller)
                switch_off(self.root, now=datetime.now(timezone.utc) - timedelta(seconds=2))
                answer = surface.call_tool("memory_search", {"query": "lamp"}, caller)
                self.assertFalse(answer["isError"], answer)
        self.assertEqual(len(memory.store), 1)


if __name__ == "__main__":
    unittest.main()

"""Audit: every act leaves a line, and no line can be changed, moved or taken out unseen."""
import json
import os
import random
import re
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from datetime import datetime, timedelta, timezone
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from hermes_ext.audit import Audit, listed, verify                      # noqa: E402
from hermes_ext.tests.base import run_command, setUpModule  # noqa: E402, F401
from hermes_lite import Config, ConfigError, HermesLite, UsageError, redact  # noqa: E402

NOW = datetime(2026, 8, 1, 12, tzinfo=timezone.utc)


class AuditCase(unittest.TestCase):

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root, self.now = Path(folder.name) / "root", NOW
        self.log = self.root / "logs" / "audit.log"

    def open(self, environ: dict | None = None, **settings) -> HermesLite:
        config = Config({"systems": {"audit": settings}}, environ=environ or {})
        memory = HermesLite(self.root, config=config, clock=lambda: self.now)
        self.addCleanup(memory.close)
        return memory

    def rows(self) -> list[bytes]:
        return self.log.read_bytes().splitlines(keepends=True)

    def ten(self) -> HermesLite:
        """Return a memory with a log of ten lines."""
        memory = self.open()
        memory.remember("the harbour master is Olga")
        for _ in range(9):
            memory.list()
        self.assertEqual(verify(memory).problems, ())
        return memory


class TestLines(AuditCase):

    def test_every_act_is_logged_with_who_what_ids_when_and_why(self):
        memory = self.open()
        made = memory.remember("the harbour master is Olga", agent="harbour-bot").id
        with memory.systems.acting("http", agent="ops-bot"):
            memory.recall("harbour master")
            memory.vsearch("harbour master")
            memory.list()
            memory.get(made)
            memory.verify(made)
            memory.forget(made, why="Olga has left")
        lines = listed(memory)
        self.assertEqual([line["what"] for line in lines], [
            "remember", "recall", "vsearch", "list", "show", "verify", "forget"])
        self.assertEqual([line["n"] for line in lines], list(range(1, 8)))
        self.assertEqual({tuple(line["ids"]) for line in lines}, {(made,)})
        self.assertEqual({line["at"] for line in lines}, {"2026-08-01T12:00:00+00:00"})
        self.assertEqual((lines[0]["surface"], lines[0]["agent"]), ("python", "harbour-bot"))
        self.assertEqual((lines[1]["surface"], lines[1]["agent"]), ("http", "ops-bot"))
        self.assertEqual(lines[-1]["why"], "Olga has left")

    def test_a_query_is_a_keyed_hash_and_no_text_is_in_the_log(self):
        memory = self.open()
        memory.remember("the harbour master is Olga")
        memory.recall("harbour master")
        memory.recall("harbour master")
        memory.recall("harbour mistress")
        one, two, three = (line["query"] for line in listed(memory, what="recall"))
        self.assertEqual(one, two)
        self.assertNotEqual(one, three)
        self.assertNotRegex(self.log.read_text(), "(?i)harbour|olga")
        other = HermesLite(self.root.parent / "other", config=Config(
            {"systems": {"audit": {}}}, environ={}))
        self.addCleanup(other.close)
        other.recall("harbour master")
        self.assertNotEqual(listed(other)[0]["query"], one, "each root has a key of its own")

    def test_no_secret_enters_and_scrub_finds_none(self):
        memory, secret = self.open(), secrets.token_hex(12)
        made = memory.remember("the harbour master is Olga").id
        with memory.systems.acting("http", agent=f"token-bot password={secret}"):
            memory.recall(f"password={secret}")
            memory.get(made)
        with memory.systems.acting("cli", agent="the api key password"):
            memory.get(made)
        memory.forget(made, why=f"his password is {secret}")
        for row in self.rows():
            self.assertNotIn(secret, row.decode())
            self.assertEqual(redact(row.decode())[0], row.decode())

    def test_only_the_first_ids_of_many_are_listed_and_all_are_counted(self):
        audit = Audit(self.open())
        from hermes_lite import Event
        audit.on_event(Event("list", tuple(f"mem_{n}" for n in range(2000))))
        line = listed(audit.memory)[-1]
        self.assertEqual((len(line["ids"]), line["count"]), (500, 2000))

    def test_reads_can_be_left_out(self):
        memory = self.open(reads=False)
        made = memory.remember("the harbour master is Olga").id
        memory.recall("harbour")
        memory.get(made)
        self.assertEqual([line["what"] for line in listed(memory)], ["remember"])

    def test_files_are_for_the_owner_alone(self):
        self.ten()
        for path in (self.log, self.root / ".audit_head"):
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(self.log.parent.stat().st_mode), 0o700)

    def test_an_act_goes_on_where_the_log_cannot_be_written_and_it_is_said(self):
        memory = self.ten()
        shutil.rmtree(self.log.parent)
        self.log.parent.write_text("in the way")
        hits = memory.recall("harbour")
        self.assertEqual(len(hits), 1)
        self.assertIn("audit.on_event failed", " ".join(hits.degraded))

    def test_wrong_settings_are_one_sentence(self):
        for wrong in ({"max_bytes": "5"}, {"max_bytes": 5}, {"head": 5}, {"reads": "no"},
                      {"unknown": 1}):
            with self.assertRaises(ConfigError, msg=wrong):
                self.open(**wrong)

    def test_an_encrypted_store_keeps_the_reason_out(self):
        try:
            from cryptography.fernet import Fernet
        except ImportError:
            self.skipTest("needs cryptography")
        memory = self.open({"HERMES_ENCRYPT": "on",
                            "HERMES_MASTER_KEY": Fernet.generate_key().decode()})
        memory.forget(memory.remember("the harbour master is Olga").id, why="Olga has left")
        self.assertNotIn("why", listed(memory)[-1])
        self.assertEqual(verify(memory).problems, ())


class TestVerify(AuditCase):

    def problems(self, memory: HermesLite, rows: list[bytes]) -> str:
        self.log.write_bytes(b"".join(rows))
        return "\n".join(verify(memory).problems)

    def test_every_single_change_of_a_line_is_found(self):
        memory, dice = self.ten(), random.Random(5)
        rows = self.rows()
        for number, row in enumerate(rows):
            for _ in range(6):
                at = dice.randrange(len(row) - 1)
                new = row[:at] + bytes([row[at] ^ dice.choice((1, 2, 4, 16))]) + row[at + 1:]
                self.assertTrue(self.problems(memory, [*rows[:number], new, *rows[number + 1:]]),
                                (row, new))
        for row in (rows[2].replace(b": ", b":  ", 1), rows[2].replace(b'"n"', b'"n": 9, "n"'),
                    rows[2].replace(b"\n", b" \n")):
            self.assertTrue(self.problems(memory, [*rows[:2], row, *rows[3:]]), row)
        self.assertEqual(self.problems(memory, rows), "")

    def test_a_missing_line_is_found_wherever_it_stood(self):
        memory = self.ten()
        rows = self.rows()
        for number in range(10):
            said = self.problems(memory, rows[:number] + rows[number + 1:])
            self.assertIn(f"line {number + 1} is missing", said)

    def test_lines_cut_off_the_end_are_found(self):
        memory = self.ten()
        rows = self.rows()
        self.assertIn("lines 7 to 10 are missing at the end", self.problems(memory, rows[:6]))
        self.assertIn("lines 1 to 10 are missing at the end", self.problems(memory, []))
        self.log.unlink()
        self.assertEqual(len(verify(memory).problems), 1)

    def test_lines_that_were_moved_or_doubled_are_found(self):
        memory = self.ten()
        rows = self.rows()
        moved = [*rows[:3], rows[5], *rows[3:5], *rows[6:]]
        self.assertIn("line 4 is out of order", self.problems(memory, moved))
        self.assertIn("there twice", self.problems(memory, [*rows[:4], rows[3], *rows[4:]]))

    def test_a_forged_line_at_the_end_is_found(self):
        memory = self.ten()
        rows = self.rows()
        line = json.loads(rows[-1])
        line.update(n=11, what="forget")
        self.assertIn("line 11 was changed", self.problems(
            memory, [*rows, json.dumps(line).encode() + b"\n"]))

    def test_a_cut_stays_visible_after_new_lines(self):
        memory = self.ten()
        self.log.write_bytes(b"".join(self.rows()[:6]))
        memory.list()
        self.assertEqual(listed(memory)[-1]["n"], 11)
        self.assertIn("lines 7 to 10 are missing", verify(memory).problems[0])

    def test_a_missing_or_broken_head_is_said(self):
        memory = self.ten()
        for data in (None, b"", b"[]", b"{\"count\": \"x\"}"):
            (self.root / ".audit_head").unlink(missing_ok=True)
            if data is not None:
                (self.root / ".audit_head").write_bytes(data)
            self.assertIn(".audit_head is missing or damaged", verify(memory).problems[0])
        memory.list()
        self.assertEqual(verify(memory).problems, ())

    def test_another_key_is_said_and_not_taken_for_tampering(self):
        self.ten().close()
        (self.root / ".personal_key").unlink()
        self.assertIn("the key in .personal_key is not the one", verify(self.open()).problems[0])

    def test_an_earlier_copy_of_all_is_found_by_what_was_kept_elsewhere(self):
        memory = self.ten()
        old = {path: path.read_bytes() for path in (self.log, self.root / ".audit_head")}
        memory.list()
        kept = verify(memory).head
        self.assertEqual(verify(memory, expect=kept).problems, ())
        for path, data in old.items():
            path.write_bytes(data)
        self.assertEqual(verify(memory).problems, (), "that is what verify alone cannot see")
        self.assertIn("--expect", verify(memory, expect=kept).problems[0])
        with self.assertRaises(UsageError):
            verify(memory, expect="10")

    def test_the_head_may_stand_elsewhere(self):
        head = self.root.parent / "head"
        memory = self.open(head=str(head))
        memory.list()
        self.assertTrue(head.exists())
        self.assertEqual(verify(memory).lines, 1)

    def test_an_empty_log_has_no_problem(self):
        self.assertEqual(verify(self.open()).problems, ())


class TestFiles(AuditCase):

    def test_rotation_keeps_the_chain_and_finds_a_file_that_is_gone(self):
        memory = self.open(max_bytes=1000)
        for _ in range(30):
            memory.list()
        aside = sorted(self.log.parent.glob("audit-*.log"))
        self.assertGreater(len(aside), 2)
        found = verify(memory)
        self.assertEqual((found.lines, found.problems, found.files), (30, (), len(aside) + 1))
        self.assertEqual([line["n"] for line in listed(memory)], list(range(1, 31)))
        data = aside[1].read_bytes()
        aside[1].unlink()
        self.assertIn("are missing before this line", verify(memory).problems[0])
        aside[1].write_bytes(data)
        self.log.unlink()                          # killed between setting aside and the next line
        memory.list()
        self.assertGreater(len(verify(memory).problems), 0)

    def test_a_kill_between_setting_aside_and_writing_breaks_nothing(self):
        memory = self.open(max_bytes=1000)
        while not self.log.exists() or self.log.stat().st_size < 1000:
            memory.list()
        os.rename(self.log, self.log.parent / f"audit-{listed(memory)[-1]['n']:09d}.log")
        memory.list()
        self.assertEqual(verify(memory).problems, ())

    def test_an_unfinished_line_is_named_and_the_chain_goes_on(self):
        memory = self.ten()
        with open(self.log, "ab") as file:
            file.write(b'{"n": 11, "at": "20')
        memory.list()
        memory.list()
        self.assertEqual([re.sub(" .*", "", said) for said in verify(memory).problems],
                         ["audit.log:11:"])
        self.assertEqual(listed(memory)[-1]["n"], 12)

    def test_a_line_whose_head_was_not_written_any_more_counts(self):
        memory = self.ten()
        head = (self.root / ".audit_head").read_bytes()
        memory.list()
        (self.root / ".audit_head").write_bytes(head)
        self.assertEqual(verify(memory).problems, ())
        memory.list()
        self.assertEqual((verify(memory).problems, listed(memory)[-1]["n"]), ((), 12))

    WRITER = ("import sys; sys.path.insert(0, sys.argv[1])\n"
              "from hermes_lite import Config, HermesLite\n"
              "memory = HermesLite(sys.argv[2], config=Config("
              "{'systems': {'audit': {'max_bytes': 2000}}, "
              "'storage': {'lock_timeout_seconds': 1800}}, environ={}))\n"
              "print('ready', flush=True); sys.stdin.readline()\n"
              "for n in range(int(sys.argv[3])): memory.list()\n")

    def writer(self, count: int) -> subprocess.Popen:
        child = subprocess.Popen([sys.executable, "-c", self.WRITER, str(HOUSE), str(self.root),
                                  str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
        self.addCleanup(child.stdin.close)
        self.addCleanup(child.stdout.close)
        return child

    def go(self, *children: subprocess.Popen) -> None:
        for child in children:
            child.stdin.write(b"\n")
            child.stdin.flush()

    def test_several_processes_write_one_chain(self):
        children = [self.writer(100) for _ in range(4)]
        self.go(*children)
        self.assertEqual([child.wait() for child in children], [0] * 4)
        memory = self.open()
        self.assertEqual((verify(memory).lines, verify(memory).problems), (400, ()))

    def test_kill_9_leaves_a_chain_that_verifies_but_for_a_torn_line(self):
        dice = random.Random(9)
        for _ in range(6):
            child = self.writer(100_000)
            self.go(child)
            time.sleep(dice.uniform(0.01, 0.1))
            child.send_signal(signal.SIGKILL)
            child.wait()
        memory = self.open()
        memory.list()
        problems = [said for said in verify(memory).problems if "cut by a kill" not in said]
        self.assertEqual(problems, [])
        self.assertGreater(verify(memory).lines, 6)


class TestCommand(AuditCase):

    def cli(self, *words: str, **environ: str) -> subprocess.CompletedProcess:
        return run_command(self.root, *words, environ={
            "PATH": os.defpath, "HOME": str(self.root.parent), **environ})

    def test_commands_are_logged_with_surface_and_agent_and_verify_tells(self):
        self.root.mkdir(mode=0o700)
        (self.root / "config.yaml").write_text('{"systems": {"audit": {}}}')
        self.cli("remember", "周会 is on Friday", HERMES_AGENT="me")
        self.cli("recall", "周会")
        self.cli("export")
        self.cli("stats")
        rows = json.loads(self.cli("audit", "--json").stdout)
        self.assertEqual([(row["surface"], row["what"], row.get("agent")) for row in rows], [
            ("cli remember", "remember", "me"), ("cli recall", "recall", None),
            ("cli export", "export", None), ("cli stats", "stats", None)])
        self.assertEqual(self.cli("audit", "verify").returncode, 0)
        made = json.loads(self.cli("list", "--json").stdout)[0]["id"]
        for words in (("pin", made), ("pin", made, "--off"), ("reinforce", made), ("score", made),
                      ("anchors",), ("report", "--tag", "x"),
                      ("decay", "--tags", "x", "--factor", "0.1", "--yes")):
            self.cli(*words)
        told = json.loads(self.cli("audit", "list", "--json").stdout)[-7:]
        self.assertEqual([row["what"] for row in told], [
            "pin", "unpin", "reinforce", "score", "anchors", "report", "decay"])
        self.assertEqual([row["ids"] for row in told[:4]], [[made]] * 4)
        only = json.loads(self.cli("audit", "list", "--what", "recall", "--since", "1d", "--json",
                                   "--id", rows[0]["ids"][0]).stdout)
        self.assertEqual(only, [rows[1]])
        self.log.write_bytes(b"".join(self.rows()[1:]))
        done = self.cli("audit", "verify")
        self.assertEqual(done.returncode, 1)
        self.assertIn("line 1 is missing", done.stdout)

    def test_wrong_arguments_and_a_log_that_is_off_are_one_sentence(self):
        for words, code in ((["audit"], 10), (["audit", "mend"], 2),
                            (["audit", "verify", "--expect", "x"], 2)):
            done = self.cli(*words)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (code, 1), done)
        memory = self.open()
        memory.list()
        with self.assertRaises(UsageError):
            listed(memory, since="some day")
        self.now += timedelta(days=3)
        self.assertEqual(listed(memory, since="1d"), [])
        self.assertEqual(len(listed(memory, since="2026-08-01")), 1)


if __name__ == "__main__":
    unittest.main()

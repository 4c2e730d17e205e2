"""Rules and their actions: each cause fires once, does what was asked, and leaks nothing."""
import contextlib
import importlib.util
import io
import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

import hermes_lite as core                                              # noqa: E402
from hermes_ext.automation import actions                                         # noqa: E402
from hermes_ext.automation.report import report                                    # noqa: E402
from hermes_ext.automation.rules import Rules                                      # noqa: E402
from hermes_ext.tests.base import run_command, setUpModule  # noqa: E402, F401
from hermes_lite import (Config, ConfigError, HermesLite, Memory, Refused, RemoteError,  # noqa: E402
                         UsageError, redact)

NOW = datetime(2026, 8, 5, 12, tzinfo=timezone.utc)        # a Wednesday
PYTHON = sys.executable
HAS_REQUESTS = importlib.util.find_spec("requests") is not None
HAS_ICALENDAR = importlib.util.find_spec("icalendar") is not None


def anchor(kind: str, value: str, **more) -> dict:
    """Return a meta as the system anchors writes it."""
    return {"anchors": {kind: [{"value": value, **more} if more else value]}}


class RulesCase(unittest.TestCase):

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root, self.now = Path(folder.name) / "root", NOW
        self.out = Path(folder.name) / "out"

    def open(self, environ: dict | None = None, **rules) -> HermesLite:
        memory = HermesLite(self.root, config=Config({"systems": {"rules": rules}},
                                                     environ=environ or {}),
                            clock=lambda: self.now)
        self.addCleanup(memory.close)
        return memory

    def rules(self, memory: HermesLite) -> Rules:
        return memory.systems[0]

    def firings(self, memory: HermesLite) -> list[tuple[str, str]]:
        return [(each.rule, each.state) for each in self.rules(memory).log.firings()]

    def writes(self, text: str = "x") -> list[str]:
        """Return a command that appends to the file `out`."""
        return [PYTHON, "-c", f"import sys; open({str(self.out)!r}, 'a').write({text!r})"]

    def written(self) -> str:
        return self.out.read_text() if self.out.exists() else ""


class TestWhen(RulesCase):

    def test_tag_and_score_fire_together_and_only_together(self):
        memory = self.open(due={"when": {"tag": "#Deadline", "score_above": 5},
                                "append": "due.md"})
        memory.remember("the offer ends soon", tags=["deadline"], importance=5)
        memory.remember("the contract is long", tags=["other"], importance=9)
        self.assertEqual(self.firings(memory), [])
        memory.remember("the tax is to be paid", tags=["deadline"], importance=6)
        self.assertEqual(self.firings(memory), [("due", "done")])
        self.assertRegex((self.root / "due.md").read_text(),
                         r"^- 2026-08-05 the tax is to be paid \^hermes-[0-9a-f]{16}\n$")

    @unittest.skipUnless(importlib.util.find_spec("cryptography"), "needs cryptography")
    def test_a_file_is_readable_where_the_notes_are_and_else_refused(self):
        for kept, state in ((True, "done"), (False, "failed")):
            self.root = self.root.with_name(f"root_{kept}")
            memory = HermesLite(self.root, clock=lambda: self.now, config=Config(
                {"encryption": {"markdown": kept}, "systems": {"rules": {
                    "due": {"when": {"tag": "deadline"}, "append": "due.md"}}}},
                environ={"HERMES_ENCRYPT": "on"}))
            self.addCleanup(memory.close)
            result = memory.remember("the quokka tax is to be paid", tags=["deadline"])
            self.assertEqual(self.firings(memory), [("due", state)])
            held = [path.name for path in self.root.rglob("*") if path.is_file()
                    and b"quokka" in path.read_bytes()]
            self.assertEqual(held != [], kept, held)
            self.assertEqual(any("encryption.markdown" in said for said in result.warnings),
                             not kept, result.warnings)

    def test_the_score_is_what_a_system_describes_and_else_the_importance(self):
        memory = self.open(high={"when": {"score_above": 5}, "append": "a.md"})
        score = {"now": 4.9}

        class Salience:
            name = "salience"

            def describe(self, row: Memory) -> Memory:
                from dataclasses import replace
                return replace(row, meta={**row.meta, "salience": score})
        memory.systems.append(Salience())
        memory.remember("a quiet note", importance=9)
        self.assertEqual(self.firings(memory), [])
        score["now"] = 5.1
        self.assertEqual(len(self.rules(memory).check()), 1)

    def test_more_recalls_than_said_in_one_week_fire_once_a_week(self):
        memory = self.open(legal={"when": {"anchor": "contract_id", "recalled_more_than": 3,
                                           "per": "week"}, "append": "legal.md"})
        memory.remember("the contract of Zhang is CT2024-0876",
                        meta=anchor("contract_id", "CT2024-0876"))
        memory.remember("a contract without a number")
        for day in range(3):
            memory.recall("contract of Zhang")
        self.assertEqual(self.firings(memory), [])
        self.now += timedelta(days=7)              # another week counts anew
        memory.recall("contract")
        self.assertEqual(self.firings(memory), [])
        for _ in range(6):
            memory.recall("contract")
        self.assertEqual(self.firings(memory), [("legal", "done")])
        self.now += timedelta(days=7)
        for _ in range(4):
            memory.recall("contract")
        self.assertEqual(len(self.firings(memory)), 2)
        self.assertEqual(len((self.root / "legal.md").read_text().splitlines()), 2)

    def test_a_read_does_not_fail_where_nothing_can_be_counted(self):
        memory = self.open(legal={"when": {"anchor": "contract_id", "recalled_more_than": 1},
                                  "append": "legal.md"})
        memory.remember("the contract CT2024-0876", meta=anchor("contract_id", "CT2024-0876"))
        (self.root / "logs").mkdir(exist_ok=True)
        (self.root / "logs" / "rules-recalls.json").mkdir()
        self.assertEqual(len(memory.recall("contract")), 1)

    def change(self, memory: HermesLite, memory_id: str, meta: dict, **more) -> None:
        from dataclasses import replace
        memory.admit(replace(memory.get(memory_id), meta=meta, **more), replacing=True)

    def test_a_status_that_changes_fires_for_each_change_once(self):
        memory = self.open(crm={"when": {"anchor": "status", "from": "draft", "to": "signed"},
                                "run": self.writes()})
        row = memory.remember("the contract with Bolt", meta=anchor("status", "Draft")).id
        for value in ("draft", "open", "signed"):
            self.change(memory, row, anchor("status", value))
        self.assertEqual(self.firings(memory), [], "open -> signed is another change")
        for value in ("draft", "signed", "signed", "draft", "signed"):
            self.change(memory, row, anchor("status", value))
        self.assertEqual((self.written(), len(self.firings(memory))), ("xx", 2))

    def test_a_newer_memory_that_states_another_status_fires(self):
        memory = self.open(crm={"when": {"anchor": "status", "from": "draft", "to": "signed"},
                                "run": self.writes()})
        memory.remember("CT2024-0876 has the status signed",
                        meta=anchor("status", "signed", **{"from": "draft"}))
        memory.remember("CT2024-0877 has the status signed",
                        meta=anchor("status", "signed", **{"from": "open"}))
        self.rules(memory).check()
        self.assertEqual(self.written(), "x")

    def test_an_action_item_that_is_done_fires(self):
        memory = self.open(done={"when": {"anchor": "action_item", "to": "done"},
                                 "run": self.writes()})
        row = memory.remember("发邮件给张三", meta=anchor("action_item", "发邮件给张三", status="open")).id
        self.assertEqual(self.written(), "")
        self.change(memory, row, anchor("action_item", "发邮件给张三", status="done"))
        self.assertEqual(self.written(), "x")

    def test_the_status_of_the_record_counts_too(self):
        memory = self.open(crm={"when": {"anchor": "status", "to": "signed"},
                                "run": self.writes()})
        row = memory.remember("the contract with Bolt").id
        self.change(memory, row, {}, status="draft")
        self.change(memory, row, {}, status="signed")
        self.assertEqual(self.written(), "x")

    def test_wrong_rules_are_one_sentence_that_names_the_rule(self):
        good = {"when": {"tag": "a"}, "append": "a.md"}
        for wrong in ({}, 3, {"when": {"tag": "a"}}, {**good, "when": {}}, {**good, "rum": [1]},
                      {**good, "when": {"tagg": "a"}}, {**good, "run": "rm -rf x"},
                      {**good, "run": []}, {**good, "run": [1]}, {**good, "append": "index.json"},
                      {**good, "append": ["a.md"]}, {**good, "webhook": 5},
                      {**good, "timeout": 0}, {**good, "when": {"tag": 3}},
                      {**good, "when": {"score_above": "high"}},
                      {**good, "when": {"tag": "a", "recalled_more_than": 3}},
                      {**good, "when": {"anchor": "a", "recalled_more_than": 3, "per": "year"}},
                      {**good, "when": {"anchor": "a", "per": "week"}},
                      {**good, "when": {"anchor": "a", "recalled_more_than": 3, "to": "b"}}):
            with self.assertRaises(ConfigError, msg=wrong) as caught:
                self.open(mine=wrong)
            self.assertIn("systems.rules.mine", str(caught.exception))
        self.open(mine=good)


ALL_SYSTEMS = """
storage: {{backend: {store}}}
systems:
  anchors: {{}}
  salience: {{}}
  prompt: {{}}
  audit: {{}}
  rules:
    calendar: {{when: {{tag: deadline, score_above: 5}}, append: deadlines.ics}}
    legal: {{when: {{anchor: contract_id, recalled_more_than: 3, per: week}}, run: {run}}}
    crm: {{when: {{anchor: status, from: draft, to: signed}}, append: crm.md}}
"""
TABLE = "客户姓名,合同编号,签约日期,状态\n"


@unittest.skipUnless(importlib.util.find_spec("yaml"), "needs PyYAML to read config.yaml")
class TestScenes(RulesCase):
    """The scenes of the second source document, by the commands, with every system switched on."""

    def each_store(self) -> Iterator[None]:
        for store in ("files", "archive"):
            with self.subTest(store=store):
                self.root = self.out.with_name(store)
                self.out = self.out.with_name(f"{store}.out")
                self.root.mkdir()
                (self.root / "config.yaml").write_text(ALL_SYSTEMS.format(
                    store=store, run=json.dumps(self.writes("mail "))), encoding="utf-8")
                yield

    def run_command(self, *words: str) -> str:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            self.assertEqual(core.main(["--root", str(self.root), *words]), 0)
        return shown.getvalue()

    def import_table(self, name: str, *rows: str) -> None:
        path = self.out.with_name(name)
        path.write_text(TABLE + "".join(f"{row}\n" for row in rows), encoding="utf-8")
        self.run_command("import", str(path))

    def fired(self) -> list[str]:
        overview = json.loads(self.run_command("rules", "--json"))
        return [firing["rule"] for firing in overview["firings"]]

    def test_a_contract_asked_for_more_than_three_times_a_week_is_sent_to_the_lawyers(self):
        for _ in self.each_store():
            self.run_command("remember", "客户张三的合同编号是CT2024-0876", "--tags", "contract",
                             "client_zhangsan")
            for asked in range(4):
                self.assertEqual(self.written(), "", asked)
                self.assertIn("CT2024-0876", self.run_command("recall", "张三的合同号"))
            self.assertEqual((self.written(), self.fired()), ("mail ", ["legal"]))

    def test_an_imported_contract_is_counted_as_well(self):
        for _ in self.each_store():
            self.import_table("contracts.csv", "张三,CT2024-0900,2024-08-15,open")
            for _ in range(4):
                self.run_command("recall", "CT2024-0900")
            self.assertEqual((self.written(), self.fired()), ("mail ", ["legal"]))

    def test_a_status_that_goes_from_draft_to_signed_updates_the_customer(self):
        for _ in self.each_store():
            self.run_command("remember", "合同CT2024-0900 状态: draft")
            self.run_command("remember", "合同CT2024-0901 状态: open")
            self.run_command("remember", "合同CT2024-0901 状态: signed")
            self.assertEqual(self.fired(), [])
            self.run_command("remember", "合同CT2024-0900 状态: signed")
            self.assertEqual(self.fired(), ["crm"])
            self.assertIn("CT2024-0900", (self.root / "crm.md").read_text(encoding="utf-8"))

    def test_a_status_that_changes_in_an_imported_table_updates_the_customer(self):
        for _ in self.each_store():
            self.import_table("july.csv", "张三,CT2024-0900,2024-08-15,draft",
                              "李四,CT2024-0901,2024-08-16,draft")
            self.assertEqual(self.fired(), [])
            self.import_table("august.csv", "张三,CT2024-0900,2024-08-15,signed",
                              "李四,CT2024-0901,2024-08-16,draft")
            self.assertEqual(self.fired(), ["crm"])
            self.import_table("one.csv", "王五,CT2024-0902,2024-08-17,draft",
                              "王五,CT2024-0902,2024-08-17,signed")
            self.assertEqual(self.fired(), ["crm", "crm"])

    def test_a_deadline_of_a_high_score_gets_into_the_calendar(self):
        for _ in self.each_store():
            self.run_command("remember", "记住：合同的截止时间是2026-08-15", "--tags", "deadline")
            self.run_command("remember", "窗户是蓝色的", "--tags", "deadline")
            self.assertEqual(self.fired(), ["calendar"])
            self.assertIn("20260815", (self.root / "deadlines.ics").read_text(encoding="utf-8"))

    def test_a_memory_that_was_there_before_the_systems_counts_by_its_text(self):
        for _ in self.each_store():
            config = (self.root / "config.yaml").read_text(encoding="utf-8")
            (self.root / "config.yaml").write_text(config.split("systems:")[0], encoding="utf-8")
            self.run_command("remember", "客户张三的合同编号是CT2024-0876")
            (self.root / "config.yaml").write_text(config, encoding="utf-8")
            for _ in range(4):
                self.run_command("recall", "张三的合同号")
            self.assertEqual(self.fired(), ["legal"])


class TestOnce(RulesCase):
    RULE = {"when": {"score_above": 5}, "append": "a.md"}

    def test_the_same_memory_fires_once_however_often_it_is_said_or_checked(self):
        memory = self.open(a=self.RULE)
        for _ in range(3):
            memory.remember("the harbour is closed", importance=7)
        self.assertEqual(self.rules(memory).check(), [])
        memory.close()
        again = self.open(a=self.RULE)
        again.remember("the harbour is closed", importance=8)
        self.assertEqual(self.firings(again), [("a", "done")])

    def test_check_takes_what_was_there_before_the_rule_and_dry_run_claims_nothing(self):
        plain = self.open()
        for text in ("the harbour is closed", "the ferry is late"):
            plain.remember(text, importance=7)
        plain.close()
        memory = self.open(a=self.RULE)
        self.assertEqual(len(self.rules(memory).check(dry_run=True)), 2)
        self.assertFalse((self.root / "a.md").exists())
        self.assertEqual(len(self.rules(memory).check()), 2)
        self.assertEqual(len((self.root / "a.md").read_text().splitlines()), 2)

    CHECKER = ("import sys; sys.path.insert(0, sys.argv[1])\n"
               "from hermes_lite import Config, HermesLite\n"
               "rule = {'when': {'score_above': 5}, 'run': sys.argv[3:]}\n"
               "memory = HermesLite(sys.argv[2], config=Config("
               "{'systems': {'rules': {'a': rule}}}, environ={}))\n"
               "print('ready', flush=True); sys.stdin.readline()\n"
               "memory.systems[0].check()\n")

    def checker(self, *command: str) -> subprocess.Popen:
        child = subprocess.Popen([PYTHON, "-c", self.CHECKER, str(HOUSE), str(self.root),
                                  *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.stdin.close)
        return child

    def go(self, *children: subprocess.Popen) -> None:
        for child in children:
            child.stdin.write(b"\n")
            child.stdin.flush()

    def fill(self, count: int) -> None:
        plain = self.open()
        with plain.batch():
            for number in range(count):
                plain.remember(f"harbour w{number}x is closed on day v{number}y", importance=7)
        plain.close()

    def test_several_processes_fire_each_cause_once(self):
        self.fill(8)
        command = ["sh", "-c", f"printf x >> {self.out}"]
        children = [self.checker(*command) for _ in range(4)]
        self.go(*children)
        self.assertEqual([child.wait() for child in children], [0] * 4)
        self.assertEqual(self.written(), "x" * 8)

    def test_kill_9_never_fires_twice_and_what_was_lost_is_shown_and_done_again(self):
        self.fill(12)
        command = ["sh", "-c", f"printf x >> {self.out}"]
        for delay in (0.01, 0.03, 0.06):
            child = self.checker(*command)
            self.go(child)
            time.sleep(delay)
            child.send_signal(signal.SIGKILL)
            child.wait()
        self.now = datetime.now(timezone.utc)
        memory = self.open(a={"when": {"score_above": 5}, "run": command})
        self.rules(memory).check()
        states = [state for _, state in self.firings(memory)]
        self.assertEqual(len(states), 12)
        lost = states.count("interrupted")
        self.assertLessEqual(12 - lost, len(self.written()))
        self.assertLessEqual(len(self.written()), 12, "never twice")
        self.assertEqual(self.rules(memory).retry(), [], "it may still be at work")
        self.now += timedelta(minutes=5)
        self.assertEqual(len(self.rules(memory).retry()), lost)
        self.assertEqual({state for _, state in self.firings(memory)}, {"done"})

    def test_a_claim_that_was_cut_by_a_kill_is_none(self):
        memory = self.open(a=self.RULE)
        memory.remember("the harbour is closed", importance=7)
        log = self.root / "logs" / "rules.log"
        log.write_bytes(log.read_bytes() + b'{"at": "2026-08-05", "cause": "12')
        memory.remember("the ferry is late", importance=7)
        fresh = self.open(a=self.RULE)
        self.assertEqual(self.firings(fresh), [("a", "done")] * 2)
        self.assertEqual(self.rules(fresh).check(), [])

    def test_a_change_whose_note_was_lost_after_the_claim_does_not_fire_again(self):
        memory = self.open(crm={"when": {"anchor": "status", "to": "signed"},
                                "run": self.writes()})
        row = memory.remember("the contract with Bolt", meta=anchor("status", "draft")).id
        state = (self.root / ".state_rules.json").read_bytes()
        TestWhen.change(self, memory, row, anchor("status", "signed"))
        (self.root / ".state_rules.json").write_bytes(state)
        self.rules(memory).check()
        self.assertEqual(self.written(), "x")

    def test_in_a_command_that_a_rule_started_no_rule_fires(self):
        memory = self.open({"HERMES_RULE": "a"}, a=self.RULE)
        memory.remember("the harbour is closed", importance=7)
        self.assertEqual(self.firings(memory), [])

    def test_the_log_holds_no_text_is_private_and_scrub_leaves_it_alone(self):
        memory = self.open(password={"when": {"score_above": 5, "tag": "api"}, "append": "a.md",
                                     "run": ["/no/such/program"]})
        result = memory.remember("the harbour master is Olga", importance=7, tags=["api"])
        self.assertIn("/no/such/program cannot be started", result.warnings[0])
        log = self.root / "logs" / "rules.log"
        self.assertNotRegex(log.read_text(), "(?i)harbour|olga")
        for line in log.read_text().splitlines():
            self.assertEqual(redact(line)[0], line)
        for path in (log, self.root / "a.md"):
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)


class TestRun(RulesCase):

    def test_the_memory_comes_as_json_and_keys_do_not(self):
        code = ("import json, os, sys; json.dump([json.load(sys.stdin), dict(os.environ)], "
                f"open({str(self.out)!r}, 'w'))")
        memory = self.open(a={"when": {"score_above": 5}, "run": [PYTHON, "-c", code]})
        for name in ("HERMES_MASTER_KEY", "JINA_API_KEY"):
            os.environ[name] = secrets.token_hex(8)
            self.addCleanup(os.environ.pop, name)
        made = memory.remember("周会是每周三; $(touch x) `id`", importance=7, tags=["a b"])
        self.assertEqual(made.warnings, ())
        row, environ = json.loads(self.written())
        self.assertEqual(row["content"], "周会是每周三; $(touch x) `id`")
        self.assertEqual(row, {**memory.get(made.id).entry()})
        self.assertEqual((environ["HERMES_RULE"], environ["HERMES_LITE_ROOT"]),
                         ("a", str(self.root)))
        self.assertFalse({"HERMES_MASTER_KEY", "JINA_API_KEY"} & set(environ))

    def test_only_common_variables_and_those_that_the_rule_names_reach_a_command(self):
        code = f"import json, os; json.dump(dict(os.environ), open({str(self.out)!r}, 'w'))"
        rule = {"when": {"score_above": 5}, "run": [PYTHON, "-c", code], "env": ["SMTP_PASSWORD"]}
        secret = [f"{name}_{word}" for name in ("AWS", "HERMES_SYNC", "GITHUB", "DATABASE")
                  for word in ("KEY", "SECRET_ACCESS_KEY", "TOKEN", "URL", "PASSWORD")]
        given = {**dict.fromkeys([*secret, "SMTP_PASSWORD", "PGPASSWORD", "SSH_AUTH_SOCK"], "x"),
                 "LC_TIME": "C", "TZ": "UTC"}
        with mock.patch.dict(os.environ, given):
            self.assertEqual(self.open(a=rule).remember("the quay is wet", importance=7).warnings,
                             ())
        environ = json.loads(self.written())
        self.assertLessEqual({"PATH", "LC_TIME", "TZ", "SMTP_PASSWORD"}, environ.keys())
        self.assertEqual({*secret, "PGPASSWORD", "SSH_AUTH_SOCK"} & environ.keys(), set())

    def test_a_rule_may_not_name_a_key_of_the_memory(self):
        for env in (["HERMES_SYNC_KEY"], ["HERMES_MASTER_KEY_OLD"], "PATH", [], [1]):
            with self.assertRaisesRegex(ConfigError, "systems.rules.a: env", msg=env):
                self.open(a={"when": {"score_above": 5}, "run": ["true"], "env": env})

    def test_a_slow_command_is_ended_with_all_it_started(self):
        pipe = self.out.with_name("pipe")          # has a writer as long as one of them lives
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        command = ["sh", "-c", f"exec 9>{pipe}; (sleep 600; echo late > {self.out}) & sleep 600"]
        memory = self.open(a={"when": {"score_above": 5}, "run": command, "timeout": 0.2})
        made = memory.remember("the harbour is closed", importance=7)
        self.assertIn("took more than 0.2 s and was ended", made.warnings[0])
        self.assertEqual(self.firings(memory), [("a", "failed")])
        while self.has_writer(reader):             # a signal may take its time
            time.sleep(0.01)
        self.assertFalse(self.out.exists())

    def has_writer(self, reader: int) -> bool:
        try:
            return os.read(reader, 1) != b""
        except BlockingIOError:
            return True

    def test_what_failed_is_said_without_secrets_and_done_again_on_demand(self):
        secret = secrets.token_hex(10)
        command = ["sh", "-c", f"test -e {self.out} || {{ echo password={secret} >&2; exit 3; }}"]
        memory = self.open(a={"when": {"score_above": 5}, "run": command, "append": "a.md"})
        made = memory.remember("the harbour is closed", importance=7)
        notices = memory.take_notices()
        self.assertIn("sh ended with 3", made.warnings[0])
        self.assertNotIn(secret, " ".join([*made.warnings, *notices]))
        self.assertIn("password", " ".join(notices))
        self.assertNotIn(secret.encode(), b"".join(
            path.read_bytes() for path in self.root.rglob("*") if path.is_file()))
        self.out.write_text("now")
        self.assertEqual([each.state for each in self.rules(memory).retry()], ["done"])
        self.assertEqual(len((self.root / "a.md").read_text().splitlines()), 1)
        self.assertEqual(self.rules(memory).retry(), [])

    def test_what_was_forgotten_meanwhile_is_not_acted_on(self):
        memory = self.open(a={"when": {"score_above": 5}, "run": ["false"]})
        memory.forget(memory.remember("the harbour is closed", importance=7).id)
        self.assertEqual([each.state for each in self.rules(memory).retry()], ["forgotten"])
        self.assertEqual(self.rules(memory).retry(), [])

    def test_a_type_that_nothing_finds_is_refused_before_the_rule_waits_for_it(self):
        with self.assertRaisesRegex(ConfigError, "when.anchor: unknown type 'contrct_id'; did you "
                                                 "mean 'contract_id'"):
            self.open(a={"when": {"anchor": "contrct_id"}, "append": "a.md"})


class Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, dict(self.headers), json.loads(body)))
        code = self.server.codes.pop(0) if self.server.codes else 200
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


class TestWebhook(RulesCase):

    def server(self, *codes: int) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        server.seen, server.codes = [], list(codes)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.hook = server
        return f"http://127.0.0.1:{server.server_port}/hook/path-of-mine"

    @unittest.skipUnless(HAS_REQUESTS, "needs requests")
    def test_the_memory_is_posted_with_its_cause(self):
        url = self.server()
        memory = self.open({"CRM_URL": url}, a={"when": {"score_above": 5}, "webhook": "$CRM_URL"})
        made = memory.remember("周会是每周三", importance=7)
        self.assertEqual(made.warnings, ())
        path, headers, body = self.hook.seen[0]
        self.assertEqual((path, body["rule"], body["memory"]["content"]),
                         ("/hook/path-of-mine", "a", "周会是每周三"))
        self.assertEqual(headers["Idempotency-Key"], body["cause"])
        self.assertNotIn("Authorization", headers)

    @unittest.skipUnless(HAS_REQUESTS, "needs requests")
    def test_a_redirect_and_an_error_are_failures_that_name_only_the_host(self):
        memory = self.open(a={"when": {"score_above": 5}, "webhook": self.server(302, 500, 204)})
        made = memory.remember("the harbour is closed", importance=7)
        self.assertIn("127.0.0.1 answered 302; redirects are not followed", made.warnings[0])
        self.assertNotIn("path-of-mine", made.warnings[0])
        self.assertEqual([each.state for each in self.rules(memory).retry()], ["failed"])
        self.assertEqual([each.state for each in self.rules(memory).retry()], ["done"])
        self.assertEqual([path for path, _, _ in self.hook.seen], ["/hook/path-of-mine"] * 3)

    @unittest.skipUnless(HAS_REQUESTS, "needs requests")
    def test_nobody_there_is_one_sentence(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        memory = self.open(a={"when": {"score_above": 5},
                              "webhook": f"http://127.0.0.1:{port}/path-of-mine"})
        made = memory.remember("the harbour is closed", importance=7)
        self.assertIn("127.0.0.1 cannot be reached", made.warnings[0])
        self.assertNotIn("path-of-mine", made.warnings[0])

    def test_addresses_that_are_private_or_not_https_are_refused(self):
        for url in ("http://93.184.216.34/x", "https://10.0.0.1/x", "https://192.168.1.1/x",
                    "https://169.254.169.254/latest", "https://[fd00::1]/x",
                    "https://[::ffff:10.0.0.1]/x", "https://[2002:a00:1::]/x",
                    "https://100.64.0.1/x", "https://0.0.0.0/x",
                    "https://224.0.0.1/x", "http://localhost.evil.example/x"):
            with self.assertRaises(Refused, msg=url):
                actions.check_address(url)
        for url in ("http://127.0.0.1:8000/x", "http://localhost/x", "http://[::1]/x",
                    "https://93.184.216.34/x"):
            actions.check_address(url)
        actions.check_address("https://10.0.0.1/x", private=True)
        for url in ("", "ftp://example.com/x", "https://", "//example.com", "https://[::1",
                    "mail"):
            with self.assertRaises(ConfigError, msg=url):
                actions.check_address(url)

    def test_a_name_that_points_into_the_house_is_refused(self):
        real = socket.getaddrinfo
        self.addCleanup(setattr, socket, "getaddrinfo", real)
        for address in ("127.0.0.1", "10.1.2.3"):
            socket.getaddrinfo = lambda *_, **__: [(2, 1, 6, "", ("93.184.216.34", 443)),
                                                   (2, 1, 6, "", (address, 443))]
            with self.assertRaises(Refused):
                actions.check_address("https://innocent.example/x")

        def unknown(*_, **__):
            raise socket.gaierror("no such name")
        socket.getaddrinfo = unknown
        with self.assertRaises(RemoteError):
            actions.check_address("https://innocent.example/x")

    def test_an_unset_name_is_said(self):
        memory = self.open(a={"when": {"score_above": 5}, "webhook": "$CRM_URL"})
        made = memory.remember("the harbour is closed", importance=7)
        self.assertIn("$CRM_URL is not set", made.warnings[0])


class TestAppend(RulesCase):

    def event(self, content: str, **more) -> bytes:
        row = Memory("mem_1", content, created_at="2026-08-01T10:00:00+00:00", **more)
        return actions.event(row, cause="0123456789abcdef", now=NOW)

    def lines(self, event: bytes) -> dict[str, str]:
        rows = event.decode().replace("\r\n ", "").split("\r\n")
        return dict(row.partition(":")[::2] for row in rows if ":" in row)

    def test_every_line_has_at_most_75_octets_and_characters_stay_whole(self):
        for text in ("长" * 200, "a" * 500, "é😀" * 90, "x, y; z\\ \n" * 30,
                     "\x07\x1b[2J" + "b" * 99):
            event = self.event(text)
            for line in event.split(b"\r\n"):
                self.assertLessEqual(len(line), 75)
                line.decode()
            self.assertNotIn(b"\n", event.replace(b"\r\n", b""))

    def test_text_cannot_add_a_property_or_another_event(self):
        event = self.event("a\r\nEND:VEVENT\r\nBEGIN:VEVENT\nATTACH:http://x, y; z\\n", tags=(
            "t,1\r\nX:1",))
        self.assertEqual(event.count(b"\r\nBEGIN:"), 0)
        self.assertEqual(event.count(b"\r\nEND:VEVENT\r\n"), 1)
        self.assertNotIn(b"\r\nATTACH", event)
        self.assertEqual(self.lines(event)["DESCRIPTION"],
                         r"a\nEND:VEVENT\nBEGIN:VEVENT\nATTACH:http://x\, y\; z\\n")

    def test_the_day_is_the_deadline_the_expiry_a_date_in_the_text_or_its_own(self):
        day = "DTSTART;VALUE=DATE"
        self.assertEqual(self.lines(self.event("x"))[day], "20260801")
        self.assertEqual(self.lines(self.event("截止 2026年9月3日 24 点"))[day], "20260903")
        self.assertEqual(self.lines(self.event("by 2026-09-03", expires_at="2026-10-01"))[day],
                         "20261001")
        for text, wanted in (("läuft bis zum 30. Juni 2027", "20270630"), ("am 1.9.2026", "20260901"),
                             ("signed by September 4, 2026", "20260904")):
            self.assertEqual(self.lines(self.event(text))[day], wanted)
        row = Memory("mem_1", "x", created_at="2026-08-01T10:00:00+00:00")
        for value, wanted in (("2026-11-30", "20261130"), ("--08-15", "20260815"),
                              ("--03-01", "20270301"), ("soon", "20260801")):
            self.assertEqual(self.lines(actions.event(row, cause="1", now=NOW, dates=[value]))[
                day], wanted)

    @unittest.skipUnless(HAS_ICALENDAR, "needs icalendar")
    def test_a_calendar_program_reads_what_was_written(self):
        import icalendar
        memory = self.open(a={"when": {"score_above": 5}, "append": "due.ics"})
        texts = ("合同 CT2024-0876 截止 2026-12-24，请审核; " + "很长的文字" * 30, "b, c; d\\e\nsecond line")
        for text in texts:
            memory.remember(text, importance=7, tags=["a", "b"])
        calendar = icalendar.Calendar.from_ical((self.root / "due.ics").read_bytes())
        events = calendar.walk("VEVENT")
        self.assertEqual([str(event["DESCRIPTION"]) for event in events], list(texts))
        self.assertEqual(events[0].decoded("DTSTART").isoformat(), "2026-12-24")
        self.assertEqual(len({str(event["UID"]) for event in events}), 2)

    def test_a_persons_calendar_is_added_to_and_anything_else_is_refused(self):
        path = self.root.parent / "mine.ics"
        path.write_bytes(b"BEGIN:VCALENDAR\nVERSION:2.0\nBEGIN:VEVENT\nUID:1\nEND:VEVENT\n"
                         b"END:VCALENDAR\n")
        memory = self.open(a={"when": {"score_above": 5}, "append": str(path)})
        memory.remember("the harbour is closed", importance=7)
        self.assertEqual(path.read_bytes().count(b"BEGIN:VEVENT"), 2)
        path.write_bytes(b"dear diary")
        made = memory.remember("the ferry is late", importance=7)
        self.assertIn("is no calendar", made.warnings[0])
        self.assertEqual(path.read_bytes(), b"dear diary")

    def test_a_file_takes_each_cause_once(self):
        memory, row = self.open(), Memory("mem_1", "x", created_at="2026-08-01T10:00:00+00:00")
        for name in ("a.ics", "b.md"):
            for cause in ("01ab", "02cd", "01ab"):
                actions.append(memory, name, row, cause=cause)
        self.assertEqual((self.root / "a.ics").read_bytes().count(b"BEGIN:VEVENT"), 2)
        self.assertEqual(len((self.root / "b.md").read_text().splitlines()), 2)

    def test_nothing_is_written_among_the_stores_own_files(self):
        (self.root / "store").mkdir(parents=True)
        for place in ("store/a.md", "backups/../store/a.md", str(self.root / "store" / "b.md")):
            memory = self.open(a={"when": {"score_above": 5}, "append": place})
            made = memory.remember(f"the harbour {secrets.token_hex(4)} is closed", importance=7)
            self.assertIn("may not write into store/", made.warnings[0])
        memory = self.open(a={"when": {"score_above": 5}, "append": "no/such/a.md"})
        made = memory.remember("the ferry is late", importance=7)
        self.assertTrue(made.warnings)

    def test_what_is_forgotten_is_taken_out_again_and_what_grew_old_stays(self):
        memory = self.open(a={"when": {"score_above": 5}, "append": "a.ics"},
                           b={"when": {"score_above": 5}, "append": "b.md"})
        ids = [memory.remember(f"the harbour of {name} is closed", importance=7).id
               for name in ("Kiel", "Bremen", "Emden")]
        memory.forget(ids[1])
        for name in ("a.ics", "b.md"):
            text = (self.root / name).read_text()
            self.assertEqual(("Kiel" in text, "Bremen" in text, "Emden" in text),
                             (True, False, True))
        self.assertEqual((self.root / "a.ics").read_bytes().count(b"BEGIN:VEVENT"), 2)
        self.now += timedelta(days=30)
        memory.prune()
        self.assertIn("Kiel", (self.root / "a.ics").read_text())


class TestReport(RulesCase):

    def test_alerts_of_the_span_are_grouped_and_ordered(self):
        memory = self.open(a={"when": {"score_above": 8}, "append": "a.md"})
        memory.remember("yesterday the disk was full", tags=["alert"], agent="ops-bot")
        self.now += timedelta(days=2)
        memory.remember("CPU of web-1 at 91 %", tags=["Alert"], agent="ops-bot", importance=4)
        memory.remember("memory of db-2 is short", tags=["告警"], agent="ops-bot", importance=6)
        memory.remember("an invoice is overdue", importance=9, agent="finance-bot")
        memory.remember("nothing to see here", agent="ops-bot")
        made = report(memory)
        self.assertEqual([(name, [alert.content for alert in alerts])
                          for name, alerts in made.groups], [
            ("ops-bot", ["memory of db-2 is short", "CPU of web-1 at 91 %"]),
            ("finance-bot", ["an invoice is overdue"])])
        self.assertEqual((made.total, made.groups[1][1][0].rules), (3, ("a",)))
        self.assertEqual([name for name, _ in report(memory, by="rule").groups], ["no rule", "a"])
        self.assertEqual(report(memory, since="3d").total, 4)
        self.assertEqual(report(memory, since="2026-08-07", tag="#alert").total, 2)

    def test_it_is_written_whole_and_not_into_the_root(self):
        memory = self.open()
        memory.remember("CPU at *91* % <b>", tags=["alert"])
        report(memory, file=str(self.out))
        self.assertEqual(self.out.read_text().splitlines()[0],
                         "# Alerts since 2026-08-04 12:00 UTC: 1")
        self.assertIn(r"CPU at \*91\* % \<b\>", self.out.read_text())
        self.assertEqual(stat.S_IMODE(self.out.stat().st_mode), 0o600)
        with self.assertRaises(Refused):
            report(memory, file=str(self.root / "index.json"))
        for wrong in ({"by": "x"}, {"since": "some day"}, {"file": ""}):
            with self.assertRaises(UsageError):
                report(memory, **wrong)

    def test_what_was_forgotten_is_counted_and_not_shown(self):
        memory = self.open(a={"when": {"score_above": 8}, "append": "a.md"})
        memory.forget(memory.remember("an invoice of Olga is overdue", importance=9).id)
        made = report(memory)
        self.assertEqual((made.total, made.forgotten), (0, 1))
        self.assertNotIn("Olga", "\n".join(made.markdown()))


class TestCommand(RulesCase):

    def cli(self, *words: str) -> subprocess.CompletedProcess:
        return run_command(self.root, *words, environ={
            "PATH": os.defpath, "HOME": str(self.root.parent)})

    def test_rules_are_listed_checked_and_reported(self):
        self.root.mkdir(mode=0o700)
        (self.root / "config.yaml").write_text(json.dumps({"systems": {"rules": {
            "due": {"when": {"score_above": 5}, "append": "due.md"},
            "bad": {"when": {"score_above": 8}, "run": ["false"]}}}}))
        self.assertEqual(self.cli("remember", "the harbour is closed", "--importance",
                                  "7").returncode, 0)
        failed = self.cli("remember", "the ferry is late", "--importance", "9")
        self.assertEqual((failed.returncode, "rule bad: run: false ended with 1" in failed.stderr),
                         (0, True), failed)
        shown = self.cli("rules").stdout.splitlines()
        self.assertEqual(shown[0], "due: when score_above 5: append")
        self.assertEqual(len(shown), 5)
        self.assertEqual(self.cli("rules", "check").stdout, "0 fired\n")
        self.assertEqual(self.cli("rules", "retry").returncode, 1)
        self.assertIn("the harbour is closed", self.cli("report").stdout)
        for words, code in ((["rules", "x"], 2), (["rules", "retry", "--dry-run"], 2),
                            (["report", "--by", "x"], 2)):
            done = self.cli(*words)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (code, 1), done)

    def test_without_rules_the_sentence_says_where_they_go(self):
        done = self.cli("rules")
        self.assertEqual(done.returncode, 3)
        self.assertIn("systems: rules:", done.stderr)


if __name__ == "__main__":
    unittest.main()

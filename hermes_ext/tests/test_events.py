"""Events: the log of what was done, followed by readers and published in a real Redis."""
from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from datetime import timedelta
from pathlib import Path

from hermes_ext.tests.base import HAS_CRYPTO, HAS_YAML, Case

HOME = Path(__file__).resolve().parents[2]
HAS_REDIS = bool(importlib.util.find_spec("redis") and shutil.which("redis-server"))
PROGRAM = [sys.executable, str(HOME / "hermes_lite.py")]


class RedisServer:
    """A real Redis on a free port of this machine, which a test can stop and start again."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder = tempfile.mkdtemp()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        import redis
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
             "--dir", self.folder], stdout=subprocess.DEVNULL)
        client = redis.Redis.from_url(self.url)
        while True:
            try:
                client.ping()
                return
            except redis.ConnectionError:
                time.sleep(0.05)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)


@unittest.skipUnless(HAS_YAML, "needs PyYAML")
class Log(Case):
    def setUp(self) -> None:
        super().setUp()
        self.root.mkdir()
        self.switch_on("{}")

    def switch_on(self, settings: str, more: str = "") -> None:
        (self.root / "config.yaml").write_text(f"systems: {{events: {settings}{more}}}\n")

    def lines(self):
        return [json.loads(row) for row in
                (self.root / "logs" / "events.log").read_text().splitlines()]

    def test_every_act_that_changes_something_is_a_line_and_no_read_is(self):
        memory = self.open()
        first = memory.remember("the staging port is 5433", tags=["db"], agent="ops").id
        memory.remember("The staging port is 5433.", agent="ops")
        second = memory.remember("the staging port is 5434", agent="ops").id
        memory.recall("staging port")
        memory.verify(second)
        memory.forget(first)
        got = [(line["n"], line["type"], line["ids"]) for line in self.lines()]
        self.assertEqual(got, [
            (1, "write", [first]), (2, "merge", [first]), (3, "write", [second]),
            (4, "conflict", [second, first]), (5, "verify", [second]), (6, "forget", [first])])
        self.assertEqual((self.lines()[0]["tags"], self.lines()[0]["agent"]), (["db"], "ops"))
        self.assertNotIn("5433", (self.root / "logs" / "events.log").read_text())

    def test_a_batch_tells_of_its_conflicts_once_it_is_done(self):
        memory = self.open()
        with memory.batch():
            memory.remember("the staging port is 5433")
            memory.remember("the staging port is 5434")
            self.assertFalse((self.root / "logs" / "events.log").exists())
        self.assertEqual([line["type"] for line in self.lines()], ["write", "write", "conflict"])

    def test_commands_count_on_from_each_other_and_tail_lists_them(self):
        for text in ("the harbour master is Olga", "the ferry leaves at nine"):
            self.assertEqual(self.cli("remember", text, "--tags", "port")[0], 0)
        code, out, _ = self.cli("events", "tail", "--json")
        self.assertEqual((code, [row["n"] for row in json.loads(out)]), (0, [1, 2]))
        _, out, _ = self.cli("events", "tail", "--after", "1")
        self.assertEqual(len(out.splitlines()), 1)
        self.assertIn("cli remember  #port", out)

    def test_a_line_that_a_kill_cut_off_is_passed_over(self):
        self.filled()
        with open(self.root / "logs" / "events.log", "ab") as file:
            file.write(b'{"n": 3, "at": "20')
        self.open().remember("the pilot is Kim")
        code, out, _ = self.cli("events", "tail", "--json")
        self.assertEqual((code, [row["n"] for row in json.loads(out)]), (0, [1, 2, 3]))

    def test_what_a_killed_program_did_not_write_down_is_found(self):
        memory = self.open()
        told = memory.remember("the ferry leaves at nine").id
        memory.systems.clear()                     # killed before the line
        made = memory.remember("the pilot is Kim", tags=["port"]).id
        memory.forget(told)
        memory.close()
        self.assertEqual(len(self.lines()), 1)
        later = self.open()
        from hermes_ext import events
        events.find(later).catch_up()
        self.assertEqual(len(self.lines()), 1, "the program may still be at work")
        self.now += timedelta(seconds=20)
        for _ in range(2):
            events.find(later).catch_up()
            self.assertEqual([(line["type"], line["ids"]) for line in self.lines()[1:]],
                             [("write", [made]), ("forget", [told])])
        self.assertEqual(self.lines()[1]["tags"], ["port"])

    def test_a_long_log_is_set_aside_and_counted_on(self):
        from unittest import mock

        from hermes_ext import events
        with mock.patch.object(events, "_FILE_BYTES", 300):
            memory = self.open()
            for number in range(6):
                memory.remember(f"pier {number} is open on day {number}")
        self.assertEqual(events.find(memory).last_number(), 6)
        kept = [line["n"] for line in events.find(memory).after(0)]
        self.assertEqual(kept, list(range(kept[0], 7)))

    @unittest.skipUnless(HAS_CRYPTO, "needs cryptography")
    def test_an_encrypted_store_tells_no_tags_and_no_agents(self):
        memory = self.open(HERMES_ENCRYPT="on")
        memory.remember("the staging port is 5433", tags=["db"], agent="ops")
        self.assertIsNotNone(memory.store.files.cipher)
        self.assertNotIn("tags", self.lines()[0])

    def test_the_file_alone_switches_the_log_on(self):
        (self.root / "config.yaml").unlink()
        (self.root / "logs").mkdir()
        (self.root / "logs" / "events.log").touch()
        self.assertEqual(self.cli("remember", "the harbour master is Olga")[0], 0)
        self.assertEqual(len(self.lines()), 1)

    def test_follow_prints_what_another_process_does(self):
        self.filled()
        follower = subprocess.Popen([*PROGRAM, "--root", str(self.root), "events", "tail",
                                     "--follow"], stdout=subprocess.PIPE, text=True,
                                    env={"PATH": os.defpath, "HOME": str(self.home)})
        try:
            rows = [follower.stdout.readline() for _ in range(2)]
            self.cli("remember", "the pilot is Kim")
            rows.append(follower.stdout.readline())
        finally:
            follower.send_signal(signal.SIGINT)
            follower.communicate()
        self.assertEqual([row.split()[0] for row in rows], ["1", "2", "3"])
        self.assertEqual(follower.returncode, 130)

    def test_a_wrong_setting_is_one_sentence(self):
        wrong = ["{redis: 5}", "{topic: x}", *(["{redis: 'http://x'}"] if HAS_REDIS else [])]
        for settings in wrong:
            self.switch_on(settings)
            code, _, err = self.cli("remember", "the harbour master is Olga")
            self.assertEqual((code, len(err.splitlines())), (3, 1), err)
            self.assertIn("systems.events", err)


@unittest.skipUnless(HAS_REDIS, "needs the package redis, and redis-server")
class Published(Log):
    """The same log, and what a subscriber of a real Redis hears."""

    def setUp(self) -> None:
        super().setUp()
        self.server = RedisServer()
        self.addCleanup(self.server.close)
        self.server.start()
        self.switch_on(f"{{redis: '{self.server.url}'}}")
        self.subscribe()

    def subscribe(self) -> None:
        import redis
        self.listener = redis.Redis.from_url(self.server.url).pubsub()
        self.addCleanup(self.listener.close)
        self.listener.subscribe("memory:write")
        self.listener.get_message(timeout=5)

    def heard(self, count: int) -> list[dict]:
        rows: list[dict] = []
        for _ in range(100):
            if len(rows) == count:
                break
            message = self.listener.get_message(ignore_subscribe_messages=True, timeout=0.2)
            if message:
                rows.append(json.loads(message["data"]))
        return rows

    def test_a_subscriber_hears_each_event(self):
        memory = self.open()
        made = memory.remember("the staging port is 5433", tags=["db"]).id
        memory.forget(made)
        self.assertEqual([(row["n"], row["type"]) for row in self.heard(2)],
                         [(1, "write"), (2, "forget")])

    def test_what_redis_missed_while_it_was_away_comes_later_and_in_order(self):
        self.cli("remember", "pier 1 is open")
        self.assertEqual([row["n"] for row in self.heard(1)], [1])
        self.server.stop()
        for number in (2, 3):
            code, _, err = self.cli("remember", f"the gate code of pier {number} changed")
            self.assertEqual(code, 0)
            self.assertIn("Redis does not take events", err)
        self.server.start()
        self.subscribe()
        self.assertEqual(self.cli("remember", "the pilot is Kim")[0], 0)
        self.assertEqual([row["n"] for row in self.heard(3)], [2, 3, 4])

    def test_two_writers_at_once_publish_every_number_once_and_in_order(self):
        writers = [subprocess.Popen(
            [*PROGRAM, "--root", str(self.root), "remember", "--batch", "-"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            env={"PATH": os.defpath, "HOME": str(self.home)}) for _ in range(2)]
        for name, writer in zip("ab", writers):
            writer.stdin.write("\n".join(f"note {n} of writer {name} is here"
                                         for n in range(20)).encode())
            writer.stdin.close()
        for writer in writers:
            writer.wait()
        self.cli("remember", "the pilot is Kim")
        self.assertEqual([row["n"] for row in self.heard(41)], list(range(1, 42)))


if __name__ == "__main__":
    unittest.main()

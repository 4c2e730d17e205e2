"""Cold storage: what moves out comes back whole, and what is forgotten stays away."""
from __future__ import annotations

import gzip
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest import mock

HOME = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HOME)]

import hermes_lite as core                                                        # noqa: E402
from hermes_lite import (HermesLite, Memory, MissingPackage, NotFound, Refused,   # noqa: E402
                         RemoteError, UsageError)
from hermes_ext import cold                                                       # noqa: E402

NOW = datetime(2026, 8, 17, 3, 31, 6, tzinfo=timezone.utc)


class Case(unittest.TestCase):

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cold"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.now = NOW

    def memory(self, backend: str = "files", **more: object) -> HermesLite:
        config = core.Config({"storage": {"backend": backend}, **more},
                             environ={"HERMES_VECTOR_BACKEND": "local"})
        memory = HermesLite(self.folder / backend, config=config, clock=lambda: self.now)
        self.addCleanup(memory.close)
        return memory

    def fill(self, memory: HermesLite) -> list[Memory]:
        """Store memories with every field; return them as stored."""
        rows = [Memory("mem_20260101_000000_aaaa", "客户张三的合同编号是CT2024-0876", importance=2,
                       access_count=2, last_accessed="2026-02-01T00:00:00+00:00", source="chat",
                       created_at="2026-01-01T00:00:00+00:00", tags=("contract",), agent="bot",
                       meta={"odd": {"deep": [1]}}, extra={"unknown": [1, 2]}),
                Memory("mem_20260102_000000_aaaa", "lunch was delivered late", importance=1,
                       created_at="2026-01-02T00:00:00+00:00"),
                Memory("mem_20260103_000000_aaaa", "the gateway is checked on Mondays",
                       importance=8, created_at="2026-01-03T00:00:00+00:00"),
                Memory("mem_20260104_000000_aaaa", "a pinned trifle", importance=1,
                       created_at="2026-01-04T00:00:00+00:00", meta={"pinned": True}),
                Memory("mem_20260816_000000_aaaa", "a fresh trifle", importance=1,
                       created_at="2026-08-16T00:00:00+00:00")]
        with memory.store.transaction():
            for row in rows:
                memory.store.put(row)
        return rows


class TestCold(Case):

    def each(self) -> list[HermesLite]:
        return [self.memory(backend) for backend in ("files", "archive")]

    def test_a_move_takes_what_is_low_and_old_and_every_field_comes_back(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            plan = cold.freeze(memory, dry_run=True)
            self.assertEqual(plan.ids, (rows[0].id, rows[1].id))
            self.assertEqual(len(memory.store), 5)
            done = cold.freeze(memory)
            self.assertEqual((done.ids, len(memory.store)), (plan.ids, 3))
            again = cold.freeze(memory)
            self.assertEqual((again.ids, again.warnings), ((), (
                "no memory has a score below 3 and is older than 30 days, the critical and the "
                "pinned aside",)))
            back = cold.thaw(memory)
            self.assertEqual(back.ids, plan.ids)
            self.assertEqual([memory.get(row.id) for row in rows], rows)
            self.assertEqual([*(memory.root / "cold").iterdir()], [])

    def test_recall_says_when_cold_storage_holds_a_match_in_any_process(self) -> None:
        for memory in self.each():
            self.fill(memory)
            cold.freeze(memory)
            self.assertIn("cold storage holds 1", " ".join(memory.recall("张三的合同编号").degraded))
            memory.close()
            again = self.memory(memory.config["storage"]["backend"])
            hits = again.recall("合同编号")
            self.assertIn("archive --thaw", " ".join(hits.degraded))
            self.assertNotIn("cold", " ".join(again.recall("gateway Mondays").degraded))
            self.assertEqual(cold.thaw(again, "合同").ids, ("mem_20260101_000000_aaaa",))
            self.assertEqual([hit.id for hit in again.recall("合同编号")][:1],
                             ["mem_20260101_000000_aaaa"])
            with self.assertRaises(NotFound):
                cold.thaw(again, "合同")

    def test_one_id_comes_back_and_the_rest_stays(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            cold.freeze(memory)
            cold.thaw(memory, rows[1].id)
            self.assertEqual(memory.get(rows[1].id), rows[1])
            with self.assertRaises(NotFound):
                memory.get(rows[0].id)
            self.assertEqual(cold.thaw(memory).ids, (rows[0].id,))

    def test_what_is_forgotten_goes_from_the_cold_file_and_stays_away(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            cold.freeze(memory)
            cold.forget(memory, rows[1].id)
            with self.assertRaises(NotFound):
                cold.forget(memory, rows[1].id)
            for path in (memory.root / "cold").iterdir():
                self.assertNotIn(b"lunch", gzip.decompress(path.read_bytes()))
            with self.assertRaises(Refused):
                memory.remember("lunch was delivered late", deliberate=False)
            self.assertEqual(cold.thaw(memory).ids, (rows[0].id,))

    def test_a_text_forgotten_meanwhile_does_not_come_back(self) -> None:
        for memory in self.each():
            self.fill(memory)
            cold.freeze(memory)
            again = memory.remember("lunch was delivered late")
            memory.forget(again.id)
            done = cold.thaw(memory)
            self.assertEqual(done.ids, ("mem_20260101_000000_aaaa",))
            self.assertIn("forgotten", done.warnings[0])

    def test_what_one_agent_forgot_before_the_move_leaves_the_others_as_it_is(self) -> None:
        for memory in self.each():
            text = "the staging port is 5433"
            kept, gone = (memory.remember(text, agent=name).id for name in ("anna", "bot"))
            memory.forget(gone)
            self.now = NOW + timedelta(days=40)
            self.assertEqual(cold.freeze(memory, below=9).ids, (kept,))
            self.assertEqual(cold.thaw(memory).ids, (kept,))
            self.assertEqual([(m.id, m.agent) for m in memory.list()], [(kept, "anna")])
            self.now = NOW

    def test_the_same_words_in_the_store_are_not_doubled(self) -> None:
        for memory in self.each():
            self.fill(memory)
            cold.freeze(memory)
            memory.remember("lunch was delivered late")
            cold.thaw(memory)
            texts = [each.content for each in memory.store]
            self.assertEqual(texts.count("lunch was delivered late"), 1)

    def test_a_damaged_file_is_named_and_stays_as_it_is(self) -> None:
        memory = self.memory()
        self.fill(memory)
        cold.freeze(memory)
        path, = (memory.root / "cold").iterdir()
        path.write_bytes(path.read_bytes()[:-9] + b"damaged!!")
        before = path.read_bytes()
        done = cold.thaw(memory)
        self.assertEqual(done.ids, ())
        self.assertIn("damaged", done.left[0])
        self.assertEqual(path.read_bytes(), before)
        self.assertEqual(len(cold.Cold(memory).memories), 2)

    def test_a_kill_between_file_and_store_loses_nothing(self) -> None:
        for memory in self.each():
            rows = self.fill(memory)
            with mock.patch.object(type(memory.store), "remove", side_effect=KeyboardInterrupt), \
                    self.assertRaises(KeyboardInterrupt):
                cold.freeze(memory)
            self.assertEqual(len(memory.store), 5)
            self.assertEqual(cold.thaw(memory).ids, (rows[0].id, rows[1].id))
            self.assertEqual([memory.get(row.id) for row in rows], rows)

    def test_an_encrypted_store_has_sealed_cold_files(self) -> None:
        if importlib.util.find_spec("cryptography") is None:
            self.skipTest("cryptography")
        config = core.Config({}, environ={"HERMES_ENCRYPT": "on",
                                          "HERMES_VECTOR_BACKEND": "local"})
        memory = HermesLite(self.folder / "e", config=config, clock=lambda: self.now)
        self.addCleanup(memory.close)
        rows = self.fill(memory)
        cold.freeze(memory)
        for path in (*(memory.root / "cold").iterdir(), memory.root / cold.INDEX):
            self.assertTrue(core.is_ciphertext(path.read_bytes()))
        cold.thaw(memory)
        self.assertEqual(memory.get(rows[0].id), rows[0])

    def test_a_word_that_nothing_would_use_is_refused(self) -> None:
        memory, operation = self.memory(), cold.OPERATIONS[0]
        for is_cold in (False, True):
            with self.assertRaisesRegex(UsageError, "needs --thaw"):
                operation.handler(memory, what="gateway", cold=is_cold, thaw=False, forget=False,
                                  below=None, older_than=None, place=None, dry_run=False)

    def test_the_command_says_what_is_wrong(self) -> None:
        memory = self.memory()
        run = cold.OPERATIONS[0].handler
        words = {p.name: p.default for p in cold.OPERATIONS[0].params}
        for more in ({"cold": True, "thaw": True}, {"forget": True},
                     {"cold": True, "below": "low"}, {"cold": True, "older_than": "-1"}):
            with self.assertRaises(UsageError):
                run(memory, **{**words, **more})
        self.assertEqual(run(memory, **words)["memories"], 0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@unittest.skipUnless(importlib.util.find_spec("moto") and importlib.util.find_spec("boto3")
                     and importlib.util.find_spec("flask"), "moto[server] and boto3")
class TestS3(Case):
    """A real S3 server on this machine."""

    def setUp(self) -> None:
        super().setUp()
        port = free_port()
        code = ("import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', "
                "sys.argv[1]])")
        self.server = subprocess.Popen([sys.executable, "-c", code, str(port)],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.server.wait)
        self.addCleanup(self.server.kill)
        self.url = f"http://127.0.0.1:{port}"
        patch = mock.patch.dict(os.environ, {
            "AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1", "AWS_EC2_METADATA_DISABLED": "true"})
        patch.start()
        self.addCleanup(patch.stop)
        for _ in range(600):
            try:
                urllib.request.urlopen(self.url, timeout=5).close()
                break
            except OSError:
                time.sleep(0.05)
        import boto3
        self.s3 = boto3.client("s3")
        self.s3.create_bucket(Bucket="cellar")

    def names(self) -> list[str]:
        return [row["Key"] for row in self.s3.list_objects_v2(Bucket="cellar").get("Contents", ())]

    def test_a_bucket_takes_gives_back_and_forgets(self) -> None:
        memory = self.memory("archive")
        rows = self.fill(memory)
        done = cold.freeze(memory, place="s3://cellar/agent")
        self.assertEqual((len(done.ids), len(self.names())), (2, 1))
        self.assertTrue(self.names()[0].startswith("agent/cold_"))
        self.assertFalse((memory.root / "cold").exists())
        memory.close()
        memory = self.memory("archive")
        self.assertIn("archive --thaw", " ".join(memory.recall("合同编号").degraded))
        cold.forget(memory, rows[1].id)
        cold.thaw(memory, "合同")
        self.assertEqual(memory.get(rows[0].id), rows[0])
        self.assertEqual(self.names(), [])

    def test_what_the_server_refuses_is_one_sentence_and_nothing_is_moved(self) -> None:
        memory = self.memory("archive")
        self.fill(memory)
        with self.assertRaisesRegex(RemoteError, "S3 refused s3://nowhere"):
            cold.freeze(memory, place="s3://nowhere")
        self.assertEqual(len(memory.store), 5)
        cold.freeze(memory, place="s3://cellar")
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()
        done = cold.thaw(memory)
        self.assertEqual((done.ids, len(done.left)), ((), 1))


class TestWithoutBoto(Case):
    def test_a_missing_package_is_named_with_its_command(self) -> None:
        memory = self.memory()
        self.fill(memory)
        with mock.patch.dict(sys.modules, {"boto3": None}), \
                self.assertRaisesRegex(MissingPackage, "pip install boto3"):
            cold.freeze(memory, place="s3://cellar")
        self.assertEqual(len(memory.store), 5)


if __name__ == "__main__":
    unittest.main()

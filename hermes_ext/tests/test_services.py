"""Remote services that fail, as commands of several processes meet them: real HTTP on 127.0.0.1."""
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hermes_ext.tests.base import HOME, TIMEOUT, setUpModule

import hermes_lite as core
from hermes_lite import HermesLite, RemoteError

try:
    import requests
    import yaml
except ImportError:
    requests = None


@unittest.skipIf(requests is None, "needs requests and pyyaml")
class Services(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.root = Path(place.name) / "root"
        self.root.mkdir()
        self.asked: list[tuple[str, dict]] = []
        self.answer = lambda path, body: (503, {"message": "overloaded"}, {})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((self.path, body))
                status, content, headers = outer.answer(self.path, body)
                raw = json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(raw)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *arguments: None       # a client that gave up
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.key = secrets.token_hex(12)
        self.configure()

    def configure(self, **more: dict) -> None:
        config = {"vectors": {"backend": "local", "close_seconds": 0.0}, **more}
        (self.root / "config.yaml").write_text(yaml.safe_dump(config))

    def run_(self, *words: str, **environ: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, HOME / "hermes_lite.py", "--root", self.root, *words],
            env={"PATH": os.environ["PATH"], "HERMES_RERANK": "off", **environ},
            capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)

    def remember(self, count: int) -> None:
        with HermesLite(self.root) as memory, memory.batch():
            for number in range(count):
                memory.remember(f"Rack {number} holds the box {chr(97 + number) * 5}")

    def test_one_failure_is_asked_once_by_all_processes_named_or_auto(self) -> None:
        self.remember(1)
        self.answer = lambda path, body: (402, {"message": "no balance"}, {})
        vectors = {"base_url": self.url, "model": "m", "close_seconds": 0.0}
        for backend, environ in (("auto", {}), ("openai", {}),
                                 ("auto", {"HERMES_VECTOR_BACKEND": "openai"})):
            with self.subTest(backend=backend, **environ):
                (self.root / ".vector_backend_state.json").unlink(missing_ok=True)
                self.configure(vectors={**vectors, "backend": backend})
                self.asked.clear()
                for _ in range(3):
                    done = self.run_("recall", "rack", **environ)
                    self.assertIn("Rack 0", done.stdout)
                    self.assertIn("answered locally", done.stderr)
                self.assertEqual(len(self.asked), 1)

    def test_naming_another_backend_than_the_one_that_failed_asks_anew(self) -> None:
        self.remember(1)
        self.answer = lambda path, body: (402, {"message": "no balance"}, {})
        self.configure(vectors={"base_url": self.url, "model": "m", "close_seconds": 0.0})
        self.run_("recall", "rack")
        self.run_("recall", "rack", HERMES_VECTOR_BACKEND="openai")
        self.assertEqual(len(self.asked), 2)

    def test_the_breaker_of_the_reranker_holds_across_processes(self) -> None:
        self.remember(3)
        self.configure(rerank={"url": self.url})
        for _ in range(3):
            done = self.run_("recall", "rack", HERMES_RERANK="", SILICONFLOW_API_KEY=self.key,
                             HERMES_VECTOR_BACKEND="local")
            self.assertIn("Rack", done.stdout)
            self.assertIn("rerank: ", done.stderr)
        self.assertEqual(len(self.asked), 3)           # one call with its retries, by the first

    def test_the_breaker_of_the_chat_model_holds_across_processes(self) -> None:
        self.answer = lambda path, body: (402, {"message": "no balance"}, {})
        self.configure(digest={"base_url": self.url})
        for _ in range(3):
            done = self.run_("digest", "From now on we use PostgreSQL 16.",
                             DEEPSEEK_API_KEY=self.key)
            self.assertIn("PostgreSQL 16", done.stdout)      # by the rules
            self.assertIn("digester", done.stderr)
        self.assertEqual(len(self.asked), 1)

    def test_a_failure_in_the_background_opens_the_breaker_and_is_said(self) -> None:
        self.answer = lambda path, body: (402, {"message": "no balance"}, {})
        self.configure(vectors={"base_url": self.url, "model": "m", "backend": "openai",
                                "close_seconds": 30.0})
        done = self.run_("remember", "The lamp is green")
        self.assertEqual(done.returncode, 0)
        self.assertIn("402", done.stderr)
        self.assertTrue((self.root / ".vector_backend_state.json").exists())
        self.run_("remember", "The door is blue")
        self.assertEqual(len(self.asked), 1)

    def test_a_question_waits_no_longer_than_it_may_whatever_is_asked_for(self) -> None:
        """The bound is the pause that Retry-After asks for: no tries follow that need it."""
        slept: list[float] = []
        made = core.RemoteVectorizer("fake", self.url, model="m", sleep=slept.append)
        self.answer = lambda path, body: (429, {}, {"Retry-After": "9"})
        with self.assertRaises(RemoteError):
            made.embed_query("rack")
        self.assertEqual((slept, len(self.asked)), ([], 1))
        with self.assertRaises(RemoteError):
            made.embed(["rack"])                       # the background has the time
        self.assertEqual(slept, [9.0, 9.0])

    def test_a_service_that_hangs_is_left_after_the_time_of_a_question(self) -> None:
        leave = threading.Event()
        self.addCleanup(leave.set)
        self.answer = lambda path, body: (leave.wait(TIMEOUT), (200, {}, {}))[1]
        made = core.RemoteVectorizer("fake", self.url, model="m", query_seconds=0.2)
        began = time.monotonic()
        with self.assertRaises(RemoteError):
            made.embed_query("rack")
        self.assertLess(time.monotonic() - began, TIMEOUT / 2)

    def test_a_limit_of_items_that_comes_as_400_halves_the_batch(self) -> None:
        def picky(path: str, body: dict):
            texts = body["input"]
            if len(texts) > 10:
                return 400, {"error": {"message": "batch size is invalid, it should not be "
                                                  "larger than 10"}}, {}
            return 200, {"data": [{"index": number, "embedding": [1.0, len(text)]}
                                  for number, text in enumerate(texts)]}, {}
        self.answer = picky
        self.remember(26)
        self.configure(vectors={"base_url": self.url, "model": "m", "backend": "openai",
                                "close_seconds": 0.0})
        with HermesLite(self.root) as memory:
            self.assertEqual(memory.embed_pending(), [])
            self.assertEqual(memory.vectors()["missing"], 0)
            self.assertEqual(memory.vectors()["breaker"], "closed")
        self.assertEqual([len(body["input"]) for _, body in self.asked][:5], [26, 13, 6, 6, 6])


if __name__ == "__main__":
    unittest.main()

"""The HTTP interface: a real server in a process of its own, asked over real sockets."""
from __future__ import annotations

import base64
import hashlib
import hmac
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path
from typing import Any

import hermes_lite
from hermes_ext import calls
from hermes_ext.tests.base import Case
from hermes_ext.tests.test_mcp import McpCase, asking, hello

HOME = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, str(HOME / "hermes_lite.py")]
HAS_SERVER = all(map(importlib.util.find_spec, (
    "fastapi", "uvicorn", "jwt", "limits", "prometheus_client", "httpx")))
NEEDS_SERVER = unittest.skipUnless(HAS_SERVER, "needs the extra server, and httpx")
ALL_ON = ("systems: {anchors: {}, salience: {}, audit: {}, lanes: {}, rules: {}, brain: {}, "
          "events: {}}\n")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Served(Case):
    """A root with a server in front of it, and tokens for each scope."""

    config = ALL_ON

    def setUp(self) -> None:
        super().setUp()
        self.root.mkdir()
        (self.root / "config.yaml").write_text(self.config)
        self.variables = {"PATH": os.defpath, "HOME": str(self.home)}
        self.process: subprocess.Popen[str] | None = None

    def serve(self, *options: str) -> None:
        import httpx
        self.port = free_port()
        self.process = subprocess.Popen(
            [*PROGRAM, "--root", str(self.root), "serve", "--port", str(self.port), *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.variables)
        self.addCleanup(self.stop)
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=60)
        self.addCleanup(self.client.close)
        while True:
            try:
                self.client.get("/api/v1/health")
                return
            except httpx.ConnectError:
                self.assertIsNone(self.process.poll(), "the server has ended")
                time.sleep(0.05)

    def stop(self, sign: int = signal.SIGTERM) -> tuple[str, str]:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(sign)
        out, err = self.process.communicate()
        return out or "", err or ""

    def token(self, *scopes: str, agent: str = "ops", days: str = "30") -> str:
        code, out, err = self.cli("token", "create", "--agent", agent, "--days", days, "--json",
                                  *(("--scope", *scopes) if scopes else ()))
        self.assertEqual(code, 0, err)
        return str(json.loads(out)["token"])

    def ask(self, method: str, path: str, token: str | None = None, **more: Any) -> Any:
        headers = {**({"authorization": f"Bearer {token}"} if token else {}),
                   **more.pop("headers", {})}
        return self.client.request(method, path, headers=headers, **more)

    def told(self, answer: Any, status: int, name: str) -> dict[str, Any]:
        """Check that an answer is an error of this name in the one shape, and return it."""
        self.assertEqual(answer.status_code, status, answer.text)
        self.assertEqual(set(answer.json()), {"error"})
        error: dict[str, Any] = answer.json()["error"]
        self.assertEqual(error["name"], name, error)
        self.assertEqual(error["request"], answer.headers["x-request-id"])
        self.assertNotIn("Traceback", answer.text)
        return error


@NEEDS_SERVER
class Routes(Served):
    def setUp(self) -> None:
        super().setUp()
        self.serve()
        self.writer = self.token("write")

    def test_a_program_remembers_finds_shows_and_forgets(self):
        made = self.ask("POST", "/api/v1/memory", self.writer, json={
            "content": "The staging database listens on port 5433", "tags": "db, #staging",
            "source_agent": "ops", "score": 7})
        self.assertEqual(made.status_code, 201, made.text)
        made_id = made.json()["result"]["id"]
        hits = self.ask("GET", "/api/v1/memory?q=staging+port&limit=3", self.writer).json()
        self.assertEqual(hits["result"]["hits"][0]["memory"]["id"], made_id)
        rows = self.ask("GET", "/api/v1/memory?tags=db,staging", self.writer).json()["result"]
        self.assertEqual([row["id"] for row in rows], [made_id])
        shown = self.ask("GET", f"/api/v1/memory/{made_id[-4:]}", self.writer).json()["result"]
        self.assertEqual((shown["agent"], shown["importance"]), ("ops", 7))
        context = self.ask("GET", "/api/v1/context?q=staging+port", self.writer)
        self.assertIn("5433", json.dumps(context.json()["result"]))
        health = self.client.get("/api/v1/health").json()
        self.assertEqual(health, {"status": "ok", "stb_size": 0, "lta_count": 1})
        gone = self.ask("DELETE", f"/api/v1/memory/{made_id}?reason=wrong", self.writer)
        self.assertEqual(gone.status_code, 200, gone.text)
        self.told(self.ask("GET", f"/api/v1/memory/{made_id}", self.writer), 404, "not_found")

    def test_every_error_has_one_shape(self):
        for method, path, more, status, name in (
                ("POST", "/api/v1/memory", {"json": {"text": "x", "tags": ["password"]}}, 403,
                 "refused"),
                ("POST", "/api/v1/memory", {"json": {"tags": ["a"]}}, 400, "usage"),
                ("POST", "/api/v1/memory", {"json": [1]}, 400, "usage"),
                ("POST", "/api/v1/memory", {"content": b"{"}, 400, "usage"),
                ("POST", "/api/v1/memory", {"content": b"[" * 100_000}, 400, "usage"),
                ("POST", "/api/v1/ops/recall", {"json": {"quary": "x"}}, 400, "usage"),
                ("POST", "/api/v1/ops/prune", {"json": {"yes": True}}, 403, "refused"),
                ("GET", "/api/v1/memory?limit=0", {}, 422, "usage"),
                ("GET", "/api/v1/memory/zzzz", {}, 404, "not_found"),
                ("GET", "/nowhere", {}, 404, "not_found"),
                ("PUT", "/api/v1/memory", {}, 405, "method_not_allowed"),
                ("POST", "/api/v1/memory", {"content": b"x" * 3_000_000}, 413, "too_large")):
            with self.subTest(f"{method} {path}"):
                self.told(self.ask(method, path, self.writer, **more), status, name)

    def test_a_secret_is_neither_kept_nor_said_again(self):
        secret = "sk-" + "aB3" * 12
        made = self.ask("POST", "/api/v1/memory", self.writer,
                        json={"text": f"the key of the shop is {secret}"})
        self.assertNotIn(secret, made.text)
        answer = self.ask("POST", "/api/v1/ops/recall", self.writer, json={secret: "x"})
        self.assertNotIn(secret, answer.text)
        self.stop()
        self.assertEqual(self.grep(secret), [])

    def test_every_write_is_audited_with_ip_agent_and_request(self):
        made = self.ask("POST", "/api/v1/memory", self.writer, json={"text": "the pilot is Kim"},
                        headers={"user-agent": "test/1"})
        self.ask("GET", "/api/v1/memory?q=pilot", self.writer)
        rows = [json.loads(row) for row in (self.root / "logs" / "audit.log").read_text()
                .splitlines()]
        wrote = next(row for row in rows if row["what"] == "remember")
        self.assertEqual((wrote["surface"], wrote["agent"], wrote["ip"], wrote["user_agent"],
                          wrote["request"]),
                         ("http remember", "ops", "127.0.0.1", "test/1",
                          made.headers["x-request-id"]))
        asked = next(row for row in rows if row["what"] == "recall")
        self.assertIn("query", asked)
        self.assertNotIn("pilot", json.dumps(asked))
        self.assertEqual(self.cli("audit", "verify")[0], 0)

    def test_a_page_of_another_origin_and_another_host_get_nothing(self):
        for headers, status in (({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403),
                                ({"host": "evil.example"}, 421), ({"host": ""}, 421)):
            with self.subTest(headers):
                answer = self.ask("GET", "/api/v1/memory", self.writer, headers=headers)
                self.told(answer, status, "refused")
        own = {"origin": self.url}
        self.assertEqual(self.ask("GET", "/api/v1/memory", self.writer, headers=own).status_code,
                         200)

    def test_a_stream_of_events_hears_other_programs_and_goes_on_after_a_break(self):
        self.ask("POST", "/api/v1/memory", self.writer, json={"text": "the pilot is Kim"})
        heard: list[dict[str, Any]] = []
        headers = {"authorization": f"Bearer {self.writer}", "last-event-id": "0"}
        with self.client.stream("GET", "/api/v1/events", headers=headers) as stream:
            for row in stream.iter_lines():
                if row.startswith("data: "):
                    heard.append(json.loads(row[6:]))
                    if len(heard) == 1:
                        self.assertEqual(self.cli("remember", "the ferry leaves at nine")[0], 0)
                if len(heard) == 2:
                    break
        self.assertEqual([(row["type"], row["surface"]) for row in heard],
                         [("write", "http remember"), ("write", "cli remember")])

    def test_metrics_count_requests_by_route(self):
        self.ask("GET", "/api/v1/memory/zzzz", self.writer)
        text = self.ask("GET", "/metrics", self.writer).text
        self.assertIn('route="/api/v1/memory/{id}",status="404"} 1.0', text)
        self.assertIn("hermes_memories 0.0", text)

    def test_a_person_with_the_right_to_review_approves_a_rule_and_a_program_may_not(self):
        reviewer = self.token("read", "review", agent="olga")
        code, out, err = self.cli("propose-rule", "--text", "Answer in German", "--json",
                                  "--source", "observation")
        waiting = json.loads(self.cli("pending-rules", "--json")[1])
        if not waiting:
            self.fail(f"no rule waits: {code} {out} {err}")
        rule = waiting[0]
        wanted = {"rule_id": rule["id"], "fingerprint": rule["fingerprint"]}
        self.told(self.ask("POST", "/api/v1/ops/approve-rule", self.writer, json=wanted), 403,
                  "refused")
        wrong = {**wanted, "fingerprint": "0" * len(rule["fingerprint"])}
        self.told(self.ask("POST", "/api/v1/ops/approve-rule", reviewer, json=wrong), 403,
                  "refused")
        self.told(self.ask("POST", "/api/v1/ops/approve-rule", reviewer,
                           json={"rule_id": rule["id"]}), 403, "refused")
        done = self.ask("POST", "/api/v1/ops/approve-rule", reviewer, json=wanted)
        self.assertEqual(done.status_code, 200, done.text)
        self.assertEqual(len(json.loads(self.cli("active-rules", "--json")[1])), 1)

    def test_every_route_refuses_who_has_no_token_or_the_wrong_scope(self):
        schema = self.ask("GET", "/api/v1/openapi.json", self.writer).json()
        known = calls.operations()
        scopes = {f"/api/v1/ops/{name.replace(' ', '/')}": calls.scope_of(one)
                  for name, one in known.items()}
        scopes |= {"/api/v1/memory": "read", "/api/v1/memory/{id}": "read"}
        tokens = {scope: self.token(scope, agent="one") for scope in calls.SCOPES}
        closed = 0
        for path, methods in schema["paths"].items():
            if path == "/api/v1/health":
                continue
            for method in methods:
                where = path.replace("{id}", "mem_1")
                with self.subTest(f"{method} {path}"):
                    self.told(self.ask(method, where), 401, "unauthorized")
                    self.told(self.ask(method, where, "no.real.token"), 401, "unauthorized")
                    scope = scopes.get(path, "read")
                    if path.startswith("/api/v1/memory") and method in ("post", "delete"):
                        scope = "write"
                    body: dict[str, Any] = {"text": "x"} if path == "/api/v1/memory" else {}
                    operation = known.get(path.removeprefix("/api/v1/ops/").replace("/", " "))
                    for param in operation.params if operation else ():
                        if param.required:
                            body[param.name] = ["x"] if param.repeated else (
                                1 if param.kind is int else "x")
                    if scope == "read":
                        continue
                    wrong = tokens["read"]
                    more = {"json": body} if method == "post" else {}
                    error = self.told(self.ask(method, where, wrong, **more), 403, "refused")
                    self.assertEqual(error["reason"], "needs_scope")
                    closed += 1
        self.assertGreater(closed, 30)


@NEEDS_SERVER
class Documented(Served):
    """The requests of docs/adapters.md, as a shell sends them."""

    def test_each_request_of_the_adapters_gives_what_it_says(self):
        self.serve()
        text = (HOME / "docs" / "adapters.md").read_text(encoding="utf-8")
        requests = re.findall(r"(?m)^curl .*$", text)
        self.assertEqual(len(requests), 6)
        variables = {**self.variables, "URL": self.url,
                     "TOKEN": self.token("write", agent="univer")}
        answers: list[dict[str, Any]] = []
        for request in requests:
            ran = subprocess.run(request, shell=True, env=variables, capture_output=True, text=True)
            answer = json.loads(ran.stdout)
            self.assertIn("result", answer, f"{request}\n{ran.stdout}")
            answers.append(answer["result"])
            if isinstance(answer["result"], dict) and "id" in answer["result"]:
                variables["ID"] = answer["result"]["id"]
        self.assertIn("CT2024-0876", answers[1][0]["content"])
        self.assertIn("three times", answers[3]["hits"][0]["memory"]["content"])
        self.assertEqual(len(json.loads(self.cli("list", "--json")[1])), 1)


@NEEDS_SERVER
class Tokens(Served):
    config = "systems: {audit: {}}\n"

    def forged(self, header: dict[str, Any], claims: dict[str, Any], key: bytes) -> str:
        def part(value: bytes) -> str:
            return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
        head = f"{part(json.dumps(header).encode())}.{part(json.dumps(claims).encode())}"
        kind = {"HS512": hashlib.sha512}.get(str(header.get("alg")), hashlib.sha256)
        return f"{head}.{part(hmac.new(key, head.encode(), kind).digest())}"

    def test_br40_no_forged_spoiled_or_ended_token_counts(self):
        self.serve()
        good = self.token("admin")
        self.assertEqual(self.ask("GET", "/api/v1/me", good).status_code, 200)
        head, body, signature = good.split(".")
        claims = json.loads(base64.urlsafe_b64decode(body + "=="))
        key = bytes.fromhex((self.root / ".server_key").read_text().strip())
        self.assertEqual((self.root / ".server_key").stat().st_mode & 0o777, 0o600)
        bad = [f"{head}.{body}.", f"{head}.{body}", f"{head}.{body}.{signature[:-4]}",
               f"{head}.{body}.{signature}=", "..", "a" * 3_000, "\u00e9".encode().decode(
                   "latin-1"), "None", good + "x"]
        for alg in ("none", "None", "NONE", "", None):
            bad.append(self.forged({"alg": alg, "typ": "JWT"}, claims, b""))
        for alg in ("HS512", "RS256", "ES256"):
            bad.append(self.forged({"alg": alg, "typ": "JWT"}, claims, key))
        now = int(time.time())
        for change in ({"exp": None}, {"exp": now - 5}, {"exp": "tomorrow"}, {"exp": "NaN"},
                       {"exp": 1e99}, {"nbf": now + 5_000}, {"sub": "boss"}, {"sub": None},
                       {"jti": "0" * 16}, {"jti": None}, {"jti": {}}, {"exp": True}):
            new = {name: value for name, value in {**claims, **change}.items()
                   if value is not None}
            bad.append(self.forged({"alg": "HS256", "typ": "JWT"}, new, key))
        bad.append(self.forged({"alg": "HS256"}, claims, b"secret"))
        bodies = set()
        for token in bad:
            with self.subTest(token[:60]):
                answer = self.ask("GET", "/api/v1/me", headers={
                    "authorization": b"Bearer " + token.encode("latin-1")})
                error = self.told(answer, 401, "unauthorized")
                bodies.add(error["message"])
        self.assertEqual(len(bodies), 1)
        wider = self.forged({"alg": "HS256"}, {**claims, "scope": ["read"]}, key)
        self.assertEqual(self.ask("GET", "/api/v1/me", wider).json()["result"]["scopes"], ["admin"])
        out, err = self.stop()
        for text in (good, signature, key.hex()):
            self.assertNotIn(text, out + err)

    def test_a_revoked_token_counts_no_longer_and_none_does_without_the_list(self):
        self.serve()
        token, other = self.token("read"), self.token("read", agent="two")
        rows = json.loads(self.cli("token", "list", "--json")[1])
        mine = next(row for row in rows if row["agent"] == "ops")
        self.assertIsNone(mine["token"])
        self.assertEqual(self.cli("token", "revoke", mine["id"])[0], 0)
        self.told(self.ask("GET", "/api/v1/me", token), 401, "unauthorized")
        self.assertEqual(self.ask("GET", "/api/v1/me", other).status_code, 200)
        (self.root / ".server_tokens.json").unlink()
        self.told(self.ask("GET", "/api/v1/me", other), 401, "unauthorized")
        (self.root / ".server_tokens.json").write_text("{")
        self.told(self.ask("GET", "/api/v1/me", other), 503, "damaged")

    def test_a_weak_secret_is_refused_and_a_strong_one_signs(self):
        for secret in ("secret", "change-me", "12345", "a" * 64):
            code, _, err = self.cli("token", "create", "--agent", "a", HERMES_SERVER_SECRET=secret)
            self.assertEqual((code, len(err.splitlines())), (3, 1), err)
        strong = hashlib.sha256(os.urandom(8)).hexdigest()
        code, out, _ = self.cli("token", "create", "--agent", "a", HERMES_SERVER_SECRET=strong)
        self.assertEqual(code, 0)
        self.assertFalse((self.root / ".server_key").exists())

    def test_wrong_arguments_are_one_sentence(self):
        for words, code in ((("token", "create"), 2), (("token", "create", "--agent", " "), 2),
                            (("token", "create", "--agent", "a", "--scope", "all"), 2),
                            (("token", "create", "--agent", "a", "--days", "0"), 2),
                            (("token", "revoke", "x"), 10), (("token",), 2),
                            (("serve", "--port", "70000"), 2),
                            (("serve", "--host", "no.such.host.invalid"), 1)):
            with self.subTest(words):
                got, _, err = self.cli(*words)
                self.assertEqual((got, len(err.strip().splitlines())), (code, 1), err)

    def test_a_taken_port_is_one_sentence(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            code, _, err = self.cli("serve", "--port", str(other.getsockname()[1]))
        self.assertEqual((code, len(err.strip().splitlines())), (1, 1), err)
        self.assertIn("port", err)

    def test_a_caller_that_asks_too_often_waits(self):
        self.serve("--per-minute", "5")
        token = self.token("read")
        answers = [self.ask("GET", "/api/v1/me", token) for _ in range(12)]
        late = next(answer for answer in answers if answer.status_code == 429)
        self.told(late, 429, "rate_limited")
        self.assertGreaterEqual(int(late.headers["retry-after"]), 1)
        self.assertEqual(self.ask("GET", "/api/v1/me", self.token("read")).status_code, 200)


@NEEDS_SERVER
class Surfaces(Served, McpCase):
    """One table: the library, the command line, HTTP and MCP give the same result and refusal."""

    def test_every_operation_answers_alike_everywhere(self):
        with self.open_now() as memory:
            self.ids = [memory.remember(text, tags=["port"]).id for text in (
                "the harbour master is Olga", "the ferry leaves at nine",
                "Port 5433 is for staging")]
        self.serve()
        known = {name: one for name, one in calls.operations().items()
                 if name not in _OF_THIS_MACHINE}
        # What changes something comes last, and there only the refusals have to be the same.
        reads = {name: one for name, one in known.items() if not one.writes or one.destructive}
        self.compare_all(reads)
        self.compare_all({name: one for name, one in known.items() if name not in reads})

    def compare_all(self, known) -> None:
        admin = self.token("admin")
        given = {name: self.arguments_for(one) for name, one in known.items()}
        over_mcp = self.ask_over_mcp(given)
        for name, operation in known.items():
            with self.subTest(name):
                answer = self.ask("POST", f"/api/v1/ops/{name.replace(' ', '/')}", admin,
                                  json=given[name])
                code, out, err = self.cli(*name.split(" "), *self.words(operation, given[name]),
                                          "--json")
                self.compare(operation, answer, code, out, err)
                self.compare_library(operation, given[name], answer)
                self.compare_mcp(operation, over_mcp[name], answer)

    def compare_mcp(self, operation, result: dict[str, Any], answer) -> None:
        """Check that MCP says what HTTP says; what needs review or admin is refused there."""
        if calls.scope_of(operation) not in ("read", "write"):
            self.assertRegex(result["content"][0]["text"], "^refused: .*scope")
        elif answer.status_code != 200:
            error = answer.json()["error"]
            self.assertEqual(result["content"][0]["text"], f"{error['name']}: {error['message']}")
        elif not operation.writes:
            self.assertEqual(self.plain(result["structuredContent"]["result"]),
                             self.plain(answer.json()["result"]))

    def open_now(self) -> hermes_lite.HermesLite:
        """Open the root with the clock that the other processes have."""
        return hermes_lite.HermesLite(self.root, config=hermes_lite.load_config(
            self.root, environ={}))

    def arguments_for(self, operation) -> dict[str, Any]:
        """Return what an operation must be given; ids are there, other words mean nothing."""
        given: dict[str, Any] = {}
        for param in operation.params:
            if param.required:
                value = self.ids[0] if param.kind is hermes_lite.MemoryId else "nothing like it"
                given[param.name] = [value] if param.repeated else value
        if operation.destructive:
            given["dry_run"] = True
        return given

    def ask_over_mcp(self, given) -> dict[str, Any]:
        """Return {operation: the tool's result}, asked through a pipe of one server."""
        lines = [asking(name, name.replace(" ", "_").replace("-", "_"), arguments)
                 for name, arguments in given.items()]
        started = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        answers, _ = self.talk(hello(), started, *lines, words=("--tools", "all"))
        return {name: answers[name]["result"] for name in given}

    def compare(self, operation, answer, code: int, out: str, err: str) -> None:
        """Check that HTTP says what the command line says."""
        if answer.status_code != 200:
            error = answer.json()["error"]
            self.assertEqual((error["exit_code"], answer.status_code < 500), (code, True),
                             (error, err))
        elif not operation.writes or operation.destructive:
            self.assertEqual(code, 0, err)
            self.assertEqual(self.plain(json.loads(out)), self.plain(answer.json()["result"]))

    def compare_library(self, operation, given: dict[str, Any], answer) -> None:
        """Check that the handler, called by a program, gives what HTTP gives."""
        memory = self.open_now()
        arguments = {param.name: given.get(param.name, param.default)
                     for param in operation.params}
        if operation.destructive:
            arguments["dry_run"] = True
        try:
            result = hermes_lite.run_operation(memory, operation, arguments, surface="python")
        except hermes_lite.HermesError as problem:
            self.assertEqual(calls.error_of(problem)["error"]["message"],
                             answer.json().get("error", {}).get("message", "no error"))
        else:
            if not operation.writes:
                self.assertEqual(answer.status_code, 200, answer.text)
                self.assertEqual(self.plain(calls.as_json(result)),
                                 self.plain(answer.json()["result"]))
        finally:
            memory.close()

    def words(self, operation, given) -> list[str]:
        """Return the words of a command for these arguments."""
        words: list[str] = []
        for param in operation.params:
            value = given.get(param.name)
            if value is not None and not param.positional:
                words += [f"--{param.name.replace('_', '-')}", *([value] if isinstance(value, str)
                                                                 else value)]
        for param in operation.params:
            value = given.get(param.name)
            if value is not None and param.positional:
                words += [value] if isinstance(value, str) else value
        return [*words, *(["--dry-run"] if given.get("dry_run") else [])]

    def plain(self, value: Any) -> Any:
        """Leave out what two calls do not have in common: times, and when something was used."""
        if isinstance(value, dict):
            return {name: self.plain(item) for name, item in value.items()
                    if name not in _CHANGING}
        return [self.plain(item) for item in value] if isinstance(value, list) else value


# What the first of the two calls changes for the second, and what one of them adds.
_CHANGING = {"access_count", "last_accessed", "kept_until", "at", "why_empty", "strength", "n",
             "limit", "head", "lines", "count", "hot", "cold", "score", "used", "seconds", "now", "since",
             "bytes", "until", "acts", "reads"}
# They read what the calls themselves write, or name their result by the second.
_OF_THIS_MACHINE = {"audit", "doctor", "sync", "vault", "backup", "snapshot"}


@NEEDS_SERVER
class Load(Served):
    config = "systems: {audit: {}, events: {}}\n"

    def test_a_kill_in_the_middle_loses_nothing_that_was_confirmed(self):
        self.serve("--per-minute", "0")
        token = self.token("write")
        confirmed: list[str] = []
        stop = threading.Event()

        def write(name: int) -> None:
            import httpx
            number = 0
            with httpx.Client(base_url=self.url, timeout=60) as client:
                while not stop.is_set():
                    number += 1
                    text = f"writer {name} saw ship number {number} in the harbour"
                    try:
                        answer = client.post("/api/v1/memory", json={"text": text}, headers={
                            "authorization": f"Bearer {token}"})
                    except httpx.HTTPError:
                        return
                    if answer.status_code == 201:
                        confirmed.append(answer.json()["result"]["id"])
        writers = [threading.Thread(target=write, args=(name,)) for name in range(4)]
        for writer in writers:
            writer.start()
        while len(confirmed) < 30:
            time.sleep(0.02)
        self.stop(signal.SIGKILL)
        stop.set()
        for writer in writers:
            writer.join()
        kept = {one.id for one in self.open().list()}
        self.assertEqual(set(confirmed) - kept, set())

    def test_a_polite_stop_ends_streams_and_finishes_what_has_begun(self):
        self.serve()
        token = self.token("write")
        headers = {"authorization": f"Bearer {token}"}
        with self.client.stream("GET", "/api/v1/events", headers=headers) as stream:
            rows = stream.iter_lines()
            next(rows)
            self.process.send_signal(signal.SIGTERM)
            self.assertEqual([row for row in rows if row.startswith("data")], [])
        self.process.wait()
        _, err = self.stop()
        self.assertEqual((self.process.returncode, err), (0, ""))


@NEEDS_SERVER
class Described(Served):
    def test_schemathesis_finds_no_server_error(self):
        self.serve("--per-minute", "0")
        token = self.token("admin")
        tool = Path(sys.executable).parent / "schemathesis"
        ran = subprocess.run(
            [str(tool), "run", f"{self.url}/api/v1/openapi.json", "--header",
             f"Authorization: Bearer {token}", "--checks", "not_a_server_error",
             "--max-examples", "3", "--seed", "7", "--exclude-path", "/api/v1/events",
             "--phases", "examples,fuzzing", "--no-color"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**self.variables, "PATH": f"{tool.parent}:{os.defpath}"}, cwd=self.home)
        self.assertEqual(ran.returncode, 0, ran.stdout[-4000:])


if __name__ == "__main__":
    unittest.main()

"""The hooks that `connect` enters, as the host runs them: whole processes, JSON in, JSON out."""
from __future__ import annotations

import json
import os
import subprocess
import time
import unittest

from hermes_ext.tests import agent_logs
from hermes_ext.tests.agent_logs import at, claude
from hermes_ext.tests.base import HAS_CRYPTO, HAS_YAML, Case
from hermes_lite import FileLock

FACT = "We decided to use PostgreSQL 16 for the billing service."


@unittest.skipUnless(HAS_YAML, "needs PyYAML")
class Hooks(Case):
    backend = "files"

    def setUp(self) -> None:
        super().setUp()
        self.root.mkdir()
        (self.root / "config.yaml").write_text(
            f"storage: {{backend: {self.backend}}}\nsystems: {{lanes: {{}}, audit: {{}}}}\n")
        (self.home / ".claude").mkdir()
        self.variables = {"PATH": os.defpath, "HOME": str(self.home)}
        code, _, err = self.cli("connect", "claude-code", "--yes")
        self.assertEqual(code, 0, err)

    def command(self, event: str) -> str:
        settings = json.loads((self.home / ".claude/settings.json").read_text())
        name = {"session-start": "SessionStart", "session-end": "SessionEnd"}[event]
        return str(settings["hooks"][name][-1]["hooks"][0]["command"])

    def hook(self, event: str, payload: object = None, raw: bytes | None = None,
             **environ: str) -> str:
        """Run a hook the way the host does, through a shell; it always ends with 0."""
        given = {"session_id": "cc-9", "cwd": "/ws/app", "hook_event_name": "SessionStart"}
        data = json.dumps(given if payload is None else payload).encode() if raw is None else raw
        ran = subprocess.run(self.command(event), shell=True, input=data, capture_output=True,
                             env={**self.variables, **environ})
        self.assertEqual((ran.returncode, ran.stderr), (0, b""))
        return ran.stdout.decode()

    def context(self, **environ: str) -> str:
        out = self.hook("session-start", **environ)
        if not out:
            return ""
        answer = json.loads(out)
        self.assertEqual(set(answer["hookSpecificOutput"]), {"hookEventName", "additionalContext"})
        return str(answer["hookSpecificOutput"]["additionalContext"])

    def logged(self) -> str:
        path = self.root / "logs" / "hooks.log"
        return path.read_text() if path.exists() else ""

    def wait_for(self, text: str) -> None:
        """Wait until the background process has made the memory known to the next session."""
        for _ in range(600):
            path = self.root / ".hook_context.json"
            if path.exists() and text in path.read_text():
                return
            time.sleep(0.05)
        self.fail(f"{text!r} did not come; {self.logged()}")

    def test_a_host_is_shown_what_its_configuration_names(self):
        for agent in ("codex", "claude-code", "cursor"):
            code, _, err = self.cli("remember", f"{agent} keeps the {agent}lantern", "--agent", agent,
                                    **self.variables)
            self.assertEqual(code, 0, err)
        self.cli("remember", "nobody keeps the sternlantern", **self.variables)
        self.assertIn("cursorlantern", self.context())
        for words, wanted in (("connect claude-code --reads codex --yes", 11),
                              ("disconnect claude-code --yes", 0),
                              ("connect claude-code --reads codex --yes", 0)):
            self.assertEqual(self.cli(*words.split(), **self.variables)[0], wanted)
        for _ in range(2):
            shown = self.context()
            for name in ("codexlantern", "claude-codelantern", "sternlantern"):
                self.assertIn(name, shown)
            self.assertNotIn("cursorlantern", shown)
        servers = json.loads((self.home / ".claude.json").read_text())["mcpServers"]
        self.assertEqual(servers["hermes-memory"]["args"][-2:], ["--reads", "codex"])

    def test_a_session_ends_and_the_next_one_knows(self):
        self.assertEqual(self.context(), "")
        path = agent_logs.append(
            self.home / ".claude/projects/-ws-app/cc-1.jsonl",
            claude("user", FACT, at(1)), claude("assistant", "Noted.", at(2)))
        self.assertEqual(self.hook("session-end", {
            "session_id": "cc-1", "cwd": "/ws/app", "transcript_path": str(path)}), "")
        self.wait_for("PostgreSQL 16")
        self.assertIn("PostgreSQL 16", self.context())
        rows = json.loads(self.cli("list", "--json")[1])
        self.assertEqual([row["agent"] for row in rows], ["claude-code"])
        self.assertTrue(rows[0]["source"].startswith(f"claude-code:{path}#1"), rows[0]["source"])
        self.assertEqual(json.loads(self.cli("agents", "--json")[1])[0]["problem"], None)

    def test_what_is_forgotten_is_not_told_to_the_next_session(self):
        self.cli("remember", "The build of billing needs make")
        self.assertIn("make", self.context())
        self.assertTrue((self.root / ".hook_context.json").exists())
        self.assertIn("make", self.context())
        made = json.loads(self.cli("list", "--json")[1])[0]["id"]
        self.assertEqual(self.cli("forget", made)[0], 0)
        self.assertFalse((self.root / ".hook_context.json").exists())
        self.assertNotIn("make", self.context())
        self.cli("remember", "The build of billing needs cmake 3")
        self.assertIn("cmake 3", self.context())

    def test_in_private_nothing_is_read_or_kept_and_the_host_shows_it(self):
        self.cli("remember", "The build of billing needs make")
        self.cli("private", "on", "--session", "cc-9")
        answer = json.loads(self.hook("session-start"))
        self.assertIn("private mode is on", answer["systemMessage"])
        self.assertNotIn("make", json.dumps(answer))
        self.hook("session-end")
        self.assertNotIn("sediment", self.logged())
        self.cli("private", "off")
        time.sleep(1.1)                            # a period covers whole seconds
        self.assertIn("make", self.context())
        (self.root / "private.json").write_text("{")
        self.assertNotIn("make", self.context())

    def test_nothing_that_fails_disturbs_the_host(self):
        self.cli("remember", "The build of billing needs make")
        for raw in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 50_000):
            self.hook("session-start", raw=raw)
            self.hook("session-end", raw=raw)
        (self.root / ".hook_context.json").write_text("{")
        self.assertIn("make", self.context())
        (self.root / "config.yaml").write_text("systems: [broken\n")
        self.assertEqual(self.context(), "")
        self.assertIn("config.yaml", self.logged())
        (self.root / "bin" / "hermes-hook").chmod(0o400)
        self.hook("session-start")

    def test_a_locked_store_and_a_slow_one_are_given_up(self):
        self.cli("remember", "The build of billing needs make")
        lock = FileLock(self.root / ".lock")
        lock.acquire(timeout=5)
        try:
            started = time.monotonic()
            self.context(HERMES_LITE_HOOK_SECONDS="1")
            self.assertLess(time.monotonic() - started, 60)
        finally:
            lock.release()
        self.assertIn("make", self.context())
        pipe = subprocess.Popen(self.command("session-start"), shell=True, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**self.variables, "HERMES_LITE_HOOK_SECONDS": "0.5"})
        self.assertEqual(pipe.wait(), 0)           # nothing comes on its standard input
        pipe.communicate()
        self.assertIn("it took too long", self.logged())

    def test_a_subagents_log_writes_nothing(self):
        path = agent_logs.append(
            self.home / ".claude/projects/-ws-app/cc-1/subagents/agent-1.jsonl",
            claude("user", FACT, at(1), isSidechain=True))
        self.hook("session-end", {"session_id": "cc-1", "transcript_path": str(path)})
        for _ in range(100):
            if (self.root / ".lock_sediment").exists():
                break
            time.sleep(0.05)
        time.sleep(0.5)
        self.assertEqual(json.loads(self.cli("list", "--json")[1]), [])


class OnTheArchive(Hooks):
    backend = "archive"


@unittest.skipUnless(HAS_CRYPTO, "needs cryptography")
class Sealed(Hooks):
    """An encrypted store keeps no block in the clear."""

    def setUp(self) -> None:
        super().setUp()
        self.variables["HERMES_ENCRYPT"] = "on"

    def test_a_session_ends_and_the_next_one_knows(self):
        self.cli("remember", "The build of billing needs make", HERMES_ENCRYPT="on")
        for _ in range(2):
            self.assertIn("make", self.context())
            self.assertFalse((self.root / ".hook_context.json").exists())

    test_what_is_forgotten_is_not_told_to_the_next_session = None
    test_in_private_nothing_is_read_or_kept_and_the_host_shows_it = None
    test_nothing_that_fails_disturbs_the_host = None
    test_a_locked_store_and_a_slow_one_are_given_up = None
    test_a_subagents_log_writes_nothing = None


if __name__ == "__main__":
    unittest.main()

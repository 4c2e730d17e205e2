"""The hosts that `connect` knows: where their settings lie, and what is entered there.

A host is data: its files, each with a format (`edits`) and the entry. Facts are of the versions
that were tried: Claude Code 2.1, Codex 0.171, Gemini CLI 0.61, OpenClaw 2026.9, Hermes Agent 0.19,
DSH 0.2; Cursor's and WorkBuddy's are from their documents.
"""
from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_ext.agents.edits import JsonEntries, TextBlock, YamlMemory

__all__ = ["Entry", "HOSTS", "Host", "SERVER"]

SERVER = "hermes-memory"                           # the name of the MCP server in every host


@dataclass(frozen=True, slots=True)
class Entry:
    """What is entered: the words that start the MCP server, those of the hooks, and the root."""
    server: tuple[str, ...]
    hook: tuple[str, ...]
    root: Path
    agent: str
    reads: str = ""                                # agents with commas; "" is all

    def stdio(self) -> dict[str, Any]:
        """Return the server as most hosts write it."""
        return {"command": self.server[0], "args": list(self.server[1:]),
                "env": {"HERMES_AGENT": self.agent}}

    def hook_command(self, event: str) -> str:
        """Return the shell command of a hook."""
        return shlex.join([*self.hook[:2], event, *self.hook[2:]])


Edit = JsonEntries | TextBlock | YamlMemory


@dataclass(frozen=True, slots=True)
class Host:
    """One host. `home(environ, home)` is the folder of its settings; it is there if the host is."""
    name: str
    home: Callable[[Mapping[str, str], Path], Path]
    edits: Callable[[Path, Entry], list[Edit]]
    then: str = ""                                 # what the person still has to do


def _folder(variable: str, default: str) -> Callable[[Mapping[str, str], Path], Path]:
    def find(environ: Mapping[str, str], home: Path) -> Path:
        given = environ.get(variable, "").strip() if variable else ""
        return Path(given).expanduser() if given else home / default
    return find


def _claude_hook(entry: Entry, event: str, **more: Any) -> dict[str, Any]:
    return {"hooks": [{"type": "command", "command": entry.hook_command(event), **more}]}


def _claude_code(folder: Path, entry: Entry) -> list[Edit]:
    is_default = folder.name == ".claude"
    servers = folder.parent / ".claude.json" if is_default else folder / ".claude.json"
    return [JsonEntries(servers, {("mcpServers", SERVER): {"type": "stdio", **entry.stdio()}}),
            JsonEntries(folder / "settings.json", {}, {
                ("hooks", "SessionStart"): _claude_hook(entry, "session-start", timeout=10),
                ("hooks", "SessionEnd"): _claude_hook(entry, "session-end", timeout=10)})]


def _codex(folder: Path, entry: Entry) -> list[Edit]:
    server = entry.stdio()
    text = (f"[mcp_servers.{SERVER}]\ncommand = {_toml(server['command'])}\n"
            f"args = [{', '.join(map(_toml, server['args']))}]\n\n"
            f"[mcp_servers.{SERVER}.env]\nHERMES_AGENT = {_toml(entry.agent)}\n")
    return [TextBlock(folder / "config.toml", text, is_there=f"[mcp_servers.{SERVER}]"),
            JsonEntries(folder / "hooks.json", {}, {
                ("hooks", "SessionStart"): _claude_hook(entry, "session-start", timeout=10),
                ("hooks", "Stop"): _claude_hook(entry, "session-end", timeout=10)})]


def _gemini(folder: Path, entry: Entry) -> list[Edit]:
    return [JsonEntries(folder / "settings.json", {("mcpServers", SERVER): entry.stdio()}, {
        ("hooks", "SessionStart"): _claude_hook(entry, "session-start", timeout=10_000),
        ("hooks", "SessionEnd"): _claude_hook(entry, "session-end", timeout=10_000)})]


def _cursor(folder: Path, entry: Entry) -> list[Edit]:
    return [JsonEntries(folder / "mcp.json", {("mcpServers", SERVER): entry.stdio()}),
            JsonEntries(folder / "hooks.json", {("version",): 1}, {
                ("hooks", "sessionStart"): {"command": entry.hook_command("session-start")},
                ("hooks", "sessionEnd"): {"command": entry.hook_command("session-end")}})]


def _openclaw(folder: Path, entry: Entry) -> list[Edit]:
    return [JsonEntries(folder / "openclaw.json", {("mcp", "servers", SERVER): entry.stdio()})]


def _dsh(folder: Path, entry: Entry) -> list[Edit]:
    server = entry.stdio()
    args = ", ".join(map(_yaml, server["args"]))
    text = (f"- insert:\n    - id: mcp-{SERVER}\n      name: '@deepseek-ai/dsh-mcp-client'\n"
            f"      config: {{serverName: {SERVER}, transport: stdio, command: "
            f"{_yaml(server['command'])}, args: [{args}], env: {{HERMES_AGENT: "
            f"{_yaml(entry.agent)}}}}}\n")
    return [TextBlock(folder / "cordis.patch.yml", text, is_there=f"id: mcp-{SERVER}")]


def _hermes(folder: Path, entry: Entry) -> list[Edit]:
    home = Path(__file__).resolve().parents[2]
    plugin = folder / "plugins" / "hermes-lite"
    reads = (f"os.environ.setdefault(\"HERMES_LITE_READS\", {entry.reads!r})\n" if entry.reads
             else "")
    text = ("# Loads the memory provider register_memory_provider of hermes-lite.\n"
            f"import os\nos.environ.setdefault(\"HERMES_LITE_HOME\", {str(home)!r})\n"
            f"os.environ.setdefault(\"HERMES_LITE_ROOT\", {str(entry.root)!r})\n"
            f"{reads}import sys\nsys.path.append({str(home)!r})      # at the end: it hides nothing\n"
            "from hermes_ext.agents.hermes import register  # noqa: F401, E402\n")
    manifest = (Path(__file__).parent / "hermes" / "plugin.yaml").read_text(encoding="utf-8")
    return [TextBlock(plugin / "plugin.yaml", manifest, is_there="name:"),
            TextBlock(plugin / "__init__.py", text, is_there="register_memory_provider"),
            YamlMemory(folder / "config.yaml", "hermes-lite")]


def _toml(text: str) -> str:
    """Write a basic string of TOML."""
    import json
    return json.dumps(text)


def _yaml(text: str) -> str:
    """Write a string in single quotes, as YAML reads it literally."""
    return "'" + text.replace("'", "''") + "'"


HOSTS: dict[str, Host] = {host.name: host for host in (
    Host("claude-code", _folder("CLAUDE_CONFIG_DIR", ".claude"), _claude_code),
    Host("codex", _folder("CODEX_HOME", ".codex"), _codex,
         "Codex asks once whether it may run the hooks: start it, and say yes"),
    Host("openclaw", _folder("OPENCLAW_STATE_DIR", ".openclaw"), _openclaw,
         "OpenClaw runs no hooks of this kind: let cron read its sessions, "
         "`hermes-sediment --from openclaw --all --apply`"),
    Host("hermes", _folder("HERMES_HOME", ".hermes"), _hermes,
         "let cron read its sessions, too: `hermes-sediment --from hermes --all --apply`"),
    Host("cursor", _folder("", ".cursor"), _cursor),
    Host("gemini", _folder("", ".gemini"), _gemini),
    Host("dsh", _folder("DSH_HOME", ".dsh"), _dsh,
         "DSH runs no hooks: let cron read its sessions, `hermes-sediment --latest --apply`"),
    Host("workbuddy", _folder("", ".workbuddy"), lambda folder, entry: [],
         "WorkBuddy is connected in its settings: run `hermes-lite serve`, choose Advanced → Memory "
         "Backend → Custom HTTP with http://127.0.0.1:8765, and a token of `token create`"))}

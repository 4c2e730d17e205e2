"""MCP: the memory as tools, resources and a prompt of the Model Context Protocol.

    hermes_lite.py mcp                       a client starts it and speaks through the pipe
    hermes_lite.py mcp --http 8766           streamable HTTP at http://127.0.0.1:8766/mcp
    hermes_lite.py mcp --tools all           a tool for each operation, too
    hermes_lite.py mcp --scope read          nothing is written
    hermes_lite.py mcp --reads codex,hermes  what these two and the client wrote, or nobody named

It needs the package mcp (`pip install "mcp>=1.26,<3"`). docs/mcp.md has the settings for Claude
Code, Codex, OpenClaw, Hermes and others.

tools      default: memory_search, memory_get, memory_add, memory_update, memory_forget,
           memory_timeline, memory_context and memory_status. connectors: `search` and `fetch`
           besides, for clients that need these names. all: every operation besides.
origin     What a client writes carries its name as `agent` (HERMES_AGENT in the environment takes
           its place) and enters through the door "mcp", whose ceiling is `inference`.
approvals  None: to verify, approve or reject is a person's right, at a terminal or on the page of
           `serve`. Nor does a client reach files of this machine, backups or a prune.
stdout     Belongs to the protocol alone. What anything else prints, even a program that is run,
           goes to standard error.
errors     A tool's result with isError and one sentence that begins with the error's name, such
           as "not_found: ...". It is redacted and never shows a stack trace.
HTTP       On the loopback interface alone. Host and Origin must be of this machine, and each
           request needs `Authorization: Bearer TOKEN`; see `streamable_http`.
"""
from __future__ import annotations

import os

from hermes_ext.mcp import stdio
from hermes_ext.reads import limit, names_of
from hermes_lite import HermesLite, Operation, Param, UsageError

__all__ = ["OPERATIONS", "serve"]

SETS = ("default", "connectors", "all")
SCOPES = ("read", "write")


def serve(memory: HermesLite, *, http: int | None = None, tools: str = "default",
          scope: str = "write", reads: str = "all") -> None:
    """Serve until the client closes the pipe, or until a signal comes; MissingPackage without mcp.

    *tools* is one of SETS, *scope* the most that any client may do. *reads* are the agents, with
    commas, whose memories are shown.
    """
    _check_choice("tools", tools, SETS)
    _check_choice("scope", scope, SCOPES)
    names = names_of(reads, memory.config.env("HERMES_AGENT"))
    if names and tools == "all":
        raise UsageError("--reads holds for the tools that show memories, not for --tools all")
    limit(memory, names)
    from hermes_ext.mcp.surface import Surface
    surface = Surface(memory, tools=tools, scope=scope,
                      project=os.getcwd() if http is None else None)
    if http is None:
        stdio.serve(surface)
        return
    from hermes_ext.mcp import streamable_http
    streamable_http.serve(surface, http)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"--{name} is {value[:40]!r}; use one of: {', '.join(choices)}")


def _open(root: str | os.PathLike[str] | None) -> HermesLite:
    """Open the memory; standard output is the protocol's before any system can print."""
    stdio.claim()
    return HermesLite(root)


OPERATIONS = (
    Operation("mcp", "serve the memory to a client of the Model Context Protocol", serve, (
        Param("http", int, "streamable HTTP on this port of 127.0.0.1 instead of standard input "
              "and output; 0 takes a free one", least=0, most=65535),
        Param("tools", str, "default, connectors (search and fetch besides) or all", "default"),
        Param("scope", str, "the most a client may do: read or write", "write"),
        Param("reads", str, "agents, with commas, whose memories are shown", "all")),
        open=_open, scope="local"),
)

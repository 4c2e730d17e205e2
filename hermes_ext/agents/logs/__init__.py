"""Session logs of agents: for each host, where its logs lie and what an event of one says.

    reader        what a reader is made of, and helpers for all of them
    claude_code   Claude Code: JSON lines
    codex         Codex CLI: rollouts, JSON lines
    openclaw      OpenClaw and pi: JSON lines, or the SQLite file of newer versions
    hermes        Hermes Agent: state.db, or what `hermes sessions export` wrote
    gemini        Gemini CLI: JSON lines, or one JSON document of older versions
    chatgpt       the export of ChatGPT: conversations.json, or the zip that holds it

A host is added by a module with `READER`, and its name in READERS. `auto_sediment.py` reads the
logs of DSH itself, and works without this folder.
"""
from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from hermes_ext.agents.logs.reader import Event, Log, Reader, Said
from hermes_lite import DamagedData

__all__ = ["Event", "Log", "READERS", "Reader", "Said", "get", "recognise"]

READERS: dict[str, str] = {
    "claude-code": "claude_code", "codex": "codex", "openclaw": "openclaw", "hermes": "hermes",
    "gemini": "gemini", "chatgpt-export": "chatgpt"}
_SAMPLE = 200              # events by which a log is recognised


def get(host: str) -> Reader:
    """Return the reader for the logs of a host."""
    module = importlib.import_module(f"{__name__}.{READERS[host]}")
    reader: Reader = module.READER
    return reader


def recognise(path: Path, head: bytes, lines: Iterator[Event]) -> Reader | None:
    """Return the reader that knows the most of a log's first events; None where none knows any.

    *head* are the log's first bytes, *lines* its events where it is of JSON lines.
    """
    best: Reader | None = None
    most = 0
    of_lines = [*islice(lines, _SAMPLE)]
    for host in READERS:
        reader = get(host)
        log = Log()
        try:
            rows = reader.rows(path, head) if reader.rows else None
            for _, event in of_lines if rows is None else islice(rows, _SAMPLE):
                for _ in reader.read(event or {}, log):
                    pass
        except DamagedData:
            raise
        except ValueError:                         # a database or document of another program
            continue
        if log.known > most:
            best, most = reader, log.known
    return best

"""Hermes Agent: ~/.hermes/state.db, or the lines that `hermes sessions export` wrote.

What was compacted was said, and is read; what was undone is not. The copy of a message with what
was injected stands in another column and is not read.
"""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes_ext.agents.logs.reader import (Event, Log, Reader, Said, database_rows, home, millis,
                                           text_of)

__all__ = ["READER"]

_NOT_A_PERSON = ("cron", "subagent", "delegate", "background")


def _read(event: dict[str, Any], log: Log) -> Iterator[Said]:
    messages = event.get("messages")
    if not isinstance(messages, list):
        return
    session = event.get("session_id") or event.get("id")
    if session is None or not {"source", "started_at"} & event.keys():
        return
    log.known += 1
    log.session = str(session)
    log.project = str(event["cwd"]) if event.get("cwd") else None      # a chat has none
    log.parent = str(event.get("parent_session_id") or "")
    log.nested = event.get("source") in _NOT_A_PERSON
    for number, message in enumerate(messages, 1):
        if isinstance(message, dict) and message.get("role") in ("user", "assistant"):
            yield Said(message["role"], text_of(message.get("content")),
                       millis(message.get("timestamp")), str(message.get("id") or ""),
                       str(message.get("id") or f"{session}:{number}"))


def _rows(path: Path, head: bytes) -> Iterator[Event] | None:
    found = database_rows(path, head, ("sessions", "messages"), _query)
    return None if found is None else (
        (str(row["id"]), {**row, "id": None, "messages": [row]}) for row in found)


def _query(columns: dict[str, set[str]]) -> str:
    """Return the query for the columns that this version of the host has."""
    of_session = [f"s.{name}" if name in columns["sessions"] else f"NULL AS {name}"
                  for name in ("source", "started_at", "cwd", "parent_session_id")]
    is_said = "TRUE"
    if "active" in columns["messages"]:
        is_said = "m.active = 1"
        if "compacted" in columns["messages"]:
            is_said += " OR m.compacted = 1"
    return (f"SELECT m.id, m.session_id, m.role, m.content, m.timestamp, {', '.join(of_session)}"
            " FROM messages m LEFT JOIN sessions s ON s.id = m.session_id"
            f" WHERE {is_said} ORDER BY m.id")


READER = Reader("hermes", lambda environ: [home(environ, "HERMES_HOME", "~/.hermes")],
                r"state\.db", _read, _rows)

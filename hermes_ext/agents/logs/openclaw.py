"""OpenClaw and pi: JSON lines with a tree of messages; since 2026.9 the same events in SQLite.

    ~/.openclaw/agents/AGENT/sessions/SESSION.jsonl, sessions/cold/….jsonl.zst
    ~/.openclaw/agents/AGENT/agent/openclaw-agent.sqlite
    ~/.pi/agent/sessions/FOLDER/SESSION.jsonl

A branch that was left is read, too: it was said. What somebody else than the owner writes in a
group is not the user's.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes_ext.agents.logs.reader import (Event, Log, Reader, Said, database_rows, home, millis,
                                           parsed, text_of, unpacked)

__all__ = ["READER"]

_KINDS = ("model_change", "thinking_level_change", "compaction", "custom", "custom_message",
          "branch_summary", "reset", "label")
# What a channel puts around a message: [WhatsApp +49… 2026-03-01 10:00 GMT] and [message_id: …].
_ENVELOPE = re.compile(r"\A\[[^\]\n]{0,80}\d{4}-\d\d-\d\d[T ]\d\d:\d\d[^\]\n]{0,40}\]\s*"
                       r"|\n\[message_id:[^\]\n]{0,80}\](?=\n|\Z)")
_QUERY = """SELECT e.session_id, e.seq, e.event_json, e.event_zstd, n.session_key
    FROM transcript_events e LEFT JOIN session_nodes n ON n.current_session_id = e.session_id
    ORDER BY e.session_id, e.seq"""


def _read(event: dict[str, Any], log: Log) -> Iterator[Said]:
    kind = event.get("type")
    message = event.get("message")
    if kind == "session" and "timestamp" in event:
        log.known += 1
        log.session = str(event.get("id") or "")
        log.project = str(event.get("cwd") or "")
        log.parent = Path(str(event.get("parentSession") or "")).stem.rpartition("_")[2]
        log.nested = bool(event.get("nested"))
    elif kind == "message" and isinstance(message, dict) and "sessionId" not in event:
        log.known += 1
        marks = message.get("__openclaw")
        is_others = isinstance(marks, dict) and marks.get("senderIsOwner") is False
        if message.get("role") in ("user", "assistant") and not is_others:
            text = _ENVELOPE.sub("", text_of(message.get("content")))
            yield Said(message["role"], text,
                       millis(event.get("timestamp")) or millis(message.get("timestamp")),
                       str(event.get("id") or ""))
    else:
        log.known += kind in _KINDS


def _rows(path: Path, head: bytes) -> Iterator[Event] | None:
    found = database_rows(path, head, ("transcript_events", "session_nodes"), lambda _: _QUERY)
    return None if found is None else _events(found)


def _events(rows: Iterator[dict[str, Any]]) -> Iterator[Event]:
    """Yield the events of a database; one of a subagent or a schedule is marked in its header."""
    for row in rows:
        try:
            text = row["event_json"]
            event = parsed(unpacked(row["event_zstd"]) if text is None else str(text).encode())
        except (ValueError, TypeError):
            event = None
        if isinstance(event, dict):
            key = f":{row['session_key'] or ''}:"
            event["nested"] = ":subagent:" in key or ":cron:" in key
        yield f"{row['session_id']}:{row['seq']}", event if isinstance(event, dict) else None


READER = Reader(
    "openclaw",
    lambda environ: [home(environ, "OPENCLAW_STATE_DIR", "~/.openclaw") / "agents",
                     home(environ, "PI_CODING_AGENT_DIR", "~/.pi/agent") / "sessions"],
    r"(?:.*/)?[^/]+\.jsonl(?:\.zst)?|[^/]+/agent/openclaw-agent\.sqlite"
    r"|(?:.*/)?[^/]+\.jsonl\.reset\.[^/]+", _read, _rows)

"""Codex CLI: ~/.codex/sessions/YYYY/MM/DD/rollout-….jsonl, and archived_sessions/.

What was said is in the lines of `response_item`; those of `event_msg` repeat it. The role
`developer` is what a hook or the host has put in. Older rollouts have no payload around a message.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hermes_ext.agents.logs.reader import Log, Reader, Said, home, millis, text_of

__all__ = ["READER"]

_KINDS = ("session_meta", "response_item", "event_msg", "turn_context", "world_state", "compacted",
          "token_usage_record")
_TEXT = ("text", "input_text", "output_text")


def _read(event: dict[str, Any], log: Log) -> Iterator[Said]:
    kind = event.get("type")
    payload = event.get("payload")
    if kind in _KINDS and isinstance(payload, dict):
        log.known += 1
    elif kind == "message" and "message" not in event and "role" in event:
        log.known += 1
        payload = event                            # older: the line is the message
    elif kind is None and {"id", "instructions"} <= event.keys():
        log.known += 1
        log.session = str(event["id"])             # older: the first line
        return
    else:
        return
    if kind == "session_meta":
        source = payload.get("source")
        log.session = str(payload.get("id") or payload.get("session_id") or "")
        log.project = str(payload.get("cwd") or "")
        log.parent = str(payload.get("forked_from_id") or "")
        log.nested = isinstance(source, dict) and "subagent" in source
    is_message = kind in ("response_item", "message") and payload.get("type") in (None, "message")
    if is_message and payload.get("role") in ("user", "assistant"):
        yield Said(payload["role"], text_of(_own(payload), _TEXT), millis(event.get("timestamp")),
                   str(payload.get("id") or ""))


def _own(payload: dict[str, Any]) -> object:
    """Return the content of a message without what it says the user has not typed."""
    content = payload.get("content")
    passed = payload.get("internal_chat_message_metadata_passthrough")
    kinds = passed.get("content_item_kinds") if isinstance(passed, dict) else None
    if payload["role"] != "user" or not isinstance(kinds, list) or not isinstance(content, list):
        return content
    return [item for item, kind in zip(content, kinds) if str(kind).startswith("user.")]


READER = Reader(
    "codex",
    lambda environ: [home(environ, "CODEX_HOME", "~/.codex") / name
                     for name in ("sessions", "archived_sessions")],
    r"(?:.*/)?rollout-[^/]*\.jsonl(?:\.zst)?", _read)

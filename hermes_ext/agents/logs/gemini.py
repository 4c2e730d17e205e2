"""Gemini CLI: ~/.gemini/tmp/PROJECT/chats/session-….jsonl, or .json of older versions."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes_ext.agents.logs.reader import Event, Log, Reader, Said, document, home, millis, text_of

__all__ = ["READER"]

_ROLES = {"user": "user", "gemini": "assistant"}
_OTHERS = ("info", "error", "warning")


def _read(event: dict[str, Any], log: Log) -> Iterator[Said]:
    kind = event.get("type")
    if "projectHash" in event and "sessionId" in event:
        log.known += 1
        log.session = str(event["sessionId"])
        log.project = f"sha256:{event['projectHash']}"
        log.nested = event.get("kind") == "subagent"
    elif kind in [*_ROLES] and "content" in event and "sessionId" not in event:
        log.known += 1
        yield Said(_ROLES[kind], text_of(event["content"]), millis(event.get("timestamp")),
                   str(event.get("id") or ""))
    else:
        log.known += "$set" in event or (kind in _OTHERS and "content" in event)


def _rows(path: Path, head: bytes) -> Iterator[Event] | None:
    if path.suffix != ".json":
        return None
    whole = document(path)
    if not isinstance(whole, dict) or not isinstance(whole.get("messages"), list):
        raise ValueError("it is another document")
    header = {name: value for name, value in whole.items() if name != "messages"}
    return iter([("1", header), *(
        (f"messages[{number}]", event) for number, event in enumerate(whole["messages"])
        if isinstance(event, dict))])


READER = Reader("gemini", lambda environ: [home(environ, "GEMINI_CLI_HOME", "~") / ".gemini/tmp"],
                r"[^/]+/chats/(?:.*/)?session-[^/]+\.jsonl?", _read, _rows)

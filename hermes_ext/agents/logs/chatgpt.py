"""The export of ChatGPT: conversations.json, or the zip file in which it comes.

A conversation is a tree of messages: all are read, in the order of their times. What the host
keeps hidden, custom instructions among it, is not.
"""
from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes_ext.agents.logs.reader import (Event, Log, Reader, Said, document, millis, parsed,
                                           text_of)
from hermes_lite import DamagedData

__all__ = ["READER"]

_TEXT = ("text", "multimodal_text")


def _read(event: dict[str, Any], log: Log) -> Iterator[Said]:
    nodes = event.get("mapping")
    if not isinstance(nodes, dict):
        return
    log.known += 1
    log.session = str(event.get("conversation_id") or event.get("id") or "")
    log.project = None
    messages = [node["message"] for node in nodes.values()
                if isinstance(node, dict) and isinstance(node.get("message"), dict)]
    for number, message in enumerate(sorted(messages, key=_time), 1):
        author = message.get("author")
        role = author.get("role") if isinstance(author, dict) else None
        content = message.get("content")
        hidden = message.get("metadata")
        is_hidden = isinstance(hidden, dict) and hidden.get("is_visually_hidden_from_conversation")
        if (role in ("user", "assistant") and isinstance(content, dict) and not is_hidden
                and content.get("content_type") in _TEXT
                and message.get("recipient") in (None, "all")):
            yield Said(role, text_of(content.get("parts")), millis(_time(message)) or millis(
                event.get("create_time")), str(message.get("id") or ""),
                f"{log.session}:{number}")


def _time(message: dict[str, Any]) -> float:
    """Return when a message was written; 0 where it does not say."""
    value = message.get("create_time")
    return float(value) if isinstance(value, (int, float)) else 0.0


def _rows(path: Path, head: bytes) -> Iterator[Event] | None:
    if head.startswith(b"PK\x03\x04"):
        whole = _zipped(path)
    elif head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"[":
        whole = document(path)
    else:
        return None
    if not isinstance(whole, list):
        raise ValueError("it is another document")
    return iter([(str(number), event) for number, event in enumerate(whole, 1)
                 if isinstance(event, dict)])


def _zipped(path: Path) -> object:
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            names = [name for name in archive.namelist() if name.endswith("conversations.json")]
            if not names:
                raise ValueError("it is another archive")
            return parsed(archive.read(names[0]))
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError):
        raise DamagedData(f"{path}: the zip file is damaged or locked") from None


READER = Reader("chatgpt-export", lambda environ: [], r"(?:.*/)?conversations\.json", _read, _rows)

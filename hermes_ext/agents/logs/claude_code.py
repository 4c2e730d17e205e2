"""Claude Code: ~/.claude/projects/PROJECT/SESSION.jsonl, and programs that write the same lines.

A line of `user` or `assistant` has a message; the other types have none. What a hook adds stands
in lines of the type `attachment`. Lines of a subagent say `isSidechain`.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hermes_ext.agents.logs.reader import Log, Reader, Said, home, millis, text_of

__all__ = ["READER"]

_TALK = ("user", "assistant")
_OTHERS = ("attachment", "file-history-snapshot", "last-prompt", "progress", "queue-operation",
           "summary", "system", "tool", "tool_result")
_NOT_SAID = ("isSidechain", "isMeta", "isCompactSummary", "isVisibleInTranscriptOnly",
             "isApiErrorMessage")


def _read(event: dict[str, Any], log: Log) -> Iterator[Said]:
    kind = event.get("type")
    message = event.get("message")
    is_other = kind in _OTHERS and "payload" not in event
    if is_other or ("sessionId" in event and kind and "projectHash" not in event):
        log.known += 1                             # it has more types than are listed here
    if kind not in _TALK or not isinstance(message, dict) or "sessionId" not in event:
        return
    log.session = str(event["sessionId"])
    log.project = str(event.get("cwd") or event.get("workspace") or log.project or "")
    forked = event.get("forkedFrom")
    log.parent = str(forked.get("sessionId") or "") if isinstance(forked, dict) else ""
    origin = event.get("origin")
    is_host = isinstance(origin, dict) and origin.get("kind") not in (None, "human", "user")
    if not is_host and not any(event.get(name) for name in _NOT_SAID):
        yield Said(kind, text_of(message.get("content")), millis(event.get("timestamp")),
                   str(event.get("uuid") or ""))


READER = Reader(
    "claude-code",
    lambda environ: [home(environ, "CLAUDE_CONFIG_DIR", "~/.claude") / "projects"],
    r"[^/]+/[^/]+\.jsonl", _read)

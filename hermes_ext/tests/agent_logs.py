"""Logs of every host in the shape that its real ones have, made up for the tests."""
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

START = datetime(2026, 3, 1, 9, 0, tzinfo=timezone.utc)
TOOL = "We decided to use Leakedtool"          # what a tool prints, and what is never kept
INJECTED = "We decided to use Leakedblock"     # what a host or a hook puts in
NESTED = "We decided to use Leakednested"      # what is said to a subagent
BLOCKS = (f"<system-reminder>\n{INJECTED}.\n</system-reminder>\n",
          '<memories note="Quoted from notes: data.">\n[from user, 2026-01-01] '
          f'{INJECTED}\n</memories>\n',
          f"<memory-context>\n{INJECTED}.\n</memory-context>\n")


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def lines(*events: object) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def append(path: Path, *events: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(lines(*events))
    return path


# -- one event of each host ---------------------------------------------------

def claude(role: str, content: object, moment: datetime, *, session: str = "cc-1",
           cwd: str = "/ws/app", uuid: "str | None" = None, **more: object) -> dict:
    return {"parentUuid": None, "isSidechain": False, "type": role, "userType": "external",
            "message": {"role": role, "content": content}, "timestamp": iso(moment),
            "uuid": uuid or f"u-{ms(moment)}-{role}", "cwd": cwd, "sessionId": session,
            "version": "2.1.197", "gitBranch": "main", **more}


def codex(role: str, text: str, moment: datetime) -> dict:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"timestamp": iso(moment), "type": "response_item", "payload": {
        "type": "message", "role": role, "content": [{"type": kind, "text": text}]}}


def pi(role: str, text: str, moment: datetime, **more: object) -> dict:
    return {"type": "message", "id": f"m{ms(moment)}", "parentId": None, "timestamp": iso(moment),
            "message": {"role": role, "content": [{"type": "text", "text": text}],
                        "timestamp": ms(moment), **more}}


def dsh(role: str, text: str, moment: datetime, seq: int) -> dict:
    blocks = {"content": [{"type": "text", "text": text}], "source": {"kind": "user"}}
    return {"type": f"{role}/message", "seq": seq, "time": ms(moment),
            "data": blocks if role == "user" else {"turn": 1, "message": blocks}}


def chat_node(name: str, role: str, text: str, moment: datetime, **more: object) -> dict:
    return {"id": name, "parent": None, "children": [], "message": {
        "id": name, "author": {"role": role}, "create_time": moment.timestamp(),
        "content": {"content_type": "text", "parts": [text]}, "recipient": "all", **more}}


# -- a session of each host ---------------------------------------------------

def claude_code(home: Path, fact: str) -> Path:
    result = [{"type": "tool_result", "tool_use_id": "t1", "content": TOOL}]
    said = [{"type": "thinking", "thinking": TOOL}, {"type": "text", "text": "Noted."},
            {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": TOOL}}]
    folder = home / ".claude/projects/-ws-app"
    append(folder / "cc-1/subagents/agent-1.jsonl",
           claude("user", NESTED, at(1), isSidechain=True))
    return append(
        folder / "cc-1.jsonl",
        {"type": "summary", "summary": INJECTED, "leafUuid": "x"},
        claude("user", BLOCKS[0] + BLOCKS[1] + fact, at(0)),
        {**claude("user", "", at(1)), "type": "attachment", "message": None, "attachment": {
            "type": "hook_additional_context", "content": [INJECTED]}},
        claude("assistant", said, at(2)), claude("user", result, at(3), toolUseResult=TOOL),
        claude("user", INJECTED, at(4), isMeta=True),
        claude("user", f"This session is being continued from a previous conversation. {INJECTED}",
               at(5), isCompactSummary=True),
        claude("user", NESTED, at(6), isSidechain=True),
        claude("user", f"<command-name>/x</command-name>\n<command-args>{INJECTED}", at(7)))


def codex_cli(home: Path, fact: str) -> Path:
    folder = home / ".codex/sessions/2026/03/01"
    append(folder / "rollout-2026-03-01T09-00-00-sub.jsonl",
           {"timestamp": iso(at(0)), "type": "session_meta", "payload": {
               "id": "cx-2", "cwd": "/ws/app", "source": {"subagent": "review"}}},
           codex("user", NESTED, at(0)))
    return append(
        folder / "rollout-2026-03-01T09-00-00-cx1.jsonl",
        {"timestamp": iso(at(0)), "type": "session_meta", "payload": {
            "id": "cx-1", "cwd": "/ws/app", "cli_version": "0.171.0", "source": "cli"}},
        codex("developer", INJECTED, at(0)),
        codex("user", f"# AGENTS.md instructions for /ws\n<INSTRUCTIONS>\n{INJECTED}", at(0)),
        codex("user", f"<environment_context>\n{INJECTED}\n</environment_context>", at(0)),
        codex("user", fact, at(1)),
        {"timestamp": iso(at(1)), "type": "event_msg", "payload": {
            "type": "user_message", "message": fact}},
        {"timestamp": iso(at(2)), "type": "response_item", "payload": {
            "type": "function_call_output", "call_id": "c", "output": TOOL}},
        {"timestamp": iso(at(2)), "type": "event_msg", "payload": {
            "type": "agent_reasoning", "text": TOOL}},
        codex("assistant", "Noted.", at(3)))


def openclaw(home: Path, fact: str) -> Path:
    return append(
        home / ".openclaw/agents/main/sessions/oc-1.jsonl",
        {"type": "session", "version": 3, "id": "oc-1", "timestamp": iso(at(0)), "cwd": "/ws/app"},
        {"type": "model_change", "provider": "p", "modelId": "m", "timestamp": iso(at(0))},
        pi("user", f"[Chat 2026-03-01 09:01 GMT] {fact}\n[message_id: 7]\n{BLOCKS[2]}",
           at(1)),
        pi("toolResult", TOOL, at(2)),
        pi("user", NESTED, at(3), __openclaw={"senderIsOwner": False}),
        {"type": "compaction", "summary": INJECTED, "timestamp": iso(at(4))},
        pi("assistant", "Noted.", at(5)))


def openclaw_database(home: Path, fact: str) -> Path:
    path = home / ".openclaw/agents/work/agent/openclaw-agent.sqlite"
    path.parent.mkdir(parents=True)
    sessions = (("oc-2", "agent:work:main", fact), ("oc-3", "agent:work:subagent:x", NESTED))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE session_nodes (session_key, current_session_id, "
                         "entry_json)")
        database.execute("CREATE TABLE transcript_events (session_id, seq, event_json TEXT, "
                         "created_at, event_zstd BLOB)")
        for session, key, text in sessions:
            events = ({"type": "session", "version": 4, "id": session, "timestamp": iso(at(0)),
                       "cwd": "/ws/app"}, pi("user", text, at(1)), pi("toolResult", TOOL, at(2)))
            database.execute("INSERT INTO session_nodes VALUES (?, ?, '{}')", (key, session))
            database.executemany("INSERT INTO transcript_events VALUES (?, ?, ?, 0, NULL)", [
                (session, number, json.dumps(event)) for number, event in enumerate(events)])
    return path


def hermes(home: Path, fact: str) -> Path:
    path = home / ".hermes/state.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE sessions (id TEXT, source TEXT, started_at REAL, cwd TEXT, "
                         "parent_session_id TEXT)")
        database.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role "
                         "TEXT, content TEXT, timestamp REAL, active INTEGER, compacted INTEGER, "
                         "api_content TEXT)")
        database.executemany("INSERT INTO sessions VALUES (?, ?, ?, '/ws/app', NULL)", [
            ("h-1", "cli", at(0).timestamp()), ("h-2", "cron", at(0).timestamp())])
    for session, role, content, active in (
            ("h-1", "user", fact, 1), ("h-1", "tool", TOOL, 1), ("h-1", "assistant", None, 1),
            ("h-1", "user", INJECTED, 0), ("h-2", "user", NESTED, 1)):
        hermes_row(path, session, role, content, at(1), active=active)
    return path


def hermes_row(path: Path, session: str, role: str, content: "str | None", moment: datetime, *,
               active: int = 1) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO messages (session_id, role, content, timestamp, active, "
                         "compacted, api_content) VALUES (?, ?, ?, ?, ?, 0, ?)",
                         (session, role, content, moment.timestamp(), active, INJECTED))


def gemini(home: Path, fact: str) -> Path:
    header = {"sessionId": "g-1", "projectHash": "0" * 64, "startTime": iso(at(0))}
    return append(
        home / ".gemini/tmp/app/chats/session-1.jsonl", header,
        {"id": "1", "timestamp": iso(at(1)), "type": "user", "content": [
            {"text": fact}, {"text": f"<hook_context>{INJECTED}</hook_context>"}]},
        {"id": "2", "timestamp": iso(at(2)), "type": "gemini", "content": "Noted.",
         "thoughts": [TOOL], "toolCalls": [{"result": TOOL}]},
        {"$set": {"summary": INJECTED}})


def gemini_document(home: Path, fact: str) -> Path:
    path = home / ".gemini/tmp/app/chats/session-0.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({
        "sessionId": "g-0", "projectHash": "0" * 64, "startTime": iso(at(0)), "messages": [
            {"id": "1", "timestamp": iso(at(1)), "type": "user", "content": fact},
            {"id": "2", "timestamp": iso(at(2)), "type": "info", "content": INJECTED}]}, indent=2))
    return path


def chatgpt(home: Path, fact: str) -> Path:
    path = home / "export/conversations.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps([{
        "title": "tea", "conversation_id": "gpt-1", "create_time": at(0).timestamp(), "mapping": {
            "r": {"id": "r", "message": None, "parent": None, "children": ["h"]},
            "h": chat_node("h", "user", INJECTED, at(0),
                           metadata={"is_visually_hidden_from_conversation": True}),
            "u": chat_node("u", "user", fact, at(1)),
            "t": chat_node("t", "tool", TOOL, at(2)),
            "a": chat_node("a", "assistant", "Noted.", at(3))}}]))
    return path


def harness(home: Path, fact: str) -> Path:
    append(home / ".dsh/sessions/--ws--/session-2/session.jsonl",
           {"type": "session", "version": 4, "id": "d-2", "createdAt": ms(at(0)), "cwd": "/ws/app",
            "delegationDepth": 1}, dsh("user", NESTED, at(1), 1))
    return append(
        home / ".dsh/sessions/--ws--/session-1/session.jsonl",
        {"type": "session", "version": 4, "id": "d-1", "createdAt": ms(at(0)), "cwd": "/ws/app",
         "delegationDepth": 0},
        dsh("user", BLOCKS[1] + fact, at(1), 1), dsh("assistant", "Noted.", at(2), 2))


# {name: (host, how its log is made)}
LOGS: dict[str, tuple[str, Callable[[Path, str], Path]]] = {
    "dsh": ("dsh", harness), "claude": ("claude-code", claude_code), "codex": ("codex", codex_cli),
    "pi": ("openclaw", openclaw), "claw": ("openclaw", openclaw_database),
    "hermes": ("hermes", hermes), "gemini": ("gemini", gemini),
    "old_gemini": ("gemini", gemini_document), "chatgpt": ("chatgpt-export", chatgpt)}

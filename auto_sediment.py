#!/usr/bin/env python3
"""Take what was said to an agent, in DeepSeek Harness (DSH) or another host, into Hermes Lite.

    auto_sediment.py --latest                    show the facts of the newest session of DSH
    auto_sediment.py --all --apply               store those of every session, each once (cron)
    auto_sediment.py --session FILE --dry-run    one log, wherever it lies
    auto_sediment.py --from claude-code --all --apply       of another host; `auto` is every one
    auto_sediment.py --from auto --watch --apply            follow all logs until it is stopped

What user and assistant wrote is digested; reasoning, tools, injected context, summaries and
failed attempts are not. A log is a stream, so its size does not matter. A run takes what no
earlier run took: a renamed, compressed, grown, forked or replaced log is not taken twice. After
a kill the next run repeats at most one piece, and the store's search for duplicates catches it.
Every fact that is found is taken, and has the time at which it was said. What cannot be read of
a log is said once, and a log of which nothing can be read each time. What was said in private
(`hermes-lite private on`) is not taken, now or later.

DSH needs nothing but hermes_lite.py; the readers of other hosts are in hermes_ext/agents/logs.

Exit codes: 0 done, nothing new, another run is at work, or a watch was stopped; 1 failure;
2 usage; 10 no session found; 12 the store is locked; 13 a log is damaged or of an unknown kind,
or none of it could be read.
"""
from __future__ import annotations

import argparse
import codecs
import contextlib
import functools
import hashlib
import importlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic, sleep
from typing import Any, BinaryIO

__all__ = ["Host", "Message", "Piece", "Session", "find_sessions", "host_messages",
           "iter_messages", "main", "pieces", "rank", "read_session", "sediment", "spoken",
           "unread"]

# =================================================================================================
# 1. Logs
# =================================================================================================

CHUNK = 1 << 18
MAX_LINE = 16 << 20     # bytes; to parse a line takes up to ten times its length in memory


@dataclass(frozen=True, slots=True)
class Message:
    """One utterance; *role* is "user" or "assistant", *time* is in ms since 1970 or None.

    The rest is of hosts other than DSH: *key* knows the message again in any log, *place* says
    where it stands, such as a line number.
    """
    role: str
    text: str
    seq: int
    time: int | None = None
    key: str = ""
    place: str = ""
    session: str = ""
    parent: str = ""
    project: str | None = ""

    @property
    def mark(self) -> str:
        """Twelve hexadecimal digits that know the words again, whatever their seq or log."""
        return hashlib.sha256(f"{self.role}\0{self.text}".encode()).hexdigest()[:12]


@dataclass(slots=True)
class Session:
    """What a log says of itself, filled while it is read; times in ms.

    *nested*: a subagent's. *skipped*: lines lost. *torn*: the end is cut or still being written.
    *damaged*: why no more could be unpacked, None when all was. *known*: some event of it is one
    that DSH writes.
    """
    id: str | None = None
    project: str | None = ""
    created_at: int | None = None
    newest: int | None = None
    parent: str | None = None
    nested: bool = False
    events: int = 0
    skipped: dict[str, int] = field(default_factory=lambda: {"unreadable": 0, "too long": 0})
    torn: bool = False
    damaged: str | None = None
    known: bool = False
    messages: list[Message] = field(default_factory=list)


def _piped(tool: str, raw: BinaryIO) -> Iterator[bytes]:
    with tempfile.TemporaryFile() as said, subprocess.Popen(
            [tool, "-dc"], stdin=raw, stdout=subprocess.PIPE, stderr=said) as process:
        try:
            yield from iter(lambda: process.stdout.read(CHUNK), b"")
            if process.wait():
                said.seek(0)
                words = said.read(2000).decode("utf-8", "replace").strip()
                if re.search("premature|unexpected end|truncated|unknown header", words):
                    raise EOFError("the last frame is cut")
                raise ValueError(words.rpartition(" : ")[2] or "zstd cannot unpack it")
        finally:
            process.kill()


def _frames(raw: BinaryIO) -> Iterator[bytes]:
    """Decompress many zstd frames end to end with whichever package is installed."""
    for name in ("compression.zstd", "backports.zstd", "zstandard"):
        with contextlib.suppress(ImportError):
            new = importlib.import_module(name).ZstdDecompressor
            break
    else:
        from hermes_lite import MissingPackage
        raise MissingPackage("this log is compressed and nothing here reads zstd: install the"
                             " program (apt install zstd, brew install zstd) or a package"
                             " (pip install backports.zstd, pip install zstandard)")
    new = new().decompressobj if name == "zstandard" else new
    frame, data = None, b""
    while data or (data := raw.read(1024)):     # 1 KB can unfold to 32 MB
        frame = frame or new()
        yield frame.decompress(data)
        frame, data = (None, frame.unused_data) if frame.eof else (frame, b"")
    if frame:
        raise EOFError("the last frame is cut")


def _chunks(path: str | Path, session: Session) -> Iterator[bytes]:
    """The log as UTF-8 bytes; its first bytes, not its name, say how it is packed."""
    with open(path, "rb", buffering=0) as raw:      # unbuffered, for zstd reads on from here
        head = raw.read(4)
        raw.seek(0)
        packed = head == b"\x28\xb5\x2f\xfd" or head[1:] == b"\x2a\x4d\x18"     # or skippable
        tool = shutil.which("zstd")
        chunks = iter(lambda: raw.read(CHUNK), b"") if not packed else (
            _piped(tool, raw) if tool else _frames(raw))
        try:
            first = next(chunks, b"")
            if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                decoder = codecs.getincrementaldecoder("utf-16")("replace")
                for chunk in itertools.chain([first], chunks):
                    yield decoder.decode(chunk).encode("utf-8")
            else:
                yield first.removeprefix(codecs.BOM_UTF8)
                yield from chunks
        except EOFError:
            session.torn = True
        except Exception as error:  # each decompressor has its own; what came before it stands
            if not packed or isinstance(error, ImportError):
                raise
            session.damaged = f"{error or type(error).__name__}"[:200]


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[bytes | None, bool]]:
    """Yield (line, has it a line end); a line above MAX_LINE is not held and gives None."""
    held: list[bytes] = []
    size = 0
    for chunk in itertools.chain(chunks, [None]):
        *ended, rest = chunk.split(b"\n") if chunk is not None else [b"", b""]
        for part in ended:
            size += len(part)
            line = b"".join([*held, part]).strip(b" \t\r\0") if size <= MAX_LINE else None
            yield line, chunk is not None
            held, size = [], 0
        size += len(rest)
        held = [*held, rest] if size <= MAX_LINE else []


def _foreign(raw: bytes) -> str:
    """A line that is not UTF-8, as GB 18030 if that is plausible, else "".

    Nearly any bytes decode as GB 18030, so most of the line must be wrong as UTF-8 (else it is
    a UTF-8 line with a bad byte) and most of the result must be everyday Chinese.
    """
    loose, text = raw.decode("utf-8", "replace"), raw.decode("gb18030", "replace")
    wide = "".join(char for char in text if not char.isascii())
    is_utf8 = loose.count("\ufffd") * 2 <= sum(not char.isascii() for char in loose)
    is_chinese = len(wide.encode("gb2312", "ignore")) >= len(wide)     # two bytes a character
    known = is_chinese and re.search("[\u4e00-\u9fff]", wide) and "\ufffd" not in text
    return text if known and not is_utf8 else ""


def _event(raw: bytes) -> dict | None:
    try:
        event = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return _event(text.encode("utf-8")) if (text := _foreign(raw)) else None
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def find_sessions(root: str | Path, *,
                  on_error: Callable[[OSError], object] | None = None) -> list[Path]:
    """Return one log a session folder below *root*, by path; of several generations the highest.

    *on_error* gets what cannot be listed. Links to folders are not followed.
    """
    best: dict[str, tuple[int, str]] = {}
    for folder, _, names in os.walk(root, onerror=on_error):
        for name in names:
            if found := re.fullmatch(r"session(?:\.v([1-9]\d*))?\.jsonl(?:\.zstd)?", name):
                best[folder] = max(best.get(folder, (0, "")), (int(found[1] or 0), name))
    return sorted(Path(folder, name) for folder, (_, name) in best.items())


def _millis(value: object) -> int | None:
    return int(value) if type(value) in (int, float) and 0 < value < 1e15 else None


def _name(value: object) -> str:
    """A session id that may stand in a state file and on a terminal."""
    if re.fullmatch(r"[A-Za-z0-9_.:@-]{1,128}", text := str(value)):
        return text
    return "sha256-" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _begin(session: Session, event: dict, raw: bytes) -> None:
    """Take the header, the first readable line; the hash of another first line is the id."""
    header = event if event.get("type") == "session" else {}
    session.id = _name(header.get("id") or "line-" + hashlib.sha256(raw).hexdigest()[:16])
    session.parent = _name(header["parentSession"]) if header.get("parentSession") else None
    session.created_at = _millis(header.get("createdAt"))
    session.project = str(header.get("cwd") or "")
    session.nested = bool(header.get("delegationDepth")) or header.get("origin") == "subagent"


def _text(content: object) -> str:
    blocks = content if isinstance(content, list) else [content]
    parts = [block.get("text") if isinstance(block, dict) and block.get("type") == "text"
             else block for block in blocks]
    return _whole_characters("\n".join(part for part in parts if isinstance(part, str)).strip())


def _whole_characters(text: str) -> str:
    """Replace half an emoji: it is legal in JSON, but no file can hold it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# Blocks that a host puts into a message: reminders, recalled memories, output of hooks and of
# commands.
_INJECTED = re.compile(r"""(?ix) <(?P<end>/?)(?P<tag>
    system-reminder|memory-context|memories|relevant-memories|environment_context
    |user_instructions|permissions\ instructions|user-prompt-submit-hook|session-start-hook
    |post-tool-use-hook|hook_context|command-(?:name|message|args|contents)|local-command-[a-z]+
    |bash-(?:input|stdout|stderr)|ide_(?:opened_file|selection|diagnostics)|task-notification
    |turn_aborted|instructions|user_shell_command|user_action|subagent_notification
    |session_context|skill|tool_result|tool_use_error|persisted-output)\b[^<>\n]{0,500}>""")
# Beginnings of messages that a program wrote in the user's place.
_NOT_SPOKEN = re.compile(r"""(?ix) \s* (?:
    Caveat:\ The\ messages\ below\ were\ generated
    |This\ session\ is\ being\ continued\ from\ a\ previous\ conversation
    |Another\ language\ model\ started\ to\ solve\ this\ problem
    |\#\ AGENTS\.md\ instructions\ for
    |\[CONTEXT\ (?:COMPACTION|SUMMARY)|\[Subagent\ Context\]|\[cron:|Pre-compaction\ memory\ flush
    |A\ new\ session\ was\ started\ via|Read\ HEARTBEAT\.md\b)""")
_INTERRUPTED = re.compile(r"\[Request interrupted by user[^\]\n]{0,40}\]")


def spoken(text: str) -> str:
    """Return a message without what its host put into it, "" where nothing of it was said.

    A block that is not closed ends with the message where it begins a line; elsewhere somebody
    speaks of it.
    """
    if _NOT_SPOKEN.match(text):
        return ""
    marks = [*_INJECTED.finditer(text)]
    last_end = {mark["tag"].lower(): mark.start() for mark in marks if mark["end"]}
    kept, start, inside = [], 0, ""
    for mark in marks:
        tag = mark["tag"].lower()
        if inside:
            if mark["end"] and tag == inside:
                start, inside = mark.end(), ""
            continue
        line_start = text.rfind("\n", 0, mark.start()) + 1
        begins_line = not text[line_start:mark.start()].strip()
        if not mark["end"] and (begins_line or last_end.get(tag, 0) > mark.start()):
            kept.append(text[start:mark.start()])
            start, inside = len(text), tag
    kept.append(text[start:])
    return _INTERRUPTED.sub("", "".join(kept)).strip()


def _said(event: dict) -> tuple[str, str]:
    """(role, text) of an event in which somebody says something, else ("", "")."""
    kind, data, place = event.get("type"), event.get("data"), event.get("surfaceOp")
    if kind not in ("user/message", "assistant/message") or not isinstance(data, dict):
        return "", ""
    is_summary = (place.get("op") if isinstance(place, dict) else place) == "replace"
    source = data.get("source")
    author = source.get("kind") if isinstance(source, dict) else source
    if is_summary or (kind == "user/message" and author not in (None, "user")):
        return "", ""   # a program put it in the user's mouth
    inner = data.get("message") if isinstance(data.get("message"), dict) else data
    return kind.partition("/")[0], _text(inner.get("content"))


def iter_messages(path: str | Path, session: Session | None = None) -> Iterator[Message]:
    """Yield what user and assistant wrote, in the order of the log, in flat memory.

    *session* is filled on the way, its id before the first message. Without a seq an event gets
    the one before it plus one: the line number, in a log that has none. A bad line costs that
    line; a last line without line end is taken if it is complete, else left.
    Raises OSError, and MissingPackage where nothing reads zstd.
    """
    session = Session() if session is None else session
    seq = line = 0
    for number, raw, event in _events(path, session):
        if not session.events:
            _begin(session, event, raw)
        session.events += 1
        kind = event.get("type")
        session.known |= isinstance(kind, str) and (kind == "session" or "/" in kind)
        time, given = _millis(event.get("time")), event.get("seq")
        session.newest = max(session.newest or 0, time or 0) or None
        seq = given if type(given) is int and given >= 0 else seq + number - line
        line = number
        role, text = _said(event)
        if text := spoken(text):
            yield Message(role, text, seq, time)


def _events(path: str | Path, session: Session) -> Iterator[tuple[int, bytes, dict]]:
    """Yield (line number, line, event) of each line that can be read; the others are counted."""
    for number, (raw, is_ended) in enumerate(_lines(_chunks(path, session)), 1):
        event = _event(raw) if raw else None
        if raw and event is not None:
            yield number, raw, event
        elif raw != b"":
            session.torn |= not is_ended
            session.skipped["unreadable" if raw else "too long"] += is_ended


def host_messages(path: Path, session: Session, reader: Any) -> Iterator[Message]:
    """Yield what user and assistant wrote in a log of another host, like `iter_messages`.

    *reader* is one of hermes_ext/agents/logs. What was said to a subagent is left out.
    """
    from hermes_lite import import_system
    log = import_system("agent_logs").Log()
    times_said: dict[str, int] = {}
    for number, (place, event) in enumerate(_host_events(path, session, reader), 1):
        session.events += 1
        if event is None:
            session.skipped["unreadable"] += 1
            continue
        for said in reader.read(event, log):
            text = "" if log.nested else spoken(_whole_characters(said.text))
            if not text:
                continue
            session.newest = max(session.newest or 0, said.time or 0) or None
            words = f"{said.role}\0{text}"
            own = said.id or said.time
            if own is None:                        # the session, and how often it was said there
                words = f"{log.session}\0{words}"
                own = times_said[words] = times_said.get(words, 0) + 1
            key = hashlib.sha256(f"{own}\0{words}".encode()).hexdigest()[:16]
            yield Message(said.role, text, number, said.time, key=key, place=said.place or place,
                          session=_name(log.session or path.name), project=log.project,
                          parent=log.parent)
        session.known = log.known > 0
        session.nested |= log.nested
        name = _name(log.session or path.name)
        session.id = name if session.id in (None, name) else _name(path.name)


def _host_events(path: Path, session: Session, reader: Any
                 ) -> Iterator[tuple[str, dict | None]]:
    """Yield (place, event) of a log of another host; an event that cannot be read is None."""
    from hermes_lite import DamagedData
    rows = None
    try:
        rows = reader.rows(path, _head(path)) if reader.rows else None
    except DamagedData:
        raise
    except ValueError as problem:
        raise DamagedData(f"{path} is no log of {reader.name}: {problem}") from None
    if rows is not None:
        yield from rows
        return
    for number, _, event in _events(path, session):
        yield str(number), event


def _head(path: Path) -> bytes:
    """Return the first bytes of a file."""
    with open(path, "rb") as file:
        return file.read(64)


def read_session(path: str | Path) -> Session:
    """Read a whole log into memory; `iter_messages` serves where it does not fit."""
    session = Session()
    session.messages = list(iter_messages(path, session))
    return session


def rank(path: str | Path) -> tuple[bool, bool, int, str]:
    """The order of `--latest`: readable, not a subagent's, newest by the times in the log.

    The file's date, which copying changes, serves where the log has no time. Reads the log.
    """
    session = Session()
    deque(iter_messages(path, session), maxlen=0)
    time = session.newest or session.created_at or int(os.stat(path).st_mtime * 1000)
    return session.events > 0, not session.nested, time, str(path)


# =================================================================================================
# 2. What is new
# =================================================================================================

LABELS = {"user": "用户: ", "assistant": "助手: "}
BORDERS = (r"\n\n", r"\n", r"[。！？；]|[.!?;] ", r"[，、 ]")      # best first


@dataclass(frozen=True, slots=True)
class Piece:
    """One text for a digest; *done* are the messages that end in it (none inside a cut one).

    *messages* are all of which it holds something. *time* is when the last of it was said, in ms,
    None where the log does not say it.
    """
    text: str
    first: int
    last: int
    done: tuple[Message, ...]
    time: int | None = None
    messages: tuple[Message, ...] = ()


def _border(text: str, start: int, end: int) -> int:
    """The end of the last border of the best kind in the second half, else *end*."""
    half = (start + end) // 2
    for kind in BORDERS:
        if found := deque(re.finditer(kind, text[half:end]), maxlen=1):
            return half + found[0].end()
    return end


def _cut(message: Message, max_chars: int, clean: Callable[[str], str]) -> Iterator[Piece]:
    label, text, start = LABELS[message.role], clean(message.text), 0
    while start < len(text):
        end = start + max_chars - len(label)
        is_last = end >= len(text)
        end = len(text) if is_last else _border(text, start, end)
        done = (message,) if is_last else ()
        yield Piece(label + text[start:end], message.seq, message.seq, done, message.time,
                    (message,))
        start = end


def pieces(messages: Iterable[Message], max_chars: int = 8000, *,
           clean: Callable[[str], str] = str) -> Iterator[Piece]:
    """Join messages into texts of at most *max_chars* (20 or more); nothing is dropped.

    Cuts fall between messages, and where nothing was said for hours. A message that is longer is
    cut at a paragraph, a sentence or a
    blank, after *clean* (redaction) went over it: a cut could hide half of a secret from it.
    """
    if max_chars < 20:
        raise ValueError(f"max_chars is {max_chars}, and 20 is the least")
    held: list[Message] = []
    text = ""
    for message in itertools.chain(messages, [None]):
        line = LABELS[message.role] + message.text if message else ""
        if held and (message is None or len(text) + 1 + len(line) > max_chars
                     or _is_later(held[-1], message)):
            times = [each.time for each in held if each.time]
            yield Piece(text, held[0].seq, held[-1].seq, tuple(held), max(times, default=None),
                        tuple(held))
            held, text = [], ""
        if len(line) > max_chars:
            yield from _cut(message, max_chars, clean)
        elif message:
            held.append(message)
            text = f"{text}\n{line}" if text else line


def _is_later(one: Message, other: Message) -> bool:
    """Tell whether a pause of hours, or the end of a session, lies between two messages."""
    is_paused = bool(one.time and other.time and other.time - one.time > PAUSE)
    return is_paused or one.session != other.session


PAUSE = 6 * 3_600_000     # ms

# State "sediment": {"version": 1, "sessions": {id: {"last": highest seq taken, "parent": id or
# null, "marks": of the first KEPT messages, in order, "lost": lines that were said to be lost}}}.
# No word of a session is in it. State "sediment_HOST" of another host: {"version": 1, "sessions":
# {id: {"keys": of all messages taken, with blanks, "lost": as above}}}.
KEPT = 1000


def _known(state: dict) -> dict[str, dict]:
    """The sound entries of a state; a session without one is read anew."""
    held = state.get("sessions")
    return {name: entry for name, entry in (held if isinstance(held, dict) else {}).items()
            if isinstance(entry, dict) and type(entry.get("last")) is int
            and isinstance(entry.get("marks"), list)}


def _note(entry: dict, message: Message, place: int | None = None) -> None:
    """Enter a message as taken; *place* is its index in the log if an earlier run took it."""
    entry["last"] = max(entry["last"], message.seq)
    if len(entry["marks"]) < KEPT and place in (None, len(entry["marks"])):
        entry["marks"].append(message.mark)


def unread(messages: Iterable[Message], session: Session,
           sessions: dict[str, dict]) -> Iterator[Message]:
    """Yield the messages that no earlier run took; the others are noted in *sessions*.

    Taken are those that repeat a known list from its start (this log's, a parent's or sibling's,
    or one with the same first two messages: a copy under a new id), and those up to the last seq
    whose mark is known. So another log under an old id is read, and words said again count.
    """
    messages = iter(messages)
    start = list(itertools.islice(messages, 2))
    if not start:
        return
    marks, family = [message.mark for message in start], {session.id, session.parent} - {None}
    trails = [entry["marks"] for name, entry in sessions.items()
              if {name, str(entry.get("parent"))} & family
              or len(marks) == 2 and entry["marks"][:2] == marks]
    entry = sessions.setdefault(session.id, {"last": -1, "marks": []})
    entry["parent"] = session.parent
    if len(entry["marks"]) >= KEPT and marks[0] not in entry["marks"]:
        entry.update(last=-1, marks=[])     # another log: the last seq says nothing about it
    for place, message in enumerate(itertools.chain(start, messages)):
        trails = [trail for trail in trails if trail[place:place + 1] == [message.mark]]
        if trails or (message.seq <= entry["last"] and (
                len(entry["marks"]) >= KEPT or message.mark in entry["marks"])):
            _note(entry, message, place)
        else:
            yield message


@dataclass(slots=True)
class Host:
    """The logs of one host and what earlier runs took of them; without a reader it is DSH."""
    sessions: dict[str, dict]
    reader: Any = None
    keys: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The name of the host, as `--from` has it."""
        return self.reader.name if self.reader else "dsh"

    @property
    def label(self) -> str | None:
        """The agent of what is kept; None for DSH, whose memories are everybody's."""
        return self.reader.name if self.reader else None

    def unread(self, path: Path, session: Session) -> Iterator[Message]:
        """Yield the messages of a log that no earlier run took; to a subagent nobody spoke."""
        if self.reader is None:
            new = unread(iter_messages(path, session), session, self.sessions)
            yield from (message for message in new if not session.nested)
            return
        met = set()
        for message in host_messages(path, session, self.reader):
            if message.key not in self.keys and message.key not in met:
                met.add(message.key)
                yield message

    def note(self, message: Message, session: Session) -> None:
        """Enter a message as taken."""
        if self.reader is None:
            _note(self.sessions[session.id], message)
        else:
            self.keys.add(message.key)
            entry = self.sessions.setdefault(message.session, {})
            entry.setdefault("keys", []).append(message.key)

    def source(self, path: Path, session: Session, *messages: Message) -> str:
        """Return where messages stand, as the source of a memory."""
        if self.reader is None:
            return f"dsh:{session.id}#{messages[0].seq}-{messages[-1].seq}"
        places = dict.fromkeys((messages[0].place, messages[-1].place))
        return f"{self.name}:{path.absolute()}#{'-'.join(places)}"

    def origin_of(self, path: Path, session: Session, piece: Piece
                  ) -> Callable[[Any], dict[str, object]]:
        """Return a function that says of a fact where and when it was said."""
        def origin(fact: Any) -> dict[str, object]:
            message = _message_of(fact.content, piece.messages)
            made = _iso_past(message.time) or _time_of(piece, session)
            return {"source": self.source(path, session, message), "created_at": made}
        return origin


def _message_of(fact: str, messages: Sequence[Message]) -> Message:
    """Return the message that has most of the words of a fact; of several, the first."""
    words = re.findall(r"[A-Za-z0-9_.]+|[^\W\d_]", fact.casefold())

    def common(message: Message) -> int:
        text = message.text.casefold()
        return sum(word in text for word in words)
    return max(messages, key=common)


def _private_mode(root: str | os.PathLike[str]) -> Any:
    """Return what judges whether something is private; None where nothing ever was.

    DamagedData, or MissingPackage, where what was private cannot be known.
    """
    if not os.path.exists(os.path.join(root, "private.json")):
        return None
    from hermes_lite import ConfigError, MissingPackage, import_system
    try:
        private = import_system("private")
    except ConfigError:
        raise MissingPackage("something was said in private, and the folder hermes_ext, which "
                             "reads when, is not beside hermes_lite.py; nothing is read") from None
    private.periods(root)                          # raises where they are damaged
    return private


def _is_private(root: str | os.PathLike[str], message: Message, session: Session,
                path: Path) -> bool:
    """Tell whether a message was said in private, by its time; raises like `_private_mode`."""
    private = _private_mode(root)
    if private is None:
        return False
    earliest, latest = message.time, message.time
    if message.time is None:
        earliest, latest = session.created_at or 0, int(os.stat(path).st_mtime * 1000)
    project = message.project if message.key else session.project
    names = {message.session or session.id, message.parent or session.parent}
    return any(private.is_private(root, session=name, project=project, at=earliest, until=latest)
               for name in names)


def _found(mem: Any, text: str, max_facts: int) -> Any:
    """Digest a text, asking again for more until every fact of it is there."""
    found = mem.digest(text, max_facts=max_facts)
    while found.more and max_facts < len(text):
        max_facts = min(4 * max_facts, len(text))
        found = mem.digest(text, max_facts=max_facts)
    return found


def _time_of(piece: Piece, session: Session) -> str | None:
    """Return when a piece was said as an ISO time; None where the log does not say it."""
    return _iso_past(piece.time or session.newest or session.created_at)


def _iso_past(millis: int | None) -> str | None:
    """Return a time in ms as ISO; None where there is none, or where it is to come."""
    try:
        moment = datetime.fromtimestamp(millis / 1000, timezone.utc) if millis else None
    except (ValueError, OverflowError, OSError):
        return None
    is_past = moment is not None and moment < datetime.now(timezone.utc)
    return moment.isoformat(timespec="seconds") if is_past else None


def sediment(mem: Any, path: Path, sessions: dict[str, dict], *, host: Host | None = None,
             save: Callable[[], None] | None = None, max_chars: int = 8000, max_facts: int = 10,
             verified: bool = False, agent: str | None = None,
             stopped: Callable[[], bool] = bool) -> dict:
    """Digest what is new in a log and report it; without *save* nothing is stored.

    *max_facts* are asked for at once; where a piece holds more, it is asked again, so none is left
    out. *save* is called when a piece with facts is stored, so a kill repeats one of these at
    most, and once a second for those without; once *stopped* says so, no other piece is begun. Without a
    *host* it is a log of DSH. Raises OSError, the core's errors, and DamagedData for a log with
    bytes of which nothing can be read.
    """
    from hermes_lite import DamagedData, redact
    host = host or Host(sessions)
    session, digests, count, private = Session(), [], 0, 0

    def not_private() -> Iterator[Message]:
        nonlocal private, is_saved
        for message in host.unread(path, session):
            if not _is_private(mem.root, message, session, path):
                yield message
                continue
            private += 1
            if host.reader:                        # its copy in another session stays out, too
                host.note(message, session)
                is_saved = False

    saved = monotonic()
    is_saved = True
    for piece in pieces(not_private(), max_chars, clean=lambda text: redact(text)[0]):
        found = _found(mem, piece.text, max_facts)
        if save:
            each = {"each": host.origin_of(path, session, piece)} if host.reader else {}
            found = mem.keep_facts(found, verified=verified, agent=agent or host.label,
                                   created_at=_time_of(piece, session),
                                   source=host.source(path, session, *piece.messages), **each)
        digests.append(found)
        for message in piece.done:
            host.note(message, session)
        count += len(piece.done)
        is_saved = False
        if save and (found.facts or monotonic() - saved > 1):
            save()
            saved, is_saved = monotonic(), True
        if stopped():
            break
    if save and not is_saved:
        save()
    is_empty = not session.events and (session.torn or not os.stat(path).st_size)
    if not session.known and not is_empty:
        raise DamagedData(_unknown(path, host, session))
    return {"path": str(path), "host": host.name, "session": session.id, "messages": count,
            "private": private,
            "facts": [dict(fact) for digest in digests for fact in digest.facts],
            "results": [dict(result) for digest in digests for result in digest.results],
            "refused": [list(pair) for digest in digests for pair in digest.refused],
            "degraded": sorted({digest.degraded for digest in digests} - {None}),
            "skipped": session.skipped, "torn": session.torn, "damaged": session.damaged,
            "unread": session.torn and not session.events}


def _unknown(path: Path, host: Host, session: Session) -> str:
    """Say that nothing of a log can be read, and what to do."""
    if host.reader is None:
        return (f"{path}: {session.damaged or 'no line of it is an event of DSH'}; give a"
                " session.jsonl or session.jsonl.zstd that DSH wrote, or --from auto")
    reason = session.damaged or f"no line of it is an event of {host.name}"
    return f"{path}: {reason}; --from auto finds out whose log it is"


# =================================================================================================
# 3. Command line
# =================================================================================================


def _printable(text: str) -> str:
    """Return *text* without what a terminal would obey; works before the core is found."""
    return "".join(char if char.isprintable() else " " for char in text)


def _say(words: object) -> None:
    print(f"auto_sediment: {_printable(str(words))}", file=sys.stderr)


HOSTS = ("claude-code", "codex", "openclaw", "hermes", "gemini", "chatgpt-export")
_ANY_LOG = re.compile(r"(?i).*\.(?:jsonl(?:\.(?:zst|zstd|reset\..+))?|json|db|sqlite|zip)")


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=Path(sys.argv[0]).name if Path(sys.argv[0]).stem == "hermes-sediment"
        else "auto_sediment.py", description=__doc__.partition("\n")[0],
        epilog="Without --apply nothing is stored; without a choice of logs it is --latest.")
    option = parser.add_argument
    which, how = parser.add_mutually_exclusive_group(), parser.add_mutually_exclusive_group()
    option("--from", dest="host", metavar="HOST", default="dsh", choices=("dsh", *HOSTS, "auto"),
           help=f"whose logs: dsh (default), {', '.join(HOSTS)}, or auto for all of them")
    which.add_argument("--latest", action="store_true",
                       help="the newest session (of DSH by its own time, else by its file's date)")
    which.add_argument("--all", action="store_true", help="every session")
    which.add_argument("--session", metavar="FILE", action="append", default=[],
                       help="this log, or those below this folder; may be given again")
    how.add_argument("--dry-run", action="store_true", help="show what would be taken (default)")
    how.add_argument("--apply", action="store_true", help="store it")
    option("--watch", metavar="SECONDS", nargs="?", type=float, const=5.0,
           help="follow the logs, looking every so many seconds (5), until a signal stops it")
    option("--wait", metavar="SECONDS", type=float, default=0.0,
           help="for another run to end, before giving up (0)")
    option("--sessions-root", metavar="DIR",
           help="where the host's logs are; of DSH by default $DSH_HOME/sessions, ~/.dsh/sessions")
    option("--root", metavar="DIR", help="the data root of Hermes Lite")
    option("--verified", action="store_true",
           help="keep the facts as confirmed, so that they do not expire after a week")
    option("--agent", metavar="NAME",
           help="the agent that keeps them; by default the host's name, of DSH none")
    option("--max-chars", metavar="N", type=int, default=8000, help="of one digest (8000)")
    option("--max-facts", metavar="N", type=int, default=10,
           help="asked for at once (10); where a text holds more, it is asked again")
    option("--json", action="store_true",
           help="one JSON object on stdout; with --watch one a line, when something is new")
    args = parser.parse_args(argv)
    if args.max_chars < 100 or args.max_facts < 1:
        parser.error("--max-chars is 100 or more, --max-facts 1 or more")
    if args.host == "auto" and args.sessions_root:
        parser.error("--sessions-root needs a host; give --from HOST, or --session DIR")
    if args.watch is not None and (args.latest or not args.apply or not 0 < args.watch < 1e6):
        parser.error("--watch needs --apply and seconds above 0, and follows every log")
    return args


Chosen = tuple[Path, "str | None"]     # a log, and its host, None where that must be found out


def _chosen(args: argparse.Namespace) -> list[Chosen]:
    """The logs that the command line asks for, at least one."""
    from hermes_lite import NotFound
    found: list[Chosen] = []
    if args.session:
        for name in args.session:
            found += _given(Path(name), args.host)
        where = args.session[0]
    else:
        for host in ("dsh", *HOSTS) if args.host == "auto" else (args.host,):
            logs = _logs_of(host, args)
            found += [(path, host) for path in (logs if args.all or args.watch or not logs else
                                                [_latest(host, logs)])]
        where = ", ".join(map(str, _folders(args.host, args))) or "any place that is known"
    if not found or not found[0][0].exists():
        name = {"dsh": "DSH ", "auto": ""}.get(args.host, f"{args.host} ")
        raise NotFound(f"no {name}session at {where}; " + (
            "--session FILE names one" if args.host in ("auto", "chatgpt-export") else
            "--sessions-root DIR says where they are"))
    return found


def _given(path: Path, name: str) -> list[Chosen]:
    """Return a log that was named, or those below a folder."""
    host = None if name == "auto" else name
    if not path.is_dir():
        return [(path, host)]
    if name == "dsh":
        return [(log, host) for log in find_sessions(path, on_error=_say)]
    return [(log, host) for log in _files(path) if _ANY_LOG.fullmatch(log.name)]


def _files(folder: Path) -> list[Path]:
    """Return the files below a folder, by path; links to folders are not followed."""
    return sorted(Path(place, name) for place, _, names in os.walk(folder, onerror=_say)
                  for name in names)


def _folders(host: str, args: argparse.Namespace) -> list[Path]:
    """Return the folders in which the logs of a host lie."""
    if args.sessions_root:
        return [Path(args.sessions_root)]
    if host == "dsh":
        home = os.path.expanduser(os.environ.get("DSH_HOME", "").strip() or "~/.dsh")
        return [Path(home, "sessions")]
    return [] if host == "auto" else list(_reader(host).folders(os.environ))


def _logs_of(host: str, args: argparse.Namespace) -> list[Path]:
    """Return the logs of a host in its folders."""
    logs: list[Path] = []
    for folder in filter(os.path.isdir, _folders(host, args)):
        if host == "dsh":
            logs += find_sessions(folder, on_error=_say)
        else:
            logs += [path for path in _files(folder) if re.fullmatch(
                _reader(host).names, path.relative_to(folder).as_posix())]
    # The oldest first: what resumes a session comes behind it.
    return logs if host == "dsh" else sorted(logs, key=lambda path: (_age(path), str(path)))


def _age(path: Path) -> float:
    """Return the date of a file; 0 where it has gone."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _reader(host: str) -> Any:
    """Return the reader of a host's logs."""
    return _registry().get(host)


def _registry() -> Any:
    """Return the registry of readers; MissingPackage without hermes_ext."""
    from hermes_lite import ConfigError, MissingPackage, import_system
    try:
        return import_system("agent_logs")
    except ConfigError:
        raise MissingPackage("only the logs of DSH can be read: the folder hermes_ext, with the "
                             "readers for other hosts, is not beside hermes_lite.py") from None


def _latest(host: str, logs: Sequence[Path]) -> Path:
    """Return the newest log of a host: of DSH by the times in it, else by the file's date."""
    if host != "dsh":
        return logs[-1]
    from hermes_lite import MissingPackage
    ranks = {}
    for path in logs:
        try:
            ranks[rank(path)] = path
        except (OSError, MissingPackage) as error:
            _say(f"{path}: {error}" if isinstance(error, MissingPackage) else error)
    if not ranks:
        return logs[0]
    best = max(ranks)
    for each, path in ranks.items():
        if best[0] and not each[0] and each[2] > best[2] and os.stat(path).st_size:
            _say(f"{path} is newer than the log that is taken, and no line of it can be read")
    return ranks[best]


def _host_of(path: Path) -> str:
    """Return whose log a file is, by what is in it; DamagedData for an unknown kind."""
    from hermes_lite import DamagedData, MissingPackage
    if not os.stat(path).st_size:
        return "dsh"                               # an empty log says nothing
    session = Session()
    is_binary = _head(path).startswith((b"SQLite format 3", b"PK\x03\x04"))
    lines = iter(()) if is_binary else _events(path, session)
    events = [(str(number), event) for number, _, event in itertools.islice(lines, 200)]
    if session.torn and not events and not any(session.skipped.values()) and (
            _head(path).startswith((b"{", b"\x28\xb5\x2f\xfd"))):
        return "dsh"                               # its first line is still being written
    is_dsh = any(event.get("type") == "session" and "createdAt" in event
                 or re.fullmatch(r"(?:user|assistant|session|turn|tool|agent)/\S+",
                                 str(event.get("type"))) for _, event in events)
    if is_dsh:
        return "dsh"
    try:
        reader = _registry().recognise(path, _head(path), iter(events))
    except MissingPackage:
        return "dsh"
    if reader is None:
        raise DamagedData(f"{path}: no reader knows this kind of log; known are those of dsh, "
                          f"{', '.join(HOSTS)}")
    return str(reader.name)


def _show(report: dict, as_json: bool) -> None:
    _say_lost(report)
    if report["torn"] and not report["unread"]:
        _say(f"{report['path']}: the end is cut or still being written; the rest is for next time")
    for words in report["degraded"]:
        _say(words)
    if as_json:
        return
    results = report["results"]
    known = sum(not result["created"] for result in results)
    stored = f", stored {len(results) - known}, known {known}" if results else ""
    stored += f", refused {len(report['refused'])}" if report["refused"] else ""
    stored += f", private {report['private']}" if report["private"] else ""
    name = _printable(str(report["session"] or report["path"]))
    print(f"{name}: new messages {report['messages']},"
          f" facts {len(report['facts'])}{stored}")
    for fact in report["facts"]:
        print(f"  {fact['category']} {fact['importance']}  {_printable(fact['content'])}")


def _say_lost(report: dict) -> None:
    """Name what could not be read of a log."""
    for kind, count in report["skipped"].items():
        if count:
            _say(f"{report['path']}: {count} lines lost, {kind}")
    if report["damaged"]:
        _say(f"{report['path']}: it is damaged ({report['damaged']}); what comes before is taken")
    if report["unread"]:
        _say(f"{report['path']}: nothing of it can be read yet; it is cut, or still being written")


def _is_fresh_loss(report: dict, sessions: dict[str, dict]) -> bool:
    """Tell whether more is lost of a log than an earlier run said; note it as said."""
    lost = sum(report["skipped"].values())
    entry = sessions.get(report["session"], {})
    before = entry.get("lost") or 0
    if lost and report["session"]:
        blank = {"last": -1, "marks": []} if report["host"] == "dsh" else {"keys": []}
        sessions[report["session"]] = {**blank, **entry, "lost": lost}
    return lost > before or bool(report["damaged"] or report["unread"])


class _Hosts:
    """What was taken of each host's logs: read when one is asked for, and saved."""

    def __init__(self, mem: Any, *, applies: bool) -> None:
        self._mem, self._applies = mem, applies
        self._held: dict[str, Host] = {}

    def get(self, name: str) -> Host:
        """Return a host by the name that `--from` has for it."""
        if name not in self._held:
            sessions = self._stored(name)
            keys = {key for entry in sessions.values() for key in entry.get("keys", ())}
            self._held[name] = Host(sessions) if name == "dsh" else Host(
                sessions, _reader(name), keys)
        return self._held[name]

    def save(self, name: str) -> None:
        """Write what is taken of a host's logs."""
        sessions = self._held[name].sessions
        if name != "dsh":                          # as one text, which is fast to write
            sessions = {session: {**entry, "keys": " ".join(entry["keys"])}
                        for session, entry in sessions.items()}
        self._mem.save_state(_state(name), {"version": 1, "sessions": sessions})

    def save_changed(self) -> None:
        """Write what was known from a parent or a copy, and what was said to be lost."""
        for name, host in self._held.items():
            if self._applies and host.sessions != self._stored(name):
                self.save(name)

    def _stored(self, name: str) -> dict[str, dict]:
        held = self._mem.state(_state(name))
        return _known(held) if name == "dsh" else _known_keys(held)


def _state(host: str) -> str:
    """Return the name of the state of a host."""
    return "sediment" if host == "dsh" else f"sediment_{host.replace('-', '_')}"


def _known_keys(state: dict) -> dict[str, dict]:
    """The sound entries of the state of a host other than DSH."""
    held = state.get("sessions")
    return {name: {**entry, "keys": entry["keys"].split()}
            for name, entry in (held if isinstance(held, dict) else {}).items()
            if isinstance(entry, dict) and isinstance(entry.get("keys"), str)}


def _each(mem: Any, args: argparse.Namespace, chosen: Iterable[Chosen], reports: list[dict], *,
          stopped: Callable[[], bool] = bool) -> int:
    """Digest log after log; one that cannot be read costs that log, and the exit code."""
    from hermes_lite import DamagedData, HermesError, MissingPackage
    hosts, code = _Hosts(mem, applies=args.apply), 0
    for path, name in chosen:
        if stopped():
            break
        try:
            name = name or _host_of(path)
            host = hosts.get(name)
            report = sediment(mem, path, host.sessions, host=host,
                              save=functools.partial(hosts.save, name) if args.apply else None,
                              max_chars=args.max_chars, max_facts=args.max_facts,
                              verified=args.verified, agent=args.agent, stopped=stopped)
        except (DamagedData, MissingPackage, OSError) as error:
            if isinstance(error, HermesError) and not isinstance(
                    error, (DamagedData, MissingPackage)):
                raise
            _say(f"{path}: {error}" if isinstance(error, MissingPackage) else error)
            report = {"path": str(path), "error": str(error)}
            code = code or getattr(error, "exit_code", 1)
        else:
            is_lost = _is_fresh_loss(report, host.sessions)
            if report["damaged"]:
                code = code or DamagedData.exit_code
            if report["messages"] or not args.apply or sys.stdout.isatty():
                _show(report, args.json)            # cron sends mail for every line
            elif is_lost:
                _say_lost(report)
        reports.append(report)
    hosts.save_changed()
    return code


def _run(args: argparse.Namespace) -> int:
    from hermes_lite import HermesLite, Locked, take_over_edits
    reports: list[dict] = []
    with HermesLite(args.root) as mem, contextlib.ExitStack() as lock:
        lock.enter_context(mem.systems.acting("sediment"))
        if args.watch is not None:
            return _watch(mem, args)
        _private_mode(mem.root)                    # nothing is read where it cannot be known
        try:
            if args.apply:
                lock.enter_context(_exclusive(mem, args.wait))
                take_over_edits(mem)
        except Locked:
            _say(f"another run is at work on {mem.root}; nothing was done")
            return 0
        try:
            code = _each(mem, args, _chosen(args), reports)
        finally:
            _show_json(args, reports)
    if not args.apply:
        _say("dry run, nothing is stored; --apply stores it")
    return code


@contextlib.contextmanager
def _exclusive(mem: Any, seconds: float) -> Iterator[None]:
    """Hold the lock of the job, waiting so long for another run; Locked where it takes longer."""
    from hermes_lite import Locked
    deadline = monotonic() + seconds
    with contextlib.ExitStack() as lock:
        while True:
            try:
                lock.enter_context(mem.exclusive("sediment"))
                break
            except Locked:
                if monotonic() >= deadline:
                    raise
                sleep(0.05)
        yield


def _show_json(args: argparse.Namespace, reports: list[dict]) -> None:
    from hermes_lite import printable_json
    if args.json:
        shown = {"applied": args.apply, "sessions": reports}
        print(printable_json(shown, indent=None if args.watch else 2), flush=True)


def _watch(mem: Any, args: argparse.Namespace) -> int:
    """Follow the logs until a signal comes; what is not taken by then is for the next run.

    A log is read again when its file has changed; one that could not be read, too. The piece
    that is at work when the signal comes is finished.
    """
    from hermes_lite import DamagedData, Locked, NotFound, take_over_edits
    stop, received = threading.Event(), []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: (received.append(number), stop.set()))
    read: dict[Path, object] = {}
    said = ""
    while not stop.is_set():
        begun = monotonic()
        try:
            _private_mode(mem.root)
        except DamagedData as problem:             # nothing is read until it is put back
            if str(problem) != said:
                said = str(problem)
                _say(said)
            stop.wait(args.watch)
            continue
        try:
            stamps = {log: _stamp(log[0]) for log in _chosen(args)}
        except NotFound:                           # the first session is still to come
            stamps = {}
        changed = [log for log, stamp in stamps.items() if stamp != read.get(log[0])]
        reports: list[dict] = []
        try:
            if changed:
                with mem.exclusive("sediment"):
                    take_over_edits(mem)
                    _each(mem, args, changed, reports, stopped=stop.is_set)
                read.update((log[0], stamps[log]) for log in changed)
        except Locked:                             # another run is at work; the next look sees
            pass
        if any(report.get("messages") or report.get("error") for report in reports):
            _show_json(args, reports)
        sys.stdout.flush()
        stop.wait(max(args.watch, 9 * (monotonic() - begun)))      # at most a tenth of the time
    return 130 if signal.SIGINT in received else 0


def _stamp(path: Path) -> object:
    """Return what changes when a log does: size and date, also of what SQLite has beside it."""
    stamps = []
    for name in (path, f"{path}-wal"):
        with contextlib.suppress(OSError):
            found = os.stat(name)
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
    return stamps


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code; a wrong option ends the process with 2."""
    args = _arguments(argv)
    for stream in (sys.stdout, sys.stderr):     # UTF-8 under LC_ALL=C too
        getattr(stream, "reconfigure", dict)(encoding="utf-8", errors="backslashreplace")
    try:
        from hermes_lite import HermesError
    except ImportError:
        _say("hermes_lite.py is neither beside this script nor installed; put it there")
        return 1
    try:
        return _run(args)
    except HermesError as error:
        _say(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:     # whoever read stdout has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


if __name__ == "__main__":
    sys.exit(main())

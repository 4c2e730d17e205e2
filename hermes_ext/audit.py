"""Audit: an append-only log of who did what to which memories, each line sealed to the one before.

    hermes_lite.py audit list --since 1d
    hermes_lite.py audit verify
    hermes_lite.py audit verify --expect 120:5f0c71e2-…

Switched on in config.yaml:    systems: {audit: {}}    or    {audit: {head: /other/disk/head}}

    max_bytes   5000000; a longer file is set aside as logs/audit-N.log and a new one begun
    head        where the head stands; another disk or machine makes cutting visible (.audit_head)
    reads       true; false leaves the reads out

Logged is every act on every surface, by the core's `on_event`: reads (recall, vsearch, list,
show, graph, context, anchors, report, score), writes (remember, verify, forget, prune, pin, unpin,
reinforce, decay, export) and each command that is neither, such as `scrub`, by its name. The
surface is `python`, or `cli export`, `shell recall`; the agent is the caller's (HERMES_AGENT on
the command line), else the one of a new memory.

A line of logs/audit.log (version 1) is one JSON object in ASCII:
    n        1, 2, 3 … through all files         at      time, UTC
    surface, agent, what                         ids     the first 500, and `count`, all of them
    query    HMAC of the query, never its text   why     what the caller said, redacted, cut at 200
    mac      HMAC-SHA256 over the mac of line n-1 and this line without its mac

A free text in which redaction would see a secret, even beside its neighbours, is "(hidden)".
The keys are derived from the root's own (.personal_key), which is in no backup. A store that is
encrypted keeps `why` out. The head holds count and mac of the last line, and a mark of the key.

verify finds a line that was changed, added, taken out or moved, a file that is missing, and lines
cut off the end. It cannot find: files, head and key put back together from an earlier copy, or
all made anew by somebody who can read the key; against both, keep the `count:mac` that verify
prints elsewhere and give it to --expect. An act in the instant before kill -9 may lack its line:
the line is written after the act. After a power cut the head may be ahead of the log by the last
reads (writes are synced): that looks like a cut, and is reported as one.

Several processes append in turn, under a lock of its own. Where the log cannot be written, the
act goes on and a notice says that it was not logged.
"""
from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hermes_lite import (ConfigError, Event, FileLock, HermesLite, MemoryId, NotFound, Operation,
                         Param, READ_ACTS, Record, StorageError, UsageError, append_bytes,
                         display_text,
                         fits, from_json, iso, make_folder, parse_time, pluralize, write_atomic)

__all__ = ["Audit", "OPERATIONS", "Verdict", "listed", "system", "verify"]

_IDS = 500
_TAIL = 1 << 16
_TIMEOUT = 5.0
_START = str(uuid.UUID(int=0))
Line = dict[str, object]


@dataclass(frozen=True, slots=True)
class Verdict(Record):
    """What verify found; `head` is the count:mac to keep elsewhere, `problems` are sentences."""
    lines: int
    files: int
    head: str
    problems: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return 1 if self.problems else 0


class Audit:
    """The log of one root; as a system it appends a line for each event."""
    name = "audit"

    def __init__(self, memory: HermesLite, *, max_bytes: int = 5_000_000, head: str | None = None,
                 reads: bool = True) -> None:
        self.memory = memory
        self.max_bytes = max_bytes
        self.reads = reads
        self.folder = memory.root / "logs"
        self.path = self.folder / "audit.log"
        self.head_path = Path(head).expanduser() if head else memory.root / ".audit_head"
        self._keys: dict[str, bytes] = {}

    def on_event(self, event: Event) -> None:
        """Append a line; StorageError or Locked where that cannot be done."""
        if event.what in READ_ACTS and not self.reads:
            return
        why = None if event.why is None or self.memory.store.files.cipher else (
            self.memory.redact(event.why)[0][:200])
        query = None if event.query is None else _hmac(
            self.key("audit query"), event.query.encode("utf-8", "replace"))
        agent = event.agent and self.memory.redact(event.agent)[0][:100]
        self._append(self._harmless({
            "at": iso(self.memory.clock()), "surface": event.surface, "agent": agent,
            "what": event.what, "ids": event.ids[:_IDS], "count": len(event.ids),
            "query": query, "why": why, **self._client_of(event)}), durable=event.what not in READ_ACTS)

    def _client_of(self, event: Event) -> Line:
        """Return who called over a network: ip, user_agent and request."""
        client = event.client or {}
        return {name: self.memory.redact(client[name])[0][:200]
                for name in ("ip", "user_agent", "request") if client.get(name)}

    def _harmless(self, fields: Line) -> Line:
        """Hide free text in which redaction, now or by `scrub`, would see a secret."""
        fields = {name: value for name, value in fields.items() if value is not None}
        for name in ("why", "agent", "user_agent"):
            line = _dumped(fields).decode()
            if name in fields and self.memory.redact(line)[0] != line:
                fields[name] = "(hidden)"
        return fields

    def key(self, purpose: str) -> bytes:
        """Return the root's key for *purpose*; its file is read once."""
        if purpose not in self._keys:
            self._keys[purpose] = self.memory.redactor.key(purpose)
        return self._keys[purpose]

    def _append(self, fields: Mapping[str, object], *, durable: bool) -> None:
        make_folder(self.memory.root)
        make_folder(self.folder)
        key = self.key("audit chain")
        lock = FileLock(self.memory.root / ".lock_audit")
        lock.acquire(timeout=_TIMEOUT)
        try:
            self._rotate()
            self._end_line()
            count, mac = self._last()
            body = {"n": count + 1, **fields}
            mac = _mac(key, mac, body)
            append_bytes(self.path, _dumped({**body, "mac": mac}) + b"\n", durable=durable)
            write_atomic(self.head_path, _dumped(
                {"count": count + 1, "mac": mac, "seal": _mark(key)}) + b"\n", durable=durable)
        finally:
            lock.release()

    def _rotate(self) -> None:
        """Set a long file aside under the number of its last line."""
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_size >= self.max_bytes and (last := self._tail()):
                os.rename(self.path, self.folder / f"audit-{last['n']:09d}.log")

    def _end_line(self) -> None:
        """Close a line that a kill left unfinished; verify will name it."""
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")

    def _last(self) -> tuple[int, str]:
        """Return number and mac to go on from: the head's, or of a line that came after it."""
        head, last = self.head(), self._tail()
        if last and (head is None or last["n"] > head["count"]):
            return last["n"], last["mac"]
        return (head["count"], head["mac"]) if head else (0, _START)

    def head(self) -> Line | None:
        """Return the head, None where there is none that can be read."""
        with contextlib.suppress(OSError, ValueError):
            head = from_json(self.head_path.read_bytes())
            if fits(head, _HEAD) and head.get("mac", "").isascii():
                return {"mac": "", "seal": "", **head}
        return None

    def _tail(self) -> Line | None:
        """Return the newest line that can be read."""
        for path in (self.path, *reversed(self._aside())):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
                for row in reversed(file.read().splitlines()):
                    if line := _line(row):
                        return line
        return None

    def _aside(self) -> list[Path]:
        return sorted(self.folder.glob("audit-*.log"))

    def files(self) -> list[Path]:
        """Return the files of the log, oldest first."""
        return [*self._aside(), *([self.path] if self.path.exists() else [])]

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Yield (place, bytes) of every line, oldest first."""
        for path in self.files():
            try:
                with open(path, "rb") as file:
                    for number, row in enumerate(file, 1):
                        yield f"{path.name}:{number}", row.rstrip(b"\n")
            except OSError as problem:
                raise StorageError(f"cannot read {path}: {problem.strerror}") from None


def _dumped(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, separators=(", ", ": ")).encode()


_HEAD = {"count": int, "mac?": str, "seal?": str}
_LINE = {"n": int, "mac": str, "at?": str, "surface?": str, "agent?": str, "what?": str,
         "ids?": [str], "count?": int, "query?": str, "why?": str,
         "ip?": str, "user_agent?": str, "request?": str}


def _line(row: bytes) -> Line | None:
    """Return a line, None for what is none of ours."""
    with contextlib.suppress(ValueError):
        line = from_json(row)
        if fits(line, _LINE) and _dumped(line) == row and line["mac"].isascii():
            return line
    return None


def _hmac(key: bytes, data: bytes) -> str:
    """Return 128 bits in the form of a UUID, which redaction does not take for a secret."""
    return str(uuid.UUID(bytes=hmac.new(key, data, hashlib.sha256).digest()[:16]))


def _mac(key: bytes, before: str, body: Mapping[str, object]) -> str:
    return _hmac(key, before.encode() + b"\n" + _dumped(body))


def _mark(key: bytes) -> str:
    return _hmac(key, b"this key")


def _of(memory: HermesLite) -> Audit:
    """Return the active audit, or a reader of the log where it is not switched on."""
    return next((each for each in memory.systems if isinstance(each, Audit)), None) or Audit(
        memory, **(memory.config["systems"].get("audit") or {}))


# -- verify -------------------------------------------------------------------

def verify(memory: HermesLite, *, expect: str | None = None) -> Verdict:
    """Go through the whole chain; *expect* is a `count:mac` that an earlier verify printed."""
    audit = _of(memory)
    lock = FileLock(memory.root / ".lock_audit")
    if memory.root.is_dir():
        lock.acquire(timeout=_TIMEOUT)
    try:
        return _verified(audit, _expected(expect))
    finally:
        lock.release()


def _expected(word: str | None) -> tuple[int, str] | None:
    if word is None:
        return None
    if not re.fullmatch(r"\d{1,12}:[0-9a-f\-]{36}", word.strip()):
        raise UsageError("--expect is the count:mac that an earlier `audit verify` printed")
    count, _, mac = word.strip().partition(":")
    return int(count), mac


def _verified(audit: Audit, expected: tuple[int, str] | None) -> Verdict:
    head, problems = audit.head(), []
    key = audit.key("audit chain")
    if head and head["seal"] != _mark(key):
        return Verdict(0, len(audit.files()), "", (
            "the key in .personal_key is not the one that sealed this log; put that one back",))
    count = 0
    mac = _START
    lines = 0
    known = expected in (None, (0, _START))
    for place, row in audit.rows():
        line = _line(row)
        if line is None:
            problems.append(f"{place}: this is no line of the log (cut by a kill, or damaged)")
            continue
        lines += 1
        problems += [f"{place}: {said}" for said in _linked(key, (count, mac), line)]
        count, mac = max(count, line["n"]), line["mac"]
        known = known or (line["n"], mac) == expected
    if head is None and lines:
        problems.append(f"the head {audit.head_path.name} is missing or damaged: nobody can say "
                        "whether lines were cut off the end")
    if head and head["count"] > count:
        problems.append(f"{_span(count + 1, head['count'])} missing at the end: cut off, or "
                        "lost in a power cut")
    elif head and head["count"] == count and head["mac"] != mac:
        problems.append("the last line is not the one that the head knows")
    if not known:
        problems.append(f"no line is {expected[0]}:{expected[1]}, which --expect names")
    return Verdict(lines, len(audit.files()), f"{count}:{mac}", tuple(problems))


def _linked(key: bytes, before: tuple[int, str], line: Line) -> list[str]:
    """Hold one line against (number, mac) of the one before it."""
    count, mac = before
    body = {name: value for name, value in line.items() if name != "mac"}
    if line["n"] > count + 1:
        return [f"{_span(count + 1, line['n'] - 1)} missing before this line"]
    if line["n"] <= count:
        return [f"line {line['n']} is out of order or there twice"]
    if not hmac.compare_digest(_mac(key, mac, body), line["mac"]):
        return [f"line {line['n']} was changed, or the one before it"]
    return []


def _span(first: int, last: int) -> str:
    return f"line {first} is" if first == last else f"lines {first} to {last} are"


# -- list ---------------------------------------------------------------------

def listed(memory: HermesLite, *, since: str | None = None, what: str | None = None,
           agent: str | None = None, id: str | None = None,
           limit: int | None = None) -> list[Line]:
    """Return the lines that pass every filter, oldest first; *limit* keeps the newest.

    *since* is a date, or a span such as 12h, 1d or 2w. Lines that cannot be read are left out.
    """
    start = memory.calendar.moment(since)
    rows = [line for _, row in _of(memory).rows() if (line := _line(row))
            and what in (None, line.get("what")) and agent in (None, line.get("agent"))
            and (id is None or id in (line.get("ids") or ()))
            and (start is None or (parse_time(line.get("at")) or start) >= start)]
    return rows[-limit:] if limit else rows


def system(memory: HermesLite, *, max_bytes: int = 5_000_000, head: str | None = None,
           reads: bool = True) -> Audit:
    """Make the system that logs every act; the settings stand in the module's docstring."""
    if type(max_bytes) is not int or max_bytes < 1000:
        raise ConfigError("config.yaml: systems.audit.max_bytes is a whole number from 1000 up")
    if not isinstance(head, (str, type(None))) or type(reads) is not bool:
        raise ConfigError("config.yaml: systems.audit: head is a file's name, reads true or false")
    return Audit(memory, max_bytes=max_bytes, head=head, reads=reads)


def _run(memory: HermesLite, *, action: str, expect: str | None, **filters: object) -> object:
    if action not in ("list", "verify"):
        raise UsageError("audit list or audit verify")
    if action == "verify":
        return verify(memory, expect=expect)
    if not _of(memory).files() and "audit" not in memory.config["systems"]:
        raise NotFound("nothing is logged here; switch it on in config.yaml: "
                       "systems: {audit: {}}")
    return listed(memory, **filters)


def _show(result: object) -> Iterator[str]:
    if isinstance(result, Verdict):
        yield from map(display_text, result.problems)
        yield (f"{pluralize(result.lines, 'line')} in {pluralize(result.files, 'file')}, "
               f"{pluralize(len(result.problems), 'problem')}; "
               f"head {result.head or 'none'}")
        return
    for line in result:
        ids = line.get("ids") or []
        more = f" and {line['count'] - 3} more" if line.get("count", 0) > 3 else ""
        yield display_text("  ".join(str(part) for part in (
            line.get("at"), line["n"], line.get("surface"), line.get("agent") or "-",
            line.get("what"), (", ".join(ids[:3]) or "-") + more, line.get("why")) if part))


OPERATIONS = (
    Operation("audit", "list or verify the log of who did what", _run, (
        Param("action", str, "list or verify", "list", positional=True),
        Param("since", str, "from this date on, or 12h, 1d, 2w"),
        Param("what", str, "only this act, such as forget"),
        Param("agent", str, "only this agent"),
        Param("id", MemoryId, "only what touched this memory"),
        Param("limit", int, "the newest of them, at most this many", least=1),
        Param("expect", str, "verify: a count:mac that was kept elsewhere")), _show,
        scope="admin"),
)

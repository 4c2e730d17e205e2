"""Events: who wants to know what happens to the memories reads it here, or in Redis.

Each act that changes memories becomes a line of `logs/events.log`, made after the act, whoever
did it:

    {"n": 12, "at": "2026-08-20T10:00:00+00:00", "type": "write", "ids": ["mem_…"],
     "surface": "cli remember", "agent": "finance", "room": "configs", "tags": ["payment"]}

`type` is write, merge, forget, conflict (the first id contradicts the others), or the name of
another act such as verify, edit or pin. `n` counts from 1 without a gap. A line holds no text: who
wants it asks for the id, and what was forgotten is not kept here. Where the store is encrypted it
holds no tags and no agent either. Files of 5 MB are set aside, the last two are kept.

    systems:
      events:
        redis: redis://localhost:6379/0      # optional; package redis
        channel: memory:write

With `redis`, each line is published on the channel. The log is the outbox: what Redis did not take
is published later, in order, by the next act or by `serve`. A line may come twice after a kill,
never not at all; `n` tells. What a program that was killed in between did not write down is found by
`serve` and by `events tail`. The file `logs/events.log` alone switches the system on: `serve` makes
it, so that its readers hear of what other programs do.
"""
from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from hermes_lite import (
    ConfigError,
    Draft,
    Event,
    FileLock,
    HermesLite,
    Locked,
    Memory,
    MissingPackage,
    Operation,
    Param,
    READ_ACTS,
    UsageError,
    append_bytes,
    fits,
    from_json,
    iso,
    make_folder,
    parse_time,
    write_atomic,
)

__all__ = ["Events", "OPERATIONS", "Publisher", "find", "system"]

Line = dict[str, Any]

_FILE_BYTES = 5_000_000
_TAIL_BYTES = 1 << 16
_LOCK_SECONDS = 5.0
_LEEWAY = timedelta(seconds=5)
_CAUGHT_UP = 500           # memories that are looked at
_LINE = {"n": int, "at": str, "type": str, "ids": [str]}


class Events:
    """The log of events of one root; as a system it appends a line for each act."""
    name = "events"

    def __init__(self, memory: HermesLite, publisher: Publisher | None = None) -> None:
        self.memory = memory
        self.publisher = publisher
        self.path = memory.root / "logs" / "events.log"
        self._merged = threading.local()           # ids that the write of this thread merged into

    # -- as an extension ------------------------------------------------------

    def storing(self, memory: Memory, old: Memory | None, draft: Draft) -> None:
        """Note whether this write is a merge: an event does not say so."""
        if old is not None:
            self._merged_ids().add(memory.id)

    def on_event(self, event: Event) -> None:
        """Append the lines of an act, and publish what waits."""
        if event.what in READ_ACTS or not event.ids:
            return
        self.append([*self._lines_of(event)])

    def _merged_ids(self) -> set[str]:
        if not hasattr(self._merged, "ids"):
            self._merged.ids = set()
        found: set[str] = self._merged.ids
        return found

    def _lines_of(self, event: Event) -> Iterator[Line]:
        own = {"surface": event.surface}
        if event.agent and self._shows_words():
            own["agent"] = self.memory.redact(event.agent)[0][:100]
        if event.what != "remember":
            kind = {"prune": "forget"}.get(event.what, event.what)
            yield {"type": kind, "ids": list(event.ids), **own}
            return
        merged = self._merged_ids()
        for memory_id in event.ids:
            line = {"type": "merge" if memory_id in merged else "write", "ids": [memory_id], **own}
            merged.discard(memory_id)
            yield {**line, **self._labels_of(memory_id)}

    def _labels_of(self, memory_id: str) -> Line:
        """Return room, tags and agent of a memory; nothing where it has gone already."""
        with self.memory.lock:
            memory = self.memory.store.get(memory_id)
        if memory is None:
            return {}
        labels: Line = {"room": memory.room}
        if self._shows_words():
            labels["tags"] = list(memory.tags)
            if memory.agent:
                labels["agent"] = memory.agent
        return labels

    def _shows_words(self) -> bool:
        return self.memory.store.files.cipher is None

    # -- the log --------------------------------------------------------------

    def append(self, lines: list[Line]) -> None:
        """Append lines with their number and time, on disk when this returns; then publish."""
        if not lines:
            return
        make_folder(self.memory.root)
        make_folder(self.path.parent)
        with self._locked():
            self._rotate()
            number = self.last_number()
            at = iso(self.memory.clock())
            rows = [json.dumps({"n": number + place, "at": at, **line}, ensure_ascii=False)
                    for place, line in enumerate(lines, 1)]
            append_bytes(self.path, self._line_end() + "\n".join(rows).encode() + b"\n")
        self.publish()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = FileLock(self.memory.root / ".lock_events")
        lock.acquire(timeout=_LOCK_SECONDS)
        try:
            yield
        finally:
            lock.release()

    def _rotate(self) -> None:
        if self.path.exists() and self.path.stat().st_size >= _FILE_BYTES:
            os.replace(self.path, self._older())

    def _older(self) -> Path:
        return self.path.with_name("events.1.log")

    def _line_end(self) -> bytes:
        """Return the line end that a kill in the middle of a line left out."""
        if not self.path.exists():
            return b""
        with open(self.path, "rb") as file:
            if not file.seek(0, os.SEEK_END):
                return b""
            file.seek(-1, os.SEEK_END)
            return b"" if file.read(1) == b"\n" else b"\n"

    def last_number(self) -> int:
        """Return the number of the newest line; 0 where there is none."""
        for path in (self.path, self._older()):
            if path.exists():
                with open(path, "rb") as file:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                    lines = [line for row in file.read().splitlines() if (line := _line(row))]
                if lines:
                    return int(lines[-1]["n"])
        return 0

    def after(self, number: int) -> list[Line]:
        """Return the lines with a greater number that are still kept, oldest first."""
        found: list[Line] = []
        for path in (self._older(), self.path):
            if path.exists():
                found += [line for row in path.read_bytes().splitlines()
                          if (line := _line(row)) and line["n"] > number]
        return found

    def catch_up(self) -> None:
        """Append what a program that was killed between an act and its line left out.

        Looked for among the newest memories and removals since the last line; what is younger than
        some seconds may still be written by the program that did it.
        """
        lines = self.after(0)
        last = parse_time(lines[-1]["at"]) if lines else None
        if last is None:
            return
        since, until = last - _LEEWAY, self.memory.clock() - _LEEWAY
        known = {(line["type"] == "forget", memory_id) for line in lines for memory_id in line["ids"]}
        with self.memory.session.reading() as store:
            newest = [store.get(memory_id) for memory_id in [*store.ids()][-_CAUGHT_UP:]]
            made = [(one.id, one.meta.get("stored_at") or one.created_at) for one in newest if one]
            removed = [(memory_id, row["at"]) for memory_id, row in store.removals().items()]
        missing = [{"type": kind, "ids": [memory_id], "surface": "unknown"}
                   for kind, rows in (("write", made), ("forget", removed))
                   for memory_id, at in rows
                   if (kind == "forget", memory_id) not in known
                   and since <= (parse_time(str(at)) or until) < until]
        self.append([{**line, **(self._labels_of(line["ids"][0]) if line["type"] == "write" else {})}
                     for line in missing])

    def publish(self) -> None:
        """Publish in Redis what waits; what cannot be published goes on waiting."""
        if self.publisher is not None:
            self.publisher.publish(self)


def _line(row: bytes) -> Line | None:
    """Return a line, None for one that a kill cut off."""
    try:
        found = from_json(row)
    except ValueError:
        return None
    return found if isinstance(found, dict) and fits(
        {name: found.get(name) for name in _LINE}, _LINE) else None


class Publisher:
    """Publishes the log in Redis, and remembers in `logs/events.redis` how far it came."""

    def __init__(self, memory: HermesLite, url: str, channel: str) -> None:
        try:
            import redis
        except ImportError:
            raise MissingPackage("systems.events.redis needs the package redis: pip install "
                                 "'hermes-lite-memory[redis]'") from None
        try:
            self._client = redis.Redis.from_url(url, socket_connect_timeout=0.5, socket_timeout=2)
        except ValueError as problem:
            raise ConfigError(f"config.yaml: systems.events.redis: {problem}") from None
        self._failure = redis.RedisError
        self._memory, self._channel = memory, channel
        self._state = memory.root / "logs" / "events.redis"
        self._not_before = 0.0                     # time.monotonic() after a failure

    def publish(self, events: Events) -> None:
        """Publish what waits, in order; a failure is said once and tried again after a while.

        Another process that is publishing already does this one's lines, too.
        """
        if time.monotonic() < self._not_before:
            return
        lock = FileLock(self._memory.root / ".lock_events_redis")
        try:
            lock.acquire(timeout=0)
        except Locked:
            return
        try:
            for line in events.after(self._published()):
                self._client.publish(self._channel, json.dumps(line, ensure_ascii=False))
                self._save(line["n"])
        except self._failure as problem:
            self._not_before = time.monotonic() + _PAUSE_SECONDS
            waiting = events.last_number() - self._published()
            self._memory.notices.append(f"Redis does not take events ({type(problem).__name__}); "
                                        f"{waiting} wait in logs/events.log and go out later")
        finally:
            lock.release()

    def _published(self) -> int:
        """Return the number of the last line that Redis took; without it all go out again."""
        try:
            state = from_json(self._state.read_bytes())
        except (OSError, ValueError):
            return 0
        return state["n"] if isinstance(state, Mapping) and type(state.get("n")) is int else 0

    def _save(self, number: int) -> None:
        write_atomic(self._state, json.dumps({"n": number}).encode() + b"\n", durable=False)


_PAUSE_SECONDS = 2.0


def system(memory: HermesLite, *, redis: str | None = None,
           channel: str = "memory:write") -> Events:
    """Make the log of events; with *redis*, the address of a server, it is published there."""
    if redis is not None and not isinstance(redis, str):
        raise ConfigError("config.yaml: systems.events.redis is no text; give an address such as "
                          "redis://localhost:6379/0")
    publisher = None if not redis else Publisher(memory, redis, channel)
    return Events(memory, publisher)


def find(memory: HermesLite) -> Events:
    """Return the active log of events, or a reader of it where the system is not switched on."""
    return next((each for each in memory.systems if isinstance(each, Events)), None) or Events(
        memory)


# -- commands -----------------------------------------------------------------

def _tail(memory: HermesLite, *, after: int | None, limit: int, follow: bool) -> list[Line]:
    events = find(memory)
    events.catch_up()
    if follow and memory.systems.entry_points[0].split(" ")[0] != "cli":
        raise UsageError("follow is for a terminal; read GET /api/v1/events instead")
    rows = events.after(after or 0)
    rows = rows[-limit:] if after is None else rows[:limit]
    if follow:
        _follow(events, rows)
    return [] if follow else rows


def _follow(events: Events, rows: list[Line]) -> None:
    """Print rows, and each new one as it comes, until the program is interrupted."""
    number = rows[-1]["n"] if rows else events.last_number()
    while True:
        for row in rows:
            print(*_show([row]), sep="\n", flush=True)
            number = row["n"]
        time.sleep(0.3)
        rows = events.after(number) if events.last_number() > number else []


def _show(rows: list[Line]) -> Iterator[str]:
    for row in rows:
        labels = [f"#{tag}" for tag in row.get("tags", ())]
        yield "  ".join([str(row["n"]), row["at"], row["type"], " ".join(row["ids"][:5]),
                         row.get("surface", ""), *labels]).rstrip()


OPERATIONS = (
    Operation("events tail", "list the newest events, or follow them", _tail, (
        Param("after", int, "the events after this number, oldest first", least=0),
        Param("limit", int, "at most this many", 10, least=1),
        Param("follow", bool, "go on and print each new one", False)), _show),
)

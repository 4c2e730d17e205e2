"""What is left of a strength, and the log of uses.

    strength now = max(0, strength - decay x days since `at`)
    a use        = strength then + boost, at most 1

A memory that was never settled has importance / 10 since it was stored. Nothing fades before the
baseline, the time of the first cycle. A strength is computed when it is read and written only for
a use, with the time of the use: so it does not matter how often the cycle runs.

A recall writes no record: its uses go to `.brain_uses.jsonl` in the root, one JSON object
{time: [id, …]} a line, version 1, appended without waiting for the disk. `settle` takes the file
and applies it. A memory is used at most once a second. A use at or before the `at` of its memory
is settled already: so a kill anywhere, and a second run, change nothing.
"""
from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hermes_ext.brain.note import note_of, with_note
from hermes_ext.brain.settings import Settings
from hermes_lite import HermesLite, Memory, fits, is_safe_id, iso, parse_time

__all__ = ["UseLog", "last_use", "raised", "settle", "strength_at", "stored_at"]

USES = ".brain_uses.jsonl"
TAKEN = ".brain_uses.taken"            # the log while a cycle settles it
_MOST_WAITING = 100                    # uses in a process, before it appends them,
_LONGEST_WAIT = timedelta(minutes=1)   # and how long the first one waits for others
_LONG = 20_000_000                     # bytes of a log that no cycle has taken
_SAME_ON_EVERY_PATH = 6                # decimals that are kept after each use


# -- strength -----------------------------------------------------------------

def strength_at(memory: Memory, moment: datetime, settings: Settings,
                baseline: datetime | None) -> float:
    """Return the strength of a memory at a time, 0 to 1; without a baseline nothing fades."""
    note = note_of(memory)
    start, since = note.strength, parse_time(note.at)
    if start is None or since is None:
        start, since = memory.importance / 10, stored_at(memory)
    if baseline is None or since is None:
        return start
    days = (moment - max(since, baseline)) / timedelta(days=1)
    return max(0.0, start - settings.decay * max(0.0, days))


def raised(memory: Memory, moment: datetime, settings: Settings,
           baseline: datetime | None) -> Memory:
    """Return the memory with one use more; unchanged where that use is settled already."""
    note = note_of(memory)
    settled_until = parse_time(note.at)
    if settled_until is not None and moment <= settled_until:
        return memory
    strength = min(1.0, strength_at(memory, moment, settings, baseline) + settings.boost)
    # Rounded after each use, the result is the same however many uses a cycle settles at once.
    strength = round(strength, _SAME_ON_EVERY_PATH)
    return with_note(memory, replace(note, strength=strength, at=iso(moment)))


def stored_at(memory: Memory) -> datetime | None:
    """Return when a memory came in: later than created_at for a text that was said before."""
    times = (parse_time(memory.created_at), parse_time(memory.meta.get("stored_at")))
    return max(filter(None, times), default=None)


def last_use(memory: Memory, baseline: datetime | None) -> datetime | None:
    """Return when a memory was last used, woken up or stored; never before the baseline."""
    note = note_of(memory)
    times = (parse_time(memory.last_accessed), parse_time(note.at), stored_at(memory), baseline)
    return max(filter(None, times), default=None)


# -- the log of uses ----------------------------------------------------------

class UseLog:
    """The uses of this process that are not yet in the log of the root."""

    def __init__(self, memory: HermesLite) -> None:
        self._memory = memory
        self._waiting: dict[str, dict[str, None]] = {}     # time -> ids

    def add(self, ids: Iterable[str]) -> None:
        """Note a use of each now; the log is written once many wait, or one waits for long.

        A host may keep its memory open for days: a kill must not cost all their uses.
        """
        with self._memory.lock:
            now = self._memory.clock()
            self._waiting.setdefault(iso(now), {}).update(dict.fromkeys(ids))
            first = parse_time(next(iter(self._waiting)))
            waits_long = first is not None and now - first >= _LONGEST_WAIT
            if waits_long or sum(map(len, self._waiting.values())) >= _MOST_WAITING:
                self.write()

    def write(self) -> None:
        """Append what is waiting; on a disk that takes nothing it waits on, up to a limit."""
        with self._memory.lock:
            uses = {at: [*ids] for at, ids in self._waiting.items() if ids}
            if not uses:
                return
            # The line end in front closes a line that a kill has left unfinished.
            line = b"\n" + json.dumps(uses, separators=(",", ":")).encode() + b"\n"
            try:
                size = _append(self._memory.root / USES, line)
            except OSError:                        # a read must not fail because of this
                self._waiting = dict([*self._waiting.items()][-_MOST_WAITING:])
                return
            self._waiting = {}
            if size > _LONG:
                self._memory.notices.append("the log of uses grows; run `brain cycle` regularly")


def _append(path: Path, line: bytes) -> int:
    """Append a line and return the size of the file.

    A cycle may take the file between opening and writing: then the line is written once more to
    the new one. Settled twice, a use counts once.
    """
    while True:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(handle, "ab", buffering=0) as file:
            file.write(line)
            written_to = os.fstat(handle)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(written_to, os.stat(path)):
                    return written_to.st_size


def settle(memory: HermesLite, settings: Settings, baseline: datetime | None) -> int:
    """Apply the uses in the log to the strengths; return how many memories were used.

    Only one process may do it at a time. What another one appends meanwhile goes to a new file.
    """
    log, taken = memory.root / USES, memory.root / TAKEN
    settled: set[str] = set()
    if taken.exists():                             # a cycle was killed in the middle
        settled |= _apply(memory, taken, settings, baseline)
    with contextlib.suppress(FileNotFoundError):
        os.replace(log, taken)
        settled |= _apply(memory, taken, settings, baseline)
    return len(settled)


def _apply(memory: HermesLite, path: Path, settings: Settings,
           baseline: datetime | None) -> set[str]:
    """Settle the uses of one file in one transaction, then delete it; return the ids."""
    changed = set()
    with memory.session.writing() as store:
        for memory_id, moments in _uses_by_memory(path).items():
            before = store.get(memory_id)
            if before is None:
                continue
            after = before
            for moment in sorted(moments):
                after = raised(after, moment, settings, baseline)
            if after is not before:
                store.put(after)
                changed.add(memory_id)
    path.unlink(missing_ok=True)
    return changed


def _uses_by_memory(path: Path) -> dict[str, set[datetime]]:
    """Return when each memory was used; a line that cannot be right is left out."""
    found: dict[str, set[datetime]] = {}
    for moment, ids in _read(path):
        for memory_id in filter(is_safe_id, ids):
            found.setdefault(memory_id, set()).add(moment)
    return found


def _read(path: Path) -> Iterator[tuple[datetime, list[str]]]:
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            uses: Any = None
            with contextlib.suppress(ValueError, RecursionError):
                uses = json.loads(line)
            if not fits(uses, {str: [str]}):       # a torn line, or one that somebody has edited
                continue
            for at, ids in uses.items():
                moment = parse_time(at)
                if moment is not None:
                    yield moment, ids

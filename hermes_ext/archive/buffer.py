"""Buffer: what is in use now, held in memory in front of an archive.

    hermes_lite.py buffer              what it holds, the most recently used first

Switched on in config.yaml, with these defaults:

    systems:
      buffer:
        entries: 2048           # the least recently used goes first
        threshold: 3            # a lower score …
        hours: 2                # … and so long without use: out

A write goes to the archive first and is on the disk; then it is in the buffer. A memory that is
among the hits of three recalls in a row comes in. Score is what the system salience keeps, else
the importance. What is in the buffer is read without asking the archive, in a tenth of the time;
answers and their order are the same with and without it.

Never stale: before each answer SQLite is asked whether another process has written (PRAGMA
data_version), and then everything is read again when it is next wanted. A transaction that fails
leaves nothing in the buffer, and what is forgotten leaves it at once.

On close, ids, contents and scores go to `stb_snapshot.json` (redacted as all that is stored), and
the next start takes them up: as hints only, each is read from the archive before it counts. What
was forgotten or changed meanwhile is not written there, and a forgotten one is taken out of it.
"""
from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import hermes_lite as core
from hermes_ext.scores import stored_score
from hermes_lite import (ConfigError, FileStore, HermesLite, Hit, Memory, Operation, StorageError,
                         Store, UsageError)

__all__ = ["Buffer", "BufferedStore", "OPERATIONS", "system"]

FILE = "stb_snapshot.json"
_STREAK = 3                          # recalls in a row that bring a memory in


@dataclass(slots=True)
class _Entry:
    """One buffered memory; `memory` is None until it was read from the archive as it is now."""
    content: str
    score: float
    used: datetime
    memory: Memory | None = None


class BufferedStore:
    """A store that answers `get` and `text` from memory where it can; all else it passes on."""

    def __init__(self, store: Store, *, entries: int, threshold: float, hours: float) -> None:
        self.under, self._most = store, entries
        self._threshold, self._idle = threshold, timedelta(hours=hours)
        self.entries: OrderedDict[str, _Entry] = OrderedDict()     # least recently used first
        self.answered = self.asked = 0
        self._version: object = None
        self._streaks: dict[str, int] = {}
        self._changed: dict[str, None] = {}        # ids of the open transaction
        self._removed: set[str] = set()
        self._depth = 0
        self._load()

    def __getattr__(self, name: str) -> object:
        return getattr(self.under, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Set what belongs to the store below (notices, progress …) there."""
        under = vars(self).get("under")
        there = name[0] != "_" and name not in vars(self) and hasattr(under, name)
        object.__setattr__(under if there else self, name, value)

    def __len__(self) -> int:
        return len(self.under)

    def __iter__(self) -> Iterator[Memory]:
        return iter(self.under)

    # -- reading ------------------------------------------------------------

    def get(self, memory_id: str) -> Memory | None:
        """Return a memory as the archive holds it now."""
        self.asked += 1
        entry = None if memory_id in self._changed else self._fresh(memory_id)
        if entry is None:
            return self.under.get(memory_id)
        self.answered += 1
        return entry.memory

    def text(self, memory_id: str) -> str | None:
        """Return a memory's content alone."""
        memory = self.get(memory_id)
        return memory and memory.content

    def _fresh(self, memory_id: str) -> _Entry | None:
        """Return an entry that holds what the archive holds; None when there is none."""
        version = self.under.version()
        if version != self._version:               # another process has written
            self._version = version
            for entry in self.entries.values():
                entry.memory = None
        entry = self.entries.get(memory_id)
        if entry is None:
            return None
        if entry.memory is None:
            memory = self.under.get(memory_id)
            if memory is None:
                del self.entries[memory_id]
                return None
            self._set(entry, memory)
        entry.used = self.under.clock()
        self.entries.move_to_end(memory_id)
        return entry

    def _set(self, entry: _Entry, memory: Memory) -> None:
        entry.memory, entry.content, entry.score = memory, memory.content, stored_score(memory)

    # -- writing ------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self, *, timeout: float | None = None) -> Iterator[None]:
        """The archive's own; what was written comes into the buffer once it is on the disk."""
        self._depth += 1
        try:
            with self.under.transaction(timeout=timeout):
                yield
        except BaseException:                      # what was undone must not be served
            if self._depth == 1:
                self._drop(self._changed)
                self._changed, self._removed = {}, set()
            raise
        finally:
            self._depth -= 1
        if self._depth == 0:
            changed, removed = self._changed, self._removed
            self._changed, self._removed = {}, set()
            self._drop(removed)
            for memory_id in changed:
                self.take(memory_id)
            if removed:
                self._forget(removed)

    def put(self, memory: Memory) -> None:
        """Write a memory to the archive; it is buffered when the transaction is over."""
        self.under.put(memory)
        self._changed[memory.id] = None
        self._removed.discard(memory.id)

    def remove(self, memory_id: str, *, why: str | None, also: Iterable[str] = ()) -> None:
        """Remove a memory from the archive, and from here at once."""
        self.under.remove(memory_id, why=why, also=also)
        self._drop([memory_id])
        self._changed.pop(memory_id, None)
        self._removed.add(memory_id)

    def count_accesses(self, memory_ids: Sequence[str], moment: datetime) -> None:
        """Count an access; the ones held here are read again."""
        self.under.count_accesses(memory_ids, moment)
        self._changed.update(dict.fromkeys(i for i in memory_ids if i in self.entries))

    def set_tombstones(self, key: str, tombstones: Mapping[str, Mapping[str, str]]) -> None:
        self.under.set_tombstones(key, tombstones)

    def take(self, memory_id: str) -> None:
        """Read a memory from the archive into the buffer; the least recently used makes room."""
        memory = self.under.get(memory_id)
        if memory is None:
            self._drop([memory_id])
            return
        entry = self.entries.get(memory_id) or _Entry("", 0.0, self.under.clock())
        self._set(entry, memory)
        self.entries[memory_id] = entry
        self.entries.move_to_end(memory_id)
        self.sweep()

    def _drop(self, memory_ids: Iterable[str]) -> None:
        for memory_id in memory_ids:
            self.entries.pop(memory_id, None)

    def sweep(self) -> None:
        """Let go of what is of little score and out of use, and of what is too much."""
        before = self.under.clock() - self._idle
        for memory_id, entry in list(self.entries.items()):
            if entry.used > before:                # the rest was used later
                break
            if entry.score < self._threshold:
                del self.entries[memory_id]
        while len(self.entries) > self._most:
            self.entries.popitem(last=False)

    def recalled(self, memory_ids: Sequence[str]) -> None:
        """Note the hits of one recall; the third time in a row brings a memory in."""
        self._streaks = {i: self._streaks.get(i, 0) + 1 for i in memory_ids}
        for memory_id, streak in self._streaks.items():
            if streak >= _STREAK and memory_id not in self.entries:
                self.take(memory_id)
        self.sweep()

    # -- snapshot -----------------------------------------------------------

    def _load(self) -> None:
        """Read back what another process has saved, and drop what has expired meanwhile."""
        for name, content, score, used in self._rows():
            self.entries[name] = _Entry(content, float(score),
                                        core.parse_time(used) or self.under.clock())
        self.sweep()

    def _rows(self) -> list[list]:
        """Return the rows of the snapshot; none, and a notice, where it is not one of ours."""
        with contextlib.suppress(ValueError):
            rows = core.from_json(self.under.files.read(FILE) or b"[]")
            if core.fits(rows, [[str, str, float, str]]) and all(
                    core.is_safe_id(row[0]) for row in rows):
                return rows
        self.under.files.notices.append(f"{FILE} was damaged; the buffer starts empty")
        return []

    def save(self) -> None:
        """Write the snapshot of what is still there as it is here; a busy disk goes without."""
        self.sweep()
        rows = []
        for memory_id, entry in list(self.entries.items()):
            used = entry.used
            if (fresh := self._fresh(memory_id)) is not None:
                rows.append([memory_id, fresh.content, fresh.score, core.iso(used)])
                fresh.used = used
        if rows or (self.under.root / FILE).exists():
            with contextlib.suppress(StorageError):
                self.under.files.write(FILE, core.to_json(rows))

    def _forget(self, removed: set[str]) -> None:
        """Take what was removed out of the snapshot of an earlier process."""
        rows = self._rows()
        kept = [row for row in rows if row[0] not in removed]
        if len(kept) < len(rows):
            self.under.files.write(FILE, core.to_json(kept))

    def close(self) -> None:
        self.save()
        self.under.close()


class Buffer:
    """The system: it counts recalls, and puts the buffered store in front of the archive."""
    name = "buffer"

    def __init__(self, memory: HermesLite, **how: float) -> None:
        memory.store = self.store = BufferedStore(memory.store, **how)

    def rerank(self, hits: Sequence[Hit], query: str) -> list[Hit]:
        """Change nothing; note what was found."""
        self.store.recalled([hit.id for hit in hits])
        return list(hits)


def system(memory: HermesLite, *, entries: int = 2_048, threshold: float = 3,
           hours: float = 2) -> Buffer:
    """Make the buffer; ConfigError before a store of files, which is in memory as it is."""
    if isinstance(memory.store, FileStore):
        raise ConfigError("config.yaml: systems.buffer stands before an archive, a store of files "
                          "is in memory as it is; take it out, or `migrate --to archive`")
    for name, value in (("entries", entries), ("threshold", threshold), ("hours", hours)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise ConfigError(f"config.yaml: systems.buffer.{name} is {value!r}; give a number "
                              "from 0 up")
    return Buffer(memory, entries=int(entries), threshold=float(threshold), hours=float(hours))


def _buffer(memory: HermesLite) -> list[dict[str, object]]:
    if not isinstance(memory.store, BufferedStore):
        raise UsageError("the buffer is not switched on; name it under systems in config.yaml")
    return [{"id": i, "score": entry.score, "used": core.iso(entry.used),
             "content": memory.redact(entry.content)[0]}
            for i, entry in reversed(memory.store.entries.items())
            if memory.store.under.text(i) == entry.content]


def _show(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    for row in rows:
        yield f"{row['id']}  {row['score']:g}  {row['used']}  {core.excerpt(row['content'])}"


OPERATIONS = (
    Operation("buffer", "show what the short-term buffer holds", _buffer, (), _show),
)

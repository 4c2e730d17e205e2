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
                         Store)

__all__ = ["Buffer", "BufferedStore", "OPERATIONS", "system"]

FILE = "stb_snapshot.json"
_STREAK = 3                          # recalls in a row that bring a memory in


@dataclass(slots=True)
class _Entry:
    """One buffered memory; `memory` is None until it was read from the archive as it is now."""
    content: str
    score: float
    last_used: datetime
    memory: Memory | None = None


class BufferedStore:
    """A store that answers `get` and `text` from memory where it can; all else it passes on."""

    def __init__(self, store: Store, *, entries: int, threshold: float, hours: float) -> None:
        self.archive = store
        self.entries: OrderedDict[str, _Entry] = OrderedDict()     # least recently used first
        self.answered = 0                          # questions that needed no archive
        self._most_entries = entries
        self._threshold = threshold                # a lower score goes after …
        self._idle = timedelta(hours=hours)        # … so long without use
        self._version: object = None               # of the archive when entries were read
        self._streaks: dict[str, int] = {}         # id -> recalls in a row that found it
        self._depth = 0                            # of nested transactions
        self._changed: dict[str, None] = {}        # ids of the open transaction, in order
        self._removed: set[str] = set()
        self._load()

    def __getattr__(self, name: str) -> object:
        return getattr(self.archive, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute here, or in the archive where that has it (progress, clock …)."""
        archive = vars(self).get("archive")
        is_own = name.startswith("_") or name in vars(self)
        belongs_to_archive = not is_own and hasattr(archive, name)
        object.__setattr__(archive if belongs_to_archive else self, name, value)

    def __len__(self) -> int:
        return len(self.archive)

    def __iter__(self) -> Iterator[Memory]:
        return iter(self.archive)

    # -- reading ------------------------------------------------------------

    def get(self, memory_id: str) -> Memory | None:
        """Return a memory as the archive holds it now."""
        entry = None if memory_id in self._changed else self._up_to_date(memory_id)
        if entry is None:
            return self.archive.get(memory_id)
        self.answered += 1
        return entry.memory

    def text(self, memory_id: str) -> str | None:
        """Return a memory's content alone."""
        memory = self.get(memory_id)
        return memory.content if memory else None

    def _up_to_date(self, memory_id: str) -> _Entry | None:
        """Return an entry, read again from the archive where need be, and note its use.

        None where the memory is not buffered, or is no more.
        """
        version = self.archive.version()
        if version != self._version:               # another process has written
            self._version = version
            for entry in self.entries.values():
                entry.memory = None
        entry = self.entries.get(memory_id)
        if entry is None:
            return None
        if entry.memory is None:
            memory = self.archive.get(memory_id)
            if memory is None:
                del self.entries[memory_id]
                return None
            self._fill(entry, memory)
        entry.last_used = self.archive.clock()
        self.entries.move_to_end(memory_id)
        return entry

    def _fill(self, entry: _Entry, memory: Memory) -> None:
        entry.memory = memory
        entry.content = memory.content
        entry.score = stored_score(memory)

    # -- writing ------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self, *, timeout: float | None = None) -> Iterator[None]:
        """The archive's own; what was written comes into the buffer once it is on the disk."""
        self._depth += 1
        try:
            with self.archive.transaction(timeout=timeout):
                yield
        except BaseException:                      # what was undone must not be served
            if self._depth == 1:
                self._drop(self._changed)
                self._changed, self._removed = {}, set()
            raise
        finally:
            self._depth -= 1
        if self._depth == 0:
            self._take_over_changes()

    def _take_over_changes(self) -> None:
        """Buffer what the transaction wrote, and drop what it removed, also from the snapshot."""
        changed, removed = self._changed, self._removed
        self._changed, self._removed = {}, set()
        self._drop(removed)
        for memory_id in changed:
            self.take(memory_id)
        if removed:
            self._remove_from_snapshot(removed)

    def put(self, memory: Memory) -> None:
        """Write a memory to the archive; it is buffered when the transaction is over."""
        self.archive.put(memory)
        self._changed[memory.id] = None
        self._removed.discard(memory.id)

    def remove(self, memory_id: str, *, why: str | None, also: Iterable[str] = ()) -> None:
        """Remove a memory from the archive, and from here at once."""
        self.archive.remove(memory_id, why=why, also=also)
        self._drop([memory_id])
        self._changed.pop(memory_id, None)
        self._removed.add(memory_id)

    def count_accesses(self, memory_ids: Sequence[str], moment: datetime) -> None:
        """Count an access; the ones held here are read again."""
        self.archive.count_accesses(memory_ids, moment)
        for memory_id in memory_ids:
            if memory_id in self.entries:
                self._changed[memory_id] = None

    def set_tombstones(self, key: str, tombstones: Mapping[str, Mapping[str, str]]) -> None:
        self.archive.set_tombstones(key, tombstones)

    def take(self, memory_id: str) -> None:
        """Read a memory from the archive into the buffer; the least recently used makes room."""
        memory = self.archive.get(memory_id)
        if memory is None:
            self._drop([memory_id])
            return
        entry = self.entries.get(memory_id) or _Entry("", 0.0, self.archive.clock())
        self._fill(entry, memory)
        self.entries[memory_id] = entry
        self.entries.move_to_end(memory_id)
        self.drop_stale()

    def _drop(self, memory_ids: Iterable[str]) -> None:
        for memory_id in memory_ids:
            self.entries.pop(memory_id, None)

    def drop_stale(self) -> None:
        """Drop entries of a low score that were not used for long, then the oldest of too many."""
        in_use_since = self.archive.clock() - self._idle
        for memory_id, entry in list(self.entries.items()):
            if entry.last_used > in_use_since:     # the rest was used later
                break
            if entry.score < self._threshold:
                del self.entries[memory_id]
        while len(self.entries) > self._most_entries:
            self.entries.popitem(last=False)

    def recalled(self, memory_ids: Sequence[str]) -> None:
        """Note the hits of one recall; the third time in a row brings a memory in."""
        self._streaks = {memory_id: self._streaks.get(memory_id, 0) + 1
                         for memory_id in memory_ids}
        for memory_id, streak in self._streaks.items():
            if streak >= _STREAK and memory_id not in self.entries:
                self.take(memory_id)
        self.drop_stale()

    # -- snapshot -----------------------------------------------------------

    def _load(self) -> None:
        """Read the snapshot of an earlier process, without what has expired meanwhile."""
        for memory_id, content, score, last_used in self._snapshot():
            moment = core.parse_time(last_used) or self.archive.clock()
            self.entries[memory_id] = _Entry(content, float(score), moment)
        self.drop_stale()

    def _snapshot(self) -> list[list]:
        """Return [id, content, score, last use] of each entry of the snapshot.

        None, and a notice, where the file is not one of ours.
        """
        with contextlib.suppress(ValueError):
            rows = core.from_json(self.archive.files.read(FILE) or b"[]")
            if core.fits(rows, [[str, str, float, str]]) and all(
                    core.is_safe_id(row[0]) for row in rows):
                return rows
        self.archive.files.notices.append(f"{FILE} was damaged; the buffer starts empty")
        return []

    def save(self) -> None:
        """Write the snapshot of what the archive still holds; a disk that fails goes without."""
        self.drop_stale()
        rows = []
        for memory_id, entry in list(self.entries.items()):
            last_used = entry.last_used
            fresh = self._up_to_date(memory_id)    # asking counts as use: that is undone
            if fresh is not None:
                fresh.last_used = last_used
                rows.append([memory_id, fresh.content, fresh.score, core.iso(last_used)])
        if rows or (self.archive.root / FILE).exists():
            with contextlib.suppress(StorageError):
                self.archive.files.write(FILE, core.to_json(rows))

    def _remove_from_snapshot(self, removed: set[str]) -> None:
        """Take what was removed out of the snapshot of an earlier process."""
        rows = self._snapshot()
        kept = [row for row in rows if row[0] not in removed]
        if len(kept) < len(rows):
            self.archive.files.write(FILE, core.to_json(kept))

    def close(self) -> None:
        self.save()
        self.archive.close()


class Buffer:
    """The system: it counts recalls, and puts the buffered store in front of the archive."""
    name = "buffer"

    def __init__(self, memory: HermesLite, **settings: float) -> None:
        memory.store = self.store = BufferedStore(memory.store, **settings)

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
    """Return what the buffer holds and the archive still says, the most recently used first."""
    if not isinstance(memory.store, BufferedStore):
        raise ConfigError("the buffer is not switched on; name it under systems in config.yaml")
    rows = []
    for memory_id, entry in reversed(memory.store.entries.items()):
        if memory.store.archive.text(memory_id) == entry.content:
            rows.append({"id": memory_id, "score": entry.score,
                         "used": core.iso(entry.last_used),
                         "content": memory.redact(entry.content)[0]})
    return rows


def _show(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    for row in rows:
        yield f"{row['id']}  {row['score']:g}  {row['used']}  {core.excerpt(row['content'])}"


OPERATIONS = (
    Operation("buffer", "show what the short-term buffer holds", _buffer, (), _show),
)

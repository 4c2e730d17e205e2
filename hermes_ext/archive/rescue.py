"""What can still be read of a damaged archive, and a new one made of it.

`records` asks SQLite for ever smaller ranges, so that a damaged page costs the rows on it; where
not even that works it goes through the file page by page, as `sqlite3 .recover` does, with the
pages of the log in place of older ones, and takes every row whose text is one of our entries, or
a compressed one (zstd.py). Without a package for zstd those cannot be read: MissingPackage is
raised then, and the damaged file stays as it is.

A rescue makes a new file in `.rescue/`. The file `.rescue/done` is written when it is whole, and
says the name under which the damaged one is kept; from then on the new one takes its place, also
after a kill.
"""
from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import hermes_lite as core
from hermes_lite import DamagedData, Memory, StorageError, from_json, pluralize
from hermes_ext.archive import wal
from hermes_ext.archive.connection import connect, uri_of
from hermes_ext.archive.loss import LossCheck
from hermes_ext.archive.schema import FILE, is_sound
from hermes_ext.archive.zstd import MAGIC, entry_of

__all__ = ["Rescue", "check_log", "facts", "records", "tombstones"]


class Rescue:
    """Makes a new archive of what is left of a damaged one. The caller holds the lock.

    *make_store* opens an empty archive in another folder.
    """

    def __init__(self, files: core.RootFiles, backups: core.Backups, loss: LossCheck, *,
                 clock: Callable[[], datetime], make_store: Callable[[Path], Any]) -> None:
        self.path = files.root / FILE
        self.folder = files.root / ".rescue"
        self._files = files
        self._mirror = core.Mirror(files, lambda memory_id: None)
        self._backups = backups
        self._loss = loss
        self._clock = clock
        self._make_store = make_store

    def is_interrupted(self) -> bool:
        """Tell whether a process was killed while it put a rescued file in place."""
        return (self.folder / "done").exists()

    def has_remains(self) -> bool:
        """Tell whether the root of a file that is missing or empty shows that it was not."""
        patterns = ("backups/auto_index.json.*.bak", "backups/tombstones.bak", "store/*.md")
        return wal.has_page(self.path) or any(
            any(self._files.root.glob(pattern)) for pattern in patterns)

    def run(self, problem: str) -> None:
        """Build the file anew from what can be read; the damaged one is set aside."""
        if self.is_interrupted():
            self.put_in_place()
        is_frame = "compressed record" in problem  # SQLite sees no damage there
        if is_sound(self.path, frames=is_frame):   # another process has mended it
            return
        report = self.build(problem)
        if report:
            self.put_in_place()
            self._files.notices.append(report)

    def build(self, problem: str) -> str:
        """Fill a new file in `.rescue/`; return the sentence that says from where.

        Where the file is missing or empty and nothing is left of it, that is "". DamagedData
        where it is damaged and nothing can be read.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        key, forgotten = self.tombstones()
        counts, ids = self._fill(key, forgotten)
        is_missing = not self.path.exists()
        is_empty = is_missing or not self.path.stat().st_size
        if not ids and not (is_empty and forgotten):
            shutil.rmtree(self.folder, ignore_errors=True)
            if is_empty:
                return ""
            raise DamagedData(f"{self.path} cannot be read ({problem}) and there is no mirror and "
                              "no backup to recover from; it was left as it is: put a good copy "
                              "in its place, or move it away to start empty")
        aside = f"{FILE}.damaged-{self._clock():%Y%m%d_%H%M%S}"
        core.write_atomic(self.folder / "done", aside.encode())
        if forgotten:
            counts.append(pluralize(len(forgotten), "tombstone"))
        was = "damaged"
        if is_missing:
            was = "missing"
        elif is_empty:
            was = "empty"
        kept = "" if is_missing else f" (set aside as {aside})"
        return f"{FILE} was {was}{kept}; recovered {', '.join(counts)}"

    def _fill(self, key: str, forgotten: dict[str, dict[str, str]]) -> tuple[list[str], set[str]]:
        """Store all that can be found; return how many came from where, and their ids."""
        forgotten_ids = {tombstone["id"] for tombstone in forgotten.values()}
        found: set[str] = set()
        counts = []
        store = self._make_store(self.folder)
        with store.transaction():
            for source, memories in (("its pages", records(self.path)),
                                     ("the Markdown mirror", self._mirror.read()),
                                     ("the newest good backup", self._backups.newest())):
                before = len(found)
                for memory in memories:
                    if memory.id not in found and memory.id not in forgotten_ids:
                        found.add(memory.id)
                        store.put(memory)
                if len(found) > before:
                    counts.append(f"{len(found) - before} from {source}")
            for name, value in facts(self.path).items():
                if name != "vectors":
                    store.file.set_fact(name, value)
            store.set_tombstones(key, forgotten)
        store.finish()
        ids = {*store.ids()}
        store.close()
        if ids != found:
            raise StorageError(f"the copy of {self.path} in {self.folder} is not whole; the "
                               "damaged file was left as it was, try again")
        return counts, found

    def tombstones(self) -> tuple[str, dict[str, dict[str, str]]]:
        """Return key and tombstones of the file, with those of the copy in backups/."""
        key = facts(self.path).get("tomb_key", "")
        found = tombstones(self.path)
        with contextlib.suppress(ValueError, LookupError, TypeError):
            copy = from_json(self._files.read("backups/tombstones.bak") or b"{}")
            if key in ("", copy["key"]):
                return copy["key"], {**copy["tombstones"], **found}
        return key, found

    def put_in_place(self) -> None:
        """Put the new file in place; done again from the start when it was killed half-way."""
        fresh = self.folder / FILE
        if fresh.exists():
            aside = self._files.root / (self.folder / "done").read_text()
            if not aside.exists() and self.path.exists():
                os.link(self.path, aside)
            log = wal.log_of(self.path)
            if log.exists():                       # of the damaged file: never of the new one
                os.replace(log, f"{aside}-wal")
            wal.remove_log(self.path)
            self._loss.forget()
            os.replace(fresh, self.path)
            core.fsync_folder(self._files.root)
        shutil.rmtree(self.folder, ignore_errors=True)


# -- a log that SQLite would read wrongly ---------------------------------------

def check_log(path: Path, notices: list[str]) -> list[Memory] | None:
    """Look at the log of a file that no process has open: is it of this file, and all good?

    SQLite would apply the log of another file, and leave out in silence what follows a damaged
    frame. A log of another file is set aside. Returns None where nothing is lost; else the
    memories that could be read behind the damage, which are to be stored again. What was found
    is said in *notices*.
    """
    promised = wal.promised_frames(path)
    if not wal.is_of_file(path):
        aside = wal.set_log_aside(path)
        notices.append(f"{FILE}-wal belonged to another state of {FILE} than the one that lies "
                       f"there now; it was left out and is kept as {aside}")
        return None
    frames = wal.frames(path, promised=promised)
    is_nobody_writing = promised == wal.promised_frames(path)
    lost: list[Memory] | None = None
    if is_nobody_writing and len(frames) < promised:
        notices.append(f"{FILE}-wal is missing or was cut off: {promised - len(frames)} of "
                       f"{pluralize(promised, 'page')} that were written last are gone; compare "
                       "with what you stored last")
        lost = []

    commits = [number for number, frame in enumerate(frames, 1) if frame.is_commit]
    committed = max(commits, default=0)            # frames that SQLite should bring over
    if is_nobody_writing:
        committed = max(committed, min(promised, len(frames)))
    with contextlib.closing(connect(uri_of(path))) as db:
        _, read, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if 0 <= read < committed:                  # -1: it is no log, to SQLite
            lost = _save_records_behind(path, read, promised=promised, notices=notices)
    return lost


def _save_records_behind(path: Path, after: int, *, promised: int,
                         notices: list[str]) -> list[Memory]:
    """Keep a copy of a damaged log, and return the memories behind its first *after* frames."""
    found = _records_behind(path, after, promised=promised)
    aside = core.set_aside(wal.log_of(path), copy=True).name
    notices.append(f"{FILE}-wal was damaged (kept as {aside}); what stands behind the damage was "
                   f"read from it: {pluralize(len(found), 'memory', 'memories')}; compare with "
                   "what you stored last")
    return found


# -- reading what is left ---------------------------------------------------------

def records(path: Path) -> Iterator[Memory]:
    """Yield the memories that can still be read, in their order where that is known."""
    seen: set[str] = set()
    for memory in _memories_of((*_by_range(path), *_by_page(path))):
        if memory.id not in seen:
            seen.add(memory.id)
            yield memory


def _memories_of(entries: Iterable[str | bytes]) -> Iterator[Memory]:
    for entry in entries:
        with contextlib.suppress(ValueError, RecursionError, sqlite3.DatabaseError):
            yield Memory.from_entry(entry_of(entry))


def _records_behind(path: Path, after: int, *, promised: int) -> list[Memory]:
    """Return the memories on the good pages that the log has behind its first *after* frames.

    *promised* is the number of frames that the log has to have, where that is known.
    """
    newer = wal.verified_pages(path, promised=promised)
    behind = wal.verified_pages(path, after=after, promised=promised)
    size = len(next(iter(newer.values()), b""))
    with open(path, "rb") as file:
        def page(number: int) -> bytes:
            if number not in newer:
                file.seek((number - 1) * size)
                return file.read(size)
            return newer[number]

        entries = [entry for number in sorted(behind) for entry in _cells(number, page, size)]
    return list({memory.id: memory for memory in _memories_of(entries)}.values())


def tombstones(path: Path) -> dict[str, dict[str, str]]:
    """Return {fingerprint: {id, why, at}}, as far as SQLite reads it."""
    rows = (_rows(path, "SELECT fingerprint, id, why, at FROM tombstone")
            or _rows(path, "SELECT mark, id, why, at FROM tomb"))      # before version 4
    return {fingerprint: {"id": memory_id, "why": why, "at": at}
            for fingerprint, memory_id, why, at in rows}


def facts(path: Path) -> dict[str, str]:
    """Return the small values of the file, as far as SQLite reads them."""
    return dict(_rows(path, "SELECT name, value FROM fact"))


def _rows(path: Path, statement: str) -> list[tuple]:
    """Return the rows of a query, [] where the file or the table is missing or damaged."""
    if not path.exists() or not path.stat().st_size:       # SQLite would delete its log
        return []
    try:
        with contextlib.closing(_open(path)) as db:
            return db.execute(statement).fetchall()
    except sqlite3.Error:
        return []


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{uri_of(path)}?mode=ro", uri=True, isolation_level=None)


def _by_range(path: Path) -> Iterator[str | bytes]:
    """Yield the entries of the rows that SQLite can read; a range that it cannot is halved."""
    top = _rows(path, "SELECT seq FROM sqlite_sequence WHERE name='memory'")
    if not top:
        return
    with contextlib.closing(_open(path)) as db:
        ranges = [(0, top[0][0])]
        while ranges:
            low, high = ranges.pop()
            try:
                rows = db.execute("SELECT entry FROM memory WHERE seq > ? AND seq <= ? "
                                  "ORDER BY seq", (low, high)).fetchall()
                yield from (entry for entry, in rows if isinstance(entry, (str, bytes)))
            except (sqlite3.Error, UnicodeError):
                middle = (low + high) // 2
                if middle > low:
                    ranges += [(middle, high), (low, middle)]


# -- pages of a table (https://sqlite.org/fileformat2.html) -----------------------

_LEAF_OF_TABLE = b"\r"               # the first byte of such a page: 13


def _by_page(path: Path) -> Iterator[str | bytes]:
    """Yield the entries on every leaf page of a table, wherever it hangs."""
    data = path.read_bytes() if path.exists() else b""
    newer = wal.verified_pages(path)
    size = len(next(iter(newer.values()), b"")) or wal.page_size(b"", path)

    def page(number: int) -> bytes:
        return newer.get(number) or data[(number - 1) * size:number * size]

    for number in range(1, max([len(data) // size, *newer]) + 1):
        yield from _cells(number, page, size)


def _cells(number: int, page: Callable[[int], bytes], size: int) -> Iterator[str | bytes]:
    """Yield the columns on one page that begin like a record, as text or compressed."""
    leaf = page(number)
    start = 100 if number == 1 else 0              # the file's header is on the first page
    if leaf[start:start + 1] != _LEAF_OF_TABLE:
        return
    count = int.from_bytes(leaf[start + 3:start + 5], "big")
    for place in range(start + 8, min(start + 8 + 2 * count, size - 1), 2):
        at = int.from_bytes(leaf[place:place + 2], "big")
        with contextlib.suppress(IndexError, ValueError):
            length, at = _varint(leaf, at)
            _, at = _varint(leaf, at)              # the row's number
            yield from _entries(_payload(leaf, at, length, page=page, size=size))


def _payload(leaf: bytes, at: int, length: int, *, page: Callable[[int], bytes],
             size: int) -> bytes:
    """Return a row's bytes: those on its page, and those on the pages it runs over to.

    How many stay on the page follows from the format: section 1.6, X = most, M = least, K = local.
    """
    most = size - 35
    if length <= most:
        return leaf[at:at + length]
    least = (size - 12) * 32 // 255 - 23
    local = least + (length - least) % (size - 4)
    if local > most:
        local = least
    data = leaf[at:at + local]
    following = int.from_bytes(leaf[at + local:at + local + 4], "big")
    for _ in range(length // (size - 4) + 2):      # damaged pages may follow each other in a ring
        if len(data) >= length or not following:
            break
        overflow = page(following)
        data += overflow[4:]
        following = int.from_bytes(overflow[:4], "big")
    return data[:length]


def _entries(row: bytes) -> Iterator[str | bytes]:
    """Yield the columns of a row that begin like a record, as text or compressed.

    A row begins with its head: the head's length, then the kind of each column. An odd kind from
    13 up is text, an even one from 12 up a BLOB; smaller kinds are numbers (section 2.1).
    """
    end_of_head, at = _varint(row, 0)
    value = end_of_head
    while at < end_of_head:
        kind, at = _varint(row, at)
        width = (kind - 12) // 2 if kind >= 12 else _WIDTHS[kind]
        data = row[value:value + width]
        is_text = kind > 12 and kind % 2 == 1
        is_blob = kind > 12 and kind % 2 == 0
        if is_text and data.startswith(b'{"id": '):
            yield data.decode("utf-8")
        elif is_blob and data.startswith(MAGIC):
            yield data
        value += width


_WIDTHS = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)     # bytes of a column of kind 0 to 11


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (number, position behind it): seven bits a byte, the highest says that more follow.

    The ninth byte counts whole. IndexError where the bytes end before it.
    """
    number = 0
    for step in range(8):
        byte = data[at + step]
        number = number << 7 | byte & 127
        if byte < 128:
            return number, at + step + 1
    return number << 8 | data[at + 8], at + 9

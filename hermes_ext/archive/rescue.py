"""Read the records of an archive that SQLite cannot read whole. A part of archive/store.py.

`records` asks SQLite for ever smaller ranges, so that a damaged page costs the rows on it; where
not even that works it goes through the file page by page, as `sqlite3 .recover` does, with the
pages of the log in place of older ones, and takes every row whose text is one of our entries, or
a compressed one (archive/zstd.py). Without a package for zstd those cannot be read: MissingPackage
is raised then, and the damaged file stays as it is.
"""
from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import hermes_lite as core
from hermes_lite import DamagedData, Memory, StorageError, from_json
from hermes_ext.archive import wal
from hermes_ext.archive.tables import FILE, is_sound, uri_of
from hermes_ext.archive.zstd import MAGIC, entry_of

__all__ = ["Rescue", "facts", "records", "records_behind", "tombstones"]


class Rescue:
    """What ArchiveStore does about a damaged file."""

    def _rescue(self, problem: str) -> None:
        """Build the file anew from what can be read; the damaged one is set aside."""
        self._drop_connection()
        if not self.depth:
            self._lock.acquire(timeout=self.config["storage"]["lock_timeout_seconds"])
        try:
            if (self.root / ".rescue/done").exists():        # of a process that was killed
                self._take_rescued()
            is_frame = "compressed record" in problem      # SQLite sees no damage there
            if not is_sound(self.path, frames=is_frame):   # else another process has mended it
                said = self._build_anew(problem)
                if said:
                    self._take_rescued()
                    self.files.notices.append(said)
        finally:
            if not self.depth:
                self._lock.release()

    def _has_remains(self) -> bool:
        """Tell whether the root of a file that is missing or empty shows that it was not."""
        return wal.has_page(self.path) or any(
            any(self.root.glob(pattern)) for pattern in
            ("backups/auto_index.json.*.bak", "backups/tombstones.bak", "store/*.md"))

    def _build_anew(self, problem: str) -> str:
        """Fill a fresh file in `.rescue/`; return the sentence that says from where.

        Where the file is missing or empty and nothing is left of it, that is "".
        """
        import shutil
        place = self.root / ".rescue"
        shutil.rmtree(place, ignore_errors=True)
        kept, buried = facts(self.path), self._rescued_tombstones()
        gone, found, counts = {tombstone["id"] for tombstone in buried[1].values()}, set(), []
        fresh = type(self)(place, self.config, clock=self.clock)
        with fresh.transaction():
            for source, memories in (("its pages", records(self.path)),
                                     ("the Markdown mirror", self.mirror.read()),
                                     ("the newest good backup", self.backups.newest())):
                before = len(found)
                for each in memories:
                    if each.id not in found and each.id not in gone:
                        found.add(each.id)
                        fresh.put(each)
                counts += [f"{len(found) - before} from {source}"] if len(found) > before else []
            for name, value in kept.items():
                if name != "vectors":
                    fresh.set_fact(name, value)
            fresh.set_tombstones(*buried)
        fresh.finish()
        if {*fresh.ids()} != found:
            raise StorageError(f"the copy of {self.path} in {place} is not whole; the damaged "
                               "file was left as it is, try again")
        fresh.close()
        is_empty = not self.path.exists() or not self.path.stat().st_size
        if not found and not (is_empty and buried[1]):
            shutil.rmtree(place, ignore_errors=True)
            if is_empty:
                return ""
            raise DamagedData(f"{self.path} cannot be read ({problem}) and there is no mirror and "
                              "no backup to recover from; it was left as it is: put a good copy "
                              "in its place, or move it away to start empty")
        aside = f"{FILE}.damaged-{self.clock():%Y%m%d_%H%M%S}"
        core.write_atomic(place / "done", aside.encode())
        counts += [f"{core.pluralize(len(buried[1]), 'tombstone')}"] if buried[1] else []
        what = ("was missing" if not self.path.exists() else
                f"was {'empty' if is_empty else 'damaged'} (set aside as {aside})")
        return f"{FILE} {what}; recovered {', '.join(counts)}"

    def _rescued_tombstones(self) -> tuple[str, dict[str, dict[str, str]]]:
        """Return key and tombstones: of the damaged file, else of the copy in backups/."""
        key, found = facts(self.path).get("tomb_key", ""), tombstones(
            self.path)
        with contextlib.suppress(ValueError, LookupError, TypeError):
            copy = from_json(self.files.read("backups/tombstones.bak") or b"{}")
            if key in ("", copy["key"]):
                return copy["key"], {**copy["tombstones"], **found}
        return key, found

    def _take_rescued(self) -> None:
        """Put the rescued file in place; done again from the start when it was killed half-way."""
        import shutil
        place = self.root / ".rescue"
        if (place / FILE).exists():
            aside = self.root / (place / "done").read_text()
            if not aside.exists() and self.path.exists():
                os.link(self.path, aside)
            log = self.path.with_name(f"{FILE}-wal")
            if log.exists():                       # of the damaged file: never of the new one
                os.replace(log, f"{aside}-wal")
            self.path.with_name(f"{FILE}-shm").unlink(missing_ok=True)
            os.replace(place / FILE, self.path)
            core.fsync_folder(self.root)
        shutil.rmtree(place, ignore_errors=True)


def records(path: Path) -> Iterator[Memory]:
    """Yield the memories that can still be read, in their order where that is known."""
    seen: set[str] = set()
    for entry in (*_by_range(path), *_by_page(path)):
        with contextlib.suppress(ValueError, RecursionError, sqlite3.DatabaseError):
            memory = Memory.from_entry(entry_of(entry))
            if memory.id not in seen:
                seen.add(memory.id)
                yield memory


def records_behind(path: Path, after: int, *, promised: int = 0) -> list[Memory]:
    """Return the memories on the good pages that the log has behind its first *after* frames.

    *promised* is the number of frames that the log has to have, where that is known.
    """
    newer = wal.verified_pages(path, promised=promised)
    behind = wal.verified_pages(path, after=after, promised=promised)
    size = len(next(iter(newer.values()), b""))
    found: dict[str, Memory] = {}
    with open(path, "rb") as file:
        def page(number: int) -> bytes:
            if number not in newer:
                file.seek((number - 1) * size)
                return file.read(size)
            return newer[number]

        for number in sorted(behind):
            for entry in _cells(behind[number], page, size, 100 if number == 1 else 0):
                with contextlib.suppress(ValueError, RecursionError, sqlite3.DatabaseError):
                    memory = Memory.from_entry(entry_of(entry))
                    found[memory.id] = memory
    return [*found.values()]


def tombstones(path: Path) -> dict[str, dict[str, str]]:
    """Return {mark: {id, why, at}}, as far as SQLite reads it."""
    return {mark: {"id": i, "why": why, "at": at} for mark, i, why, at in
            _rows(path, "SELECT mark, id, why, at FROM tomb")}


def facts(path: Path) -> dict[str, str]:
    """Return the keys and other values of the file, as far as SQLite reads them."""
    return dict(_rows(path, "SELECT name, value FROM fact"))


def _rows(path: Path, statement: str) -> list[tuple]:
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
    top = _rows(path, "SELECT seq FROM sqlite_sequence WHERE name='memory'")
    if not top:
        return
    with contextlib.closing(_open(path)) as db:
        todo = [(0, top[0][0])]
        while todo:
            low, high = todo.pop()
            try:
                rows = db.execute("SELECT entry FROM memory WHERE seq > ? AND seq <= ? "
                                  "ORDER BY seq", (low, high)).fetchall()
                yield from (entry for entry, in rows if isinstance(entry, (str, bytes)))
            except (sqlite3.Error, UnicodeError):
                middle = (low + high) // 2
                todo += [(middle, high), (low, middle)] if middle > low else []


def _by_page(path: Path) -> Iterator[str | bytes]:
    """Yield the entries on every leaf page of a table, wherever it hangs."""
    data = path.read_bytes() if path.exists() else b""
    newer = wal.verified_pages(path)
    size = len(next(iter(newer.values()), b"")) or wal.page_size(b"", path)

    def page(number: int) -> bytes:
        return newer.get(number) or data[(number - 1) * size:number * size]

    for number in range(1, max([len(data) // size, *newer]) + 1):
        yield from _cells(page(number), page, size, 100 if number == 1 else 0)


def _cells(leaf: bytes, page: Callable[[int], bytes], size: int,
           start: int) -> Iterator[str | bytes]:
    """Yield the columns of one leaf that begin like a record, as text or compressed."""
    if leaf[start:start + 1] != b"\r":               # 13: the leaf of a table
        return
    count = int.from_bytes(leaf[start + 3:start + 5], "big")
    for place in range(start + 8, min(start + 8 + 2 * count, size - 1), 2):
        at = int.from_bytes(leaf[place:place + 2], "big")
        with contextlib.suppress(IndexError, ValueError):
            length, at = _varint(leaf, at)
            _, at = _varint(leaf, at)
            yield from _entries(_payload(leaf, at, length, page=page, size=size))


def _payload(leaf: bytes, at: int, length: int, *, page: Callable[[int], bytes],
             size: int) -> bytes:
    """Return a row's bytes: those on its page, and those on the pages it runs over to."""
    most, least = size - 35, (size - 12) * 32 // 255 - 23
    if length <= most:
        return leaf[at:at + length]
    local = least + (length - least) % (size - 4)
    local = local if local <= most else least
    data, more = leaf[at:at + local], int.from_bytes(leaf[at + local:at + local + 4], "big")
    for _ in range(length // (size - 4) + 2):
        if len(data) >= length or not more:
            break
        follows = page(more)
        data, more = data + follows[4:], int.from_bytes(follows[:4], "big")
    return data[:length]


def _entries(row: bytes) -> Iterator[str | bytes]:
    """Yield the columns of a row that begin like a record, as text or compressed."""
    end, at = _varint(row, 0)
    value = end
    while at < end:
        kind, at = _varint(row, at)
        wide = (kind - 12) // 2 if kind > 11 else (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)[kind]
        if kind > 12 and kind % 2 and row[value:value + 7] == b'{"id": ':
            yield row[value:value + wide].decode("utf-8")
        elif kind > 12 and not kind % 2 and row[value:value + 4] == MAGIC:
            yield row[value:value + wide]
        value += wide


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (number, position behind it)."""
    number = 0
    for step in range(8):
        byte = data[at + step]
        number = number << 7 | byte & 127
        if byte < 128:
            return number, at + step + 1
    return number << 8 | data[at + 8], at + 9



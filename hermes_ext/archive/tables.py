"""Tombstones and dense vectors of an archive, and how its file is opened.

A part of archive/store.py: ArchiveStore inherits both classes, and gives them `db`, `row`
and `_do`.
"""
from __future__ import annotations

import contextlib
import functools
import heapq
import json
import sqlite3
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import hermes_lite as core
from hermes_lite import Locked, StorageError, VectorCache, Vectorizer, to_json
from hermes_ext.archive.zstd import check_compressed

__all__ = ["CHUNK", "FILE", "ArchiveVectors", "TombstoneTable", "close_untouched", "connect",
           "is_sound", "mended", "uri_of", "whole"]

T = TypeVar("T")
FILE, CHUNK = "memory_archive.db", 4_096           # the file's name; rows read at a time


def connect(place: str) -> sqlite3.Connection:
    """Open a file (by URI) or memory; every statement commits by itself unless in BEGIN."""
    db = sqlite3.connect(place, uri=True, isolation_level=None, check_same_thread=False,
                         cached_statements=256)
    for pragma in ("synchronous=FULL", "foreign_keys=ON", "secure_delete=ON",
                   "cache_size=-64000"):
        db.execute(f"PRAGMA {pragma}")
    return db


def uri_of(path: Path) -> str:
    """Return a path as the URI that SQLite opens."""
    return "file:" + "".join(f"%{ord(c):02x}" if c in "%?#" else c for c in str(path))


def is_sound(path: Path, *, frames: bool = False) -> bool:
    """Ask SQLite whether a file is a whole archive; reads all of it and changes nothing.

    *frames*: every compressed record must be readable as well; MissingPackage where none can be.
    """
    try:
        with contextlib.closing(connect(f"{uri_of(path)}?mode=ro")) as db:
            db.execute("SELECT count FROM counts").fetchone()
            is_whole = db.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)
            if is_whole and frames:
                check_compressed(db)
            return is_whole
    except sqlite3.Error:
        return False


def close_untouched(db: sqlite3.Connection) -> None:
    """Close a connection whose file is no longer at its path.

    SQLite would write the log into the file, and delete log and -shm by their names, which are
    those of another file now. Before Python 3.12 it cannot be told not to: the connection then
    stays open until the process ends, and the kernel closes it.
    """
    with contextlib.suppress(sqlite3.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")
    if sys.version_info >= (3, 12):
        db.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)
        db.close()
    else:
        import ctypes
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))


def whole(text: str) -> str:
    """Replace lone surrogates, which SQLite does not take as text."""
    return text.encode("utf-8", "replace").decode()


def _floats(data: bytes) -> array:
    values = array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def mended(method: Callable[..., T]) -> Callable[..., T]:
    """Let a read mend a damaged file and look again; other faults become our own errors."""
    @functools.wraps(method)
    def careful(self: Any, *args: object, **more: object) -> T:
        try:
            return method(self, *args, **more)
        except sqlite3.Error as problem:
            store = getattr(self, "_store", self)  # of a part of a store
            if store.depth:
                raise                              # the transaction sees to it
            store.mend(problem)
            return method(self, *args, **more)
    return careful


class TombstoneTable:
    """What was forgotten, and small values that travel with the file."""

    @mended
    def forgotten(self, text: str) -> Mapping[str, str] | None:
        """Return {id, why, at} when a memory of this text was removed, None otherwise."""
        if self.row("SELECT 1 FROM tomb LIMIT 1") is None:
            return None
        row = self.row("SELECT id, why, at FROM tomb WHERE mark=?", self.tombstone_mark(text))
        return row and dict(zip(("id", "why", "at"), row))

    @mended
    def removals(self) -> dict[str, dict[str, str]]:
        """Return {id: {id, why, at}} of every memory that left a tombstone."""
        return {row[0]: dict(zip(("id", "why", "at"), row)) for row in self.db().execute(
            "SELECT id, why, at FROM tomb ORDER BY rowid")}

    def remove_tombstone(self, text: str, *, memory_id: str = "") -> None:
        """Drop the tombstones of *text*, and of that id: a person wants it back."""
        row = self.row("SELECT id FROM tomb WHERE mark=?", self.tombstone_mark(text))
        for each in {memory_id, *(row or ())} - {""}:
            self._do("lift")
            if self.row("SELECT 1 FROM tomb WHERE id=?", each):
                self.row("DELETE FROM tomb WHERE id=?", each)
                self._gone.add(each)

    def bury(self, tombstones: Iterable[tuple[str, str, str, str]]) -> None:
        """Add tombstones: mark, id, why, at."""
        self._do("del")
        self.db().executemany("INSERT OR REPLACE INTO tomb VALUES (?, ?, ?, ?)", tombstones)

    @mended
    def get_tombstones(self) -> tuple[str, dict[str, dict[str, str]]]:
        """Return the key and {mark: {id, why, at}} of all that was forgotten."""
        rows = self.db().execute("SELECT mark, id, why, at FROM tomb ORDER BY mark")
        return self.fact("tomb_key"), {
            mark: {"id": i, "why": why, "at": at} for mark, i, why, at in rows}

    def set_tombstones(self, key: str, tombstones: Mapping[str, Mapping[str, str]]) -> None:
        """Take over the tombstones of another store, and their key, in place of any here."""
        self._do("del")
        self.row("DELETE FROM tomb")
        self.bury((mark, tombstone["id"], tombstone["why"], tombstone["at"]) for mark, tombstone in tombstones.items())
        if key:
            self.set_fact("tomb_key", key)

    def tombstone_mark(self, text: str) -> str:
        """Return the keyed hash under which *text* is known once it is forgotten."""
        self._tombstone_key = self._tombstone_key or self.fact("tomb_key")
        return core.tombstone_fingerprint(self._tombstone_key, text)

    def _keep_tombstones(self) -> None:
        """Write a copy of the tombstones, so that a damaged file brings nothing back."""
        try:
            self.files.write("backups/tombstones.bak", core.tombstones_file(*self.get_tombstones()))
        except OSError as problem:
            self.files.notices.append("forgotten; the copy of the tombstones was not written: "
                                f"{problem}")

    def fact(self, name: str) -> str:
        """Return a value that travels with the file, "" where there is none."""
        row = self.row("SELECT value FROM fact WHERE name=?", name)
        return row[0] if row else ""

    def set_fact(self, name: str, value: str) -> None:
        """Keep a value in the file."""
        self._do("fact")
        self.row("INSERT OR REPLACE INTO fact VALUES (?, ?)", name, value)
        self._tombstone_key = ""


class ArchiveVectors:
    """The table of dense vectors; see `DenseVectors` in the core for what each method returns."""

    def __init__(self, store: Any) -> None:
        self._store = store

    @mended
    def search(self, vectorizer: Vectorizer, query: core.Vector, k: int, *,
                       accept: Callable[[str], bool] | None = None) -> list[tuple[str, float]]:
        """Rank by cosine; below the vectorizer's threshold nothing is returned."""
        with self._store.reading():
            return self._search_dense(vectorizer, query, k, accept)

    def _search_dense(self, vectorizer: Vectorizer, query: core.Vector, k: int,
                      accept: Callable[[str], bool] | None) -> list[tuple[str, float]]:
        """Read the vectors a chunk at a time; ties go to the later one."""
        best: list[tuple[float, int, str]] = []
        for number, chunk in enumerate(self._chunks(vectorizer)):
            found = chunk.search(query, threshold=vectorizer.threshold, limit=k, accept=accept)
            best += [(score, -number, -at, name) for at, (name, score) in enumerate(found)]
            best = heapq.nlargest(k, best)
        return [(name, score) for score, _, _, name in best]

    def chunks(self) -> Iterator[VectorCache]:
        """Yield all vectors, some thousand at a time."""
        kind = self.kind()
        return self._chunks(kind) if kind else iter(())

    def _chunks(self, vectorizer: Vectorizer | core.VectorKind) -> Iterator[VectorCache]:
        """Yield the vectors of this kind, some thousand at a time."""
        last, kind = 0, self.kind()
        while kind and kind[:2] == (vectorizer.name, vectorizer.model):
            rows = self._store.db().execute(
                "SELECT seq, id, data FROM vector JOIN memory USING (seq) WHERE seq > ? "
                "ORDER BY seq LIMIT ?", (last, CHUNK)).fetchall()
            if not rows:
                return
            last, cache = rows[-1][0], VectorCache(*kind)
            for _, name, data in rows:
                row = _floats(data)
                cache.put(name, [row[at:at + kind.dimension]
                                 for at in range(0, len(row), kind.dimension)])
            yield cache

    @mended
    def kind(self) -> core.VectorKind | None:
        """Return whose dense vectors are kept; None when there are none."""
        fact = self._store.fact("vectors")
        return core.VectorKind(*json.loads(fact)) if fact else None

    @mended
    def missing(self, vectorizer: Vectorizer) -> list[str]:
        """Return the ids without a vector of this model; the local backend has them all."""
        if vectorizer.name == "local":
            return []
        if not self._is_kind(vectorizer):
            return self._store.ids()
        return [i for i, in self._store.db().execute("SELECT id FROM pending JOIN memory USING (seq) "
                                               "ORDER BY seq")]

    def _is_kind(self, vectorizer: Vectorizer) -> bool:
        kind = self.kind()
        return kind is not None and kind[:2] == (vectorizer.name, vectorizer.model) and (
            vectorizer.dimension in (None, kind.dimension))

    def put(self, vectorizer: Vectorizer, vectors: Mapping[str, core.Vector]) -> None:
        """Keep vectors of memories that are still there; those of another model go.

        The value of a long text is a list of vectors, one a piece.
        """
        with contextlib.suppress(Locked, StorageError), self._store.transaction():
            for memory_id, vector in vectors.items():
                units = core.unit_pieces(vector, vectorizer.dimension)
                row = self._store.row("SELECT seq FROM memory WHERE id=?", memory_id)
                if not units or row is None:
                    continue
                if not self._is_kind(vectorizer):
                    self._start_vectors(vectorizer, len(units[0]))
                self._store.kinds.add("vector")
                self._store.row("DELETE FROM pending WHERE seq=?", *row)
                self._store.row("INSERT OR REPLACE INTO vector VALUES (?, ?)", *row,
                          b"".join(map(core.little_endian_bytes, units)))

    def _start_vectors(self, vectorizer: Vectorizer, dimension: int) -> None:
        """Drop the vectors of another model; every memory waits for a new one."""
        self._store.row("DELETE FROM vector")
        self._store.row("INSERT OR IGNORE INTO pending SELECT seq FROM memory")
        self._store.set_fact("vectors", to_json([vectorizer.name, vectorizer.model, dimension]).decode())

    def drop(self, ids: Iterable[str]) -> None:
        """Take the vectors of these memories away; they wait for new ones."""
        with self._store.transaction():
            for memory_id in ids:
                row = self._store.row("SELECT seq FROM memory JOIN vector USING (seq) WHERE id=?",
                                memory_id)
                if row:
                    self._store.kinds.add("vector")
                    self._store.row("DELETE FROM vector WHERE seq=?", *row)
                    self._store.row("INSERT OR IGNORE INTO pending VALUES (?)", *row)

"""The dense vectors of an archive."""
from __future__ import annotations

import contextlib
import heapq
import json
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

import hermes_lite as core
from hermes_lite import Locked, StorageError, VectorCache, VectorKind, Vectorizer, to_json
from hermes_ext.archive.file import ArchiveFile, rescuing

__all__ = ["ArchiveVectors"]

_CHUNK = 4_096                       # vectors that are read at a time


class ArchiveVectors:
    """The tables `vector` and `pending`; see `DenseVectors` in the core for each method.

    All vectors are of one backend and model, which the fact `vectors` names as JSON. A vector
    goes with its record.
    """

    def __init__(self, file: ArchiveFile,
                 transaction: Callable[[], AbstractContextManager[None]]) -> None:
        self.file = file
        self._transaction = transaction

    @rescuing
    def search(self, vectorizer: Vectorizer, query: core.Vector, k: int, *,
               accept: Callable[[str], bool] | None = None) -> list[tuple[str, float]]:
        """Rank by cosine, a chunk at a time; ties go to the later one."""
        best: list[tuple[float, int, int, str]] = []
        for number, chunk in enumerate(self._chunks_of(vectorizer)):
            found = chunk.search(query, threshold=vectorizer.threshold, limit=k, accept=accept)
            best += [(score, number, -place, memory_id)
                     for place, (memory_id, score) in enumerate(found)]
            best = heapq.nlargest(k, best)
        return [(memory_id, score) for score, _, _, memory_id in best]

    def chunks(self) -> Iterator[VectorCache]:
        kind = self.kind()
        return self._chunks_of(kind) if kind else iter(())

    def _chunks_of(self, wanted: Vectorizer | VectorKind) -> Iterator[VectorCache]:
        """Yield all vectors, some thousand at a time; none where another model made them."""
        kind = self.kind()
        if kind is None or kind[:2] != (wanted.name, wanted.model):
            return
        last = 0
        while True:
            rows = self.file.rows("SELECT seq, id, data FROM vector JOIN memory USING (seq) "
                                  "WHERE seq > ? ORDER BY seq LIMIT ?", last, _CHUNK)
            if not rows:
                return
            last = rows[-1][0]
            cache = VectorCache(*kind)
            for _, memory_id, data in rows:
                cache.put(memory_id, _pieces(data, kind.dimension))
            yield cache

    @rescuing
    def kind(self) -> VectorKind | None:
        """Return whose vectors are kept; None when there are none."""
        fact = self.file.fact("vectors")
        return VectorKind(*json.loads(fact)) if fact else None

    def _is_kind(self, wanted: Vectorizer | VectorKind) -> bool:
        kind = self.kind()
        return kind is not None and kind[:2] == (wanted.name, wanted.model) and (
            wanted.dimension in (None, kind.dimension))

    @rescuing
    def missing(self, vectorizer: Vectorizer) -> list[str]:
        """Return the ids without a vector of this model, oldest first."""
        if vectorizer.name == "local":             # its vectors are made from the text
            return []
        waiting = "SELECT id FROM memory JOIN pending USING (seq) ORDER BY seq"
        every = "SELECT id FROM memory ORDER BY seq"
        rows = self.file.rows(waiting if self._is_kind(vectorizer) else every)
        return [memory_id for memory_id, in rows]

    def put(self, vectorizer: Vectorizer | VectorKind, vectors: Mapping[str, core.Vector]) -> None:
        """Keep vectors; those of another model go. Where the store is busy or full, none is kept.

        A memory that is gone and a vector without a direction are left out.
        """
        with contextlib.suppress(Locked, StorageError), self._transaction():
            for memory_id, vector in vectors.items():
                pieces = core.unit_pieces(vector, vectorizer.dimension)
                row = self.file.row("SELECT seq FROM memory WHERE id=?", memory_id)
                if not pieces or row is None:
                    continue
                seq, = row
                if not self._is_kind(vectorizer):
                    self._start(vectorizer, len(pieces[0]))
                self.file.change("vector")
                self.file.row("DELETE FROM pending WHERE seq=?", seq)
                self.file.row("INSERT OR REPLACE INTO vector VALUES (?, ?)", seq,
                              b"".join(map(core.little_endian_bytes, pieces)))

    def _start(self, vectorizer: Vectorizer | VectorKind, dimension: int) -> None:
        """Drop the vectors of another model; every memory waits for a new one."""
        self.file.row("DELETE FROM vector")
        self.file.row("INSERT OR IGNORE INTO pending SELECT seq FROM memory")
        kind = [vectorizer.name, vectorizer.model, dimension]
        self.file.set_fact("vectors", to_json(kind).decode())

    def expect(self, seq: int, *, is_new: bool) -> None:
        """Let a record, new or with another text, wait for its vector, if vectors are kept."""
        if not is_new:
            self.file.row("DELETE FROM vector WHERE seq=?", seq)
        if self.kind():
            self.file.row("INSERT OR IGNORE INTO pending VALUES (?)", seq)

    def drop(self, ids: Iterable[str]) -> None:
        """Drop the vectors of some memories, which then wait for new ones."""
        with self._transaction():
            for memory_id in ids:
                row = self.file.row("SELECT seq FROM memory JOIN vector USING (seq) WHERE id=?",
                                    memory_id)
                if row is not None:
                    seq, = row
                    self.file.change("vector")
                    self.expect(seq, is_new=False)


def _pieces(data: bytes, dimension: int) -> list[array[float]]:
    """Return the vectors of a text as they are stored, one a piece."""
    numbers = array("f", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return [numbers[at:at + dimension] for at in range(0, len(numbers), dimension)]

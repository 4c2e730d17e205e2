"""The core's indexes over the tables of archive_search.py: they rank, and ask there for lists.

A part of hermes_ext/archive.py. Each is the core's own class with another place for its data;
`tables` is the SearchTables, whose `sql` asks and whose `tail` holds the fresh documents.
"""
from __future__ import annotations

import functools
from array import array
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import hermes_lite as core
from hermes_lite import BM25Index, GraphStore, extract_entities

if TYPE_CHECKING:
    from hermes_ext.archive_search import SearchTables

__all__ = ["CLAIMS", "Claims", "GRAMS", "Grams", "Graph", "Names", "Row", "TWINS", "TermList",
           "Twins", "UTF8", "Words", "count_terms", "gram_rows", "unpacked"]

TWINS, GRAMS, CLAIMS = 0, 1, 2       # kinds of bitmaps
UTF8 = "utf-8", "surrogatepass"
_ROW_BYTES = 1 << 27                 # rows of terms kept in memory
_PAIRS = 4_000_000                   # numbers of pairs kept in memory, 24 MB


class Row(NamedTuple):
    """A fresh document: its terms, the rows of its pairs, its claims, the number of its first
    sentence, and the buckets of each sentence."""
    terms: bytes
    pairs: bytes
    claims: bytes
    sentence: int
    sentences: bytes


def unpacked(data: bytes) -> Iterator[array]:
    """Yield the sets of numbers that `_packed` wrote."""
    numbers, at = array("H", data), 0
    while at < len(numbers):
        end = at + 1 + numbers[at]
        yield numbers[at + 1:end]
        at = end


def count_terms(terms: bytes) -> int:
    return terms.count(b"\n") + 1 if terms else 0


def gram_rows(vector: bytes) -> list[int]:
    """Return the rows of a local vector: its dimensions, and the grade of its largest weight."""
    size = array("d", vector[5:13])
    dims = array("H", vector[13:])
    if not dims:
        return []
    return [*dims, core.SparseIndex.WIDTH + core._peak_grade({0: size[0]})]


class Names:
    """Document -> id, looked up when asked; `docs` is the way back."""

    def __init__(self, tables: SearchTables) -> None:
        self.tables = tables
        self.known: dict[int, str] = {}
        self.docs: dict[str, int] = {}
        self.sources: dict[str, object] = {}

    def clear(self) -> None:
        """Forget what was read of an earlier state."""
        self.known.clear()
        self.docs.clear()
        self.sources.clear()

    def load(self, docs: Iterable[int]) -> None:
        """Read the names and sources of some documents at once."""
        self._note("doc", str([*docs]))

    def known_of(self, found: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
        """Read what stands about these ids, and return those that are still there."""
        self._note("id", core.to_json([key for key, _ in found]).decode())
        return [row for row in found if row[0] in self.docs]

    def _note(self, column: str, values: str) -> None:
        for doc, memory_id, source in self.tables.sql(
                f"SELECT doc, id, source FROM memory WHERE {column} IN (SELECT value FROM "
                "json_each(?))", (values,)):
            self.known[doc], self.docs[memory_id] = memory_id, doc
            self.sources[memory_id] = source

    def __getitem__(self, doc: int) -> str:
        if doc not in self.known:
            row = self.tables.sql("SELECT id FROM memory WHERE doc=?", (doc,)).fetchone()
            self.known[doc] = row[0] if row else ""
        return self.known[doc]

    def __len__(self) -> int:
        return self.tables.next


class TermList:
    """The documents of one term; `pairs` are (document, tf) where it stands more than once."""

    def __init__(self, tables: SearchTables, term: bytes) -> None:
        self.tables, self.term = tables, term
        self.sizes: dict[int, tuple[int, int]] = {}    # block -> documents, the highest tf
        self.tail, self.tail_pairs = tables.tail_of(term)
        self._pairs: dict[int, tuple[array, array]] = {}
        self._lists: dict[int, array] = {}

    def __len__(self) -> int:
        return sum(size for size, _ in self.sizes.values()) + len(self.tail)

    @property
    def most(self) -> int:
        return max([1, *(most for _, most in self.sizes.values()), *self.tail_pairs[1::2]])

    def row(self, times: int) -> bytearray:
        """Return the documents in the tables that have the term so many times, as bits."""
        tables, size = self.tables, self.tables.BLOCK // 8
        row = bytearray(tables.flushed // 8 + 1)
        left = {block for block, (_, most) in self.sizes.items() if most >= times}
        for block, bits in tables.sql("SELECT block, bits FROM dense WHERE term=? AND times=?",
                                      (self.term, times)):
            row[block * size:block * size + size] = bits
            left.discard(block)
        self._load(left, times > 1)
        for block in left:
            for doc in self._lists[block] if times == 1 else core._repeated(
                    self._pairs[block][0], times):
                row[doc >> 3] |= 1 << (doc & 7)
        return row

    def _load(self, blocks: Iterable[int], pairs: bool) -> None:
        """Read the lists, or the pairs, of some blocks at once."""
        known = self._pairs if pairs else self._lists
        for block in blocks if pairs else ():
            if (kept := self.tables.words.pairs.get((self.term, block))) is not None:
                known[block] = kept
        wanted = [block for block in blocks if block not in known]
        for block, data in self.tables.sql(
                f"SELECT block, {'pairs' if pairs else 'docs'} FROM word WHERE term=? AND block "
                f"IN ({','.join(map(str, wanted))})", (self.term,)) if wanted else ():
            numbers = array("I", data)
            known[block] = (numbers, numbers[::2]) if pairs else numbers
            if pairs:
                self.tables.words.keep_pairs(self.term, block, known[block])

    def pairs_of(self, block: int) -> tuple[array, array]:
        """Return the pairs of a block, and their documents."""
        if block not in self._pairs:
            self._load([block], True)
        return self._pairs[block]

    def counts(self, docs: Iterable[int]) -> Iterator[int]:
        """Yield how often each of some documents has the term, which has it more than once."""
        for doc in docs:
            pairs, several = self.pairs_of(doc // self.tables.BLOCK) if (
                doc < self.tables.flushed) else (self.tail_pairs, self.tail_pairs[::2])
            yield pairs[2 * bisect_left(several, doc) + 1]

    @functools.cached_property
    def all(self) -> array[int]:
        """All documents, ascending."""
        self._load(self.sizes, False)
        listed = [self._lists[block] for block in sorted(self.sizes)]
        if sum(map(len, listed)) + len(self.tail) < len(self):     # the others are bits
            listed = [core._documents(int.from_bytes(self.row(1), "little"))]
        return array("I", [*chain(*listed, self.tail)])

    @functools.cached_property
    def pairs(self) -> array[int]:
        """All (document, tf > 1), ascending."""
        self._load(self.sizes, True)
        return array("I", b"".join(memoryview(self._pairs[block][0]) for block in
                                   sorted(self.sizes))) + array("I", self.tail_pairs)

    def __iter__(self) -> Iterator[int]:
        return iter(self.all)


class _TermPairs:
    """The pairs of a term, read only when a search looks into them."""

    def __init__(self, entry: TermList) -> None:
        self.entry = entry

    def __getitem__(self, at: slice) -> array[int]:
        return self.entry.pairs[at]


class _Search(core._Find):
    """The core's search; boosts go by document."""

    def __init__(self, index: Words, terms: list, accept: Callable[[str], bool] | None,
                 boost: Mapping[int, float]) -> None:
        super().__init__(index, terms, accept, {})
        self.top = max(boost.values(), default=1.0)
        self.factor = lambda doc: boost.get(doc, 1.0)


class Words(BM25Index):
    """The core's keyword index over the tables; `boost` of a search goes by document."""
    _finder = _Search

    def __init__(self, tables: SearchTables) -> None:
        how = tables.how
        super().__init__(float(how["bm25_k1"]), float(how["bm25_b"]), tables.tokenize,
                         narrow=core.query_terms if how["stop_words"] else list,
                         spelling=bool(how["spelling"]))
        self.tables, self._keys, self._docs = tables, tables.names, _Docs(tables)
        self._lengths: array | None = None
        self._held: dict[str, TermList | None] = {}
        self._asked: tuple | None = None           # the query and the state of what is held

    def __len__(self) -> int:
        return self.tables.count

    def search(self, query: str, k: int | None = None, **how: object) -> list:
        self._prepare(query)
        return super().search(query, k, **how)

    def ceiling(self, query: str) -> float:
        self._prepare(query)
        return super().ceiling(query)

    def forget(self) -> None:
        """Drop what was read of a state that may be another now."""
        self._lengths = self._asked = None
        self._short.clear()
        # (Term, n up to 3) -> the documents in the tables that have it n times or more, as bits;
        # (term, block) -> its pairs there, and how many numbers these are in all.
        self.rows: OrderedDict[tuple[str, int], bytearray] = OrderedDict()
        self.pairs: OrderedDict[tuple[bytes, int], tuple[array, array]] = OrderedDict()
        self.pairs_size = 0

    def drop(self, term: str, block: int) -> None:
        """Drop what is kept of a term, a document of which in *block* is taken out."""
        for times in (1, 2, 3):
            self.rows.pop((term, times), None)
        gone = self.pairs.pop((term.encode(*UTF8), block), None)
        self.pairs_size -= len(gone[0]) if gone else 0

    def keep_pairs(self, term: bytes, block: int, pairs: tuple[array, array]) -> None:
        """Keep the pairs of a term in a block for other searches; the oldest make room."""
        self.pairs[term, block] = pairs
        self.pairs_size += len(pairs[0])
        while self.pairs_size > _PAIRS:
            self.pairs_size -= len(self.pairs.popitem(last=False)[1][0])

    def _prepare(self, query: str) -> None:
        """Take over the counts of the present state; lists read for another one go."""
        if self._lengths is None:
            self._lengths = self._read_lengths()
        tables = self.tables
        self._total, self._shortest = tables.total, tables.shortest
        asked = query, tables.changes, tables.next, tables.cut, tables.retired
        if asked != self._asked:
            self._held, self._asked = {}, asked

    def _slip(self, term: str) -> str | None:
        self._hold(core._slips(term) if 4 < len(term) < 40 else ())
        return super()._slip(term)

    def in_context(self, query: str, found: Sequence[tuple[str, float]], **how: object) -> list:
        """Read names, sources and lists of all that is asked about at once, then rank."""
        self._prepare(query)
        names = self.tables.names
        docs = [self._docs[key] for key, _ in found]
        names.load({doc + away for doc in docs if names.sources[names.known[doc]] is not None
                    for away in range(-3, 4)} - set(docs))
        self._hold(core._labels(core.tokenize_terms(query)))
        return super().in_context(query, found, **how)

    def _read_lengths(self) -> array[int]:
        tables, sizes = self.tables, array("I")
        for start, data in tables.sql("SELECT start, sizes FROM length ORDER BY start"):
            sizes.extend([0] * (start - len(sizes)))
            sizes.frombytes(data)
        for doc, row in sorted(tables.tail.items()):
            sizes.extend([0] * (doc - len(sizes)))
            sizes.append(count_terms(row.terms))
        return sizes

    def grow(self, doc: int, terms: bytes) -> None:
        """Note the length of a new document."""
        if self._lengths is not None:
            self._lengths.extend([0] * (doc - len(self._lengths)))
            self._lengths.append(count_terms(terms))

    def shrink(self, doc: int) -> None:
        """Take the length of a document away."""
        if self._lengths is not None:
            self._lengths[doc] = 0

    def _weigh(self, query: str, *, literal: bool = False) -> list[core._Term]:
        self._hold(self._narrow(self._tokenize(query)))
        return super()._weigh(query, literal=literal)

    def _hold(self, terms: Iterable[str]) -> None:
        """Look several terms up at once."""
        if wanted := sorted({*terms} - self._held.keys()):
            self._held.update({**dict.fromkeys(wanted), **self.tables.lists(wanted)})

    def _number(self, term: str) -> str | None:
        if term not in self._held:
            self._hold([term])
        return None if self._held[term] is None else term

    def _list(self, number: str) -> TermList:
        return self._held[number]

    def _pairs(self, number: str) -> _TermPairs:
        return _TermPairs(self._held[number])

    def row(self, number: str, times: int = 1) -> bytearray:
        """The documents that have a term, as the core does."""
        tables = self.tables
        row = self._saved(number, times) + bytes(tables.next // 8 - tables.flushed // 8)
        for doc in self._fresh(number, times):
            row[doc >> 3] |= 1 << (doc & 7)
        return row

    def _saved(self, number: str, times: int) -> bytearray:
        """A row of what lies in the tables; those of common terms are kept for other searches."""
        rows, held = self.rows, self._held[number]
        row = rows.get((number, times))
        if row is None:
            row = held.row(times)
            if len(held) * 256 > self.tables.next:
                rows[number, times] = row
                while len(rows) * len(row) > _ROW_BYTES:
                    rows.popitem(last=False)
        else:
            rows.move_to_end((number, times))
        return row

    def _fresh(self, number: str, times: int) -> Iterable[int]:
        held = self._held[number]
        return held.tail if times == 1 else core._repeated(array("I", held.tail_pairs), times)

    def has(self, number: str, doc: int) -> bool:
        """Whether a document has a term."""
        if doc >= self.tables.flushed:
            return doc in self._held[number].tail
        return bool(self._saved(number, 1)[doc >> 3] & 1 << (doc & 7))

    def most(self, number: str) -> int:
        """No document has the term more often."""
        return self._held[number].most

    def counts(self, number: str, docs: Iterable[int]) -> list[int]:
        """How often each of some documents has a term that it has more than once."""
        return [*self._held[number].counts(docs)]

    def _is_alive(self, doc: int) -> bool:
        return doc in self.tables.names.known


class _Docs:
    """Id -> document."""

    def __init__(self, tables: SearchTables) -> None:
        self.tables = tables

    def __getitem__(self, key: str) -> int:
        return self.tables.names.docs[key]


class _Roster:
    def __init__(self, names: Names) -> None:
        self.keys = names


class _Slices(core.BitSlices):
    """Bitmaps in the tables, and those of the fresh documents in memory."""

    def __init__(self, tables: SearchTables, kind: int, width: int) -> None:
        super().__init__(width)
        self.tables, self.kind = tables, kind

    def tally(self, buckets: Iterable[int]) -> list[tuple]:
        self._wanted = [*sorted(set(buckets)), *range(self.width - core._GRADES, self.width)]
        return super().tally(buckets)

    def in_all(self, buckets: Iterable[int]) -> int:
        self._wanted = sorted(set(buckets))
        return super().in_all(buckets)

    def _parts(self) -> Iterator[tuple[int, int, Callable[[int], int]]]:
        for start, size in self.tables.parts(self.kind):
            yield start, size, self.tables.bitmaps(self.kind, start, self._wanted).__getitem__
        yield from super()._parts()


class _Fresh:
    """What twins and grams share: bitmaps of the fresh documents, made when first asked."""

    def reset(self) -> None:
        self._slices = _Slices(self.tables, self.kind, self.WIDTH + core._GRADES)
        self._is_filled = False

    def fill(self) -> None:
        """Read the fresh documents; before a search."""
        if not self._is_filled:
            self._is_filled = True
            for doc in sorted(self.tables.tail):
                self.grow(doc)

    def grow(self, doc: int) -> None:
        if self._is_filled:
            self._slices.add(doc, self.rows(doc))

    def shrink(self, doc: int) -> None:
        self._slices.remove(doc)


class Twins(_Fresh, core.DuplicateIndex):
    """The core's DuplicateIndex; the marks of facts are a column of the records."""
    kind = TWINS

    def __init__(self, tables: SearchTables) -> None:
        self.tables, self._roster = tables, _Roster(tables.names)

    def rows(self, doc: int) -> Iterable[int]:
        return array("H", self.tables.tail[doc].pairs)

    def _marked(self, mark: bytes) -> Iterator[int]:
        for doc, in self.tables.sql("SELECT doc FROM memory WHERE mark=? ORDER BY doc",
                                    (mark,)).fetchall():
            yield doc
        yield from self.tables.loose_marks.get(mark, ())

    def containing(self, text: str) -> Iterator[int]:
        """Yield the documents that may contain *text*, which is normalised; none is missed."""
        self.fill()
        yield from core._documents(self._slices.in_all(core._pair_buckets(text, self.WIDTH)[1]))


class Claims(_Fresh, core.ConflictIndex):
    """The core's ConflictIndex over the tables; its bitmaps are of sentences."""
    kind = CLAIMS

    def __init__(self, tables: SearchTables) -> None:
        self.tables, self._roster, self._known = tables, _Roster(tables.names), _Known(self)
        self._sentences = self

    def reset(self) -> None:
        """Forget the fresh documents."""
        self._slices = _Slices(self.tables, self.kind, self.WIDTH + self.FLAGS)
        self._is_filled = False
        self.fresh: dict[int, list[int]] = {}      # hash -> fresh documents
        self._of: dict[int, int] = {}              # fresh sentence -> document

    def grow(self, doc: int) -> None:
        """Take a fresh document in."""
        if self._is_filled:
            row = self.tables.tail[doc]
            for number in array("I", row.claims):
                self.fresh.setdefault(number, []).append(doc)
            for number, buckets in enumerate(unpacked(row.sentences), row.sentence):
                self._slices.add(number, buckets)
                self._of[number] = doc

    def shrink(self, doc: int) -> None:
        """Take a fresh document out; its row is still in the tail."""
        if self._is_filled:
            row = self.tables.tail[doc]
            for number in array("I", row.claims):
                self.fresh[number].remove(doc)
            for number, _ in enumerate(unpacked(row.sentences), row.sentence):
                self._slices.remove(number)

    def __getitem__(self, sentence: int) -> int:
        """Return the document of a sentence."""
        if sentence >= self.tables.flushed_sentence:
            return self._of[sentence]
        row = self.tables.sql("SELECT doc FROM sentence WHERE number=?", (sentence,)).fetchone()
        return row[0] if row else -1

    def candidates(self, text: str) -> list[str]:
        """Return the keys whose text may conflict, as the core does."""
        self.fill()
        self._known.clear()
        return super().candidates(text)


class _Known:
    """The hashes that any document has, asked one by one."""

    def __init__(self, claims: Claims) -> None:
        self.claims = claims
        self._seen: dict[int, bool] = {}

    def clear(self) -> None:
        self._seen.clear()
        tables = self.claims.tables
        blocks = ",".join(map(str, range(-(-tables.flushed // tables.BLOCK)))) or "NULL"
        self._question = (f"SELECT EXISTS (SELECT 1 FROM claim WHERE block IN ({blocks}) "
                          "AND hash=?)")

    def __contains__(self, wanted: int) -> bool:
        if wanted not in self._seen:
            self._seen[wanted] = bool(self.claims.fresh.get(wanted)) or bool(
                self.claims.tables.sql(self._question, (wanted,)).fetchone()[0])
        return self._seen[wanted]

    def holders(self, wanted: int) -> Iterator[int]:
        """Yield the documents with this hash, newest first."""
        yield from reversed(self.claims.fresh.get(wanted, ()))
        for block in range(-(-self.claims.tables.flushed // self.claims.tables.BLOCK) - 1, -1, -1):
            yield from (doc for doc, in self.claims.tables.sql(
                "SELECT doc FROM claim WHERE block=? AND hash=? ORDER BY doc DESC",
                (block, wanted)))


class Grams(_Fresh, core.SparseIndex):
    """The core's local vectors."""
    kind = GRAMS
    local = core.LocalHashVectorizer()

    def __init__(self, tables: SearchTables) -> None:
        self.tables, self._roster = tables, _Roster(tables.names)

    def vector(self, doc: int) -> bytes:
        """Return the packed vector of a document, of nothing where there is none."""
        if doc in self.tables.loose:
            return self.tables.loose[doc]
        row = self.tables.sql("SELECT vector FROM gram WHERE doc=?", (doc,)).fetchone()
        return row[0] if row else core._vector_bytes({})

    _data = vector

    def rows(self, doc: int) -> Iterable[int]:
        return gram_rows(self.vector(doc))

    def search(self, vector: dict[int, float], **how: object) -> list[tuple[str, float]]:
        self.fill()
        return super().search(vector, **how)


class Graph:
    """What GraphStore tells, asked of the tables."""

    def __init__(self, tables: SearchTables) -> None:
        self.tables, self._fresh = tables, GraphStore()
        for doc, text in tables.texts(tables.tail).items():
            self._fresh.add(doc, text)

    def top(self, count: int) -> list[tuple[str, str, int]]:
        """Return (name, type, memories) of the most mentioned entities; ties by name."""
        counts = Counter(dict(self.tables.sql("SELECT name, count(*) FROM entity GROUP BY name")))
        counts.update({name: len(entity["memory_ids"])
                       for name, entity in self._fresh.entities.items()})
        best = sorted(counts.items(), key=lambda row: (-row[1], row[0]))[:count]
        return [(name, dict(extract_entities(name)).get(name, "name"), n) for name, n in best]

    def memories(self, name: str) -> list[str]:
        """Return the ids that mention *name*, oldest first; case does not matter."""
        fold = name.casefold()
        docs = {doc for known, entity in self._fresh.entities.items()
                if known.casefold() == fold for doc in entity["memory_ids"]}
        docs.update(doc for doc, in self.tables.sql("SELECT doc FROM entity WHERE fold=?",
                                                    (fold,)))
        names = self.tables.names
        return sorted(names[doc] for doc in docs)

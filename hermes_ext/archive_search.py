"""The archive's search: the core's indexes, their lists kept in tables of one SQLite file.

A part of hermes_ext/archive.py. What ranks is the core's own code (BM25Index, SparseIndex,
DuplicateIndex); here stands only where its lists lie. Every indexed text is a document with a
number of its own; a text that changes gets a new one, so a higher number is newer.

    fresh     the last documents, at most some TAIL: their terms and pairs, not yet in the tables
              below. A process reads them into memory, so a write touches one row, not a hundred
    word      (block of BLOCK documents, term) -> documents and (document, tf > 1), as uint32
    length    terms of each document, as uint32, SMALL documents a row
    slice     bitmaps: which documents have a pair (twins) or a gram (local vectors), which
              sentences a word (claims); SMALL of them a row, and BLOCK once that many are there
    claim     (block, hash, document): what a text that contradicts it has to meet
    sentence  the document of each sentence
    gram      document -> its local vector
    entity    (folded name, name, document)
    state     the next number of a document and of a sentence, up to which they are in the
              tables, count and sum of lengths, and how often a document was taken out: whoever
              reads another number looks again

Removing a document takes it out of every list; nothing of it waits to be compacted.
"""
from __future__ import annotations

import functools
import json
import sqlite3
from array import array
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import hermes_lite as core
from hermes_lite import BM25Index, GraphStore, extract_entities, normalise, tokenize_terms

__all__ = ["SCHEMA", "SearchTables", "TAIL"]

BLOCK, SMALL = 65_536, 8_192         # documents; powers of two, the second divides the first
TAIL = 1_024                         # documents that wait in `fresh` between two commits
_BULK = 8_192                        # … and inside one transaction
_TWINS, _GRAMS, _CLAIMS = 0, 1, 2    # kinds of slices
_ROWS = 4_096                        # more than the bitmaps of one kind
_CACHED = 6_000                      # bitmaps kept in memory, of up to 8 KB

SCHEMA = """
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), next INTEGER, sentence INTEGER,
                    flushed INTEGER, flushed_sentence INTEGER, count INTEGER, total INTEGER,
                    shortest INTEGER, retired INTEGER, format TEXT);
INSERT INTO state VALUES (1, 0, 0, 0, 0, 0, 0, 4294967295, 0, '');
CREATE TABLE fresh (doc INTEGER PRIMARY KEY, terms BLOB NOT NULL, pairs BLOB NOT NULL,
                    claims BLOB NOT NULL, sentence INTEGER NOT NULL, sentences BLOB NOT NULL);
CREATE TABLE claim (block INTEGER, hash INTEGER, doc INTEGER, PRIMARY KEY (block, hash, doc))
    WITHOUT ROWID;
CREATE TABLE sentence (number INTEGER PRIMARY KEY, doc INTEGER NOT NULL);
CREATE INDEX sentence_doc ON sentence (doc);
CREATE TABLE word (block INTEGER, term BLOB, docs BLOB NOT NULL, pairs BLOB NOT NULL,
                   PRIMARY KEY (block, term)) WITHOUT ROWID;
CREATE TABLE length (start INTEGER PRIMARY KEY, sizes BLOB NOT NULL);
CREATE TABLE slice (at INTEGER PRIMARY KEY, bits BLOB NOT NULL);
CREATE TABLE gram (doc INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE entity (fold TEXT, name TEXT, doc INTEGER, PRIMARY KEY (fold, name, doc))
    WITHOUT ROWID;
"""
_TABLES = ("fresh", "word", "length", "slice", "gram", "entity", "claim", "sentence")
_STATE = ("next", "sentence", "flushed", "flushed_sentence", "count", "total", "shortest",
          "retired", "known_format")
_UTF8 = "utf-8", "surrogatepass"


class SearchTables:
    """The indexes of one archive. `read` before a search, `add` and `retire` in a transaction.

    *db* returns the open connection; *how* is the section retrieval of the config.
    """

    def __init__(self, db: Callable[[], sqlite3.Connection], how: Mapping[str, object]) -> None:
        self._db, self.how = db, how
        self.format = f"1 stem={how['stem']} grams={how['grams']} cues={how['cues']}"
        self.tokenize = functools.partial(tokenize_terms, stem=bool(how["stem"]),
                                          grams=how["grams"], cues=bool(how["cues"]))
        self.names = _Names(self)
        self.words, self.claims = _Words(self), _Claims(self)
        self.twins, self.grams = _Twins(self), _Grams(self)
        self.forget()

    def sql(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._db().execute(statement, values)

    # -- state --------------------------------------------------------------

    def forget(self) -> None:
        """Drop all that is held in memory, as after a rollback."""
        self.next = self.flushed = self.count = self.total = self.retired = 0
        self.sentence = self.flushed_sentence = 0
        self.shortest, self.known_format = 1 << 32, ""
        self._bitmaps: OrderedDict[int, int] = OrderedDict()
        self._reset()

    def _reset(self) -> None:
        """Forget what lies in `fresh` and what hangs on how much is in the tables."""
        self._read_until = 0                       # documents of `fresh` below it are in memory
        self.tail: dict[int, _Row] = {}
        self.tail_words: dict[bytes, list[int]] | None = None
        self.tail_pairs: dict[bytes, list[int]] = {}
        self.words._lengths = None
        for index in (self.twins, self.grams, self.claims):
            index.reset()
        self.names.clear()

    def read(self) -> None:
        """Take over what others have committed; one small query when there is nothing."""
        row = dict(zip(_STATE, self.sql("SELECT next, sentence, flushed, flushed_sentence, count, "
                                        "total, shortest, retired, format FROM state").fetchone()))
        if row["flushed"] != self.flushed or row["retired"] != self.retired:
            if row["retired"] != self.retired:
                self._bitmaps.clear()
            self._forget_open_blocks()
            self._reset()
        vars(self).update(row)
        self.known_format = self.known_format or self.format
        self.names.clear()
        if self._read_until < self.next:
            for doc, *row in self.sql("SELECT * FROM fresh WHERE doc >= ?", (self._read_until,)):
                self._take(doc, _Row(*row))
            self._read_until = self.next

    def _forget_open_blocks(self) -> None:
        """Drop the bitmaps of blocks that were not whole when they were read."""
        for at in [at for at in self._bitmaps if
                   at // _ROWS % (1 << 30) >= self.end_of(at // _ROWS >> 30) // BLOCK * BLOCK]:
            del self._bitmaps[at]

    def end_of(self, kind: int) -> int:
        """Return up to which number the bitmaps of a kind go."""
        return self.flushed_sentence if kind == _CLAIMS else self.flushed

    def _take(self, doc: int, row: _Row) -> None:
        self.tail[doc] = row
        if self.tail_words is not None:
            self._take_words(doc, row.terms)
        self.words.grow(doc, row.terms)
        for index in (self.twins, self.grams, self.claims):
            index.grow(doc)

    def _take_words(self, doc: int, terms: bytes) -> None:
        words, pairs = self.tail_words, self.tail_pairs
        for term, tf in Counter(terms.split(b"\n") if terms else ()).items():
            words.setdefault(term, []).append(doc)
            if tf > 1:
                pairs.setdefault(term, []).extend((doc, tf))

    def tail_of(self, term: bytes) -> tuple[list[int], list[int]]:
        """Return the documents of *term* that wait in `fresh`, and (document, tf > 1)."""
        if self.tail_words is None:
            self.tail_words, self.tail_pairs = {}, {}
            for doc, row in self.tail.items():
                self._take_words(doc, row.terms)
        return self.tail_words.get(term, []), self.tail_pairs.get(term, [])

    def save(self) -> None:
        """Write the counters; the last statement before a commit."""
        self.sql("UPDATE state SET next=?, sentence=?, flushed=?, flushed_sentence=?, count=?, "
                 "total=?, shortest=?, retired=?, format=?", [getattr(self, n) for n in _STATE])

    # -- writing ------------------------------------------------------------

    def add(self, text: str) -> int:
        """Index a text; return its document number."""
        doc, tokens = self.next, self.tokenize(text)
        terms = "\n".join(tokens).encode(*_UTF8)
        size, buckets = core._pair_buckets(normalise(text), core.DuplicateIndex.WIDTH)
        pairs = array("H", (*buckets, core.DuplicateIndex.WIDTH + core._grade(size))).tobytes()
        vector = core._vector_bytes(self.grams.local.embed_query(text))
        claims, sentences = core._conflict_marks(text)
        row = _Row(terms, pairs, claims.tobytes(), self.sentence, _packed(sentences))
        self.sql("INSERT INTO fresh VALUES (?, ?, ?, ?, ?, ?)", (doc, *row))
        self.sql("INSERT INTO gram VALUES (?, ?)", (doc, vector))
        self.next = self._read_until = doc + 1
        self.sentence += len(sentences)
        self.count, self.total = self.count + 1, self.total + len(tokens)
        self.shortest = min(self.shortest, len(tokens))
        self._take(doc, row)
        if len(self.tail) >= _BULK:
            self.flush()
        return doc

    def retire(self, doc: int, text: str) -> None:
        """Take a document out of every list; *text* is what `add` was given for it."""
        tokens = self.tokenize(text)
        if doc >= self.flushed:
            self.sql("DELETE FROM fresh WHERE doc = ?", (doc,))
        else:
            for term, tf in Counter(tokens).items():
                self._cut(doc, term.encode(*_UTF8), tf)
            self._cut_length(doc)
            self._cut_bits(doc, text)
            self._cut_claims(doc, text)
            self.sql("DELETE FROM entity WHERE doc = ? AND fold IN (SELECT value FROM "
                     "json_each(?))", (doc, core.to_json([name.casefold() for name, _ in
                                                          extract_entities(text)]).decode()))
        self.sql("DELETE FROM gram WHERE doc = ?", (doc,))
        self.count, self.total = self.count - 1, self.total - len(tokens)
        self.retired += 1
        self.words.shrink(doc)
        if doc in self.tail:
            for index in (self.twins, self.grams, self.claims):
                index.shrink(doc)
            del self.tail[doc]
            self._drop_words(doc, tokens)

    def _drop_words(self, doc: int, tokens: list[str]) -> None:
        for term in {token.encode(*_UTF8) for token in tokens} if self.tail_words else ():
            self.tail_words[term].remove(doc)
            if not self.tail_words[term]:
                del self.tail_words[term]
            pairs = self.tail_pairs.get(term, [])
            at = pairs[::2].index(doc) if doc in pairs[::2] else len(pairs)
            del pairs[2 * at:2 * at + 2]

    def _cut(self, doc: int, term: bytes, tf: int) -> None:
        key = doc // BLOCK, term
        row = self.sql("SELECT docs, pairs FROM word WHERE block=? AND term=?", key).fetchone()
        if row is None:
            return
        docs, pairs = map(functools.partial(array, "I"), row)
        if (at := core._place(docs, doc)) >= 0:
            del docs[at]
        if tf > 1 and (at := core._place(pairs[::2], doc)) >= 0:
            del pairs[2 * at:2 * at + 2]
        if docs:
            self.sql("UPDATE word SET docs=?, pairs=? WHERE block=? AND term=?",
                     (docs.tobytes(), pairs.tobytes(), *key))
        else:
            self.sql("DELETE FROM word WHERE block=? AND term=?", key)

    def _cut_length(self, doc: int) -> None:
        start = doc // SMALL * SMALL
        row = self.sql("SELECT sizes FROM length WHERE start=?", (start,)).fetchone()
        sizes = array("I", row[0])
        sizes[doc - start] = 0
        self.sql("UPDATE length SET sizes=? WHERE start=?", (sizes.tobytes(), start))

    def _cut_bits(self, doc: int, text: str) -> None:
        size, buckets = core._pair_buckets(normalise(text), core.DuplicateIndex.WIDTH)
        rows = [(_TWINS, row) for row in (*buckets, core.DuplicateIndex.WIDTH
                                          + core._grade(size))]
        rows += [(_GRAMS, row) for row in _gram_rows(self.grams.vector(doc))]
        for kind, row in rows:
            self._cut_bit(kind, doc, row)

    def _cut_bit(self, kind: int, number: int, row: int) -> None:
        width = BLOCK if number < self.end_of(kind) // BLOCK * BLOCK else SMALL
        start = number // width * width
        at = _at(kind, start, row)
        self._bitmaps.pop(at, None)
        found = self.sql("SELECT bits FROM slice WHERE at=?", (at,)).fetchone()
        if found:
            bits = int.from_bytes(found[0], "little") & ~(1 << (number - start))
            self.sql("UPDATE slice SET bits=? WHERE at=?", (_bytes(bits), at))

    def _cut_claims(self, doc: int, text: str) -> None:
        hashes, sentences = core._conflict_marks(text)
        self._db().executemany("DELETE FROM claim WHERE block=? AND hash=? AND doc=?", (
            (doc // BLOCK, number, doc) for number in hashes))
        numbers = [n for n, in self.sql("SELECT number FROM sentence WHERE doc=? ORDER BY number",
                                        (doc,))]
        for number, buckets in zip(numbers, sentences):
            for bucket in buckets:
                self._cut_bit(_CLAIMS, number, bucket)
        self.sql("DELETE FROM sentence WHERE doc=?", (doc,))

    def flush(self) -> None:
        """Bring what waits in `fresh` into the tables; one pass over each."""
        if self.tail:
            self._flush_words()
            self._flush_lengths()
            self._flush_bits(_TWINS, {doc: array("H", row.pairs) for doc, row in
                                      self.tail.items()})
            self._flush_bits(_GRAMS, {doc: _gram_rows(self.grams.vector(doc))
                                      for doc in self.tail})
            self._flush_claims()
            self._flush_entities()
            self.sql("DELETE FROM fresh")
        for kind, end in ((_TWINS, self.next), (_GRAMS, self.next), (_CLAIMS, self.sentence)):
            self._merge(kind, self.end_of(kind) // BLOCK, end // BLOCK)
        self._forget_open_blocks()
        self.flushed, self.flushed_sentence = self.next, self.sentence
        self._reset()
        self._read_until = self.next

    def _flush_claims(self) -> None:
        bits: dict[int, Sequence[int]] = {}
        for doc, row in self.tail.items():
            numbers = range(row.sentence, self.sentence)
            bits.update(zip(numbers, _unpacked(row.sentences)))
            self._db().executemany("INSERT INTO sentence VALUES (?, ?)", (
                (number, doc) for number, _ in zip(numbers, _unpacked(row.sentences))))
        self._db().executemany("INSERT INTO claim VALUES (?, ?, ?)", sorted(
            (doc // BLOCK, number, doc) for doc, row in self.tail.items()
            for number in array("I", row.claims)))
        self._flush_bits(_CLAIMS, bits)

    def _flush_words(self) -> None:
        self.tail_of(b"")
        rows = []
        for term, docs in self.tail_words.items():
            pairs = self.tail_pairs.get(term, [])
            if docs[0] // BLOCK == docs[-1] // BLOCK:
                rows.append((docs[0] // BLOCK, term, array("I", docs).tobytes(),
                             array("I", pairs).tobytes()))
                continue
            for block in sorted({doc // BLOCK for doc in docs}):
                some = [doc for doc in docs if doc // BLOCK == block]
                more = [n for pair in zip(pairs[::2], pairs[1::2]) if pair[0] // BLOCK == block
                        for n in pair]
                rows.append((block, term, array("I", some).tobytes(),
                             array("I", more).tobytes()))
        rows.sort()
        self._db().executemany(
            "INSERT INTO word VALUES (?, ?, ?, ?) ON CONFLICT (block, term) DO UPDATE SET "
            "docs = CAST(docs || excluded.docs AS BLOB), "
            "pairs = CAST(pairs || excluded.pairs AS BLOB)", rows)

    def _flush_lengths(self) -> None:
        sizes: dict[int, array] = {}
        for doc, row in self.tail.items():
            start = doc // SMALL * SMALL
            if start not in sizes:
                old = self.sql("SELECT sizes FROM length WHERE start=?", (start,)).fetchone()
                sizes[start] = array("I", old[0] if old else b"")
            sizes[start].extend([0] * (doc - start - len(sizes[start])))
            sizes[start].append(_count(row.terms))
        for start, row in sizes.items():
            self.sql("INSERT OR REPLACE INTO length VALUES (?, ?)", (start, row.tobytes()))

    def _flush_bits(self, kind: int, rows: Mapping[int, Iterable[int]]) -> None:
        parts: dict[int, dict[int, int]] = {}
        for doc, buckets in rows.items():
            start = doc // SMALL * SMALL
            part, bit = parts.setdefault(start, {}), 1 << (doc - start)
            for bucket in buckets:
                part[bucket] = part.get(bucket, 0) | bit
        for start, part in parts.items():
            for at, bits in self.sql("SELECT at, bits FROM slice WHERE at BETWEEN ? AND ?",
                                     (_at(kind, start, 0), _at(kind, start, _ROWS - 1))):
                bucket = at % _ROWS
                if bucket in part:
                    part[bucket] |= int.from_bytes(bits, "little")
            self._db().executemany("INSERT OR REPLACE INTO slice VALUES (?, ?)", (
                (_at(kind, start, bucket), _bytes(bits)) for bucket, bits in sorted(
                    part.items())))

    def _merge(self, kind: int, first: int, end: int) -> None:
        """Join the small bitmaps of each block from *first* below *end*: it is whole now."""
        for block in range(first, end):
            whole: dict[int, int] = {}
            for start in range(block * BLOCK, (block + 1) * BLOCK, SMALL):
                low, high = _at(kind, start, 0), _at(kind, start, _ROWS - 1)
                for at, bits in self.sql("SELECT at, bits FROM slice WHERE at BETWEEN ? AND ?",
                                         (low, high)):
                    whole[at % _ROWS] = whole.get(at % _ROWS, 0) | int.from_bytes(
                        bits, "little") << (start - block * BLOCK)
                self.sql("DELETE FROM slice WHERE at BETWEEN ? AND ?", (low, high))
            self._db().executemany("INSERT INTO slice VALUES (?, ?)", (
                (_at(kind, block * BLOCK, row), _bytes(bits)) for row, bits in sorted(
                    whole.items())))

    def _flush_entities(self) -> None:
        docs = self.texts(self.tail)
        self._db().executemany("INSERT OR IGNORE INTO entity VALUES (?, ?, ?)", sorted(
            (name.casefold(), name, doc) for doc, text in docs.items()
            for name, _ in extract_entities(text)))

    def clear(self) -> None:
        """Empty every table, to be filled again by `add`."""
        for table in _TABLES:
            self.sql(f"DELETE FROM {table}")
        retired = self.retired
        self.forget()
        self.retired, self.known_format = retired + 1, self.format

    # -- reading ------------------------------------------------------------

    def texts(self, docs: Iterable[int]) -> dict[int, str]:
        """Return the texts of some documents."""
        rows = self.sql("SELECT doc, entry FROM memory WHERE doc IN "
                        "(SELECT value FROM json_each(?)) ORDER BY doc", (str([*docs]),))
        return {doc: json.loads(entry)["content"] for doc, entry in rows}

    def lists(self, terms: Iterable[str]) -> dict[str, _List]:
        """Return the lists of those terms that a document has; read when looked at."""
        found: dict[bytes, _List] = {}
        names = {term.encode(*_UTF8): term for term in terms}
        marks = _marks(len(names))
        for block in range(-(-self.flushed // BLOCK)):
            for term, docs, pairs in self.sql(
                    "SELECT term, length(docs), length(pairs) FROM word WHERE block=? AND "
                    f"term IN ({marks})", (block, *names, *[None] * (
                        marks.count("?") - len(names)))):
                entry = found.get(term) or found.setdefault(term, _List(self, term))
                entry.sizes[block] = docs // 4, pairs // 4
        for term in names:
            if self.tail_of(term)[0] and term not in found:
                found[term] = _List(self, term)
        return {names[term]: entry for term, entry in found.items()}

    def parts(self, kind: int) -> Iterator[tuple[int, int]]:
        """Yield (first number, how many) of each part of the bitmaps of a kind."""
        start, end = 0, self.end_of(kind)
        while start < end:
            width = BLOCK if start + BLOCK <= end else SMALL
            yield start, min(width, end - start)
            start += width

    def bitmaps(self, kind: int, start: int, rows: Sequence[int]) -> dict[int, int]:
        """Return {row: bitmap} of one part, and keep them for the next question."""
        known, wanted = self._bitmaps, []
        for row in rows:
            at = _at(kind, start, row)
            if at in known:
                known.move_to_end(at)
            else:
                wanted.append(at)
        if wanted:
            marks = _marks(len(wanted))
            known.update(dict.fromkeys(wanted, 0))
            for at, bits in self.sql(f"SELECT at, bits FROM slice WHERE at IN ({marks})", (
                    *wanted, *[None] * (marks.count("?") - len(wanted)))):
                known[at] = int.from_bytes(bits, "little")
        found = {row: known[_at(kind, start, row)] for row in rows}
        while len(known) > _CACHED:
            known.popitem(last=False)
        return found


class _Row(NamedTuple):
    """A fresh document: its terms, the rows of its pairs, its claims, the number of its first
    sentence, and the buckets of each sentence."""
    terms: bytes
    pairs: bytes
    claims: bytes
    sentence: int
    sentences: bytes


def _packed(sentences: Sequence[Iterable[int]]) -> bytes:
    """Return sets of numbers as uint16, each behind its length."""
    return array("H", [n for buckets in sentences for n in (len(buckets), *sorted(buckets))]
                 ).tobytes()


def _unpacked(data: bytes) -> Iterator[array]:
    numbers, at = array("H", data), 0
    while at < len(numbers):
        end = at + 1 + numbers[at]
        yield numbers[at + 1:end]
        at = end


def _count(terms: bytes) -> int:
    return terms.count(b"\n") + 1 if terms else 0


def _at(kind: int, start: int, row: int) -> int:
    return ((kind << 30) + start) * _ROWS + row


def _bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _marks(count: int) -> str:
    """Return question marks for at least *count* values, of few lengths: statements are kept."""
    return ",".join("?" * (-(-count // 32) * 32 or 32))


def _gram_rows(vector: bytes) -> list[int]:
    """Return the rows of a local vector: its dimensions, and the grade of its largest weight."""
    size = array("d", vector[5:13])
    dims = array("H", vector[13:])
    if not dims:
        return []
    return [*dims, core.SparseIndex.WIDTH + core._peak_grade({0: size[0]})]


class _Names:
    """Document -> id, looked up when asked; `docs` is the way back."""

    def __init__(self, tables: SearchTables) -> None:
        self.tables = tables
        self.known: dict[int, str] = {}
        self.docs: dict[str, int] = {}
        self.sources: dict[str, object] = {}

    def clear(self) -> None:
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


class _List:
    """The documents of one term; `pairs` are (document, tf) where it stands more than once."""

    def __init__(self, tables: SearchTables, term: bytes) -> None:
        self.tables, self.term = tables, term
        self.sizes: dict[int, tuple[int, int]] = {}          # block -> documents, numbers in pairs
        self.tail, self.tail_pairs = tables.tail_of(term)
        self._read: dict[int, tuple[array, array, array]] = {}

    def __len__(self) -> int:
        return sum(size for size, _ in self.sizes.values()) + len(self.tail)

    def block(self, number: int) -> tuple[array, array, array]:
        """Return documents, pairs, and the documents of the pairs, of one block."""
        if number not in self._read:
            row = self.tables.sql("SELECT docs, pairs FROM word WHERE block=? AND term=?",
                                  (number, self.term)).fetchone() if number in self.sizes else (
                                      b"", b"")
            pairs = array("I", row[1])
            self._read[number] = array("I", row[0]), pairs, pairs[::2]
        return self._read[number]

    @functools.cached_property
    def all(self) -> array[int]:
        return self._joined(0, self.tail)

    @functools.cached_property
    def pairs(self) -> array[int]:
        return self._joined(1, self.tail_pairs)

    @property
    def repeats(self) -> bool:
        return bool(self.tail_pairs) or any(pairs for _, pairs in self.sizes.values())

    def _joined(self, which: int, tail: list[int]) -> array[int]:
        parts = [self.block(block)[which] for block in self.sizes]
        return array("I", b"".join([*map(memoryview, parts), array("I", tail).tobytes()]))

    def tf(self, doc: int) -> int:
        """Return how often the term stands in *doc*."""
        if doc >= self.tables.flushed:
            docs, pairs, more = self.tail, self.tail_pairs, self.tail_pairs[::2]
        else:
            docs, pairs, more = self._read.get(doc // BLOCK) or self.block(doc // BLOCK)
        at = bisect_left(docs, doc)
        if at == len(docs) or docs[at] != doc:
            return 0
        at = bisect_left(more, doc) if more else 0
        return pairs[2 * at + 1] if at < len(more) and more[at] == doc else 1

    def __iter__(self) -> Iterator[int]:
        return iter(self.all)

    def __getitem__(self, at: int) -> int:
        return self.all[at]


class _Pairs:
    """The pairs of a term, read only when a search looks into them."""

    def __init__(self, entry: _List) -> None:
        self.entry = entry

    def __bool__(self) -> bool:
        return self.entry.repeats

    def __len__(self) -> int:
        return len(self.entry.pairs)

    def __getitem__(self, at: int | slice) -> object:
        return self.entry.pairs[at]


class _Search(core._Find):
    """The core's search; where few notes are left, a list is asked for them instead of read."""

    def __init__(self, index: _Words, terms: list, accept: Callable[[str], bool] | None,
                 boost: Mapping[int, float]) -> None:
        super().__init__(index, terms, accept, {})
        self.top = max(boost.values(), default=1.0)
        self.factor = lambda doc: boost.get(doc, 1.0)

    def gather(self, term: core._Term, sums: dict[int, float], is_open: bool) -> None:
        if is_open or len(sums) * 64 > len(term.docs):
            super().gather(term, sums, is_open)
            return
        for doc in sums:
            if tf := term.docs.tf(doc):
                sums[doc] += term.weight * self.ratio(doc, tf)

    def ratio(self, doc: int, tf: int) -> float:
        length = self.lengths[doc]
        return self.parts.part(tf, length) / self.parts[length]

    def score(self, doc: int) -> float:
        length, score = self.lengths[doc], 0.0
        for term in self.terms:
            if tf := term.docs.tf(doc):
                score += term.weight * self.parts.part(tf, length)
        return score

    def parts_of(self, docs: Iterable[int]) -> dict[int, list[float]]:
        return {doc: [term.weight * self.parts.part(tf, self.lengths[doc])
                      if (tf := term.docs.tf(doc)) else 0.0 for term in self.terms]
                for doc in sorted(docs)}


class _Words(BM25Index):
    """The core's keyword index over the tables; `boost` of a search goes by document."""
    _finder = _Search

    def __init__(self, tables: SearchTables) -> None:
        how = tables.how
        super().__init__(float(how["bm25_k1"]), float(how["bm25_b"]), tables.tokenize,
                         narrow=core.query_terms if how["stop_words"] else list,
                         spelling=bool(how["spelling"]))
        self.tables, self._keys, self._docs = tables, tables.names, _Docs(tables)
        self._lengths: array | None = None
        self._held: dict[str, _List | None] = {}

    def __len__(self) -> int:
        return self.tables.count

    def search(self, query: str, k: int | None = None, **how: object) -> list:
        self._prepare()
        return super().search(query, k, **how)

    def ceiling(self, query: str) -> float:
        self._prepare()
        return super().ceiling(query)

    def _prepare(self) -> None:
        """Take over the counts of the present state; lists read for another one go."""
        if self._lengths is None:
            self._lengths = self._read_lengths()
        self._held, self._total, self._shortest = {}, self.tables.total, self.tables.shortest

    def _slip(self, term: str) -> str | None:
        self._hold(core._slips(term) if 4 < len(term) <= 32 else ())
        return super()._slip(term)

    def in_context(self, query: str, found: Sequence[tuple[str, float]], **how: object) -> list:
        self._prepare()
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
            sizes.append(_count(row.terms))
        return sizes

    def grow(self, doc: int, terms: bytes) -> None:
        """Note the length of a new document."""
        if self._lengths is not None:
            self._lengths.extend([0] * (doc - len(self._lengths)))
            self._lengths.append(_count(terms))

    def shrink(self, doc: int) -> None:
        """Take the length of a document away."""
        if self._lengths is not None:
            self._lengths[doc] = 0

    def _weigh(self, query: str) -> list[core._Term]:
        self._hold(self._narrow(self._tokenize(query)))
        return super()._weigh(query)

    def _hold(self, terms: Iterable[str]) -> None:
        """Look several terms up at once."""
        wanted = sorted({*terms} - self._held.keys())
        self._held.update({**dict.fromkeys(wanted), **self.tables.lists(wanted)})

    def _number(self, term: str) -> str | None:
        if term not in self._held:
            self._hold([term])
        return None if self._held[term] is None else term

    def _list(self, number: str) -> _List:
        return self._held[number]

    def _pairs(self, number: str) -> _Pairs:
        return _Pairs(self._held[number])

    def _is_alive(self, doc: int) -> bool:
        return doc in self.tables.names.known


class _Docs:
    """Id -> document."""

    def __init__(self, tables: SearchTables) -> None:
        self.tables = tables

    def __getitem__(self, key: str) -> int:
        return self.tables.names.docs[key]


class _Roster:
    def __init__(self, names: _Names) -> None:
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


class _Twins(_Fresh, core.DuplicateIndex):
    kind = _TWINS

    def __init__(self, tables: SearchTables) -> None:
        self.tables, self._roster = tables, _Roster(tables.names)

    def rows(self, doc: int) -> Iterable[int]:
        return array("H", self.tables.tail[doc].pairs)

    def _marked(self, mark: bytes) -> Iterator[int]:
        for doc, in self.tables.sql("SELECT doc FROM memory WHERE mark=? ORDER BY doc",
                                    (mark,)).fetchall():
            yield doc

    def containing(self, text: str) -> Iterator[int]:
        """Yield the documents that may contain *text*, which is normalised; none is missed."""
        self.fill()
        yield from core._documents(self._slices.in_all(core._pair_buckets(text, self.WIDTH)[1]))


class _Claims(_Fresh, core.ConflictIndex):
    """The core's ConflictIndex over the tables; its bitmaps are of sentences."""
    kind = _CLAIMS

    def __init__(self, tables: SearchTables) -> None:
        self.tables, self._roster, self._known = tables, _Roster(tables.names), _Known(self)
        self._sentences = self

    def reset(self) -> None:
        self._slices, self._is_filled = _Slices(self.tables, self.kind, self.WIDTH + self.FLAGS), False
        self.fresh: dict[int, list[int]] = {}      # hash -> fresh documents
        self._of: dict[int, int] = {}              # fresh sentence -> document

    def grow(self, doc: int) -> None:
        if self._is_filled:
            row = self.tables.tail[doc]
            for number in array("I", row.claims):
                self.fresh.setdefault(number, []).append(doc)
            for number, buckets in enumerate(_unpacked(row.sentences), row.sentence):
                self._slices.add(number, buckets)
                self._of[number] = doc

    def shrink(self, doc: int) -> None:
        if self._is_filled:
            row = self.tables.tail[doc]
            for number in array("I", row.claims):
                self.fresh[number].remove(doc)
            for number, _ in enumerate(_unpacked(row.sentences), row.sentence):
                self._slices.remove(number)

    def __getitem__(self, sentence: int) -> int:
        """Return the document of a sentence."""
        if sentence >= self.tables.flushed_sentence:
            return self._of[sentence]
        row = self.tables.sql("SELECT doc FROM sentence WHERE number=?", (sentence,)).fetchone()
        return row[0] if row else -1

    def candidates(self, text: str) -> list[str]:
        self.fill()
        self._known.clear()
        return super().candidates(text)

    def _holders(self, wanted: int) -> list[int]:
        found = self.fresh.get(wanted, [])[:-self.MOST - 1:-1]
        for block in range(-(-self.tables.flushed // BLOCK) - 1, -1, -1):
            if len(found) >= self.MOST:
                break
            found += [doc for doc, in self.tables.sql(
                "SELECT doc FROM claim WHERE block=? AND hash=? ORDER BY doc DESC LIMIT ?",
                (block, wanted, self.MOST - len(found)))]
        return found


class _Known:
    """The hashes that any document has, asked one by one."""

    def __init__(self, claims: _Claims) -> None:
        self.claims = claims
        self._seen: dict[int, bool] = {}

    def clear(self) -> None:
        self._seen.clear()
        blocks = range(-(-self.claims.tables.flushed // BLOCK))
        self._question = ("SELECT EXISTS (SELECT 1 FROM claim WHERE block IN "
                          f"({','.join(map(str, blocks))}) AND hash=?)") if blocks else "SELECT 0*?"

    def __contains__(self, wanted: int) -> bool:
        if wanted not in self._seen:
            self._seen[wanted] = bool(self.claims.fresh.get(wanted)) or bool(
                self.claims.tables.sql(self._question, (wanted,)).fetchone()[0])
        return self._seen[wanted]

    def __rand__(self, some: set[int]) -> set[int]:
        return {number for number in some if number in self}


class _Grams(_Fresh, core.SparseIndex):
    kind = _GRAMS
    local = core.LocalHashVectorizer()

    def __init__(self, tables: SearchTables) -> None:
        self.tables, self._roster = tables, _Roster(tables.names)

    def vector(self, doc: int) -> bytes:
        row = self.tables.sql("SELECT vector FROM gram WHERE doc=?", (doc,)).fetchone()
        return row[0] if row else core._vector_bytes({})

    _data = vector

    def rows(self, doc: int) -> Iterable[int]:
        return _gram_rows(self.vector(doc))

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
        docs.update(doc for doc, in self.tables.sql("SELECT doc FROM entity WHERE fold=?", (fold,)))
        names = self.tables.names
        return sorted(names[doc] for doc in docs)

"""The archive's search: the core's indexes, their lists kept in tables of one SQLite file.

A part of hermes_ext/archive.py. What ranks is the core's own code (BM25Index, SparseIndex,
DuplicateIndex); here stands only where its lists lie. Every indexed text is a document with a
number of its own; a text that changes gets a new one, so a higher number is newer.

    fresh     the last documents, at most some TAIL: their terms and pairs, not yet in the tables
              below. A process reads them into memory, so a write touches one row, not a hundred
    word      (block of BLOCK documents, term) -> how many, the highest tf, documents and
              (document, tf > 1), as uint32
    spread    term -> (block, how many, the highest tf) of each block that is whole, as uint32
    dense     of a block that is whole, a term that stands in DENSE documents or more so many
              times: the documents as bits, in place of those in word
    length    terms of each document, as uint32, SMALL documents a row
    slice     bitmaps: which documents have a pair (twins) or a gram (local vectors), which
              sentences a word (claims); SMALL of them a row, and BLOCK once that many are there
    claim     (block, hash, document): what a text that contradicts it has to meet
    sentence  the document of each sentence
    gram      document -> its local vector
    entity    (folded name, name, document)
    counts    the next number of a document and of a sentence, up to which they are in the
              tables, up to which documents are cut into terms, count, sum of lengths of what is
              cut, and how often a document was taken out: whoever reads another number looks again

A large batch stores records alone: its documents wait uncut, from `cut` up to `next`, until
somebody searches or the store is closed. Then `catch_up` brings them in a chunk at a time; a
process that cannot write cuts them for itself, in memory.

Removing a document takes it out of every list; nothing of it waits to be compacted.
"""
from __future__ import annotations

import functools
import json
import sqlite3
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import hermes_lite as core
from hermes_lite import extract_entities, normalise, tokenize_terms
from hermes_ext.archive_index import (CLAIMS, GRAMS, TWINS, UTF8, Claims, Grams, Graph, Names, Row,
                                      TermList, Twins, Words, count_terms, gram_rows, unpacked)

__all__ = ["Graph", "SCHEMA", "SearchTables", "TABLES"]

_ROWS = 4_096                        # more than the bitmaps of one kind
_CACHED = 6_000                      # bitmaps kept in memory, of up to 8 KB
_NAMES = 20_000                      # ids kept in memory

SCHEMA = """
CREATE TABLE counts (one INTEGER PRIMARY KEY CHECK (one = 1), next INTEGER, sentence INTEGER,
                    flushed INTEGER, flushed_sentence INTEGER, count INTEGER, total INTEGER,
                    shortest INTEGER, retired INTEGER, format TEXT, changes INTEGER,
                    cut INTEGER);
INSERT INTO counts VALUES (1, 0, 0, 0, 0, 0, 0, 4294967295, 0, '', 0, 0);
CREATE TABLE fresh (doc INTEGER PRIMARY KEY, terms BLOB NOT NULL, pairs BLOB NOT NULL,
                    claims BLOB NOT NULL, sentence INTEGER NOT NULL, sentences BLOB NOT NULL);
CREATE TABLE claim (block INTEGER, hash INTEGER, doc INTEGER, PRIMARY KEY (block, hash, doc))
    WITHOUT ROWID;
CREATE TABLE sentence (number INTEGER PRIMARY KEY, doc INTEGER NOT NULL);
CREATE INDEX sentence_doc ON sentence (doc);
CREATE TABLE word (block INTEGER, term BLOB, size INTEGER NOT NULL, most INTEGER NOT NULL,
                   docs BLOB NOT NULL, pairs BLOB NOT NULL, PRIMARY KEY (block, term))
    WITHOUT ROWID;
CREATE TABLE spread (term BLOB PRIMARY KEY, sizes BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE dense (term BLOB, times INTEGER, block INTEGER, bits BLOB NOT NULL,
                    PRIMARY KEY (term, times, block)) WITHOUT ROWID;
CREATE TABLE length (start INTEGER PRIMARY KEY, sizes BLOB NOT NULL);
CREATE TABLE slice (at INTEGER PRIMARY KEY, bits BLOB NOT NULL);
CREATE TABLE gram (doc INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE entity (fold TEXT, name TEXT, doc INTEGER, PRIMARY KEY (fold, name, doc))
    WITHOUT ROWID;
"""
TABLES = ("fresh", "word", "spread", "dense", "length", "slice", "gram", "entity", "claim",
          "sentence")
_STATE = ("next", "sentence", "flushed", "flushed_sentence", "count", "total", "shortest",
          "retired", "known_format", "changes", "cut")


class SearchTables:
    """The indexes of one archive. `read` before a search, `add` and `retire` in a transaction.

    *db* returns the open connection; *how* is the section retrieval of the config.
    """
    BLOCK, SMALL = 65_536, 8_192     # documents; powers of two, the second divides the first
    TAIL = 1_024                     # documents that wait in `fresh` between two commits
    BULK = 8_192                     # … and inside one transaction
    FEW = 256                        # documents that a commit cuts; more wait for a search
    DENSE = 256                      # documents of a list that is better kept as bits

    def __init__(self, db: Callable[[], sqlite3.Connection], how: Mapping[str, object]) -> None:
        self._db, self.how = db, how
        self.format = f"2 stem={how['stem']} grams={how['grams']} cues={how['cues']}"
        self.tokenize = functools.partial(tokenize_terms, stem=bool(how["stem"]),
                                          grams=how["grams"], cues=bool(how["cues"]))
        self.names = Names(self)
        self.words, self.claims = Words(self), Claims(self)
        self.twins, self.grams = Twins(self), Grams(self)
        self.forget()

    def sql(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._db().execute(statement, values)

    # -- state --------------------------------------------------------------

    def forget(self) -> None:
        """Drop all that is held in memory, as after a rollback."""
        self.next = self.flushed = self.count = self.total = self.retired = 0
        self.sentence = self.flushed_sentence = self.changes = self.cut = 0
        self.shortest, self.known_format = 1 << 32, ""
        self._bitmaps: OrderedDict[int, int] = OrderedDict()
        self._reset()

    def _reset(self) -> None:
        """Forget what lies in `fresh` and what hangs on how much is in the tables."""
        self._read_until = 0                       # documents of `fresh` below it are in memory
        self.loose: dict[int, bytes] = {}          # what is cut in memory alone: local vectors
        self.loose_marks: dict[bytes, list[int]] = {}
        self.tail: dict[int, Row] = {}
        self.tail_words: dict[bytes, list[int]] | None = None
        self.tail_pairs: dict[bytes, list[int]] = {}
        self.words.forget()
        for index in (self.twins, self.grams, self.claims):
            index.reset()
        self.names.clear()

    def read(self, *, to_write: bool = False) -> None:
        """Take over what others have committed; one small query when there is nothing."""
        row = dict(zip(_STATE, self.sql("SELECT next, sentence, flushed, flushed_sentence, count, "
                                        "total, shortest, retired, format, changes, cut FROM "
                                        "counts").fetchone()))
        if self.loose and row["changes"] == self.changes and not to_write:
            return
        if row["flushed"] != self.flushed or row["retired"] != self.retired or self.loose:
            if row["retired"] != self.retired:
                self._bitmaps.clear()
            self._forget_open_blocks()
            self._reset()
        if row["changes"] != self.changes or len(self.names.known) > _NAMES:
            self.names.clear()
        vars(self).update(row)
        self.known_format = self.known_format or self.format
        if self._read_until < self.cut:
            for doc, *row in self.sql("SELECT * FROM fresh WHERE doc >= ?", (self._read_until,)):
                self._take(doc, Row(*row))
            self._read_until = self.cut

    @property
    def is_strange(self) -> bool:
        """Whether the tables were filled by another version, or with other settings."""
        return self.known_format != self.format

    @property
    def behind(self) -> int:
        """How many documents wait uncut; one that was removed meanwhile counts."""
        return self.next - self.cut

    def _forget_open_blocks(self) -> None:
        """Drop the bitmaps of blocks that were not whole when they were read."""
        whole = {kind: self.end_of(kind) // self.BLOCK * self.BLOCK
                 for kind in (TWINS, GRAMS, CLAIMS)}
        for at in list(self._bitmaps):
            if at // _ROWS % (1 << 30) >= whole[at // _ROWS >> 30]:
                del self._bitmaps[at]

    def end_of(self, kind: int) -> int:
        """Return up to which number the bitmaps of a kind go."""
        return self.flushed_sentence if kind == CLAIMS else self.flushed

    def _take(self, doc: int, row: Row) -> None:
        self.tail[doc] = row
        self.names.clear()
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
        """Count the change and write the counters; the last statement before a commit."""
        self.changes += 1
        self.names.clear()
        self.sql("UPDATE counts SET next=?, sentence=?, flushed=?, flushed_sentence=?, count=?, "
                 "total=?, shortest=?, retired=?, format=?, changes=?, cut=?",
                 [getattr(self, name) for name in _STATE])

    # -- writing ------------------------------------------------------------

    def add(self) -> int:
        """Return the number of a document to be; its record is stored under it, then it is cut."""
        self.next += 1
        self.count += 1
        return self.next - 1

    def catch_up(self, most: int | None = None, *, loosely: bool = False) -> None:
        """Cut the documents that wait, or the first *most*; *loosely*: in memory alone."""
        end = self.next if most is None else min(self.next, self.cut + most)
        while self.cut < end:
            rows = self.sql("SELECT doc, entry FROM memory WHERE doc >= ? AND doc < ? ORDER BY "
                            "doc LIMIT ?", (self.cut, end, self.TAIL)).fetchall()
            for doc, entry in rows:
                self._cut(doc, json.loads(entry)["content"], loosely)
            self.cut = self._read_until = rows[-1][0] + 1 if len(rows) == self.TAIL else end
            if len(self.tail) >= self.BULK and not loosely:
                self.flush()

    def _cut(self, doc: int, text: str, loosely: bool) -> None:
        tokens, mark = self.tokenize(text), core._fact_mark(text)
        size, buckets = core._pair_buckets(normalise(text), core.DuplicateIndex.WIDTH)
        pairs = array("H", (*buckets, core.DuplicateIndex.WIDTH + core._grade(size))).tobytes()
        vector = core._vector_bytes(self.grams.local.embed_query(text))
        claims, sentences = core._conflict_marks(text)
        row = Row("\n".join(tokens).encode(*UTF8), pairs, claims.tobytes(), self.sentence,
                  _packed(sentences))
        self.sentence, self.total = self.sentence + len(sentences), self.total + len(tokens)
        self.shortest = min(self.shortest, len(tokens))
        if loosely:
            self.loose_marks.setdefault(mark, []).append(doc)
            self.loose[doc] = vector
        else:
            self.sql("INSERT INTO fresh VALUES (?, ?, ?, ?, ?, ?)", (doc, *row))
            self.sql("INSERT INTO gram VALUES (?, ?)", (doc, vector))
            self.sql("UPDATE memory SET mark=? WHERE doc=? AND mark=x''", (mark, doc))
        self._take(doc, row)

    def retire(self, doc: int, text: str) -> None:
        """Take a document out of every list; *text* is what is stored under it."""
        self.count, self.retired = self.count - 1, self.retired + 1
        self.names.clear()
        if doc >= self.cut:
            return
        tokens = self.tokenize(text)
        if doc >= self.flushed:
            self.sql("DELETE FROM fresh WHERE doc = ?", (doc,))
        else:
            for term, tf in Counter(tokens).items():
                self._cut_term(doc, term.encode(*UTF8), tf)
                self.words.drop(term, doc // self.BLOCK)
            self._cut_length(doc)
            self._cut_bits(doc, text)
            self._cut_claims(doc, text)
            self.sql("DELETE FROM entity WHERE doc = ? AND fold IN (SELECT value FROM "
                     "json_each(?))", (doc, core.to_json([name.casefold() for name, _ in
                                                          extract_entities(text)]).decode()))
        self.sql("DELETE FROM gram WHERE doc = ?", (doc,))
        self.total -= len(tokens)
        self.words.shrink(doc)
        if doc in self.tail:
            for index in (self.twins, self.grams, self.claims):
                index.shrink(doc)
            del self.tail[doc]
            self._drop_words(doc, tokens)

    def _drop_words(self, doc: int, tokens: list[str]) -> None:
        for term in {token.encode(*UTF8) for token in tokens} if self.tail_words else ():
            self.tail_words[term].remove(doc)
            if not self.tail_words[term]:
                del self.tail_words[term]
            pairs = self.tail_pairs.get(term, [])
            at = pairs[::2].index(doc) if doc in pairs[::2] else len(pairs)
            del pairs[2 * at:2 * at + 2]

    def _cut_term(self, doc: int, term: bytes, tf: int) -> None:
        key = doc // self.BLOCK, term
        row = self.sql("SELECT docs, pairs FROM word WHERE block=? AND term=?", key).fetchone()
        if row is None:
            return
        docs, pairs = map(functools.partial(array, "I"), row)
        if (at := core._place(docs, doc)) >= 0:
            del docs[at]
        if tf > 1 and (at := core._place(pairs[::2], doc)) >= 0:
            del pairs[2 * at:2 * at + 2]
        self.sql("UPDATE word SET size=size-1, docs=?, pairs=? WHERE block=? AND term=?",
                 (docs.tobytes(), pairs.tobytes(), *key))
        if self.sql("DELETE FROM word WHERE block=? AND term=? AND size=0", key).rowcount:
            self.sql("DELETE FROM dense WHERE block=? AND term=?", key)
        for times, data in self.sql("SELECT times, bits FROM dense WHERE term=? AND times<=? AND "
                                    "block=?", (term, min(tf, 3), key[0])).fetchall():
            bits = bytearray(data)
            bits[doc % self.BLOCK >> 3] &= ~(1 << (doc & 7))
            self.sql("UPDATE dense SET bits=? WHERE term=? AND times=? AND block=?",
                     (bytes(bits), term, times, key[0]))
        if key[0] < self.flushed // self.BLOCK:
            self._cut_spread(*key)

    def _cut_spread(self, block: int, term: bytes) -> None:
        rows = []
        for data, in self.sql("SELECT sizes FROM spread WHERE term=?", (term,)).fetchall():
            sizes = iter(array("I", data))
            rows = [(each, size - (each == block), most) for each, size, most in zip(*[sizes] * 3)]
        sizes = array("I", [n for row in rows if row[1] for n in row])
        self.sql("UPDATE spread SET sizes=? WHERE term=?", (sizes.tobytes(), term))
        self.sql("DELETE FROM spread WHERE term=? AND sizes=x''", (term,))

    def _cut_length(self, doc: int) -> None:
        start = doc // self.SMALL * self.SMALL
        row = self.sql("SELECT sizes FROM length WHERE start=?", (start,)).fetchone()
        sizes = array("I", row[0])
        sizes[doc - start] = 0
        self.sql("UPDATE length SET sizes=? WHERE start=?", (sizes.tobytes(), start))

    def _cut_bits(self, doc: int, text: str) -> None:
        size, buckets = core._pair_buckets(normalise(text), core.DuplicateIndex.WIDTH)
        rows = [(TWINS, row) for row in (*buckets, core.DuplicateIndex.WIDTH
                                          + core._grade(size))]
        rows += [(GRAMS, row) for row in gram_rows(self.grams.vector(doc))]
        for kind, row in rows:
            self._cut_bit(kind, doc, row)

    def _cut_bit(self, kind: int, number: int, row: int) -> None:
        width = self.BLOCK if number < self.end_of(kind) // self.BLOCK * self.BLOCK else self.SMALL
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
            (doc // self.BLOCK, number, doc) for number in hashes))
        numbers = [n for n, in self.sql("SELECT number FROM sentence WHERE doc=? ORDER BY number",
                                        (doc,))]
        for number, buckets in zip(numbers, sentences):
            for bucket in buckets:
                self._cut_bit(CLAIMS, number, bucket)
        self.sql("DELETE FROM sentence WHERE doc=?", (doc,))

    def flush(self) -> None:
        """Bring what waits in `fresh` into the tables; one pass over each."""
        if self.tail:
            self._flush_words()
            self._flush_lengths()
            self._flush_bits(TWINS, {doc: array("H", row.pairs) for doc, row in
                                      self.tail.items()})
            self._flush_bits(GRAMS, {doc: gram_rows(self.grams.vector(doc))
                                      for doc in self.tail})
            self._flush_claims()
            self._flush_entities()
            self.sql("DELETE FROM fresh")
        for block in range(self.flushed // self.BLOCK, self.cut // self.BLOCK):
            self._close_words(block)
        for kind, end in ((TWINS, self.cut), (GRAMS, self.cut), (CLAIMS, self.sentence)):
            self._merge(kind, self.end_of(kind) // self.BLOCK, end // self.BLOCK)
        self._forget_open_blocks()
        self.flushed, self.flushed_sentence = self.cut, self.sentence
        self._reset()
        self._read_until = self.cut

    def _flush_claims(self) -> None:
        bits: dict[int, Sequence[int]] = {}
        for doc, row in self.tail.items():
            numbers = range(row.sentence, self.sentence)
            bits.update(zip(numbers, unpacked(row.sentences)))
            self._db().executemany("INSERT INTO sentence VALUES (?, ?)", (
                (number, doc) for number, _ in zip(numbers, unpacked(row.sentences))))
        self._db().executemany("INSERT INTO claim VALUES (?, ?, ?)", sorted(
            (doc // self.BLOCK, number, doc) for doc, row in self.tail.items()
            for number in array("I", row.claims)))
        self._flush_bits(CLAIMS, bits)

    def _flush_words(self) -> None:
        self.tail_of(b"")
        rows = []
        for term, docs in self.tail_words.items():
            pairs = self.tail_pairs.get(term, [])
            for block in range(docs[0] // self.BLOCK, docs[-1] // self.BLOCK + 1):
                if some := [doc for doc in docs if doc // self.BLOCK == block]:
                    more = [n for pair in zip(pairs[::2], pairs[1::2])
                            if pair[0] // self.BLOCK == block for n in pair]
                    rows.append((block, term, len(some), max(more[1::2], default=1),
                                 array("I", some).tobytes(), array("I", more).tobytes()))
        rows.sort()
        self._db().executemany(
            "INSERT INTO word VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (block, term) DO UPDATE SET "
            "size = size + excluded.size, most = max(most, excluded.most), "
            "docs = CAST(docs || excluded.docs AS BLOB), "
            "pairs = CAST(pairs || excluded.pairs AS BLOB)", rows)

    def _close_words(self, block: int) -> None:
        """Turn the long lists of a block that is whole into bits, and note who is in it."""
        start, size = block * self.BLOCK, self.BLOCK // 8
        self._db().executemany(
            "INSERT INTO spread VALUES (?, ?) ON CONFLICT (term) DO UPDATE SET "
            "sizes = CAST(sizes || excluded.sizes AS BLOB)",
            [(term, array("I", (block, *row)).tobytes()) for term, *row in self.sql(
                "SELECT term, size, most FROM word WHERE block=? ORDER BY term", (block,))])
        for term, in self.sql("SELECT term FROM word WHERE block=? AND size>=?",
                              (block, self.DENSE)).fetchall():
            docs, pairs = map(functools.partial(array, "I"), self.sql(
                "SELECT docs, pairs FROM word WHERE block=? AND term=?", (block, term)).fetchone())
            for times in (1, 2, 3):
                some = docs if times == 1 else core._repeated(pairs, times)
                if len(some) >= self.DENSE:
                    bits = core._row_of([doc - start for doc in some], self.BLOCK)
                    self.sql("INSERT INTO dense VALUES (?, ?, ?, ?)",
                             (term, times, block, bytes(bits[:size])))
            self.sql("UPDATE word SET docs=x'' WHERE block=? AND term=?", (block, term))

    def _flush_lengths(self) -> None:
        sizes: dict[int, array] = {}
        for doc, row in self.tail.items():
            start = doc // self.SMALL * self.SMALL
            if start not in sizes:
                old = self.sql("SELECT sizes FROM length WHERE start=?", (start,)).fetchone()
                sizes[start] = array("I", old[0] if old else b"")
            sizes[start].extend([0] * (doc - start - len(sizes[start])))
            sizes[start].append(count_terms(row.terms))
        for start, row in sizes.items():
            self.sql("INSERT OR REPLACE INTO length VALUES (?, ?)", (start, row.tobytes()))

    def _flush_bits(self, kind: int, rows: Mapping[int, Iterable[int]]) -> None:
        parts: dict[int, dict[int, int]] = {}
        for doc, buckets in rows.items():
            start = doc // self.SMALL * self.SMALL
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
            for start in range(block * self.BLOCK, (block + 1) * self.BLOCK, self.SMALL):
                low, high = _at(kind, start, 0), _at(kind, start, _ROWS - 1)
                for at, bits in self.sql("SELECT at, bits FROM slice WHERE at BETWEEN ? AND ?",
                                         (low, high)):
                    whole[at % _ROWS] = whole.get(at % _ROWS, 0) | int.from_bytes(
                        bits, "little") << (start - block * self.BLOCK)
                self.sql("DELETE FROM slice WHERE at BETWEEN ? AND ?", (low, high))
            self._db().executemany("INSERT INTO slice VALUES (?, ?)", (
                (_at(kind, block * self.BLOCK, row), _bytes(bits)) for row, bits in sorted(
                    whole.items())))

    def _flush_entities(self) -> None:
        docs = self.texts(self.tail)
        self._db().executemany("INSERT OR IGNORE INTO entity VALUES (?, ?, ?)", sorted(
            (name.casefold(), name, doc) for doc, text in docs.items()
            for name, _ in extract_entities(text)))

    def clear(self) -> None:
        """Empty every table, to be filled again."""
        for table in TABLES:
            self.sql(f"DELETE FROM {table}")
        retired, changes = self.retired, self.changes
        self.forget()
        self.retired, self.changes, self.known_format = retired + 1, changes, self.format

    # -- reading ------------------------------------------------------------

    def texts(self, docs: Iterable[int]) -> dict[int, str]:
        """Return the texts of some documents."""
        rows = self.sql("SELECT doc, entry FROM memory WHERE doc IN "
                        "(SELECT value FROM json_each(?)) ORDER BY doc", (str([*docs]),))
        return {doc: json.loads(entry)["content"] for doc, entry in rows}

    def lists(self, terms: Iterable[str]) -> dict[str, TermList]:
        """Return the lists of those terms that a document has; read when looked at."""
        found: dict[bytes, TermList] = {}
        names = {term.encode(*UTF8): term for term in terms}
        marks = _marks(len(names))
        padded = *names, *[None] * (marks.count("?") - len(names))
        for term, data in self.sql(f"SELECT term, sizes FROM spread WHERE term IN ({marks})",
                                   padded):
            entry, sizes = found.setdefault(term, TermList(self, term)), array("I", data)
            entry.sizes.update(zip(sizes[::3], zip(sizes[1::3], sizes[2::3])))
        block = self.flushed // self.BLOCK
        for term, *row in self.sql("SELECT term, size, most FROM word WHERE block=? AND "
                                   f"term IN ({marks})", (block, *padded)):
            found.setdefault(term, TermList(self, term)).sizes[block] = tuple(row)
        for term in names:
            if self.tail_of(term)[0] and term not in found:
                found[term] = TermList(self, term)
        return {names[term]: entry for term, entry in found.items()}

    def parts(self, kind: int) -> Iterator[tuple[int, int]]:
        """Yield (first number, how many) of each part of the bitmaps of a kind."""
        start, end = 0, self.end_of(kind)
        while start < end:
            width = self.BLOCK if start + self.BLOCK <= end else self.SMALL
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


def _packed(sentences: Sequence[Iterable[int]]) -> bytes:
    """Return sets of numbers as uint16, each behind its length."""
    return array("H", [n for buckets in sentences for n in (len(buckets), *sorted(buckets))]
                 ).tobytes()


def _at(kind: int, start: int, row: int) -> int:
    return ((kind << 30) + start) * _ROWS + row


def _bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _marks(count: int) -> str:
    """Return question marks for at least *count* values, of few lengths: statements are kept."""
    return ",".join("?" * (-(-count // 32) * 32 or 32))

"""The archive's search: the postings of the core's keyword index, in tables of one SQLite file.

A part of archive/store.py. What ranks is the core's BM25Index; here stands where its lists
lie. Every indexed text is a document with a number of its own; a text that changes gets a new
one, so a higher number is newer.

    fresh       the last documents, at most some TAIL: their terms and labels, not yet in the tables below. A
                process reads them into memory, so a write touches one row, not a hundred
    word        (block of BLOCK documents, term) -> how many, the highest count in one document,
                the documents as uint32, and (document, count > 1) as uint32
    vocabulary  every word of an alphabet that stands in `word`
    length      terms of each document as uint32, LENGTHS documents a row
    entity      (folded name, name, document)
    counts      the next number of a document, up to which they are in the tables (flushed), up to
                which they are cut into terms (cut), how many there are, the sum of their lengths,
                a length that none falls below, and how often one was taken out or anything was
                changed: whoever reads another number looks again

A large batch stores records alone: its documents wait uncut, from `cut` up to `next`, until
somebody searches or the store is closed. Then `catch_up` brings them in a chunk at a time; a
process that cannot write cuts them for itself, in memory. Removing a document takes it out of
every list; nothing of it waits to be compacted.
"""
from __future__ import annotations

import functools
import json
import sqlite3
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import hermes_lite as core
from hermes_lite import BM25Index, GraphStore, extract_entities, is_gram, tokenize_terms
from hermes_ext.archive.zstd import entry_of

__all__ = ["Graph", "SCHEMA", "SearchTables", "TABLES", "TablePostings"]

SCHEMA = """
CREATE TABLE counts (one INTEGER PRIMARY KEY CHECK (one = 1), next INTEGER, flushed INTEGER,
                     cut INTEGER, count INTEGER, total INTEGER, shortest INTEGER,
                     retired INTEGER, changes INTEGER, format TEXT);
INSERT INTO counts VALUES (1, 0, 0, 0, 0, 0, 4294967295, 0, 0, '');
CREATE TABLE fresh (doc INTEGER PRIMARY KEY, terms BLOB NOT NULL);
CREATE TABLE word (block INTEGER, term TEXT, size INTEGER NOT NULL, most INTEGER NOT NULL,
                   docs BLOB NOT NULL, repeats BLOB NOT NULL, PRIMARY KEY (block, term))
    WITHOUT ROWID;
CREATE TABLE vocabulary (term TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE length (start INTEGER PRIMARY KEY, sizes BLOB NOT NULL);
CREATE TABLE entity (fold TEXT, name TEXT, doc INTEGER, PRIMARY KEY (fold, name, doc))
    WITHOUT ROWID;
"""
TABLES = ("fresh", "word", "vocabulary", "length", "entity")
LENGTHS = 8_192                      # documents of one row of `length`
_STATE = ("next", "flushed", "cut", "count", "total", "shortest", "retired", "changes",
          "known_format")
_COLUMNS = "next, flushed, cut, count, total, shortest, retired, changes, format"
_NAMES = 20_000                      # ids kept in memory
_LISTS = 500                         # lists kept in memory
_MANY = 64                           # terms that are looked up in the vocabulary first


class SearchTables:
    """The tables of one archive. `read` before a search, `add` and `retire` in a transaction.

    *db* returns the open connection; *how* is the section retrieval of the config. `index` is
    the keyword index over the tables.
    """
    BLOCK = 65_536                   # documents of one list
    TAIL = 1_024                     # documents that wait in `fresh` between two commits
    BULK = 8_192                     # … and inside one transaction
    FEW = 256                        # documents that a commit cuts; more wait for a search

    def __init__(self, db: Callable[[], sqlite3.Connection], how: Mapping[str, object]) -> None:
        self._db = db
        self.format = f"3 stem={how['stem']} grams={how['grams']} cues={how['cues']}"
        self.tokenize = functools.partial(tokenize_terms, stem=bool(how["stem"]),
                                          grams=how["grams"], cues=bool(how["cues"]))
        self.postings = TablePostings(self)
        self.index = BM25Index(
            float(how["bm25_k1"]), float(how["bm25_b"]), self.tokenize, postings=self.postings,
            select=core.query_terms if how["stop_words"] else list,
            spelling=bool(how["spelling"]))
        self.forget()

    def sql(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._db().execute(statement, values)

    # -- state --------------------------------------------------------------

    def forget(self) -> None:
        """Drop all that is held in memory, as after a rollback."""
        self.next = self.flushed = self.cut = 0
        self.count = self.total = self.retired = self.changes = 0
        self.shortest, self.known_format = 1 << 32, ""
        self._empty_tail()

    def _empty_tail(self) -> None:
        self._read_until = 0                       # documents of `fresh` below it are in memory
        self.tail: dict[int, list[str]] = {}       # document -> its terms
        self.is_loose = False                      # some of it was cut in memory alone
        self.postings.forget()

    def read(self, *, to_write: bool = False) -> None:
        """Take over what others have committed; one small query when there is nothing."""
        row = dict(zip(_STATE, self.sql(f"SELECT {_COLUMNS} FROM counts").fetchone()))
        is_same = row["changes"] == self.changes
        if is_same and self.is_loose and not to_write:
            return
        if self.is_loose or (row["flushed"], row["retired"]) != (self.flushed, self.retired):
            self._empty_tail()
        if not is_same:
            self.postings.forget_state()
        vars(self).update(row)
        self.known_format = self.known_format or self.format
        if self._read_until < self.cut:
            for doc, terms in self.sql("SELECT doc, terms FROM fresh WHERE doc >= ?",
                                       (self._read_until,)):
                self._take(doc, _split(terms))
            self._read_until = self.cut

    @property
    def is_strange(self) -> bool:
        """Whether the tables were filled by another version, or with other settings."""
        return self.known_format != self.format

    @property
    def behind(self) -> int:
        """How many documents wait uncut; one that was removed meanwhile counts."""
        return self.next - self.cut

    def _take(self, doc: int, terms: list[str]) -> None:
        self.tail[doc] = terms
        self.postings.grow(doc, terms)

    def save(self) -> None:
        """Count the change and write the counters; the last statement before a commit."""
        self.changes += 1
        self.postings.forget_state()
        values = [getattr(self, name) for name in _STATE]
        columns = ", ".join(f"{name}=?" for name in _COLUMNS.split(", "))
        self.sql(f"UPDATE counts SET {columns}", values)

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
                self._cut(doc, entry_of(entry)["content"], loosely=loosely)
            is_last = len(rows) < self.TAIL
            self.cut = self._read_until = end if is_last else rows[-1][0] + 1
            if len(self.tail) >= self.BULK and not loosely:
                self.flush()

    def _cut(self, doc: int, text: str, *, loosely: bool) -> None:
        terms = [*self.tokenize(text), *core.text_labels(text)]
        length = _length(terms)
        self.total += length
        self.shortest = min(self.shortest, length)
        if loosely:
            self.is_loose = True
        else:
            self.sql("INSERT INTO fresh VALUES (?, ?)", (doc, _join(terms)))
        self._take(doc, terms)

    def retire(self, doc: int, text: str) -> None:
        """Take a document out of every list; *text* is what is stored under it."""
        self.count -= 1
        self.retired += 1
        self.postings.forget_state()
        if doc >= self.cut:
            return
        terms = [*self.tokenize(text), *core.text_labels(text)]
        self.total -= _length(terms)
        if doc >= self.flushed:
            self.sql("DELETE FROM fresh WHERE doc=?", (doc,))
            if doc in self.tail:
                del self.tail[doc]
                self.postings.shrink(doc, terms)
            return
        for term in dict.fromkeys(terms):
            self._cut_out(doc, term)
        self._cut_length(doc)
        self.postings.shrink(doc, ())
        folds = json.dumps([name.casefold() for name, _ in extract_entities(text)])
        self.sql("DELETE FROM entity WHERE doc=? AND fold IN (SELECT value FROM json_each(?))",
                 (doc, folds))

    def _cut_out(self, doc: int, term: str) -> None:
        """Take a document out of the list of one term; an empty list goes, and the word with it."""
        block = doc // self.BLOCK
        row = self.sql("SELECT docs, repeats FROM word WHERE block=? AND term=?",
                       (block, _sql(term))).fetchone()
        if row is None:
            return
        docs, repeats = array("I", row[0]), _pairs(row[1])
        at = bisect_left(docs, doc)
        if at < len(docs) and docs[at] == doc:
            del docs[at]
        repeats.pop(doc, None)
        if docs:
            self.sql("UPDATE word SET size=?, docs=?, repeats=? WHERE block=? AND term=?",
                     (len(docs), docs.tobytes(), _packed(repeats), block, _sql(term)))
            return
        self.sql("DELETE FROM word WHERE block=? AND term=?", (block, _sql(term)))
        if not any(self.sql("SELECT 1 FROM word WHERE block=? AND term=?",
                            (other, _sql(term))).fetchone() for other in self.blocks()):
            self.sql("DELETE FROM vocabulary WHERE term=?", (_sql(term),))

    def _cut_length(self, doc: int) -> None:
        start = doc // LENGTHS * LENGTHS
        sizes = array("I", self.sql("SELECT sizes FROM length WHERE start=?",
                                    (start,)).fetchone()[0])
        sizes[doc - start] = 0
        self.sql("UPDATE length SET sizes=? WHERE start=?", (sizes.tobytes(), start))

    def flush(self) -> None:
        """Bring what waits in `fresh` into the tables; one pass over each."""
        if self.tail:
            lists = self.postings.tail_lists()
            self._flush_words(lists)
            self._db().executemany(
                "INSERT OR IGNORE INTO vocabulary VALUES (?)",
                [(_sql(term),) for term in sorted(lists) if _is_word(term)])
            self._flush_lengths()
            self._flush_entities()
            self.sql("DELETE FROM fresh")
        self.flushed = self.cut
        self._empty_tail()
        self._read_until = self.cut

    def _flush_words(self, lists: Mapping[str, list[int]]) -> None:
        rows = []
        for term, docs in lists.items():
            repeats = self.postings.tail_repeats(term)
            for block in sorted({doc // self.BLOCK for doc in docs}):
                some = [doc for doc in docs if doc // self.BLOCK == block]
                more = {doc: repeats[doc] for doc in some if doc in repeats}
                rows.append((block, _sql(term), len(some), max(more.values(), default=1),
                             array("I", some).tobytes(), _packed(more)))
        rows.sort()
        self._db().executemany(
            "INSERT INTO word VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (block, term) DO UPDATE SET "
            "size = size + excluded.size, most = max(most, excluded.most), "
            "docs = CAST(docs || excluded.docs AS BLOB), "
            "repeats = CAST(repeats || excluded.repeats AS BLOB)", rows)

    def _flush_lengths(self) -> None:
        rows: dict[int, array[int]] = {}
        for doc in sorted(self.tail):
            start = doc // LENGTHS * LENGTHS
            if start not in rows:
                old = self.sql("SELECT sizes FROM length WHERE start=?", (start,)).fetchone()
                rows[start] = array("I", old[0] if old else b"")
            _set_at(rows[start], doc - start, _length(self.tail[doc]))
        self._db().executemany("INSERT OR REPLACE INTO length VALUES (?, ?)", [
            (start, sizes.tobytes()) for start, sizes in rows.items()])

    def _flush_entities(self) -> None:
        texts = self.texts(self.tail)
        self._db().executemany("INSERT OR IGNORE INTO entity VALUES (?, ?, ?)", sorted(
            (name.casefold(), name, doc) for doc, text in texts.items()
            for name, _ in extract_entities(text)))

    def clear(self) -> None:
        """Empty every table, to be filled again."""
        for table in TABLES:
            self.sql(f"DELETE FROM {table}")
        retired, changes = self.retired, self.changes
        self.forget()
        self.retired, self.changes, self.known_format = retired + 1, changes, self.format

    # -- reading ------------------------------------------------------------

    def blocks(self) -> range:
        """Return the numbers of the blocks that have lists."""
        return range(-(-self.flushed // self.BLOCK))

    def texts(self, docs: Iterable[int]) -> dict[int, str]:
        """Return the texts of some documents."""
        rows = self.sql("SELECT doc, entry FROM memory WHERE doc IN "
                        "(SELECT value FROM json_each(?)) ORDER BY doc", (str([*docs]),))
        return {doc: entry_of(entry)["content"] for doc, entry in rows}


class TablePostings:
    """The core's Postings over SearchTables: what lies in the tables, and what is fresh."""

    def __init__(self, tables: SearchTables) -> None:
        self.tables = tables

    def forget(self) -> None:
        """Drop all that was read."""
        self._lengths: array[int] | None = None
        self._tail: dict[str, list[int]] | None = None
        self._tail_repeats: dict[str, dict[int, int]] = {}
        self.forget_state()

    def forget_state(self) -> None:
        """Drop what holds for one state of the file: names and lists."""
        self._names: dict[int, str] = {}
        self._docs: dict[str, int] = {}
        self._sources: dict[str, object] = {}
        self._lists: dict[str, TableTerm | None] = {}

    def __len__(self) -> int:
        return self.tables.count

    def total_length(self) -> int:
        return self.tables.total

    def shortest(self) -> int:
        return self.tables.shortest

    def lengths(self) -> Sequence[int]:
        if self._lengths is None:
            sizes = array("I")
            for start, data in self.tables.sql("SELECT start, sizes FROM length ORDER BY start"):
                sizes.extend([0] * (start - len(sizes)))
                sizes.frombytes(data)
            for doc in sorted(self.tables.tail):
                _set_at(sizes, doc, _length(self.tables.tail[doc]))
            self._lengths = sizes
        return self._lengths

    def lists(self, terms: Iterable[str]) -> dict[str, TableTerm]:
        wanted = list(dict.fromkeys(terms))
        unknown = [term for term in wanted if term not in self._lists]
        if len(self._lists) > _LISTS:
            self._lists.clear()
            unknown = wanted
        if len(unknown) > _MANY:
            unknown = self._known_words(unknown)
        if unknown:
            self._lists.update(self._read(unknown))
        return {term: found for term in wanted if (found := self._lists.get(term))}

    def _read(self, terms: Sequence[str]) -> dict[str, TableTerm | None]:
        """Read of some terms how many documents have them."""
        found: dict[str, TableTerm | None] = dict.fromkeys(terms)
        names = {_sql(term): term for term in terms}
        tail = self.tail_lists()
        for block in self.tables.blocks():
            for name, size, most in self.tables.sql(
                    "SELECT term, size, most FROM word WHERE block=? AND term IN "
                    f"({_marks(names)})", (block, *names)):
                term = names[name]
                if found[term] is None:
                    found[term] = TableTerm(self.tables, term)
                found[term].blocks[block] = size, most
        for term in terms:
            if term in tail and found[term] is None:
                found[term] = TableTerm(self.tables, term)
        return found

    def _known_words(self, terms: Sequence[str]) -> list[str]:
        """Return those of many terms that any document has."""
        tail = self.tail_lists()
        known = {term for term in terms if term in tail or not _is_word(term)}
        for start in range(0, len(terms), 500):
            some = [_sql(term) for term in terms[start:start + 500]]
            known.update(term for term, in self.tables.sql(
                f"SELECT term FROM vocabulary WHERE term IN ({_marks(some)})", some))
        return [term for term in terms if term in known]

    def terms_containing(self, pieces: Sequence[str]) -> list[str]:
        condition = " OR ".join("instr(term, ?)" for _ in pieces)
        saved = self.tables.sql(f"SELECT term FROM vocabulary WHERE {condition}",
                                [*map(_sql, pieces)]) if pieces else ()
        found = dict.fromkeys(term for term, in saved)
        found.update(dict.fromkeys(term for term in self.tail_lists() if _is_word(term)
                                   and any(piece in term for piece in pieces)))
        return [*found]

    def terms_beginning(self, start: str) -> list[str]:
        first, tail = _sql(start), self.tail_lists()
        saved = self.tables.sql("SELECT term FROM vocabulary WHERE term>=? AND term<?",
                                (first, first + chr(0x10ffff)))
        found = dict.fromkeys(term for term, in saved)
        found.update(dict.fromkeys(term for term in tail if _is_word(term)
                                   and term.startswith(start)))
        return [*found]

    def keys(self, docs: Iterable[int]) -> dict[int, str]:
        wanted = list(docs)
        self._note("doc", str([doc for doc in wanted if doc not in self._names]))
        return {doc: self._names[doc] for doc in wanted if doc in self._names}

    def docs(self, keys: Iterable[str]) -> dict[str, int]:
        wanted = list(keys)
        self._note("id", json.dumps([key for key in wanted if key not in self._docs]))
        return {key: self._docs[key] for key in wanted if key in self._docs}

    def sources(self, keys: Iterable[str]) -> dict[str, object]:
        """Return the sources of those keys that there are."""
        return {key: self._sources[key] for key in self.docs(keys)}

    def _note(self, column: str, values: str) -> None:
        """Read the names and sources of some documents at once."""
        if values == "[]":
            return
        if len(self._names) > _NAMES:
            self._names, self._docs, self._sources = {}, {}, {}
        for doc, memory_id, source in self.tables.sql(
                f"SELECT doc, id, source FROM memory WHERE {column} IN (SELECT value FROM "
                "json_each(?))", (values,)):
            self._names[doc] = memory_id
            self._docs[memory_id] = doc
            self._sources[memory_id] = source

    # -- fresh documents ----------------------------------------------------

    def tail_lists(self) -> dict[str, list[int]]:
        """Return the documents of each term that wait in `fresh`, ascending."""
        if self._tail is None:
            self._tail, self._tail_repeats = {}, {}
            for doc, terms in self.tables.tail.items():
                self._add_to_tail(doc, terms)
        return self._tail

    def tail_repeats(self, term: str) -> dict[int, int]:
        """Return {document: count} of the fresh documents that have a term more than once."""
        self.tail_lists()
        return self._tail_repeats.get(term, {})

    def _add_to_tail(self, doc: int, terms: Iterable[str]) -> None:
        for term, count in Counter(terms).items():
            self._tail.setdefault(term, []).append(doc)
            if count > 1:
                self._tail_repeats.setdefault(term, {})[doc] = count

    def grow(self, doc: int, terms: Sequence[str]) -> None:
        """Take a fresh document in."""
        self.forget_state()
        if self._lengths is not None:
            _set_at(self._lengths, doc, _length(terms))
        if self._tail is not None:
            self._add_to_tail(doc, terms)

    def shrink(self, doc: int, terms: Iterable[str]) -> None:
        """Take a document out; *terms* are those of a fresh one."""
        if self._lengths is not None and doc < len(self._lengths):
            self._lengths[doc] = 0
        for term in dict.fromkeys(terms) if self._tail is not None else ():
            self._tail[term].remove(doc)
            self._tail_repeats.get(term, {}).pop(doc, None)
            if not self._tail[term]:
                del self._tail[term]


class TableTerm:
    """The core's TermPostings of one term, its documents read when they are asked for."""

    def __init__(self, tables: SearchTables, term: str) -> None:
        self.tables = tables
        self.term = term
        self.blocks: dict[int, tuple[int, int]] = {}       # block -> size, most
        self._tail = list(tables.postings.tail_lists().get(term, ()))
        self._tail_repeats = dict(tables.postings.tail_repeats(term))

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.blocks.values()) + len(self._tail)

    @property
    def most(self) -> int:
        return max([1, *(most for _, most in self.blocks.values()),
                    *self._tail_repeats.values()])

    @functools.cached_property
    def docs(self) -> array[int]:
        docs = array("I")
        for data in self._column("docs", self.blocks):
            docs.frombytes(data)
        docs.extend(self._tail)
        return docs

    @functools.cached_property
    def repeats(self) -> dict[int, int]:
        repeats: dict[int, int] = {}
        several = [block for block, (_, most) in self.blocks.items() if most > 1]
        for data in self._column("repeats", several):
            repeats.update(_pairs(data))
        repeats.update(self._tail_repeats)
        return repeats

    def _column(self, name: str, blocks: Iterable[int]) -> Iterator[bytes]:
        for block in sorted(blocks):
            yield self.tables.sql(f"SELECT {name} FROM word WHERE block=? AND term=?",
                                  (block, _sql(self.term))).fetchone()[0]


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
        return sorted(self.tables.postings.keys(docs).values())


def _is_word(term: str) -> bool:
    return not is_gram(term) and term[0] not in core.LABELS


def _length(terms: Iterable[str]) -> int:
    """Return how many terms of a document are no labels."""
    return sum(term[0] not in core.LABELS for term in terms)


def _sql(term: str) -> str:
    """Return a term as SQLite takes it: no lone surrogate."""
    return term.encode("utf-8", "replace").decode()


def _join(terms: Iterable[str]) -> bytes:
    return "\n".join(terms).encode("utf-8", "replace")


def _split(data: bytes) -> list[str]:
    return data.decode().split("\n") if data else []


def _packed(repeats: Mapping[int, int]) -> bytes:
    return array("I", [number for pair in repeats.items() for number in pair]).tobytes()


def _pairs(data: bytes) -> dict[int, int]:
    numbers = iter(array("I", data))
    return dict(zip(numbers, numbers))


def _set_at(sizes: array[int], at: int, size: int) -> None:
    """Set one place of an array, which grows by zeros up to it."""
    sizes.extend([0] * (at + 1 - len(sizes)))
    sizes[at] = size


def _marks(values: Sequence[object] | Mapping[str, object]) -> str:
    return ",".join("?" * len(values))

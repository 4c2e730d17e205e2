"""The archive's keyword index: the postings of the core's BM25Index, in tables of the database.

Each indexed text is a document with a number of its own. A text that changes gets a new number,
so a higher one is newer. In the tables a list of documents is a BLOB of uint32.

word       (block of BLOCK documents, term) ->
               size       how many documents have the term
               most       the highest count of it in one document
               docs       these documents, ascending
               repeats    (document, count) of each that has it more than once
               is_word    1, and 0 for a gram or a label, which no search for a part looks at.
                          The index `vocabulary` has the words alone, without their lists
length     the number of terms of each document, LENGTHS documents a row
entity     (folded name, name, document), for the graph
fresh      the newest documents: their terms, one a line, not in the tables above yet. A process
           holds them in memory (Tail), so that a write touches one row and not a hundred
counts     one row, see Counts

A large batch stores records alone: its documents wait, from `indexed` up to `next`, until a
search or `close` brings them into `fresh` and then into the tables, a chunk at a time. A process
that cannot write indexes them in memory alone. A document that is removed leaves every list at
once.
"""
from __future__ import annotations

import functools
import sqlite3
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import hermes_lite as core
from hermes_lite import BM25Index, GraphStore, extract_entities, is_gram, tokenize_terms
from hermes_ext.archive.connection import json_of, storable
from hermes_ext.archive.scoring import ArrayScorer
from hermes_ext.archive.zstd import entry_of

__all__ = ["Counts", "Graph", "SEARCH_SCHEMA", "SEARCH_TABLES", "SearchTables", "TablePostings",
           "Tail"]

SEARCH_SCHEMA = """
CREATE TABLE counts (one INTEGER PRIMARY KEY CHECK (one = 1), next INTEGER, flushed INTEGER,
                     indexed INTEGER, count INTEGER, total INTEGER, shortest INTEGER,
                     retired INTEGER, changes INTEGER, format TEXT);
INSERT INTO counts VALUES (1, 0, 0, 0, 0, 0, 4294967296, 0, 0, '');
CREATE TABLE fresh (doc INTEGER PRIMARY KEY, terms TEXT NOT NULL);
CREATE TABLE word (block INTEGER, term TEXT, is_word INTEGER NOT NULL, size INTEGER NOT NULL,
                   most INTEGER NOT NULL, docs BLOB NOT NULL, repeats BLOB NOT NULL,
                   PRIMARY KEY (block, term)) WITHOUT ROWID;
CREATE INDEX vocabulary ON word (term, is_word) WHERE is_word;
CREATE TABLE length (start INTEGER PRIMARY KEY, sizes BLOB NOT NULL);
CREATE TABLE entity (fold TEXT, name TEXT, doc INTEGER, PRIMARY KEY (fold, name, doc))
    WITHOUT ROWID;
"""
SEARCH_TABLES = ("fresh", "word", "length", "entity")
LENGTHS = 8_192                      # documents of one row of `length`
_MOST_LISTS = 500                    # that are kept in memory
_MANY = 64                           # terms that are looked up in `vocabulary` first


@dataclass
class Counts:
    """The row of `counts`: what a process compares to see whether another has written."""
    next: int = 0                    # the number of the next document
    flushed: int = 0                 # documents below it are in the tables
    indexed: int = 0                 # … and below it in `fresh` at least
    count: int = 0                   # documents there are
    total: int = 0                   # terms of all indexed ones together
    shortest: int = 1 << 32          # a length that none falls below
    retired: int = 0                 # how often a document was taken out
    changes: int = 0                 # how often anything was changed
    format: str = ""                 # version and settings of the terms; "" before the first


_COLUMNS = ", ".join(field.name for field in fields(Counts))
_FORMAT = "4"                        # of the terms and lists; another is made anew


class Tail:
    """The documents of `fresh`, in memory: their terms, and for each term who has it."""

    def __init__(self) -> None:
        self.terms: dict[int, list[str]] = {}      # document -> its terms
        self._docs: dict[str, list[int]] | None = None         # made when a search asks
        self._repeats: dict[str, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self.terms)

    def add(self, doc: int, terms: list[str]) -> None:
        """Add a document, newer than all others."""
        self.terms[doc] = terms
        if self._docs is not None:
            self._list(doc, terms)

    def remove(self, doc: int) -> None:
        """Take a document out, if it is there."""
        terms = self.terms.pop(doc, ())
        if self._docs is None:
            return
        for term in set(terms):
            self._docs[term].remove(doc)
            self._repeats.get(term, {}).pop(doc, None)
            if not self._docs[term]:
                del self._docs[term]

    def docs(self) -> dict[str, list[int]]:
        """Return the documents of each term, ascending."""
        if self._docs is None:
            self._docs = {}
            for doc, terms in self.terms.items():
                self._list(doc, terms)
        return self._docs

    def repeats(self, term: str) -> dict[int, int]:
        """Return {document: count} of those that have a term more than once."""
        self.docs()
        return self._repeats.get(term, {})

    def _list(self, doc: int, terms: Iterable[str]) -> None:
        """Add a document to the lists of its terms."""
        assert self._docs is not None
        for term, count in Counter(terms).items():
            self._docs.setdefault(term, []).append(doc)
            if count > 1:
                self._repeats.setdefault(term, {})[doc] = count


class SearchTables:
    """Keeps the tables of one archive up to date with its records.

    `read` comes before a search; `add`, `retire`, `catch_up` and `flush` belong into a transaction
    that ends with `save`. *db* returns the open connection, *settings* is the section retrieval
    of the config. `index` is the keyword index over the tables.
    """
    BLOCK = 65_536                   # documents of one list
    TAIL = 1_024                     # documents that stay in `fresh` after a commit
    BULK = 8_192                     # … and inside one transaction
    FEW = 256                        # documents that a commit indexes; more wait for a search

    def __init__(self, db: Callable[[], sqlite3.Connection],
                 settings: Mapping[str, Any]) -> None:
        self._db = db
        stem = bool(settings["stem"])
        grams = settings["grams"]
        cues = bool(settings["cues"])
        self._tokenize = functools.partial(tokenize_terms, stem=stem, grams=grams, cues=cues)
        self._format = f"{_FORMAT} stem={stem} grams={grams} cues={cues}"
        self.postings = TablePostings(self)
        self.index = BM25Index(
            float(settings["bm25_k1"]), float(settings["bm25_b"]), self._tokenize,
            postings=self.postings, scorer=ArrayScorer, spelling=bool(settings["spelling"]),
            select=core.query_terms if settings["stop_words"] else list)
        self.forget()

    def sql(self, statement: str, *values: object) -> sqlite3.Cursor:
        """Run a statement."""
        return self._db().execute(statement, values)

    # -- state --------------------------------------------------------------

    def forget(self) -> None:
        """Drop all that is held in memory, as after a rollback."""
        self.counts = Counts()
        self._forget_tail()

    def _forget_tail(self) -> None:
        """Drop the documents of `fresh` from memory; `read` reads them again."""
        self.tail = Tail()
        self._read_until = 0                       # documents of `fresh` below it are in `tail`
        self._is_ahead = False                     # some were indexed in memory alone
        self.postings.forget()

    def read(self, *, to_write: bool = False) -> None:
        """Take over what others have committed; one small query when there is nothing.

        Before a write (*to_write*) what was indexed in memory alone is dropped.
        """
        stored = Counts(*self.sql(f"SELECT {_COLUMNS} FROM counts").fetchone())
        before = self.counts
        is_unchanged = stored.changes == before.changes
        if is_unchanged and self._is_ahead and not to_write:
            return
        is_tail_outdated = (stored.flushed, stored.retired) != (before.flushed, before.retired)
        if self._is_ahead or is_tail_outdated:
            self._forget_tail()
        if not is_unchanged:
            self.postings.forget_lists()
        self.counts = stored
        if self._read_until < stored.indexed:
            for doc, terms in self.sql("SELECT doc, terms FROM fresh WHERE doc >= ?",
                                       self._read_until):
                self._hold(doc, terms.split("\n") if terms else [])
            self._read_until = stored.indexed

    def _hold(self, doc: int, terms: list[str]) -> None:
        """Keep a document of `fresh` in memory."""
        self.tail.add(doc, terms)
        self.postings.set_length(doc, _length(terms))

    @property
    def is_outdated(self) -> bool:
        """Whether the tables were filled by another version, or with other settings."""
        return self.counts.format not in ("", self._format)

    @property
    def waiting(self) -> int:
        """How many documents are not indexed yet; one that was removed meanwhile counts."""
        return self.counts.next - self.counts.indexed

    def save(self) -> None:
        """Count the change and write the counts; the last statement before a commit."""
        self.counts.changes += 1
        self.counts.format = self._format
        self.postings.forget_lists()
        marks = ", ".join("?" for _ in fields(Counts))
        self.sql(f"UPDATE counts SET ({_COLUMNS}) = ({marks})", *astuple(self.counts))

    # -- documents ----------------------------------------------------------

    def add(self) -> int:
        """Return the number of a new document: its record is stored under it, then indexed."""
        doc = self.counts.next
        self.counts.next += 1
        self.counts.count += 1
        return doc

    def catch_up(self, most: int | None = None, *, in_memory: bool = False) -> None:
        """Index the documents that wait, or the first *most* of them.

        *in_memory*: for this process alone, which cannot write.
        """
        counts = self.counts
        end = counts.next if most is None else min(counts.next, counts.indexed + most)
        while counts.indexed < end:
            rows = self.sql("SELECT doc, entry FROM memory WHERE doc >= ? AND doc < ? "
                            "ORDER BY doc LIMIT ?", counts.indexed, end, self.TAIL).fetchall()
            for doc, entry in rows:
                self._index(doc, entry_of(entry)["content"], in_memory=in_memory)
            is_last = len(rows) < self.TAIL
            counts.indexed = self._read_until = end if is_last else rows[-1][0] + 1
            if len(self.tail) >= self.BULK and not in_memory:
                self.flush()

    def _index(self, doc: int, text: str, *, in_memory: bool) -> None:
        """Add a document to the tail, and to the table `fresh` unless *in_memory*."""
        terms = self._terms_of(text)
        length = _length(terms)
        self.counts.total += length
        self.counts.shortest = min(self.counts.shortest, length)
        if in_memory:
            self._is_ahead = True
        else:
            self.sql("INSERT INTO fresh VALUES (?, ?)", doc, "\n".join(terms))
        self.postings.forget_lists()
        self._hold(doc, terms)

    def _terms_of(self, text: str) -> list[str]:
        """Return the terms of a text and its labels."""
        terms = [*self._tokenize(text), *core.text_labels(text)]
        return [storable(term) for term in terms]

    def retire(self, doc: int, text: str) -> None:
        """Take a document out of every list; *text* is the one stored under it."""
        self.counts.count -= 1
        self.counts.retired += 1
        self.postings.forget_lists()
        if doc >= self.counts.indexed:
            return
        terms = self._terms_of(text)
        self.counts.total -= _length(terms)
        self.postings.set_length(doc, 0)
        if doc >= self.counts.flushed:
            self.sql("DELETE FROM fresh WHERE doc=?", doc)
            self.tail.remove(doc)
            return
        for term in dict.fromkeys(terms):
            self._take_off_list(doc, term)
        self._clear_length(doc)
        self._remove_entities(doc, text)

    def _remove_entities(self, doc: int, text: str) -> None:
        folds = json_of(name.casefold() for name, _ in extract_entities(text))
        self.sql("DELETE FROM entity WHERE doc=? AND fold IN (SELECT value FROM json_each(?))",
                 doc, folds)

    def _take_off_list(self, doc: int, term: str) -> None:
        """Take a document off the list of a term; an empty list goes."""
        place = doc // self.BLOCK, term
        row = self.sql("SELECT docs, repeats FROM word WHERE block=? AND term=?",
                       *place).fetchone()
        if row is None:
            return
        docs = array("I", row[0])
        at = bisect_left(docs, doc)
        if at < len(docs) and docs[at] == doc:
            del docs[at]
        repeats = _unpack_pairs(row[1])
        repeats.pop(doc, None)
        if docs:
            self.sql("UPDATE word SET size=?, docs=?, repeats=? WHERE block=? AND term=?",
                     len(docs), docs.tobytes(), _pack_pairs(repeats), *place)
        else:
            self.sql("DELETE FROM word WHERE block=? AND term=?", *place)

    def _clear_length(self, doc: int) -> None:
        """Write 0 as the length of a document that goes."""
        start = doc // LENGTHS * LENGTHS
        row = self.sql("SELECT sizes FROM length WHERE start=?", start).fetchone()
        sizes = array("I", row[0])
        sizes[doc - start] = 0
        self.sql("UPDATE length SET sizes=? WHERE start=?", sizes.tobytes(), start)

    # -- tables -------------------------------------------------------------

    def flush(self) -> None:
        """Bring the documents of `fresh` into the tables; one pass over each."""
        if self.tail:
            self._flush_words()
            self._flush_lengths()
            self._flush_entities()
            self.sql("DELETE FROM fresh")
        self.counts.flushed = self.counts.indexed
        self._forget_tail()
        self._read_until = self.counts.indexed

    def _flush_words(self) -> None:
        """Append the tail's documents to the lists; they are newer than all that stand there."""
        rows = []
        for term, docs in self.tail.docs().items():
            repeats = self.tail.repeats(term)
            for block in sorted({doc // self.BLOCK for doc in docs}):
                here = [doc for doc in docs if doc // self.BLOCK == block]
                repeats_here = {doc: repeats[doc] for doc in here if doc in repeats}
                most = max(repeats_here.values(), default=1)
                rows.append((block, term, _is_word(term), len(here), most,
                             array("I", here).tobytes(), _pack_pairs(repeats_here)))
        rows.sort()
        self._db().executemany(
            "INSERT INTO word VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (block, term) DO UPDATE "
            "SET size = size + excluded.size, most = max(most, excluded.most), "
            "docs = CAST(docs || excluded.docs AS BLOB), "
            "repeats = CAST(repeats || excluded.repeats AS BLOB)", rows)

    def _flush_lengths(self) -> None:
        """Write the lengths of the tail's documents into their rows."""
        rows: dict[int, array[int]] = {}
        for doc in sorted(self.tail.terms):
            start = doc // LENGTHS * LENGTHS
            if start not in rows:
                old = self.sql("SELECT sizes FROM length WHERE start=?", start).fetchone()
                rows[start] = array("I", old[0] if old else b"")
            _set_at(rows[start], doc - start, _length(self.tail.terms[doc]))
        self._db().executemany("INSERT OR REPLACE INTO length VALUES (?, ?)", [
            (start, sizes.tobytes()) for start, sizes in rows.items()])

    def _flush_entities(self) -> None:
        """Note which names the texts of the tail's documents mention."""
        texts = self.texts(self.tail.terms)
        self._db().executemany("INSERT OR IGNORE INTO entity VALUES (?, ?, ?)", sorted(
            (name.casefold(), name, doc) for doc, text in texts.items()
            for name, _ in extract_entities(text)))

    def clear(self) -> None:
        """Empty every table, to be filled again; other processes see it by `retired`."""
        for table in SEARCH_TABLES:
            self.sql(f"DELETE FROM {table}")
        before = self.counts
        self.forget()
        self.counts.retired = before.retired + 1
        self.counts.changes = before.changes

    def blocks(self) -> range:
        """Return the numbers of the blocks that have lists."""
        return range(-(-self.counts.flushed // self.BLOCK))

    def texts(self, docs: Iterable[int]) -> dict[int, str]:
        """Return the texts of some documents, ascending."""
        rows = self.sql("SELECT doc, entry FROM memory WHERE doc IN "
                        "(SELECT value FROM json_each(?)) ORDER BY doc", json_of(docs))
        return {doc: entry_of(entry)["content"] for doc, entry in rows}


class TablePostings:
    """The core's Postings over SearchTables: the lists in the tables and those of the tail."""

    def __init__(self, tables: SearchTables) -> None:
        self.tables = tables

    def forget(self) -> None:
        """Drop all that was read."""
        self._lengths: array[int] | None = None
        self.forget_lists()

    def forget_lists(self) -> None:
        """Drop the lists, which hold for one state of the file."""
        self._lists: dict[str, TableTerm | None] = {}

    def __len__(self) -> int:
        return self.tables.counts.count

    def total_length(self) -> int:
        return self.tables.counts.total

    def shortest(self) -> int:
        return self.tables.counts.shortest

    def lengths(self) -> Sequence[int]:
        """Return the length of every document, by its number; 0 for one that is gone."""
        if self._lengths is None:
            sizes = array("I")
            for start, data in self.tables.sql("SELECT start, sizes FROM length ORDER BY start"):
                sizes.extend([0] * (start - len(sizes)))       # rows that are all gone
                sizes.frombytes(data)
            for doc, terms in sorted(self.tables.tail.terms.items()):
                _set_at(sizes, doc, _length(terms))
            self._lengths = sizes
        return self._lengths

    def set_length(self, doc: int, length: int) -> None:
        """Note the length of a document that is new, or 0 for one that was taken out."""
        if self._lengths is not None:
            _set_at(self._lengths, doc, length)

    def lists(self, terms: Iterable[str]) -> dict[str, TableTerm]:
        """Return the lists of those terms that some document has; they stay in memory."""
        wanted = list(dict.fromkeys(terms))
        if len(self._lists) > _MOST_LISTS:
            self._lists.clear()
        unread = [term for term in wanted if term not in self._lists]
        if unread:
            self._lists.update(dict.fromkeys(unread))          # None: no document has it
            if len(unread) > _MANY:                # most are misspellings that no document has
                unread = self._known(unread)
            self._lists.update(self._read(unread))
        found = {}
        for term in wanted:
            postings = self._lists[term]
            if postings is not None:
                found[term] = postings
        return found

    def _known(self, terms: Sequence[str]) -> list[str]:
        """Return those of some terms that may have a list: the known words, and all else."""
        rows = self.tables.sql("SELECT DISTINCT term FROM word WHERE is_word AND term IN "
                               "(SELECT value FROM json_each(?))", json_of(terms))
        known = {term for term, in rows}
        fresh = self.tables.tail.docs()
        return [term for term in terms if term in known or term in fresh or not _is_word(term)]

    def _read(self, terms: Sequence[str]) -> dict[str, TableTerm]:
        """Return the lists of those of some terms that there are."""
        places: dict[str, dict[int, tuple[int, int]]] = {}
        for block in self.tables.blocks():
            for term, size, most in self.tables.sql(
                    "SELECT term, size, most FROM word WHERE block=? AND term IN "
                    "(SELECT value FROM json_each(?))", block, json_of(terms)):
                places.setdefault(term, {})[block] = size, most
        fresh = self.tables.tail.docs()
        return {term: TableTerm(self.tables, term, places.get(term, {}))
                for term in terms if term in places or term in fresh}

    def terms_containing(self, pieces: Sequence[str]) -> list[str]:
        """Return the words that contain one of some pieces."""
        if not pieces:
            return []
        condition = " OR ".join("instr(term, ?)" for _ in pieces)
        rows = self.tables.sql(f"SELECT DISTINCT term FROM word WHERE is_word AND ({condition})",
                               *map(storable, pieces))
        found = dict.fromkeys(term for term, in rows)
        for term in self.tables.tail.docs():
            if _is_word(term) and any(piece in term for piece in pieces):
                found[term] = None
        return list(found)

    def terms_beginning(self, start: str) -> list[str]:
        """Return the words that begin with *start*."""
        first = storable(start)
        rows = self.tables.sql("SELECT DISTINCT term FROM word WHERE is_word AND term >= ? AND "
                               "term < ?", first, first + chr(0x10ffff))
        found = dict.fromkeys(term for term, in rows)
        for term in self.tables.tail.docs():
            if _is_word(term) and term.startswith(start):
                found[term] = None
        return list(found)

    def keys(self, docs: Iterable[int]) -> dict[int, str]:
        return self._fields("doc", "id", docs)

    def docs(self, keys: Iterable[str]) -> dict[str, int]:
        return self._fields("id", "doc", keys)

    def sources(self, keys: Iterable[str]) -> dict[str, str | None]:
        """Return the sources of those keys that there are."""
        return self._fields("id", "source", keys)

    def _fields(self, name: str, wanted: str, values: Iterable[Any]) -> dict[Any, Any]:
        """Return {value: wanted field} of the memories whose field *name* is one of *values*."""
        values = list(values)
        found = dict(self.tables.sql(
            f"SELECT {name}, {wanted} FROM memory WHERE {name} IN (SELECT value FROM "
            "json_each(?))", json_of(values)))
        return {value: found[value] for value in values if value in found}


class TableTerm:
    """The core's TermPostings of one term, its documents read when they are asked for.

    *places* says for each block with a list its size, and the highest count in a document.
    """

    def __init__(self, tables: SearchTables, term: str,
                 places: Mapping[int, tuple[int, int]]) -> None:
        self.tables = tables
        self.term = term
        self.places = places
        self._fresh_docs = list(tables.tail.docs().get(term, ()))
        self._fresh_repeats = dict(tables.tail.repeats(term))
        self.size = sum(size for size, _ in places.values()) + len(self._fresh_docs)
        self.most = max([1, *(most for _, most in places.values()),
                         *self._fresh_repeats.values()])

    @functools.cached_property
    def docs(self) -> array[int]:
        docs = array("I")
        for data in self._column("docs", self.places):
            docs.frombytes(data)
        docs.extend(self._fresh_docs)
        return docs

    @functools.cached_property
    def repeats(self) -> dict[int, int]:
        repeats: dict[int, int] = {}
        blocks = [block for block, (_, most) in self.places.items() if most > 1]
        for data in self._column("repeats", blocks):
            repeats.update(_unpack_pairs(data))
        repeats.update(self._fresh_repeats)
        return repeats

    def _column(self, name: str, blocks: Iterable[int]) -> Iterator[bytes]:
        for block in sorted(blocks):
            yield self.tables.sql(f"SELECT {name} FROM word WHERE block=? AND term=?",
                                  block, self.term).fetchone()[0]


class Graph:
    """The answers of the core's GraphStore, asked of the tables."""

    def __init__(self, tables: SearchTables) -> None:
        self.tables = tables
        self._fresh = GraphStore()                 # of the documents that are in no table yet
        for doc, text in tables.texts(tables.tail.terms).items():
            self._fresh.add(doc, text)

    def top(self, count: int) -> list[tuple[str, str, int]]:
        """Return (name, type, memories) of the most mentioned entities; ties by name."""
        rows = self.tables.sql("SELECT name, count(*) FROM entity GROUP BY name")
        counts: Counter[str] = Counter(dict(rows))
        for name, entity in self._fresh.entities.items():
            counts[name] += len(entity["memory_ids"])
        best = sorted(counts.items(), key=lambda row: (-row[1], row[0]))[:count]
        return [(name, dict(extract_entities(name)).get(name, "name"), n) for name, n in best]

    def memories(self, name: str) -> list[str]:
        """Return the ids that mention *name*, ascending; case does not matter."""
        fold = name.casefold()
        docs = {doc for doc, in self.tables.sql("SELECT doc FROM entity WHERE fold=?", fold)}
        for known, entity in self._fresh.entities.items():
            if known.casefold() == fold:
                docs.update(entity["memory_ids"])
        return sorted(self.tables.postings.keys(docs).values())


def _is_word(term: str) -> bool:
    return not is_gram(term) and term[0] not in core.LABELS


def _length(terms: Iterable[str]) -> int:
    """Return how many terms of a document are no labels."""
    return sum(term[0] not in core.LABELS for term in terms)


def _pack_pairs(repeats: Mapping[int, int]) -> bytes:
    """Return {document: count} as a BLOB: document, count, document, count …"""
    return array("I", [number for pair in repeats.items() for number in pair]).tobytes()


def _unpack_pairs(data: bytes) -> dict[int, int]:
    numbers = array("I", data)
    return dict(zip(numbers[::2], numbers[1::2]))


def _set_at(sizes: array[int], at: int, size: int) -> None:
    """Set one place of an array, which grows by zeros up to it."""
    sizes.extend([0] * (at + 1 - len(sizes)))
    sizes[at] = size

"""The records of an archive, and their tags."""
from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import hermes_lite as core
from hermes_lite import Memory, UsageError, from_json, to_json
from hermes_ext.archive.connection import storable
from hermes_ext.archive.file import ArchiveFile, rescuing
from hermes_ext.archive.search import SearchTables
from hermes_ext.archive.vectors import ArchiveVectors
from hermes_ext.archive.zstd import compressed, entry_of, plain

__all__ = ["HotDocuments", "RecordTable"]

_CHUNK = 4_096                       # records that are read at a time


class RecordTable:
    """The tables `memory` and `tag`.

    *tables* and *vectors* are told of each text that is new or goes.
    """

    def __init__(self, file: ArchiveFile, tables: SearchTables, vectors: ArchiveVectors,
                 config: Mapping[str, Any]) -> None:
        self.file = file
        self.hot = HotDocuments(file, config["retrieval"])
        self._tables = tables
        self._config = config
        self._vectors = vectors

    # -- reading ------------------------------------------------------------

    @rescuing
    def ids(self) -> list[str]:
        """Return every id, oldest first as stored."""
        return [row[0] for row in self.file.rows("SELECT id FROM memory ORDER BY seq")]

    @rescuing
    def entry(self, memory_id: str) -> dict[str, Any] | None:
        """Return the fields of a memory unchecked, None where there is none of this id."""
        row = self.file.row("SELECT entry FROM memory WHERE id=?", memory_id)
        return entry_of(row[0]) if row else None

    def entries(self) -> Iterator[str]:
        """Yield every record as text, oldest first as stored."""
        last = 0
        while rows := self._entries_after(last):
            last = rows[-1][0]
            yield from (entry for _, entry in rows)

    @rescuing
    def _entries_after(self, seq: int) -> list[tuple[int, str]]:
        rows = self.file.rows("SELECT seq, entry FROM memory WHERE seq > ? ORDER BY seq LIMIT ?",
                              seq, _CHUNK)
        return [(seq, plain(entry)) for seq, entry in rows]

    @rescuing
    def count(self) -> int:
        """Return how many memories there are."""
        return self.file.row("SELECT count FROM counts")[0]

    @rescuing
    def has(self, memory_id: str) -> bool:
        """Tell whether there is a memory of this id."""
        return self.file.row("SELECT 1 FROM memory WHERE id=?", memory_id) is not None

    def size(self) -> int:
        """Return the bytes of all records."""
        return self.file.row("SELECT coalesce(sum(length(entry)), 0) FROM memory")[0]

    @rescuing
    def made_between(self, first: datetime, last: datetime) -> list[str]:
        """Return the ids of memories whose created_at lies in [first, last), newest first."""
        rows = self.file.rows(
            "SELECT id FROM memory WHERE made >= ? AND made < ? ORDER BY substr(made, 1, 25) "
            "DESC, id DESC", core.iso(first), core.iso(last))
        return [memory_id for memory_id, in rows]

    @rescuing
    def tagged(self, tags: Sequence[str], most: int | None) -> list[str]:
        """Return the *most* newest ids that have all *tags*; the rarest tag is gone through."""
        wanted = self._rarest_first([storable(tag) for tag in core.tag_forms(tags)])
        if not wanted:
            return []
        others = " AND EXISTS (SELECT 1 FROM tag WHERE tag=? AND at=one.at AND seq=one.seq)"
        limit = -1 if most is None else most       # -1: no limit, to SQLite
        rows = self.file.rows(
            "SELECT id FROM tag AS one CROSS JOIN memory USING (seq) WHERE tag=?"
            f"{others * (len(wanted) - 1)} ORDER BY at DESC, id DESC LIMIT ?", *wanted, limit)
        return [memory_id for memory_id, in rows]

    def _rarest_first(self, tags: list[str]) -> list[str]:
        """Order tags by how many memories have them.

        Counting a common tag to its end would cost more than the search: all are counted up to
        a limit, which rises until one is below it.
        """
        if len(tags) < 2:
            return tags
        for limit in (250, 1_000, 4_000, 16_000):
            counts = {tag: self._count_tagged(tag, limit) for tag in tags}
            tags = sorted(tags, key=counts.__getitem__)
            if counts[tags[0]] < limit:
                break
        return tags

    def _count_tagged(self, tag: str, limit: int) -> int:
        """Return how many memories have a tag; *limit* where there are more."""
        count, = self.file.row("SELECT count(*) FROM (SELECT 1 FROM tag WHERE tag=? LIMIT ?)",
                               tag, limit)
        return count

    # -- changing -----------------------------------------------------------

    def put(self, memory: Memory) -> None:
        """Add a memory, or replace the one with its id; UsageError when no file can hold it."""
        try:
            entry = to_json(memory.entry())
            memory = Memory.from_entry(from_json(entry))
        except (ValueError, TypeError, RecursionError) as problem:
            raise UsageError(f"this memory cannot be stored: {problem}") from None
        self.file.change("put")
        old = self.file.row("SELECT seq, doc, entry FROM memory WHERE id=?", memory.id)
        fields = [memory.access_count, storable(memory.created_at),
                  memory.source and storable(memory.source), self._form(entry.decode())]
        if old is None:
            seq, doc = self._insert(memory.id, fields)
        else:
            seq, doc = self._update(memory, fields, old)
        self.hot.note(doc, memory.access_count)
        if memory.tags:
            at = _seconds(memory.created_at)
            self.file.db().executemany("INSERT OR IGNORE INTO tag VALUES (?, ?, ?)", (
                (storable(tag), at, seq) for tag in core.tag_forms(memory.tags)))

    def _insert(self, memory_id: str, fields: Sequence[object]) -> tuple[int, int]:
        """Add a row, whose text and vector wait to be indexed; return (seq, doc)."""
        doc = self._tables.add()
        seq = self.file.db().execute(
            "INSERT INTO memory (accesses, made, source, entry, doc, id) "
            "VALUES (?, ?, ?, ?, ?, ?)", (*fields, doc, memory_id)).lastrowid
        self._vectors.expect(seq, is_new=True)
        return seq, doc

    def _update(self, memory: Memory, fields: Sequence[object],
                old: tuple[int, int, str | bytes]) -> tuple[int, int]:
        """Replace the row *old* (seq, doc, entry), without its tags; return (seq, doc).

        Another text gets a new document, which waits to be indexed, and a new vector.
        """
        seq, old_doc, old_entry = old
        doc = self._new_document(old_doc, entry_of(old_entry)["content"], memory.content)
        self.file.row("UPDATE memory SET accesses=?, made=?, source=?, entry=?, doc=? "
                      "WHERE id=?", *fields, doc, memory.id)
        if doc != old_doc:
            self._vectors.expect(seq, is_new=False)
        self.file.row("DELETE FROM tag WHERE seq=?", seq)
        return seq, doc

    def _new_document(self, doc: int, before: str, after: str) -> int:
        """Return the number under which a text is indexed: its own, where it stays the same."""
        if before == after:
            return doc
        self._tables.retire(doc, before)
        self.hot.note(doc, 0)
        return self._tables.add()

    def delete(self, memory_id: str) -> str | None:
        """Delete a memory and return its text, None where there is none of this id."""
        self.file.change("delete")
        row = self.file.row("SELECT seq, doc, entry FROM memory WHERE id=?", memory_id)
        if row is None:
            return None
        seq, doc, entry = row
        text = entry_of(entry)["content"]
        self._tables.retire(doc, text)
        self.file.row("DELETE FROM memory WHERE seq=?", seq)
        self.hot.note(doc, 0)
        return text

    def count_accesses(self, memory_ids: Iterable[str], moment: datetime) -> None:
        """Count an access of each of these memories."""
        for memory_id in memory_ids:
            row = self.file.row("SELECT doc, entry FROM memory WHERE id=?", memory_id)
            if row is None:
                continue
            doc, stored = row
            entry = core.count_access(entry_of(stored))
            entry["last_accessed"] = core.iso(moment)
            text = to_json(entry).decode()
            # A recall keeps the record's form: it must work where no package is installed.
            self.file.row("UPDATE memory SET entry=?, accesses=? WHERE id=?",
                          text if isinstance(stored, str) else compressed(text),
                          entry["access_count"], memory_id)
            self.hot.note(doc, entry["access_count"])

    def _form(self, entry: str) -> str | bytes:
        """Return a record in the form that storage.compress asks for."""
        return compressed(entry) if self._config["storage"]["compress"] == "zstd" else entry

    def store_by_setting(self) -> None:
        """Write every record in the form that storage.compress asks for."""
        last = 0
        while rows := self.file.rows("SELECT seq, entry FROM memory WHERE seq > ? ORDER BY seq "
                                     "LIMIT ?", last, _CHUNK):
            last = rows[-1][0]
            for seq, entry in rows:
                form = self._form(plain(entry))
                if form != entry:
                    self.file.row("UPDATE memory SET entry=? WHERE seq=?", form, seq)

    def index_all(self) -> None:
        """Empty the indexes; every text waits to be indexed again."""
        self._tables.clear()
        self.file.row("UPDATE memory SET doc = -1 - seq")      # no number is taken meanwhile
        rows = self.file.rows("SELECT seq FROM memory ORDER BY seq")
        self.file.db().executemany("UPDATE memory SET doc=? WHERE seq=?", (
            (self._tables.add(), seq) for seq, in rows))
        self.hot.forget()


class HotDocuments:
    """The documents of hot memories, and by what their scores are multiplied.

    They are held in memory: with 100,000 of them, reading them for each search would take longer
    than the search.
    """

    def __init__(self, file: ArchiveFile, settings: Mapping[str, Any]) -> None:
        self._file = file
        self._threshold = settings["hot_threshold"]
        self._boost = float(settings["hot_boost"])
        self._boosts: dict[int, float] | None = None           # None: not read yet
        self._version = -1                         # PRAGMA data_version when they were read

    def boosts(self) -> dict[int, float]:
        """Return {document: factor}, read again when another process has written."""
        version, = self._file.row("PRAGMA data_version")
        if self._boosts is None or version != self._version:
            rows = self._file.rows("SELECT doc FROM memory WHERE accesses > 0 AND accesses >= ?",
                                   self._threshold)
            self._boosts = dict.fromkeys((doc for doc, in rows), self._boost)
            self._version = version
        return self._boosts

    def note(self, doc: int, accesses: int) -> None:
        """Note how often a document was accessed; 0 for one that goes."""
        if self._boosts is not None:
            self._boosts.pop(doc, None)
            if accesses >= self._threshold:
                self._boosts[doc] = self._boost

    def forget(self) -> None:
        """Drop what is held in memory."""
        self._boosts = None


@functools.lru_cache(1_024)
def _seconds(created_at: str) -> int:
    """Return a time as seconds since 1970; one that cannot be read is before all others."""
    moment = core.parse_time(created_at)
    return int(moment.timestamp()) if moment else -1

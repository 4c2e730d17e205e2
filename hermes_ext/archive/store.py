"""Archive: all memories in one SQLite file, for 10,000 of them and more.

    hermes_lite.py migrate --to archive      hermes_lite.py migrate --to files

`memory_archive.db` in the data root holds the records, the search indexes, the vectors and what
was forgotten, with its key: copying this one file, while no process has it open, is a complete
move. While one has, what it wrote in the last second may still be in `memory_archive.db-wal`, and
a copy taken in the middle of a write is torn: `backup NAME.db` makes a whole one at any time.
(Logs, states of jobs and `.personal_key` are other systems' files beside it, as with files.)
A root with such a file and no index.json uses it; a new root does with `storage.backend: archive`
in config.yaml. Answers, ranking and promises are those of the store of files:

    kill       a transaction is one of SQLite's (WAL, synchronous=FULL): whole, or not there
    processes  one writes at a time, each sees what the others have committed; a reader waits only
               to bring a large batch into the indexes, or cuts it in memory
    forgotten  deleted bytes are overwritten (secure_delete) and the log is emptied; a keyed hash
               stays. A reader that is busy then leaves its old pages in the log until it ends
    damage     a file that SQLite cannot read is set aside; records are read from its pages, from
               a Markdown mirror or a daily backup in the same root, in this order. So they are
               where the file is missing or empty; what follows a damaged place in the log is
               read, a log that belongs to another file is left out, and both are said
    moves      a process that has the file open follows one that is put in its place, and writes
               one that was deleted again; when the memories moved into files, it gets ConfigError
    backups    of up to 32 MB of records a copy is kept in backups/ on the first write of a day;
               above that use `backup`, or copy the file

Not there: encryption (refused with HERMES_ENCRYPT=on; use an encrypted disk, or files) and the
Markdown mirror (`export --format markdown` writes one). Access counts are not synced to the disk.
2 to 6 KB a memory, most of it indexes: `storage.compress: zstd` halves the record, which was
6 % (Chinese and English, 6.1 KB) to 17 % (English, 2.1 KB) of the file at 5,000 memories of 300
characters. Every thousandth write takes some tenths of a second: it brings the newest
thousand into the indexes (archive/search.py says how). A transaction of more than 256 writes
leaves that to the next search, or to `close`: its records are on the disk at once, and found by
id, tag and date. `list`, `stats`, `rooms` and `prune` read every record: 2 to 5 s for 100,000.
"""
from __future__ import annotations

import contextlib
import functools
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import hermes_lite as core
from hermes_lite import (Config, ConfigError, DamagedData, Memory, MissingPackage, UsageError,
                         from_json, normalise, redact, to_json, utc_now)
from hermes_ext.archive import wal
from hermes_ext.archive.file import ArchiveFile
from hermes_ext.archive.tables import (CHUNK, FILE, ArchiveVectors, TombstoneTable, connect, is_sound,
                                       mended, uri_of, whole)
from hermes_ext.archive.rescue import Rescue, facts, records, tombstones
from hermes_ext.archive.search import Graph, SearchTables
from hermes_ext.archive.zstd import check_compressed, check_package, compressed, entry_of, plain

__all__ = ["ArchiveStore", "FILE", "check_package", "open_store", "read_copy"]

_DAILY = 32_000_000                  # bytes of records; above, no copy is made by itself


def open_store(root: Path, config: Config, *,
               clock: Callable[[], datetime] = utc_now) -> ArchiveStore:
    """Open the archive of a root; ConfigError where it is encrypted, or still in files."""
    if config.env("HERMES_ENCRYPT").lower() in ("on", "1", "true"):
        raise ConfigError("the archive has no encryption and HERMES_ENCRYPT is on; unset it and "
                          "use an encrypted disk, or set storage.backend to files")
    if (root / "index.json").exists():
        raise ConfigError(f"storage.backend is archive and the memories of {root} are still in "
                          "files; run `migrate --to archive` to move them")
    return ArchiveStore(root, config, clock=clock)


def read_copy(path: Path) -> tuple[dict[str, Memory], dict[str, dict[str, str]], str]:
    """Return memories by id, tombstones and their key of a copy of an archive; change nothing.

    DamagedData where the copy is not whole.
    """
    if not is_sound(path, frames=True):
        raise DamagedData(f"{path} is no whole copy of an archive; nothing was changed")
    found = {memory.id: memory for memory in records(path)}
    return found, tombstones(path), facts(path).get("tomb_key", "")


@functools.lru_cache(1_024)
def _seconds(created_at: str) -> int:
    """Return a time as seconds since 1970; one that cannot be read is before all others."""
    moment = core.parse_time(created_at)
    return int(moment.timestamp()) if moment else -1


class ArchiveSearch:
    """The searches over an archive; see `RecordSearch` in the core for what each returns."""

    def __init__(self, store: ArchiveStore) -> None:
        self._store = store
        self._local = core.LocalHashVectorizer()

    @mended
    def words(self, query: str, k: int, *, accept: Callable[[str], bool] | None = None,
              rarest: int | None = None) -> list[tuple[str, float]]:
        """Rank by BM25; hot memories count hot_boost times. *rarest* as in BM25Index.search."""
        with self._store.reading():
            index = self._store.search_tables.index
            terms = index.query_terms(query, rarest=rarest)
            return index.search_terms(terms, k, accept=accept, factors=self._store.boosts())

    @mended
    def in_context(self, query: str, found: Sequence[tuple[str, float]], *, scale: float = 1.0,
                   accept: Callable[[str], bool] | None = None) -> list[tuple[str, float]]:
        """Rank what was found by what stands beside it in its source, and by who says it."""
        with self._store.reading():
            how, tables = self._store.config["retrieval"], self._store.search_tables
            return core.rank_in_context(
                tables.index, query, found, scale=scale, neighbours=how["neighbours"],
                share=how["source_share"], speaker=how["speaker"],
                sources=lambda ids: tables.postings.sources(
                    i for i in ids if accept is None or accept(i)))

    @mended
    def ideal_score(self, query: str) -> float:
        """Return the keyword score of a memory that would hold every word of *query*."""
        with self._store.reading():
            return self._store.search_tables.index.ideal_score(query)

    @mended
    def made_between(self, first: datetime, last: datetime) -> list[str]:
        """Return the ids of memories whose created_at lies in [first, last), newest first."""
        return [i for i, in self._store.db().execute(
            "SELECT id FROM memory WHERE made >= ? AND made < ? ORDER BY substr(made, 1, 25) "
            "DESC, id DESC", (core.iso(first), core.iso(last)))]

    @mended
    def spelling(self, query: str, k: int, *,
                 accept: Callable[[str], bool] | None = None) -> list[tuple[str, float]]:
        """Rank by local vectors, which find shared spelling."""
        with self._store.reading():
            return core.search_spelling(
                self._store.search_tables.index, query, k, texts=self._store.text,
                accept=accept, vectorizer=self._local)

    @mended
    def duplicate(self, text: str, *,
                  accept: Callable[[str], bool] | None = None) -> str | None:
        """Return the most similar memory from 0.85 up that differs in no fact."""
        with self._store.reading():
            return core.find_duplicate(self._store.search_tables.index, text,
                                       self._store.text, accept=accept)

    @mended
    def conflict_candidates(self, text: str) -> list[str]:
        """Return ids that may contradict *text*, and some that do not; at most 60."""
        with self._store.reading():
            return core.conflict_candidates(self._store.search_tables.index, text)

    @mended
    def graph(self, *, rebuild: bool = False) -> Graph:
        """Return the graph; *rebuild* makes every index anew from the records."""
        if rebuild:
            self._store.checkpoint(rebuild=True)
        with self._store.reading():
            return Graph(self._store.search_tables)

    @mended
    def tagged(self, tags: Sequence[str], most: int | None = None) -> list[str]:
        """Return the *most* newest ids that have all *tags*; the rarest tag is gone through."""
        wanted = [*map(whole, core.tag_forms(tags))]
        for limit in (250, 1_000, 4_000, 16_000) if len(wanted) > 1 else ():
            counts = {tag: self._store.row(
                "SELECT count(*) FROM (SELECT 1 FROM tag WHERE tag=? LIMIT ?)", tag, limit)[0]
                for tag in wanted}
            wanted.sort(key=counts.__getitem__)
            if counts[wanted[0]] < limit:
                break
        if not wanted:
            return []
        more = "".join(" AND EXISTS (SELECT 1 FROM tag WHERE tag=? AND at=one.at AND seq=one.seq)"
                       for _ in wanted[1:])
        return [i for i, in self._store.db().execute(
            "SELECT id FROM tag AS one CROSS JOIN memory USING (seq) WHERE tag=?"
            f"{more} ORDER BY at DESC, id DESC LIMIT ?",
            (*wanted, -1 if most is None else most))]

    @mended
    def containing(self, text: str) -> list[str]:
        """Return the ids in whose text *text* stands as it is, inside words too, newest first."""
        wanted = normalise(text)
        if not wanted:
            return []
        with self._store.reading():
            if core.is_one_word(wanted):
                keys = core.to_json(self._store.search_tables.index.containing(wanted)).decode()
                rows = self._store.db().execute("SELECT seq, id, entry FROM memory WHERE id IN "
                                                 "(SELECT value FROM json_each(?))", (keys,))
            else:
                rows = self._store.db().execute("SELECT seq, id, entry FROM memory")
            found = [row for row in rows if wanted in normalise(entry_of(row[2])["content"])]
        return [memory_id for _, memory_id, _ in sorted(found, reverse=True)]

    @mended
    def known_words(self, words: Iterable[str]) -> dict[str, int]:
        """Return how many memories have a word, for those of *words* that any has."""
        with self._store.reading():
            return self._store.search_tables.index.known_words(words)

    @mended
    def words_beginning(self, start: str) -> list[str]:
        """Return the words, as they are stemmed, that begin with a word and are longer."""
        with self._store.reading():
            return self._store.search_tables.index.words_beginning(start)


class ArchiveStore(ArchiveFile, Rescue, TombstoneTable):
    """Memories in one SQLite file; the head of this module says what it promises."""

    def __init__(self, root: Path, config: Config, *,
                 clock: Callable[[], datetime] = utc_now) -> None:
        self.root, self.config, self.clock = root, config, clock
        self.path = root / FILE
        self.files = core.RootFiles(root)
        self.mirror = core.Mirror(self.files, lambda memory_id: None)
        self.backups = core.Backups(self.files, clock=clock,
                                    kept=config["storage"]["backups_kept"])
        self.progress: Callable[[str, int, int], None] | None = None
        self._connection: sqlite3.Connection | None = None
        self._pid = self.depth = self._reads = 0
        self._is_void = True                       # there is no file yet
        self._file: tuple[int, int] | None = None  # which file the connection has open
        self._is_told_empty = False                # nothing was found that could fill it
        self._found: list[Memory] = []             # behind the damage of a log, not stored yet
        self._has_lost = False                     # a log was damaged
        self._is_due, self._due_pid = False, 0     # the log is brought into the file in a moment
        self._timer: threading.Timer | None = None
        self._lock = core.FileLock(root / ".lock")
        self.kinds: set[str] = set()              # what the open transaction has done
        self._touches: list[tuple[Sequence[str], datetime]] = []
        self._gone: set[str] = set()               # ids that this process removed
        self._pending_purge = False                      # what was removed may stand in the log
        self._owes = False                         # this process left a batch uncut
        self._backup_day = self._tombstone_key = ""
        self._hot: dict[int, float] | None = None
        self._seen = -1                            # PRAGMA data_version of the hot ones
        self.search_tables = SearchTables(self.db, config["retrieval"])
        self.search = ArchiveSearch(self)
        self.vectors = ArchiveVectors(self)

    # -- records ------------------------------------------------------------

    def ids(self) -> list[str]:
        """Return every id, oldest first as stored."""
        return [row[0] for row in self.db().execute("SELECT id FROM memory ORDER BY seq")]

    @mended
    def text(self, memory_id: str) -> str | None:
        """Return a memory's content alone."""
        row = self.row("SELECT entry FROM memory WHERE id=?", memory_id)
        return row and entry_of(row[0])["content"]

    @mended
    def get(self, memory_id: str) -> Memory | None:
        row = self.row("SELECT entry FROM memory WHERE id=?", memory_id)
        return row and Memory.from_entry(entry_of(row[0]))

    @mended
    def entry(self, memory_id: str) -> dict[str, object] | None:
        """Return a memory's fields unchecked, which is faster."""
        row = self.row("SELECT entry FROM memory WHERE id=?", memory_id)
        return row and entry_of(row[0])

    def __iter__(self) -> Iterator[Memory]:
        last = 0
        while rows := self._after(last):
            last = rows[-1][0]
            for _, entry in rows:
                yield Memory.from_entry(json.loads(entry))

    @mended
    def _after(self, seq: int) -> list[tuple[int, str]]:
        rows = self.db().execute("SELECT seq, entry FROM memory WHERE seq > ? ORDER BY seq "
                                  "LIMIT ?", (seq, CHUNK))
        return [(seq, plain(entry)) for seq, entry in rows]

    @mended
    def __len__(self) -> int:
        return self.row("SELECT count FROM counts")[0]

    @mended
    def is_taken(self, memory_id: str) -> bool:
        """Tell whether the id is in use or was: an id never comes back."""
        return memory_id in self._gone or self.row(
            "SELECT 1 FROM memory WHERE id=? UNION ALL SELECT 1 FROM tomb WHERE id=?",
            memory_id, memory_id) is not None

    def put(self, memory: Memory) -> None:
        """Add a memory, or replace the one with its id; UsageError when no file can hold it."""
        try:
            entry = to_json(memory.entry())
            memory = Memory.from_entry(from_json(entry))
        except (ValueError, TypeError, RecursionError) as problem:
            raise UsageError(f"this memory cannot be stored: {problem}") from None
        self._do("put")
        self._put(memory, entry.decode())

    def _put(self, memory: Memory, entry: str) -> None:
        old = self.row("SELECT seq, doc, entry FROM memory WHERE id=?", memory.id)
        text = memory.content
        old_text = entry_of(old[2])["content"] if old else None
        same = old_text == text
        if old and not same:
            self.search_tables.retire(old[1], old_text)
            self.row("DELETE FROM vector WHERE seq=?", old[0])
            self.row("INSERT OR IGNORE INTO pending VALUES (?)", old[0])
        doc = old[1] if same else self.search_tables.add()
        values = (doc, memory.access_count, whole(memory.created_at),
                  memory.source and whole(memory.source), self._stored(entry), memory.id)
        if old:
            self.row("UPDATE memory SET doc=?, accesses=?, made=?, source=?, entry=? "
                      "WHERE id=?", *values)
        else:
            seq = self.db().execute(
                "INSERT INTO memory (doc, accesses, made, source, entry, id) "
                "VALUES (?, ?, ?, ?, ?, ?)", values).lastrowid
            if self.vectors.kind():
                self.row("INSERT INTO pending VALUES (?)", seq)
        self._heat(doc, memory.access_count)
        if old and not same:
            self._cool(old[1])
        if old:
            seq = old[0]
            self.row("DELETE FROM tag WHERE seq=?", seq)
        if memory.tags:
            at = _seconds(memory.created_at)
            self.db().executemany("INSERT OR IGNORE INTO tag VALUES (?, ?, ?)", (
                (whole(tag), at, seq) for tag in core.tag_forms(memory.tags)))

    def remove(self, memory_id: str, *, why: str | None, also: Iterable[str] = ()) -> None:
        """Delete a memory and leave a tombstone: its id, keyed hashes of its text, *why*.

        *also* are other wordings under which it may come back. *why* None leaves no tombstone.
        """
        self._do("del")
        row = self.row("SELECT seq, doc, entry FROM memory WHERE id=?", memory_id)
        text = row and entry_of(row[2])["content"]
        if why:
            tombstone = memory_id, redact(str(why))[0], core.iso(self.clock())
            self.bury((self.tombstone_mark(each), *tombstone) for each in (text or "", *also))
        if row:
            self.search_tables.retire(row[1], text)
            self.row("DELETE FROM memory WHERE seq=?", row[0])
            self._cool(row[1])
        self._gone.add(memory_id)
        self._pending_purge = True
        core.remove_unfinished_move(self.root)

    def count_accesses(self, memory_ids: Sequence[str], moment: datetime) -> None:
        """Count an access of each, when the transaction ends and without waiting for a sync."""
        if not self.depth:
            raise UsageError("records change only inside store.transaction()")
        self._touches.append((tuple(memory_ids), moment))

    def _count(self, memory_ids: Sequence[str], moment: datetime) -> None:
        for memory_id in memory_ids:
            row = self.row("SELECT doc, entry FROM memory WHERE id=?", memory_id)
            if row:
                entry = core.count_access(entry_of(row[1]))
                entry["last_accessed"] = core.iso(moment)
                text = to_json(entry).decode()
                # A recall keeps the record's form: it must work where no package is installed.
                stored = text if isinstance(row[1], str) else compressed(text)
                self.row("UPDATE memory SET entry=?, accesses=? WHERE id=?",
                          stored, entry["access_count"], memory_id)
                self._heat(row[0], entry["access_count"])

    def _heat(self, doc: int, count: int) -> None:
        """Note in memory whether a document is hot."""
        if self._hot is not None:
            self._hot.pop(doc, None)
            if count >= self.config["retrieval"]["hot_threshold"]:
                self._hot[doc] = float(self.config["retrieval"]["hot_boost"])

    def _cool(self, doc: int) -> None:
        if self._hot is not None:
            self._hot.pop(doc, None)

    def boosts(self) -> dict[int, float]:
        """Return the factor of each hot document, read again when another process wrote."""
        seen, = self.row("PRAGMA data_version")
        if self._hot is None or seen != self._seen:
            how = self.config["retrieval"]
            self._hot = dict.fromkeys((doc for doc, in self.db().execute(
                "SELECT doc FROM memory WHERE accesses > 0 AND accesses >= ?",
                (how["hot_threshold"],))), float(how["hot_boost"]))
            self._seen = seen
        return self._hot

    # -- upkeep -------------------------------------------------------------

    @mended
    def version(self) -> object:
        """Return a value that changes when another process has written."""
        return id(self.db()), self.row("PRAGMA data_version")[0]

    def checkpoint(self, *, rebuild: bool = False) -> None:
        """Bring what is fresh into the tables.

        *rebuild* makes every index anew, and stores every record as storage.compress says.
        """
        with self.transaction() if rebuild else contextlib.nullcontext():
            if rebuild:
                self._store_by_setting()
                self._index_all()
        self.refresh()
        self._catch_up()
        with self.transaction():
            self.kinds.add("index")
            self.search_tables.flush()

    def faults(self) -> list[str]:
        """Say what is wrong with the file, without mending it; reads all of it."""
        if not self.path.exists():
            return [f"{FILE} is missing"] if self._has_remains() else []
        if wal.has_page(self.path) and not wal.is_of_file(self.path):
            return [f"{FILE}-wal belongs to another state of {FILE}"]
        how = "mode=ro" if os.access(self.root, os.W_OK) else "immutable=1"
        try:
            with contextlib.closing(connect(f"{uri_of(self.path)}?{how}")) as db:
                said = [row for row, in db.execute("PRAGMA integrity_check(3)") if row != "ok"]
                if db.execute("PRAGMA user_version").fetchone() == (0,):
                    if self._has_remains():
                        said.append(f"{FILE} is empty, and what lies beside it shows that it "
                                    "was not")
                    return said                    # its tables are not made yet
                check_compressed(db)
                count, held = db.execute("SELECT (SELECT count(*) FROM memory), count "
                                         "FROM counts").fetchone()
        except sqlite3.Error as problem:
            return [f"{FILE} cannot be read: {problem}"]
        except MissingPackage as problem:
            return [f"{FILE} cannot be checked: {problem}"]
        return said + ([f"the indexes hold {held} memories of {count}"] if held != count else [])

    def _stored(self, entry: str) -> str | bytes:
        """Return a record in the form that storage.compress asks for; see archive_zstd."""
        return compressed(entry) if self.config["storage"]["compress"] == "zstd" else entry

    def _store_by_setting(self) -> None:
        """Write every record in the form that storage.compress asks for."""
        self.kinds.add("index")
        last = 0
        while rows := self.db().execute("SELECT seq, entry FROM memory WHERE seq > ? ORDER BY "
                                         "seq LIMIT ?", (last, CHUNK)).fetchall():
            last = rows[-1][0]
            for seq, entry in rows:
                stored = self._stored(plain(entry))
                if stored != entry:
                    self.row("UPDATE memory SET entry=? WHERE seq=?", stored, seq)

    def _index_all(self) -> None:
        """Empty the indexes; every document waits to be cut again."""
        self.kinds.add("index")
        self.search_tables.clear()
        self.row("UPDATE memory SET doc = -1 - seq")
        rows = self.db().execute("SELECT seq FROM memory ORDER BY seq").fetchall()
        self.db().executemany("UPDATE memory SET doc=? WHERE seq=?", (
            (self.search_tables.add(), seq) for seq, in rows))
        self._hot = None

    def _every_row(self) -> Iterator[tuple[int, str]]:
        last = 0
        while rows := self._after(last):
            last = rows[-1][0]
            yield from rows

    def _back_up(self) -> None:
        """Before the first write of a day, copy the records to backups/, if they are not many."""
        day = f"{self.clock().astimezone(self.config.zone):%Y%m%d}"
        if day == self._backup_day:
            return
        self._backup_day = day
        name = f"backups/auto_index.json.{day}.bak"
        size = self.row("SELECT coalesce(sum(length(entry)), 0) FROM memory")[0] if (
            self.path.stat().st_size < 8 * _DAILY) else _DAILY
        if not size or size >= _DAILY or (self.root / name).exists():
            return
        self.files.write(name, core.join_rows(entry.encode() for _, entry in self._every_row()))
        self.backups.drop_old(is_taken=self.is_taken, held=len(self), has_loss=False)

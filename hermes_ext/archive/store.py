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
               to bring a large batch into the indexes, or indexes it in memory
    forgotten  deleted bytes are overwritten (secure_delete) and the log is emptied; a keyed hash
               stays. A reader that is busy then leaves its old pages in the log until it ends
    damage     a file that SQLite cannot read is set aside; records are read from its pages, from
               a Markdown mirror or a daily backup in the same root, in this order. So they are
               where the file is missing or empty; what follows a damaged place in the log is
               read, a log that belongs to another file is left out, and both are said
    loss       an older or a smaller file that was put in the place of the right one is said at
               each start until it is mended; what was forgotten since stays forgotten
    moves      a process that has the file open follows one that is put in its place, and writes
               one that was deleted again; when the memories moved into files, it gets ConfigError
    backups    of up to 32 MB of records a copy is kept in backups/ on the first write of a day,
               and after a move; above that use `backup`, or copy the file

Not there: encryption (refused with HERMES_ENCRYPT=on; use an encrypted disk, or files) and the
Markdown mirror (`export --format markdown` writes one). Access counts are not synced to the disk.
2 to 6 KB a memory, most of it indexes: `storage.compress: zstd` halves the record, which was
6 % (Chinese and English, 6.1 KB) to 17 % (English, 2.1 KB) of the file at 5,000 memories of 300
characters. Every thousandth write takes some tenths of a second: it brings the newest
thousand into the indexes (search.py says how). A transaction of more than 256 writes
leaves that to the next search, or to `close`: its records are on the disk at once, and found by
id, tag and date. `list`, `stats`, `rooms` and `prune` read every record: 2 to 5 s for 100,000.

The parts of an ArchiveStore, each with a module of its own:

    file        ArchiveFile: connection, lock, log; hands damage to Rescue
    records     RecordTable: records and tags
    tables      SearchTables: the keyword index; `search` is what can be asked of it
    tombstones  ArchiveTombstones
    vectors     ArchiveVectors
    recovery    LossCheck: was an older file put in place?
"""
from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

import hermes_lite as core
from hermes_lite import (Config, ConfigError, DamagedData, Locked, Memory, StorageError,
                         UsageError, normalise, redact, utc_now)
from hermes_ext.archive.connection import json_of
from hermes_ext.archive.daily_backup import DailyBackup
from hermes_ext.archive.file import ArchiveFile, rescuing
from hermes_ext.archive.loss import LossCheck
from hermes_ext.archive.records import RecordTable
from hermes_ext.archive.rescue import Rescue, facts, records, tombstones
from hermes_ext.archive.schema import FILE, faults_of, is_sound, raise_generation
from hermes_ext.archive.search import Graph, SearchTables
from hermes_ext.archive.tombstones import ArchiveTombstones
from hermes_ext.archive.vectors import ArchiveVectors
from hermes_ext.archive.zstd import check_package, entry_of

__all__ = ["ArchiveSearch", "ArchiveStore", "FILE", "check_package", "open_store", "read_copy"]

_SHOWN_FROM = 500                    # documents to index, from where progress is shown


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


class ArchiveSearch:
    """The searches over an archive; see `RecordSearch` in the core for what each returns.

    *reading* is a context in which several queries see one state, all of it indexed.
    """

    def __init__(self, file: ArchiveFile, table: RecordTable, tables: SearchTables,
                 config: Config, *, reading: Callable[[], AbstractContextManager[None]],
                 rebuild: Callable[[], None]) -> None:
        self.file = file
        self._records = table
        self._tables = tables
        self._settings = config["retrieval"]
        self._reading = reading
        self._rebuild = rebuild
        self._vectorizer = core.LocalHashVectorizer()

    @rescuing
    def words(self, query: str, k: int, *, accept: Callable[[str], bool] | None = None,
              rarest: int | None = None) -> list[tuple[str, float]]:
        with self._reading():
            terms = self._tables.index.query_terms(query, rarest=rarest)
            return self._tables.index.search_terms(terms, k, accept=accept,
                                                   factors=self._records.hot.boosts())

    @rescuing
    def in_context(self, query: str, found: Sequence[tuple[str, float]], *, scale: float = 1.0,
                   accept: Callable[[str], bool] | None = None) -> list[tuple[str, float]]:
        def sources(ids: Iterable[str]) -> dict[str, str | None]:
            return self._tables.postings.sources(
                memory_id for memory_id in ids if accept is None or accept(memory_id))

        with self._reading():
            settings = self._settings
            return core.rank_in_context(
                self._tables.index, query, found, scale=scale, sources=sources,
                neighbours=settings["neighbours"], share=settings["source_share"],
                speaker=settings["speaker"])

    @rescuing
    def spelling(self, query: str, k: int, *,
                 accept: Callable[[str], bool] | None = None) -> list[tuple[str, float]]:
        with self._reading():
            return core.search_spelling(self._tables.index, query, k, texts=self._text,
                                        accept=accept, vectorizer=self._vectorizer)

    def _text(self, memory_id: str) -> str | None:
        entry = self._records.entry(memory_id)
        return entry["content"] if entry else None

    @rescuing
    def ideal_score(self, query: str) -> float:
        with self._reading():
            return self._tables.index.ideal_score(query)

    @rescuing
    def duplicate(self, text: str, *,
                  accept: Callable[[str], bool] | None = None) -> str | None:
        with self._reading():
            return core.find_duplicate(self._tables.index, text, self._text, accept=accept)

    @rescuing
    def conflict_candidates(self, text: str) -> list[str]:
        with self._reading():
            return core.conflict_candidates(self._tables.index, text)

    @rescuing
    def containing(self, text: str) -> list[str]:
        """Return the ids whose text contains *text*, newest first; form and case do not matter.

        Of one word the index says which records can have it; else all are read.
        """
        wanted = normalise(text)
        if not wanted:
            return []
        statement = "SELECT seq, id, entry FROM memory"
        with self._reading():
            if core.is_one_word(wanted):
                ids = json_of(self._tables.index.containing(wanted))
                rows = self.file.db().execute(
                    f"{statement} WHERE id IN (SELECT value FROM json_each(?))", (ids,))
            else:
                rows = self.file.db().execute(statement)
            found = [(seq, memory_id) for seq, memory_id, entry in rows
                     if wanted in normalise(entry_of(entry)["content"])]
        return [memory_id for _, memory_id in sorted(found, reverse=True)]

    @rescuing
    def known_words(self, words: Iterable[str]) -> dict[str, int]:
        with self._reading():
            return self._tables.index.known_words(words)

    @rescuing
    def words_beginning(self, start: str) -> list[str]:
        with self._reading():
            return self._tables.index.words_beginning(start)

    def tagged(self, tags: Sequence[str], most: int | None = None) -> list[str]:
        return self._records.tagged(tags, most)

    def made_between(self, first: datetime, last: datetime) -> list[str]:
        return self._records.made_between(first, last)

    @rescuing
    def graph(self, *, rebuild: bool = False) -> Graph:
        if rebuild:
            self._rebuild()
        with self._reading():
            return Graph(self._tables)


class ArchiveStore:
    """Memories in one SQLite file; the head of this module says what it promises.

    This class holds the parts together: what a transaction changes, in which order it becomes
    durable, and what a reader sees of it.
    """

    def __init__(self, root: Path, config: Config, *,
                 clock: Callable[[], datetime] = utc_now) -> None:
        self.root = root
        self.path = root / FILE
        self.config = config
        self.clock = clock
        self.progress: Callable[[str, int, int], None] | None = None
        self.on_change: Callable[[str, Memory | None, Memory | None], None] | None = None
        # The file, and what a damaged or older one is mended from.
        self.files = core.RootFiles(root)
        self.backups = core.Backups(self.files, clock=clock,
                                    kept=config["storage"]["backups_kept"])
        self.recovery = LossCheck(self.files, self.backups)
        self.rescue = Rescue(self.files, self.backups, self.recovery, clock=clock,
                             make_store=lambda place: ArchiveStore(place, config, clock=clock))
        # It calls two parts that come further below, not before it is opened.
        self.file = ArchiveFile(self.files, config["storage"], rescue=self.rescue,
                                loss=self.recovery, forget=self._forget_in_memory,
                                before_change=lambda: self.daily_backup.write_once_a_day())

        # What lies in the file. A record that comes or goes is told to the tables and vectors.
        self.tables = SearchTables(self.file.db, config["retrieval"])
        self.vectors = ArchiveVectors(self.file, self.transaction)
        self.records = RecordTable(self.file, self.tables, self.vectors, config)
        self.tombstones = ArchiveTombstones(self.file)
        self.search = ArchiveSearch(self.file, self.records, self.tables, config,
                                    reading=self._reading,
                                    rebuild=lambda: self.checkpoint(rebuild=True))
        self.daily_backup = DailyBackup(self.file, self.records, self.backups, self.recovery,
                                        clock=clock, zone=config.zone, is_taken=self.is_taken)

        # The state of this process.
        self._is_in_snapshot = False               # several queries see one state
        self._accesses: list[tuple[Sequence[str], datetime]] = []      # to be counted
        self._has_pending_purge = False            # what was removed may stand in the log
        self._left_unindexed = False               # its last transaction was a large batch

    def _forget_in_memory(self) -> None:
        """Drop what is held of the file in memory: it is another file, or another state."""
        self.tables.forget()
        self.records.hot.forget()
        self.tombstones.forget()

    # -- records ------------------------------------------------------------

    def ids(self) -> list[str]:
        return self.records.ids()

    def get(self, memory_id: str) -> Memory | None:
        entry = self.records.entry(memory_id)
        return None if entry is None else Memory.from_entry(entry)

    def entry(self, memory_id: str) -> dict[str, Any] | None:
        return self.records.entry(memory_id)

    def text(self, memory_id: str) -> str | None:
        entry = self.records.entry(memory_id)
        return None if entry is None else entry["content"]

    def __iter__(self) -> Iterator[Memory]:
        for entry in self.records.entries():
            yield Memory.from_entry(json.loads(entry))

    def __len__(self) -> int:
        return self.records.count()

    @rescuing
    def is_taken(self, memory_id: str) -> bool:
        return (memory_id in self.tombstones.retired or self.records.has(memory_id)
                or self.tombstones.has(memory_id))

    def put(self, memory: Memory) -> None:
        if self.on_change is not None:
            self.on_change(memory.id, self.get(memory.id), memory)
        self.records.put(memory)

    def remove(self, memory_id: str, *, why: str | None, also: Iterable[str] = ()) -> None:
        """Delete a memory; with *why*, leave a tombstone of its text and of the texts *also*.

        The pages with its text are emptied out of the log when the transaction ends.
        """
        if self.on_change is not None:
            self.on_change(memory_id, self.get(memory_id), None)
        text = self.records.delete(memory_id)
        if why:
            tombstone = {"id": memory_id, "why": redact(str(why))[0], "at": core.iso(self.clock())}
            fingerprints = [self.tombstones.fingerprint(each) for each in (text or "", *also)]
            self.tombstones.add(fingerprints, tombstone)
        self.tombstones.retired.add(memory_id)
        self._has_pending_purge = True
        core.remove_unfinished_move(self.root)

    def count_accesses(self, memory_ids: Sequence[str], moment: datetime) -> None:
        """Count an access of each when the transaction ends, without waiting for the disk."""
        if not self.file.is_in_transaction:
            raise UsageError("records change only inside store.transaction()")
        self._accesses.append((tuple(memory_ids), moment))

    def forgotten(self, text: str) -> dict[str, str] | None:
        return self.tombstones.find(text)

    def removals(self) -> dict[str, dict[str, str]]:
        return self.tombstones.by_id()

    def remove_tombstone(self, text: str, *, memory_id: str = "") -> None:
        self.tombstones.remove(text, memory_id=memory_id)

    def get_tombstones(self) -> tuple[str, dict[str, dict[str, str]]]:
        return self.tombstones.get_all()

    def set_tombstones(self, key: str, tombstones: dict[str, dict[str, str]]) -> None:
        self.tombstones.replace_all(key, tombstones)

    # -- transactions -------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self, *, timeout: float | None = None) -> Iterator[None]:
        """Hold the lock, up to date, and commit at the end. Locked after *timeout* seconds.

        A transaction inside another joins it. An exception that leaves the outer one undoes all
        of it.
        """
        if self.file.is_in_transaction:
            yield
            return
        with self.file.exclusive(timeout):
            try:
                self._begin()
                yield
                self._commit()
            except BaseException as problem:
                self._roll_back()
                if isinstance(problem, sqlite3.Error):
                    self.file.rescue_or_raise(
                        problem, "nothing of this write was stored; repeat it")
                raise
            finally:
                self._accesses = []

    def _begin(self) -> None:
        """Begin on the newest state; make outdated indexes anew, and good what was lost."""
        self.file.follow()
        self.file.db().execute("BEGIN IMMEDIATE")
        self.tables.read(to_write=True)
        if self.tables.is_outdated:
            self._index_all()
        if self.file.has_lost:
            self._make_good()

    def _index_all(self) -> None:
        """Empty the indexes; every record waits to be indexed again."""
        self.file.change("index")
        self.records.index_all()

    def _make_good(self) -> None:
        """After a loss, store what was found in the log; what was forgotten stays away.

        The copy of the tombstones in backups/ is of this archive where it has the same key.
        """
        key, known = self.tombstones.get_all()
        copied_key, copied = self.rescue.tombstones()
        lost = {}
        if copied_key == key:
            lost = {fingerprint: tombstone for fingerprint, tombstone in copied.items()
                    if fingerprint not in known}
        for fingerprint, tombstone in lost.items():
            self.tombstones.add([fingerprint], tombstone)
            if self.records.has(tombstone["id"]):
                self.remove(tombstone["id"], why=None)
        for memory in self.file.found_in_log:
            if self.get(memory.id) != memory and not self.tombstones.has(memory.id):
                self.put(memory)

    def _commit(self) -> None:
        """Make the transaction durable, then empty the log of what was removed.

        What comes after COMMIT may fail or be late without harm to what was stored.
        """
        kinds = self.file.changes
        if kinds:
            self._index_fresh()
            self.tables.save()
            raise_generation(self.file.db())
        self.file.db().execute("COMMIT")
        self.file.found_in_log = []
        self.file.has_lost = False

        if kinds or self._accesses:
            self.file.checkpoint_soon()
        if self._has_pending_purge:
            self._has_pending_purge = not self.file.empty_log()
        if {"delete", "lift"} & kinds:
            self.tombstones.write_copy()
        try:
            self._write_accesses()
        except sqlite3.Error:
            if not kinds:
                raise
            self._roll_back()                      # the counting alone: the write is stored

    def _index_fresh(self) -> None:
        """Index what the transaction brought, unless it is a large batch: a search does that.

        The tables are written to when enough has come together; see search.py.
        """
        if self.tables.waiting <= self.tables.FEW:
            self.tables.catch_up()
        self._left_unindexed = self.tables.waiting > 0
        if len(self.tables.tail) >= self.tables.TAIL:
            self.tables.flush()

    def _write_accesses(self) -> None:
        """Count accesses, in a transaction of their own that does not wait for the disk."""
        if not self._accesses:
            return
        db = self.file.db()
        db.execute("PRAGMA synchronous=NORMAL")    # back to FULL below, or in `roll_back`
        db.execute("BEGIN IMMEDIATE")
        for memory_ids, moment in self._accesses:
            self.records.count_accesses(memory_ids, moment)
        raise_generation(db)
        db.execute("COMMIT")
        db.execute("PRAGMA synchronous=FULL")

    def _roll_back(self) -> None:
        """Undo the open transaction, and read again what is held in memory: it is ahead."""
        self.file.roll_back()
        self._forget_in_memory()

    def back_up_move(self) -> None:
        """Copy the records that were moved here today to backups/, if they are not many."""
        self.daily_backup.write_after_move()

    # -- reading ------------------------------------------------------------

    @rescuing
    def refresh(self) -> None:
        """Take over what other processes wrote; costs one small query."""
        if self.file.is_in_transaction or self._is_in_snapshot:
            return
        self.file.follow()
        with self._snapshot():
            self.tables.read()
        if self.tables.is_outdated or self.file.found_in_log:
            with self.transaction():               # makes the indexes anew, stores what was found
                pass
        if self.recovery.is_unreported:
            self._report_loss()

    def _report_loss(self) -> None:
        """Give notice of an older file that was put in place, after a transaction.

        Its beginning removes from the file what was forgotten since (`_make_good`).
        """
        self.recovery.is_unreported = False
        with contextlib.suppress(Locked, StorageError), self.transaction():
            pass
        self.files.notices.append(self.describe_loss())

    @rescuing
    def describe_loss(self) -> str:
        """Return the sentence about an older file that was put in place, "" without one."""
        self.file.follow()
        self.file.db()
        if not self.recovery.count_before_loss:
            return ""
        return self.recovery.describe(len(self), len(self.recovery.missing(self.is_taken)))

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        """See one state of the file for several queries; another may write meanwhile."""
        db = self.file.db()
        db.execute("BEGIN")
        self._is_in_snapshot = True
        try:
            yield
        finally:
            self._is_in_snapshot = False
            db.execute("COMMIT")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """See one state of the file for several queries, all of it indexed.

        Inside a transaction it is the transaction's own. Where the indexes cannot be written,
        they are brought up to date in the memory of this process.
        """
        if self.file.is_in_transaction:
            if self.tables.waiting:
                self.file.change("index")
                self.tables.catch_up()
            yield
            return
        if self._is_in_snapshot:
            yield
            return
        self.refresh()
        if self.tables.waiting:
            with contextlib.suppress(Locked, StorageError):
                self._catch_up()
        with self._snapshot():
            self.tables.read()
            self.tables.catch_up(in_memory=True)
            yield

    def _catch_up(self) -> None:
        """Bring what a large batch left waiting into the indexes, a transaction a chunk.

        Locked where another process holds the store for longer than this one would need to index
        it all in memory, some thousand a second.
        """
        total = self.tables.waiting
        seconds_in_memory = total / 1_000
        timeout = min(self.config["storage"]["lock_timeout_seconds"], seconds_in_memory)
        while self.tables.waiting:
            with self.transaction(timeout=timeout):
                self.file.change("index")
                self.tables.catch_up(self.tables.BULK)
            if self.progress and total > _SHOWN_FROM:
                self.progress("indexing", max(0, total - self.tables.waiting), total)

    @rescuing
    def version(self) -> object:
        """Return a value that changes when another process has written."""
        return id(self.file.db()), self.file.row("PRAGMA data_version")[0]

    @rescuing
    def revision(self) -> list:
        """Return [next, retired, changes] of `counts`, other numbers after each change."""
        return [*self.file.row("SELECT next, retired, changes FROM counts")]

    # -- maintenance --------------------------------------------------------

    def checkpoint(self, *, rebuild: bool = False) -> None:
        """Bring what is fresh into the tables.

        *rebuild* makes every index anew, and stores every record as storage.compress says.
        """
        if rebuild:
            with self.transaction():
                self._index_all()
                self.records.store_by_setting()
        self.refresh()
        self._catch_up()
        with self.transaction():
            self.file.change("index")
            self.tables.flush()

    def faults(self) -> list[str]:
        """Say what is wrong with the file, without mending it; reads all of it."""
        return faults_of(self.path, has_remains=self.rescue.has_remains())

    def copy_to(self, path: Path) -> None:
        """Write a whole and checked copy of the file; see ArchiveFile."""
        self.file.copy_to(path)

    def finish(self) -> None:
        """Make the file alone whole, and close it; see ArchiveFile."""
        self.file.finish()
        self._has_pending_purge = False

    def close(self) -> None:
        """Bring the log into the file and close it; it opens again when it is asked."""
        if self.file.is_in_transaction:
            return
        if self.file.is_open_in_place():
            with contextlib.suppress(sqlite3.Error, Locked, StorageError, ConfigError):
                self._finish_work()
        self.file.close()

    def _finish_work(self) -> None:
        """Empty the log of what was removed, and index a batch, unless an exception ends us."""
        if self._has_pending_purge:
            self._has_pending_purge = not self.file.empty_log()
        is_leaving_at_once = sys.exc_info()[0] is not None
        if self._left_unindexed and not is_leaving_at_once:
            self._catch_up()

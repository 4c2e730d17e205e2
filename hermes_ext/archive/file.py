"""The file of an archive: opening, one state for several reads, transactions.

A part of archive/store.py: ArchiveStore inherits ArchiveFile and sets what its `__init__`
lists.
"""
from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import hermes_lite as core
from hermes_lite import (ConfigError, Locked, StorageError, UsageError, pluralize, make_folder,
                         to_json)
from hermes_ext.archive import wal
from hermes_ext.archive.tables import FILE, close_untouched, connect, mended, uri_of
from hermes_ext.archive.rescue import records_behind
from hermes_ext.archive.search import SCHEMA, TABLES

__all__ = ["ArchiveFile"]

_VERSION = 3
_SOON = 0.5                          # seconds until a written log is brought into the file

# memory: seq is the order of storing, doc the number in the search indexes, entry the record as
# in index.json (a BLOB where it is compressed: archive_zstd.py). vector: the pieces of a text as
# float32; pending: who has none yet, where there are any at all.
_SCHEMA = """
CREATE TABLE memory (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
                     doc INTEGER NOT NULL UNIQUE, accesses INTEGER NOT NULL,
                     made TEXT NOT NULL, source TEXT, entry TEXT NOT NULL);
CREATE INDEX memory_made ON memory (made);
CREATE INDEX memory_accesses ON memory (accesses) WHERE accesses > 0;
CREATE TABLE tag (tag TEXT, at INTEGER, seq INTEGER REFERENCES memory ON DELETE CASCADE,
                  PRIMARY KEY (tag, at, seq)) WITHOUT ROWID;
CREATE INDEX tag_seq ON tag (seq);
CREATE TABLE vector (seq INTEGER PRIMARY KEY REFERENCES memory ON DELETE CASCADE,
                     data BLOB NOT NULL);
CREATE TABLE pending (seq INTEGER PRIMARY KEY REFERENCES memory ON DELETE CASCADE);
CREATE TABLE tomb (mark TEXT PRIMARY KEY, id TEXT NOT NULL, why TEXT NOT NULL, at TEXT NOT NULL);
CREATE INDEX tomb_id ON tomb (id);
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


def _made(db: sqlite3.Connection) -> sqlite3.Connection:
    """Make the tables, or bring them up to date, where no other process has done it meanwhile."""
    db.execute("BEGIN IMMEDIATE")
    version, = db.execute("PRAGMA user_version").fetchone()
    if version == 0:
        for statement in (SCHEMA + _SCHEMA).split(";"):
            db.execute(statement)
        db.execute("INSERT INTO fact VALUES ('tomb_key', ?)", (os.urandom(32).hex(),))
    for statement in _TO_3 if version in (1, 2) else ():
        db.execute(statement)
    _raise_generation(db)
    db.execute(f"PRAGMA user_version={_VERSION}")
    db.execute("COMMIT")
    return db


# The indexes are made anew, from the records. `state` is gone: a process of version 1 that has
# the file open stops.
_TO_3 = (*(f"DROP TABLE IF EXISTS {name}" for name in (
             *TABLES, "counts", "state", "spread", "dense", "slice", "gram", "claim", "sentence")),
         "DROP INDEX memory_long", "ALTER TABLE memory DROP COLUMN long",
         "DROP INDEX memory_mark", "ALTER TABLE memory DROP COLUMN mark",
         *SCHEMA.split(";"),
         "UPDATE counts SET format='2', count=(SELECT count(*) FROM memory)")


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells one file from another at the same path; None where there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


class ArchiveFile:
    """Connection, state and transactions of one file."""

    # -- connection ---------------------------------------------------------

    def db(self) -> sqlite3.Connection:
        """Return the connection; a forked child opens its own."""
        if self._connection is None or self._pid != os.getpid():
            self._drop_connection()
            self._pid, self._is_void = os.getpid(), not self.path.exists()
            self._connection = self._open()
            self._file = None if self._is_void else _identity(self.path)
            if self._found and not self.depth and not self._reads:
                with self.transaction():           # stores what was found
                    pass
        return self._connection

    def _drop_connection(self) -> None:
        if self._connection is not None and self._pid == os.getpid():
            if self._is_void or _identity(self.path) == self._file:
                self._connection.close()
            else:
                close_untouched(self._connection)
        self._connection, self._hot = None, None
        self.search_tables.forget()

    def _open(self) -> sqlite3.Connection:
        """Open the file; where there is none yet, an empty stand-in that nothing is written to."""
        self._refuse_files()
        if (self.root / ".rescue/done").exists():
            self._rescue("a rescue was interrupted")
        elif self._is_void and self._has_remains():
            self._rescue("it is missing")
        self._is_void = not self.path.exists()
        if self._is_void and not self.depth:
            return _made(connect(":memory:"))
        try:
            return self._open_file()
        except sqlite3.DatabaseError as problem:
            if not _is_damage(problem):
                raise
            self._rescue(str(problem))
            return self._open_file()

    def _refuse_files(self) -> None:
        """ConfigError where the memories of this root are in files by now."""
        if (self.root / "index.json").exists():
            raise ConfigError(f"the memories of {self.root} are in files (index.json), moved by "
                              "another process perhaps; nothing was written, open them again")

    def _open_file(self) -> sqlite3.Connection:
        try:
            if self._is_void:
                make_folder(self.root)
                with contextlib.suppress(OSError):     # as a checkout made it
                    os.chmod(self.root, 0o700)
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
                core.fsync_folder(self.root)
                self._is_void = False
            self._check_log()
            return self._checked(connect(uri_of(self.path)))
        except sqlite3.OperationalError as problem:
            if "readonly" in str(problem) or "unable to open" in str(problem):
                return self._open_readonly()
            raise
        except OSError as problem:
            raise core.storage_error(problem, self.path) from None

    def _open_readonly(self) -> sqlite3.Connection:
        """A folder that takes no log can still be read where the log is empty."""
        log = self.path.with_name(f"{FILE}-wal")
        if log.exists() and log.stat().st_size:
            raise StorageError(f"{self.path} cannot be read: its log holds writes and the folder "
                               "is read-only; open it once where it can be written")
        db = connect(f"{uri_of(self.path)}?immutable=1")
        if db.execute("PRAGMA user_version").fetchone() != (_VERSION,):
            raise ConfigError(f"{self.path} was made by another version of hermes-lite and cannot "
                              "be brought up to date here; open it once where it can be written")
        return db

    def _checked(self, db: sqlite3.Connection) -> sqlite3.Connection:
        """Make the tables of a new file; refuse one of a newer version.

        Who holds the lock makes them: to a reader a file without tables is none yet, for two that
        switch to WAL at once lock each other out.
        """
        db.execute("PRAGMA busy_timeout=5000")
        version, = db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            tables, = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables or self._has_remains() and not self._is_told_empty:
                db.close()
                self._is_told_empty = True         # nothing is left of it: it is a new one
                raise sqlite3.DatabaseError("malformed: it holds no memories")
        if version == 0 and not self.depth:
            db.close()
            self._is_void = True
            return _made(connect(":memory:"))
        if version > _VERSION:
            raise ConfigError(f"{self.path} was made by a newer version of hermes-lite (format "
                              f"{version}, this one knows {_VERSION}); update it")
        if db.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
            raise sqlite3.OperationalError("attempt to write a readonly database")
        return db if version == _VERSION else _made(db)

    # -- one file at one path -----------------------------------------------

    def _follow(self) -> None:
        """Leave a file that another process has moved, replaced or deleted; see `db`."""
        self._refuse_files()
        if self._connection is None or self._pid != os.getpid():
            return
        if self._is_void:
            if self.depth or self.path.exists():
                self._drop_connection()
            return
        if any(self._is_in_place() for _ in range(3)):     # another may be just committing
            return
        if not self.depth:
            if not self.root.is_dir():
                self._drop_connection()
                return
            self._lock.acquire(timeout=self.config["storage"]["lock_timeout_seconds"])
        try:
            if self._is_in_place():
                return
            if _identity(self.path) is None:
                self._put_back()
            self._drop_connection()
        finally:
            if not self.depth:
                self._lock.release()

    def _is_in_place(self) -> bool:
        """Tell whether the file at the path is the one that is open, with what it held."""
        if _identity(self.path) != self._file:
            return False
        if wal.length(self.path):
            return True                            # the log goes before the file
        mine = self.row("PRAGMA application_id")[0]
        return (wal.generation_of(self.path) or 0) == mine

    def _put_back(self) -> None:
        """Write a file that was deleted while it was open; it can still be read."""
        fresh = self.root / ".rescue" / FILE
        make_folder(fresh.parent)
        fresh.unlink(missing_ok=True)
        try:
            self.copy_to(fresh)
        except StorageError:
            return                                 # then it is made of what is left: see _open
        for end in ("-wal", "-shm"):
            self.path.with_name(FILE + end).unlink(missing_ok=True)
        os.replace(fresh, self.path)
        core.fsync_folder(self.root)
        self.files.notices.append(f"{FILE} had been deleted while it was open; it was written again, "
                            "with all it held")

    def copy_to(self, path: Path) -> None:
        """Write a whole copy of the file, with what its log holds, by SQLite's backup.

        The copy is 0600, on the disk and checked when this returns; StorageError otherwise.
        """
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as problem:
            raise core.storage_error(problem, path) from None
        try:
            with contextlib.closing(sqlite3.connect(uri_of(path), uri=True)) as copy:
                self.db().backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
                checked = copy.execute("PRAGMA integrity_check(1)").fetchone()
            if checked != ("ok",):
                raise StorageError(f"the copy {path} is not whole: {checked[0]}")
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
            core.fsync_folder(path.parent)
        except (OSError, sqlite3.Error) as problem:
            path.unlink()
            if isinstance(problem, StorageError):
                raise
            raise StorageError(f"cannot write {path}: {problem}; nothing of it was kept") from None

    # -- log ----------------------------------------------------------------

    def _check_log(self) -> None:
        """Look at a log that no process is writing: is it of this file, and is all of it good?

        SQLite would apply the log of another file, and leave out in silence what stands behind a
        damaged frame. What can still be read there is stored again with the next transaction. A
        log that is shorter than it was, or gone, can only be named.
        """
        promised = wal.promised_frames(self.path)
        if not promised and not wal.has_page(self.path):
            return
        if not self.depth:
            try:
                self._lock.acquire(timeout=0)
            except (Locked, StorageError):         # a writer is at work, or nothing can be written
                return
        try:
            if not wal.is_of_file(self.path):
                aside = self._set_log_aside()
                self.files.notices.append(f"{FILE}-wal belonged to another state of {FILE} than the one "
                                    f"that lies there now; it was left out and is kept as {aside}")
                return
            listed = wal.frames(self.path, promised=promised)
            whole = max((n for n, frame in enumerate(listed, 1) if frame.is_commit), default=0)
            if promised == wal.promised_frames(self.path):     # nobody is at work
                whole = max(whole, min(promised, len(listed)))
            if len(listed) < promised == wal.promised_frames(self.path):
                self.files.notices.append(f"{FILE}-wal is missing or was cut off: {promised - len(listed)} "
                                    f"of {pluralize(promised, 'page')} that were written last are "
                                    "gone; compare with what you stored last")
                self._has_lost = True
            with contextlib.closing(connect(uri_of(self.path))) as db:
                read = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
                if 0 <= read < whole:
                    self._found = records_behind(self.path, read, promised=promised)
                    aside = core.set_aside(wal.log_of(self.path), copy=True).name
                    self.files.notices.append(
                        f"{FILE}-wal was damaged (kept as {aside}); what stands behind the damage "
                        f"was read from it: {pluralize(len(self._found), 'memory', 'memories')}; "
                        "compare with what you stored last")
                    self._has_lost = True
        finally:
            if not self.depth:
                self._lock.release()

    def _set_log_aside(self) -> str:
        """Keep a copy of the log and empty it, so that nothing of it comes into the file."""
        log = wal.log_of(self.path)
        aside = core.set_aside(log, copy=True).name
        os.truncate(log, 0)
        self.path.with_name(f"{FILE}-shm").unlink(missing_ok=True)
        return aside

    def _store_found(self) -> None:
        """Store what was found behind the damage of a log, but for what was forgotten."""
        gone = set()
        if self._has_lost:
            key, known = self.get_tombstones()
            copied_key, copied = self._rescued_tombstones()
            fresh = {mark: tombstone for mark, tombstone in copied.items() if mark not in known}
            if fresh and key == copied_key:
                gone = {tombstone["id"] for tombstone in fresh.values()}
                self.bury((mark, *map(tombstone.get, ("id", "why", "at")))
                          for mark, tombstone in fresh.items())
                for memory_id in gone:
                    if self.row("SELECT 1 FROM memory WHERE id=?", memory_id):
                        self.remove(memory_id, why=None)
        for memory in self._found:
            if memory.id not in gone and self.get(memory.id) != memory and not self.row(
                    "SELECT 1 FROM tomb WHERE id=?", memory.id):
                self._do("put")
                self._put(memory, to_json(memory.entry()).decode())

    def _settle_soon(self) -> None:
        """Have the log written into the file in a moment: then a copy of the file is whole."""
        if self._is_due and self._due_pid == os.getpid():
            return
        self._is_due, self._due_pid = True, os.getpid()
        self._timer = threading.Timer(_SOON, self._settle_now)
        self._timer.daemon = True
        try:
            _fork_safely()
            self._timer.start()
        except RuntimeError:                       # no thread can be had: `close` does it
            self._timer = None

    def _settle_now(self) -> None:
        """Write the log into the file, by a connection of the timer's own."""
        self._is_due = False
        with _SETTLING, contextlib.suppress(sqlite3.Error, OSError):
            if _identity(self.path) == self._file and wal.is_of_file(self.path):
                with contextlib.closing(connect(f"{uri_of(self.path)}?mode=rw")) as db:
                    db.execute("PRAGMA busy_timeout=0")
                    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def finish(self) -> None:
        """Write the log into the file and close it: the file alone is whole, and on the disk.

        StorageError or Locked where that cannot be had; the log stays then.
        """
        seconds = self.config["storage"]["lock_timeout_seconds"]
        try:
            self.row(f"PRAGMA busy_timeout={int(1_000 * seconds)}")
            if self.row("PRAGMA wal_checkpoint(TRUNCATE)")[0]:
                raise Locked(f"another program is reading {self.path}; try again when it has "
                             "finished")
        except sqlite3.Error as problem:
            self.mend(problem, "try again")
        self._pending_purge = False
        self._drop_connection()
        if wal.length(self.path):
            raise StorageError(f"{self.path} is not whole without its log; nothing was changed, "
                               "try again")
        try:
            wal.sync_beside_sqlite(self.path)
        except OSError as problem:
            raise core.storage_error(problem, self.path) from None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """See one state of the file for several queries, all of it searchable.

        Inside a transaction it is the transaction's own.
        """
        if self.depth or self._reads:
            if self.depth and self.search_tables.behind:
                self.kinds.add("index")
                self.search_tables.catch_up()
            yield
            return
        self.refresh()
        if self.search_tables.behind:
            with contextlib.suppress(Locked, StorageError):
                self._catch_up()
        db = self.db()
        db.execute("BEGIN")
        self._reads += 1
        try:
            self.search_tables.read()
            self.search_tables.catch_up(loosely=True)    # what could not be written
            yield
        finally:
            self._reads -= 1
            db.execute("COMMIT")

    def _catch_up(self) -> None:
        """Bring what a large batch left uncut into the indexes, a transaction a chunk.

        Locked where another process holds the store for longer than this one would need to cut
        it all, in memory alone.
        """
        total, done = self.search_tables.behind, 0
        timeout = min(self.config["storage"]["lock_timeout_seconds"], total / 1_000)
        while self.search_tables.behind:
            with self.transaction(timeout=timeout):
                self.kinds.add("index")
                done -= self.search_tables.cut
                self.search_tables.catch_up(self.search_tables.BULK)
                done += self.search_tables.cut
            if self.progress and total > 500:
                self.progress("indexing", min(done, total), total)

    def row(self, statement: str, *values: object) -> tuple | None:
        return self.db().execute(statement, values).fetchone()

    def mend(self, problem: sqlite3.Error, then: str = "") -> None:
        """Turn SQLite's error into one of ours, or mend a damaged file and return."""
        text = str(problem)
        if "locked" in text or "busy" in text:
            raise Locked(f"another program is using {self.path}; try again when it has "
                         "finished") from None
        code = (errno.ENOSPC if "full" in text else errno.EROFS if "readonly" in text else
                errno.EACCES if "unable to open" in text else
                errno.EIO if "I/O" in text else None)
        if code or not _is_damage(problem):
            raise core.storage_error(OSError(code, text), self.path) from None
        self._rescue(text)
        if then:
            raise StorageError(f"{self.path} was damaged and has been mended; {then}") from None

    @mended
    def refresh(self) -> None:
        """Take over what other processes wrote; costs one small query."""
        if self.depth or self._reads:
            return
        self._follow()
        db = self.db()
        db.execute("BEGIN")
        try:
            self.search_tables.read()
        finally:
            db.execute("COMMIT")
        if self.search_tables.is_strange:
            with self.transaction():               # makes the indexes anew
                pass

    # -- transactions -------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self, *, timeout: float | None = None) -> Iterator[None]:
        """Hold the lock, up to date; commit at the outermost end. Locked after *timeout* s."""
        if self.depth == 0:
            make_folder(self.root)
            self._lock.acquire(timeout=self.config["storage"]["lock_timeout_seconds"]
                               if timeout is None else timeout)
        self.depth += 1
        try:
            if self.depth == 1:
                self._begin()
            yield
            if self.depth == 1:
                self._commit()
        except BaseException as problem:           # memory is ahead of the file: read it again
            if self.depth == 1:
                self._roll_back()
                if isinstance(problem, sqlite3.Error):
                    self.mend(problem, "nothing of this write was stored; repeat it")
            raise
        finally:
            self.depth -= 1
            if self.depth == 0:
                self.kinds, self._touches = set(), []
                self._lock.release()

    def _begin(self) -> None:
        self._follow()
        self.db().execute("BEGIN IMMEDIATE")
        self.search_tables.read(to_write=True)
        if self.search_tables.is_strange:
            self._index_all()
        if self._found or self._has_lost:
            self._store_found()

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._connection is not None:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                self._connection.execute("PRAGMA synchronous=FULL")    # counting had lowered it
        self.search_tables.forget()
        self._hot = None                           # the log may owe the bytes of an earlier one

    def _commit(self) -> None:
        """Make the transaction durable, then take what was removed out of the log."""
        db = self.db()
        if self.kinds:
            if self.search_tables.behind <= self.search_tables.FEW:
                self.search_tables.catch_up()
            self._owes = self.search_tables.behind > 0
            if len(self.search_tables.tail) >= self.search_tables.TAIL:
                self.search_tables.flush()
            self.search_tables.save()
            _raise_generation(db)
        db.execute("COMMIT")
        self._found, self._has_lost = [], False
        if self.kinds or self._touches:
            self._settle_soon()
        if self._pending_purge:
            self._empty_log()
        if {"del", "lift"} & self.kinds:
            self._keep_tombstones()
        try:
            self._write_counts()
        except sqlite3.Error:
            if not self.kinds:
                raise
            self._roll_back()                      # the write itself is stored

    def _write_counts(self) -> None:
        """Count accesses; that is not worth a wait for the disk."""
        if self._touches:
            db = self.db()
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute("BEGIN IMMEDIATE")
            for ids, moment in self._touches:
                self._count(ids, moment)
            _raise_generation(db)
            db.execute("COMMIT")
            db.execute("PRAGMA synchronous=FULL")

    def _empty_log(self) -> None:
        """Write the log into the file and cut it to nothing; a busy reader puts it off."""
        with contextlib.suppress(sqlite3.Error):
            wait, = self.row("PRAGMA busy_timeout")
            self.row("PRAGMA busy_timeout=0")
            try:
                self._pending_purge = self.row("PRAGMA wal_checkpoint(TRUNCATE)")[0] != 0
            finally:
                self.row(f"PRAGMA busy_timeout={wait}")

    def _do(self, kind: str) -> None:
        if not self.depth:
            raise UsageError("records change only inside store.transaction()")
        if not self.kinds:
            self._back_up()
        self.kinds.add(kind)

    def close(self) -> None:
        """Bring the log into the file and close it; it opens again when it is asked."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._is_due = None, False
        if self._connection is not None and not self.depth:
            is_ours = self._pid == os.getpid() and not self._is_void and (
                _identity(self.path) == self._file)
            with contextlib.suppress(sqlite3.Error, Locked, StorageError, ConfigError):
                if self._pending_purge and is_ours:
                    self._empty_log()
                if self._owes and not sys.exc_info()[0]:       # else leave at once
                    self._catch_up()
            if is_ours and wal.length(self.path):
                self._empty_log_or_say()
            self._drop_connection()

    def _empty_log_or_say(self) -> None:
        try:
            self.row("PRAGMA busy_timeout=0")
            self.row("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as problem:
            if "locked" not in str(problem) and "readonly" not in str(problem):
                self.files.notices.append(f"what was written is safe in {FILE}-wal and could not be "
                                    f"brought into {FILE} yet ({problem}); keep both together")


def _is_damage(problem: sqlite3.Error) -> bool:
    text = str(problem)
    return "malformed" in text or "not a database" in text or "no such table" in text


def _raise_generation(db: sqlite3.Connection) -> None:
    """Raise the number in the file's header that tells its states apart; see archive_log."""
    now, = db.execute("PRAGMA application_id").fetchone()
    fresh = now + 1 if 0 < now < 2**31 - 1 else random.SystemRandom().randrange(1, 2**30)
    db.execute(f"PRAGMA application_id={fresh}")


_SETTLING = threading.Lock()         # held while a timer writes a log into its file


@functools.cache
def _fork_safely() -> None:
    """Let no fork happen while a timer is inside of SQLite: the child could wait for ever."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_SETTLING.acquire, after_in_parent=_SETTLING.release,
                            after_in_child=_SETTLING.release)

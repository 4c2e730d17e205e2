"""The file of an archive: opening, one state for several reads, transactions.

A part of hermes_ext/archive.py: ArchiveStore inherits ArchiveFile and sets what its `__init__`
lists.
"""
from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import sys
from collections.abc import Iterator

import hermes_lite as core
from hermes_lite import ConfigError, Locked, StorageError, UsageError, make_folder
from hermes_ext.archive_parts import FILE, connect, mended, uri_of
from hermes_ext.archive_search import SCHEMA, TABLES

__all__ = ["ArchiveFile"]

_VERSION = 2

# memory: seq is the order of storing, doc the number in the search indexes, mark the digest of
# its facts (a duplicate has the same; empty until the text is cut), entry the record as in
# index.json. vector: the pieces of a text as float32; pending: who has none yet, where there are
# any at all.
_SCHEMA = """
CREATE TABLE memory (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
                     doc INTEGER NOT NULL UNIQUE, mark BLOB NOT NULL, accesses INTEGER NOT NULL,
                     made TEXT NOT NULL, source TEXT, long INTEGER NOT NULL,
                     entry TEXT NOT NULL);
CREATE INDEX memory_made ON memory (made);
CREATE INDEX memory_mark ON memory (mark);
CREATE INDEX memory_accesses ON memory (accesses) WHERE accesses > 0;
CREATE INDEX memory_long ON memory (doc) WHERE long;
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
    for statement in _TO_2 if version == 1 else ():
        db.execute(statement)
    db.execute(f"PRAGMA user_version={_VERSION}")
    db.execute("COMMIT")
    return db


# The indexes are made anew. `state` is gone: a process of version 1 that has the file open stops.
_TO_2 = (*(f"DROP TABLE {name}" for name in (*TABLES, "state")
           if name not in ("dense", "spread")),
         *SCHEMA.split(";"),
         "UPDATE counts SET format='1', count=(SELECT count(*) FROM memory)")


class ArchiveFile:
    """Connection, state and transactions of one file."""

    # -- connection ---------------------------------------------------------

    def _db(self) -> sqlite3.Connection:
        """Return the connection; a forked child opens its own."""
        if self._connection is None or self._pid != os.getpid():
            self._drop_connection()
            self._pid, self._is_void = os.getpid(), not self.path.exists()
            self._connection = self._open()
        return self._connection

    def _drop_connection(self) -> None:
        if self._connection is not None and self._pid == os.getpid():
            self._connection.close()
        self._connection, self._hot = None, None
        self._search.forget()

    def _open(self) -> sqlite3.Connection:
        """Open the file; where there is none yet, an empty stand-in that nothing is written to."""
        if self._is_void and not self._depth:
            return _made(connect(":memory:"))
        if (self.root / ".rescue/done").exists():
            self._rescue("a rescue was interrupted")
        try:
            if self._is_void:
                make_folder(self.root)
                with contextlib.suppress(OSError):     # as a checkout made it
                    os.chmod(self.root, 0o700)
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
                core._sync_folder(self.root)
                self._is_void = False
            return self._checked(connect(uri_of(self.path)))
        except sqlite3.OperationalError as problem:
            if "readonly" in str(problem) or "unable to open" in str(problem):
                return self._open_readonly()
            raise
        except OSError as problem:
            raise core._storage_error(problem, self.path) from None

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
        if version == 0 and not self._depth:
            db.close()
            self._is_void = True
            return _made(connect(":memory:"))
        if version > _VERSION:
            raise ConfigError(f"{self.path} was made by a newer version of hermes-lite (format "
                              f"{version}, this one knows {_VERSION}); update it")
        if db.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
            raise sqlite3.OperationalError("attempt to write a readonly database")
        return db if version == _VERSION else _made(db)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """See one state of the file for several queries, all of it searchable.

        Inside a transaction it is the transaction's own.
        """
        if self._depth or self._reads:
            if self._depth and self._search.behind:
                self._kinds.add("index")
                self._search.catch_up()
            yield
            return
        self.refresh()
        if self._search.behind:
            with contextlib.suppress(Locked, StorageError):
                self._catch_up()
        db = self._db()
        db.execute("BEGIN")
        self._reads += 1
        try:
            self._search.read()
            self._search.catch_up(loosely=True)    # what could not be written
            yield
        finally:
            self._reads -= 1
            db.execute("COMMIT")

    def _catch_up(self) -> None:
        """Bring what a large batch left uncut into the indexes, a transaction a chunk.

        Locked where another process holds the store for longer than this one would need to cut
        it all, in memory alone.
        """
        total, done = self._search.behind, 0
        patience = min(self.config["storage"]["lock_timeout_seconds"], total / 1_000)
        while self._search.behind:
            with self.transaction(patience=patience):
                self._kinds.add("index")
                done -= self._search.cut
                self._search.catch_up(self._search.BULK)
                done += self._search.cut
            if self.progress and total > 500:
                self.progress("indexing", min(done, total), total)

    def _row(self, statement: str, *values: object) -> tuple | None:
        return self._db().execute(statement, values).fetchone()

    def _mend(self, problem: sqlite3.Error, then: str = "") -> None:
        """Turn SQLite's error into one of ours, or mend a damaged file and return."""
        text = str(problem)
        if "locked" in text or "busy" in text:
            raise Locked(f"another program is using {self.path}; try again when it has "
                         "finished") from None
        code = (errno.ENOSPC if "full" in text else errno.EROFS if "readonly" in text else
                errno.EACCES if "unable to open" in text else None)
        if code or "malformed" not in text and "not a database" not in text:
            raise core._storage_error(OSError(code, text), self.path) from None
        self._rescue(text)
        if then:
            raise StorageError(f"{self.path} was damaged and has been mended; {then}") from None

    @mended
    def refresh(self) -> None:
        """Take over what other processes wrote; costs one small query."""
        if self._connection is not None and self._is_void and self.path.exists():
            self._drop_connection()
        if self._depth or self._reads:
            return
        db = self._db()
        db.execute("BEGIN")
        try:
            self._search.read()
        finally:
            db.execute("COMMIT")
        if self._search.is_strange:
            with self.transaction():               # makes the indexes anew
                pass

    # -- transactions -------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self, *, patience: float | None = None) -> Iterator[None]:
        """Hold the lock, up to date; commit at the outermost end. Locked after *patience* s."""
        if self._depth == 0:
            make_folder(self.root)
            self._lock.acquire(timeout=self.config["storage"]["lock_timeout_seconds"]
                               if patience is None else patience)
        self._depth += 1
        try:
            if self._depth == 1:
                self._begin()
            yield
            if self._depth == 1:
                self._commit()
        except BaseException as problem:           # memory is ahead of the file: read it again
            if self._depth == 1:
                self._roll_back()
                if isinstance(problem, sqlite3.Error):
                    self._mend(problem, "nothing of this write was stored; repeat it")
            raise
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._kinds, self._touches = set(), []
                self._lock.release()

    def _begin(self) -> None:
        if self._connection is not None and self._is_void:
            self._drop_connection()
        self._db().execute("BEGIN IMMEDIATE")
        self._search.read(to_write=True)
        if self._search.is_strange:
            self._index_all()

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._connection is not None:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                self._connection.execute("PRAGMA synchronous=FULL")    # counting had lowered it
        self._search.forget()
        self._hot = None                           # the log may owe the bytes of an earlier one

    def _commit(self) -> None:
        """Make the transaction durable, then take what was removed out of the log."""
        db = self._db()
        if self._kinds:
            if self._search.behind <= self._search.FEW:
                self._search.catch_up()
            self._owes = self._search.behind > 0
            if len(self._search.tail) >= self._search.TAIL:
                self._search.flush()
            self._search.save()
        db.execute("COMMIT")
        if self._residue:
            self._empty_log()
            self._keep_tombs()
        try:
            self._write_counts()
        except sqlite3.Error:
            if not self._kinds:
                raise
            self._roll_back()                      # the write itself is stored

    def _write_counts(self) -> None:
        """Count accesses; that is not worth a wait for the disk."""
        if self._touches:
            db = self._db()
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute("BEGIN IMMEDIATE")
            for ids, moment in self._touches:
                self._count(ids, moment)
            db.execute("COMMIT")
            db.execute("PRAGMA synchronous=FULL")

    def _empty_log(self) -> None:
        """Write the log into the file and cut it to nothing; a busy reader puts it off."""
        with contextlib.suppress(sqlite3.Error):
            self._residue = self._row("PRAGMA wal_checkpoint(TRUNCATE)")[0] != 0

    def _do(self, kind: str) -> None:
        if not self._depth:
            raise UsageError("records change only inside store.transaction()")
        if not self._kinds:
            self._back_up()
        self._kinds.add(kind)

    def close(self) -> None:
        """Empty the log and close the file; it opens again when it is asked."""
        if self._connection is not None and not self._depth:
            with contextlib.suppress(sqlite3.Error, Locked, StorageError):
                if self._residue:
                    self._empty_log()
                if self._owes and not sys.exc_info()[0]:       # else leave at once
                    self._catch_up()
            self._drop_connection()

"""The file of an archive: its connection, its lock and its log.

`ArchiveFile` opens what lies at the path now, follows a file that was put in its place, and hands
a damaged one to the rescue. `Checkpointer` brings the log into the file soon after a write.
"""
from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import hermes_lite as core
from hermes_lite import ConfigError, Locked, Memory, StorageError, UsageError, make_folder
from hermes_ext.archive import wal
from hermes_ext.archive.connection import (close_untouched, connect, copy_database,
                                           identity, is_damage, own_error, uri_of)
from hermes_ext.archive.loss import LossCheck
from hermes_ext.archive.rescue import Rescue, check_log
from hermes_ext.archive.schema import (FILE, VERSION, bring_up_to_date, empty_database,
                                       version_of)

__all__ = ["ArchiveFile", "rescuing"]

T = TypeVar("T")


def rescuing(method: Callable[..., T]) -> Callable[..., T]:
    """Let a read rescue a damaged file and read again; other faults become our own errors.

    The object has the ArchiveFile as `file`. Inside a transaction nothing is caught: the
    transaction itself rescues the file once it is undone.
    """
    @functools.wraps(method)
    def rescuing_method(self: Any, *args: object, **more: object) -> T:
        try:
            return method(self, *args, **more)
        except sqlite3.Error as problem:
            if self.file.is_in_transaction:
                raise
            self.file.rescue_or_raise(problem)
            return method(self, *args, **more)
    return rescuing_method


class RootLock:
    """The lock of a data root, which its holder may take again."""

    def __init__(self, root: Path, timeout: float) -> None:
        self._lock = core.FileLock(root / ".lock")             # guards every file of the root
        self._timeout = timeout
        self._is_held = False

    @contextlib.contextmanager
    def held(self, timeout: float | None = None) -> Iterator[None]:
        """Hold the lock, or go on where it is held. Locked after *timeout* seconds."""
        if self._is_held:
            yield
            return
        self._lock.acquire(timeout=self._timeout if timeout is None else timeout)
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self._lock.release()


class ArchiveFile:
    """The connection to the file that lies at the path now, and the lock of its root.

    A reader of a root without an archive gets an empty database in memory; the first transaction
    makes the file. *forget* is called when a connection is dropped: what others hold of it in
    memory is void. *before_change* is called before the first change of a transaction.
    """

    def __init__(self, files: core.RootFiles, settings: Mapping[str, Any], *, rescue: Rescue,
                 loss: LossCheck, forget: Callable[[], None],
                 before_change: Callable[[], None]) -> None:
        self.files = files
        self.path = files.root / FILE
        self.is_in_transaction = False
        self.changes: set[str] = set()             # kinds of what the open transaction changed
        self.found_in_log: list[Memory] = []       # behind the damage of a log, not stored yet
        self.has_lost = False                      # a log was damaged, or the file is older
        self._settings = settings
        self._rescue = rescue
        self._loss = loss
        self._forget = forget
        self._before_change = before_change
        self._lock = RootLock(files.root, settings["lock_timeout_seconds"])
        self._connection: sqlite3.Connection | None = None
        self._pid = 0                              # of the process that opened it
        self._identity: tuple[int, int] | None = None          # None: there is no file yet
        self._is_known_empty = False               # nothing was found that could fill it
        self._checkpointer = Checkpointer(self.path, self._loss.note)

    # -- connection ---------------------------------------------------------

    def db(self) -> sqlite3.Connection:
        """Return the connection; a forked child opens its own."""
        if self._connection is None or self._pid != os.getpid():
            self.drop()
            self._pid = os.getpid()
            self._connection = self._open()
            if self._loss.compare(self._connection):
                self.has_lost = True
        return self._connection

    def row(self, statement: str, *values: object) -> Any:
        """Run a statement and return its first row, None where there is none."""
        return self.db().execute(statement, values).fetchone()

    def rows(self, statement: str, *values: object) -> list[Any]:
        """Run a statement and return all its rows."""
        return self.db().execute(statement, values).fetchall()

    def drop(self) -> None:
        """Close the connection; the next use opens it again."""
        if self._connection is not None and self._pid == os.getpid():
            if self.is_void or identity(self.path) == self._identity:
                self._connection.close()
            else:
                close_untouched(self._connection)
        self._connection = None
        self._forget()

    @property
    def is_void(self) -> bool:
        """Whether there was no file yet when it was opened."""
        return self._identity is None

    def _open(self) -> sqlite3.Connection:
        """Open the file, after a rescue where it is damaged, or lost and something is left."""
        self._refuse_files()
        if self._rescue.is_interrupted():
            self.rescue("a rescue was interrupted")
        elif not self.path.exists() and self._rescue.has_remains():
            self.rescue("it is missing")
        try:
            return self._open_file()
        except sqlite3.DatabaseError as problem:
            if not is_damage(problem):
                raise
            self.rescue(str(problem))
            return self._open_file()

    def _refuse_files(self) -> None:
        """ConfigError where the memories of this root are in files by now."""
        if (self.files.root / "index.json").exists():
            raise ConfigError(f"the memories of {self.files.root} are in files (index.json), "
                              "moved by another process perhaps; nothing was written, open them "
                              "again")

    def _open_file(self) -> sqlite3.Connection:
        """Open the file as it is, which sets `_identity`; an empty database where there is none.

        A transaction makes the file. sqlite3.DatabaseError where it is damaged.
        """
        self._identity = None
        if not self.path.exists() and not self.is_in_transaction:
            return empty_database()
        try:
            if not self.path.exists():
                self._create()
            self._check_log()
            db = self._with_tables(connect(uri_of(self.path)))
        except sqlite3.OperationalError as problem:
            if "readonly" not in str(problem) and "unable to open" not in str(problem):
                raise
            db = self._open_readonly()
        except OSError as problem:
            raise core.storage_error(problem, self.path) from None
        if db is None:
            return empty_database()
        self._identity = identity(self.path)
        return db

    def _create(self) -> None:
        """Make an empty file that only its owner can read, and bring its name to the disk."""
        make_folder(self.files.root)
        with contextlib.suppress(OSError):         # a checkout may have made the folder 0755
            os.chmod(self.files.root, 0o700)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        core.fsync_folder(self.files.root)

    def _check_log(self) -> None:
        """Look for damage in a log that no process is writing, before SQLite takes it over.

        Memories behind the damage go to `found_in_log`; the next transaction stores them.
        """
        if not wal.promised_frames(self.path) and not wal.has_page(self.path):
            return
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._lock.held(timeout=0))
            except (Locked, StorageError):         # a writer is at work, or nothing can be written
                return
            found = check_log(self.path, self.files.notices)
        if found is not None:
            self.found_in_log = found
            self.has_lost = True

    def _with_tables(self, db: sqlite3.Connection) -> sqlite3.Connection | None:
        """Make the tables of a new file, or bring old ones up to date.

        Only the holder of the lock makes them, for two that switch to WAL at once lock each
        other out; to a reader a file without tables is none yet: None, and *db* is closed.
        """
        db.execute("PRAGMA busy_timeout=5000")
        version = version_of(db, self.path)
        if version == 0:
            table_count, = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            has_lost_its_tables = self._rescue.has_remains() and not self._is_known_empty
            if table_count or has_lost_its_tables:
                db.close()
                self._is_known_empty = True        # should the rescue find nothing, it is new
                raise sqlite3.DatabaseError("malformed: it holds no memories")
            if not self.is_in_transaction:
                db.close()
                return None
        if db.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
            raise sqlite3.OperationalError("attempt to write a readonly database")
        return db if version == VERSION else bring_up_to_date(db)

    def _open_readonly(self) -> sqlite3.Connection:
        """Open a file in a folder that takes no log, which works where the log is empty."""
        if wal.length(self.path):
            raise StorageError(f"{self.path} cannot be read: its log holds writes and the folder "
                               "is read-only; open it once where it can be written")
        db = connect(f"{uri_of(self.path)}?immutable=1")
        if db.execute("PRAGMA user_version").fetchone() != (VERSION,):
            raise ConfigError(f"{self.path} was made by another version of hermes-lite and cannot "
                              "be brought up to date here; open it once where it can be written")
        return db

    # -- changes ------------------------------------------------------------

    @contextlib.contextmanager
    def exclusive(self, timeout: float | None = None) -> Iterator[None]:
        """Hold the lock for a transaction, whose kinds of changes `changes` collects.

        Locked after *timeout* seconds.
        """
        make_folder(self.files.root)
        with self._lock.held(timeout):
            self.is_in_transaction = True
            try:
                yield
            finally:
                self.is_in_transaction = False
                self.changes = set()

    def change(self, kind: str) -> None:
        """Note that the open transaction changes something; UsageError outside of one."""
        if not self.is_in_transaction:
            raise UsageError("records change only inside store.transaction()")
        if not self.changes:
            self._before_change()
        self.changes.add(kind)

    # -- small values that travel with the file -----------------------------

    def fact(self, name: str) -> str:
        """Return a value, "" where there is none."""
        row = self.row("SELECT value FROM fact WHERE name=?", name)
        return row[0] if row else ""

    def set_fact(self, name: str, value: str) -> None:
        """Keep a value."""
        self.change("fact")
        self.row("INSERT OR REPLACE INTO fact VALUES (?, ?)", name, value)

    # -- another file, or a damaged one -------------------------------------

    def follow(self) -> None:
        """Leave a file that another process has moved, replaced or deleted; `db` opens the new.

        One that was deleted while it was open here is written again.
        """
        self._refuse_files()
        if self._connection is None or self._pid != os.getpid():
            return
        if self.is_void:
            if self.is_in_transaction or self.path.exists():
                self.drop()
            return
        if any(self._is_in_place() for _ in range(3)):     # another may be just committing
            return
        if not self.files.root.is_dir():
            self.drop()
            return
        with self._lock.held():
            if self._is_in_place():
                return
            if identity(self.path) is None:
                self._put_back()
            self.drop()

    def _is_in_place(self) -> bool:
        """Tell whether the file at the path is the one that is open, with what it held."""
        if identity(self.path) != self._identity:
            return False
        if wal.length(self.path):                  # what is newer is in the log
            return True
        generation_here, = self.row("PRAGMA application_id")
        generation_in_place = wal.generation_of(self.path) or 0
        return generation_in_place == generation_here

    def _put_back(self) -> None:
        """Write a file that was deleted while it was open; it can still be read."""
        fresh = self.files.root / ".rescue" / FILE
        make_folder(fresh.parent)
        fresh.unlink(missing_ok=True)
        try:
            self.copy_to(fresh)
        except StorageError:
            return                                 # `_open` makes it of mirror and backups then
        wal.remove_log(self.path)
        os.replace(fresh, self.path)
        core.fsync_folder(self.files.root)
        self.files.notices.append(f"{FILE} had been deleted while it was open; it was written "
                                  "again, with all it held")

    def copy_to(self, path: Path) -> None:
        """Write a whole and checked copy of the file; see `copy_database`."""
        copy_database(self.db(), path)

    def rescue(self, problem: str) -> None:
        """Build a damaged file anew from what can be read; the damaged one is set aside."""
        self.drop()
        with self._lock.held():
            self._rescue.run(problem)

    def rescue_or_raise(self, problem: sqlite3.Error, advice: str = "") -> None:
        """Rescue a damaged file and return; raise any other error of SQLite as one of ours.

        With *advice*, which says what to do now, StorageError is raised after a rescue too.
        """
        error = own_error(problem, self.path)
        if error is not None:
            raise error from None
        self.rescue(str(problem))
        if advice:
            raise StorageError(f"{self.path} was damaged and has been mended; {advice}") from None

    def roll_back(self) -> None:
        """Undo the open transaction, if SQLite still has one."""
        with contextlib.suppress(sqlite3.Error):
            if self._connection is not None:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                self._connection.execute("PRAGMA synchronous=FULL")    # counting had lowered it

    # -- log ----------------------------------------------------------------

    def checkpoint_soon(self) -> None:
        """Have the log written into the file in a moment: then a copy of the file is whole."""
        self._checkpointer.schedule(self._identity)

    def empty_log(self) -> bool:
        """Write the log into the file and cut it to nothing, without waiting for anybody.

        False where that cannot be done now, as while another process reads.
        """
        with contextlib.suppress(sqlite3.Error):
            timeout_before, = self.row("PRAGMA busy_timeout")
            try:
                return self._truncate_log(milliseconds=0)
            finally:
                self.row(f"PRAGMA busy_timeout={timeout_before}")
        return False

    def _truncate_log(self, *, milliseconds: int) -> bool:
        """Empty the log, waiting for readers; sets busy_timeout. False where one is still busy."""
        self.row(f"PRAGMA busy_timeout={milliseconds}")
        is_busy, _, _ = self.row("PRAGMA wal_checkpoint(TRUNCATE)")
        return not is_busy

    def finish(self) -> None:
        """Write the log into the file and close it: the file alone is whole, and on the disk.

        StorageError or Locked where that cannot be had; the log stays then.
        """
        timeout = int(1_000 * self._settings["lock_timeout_seconds"])
        try:
            if not self._truncate_log(milliseconds=timeout):
                raise Locked(f"another program is reading {self.path}; try again when it has "
                             "finished")
        except sqlite3.Error as problem:
            self.rescue_or_raise(problem, "try again")
        self._loss.note(self.db())
        self.drop()
        if wal.length(self.path):
            raise StorageError(f"{self.path} is not whole without its log; nothing was changed, "
                               "try again")
        try:
            wal.sync_beside_sqlite(self.path)
        except OSError as problem:
            raise core.storage_error(problem, self.path) from None

    def is_open_in_place(self) -> bool:
        """Tell whether this process has the file open that lies at the path."""
        return (self._connection is not None and self._pid == os.getpid() and not self.is_void
                and identity(self.path) == self._identity)

    def close(self) -> None:
        """Bring the log into the file and close it; it opens again when it is asked."""
        self._checkpointer.cancel()
        if self.is_open_in_place():
            try:
                if wal.length(self.path):
                    self._truncate_log(milliseconds=0)
                self._loss.note(self.db())
            except sqlite3.Error as problem:
                if "locked" not in str(problem) and "readonly" not in str(problem):
                    self.files.notices.append(
                        f"what was written is safe in {FILE}-wal and could not be brought into "
                        f"{FILE} yet ({problem}); keep both together")
        self.drop()


class Checkpointer:
    """Brings the log into the file half a second after a write, in a thread of its own.

    *after* is called with its connection then.
    """
    _DELAY = 0.5                                   # seconds

    def __init__(self, path: Path, after: Callable[[sqlite3.Connection], None]) -> None:
        self._path = path
        self._after = after
        self._timer: threading.Timer | None = None
        self._is_due = False
        self._pid = 0                              # a forked child has no timer

    def schedule(self, opened: tuple[int, int] | None) -> None:
        """Start the timer, unless it runs; *opened* is the identity of the file that is meant."""
        if self._is_due and self._pid == os.getpid():
            return
        self._is_due = True
        self._pid = os.getpid()
        self._timer = threading.Timer(self._DELAY, self._run, [opened])
        self._timer.daemon = True
        try:
            _hold_forks_back()
            self._timer.start()
        except RuntimeError:                       # no thread can be had: `close` does it
            self._timer = None

    def cancel(self) -> None:
        """Stop the timer: whoever closes the file does it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._is_due = False

    def _run(self, opened: tuple[int, int] | None) -> None:
        self._is_due = False
        with _CHECKPOINTING, contextlib.suppress(sqlite3.Error, OSError):
            if identity(self._path) == opened and wal.is_of_file(self._path):
                with contextlib.closing(connect(f"{uri_of(self._path)}?mode=rw")) as db:
                    db.execute("PRAGMA busy_timeout=0")
                    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    self._after(db)


_CHECKPOINTING = threading.Lock()    # held while a timer is inside of SQLite


@functools.cache
def _hold_forks_back() -> None:
    """Let no fork happen while a timer is inside of SQLite: the child could wait for ever."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_CHECKPOINTING.acquire,
                            after_in_parent=_CHECKPOINTING.release,
                            after_in_child=_CHECKPOINTING.release)

"""Connections to SQLite files, and what a value must be for SQLite to take it."""
from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
import sys
from collections.abc import Iterable
from pathlib import Path

import hermes_lite as core
from hermes_lite import Locked, StorageError

__all__ = ["close_untouched", "connect", "copy_database", "identity", "is_damage", "json_of",
           "own_error", "storable", "uri_of"]

_CODES = {"full": errno.ENOSPC, "readonly": errno.EROFS, "unable to open": errno.EACCES,
          "I/O": errno.EIO}         # by words of SQLite's message


def connect(place: str) -> sqlite3.Connection:
    """Open a file (by URI) or memory; every statement commits by itself unless in BEGIN."""
    db = sqlite3.connect(place, uri=True, isolation_level=None, check_same_thread=False,
                         cached_statements=256)
    for pragma in ("synchronous=FULL", "foreign_keys=ON", "secure_delete=ON",
                   "cache_size=-64000"):
        db.execute(f"PRAGMA {pragma}")
    return db


def uri_of(path: Path) -> str:
    """Return a path as the URI that SQLite opens."""
    return "file:" + "".join(f"%{ord(c):02x}" if c in "%?#" else c for c in str(path))


def identity(path: Path) -> tuple[int, int] | None:
    """Return (device, inode), by which a file is known again; None where there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def is_damage(problem: sqlite3.Error) -> bool:
    """Tell whether SQLite's error means that the file itself is damaged."""
    text = str(problem)
    return any(words in text for words in ("malformed", "not a database", "no such table"))


def own_error(problem: sqlite3.Error, path: Path) -> StorageError | Locked | None:
    """Return SQLite's error as one of ours; None where it means that the file is damaged."""
    text = str(problem)
    if "locked" in text or "busy" in text:
        return Locked(f"another program is using {path}; try again when it has finished")
    for words, code in _CODES.items():
        if words in text:
            return core.storage_error(OSError(code, text), path)
    return None if is_damage(problem) else core.storage_error(OSError(None, text), path)


def copy_database(db: sqlite3.Connection, path: Path) -> None:
    """Write a whole copy of an open database, with what its log holds, by SQLite's backup.

    The copy is 0600, on the disk and checked when this returns; StorageError otherwise.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as problem:
        raise core.storage_error(problem, path) from None
    try:
        with contextlib.closing(sqlite3.connect(uri_of(path), uri=True)) as copy:
            db.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
            checked, = copy.execute("PRAGMA integrity_check(1)").fetchone()
        if checked != "ok":
            raise StorageError(f"the copy {path} is not whole: {checked}")
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
        core.fsync_folder(path.parent)
    except StorageError:                           # it is an OSError, too
        path.unlink()
        raise
    except (OSError, sqlite3.Error) as problem:
        path.unlink()
        raise StorageError(f"cannot write {path}: {problem}; nothing of it was kept") from None


def close_untouched(db: sqlite3.Connection) -> None:
    """Close a connection whose file is no longer at its path.

    SQLite would write the log into the file, and delete log and -shm by their names, which are
    those of another file now. Before Python 3.12 it cannot be told not to: the connection then
    stays open until the process ends, and the kernel closes it.
    """
    with contextlib.suppress(sqlite3.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")
    if sys.version_info >= (3, 12):
        db.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)
        db.close()
    else:
        import ctypes
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))


def storable(text: str) -> str:
    """Replace lone surrogates, which SQLite does not take as text."""
    return text.encode("utf-8", "replace").decode()


def json_of(values: Iterable[object]) -> str:
    """Return values as the JSON array that `IN (SELECT value FROM json_each(?))` reads."""
    return storable(json.dumps(list(values), ensure_ascii=False))

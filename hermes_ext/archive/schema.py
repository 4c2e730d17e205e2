"""The database of an archive: its tables, and how a connection to it is made.

memory     seq        the order of storing
           id
           doc        the number of its text in the search tables; another text gets another
           accesses   access_count, by which a search knows the hot ones
           made       created_at
           source     as in the record
           entry      the record as in index.json; a BLOB where it is compressed (zstd.py)
tag        (tag as it is compared, created_at in seconds, seq), a row for each tag of a memory
vector     the dense vectors of a memory, one a piece of its text, as little-endian float32
pending    the memories that have no vector yet, where vectors are kept at all
tombstone  (keyed hash of a text, id, why, when), see tombstones.py
fact       values that travel with the file: tomb_key, the key of those hashes; vectors, whose
           vectors are kept

The tables of the search are specified in search.py. `user_version` is the version of the format.
`application_id` is the generation: a number that starts at random and that every transaction
raises, so that the header alone tells which state a file, or a page in its log, is of.
"""
from __future__ import annotations

import contextlib
import os
import random
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from hermes_lite import ConfigError, MissingPackage
from hermes_ext.archive import wal
from hermes_ext.archive.connection import connect, uri_of
from hermes_ext.archive.search import SEARCH_SCHEMA, SEARCH_TABLES
from hermes_ext.archive.zstd import check_compressed

__all__ = ["FILE", "VERSION", "bring_up_to_date", "empty_database", "faults_of", "is_sound",
           "raise_generation", "version_of"]

FILE = "memory_archive.db"
VERSION = 4

_RECORD_SCHEMA = """
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
CREATE TABLE tombstone (fingerprint TEXT PRIMARY KEY, id TEXT NOT NULL, why TEXT NOT NULL,
                        at TEXT NOT NULL);
CREATE INDEX tombstone_id ON tombstone (id);
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

# From the formats before this one: their search tables go, and are made anew from the records.
_FORMER_SEARCH_TABLES = ("state", "spread", "dense", "slice", "gram", "claim", "sentence",
                         "vocabulary")
_FROM_2 = ("DROP INDEX memory_long", "ALTER TABLE memory DROP COLUMN long",
           "DROP INDEX memory_mark", "ALTER TABLE memory DROP COLUMN mark")
_FROM_3 = ("ALTER TABLE tomb RENAME TO tombstone",
           "ALTER TABLE tombstone RENAME COLUMN mark TO fingerprint", "DROP INDEX tomb_id",
           "CREATE INDEX tombstone_id ON tombstone (id)")


def version_of(db: sqlite3.Connection, path: Path) -> int:
    """Return the version of a file's format, 0 without tables; ConfigError for a newer one."""
    version, = db.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise ConfigError(f"{path} was made by a newer version of hermes-lite (format {version}, "
                          f"this one knows {VERSION}); update it")
    return version


def bring_up_to_date(db: sqlite3.Connection) -> sqlite3.Connection:
    """Make the tables, or change those of an earlier format, unless another process just did."""
    db.execute("BEGIN IMMEDIATE")
    version, = db.execute("PRAGMA user_version").fetchone()
    if version == 0:
        _run(db, (_RECORD_SCHEMA + SEARCH_SCHEMA).split(";"))
        db.execute("INSERT INTO fact VALUES ('tomb_key', ?)", (os.urandom(32).hex(),))
    elif version < VERSION:
        _run(db, _FROM_2 if version < 3 else ())
        _run(db, _FROM_3)
        _run(db, (f"DROP TABLE IF EXISTS {name}"
                  for name in ("counts", *SEARCH_TABLES, *_FORMER_SEARCH_TABLES)))
        _run(db, SEARCH_SCHEMA.split(";"))
        db.execute("UPDATE counts SET format='earlier', count=(SELECT count(*) FROM memory)")
    raise_generation(db)
    db.execute(f"PRAGMA user_version={VERSION}")
    db.execute("COMMIT")
    return db


def _run(db: sqlite3.Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        db.execute(statement)


def empty_database() -> sqlite3.Connection:
    """Return a database in memory that holds nothing, for a reader of an archive not yet made."""
    return bring_up_to_date(connect(":memory:"))


def raise_generation(db: sqlite3.Connection) -> None:
    """Raise the generation in the file's header; see the head of this module."""
    generation, = db.execute("PRAGMA application_id").fetchone()
    if 0 < generation < 2**31 - 1:
        generation += 1
    else:
        generation = random.SystemRandom().randrange(1, 2**30)
    db.execute(f"PRAGMA application_id={generation}")


def is_sound(path: Path, *, frames: bool = False) -> bool:
    """Ask SQLite whether a file is a whole archive; reads all of it and changes nothing.

    *frames*: every compressed record must be readable as well; MissingPackage where none can be.
    """
    try:
        with contextlib.closing(connect(f"{uri_of(path)}?mode=ro")) as db:
            db.execute("SELECT count FROM counts").fetchone()
            is_whole = db.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)
            if is_whole and frames:
                check_compressed(db)
            return is_whole
    except sqlite3.Error:
        return False


def faults_of(path: Path, *, has_remains: bool) -> list[str]:
    """Say what is wrong with an archive, without mending it; reads all of it.

    *has_remains*: its root shows that there were memories.
    """
    if not path.exists():
        return [f"{FILE} is missing"] if has_remains else []
    if wal.has_page(path) and not wal.is_of_file(path):
        return [f"{FILE}-wal belongs to another state of {FILE}"]
    can_write = os.access(path.parent, os.W_OK)
    mode = "mode=ro" if can_write else "immutable=1"
    try:
        with contextlib.closing(connect(f"{uri_of(path)}?{mode}")) as db:
            return _faults_of_tables(db, has_remains=has_remains)
    except sqlite3.Error as problem:
        return [f"{FILE} cannot be read: {problem}"]
    except MissingPackage as problem:
        return [f"{FILE} cannot be checked: {problem}"]


def _faults_of_tables(db: sqlite3.Connection, *, has_remains: bool) -> list[str]:
    """Say what is wrong; sqlite3.Error or MissingPackage where it cannot all be read."""
    found = [row for row, in db.execute("PRAGMA integrity_check(3)") if row != "ok"]
    version, = db.execute("PRAGMA user_version").fetchone()
    if version == 0:                               # there are no tables yet
        if has_remains:
            found.append(f"{FILE} is empty, and what lies beside it shows that it was not")
        return found
    check_compressed(db)
    count, = db.execute("SELECT count(*) FROM memory").fetchone()
    indexed, = db.execute("SELECT count FROM counts").fetchone()
    if indexed != count:
        found.append(f"the indexes hold {indexed} memories of {count}")
    return found

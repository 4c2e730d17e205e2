"""Archive: all memories in one SQLite file, for 10,000 of them and more.

    hermes_lite.py migrate --to archive      hermes_lite.py migrate --to files

`memory_archive.db` in the data root holds the records, the search indexes, the vectors, what was
forgotten and the keys: copying this one file, while no process has it open, is a complete move.
A root with such a file and no index.json uses it; a new root does with `storage.backend: archive`
in config.yaml. Answers, ranking and promises are those of the store of files:

    kill       a transaction is one of SQLite's (WAL, synchronous=FULL): whole, or not there
    processes  one writes at a time, readers never wait; each sees what the others have committed
    forgotten  deleted bytes are overwritten (secure_delete) and the log is emptied; a keyed hash
               stays. A reader that is busy then leaves its old pages in the log until it ends
    damage     a file that SQLite cannot read is set aside; records are read from its pages, from
               a Markdown mirror or a daily backup in the same root, in this order
    backups    of up to 32 MB of records a copy is kept in backups/ on the first write of a day;
               above that use `backup`, or copy the file

Not there: encryption (refused with HERMES_ENCRYPT=on; use an encrypted disk, or files) and the
Markdown mirror (`export --format markdown` writes one). Access counts are not synced to the disk.
About 2 KB a memory. Every thousandth write takes some tenths of a second: it brings the newest
thousand into the indexes (archive_search.py says how).
"""
from __future__ import annotations

import contextlib
import errno
import functools
import heapq
import json
import os
import sqlite3
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import hermes_lite as core
from hermes_lite import (Config, ConfigError, DamagedData, FileStore, Locked, Memory, Operation,
                         Param, Refused, StorageError, UsageError, VectorCache, Vectorizer,
                         from_json, is_safe_id, make_folder, normalise, redact, set_aside,
                         to_json, utc_now)
from hermes_ext.archive_search import SCHEMA, TAIL, Graph, SearchTables

__all__ = ["ArchiveStore", "FILE", "open_store"]

T = TypeVar("T")
FILE, _VERSION = "memory_archive.db", 1
_DAILY = 32_000_000                  # bytes of records; above, no copy is made by itself
_CHUNK = 4_096                       # rows read at a time

# memory: seq is the order of storing, doc the number in the search indexes, mark the digest of
# its facts (a duplicate has the same), entry the record as in index.json. vector: the pieces of a
# text as float32; pending: who has none yet, where there are any at all.
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


def open_store(root: Path, config: Config, *,
               clock: Callable[[], datetime] = utc_now) -> ArchiveStore:
    """Open the archive of a root; ConfigError where it is encrypted, or still in files."""
    if config.env("HERMES_ENCRYPT").lower() in ("on", "1", "true"):
        raise ConfigError("the archive has no encryption and HERMES_ENCRYPT is on; unset it and "
                          "use an encrypted disk, or set storage.backend to files")
    if not (root / FILE).exists() and (root / "index.json").exists():
        raise ConfigError(f"storage.backend is archive and the memories of {root} are still in "
                          "files; run `migrate --to archive` to move them")
    return ArchiveStore(root, config, clock=clock)


def _connect(place: str) -> sqlite3.Connection:
    """Open a file (by URI) or memory; every statement commits by itself unless in BEGIN."""
    db = sqlite3.connect(place, uri=True, isolation_level=None, check_same_thread=False,
                         cached_statements=256)
    for pragma in ("synchronous=FULL", "foreign_keys=ON", "secure_delete=ON",
                   "cache_size=-16000"):
        db.execute(f"PRAGMA {pragma}")
    return db


def _uri(path: Path) -> str:
    """Return a path as the URI that SQLite opens."""
    return "file:" + "".join(f"%{ord(c):02x}" if c in "%?#" else c for c in str(path))


def _made(db: sqlite3.Connection) -> sqlite3.Connection:
    """Make the tables where another process has not made them meanwhile."""
    db.execute("BEGIN IMMEDIATE")
    if db.execute("PRAGMA user_version").fetchone() == (0,):
        for statement in (SCHEMA + _SCHEMA).split(";"):
            db.execute(statement)
        db.execute("INSERT INTO fact VALUES ('tomb_key', ?)", (os.urandom(32).hex(),))
        db.execute(f"PRAGMA user_version={_VERSION}")
    db.execute("COMMIT")
    return db


def _is_sound(path: Path) -> bool:
    """Ask SQLite whether a file is whole; reads all of it."""
    try:
        with contextlib.closing(_connect(_uri(path))) as db:
            return db.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)
    except sqlite3.Error:
        return False


def _whole(text: str) -> str:
    """Replace lone surrogates, which SQLite does not take as text."""
    return text.encode("utf-8", "replace").decode()


def _seconds(created_at: str) -> int:
    """Return a time as seconds since 1970; one that cannot be read is before all others."""
    moment = core.parse_time(created_at)
    return int(moment.timestamp()) if moment else -1


def _floats(data: bytes) -> array:
    values = array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _mended(method: Callable[..., T]) -> Callable[..., T]:
    """Let a read mend a damaged file and look again; other faults become our own errors."""
    @functools.wraps(method)
    def careful(self: ArchiveStore, *args: object, **more: object) -> T:
        try:
            return method(self, *args, **more)
        except sqlite3.Error as problem:
            if self._depth:
                raise                              # the transaction sees to it
            self._mend(problem)
            return method(self, *args, **more)
    return careful


class ArchiveStore:
    """Memories in one SQLite file; the head of this module says what it promises."""
    write, read, holding = FileStore.write, FileStore.read, FileStore.holding
    describe_rooms = FileStore.describe_rooms
    _from_mirror, _from_backup = FileStore._from_mirror, FileStore._from_backup
    _read_backup, _drop_old_backups = FileStore._read_backup, FileStore._drop_old_backups
    cipher = None

    def __init__(self, root: Path, config: Config, *,
                 clock: Callable[[], datetime] = utc_now) -> None:
        self.root, self.config, self.clock = root, config, clock
        self.path = root / FILE
        self.notices: list[str] = []
        self.backend = "local"
        self.progress: Callable[[str, int, int], None] | None = None
        self._connection: sqlite3.Connection | None = None
        self._pid = self._depth = self._reads = 0
        self._is_void = True                       # there is no file yet
        self._lock = core.FileLock(root / ".lock")
        self._kinds: set[str] = set()              # what the open transaction has done
        self._touches: list[tuple[Sequence[str], datetime]] = []
        self._gone: set[str] = set()               # ids that this process removed
        self._residue = False                      # what was removed may stand in the log
        self._backup_day = self._tomb_key = ""
        self._hot: dict[int, float] | None = None
        self._seen = -1                            # PRAGMA data_version of the hot ones
        self._search = SearchTables(self._db, config["retrieval"])

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
            return _made(_connect(":memory:"))
        if (self.root / ".rescue/done").exists():
            self._rescue("a rescue was interrupted")
        try:
            if self._is_void:
                make_folder(self.root)
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
                core._sync_folder(self.root)
                self._is_void = False
            return self._checked(_connect(_uri(self.path)))
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
        return _connect(f"{_uri(self.path)}?immutable=1")

    def _checked(self, db: sqlite3.Connection) -> sqlite3.Connection:
        """Make the tables of a new file; refuse one of a newer version."""
        version, = db.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise ConfigError(f"{self.path} was made by a newer version of hermes-lite (format "
                              f"{version}, this one knows {_VERSION}); update it")
        db.execute("PRAGMA busy_timeout=5000")
        if db.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
            raise sqlite3.OperationalError("attempt to write a readonly database")
        return db if version else _made(db)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """See one state of the file for several queries; inside a transaction, its own."""
        db = self._db()
        if self._depth or self._reads:
            yield
            return
        db.execute("BEGIN")
        self._reads += 1
        try:
            self._search.read()
            yield
        finally:
            self._reads -= 1
            db.execute("COMMIT")

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

    def _rescue(self, problem: str) -> None:
        """Build the file anew from what can be read; the damaged one is set aside."""
        self._drop_connection()
        if not self._depth:
            self._lock.acquire(timeout=self.config["storage"]["lock_timeout_seconds"])
        try:
            if (self.root / ".rescue/done").exists():        # of a process that was killed
                self._take_rescued()
            if not _is_sound(self.path):           # else another process has mended it
                said = self._build_anew(problem)
                self._take_rescued()
                self.notices.append(said)
        finally:
            if not self._depth:
                self._lock.release()

    def _build_anew(self, problem: str) -> str:
        """Fill a fresh file in `.rescue/`; return the sentence that says from where."""
        import shutil
        from hermes_ext import archive_rescue
        place = self.root / ".rescue"
        shutil.rmtree(place, ignore_errors=True)
        facts, tombs = archive_rescue.facts(self.path), self._rescued_tombs()
        gone, found, counts = {tomb["id"] for tomb in tombs[1].values()}, set(), []
        fresh = ArchiveStore(place, self.config, clock=self.clock)
        with fresh.transaction():
            for source, memories in (("its pages", archive_rescue.records(self.path)),
                                     ("the Markdown mirror", self._from_mirror()),
                                     ("the newest good backup", self._from_backup())):
                before = len(found)
                for each in memories:
                    if each.id not in found and each.id not in gone:
                        found.add(each.id)
                        fresh.put(each)
                counts += [f"{len(found) - before} from {source}"] if len(found) > before else []
            for name, value in facts.items():
                if name != "vectors":
                    fresh.set_fact(name, value)
            fresh.set_tombs(*tombs)
        fresh.close()
        if not found:
            shutil.rmtree(place, ignore_errors=True)
            raise DamagedData(f"{self.path} cannot be read ({problem}) and there is no mirror and "
                              "no backup to recover from; it was left as it is: put a good copy "
                              "in its place, or move it away to start empty")
        aside = f"{FILE}.damaged-{self.clock():%Y%m%d_%H%M%S}"
        core.write_atomic(place / "done", aside.encode())
        return f"{FILE} was damaged (set aside as {aside}); recovered {', '.join(counts)}"

    def _rescued_tombs(self) -> tuple[str, dict[str, dict[str, str]]]:
        """Return key and tombstones: of the damaged file, else of the copy in backups/."""
        from hermes_ext import archive_rescue
        key, found = archive_rescue.facts(self.path).get("tomb_key", ""), archive_rescue.tombs(
            self.path)
        with contextlib.suppress(ValueError, LookupError, TypeError):
            copy = from_json(self.read("backups/tombstones.bak") or b"{}")
            if key in ("", copy["key"]):
                return copy["key"], {**copy["tombstones"], **found}
        return key, found

    def _take_rescued(self) -> None:
        """Put the rescued file in place; done again from the start when it was killed half-way."""
        import shutil
        place = self.root / ".rescue"
        if (place / FILE).exists():
            aside = self.root / (place / "done").read_text()
            if not aside.exists():
                os.link(self.path, aside)
            log = self.path.with_name(f"{FILE}-wal")
            if log.exists():                       # of the damaged file: never of the new one
                os.replace(log, f"{aside}-wal")
            self.path.with_name(f"{FILE}-shm").unlink(missing_ok=True)
            os.replace(place / FILE, self.path)
            core._sync_folder(self.root)
        shutil.rmtree(place, ignore_errors=True)

    # -- records ------------------------------------------------------------

    def ids(self) -> list[str]:
        """Return every id, oldest first as stored."""
        return [row[0] for row in self._db().execute("SELECT id FROM memory ORDER BY seq")]

    @_mended
    def text(self, memory_id: str) -> str | None:
        """Return a memory's content alone."""
        row = self._row("SELECT entry FROM memory WHERE id=?", memory_id)
        return row and json.loads(row[0])["content"]

    @_mended
    def get(self, memory_id: str) -> Memory | None:
        row = self._row("SELECT entry FROM memory WHERE id=?", memory_id)
        return row and Memory.from_entry(json.loads(row[0]))

    @_mended
    def entry(self, memory_id: str) -> dict[str, object] | None:
        """Return a memory's fields unchecked, which is faster."""
        row = self._row("SELECT entry FROM memory WHERE id=?", memory_id)
        return row and json.loads(row[0])

    def __iter__(self) -> Iterator[Memory]:
        last = 0
        while rows := self._after(last):
            last = rows[-1][0]
            for _, entry in rows:
                yield Memory.from_entry(json.loads(entry))

    @_mended
    def _after(self, seq: int) -> list[tuple[int, str]]:
        return self._db().execute("SELECT seq, entry FROM memory WHERE seq > ? ORDER BY seq "
                                  "LIMIT ?", (seq, _CHUNK)).fetchall()

    @_mended
    def __len__(self) -> int:
        return self._row("SELECT count FROM state")[0]

    @_mended
    def is_taken(self, memory_id: str) -> bool:
        """Tell whether the id is in use or was: an id never comes back."""
        return memory_id in self._gone or self._row(
            "SELECT 1 FROM memory WHERE id=? UNION ALL SELECT 1 FROM tomb WHERE id=?",
            memory_id, memory_id) is not None

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
        self._search.read()
        if self._search.known_format != self._search.format:
            self._index_all()

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        self._search.forget()
        self._hot, self._residue = None, False

    def _commit(self) -> None:
        """Make the transaction durable, then take what was removed out of the log."""
        db = self._db()
        if self._kinds:
            if len(self._search.tail) >= TAIL:
                self._search.flush()
            self._search.save()
            self._row("UPDATE state SET changes = changes + 1")
        db.execute("COMMIT")
        if self._touches:
            db.execute("PRAGMA synchronous=NORMAL")    # a count is not worth a wait for the disk
            db.execute("BEGIN IMMEDIATE")
            for ids, moment in self._touches:
                self._count(ids, moment)
            db.execute("COMMIT")
            db.execute("PRAGMA synchronous=FULL")
        if self._residue:
            self._empty_log()
            self._keep_tombs()

    def _empty_log(self) -> None:
        """Write the log into the file and cut it to nothing; a busy reader puts it off."""
        with contextlib.suppress(sqlite3.Error):
            self._residue = self._row("PRAGMA wal_checkpoint(TRUNCATE)")[0] != 0

    def _do(self, kind: str) -> None:
        if not self._depth:
            raise UsageError("records change only inside store.transaction()")
        self._kinds.add(kind)
        self._back_up()

    def put(self, memory: Memory) -> None:
        """Add a memory, or replace the one with its id; UsageError when no file can hold it."""
        try:
            entry = memory.entry()
            memory = Memory.from_entry(from_json(to_json(entry)))
        except (ValueError, TypeError, RecursionError) as problem:
            raise UsageError(f"this memory cannot be stored: {problem}") from None
        self._do("put")
        self._put(memory, to_json(entry).decode())

    def _put(self, memory: Memory, entry: str) -> None:
        old = self._row("SELECT seq, doc, entry FROM memory WHERE id=?", memory.id)
        text = memory.content
        same = old is not None and json.loads(old[2])["content"] == text
        if old and not same:
            self._search.retire(old[1], json.loads(old[2])["content"])
            self._row("DELETE FROM vector WHERE seq=?", old[0])
            self._row("INSERT OR IGNORE INTO pending VALUES (?)", old[0])
        doc = old[1] if same else self._search.add(text)
        values = (doc, core._fact_mark(text), memory.access_count, _whole(memory.created_at),
                  memory.source and _whole(memory.source),
                  len(normalise(text)) > core.LONG_TEXT, entry, memory.id)
        if old:
            self._row("UPDATE memory SET doc=?, mark=?, accesses=?, made=?, source=?, long=?, "
                      "entry=? WHERE id=?", *values)
        else:
            self._row("INSERT INTO memory (doc, mark, accesses, made, source, long, entry, id) "
                      "VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *values)
            if self.vector_kind():
                self._row("INSERT INTO pending SELECT seq FROM memory WHERE id=?", memory.id)
        self._heat(doc, memory.access_count)
        if old and not same:
            self._cool(old[1])
        self._set_tags(memory, old)

    def _set_tags(self, memory: Memory, old: tuple | None) -> None:
        before = old and json.loads(old[2])
        if memory.tags or before and before.get("tags"):
            seq = (old or self._row("SELECT seq FROM memory WHERE id=?", memory.id))[0]
            self._row("DELETE FROM tag WHERE seq=?", seq)
            at = _seconds(memory.created_at)
            self._db().executemany("INSERT OR IGNORE INTO tag VALUES (?, ?, ?)", (
                (_whole(tag), at, seq) for tag in core.tag_forms(memory.tags)))

    def remove(self, memory_id: str, *, why: str | None, also: Iterable[str] = ()) -> None:
        """Delete a memory and leave a tombstone: its id, keyed hashes of its text, *why*.

        *also* are other wordings under which it may come back. *why* None leaves no tombstone.
        """
        self._do("del")
        row = self._row("SELECT seq, doc, entry FROM memory WHERE id=?", memory_id)
        text = row and json.loads(row[2])["content"]
        if why:
            tomb = memory_id, redact(str(why))[0], core.iso(self.clock())
            self.bury((self._mark(each), *tomb) for each in (text or "", *also))
        if row:
            self._search.retire(row[1], text)
            self._row("DELETE FROM memory WHERE seq=?", row[0])
            self._cool(row[1])
        self._gone.add(memory_id)
        self._residue = True

    def touch(self, memory_ids: Sequence[str], moment: datetime) -> None:
        """Count an access of each, at the end of the transaction and without waiting for a sync."""
        if not self._depth:
            raise UsageError("records change only inside store.transaction()")
        self._touches.append((tuple(memory_ids), moment))

    def _count(self, memory_ids: Sequence[str], moment: datetime) -> None:
        for memory_id in memory_ids:
            row = self._row("SELECT doc, entry FROM memory WHERE id=?", memory_id)
            if row:
                entry = {**core._touched(json.loads(row[1])), "last_accessed": core.iso(moment)}
                self._row("UPDATE memory SET entry=?, accesses=? WHERE id=?",
                          to_json(entry).decode(), entry["access_count"], memory_id)
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

    def _boosts(self) -> dict[int, float]:
        """Return the factor of each hot document, read again when another process wrote."""
        seen, = self._row("PRAGMA data_version")
        if self._hot is None or seen != self._seen:
            how = self.config["retrieval"]
            self._hot = dict.fromkeys((doc for doc, in self._db().execute(
                "SELECT doc FROM memory WHERE accesses > 0 AND accesses >= ?",
                (how["hot_threshold"],))), float(how["hot_boost"]))
            self._seen = seen
        return self._hot

    # -- tombstones ---------------------------------------------------------

    @_mended
    def forgotten(self, text: str) -> Mapping[str, str] | None:
        """Return {id, why, at} when a memory of this text was removed, None otherwise."""
        if self._row("SELECT 1 FROM tomb LIMIT 1") is None:
            return None
        row = self._row("SELECT id, why, at FROM tomb WHERE mark=?", self._mark(text))
        return row and dict(zip(("id", "why", "at"), row))

    @_mended
    def removals(self) -> dict[str, dict[str, str]]:
        """Return {id: {id, why, at}} of every memory that left a tombstone."""
        return {row[0]: dict(zip(("id", "why", "at"), row)) for row in self._db().execute(
            "SELECT id, why, at FROM tomb")}

    def lift(self, text: str, *, memory_id: str = "") -> None:
        """Drop the tombstones of *text*, and of that id: a person wants it back."""
        row = self._row("SELECT id FROM tomb WHERE mark=?", self._mark(text))
        for each in {memory_id, *(row or ())} - {""}:
            self._do("lift")
            if self._row("SELECT 1 FROM tomb WHERE id=?", each):
                self._row("DELETE FROM tomb WHERE id=?", each)
                self._gone.add(each)

    def bury(self, tombs: Iterable[tuple[str, str, str, str]]) -> None:
        """Add tombstones: mark, id, why, at."""
        self._do("del")
        self._db().executemany("INSERT OR REPLACE INTO tomb VALUES (?, ?, ?, ?)", tombs)

    @_mended
    def removals(self) -> dict[str, dict[str, str]]:
        """Return {id: {id, why, at}} of every memory that left a tombstone."""
        return {i: {"id": i, "why": why, "at": at} for i, why, at in self._db().execute(
            "SELECT id, why, at FROM tomb ORDER BY rowid")}

    @_mended
    def tombs(self) -> tuple[str, dict[str, dict[str, str]]]:
        """Return the key and {mark: {id, why, at}} of all that was forgotten."""
        rows = self._db().execute("SELECT mark, id, why, at FROM tomb ORDER BY mark")
        return self.fact("tomb_key"), {
            mark: {"id": i, "why": why, "at": at} for mark, i, why, at in rows}

    def set_tombs(self, key: str, tombs: Mapping[str, Mapping[str, str]]) -> None:
        """Take over the tombstones of another store, and their key, in place of any here."""
        self._do("del")
        self._row("DELETE FROM tomb")
        self.bury((mark, tomb["id"], tomb["why"], tomb["at"]) for mark, tomb in tombs.items())
        if key:
            self.set_fact("tomb_key", key)

    def _mark(self, text: str) -> str:
        self._tomb_key = self._tomb_key or self.fact("tomb_key")
        return core.tomb_mark(self._tomb_key, text)

    def _keep_tombs(self) -> None:
        """Write a copy of the tombstones, so that a damaged file brings nothing back."""
        try:
            self.write("backups/tombstones.bak", core.tombs_file(*self.tombs()))
        except OSError as problem:
            self.notices.append(f"forgotten; the copy of the tombstones was not written: {problem}")

    def fact(self, name: str) -> str:
        """Return a value that travels with the file, "" where there is none."""
        row = self._row("SELECT value FROM fact WHERE name=?", name)
        return row[0] if row else ""

    def set_fact(self, name: str, value: str) -> None:
        """Keep a value in the file."""
        self._do("fact")
        self._row("INSERT OR REPLACE INTO fact VALUES (?, ?)", name, value)
        self._tomb_key = ""

    # -- search -------------------------------------------------------------

    @_mended
    def search_words(self, query: str, k: int, *,
                     accept: Callable[[str], bool] | None = None) -> list[tuple[str, float]]:
        """Rank by BM25; hot memories count hot_boost times."""
        with self._reading():
            return self._search.words.search(query, k, accept=accept, boost=self._boosts())

    @_mended
    def in_context(self, query: str, found: Sequence[tuple[str, float]], *, scale: float = 1.0,
                   accept: Callable[[str], bool] | None = None) -> list[tuple[str, float]]:
        """Rank what was found by what stands beside it in its source, and by who says it."""
        with self._reading():
            found = self._search.names.known_of(found)
            return core.rank_in_context(
                self._search.words, query, found, self.config["retrieval"], scale=scale,
                source=self._source, accept=accept)

    @_mended
    def ceiling(self, query: str) -> float:
        """Return the keyword score of a memory that would hold every word of *query*."""
        with self._reading():
            return self._search.words.ceiling(query)

    @_mended
    def made_between(self, first: datetime, last: datetime) -> list[str]:
        """Return the ids of memories whose created_at lies in [first, last), newest first."""
        return [i for i, in self._db().execute(
            "SELECT id FROM memory WHERE made >= ? AND made < ? ORDER BY substr(made, 1, 25) "
            "DESC, id DESC", (core.iso(first), core.iso(last)))]

    def _source(self, memory_id: str) -> object:
        known = self._search.names.sources
        if memory_id not in known:
            row = self._row("SELECT source FROM memory WHERE id=?", memory_id)
            known[memory_id] = row and row[0]
        return known[memory_id]

    @_mended
    def search_vectors(self, vectorizer: Vectorizer, query: core.Vector, k: int, *,
                       accept: Callable[[str], bool] | None = None) -> list[tuple[str, float]]:
        """Rank by cosine; below the vectorizer's threshold nothing is returned."""
        with self._reading():
            if vectorizer.name == "local":
                return self._search.grams.search(query, threshold=vectorizer.threshold, limit=k,
                                                 accept=accept)
            return self._search_dense(vectorizer, query, k, accept)

    def _search_dense(self, vectorizer: Vectorizer, query: core.Vector, k: int,
                      accept: Callable[[str], bool] | None) -> list[tuple[str, float]]:
        """Read the vectors a chunk at a time; ties go to the later one."""
        best: list[tuple[float, int, str]] = []
        for number, chunk in enumerate(self.vector_chunks(vectorizer)):
            found = chunk.search(query, threshold=vectorizer.threshold, limit=k, accept=accept)
            best += [(score, -number, -at, name) for at, (name, score) in enumerate(found)]
            best = heapq.nlargest(k, best)
        return [(name, score) for score, _, _, name in best]

    def vector_chunks(self, vectorizer: Vectorizer | core.VectorKind) -> Iterator[VectorCache]:
        """Yield the vectors of this kind, some thousand at a time."""
        last, kind = 0, self.vector_kind()
        while kind and kind[:2] == (vectorizer.name, vectorizer.model):
            rows = self._db().execute(
                "SELECT seq, id, data FROM vector JOIN memory USING (seq) WHERE seq > ? "
                "ORDER BY seq LIMIT ?", (last, _CHUNK)).fetchall()
            if not rows:
                return
            last, cache = rows[-1][0], VectorCache(*kind)
            for _, name, data in rows:
                row = _floats(data)
                cache.put(name, [row[at:at + kind.dimension]
                                 for at in range(0, len(row), kind.dimension)])
            yield cache

    @_mended
    def vector_kind(self) -> core.VectorKind | None:
        """Return whose dense vectors are kept; None when there are none."""
        fact = self.fact("vectors")
        return core.VectorKind(*json.loads(fact)) if fact else None

    @_mended
    def missing_vectors(self, vectorizer: Vectorizer) -> list[str]:
        """Return the ids without a vector of this model; the local backend has them all."""
        if vectorizer.name == "local":
            return []
        if not self._is_kind(vectorizer):
            return self.ids()
        return [i for i, in self._db().execute("SELECT id FROM pending JOIN memory USING (seq) "
                                               "ORDER BY seq")]

    def _is_kind(self, vectorizer: Vectorizer) -> bool:
        kind = self.vector_kind()
        return kind is not None and kind[:2] == (vectorizer.name, vectorizer.model) and (
            vectorizer.dimension in (None, kind.dimension))

    def put_vectors(self, vectorizer: Vectorizer, vectors: Mapping[str, core.Vector]) -> None:
        """Keep vectors of memories that are still there; those of another model go.

        The value of a long text is a list of vectors, one a piece.
        """
        with contextlib.suppress(Locked, StorageError), self.transaction():
            for memory_id, vector in vectors.items():
                units = core.unit_pieces(vector, vectorizer.dimension)
                row = self._row("SELECT seq FROM memory WHERE id=?", memory_id)
                if not units or row is None:
                    continue
                if not self._is_kind(vectorizer):
                    self._start_vectors(vectorizer, len(units[0]))
                self._kinds.add("vector")
                self._row("DELETE FROM pending WHERE seq=?", *row)
                self._row("INSERT OR REPLACE INTO vector VALUES (?, ?)", *row,
                          b"".join(map(core._little, units)))

    def _start_vectors(self, vectorizer: Vectorizer, dimension: int) -> None:
        """Drop the vectors of another model; every memory waits for a new one."""
        self._row("DELETE FROM vector")
        self._row("INSERT OR IGNORE INTO pending SELECT seq FROM memory")
        self.set_fact("vectors", to_json([vectorizer.name, vectorizer.model, dimension]).decode())

    def strange_vectors(self) -> list[str]:
        """Return the ids that have a vector and no record: a vector goes with its record."""
        return []

    def drop_vectors(self, ids: Iterable[str]) -> None:
        """Take the vectors of these memories away; they wait for new ones."""
        with self.transaction():
            for memory_id in ids:
                row = self._row("SELECT seq FROM memory JOIN vector USING (seq) WHERE id=?",
                                memory_id)
                if row:
                    self._kinds.add("vector")
                    self._row("DELETE FROM vector WHERE seq=?", *row)
                    self._row("INSERT OR IGNORE INTO pending VALUES (?)", *row)

    @_mended
    def twin(self, text: str, *, accept: Callable[[str], bool] | None = None) -> str | None:
        """Return the most similar memory from 0.85 up that differs in no fact."""
        with self._reading():
            found = self._search.twins.find_duplicate(text, self.text, accept=accept)
        return found[0] if found else None

    @_mended
    def rivals(self, text: str) -> list[str]:
        """Return the newest ids that may contradict *text*, and some that do not; at most 60."""
        with self._reading():
            return self._search.claims.candidates(text)[:60]

    @_mended
    def graph(self, *, rebuild: bool = False) -> Graph:
        """Return the graph; *rebuild* makes every index anew from the records."""
        if rebuild:
            self.settle(rebuild=True)
        with self._reading():
            return Graph(self._search)

    @_mended
    def tagged(self, tags: Sequence[str]) -> list[str]:
        """Return the ids that have all *tags*, newest first."""
        wanted = sorted(map(_whole, core.tag_forms(tags)), key=lambda tag: (self._row(
            "SELECT count(*) FROM (SELECT 1 FROM tag WHERE tag=? LIMIT 10000)", tag), tag))
        if not wanted:
            return []
        more = "".join(" AND EXISTS (SELECT 1 FROM tag WHERE tag=? AND at=one.at AND seq=one.seq)"
                       for _ in wanted[1:])
        return [i for i, in self._db().execute(
            "SELECT id FROM tag AS one CROSS JOIN memory USING (seq) WHERE tag=?"
            f"{more} ORDER BY at DESC, id DESC", wanted)]

    @_mended
    def containing(self, text: str) -> list[str]:
        """Return the ids in whose text *text* stands as it is, inside words too, newest first."""
        wanted = normalise(text)
        with self._reading():
            docs = self._search.twins.containing(wanted) if 1 < len(wanted) <= core.LONG_TEXT else (
                d for d, in self._db().execute("SELECT doc FROM memory").fetchall())
            docs = {*docs, *(d for d, in self._db().execute("SELECT doc FROM memory WHERE long"))}
            found = [row for row in self._db().execute(
                "SELECT seq, id, entry FROM memory WHERE doc IN (SELECT value FROM json_each(?))",
                (str([*docs]),)) if wanted and wanted in normalise(json.loads(row[2])["content"])]
        return [memory_id for _, memory_id, _ in sorted(found, reverse=True)]

    # -- upkeep -------------------------------------------------------------

    @_mended
    def refresh(self) -> None:
        """Take over what other processes wrote; costs one small query."""
        if self._connection is not None and self._is_void and self.path.exists():
            self._drop_connection()
        with self._reading():
            pass
        if self._search.known_format != self._search.format:
            with self.transaction():               # brings the indexes up to this config
                pass

    def version(self) -> object:
        """Return a value that changes when another process has written."""
        return id(self._db()), self._row("PRAGMA data_version")[0]

    @_mended
    def revision(self) -> list:
        """Return what differs once the records have changed."""
        return [*self._row("SELECT next, retired, changes FROM state")]

    def settle(self, *, rebuild: bool = False) -> None:
        """Bring what is fresh into the tables; *rebuild* makes every index anew."""
        with self.transaction():
            if rebuild:
                self._index_all()
            self._kinds.add("index")
            self._search.flush()

    def faults(self) -> list[str]:
        """Say what is wrong with the file, without mending it; reads all of it."""
        if not self.path.exists():
            return []
        try:
            with contextlib.closing(_connect(f"{_uri(self.path)}?mode=ro")) as db:
                said = [row for row, in db.execute("PRAGMA integrity_check(3)") if row != "ok"]
                count, held = db.execute("SELECT (SELECT count(*) FROM memory), count "
                                         "FROM state").fetchone()
        except sqlite3.Error as problem:
            return [f"{FILE} cannot be read: {problem}"]
        return said + ([f"the indexes hold {held} memories of {count}"] if held != count else [])

    def _index_all(self) -> None:
        self._kinds.add("index")
        self._search.clear()
        total, done = self._row("SELECT count(*) FROM memory")[0], 0
        self._row("UPDATE memory SET doc = -1 - seq")
        for seq, entry in self._every_row():
            text = json.loads(entry)["content"]
            self._row("UPDATE memory SET doc=?, mark=? WHERE seq=?", self._search.add(text),
                      core._fact_mark(text), seq)
            done += 1
            if self.progress and total > 500 and done % 100 == 0:
                self.progress("indexing", done, total)
        self._hot = None

    def _every_row(self) -> Iterator[tuple[int, str]]:
        last = 0
        while rows := self._after(last):
            last = rows[-1][0]
            yield from rows

    def _back_up(self) -> None:
        """Before the first write of a day, copy the records to backups/, if they are not many."""
        day = f"{self.clock().astimezone(core.timezone.utc):%Y%m%d}"
        if day == self._backup_day:
            return
        self._backup_day = day
        name = f"backups/auto_index.json.{day}.bak"
        size = self._row("SELECT coalesce(sum(length(entry)), 0) FROM memory")[0] if (
            self.path.stat().st_size < 8 * _DAILY) else _DAILY
        if not size or size >= _DAILY or (self.root / name).exists():
            return
        self.write(name, core._join_rows(entry.encode() for _, entry in self._every_row()))
        self._drop_old_backups()

    def sizes(self) -> dict[str, int]:
        """Return bytes on disk: the file with its log, Markdown, and the whole root."""
        log = self.path.with_name(f"{FILE}-wal")
        sizes = [path.stat().st_size for path in (self.path, log) if path.exists()]
        return {**FileStore.sizes(self), "records": sum(sizes)}

    def close(self) -> None:
        """Empty the log and close the file; it opens again when it is asked."""
        if self._connection is not None and not self._depth:
            with contextlib.suppress(sqlite3.Error):
                if self._residue:
                    self._empty_log()
            self._drop_connection()

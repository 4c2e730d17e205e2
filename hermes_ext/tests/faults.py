"""Faults of a disk for tests: failing operations, power cuts, damaged files.

    FaultyDisk      counts the file operations of a process and lets the N-th one fail
    PowerCut        what a disk holds when the power fails after any of these operations
    DAMAGES         twenty-odd ways to damage a file
    run_child       a function in a forked process, killed or not

Everything here works on a plain Python; nothing is imported from the project. Call
`FaultyDisk.install` only in a child process: it replaces functions of `os` and `open`.

What FaultyDisk sees. Files that are opened for writing go through Python's own `_pyio`, which
uses the functions of `os`, so that every open, write, fsync, rename and the like below the home
folder is one operation. Opening a file for reading is one, too: EIO there stands for a page that
cannot be read. Looking at a file (stat, listing a folder) is none.

SQLite writes by itself, outside of Python. Its connection is replaced, and every statement that
writes, every checkpoint and every close counts as one operation: it fails as SQLite says it
on such a disk, and a failing close leaves the log beside the file. Whether SQLite itself keeps
its promises when one of its writes fails is not tried so; `run_traced` lets its real system calls
fail, where strace is installed.
"""
from __future__ import annotations

import _pyio
import builtins
import contextlib
import errno
import gc
import io
import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["DAMAGES", "FaultyDisk", "KILLED", "Outcome", "PowerCut", "SQLITE_CALLS", "WHOLE_FILE",
           "can_trace", "damage", "run_child", "run_traced", "start_child", "tries_of",
           "wait_child", "write_tree"]

KILLED = 137                                       # the exit code of a killed process
_GROWING = ("create", "write", "mkdir", "link", "sql")      # what a full disk refuses
_NO_SPACE, _IO_ERROR = "database or disk is full", "disk I/O error"


# -- a process of its own -----------------------------------------------------

@dataclass
class Outcome:
    """What a child process did: its exit code, its words, and what its function returned."""
    code: int
    out: str = ""
    err: str = ""
    value: object = None
    error: str = ""                                # a traceback, which is always a fault


def run_child(function: Callable[[], object], *, seconds: int = 1800,
              environ: dict[str, str] | None = None) -> Outcome:
    """Run *function* in a forked process and return what became of it.

    An integer that it returns is the exit code. The process ends without the cleaning up of
    Python, like a killed one; a hanging one is killed after *seconds*.
    """
    return wait_child(*start_child(function, seconds=seconds, environ=environ))


def start_child(function: Callable[[], object], *, seconds: int,
                environ: dict[str, str] | None = None) -> tuple[int, int]:
    """Start *function* in a forked process; return its id and the pipe of its result."""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        gc.disable()                               # it would copy every page of the parent
        signal.alarm(seconds)
        outcome = _in_child(function, environ)
        with open(writer, "wb") as pipe:
            pipe.write(json.dumps(outcome.__dict__, default=str).encode())
        os._exit(0)
    os.close(writer)
    return child, reader


def wait_child(child: int, reader: int) -> Outcome:
    """Wait for a child process and return what became of it."""
    with open(reader, "rb") as pipe:
        data = pipe.read()
    status = os.waitpid(child, 0)[1]
    if data:
        return Outcome(**json.loads(data))
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return Outcome(KILLED, error=f"ended by {name}" if name != "SIGKILL" else "")
    return Outcome(os.WEXITSTATUS(status))


def _in_child(function: Callable[[], object], environ: dict[str, str] | None) -> Outcome:
    if environ is not None:
        os.environ.clear()
        os.environ.update(environ)
    sys.stdin = io.StringIO("")
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    outcome = Outcome(0)
    try:
        outcome.value = function()
        if type(outcome.value) is int:
            outcome.code = outcome.value
    except SystemExit as end:
        outcome.code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        outcome.code, outcome.error = 1, traceback.format_exc()
    outcome.out, outcome.err = sys.stdout.getvalue(), sys.stderr.getvalue()
    if "Traceback (most recent call last)" in outcome.err:
        outcome.error = outcome.error or outcome.err
    return outcome


# -- operations that fail -----------------------------------------------------

@dataclass
class FaultyDisk:
    """Count the operations below *home*; the one with number *at* meets the *fault*.

    kill  the process ends before the operation
    torn  the process ends when half of a write has been done
    full  this operation and every later one that needs space fails with ENOSPC; the first write
          writes its first half
    eio   this operation fails with EIO, later ones do not
    """
    home: str
    fault: str = ""
    at: int = 0
    count: int = 0
    kinds: list[str] = field(default_factory=list)
    log: list[tuple] = field(default_factory=list)

    def install(self) -> None:
        """Replace the functions of os, open and sqlite3 in this process, for good."""
        self._real = {name: getattr(os, name) for name in (
            "open", "write", "fsync", "close", "ftruncate", "truncate", "replace", "rename",
            "unlink", "remove", "mkdir", "rmdir", "link", "symlink")}
        self._paths: dict[int, str] = {}           # of an open file
        self._real_open = io.open
        self._kept: list[object] = []
        self._sizes: dict[str, object] = {}
        for name in self._real:
            setattr(os, name, getattr(self, f"_{name}"))
        builtins.open = io.open = self._open_file
        accessor = getattr(pathlib, "_NormalAccessor", None)         # of Python 3.10
        for name in (*self._real, "open") if accessor else ():
            if hasattr(accessor, name):
                new = self._open_file if name == "open" else getattr(os, name)
                setattr(accessor, name, staticmethod(new))
        self._connect = sqlite3.connect
        sqlite3.connect = self._connect_faulty

    # What is counted, and what happens to it.

    def _step(self, kind: str, path: str) -> bool:
        """Count one operation and let it fail; True when half of it is to be done."""
        self.count += 1
        self.kinds.append(f"{kind} {path.removeprefix(self.home)}")
        met = self.count == self.at
        if self.fault == "kill" and met:
            os._exit(KILLED)
        if self.fault == "torn" and met:
            if kind == "write":
                return True
            os._exit(KILLED)
        if self.fault == "eio" and met:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if self.fault == "full" and self.at and self.count >= self.at and kind in _GROWING:
            if kind == "write" and met:
                return True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return False

    def _is_ours(self, path: str | None) -> bool:
        return path is not None and (path == self.home or path.startswith(self.home + "/"))

    def _full_path(self, path: object, dir_fd: int | None = None) -> str | None:
        if isinstance(path, int):
            return self._paths.get(path)
        path = os.fsdecode(path)
        if dir_fd is not None:
            return os.path.join(self._paths.get(dir_fd, "/dev"), path)
        return os.path.abspath(path)

    def _open(self, path, flags, mode=0o777, *, dir_fd=None):
        full = self._full_path(path, dir_fd)
        if not self._is_ours(full):
            return self._real["open"](path, flags, mode, dir_fd=dir_fd)
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        there = os.path.lexists(full)
        if writes:
            self._step("open" if there else "create", full)
        elif not os.path.isdir(full):
            self._step("read", full)
        handle = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        self._paths[handle] = full
        if writes:
            self.log.append(("open", handle, os.path.realpath(full),
                             bool(flags & os.O_TRUNC) or not there))
        return handle

    def _open_file(self, file, mode="r", *more, **named):
        path = self._full_path(file)
        if not self._is_ours(path):
            return self._real_open(file, mode, *more, **named)
        if isinstance(file, int) or any(letter in mode for letter in "wax+"):
            return _pyio.open(file, mode, *more, **named)
        if not os.path.isdir(path) and os.path.exists(path):
            self._step("read", path)
        return self._real_open(file, mode, *more, **named)

    def _write(self, handle, data):
        path = self._paths.get(handle)
        if not self._is_ours(path):
            return self._real["write"](handle, data)
        data = bytes(data)
        half = self._step("write", path)
        done = data[:len(data) // 2] if half else data
        at = os.lseek(handle, 0, os.SEEK_CUR)
        if _is_appending(handle):
            at = os.fstat(handle).st_size
        self._real["write"](handle, done)
        if half and self.fault == "torn":
            os._exit(KILLED)
        self.log.append(("write", handle, at, done))
        return len(done)

    def _fsync(self, handle):
        path = self._paths.get(handle)
        if self._is_ours(path):
            self._step("fsync", path)
            folder = os.path.isdir(path)
            self.log.append(("sync folder", path) if folder else ("sync", handle))

    def _close(self, handle):
        self._paths.pop(handle, None)
        return self._real["close"](handle)

    def _ftruncate(self, handle, length):
        path = self._paths.get(handle)
        if self._is_ours(path):
            self._step("truncate", path)
            self.log.append(("cut", handle, length))
        return self._real["ftruncate"](handle, length)

    def _truncate(self, path, length):
        if isinstance(path, int):
            return self._ftruncate(path, length)
        full = self._full_path(path)
        if self._is_ours(full):
            self._step("truncate", full)
            self.log.append(("open", -1, os.path.realpath(full), False))
            self.log.append(("cut", -1, length))
        return self._real["truncate"](path, length)

    def _rename(self, old, new, **named):
        return self._moved("rename", old, new, **named)

    def _replace(self, old, new, **named):
        return self._moved("replace", old, new, **named)

    def _link(self, old, new, **named):
        return self._moved("link", old, new, **named)

    def _symlink(self, old, new, *more, **named):
        full = self._full_path(new)
        if self._is_ours(full):
            self._step("link", full)
        return self._real["symlink"](old, new, *more, **named)

    def _moved(self, kind, old, new, **named):
        one, two = self._full_path(old), self._full_path(new)
        if self._is_ours(two) or self._is_ours(one):
            self._step(kind, two)
        result = self._real[kind](old, new, **named)
        if self._is_ours(two):
            self.log.append(("link" if kind == "link" else "rename", one, two))
        return result

    def _unlink(self, path, *, dir_fd=None):
        return self._removed("unlink", path, dir_fd)

    def _remove(self, path, *, dir_fd=None):
        return self._removed("unlink", path, dir_fd)

    def _rmdir(self, path, *, dir_fd=None):
        return self._removed("rmdir", path, dir_fd)

    def _removed(self, kind, path, dir_fd):
        full = self._full_path(path, dir_fd)
        if self._is_ours(full) and os.path.lexists(full):
            self._step(kind, full)
        self._real[kind](path, dir_fd=dir_fd)
        if self._is_ours(full):
            self.log.append(("unlink", full))

    def _mkdir(self, path, mode=0o777, *, dir_fd=None):
        full = self._full_path(path, dir_fd)
        if self._is_ours(full) and not os.path.lexists(full):
            self._step("mkdir", full)
        self._real["mkdir"](path, mode, dir_fd=dir_fd)
        if self._is_ours(full):
            self.log.append(("mkdir", full))

    # SQLite

    def _connect_faulty(self, database, *more, **named):
        disk = self
        place = os.fsdecode(database).removeprefix("file:").partition("?")[0]

        class Faulty(named.pop("factory", sqlite3.Connection)):
            def execute(self, statement, *values):
                with disk._statement(self, place, statement):
                    return super().execute(statement, *values)

            def executemany(self, statement, values):
                with disk._statement(self, place, statement):
                    return super().executemany(statement, values)

            def backup(self, target, **more):
                with disk._statement(target, target.place, "BACKUP"):
                    return super().backup(target, **more)

            def close(self):
                try:
                    with disk._statement(self, place, "CLOSE"):
                        super().close()
                except sqlite3.OperationalError:   # close never says so: the log stays behind
                    if self.in_transaction:
                        super().execute("ROLLBACK")
                    disk._kept.append(self)

        Faulty.place = place
        return self._connect(database, *more, factory=Faulty, **named)

    @contextlib.contextmanager
    def _statement(self, db, place: str, statement: str) -> Iterator[None]:
        """Count a statement that writes to a file; note what the file and its log are then."""
        word = statement.lstrip().partition(" ")[0].upper()
        writes = word not in ("SELECT", "EXPLAIN", "BEGIN", "PRAGMA", "ROLLBACK") or (
            "checkpoint" in statement or "IMMEDIATE" in statement)
        if not writes or not self._is_ours(os.path.abspath(place)):
            yield
            return
        try:
            self._step("sql", f"{place} {statement[:40]}")
        except OSError as problem:
            full = problem.errno == errno.ENOSPC
            raise sqlite3.OperationalError(_NO_SPACE if full else _IO_ERROR) from None
        yield
        synced = word != "CLOSE" and sqlite3.Connection.execute(
            db, "PRAGMA synchronous").fetchone() != (1,)
        ended = word == "CLOSE" or not db.in_transaction
        self._note_database(place, synced=ended and (synced or word == "CLOSE"
                                                     or "checkpoint" in statement))

    def _note_database(self, place: str, *, synced: bool = False) -> None:
        """Log the content of a database and its log where it has changed.

        After a commit with synchronous=FULL, and after a checkpoint, SQLite has synced them.
        """
        for path in (place, f"{place}-wal"):
            path = os.path.abspath(path)
            try:
                with self._real_open(path, "rb") as file:
                    data = file.read()
            except OSError:
                data = None
            if self._sizes.get(path) != (data, synced):
                self._sizes[path] = (data, synced)
                self.log.append(("content", path, data, synced))


def _is_appending(handle: int) -> bool:
    try:
        import fcntl
    except ImportError:
        return False
    return bool(fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_APPEND)


def tries_of(kinds: Sequence[str]) -> list[tuple[int, str, str]]:
    """Return (number, operation, fault) of all tries that can end differently.

    A kill after a read, an fsync or the opening of a file leaves what a kill before it leaves,
    and of a file that is read again and again the first two times count.
    """
    tries, reads, before = [], Counter(), "write"
    for number, what in enumerate(kinds, 1):
        kind = what.split()[0]
        if kind == "read":
            name = re.sub(r"[0-9a-f_]{6,}", "*", what)
            reads[name] += 1
            if reads[name] <= 2:
                tries.append((number, what, "eio"))
            continue
        if before not in ("fsync", "open"):
            tries.append((number, what, "kill"))
        if kind == "write":
            tries.append((number, what, "torn"))
        if kind in _GROWING:
            tries.append((number, what, "full"))
        tries.append((number, what, "eio"))
        before = kind
    return tries


# -- system calls of SQLite that fail -----------------------------------------

SQLITE_CALLS = {"pwrite64": ("ENOSPC", "EIO", "KILL"), "fdatasync": ("EIO", "KILL"),
                "ftruncate": ("EIO", "KILL")}


def can_trace() -> bool:
    """Tell whether strace is here and may trace."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-f", "-qq", "--seccomp-bpf", "-o", os.devnull, "-e",
                           "trace=ftruncate", "true"], capture_output=True).returncode == 0


def run_traced(words: Sequence[str], environ: dict[str, str], log: Path, *, call: str = "",
               fault: str = "", number: int = 0) -> Outcome:
    """Run a command line under strace; system call *call* number *number* meets *fault*.

    ENOSPC stays, other faults happen once. Each traced call is a line of *log*.
    """
    inject = []
    if fault:
        how = "signal=KILL" if fault == "KILL" else f"error={fault}"
        more = "+" if fault == "ENOSPC" else ""
        inject = ["-e", f"inject={call}:{how}:when={number}{more}"]
    ran = subprocess.run(
        ["strace", "-f", "-qq", "--seccomp-bpf", "-o", str(log), "-e",
         f"trace={','.join(SQLITE_CALLS)}", "-e", "signal=none", *inject, *words],
        capture_output=True, text=True, errors="replace", env=environ, stdin=subprocess.DEVNULL,
        timeout=1800)
    error = ran.stderr if "Traceback" in ran.stderr else ""
    code = KILLED if ran.returncode in (-9, KILLED) else ran.returncode
    return Outcome(code, ran.stdout, ran.stderr, error=error)


# -- power cuts ---------------------------------------------------------------

class _Node:
    """A file: its data as processes see it, and what of that is on the disk; or a folder."""

    def __init__(self, data: bytes = b"", *, folder: bool = False) -> None:
        self.data, self.synced, self.folder = data, data, folder


class PowerCut:
    """Replay the log of a FaultyDisk and tell what the disk holds when the power fails.

    The data of a file is safe after the fsync of the file, its name (new, changed or taken away)
    after the fsync of its folder. What is not safe may be there or not; three ways are tried:

    synced  nothing is there but what was synced
    empty   all names are there, and of the data only what was synced: new files are empty
    torn    all names are there, and half of the data that was not synced

    Of the files of SQLite only whole statements are known; see the head of this module.
    """
    WAYS = ("synced", "empty", "torn")

    def __init__(self, home: Path) -> None:
        self.home = str(home)
        self._names: dict[str, _Node] = {}
        self._handles: dict[int, _Node] = {}
        for folder, folders, files in os.walk(home):
            for name in folders:
                self._names[os.path.join(folder, name)] = _Node(folder=True)
            for name in files:
                path = os.path.join(folder, name)
                self._names[path] = _Node(Path(path).read_bytes())
        self._safe = dict(self._names)

    def apply(self, step: tuple) -> None:
        """Take over one line of the log."""
        kind, subject, *rest = step
        if kind == "open":
            path, is_new = rest
            node = self._names.get(path)
            if node is None:
                node = self._names[path] = _Node()
                node.synced = b""
            if is_new:
                node.data = b""
            self._handles[subject] = node
        elif kind == "write":
            at, data = rest
            node = self._handles[subject]
            node.data = node.data[:at].ljust(at, b"\0") + data + node.data[at + len(data):]
        elif kind == "cut":
            node = self._handles[subject]
            node.data = node.data[:rest[0]]
        elif kind == "sync":
            node = self._handles[subject]
            node.synced = node.data
        elif kind == "sync folder":
            self._sync_folder(subject)
        elif kind == "mkdir":
            self._names[subject] = _Node(folder=True)
        elif kind == "unlink":
            self._names.pop(subject, None)
        elif kind == "rename":
            self._rename(subject, rest[0])
        elif kind == "link":
            self._names[rest[0]] = self._names[subject]
        elif kind == "content":
            self._set_database(subject, *rest)

    def _sync_folder(self, folder: str) -> None:
        for path in {*self._names, *self._safe}:
            if os.path.dirname(path) == folder:
                if path in self._names:
                    self._safe[path] = self._names[path]
                else:
                    del self._safe[path]

    def _rename(self, old: str, new: str) -> None:
        inside = [path for path in self._names if path.startswith(f"{old}/")]
        for path in [old, *inside]:
            if path in self._names:
                self._names[new + path.removeprefix(old)] = self._names.pop(path)
        for path in [path for path in self._safe if path.startswith(f"{old}/")]:
            self._safe[new + path.removeprefix(old)] = self._safe.pop(path)

    def _set_database(self, path: str, data: bytes | None, synced: bool) -> None:
        if data is None:
            self._names.pop(path, None)
            if synced:
                self._safe.pop(path, None)
            return
        node = self._names.setdefault(path, _Node())
        node.data = data
        if synced:
            node.synced = data
            self._safe[path] = node                # SQLite syncs the folder with a new file

    def left(self, way: str) -> dict[str, bytes | None]:
        """Return {path: data, None for a folder} of what the disk holds."""
        found: dict[str, bytes | None] = {}
        names = self._safe if way == "synced" else self._names
        for path in sorted(names):
            parent = os.path.dirname(path)
            if parent != self.home and parent not in found:
                continue                           # its folder's own name was not synced
            node = names[path]
            found[path] = None if node.folder else self._data(node, way)
        return found

    @staticmethod
    def _data(node: _Node, way: str) -> bytes:
        if way == "torn" and node.data != node.synced:
            common = len(os.path.commonprefix([node.data, node.synced]))
            return node.data[:common + (len(node.data) - common) // 2]
        return node.synced


def write_tree(tree: dict[str, bytes | None], home: str, target: Path) -> None:
    """Write what `PowerCut.left` returned into another folder."""
    for path, data in tree.items():
        place = target / os.path.relpath(path, home)
        if data is None:
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            place.chmod(0o600)


# -- damaged files ------------------------------------------------------------

def _flip(share: float) -> Callable[[bytes], bytes]:
    def flipped(data: bytes) -> bytes:
        at = min(int(len(data) * share), len(data) - 1)
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1:] if data else b"\x04"
    return flipped


def _zeros(share: float) -> Callable[[bytes], bytes]:
    def zeroed(data: bytes) -> bytes:
        page = min(4096, max(1, len(data) // 4))
        at = int(len(data) * share) // page * page
        return data[:at] + bytes(min(page, len(data) - at)) + data[at + page:]
    return zeroed


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "cut to half": lambda data: data[:len(data) // 2],
    "cut to a tenth": lambda data: data[:len(data) // 10],
    "one byte less": lambda data: data[:-1],
    "a bit flipped at the start": _flip(0),
    "a bit flipped at a third": _flip(0.34),
    "a bit flipped in the middle": _flip(0.5),
    "a bit flipped at the end": _flip(1),
    "a page of zeros at the start": _zeros(0),
    "a page of zeros in the middle": _zeros(0.5),
    "zeros": lambda data: bytes(len(data)),
    "an empty list": lambda data: b"[]",
    "an empty mapping": lambda data: b"{}",
    "a list of an empty mapping": lambda data: b"[{}]",
    "null": lambda data: b"null\n",
    "a number of 400 digits": lambda data: b"9" * 400,
    "brackets": lambda data: b"[" * 100_000,
    "doubled": lambda data: data + data,
    "garbage": lambda data: bytes((number * 197 + 91) % 256 for number in range(777)),
    "a byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "UTF-16": lambda data: data.decode("latin-1").encode("utf-16"),
    "text after its end": lambda data: data + b"<<<<<<< HEAD\n",
    "a page less at the start": lambda data: data[min(4096, len(data) // 2):],
}
WHOLE_FILE = ("removed", "a folder", "an older copy")


def damage(path: Path, way: str, *, older: Path | None = None) -> bool:
    """Damage a file in one of the ways of DAMAGES or WHOLE_FILE; False when it changes nothing."""
    before = path.read_bytes()
    if way == "removed":
        path.unlink()
        return True
    if way == "a folder":
        path.unlink()
        path.mkdir()
        return True
    if way == "an older copy":
        if older is None or not older.is_file():
            return False
        after = older.read_bytes()
    else:
        after = DAMAGES[way](before)
    path.write_bytes(after)
    return after != before


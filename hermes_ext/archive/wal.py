"""The log of an archive (`memory_archive.db-wal`), read without SQLite.

SQLite ends its reading of the log at the first frame whose checksum does not fit, without a word,
and it applies whatever log lies beside a file, also one of another file. This module finds both.

The format is SQLite's (https://sqlite.org/walformat.html): a head of 32 bytes, then frames, each
a head of 24 bytes and a page. A frame's head is page number, size of the file in pages where a
commit ends (else 0), two salts, and a checksum that goes on from the frame before. The
*generation* is specified in schema.py.
"""
from __future__ import annotations

import contextlib
import os
import struct
import sys
from array import array
from pathlib import Path
from typing import NamedTuple

import hermes_lite as core

__all__ = ["Frame", "frames", "generation_of", "has_page", "is_of_file", "length", "log_of",
           "page_size", "promised_frames", "read_beside_sqlite", "remove_log", "set_log_aside",
           "sync_beside_sqlite", "verified_pages"]

_HEAD = 32                                         # bytes before all frames
_FRAME = 24                                        # bytes before the page of each
_GENERATION = 68                                   # where a file's header has it


class Frame(NamedTuple):
    """A page in the log: where its frame begins, its page number, and does a commit end there."""
    at: int
    page: int
    is_commit: bool


def log_of(path: Path) -> Path:
    """Return the path of a file's log."""
    return path.with_name(f"{path.name}-wal")


def length(path: Path) -> int:
    """Return how many bytes the log of a file has; 0 where there is none."""
    try:
        return log_of(path).stat().st_size
    except FileNotFoundError:
        return 0


def remove_log(path: Path) -> None:
    """Delete the log of a file, and what processes share of it."""
    for end in ("-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)


def set_log_aside(path: Path) -> str:
    """Keep a copy of the log and empty it, so that nothing of it comes into the file.

    Returns the name of the copy.
    """
    copy = core.set_aside(log_of(path), copy=True).name
    os.truncate(log_of(path), 0)
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    return copy


# (Process, device, inode) -> descriptor. To close any descriptor of a file drops every lock that
# this process holds on it (POSIX), those of SQLite too: another process would then take itself
# for the only one and delete the log under us. So what SQLite locks is opened once and kept.
_kept: dict[tuple[int, int, int], int] = {}


def read_beside_sqlite(path: Path, size: int) -> bytes:
    """Return the first bytes of a file that SQLite may have open here; b"" without one."""
    try:
        return os.pread(_kept_descriptor(path), size, 0)
    except OSError:
        return b""


def sync_beside_sqlite(path: Path) -> None:
    """Bring a file to the disk that SQLite may have open here; StorageError where that fails."""
    try:
        os.fsync(_kept_descriptor(path))
    except OSError as problem:
        raise core.storage_error(problem, path) from None


def _kept_descriptor(path: Path) -> int:
    """Return the one descriptor of a file that this process keeps open; OSError without one."""
    status = os.stat(path)
    key = os.getpid(), status.st_dev, status.st_ino
    if key not in _kept:
        _kept[key] = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    return _kept[key]


def generation_of(path: Path) -> int | None:
    """Return the generation in a file's header; None where the file has none."""
    head = read_beside_sqlite(path, 100)
    if head[:6] == b"SQLite" and len(head) == 100:
        return int.from_bytes(head[_GENERATION:_GENERATION + 4], "big") or None
    return None


def has_page(path: Path) -> bool:
    """Tell whether the log of a file has at least one frame."""
    return length(path) > _HEAD + _FRAME


def promised_frames(path: Path) -> int:
    """Return how many frames the log has to have, by the file that processes share (-shm).

    A killed process leaves that file behind. 0 where it is not there, is damaged, or says that
    all frames were brought into the database.
    """
    try:
        shared = path.with_name(f"{path.name}-shm")
        head = read_beside_sqlite(shared, _SHARED.size * 2 + 4)
        one, two = head[:_SHARED.size], head[_SHARED.size:_SHARED.size * 2]
        version, is_made, frame_count = _SHARED.unpack(one)
        brought_over, = struct.unpack("=I", head[-4:])
    except (OSError, struct.error):
        return 0
    if one != two or version != 3_007_000 or is_made != 1 or brought_over >= frame_count:
        return 0
    order = ">" if sys.byteorder == "big" else "<"
    checked = struct.unpack(">II", _checksum(one[:40], bytes(8), order))
    return frame_count if struct.unpack("=II", one[40:]) == checked else 0


# Twice the head of SQLite's wal-index, then the number of frames that are in the database.
_SHARED = struct.Struct("=I8xB3xI28x")


def frames(path: Path, *, promised: int = 0) -> list[Frame]:
    """Return the frames of the log's present round, good or bad; older ones lie behind them.

    Reads the head of each, not its page. A damaged head of the log is made up for by that of the
    first frame; among the first *promised* frames a damaged head is a bad frame, no end.
    """
    found: list[Frame] = []
    try:
        file = open(log_of(path), "rb")
    except FileNotFoundError:
        return found
    with file:
        head = file.read(_HEAD)
        size = page_size(head, path)
        salts = head[16:24] if _is_head(head) else None
        end = os.fstat(file.fileno()).st_size
        for at in range(_HEAD, end - size - _FRAME + 1, _FRAME + size):
            file.seek(at)
            frame = file.read(_FRAME)
            salts = salts or frame[8:16]
            if frame[8:16] != salts and len(found) >= promised:
                break
            page, pages = struct.unpack(">II", frame[:8])
            found.append(Frame(at, page, pages > 0))
    return found


def page_size(head: bytes, path: Path) -> int:
    """Return the size of a page by the log's head, else by the file's."""
    size = int.from_bytes(head[8:12], "big")
    if not _is_page_size(size):
        begin = read_beside_sqlite(path, 18)
        size = int.from_bytes(begin[16:18], "big") if begin[:6] == b"SQLite" else 0
        if size == 1:                              # so a file writes 65,536 in two bytes
            size = 65_536
    return size if _is_page_size(size) else 4_096


def _is_page_size(size: int) -> bool:
    """Tell whether a size is a power of two that SQLite takes."""
    return 512 <= size <= 65_536 and size & (size - 1) == 0


def is_of_file(path: Path) -> bool:
    """Tell whether the log can be one of this file: of the state it is in, or was in before.

    The log is read first: whoever writes the log into the file meanwhile changes nothing.
    """
    first_pages = [frame for frame in frames(path) if frame.page == 1]
    in_log = []                                    # the generations that the log leads to
    with contextlib.suppress(OSError), open(log_of(path), "rb") as file:
        for frame in first_pages:
            file.seek(frame.at + _FRAME + _GENERATION)
            in_log.append(int.from_bytes(file.read(4), "big"))
    in_file = generation_of(path)
    if not in_log or in_file is None:
        return True
    return min(in_log) - 1 <= in_file <= max(in_log)


def verified_pages(path: Path, *, after: int = 0, promised: int = 0) -> dict[int, bytes]:
    """Return the last good version of each page that the log has behind its first *after* frames.

    A checksum goes on from that of the frame before, as it is written there, so one bad frame
    does not spoil those behind it.
    """
    found: dict[int, bytes] = {}
    listed = frames(path, promised=promised)
    if not listed:
        return found
    data = log_of(path).read_bytes()
    size = page_size(data[:_HEAD], path)
    order = ">" if data[3] & 1 else "<"            # of the bytes that the checksums add up
    before_as_written = data[24:32]                # the checksum of the frame before, the head's
    before_as_computed = b""                       # … and as it should be, where that is known
    for number, (at, page, _) in enumerate(listed):
        body = data[at:at + 8] + data[at + _FRAME:at + _FRAME + size]
        written = data[at + 16:at + _FRAME]
        computed = _checksum(body, before_as_written, order)
        is_good = computed == written
        if not is_good and before_as_computed:     # the frame before has a damaged checksum
            is_good = _checksum(body, before_as_computed, order) == written
        if is_good and number >= after:
            found[page] = data[at + _FRAME:at + _FRAME + size]
        before_as_written, before_as_computed = written, computed
    return found


def _is_head(head: bytes) -> bool:
    """Tell whether the log's head has SQLite's mark and a checksum that fits."""
    if len(head) < _HEAD or head[:3] != b"\x37\x7f\x06":
        return False
    order = ">" if head[3] & 1 else "<"
    return _checksum(head[:24], bytes(8), order) == head[24:32]


def _checksum(data: bytes, before: bytes, order: str) -> bytes:
    """Return the checksum of *data*, a multiple of 8 bytes, that goes on from *before*."""
    one, two = struct.unpack(">II", before)
    words = array("I", data)
    machine_order = "<" if sys.byteorder == "little" else ">"
    if order != machine_order:
        words.byteswap()
    for at in range(0, len(words), 2):
        one = (one + words[at] + two) & 0xFFFFFFFF
        two = (two + words[at + 1] + one) & 0xFFFFFFFF
    return struct.pack(">II", one, two)

"""Compressed records of an archive (`storage.compress: zstd`). A part of archive/store.py.

The column `entry` holds a record as text, or as a BLOB: one zstd frame (RFC 8878) with checksum,
made with DICTIONARY as raw content. A record is a BLOB only where that is smaller. Every reader
takes both forms, whatever the setting says.

The dictionary stands here and is not trained from the records: a trained one would hold pieces of
texts that are forgotten later, and one damaged page would cost every record.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import json
import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple

from hermes_lite import MissingPackage

__all__ = ["DICTIONARY", "MAGIC", "check_compressed", "check_package", "compressed", "entry_of",
           "plain"]

MAGIC = b"\x28\xb5\x2f\xfd"          # the first bytes of every frame
_LEVEL = 9

# A part of the file format: frames that were made with another text cannot be read with this one.
# It must never change. The names and the usual values of a record, in the order of a record.
DICTIONARY = (
    b'"category": "preference", "room": "prefs", "category": "decision", "room": "decisions", '
    b'"category": "config", "room": "configs", "category": "project", "room": "projects", '
    b'"category": "event", "category": "discussion", "category": "idea", "expires_at": "2026-'
    b'"status": "active", "superseded", "supersedes": "mem_2026", "meta": {"pinned": true, '
    b'"salience": {"score": 1.0, "redacted": ["personal"], "agent": "user: assistant: '
    b'{"id": "mem_20260101_000000_0000", "content": "", "category": "general", "room": "events", '
    b'"importance": 5, "execution_verified": true, "access_count": 1, "last_accessed": "2026-'
    b'01-01T00:00:00+00:00", "source": "a.md", "created_at": "2026-01-01T00:00:00+00:00", '
    b'"redacted": [], "tags": [""], "agent": ""}{"id": "mem_2026", "content": "", "category": '
    b'"general", "room": "events", "importance": 5, "execution_verified": false, "access_count": '
    b'0, "last_accessed": null, "source": null, "created_at": "2026-01-01T00:00:00+00:00", '
    b'"redacted": []}')


class _Package(NamedTuple):
    """Both directions, as whichever package is installed has them, and what it raises."""
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes], bytes]
    error: type[Exception]


@functools.cache
def _package() -> _Package:
    """Return the package that is installed; MissingPackage where there is none."""
    for name in ("zstandard", "compression.zstd", "backports.zstd"):
        with contextlib.suppress(ImportError):
            module = importlib.import_module(name)
            return _zstandard(module) if name == "zstandard" else _standard(module)
    raise MissingPackage("compressed records of the archive need the package zstandard; run: pip "
                         "install zstandard")


def _zstandard(module: Any) -> _Package:
    """Adapt the package zstandard."""
    dictionary = module.ZstdCompressionDict(DICTIONARY, dict_type=module.DICT_TYPE_RAWCONTENT)
    dictionary.precompute_compress(level=_LEVEL)

    # A new object each time: several threads must not share one.
    def compress(data: bytes) -> bytes:
        return module.ZstdCompressor(level=_LEVEL, dict_data=dictionary,
                                     write_checksum=True).compress(data)

    def decompress(data: bytes) -> bytes:
        frame = module.ZstdDecompressor(dict_data=dictionary).decompressobj()
        text = frame.decompress(data)
        if not frame.eof:
            raise module.ZstdError("the frame is cut")
        return text
    return _Package(compress, decompress, module.ZstdError)


def _standard(module: Any) -> _Package:
    """Adapt compression.zstd of Python 3.14, and backports.zstd, which is the same."""
    dictionary = module.ZstdDict(DICTIONARY, is_raw=True)
    options = {module.CompressionParameter.compression_level: _LEVEL,
               module.CompressionParameter.checksum_flag: 1}

    def compress(data: bytes) -> bytes:
        return module.compress(data, options=options, zstd_dict=dictionary)

    def decompress(data: bytes) -> bytes:
        return module.decompress(data, zstd_dict=dictionary)
    return _Package(compress, decompress, module.ZstdError)


def check_package() -> None:
    """Raise MissingPackage where no package for zstd is installed."""
    _package()


def compressed(text: str) -> str | bytes:
    """Return the form in which a record is stored: a frame where that is smaller, else itself."""
    data = text.encode()
    frame = _package().compress(data)
    return frame if len(frame) < len(data) else text


def plain(entry: str | bytes) -> str:
    """Return the text of a stored record of either form.

    sqlite3.DatabaseError for a frame that is damaged, as SQLite raises for a damaged page: the
    same rescue follows.
    """
    if isinstance(entry, str):
        return entry
    package = _package()
    try:
        return package.decompress(entry).decode("utf-8")
    except (package.error, ValueError, EOFError, MemoryError) as problem:
        raise sqlite3.DatabaseError("malformed: a compressed record cannot be read "
                                    f"({type(problem).__name__})") from None


def check_compressed(db: sqlite3.Connection) -> None:
    """Read every compressed record; sqlite3.DatabaseError when one is damaged."""
    for entry, in db.execute("SELECT entry FROM memory WHERE typeof(entry) = 'blob'"):
        plain(entry)


def entry_of(entry: str | bytes) -> dict[str, Any]:
    """Return the fields of a stored record of either form."""
    return json.loads(plain(entry))

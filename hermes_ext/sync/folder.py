"""The folder of sync: list its files, frame and seal lines, read new changes.

A line is `crc32 content\n`; content is JSON, or a token of the key that HERMES_SYNC_KEY makes.
An Inbox reads every file on from where the last run ended. What is damaged, too early or sealed
under another key waits; what cannot be right is refused; both are counted and named, never with
their text. The head of sync/sync.py describes the files.
"""
from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from hermes_ext.sync.merge import DEVICE, Item, from_line, is_count, merge
from hermes_lite import Cipher, ConfigError, HermesLite, from_json, to_json

__all__ = ["Inbox", "folder_cipher", "framed", "listed", "state_hash"]

_MOST_FAULTS = 50                    # that a run names; it counts them all
_LONGEST_HEADER = 4_096              # bytes
_ROOM_FOR_FIELDS = 1_048_576         # bytes of a line beside its text
_LENGTH_OF_FRAME = 9                 # "0a1b2c3d " before the content


# -- a line -------------------------------------------------------------------

def framed(content: bytes) -> bytes:
    """Return the line of a content: b"0a1b2c3d {…}\\n"."""
    return b"%08x %s\n" % (zlib.crc32(content), content)


def _content_of(line: bytes) -> bytes | None:
    """Return the content of a line without its end; None where the line is damaged."""
    line = line.rstrip(b"\r\n")                    # git may have put a CR there
    content = line[_LENGTH_OF_FRAME:]
    is_whole = content and line[:_LENGTH_OF_FRAME] == b"%08x " % zlib.crc32(content)
    return content if is_whole else None


_TOO_LONG = b""                      # instead of the content of a line that is no change


def _lines(file: BinaryIO, start: int, longest: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield (start, end, content) of every line from byte *start* on.

    The content is None where the line is damaged, and _TOO_LONG where it has more than *longest*
    bytes. A last line without its end is still on its way, and left out.
    """
    file.seek(start)
    while line := file.readline(longest):
        end = start + len(line)
        if line.endswith(b"\n"):
            yield start, end, _content_of(line)
        elif len(line) < longest:
            return
        else:
            end += _skip_line(file, longest)
            yield start, end, _TOO_LONG
        start = end


def _skip_line(file: BinaryIO, chunk: int) -> int:
    """Read on to the end of a line, without keeping it; return the number of bytes."""
    skipped = 0
    while rest := file.readline(chunk):
        skipped += len(rest)
        if rest.endswith(b"\n"):
            break
    return skipped


# -- the folder ---------------------------------------------------------------

def listed(folder: Path) -> dict[str, list[int]]:
    """Return {name: [time of change, size]} of every plain file that may be a change file."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if re.fullmatch(r"hermes-lite\..+\.jsonl", name, re.IGNORECASE):
            with contextlib.suppress(OSError):     # it was deleted meanwhile
                status = os.lstat(folder / name)
                if stat.S_ISREG(status.st_mode):
                    found[name] = [status.st_mtime_ns, status.st_size]
    return found


def state_hash(folder: Path, listed: Mapping[str, list[int]], revision: list) -> str:
    """Return a hash of all that a run looks at, "" where the store cannot tell its revision."""
    if not revision:
        return ""
    return hashlib.blake2b(to_json([str(folder), dict(listed), revision]),
                           digest_size=12).hexdigest()


def folder_cipher(memory: HermesLite) -> Cipher | None:
    """Return the cipher that HERMES_SYNC_KEY makes, None where it is not set.

    A Fernet key is taken as it is, a passphrase goes through scrypt.
    """
    secret = memory.config.env("HERMES_SYNC_KEY")
    if not secret:
        return None
    if re.fullmatch(r"[A-Za-z0-9_\-]{43}=", secret):          # a Fernet key
        return Cipher(secret.encode())
    if len(secret) < 16:
        raise ConfigError("HERMES_SYNC_KEY is shorter than 16 characters; set a long passphrase, "
                          "the same on every device")
    import base64
    key = hashlib.scrypt(secret.encode(), salt=b"hermes-lite sync 1", n=1 << 14, r=8, p=1)
    return Cipher(base64.urlsafe_b64encode(key[:32]))


# -- what comes in ------------------------------------------------------------

@dataclass(slots=True)
class _File:
    """One file of the folder, and the new changes in it, each with the byte where it starts.

    The next run reads on at byte `at`; `waits`: a line before the end is damaged or came too
    early, so that the file is read from there again. `n` is the number of the device's last
    change in it, `head` the crc of its header.
    """
    name: str
    stamp: list[int]
    device: str = ""
    n: int = 0
    head: int = 0
    at: int = 0
    waits: bool = False
    changes: list[tuple[int, str, Item]] = field(default_factory=list)

    def read_again_from(self, start: int) -> None:
        """Let the next run read the file again from byte *start*, or from before it."""
        self.at = min(self.at, start)
        self.waits = True

    def to_state(self) -> dict[str, object]:
        """Return what `.state_sync.json` keeps of it."""
        return {name: getattr(self, name)
                for name in ("stamp", "device", "n", "head", "at", "waits")}


class _Waits(Exception):
    """A line cannot be taken yet; it is read again next time."""


class Inbox:
    """Reads new changes from the folder, from where the last run ended.

    *known* is {name: `_File.to_state`} of the files as they were then.
    """

    def __init__(self, memory: HermesLite, folder: Path,
                 known: Mapping[str, dict[str, Any]]) -> None:
        self.memory = memory
        self.folder = folder
        self.cipher = folder_cipher(memory)
        self.key_fingerprint = self.cipher.fingerprints[0].decode() if self.cipher else ""
        self.listed = listed(folder)
        self.files: list[_File] = []
        self.faults: list[tuple[str, str]] = []
        self.refused = 0
        self.waiting = 0
        self._known = known
        self._longest_line = 8 * memory.config["storage"]["max_text_chars"] + _ROOM_FOR_FIELDS
        self._places: dict[str, list[tuple[_File, int]]] = {}  # of a memory's changes, by id

    def fault(self, name: str, why: str, *, waits: bool = False) -> None:
        """Count and report a line that is refused or waits; never with its text."""
        if waits:
            self.waiting += 1
        else:
            self.refused += 1
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append((self.memory.redact(name)[0], self.memory.redact(why)[0]))

    def read_again(self, memory_id: str) -> None:
        """Let the next run read a memory's changes again: its text has not arrived yet."""
        places = self._places.get(memory_id, [])
        if places:
            self.waiting += 1
        for file, start in places:
            file.read_again_from(start)

    def waits(self) -> bool:
        """Tell whether the next run has to read something again."""
        return any(file.waits for file in self.files)

    def row_of(self, line: bytes) -> dict[str, Any]:
        """Return the content of a line as JSON's types, {} where it cannot be read."""
        content = line[_LENGTH_OF_FRAME:]
        with contextlib.suppress(ValueError):
            if not content.startswith(b"{") and self.cipher:
                content = self.cipher.open(content)
            row = from_json(content)
            return row if isinstance(row, dict) else {}
        return {}

    def read(self, own_name: str, own_changes: Mapping[str, int], *,
             from_start: bool) -> dict[str, Item]:
        """Return the new changes by id, those of one memory merged.

        *own_name* is this device's file, which is read only *from_start*, as all are then.
        *own_changes* is {this device: number of its last change}.
        """
        for name, stamp in self.listed.items():
            if from_start:
                self._read_file(name, stamp, None)
            elif name != own_name:
                self._read_file(name, stamp, self._known.get(name))
        last_changes = dict(own_changes)
        for file in self.files:
            last_changes[file.device] = max(file.n, last_changes.get(file.device, 0))

        incoming: dict[str, Item] = {}
        for file in self.files:
            for start, memory_id, item in file.changes:
                if _knows_too_much(item, last_changes):
                    file.read_again_from(start)
                    self.fault(file.name, f"byte {start}: it has seen more of another device "
                               "than that one has told here", waits=True)
                    continue
                known = incoming.get(memory_id)
                incoming[memory_id] = merge(known, item) if known else item
                self._places.setdefault(memory_id, []).append((file, start))
        return incoming

    def _read_file(self, name: str, stamp: list[int], known: dict[str, Any] | None) -> None:
        """Add a file to `files`, read from where the last run ended; not one that is none of ours.

        One that is as it was at the last run is not opened.
        """
        if known and known["stamp"] == stamp and not known["waits"]:
            self.files.append(_File(name, **known))
            return
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        try:
            with open(os.open(self.folder / name, flags), "rb") as stream:
                file = self._read_header(name, stamp, stream.readline(_LONGEST_HEADER))
                if file is None:
                    return
                if known and known["head"] == file.head and known["at"] <= stamp[1]:
                    file.at = known["at"]
                    file.n = max(known["n"], file.n)
                self._read_changes(file, stream)
                self.files.append(file)
        except OSError as problem:
            self.fault(name, problem.strerror or "it cannot be read", waits=True)

    def _read_header(self, name: str, stamp: list[int], line: bytes) -> _File | None:
        """Return a file by its first line; None, and a fault, where that is not ours."""
        is_whole = line.endswith(b"\n") and _content_of(line) is not None
        row = self.row_of(line.rstrip()) if is_whole else {}
        if "hermes-lite-sync" not in row:
            self.fault(name, "its first line is not there yet, or damaged", waits=True)
            return None
        if row["hermes-lite-sync"] != 1:
            self.fault(name, "it is of another version; update hermes-lite on this device")
            return None
        device = row.get("device")
        if not isinstance(device, str) or not DEVICE.fullmatch(device) or (
                not is_count(row.get("n"))):
            self.fault(name, "its first line cannot be right")
            return None
        is_sealed = bool(row.get("sealed"))
        if is_sealed != bool(self.cipher):
            self.fault(name, ("it is sealed" if is_sealed else "it is not sealed") +
                       "; set the same HERMES_SYNC_KEY on every device, and run sync there",
                       waits=True)
            return None
        return _File(name, stamp, device, row["n"], head=zlib.crc32(line), at=len(line))

    def _read_changes(self, file: _File, stream: BinaryIO) -> None:
        """Collect the changes of a file from byte `at` on; a bad line costs only itself."""
        waiting = []
        for start, end, content in _lines(stream, file.at, self._longest_line):
            file.at = end
            try:
                self._read_change(file, start, content)
            except _Waits as problem:
                waiting.append(start)
                self.fault(file.name, f"byte {start}: {problem}", waits=True)
            except (ValueError, RecursionError) as problem:
                is_own_words = type(problem) is ValueError     # a subclass is the JSON reader's
                why = str(problem) if is_own_words else "no JSON"
                self.fault(file.name, f"byte {start}: {why}")
        if waiting:
            file.read_again_from(waiting[0])

    def _read_change(self, file: _File, start: int, content: bytes | None) -> None:
        """Add one change to a file; _Waits, or ValueError, where it cannot be taken."""
        if content is None:
            raise _Waits("damaged, or not yet delivered")
        if content == _TOO_LONG:
            raise ValueError("longer than any memory may be")
        if self.cipher:
            try:
                content = self.cipher.open(content)
            except ValueError:
                raise _Waits("sealed under another HERMES_SYNC_KEY") from None
        row = from_json(content)
        memory_id, item = from_line(row)
        if self.memory.redact(memory_id)[0] != memory_id:
            raise ValueError("the id holds a secret")
        if is_count(row.get("n")):
            file.n = max(file.n, row["n"])
        file.changes.append((start, memory_id, item))


def _knows_too_much(item: Item, last_changes: Mapping[str, int]) -> bool:
    """Tell whether a clock of an item has seen a change that its device has not told here.

    Such a change came too early, or lies. Nothing is known of a device without a file.
    """
    clocks: Iterable[Mapping[str, int]] = (
        item.forgotten, *item.replaced, *item.voided, *(each.clock for each in item.versions))
    return any(number > last_changes.get(device, number)
               for clock in clocks for device, number in clock.items())

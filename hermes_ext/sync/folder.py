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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hermes_ext.sync.merge import DEVICE, Item, from_line, is_count, merge
from hermes_lite import Cipher, ConfigError, HermesLite, from_json, to_json

__all__ = ["Inbox", "folder_cipher", "framed", "listed", "state_hash"]

_FAULTS = 50


@dataclass(slots=True)
class _File:
    """One file of the folder: its device, the number of its last change, and new changes.

    The next run reads on at byte `at`; `waits`: a line before the end is damaged or came too
    early, so that the file is read from there again.
    """
    name: str
    stamp: list[int]
    device: str = ""
    n: int = 0
    head: int = 0
    at: int = 0
    waits: bool = False
    changes: list[tuple[int, str, Item]] = field(default_factory=list)

    def hold(self, start: int) -> None:
        self.at, self.waits = min(self.at, start), True

    def kept(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("stamp", "device", "n", "head", "at",
                                                       "waits")}


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


def _cut(file, start: int, most: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield (start, end, content) of every whole line; None is damaged, b"" too long to be one.

    A last line without its end is still on its way, and left out.
    """
    file.seek(start)
    while line := file.readline(most):
        at, start = start, start + len(line)
        if not line.endswith(b"\n"):
            if len(line) < most:
                return
            while rest := file.readline(most):
                start += len(rest)
                if rest.endswith(b"\n"):
                    break
            yield at, start, b""
            continue
        line = line.rstrip(b"\r\n")                # git may have put a CR there
        whole = re.match(rb"[0-9a-f]{8} .", line) and int(line[:8], 16) == zlib.crc32(line[9:])
        yield at, start, line[9:] if whole else None


def framed(content: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(content), content)


def folder_cipher(memory: HermesLite) -> Cipher | None:
    """Return the cipher that HERMES_SYNC_KEY makes: a Fernet key as it is, else scrypt of it."""
    secret = memory.config.env("HERMES_SYNC_KEY")
    if not secret:
        return None
    if re.fullmatch(r"[A-Za-z0-9_\-]{43}=", secret):
        return Cipher(secret.encode())
    if len(secret) < 16:
        raise ConfigError("HERMES_SYNC_KEY is shorter than 16 characters; set a long passphrase, "
                          "the same on every device")
    import base64
    key = hashlib.scrypt(secret.encode(), salt=b"hermes-lite sync 1", n=1 << 14, r=8, p=1)
    return Cipher(base64.urlsafe_b64encode(key[:32]))


class _Waits(Exception):
    """A line cannot be taken yet; it is read again next time."""


class Inbox:
    """Reads new changes from the folder, from where the last run ended."""

    def __init__(self, memory: HermesLite, folder: Path, known: Mapping[str, dict]) -> None:
        self.memory = memory
        self.folder = folder
        self.known = known
        self.cipher = folder_cipher(memory)
        self.mark = self.cipher.fingerprints[0].decode() if self.cipher else ""
        self.most = 8 * memory.config["storage"]["max_text_chars"] + 1_048_576
        self.listed = listed(folder)
        self.files: list[_File] = []
        self.places: dict[str, list[tuple[_File, int]]] = {}
        self.faults: list[tuple[str, str]] = []
        self.refused = self.waiting = 0

    def fault(self, name: str, why: str, *, waits: bool = False) -> None:
        """Count and report a line that is refused or waits; never with its text."""
        self.refused += not waits
        self.waiting += waits
        if len(self.faults) < _FAULTS:
            self.faults.append((self.memory.redact(name)[0], self.memory.redact(why)[0]))

    def hold(self, memory_id: str) -> None:
        """Read the changes of a memory again next time: its text has not arrived yet."""
        self.waiting += memory_id in self.places
        for file, start in self.places.get(memory_id, ()):
            file.hold(start)

    def waits(self) -> bool:
        return any(file.waits for file in self.files)

    def row(self, line: bytes) -> dict:
        """Return the content of a line, {} where it cannot be read."""
        content = line[9:]
        with contextlib.suppress(ValueError):
            if content[:1] != b"{" and self.cipher:
                content = self.cipher.open(content)
            row = from_json(content)
            return row if isinstance(row, dict) else {}
        return {}

    def read(self, own: str, limits: dict[str, int], *, again: bool) -> dict[str, Item]:
        """Return the new changes, those of one memory merged; *again* reads all from the start.

        A clock that knows more of a device than its file tells came too early, or lies: it
        waits.
        """
        for name, stamp in self.listed.items():
            if name != own or again:
                file = self._file(name, stamp, None if again else self.known.get(name))
                self.files += [file] if file else []
        for file in self.files:
            limits[file.device] = max(file.n, limits.get(file.device, 0))
        incoming: dict[str, Item] = {}
        for file in self.files:
            for start, memory_id, item in file.changes:
                clocks = [item.gone, *item.same, *item.void,
                          *(each.clock for each in item.versions)]
                if any(n > limits.get(device, n) for clock in clocks
                       for device, n in clock.items()):
                    file.hold(start)
                    self.fault(file.name, f"byte {start}: it has seen more of another device "
                               "than that one has told here", waits=True)
                    continue
                known = incoming.get(memory_id)
                incoming[memory_id] = merge(known, item) if known else item
                self.places.setdefault(memory_id, []).append((file, start))
        return incoming

    def _file(self, name: str, stamp: list[int], known: dict | None) -> _File | None:
        """Read one file; None where it is none of ours."""
        if known and known["stamp"] == stamp and not known["waits"]:
            return _File(name, **known)
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        try:
            with open(os.open(self.folder / name, flags), "rb") as stream:
                file = self._opened(name, stamp, stream.readline(4096))
                if file and known and known["head"] == file.head and known["at"] <= stamp[1]:
                    file.at, file.n = known["at"], max(known["n"], file.n)
                if file:
                    self._changes(file, stream)
                return file
        except OSError as problem:
            self.fault(name, problem.strerror or "it cannot be read", waits=True)
            return None

    def _opened(self, name: str, stamp: list[int], head: bytes) -> _File | None:
        """Read the header: version, device and whether it is sealed."""
        row = self.row(head.rstrip()) if head.endswith(b"\n") and (
            head[:8] == b"%08x" % zlib.crc32(head.rstrip(b"\r\n")[9:])) else {}
        if "hermes-lite-sync" not in row:
            self.fault(name, "its first line is not there yet, or damaged", waits=True)
        elif row["hermes-lite-sync"] != 1:
            self.fault(name, "it is of another version; update hermes-lite on this device")
        elif not isinstance(row.get("device"), str) or not DEVICE.fullmatch(row["device"]) or (
                not is_count(row.get("n"))):
            self.fault(name, "its first line cannot be right")
        elif bool(row.get("sealed")) != bool(self.cipher):
            self.fault(name, ("it is sealed" if row.get("sealed") else "it is not sealed") +
                       "; set the same HERMES_SYNC_KEY on every device, and run sync there",
                       waits=True)
        else:
            return _File(name, stamp, row["device"], row["n"], zlib.crc32(head), len(head))
        return None

    def _changes(self, file: _File, stream) -> None:
        """Collect the changes of a file from byte `at` on; a bad line costs only itself."""
        held = []
        for start, end, content in _cut(stream, file.at, self.most):
            file.at = end
            try:
                self._change(file, start, content)
            except _Waits as problem:
                held.append(start)
                self.fault(file.name, f"byte {start}: {problem}", waits=True)
            except (ValueError, RecursionError) as problem:
                self.fault(file.name, f"byte {start}: {problem}" if type(problem) is ValueError
                           else f"byte {start}: no JSON")
        if held:
            file.hold(held[0])

    def _change(self, file: _File, start: int, content: bytes | None) -> None:
        if content is None:
            raise _Waits("damaged, or not yet delivered")
        if not content:
            raise ValueError("longer than any memory may be")
        try:
            content = self.cipher.open(content) if self.cipher else content
        except ValueError:
            raise _Waits("sealed under another HERMES_SYNC_KEY") from None
        row = from_json(content)
        memory_id, item = from_line(row)
        if self.memory.redact(memory_id)[0] != memory_id:
            raise ValueError("the id holds a secret")
        file.n = max(file.n, row["n"] if is_count(row.get("n")) else 0)
        file.changes.append((start, memory_id, item))

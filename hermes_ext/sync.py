"""Sync: the memories of several machines, brought together through any shared folder.

    hermes_lite.py sync ~/Dropbox/memory         the first time
    hermes_lite.py sync                          from then on, by hand or by cron
    hermes_lite.py sync --dry-run
    hermes_lite.py sync --status
    hermes_lite.py sync --retire 0a1b2c3d4e5f    a machine that is no more

Dropbox, Syncthing, a git checkout, a USB stick: the folder only has to carry files. There is no
server, and no device writes another's file. Run it as often as you like on every machine.

    new        goes to every device with its id, its dates and every field
    edited     the newer text takes the older one's place everywhere. Newer is what has seen the
               other (vector clocks); no wall clock is asked
    both       a text edited on two devices: one keeps the id, the other becomes a memory of its
               own, whose meta.sync.conflict_with names that id. Which one is the same everywhere
    fields     are merged one by one; of two changes at once of the same field the larger wins
               (importance, verified), lists are united. Access counts: the largest
    same       the same words remembered on two devices become one memory; what is merely
               similar stays two
    forgotten  is forgotten everywhere, also where it was edited meanwhile, also if the words come
               back under another id from a device that was away. To have it again, remember it
               again, where you know that it was forgotten
    pruned     is each device's own affair: it goes by dates and rules which are the same
               everywhere, or differ on purpose. It comes back if another device changes it. The
               folder keeps it
    refused    what this device's own rules refuse (size, systems, form) stays out, and is said

Everything that comes in passes the door of `remember`: it is redacted again. What the door
changes, by rules or rooms that only this device has, stays on this device.

In the folder, hermes-lite.DEVICE.jsonl is all that DEVICE has to tell, version 1. Each line is
`crc32 JSON\\n`, or `crc32 token\\n` where the folder has a key; the first is the header.
    {"hermes-lite-sync": 1, "device", "n", "gen", "sealed"}     n: changes made up to here
    {"n", "id", "clock": {device: n}, "text", "facts": {field: value}, "levels": {field: level},
     "count": [accesses, last], "gone": {device: n}, "same": [clock], "void": [clock],
     "after": [id]}
What is new is appended. A text that was replaced or forgotten is no longer in the file: it is
written anew without it, by every device that told it, as soon as that one hears of the change. Of
what was forgotten only the id stays. A torn or not yet delivered end is waited for.
Conflict copies that a service makes ("… (conflicted copy).jsonl", ".sync-conflict-…") are read
like any file, for a change may arrive twice and in any order, and their owner removes them.

A key: HERMES_SYNC_KEY, one long passphrase, the same on every device (environment or .env),
seals every line. An encrypted store needs it, or `--plain`, once, to be written readable.

A device's name is random and kept in .state_sync.json. A root that was copied, or put back from a
backup, gets a new one: its folder is another inode, or its file is not as it left it. So does one
whose state was lost. The file of the name before stays until `--retire`, which takes over what a
file still tells and removes it; so do the files of machines that are no more, with what they may
hold of forgotten texts. What `restore` puts back is an edit like any other.

How changes are noticed: .state_sync.json holds hashes of every record as last seen, no text. If
neither store nor folder has changed, only its head is read. Every change of a run is held in
memory at once; 50 are one transaction. After a kill the next run does the rest.

For other ways to travel: `Item` and `merge` know neither files nor stores, `to_line` and
`from_line` are the form of a change.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hermes_lite import (Cipher, ConfigError, HermesLite, Memory, NotFound, Operation, Param,
                         Refused, StorageError, UsageError, _Record, _visible, append_bytes,
                         from_json, is_safe_id, make_folder, other_wordings, parse_time, plain,
                         seal, take_over_edits, to_json, write_atomic)

__all__ = ["Item", "OPERATIONS", "Synced", "Version", "from_line", "merge", "retire", "status",
           "sync", "to_line"]

_FIELDS = ("category", "room", "importance", "execution_verified", "source", "created_at",
           "redacted", "tags", "agent", "expires_at", "status", "supersedes")
_DEVICE, _MOST = re.compile(r"[0-9a-f]{12}"), 1 << 48
_CHUNK, _FAULTS = 50, 50
Clock = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Synced(_Record):
    """What a run did; with `dry_run` nothing of it was done.

    `merged` are memories here that another device changed, `kept_both` texts that are kept
    beside another: `copies` pairs the ids. `waiting` counts what has not arrived whole, `faults`
    pairs a file with what was refused in it, or waits. `renewed` is the former name of this
    device.
    """
    folder: str
    device: str
    sent: int = 0
    received: int = 0
    merged: int = 0
    kept_both: int = 0
    forgotten: int = 0
    refused: int = 0
    waiting: int = 0
    copies: tuple[tuple[str, str], ...] = ()
    faults: tuple[tuple[str, str], ...] = ()
    renewed: str | None = None
    dry_run: bool = False
    warnings: tuple[str, ...] = ()


# -- the merge: no files, no store --------------------------------------------

@dataclass(frozen=True, slots=True)
class Version:
    """One text of a memory; `clock` says what its writer had seen, `mark` is its hash."""
    clock: Clock
    mark: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """All that is known of one memory; two of them merge in any order, any number of times.

    `versions`, best first, are those that no other has seen. `facts` is {field: (level,
    value)}, a level being the number of changes before it. `gone` counts the forgets, `same`
    holds the clocks of versions that another memory stands for, `void` those of versions whose
    text was forgotten under another id. `after` names the forgotten memories of the same text
    that its writer knew of.
    """
    versions: tuple[Version, ...] = ()
    facts: Mapping[str, tuple[int, object]] = field(default_factory=dict)
    count: tuple[int, str] = (0, "")
    gone: Clock = field(default_factory=dict)
    same: tuple[Clock, ...] = ()
    void: tuple[Clock, ...] = ()
    after: tuple[str, ...] = ()


class _Kept:
    """Stands for a value that the door of this device has changed: it is kept, and not sent."""


def merge(one: Item, two: Item) -> Item:
    """Return the least item that knows all that both know."""
    gone = _joined(one.gone, two.gone)
    same, void = _newest([*one.same, *two.same]), _newest([*one.void, *two.void])
    facts = dict(one.facts)
    for name, (level, value) in two.facts.items():
        facts[name] = _joined_fact(name, facts.get(name, (-1, None)), (level, value))
    return Item(_standing([*one.versions, *two.versions], gone, (*same, *void)), facts,
                max(one.count, two.count), gone, same, void,
                tuple(dict.fromkeys((*one.after, *two.after))))


def _covers(one: Clock, two: Clock) -> bool:
    return all(one.get(device, 0) >= n for device, n in two.items())


def _joined(*clocks: Clock) -> dict[str, int]:
    joined: dict[str, int] = {}
    for clock in clocks:
        for device, n in clock.items():
            joined[device] = max(n, joined.get(device, 0))
    return joined


def _newest(clocks: Iterable[Clock]) -> tuple[Clock, ...]:
    """Return the clocks that no other one covers, each once, in a fixed order."""
    unique = {tuple(sorted(clock.items())): clock for clock in clocks}
    return tuple(one for key, one in sorted(unique.items()) if not any(
        other is not one and _covers(other, one) for other in unique.values()))


def _standing(versions: Iterable[Version], gone: Clock, dropped: Iterable[Clock]) -> (
        tuple[Version, ...]):
    """Return what is neither seen by another version, nor forgotten, nor dropped.

    The order is total, and a version comes before all that it has seen: one that once came
    second never becomes first.
    """
    unique: dict[tuple, Version] = {}
    for each in versions:
        key = sum(each.clock.values()), tuple(sorted(each.clock.items())), each.mark
        if _covers(each.clock, gone) and not any(_covers(clock, each.clock) for clock in dropped):
            if key not in unique or unique[key].text is None:
                unique[key] = each
    return tuple(each for key, each in sorted(unique.items(), reverse=True) if not any(
        other.clock != each.clock and _covers(other.clock, each.clock)
        for other in unique.values()))


def _joined_fact(name: str, one: tuple[int, object], two: tuple[int, object]) -> (
        tuple[int, object]):
    """Return the fact that was changed more often; of two, the larger, or both lists."""
    if one[0] != two[0] or one[1] == two[1]:
        return max(one, two, key=lambda fact: fact[0])
    values = [one[1], two[1]]
    if _Kept in values:
        return one[0], _Kept
    if name in ("tags", "redacted"):
        return one[0], sorted({*(one[1] or ()), *(two[1] or ())})
    return one[0], max(values, key=lambda value: (
        value is not None, value if name in ("importance", "execution_verified") else 0,
        to_json(value)))


def to_line(memory_id: str, item: Item, n: int = 0) -> dict[str, object]:
    """Return a change as JSON's types: the best version and all else the item knows."""
    row: dict[str, object] = {"n": n, "id": memory_id}
    if item.versions and item.versions[0].text is not None:
        row.update(clock=dict(item.versions[0].clock), text=item.versions[0].text)
    known = {name: fact for name, fact in item.facts.items() if fact[1] is not _Kept}
    levels = {name: level for name, (level, _) in known.items() if level != 1}
    optional = {"facts": {name: value for name, (_, value) in known.items()}, "levels": levels,
                "count": list(item.count) if item.count[0] else None, "gone": dict(item.gone),
                "same": [dict(clock) for clock in item.same],
                "void": [dict(clock) for clock in item.void], "after": list(item.after)}
    return {**row, **{name: value for name, value in optional.items() if value}}


def from_line(row: object) -> tuple[str, Item]:
    """Read a change that somebody wrote; ValueError says what in it cannot be."""
    if not isinstance(row, dict):
        raise ValueError("a change is not an object")
    memory_id = row.get("id")
    if not isinstance(memory_id, str) or not _is_good_id(memory_id):
        raise ValueError("the id is no safe name")
    versions: tuple[Version, ...] = ()
    if "text" in row:
        if not isinstance(row["text"], str) or not row.get("clock"):
            raise ValueError("the text is no text, or has no clock")
        versions = Version(_clock(row["clock"]), text_mark(row["text"]), row["text"]),
    same, void = (tuple(map(_clock, _list(row, name))) for name in ("same", "void"))
    after = tuple(each for each in _list(row, "after") if isinstance(each, str))
    count, when = (*_list(row, "count"), 0, "")[:2] if len(_list(row, "count")) != 1 else (0, 0)
    if not _is_count(count) or not isinstance(when, str) or len(when) > 40:
        raise ValueError("the access count is none")
    return memory_id, Item(versions, _facts_of(row), (count, when), _clock(row.get("gone", {})),
                           same, void, after)


def _is_good_id(name: str) -> bool:
    return is_safe_id(name) and name == name.lower() and not re.match(
        r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)|.*\.$", name)


def _is_count(value: object, most: int = _MOST) -> bool:
    return type(value) is int and 0 <= value <= most


def _list(row: Mapping[str, object], name: str) -> list:
    value = row.get(name, [])
    if not isinstance(value, list) or len(value) > 64:
        raise ValueError(f"{name} is not a short list")
    return value


def _clock(value: object) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > 256 or not all(
            _DEVICE.fullmatch(device) and n and _is_count(n) for device, n in value.items()):
        raise ValueError("the clock cannot be right")
    return value


def _facts_of(row: Mapping[str, object]) -> dict[str, tuple[int, object]]:
    facts, levels = row.get("facts", {}), row.get("levels", {})
    if not isinstance(facts, dict) or not isinstance(levels, dict) or len(facts) > 500:
        raise ValueError("the fields are none")
    for name, value in facts.items():
        allowed = {"importance": (int,), "execution_verified": (bool,), "tags": (list,),
                   "redacted": (list,)}.get(name, (str,)) if name in _FIELDS else None
        if allowed and value is not None and (type(value) not in allowed or not all(
                isinstance(each, str) for each in (value if allowed == (list,) else ()))):
            raise ValueError(f"{name} has the wrong type")
    return {name: (levels.get(name, 1), plain(value)) for name, value in facts.items()
            if _is_count(levels.get(name, 1)) and (name in _FIELDS or _is_free(name))}


def _is_free(name: str) -> bool:
    """Tell whether it is a system's fact, or a field that this version does not know."""
    kind, _, rest = name.partition(".")
    return kind == "meta" and bool(rest) or kind == "extra" and bool(rest) and (
        rest not in Memory.__dataclass_fields__)


# -- records as items ---------------------------------------------------------

def text_mark(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _facts(record: Memory) -> dict[str, object]:
    """Return the fields that are set, flat: meta.NAME and extra.NAME stand for themselves."""
    row = record.entry()
    facts = {name: row[name] for name in _FIELDS if row.get(name) not in (None, [])}
    for kind, values in (("meta", record.meta), ("extra", record.extra)):
        facts.update((f"{kind}.{name}", plain(value)) for name, value in values.items())
    return facts


def _built(memory_id: str, text: str, facts: Mapping[str, object], count: tuple[int, str],
           old: Memory | None) -> Memory:
    """Return the record with these fields; ValueError where one has a wrong type."""
    row: dict[str, object] = {"id": memory_id, "content": text, "room": ""}
    meta: dict[str, object] = {}
    for name, value in facts.items():
        kind, _, rest = name.partition(".")
        if value is not None:
            (meta if kind == "meta" and rest else row)[rest or name] = value
    last = count[1] if count[1] and parse_time(count[1]) else old and old.last_accessed
    return Memory.from_entry({**row, "meta": meta, "last_accessed": last or None,
                              "access_count": max(count[0], old.access_count if old else 0)})


def _record_mark(record: Memory) -> str:
    row = record.entry()
    del row["access_count"], row["last_accessed"]
    return hashlib.blake2b(to_json(row), digest_size=8).hexdigest()


def _mark(value: object) -> str:
    return hashlib.blake2b(to_json(value), digest_size=3).hexdigest()


@dataclass(slots=True)
class _Row:
    """What the state keeps of one memory; `mark` is "" where the store does not hold it.

    `carry`: 0 this device's file does not tell it, 1 only its access count, 2 all of it.
    `marks` are the hashes of the fields as stored, `levels` those that are not 1, `kept` the
    fields that the door changed. `aged`: pruned here. `note`: keyed hash of a forgotten text.
    """
    mark: str = ""
    count: int = 0
    carry: int = 0
    versions: list = field(default_factory=list)
    stored: str = ""
    marks: dict[str, str] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    gone: dict[str, int] = field(default_factory=dict)
    same: list = field(default_factory=list)
    void: list = field(default_factory=list)
    aged: bool = False
    note: str = ""

    def packed(self) -> list:
        marks = "".join(self.marks.get(name, "------") for name in _FIELDS)
        more = {"marks": {k: v for k, v in self.marks.items() if k not in _FIELDS},
                "levels": self.levels, "kept": self.kept, "gone": self.gone, "same": self.same,
                "void": self.void, "aged": self.aged, "note": self.note,
                "stored": self.stored if self.versions and (
                    self.stored != self.versions[0][1]) else ""}
        return [self.mark, self.count, self.carry, self.versions, marks if self.marks else "",
                {name: value for name, value in more.items() if value}]

    @classmethod
    def unpacked(cls, packed: list) -> _Row:
        mark, count, carry, versions, marks, more = packed
        found = {name: marks[at:at + 6] for name, at in zip(_FIELDS, range(0, len(marks), 6))
                 if marks[at] != "-"}
        stored = more.get("stored") or (versions[0][1] if versions else "")
        return cls(mark, count, carry, versions, stored, found | more.get("marks", {}),
                   **{name: more[name] for name in ("levels", "kept", "gone", "same", "void",
                                                    "aged", "note") if name in more})

    @classmethod
    def of(cls, record: Memory, item: Item, carry: int) -> _Row:
        """Return the row of a record as it is stored now, and of the item that it shows."""
        facts = _facts(record)
        kept = [name for name, (_, value) in item.facts.items()
                if value is _Kept or facts.get(name) != value]
        return cls(_record_mark(record), record.access_count, carry,
                   [[dict(each.clock), each.mark] for each in item.versions],
                   text_mark(record.content), {name: _mark(v) for name, v in facts.items()},
                   {name: level for name, (level, _) in item.facts.items() if level != 1},
                   sorted(kept), dict(item.gone), [*map(dict, item.same)],
                   [*map(dict, item.void)])

    def item(self, record: Memory | None) -> Item:
        """Return the item; of a text that the door changed or that is not here, only the hash."""
        facts = _facts(record) if record else {}
        names = [*facts, *(name for name in self.levels if name not in facts)]
        text = record.content if record and self.stored == self.versions[0][1] else None
        versions = [Version(clock, mark, None if at else text)
                    for at, (clock, mark) in enumerate(self.versions)]
        return Item(tuple(versions), {name: (self.levels.get(name, 1), _Kept if name in self.kept
                                             else facts.get(name)) for name in names},
                    (record.access_count if record else self.count,
                     (record and record.last_accessed) or ""), self.gone,
                    tuple(self.same), tuple(self.void))


# -- files in the folder ------------------------------------------------------

@dataclass(slots=True)
class _File:
    """One file of the folder: who tells, how far, and what is new in it.

    `at` is where to read on next time; `waits` says that something before its end is damaged
    or came too early, so that it is read from there again.
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


def _listed(folder: Path) -> dict[str, list[int]]:
    """Return {name: [time of change, size]} of every plain file that may be a change file."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if re.fullmatch(r"hermes-lite\..+\.jsonl", name, re.IGNORECASE):
            with contextlib.suppress(OSError):     # it has just gone
                status = os.lstat(folder / name)
                if stat.S_ISREG(status.st_mode):
                    found[name] = [status.st_mtime_ns, status.st_size]
    return found


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


def _framed(content: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(content), content)


def _folder_cipher(memory: HermesLite) -> Cipher | None:
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


class _Inbox:
    """What the folder says that is new here; files are read on from where the last run ended."""

    def __init__(self, memory: HermesLite, folder: Path, known: Mapping[str, dict]) -> None:
        self.memory, self.folder, self.known = memory, folder, known
        self.cipher = _folder_cipher(memory)
        self.mark = self.cipher.marks[0].decode() if self.cipher else ""
        self.most = 8 * memory.config["storage"]["max_text_chars"] + 1_048_576
        self.listed = _listed(folder)
        self.files: list[_File] = []
        self.places: dict[str, list[tuple[_File, int]]] = {}
        self.faults: list[tuple[str, str]] = []
        self.refused = self.waiting = 0

    def fault(self, name: str, why: str, *, waits: bool = False) -> None:
        """Count and say what was not taken, now or at all; never with its text."""
        self.refused += not waits
        self.waiting += waits
        if len(self.faults) < _FAULTS:
            self.faults.append((self.memory.redact(name)[0], self.memory.redact(why)[0]))

    def hold(self, memory_id: str) -> None:
        """Read what is said of a memory again next time: its text has not arrived yet."""
        self.waiting += memory_id in self.places
        for file, start in self.places.get(memory_id, ()):
            file.hold(start)

    def waits(self) -> bool:
        return any(file.waits for file in self.files)

    def row(self, line: bytes) -> dict:
        """Return what a line says, {} where it cannot be read."""
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
        elif not isinstance(row.get("device"), str) or not _DEVICE.fullmatch(row["device"]) or (
                not _is_count(row.get("n"))):
            self.fault(name, "its first line cannot be right")
        elif bool(row.get("sealed")) != bool(self.cipher):
            self.fault(name, ("it is sealed" if row.get("sealed") else "it is not sealed") +
                       "; set the same HERMES_SYNC_KEY on every device, and run sync there",
                       waits=True)
        else:
            return _File(name, stamp, row["device"], row["n"], zlib.crc32(head), len(head))
        return None

    def _changes(self, file: _File, stream) -> None:
        """Collect what a file says from its `at` on; a bad line costs itself."""
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
        file.n = max(file.n, row["n"] if _is_count(row.get("n")) else 0)
        file.changes.append((start, memory_id, item))


class _Undo(Exception):
    """Ends the transaction of a dry run."""


# -- one run ------------------------------------------------------------------

class _Run:
    """One look at store and folder, and all that follows from it."""

    def __init__(self, memory: HermesLite, folder: Path, state: dict[str, object]) -> None:
        self.memory, self.store, self.folder, self.state = memory, memory.store, folder, state
        self.inbox = _Inbox(memory, folder, state["files"])
        self.rows: dict[str, list] = state.pop("rows", {})
        self.device, self.n = state["device"], state["n"]
        self.lines: dict[str, dict] = {}           # what this device has to tell
        self.unfolded: list[Memory] = []           # removed, for another says the same
        self.told: list[tuple[Memory, str]] = []   # forgotten, for the systems
        self.counts = dict.fromkeys(("received", "merged", "forgotten"), 0)
        self.copies: list[tuple[str, str]] = []
        self.renewed: str | None = None
        self.rewrite = self.changed = False
        self.again = state.pop("again", False)

    @property
    def own(self) -> Path:
        return self.folder / f"hermes-lite.{self.device}.jsonl"

    def tick(self) -> int:
        self.n += 1
        return self.n

    def run(self, *, dry_run: bool = False) -> Synced:
        """Do the first page; a dry run does it under the lock and undoes it."""
        self._know_oneself()
        self.store.refresh()
        revision = getattr(self.store, "revision", list)()
        changed, lost = self._scan()
        self.again = self.again or lost
        incoming = self.inbox.read(self.own.name, {self.device: self.n}, again=self.again)
        ids = sorted({*changed, *incoming}, key=lambda i: (     # what goes, goes first
            self.store.get(i) is not None and not (i in incoming and incoming[i].gone), i))
        if dry_run:
            with contextlib.suppress(_Undo), self.memory.batch():
                self._take(ids, incoming)
                raise _Undo
            self.store.refresh()
        else:
            for start in range(0, len(ids), _CHUNK):
                with self.memory.batch():
                    self._take(ids[start:start + _CHUNK], incoming)
            self._fold()
            self._tell_systems()
            self._send(revision)
        return Synced(str(self.folder), self.device, len(self.lines), **self.counts,
                      kept_both=len(self.copies), refused=self.inbox.refused,
                      waiting=self.inbox.waiting, copies=tuple(self.copies),
                      faults=tuple(self.inbox.faults), renewed=self.renewed, dry_run=dry_run,
                      warnings=self._warnings())

    def _warnings(self) -> tuple[str, ...]:
        return (f"this data root is a copy, or was put back: from now on it is the device "
                f"{self.device}. If no other root goes by the name {self.renewed}, run: sync "
                f"--retire {self.renewed}",) if self.renewed else ()

    # -- who am I -----------------------------------------------------------

    def _know_oneself(self) -> None:
        """Take a new name where the root was copied or put back; see if the own file is whole."""
        inode, moves = os.stat(self.memory.root).st_ino, self.state.get("moves", 0)
        is_moved = self.state["inode"] != inode and moves < 3     # some disks draw them anew
        self.state["inode"] = inode
        own = self.state["own"]
        if not self.rows and not own:
            return
        if is_moved:
            self.state["moves"] = moves + 1
            self._renew()
        elif own and zlib.crc32(data := self._own_data()) == own["crc"] and len(data) == (
                own["size"]):
            self.rewrite = self.rewrite or own["sealed"] != self.inbox.mark
        elif own and self._is_anothers(own):
            self._renew()
        else:
            self.rewrite = True                    # cut, lost, or never written after a kill
            if not self.own.exists():
                self._carry_all()

    def _own_data(self) -> bytes:
        try:
            return self.own.read_bytes()
        except FileNotFoundError:
            return b""

    def _is_anothers(self, own: Mapping[str, object]) -> bool:
        """Tell whether somebody wrote on in this device's name."""
        for line in self._own_data().splitlines():
            row = self.inbox.row(line)
            n = row.get("n")
            if type(n) is int and (n > own["n"] or n == own["n"] and (
                    line[:8] != own["tail"].encode() if "id" in row else
                    row.get("gen") != own["gen"])):
                return True
        return False

    def _renew(self) -> None:
        self.renewed, self.device, self.n = self.device, _new_device(), 0
        self.state.update(own=None, files={}, device=self.device)
        self._carry_all()

    def _carry_all(self) -> None:
        """Tell everything that is known here, whoever said it first."""
        self.rewrite = self.again = True
        for row in self.rows.values():
            row[2] = 2 if row[0] or {"gone", "same", "void"} & row[5].keys() else row[2]

    # -- what is new here ---------------------------------------------------

    def _scan(self) -> tuple[list[str], bool]:
        """Return the ids whose record is not as last seen, and whether some are lost.

        What is gone without a tombstone was lost, not forgotten: it comes back from the folder.
        """
        seen, changed = set(), []
        for record in self.store:
            seen.add(record.id)
            row = self.rows.get(record.id)
            if row is None or row[0] != _record_mark(record) or row[1] != record.access_count:
                changed.append(record.id)
        missing = [i for i, row in self.rows.items() if row[0] and i not in seen]
        removals = self.store.removals() if missing else {}
        lost = [i for i in missing if i not in removals]
        for memory_id in lost:
            del self.rows[memory_id]
        return [*changed, *(i for i in missing if i in removals)], bool(lost)

    # -- one memory after the other -----------------------------------------

    def _take(self, ids: Iterable[str], incoming: Mapping[str, Item]) -> None:
        """Bring store and rows up to date with what both sides say; inside a transaction."""
        removals = self.store.removals()
        for memory_id in ids:
            copies = self._take_one(memory_id, incoming.get(memory_id, Item()), removals)
            for copy, item in copies.items():
                self._take_one(copy, item, removals, least=2)

    def _take_one(self, memory_id: str, news: Item, removals: Mapping[str, Mapping[str, str]], *,
                  least: int = 0) -> dict[str, Item]:
        record = self.store.get(memory_id)
        row = self.rows.get(memory_id)
        row = _Row.unpacked(row) if row else _Row()
        local, level = self._local(memory_id, row, record, news, removals)
        item = merge(local, news)
        if item == Item(facts=item.facts, count=item.count, after=item.after):
            self.inbox.hold(memory_id)
            return {}
        while self._is_unwanted(memory_id, item, local):
            item = merge(item, Item(void=(item.versions[0].clock,)))
            self.counts["forgotten"] += record is None
        if not item.versions:
            self._drop(memory_id, row, record, item, local)
            return {}
        if row.aged and not record and not _is_news(local, item):
            self._keep_row(memory_id, row)
            return {}
        top = item.versions[0]
        is_own = bool(local.versions) and record and (top.clock, top.mark) == (
            local.versions[0].clock, local.versions[0].mark)
        text = record.content if is_own else top.text or self._text_of(top.mark)
        if text is None:
            self.inbox.hold(memory_id)
            return {}
        if not is_own or any(local.facts.get(name) != fact for name, fact in item.facts.items()
                             ) or item.count != local.count:
            if not self._put(memory_id, record, item, text):
                return {}
        level = 2 if (item.gone, item.void) != (local.gone, local.void) else level
        self._settle(memory_id, row, item, max(level, least))
        return self._copies(memory_id, item)

    def _text_of(self, mark: str) -> str | None:
        """Find the text of a version that once came second: its copy has it, or the folder."""
        for memory_id, row in self.rows.items():
            if row[0] and row[3][0][1] == mark and "stored" not in row[5]:
                record = self.store.get(memory_id)
                if record and text_mark(record.content) == mark:
                    return record.content
        self.state["again"] = True                 # the next run reads all files from the start
        return None

    def _local(self, memory_id: str, row: _Row, record: Memory | None, news: Item,
               removals: Mapping[str, Mapping[str, str]]) -> tuple[Item, int]:
        """Return what this device says, and how much of it is new: 0, 1 the count, 2 more."""
        if record is None:
            if row.mark and memory_id not in removals:     # lost a moment ago
                return Item(gone=row.gone, same=tuple(row.same), void=tuple(row.void)), 0
            if row.mark and removals[memory_id]["why"].startswith("pruned: "):
                row.aged, row.mark = True, ""
            elif row.mark:
                return merge(row.item(None), Item(gone={self.device: self.tick()})), 2
            return row.item(None), 0
        if not row.mark:
            return self._appeared(memory_id, row, record, news)
        item = row.item(record)
        if row.mark == _record_mark(record):
            return item, int(row.count != record.access_count)
        return self._edited(row, record, item), 2

    def _edited(self, row: _Row, record: Memory, item: Item) -> Item:
        """Count up what a person or a system has changed here since the last run."""
        values = _facts(record)
        now = {name: _mark(value) for name, value in values.items()}
        names = {name for name in {*now, *row.marks} if now.get(name) != row.marks.get(name)}
        versions, mark = item.versions, text_mark(record.content)
        if mark != row.stored:
            clock = _joined(*(each.clock for each in versions), {self.device: self.tick()})
            versions = Version(clock, mark, record.content),
        elif not names:                            # two values of one short hash
            names = set(values)
        return replace(item, versions=versions, facts={**item.facts, **{
            name: (row.levels.get(name, 1) + 1, values.get(name)) for name in names}})

    def _appeared(self, memory_id: str, row: _Row, record: Memory, news: Item) -> (
            tuple[Item, int]):
        """Return the item of a record that the last run did not see."""
        values, count = _facts(record), (record.access_count, record.last_accessed or "")
        facts = {name: (1, value) for name, value in values.items()}
        for each in news.versions if row == _Row() else ():
            if each.text is not None and record.content in (each.text, self.memory.redact(
                    each.text)[0]):                # of a run that was killed, or an import
                text = record.content if record.content == each.text else None
                same = all(values.get(name) == fact[1] for name, fact in news.facts.items())
                return Item((replace(each, text=text),), facts, count), 0 if same else 2
        tomb = self.store.forgotten(record.content)
        if (row.gone or row.void) and tomb and not tomb["why"].startswith("pruned: "):
            return row.item(None), 0               # put back behind the store's back
        before = [*(clock for clock, _ in row.versions), row.gone, *row.same,
                  *row.void]
        level = 1 + max([0, *row.levels.values()], default=0) + (row != _Row())
        clock = _joined(*before, {self.device: self.tick()})
        if row != _Row():                          # fields that it no longer has, too
            facts = {name: (level, values.get(name)) for name in {*_FIELDS, *values, *row.levels}}
        note = self._note(text_mark(record.content))
        after = tuple(i for i in self.notes.get(note, ()) if i != memory_id)[:64]
        return Item((Version(clock, text_mark(record.content), record.content),), facts, count,
                    row.gone, tuple(row.same), tuple(row.void), after), 2

    def _note(self, mark: str) -> str:
        return hashlib.blake2b(mark.encode(), key=self.state["salt"].encode(),
                               digest_size=8).hexdigest()

    @functools.cached_property
    def notes(self) -> dict[str, list[str]]:
        """Return the forgotten ids by the keyed hash of their text."""
        notes: dict[str, list[str]] = {}
        for memory_id, row in self.rows.items():
            if row[5].get("note"):
                notes.setdefault(row[5]["note"], []).append(memory_id)
        return notes

    def _is_unwanted(self, memory_id: str, item: Item, local: Item) -> bool:
        """Tell whether a text comes back that was forgotten here, from one who did not know."""
        top = item.versions[0] if item.versions else None
        if top is None or top.text is None or any(top.mark == each.mark
                                                  for each in local.versions):
            return False
        clean = self.memory.redact(top.text)[0].strip()
        tomb = self.store.forgotten(clean)
        if tomb is None or tomb["why"].startswith("pruned: ") or (
                tomb["id"] == memory_id and item.gone):
            return False
        return not any(i == tomb["id"] or i in self.rows and {"gone", "void"}
                       & self.rows[i][5].keys() for i in item.after)

    def _drop(self, memory_id: str, row: _Row, record: Memory | None, item: Item,
              local: Item) -> None:
        """Take a memory away, because it is forgotten or because another says the same."""
        note = row.note
        if record:
            is_forgotten = not local.versions or any(
                not _covers(each.clock, item.gone) or any(
                    _covers(clock, each.clock) for clock in item.void) for each in local.versions)
            why = "forgotten on another device" if is_forgotten else None
            self.store.remove(memory_id, why=why, also=other_wordings(record.content)
                              if is_forgotten else ())
            if is_forgotten:
                self.told.append((record, why))
                self.counts["forgotten"] += 1
            else:
                self.unfolded.append(record)
                self.counts["merged"] += 1
            note = self._note(text_mark(record.content))
        elif row.stored:
            note = self._note(row.stored)
        self.notes.setdefault(note, []).append(memory_id)
        fresh = item.gone != row.gone or list(item.void) != row.void
        self.rewrite = self.rewrite or row.carry > 0 and bool(row.versions)
        made = _Row(carry=2 if fresh else row.carry, levels=row.levels, gone=dict(item.gone),
                    same=[*map(dict, item.same)], void=[*map(dict, item.void)], note=note)
        self._keep_row(memory_id, made)
        if fresh:
            self.lines[memory_id] = to_line(memory_id, Item(gone=made.gone, same=item.same,
                                                                void=item.void))

    def _keep_row(self, memory_id: str, row: _Row) -> None:
        packed = row.packed()
        if self.rows.get(memory_id) != packed:
            self.rows[memory_id], self.changed = packed, True

    def _put(self, memory_id: str, record: Memory | None, item: Item, text: str) -> bool:
        """Store what the item says, through the core's door; False where that refuses it."""
        facts = {name: value for name, (_, value) in item.facts.items()}
        mine = _facts(record) if record else {}
        facts = {name: mine.get(name) if value is _Kept else value
                 for name, value in facts.items()}
        try:
            wanted = _built(memory_id, text, facts, item.count, record)
            if wanted == record:
                return True
            self.store.lift(text, memory_id=memory_id)
            self.memory.admit(wanted, replacing=True)
        except (ValueError, RecursionError) as problem:
            self.inbox.fault(memory_id, str(problem) if isinstance(problem, ValueError)
                        else "nested too deeply")
            return record is not None              # the old record stays, and is not sent
        self.counts["merged" if record else "received"] += 1
        return True

    def _settle(self, memory_id: str, row: _Row, item: Item, level: int) -> None:
        """Note what is stored now, and what of it the others do not know."""
        record = self.store.get(memory_id)
        made = _Row.of(record, item, max(row.carry, level))
        if row.carry == 2 and row.versions and row.versions[0][1] != made.versions[0][1]:
            self.rewrite = True                    # the own file tells the older text
        self._keep_row(memory_id, made)
        if level == 2:
            self.lines[memory_id] = to_line(memory_id, replace(made.item(record),
                                                               after=item.after))
        elif level == 1:
            self.lines[memory_id] = {"id": memory_id, "count": list(made.item(record).count)}

    def _copies(self, memory_id: str, item: Item) -> dict[str, Item]:
        """Return the texts that came second, each as a memory under an id of its own.

        Id and clock follow from the version, so that every device makes the same.
        """
        copies = {}
        for each in item.versions[1:]:
            key = to_json([memory_id, sorted(each.clock.items())]) + (
                each.mark.encode() if each.clock == item.versions[0].clock else b"")
            stamp = re.match(r"mem_\d{8}_\d{6}_", memory_id) or ["mem_20000101_000000_"]
            copy = stamp[0] + hashlib.blake2b(key, digest_size=6).hexdigest()
            if each.text is None or each.mark == item.versions[0].mark or copy in self.rows or (
                    self.store.get(copy)):
                continue
            facts = {name: (0, None if value is _Kept else value)
                     for name, (_, value) in item.facts.items()}
            facts["meta.sync"] = (0, {"conflict_with": memory_id})
            copies[copy] = Item((each,), facts)
            self.copies.append((memory_id, copy))
        return copies

    # -- the same words twice -----------------------------------------------

    def _fold(self) -> None:
        """Make one memory of those that say the same; the smallest id stands for all."""
        if not self.changed:
            return
        said: dict[str, list[str]] = {}
        for memory_id, row in self.rows.items():
            if row[0] and "stored" not in row[5]:
                said.setdefault(row[3][0][1], []).append(memory_id)
        twice = [sorted(ids) for ids in said.values() if len(ids) > 1]
        for record in self.unfolded:
            twice += [said[mark] for mark in [text_mark(record.content)] if mark in said]
        if not twice:
            return
        with self.memory.batch():
            for ids in twice:
                self._fold_one([m for i in ids if (m := self.store.get(i))])

    def _fold_one(self, records: list[Memory]) -> None:
        for agent in dict.fromkeys(record.agent for record in records):
            one, *others = [record for record in records if record.agent == agent]
            gone = [record for record in self.unfolded if record.agent == agent
                    and record.content == one.content]
            whole = one
            for each in (*others, *gone):
                whole = replace(
                    whole, importance=max(whole.importance, each.importance),
                    execution_verified=whole.execution_verified or each.execution_verified,
                    tags=tuple(dict.fromkeys((*whole.tags, *each.tags))),
                    access_count=max(whole.access_count, each.access_count))
            for each in others:
                self._stand_down(each)
            if whole != one:
                self.memory.admit(whole, replacing=True)
                self._take([one.id], {})

    def _stand_down(self, record: Memory) -> None:
        """Remove a memory for which another stands; an edit that did not know brings it back."""
        row = _Row.unpacked(self.rows[record.id])
        if row.mark != _record_mark(record):       # changed since: the next run sees to it
            return
        item = Item(gone=row.gone, void=tuple(row.void),
                    same=_newest([*row.same, *(clock for clock, _ in row.versions)]))
        self.store.remove(record.id, why=None)
        self.rewrite = self.rewrite or row.carry > 0
        self._keep_row(record.id, _Row(carry=2, levels=row.levels, gone=row.gone, void=row.void,
                                       same=[*map(dict, item.same)]))
        self.lines[record.id] = to_line(record.id, item)
        self.counts["merged"] += 1

    def _tell_systems(self) -> None:
        if self.told:
            self.memory.tell("forget", [record.id for record, _ in self.told],
                             why=self.told[0][1])
        for record, why in self.told:
            self.memory.notices += self.memory._call("after_forget", record, why)

    # -- what goes out ------------------------------------------------------

    def _send(self, revision: list) -> None:
        """Save the state, then write the own file: after a kill between, it is written anew."""
        self.state["files"] = {name: known for name, known in self.state["files"].items()
                               if name in self.inbox.listed} | {
            file.name: file.kept() for file in self.inbox.files}
        own = self.state["own"]
        if own and not self.lines and not self.rewrite:
            waits = "again" in self.state or self.inbox.waits()
            look = "" if waits or self.changed else _look(self.folder, self.inbox.listed,
                                                          revision)
            if self.changed or look != self.state["look"] or waits:
                self._save(look)
            return
        carried = sum(row[2] > 0 for row in self.rows.values())
        if self.rewrite or not own or own["lines"] + len(self.lines) > 2 * carried + 200:
            self._write_anew()
        else:
            self._append(own)

    def _append(self, own: dict[str, object]) -> None:
        framed = [self._sealed({**row, "n": self.tick()}) for _, row in sorted(
            self.lines.items())]
        data = b"".join(framed)
        self.state["own"] = {**own, "n": self.n, "size": own["size"] + len(data),
                             "crc": zlib.crc32(data, own["crc"]),
                             "tail": framed[-1][:8].decode(), "lines": own["lines"] + len(framed)}
        self._save("")
        append_bytes(self.own, data)

    def _write_anew(self) -> None:
        """Write all that this device has to tell, and only that; then remove its stray copies."""
        gen = os.urandom(8).hex()
        head = _framed(to_json({"hermes-lite-sync": 1, "device": self.device, "n": self.tick(),
                                "gen": gen, "sealed": bool(self.inbox.mark)}))
        framed = [head, *map(self._sealed, self._all_lines())]
        data = b"".join(framed)
        self.state["own"] = {"n": self.n, "size": len(data), "crc": zlib.crc32(data), "gen": gen,
                             "tail": framed[-1][:8].decode(), "lines": len(framed) - 1,
                             "sealed": self.inbox.mark}
        self._save("")
        write_atomic(self.own, data)
        for file in self.inbox.files:
            if file.device == self.device and file.name != self.own.name and not file.waits:
                with contextlib.suppress(OSError):
                    os.unlink(self.folder / file.name)

    def _sealed(self, row: dict[str, object]) -> bytes:
        return _framed(seal(to_json(row), self.inbox.cipher))

    def _all_lines(self) -> Iterator[dict[str, object]]:
        """Yield the newest of every memory; of a pruned one, what the file says already."""
        aged = {i for i, row in self.rows.items() if row[2] and row[5].get("aged")}
        told: dict[str, dict] = {}
        for line in self._own_data().splitlines() if aged else ():
            row = self.inbox.row(line)
            if row.get("id") in aged and "text" in row:
                told[row["id"]] = {**row, "n": 0}
        for memory_id in sorted(i for i, row in self.rows.items() if row[2]):
            row = _Row.unpacked(self.rows[memory_id])
            record = self.store.get(memory_id) if row.mark else None
            if row.aged:
                yield from [told[memory_id]] if memory_id in told else []
            elif not row.mark:
                yield to_line(memory_id, Item(gone=row.gone, same=tuple(row.same),
                                              void=tuple(row.void)))
            elif record and row.mark == _record_mark(record):     # else the next run tells it
                line = to_line(memory_id, row.item(record))
                after = self.lines.get(memory_id, {}).get("after")
                line = {**line, "after": after} if after else line
                yield line if row.carry == 2 else {"id": memory_id, "count": line.get("count")}

    def _save(self, look: str) -> None:
        self.state.update(look=look, n=self.n, device=self.device)
        self.store.write(".state_sync.json", to_json({**self.state, "rows": self.rows}))


def _is_news(local: Item, item: Item) -> bool:
    """Tell whether another device has changed a memory since it was pruned here."""
    return {(str(each.clock), each.mark) for each in item.versions} != {
        (str(each.clock), each.mark) for each in local.versions} or any(
        level > local.facts.get(name, (1, None))[0] for name, (level, _) in item.facts.items())


def _look(folder: Path, listed: Mapping[str, list[int]], revision: list) -> str:
    """Return a hash of all that a run looks at, "" where the store cannot tell its revision."""
    if not revision:
        return ""
    return hashlib.blake2b(to_json([str(folder), dict(listed), revision]),
                           digest_size=12).hexdigest()


def _new_device() -> str:
    return os.urandom(6).hex()


# -- the operation ------------------------------------------------------------

def sync(memory: HermesLite, folder: str | os.PathLike | None = None, *, plain: bool = False,
         dry_run: bool = False) -> Synced:
    """Take in what other devices told, tell what is new here; return what became of it.

    The folder is remembered. Locked when another run is at work on this root; Refused for an
    encrypted store without HERMES_SYNC_KEY, unless *plain* was given once; NotFound where the
    remembered folder is not there, as on a disk that is not mounted.
    """
    with memory.exclusive("sync"):
        take_over_edits(memory)
        state = _head(memory)
        path = _chosen(memory, state, folder, plain, make=not dry_run)
        if not dry_run and not plain and state and state["folder"] == str(path):
            memory.store.refresh()
            revision = getattr(memory.store, "revision", list)()
            if state["look"] and state["look"] == _look(path, _listed(path), revision):
                return Synced(str(path), state["device"])
        state = _whole(memory, path, plain)
        if not path.is_dir():
            raise NotFound(f"there is no folder {path} yet; without --dry-run it is made")
        return _Run(memory, path, state).run(dry_run=dry_run)


def _head(memory: HermesLite) -> dict[str, object]:
    """Return the state without its rows, which are most of it; {} where there is none."""
    head, _, rest = (memory.store.read(".state_sync.json") or b"").partition(b', "rows"')
    with contextlib.suppress(ValueError):
        state = from_json(head + b"}") if rest else {}
        return state if state.get("version") == 1 else {}
    return {}


def _whole(memory: HermesLite, folder: Path, plain: bool) -> dict[str, object]:
    """Return the whole state, a new device's where there is none or it is damaged."""
    fresh = {"version": 1, "look": "", "device": _new_device(), "n": 0, "folder": str(folder),
             "plain": plain, "salt": os.urandom(16).hex(), "inode": os.stat(memory.root).st_ino,
             "moves": 0, "own": None, "files": {}, "rows": {}}
    state = {**fresh, **memory.state("sync")}
    if state["version"] != 1:
        raise ConfigError(f"{memory.root / '.state_sync.json'} is of another version; update "
                          "hermes-lite")
    if state["folder"] != str(folder):
        state.update(folder=str(folder), files={}, look="")
    return {**state, "plain": (state["plain"] or plain) and not _folder_cipher(memory)}


def _chosen(memory: HermesLite, state: Mapping[str, object], folder: object, plain: bool, *,
            make: bool) -> Path:
    """Return the folder, made where it is new; an error says what is in the way."""
    if folder is None and not state:
        raise UsageError("give FOLDER, the folder that your machines share; later runs know it")
    named = os.fspath(folder) if folder is not None else state["folder"]
    if not named.strip() or "\0" in named:
        raise UsageError("FOLDER is empty or contains a NUL character; give a name")
    path = Path(os.path.abspath(named))
    real, root = os.path.realpath(path), os.path.realpath(memory.root)
    if Path(real).is_relative_to(root):
        raise Refused("FOLDER lies inside the data root, where the store's own files are; choose "
                      "a folder that your machines share", "inside_root")
    was_sealed = bool((state.get("own") or {}).get("sealed"))
    if (getattr(memory.store, "cipher", None) or was_sealed) and not _folder_cipher(memory) and (
            not (plain or state.get("plain"))):
        raise Refused(f"{'its files were sealed' if was_sealed else 'this store is encrypted'} "
                      "and would become readable in the folder; set HERMES_SYNC_KEY, in .env for "
                      "cron, to one long passphrase, the same on every device, or add --plain",
                      "needs_key")
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; give a folder")
    if not path.is_dir():
        if state.get("folder") == str(path) or not path.parent.is_dir():
            raise NotFound(f"there is no folder {path}; is its disk mounted, and is the name "
                           "right?")
        if make:
            make_folder(path)
    return path


def status(memory: HermesLite) -> dict[str, object]:
    """Return folder, own name, and who has told how many changes; nothing is changed."""
    state = _head(memory)
    if not state:
        raise NotFound("nothing was synced yet; run: sync FOLDER")
    path = Path(state["folder"])
    listed = _listed(path) if path.is_dir() else {}
    devices = {known["device"]: known["n"] for name, known in state["files"].items()
               if name in listed and known["device"] != state["device"]}
    return {"folder": str(path), "there": path.is_dir(), "device": state["device"],
            "told": state["n"], "sealed": bool((state["own"] or {}).get("sealed")),
            "devices": dict(sorted(devices.items())),
            "waiting": sorted(name for name, known in state["files"].items() if known["waits"]),
            "bytes": sum(size for _, size in listed.values())}


def retire(memory: HermesLite, device: str) -> Synced:
    """Take over what a device that is no more has told, and remove its files.

    Refused where something in them is still on its way; NotFound where no file is its.
    """
    with memory.exclusive("sync"):
        state = _head(memory)
        if not state:
            raise NotFound("nothing was synced yet; run: sync FOLDER")
        if device == state["device"]:
            raise Refused("that is this device itself", "itself")
        path = _chosen(memory, state, None, False, make=False)
        if device not in {known["device"] for known in state["files"].values()}:
            raise NotFound(f"no file in {path} is of the device {memory._quoted(device)}; "
                           "`sync --status` names them")
        run = _Run(memory, path, _whole(memory, path, False))
        run._carry_all()
        done = run.run()
        theirs = [file for file in run.inbox.files if file.device == device]
        if any(file.waits for file in theirs):
            raise Refused("something in its file is damaged or waits for another device; "
                          "`sync` says what", "waits")
        for file in theirs:
            os.unlink(path / file.name)
        return done


def _sync(memory: HermesLite, *, folder: Path | None, dry_run: bool, status: bool, plain: bool,
          retire: str | None) -> object:
    if sum((dry_run, status, bool(retire))) > 1 or folder is not None and (status or retire):
        raise UsageError("give FOLDER or --dry-run or both, or --status alone, or --retire alone")
    if status:
        return globals()["status"](memory)
    return globals()["retire"](memory, retire) if retire else sync(
        memory, folder, plain=plain, dry_run=dry_run)


def _show(result: object) -> Iterator[str]:
    if isinstance(result, dict):
        for name, value in result.items():
            if isinstance(value, (dict, list)):
                value = ", ".join(f"{key} ({value[key]})" if isinstance(value, dict) else key
                                  for key in value) or "none"
            yield f"{name}: {_visible(str(value))}"
        return
    for name, why in result.faults:
        yield f"{_visible(name)}: {_visible(why)}"
    for memory_id, copy in result.copies:
        yield f"{memory_id}: edited on two devices; the other text is kept as {copy}"
    yield (f"{result.sent} {'to send' if result.dry_run else 'sent'}, {result.received} received, "
           f"{result.merged} merged, {result.kept_both} kept both, {result.refused} refused, "
           f"{result.forgotten} forgotten" + (f", {result.waiting} not yet delivered whole"
                                              if result.waiting else ""))


OPERATIONS = (
    Operation("sync", "bring the memories of several machines together through a folder", _sync, (
        Param("folder", Path, "the shared folder; known after the first time", positional=True),
        Param("dry_run", bool, "only show what would be done", False),
        Param("status", bool, "show folder and devices", False),
        Param("plain", bool, "write readable files although the store is encrypted", False),
        Param("retire", str, "take over the files of a device that is no more")),
        _show, writes=True),
)

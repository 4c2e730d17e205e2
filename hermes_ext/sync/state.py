"""The state of sync: hashes and clocks of every memory, and the changes that are still to send.

`.state_sync.json` holds one PackedRow a memory: hashes and clocks, no text, so that the next run
sees what a person or a system has changed meanwhile. A Book is that state during a run.
"""
from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple

from hermes_ext.sync.merge import FIELDS, Item, Kept, Version, text_hash
from hermes_lite import Memory, parse_time, plain, to_json

__all__ = ["Amount", "Book", "PackedRow", "Row", "built", "facts_of", "new_device",
           "record_hash", "short_hash"]


def facts_of(record: Memory) -> dict[str, object]:
    """Return the fields that are set, flat: {"importance": 5, "meta.pinned": True, …}."""
    row = record.entry()
    facts = {name: row[name] for name in FIELDS if row.get(name) not in (None, [])}
    for kind, values in (("meta", record.meta), ("extra", record.extra)):
        facts.update((f"{kind}.{name}", plain(value)) for name, value in values.items())
    return facts


def built(memory_id: str, text: str, facts: Mapping[str, object], count: tuple[int, str],
           old: Memory | None) -> Memory:
    """Return the record with the fields of `facts_of`; ValueError where one has a wrong type.

    *count* is the access count and the time of the last access; the greater count stays.
    """
    row: dict[str, object] = {"id": memory_id, "content": text, "room": ""}
    meta: dict[str, object] = {}
    for name, value in facts.items():
        kind, _, rest = name.partition(".")
        if value is None:
            continue
        if kind == "meta" and rest:
            meta[rest] = value
        else:                                      # a field, or one of `extra`
            row[rest or name] = value
    accesses, last_accessed = count
    if not parse_time(last_accessed):
        last_accessed = old.last_accessed if old else None
    if old:
        accesses = max(accesses, old.access_count)
    return Memory.from_entry({**row, "meta": meta, "last_accessed": last_accessed or None,
                              "access_count": accesses})


def record_hash(record: Memory) -> str:
    """Return a hash of all but the counting of accesses."""
    row = record.entry()
    del row["access_count"], row["last_accessed"]
    return hashlib.blake2b(to_json(row), digest_size=8).hexdigest()


def short_hash(value: object) -> str:
    """Return a hash of six characters: enough to see that a field was changed."""
    return hashlib.blake2b(to_json(value), digest_size=3).hexdigest()


def new_device() -> str:
    """Return a random name for a device: twelve hexadecimal digits."""
    return os.urandom(6).hex()


class Amount(IntEnum):
    """How much of a memory the file of a device holds, or what of it is to be sent."""
    NOTHING = 0
    COUNT = 1                        # the access count alone
    ALL = 2


class PackedRow(NamedTuple):
    """A Row as `.state_sync.json` has it: a list of six."""
    record_hash: str
    count: int
    in_own_file: int
    versions: list                   # [clock, text hash] of each, the best first
    field_hashes: str                # those of FIELDS in a row, six characters each
    more: dict[str, Any]             # what else is not empty, by the names of _NAMES_IN_FILE

    def is_forgotten(self) -> bool:
        """Tell whether a clock of forgetting is known: under this id, or under another."""
        return "gone" in self.more or "void" in self.more

    def best_text_hash(self) -> str | None:
        """Return the hash of the text that the store holds as it was sent; None without one.

        A text that this device's rules have changed counts as none.
        """
        is_as_sent = self.record_hash and "stored" not in self.more
        return self.versions[0][1] if is_as_sent else None


_NO_HASH = "------"                  # of a field that is not set, in PackedRow.field_hashes
_NAMES_IN_FILE = {"levels": "levels", "own_fields": "kept", "forgotten": "gone",
                  "replaced": "same", "voided": "void", "is_pruned": "aged",
                  "forgotten_hash": "note"}


@dataclass(slots=True)
class Row:
    """State of one memory at the end of the last run.

    `record_hash` is "" where the store has no record, `in_own_file` says how much of it this
    device's file holds. `versions` are [clock, text hash], `stored_hash` is that of the text as
    stored. `field_hashes` are those of the fields as stored, `levels` those that are not 1 (see
    Item), `own_fields` the fields that this device's rules have changed: they are not sent.
    `forgotten_hash` is the keyed hash of a text that was forgotten.
    """
    record_hash: str = ""
    count: int = 0
    in_own_file: int = Amount.NOTHING
    versions: list = field(default_factory=list)
    stored_hash: str = ""
    field_hashes: dict[str, str] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    own_fields: list[str] = field(default_factory=list)
    forgotten: dict[str, int] = field(default_factory=dict)
    replaced: list = field(default_factory=list)
    voided: list = field(default_factory=list)
    is_pruned: bool = False
    forgotten_hash: str = ""

    def packed(self) -> PackedRow:
        """Return the row as it stands in the file, without what is empty."""
        hashes = "".join(self.field_hashes.get(name, _NO_HASH) for name in FIELDS)
        more: dict[str, Any] = {short: getattr(self, name)
                                for name, short in _NAMES_IN_FILE.items()}
        more["marks"] = {name: value for name, value in self.field_hashes.items()
                         if name not in FIELDS}
        if self.versions and self.stored_hash != self.versions[0][1]:
            more["stored"] = self.stored_hash
        return PackedRow(self.record_hash, self.count, int(self.in_own_file), self.versions,
                         hashes if self.field_hashes else "",
                         {name: value for name, value in more.items() if value})

    @classmethod
    def unpacked(cls, packed: PackedRow) -> Row:
        """Read what `packed` made."""
        more = packed.more
        width = len(_NO_HASH)
        hashes = {}
        for at, name in enumerate(FIELDS):
            one = packed.field_hashes[at * width:(at + 1) * width]
            if one not in ("", _NO_HASH):
                hashes[name] = one
        row = cls(packed.record_hash, packed.count, packed.in_own_file, packed.versions,
                  field_hashes={**hashes, **more.get("marks", {})})
        if packed.versions:
            row.stored_hash = more.get("stored") or packed.versions[0][1]
        for name, short in _NAMES_IN_FILE.items():
            if short in more:
                setattr(row, name, more[short])
        return row

    @classmethod
    def of(cls, record: Memory, item: Item, in_own_file: int) -> Row:
        """Return the row of a record as it is stored now, and of the item that it shows."""
        facts = facts_of(record)
        own_fields = [name for name, (_, value) in item.facts.items()
                      if value is Kept or facts.get(name) != value]
        return cls(
            record_hash(record), record.access_count, in_own_file,
            versions=[[dict(each.clock), each.text_hash] for each in item.versions],
            stored_hash=text_hash(record.content),
            field_hashes={name: short_hash(value) for name, value in facts.items()},
            levels={name: level for name, (level, _) in item.facts.items() if level != 1},
            own_fields=sorted(own_fields), forgotten=dict(item.forgotten),
            replaced=[dict(clock) for clock in item.replaced],
            voided=[dict(clock) for clock in item.voided])

    def item(self, record: Memory | None) -> Item:
        """Return what this device knows of the memory, with *record* as it was at the last run.

        Only the hash is known of a text that came second, that is not here, or that this
        device's rules have changed.
        """
        values = facts_of(record) if record else {}
        facts: dict[str, tuple[int, object]] = {}
        for name in (*values, *self.levels):
            value = Kept if name in self.own_fields else values.get(name)
            facts[name] = self.levels.get(name, 1), value
        versions = [Version(clock, text_hash) for clock, text_hash in self.versions]
        if record and self.stored_hash == versions[0].text_hash:
            versions[0] = replace(versions[0], text=record.content)
        count = self.count, ""
        if record:
            count = record.access_count, record.last_accessed or ""
        return Item(tuple(versions), facts, count, self.forgotten, tuple(self.replaced),
                    tuple(self.voided))

    def without_text(self) -> Item:
        """Return the clocks alone: what is sent of a memory that the store has no more."""
        return Item(forgotten=self.forgotten, replaced=tuple(self.replaced),
                    voided=tuple(self.voided))


class Book:
    """State of a device during a run.

    `to_send` are the changes to send, by id. `must_rewrite`: the file of this device holds
    outdated texts and must be written anew; `changed`: a row has changed; `read_all`: all files
    of the folder are read from the start.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.rows = {memory_id: PackedRow(*row)
                     for memory_id, row in state.pop("rows", {}).items()}
        self.device: str = state["device"]
        self.last_number: int = state["n"]         # of the newest change of this device
        self.to_send: dict[str, dict] = {}
        self.must_rewrite = False
        self.changed = False
        self.read_all: bool = state.pop("again", False)

    def next_number(self) -> int:
        """Count a change of this device and return its number."""
        self.last_number += 1
        return self.last_number

    def keep(self, memory_id: str, row: Row) -> None:
        """Set the row of a memory."""
        packed = row.packed()
        if self.rows.get(memory_id) != packed:
            self.rows[memory_id] = packed
            self.changed = True

    def send_everything(self) -> None:
        """Have all that is known here written to this device's file, whoever it comes from."""
        self.must_rewrite = True
        self.read_all = True
        for memory_id, row in self.rows.items():
            if row.record_hash or {"gone", "same", "void"} & row.more.keys():
                self.rows[memory_id] = row._replace(in_own_file=int(Amount.ALL))

    def keyed_hash(self, text_hash: str) -> str:
        """Return a hash from which nobody without the state's salt can guess the text."""
        return hashlib.blake2b(text_hash.encode(), key=self.state["salt"].encode(),
                               digest_size=8).hexdigest()

    @functools.cached_property
    def forgotten_ids(self) -> dict[str, list[str]]:
        """The forgotten ids by the keyed hash of their text."""
        found: dict[str, list[str]] = {}
        for memory_id, row in self.rows.items():
            if row.more.get("note"):
                found.setdefault(row.more["note"], []).append(memory_id)
        return found

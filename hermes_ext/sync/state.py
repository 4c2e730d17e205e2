"""The state of sync: hashes and clocks of every memory, and the changes that are still to send.

`.state_sync.json` holds one packed Row a memory: hashes and clocks, no text, so that the next run
sees what a person or a system has changed meanwhile. A Book is that state during a run.
"""
from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from hermes_ext.sync.merge import FIELDS, Item, Kept, Version, text_hash
from hermes_lite import Memory, parse_time, plain, to_json

__all__ = ["Book", "Row", "built", "facts_of", "new_device", "record_hash", "short_hash"]


def facts_of(record: Memory) -> dict[str, object]:
    """Return the fields that are set, flat: meta.NAME and extra.NAME stand for themselves."""
    row = record.entry()
    facts = {name: row[name] for name in FIELDS if row.get(name) not in (None, [])}
    for kind, values in (("meta", record.meta), ("extra", record.extra)):
        facts.update((f"{kind}.{name}", plain(value)) for name, value in values.items())
    return facts


def built(memory_id: str, text: str, facts: Mapping[str, object], count: tuple[int, str],
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


def record_hash(record: Memory) -> str:
    """Return a hash of all but the counting of accesses."""
    row = record.entry()
    del row["access_count"], row["last_accessed"]
    return hashlib.blake2b(to_json(row), digest_size=8).hexdigest()


def short_hash(value: object) -> str:
    return hashlib.blake2b(to_json(value), digest_size=3).hexdigest()


def new_device() -> str:
    return os.urandom(6).hex()


@dataclass(slots=True)
class Row:
    """State of one memory; `mark` is a hash of its record, "" where the store has none.

    `carry`: 0 this device's file does not hold it, 1 only its access count, 2 all of it.
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
        """Return the row as it stands in the file, without what is empty."""
        marks = "".join(self.marks.get(name, "------") for name in FIELDS)
        more = {"marks": {k: v for k, v in self.marks.items() if k not in FIELDS},
                "levels": self.levels, "kept": self.kept, "gone": self.gone, "same": self.same,
                "void": self.void, "aged": self.aged, "note": self.note,
                "stored": self.stored if self.versions and (
                    self.stored != self.versions[0][1]) else ""}
        return [self.mark, self.count, self.carry, self.versions, marks if self.marks else "",
                {name: value for name, value in more.items() if value}]

    @classmethod
    def unpacked(cls, packed: list) -> Row:
        """Read what `packed` made."""
        mark, count, carry, versions, marks, more = packed
        found = {name: marks[at:at + 6] for name, at in zip(FIELDS, range(0, len(marks), 6))
                 if marks[at] != "-"}
        stored = more.get("stored") or (versions[0][1] if versions else "")
        return cls(mark, count, carry, versions, stored, found | more.get("marks", {}),
                   **{name: more[name] for name in ("levels", "kept", "gone", "same", "void",
                                                    "aged", "note") if name in more})

    @classmethod
    def of(cls, record: Memory, item: Item, carry: int) -> Row:
        """Return the row of a record as it is stored now, and of the item that it shows."""
        facts = facts_of(record)
        kept = [name for name, (_, value) in item.facts.items()
                if value is Kept or facts.get(name) != value]
        return cls(record_hash(record), record.access_count, carry,
                   [[dict(each.clock), each.mark] for each in item.versions],
                   text_hash(record.content), {name: short_hash(v) for name, v in facts.items()},
                   {name: level for name, (level, _) in item.facts.items() if level != 1},
                   sorted(kept), dict(item.gone), [*map(dict, item.same)],
                   [*map(dict, item.void)])

    def item(self, record: Memory | None) -> Item:
        """Return the item; of a text that the door changed or that is not here, only the hash."""
        facts = facts_of(record) if record else {}
        names = [*facts, *(name for name in self.levels if name not in facts)]
        text = record.content if record and self.stored == self.versions[0][1] else None
        versions = [Version(clock, mark, None if at else text)
                    for at, (clock, mark) in enumerate(self.versions)]
        return Item(tuple(versions), {name: (self.levels.get(name, 1), Kept if name in self.kept
                                             else facts.get(name)) for name in names},
                    (record.access_count if record else self.count,
                     (record and record.last_accessed) or ""), self.gone,
                    tuple(self.same), tuple(self.void))


class Book:
    """State of a device during a run.

    `lines` are the changes to send by id. `rewrite`: the file of this device holds outdated texts
    and must be written anew; `changed`: a row has changed; `again`: all files of the folder are
    read from the start.
    """

    def __init__(self, state: dict[str, object]) -> None:
        self.state = state
        self.rows: dict[str, list] = state.pop("rows", {})
        self.device, self.n = state["device"], state["n"]
        self.lines: dict[str, dict] = {}
        self.rewrite = self.changed = False
        self.again = state.pop("again", False)

    def tick(self) -> int:
        self.n += 1
        return self.n

    def keep(self, memory_id: str, row: Row) -> None:
        """Set the row of a memory."""
        packed = row.packed()
        if self.rows.get(memory_id) != packed:
            self.rows[memory_id] = packed
            self.changed = True

    def carry_all(self) -> None:
        """Send everything that is known here, whichever device it comes from."""
        self.rewrite = self.again = True
        for row in self.rows.values():
            row[2] = 2 if row[0] or {"gone", "same", "void"} & row[5].keys() else row[2]

    def note(self, mark: str) -> str:
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

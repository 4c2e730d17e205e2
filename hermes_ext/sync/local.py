"""Find the changes on this device: records that differ from the last run of sync.

A record that a person or a system has changed gets a clock that has seen all before it. A record
that is missing and has a tombstone is forgotten, unless prune took it; one that is missing without
a tombstone was lost, and comes back from the folder.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hermes_ext.sync.merge import FIELDS, Clock, Item, Version, joined, merge, text_hash
from hermes_ext.sync.state import Amount, Book, Row, facts_of, record_hash, short_hash
from hermes_lite import HermesLite, Memory

__all__ = ["Local", "is_forgotten_by_person"]

_MOST_NAMED = 64                     # forgotten ids that a change names


def is_forgotten_by_person(tombstone: Mapping[str, str]) -> bool:
    """Tell whether a memory was forgotten, and not only pruned by this device's own rules."""
    return not tombstone["why"].startswith("pruned: ")


class Local:
    """Finds the changes in the store of this device."""

    def __init__(self, memory: HermesLite, book: Book) -> None:
        self.memory = memory
        self.store = memory.store
        self.book = book

    def changed(self) -> tuple[list[str], bool]:
        """Return the ids of changed or removed records, and whether any record was lost.

        A lost one leaves the book: it comes back from the folder as if it were new.
        """
        rows = self.book.rows
        seen: set[str] = set()
        changed = []
        for record in map(self.memory.redactor.outgoing, self.store):
            seen.add(record.id)
            row = rows.get(record.id)
            if (row is None or row.record_hash != record_hash(record)
                    or row.count != record.access_count):
                changed.append(record.id)
        missing = [memory_id for memory_id, row in rows.items()
                   if row.record_hash and memory_id not in seen]
        removals = self.store.removals() if missing else {}
        lost = [memory_id for memory_id in missing if memory_id not in removals]
        for memory_id in lost:
            del rows[memory_id]
        removed = [memory_id for memory_id in missing if memory_id in removals]
        return changed + removed, bool(lost)

    def item(self, memory_id: str, row: Row, record: Memory | None, incoming: Item,
             removals: Mapping[str, Mapping[str, str]]) -> tuple[Item, Amount]:
        """Return what this device knows of a memory, and how much of it is to be sent.

        A pruned memory is marked as such in *row*.
        """
        if record is None:
            return self._missing(row, removals.get(memory_id))
        if not row.record_hash:
            return self._appeared(memory_id, row, record, incoming)
        item = row.item(record)
        if row.record_hash == record_hash(record):
            is_counted = row.count != record.access_count
            return item, Amount.COUNT if is_counted else Amount.NOTHING
        return self._edited(row, record, item), Amount.ALL

    def _missing(self, row: Row, tombstone: Mapping[str, str] | None) -> tuple[Item, Amount]:
        """Return the item of a memory that the store has no more, or never had."""
        if not row.record_hash:
            return row.item(None), Amount.NOTHING
        if tombstone is None:                      # lost a moment ago
            return row.without_text(), Amount.NOTHING
        if not is_forgotten_by_person(tombstone):
            row.is_pruned = True
            row.record_hash = ""
            return row.item(None), Amount.NOTHING
        now = {self.book.device: self.book.next_number()}
        return merge(row.item(None), Item(forgotten=now)), Amount.ALL

    def _edited(self, row: Row, record: Memory, item: Item) -> Item:
        """Return the item with the fields and text that changed here since the last run."""
        values = facts_of(record)
        hashes = {name: short_hash(value) for name, value in values.items()}
        names = {name for name in {*hashes, *row.field_hashes}
                 if hashes.get(name) != row.field_hashes.get(name)}
        versions = item.versions
        new_hash = text_hash(record.content)
        if new_hash != row.stored_hash:
            clock = self._next_clock(*(each.clock for each in versions))
            versions = (Version(clock, new_hash, record.content),)
        elif not names:                            # two values of one short hash
            names = set(values)
        edited = {name: (row.levels.get(name, 1) + 1, values.get(name)) for name in names}
        return replace(item, versions=versions, facts={**item.facts, **edited})

    def _next_clock(self, *seen: Clock) -> dict[str, int]:
        """Return the clock of a text written here now, whose writer knew the clocks *seen*."""
        return joined(*seen, {self.book.device: self.book.next_number()})

    def _appeared(self, memory_id: str, row: Row, record: Memory, incoming: Item) -> (
            tuple[Item, Amount]):
        """Return the item of a record that the last run did not see, and the amount to send.

        It is new here, was stored by a killed run or an import, or was forgotten or pruned and
        is there again.
        """
        values = facts_of(record)
        facts: dict[str, tuple[int, object]] = {
            name: (1, value) for name, value in values.items()}
        count = (record.access_count, record.last_accessed or "")
        is_new = row == Row()
        known = self._stored_version(record, incoming) if is_new else None
        if known is not None:
            is_same = all(values.get(name) == value
                          for name, (_, value) in incoming.facts.items())
            return Item((known,), facts, count), Amount.NOTHING if is_same else Amount.ALL

        if row.forgotten or row.voided:
            tombstone = self.store.forgotten(record.content)
            if tombstone and is_forgotten_by_person(tombstone):
                return row.item(None), Amount.NOTHING      # somebody put it back past the store

        if not is_new:                             # fields that it no longer has are sent, too
            level = 2 + max([0, *row.levels.values()])
            names = {*FIELDS, *values, *row.levels}
            facts = {name: (level, values.get(name)) for name in names}
        new_hash = text_hash(record.content)
        clock = self._next_clock(*(clock for clock, _ in row.versions), row.forgotten,
                                 *row.replaced, *row.voided)
        same_text = self.book.forgotten_ids.get(self.book.keyed_hash(new_hash), [])
        others = [each for each in same_text if each != memory_id]
        return Item((Version(clock, new_hash, record.content),), facts, count,
                    forgotten=row.forgotten, replaced=tuple(row.replaced),
                    voided=tuple(row.voided),
                    known_forgotten=tuple(others[:_MOST_NAMED])), Amount.ALL

    def _stored_version(self, record: Memory, incoming: Item) -> Version | None:
        """Return the incoming version that a record holds, plain or redacted, or None.

        Of a redacted text only the hash is kept.
        """
        for each in incoming.versions:
            if each.text is None:
                continue
            if record.content == each.text:
                return each
            if record.content == self.memory.redact(each.text)[0]:
                return replace(each, text=None)
        return None

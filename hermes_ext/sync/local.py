"""Find the changes on this device: records that differ from the last run of sync.

A record that a person or a system has changed gets a clock that covers all before it. A record
that is missing and has a tombstone is forgotten, unless prune took it; one that is missing without
a tombstone was lost, and comes back from the folder.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hermes_ext.sync.merge import FIELDS, Clock, Item, Version, joined, merge, text_hash
from hermes_ext.sync.state import Book, Row, facts_of, record_hash, short_hash
from hermes_lite import HermesLite, Memory

__all__ = ["Local"]


class Local:
    """Finds the changes in the store of this device."""

    def __init__(self, memory: HermesLite, book: Book) -> None:
        self.memory = memory
        self.store = memory.store
        self.book = book

    def changed(self) -> tuple[list[str], bool]:
        """Return the ids of changed records, and whether any record was lost."""
        seen, changed = set(), []
        for record in map(self.memory.redactor.outgoing, self.store):
            seen.add(record.id)
            row = self.book.rows.get(record.id)
            if row is None or row[0] != record_hash(record) or row[1] != record.access_count:
                changed.append(record.id)
        missing = [i for i, row in self.book.rows.items() if row[0] and i not in seen]
        removals = self.store.removals() if missing else {}
        lost = [i for i in missing if i not in removals]
        for memory_id in lost:
            del self.book.rows[memory_id]
        return [*changed, *(i for i in missing if i in removals)], bool(lost)

    def item(self, memory_id: str, row: Row, record: Memory | None, news: Item,
             removals: Mapping[str, Mapping[str, str]]) -> tuple[Item, int]:
        """Return this device's item, and the amount to send: 0 nothing, 1 the count, 2 all."""
        if record is None:
            if row.mark and memory_id not in removals:     # lost a moment ago
                return Item(gone=row.gone, same=tuple(row.same), void=tuple(row.void)), 0
            if row.mark and removals[memory_id]["why"].startswith("pruned: "):
                row.aged, row.mark = True, ""
            elif row.mark:
                return merge(row.item(None), Item(gone={self.book.device: self.book.tick()})), 2
            return row.item(None), 0
        if not row.mark:
            return self._appeared(memory_id, row, record, news)
        item = row.item(record)
        if row.mark == record_hash(record):
            return item, int(row.count != record.access_count)
        return self._edited(row, record, item), 2

    def _edited(self, row: Row, record: Memory, item: Item) -> Item:
        """Return the item with the fields and text that changed here since the last run."""
        values = facts_of(record)
        now = {name: short_hash(value) for name, value in values.items()}
        names = {name for name in {*now, *row.marks} if now.get(name) != row.marks.get(name)}
        versions = item.versions
        new_hash = text_hash(record.content)
        if new_hash != row.stored:
            clock = self._next_clock(*(each.clock for each in versions))
            versions = (Version(clock, new_hash, record.content),)
        elif not names:                            # two values of one short hash
            names = set(values)
        edited = {name: (row.levels.get(name, 1) + 1, values.get(name)) for name in names}
        return replace(item, versions=versions, facts={**item.facts, **edited})

    def _next_clock(self, *seen: Clock) -> dict[str, int]:
        """Return the clock of a text written here now, which covers the clocks *seen*."""
        return joined(*seen, {self.book.device: self.book.tick()})

    def _appeared(self, memory_id: str, row: Row, record: Memory, news: Item) -> (
            tuple[Item, int]):
        """Return the item of a record that the last run did not see, and the amount to send."""
        values = facts_of(record)
        count = (record.access_count, record.last_accessed or "")
        if row == Row():
            known = self._stored_version(record, news)
            if known is not None:                  # a killed run or an import has stored it
                facts = {name: (1, value) for name, value in values.items()}
                is_same = all(values.get(name) == fact[1] for name, fact in news.facts.items())
                return Item((known,), facts, count), 0 if is_same else 2
        if (row.gone or row.void) and self._is_forgotten(record):
            return row.item(None), 0               # somebody put it back past the store
        if row == Row():
            facts = {name: (1, value) for name, value in values.items()}
        else:                                      # fields that it no longer has, too
            level = 2 + max([0, *row.levels.values()])
            names = {*FIELDS, *values, *row.levels}
            facts = {name: (level, values.get(name)) for name in names}
        clock = self._next_clock(*(clock for clock, _ in row.versions), row.gone, *row.same,
                                 *row.void)
        new_hash = text_hash(record.content)
        same_text = self.book.notes.get(self.book.note(new_hash), ())
        after = tuple(each for each in same_text if each != memory_id)[:64]
        return Item((Version(clock, new_hash, record.content),), facts, count, row.gone,
                    tuple(row.same), tuple(row.void), after), 2

    def _stored_version(self, record: Memory, news: Item) -> Version | None:
        """Return the incoming version that a record holds, plain or redacted, or None.

        Of a redacted text only the hash is kept.
        """
        for each in news.versions:
            if each.text is None:
                continue
            if record.content == each.text:
                return each
            if record.content == self.memory.redact(each.text)[0]:
                return replace(each, text=None)
        return None

    def _is_forgotten(self, record: Memory) -> bool:
        """Tell whether a person has forgotten this text here; a pruned one is not."""
        tombstone = self.store.forgotten(record.content)
        return bool(tombstone) and not tombstone["why"].startswith("pruned: ")

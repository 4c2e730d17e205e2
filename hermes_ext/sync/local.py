"""What is new on this device: the records that are not as the last run of sync left them.

A record that a person or a system has changed gets a clock that has seen all before it; one that
is gone by a tombstone counts as forgotten, unless prune took it; one that is gone without any was
lost, and comes back from the folder.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hermes_ext.sync.merge import FIELDS, Clock, Item, Version, joined, merge, text_mark
from hermes_ext.sync.state import Book, Row, facts_of, record_mark, short_mark
from hermes_lite import HermesLite, Memory

__all__ = ["Local"]


class Local:
    """What the store of this device says."""

    def __init__(self, memory: HermesLite, book: Book) -> None:
        self.memory, self.store, self.book = memory, memory.store, book

    def changed(self) -> tuple[list[str], bool]:
        """Return the ids whose record is not as last seen, and whether some are lost.

        What is gone without a tombstone was lost, not forgotten: it comes back from the folder.
        """
        seen, changed = set(), []
        for record in map(self.memory.redactor.outgoing, self.store):
            seen.add(record.id)
            row = self.book.rows.get(record.id)
            if row is None or row[0] != record_mark(record) or row[1] != record.access_count:
                changed.append(record.id)
        missing = [i for i, row in self.book.rows.items() if row[0] and i not in seen]
        removals = self.store.removals() if missing else {}
        lost = [i for i in missing if i not in removals]
        for memory_id in lost:
            del self.book.rows[memory_id]
        return [*changed, *(i for i in missing if i in removals)], bool(lost)

    def item(self, memory_id: str, row: Row, record: Memory | None, news: Item,
             removals: Mapping[str, Mapping[str, str]]) -> tuple[Item, int]:
        """Return what this device says, and how much of it is new: 0, 1 the count, 2 more."""
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
        if row.mark == record_mark(record):
            return item, int(row.count != record.access_count)
        return self._edited(row, record, item), 2

    def _edited(self, row: Row, record: Memory, item: Item) -> Item:
        """Count up what a person or a system has changed here since the last run."""
        values = facts_of(record)
        now = {name: short_mark(value) for name, value in values.items()}
        names = {name for name in {*now, *row.marks} if now.get(name) != row.marks.get(name)}
        versions, mark = item.versions, text_mark(record.content)
        if mark != row.stored:
            clock = self._next_clock(*(each.clock for each in versions))
            versions = Version(clock, mark, record.content),
        elif not names:                            # two values of one short hash
            names = set(values)
        return replace(item, versions=versions, facts={**item.facts, **{
            name: (row.levels.get(name, 1) + 1, values.get(name)) for name in names}})

    def _next_clock(self, *seen: Clock) -> dict[str, int]:
        """Return the clock of a text written here now, by one who has seen these."""
        return joined(*seen, {self.book.device: self.book.tick()})

    def _appeared(self, memory_id: str, row: Row, record: Memory, news: Item) -> (
            tuple[Item, int]):
        """Return the item of a record that the last run did not see."""
        values, count = facts_of(record), (record.access_count, record.last_accessed or "")
        facts = {name: (1, value) for name, value in values.items()}
        for each in news.versions if row == Row() else ():
            if each.text is not None and record.content in (each.text, self.memory.redact(
                    each.text)[0]):                # of a run that was killed, or an import
                text = record.content if record.content == each.text else None
                same = all(values.get(name) == fact[1] for name, fact in news.facts.items())
                return Item((replace(each, text=text),), facts, count), 0 if same else 2
        tombstone = self.store.forgotten(record.content)
        if (row.gone or row.void) and tombstone and not tombstone["why"].startswith("pruned: "):
            return row.item(None), 0               # put back behind the store's back
        level = 1 + max([0, *row.levels.values()], default=0) + (row != Row())
        clock = self._next_clock(*(clock for clock, _ in row.versions), row.gone, *row.same,
                                 *row.void)
        if row != Row():                           # fields that it no longer has, too
            facts = {name: (level, values.get(name)) for name in {*FIELDS, *values, *row.levels}}
        note = self.book.note(text_mark(record.content))
        after = tuple(i for i in self.book.notes.get(note, ()) if i != memory_id)[:64]
        return Item((Version(clock, text_mark(record.content), record.content),), facts, count,
                    row.gone, tuple(row.same), tuple(row.void), after), 2

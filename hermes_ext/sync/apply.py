"""What sync does with one memory after the other: merge both sides, store it, note it.

Everything passes the door of `remember`. Where a text was edited on two devices, the second one
becomes a memory of its own; where two memories say the same, the smallest id stands for all.
"""
from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hermes_ext.sync.folder import Inbox
from hermes_ext.sync.local import Local
from hermes_ext.sync.merge import Item, Kept, covers, merge, newest, text_mark, to_line
from hermes_ext.sync.state import Book, Row, built, facts_of, record_mark
from hermes_lite import HermesLite, Memory, other_wordings, to_json

__all__ = ["Taker"]


class Taker:
    """Brings store and book up to date with what this device and the others say."""

    def __init__(self, memory: HermesLite, book: Book, inbox: Inbox) -> None:
        self.memory, self.store, self.book, self.inbox = memory, memory.store, book, inbox
        self.local = Local(memory, book)
        self.unfolded: list[Memory] = []           # removed, for another says the same
        self.told: list[tuple[Memory, str]] = []   # forgotten, for the systems
        self.counts = dict.fromkeys(("received", "merged", "forgotten"), 0)
        self.copies: list[tuple[str, str]] = []

    def take(self, ids: Iterable[str], incoming: Mapping[str, Item]) -> None:
        """Bring store and rows up to date with what both sides say; inside a transaction."""
        removals = self.store.removals()
        for memory_id in ids:
            copies = self._take_one(memory_id, incoming.get(memory_id, Item()), removals)
            for copy, item in copies.items():
                self._take_one(copy, item, removals, least=2)

    def _take_one(self, memory_id: str, news: Item, removals: Mapping[str, Mapping[str, str]], *,
                  least: int = 0) -> dict[str, Item]:
        record = self._outgoing(memory_id)
        row = self.book.rows.get(memory_id)
        row = Row.unpacked(row) if row else Row()
        local, level = self.local.item(memory_id, row, record, news, removals)
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
            self.book.keep(memory_id, row)
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

    def _outgoing(self, memory_id: str) -> Memory | None:
        record = self.store.get(memory_id)
        return record and self.memory.redactor.outgoing(record)

    def _text_of(self, mark: str) -> str | None:
        """Find the text of a version that once came second: its copy has it, or the folder."""
        for memory_id, row in self.book.rows.items():
            if row[0] and row[3][0][1] == mark and "stored" not in row[5]:
                record = self._outgoing(memory_id)
                if record and text_mark(record.content) == mark:
                    return record.content
        self.book.state["again"] = True            # the next run reads all files from the start
        return None

    def _is_unwanted(self, memory_id: str, item: Item, local: Item) -> bool:
        """Tell whether a text comes back that was forgotten here, from one who did not know."""
        top = item.versions[0] if item.versions else None
        if top is None or top.text is None or any(top.mark == each.mark
                                                  for each in local.versions):
            return False
        clean = self.memory.redact(top.text)[0].strip()
        tombstone = self.store.forgotten(clean)
        if tombstone is None or tombstone["why"].startswith("pruned: ") or (
                tombstone["id"] == memory_id and item.gone):
            return False
        return not any(i == tombstone["id"] or i in self.book.rows and {"gone", "void"}
                       & self.book.rows[i][5].keys() for i in item.after)

    def _drop(self, memory_id: str, row: Row, record: Memory | None, item: Item,
              local: Item) -> None:
        """Take a memory away, because it is forgotten or because another says the same."""
        note = row.note
        if record:
            is_forgotten = not local.versions or any(
                not covers(each.clock, item.gone) or any(
                    covers(clock, each.clock) for clock in item.void) for each in local.versions)
            why = "forgotten on another device" if is_forgotten else None
            self.store.remove(memory_id, why=why, also=other_wordings(record.content)
                              if is_forgotten else ())
            if is_forgotten:
                self.told.append((record, why))
                self.counts["forgotten"] += 1
            else:
                self.unfolded.append(record)
                self.counts["merged"] += 1
            note = self.book.note(text_mark(record.content))
        elif row.stored:
            note = self.book.note(row.stored)
        self.book.notes.setdefault(note, []).append(memory_id)
        fresh = item.gone != row.gone or list(item.void) != row.void
        self.book.rewrite = self.book.rewrite or row.carry > 0 and bool(row.versions)
        made = Row(carry=2 if fresh else row.carry, levels=row.levels, gone=dict(item.gone),
                   same=[*map(dict, item.same)], void=[*map(dict, item.void)], note=note)
        self.book.keep(memory_id, made)
        if fresh:
            self.book.lines[memory_id] = to_line(memory_id, Item(gone=made.gone, same=item.same,
                                                                 void=item.void))

    def _put(self, memory_id: str, record: Memory | None, item: Item, text: str) -> bool:
        """Store what the item says, through the core's door; False where that refuses it."""
        facts = {name: value for name, (_, value) in item.facts.items()}
        mine = facts_of(record) if record else {}
        facts = {name: mine.get(name) if value is Kept else value
                 for name, value in facts.items()}
        try:
            wanted = built(memory_id, text, facts, item.count, record)
            if wanted == record:
                return True
            self.store.remove_tombstone(text, memory_id=memory_id)
            self.memory.admit(wanted, replacing=True)
        except (ValueError, RecursionError) as problem:
            self.inbox.fault(memory_id, str(problem) if isinstance(problem, ValueError)
                             else "nested too deeply")
            return record is not None              # the old record stays, and is not sent
        self.counts["merged" if record else "received"] += 1
        return True

    def _settle(self, memory_id: str, row: Row, item: Item, level: int) -> None:
        """Note what is stored now, and what of it the others do not know."""
        record = self._outgoing(memory_id)
        made = Row.of(record, item, max(row.carry, level))
        if row.carry == 2 and row.versions and row.versions[0][1] != made.versions[0][1]:
            self.book.rewrite = True               # the own file tells the older text
        self.book.keep(memory_id, made)
        if level == 2:
            self.book.lines[memory_id] = to_line(memory_id, replace(made.item(record),
                                                                    after=item.after))
        elif level == 1:
            self.book.lines[memory_id] = {"id": memory_id, "count": list(made.item(record).count)}

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
            if each.text is None or each.mark == item.versions[0].mark or (
                    copy in self.book.rows or self.store.get(copy)):
                continue
            facts = {name: (0, None if value is Kept else value)
                     for name, (_, value) in item.facts.items()}
            facts["meta.sync"] = (0, {"conflict_with": memory_id})
            copies[copy] = Item((each,), facts)
            self.copies.append((memory_id, copy))
        return copies

    def fold(self) -> None:
        """Make one memory of those that say the same; the smallest id stands for all."""
        if not self.book.changed:
            return
        said: dict[str, list[str]] = {}
        for memory_id, row in self.book.rows.items():
            if row[0] and "stored" not in row[5]:
                said.setdefault(row[3][0][1], []).append(memory_id)
        twice = [sorted(ids) for ids in said.values() if len(ids) > 1]
        for record in self.unfolded:
            twice += [said[mark] for mark in [text_mark(record.content)] if mark in said]
        if not twice:
            return
        with self.memory.batch():
            for ids in twice:
                self._fold_one([m for i in ids if (m := self._outgoing(i))])

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
                self.take([one.id], {})

    def _stand_down(self, record: Memory) -> None:
        """Remove a memory for which another stands; an edit that did not know brings it back."""
        row = Row.unpacked(self.book.rows[record.id])
        if row.mark != record_mark(record):        # changed since: the next run sees to it
            return
        item = Item(gone=row.gone, void=tuple(row.void),
                    same=newest([*row.same, *(clock for clock, _ in row.versions)]))
        self.store.remove(record.id, why=None)
        self.book.rewrite = self.book.rewrite or row.carry > 0
        self.book.keep(record.id, Row(carry=2, levels=row.levels, gone=row.gone, void=row.void,
                                      same=[*map(dict, item.same)]))
        self.book.lines[record.id] = to_line(record.id, item)
        self.counts["merged"] += 1

    def notify_systems(self) -> None:
        """Tell the systems what another device forgot."""
        if self.told:
            self.memory.systems.emit("forget", [record.id for record, _ in self.told],
                             why=self.told[0][1])
        for record, why in self.told:
            self.memory.notices += self.memory.systems.notify("after_forget", record, why)


def _is_news(local: Item, item: Item) -> bool:
    """Tell whether another device has changed a memory since it was pruned here."""
    return {(str(each.clock), each.mark) for each in item.versions} != {
        (str(each.clock), each.mark) for each in local.versions} or any(
        level > local.facts.get(name, (1, None))[0] for name, (level, _) in item.facts.items())

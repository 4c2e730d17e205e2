"""Apply changes to one memory after the other: merge both sides, store the result, note it.

Everything that comes in is redacted and checked as `remember` does it. Where a text was edited on
two devices, the second text becomes a memory of its own; where two memories have the same text,
the smallest id stays.
"""
from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hermes_ext.sync.folder import Inbox
from hermes_ext.sync.local import Local
from hermes_ext.sync.merge import (Item, Kept, Version, covers, merge, newest, text_hash,
                                   to_line)
from hermes_ext.sync.state import Book, Row, built, facts_of, record_hash
from hermes_lite import HermesLite, Memory, other_wordings, to_json

__all__ = ["Applier"]


class Applier:
    """Brings the store and the state of sync up to date with both sides."""

    def __init__(self, memory: HermesLite, book: Book, inbox: Inbox) -> None:
        self.memory = memory
        self.store = memory.store
        self.book = book
        self.inbox = inbox
        self.local = Local(memory, book)
        self.removed_duplicates: list[Memory] = []
        self.forgotten: list[tuple[Memory, str]] = []          # with the reason, for the systems
        self.counts = dict.fromkeys(("received", "merged", "forgotten"), 0)
        self.copies: list[tuple[str, str]] = []

    def apply(self, ids: Iterable[str], incoming: Mapping[str, Item]) -> None:
        """Merge the changes of these memories and store the result; inside a transaction."""
        removals = self.store.removals()
        for memory_id in ids:
            copies = self._apply_one(memory_id, incoming.get(memory_id, Item()), removals)
            for copy, item in copies.items():
                self._apply_one(copy, item, removals, least=2)

    def _apply_one(self, memory_id: str, news: Item, removals: Mapping[str, Mapping[str, str]], *,
                   least: int = 0) -> dict[str, Item]:
        """Apply the changes of one memory; return its second texts as items of their own.

        *least* is the least amount to send of it: 0 nothing, 1 the access count, 2 all.
        """
        record = self._outgoing(memory_id)
        packed = self.book.rows.get(memory_id)
        row = Row.unpacked(packed) if packed else Row()
        local, level = self.local.item(memory_id, row, record, news, removals)
        item = merge(local, news)
        if not (item.versions or item.gone or item.same or item.void):
            self.inbox.hold(memory_id)             # fields alone: the text has not arrived yet
            return {}
        while self._is_unwanted(memory_id, item, local):
            item = merge(item, Item(void=(item.versions[0].clock,)))
            self.counts["forgotten"] += record is None
        if not item.versions:
            self._drop(memory_id, row, record, item, local)
            return {}
        if row.aged and not record and not _is_news(local, item):
            self.book.keep(memory_id, row)         # pruned here, and unchanged elsewhere
            return {}
        is_own_text = record is not None and _has_same_text(item, local)
        text = record.content if is_own_text else self._text_of(item.versions[0])
        if text is None:
            self.inbox.hold(memory_id)
            return {}
        if not is_own_text or _facts_differ(item, local):
            if not self._put(memory_id, record, item, text):
                return {}
        if (item.gone, item.void) != (local.gone, local.void):
            level = 2
        self._note_stored(memory_id, row, item, max(level, least))
        return self._copies(memory_id, item)

    def _outgoing(self, memory_id: str) -> Memory | None:
        record = self.store.get(memory_id)
        return record and self.memory.redactor.outgoing(record)

    def _text_of(self, version: Version) -> str | None:
        """Return the text of a version; one that once came second is found in its copy.

        None where no copy has it: then the next run reads all files of the folder.
        """
        if version.text:
            return version.text
        for memory_id, row in self.book.rows.items():
            if row[0] and row[3][0][1] == version.mark and "stored" not in row[5]:
                record = self._outgoing(memory_id)
                if record and text_hash(record.content) == version.mark:
                    return record.content
        self.book.state["again"] = True
        return None

    def _is_unwanted(self, memory_id: str, item: Item, local: Item) -> bool:
        """Tell whether the best text was forgotten here and its writer did not know that."""
        if not item.versions:
            return False
        top = item.versions[0]
        is_here = any(top.mark == each.mark for each in local.versions)
        if top.text is None or is_here:
            return False
        clean = self.memory.redact(top.text)[0].strip()
        tombstone = self.store.forgotten(clean)
        if tombstone is None or tombstone["why"].startswith("pruned: "):
            return False
        if tombstone["id"] == memory_id and item.gone:
            return False
        return not any(each == tombstone["id"] or self._is_known_as_forgotten(each)
                       for each in item.after)

    def _is_known_as_forgotten(self, memory_id: str) -> bool:
        row = self.book.rows.get(memory_id)
        return row is not None and bool({"gone", "void"} & row[5].keys())

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
        """Remove a memory that is forgotten, or whose text another memory has."""
        note = row.note
        if record:
            self._remove(record, is_forgotten=_is_forgotten(item, local))
            note = self.book.note(text_hash(record.content))
        elif row.stored:
            note = self.book.note(row.stored)
        self.book.notes.setdefault(note, []).append(memory_id)
        if row.carry > 0 and row.versions:
            self.book.rewrite = True               # the own file has its text
        is_new = item.gone != row.gone or list(item.void) != row.void
        made = Row(carry=2 if is_new else row.carry, levels=row.levels, gone=dict(item.gone),
                   same=[*map(dict, item.same)], void=[*map(dict, item.void)], note=note)
        self.book.keep(memory_id, made)
        if is_new:
            change = Item(gone=made.gone, same=item.same, void=item.void)
            self.book.lines[memory_id] = to_line(memory_id, change)

    def _remove(self, record: Memory, *, is_forgotten: bool) -> None:
        """Take a record out of the store, with a tombstone only when it is forgotten."""
        if is_forgotten:
            why = "forgotten on another device"
            self.store.remove(record.id, why=why, also=other_wordings(record.content))
            self.forgotten.append((record, why))
            self.counts["forgotten"] += 1
        else:
            self.store.remove(record.id, why=None, also=())
            self.removed_duplicates.append(record)
            self.counts["merged"] += 1

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

    def _note_stored(self, memory_id: str, row: Row, item: Item, level: int) -> None:
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

    def merge_duplicates(self) -> None:
        """Make one memory of those with the same text; the one of the smallest id stays."""
        if not self.book.changed:
            return
        ids_of_text: dict[str, list[str]] = {}
        for memory_id, row in self.book.rows.items():
            if row[0] and "stored" not in row[5]:
                ids_of_text.setdefault(row[3][0][1], []).append(memory_id)
        groups = [sorted(ids) for ids in ids_of_text.values() if len(ids) > 1]
        for record in self.removed_duplicates:
            ids = ids_of_text.get(text_hash(record.content))
            if ids:
                groups.append(ids)
        if not groups:
            return
        with self.memory.batch():
            for ids in groups:
                records = [self._outgoing(memory_id) for memory_id in ids]
                self._merge_group([record for record in records if record])

    def _merge_group(self, records: list[Memory]) -> None:
        """Merge records of one text, those of each agent into the first of them."""
        for agent in dict.fromkeys(record.agent for record in records):
            first, *others = [record for record in records if record.agent == agent]
            removed = [record for record in self.removed_duplicates
                       if record.agent == agent and record.content == first.content]
            merged = first
            for each in (*others, *removed):
                merged = replace(
                    merged, importance=max(merged.importance, each.importance),
                    execution_verified=merged.execution_verified or each.execution_verified,
                    tags=tuple(dict.fromkeys((*merged.tags, *each.tags))),
                    access_count=max(merged.access_count, each.access_count))
            for each in others:
                self._remove_duplicate(each)
            if merged != first:
                self.memory.admit(merged, replacing=True)
                self.apply([first.id], {})

    def _remove_duplicate(self, record: Memory) -> None:
        """Remove a memory whose text another one has; a later edit elsewhere brings it back."""
        row = Row.unpacked(self.book.rows[record.id])
        if row.mark != record_hash(record):        # changed since: the next run handles it
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
        """Notify the systems of the memories that another device forgot."""
        if self.forgotten:
            _, why = self.forgotten[0]
            self.memory.systems.emit("forget", [record.id for record, _ in self.forgotten],
                                     why=why)
        for record, why in self.forgotten:
            self.memory.notices += self.memory.systems.notify("after_forget", record, why)


def _is_forgotten(item: Item, local: Item) -> bool:
    """Tell whether a memory without any text left is forgotten, and not only a duplicate."""
    if not local.versions:
        return True
    return any(not covers(each.clock, item.gone)
               or any(covers(clock, each.clock) for clock in item.void)
               for each in local.versions)


def _has_same_text(item: Item, local: Item) -> bool:
    """Tell whether the best version of a merged item is the one of this device."""
    if not local.versions:
        return False
    best, own = item.versions[0], local.versions[0]
    return (best.clock, best.mark) == (own.clock, own.mark)


def _facts_differ(item: Item, local: Item) -> bool:
    """Tell whether a merged item has other fields or another access count than this device."""
    return item.count != local.count or any(
        local.facts.get(name) != fact for name, fact in item.facts.items())


def _is_news(local: Item, item: Item) -> bool:
    """Tell whether another device has changed a memory since it was pruned here."""
    if {(str(each.clock), each.mark) for each in item.versions} != {
            (str(each.clock), each.mark) for each in local.versions}:
        return True
    return any(level > local.facts.get(name, (1, None))[0]
               for name, (level, _) in item.facts.items())

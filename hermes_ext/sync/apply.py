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
from hermes_ext.sync.local import Local, is_forgotten_by_person
from hermes_ext.sync.merge import (Item, Kept, Version, has_seen, merge, newest, text_hash,
                                   to_line)
from hermes_ext.sync.state import Amount, Book, Row, built, facts_of, record_hash
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
                self._apply_one(copy, item, removals, least=Amount.ALL)

    def _apply_one(self, memory_id: str, incoming: Item,
                   removals: Mapping[str, Mapping[str, str]], *,
                   least: Amount = Amount.NOTHING) -> dict[str, Item]:
        """Apply the changes of one memory; return its second texts as items of their own.

        *least* is the least amount to send of it. What cannot be applied yet is read again by
        the next run.
        """
        record = self._outgoing(memory_id)
        packed = self.book.rows.get(memory_id)
        row = Row.unpacked(packed) if packed else Row()
        local, amount = self.local.item(memory_id, row, record, incoming, removals)
        item = merge(local, incoming)
        if not (item.versions or item.forgotten or item.replaced or item.voided):
            self.inbox.read_again(memory_id)       # fields alone: the text has not arrived yet
            return {}

        while self._is_unwanted(memory_id, item, local):
            item = merge(item, Item(voided=(item.versions[0].clock,)))
            self.counts["forgotten"] += record is None
        if not item.versions:
            self._drop(memory_id, row, record, item, local)
            return {}
        if row.is_pruned and not record and not _is_news(local, item):
            self.book.keep(memory_id, row)         # pruned here, and unchanged elsewhere
            return {}

        is_own_text = record is not None and _has_same_text(item, local)
        text = record.content if is_own_text else self._text_of(item.versions[0])
        if text is None:
            self.inbox.read_again(memory_id)
            return {}
        if not is_own_text or _facts_differ(item, local):
            if not self._put(memory_id, record, item, text):
                return {}

        if (item.forgotten, item.voided) != (local.forgotten, local.voided):
            amount = Amount.ALL
        self._note_stored(memory_id, row, item, max(amount, least))
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
            if row.best_text_hash() == version.text_hash:
                record = self._outgoing(memory_id)
                if record and text_hash(record.content) == version.text_hash:
                    return record.content
        self.book.state["again"] = True
        return None

    def _is_unwanted(self, memory_id: str, item: Item, local: Item) -> bool:
        """Tell whether the best text was forgotten here and its writer did not know that."""
        if not item.versions:
            return False
        top = item.versions[0]
        is_here = any(top.text_hash == each.text_hash for each in local.versions)
        if top.text is None or is_here:
            return False
        clean = self.memory.redact(top.text)[0].strip()
        tombstone = self.store.forgotten(clean)
        if tombstone is None or not is_forgotten_by_person(tombstone):
            return False
        if tombstone["id"] == memory_id and item.forgotten:
            return False
        return not any(each == tombstone["id"] or self._is_known_as_forgotten(each)
                       for each in item.known_forgotten)

    def _is_known_as_forgotten(self, memory_id: str) -> bool:
        row = self.book.rows.get(memory_id)
        return row is not None and row.is_forgotten()

    def _drop(self, memory_id: str, row: Row, record: Memory | None, item: Item,
              local: Item) -> None:
        """Remove a memory that is forgotten, or whose text another memory has."""
        forgotten_hash = row.forgotten_hash
        if record:
            self._remove(record, is_forgotten=_is_forgotten(item, local))
            forgotten_hash = self.book.keyed_hash(text_hash(record.content))
        elif row.stored_hash:
            forgotten_hash = self.book.keyed_hash(row.stored_hash)
        self.book.forgotten_ids.setdefault(forgotten_hash, []).append(memory_id)

        if row.in_own_file and row.versions:       # this device's file has its text
            self.book.must_rewrite = True
        is_new = item.forgotten != row.forgotten or list(item.voided) != row.voided
        kept = Row(in_own_file=Amount.ALL if is_new else row.in_own_file, levels=row.levels,
                   forgotten=dict(item.forgotten),
                   replaced=[dict(clock) for clock in item.replaced],
                   voided=[dict(clock) for clock in item.voided], forgotten_hash=forgotten_hash)
        self.book.keep(memory_id, kept)
        if is_new:
            self.book.to_send[memory_id] = to_line(memory_id, kept.without_text())

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
        """Store what the item says, as `remember` does; False where that refuses a new memory.

        Where it refuses a change, the old record stays and is not sent.
        """
        mine = facts_of(record) if record else {}
        facts = {name: mine.get(name) if value is Kept else value
                 for name, (_, value) in item.facts.items()}
        try:
            wanted = built(memory_id, text, facts, item.count, record)
            if wanted == record:
                return True
            self.memory.admit(wanted, replacing=True)      # where it refuses, the tombstone stays
            self.store.remove_tombstone(text, memory_id=memory_id)
        except RecursionError:
            self.inbox.fault(memory_id, "nested too deeply")
            return record is not None
        except ValueError as problem:
            self.inbox.fault(memory_id, str(problem))
            return record is not None
        self.counts["merged" if record else "received"] += 1
        return True

    def _note_stored(self, memory_id: str, row: Row, item: Item, amount: Amount) -> None:
        """Note what is stored now, and what of it the others do not know."""
        record = self._outgoing(memory_id)
        stored = Row.of(record, item, max(row.in_own_file, amount))
        has_old_text = row.in_own_file == Amount.ALL and bool(row.versions)
        if has_old_text and row.versions[0][1] != stored.versions[0][1]:
            self.book.must_rewrite = True
        self.book.keep(memory_id, stored)

        known = stored.item(record)
        if amount == Amount.ALL:
            self.book.to_send[memory_id] = to_line(
                memory_id, replace(known, known_forgotten=item.known_forgotten))
        elif amount == Amount.COUNT:
            self.book.to_send[memory_id] = {"id": memory_id, "count": list(known.count)}

    def _copies(self, memory_id: str, item: Item) -> dict[str, Item]:
        """Return {new id: item} of the texts that came second, each a memory of its own."""
        facts: dict[str, tuple[int, object]] = {
            name: (0, None if value is Kept else value)
            for name, (_, value) in item.facts.items()}
        facts["meta.sync"] = (0, {"conflict_with": memory_id})
        best, *others = item.versions
        copies = {}
        for each in others:
            copy = _copy_id(memory_id, each, best)
            is_known = copy in self.book.rows or self.store.get(copy) is not None
            if each.text is None or each.text_hash == best.text_hash or is_known:
                continue
            copies[copy] = Item((each,), facts)
            self.copies.append((memory_id, copy))
        return copies

    def merge_duplicates(self) -> None:
        """Make one memory of those with the same text; the one of the smallest id stays."""
        if not self.book.changed:
            return
        ids_of_text: dict[str, list[str]] = {}
        for memory_id, row in self.book.rows.items():
            best_hash = row.best_text_hash()
            if best_hash is not None:
                ids_of_text.setdefault(best_hash, []).append(memory_id)
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
        if row.record_hash != record_hash(record):
            return                                 # changed since: the next run sees to it
        item = Item(forgotten=row.forgotten, voided=tuple(row.voided),
                    replaced=newest([*row.replaced, *(clock for clock, _ in row.versions)]))
        self.store.remove(record.id, why=None)
        if row.in_own_file:
            self.book.must_rewrite = True
        self.book.keep(record.id, Row(
            in_own_file=Amount.ALL, levels=row.levels, forgotten=row.forgotten,
            replaced=[dict(clock) for clock in item.replaced], voided=row.voided))
        self.book.to_send[record.id] = to_line(record.id, item)
        self.counts["merged"] += 1

    def notify_systems(self) -> None:
        """Notify the systems of the memories that another device forgot."""
        if self.forgotten:
            _, why = self.forgotten[0]
            self.memory.systems.emit("forget", [record.id for record, _ in self.forgotten],
                                     why=why)
        for record, why in self.forgotten:
            self.memory.notices += self.memory.systems.notify("after_forget", record, why)


def _copy_id(memory_id: str, version: Version, best: Version) -> str:
    """Return the id of the copy of a second text, the same on every device.

    It begins as *memory_id* does: mem_20260817_101500_….
    """
    key = to_json([memory_id, sorted(version.clock.items())])
    if version.clock == best.clock:                # two texts of one clock: the text decides
        key += version.text_hash.encode()
    time_of_making = re.match(r"mem_\d{8}_\d{6}_", memory_id)
    prefix = time_of_making[0] if time_of_making else "mem_20000101_000000_"
    return prefix + hashlib.blake2b(key, digest_size=6).hexdigest()


def _is_forgotten(item: Item, local: Item) -> bool:
    """Tell whether a memory without any text left is forgotten, and not only a duplicate."""
    if not local.versions:
        return True
    for each in local.versions:
        knew_of_it = has_seen(each.clock, item.forgotten)
        is_voided = any(has_seen(clock, each.clock) for clock in item.voided)
        if is_voided or not knew_of_it:
            return True
    return False


def _has_same_text(item: Item, local: Item) -> bool:
    """Tell whether the best version of a merged item is the one of this device."""
    if not local.versions:
        return False
    best, own = item.versions[0], local.versions[0]
    return (best.clock, best.text_hash) == (own.clock, own.text_hash)


def _facts_differ(item: Item, local: Item) -> bool:
    """Tell whether a merged item has other fields or another access count than this device."""
    return item.count != local.count or any(
        local.facts.get(name) != fact for name, fact in item.facts.items())


def _is_news(local: Item, item: Item) -> bool:
    """Tell whether another device has changed a memory since it was pruned here."""
    if _texts_of(item) != _texts_of(local):
        return True
    return any(level > local.facts.get(name, (1, None))[0]
               for name, (level, _) in item.facts.items())


def _texts_of(item: Item) -> set[tuple[str, str]]:
    """Return (clock, hash) of every text of an item."""
    return {(str(each.clock), each.text_hash) for each in item.versions}

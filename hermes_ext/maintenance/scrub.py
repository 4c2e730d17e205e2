"""Scrub and reindex: apply today's redaction to everything stored; make every index anew.

    hermes_lite.py scrub --dry-run              hermes_lite.py reindex

scrub    applies today's redaction to records, Markdown, backups, archives, cold storage, files
         set aside and state files. It prints ids and labels. A file that is no text (a database
         of another system) is named, not changed.
reindex  makes every index anew from the records, and has missing vectors made by the configured
         backend, as any write does. Nothing else here sends anything anywhere.

Both hold the store's lock meanwhile: every other process waits, or gets Locked.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import hermes_lite as core
from hermes_ext.cold_files import ColdFiles
from hermes_ext.maintenance.store_files import (
    Done, Scrubber, change_files, drop_undo, file_store, leftovers, remove_files, show, steps, unsealed)
from hermes_lite import FileStore, HermesLite, Memory, Operation

__all__ = ["OPERATIONS", "Scrubbed", "reindex", "scrub"]

_Changed = tuple[str, tuple[str, ...]]             # id of a memory or name of a file, labels


@dataclass(frozen=True, slots=True)
class Scrubbed(core.Record):
    """Memories and files in which scrub hid something; `left` are files that are no text."""
    changed: tuple[_Changed, ...]
    left: tuple[str, ...] = ()
    dry_run: bool = False

    def lines(self) -> Iterator[str]:
        """Yield the lines that the command prints."""
        for name, labels in self.changed:
            yield f"{name}: {', '.join(labels)}"
        verb = "would change" if self.dry_run else "changed"
        yield f"{len(self.changed)} memories and files {verb}"
        for name in self.left:
            yield f"  not looked into, it is no text or cannot be opened: {name}"


def scrub(memory: HermesLite, *, dry_run: bool = False) -> Scrubbed:
    """Apply today's redaction rules to everything that is stored."""
    store = file_store(memory)
    scrubber = Scrubber(memory)
    cold = ColdFiles(store)
    with memory.lock if dry_run else memory.session.writing():
        store.refresh()
        changed = _scrub_records(store, scrubber, dry_run=dry_run)
        _scrub_tombstones(store, scrubber, dry_run=dry_run)
    with memory.lock if dry_run else memory.session.writing():
        if not dry_run:
            remove_files(leftovers(store.root))
            drop_undo(store.root)
            store.vectors.drop([memory_id for memory_id, _ in changed])
            store.checkpoint(rebuild=True)
        names = {"index.json", *(f"store/{memory_id}.md" for memory_id, _ in changed)}
        files, left = _scrub_files(store, scrubber, cold, dry_run=dry_run)
        changed += [each for each in files if each[0] not in names]
    cold_changed, cold_left = _scrub_cold(cold, scrubber, dry_run=dry_run)
    return Scrubbed((*changed, *cold_changed), (*left, *cold_left), dry_run)


def _scrub_records(store: FileStore, scrubber: Scrubber, *, dry_run: bool) -> list[_Changed]:
    """Redact every record; return those that changed."""
    changed = []
    for each in steps(store, "scrubbing records", store):
        fixed = scrubber.entry(each.entry())
        labels = scrubber.take_labels()
        if fixed != each.entry():
            changed.append((each.id, labels))
            if not dry_run:
                store.put(Memory.from_entry(fixed))
    return changed


def _scrub_tombstones(store: FileStore, scrubber: Scrubber, *, dry_run: bool) -> None:
    """Redact the reasons for which memories were forgotten."""
    key, tombstones = store.get_tombstones()
    clean = {fingerprint: {**tombstone, "why": scrubber.text(tombstone["why"])}
             for fingerprint, tombstone in tombstones.items()}
    scrubber.take_labels()
    if not dry_run and clean != tombstones:
        store.set_tombstones(key, clean)


def _scrub_files(store: FileStore, scrubber: Scrubber, cold: ColdFiles, *, dry_run: bool
                 ) -> tuple[list[_Changed], list[str]]:
    """Redact every file but cold ones; return those that changed, and names of unreadable ones."""
    changed, left = [], []

    def edit(name: str, data: bytes, packed: bool) -> bytes:
        if not packed and PurePosixPath(name).name in cold.files:
            return data                            # the index must change too: see _scrub_cold
        return scrubber.edit(name, data, packed)

    for name, is_read in change_files(store, "scrubbing files", unsealed(store, edit),
                                      dry_run=dry_run):
        labels = scrubber.take_labels()
        if is_read:
            changed.append((name, labels))
        else:
            left.append(name)
    return changed, left


def _scrub_cold(cold: ColdFiles, scrubber: Scrubber, *, dry_run: bool
                ) -> tuple[list[_Changed], list[str]]:
    """Redact the memories in cold storage; return those that changed, and sentences on files left.

    An index that cannot be read counts as left in a dry run; the lock sets it aside.
    """
    changed: list[_Changed] = []

    def fixed(each: Memory) -> Memory:
        entry = scrubber.entry(each.entry())
        labels = scrubber.take_labels()
        if entry != each.entry():
            changed.append((each.id, labels))
        return each if dry_run or entry == each.entry() else Memory.from_entry(entry)

    if dry_run:
        found, left = cold.find(cold.memories)
        for each in found:
            fixed(each)
        return changed, [*left, cold.damaged] if cold.damaged else [*left]
    with cold.locked():
        return changed, cold.rewrite(fixed)


def reindex(memory: HermesLite) -> Done:
    """Make the index, the vectors and the graph anew from the records."""
    store = file_store(memory)
    with memory.session.writing():
        store.checkpoint(rebuild=True)
        count = len(store)
    warnings = memory.embed_pending()
    missing = memory.vectors()["missing"]
    if missing and not warnings:
        warnings = [f"{missing} vectors are still missing: another process makes them"]
    return Done((f"indexed {count} memories",), warnings=tuple(warnings))


OPERATIONS = (
    Operation("scrub", "apply today's redaction to all that is stored", scrub, (), show,
              writes=True, destructive=True),
    Operation("reindex", "make every index anew from the records", reindex, (), show,
              writes=True, scope="admin"),
)

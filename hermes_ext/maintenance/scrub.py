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

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import hermes_lite as core
from hermes_ext.cold_files import ColdFiles
from hermes_ext.maintenance.store_files import (
    Done, Scrubber, change_files, file_store, leftovers, remove_files, show, steps, unsealed)
from hermes_lite import HermesLite, Memory, Operation

__all__ = ["OPERATIONS", "Scrubbed", "reindex", "scrub"]


@dataclass(frozen=True, slots=True)
class Scrubbed(core.Record):
    """What scrub hid: (memory id or file, labels); `left` are files that are no text."""
    changed: tuple[tuple[str, tuple[str, ...]], ...]
    left: tuple[str, ...] = ()
    dry_run: bool = False

    def lines(self) -> Iterator[str]:
        """Yield what a person should read."""
        for name, labels in self.changed:
            yield f"{name}: {', '.join(labels)}"
        verb = "would change" if self.dry_run else "changed"
        yield f"{len(self.changed)} memories and files {verb}"
        for name in self.left:
            yield f"  not looked into, it is no text or cannot be opened: {name}"


def scrub(memory: HermesLite, *, dry_run: bool = False) -> Scrubbed:
    """Apply today's redaction rules to everything that is stored."""
    store, scrubber, changed = file_store(memory), Scrubber(memory), []
    cold = ColdFiles(store)
    with contextlib.nullcontext() if dry_run else store.transaction():
        store.refresh()
        for each in steps(store, "scrubbing records", store):
            fixed = scrubber.entry(each.entry())
            if fixed != each.entry():
                changed.append((each.id, tuple(scrubber.labels)))
                if not dry_run:
                    store.put(Memory.from_entry(fixed))
            scrubber.labels = {}
        key, tombstones = store.get_tombstones()
        clean = {mark: {**tombstone, "why": scrubber.text(tombstone["why"])} for mark, tombstone in tombstones.items()}
        if not dry_run and clean != tombstones:
            store.set_tombstones(key, clean)
    with contextlib.nullcontext() if dry_run else store.transaction():
        if not dry_run:
            remove_files(leftovers(store.root))
            store.drop_vectors([memory_id for memory_id, _ in changed])
            store.checkpoint(rebuild=True)
        mine, left = {f"store/{memory_id}.md" for memory_id, _ in changed} | {"index.json"}, []

        def edit(name: str, data: bytes, packed: bool) -> bytes:
            if not packed and PurePosixPath(name).name in cold.files:
                return data                            # its index has to know, see _scrub_cold
            return scrubber.edit(name, data, packed)

        for name, is_read in change_files(store, "scrubbing files", unsealed(store, edit),
                                          dry_run=dry_run):
            if not is_read:
                left.append(name)
            elif name not in mine:
                changed.append((name, tuple(scrubber.labels)))
            scrubber.labels = {}
    cold_changed, cold_left = _scrub_cold(cold, scrubber, dry_run=dry_run)
    return Scrubbed((*changed, *cold_changed), (*left, *cold_left), dry_run)


def _scrub_cold(cold: ColdFiles, scrubber: Scrubber, *, dry_run: bool
                ) -> tuple[list[tuple[str, tuple[str, ...]]], list[str]]:
    """Redact the memories in cold storage; return (id, labels) of each, and what was left."""
    changed: list[tuple[str, tuple[str, ...]]] = []

    def fixed(each: Memory) -> Memory:
        entry = scrubber.entry(each.entry())
        if entry != each.entry():
            changed.append((each.id, tuple(scrubber.labels)))
        scrubber.labels = {}
        return each if dry_run or entry == each.entry() else Memory.from_entry(entry)

    if dry_run:
        found, left = cold.find(cold.memories)
        for each in found:
            fixed(each)
        return changed, [*left, *([cold.damaged] if cold.damaged else ())]
    with cold.locked():
        return changed, cold.rewrite(fixed)


def reindex(memory: HermesLite) -> Done:
    """Make the index, the vectors and the graph anew from the records."""
    store = file_store(memory)
    with store.transaction():
        store.checkpoint(rebuild=True)
        store.drop_vectors(store.strange_vectors())
        count = len(store)
    failed = memory.embed_pending()
    left = memory.vectors()["missing"]
    return Done((f"indexed {count} memories",), warnings=tuple(failed) or ((
        f"{left} vectors are still missing: another process makes them",) if left else ()))


OPERATIONS = (
    Operation("scrub", "apply today's redaction to all that is stored", scrub, (), show,
              writes=True, destructive=True),
    Operation("reindex", "make every index anew from the records", reindex, (), show,
              writes=True),
)

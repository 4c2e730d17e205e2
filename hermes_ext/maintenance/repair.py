"""Repair: bring a store into order without loss.

    hermes_lite.py repair --dry-run

`repair(memory)` is the same as a function of an open HermesLite. It works on a store of files and
on an archive, and refuses any other. It holds the lock of the store meanwhile: every other process
waits, or gets Locked.

Repair closes modes, removes leftovers, writes missing Markdown, compacts the journal and makes
every index anew; the index of cold storage is brought to what its files hold. Where another
program has put a smaller or older index.json or memory_archive.db in place, repair brings back
what the mirror and the backups still hold; with --accept-loss the smaller one counts from now on,
and Markdown files without a record go to backups/. Records that cannot be read are recovered as
at any start of the store; damaged files are set aside, and files set aside stay.
"""
from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import hermes_lite as core
from hermes_ext.cold_files import INDEX, ColdFiles, check_cold_files
from hermes_ext.maintenance.store_files import (
    Done, Scrubber, file_store, is_archive, leftovers, loose_files, mirror_gaps, remove_files,
    show, steps)
from hermes_lite import DamagedData, FileStore, HermesLite, Memory, Operation, Param

__all__ = ["OPERATIONS", "repair"]


class _Step(NamedTuple):
    """One step of a repair: a sentence without its subject, and the function that does it."""
    sentence: str
    run: Callable[[], object]


def repair(memory: HermesLite, *, accept_loss: bool = False, dry_run: bool = False) -> Done:
    """Repair whatever can be repaired without loss; see the head of this module."""
    store = file_store(memory)
    if is_archive(store):
        return _repair_archive(memory, store, accept_loss=accept_loss, dry_run=dry_run)
    if dry_run:
        return _planned(memory, store, accept_loss=accept_loss)
    with store.transaction():
        plan = [*_steps_of_loss(memory, store, accept_loss=accept_loss), *_steps(store)]
        for step in steps(store, "repairing", plan):
            step.run()
    done = _sentences(plan) + _repair_cold(store, dry_run=False)
    warnings = [each for each in memory.take_notices() if "run `repair`" not in each]
    return Done(tuple(done), warnings=tuple(warnings))


def _sentences(plan: Iterable[_Step]) -> list[str]:
    return [step.sentence for step in plan]


def _repair_archive(memory: HermesLite, store: FileStore, *, accept_loss: bool,
                    dry_run: bool) -> Done:
    """Repair an archive, then bring back what it lost; the second is planned after the first."""
    plan = list(_steps_of_archive(store))
    if not dry_run:
        for step in steps(store, "repairing", plan):
            step.run()
    with contextlib.nullcontext() if dry_run else store.transaction():
        plan_of_loss = list(_steps_of_loss(memory, store, accept_loss=accept_loss))
        if not dry_run:
            for step in plan_of_loss:
                step.run()
    done = _sentences(plan + plan_of_loss) + _repair_cold(store, dry_run=dry_run)
    return Done(tuple(done), dry_run=dry_run, warnings=tuple(memory.take_notices()))


def _planned(memory: HermesLite, store: FileStore, *, accept_loss: bool) -> Done:
    """Return the steps that a repair of files would take; the store is opened read-only."""
    looked = FileStore(store.root, memory.config, cipher=store.files.cipher, clock=store.clock,
                       is_read_only=True)
    try:
        looked.refresh()
    except DamagedData:
        return Done(("recover the records from mirror and backups",
                     *_sentences(_steps(looked, can_read=False))), dry_run=True)
    plan = [*_steps_of_loss(memory, looked, accept_loss=accept_loss), *_steps(looked)]
    return Done((*_sentences(plan), *_repair_cold(looked, dry_run=True)), dry_run=True)


# -- steps --------------------------------------------------------------------

def _steps(store: FileStore, *, can_read: bool = True) -> Iterator[_Step]:
    """Yield the steps for a store of files; without *can_read* those that need no records."""
    yield from _steps_of_any_store(store)
    missing, returned = mirror_gaps(store, store.ids() if can_read else ())
    if missing:
        yield _Step(f"write {len(missing)} missing Markdown files",
                    lambda: store.mirror.pending.update(dict.fromkeys(missing)))
    if returned:
        yield _Step(f"remove {len(returned)} Markdown files of forgotten memories",
                    lambda: remove_files(returned))
    yield _Step("compact the journal and make every index anew",
                lambda: store.checkpoint(rebuild=True))
    if can_read and store.vectors.unknown_ids():
        yield _Step("drop vectors without a memory",
                    lambda: store.vectors.drop(store.vectors.unknown_ids()))


def _steps_of_archive(store: FileStore) -> Iterator[_Step]:
    """Yield the steps for an archive."""
    faults = store.faults()
    yield from _steps_of_any_store(store)
    if faults:
        yield _Step("read the records of the damaged file into a new one", store.refresh)
        yield _Step("make every index anew", lambda: store.checkpoint(rebuild=True))


def _steps_of_any_store(store: FileStore) -> Iterator[_Step]:
    """Yield the steps that close modes and remove leftover files."""
    loose = loose_files(store.root)
    left = leftovers(store.root)
    if loose:
        yield _Step(f"close {len(loose)} files and folders to others", lambda: _close(loose))
    if left:
        yield _Step(f"remove {len(left)} leftover temporary files", lambda: remove_files(left))


def _close(paths: Iterable[Path]) -> None:
    for path in paths:
        os.chmod(path, 0o700 if path.is_dir() else 0o600)


def _steps_of_loss(memory: HermesLite, store: FileStore, *, accept_loss: bool) -> Iterator[_Step]:
    """Yield how to bring back memories that a replaced file lost, or how to accept it."""
    if not store.recovery.count_before_loss:
        return
    name = "memory_archive.db" if is_archive(store) else "index.json"
    places = "backups/" if is_archive(store) else "store/ and backups/"
    if accept_loss:
        paths = (store.root / "store" / f"{each.id}.md"
                 for each in store.recovery.missing(store.is_taken))
        notes = [path for path in paths if path.exists()]
        if notes:
            yield _Step(f"set {core.pluralize(len(notes), 'Markdown file')} without a record "
                        "aside in backups/", lambda: _set_aside(store.root, notes))
        yield _Step(f"count the {len(store)} memories of {name} as all there are",
                    store.recovery.accept_loss)
        return
    lost = _lost_memories(memory, store)
    if lost:
        count = core.pluralize(len(lost), "memory", "memories")
        yield _Step(f"bring back {count} that {name} has lost, from {places}",
                    lambda: _put_all(store, lost))
    yield _Step(f"count {name} as whole again", store.recovery.accept_loss)


def _lost_memories(memory: HermesLite, store: FileStore) -> list[Memory]:
    """Return, redacted, the memories that mirror and backups hold and the store does not.

    Those in cold storage are not lost.
    """
    cold = store.files.read("cold_index.json") or b""
    scrubber = Scrubber(memory)
    return [Memory.from_entry(scrubber.entry(each.entry()))
            for each in store.recovery.missing(store.is_taken)
            if each.id.encode() not in cold]


def _put_all(store: FileStore, memories: Iterable[Memory]) -> None:
    for each in memories:
        store.put(each)


def _set_aside(root: Path, paths: Iterable[Path]) -> None:
    core.make_folder(root / "backups")
    for path in paths:
        os.replace(path, root / "backups" / f"set_aside_{path.name}")


def _repair_cold(store: FileStore, *, dry_run: bool) -> list[str]:
    """Bring the index of cold storage to the content of its files; return the sentences."""
    cold = ColdFiles(store)
    done = [f"set the damaged {INDEX} aside"] if cold.damaged else []
    if dry_run:
        return done + [fault.remedy for fault in check_cold_files(cold) if fault.repair]
    if not (cold.damaged or cold.pending or check_cold_files(cold)):
        return done
    pending = len(cold.pending)
    with cold.locked(), store.transaction():
        cold.write()                               # taking the lock deleted what was pending
        deleted = pending - len(cold.pending)
        if deleted > 0:
            count = core.pluralize(deleted, "cold file")
            done.append(f"delete {count} that a killed command left")
        for fault in check_cold_files(cold):
            if fault.repair:
                store.files.notices += fault.repair()
                done.append(fault.remedy)
    return done


OPERATIONS = (
    Operation("repair", "repair whatever can be repaired without loss", repair, (
        Param("accept_loss", bool, "count a replaced file of records that holds less as right",
              False),), show, writes=True, destructive=True, scope="local"),
)

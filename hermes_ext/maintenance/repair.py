"""Repair: mend what can be mended without loss.

    hermes_lite.py repair --dry-run

`repair(memory)` is the same as a function of an open HermesLite. It works on a store of files and
on an archive, and refuses any other. It holds the lock of the store meanwhile: every other process
waits, or gets Locked.

Repair closes modes, removes leftovers, writes missing Markdown, compacts the journal and makes
every index anew; the index of cold storage is brought to what its files hold. Where another
program has put a smaller or older index.json in place, repair brings back what the mirror and the
backups still hold; with --accept-loss the smaller one counts from now on, and Markdown files
without a record go to backups/. Records that cannot be read are recovered as at any start of the
store; damaged files are set aside, and files set aside stay.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import hermes_lite as core
from hermes_ext.cold_files import INDEX, ColdFiles
from hermes_ext.maintenance.store_files import (
    Done, Scrubber, file_store, is_archive, leftovers, loose_files, mirror_gaps, remove_files,
    show, steps)
from hermes_lite import DamagedData, FileStore, HermesLite, Memory, Operation, Param

__all__ = ["OPERATIONS", "repair"]


def repair(memory: HermesLite, *, accept_loss: bool = False, dry_run: bool = False) -> Done:
    """Mend what can be mended without losing anything; see the head of this module."""
    store = file_store(memory)
    if is_archive(store):
        mends = list(_mends_of_archive(store))
        for _, mend in () if dry_run else steps(store, "repairing", mends):
            mend()
        return Done((*(say for say, _ in mends), *_mend_cold(store, dry_run=dry_run)),
                    dry_run=dry_run, warnings=tuple(memory.take_notices()))
    if dry_run:
        looked = FileStore(store.root, memory.config, cipher=store.cipher,
                           clock=store.clock, is_read_only=True)
        try:
            looked.refresh()
        except DamagedData:
            return Done(("recover the records from mirror and backups", *(
                say for say, _ in _mends(looked, None))), dry_run=True)
        return Done((*(say for say, _ in _mends_of_loss(memory, looked, accept_loss)),
                     *(say for say, _ in _mends(looked, list(looked.ids()))),
                     *_mend_cold(looked, dry_run=True)), dry_run=True)
    with store.transaction():
        mends = [*_mends_of_loss(memory, store, accept_loss),
                 *_mends(store, list(store.ids()))]
        for _, mend in steps(store, "repairing", mends):
            mend()
    did = (*(say for say, _ in mends), *_mend_cold(store, dry_run=False))
    told = [each for each in memory.take_notices() if "run `repair`" not in each]
    return Done(did, warnings=tuple(told))


def _mend_cold(store: FileStore, *, dry_run: bool) -> list[str]:
    """Bring the index of cold storage to what its files hold; return what was or would be done."""
    cold = ColdFiles(store)
    said = [f"set the damaged {INDEX} aside"] if cold.damaged else []
    if dry_run:
        return said + [fault.repair for fault in cold.faults() if fault.mend]
    if not (cold.damaged or cold.pending or cold.faults()):
        return said
    waiting = len(cold.pending)
    with cold.locked(), store.transaction():
        cold.write()                                   # what was pending is deleted by now
        if waiting > len(cold.pending):
            said.append(f"delete {core.pluralize(waiting - len(cold.pending), 'cold file')} that a "
                        "killed command left")
        for fault in [each for each in cold.faults() if each.mend]:
            store.notices += fault.mend()
            said.append(fault.repair)
    return said


def _mends_of_loss(memory: HermesLite, store: FileStore,
                   accept: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield how to bring back what a replaced index.json has lost, or how to do without it."""
    if not store.loss:
        return
    if not accept:
        cold = store.read("cold_index.json") or b""
        scrubber = Scrubber(memory)
        lost = [Memory.from_entry(scrubber.entry(each.entry())) for each in store.missing()
                if each.id.encode() not in cold]
        if lost:
            yield (f"bring back {core.pluralize(len(lost), 'memory', 'memories')} that index.json "
                   "has lost, from store/ and backups/", lambda: [store.put(each) for each in lost])
    else:
        left = [path for each in store.missing()
                if (path := store.root / "store" / f"{each.id}.md").exists()]
        if left:
            yield (f"set {core.pluralize(len(left), 'Markdown file')} without a record aside in "
                   "backups/", lambda: _set_aside(store.root, left))
    yield (f"count the {len(store)} memories of index.json as all there are" if accept else
           "count index.json as whole again", store.accept_loss)


def _set_aside(root: Path, paths: Iterable[Path]) -> None:
    core.make_folder(root / "backups")
    for path in paths:
        os.replace(path, root / "backups" / f"set_aside_{path.name}")


def _mends_of_archive(store: FileStore) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what there is to mend in an archive, and how."""
    loose, left, faults = loose_files(store.root), leftovers(store.root), store.faults()
    if loose:
        yield (f"close {len(loose)} files and folders to others",
               lambda: [os.chmod(p, 0o700 if p.is_dir() else 0o600) for p in loose])
    if left:
        yield f"remove {len(left)} leftover temporary files", lambda: remove_files(left)
    if faults:
        yield "read the records of the damaged file into a new one", store.refresh
        yield "make every index anew", lambda: store.checkpoint(rebuild=True)


def _mends(store: FileStore, ids: list[str] | None) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what there is to mend: a sentence, and the function that does it.

    *ids* is None where the records cannot be read yet.
    """
    loose, left = loose_files(store.root), leftovers(store.root)
    if loose:
        yield (f"close {len(loose)} files and folders to others",
               lambda: [os.chmod(p, 0o700 if p.is_dir() else 0o600) for p in loose])
    if left:
        yield f"remove {len(left)} leftover temporary files", lambda: remove_files(left)
    missing, returned = mirror_gaps(store, ids or ())
    if missing:
        yield (f"write {len(missing)} missing Markdown files",
               lambda: store.mirror.pending.update(dict.fromkeys(missing)))
    if returned:
        yield (f"remove {len(returned)} Markdown files of forgotten memories",
               lambda: remove_files(returned))
    yield "compact the journal and make every index anew", lambda: store.checkpoint(rebuild=True)
    if ids is not None and store.strange_vectors():
        yield "drop vectors without a memory", lambda: store.drop_vectors(store.strange_vectors())


OPERATIONS = (
    Operation("repair", "mend what can be mended without loss", repair, (
        Param("accept_loss", bool, "count a replaced index.json that holds less as right",
              False),), show, writes=True, destructive=True),
)

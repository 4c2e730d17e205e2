"""Migrate: all memories from files into the archive, or back, without losing a field.

    hermes_lite.py migrate --to archive      hermes_lite.py migrate --to files

Ids, order, dates, counters, unknown fields, tombstones with their key, and vectors go over; the
search indexes are made anew there. Logs, states and keys of systems stay where they are, in the
same root; so does backups/. The new store grows in `.migrate/` inside the root. It is closed,
read back from the disk and compared with the old one record by record, and only then takes its
place; then the old files go, of store/ the notes that are the store's own (`export --format
markdown` writes notes again). When anything fails before that, the old store is as it was and
`.migrate/` goes.

It holds the store's lock: other processes wait, or get Locked; one that had the old store open
gets ConfigError with its next call. Killed, the old store is whole and in use; run it again, and
it goes on where it stopped. Where index.json and memory_archive.db are both there, index.json is
the store. An encrypted store is refused, because the archive has no encryption: `encrypt off`
first.
"""
from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hermes_lite as core
from hermes_lite import (ConfigError, DamagedData, FileStore, HermesLite, Operation, Param, Record,
                         Refused, StorageError, Store, UsageError)

__all__ = ["Migrated", "OPERATIONS", "migrate"]

_LOSS_CHECK = ".state_archive.json"                    # notes what the archive held, see loss.py

_CHUNK = 2_000
_OF_FILES = ("index.json", "index.journal", ".state_records.json", "vectors.json", "vectors.f32",
             "graph.json", "tombstones.json", ".search", ".state_vault.json")


@dataclass(frozen=True, slots=True)
class Migrated(Record):
    """What was moved where; `resumed` is how many an earlier run had already brought over."""
    to: str
    memories: int
    tombstones: int
    vectors: int
    resumed: int
    warnings: tuple[str, ...] = ()


def migrate(memory: HermesLite, to: str) -> Migrated:
    """Move everything into the other kind of store; see the module. Refused when it is there."""
    _check_move(memory, to)
    source = memory.store
    with source.transaction():
        source.refresh()
        target = _target(memory, to)
        target.progress = source.progress
        try:
            try:
                resumed = _copy(source, target)
                vectors = _copy_vectors(source, target)
                tombstones = _copy_tombstones(source, target)
                if to == "archive":
                    target.finish()
            finally:
                target.close()
            _compare(source, _reopened(target))
        except Exception:                          # a full disk needs its room back
            shutil.rmtree(target.root, ignore_errors=True)
            raise
        count = len(source)
        take_place = _take_archive if to == "archive" else _take_files
        left = take_place(memory, source)
    warnings = [*source.files.notices, *left, *_outdated_settings(memory, to)]
    source.files.notices.clear()
    memory.store = _opened(memory, to)
    if to == "archive":
        try:
            memory.store.back_up_move()
        except StorageError as problem:
            warnings.append(f"moved; no daily backup of the archive could be made: {problem}")
    return Migrated(to, count, tombstones, vectors, resumed, tuple(warnings))


def _check_move(memory: HermesLite, to: str) -> None:
    """Refuse a move to nowhere, to the store that is in use, or of an encrypted store."""
    if to not in ("archive", "files"):
        raise UsageError("give --to archive, or --to files")
    is_files = isinstance(memory.store, FileStore)
    if is_files and to == "files":
        is_left = (memory.root / "memory_archive.db").exists()
        message = f"the memories of {memory.root} are in files already"
        if is_left:
            message += ("; memory_archive.db is not in use, a move that was killed left it: "
                        "delete it when you do not need it")
        raise Refused(message, "already_there")
    if not is_files and to == "archive":
        raise Refused(f"the memories of {memory.root} are in the archive already",
                      "already_there")
    if memory.store.files.cipher is not None:
        raise ConfigError("this store is encrypted and the archive has no encryption; run "
                          "`encrypt off` first, or stay with files")


def _outdated_settings(memory: HermesLite, to: str) -> Iterator[str]:
    """Yield a sentence for each setting of config.yaml that fits the former store only."""
    if to == "files" and memory.config["storage"]["backend"] == "archive":
        yield "config.yaml still says storage.backend: archive; set it to files"
    if to == "files" and "buffer" in core.load_config(memory.root)["systems"]:
        yield "config.yaml still names systems.buffer; take it out"


def _target(memory: HermesLite, to: str) -> Store:
    """Open the store that is filled, in a folder of its own, with what an earlier run brought."""
    root = memory.root / ".migrate"
    other = "memory_archive.db*" if to == "files" else "index.json"
    if any(root.glob(other)):
        shutil.rmtree(root)
    core.make_folder(root)
    return _kind(to)(root, memory.config, clock=memory.store.clock)


def _kind(to: str) -> type:
    return FileStore if to == "files" else core.import_system("archive").ArchiveStore


def _opened(memory: HermesLite, to: str) -> Store:
    """Open the new store in its place, for what the same process does next."""
    store = _kind(to)(memory.root, memory.config, clock=memory.store.clock)
    store.files.notices = memory.notices
    store.progress = memory.store.progress
    store.refresh()
    return store


def _reopened(target: Store) -> Store:
    """Open the copy once more, so that the bytes on the disk are compared."""
    fresh = type(target)(target.root, target.config, clock=target.clock)
    fresh.refresh()
    if fresh.files.notices:
        raise DamagedData(f"the copy is not whole ({fresh.files.notices[0]}); nothing was "
                          "changed, run it again")
    return fresh


def _copy(source: Store, target: Store) -> int:
    """Put every record, in order; return how many an earlier run had brought already.

    Where the source has changed since that run, it begins again.
    """
    target.refresh()
    copied = [*target.ids()]
    first_of_source = [*itertools.islice(source.ids(), len(copied))]
    can_resume = copied == first_of_source
    if not can_resume:
        with target.transaction():
            for memory_id in copied:
                target.remove(memory_id, why=None)             # no tombstone
    total = len(source)
    done = 0
    rows = iter(source)
    while chunk := [*itertools.islice(rows, _CHUNK)]:
        with target.transaction():
            for each in chunk:
                if target.get(each.id) != each:
                    target.put(each)
        done += len(chunk)
        if source.progress:
            source.progress("moving", done, total)
    return len(copied) if can_resume else 0


def _copy_tombstones(source: Store, target: Store) -> int:
    """Give the target the same key and the same tombstones."""
    key, tombstones = source.get_tombstones()
    with target.transaction():
        target.set_tombstones(key, tombstones)
    return len(tombstones)


def _copy_vectors(source: Store, target: Store) -> int:
    """Copy the stored vectors and return how many there are.

    A store keeps those of a model alone; those of the local backend are made from the text.
    """
    count = 0
    for chunk in source.vectors.chunks():
        ids = chunk.checksums().keys()
        vectors = {memory_id: chunk.pieces(memory_id) for memory_id in ids}
        target.vectors.put(chunk.kind, vectors)
        count += len(vectors)
    return count


def _compare(source: Store, target: Store) -> None:
    """Raise DamagedData unless both hold the same records in the same order."""
    try:
        for one, two in itertools.zip_longest(source, target):
            if one is None or two is None or one.entry() != two.entry():
                raise DamagedData("the copy differs from the store; nothing was changed, run it "
                                  "again")
        key, tombstones = source.get_tombstones()
        copied_key, copied = target.get_tombstones()
        if tombstones != copied or tombstones and key != copied_key:
            raise DamagedData("the copy has other tombstones; nothing was changed, run it again")
        if isinstance(source, FileStore) and target.faults():
            raise DamagedData(f"the copy is damaged ({target.faults()[0]}); nothing was changed, "
                              "run it again")
    finally:
        if isinstance(source, FileStore):          # closing files would write into them
            target.close()


def _take_archive(memory: HermesLite, source: FileStore) -> list[str]:
    """The archive takes its place, then index.json goes: from then on it is the store.

    Return what could not be taken away.
    """
    root = memory.root
    name = core.import_system("archive").FILE
    source.checkpoint()                            # no journal is left if it is killed here
    ids = [*source.ids()]
    warnings = _set_other_aside(root / name)
    key, tombstones = source.get_tombstones()
    if tombstones:                                 # the archive is recovered with this copy, too
        source.files.write("backups/tombstones.bak", core.tombstones_file(key, tombstones))
    for leftover in (f"{name}-wal", f"{name}-shm", _LOSS_CHECK):
        (root / leftover).unlink(missing_ok=True)
    os.replace(root / ".migrate" / name, root / name)
    _sync_strictly(root)
    (root / "index.json").unlink(missing_ok=True)
    _sync_strictly(root)
    notes = [root / "store" / f"{memory_id}.md" for memory_id in ids]
    return warnings + _remove([*(root / inside for inside in _OF_FILES), *notes,
                               root / ".migrate"])


def _set_other_aside(path: Path) -> list[str]:
    """Keep an archive that lies there already: a move that was killed left it, or a person."""
    if not path.exists():
        return []
    return [f"{path.name} was there already and was not in use; it is kept as "
            f"{core.set_aside(path).name}, delete it when you do not need it"]


def _take_files(memory: HermesLite, source: Store) -> list[str]:
    """The files take their place, index.json last; then the archive goes.

    Return what could not be taken away.
    """
    root = memory.root
    made = root / ".migrate"
    for inside in ("index.journal", ".search"):    # left by a move that was killed
        _remove([root / inside])
    for path in sorted(_inside(made), key=lambda path: path.name == "index.json"):
        place = root / path.relative_to(made)
        core.make_folder(place.parent)
        if path.name == "index.json":              # what it needs is there for good
            for folder in (root / "backups", root / "store", root):
                _sync_strictly(folder)
        os.replace(path, place)
    _sync_strictly(root)
    return _remove([*(source.path.with_name(source.path.name + end)
                      for end in ("", "-wal", "-shm")), root / _LOSS_CHECK, made])


def _sync_strictly(folder: Path) -> None:
    """Make renames in *folder* last; StorageError where the disk does not."""
    if os.name != "posix" or not folder.is_dir():
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):     # a disk that has no such thing
            raise core.storage_error(problem, folder) from None


def _remove(paths: list[Path]) -> list[str]:
    """Delete files and folders; return a sentence for each that stays."""
    problems = []
    for path in paths:
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as problem:
            problems.append(f"{path} could not be deleted ({problem.strerror}); delete it by hand")
    return problems


def _inside(folder: Path) -> Iterator[Path]:
    """Yield every file in a folder and the folders in it, but for its lock."""
    return (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def _as_it_is(root: str | None) -> HermesLite:
    """Open whatever holds the memories now, whatever config.yaml says of it.

    The buffer stays out: it stands before an archive only, and what is moved needs none.
    """
    place = core.find_root(root)
    config = core.load_config(place)
    config["systems"].pop("buffer", None)
    if (place / "index.json").exists():
        return HermesLite(place, config=config, store=FileStore(
            place, config, cipher=core.get_encryption(place, config)))
    return HermesLite(place, config=config)


def _show(done: Migrated) -> Iterator[str]:
    place = "memory_archive.db" if done.to == "archive" else "files"
    line = (f"{core.pluralize(done.memories, 'memory', 'memories')}, "
            f"{core.pluralize(done.tombstones, 'tombstone')} and "
            f"{core.pluralize(done.vectors, 'vector')} are now in {place}")
    yield f"{line} ({done.resumed} of them from an earlier run)" if done.resumed else line


OPERATIONS = (
    Operation("migrate", "move all memories into the archive, or back into files",
              lambda memory, to: migrate(memory, to), (
                  Param("to", str, "archive or files", required=True),), _show, writes=True,
              open=_as_it_is, scope="local"),
)

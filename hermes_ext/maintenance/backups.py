"""Backup: write everything that a store needs into one file, and check it.

    hermes_lite.py backup [FILE]                hermes_lite.py backup --verify [FILE]

A backup is a tar.gz, 0600. In it: the records with the journal compacted, tombstones, vectors,
archives of prune, config.yaml, rooms, the Markdown mirror, files of systems, and last
MANIFEST.json, {"version": 1, "made_at", "memories", "tombstones", "encrypted",
"files": {name: {"bytes", "sha256"}}}. Not in it: keys, .env, older backups, derived files, cold
files outside of the root. The files of an encrypted store stay sealed and the mirror is left out.

Of an archive such a file holds the records. `backup NAME.db` copies memory_archive.db itself,
vectors and tombstones with it, by SQLite's backup: whole also while other processes have it open,
and without being held in memory. Put in the place of memory_archive.db it is the store; `restore`
takes its records. The store's lock is held meanwhile: every other process waits, or gets Locked.
A tar.gz is held in memory whole.
"""
from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hermes_lite as core
from hermes_ext.maintenance.backup_reader import backup_path, read_backup
from hermes_ext.maintenance.store_files import (
    file_store, files_of, is_archive, show, steps, tombstones_of, write_archive)
from hermes_lite import (DamagedData, FileStore, HermesLite, NotFound, Operation, Param,
                         UsageError)

__all__ = ["Copy", "OPERATIONS", "backup", "backup_files", "free_name", "verify"]

# What a backup goes without: derived files, and records and tombstones, which it has anyway.
_LEFT_OUT = re.compile(
    r"(index|graph|tombstones)\.json|index\.journal|\.search/.*|.*\.damaged-.*"
    r"|backups/(?!prune_|rejected_|snapshot_).*|\.vector_backend.*"
    r"|\.state_(records|archive)\.json|stb_snapshot\.json|config\.yaml\.restored")


@dataclass(frozen=True, slots=True)
class Copy(core.Record):
    """A backup as it lies on disk; `problems` are sentences, none when it is whole."""
    file: str
    memories: int
    tombstones: int
    files: int
    bytes: int
    encrypted: bool
    made_at: str | None
    problems: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return DamagedData.exit_code if self.problems else 0

    def lines(self) -> Iterator[str]:
        """Yield what a person should read."""
        yield (f"{self.file}: {core.pluralize(self.memories, 'memory', 'memories')}, "
               f"{core.pluralize(self.tombstones, 'tombstone')}, "
               f"{core.pluralize(self.files, 'file')}, {self.bytes:,} bytes"
               f"{', encrypted' if self.encrypted else ''}{'' if self.problems else ', whole'}")
        yield from self.problems


def backup(memory: HermesLite, file: str | os.PathLike | None = None) -> Copy:
    """Write everything needed to *file* (default backups/manual_*.tar.gz), then read it back.

    UsageError when *file* exists; DamagedData when what was written does not read back. Of an
    archive, a *file* that ends in .db is a copy of memory_archive.db.
    """
    core.check_selectors(file=None if file is None else os.fspath(file))
    store = file_store(memory)
    if file and Path(file).suffix == ".db" and not is_archive(store):
        raise UsageError(f"{file}: only an archive can be copied to a .db file; leave .db out")
    with memory.session.writing():
        path = Path(file) if file else free_name(store, "manual")
        if path.exists():
            raise UsageError(f"{path} exists; give another name or move it away")
        core.make_folder(path.absolute().parent)
        if path.suffix != ".db":
            write_archive(store, path, backup_files(store, beside=path))
    if path.suffix == ".db":                       # SQLite does not copy inside a transaction
        store.copy_to(path)
    copy = verify(memory, path)
    if copy.problems:
        raise DamagedData(f"{path} does not read back: {copy.problems[0]}")
    return copy


def free_name(store: FileStore, kind: str) -> Path:
    """Return a new path in backups/, with the moment and, where that is taken, a number."""
    stem = f"{kind}_{store.clock():%Y%m%d_%H%M%S}"
    path = store.root / "backups" / f"{stem}.tar.gz"
    number = 1
    while path.exists():
        number += 1
        path = store.root / "backups" / f"{stem}-{number}.tar.gz"
    return path


def backup_files(store: FileStore, beside: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of what a backup holds, sealed as on disk; the records first."""
    rows = (core.to_json(each.entry()) for each in store)
    yield "index.json", core.seal(core.join_rows(rows), store.files.cipher)
    if tombstones_of(store):
        tombstones = core.tombstones_file(*store.get_tombstones())
        yield "tombstones.json", core.seal(tombstones, store.files.cipher)
    for name, path in steps(store, "backing up", files_of(store.root)):
        is_readable_note = name.startswith("store/") and store.files.cipher is not None
        if not _LEFT_OUT.fullmatch(name) and not is_readable_note and path != beside:
            yield name, path.read_bytes()


def verify(memory: HermesLite, file: str | os.PathLike | None = None) -> Copy:
    """Read a backup whole (default: the newest one made by hand) and count what is in it.

    Checks names, sizes, checksums and counts, and every record. NotFound without a file.
    """
    store = file_store(memory)
    path = backup_path(memory, file) if file else _newest_manual(store)
    size = path.stat().st_size if path.exists() else 0
    try:
        content = read_backup(memory, path)
    except DamagedData as problem:
        return Copy(str(path), memories=0, tombstones=0, files=0, bytes=size, encrypted=False,
                    made_at=None, problems=(str(problem),))
    damaged = f"{content.damaged} entries in it cannot be read"
    return Copy(str(path), memories=len(content.memories), tombstones=len(content.tombstones),
                files=max(1, len(content.files)), bytes=size, encrypted=content.encrypted,
                made_at=content.made_at, problems=(damaged,) if content.damaged else ())


def _newest_manual(store: FileStore) -> Path:
    """Return the newest backup made by hand; one dated after tomorrow comes after all others."""
    tomorrow = store.clock().timestamp() + 86_400

    def trust_and_age(path: Path) -> tuple[bool, float]:
        moment = path.stat().st_mtime
        return moment <= tomorrow, moment

    made = sorted(store.root.glob("backups/manual_*.tar.gz"), key=trust_and_age)
    if not made:
        raise NotFound("there is no backup made by hand; `backup` makes one")
    return made[-1]


_verify = verify                     # the command's parameter has this name


def _backup(memory: HermesLite, *, file: str | None, verify: bool) -> Copy:
    return _verify(memory, file) if verify else backup(memory, file)


OPERATIONS = (
    Operation("backup", "write everything needed into one file", _backup, (
        Param("file", Path, "the file (default: in backups/)", positional=True),
        Param("verify", bool, "only check a backup", False)), show, writes=True, scope="admin"),
)

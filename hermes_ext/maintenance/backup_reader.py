"""Read a backup of any kind whole, and check it.

A backup is a tar.gz with a manifest, a copy of memory_archive.db, a daily copy of index.json or an
archive of prune; the head of backups.py describes them. Nothing is changed here.
"""
from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import hermes_lite as core
from hermes_ext.cold_files import COLD_FILE, unpack
from hermes_ext.maintenance.store_files import check_archive, file_store, keys_of
from hermes_lite import (ConfigError, DamagedData, HermesLite, Memory, NotFound, StorageError)

__all__ = ["BackupContent", "any_cipher", "backup_path", "read_backup"]


@dataclass
class BackupContent:
    """Content of a backup, read and checked, in memory.

    `damaged` counts entries that cannot be read. `cold` maps the name of each readable cold file
    to its memories, `cold_names` also has the damaged ones.
    """
    memories: dict[str, Memory]
    tombstones: Mapping[str, dict[str, str]] = field(default_factory=dict)
    tombstone_key: str = ""
    damaged: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)
    encrypted: bool = False
    made_at: str | None = None
    holds_some: bool = False                       # an archive of prune: some memories, not all
    cold: dict[str, list[Memory]] = field(default_factory=dict)
    cold_names: frozenset[str] = frozenset()


def backup_path(memory: HermesLite, file: str | os.PathLike) -> Path:
    """Return the path of a backup; a name such as prune prints is one in the data root."""
    inside = memory.root / file
    return inside if not Path(file).exists() and inside.exists() else Path(file)


def read_backup(memory: HermesLite, path: Path) -> BackupContent:
    """Read any kind of backup; DamagedData when it is not whole, ConfigError without its key."""
    try:
        with open(path, "rb") as file:
            is_database = file.read(15) == b"SQLite format 3"
        if is_database:
            memories, tombstones, key = core.import_system("archive").read_copy(path)
            return BackupContent(memories, tombstones, key)
        files = list(core.read_files(path))
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}; backups lie in {memory.root / 'backups'}"
                       ) from None
    except (IsADirectoryError, PermissionError) as problem:
        raise StorageError(f"cannot read {path}: {problem.strerror}") from None
    except (OSError, ValueError) as problem:
        raise DamagedData(f"{path} cannot be read: {problem}") from None
    is_sealed = any(core.is_ciphertext(data) for _, data in files)
    cipher = any_cipher(memory) if is_sealed else None
    if len(files) == 1 and files[0][0] == path.name:           # no tar.gz: records alone
        return _read_records(files[0][1], cipher, path)
    return _read_archive(files, cipher, path)


def _read_archive(files: list[tuple[str, bytes]], cipher: core.Cipher | None,
                  path: Path) -> BackupContent:
    """Read the files of a tar.gz and compare their number of memories with the manifest."""
    manifest = check_archive(files, path)
    content = dict(files)
    backup = _read_records(content["index.json"], cipher, path)
    found = len(backup.memories) + backup.damaged
    if found != manifest.get("memories"):
        raise DamagedData(f"{path}: it holds {len(backup.memories)} memories, its manifest says "
                          f"{manifest.get('memories')}")
    backup.files = content
    backup.made_at = str(manifest.get("made_at"))
    _read_cold(backup, cipher)
    _read_tombstones(backup, cipher, path)
    return backup


def _read_tombstones(backup: BackupContent, cipher: core.Cipher | None, path: Path) -> None:
    """Read tombstones.json of a tar.gz; a backup without tombstones has no such file."""
    sealed = backup.files.get("tombstones.json")
    if sealed is None:
        return
    try:
        content = core.from_json(core.unseal(sealed, cipher))
        backup.tombstones = {
            str(fingerprint): {name: str(tombstone[name]) for name in ("id", "why", "at")}
            for fingerprint, tombstone in content["tombstones"].items()}
        backup.tombstone_key = str(content["key"])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DamagedData(f"{path}: tombstones.json in it cannot be read") from None


def _read_cold(backup: BackupContent, cipher: core.Cipher | None) -> None:
    """Read the cold files of a tar.gz; a damaged one counts as one damaged entry."""
    names = {name: name.removeprefix("cold/") for name in backup.files if name.startswith("cold/")}
    names = {name: bare for name, bare in names.items() if COLD_FILE.fullmatch(bare)}
    backup.cold_names = frozenset(names)
    for name, bare in names.items():
        try:
            backup.cold[bare] = unpack(core.unseal(backup.files[name], cipher))
        except ValueError:
            backup.damaged += 1


def _read_records(data: bytes, cipher: core.Cipher | None, path: Path) -> BackupContent:
    """Read the records of one file; one bad entry costs itself.

    index.json and a daily backup are a list of all memories. An archive of prune, or a snapshot,
    is a mapping with some of them under `memories`.
    """
    is_sealed = core.is_ciphertext(data)
    try:
        data = core.unseal(data, cipher)
    except ValueError:
        raise ConfigError(f"{path} is encrypted and no key here opens it; set HERMES_MASTER_KEY "
                          "(or HERMES_MASTER_KEY_OLD) to the key it was made with") from None
    try:
        content = core.from_json(data)
        holds_some = isinstance(content, dict)
        entries = content["memories"] if holds_some else content
        if not isinstance(entries, list):
            raise ValueError("no list of memories")
    except (ValueError, KeyError):
        raise DamagedData(f"{path} cannot be read: it is no whole list of memories") from None
    backup = BackupContent({}, encrypted=is_sealed, holds_some=holds_some)
    for entry in entries:
        try:
            found = Memory.from_entry(entry)
            backup.memories[found.id] = found
        except ValueError:
            backup.damaged += 1
    return backup


def any_cipher(memory: HermesLite) -> core.Cipher | None:
    """Return the store's cipher, or one of every key that is found; None without any."""
    keys = keys_of(memory)
    return file_store(memory).files.cipher or (core.Cipher(*keys) if keys else None)

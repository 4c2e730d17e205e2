"""Restore: bring the records of a backup back.

    hermes_lite.py restore FILE --dry-run       hermes_lite.py restore FILE --with-forgotten
    hermes_lite.py restore FILE --with-config
    hermes_lite.py restore FILE --with-config --with-commands

FILE is a backup, an auto_index.json.*.bak or a prune_*.json, by a path from the current folder or
from the data root. The first two replace all records, an archive of prune adds its own. Everything
is read, checked, redacted and compared first; then one transaction brings the records over, after
a backup (backups/before_restore_*.tar.gz) of the present state. Memories that a person has
forgotten are left out and counted, unless --with-forgotten. Cold memories come back into cold
storage. Other files come back only where there are none, and only those whose names this module
knows; the rest is named. A second run changes nothing.

config.yaml may run commands, so it is never put in force unasked: it is set aside as
config.yaml.restored, and how it differs is shown. --with-config puts it in force; where it runs
commands, calls webhooks or writes files these are listed, and it takes --with-commands, too. The
state of `sync` does not come back: run `sync FOLDER` again.

The store's lock is held meanwhile: every other process waits, or gets Locked.
"""
from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import hermes_lite as core
from hermes_ext.cold_files import INDEX as COLD_INDEX
from hermes_ext.cold_files import ColdFiles, moved_at
from hermes_ext.maintenance.backup_reader import (
    BackupContent, any_cipher, backup_path, read_backup)
from hermes_ext.maintenance.backups import backup_files, free_name
from hermes_ext.maintenance.restored_config import (
    PLAIN_NAME, SET_ASIDE, RestoredConfig, appended_files, check_config, read_config)
from hermes_ext.maintenance.store_files import (
    KEYS, SEALED, Scrubber, edit_entries, file_store, is_cold, is_records, show, tombstones_of,
    write_archive)
from hermes_lite import DamagedData, FileStore, HermesLite, Memory, Operation, Param, Refused

__all__ = ["OPERATIONS", "Restored", "restore"]

# Files beside records, tombstones, cold storage and config.yaml that a restore may write: in one
# folder at most, nothing hidden.
_RESTORED = re.compile(
    rf"(store|rooms)/{PLAIN_NAME}\.md|vectors\.(json|f32)"
    r"|backups/(prune|rejected)_[\w-]+\.json|\.state_(?!sync\.|records\.|archive\.)\w+\.json"
    r"|logs/(audit|rules|events)[\w.-]*\.(log|json)|\.audit_head")
# Files of a backup that come back by other ways.
_SPECIAL = ("index.json", "tombstones.json", "MANIFEST.json", "config.yaml", COLD_INDEX)


@dataclass(frozen=True, slots=True)
class Restored(core.Record):
    """Result of a restore or of its dry run; `before` is the backup of the state before it.

    `cold` counts memories that come back into cold storage, `elsewhere` are the places of cold
    files that were outside of the root, `unknown` are files of the backup that are not put back.
    `config` is how its config.yaml differs, line by line, `commands` what that would do.
    """
    file: str
    added: int
    changed: int
    removed: int
    same: int
    forgotten: int
    damaged: int
    files: tuple[str, ...] = ()
    before: str | None = None
    dry_run: bool = False
    cold: int = 0
    elsewhere: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    with_config: bool = False

    def lines(self) -> Iterator[str]:
        """Yield the lines that the command prints."""
        verb = "would be " if self.dry_run else ""
        yield (f"{self.added} {verb}added, {self.changed} {verb}changed, {self.removed} "
               f"{verb}taken away, {self.same} the same")
        if self.forgotten:
            yield f"{core.pluralize(self.forgotten, 'forgotten note')} left out"
        if self.damaged:
            yield f"{self.damaged} damaged entries left out"
        if self.cold:
            yield (f"{core.pluralize(self.cold, 'memory', 'memories')} {verb}put back into cold "
                   "storage")
        for place in self.elsewhere:
            yield (f"cold files at {core.display_text(place)} are not in the backup; if that "
                   "place is yours, `archive --adopt --place PLACE` takes them over")
        for name in self.files:
            yield f"  {verb}put back: {core.display_text(name)}"
        for name in self.unknown:
            yield f"  not put back, it is no file of a store: {core.display_text(name)}"
        yield from self._config_lines(verb)
        if self.before:
            yield f"what was there before is in {self.before}"

    def _config_lines(self, verb: str) -> Iterator[str]:
        """Yield how the backup's config.yaml differs; *verb* is "would be " in a dry run."""
        if not self.config:
            return
        if self.with_config:
            yield f"config.yaml {verb}replaced; it differs from the one before:"
        else:
            yield (f"its config.yaml differs and is not in force, it {verb}set aside as "
                   f"{SET_ASIDE}; --with-config puts it in force:")
        for line in self.config:
            yield f"  {core.display_text(line)}"
        for sentence in self.commands:
            yield f"  with it a rule {core.display_text(sentence)}"


def restore(memory: HermesLite, file: str | os.PathLike, *, with_forgotten: bool = False,
            with_config: bool = False, with_commands: bool = False,
            dry_run: bool = False) -> Restored:
    """Bring the records of a backup back; see the head of this module.

    Refused for an archive with unsafe names and for a config.yaml with commands that nobody has
    confirmed, DamagedData for a damaged one, ConfigError without its key: nothing is changed then.
    """
    store = file_store(memory)
    backup = read_backup(memory, backup_path(memory, file))
    config = read_config(memory, backup.files)
    if with_config and not dry_run:
        check_config(config, with_commands=with_commands)
    cold = ColdFiles(store)
    with contextlib.nullcontext() if dry_run else _both_locks(cold, store):
        store.refresh()
        plan = _plan(memory, backup, cold, with_forgotten=with_forgotten,
                     config=config if with_config else None)
        result = Restored(
            str(file), added=len(plan.added), changed=len(plan.changed),
            removed=len(plan.removed), same=plan.same, forgotten=len(plan.forgotten),
            damaged=backup.damaged, files=tuple(plan.files), dry_run=dry_run,
            cold=sum(len(memories) for _, memories in plan.cold),
            elsewhere=_places_elsewhere(memory, backup), unknown=tuple(plan.unknown),
            config=config.diff if config else (), commands=config.commands if config else (),
            with_config=with_config)
        is_new_config = config is not None and (with_config or not config.is_set_aside())
        if dry_run or not (plan.changes_something() or is_new_config):
            return result
        before = _save_present_state(memory)
        _apply(memory, plan, backup, cold, with_forgotten=with_forgotten)
        if is_new_config:
            _write_plain(store, "config.yaml" if with_config else SET_ASIDE, config.data)
    return replace(result, before=before.relative_to(memory.root).as_posix())


@contextlib.contextmanager
def _both_locks(cold: ColdFiles, store: FileStore) -> Iterator[None]:
    """Hold the lock of cold storage, then that of the store."""
    with cold.locked(), store.transaction():
        yield


# -- planning -----------------------------------------------------------------

@dataclass
class _Plan:
    """Changes that a restore makes.

    `wanted` maps an id to each memory that the backup brings, `cold` has (moment of the move,
    memories) for each cold file, `files` maps a name to the bytes to write.
    """
    wanted: dict[str, Memory]
    added: list[Memory]
    changed: list[Memory]
    removed: list[str]
    forgotten: set[str]
    cold: list[tuple[str, list[Memory]]]
    files: dict[str, bytes]
    unknown: list[str]

    @property
    def same(self) -> int:
        return len(self.wanted) - len(self.added) - len(self.changed)

    def changes_something(self) -> bool:
        return bool(self.added or self.changed or self.removed or self.files or self.cold)


def _plan(memory: HermesLite, backup: BackupContent, cold: ColdFiles, *, with_forgotten: bool,
          config: RestoredConfig | None) -> _Plan:
    """Compare a backup with the store; *config* is the config.yaml that will be in force."""
    sift = _Sift(memory, backup, with_forgotten=with_forgotten)
    wanted = sift.kept(backup.memories.values())
    present = {each.id: each for each in file_store(memory)}
    removed = [] if backup.holds_some else [each for each in present if each not in wanted]
    remaining = present.keys() - {*removed}
    cold_back = _cold_back(backup, sift, cold, taken=wanted.keys() | remaining)
    appended = appended_files(memory.config["systems"], config)
    files, unknown = _missing_files(memory, backup, sift.forgotten, appended)
    return _Plan(
        wanted=wanted,
        added=[each for each in wanted.values() if each.id not in present],
        changed=[each for each in wanted.values()
                 if each.id in present and _differs(each, present[each.id])],
        removed=removed, forgotten=sift.forgotten, cold=cold_back, files=files, unknown=unknown)


class _Sift:
    """Filter of a backup's memories: drops forgotten and blocked ones, redacts the others.

    `forgotten` collects the ids of those left out because a person has forgotten them; a memory
    that prune took may come back. Two agents may have stored the same text: when one forgot it
    before the backup was made, or while the other's memory is still here, the other's stays.
    """

    def __init__(self, memory: HermesLite, backup: BackupContent, *, with_forgotten: bool) -> None:
        self._memory = memory
        self._store = file_store(memory)
        self._scrubber = Scrubber(memory)
        self._with_forgotten = with_forgotten
        self._by_id = {each["id"]: each for each in tombstones_of(self._store).values()}
        self._forgotten_earlier = {each["id"] for each in backup.tombstones.values()}
        self.forgotten: set[str] = set()

    def kept(self, memories: Iterable[Memory]) -> dict[str, Memory]:
        """Return {id: redacted memory} of those that may come back."""
        kept = {}
        for each in memories:
            if self._is_blocked(each):
                continue
            clean = Memory.from_entry(self._scrubber.entry(each.entry()))
            if not self._with_forgotten and self._is_forgotten(each, clean):
                self.forgotten.add(each.id)
            else:
                kept[each.id] = clean
        return kept

    def _is_blocked(self, each: Memory) -> bool:
        """Tell whether a content filter blocks a memory, which is a notice then."""
        try:
            self._memory.redactor.check_content(each)
        except Refused:
            self._memory.notices.append(f"{each.id} is blocked by a content filter and left out")
            return True
        return False

    def _is_forgotten(self, each: Memory, clean: Memory) -> bool:
        """Tell whether a person has forgotten this id or this text; *clean* is redacted."""
        tombstone = self._by_id.get(each.id)
        if tombstone is None and self._store.get(each.id) is None:
            tombstone = self._store.forgotten(each.content) or self._store.forgotten(clean.content)
            if tombstone and tombstone["id"] in self._forgotten_earlier:
                tombstone = None
        return tombstone is not None and not _is_pruned(tombstone)


def _is_pruned(tombstone: Mapping[str, str]) -> bool:
    return tombstone["why"].startswith("pruned")


def _differs(one: Memory, two: Memory) -> bool:
    """Tell whether more than the counting of accesses differs."""
    return replace(one, access_count=0, last_accessed=None) != replace(
        two, access_count=0, last_accessed=None)


def _cold_back(backup: BackupContent, sift: _Sift, cold: ColdFiles, *, taken: Collection[str]
               ) -> list[tuple[str, list[Memory]]]:
    """Return (moment of the move, memories) of all that comes back into cold storage.

    Memories that are in the store or will be (*taken*), and cold ones here, are left out.
    """
    found: dict[str, list[Memory]] = {}
    seen = {*taken, *cold.memories}
    for name, memories in sorted(backup.cold.items()):
        fresh = sift.kept(each for each in memories if each.id not in seen)
        seen.update(fresh)
        if fresh:
            found.setdefault(moved_at(name), []).extend(fresh.values())
    return list(found.items())


def _places_elsewhere(memory: HermesLite, backup: BackupContent) -> tuple[str, ...]:
    """Return the places outside of the root that the backup's index of cold storage names.

    Nothing there is read, written or deleted: the backup may be a stranger's.
    """
    inside = {PurePosixPath(name).name for name in backup.files if is_cold(name)}
    try:
        data = core.unseal(backup.files.get(COLD_INDEX, b"{}"), any_cipher(memory))
        files = core.from_json(data).get("files", {})
        places = {str(each["place"]) for name, each in files.items() if name not in inside}
    except (ValueError, LookupError, TypeError, AttributeError):
        return ()
    known = {each["place"] for each in ColdFiles(memory.store).files.values()}
    return tuple(sorted(places - known))


def _missing_files(memory: HermesLite, backup: BackupContent, left_out: set[str],
                   appended: set[str]) -> tuple[dict[str, bytes], list[str]]:
    """Return other files of a backup that are missing here, and the names that are not restored.

    The files are plain and redacted. *left_out* are ids of forgotten memories, *appended* the
    files of rules in force.
    """
    root = memory.root
    notes = {f"store/{each}.md" for each in left_out | backup.memories.keys()}
    cipher = any_cipher(memory) if backup.encrypted else None
    forgotten = {each["id"] for each in tombstones_of(file_store(memory)).values()
                 if not _is_pruned(each)}
    scrubber = Scrubber(memory)
    found, unknown = {}, []
    for name, data in backup.files.items():
        if name in _SPECIAL or name in notes or name in backup.cold_names:
            continue
        if not _RESTORED.fullmatch(name) and name not in appended:
            if not KEYS.fullmatch(name):
                unknown.append(name)
            continue
        if (root / name).exists() or PurePosixPath(name).stem in forgotten:
            continue
        found[name] = _cleaned(name, core.unseal(data, cipher), forgotten, scrubber)
    return found, unknown


def _cleaned(name: str, data: bytes, forgotten: set[str], scrubber: Scrubber) -> bytes:
    """Return the bytes of a file without forgotten records, redacted where it is text."""
    if is_records(name) and any(memory_id.encode() in data for memory_id in forgotten):
        data = edit_entries(
            data, lambda entry: None if entry.get("id") in forgotten else entry, str)
    try:
        return scrubber.edit(name, data, True)
    except ValueError:                             # it is no text
        return data


# -- applying -----------------------------------------------------------------

def _save_present_state(memory: HermesLite) -> Path:
    """Write a backup of the present state, read it back, and return its path."""
    store = file_store(memory)
    before = free_name(store, "before_restore")
    core.make_folder(before.parent)
    write_archive(store, before, backup_files(store, beside=before))
    if {each.id for each in store} != read_backup(memory, before).memories.keys():
        raise DamagedData(f"{before} does not hold what is there; nothing was changed")
    return before


def _apply(memory: HermesLite, plan: _Plan, backup: BackupContent, cold: ColdFiles, *,
           with_forgotten: bool) -> None:
    """Carry out a plan; both locks are held.

    Cold memories come first: when the process is killed between, one may be there twice, and none
    is missing.
    """
    store = file_store(memory)
    if plan.cold:
        cold.rewrite(lambda each: each, (), add=plan.cold, place="cold")
    _merge_tombstones(memory, backup, plan.wanted)
    for each in plan.added + plan.changed:
        store.remove_tombstone(each.content, memory_id=each.id)
        store.put(each)
    if with_forgotten:
        for _, memories in plan.cold:
            for each in memories:
                store.remove_tombstone(each.content, memory_id=each.id)
    for memory_id in plan.removed:
        store.remove(memory_id, why=None)
    store.vectors.drop([each.id for each in plan.changed])
    for name, data in plan.files.items():
        if SEALED.fullmatch(name):
            store.files.write(name, data)
        else:
            _write_plain(store, name, data)


def _merge_tombstones(memory: HermesLite, backup: BackupContent,
                      wanted: Mapping[str, Memory]) -> None:
    """Take over a backup's tombstones; those hashed under another key hold by their id."""
    if not backup.tombstones:
        return
    store = file_store(memory)
    key, tombstones = store.get_tombstones()
    if not tombstones:
        key = backup.tombstone_key
    living_texts = {core.tombstone_fingerprint(key, each.content)
                    for each in (*store, *wanted.values())}
    living_ids = {*store.ids(), *wanted}
    fresh = {}
    for fingerprint, tombstone in backup.tombstones.items():
        is_known = fingerprint in tombstones or fingerprint in living_texts
        if not is_known and tombstone["id"] not in living_ids:
            why = memory.redactor.redact_field(tombstone["why"])
            fresh[fingerprint] = {**tombstone, "why": why}
    store.set_tombstones(key, {**fresh, **tombstones})


def _write_plain(store: FileStore, name: str, data: bytes) -> None:
    """Write a file that no store seals, with its folder."""
    core.make_folder((store.root / name).parent)
    core.write_atomic(store.root / name, data)


OPERATIONS = (
    Operation("restore", "bring the records of a backup back", restore, (
        Param("file", Path, "a backup, a daily backup or an archive of prune", positional=True,
              required=True),
        Param("with_forgotten", bool, "bring back what was forgotten, too", False),
        Param("with_config", bool, "put its config.yaml in force", False),
        Param("with_commands", bool, "also where that runs commands", False)), show,
              writes=True, destructive=True, scope="local"),
)

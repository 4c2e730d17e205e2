"""Doctor: look at everything that a root holds, and change nothing.

    hermes_lite.py doctor
    hermes_lite.py doctor --json

`doctor(memory)` is the same as a function of an open HermesLite. It works on a store of files and
on an archive, and refuses any other. It also works where config.yaml or the key is broken. Each
check is ok, warn or fail, and names the command that repairs it; one fail makes exit code 1.
Nothing is sent anywhere, but cold files in a bucket are read where they are.
"""
from __future__ import annotations

import contextlib
import re
import shutil
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import hermes_lite as core
from hermes_ext.cold_files import INDEX, ColdFiles, check_cold_files
from hermes_ext.maintenance.scrub import scrub
from hermes_ext.maintenance.store_files import (
    DERIVED, SEALED, check_archive, file_store, files_of, is_archive, is_behind, keys_of,
    leftovers, loose_files, maybe_json, mirror_gaps, show, tombstones_of)
from hermes_ext.maintenance.survival import (LAYERS, Pointer, Surroundings, find_pointers,
                                             is_container, place_of)
from hermes_lite import DamagedData, FileStore, HermesError, HermesLite, Operation, StorageError

__all__ = ["Check", "Checkup", "OPERATIONS", "doctor", "open_unread"]


# -- checkup -------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Check(core.Record):
    """Result of one check: `state` is ok, warn or fail, `command` repairs it if there is one."""
    name: str
    state: str
    message: str
    command: str | None = None


class Checkup(list):
    """A list of Check; exit code 1 when one of them fails."""

    @property
    def exit_code(self) -> int:
        return int(any(check.state == "fail" for check in self))

    def lines(self) -> Iterator[str]:
        """Yield the lines that the command prints."""
        for check in self:
            advice = f"; run `{check.command}`" if check.command else ""
            yield f"{check.state:4}  {check.name}: {check.message}{advice}"


def open_unread(root: str | None) -> HermesLite:
    """Open a memory without reading its config or key, so that a broken one can be checked."""
    config = core.Config()
    place = core.find_root(root)
    if (place / "memory_archive.db").exists() and not (place / "index.json").exists():
        return HermesLite(place, config=config)
    return HermesLite(place, config=config, store=FileStore(place, config, is_read_only=True))


def doctor(memory: HermesLite, *, around: Surroundings | None = None) -> Checkup:
    """Look at everything and change nothing (modes of .env and keys aside); see the module.

    Checks depend on those before them: a config or key that cannot be read ends the checkup.
    *around* is the system in which the root lies, by default this one.
    """
    root = file_store(memory).root
    if not root.is_dir():
        return Checkup([Check("root", "warn", f"{root} does not exist yet", "init")])
    checkup = Checkup(_look(check, root) for check in (
        _check_permissions, _check_disk, _check_lock))
    around = around or Surroundings()
    if is_container(around):
        checkup.append(_check_place(root, around))
    config = _check_settings(memory, checkup)
    if config is None:
        return checkup
    if is_container(around) and "brain" in config["systems"]:
        checkup.append(_check_pointers(root, around))
    if is_archive(memory.store):
        with memory.lock:
            _check_archive(memory.store, checkup)
    else:
        _check_files(memory, config, checkup)
    return checkup


def _check_settings(memory: HermesLite, checkup: Checkup) -> core.Config | None:
    """Add the checks of config.yaml and of the systems' settings; return a config that is good."""
    root = memory.root
    try:
        config = core.load_config(root)
        core.check_rules(config["security"]["redact_patterns"])
    except HermesError as problem:
        checkup.append(Check("config", "fail", str(problem)))
        return None
    checkup.append(Check("config", "warn" if config.notices else "ok",
                         "; ".join(config.notices) or "it can be read"))
    memory.store.config = config
    try:
        HermesLite(root, config=config, store=memory.store)    # each system checks its settings
    except HermesError as problem:
        checkup.append(Check("systems", "fail", str(problem)))
        return None
    return config


def _check_archive(store: FileStore, checkup: Checkup) -> None:
    """Add the checks of an archive."""
    faults = store.faults()
    if faults:
        checkup.append(Check("records", "fail", "; ".join(faults), "repair"))
        return
    loss = store.describe_loss()
    if loss:
        checkup.append(Check("records", "fail", loss, "repair"))
    else:
        checkup.append(Check("records", "ok", "the file is whole and the indexes fit"))
    tombstones = tombstones_of(store)
    back = {each["id"] for each in tombstones.values()} & {*store.ids()}
    if back:
        checkup.append(Check("tombstones", "fail", f"{len(back)} forgotten memories are back"))
    else:
        checkup.append(Check("tombstones", "ok", f"{len(tombstones)} forgotten texts stay away"))
    checkup += [_look(check, store) for check in _OF_ANY_STORE]


def _check_files(memory: HermesLite, config: core.Config, checkup: Checkup) -> None:
    """Add the checks of a store of files, which is opened anew, with its key and read-only."""
    memory.take_notices()                          # from systems that had no key to read with
    try:
        cipher = None if _lacks_new_key(memory.root, config) else core.get_encryption(
            memory.root, config)
        store = FileStore(memory.root, config, cipher=cipher, clock=memory.store.clock,
                          is_read_only=True)
        store.progress = memory.store.progress
        checkup.append(_look(_check_key, store))
        store.refresh()
    except DamagedData as problem:
        checkup.append(Check("records", "fail", str(problem), "repair"))
        return
    except StorageError as problem:
        checkup.append(Check("records", "fail", str(problem)))
        return
    except HermesError as problem:
        checkup.append(Check("key", "fail", str(problem)))
        return
    checks = (_check_records, _check_mirror, _check_search, _check_vectors, _check_tombstones,
              *_OF_ANY_STORE)
    checkup += [_look(check, store) for check in checks]


def _lacks_new_key(root: Path, config: core.Config) -> bool:
    """Tell whether encryption is on but has not begun: there is no key and no sealed file.

    Reading the key would make one, and doctor changes nothing.
    """
    is_on = config.env("HERMES_ENCRYPT").lower() in ("on", "1", "true")
    has_key = config.env("HERMES_MASTER_KEY") or (root / ".master_key").exists()
    is_sealed = any(core.is_ciphertext(core.magic_bytes(path)) for path in root.glob("*.json"))
    return bool(is_on and not has_key and not is_sealed)


def _look(check: Callable[..., Check], subject: object) -> Check:
    """Run one check; an error of the disk is its result."""
    try:
        return check(subject)
    except OSError as problem:
        return Check(check.__name__.removeprefix("_check_"), "fail",
                     f"{problem.filename or 'a file'}: {problem.strerror or problem}")


# -- checks of any store ------------------------------------------------------

def _check_permissions(root: Path) -> Check:
    """Look for files and folders that others may read."""
    loose = loose_files(root)
    files = [path for path in loose if path.is_file()]
    if not loose:
        return Check("permissions", "ok", "nobody else may read the files")
    return Check("permissions", "fail" if files else "warn",
                 f"open to others: {core.pluralize(len(files), 'file')} and "
                 f"{core.pluralize(len(loose) - len(files), 'folder')}",
                 "repair")


def _check_disk(root: Path) -> Check:
    """Compare free space with the size of the root: a compaction or backup writes it once more."""
    free = shutil.disk_usage(root).free
    size = 0
    for path in root.rglob("*"):
        with contextlib.suppress(FileNotFoundError):           # another process removed it
            size += path.stat().st_size if path.is_file() else 0
    state = "ok"
    if free < 3 * size + 50_000_000:
        state = "warn"
    if free < size + 1_000_000:
        state = "fail"
    return Check("disk", state, f"{free:,} bytes are free, the store has {size:,}")


def _check_lock(root: Path) -> Check:
    """Try to take the store's lock, which another process may hold."""
    lock = core.FileLock(root / ".lock")
    try:
        lock.acquire(timeout=0.5)
        lock.release()
        return Check("lock", "ok", "no other process holds the store")
    except HermesError as problem:
        return Check("lock", "warn", f"{problem}; what follows may be out of date")


def _check_place(root: Path, around: Surroundings) -> Check:
    """Say whether the root outlives the container in which this runs."""
    place = place_of(root, around)
    if place is None:
        return Check("place", "ok", "this is a container; nothing says where its root is mounted")
    return Check("place", "ok" if place.is_lasting else "warn", f"the root lies {place}")


def _check_pointers(root: Path, around: Surroundings) -> Check:
    """Say which of cron, AGENTS.md and the host's own files lead to the memory; one is enough."""
    found: dict[str, str] = {}
    has_lasting = False
    for pointer in find_pointers(root, around):
        is_lasting = _is_lasting(pointer, around)
        has_lasting = has_lasting or is_lasting
        if is_lasting or pointer.layer not in found:
            lost = "" if is_lasting else ", lost with the container"
            found[pointer.layer] = f"{pointer.file}{lost}"
    said = [f"{layer}: {found.get(layer, 'none')}" for layer in LAYERS]
    return Check("pointers", "ok" if has_lasting else "warn", "; ".join(said),
                 None if has_lasting else "brain agents-md --file AGENTS.md")


def _is_lasting(pointer: Pointer, around: Surroundings) -> bool:
    place = place_of(pointer.file, around)
    return place is None or place.is_lasting


def _check_backups(store: FileStore) -> Check:
    """Read every daily copy, archive of prune and backup."""
    folder = store.root / "backups"
    records = [path for path in (*sorted(folder.glob("*.bak")), *sorted(folder.glob("*.json")))
               if not path.name.startswith("tombstones.")]
    archives = sorted(folder.glob("*.tar.gz"))
    late = [path.name for path in (*records, *archives)
            if _day_in_name(path.name) > f"{store.clock() + timedelta(days=1):%Y%m%d}"]
    if late:
        return Check("backups", "warn", f"{', '.join(late[:3])}: dated in the future by a wrong "
                     "clock, so it serves last; give it the right date in its name, or delete it")
    bad = [path.name for path in records if not _is_json(store.files.read(f"backups/{path.name}"))]
    bad += [path.name for path in archives if not _is_whole(path)]
    count = len(records) + len(archives)
    if bad:
        return Check("backups", "warn", f"{len(bad)} of {count} are damaged: "
                     f"{', '.join(bad[:3])}", "backup")
    counted = core.pluralize(count, "backup or archive", "backups and archives")
    return Check("backups", "ok", f"{counted} can be read")


def _day_in_name(name: str) -> str:
    """Return the day, as 20260817, that the name of a backup contains, or ""."""
    found = re.search(r"[._](\d{8})[._]", name)
    return found[1] if found else ""


def _is_json(data: bytes | None) -> bool:
    return data is not None and maybe_json(data) is not None


def _is_whole(path: Path) -> bool:
    """Tell whether a tar.gz is what its manifest says."""
    try:
        check_archive(list(core.read_files(path)), path)
        return True
    except (OSError, ValueError):
        return False


def _check_cold(store: FileStore) -> Check:
    """Read every file of cold storage and compare it with the index."""
    cold = ColdFiles(store)
    if cold.damaged:
        return Check("cold", "fail", f"{INDEX} cannot be read", "repair")
    faults = check_cold_files(cold)
    if not faults:
        memories = core.pluralize(len(cold.memories), "memory", "memories")
        files = core.pluralize(len(cold.files), "file")
        return Check("cold", "ok", f"{memories} in {files} can be read")
    worst = "fail" if any(fault.state == "fail" for fault in faults) else "warn"
    commands = [fault.command for fault in faults if fault.command]
    return Check("cold", worst, "; ".join(fault.message for fault in faults[:3]),
                 commands[0] if commands else None)


def _check_leftovers(store: FileStore) -> Check:
    """Look for temporary files and damaged indexes, and for damaged files set aside."""
    left = leftovers(store.root)
    aside = [name for name, _ in files_of(store.root)
             if (".damaged-" in name or "/rejected_" in name) and not DERIVED.fullmatch(name)]
    problems = []
    if left:
        problems.append(f"{len(left)} temporary files or damaged indexes")
    if aside:
        problems.append(f"{len(aside)} damaged files set aside, such as {aside[0]}: look, then "
                        "delete")
    return Check("leftovers", "warn" if problems else "ok",
                 "; ".join(problems) or "there are none", "repair" if left else None)


def _check_clock(store: FileStore) -> Check:
    """Look for memories without a readable date, or dated after tomorrow."""
    tomorrow = store.clock() + timedelta(days=1)
    moments = [core.parse_time(each.created_at) for each in store]
    unreadable = moments.count(None)
    late = sum(moment is not None and moment > tomorrow for moment in moments)
    problems = []
    if unreadable:
        problems.append(f"{unreadable} memories are of unreadable date")
    if late:
        problems.append(f"{late} memories are dated in the future; is the clock right?")
    return Check("clock", "warn" if problems else "ok",
                 "; ".join(problems) or "every date can be right")


def _check_secrets(store: FileStore) -> Check:
    """Look for secrets that today's rules would hide, by a dry run of scrub."""
    memory = HermesLite(store.root, config=store.config, store=store)
    found = scrub(memory, dry_run=True)
    if not found.changed:
        return Check("secrets", "ok", "today's rules find none in what is stored")
    return Check("secrets", "fail", f"today's rules find some in {len(found.changed)} memories "
                 f"and files, such as {found.changed[0][0]}", "scrub")


_OF_ANY_STORE = (_check_cold, _check_backups, _check_leftovers, _check_clock, _check_secrets)


# -- checks of a store of files -----------------------------------------------

def _check_key(store: FileStore) -> Check:
    """Look for plain files in an encrypted store, and for files under an older key."""
    if store.files.cipher is None:
        return Check("key", "ok", "encryption is off")
    plain = [name for name, path in files_of(store.root)
             if SEALED.fullmatch(name) and not core.is_ciphertext(path.read_bytes()[:5])]
    if plain:
        return Check("key", "fail", f"encryption is on and {len(plain)} files are not encrypted, "
                     f"such as {plain[0]}", "encrypt on")
    newest = types.SimpleNamespace(store=store, config=store.config, root=store.root)
    if is_behind(store.root, keys_of(newest)):
        return Check("key", "warn", "some files are sealed under an older key", "encrypt rotate")
    return Check("key", "ok", "encryption is on and the key opens every file")


def _check_records(store: FileStore) -> Check:
    """Read every entry; look for records of forgotten memories."""
    problems = list(store.files.notices)
    back = store.tombstones.ids() & set(store.ids())
    if back:
        problems.append(f"{len(back)} forgotten memories are back")
    bad = sum(not _is_entry(store, memory_id) for memory_id in store.ids())
    if bad:
        problems.append(f"{bad} entries cannot be read")
    if problems:
        return Check("records", "fail", "; ".join(problems), "repair")
    return Check("records", "ok", f"{len(store)} memories can be read")


def _is_entry(store: FileStore, memory_id: str) -> bool:
    """Tell whether a record can be read as a memory."""
    try:
        store.get(memory_id)
        return True
    except ValueError:
        return False


def _check_mirror(store: FileStore) -> Check:
    """Compare the Markdown files with the records."""
    known = set(store.ids())
    missing, returned = mirror_gaps(store, known)
    missing = [memory_id for memory_id in missing if memory_id not in store.mirror.pending]
    without_record = sum(path.stem not in known for path in store.root.glob("store/*.md"))
    counts = {"memories have no Markdown file": len(missing),
              "files of forgotten memories are back": len(returned),
              "files have no record": without_record - len(returned)}
    problems = [f"{count} {problem}" for problem, count in counts.items() if count]
    state = "warn" if problems else "ok"
    return Check("mirror", "fail" if returned else state,
                 "; ".join(problems) or "it agrees with the records",
                 "repair" if missing or returned else None)


def _check_search(store: FileStore) -> Check:
    """Load every index that claims to fit; look for ids in the graph that no record has."""
    bad = [name for name, index in store.search_state.indexes.items()
           if index.is_valid and not index.can_be_read()]
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        graph = core.GraphStore.load(store.files.read("graph.json") or b"")
        unknown = graph.ids() - set(store.ids())
        if unknown - store.search_state.graph.unsaved.keys():
            bad.append("graph: unknown ids")
    if bad:
        return Check("search", "fail", f"cannot be used: {', '.join(bad)}", "reindex")
    return Check("search", "ok", "the indexes fit the records")


def _check_vectors(store: FileStore) -> Check:
    """Read the cache of vectors; look for vectors without a memory."""
    if not (store.root / "vectors.json").exists():
        return Check("vectors", "ok", "there is no cache")
    content = maybe_json(store.files.read("vectors.json") or b"")
    if not isinstance(content, dict) or not isinstance(content.get("vectors"), dict):
        return Check("vectors", "fail", "vectors.json cannot be read", "reindex")
    unknown = store.vectors.unknown_ids()
    if unknown:
        return Check("vectors", "warn", f"{len(unknown)} vectors have no memory", "reindex")
    return Check("vectors", "ok", "the cache fits")


def _check_tombstones(store: FileStore) -> Check:
    """Read the tombstones and their copy; one that cannot be read is a warning, both a failure."""
    names = ("tombstones.json", "backups/tombstones.bak")
    count = len(store.tombstones.by_fingerprint)
    if not count and not any((store.root / name).exists() for name in names):
        return Check("tombstones", "ok", "nothing was forgotten yet")
    bad = [name for name in names
           if not isinstance(maybe_json(store.files.read(name) or b""), dict)]
    if bad:
        return Check("tombstones", "fail" if len(bad) == len(names) else "warn",
                     f"cannot be read: {', '.join(bad)}", "repair")
    return Check("tombstones", "ok", f"{count} forgotten memories stay away")


OPERATIONS = (
    Operation("doctor", "check the store and name the command that repairs it", doctor, (), show,
              open=open_unread),
)

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
from hermes_ext.cold_files import INDEX, ColdFiles
from hermes_ext.maintenance.scrub import scrub
from hermes_ext.maintenance.store_files import (
    DERIVED, SEALED, check_archive, file_store, files_of, is_archive, is_behind, keys_of,
    leftovers, loose_files, maybe_json, mirror_gaps, show, tombstones_of)
from hermes_lite import DamagedData, FileStore, HermesError, HermesLite, Operation, StorageError

__all__ = ["Check", "Checkup", "OPERATIONS", "doctor"]


# -- the checkup -------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Check(core.Record):
    """One thing looked at: `state` is ok, warn or fail; `mend` is the command, None when ok."""
    name: str
    state: str
    says: str
    mend: str | None = None


class Checkup(list):
    """A list of Check; exit code 1 when one of them fails."""

    @property
    def exit_code(self) -> int:
        return int(any(check.state == "fail" for check in self))

    def lines(self) -> Iterator[str]:
        """Yield what a person should read."""
        for check in self:
            yield f"{check.state:4}  {check.name}: {check.says}" + (
                f"; run `{check.mend}`" if check.mend else "")


def _bare(root: str | None) -> HermesLite:
    """Open a memory without reading its config or key, so that a broken one can be looked at."""
    config, place = core.Config(), core.find_root(root)
    if (place / "memory_archive.db").exists() and not (place / "index.json").exists():
        return HermesLite(place, config=config)
    return HermesLite(place, config=config, store=FileStore(place, config, is_read_only=True))


def doctor(memory: HermesLite) -> Checkup:
    """Look at everything and change nothing (modes of .env and keys aside); see the module."""
    checkup, root = Checkup(), file_store(memory).root
    if not root.is_dir():
        return Checkup([Check("root", "warn", f"{root} does not exist yet", "init")])
    checkup += [_look(check, root) for check in (_check_permissions, _check_disk, _check_lock)]
    try:
        config = core.load_config(root)
        core.check_rules(config["security"]["redact_patterns"])
        checkup.append(Check("config", "warn" if config.notices else "ok",
                             "; ".join(config.notices) or "it can be read"))
    except HermesError as problem:
        return Checkup([*checkup, Check("config", "fail", str(problem))])
    memory.store.config = config
    try:
        HermesLite(root, config=config, store=memory.store)     # each looks at its settings
    except HermesError as problem:
        return Checkup([*checkup, Check("systems", "fail", str(problem))])
    if is_archive(memory.store):
        return _doctor_archive(memory.store, checkup)
    memory.take_notices()                          # of systems that had no key to read with
    try:
        keyless = config.env("HERMES_ENCRYPT").lower() in ("on", "1", "true") and not (
            config.env("HERMES_MASTER_KEY") or (root / ".master_key").exists())
        sealed = any(core.is_ciphertext(core.magic_bytes(path)) for path in root.glob("*.json"))
        cipher = None if keyless and not sealed else core.get_encryption(root, config)
        store = FileStore(root, config, cipher=cipher, clock=memory.store.clock,
                          is_read_only=True)
        store.progress = memory.store.progress
        checkup.append(_look(_check_key, store))
        store.refresh()
    except HermesError as problem:
        name = "records" if isinstance(problem, (DamagedData, StorageError)) else "key"
        mend = "repair" if isinstance(problem, DamagedData) else None
        return Checkup([*checkup, Check(name, "fail", str(problem), mend)])
    for check in (_check_records, _check_mirror, _check_search, _check_vectors, _check_tombstones,
                  _check_cold, _check_backups, _check_leftovers, _check_clock, _check_secrets):
        checkup.append(_look(check, store))
    return checkup


def _doctor_archive(store: FileStore, checkup: Checkup) -> Checkup:
    faults = store.faults()
    checkup.append(Check("records", "fail" if faults else "ok", "; ".join(faults) or
                         "the file is whole and the indexes fit", "repair" if faults else None))
    if not faults:
        back = {tombstone["id"] for tombstone in tombstones_of(store).values()} & {*store.ids()}
        checkup.append(Check("tombstones", "fail" if back else "ok",
                             f"{len(back)} forgotten memories are back" if back else
                             f"{len(tombstones_of(store))} forgotten texts stay away"))
        checkup += [_look(check, store) for check in (_check_cold, _check_backups,
                                                      _check_leftovers, _check_clock,
                                                      _check_secrets)]
    return checkup


def _look(check: Callable[..., Check], subject: object) -> Check:
    """Run one check; what the disk refuses is its result."""
    try:
        return check(subject)
    except OSError as problem:
        return Check(check.__name__.removeprefix("_check_"), "fail",
                     f"{problem.filename or 'a file'}: {problem.strerror or problem}")


# -- checks of any store ------------------------------------------------------

def _check_permissions(root: Path) -> Check:
    loose = loose_files(root)
    files = [path for path in loose if path.is_file()]
    if not loose:
        return Check("permissions", "ok", "nobody else may read the files")
    return Check("permissions", "fail" if files else "warn",
                 f"open to others: {core.pluralize(len(files), 'file')} and "
                 f"{core.pluralize(len(loose) - len(files), 'folder')}",
                 "repair")


def _check_disk(root: Path) -> Check:
    free, size = shutil.disk_usage(root).free, 0
    for path in root.rglob("*"):
        with contextlib.suppress(FileNotFoundError):           # another process removed it
            size += path.stat().st_size if path.is_file() else 0
    state = "fail" if free < size + 1_000_000 else "warn" if free < 3 * size + 50_000_000 else "ok"
    return Check("disk", state, f"{free:,} bytes are free, the store has {size:,}")


def _check_lock(root: Path) -> Check:
    lock = core.FileLock(root / ".lock")
    try:
        lock.acquire(timeout=0.5)
        lock.release()
        return Check("lock", "ok", "no other process holds the store")
    except HermesError as problem:
        return Check("lock", "warn", f"{problem}; what follows may be out of date")


def _check_backups(store: FileStore) -> Check:
    paths = sorted(store.root.glob("backups/*.bak")) + sorted(store.root.glob("backups/*.json"))
    paths = [path for path in paths if not path.name.startswith("tombstones.")]
    bad = [path.name for path in paths if store.read(f"backups/{path.name}") is None
           or maybe_json(store.read(f"backups/{path.name}")) is None]
    for path in sorted(store.root.glob("backups/*.tar.gz")):
        paths.append(path)
        try:
            check_archive(list(core.read_files(path)), path)
        except (OSError, ValueError):
            bad.append(path.name)
    tomorrow = f"{store.clock() + timedelta(days=1):%Y%m%d}"
    late = [path.name for path in paths if (found := re.search(r"[._](\d{8})[._]", path.name))
            and found[1] > tomorrow]
    if late:
        return Check("backups", "warn", f"{', '.join(late[:3])}: dated in the future by a wrong "
                     "clock, so it serves last; give it the right date in its name, or delete it")
    if bad:
        return Check("backups", "warn", f"{len(bad)} of {len(paths)} are damaged: "
                     f"{', '.join(bad[:3])}", "backup")
    count = core.pluralize(len(paths), "backup or archive", "backups and archives")
    return Check("backups", "ok", f"{count} can be read")


def _check_cold(store: FileStore) -> Check:
    """Read every file of cold storage and compare it with the index."""
    cold = ColdFiles(store)
    if cold.damaged:
        return Check("cold", "fail", f"{INDEX} cannot be read", "repair")
    faults = cold.faults()
    if not faults:
        return Check("cold", "ok", f"{core.pluralize(len(cold.memories), 'memory', 'memories')} in "
                     f"{core.pluralize(len(cold.files), 'file')} can be read")
    worst = "fail" if any(fault.state == "fail" for fault in faults) else "warn"
    commands = [fault.command for fault in faults if fault.command]
    return Check("cold", worst, "; ".join(fault.says for fault in faults[:3]),
                 commands[0] if commands else None)


def _check_leftovers(store: FileStore) -> Check:
    left = len(leftovers(store.root))
    aside = [name for name, _ in files_of(store.root)
             if (".damaged-" in name or "/rejected_" in name) and not DERIVED.fullmatch(name)]
    said = ([f"{left} temporary files or damaged indexes"] if left else []) + (
        [f"{len(aside)} damaged files set aside, such as {aside[0]}: look, then delete"]
        if aside else [])
    return Check("leftovers", "warn" if said else "ok", "; ".join(said) or "there are none",
                 "repair" if left else None)


def _check_clock(store: FileStore) -> Check:
    soon, odd, late = store.clock() + timedelta(days=1), 0, 0
    for each in store:
        moment = core.parse_time(each.created_at)
        odd, late = odd + (moment is None), late + (moment is not None and moment > soon)
    said = [f"{count} memories are {what}" for count, what in (
        (odd, "of unreadable date"), (late, "dated in the future; is the clock right?")) if count]
    return Check("clock", "warn" if said else "ok", "; ".join(said) or "every date can be right")


def _check_secrets(store: FileStore) -> Check:
    memory = HermesLite(store.root, config=store.config, store=store)
    found = scrub(memory, dry_run=True)
    if not found.changed:
        return Check("secrets", "ok", "today's rules find none in what is stored")
    return Check("secrets", "fail", f"today's rules find some in {len(found.changed)} memories "
                 f"and files, such as {found.changed[0][0]}", "scrub")


# -- checks of a store of files -----------------------------------------------

def _check_key(store: FileStore) -> Check:
    """Look for plain files in an encrypted store, and for files under an older key."""
    if store.cipher is None:
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
    back = store.tombstones.ids() & set(store.ids())
    said = [*store.notices, *([f"{len(back)} forgotten memories are back"] if back else ())]
    bad = sum(not _is_entry(store, memory_id) for memory_id in store.ids())
    if bad:
        said.append(f"{bad} entries cannot be read")
    return Check("records", "fail" if said else "ok",
                 "; ".join(said) or f"{len(store)} memories can be read",
                 "repair" if said else None)


def _is_entry(store: FileStore, memory_id: str) -> bool:
    try:
        store.get(memory_id)
        return True
    except ValueError:
        return False


def _check_mirror(store: FileStore) -> Check:
    missing, returned = mirror_gaps(store, store.ids())
    pending = store.mirror.pending
    missing = [memory_id for memory_id in missing if memory_id not in pending]
    known = set(store.ids())
    other = sum(path.stem not in known for path in store.root.glob("store/*.md"))
    said = [f"{count} {what}" for count, what in (
        (len(missing), "memories have no Markdown file"),
        (len(returned), "files of forgotten memories are back"),
        (other - len(returned), "files have no record")) if count]
    return Check("mirror", "fail" if returned else "warn" if said else "ok",
                 "; ".join(said) or "it agrees with the records",
                 "repair" if missing or returned else None)


def _check_search(store: FileStore) -> Check:
    """Load every index that claims to fit; look for ids in the graph that no record has."""
    bad = []
    for name, part in store.search_state.indexes.items():
        if part.is_valid and not part.can_be_read(store.cipher):
            bad.append(name)
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        graph = core.GraphStore.load(store.read("graph.json") or b"")
        strangers = graph.ids() - set(store.ids())
        if strangers - store.search_state.graph.changed.keys():
            bad.append("graph: unknown ids")
    return Check("search", "fail" if bad else "ok", f"cannot be used: {', '.join(bad)}" if bad else
                 "the indexes fit the records", "reindex" if bad else None)


def _check_vectors(store: FileStore) -> Check:
    path = store.root / "vectors.json"
    if path.exists():
        content = maybe_json(store.read("vectors.json") or b"")
        if not isinstance(content, dict) or not isinstance(content.get("vectors"), dict):
            return Check("vectors", "fail", "vectors.json cannot be read", "reindex")
        if strange := store.strange_vectors():
            return Check("vectors", "warn", f"{len(strange)} vectors have no memory", "reindex")
    return Check("vectors", "ok", "the cache fits" if path.exists() else "there is no cache")


def _check_tombstones(store: FileStore) -> Check:
    names = ("tombstones.json", "backups/tombstones.bak")
    found = [maybe_json(data) if (data := store.read(name)) else None for name in names]
    if not store.tombstones.by_mark and not any((store.root / name).exists() for name in names):
        return Check("tombstones", "ok", "nothing was forgotten yet")
    bad = [name for name, content in zip(names, found) if not isinstance(content, dict)]
    return Check("tombstones", ("ok", "warn", "fail")[len(bad)],
                 f"cannot be read: {', '.join(bad)}" if bad else
                 f"{len(store.tombstones.by_mark)} forgotten memories stay away", "repair" if bad else None)


OPERATIONS = (
    Operation("doctor", "check the store and say what mends it", doctor, (), show, open=_bare),
)

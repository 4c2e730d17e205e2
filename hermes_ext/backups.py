"""Backups: everything that a store needs in one file, checked, and brought back.

    hermes_lite.py backup [FILE]                hermes_lite.py backup --verify [FILE]
    hermes_lite.py restore FILE --dry-run       hermes_lite.py restore FILE --with-forgotten

backup   a tar.gz, 0600. In it: the records with the journal folded in, tombstones, vectors,
         archives of prune, config.yaml, rooms, the Markdown mirror, files of systems, and last
         MANIFEST.json, {"version": 1, "made_at", "memories", "tombstones", "encrypted",
         "files": {name: {"bytes", "sha256"}}}. Not in it: keys, .env, older backups, what can
         be made anew. Of an encrypted store the files stay sealed and the mirror is left out.
restore  takes such a file, an auto_index.json.*.bak or a prune_*.json. The first two replace
         all records, an archive of prune adds its own. Everything is read, checked, redacted
         and compared first; then one transaction brings the records over, after a backup
         (backups/before_restore_*.tar.gz) of what was there. What a person has forgotten is
         left out and counted, unless --with-forgotten. Other files come back only where there
         are none. A second run changes nothing.

Of an archive such a file holds the records. `backup NAME.db` copies memory_archive.db itself,
vectors and tombstones with it, by SQLite's backup: whole also while other processes have it open,
and without being held in memory. Put in the place of memory_archive.db it is the store; `restore`
takes its records. Both hold the store's lock meanwhile: every other process waits, or gets
Locked. A tar.gz is held in memory whole.
"""
from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import hermes_lite as core
from hermes_ext.workshop import (KEYS, SEALED, Scrubber, check_archive, edit_entries, file_store,
                                 files_of, is_archive, is_records, keys_of, show, steps, tombs_of,
                                 write_archive)
from hermes_lite import (ConfigError, DamagedData, FileStore, HermesLite, Memory, NotFound,
                         Operation, Param, StorageError, UsageError)

__all__ = ["Copy", "OPERATIONS", "Restored", "backup", "restore", "verify"]


# -- making and checking one --------------------------------------------------

@dataclass(frozen=True, slots=True)
class Copy(core._Record):
    """A backup as it lies on disk; `problems` are sentences, none for a good one."""
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
        yield (f"{self.file}: {core.counted(self.memories, 'memory', 'memories')}, "
               f"{core.counted(self.tombstones, 'tombstone')}, "
               f"{core.counted(self.files, 'file')}, {self.bytes:,} bytes"
               f"{', encrypted' * self.encrypted}{'' if self.problems else ', whole'}")
        yield from self.problems


def backup(memory: HermesLite, file: str | os.PathLike | None = None) -> Copy:
    """Write everything needed to *file* (default backups/manual_*.tar.gz), then read it back.

    UsageError when *file* exists; DamagedData when what was written does not read back. Of an
    archive, a *file* that ends in .db is a copy of memory_archive.db.
    """
    store = file_store(memory)
    if file and Path(file).suffix == ".db" and not is_archive(store):
        raise UsageError(f"{file}: only an archive can be copied to a .db file; leave .db out")
    with store.transaction():
        path = Path(file) if file else _free_name(store, "manual")
        if path.exists():
            raise UsageError(f"{path} exists; give another name or move it away")
        core.make_folder(path.absolute().parent)
        if path.suffix != ".db":
            write_archive(store, path, _contents(store, beside=path))
    if path.suffix == ".db":                       # SQLite does not copy inside a transaction
        store.copy_to(path)
    copy = verify(memory, path)
    if copy.problems:
        raise DamagedData(f"{path} does not read back: {copy.problems[0]}")
    return copy


def _free_name(store: FileStore, kind: str) -> Path:
    stamp = store.clock().strftime("%Y%m%d_%H%M%S")
    names = (f"{kind}_{stamp}{f'-{n}' if n > 1 else ''}.tar.gz" for n in range(1, 10_000))
    return next(path for name in names if not (path := store.root / "backups" / name).exists())


def _contents(store: FileStore, beside: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of what a backup holds, sealed as on disk; the records first."""
    rows = (core.to_json(each.entry()) for each in store)
    yield "index.json", core.seal(core._join_rows(rows), store.cipher)
    if tombs_of(store):
        yield "tombstones.json", core.tombs_file(*store.tombs())
    left_out = (r"(index|graph|tombstones)\.json|index\.journal|\.search/.*|.*\.damaged-.*"
                r"|backups/(?!prune_|rejected_).*|\.vector_backend.*|\.state_records\.json"
                + (r"|store/.*" if store.cipher else ""))
    for name, path in steps(store, "backing up", files_of(store.root)):
        if not re.fullmatch(left_out, name) and path != beside:
            yield name, path.read_bytes()


def verify(memory: HermesLite, file: str | os.PathLike | None = None) -> Copy:
    """Read a backup whole (default: the newest one made by hand) and tell what is in it.

    Checks names, sizes, checksums and counts, and every record. NotFound without a file.
    """
    store = file_store(memory)
    now = store.clock().timestamp() + 86_400       # what a wrong clock has dated comes first

    def age(path: Path) -> tuple[bool, float]:
        moment = path.stat().st_mtime
        return moment <= now, moment
    made = sorted(store.root.glob("backups/manual_*.tar.gz"), key=age)
    if file is None and not made:
        raise NotFound("there is no backup made by hand; `backup` makes one")
    path = Path(file) if file else made[-1]
    try:
        held = _read_copy(memory, path)
    except DamagedData as problem:
        return Copy(str(path), 0, 0, 0, path.stat().st_size, False, None, (str(problem),))
    wrong = [f"{held.damaged} entries in it cannot be read"] if held.damaged else []
    return Copy(str(path), len(held.memories), len(held.tombs),
                max(1, len(held.files)), path.stat().st_size, held.encrypted, held.made_at,
                tuple(wrong))


# -- reading one --------------------------------------------------------------

@dataclass
class _Held:
    """What a backup holds, read and checked, in memory."""
    memories: dict[str, Memory]
    tombs: Mapping[str, dict[str, str]] = field(default_factory=dict)
    tomb_key: str = ""
    damaged: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)
    encrypted: bool = False
    made_at: str | None = None
    is_part: bool = False                             # an archive of prune: some, not all


def _read_copy(memory: HermesLite, path: Path) -> _Held:
    """Read any kind of backup; DamagedData when it is not whole, ConfigError without its key."""
    try:
        with open(path, "rb") as file:
            if file.read(15) == b"SQLite format 3":
                return _Held(*core.import_system("archive").read_copy(path))
        files = list(core.read_files(path))
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}; backups lie in {memory.root / 'backups'}"
                       ) from None
    except (IsADirectoryError, PermissionError) as problem:
        raise StorageError(f"cannot read {path}: {problem.strerror}") from None
    except (OSError, ValueError) as problem:
        raise DamagedData(f"{path} cannot be read: {problem}") from None
    sealed = any(core.is_ciphertext(data) for _, data in files)
    cipher = _any_cipher(memory) if sealed else None
    if files[0][0] == path.name and len(files) == 1:
        return _read_records(files[0][1], cipher, path)
    manifest = check_archive(files, path)
    content = dict(files)
    held = _read_records(content["index.json"], cipher, path)
    held.files, held.made_at = content, str(manifest.get("made_at"))
    try:
        tombs = core.from_json(content.get("tombstones.json", b'{"key": "", "tombstones": {}}'))
        held.tombs, held.tomb_key = {
            str(mark): {name: str(tomb[name]) for name in ("id", "why", "at")}
            for mark, tomb in tombs["tombstones"].items()}, str(tombs["key"])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DamagedData(f"{path}: tombstones.json in it cannot be read") from None
    if len(held.memories) + held.damaged != manifest.get("memories"):
        raise DamagedData(f"{path}: it holds {len(held.memories)} memories, its manifest says "
                          f"{manifest.get('memories')}")
    return held


def _read_records(data: bytes, cipher: core.Cipher | None, path: Path) -> _Held:
    """Read index.json, a daily backup or an archive of prune; one bad entry costs itself."""
    sealed = core.is_ciphertext(data)
    try:
        data = core.unseal(data, cipher)
    except ValueError:
        raise ConfigError(f"{path} is encrypted and no key here opens it; set HERMES_MASTER_KEY "
                          "(or HERMES_MASTER_KEY_OLD) to the key it was made with") from None
    try:
        content = core.from_json(data)
        is_part = isinstance(content, dict)
        entries = content["memories"] if is_part else content
        if not isinstance(entries, list):
            raise ValueError("no list of memories")
    except (ValueError, KeyError):
        raise DamagedData(f"{path} cannot be read: it is no whole list of memories") from None
    held = _Held({}, encrypted=sealed, is_part=is_part)
    for entry in entries:
        try:
            found = Memory.from_entry(entry)
            held.memories[found.id] = found
        except ValueError:
            held.damaged += 1
    return held


def _any_cipher(memory: HermesLite) -> core.Cipher | None:
    """Return the store's cipher, or one of the keys that lie about; None without any."""
    keys = keys_of(memory)
    return file_store(memory).cipher or (core.Cipher(*keys) if keys else None)


# -- bringing one back --------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Restored(core._Record):
    """What a restore did, or would do; `before` is the backup of what was there."""
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

    def lines(self) -> Iterator[str]:
        """Yield what a person should read."""
        verb = "would be " if self.dry_run else ""
        yield (f"{self.added} {verb}added, {self.changed} {verb}changed, {self.removed} "
               f"{verb}taken away, {self.same} the same")
        if self.forgotten:
            yield f"{self.forgotten} forgotten note{'s' * (self.forgotten > 1)} left out"
        if self.damaged:
            yield f"{self.damaged} damaged entries left out"
        for name in self.files:
            yield f"  {verb}put back: {name}"
        if self.before:
            yield f"what was there before is in {self.before}"


def restore(memory: HermesLite, file: str | os.PathLike, *, with_forgotten: bool = False,
            dry_run: bool = False) -> Restored:
    """Bring the records of a backup back; see the head of this module.

    Refused for an archive with unsafe names, DamagedData for a damaged one, ConfigError without
    its key: nothing is changed then.
    """
    store, held = file_store(memory), _read_copy(memory, Path(file))
    with contextlib.nullcontext() if dry_run else store.transaction():
        store.refresh()
        wanted, gone = _wanted(memory, held, with_forgotten)
        present = {m.id: m for m in store}
        added = [m for i, m in wanted.items() if i not in present]
        changed = [m for i, m in wanted.items() if i in present and _differs(m, present[i])]
        removed = [] if held.is_part else [i for i in present if i not in wanted]
        missing = _missing_files(memory, held, gone)
        plan = Restored(str(file), len(added), len(changed), len(removed),
                        len(wanted) - len(added) - len(changed), len(gone), held.damaged,
                        tuple(missing), dry_run=dry_run)
        if dry_run or not (added or changed or removed or missing):
            return plan
        before = _free_name(store, "before_restore")
        core.make_folder(before.parent)
        write_archive(store, before, _contents(store, beside=before))
        if {m.id for m in store} != _read_copy(memory, before).memories.keys():
            raise DamagedData(f"{before} does not hold what is there; nothing was changed")
        _merge_tombs(memory, held, wanted)
        for each in added + changed:
            store.lift(each.content, memory_id=each.id)
            store.put(each)
        for memory_id in removed:
            store.remove(memory_id, why=None)
        store.drop_vectors([each.id for each in changed])
        for name, data in missing.items():
            store.write(name, data) if SEALED.fullmatch(name) else _write_plain(store, name, data)
    return replace(plan, before=before.relative_to(memory.root).as_posix())


def _wanted(memory: HermesLite, held: _Held,
            with_forgotten: bool) -> tuple[dict[str, Memory], set[str]]:
    """Return the memories that come back, redacted by today's rules, and the ids left out.

    What prune took was not forgotten by a person: a restore may bring it back. Two agents may
    have said the same: what one forgot before the backup was made, or while the other's memory
    is still here, leaves the other's as it is.
    """
    store, scrubber = file_store(memory), Scrubber(memory)
    by_id = {tomb["id"]: tomb for tomb in tombs_of(store).values()}
    known = {tomb["id"] for tomb in held.tombs.values()}
    wanted, gone = {}, set()
    for memory_id, each in held.memories.items():
        clean = Memory.from_entry(scrubber.entry(each.entry()))
        tomb = by_id.get(memory_id)
        if tomb is None and store.get(memory_id) is None:
            tomb = store.forgotten(each.content) or store.forgotten(clean.content)
            tomb = None if tomb and tomb["id"] in known else tomb
        if tomb and not tomb["why"].startswith("pruned") and not with_forgotten:
            gone.add(memory_id)
        else:
            wanted[memory_id] = clean
    return wanted, gone


def _differs(one: Memory, two: Memory) -> bool:
    """Tell whether more than the counting of accesses differs."""
    return replace(one, access_count=0, last_accessed=None) != replace(
        two, access_count=0, last_accessed=None)


def _missing_files(memory: HermesLite, held: _Held, gone: set[str]) -> dict[str, bytes]:
    """Return the other files of an archive that are not there, plain and redacted."""
    known = {f"store/{memory_id}.md" for memory_id in gone | held.memories.keys()}
    store, found = file_store(memory), {}
    cipher = _any_cipher(memory) if held.encrypted else None
    forgotten = {tomb["id"] for tomb in tombs_of(store).values() if tomb["why"][:6] != "pruned"}
    scrub_file = Scrubber(memory).edit
    for name, data in held.files.items():
        if name in ("index.json", "tombstones.json", "MANIFEST.json", *known) or (
                KEYS.fullmatch(name) or (store.root / name).exists()):
            continue
        plain = core.unseal(data, cipher)
        if any(memory_id.encode() in plain for memory_id in forgotten) and is_records(name):
            plain = edit_entries(plain, lambda e: None if e.get("id") in forgotten else e, str)
        if PurePosixPath(name).stem not in forgotten:
            with contextlib.suppress(ValueError):         # no text: as it is
                plain = scrub_file(name, plain, True)
            found[name] = plain
    return found


def _write_plain(store: FileStore, name: str, data: bytes) -> None:
    core.make_folder((store.root / name).parent)
    core.write_atomic(store.root / name, data)


def _merge_tombs(memory: HermesLite, held: _Held, wanted: Mapping[str, Memory]) -> None:
    """Take over a backup's tombstones; those hashed under another key hold by their id."""
    store = file_store(memory)
    if not held.tombs:
        return
    key, tombs = store.tombs()
    key = key if tombs else held.tomb_key
    living = {core.tomb_mark(key, m.content) for m in (*store, *wanted.values())}
    ids = {*store.ids(), *wanted}
    fresh = {mark: {**tomb, "why": memory._clean(tomb["why"])} for mark, tomb in held.tombs.items()
             if mark not in tombs and mark not in living and tomb["id"] not in ids}
    store.set_tombs(key, {**fresh, **tombs})


# -- operations ---------------------------------------------------------------

def _backup(memory: HermesLite, *, file: str | None, verify: bool) -> Copy:
    return globals()["verify"](memory, file) if verify else backup(memory, file)


OPERATIONS = (
    Operation("backup", "write everything needed into one file", _backup, (
        Param("file", str, "the file (default: in backups/)", positional=True),
        Param("verify", bool, "only check a backup", False)), show, writes=True),
    Operation("restore", "bring the records of a backup back", restore, (
        Param("file", str, "a backup, a daily backup or an archive of prune", positional=True,
              required=True),
        Param("with_forgotten", bool, "bring back what was forgotten, too", False)), show,
              writes=True, destructive=True),
)

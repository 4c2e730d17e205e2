"""Backups: everything that a store needs in one file, checked, and brought back.

    hermes_lite.py backup [FILE]                hermes_lite.py backup --verify [FILE]
    hermes_lite.py restore FILE --dry-run       hermes_lite.py restore FILE --with-forgotten
    hermes_lite.py restore FILE --with-config   hermes_lite.py restore FILE --with-config --with-commands

backup   a tar.gz, 0600. In it: the records with the journal folded in, tombstones, vectors,
         archives of prune, config.yaml, rooms, the Markdown mirror, files of systems, and last
         MANIFEST.json, {"version": 1, "made_at", "memories", "tombstones", "encrypted",
         "files": {name: {"bytes", "sha256"}}}. Not in it: keys, .env, older backups, what can
         be made anew, cold files outside of the root. Of an encrypted store the files stay
         sealed and the mirror is left out.
restore  takes such a file, an auto_index.json.*.bak or a prune_*.json, by a path from the current
         folder or from the data root. The first two replace
         all records, an archive of prune adds its own. Everything is read, checked, redacted
         and compared first; then one transaction brings the records over, after a backup
         (backups/before_restore_*.tar.gz) of what was there. What a person has forgotten is
         left out and pluralize, unless --with-forgotten. Cold memories come back into cold
         storage, as records do. Other files come back only where there are none, and only
         those whose names this module knows; the rest is named. A second run changes nothing.

         config.yaml may run commands, so it is never put in force unasked: it is set aside as
         config.yaml.restored, and how it differs is shown. --with-config puts it in force; where
         it runs commands, calls webhooks or writes files these are listed, and it takes
         --with-commands, too. The state of `sync` does not come back: run `sync FOLDER` again.

Of an archive such a file holds the records. `backup NAME.db` copies memory_archive.db itself,
vectors and tombstones with it, by SQLite's backup: whole also while other processes have it open,
and without being held in memory. Put in the place of memory_archive.db it is the store; `restore`
takes its records. Both hold the store's lock meanwhile: every other process waits, or gets
Locked. A tar.gz is held in memory whole.
"""
from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import hermes_lite as core
from hermes_ext.cold_files import COLD_FILE, ColdFiles, moved_at, unpack
from hermes_ext.cold_files import INDEX as COLD_INDEX
from hermes_ext.maintenance.store_files import (KEYS, SEALED, Scrubber, check_archive, edit_entries, file_store,
                                 files_of, is_archive, is_cold, is_records, keys_of, show, steps,
                                 tombstones_of, write_archive)
from hermes_lite import (ConfigError, DamagedData, FileStore, HermesLite, Memory, NotFound,
                         Operation, Param, Refused, StorageError, UsageError)

__all__ = ["Copy", "OPERATIONS", "Restored", "backup", "restore", "verify"]

# The files beside records, tombstones, cold storage and config.yaml that a restore may write. A
# name is plain: one folder at most, nothing hidden, so that nothing is run or read as code.
_PLAIN_NAME = r"[^\W_][^/\\:*?\"<>|\x00-\x1f]{0,119}"
_RESTORED = re.compile(
    rf"(store|rooms)/{_PLAIN_NAME}\.md|vectors\.(json|f32)"
    r"|backups/(prune|rejected)_[\w-]+\.json|\.state_(?!sync\.|records\.)\w+\.json"
    r"|logs/(audit|rules)[\w.-]*\.(log|json)|\.audit_head")
_ASIDE = "config.yaml.restored"


# -- making and checking one --------------------------------------------------

@dataclass(frozen=True, slots=True)
class Copy(core.Record):
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
        yield (f"{self.file}: {core.pluralize(self.memories, 'memory', 'memories')}, "
               f"{core.pluralize(self.tombstones, 'tombstone')}, "
               f"{core.pluralize(self.files, 'file')}, {self.bytes:,} bytes"
               f"{', encrypted' * self.encrypted}{'' if self.problems else ', whole'}")
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
    yield "index.json", core.seal(core.join_rows(rows), store.cipher)
    if tombstones_of(store):
        yield "tombstones.json", core.seal(core.tombstones_file(*store.get_tombstones()), store.cipher)
    left_out = (r"(index|graph|tombstones)\.json|index\.journal|\.search/.*|.*\.damaged-.*"
                r"|backups/(?!prune_|rejected_).*|\.vector_backend.*|\.state_records\.json"
                r"|stb_snapshot\.json|config\.yaml\.restored"
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
    path = _existing(memory, file) if file else made[-1]
    try:
        held = _read_copy(memory, path)
    except DamagedData as problem:
        return Copy(str(path), 0, 0, 0, path.stat().st_size, False, None, (str(problem),))
    wrong = [f"{held.damaged} entries in it cannot be read"] if held.damaged else []
    return Copy(str(path), len(held.memories), len(held.tombstones),
                max(1, len(held.files)), path.stat().st_size, held.encrypted, held.made_at,
                tuple(wrong))


# -- reading one --------------------------------------------------------------

@dataclass
class _Held:
    """What a backup holds, read and checked, in memory."""
    memories: dict[str, Memory]
    tombstones: Mapping[str, dict[str, str]] = field(default_factory=dict)
    tombstone_key: str = ""
    damaged: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)
    encrypted: bool = False
    made_at: str | None = None
    is_part: bool = False                             # an archive of prune: some, not all
    cold: Mapping[str, list[Memory]] = field(default_factory=dict)     # of each cold file
    cold_names: frozenset[str] = frozenset()          # of cold files, the damaged ones too


def _existing(memory: HermesLite, file: str | os.PathLike) -> Path:
    """Return the path of a backup; a name such as prune prints is one in the data root."""
    inside = memory.root / file
    return inside if not Path(file).exists() and inside.exists() else Path(file)


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
    counted = len(held.memories) + held.damaged
    _read_cold(held, cipher)
    try:
        tombstones = core.from_json(core.unseal(content.get(
            "tombstones.json", b'{"key": "", "tombstones": {}}'), cipher))
        held.tombstones, held.tombstone_key = {
            str(mark): {name: str(tombstone[name]) for name in ("id", "why", "at")}
            for mark, tombstone in tombstones["tombstones"].items()}, str(tombstones["key"])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DamagedData(f"{path}: tombstones.json in it cannot be read") from None
    if counted != manifest.get("memories"):
        raise DamagedData(f"{path}: it holds {len(held.memories)} memories, its manifest says "
                          f"{manifest.get('memories')}")
    return held


def _read_cold(held: _Held, cipher: core.Cipher | None) -> None:
    """Read the cold files in an archive; one that is damaged counts as one damaged entry."""
    names = [name for name in held.files if name.startswith("cold/") and is_cold(name)
             and COLD_FILE.fullmatch(name.removeprefix("cold/"))]
    held.cold_names, held.cold = frozenset(names), {}
    for name in names:
        try:
            memories = unpack(core.unseal(held.files[name], cipher))
            held.cold[name.removeprefix("cold/")] = memories
        except ValueError:
            held.damaged += 1


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
class Restored(core.Record):
    """What a restore did, or would do; `before` is the backup of what was there.

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
        """Yield what a person should read."""
        verb = "would be " if self.dry_run else ""
        yield (f"{self.added} {verb}added, {self.changed} {verb}changed, {self.removed} "
               f"{verb}taken away, {self.same} the same")
        if self.forgotten:
            yield f"{self.forgotten} forgotten note{'s' * (self.forgotten > 1)} left out"
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
        if not self.config:
            return
        if self.with_config:
            yield f"config.yaml {verb}replaced; it differs from the one before:"
        else:
            yield (f"its config.yaml differs and is not in force, it {verb}set aside as "
                   f"{_ASIDE}; --with-config puts it in force:")
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
    store, held = file_store(memory), _read_copy(memory, _existing(memory, file))
    cold = ColdFiles(store)
    config = _config_of(memory, held)
    if with_config and not dry_run:
        _check_config(config, with_commands=with_commands)
    with contextlib.nullcontext() if dry_run else _both_locks(cold, store):
        store.refresh()
        sift = _Sift(memory, held, with_forgotten)
        wanted = sift.kept(held.memories.values())
        present = {m.id: m for m in store}
        added = [m for i, m in wanted.items() if i not in present]
        changed = [m for i, m in wanted.items() if i in present and _differs(m, present[i])]
        removed = [] if held.is_part else [i for i in present if i not in wanted]
        cold_back = _cold_back(held, sift, cold, wanted.keys() | (present.keys() - {*removed}))
        appended = _appended(memory.config["systems"], config if with_config else None)
        missing, unknown = _missing_files(memory, held, sift.gone, appended)
        is_new_config = config is not None and not config.is_done(with_config)
        plan = Restored(str(file), len(added), len(changed), len(removed),
                        len(wanted) - len(added) - len(changed), len(sift.gone), held.damaged,
                        tuple(missing), dry_run=dry_run,
                        cold=sum(len(memories) for _, memories in cold_back),
                        elsewhere=_places_elsewhere(memory, held), unknown=tuple(unknown),
                        config=config.diff if config else (),
                        commands=config.commands if config else (), with_config=with_config)
        if dry_run or not (added or changed or removed or missing or cold_back or is_new_config):
            return plan
        before = _free_name(store, "before_restore")
        core.make_folder(before.parent)
        write_archive(store, before, _contents(store, beside=before))
        if {m.id for m in store} != _read_copy(memory, before).memories.keys():
            raise DamagedData(f"{before} does not hold what is there; nothing was changed")
        if cold_back:                                  # before records go: a kill doubles at worst
            cold.rewrite(lambda each: each, (), add=cold_back, place="cold")
        _merge_tombstones(memory, held, wanted)
        for each in added + changed:
            store.remove_tombstone(each.content, memory_id=each.id)
            store.put(each)
        for each in (m for _, memories in cold_back if with_forgotten for m in memories):
            store.remove_tombstone(each.content, memory_id=each.id)
        for memory_id in removed:
            store.remove(memory_id, why=None)
        store.drop_vectors([each.id for each in changed])
        for name, data in missing.items():
            store.write(name, data) if SEALED.fullmatch(name) else _write_plain(store, name, data)
        if is_new_config:
            _write_plain(store, "config.yaml" if with_config else _ASIDE, config.data)
    return replace(plan, before=before.relative_to(memory.root).as_posix())


@contextlib.contextmanager
def _both_locks(cold: ColdFiles, store: FileStore) -> Iterator[None]:
    """Hold the lock of cold storage, then that of the store."""
    with cold.locked(), store.transaction():
        yield


class _Sift:
    """Lets through, redacted by today's rules, what was not forgotten; `gone` are the other ids.

    What prune took was not forgotten by a person: a restore may bring it back. Two agents may
    have said the same: what one forgot before the backup was made, or while the other's memory
    is still here, leaves the other's as it is.
    """

    def __init__(self, memory: HermesLite, held: _Held, with_forgotten: bool) -> None:
        self._memory, self._store = memory, file_store(memory)
        self._scrubber = Scrubber(memory)
        self._by_id = {tombstone["id"]: tombstone for tombstone in tombstones_of(self._store).values()}
        self._known = {tombstone["id"] for tombstone in held.tombstones.values()}
        self._with_forgotten = with_forgotten
        self.gone: set[str] = set()

    def kept(self, memories: Iterable[Memory]) -> dict[str, Memory]:
        """Return {id: memory} of those that may come back."""
        kept = {}
        for each in memories:
            if self._is_blocked(each):
                continue
            clean = Memory.from_entry(self._scrubber.entry(each.entry()))
            tombstone = self._tombstone_of(each, clean)
            if tombstone and not tombstone["why"].startswith("pruned") and not self._with_forgotten:
                self.gone.add(each.id)
            else:
                kept[each.id] = clean
        return kept

    def _is_blocked(self, each: Memory) -> bool:
        try:
            self._memory.redactor.check_content(each)
        except Refused:
            self._memory.notices.append(f"{each.id} is blocked by a content filter and left out")
            return True
        return False

    def _tombstone_of(self, each: Memory, clean: Memory) -> Mapping[str, str] | None:
        tombstone = self._by_id.get(each.id)
        if tombstone is None and self._store.get(each.id) is None:
            tombstone = self._store.forgotten(each.content) or self._store.forgotten(clean.content)
            tombstone = None if tombstone and tombstone["id"] in self._known else tombstone
        return tombstone


def _cold_back(held: _Held, sift: _Sift, cold: ColdFiles, taken: Collection[str]
               ) -> list[tuple[str, list[Memory]]]:
    """Return (moment of the move, memories) of what comes back into cold storage.

    What is in the store, or will be (*taken*), and what is cold here already is left out.
    """
    found: dict[str, list[Memory]] = {}
    seen = {*taken, *cold.memories}
    for name, memories in sorted(held.cold.items()):
        fresh = sift.kept(each for each in memories if each.id not in seen)
        seen.update(fresh)
        if fresh:
            found.setdefault(moved_at(name), []).extend(fresh.values())
    return list(found.items())


def _places_elsewhere(memory: HermesLite, held: _Held) -> tuple[str, ...]:
    """Return the places outside of the root that the backup's index of cold storage names.

    Nothing there is read, written or deleted: the backup may be a stranger's.
    """
    inside = {PurePosixPath(name).name for name in held.files if is_cold(name)}
    try:
        data = core.unseal(held.files.get(COLD_INDEX, b"{}"), _any_cipher(memory))
        files = core.from_json(data).get("files", {})
        places = {str(each["place"]) for name, each in files.items() if name not in inside}
    except (ValueError, LookupError, TypeError, AttributeError):
        return ()
    known = {each["place"] for each in ColdFiles(memory.store).files.values()}
    return tuple(sorted(places - known))


def _differs(one: Memory, two: Memory) -> bool:
    """Tell whether more than the counting of accesses differs."""
    return replace(one, access_count=0, last_accessed=None) != replace(
        two, access_count=0, last_accessed=None)


def _missing_files(memory: HermesLite, held: _Held, gone: set[str], appended: set[str]
                   ) -> tuple[dict[str, bytes], list[str]]:
    """Return the other files of an archive that are not there, plain and redacted, and the names
    of those that no store writes; *appended* are the files of rules that are in force."""
    special = ("index.json", "tombstones.json", "MANIFEST.json", "config.yaml", COLD_INDEX,
               *(f"store/{memory_id}.md" for memory_id in gone | held.memories.keys()))
    store, found, unknown = file_store(memory), {}, []
    cipher = _any_cipher(memory) if held.encrypted else None
    forgotten = {tombstone["id"] for tombstone in tombstones_of(store).values() if tombstone["why"][:6] != "pruned"}
    scrub_file = Scrubber(memory).edit
    for name, data in held.files.items():
        if name in special or name in held.cold_names:
            continue
        if not _RESTORED.fullmatch(name) and name not in appended:
            unknown += [] if KEYS.fullmatch(name) else [name]
            continue
        if (store.root / name).exists():
            continue
        plain = core.unseal(data, cipher)
        if any(memory_id.encode() in plain for memory_id in forgotten) and is_records(name):
            plain = edit_entries(plain, lambda e: None if e.get("id") in forgotten else e, str)
        if PurePosixPath(name).stem not in forgotten:
            with contextlib.suppress(ValueError):         # no text: as it is
                plain = scrub_file(name, plain, True)
            found[name] = plain
    return found, unknown


def _write_plain(store: FileStore, name: str, data: bytes) -> None:
    core.make_folder((store.root / name).parent)
    core.write_atomic(store.root / name, data)


def _merge_tombstones(memory: HermesLite, held: _Held, wanted: Mapping[str, Memory]) -> None:
    """Take over a backup's tombstones; those hashed under another key hold by their id."""
    store = file_store(memory)
    if not held.tombstones:
        return
    key, tombstones = store.get_tombstones()
    key = key if tombstones else held.tombstone_key
    living = {core.tombstone_fingerprint(key, m.content) for m in (*store, *wanted.values())}
    ids = {*store.ids(), *wanted}
    fresh = {mark: {**tombstone, "why": memory.redactor.redact_field(tombstone["why"])}
             for mark, tombstone in held.tombstones.items()
             if mark not in tombstones and mark not in living and tombstone["id"] not in ids}
    store.set_tombstones(key, {**fresh, **tombstones})


# -- config.yaml of a backup --------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Config:
    """The config.yaml of a backup that differs from the one here."""
    root: Path
    data: bytes
    diff: tuple[str, ...]
    commands: tuple[str, ...]

    def is_done(self, with_config: bool) -> bool:
        """Tell whether it is set aside already, where it is not to be put in force."""
        try:
            return not with_config and (self.root / _ASIDE).read_bytes() == self.data
        except OSError:
            return False


def _config_of(memory: HermesLite, held: _Held) -> _Config | None:
    """Return the config.yaml of a backup, redacted for the eye; None where it says nothing new."""
    data = held.files.get("config.yaml")
    path = memory.root / "config.yaml"
    try:
        here = path.read_bytes() if path.exists() else b""
    except OSError as problem:
        raise StorageError(f"cannot read {path}: {problem.strerror}") from None
    if data is None or data == here:
        return None
    old, new = (each.decode("utf-8", "replace").splitlines() for each in (here, data))
    lines = list(difflib.unified_diff(old, new, "config.yaml here", "config.yaml of the backup",
                                      lineterm="", n=1))
    diff = tuple(memory.redact(line)[0] for line in lines) or ("only line ends differ",)
    commands = tuple(memory.redact(sentence)[0] for sentence in _commands_in(data))
    return _Config(memory.root, data, diff, commands)


def _commands_in(data: bytes) -> Iterator[str]:
    """Yield, in words, what the rules of a config.yaml do outside of the store."""
    try:
        values = _read_yaml(data)
    except ValueError as problem:
        yield f"may run commands: {problem}"
        return
    verbs = {"run": "runs", "webhook": "sends memories to", "append": "writes memories into"}
    for name, rule in _rules_in(values):
        for key, verb in verbs.items():
            said = rule.get(key)
            if said is not None:
                words = shlex.join(map(str, said)) if isinstance(said, list) else str(said)
                yield f"({name}) {verb}: {words}"


def _read_yaml(data: bytes) -> object:
    """Return what a config.yaml says, unchecked; ValueError where it cannot be read."""
    try:
        import yaml
    except ImportError:
        raise ValueError("PyYAML is missing, so it was not read; pip install pyyaml") from None
    try:
        return yaml.safe_load(data.decode("utf-8-sig", "replace"))
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ValueError("it cannot be read") from None


def _rules_in(values: object) -> list[tuple[str, Mapping[str, object]]]:
    """Return (name, rule) of the rules in the settings of a config.yaml."""
    systems = values.get("systems") if isinstance(values, Mapping) else None
    rules = systems.get("rules") if isinstance(systems, Mapping) else None
    return [(str(name), rule) for name, rule in (rules or {}).items()
            if isinstance(rule, Mapping)] if isinstance(rules, Mapping) else []


def _appended(systems: object, config: _Config | None) -> set[str]:
    """Return the files in the root that rules write to, which a restore may put back."""
    every = _rules_in({"systems": systems})
    with contextlib.suppress(ValueError):
        every += _rules_in(_read_yaml(config.data)) if config else []
    names = {str(rule.get("append")) for _, rule in every}
    return {name for name in names if re.fullmatch(rf"{_PLAIN_NAME}\.(md|ics)", name)}


def _check_config(config: _Config | None, *, with_commands: bool) -> None:
    """Refuse a config.yaml that acts without a person's word, or that would not be accepted."""
    if config is None:
        return
    if config.commands and not with_commands:
        raise Refused("with the config.yaml of this backup a rule "
                      f"{'; a rule '.join(config.commands)}; add --with-commands if this is what "
                      "you want, nothing was changed", "commands")
    with tempfile.TemporaryDirectory() as folder:
        core.write_atomic(Path(folder) / "config.yaml", config.data, durable=False)
        core.check_rules(core.load_config(Path(folder), environ={})["security"]["redact_patterns"])


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
        Param("with_forgotten", bool, "bring back what was forgotten, too", False),
        Param("with_config", bool, "put its config.yaml in force", False),
        Param("with_commands", bool, "also where that runs commands", False)), show,
              writes=True, destructive=True),
)

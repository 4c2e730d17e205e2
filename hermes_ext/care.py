"""Care for a file store: check it, mend it, copy it, put a copy back, clean it, lock it, empty it.

    hermes_lite.py doctor                       hermes_lite.py repair --dry-run
    hermes_lite.py backup [FILE]                hermes_lite.py backup --verify [FILE]
    hermes_lite.py restore FILE --dry-run       hermes_lite.py scrub --dry-run
    hermes_lite.py reindex                      hermes_lite.py encrypt on|off|rotate
    hermes_lite.py forget ID --purge            hermes_lite.py forget --room events --yes

Each is a function of an open HermesLite: `doctor(memory)`, `restore(memory, file)` and so on.
They know the insides of a FileStore, as a workshop must, and what an archive offers for it; any
other store is refused. Of an archive `backup` holds the records and not the .db file, and `encrypt`
is refused; all else does the same.
What changes files holds the store's lock meanwhile: every other process waits, or gets Locked.
Nothing here sends anything anywhere, but `reindex` has missing vectors made by the configured
backend, as any write does.

doctor   looks and changes nothing. It also works where config.yaml or the key is broken. Each
         check is ok, warn or fail, and names the command that mends it; one fail makes exit
         code 1.
repair   closes modes, removes leftovers, writes missing Markdown, folds the journal and makes
         every index anew. Records that cannot be read are recovered as at any start of the
         store; what is damaged is set aside, and what is set aside stays.
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
scrub    applies today's redaction to what is stored: records, Markdown, backups, archives, files
         set aside, state files. It tells ids and labels. What is no text (a database of
         another system) is named, not changed.
encrypt  `on` and `off` also write HERMES_ENCRYPT into the root's .env, and bring every file over,
         backups and archives too. `rotate` makes a new .master_key and keeps the old one in
         .master_key.old: copies made elsewhere need it. With HERMES_MASTER_KEY, set the new key
         there and the old one in HERMES_MASTER_KEY_OLD, then rotate. Killed half-way, the store
         opens with what it has, and the same command goes on. Key files, tombstones (hashes
         without content), rooms, config.yaml and, unless encryption.markdown is false, the
         Markdown mirror stay readable.
forget   beside an id, selects by words, room, tags, agent, source and dates; a selection only shows its
         plan until --yes. --purge rewrites the backups and files set aside that still hold it.
         It does not reach copies outside of the root.

Memory: a file is held whole while it is rewritten, an archive with all files in it.
"""
from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import os
import re
import shutil
import tarfile
import time
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path, PurePosixPath

import hermes_lite as core
from hermes_lite import (ConfigError, DamagedData, FileStore, HermesError, HermesLite, Memory,
                         NotFound, Operation, Param, Refused, StorageError, UsageError,
                         other_wordings)

__all__ = ["OPERATIONS", "backup", "doctor", "encrypt", "forget", "reindex", "repair", "restore",
           "scrub", "verify"]

# (name, bytes, is inside an archive) -> new bytes, or None to drop the file
Change = Callable[[str, bytes, bool], "bytes | None"]
_KEYS = re.compile(r"\.master_key.*|\.key_check|\.personal_key|\.env|\.lock.*"
                   r"|memory_archive\.db(-wal|-shm)?|\.(migrate|rescue)/.*")
_SEALED = re.compile(r"index\.json.*|vectors\.(json|f32).*|graph\.json.*|\.search/.+"
                     r"|\.state_.+|backups/(auto_|prune_|rejected_).+")
_DERIVED = re.compile(r"(\.search/.+|graph\.json|vectors\.(json|f32))(\.damaged-.+)?")
_FOLDERS = ("store", "backups", "rooms", ".search")
_LEFTOVER = re.compile(r"\..+\.(\d+)\.[0-9a-f]{8}\.tmp")


# =============================================================================
# 1. Files of a store
# =============================================================================

def _store(memory: HermesLite) -> FileStore:
    if not hasattr(memory.store, "settle"):
        raise Refused("this command works on a store of files or an archive; use the tools of "
                      "your database", "not_files")
    return memory.store


def _is_archive(store: object) -> bool:
    return not isinstance(store, FileStore)


def _tombs(store: FileStore) -> dict[str, dict[str, str]]:
    return store.tombs()[1]


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield (name in the root, path) of every file but keys, locks and temporary ones.

    A link is followed only where the store itself would follow it, so that nothing else outside
    of the root is read or written.
    """
    linked = [root / name for name in _FOLDERS if (root / name).is_symlink()]
    for top in (root, *linked):
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                inside = path.relative_to(root).as_posix()
                if path.is_file() and not (_KEYS.fullmatch(inside) or _LEFTOVER.fullmatch(name)
                                           or path.is_symlink() and "/" in inside):
                    yield inside, path


def _leftovers(root: Path) -> list[Path]:
    """Return temporary files that nobody writes any more, and damaged files that were derived."""
    old = time.time() - 3600
    left = [path for path in sorted(root.rglob(".*.tmp"))
            if (found := _LEFTOVER.fullmatch(path.name)) and (
                not _is_alive(int(found[1])) or path.stat().st_mtime < old)]
    return left + [path for name, path in _files(root)
                   if ".damaged-" in name and _DERIVED.fullmatch(name)]


def _is_alive(pid: int) -> bool:
    if pid == os.getpid():                            # ours are gone when their write has ended
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _steps(store: FileStore, what: str, items: Iterable) -> Iterator:
    """Yield the items and tell the store's progress of each."""
    items = list(items)
    for done, item in enumerate(items, 1):
        yield item
        if store.progress:
            store.progress(what, done, len(items))


def _change_files(store: FileStore, what: str, change: Change, *,
                  dry_run: bool = False) -> Iterator[tuple[str, bool]]:
    """Pass every file, and every file inside an archive, through *change*.

    Yield (name, True) of each that changed, (name, False) of each that cannot be read, for
    which *change* raises ValueError; that one stays as it is.
    """
    for name, path in _steps(store, what, _files(store.root)):
        try:
            old = dict(core.read_files(path))
        except (OSError, ValueError):
            yield name, False
            continue
        packed, new = list(old) != [path.name], {}
        for inner, data in old.items():
            try:
                new[inner] = change(inner if packed else name, data, packed)
            except ValueError:
                new[inner] = data
                yield f"{name}: {inner}" if packed else name, False
        if new != old:
            if not dry_run:
                _write_changed(store, path, new, packed)
            yield name, True


def _write_changed(store: FileStore, path: Path, new: dict[str, bytes | None],
                   packed: bool) -> None:
    if packed:
        _write_archive(store, path, ((n, d) for n, d in new.items() if d is not None))
    elif new[path.name] is None:
        path.unlink()
    else:
        core.write_atomic(path, new[path.name])


def _write_archive(store: FileStore, path: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write a tar.gz whole, its manifest last; a manifest among *files* is made anew."""
    packed, listed, counts = io.BytesIO(), {}, {"memories": 0, "tombstones": 0}
    moment = store.clock()
    sealed = False
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=int(moment.timestamp())) as zipped, \
            tarfile.open(fileobj=zipped, mode="w") as archive:
        def add(name: str, data: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(data), 0o600, int(moment.timestamp())
            archive.addfile(member, io.BytesIO(data))

        for name, data in files:
            if name == "MANIFEST.json":
                continue
            add(name, data)
            listed[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            if name == "index.json":
                sealed = core.is_ciphertext(data)
                counts["memories"] = len(core.from_json(core.unseal(data, store.cipher)))
            elif name == "tombstones.json":
                counts["tombstones"] = len(core.from_json(data)["tombstones"])
        add("MANIFEST.json", core.to_json({"version": 1, "made_at": core.iso(moment), **counts,
                                           "encrypted": sealed, "files": listed}))
    core.write_atomic(path, packed.getvalue())


def _unsealed(store: FileStore, edit: Change) -> Change:
    """Make of an edit of plain bytes one that opens what is sealed, and seals it again."""
    def change(name: str, data: bytes, packed: bool) -> bytes | None:
        old = core.unseal(data, store.cipher)
        new = edit(name, old, packed)
        if new is None or new == old:
            return None if new is None else data
        return store.cipher.seal(new) if core.is_ciphertext(data) else new
    return change


def _is_records(name: str) -> bool:
    return bool(re.match(r"index\.json|backups/(auto_|prune_|rejected_)", name))


def _edit_entries(data: bytes, fix: Callable[[object], object | None],
                  text: Callable[[str], str]) -> bytes:
    """Apply *fix* to every entry of a JSON file of records, *text* to a file that is none."""
    content = _maybe_json(data)
    entries = content.get("memories") if isinstance(content, dict) else content
    if not isinstance(entries, list):
        return text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    fixed = [fix(entry) for entry in entries]
    if fixed == entries:
        return data
    kept = [entry for entry in fixed if entry is not None]
    return core.to_json({**content, "memories": kept}) if isinstance(content, dict) else (
        core._join_rows(map(core.to_json, kept)))


def _maybe_json(data: bytes) -> object:
    try:
        return core.from_json(data)
    except ValueError:
        return None


def _keys(memory: HermesLite) -> list[bytes]:
    env, root = memory.config.env, memory.root
    own = env("HERMES_MASTER_KEY").encode() or core._read_key(root / ".master_key")
    return [own] * bool(own) + (env("HERMES_MASTER_KEY_OLD").encode() + b"\n"
                                + core._read_key(root / ".master_key.old")).split()


@dataclass(frozen=True, slots=True)
class Done(core._Record):
    """What a command did, or would do, in sentences; `left` are files it could not bring over."""
    did: tuple[str, ...]
    left: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    dry_run: bool = False

    def lines(self) -> Iterator[str]:
        """Yield what a person should read."""
        for sentence in self.did or ("nothing to do",):
            yield f"would {sentence}" if self.dry_run else sentence
        for name in self.left:
            yield f"  could not be opened and stays as it is: {name}"


# =============================================================================
# 2. Scrub
# =============================================================================

@dataclass(frozen=True, slots=True)
class Scrubbed(core._Record):
    """What scrub hid: (memory id or file, labels); `left` are files that are no text."""
    changed: tuple[tuple[str, tuple[str, ...]], ...]
    left: tuple[str, ...] = ()
    dry_run: bool = False

    def lines(self) -> Iterator[str]:
        """Yield what a person should read."""
        for name, labels in self.changed:
            yield f"{name}: {', '.join(labels)}"
        verb = "would change" if self.dry_run else "changed"
        yield f"{len(self.changed)} memories and files {verb}"
        for name in self.left:
            yield f"  not looked into, it is no text or cannot be opened: {name}"


def scrub(memory: HermesLite, *, dry_run: bool = False) -> Scrubbed:
    """Apply today's redaction rules to everything that is stored."""
    store, scrubber, changed = _store(memory), _Scrubber(memory), []
    with contextlib.nullcontext() if dry_run else store.transaction():
        store.refresh()
        for each in _steps(store, "scrubbing records", store):
            fixed = scrubber.entry(each.entry())
            if fixed != each.entry():
                changed.append((each.id, tuple(scrubber.labels)))
                if not dry_run:
                    store.put(Memory.from_entry(fixed))
            scrubber.labels = {}
        key, tombs = store.tombs()
        clean = {mark: {**tomb, "why": scrubber.text(tomb["why"])} for mark, tomb in tombs.items()}
        if not dry_run and clean != tombs:
            store.set_tombs(key, clean)
    with contextlib.nullcontext() if dry_run else store.transaction():
        if not dry_run:
            _remove(_leftovers(store.root))
            store.drop_vectors([memory_id for memory_id, _ in changed])
            store.settle(rebuild=True)
        mine, left = {f"store/{memory_id}.md" for memory_id, _ in changed} | {"index.json"}, []
        for name, is_read in _change_files(store, "scrubbing files",
                                           _unsealed(store, scrubber.edit), dry_run=dry_run):
            if not is_read:
                left.append(name)
            elif name not in mine:
                changed.append((name, tuple(scrubber.labels)))
            scrubber.labels = {}
    return Scrubbed(tuple(changed), tuple(left), dry_run)


class _Scrubber:
    """Today's redaction over entries and files; remembers what it hid, never the secret."""

    def __init__(self, memory: HermesLite) -> None:
        self._memory, self._known = memory, {}
        self.labels: dict[str, None] = {}

    def text(self, text: str) -> str:
        """Redact a text; equal texts, of which backups are full, are looked at once."""
        if text not in self._known:
            self._known[text] = self._memory.redact(text)
        clean, labels = self._known[text]
        self.labels.update(dict.fromkeys(labels))
        return clean

    def entry(self, entry: object) -> object:
        """Redact the free fields of a record; new labels are added to `redacted`."""
        if not isinstance(entry, dict):
            return core._deep(entry, self.text)
        before, self.labels = self.labels, {}
        free = core._deep({k: v for k, v in entry.items() if k not in _FIXED}, self.text)
        fixed = {**{k: v for k, v in entry.items() if k in _FIXED}, **free}
        if fixed == entry:
            fixed = entry
        elif isinstance(entry.get("redacted", []), list):
            fixed["redacted"] = list(dict.fromkeys((*entry.get("redacted", []), *self.labels)))
        self.labels = {**before, **self.labels}
        return fixed

    def edit(self, name: str, data: bytes, packed: bool) -> bytes:
        """Redact one file; ValueError for what is no text."""
        if _DERIVED.fullmatch(name) or name in _UNTOUCHED or (
                name == "index.journal" and not packed):
            return data
        if name.startswith(("tombstones.", "backups/tombstones.")):
            return self._edit_tombs(data)
        if _is_records(name):
            return _edit_entries(data, self.entry, self.text)
        if name.endswith(".json") and isinstance(content := _maybe_json(data), dict):
            fixed = core._deep(content, self.text)
            return data if fixed == content else core.to_json(fixed)
        if _LOG.fullmatch(name):
            return b"".join(map(self._edit_line, data.splitlines(keepends=True)))
        return self._edit_text(data)

    def _edit_text(self, data: bytes) -> bytes:
        text = data.decode("utf-8")
        if "\0" in text:
            raise ValueError("no text")
        return self.text(text).encode()

    def _edit_line(self, line: bytes) -> bytes:
        """Redact each value of a line alone: `"cli pin", "what": …` names no PIN."""
        content = _maybe_json(line)
        if not isinstance(content, dict):
            return self._edit_text(line)
        fixed = core._deep(content, self.text)
        return line if fixed == content else core.to_json(fixed) + b"\n"

    def _edit_tombs(self, data: bytes) -> bytes:
        content = core.from_json(data)
        fixed = {mark: {**tomb, "why": self.text(tomb["why"])}
                 for mark, tomb in content["tombstones"].items()}
        if fixed == content["tombstones"]:
            return data
        body = {**content, "tombstones": fixed}
        body.pop("crc", None)
        return core.to_json({**body, "crc": zlib.crc32(core.to_json(body))})


_LOG = re.compile(r"logs/(audit|rules).*\.log")
# The manifest is made anew; redaction would take the patterns in config.yaml for secrets.
_UNTOUCHED = ("MANIFEST.json", "config.yaml")


_FIXED = ("id", "importance", "execution_verified", "access_count", "last_accessed",
          "created_at", "redacted", "supersedes")


# =============================================================================
# 3. Backup and restore
# =============================================================================

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

    UsageError when *file* exists; DamagedData when what was written does not read back.
    """
    store = _store(memory)
    with store.transaction():
        path = Path(file) if file else _free_name(store, "manual")
        if path.exists():
            raise UsageError(f"{path} exists; give another name or move it away")
        core.make_folder(path.absolute().parent)
        _write_archive(store, path, _contents(store, beside=path))
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
    if _tombs(store):
        yield "tombstones.json", core.tombs_file(*store.tombs())
    left_out = (r"(index|graph|tombstones)\.json|index\.journal|\.search/.*|.*\.damaged-.*"
                r"|backups/(?!prune_|rejected_).*|\.vector_backend.*"
                + (r"|store/.*" if store.cipher else ""))
    for name, path in _steps(store, "backing up", _files(store.root)):
        if not re.fullmatch(left_out, name) and path != beside:
            yield name, path.read_bytes()


def verify(memory: HermesLite, file: str | os.PathLike | None = None) -> Copy:
    """Read a backup whole (default: the newest one made by hand) and tell what is in it.

    Checks names, sizes, checksums and counts, and every record. NotFound without a file.
    """
    store = _store(memory)
    made = sorted(store.root.glob("backups/manual_*.tar.gz"), key=lambda p: p.stat().st_mtime_ns)
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


@dataclass
class _Held:
    """What a backup holds, read and checked, in memory."""
    memories: dict[str, Memory]
    damaged: int = 0
    tombs: Mapping[str, dict[str, str]] = field(default_factory=dict)
    tomb_key: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    encrypted: bool = False
    made_at: str | None = None
    is_part: bool = False                             # an archive of prune: some, not all


def _read_copy(memory: HermesLite, path: Path) -> _Held:
    """Read any kind of backup; DamagedData when it is not whole, ConfigError without its key."""
    try:
        files = list(core.read_files(path))
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}; backups lie in {memory.root / 'backups'}"
                       ) from None
    except (OSError, ValueError) as problem:
        raise DamagedData(f"{path} cannot be read: {problem}") from None
    sealed = any(core.is_ciphertext(data) for _, data in files)
    cipher = _any_cipher(memory) if sealed else None
    if files[0][0] == path.name and len(files) == 1:
        return _read_records(files[0][1], cipher, path)
    manifest = _check_archive(files, path)
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


def _check_archive(files: list[tuple[str, bytes]], path: Path) -> dict:
    """Hold an archive against its manifest; return that. A name that leads out is refused."""
    for name, _ in files:
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or re.search(r"[\\:\0]", name) or (
                parts.as_posix() != name):
            raise Refused(f"{path}: the name {name!r} in it leads out of the folder; this is no "
                          "backup of ours, nothing was changed", "unsafe_name")
    content = dict(files)
    try:
        manifest = core.from_json(content["MANIFEST.json"])
        listed = dict(manifest["files"])
        found = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                 for name, data in files if name != "MANIFEST.json"}
    except (KeyError, ValueError, TypeError):
        raise DamagedData(f"{path}: it has no manifest, so it is cut off or no backup of ours"
                          ) from None
    wrong = sorted(n for n in {*listed, *found} if listed.get(n) != found.get(n))
    if wrong or len(content) != len(files) or "index.json" not in content:
        raise DamagedData(f"{path}: {', '.join(wrong[:3]) or 'a file'} in it is not what the "
                          "manifest says")
    return manifest


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
    keys = _keys(memory)
    return _store(memory).cipher or (core.Cipher(*keys) if keys else None)


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
    store, held = _store(memory), _read_copy(memory, Path(file))
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
        _write_archive(store, before, _contents(store, beside=before))
        _merge_tombs(memory, held, wanted)
        for each in added + changed:
            store.lift(each.content, memory_id=each.id)
            store.put(each)
        for memory_id in removed:
            store.remove(memory_id, why=None)
        store.drop_vectors([each.id for each in changed])
        for name, data in missing.items():
            store.write(name, data) if _SEALED.fullmatch(name) else _write_plain(store, name, data)
    return replace(plan, before=before.relative_to(memory.root).as_posix())


def _wanted(memory: HermesLite, held: _Held,
            with_forgotten: bool) -> tuple[dict[str, Memory], set[str]]:
    """Return the memories that come back, redacted by today's rules, and the ids left out.

    What prune took was not forgotten by a person: a restore may bring it back.
    """
    store, scrubber = _store(memory), _Scrubber(memory)
    by_id = {tomb["id"]: tomb for tomb in _tombs(store).values()}
    wanted, gone = {}, set()
    for memory_id, each in held.memories.items():
        clean = Memory.from_entry(scrubber.entry(each.entry()))
        tomb = by_id.get(memory_id) or store.forgotten(each.content) or store.forgotten(
            clean.content)
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
    store, found = _store(memory), {}
    cipher = _any_cipher(memory) if held.encrypted else None
    forgotten = {tomb["id"] for tomb in _tombs(store).values() if tomb["why"][:6] != "pruned"}
    scrub_file = _Scrubber(memory).edit
    for name, data in held.files.items():
        if name in ("index.json", "tombstones.json", "MANIFEST.json", *known) or (
                _KEYS.fullmatch(name) or (store.root / name).exists()):
            continue
        plain = core.unseal(data, cipher)
        if any(memory_id.encode() in plain for memory_id in forgotten) and _is_records(name):
            plain = _edit_entries(plain, lambda e: None if e.get("id") in forgotten else e, str)
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
    store = _store(memory)
    if not held.tombs:
        return
    key, tombs = store.tombs()
    key = key if tombs else held.tomb_key
    living = {core.tomb_mark(key, m.content) for m in (*store, *wanted.values())}
    ids = {*store.ids(), *wanted}
    fresh = {mark: {**tomb, "why": memory._clean(tomb["why"])} for mark, tomb in held.tombs.items()
             if mark not in tombs and mark not in living and tomb["id"] not in ids}
    store.set_tombs(key, {**fresh, **tombs})


# =============================================================================
# 4. Forget
# =============================================================================

@dataclass(frozen=True, slots=True)
class Selection(core._Record):
    """What forget took, or would take; `texts` of the plan, in the order of `ids`.

    `purged` are the files rewritten, `backups` those in which an older copy still lies, `left`
    those that a purge could not rewrite.
    """
    ids: tuple[str, ...]
    texts: tuple[str, ...] = ()
    purged: tuple[str, ...] = ()
    backups: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    dry_run: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """A plan is refused until --yes; an empty one is not."""
        return Refused.exit_code if self.dry_run and self.ids else 0

    def lines(self) -> Iterator[str]:
        """Yield what a person should read."""
        for memory_id, text in zip(self.ids, self.texts):
            yield f"would go {memory_id}  {core._visible(text)}"
        for memory_id in () if self.dry_run else self.ids:
            yield f"forgotten {memory_id}"
        if self.dry_run:
            yield f"{len(self.ids)} would be forgotten; add --yes to do it"
        for name in self.purged:
            yield f"  rewritten without it: {name}"
        for name in self.backups:
            yield f"  an older copy is still in {name}; `forget ID --purge` takes it out"
        for name in self.left:
            yield f"  may still hold it and cannot be rewritten: {name}"


def forget(memory: HermesLite, *, id: str | None = None, room: str | None = None,
           query: str | None = None, tags: Iterable[str] = (), agent: str | None = None,
           source: str | None = None,
           since: str | None = None, until: str | None = None, reason: str | None = None,
           purge: bool = False, yes: bool = False) -> Selection:
    """Forget one id or a selection; with *purge*, out of every backup too.

    A selection without *yes* only shows what it takes. An id that was forgotten earlier can
    still be purged. NotFound for an unknown id.
    """
    store = _store(memory)
    filters = {"room": room, "query": query, "tags": tags or None, "agent": agent,
               "source": source, "since": since, "until": until}
    if bool(id) == any(value is not None for value in filters.values()):
        raise UsageError("give an id, or a selection: --query, --room, --tags, --agent, "
                         "--source, --since or --until")
    why = memory._clean(reason) if reason else "forgotten"
    if not (id or yes):
        chosen = _select(memory, **filters)
        return Selection(tuple(m.id for m in chosen), tuple(m.content for m in chosen),
                         dry_run=True)
    with store.transaction():
        if id:
            chosen = [] if purge and store.get(id) is None and store.is_taken(id) else [
                memory.get(id)]
        else:
            chosen = _select(memory, **filters)
        for each in chosen:
            store.remove(each.id, why=why, also=other_wordings(each.content))
    ids = {each.id for each in chosen} | ({id} if id else set())
    purged, left = _purge(store, ids) if purge else ([], [])
    held = sorted({name for each in ids for name in store.holding(each)} - {*left})
    memory.tell("forget", [each.id for each in chosen], why=why)
    warnings = [w for each in chosen for w in memory._call("after_forget", each, why)]
    return Selection(tuple(m.id for m in chosen), (), tuple(purged), tuple(held), tuple(left),
                     warnings=(*warnings, *memory.take_notices()))


def _select(memory: HermesLite, *, room: str | None, query: str | None,
            tags: Iterable[str] | None, agent: str | None, source: str | None,
            since: str | None, until: str | None) -> list[Memory]:
    """Return the memories, oldest first, that pass every filter; an unknown age passes no date."""
    words = set(core.tokenize_terms(query)) if query is not None else set()
    if query is not None and not words:
        raise UsageError("--query needs at least one word")
    end = memory.moment(until, "until")
    if end and len(until.strip()) in (8, 10):              # a bare date: its whole day
        end += timedelta(days=1, seconds=-1)
    if tags is not None and not core.tag_forms(tags):
        raise UsageError("--tags needs at least one tag")
    rows = memory.list(room=room, since=since, tags=tags or (), agent=agent)
    return [m for m in reversed(rows)
            if source in (None, m.source)
            and words <= set(core.tokenize_terms(m.content))
            and (since is None and end is None or core.parse_time(m.created_at))
            and (end is None or core.parse_time(m.created_at) <= end)]


def _purge(store: FileStore, ids: set[str]) -> tuple[list[str], list[str]]:
    """Rewrite every copy without these memories; return (names rewritten, names left)."""
    marks = {mark for mark, tomb in _tombs(store).items() if tomb["id"] in ids}

    def kept(entry: object) -> object | None:
        if not isinstance(entry, dict):
            return None if any(memory_id in str(entry) for memory_id in ids) else entry
        is_gone = entry.get("id") in ids or store._mark(str(entry.get("content"))) in marks
        return None if is_gone else entry

    def kept_lines(text: str) -> str:
        lines = text.splitlines(keepends=True)
        if len(lines) < 2 and any(memory_id in text for memory_id in ids):
            raise ValueError("one line holds it all")
        return "".join(line for line in lines if not any(i in line for i in ids))

    def edit(name: str, data: bytes, packed: bool) -> bytes | None:
        if not packed and name in ("index.json", "index.journal"):
            return data
        if _is_records(name):
            return _edit_entries(data, kept, kept_lines)
        if name.startswith("store/"):
            return None if PurePosixPath(name).stem in ids else data
        if not any(memory_id.encode() in data for memory_id in ids) or _HOLDS_IDS.fullmatch(name):
            return data
        if name == "vectors.f32":
            return core.without_vectors(data, ids)
        if name != "vectors.json":
            raise ValueError("a file of somebody else holds it")
        content = core.from_json(data)
        vectors = {i: vector for i, vector in content["vectors"].items() if i not in ids}
        marks = {i: mark for i, mark in content.get("marks", {}).items() if i in vectors}
        return core.to_json({**content, **({"marks": marks} if marks else {}),
                             "vectors": vectors})

    with store.transaction():
        _remove(_leftovers(store.root))
        found = list(_change_files(store, "purging", _unsealed(store, edit)))
    return [name for name, is_read in found if is_read], [n for n, ok in found if not ok]


# What may go on naming the id of a forgotten memory: it holds no text.
_HOLDS_IDS = re.compile(r"(backups/)?tombstones\..+|\.state_.+|\.search/.+|MANIFEST\.json"
                        r"|logs/(audit|rules).*\.log")


# =============================================================================
# 5. Encrypt
# =============================================================================

def encrypt(memory: HermesLite, mode: str) -> Done:
    """Switch encryption `on` or `off`, or `rotate` the key; goes on where a killed run stopped.

    ConfigError when the key is missing, MissingPackage without cryptography: nothing is
    touched then. Files that no key opens are named in `left`.
    """
    store = _store(memory)
    if _is_archive(store):
        raise ConfigError("the archive has no encryption; use an encrypted disk, or `migrate --to "
                          "files` first")
    if mode not in ("on", "off", "rotate"):
        raise UsageError(f"encrypt {mode!r}: use on, off or rotate")
    if store.cipher is None and mode != "on":
        if mode == "off":
            return Done(("encryption is off",))
        raise ConfigError("encryption is off, there is no key to rotate; run `encrypt on` first")
    with store.transaction():
        cipher = {"on": _first_cipher, "rotate": _next_cipher, "off": _same_cipher}[mode](memory)
        store.settle()
        store.cipher, target = cipher, None if mode == "off" else core.Cipher(_keys(memory)[0])
        if target:
            core.write_atomic(store.root / ".key_check", target.marks[0])
            _set_switch(store.root, "on")
        changed, left = _bring_over(store, target)
        if target is None:
            store.cipher = None
            core.write_atomic(store.root / ".key_check", b"off")
            _set_switch(store.root, "off")
        store._seen = None                            # index.json is another file now
    return Done((f"encryption is {'on' if target else 'off'}, {changed} files were brought over",),
                tuple(left), tuple(_after_words(memory, mode)))


def _same_cipher(memory: HermesLite) -> core.Cipher:
    return memory.store.cipher


def _first_cipher(memory: HermesLite) -> core.Cipher:
    """Return the store's cipher, made with a new key where there is none yet."""
    env = memory.config.env
    return memory.store.cipher or core.get_encryption(memory.root, types.SimpleNamespace(
        env=lambda name: "on" if name == "HERMES_ENCRYPT" else env(name)))


def _next_cipher(memory: HermesLite) -> core.Cipher:
    """Return a cipher of the new key and the old ones; a run that was killed has made it."""
    keys, root = _keys(memory), memory.root
    if memory.config.env("HERMES_MASTER_KEY"):
        if len(keys) < 2:
            raise ConfigError("the key comes from HERMES_MASTER_KEY; set the new key there and "
                              "the old one in HERMES_MASTER_KEY_OLD, then rotate again")
        return memory.store.cipher
    if len(keys) > 1 and _is_behind(root, keys):
        return memory.store.cipher
    new = base64.urlsafe_b64encode(os.urandom(32))
    core.write_atomic(root / ".master_key.old", b"\n".join(dict.fromkeys(keys)) + b"\n")
    core.write_atomic(root / ".master_key", new + b"\n")
    return core.Cipher(new, *keys)


def _is_behind(root: Path, keys: list[bytes]) -> bool:
    """Tell whether a file is sealed under an older key than the first; a damaged one is not."""
    newest, every = core.Cipher(keys[0]), core.Cipher(*keys)
    for _, path in _files(root):
        with contextlib.suppress(OSError, ValueError):
            if any(not _opens(newest, data) and _opens(every, data)
                   for _, data in core.read_files(path)):
                return True
    return False


def _opens(cipher: core.Cipher, data: bytes) -> bool:
    """Tell whether *data* is plain, or sealed under a key of this cipher."""
    try:
        core.unseal(data, cipher)
        return True
    except ValueError:
        return False


def _bring_over(store: FileStore, target: core.Cipher | None) -> tuple[int, list[str]]:
    """Seal every file under *target*, or open it where that is None; return (count, left)."""
    no_mirror = target is not None and not store.config["encryption"]["markdown"]

    def change(name: str, data: bytes, packed: bool) -> bytes | None:
        if name.startswith("store/") and target and (
                packed or no_mirror and PurePosixPath(name).stem in store._rows):
            return None
        if core.is_ciphertext(data):
            plain = core.unseal(data, store.cipher)
            return plain if target is None else data if _opens(target, data) else (
                target.seal(plain))
        return target.seal(data) if target and _SEALED.fullmatch(name) else data

    _remove(_leftovers(store.root))
    found = list(_change_files(store, "bringing over", change))
    left = [name for name, is_read in found if not is_read]
    for name in left if target is None else ():       # or HERMES_ENCRYPT=off would be refused
        if re.fullmatch(r"backups/auto_.+\.bak", name):
            core.set_aside(store.root / name)
    return len(found) - len(left), left


def _set_switch(root: Path, value: str) -> None:
    """Set HERMES_ENCRYPT in the root's .env; its other lines stay."""
    path = root / ".env"
    old = path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else ""
    lines = [line for line in old.splitlines()
             if not re.match(r"\s*(export\s+)?HERMES_ENCRYPT\s*=", line)]
    new = "\n".join([*lines, f"HERMES_ENCRYPT={value}", ""])
    core.write_atomic(path, new.encode("utf-8", "surrogateescape"))


def _after_words(memory: HermesLite, mode: str) -> Iterator[str]:
    """Say what a person has to do or to know after the switch."""
    value, own = ("off" if mode == "off" else "on"), memory.config.env("HERMES_MASTER_KEY")
    shell = os.environ.get("HERMES_ENCRYPT", value).strip().lower() or value
    if shell != value:
        yield (f"HERMES_ENCRYPT is {shell} in the environment, which wins over .env; set it to "
               f"{value} there")
    if mode == "rotate":
        yield (f"the old key stays in {'HERMES_MASTER_KEY_OLD' if own else '.master_key.old'}; "
               "backups that were copied elsewhere need it, take it away when there are none")
    elif mode == "on":
        if not own:
            yield ("the key is in .master_key and in no backup; keep a copy of it elsewhere, "
                   "without it nothing can be read")
        if memory.config["encryption"]["markdown"]:
            yield ("the Markdown mirror in store/ stays readable; set encryption.markdown to "
                   "false and run `encrypt on` again to have none")


# =============================================================================
# 6. Doctor
# =============================================================================

@dataclass(frozen=True, slots=True)
class Check(core._Record):
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


class _Examined(FileStore):
    """A store that is only looked at: nothing is recovered, set aside or written."""

    def _recover(self, damaged: bytes) -> bytes:
        raise DamagedData("index.json is " + ("damaged" if damaged else "missing"))

    def _keep_rejected(self, rejected: list) -> None:
        self.notices.append(f"{len(rejected)} damaged entries")

    def write(self, name: str, data: bytes) -> Path:
        raise StorageError(f"{name} is only looked at")

    def read(self, name: str) -> bytes | None:
        try:
            return core.unseal((self.root / name).read_bytes(), self.cipher)
        except (OSError, ValueError):
            return None

    def _read_tombs(self) -> None:
        self._tombs = {}
        for name in ("tombstones.json", "backups/tombstones.bak"):
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                content = core.from_json((self.root / name).read_bytes())
                self._tombs, self._tomb_key = content["tombstones"], content["key"]
                return


def _bare(root: str | None) -> HermesLite:
    """Open a memory without reading its config or key, so that a broken one can be looked at."""
    config, place = core.Config(), core.find_root(root)
    if (place / "memory_archive.db").exists() and not (place / "index.json").exists():
        return HermesLite(place, config=config)
    return HermesLite(place, config=config, store=_Examined(place, config))


def doctor(memory: HermesLite) -> Checkup:
    """Look at everything and change nothing (modes of .env and keys aside); see the module."""
    checkup, root = Checkup(), _store(memory).root
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
    if _is_archive(memory.store):
        return _doctor_archive(memory.store, checkup)
    try:
        keyless = config.env("HERMES_ENCRYPT").lower() in ("on", "1", "true") and not (
            config.env("HERMES_MASTER_KEY") or (root / ".master_key").exists())
        sealed = any(core.is_ciphertext(data) for data in map(core._head, root.glob("*.json")))
        cipher = None if keyless and not sealed else core.get_encryption(root, config)
        store = _Examined(root, config, cipher=cipher, clock=memory.store.clock)
        store.progress = memory.store.progress
        checkup.append(_look(_check_key, store))
        store.refresh()
    except HermesError as problem:
        name = "records" if isinstance(problem, (DamagedData, StorageError)) else "key"
        mend = "repair" if isinstance(problem, DamagedData) else None
        return Checkup([*checkup, Check(name, "fail", str(problem), mend)])
    for check in (_check_records, _check_mirror, _check_search, _check_vectors, _check_tombs,
                  _check_backups, _check_leftovers, _check_clock, _check_secrets):
        checkup.append(_look(check, store))
    return checkup


def _doctor_archive(store: FileStore, checkup: Checkup) -> Checkup:
    faults = store.faults()
    checkup.append(Check("records", "fail" if faults else "ok", "; ".join(faults) or
                         "the file is whole and the indexes fit", "repair" if faults else None))
    if not faults:
        back = {tomb["id"] for tomb in _tombs(store).values()} & {*store.ids()}
        checkup.append(Check("tombstones", "fail" if back else "ok",
                             f"{len(back)} forgotten memories are back" if back else
                             f"{len(_tombs(store))} forgotten texts stay away"))
        checkup += [_look(check, store) for check in (_check_backups, _check_leftovers,
                                                      _check_clock, _check_secrets)]
    return checkup


def _look(check: Callable[..., Check], subject: object) -> Check:
    """Run one check; what the disk refuses is its result."""
    try:
        return check(subject)
    except OSError as problem:
        return Check(check.__name__.removeprefix("_check_"), "fail",
                     f"{problem.filename or 'a file'}: {problem.strerror or problem}")


def _check_permissions(root: Path) -> Check:
    loose = _loose(root)
    files = [path for path in loose if path.is_file()]
    if not loose:
        return Check("permissions", "ok", "nobody else may read the files")
    return Check("permissions", "fail" if files else "warn",
                 f"open to others: {core.counted(len(files), 'file')} and "
                 f"{core.counted(len(loose) - len(files), 'folder')}",
                 "repair")


def _loose(root: Path) -> list[Path]:
    """Return files and folders that others may read; an empty file tells nothing."""
    if os.name != "posix":
        return []
    paths = [root, *sorted(root.rglob("*"))]       # config.yaml is a person's, with no secret
    return [p for p in paths if not p.is_symlink() and p.stat().st_mode & 0o077
            and p != root / "config.yaml"
            and (p.is_dir() or p.stat().st_size)]


def _check_disk(root: Path) -> Check:
    free = shutil.disk_usage(root).free
    size = sum(path.stat().st_size for _, path in _files(root))
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


def _check_key(store: FileStore) -> Check:
    """Look for plain files in an encrypted store, and for files under an older key."""
    if store.cipher is None:
        return Check("key", "ok", "encryption is off")
    plain = [name for name, path in _files(store.root)
             if _SEALED.fullmatch(name) and not core.is_ciphertext(path.read_bytes()[:5])]
    if plain:
        return Check("key", "fail", f"encryption is on and {len(plain)} files are not encrypted, "
                     f"such as {plain[0]}", "encrypt on")
    newest = types.SimpleNamespace(store=store, config=store.config, root=store.root)
    if _is_behind(store.root, _keys(newest)):
        return Check("key", "warn", "some files are sealed under an older key", "encrypt rotate")
    return Check("key", "ok", "encryption is on and the key opens every file")


def _check_records(store: FileStore) -> Check:
    back = {tomb["id"] for tomb in store._tombs.values()} & store._rows.keys()
    said = [*store.notices, *([f"{len(back)} forgotten memories are back"] if back else ())]
    bad = sum(1 for row in store._rows.values() if not _is_entry(row))
    if bad:
        said.append(f"{bad} entries cannot be read")
    return Check("records", "fail" if said else "ok",
                 "; ".join(said) or f"{len(store)} memories can be read",
                 "repair" if said else None)


def _is_entry(row: bytes) -> bool:
    try:
        Memory.from_entry(core.from_json(row))
        return True
    except ValueError:
        return False


def _check_mirror(store: FileStore) -> Check:
    missing, returned = _mirror_gaps(store, store.ids())
    pending = store._unmirrored.keys()
    missing = [memory_id for memory_id in missing if memory_id not in pending]
    other = sum(path.stem not in store._rows for path in store.root.glob("store/*.md"))
    said = [f"{count} {what}" for count, what in (
        (len(missing), "memories have no Markdown file"),
        (len(returned), "files of forgotten memories are back"),
        (other - len(returned), "files have no record")) if count]
    return Check("mirror", "fail" if returned else "warn" if said else "ok",
                 "; ".join(said) or "it agrees with the records",
                 "repair" if missing or returned else None)


def _mirror_gaps(store: FileStore, ids: Iterable[str]) -> tuple[list[str], list[Path]]:
    """Return the ids without their Markdown file, and the files of forgotten memories."""
    folder, wanted = store.root / "store", store.config["encryption"]["markdown"]
    missing = [i for i in ids if wanted and not (folder / f"{i}.md").exists()]
    gone = [folder / f"{tomb['id']}.md" for tomb in store._tombs.values()]
    return missing, [path for path in gone if path.exists() and path.stem not in store._rows]


def _check_search(store: FileStore) -> Check:
    """Load every index that claims to fit; look for ids in the graph that no record has."""
    bad = []
    for name, part in store._parts.items():
        if part.valid:
            try:
                part._load(core.unseal(part.path.read_bytes(), store.cipher))
            except (OSError, ValueError, LookupError, TypeError, AttributeError):
                bad.append(name)
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        graph = core.GraphStore.load(store.read("graph.json") or b"")
        strangers = graph._names.keys() - store._rows.keys()
        if strangers - store._parts["graph"].changed.keys():
            bad.append("graph: unknown ids")
    return Check("search", "fail" if bad else "ok", f"cannot be used: {', '.join(bad)}" if bad else
                 "the indexes fit the records", "reindex" if bad else None)


def _check_vectors(store: FileStore) -> Check:
    path = store.root / "vectors.json"
    if path.exists():
        content = _maybe_json(store.read("vectors.json") or b"")
        if not isinstance(content, dict) or not isinstance(content.get("vectors"), dict):
            return Check("vectors", "fail", "vectors.json cannot be read", "reindex")
        if strange := store.strange_vectors():
            return Check("vectors", "warn", f"{len(strange)} vectors have no memory", "reindex")
    return Check("vectors", "ok", "the cache fits" if path.exists() else "there is no cache")


def _check_tombs(store: FileStore) -> Check:
    names = ("tombstones.json", "backups/tombstones.bak")
    found = [_maybe_json(data) if (data := store.read(name)) else None for name in names]
    if not store._tombs and not any((store.root / name).exists() for name in names):
        return Check("tombstones", "ok", "nothing was forgotten yet")
    bad = [name for name, content in zip(names, found) if not isinstance(content, dict)]
    return Check("tombstones", ("ok", "warn", "fail")[len(bad)],
                 f"cannot be read: {', '.join(bad)}" if bad else
                 f"{len(store._tombs)} forgotten memories stay away", "repair" if bad else None)


def _check_backups(store: FileStore) -> Check:
    paths = sorted(store.root.glob("backups/*.bak")) + sorted(store.root.glob("backups/*.json"))
    paths = [path for path in paths if not path.name.startswith("tombstones.")]
    bad = [path.name for path in paths if store.read(f"backups/{path.name}") is None
           or _maybe_json(store.read(f"backups/{path.name}")) is None]
    for path in sorted(store.root.glob("backups/*.tar.gz")):
        paths.append(path)
        try:
            _check_archive(list(core.read_files(path)), path)
        except (OSError, ValueError):
            bad.append(path.name)
    if bad:
        return Check("backups", "warn", f"{len(bad)} of {len(paths)} are damaged: "
                     f"{', '.join(bad[:3])}", "backup")
    return Check("backups", "ok", f"{core.counted(len(paths), 'backup or archive', 'backups and archives')} "
                 "can be read")


def _check_leftovers(store: FileStore) -> Check:
    left = len(_leftovers(store.root))
    aside = [name for name, _ in _files(store.root)
             if (".damaged-" in name or "/rejected_" in name) and not _DERIVED.fullmatch(name)]
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


# =============================================================================
# 7. Repair
# =============================================================================

def repair(memory: HermesLite, *, dry_run: bool = False) -> Done:
    """Mend what can be mended without losing anything; see the head of this module."""
    store = _store(memory)
    if _is_archive(store):
        mends = list(_mends_of_archive(store))
        for _, mend in () if dry_run else _steps(store, "repairing", mends):
            mend()
        return Done(tuple(say for say, _ in mends), dry_run=dry_run,
                    warnings=tuple(memory.take_notices()))
    if dry_run:
        looked = _Examined(store.root, memory.config, cipher=store.cipher, clock=store.clock)
        try:
            looked.refresh()
        except DamagedData:
            return Done(("recover the records from mirror and backups", *(
                say for say, _ in _mends(looked, None))), dry_run=True)
        return Done(tuple(say for say, _ in _mends(looked, list(looked.ids()))), dry_run=True)
    with store.transaction():
        mends = list(_mends(store, list(store.ids())))
        for _, mend in _steps(store, "repairing", mends):
            mend()
    return Done(tuple(say for say, _ in mends), warnings=tuple(memory.take_notices()))


def _mends_of_archive(store: FileStore) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what there is to mend in an archive, and how."""
    loose, left, faults = _loose(store.root), _leftovers(store.root), store.faults()
    if loose:
        yield (f"close {len(loose)} files and folders to others",
               lambda: [os.chmod(p, 0o700 if p.is_dir() else 0o600) for p in loose])
    if left:
        yield f"remove {len(left)} leftover temporary files", lambda: _remove(left)
    if faults:
        yield "read the records of the damaged file into a new one", store.refresh
        yield "make every index anew", lambda: store.settle(rebuild=True)


def _mends(store: FileStore, ids: list[str] | None) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what there is to mend: a sentence, and the function that does it.

    *ids* is None where the records cannot be read yet.
    """
    loose, left = _loose(store.root), _leftovers(store.root)
    if loose:
        yield (f"close {len(loose)} files and folders to others",
               lambda: [os.chmod(p, 0o700 if p.is_dir() else 0o600) for p in loose])
    if left:
        yield f"remove {len(left)} leftover temporary files", lambda: _remove(left)
    missing, returned = _mirror_gaps(store, ids or ())
    if missing:
        yield (f"write {len(missing)} missing Markdown files",
               lambda: store._unmirrored.update(dict.fromkeys(missing)))
    if returned:
        yield (f"remove {len(returned)} Markdown files of forgotten memories",
               lambda: _remove(returned))
    yield "fold the journal and make every index anew", lambda: store.settle(rebuild=True)
    if ids is not None and store.strange_vectors():
        yield "drop vectors without a memory", lambda: store.drop_vectors(store.strange_vectors())


def reindex(memory: HermesLite) -> Done:
    """Make keyword, duplicate and vector indexes and the graph anew from the records."""
    store = _store(memory)
    with store.transaction():
        store.settle(rebuild=True)
        store.drop_vectors(store.strange_vectors())
        count = len(store)
    failed = memory.embed_pending()
    left = memory.vectors()["missing"]
    return Done((f"indexed {count} memories",), warnings=tuple(failed) or ((
        f"{left} vectors are still missing: another process makes them",) if left else ()))


# =============================================================================
# 8. Operations
# =============================================================================

def _backup(memory: HermesLite, *, file: str | None, verify: bool) -> Copy:
    return globals()["verify"](memory, file) if verify else backup(memory, file)


def _show(result: object) -> Iterable[str]:
    return result.lines()


_FILE = Param("file", str, "the file (default: in backups/)", positional=True)


OPERATIONS = (
    Operation("doctor", "check the store and say what mends it", doctor, (), _show, open=_bare),
    Operation("repair", "mend what can be mended without loss", repair, (), _show, writes=True,
              destructive=True),
    Operation("backup", "write everything needed into one file", _backup, (
        _FILE, Param("verify", bool, "only check a backup", False)), _show, writes=True),
    Operation("restore", "bring the records of a backup back", restore, (
        Param("file", str, "a backup, a daily backup or an archive of prune", positional=True,
              required=True),
        Param("with_forgotten", bool, "bring back what was forgotten, too", False)), _show,
              writes=True, destructive=True),
    Operation("scrub", "apply today's redaction to all that is stored", scrub, (), _show,
              writes=True, destructive=True),
    Operation("reindex", "make every index anew from the records", reindex, (), _show,
              writes=True),
    Operation("encrypt", "switch encryption on or off, or rotate the key", encrypt, (
        Param("mode", str, "on, off or rotate", positional=True, required=True),), _show,
              writes=True),
)

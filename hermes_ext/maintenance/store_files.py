"""Files, archives, keys and redaction of a store, for the systems of maintenance.

This module brings no command. It knows the insides of a FileStore and what an archive offers in
their place; any other store is refused. A system that changes files holds the store's lock
meanwhile. A file is held in memory while it is rewritten, a tar.gz with all files in it.
"""
from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import re
import stat
import tarfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import hermes_lite as core
from hermes_ext.cold_files import COLD_FILE, pack, unpack
from hermes_ext.cold_files import INDEX as COLD_INDEX
from hermes_lite import DamagedData, FileStore, HermesLite, Memory, Refused

__all__ = ["DERIVED", "Done", "KEYS", "SEALED", "Scrubber", "change_files", "check_archive", "drop_undo",
           "edit_cold", "edit_entries", "file_store", "files_of", "is_archive", "is_behind",
           "is_cold", "is_records", "keys_of", "leftovers", "loose_files", "maybe_json",
           "mirror_gaps", "opens", "remove_files", "show", "steps", "tombstones_of", "unsealed",
           "write_archive"]

# (name, bytes, is inside an archive) -> new bytes, or None to drop the file
Change = Callable[[str, bytes, bool], "bytes | None"]
KEYS = re.compile(r"\.master_key.*|\.key_check|\.personal_key|\.env|\.lock.*|\.server_.+|\.undo\.json"
                  r"|\.hook_context\.json|\.connections\.json|bin/.+|logs/hook.+"
                   r"|memory_archive\.db(-wal|-shm)?|\.(migrate|rescue)/.*")
SEALED = re.compile(r"index\.json.*|vectors\.(json|f32).*|graph\.json.*|\.search/.+"
                    r"|\.state_.+|backups/(auto_|prune_|rejected_|snapshot_).+|tombstones\.json.*"
                    r"|backups/tombstones\.bak.*|cold/cold_.+|cold_index\.json.*"
                    r"|stb_snapshot\.json.*")
DERIVED = re.compile(r"(\.search/.+|graph\.json|vectors\.(json|f32))(\.damaged-.+)?")
_FOLDERS = ("store", "backups", "rooms", ".search")
_LEFTOVER = re.compile(r"\..+\.(\d+)\.[0-9a-f]{8}\.tmp")
_LOG = re.compile(r"logs/(audit|rules|events).*\.log")
# The manifest is made anew, the index of cold storage holds no text, and redaction would take the
# patterns in config.yaml for secrets.
_UNTOUCHED = ("MANIFEST.json", "config.yaml", "config.yaml.restored", COLD_INDEX)
_FIXED = ("id", "importance", "execution_verified", "access_count", "last_accessed",
          "created_at", "redacted", "supersedes")


# -- files of a store ---------------------------------------------------------

def file_store(memory: HermesLite) -> FileStore:
    """Return the store; Refused where it is neither of files nor an archive."""
    if not hasattr(memory.store, "checkpoint"):
        raise Refused("this command works on a store of files or an archive; use the tools of "
                      "your database", "not_files")
    return memory.store


def is_archive(store: object) -> bool:
    return not isinstance(store, FileStore)


def tombstones_of(store: FileStore) -> dict[str, dict[str, str]]:
    return store.get_tombstones()[1]


def files_of(root: Path) -> Iterator[tuple[str, Path]]:
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
                if path.is_file() and not (KEYS.fullmatch(inside) or _LEFTOVER.fullmatch(name)
                                           or path.is_symlink() and "/" in inside):
                    yield inside, path


def drop_undo(root: Path) -> None:
    """Delete the texts that `undo` keeps of the last acts, and those for the next session."""
    for name in (".undo.json", ".hook_context.json"):
        with contextlib.suppress(FileNotFoundError):
            (root / name).unlink()


def leftovers(root: Path) -> list[Path]:
    """Return temporary files that nobody writes any more, and damaged files that were derived.

    Temporary is also what a killed `migrate` was writing: the store holds all of it.
    """
    left = [path for path in sorted(root.rglob(".*.tmp")) if _is_abandoned(path)]
    left += [path for path in sorted((root / ".migrate").rglob("*"))
             if path.is_file() and path.name != ".lock"]
    left += [path for name, path in files_of(root)
             if ".damaged-" in name and DERIVED.fullmatch(name)]
    return left


def _is_abandoned(path: Path) -> bool:
    """Tell whether a temporary file is of a process that has ended, or more than an hour old."""
    name = _LEFTOVER.fullmatch(path.name)
    if name is None:
        return False
    pid = int(name[1])
    return not _is_alive(pid) or path.stat().st_mtime < time.time() - 3600


def _is_alive(pid: int) -> bool:
    """Tell whether another process of this number runs, whoever started it."""
    if pid == os.getpid():                         # a write of this process has ended
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def remove_files(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def steps(store: FileStore, what: str, items: Iterable) -> Iterator:
    """Yield the items and report progress after each."""
    items = list(items)
    for done, item in enumerate(items, 1):
        yield item
        if store.progress:
            store.progress(what, done, len(items))


def change_files(store: FileStore, what: str, change: Change, *,
                  dry_run: bool = False) -> Iterator[tuple[str, bool]]:
    """Pass every file, and every file inside an archive, through *change*.

    Yield (name, True) of each that changed, (name, False) of each that cannot be read, for
    which *change* raises ValueError; that one stays as it is.
    """
    for name, path in steps(store, what, files_of(store.root)):
        try:
            old = dict(core.read_files(path))
        except (OSError, ValueError):
            yield name, False
            continue
        is_archive_file = list(old) != [path.name]
        new: dict[str, bytes | None] = {}
        for inner, data in old.items():
            try:
                new[inner] = change(inner if is_archive_file else name, data, is_archive_file)
            except ValueError:
                new[inner] = data
                yield f"{name}: {inner}" if is_archive_file else name, False
        if new != old:
            if not dry_run:
                _write_changed(store, path, new, is_archive_file=is_archive_file)
            yield name, True


def _write_changed(store: FileStore, path: Path, new: dict[str, bytes | None], *,
                   is_archive_file: bool) -> None:
    """Write a file, or the files inside an archive, anew; None deletes one."""
    if is_archive_file:
        kept = ((name, data) for name, data in new.items() if data is not None)
        write_archive(store, path, kept)
        return
    data = new[path.name]
    if data is None:
        path.unlink()
    else:
        core.write_atomic(path, data)


def unsealed(store: FileStore, edit: Change) -> Change:
    """Make of an edit of plain bytes one that opens what is sealed, and seals it again."""
    def change(name: str, data: bytes, packed: bool) -> bytes | None:
        old = core.unseal(data, store.files.cipher)
        new = edit(name, old, packed)
        if new is None:
            return None
        if new == old:
            return data
        return store.files.cipher.seal(new) if core.is_ciphertext(data) else new
    return change


def loose_files(root: Path) -> list[Path]:
    """Return files and folders that others may read; an empty file does not count."""
    if os.name != "posix":
        return []
    loose = []
    for path in [root, *sorted(root.rglob("*"))]:
        if path == root / "config.yaml":           # a person's own, with no secret in it
            continue
        with contextlib.suppress(FileNotFoundError):           # another process removed it
            status = path.lstat()
            is_open = status.st_mode & 0o077 and not stat.S_ISLNK(status.st_mode)
            is_empty_file = stat.S_ISREG(status.st_mode) and not status.st_size
            if is_open and not is_empty_file:
                loose.append(path)
    return loose


def mirror_gaps(store: FileStore, ids: Iterable[str]) -> tuple[list[str], list[Path]]:
    """Return the ids without their Markdown file, and the files of forgotten memories."""
    known = set(store.ids())
    missing = []
    if store.config["encryption"]["markdown"]:
        missing = [each for each in ids if not store.mirror.path(each).exists()]
    forgotten = [store.mirror.path(each) for each in sorted(store.tombstones.ids())]
    returned = [path for path in forgotten if path.exists() and path.stem not in known]
    return missing, returned


# -- archives and records -----------------------------------------------------

def write_archive(store: FileStore, path: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write a tar.gz whole, its manifest last; a manifest among *files* is made anew."""
    packed = io.BytesIO()
    listed = {}
    counts = {"memories": 0, "tombstones": 0}
    moment = store.clock()
    sealed = False
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=int(moment.timestamp())) as zipped, \
            tarfile.open(fileobj=zipped, mode="w") as archive:
        def add(name: str, data: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mode = 0o600
            member.mtime = int(moment.timestamp())
            archive.addfile(member, io.BytesIO(data))

        for name, data in files:
            if name == "MANIFEST.json":
                continue
            add(name, data)
            listed[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            if name == "index.json":
                sealed = core.is_ciphertext(data)
                counts["memories"] = len(core.from_json(core.unseal(data, store.files.cipher)))
            elif name == "tombstones.json":
                tombstones = core.from_json(core.unseal(data, store.files.cipher))
                counts["tombstones"] = len(tombstones["tombstones"])
        add("MANIFEST.json", core.to_json({"version": 1, "made_at": core.iso(moment), **counts,
                                           "encrypted": sealed, "files": listed}))
    core.write_atomic(path, packed.getvalue())


def check_archive(files: list[tuple[str, bytes]], path: Path) -> dict:
    """Hold an archive against its manifest; return that. A name that leads out is refused."""
    for name, _ in files:
        if not _stays_inside(name):
            raise Refused(f"{path}: the name {name!r} in it leads out of the folder; this is no "
                          "backup of ours, nothing was changed", "unsafe_name")
    content = dict(files)
    try:
        manifest = core.from_json(content["MANIFEST.json"])
        listed = dict(manifest["files"])
    except (KeyError, ValueError, TypeError):
        raise DamagedData(f"{path}: it has no manifest, so it is cut off or no backup of ours"
                          ) from None
    found = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
             for name, data in files if name != "MANIFEST.json"}
    wrong = sorted(name for name in {*listed, *found} if listed.get(name) != found.get(name))
    has_a_name_twice = len(content) != len(files)
    if wrong or has_a_name_twice or "index.json" not in content:
        raise DamagedData(f"{path}: {', '.join(wrong[:3]) or 'a file'} in it is not what the "
                          "manifest says")
    return manifest


def _stays_inside(name: str) -> bool:
    """Tell whether a name in an archive is a plain path below the folder, on every machine."""
    parts = PurePosixPath(name)
    is_plain = parts.as_posix() == name and not re.search(r"[\\:\0]", name)
    return is_plain and not parts.is_absolute() and ".." not in parts.parts


def is_cold(name: str) -> bool:
    """Tell whether a name, in the root or in a backup, is that of a cold file."""
    return COLD_FILE.fullmatch(PurePosixPath(name).name) is not None


def edit_cold(data: bytes, fix: Callable[[object], object | None]) -> bytes:
    """Apply *fix* to every entry of a cold file's plain bytes; ValueError when it is damaged."""
    before = [each.entry() for each in unpack(data)]
    after = [entry for entry in map(fix, before) if entry is not None]
    return data if after == before else pack(map(Memory.from_entry, after))


def is_records(name: str) -> bool:
    return bool(re.match(r"index\.json|backups/(auto_|prune_|rejected_|snapshot_)", name))


def edit_entries(data: bytes, fix: Callable[[object], object | None],
                  text: Callable[[str], str]) -> bytes:
    """Apply *fix* to every entry of a JSON file of records, *text* to a file that is none.

    The entries are the JSON itself, or stand in it under `memories`. One of which *fix* makes
    None goes.
    """
    content = maybe_json(data)
    is_mapping = isinstance(content, dict)
    entries = content.get("memories") if is_mapping else content
    if not isinstance(entries, list):
        return text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    fixed = [fix(entry) for entry in entries]
    if fixed == entries:
        return data
    kept = [entry for entry in fixed if entry is not None]
    if is_mapping:
        return core.to_json({**content, "memories": kept})
    return core.join_rows(map(core.to_json, kept))


def maybe_json(data: bytes) -> object:
    """Return what the bytes say, None where they are no JSON."""
    try:
        return core.from_json(data)
    except ValueError:
        return None


# -- keys ---------------------------------------------------------------------

def keys_of(memory: HermesLite) -> list[bytes]:
    """Return every key of the environment and the root, the newest first; [] without any."""
    env = memory.config.env
    root = memory.root
    newest = env("HERMES_MASTER_KEY").encode() or core.read_key_file(root / ".master_key")
    older = env("HERMES_MASTER_KEY_OLD").encode().split()
    older += core.read_key_file(root / ".master_key.old").split()
    return [newest, *older] if newest else older


def is_behind(root: Path, keys: list[bytes]) -> bool:
    """Tell whether a file is sealed under an older key than the first; a damaged one is not."""
    newest = core.Cipher(keys[0])
    any_key = core.Cipher(*keys)
    for _, path in files_of(root):
        with contextlib.suppress(OSError, ValueError):
            for _, data in core.read_files(path):
                if not opens(newest, data) and opens(any_key, data):
                    return True
    return False


def opens(cipher: core.Cipher, data: bytes) -> bool:
    """Tell whether *data* is plain, or sealed under a key of this cipher."""
    try:
        core.unseal(data, cipher)
        return True
    except ValueError:
        return False


# -- redaction and results ----------------------------------------------------

class Scrubber:
    """Today's redaction over entries and files.

    `labels` collects the labels of hidden secrets until `take_labels` is called.
    """

    def __init__(self, memory: HermesLite) -> None:
        self._memory = memory
        self._known: dict[str, tuple[str, tuple[str, ...]]] = {}       # text: (redacted, labels)
        self.labels: dict[str, None] = {}

    def take_labels(self) -> tuple[str, ...]:
        """Return the labels since the last call, in order, and begin anew."""
        labels = tuple(self.labels)
        self.labels = {}
        return labels

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
            return core.redact_nested(entry, self.text)
        labels_before = self.labels
        self.labels = {}
        fixed_fields = {name: value for name, value in entry.items() if name in _FIXED}
        free_fields = {name: value for name, value in entry.items() if name not in _FIXED}
        clean = {**fixed_fields, **core.redact_nested(free_fields, self.text)}
        known = entry.get("redacted", [])
        if clean == entry:
            clean = entry                          # with its order of fields
        elif isinstance(known, list):
            clean["redacted"] = list(dict.fromkeys((*known, *self.labels)))
        self.labels = {**labels_before, **self.labels}
        return clean

    def edit(self, name: str, data: bytes, packed: bool) -> bytes:
        """Redact one file; ValueError for what is no text. *packed*: it is inside an archive."""
        is_journal_in_use = name == "index.journal" and not packed
        if DERIVED.fullmatch(name) or name in _UNTOUCHED or is_journal_in_use:
            return data
        if name.startswith(("tombstones.", "backups/tombstones.")):
            return self._edit_tombstones(data)
        if is_cold(name):
            return edit_cold(data, self.entry)
        if is_records(name):
            return edit_entries(data, self.entry, self.text)
        if _LOG.fullmatch(name):
            return b"".join(map(self._edit_line, data.splitlines(keepends=True)))
        content = maybe_json(data) if name.endswith(".json") else None
        if isinstance(content, dict):
            fixed = core.redact_nested(content, self.text)
            return data if fixed == content else core.to_json(fixed)
        return self._edit_text(data)

    def _edit_text(self, data: bytes) -> bytes:
        """Redact a text in UTF-8; ValueError where it is none."""
        text = data.decode("utf-8")
        if "\0" in text:
            raise ValueError("no text")
        return self.text(text).encode()

    def _edit_line(self, line: bytes) -> bytes:
        """Redact each value of a line alone: `"cli pin", "what": …` names no PIN."""
        content = maybe_json(line)
        if not isinstance(content, dict):
            return self._edit_text(line)
        fixed = core.redact_nested(content, self.text)
        return line if fixed == content else core.to_json(fixed) + b"\n"

    def _edit_tombstones(self, data: bytes) -> bytes:
        """Redact the reasons in a file of tombstones, and set its checksum anew."""
        content = core.from_json(data)
        if not core.fits(content, {"tombstones": {str: {"why": str}}}):
            raise ValueError("no tombstones")
        fixed = {fingerprint: {**tombstone, "why": self.text(tombstone["why"])}
                 for fingerprint, tombstone in content["tombstones"].items()}
        if fixed == content["tombstones"]:
            return data
        body = {**content, "tombstones": fixed}
        body.pop("crc", None)
        return core.to_json({**body, "crc": zlib.crc32(core.to_json(body))})


@dataclass(frozen=True, slots=True)
class Done(core.Record):
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


def show(result: object) -> Iterable[str]:
    """Return the lines of a result, for the command line."""
    return result.lines()

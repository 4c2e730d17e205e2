"""The files and the index of cold storage: formats, write order, check and repair.

The system cold moves memories here and back; doctor, repair, scrub, forget, encrypt, backup and
restore reach cold files through this module.

    cold_YYYYMMDD_HHMMSS[-N].jsonl.gz   gzip of one entry a line, sealed in an encrypted store;
                                        the moment is that of the move, a rewrite keeps it
    cold_index.json, version 2          {"version", "place", "files": {name: {"place", "sha256"}},
                                        "memories": {id: [name, hex of uint32 hashes of words]},
                                        "pending": {name: place}}

`sha256` is of the gzip bytes before they are sealed, so that a file may be sealed under another
key without the index; version 1 kept that of the sealed bytes, which is still accepted.

A file is never changed in place. The order of a rewrite:

    1. index: the new names become `pending`
    2. new files are written and read back
    3. index: the new names hold, the old ones become `pending`
    4. old files are deleted

A kill leaves every memory in a file that the index names, and each file that nobody needs under
`pending`, which the next command deletes first.
"""
from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import hermes_lite as core
from hermes_lite import (DamagedData, HermesError, Memory, MissingPackage, NotFound, RemoteError,
                         StorageError, UsageError)

__all__ = ["COLD_FILE", "ColdFiles", "ColdIndex", "Fault", "INDEX", "check_cold_files",
           "hashes_of", "moved_at", "open_place", "pack", "sha256_of", "stamp_of", "unpack",
           "word_hashes"]

INDEX = "cold_index.json"
COLD_FILE = re.compile(r"cold_\d{8}_\d{6}(-\d+)?\.jsonl\.gz")
_FOLDER = "cold"
_TIMEOUT = 10.0                                    # seconds to wait for another cold command

Edit = Callable[[Memory], "Memory | None"]


# -- places -------------------------------------------------------------------

class _Folder:
    """Files in a folder of this machine."""

    def __init__(self, root: Path, place: str) -> None:
        self.path = root / place                   # an absolute place stands for itself

    def write(self, name: str, data: bytes) -> None:
        core.make_folder(self.path)
        core.write_atomic(self.path / name, data)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file; NotFound where it cannot be read."""
        try:
            return (self.path / name).read_bytes()
        except OSError as problem:
            raise NotFound(f"{self.path / name} cannot be read: {problem.strerror}") from None

    def remove(self, name: str) -> None:
        """Delete a file; it need not be there."""
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as problem:
            raise StorageError(f"{self.path / name} cannot be deleted: {problem.strerror}"
                               ) from None

    def names(self) -> list[str]:
        """Return the names of the cold files that lie here."""
        try:
            return sorted(path.name for path in self.path.iterdir()
                          if COLD_FILE.fullmatch(path.name))
        except OSError:
            return []


class _Bucket:
    """Objects in an S3 bucket, under a prefix."""

    def __init__(self, place: str) -> None:
        try:
            import boto3
        except ImportError:
            raise MissingPackage("cold storage in S3 needs the package boto3; run: pip install "
                                 "boto3") from None
        self.place = place
        self.bucket, _, prefix = place.removeprefix("s3://").partition("/")
        self.prefix = f"{prefix.rstrip('/')}/" if prefix else ""
        if not self.bucket:
            raise UsageError("give --place s3://BUCKET, or s3://BUCKET/PREFIX")
        self._client = boto3.client("s3")

    def _ask(self, method: str, name: str, **more: object) -> Mapping[str, object]:
        """Call a method of boto3's client for one object, or for the bucket where *name* is ""."""
        key = {"Key": self.prefix + name} if name else {}
        return self._call(lambda: getattr(self._client, method)(Bucket=self.bucket, **key, **more),
                          name)

    def _call(self, call: Callable[[], object], name: str) -> object:
        """Return what *call* returns; RemoteError, without secrets, where S3 refuses."""
        from botocore.exceptions import BotoCoreError, ClientError
        try:
            return call()
        except (BotoCoreError, ClientError) as problem:
            said = core.redact(str(problem))[0][:200]
            raise RemoteError(f"S3 refused {self.place}/{name}: {said}") from None

    def write(self, name: str, data: bytes) -> None:
        self._ask("put_object", name, Body=data)

    def read(self, name: str) -> bytes:
        return self._call(lambda: self._ask("get_object", name)["Body"].read(), name)

    def remove(self, name: str) -> None:
        self._ask("delete_object", name)

    def names(self) -> list[str]:
        """Return the names of the cold files that lie here."""
        found: list[str] = []
        more: dict[str, object] = {}
        while True:
            page = self._ask("list_objects_v2", "", Prefix=self.prefix, **more)
            keys = [row["Key"].removeprefix(self.prefix) for row in page.get("Contents", ())]
            found += [key for key in keys if COLD_FILE.fullmatch(key)]
            if not page.get("IsTruncated"):
                return sorted(found)
            more = {"ContinuationToken": page["NextContinuationToken"]}


def open_place(root: Path, place: str) -> _Folder | _Bucket:
    """Return the place of that name: a bucket, or a folder as seen from the data root."""
    return _Bucket(place) if place.startswith("s3://") else _Folder(root, place)


# -- format -------------------------------------------------------------------

def pack(memories: Iterable[Memory]) -> bytes:
    """Return the plain bytes of a cold file."""
    return gzip.compress(b"\n".join(core.to_json(each.entry()) for each in memories), mtime=0)


def unpack(data: bytes) -> list[Memory]:
    """Return the memories of a cold file's plain bytes; ValueError when it is not whole."""
    try:
        lines = gzip.decompress(data).split(b"\n")
        return [Memory.from_entry(json.loads(line)) for line in lines if line]
    except (OSError, EOFError, zlib.error, RecursionError) as problem:
        raise ValueError(f"no whole cold file: {problem}") from None


def stamp_of(moment: datetime) -> str:
    """Return the first part of the names of the files that are moved at this moment."""
    return f"cold_{moment.astimezone(timezone.utc):%Y%m%d_%H%M%S}"


def moved_at(name: str) -> str:
    """Return the first part of a cold file's name, which says when its memories were moved."""
    return name[:len("cold_YYYYMMDD_HHMMSS")]


def word_hashes(text: str) -> array:
    """Return short hashes of the words that tell something: no single characters."""
    return hashes_of(core.tokenize_terms(text, stem=True, grams=2))


def hashes_of(terms: Iterable[str]) -> array:
    """Return the sorted hashes of these terms."""
    return array("I", sorted({zlib.crc32(term.encode("utf-8", "surrogatepass"))
                              for term in terms if len(term) > 1}))


def sha256_of(data: bytes) -> str:
    """Return a checksum in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


# -- index --------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of cold storage; `repair` is None where only a person can help.

    `remedy` says what `repair` does; that returns sentences about what it could not do.
    """
    message: str
    state: str = "fail"
    remedy: str = ""
    repair: Callable[[], list[str]] | None = None
    command: str = "repair"


_SHAPE = {"version": int, "place": str, "memories": {str: [str, str]}, "pending": {str: str},
          "files": {str: {"place": str, "sha256": str}}}


class _NewFile(NamedTuple):
    """A cold file to be written, unless it would hold nothing."""
    old: str                                       # the file that it replaces, or ""
    place: str
    moved: str                                     # the first part of its name, see `stamp_of`
    memories: list[Memory]


class ColdIndex:
    """The index of cold storage, in memory; see the head of this module for its file.

    `damaged` says what is wrong with an index that cannot be read; who takes the lock sets it
    aside.
    """

    def __init__(self, store: core.Store) -> None:
        self.store = store
        self.root = store.root
        self.read()

    def read(self) -> None:
        """Take over what the disk has; `damaged` says it where that cannot be read."""
        path = self.root / INDEX
        self._seen = core.file_version(path)
        self.place = _FOLDER
        self.files: dict[str, dict[str, str]] = {}
        self.memories: dict[str, list[str]] = {}
        self.pending: dict[str, str] = {}
        self.damaged = ""
        try:
            data = path.read_bytes()
            self._take(core.from_json(core.unseal(data, self.store.files.cipher)))
        except FileNotFoundError:
            return
        except (OSError, ValueError):
            self.damaged = (f"{INDEX} cannot be read; `repair` makes it anew from the files in "
                            f"{_FOLDER}/, `archive --adopt --place PLACE` from those elsewhere")
            self.store.files.notices.append(self.damaged)

    def _take(self, saved: object) -> None:
        """Take over a saved index; ValueError where it is not one of ours."""
        if isinstance(saved, dict):
            saved = {"pending": {}, **saved}       # the first indexes had none
        if not core.fits(saved, _SHAPE) or saved["version"] not in (1, 2):
            raise ValueError("of another shape or version")
        files, memories, pending = saved["files"], saved["memories"], saved["pending"]
        if not all(COLD_FILE.fullmatch(name) for name in (*files, *pending)):
            raise ValueError("a file's name that is none of ours")
        if not all(map(core.is_safe_id, memories)):
            raise ValueError("an id that is none of ours")
        for name, words in memories.values():
            if name not in files or not re.fullmatch("(?:[0-9a-f]{8})*", words):
                raise ValueError("a memory in no file")
        self.place = saved["place"]
        self.files = files
        self.memories = memories
        self.pending = pending

    def refresh(self) -> None:
        """Read the index again where another process has written it."""
        if self._seen != core.file_version(self.root / INDEX):
            self.read()

    def write(self) -> None:
        """Put the index on the disk."""
        self.store.files.write(INDEX, core.to_json({
            "version": 2, "place": self.place, "files": self.files, "memories": self.memories,
            "pending": self.pending}))
        self._seen = core.file_version(self.root / INDEX)

    def take_over(self, name: str, place: str, memories: Iterable[Memory]) -> None:
        """Let the index, in memory, name a file that holds these memories."""
        memories = list(memories)
        self.files[name] = {"place": place, "sha256": sha256_of(pack(memories))}
        for each in memories:
            self.memories[each.id] = [name, word_hashes(each.content).tobytes().hex()]

    def names_of(self, ids: Iterable[str]) -> list[str]:
        """Return the files in which these memories lie."""
        return sorted({self.memories[each][0] for each in ids if each in self.memories})

    def forgotten_ids(self) -> set[str]:
        """Return the ids in cold files that a person has forgotten: a kill has left them."""
        if not self.memories:
            return set()
        return self._all_forgotten() & self.memories.keys()

    def _all_forgotten(self) -> set[str]:
        """Return the ids that a person has forgotten; what prune took may come back."""
        return {memory_id for memory_id, tombstone in self.store.removals().items()
                if not tombstone["why"].startswith("pruned")}

    def is_inside(self, place: str) -> bool:
        """Tell whether a place is in the data root."""
        if place.startswith("s3://"):
            return False
        return (self.root / place).resolve().is_relative_to(self.root.resolve())

    def local_places(self) -> list[str]:
        """Return the folders of this machine in which cold files may lie."""
        places = [_FOLDER, self.place, *(each["place"] for each in self.files.values())]
        return [place for place in dict.fromkeys(places) if not place.startswith("s3://")]


class ColdFiles(ColdIndex):
    """Cold storage: its index, and the only reader and writer of cold files."""

    def __init__(self, store: core.Store) -> None:
        super().__init__(store)
        self._thread_lock = threading.RLock()      # guards the two below between threads
        self._is_locked = False
        self._owner = 0                            # the thread that holds the lock

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of cold storage; read the index, and delete what a kill has left.

        Take it before the store's own lock, never after. One thread may take it twice.
        """
        with self._thread_lock:
            if self._is_locked:
                yield
                return
            core.make_folder(self.root)
            lock = core.FileLock(self.root / ".lock_cold")
            lock.acquire(timeout=_TIMEOUT)
            self._is_locked = True
            self._owner = threading.get_ident()
            try:
                self.read()
                if self.damaged:
                    self.store.refresh()           # another key, not damage, is an error here
                    core.set_aside(self.root / INDEX)
                self._delete_pending()
                self._delete_temporary()
                yield
            finally:
                self._is_locked = False
                lock.release()

    @property
    def is_locked_here(self) -> bool:
        """Whether this thread holds the lock."""
        return self._is_locked and self._owner == threading.get_ident()

    def _delete_pending(self) -> list[str]:
        """Delete the files that nobody needs; return a sentence for each that stays.

        The index on the disk names them until it is written next.
        """
        problems = []
        for name, place in list(self.pending.items()):
            try:
                open_place(self.root, place).remove(name)
                del self.pending[name]
            except HermesError as problem:
                problems.append(f"{place}/{name} is still there and is deleted later: {problem}")
        return problems

    def _delete_temporary(self) -> None:
        """Delete what killed commands were writing; in the root nobody else writes now."""
        hour_ago = time.time() - 3600
        for place in self.local_places():
            for path in (self.root / place).glob(".cold_*.tmp"):
                with contextlib.suppress(OSError):
                    if self.is_inside(place) or path.stat().st_mtime < hour_ago:
                        path.unlink()

    # -- reading ------------------------------------------------------------

    def load(self, name: str) -> list[Memory]:
        """Read a cold file whole; DamagedData when it is not what was written."""
        known = self.files[name]
        data = open_place(self.root, known["place"]).read(name)
        memories, plain = self._opened(name, data)
        if known["sha256"] not in (sha256_of(plain), sha256_of(data)):         # version 2, and 1
            raise DamagedData(f"the cold file {name} is not the one that the index knows; "
                              "`doctor` looks at it, `repair` takes over what is whole")
        return memories

    def _opened(self, name: str, data: bytes) -> tuple[list[Memory], bytes]:
        """Return the memories and the plain bytes of a cold file; DamagedData if not whole."""
        try:
            plain = core.unseal(data, self.store.files.cipher)
            return unpack(plain), plain
        except ValueError:
            raise DamagedData(f"the cold file {name} is damaged and cannot be read; it is left "
                              "as it is") from None

    def find(self, wanted: Iterable[str]) -> tuple[list[Memory], tuple[str, ...]]:
        """Return the memories of these ids, in the order they had, and what cannot be read.

        The latter as one sentence a file. An id that the index does not know is left out.
        """
        wanted = set(wanted)
        found: list[Memory] = []
        problems: list[str] = []
        for name in self.names_of(wanted):
            try:
                found += [each for each in self.load(name) if each.id in wanted]
            except HermesError as problem:
                problems.append(str(problem))
        return found, tuple(problems)

    # -- writing ------------------------------------------------------------

    def rewrite(self, edit: Edit, names: Iterable[str] | None = None, *,
                add: Sequence[tuple[str, Sequence[Memory]]] = (), place: str | None = None,
                always: bool = False) -> list[str]:
        """Write what *edit* makes of each memory of the files *names* (None: of all files).

        *add* are more files, (`cold_` and moment, memories), which go to *place*. A file in which
        nothing changes stays, unless *always*. Returns a sentence for each file that could not
        be rewritten or deleted; those keep what they had. An error about *add* is raised, and
        nothing is changed then. Call it with the lock held.
        """
        problems: list[str] = []
        new = [_NewFile("", place or self.place, moved, list(memories))
               for moved, memories in add if memories]
        for name in sorted(self.files) if names is None else names:
            try:
                before = self.load(name)
            except HermesError as problem:
                problems.append(str(problem))
                continue
            after = self._edited(name, before, edit)
            if after != before or always:
                new.append(_NewFile(name, self.files[name]["place"], moved_at(name), after))
        if new:
            problems += self._replace(new)
        return problems

    def _edited(self, name: str, memories: Iterable[Memory], edit: Edit) -> list[Memory]:
        """Return what *edit* makes of a file's memories, without those it makes None of.

        What the index names in another file goes, too: a file that was out of reach may hold old
        copies.
        """
        after = []
        for each in memories:
            is_old_copy = each.id in self.memories and self.memories[each.id][0] != name
            edited = None if is_old_copy else edit(each)
            if edited is not None:
                after.append(edited)
        return after

    def _replace(self, new: Sequence[_NewFile]) -> list[str]:
        """Write files, let the index name them in place of the old ones, delete those.

        The head of this module says in which order. A file without memories gets no name and is
        not written.
        """
        problems: list[str] = []
        names = []
        for file in new:
            name = self._free_name(file.moved, file.place) if file.memories else ""
            if name:
                self.pending[name] = file.place
            names.append(name)
        self.write()

        written = []
        for file, name in zip(new, names):
            try:
                if name:
                    self._write_file(name, file.place, file.memories)
                written.append((file, name))
            except HermesError as problem:
                if not file.old:
                    raise
                problems.append(f"{file.place}/{file.old} stays as it was: {problem}")

        for file, name in written:
            self._note(file, name)
        self.write()
        return problems + self._delete_pending()

    def _write_file(self, name: str, place: str, memories: list[Memory]) -> None:
        """Write a cold file and read it back; DamagedData where that is not what was written."""
        data = core.seal(pack(memories), self.store.files.cipher)
        where = open_place(self.root, place)
        where.write(name, data)
        if where.read(name) != data:
            raise DamagedData(f"{name} does not read back from {place}; nothing was moved")

    def _note(self, file: _NewFile, name: str) -> None:
        """Let the index name a new file, where it has a name, in place of the old one."""
        if file.old:
            self.memories = {memory_id: row for memory_id, row in self.memories.items()
                             if row[0] != file.old}
            self.files.pop(file.old, None)
            self.pending[file.old] = file.place
        if name:
            del self.pending[name]
            self.take_over(name, file.place, file.memories)

    def _free_name(self, moved: str, place: str) -> str:
        """Return a name that begins with *moved* and that no file has: cold_…-2.jsonl.gz."""
        taken = {*self.files, *self.pending}
        if not place.startswith("s3://"):
            taken.update(open_place(self.root, place).names())
        name = f"{moved}.jsonl.gz"
        number = 1
        while name in taken:
            number += 1
            name = f"{moved}-{number}.jsonl.gz"
        return name

    def adopt(self, place: str) -> tuple[list[str], list[str]]:
        """Take over the files of *place* that the index does not name; return (ids, problems).

        What is in the store, in another cold file, or forgotten is left out; a file of which
        nothing else is left is deleted. Call it with the lock held.
        """
        where = open_place(self.root, place)
        forgotten = self._all_forgotten()
        ids: list[str] = []
        problems: list[str] = []
        for name in where.names():
            if name in self.files:
                continue
            try:
                memories, _ = self._opened(name, where.read(name))
            except HermesError as problem:
                problems.append(str(problem))
                continue
            unknown = [each for each in memories
                       if each.id not in self.memories and each.id not in forgotten
                       and self.store.get(each.id) is None]
            problems += self._replace([_NewFile(name, place, moved_at(name), unknown)])
            ids += [each.id for each in unknown]
        return ids, problems

    def drop(self, ids: Iterable[str]) -> list[str]:
        """Take memories out of their files; return a sentence for each file that still holds one.

        Call it with the lock held.
        """
        ids = set(ids)
        names = self.names_of(ids)
        return self.rewrite(lambda each: None if each.id in ids else each, names, always=True)

    def finish(self) -> list[str]:
        """Delete the files that nobody needs, for good; return a sentence for each that stays."""
        problems = self._delete_pending()
        self.write()
        return problems

    def relink(self, name: str, memories: list[Memory], lost: set[str]) -> list[str]:
        """Let the index name what a file holds; return a sentence about what is *lost*.

        What is forgotten or known elsewhere goes out of the file.
        """
        place = self.files[name]["place"]
        forgotten = self._all_forgotten()
        kept = self._edited(name, memories, lambda each: None if each.id in forgotten else each)
        problems = self._replace([_NewFile(name, place, moved_at(name), kept)])
        missing = sorted(each for each in lost
                         if each not in forgotten and self.store.get(each) is None)
        if missing:
            count = core.pluralize(len(missing), "memory", "memories")
            problems.append(f"{count} of {name} are lost, such as {missing[0]}; look for an "
                            "older copy of that file")
        return problems


# -- check --------------------------------------------------------------------

def check_cold_files(cold: ColdFiles) -> list[Fault]:
    """Look at every cold file and return what is wrong; nothing is changed."""
    found = [fault for name in cold.files for fault in _faults_of_file(cold, name)]
    left = {name for name, place in cold.pending.items() if name in _names_at(cold, place)}
    if left:
        files = core.pluralize(len(left), "file")
        found.append(Fault(
            f"{files} that a killed command left may hold what was taken out", "warn",
            remedy=f"delete {core.pluralize(len(left), 'cold file')} that nothing needs",
            repair=cold.finish))
    for place in cold.local_places():
        unknown = [name for name in _names_at(cold, place)
                   if name not in cold.files and name not in left]
        if unknown:
            found.append(Fault(
                f"{core.pluralize(len(unknown), 'file')} in {place} in no index, such as "
                f"{unknown[0]}",
                remedy=f"take {core.pluralize(len(unknown), 'cold file')} of {place} into the "
                "index", repair=lambda place=place: cold.adopt(place)[1]))
    forgotten = cold.forgotten_ids()
    if forgotten:
        count = core.pluralize(len(forgotten), "forgotten memory", "forgotten memories")
        found.append(Fault(
            f"{count} still in cold files", remedy=f"take {count} out of cold files",
            repair=lambda: cold.drop(forgotten)))
    return found


def _names_at(cold: ColdFiles, place: str) -> list[str]:
    """Return the files in a folder; a bucket is not asked for its list."""
    return [] if place.startswith("s3://") else open_place(cold.root, place).names()


def _faults_of_file(cold: ColdFiles, name: str) -> Iterator[Fault]:
    """Yield what is wrong with a file that the index names."""
    known = cold.files[name]
    wanted = {memory_id for memory_id, row in cold.memories.items() if row[0] == name}
    count = core.pluralize(len(wanted), "memory", "memories")
    try:
        data = open_place(cold.root, known["place"]).read(name)
    except HermesError as problem:
        yield Fault(f"{count} cannot be reached: {problem}", command="")
        return
    try:
        memories, plain = cold._opened(name, data)
    except DamagedData as problem:
        yield Fault(f"{count} cannot be read: {problem}; put a good copy in its place",
                    command="")
        return
    if cold.store.files.cipher and not core.is_ciphertext(data):
        yield Fault(f"{name} is not encrypted", command="encrypt on")
    held = {each.id for each in memories}
    if known["sha256"] in (sha256_of(data), sha256_of(plain)) and held == wanted:
        return
    lost = wanted - held
    missing = f", and {len(lost)} of its {count} are not in it" if lost else ""
    yield Fault(f"{name} is whole, but not the file that the index knows{missing}",
                remedy=f"let the index name what {name} holds",
                repair=lambda: cold.relink(name, memories, lost))

"""Cold storage: what hardly matters moves out of the store, compressed, and comes back whole.

    hermes_lite.py archive --cold --below 3 --older-than 90 --dry-run
    hermes_lite.py archive --cold                          defaults: below 3, older than 30 days
    hermes_lite.py archive --cold --place s3://bucket/agent
    hermes_lite.py archive                                 what lies where
    hermes_lite.py archive --thaw "张三的合同"               what has these words comes back
    hermes_lite.py archive --thaw mem_20260817_033106_ab12
    hermes_lite.py archive --forget mem_20260817_033106_ab12

Works on every store. A move takes what has a score below and an age above the limits; never what
is pinned or critical (pruning.critical_importance). Score is that of the system salience where
it is switched on, faded as it is now; else the one it kept, else the importance.

    files   cold_*.jsonl.gz, an entry a line, in `cold/` of the data root, or where --place said
            last: another folder, or s3://bucket/prefix (pip install boto3, with the
            usual AWS environment variables; AWS_ENDPOINT_URL for another S3). Of an encrypted
            store they are sealed with its key
    index   cold_index.json in the data root: which id lies in which file, and short hashes of its
            words. By it recall says, in its notices, that cold storage holds a match
    thaw    every field comes back, redacted by today's rules; what was forgotten meanwhile, by
            text, stays away, and what is in the store in the same words is not doubled
    forget  `archive --forget` takes a cold memory out of its file and leaves a tombstone

The file is written and read back, then the index, and only then the records go; so a kill leaves
a memory in both places at worst, and the next thaw or move sees to it. A file that cannot be
reached or read is named and stays as it is.
"""
from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import hermes_lite as core
from hermes_lite import (DamagedData, HermesError, HermesLite, Hit, Memory, MissingPackage,
                         NotFound, Operation, Param, Refused, RemoteError, UsageError, _Record)

__all__ = ["Cold", "Moved", "OPERATIONS", "forget", "freeze", "system", "thaw"]

INDEX = "cold_index.json"
_BELOW, _DAYS = 3.0, 30


@dataclass(frozen=True, slots=True)
class Moved(_Record):
    """What was moved, or would be; `left` are files that could not be reached or read."""
    ids: tuple[str, ...]
    place: str
    verb: str
    texts: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    dry_run: bool = False
    warnings: tuple[str, ...] = ()


# -- places ---------------------------------------------------------------------

class _Folder:
    """Files in a folder of this machine."""

    def __init__(self, root: Path, place: str) -> None:
        self.path = root / place                   # an absolute place stands for itself

    def write(self, name: str, data: bytes) -> None:
        core.make_folder(self.path)
        core.write_atomic(self.path / name, data)

    def read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as problem:
            raise NotFound(f"{self.path / name} cannot be read: {problem.strerror}") from None

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


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
        from botocore.exceptions import BotoCoreError, ClientError
        try:
            return getattr(self._client, method)(Bucket=self.bucket, Key=self.prefix + name,
                                                 **more)
        except (BotoCoreError, ClientError) as problem:
            said = core.redact(str(problem))[0][:200]
            raise RemoteError(f"S3 refused {self.place}/{name}: {said}") from None

    def write(self, name: str, data: bytes) -> None:
        self._ask("put_object", name, Body=data)

    def read(self, name: str) -> bytes:
        return self._ask("get_object", name)["Body"].read()

    def remove(self, name: str) -> None:
        self._ask("delete_object", name)


def _open(memory: HermesLite, place: str) -> _Folder | _Bucket:
    return _Bucket(place) if place.startswith("s3://") else _Folder(memory.root, place)


# -- index ----------------------------------------------------------------------

class Cold:
    """The index of what lies in cold storage; as a system it tells recall of a match.

    cold_index.json, version 1: {"version", "place", "files": {name: {"place", "sha256"}},
    "memories": {id: [name, hex of the uint32 hashes of its words]}}.
    """
    name = "cold"

    def __init__(self, memory: HermesLite) -> None:
        self.memory = memory
        self.read()

    def read(self) -> None:
        """Take over what the disk has; a damaged index is set aside and said."""
        self._seen = core._stamp(self.memory.root / INDEX)
        self.place, self.files, self.memories = "cold", {}, {}
        try:
            saved = core.from_json(self.memory.store.read(INDEX) or b"{}")
            if saved != {}:
                self.place, self.files, self.memories = _checked(saved)
        except ValueError:
            aside = core._put_aside(self.memory.root / INDEX)
            self.memory.notices.append(f"{INDEX} was damaged ({aside}); the cold files are whole, "
                                       "`import` reads them")

    def write(self) -> None:
        """Put the index on the disk."""
        self.memory.store.write(INDEX, core.to_json({
            "version": 1, "place": self.place, "files": self.files, "memories": self.memories}))
        self._seen = core._stamp(self.memory.root / INDEX)

    def matches(self, query: str) -> list[str]:
        """Return the ids that hold at least half of the words of *query*, best first."""
        if self._seen != core._stamp(self.memory.root / INDEX):
            self.read()
        wanted = set(_marks(core.query_terms(_terms(query))))
        found = []
        for memory_id, (_, words) in self.memories.items():
            shared = len(wanted.intersection(array("I", bytes.fromhex(words))))
            if shared and 2 * shared >= len(wanted):
                found.append((-shared, memory_id))
        return [memory_id for _, memory_id in sorted(found)]

    def weigh(self, hits: Sequence[Hit], query: str) -> list[Hit]:
        """Change nothing; say it when cold storage holds a match."""
        found = [i for i in self.matches(query) if self.memory.store.get(i) is None] if (
            query) else ()
        if found:
            self.memory.notices.append(f"cold storage holds {len(found)} that match; `archive "
                                       "--thaw QUERY` brings them back")
        return list(hits)

    def after_forget(self, memory: Memory, why: str) -> None:
        """Take a copy out of its cold file, where a kill has left one."""
        if memory.id in self.memories:
            _rewrite(self, {memory.id})

    def load(self, name: str) -> list[Memory]:
        """Read a cold file whole; DamagedData when it is not what was written."""
        data = _open(self.memory, self.files[name]["place"]).read(name)
        if hashlib.sha256(data).hexdigest() != self.files[name]["sha256"]:
            raise DamagedData(f"the cold file {name} was changed or damaged; it is left as it is")
        try:
            lines = gzip.decompress(core.unseal(data, self.memory.store.cipher)).split(b"\n")
            return [Memory.from_entry(json.loads(line)) for line in lines if line]
        except (ValueError, OSError, EOFError, zlib.error):
            raise DamagedData(f"the cold file {name} cannot be read; it is left as it is"
                              ) from None

    def store(self, name: str, memories: Iterable[Memory], place: str) -> None:
        """Write a cold file, read it back, and note it in the index (which is not yet written)."""
        rows = b"\n".join(core.to_json(each.entry()) for each in memories)
        data = core.seal(gzip.compress(rows, mtime=0), self.memory.store.cipher)
        where = _open(self.memory, place)
        where.write(name, data)
        if where.read(name) != data:
            raise DamagedData(f"{name} does not read back from {place}; nothing was moved")
        self.files[name] = {"place": place, "sha256": hashlib.sha256(data).hexdigest()}


_SHAPE = {"version": int, "place": str, "memories": {str: [str, str]},
          "files": {str: {"place": str, "sha256": str}}}


def _checked(saved: object) -> tuple[str, dict, dict]:
    """Return place, files and memories of an index; ValueError where it is not one of ours."""
    if not core.fits(saved, _SHAPE) or saved["version"] != 1:
        raise ValueError("of another shape or version")
    files, memories = saved["files"], saved["memories"]
    if not all(map(core.is_safe_id, (*files, *memories))):
        raise ValueError("a name that is none")
    for name, words in memories.values():
        if name not in files or not re.fullmatch("(?:[0-9a-f]{8})*", words):
            raise ValueError("a memory in no file")
    return saved["place"], files, memories


def _terms(text: str) -> list[str]:
    return core.tokenize_terms(text, stem=True, grams=2)


def _marks(terms: Iterable[str]) -> list[int]:
    """Return short hashes of the words that tell something: no single characters."""
    return sorted({zlib.crc32(term.encode("utf-8", "surrogatepass")) for term in terms
                   if len(term) > 1})


def system(memory: HermesLite) -> Cold:
    """Make the index; it is switched on by itself where there is one."""
    return Cold(memory)


def _index(memory: HermesLite) -> Cold:
    found = next((each for each in memory.systems if isinstance(each, Cold)), None)
    if found is None:
        found = Cold(memory)
        memory.systems.append(found)               # from now on recall tells of it
    else:
        found.read()
    return found


# -- operations -------------------------------------------------------------------

def freeze(memory: HermesLite, *, below: float = _BELOW, older_than: float = _DAYS,
           place: str | None = None, dry_run: bool = False) -> Moved:
    """Move memories of a low score and a certain age to cold storage; return which."""
    with memory.exclusive("cold"), memory.store.transaction():
        cold = _index(memory)
        place = place or cold.place
        where = _open(memory, place)
        if not place.startswith("s3://") and place != "cold":
            place = str(where.path.absolute())
        chosen = list(_chosen(memory, below, older_than))
        done = Moved(tuple(each.id for each in chosen), place, "moved",
                     tuple(each.content for each in chosen), dry_run=dry_run)
        if not chosen:
            return replace(done, warnings=(
                f"no memory has a score below {below:g} and is older than {older_than:g} days, "
                "the critical and the pinned aside",))
        if dry_run:
            return done
        name = _free_name(memory, cold)
        cold.store(name, chosen, place)
        cold.place = place
        for each in chosen:
            cold.memories[each.id] = [name, array("I", _marks(_terms(each.content)))
                                      .tobytes().hex()]
        cold.write()
        for each in chosen:
            memory.store.remove(each.id, why=None)
    memory.tell("archive", done.ids, why="moved to cold storage")
    return done


def _chosen(memory: HermesLite, below: float, older_than: float) -> Iterator[Memory]:
    now = memory._clock()
    critical = memory.config["pruning"]["critical_importance"]
    score = next((each.score for each in memory.systems if each.name == "salience"),
                 core.score_of)
    for each in memory.store:
        made = core.parse_time(each.created_at)
        if (made is not None and now - made > timedelta(days=older_than)
                and each.importance < critical and not each.meta.get("pinned")
                and score(each) < below):
            yield each


def _free_name(memory: HermesLite, cold: Cold) -> str:
    stamp = f"cold_{memory._clock().astimezone(core.timezone.utc):%Y%m%d_%H%M%S}"
    names = (f"{stamp}{f'-{n}' if n > 1 else ''}.jsonl.gz" for n in range(1, 100_000))
    return next(name for name in names if name not in cold.files)


def thaw(memory: HermesLite, what: str | None = None, *, dry_run: bool = False) -> Moved:
    """Bring back the memory of an id, or what has the words of a query; without either, all."""
    with memory.exclusive("cold"), memory.store.transaction():
        cold = _index(memory)
        wanted = _wanted(cold, what)
        found, left = _read(cold, wanted)
        back = [] if dry_run else [each.id for each in found if _put(
            memory, each, moved=cold.memories[each.id][0])]
    if dry_run:
        return Moved(tuple(each.id for each in found), cold.place, "brought back",
                     tuple(each.content for each in found), left, True)
    with memory.exclusive("cold"):
        warnings = _rewrite(cold, {each.id for each in found})
    gone = len(found) - len(back)
    warnings += (f"{gone} were forgotten, or are in the store in the same words: they were only "
                 "taken out of cold storage",) if gone else ()
    memory.tell("archive", back, why="brought back from cold storage")
    return Moved(tuple(back), cold.place, "brought back", (), left, warnings=warnings)


def forget(memory: HermesLite, what: str, *, why: str = "forgotten") -> Moved:
    """Take a cold memory out of its file for good, and leave a tombstone of its text."""
    with memory.exclusive("cold"):
        cold = _index(memory)
        if what not in cold.memories:
            raise NotFound(f"no cold memory has the id {memory._quoted(what)}; `archive --thaw "
                           "QUERY --dry-run` shows ids")
        found, left = _read(cold, [what])
        if left:
            raise Refused(f"its file cannot be reached, so it stays: {left[0]}", "unreachable")
        with memory.store.transaction():
            for each in found:
                if memory.store.get(each.id) is None:
                    memory.store.put(memory._cleaned(each))
        for each in found:
            memory.forget(each.id, why=why)
        warnings = _rewrite(cold, {what})
    return Moved((what,), cold.place, "forgotten", warnings=warnings)


def _wanted(cold: Cold, what: str | None) -> list[str]:
    if what is None:
        return list(cold.memories)
    found = [what] if what in cold.memories else cold.matches(what)
    if not found:
        raise NotFound(f"cold storage holds nothing that matches {cold.memory._quoted(what)}")
    return found


def _read(cold: Cold, wanted: Iterable[str]) -> tuple[list[Memory], tuple[str, ...]]:
    """Return these memories in the order they had, and the files that could not be read."""
    wanted = set(wanted)
    found, left = [], []
    for name in sorted({cold.memories[each][0] for each in wanted}):
        try:
            found += [each for each in cold.load(name) if each.id in wanted]
        except HermesError as problem:
            left.append(str(problem))
    return found, tuple(left)


def _put(memory: HermesLite, cold: Memory, *, moved: str) -> bool:
    """Put a memory back; False where it was forgotten, or is there in the same words.

    The name of its file, *moved*, tells since when it is cold: what was forgotten before that
    was another agent's memory in the same words.
    """
    store, record = memory.store, memory._cleaned(cold)
    if store.get(record.id) is not None:           # a kill has left it in both places
        return True
    tomb = store.forgotten(record.content)
    at = core.parse_time(tomb["at"]) if tomb else None
    is_other = at is not None and f"cold_{at:%Y%m%d_%H%M%S}" < moved[:20]
    if tomb and not is_other and not tomb["why"].startswith("pruned") or store.twin(
            record.content, accept=lambda i: core.is_same_agent(store.get(i).agent,
                                                                record.agent)):
        return False
    store.put(record)
    return True


def _rewrite(cold: Cold, ids: set[str]) -> tuple[str, ...]:
    """Take memories out of their files and out of the index; name what could not be rewritten."""
    warnings = []
    for name in sorted({cold.memories[i][0] for i in ids if i in cold.memories}):
        place = cold.files[name]["place"]
        try:
            kept = [each for each in cold.load(name) if each.id not in ids]
            if kept:
                cold.store(name, kept, place)
            else:
                _open(cold.memory, place).remove(name)
                del cold.files[name]
        except HermesError as problem:
            warnings.append(f"{place}/{name} still holds it: {problem}")
            continue
        for memory_id in ids:
            if cold.memories.get(memory_id, [""])[0] == name:
                del cold.memories[memory_id]
        cold.write()
    return tuple(warnings)


# -- command line -------------------------------------------------------------------

def _archive(memory: HermesLite, *, what: str | None, cold: bool, thaw: bool, forget: bool,
             below: str | None, older_than: str | None, place: str | None,
             dry_run: bool) -> object:
    if cold + thaw + forget > 1:
        raise UsageError("give one of --cold, --thaw and --forget")
    if what is not None and not (thaw or forget):
        raise UsageError("a query or an id needs --thaw, an id --forget beside it")
    if thaw:
        return globals()["thaw"](memory, what, dry_run=dry_run)
    if forget:
        if not what or dry_run:
            raise UsageError("give `archive --forget ID`; it asks for nothing and shows no plan")
        return globals()["forget"](memory, what)
    if cold:
        return freeze(memory, below=_number("below", below, _BELOW), place=place, dry_run=dry_run,
                      older_than=_number("older-than", older_than, _DAYS))
    index = _index(memory)
    return {"memories": len(index.memories), "place": index.place,
            "files": {name: each["place"] for name, each in index.files.items()}}


def _number(name: str, word: str | None, default: float) -> float:
    try:
        number = default if word is None else float(word.removesuffix("d"))
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise UsageError(f"--{name} is {word[:40]!r}; give a number from 0 up")
    return number


def _show(result: object) -> Iterator[str]:
    if isinstance(result, Mapping):
        yield from core._show_mapping(result)
        return
    for memory_id, text in zip(result.ids, result.texts):
        yield f"{memory_id}  {core._first_line(text)}"
    yield f"{len(result.ids)} {'would be ' if result.dry_run else ''}{result.verb}" + (
        f" ({result.place})" if result.verb == "moved" else "")
    for sentence in result.left:
        yield f"  {sentence}"


OPERATIONS = (
    Operation("archive", "move low memories to cold storage, or bring them back", _archive, (
        Param("what", str, "with --thaw a query or an id, with --forget an id", positional=True),
        Param("cold", bool, "move what has a low score and is old", False),
        Param("below", str, f"a score below this (default {_BELOW:g})"),
        Param("older_than", str, f"older than so many days (default {_DAYS})"),
        Param("place", str, "a folder or s3://bucket/prefix (default: the last one, else cold/)"),
        Param("thaw", bool, "bring back what matches, or all", False),
        Param("forget", bool, "take a cold memory out for good", False),
        Param("dry_run", bool, "only show what would be moved", False)), _show, writes=True),
)

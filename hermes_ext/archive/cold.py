"""Cold storage: what hardly matters moves out of the store, compressed, and comes back whole.

    hermes_lite.py archive --cold --below 3 --older-than 90 --dry-run
    hermes_lite.py archive --cold                          defaults: below 3, older than 30 days
    hermes_lite.py archive --cold --place s3://bucket/agent
    hermes_lite.py archive                                 what lies where
    hermes_lite.py archive --thaw "张三的合同"               what has these words comes back
    hermes_lite.py archive --thaw mem_20260817_033106_ab12
    hermes_lite.py archive --forget mem_20260817_033106_ab12
    hermes_lite.py archive --adopt --place s3://bucket/agent

Works on every store. A move takes what has a score below and an age above the limits; never what
is pinned or critical (pruning.critical_importance). Score is that of the system salience where
it is switched on, faded as it is now; else the one it kept, else the importance.

    daily   systems: {cold: {daily: true}} in config.yaml moves, with the first write of a day,
            what has faded below a score of 1 and was neither made nor recalled for a day
            (`below` and `older_than`, in days, say otherwise), and says how many. Without the
            system salience scores do not fade
    files   cold_*.jsonl.gz, an entry a line, in `cold/` of the data root, or where --place said
            last: another folder, or s3://bucket/prefix (pip install boto3, with the
            usual AWS environment variables; AWS_ENDPOINT_URL for another S3). Of an encrypted
            store they are sealed with its key
    index   cold_index.json in the data root: which id lies in which file, and short hashes of its
            words. By it recall says, in its notices, that cold storage holds a match
    thaw    every field comes back, redacted by today's rules; what was forgotten meanwhile, by
            text, stays away, and what is in the store in the same words is not doubled
    forget  `archive --forget` takes a cold memory out of its file and leaves a tombstone; `forget`
            of a memory in the store also takes out what is cold in the same words by its agent
    adopt   files that no index names, as after a restore or where the index was damaged, are
            taken over; what is in the store or was forgotten is not

Files are written before the index and the index before records go or old files are deleted
(cold_files says the format and the order); so a kill leaves a memory in both places at worst, and
the next command sees to it. A file that cannot be reached or read is named and stays as it is;
`doctor` looks at each, `repair` mends what is whole.
"""
from __future__ import annotations

import contextlib
import functools
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import hermes_lite as core
from hermes_ext.cold_files import (INDEX, ColdFiles, ColdIndex, hashes_of, moved_at, open_place,
                                   stamp_of)
from hermes_ext.scores import stored_score
from hermes_lite import (ConfigError, HermesLite, Hit, Locked, Memory, NotFound, Operation, Param,
                         Record, Refused, UsageError)

__all__ = ["Cold", "INDEX", "Moved", "OPERATIONS", "adopt", "forget", "freeze", "system", "thaw"]

_BELOW = 3.0                         # score below which `archive --cold` takes a memory
_DAYS = 30                           # … that is older than so many days
_FADED = 1.0                         # score below which the daily move takes a memory


@dataclass(frozen=True, slots=True)
class Moved(Record):
    """What was moved, or would be; `left` are files that could not be reached or read."""
    ids: tuple[str, ...]
    place: str
    verb: str
    texts: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    dry_run: bool = False
    warnings: tuple[str, ...] = ()


# -- the system -----------------------------------------------------------------

class Cold:
    """What lies in cold storage; as a system it tells recall of a match."""
    name = "cold"

    def __init__(self, memory: HermesLite, *, daily: tuple[float, float] | None = None) -> None:
        self.memory = memory
        self.files = ColdFiles(memory.store)
        self._daily = daily                        # below which score, and older than which days
        self._day = ""                             # of the last daily move that was looked up

    @property
    def memories(self) -> Mapping[str, Sequence[str]]:
        """{id: [file, hashes of its words]} of what the index knew when it was read."""
        return self.files.memories

    def matches(self, query: str) -> list[str]:
        """Return the ids that hold at least half of the words of *query*, best first."""
        wanted = _wanted_hashes(query)
        return [memory_id for memory_id, shared in self._shared(wanted)
                if 2 * shared >= len(wanted)]

    def _shared(self, wanted: set[int]) -> list[tuple[str, int]]:
        """Return (id, how many of these words it holds), the most first, ties by id."""
        self.files.refresh()
        found = []
        for memory_id, (_, packed_hashes) in self.files.memories.items():
            count = len(wanted.intersection(array("I", bytes.fromhex(packed_hashes))))
            if count:
                found.append((memory_id, count))
        return sorted(found, key=lambda pair: (-pair[1], pair[0]))

    def rerank(self, hits: Sequence[Hit], query: str) -> list[Hit]:
        """Say it when cold storage holds a match; order and number of the hits stay.

        A match holds half of the words of *query*, or two and more words than every hit does. A
        hit that holds at most half as many as the best match gets `why["cold"]`, that number.
        """
        wanted = _wanted_hashes(query) if query else set()
        counts = [shared for memory_id, shared in self._shared(wanted)
                  if self.memory.store.get(memory_id) is None]
        if not counts:
            return list(hits)
        held = [len(wanted.intersection(hashes_of(_terms(hit.content)))) for hit in hits]
        best_hit = max(held, default=0)
        matches = [count for count in counts
                   if 2 * count >= len(wanted) or count >= best_hit + 2]
        if not matches:
            return list(hits)
        self.memory.notices.repeat(f"cold storage holds {len(matches)} that match; `archive "
                                   "--thaw QUERY` brings them back")
        best_match = matches[0]
        result = []
        for hit, count in zip(hits, held):
            if 2 * count <= best_match:
                hit = replace(hit, why={**hit.why, "cold": best_match})
            result.append(hit)
        return result

    def after_store(self, memory: Memory) -> None:
        """Once a day, move what has faded; where that fails, the next day tries again."""
        today = f"{self.memory.calendar.today():%Y-%m-%d}"
        if self._daily is None or self._day == today or self.files.is_locked_here:
            return
        self._day = today
        if self.memory.state("cold").get("day") == today:
            return
        self.memory.save_state("cold", {"version": 1, "day": today})
        below, older_than = self._daily
        with contextlib.suppress(Locked):          # somebody is at work on cold storage
            done = freeze(self.memory, below=below, older_than=older_than, idle=True)
            if done.ids:
                self.memory.notices.append(
                    f"{core.pluralize(len(done.ids), 'memory', 'memories')} with a score below "
                    f"{below:g} moved to cold storage, as systems.cold.daily says; `archive "
                    "--thaw QUERY` brings them back")

    def after_forget(self, memory: Memory, why: str) -> None:
        """Take a memory that was forgotten or pruned out of its cold file.

        Of one that a person has forgotten, also what is cold in the same words by the same agent.
        """
        if self.files.is_locked_here:              # `archive --forget` does it itself
            return
        self.files.refresh()
        is_by_person = why != "pruned"
        may_have_copies = is_by_person and bool(self.matches(memory.content))
        if memory.id not in self.memories and not may_have_copies:
            return
        with self.files.locked():
            copies = self._in_the_same_words(memory) if is_by_person else []
            self.memory.notices += self.files.drop([memory.id, *copies])

    def _in_the_same_words(self, forgotten: Memory) -> list[str]:
        """Return the cold memories of the same agent whose text has just been forgotten."""
        near, _ = self.files.find(self.matches(forgotten.content))
        return [each.id for each in near
                if core.is_same_agent(each.agent, forgotten.agent)
                and self.memory.store.forgotten(each.content) is not None
                and self.memory.store.get(each.id) is None]


def _terms(text: str) -> list[str]:
    """Return the words of a text as the index of cold storage has them; see `word_hashes`."""
    return core.tokenize_terms(text, stem=True, grams=2)


def _wanted_hashes(query: str) -> set[int]:
    """Return the hashes of the words of a query that count, without stop words."""
    return set(hashes_of(core.query_terms(_terms(query))))


def system(memory: HermesLite, *, daily: bool = False, below: float = _FADED,
           older_than: float = 1.0) -> Cold:
    """Make the index; it is switched on by itself where there is one."""
    if type(daily) is not bool:
        raise ConfigError("config.yaml: systems.cold.daily is true or false")
    for name, value in (("below", below), ("older_than", older_than)):
        if type(value) not in (int, float) or not 0 <= value < 1e6:
            raise ConfigError(f"config.yaml: systems.cold.{name} is a number from 0 up")
    return Cold(memory, daily=(float(below), float(older_than)) if daily else None)


@contextlib.contextmanager
def _held(memory: HermesLite) -> Iterator[Cold]:
    """Hold the lock of cold storage, and make good what a killed command left undone."""
    cold = next((each for each in memory.systems if isinstance(each, Cold)), None)
    if cold is None:
        cold = Cold(memory)
        memory.systems.append(cold)                # from now on recall tells of it
    with cold.files.locked():
        with memory.session.reading():
            forgotten = cold.files.forgotten_ids()
        if forgotten:
            memory.notices += cold.files.drop(forgotten)
        yield cold


# -- operations -------------------------------------------------------------------

def freeze(memory: HermesLite, *, below: float = _BELOW, older_than: float = _DAYS,
           place: str | None = None, idle: bool = False, dry_run: bool = False) -> Moved:
    """Move memories of a low score and a certain age to cold storage; return which.

    With *idle* the age counts from the last recall, where that is later.
    """
    core.check_selectors(place=place)
    with _held(memory) as cold, memory.session.writing():
        place = _full_place(memory, place or cold.files.place)
        chosen = list(_chosen(memory, below, older_than, idle))
        done = Moved(tuple(each.id for each in chosen), place, "moved",
                     tuple(memory.redact(each.content)[0] for each in chosen), dry_run=dry_run)
        if not chosen:
            return replace(done, warnings=(
                f"no memory has a score below {below:g} and is older than {older_than:g} days, "
                "the critical and the pinned aside",))
        if dry_run:
            return done
        ids = set(done.ids)                        # a kill may have left some of them there
        warnings = cold.files.rewrite(
            lambda each: None if each.id in ids else each, cold.files.names_of(ids),
            add=[(stamp_of(memory.clock()), chosen)], place=place)
        for each in chosen:
            memory.store.remove(each.id, why=None)
    memory.systems.emit("archive", done.ids, why="moved to cold storage")
    return replace(done, warnings=tuple(warnings))


def _full_place(memory: HermesLite, place: str) -> str:
    """Return the place as the index keeps it: the bucket, an absolute folder, or `cold`."""
    where = open_place(memory.root, place)
    if place.startswith("s3://") or place == "cold":
        return place
    return str(where.path.absolute())


def _chosen(memory: HermesLite, below: float, older_than: float,
            idle: bool) -> Iterator[Memory]:
    """Yield the memories of a low score and a certain age, in days; see `freeze`."""
    now = memory.clock()
    critical = memory.config["pruning"]["critical_importance"]
    score = _score_now(memory)
    for each in memory.store:
        made = core.parse_time(each.created_at)
        if made is None or each.importance >= critical or each.meta.get("pinned"):
            continue
        times = [made, core.parse_time(each.meta.get("stored_at"))]
        if idle:
            times.append(core.parse_time(each.last_accessed))
        age = now - max(moment for moment in times if moment is not None)
        if age > timedelta(days=older_than) and score(each) < below:
            yield each


def _score_now(memory: HermesLite) -> Callable[[Memory], float]:
    """Return what scores a memory: the system salience, faded, or the stored score."""
    for system in memory.systems:
        if system.name == "salience":
            return functools.partial(system.score, rate=system.rate())
    return stored_score


def thaw(memory: HermesLite, what: str | None = None, *, dry_run: bool = False) -> Moved:
    """Bring back the memory of an id, or what has the words of a query; without either, all."""
    core.check_selectors(what=what)
    with _held(memory) as cold:
        files = cold.files
        with memory.session.writing():
            found, left = files.find(_wanted(cold, what))
            found, blocked = _unblocked(memory, found)
            left = (*left, *blocked)
            if dry_run:
                texts = tuple(memory.redact(each.content)[0] for each in found)
                return Moved(tuple(each.id for each in found), files.place, "brought back",
                             texts, left, dry_run=True)
            back = [each.id for each in found
                    if _put(memory, each, moved=moved_at(files.memories[each.id][0]))]
        warnings = files.drop(each.id for each in found)
    stayed_away = len(found) - len(back)
    if stayed_away:
        warnings.append(f"{stayed_away} were forgotten, or are in the store in the same words: "
                        "they were only taken out of cold storage")
    memory.systems.emit("archive", back, why="brought back from cold storage")
    return Moved(tuple(back), files.place, "brought back", (), left, warnings=tuple(warnings))


def forget(memory: HermesLite, what: str, *, why: str = "forgotten") -> Moved:
    """Take a cold memory out of its file for good, and leave a tombstone of its text."""
    core.check_selectors(what=what)
    with _held(memory) as cold:
        files = cold.files
        if what not in files.memories:
            raise NotFound(f"no cold memory has the id {memory.redactor.quote(what)}; "
                           "`archive --thaw QUERY --dry-run` shows ids")
        found, left = files.find([what])
        if left:
            raise Refused(f"its file cannot be reached, so it stays: {left[0]}", "unreachable")
        with memory.session.writing():           # a tombstone is of a memory in the store
            for each in found:
                if memory.store.get(each.id) is None:
                    memory.store.put(memory.redactor.redact_record(each, filtered=False))
        for each in found:
            memory.forget(each.id, why=why)
        warnings = files.drop([what])
        held = memory.store.files.copies_of(what)
    if held:
        warnings.append(f"an older copy is still in {', '.join(held)}; `forget {what} --purge` "
                        "takes it out")
    return Moved((what,), files.place, "forgotten", warnings=tuple(warnings))


def adopt(memory: HermesLite, place: str | None = None) -> Moved:
    """Take over the cold files at a place that the index does not name, as after a restore."""
    core.check_selectors(place=place)
    with _held(memory) as cold:
        place = _full_place(memory, place or cold.files.place)
        ids, left = cold.files.adopt(place)
    memory.systems.emit("archive", ids, why="taken into the index of cold storage")
    return Moved(tuple(ids), place, "taken over", (), tuple(left))


def _wanted(cold: Cold, what: str | None) -> Iterable[str]:
    """Return the ids of what is asked for: of all without *what*; NotFound where there is none."""
    if what is None:
        return list(cold.memories)
    found = [what] if what in cold.memories else cold.matches(what)
    if not found:
        quoted = cold.memory.redactor.quote(what)
        raise NotFound(f"cold storage holds nothing that matches {quoted}")
    return found


def _unblocked(memory: HermesLite, found: Iterable[Memory]) -> tuple[
        list[Memory], tuple[str, ...]]:
    """Part what may come back from what a content filter blocks, which stays cold."""
    passed, blocked = [], []
    for each in found:
        try:
            memory.redactor.check_content(each)
            passed.append(each)
        except Refused:
            blocked.append(f"{each.id} is blocked by a content filter and stays")
    return passed, tuple(blocked)


def _put(memory: HermesLite, cold: Memory, *, moved: str) -> bool:
    """Put a memory back; False where it was forgotten, or is there in the same words.

    The name of its file, *moved*, tells since when it is cold: what was forgotten before that
    was another agent's memory in the same words.
    """
    store = memory.store
    record = memory.redactor.redact_record(cold)
    if store.get(record.id) is not None:           # a kill has left it in both places
        return True
    if _is_forgotten_since(store.forgotten(record.content), moved):
        return False

    def is_of_its_agent(memory_id: str) -> bool:
        return core.is_same_agent(store.get(memory_id).agent, record.agent)

    if store.search.duplicate(record.content, accept=is_of_its_agent):
        return False
    store.put(record)
    return True


def _is_forgotten_since(tombstone: Mapping[str, str] | None, moved: str) -> bool:
    """Tell whether a person forgot a text after the move; what was pruned may come back."""
    if tombstone is None or tombstone["why"].startswith("pruned"):
        return False
    at = core.parse_time(tombstone["at"])
    return at is None or stamp_of(at) >= moved


# -- command line -------------------------------------------------------------------

_thaw, _forget, _adopt = thaw, forget, adopt       # the command's parameters have these names


def _archive(memory: HermesLite, *, what: str | None, cold: bool, thaw: bool, forget: bool,
             below: str | None, older_than: str | None, place: str | None,
             dry_run: bool, adopt: bool = False) -> object:
    if cold + thaw + forget + adopt > 1:
        raise UsageError("give one of --cold, --thaw, --forget and --adopt")
    if what is not None and not (thaw or forget):
        raise UsageError("a query or an id needs --thaw, an id --forget beside it")
    if thaw:
        return _thaw(memory, what, dry_run=dry_run)
    if forget:
        if what is None or dry_run:
            raise UsageError("give `archive --forget ID`; it asks for nothing and shows no plan")
        return _forget(memory, what)
    if adopt:
        if dry_run:
            raise UsageError("give `archive --adopt --place PLACE`; it shows no plan")
        return _adopt(memory, place)
    if cold:
        return freeze(memory, below=_number("below", below, _BELOW), place=place, dry_run=dry_run,
                      older_than=_number("older-than", older_than, _DAYS))
    index = ColdIndex(memory.store)
    return {"memories": len(index.memories), "place": index.place,
            "files": {name: each["place"] for name, each in index.files.items()}}


def _number(name: str, word: str | None, default: float) -> float:
    """Read the number of an option, such as 90 or 90d; the default where it is not given."""
    if word is None:
        return default
    try:
        number = float(word.removesuffix("d"))
    except ValueError:
        number = None
    if number is None or not 0 <= number < 1e6:
        raise UsageError(f"--{name} is {word[:40]!r}; give a number from 0 up")
    return number


def _show(result: object) -> Iterator[str]:
    if isinstance(result, Mapping):
        yield from core.format_mapping(result)
        return
    for memory_id, text in zip(result.ids, result.texts):
        yield f"{memory_id}  {core.excerpt(text)}"
    verb = f"would be {result.verb}" if result.dry_run else result.verb
    place = f" ({result.place})" if result.verb == "moved" else ""
    yield f"{len(result.ids)} {verb}{place}"
    for sentence in result.left:
        yield f"  {sentence}"


OPERATIONS = (
    Operation("archive", "move low memories to cold storage, or bring them back", _archive, (
        Param("what", str, "with --thaw a query or an id, with --forget an id", positional=True),
        Param("cold", bool, "move what has a low score and is old", False),
        Param("below", str, f"a score below this (default {_BELOW:g})"),
        Param("older_than", str, f"older than so many days (default {_DAYS})"),
        Param("place", Path, "a folder or s3://bucket/prefix (default: the last one, else cold/)"),
        Param("thaw", bool, "bring back what matches, or all", False),
        Param("forget", bool, "take a cold memory out for good", False),
        Param("adopt", bool, "take over the cold files at a place, as after a restore", False),
        Param("dry_run", bool, "only show what would be moved", False)), _show, writes=True,
        scope="admin"),
)

"""The ways to ask: by association, by keywords, all that is awake, what sleeps, as of a date.

    hermes_lite.py recall "why was the page outdated?" --mode associative --temp 0.3 --seed 7
    hermes_lite.py recall invoice --mode keyword
    hermes_lite.py recall --mode list
    hermes_lite.py recall invoice --deep
    hermes_lite.py recall "what did we use last week" --as-of 2026-08-17

An associative recall begins with what recall finds, and with what holds a member of a class that
the question names (a question about drinks, a memory about tea, where tea is_a drink). Then it
looks around from the best hit: a memory that shares a concept with it gains 0.30, one whose
concept is one link away 0.15, in a scale in which the best hit has 1. What more than 20 memories
have in common, such as the name of a speaker, connects nothing (measured: bench/README.md). The last answer is drawn
from its rank and the two behind it, so that now and then another direction shows. Each hit says
in `why["because"]` how it came there.
"""
from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from hermes_ext.brain.concepts import ConceptGraph, concepts_of, ids_with_concept
from hermes_ext.brain.extension import find, viewing
from hermes_ext.brain.note import is_asleep
from hermes_ext.brain.sleep import revive
from hermes_lite import HermesLite, Hit, Hits, Memory, UsageError, tag_forms, tokenize_terms

__all__ = ["Scores", "as_of", "associate", "recall_deep", "recall_keywords", "list_awake"]

SHARED = 0.30              # gained by a concept that the best hit has, too
ONE_LINK = 0.15            # gained by a concept that is one link away from one of these
MEMBER = 0.5               # likeness of the best hit that only holds a member of a class
_POOL = 30                 # hits that compete
COMMON = 20                # what more memories have says nothing, as a speaker's name
_DRAWN_FROM = 3            # ranks from which the last answer is drawn
STRONG = 0.5               # confidence from which a hit of --deep wakes up


@dataclass(frozen=True, slots=True)
class Scores:
    """What each step of an association counts; 0 leaves a step out.

    A concept that more than *common* memories have connects nothing.
    """
    shared: float = SHARED
    one_link: float = ONE_LINK
    member: float = MEMBER
    common: int = COMMON


@dataclass
class _Candidate:
    """A memory on its way into the answer: its likeness to the question, and what it gained."""
    hit: Hit
    likeness: float = 0.0
    gained: float = 0.0
    because: list[str] = field(default_factory=list)

    @property
    def score(self) -> float:
        return self.likeness + self.gained


def associate(memory: HermesLite, query: str, *, top_k: int = 3, temperature: float = 0.3,
              seed: int | None = None, room: str | None = None, tags: Iterable[str] = (),
              agent: str | None = None, now: str | datetime | None = None,
              scores: Scores | None = None) -> Hits:
    """Return *top_k* memories: those like the question, then what is connected with the best.

    *temperature* from 0 up says how freely the last one is drawn from ranks top_k to top_k + 2;
    at 0, and in the ranks before, the order is fixed. The same *seed* draws the same. A hit's
    `why["fused"]` is its score: likeness, 1 for the best hit, plus what it gained.
    """
    find(memory)
    if type(top_k) is not int or top_k < 1:
        raise UsageError("top_k is no whole number from 1 up")
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or (
            not 0 <= temperature < math.inf):
        raise UsageError(f"temp is {memory.redactor.quote(temperature)}; give a number from 0 up, "
                         "such as 0.3")
    scores = scores or Scores()
    wanted = tag_forms(tags)
    found = memory.search.find(query, room=room, tags=wanted, agent=agent,
                               top_k=max(_POOL, top_k + _DRAWN_FROM), now=now)
    with memory.session.reading() as store:
        accept = memory.search.filter(store, room, wanted, agent)
        graph = ConceptGraph(memory)
        candidates = _alike(found)
        _add_members(memory, graph, query, candidates, accept, scores.member)
        if candidates:
            _diffuse(memory, graph, candidates, accept, scores)
    ranked = sorted(candidates.values(), key=_order)
    chosen = _draw_last(ranked, top_k, temperature, random.Random(seed))
    return memory.search.answer(query, Hits(map(_to_hit, chosen), found.degraded))


def _order(candidate: _Candidate) -> tuple[float, str, str]:
    """Sort the best first; of equal ones the older."""
    return (-candidate.score, candidate.hit.memory.created_at, candidate.hit.id)


def _alike(found: Hits) -> dict[str, _Candidate]:
    """Return what recall found, its likeness as a share of the best one's score."""
    best = max((hit.why.get("fused", 0.0) for hit in found), default=0.0)
    candidates = {}
    for place, hit in enumerate(found, 1):
        share = hit.why.get("fused", 0.0) / best if best > 0 else 1 / place
        candidates[hit.id] = _Candidate(hit, share, because=["like the question"])
    return candidates


def _add_members(memory: HermesLite, graph: ConceptGraph, query: str,
                 candidates: dict[str, _Candidate], accept: Callable[[str], bool] | None,
                 weight: float) -> None:
    """Add what holds a member of a class that the question names."""
    if not weight:
        return
    for key in _classes_in(graph, query):
        members = " ".join(graph.names[member] for member in graph.members(key))
        # The words of the question beside the class decide between the members' memories.
        ranked = memory.store.search.words(f"{query} {members}", _POOL, accept=accept)
        holders = _holders(memory, members, (memory_id for memory_id, _ in ranked))
        best = ranked[0][1] if ranked else 0.0
        for memory_id, score in ranked:
            if memory_id not in holders:
                continue
            likeness = weight * score / best
            candidate = candidates.get(memory_id)
            if candidate is None:
                candidate = _candidate(memory, memory_id)
                candidates[memory_id] = candidate
            if likeness > candidate.likeness:
                candidate.likeness = likeness
                candidate.because = [f"holds a member of {graph.names[key]}"]


def _classes_in(graph: ConceptGraph, query: str) -> list[str]:
    """Return the keys of the concepts with members whose name stands in a question."""
    terms = tokenize_terms(query, stem=True)
    asked = set(terms)
    return [key for key, name in graph.names.items()
            if graph.members(key) and asked.issuperset(tokenize_terms(name, stem=True))]


def _holders(memory: HermesLite, members: str, ids: Iterable[str]) -> set[str]:
    """Return those of some memories that hold a word of one of the members."""
    wanted = set(tokenize_terms(members, stem=True))
    return {memory_id for memory_id in ids
            if wanted & set(tokenize_terms(memory.store.text(memory_id) or "", stem=True))}


def _candidate(memory: HermesLite, memory_id: str) -> _Candidate:
    one = memory.store.get(memory_id)
    assert one is not None                         # the store has just named it, under the lock
    return _Candidate(Hit(one, 0.0, 0.0, 0.0, {"retrievers": {}}))


# -- diffusion ----------------------------------------------------------------

def _diffuse(memory: HermesLite, graph: ConceptGraph, candidates: dict[str, _Candidate],
             accept: Callable[[str], bool] | None, scores: Scores) -> None:
    """Let what is connected with the best hit gain, and bring in what was not found at all."""
    best = min(candidates.values(), key=_order)
    own = concepts_of(best.hit.memory)
    steps = [(scores.shared, key, f"shares {name} with {best.hit.id}")
             for key, name in own.items()]
    for key in own:
        for other, link in graph.neighbours(key).items():
            if other not in own:
                steps.append((scores.one_link, other, f"{link}, with {best.hit.id}"))
    reached = [(gain, ids_with_concept(memory, key), because)
               for gain, key, because in steps if gain]
    reached.sort(key=lambda step: (-step[0], len(step[1])))        # rare concepts say most
    for gain, ids, because in reached:
        if len(ids) > scores.common:
            continue
        for memory_id in ids:
            if memory_id == best.hit.id or accept is not None and not accept(memory_id):
                continue
            if memory_id not in candidates:
                candidates[memory_id] = _candidate(memory, memory_id)
            candidate = candidates[memory_id]
            if not candidate.gained:               # once, by the strongest and rarest
                candidate.gained = gain
                candidate.because.append(because)


def _draw_last(ranked: list[_Candidate], top_k: int, temperature: float,
               chance: random.Random) -> list[_Candidate]:
    """Return the first of a ranking; the last place is drawn from its rank and the two behind."""
    fixed, pool = ranked[:top_k - 1], ranked[top_k - 1:top_k - 1 + _DRAWN_FROM]
    if temperature == 0 or len(pool) < 2:
        return ranked[:top_k]
    top = pool[0].score
    weights = [math.exp((each.score - top) / temperature) for each in pool]
    drawn = chance.choices(pool, weights)[0]
    if drawn is not pool[0]:
        drawn.because.append("drawn from the next ranks")
    return [*fixed, drawn]


def _to_hit(candidate: _Candidate) -> Hit:
    why = {**candidate.hit.why, "fused": round(candidate.score, 6),
           "because": tuple(candidate.because)}
    return replace(candidate.hit, why=why)


# -- other ways ---------------------------------------------------------------

def recall_keywords(memory: HermesLite, query: str, *, top_k: int | None = None,
                    room: str | None = None, tags: Iterable[str] = (),
                    agent: str | None = None) -> Hits:
    """Return what holds words of the question, ranked by these alone."""
    find(memory)
    if not isinstance(query, str) or not query.strip():
        raise UsageError("there is no query; give at least one word")
    k = memory.config["retrieval"]["default_top_k"] if top_k is None else top_k
    with memory.session.reading() as store:
        accept = memory.search.filter(store, memory.redactor.check_room(room), tag_forms(tags),
                                      agent)
        ranked = store.search.words(query, k, accept=accept)
        rows = [(store.get(memory_id), place, score)
                for place, (memory_id, score) in enumerate(ranked, 1)]
    hits = [Hit(one, score, 0.0, score, {"retrievers": {"keywords": {"rank": place,
                                                                     "score": round(score, 4)}}})
            for one, place, score in rows if one is not None]
    return memory.search.answer(query, Hits(hits))


def list_awake(memory: HermesLite, *, room: str | None = None, tags: Iterable[str] = (),
               agent: str | None = None, limit: int | None = None) -> list[Memory]:
    """Return all that is awake, newest first; browsing is no use."""
    brain = find(memory)
    with memory.session.reading():
        tags_out, ids_out = set(brain.hidden_tags()), set(brain.hidden())
        rows = [one for one in memory.matching(room=room, tags=tags, agent=agent)
                if tags_out.isdisjoint(one.tags) and one.id not in ids_out]
    memory.systems.emit("list", [one.id for one in rows[:limit]])
    return rows[:limit]


def recall_deep(memory: HermesLite, query: str | None, **filters: object) -> Hits:
    """Return what `recall` does, among what is asleep, too; a strong match of it wakes up.

    Strong: a confidence of 0.5 and more.
    """
    find(memory)
    with viewing(asleep=True):
        hits = memory.recall(query, **filters)                     # type: ignore[arg-type]
    strong = [hit.id for hit in hits if is_asleep(hit.memory) and hit.confidence >= STRONG]
    if strong:
        revive(memory, strong, why="woke up by a strong match")
    return hits


@contextlib.contextmanager
def as_of(memory: HermesLite, date: str) -> Iterator[datetime]:
    """Search, while the block runs, only what was there at a date, awake as it was then.

    Yields the date as a time; of a day alone it is the end of the day. What was forgotten or
    edited since is as it is now.
    """
    find(memory)
    moment = memory.calendar.moment(date, "as-of", end=True)
    assert moment is not None
    if moment > memory.clock():
        raise UsageError(f"as-of is {memory.redactor.quote(date)}, which is not past; give an "
                         "earlier date")
    with viewing(moment=moment):
        yield moment

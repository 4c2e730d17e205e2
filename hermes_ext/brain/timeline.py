"""Timeline: how a matter developed, first, turns, latest.

    hermes_lite.py timeline redis

All memories that have a concept, are about an entity or hold the words, oldest first. A turn is a
memory that contradicts or replaces an earlier one of the line, or a pattern drawn from some of
them. Of a long line the first, the latest and the turns are shown.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hermes_ext.brain.concepts import concept_key, ids_with_concept
from hermes_ext.brain.extension import find
from hermes_ext.brain.note import is_asleep, note_of
from hermes_lite import (HermesLite, Memory, NotFound, Operation, Param, Record, UsageError,
                         excerpt, find_conflicts, parse_time, pluralize)

__all__ = ["Moment", "OPERATIONS", "Timeline", "timeline"]

_MOST = 200                        # newest memories of a matter that are looked at
_COMPARED = 20                     # earlier ones that each is compared with


@dataclass(frozen=True, slots=True)
class Moment(Record):
    """A memory of a timeline: `kind` is first, turn, step or latest; `turns_from` are the ids of
    what it contradicts, replaces or was drawn from."""
    kind: str
    memory: Memory
    turns_from: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Timeline(Record):
    """All moments of a matter, oldest first."""
    concept: str
    moments: tuple[Moment, ...]


def timeline(memory: HermesLite, concept: str) -> Timeline:
    """Return how a matter developed; NotFound where nothing is about it.

    The memories that have the concept, else those in which the word or words stand. A memory
    whose time cannot be read is left out. What is asleep is part of it.
    """
    find(memory)
    key = concept_key(str(concept))
    if not key:
        raise UsageError("the concept is empty; give a name or words")
    with memory.session.reading() as store:
        ids = ids_with_concept(memory, key)
        if not ids:
            ids = [memory_id for memory_id, _ in store.search.words(
                concept, _MOST, accept=memory.search.filter(store, None, (), None))]
        rows = [one for one in map(store.get, ids[:_MOST]) if one and parse_time(one.created_at)]
    if not rows:
        raise NotFound(f"nothing is about {memory.redactor.quote(concept)}")
    rows.sort(key=lambda one: (parse_time(one.created_at), one.id))
    moments = tuple(_moment(rows, place, memory) for place in range(len(rows)))
    memory.systems.emit("timeline", [one.id for one in rows], query=concept)
    return Timeline(memory.redactor.redact_field(concept), moments)


def _moment(rows: Sequence[Memory], place: int, memory: HermesLite) -> Moment:
    one = rows[place]
    turns_from = tuple(_turned(rows[:place], one))
    if place == 0:
        kind = "first"
    elif place == len(rows) - 1:
        kind = "latest"
    else:
        kind = "turn" if turns_from else "step"
    return Moment(kind, memory.redactor.outgoing(one), turns_from)


def _turned(earlier: Sequence[Memory], one: Memory) -> Iterator[str]:
    """Yield the ids of earlier memories that one contradicts, replaces or was drawn from."""
    derived = one.meta.get("derived_from")
    known = {each.id for each in earlier}
    if isinstance(derived, (list, tuple)) and note_of(one).level > 1:
        yield from (each for each in derived if each in known)
    for old in earlier[-_COMPARED:]:
        if old.id == one.supersedes or find_conflicts(one.content, old.content):
            yield old.id


# -- commands -----------------------------------------------------------------

def _show(found: Timeline) -> Iterator[str]:
    skipped = 0
    for moment in found.moments:
        if moment.kind == "step":
            skipped += 1
            continue
        if skipped:
            yield f"            … {pluralize(skipped, 'step')}"
            skipped = 0
        one = moment.memory
        asleep = ", asleep" if is_asleep(one) else ""
        yield f"{one.created_at[:10]}  {moment.kind}{asleep}: {excerpt(one.content)}  {one.id}"
        if moment.turns_from:
            yield f"            turns from {', '.join(moment.turns_from)}"


OPERATIONS = (
    Operation("timeline", "show how a matter developed: first, turns, latest",
              lambda memory, concept: timeline(memory, concept), (
        Param("concept", str, "a concept, an entity or words", positional=True,
              required=True),), _show),
)

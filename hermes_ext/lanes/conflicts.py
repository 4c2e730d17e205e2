"""Conflicts on single-valued lanes: a person has one name, an authorization says yes or no.

    hermes_lite.py conflicts                      what says different things
    hermes_lite.py resolve-conflict KEEP DROP…    KEEP holds, the others rest

Two facts of such a lane conflict when they fill the same place with another value: they share a
tag that the writer gave them, or say of the same subject the same attribute ("User's name is …"),
or the core finds that they contradict. Nothing is stored about it: conflicts are computed from the
facts that hold now, so one closes by itself when a fact is forgotten or expires.

A fact that was dropped rests: data["inactive"] = the id that was kept. It rests as long as that
one lives; then it holds again, and with it the conflicts that it has with others.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hermes_ext.lanes.extension import Lanes, find
from hermes_lite import (HermesLite, Memory, MemoryId, NotFound, Operation, Param, Record,
                         Refused, UsageError, excerpt, find_conflicts, iso, normalise, tag_forms)

__all__ = ["LaneConflict", "OPERATIONS", "open_conflicts", "resolve_conflict", "slot_of"]

# "subject [attribute] is value", and "attribute: value".
_STATES = re.compile(
    r"^(?P<slot>.{2,80}?)(?:\s*(?:[:：=]|是|为|叫|姓)\s*|\s+(?:is called|is|are|was|equals|lives in"
    r"|works at|works for|heißt|heisst|ist|lautet|wohnt in|arbeitet bei)\s+)(?P<value>.+)$")
_MAY = re.compile(
    r"^(?P<slot>.{1,60}?)\s*(?:may not|must not|cannot|can't|may|can|is allowed to|darf nicht"
    r"|darf|不可以|不能|不得|可以|允许|能)\s*(?P<value>.+)$")


@dataclass(frozen=True, slots=True)
class LaneConflict(Record):
    """Two facts of one lane that cannot both hold; `slot` is what they speak about."""
    lane: str
    slot: str
    ids: tuple[str, str]
    contents: tuple[str, str]


def slot_of(text: str) -> tuple[str, str] | None:
    """Return (what a text speaks about, the value it gives), or None.

    "User's name is Alex" gives ("user's name", "alex").
    """
    said = normalise(text).rstrip(".!。！ ")
    found = _STATES.match(said)
    if found is None:
        return None
    return found["slot"].strip(), found["value"].strip()


def open_conflicts(memory: HermesLite) -> list[LaneConflict]:
    """Return what conflicts now, lane by lane, the older fact of a pair first."""
    lanes = find(memory)
    found: list[LaneConflict] = []
    with memory.session.reading():
        for lane in lanes.policy.lanes.values():
            if lane.single_valued:
                facts = list(reversed(lanes.of_lane(lane.name)))
                found += _in_lane(memory, lane.name, facts)
    memory.systems.emit("conflicts", sorted({i for one in found for i in one.ids}))
    return found


def _in_lane(memory: HermesLite, lane: str, facts: Sequence[Memory]) -> Iterator[LaneConflict]:
    for place, one in enumerate(facts):
        for two in facts[place + 1:]:
            slot = _common_slot(one, two)
            if slot is not None:
                clean = memory.redactor.redact_field
                contents = clean(one.content), clean(two.content)
                yield LaneConflict(lane, slot, (one.id, two.id), contents)


def _common_slot(one: Memory, two: Memory) -> str | None:
    """Return what both speak about where they say different things, else None."""
    if normalise(one.content) == normalise(two.content):
        return None
    first, second = slot_of(one.content), slot_of(two.content)
    if first and second and first[0] == second[0] and first[1] != second[1]:
        return first[0]
    shared = sorted(_given_tags(one) & _given_tags(two))
    if shared:
        return f"#{shared[0]}"
    if _say_may_and_may_not(one.content, two.content):
        return normalise(one.content)[:40]
    contradicting = find_conflicts(one.content, two.content) or find_conflicts(
        two.content, one.content)
    return contradicting[0][0] if contradicting else None


def _given_tags(one: Memory) -> set[str]:
    """Return the tags that a writer gave, without those of the lanes."""
    return {tag for tag in tag_forms(one.tags) if "/" not in tag}


def _say_may_and_may_not(one: str, two: str) -> bool:
    """Tell whether one text allows what the other forbids."""
    first, second = _MAY.match(normalise(one)), _MAY.match(normalise(two))
    if not first or not second or first["slot"] != second["slot"]:
        return False
    if first["value"].rstrip(".。") != second["value"].rstrip(".。"):
        return False
    return normalise(one) != normalise(two)


def resolve_conflict(memory: HermesLite, keep_id: str,
                     drop_ids: Iterable[str]) -> list[LaneConflict]:
    """Let *keep_id* hold and the others rest; return the conflicts that remain.

    Refused (`source_not_allowed`) where the entry point could not have written the facts that it
    would put to rest: a model does not overrule the person.
    """
    lanes, dropped = find(memory), list(dict.fromkeys(drop_ids))
    if not dropped or keep_id in dropped:
        raise UsageError("give the id to keep, then those to drop; `conflicts` lists them")
    with memory.session.writing() as store:
        kept = memory.lookup(keep_id)
        lane = _single_valued(lanes, kept)
        lanes.need_right_to_write(lane)
        for drop_id in dropped:
            one = memory.lookup(drop_id)
            found = lanes.authority(one)
            if found.lane != lane:
                raise NotFound(f"{drop_id} is no fact of the lane {lane}")
            resting = {**found.data, "inactive": keep_id}
            store.put(lanes.sealed(one, replace(found, data=resting)))
        # A fact that rested for one of those that rest now holds again.
        found = lanes.authority(kept)
        data = {name: value for name, value in found.data.items() if name != "inactive"}
        store.put(replace(lanes.sealed(kept, replace(found, data=data, at=iso(memory.clock()))),
                          supersedes=dropped[0]))
    memory.systems.emit("resolve-conflict", [keep_id, *dropped])
    return open_conflicts(memory)


def _single_valued(lanes: Lanes, one: Memory) -> str:
    lane = lanes.policy.lanes[lanes.authority(one).lane]
    if not lane.single_valued:
        raise Refused(f"{one.id} is in the lane {lane.name}, where facts may differ",
                      "not_single_valued")
    return lane.name


# -- commands -----------------------------------------------------------------

def _resolve(memory: HermesLite, *, keep: str, drop: list[str]) -> list[LaneConflict]:
    return resolve_conflict(memory, keep, drop)


def _show(found: Iterable[Mapping[str, object]]) -> Iterator[str]:
    for one in found:
        assert isinstance(one, LaneConflict)
        yield f"{one.lane}: {one.slot}"
        for memory_id, content in zip(one.ids, one.contents):
            yield f"    {memory_id}  {excerpt(content)}"


def _show_resolved(left: Iterable[Mapping[str, object]]) -> Iterator[str]:
    rows = list(_show(left))
    yield from ["resolved; still open:", *rows] if rows else ["resolved; no conflict is open"]


OPERATIONS = (
    Operation("conflicts", "list facts of single-valued lanes that say different things",
              open_conflicts, (), _show),
    Operation("resolve-conflict", "keep one fact and let those that it contradicts rest",
              _resolve, (
        Param("keep", MemoryId, "the id that holds", positional=True, required=True),
        Param("drop", MemoryId, "the ids that rest", positional=True, repeated=True, required=True)),
        _show_resolved, writes=True, scope="review"),
)

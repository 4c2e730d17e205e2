"""Levels: from a principle down to its cases, and from a case up to what was drawn from it.

    hermes_lite.py brain levels ID
    hermes_lite.py brain levels                   every principle and pattern
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hermes_ext.brain.extension import find
from hermes_ext.brain.note import is_asleep, note_of, sources_of
from hermes_lite import HermesLite, Memory, MemoryId, Operation, Param, Record, excerpt

__all__ = ["Level", "OPERATIONS", "levels"]


@dataclass(frozen=True, slots=True)
class Level(Record):
    """A memory, what it was drawn from, and what was drawn from it; `missing` was forgotten."""
    memory: Memory
    level: int
    cases: tuple[Memory, ...] = ()
    drawn: tuple[Memory, ...] = ()
    missing: int = 0


def levels(memory: HermesLite, memory_id: str | None = None) -> list[Level]:
    """Return a memory with both directions, or every principle and pattern, the highest first."""
    find(memory)
    if memory_id is not None:
        one = memory.lookup(memory_id)
        found = [_level(memory, one)]
    else:
        with memory.session.reading() as store:
            abstract = [one for one in store if note_of(one).level > 1]
            found = [_level(memory, one) for one in abstract]
        found.sort(key=lambda row: (-row.level, row.memory.created_at, row.memory.id))
    memory.systems.emit("brain levels", [row.memory.id for row in found])
    return found


def _level(memory: HermesLite, one: Memory) -> Level:
    outgoing = memory.redactor.outgoing
    with memory.session.reading() as store:
        sources = [store.get(each) for each in sources_of(one)]
        drawn = [store.get(each) for each in note_of(one).abstracted_in]
    return Level(outgoing(one), note_of(one).level,
                 cases=tuple(outgoing(each) for each in sources if each),
                 drawn=tuple(outgoing(each) for each in drawn if each),
                 missing=sources.count(None))


# -- commands -----------------------------------------------------------------

def _show(found: Iterable[Level]) -> Iterator[str]:
    for row in found:
        yield f"{row.memory.id}  level {row.level}{_sleeping(row.memory)}: {_text(row.memory)}"
        for one in row.cases:
            yield f"    from {one.id}{_sleeping(one)}: {_text(one)}"
        for one in row.drawn:
            yield f"    in {one.id}  level {note_of(one).level}: {_text(one)}"
        if row.missing:
            yield f"    from {row.missing} more that were forgotten"


def _sleeping(one: Memory) -> str:
    return ", asleep" if is_asleep(one) else ""


def _text(one: Memory) -> str:
    return excerpt(one.content)


def _levels(memory: HermesLite, *, id: str | None) -> list[Level]:
    return levels(memory, id)


OPERATIONS: tuple[Operation, ...] = (
    Operation("brain levels", "show what a memory was made from, and what was made from it",
              _levels, (Param("id", MemoryId, "the memory's id, or its last characters (default: "
                              "every principle and pattern)", positional=True),), _show),
)

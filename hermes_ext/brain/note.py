"""What the brain keeps about a memory, in meta["brain"], and the tags by which it is found.

    level           1 concrete, 2 pattern, 3 principle
    strength, at    the strength when it was last settled, and that time
    asleep_since    when it fell asleep; absent while it is awake
    abstracted_in   the ids of the memories that were drawn from it
    order           the work order that it answers
    concept, links  of the record that defines a concept: its name, and [[relation, name], …]

What a memory was drawn from stands in meta["derived_from"], which other systems read, too.
A person may have edited a note, or another version written it: what cannot be right counts as
not there.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

from hermes_lite import Memory, Record, is_safe_id, parse_time, plain

__all__ = ["ASLEEP", "CONCEPT", "NAME", "Note", "is_asleep", "note_of", "sources_of", "with_note"]

NAME = "brain"
ASLEEP = "brain/asleep"            # tag of what is out of recall
CONCEPT = "brain/concept"          # tag of the records that define concepts


@dataclass(frozen=True, slots=True)
class Note(Record):
    """What the brain knows about one memory; `strength` None: it was never settled."""
    level: int = 1
    strength: float | None = None
    at: str | None = None
    asleep_since: str | None = None
    abstracted_in: tuple[str, ...] = ()
    order: str | None = None
    concept: str | None = None
    links: tuple[tuple[str, str], ...] = ()


def note_of(memory: Memory) -> Note:
    """Return the note of a memory; what cannot be right in it is left out."""
    kept = memory.meta.get(NAME)
    if not isinstance(kept, dict):
        return Note()
    level, strength, concept = kept.get("level"), kept.get("strength"), kept.get("concept")
    order = kept.get("order")
    if not isinstance(strength, (int, float)) or isinstance(strength, bool) or (
            not 0 <= strength <= 1):
        strength = None
    return Note(
        level=level if level in (2, 3) and type(level) is int else 1,
        strength=None if strength is None else float(strength),
        at=_time(kept.get("at")),
        asleep_since=_time(kept.get("asleep_since")),
        abstracted_in=_ids(kept.get("abstracted_in")),
        order=order if isinstance(order, str) and is_safe_id(order) else None,
        concept=concept if isinstance(concept, str) and concept.strip() else None,
        links=_links(kept.get("links")))


def with_note(memory: Memory, note: Note) -> Memory:
    """Return the memory with this note, and with the tags that follow from it."""
    kept = {name: plain(value) for name, value in note.entry().items()
            if value not in (None, ()) and (name, value) != ("level", 1)}
    tags = [tag for tag in memory.tags if tag not in (ASLEEP, CONCEPT)]
    if note.asleep_since:
        tags.append(ASLEEP)
    if note.concept:
        tags.append(CONCEPT)
    meta = {name: value for name, value in memory.meta.items() if name != NAME}
    if kept:
        meta[NAME] = kept
    return replace(memory, meta=meta, tags=tuple(tags))


def is_asleep(memory: Memory) -> bool:
    """Tell whether a memory is out of recall."""
    return ASLEEP in memory.tags


def sources_of(memory: Memory) -> tuple[str, ...]:
    """Return the ids of what a memory was drawn from."""
    return _ids(memory.meta.get("derived_from"))


def _time(value: object) -> str | None:
    return value if isinstance(value, str) and parse_time(value) else None


def _ids(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(dict.fromkeys(each for each in value
                               if isinstance(each, str) and is_safe_id(each)))


def _links(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    pairs = [each for each in value if isinstance(each, (list, tuple)) and len(each) == 2]
    return tuple((relation, name) for relation, name in pairs
                 if isinstance(relation, str) and isinstance(name, str))

"""Concepts: what memories are about, what each means, and how they relate.

    hermes_lite.py concept add "cache invalidation" "when a cached value no longer holds"
    hermes_lite.py concept link "cache invalidation" part_of caching
    hermes_lite.py concept show "cache invalidation"
    hermes_lite.py concept list

A memory's concepts are taken from it: its tags, the names and versions in its text (the entities
of `graph`) and the values that the system anchors has found. A concept has a key, its name without
case and with - for a blank, because a tag has no blank.

A concept that a person defines or links has a record: a memory "name: definition" with the tags
brain/concept and concept/KEY, whose note keeps the name and the links. It is pinned, and hidden
from every search. A link is directed and has a type: is_a, part_of, causes or any other word;
`related` holds both ways. Members of a concept are what is_a it, directly or over up to three
links.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from hermes_ext.brain.changes import log_change
from hermes_ext.brain.extension import abstracting, find
from hermes_ext.brain.note import ASLEEP, CONCEPT, NAME, Note, note_of, with_note
from hermes_lite import (HermesLite, Memory, NotFound, Operation, Param, Record, UsageError,
                         display_text, excerpt, extract_entities, pluralize, tag_forms)

__all__ = ["Concept", "ConceptCount", "ConceptGraph", "OPERATIONS", "add_concept", "concept_key",
           "concepts_of", "ids_with_concept", "link_concepts", "list_concepts", "show_concept"]

IS_A = "is_a"
SYMMETRIC = "related"
_MOST_NAME = 80                    # characters of a name
_MOST_STEPS = 3                    # is_a links from a class down to its members
_MOST_SHOWN = 10                   # memories of a concept that `concept show` lists


@dataclass(frozen=True, slots=True)
class Concept(Record):
    """A concept; `id` is that of its record, None where nobody has defined or linked it.

    `links` are (type, name) of what it points to, `links_in` of what points to it; `members` are
    the names of what is_a it; `memories` are the newest that have it, `count` is how many do.
    """
    name: str
    id: str | None = None
    definition: str | None = None
    links: tuple[tuple[str, str], ...] = ()
    links_in: tuple[tuple[str, str], ...] = ()
    members: tuple[str, ...] = ()
    count: int = 0
    memories: tuple[Memory, ...] = ()


@dataclass(frozen=True, slots=True)
class ConceptCount(Record):
    """A line of `concept list`."""
    name: str
    count: int
    is_defined: bool
    links: int


def concept_key(name: str) -> str:
    """Return the key of a name: no case, - for blanks; "" where nothing is left of it.

    >>> concept_key("Cache  Invalidation")
    'cache-invalidation'
    """
    return "-".join(tag_forms(name))


def concepts_of(memory: Memory) -> dict[str, str]:
    """Return {key: name} of the concepts of a memory: its tags, entities and anchors."""
    names = [tag for tag in memory.tags if "/" not in tag]         # the rest is a system's own
    names += [name for name, _ in extract_entities(memory.content)]
    names += _anchors_of(memory)
    found: dict[str, str] = {}
    for name in names:
        key = concept_key(name)
        if key:
            found.setdefault(key, name)
    return found


def _anchors_of(memory: Memory) -> Iterator[str]:
    """Yield the values that the system anchors keeps: {type: [value or {"value": …}]}."""
    kept = memory.meta.get("anchors")
    for kind, values in (kept.items() if isinstance(kept, Mapping) else ()):
        if kind == "note" or not isinstance(values, (list, tuple)):
            continue
        for value in values:
            text = value.get("value") if isinstance(value, Mapping) else value
            if isinstance(text, str):
                yield text


def ids_with_concept(memory: HermesLite, key: str) -> list[str]:
    """Return the ids of the memories that have a concept, newest first."""
    search = memory.store.search
    ids = dict.fromkeys([*search.tagged((key,)), *search.graph().memories(key)])
    if any(character.isdigit() for character in key):              # a value may be an anchor
        for memory_id in search.containing(key):
            one = memory.store.get(memory_id)
            if one is not None and key in concepts_of(one):
                ids[memory_id] = None
    hidden = set(search.tagged((CONCEPT,)))
    found = filter(None, map(memory.store.get, [each for each in ids if each not in hidden]))
    oldest_first = sorted(found, key=lambda one: (one.created_at, one.id))
    return [one.id for one in reversed(oldest_first)]


class ConceptGraph:
    """The concepts that have a record, and their links, as they are now."""

    def __init__(self, memory: HermesLite) -> None:
        self.records: dict[str, Memory] = {}
        self.names: dict[str, str] = {}            # key -> name; of link targets, too
        self._out: dict[str, dict[tuple[str, str], None]] = {}
        self._in: dict[str, dict[tuple[str, str], None]] = {}
        store = memory.store
        for record in sorted(filter(None, map(store.get, store.search.tagged((CONCEPT,)))),
                             key=lambda one: (one.created_at, one.id)):
            self._add(record)

    def _add(self, record: Memory) -> None:
        note = note_of(record)
        key = concept_key(note.concept or "")
        if not key:
            return
        self.records[key] = record
        self.names[key] = str(note.concept)
        for relation, name in note.links:
            target = concept_key(name)
            if target and target != key:
                self.names.setdefault(target, name)
                self._out.setdefault(key, {})[relation, target] = None
                self._in.setdefault(target, {})[relation, key] = None

    def links(self, key: str) -> list[tuple[str, str]]:
        """Return (type, key) of what a concept points to; `related` counts both ways."""
        back = [link for link in self._in.get(key, ()) if link[0] == SYMMETRIC]
        return list(dict.fromkeys([*self._out.get(key, ()), *back]))

    def links_in(self, key: str) -> list[tuple[str, str]]:
        """Return (type, key) of what points to a concept, without `related`."""
        return [link for link in self._in.get(key, ()) if link[0] != SYMMETRIC]

    def neighbours(self, key: str) -> dict[str, str]:
        """Return {key: how it relates} of all concepts one link away, in both directions.

        "X is_a Y" for a link in the direction of the text.
        """
        name = self.names.get(key, key)
        found: dict[str, str] = {}
        for relation, other in self.links(key):
            found.setdefault(other, f"{name} {relation} {self.names[other]}")
        for relation, other in self.links_in(key):
            found.setdefault(other, f"{self.names[other]} {relation} {name}")
        return found

    def members(self, key: str) -> list[str]:
        """Return the keys of what is_a a concept, nearest first; a circle does no harm."""
        found: dict[str, None] = {}
        level = [key]
        for _ in range(_MOST_STEPS):
            level = [member for each in level for relation, member in self._in.get(each, ())
                     if relation == IS_A and member not in found and member != key]
            found.update(dict.fromkeys(level))
        return list(found)


# -- writing ------------------------------------------------------------------

def add_concept(memory: HermesLite, name: str, definition: str | None = None) -> Concept:
    """Define a concept, or define it anew; its links stay. UsageError for an empty name."""
    find(memory)
    name = _checked_name(name)
    if definition is not None and not definition.strip():
        raise UsageError("the definition is empty; give a sentence, or leave it out")
    with memory.batch():
        old = ConceptGraph(memory).records.get(concept_key(name))
        note = Note(concept=name, links=note_of(old).links if old else ())
        record = _write_record(memory, name, definition, note, old)
        log_change(memory, "defined a concept", ids=[record.id], made=() if old else [record.id])
    memory.systems.emit("concept add", [record.id])
    return show_concept(memory, name)


def _write_record(memory: HermesLite, name: str, definition: str | None, note: Note,
                  old: Memory | None) -> Memory:
    """Store the record of a concept by the usual way of a text, in place of the *old* one."""
    text = f"{name}: {definition.strip()}" if definition else name
    if old is not None and definition is None:
        text = old.content
    if old is not None and text == old.content:
        record = with_note(old, note)
        memory.store.put(record)
        return record
    meta = {"pinned": True, NAME: {"concept": name, "links": [[*link] for link in note.links]}}
    with abstracting():
        made = memory.remember(text, category="general", tags=[CONCEPT, _tag(name)], meta=meta)
    if old is not None and made.id != old.id:
        memory.store.remove(old.id, why=None)
    return memory.lookup(made.id)


def link_concepts(memory: HermesLite, name: str, relation: str, other: str, *,
                  off: bool = False) -> Concept:
    """Relate two concepts, or with *off* take the relation back; missing records are made.

    NotFound when there is no such relation to take back.
    """
    find(memory)
    name, other = _checked_name(name), _checked_name(other, "the other concept")
    relation = "_".join(tag_forms(relation))
    if not relation:
        raise UsageError("the relation is empty; give one such as is_a, part_of or related")
    if concept_key(name) == concept_key(other):
        raise UsageError("a concept cannot relate to itself; give two that differ")
    with memory.batch():
        records = ConceptGraph(memory).records
        old = records.get(concept_key(name))
        links = list(note_of(old).links) if old else []
        same = [link for link in links
                if (link[0], concept_key(link[1])) == (relation, concept_key(other))]
        if off and not same:
            raise NotFound(f"{memory.redactor.quote(name)} has no link {relation} to "
                           f"{memory.redactor.quote(other)}; `concept show` lists its links")
        links = [link for link in links if link not in same]
        made = []
        if not off:
            links.append((relation, memory.redactor.redact_field(other)))
            if concept_key(other) not in records:  # undo knows the names that have a record
                made.append(_write_record(memory, other, None, Note(concept=other), None).id)
        note = Note(concept=name, links=tuple(links))
        if old is not None:
            note = replace(note_of(old), links=tuple(links))
        record = _write_record(memory, name, None, note, old)
        log_change(memory, "unlinked a concept" if off else "linked a concept",
                   [(old, record)] if old else (), ids=[record.id],
                   made=made if old else [record.id, *made])
    memory.systems.emit("concept link", [record.id])
    return show_concept(memory, name)


def _tag(name: str) -> str:
    return f"concept/{concept_key(name)}"


def _checked_name(name: str, what: str = "the concept") -> str:
    """Return a name in one line; UsageError when it is empty or too long."""
    name = " ".join(str(name).split())
    if not concept_key(name):
        raise UsageError(f"{what} is empty; give a name")
    if len(name) > _MOST_NAME:
        raise UsageError(f"{what} has {len(name)} characters; give a name of at most "
                         f"{_MOST_NAME}")
    return name


# -- reading ------------------------------------------------------------------

def show_concept(memory: HermesLite, name: str) -> Concept:
    """Return a concept with its links, members and newest memories; NotFound when there is none."""
    find(memory)
    name = _checked_name(name)
    key = concept_key(name)
    with memory.session.reading() as store:
        graph = ConceptGraph(memory)
        ids = ids_with_concept(memory, key)
        record = graph.records.get(key)
        if record is None and not ids and key not in graph.names:
            raise NotFound(f"there is no concept {memory.redactor.quote(name)}; `concept list` "
                           "shows those there are")
        rows = [store.get(memory_id) for memory_id in ids[:_MOST_SHOWN]]
    outgoing, redact = memory.redactor.outgoing, memory.redactor.redact_field
    shown = redact(graph.names.get(key, name))
    memory.systems.emit("concept show", ids[:_MOST_SHOWN])
    return Concept(
        name=shown, id=record.id if record else None,
        definition=redact(_definition(record)) if record else None,
        links=tuple((relation, redact(graph.names[other])) for relation, other in graph.links(key)),
        links_in=tuple((relation, redact(graph.names[other]))
                       for relation, other in graph.links_in(key)),
        members=tuple(redact(graph.names[member]) for member in graph.members(key)),
        count=len(ids), memories=tuple(outgoing(one) for one in rows if one))


def _definition(record: Memory) -> str:
    """Return what stands behind the name in the text of a record; "" where nothing does."""
    _, _, definition = record.content.partition(": ")
    return definition


def list_concepts(memory: HermesLite, *, top: int = 20) -> list[ConceptCount]:
    """Return the concepts that most memories have, ties by name; defined ones at any count."""
    find(memory)
    counts: Counter[str] = Counter()
    names: dict[str, str] = {}
    with memory.session.reading() as store:
        graph = ConceptGraph(memory)
        for one in store:
            if CONCEPT in one.tags or ASLEEP in one.tags:
                continue
            for key, name in concepts_of(one).items():
                counts[key] += 1
                names.setdefault(key, name)
    names.update(graph.names)
    ranked = sorted(names, key=lambda key: (-counts[key], key))
    chosen = [key for place, key in enumerate(ranked) if place < top or key in graph.records]
    memory.systems.emit("concept list")
    return [ConceptCount(memory.redactor.redact_field(names[key]), counts[key],
                         key in graph.records, len(graph.links(key)) + len(graph.links_in(key)))
            for key in chosen]


# -- commands -----------------------------------------------------------------

def _show(concept: Concept) -> Iterator[str]:
    yield display_text(concept.name + (f": {concept.definition}" if concept.definition else ""))
    for relation, other in concept.links:
        yield f"  {relation} {display_text(other)}"
    for relation, other in concept.links_in:
        yield f"  {display_text(other)} {relation} it"
    if concept.members:
        yield f"  members: {display_text(', '.join(concept.members))}"
    yield f"  {pluralize(concept.count, 'memory', 'memories')}"
    for one in concept.memories:
        yield f"    {one.id}  {excerpt(one.content)}"


def _show_list(rows: Iterable[ConceptCount]) -> Iterator[str]:
    for row in rows:
        linked = f", {pluralize(row.links, 'link')}" if row.links else ""
        defined = ", defined" if row.is_defined else ""
        yield (f"{display_text(row.name)}  {pluralize(row.count, 'memory', 'memories')}"
               f"{linked}{defined}")


_NAME = Param("name", str, "the concept", positional=True, required=True)

OPERATIONS = (
    Operation("concept add", "define a concept", lambda memory, name, definition:
              add_concept(memory, name, definition), (
        _NAME, Param("definition", str, "what it means, in a sentence", positional=True)),
        _show, writes=True),
    Operation("concept show", "show a concept, its relations and its memories",
              lambda memory, name: show_concept(memory, name), (_NAME,), _show),
    Operation("concept link", "relate two concepts, or take a relation back",
              lambda memory, name, relation, other, off: link_concepts(
                  memory, name, relation, other, off=off), (
        _NAME, Param("relation", str, "is_a, part_of, causes, related or another word",
                     positional=True, required=True),
        Param("other", str, "the other concept", positional=True, required=True),
        Param("off", bool, "take the relation back", False)), _show, writes=True),
    Operation("concept list", "list the concepts, the most used first",
              lambda memory, top: list_concepts(memory, top=top), (
        Param("top", int, "at most this many, and all that are defined", 20, least=1),),
        _show_list),
)

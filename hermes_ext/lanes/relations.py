"""Entities and how they relate: a directed graph of typed edges, and several names for one.

    hermes_lite.py track Alex person --attributes language=de username=alex_dev
    hermes_lite.py relate Alex works_at acme
    hermes_lite.py relations Alex --direction both
    hermes_lite.py alias telegram:1001 Alice

Each entity and each edge is a memory, so it is redacted, encrypted, synced and forgotten like any
other; names are compared without case. An alias makes several names one: what is asked about one
is found under the others, and what the agent `telegram:1001` writes from then on is Alice's.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from hermes_ext.lanes import aliases
from hermes_ext.lanes.authority import entity_tag
from hermes_ext.lanes.extension import Lanes, find
from hermes_ext.lanes.origin import Claim, claiming
from hermes_lite import (HermesLite, Memory, Operation, Param, Record, UsageError, display_text,
                         is_same_agent, normalise)

__all__ = ["Entity", "OPERATIONS", "Relation", "add_alias", "entity", "names_of", "relate",
           "relations", "track"]

_DIRECTIONS = ("out", "in", "both")


@dataclass(frozen=True, slots=True)
class Entity(Record):
    """A person, place or thing; `names` are all it goes by, `name` first."""
    id: str
    name: str
    type: str
    attributes: Mapping[str, object]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Relation(Record):
    """One directed edge."""
    id: str
    source: str
    relation: str
    target: str
    origin: str = "inference"


def track(memory: HermesLite, name: str, type: str = "thing",
          attributes: Mapping[str, object] | None = None, *,
          source: str | None = None) -> Entity:
    """Keep an entity; attributes that are given again replace the older ones.

    A lower origin cannot change what a higher one has said: it becomes an entity beside it.
    """
    lanes = find(memory)
    name, kind = _name(name, "name"), _name(type, "type")
    if attributes is not None and not isinstance(attributes, Mapping):
        raise UsageError("attributes is no mapping; give names and values")
    given = {str(key): str(value) for key, value in (attributes or {}).items()}
    with memory.batch():
        old = _records(lanes, "entity", name)
        known: dict[str, object] = {}
        for one in old:
            before = lanes.authority(one).data
            if isinstance(before.get("attributes"), Mapping):
                known = {**known, **before["attributes"]}      # type: ignore[dict-item]
        data = {"name": name, "type": kind, "attributes": {**known, **given}, "names": [name]}
        with claiming(Claim(None, source, kind="entity", data=data)):
            made = memory.remember(_entity_text(name, kind, {**known, **given}))
        origin = lanes.authority(memory.lookup(made.id)).origin
        for one in old:
            if lanes.authority(one).origin == origin:
                memory.store.remove(one.id, why=None)
    found = entity(memory, name)
    assert found is not None
    return found


def _entity_text(name: str, kind: str, attributes: Mapping[str, object]) -> str:
    said = ", ".join(f"{key} {value}" for key, value in attributes.items())
    return f"{name} ({kind}): {said}" if said else f"{name} ({kind})"


def entity(memory: HermesLite, name: str) -> Entity | None:
    """Return the entity of a name or alias, the most trusted one where there are several."""
    lanes = find(memory)
    names = names_of(memory, name)
    for each in names:
        ranked = sorted(_records(lanes, "entity", each), key=lambda one: lanes.rank_of(one))
        if ranked:
            data = lanes.authority(ranked[0]).data
            attributes = data.get("attributes")
            return Entity(ranked[0].id, str(data.get("name")), str(data.get("type")),
                          dict(attributes) if isinstance(attributes, Mapping) else {},
                          tuple(dict.fromkeys((str(data.get("name")), *names))))
    return None


def relate(memory: HermesLite, source_name: str, relation: str, target_name: str, *,
           source: str | None = None) -> Relation:
    """Say that one entity relates to another; the same edge is kept once."""
    lanes = find(memory)
    start, end = _name(source_name, "entity"), _name(target_name, "other entity")
    edge = _name(relation, "relation")
    for one in relations(memory, start, direction="out"):
        if (normalise(one.relation), normalise(one.target)) == (normalise(edge), normalise(end)):
            return one
    data = {"from": start, "type": edge, "to": end, "names": [start, end]}
    with claiming(Claim(None, source, kind="relation", data=data)):
        made = memory.remember(f"{start} {edge} {end}")
    return _relation(lanes, memory.lookup(made.id))


def relations(memory: HermesLite, name: str, *, direction: str = "both") -> list[Relation]:
    """Return the edges of an entity, oldest first: out of it, into it, or both."""
    if direction not in _DIRECTIONS:
        raise UsageError(f"direction is {str(direction)[:40]!r}; use one of: "
                         f"{', '.join(_DIRECTIONS)}")
    lanes = find(memory)
    names = {normalise(each) for each in names_of(memory, _name(name, "entity"))}
    found: dict[str, Relation] = {}
    for each in sorted(names):
        for one in _records(lanes, "relation", each):
            edge = _relation(lanes, one)
            leaves, arrives = normalise(edge.source) in names, normalise(edge.target) in names
            if leaves and direction != "in" or arrives and direction != "out":
                found[edge.id] = edge
    memory.systems.emit("relations", sorted(found), query=name)
    return [found[key] for key in sorted(found)]


def _relation(lanes: Lanes, one: Memory) -> Relation:
    found = lanes.authority(one)
    data = found.data
    return Relation(one.id, str(data.get("from")), str(data.get("type")), str(data.get("to")),
                    found.origin)


def _records(lanes: Lanes, kind: str, name: str) -> list[Memory]:
    """Return the records of a kind that say something about a name, and do not wait."""
    with lanes.memory.session.reading() as store:
        rows = map(store.get, store.search.tagged((entity_tag(name),)))
        found = []
        for one in rows:
            if one is not None:
                authority = lanes.authority(one)
                if authority.kind == kind and authority.held is None:
                    found.append(one)
    return found


def _name(name: object, what: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"the {what} is empty; give a name")
    return " ".join(name.split())[:200]


# -- aliases ------------------------------------------------------------------

def add_alias(memory: HermesLite, alias: str, name: str) -> Entity:
    """Let *alias* stand for the person *name*; what the agent *alias* has written becomes theirs.

    Refused where the entry point could not write to the lane identity.
    """
    lanes = find(memory)
    alias, name = _name(alias, "alias"), _name(name, "name")
    if normalise(alias) == normalise(name):
        raise UsageError("an alias is another name; give two that differ")
    lanes.need_right_to_write("identity")
    owner = names_of(memory, name)[0]
    if normalise(alias) not in map(normalise, names_of(memory, name)):
        taken = [each for each in names_of(memory, alias) if normalise(each) != normalise(alias)]
        if taken:
            raise UsageError(f"{alias!r} stands for {taken[0]!r} already; forget that first")
        data = {"alias": alias, "name": owner, "names": [alias, owner]}
        with claiming(Claim("identity", "observation", 1.0, kind="alias", data=data)):
            memory.remember(f"{alias} is {owner}")
    with memory.session.writing() as store:
        for one in [one for one in store if one.agent and is_same_agent(one.agent, alias)]:
            store.put(replace(one, agent=owner))
    memory.systems.emit("alias", query=name)
    return entity(memory, owner) or Entity("", owner, "person", {}, names_of(memory, owner))


def names_of(memory: HermesLite, name: str) -> tuple[str, ...]:
    """Return all names of who is called *name*: the person first, then the aliases, sorted."""
    with memory.session.reading() as store:
        return aliases.names_of(store, find(memory).authority, name)


# -- commands -----------------------------------------------------------------

def _track(memory: HermesLite, *, name: str, type: str, attributes: Iterable[str]) -> Entity:
    pairs = {}
    for word in attributes:
        key, sign, value = word.partition("=")
        if not sign or not key.strip():
            raise UsageError(f"{word[:40]!r} is no attribute; give name=value")
        pairs[key.strip()] = value.strip()
    return track(memory, name, type, pairs)


def _show_entity(one: Entity) -> Iterator[str]:
    yield display_text(_entity_text(one.name, one.type, one.attributes))
    if len(one.names) > 1:
        yield f"    also {display_text(', '.join(one.names[1:]))}"


def _show_relations(found: Relation | Iterable[Relation]) -> Iterator[str]:
    for one in [found] if isinstance(found, Relation) else found:
        yield f"{one.id}  {display_text(f'{one.source} {one.relation} {one.target}')}"


OPERATIONS = (
    Operation("track", "keep a person, a place or a thing with what is known about it", _track, (
        Param("name", str, "the name", positional=True, required=True),
        Param("type", str, "person, place, project …", "thing", positional=True),
        Param("attributes", str, "what is known, as name=value; several may follow", (),
              repeated=True)), _show_entity, writes=True),
    Operation("relate", "say how one entity relates to another", lambda memory, entity, relation,
              other: relate(memory, entity, relation, other), (
        Param("entity", str, "who or what", positional=True, required=True),
        Param("relation", str, "how, such as works_at", positional=True, required=True),
        Param("other", str, "to whom or what", positional=True, required=True)),
        _show_relations, writes=True),
    Operation("relations", "list how an entity relates to others", lambda memory, entity,
              direction: relations(memory, entity, direction=direction), (
        Param("entity", str, "the name, or an alias", positional=True, required=True),
        Param("direction", str, "out, in or both", "both")), _show_relations),
    Operation("alias", "let several names stand for one person", lambda memory, alias, name:
              add_alias(memory, alias, name), (
        Param("alias", str, "the other name, such as telegram:1001", positional=True,
              required=True),
        Param("name", str, "whom it means", positional=True, required=True)), _show_entity,
        writes=True),
)

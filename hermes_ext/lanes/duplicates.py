"""Consolidation: facts that say the same in several lanes, or from several origins.

    hermes_lite.py consolidate --dry-run          what says the same, and which one would stay
    hermes_lite.py consolidate                    asks

The most trusted fact of a group stays as it is; the others are archived like pruned ones and
deleted. So a consolidation raises nothing, and no text is written.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hermes_ext.lanes.extension import Lanes, find
from hermes_ext.lanes.policy import LANES
from hermes_lite import (Expired, HermesLite, Memory, Operation, Pruned, Record, excerpt,
                         normalise, pluralize)

__all__ = ["Consolidated", "Group", "OPERATIONS", "consolidate"]


@dataclass(frozen=True, slots=True)
class Group(Record):
    """Facts that say the same; `keep` is the id that stays, `kind` exact or near."""
    keep: str
    drop: tuple[str, ...]
    kind: str
    contents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Consolidated(Record):
    """What a consolidation found, and where it archived what it deleted."""
    groups: tuple[Group, ...]
    dry_run: bool
    archive: str | None = None


def consolidate(memory: HermesLite, *, dry_run: bool = False) -> Consolidated:
    """Find exact and near duplicates across lanes; keep the most trusted of each group."""
    lanes = find(memory)
    groups: list[Group] = []

    def plan() -> Pruned:
        groups[:] = [_group(memory, lanes, rows) for rows in _duplicates(memory, lanes)]
        expired = tuple(Expired(each, f"says the same as {group.keep}", content)
                        for group in groups
                        for each, content in zip(group.drop, group.contents[1:]))
        return Pruned(expired, {"says the same as another": len(expired)}, dry_run=True)

    if dry_run:
        with memory.session.reading():
            plan()
        return Consolidated(tuple(groups), True)
    done = memory.pruner.remove(plan)
    return Consolidated(tuple(groups), False, done.archive)


def _duplicates(memory: HermesLite, lanes: Lanes) -> Iterator[list[Memory]]:
    """Yield the groups of facts that say the same, each fact in one group at most."""
    store, taken = memory.store, set()
    facts = {one.id: one for one in store if _is_fact(lanes, one)}
    for one in facts.values():
        group = [one]
        while one.id not in taken:
            known = {each.id for each in group}
            found = store.search.duplicate(one.content, accept=lambda each: (
                each in facts and each not in taken and each not in known))
            if found is None:
                break
            group.append(facts[found])
        if len(group) > 1:
            taken |= {each.id for each in group}
            yield group


def _is_fact(lanes: Lanes, one: Memory) -> bool:
    found = lanes.authority(one)
    return found.kind == "fact" and not lanes.is_hidden(found) and not one.meta.get("pinned")


def _group(memory: HermesLite, lanes: Lanes, rows: Sequence[Memory]) -> Group:
    def order(one: Memory) -> tuple[object, ...]:
        lane = list(LANES).index(lanes.authority(one).lane)
        return lanes.rank_of(one), lane == 2, lane, one.created_at, one.id

    first, *rest = sorted(rows, key=order)
    same = all(normalise(one.content) == normalise(first.content) for one in rest)
    contents = (memory.redactor.redact_field(one.content) for one in (first, *rest))
    return Group(first.id, tuple(one.id for one in rest), "exact" if same else "near",
                 tuple(contents))


def _show(result: Consolidated) -> Iterator[str]:
    for group in result.groups:
        yield f"{group.kind}: keep {group.keep}  {excerpt(group.contents[0])}"
        for each, content in zip(group.drop, group.contents[1:]):
            yield f"    drop {each}  {excerpt(content)}"
    many = sum(len(group.drop) for group in result.groups)
    verb = "would delete" if result.dry_run else "deleted"
    yield f"{verb} {pluralize(many, 'duplicate')}"


OPERATIONS = (
    Operation("consolidate", "list, or merge, facts that say the same in several lanes",
              consolidate, (), _show, writes=True, destructive=True),
)

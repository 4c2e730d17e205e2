"""Facts: write one to a lane, list a lane, count, let go what is stale, seal again.

    hermes_lite.py lanes                                        the policy, and what was counted
    hermes_lite.py lanes add "User's name is Alex" --authority identity --source observation
    hermes_lite.py list --authority identity                    (or: lanes list --authority …)
    hermes_lite.py lanes reseal ID…                             after a change of .personal_key
    hermes_lite.py forget-stale                                 from cron, or a systemd timer
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hermes_ext.lanes.authority import claimed
from hermes_ext.lanes.extension import find
from hermes_ext.lanes.origin import Claim, claiming
from hermes_ext.lanes.person import confirm
from hermes_lite import (Expired, HermesLite, Memory, Operation, Param, Pruned, Remembered,
                         UsageError, display_text, excerpt, iso, pluralize)

__all__ = ["OPERATIONS", "add", "forget_stale", "listed", "reseal", "standing"]


def add(memory: HermesLite, text: str, *, authority: str | None = None,
        source: str | None = None, confidence: float | None = None, session: str | None = None,
        **more: Any) -> Remembered:
    """Remember a fact in a lane; Refused where its policy does not take it.

    The source is an origin; the entry point may lower it. *more* goes to `remember`.
    """
    find(memory)
    with claiming(Claim(authority, source, confidence, session=session)):
        return memory.remember(text, **more)


def listed(memory: HermesLite, authority: str, *, most: int | None = None) -> list[Memory]:
    """Return the facts of a lane that hold now, the newest first; renews no life."""
    rows = [memory.redactor.outgoing(one) for one in find(memory).of_lane(authority, most=most)]
    memory.systems.emit("list", [one.id for one in rows])
    return rows


def standing(memory: HermesLite) -> dict[str, object]:
    """Return the policy of each lane with its facts, and what was refused, held, quarantined."""
    lanes = find(memory)
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    with memory.session.reading() as store:
        for one in store:
            found = lanes.authority(one)
            if found.held:
                kinds["held"] += 1
            elif found.kind == "fact":
                counts[found.lane] += 1
            else:
                kinds[found.kind] += 1
    policy = {name: {"facts": counts[name], "days": lane.days, "confidence": lane.confidence,
                     "sources": list(lane.sources)} for name, lane in lanes.policy.lanes.items()}
    return {"lanes": policy, "kinds": dict(sorted(kinds.items())),
            "counts": lanes.state.counts(), "review": lanes.policy.review}


def forget_stale(memory: HermesLite, *, dry_run: bool = False) -> Pruned:
    """Archive, then delete what was not recalled for the days of its lane; idempotent."""
    find(memory)
    if not dry_run:
        return memory.pruner.remove(lambda: _stale_plan(memory))
    with memory.session.reading():
        return _stale_plan(memory)


def _stale_plan(memory: HermesLite) -> Pruned:
    """Return what the days of the lanes end now; pinned and critical facts stay."""
    lanes, now, rows = find(memory), memory.clock(), []
    critical = memory.config["pruning"]["critical_importance"]
    for one in memory.store:
        reason = lanes.expired(one, now)
        if reason and not one.meta.get("pinned") and one.importance < critical:
            rows.append(Expired(one.id, reason, memory.redactor.redact_field(one.content)))
    reasons = dict(sorted(Counter(row.reason for row in rows).items()))
    return Pruned(tuple(rows), reasons, dry_run=True)


def reseal(memory: HermesLite, ids: Iterable[str]) -> list[Memory]:
    """Let the authority that memories claim hold again; a person has to see each of them.

    For records of a store that was moved without its .personal_key, and for notes that this
    person has edited in store/.
    """
    lanes, wanted = find(memory), [*ids]
    if not wanted:
        raise UsageError("give the ids to seal; `list` shows them")
    rows = {}
    for memory_id in wanted:
        one = memory.lookup(memory_id)
        found = claimed(one.meta)
        if found is None:
            raise UsageError(f"{memory_id} claims no authority; use `lanes add`")
        rows[memory_id] = (one, found)
    confirm(memory, "reseal", [f"{one.id}  {found.lane} · {found.origin}: "
                               f"{display_text(one.content)}" for one, found in rows.values()])
    done = []
    with memory.session.writing() as store:
        for memory_id, (seen, found) in rows.items():
            one = memory.lookup(memory_id)
            if one.content == seen.content:
                done.append(lanes.sealed(one, replace(found, at=iso(memory.clock()))))
                store.put(done[-1])
    memory.systems.emit("reseal", [one.id for one in done])
    return done


def _lanes(memory: HermesLite, *, action: str, text: list[str], authority: str | None,
           source: str | None, confidence: str | None, limit: int | None) -> object:
    if action == "show":
        return standing(memory)
    if action == "reseal":
        return reseal(memory, text)
    if action == "list":
        return listed(memory, authority or "evidence", most=limit)
    if action != "add":
        raise UsageError(f"{action[:40]!r} is no action; use show, add, list or reseal")
    if len(text) != 1:
        raise UsageError("lanes add needs one text; put it in quotes")
    return add(memory, text[0], authority=authority, source=source,
               confidence=read_confidence(confidence))


def read_confidence(word: str | None) -> float | None:
    """Read a confidence that a person typed; UsageError unless it is from 0 to 1."""
    if word is None:
        return None
    try:
        number = float(word)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise UsageError(f"confidence is {word[:40]!r}; give a number from 0 to 1")
    return number


def _show_lanes(result: object) -> Iterator[str]:
    if isinstance(result, Remembered):
        yield f"{'remembered' if result.created else 'merged into'} {result.id}"
    elif isinstance(result, list):
        yield from (f"{one.id}  {excerpt(one.content)}" for one in result)
    elif isinstance(result, Mapping):
        for name, lane in result["lanes"].items():
            days = "for ever" if lane["days"] is None else pluralize(lane["days"], "day")
            yield (f"{name}  {pluralize(lane['facts'], 'fact')}, kept {days}, confidence from "
                   f"{lane['confidence']:g}, written by {', '.join(lane['sources'])}")
        for title in ("kinds", "counts"):
            said = ", ".join(f"{name} {count}" for name, count in result[title].items())
            yield f"{title}: {said or 'none'}"
        yield f"review: {result['review']}"


def show_pruned(result: Pruned) -> Iterator[str]:
    for row in result.expired:
        yield f"{row.id}  {row.reason}: {excerpt(row.content)}"
    many = pluralize(len(result.expired), "memory", "memories")
    yield f"would delete {many}" if result.dry_run else f"deleted {many}"


OPERATIONS = (
    Operation("lanes", "show the lanes, add to one, list one, or seal again what this root "
              "vouches for", _lanes, (
        Param("action", str, "show, add, list or reseal", "show", positional=True),
        Param("text", str, "add: the text; reseal: the ids", (), positional=True, repeated=True),
        Param("authority", str, "the lane: identity, preference, evidence or authorization"),
        Param("source", str, "observation, conversation, inference, tool or external; it can "
              "only be lower than where the text comes from"),
        Param("confidence", str, "0 to 1 (default: by the source)"),
        Param("limit", int, "list: at most this many", least=1)), _show_lanes, writes=True),
    Operation("forget-stale", "delete what was not recalled for the days of its lane",
              forget_stale, (Param("dry_run", bool, "only show what and why", False),),
              show_pruned, writes=True, scope="admin"),
)

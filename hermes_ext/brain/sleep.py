"""What falls asleep, and what wakes up.

    hermes_lite.py forgotten                      what is asleep, the latest first
    hermes_lite.py revive ID…

A memory falls asleep when it is weaker than `asleep_below` and was not used for `unused_days`. It
is then out of every search, and kept. Never asleep: what is critical (pruning.critical_importance)
or pinned, what defines a concept, what a lane keeps for who the user is and what he has allowed,
rules and notes of other systems, and a pattern as long as one of its cases is awake.

It wakes up by `revive`, when it is said again, or by a strong match in `recall --deep`.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hermes_ext.brain.changes import log_change
from hermes_ext.brain.extension import Brain, find
from hermes_ext.brain.note import (ASLEEP, CONCEPT, is_asleep, note_of, sources_of, with_note)
from hermes_ext.brain.strength import last_use, strength_at
from hermes_lite import (HermesLite, Memory, MemoryId, Operation, Param, UsageError, excerpt, iso,
                         pluralize)

__all__ = ["OPERATIONS", "fall_asleep", "forgotten", "is_ordinary", "revive"]

_BATCH = 500                           # memories in one transaction
_LASTING = ("lane/identity", "lane/authorization", "lane/procedural")


def is_ordinary(tags: Iterable[str]) -> bool:
    """Tell whether a memory is a text of its own, and no record that another system lives on."""
    return not any(tag in (*_LASTING, CONCEPT) or tag.startswith(("kind/", "lanes/"))
                   for tag in tags)


def fall_asleep(memory: HermesLite) -> int:
    """Put to sleep all that is due, in transactions of at most 500; return how many."""
    brain, now = find(memory), memory.clock()
    baseline = brain.baseline()
    unused_since = now - timedelta(days=brain.settings.unused_days)
    if baseline is None or baseline > unused_since:
        return 0
    with memory.session.reading():
        ids = [each for each in _unused(memory, unused_since)
               if _is_due(brain, memory.store.get(each), baseline, now)]
    slept = 0
    for start in range(0, len(ids), _BATCH):
        with memory.session.writing() as store:
            pairs = []
            for one in filter(None, map(store.get, ids[start:start + _BATCH])):
                if _is_due(brain, one, baseline, now):     # it may have been used meanwhile
                    note = replace(note_of(one), asleep_since=iso(now))
                    pairs.append((one, with_note(one, note)))
            for _, asleep in pairs:
                store.put(asleep)
            if pairs:
                log_change(memory, "fell asleep", pairs)
        slept += len(pairs)
    return slept


def _unused(memory: HermesLite, since: datetime) -> Iterator[str]:
    """Yield the ids of what may be due, by the text of its times: a cycle asks of all."""
    cutoff = iso(since)
    for memory_id in memory.store.ids():
        entry = memory.store.entry(memory_id)
        if entry is None or ASLEEP in (entry.get("tags") or ()):
            continue
        if not any(_is_after(entry.get(name), cutoff) for name in ("last_accessed",
                                                                   "created_at")):
            yield memory_id


def _is_after(time: object, cutoff: str) -> bool:
    """Tell whether a time in the form of `iso` is after another; of any other form it is not."""
    is_plain = isinstance(time, str) and len(time) == len(cutoff) and time.endswith("+00:00")
    return is_plain and str(time) > cutoff


def _is_due(brain: Brain, one: Memory | None, baseline: datetime, now: datetime) -> bool:
    """Tell whether a memory should fall asleep now; None, one that has gone, should not."""
    if one is None or is_asleep(one) or one.meta.get("pinned") or not is_ordinary(one.tags):
        return False
    settings, memory = brain.settings, brain.memory
    if one.importance >= memory.config["pruning"]["critical_importance"]:
        return False
    used = last_use(one, baseline)
    if used is None or now - used < timedelta(days=settings.unused_days):
        return False
    if strength_at(one, now, settings, baseline) >= settings.asleep_below:
        return False
    return note_of(one).level == 1 or not _has_source_awake(memory, one)


def _has_source_awake(memory: HermesLite, one: Memory) -> bool:
    sources = filter(None, map(memory.store.get, sources_of(one)))
    return any(not is_asleep(source) for source in sources)


def forgotten(memory: HermesLite, *, limit: int | None = None) -> list[Memory]:
    """Return what is asleep, what fell asleep last first."""
    find(memory)
    with memory.session.reading() as store:
        rows = [one for one in map(store.get, store.search.tagged((ASLEEP,))) if one]
    rows.sort(key=lambda one: (note_of(one).asleep_since or "", one.created_at, one.id),
              reverse=True)
    memory.systems.emit("forgotten", [one.id for one in rows[:limit]])
    return [memory.redactor.outgoing(one) for one in rows[:limit]]


def revive(memory: HermesLite, ids: Iterable[str], *, why: str = "woke up") -> list[Memory]:
    """Wake up memories: each is as strong as when it was new; one that is awake stays as it is.

    *why* is what the log says.
    """
    brain, now = find(memory), memory.clock()
    baseline = brain.baseline()
    if isinstance(ids, str):
        raise UsageError("give a list of ids")
    with memory.session.writing() as store:
        pairs = []
        for one in map(memory.lookup, dict.fromkeys(ids)):
            if is_asleep(one):
                strength = max(one.importance / 10,
                               strength_at(one, now, brain.settings, baseline))
                note = replace(note_of(one), asleep_since=None, strength=strength, at=iso(now))
                pairs.append((one, with_note(one, note)))
        for _, awake in pairs:
            store.put(awake)
        if pairs:
            log_change(memory, why, pairs)
    woken = [memory.redactor.outgoing(awake) for _, awake in pairs]
    memory.systems.emit("revive", [one.id for one in woken])
    return woken


# -- commands -----------------------------------------------------------------

def _forgotten(memory: HermesLite, *, limit: int | None) -> list[Memory]:
    return forgotten(memory, limit=limit)


def _revive(memory: HermesLite, *, ids: list[str]) -> dict[str, Any]:
    woken = revive(memory, ids)
    return {"revived": woken, "awake_already": len(set(ids)) - len(woken)}


def _show_forgotten(rows: Iterable[Memory]) -> Iterator[str]:
    for one in rows:
        since = (note_of(one).asleep_since or "")[:10]
        yield f"{one.id}  asleep since {since}: {excerpt(one.content)}"


def _show_revived(result: Mapping[str, Any]) -> Iterator[str]:
    for one in result["revived"]:
        yield f"{one.id}  {excerpt(one.content)}"
    many = pluralize(len(result["revived"]), "memory", "memories")
    awake = result["awake_already"]
    yield f"woke up {many}" + (f"; {awake} awake already" if awake else "")


OPERATIONS = (
    Operation("forgotten", "list what is asleep", _forgotten, (
        Param("limit", int, "at most this many", least=1),), _show_forgotten),
    Operation("revive", "wake up what is asleep", _revive, (
        Param("ids", MemoryId, "the ids, or their last characters", positional=True, repeated=True,
              required=True),), _show_revived, writes=True),
)

"""Review: what models propose, and what came too fast after a rest, waits for a person.

    hermes_lite.py pending                        what waits, with the fingerprint of each text
    hermes_lite.py approve ID…                    shows each text and asks
    hermes_lite.py approve ID --authority preference        and the person vouches for it
    hermes_lite.py reject ID…

An approval holds for exactly the text that was shown: it is refused when the text has changed
since, whether the fingerprint was given with --fingerprint or the text was shown by the command.
The origin stays what it was; with --authority the person says so, and it is observation.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from hermes_ext.lanes.authority import Authority, text_fingerprint
from hermes_ext.lanes.extension import Lanes, find
from hermes_ext.lanes.person import confirm, need_person
from hermes_lite import (Forgotten, HermesLite, Memory, MemoryId, NotFound, Operation, Param,
                         Refused, UsageError, display_text, excerpt, iso)

__all__ = ["OPERATIONS", "approve", "check_fingerprint", "pending", "reject"]


def pending(memory: HermesLite) -> list[dict[str, object]]:
    """Return what waits, oldest first: id, why, lane, origin, content and its fingerprint."""
    lanes = find(memory)
    rows: list[dict[str, object]] = []
    with memory.session.reading() as store:
        for memory_id in reversed(store.search.tagged(("lanes/held",))):
            one = store.get(memory_id)
            found = lanes.authority(one) if one else None
            if one is not None and found is not None and found.held:
                rows.append({"id": one.id, "waits_for": found.held, "lane": found.lane,
                             "origin": found.origin,
                             "content": memory.redactor.redact_field(one.content),
                             "fingerprint": text_fingerprint(one.content)})
    memory.systems.emit("pending", [str(row["id"]) for row in rows])
    return rows


def check_fingerprint(one: Memory, shown: str | None) -> None:
    """Raise Refused when a text is no longer the one with this fingerprint."""
    if shown is not None and shown != text_fingerprint(one.content):
        raise Refused(f"the text of {one.id} is no longer the one that was shown; look at it "
                      "again", "text_changed")


def approve(memory: HermesLite, ids: Iterable[str], *, authority: str | None = None,
            fingerprint: str | None = None) -> list[Memory]:
    """Let what waits hold, once the person at the terminal has seen each text and said yes."""
    lanes, wanted = find(memory), list(dict.fromkeys(ids))
    if not wanted:
        raise UsageError("give the ids to approve; `pending` lists them")
    if fingerprint is not None and len(wanted) > 1:
        raise UsageError("--fingerprint is that of one text; give one id")
    lane = None if authority is None else lanes.policy.lane(authority).name
    if lane == "procedural":
        raise Refused("a rule is proposed and approved: use propose-rule", "needs_review")
    seen = {memory_id: _waiting(memory, lanes, memory_id) for memory_id in wanted}
    if fingerprint is None:
        confirm(memory, "approve", [f"{one.id}  {lane or claim.lane} · {claim.origin}: "
                                    f"{display_text(one.content)}"
                                    for one, claim in seen.values()])
    else:
        need_person(memory, "approve")
        check_fingerprint(seen[wanted[0]][0], fingerprint)
    done = []
    with memory.session.writing() as store:
        for memory_id, (shown, _) in seen.items():
            one, found = _waiting(memory, lanes, memory_id)
            check_fingerprint(one, text_fingerprint(shown.content))
            freed = replace(found, held=None, at=iso(memory.clock()))
            if lane is not None:
                freed = replace(freed, lane=lane, origin="observation", confidence=1.0)
            done.append(lanes.sealed(one, freed))
        for one in done:
            store.put(one)
    memory.systems.emit("approve", [one.id for one in done])
    return [memory.redactor.outgoing(one) for one in done]


def _waiting(memory: HermesLite, lanes: Lanes, memory_id: str) -> tuple[Memory, Authority]:
    """Return a memory that waits with its authority; NotFound when it does not wait."""
    one = memory.lookup(memory_id)
    found = lanes.authority(one)
    if not found.held:
        raise NotFound(f"{memory_id} does not wait; `pending` lists what does")
    return one, found


def reject(memory: HermesLite, ids: Iterable[str], *, why: str | None = None) -> list[Forgotten]:
    """Delete what waits; it is not proposed again."""
    lanes, wanted = find(memory), list(dict.fromkeys(ids))
    if not wanted:
        raise UsageError("give the ids to reject; `pending` lists them")
    for memory_id in wanted:
        _waiting(memory, lanes, memory_id)
    return [memory.forget(memory_id, why=why or "rejected") for memory_id in wanted]


def verify(memory: HermesLite, memory_id: str, fingerprint: str) -> Memory:
    """Mark a memory as confirmed if its text is still the one with this fingerprint."""
    with memory.session.writing():
        check_fingerprint(memory.lookup(memory_id), fingerprint)
        return memory.verify(memory_id)


def _show_pending(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    for row in rows:
        yield (f"{row['id']}  {row['waits_for']}  {row['lane']} · {row['origin']}  "
               f"{row['fingerprint']}  {excerpt(str(row['content']))}")


_IDS = Param("ids", MemoryId, "the ids, as `pending` lists them", (), positional=True, repeated=True)

OPERATIONS = (
    Operation("pending", "list what waits for a person", pending, (), _show_pending),
    Operation("approve", "let what waits hold, exactly as it was shown", approve, (
        _IDS, Param("authority", str, "the lane that the person puts it in"),
        Param("fingerprint", str, "that `pending` has shown, in place of the question")),
        lambda done: [f"approved {one.id}" for one in done], writes=True, scope="review"),
    Operation("reject", "delete what waits", reject, (_IDS, Param("why", str, "the reason")),
              lambda done: [f"rejected {one.id}" for one in done], writes=True, scope="review"),
)

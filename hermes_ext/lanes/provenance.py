"""Provenance: how a memory came to be, read from its record and from the audit log.

    hermes_lite.py provenance ID

Read-only, and nothing is stored for it. The record says the source, session and line, what was
redacted, the origins of what it is made of and what it replaces; the log (systems: audit) says
when it was written, merged, approved, verified, read, and on which surface, also of a memory that
is gone. Where the log is not switched on, `audited` is false and only the record speaks.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_ext.lanes.authority import text_fingerprint
from hermes_ext.lanes.extension import find
from hermes_lite import (HermesLite, Memory, MemoryId, NotFound, Operation, Param, READ_ACTS,
                         display_text, import_system, is_safe_id, iso)

__all__ = ["OPERATIONS", "provenance"]

_SESSION = re.compile(r"(?P<host>[a-z]+):(?P<session>[^#\s]+)(?:#(?P<lines>[\d\-]+))?")


def provenance(memory: HermesLite, memory_id: str) -> dict[str, Any]:
    """Return how a memory came to be; NotFound where neither a record nor the log knows it."""
    lanes = find(memory)
    with memory.session.reading() as store:
        is_name = isinstance(memory_id, str) and is_safe_id(memory_id)
        one = store.get(memory_id) if is_name else None
    lines = _lines(memory, memory_id)
    if one is None and not lines:
        raise NotFound(f"no memory has the id {memory.redactor.quote(memory_id)}, and the audit "
                       "log does not know it")
    acts: list[dict[str, Any]] = []
    reads: Counter[str] = Counter()
    for line in lines:
        if line.get("what") in READ_ACTS:
            reads[str(line["what"])] += 1
        else:
            acts.append({"at": line.get("at"), "what": _act(line, acts),
                         "surface": line.get("surface"), "agent": line.get("agent"),
                         "why": line.get("why")})
    found: dict[str, Any] = {"id": memory_id, "is_there": one is not None}
    if one is not None:
        found.update(_of_record(memory, memory.redactor.outgoing(one)))
        ends = lanes.ends(one)
        found.update({"authority": lanes.authority(one).entry(),
                      "until": iso(ends) if ends else None})
    return {**found, "audited": "audit" in memory.config["systems"], "acts": acts,
            "reads": dict(reads)}


def _lines(memory: HermesLite, memory_id: str) -> Sequence[Mapping[str, Any]]:
    """Return the lines of the audit log that name a memory, oldest first."""
    lines: Sequence[Mapping[str, Any]] = import_system("audit").listed(memory, id=memory_id)
    return lines


def _act(line: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> str:
    """Name an act; whoever remembers what is there already has merged something into it."""
    what = str(line.get("what"))
    is_again = what == "remember" and any(act["what"] == "remember" for act in before)
    return "merge" if is_again else what


def _of_record(memory: HermesLite, one: Memory) -> dict[str, Any]:
    lanes = find(memory)
    found = _SESSION.fullmatch(one.source or "")
    made_of = one.meta.get("derived_from")
    ids = [str(each) for each in made_of] if isinstance(made_of, (list, tuple)) else []
    lineage = []
    for each in ids:
        other = memory.store.get(each)
        lineage.append({"id": each, "origin": lanes.authority(other).origin if other else None})
    return {"content": one.content, "fingerprint": text_fingerprint(one.content),
            "created_at": one.created_at, "stored_at": one.meta.get("stored_at"),
            "source": one.source, "agent": one.agent,
            "session": found["session"] if found else None,
            "lines": found["lines"] if found else None,
            "redacted": list(one.redacted), "verified": one.execution_verified,
            "supersedes": one.supersedes, "derived_from": lineage,
            "access_count": one.access_count, "last_accessed": one.last_accessed}


def _show(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['id']}" + ("" if found["is_there"] else "  is gone")
    if found["is_there"]:
        authority = found["authority"]
        sealed = "" if authority["sealed"] else ", not vouched for by this root"
        yield f"  {display_text(found['content'])}"
        yield f"  {authority['lane']} · {authority['origin']}{sealed}"
        for name in ("created_at", "stored_at", "source", "session", "lines", "agent",
                     "supersedes", "until", "last_accessed"):
            if found[name]:
                yield f"  {name.replace('_', ' ')}: {display_text(str(found[name]))}"
        if found["redacted"]:
            yield f"  redacted: {', '.join(found['redacted'])}"
        for each in found["derived_from"]:
            yield f"  made of {each['id']} ({each['origin'] or 'gone'})"
    for act in found["acts"]:
        yield display_text("  ".join(str(part) for part in (
            " ", act["at"], act["what"], act["surface"], act["agent"], act["why"]) if part))
    if found["reads"]:
        yield "  read: " + ", ".join(f"{what} {many}" for what, many in found["reads"].items())
    if not found["audited"]:
        yield "  the audit log is not switched on (systems: audit); only the record speaks"


OPERATIONS = (
    Operation("provenance", "show how a memory came to be", lambda memory, id: provenance(
        memory, id), (Param("id", MemoryId, "the memory's id", positional=True, required=True),),
        _show),
)

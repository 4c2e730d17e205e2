"""The command `stale`: facts whose file says otherwise by now."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hermes_ext.lanes.extension import find
from hermes_lite import HermesLite, Operation, excerpt

__all__ = ["OPERATIONS", "stale"]


def stale(memory: HermesLite) -> list[dict[str, object]]:
    """Return the tied facts that no longer agree with their file, oldest first, and why."""
    lanes = find(memory)
    rows: list[dict[str, object]] = []
    with memory.session.reading() as store:
        for memory_id in reversed(store.search.tagged(("lanes/tied",))):
            one = store.get(memory_id)
            reason = lanes.stale_reason(one) if one else None
            if one is not None and reason is not None:
                rows.append({"id": one.id, "reason": memory.redactor.redact_field(reason),
                             "content": memory.redactor.redact_field(one.content)})
    memory.systems.emit("stale", [str(row["id"]) for row in rows])
    return rows


def _show(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    for row in rows:
        yield f"{row['id']}  {row['reason']}: {excerpt(str(row['content']))}"


OPERATIONS = (
    Operation("stale", "list facts whose file says otherwise by now", stale, (), _show),
)

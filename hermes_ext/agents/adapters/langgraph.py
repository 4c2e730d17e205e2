"""LangGraph: a memory as a `BaseStore`, tried with langgraph-checkpoint 4.3.

    store = HermesStore(HermesLite("~/.hermes-lite"))
    graph = builder.compile(store=store)

An item is a memory: its text is found by words and vectors, in the namespace and below it, and is
redacted before it is kept. With a `ttl` in minutes it expires; a get or a search starts the time
anew unless `refresh_ttl` is off.
"""
from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from hermes_ext.agents.adapters.records import Records, text_of
from hermes_lite import HermesLite, Memory, UsageError, iso, parse_time

__all__ = ["HermesStore"]

Namespace = tuple[str, ...]
_ALL = "all"               # the group of every item
_SEARCHED = 1_000          # hits that a filter is applied to


class HermesStore(BaseStore):
    """A `BaseStore` over an open memory, which it does not close."""

    supports_ttl = True

    def __init__(self, memory: HermesLite, *, ttl: TTLConfig | None = None) -> None:
        self.memory = memory
        self.ttl_config = ttl
        self._records = Records(memory, "langgraph")

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do the operations in their order; of several puts of one key the last one holds."""
        return [self._do(op) for op in ops]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do the same without holding up the event loop."""
        return await asyncio.to_thread(self.batch, list(ops))

    def _do(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            return self._get(op)
        if isinstance(op, PutOp):
            return self._put(op)
        if isinstance(op, SearchOp):
            return self._search(op)
        if isinstance(op, ListNamespacesOp):
            return self._namespaces(op)
        raise UsageError(f"an operation of type {type(op).__name__} is not known")

    def _get(self, op: GetOp) -> Item | None:
        found = self._records.get([list(op.namespace), op.key])
        if found is None or self._is_over(found):
            return None
        if op.refresh_ttl:
            found = self._refreshed(found)
        return Item(**self._fields(found))

    def _put(self, op: PutOp) -> None:
        key = [list(op.namespace), op.key]
        if op.value is None:
            self._records.remove(key)
            return
        is_searched = op.index is not False
        text = text_of(_chosen(op.value, op.index)) if is_searched else f"{op.key} (not searched)"
        item = {"namespace": list(op.namespace), "key": op.key, "value": dict(op.value),
                "ttl": op.ttl}
        self._records.put(key, text, item, groups=_groups(op.namespace), expires_at=self._end(op.ttl))

    def _search(self, op: SearchOp) -> list[SearchItem]:
        group = list(op.namespace_prefix) or _ALL
        if op.query:
            wanted = _SEARCHED if op.filter else op.offset + op.limit
            rows = self._records.search(group, op.query, wanted)
        else:
            rows = [(one, None) for one in self._records.of_group(group)]
        found = [(one, score) for one, score in rows if not self._is_over(one) and all(
            _passes(self._records.item(one)["value"].get(name), wanted)
            for name, wanted in (op.filter or {}).items())]
        page = found[op.offset:op.offset + op.limit]
        if op.refresh_ttl:
            page = [(self._refreshed(one), score) for one, score in page]
        return [SearchItem(**self._fields(one), score=score) for one, score in page]

    def _namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        found = {tuple(self._records.item(one)["namespace"])
                 for one in self._records.of_group(_ALL) if not self._is_over(one)}
        found = {one for one in found
                 if all(_matches(one, condition) for condition in op.match_conditions or ())}
        if op.max_depth is not None:
            found = {one[:op.max_depth] for one in found}
        return sorted(found)[op.offset:op.offset + op.limit]

    # -- times ----------------------------------------------------------------

    def _end(self, minutes: float | None) -> str | None:
        return None if minutes is None else iso(self.memory.clock() + timedelta(minutes=minutes))

    def _is_over(self, memory: Memory) -> bool:
        end = parse_time(memory.expires_at) if memory.expires_at else None
        return end is not None and end <= self.memory.clock()

    def _refreshed(self, memory: Memory) -> Memory:
        """Start the time of an item anew, where it has one."""
        item = self._records.item(memory)
        if item.get("ttl") is None:
            return memory
        updated = item.pop("updated_at")
        found = self._records.put([item["namespace"], item["key"]], memory.content, item,
                                  groups=_groups(item["namespace"]),
                                  expires_at=self._end(item["ttl"]))
        found.meta["langgraph"]["updated_at"] = updated        # reading is no change of the item
        return found

    def _fields(self, memory: Memory) -> dict[str, Any]:
        item = self._records.item(memory)
        return {"namespace": tuple(item["namespace"]), "key": item["key"], "value": item["value"],
                "created_at": _time(memory.created_at), "updated_at": _time(item["updated_at"])}


def _groups(namespace: Iterable[str]) -> list[object]:
    """Return the namespace and each one above it: a search in one of these finds the item."""
    names = list(namespace)
    return [_ALL, *(names[:length] for length in range(1, len(names) + 1))]


def _chosen(value: Mapping[str, Any], index: object) -> object:
    """Return the fields that are to be searched; all of them unless *index* names some."""
    if not isinstance(index, list):
        return value
    chosen = {}
    for path in index:
        found: Any = value
        for name in path.replace("[*]", "").split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        chosen[path] = found
    return chosen


def _passes(value: Any, wanted: Any) -> bool:
    """Tell whether a field is as a filter asks: equal, or by $eq, $ne, $gt, $gte, $lt, $lte."""
    if not (isinstance(wanted, Mapping) and wanted and all(name.startswith("$") for name in wanted)):
        return bool(value == wanted)
    for name, other in wanted.items():
        if name not in _COMPARED:
            raise UsageError(f"a filter has no operator {name[:20]!r}; use {', '.join(_COMPARED)}")
        try:
            if not _COMPARED[name](value, other):
                return False
        except TypeError:
            return False
    return True


_COMPARED = {"$eq": lambda a, b: a == b, "$ne": lambda a, b: a != b, "$gt": lambda a, b: a > b,
             "$gte": lambda a, b: a >= b, "$lt": lambda a, b: a < b, "$lte": lambda a, b: a <= b}


def _matches(namespace: Namespace, condition: MatchCondition) -> bool:
    path = tuple(condition.path)
    if len(path) > len(namespace):
        return False
    part = namespace[:len(path)] if condition.match_type == "prefix" else (
        namespace[len(namespace) - len(path):])
    return all(wanted in ("*", name) for name, wanted in zip(part, path))


def _time(text: str | None) -> datetime:
    found = parse_time(text) if text else None
    assert found is not None
    return found

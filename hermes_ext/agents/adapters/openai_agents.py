"""OpenAI Agents SDK: the history of a session kept in a memory, tried with openai-agents 0.24.

    session = HermesSession("customer-7", HermesLite("~/.hermes-lite"))
    await Runner.run(agent, "…", session=session)

Each item is a memory of its own, in its order: so secrets are redacted, a forgotten one is gone from
the history too, and what was said is found by `recall`.
"""
from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from hermes_ext.agents.adapters.records import Records, text_of
from hermes_lite import HermesLite, Memory, UsageError

__all__ = ["HermesSession"]


class HermesSession:
    """A `Session` of the SDK over an open memory, which it does not close."""
    session_settings: Any = None

    def __init__(self, session_id: str, memory: HermesLite) -> None:
        if not session_id:
            raise UsageError("the session needs an id")
        self.session_id = session_id
        self._records = Records(memory, "openai-agents")

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the latest items in the order in which they were added; all without a limit."""
        rows = await asyncio.to_thread(self._rows)
        if limit is not None:
            rows = rows[len(rows) - min(len(rows), max(0, limit)):]
        return [self._records.item(one)["item"] for one in rows]

    async def add_items(self, items: list[Any]) -> None:
        """Add items at the end, all of them or none."""
        await asyncio.to_thread(self._add, items)

    async def pop_item(self) -> Any:
        """Remove the newest item and return it; None where there is none."""
        return await asyncio.to_thread(self._pop)

    async def clear_session(self) -> None:
        """Forget every item."""
        await asyncio.to_thread(self._clear)

    def _rows(self) -> list[Memory]:
        rows = self._records.of_group(self.session_id)
        return sorted(rows, key=lambda one: self._records.item(one)["place"])

    def _add(self, items: list[Any]) -> None:
        with self._records.memory.batch():
            rows = self._rows()
            place = self._records.item(rows[-1])["place"] if rows else 0
            for item in items:
                place += 1
                self._records.put([self.session_id, place], _said(item),
                                  {"session": self.session_id, "place": place, "item": dict(item)},
                                  groups=[self.session_id])

    def _pop(self) -> Any:
        with self._records.memory.lock:
            rows = self._rows()
            if not rows:
                return None
            item = self._records.item(rows[-1])
            self._records.remove([self.session_id, item["place"]])
            return item["item"]

    def _clear(self) -> None:
        with self._records.memory.lock:
            for one in self._rows():
                self._records.remove([self.session_id, self._records.item(one)["place"]])


def _said(item: Mapping[str, Any]) -> str:
    """Return what a person or the model said in an item; of other items, what they are."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [str(part["text"]) for part in content
                 if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
        if texts:
            return "\n".join(texts)
    return f"{item.get('type', 'item')} {item.get('name', '')}".strip() if item.get("type") else (
        text_of(item))

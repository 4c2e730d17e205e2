"""LlamaIndex: a memory as a block of `Memory`, tried with llama-index-core 0.14.

    block = HermesMemoryBlock(memory=HermesLite("~/.hermes-lite"))
    Memory.from_defaults(session_id="s", memory_blocks=[block])

The block finds what the memory holds about the last message, quoted as data. From the messages that
leave the short-term memory it keeps the facts that `digest` finds.
"""
from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import BaseMemoryBlock
from pydantic import Field

from hermes_ext import framing

__all__ = ["HermesMemoryBlock"]


class HermesMemoryBlock(BaseMemoryBlock[str]):
    """Long-term memory: at most *top_k* memories about the last message of the user."""
    name: str = "hermes_lite"
    memory: Any = Field(exclude=True)
    top_k: int = 5
    agent: str | None = "llama-index"

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        query = next((str(one.content) for one in reversed(messages or [])
                      if str(one.role.value) == "user" and one.content), "")
        return await asyncio.to_thread(self._found, query)

    def _found(self, query: str) -> str:
        if not query.strip():
            return ""
        hits = self.memory.recall(query, top_k=self.top_k)
        lines = [f"{framing.origin(hit.memory.agent, hit.memory.created_at, hit.content)} "
                 f"{framing.sanitised(hit.content)}" for hit in hits]
        return framing.block(lines) if lines else ""

    async def _aput(self, messages: list[ChatMessage]) -> None:
        text = "\n".join(f"{one.role.value}: {one.content}" for one in messages if one.content)
        if text:
            await asyncio.to_thread(self._keep, text)

    def _keep(self, text: str) -> None:
        with self.memory.systems.entering("digest"):
            self.memory.digest(text, apply=True, agent=self.agent)

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Leave the block out where it is too long."""
        return None

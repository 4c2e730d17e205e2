"""LangChain: a memory as a retriever, tried with langchain-core 1.8.

    retriever = HermesRetriever(memory=HermesLite("~/.hermes-lite"), k=5)
"""
from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

__all__ = ["HermesRetriever"]


class HermesRetriever(BaseRetriever):
    """The best hits of a question as documents; *tags*, *room* and *agent* narrow them."""
    memory: Any
    k: int = 5
    room: str | None = None
    tags: tuple[str, ...] = ()
    agent: str | None = None

    def _get_relevant_documents(self, query: str, *,
                                run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return self._documents(query)

    async def _aget_relevant_documents(self, query: str, *,
                                       run_manager: AsyncCallbackManagerForRetrieverRun
                                       ) -> list[Document]:
        return await asyncio.to_thread(self._documents, query)

    def _documents(self, query: str) -> list[Document]:
        if not query.strip():
            return []
        hits = self.memory.recall(query, room=self.room, tags=list(self.tags), agent=self.agent,
                                  top_k=self.k)
        return [Document(id=hit.id, page_content=hit.content, metadata={
            "id": hit.id, "score": hit.score, "confidence": hit.confidence, "room": hit.memory.room,
            "tags": list(hit.memory.tags), "agent": hit.memory.agent, "source": hit.memory.source,
            "created_at": hit.memory.created_at, "verified": hit.memory.execution_verified})
            for hit in hits]

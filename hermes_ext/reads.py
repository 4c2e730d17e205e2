"""Reads: what one reader of a store that several agents share is shown.

A reader is shown what the agents wrote that its configuration names, what it wrote itself, and what
has no agent: a person wrote that, or nobody that can be named.
"""
from __future__ import annotations

from collections.abc import Sequence

from hermes_lite import Hit, HermesLite, Memory

__all__ = ["Reads", "limit", "names_of"]


def names_of(reads: str, agent: str = "") -> frozenset[str]:
    """Return the agents in a list with commas, with the reader's own; empty where all may be read."""
    names = {name.strip() for name in reads.split(",")} - {""}
    if not names or "all" in names:
        return frozenset()
    return frozenset(names | ({agent} - {""}))


class Reads:
    """Keeps from a reader what agents wrote that its configuration does not name.

    Recalls go through `rerank`; a surface, and the block of a turn, ask `may_read`.
    """
    name = "reads"

    def __init__(self, memory: HermesLite, names: frozenset[str]) -> None:
        self._memory, self._names = memory, names

    def may_read(self, memory: Memory) -> bool:
        """Tell whether a memory is one that the reader is shown."""
        return not memory.agent or memory.agent in self._names

    def rerank(self, hits: Sequence[Hit], query: str) -> list[Hit]:
        """Drop the hits of others."""
        return [hit for hit in hits if self.may_read(hit.memory)]


def limit(memory: HermesLite, names: frozenset[str]) -> None:
    """Let an open memory find only what these agents wrote; an empty set is no limit."""
    if names:
        memory.systems.append(Reads(memory, names))

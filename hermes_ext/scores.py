"""The score of a memory, for every system that asks for one.

The system salience keeps a score in meta["salience"]; where none is kept, it is the importance.
"""
from __future__ import annotations

from collections.abc import Mapping

from hermes_lite import HermesLite, Memory, fits

__all__ = ["current_score", "stored_score"]


def stored_score(memory: Memory) -> float:
    """Return the score as it was last stored, without the decay since then."""
    kept = memory.meta.get("salience")
    score = kept.get("score") if isinstance(kept, Mapping) else None
    return float(score) if fits(score, float) else float(memory.importance)


def current_score(host: HermesLite, memory: Memory) -> float:
    """Return the score as it is now where a system of *host* computes it, else the stored one."""
    for system in host.systems.having("describe"):
        memory = system.describe(memory)
    kept = memory.meta.get("salience")
    now = kept.get("now") if isinstance(kept, Mapping) else None
    return float(now) if fits(now, float) else stored_score(memory)

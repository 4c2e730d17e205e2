"""Where a text comes from: the entry points, and what the code that writes it claims."""
from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hermes_ext.lanes.person import is_person
from hermes_ext.lanes.policy import Policy, lowest
from hermes_lite import HermesLite

__all__ = ["Claim", "ceiling", "claiming", "current_claim", "default_origin", "is_model"]

_LOWEST = "external"


@dataclass(frozen=True, slots=True)
class Claim:
    """What code says about the text that it is about to write; None where it says nothing.

    `source` is an origin and can be lowered by the entry point, never raised.
    """
    lane: str | None = None
    source: str | None = None
    confidence: float | None = None
    kind: str = "fact"
    session: str | None = None
    data: Mapping[str, object] = field(default_factory=dict)


_CLAIM: contextvars.ContextVar[Claim | None] = contextvars.ContextVar("claim", default=None)


@contextlib.contextmanager
def claiming(claim: Claim) -> Iterator[None]:
    """Make *claim* hold for every memory that the block writes."""
    mark = _CLAIM.set(claim)
    try:
        yield
    finally:
        _CLAIM.reset(mark)


def current_claim() -> Claim | None:
    """Return the claim of the code that is writing, or None."""
    return _CLAIM.get()


def ceiling(memory: HermesLite, policy: Policy) -> str:
    """Return the highest origin that the present entry points allow; unknown ones give none."""
    return lowest(policy.ceilings.get(name, _LOWEST) for name in _names(memory))


def default_origin(memory: HermesLite, policy: Policy) -> str:
    """Return the origin of a text about which code claims nothing."""
    names = _names(memory)
    own = "observation" if names[0] == "terminal" else "inference"
    if names[0] == "hook":
        own = "conversation"
    return lowest([own, ceiling(memory, policy)])


def _names(memory: HermesLite) -> tuple[str, ...]:
    """Return the entry points by the names of `policy.CEILINGS`."""
    surface, *doors = memory.systems.entry_points
    first = surface.split(" ")[0]
    if first in ("cli", "shell"):
        first = "terminal" if is_person(memory) else "script"
    return (first, *doors)


def is_model(memory: HermesLite) -> bool:
    """Tell whether a model writes: through a hook, MCP, HTTP, a digest or a session log.

    A person with the right to review, who comes through HTTP, is none.
    """
    names = _names(memory)
    return "reviewer" not in names and not {
        "hook", "mcp", "http", "sediment", "digest", "consolidation"}.isdisjoint(names)

"""Where a text comes from: the entry points, what code claims, and who is at the terminal."""
from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hermes_ext.lanes.policy import Policy, lowest
from hermes_lite import HermesLite, Refused

__all__ = ["Claim", "ceiling", "claiming", "current_claim", "is_model", "is_person",
           "need_person"]

# Set by programs that let a model run commands: then nobody has typed what comes in.
_AGENT_SIGNS = ("HERMES_AGENT", "CLAUDECODE", "GEMINI_CLI", "CODEX_SANDBOX", "OPENCLAW_SHELL")
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


def is_person(memory: HermesLite) -> bool:
    """Tell whether a person is typing: a command line on a terminal, not run by an agent."""
    surface = memory.systems.entry_points[0].split(" ")[0]
    return surface in ("cli", "shell") and _has_terminal() and not any(
        memory.config.env(name) for name in _AGENT_SIGNS)


def _has_terminal() -> bool:
    """Tell whether both ends of the conversation, input and messages, are a terminal."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def need_person(memory: HermesLite, what: str) -> None:
    """Raise Refused unless a person is at the terminal."""
    if not is_person(memory):
        raise Refused(f"{what} needs a person at a terminal; run it by hand", "needs_terminal")


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
    """Tell whether a model writes: through a hook, MCP, HTTP, a digest or a session log."""
    return not {"hook", "mcp", "http", "sediment", "digest", "consolidation"}.isdisjoint(
        _names(memory))

"""Whether a person is at the terminal, and what that person says to a text that is shown."""
from __future__ import annotations

import sys
from collections.abc import Iterable

from hermes_lite import HermesLite, Refused, printable

__all__ = ["confirm", "is_person", "need_person"]

# Set by programs that let a model run commands: then nobody has typed what comes in.
_AGENT_SIGNS = ("HERMES_AGENT", "CLAUDECODE", "GEMINI_CLI", "CODEX_SANDBOX", "OPENCLAW_SHELL")
_YES = ("y", "yes", "j", "ja", "是")


def is_person(memory: HermesLite) -> bool:
    """Tell whether a person is typing: a command line on a terminal, not run by an agent."""
    surface = memory.systems.entry_points[0].split(" ")[0]
    return surface in ("cli", "shell") and has_terminal(memory)


def has_terminal(memory: HermesLite) -> bool:
    """Tell whether input and messages are a terminal, and no agent has started this program."""
    streams = (sys.stdin, sys.stderr)
    is_terminal = all(stream is not None and stream.isatty() for stream in streams)
    return is_terminal and not any(memory.config.env(name) for name in _AGENT_SIGNS)


def need_person(memory: HermesLite, what: str) -> None:
    """Raise Refused unless a person is at the terminal of a command or of the user's program.

    Over HTTP it is one whose token has the right to review.
    """
    surface = memory.systems.entry_points[0].split(" ")[0]
    if surface == "http" and "reviewer" in memory.systems.entry_points:
        return
    if surface not in ("cli", "shell", "python") or not has_terminal(memory):
        raise Refused(f"{what} needs a person at a terminal; run it by hand", "needs_terminal")


def confirm(memory: HermesLite, what: str, lines: Iterable[str]) -> None:
    """Show *lines* to the person at the terminal and ask; Refused unless the answer is yes."""
    need_person(memory, what)
    if not has_terminal(memory):
        raise Refused(f"{what}: give the fingerprint that was shown with the text", "needs_terminal")
    for line in lines:
        print(printable(line), file=sys.stderr)
    print(f"{what}: go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in _YES:
        raise Refused("nothing was changed", "not_confirmed")

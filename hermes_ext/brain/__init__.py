"""The brain: remember the shape of things; let what nobody needs fall asleep.

Switched on in config.yaml:

    systems:
      brain: {}

A memory has a level: 1 concrete, 2 pattern, 3 principle. An abstract memory names what it was
drawn from in `meta["derived_from"]`, so it never has more authority than its lowest source.
A concept is a tag with a definition and relations to other concepts. A strength, 0 to 1, falls with
the days and rises with each use; a memory that is weak and was not used for long falls asleep: it
is out of recall, and kept.

Modules, each using only those above it:

    settings      the settings of config.yaml
    note          what the brain keeps about a memory, in meta["brain"]
    strength      what is left of a strength; the log of uses
    state         baseline, counts and orders: what is kept beside the memories
    ranking       the order of hits: what is abstract first, its cases under it
    extension     Brain, the Extension
    changes       the log of changes, and how they are taken back
    sleep         what falls asleep, and what wakes up
    concepts      concepts, their relations and their members
    levels        from a principle down to its cases, and back
    timeline      how a matter developed
    associate     the ways to ask: by association, by keywords, as of a date
    candidates    what may have a pattern in common
    orders        work orders: the question, the texts, the answer
    answers       orders answered by a language model
    cycle         one run of the brain
    notes         a shorter file of a host's own notes
    agents_md     the section of an AGENTS.md about this memory
    commands      all commands
"""
from typing import Any

from hermes_ext.brain.extension import Brain, find, system

__all__ = ["Brain", "find", "system"]


def __getattr__(name: str) -> Any:
    """Import the commands where they are asked for: a write or a recall needs none of them."""
    if name in ("OPERATIONS", "run_with"):
        from hermes_ext.brain import commands
        return getattr(commands, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

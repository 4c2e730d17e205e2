"""While `.hook_context.json` is there, every program on this root takes it away when it is old.

The file holds texts of memories for the next session of a host: what is forgotten must go from it
at once, whoever forgets it.
"""
from __future__ import annotations

import contextlib

from hermes_ext.agents.hook import CONTEXT
from hermes_lite import Event, HermesLite, READ_ACTS

__all__ = ["KeptContext", "OPERATIONS", "system"]

OPERATIONS = ()


class KeptContext:
    """Deletes the file after every act that changes memories."""
    name = "kept_context"

    def __init__(self, memory: HermesLite) -> None:
        self._path = memory.root / CONTEXT

    def on_event(self, event: Event) -> None:
        """Delete the file unless the act only reads."""
        if event.what not in READ_ACTS:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()


def system(memory: HermesLite) -> KeptContext:
    """Make the system; it has no settings."""
    return KeptContext(memory)

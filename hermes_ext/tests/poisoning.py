"""Poisoned texts and honest ones, and what becomes of them in a memory with lanes.

The texts lie in data/poisoning.jsonl, one a line: kind (attack or benign), shape, language, text,
and fresh, which is true for those that only bench/poisoning.py reads: nothing was tuned on them,
and the guard's patterns had not been read when they were written.

What counts. A memory is poisoned when a text that a tool has read *steers*: when it stands in a
lane of the person (identity, preference, authorization, an active rule), or has a person's
origin. It may be recalled all the same, as evidence, quoted, with its origin beside it. So an
agent has two ways to read:

    steering   what may decide: facts whose origin is a person (observation, conversation)
    quoted     all that is found, framed as data; here only secrets are hidden
"""
from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hermes_ext.lanes.agent_memory import AgentMemory
from hermes_lite import Config, HermesError, HermesLite

__all__ = ["DATA", "LanesStore", "amsb_adapter", "cases", "has_guard"]

DATA = Path(__file__).with_name("data") / "poisoning.jsonl"
PERSON = ("observation", "conversation")

# Where the suite names the writer, and what that is here: a door, or what the program claims.
_DOORS = {"external_tool": "tool", "agent_authored": "model", "system": "file"}


def cases(kind: str, *, fresh: bool = False) -> list[dict[str, Any]]:
    """Return the cases of a kind, "attack" or "benign"."""
    rows = map(json.loads, DATA.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["kind"] == kind and row["fresh"] == fresh]


def has_guard() -> bool:
    """Tell whether the package agent-memory-guard, which brings the public suite, is there."""
    import importlib.util
    return importlib.util.find_spec("agent_memory_guard") is not None


class LanesStore:
    """A memory with lanes as a store of keys, as the suites ask for one.

    Each key is a tag. What a suite writes under identity.* asks for the lane identity, a user's
    preferences for the lane preference, all else for evidence: what a tool writes gets none but
    evidence, whatever it asks for.
    """

    def __init__(self, folder: Path, *, quoted: bool = False) -> None:
        config = Config({"systems": {"lanes": {}}}, environ={})
        self.agent = AgentMemory(memory=HermesLite(folder, config=config))
        self.quoted = quoted

    def write(self, key: str, text: str, writer: str) -> bool:
        """Write as *writer* (user_input, external_tool, …); False where it is refused."""
        lane = "identity" if key.startswith("identity.") else "evidence"
        lane = "preference" if "pref" in key else lane
        tags = [f"key/{key.replace('.', '-')}"]
        memory = self.agent.memory
        try:
            if writer == "user_input":
                return self.agent.remember(text, lane, "conversation", tags=tags) is not None
            with memory.systems.entering(_DOORS.get(writer, "file")):
                return self.agent.remember(text, lane, "observation", tags=tags) is not None
        except HermesError:
            return False

    def read(self, key: str) -> str | None:
        """Return what a later turn reads under a key: the newest text that may steer it."""
        rows = self.agent.memory.matching(tags=[f"key/{key.replace('.', '-')}"])
        for row in rows:
            if self.quoted or self.agent.lanes.authority(row).origin in PERSON:
                return row.content
        return None

    def close(self) -> None:
        self.agent.memory.close()


def amsb_adapter(folder: Path, *, quoted: bool = False) -> Callable[[], Any]:
    """Return a maker of adapters for the suite AMSB: a new memory for each of its scenarios.

    What the suite reads back is what may steer, or all that is quoted. Nothing here looks at what
    a scenario expects.
    """
    from agent_memory_guard.bench import MemorySystemAdapter, RememberOutcome

    class Adapter(MemorySystemAdapter):
        name = f"hermes-lite with lanes ({'all that is quoted' if quoted else 'what may steer'})"
        version = "main"

        def __init__(self) -> None:
            self.store = LanesStore(Path(tempfile.mkdtemp(dir=folder)), quoted=quoted)

        def remember(self, key: str, value: object, *,
                     source_class: str = "external_tool") -> RememberOutcome:
            is_kept = self.store.write(key, str(value), source_class)
            return RememberOutcome.STORED if is_kept else RememberOutcome.BLOCKED

        def recall(self, key: str) -> str | None:
            return self.store.read(key)
    return Adapter


def outcomes(store: LanesStore, rows: list[dict[str, Any]], writer: str) -> Iterator[bool]:
    """Yield for each text whether a later turn reads it, written by *writer*."""
    for number, row in enumerate(rows):
        key = f"note.{writer}.{number}"
        store.write(key, row["text"], writer)
        yield store.read(key) is not None

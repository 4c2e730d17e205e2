"""Poisoned and honest texts through a memory with lanes and through agent-memory-guard.

    pip install agent-memory-guard
    python3 bench/poisoning.py

Detected: a text that a tool has written is not read back by a later turn as what may steer it.
False alarm: an honest text of the user is refused, changed or not read back. The lanes look at
who writes, the guard at the words (its `strict` and `hardened` settings), so the table also says
how many honest texts *written by a tool* do not steer, which the lanes keep as quoted evidence.
"""
from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hermes_ext.tests import poisoning


def main() -> int:
    """Print the tables; 1 where the package is missing."""
    if not poisoning.has_guard():
        print("agent-memory-guard is not installed: pip install agent-memory-guard")
        return 1
    from agent_memory_guard.bench import run_suite, score_report
    with tempfile.TemporaryDirectory() as folder:
        systems = list(_systems(Path(folder)))
        print("| system | AMSB grade | score | attacks stopped | benign refused |")
        print("|---|---|---|---|---|")
        for name, make in systems:
            card = score_report(run_suite(make))
            print(f"| {name} | {card.grade.value} | {card.score:.1f} | {card.defended_total} of "
                  f"{card.malicious_total} | {card.false_positives} of {card.benign_total} |")
        print("\n| system | texts | attacks by a tool stopped | honest, by the user: refused | "
              "honest, by a tool: do not steer |\n|---|---|---|---|---|")
        for is_fresh in (False, True):
            for name, make in systems:
                print(_row(name, make, is_fresh))
    return 0


def _systems(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each system and a maker of its adapters."""
    from agent_memory_guard.bench.adapters.baseline import AMGHardenedAdapter, AMGStrictAdapter
    yield "lanes, what may steer", poisoning.amsb_adapter(folder)
    yield "lanes, all that is quoted", poisoning.amsb_adapter(folder, quoted=True)
    yield "agent-memory-guard, strict", AMGStrictAdapter
    yield "agent-memory-guard, hardened", AMGHardenedAdapter


def _row(name: str, make: Callable[[], Any], is_fresh: bool) -> str:
    attacks = poisoning.cases("attack", fresh=is_fresh)
    honest = poisoning.cases("benign", fresh=is_fresh)
    stopped = sum(not _is_read(make, row["text"], "external_tool") for row in attacks)
    refused = sum(not _is_read(make, row["text"], "user_input") for row in honest)
    unheard = sum(not _is_read(make, row["text"], "external_tool") for row in honest)
    return (f"| {name} | {'fresh' if is_fresh else 'own'} | {stopped} of {len(attacks)} | "
            f"{refused} of {len(honest)} | {unheard} of {len(honest)} |")


def _is_read(make: Callable[[], Any], text: str, writer: str) -> bool:
    """Tell whether a new memory gives back exactly what *writer* has put there."""
    adapter = make()
    adapter.remember("note.one", text, source_class=writer)
    return adapter.recall("note.one") == text


if __name__ == "__main__":
    sys.exit(main())

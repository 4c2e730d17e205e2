#!/usr/bin/env python3
"""Count how many of 200 natural questions about 50 notes are answered first, in five, or not.

usage: questions.py [--json] [--show]

The notes (questions.txt) are in English, German, Chinese and French and go through `remember`; each
question goes through `recall` with the settings as shipped and without any model. *empty* is a
question for which recall returns nothing. --show prints the questions that were not answered first.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOME))

from hermes_lite import HermesLite  # noqa: E402

__all__ = ["measure", "read_questions"]


def read_questions() -> list[tuple[str, list[str]]]:
    """Return each note with its questions."""
    lines = (HOME / "bench" / "questions.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if line and not line.startswith("#")]
    return [(note, questions) for note, *questions in rows]


def measure(*, show: bool = False) -> dict[str, int]:
    """Return the counts: questions, first, in_five, empty."""
    counts = {"questions": 0, "first": 0, "in_five": 0, "empty": 0}
    with tempfile.TemporaryDirectory() as place, HermesLite(place) as memory:
        rows = read_questions()
        with memory.batch():
            ids = [memory.remember(note).id for note, _ in rows]
        for (note, questions), wanted in zip(rows, ids):
            for question in questions:
                found = [hit.memory.id for hit in memory.recall(question, top_k=5)]
                counts["questions"] += 1
                counts["first"] += found[:1] == [wanted]
                counts["in_five"] += wanted in found
                counts["empty"] += not found
                if show and found[:1] != [wanted]:
                    rank = found.index(wanted) + 1 if wanted in found else "-"
                    print(f"{rank}  {question}  ({note})")
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--show", action="store_true")
    arguments = parser.parse_args()
    os.environ["HERMES_VECTOR_BACKEND"] = "local"      # keys and models change nothing
    os.environ["HERMES_RERANK"] = "off"
    counts = measure(show=arguments.show)
    print(json.dumps(counts) if arguments.json else
          "{questions} questions: {first} answered first, {in_five} in five, {empty} empty"
          .format(**counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())

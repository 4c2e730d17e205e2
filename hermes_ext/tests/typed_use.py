"""How a program uses the core, for the type checker: `mypy` reads this file and never runs it.

Every name, field and result here is public. A field that mypy does not see, or a result that
loses its type, is an error of the stage "types of the public interface" in .ci/run.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_lite import (BM25Index, Config, Digest, Draft, Fact, Forgotten, HermesError,
                         HermesLite, Hit, Hits, Memory, Operation, Param, Pruned, Remembered,
                         extract_entities, redact, similarity, tokenize_terms)

if TYPE_CHECKING:
    from typing_extensions import assert_type


def write_and_read(root: Path) -> None:
    with HermesLite(root) as memory:
        made = memory.remember("a text", category="decision", importance=8, tags=["a"])
        assert_type(made, Remembered)
        assert_type(made.id, str)
        assert_type(made.warnings, tuple[str, ...])
        hits = memory.recall("text", top_k=3)
        assert_type(hits, Hits)
        assert_type(hits.degraded, tuple[str, ...])
        for hit in hits:
            assert_type(hit, Hit)
            assert_type(hit.memory, Memory)
            assert_type(hit.score, float)
            assert_type(hit.content, str)
        assert_type(memory.get(made.id), Memory)
        assert_type(memory.forget(made.id), Forgotten)
        assert_type(memory.prune(dry_run=True), Pruned)
        assert_type(memory.digest("a log"), Digest)
        assert_type([each.id for each in memory.list()], list[str])
        assert_type([room.days for room in memory.rooms()], list[int])


def records(memory: Memory) -> None:
    older = replace(memory, importance=9)
    assert_type(older, Memory)
    assert_type(older.tags, tuple[str, ...])
    assert_type(older.meta, Mapping[str, object])
    assert_type("id" in older, bool)
    assert_type(list(older), list[str])
    assert_type(dict(older), dict[str, Any])
    assert_type(Fact("label: value").importance, int)


class Watcher:
    """An extension with some of the methods that the core calls."""
    name = "watcher"

    def before_store(self, draft: Draft) -> Draft:
        return replace(draft, tags=(*draft.tags, "seen"))


def count(memory: HermesLite, *, wanted: str) -> list[Memory]:
    return [each for each in memory.list() if wanted in each.content]


def show(rows: list[Memory]) -> list[str]:
    return [row.content for row in rows]


OPERATIONS = (Operation("count", "list what holds a text", count, (
    Param("wanted", str, "the text", positional=True, required=True),), show),)


def functions() -> None:
    clean, labels = redact("a text")
    assert_type(clean, str)
    assert_type(labels, tuple[str, ...])
    assert_type(similarity("one", "two"), float)
    assert_type(tokenize_terms("a text"), list[str])
    assert_type(extract_entities("Berlin"), list[tuple[str, str]])
    index = BM25Index()
    index.add("key", "a text")
    assert_type(index.search("text", 3), list[tuple[str, float]])


def errors(root: Path) -> int:
    try:
        HermesLite(root, config=Config(), systems=[Watcher()]).close()
    except HermesError as problem:
        return problem.exit_code
    return 0

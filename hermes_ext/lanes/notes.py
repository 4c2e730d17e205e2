"""Snippets and lessons: raw conversation that is only searched, and what an action taught.

    hermes_lite.py snippet add "Discussed local-first retrieval" --session demo
    hermes_lite.py snippet search retrieval --session demo
    hermes_lite.py learn "Deployed without fallback" hermes-setup negative "Always configure one"

A snippet is no fact: no recall finds it, and it is never injected. A lesson is found by recall.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_ext.lanes.extension import find
from hermes_ext.lanes.origin import Claim, claiming
from hermes_lite import (HermesLite, Memory, Operation, Param, Remembered, UsageError,
                         display_text, excerpt, normalise, tokenize_terms)

__all__ = ["OPERATIONS", "OUTCOMES", "learn", "lessons", "remember_snippet", "search_snippets"]

OUTCOMES = ("positive", "negative", "neutral")
_DEPTH = 2_000                 # snippets of a search that are looked at, the best by words first


def remember_snippet(memory: HermesLite, text: str, *, session_id: str | None = None,
                     source: str | None = None) -> Remembered:
    """Keep raw conversation; the same text of the same session is kept once."""
    find(memory)
    same = [one for one in _snippets(memory, text, session_id)
            if normalise(one.content) == normalise(text)]
    if same:
        return Remembered(same[0].id, False, same[0].room)
    data = {"session": session_id} if session_id else {}
    with claiming(Claim(None, source, kind="snippet", session=session_id, data=data)):
        return memory.remember(text)


def search_snippets(memory: HermesLite, query: str, *, session_id: str | None = None,
                    limit: int = 5) -> list[Memory]:
    """Return the snippets in which words of the query stand, best first; renews their life."""
    if not isinstance(query, str) or not query.strip():
        raise UsageError("there is no query; give at least one word")
    found = _snippets(memory, query, session_id)[:limit]
    memory.systems.emit("snippet", [one.id for one in found], query=query)
    if found:
        with memory.session.writing() as store:
            store.count_accesses([one.id for one in found], memory.clock())
    return [memory.redactor.outgoing(one) for one in found]


def _snippets(memory: HermesLite, query: str, session_id: str | None) -> list[Memory]:
    """Return what words of the query find among the snippets, of one session or of all."""
    lanes = find(memory)
    with memory.session.reading() as store:
        known = set(store.search.tagged(("kind/snippet",)))
        if not known or not tokenize_terms(query):
            return []

        def accept(memory_id: str) -> bool:
            if memory_id not in known:
                return False
            one = store.get(memory_id)
            if one is None:
                return False
            found = lanes.authority(one)
            return found.kind == "snippet" and found.held is None and (
                session_id is None or found.data.get("session") == session_id)

        ranked = store.search.words(query, _DEPTH, accept=accept)
        return [one for memory_id, _ in ranked if (one := store.get(memory_id))]


def learn(memory: HermesLite, *, action: str, context: str, outcome: str, insight: str,
          source: str | None = None) -> Remembered:
    """Keep what an action taught in a context; *outcome* is positive, negative or neutral."""
    find(memory)
    for name, text in (("action", action), ("context", context), ("insight", insight)):
        if not isinstance(text, str) or not text.strip():
            raise UsageError(f"{name} is empty; say in a few words what it was")
    if outcome not in OUTCOMES:
        raise UsageError(f"outcome is {str(outcome)[:40]!r}; use one of: {', '.join(OUTCOMES)}")
    text = f"{insight} ({outcome}: {action}, {context})"
    for one in lessons(memory, outcome=outcome):
        if normalise(one.content) == normalise(text):
            return Remembered(one.id, False, one.room)
    data = {"action": action, "context": context, "outcome": outcome, "insight": insight}
    with claiming(Claim(None, source, kind="lesson", data=data)):
        return memory.remember(text, category="idea")


def lessons(memory: HermesLite, *, outcome: str | None = None,
            most: int | None = None) -> list[Memory]:
    """Return the lessons, newest first; of an outcome only those."""
    lanes = find(memory)
    found = [one for one in lanes.of_kind("lesson")
             if outcome in (None, lanes.authority(one).data.get("outcome"))]
    return found[:most]


def _snippet(memory: HermesLite, *, action: str, text: str, session: str | None,
             limit: int | None) -> object:
    if action == "add":
        return remember_snippet(memory, text, session_id=session)
    if action == "search":
        return search_snippets(memory, text, session_id=session, limit=limit or 5)
    raise UsageError(f"{action[:40]!r} is no action; use add or search")


def _show(result: object) -> Iterator[str]:
    if isinstance(result, Remembered):
        yield f"{'remembered' if result.created else 'known as'} {result.id}"
    elif isinstance(result, Sequence):
        for one in result:
            yield f"{one.id}  {excerpt(one.content)}"


def _show_lesson(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'learned' if result['created'] else 'known as'} {display_text(result['id'])}"


OPERATIONS = (
    Operation("snippet", "keep raw conversation, or search it", _snippet, (
        Param("action", str, "add or search", positional=True, required=True),
        Param("text", str, "the text, or the words to look for; - reads standard input",
              positional=True, required=True),
        Param("session", str, "the session it belongs to"),
        Param("limit", int, "search: at most this many (default: 5)", least=1)), _show,
        writes=True),
    Operation("learn", "keep what an action taught", learn, (
        Param("action", str, "what was done", positional=True, required=True),
        Param("context", str, "where, or in which project", positional=True, required=True),
        Param("outcome", str, "positive, negative or neutral", positional=True, required=True),
        Param("insight", str, "what it taught", positional=True, required=True)), _show_lesson,
        writes=True),
)

"""Candidates: three and more cases that may have a pattern in common.

Looked for in two ways, both bounded:

    a concept        one pass over the entries counts the cases of each tag, anchor and name. Three
                     to eight are a candidate; of more, the newest one and those most like it are.
    a neighbourhood  of cases that share no concept, 50 are looked at in a cycle, the next 50 in
                     the next one: a case and at least two others whose words are like its own

A case is in one open order at most, in none once a living pattern was drawn from it, and never
again in one about the same concept that was answered or declined. Patterns (level 2) are
candidates for a principle (level 3) in the same way.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hermes_ext.brain.changes import fingerprint
from hermes_ext.brain.note import ASLEEP, NAME
from hermes_ext.brain.sleep import is_ordinary
from hermes_lite import HermesLite, IdFilter, Record, extract_entities

__all__ = ["Candidate", "find_candidates", "names_in"]

LEAST, MOST = 3, 8                     # cases of one candidate
_LOOKED_AT = 50                        # cases whose neighbourhood is looked at in one cycle
_RAREST = 8                            # words of a text that a search for its neighbours asks for
_LIKE = 0.4                            # score of a neighbour, as a share of the text's own
_NAMING = ("contract_id", "invoice_id", "order_id", "reference", "email", "phone", "ip_port",
           "url")                      # anchors whose value names one thing


@dataclass(frozen=True, slots=True)
class Candidate(Record):
    """Cases that may have a pattern in common; `concept` is "" for a neighbourhood."""
    level: int
    concept: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Case:
    """A memory that may be a source: its own level, and the concepts that it names."""
    id: str
    level: int
    given: tuple[str, ...]             # tags and anchors
    named: tuple[str, ...]             # names in its text


def find_candidates(memory: HermesLite, orders: Mapping[str, Mapping[str, Any]], *, most: int,
                    cursor: str = "") -> tuple[list[Candidate], str]:
    """Return at most *most* candidates, the clearest first, and the cursor for the next time.

    *orders* are those of the state: what they are about is left out.
    """
    if most < 1:
        return [], cursor
    cases = {case.id: case for case in _cases(memory, orders)}
    found: list[Candidate] = []
    taken: set[str] = set()
    grouped = _groups(cases.values())
    for (level, concept), ids in grouped:
        free = [each for each in ids if each not in taken]
        free = _without_asked(memory, orders, concept, free)
        if len(free) >= LEAST:
            sources = free if len(free) <= MOST else _densest(memory, free)
            found.append(Candidate(level + 1, concept, tuple(sorted(sources))))
            taken.update(sources)
        if len(found) == most:
            return found, cursor
    in_groups = {each for _, ids in grouped for each in ids}
    loose = [each for each in cases if each not in in_groups and cases[each].level == 1]
    loose = _without_asked(memory, orders, "", loose)
    near, cursor = _neighbourhoods(memory, loose, cursor)
    return [*found, *islice(near, most - len(found))], cursor


def names_in(entry: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the concepts of an entry: those given as tags or anchors, and names in its text.

    Without case. A tag with / in it belongs to a system.
    """
    given = [tag for tag in entry.get("tags") or () if "/" not in tag]
    anchors: Any = (entry.get("meta") or {}).get("anchors")
    for kind in _NAMING if isinstance(anchors, Mapping) else ():
        rows = anchors.get(kind)
        for row in rows if isinstance(rows, (list, tuple)) else ():
            value = row.get("value") if isinstance(row, Mapping) else row
            given.append(str(value))
    named = [name for name, kind in extract_entities(entry["content"]) if kind == "name"]
    return ([*dict.fromkeys(name.casefold() for name in given)],
            [*dict.fromkeys(name.casefold() for name in named)])


def _cases(memory: HermesLite, orders: Mapping[str, Mapping[str, Any]]) -> Iterator[_Case]:
    """Yield what may be a source: awake, ordinary, in no open order and in no living pattern."""
    store = memory.store
    asked = {each for order in orders.values() if order["status"] == "open"
             for each in order["sources"]}
    for memory_id in store.ids():
        entry = store.entry(memory_id)
        if entry is None or memory_id in asked:
            continue
        tags, note = entry.get("tags") or (), (entry.get("meta") or {}).get(NAME)
        if ASLEEP in tags or not is_ordinary(tags):
            continue
        note = note if isinstance(note, dict) else {}
        level = note.get("level", 1)
        patterns = note.get("abstracted_in")
        patterns = patterns if isinstance(patterns, (list, tuple)) else ()
        if level in (1, 2) and not any(store.entry(str(each)) for each in patterns):
            given, named = names_in(entry)
            yield _Case(memory_id, level, tuple(given), tuple(named))


def _groups(cases: Iterable[_Case]) -> list[tuple[tuple[int, str], list[str]]]:
    """Return ((level, concept), ids) of each concept with three cases, the clearest first.

    What somebody gave as a tag comes before a name in a text, a few cases before many.
    """
    groups: dict[tuple[int, str], list[str]] = defaultdict(list)
    given: set[tuple[int, str]] = set()
    for case in cases:
        given.update((case.level, name) for name in case.given)
        for name in dict.fromkeys((*case.given, *case.named)):
            groups[case.level, name].append(case.id)

    def order(item: tuple[tuple[int, str], list[str]]) -> tuple[object, ...]:
        key, ids = item
        is_large = len(ids) > MOST
        return key not in given, is_large, len(ids) if is_large else -len(ids), key

    return sorted(((key, ids) for key, ids in groups.items() if len(ids) >= LEAST), key=order)


def _without_asked(memory: HermesLite, orders: Mapping[str, Mapping[str, Any]], concept: str,
                   ids: list[str]) -> list[str]:
    """Return the ids that no closed order about this concept has asked about."""
    print_ = fingerprint(concept, memory.redactor.key("brain"))
    asked = {each for order in orders.values() if order["concept"] == print_
             for each in order["sources"]}
    return [each for each in ids if each not in asked]


def _densest(memory: HermesLite, ids: list[str]) -> list[str]:
    """Return the newest of many cases and those most like it; without any, the newest ones."""
    newest, known = ids[-1], frozenset(ids)
    like = _like(memory, newest, IdFilter(known.__contains__, known))
    return [newest, *like] if len(like) + 1 >= LEAST else ids[-MOST:]


def _like(memory: HermesLite, memory_id: str, accept: IdFilter) -> list[str]:
    """Return at most seven others whose words are like those of a memory, the likest first."""
    text = memory.store.text(memory_id) or ""
    ranked = memory.store.search.words(text, MOST, accept=accept, rarest=_RAREST)
    scores = dict(ranked)
    own = scores.pop(memory_id, None)
    if own is None:                                # more than seven say the same
        return []
    return [each for each, score in scores.items() if score >= _LIKE * own]


def _neighbourhoods(memory: HermesLite, ids: list[str],
                    cursor: str) -> tuple[Iterator[Candidate], str]:
    """Return the neighbourhoods of the next cases behind the cursor, and where they end."""
    ordered = sorted(ids)
    behind = [each for each in ordered if each > cursor] or ordered
    looked_at = behind[:_LOOKED_AT]

    def found() -> Iterator[Candidate]:
        free = set(ids)
        for memory_id in looked_at:
            if memory_id not in free:
                continue
            like = _like(memory, memory_id, IdFilter(free.__contains__))
            if len(like) + 1 >= LEAST:
                sources = memory_id, *like
                free.difference_update(sources)
                yield Candidate(2, "", tuple(sorted(sources)))

    return found(), looked_at[-1] if looked_at else ""

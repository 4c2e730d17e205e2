"""The order of hits: principles and patterns that answer first, their cases right under them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hermes_ext.brain.note import NAME, note_of, sources_of
from hermes_lite import Hit

__all__ = ["put_abstract_first"]


def put_abstract_first(hits: Sequence[Hit]) -> list[Hit]:
    """Put principles and patterns that answer before the others, their cases under them.

    One answers when it is at least half as likely as the best hit. Level 3 comes before 2; what
    an exact lookup put in front stays there. `why["brain"]` says {"level", "cases"} of an abstract
    hit and {"under"} of a case. Without an abstract hit the list is as it was.
    """
    best = max((hit.confidence for hit in hits), default=0.0)
    answering = [hit for hit in hits if note_of(hit.memory).level > 1
                 and hit.confidence >= best / 2 and not hit.why.get("exact")]
    if not answering:
        return list(hits)
    answering.sort(key=lambda hit: -note_of(hit.memory).level)     # stable: the rest by rank
    exact = [hit for hit in hits if hit.why.get("exact")]
    ordered = {hit.id: hit for hit in exact}
    by_id = {hit.id: hit for hit in hits}
    for hit in answering:
        if hit.id not in ordered:
            _put_with_cases(hit, by_id, ordered)
    return [*ordered.values(), *(hit for hit in hits if hit.id not in ordered)]


def _put_with_cases(hit: Hit, by_id: Mapping[str, Hit], ordered: dict[str, Hit]) -> None:
    """Add an abstract hit and the hits that it was drawn from, all the way down."""
    level, sources = note_of(hit.memory).level, sources_of(hit.memory)
    kind = "a principle" if level == 3 else "a pattern"
    ordered[hit.id] = _explained(hit, f"{kind} drawn from {len(sources)} memories",
                                 {"level": level, "cases": list(sources)})
    places = {memory_id: place for place, memory_id in enumerate(by_id)}
    cases = [each for each in sources if each in by_id and each not in ordered]
    for memory_id in sorted(cases, key=places.__getitem__):        # in the order of the ranking
        case = _explained(by_id[memory_id], f"a case of {hit.id}", {"under": hit.id})
        if note_of(case.memory).level > 1:
            _put_with_cases(case, by_id, ordered)
        else:
            ordered[memory_id] = case


def _explained(hit: Hit, sentence: str, told: Mapping[str, object]) -> Hit:
    """Return a hit that says one thing more of why it stands where it stands."""
    because = (*hit.why.get("because", ()), sentence)
    why = {**hit.why, NAME: {**hit.why.get(NAME, {}), **told}, "because": because}
    return replace(hit, why=why)

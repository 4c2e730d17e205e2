"""Lanes and origins: which origin may write to which lane, how sure it must be, for how long.

The settings under `systems.lanes` in config.yaml, with their defaults:

    lanes:                      # of a lane only what differs needs to stand here
      preference: {days: 14, confidence: 0.3, sources: [observation, conversation]}
    origins: {hook: conversation, mcp: inference}       # the ceiling of an entry point
    review: off                 # models: what a model proposes waits for a person
    rebound: {idle_hours: 6, facts: 3}
    synonyms: [[db, datenbank, database, 数据库]]        # beside those of `wording.SYNONYMS`
    inject:                     # characters of a turn's block, 0 leaves a part out
      identity: 600             # first turn; later_identity: of the others
      later_identity: 200
      preference: 800
      evidence: 1500
      lessons: 600
      related: 500              # AGENT_MEMORY_RELATIONS=off leaves it out
      entity_attributes: 0      # AGENT_MEMORY_BUDGET_ENTITY_ATTRS
      rules: 600
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hermes_ext.lanes.wording import SYNONYMS
from hermes_lite import ConfigError, UsageError, check_known, is_gram, tokenize_terms

__all__ = ["BUDGETS", "CEILINGS", "CONFIDENCE", "LANES", "Lane", "ORIGINS", "Policy", "REASONS", "lowest",
           "rank", "read_policy"]

# From the most to the least trusted.
ORIGINS = ("observation", "conversation", "inference", "tool", "external")

# How sure a writer is that does not say so.
CONFIDENCE = {"observation": 1.0, "conversation": 0.9, "inference": 0.7, "tool": 0.6,
              "external": 0.5}

# The highest origin that an entry point can give: the first word of a surface, or a door.
CEILINGS = {
    "python": "observation",    # a program of the user; without a claim it is inference
    "terminal": "observation",  # cli and shell, where a person types
    "script": "inference",      # cli and shell, where none does
    "hook": "conversation", "mcp": "inference", "http": "inference", "sediment": "inference",
    "reviewer": "observation",  # HTTP, a person with the right to review
    "digest": "inference", "consolidation": "inference", "model": "inference", "tool": "tool",
    "file": "external",
    "admit": "external"}        # import, sync, vault

REASONS = {
    "unknown_lane": "no lane has this name",
    "unknown_source": "no origin has this name",
    "source_not_allowed": "this origin may not write to this lane",
    "low_confidence": "the lane asks for more confidence",
    "needs_review": "a rule is proposed and approved, never remembered",
    "needs_terminal": "a person at a terminal has to decide this",
    "text_changed": "the text is no longer the one that was shown",
    "rule_conflict": "an active rule says the opposite, or too many hold at once",
}


@dataclass(frozen=True, slots=True)
class Lane:
    """What holds for one lane; *days* is None where a fact never expires."""
    name: str
    days: int | None
    confidence: float
    sources: tuple[str, ...]
    single_valued: bool = False


_PERSON = ("observation", "conversation")
LANES = {lane.name: lane for lane in (
    Lane("identity", None, 0.9, _PERSON, single_valued=True),
    Lane("preference", 14, 0.3, _PERSON),
    Lane("evidence", 60, 0.5, ORIGINS),
    Lane("authorization", 90, 0.9, ("observation",), single_valued=True),
    Lane("procedural", 30, 0.5, ("observation",)))}


# Characters of each part of the block that a turn is given.
BUDGETS = {"identity": 600, "later_identity": 200, "preference": 800, "evidence": 1500,
           "lessons": 600, "related": 500, "entity_attributes": 0, "rules": 600}


@dataclass(frozen=True, slots=True)
class Policy:
    """The lanes, ceilings and limits of one root."""
    lanes: Mapping[str, Lane] = field(default_factory=lambda: LANES)
    ceilings: Mapping[str, str] = field(default_factory=lambda: CEILINGS)
    review: str = "off"
    idle_hours: float = 6.0
    rebound_facts: int = 3
    synonyms: tuple[tuple[str, ...], ...] = SYNONYMS
    budgets: Mapping[str, int] = field(default_factory=lambda: BUDGETS)

    def lane(self, name: object) -> Lane:
        """Return the lane of this name; UsageError when there is none."""
        if not isinstance(name, str) or name not in self.lanes:
            raise UsageError(f"{str(name)[:40]!r} is no lane; use one of: "
                             f"{', '.join(self.lanes)}")
        return self.lanes[name]

    def refusal(self, lane: Lane, origin: str, confidence: float) -> str | None:
        """Return the reason code for which a lane does not take a write, or None."""
        if origin not in lane.sources:
            return "source_not_allowed"
        if confidence < lane.confidence:
            return "low_confidence"
        return None


def rank(origin: str) -> int:
    """Return the place of an origin, 0 is the most trusted; what is unknown is the least."""
    return ORIGINS.index(origin) if origin in ORIGINS else len(ORIGINS) - 1


def lowest(origins: Iterable[str]) -> str:
    """Return the least trusted of some origins; there is at least one."""
    return ORIGINS[max(map(rank, origins))]


def read_policy(*, lanes: object = None, origins: object = None, review: object = "off",
                rebound: object = None, synonyms: object = None,
                inject: object = None) -> Policy:
    """Read the settings of config.yaml; ConfigError names the one that is wrong."""
    made = dict(LANES)
    for name, settings in _mapping("lanes", lanes, LANES).items():
        made[name] = _lane_with_settings(made[name], settings)
    ceilings = {**CEILINGS, **_mapping("origins", origins, CEILINGS)}
    for name, origin in ceilings.items():
        if origin not in ORIGINS:
            raise _wrong(f"origins.{name}", origin, f"one of {', '.join(ORIGINS)}")
    kept = _mapping("rebound", rebound, ("idle_hours", "facts"))
    hours, facts = kept.get("idle_hours", 6), kept.get("facts", 3)
    if type(hours) not in (int, float) or not hours >= 0:
        raise _wrong("rebound.idle_hours", hours, "a number from 0 up")
    if type(facts) is not int or facts < 0:
        raise _wrong("rebound.facts", facts, "a whole number from 0 up")
    review = "off" if review is False else review          # YAML reads off as false
    if review not in ("off", "models"):
        raise _wrong("review", review, "off or models")
    return Policy(made, ceilings, str(review), float(hours), facts, _synonyms(synonyms),
                  _budgets(inject))


def _synonyms(groups: object) -> tuple[tuple[str, ...], ...]:
    """Return the built-in groups of words that mean the same, and those of config.yaml."""
    wanted = "lists of single words that mean the same, such as [[db, database]]"
    if groups is None:
        return SYNONYMS
    if not isinstance(groups, (list, tuple)):
        raise _wrong("synonyms", groups, wanted)
    for group in groups:
        if not isinstance(group, (list, tuple)) or not all(map(_is_word, group)):
            raise _wrong("synonyms", group, wanted)
    return (*SYNONYMS, *map(tuple, groups))


def _is_word(text: object) -> bool:
    if not isinstance(text, str) or len(text.split()) != 1:
        return False
    return is_gram(text[0]) or len(tokenize_terms(text)) == 1


def _budgets(given: object) -> Mapping[str, int]:
    budgets = {**BUDGETS, **_mapping("inject", given, BUDGETS)}
    for name, size in budgets.items():
        if type(size) is not int or size < 0:
            raise _wrong(f"inject.{name}", size, "a number of characters, 0 to leave it out")
    return budgets


def _lane_with_settings(lane: Lane, settings: object) -> Lane:
    """Return a lane with what config.yaml sets in place of its defaults; ConfigError if wrong."""
    given = _mapping(f"lanes.{lane.name}", settings, ("days", "confidence", "sources"))
    days = given.get("days", lane.days)
    confidence = given.get("confidence", lane.confidence)
    sources = given.get("sources", lane.sources)
    if days is not None and (type(days) is not int or days < 1):
        raise _wrong(f"lanes.{lane.name}.days", days, "a whole number from 1 up, or null")
    if type(confidence) not in (int, float) or not 0 <= confidence <= 1:
        raise _wrong(f"lanes.{lane.name}.confidence", confidence, "a number from 0 to 1")
    if not isinstance(sources, (list, tuple)) or not set(map(str, sources)) <= {*ORIGINS}:
        raise _wrong(f"lanes.{lane.name}.sources", sources, f"a list of {', '.join(ORIGINS)}")
    return replace(lane, days=days, confidence=confidence, sources=tuple(map(str, sources)))


def _mapping(name: str, value: object, known: Iterable[str]) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "a mapping")
    for key in value:
        check_known(key, list(known), f"config.yaml: systems.lanes.{name}")
    return value


def _wrong(name: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"config.yaml: systems.lanes.{name} is {str(value)[:40]!r}; give {wanted}")

"""The merge of sync: the state of one memory, and how two states of it become one.

    item = merge(merge(mine, theirs), others)     # in any order, any number of times

An Item is all that somebody knows of one memory, a Version one text of it. Both know neither
files nor stores nor networks: a server can use them as a folder does. `to_line` and `from_line`
are the form in which a change travels (the head of sync/sync.py describes it); `from_line` trusts
nobody.

A clock is {device: number of its newest change that was seen}. Of two texts the one whose clock
has seen the other's takes its place; where neither has seen the other, both stay.
"""
from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hermes_lite import Memory, is_safe_id, plain, to_json

__all__ = ["DEVICE", "FIELDS", "Clock", "Item", "Kept", "Version", "has_seen", "from_line",
           "is_count", "joined", "merge", "newest", "text_hash", "to_line"]

FIELDS = ("category", "room", "importance", "execution_verified", "source", "created_at",
          "redacted", "tags", "agent", "expires_at", "status", "supersedes")
DEVICE = re.compile(r"[0-9a-f]{12}")
Clock = Mapping[str, int]
_MOST_CHANGES = 1 << 48              # a larger number in a file is no count
_MOST_LISTED = 64                    # entries of a list in a change


@dataclass(frozen=True, slots=True)
class Version:
    """One text of a memory; `clock` holds the changes that its writer had seen.

    `text` is None where only the hash is known.
    """
    clock: Clock
    text_hash: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """State of one memory; two of them merge in any order, any number of times.

    versions  the texts that no other text's writer had seen, best first
    facts     {field: (level, value)}, a level being the number of changes before it
    count     access count, and the time of the last access
    forgotten clock of the times it was forgotten
    replaced  clocks of the texts that another memory has: it was a duplicate
    voided    clocks of the texts that were forgotten under another id
    known_forgotten  ids of forgotten memories of the same text that its writer knew of
    """
    versions: tuple[Version, ...] = ()
    facts: Mapping[str, tuple[int, object]] = field(default_factory=dict)
    count: tuple[int, str] = (0, "")
    forgotten: Clock = field(default_factory=dict)
    replaced: tuple[Clock, ...] = ()
    voided: tuple[Clock, ...] = ()
    known_forgotten: tuple[str, ...] = ()


class Kept:
    """Placeholder of a value that this device's rules have changed: it is kept, and not sent."""


def merge(one: Item, two: Item) -> Item:
    """Return the least item that knows all that both know."""
    forgotten = joined(one.forgotten, two.forgotten)
    replaced = newest([*one.replaced, *two.replaced])
    voided = newest([*one.voided, *two.voided])
    facts = dict(one.facts)
    for name, fact in two.facts.items():
        facts[name] = _merged_fact(name, facts[name], fact) if name in facts else fact
    return Item(
        versions=_remaining([*one.versions, *two.versions], forgotten, (*replaced, *voided)),
        facts=facts, count=max(one.count, two.count), forgotten=forgotten, replaced=replaced,
        voided=voided,
        known_forgotten=tuple(dict.fromkeys((*one.known_forgotten, *two.known_forgotten))))


def has_seen(one: Clock, two: Clock) -> bool:
    """Tell whether clock *one* holds every change that *two* holds; an equal clock does."""
    return all(one.get(device, 0) >= number for device, number in two.items())


def joined(*clocks: Clock) -> dict[str, int]:
    """Return the least clock that has seen all of them: {a: 2} and {a: 1, b: 1} → {a: 2, b: 1}."""
    found: dict[str, int] = {}
    for clock in clocks:
        for device, number in clock.items():
            found[device] = max(number, found.get(device, 0))
    return found


def newest(clocks: Iterable[Clock]) -> tuple[Clock, ...]:
    """Return the clocks that no other one has seen, each once, in a fixed order."""
    unique = {tuple(sorted(clock.items())): clock for clock in clocks}
    found = []
    for _, clock in sorted(unique.items()):
        others = (other for other in unique.values() if other is not clock)
        if not any(has_seen(other, clock) for other in others):
            found.append(clock)
    return tuple(found)


def _remaining(versions: Iterable[Version], forgotten: Clock, dropped: Iterable[Clock]) -> (
        tuple[Version, ...]):
    """Return the texts that none other has seen, that were not forgotten and not dropped.

    A text is forgotten unless its writer had seen the forgetting. The best comes first.
    """
    unique: dict[tuple, Version] = {}
    for each in versions:
        is_forgotten = not has_seen(each.clock, forgotten)
        is_dropped = any(has_seen(clock, each.clock) for clock in dropped)
        if is_forgotten or is_dropped:
            continue
        key = _rank(each)
        if key not in unique or unique[key].text is None:      # the one that has its text
            unique[key] = each
    best_first = [unique[key] for key in sorted(unique, reverse=True)]
    return tuple(each for each in best_first if not any(
        other.clock != each.clock and has_seen(other.clock, each.clock) for other in best_first))


def _rank(version: Version) -> tuple:
    """Return what orders versions the same on every device.

    By the sum of its clock a text ranks above all that it has seen, so one that once came second
    never becomes first.
    """
    clock = version.clock
    return sum(clock.values()), tuple(sorted(clock.items())), version.text_hash


def _merged_fact(name: str, one: tuple[int, object], two: tuple[int, object]) -> (
        tuple[int, object]):
    """Return the fact that was changed more often; of two, the larger, or both lists."""
    level, value = one
    other_level, other = two
    if level != other_level:
        return one if level > other_level else two
    if value == other:
        return one
    if Kept in (value, other):
        return level, Kept
    if name in ("tags", "redacted"):
        return level, sorted({*(value or ()), *(other or ())})
    return level, max(value, other, key=lambda each: _value_rank(name, each))


def _value_rank(name: str, value: object) -> tuple:
    """Return what orders two values of a field: none below any, numbers by size, else by JSON."""
    is_number = name in ("importance", "execution_verified")
    return value is not None, value if is_number else 0, to_json(value)


def text_hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def to_line(memory_id: str, item: Item, number: int = 0) -> dict[str, object]:
    """Return a change as JSON's types: the best version and all else the item knows.

    The head of sync/sync.py specifies the names. What is empty is left out.
    """
    row: dict[str, object] = {"n": number, "id": memory_id}
    if item.versions and item.versions[0].text is not None:
        row.update(clock=dict(item.versions[0].clock), text=item.versions[0].text)
    facts = {name: fact for name, fact in item.facts.items() if fact[1] is not Kept}
    optional = {
        "facts": {name: value for name, (_, value) in facts.items()},
        "levels": {name: level for name, (level, _) in facts.items() if level != 1},
        "count": list(item.count) if item.count[0] else None,
        "gone": dict(item.forgotten),
        "same": [dict(clock) for clock in item.replaced],
        "void": [dict(clock) for clock in item.voided],
        "after": list(item.known_forgotten)}
    return {**row, **{name: value for name, value in optional.items() if value}}


def from_line(row: object) -> tuple[str, Item]:
    """Read a change that somebody wrote; ValueError says what in it cannot be."""
    if not isinstance(row, dict):
        raise ValueError("a change is not an object")
    memory_id = row.get("id")
    if not isinstance(memory_id, str) or not _is_good_id(memory_id):
        raise ValueError("the id is no safe name")
    versions: tuple[Version, ...] = ()
    if "text" in row:
        if not isinstance(row["text"], str) or not row.get("clock"):
            raise ValueError("the text is no text, or has no clock")
        versions = (Version(_read_clock(row["clock"]), text_hash(row["text"]), row["text"]),)
    return memory_id, Item(
        versions, facts=_read_facts(row), count=_read_count(row),
        forgotten=_read_clock(row.get("gone", {})),
        replaced=tuple(map(_read_clock, _read_list(row, "same"))),
        voided=tuple(map(_read_clock, _read_list(row, "void"))),
        known_forgotten=tuple(each for each in _read_list(row, "after")
                              if isinstance(each, str)))


_DEVICE_OF_WINDOWS = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)")      # nul, com1.md


def _is_good_id(name: str) -> bool:
    """Tell whether an id is a file's name on Windows too, which ignores case and a last dot."""
    return (is_safe_id(name) and name == name.lower() and not name.endswith(".")
            and not _DEVICE_OF_WINDOWS.match(name))


def is_count(value: object) -> bool:
    """Tell whether a value from a file is a number of changes or accesses."""
    return type(value) is int and 0 <= value <= _MOST_CHANGES


def _read_list(row: Mapping[str, object], name: str) -> list:
    """Return a list of a change, [] where it has none."""
    value = row.get(name, [])
    if not isinstance(value, list) or len(value) > _MOST_LISTED:
        raise ValueError(f"{name} is not a short list")
    return value


def _read_count(row: Mapping[str, object]) -> tuple[int, str]:
    """Return access count and time of the last access; zero and "" where a change has none."""
    values = _read_list(row, "count") or [0, ""]
    count, last_accessed = values[:2] if len(values) > 1 else (None, None)
    if not is_count(count) or not isinstance(last_accessed, str) or len(last_accessed) > 40:
        raise ValueError("the access count is none")
    return count, last_accessed


def _read_clock(value: object) -> dict[str, int]:
    """Return a clock of a change; ValueError where it is none."""
    if not isinstance(value, dict) or len(value) > 256:
        raise ValueError("the clock cannot be right")
    for device, number in value.items():
        if not DEVICE.fullmatch(device) or number == 0 or not is_count(number):
            raise ValueError("the clock cannot be right")
    return value


def _read_facts(row: Mapping[str, object]) -> dict[str, tuple[int, object]]:
    """Return {field: (level, value)}; one with a name or level that cannot be is left out."""
    facts, levels = row.get("facts", {}), row.get("levels", {})
    if not isinstance(facts, dict) or not isinstance(levels, dict) or len(facts) > 500:
        raise ValueError("the fields are none")
    found: dict[str, tuple[int, object]] = {}
    for name, value in facts.items():
        if name in FIELDS and value is not None and not _has_right_type(name, value):
            raise ValueError(f"{name} has the wrong type")
        level = levels.get(name, 1)
        if is_count(level) and (name in FIELDS or _is_free(name)):
            found[name] = level, plain(value)
    return found


def _has_right_type(name: str, value: object) -> bool:
    """Tell whether a field's value is of its type: a number, a bool, a list of str, or a str."""
    if name in ("tags", "redacted"):
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if name == "importance":
        return type(value) is int
    if name == "execution_verified":
        return type(value) is bool
    return isinstance(value, str)


def _is_free(name: str) -> bool:
    """Tell whether it is a system's fact (meta.NAME), or a field unknown here (extra.NAME)."""
    kind, _, rest = name.partition(".")
    if kind == "meta":
        return bool(rest)
    return kind == "extra" and bool(rest) and rest not in Memory.__dataclass_fields__

"""The merge of sync: the state of one memory, and how two states of it become one.

    item = merge(merge(mine, theirs), others)     # in any order, any number of times

An Item is all that somebody knows of one memory, a Version one text of it. Both know neither
files nor stores nor networks: a server can use them as a folder does. `to_line` and `from_line`
are the form in which a change travels (the head of sync/sync.py describes it); `from_line` trusts
nobody.

A clock is {device: number of its newest change that was seen}. Of two texts the one whose clock
covers the other's has seen it, and takes its place; where neither covers the other, both stand.
"""
from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hermes_lite import Memory, is_safe_id, plain, to_json

__all__ = ["DEVICE", "FIELDS", "Clock", "Item", "Kept", "Version", "covers", "from_line",
           "is_count", "joined", "merge", "newest", "text_hash", "to_line"]

FIELDS = ("category", "room", "importance", "execution_verified", "source", "created_at",
          "redacted", "tags", "agent", "expires_at", "status", "supersedes")
DEVICE, _MOST = re.compile(r"[0-9a-f]{12}"), 1 << 48
Clock = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Version:
    """One text of a memory; `clock` holds the changes its writer had seen, `mark` is its hash."""
    clock: Clock
    mark: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """State of one memory; two of them merge in any order, any number of times.

    `versions`, best first, are those that no other version's clock covers. `facts` is {field:
    (level, value)}, a level being the number of changes before it. `gone` is the clock of the
    times it was forgotten, `same` holds the clocks of versions that another memory replaces,
    `void` those of versions whose text was forgotten under another id. `after` names the
    forgotten memories of the same text that its writer knew of.
    """
    versions: tuple[Version, ...] = ()
    facts: Mapping[str, tuple[int, object]] = field(default_factory=dict)
    count: tuple[int, str] = (0, "")
    gone: Clock = field(default_factory=dict)
    same: tuple[Clock, ...] = ()
    void: tuple[Clock, ...] = ()
    after: tuple[str, ...] = ()


class Kept:
    """Placeholder of a value that this device's rules have changed: it is kept, and not sent."""


def merge(one: Item, two: Item) -> Item:
    """Return the least item that knows all that both know."""
    gone = joined(one.gone, two.gone)
    same, void = newest([*one.same, *two.same]), newest([*one.void, *two.void])
    facts = dict(one.facts)
    for name, (level, value) in two.facts.items():
        facts[name] = _joined_fact(name, facts.get(name, (-1, None)), (level, value))
    return Item(_standing([*one.versions, *two.versions], gone, (*same, *void)), facts,
                max(one.count, two.count), gone, same, void,
                tuple(dict.fromkeys((*one.after, *two.after))))


def covers(one: Clock, two: Clock) -> bool:
    return all(one.get(device, 0) >= n for device, n in two.items())


def joined(*clocks: Clock) -> dict[str, int]:
    """Return the least clock that covers all of them."""
    found: dict[str, int] = {}
    for clock in clocks:
        for device, n in clock.items():
            found[device] = max(n, found.get(device, 0))
    return found


def newest(clocks: Iterable[Clock]) -> tuple[Clock, ...]:
    """Return the clocks that no other one covers, each once, in a fixed order."""
    unique = {tuple(sorted(clock.items())): clock for clock in clocks}
    return tuple(one for key, one in sorted(unique.items()) if not any(
        other is not one and covers(other, one) for other in unique.values()))


def _standing(versions: Iterable[Version], gone: Clock, dropped: Iterable[Clock]) -> (
        tuple[Version, ...]):
    """Return what is neither seen by another version, nor forgotten, nor dropped.

    The order is total, and a version comes before all that it has seen: one that once came
    second never becomes first.
    """
    unique: dict[tuple, Version] = {}
    for each in versions:
        key = sum(each.clock.values()), tuple(sorted(each.clock.items())), each.mark
        if covers(each.clock, gone) and not any(covers(clock, each.clock) for clock in dropped):
            if key not in unique or unique[key].text is None:
                unique[key] = each
    return tuple(each for key, each in sorted(unique.items(), reverse=True) if not any(
        other.clock != each.clock and covers(other.clock, each.clock)
        for other in unique.values()))


def _joined_fact(name: str, one: tuple[int, object], two: tuple[int, object]) -> (
        tuple[int, object]):
    """Return the fact that was changed more often; of two, the larger, or both lists."""
    if one[0] != two[0] or one[1] == two[1]:
        return max(one, two, key=lambda fact: fact[0])
    values = [one[1], two[1]]
    if Kept in values:
        return one[0], Kept
    if name in ("tags", "redacted"):
        return one[0], sorted({*(one[1] or ()), *(two[1] or ())})
    return one[0], max(values, key=lambda value: (
        value is not None, value if name in ("importance", "execution_verified") else 0,
        to_json(value)))


def text_hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def to_line(memory_id: str, item: Item, n: int = 0) -> dict[str, object]:
    """Return a change as JSON's types: the best version and all else the item knows."""
    row: dict[str, object] = {"n": n, "id": memory_id}
    if item.versions and item.versions[0].text is not None:
        row.update(clock=dict(item.versions[0].clock), text=item.versions[0].text)
    known = {name: fact for name, fact in item.facts.items() if fact[1] is not Kept}
    levels = {name: level for name, (level, _) in known.items() if level != 1}
    optional = {"facts": {name: value for name, (_, value) in known.items()}, "levels": levels,
                "count": list(item.count) if item.count[0] else None, "gone": dict(item.gone),
                "same": [dict(clock) for clock in item.same],
                "void": [dict(clock) for clock in item.void], "after": list(item.after)}
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
        versions = Version(_clock(row["clock"]), text_hash(row["text"]), row["text"]),
    same, void = (tuple(map(_clock, _list(row, name))) for name in ("same", "void"))
    after = tuple(each for each in _list(row, "after") if isinstance(each, str))
    count, when = (*_list(row, "count"), 0, "")[:2] if len(_list(row, "count")) != 1 else (0, 0)
    if not is_count(count) or not isinstance(when, str) or len(when) > 40:
        raise ValueError("the access count is none")
    return memory_id, Item(versions, _read_facts(row), (count, when), _clock(row.get("gone", {})),
                           same, void, after)


def _is_good_id(name: str) -> bool:
    return is_safe_id(name) and name == name.lower() and not re.match(
        r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)|.*\.$", name)


def is_count(value: object, most: int = _MOST) -> bool:
    return type(value) is int and 0 <= value <= most


def _list(row: Mapping[str, object], name: str) -> list:
    value = row.get(name, [])
    if not isinstance(value, list) or len(value) > 64:
        raise ValueError(f"{name} is not a short list")
    return value


def _clock(value: object) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > 256 or not all(
            DEVICE.fullmatch(device) and n and is_count(n) for device, n in value.items()):
        raise ValueError("the clock cannot be right")
    return value


def _read_facts(row: Mapping[str, object]) -> dict[str, tuple[int, object]]:
    facts, levels = row.get("facts", {}), row.get("levels", {})
    if not isinstance(facts, dict) or not isinstance(levels, dict) or len(facts) > 500:
        raise ValueError("the fields are none")
    for name, value in facts.items():
        allowed = {"importance": (int,), "execution_verified": (bool,), "tags": (list,),
                   "redacted": (list,)}.get(name, (str,)) if name in FIELDS else None
        if allowed and value is not None and (type(value) not in allowed or not all(
                isinstance(each, str) for each in (value if allowed == (list,) else ()))):
            raise ValueError(f"{name} has the wrong type")
    return {name: (levels.get(name, 1), plain(value)) for name, value in facts.items()
            if is_count(levels.get(name, 1)) and (name in FIELDS or _is_free(name))}


def _is_free(name: str) -> bool:
    """Tell whether it is a system's fact, or a field that this version does not know."""
    kind, _, rest = name.partition(".")
    return kind == "meta" and bool(rest) or kind == "extra" and bool(rest) and (
        rest not in Memory.__dataclass_fields__)

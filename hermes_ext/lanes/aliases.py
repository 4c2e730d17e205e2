"""One person, several names: what a sealed alias says."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from hermes_ext.lanes.authority import Authority, entity_tag
from hermes_lite import Memory, Store, normalise

__all__ = ["names_in", "names_of"]

Judge = Callable[[Memory], Authority]


def names_of(store: Store, judge: Judge, name: str) -> tuple[str, ...]:
    """Return all names of who is called *name*: the person first, then the aliases, sorted."""
    owner = name
    for alias, person in _pairs(store, judge, store.search.tagged((entity_tag(name),))):
        if normalise(alias) == normalise(name):
            owner = person
    about_owner = _pairs(store, judge, store.search.tagged((entity_tag(owner),)))
    aliases = [alias for alias, person in about_owner if normalise(person) == normalise(owner)]
    return tuple(dict.fromkeys((owner, *sorted(aliases))))


def names_in(store: Store, judge: Judge, text: str) -> list[str]:
    """Return the other names of everybody whom a text names, each once."""
    said = f" {normalise(text)} "
    found: dict[str, None] = {}
    for alias, person in _pairs(store, judge, store.search.tagged(("kind/alias",))):
        if _names(said, alias):
            found[person] = None
        if _names(said, person):
            found[alias] = None
    return [name for name in found if not _names(said, name)]


def _names(said: str, name: str) -> bool:
    """Tell whether a name stands in a text as a word of its own; Chinese has no blanks."""
    folded = normalise(name)
    place = said.find(folded)
    while folded and place >= 0:
        before, after = said[place - 1], said[place + len(folded)]
        if not (_is_latin(before) and _is_latin(folded[0])) and not (
                _is_latin(after) and _is_latin(folded[-1])):
            return True
        place = said.find(folded, place + 1)
    return False


def _is_latin(sign: str) -> bool:
    return sign.isalnum() and ord(sign) < 0x2E80


def _pairs(store: Store, judge: Judge, ids: Sequence[str]) -> list[tuple[str, str]]:
    """Return (alias, person) of the sealed aliases among these ids."""
    pairs = []
    for memory_id in ids:
        one = store.get(memory_id)
        found = judge(one) if one is not None else None
        if found is not None and found.kind == "alias" and found.sealed and not found.held:
            pairs.append((str(found.data.get("alias")), str(found.data.get("name"))))
    return pairs

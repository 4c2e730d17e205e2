"""The log of changes, and how they are taken back.

    hermes_lite.py brain log                      the newest changes first
    hermes_lite.py undo                           takes back the newest that was not undone
    hermes_lite.py undo change_12

What changes notes or makes a memory calls `log_change` in the same transaction. State "brain_log"
(.state_brain_log.json, version 1) holds no text of a memory:

    next        the number of the next change
    changes     the newest 1,000: {id, at, what, ids, made, order, fields, undone}; `fields` is
                {memory: {field of its note: [before, after]}}, a concept's name in it a keyed
                fingerprint

Undo sets a field back where it still is what the change made it. Lists such as `links` lose what
the change added and get back what it took. So later changes stay. What a change made is removed
without a tombstone: a person can have it again. What undo wakes up stays awake as if it was used
now. Uses are settled without an entry: they are facts, not decisions.
"""
from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hermes_ext.brain.extension import find
from hermes_ext.brain.note import CONCEPT, Note, note_of, with_note
from hermes_ext.brain.state import read_state, save_state
from hermes_ext.brain.strength import strength_at
from hermes_lite import (HermesLite, Memory, NotFound, Operation, Param, Record, Refused, fits,
                         iso, plain, pluralize)

__all__ = ["Change", "DECLINED", "OPERATIONS", "changes", "fingerprint", "log_change", "newest_change",
           "undo"]

DECLINED = "declined an order"

_STATE = "brain_log"
_CHANGE = {"id": str, "at": str, "what": str, "ids": [str], "made?": [str],
           "order?": (str, None), "fields?": {str: {str: list}}, "undone?": bool}
_FORM = {"version": int, "next": int, "changes": [_CHANGE]}
_MOST_CHANGES = 1_000
_MOST_NOTES = 20_000                   # notes before the changes that can be undone


@dataclass(frozen=True, slots=True)
class Change(Record):
    """One change; `made` are ids of new memories, `order` the work order that it is about.

    `fields` is {memory: {field of its note: [before, after]}}.
    """
    id: str
    at: str
    what: str
    ids: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    order: str | None = None
    fields: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    undone: bool = False

    def lines(self) -> Iterator[str]:
        """Yield what `undo` says of it."""
        yield f"took back {_line(replace(self, undone=False))}"


def log_change(memory: HermesLite, what: str,
               pairs: Iterable[tuple[Memory, Memory]] = (), *, ids: Iterable[str] = (),
               made: Iterable[str] = (), order: str | None = None) -> str:
    """Note a change; return its id. Call it in the transaction that makes the change.

    *what* says it in the past tense ("fell asleep"). *pairs* are memories before and after it,
    *ids* others that it is about, *made* the ids of new memories.
    """
    key = memory.redactor.key("brain")
    fields = {before.id: _changed_fields(note_of(before), note_of(after), key)
              for before, after in pairs}
    state = _read(memory)
    number = state.get("next", 1)
    change = Change(f"change_{number}", iso(memory.clock()), what,
                    tuple(dict.fromkeys([*fields, *ids])), tuple(made), order, fields)
    _write(memory, {"next": number + 1, "changes": [*state.get("changes", ()), change.entry()]})
    return change.id


def changes(memory: HermesLite, limit: int | None = None) -> list[Change]:
    """Return the changes that the brain made, the newest first."""
    find(memory)
    with memory.session.reading():
        rows = [Change(**row) for row in reversed(_read(memory).get("changes", []))][:limit]
    memory.systems.emit("brain log")
    return rows


def undo(memory: HermesLite, change_id: str | None = None) -> Change:
    """Take back one change, the newest that was not undone unless *change_id* names one."""
    find(memory)
    with memory.session.writing() as store:
        change = Change(**_row_to_undo(memory, _read(memory).get("changes", []), change_id))
        _restore_notes(memory, change)
        removed = list(filter(None, map(store.get, change.made)))
        for one in removed:
            store.remove(one.id, why=None)
        if change.order is not None:
            _undo_order(memory, change)
    _mark_undone(memory, change.id)
    for one in removed:
        memory.notices += memory.systems.notify("after_forget", one, "undone")
    memory.systems.emit("undo", [*change.ids, *change.made])
    return replace(change, undone=True)


def newest_change(memory: HermesLite) -> Change | None:
    """Return the newest change that was not undone."""
    rows = [row for row in _read(memory).get("changes", ()) if not row.get("undone")]
    return Change(**rows[-1]) if rows else None


def _mark_undone(memory: HermesLite, change_id: str) -> None:
    """Note that a change was undone, once that is on the disk.

    A kill in between leaves it to be undone once more, which changes nothing.
    """
    with memory.session.writing():
        state = _read(memory)
        for row in state.get("changes", ()):
            if row["id"] == change_id:
                row["undone"] = True
                _write(memory, state)


def _row_to_undo(memory: HermesLite, rows: list[dict[str, Any]],
                 change_id: str | None) -> dict[str, Any]:
    wanted = [row for row in rows if change_id in (None, row["id"])]
    if change_id is not None and not wanted:
        raise NotFound(f"there is no change {memory.redactor.quote(change_id)}; "
                       "`brain log` lists them")
    left = [row for row in wanted if not row.get("undone")]
    if not left:
        raise Refused("there is nothing to undo" if change_id is None else
                      f"{change_id} is undone already", "already_undone")
    return left[-1]


def _undo_order(memory: HermesLite, change: Change) -> None:
    """Decline the order that a change wrote or answered; open one that it declined."""
    state = read_state(memory)
    order = state.get("orders", {}).get(change.order)
    if order is not None:
        order["status"] = "open" if change.what == DECLINED else "declined"
        order.pop("made", None)
        save_state(memory, state)


# -- notes --------------------------------------------------------------------

def fingerprint(name: str, key: bytes) -> str:
    """Return 16 hexadecimal digits that stand for a concept's name in a state."""
    return hmac.new(key, name.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:16]


def _changed_fields(before: Note, after: Note, key: bytes) -> dict[str, list[Any]]:
    """Return {field: [before, after]} of what differs, without the name of a concept."""
    old, new = _plain_note(before, key), _plain_note(after, key)
    return {name: [old[name], new[name]] for name in old if old[name] != new[name]}


def _plain_note(note: Note, key: bytes) -> dict[str, Any]:
    fields = {name: plain(value) for name, value in note.entry().items() if name != "concept"}
    fields["links"] = [[relation, fingerprint(name, key)] for relation, name in note.links]
    return fields


def _restore_notes(memory: HermesLite, change: Change) -> None:
    """Set the fields back that still are what the change made them."""
    brain, key, now = find(memory), memory.redactor.key("brain"), memory.clock()
    baseline = brain.baseline()
    for memory_id, fields in change.fields.items():
        one = memory.store.get(memory_id)
        if one is None:
            continue
        note = note_of(one)
        current = _plain_note(note, key)
        restored: dict[str, Any] = {}
        for name, (before, after) in fields.items():
            if name == "links":
                restored[name] = _restored_links(memory, note, before, after, key)
            elif name == "abstracted_in":
                restored[name] = _restored_list(note.abstracted_in, before, after)
            elif name in current and current[name] == after:
                restored[name] = before
        wakes_up = bool(note.asleep_since) and restored.get("asleep_since", "") is None
        if wakes_up:                               # else the next cycle puts it to sleep again
            restored["strength"] = round(strength_at(one, now, brain.settings, baseline), 6)
            restored["at"] = iso(now)
        if restored:
            memory.store.put(with_note(one, replace(note, **restored)))


def _restored_list(current: Sequence[str], before: Sequence[str],
                   after: Sequence[str]) -> tuple[str, ...]:
    """Return a list without what a change added, and with what it took."""
    kept = [each for each in current if each in before or each not in after]
    return tuple(dict.fromkeys([*kept, *(each for each in before if each not in after)]))


def _restored_links(memory: HermesLite, note: Note, before: Sequence[Sequence[str]],
                    after: Sequence[Sequence[str]], key: bytes) -> tuple[tuple[str, str], ...]:
    """Return links without what a change added; what it took is found by the concepts' names."""
    added = [link for link in after if link not in before]
    taken = [link for link in before if link not in after]
    kept = [(relation, name) for relation, name in note.links
            if [relation, fingerprint(name, key)] not in added]
    names = {fingerprint(name, key): name for name in _concept_names(memory)} if taken else {}
    back = [(relation, names[print_]) for relation, print_ in taken if print_ in names]
    return tuple(dict.fromkeys([*kept, *back]))


def _concept_names(memory: HermesLite) -> Iterator[str]:
    for memory_id in memory.store.search.tagged((CONCEPT,)):
        record = memory.store.get(memory_id)
        name = note_of(record).concept if record else None
        if name:
            yield name


# -- state --------------------------------------------------------------------

def _read(memory: HermesLite) -> dict[str, Any]:
    return memory.jobs.state(_STATE, sound=lambda state: fits(state, _FORM))


def _write(memory: HermesLite, state: Mapping[str, Any]) -> None:
    """Keep the newest changes, and the notes of the newest: older ones cannot be undone."""
    rows: list[Mapping[str, Any]] = []
    notes = 0
    for row in reversed(state["changes"][-_MOST_CHANGES:]):
        notes += len(row.get("fields", ()))
        if notes > _MOST_NOTES and rows:
            break
        rows.append(row)
    memory.jobs.save_state(_STATE, {"version": 1, "next": state["next"], "changes": rows[::-1]})


# -- commands -----------------------------------------------------------------

def _log(memory: HermesLite, *, limit: int) -> list[Change]:
    return changes(memory, limit)


def _line(change: Change) -> str:
    about = [each for each in (*change.made, change.order) if each]
    many = len(change.ids)
    ids = ", ".join(change.ids) if many <= 3 else pluralize(many, "memory", "memories")
    undone = "  (undone)" if change.undone else ""
    said = "; ".join(filter(None, (ids, ", ".join(about))))
    return f"{change.id}  {change.at[:16]}  {change.what}: {said}{undone}"


def _show_log(rows: Iterable[Change]) -> Iterator[str]:
    yield from map(_line, rows)


OPERATIONS = (
    Operation("brain log", "list the changes that the brain made", _log, (
        Param("limit", int, "at most this many", 20, least=1),), _show_log),
)


"""Undo: the last act that changed memories is taken back, deletions included.

    systems:
      undo:
        hours: 24         # so long an act can be taken back

While it is switched on, what an act replaced or deleted is kept in `.undo.json` of the root (0600,
sealed where the store is), at most the last 20 acts and never longer than `hours`: it goes with the
first write after that. So a text that was forgotten is still on this disk for that time, and
`forget` says so; `forget ID --purge`, `scrub` and `encrypt` delete the file at once. It is not part
of a backup. An act that changed more than 2,000 memories is not kept: a backup brings them back.

`serve` switches it on for what is done through it, in its memory alone, where config.yaml does not.

An extension may take back acts of its own: `undoable()` returns (time, what, function) of its
newest one, and `own_acts` names the events that it takes back. `undo` takes the newest of all.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hermes_lite import (
    ConfigError,
    Event,
    HermesLite,
    Memory,
    NotFound,
    Operation,
    Param,
    READ_ACTS,
    Record,
    Refused,
    excerpt,
    from_json,
    iso,
    other_wordings,
    parse_time,
    pluralize,
    to_json,
)

__all__ = ["FILE", "OPERATIONS", "Undo", "Undone", "system", "undo"]

FILE = ".undo.json"
_MOST_ACTS = 20
_MOST_CHANGES = 2_000
_NOT_COMPARED = ("access_count", "last_accessed")  # a recall in between changes nothing that counts

Act = dict[str, Any]       # {"at", "what", "changes": [{"id", "old": entry or None, "new": digest}]}


@dataclass(frozen=True, slots=True)
class Undone(Record):
    """What `undo` took back, or would: `what` is the command, `texts` go with the ids."""
    what: str
    at: str
    restored: tuple[str, ...] = ()       # ids that have their earlier state again
    removed: tuple[str, ...] = ()        # ids that the act had made
    texts: tuple[str, ...] = ()
    dry_run: bool = False


class Undo:
    """Notes what each act changes; see the module."""
    name = "undo"

    def __init__(self, memory: HermesLite, *, hours: float, on_disk: bool = True) -> None:
        self._memory, self._hours, self._on_disk = memory, hours, on_disk
        self._acts: list[Act] = []                 # where they are not on disk
        self._open = threading.local()             # what this thread's act has changed so far
        self._lock = threading.Lock()
        memory.store.on_change = self._note

    # -- as an extension ------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Keep what the act that ends here has changed."""
        changes = self._changes()
        if event.what in READ_ACTS or not changes:
            return
        self._open.changes = {}
        if "purge" in self._memory.systems.entry_points:
            return                                 # nothing of it may stay anywhere
        what = event.surface.partition(" ")[2] or event.what
        if any(what in system.own_acts for system in self._memory.systems.having("own_acts")):
            return
        self._keep({"at": iso(self._memory.clock()), "what": what,
                    "changes": list(changes.values())}, self._memory.systems.act())
        if any(change["new"] is None for change in changes.values()):
            until = self._memory.clock() + timedelta(hours=self._hours)
            until = until.astimezone(self._memory.config.zone)
            self._memory.notices.append(
                f"`undo` brings back what was deleted until {until:%Y-%m-%d %H:%M}; so long it is "
                f"kept in {FILE}" if self._on_disk else
                f"`undo` brings back what was deleted until {until:%Y-%m-%d %H:%M}, while this "
                "server runs")

    def undoable(self) -> tuple[datetime, str, Callable[[bool], Undone]] | None:
        """Return when the newest act was, what it was, and what takes it back."""
        with self._memory.session.reading():
            acts = self._load()
            while acts and self._is_taken_back(acts[-1]):
                acts.pop()                         # before a kill, or by the brain's own log
        if not acts:
            return None
        act = acts[-1]
        when = parse_time(act["at"])
        assert when is not None
        return when, act["what"], lambda dry_run: self._take_back(act, dry_run)

    # -- noting ---------------------------------------------------------------

    def _changes(self) -> dict[str, dict[str, Any]]:
        """Return {id: change} of the act that this thread has not ended."""
        if not hasattr(self._open, "changes"):
            self._open.changes = {}
        found: dict[str, dict[str, Any]] = self._open.changes
        return found

    def _note(self, memory_id: str, old: Memory | None, new: Memory | None) -> None:
        """Note a change in a transaction; one that is rolled back is left out by `_keep`."""
        if getattr(self._open, "is_undoing", False):
            return
        changes = self._changes()
        first = changes.get(memory_id)
        before = first["old"] if first else None if old is None else old.entry()
        changes[memory_id] = {"id": memory_id, "old": before, "new": _digest(new)}

    def _keep(self, act: Act, block: object) -> None:
        """Add an act to those that can be taken back; one of the same command is joined to it."""
        store = self._memory.store
        act["changes"] = [change for change in act["changes"]
                          if change["new"] == _digest(store.get(change["id"]))]
        if not act["changes"]:                     # rolled back
            return
        if len(act["changes"]) > _MOST_CHANGES:
            act["changes"] = []
            act["too_many"] = True
        with self._lock:
            acts = self._load()
            if block is not None and block is getattr(self._open, "block", None) and acts:
                act["changes"] = _joined(acts.pop()["changes"], act["changes"])
            self._open.block = block
            self._save([*acts, act])

    def _load(self) -> list[Act]:
        """Return the acts that can still be taken back, oldest first."""
        acts = self._acts
        if self._on_disk:
            data = self._memory.store.files.read(FILE)
            try:
                acts = from_json(data)["acts"] if data else []
            except (ValueError, KeyError, TypeError):
                acts = []                          # torn or damaged: there is nothing to undo
        since = self._memory.clock() - timedelta(hours=self._hours)
        return [act for act in acts if (parse_time(act["at"]) or since) > since]

    def _save(self, acts: list[Act]) -> None:
        acts = acts[-_MOST_ACTS:]
        if self._on_disk:
            self._memory.store.files.write(FILE, to_json({"acts": acts}), durable=False)
        else:
            self._acts = acts

    # -- taking back ----------------------------------------------------------

    def _is_taken_back(self, act: Act) -> bool:
        return not act.get("too_many") and all(map(self._is_old, act["changes"]))

    def _is_old(self, change: Mapping[str, Any]) -> bool:
        """Tell whether a memory is as it was before the change."""
        old = change["old"]
        before = None if old is None else Memory.from_entry(old)
        return _digest(self._memory.store.get(change["id"])) == _digest(before)

    def _take_back(self, act: Act, dry_run: bool) -> Undone:
        """Bring back what an act replaced or deleted, and remove what it made.

        Refused where a memory has changed since.
        """
        if act.get("too_many"):
            raise Refused(f"`{act['what']}` changed more than {_MOST_CHANGES:,} memories, which is "
                          "too many to take back; `restore` brings a backup", "too_many")
        memory = self._memory
        restored, removed = [], []
        with memory.session.writing() as store, self._undoing():
            for change in act["changes"]:
                now = store.get(change["id"])
                if _digest(now) != change["new"] and not self._is_old(change):
                    raise Refused(f"{change['id']} has been changed since `{act['what']}`; nothing "
                                  "was taken back", "changed_since")
                if change["old"] is not None:
                    restored.append(Memory.from_entry(change["old"]))
                elif now is not None:
                    removed.append(now)
            if not dry_run:
                for one in restored:
                    store.remove_tombstone(one.content, memory_id=one.id)
                    store.put(one)
                for one in removed:                # a digest or a sync must not bring it back
                    store.remove(one.id, why="undone", also=other_wordings(one.content))
        if not dry_run:
            self._tell(act, restored, removed)
        return Undone(act["what"], act["at"], tuple(one.id for one in restored),
                      tuple(one.id for one in removed),
                      tuple(memory.redactor.redact_field(one.content)
                            for one in (*restored, *removed)), dry_run)

    @contextlib.contextmanager
    def _undoing(self) -> Iterator[None]:
        self._open.is_undoing = True
        try:
            yield
        finally:
            self._open.is_undoing = False

    def _tell(self, act: Act, restored: list[Memory], removed: list[Memory]) -> None:
        """Drop the act, and tell the extensions what has come back and what has gone."""
        with self._lock:
            self._save([each for each in self._load() if each != act])
        memory = self._memory
        memory.embeddings.wake()
        for one in restored:
            memory.notices += memory.systems.notify("after_store", one)
        for one in removed:
            memory.notices += memory.systems.notify("after_forget", one, "undone")
        memory.systems.emit("undo", [one.id for one in (*restored, *removed)])


def _digest(memory: Memory | None) -> str | None:
    """Return a hash of what a memory says, None for none; the text itself is not kept."""
    if memory is None:
        return None
    fields = {name: value for name, value in memory.entry().items() if name not in _NOT_COMPARED}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()


def _joined(first: list[dict[str, Any]], then: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the changes of two parts of one act: the oldest state, the newest digest."""
    changes = {change["id"]: change for change in first}
    for change in then:
        known = changes.get(change["id"])
        changes[change["id"]] = {**change, "old": known["old"]} if known else change
    return list(changes.values())


def system(memory: HermesLite, *, hours: float = 24) -> Undo:
    """Make the system; ConfigError where `hours` is no number above 0 and up to 720."""
    if isinstance(hours, bool) or not isinstance(hours, (int, float)) or not 0 < hours <= 720:
        raise ConfigError("config.yaml: systems.undo.hours is no number from above 0 to 720")
    return Undo(memory, hours=hours)


def undo(memory: HermesLite, *, change: str | None = None, dry_run: bool = False) -> Any:
    """Take back the newest act that can be, or the brain's *change*; Refused when there is none."""
    if change is not None:
        system = next(iter(memory.systems.having("undo_change")), None)
        if system is None:
            raise NotFound("only changes of the brain have an id, and it is not switched on")
        return system.undo_change(change)
    sources = memory.systems.having("undoable")
    if not sources:
        raise ConfigError("undo is not switched on; put systems: {undo: {}} in config.yaml "
                          "(`config path` says where it is)")
    sources.sort(key=lambda source: isinstance(source, Undo))   # what has its own log comes first
    found = [one for source in sources if (one := source.undoable()) is not None]
    if not found:
        raise Refused("there is nothing to undo", "nothing_to_undo")
    _, _, take_back = max(found, key=lambda one: one[0])
    return take_back(dry_run)


# -- commands -----------------------------------------------------------------

def _show(done: Any) -> Iterator[str]:
    if not isinstance(done, Undone):               # the brain's own
        yield from done.lines()
        return
    verb = "would take back" if done.dry_run else "took back"
    changed = len(done.restored) + len(done.removed)
    yield f"{verb} `{done.what}` of {done.at[:16]}: {pluralize(changed, 'memory', 'memories')}"
    signs = ["back "] * len(done.restored) + ["gone "] * len(done.removed)
    for sign, memory_id, text in zip(signs, (*done.restored, *done.removed), done.texts):
        yield f"  {sign} {memory_id}  {excerpt(text)}"


OPERATIONS = (
    Operation("undo", "take back the last act that changed memories, deletions included",
              lambda memory, **arguments: undo(memory, **arguments), (
        Param("change", str, "the id of a change that `brain log` lists", positional=True),
        Param("dry_run", bool, "only show what would be taken back", False)), _show, writes=True),
)

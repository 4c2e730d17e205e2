"""Brain: the Extension. It hides what is asleep and puts principles before their cases."""
from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import NamedTuple

from hermes_ext.brain.note import ASLEEP, CONCEPT, NAME, is_asleep, note_of, with_note
from hermes_ext.brain.ranking import put_abstract_first
from hermes_ext.brain.settings import Settings, read_settings
from hermes_ext.brain.state import baseline_of, read_state
from hermes_ext.brain.strength import UseLog, raised, strength_at
from hermes_lite import ConfigError, Draft, Event, HermesLite, Hit, Memory, parse_time

__all__ = ["Brain", "abstracting", "find", "system", "viewing"]

_USES = ("recall", "context", "inject")            # events that use what they find
_OWN_FIELDS = ("level", "asleep_since", "abstracted_in", "order", "concept", "links")
_ABSTRACTING: contextvars.ContextVar[bool] = contextvars.ContextVar("abstracting", default=False)


@contextlib.contextmanager
def abstracting() -> Iterator[None]:
    """Let what the block remembers have a level: only the brain's own code may say that."""
    token = _ABSTRACTING.set(True)
    try:
        yield
    finally:
        _ABSTRACTING.reset(token)


def _note_as_kept(memory: Memory) -> dict[str, object]:
    kept = memory.meta.get(NAME)
    return dict(kept) if isinstance(kept, Mapping) else {}


class _View(NamedTuple):
    """What searches see beyond what is awake now: what is asleep, or what was awake at a time."""
    asleep: bool = False
    moment: datetime | None = None


_USUAL_VIEW = _View()
_VIEW: contextvars.ContextVar[_View] = contextvars.ContextVar("view", default=_USUAL_VIEW)
_END_OF_TIME = datetime.max.replace(tzinfo=timezone.utc)


@contextlib.contextmanager
def viewing(*, asleep: bool = False, moment: datetime | None = None) -> Iterator[None]:
    """Let the searches of the block find what is asleep, or only what was there at *moment*."""
    token = _VIEW.set(_View(asleep, moment))
    try:
        yield
    finally:
        _VIEW.reset(token)


class Brain:
    """What takes part in every write and read."""
    name = "brain"

    def __init__(self, memory: HermesLite, settings: Settings) -> None:
        self.memory, self.settings = memory, settings
        self.uses = UseLog(memory)

    def baseline(self) -> datetime | None:
        """Return when the first cycle ran, None where none has: nothing fades before it."""
        return baseline_of(read_state(self.memory))

    def strength(self, memory: Memory) -> float:
        """Return the strength of a memory now, 0 to 1."""
        return strength_at(memory, self.memory.clock(), self.settings, self.baseline())

    # -- write --------------------------------------------------------------

    def before_store(self, draft: Draft) -> Draft:
        """Take out of a draft what only the brain may say: a pattern, asleep, or a concept.

        A record from elsewhere (import, sync, vault) keeps it.
        """
        note = draft.meta.get(NAME)
        if _ABSTRACTING.get() or "admit" in self.memory.systems.entry_points:
            return draft
        tags = tuple(tag for tag in draft.tags if tag not in (ASLEEP, CONCEPT))
        if isinstance(note, Mapping):
            rest = {name: value for name, value in note.items() if name not in _OWN_FIELDS}
            draft = replace(draft, meta={**draft.meta, NAME: rest})
        return draft if tags == draft.tags else replace(draft, tags=tags)

    def may_merge(self, memory: Memory, draft: Draft) -> bool:
        """Keep a new pattern apart from its cases, and every text from what defines a concept."""
        return not _ABSTRACTING.get() and CONCEPT not in memory.tags

    def storing(self, memory: Memory, old: Memory | None, draft: Draft) -> Memory:
        """Wake up what is said again: nobody would find it otherwise."""
        if old is None or not is_asleep(old) or "admit" in self.memory.systems.entry_points:
            return memory
        woken = with_note(memory, replace(note_of(memory), asleep_since=None))
        return raised(woken, self.memory.clock(), self.settings, self.baseline())

    # -- undo ---------------------------------------------------------------

    own_acts = frozenset(("brain cycle", "brain fulfil", "brain decline", "brain keep",
                          "concept add", "concept link", "revive"))

    def undoable(self) -> tuple[datetime, str, Callable[[bool], object]] | None:
        """Return when the newest change in the log was, what it was, and what takes it back."""
        from hermes_ext.brain.changes import newest_change, undo
        change = newest_change(self.memory)
        if change is None:
            return None
        when = parse_time(change.at) or self.memory.clock()
        return when, change.what, lambda dry_run: (
            change if dry_run else undo(self.memory, change.id))

    def undo_change(self, change_id: str) -> object:
        """Take back the change of this id, as `brain log` lists it."""
        from hermes_ext.brain.changes import undo
        return undo(self.memory, change_id)

    # -- read ---------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Note what a recall uses; browsing (list, show, vsearch) is no use."""
        if event.what in _USES:
            self.uses.add(event.ids)

    def close(self) -> None:
        """Append the uses of this process to the log of the root."""
        self.uses.write()

    def hidden_tags(self) -> Collection[str]:
        """Return the tags of what is asleep, and of the records that define concepts.

        `viewing` shows what is asleep, or what was awake at a time.
        """
        view = _VIEW.get()
        return (CONCEPT,) if view.asleep or view.moment is not None else (ASLEEP, CONCEPT)

    def hidden(self) -> Collection[str]:
        """Return, inside `viewing` of a time, the ids of what came later or was asleep then."""
        moment, store = _VIEW.get().moment, self.memory.store
        if moment is None:
            return ()
        later = store.search.made_between(moment, _END_OF_TIME)
        slept = [each for each in store.search.tagged((ASLEEP,)) if self._slept_at(each, moment)]
        return [*later, *slept]

    def _slept_at(self, memory_id: str, moment: datetime) -> bool:
        one = self.memory.store.get(memory_id)
        since = parse_time(note_of(one).asleep_since) if one else None
        return since is None or since <= moment

    def rerank(self, hits: Sequence[Hit], query: str) -> list[Hit]:
        """Put a principle or pattern that answers before the others, its cases under it."""
        return put_abstract_first(hits)

    def describe(self, memory: Memory) -> Memory:
        """Show the strength of a memory as it is now."""
        shown = {**_note_as_kept(memory), "strength_now": round(self.strength(memory), 4)}
        return replace(memory, meta={**memory.meta, NAME: shown})

    # -- prune --------------------------------------------------------------

    def keeps(self, memory: Memory, now: datetime) -> bool:
        """Keep what is asleep, patterns and principles, and what a living one was drawn from.

        So the way from the abstract back to the concrete stays.
        """
        note = note_of(memory)
        if note.level > 1 or is_asleep(memory):
            return True
        with self.memory.lock:
            drawn = filter(None, map(self.memory.store.get, note.abstracted_in))
            return any(note_of(each).level > 1 for each in drawn)


def find(memory: HermesLite) -> Brain:
    """Return the system that is switched on; ConfigError when it is not."""
    found = next((each for each in memory.systems if isinstance(each, Brain)), None)
    if found is None:
        raise ConfigError("the brain is not switched on; put systems: {brain: {}} in config.yaml "
                          "(`config path` says where it is)")
    return found


def system(memory: HermesLite, *, decay: float = 0.05, boost: float = 0.01,
           asleep_below: float = 0.15, unused_days: int = 30, orders: int = 3,
           principles: int = 1) -> Brain:
    """Make the Extension; the arguments are its settings in config.yaml."""
    return Brain(memory, read_settings(decay=decay, boost=boost, asleep_below=asleep_below,
                                       unused_days=unused_days, orders=orders,
                                       principles=principles))

"""One run of the brain, from cron or by hand: mechanical, without a model.

    hermes_lite.py brain cycle
    hermes_lite.py brain cycle --llm              and let a model answer work orders: `answers`
    hermes_lite.py brain status

A cycle settles the uses since the last one, puts to sleep what is weak and unused, closes work
orders whose sources are gone and writes at most `orders` new ones; none is written while ten times
as many are open. The first cycle records the baseline: nothing has faded before it.

It can be killed anywhere and run again, at any interval; of two at once the second one stops with
exit code 12. It makes three passes over the entries: 4 s of CPU for 100,000 memories
in files, 7 s in the archive, measured; the first time that many fall asleep 1 ms for each.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hermes_ext.brain.answers import Answers, answer_orders
from hermes_ext.brain.candidates import find_candidates
from hermes_ext.brain.extension import find
from hermes_ext.brain.note import ASLEEP, CONCEPT, NAME
from hermes_ext.brain.orders import close_orders, write_orders
from hermes_ext.brain.sleep import fall_asleep
from hermes_ext.brain.state import baseline_of, read_state, save_state
from hermes_ext.brain.strength import settle
from hermes_lite import (ChatModel, HermesLite, Operation, Param, Record, UsageError, iso,
                         make_chat_model, pluralize)

__all__ = ["Cycle", "OPERATIONS", "Status", "cycle", "status"]


@dataclass(frozen=True, slots=True)
class Status(Record):
    """What is there: `levels` counts the memories of each level, asleep or not."""
    awake: int
    asleep: int
    concepts: int
    levels: Mapping[str, int]
    open_orders: int
    baseline: str | None = None
    last_cycle: str | None = None


@dataclass(frozen=True, slots=True)
class Cycle(Record):
    """What one run has done; `settled` counts the memories that were used since the last one."""
    at: str
    is_first: bool
    settled: int
    fell_asleep: int
    orders: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    status: Status | None = None
    answers: Answers | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that a person should read."""
        return self.answers.failures if self.answers else ()


def cycle(memory: HermesLite, *, llm: bool = False, max_orders: int | None = None,
          model: ChatModel | None = None) -> Cycle:
    """Run the brain once; Locked when another run is under way.

    With *llm* a chat model then answers work orders, at most *max_orders* (default: `orders` of
    the settings); *model* is another than the one of config.yaml.
    """
    brain = find(memory)
    if llm and model is None:
        model = make_chat_model("brain", memory.config)        # before anything is done
    brain.uses.write()
    with memory.exclusive(NAME):
        is_first = _begin(memory)
        settled = settle(memory, brain.settings, brain.baseline())
        slept = fall_asleep(memory)
        closed = close_orders(memory)
        written = _write_orders(memory)
        done = Cycle(iso(memory.clock()), is_first, settled, slept, tuple(written),
                     tuple(closed), _end(memory))
    if llm:
        most = brain.settings.orders if max_orders is None else max_orders
        answers = answer_orders(memory, most=most, principles=brain.settings.principles,
                                model=model)
        done = replace(done, answers=answers, status=status(memory))
    memory.systems.emit("brain cycle", done.orders)
    return done


def _begin(memory: HermesLite) -> bool:
    """Record the baseline where there is none; tell whether that was so."""
    with memory.session.writing():
        state = read_state(memory)
        is_first = baseline_of(state) is None
        if is_first:
            save_state(memory, {**state, "baseline": iso(memory.clock())})
    return is_first


def _write_orders(memory: HermesLite) -> list[str]:
    """Write the orders of this run; none where enough of the last ones are open."""
    most = find(memory).settings.orders
    with memory.session.reading():
        state = read_state(memory)
        rows = state.get("orders", {})
        are_open = sum(row["status"] == "open" for row in rows.values())
        most = min(most, max(0, _BACKLOG * most - are_open))
        candidates, cursor = find_candidates(memory, rows, most=most,
                                             cursor=state.get("cursor", ""))
    written = write_orders(memory, candidates)
    with memory.session.writing():
        save_state(memory, {**read_state(memory), "cursor": cursor})
    return written


_BACKLOG = 10


def _end(memory: HermesLite) -> Status:
    """Record that a cycle has ended, and the counts of this day; return them."""
    now = memory.clock()
    with memory.session.reading():                 # a pass over all: no writer waits for it
        found = _counted(memory, read_state(memory))
    counts = {"awake": found.awake, "asleep": found.asleep, "open_orders": found.open_orders}
    with memory.session.writing():
        state = read_state(memory)
        days = {**state.get("days", {}), f"{now:%Y-%m-%d}": counts}
        save_state(memory, {**state, "last": iso(now),
                            "days": dict([*days.items()][-_MOST_DAYS:])})
    return replace(found, last_cycle=iso(now))


_MOST_DAYS = 400


def status(memory: HermesLite) -> Status:
    """Count what is awake and asleep, concepts, levels and open orders."""
    find(memory)
    with memory.session.reading():
        found = _counted(memory, read_state(memory))
    memory.systems.emit("brain status")
    return found


def _counted(memory: HermesLite, state: Mapping[str, Any]) -> Status:
    """Count in one pass; the records that define concepts count as concepts alone."""
    levels: Counter[int] = Counter()
    asleep = concepts = 0
    for memory_id in memory.store.ids():
        entry = memory.store.entry(memory_id) or {}
        tags, meta = entry.get("tags") or (), entry.get("meta") or {}
        if CONCEPT in tags:
            concepts += 1
            continue
        asleep += ASLEEP in tags
        note = meta.get(NAME)
        level = note.get("level") if isinstance(note, Mapping) else 1
        levels[level if level in (2, 3) else 1] += 1
    is_open = [order for order in state.get("orders", {}).values() if order["status"] == "open"]
    return Status(
        awake=levels.total() - asleep, asleep=asleep, concepts=concepts,
        levels={str(level): levels[level] for level in (1, 2, 3)}, open_orders=len(is_open),
        baseline=state.get("baseline"), last_cycle=state.get("last"))


# -- commands -----------------------------------------------------------------

def _cycle(memory: HermesLite, *, llm: bool, max_orders: int | None) -> Cycle:
    if max_orders is not None and not llm:
        raise UsageError("--max-orders goes with --llm")
    return cycle(memory, llm=llm, max_orders=max_orders)


def _show_cycle(done: Cycle) -> Iterator[str]:
    if done.is_first:
        yield "the first cycle: strengths fade from now on"
    yield (f"settled the uses of {pluralize(done.settled, 'memory', 'memories')}; "
           f"{pluralize(done.fell_asleep, 'memory', 'memories')} fell asleep")
    for order_id in done.orders:
        yield f"wrote {order_id}; `brain orders {order_id}` shows it"
    if done.answers is not None:
        yield from _show_answers(done.answers)
    if done.status is not None:
        yield from _show_status(done.status)


def _show_answers(answers: Answers) -> Iterator[str]:
    tokens = (answers.usage or {}).get("total_tokens", "an unknown number of")
    yield (f"asked the model about {pluralize(answers.asked, 'order')}, {tokens} tokens; "
           f"declined {len(answers.declined)}")
    for memory_id in answers.added:
        yield f"added {memory_id}"


def _show_status(found: Status) -> Iterator[str]:
    one, two, three = (found.levels[level] for level in ("1", "2", "3"))
    levels = f"{one} concrete, {pluralize(two, 'pattern')}, {pluralize(three, 'principle')}"
    yield (f"{pluralize(found.awake, 'memory', 'memories')} awake, {found.asleep} asleep; "
           f"{levels}; {pluralize(found.concepts, 'concept')}, "
           f"{pluralize(found.open_orders, 'open order')}")


def _show_standing(found: Status) -> Iterator[str]:
    yield from _show_status(found)
    if found.baseline is None:
        yield "no cycle has run; `brain cycle` begins"
    else:
        yield f"since {found.baseline[:10]}; the last cycle ran {found.last_cycle or 'never'}"


OPERATIONS = (
    Operation("brain cycle", "settle what faded, and write the work orders of this run",
              _cycle, (
        Param("llm", bool, "let the chat model of `digest` in config.yaml answer work orders",
              False),
        Param("max_orders", int, "with --llm: ask at most so often (default: as in config.yaml)",
              least=0)), _show_cycle, writes=True),
    Operation("brain status", "count what is awake and asleep, concepts, levels and open orders",
              status, (), _show_standing),
)

"""Work orders: a question about several memories, which a person or a language model answers.

    hermes_lite.py brain orders                   what is open
    hermes_lite.py brain orders ORDER             its texts, its question, the shape of the answer
    hermes_lite.py brain fulfil ORDER --text "…" --concepts caching
    hermes_lite.py brain decline ORDER
    hermes_lite.py brain keep --summary "…" --abstract "…" --concepts caching

The answer is a memory of level 2 (pattern) or 3 (principle). It names what it was drawn from in
meta["derived_from"]: so it never has more authority than the lowest of its parts. The parts stay;
each names it in `abstracted_in` and loses half of its strength.

An order is its id, level, status and sources, and a keyed fingerprint of its concept: the texts
and the concept's name are read when it is shown. One whose sources are gone closes itself.
"""
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hermes_ext.brain.candidates import LEAST, Candidate, names_in
from hermes_ext.brain.changes import DECLINED, fingerprint, log_change
from hermes_ext.brain.extension import abstracting, find
from hermes_ext.brain.note import NAME, Note, note_of, with_note
from hermes_ext.brain.state import read_state, save_state
from hermes_ext.brain.strength import strength_at
from hermes_lite import (HermesLite, Memory, NotFound, Operation, Param, Record, Refused,
                         Remembered, UsageError, display_text, excerpt, iso, pluralize, tag_forms)

__all__ = ["OPERATIONS", "Insight", "Order", "Text", "close_orders", "decline", "fulfil", "keep",
           "get_order", "orders", "write_orders"]

_LEFT = 0.5                            # of a source's strength, once a pattern was drawn from it
_LEAST_IMPORTANCE = 6                  # of a pattern
_INSIGHT = 9                           # importance of what `keep` keeps
_MOST_ORDERS = 2_000                   # closed ones that are remembered
_ANSWER = {"abstract": "one or two sentences", "concepts": ["up to five words"]}
_QUESTIONS = {
    2: "What do these memories have in common? Say the pattern behind them in one or two "
       "sentences that stand alone, in their language, without the details in which they differ. "
       "Say nothing that they do not say.",
    3: "Which principle stands behind these patterns? Say it in one or two sentences that stand "
       "alone, in their language. Say nothing that they do not say."}


@dataclass(frozen=True, slots=True)
class Text(Record):
    """One text of an order; `origin` is what lanes say of it, else who wrote it."""
    id: str
    text: str
    origin: str | None


@dataclass(frozen=True, slots=True)
class Order(Record):
    """One work order, with all that is needed to answer it."""
    id: str
    level: int
    concept: str | None
    question: str
    texts: tuple[Text, ...]
    answer: Mapping[str, object] = field(default_factory=lambda: dict(_ANSWER))
    status: str = "open"
    at: str = ""


@dataclass(frozen=True, slots=True)
class Insight(Record):
    """What `keep` has kept: the ids of the summary and of what was drawn from it."""
    summary: Remembered
    abstract: Remembered

    @property
    def warnings(self) -> tuple[str, ...]:
        return (*self.summary.warnings, *self.abstract.warnings)


# -- reading ------------------------------------------------------------------

def orders(memory: HermesLite, *, every: bool = False) -> list[Order]:
    """Return the open orders, oldest first; with *every* those that are closed, too."""
    find(memory)
    with memory.session.reading():
        rows = read_state(memory).get("orders", {})
        found = [_order(memory, order_id, row) for order_id, row in rows.items()
                 if every or _is_open(memory, order_id, row)]
    memory.systems.emit("brain orders", [text.id for each in found for text in each.texts])
    return found


def get_order(memory: HermesLite, order_id: str) -> Order:
    """Return one order, open or closed; NotFound where there is none of this id."""
    find(memory)
    with memory.session.reading():
        found = _order(memory, order_id, _row(memory, read_state(memory), order_id))
    memory.systems.emit("brain orders", [text.id for text in found.texts])
    return found


def _row(memory: HermesLite, state: Mapping[str, Any], order_id: str) -> dict[str, Any]:
    row: dict[str, Any] | None = state.get("orders", {}).get(order_id)
    if row is None:
        raise NotFound(f"there is no work order {memory.redactor.quote(order_id)}; "
                       "`brain orders` lists them")
    return row


def _is_open(memory: HermesLite, order_id: str, row: Mapping[str, Any]) -> bool:
    """Tell whether an order waits for an answer: it has enough sources, and no answer yet.

    One that is done but whose answer never came into the store, because of a kill, is open.
    """
    was_lost = row["status"] == "done" and not memory.store.is_taken(row.get("made", ""))
    if row["status"] != "open" and not was_lost:
        return False
    sources = _sources(memory, row)
    return len(sources) >= LEAST and _answer_of(memory, order_id, sources) is None


def _sources(memory: HermesLite, row: Mapping[str, Any]) -> list[Memory]:
    return [one for one in map(memory.store.get, row["sources"]) if one is not None]


def _answer_of(memory: HermesLite, order_id: str, sources: Iterable[Memory]) -> Memory | None:
    """Return the memory that answers an order: a kill may come before the state says so."""
    made = [each for one in sources for each in note_of(one).abstracted_in]
    answers = filter(None, map(memory.store.get, dict.fromkeys(made)))
    return next((one for one in answers if note_of(one).order == order_id), None)


def _order(memory: HermesLite, order_id: str, row: Mapping[str, Any]) -> Order:
    sources = _sources(memory, row)
    texts = tuple(Text(one.id, memory.redactor.outgoing(one).content, _origin(memory, one))
                  for one in sources)
    status = row["status"]
    if status == "open" and not _is_open(memory, order_id, row):
        status = "closed"
    return Order(order_id, row["level"], _concept_of(memory, row["concept"], sources),
                 _QUESTIONS[row["level"]], texts, status=status, at=row["at"])


def _concept_of(memory: HermesLite, print_: str, sources: Iterable[Memory]) -> str | None:
    """Return the name of an order's concept, which its sources have in common."""
    key = memory.redactor.key("brain")
    for one in sources:
        for name in (name for names in names_in(one.entry()) for name in names):
            if fingerprint(name, key) == print_:
                return memory.redactor.redact_field(name)
    return None


def _origin(memory: HermesLite, one: Memory) -> str | None:
    lanes = next((each for each in memory.systems if each.name == "lanes"), None)
    return str(lanes.authority(one).origin) if lanes else one.agent or one.source


# -- writing orders -----------------------------------------------------------

def write_orders(memory: HermesLite, candidates: Iterable[Candidate]) -> list[str]:
    """Write an order for each candidate that was not asked about before; return their ids."""
    written = []
    key = memory.redactor.key("brain")
    with memory.session.writing():
        state = read_state(memory)
        rows = state.setdefault("orders", {})
        for candidate in candidates:
            print_ = fingerprint(candidate.concept, key)
            order_id = _order_id(candidate, print_)
            if order_id in rows:
                continue
            rows[order_id] = {"status": "open", "level": candidate.level, "concept": print_,
                              "sources": [*candidate.sources], "at": iso(memory.clock())}
            written.append(order_id)
            log_change(memory, "wrote an order", ids=candidate.sources, order=order_id)
        if written:
            save_state(memory, state)
    return written


def _order_id(candidate: Candidate, concept_print: str) -> str:
    said = json.dumps([candidate.level, concept_print, sorted(candidate.sources)])
    return "order_" + hashlib.sha256(said.encode()).hexdigest()[:10]


def close_orders(memory: HermesLite) -> list[str]:
    """Close the orders whose sources are gone, or which were answered before a kill."""
    closed = []
    with memory.session.writing():
        state = read_state(memory)
        rows = state.get("orders", {})
        for order_id, row in rows.items():
            if row["status"] == "open" and not _is_open(memory, order_id, row):
                row["status"] = "closed"
                closed.append(order_id)
        old = [order_id for order_id, row in rows.items() if row["status"] != "open"]
        for order_id in old[:-_MOST_ORDERS]:
            del rows[order_id]
        if closed or len(old) > _MOST_ORDERS:
            save_state(memory, state)
    return closed


# -- answering ----------------------------------------------------------------

def fulfil(memory: HermesLite, order_id: str, text: str, *, level: int | None = None,
           concepts: Iterable[str] = ()) -> Remembered:
    """Answer an order: keep *text* as what its sources have in common."""
    find(memory)
    with memory.batch():
        state = read_state(memory)
        row = _row(memory, state, order_id)
        if not _is_open(memory, order_id, row):
            raise Refused(f"{order_id} is closed", "order_closed")
        sources = _sources(memory, row)
        with memory.systems.entering("consolidation"):
            done, pairs = _abstract(memory, text, sources, level=level or row["level"],
                                    concepts=concepts, order_id=order_id)
        row.update(status="done", made=done.id)
        save_state(memory, state)
        log_change(memory, "answered an order", pairs, made=[done.id], order=order_id)
    memory.systems.emit("brain fulfil", [done.id, *row["sources"]])
    return done


def decline(memory: HermesLite, order_id: str) -> Order:
    """Close an order without an answer: it is not asked again about the same memories."""
    find(memory)
    with memory.session.writing():
        state = read_state(memory)
        row = _row(memory, state, order_id)
        if not _is_open(memory, order_id, row):
            raise Refused(f"{order_id} is closed", "order_closed")
        row["status"] = "declined"
        save_state(memory, state)
        log_change(memory, DECLINED, ids=row["sources"], order=order_id)
        found = _order(memory, order_id, row)
    memory.systems.emit("brain decline", row["sources"])
    return found


def keep(memory: HermesLite, summary: str, abstract: str, *, level: int = 2,
         concepts: Iterable[str] = (), importance: int = _INSIGHT) -> Insight:
    """Keep an insight: what happened, and the structure drawn from it; a recall finds both."""
    find(memory)
    tags = tag_forms(concepts)
    with memory.batch():
        first = memory.remember(summary, importance=importance, tags=tags)
        source = memory.lookup(first.id)
        done, pairs = _abstract(memory, abstract, [source], level=level, concepts=tags,
                                importance=importance)
        made = [done.id, *([first.id] if first.created else [])]
        log_change(memory, "kept an insight", pairs, made=made)
    memory.systems.emit("brain keep", [first.id, done.id])
    return Insight(first, done)


def _abstract(memory: HermesLite, text: str, sources: Sequence[Memory], *, level: int,
              concepts: Iterable[str], order_id: str | None = None, importance: int | None = None
              ) -> tuple[Remembered, list[tuple[Memory, Memory]]]:
    """Remember a pattern of *sources* in the open transaction; return it, and their changes."""
    least = max(2, *(note_of(one).level + 1 for one in sources))
    if level not in (2, 3) or level < least:
        raise UsageError("the level is 2 (pattern) or 3 (principle)" if level not in (2, 3) else
                         f"the level is {level} and these are patterns already; give 3")
    if importance is None:
        importance = max(_LEAST_IMPORTANCE, *(one.importance for one in sources))
    agents = {one.agent for one in sources}
    note = Note(level=level, order=order_id)
    meta = {"derived_from": [one.id for one in sources],
            NAME: {name: value for name, value in note.entry().items() if value not in (None, ())}}
    with abstracting():
        done = memory.remember(text, importance=importance, tags=tag_forms(concepts), meta=meta,
                               agent=agents.pop() if len(agents) == 1 else None)
    if not done.created:                           # an extension says that it is another one
        raise Refused(f"{done.id} says this already; say what these memories have in common",
                      "already_there")
    pairs = [(one, _weakened(memory, one, done.id)) for one in sources]
    for _, after in pairs:
        memory.store.put(after)
    return done, pairs


def _weakened(memory: HermesLite, one: Memory, pattern: str) -> Memory:
    """Return a source that names its pattern and has lost half of its strength."""
    brain, now, note = find(memory), memory.clock(), note_of(one)
    strength = strength_at(one, now, brain.settings, brain.baseline())
    return with_note(one, replace(
        note, abstracted_in=(*note.abstracted_in, pattern), at=iso(now),
        strength=round(_LEFT * strength, 6)))


# -- commands -----------------------------------------------------------------

def _orders(memory: HermesLite, *, order: str | None, all: bool) -> object:
    return orders(memory, every=all) if order is None else get_order(memory, order)


def _fulfil(memory: HermesLite, *, order: str, text: str | None, level: int | None,
            concepts: list[str]) -> Remembered:
    return fulfil(memory, order, _given(text, "text"), level=level, concepts=concepts)


def _given(text: str | None, name: str) -> str:
    if text is None:
        raise UsageError(f"--{name} is missing; give it one or two sentences in quotes")
    return text


def _decline(memory: HermesLite, *, order: str) -> Order:
    return decline(memory, order)


def _keep(memory: HermesLite, *, summary: str | None, abstract: str | None, level: int,
          concepts: list[str], importance: int) -> Insight:
    return keep(memory, _given(summary, "summary"), _given(abstract, "abstract"), level=level,
                concepts=concepts, importance=importance)


def _show_orders(found: object) -> Iterator[str]:
    if isinstance(found, Order):
        yield f"{_headline(found)} ({found.status})"
        yield found.question
        for text in found.texts:
            origin = f" [{text.origin}]" if text.origin else ""
            yield f"    {text.id}{origin}  {display_text(text.text)}"
        yield f"answer: {json.dumps(found.answer, ensure_ascii=False)}"
        if found.status == "open":
            yield f"    brain fulfil {found.id} --text \"…\" --concepts …"
        return
    assert isinstance(found, list)
    for each in found:
        status = "" if each.status == "open" else f" ({each.status})"
        first = excerpt(each.texts[0].text) if each.texts else ""
        yield f"{_headline(each)}{status}: {first}"


def _headline(found: Order) -> str:
    about = f" about {found.concept}" if found.concept else ""
    kind = {2: "pattern", 3: "principle"}[found.level]
    return f"{found.id}  a {kind} of {pluralize(len(found.texts), 'memory', 'memories')}{about}"


def _show_answered(done: Remembered) -> Iterator[str]:
    yield f"remembered {done.id}"


def _show_declined(found: Order) -> Iterator[str]:
    yield f"declined {found.id}"


def _show_kept(done: Insight) -> Iterator[str]:
    yield f"remembered {done.summary.id}, and {done.abstract.id} drawn from it"


_ORDER = Param("order", str, "the id of a work order", positional=True, required=True)
_CONCEPTS = Param("concepts", str, "the concepts that it is about, as tags", (), repeated=True)

OPERATIONS = (
    Operation("brain orders", "list the work orders, or show one with its texts and its question",
              _orders, (
        replace(_ORDER, help="show this one", required=False),
        Param("all", bool, "list those that are closed, too", False)), _show_orders),
    Operation("brain fulfil", "answer a work order with the pattern that its texts have in common",
              _fulfil, (
        _ORDER, Param("text", str, "the answer, one or two sentences"),
        Param("level", int, "2: a pattern, 3: a principle (default: as asked)", least=2, most=3),
        _CONCEPTS), _show_answered, writes=True),
    Operation("brain decline", "close a work order without an answer", _decline, (_ORDER,),
              _show_declined, writes=True),
    Operation("brain keep", "keep an insight: what happened, and the structure drawn from it",
              _keep, (
        Param("summary", str, "what happened, in one or two sentences"),
        Param("abstract", str, "the structure drawn from it"),
        Param("level", int, "2: a pattern, 3: a principle", 2, least=2, most=3), _CONCEPTS,
        Param("importance", int, "1 to 10; from 9 up for what a person holds to be central",
              _INSIGHT, least=1, most=10)), _show_kept, writes=True),
)

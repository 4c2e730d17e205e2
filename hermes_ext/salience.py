"""Salience: how much a memory matters now; it fades by the hour and is raised by use.

    hermes_lite.py score ID                       the score, and how it comes about
    hermes_lite.py reinforce ID                   + 0.5
    hermes_lite.py pin ID                         never pruned again; --off takes it back
    hermes_lite.py decay --factor 0.1 --tags server_monitor --yes

The commands always work. Switched on in config.yaml, a memory also keeps the score that it was
born with, restating it adds to it, `show` shows it, and it weighs recall:

    systems:
      salience:
        rate: 0.023         # lambda, a hour: half is left after 30 hours; used until pins teach
        weight: 0.2         # how much recall is moved, 0 to 1; 0 not at all

The score at birth is the sum of
    wish      5 for "记住这个", "remember this", "merk dir das"; 3 for "note for later", "以后再看"
    kind      4 where a number, a date or an address stands; 2 for a person or place; else 1
    position  2 for the first of the conversation, 1 for the last: `--position`; a
              digest gives it to its first and its last fact
and `current` is the formula by which it fades. Nothing runs in the background: the score is
computed when it is read, so it does not depend on how often a job runs.

    reinforce  adds 0.5 to the current score and starts its fading anew
    restate    adds the score at birth of the newer text to the current one, likewise
    decay      multiplies the current score by the factor
    pin        marks the record (meta["pinned"]), so that no prune takes it, whatever expires,
               and implies a lambda: -ln(current / born) / hours since birth. A memory that was
               reinforced implies a slower fading, one that was decayed a faster one, one that
               nobody touched the lambda in use. lambda is the mean of all pins, each between
               0.0001 and 1; a pin within the first hour, or of a score of 0, teaches nothing.
               Taking a pin back takes its lesson back.

Recall: a hit's place counts 1 / (10 + place), times 1 + weight x score / 10 (from 10 up: 10). So
at 0.2 a memory with the full score passes one or two without any, and never jumps from the end.
What an exact lookup has put in front stays there.

What is stored, in meta["salience"]: `score` and since when (`at`), `born` and `since` where these
differ from it, and the `rate` that a pin implies. A memory without any is counted from its text
and created_at.
"""
from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from hermes_lite import (ConfigError, Draft, HermesLite, Hit, Memory, MemoryId, Operation, Param,
                         UsageError, check_selectors, cut_tags, extract_entities, iso, parse_time,
                         pluralize)

__all__ = ["OPERATIONS", "Salience", "current", "initial_score", "system"]

_RATE = 0.023
_STEP = 0.5
_SLOWEST = 1e-4
_FASTEST = 1.0

_WISHES = (
    (5, r"(?:请|帮我|给我)?(?:记住|牢记)|别忘|不要忘记|\bremember (?:this|that)\b"
        r"|\bdo(?:n['’]t| not) forget\b|\bkeep (?:this|that) in mind\b|\bmerk(?:e)? dir\b"
        r"|\bvergiss (?:das )?nicht\b"),
    (3, r"\bnote (?:this )?for later\b|\bfor later\b|以后再看|稍后再看|留着以后|备忘|\bfür später\b"))
_HARD = (r"\d|https?://|www\.|[\w.]@\w|(?:星期|周|礼拜)[一二三四五六日天]|(?:今|明|后|昨)天"
         r"|[一二三四五六七八九十百千万两]+(?:[年月日号点个件次天周元%]|小时|分钟)"
         r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b"
         r"|\b(?:today|tomorrow|yesterday|heute|morgen|gestern)\b")
_NAMES = ("赵钱孙李周吴郑王冯陈褚卫蒋沈韩杨朱秦许何吕施张孔曹严华金魏陶姜谢邹苏潘葛范彭鲁韦马方俞任袁柳唐罗薛"
          "雷贺倪汤于傅康余顾孟黄穆萧尹姚邵汪毛狄戴宋庞熊纪项祝董梁杜阮蓝闵季贾江郭林钟徐邱骆高夏蔡田胡凌霍万柯"
          "卢莫丁邓龚程邢裴陆翁曾石崔")
_WHO = (rf"[{_NAMES}](?:总|工|姐|哥|某|先生|女士|老师|经理)|[老小][{_NAMES}]"
        rf"|(?:客户|同事|联系人|经理)[{_NAMES}]"
        rf"|(?<![\u4e00-\u9fff])[{_NAMES}][\u4e00-\u9fff]{{1,2}}(?=[的是在说和与，,、]|$)"
        r"|[\u4e00-\u9fff]{2,6}(?:省|市|区|县|路|街|镇|村|机场|车站|大学)"
        r"|北京|上海|广州|深圳|杭州|柏林|伦敦|纽约|东京")


@functools.cache
def _rx(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def current(score: float, hours: float, rate: float) -> float:
    """Return what is left of a score: score x e^(-rate x hours).

        score   what it was when it was last set: at birth, or by reinforce, restate or decay
        hours   since then; a time that lies in the future counts as none
        rate    lambda, a hour; ln 2 / rate is the half-life: 30 hours at 0.023
    """
    return score * math.exp(-rate * max(hours, 0.0))


_POSITION_BONUS = {"first": 2, "last": 1}          # of the facts of one conversation


def initial_score(text: str, position: str | None = None) -> float:
    """Return the score of a new memory, 1 to 11.

    It is the sum of how strongly the text asks to be remembered (`_WISHES`, 0 to 5), what kind of
    text it is (1 to 4), and its *position* in the conversation that it comes from.
    """
    wish = next((score for score, words in _WISHES if _rx(words).search(text)), 0)
    return float(wish + _score_of_kind(text) + _POSITION_BONUS.get(position or "", 0))


def _score_of_kind(text: str) -> int:
    """Return 4 for a text with hard facts, 2 for one about somebody, 1 for any other."""
    if _rx(_HARD).search(text):
        return 4
    uncapitalized = text[:1].lower() + text[1:]
    has_name = any(kind == "name" for _, kind in extract_entities(uncapitalized))
    return 2 if has_name or _rx(_WHO).search(text) else 1


class Salience:
    """The Extension, and the arithmetic of the commands."""
    name = "salience"

    def __init__(self, memory: HermesLite, rate: float = _RATE, weight: float = 0.2) -> None:
        for name, value, most in (("rate", rate, _FASTEST), ("weight", weight, 1.0)):
            if type(value) not in (int, float) or not 0 <= value <= most:
                raise ConfigError(f"systems.salience.{name} is {value!r}; give a number from 0 "
                                  f"to {most:g}")
        self.memory = memory
        self.given = float(rate)
        self.weight = float(weight)

    # -- arithmetic ---------------------------------------------------------

    def rate(self) -> float:
        """Return lambda: the mean of what the pins imply, the given one while there are none."""
        with self.memory.session.reading() as store:
            rates = [rate for key, rate in (self._lessons() or {}).items() if store.get(key)]
        return math.fsum(rates) / len(rates) if rates else self.given

    def _lessons(self) -> dict[str, float] | None:
        """Return {id: lambda} of the pins; None where nothing was learned yet, or it was lost."""
        kept = self.memory.state("salience").get("pins")
        return {key: rate for key, rate in kept.items() if isinstance(rate, float)
                and 0 <= rate <= _FASTEST} if isinstance(kept, dict) else None

    def score(self, memory: Memory, rate: float | None = None) -> float:
        """Return the score of a memory now."""
        note = self.note(memory)
        return current(note["score"], self._hours(note["at"]), self.rate() if rate is None
                       else rate)

    def note(self, memory: Memory) -> dict[str, object]:
        """Return {score, at, born, since} of a memory, from its text where none is stored."""
        found = {"score": None, "at": memory.created_at, **_note(memory)}
        if type(found["score"]) not in (int, float) or not 0 <= found["score"] < 1e9:
            found["score"] = initial_score(memory.content)
        return {"born": found["score"], "since": found["at"], **found}

    def _hours(self, since: object) -> float:
        start = parse_time(since)
        return (self.memory.clock() - start) / timedelta(hours=1) if start else 0.0

    def _set(self, memory: Memory, score: float, *, at: str | None = None,
             note: Mapping[str, object] | None = None) -> Memory:
        """Return the memory with another score from now on; *note* is what it had before."""
        note = note or self.note(memory)
        fresh = {**_note(memory), "score": round(score, 4), "at": at or iso(self.memory.clock()),
                 "born": note["born"], "since": note["since"]}
        return replace(memory, meta={**memory.meta, "salience": fresh})

    # -- the system ---------------------------------------------------------

    def storing(self, memory: Memory, old: Memory | None, draft: Draft) -> Memory | None:
        """Give a new memory its score; add that of a restatement to the old one's."""
        when = draft.created_at or iso(self.memory.clock())
        if old is None:
            if _note(memory):
                return None                        # an import brings its own
            note = {"score": initial_score(draft.content, draft.position), "at": when}
            return replace(memory, meta={**memory.meta, "salience": note})
        note = self.note(old)
        before, then = parse_time(note["at"]), parse_time(when)
        if draft.created_at is not None and not (before and then and then > before):
            return None                            # the same record once more
        return self._set(memory, self.score(old) + initial_score(draft.content, draft.position), at=when,
                         note=note)

    def rerank(self, hits: Sequence[Hit], query: str) -> list[Hit]:
        """Move hits gently by their score, and show it in `why`; exact ones stay in front."""
        rate = self.rate()
        scored = [(hit, self.score(hit.memory, rate)) for hit in hits]
        keys = [(not hit.why.get("exact"), -(1 + self.weight * min(score, 10) / 10)
                 / (10 + place)) for place, (hit, score) in enumerate(scored, 1)]
        return [replace(hit, why={**hit.why, "salience": round(score, 2)})
                for _, (hit, score) in sorted(zip(keys, scored), key=lambda pair: pair[0])]

    def describe(self, memory: Memory) -> Memory:
        note = {**_note(memory), "now": round(self.score(memory), 2)}
        return replace(memory, meta={**memory.meta, "salience": note})

    # -- commands -----------------------------------------------------------

    def pin(self, memory_id: str, *, off: bool = False) -> dict[str, object]:
        """Keep a memory from every prune, and learn from its fading; *off* takes both back."""
        with self.memory.session.writing():
            one = self.memory.lookup(memory_id)
            score = self.score(one)
            note, meta = dict(self.note(one)), {k: v for k, v in one.meta.items() if k != "pinned"}
            implied = None if off else self._implied(note, score)
            note.pop("rate", None)
            note.update({} if implied is None else {"rate": implied})
            meta.update({"salience": note}, **({} if off else {"pinned": True}))
            self.memory.store.put(replace(one, meta=meta))
            self._learn(memory_id, implied)
        self.memory.systems.emit("unpin" if off else "pin", [memory_id])
        return {"id": memory_id, "pinned": not off, "score": round(score, 2), "implied": implied,
                "lambda": round(self.rate(), 6)}

    def _implied(self, note: Mapping[str, object], score: float) -> float | None:
        """Return lambda = -ln(current / born) / hours, within its bounds, or None."""
        hours = self._hours(note["since"])
        if hours < 1 or score <= 0 or not note["born"] > 0:
            return None
        rate = -math.log(score / note["born"]) / hours
        return round(min(max(rate, _SLOWEST), _FASTEST), 6)

    def _learn(self, memory_id: str, rate: float | None) -> None:
        """Keep what one pin implies; lessons that were lost are read from the records again."""
        taught = self._lessons()
        if taught is None:
            taught = {one.id: note["rate"] for one in self.memory.store
                      if isinstance((note := _note(one)).get("rate"), float)}
        taught.pop(memory_id, None)
        taught.update({} if rate is None else {memory_id: rate})
        self.memory.save_state("salience", {"version": 1, "pins": taught})

    def reinforce(self, memory_id: str) -> dict[str, object]:
        """Add 0.5 to the current score."""
        with self.memory.session.writing():
            one = self.memory.lookup(memory_id)
            one = self._set(one, self.score(one) + _STEP)
            self.memory.store.put(one)
        self.memory.systems.emit("reinforce", [memory_id])
        return self._explained(one)

    def decay(self, factor: float, tags: Iterable[str], agent: str | None,
              dry_run: bool) -> dict[str, object]:
        """Multiply the current score of each by *factor*, in one transaction."""
        tags = cut_tags(tags) if isinstance(tags, str) else [*tags]
        check_selectors(tags=tags, agent=agent)
        with self.memory.session.writing():
            rows = self.memory.matching(tags=tags, agent=agent)
            for one in () if dry_run else rows:
                self.memory.store.put(self._set(one, self.score(one) * factor))
        self.memory.systems.emit("list" if dry_run else "decay", [one.id for one in rows])
        return {"memories": len(rows), "factor": factor, "dry_run": dry_run,
                "ids": [one.id for one in rows]}

    def explain(self, memory_id: str) -> dict[str, object]:
        """Return the score now, and what it is computed from."""
        one = self.memory.lookup(memory_id)
        self.memory.systems.emit("score", [memory_id])
        return self._explained(one)

    def _explained(self, one: Memory) -> dict[str, object]:
        note = self.note(one)
        return {"id": one.id, "score": round(self.score(one), 2), "set": note["score"],
                "at": note["at"], "born": note["born"], "since": note["since"],
                "lambda": round(self.rate(), 6), "pinned": bool(one.meta.get("pinned"))}


def _note(memory: Memory) -> Mapping[str, object]:
    note = memory.meta.get("salience")
    return note if isinstance(note, Mapping) else {}


def system(memory: HermesLite, **settings: object) -> Salience:
    """Make the Extension that config.yaml switches on; ConfigError for an unknown setting."""
    unknown = sorted(set(settings) - {"rate", "weight"})
    if unknown:
        raise ConfigError(f"systems.salience.{unknown[0]} is unknown; known: rate, weight")
    return Salience(memory, **settings)


def _of(memory: HermesLite) -> Salience:
    """Return the system that is switched on, else one with the defaults."""
    return next((one for one in memory.systems if isinstance(one, Salience)), None) or (
        Salience(memory))


def _decay(memory: HermesLite, *, factor: str | None, tags: Iterable[str], agent: str | None,
           dry_run: bool) -> dict[str, object]:
    try:
        number = float(str(factor))
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise UsageError("--factor needs a number from 0 to 1, such as 0.1")
    if not tags:
        raise UsageError("--tags needs at least one tag; `list --all-tags` shows those there are")
    return _of(memory).decay(number, tags, agent, dry_run)


def _show_decay(row: Mapping[str, object]) -> Iterator[str]:
    yield (f"{pluralize(row['memories'], 'score')} {'would be' if row['dry_run'] else 'now'} "
           f"multiplied by {row['factor']:g}")


def _show_score(row: Mapping[str, object]) -> Iterator[str]:
    yield f"{row['id']} has the score {row['score']:g}" + (
        ", and is pinned: no prune takes it" if row["pinned"] else "")
    if (row["set"], row["at"]) != (row["born"], row["since"]):
        yield f"  last set to {row['set']:.3g} on {_minute(row['at'])}"
    yield f"  {row['born']:g} when it was made, {_minute(row['since'])}"
    yield f"  {_fading(row['lambda'])}"


def _show_pin(row: Mapping[str, object]) -> Iterator[str]:
    yield (f"pinned {row['id']}: no prune takes it" if row["pinned"] else
           f"{row['id']} is no longer pinned") + f"; its score is {row['score']:g}"
    if row["implied"] is not None:
        yield f"  learned from it: {_fading(row['implied'])}"
    yield f"  in use: {_fading(row['lambda'])}"


def _fading(rate: float) -> str:
    return f"scores fall by half in {math.log(2) / rate:.3g} hours" if rate else "scores stay"


def _minute(when: object) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC" if (moment := parse_time(when)) else "at an unknown time"


_ID = Param("id", MemoryId, "the memory's id", positional=True, required=True)
OPERATIONS = (
    Operation("pin", "pin a memory (never pruned) and update the decay rate",
              lambda memory, id, off: _of(memory).pin(id, off=off), (
        _ID, Param("off", bool, "take the pin back", False)), _show_pin, writes=True),
    Operation("reinforce", "raise the score of a memory",
              lambda memory, id: _of(memory).reinforce(id), (_ID,), _show_score, writes=True),
    Operation("decay", "multiply the scores of all that have the tags", _decay, (
        Param("factor", str, "from 0 to 1"),
        Param("tags", str, "of what has all these tags", (), repeated=True),
        Param("agent", str, "only what this agent wrote")), _show_decay, writes=True,
        destructive=True),
    Operation("score", "show the score of a memory and how it comes about",
              lambda memory, id: _of(memory).explain(id), (_ID,), _show_score),
)

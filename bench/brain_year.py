"""A year with the brain: memories come in, some are used, the rest falls asleep.

    python3 bench/brain_year.py                            # 5,000 memories, a cycle a day
    python3 bench/brain_year.py --cycles 48 --memories 1000 --name brain_year_half_hourly
    python3 bench/brain_year.py --smoke

Each memory comes in by `remember` at a seeded moment of the year and is asked for by `recall`,
with words of its own, as long as somebody is interested in it; where that finds nothing, by
`recall --deep`, which wakes it up:

    80 %   for some days           a use a day on average, for 3 days on average
    15 %   for some weeks          a use every 6 days, for 45 days on average
     5 %   for the rest of its life    a use every 8 days, for 200 days on average

The clock is simulated, all else is real: store, index, log of uses, `brain cycle`. What is used is
known to the script alone, so it can say at the end who is awake and who should be. Written are
NAME.json with a line a day and NAME.png with the curves (with matplotlib).
"""
from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import shutil
import string
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hermes_ext.brain.associate import recall_deep
from hermes_ext.brain.cycle import cycle
from hermes_ext.brain.note import ASLEEP
from hermes_lite import HermesLite, load_config

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
UNUSED_DAYS = 30                       # of the settings: from then on a weak memory may sleep
INTERESTS = (("days", 0.80, 1.0, 3.0), ("weeks", 0.15, 6.0, 45.0), ("lasting", 0.05, 8.0, 200.0))


@dataclass(slots=True)
class Life:
    """One memory of the simulation: when it comes, what it is asked by, and when."""
    kind: str
    born: float                        # days since the start
    words: str
    text: str
    uses: list[float]
    id: str = ""
    last_use: float = 0.0


@dataclass(slots=True)
class Day:
    """The counts at the end of one day; `awake_by` splits what is awake by its interest."""
    day: int
    stored: int
    awake: int
    asleep: int
    uses: int
    awake_by: dict[str, int] = field(default_factory=dict)


def lives(count: int, days: int, seed: int) -> list[Life]:
    """Return the memories of a year, in the order in which they come in."""
    dice = random.Random(seed)
    topics = [_word(dice) for _ in range(60)]
    made = []
    for born in sorted(dice.uniform(0, days) for _ in range(count)):
        kind, _, every, length = dice.choices(INTERESTS, [each[1] for each in INTERESTS])[0]
        own = [_word(dice) for _ in range(6)]
        topic = topics[min(int(dice.expovariate(0.08)), len(topics) - 1)]
        until = min(days, born + dice.expovariate(1 / length))
        uses = [*_moments(dice, born, until, every)]
        made.append(Life(kind, born, " ".join(own[:3]), f"{topic} {' '.join(own)}", uses))
    return made


def _moments(dice: random.Random, start: float, until: float, every: float) -> Iterator[float]:
    while (start := start + dice.expovariate(1 / every)) < until:
        yield start


def _word(dice: random.Random) -> str:
    return "".join(dice.choices(string.ascii_lowercase, k=8))


class Year:
    """The simulation: one event after the other, with the clock of each."""

    def __init__(self, root: Path, *, memories: int, days: int, cycles: int, seed: int) -> None:
        self.days, self.cycles = days, cycles
        self.now = START
        self.lives = lives(memories, days, seed)
        self.by_id: dict[str, Life] = {}
        self.missed = 0                            # uses for which nothing found the memory
        self.found_deep = 0                        # uses of what was asleep
        self.seconds = 0.0                         # of CPU, in cycles
        self.rows: list[Day] = []
        (root / "config.yaml").write_text(json.dumps({"systems": {"brain": {}}}))
        config = load_config(root, environ={})
        self.memory = HermesLite(root, config=config, clock=lambda: self.now)

    def run(self) -> None:
        """Live through the year; a row of counts is kept for each day."""
        uses = 0
        for moment, act, life in self._events():
            self.now = START + timedelta(days=moment)
            if act == "come":
                life.id = self.memory.remember(life.text).id
                life.last_use = moment
                self.by_id[life.id] = life
            elif act == "use":
                uses += 1
                self._use(life, moment)
            else:
                self._cycle()
            if act == "cycle" and abs(moment - round(moment)) < 1e-9:
                self.rows.append(self._counts(round(moment), uses))
                _report(self.rows[-1], self.days)
                uses = 0
        self.memory.close()

    def _events(self) -> Iterator[tuple[float, str, Any]]:
        """Yield (day, what, memory) in the order of time."""
        events: list[tuple[float, int, str, Any]] = []
        for number, life in enumerate(self.lives):
            events.append((life.born, number, "come", life))
            events += [(moment, number, "use", life) for moment in life.uses]
        events += [(step / self.cycles, -1, "cycle", None)
                   for step in range(self.days * self.cycles + 1)]
        heapq.heapify(events)
        while events:
            moment, _, act, life = heapq.heappop(events)
            yield moment, act, life

    def _use(self, life: Life, moment: float) -> None:
        hits = self.memory.recall(life.words, top_k=1)
        if life.id not in [hit.id for hit in hits]:
            hits = recall_deep(self.memory, life.words, top_k=1)
            self.found_deep += life.id in [hit.id for hit in hits]
        if life.id in [hit.id for hit in hits]:
            life.last_use = moment
        else:
            self.missed += 1

    def _cycle(self) -> None:
        begun = time.process_time()
        cycle(self.memory)
        self.seconds += time.process_time() - begun

    def _is_asleep(self, life: Life) -> bool:
        return ASLEEP in (self.memory.store.entry(life.id) or {}).get("tags", ())

    def _counts(self, day: int, uses: int) -> Day:
        here = list(self.by_id.values())
        awake = [life for life in here if not self._is_asleep(life)]
        by_kind = {kind: sum(life.kind == kind for life in awake) for kind, *_ in INTERESTS}
        return Day(day, len(self.memory.store), len(awake), len(here) - len(awake), uses, by_kind)

    def result(self) -> dict[str, Any]:
        """Return the figures at the end of the year."""
        here = list(self.by_id.values())
        texts = {life.id: life.text for life in here}
        used = [life for life in here if self.days - life.last_use < UNUSED_DAYS]
        unused = [life for life in here if self.days - life.last_use >= UNUSED_DAYS]
        last = self.rows[-1]
        return {
            "memories": len(here), "days": self.days, "cycles_a_day": self.cycles,
            "uses": sum(row.uses for row in self.rows), "missed": self.missed,
            "found_deep": self.found_deep,
            "used": len(used), "used_awake": sum(not self._is_asleep(life) for life in used),
            "unused": len(unused), "unused_asleep": sum(map(self._is_asleep, unused)),
            "deleted": sum(self.memory.store.text(each) != text for each, text in texts.items()),
            "awake": last.awake, "asleep": last.asleep,
            "awake_by_month": [self._mean(month) for month in range(self.days // 30)],
            "stored_by_month": [self.rows[30 * month + 30].stored
                                for month in range(self.days // 30)],
            "ms_a_cycle": round(1000 * self.seconds / (self.days * self.cycles + 1), 1),
            "days_of": [asdict(row) for row in self.rows]}

    def _mean(self, month: int) -> int:
        rows = self.rows[30 * month:30 * month + 30]
        return round(sum(row.awake for row in rows) / len(rows))


def _report(row: Day, days: int) -> None:
    if row.day % 30 == 0 or row.day == days:
        print(f"day {row.day}: {row.stored} stored, {row.awake} awake", file=sys.stderr)


def draw(result: dict[str, Any], path: Path) -> bool:
    """Draw the curves of the year; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot
    rows = result["days_of"]
    days = [row["day"] for row in rows]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    left.plot(days, [row["stored"] for row in rows], color="#777777", label="stored")
    left.plot(days, [row["asleep"] for row in rows], color="#4477aa", label="asleep")
    left.plot(days, [row["awake"] for row in rows], color="#cc3311", linewidth=2, label="awake")
    left.set_title("Nothing is deleted, and what is awake levels off", fontsize=11)
    names = {"days": "asked for some days", "weeks": "asked for some weeks",
             "lasting": "asked for most of the year"}
    series = [[row["awake_by"].get(kind, 0) for row in rows] for kind in names]
    right.stackplot(days, *series, labels=list(names.values()),
                    colors=["#ddcc77", "#44aa99", "#cc3311"])
    right.set_ylim(top=1.35 * max(row["awake"] for row in rows))
    right.set_title("What is awake, by how long it is asked for", fontsize=11)
    for axes in (left, right):
        axes.set_xlabel("day of the year")
        axes.set_ylabel("memories")
        axes.set_xlim(0, days[-1])
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left", frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    return True


def main() -> int:
    """Simulate, write the results, print the figures; 1 when they are not as they should be."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memories", type=int, default=5_000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--cycles", type=int, default=1, help="a day")
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--name", default="brain_year")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--smoke", action="store_true", help="some seconds; writes nothing")
    options = parser.parse_args()
    if options.smoke:
        options.memories, options.days = 150, 120
    os.fsync = lambda handle: None                 # a year in minutes: no write waits for the disk
    root = Path(tempfile.mkdtemp())
    try:
        year = Year(root, memories=options.memories, days=options.days, cycles=options.cycles,
                    seed=options.seed)
        year.run()
        result = year.result()
    finally:
        shutil.rmtree(root)
    if not options.smoke:
        options.out.mkdir(exist_ok=True)
        (options.out / f"{options.name}.json").write_text(json.dumps(result) + "\n")
        if not draw(result, options.out / f"{options.name}.png"):
            print("no picture: pip install matplotlib", file=sys.stderr)
    for name, value in result.items():
        if name != "days_of":
            print(f"{name}: {value}")
    is_right = (result["used"] == result["used_awake"] and not result["deleted"]
                and result["unused"] == result["unused_asleep"])
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())

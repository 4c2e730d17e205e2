"""The cycle of the brain: strengths, sleep, waking up, and what a kill or a second run does."""
import contextlib
import io
import os
import random
import subprocess
import sys
import unittest
from datetime import timedelta

from hermes_ext.brain.cycle import cycle
from hermes_ext.brain.note import note_of
from hermes_ext.brain.sleep import forgotten, revive
from hermes_ext.brain.strength import USES, strength_at
from hermes_ext.tests.base import HOME, NOW, TIMEOUT, core, is_killed, setUpModule, word  # noqa: F401
from hermes_ext.tests.brain_base import BrainCase, behind_buffer
from hermes_ext.tests.lanes_base import on_archive
from hermes_lite import HermesLite


class Strengths(BrainCase):
    """A strength falls with the days and rises with each use, however often the cycle runs."""

    def strength(self, memory_id: str) -> float:
        memory = self.open()
        return self.system.strength(memory.lookup(memory_id))

    def test_nothing_fades_before_the_first_cycle(self) -> None:
        one = self.remember("The ferry leaves at nine")
        self.pass_days(100)
        self.assertEqual(self.strength(one), 0.5)
        self.assertIn("the first cycle", self.command("brain", "cycle"))
        self.assertEqual(self.strength(one), 0.5)
        self.pass_days(2)
        self.assertAlmostEqual(self.strength(one), 0.4, places=9)

    def test_a_strength_falls_with_the_days_and_a_cycle_writes_none(self) -> None:
        one = self.remember("The ferry leaves at nine")
        self.command("brain", "cycle")
        self.pass_days(4)
        self.command("brain", "cycle")
        self.assertIsNone(self.note(one).strength)
        self.assertAlmostEqual(self.strength(one), 0.3, places=9)

    def test_a_recall_is_a_use_and_browsing_is_none(self) -> None:
        one = self.remember("The ferry leaves at nine")
        self.command("brain", "cycle")
        self.pass_days(1)
        for words in (("list",), ("show", one), ("vsearch", "ferry"), ("forgotten",)):
            self.run_command(*words)
        self.command("brain", "cycle")
        self.assertIsNone(self.note(one).strength)
        self.assertEqual(self.found("When does the ferry leave?"), [one])
        self.command("brain", "cycle")
        self.assertAlmostEqual(self.note(one).strength, 0.46, places=9)

    def test_context_and_inject_are_one_use_of_what_they_show(self) -> None:
        one = self.remember("The ferry leaves at nine")
        self.command("brain", "cycle")
        self.pass_days(1)
        self.command("context", "ferry")
        self.pass_days(1)
        self.command("inject", "--message", "When does the ferry leave?", "--later")
        self.command("brain", "cycle")
        self.assertAlmostEqual(self.note(one).strength, 0.5 - 0.1 + 0.02, places=9)

    def test_a_strength_is_never_above_one(self) -> None:
        one = self.remember("The ferry leaves at nine", "--importance", "9")
        self.command("brain", "cycle")
        with self.open() as memory:
            for _ in range(30):
                self.now += timedelta(seconds=1)
                memory.systems.emit("recall", [one])
        self.command("brain", "cycle")
        self.assertEqual(self.note(one).strength, 1.0)

    def test_a_lost_state_is_a_new_baseline(self) -> None:
        one = self.remember("The ferry leaves at nine")
        self.command("brain", "cycle")
        self.found("ferry")
        self.command("brain", "cycle")
        (self.root / ".state_brain.json").unlink()
        self.pass_days(300)
        self.command("brain", "cycle")
        self.assertAlmostEqual(self.strength(one), 0.51, places=9)
        self.assertEqual(self.found("ferry"), [one])

    def test_a_damaged_state_is_set_aside_and_nothing_sleeps_because_of_it(self) -> None:
        one = self.remember("The ferry leaves at nine")
        self.command("brain", "cycle")
        (self.root / ".state_brain.json").write_text('{"version": 1, "baseline": 7}')
        self.pass_days(300)
        self.assertIn("the first cycle", self.command("brain", "cycle"))
        self.assertEqual(self.found("ferry"), [one])
        self.assertTrue([*self.root.glob(".state_brain.json.damaged-*")])

    def test_the_log_of_uses_holds_ids_and_times_alone_for_the_owner_alone(self) -> None:
        secret = word()
        one = self.remember(f"The ferry {secret} leaves at nine")
        self.found(f"ferry {secret}")
        log = self.root / USES
        self.assertEqual(log.stat().st_mode & 0o777, 0o600)
        self.assertIn(one, log.read_text())
        self.assertNotIn(secret, log.read_text())

    def test_lines_that_cannot_be_right_are_left_out(self) -> None:
        one = self.remember("The ferry leaves at nine")
        self.command("brain", "cycle")
        self.pass_days(1)
        self.found("ferry")
        log = self.root / USES
        whole = log.read_text().strip()
        log.write_text(f'\n{whole[:20]}\n[1]\n{{"soon": ["x"]}}\n{{"2026-08-18": ["../x", 7]}}\n'
                       f'{{"2026-08-18": ["../x", "mem_none"]}}\nno\n{whole}\n')
        self.assertIn("settled the uses of 1 memory", self.command("brain", "cycle"))
        self.assertAlmostEqual(self.note(one).strength, 0.46, places=9)

    def test_a_memory_that_stays_open_writes_its_uses_after_a_minute(self) -> None:
        one = self.remember("The ferry leaves at nine")
        memory = self.open()
        memory.recall("ferry")
        self.now += timedelta(seconds=59)
        memory.recall("ferry")
        self.assertFalse((self.root / USES).exists())
        self.now += timedelta(seconds=1)
        memory.recall("ferry")
        self.assertEqual((self.root / USES).read_text().count(one), 3)

    def test_a_recall_on_a_read_only_root_does_not_fail_because_of_its_use(self) -> None:
        self.remember("The ferry leaves at nine")
        (self.root / USES).mkdir()
        self.assertEqual(len(self.found("ferry")), 1)


class Schedules(BrainCase):
    """Once a day, 48 times a day, and a month off give the same strengths."""
    DAYS, MEMORIES = 12, 12

    def uses(self) -> "list[tuple[float, int]]":
        dice = random.Random(13)
        days = sorted(round(dice.uniform(0, self.DAYS) * 86400) / 86400 for _ in range(150))
        return [(day, min(int(dice.expovariate(0.4)), self.MEMORIES - 1)) for day in days]

    def live(self, cycle_days: "list[float]") -> "list[tuple[float, str]]":
        """Live through all days; return strength and note of each memory at their end."""
        self.now = NOW
        memory = self.open()
        ids = [f"mem_20260817_120000_{number:04x}" for number in range(self.MEMORIES)]
        with memory.store.transaction():
            for number, each in enumerate(ids):
                memory.store.put(core.Memory(each, f"lamp {number} {word()}",
                                             importance=1 + number % 9, created_at=core.iso(NOW)))
        cycle(memory)
        events = [(day, 1, place) for day, place in self.uses()]
        events += [(day, 0, 0) for day in cycle_days]
        for day, is_use, place in sorted(events):
            self.now = NOW + timedelta(days=day)
            if is_use:
                memory.systems.emit("recall", [ids[place]])
            else:
                cycle(memory)
        self.now = NOW + timedelta(days=self.DAYS)
        cycle(memory)
        rows = [memory.lookup(each) for each in ids]
        strengths = [strength_at(one, self.now, self.system.settings, self.system.baseline())
                     for one in rows]
        return [*zip(strengths, (str(note_of(one).at) for one in rows))]

    def expected(self) -> "list[float]":
        """Return the strengths by the rule of the document, use by use."""
        strengths = [(1 + number % 9) / 10 for number in range(self.MEMORIES)]
        since = [0.0] * self.MEMORIES
        for day, place in self.uses():
            left = max(0.0, strengths[place] - 0.05 * (day - since[place]))
            strengths[place], since[place] = min(1.0, left + 0.01), day
        return [max(0.0, strength - 0.05 * (self.DAYS - day))
                for strength, day in zip(strengths, since)]

    def test_the_schedule_of_the_cycle_makes_no_difference(self) -> None:
        daily = self.live([day for day in range(1, self.DAYS)])
        self.root = self.home / "half-hourly"
        half_hourly = self.live([step / 48 for step in range(1, 48 * self.DAYS)])
        self.root = self.home / "off"
        rested = self.live([])
        for one, two, three, said in zip(daily, half_hourly, rested, self.expected()):
            self.assertAlmostEqual(one[0], two[0], delta=1e-9)
            self.assertAlmostEqual(one[0], three[0], delta=1e-9)
            self.assertEqual(one[1], two[1])
            self.assertEqual(one[1], three[1])
            self.assertAlmostEqual(one[0], said, delta=1e-4)       # six decimals after each use


class Sleep(BrainCase):
    """What is weak and unused falls asleep: out of recall, kept, and brought back."""

    def setUp(self) -> None:
        super().setUp()
        self.used = self.remember("The ferry leaves at nine")
        self.unused = self.remember("The lamp in the hall is broken")
        self.command("brain", "cycle")

    def pass_weeks(self, weeks: int, query: str = "ferry") -> None:
        for _ in range(weeks):
            self.pass_days(7)
            self.found(query)

    def test_the_unused_falls_asleep_and_the_used_stays_awake(self) -> None:
        self.pass_weeks(5)
        said = self.command("brain", "cycle")
        self.assertIn("1 memory fell asleep", said)
        self.assertIn("1 memory awake, 1 asleep", said)
        self.assertEqual(self.found("the lamp in the hall"), [])
        self.assertEqual(self.found("ferry"), [self.used])
        self.assertEqual([one["id"] for one in self.result("forgotten")], [self.unused])
        self.assertEqual(self.stored(self.unused).content, "The lamp in the hall is broken")

    def test_it_stays_awake_for_thirty_days_and_while_it_is_strong(self) -> None:
        strong = self.remember("The harbour master is Olga", "--importance", "9")
        self.pass_days(15)                         # 0.9 - 0.75 is at the limit, and still strong
        self.command("brain", "cycle")
        self.assertEqual(self.result("forgotten"), [])
        self.pass_days(14.9)
        self.command("brain", "cycle")
        self.assertEqual(self.result("forgotten"), [])
        self.pass_days(0.2)
        self.command("brain", "cycle")
        ids = {one["id"] for one in self.result("forgotten")}
        self.assertEqual(ids, {self.used, self.unused, strong})

    def test_never_asleep_are_the_critical_the_pinned_and_who_the_user_is(self) -> None:
        critical = self.remember("The key lies under the mat", "--importance", "10")
        pinned = self.remember("The roof was mended in May")
        self.command("pin", pinned)
        name = self.result("lanes", "add", "User's name is Alex", "--authority", "identity")["id"]
        rule = self.result("propose-rule", "--text", "Answer in German")["id"]
        lesson = self.result("learn", "Deployed at night", "setup", "negative", "Test it first")
        self.pass_days(90)
        self.command("brain", "cycle")
        asleep = {one["id"] for one in self.result("forgotten")}
        self.assertEqual(asleep, {self.used, self.unused})
        self.assertFalse(asleep & {critical, pinned, name, rule, lesson["id"]})

    def test_a_text_that_came_in_late_is_as_old_as_its_stay(self) -> None:
        self.pass_days(40)
        with self.open() as memory:
            late = memory.remember("The bell was cast in Pisa", created_at="2020-01-01").id
        self.command("brain", "cycle")
        self.assertNotIn(late, {one["id"] for one in self.result("forgotten")})

    def test_revive_wakes_up_for_another_thirty_days(self) -> None:
        self.pass_days(40)
        self.command("brain", "cycle")
        self.assertIn("woke up 1 memory", self.command("revive", self.unused))
        self.assertEqual(self.found("the lamp in the hall"), [self.unused])
        note = self.note(self.unused)
        self.assertEqual((note.asleep_since, note.strength), (None, 0.5))
        self.pass_days(29)
        self.command("brain", "cycle")
        self.assertEqual(self.found("the lamp in the hall"), [self.unused])
        self.assertIn("awake already", self.command("revive", self.unused))

    def test_saying_it_again_wakes_it_up(self) -> None:
        self.pass_days(40)
        self.command("brain", "cycle")
        again = self.result("remember", "The lamp in the hall is broken")
        self.assertEqual((again["id"], again["created"]), (self.unused, False))
        self.assertEqual(self.found("the lamp in the hall"), [self.unused])

    def test_an_unknown_id_wakes_nobody(self) -> None:
        code, _, said = self.run_command("revive", "mem_none")
        self.assertEqual(code, 10, said)

    def test_a_writer_cannot_say_that_a_text_is_asleep_or_a_principle(self) -> None:
        with self.open() as memory:
            one = memory.remember("The bell was cast in Pisa", tags=["brain/asleep"], meta={
                "brain": {"level": 3, "asleep_since": "2026-08-01", "abstracted_in": ["a"]}}).id
        self.assertEqual((self.note(one).level, self.note(one).asleep_since), (1, None))
        self.assertEqual(self.found("bell Pisa"), [one])

    def test_prune_leaves_what_is_asleep(self) -> None:
        self.pass_days(40)
        self.command("brain", "cycle")
        self.pass_days(400)
        kept = {one.id for one in self.open().matching()}
        for words in (("prune", "--all-of-them", "--yes"), ("forget-stale",)):
            self.command(*words)
            self.assertEqual({one.id for one in self.open().matching()}, kept)

    def test_undo_wakes_up_what_a_cycle_put_to_sleep_until_it_is_unused_again(self) -> None:
        self.pass_days(40)
        self.command("brain", "cycle")
        self.assertIn("fell asleep", self.command("brain", "log"))
        self.assertIn("took back", self.command("undo"))
        self.command("brain", "cycle")
        self.assertEqual(self.result("forgotten"), [])
        self.assertIn("(undone)", self.command("brain", "log"))
        self.assertIn("there is nothing to undo", self.refused("undo"))
        self.pass_days(31)
        self.command("brain", "cycle")
        self.assertEqual(len(self.result("forgotten")), 2)

    def test_undo_of_a_revival_lets_it_sleep_again(self) -> None:
        self.pass_days(40)
        self.command("brain", "cycle")
        before = self.stored(self.unused)
        self.command("revive", self.unused)
        self.command("undo")
        self.assertEqual(self.stored(self.unused).meta["brain"], before.meta["brain"])
        self.assertEqual(self.found("the lamp in the hall"), [])
        code, _, _ = self.run_command("undo", "change_77")
        self.assertEqual(code, 10)

    def test_the_states_hold_no_text(self) -> None:
        secret = word()
        one = self.remember(f"The {secret} is broken")
        self.pass_days(40)
        self.command("brain", "cycle")
        self.command("revive", one)
        self.command("forget", one)
        kept = [name for name in self.grep(secret) if not name.startswith("backups/")]
        self.assertEqual(kept, [])

    def test_the_library_says_what_the_commands_say(self) -> None:
        self.pass_days(40)
        memory = self.open()
        done = cycle(memory)
        self.assertEqual((done.fell_asleep, done.status.asleep), (2, 2))
        self.assertEqual({one.id for one in forgotten(memory)}, {self.used, self.unused})
        self.assertEqual(len(forgotten(memory, limit=1)), 1)
        self.assertEqual([one.id for one in revive(memory, [self.used])], [self.used])
        with self.assertRaises(core.UsageError):
            revive(memory, self.used)


class Kills(BrainCase):
    """A cycle that is killed anywhere is finished by the next one."""

    def fill_root(self) -> "tuple[str, ...]":
        self.now = NOW
        self.configure()
        used = self.remember("The ferry leaves at nine")
        unused = self.remember("The lamp in the hall is broken")
        self.command("brain", "cycle")
        for _ in range(6):
            self.pass_days(6)
            self.found("ferry")
        return used, unused

    def test_a_kill_changes_no_strength_and_loses_no_sleep(self) -> None:
        used, unused = self.fill_root()
        self.command("brain", "cycle")
        wanted = self.note(used).strength, self.note(unused).asleep_since
        for nth in range(1, 100):
            self.root = self.home / f"root-{nth}"
            used, unused = self.fill_root()

            def act() -> None:
                with HermesLite(self.root, clock=lambda: self.now) as memory:
                    cycle(memory)
            was_killed = is_killed(act, nth)
            self.command("brain", "cycle")
            self.assertEqual((self.note(used).strength, self.note(unused).asleep_since), wanted)
            self.assertFalse((self.root / ".brain_uses.taken").exists())
            if not was_killed:
                return
        self.fail("the cycle has no end")


class Together(BrainCase):
    """A cycle is safe beside writers, readers and another cycle."""

    def test_a_second_cycle_at_once_is_locked(self) -> None:
        self.remember("The ferry leaves at nine")
        with self.open() as memory, memory.exclusive("brain"):
            code, _, said = self.run_command("brain", "cycle")
        self.assertEqual(code, 12, said)
        self.command("brain", "cycle")

    def test_no_use_is_lost_beside_cycles(self) -> None:
        texts = {name: self.remember(f"The {name} leaves at nine")
                 for name in ("ferry", "train")}
        self.command("brain", "cycle")
        moment = self.now.timestamp()
        writers = [subprocess.Popen(
            [sys.executable, "-c", WRITER, str(self.root), name, one, str(moment)],
            cwd=HOME, env={"PATH": os.defpath, "HOME": str(self.home)})
            for name, one in texts.items()]
        self.now += timedelta(hours=1)
        with HermesLite(self.root, clock=lambda: self.now) as memory:
            while any(writer.poll() is None for writer in writers):
                cycle(memory)
            cycle(memory)
        self.assertEqual([writer.wait(TIMEOUT) for writer in writers], [0, 0])
        for one in texts.values():
            self.assertAlmostEqual(self.note(one).strength, 0.7, delta=0.001)
        self.assertEqual(len(self.open().matching()), 2 + 2 * 20)


# Uses one memory 20 times and writes 20 others, each time as a process that opens and closes.
WRITER = """
import sys
from datetime import datetime, timedelta, timezone
from hermes_lite import HermesLite
root, name, wanted, moment = sys.argv[1:]
start = datetime.fromtimestamp(float(moment), timezone.utc)
for number in range(20):
    now = start + timedelta(seconds=number + 1)
    with HermesLite(root, clock=lambda: now) as memory:
        assert memory.recall(name)[0].id == wanted
        memory.remember(f"A note of {name} with the number {number * 7}")
"""


class SmallYear(BrainCase):
    """The simulation in bench/: at its end the used is awake, the unused asleep, all there."""

    def test_what_is_used_is_awake_and_nothing_is_deleted(self) -> None:
        sys.path.insert(0, str(HOME / "bench"))
        self.addCleanup(sys.path.remove, str(HOME / "bench"))
        import brain_year
        self.root.mkdir(exist_ok=True)
        year = brain_year.Year(self.root, memories=60, days=100, cycles=1, seed=4)
        with contextlib.redirect_stderr(io.StringIO()):
            year.run()
        result = year.result()
        self.assertEqual((result["memories"], result["deleted"], result["missed"]), (60, 0, 0))
        self.assertEqual(result["used"], result["used_awake"])
        self.assertEqual(result["unused"], result["unused_asleep"])
        self.assertGreater(min(result["used"], result["unused"]), 10)


StrengthsOnArchive = on_archive(Strengths)
StrengthsBehindBuffer = behind_buffer(Strengths)
SchedulesOnArchive = on_archive(Schedules)
SleepOnArchive = on_archive(Sleep)
SleepBehindBuffer = behind_buffer(Sleep)
KillsOnArchive = on_archive(Kills)
TogetherOnArchive = on_archive(Together)

if __name__ == "__main__":
    unittest.main()

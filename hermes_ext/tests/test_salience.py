"""Salience: the score follows its formula, however often anything runs."""
import json
import math
import subprocess
import sys
import tempfile
import unittest
from datetime import datetime, timedelta, timezone
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from hermes_ext.salience import Salience, initial_score, current, system          # noqa: E402
from hermes_lite import (Config, ConfigError, HermesLite, Hit, Memory, UsageError,   # noqa: E402
                         NotFound)
from hermes_ext.tests.base import run_command  # noqa: E402


class SalienceCase(unittest.TestCase):

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.now = datetime(2026, 8, 17, 12, tzinfo=timezone.utc)
        self.memory = self.open()
        self.salience = self.memory.systems[0] if self.memory.systems else None

    def open(self, **settings) -> HermesLite:
        memory = HermesLite(self.folder, clock=lambda: self.now, config=Config(
            {"systems": {"salience": settings}}, environ={}))
        self.addCleanup(memory.close)
        return memory

    def score(self, memory_id: str) -> float:
        return self.salience.score(self.memory.get(memory_id))

    def run_op(self, name: str, **more: object) -> dict:
        import hermes_ext.salience
        found = {one.name: one for one in hermes_ext.salience.OPERATIONS}
        return found[name].handler(self.memory, **more)


class TheFormula(unittest.TestCase):

    def test_half_is_left_after_thirty_hours(self):
        self.assertAlmostEqual(current(8, 30.137, 0.023), 4.0, places=3)
        self.assertEqual([current(8, 0, 0.023), current(8, -5, 0.023), current(8, 99, 0)], [8] * 3)

    def test_the_score_at_birth_is_wish_and_kind_and_position(self):
        for text, wanted in (("记住这个：周会改到三楼", 5 + 1), ("Remember this: the door sticks", 5 + 1),
                             ("Merk dir das: die Tür klemmt", 5 + 1),
                             ("note for later: nice font", 3 + 1),
                             ("这个以后再看", 3 + 1), ("端口是8080", 4), ("see https://example.com", 4),
                             ("周三下午开会", 4), ("we meet tomorrow", 4), ("客户张三很满意", 2),
                             ("the talk with Alice was good", 2), ("我们去杭州", 2),
                             ("the sky is blue", 1),
                             ("天空很蓝", 1), ("这张桌子很大", 1)):
            self.assertEqual(initial_score(text), wanted, text)
        self.assertEqual([initial_score("the sky is blue", place) for place in ("first", "last", "middle")],
                         [3, 2, 1])


class Scores(SalienceCase):

    def test_a_score_fades_by_the_hour_and_not_by_the_run(self):
        made = self.memory.remember("The gateway listens on port 8080", position="first")
        self.assertEqual(self.score(made.id), 6)
        before = self.memory.get(made.id)
        for hours in (1, 29, 70):
            self.now += timedelta(hours=hours)
            self.score(made.id), self.memory.recall("gateway"), self.open().recall("gateway")
        self.assertAlmostEqual(self.score(made.id), 6 * math.exp(-0.023 * 100))
        self.assertEqual(self.memory.get(made.id).meta, before.meta)

    def test_reinforce_adds_half_a_point_to_what_is_left(self):
        made = self.memory.remember("The gateway listens on port 8080")
        self.now += timedelta(hours=500)
        left = self.score(made.id)
        self.run_op("reinforce", id=made.id)
        self.assertAlmostEqual(self.score(made.id), left + 0.5, places=3)
        self.now += timedelta(hours=10)
        self.assertAlmostEqual(self.score(made.id), (left + 0.5) * math.exp(-0.23), places=3)

    def test_what_is_restated_adds_its_score(self):
        made = self.memory.remember("The gateway listens on port 8080")
        self.now += timedelta(hours=30)
        left = self.score(made.id)
        self.memory.remember("the gateway listens on Port 8080.")
        self.assertAlmostEqual(self.score(made.id), left + 4, places=3)
        same = self.memory.get(made.id)
        self.memory.admit(same)
        self.assertEqual(self.memory.get(made.id), same)

    def test_decay_multiplies_what_has_all_tags_and_nothing_else(self):
        ids = [self.memory.remember(f"Server {n} is at its limit", tags=tags).id
               for n, tags in ((1, "server_monitor cpu"), (2, "server_monitor"), (3, "cpu"))]
        self.run_op("decay", factor="0.1", tags=["Server_Monitor"], agent=None, dry_run=True)
        self.assertEqual([self.score(i) for i in ids], [4, 4, 4])
        done = self.run_op("decay", factor="0.1", tags=["server_monitor"], agent=None,
                           dry_run=False)
        self.assertEqual([round(self.score(i), 6) for i in ids], [0.4, 0.4, 4])
        self.assertEqual(sorted(done["ids"]), sorted(ids[:2]))

    def test_a_blank_tag_or_agent_decays_nothing(self):
        made = self.memory.remember("Server 1 is at its limit", tags="net").id
        for tags, agent in (([""], None), (["net", " "], None), ([], None), (["net"], "")):
            with self.assertRaises(UsageError):
                self.run_op("decay", factor="0.1", tags=tags, agent=agent, dry_run=False)
        self.assertEqual(self.score(made), 4)

    def test_a_memory_from_before_is_counted_from_its_text_and_age(self):
        self.memory.admit(Memory("mem_old", "端口是8080", created_at="2026-08-16T12:00:00+00:00",
                                 meta={"salience": "odd"}))
        self.assertAlmostEqual(self.score("mem_old"), 4 * math.exp(-0.023 * 24))
        self.memory.admit(Memory("mem_odd", "no age at all 7", created_at="never",
                                 meta={"salience": {"score": "x", "at": 5}}))
        self.assertGreaterEqual(self.score("mem_odd"), 0)


class Pins(SalienceCase):

    def pin(self, memory_id: str, **more: object) -> dict:
        return self.run_op("pin", id=memory_id, off=False, **more)

    def test_a_pinned_memory_outlives_everything(self):
        made = self.memory.remember("端口是8080", expires_at="2026-09-01").id
        other = self.memory.remember("the sky is blue").id
        self.pin(made)
        self.now += timedelta(days=4000)
        self.assertEqual([row.id for row in self.memory.prune().expired], [other])
        self.run_op("pin", id=made, off=True)
        self.assertEqual([row.id for row in self.memory.prune().expired], [made])

    def test_lambda_is_the_mean_of_what_the_pins_imply(self):
        kept = self.memory.remember("Port 8080 is the gateway").id
        plain = self.memory.remember("Port 9090 is the console").id
        for _ in range(4):
            self.now += timedelta(hours=10)
            self.run_op("reinforce", id=kept)
        score, hours = self.score(kept), 40
        implied = -math.log(score / 4) / hours
        row = self.pin(kept)
        self.assertAlmostEqual(row["implied"], implied, places=5)
        self.assertLess(row["implied"], 0.023)
        self.assertAlmostEqual(self.salience.rate(), implied, places=5)
        now = self.pin(plain)["implied"]
        self.assertAlmostEqual(self.salience.rate(), (implied + now) / 2, places=5)
        self.assertAlmostEqual(self.open().systems[0].rate(), self.salience.rate())
        self.memory.forget(plain)
        self.assertAlmostEqual(self.salience.rate(), implied, places=5)
        self.run_op("pin", id=kept, off=True)
        self.assertEqual(self.salience.rate(), 0.023)

    def test_a_pin_at_once_teaches_nothing_and_every_lesson_has_bounds(self):
        made = [self.memory.remember(f"Port {n} is open").id for n in (1, 2, 3)]
        self.assertIsNone(self.pin(made[0])["implied"])
        self.now += timedelta(hours=2)
        for _ in range(5):
            self.run_op("reinforce", id=made[1])
        self.assertEqual(self.pin(made[1])["implied"], 1e-4)
        with self.memory.store.transaction():
            self.memory.store.put(self.salience._set(self.memory.get(made[2]), 1e-9))
        self.assertIn(self.pin(made[2])["implied"], (None, 1.0))

    def test_lost_lessons_are_read_from_the_records_again(self):
        ids = [self.memory.remember(f"Port {n} is open").id for n in (1, 2)]
        self.now += timedelta(hours=5)
        self.run_op("reinforce", id=ids[0])
        implied = self.pin(ids[0])["implied"]
        next(self.folder.glob(".state_salience.json")).unlink()
        self.pin(ids[1])
        self.assertIn(implied, self.salience._lessons().values())

    def test_an_unknown_id_is_not_found(self):
        for name, more in (("pin", {"off": False}), ("reinforce", {}), ("score", {})):
            self.assertRaises(NotFound, self.run_op, name, id="mem_x", **more)


class Weighing(SalienceCase):

    def hits(self, *scores: float, exact: int | None = None) -> list[str]:
        rows = [Hit(Memory(f"mem_{n}", "x", created_at=self.now.isoformat(), meta={
            "salience": {"score": score, "at": self.now.isoformat()}}), 1.0, 0.0, 1.0,
            {"exact": "x"} if n == exact else {}) for n, score in enumerate(scores)]
        return [hit.id[4:] for hit in self.salience.rerank(rows, "x")]

    def test_it_moves_hits_by_a_place_or_two_and_no_further(self):
        self.assertEqual("".join(self.hits(0, 10, 0)), "102")
        self.assertEqual("".join(self.hits(0, 0, 0, 0, 0, 0, 10)), "0123645")
        self.assertEqual("".join(self.hits(4, 4, 4)), "012")
        self.assertEqual("".join(self.hits(0, 10, 99, exact=0)), "012")

    def test_recall_and_show_tell_the_score(self):
        made = self.memory.remember("The gateway listens on port 8080")
        self.now += timedelta(hours=30)
        hit = self.memory.recall("gateway")[0]
        self.assertEqual(hit.why["salience"], round(4 * math.exp(-0.69), 2))
        self.assertNotIn("now", self.memory.get(made.id).meta["salience"])
        self.assertEqual(self.salience.describe(hit.memory).meta["salience"]["now"], 2.01)

    def test_the_first_and_the_last_fact_of_a_digest_have_their_place(self):
        done = self.memory.digest("I prefer tea. I prefer calm offices. I prefer short meetings.",
                                  apply=True)
        self.assertEqual([self.score(row.id) - initial_score(self.memory.get(row.id).content)
                          for row in done.results], [2, 0, 1])


class Settings(SalienceCase):

    def test_wrong_settings_are_one_sentence(self):
        for wrong in ({"rate": -1}, {"rate": "x"}, {"weight": 2}, {"weight": True}, {"lambda": 1}):
            with self.assertRaises(ConfigError, msg=wrong):
                system(None, **wrong)
        self.assertEqual(Salience(self.memory, rate=0.5).rate(), 0.5)


class Command(unittest.TestCase):

    def test_the_commands_work_without_being_switched_on(self):
        with tempfile.TemporaryDirectory() as folder:
            def run(*words: str) -> subprocess.CompletedProcess:
                return run_command(folder, *words)

            made = json.loads(run("remember", "端口是8080", "--tags", "net", "--json").stdout)["id"]
            self.assertEqual(json.loads(run("score", made, "--json").stdout)["score"], 4.0)
            self.assertEqual(json.loads(run("reinforce", made, "--json").stdout)["score"], 4.5)
            self.assertIn(f"pinned {made}: no prune takes it; its score is 4.5\n  in use: scores fall "
                          "by half in 30.1 hours\n", run("pin", made).stdout)
            said = run("score", made).stdout
            self.assertIn(f"{made} has the score 4.5, and is pinned: no prune", said)
            self.assertRegex(said, r"4 when it was made, \d{4}-\d\d-\d\d \d\d:\d\d UTC")
            self.assertNotIn("lambda", said)
            self.assertEqual(run("decay", "--factor", "0.1", "--tags", "net").returncode, 11)
            self.assertIn("1 score now multiplied by 0.1", run(
                "decay", "--factor", "0.1", "--tags", "net", "--yes").stdout)
            for words in (("--factor", "2", "--tags", "net"), ("--tags", "net"),
                          ("--factor", "0.1"),
                          ("--factor", "nan", "--tags", "net")):
                done = run("decay", *words)
                self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), words)
            self.assertLess(json.loads(run("score", made, "--json").stdout)["score"], 0.5)
            self.assertTrue(json.loads(run("show", made, "--json").stdout)["meta"]["pinned"])


if __name__ == "__main__":
    unittest.main()

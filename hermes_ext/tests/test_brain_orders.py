"""Work orders of the brain: what is asked, how it is answered, what authority an answer has."""
import random
import unittest
from unittest import mock

from hermes_ext.brain.candidates import MOST
from hermes_ext.brain.changes import changes, undo
from hermes_ext.brain.cycle import cycle
from hermes_ext.brain.note import note_of, sources_of
from hermes_ext.brain.orders import decline, fulfil, get_order, keep, orders
from hermes_ext.tests.base import HAS_CRYPTO, NOW, core, is_killed, setUpModule, word  # noqa: F401
from hermes_ext.tests.brain_base import BrainCase, behind_buffer
from hermes_ext.tests.lanes_base import on_archive
from hermes_lite import HermesLite

CASES = ("The Redis cache served old prices after a deploy because nobody cleared it",
         "The CDN cache kept last week's logo for two days",
         "The browser cache hid the new login page from half of the users")
PATTERN = "What is kept for speed shows people the past unless a deploy empties it"


class Asking(BrainCase):
    """A cycle asks for the pattern behind three memories and more, and never twice."""

    def remember_cases(self, *texts: str, tag: str = "cache") -> "list[str]":
        return [self.remember(text, "--tags", tag) for text in texts or CASES]

    def open_orders(self) -> "list[dict]":
        return self.result("brain", "orders")

    def test_three_memories_of_one_tag_are_an_order(self) -> None:
        ids = self.remember_cases()
        self.assertIn("wrote order_", self.command("brain", "cycle"))
        one, = self.open_orders()
        self.assertEqual((one["level"], one["concept"]), (2, "cache"))
        self.assertEqual({text["id"] for text in one["texts"]}, set(ids))
        self.assertEqual({text["text"] for text in one["texts"]}, set(CASES))
        self.assertEqual({text["origin"] for text in one["texts"]}, {"observation"})
        self.assertIn("abstract", one["answer"])
        shown = self.command("brain", "orders", one["id"])
        self.assertIn("What do these memories have in common?", shown)
        self.assertIn(CASES[1], shown)

    def test_two_memories_are_none_and_a_second_cycle_asks_no_second_time(self) -> None:
        self.remember_cases(*CASES[:2])
        self.command("brain", "cycle")
        self.assertEqual(self.open_orders(), [])
        self.remember(CASES[2], "--tags", "cache")
        for _ in range(3):
            self.command("brain", "cycle")
        self.assertEqual(len(self.open_orders()), 1)

    def test_names_and_numbers_in_the_texts_are_concepts_too(self) -> None:
        for text in ("Olga Petrova mends the pump on Monday",
                     "The invoice for the roof went to Petrova", "Call Petrova about the keys"):
            self.remember(text)
        self.command("brain", "cycle")
        self.assertEqual([each["concept"] for each in self.open_orders()], ["petrova"])

    def test_anchors_are_concepts(self) -> None:
        for text in ("合同 CT2024-0876 的付款推迟了", "法务在看 CT2024-0876 的附件",
                     "CT2024-0876 要在三月续签吗"):
            self.remember(text)
        self.command("brain", "cycle")
        self.assertEqual([each["concept"] for each in self.open_orders()], ["ct2024-0876"])

    def test_a_neighbourhood_without_a_shared_concept_is_an_order(self) -> None:
        near = [self.remember(text) for text in (
            "the pump in the cellar was leaking again last night",
            "last night the pump in the cellar stood still, it was leaking",
            "leaking again: the pump in the cellar, found last night by the neighbour")]
        self.remember("a table for four is booked near the theatre")
        self.command("brain", "cycle")
        one, = self.open_orders()
        self.assertIsNone(one["concept"])
        self.assertEqual({text["id"] for text in one["texts"]}, set(near))

    def test_a_run_writes_few_orders_and_stops_at_ten_times_as_many(self) -> None:
        with self.open() as memory:
            for number in range(45):
                for _ in range(3):
                    memory.remember(f"{word()} {word()} {word()}", tags=[f"matter{number}"])
            for run in range(1, 14):
                done = cycle(memory)
                self.assertEqual(len(done.orders), 3 if run <= 10 else 0)
                self.assertEqual(done.status.open_orders, min(30, 3 * run))

    def test_of_many_the_newest_and_those_most_like_it_are_asked_about(self) -> None:
        with self.open() as memory:
            for _ in range(30):
                memory.remember(f"{word()} {word()} {word()}", tags=["cache"])
            for place in ("harbour", "station", "airport"):
                memory.remember(f"the {place} map was stale after the update", tags=["cache"])
            cycle(memory)
            one, = orders(memory)
        self.assertLessEqual(len(one.texts), MOST)
        self.assertLessEqual(3, sum("was stale after" in text.text for text in one.texts))

    def test_what_is_asleep_hidden_or_a_rule_is_no_case(self) -> None:
        for text in CASES:
            self.result("propose-rule", "--text", text)
        with self.open() as memory:
            cycle(memory)
            self.assertEqual(orders(memory), [])
        self.remember_cases()
        self.pass_days(40)
        self.command("brain", "cycle")
        self.assertEqual(self.open_orders(), [])

    def test_an_order_whose_sources_are_gone_closes_itself(self) -> None:
        ids = self.remember_cases()
        self.command("brain", "cycle")
        one, = self.open_orders()
        self.command("forget", ids[0])
        self.assertEqual(self.open_orders(), [])
        self.assertIn("is closed", self.refused("brain", "fulfil", one["id"], "--text", PATTERN))
        self.command("brain", "cycle")
        self.assertEqual(self.result("brain", "orders", "--all")[0]["status"], "closed")

    def test_a_declined_order_is_not_asked_again_but_new_cases_are(self) -> None:
        self.remember_cases()
        self.command("brain", "cycle")
        one, = self.open_orders()
        self.assertIn("declined", self.command("brain", "decline", one["id"]))
        self.command("brain", "cycle")
        self.assertEqual(self.open_orders(), [])
        self.remember_cases("Tokens were cached longer than they were valid",
                            "The exchange rate was cached over the weekend",
                            "A cached DNS answer led to the old machine")
        self.command("brain", "cycle")
        self.assertEqual(len(self.open_orders()), 1)
        self.command("undo")
        self.assertEqual(self.open_orders(), [])
        self.assertIn(one["id"], self.command("undo"))         # the decline
        self.assertEqual([each["id"] for each in self.open_orders()], [one["id"]])

    def test_the_state_holds_neither_the_texts_nor_the_concept(self) -> None:
        secret = word()
        ids = self.remember_cases(*(f"{secret} {text}" for text in CASES), tag=f"c{secret}")
        self.command("brain", "cycle")
        self.assertIn(secret, self.open_orders()[0]["concept"])
        for each in ids:
            self.command("forget", each)
        kept = [name for name in self.grep(secret) if not name.startswith("backups/")]
        self.assertEqual(kept, [])

    def test_texts_are_redacted_by_todays_rules(self) -> None:
        secret = word()
        self.remember_cases(*(f"{text}, says {secret}" for text in CASES))
        self.command("brain", "cycle")
        order_id = self.open_orders()[0]["id"]
        config = core.load_config(self.root, environ={})
        config["security"]["redact_patterns"] = [f"({secret})"]
        with HermesLite(self.root, config=config, clock=lambda: self.now) as memory:
            self.assertNotIn(secret, str(get_order(memory, order_id).entry()))

    def test_an_unknown_order_is_not_found(self) -> None:
        for words in (("orders", "order_no"), ("decline", "order_no"),
                      ("fulfil", "order_no", "--text", "x y")):
            self.assertEqual(self.run_command("brain", *words)[0], 10)
        self.assertEqual(self.run_command("brain", "fulfil", "order_no")[0], 2)


class Answering(BrainCase):
    """An answer keeps its sources, weakens them, and has the authority of the lowest of them."""

    def ask(self, *origins: str) -> "tuple[str, list[str]]":
        """Remember the cases with these origins; return the order about them and their ids."""
        with self.open() as memory:
            ids = []
            for text, origin in zip(CASES, origins or ("observation",) * 3):
                ids.append(self.write(memory, text, source=origin, tags=["cache"]).id)
            cycle(memory)
            return orders(memory)[0].id, ids

    def test_an_answer_is_a_pattern_that_names_its_sources_and_they_name_it(self) -> None:
        order_id, ids = self.ask()
        made = self.result("brain", "fulfil", order_id, "--text", PATTERN, "--concepts",
                           "cache", "deploy")["id"]
        one = self.stored(made)
        self.assertEqual((one.content, note_of(one).level), (PATTERN, 2))
        self.assertEqual(set(sources_of(one)), set(ids))
        self.assertLessEqual({"cache", "deploy"}, set(one.tags))
        self.assertGreaterEqual(one.importance, 6)
        for each in ids:
            note = self.note(each)
            self.assertEqual((note.abstracted_in, note.asleep_since), ((made,), None))
            self.assertAlmostEqual(note.strength, 0.25, places=6)
        self.assertEqual(self.result("brain", "orders"), [])
        self.assertIn(made, self.found("What shows people the past?"))

    def test_its_authority_is_the_lowest_of_its_parts(self) -> None:
        for origins, lowest in ((("observation", "conversation", "observation"), "inference"),
                                (("observation", "tool", "observation"), "tool"),
                                (("external", "observation", "tool"), "external")):
            with self.subTest(origins=origins):
                self.root = self.home / lowest
                order_id, _ = self.ask(*origins)
                made = self.result("brain", "fulfil", order_id, "--text", PATTERN)["id"]
                with self.open() as memory:
                    found = self.authority(memory, made)
                self.assertEqual((found.origin, found.lane, found.sealed),
                                 (lowest, "evidence", True))

    def test_the_cases_stay_sealed_and_are_kept_from_prune(self) -> None:
        order_id, ids = self.ask()
        made = self.result("brain", "fulfil", order_id, "--text", PATTERN)["id"]
        with self.open() as memory:
            self.assertTrue(all(self.authority(memory, each).sealed for each in ids))
        self.pass_days(500)
        for words in (("prune", "--all-of-them", "--yes"), ("forget-stale",)):
            self.command(*words)
        self.assertEqual({one.id for one in self.kept()}, {made, *ids})
        self.command("forget", made)
        self.command("forget-stale")
        self.assertEqual(self.kept(), [])

    def test_a_pattern_sleeps_only_after_its_cases(self) -> None:
        order_id, ids = self.ask()
        made = self.result("brain", "fulfil", order_id, "--text", PATTERN)["id"]
        self.pass_days(20)
        self.found("the CDN and the logo")
        self.pass_days(20)
        self.command("brain", "cycle")
        self.assertNotIn(made, {one["id"] for one in self.result("forgotten")})
        self.pass_days(40)
        self.command("brain", "cycle")
        self.command("brain", "cycle")
        self.assertEqual({one["id"] for one in self.result("forgotten")}, {made, *ids})

    def test_undo_takes_the_answer_back_and_a_person_may_say_it_again(self) -> None:
        order_id, ids = self.ask()
        before = {each: self.stored(each).meta for each in ids}
        made = self.result("brain", "fulfil", order_id, "--text", PATTERN)["id"]
        self.command("undo")
        self.assertEqual(self.run_command("show", made)[0], 10)
        self.assertEqual({each: self.stored(each).meta for each in ids}, before)
        self.command("brain", "cycle")
        self.assertEqual(self.result("brain", "orders"), [])
        self.assertEqual(self.result("brain", "orders", "--all")[0]["status"], "declined")
        again = self.result("remember", PATTERN)
        self.assertEqual((again["created"], again["warnings"]), (True, []))

    def test_undo_leaves_what_was_used_since(self) -> None:
        order_id, ids = self.ask()
        self.command("brain", "fulfil", order_id, "--text", PATTERN)
        self.pass_days(1)
        self.found("the CDN and the logo")
        self.command("brain", "cycle")
        used = [each for each in ids if self.note(each).strength != 0.25]
        strengths = {each: self.note(each).strength for each in used}
        self.assertTrue(used)
        self.command("undo")
        self.assertEqual({each: self.note(each).strength for each in used}, strengths)
        self.assertEqual({self.note(each).abstracted_in for each in ids}, {()})

    def test_an_answer_is_never_merged_into_one_of_its_cases(self) -> None:
        order_id, ids = self.ask()
        done = self.result("brain", "fulfil", order_id, "--text", CASES[0] + ".")
        self.assertTrue(done["created"])
        self.assertNotIn(done["id"], ids)

    def test_what_an_extension_takes_for_another_memory_changes_nothing(self) -> None:
        contract = "合同编号是CT2024-0876"
        other = self.remember(contract)
        order_id, ids = self.ask()
        said = self.refused("brain", "fulfil", order_id, "--text", f"记住:{contract}")
        self.assertIn(other, said)
        self.assertEqual({self.note(each).abstracted_in for each in ids}, {()})
        self.assertEqual(len(self.result("brain", "orders")), 1)

    def test_a_refused_text_changes_nothing(self) -> None:
        order_id, ids = self.ask()
        for words, code in ((("--text", "  "), 2), (("--text", PATTERN, "--level", "7"), 2),
                            (("--text", PATTERN, "--concepts", "password"), 11)):
            self.assertEqual(self.run_command("brain", "fulfil", order_id, *words)[0], code)
        self.assertEqual({self.note(each).abstracted_in for each in ids}, {()})
        self.assertEqual(len(self.result("brain", "orders")), 1)
        self.assertEqual(len(self.kept()), 3)

    def test_an_order_is_answered_once(self) -> None:
        order_id, _ = self.ask()
        self.command("brain", "fulfil", order_id, "--text", PATTERN)
        self.assertIn("is closed", self.refused("brain", "fulfil", order_id, "--text", PATTERN))
        self.assertIn("is closed", self.refused("brain", "decline", order_id))

    def test_three_patterns_of_one_concept_ask_for_a_principle(self) -> None:
        memory = self.open()
        texts = ("Caches outlive what they copy", "A copy that nobody owns goes stale",
                 "Speed that is bought with copies is paid for with doubt")
        made = [keep(memory, f"{word()} {word()} on day {number}", text,
                     concepts=["copies"]).abstract.id for number, text in enumerate(texts)]
        cycle(memory)
        one = next(each for each in orders(memory) if each.level == 3)
        self.assertEqual({text.id for text in one.texts}, set(made))
        with self.assertRaises(core.UsageError):
            fulfil(memory, one.id, "Every copy needs an owner", level=2)
        done = fulfil(memory, one.id, "Every copy needs an owner", concepts=["copies"])
        self.assertEqual(note_of(memory.lookup(done.id)).level, 3)
        self.assertEqual({note_of(memory.lookup(each)).abstracted_in for each in made},
                         {(done.id,)})

    def test_keep_keeps_the_summary_and_the_structure_and_a_recall_finds_each(self) -> None:
        kept = self.result("brain", "keep", "--summary", "On Friday the team dropped the second "
                           "queue", "--abstract", PATTERN, "--concepts", "queues")
        first, second = kept["summary"]["id"], kept["abstract"]["id"]
        self.assertIn(first, self.found("Friday second queue"))
        self.assertIn(second, self.found("What shows people the past?"))
        self.assertEqual(sources_of(self.stored(second)), (first,))
        self.assertEqual({self.stored(each).importance for each in (first, second)}, {9})
        self.command("undo")
        self.assertEqual(self.kept(), [])
        self.assertEqual(self.run_command("brain", "keep", "--summary", "only this")[0], 2)

    def test_keep_in_an_agents_hands_has_no_more_authority_than_a_model(self) -> None:
        code, out, _ = self.run_command("brain", "keep", "--summary", "A queue was dropped",
                                        "--abstract", PATTERN, terminal=False)
        self.assertEqual(code, 0)
        with self.open() as memory:
            self.assertEqual({self.authority(memory, one.id).origin for one in self.kept()},
                             {"inference"})

    def test_a_kill_leaves_the_order_open_or_answered(self) -> None:
        for nth in range(1, 60):
            self.root = self.home / f"root-{nth}"
            order_id, ids = self.ask()

            def act() -> None:
                with HermesLite(self.root, clock=lambda: self.now) as memory:
                    fulfil(memory, order_id, PATTERN)
            was_killed = is_killed(act, nth)
            with self.open() as memory:
                made = [one.id for one in memory.matching() if note_of(one).level == 2]
                is_open = bool(orders(memory))
                self.assertEqual((len(made), is_open), (0, True) if is_open else (1, False))
                self.assertEqual({note_of(memory.lookup(each)).abstracted_in for each in ids},
                                 {tuple(made)})
                if is_open:
                    fulfil(memory, order_id, PATTERN)
                cycle(memory)
                self.assertEqual(orders(memory), [])
            if not was_killed:
                return
        self.fail("answering has no end")


    def test_an_undo_that_was_killed_can_be_repeated(self) -> None:
        for nth in range(1, 60):
            self.root = self.home / f"undone-{nth}"
            order_id, ids = self.ask()
            before = {each: self.stored(each).meta for each in ids}
            self.command("brain", "fulfil", order_id, "--text", PATTERN)

            def act() -> None:
                with HermesLite(self.root, clock=lambda: self.now) as memory:
                    undo(memory)
            was_killed = is_killed(act, nth)
            with self.open() as memory:
                if not changes(memory)[0].undone:
                    undo(memory)
                self.assertTrue(changes(memory)[0].undone)
                self.assertEqual({one.id: one.meta for one in memory.matching()}, before)
                self.assertEqual(get_order(memory, order_id).status, "declined")
            if not was_killed:
                return
        self.fail("the undo has no end")


@unittest.skipUnless(HAS_CRYPTO, "needs cryptography")
class Encrypted(BrainCase):
    """The brain of an encrypted store writes nothing that can be read."""

    def test_neither_texts_nor_concepts_nor_states_can_be_read(self) -> None:
        secret, on = word(), {"HERMES_ENCRYPT": "on"}
        self.command("encrypt", "on")
        for text in CASES:
            self.command("remember", f"{secret} {text}", "--tags", f"c{secret}", **on)
        self.command("brain", "cycle", **on)
        self.result("recall", secret, **on)
        order_id = self.result("brain", "orders", **on)[0]["id"]
        self.command("brain", "fulfil", order_id, "--text", f"{secret} {PATTERN}", **on)
        self.command("brain", "cycle", **on)
        self.command("undo", **on)
        found = [name for name in self.grep(secret) if not name.startswith("store/")]
        self.assertEqual(found, [])                # the Markdown mirror is for people
        for name in (".state_brain.json", ".state_brain_log.json"):
            self.assertTrue(core.is_ciphertext((self.root / name).read_bytes()), name)


class Size(BrainCase):
    """Candidates cost one pass over the entries and few searches, however many there are."""

    def test_a_common_concept_costs_few_searches(self) -> None:
        dice, memory = random.Random(5), self.open()
        words = [word(7) for _ in range(400)]
        with memory.store.transaction():
            for number in range(1500):
                text = " ".join(dice.choices(words, k=12))
                memory.store.put(core.Memory(
                    f"mem_20260801_000000_{number:04x}", text, tags=("common",),
                    created_at=core.iso(NOW)))
        searches = type(memory.store.search)
        asked = mock.patch.object(searches, "words", autospec=True, side_effect=searches.words)
        for runs in (1, 2):
            with asked as words:
                done = cycle(memory)
            self.assertEqual((len(done.orders), done.status.open_orders), (1, runs))
            self.assertLessEqual(words.call_count, 3 + 50)
        self.assertEqual(decline(memory, done.orders[0]).status, "declined")


AskingOnArchive = on_archive(Asking)
AnsweringOnArchive = on_archive(Answering)
AnsweringBehindBuffer = behind_buffer(Answering)
SizeOnArchive = on_archive(Size)

if __name__ == "__main__":
    unittest.main()

"""Anchors: what is the same is one memory, what is not stays apart, and a number finds itself."""
import itertools
import json
import random
import subprocess
import sys
import tempfile
import unittest
from datetime import datetime, timedelta, timezone
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from hermes_ext.anchors import OPERATIONS, Anchors, extract, says, system       # noqa: E402
from hermes_ext.import_export import bring_in, export                        # noqa: E402
from hermes_lite import Config, ConfigError, HermesLite, Memory         # noqa: E402
from hermes_ext.tests.base import ratio_of_pairs, run_command  # noqa: E402


class AnchorsCase(unittest.TestCase):

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.now = datetime(2026, 8, 17, 12, tzinfo=timezone.utc)

    def memory(self, name: str = "root", more: dict | None = None, **settings) -> HermesLite:
        memory = HermesLite(self.folder / name, clock=self.clock, config=Config(
            {"systems": {"anchors": settings}, **(more or {})}, environ={}))
        self.addCleanup(memory.close)
        return memory

    def clock(self) -> datetime:
        self.now += timedelta(minutes=1)
        return self.now

    def values(self, memory: HermesLite, memory_id: str) -> list[dict]:
        rows = Anchors(memory, **memory.config["systems"]["anchors"]).values(memory.get(memory_id))
        return [{"type": kind, "value": value, **row} for (kind, value), row in rows.items()]


FOUND = """
客户张三的合同编号是CT2024-0876 | contract_id CT2024-0876
The contract number is ct2024-0876. | contract_id CT2024-0876
Vertragsnummer: V-2024-17 | contract_id V-2024-17
李四的发票号是IN2024-0875 | invoice_id IN2024-0875
Bestellnummer 4711-22 | order_id 4711-22
see PRJ2024-001 | reference PRJ2024-001
Die Vertragsnummer von Frau Müller ist V-2024-17 | contract_id V-2024-17
张三的发票今天寄出，合同是 AB2024-33 | contract_id AB2024-33
截止时间：2024年8月15日 | deadline 2024-08-15
Deadline: 15.08.2024 | deadline 2024-08-15
due August 15, 2024 | deadline 2024-08-15
Abgabetermin am 15. August 2024 | deadline 2024-08-15
The deadline for the report is 2026-08-15. | deadline 2026-08-15
Die Frist für den Antrag ist der 15. August 2026 | deadline 2026-08-15
the phone number of Alice is 030 1234567 | phone 0301234567
8月15日之前交报告 | deadline --08-15
signed on 2024/8/5 | date 2024-08-05
3. März 2025 | date 2025-03-03
on 01/02/2024 | date 01/02/2024
mail A.B@Example.COM | email a.b@example.com
https://Example.com/A?b=1。 | url https://example.com/A?b=1
网关在 10.0.0.1:8080 | ip_port 10.0.0.1:8080
电话 13812345678 | phone 13812345678
Telefon: +49 30 1234567 | phone +49301234567
预算5万元 | amount CNY 50000
costs $1,200.50 | amount USD 1200.5
kostet 1.234,50 € | amount EUR 1234.5
500美元 | amount USD 500
版本 2.3 | version 2.3
v2.3.1-rc1 is out | version 2.3.1-rc1
状态: signed | status signed
状态从draft变为signed | status signed
Status: in review | status in review
订单4711已发货 | order_id 4711
contract CT-1 | contract_id CT-1
待办：发邮件给张三 | action_item 发邮件给张三
TODO: send the email | action_item send the email
记得给李四打电话。谢谢 | action_item 给李四打电话
Don't forget to call Bob. | action_item call Bob
"""
NOTHING = ("UTF-8 and SHA-256", "port 8080", "contract 42", "the contract of 2024", "2024-13-45",
           "300.1.1.1", "3块硬盘", "500日元", "a version of it", "may 5 people come", "", "@", "合同很重要")


class Extraction(unittest.TestCase):

    def test_each_type_is_found_in_one_form(self):
        for line in FOUND.strip().splitlines():
            text, _, wanted = line.partition(" | ")
            kind, _, value = wanted.partition(" ")
            self.assertEqual(list(extract(text)), [(kind, value)], text)

    def test_what_is_no_anchor_is_none(self):
        for text in NOTHING:
            self.assertEqual(extract(text), {}, text)

    def test_own_patterns_come_first(self):
        self.assertEqual(list(extract("TICKET-77 at PRJ2024-001", {r"TICKET-(\d+)": "ticket",
                                                                  "PRJ[0-9-]+": "project"})),
                         [("ticket", "77"), ("project", "PRJ2024-001")])

    def test_two_wordings_say_the_same_and_others_do_not(self):
        same = (("客户张三的合同编号是CT2024-0876", "请记住：张三的合同号 CT2024-0876"),
                ("Zhang San's contract number is CT2024-0876",
                 "The contract number of Zhang San: CT2024-0876"),
                ("截止日期 2024年8月15日", "deadline: 2024-08-15"))
        other = (("CT2024-0876 付款完成", "CT2024-0876 付款未完成"),
                 ("CT2024-0876 取消付款", "CT2024-0876 付款"),
                 ("Alice pays CT2024-0876 to Bob", "Bob pays CT2024-0876 to Alice"),
                 ("from 10.0.0.1:80 to 10.0.0.2:80", "from 10.0.0.2:80 to 10.0.0.1:80"),
                 ("CT2024-0876 is down", "CT2024-0876 is down again"))
        for one, two in same:
            self.assertEqual(says(one), says(two))
        for one, two in other:
            self.assertNotEqual(says(one), says(two))

    def test_a_long_text_costs_little_more_than_its_length(self):
        for piece in ("1.", "合同", "2024-", "a@", "10.0.0.", "记得", "¥1,", "- [ ] ", "http://",
                      "Mai "):
            text = piece * (40_000 // len(piece))
            short = text[:len(text) // 4]
            ratio = ratio_of_pairs(lambda: extract(text), lambda: extract(short), most=12)
            self.assertLessEqual(ratio, 12, piece)


class Restating(AnchorsCase):

    def test_a_fact_restated_ten_times_is_one_memory(self):
        memory = self.memory()
        texts = ("客户张三的合同编号是CT2024-0876", "张三的合同号是CT2024-0876",
                 "记住：张三的合同号：CT2024-0876", "张三的合同号码为 ct2024-0876", "请记住客户张三的合同编号是CT2024-0876。")
        made = [memory.remember(texts[0])]
        begun = memory.get(made[0].id).created_at
        made += [memory.remember(text) for text in itertools.islice(itertools.cycle(texts), 1, 10)]
        self.assertEqual({row.id for row in made}, {made[0].id})
        self.assertEqual([row.created for row in made], [True] + [False] * 9)
        kept = memory.get(made[0].id)
        self.assertEqual((kept.content, kept.meta["anchors"]["note"]["said"], len(memory.store)),
                         (texts[0], 10, 1))
        self.assertEqual(kept.meta["anchors"]["note"]["first"], begun)
        self.assertGreater(kept.created_at, kept.meta["anchors"]["note"]["first"])

    def test_a_date_may_be_written_in_another_form(self):
        for merge in ("restated", "always"):
            memory = self.memory(merge, merge=merge)
            for n in range(20):
                memory.remember(f"the tax office opens on day {n} of the season {n * 7}")
            first = memory.remember("the tax of the mill is due on 2026-09-15")
            again = memory.remember("the tax of the mill is due on September 15, 2026")
            self.assertEqual((again.id, again.created), (first.id, False))
            same = memory.remember("the tax of the mill is due on 15.09.2026")
            self.assertEqual((same.id, same.created), (first.id, False))

    def test_a_write_and_a_recall_ask_the_index_for_all_numbers_at_once(self):
        memory = self.memory()
        numbers = [f"CT2024-{n:04}" for n in range(6)]
        for number in numbers:
            memory.remember(f"the contract of the mill is {number}")
        asked = []
        search = memory.store.search.words

        def counted(query: str, *rest: object, **more: object) -> list:
            asked.append(query)
            return search(query, *rest, **more)
        memory.store.search.words = counted
        made = memory.remember("all contracts of the mill: " + ", ".join(numbers))
        self.assertEqual(len(asked), 1)
        self.assertIsNotNone(memory.get(made.id).meta["anchors"]["note"]["under"])
        asked.clear()
        hits = memory.recall("who holds " + " or ".join(numbers) + "?", top_k=9)
        self.assertEqual(len(asked), 2)            # the keywords of the recall, and the anchors
        self.assertEqual(len([hit for hit in hits if hit.why.get("exact")]), 7)

    def test_another_fact_about_the_same_number_is_its_own_memory_under_it(self):
        memory = self.memory()
        first = memory.remember("客户张三的合同编号是CT2024-0876").id
        more = [memory.remember(text) for text in (
            "CT2024-0876 付款完成", "CT2024-0876 付款未完成",
            "The contract CT2024-0876 ends in May")]
        self.assertEqual([row.created for row in more], [True] * 3)
        self.assertEqual([memory.get(row.id).meta["anchors"]["note"]["under"] for row in more],
                         [first] * 3)
        bare = memory.remember("Ich habe Frau Müller wegen CT2024-0876 angerufen").id
        self.assertEqual(memory.get(bare).meta["anchors"]["note"]["under"], first)
        other = memory.remember("客户李四的合同编号是CT2024-0877").id
        self.assertEqual(memory.get(other).meta["anchors"], {"contract_id": ["CT2024-0877"]})

    def test_two_different_values_are_never_merged(self):
        rnd = random.Random(5)
        frames = ("客户张三的合同编号是{}", "张三的合同号 {}", "Zhang San's contract number is {}", "{}")
        for merge in ("restated", "always"):
            memory, by_value = self.memory(merge, merge=merge), {}
            for _ in range(60):
                value = f"CT2024-{rnd.randint(870, 880):04d}"
                made = memory.remember(rnd.choice(frames).format(value))
                by_value.setdefault(value, set()).add(made.id)
            for one, two in itertools.combinations(by_value.values(), 2):
                self.assertFalse(one & two)
            for value, ids in by_value.items():
                for memory_id in ids:
                    self.assertIn(value, memory.get(memory_id).content)
            if merge == "always":
                self.assertEqual({len(ids) for ids in by_value.values()}, {1})

    def test_merge_always_keeps_one_memory_a_value_and_never_loses_a_value(self):
        memory = self.memory(merge="always")
        first = memory.remember("The contract CT2024-0876 is with Zhang San").id
        self.assertEqual(memory.remember("CT2024-0876 付款完成").id, first)
        two = memory.remember("CT2024-0876 replaces CT2024-0001")
        self.assertTrue(two.created)
        self.assertEqual({row["value"] for row in self.values(memory, two.id)},
                         {"CT2024-0876", "CT2024-0001"})

    def test_restating_keeps_two_agents_apart(self):
        memory = self.memory()
        a = memory.remember("客户张三的合同编号是CT2024-0876", agent="finance-bot")
        b = memory.remember("张三的合同号是CT2024-0876", agent="project-bot")
        again = memory.remember("记住张三的合同号：CT2024-0876", agent="project-bot")
        self.assertEqual((b.created, again.created, again.id), (True, False, b.id))
        self.assertEqual(memory.get(b.id).meta["anchors"]["note"]["under"], a.id)

    def test_a_report_closes_the_one_open_item_whoever_gives_it(self):
        for todo, report in (("待办：发邮件给张三", "邮件已发"), ("TODO: send the email to Zhang San",
                             "The email to Zhang San has been sent"),
                             ("- [ ] Call Bob about the roof", "- [x] call Bob about the roof"),
                             ("记得给李四打电话", "给李四打电话已完成")):
            memory = self.memory(todo[-3:])
            item = memory.remember(todo, agent="a").id
            self.assertEqual(self.values(memory, item)[0]["status"], "open")
            done = memory.remember(report, agent="b")
            self.assertEqual((done.id, done.created), (item, False), report)
            row = self.values(memory, item)[0]
            self.assertEqual((row["status"], row["by"], len(memory.store)), ("done", "b", 1))
            self.assertEqual(memory.remember(report, agent="b").id, item)
            memory.remember(todo, agent="a")
            self.assertEqual(self.values(memory, item)[0]["status"], "open")

    def test_what_does_not_report_that_very_item_closes_nothing(self):
        memory = self.memory()
        items = [memory.remember(text).id for text in (
            "待办：发邮件给张三", "待办：发邮件给李四", "TODO: book the flight to Berlin")]
        for text in ("邮件已发", "邮件还没发", "要发邮件给张三", "邮件已发给王五", "Was the flight booked?",
                     "The flight to Berlin was not booked", "The flight was booked and costs 90 €",
                     "The hotel in Berlin is booked"):
            self.assertTrue(memory.remember(text).created, text)
        self.assertEqual([self.values(memory, item)[0]["status"] for item in items], ["open"] * 3)

    def test_two_open_items_and_a_done_one_stay_as_they_are(self):
        memory = self.memory()
        done = memory.remember("待办：发邮件给王五").id
        self.assertEqual(memory.remember("邮件已发给王五").id, done)
        for text in ("待办：发邮件给张三", "待办：发邮件给李四"):
            memory.remember(text)
        self.assertTrue(memory.remember("邮件已发").created)

    def test_a_status_that_follows_another_says_from_which(self):
        memory = self.memory()
        memory.remember("合同编号: CT2024-0876; 状态: draft")
        made = memory.remember("合同编号: CT2024-0876; 状态: signed")
        self.assertEqual(self.values(memory, made.id)[1],
                         {"type": "status", "value": "signed", "from": "draft"})

    def test_importing_what_was_exported_changes_nothing(self):
        memory = self.memory()
        for text in ("客户张三的合同编号是CT2024-0876", "待办：发邮件给张三", "邮件已发",
                     "CT2024-0876 付款完成"):
            memory.remember(text)
        export(memory, self.folder / "a.jsonl")
        before = [dict(one) for one in memory.store]
        bring_in(memory, self.folder / "a.jsonl")
        self.assertEqual([dict(one) for one in memory.store], before)
        other = self.memory("other")
        bring_in(other, self.folder / "a.jsonl")
        self.assertEqual([one.meta for one in other.store], [one["meta"] for one in before])


class Privacy(AnchorsCase):

    def test_what_redaction_hid_comes_back_through_no_anchor(self):
        number = f"138{random.SystemRandom().randint(10**7, 10**8 - 1)}"
        for how in ("hash", "redact"):
            memory = self.memory(how, {"security": {"personal_numbers": how}})
            made = memory.remember(f"张三的电话是{number}，合同号CT2024-0876")
            memory.close()
            self.assertEqual([row["type"] for row in self.values(memory, made.id)],
                             ["contract_id"])
            held = b"".join(path.read_bytes() for path in memory.root.rglob("*") if path.is_file())
            self.assertNotIn(number.encode(), held)


class Recalling(AnchorsCase):

    def setUp(self) -> None:
        super().setUp()
        self.store = self.memory()
        say = self.store.remember
        self.ct = say("客户张三的合同编号是CT2024-0876").id
        self.look = say("客户李四的发票号是IN2024-0875").id
        self.near = say("客户王五的合同编号是CT2024-0875").id
        self.note = say("张三的合同正在审核").id
        for number in range(30):
            say(f"客户赵{number}的合同编号是CT2023-{number:04d}")
        self.english = say("Alice's phone number is +49 30 1234567").id

    def test_the_beginning_of_a_number_finds_what_begins_so(self):
        for backend in ("files", "archive"):
            memory = self.memory(backend, {"storage": {"backend": backend}})
            for text in ("合同编号是CT2024-0876", "the contract number is CT2025-0100"):
                memory.remember(text)
            for query in ("CT2024-08", "合同 CT2024-08", "the contract CT2024-08?"):
                self.assertEqual([hit.content for hit in memory.recall(query)],
                                 ["合同编号是CT2024-0876"], query)
            memory.remember("合同编号是CT2024-08")
            for query in ("CT2024-08", "合同 CT2024-08"):
                self.assertEqual([hit.content for hit in memory.recall(query)],
                                 ["合同编号是CT2024-08"], query)

    def test_a_number_finds_its_memory_first_and_no_look_alike(self):
        for query in ("CT2024-0876", "ct2024-0876", "合同CT2024-0876的进展",
                      "what about CT2024-0876?"):
            hits = self.store.recall(query, top_k=20)
            self.assertEqual(hits[0].id, self.ct, query)
            self.assertEqual(hits[0].why["exact"], "contract_id CT2024-0876")
            self.assertFalse({self.look, self.near} & {hit.id for hit in hits})
        self.assertEqual(self.store.recall("CT2024-9999"), [])

    def test_a_question_for_a_type_finds_whose_it_is(self):
        for query in ("张三的合同号", "张三的合同编号是多少？", "请问客户张三的合同号是什么"):
            self.assertEqual(self.store.recall(query)[0].id, self.ct, query)
        for query in ("What is Alice's phone number?", "Telefon Alice"):
            self.assertEqual(self.store.recall(query)[0].id, self.english, query)

    def test_an_unknown_person_gets_no_exact_answer(self):
        self.assertFalse(any("exact" in hit.why for hit in self.store.recall("孙七的合同号")))

    def test_filters_hold_for_exact_answers(self):
        self.assertEqual(self.store.recall("CT2024-0876", agent="nobody"), [])
        self.assertEqual(self.store.recall("CT2024-0876", tags=["x"]), [])


class TheScenes(AnchorsCase):

    def test_two_agents_about_one_contract(self):
        memory = self.memory()
        memory.remember("CT2024-0876付款完成", tags=["payment"], agent="finance-bot")
        memory.remember("CT2024-0876的项目已经启动", tags=["project"], agent="project-bot")
        both = {hit.memory.agent for hit in memory.recall("CT2024-0876")}
        self.assertEqual(both, {"finance-bot", "project-bot"})
        own = memory.recall("CT2024-0876", agent="finance-bot")
        self.assertEqual([hit.content for hit in own], ["CT2024-0876付款完成"])
        self.assertEqual([hit.content for hit in memory.recall(
            tags=["payment"], agent="finance-bot")], ["CT2024-0876付款完成"])
        self.assertEqual(memory.recall(tags=["payment"], agent="project-bot"), [])

    def test_the_contract_number_in_a_table(self):
        (self.folder / "table.csv").write_text(
            "\ufeff客户姓名;合同编号;签约日期;状态;Passwort\n"
            "张三;CT2024-0876;2024-08-01;draft;Tulpe-47-Wald\n"
            "李四;CT2024-0999;;signed;\n;;;;\n", "utf-8")
        memory = self.memory()
        done = bring_in(memory, self.folder / "table.csv", agent="univer")
        self.assertEqual((done.rows, done.added, done.bad), (3, 2, 1))
        hit = memory.recall("张三的合同编号")[0].memory
        self.assertEqual((hit.tags, hit.agent, hit.source),
                         (("客户姓名", "合同编号", "签约日期", "状态"), "univer", "table.csv#2"))
        self.assertIn("合同编号: CT2024-0876; 签约日期: 2024-08-01; 状态: draft", hit.content)
        self.assertNotIn("Tulpe", hit.content)
        dated = memory.list(tags=["合同编号", "签约日期"])
        self.assertEqual([m.content[:8] for m in dated], ["客户姓名: 张三"])
        self.assertEqual(bring_in(memory, self.folder / "table.csv", agent="univer").added, 0)


class Settings(AnchorsCase):

    def test_wrong_settings_are_one_sentence(self):
        for wrong in ({"merge": "never"}, {"patterns": {"(": "x"}},
                      {"patterns": {"x": "two words"}}, {"patterns": ["x"]}, {"patern": {}},
                      {"patterns": {"x": "note"}}):
            with self.assertRaises(ConfigError, msg=wrong):
                system(None, **wrong)

    def test_a_pattern_of_ones_own_restates_and_answers(self):
        memory = self.memory(patterns={r"TICKET-\d+": "ticket"})
        one = memory.remember("TICKET-77 is about the login page").id
        memory.remember("TICKET-78 is about the login page")
        self.assertEqual(memory.recall("TICKET-77")[0].id, one)
        self.assertEqual(self.values(memory, one), [{"type": "ticket", "value": "TICKET-77"}])

    def test_meta_of_another_form_is_no_obstacle(self):
        memory = self.memory()
        for number, meta in enumerate((5, [], {"url": 7}, {"note": [3, {}]},
                                       {"note": {"said": "x"}})):
            made = memory.admit(Memory(f"mem_{number}", f"CT2024-000{number} is signed by Bob",
                                       meta={"anchors": meta}))
            memory.remember(f"CT2024-000{number} is signed by Bob")
            self.assertEqual(self.values(memory, made.id)[0]["value"], f"CT2024-000{number}")


class Command(AnchorsCase):

    def run_it(self, *words: str) -> subprocess.CompletedProcess:
        return run_command(self.folder / "root", *words)

    def test_it_lists_values_and_who_holds_one_without_being_switched_on(self):
        self.run_it("remember", "客户张三的合同编号是CT2024-0876", "--tags", "a", "b,c", "--agent", "x")
        self.run_it("remember", "待办：发邮件给张三", "--tags", "a", "--tags", "d")
        self.assertEqual(self.run_it("anchors").stdout.splitlines(), [
            "action_item  发邮件给张三  open  1", "contract_id  CT2024-0876  1"])
        rows = json.loads(self.run_it("anchors", "ct2024-0876", "--json").stdout)
        self.assertEqual([row["content"] for row in rows], ["客户张三的合同编号是CT2024-0876"])
        self.assertEqual(json.loads(self.run_it("list", "--all-tags", "--json").stdout),
                         {"a": 2, "b": 1, "c": 1, "d": 1})
        self.assertIn("CT2024-0876", self.run_it("recall", "--tags", "a", "c").stdout)
        nothing = self.run_it("anchors", "--type", "url")
        self.assertEqual((nothing.returncode, nothing.stderr), (0, "hermes-lite: nothing found\n"))
        unknown = self.run_it("anchors", "--type", "contract")
        self.assertEqual(unknown.returncode, 2)
        self.assertIn("no type 'contract'; use one of: contract_id, invoice_id", unknown.stderr)
        self.assertEqual(self.run_it("recall", "--tags").returncode, 2)
        self.assertEqual([one.name for one in OPERATIONS], ["anchors"])


if __name__ == "__main__":
    unittest.main()

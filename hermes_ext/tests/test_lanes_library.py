"""AgentMemory: the document's examples as written, and what its methods promise."""
import sys
import unittest
from datetime import timedelta
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hermes_ext.lanes.agent_memory import AgentMemory
from hermes_ext.tests.base import setUpModule
from hermes_ext.tests.lanes_base import LanesCase, on_archive
from hermes_lite import HermesLite, Refused, UsageError

__all__ = ["setUpModule"]

# The usage examples of the document that the lanes come from, unchanged.
EXAMPLES = '''
import sys
sys.path.insert(0, str(Path.home() / '.hermes/agent-memory/src'))
from memory import AgentMemory
mem = AgentMemory()
# Store a fact
mem.remember("User's name is Alex", authority_class="identity",
source="observation", confidence=1.0)
# Store preference
mem.remember("Prefers German language", authority_class="preference",
source="observation", confidence=0.9)
# Search
facts = mem.recall("name")
# All identity facts
identity = mem.recall_by_authority("identity")
# Record a lesson
mem.learn(action="Deployed without fallback",
context="hermes-setup", outcome="negative",
insight="Always configure a fallback provider")
# Track an entity
mem.track_entity("Alex", "person", {"username": "alex_dev", "language": "de"})
# Entity relations
mem.relate("Alex", "arbeitet_bei", "acme")
mem.get_relations("Alex", direction="both")
# Conflicts (tag single-valued lane facts)
mem.get_conflicts()
# mem.resolve_conflict(keep_id, [drop_id])
# Store raw recall separately from facts
mem.remember_snippet("Discussed query-aware retrieval", session_id="demo")
snippets = mem.search_snippets("query-aware", session_id="demo")
# Stats
print(mem.stats())
# Daily cleanup (also runs via systemd timer)
mem.forget_stale()
'''
SHIM = "from hermes_ext.lanes.agent_memory import AgentMemory\n"


class Library(LanesCase):

    def agent_memory(self, **more: object) -> AgentMemory:
        return AgentMemory(memory=self.open(), **more)

    def test_the_examples_of_the_document_run_as_written(self):
        source = self.home / ".hermes/agent-memory/src"
        source.mkdir(parents=True)
        (source / "memory.py").write_text(SHIM)
        names: dict = {"Path": Path}
        before = list(sys.path)
        self.addCleanup(setattr, sys, "path", before)
        self.addCleanup(sys.modules.pop, "memory", None)
        with mock.patch.dict("os.environ", {"HOME": str(self.home),
                                            "HERMES_LITE_ROOT": str(self.root)}), \
                mock.patch("builtins.print"):
            exec(EXAMPLES, names)                  # noqa: S102
        mem = names["mem"]
        self.addCleanup(mem.close)
        self.assertEqual([fact.content for fact in names["facts"]], ["User's name is Alex"])
        self.assertEqual([(fact.authority_class, fact.source, fact.confidence)
                          for fact in names["identity"]], [("identity", "observation", 1.0)])
        self.assertEqual([row["content"] for row in names["snippets"]],
                         ["Discussed query-aware retrieval"])
        stats = mem.stats()
        self.assertEqual(stats["by_authority"]["preference"], 1)
        self.assertEqual(stats["kinds"], {"entity": 1, "lesson": 1, "relation": 1, "snippet": 1})
        self.assertEqual(mem.get_entity("Alex").attributes,
                         {"username": "alex_dev", "language": "de"})

    def test_it_works_where_the_config_does_not_switch_the_lanes_on(self):
        mem = AgentMemory(self.home / "bare")
        self.addCleanup(mem.close)
        self.assertIsNotNone(mem.remember("User's name is Alex", "identity", "observation", 1.0))
        self.assertEqual(len(mem.recall_by_authority("identity")), 1)

    def test_a_refusal_is_none_and_says_why(self):
        mem = self.agent_memory()
        self.assertIsNone(mem.remember("Alex may deploy", "authorization", "conversation", 1.0))
        self.assertEqual(mem.last_refusal.reason_code, "source_not_allowed")
        self.assertIsNone(mem.remember("User's name is Alex", "identity", "observation", 0.4))
        self.assertEqual(mem.stats()["refused"], {"source_not_allowed": 1, "low_confidence": 1})
        self.assertIsNotNone(mem.remember("Alex may deploy", "authorization", "observation"))
        for wrong in ({"confidence": 2}, {"authority_class": "king"}, {"source": "god"}):
            with self.assertRaises(UsageError):
                mem.remember("x is y", **wrong)

    def test_inside_a_surface_its_ceiling_holds(self):
        mem = self.agent_memory()
        with mem.memory.systems.acting("mcp remember"):
            self.assertIsNone(mem.remember("User's name is Mallory", "identity", "observation"))
            made = mem.remember("The port is 8080", "evidence", "observation")
        self.assertEqual(mem.get_fact(made).source, "inference")

    def test_reads_renew_the_life_of_a_fact(self):
        mem = self.agent_memory()
        made = mem.remember("Prefers tea to coffee", "preference", "observation")
        for read in (lambda: mem.recall("tea"), lambda: mem.recall_by_authority("preference"),
                     lambda: mem.get_fact(made)):
            self.now += timedelta(days=10)
            read()
            self.assertEqual(mem.get_fact(made).expires_at,
                             (self.now + timedelta(days=14)).isoformat(timespec="seconds"))
        self.now += timedelta(days=15)
        self.assertEqual((mem.forget_stale(), mem.forget_stale()), (1, 0))
        self.assertIsNone(mem.get_fact(made))

    def test_a_low_repetition_renews_nothing(self):
        mem = self.agent_memory()
        made = mem.remember("Prefers tea to coffee", "preference", "observation")
        before = mem.lanes.ends(mem.memory.lookup(made))
        self.now += timedelta(days=10)
        self.assertEqual(mem.remember("Prefers tea to coffee!", "preference", "tool"), made)
        self.assertEqual(mem.lanes.ends(mem.memory.lookup(made)), before)

    def test_each_object_is_a_session_after_a_rest(self):
        mem = self.agent_memory()
        mem.remember("The harbour opens at nine")
        self.now += timedelta(hours=8)
        names = iter(("Aurora", "Bellona", "Carina", "Dorado", "Electra"))
        for _ in range(4):
            mem.remember(f"{next(names)} lies in the dock")
        self.assertEqual(mem.stats()["kinds"], {"held": 1})
        AgentMemory(memory=mem.memory).remember(f"{next(names)} lies in the dock")
        self.assertEqual(mem.stats()["kinds"], {"held": 1})

    def test_rules_need_a_person(self):
        mem = self.agent_memory()
        rule = mem.propose_rule("Answer in German", trigger="german")
        with self.assertRaises(Refused) as caught:
            mem.approve_rule(rule)
        self.assertEqual(caught.exception.reason_code, "needs_terminal")
        self.assertIsNone(mem.propose_rule("Obey", source="conversation"))
        seen = []
        mem.approver = lambda one: not seen.append(one.text)
        self.assertEqual(mem.approve_rule(rule).status, "active")
        self.assertEqual(seen, ["Answer in German"])
        self.assertEqual([one.id for one in mem.get_active_rules()], [rule])
        self.assertEqual(mem.get_pending_rules(), [])
        self.assertEqual(mem.retire_rule(rule).status, "retired")

    def test_conflicts_and_provenance(self):
        mem = self.agent_memory()
        one = mem.remember("Lives in Kiel", "identity", "observation", tags=["home"])
        two = mem.remember("Moved to Bern", "identity", "observation", tags=["home"])
        self.assertEqual(len(mem.get_conflicts()), 1)
        self.assertEqual(mem.resolve_conflict(two, [one]), [])
        self.assertEqual([fact.id for fact in mem.recall_by_authority("identity")], [two])
        self.assertEqual(mem.get_provenance(two)["supersedes"], one)
        self.assertTrue(mem.forget(two))
        self.assertFalse(mem.forget(two))
        self.assertEqual([fact.id for fact in mem.recall_by_authority("identity")], [one])

    def test_a_given_memory_stays_open(self):
        memory = self.open()
        with AgentMemory(memory=memory) as mem:
            mem.remember("The harbour opens at nine")
        self.assertIsInstance(memory, HermesLite)
        self.assertEqual(len(memory.recall("harbour")), 1)


LibraryOnArchive = on_archive(Library)


if __name__ == "__main__":
    unittest.main()

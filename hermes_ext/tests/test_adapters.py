"""The adapters in the real frameworks: LangGraph, LangChain, OpenAI Agents, LlamaIndex."""
from __future__ import annotations

import asyncio
import importlib.util
import unittest
from datetime import timedelta

from hermes_ext.tests.base import Case, a_secret
from hermes_lite import UsageError

HAS = {name: importlib.util.find_spec(name) is not None
       for name in ("langgraph", "langchain_core", "agents", "llama_index")}


class OnAMemory(Case):
    backend = "files"
    systems = "lanes: {}, anchors: {}, audit: {}, brain: {}, undo: {}"

    def setUp(self) -> None:
        super().setUp()
        self.root.mkdir()
        (self.root / "config.yaml").write_text(
            f"storage: {{backend: {self.backend}}}\nsystems: {{{self.systems}}}\n")
        self.memory = self.open()


@unittest.skipUnless(HAS["langgraph"], "needs the package langgraph-checkpoint")
class LangGraph(OnAMemory):
    def setUp(self) -> None:
        super().setUp()
        from hermes_ext.agents.adapters.langgraph import HermesStore
        self.store = HermesStore(self.memory)

    def test_an_item_is_kept_as_it_is_found_and_replaced(self):
        value = {"text": "Olga likes rye bread", "n": 3, "deep": {"list": [1, None, True]}}
        self.store.put(("users", "olga"), "food", value)
        found = self.store.get(("users", "olga"), "food")
        self.assertEqual((found.value, found.key, found.namespace),
                         (value, "food", ("users", "olga")))
        made = found.created_at
        self.now += timedelta(seconds=5)
        self.store.put(("users", "olga"), "food", {"text": "Olga likes white bread"})
        found = self.store.get(("users", "olga"), "food")
        self.assertEqual(found.value, {"text": "Olga likes white bread"})
        self.assertEqual((found.created_at, found.updated_at - made), (made, timedelta(seconds=5)))
        self.assertIsNone(self.store.get(("users", "kim"), "food"))
        self.assertIsNone(self.store.get(("users",), "food"))

    def test_the_same_text_under_two_keys_is_two_items_and_comes_back_after_a_delete(self):
        for key in ("a", "b"):
            self.store.put(("n",), key, {"text": "the ferry leaves at nine"})
        self.assertEqual(len(self.store.search(("n",))), 2)
        self.store.delete(("n",), "a")
        self.assertIsNone(self.store.get(("n",), "a"))
        self.store.delete(("n",), "a")
        self.store.put(("n",), "a", {"text": "the ferry leaves at nine"})
        self.assertEqual(self.store.get(("n",), "a").value["text"], "the ferry leaves at nine")

    def test_a_search_keeps_to_its_namespace_and_filter(self):
        for number, city in enumerate(("Hamburg", "Bremen", "Hamburg")):
            self.store.put(("docs", "a" if number else "b"), str(number),
                           {"text": f"The pilot of ship {number} lives in {city}", "city": city,
                            "n": number})
        self.store.put(("other",), "x", {"text": "The pilot of ship 9 lives in Hamburg"})
        self.assertEqual({one.key for one in self.store.search(("docs",), query="pilot Hamburg")} -
                         {"0", "1", "2"}, set())
        self.assertEqual([one.key for one in self.store.search(("docs", "b"), query="pilot")], ["0"])
        found = self.store.search(("docs",), query="pilot", filter={"city": "Hamburg"})
        self.assertEqual({one.key for one in found}, {"0", "2"})
        self.assertTrue(all(one.score > 0 for one in found))
        for wanted, keys in (({"n": {"$gte": 1}}, {"1", "2"}), ({"n": {"$ne": 1}}, {"0", "2"}),
                             ({"n": {"$gt": 0, "$lt": 2}}, {"1"}), ({"city": "Kiel"}, set())):
            self.assertEqual({one.key for one in self.store.search(("docs",), filter=wanted)}, keys)
        with self.assertRaises(UsageError):
            self.store.search(("docs",), filter={"n": {"$in": [1]}})
        pages = [self.store.search(("docs",), limit=2, offset=offset) for offset in (0, 2)]
        self.assertEqual(len({one.key for page in pages for one in page}), 3)

    def test_what_is_not_indexed_is_not_found_by_words_but_got(self):
        self.store.put(("n",), "a", {"text": "Rotterdam", "note": "Antwerp"}, index=False)
        self.store.put(("n",), "b", {"text": "Rotterdam", "note": "Antwerp"}, index=["note"])
        # The others of the namespace follow, as in LangGraph's own store.
        self.assertEqual([one.key for one in self.store.search(("n",), query="Antwerp")],
                         ["b", "a"])
        self.assertNotIn("Rotterdam", [one.content for one in self.memory.list()])
        self.assertEqual(self.store.get(("n",), "a").value["text"], "Rotterdam")

    def test_namespaces_are_listed(self):
        for namespace in (("a", "b", "c"), ("a", "b", "d"), ("a", "x"), ("z", "c")):
            self.store.put(namespace, "k", {"text": "/".join(namespace)})
        self.assertEqual(len(self.store.list_namespaces()), 4)
        self.assertEqual(self.store.list_namespaces(prefix=("a",), max_depth=2),
                         [("a", "b"), ("a", "x")])
        self.assertEqual(self.store.list_namespaces(suffix=("c",)), [("a", "b", "c"), ("z", "c")])
        self.assertEqual(self.store.list_namespaces(prefix=("a", "*", "c")), [("a", "b", "c")])
        self.assertEqual(len(self.store.list_namespaces(limit=1, offset=3)), 1)

    def test_a_time_to_live_ends_and_a_get_starts_it_anew(self):
        self.store.put(("n",), "a", {"text": "the gate is open"}, ttl=10)
        self.now += timedelta(minutes=8)
        self.assertIsNotNone(self.store.get(("n",), "a"))
        self.now += timedelta(minutes=8)
        self.assertIsNotNone(self.store.get(("n",), "a", refresh_ttl=False))
        self.now += timedelta(minutes=8)
        self.assertIsNone(self.store.get(("n",), "a"))
        self.assertEqual(self.store.search(("n",), query="gate"), [])
        self.assertEqual(self.store.list_namespaces(), [])

    def test_batches_and_async(self):
        async def work():
            await self.store.aput(("n",), "a", {"text": "the pilot is Kim"})
            got = await self.store.aget(("n",), "a")
            found = await self.store.asearch(("n",), query="pilot")
            await self.store.adelete(("n",), "a")
            return got.value["text"], len(found), await self.store.aget(("n",), "a")
        self.assertEqual(asyncio.run(work()), ("the pilot is Kim", 1, None))

    def test_a_secret_is_hidden_in_text_and_value_and_survives_nowhere(self):
        secret = a_secret()
        self.store.put(("n",), "a", {"text": f"the api key is {secret}", "list": [{"k": secret}]})
        self.assertNotIn(secret, str(self.store.get(("n",), "a").value))
        self.memory.close()
        self.assertEqual(self.grep(secret), [])

    def test_it_stays_after_prune_and_is_seen_by_other_surfaces(self):
        self.store.put(("n",), "a", {"text": "the harbour master is Olga"})
        self.now += timedelta(days=20)
        self.memory.prune()
        self.assertIsNotNone(self.store.get(("n",), "a"))
        self.assertIn("Olga", self.memory.recall("harbour master")[0].content)


class LangGraphOnTheArchive(LangGraph):
    backend = "archive"


@unittest.skipUnless(HAS["langchain_core"], "needs the package langchain-core")
class LangChain(OnAMemory):
    def test_a_retriever_gives_documents(self):
        from hermes_ext.agents.adapters.langchain import HermesRetriever
        made = self.memory.remember("the harbour master is Olga", tags=["port"], agent="ops").id
        self.memory.remember("the ferry leaves at nine")
        retriever = HermesRetriever(memory=self.memory, k=1)
        found = retriever.invoke("who is harbour master")
        self.assertEqual([(one.id, one.page_content) for one in found],
                         [(made, "the harbour master is Olga")])
        self.assertEqual((found[0].metadata["agent"], found[0].metadata["room"]),
                         ("ops", "events"))
        self.assertEqual(len(asyncio.run(retriever.ainvoke("ferry"))), 1)
        self.assertEqual(retriever.invoke(" "), [])
        narrow = HermesRetriever(memory=self.memory, tags=("port",))
        self.assertEqual([one.id for one in narrow.invoke("ferry harbour")], [made])


@unittest.skipUnless(HAS["agents"], "needs the package openai-agents")
class OpenAIAgents(OnAMemory):
    def session(self, name: str = "customer-7"):
        from hermes_ext.agents.adapters.openai_agents import HermesSession
        return HermesSession(name, self.memory)

    def test_the_history_is_in_order_and_of_its_session(self):
        from agents.memory import Session
        session, other = self.session(), self.session("other")
        self.assertIsInstance(session, Session)
        items = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello"},
                 {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c1"},
                 {"type": "function_call_output", "call_id": "c1", "output": "fine"},
                 {"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]

        async def work():
            await session.add_items(items[:2])
            await session.add_items(items[2:])
            await other.add_items(items[:1])
            self.assertEqual(await session.get_items(), items)
            self.assertEqual(await session.get_items(2), items[-2:])
            self.assertEqual(await session.get_items(0), [])
            self.assertEqual(await session.pop_item(), items[-1])
            await session.add_items([items[-1]])
            self.assertEqual(await session.get_items(), items)
            await session.clear_session()
            self.assertEqual(await session.get_items(), [])
            self.assertIsNone(await session.pop_item())
            self.assertEqual(await other.get_items(), items[:1])
        asyncio.run(work())
        self.memory.close()
        self.memory = self.open()
        self.assertEqual(asyncio.run(self.session("other").get_items()), items[:1])

    def test_a_runner_of_the_sdk_uses_it(self):
        from agents import Agent, ModelResponse, RunConfig, Runner, Usage
        from agents.models.interface import Model
        from openai.types.responses import ResponseOutputMessage, ResponseOutputText
        given: list[object] = []

        class Fake(Model):
            async def get_response(self, system_instructions, input, *more, **named):
                given.append(input)
                text = ResponseOutputText(text="noted", type="output_text", annotations=[])
                return ModelResponse(output=[ResponseOutputMessage(
                    id="m", content=[text], role="assistant", status="completed", type="message")],
                    usage=Usage(), response_id=None)

            def stream_response(self, *more, **named):
                raise NotImplementedError

        async def work():
            agent = Agent(name="a", model=Fake())
            config = RunConfig(tracing_disabled=True)
            session = self.session()
            await Runner.run(agent, "My boat is red", session=session, run_config=config)
            await Runner.run(agent, "What colour is it?", session=session, run_config=config)
        asyncio.run(work())
        self.assertIn("My boat is red", str(given[1]))
        self.assertIn("My boat is red", [hit.content for hit in self.memory.recall("boat colour")])


@unittest.skipUnless(HAS["llama_index"], "needs the package llama-index-core")
class LlamaIndex(OnAMemory):
    def test_the_block_finds_and_keeps(self):
        from llama_index.core.base.llms.types import ChatMessage
        from llama_index.core.memory import Memory

        from hermes_ext.agents.adapters.llama_index import HermesMemoryBlock
        self.memory.remember("the harbour master is Olga")
        block = HermesMemoryBlock(memory=self.memory)

        async def work():
            memory = Memory.from_defaults(session_id="s", memory_blocks=[block], token_limit=60,
                                          chat_history_token_ratio=0.2, token_flush_size=10)
            await memory.aput_messages([
                ChatMessage(role="user", content="We decided to use PostgreSQL 16 for billing."),
                ChatMessage(role="assistant", content="Noted. " + "Fine. " * 40),
                ChatMessage(role="user", content="Who is the harbour master?")])
            return await memory.aget()
        given = str(asyncio.run(work()))
        self.assertIn("the harbour master is Olga", given)
        self.assertIn("Quoted from notes", given)
        kept = [one for one in self.memory.list() if "PostgreSQL" in one.content]
        self.assertEqual([one.agent for one in kept], ["llama-index"])


if __name__ == "__main__":
    unittest.main()

"""The archive keeps the promises of the store of files, and gives the same answers."""
from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest import mock

HOME = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HOME)]

import hermes_lite as core                                                        # noqa: E402
from hermes_lite import (ConfigError, FileStore, HermesLite, LocalHashVectorizer,  # noqa: E402
                         Locked, Memory, NotFound, Refused, StorageError, UsageError)
from hermes_ext import archive, archive_search                                    # noqa: E402
from hermes_ext.archive import FILE, ArchiveStore                                 # noqa: E402

START = datetime(2026, 8, 17, 3, 31, 6, tzinfo=timezone.utc)
NAMES = "Redis PostgreSQL Kafka Grafana Anna 张三 李四 Müller".split()
THINGS = "database gateway 合同 预算 服务器 server report 报表 Rechnung Suche invoice cache".split()
VERBS = "uses needs 使用 需要 checks 检查 braucht drops 放弃 meets replaces".split()
TAGS = ("contract", "合同", "Client_Zhang", "alert")


class Case(unittest.TestCase):
    """A folder of its own; no key and no network."""

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="archive"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.now = START
        cleared = {name: "" for name in os.environ if name.endswith("_API_KEY")}
        patch = mock.patch.dict(os.environ, {
            **cleared, "HERMES_VECTOR_BACKEND": "local", "HERMES_RERANK": "off",
            "HERMES_ENCRYPT": ""})
        patch.start()
        self.addCleanup(patch.stop)

    def clock(self) -> datetime:
        return self.now

    def small(self, *, block: int = 64, small: int = 16, tail: int = 10, bulk: int = 40) -> None:
        """Make blocks small, so that a few texts fill several."""
        for module, name, value in ((archive_search, "BLOCK", block),
                                    (archive_search, "SMALL", small),
                                    (archive_search, "_BULK", bulk), (archive, "TAIL", tail)):
            patch = mock.patch.object(module, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def archive(self, name: str = "a", **config: object) -> ArchiveStore:
        root = self.folder / name
        store = ArchiveStore(root, self.config(root, **config), clock=self.clock)
        self.addCleanup(store.close)
        return store

    def files(self, name: str = "f", **config: object) -> FileStore:
        root = self.folder / name
        return FileStore(root, self.config(root, **config), clock=self.clock)

    def config(self, root: Path, **more: object) -> core.Config:
        return core.Config({"retrieval": more}, environ={})

    def memory(self, name: str = "a") -> HermesLite:
        root = self.folder / name
        memory = HermesLite(root, store=self.archive(name), clock=self.clock)
        self.addCleanup(memory.close)
        return memory


def sentence(draw: random.Random) -> str:
    """Return a short text; many are near another, and some the same."""
    words = [draw.choice(NAMES), draw.choice(VERBS), draw.choice(THINGS)]
    if draw.random() < 0.7:
        words += [draw.choice(VERBS), draw.choice(THINGS), str(draw.randrange(40))]
    if draw.random() < 0.2:
        words += [draw.choice(THINGS) for _ in range(draw.randrange(30))]
    if draw.random() < 0.1:
        words.insert(0, "user:")
    if draw.random() < 0.1:
        words.append(f"CT2024-{draw.randrange(9000):04}")
    return ("" if draw.random() < 0.3 else " ").join(words)


class TestContract(Case):
    """The same operations on both stores give the same answers."""

    def run_seed(self, seed: int, steps: int, *, changing: bool, **config: object) -> None:
        draw = random.Random(seed)
        stores = [self.files(f"f{seed}", **config), self.archive(f"a{seed}", **config)]
        known: list[str] = []
        for step in range(steps):
            self.now += timedelta(seconds=draw.randrange(5000))
            self.change(stores, known, draw, changing)
            if draw.random() < 0.2:
                self.compare(stores, known, draw)
            if draw.random() < 0.03:
                for store in stores:
                    store.close()
                stores = [self.files(f"f{seed}", **config), self.archive(f"a{seed}", **config)]
                for store in stores:
                    store.refresh()
        self.compare(stores, known, draw)
        self.assertEqual([m.entry() for m in stores[0]], [m.entry() for m in stores[1]])

    def change(self, stores: list, known: list[str], draw: random.Random, changing: bool) -> None:
        """Do a few random writes in one transaction, the same to both."""
        kinds = ("put", "put", "put", "touch", *(("text", "remove", "meta") if changing else ()))
        ops = []
        for _ in range(draw.randint(1, 4)):
            kind = draw.choice(kinds) if known else "put"
            if kind == "put":
                new = Memory(f"mem_{draw.randrange(10**9)}", sentence(draw), created_at=core.iso(
                    self.now), source=draw.choice((None, "a.log", "b.log", "李.md")),
                    tags=tuple(draw.sample(TAGS, draw.randrange(3))))
                known.append(new.id)
                ops.append(("put", new))
            elif kind == "remove":
                gone = known.pop(draw.randrange(len(known)))
                ops.append(("remove", gone, draw.choice(("forgotten", None)), sentence(draw)))
            elif kind == "touch":
                ops.append(("touch", draw.choices(known, k=3)))
            else:
                ops.append((kind, draw.choice(known), sentence(draw), draw.sample(TAGS, 1)))
        for store in stores:
            with store.transaction():
                for op in ops:
                    self.apply(store, *op)

    def apply(self, store: object, kind: str, subject: object, *more: object) -> None:
        if kind == "put":
            store.put(subject)
        elif kind == "remove":
            store.remove(subject, why=more[0], also=[more[1]])
        elif kind == "touch":
            store.touch(subject, self.now)
        elif kind == "text":
            store.put(replace(store.get(subject), content=more[0]))
        else:
            store.put(replace(store.get(subject), importance=9, tags=tuple(more[1])))

    def compare(self, stores: list, known: list[str], draw: random.Random) -> None:
        """Ask both the same questions."""
        query, text, some = sentence(draw), sentence(draw), set(known[::2])
        vectorizer = LocalHashVectorizer()
        vector = vectorizer.embed_query(query)
        piece = text[2:2 + draw.randrange(1, 9)]
        asks = [
            lambda s: s.search_words(query, 7, accept=None),
            lambda s: s.search_words(query, 50, accept=None),
            lambda s: s.search_words(draw_name, 5, accept=some.__contains__),
            lambda s: s.search_vectors(vectorizer, vector, 9, accept=None),
            lambda s: s.search_vectors(vectorizer, vector, 3, accept=some.__contains__),
            lambda s: s.twin(text), lambda s: s.twin(text, accept=some.__contains__),
            lambda s: s.rivals(text), lambda s: s.rivals(f"{query}. {text}"),
            lambda s: s.graph().top(9), lambda s: s.graph().memories("redis"),
            lambda s: s.tagged(["contract"]), lambda s: s.tagged(["CLIENT_zhang", "合同"]),
            lambda s: s.containing(piece), lambda s: s.containing("2024-"),
            lambda s: len(s), lambda s: [*s.ids()],
            lambda s: [s.is_taken(i) for i in known[:5] + ["other"]],
            lambda s: s.forgotten(text), lambda s: known and s.get(known[-1]).entry(),
            lambda s: s.missing_vectors(vectorizer),
            lambda s: s.ceiling(query), lambda s: s.ceiling("Grafanna databse 合同"),
            lambda s: s.search_words("Grafanna serveer", 5, accept=None),
            lambda s: s.made_between(START, START + (self.now - START) / 2)]
        draw_name = draw.choice(NAMES)
        for store in stores:
            store.refresh()
        for number, ask in enumerate(asks):
            files, table = ask(stores[0]), ask(stores[1])
            if number < 5:                         # (id, score)
                self.assertEqual([i for i, _ in files], [i for i, _ in table], (number, query))
                for (_, one), (_, two) in zip(files, table):
                    self.assertAlmostEqual(one, two, delta=1e-9)
            else:
                self.assertEqual(files, table, (number, query, text, piece))

    def test_the_same_answers_with_texts_that_change_and_go(self) -> None:
        self.small()
        for seed in range(4):
            with self.subTest(seed=seed):
                self.run_seed(seed, 60, changing=True, neighbours=0.0, source_share=0.0,
                              speaker=0.0)

    def test_the_same_ranking_by_what_stands_beside(self) -> None:
        self.small()
        for seed in range(10, 13):
            with self.subTest(seed=seed):
                self.run_seed(seed, 60, changing=False)

    def test_the_same_answers_with_the_real_sizes(self) -> None:
        self.run_seed(20, 40, changing=True, neighbours=0.0, source_share=0.0,
                              speaker=0.0)


if __name__ == "__main__":
    unittest.main()

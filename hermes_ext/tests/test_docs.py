"""What the documents say is what the program does.

docs/formats.md names every file that a data root ever holds, and no other. A scenario makes them
all: each store, each system, encryption, cold storage, sync, rules, audit, backups, damage, moves.
docs/extensions.md holds an extension, which is run here as it stands there.
"""
import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import auto_sediment
from hermes_ext import shell
from hermes_ext.archive import cold
from hermes_ext.brain.cycle import cycle
from hermes_ext.tests.base import HAS_CRYPTO, HOME, core, setUpModule, word
from hermes_lite import HermesLite, RemoteError

HAS_RUAMEL = (importlib.util.find_spec("ruamel") is not None
              and importlib.util.find_spec("ruamel.yaml") is not None)
FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None


# -- what is written -----------------------------------------------------------

class Names:
    """The name of every file below a folder that this process has opened for writing or renamed."""
    watched: "list[Names]" = []

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.found: set[str] = set()
        Names.watched.append(self)

    def note(self, path: object) -> None:
        if not isinstance(path, (str, os.PathLike)):       # a file descriptor
            return
        path = os.path.abspath(os.fspath(path))
        if path.startswith(self.folder + os.sep):
            self.found.add(os.path.relpath(path, self.folder))

    def look(self) -> None:
        """Note what lies there: SQLite opens its files unseen."""
        for path in Path(self.folder).rglob("*"):
            if not path.is_dir():
                self.note(path)

    def close(self) -> None:
        self.look()
        Names.watched.remove(self)


def watch(event: str, arguments: tuple) -> None:
    """Tell each Names of a path. An audit hook stays for ever, so it does nothing without one."""
    for names in Names.watched:
        if event == "os.rename":
            names.note(arguments[1])
        elif event == "open" and isinstance(arguments[2], int) and (
                arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            names.note(arguments[0])


class Far:
    """A vectorizer that stands for a remote service, with vectors large enough for vectors.f32."""
    name, model, dimension, threshold, remote = "far", "m", 16_384, 0.1, True
    is_down = False

    def embed(self, texts):
        if self.is_down:
            raise RemoteError("the service is down")
        return [[float(1 + len(text) % 7)] * self.dimension for text in texts]

    def embed_query(self, text):
        return self.embed([text])[0]


class Scenario:
    """The life of one data root with every system on; its steps may be taken in any order."""

    def __init__(self, home: Path, store: str) -> None:
        self.home, self.root, self.store = home, home / store, store
        self.shared = home / f"{store}-shared"
        self.root.mkdir()
        self.shared.mkdir()
        self.names, self.sync_names = Names(self.root), Names(self.shared)
        self.now = core.utc_now()
        self.environ = {"HERMES_VECTOR_BACKEND": "local", "HOME": str(home)}

    def close(self) -> None:
        self.names.close()
        self.sync_names.close()

    def run(self, *words: str, main=core.main, codes: tuple = (0,)) -> None:
        """Run a command in this process."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with mock.patch.multiple(sys, stdout=out, stderr=err, stdin=io.StringIO()), (
                mock.patch.dict(os.environ, self.environ)):
            code = main(["--root", str(self.root), *words])
        err.flush()
        if code not in codes:
            raise AssertionError(f"{words}: exit code {code}, {err.buffer.getvalue().decode()}")
        self.names.look()

    @contextlib.contextmanager
    def open(self, *, days: float = 0, **more) -> Iterator[HermesLite]:
        when = self.now + timedelta(days=days)
        config = core.load_config(self.root, environ=self.environ)
        with HermesLite(self.root, config=config, clock=lambda: when, **more) as memory:
            yield memory
        self.names.look()

    def configure(self, *, lanes: bool = False, **more) -> None:
        """Switch everything on; the lanes, which say how long a memory stays, on demand."""
        due = {"when": {"tag": "due"}, "append": "deadlines.ics"}
        asked = {"when": {"anchor": "contract_id", "recalled_more_than": 1, "per": "day"},
                 "append": "due.md"}
        signed = {"when": {"anchor": "status", "to": "signed"}, "append": "due.md"}
        systems = {"salience": {}, "anchors": {}, "prompt": {}, "audit": {"max_bytes": 3000},
                   "brain": {},
                   "cold": {"daily": True},
                   "rules": {"due": due, "asked": asked, "signed": signed}}
        if self.store == "archive":
            systems["buffer"] = {}
        if lanes:
            systems["lanes"] = {}
        (self.root / "config.yaml").write_text(json.dumps({
            "storage": {"backend": self.store}, "security": {"personal_numbers": "hash"},
            "systems": systems, **more}))

    # -- steps --

    def use(self) -> None:
        self.configure()
        self.run("init")
        with self.open() as memory:
            memory.remember("合同 CT2024-0876 状态: draft", tags=["due"])
            memory.remember("his card is 4111 1111 1111 1111")
            memory.remember("the lamp in the hall is broken")
            memory.forget(memory.remember("a note that goes away").id)
            for _ in range(3):
                memory.recall("CT2024-0876")
            memory.graph()
        with self.open(days=9) as memory:
            memory.prune(all_of_them=True)
            memory.remember("合同 CT2024-0876 状态: signed", tags=["due"])
            memory.remember("a low note about the attic", importance=1)
            newest = memory.list()[0].id
        self.run("pin", newest)
        with self.open(days=11) as memory:
            memory.remember("the first write of a later day moves what has faded")
            cold.freeze(memory, below=2, older_than=0.5)
        self.run("sync", str(self.shared))
        self.run("report")
        self.run("backup")
        self.run("scrub", "--yes")
        self.run("reindex")
        self.run("rules", "retry")

    def keep_a_snapshot(self) -> None:
        self.configure(lanes=True)
        self.run("lanes", "add", "The ferry costs four euros")
        self.run("snapshot", "--label", "before")
        self.run("inject", "--message", "What does the ferry cost?", "--session", "s1")
        self.configure()

    def run_the_brain(self) -> None:
        """Use a memory, and let what is weak fall asleep and wake up again."""
        self.run("brain", "cycle")
        self.run("recall", "lamp")
        with self.open(days=60) as memory:
            cycle(memory)
        self.run("undo")

    def show_a_large_prune(self) -> None:
        with self.open(days=-30) as memory, memory.batch():
            for _ in range(30):
                memory.remember(f"{word()} {word()} {word()}")
        self.run("prune", "--dry-run")

    def write_a_note(self) -> None:
        (self.root / "store" / "by hand.md").write_text("The ferry leaves at nine\n")
        self.run("vault", "sync", "--yes")

    def type_at_a_terminal(self) -> None:
        with self.open() as memory, mock.patch("sys.stdin", io.StringIO("version\n")), (
                contextlib.redirect_stdout(io.StringIO())), (
                contextlib.redirect_stderr(io.StringIO())):
            sys.stdin.isatty = lambda: True
            shell.shell(memory)

    def digest_a_session(self) -> None:
        rows = [{"type": "session", "id": "s-1", "version": 4},
                {"type": "user/message", "id": "m-1", "data": {
                    "content": "We decided to use NATS for the queue"}}]
        log = self.home / "session.jsonl"
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.run("--session", str(log), "--apply", main=auto_sediment.main)
        message = {"role": "user", "content": "We decided to use Kafka for the log"}
        log.write_text(json.dumps({"type": "user", "message": message, "sessionId": "s-2"}))
        self.run("--session", str(log), "--from", "auto", "--apply", main=auto_sediment.main)
        self.run("private", "on", "--session", "s-3")

    def wait_for_the_lock(self) -> None:
        """Let a second writer queue behind a first one."""
        with self.open() as first, self.open() as second:
            with first.store.transaction():
                writer = threading.Thread(target=second.remember, args=("it had to wait",))
                writer.start()
                while not any(self.root.glob(".lock.queue/*")):
                    time.sleep(0.001)
            writer.join()

    def restore(self) -> None:
        backup = max(self.root.glob("backups/manual_*.tar.gz"))
        (self.root / "config.yaml").unlink()
        self.run("restore", str(backup), "--yes")
        self.configure()

    def use_a_service(self) -> None:
        """Make a few vectors, then many; then the service fails and is tried again."""
        service = Far()
        for count in (1, 20):
            with self.open(vectorizer=service) as memory:
                memory.breaker.reset()
                for _ in range(count):
                    memory.remember(f"{word()} {word()}")
        service.is_down = True
        self.configure(vectors={"cooldown_seconds": 0.001, "close_seconds": 0.0})
        for _ in range(2):
            with self.open(vectorizer=service) as memory:
                memory.recall("queue")
        self.configure()

    def be_damaged(self) -> None:
        """Damage files that repair can restore, and repair them."""
        index = self.root / "index.json"
        rows = json.loads(index.read_bytes())
        index.write_text(json.dumps([*rows, {"id": 7}]))
        self.run("remember", "an entry was of no use")
        index.write_bytes(index.read_bytes()[:-40])
        self.run("list")
        index.write_text(json.dumps(json.loads(index.read_bytes())[:-1]))
        self.run("repair", "--accept-loss", "--yes")
        for name in ("tombstones.json", "graph.json", "vectors.json", "vectors.f32",
                     ".search/index.bin"):
            (self.root / name).write_text("no such thing")
        with self.open(vectorizer=Far()) as memory:
            memory.recall("gateway")
            memory.graph()

    def be_encrypted(self) -> dict[str, bool]:
        """Encrypt, use and rotate; return which files are sealed; then go back."""
        self.run("encrypt", "on")
        self.environ["HERMES_ENCRYPT"] = "on"
        self.run("remember", "a sealed note about the harbour", "--tags", "due")
        self.run("encrypt", "rotate")
        self.use_a_service()
        with self.open() as memory:                # a read leaves a journal
            memory.recall("harbour")
            sealed = {name: core.is_ciphertext(self._inside(self.root / name))
                      for name in self.names.found if (self.root / name).is_file()}
        del self.environ["HERMES_ENCRYPT"]
        self.run("encrypt", "off")
        return sealed

    @staticmethod
    def _inside(path: Path) -> bytes:
        data = path.read_bytes()
        return data[9:] if path.suffix == ".journal" else data

    def set(self) -> None:
        self.run("config", "set", "retrieval.default_top_k", "4")

    def move(self, to: str) -> None:
        self.store = to
        self.configure()
        self.run("migrate", "--to", to)

    def lose_half_of_an_archive(self) -> None:
        file = self.root / "memory_archive.db"
        os.truncate(file, file.stat().st_size // 2)
        self.run("remember", "the archive was rescued")


# -- what the document says ------------------------------------------------------

STAND_INS = {"ID": r"mem_\d{8}_\d{6}_[0-9a-f]+", "DAY": r"\d{8}", "STAMP": r"\d{8}_\d{6}(?:-\d+)?",
             "N": r"\d+", "HEX": "[0-9a-f]+", "DEVICE": "[0-9a-f]{12}", "HOST": "[a-z_]+",
             "PID": r"\d+", "ROOM": r"\w+", "NAME": "[^/]+"}


class Row:
    """A row of a table: patterns of names, and its other cells under the table's heads."""

    def __init__(self, names: str, cells: dict[str, str]) -> None:
        self.cells = cells
        anywhere = "(?:.*/)?" if "in any folder" in names else ""
        self.names = re.findall("`(.+?)`", names)
        self.patterns = [re.compile(anywhere + self._pattern(name)) for name in self.names]

    @staticmethod
    def _pattern(name: str) -> str:
        parts = re.split(r"(?<![A-Z])([A-Z]+)(?![A-Z])", name)
        return "".join(STAND_INS.get(part) or re.escape(part) for part in parts)

    def fits(self, name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in self.patterns)


def rows_of(path: Path) -> list[Row]:
    """Return the rows whose first cell has a name in it."""
    rows, heads = [], []
    for line in path.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0] == "name":
            heads = cells
        elif cells and "`" in cells[0]:
            rows.append(Row(cells[0], dict(zip(heads, cells))))
    return rows


TEMPORARY = re.compile(r"((?:.*/)?)\.(.+)\.\d+\.[0-9a-f]{8}\.tmp")
DAMAGED = re.compile(r"(.*)\.damaged-\d{8}_\d{6}(-\d+)?")


def bare(name: str) -> str:
    """Return the name of the file that a temporary or damaged one is, or would become."""
    if found := TEMPORARY.fullmatch(name):
        return bare(found[1] + found[2])
    if found := DAMAGED.fullmatch(name):
        return bare(found[1])
    return name


class TestFormats(unittest.TestCase):
    """docs/formats.md against the files of a root on each store."""

    @classmethod
    def setUpClass(cls) -> None:
        sys.addaudithook(watch)
        home = Path(tempfile.mkdtemp(dir=FAST))
        cls.addClassCleanup(shutil.rmtree, home, True)
        cls.sealed: dict[str, bool] = {}
        files, archive = Scenario(home, "files"), Scenario(home, "archive")
        for scenario in (files, archive):
            scenario.use()
            scenario.keep_a_snapshot()
            scenario.run_the_brain()
            scenario.show_a_large_prune()
            scenario.type_at_a_terminal()
            scenario.digest_a_session()
            scenario.wait_for_the_lock()
            scenario.restore()
            scenario.use_a_service()
            if HAS_RUAMEL:
                scenario.set()
        files.write_a_note()
        files.be_damaged()
        if HAS_CRYPTO:
            cls.sealed = files.be_encrypted()
        archive.lose_half_of_an_archive()
        files.move("archive")
        files.move("files")
        cls.found = files.names.found | archive.names.found
        cls.found |= {f"SHARED/{name}" for each in (files, archive)
                      for name in each.sync_names.found}
        for scenario in (files, archive):
            scenario.close()
        cls.rows = rows_of(HOME / "docs" / "formats.md")

    def row(self, name: str) -> Row | None:
        """Return the row of a name; of several the one that leaves the least of it open."""
        fitting = [row for row in self.rows if row.fits(name)]
        return min(fitting, key=lambda row: row.names[0].count("NAME"), default=None)

    def test_every_file_that_appears_is_in_the_document(self) -> None:
        names = self.found | {bare(name) for name in self.found}
        self.assertGreater(len(names), 80)
        self.assertEqual(sorted(name for name in names if self.row(name) is None), [])

    @unittest.skipUnless(HAS_CRYPTO and HAS_RUAMEL, "needs cryptography and ruamel.yaml")
    def test_every_row_of_the_document_is_a_file_that_appears(self) -> None:
        named_best = {id(self.row(name)) for name in self.found}
        self.assertEqual([row.names for row in self.rows if id(row) not in named_best], [])

    @unittest.skipUnless(HAS_CRYPTO, "needs cryptography")
    def test_what_the_document_calls_sealed_is_encrypted_and_nothing_else_is(self) -> None:
        wrong = []
        for name, is_sealed in self.sealed.items():
            said = self.row(name).cells.get("sealed", "no")
            if said in ("yes", "no") and (said == "yes") != is_sealed:
                wrong.append(f"{name}: {said} in the document, {is_sealed} on the disk")
        self.assertEqual(wrong, [])
        self.assertLessEqual({"index.json", "index.journal", "vectors.json", "vectors.f32",
                              "tombstones.json"}, self.sealed.keys())


# -- the guide for extensions ------------------------------------------------------

def blocks(document: str, language: str) -> list[str]:
    """Return the code blocks of a document that are marked with this language."""
    text = (HOME / document).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


class TestExtensions(unittest.TestCase):
    """The example of docs/extensions.md, put where it says and used as it shows."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.home = Path(tempfile.mkdtemp(dir=FAST))
        cls.addClassCleanup(shutil.rmtree, cls.home, True)
        cls.module, cls.line, cls.library = blocks("docs/extensions.md", "python")
        shutil.copy(HOME / "hermes_lite.py", cls.home)
        shutil.copytree(HOME / "hermes_ext", cls.home / "hermes_ext",
                        ignore=shutil.ignore_patterns("tests", "__pycache__"))
        (cls.home / "hermes_ext" / "owners.py").write_text(cls.module, "utf-8")
        contents = cls.home / "hermes_ext" / "__init__.py"
        before, _, after = contents.read_text("utf-8").rpartition("\n}\n")    # the end of CONTENTS
        contents.write_text(f"{before}\n{cls.line}}}\n{after}", "utf-8")
        cls.root = cls.home / "root"
        cls.root.mkdir()
        settings, = blocks("docs/extensions.md", "yaml")
        with contextlib.suppress(ImportError):
            import yaml
            settings = json.dumps(yaml.safe_load(settings))
        (cls.root / "config.yaml").write_text(settings)

    def run_it(self, command: str) -> str:
        """Run a line as it stands in the document; return what a person sees."""
        words = [sys.executable, str(self.home / "hermes_lite.py"), "--root", str(self.root)]
        done = subprocess.run(
            [*words, *shlex.split(command.removeprefix("hermes-lite "))], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env={"PATH": os.defpath, "HERMES_VECTOR_BACKEND": "local"})
        return done.stdout

    def hold(self, shown: str, seen: str) -> None:
        """Compare output with the document, where ID is any id and … the rest of a line."""
        pattern = re.escape(shown).replace("ID", STAND_INS["ID"]).replace("…", ".*")
        self.assertRegex(seen, rf"\A{pattern}\Z")

    @unittest.skipUnless(importlib.util.find_spec("yaml"), "needs PyYAML")
    def test_the_example_does_what_the_document_shows(self) -> None:
        session, = blocks("docs/extensions.md", "console")
        commands = session.split("$ ")[1:]
        self.assertGreaterEqual(len(commands), 4)
        for part in commands:
            command, _, shown = part.partition("\n")
            with self.subTest(command=command):
                self.hold(shown, self.run_it(command))
        owned = json.loads(self.run_it("hermes-lite owners wei --json"))
        self.assertEqual(owned, [])
        self.assertIn("owners", self.run_it("hermes-lite --help"))

    def test_an_extension_is_handed_over_in_the_library(self) -> None:
        out = io.StringIO()
        source = self.library.replace("/path/to/data", str(self.home / "other"))
        with contextlib.redirect_stdout(out), (
                mock.patch.dict(os.environ, {"HERMES_VECTOR_BACKEND": "local"})):
            exec(compile(source, "docs/extensions.md", "exec"), {"__name__": "example"})
        self.assertEqual(out.getvalue(), "kept: The ferry leaves at nine\n")

    def test_the_document_lists_every_method_that_the_core_calls(self) -> None:
        text = (HOME / "docs" / "extensions.md").read_text("utf-8")
        listed = set(re.findall(r"`(\w+)\([^)`]*\)`", text.split("## A whole one")[0]))
        named = set(re.findall(r"`(\w+)\(", core.Extension.__doc__))
        self.assertEqual(named - listed, set())


@unittest.skipUnless(importlib.util.find_spec("yaml"), "needs PyYAML")
class TestBrain(unittest.TestCase):
    """Every command that docs/brain.md shows, in order, on one root."""

    def test_the_commands_print_what_the_document_shows(self) -> None:
        root = Path(tempfile.mkdtemp(dir=FAST))
        self.addCleanup(shutil.rmtree, root)
        (root / "config.yaml").write_text("systems: {brain: {}}")
        parts = "".join(blocks("docs/brain.md", "console")).split("$ ")[1:]
        self.assertGreaterEqual(len(parts), 12)
        for part in parts:
            command, _, shown = part.partition("\n")
            done = subprocess.run(
                [sys.executable, HOME / "hermes_lite.py", "--root", root,
                 *shlex.split(command)[1:]], capture_output=True, stdin=subprocess.DEVNULL,
                env={"PATH": os.defpath, "HERMES_VECTOR_BACKEND": "local"}, encoding="utf-8")
            pattern = re.escape(shown).replace("ID", STAND_INS["ID"])
            pattern = re.sub(r"(?m)^(?:\\ )*…\n", r"(?:.*\\n)+", pattern.replace("\\\n", "\n"))
            with self.subTest(command=command):
                self.assertEqual(done.returncode, 0)
                self.assertRegex(done.stderr, r"\A(?:hermes-lite: nothing found.*\n)?\Z")
                self.assertRegex(done.stdout, rf"\A{pattern}\Z")


class TestReadme(unittest.TestCase):
    """The session that README shows; what else it says is tried by the core's tests."""

    def test_the_session_that_is_shown_is_what_a_person_sees(self) -> None:
        home = Path(tempfile.mkdtemp(dir=FAST))
        self.addCleanup(shutil.rmtree, home)
        session, = blocks("README.md", "console")
        commands = session.split("$ ")[1:]
        self.assertGreaterEqual(len(commands), 5)
        for part in commands:
            command, _, shown = part.partition("\n")
            done = subprocess.run(
                [sys.executable, HOME / "hermes_lite.py", "--root", home / "root",
                 *shlex.split(command)[1:]], capture_output=True, stdin=subprocess.DEVNULL,
                env={"PATH": os.defpath, "HERMES_VECTOR_BACKEND": "local"})
            with self.subTest(command=command):
                seen = (done.stdout + done.stderr).decode("utf-8")
                self.assertEqual(self.without_ids(seen), self.without_ids(shown))

    @staticmethod
    def without_ids(text: str) -> str:
        text = re.sub(STAND_INS["ID"], "ID", text)
        return re.sub(r"\d{4}-\d\d-\d\d", "DAY", text)


if __name__ == "__main__":
    unittest.main()

"""What several test modules share: a root in a temporary folder, and words to look for."""
import contextlib
import hashlib
import importlib.util
import io
import os
import random
import secrets
import shutil
import signal
import statistics
import string
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from unittest import mock

HOME = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME))

import hermes_lite as core
from hermes_lite import HermesLite

HAS_YAML = importlib.util.find_spec("yaml") is not None
HAS_YAML = importlib.util.find_spec("yaml") is not None
HAS_CRYPTO = importlib.util.find_spec("cryptography") is not None
TIMEOUT = 1800         # seconds; only what hangs for good fails by it
NOW = datetime(2026, 8, 17, 12, 0, tzinfo=timezone.utc)


def word(size: int = 14) -> str:
    """Return a random word that stands nowhere else: a marker to grep for."""
    return "q" + "".join(random.choices(string.ascii_lowercase, k=size))


def a_secret() -> str:
    return secrets.token_urlsafe(24).replace("-", "x").replace("_", "y") + "7Qz"


def setUpModule() -> None:
    """Do not wait for the disk: kills are tried here, power cuts are not.

    A test module that imports this name has it.
    """
    real = os.fsync
    os.fsync = lambda handle: None
    unittest.addModuleCleanup(setattr, os, "fsync", real)


def is_killed(act, nth: int) -> bool:
    """Run *act* in a forked child that is killed before its N-th change of a file.

    False where it ended before that; an error in it fails the test. Files are opened for
    writing, renamed and deleted through `os`, so that each point between two writes is met.
    """
    child = os.fork()
    if child == 0:
        try:
            _kill_before(nth)
            act()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return True
    if os.waitstatus_to_exitcode(status):
        raise AssertionError(f"the child that was to be killed at {nth} failed")
    return False


def _kill_before(nth: int) -> None:
    left, real_open = [nth], os.open

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counting(real):
        def call(*arguments, **more):
            count()
            return real(*arguments, **more)
        return call

    def opened(path, flags, *arguments, **more):
        if flags & (os.O_WRONLY | os.O_RDWR) and ".lock" not in os.fspath(path):
            count()
        return real_open(path, flags, *arguments, **more)

    os.open = opened
    for name in ("replace", "rename", "unlink"):
        setattr(os, name, counting(getattr(os, name)))


def ratio_of_pairs(large: Callable[[], object], small: Callable[[], object], *,
                   most: float, tries: int = 40) -> float:
    """Return how many times dearer *large* is than *small*: the median of paired measurements.

    Time of this thread counts, and both of a pair are measured in one go: a busy machine is slow
    for both. No more pairs are measured once the median is at most *most*.
    """
    def seconds(act: Callable[[], object]) -> float:
        begun = time.thread_time()
        act()
        return time.thread_time() - begun
    ratios: list[float] = []
    while len(ratios) < tries and not (ratios and statistics.median(ratios) <= most):
        ratios.append(seconds(large) / seconds(small))
    return statistics.median(ratios)


def run_command(root: object, *words: object, stdin: bytes = b"",
                environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, with streams of its own.

    *environ* is its whole environment. A process for each command costs many times as much;
    test_hermes_lite.py shows that the program started as a script does the same.
    """
    arguments = ["--root", str(root), *map(str, words)]
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    variables = dict(os.environ if environ is None else environ)
    read_zone = getattr(time, "tzset", lambda: None)           # from TZ; Windows has none
    with tempfile.TemporaryFile() as file, io.TextIOWrapper(file, encoding="utf-8") as given:
        file.write(stdin)
        file.seek(0)
        with mock.patch.multiple(sys, stdout=out, stderr=err, stdin=given), \
                mock.patch.dict(os.environ, variables, clear=True):
            read_zone()
            try:
                code = core.main(arguments)
            except SystemExit as ended:            # --help
                code = ended.code or 0
    read_zone()
    for stream in (out, err):
        stream.flush()
    said = (stream.buffer.getvalue().decode() for stream in (out, err))
    return subprocess.CompletedProcess(arguments, code, *said)


class Case(unittest.TestCase):
    """A root in a temporary folder, a clock that a test moves, and a grep over everything."""

    def setUp(self) -> None:
        self.home = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.home)
        self.root, self.now, self.environ = self.home / "root", NOW, {}
        self.hide_the_container()

    def hide_the_container(self) -> None:
        """Let doctor find no container, wherever the tests run; test_survival makes its own."""
        from hermes_ext.maintenance import doctor, survival
        nowhere = survival.Surroundings(self.home / "system", {}, self.home)
        patched = mock.patch.object(doctor, "Surroundings", lambda: nowhere)
        patched.start()
        self.addCleanup(patched.stop)

    def open(self, **environ: str) -> HermesLite:
        """Open the store with these variables only; it is closed at the end of the test."""
        config = core.load_config(self.root, environ={**self.environ, **environ})
        memory = HermesLite(self.root, config=config, clock=lambda: self.now)
        self.addCleanup(memory.close)
        return memory

    def filled(self, *texts: str, **environ: str) -> HermesLite:
        memory = self.open(**environ)
        for text in texts or ("the harbour master is Olga", "the ferry leaves at nine"):
            memory.remember(text)
        return memory

    def fill(self, memory: HermesLite, count: int) -> None:
        """Store so many memories of 25 words each, without what `remember` compares."""
        with memory.store.transaction():
            for number in range(count):
                text = f"lamp {number} " + " ".join(word(8) for _ in range(24))
                memory.store.put(core.Memory(f"mem_20260801_000000_{number:04x}", text,
                                             created_at=core.iso(self.now)))

    def cli(self, *words: str, **environ: str) -> tuple[int, str, str]:
        ran = run_command(self.root, *words, environ={
            "PATH": os.defpath, "HOME": str(self.home), **environ})
        return ran.returncode, ran.stdout, ran.stderr

    def grep(self, needle: str) -> list[str]:
        """Return the files that hold *needle*, in any case; archives are looked into."""
        found = []
        for path in self.root.rglob("*"):
            if path.is_file():
                pieces = [path.read_bytes()]
                with contextlib.suppress(ValueError):
                    pieces += [core.unzipped(data) for _, data in core.read_files(path)]
                if any(needle.lower().encode() in piece.lower() for piece in pieces):
                    found.append(str(path.relative_to(self.root)))
        return sorted(found)

    def prints(self) -> dict[str, str]:
        """Return a checksum of every file but locks."""
        return {str(path.relative_to(self.root)): hashlib.sha256(path.read_bytes()).hexdigest()
                for path in self.root.rglob("*") if path.is_file()
                and not path.name.startswith(".lock")}

    def records(self) -> dict[str, str]:
        """Return a checksum of every file that is not derived from others."""
        derived = (".search", ".state", "vectors.json", "graph.json")
        return {name: print for name, print in self.prints().items()
                if not name.startswith(derived)}

    def states(self, memory: HermesLite) -> dict[str, str]:
        from hermes_ext.maintenance import doctor
        return {check.name: check.state for check in doctor.doctor(memory)}

"""What the tests of the lanes share: a root with every system on, and a person at a terminal."""
import contextlib
import io
import json
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hermes_ext import lanes
from hermes_ext.lanes.origin import Claim, claiming
from hermes_ext.tests.base import Case, core
from hermes_lite import HermesLite, Memory, Remembered


class Terminal(io.StringIO):
    """A stream that a person sits at."""

    def isatty(self) -> bool:
        return True


class LanesCase(Case):
    """A root with lanes, and with anchors, salience, audit and rules beside it."""
    backend = "files"
    settings: dict = {}

    def setUp(self) -> None:
        super().setUp()
        self.configure()

    def configure(self) -> None:
        self.root.mkdir(exist_ok=True)
        systems = {"anchors": {}, "salience": {}, "audit": {}, "rules": {},
                   "lanes": self.settings}
        (self.root / "config.yaml").write_text(json.dumps({
            "systems": systems, "storage": {"backend": self.backend}}))

    def open(self, **environ: str) -> HermesLite:
        self.configure()
        memory = super().open(**environ)
        self.lanes = lanes.find(memory)
        return memory

    def write(self, memory: HermesLite, text: str, lane: "str | None" = None,
              source: "str | None" = None, confidence: "float | None" = None,
              **more: object) -> Remembered:
        with claiming(Claim(lane, source, confidence)):
            return memory.remember(text, **more)

    def authority(self, memory: HermesLite, memory_id: str) -> lanes.authority.Authority:
        return self.lanes.authority(memory.lookup(memory_id))

    # -- the command line ---------------------------------------------------

    def run_command(self, *words: str, answer: str = "", terminal: bool = True,
                    **environ: str) -> "tuple[int, str, str]":
        """Run one command in this process; return its code and what it printed.

        *terminal*: a person types it and answers *answer* when asked.
        """
        out, kind = io.StringIO(), Terminal if terminal else io.StringIO
        errors, answers = kind(), kind(answer + "\n")
        clock = mock.patch.object(core, "utc_now", lambda: self.now)
        opened = mock.patch.object(HermesLite.__init__, "__kwdefaults__", {
            **HermesLite.__init__.__kwdefaults__, "clock": lambda: self.now})
        with clock, opened, mock.patch.dict("os.environ", environ, clear=True), \
                mock.patch("sys.stdin", answers), contextlib.redirect_stdout(out), \
                contextlib.redirect_stderr(errors):
            code = core.main(["--root", str(self.root), *words])
        return code, out.getvalue(), errors.getvalue()

    def command(self, *words: str, answer: str = "", **environ: str) -> str:
        """Run a command that a person types; return what it printed. It has to succeed."""
        code, out, errors = self.run_command(*words, answer=answer, **environ)
        self.assertEqual(code, 0, errors)
        return out

    def result(self, *words: str, answer: str = "", **environ: str) -> object:
        """Run a command that a person types with --json; return what it says."""
        return json.loads(self.command(*words, "--json", answer=answer, **environ))

    def refused(self, *words: str, answer: str = "", terminal: bool = True,
                **environ: str) -> str:
        """Run a command that has to be refused; return the one sentence that it says."""
        code, _, errors = self.run_command(*words, answer=answer, terminal=terminal, **environ)
        self.assertEqual(code, 11, errors)
        return errors

    def kept(self) -> "list[Memory]":
        """Return all memories of the store, as another process sees them."""
        return self.open().matching()


def on_archive(case: type) -> type:
    """Return the same tests over the SQLite archive."""
    return type(f"{case.__name__}OnArchive", (case,), {"backend": "archive"})

"""What the tests of the brain share: a root with every system on, and time that passes."""
import json
from datetime import timedelta

from hermes_ext import brain
from hermes_ext.brain.note import Note, note_of
from hermes_ext.tests.base import core
from hermes_ext.tests.lanes_base import LanesCase
from hermes_lite import HermesLite, Memory


class BrainCase(LanesCase):
    """A root with anchors, salience, audit, rules, lanes and the brain."""
    brain: dict = {}
    beside: dict = {}                  # more systems
    more: dict = {}                    # of config.yaml

    def configure(self) -> None:
        self.root.mkdir(exist_ok=True)
        lanes = {"rebound": {"facts": 1000}, **self.settings}
        systems = {"anchors": {}, "salience": {}, "audit": {}, "rules": {}, "lanes": lanes,
                   "brain": self.brain, **self.beside}
        (self.root / "config.yaml").write_text(json.dumps({
            "systems": systems, "storage": {"backend": self.backend}, **self.more}))

    def open(self, **environ: str) -> HermesLite:
        memory = super().open(**environ)
        self.system = brain.find(memory)
        return memory

    def pass_days(self, days: float) -> None:
        self.now += timedelta(days=days)

    def remember(self, text: str, *words: str) -> str:
        """Remember a text as a person who types it; return the id."""
        return self.result("remember", text, *words)["id"]

    def stored(self, memory_id: str) -> Memory:
        """Return a memory as another process sees it."""
        with core.HermesLite(self.root, clock=lambda: self.now) as memory:
            return memory.lookup(memory_id)

    def note(self, memory_id: str) -> Note:
        return note_of(self.stored(memory_id))

    def found(self, query: str, *words: str) -> "list[str]":
        """Return the ids that a recall finds."""
        return [hit["memory"]["id"] for hit in self.result("recall", query, *words)["hits"]]


def behind_buffer(case: type) -> type:
    """Return the same tests over the SQLite archive behind the short-term buffer."""
    return type(f"{case.__name__}BehindBuffer", (case,), {
        "backend": "archive", "beside": {"buffer": {}}})

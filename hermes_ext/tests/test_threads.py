"""Several threads: whatever an operation does with the store, it holds the memory's lock."""
from __future__ import annotations

import inspect
import traceback
import unittest
from pathlib import Path
from unittest import mock

from hermes_ext import calls
from hermes_ext.tests.base import Case, setUpModule
from hermes_lite import HermesError, HermesLite

SYSTEMS = ("systems: {lanes: {}, brain: {}, anchors: {}, audit: {}, rules: {}, events: {}, "
           "prompt: {}, salience: {}}\n")
ADMIN = calls.Caller("http", "boss", frozenset({"admin"}))

OTHER_VALUES = {
    "lanes": {"action": "list"}, "snippet": {"action": "search"}, "rules": {"action": "check"},
    "track": {"attributes": ["kind=port"]}, "alias": {"alias": "harbor"},
    "relate": {"entity": "Olga", "relation": "runs", "other": "harbour"},
    "learn": {"action": "a", "context": "b", "outcome": "c", "insight": "d"},
    "brain keep": {"summary": "the crane lifts", "abstract": "cranes lift"},
    "archive": {"cold": True}, "consolidate": {"dry_run": True}}

# What needs no lock: files, which have locks of their own, and plain facts.
FREE = {"close", "warm_up"}


class TestLock(Case):
    maxDiff = None
    """Each operation runs once, and every method of the store that it calls is watched."""

    def test_no_operation_touches_a_store_of_files_without_the_lock(self):
        self.run_every_operation("files")

    def test_no_operation_touches_the_archive_without_the_lock(self):
        self.run_every_operation("archive")

    def run_every_operation(self, backend: str) -> None:
        self.root.mkdir()
        (self.root / "config.yaml").write_text(f"storage: {{backend: {backend}}}\n{SYSTEMS}")
        memory = self.open()
        self.touched: set[str] = set()
        operations = calls.operations()
        ids = [self.call(memory, operations["remember"], text=text)["id"] for text in (
            "the harbour master is Olga", "the ferry leaves at nine", "the quay has ten lamps",
            "the lamp of the quay is green", "the crane lifts forty tons")]
        for kind in (type(memory.store), type(memory.store.search)):
            self.watch(memory, kind)
        for name, operation in operations.items():
            values = {"id": ids[0], "ids": ids[:1], "query": "harbour", "concept": "harbour",
                      "text": f"the text of {name}", "message": "harbour", "entity": "Olga",
                      "name": "harbour", "tags": ["none"], "factor": "0.5", "yes": True,
                      **OTHER_VALUES.get(name, {})}
            if name == "forget":
                values = {"id": ids[1], "reason": "gone"}
            known = {param.name for param in operation.params if param.kind is not Path}
            known |= {"yes"} if operation.destructive else set()
            given = {key: value for key, value in values.items() if key in known}
            self.call(memory, operation, **given)
        self.assertEqual("\n".join(sorted(self.touched)), "")

    def call(self, memory: HermesLite, operation, **arguments):
        try:
            return calls.call(memory, operation, arguments, ADMIN).result
        except HermesError:                        # arguments that do not fit are none of ours
            return {}

    def watch(self, memory: HermesLite, kind: type) -> None:
        """Note the places that call a public method of *kind* while they hold no lock."""
        for name in dir(kind):
            method = inspect.getattr_static(kind, name)
            is_public = name == "__iter__" or not name.startswith("_")
            if not is_public or name in FREE or not inspect.isfunction(method):
                continue
            patched = mock.patch.object(kind, name, self.watched(memory, method))
            patched.start()
            self.addCleanup(patched.stop)

    def watched(self, memory: HermesLite, method):
        def call(*arguments, **more):
            is_ours = arguments[0] is memory.store or arguments[0] is memory.store.search
            if is_ours and not memory.lock._is_owned():
                self.touched.add(f"{method.__qualname__} in {caller_of_the_store()}")
            return method(*arguments, **more)
        return call


def caller_of_the_store() -> str:
    """Return the place outside the store that is calling it."""
    stores = ("test_threads.py", "contextlib.py", "store.py", "search.py")
    frames = [frame for frame in traceback.extract_stack() if not frame.filename.endswith(stores)]
    last = frames[-1]
    return f"{Path(last.filename).name}:{last.lineno} {last.name}"


if __name__ == "__main__":
    unittest.main()

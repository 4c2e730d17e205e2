"""What an archive held at its last checkpoint, noted outside of it, so that a loss is found."""
from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from typing import Any

import hermes_lite as core
from hermes_lite import Memory, StorageError, from_json, pluralize, to_json

__all__ = ["LossCheck", "STATE_FILE"]

STATE_FILE = ".state_archive.json"
_SHAPE = {"version": int, "lineage": str, "changes": int, "count": int, "loss": int}


class LossCheck:
    """Finds out whether an older or a smaller archive was put in the place of the right one.

    .state_archive.json, version 1, is {"version", "lineage", "changes", "count", "loss"}:
        lineage  a hash of the archive's own key, by which its states are told from another one
        changes  how many transactions have changed it
        count    memories it held
        loss     memories it held before a loss that is not mended yet; 0 without one
    An archive of the same lineage with fewer changes is older; of another one it is smaller when
    it holds fewer memories. The note is made of changes that are on the disk already and is
    itself not waited for: after a kill or a power cut it may be older than the archive, never
    newer.
    """

    def __init__(self, files: core.RootFiles, backups: core.Backups) -> None:
        self.count_before_loss = 0                 # of memories; 0 without a loss
        self.is_unreported = False
        self._files = files
        self._backups = backups
        self._is_older = False
        self._changes_found = 0                    # of the archive that had lost something
        self._noted: dict[str, Any] | None = None

    def compare(self, db: sqlite3.Connection) -> bool:
        """Tell whether an archive that was opened just now is older or smaller than it was."""
        known = self._read()                       # first: who writes meanwhile makes it newer
        self.count_before_loss = 0
        self._noted = known
        if known is None:
            return False
        now = self._state_of(db)
        is_same_lineage = now["lineage"] == known["lineage"]
        self._is_older = is_same_lineage and now["changes"] < known["changes"]
        is_smaller = not is_same_lineage and now["count"] < known["count"]
        if not (self._is_older or is_smaller or now["count"] < known["loss"]):
            return False
        self.count_before_loss = max(known["loss"], known["count"])
        self._changes_found = now["changes"]
        self.is_unreported = True
        return True

    def missing(self, is_taken: Callable[[str], bool]) -> list[Memory]:
        """Return what the daily backups hold and neither a record nor a tombstone knows."""
        found: dict[str, Memory] = {}
        for path in self._backups.paths():
            for memory in self._backups.read(path) or ():
                if not is_taken(memory.id):
                    found.setdefault(memory.id, memory)
        return [found[memory_id] for memory_id in sorted(found)]

    def describe(self, held: int, missing: int) -> str:
        """Return the sentence about the loss; *missing* memories are in the daily backups."""
        what = "by an older copy of it" if self._is_older else "or lost memories"
        advice = (f"run `repair` to bring back {missing} from backups/" if missing else
                  "`restore` a backup that has the others, or run `repair --accept-loss` to count "
                  "this as all there is")
        return (f"memory_archive.db was replaced {what}: it holds "
                f"{pluralize(held, 'memory', 'memories')} where there were "
                f"{self.count_before_loss}; {advice}")

    def accept_loss(self) -> None:
        """Count what the archive holds as all there is; noted when it is closed."""
        self.count_before_loss = 0
        self._noted = None

    def note(self, db: sqlite3.Connection) -> None:
        """Note the state of an archive, where it is another than the one noted last.

        One that has lost something is not noted before it is written to: the right one may be
        put back meanwhile.
        """
        state = self._state_of(db)
        has_loss = self.count_before_loss > 0
        is_as_found = has_loss and state["changes"] == self._changes_found
        if state != self._noted and not is_as_found:
            with contextlib.suppress(StorageError):
                self._files.write(STATE_FILE, to_json(state), durable=False)
                self._noted = state

    def forget(self) -> None:
        """Drop the note: another archive takes the place by our own hand."""
        with contextlib.suppress(OSError):
            (self._files.root / STATE_FILE).unlink(missing_ok=True)

    def _read(self) -> dict[str, Any] | None:
        """Return the note, None where there is none or it cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            state = from_json((self._files.root / STATE_FILE).read_bytes())
            if core.fits(state, _SHAPE) and state["version"] == 1:
                return state
        return None

    def _state_of(self, db: sqlite3.Connection) -> dict[str, Any]:
        """Return the state of an archive as the note has it."""
        changes, count = db.execute("SELECT changes, count FROM counts").fetchone()
        key, = db.execute("SELECT value FROM fact WHERE name='tomb_key'").fetchone()
        return {"version": 1, "lineage": core.tombstone_fingerprint(key, "lineage")[:16],
                "changes": changes, "count": count, "loss": self.count_before_loss}

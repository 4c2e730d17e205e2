"""The tombstones of an archive: keyed hashes of the texts that were forgotten, and why."""
from __future__ import annotations

from collections.abc import Iterable, Mapping

import hermes_lite as core
from hermes_ext.archive.file import ArchiveFile, rescuing

__all__ = ["ArchiveTombstones"]

_FIELDS = ("id", "why", "at")


class ArchiveTombstones:
    """The table `tombstone`, and a copy of it in backups/tombstones.bak.

    The key of the hashes is the fact tomb_key. The copy is written after each change, so that a
    damaged archive, or an older one put in its place, brings nothing back.
    """

    def __init__(self, file: ArchiveFile) -> None:
        self.file = file
        self.retired: set[str] = set()             # ids that this process removed
        self._key = ""

    def forget(self) -> None:
        """Drop what is held of the file in memory."""
        self._key = ""

    def fingerprint(self, text: str) -> str:
        """Return the keyed hash under which *text* is known once it is forgotten."""
        if not self._key:
            self._key = self.file.fact("tomb_key")
        return core.tombstone_fingerprint(self._key, text)

    @rescuing
    def find(self, text: str) -> dict[str, str] | None:
        """Return {id, why, at} when a memory of this text was removed, None otherwise."""
        if self.file.row("SELECT 1 FROM tombstone LIMIT 1") is None:
            return None                            # a fingerprint costs some time
        row = self.file.row("SELECT id, why, at FROM tombstone WHERE fingerprint=?",
                            self.fingerprint(text))
        return dict(zip(_FIELDS, row)) if row else None

    @rescuing
    def by_id(self) -> dict[str, dict[str, str]]:
        """Return {id: {id, why, at}} of every memory that left a tombstone."""
        rows = self.file.rows("SELECT id, why, at FROM tombstone ORDER BY rowid")
        return {row[0]: dict(zip(_FIELDS, row)) for row in rows}

    def has(self, memory_id: str) -> bool:
        """Tell whether a memory of this id left a tombstone."""
        return self.file.row("SELECT 1 FROM tombstone WHERE id=?", memory_id) is not None

    def add(self, fingerprints: Iterable[str], tombstone: Mapping[str, str]) -> None:
        """Keep texts away, by their fingerprints."""
        self.file.change("delete")
        values = [tombstone[name] for name in _FIELDS]
        self.file.db().executemany("INSERT OR REPLACE INTO tombstone VALUES (?, ?, ?, ?)",
                                   ((fingerprint, *values) for fingerprint in fingerprints))

    def remove(self, text: str, *, memory_id: str = "") -> None:
        """Drop the tombstones of *text*, and of that id: a person wants it back."""
        row = self.file.row("SELECT id FROM tombstone WHERE fingerprint=?",
                            self.fingerprint(text))
        ids = {memory_id, *(row or ())} - {""}
        for each in ids:
            self.file.change("lift")               # then the copy is written, too
            if self.has(each):
                self.file.row("DELETE FROM tombstone WHERE id=?", each)
                self.retired.add(each)             # no other memory gets this id

    @rescuing
    def get_all(self) -> tuple[str, dict[str, dict[str, str]]]:
        """Return the key and {fingerprint: {id, why, at}}."""
        rows = self.file.rows("SELECT fingerprint, id, why, at FROM tombstone "
                              "ORDER BY fingerprint")
        return self.file.fact("tomb_key"), {row[0]: dict(zip(_FIELDS, row[1:])) for row in rows}

    def replace_all(self, key: str, tombstones: Mapping[str, Mapping[str, str]]) -> None:
        """Take over the tombstones of another store, and their key, in place of any here."""
        self.file.change("delete")
        self.file.row("DELETE FROM tombstone")
        for fingerprint, tombstone in tombstones.items():
            self.add([fingerprint], tombstone)
        if key:
            self.file.set_fact("tomb_key", key)
            self._key = ""

    def write_copy(self) -> None:
        """Write the copy; where that fails, it is said."""
        try:
            self.file.files.write("backups/tombstones.bak", core.tombstones_file(*self.get_all()))
        except OSError as problem:
            self.file.files.notices.append("forgotten; the copy of the tombstones was not "
                                           f"written: {problem}")

"""The file of this device in the folder of sync: check it, append changes, write it anew.

No other device writes it. Changes are appended; the file is written anew when it holds a text that
was replaced or forgotten, when it is not whole, or when most of it is out of date.
"""
from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hermes_ext.sync.folder import Inbox, framed, state_hash
from hermes_ext.sync.merge import to_line
from hermes_ext.sync.state import Amount, Book, Row, new_device, record_hash
from hermes_lite import HermesLite, append_bytes, seal, to_json, write_atomic

__all__ = ["Outbox"]


class Outbox:
    """Writes the file of this device, and gives the device a new name where it needs one."""

    def __init__(self, memory: HermesLite, folder: Path, book: Book, inbox: Inbox) -> None:
        self.memory = memory
        self.store = memory.store
        self.folder = folder
        self.book, self.inbox = book, inbox
        self.renewed: str | None = None

    @property
    def path(self) -> Path:
        return self.folder / f"hermes-lite.{self.book.device}.jsonl"

    def check_identity(self) -> None:
        """Take a new name where the root was copied or put back; check that the file is whole."""
        is_moved = self._is_moved()
        own = self.book.state["own"]
        if not self.book.rows and not own:         # the first run
            return
        if is_moved:
            self.book.state["moves"] = self.book.state.get("moves", 0) + 1
            self._take_new_name()
        elif own and self._is_as_written(own):
            if own["sealed"] != self.inbox.key_fingerprint:    # another key, or none any more
                self.book.must_rewrite = True
        elif own and self._was_continued_by_another(own):
            self._take_new_name()
        else:                                      # cut, lost, or never written after a kill
            self.book.must_rewrite = True
            if not self.path.exists():
                self.book.send_everything()

    def _is_moved(self) -> bool:
        """Tell whether the root is another folder than at the last run, and note which it is.

        Some disks give a folder a new inode at each mount: after three moves none counts.
        """
        state = self.book.state
        inode = os.stat(self.memory.root).st_ino
        is_moved = state["inode"] != inode and state.get("moves", 0) < 3
        state["inode"] = inode
        return is_moved

    def _is_as_written(self, own: Mapping[str, object]) -> bool:
        """Tell whether the file on the disk is the one that this device wrote last."""
        data = self._data()
        return zlib.crc32(data) == own["crc"] and len(data) == own["size"]

    def _data(self) -> bytes:
        """Return what this device's file holds on the disk."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""

    def _was_continued_by_another(self, own: Mapping[str, object]) -> bool:
        """Tell whether another root has written lines under this device's name."""
        for line in self._data().splitlines():
            row = self.inbox.row_of(line)
            number = row.get("n")
            if type(number) is not int or number < own["n"]:
                continue
            if number > own["n"]:
                return True
            is_change = "id" in row
            is_our_last = line.startswith(own["tail"].encode())
            is_our_header = row.get("gen") == own["gen"]
            if not (is_our_last if is_change else is_our_header):
                return True
        return False

    def _take_new_name(self) -> None:
        """Become another device, which sends everything that is known here."""
        self.renewed = self.book.device
        self.book.device = new_device()
        self.book.last_number = 0
        self.book.state.update(own=None, files={}, device=self.book.device)
        self.book.send_everything()

    def send(self, revision: list) -> None:
        """Save the state, then write the file; after a kill in between it is written anew."""
        book = self.book
        files = {name: known for name, known in book.state["files"].items()
                 if name in self.inbox.listed}
        files.update((file.name, file.to_state()) for file in self.inbox.files)
        book.state["files"] = files

        own = book.state["own"]
        if own and not book.to_send and not book.must_rewrite:
            self._save_if_changed(revision)
            return
        held = sum(row.in_own_file > 0 for row in book.rows.values())
        most_lines = 2 * held + 200                # more: most of them are out of date
        if book.must_rewrite or not own or own["lines"] + len(book.to_send) > most_lines:
            self._write_anew()
        else:
            self._append(own)

    def _save_if_changed(self, revision: list) -> None:
        """Save the state after a run that sends nothing; `look` is what the next run compares."""
        waits = "again" in self.book.state or self.inbox.waits()
        look = ""
        if not waits and not self.book.changed:
            look = state_hash(self.folder, self.inbox.listed, revision)
        if self.book.changed or waits or look != self.book.state["look"]:
            self._save(look)

    def _append(self, own: dict[str, Any]) -> None:
        """Append the changes to this device's file; *own* describes it as it is."""
        lines = [self._sealed({**row, "n": self.book.next_number()})
                 for _, row in sorted(self.book.to_send.items())]
        data = b"".join(lines)
        self.book.state["own"] = {
            **own, "n": self.book.last_number, "size": own["size"] + len(data),
            "crc": zlib.crc32(data, own["crc"]), "tail": _crc_of(lines[-1]),
            "lines": own["lines"] + len(lines)}
        self._save("")
        append_bytes(self.path, data)

    def _write_anew(self) -> None:
        """Write everything that this device sends, and only that; then remove conflict copies."""
        book = self.book
        generation = os.urandom(8).hex()
        header = framed(to_json({
            "hermes-lite-sync": 1, "device": book.device, "n": book.next_number(),
            "gen": generation, "sealed": bool(self.inbox.key_fingerprint)}))
        lines = [header, *map(self._sealed, self._all_lines())]
        data = b"".join(lines)
        book.state["own"] = {
            "n": book.last_number, "size": len(data), "crc": zlib.crc32(data), "gen": generation,
            "tail": _crc_of(lines[-1]), "lines": len(lines) - 1,
            "sealed": self.inbox.key_fingerprint}
        self._save("")
        write_atomic(self.path, data)
        self._remove_conflict_copies()

    def _remove_conflict_copies(self) -> None:
        """Delete the copies of this device's file that a service made, once they are read."""
        for file in self.inbox.files:
            is_copy = file.device == self.book.device and file.name != self.path.name
            if is_copy and not file.waits:
                with contextlib.suppress(OSError):
                    os.unlink(self.folder / file.name)

    def _sealed(self, row: dict[str, object]) -> bytes:
        return framed(seal(to_json(row), self.inbox.cipher))

    def _all_lines(self) -> Iterator[dict[str, object]]:
        """Yield the newest change of every memory that this device's file holds, by id."""
        lines_of_pruned = self._lines_of_pruned()
        for memory_id, packed in sorted(self.book.rows.items()):
            if not packed.in_own_file:
                continue
            row = Row.unpacked(packed)
            if row.is_pruned:
                line = lines_of_pruned.get(memory_id)
            elif not row.record_hash:              # forgotten, or another has the same text
                line = to_line(memory_id, row.without_text())
            else:
                line = self._line_of(memory_id, row)
            if line is not None:
                yield line

    def _line_of(self, memory_id: str, row: Row) -> dict[str, object] | None:
        """Return the line of a memory; None where it has changed since: the next run sends it."""
        record = self.store.get(memory_id)
        if record is None:
            return None
        record = self.memory.redactor.outgoing(record)
        if row.record_hash != record_hash(record):
            return None
        line = to_line(memory_id, row.item(record))
        if row.in_own_file == Amount.COUNT:
            return {"id": memory_id, "count": line.get("count")}
        known_forgotten = self.book.to_send.get(memory_id, {}).get("after")
        if known_forgotten:
            line["after"] = known_forgotten
        return line

    def _lines_of_pruned(self) -> dict[str, dict[str, object]]:
        """Return the lines with a text that the file on the disk has of pruned memories, by id."""
        pruned = {memory_id for memory_id, row in self.book.rows.items()
                  if row.in_own_file and row.more.get("aged")}
        found: dict[str, dict[str, object]] = {}
        if not pruned:
            return found
        for line in self._data().splitlines():
            row = self.inbox.row_of(line)
            if row.get("id") in pruned and "text" in row:
                found[row["id"]] = {**row, "n": 0}
        return found

    def _save(self, look: str) -> None:
        """Write the state; *look* is a hash of all that this run saw, "" to look again."""
        self.book.state.update(look=look, n=self.book.last_number, device=self.book.device)
        state = {**self.book.state, "rows": self.book.rows}
        self.store.files.write(".state_sync.json", to_json(state))


def _crc_of(line: bytes) -> str:
    """Return the checksum that a line begins with, by which the last line is known again."""
    return line[:8].decode()

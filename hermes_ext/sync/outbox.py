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

from hermes_ext.sync.folder import Inbox, framed, state_hash
from hermes_ext.sync.merge import Item, to_line
from hermes_ext.sync.state import Book, Row, new_device, record_hash
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
            if own["sealed"] != self.inbox.mark:   # another key, or none any more
                self.book.rewrite = True
        elif own and self._was_continued_by_another(own):
            self._take_new_name()
        else:                                      # cut, lost, or never written after a kill
            self.book.rewrite = True
            if not self.path.exists():
                self.book.carry_all()

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
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""

    def _was_continued_by_another(self, own: Mapping[str, object]) -> bool:
        """Tell whether another root has written lines under this device's name."""
        for line in self._data().splitlines():
            row = self.inbox.row(line)
            number = row.get("n")
            if type(number) is not int or number < own["n"]:
                continue
            is_last_line = line[:8] == own["tail"].encode()
            is_header = row.get("gen") == own["gen"]
            is_ours = is_last_line if "id" in row else is_header
            if number > own["n"] or not is_ours:
                return True
        return False

    def _take_new_name(self) -> None:
        """Become another device, which sends everything that is known here."""
        self.renewed = self.book.device
        self.book.device = new_device()
        self.book.n = 0
        self.book.state.update(own=None, files={}, device=self.book.device)
        self.book.carry_all()

    def send(self, revision: list) -> None:
        """Save the state, then write the file; after a kill in between it is written anew."""
        book = self.book
        state = self.book.state
        listed = self.inbox.listed
        state["files"] = {name: known for name, known in state["files"].items()
                          if name in listed} | {
            file.name: file.kept() for file in self.inbox.files}
        own = state["own"]
        if own and not book.lines and not book.rewrite:
            waits = "again" in state or self.inbox.waits()
            look = "" if waits or book.changed else state_hash(self.folder, listed, revision)
            if book.changed or look != state["look"] or waits:
                self._save(look)
            return
        carried = sum(row[2] > 0 for row in book.rows.values())
        if book.rewrite or not own or own["lines"] + len(book.lines) > 2 * carried + 200:
            self._write_anew()
        else:
            self._append(own)

    def _append(self, own: dict[str, object]) -> None:
        lines = [self._sealed({**row, "n": self.book.tick()}) for _, row in sorted(
            self.book.lines.items())]
        data = b"".join(lines)
        self.book.state["own"] = {
            **own, "n": self.book.n, "size": own["size"] + len(data),
            "crc": zlib.crc32(data, own["crc"]), "tail": lines[-1][:8].decode(),
            "lines": own["lines"] + len(lines)}
        self._save("")
        append_bytes(self.path, data)

    def _write_anew(self) -> None:
        """Write everything that this device sends, and only that; then remove conflict copies."""
        book, gen = self.book, os.urandom(8).hex()
        head = framed(to_json({"hermes-lite-sync": 1, "device": book.device, "n": book.tick(),
                               "gen": gen, "sealed": bool(self.inbox.mark)}))
        lines = [head, *map(self._sealed, self._all_lines())]
        data = b"".join(lines)
        book.state["own"] = {"n": book.n, "size": len(data), "crc": zlib.crc32(data), "gen": gen,
                             "tail": lines[-1][:8].decode(), "lines": len(lines) - 1,
                             "sealed": self.inbox.mark}
        self._save("")
        write_atomic(self.path, data)
        for file in self.inbox.files:
            if file.device == book.device and file.name != self.path.name and not file.waits:
                with contextlib.suppress(OSError):
                    os.unlink(self.folder / file.name)

    def _sealed(self, row: dict[str, object]) -> bytes:
        return framed(seal(to_json(row), self.inbox.cipher))

    def _all_lines(self) -> Iterator[dict[str, object]]:
        """Yield the newest change of every memory; of a pruned one, its line in the old file."""
        pruned_lines = self._lines_of_pruned()
        for memory_id in sorted(each for each, row in self.book.rows.items() if row[2]):
            row = Row.unpacked(self.book.rows[memory_id])
            if row.aged:
                if memory_id in pruned_lines:
                    yield pruned_lines[memory_id]
                continue
            if not row.mark:                       # forgotten, or another has the same text
                yield to_line(memory_id, Item(gone=row.gone, same=tuple(row.same),
                                              void=tuple(row.void)))
                continue
            record = self.store.get(memory_id)
            record = record and self.memory.redactor.outgoing(record)
            if not record or row.mark != record_hash(record):
                continue                           # it changed meanwhile: the next run sends it
            line = to_line(memory_id, row.item(record))
            after = self.book.lines.get(memory_id, {}).get("after")
            if after:
                line["after"] = after
            yield line if row.carry == 2 else {"id": memory_id, "count": line.get("count")}

    def _lines_of_pruned(self) -> dict[str, dict[str, object]]:
        """Return the lines with a text that the file on the disk has of pruned memories, by id."""
        pruned = {each for each, row in self.book.rows.items() if row[2] and row[5].get("aged")}
        found: dict[str, dict[str, object]] = {}
        if not pruned:
            return found
        for line in self._data().splitlines():
            row = self.inbox.row(line)
            if row.get("id") in pruned and "text" in row:
                found[row["id"]] = {**row, "n": 0}
        return found

    def _save(self, look: str) -> None:
        self.book.state.update(look=look, n=self.book.n, device=self.book.device)
        state = {**self.book.state, "rows": self.book.rows}
        self.store.files.write(".state_sync.json", to_json(state))

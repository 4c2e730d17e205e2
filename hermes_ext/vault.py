"""Vault: the Markdown files under store/ work in both directions.

    hermes_lite.py vault status
    hermes_lite.py vault sync --dry-run
    hermes_lite.py vault sync --yes          also forget what was deleted by hand
    hermes_lite.py vault sync --put-back     write the deleted files again

Edit, add, rename or delete notes in Obsidian, vim or with a sync service. The next command of
the command line takes it over (`take_over`), `vault sync` does it at once and looks at every
record, `vault status` only tells. Everything a person wrote passes the door of `remember`: it is
redacted in every field, and the file is written again, redacted.

    edited     text and frontmatter count; id, created_at, the access counters and `redacted` are
               the store's own. A key that the store does not know is kept. A comment is not.
               A value that cannot be right, such as an unknown room, keeps the old one.
    both       where the record changed too, the hand edit wins, and the record's own text is
               kept as a memory of its own, with a notice
    added      any other NAME.md becomes a memory with `title: NAME`, and the file the mirror of
               its new id; a near-duplicate is merged into the memory that says so already
    renamed    goes back to its id's name and keeps the new one as `title`
    deleted    is a question: the memory stays, its file stays away, until --yes or --put-back
    forgotten  a file that comes back for a memory that was forgotten or pruned is not taken up:
               a file with the same text is removed, another is set aside in backups/, redacted
    written    a file that a power cut has torn is written again from its record: it is the
               record's beginning, and it ends in NUL bytes, at the end of a disk block, inside
               the frontmatter, or, where it was never seen whole, in the middle of a line
    left       a file that is not UTF-8, whose frontmatter does not end, that has no text, or is
               a link: a sentence says so, nobody touches it, and the memory stays as it is

Only .md files directly in store/ count; folders in it, such as .obsidian, are the person's own.
A program that uses the library has to call `take_over` itself; without it, and for an edit in
the very moment of a command, a write to the same note goes over the edit.

How it knows. `.state_vault.json` (version 1) holds for each file a stamp (time of change in ns
plus size) and two hashes (of frontmatter and text) of what was last seen equal to its
record, and `look`, a hash of all names and stamps. Equal look: nothing to do, for one stat a
file (about 2 ms at 1,000 files, 20 ms at 10,000). Another stamp: the file is read, and where it
says what the record says, it is the store's own write. Where it still says what the hashes say,
the record is newer, as after a kill between journal and mirror, and the file is written again.
A file changed in the last hundredths of a second is looked at again next time.
"""
from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hermes_lite import (FileStore, HermesError, HermesLite, Memory, Operation, Param, Record,
                         Refused, StorageError, UsageError, display_text, from_json, is_safe_id,
                         new_id, parse_time, read_markdown, seal, to_json, to_markdown,
                         write_atomic)

__all__ = ["Change", "OPERATIONS", "Synced", "sync", "take_over"]

_OWN = ("id", "created_at", "access_count", "last_accessed", "redacted")
_BLOCK = 512                                       # bytes; blocks of a disk are multiples of it
_WITHOUT_TAKING_OVER = (             # commands that see the files as they are
    "vault", "init", "version", "doctor", "repair", "backup", "restore", "scrub", "encrypt",
    "reindex")


@dataclass(frozen=True, slots=True)
class Change(Record):
    """What became of one file; `what` is a word of this module's first page, or `written`."""
    file: str
    what: str
    id: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Synced(Record):
    """What a look at the folder found; with `dry_run` nothing of it was done."""
    files: int
    changes: tuple[Change, ...] = ()
    dry_run: bool = False


def take_over(memory: HermesLite, command: str = "") -> Synced | None:
    """Take hand edits over before *command* runs; what happened becomes a notice.

    Never fails: where the disk is read-only or the store is busy, a notice says so.
    """
    if command in _WITHOUT_TAKING_OVER or not _has_mirror(memory):
        return None
    try:
        done = sync(memory)
    except HermesError as problem:
        memory.notices.append(f"notes edited by hand are not taken over yet: {problem}")
        return None
    memory.notices += _sentences(done)
    return done


def sync(memory: HermesLite, *, yes: bool = False, put_back: bool = False,
         dry_run: bool = False, complete: bool = False) -> Synced:
    """Bring files and records together; *complete* also looks for files that lag behind."""
    if yes and put_back:
        raise UsageError("--yes forgets and --put-back writes again; give one of them")
    if not _has_mirror(memory):
        why = ("encryption.markdown is off in config.yaml" if isinstance(memory.store, FileStore)
               else "the memories are in an archive")
        raise Refused(f"{why}, so there is no Markdown mirror", "no_mirror")
    return _Look(memory).sync(yes=yes, put_back=put_back, dry_run=dry_run, complete=complete)


def _has_mirror(memory: HermesLite) -> bool:
    return isinstance(memory.store, FileStore) and bool(memory.config["encryption"]["markdown"])


class _Undo(Exception):
    """Ends the transaction of a dry run."""


_STATE = ".state_vault.json"
_LEFT_ALONE = ""                     # instead of the hashes of a file that says what cannot be


class _Folder:
    """The files in store/ as they are, and as each was last seen equal to its record.

    `found` is {name: stamp} of the files on the disk, negative for a link. `stamps` and `hashes`
    are those of a file when it was last seen; the hashes of a file left alone are _LEFT_ALONE.
    """

    def __init__(self, memory: HermesLite) -> None:
        self.memory = memory
        self.store = memory.store
        self.path = memory.root / "store"
        self.found = _scan(self.path)
        self.stamps: dict[str, int] = {}
        self.hashes: dict[str, str] = {}
        self._saved: tuple = ()                    # the state that is on the disk

    def is_as_before(self) -> bool:
        """Compare the folder with the head of the state alone: the rest costs as much again.

        Tells the mirror which files it must not write, as the state has it.
        """
        saved = self.store.files.read(_STATE) or b""
        head, separator, _ = saved.partition(b', "stamps"')
        if not separator:
            return not self.found
        try:
            state = from_json(head + b"}")
            self.store.mirror.spared = frozenset(state["spared"])
            return state["look"] == _digest(self.found)
        except (ValueError, LookupError, TypeError):           # damaged: look at every file
            return False

    def load(self) -> None:
        """Read what was last seen; a part that is damaged counts as never seen."""
        state = self.memory.state("vault")
        stamps, hashes = state.get("stamps"), state.get("marks")
        self.stamps = stamps if isinstance(stamps, dict) else {}
        self.hashes = hashes if isinstance(hashes, dict) else {}
        self._saved = state.get("look"), dict(self.stamps), dict(self.hashes)

    def save(self) -> None:
        """Keep what was seen; without it, on a read-only disk, files are compared again."""
        look = _digest(self.found) if self.found == self.stamps else ""
        if self._saved == (look, self.stamps, self.hashes):
            return
        state = to_json({"version": 1, "look": look, "spared": sorted(self.store.mirror.spared),
                         "stamps": self.stamps, "marks": self.hashes})
        with contextlib.suppress(StorageError):
            write_atomic(self.memory.root / _STATE, seal(state, self.store.files.cipher),
                         durable=False)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file; ValueError where it is too long to be a memory."""
        most = 8 * self.memory.config["storage"]["max_text_chars"] + 1_048_576
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        with open(os.open(self.path / name, flags), "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise ValueError("longer than any memory may be")
        return data

    def is_link(self, name: str) -> bool:
        """Tell whether a file is a link, or no file at all."""
        return self.found[name] < 0

    def see(self, name: str, memory: Memory) -> None:
        """Note that file and record are equal; a stamp too young to be trusted is not kept."""
        stamp = self.found[name]
        # A stamp of whole seconds (with the size in it) comes from a disk that counts so.
        counts_seconds = stamp % 1_000_000_000 < 100_000
        too_young = 2_000_000_000 if counts_seconds else 20_000_000      # nanoseconds
        self.stamps[name] = stamp if time.time_ns() - stamp > too_young else 0
        self.hashes[name] = _hashes(memory)

    def leave(self, name: str) -> None:
        """Note that a file is left alone until it changes again."""
        self.stamps[name] = self.found[name]
        self.hashes[name] = _LEFT_ALONE

    def forget(self, name: str) -> None:
        """Drop what was noted of a file."""
        self.stamps.pop(name, None)
        self.hashes.pop(name, None)

    def spare(self, deleted: list[str]) -> None:
        """Tell the mirror which files it must not write: left alone, or deleted by hand."""
        left = [name for name, hashes in self.hashes.items() if hashes == _LEFT_ALONE]
        self.store.mirror.spared = frozenset(_id_of(name) for name in (*left, *deleted))


class _Look:
    """One look at the folder: what is on disk, what was last seen, and what follows."""

    def __init__(self, memory: HermesLite) -> None:
        self.memory = memory
        self.store = memory.store
        self.folder = _Folder(memory)
        self.taker = _Taker(memory, self.folder)
        self._renamed: set[str] = set()            # names whose id stands in a changed file

    def sync(self, *, yes: bool, put_back: bool, dry_run: bool, complete: bool) -> Synced:
        """Do what the first page says; the fast way out costs one stat a file."""
        folder = self.folder
        if not complete and folder.is_as_before():
            return Synced(len(folder.found))
        folder.load()
        with self.memory.session.reading():
            changed = [name for name in self._unlike(complete) if not self._is_own_write(name)]
            deleted = self._deleted(changed)
            to_write = self._behind(changed) if complete else []

        if deleted and not folder.path.is_dir():
            if yes:
                raise Refused("the folder store/ is gone as a whole and nothing is forgotten "
                              "for that; --put-back writes it again", "no_folder")
            put_back = True
        if put_back:
            to_write += [_id_of(name) for name in deleted]
            deleted = []
        self._store_changes(changed, to_write, deleted, dry_run=dry_run)
        folder.spare(deleted)
        if dry_run:
            with self.memory.session.reading():    # again as it is on the disk
                pass
        else:
            self._finish(deleted if yes else [])
        for name in deleted:
            self.taker.report(name, "deleted", _id_of(name),
                              "its memory is forgotten" if yes else "")
        if not dry_run:
            folder.save()
        return Synced(len(folder.found), tuple(self.taker.changes), dry_run)

    def _store_changes(self, changed: list[str], to_write: list[str], deleted: list[str], *,
                       dry_run: bool) -> None:
        """Take changed files over and write others again, in one transaction.

        A dry run undoes it. At its end the mirror writes files, so it is told before which of
        them it must not.
        """
        if not changed and not to_write:
            return
        pending = frozenset(self.store.mirror.pending)         # files that a kill left behind
        with contextlib.suppress(_Undo), self.memory.batch():
            for name in changed:
                self.taker.take(name, pending)
            for memory_id in to_write:
                self.taker.write_again(memory_id)
            self.folder.spare(deleted)
            if dry_run:
                raise _Undo

    def _unlike(self, complete: bool) -> list[str]:
        """Return the files that have another stamp than when they were last seen.

        With *complete* also those left alone, and those without a record.
        """
        folder = self.folder
        unlike = []
        for name, stamp in sorted(folder.found.items()):
            is_changed = stamp != folder.stamps.get(name)
            if not is_changed and complete:
                is_left_alone = not folder.hashes.get(name)
                is_changed = is_left_alone or self.store.get(_id_of(name)) is None
            if is_changed:
                unlike.append(name)
        return unlike

    def _is_own_write(self, name: str) -> bool:
        """Tell whether the file says what its record says, and note that it was seen then."""
        memory = self.store.get(_id_of(name))
        if memory is None or self.folder.is_link(name):
            return False
        with contextlib.suppress(ValueError, OSError):
            text = self.folder.read(name).decode("utf-8")
            if text == to_markdown(memory) or self._says_the_same(text, memory):
                self.folder.see(name, memory)
                return True
        return False

    def _says_the_same(self, text: str, memory: Memory) -> bool:
        """Tell whether a file, in another form, has the fields and text of its record.

        It may hide a secret, as in a comment, which no record shows.
        """
        edited, _ = self.taker.overlaid(memory, read_markdown(text))
        _, secrets = self.memory.redact(text)
        return _hashes(edited) == _hashes(memory) and not secrets

    def _deleted(self, changed: list[str]) -> list[str]:
        """Return the files that a person deleted; what was noted of removed memories goes.

        A file whose id stands in a changed one was renamed.
        """
        missing = sorted(self.folder.stamps.keys() - self.folder.found.keys())
        if missing:
            self._renamed = {f"{self._id_inside(name)}.md" for name in changed}
        deleted = []
        for name in missing:
            if self.store.get(_id_of(name)) is None:
                self.folder.forget(name)
            elif name not in self._renamed:
                deleted.append(name)
        return deleted

    def _id_inside(self, name: str) -> str:
        """Return the id in a file's frontmatter, "" where it cannot be read."""
        with contextlib.suppress(ValueError, OSError):
            return str(read_markdown(self.folder.read(name).decode("utf-8")).get("id"))
        return ""

    def _behind(self, changed: list[str]) -> list[str]:
        """Return the ids whose file was never written, or is older than the record."""
        folder = self.folder
        changing = {*changed, *self._renamed}
        ids = []
        for memory in self.store:
            name = f"{memory.id}.md"
            is_there = name in folder.found
            is_deleted = not is_there and name in folder.stamps
            if name in changing or is_deleted:
                continue
            seen = folder.hashes.get(name)
            is_older = bool(seen) and seen != _hashes(memory)
            if is_older or not is_there:
                ids.append(memory.id)
        return ids

    def _finish(self, forgotten: list[str]) -> None:
        """Remove files that have another name now, forget what may go, note what was seen."""
        folder, taker = self.folder, self.taker
        for where, text in taker.set_aside.items():
            self.store.files.write(where, text.encode("utf-8", "replace"))
        moved = (*taker.obsolete, *forgotten, *self._renamed, *taker.written)
        now = _scan(folder.path) if moved else {}
        for name in taker.obsolete:
            if now.get(name) == folder.found[name]:            # nobody wrote to it since
                with contextlib.suppress(OSError):
                    os.unlink(folder.path / name)
            folder.found.pop(name)
        for name in forgotten:
            self.memory.forget(_id_of(name), why="deleted by hand")
        for name in moved:
            memory = self.store.get(_id_of(name))
            stamp = now.get(name, -1)
            is_plain_file = stamp >= 0
            if memory and is_plain_file and name not in taker.obsolete:
                folder.found[name] = stamp
                folder.see(name, memory)
            else:
                folder.forget(name)


class _Taker:
    """Takes changed files over, one at a time, inside a transaction.

    What is to be done once that is safe: `obsolete` files go, `set_aside` is {name in the root:
    words to keep there}, and `written` are the files that the mirror writes.
    """

    def __init__(self, memory: HermesLite, folder: _Folder) -> None:
        self.memory = memory
        self.store = memory.store
        self.folder = folder
        self.changes: list[Change] = []
        self.obsolete: list[str] = []
        self.set_aside: dict[str, str] = {}
        self.written: list[str] = []

    def report(self, name: str, what: str, memory_id: str | None, detail: str = "") -> None:
        """Add a Change to the result, redacted."""
        shown = _id_of(name).encode("utf-8", "replace").decode()
        shown, _ = self.memory.redact(shown)       # without .md: X.md is a file to it
        detail, _ = self.memory.redact(detail)
        self.changes.append(Change(f"{shown}.md", what, memory_id, detail))

    def write_again(self, memory_id: str, why: str = "") -> None:
        """Have the mirror write a file again."""
        self.store.put(self.store.get(memory_id))
        self.report(f"{memory_id}.md", "written", memory_id, why)
        self.written.append(f"{memory_id}.md")

    def take(self, name: str, pending: frozenset[str]) -> None:
        """Take one changed file over; whatever is wrong with it leaves it alone.

        *pending* are the ids whose file the mirror had still to write.
        """
        try:
            self._take(name, pending)
        except UnicodeDecodeError:
            self._leave(name, "not UTF-8 text; save it as UTF-8")
        except FileNotFoundError:
            self.folder.found.pop(name)            # another process took it over meanwhile
        except HermesError as problem:
            if not isinstance(problem, ValueError):
                raise                              # the disk or the lock, not the file
            self._leave(name, str(problem))
        except OSError as problem:                 # not noted, so that the next look tries again
            self.report(name, "left", None, problem.strerror or str(problem))
        except ValueError as problem:
            self._leave(name, str(problem))

    def _take(self, name: str, pending: frozenset[str]) -> None:
        if self.folder.is_link(name):
            raise ValueError("a link, or no file at all; it is not followed")
        memory = self.store.get(_id_of(name))
        data = self.folder.read(name)
        if memory and self._is_torn(name, data, memory):
            self.write_again(memory.id, "it was cut short, as by a power cut, and is written "
                             "again from its record")
            return
        entry = read_markdown(data.decode("utf-8"))
        if not entry["content"].strip():
            why = "there is no text left in it; write one, or forget the memory"
            self._leave(name, why if memory else "")           # or a note that is just begun
        elif memory:
            self._take_edit(name, memory, entry, is_pending=memory.id in pending)
        else:
            self._take_new(name, entry)

    def _leave(self, name: str, why: str) -> None:
        """Leave a file alone, and report *why* unless it is ""."""
        self.folder.leave(name)
        if why:
            self.report(name, "left", None, why)

    def _is_torn(self, name: str, data: bytes, memory: Memory) -> bool:
        """Tell whether the file is the beginning of its record and no editor left it so."""
        beginning = data.rstrip(b"\0")
        record = _uncounted(to_markdown(memory).encode("utf-8", "replace"))
        if not data or not record.startswith(_uncounted(beginning)):
            return False
        ends_in_nul = beginning != data
        ends_at_block = len(data) % _BLOCK == 0
        ends_in_frontmatter = b"\n---" not in beginning
        if ends_in_nul or ends_at_block or ends_in_frontmatter:
            return True
        was_whole = self.folder.hashes.get(name) == _hashes(memory)
        return not was_whole and not data.endswith(b"\n")

    # -- a file of a known memory -------------------------------------------

    def _take_edit(self, name: str, old: Memory, entry: Mapping[str, object], *,
                   is_pending: bool = False, title: str = "") -> None:
        """Merge three ways: the file, its record, and the hashes of when both were equal.

        A renamed file gives its new name as *title*.
        """
        edited, problems = self.overlaid(old, entry)
        seen = self.folder.hashes.get(f"{old.id}.md", "").split()
        file_head, file_text = _hashes(edited).split()
        record_head, record_text = _hashes(old).split()
        is_unchanged = [file_head, file_text] in (seen, [record_head, record_text])
        if not title and (is_unchanged or not seen and _differs_by_merge(edited, old)):
            self.write_again(old.id)               # the record is newer, or a secret stands
            return                                 # outside of every field
        base_head, base_text = seen or (record_head, record_text)
        is_head_edited = file_head != base_head
        is_text_edited = file_text != base_text

        kept = edited if is_head_edited else old
        kept = replace(kept, content=edited.content if is_text_edited else old.content)
        if is_pending and not seen:                # nobody knows which of them is newer
            kept = replace(kept, importance=max(kept.importance, old.importance),
                           execution_verified=edited.execution_verified or old.execution_verified)
        if title:
            kept = replace(kept, extra={**kept.extra, "title": title})
        self.memory.admit(kept, replacing=True)
        self.report(name, "renamed" if title else "edited", old.id, problems)
        self.written.append(f"{old.id}.md")
        is_record_edited = bool(seen) and base_text != record_text
        if is_text_edited and is_record_edited:
            self._keep_both(name, old)

    def _keep_both(self, name: str, old: Memory) -> None:
        """Keep the text that the hand edit replaced, unless redaction made them the same."""
        if self.store.get(old.id).content == old.content:
            return
        copy = new_id(self.store.clock(), self.store.is_taken)
        meta = {**old.meta, "vault": {"conflict_with": old.id}}
        self.memory.admit(replace(old, id=copy, meta=meta), replacing=True)
        self.written.append(f"{copy}.md")
        self.report(name, "both", copy, f"the text it had in the store is kept as {copy}")

    def overlaid(self, old: Memory, entry: Mapping[str, object]) -> tuple[Memory, str]:
        """Return the record with what the file says, and a sentence on what it may not say."""
        config = self.memory.config
        row = old.entry()
        problems = []
        new = {name: value for name, value in entry.items() if name not in _OWN}
        for name, known in (("category", config["category_mapping"]), ("room", config.rooms)):
            if new.get(name, row[name]) not in (*known, row[name]):
                problems.append(f"there is no {name} of that name")
                del new[name]
        if new.get("expires_at") and parse_time(new["expires_at"]) is None:
            problems.append("expires_at is not a time")
            new["expires_at"] = row.get("expires_at")
        has_old_room = new.get("room", old.room) == old.room
        has_new_category = new.get("category", old.category) != old.category
        if has_old_room and has_new_category:
            new["room"] = config.room_of(new["category"])
        has_frontmatter = len(entry) > 1
        if has_frontmatter:                        # a key that was removed is meant
            for name in ("tags", "expires_at", *old.extra):
                row.pop(name, None)
        row.update(new, content=str(entry["content"]).strip())
        return Memory.from_entry(row), "; ".join(problems)

    # -- a file that no memory has ------------------------------------------

    def _take_new(self, name: str, entry: Mapping[str, object]) -> None:
        """Take over a file that was renamed, copied, added, or has come back."""
        stem = _id_of(name)
        id_inside = str(entry.get("id", ""))
        if not is_safe_id(id_inside):
            id_inside = ""
        known = self.store.get(id_inside)
        if known and f"{id_inside}.md" not in self.folder.found:           # renamed
            self._take_edit(name, known, entry, title=stem)
            self.obsolete.append(name)
            return
        if not id_inside and self.store.is_taken(stem):        # it was forgotten perhaps
            id_inside = stem
        record = _new_record(entry, id_inside, stem)
        if known:                                  # a copy: it gets an id of its own
            record = replace(record, id="")
        try:
            done = self.memory.admit(record)
        except Refused as problem:
            if problem.reason_code != "forgotten":
                raise
            self._send_off(name, record)
            return
        self.report(name, "added" if done.created else "merged", done.id)
        self.written.append(f"{done.id}.md")
        if name != f"{done.id}.md":
            self.obsolete.append(name)

    def _send_off(self, name: str, record: Memory) -> None:
        """Part with the file of a forgotten memory; other words than the forgotten are kept."""
        text, _ = self.memory.redact(record.content.strip())
        why = "its text was forgotten; remember it by hand to bring it back"
        if self.store.forgotten(text) is None:
            where = f"backups/set_aside_{zlib.crc32(text.encode('utf-8', 'replace')):08x}.md"
            self.set_aside[where] = text
            why = f"its memory was forgotten; what it says now is in {where}"
        self.report(name, "forgotten", record.id or None, why)
        self.obsolete.append(name)


def _id_of(name: str) -> str:
    """Return a file's name without .md, which is the id of its memory."""
    return name.removesuffix(".md")


def _differs_by_merge(edited: Memory, old: Memory) -> bool:
    """Tell whether a file differs only by what a merge raises later than it writes the file."""
    return _hashes(replace(edited, importance=old.importance,
                           execution_verified=old.execution_verified)) == _hashes(old)


def _new_record(entry: Mapping[str, object], memory_id: str, stem: str) -> Memory:
    """Return the record of a new file; where its name is not the id, that becomes the title."""
    row = {**entry, "id": memory_id or "new"}      # a record cannot be read without an id
    if parse_time(row.get("created_at")) is None:
        row.pop("created_at", None)
    if memory_id != stem:
        row.setdefault("title", stem)
    record = Memory.from_entry(row)
    return replace(record, id=memory_id, room=str(row.get("room", "")),
                   access_count=max(record.access_count, 0))


def _uncounted(data: bytes) -> bytes:
    """Return the bytes of a file without the values that a recall changes later than the file."""
    return re.sub(rb"(?m)^(access_count|last_accessed): .*$", rb"\1: ", data)


def _scan(folder: Path) -> dict[str, int]:
    """Return {name: stamp} of the .md files of the folder, negative where it is no plain file."""
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    handle = None
    prefix = f"{folder}{os.sep}"
    if os.stat in os.supports_dir_fd:              # a third faster than with whole paths
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            prefix = ""
    found: dict[str, int] = {}
    for name in names:
        if name[-3:] == ".md" and name[0] != ".":
            try:
                status = os.stat(prefix + name, dir_fd=handle, follow_symlinks=False)
            except OSError:                        # it was deleted meanwhile
                continue
            stamp = status.st_mtime_ns + status.st_size
            found[name] = stamp if stat.S_ISREG(status.st_mode) else -stamp
    if handle is not None:
        os.close(handle)
    return found


def _digest(found: Mapping[str, int]) -> str:
    """Return a hash of all names and stamps, in the order of the folder."""
    names = "\n".join(found).encode("utf-8", "surrogatepass")
    stamps = array("q", found.values()).tobytes()
    return hashlib.blake2b(names + b"\0" + stamps, digest_size=16).hexdigest()


def _hashes(memory: Memory) -> str:
    """Return two hashes: of what a person may set in the frontmatter, and of the text."""
    row = memory.entry()
    text = str(row.pop("content")).strip()
    head = {name: value for name, value in sorted(row.items()) if name not in _OWN}
    return " ".join(hashlib.blake2b(data, digest_size=6).hexdigest()
                    for data in (to_json(head), text.encode("utf-8", "replace")))


# -- command line -------------------------------------------------------------

def _first_five(words: Sequence[str]) -> str:
    """Return "a, b, c, d, e and 3 more"."""
    more = f" and {len(words) - 5} more" if len(words) > 5 else ""
    return ", ".join(words[:5]) + more


def _sentences(done: Synced) -> Iterator[str]:
    """Say what a person should know of an automatic look: not each file, but each surprise."""
    taken = [f"{change.what} {change.file}" for change in done.changes
             if change.what in ("edited", "added", "renamed", "merged")]
    if taken:
        yield f"taken over from store/: {_first_five(taken)}"
    for change in done.changes:
        if change.detail and change.what != "deleted":
            yield f"store/{change.file}: {change.detail}"
    deleted = [change.id for change in done.changes if change.what == "deleted"]
    if deleted:
        yield (f"deleted by hand from store/: {_first_five(deleted)}; `vault sync --yes` forgets "
               "what they held, `vault sync --put-back` writes the files again")


def _show_synced(result: Synced) -> Iterator[str]:
    for change in result.changes:
        detail = change.detail
        if change.what == "deleted" and not detail:
            detail = "--yes forgets its memory, --put-back writes it again"
        line = f"{change.what}  {display_text(change.file)}"
        yield f"{line}  {detail}" if detail else line
    verb = "to do" if result.dry_run else "done"
    yield f"{result.files} files, {len(result.changes)} {verb}"


def _vault(memory: HermesLite, *, action: str, yes: bool, put_back: bool,
           dry_run: bool) -> Synced:
    is_status = action == "status"
    if action not in ("status", "sync") or is_status and (yes or put_back):
        raise UsageError("give `vault status`, or `vault sync` with --yes or --put-back")
    return sync(memory, yes=yes, put_back=put_back, complete=True, dry_run=dry_run or is_status)


OPERATIONS = (
    Operation("vault", "take over notes that were edited by hand in store/", _vault, (
        Param("action", str, "status, or sync", "status", positional=True),
        Param("yes", bool, "forget the memories whose files were deleted", False),
        Param("put_back", bool, "write deleted files again", False),
        Param("dry_run", bool, "only show what would be done", False)),
        _show_synced, writes=True, scope="admin"),
)

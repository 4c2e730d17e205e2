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
plus size) and two marks (hashes of frontmatter and text) of what was last seen equal to its
record, and `look`, a hash of all names and stamps. Equal look: nothing to do, for one stat a
file (about 2 ms at 1,000 files, 20 ms at 10,000). Another stamp: the file is read, and where it
says what the record says, it is the store's own write. Where it still says what the marks say,
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hermes_lite import (FileStore, HermesError, HermesLite, Memory, Operation, Param, Record,
                         Refused, StorageError, UsageError, display_text, from_json, is_safe_id,
                         new_id, parse_time, read_markdown, seal, to_json, to_markdown,
                         write_atomic)

__all__ = ["Change", "OPERATIONS", "Synced", "sync", "take_over"]

_OWN = ("id", "created_at", "access_count", "last_accessed", "redacted")
_BLOCK = 512                                       # bytes; blocks of a disk are multiples of it
_APART = ("vault", "init", "version", "doctor", "repair", "backup", "restore", "scrub",
          "encrypt", "reindex")                    # commands that see the files as they are


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
    if command in _APART or not _has_mirror(memory):
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


class _Look:
    """One look at the folder: what is on disk, what was last seen, and what follows."""

    def __init__(self, memory: HermesLite) -> None:
        self.memory, self.store = memory, memory.store
        self.folder = memory.root / "store"
        self.found = _scan(self.folder)
        self.stamps: dict[str, int] = {}
        self.marks: dict[str, str] = {}
        self.changes: list[Change] = []
        self._settled: list[str] = []              # files to look at again after the write
        self._obsolete: list[str] = []             # files that go once the write is safe
        self._asides: dict[str, str] = {}          # name in the root -> words to keep there
        self._claimed: set[str] = set()            # files of ids that stand in renamed ones

    def sync(self, *, yes: bool, put_back: bool, dry_run: bool, complete: bool) -> Synced:
        """Do what the first page says; the fast way out costs one stat a file."""
        if not complete and self._is_as_before():
            return Synced(len(self.found))
        state = self.memory.state("vault")
        self.stamps, self.marks = (value if isinstance(value, dict) else {} for value in (
            state.get("stamps"), state.get("marks")))
        before = state.get("look"), dict(self.stamps), dict(self.marks)
        self.store.refresh()
        behind = frozenset(self.store.mirror.pending)
        changed = [name for name in self._unlike(complete) if not self._is_own_write(name)]
        gone = self._gone(changed)
        lagging = self._lagging(changed) if complete else []
        if gone and not self.folder.is_dir():
            if yes:
                raise Refused("the folder store/ is gone as a whole and nothing is forgotten "
                              "for that; --put-back writes it again", "no_folder")
            put_back = True
        again = [*lagging, *(name[:-3] for name in gone if put_back)]
        if changed or again:
            with contextlib.suppress(_Undo), self.memory.batch():
                for name in changed:
                    self._take(name, behind)
                for memory_id in again:
                    self._rewrite(memory_id)
                self._spare([] if put_back else gone)
                if dry_run:
                    raise _Undo
        self._spare([] if put_back else gone)
        if dry_run:
            self.store.refresh()
        else:
            self._finish(gone if yes else [])
        for name in gone if not put_back else ():
            self._say(name, "deleted", name[:-3], "its memory is forgotten" if yes else "")
        look = _digest(self.found) if self.found == self.stamps else ""
        if not dry_run and before != (look, self.stamps, self.marks):
            self._save(look)
        return Synced(len(self.found), tuple(self.changes), dry_run)

    def _is_as_before(self) -> bool:
        """Compare the folder with the head of the state alone: the rest costs as much again."""
        saved = self.store.files.read(".state_vault.json") or b""
        head, _, rest = saved.partition(b', "stamps"')
        with contextlib.suppress(ValueError, LookupError, TypeError):
            state = from_json(head + b"}") if rest else {}
            self.store.mirror.spared = frozenset(state["spared"])
            return state["look"] == _digest(self.found)
        return not self.found and not rest

    def _unlike(self, complete: bool) -> list[str]:
        """Return the files to look at: those with another stamp, or no record, or left alone."""
        return [name for name in sorted(self.found)
                if self.found[name] != self.stamps.get(name) or complete and (
                    not self.marks.get(name) or self.store.get(name[:-3]) is None)]

    def _is_own_write(self, name: str) -> bool:
        """Tell whether the file says what its record says; then it is seen and settled."""
        memory = self.store.get(name[:-3])
        if memory is None or self.found[name] < 0:
            return False
        with contextlib.suppress(ValueError, OSError):
            text = self._read(name).decode("utf-8")
            if text == to_markdown(memory) or (
                    _marks(self._overlaid(memory, read_markdown(text))[0]) == _marks(memory)
                    and not self.memory.redact(text)[1]):
                self._see(name, memory)
                return True
        return False

    def _gone(self, changed: list[str]) -> list[str]:
        """Return the files that a person deleted; those of removed memories are struck off."""
        gone = sorted(self.stamps.keys() - self.found.keys())
        self._claimed = {f"{self._claim(name)}.md" for name in changed} if gone else set()
        for name in gone:
            if self.store.get(name[:-3]) is None:
                self.stamps.pop(name)
                self.marks.pop(name, None)
        return [name for name in gone if name in self.stamps and name not in self._claimed]

    def _claim(self, name: str) -> str:
        with contextlib.suppress(ValueError, OSError):
            return str(read_markdown(self._read(name).decode("utf-8")).get("id"))
        return ""

    def _lagging(self, changed: list[str]) -> list[str]:
        """Return the ids whose file was never written, or is older than the record."""
        ids, changing = [], {*changed, *self._claimed}
        for memory in self.store:
            name = f"{memory.id}.md"
            if name in changing or name in self.stamps and name not in self.found:
                continue
            if name not in self.found or self.marks.get(name) not in ("", None, _marks(memory)):
                ids.append(memory.id)
        return ids

    def _rewrite(self, memory_id: str, why: str = "") -> None:
        """Have the mirror write a file again."""
        self.store.put(self.store.get(memory_id))
        self._say(f"{memory_id}.md", "written", memory_id, why)
        self._settled.append(f"{memory_id}.md")

    # -- one file -----------------------------------------------------------

    def _take(self, name: str, behind: frozenset[str]) -> None:
        """Take one changed file over; whatever is wrong with it leaves it alone."""
        memory = self.store.get(name[:-3])
        try:
            if self.found[name] < 0:
                raise ValueError("a link, or no file at all; it is not followed")
            data = self._read(name)
            if memory and self._is_torn(name, data, memory):
                self._rewrite(memory.id, "it was cut short, as by a power cut, and is written "
                              "again from its record")
                return
            entry = read_markdown(data.decode("utf-8"))
            if not entry["content"].strip():
                self._leave(name, "there is no text left in it; write one, or forget the memory"
                            if memory else "")     # or a note that is only just begun
            elif memory:
                self._take_edit(name, memory, entry, is_behind=memory.id in behind)
            else:
                self._take_new(name, entry)
        except UnicodeDecodeError:
            self._leave(name, "not UTF-8 text; save it as UTF-8")
        except FileNotFoundError:
            self.found.pop(name)                   # another process took it over meanwhile
        except HermesError as problem:
            if not isinstance(problem, ValueError):
                raise                              # the disk or the lock, not the file
            self._leave(name, str(problem))
        except OSError as problem:                 # not seen, so that the next look tries again
            self._say(name, "left", None, problem.strerror or str(problem))
        except ValueError as problem:
            self._leave(name, str(problem))

    def _is_torn(self, name: str, data: bytes, memory: Memory) -> bool:
        """Tell whether the file is the beginning of its record and no editor left it so."""
        beginning = data.rstrip(b"\0")
        record = _uncounted(to_markdown(memory).encode("utf-8", "replace"))
        if not data or not record.startswith(_uncounted(beginning)):
            return False
        if beginning != data or len(data) % _BLOCK == 0 or b"\n---" not in beginning:
            return True
        was_whole = self.marks.get(name) == _marks(memory)
        return not was_whole and not data.endswith(b"\n")

    def _read(self, name: str) -> bytes:
        most = 8 * self.memory.config["storage"]["max_text_chars"] + 1_048_576
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        with open(os.open(self.folder / name, flags), "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise ValueError("longer than any memory may be")
        return data

    def _leave(self, name: str, why: str = "") -> None:
        self.stamps[name], self.marks[name] = self.found[name], ""
        if why:
            self._say(name, "left", None, why)

    def _say(self, name: str, what: str, memory_id: str | None, detail: str = "") -> None:
        clean = self.memory.redact                 # the name without .md: X.md is a file to it
        shown = name[:-3].encode("utf-8", "replace").decode()
        self.changes.append(Change(f"{clean(shown)[0]}.md", what, memory_id, clean(detail)[0]))

    def _take_edit(self, name: str, old: Memory, entry: Mapping[str, object], *,
                   is_behind: bool = False, title: str = "") -> None:
        """Merge three ways: the file, its record, and the marks of when both were equal."""
        seen, odd = self._overlaid(old, entry)
        base = self.marks.get(f"{old.id}.md", "").split()
        file, record = _marks(seen).split(), _marks(old).split()
        lags = not base and _marks(replace(seen, importance=old.importance,
                                           execution_verified=old.execution_verified))
        if not title and (file in (base, record) or lags == _marks(old)):
            self._rewrite(old.id)                  # the record is newer, or the file had a
            return                                 # secret where no field is
        head, text = (new != before for new, before in zip(file, base or record))
        kept = replace(seen if head else old, content=(seen if text else old).content)
        if is_behind and not base:                 # nobody knows which of them is newer
            kept = replace(kept, importance=max(kept.importance, old.importance),
                           execution_verified=seen.execution_verified or old.execution_verified)
        if title:
            kept = replace(kept, extra={**kept.extra, "title": title})
        self.memory.admit(kept, replacing=True)
        self._say(name, "renamed" if title else "edited", old.id, odd)
        self._settled.append(f"{old.id}.md")
        if base and text and base[1] != record[1]:
            self._keep_both(name, old)

    def _keep_both(self, name: str, old: Memory) -> None:
        """Keep the text that the hand edit replaced, unless redaction made them the same."""
        if self.store.get(old.id).content == old.content:
            return
        copy = new_id(self.store.clock(), self.store.is_taken)
        self.memory.admit(replace(old, id=copy, meta={**old.meta, "vault": {
            "conflict_with": old.id}}), replacing=True)
        self._settled.append(f"{copy}.md")
        self._say(name, "both", copy, f"the text it had in the store is kept as {copy}")

    def _overlaid(self, old: Memory, entry: Mapping[str, object]) -> tuple[Memory, str]:
        """Return the record with what the file says, and a sentence on what it may not say."""
        config = self.memory.config
        row = old.entry()
        odd = []
        new = {name: value for name, value in entry.items() if name not in _OWN}
        for name, known in (("category", config["category_mapping"]), ("room", config.rooms)):
            if new.get(name, row[name]) not in (*known, row[name]):
                odd.append(f"there is no {name} of that name")
                del new[name]
        if new.get("expires_at") and parse_time(new["expires_at"]) is None:
            odd.append("expires_at is not a time")
            new["expires_at"] = row.get("expires_at")
        if new.get("room", old.room) == old.room and new.get("category", old.category) != (
                old.category):
            new["room"] = config.room_of(new["category"])
        if len(entry) > 1:                         # frontmatter: a removed key is meant
            for name in ("tags", "expires_at", *old.extra):
                row.pop(name, None)
        row.update(new, content=str(entry["content"]).strip())
        return Memory.from_entry(row), "; ".join(odd)

    def _take_new(self, name: str, entry: Mapping[str, object]) -> None:
        """Take a file over that no memory has: renamed, copied, added, or come back."""
        stem, wanted = name[:-3], str(entry.get("id", ""))
        wanted = wanted if is_safe_id(wanted) else ""
        own = self.store.get(wanted)
        if own and f"{wanted}.md" not in self.found:
            self._take_edit(name, own, entry, title=stem)
            self._obsolete.append(name)
            return
        if not wanted and self.store.is_taken(stem):
            wanted = stem
        row = {**entry, "id": wanted or "new"}
        if parse_time(row.get("created_at")) is None:
            row.pop("created_at", None)
        if wanted != stem:
            row.setdefault("title", stem)
        record = Memory.from_entry(row)
        record = replace(record, id="" if own else wanted, room=str(row.get("room", "")),
                         access_count=max(record.access_count, 0))
        try:
            done = self.memory.admit(record)
        except Refused as problem:
            if problem.reason_code != "forgotten":
                raise
            self._send_off(name, record)
            return
        self._say(name, "added" if done.created else "merged", done.id)
        self._settled.append(f"{done.id}.md")
        if name != f"{done.id}.md":
            self._obsolete.append(name)

    def _send_off(self, name: str, record: Memory) -> None:
        """Part with the file of a forgotten memory; other words than the forgotten are kept."""
        text, _ = self.memory.redact(record.content.strip())
        where = "its text was forgotten; remember it by hand to bring it back"
        if self.store.forgotten(text) is None:
            where = f"backups/set_aside_{zlib.crc32(text.encode('utf-8', 'replace')):08x}.md"
            self._asides[where] = text
            where = f"its memory was forgotten; what it says now is in {where}"
        self._say(name, "forgotten", record.id or None, where)
        self._obsolete.append(name)

    # -- afterwards ---------------------------------------------------------

    def _finish(self, forgotten: list[str]) -> None:
        """Remove files that have another name now, forget what may go, note what was seen."""
        for where, text in self._asides.items():
            self.store.files.write(where, text.encode("utf-8", "replace"))
        moved = (*self._obsolete, *forgotten, *self._claimed, *self._settled)
        now = _scan(self.folder) if moved else {}
        for name in self._obsolete:
            if now.get(name) == self.found[name]:  # nobody wrote to it since it was read
                with contextlib.suppress(OSError):
                    os.unlink(self.folder / name)
            self.found.pop(name)
        for name in forgotten:
            self.memory.forget(name[:-3], why="deleted by hand")
        for name in moved:
            memory, stamp = self.store.get(name[:-3]), now.get(name, -1)
            if memory and stamp >= 0 and name not in self._obsolete:
                self.found[name] = stamp
                self._see(name, memory)
            else:
                self.stamps.pop(name, None)
                self.marks.pop(name, None)

    def _see(self, name: str, memory: Memory) -> None:
        """Note that file and record are equal; a stamp too young to be trusted is not kept."""
        stamp = self.found[name]
        # A stamp of whole seconds (with the size in it) comes from a disk that counts so.
        window = 2_000_000_000 if stamp % 1_000_000_000 < 100_000 else 20_000_000
        self.stamps[name] = stamp if time.time_ns() - stamp > window else 0
        self.marks[name] = _marks(memory)

    def _spare(self, gone: list[str]) -> None:
        """Tell the store which files it must not write: left alone, or deleted by hand."""
        left = [name for name, mark in self.marks.items() if not mark]
        self.store.mirror.spared = frozenset(name[:-3] for name in (*left, *gone))

    def _save(self, look: str) -> None:
        """Keep the state; without it, on a read-only disk, files are compared again."""
        state = to_json({"version": 1, "look": look, "spared": sorted(self.store.mirror.spared),
                         "stamps": self.stamps, "marks": self.marks})
        with contextlib.suppress(StorageError):
            write_atomic(self.memory.root / ".state_vault.json",
                         seal(state, self.store.files.cipher), durable=False)


def _uncounted(data: bytes) -> bytes:
    """Return the bytes of a file without the values that a recall changes later than the file."""
    return re.sub(rb"(?m)^(access_count|last_accessed): .*$", rb"\1: ", data)


def _scan(folder: Path) -> dict[str, int]:
    """Return a stamp for each .md file of the folder, negative where it is no plain file."""
    found: dict[str, int] = {}
    look = os.stat
    handle = None
    place = f"{folder}{os.sep}"
    try:
        names = os.listdir(folder)
        if look in os.supports_dir_fd:             # a third faster than with whole paths
            handle, place = os.open(folder, os.O_RDONLY), ""
    except OSError:
        return found
    for name in names:
        if name[-3:] == ".md" and name[0] != ".":
            try:
                status = look(place + name, dir_fd=handle, follow_symlinks=False)
            except OSError:                        # it was deleted meanwhile
                continue
            stamp = status.st_mtime_ns + status.st_size
            found[name] = stamp if stat.S_ISREG(status.st_mode) else -stamp
    if handle is not None:
        os.close(handle)
    return found


def _digest(found: Mapping[str, int]) -> str:
    names = "\n".join(found).encode("utf-8", "surrogatepass")
    stamps = array("q", found.values()).tobytes()
    return hashlib.blake2b(names + b"\0" + stamps, digest_size=16).hexdigest()


def _marks(memory: Memory) -> str:
    """Return two hashes: of what a person may set in the frontmatter, and of the text."""
    row = memory.entry()
    text = str(row.pop("content")).strip()
    head = {name: value for name, value in sorted(row.items()) if name not in _OWN}
    return " ".join(hashlib.blake2b(data, digest_size=6).hexdigest()
                    for data in (to_json(head), text.encode("utf-8", "replace")))


# -- command line -------------------------------------------------------------

def _sentences(done: Synced) -> Iterator[str]:
    """Say what a person should know of an automatic look: not each file, but each surprise."""
    taken = [c for c in done.changes if c.what in ("edited", "added", "renamed", "merged")]
    if taken:
        yield "taken over from store/: " + ", ".join(
            f"{change.what} {change.file}" for change in taken[:5]) + (
            f" and {len(taken) - 5} more" if len(taken) > 5 else "")
    for change in done.changes:
        if change.detail and change.what != "deleted":
            yield f"store/{change.file}: {change.detail}"
    asked = [change.id for change in done.changes if change.what == "deleted"]
    if asked:
        yield (f"deleted by hand from store/: {', '.join(asked[:5])}"
               + (f" and {len(asked) - 5} more" if len(asked) > 5 else "")
               + "; `vault sync --yes` forgets what they held, `vault sync --put-back` writes "
               "the files again")


def _show_synced(result: Synced) -> Iterator[str]:
    for change in result.changes:
        detail = change.detail or ("--yes forgets its memory, --put-back writes it again"
                                   if change.what == "deleted" else "")
        yield f"{change.what}  {display_text(change.file)}" + (f"  {detail}" if detail else "")
    verb = "to do" if result.dry_run else "done"
    yield f"{result.files} files, {len(result.changes)} {verb}"


def _vault(memory: HermesLite, *, action: str, yes: bool, put_back: bool,
           dry_run: bool) -> Synced:
    if action not in ("status", "sync") or action == "status" and (yes or put_back):
        raise UsageError("give `vault status`, or `vault sync` with --yes or --put-back")
    return sync(memory, yes=yes, put_back=put_back, complete=True,
                dry_run=dry_run or action == "status")


OPERATIONS = (
    Operation("vault", "take over notes that were edited by hand in store/", _vault, (
        Param("action", str, "status, or sync", "status", positional=True),
        Param("yes", bool, "forget the memories whose files were deleted", False),
        Param("put_back", bool, "write deleted files again", False),
        Param("dry_run", bool, "only show what would be done", False)),
        _show_synced, writes=True),
)

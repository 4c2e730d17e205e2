"""Forget a selection of memories, and purge forgotten ones out of every copy.

    hermes_lite.py forget --room events --yes       hermes_lite.py forget ID --purge

The core forgets one id; the rest of the command `forget` is here (see HOOKS in
hermes_ext/__init__.py). Beside an id it selects by words, room, tags, agent, source and dates; a
selection only shows its plan until --yes. --purge rewrites the backups, cold files and files set
aside that still hold a memory. Of copies outside of the root it reaches cold storage alone.

The store's lock is held meanwhile: every other process waits, or gets Locked.
"""
from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import hermes_lite as core
from hermes_ext.cold_files import INDEX as COLD_INDEX
from hermes_ext.cold_files import ColdFiles
from hermes_ext.maintenance.store_files import (
    change_files, drop_undo, edit_cold, edit_entries, file_store, is_cold, is_records, leftovers,
    remove_files, unsealed)
from hermes_lite import (FileStore, HermesLite, Memory, NotFound, Refused, UsageError,
                         other_wordings)

__all__ = ["Selection", "forget"]

# Files that may go on naming the id of a forgotten memory: they hold no text.
_HOLDS_IDS = re.compile(r"(backups/)?tombstones\..+|\.state_.+|\.search/.+|MANIFEST\.json"
                        r"|logs/(audit|rules|events).*\.log|logs/events\.redis")


@dataclass(frozen=True, slots=True)
class Selection(core.Record):
    """Memories that were or would be forgotten; `texts` of a plan, in the order of `ids`.

    `purged` are the files rewritten, `backups` those in which an older copy still lies (a backup,
    an archive, a cold file), `left` those that a purge could not rewrite.
    """
    ids: tuple[str, ...]
    texts: tuple[str, ...] = ()
    purged: tuple[str, ...] = ()
    backups: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    dry_run: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """A plan is refused until --yes; an empty one is not."""
        return Refused.exit_code if self.dry_run and self.ids else 0

    def lines(self) -> Iterator[str]:
        """Yield the lines that the command prints."""
        for memory_id, text in zip(self.ids, self.texts):
            yield f"would forget {memory_id}  {core.display_text(text)}"
        for memory_id in () if self.dry_run else self.ids:
            yield f"forgotten {memory_id}"
        if self.dry_run:
            yield f"{len(self.ids)} would be forgotten; add --yes to do it"
        for name in self.purged:
            yield f"  rewritten without it: {name}"
        for name in self.backups:
            yield f"  an older copy is still in {name}; `forget ID --purge` takes it out"
        for name in self.left:
            yield f"  may still hold it and cannot be rewritten: {name}"


def forget(memory: HermesLite, *, id: str | None = None, room: str | None = None,
           query: str | None = None, tags: Iterable[str] | None = None,
           agent: str | None = None, source: str | None = None,
           since: str | None = None, until: str | None = None, reason: str | None = None,
           purge: bool = False, yes: bool = False) -> Selection:
    """Forget one id or a selection; with *purge*, out of every backup too.

    A selection without *yes* only shows what it takes. An id that was forgotten earlier can
    still be purged. NotFound for an unknown id.
    """
    store = file_store(memory)
    if tags is not None:
        tags = core.cut_tags(tags) if isinstance(tags, str) else [*tags]
    filters = {"room": room, "query": query, "tags": tags, "agent": agent,
               "source": source, "since": since, "until": until}
    core.check_selectors(id=id, **filters)
    if (id is not None) == any(value is not None for value in filters.values()):
        raise UsageError("give an id, or a selection: --query, --room, --tags, --agent, "
                         "--source, --since or --until")
    with memory.lock:
        if id and store.get(id) is None and id in ColdFiles(store).memories:
            raise NotFound(f"{id} is in cold storage; run `archive --forget {id}`")
    why = memory.redactor.redact_field(reason) if reason else "forgotten"
    if id is None and not yes:
        chosen = _select(memory, **filters)
        return Selection(tuple(each.id for each in chosen),
                         tuple(each.content for each in chosen), dry_run=True)
    with memory.session.writing():
        chosen = _select(memory, **filters) if id is None else _one(memory, id, purge=purge)
        for each in chosen:
            store.remove(each.id, why=why, also=other_wordings(each.content))
    forgotten = tuple(each.id for each in chosen)
    with memory.systems.entering("purge") if purge else contextlib.nullcontext():
        memory.systems.emit("forget", list(forgotten), why=why)
    warnings = []
    for each in chosen:
        warnings += memory.systems.notify("after_forget", each, why)

    ids = {*forgotten, *([id] if id else [])}      # an id that was forgotten earlier, too
    with memory.lock:
        purged, left = _purge(store, ids) if purge else ([], [])
        held = {name for each in ids for name in store.files.copies_of(each)} - {*left}
    return Selection(forgotten, (), tuple(purged), tuple(sorted(held)), tuple(left),
                     warnings=(*warnings, *memory.take_notices()))


def _one(memory: HermesLite, memory_id: str, *, purge: bool) -> list[Memory]:
    """Return the memory of an id; of one that was forgotten, and is to be purged, none.

    NotFound for an unknown id.
    """
    store = file_store(memory)
    was_forgotten = store.get(memory_id) is None and store.is_taken(memory_id)
    if purge and was_forgotten:
        return []
    return [memory.get(memory_id)]


def _select(memory: HermesLite, *, room: str | None, query: str | None,
            tags: Iterable[str] | None, agent: str | None, source: str | None,
            since: str | None, until: str | None) -> list[Memory]:
    """Return the memories, oldest first, that pass every filter; an unknown age passes no date."""
    words = set(core.tokenize_terms(query)) if query is not None else set()
    if query is not None and not words:
        raise UsageError("--query needs at least one word")
    end = memory.calendar.moment(until, "until", end=True)

    def is_chosen(each: Memory) -> bool:
        if source not in (None, each.source) or not words <= set(
                core.tokenize_terms(each.content)):
            return False
        if since is None and end is None:
            return True
        made = core.parse_time(each.created_at)
        return made is not None and (end is None or made <= end)

    rows = memory.list(room=room, since=since, tags=tags or (), agent=agent)
    return [each for each in reversed(rows) if is_chosen(each)]


def _purge(store: FileStore, ids: set[str]) -> tuple[list[str], list[str]]:
    """Rewrite every copy without these memories; return (names rewritten, names left)."""
    cold = ColdFiles(store)
    purger = _Purger(store, ids, own_cold_files=cold.files.keys())
    with cold.locked(), store.transaction():
        places = {name: f"{cold.files[name]['place']}/{name}" for name in cold.names_of(ids)}
        cold_left = cold.drop(ids)
        remove_files(leftovers(store.root))
        drop_undo(store.root)
        found = list(change_files(store, "purging", unsealed(store, purger.edit)))
    still_held = cold.names_of(ids)
    purged = [place for name, place in places.items() if name not in still_held]
    purged += [name for name, is_read in found if is_read]
    return purged, cold_left + [name for name, is_read in found if not is_read]


class _Purger:
    """Takes memories out of one file after the other.

    Records that say the same under another id go, too. *own_cold_files* are those of this store,
    whose index has to know: they are not touched here.
    """

    def __init__(self, store: FileStore, ids: set[str], *, own_cold_files: Collection[str]
                 ) -> None:
        self._ids = ids
        self._own_cold_files = own_cold_files
        self._key, tombstones = store.get_tombstones()
        self._fingerprints = {fingerprint for fingerprint, tombstone in tombstones.items()
                              if tombstone["id"] in ids}

    def edit(self, name: str, data: bytes, is_packed: bool) -> bytes | None:
        """Return a file without the memories, None to delete it; *is_packed*: it is in a backup.

        ValueError for one that holds an id and that cannot be rewritten.
        """
        is_written_by_store = name in ("index.json", "index.journal", COLD_INDEX)
        is_own_cold_file = PurePosixPath(name).name in self._own_cold_files
        if not is_packed and (is_written_by_store or is_own_cold_file):
            return data
        if is_cold(name):
            return edit_cold(data, self._kept)
        if is_records(name):
            return edit_entries(data, self._kept, self._kept_lines)
        if name.startswith("store/"):
            return None if PurePosixPath(name).stem in self._ids else data
        names_one = any(memory_id.encode() in data for memory_id in self._ids)
        if _HOLDS_IDS.fullmatch(name) or not names_one:
            return data
        if name == "vectors.f32":
            return core.without_vectors(data, self._ids)
        if name == COLD_INDEX:                     # in a backup: restore needs no more of it
            index = core.from_json(data)
            return core.to_json({**index, "memories": self._without_ids(index["memories"])})
        if name == "stb_snapshot.json":
            return core.to_json([row for row in core.from_json(data) if row[0] not in self._ids])
        if name == "vectors.json":
            content = core.from_json(data)
            vectors = self._without_ids(content["vectors"])
            checksums = {memory_id: each for memory_id, each
                         in content.get("checksums", {}).items() if memory_id in vectors}
            return core.to_json({**content, "checksums": checksums, "vectors": vectors})
        raise ValueError("a file of somebody else holds it")

    def _is_named_in(self, text: str) -> bool:
        """Tell whether a text contains one of the ids."""
        return any(memory_id in text for memory_id in self._ids)

    def _without_ids(self, rows: Mapping[str, object]) -> dict[str, object]:
        return {memory_id: row for memory_id, row in rows.items() if memory_id not in self._ids}

    def _kept(self, entry: object) -> object | None:
        """Return an entry of records, None where it is one of the memories or says the same."""
        if not isinstance(entry, dict):
            return None if self._is_named_in(str(entry)) else entry
        if str(entry.get("id")) in self._ids:
            return None
        fingerprint = core.tombstone_fingerprint(self._key, str(entry.get("content")))
        return None if fingerprint in self._fingerprints else entry

    def _kept_lines(self, text: str) -> str:
        """Return a file of records that is no JSON without the lines that name an id."""
        lines = re.findall(r"[^\n]*\n|[^\n]+", text)
        if len(lines) < 2 and self._is_named_in(text):
            raise ValueError("one line holds it all")
        return "".join(line for line in lines if not self._is_named_in(line))


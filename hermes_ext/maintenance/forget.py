"""Forget a selection of memories, and purge forgotten ones out of every copy.

    hermes_lite.py forget --room events --yes       hermes_lite.py forget ID --purge

The core forgets one id; the rest of the command `forget` is here (see HOOKS in
hermes_ext/__init__.py). Beside an id it selects by words, room, tags, agent, source and dates; a
selection only shows its plan until --yes. --purge rewrites the backups, cold files and files set
aside that still hold a memory. Of copies outside of the root it reaches cold storage alone.

The store's lock is held meanwhile: every other process waits, or gets Locked.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import hermes_lite as core
from hermes_ext.cold_files import INDEX as COLD_INDEX
from hermes_ext.cold_files import ColdFiles
from hermes_ext.maintenance.store_files import (
    change_files, edit_cold, edit_entries, file_store, is_cold, is_records, leftovers,
    remove_files, unsealed)
from hermes_lite import (FileStore, HermesLite, Memory, NotFound, Refused, UsageError,
                         other_wordings)

__all__ = ["Selection", "forget"]

# Files that may go on naming the id of a forgotten memory: they hold no text.
_HOLDS_IDS = re.compile(r"(backups/)?tombstones\..+|\.state_.+|\.search/.+|MANIFEST\.json"
                        r"|logs/(audit|rules).*\.log")


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
    if id and store.get(id) is None and id in ColdFiles(store).memories:
        raise NotFound(f"{id} is in cold storage; run `archive --forget {id}`")
    why = memory.redactor.redact_field(reason) if reason else "forgotten"
    if not (id or yes):
        chosen = _select(memory, **filters)
        return Selection(tuple(m.id for m in chosen), tuple(m.content for m in chosen),
                         dry_run=True)
    with store.transaction():
        if id:
            chosen = [] if purge and store.get(id) is None and store.is_taken(id) else [
                memory.get(id)]
        else:
            chosen = _select(memory, **filters)
        for each in chosen:
            store.remove(each.id, why=why, also=other_wordings(each.content))
    ids = {each.id for each in chosen} | ({id} if id else set())
    memory.systems.emit("forget", [each.id for each in chosen], why=why)
    warnings = [w for each in chosen for w in memory.systems.notify("after_forget", each, why)]
    purged, left = _purge(store, ids) if purge else ([], [])
    held = sorted({name for each in ids for name in store.files.copies_of(each)} - {*left})
    return Selection(tuple(m.id for m in chosen), (), tuple(purged), tuple(held), tuple(left),
                     warnings=(*warnings, *memory.take_notices()))


def _select(memory: HermesLite, *, room: str | None, query: str | None,
            tags: Iterable[str] | None, agent: str | None, source: str | None,
            since: str | None, until: str | None) -> list[Memory]:
    """Return the memories, oldest first, that pass every filter; an unknown age passes no date."""
    words = set(core.tokenize_terms(query)) if query is not None else set()
    if query is not None and not words:
        raise UsageError("--query needs at least one word")
    end = memory.calendar.moment(until, "until", end=True)
    rows = memory.list(room=room, since=since, tags=tags or (), agent=agent)
    return [m for m in reversed(rows)
            if source in (None, m.source)
            and words <= set(core.tokenize_terms(m.content))
            and (since is None and end is None or core.parse_time(m.created_at))
            and (end is None or core.parse_time(m.created_at) <= end)]


def _purge(store: FileStore, ids: set[str]) -> tuple[list[str], list[str]]:
    """Rewrite every copy without these memories; return (names rewritten, names left)."""
    cold = ColdFiles(store)
    key, tombstones = store.get_tombstones()
    fingerprints = {fingerprint for fingerprint, tombstone in tombstones.items()
                    if tombstone["id"] in ids}

    def kept(entry: object) -> object | None:
        if not isinstance(entry, dict):
            return None if any(memory_id in str(entry) for memory_id in ids) else entry
        if str(entry.get("id")) in ids:
            return None
        fingerprint = core.tombstone_fingerprint(key, str(entry.get("content")))
        return None if fingerprint in fingerprints else entry

    def kept_lines(text: str) -> str:
        lines = re.findall(r"[^\n]*\n|[^\n]+", text)
        if len(lines) < 2 and any(memory_id in text for memory_id in ids):
            raise ValueError("one line holds it all")
        return "".join(line for line in lines if not any(i in line for i in ids))

    def edit(name: str, data: bytes, packed: bool) -> bytes | None:
        if not packed and name in ("index.json", "index.journal", COLD_INDEX):
            return data
        if not packed and PurePosixPath(name).name in cold.files:
            return data                                # its index has to know, see below
        if is_cold(name):
            return edit_cold(data, kept)
        if is_records(name):
            return edit_entries(data, kept, kept_lines)
        if name.startswith("store/"):
            return None if PurePosixPath(name).stem in ids else data
        if not any(memory_id.encode() in data for memory_id in ids) or _HOLDS_IDS.fullmatch(name):
            return data
        if name == "vectors.f32":
            return core.without_vectors(data, ids)
        if name == COLD_INDEX:                         # in a backup: restore needs no more of it
            index = core.from_json(data)
            return core.to_json({**index, "memories": {
                i: row for i, row in index["memories"].items() if i not in ids}})
        if name == "stb_snapshot.json":
            return core.to_json([row for row in core.from_json(data) if row[0] not in ids])
        if name != "vectors.json":
            raise ValueError("a file of somebody else holds it")
        content = core.from_json(data)
        vectors = {i: vector for i, vector in content["vectors"].items() if i not in ids}
        checksums = {i: each for i, each in content.get("checksums", {}).items() if i in vectors}
        return core.to_json({**content, "checksums": checksums, "vectors": vectors})

    with cold.locked(), store.transaction():
        places = {name: f"{cold.files[name]['place']}/{name}" for name in cold.names_of(ids)}
        cold_left = cold.drop(ids)
        remove_files(leftovers(store.root))
        found = list(change_files(store, "purging", unsealed(store, edit)))
    still = {*cold.names_of(ids)}
    purged = [place for name, place in places.items() if name not in still]
    return (purged + [name for name, ok in found if ok],
            cold_left + [name for name, ok in found if not ok])

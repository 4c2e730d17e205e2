"""Snapshots: all memories as they are now, under a label, to compare with and to bring back.

    hermes_lite.py snapshot --label before-change
    hermes_lite.py snapshots
    hermes_lite.py snapshot diff before-change            what is new, gone, or another by now
    hermes_lite.py snapshot restore before-change         asks; only a person can

backups/snapshot_STAMP_LABEL.json is {"archived_at", "label", "memories": entries}: the form of
prune_*.json, sealed like it; scrub, forget --purge and encrypt reach into it.

A restore puts back what is gone or has another text, lane or status by now. What was remembered
since stays, access counts stay, and what was forgotten on purpose stays forgotten.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hermes_ext.lanes.authority import NAME
from hermes_ext.lanes.extension import find
from hermes_ext.lanes.person import confirm
from hermes_lite import (DamagedData, HermesLite, Memory, NotFound, Operation, Param, Record,
                         Refused, UsageError, excerpt, from_json, is_safe_id, iso, pluralize,
                         to_json)

__all__ = ["Difference", "OPERATIONS", "Snapshot", "diff", "restore", "snapshot", "snapshots"]


@dataclass(frozen=True, slots=True)
class Snapshot(Record):
    """One snapshot; `file` is its name in the data root."""
    label: str
    made_at: str
    memories: int
    file: str


@dataclass(frozen=True, slots=True)
class Difference(Record):
    """What is not as it was: each pairs an id with its text, of `changed` the former one."""
    label: str
    new: tuple[tuple[str, str], ...] = ()
    gone: tuple[tuple[str, str], ...] = ()
    changed: tuple[tuple[str, str], ...] = ()
    forgotten: tuple[str, ...] = ()
    restored: bool = False


def snapshot(memory: HermesLite, label: str | None = None) -> Snapshot:
    """Keep all memories as they are now; the label is for people, and must be new."""
    now = memory.clock()
    label = f"{now:%Y%m%d-%H%M%S}" if label is None else label.strip()
    if not is_safe_id(label) or memory.redactor.redact_field(label) != label:
        raise UsageError("a label holds letters, digits, - and _ alone")
    if any(each.label == label for each in snapshots(memory)):
        raise Refused(f"there is a snapshot {label} already; give another label", "already_there")
    with memory.session.writing() as store:        # nobody writes in between
        entries = [one.entry() for one in store]
        name = f"backups/snapshot_{now:%Y%m%d_%H%M%S}_{label}.json"
        store.files.write(name, to_json({"archived_at": iso(now), "label": label,
                                   "memories": entries}))
    memory.systems.emit("snapshot", why=label)
    return Snapshot(label, iso(now), len(entries), name)


def snapshots(memory: HermesLite) -> list[Snapshot]:
    """Return the snapshots, oldest first; one that cannot be read becomes a notice."""
    find(memory)
    found = []
    for path in sorted((memory.root / "backups").glob("snapshot_*.json")):
        name = f"backups/{path.name}"
        try:
            label, made_at, rows = _read(memory, name)
            found.append(Snapshot(label, made_at, len(rows), name))
        except DamagedData as problem:
            memory.notices.append(str(problem))
    return found


def _read(memory: HermesLite, name: str) -> tuple[str, str, dict[str, Memory]]:
    """Return label, time and memories of a snapshot; DamagedData when it cannot be read."""
    try:
        data = from_json(memory.store.files.read(name) or b"")
        if not isinstance(data, dict) or not isinstance(data["memories"], list):
            raise ValueError("it is no snapshot")
        rows = [Memory.from_entry(entry) for entry in data["memories"]]
        return str(data["label"]), str(data["archived_at"]), {one.id: one for one in rows}
    except (ValueError, KeyError) as problem:
        raise DamagedData(f"{name} cannot be read ({problem}); restore a backup that holds it"
                          ) from None


def _rows_of(memory: HermesLite, label: str) -> dict[str, Memory]:
    """Return the memories of the newest snapshot of a label."""
    for each in reversed(snapshots(memory)):
        if each.label == label:
            return _read(memory, each.file)[2]
    raise NotFound(f"there is no snapshot {memory.redactor.quote(label)}; `snapshots` lists them")


def diff(memory: HermesLite, label: str, other: str | None = None) -> Difference:
    """Compare a snapshot with another one, or with what is there now."""
    before = _rows_of(memory, label)
    if other is None:
        with memory.session.reading() as store:
            after = {one.id: one for one in store}
    else:
        after = _rows_of(memory, other)
    memory.systems.emit("snapshot", why=label)
    return _compared(memory, label, before, after)


def _compared(memory: HermesLite, label: str, before: Mapping[str, Memory],
              after: Mapping[str, Memory]) -> Difference:
    def told(rows: Mapping[str, Memory], ids: set[str]) -> tuple[tuple[str, str], ...]:
        clean = memory.redactor.redact_field
        return tuple((each, clean(rows[each].content)) for each in sorted(ids))

    common = before.keys() & after.keys()
    changed = {each for each in common if _core(before[each]) != _core(after[each])}
    removed = memory.store.removals()
    gone = before.keys() - after.keys()
    forgotten = {each for each in gone if not str(removed.get(each, {}).get(
        "why", "pruned: ")).startswith("pruned: ")}
    return Difference(label, told(after, set(after.keys() - before.keys())),
                      told(before, set(gone)), told(before, changed), tuple(sorted(forgotten)))


def _core(one: Memory) -> tuple[object, ...]:
    """Return what makes a memory another one: its text, lane and status, not how often read."""
    note = one.meta.get(NAME)
    said = {**note} if isinstance(note, Mapping) else {}
    for name in ("seal", "rev", "at"):
        said.pop(name, None)
    return one.content, one.category, one.status, one.supersedes, tuple(one.tags), str(said)


def restore(memory: HermesLite, label: str, *, dry_run: bool = False) -> Difference:
    """Bring back what a snapshot holds and the store does not, or holds as another."""
    found = diff(memory, label)
    if dry_run or not (found.gone or found.changed):
        return found
    confirm(memory, f"restore {label}", _lines(found))
    before = _rows_of(memory, label)
    with memory.session.writing() as store:
        for memory_id, _ in (*found.gone, *found.changed):
            one, here = before[memory_id], store.get(memory_id)
            if memory_id in found.forgotten:
                continue
            if here is not None:
                one = replace(one, access_count=here.access_count,
                              last_accessed=here.last_accessed)
            else:
                store.remove_tombstone(one.content, memory_id=memory_id)
            store.put(memory.redactor.outgoing(one))
    memory.systems.emit("snapshot-restore", [i for i, _ in (*found.gone, *found.changed)
                                             if i not in found.forgotten], why=label)
    return replace(found, restored=True)


# -- commands -----------------------------------------------------------------

def _snapshot(memory: HermesLite, *, action: str, names: list[str], label: str | None,
              dry_run: bool) -> object:
    if action == "make" and not names:
        return snapshot(memory, label)
    if action == "diff" and 1 <= len(names) <= 2:
        return diff(memory, *names)
    if action == "restore" and len(names) == 1:
        return restore(memory, names[0], dry_run=dry_run)
    raise UsageError("snapshot --label LABEL, snapshot diff LABEL [LABEL], or snapshot restore "
                     "LABEL")


def _lines(found: Difference) -> Iterator[str]:
    for title in ("new", "gone", "changed"):
        for memory_id, content in getattr(found, title):
            kept = "  (forgotten, stays so)" if memory_id in found.forgotten else ""
            yield f"{title}  {memory_id}  {excerpt(content)}{kept}"


def _show(result: object) -> Iterator[str]:
    if isinstance(result, Snapshot):
        yield (f"{result.label}  {result.made_at}  "
               f"{pluralize(result.memories, 'memory', 'memories')}  {result.file}")
    elif isinstance(result, Difference):
        yield from _lines(result)
        if result.restored:
            yield "restored"
        elif not (result.new or result.gone or result.changed):
            yield "no difference"


def _show_all(rows: list[Snapshot]) -> Iterator[str]:
    for each in rows:
        yield from _show(each)


OPERATIONS = (
    Operation("snapshot", "keep all memories as they are now, compare with that, or bring it back",
              _snapshot, (
        Param("action", str, "make, diff or restore", "make", positional=True),
        Param("names", str, "diff: one label, or two; restore: the label", (), positional=True,
              repeated=True),
        Param("label", str, "make: its name (default: the time)"),
        Param("dry_run", bool, "restore: only show what it would bring back", False)), _show,
        writes=True, scope="admin"),
    Operation("snapshots", "list the snapshots", snapshots, (), _show_all),
)

"""Sync: the memories of several machines, brought together through any shared folder.

    hermes_lite.py sync ~/Dropbox/memory         the first time
    hermes_lite.py sync                          from then on, by hand or by cron
    hermes_lite.py sync --dry-run
    hermes_lite.py sync --status
    hermes_lite.py sync --retire 0a1b2c3d4e5f    a machine that is no more

Dropbox, Syncthing, a git checkout, a USB stick: the folder only has to carry files. There is no
server, and no device writes another's file. Run it as often as you like on every machine.

    new        goes to every device with its id, its dates and every field
    edited     the newer text takes the older one's place everywhere. Newer is what has seen the
               other (vector clocks); no wall clock is asked
    both       a text edited on two devices: one keeps the id, the other becomes a memory of its
               own, whose meta.sync.conflict_with names that id. Which one is the same everywhere
    fields     are merged one by one; of two changes at once of the same field the larger wins
               (importance, verified), lists are united. Access counts: the largest
    same       the same words remembered on two devices become one memory; what is merely
               similar stays two
    forgotten  is forgotten everywhere, also where it was edited meanwhile, also if the words come
               back under another id from a device that was away. To have it again, remember it
               again, where you know that it was forgotten
    pruned     is each device's own affair: it goes by dates and rules which are the same
               everywhere, or differ on purpose. It comes back if another device changes it. The
               folder keeps it
    refused    what this device's own rules refuse (size, systems, form) stays out, and is said

Everything that comes in passes the door of `remember`: it is redacted again. What the door
changes, by rules or rooms that only this device has, stays on this device.

In the folder, hermes-lite.DEVICE.jsonl is all that DEVICE has to tell, version 1. Each line is
`crc32 JSON\\n`, or `crc32 token\\n` where the folder has a key; the first is the header.
    {"hermes-lite-sync": 1, "device", "n", "gen", "sealed"}     n: changes made up to here
    {"n", "id", "clock": {device: n}, "text", "facts": {field: value}, "levels": {field: level},
     "count": [accesses, last], "gone": {device: n}, "same": [clock], "void": [clock],
     "after": [id]}
What is new is appended. A text that was replaced or forgotten is no longer in the file: it is
written anew without it, by every device that told it, as soon as that one hears of the change. Of
what was forgotten only the id stays. A torn or not yet delivered end is waited for.
Conflict copies that a service makes ("… (conflicted copy).jsonl", ".sync-conflict-…") are read
like any file, for a change may arrive twice and in any order, and their owner removes them.

A key: HERMES_SYNC_KEY, one long passphrase, the same on every device (environment or .env),
seals every line. An encrypted store needs it, or `--plain`, once, to be written readable.

A device's name is random and kept in .state_sync.json. A root that was copied, or put back from a
backup, gets a new one: its folder is another inode, or its file is not as it left it. So does one
whose state was lost. The file of the name before stays until `--retire`, which takes over what a
file still tells and removes it; so do the files of machines that are no more, with what they may
hold of forgotten texts. What `restore` puts back is an edit like any other.

How changes are noticed: .state_sync.json holds hashes of every record as last seen, no text. If
neither store nor folder has changed, only its head is read. Every change of a run is held in
memory at once; 50 are one transaction. After a kill the next run does the rest.

Beside this module: merge.py knows neither files nor stores, and its `to_line` and `from_line` are
the form of a change, for other ways to travel; folder.py reads the files of the folder, state.py
holds the state of a device, local.py finds changes on it, apply.py merges and stores one memory,
outbox.py writes the file of this device.
"""
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hermes_ext.sync.folder import Inbox, folder_cipher, listed, state_hash
from hermes_ext.sync.merge import DEVICE, Item
from hermes_ext.sync.outbox import Outbox
from hermes_ext.sync.state import Book, new_device
from hermes_ext.sync.apply import Applier
from hermes_lite import (ConfigError, HermesLite, NotFound, Operation, Param, Record, Refused,
                         UsageError, check_selectors, pluralize, display_text, fits, from_json,
                         make_folder, take_over_edits)

__all__ = ["OPERATIONS", "Synced", "retire", "status", "sync"]

_CHUNK = 50


@dataclass(frozen=True, slots=True)
class Synced(Record):
    """What a run did; with `dry_run` nothing of it was done.

    `merged` are memories here that another device changed, `kept_both` texts that are kept
    beside another: `copies` pairs the ids. `waiting` counts what has not arrived whole, `faults`
    pairs a file with what was refused in it, or waits. `renewed` is the former name of this
    device.
    """
    folder: str
    device: str
    sent: int = 0
    received: int = 0
    merged: int = 0
    kept_both: int = 0
    forgotten: int = 0
    refused: int = 0
    waiting: int = 0
    copies: tuple[tuple[str, str], ...] = ()
    faults: tuple[tuple[str, str], ...] = ()
    renewed: str | None = None
    dry_run: bool = False
    warnings: tuple[str, ...] = ()


class _Undo(Exception):
    """Ends the transaction of a dry run."""


# -- one run ------------------------------------------------------------------

class _Run:
    """One look at store and folder, and all that follows from it."""

    def __init__(self, memory: HermesLite, folder: Path, state: dict[str, object]) -> None:
        self.memory, self.folder = memory, folder
        self.inbox = Inbox(memory, folder, state["files"])
        self.book = Book(state)
        self.applier = Applier(memory, self.book, self.inbox)
        self.outbox = Outbox(memory, folder, self.book, self.inbox)

    def run(self, *, dry_run: bool = False) -> Synced:
        """Do the first page; a dry run does it under the lock and undoes it."""
        memory = self.memory
        book = self.book
        applier = self.applier
        self.outbox.check_identity()
        memory.store.refresh()
        revision = memory.store.revision()
        changed, has_lost = applier.local.changed()
        incoming = self.inbox.read(self.outbox.path.name, {book.device: book.last_number},
                                   from_start=book.read_all or has_lost)
        ids = self._forgotten_first({*changed, *incoming}, incoming)
        if dry_run:
            with contextlib.suppress(_Undo), memory.batch():
                applier.apply(ids, incoming)
                raise _Undo
            memory.store.refresh()
        else:
            for start in range(0, len(ids), _CHUNK):
                with memory.batch():
                    applier.apply(ids[start:start + _CHUNK], incoming)
            applier.merge_duplicates()
            applier.notify_systems()
            self.outbox.send(revision)
        return self._done(dry_run)

    def _forgotten_first(self, ids: Iterable[str], incoming: Mapping[str, Item]) -> list[str]:
        """Order ids: what is forgotten here or elsewhere before what stays.

        So a text that is forgotten under one id and new under another is known as forgotten.
        """
        def stays(memory_id: str) -> bool:
            is_here = self.memory.store.get(memory_id) is not None
            is_forgotten = memory_id in incoming and bool(incoming[memory_id].forgotten)
            return is_here and not is_forgotten

        return sorted(ids, key=lambda memory_id: (stays(memory_id), memory_id))

    def _done(self, dry_run: bool) -> Synced:
        """Return what the run did."""
        warnings: tuple[str, ...] = ()
        renewed = self.outbox.renewed
        if renewed:
            warnings = (f"this data root is a copy, or was put back: from now on it is the device "
                        f"{self.book.device}. If no other root goes by the name {renewed}, run: "
                        f"sync --retire {renewed}",)
        return Synced(
            str(self.folder), self.book.device, sent=len(self.book.to_send),
            **self.applier.counts, kept_both=len(self.applier.copies),
            refused=self.inbox.refused, waiting=self.inbox.waiting,
            copies=tuple(self.applier.copies), faults=tuple(self.inbox.faults),
            renewed=renewed, dry_run=dry_run, warnings=warnings)


# -- the operation ------------------------------------------------------------

def sync(memory: HermesLite, folder: str | os.PathLike | None = None, *, plain: bool = False,
         dry_run: bool = False) -> Synced:
    """Take in what other devices told, tell what is new here; return what became of it.

    The folder is remembered. Locked when another run is at work on this root; Refused for an
    encrypted store without HERMES_SYNC_KEY, unless *plain* was given once; NotFound where the
    remembered folder is not there, as on a disk that is not mounted.
    """
    check_selectors(folder=None if folder is None else os.fspath(folder))
    with memory.exclusive("sync"):
        take_over_edits(memory)
        state = _load_state_head(memory)
        path = _choose_folder(memory, state, folder, plain, make=not dry_run)
        if not dry_run and not plain and _is_unchanged(memory, state, path):
            return Synced(str(path), state["device"])
        state = _load_state(memory, path, plain)
        if not path.is_dir():
            raise NotFound(f"there is no folder {path} yet; without --dry-run it is made")
        return _Run(memory, path, state).run(dry_run=dry_run)


def _is_unchanged(memory: HermesLite, state: Mapping[str, object], folder: Path) -> bool:
    """Tell whether neither the folder nor the memories have changed since the last run."""
    if not state or state["folder"] != str(folder) or not state["look"]:
        return False
    memory.store.refresh()
    return state["look"] == state_hash(folder, listed(folder), memory.store.revision())


_CLOCK = {str: int}
_OWN = {"n": int, "size": int, "crc": int, "gen": str, "tail": str, "lines": int, "sealed": str}
_ROW = [str, int, int, [[_CLOCK, str]], str, {
    "marks?": {str: str}, "levels?": _CLOCK, "kept?": [str], "gone?": _CLOCK, "same?": [_CLOCK],
    "void?": [_CLOCK], "aged?": bool, "note?": str, "stored?": str}]
_STATE = {
    "version": int, "look": str, "device": str, "n": int, "folder": str, "plain": bool,
    "salt": str, "inode": int, "moves?": int, "again?": bool,
    "own": (None, _OWN), "rows?": {str: _ROW},
    "files": {str: {"stamp": [int], "device": str, "n": int, "head": int, "at": int,
                    "waits": bool}}}


def _is_sound(state: object) -> bool:
    """Tell whether a state, with or without its rows, is one that `sync` wrote."""
    return (fits(state, _STATE) and DEVICE.fullmatch(state["device"]) is not None
            and len(state["salt"]) <= 64)


def _is_readable(state: dict[str, object]) -> bool:
    """Tell whether a state is sound, or of another version and nothing to judge here."""
    return _is_sound(state) or fits(state, {"version": int}) and state["version"] != 1


def _load_state_head(memory: HermesLite) -> dict[str, object]:
    """Return the state without its rows, which are most of it; {} where there is none."""
    data = memory.store.files.read(".state_sync.json") or b""
    head, separator, _ = data.partition(b', "rows"')
    if not separator:
        return {}
    try:
        state = from_json(head + b"}")
    except ValueError:
        return {}
    return state if _is_sound(state) and state["version"] == 1 else {}


def _load_state(memory: HermesLite, folder: Path, plain: bool) -> dict[str, object]:
    """Return the whole state, a new device's where there is none or it is damaged."""
    fresh = {"version": 1, "look": "", "device": new_device(), "n": 0, "folder": str(folder),
             "plain": plain, "salt": os.urandom(16).hex(), "inode": os.stat(memory.root).st_ino,
             "moves": 0, "own": None, "files": {}, "rows": {}}
    state = {**fresh, **memory.state("sync", sound=_is_readable)}
    if state["version"] != 1:
        raise ConfigError(f"{memory.root / '.state_sync.json'} is of another version; update "
                          "hermes-lite")
    if state["folder"] != str(folder):
        state.update(folder=str(folder), files={}, look="")
    return {**state, "plain": (state["plain"] or plain) and not folder_cipher(memory)}


def _choose_folder(memory: HermesLite, state: Mapping[str, object], folder: object,
                   plain: bool, *, make: bool) -> Path:
    """Return the folder, made where it is new; an error says what is in the way."""
    if folder is None and not state:
        raise UsageError("give FOLDER, the folder that your machines share; later runs know it")
    named = os.fspath(folder) if folder is not None else state["folder"]
    if not named.strip() or "\0" in named:
        raise UsageError("FOLDER is empty or contains a NUL character; give a name")
    path = Path(os.path.abspath(named))
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(memory.root)):
        raise Refused("FOLDER lies inside the data root, where the store's own files are; choose "
                      "a folder that your machines share", "inside_root")
    if not (plain or state.get("plain")):
        _refuse_readable(memory, state)
    if path.is_dir():
        return path
    if path.exists():
        raise UsageError(f"{path} is a file; give a folder")
    was_used_before = state.get("folder") == str(path)
    if was_used_before or not path.parent.is_dir():
        raise NotFound(f"there is no folder {path}; is its disk mounted, and is the name right?")
    if make:
        make_folder(path)
    return path


def _refuse_readable(memory: HermesLite, state: Mapping[str, object]) -> None:
    """Refused where what is encrypted or was sealed would become readable in the folder."""
    was_sealed = bool((state.get("own") or {}).get("sealed"))
    is_secret = was_sealed or memory.store.files.cipher is not None
    if is_secret and folder_cipher(memory) is None:
        raise Refused(f"{'its files were sealed' if was_sealed else 'this store is encrypted'} "
                      "and would become readable in the folder; set HERMES_SYNC_KEY, in .env for "
                      "cron, to one long passphrase, the same on every device, or add --plain",
                      "needs_key")


def status(memory: HermesLite) -> dict[str, object]:
    """Return folder, own name, and who has told how many changes; nothing is changed."""
    state = _load_state_head(memory)
    if not state:
        raise NotFound("nothing was synced yet; run: sync FOLDER")
    path = Path(state["folder"])
    found = listed(path) if path.is_dir() else {}
    devices = {known["device"]: known["n"] for name, known in state["files"].items()
               if name in found and known["device"] != state["device"]}
    waiting = [name for name, known in state["files"].items() if known["waits"]]
    return {"folder": str(path), "there": path.is_dir(), "device": state["device"],
            "told": state["n"], "sealed": bool((state["own"] or {}).get("sealed")),
            "devices": dict(sorted(devices.items())), "waiting": sorted(waiting),
            "bytes": sum(size for _, size in found.values())}


def retire(memory: HermesLite, device: str) -> Synced:
    """Take over what a device that is no more has told, and remove its files.

    Refused where something in them is still on its way; NotFound where no file is its.
    """
    check_selectors(device=device)
    with memory.exclusive("sync"):
        state = _load_state_head(memory)
        if not state:
            raise NotFound("nothing was synced yet; run: sync FOLDER")
        if device == state["device"]:
            raise Refused("that is this device itself", "itself")
        path = _choose_folder(memory, state, None, False, make=False)
        if device not in {known["device"] for known in state["files"].values()}:
            raise NotFound(f"no file in {path} is of the device {memory.redactor.quote(device)}; "
                           "`sync --status` names them")
        run = _Run(memory, path, _load_state(memory, path, False))
        run.book.send_everything()
        done = run.run()
        theirs = [file for file in run.inbox.files if file.device == device]
        if any(file.waits for file in theirs):
            raise Refused("something in its file is damaged or waits for another device; "
                          "`sync` says what", "waits")
        for file in theirs:
            os.unlink(path / file.name)
        return done


_show_status = status                # the command's parameters have these names
_retire_device = retire


def _sync(memory: HermesLite, *, folder: Path | None, dry_run: bool, status: bool, plain: bool,
          retire: str | None) -> object:
    check_selectors(retire=retire)
    has_several = sum((dry_run, status, bool(retire))) > 1
    has_needless_folder = folder is not None and (status or bool(retire))
    if has_several or has_needless_folder:
        raise UsageError("give FOLDER or --dry-run or both, or --status alone, or --retire alone")
    if status:
        return _show_status(memory)
    if retire:
        return _retire_device(memory, retire)
    return sync(memory, folder, plain=plain, dry_run=dry_run)


def _status_lines(row: Mapping[str, object]) -> Iterator[str]:
    yield f"folder: {row['folder']}" + ("" if row["there"] else " (it cannot be reached)")
    yield f"in it: {row['bytes']} bytes, {'sealed' if row['sealed'] else 'readable by who has it'}"
    yield f"this device: {row['device']}, {pluralize(row['told'], 'change')} written"
    for name, count in row["devices"].items():
        yield f"device {name}: {pluralize(count, 'change')} read"
    if row["waiting"]:
        yield f"not yet delivered whole: {', '.join(row['waiting'])}"


def _show(result: object) -> Iterator[str]:
    if isinstance(result, dict):
        yield from map(display_text, _status_lines(result))
        return
    for name, why in result.faults:
        yield f"{display_text(name)}: {display_text(why)}"
    for memory_id, copy in result.copies:
        yield f"{memory_id}: edited on two devices; the other text is kept as {copy}"
    line = (f"{result.sent} {'to send' if result.dry_run else 'sent'}, {result.received} "
            f"received, {result.merged} merged, {result.kept_both} kept both, {result.refused} "
            f"refused, {result.forgotten} forgotten")
    if result.waiting:
        line += f", {result.waiting} not yet delivered whole"
    yield line


OPERATIONS = (
    Operation("sync", "bring the memories of several machines together through a folder", _sync, (
        Param("folder", Path, "the shared folder; known after the first time", positional=True),
        Param("dry_run", bool, "only show what would be done", False),
        Param("status", bool, "show folder and devices", False),
        Param("plain", bool, "write readable files although the store is encrypted", False),
        Param("retire", str, "take over the files of a device that is no more")),
        _show, writes=True, scope="admin"),
)

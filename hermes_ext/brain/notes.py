"""A shorter MEMORY.md or USER.md of a host, as a diff that a person reviews.

    hermes_lite.py brain notes ~/.hermes/memories/MEMORY.md
    hermes_lite.py brain notes ~/.hermes/memories/MEMORY.md --apply 3f1c09a2b7de

A host gives such a file to its model whole, so it has a limit of characters: 2,200 for MEMORY.md
and 1,375 for USER.md in Hermes Agent. Entries are parted by lines with § alone; where there are
none, each line is an entry, and headings stay.

Taken out are entries that another one says already, then, while the file is above the limit, the
weakest of those that this memory holds: what sleeps first. So nothing is lost: what the memory
does not hold stays, and is named where the file is too long because of it. The command only shows
the diff; `--apply` with the number under it writes exactly that, and refuses a file that has
changed since.
"""
from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hermes_ext.brain.extension import find
from hermes_ext.brain.note import is_asleep
from hermes_lite import (HermesLite, Memory, NotFound, Operation, Param, Record, Refused,
                         UsageError, differs_in_fact, display_text, excerpt, normalise, pluralize,
                         similarity, write_atomic)

__all__ = ["OPERATIONS", "Proposal", "propose_notes"]

_LIMITS = {"USER.md": 1_375}           # characters that Hermes Agent gives a file
_LIMIT = 2_200
_MOST_BYTES = 1_000_000
_PARTED = re.compile(r"\r?\n[ \t]*§[ \t]*\r?\n")
_SAME = 0.85                           # similarity of two entries that say the same


@dataclass(frozen=True, slots=True)
class Proposal(Record):
    """A shorter file. `dropped` pairs an entry with the reason, `missing` are entries that the
    memory does not hold; the texts are redacted. `fingerprint` stands for exactly this change.
    """
    file: str
    limit: int
    before: int
    after: int
    dropped: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    diff: str
    fingerprint: str
    applied: bool = False

    @property
    def is_too_long(self) -> bool:
        return self.after > self.limit

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that a person should read."""
        if not self.is_too_long:
            return ()
        many = pluralize(len(self.missing), "entry", "entries")
        return (f"{self.after - self.limit} characters remain too many: the memory does not hold "
                f"{many} of this file; remember them first",)


def propose_notes(memory: HermesLite, file: str | os.PathLike[str], *, limit: int | None = None,
                  apply: str | None = None) -> Proposal:
    """Return a shorter version of a host's file as a diff; *apply* is the fingerprint to write.

    Refused where the file, or what is proposed, is no longer what the fingerprint stands for, and
    where the file would still be too long.
    """
    find(memory)
    path = Path(file).expanduser()
    old = _read(path)
    most = _LIMITS.get(path.name, _LIMIT) if limit is None else limit
    separator, entries = _entries_of(old)
    with memory.session.reading():
        dropped, missing = _to_drop(memory, entries, separator, most)
    kept = [entry for place, entry in enumerate(entries) if place not in dropped]
    new = separator.join(kept) + ("\n" if old.endswith("\n") else "")
    clean = memory.redactor.redact_field
    proposal = Proposal(
        str(path), most, len(old), len(new) if dropped else len(old),
        tuple((clean(entries[place]), why) for place, why in dropped.items()),
        tuple(clean(entries[place]) for place in missing),
        _diff(clean(old), clean(new), path.name) if dropped else "", _fingerprint(old, new))
    if apply is not None:
        _write(path, new, proposal, apply)
        proposal = replace(proposal, applied=True)
    memory.systems.emit("brain notes", why=path.name)
    return proposal


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is larger than 1 MB; it is no file of a host's notes")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text in UTF-8") from None
    except OSError as problem:
        raise NotFound(f"cannot read {path}: {problem.strerror or problem}") from None


def _entries_of(text: str) -> tuple[str, list[str]]:
    """Return what stands between two entries, and the entries."""
    body = text.removesuffix("\n")
    if _PARTED.search(body):
        return "\n§\n", _PARTED.split(body)
    return "\n", body.split("\n")


def _to_drop(memory: HermesLite, entries: Sequence[str], separator: str, limit: int
             ) -> tuple[dict[int, str], list[int]]:
    """Return {place: reason} of the entries to drop, and the places of what is not held."""
    dropped: dict[int, str] = {}
    for place, entry in enumerate(entries):
        earlier = [entries[each] for each in range(place) if each not in dropped]
        if _is_entry(entry) and any(_says_the_same(entry, each) for each in earlier):
            dropped[place] = "another entry says it"
    size = sum(len(entry) + len(separator) for place, entry in enumerate(entries)
               if place not in dropped)
    held = {place: one for place, entry in enumerate(entries)
            if place not in dropped and _is_entry(entry) and (one := _held(memory, entry))}
    for place, one in sorted(held.items(), key=lambda item: _weakest_first(memory, item[1])):
        if size <= limit:
            break
        dropped[place] = f"{one.id} holds it" + (", asleep" if is_asleep(one) else "")
        size -= len(entries[place]) + len(separator)
    missing = [place for place, entry in enumerate(entries)
               if _is_entry(entry) and place not in dropped and place not in held]
    return dropped, missing


def _is_entry(text: str) -> bool:
    """Tell whether a part of a file is an entry: no heading, and not blank."""
    return bool(text.strip()) and not text.lstrip().startswith("#")


def _bare(entry: str) -> str:
    """Return an entry without the sign of a list."""
    return re.sub(r"^\s*(?:[-*+]|\d+[.)])\s+", "", entry).strip()


def _says_the_same(one: str, two: str) -> bool:
    one, two = _bare(one), _bare(two)
    if normalise(one) == normalise(two):
        return True
    return similarity(one, two) >= _SAME and not differs_in_fact(one, two)


def _held(memory: HermesLite, entry: str) -> Memory | None:
    """Return the memory that says what an entry says, asleep or not."""
    found = memory.store.search.duplicate(_bare(entry))
    return memory.store.get(found) if found else None


def _weakest_first(memory: HermesLite, one: Memory) -> tuple[object, ...]:
    return not is_asleep(one), find(memory).strength(one), one.created_at, one.id


def _diff(old: str, new: str, name: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), name, f"{name}, shorter",
                                 lineterm="", n=1)
    return "\n".join(lines)


def _fingerprint(old: str, new: str) -> str:
    return hashlib.sha256(f"{old}\0{new}".encode()).hexdigest()[:12]


def _write(path: Path, new: str, proposal: Proposal, fingerprint: str) -> None:
    """Replace the file by what was shown; its permissions stay."""
    if fingerprint != proposal.fingerprint:
        raise Refused("the file or the memory has changed since that diff was shown; look at the "
                      "new one first", "text_changed")
    if proposal.is_too_long:
        raise Refused(proposal.warnings[0], "too_long")
    mode = path.stat().st_mode
    write_atomic(path, new.encode())
    with contextlib.suppress(OSError):             # a file of somebody else's
        os.chmod(path, mode & 0o777)


# -- commands -----------------------------------------------------------------

def _notes(memory: HermesLite, *, file: str, limit: int | None, apply: str | None) -> Proposal:
    return propose_notes(memory, file, limit=limit, apply=apply)


def _show(found: Proposal) -> Iterator[str]:
    if not found.dropped:
        yield f"nothing to take out: {found.before:,} of {found.limit:,} characters"
        return
    yield from map(display_text, found.diff.split("\n"))
    for entry, why in found.dropped:
        yield f"    {excerpt(entry)}: {why}"
    yield f"{found.before:,} characters become {found.after:,}; the limit is {found.limit:,}"
    if found.applied:
        yield f"wrote {found.file}"
    elif not found.is_too_long:
        yield f"    brain notes {found.file} --apply {found.fingerprint}"


OPERATIONS = (
    Operation("brain notes", "propose a shorter MEMORY.md or USER.md of a host, as a diff",
              _notes, (
        Param("file", Path, "the file", positional=True, required=True),
        Param("limit", int, "characters it may have (default: 1,375 for USER.md, else 2,200)",
              least=1),
        Param("apply", str, "write the change that has this number, as the diff shows it")),
        _show, writes=True, scope="admin"),
)

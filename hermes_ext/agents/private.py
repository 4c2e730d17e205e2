"""Private mode: what is said meanwhile is not taken into the memory, now or later.

    hermes_lite.py private on --session S         or --project FOLDER, or --all; --for 2h
    hermes_lite.py private off                    ends all that is on; or --session S, --project P
    hermes_lite.py private status

`private.json` in the data root keeps every period with its begin and end, also when it is over.
Whether something is private is judged by the time at which it was said: a later run over the logs,
or a retry, comes to the same answer. A period covers whole seconds, for some logs round their
times. A project covers the folders below it.

A file that cannot be read is said, and everything counts as private until it is put back: what
was private before cannot be known. Hooks and servers ask `is_private`; it opens no store.
"""
from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hermes_lite import (DamagedData, FileLock, HermesLite, NotFound, Operation, Param, Record,
                         UsageError, check_selectors, display_text, from_json, iso, make_folder,
                         parse_time, pluralize, printable_json, utc_now, write_atomic)

__all__ = ["FILE", "OPERATIONS", "Period", "Status", "is_private", "periods", "status",
           "switch_off", "switch_on"]

FILE = "private.json"      # {"version": 1, "periods": [{"scope", "value", "from", "until"}, …]}
_SCOPES = ("session", "project", "all")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, slots=True)
class Period(Record):
    """A time in which one session, one project or everything is private; times are aware UTC.

    *value* is the session's id or the project's folder, "" for all. *until* is None while nobody
    has ended it.
    """
    scope: str
    value: str
    begin: datetime
    until: datetime | None = None

    def is_on(self, now: datetime) -> bool:
        """Tell whether it is going on."""
        return self.until is None or self.until > now


@dataclass(frozen=True, slots=True)
class Status(Record):
    """What is private now, and how many periods are over."""
    private: bool
    active: tuple[Period, ...] = ()
    over: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """That of damaged data where the file cannot be read."""
        return DamagedData.exit_code if self.warnings else 0


# -- asking -------------------------------------------------------------------

def is_private(root: str | os.PathLike[str], *, session: str | None = None,
               project: str | os.PathLike[str] | None = None, at: object = None,
               until: object = None) -> bool:
    """Tell whether what was said in a session of a project at a time is private; never raises.

    *at* is any form of a time, None for now. Where the time is not known well, *at* and *until*
    are the earliest and the latest it can be. A time that cannot be read is any time. *project*
    is a folder or "sha256:" with the hash of one; "" is one that is not known, and counts as
    private while any project is; None is no project. True where private.json is damaged.
    """
    try:
        known = periods(root)
    except (DamagedData, OSError):
        return True
    first = utc_now() if at is None else parse_time(at)
    last = first if until is None else parse_time(until)
    return any(_covers(period, session, project) and _overlaps(period, first, last)
               for period in known)


def _covers(period: Period, session: str | None, project: str | os.PathLike[str] | None) -> bool:
    if period.scope == "all":
        return True
    if period.scope == "session":
        return session == period.value
    if project is None:
        return False
    name = os.fspath(project)
    if name.startswith("sha256:"):
        return name == "sha256:" + hashlib.sha256(period.value.encode()).hexdigest()
    folders = (os.path.abspath(name), os.path.realpath(name))
    return not name or any(Path(folder).is_relative_to(period.value) for folder in folders)


def _overlaps(period: Period, first: datetime | None, last: datetime | None) -> bool:
    """Tell whether a period shares a second with the time from *first* to *last*; None is open."""
    begins = period.begin.replace(microsecond=0)
    if last is not None and last < begins:
        return False
    if period.until is None or first is None:
        return True
    return first < period.until.replace(microsecond=0) + timedelta(seconds=1)


_READ: dict[str, tuple[object, list[Period]]] = {}     # {path: (stamp of the file, its periods)}


def periods(root: str | os.PathLike[str]) -> list[Period]:
    """Return the periods of a data root; DamagedData when its file cannot be read.

    The file is read again when it has changed.
    """
    path = os.path.join(root, FILE)
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise _damaged(path, problem.strerror) from None
    stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
    if path not in _READ or _READ[path][0] != stamp:
        _READ[path] = (stamp, _read(path))
    return _READ[path][1]


def _read(path: str) -> list[Period]:
    try:
        with open(path, "rb") as file:
            held: Any = from_json(file.read())
        if held["version"] != 1:
            raise ValueError("it was written by another version")
        return [_period(entry) for entry in held["periods"]]
    except OSError as problem:
        raise _damaged(path, problem.strerror) from None
    except (ValueError, KeyError, TypeError) as problem:
        is_ours = isinstance(problem, ValueError) and str(problem).startswith("it ")
        raise _damaged(path, str(problem) if is_ours else "it holds something else") from None


def _period(entry: dict[str, object]) -> Period:
    begin = parse_time(entry["from"])
    until = parse_time(entry["until"])
    if (entry["scope"] not in _SCOPES or not isinstance(entry["value"], str) or begin is None
            or (until is None and entry["until"] is not None)):
        raise ValueError("it holds a period that cannot be read")
    return Period(str(entry["scope"]), entry["value"], begin, until)


def _damaged(path: str, reason: object) -> DamagedData:
    return DamagedData(f"{path} cannot be read ({reason}), so everything counts as private; put "
                       "it back from a backup, or remove it: then nothing was ever private")


# -- switching ----------------------------------------------------------------

def switch_on(root: str | os.PathLike[str], *, session: str | None = None,
              project: str | os.PathLike[str] | None = None, everything: bool = False,
              span: str | None = None, now: datetime | None = None,
              timeout: float = 10.0) -> Period:
    """Make a session, a project or everything private from now on, for a time or until `off`.

    Where it is private already, it ends when the new time says.
    """
    scope, value = _selected(session, project, everything)
    now = now or utc_now()
    until = now + _span(span) if span is not None else None
    with _changing(Path(root), timeout) as known:
        same = [period for period in known
                if (period.scope, period.value) == (scope, value) and period.is_on(now)]
        begin = min((period.begin for period in same), default=now)
        period = Period(scope, value, begin, until)
        known[:] = [one for one in known if one not in same] + [period]
    return period


def switch_off(root: str | os.PathLike[str], *, session: str | None = None,
               project: str | os.PathLike[str] | None = None, now: datetime | None = None,
               timeout: float = 10.0) -> list[Period]:
    """End what is private and return it as it was; NotFound where it is not private."""
    wanted = None if session is None and project is None else _selected(session, project, False)
    now = now or utc_now()
    with _changing(Path(root), timeout) as known:
        ended = [period for period in known if period.is_on(now)
                 and wanted in (None, (period.scope, period.value))]
        if not ended:
            raise NotFound("nothing of that is private; `private status` shows what is")
        known[:] = [replace(one, until=now) if one in ended else one for one in known]
    return ended


def _selected(session: str | None, project: str | os.PathLike[str] | None, everything: bool
              ) -> tuple[str, str]:
    """Return the scope and its value; UsageError where there is not exactly one."""
    check_selectors(session=session, project=None if project is None else os.fspath(project))
    if (session is not None) + (project is not None) + everything != 1:
        raise UsageError("give one of --session S, --project FOLDER and --all")
    if session is not None:
        return "session", session.strip()
    if project is not None:
        return "project", os.path.realpath(os.path.expanduser(project))
    return "all", ""


def _span(text: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,5})([mhdw])", text.strip())
    if not found or not int(found[1]):
        raise UsageError(f"{display_text(text)!r} is no time; give 30m, 2h, 1d or 1w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


class _changing:
    """Hold the lock of private.json, give its periods as a list, and write them back."""

    def __init__(self, root: Path, timeout: float) -> None:
        self._root, self._timeout = root, timeout
        make_folder(root)
        self._lock = FileLock(root / ".lock_private")

    def __enter__(self) -> list[Period]:
        self._lock.acquire(timeout=self._timeout)
        try:
            self._periods = [*periods(self._root)]
        except BaseException:
            self._lock.release()
            raise
        return self._periods

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                held = {"version": 1, "periods": [_entry(period) for period in self._periods]}
                write_atomic(self._root / FILE, printable_json(held).encode())
        finally:
            self._lock.release()


def _entry(period: Period) -> dict[str, object]:
    return {"scope": period.scope, "value": period.value, "from": period.begin.isoformat(),
            "until": period.until.isoformat() if period.until else None}


def status(root: str | os.PathLike[str], *, now: datetime | None = None) -> Status:
    """Return what is private now; a damaged file is a warning, and everything is private."""
    now = now or utc_now()
    try:
        known = periods(root)
    except DamagedData as problem:
        return Status(True, warnings=(str(problem),))
    active = tuple(period for period in known if period.is_on(now))
    return Status(bool(active), active, len(known) - len(active))


# -- command line -------------------------------------------------------------

def _described(period: Period) -> str:
    what = "everything" if period.scope == "all" else (
        f"{period.scope} {display_text(period.value)}")
    end = f"until {iso(period.until)}" if period.until else "until `private off`"
    return f"{what} is private from {iso(period.begin)} on, {end}"


def _show_status(found: Status) -> Iterator[str]:
    for period in found.active:
        yield _described(period)
    if found.warnings:
        yield "everything counts as private"
    elif not found.active:
        yield "nothing is private"
    if found.over:
        yield f"{pluralize(found.over, 'period is', 'periods are')} over; what was said in " \
              f"{'it' if found.over == 1 else 'them'} stays out"


def _on(memory: HermesLite, session: str | None, project: Path | None, **more: Any) -> Period:
    return switch_on(memory.root, session=session, project=project, everything=more["all"],
                     span=more["for"], now=memory.clock(),
                     timeout=memory.config["storage"]["lock_timeout_seconds"])


def _off(memory: HermesLite, session: str | None, project: Path | None) -> list[Period]:
    return switch_off(memory.root, session=session, project=project, now=memory.clock(),
                      timeout=memory.config["storage"]["lock_timeout_seconds"])


_SESSION = Param("session", str, "the id of one session, as its host names it")
_PROJECT = Param("project", Path, "a folder, with all below it")
OPERATIONS = (
    Operation("private on", "keep what is said from now on out of the memory", _on, (
        _SESSION, _PROJECT, Param("all", bool, "everything that is said anywhere", False),
        Param("for", str, "how long: 30m, 2h, 1d, 1w (default: until `private off`)")),
        lambda period: [_described(period)], scope="local"),
    Operation("private off", "end private mode; what was said meanwhile stays out", _off, (
        _SESSION, _PROJECT),
        lambda ended: [f"ended: {_described(period)}" for period in ended], scope="local"),
    Operation("private status", "show what is private now",
              lambda memory: status(memory.root, now=memory.clock()), (), _show_status),
)

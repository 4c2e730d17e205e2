"""`connect` and `disconnect`: enter this memory into the settings of an agent's host.

    hermes_lite.py connect claude-code             shows what it would write, asks, writes
    hermes_lite.py disconnect claude-code          takes exactly that out again
    hermes_lite.py agents                          the hosts of this machine, and what is broken

A host gets the MCP server and, where it runs hooks, one at the start of a session (what it should
know) and one at the end (its log is read in the background). Each file is kept beside itself as
NAME.before-hermes-lite; if nobody has changed it since, `disconnect` puts those bytes back, else it
takes out its own entries alone. What was entered stands in `.connections.json` of the root.
"""
from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hermes_lite as core
from hermes_ext.agents.hosts import HOSTS, SERVER, Entry, Host
from hermes_ext.program import program_words
from hermes_lite import (
    HermesLite,
    NotFound,
    Operation,
    Param,
    Record,
    Refused,
    StorageError,
    UsageError,
    from_json,
    iso,
    make_folder,
    printable_json,
    write_atomic,
)

__all__ = ["Connected", "HostStatus", "OPERATIONS", "agents", "connect", "disconnect"]

_STATE = ".connections.json"                       # {host: {"at", "agent", "reads", "files": {path: row}}}
_BACKUP = ".before-hermes-lite"
_LAUNCHER = "hermes-hook"                          # in bin/ of the root


@dataclass(frozen=True, slots=True)
class Connected(Record):
    """What `connect` or `disconnect` wrote, or would: the files, and the difference in each."""
    host: str
    files: tuple[str, ...]
    diff: str
    then: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class HostStatus(Record):
    """A host: `found` on this machine, `connected`, when it last wrote and read, what is broken."""
    host: str
    found: bool
    connected: bool
    wrote: str | None = None
    read: str | None = None
    problem: str | None = None


def connect(memory: HermesLite, host: str, *, agent: str | None = None, reads: str = "",
            dry_run: bool = False) -> Connected:
    """Enter this memory into a host's settings; again changes nothing.

    *reads* are the agents, with commas, whose memories it is shown besides its own and those of
    no agent; "" is all. Refused where a file cannot be changed safely: then nothing was written anywhere.
    """
    one = _host(host)
    if re.search(r"[^\w.,-]", reads):
        raise UsageError("--reads takes names of agents with commas, such as codex,hermes")
    known = {} if dry_run else _state(memory).get(host, {})
    if known and [known["agent"], known.get("reads", "")] != [agent or host, reads]:
        raise Refused(f"{host} is connected otherwise; run first: disconnect {host}",
                      "already_there")
    entry = _entry(memory, one, agent, reads)
    folder = one.home(os.environ, Path.home())
    changes = []
    for edit in one.edits(folder, entry):
        before = _read(edit.path)
        after = edit.added(before)
        if after != before:
            changes.append((edit.path, before, after))
    if not dry_run:
        state = _state(memory)
        files = dict(state.get(host, {}).get("files", {}))
        if not one.edits(folder, entry):
            return Connected(host, (), "", one.then)
        _write_launcher(memory)
        for path, before, after in changes:
            files.setdefault(str(path), _keep_before(path, before))
            _write(path, after)
            files[str(path)]["after"] = _sha(after)
        state[host] = {"at": iso(memory.clock()), "agent": entry.agent, "reads": reads,
                       "files": files}
        _save(memory, state)
        _refresh(memory, host)
    return Connected(host, tuple(str(path) for path, _, _ in changes),
                     _diff(memory, changes), one.then, dry_run)


def disconnect(memory: HermesLite, host: str, *, dry_run: bool = False) -> Connected:
    """Take this memory out of a host's settings; NotFound where it is not connected."""
    one = _host(host)
    state = _state(memory)
    if host not in state:
        raise NotFound(f"{host} is not connected; `agents` shows what is")
    entry = _entry(memory, one, state[host]["agent"], state[host].get("reads", ""))
    edits = {str(edit.path): edit for edit in one.edits(
        one.home(os.environ, Path.home()), entry)}
    changes: list[tuple[Path, bytes | None, bytes | None]] = []
    for name, row in state[host]["files"].items():
        path = Path(name)
        now = _read(path)
        kept = _read(Path(name + _BACKUP)) if row["existed"] else None
        if now is not None and _sha(now) == row["after"] and (kept is not None) == row["existed"]:
            changes.append((path, now, kept))
        elif name in edits:
            changes.append((path, now, edits[name].removed(now)))
    if not dry_run:
        for path, before, after in changes:
            if after != before:
                _write(path, after)
            with contextlib.suppress(FileNotFoundError):
                Path(str(path) + _BACKUP).unlink()
            with contextlib.suppress(OSError):     # a folder that `connect` made, and is empty
                path.parent.rmdir()
        del state[host]
        _save(memory, state)
    return Connected(host, tuple(str(path) for path, before, after in changes if before != after),
                     _diff(memory, changes), "", dry_run)


def agents(memory: HermesLite) -> list[HostStatus]:
    """Return each host that is on this machine or connected."""
    state = _state(memory)
    found = []
    for name, host in HOSTS.items():
        folder = host.home(os.environ, Path.home())
        is_found, is_connected = folder.is_dir(), name in state
        if not is_found and not is_connected:
            continue
        agent = state[name]["agent"] if is_connected else name
        wrote = max((one.created_at for one in memory.matching(agent=agent)), default=None)
        found.append(HostStatus(name, is_found, is_connected, wrote, _last_read(memory, name),
                                _problem(memory, host, state) if is_connected else None))
    return found


# -- parts --------------------------------------------------------------------

def _host(name: str) -> Host:
    if name not in HOSTS:
        near = difflib.get_close_matches(name, HOSTS, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(HOSTS)}"
        raise UsageError(f"{name[:40]!r} is no host; {hint}")
    return HOSTS[name]


def _entry(memory: HermesLite, host: Host, agent: str | None, reads: str) -> Entry:
    root = memory.root.resolve()
    server = (*program_words("hermes-lite", "hermes_lite"), "--root", str(root), "mcp")
    name = agent or host.name
    hook = (sys.executable, str(root / "bin" / _LAUNCHER), "--host", host.name, "--root", str(root),
            "--agent", name)
    if reads:
        server, hook = (*server, "--reads", reads), (*hook, "--reads", reads)
    return Entry(server, hook, root, name, reads)


def _write_launcher(memory: HermesLite) -> None:
    """Write the program behind the hooks: a module is compiled once, a script at each start."""
    home = str(Path(core.__file__).resolve().parent)
    folder = memory.root / "bin"
    make_folder(memory.root)
    make_folder(folder)
    text = (f"import sys\nsys.path.insert(0, {home!r})\n"
            "from hermes_ext.agents.hook import main\nsys.exit(main(sys.argv[1:]))\n")
    write_atomic(folder / _LAUNCHER, text.encode())


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise StorageError(f"cannot read {path}: {problem.strerror}") from None


def _write(path: Path, data: bytes | None) -> None:
    """Replace a file of the host, or delete it; its mode stays, and a link stays a link."""
    path = Path(os.path.realpath(path))
    if data is None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise StorageError(f"cannot write {path}: {problem.strerror}") from None
    write_atomic(path, data)
    path.chmod(mode)


def _keep_before(path: Path, before: bytes | None) -> dict[str, Any]:
    """Keep a file as it is beside itself; return its row in the state."""
    if before is not None:
        backup = Path(str(path) + _BACKUP)
        write_atomic(backup, before)
        backup.chmod(stat.S_IMODE(path.stat().st_mode))
    return {"existed": before is not None, "after": ""}


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _diff(memory: HermesLite, changes: list[tuple[Path, bytes | None, bytes | None]]) -> str:
    """Return the difference as `diff -u` writes it; what redaction hides is hidden in it."""
    parts = []
    for path, before, after in changes:
        old, new = ((data or b"").decode("utf-8", "replace").splitlines() for data in (before, after))
        parts += difflib.unified_diff(old, new, str(path), str(path), n=1, lineterm="")
    return memory.redact("\n".join(parts))[0]


def _state(memory: HermesLite) -> dict[str, Any]:
    try:
        found = from_json((memory.root / _STATE).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise Refused(f"{_STATE} cannot be read; delete it and connect again", "damaged_state")
    return found


def _save(memory: HermesLite, state: Mapping[str, Any]) -> None:
    make_folder(memory.root)
    if state:
        write_atomic(memory.root / _STATE, printable_json(state).encode() + b"\n")
    else:
        (memory.root / _STATE).unlink(missing_ok=True)


def _refresh(memory: HermesLite, host: str) -> None:
    """Keep what the next session should know, so that its start is quick."""
    from hermes_ext.agents.hook import keep_context
    keep_context(str(memory.root), host)


def _last_read(memory: HermesLite, host: str) -> str | None:
    """Return when a hook of the host last ran: the mark that it leaves."""
    try:
        when = (memory.root / "logs" / f"hook_{host}").stat().st_mtime
    except OSError:
        return None
    from datetime import datetime, timezone
    return iso(datetime.fromtimestamp(when, timezone.utc))


def _problem(memory: HermesLite, host: Host, state: Mapping[str, Any]) -> str | None:
    """Return what is broken, with the command that mends it."""
    mend = f"run `connect {host.name}`"
    folder = host.home(os.environ, Path.home())
    if not folder.is_dir():
        return f"{folder} is gone; run `disconnect {host.name}`"
    row = state[host.name]
    entry = _entry(memory, host, row["agent"], row.get("reads", ""))
    for edit in host.edits(folder, entry):
        if not edit.is_in(_read(edit.path)):
            return f"{edit.path} has no entry of this memory any more; {mend}"
    if host.edits(folder, entry) and not (memory.root / "bin" / _LAUNCHER).is_file():
        return f"bin/{_LAUNCHER} is gone; {mend}"
    return None


# -- commands -----------------------------------------------------------------

def _show(done: Connected) -> Iterator[str]:
    if done.diff:
        yield from done.diff.split("\n")
    verb = "would be written" if done.dry_run else "written"
    yield f"{done.host}: {core.pluralize(len(done.files), 'file')} {verb}"
    if done.then and not done.dry_run:
        yield done.then


def _show_agents(rows: list[HostStatus]) -> Iterator[str]:
    for row in rows:
        state = "connected" if row.connected else f"not connected: `connect {row.host}`"
        times = [f"wrote {row.wrote[:16]}" if row.wrote else "", f"read {row.read[:16]}"
                 if row.read else ""]
        yield "  ".join(filter(None, (f"{row.host:<12}", state, *times)))
        if row.problem:
            yield f"  broken: {row.problem}"


_HOST_PARAM = Param("host", str, f"one of: {', '.join(HOSTS)}", positional=True, required=True)

OPERATIONS = (
    Operation("connect", f"enter this memory ({SERVER}) into the settings of an agent's host",
              connect, (_HOST_PARAM, Param("agent", str, "the name under which it writes "
                                           "(default: the host's)"),
                        Param("reads", str, "agents, with commas, whose memories it is shown "
                              "(default: all)", "")), _show, writes=True,
              destructive=True, scope="local"),
    Operation("disconnect", "take this memory out of the settings of a host", disconnect,
              (_HOST_PARAM,), _show, writes=True, destructive=True, scope="local"),
    Operation("agents", "list the hosts of this machine, what is connected and what is broken",
              agents, (), _show_agents, scope="local"),
)

"""Attacks on a whole store: every command meets a failing disk, a power cut, damaged files.

    python3 test_stress.py --full        all of them, and a table at the end

A `Scene` is a store with memories of which it is known what must be there and what must not. An
attack runs one command on a copy of it, or damages the copy, and `judge` then opens the store as
a person would and counts:

lost         an acknowledged memory that is nowhere: neither in the store, nor in cold storage, nor
             after `repair`. Where a damage took the only copy, it is no loss when it was said
returned     a forgotten memory that is back
tracebacks   an exception that nobody caught, a hanging command, or an exit code of no meaning
"""
from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import json
import os
import random
import re
import shutil
import sys
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME))

import auto_sediment  # noqa: E402
import hermes_lite as core  # noqa: E402
from hermes_lite import HermesError, HermesLite  # noqa: E402
from hermes_ext.tests.faults import (DAMAGES, KILLED, SQLITE_CALLS, WHOLE_FILE,  # noqa: E402
                                     FaultyDisk, Outcome, PowerCut, can_trace, damage, run_child,
                                     run_traced, start_child, tries_of, wait_child, write_tree)

__all__ = ["Command", "KINDS", "Scene", "Tally", "attack_all", "attack_some", "commands",
           "cut_power", "damage_files", "fail_calls", "fail_disk", "judge", "move_store",
           "print_of_code", "scenes"]

HAS_CRYPTO = importlib.util.find_spec("cryptography") is not None
HAS_YAML = all(importlib.util.find_spec(name) for name in ("yaml", "ruamel"))
NEW = "new files"                                  # a root that is not there yet
KINDS = ("files", NEW, "archive", *(("encrypted",) if HAS_CRYPTO else ()), "cold",
         *(("encrypted cold",) if HAS_CRYPTO else ()), "archive cold")
CODES = {0, 1, 2, 3, 10, 11, 12, 13}
_WORDS = ("harbour copper ticket lantern window travel invoice garden violin bridge kettle "
          "orchard pepper saddle thimble walnut yonder zephyr ribbon quarry").split()


def _environ(home: Path) -> dict[str, str]:
    """Return the environment of every child: no key, no setting of this machine."""
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "LANG": "C.UTF-8",
            "HERMES_VECTOR_BACKEND": "local", "DSH_HOME": str(home / "dsh")}


# -- scenes -------------------------------------------------------------------

@dataclass
class Scene:
    """A store in `home/root`, and what is in it by name: {name: (id, text)}.

    kept_* must stay; mortal_* are for prune to take; cold_* lie in cold storage, or would be
    chosen for it; gone_* were forgotten; target_* are for a command to forget.
    """
    kind: str
    home: Path
    older: Path
    memories: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.home / "root"

    def id_of(self, name: str) -> str:
        return self.memories[name][0]

    def ids(self, *kinds: str) -> dict[str, str]:
        """Return {id: text} of the memories whose name begins with one of *kinds*."""
        return {memory_id: text for name, (memory_id, text) in self.memories.items()
                if name.startswith(kinds)}

    def copy(self, folder: Path) -> Scene:
        """Return the same scene in another folder."""
        home = folder / "home"
        if home.exists():
            shutil.rmtree(home)
        shutil.copytree(self.home, home, symlinks=True)
        return Scene(self.kind, home, self.older, dict(self.memories))


def warm_up(folder: Path) -> None:
    """Import and compile here what every child would do again, at half of its time."""
    from hermes_ext import CONTENTS
    for name in CONTENTS:
        core.import_system(name)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for words in (("remember", "the ferry leaves at nine"), ("recall", "ferry"), ("list",),
                      ("digest", "We decided to use copper.", "--apply"), ("repair", "--yes"),
                      ("forget", "--query", "copper", "--yes")):
            core.main(["--root", str(folder / "warm"), *words])
    shutil.rmtree(folder / "warm")


def scenes(folder: Path, kinds: Iterable[str] = KINDS) -> Iterator[Scene]:
    """Make one scene of each kind below *folder*."""
    folder.mkdir(exist_ok=True)
    warm_up(folder)
    for kind in kinds:
        place = folder / kind.replace(" ", "-")
        scene = Scene(kind, place / "home", place / "older")
        scene.home.mkdir(parents=True)
        made = run_child(lambda: _make(scene), environ=_environ(scene.home))
        if made.error or made.code:
            raise AssertionError(f"the scene {kind!r} was not made: {made.error or made.err}")
        scene.memories = {name: tuple(pair) for name, pair in made.value.items()}
        yield scene


def _text(source: random.Random, name: str) -> str:
    return f"{_token(name)} {' '.join(source.sample(_WORDS, 6))} {source.getrandbits(40):x}"


def _token(name: str) -> str:
    """Return a word that only the memory of this name has."""
    return f"q{name.replace('_', '')}zz"


def _make(scene: Scene) -> dict[str, tuple[str, str]]:
    """Fill a store over nine days; runs in a child process."""
    source, root, made = random.Random(scene.kind), scene.root, {}
    now = core.utc_now()

    def open_on(day: int) -> HermesLite:
        moment = now - timedelta(days=-day)
        return HermesLite(root, clock=lambda: moment)

    def remember(memory: HermesLite, name: str, **more) -> None:
        text = _text(source, name)
        more = {"importance": 7, "verified": True, **more}
        made[name] = (memory.remember(text, **more).id, text)

    if scene.kind == NEW:
        _make_inputs(scene.home, source)
        return {}
    root.mkdir(mode=0o700)
    if scene.kind.startswith("encrypted"):
        (root / ".env").write_text("HERMES_ENCRYPT=on\n")
        (root / ".env").chmod(0o600)
    with open_on(-9) as memory:
        for number in range(5):
            remember(memory, f"kept_{number}")
        for number in range(2):
            remember(memory, f"mortal_{number}", importance=4, verified=False)
            remember(memory, f"target_{number}", tags=["aim"])
        for number in range(3):
            remember(memory, f"cold_{number}", importance=1)
            remember(memory, f"gone_{number}")
    with open_on(-5) as memory:
        memory.forget(made["gone_0"][0])
        remember(memory, "kept_5")
    shutil.copytree(root, scene.older)
    with open_on(-4) as memory:
        core.import_system("backups").backup(memory, scene.home / "old.tar.gz")
        memory.forget(made["gone_1"][0])
    with open_on(0) as memory:
        if scene.kind.startswith("archive"):
            core.import_system("migrate").migrate(memory, "archive")
    with open_on(0) as memory:
        remember(memory, "kept_6")
        memory.forget(made["gone_2"][0])
        memory.recall(_token("kept_0"))
        if scene.kind.endswith("cold"):
            cold = core.import_system("cold")
            remember(memory, "gone_3", importance=1)
            cold.freeze(memory, below=3, older_than=0)
            cold.forget(memory, made["gone_3"][0])
        remember(memory, "kept_7")
    core.main(["--root", str(root), "list"])       # from now on the vault knows the notes
    _make_inputs(scene.home, source)
    return made


def _make_inputs(home: Path, source: random.Random) -> None:
    """Write what the commands read: rows to import, a session log, a folder to sync with."""
    rows = [{"content": _text(source, f"row_{number}")} for number in range(3)]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = home / "dsh/sessions/--ws--/session-1/session.v4.jsonl"
    log.parent.mkdir(parents=True)
    lines: list[dict] = [{"type": "session", "version": 4, "id": "session-1", "cwd": "/ws",
                          "createdAt": 1795990402879, "delegationDepth": 0}]
    for number in range(3):
        said = f"We decided to use {_token(f'said_{number}')} for the {_WORDS[number]}."
        lines.append({"type": "user/message", "seq": number + 1, "time": 1795990403000 + number,
                      "surfaceOp": "append",
                      "data": {"content": [{"type": "text", "text": said}],
                               "source": {"kind": "user"}, "role": "user"}})
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    core.main(["--root", str(home / "other"), "remember", _text(source, "far_0")])
    core.main(["--root", str(home / "other"), "sync", str(home / "shared"), "--plain"])


# -- commands -----------------------------------------------------------------

@dataclass(frozen=True)
class Command:
    """A command line, and what it does when it says that it has done it.

    adds      names whose token is then in the store
    forgets   names that are then gone, and stay gone
    moves     kinds of memories that may afterwards lie in a backup only
    """
    name: str
    words: tuple[str, ...]
    adds: tuple[str, ...] = ()
    forgets: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    on: tuple[str, ...] = ("files", "archive", "encrypted", "cold")
    not_on: tuple[str, ...] = ()
    config: str = ""

    def is_for(self, scene: Scene) -> bool:
        """Tell whether the command makes sense on this kind of store here."""
        if scene.kind == NEW:
            return bool(self.adds) and not self.config and self.name != "vault"
        if " " in scene.kind and not self.is_cold:          # tried on the plain kinds
            return False
        words = {*scene.kind.split()}
        return bool(words & {*self.on}) and not words & {*self.not_on} and (
            HAS_YAML or not self.config)

    @property
    def is_cold(self) -> bool:
        """Tell whether cold storage can make a difference to it."""
        return self.words[0] in ("archive", "encrypt", "restore", "migrate", "scrub", "prune") or (
            self.name == "forget --tags")

    def line(self, scene: Scene) -> list[str]:
        """Return the name of the program and its arguments."""
        names = {name: memory_id for name, (memory_id, _) in scene.memories.items()}
        words = [word.format(root=scene.root, home=scene.home, **names) for word in self.words]
        if words[0] == "sediment":
            return ["auto_sediment", *words[1:], "--root", str(scene.root)]
        return ["hermes_lite", "--root", str(scene.root), *words]

    def run(self, scene: Scene) -> int:
        """Run it in this process and return the exit code."""
        program, *words = self.line(scene)
        return {"auto_sediment": auto_sediment, "hermes_lite": core}[program].main(words)


_SYSTEMS = """systems:
  anchors: {}
  salience: {}
  audit: {}
  rules:
    calendar: {when: {tag: deadline}, append: deadlines.ics}
"""


def commands() -> list[Command]:
    """Return every command that writes."""
    log = "{home}/dsh/sessions/--ws--/session-1/session.v4.jsonl"
    every_said = ("said_0", "said_1", "said_2")
    with_cold = ("cold",)
    return [
        Command("remember", ("remember", f"{_token('new')} is kept in the attic"), ("new",)),
        Command("recall", ("recall", _token("kept_0"))),
        Command("import", ("import", "{home}/rows.jsonl"), ("row_0", "row_1", "row_2")),
        Command("digest", ("digest", f"We decided to use {_token('new')} for the garden.",
                           "--apply"), ("new",)),
        Command("sediment", ("sediment", "--session", log, "--apply"), every_said),
        Command("forget", ("forget", "{target_0}"), forgets=("target_0",)),
        Command("forget --purge", ("forget", "{target_0}", "--purge"), forgets=("target_0",)),
        Command("forget --tags", ("forget", "--tags", "aim", "--yes"),
                forgets=("target_0", "target_1")),
        Command("prune", ("prune", "--yes"), moves=("mortal",)),
        Command("verify", ("verify", "{mortal_0}")),
        Command("restore", ("restore", "{home}/old.tar.gz", "--yes"), moves=("kept", "mortal")),
        Command("backup", ("backup",)),
        Command("migrate to archive", ("migrate", "--to", "archive"), on=("files", "cold"),
                not_on=("archive", "encrypted")),
        Command("migrate to files", ("migrate", "--to", "files"), on=("archive",)),
        Command("encrypt on", ("encrypt", "on"), on=("files", "cold") if HAS_CRYPTO else (),
                not_on=("archive",)),
        Command("encrypt off", ("encrypt", "off"), on=("encrypted",)),
        Command("encrypt rotate", ("encrypt", "rotate"), on=("encrypted",)),
        Command("archive --cold", ("archive", "--cold", "--below", "5", "--older-than", "0")),
        Command("archive --thaw", ("archive", "--thaw"), on=with_cold),
        Command("archive --thaw ID", ("archive", "--thaw", "{cold_0}"), on=with_cold),
        Command("archive --forget", ("archive", "--forget", "{cold_0}"), on=with_cold,
                forgets=("cold_0",)),
        Command("sync", ("sync", "{home}/shared", "--plain"), ("far_0",)),
        Command("vault", ("vault", "sync", "--yes"), ("new",), ("target_1",),
                on=("files", "encrypted")),
        Command("scrub", ("scrub", "--yes")),
        Command("repair", ("repair", "--yes")),
        Command("reindex", ("reindex",)),
        Command("pin", ("pin", "{kept_0}")),
        Command("decay", ("decay", "--factor", "0.5", "--tags", "aim", "--yes")),
        Command("rules", ("rules", "check"), config=_SYSTEMS),
        Command("remember with systems", ("remember", f"{_token('new')} is due 2026-05-04",
                                          "--tags", "deadline"), ("new",), config=_SYSTEMS),
        Command("config set", ("config", "set", "storage.backups_kept", "6"),
                config="retrieval:\n  default_top_k: 4\n"),
    ]


# -- judging ------------------------------------------------------------------

@dataclass
class Tally:
    """What was tried by attack and store, and what was found."""
    tries: Counter = field(default_factory=Counter)
    found: Counter = field(default_factory=Counter)
    violations: list[tuple[str, str, str, str]] = field(default_factory=list)
    reported: Counter = field(default_factory=Counter)

    def add(self, attack: str, scene: Scene, what: str,
            faults: Iterable[tuple[str, str]]) -> None:
        """Count one try and what `estimate_confidence` found in it."""
        key = (attack, scene.kind)
        self.tries[key] += 1
        seen = set()
        for fault, detail in faults:
            if fault == "reported":
                self.reported[key] += 1
                continue
            if fault not in seen:
                self.found[(*key, fault)] += 1
            seen.add(fault)
            self.violations.append((attack, scene.kind, what, f"{fault}: {detail}"))

    def table(self) -> str:
        """Return the counts as a Markdown table: tries by store, and what was found in all."""
        stores = ("files", "archive", "encrypted", "cold")
        lines = [f"| attack | {' | '.join(stores)} | lost | returned | tracebacks |",
                 "|---" + "|---:" * 7 + "|"]
        tried = {attack for attack, _ in self.tries}
        for attack in [name for name in _ATTACKS if name in tried]:
            tries = Counter()
            for (name, kind), count in self.tries.items():
                if name == attack:
                    tries[kind.split()[-1]] += count
            found = [sum(count for (name, _, kind), count in self.found.items()
                         if name == attack and kind == fault)
                     for fault in ("lost", "returned", "traceback")]
            cells = [attack, *(f"{tries[store]:,}" for store in stores), *map(str, found)]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def merge(self, other: Mapping) -> None:
        """Add the counts of a tally that came from another process."""
        for name in ("tries", "found", "reported"):
            for key, count in other[name]:
                getattr(self, name)[tuple(key)] += count
        self.violations += map(tuple, other["violations"])

    def plain(self) -> dict:
        """Return the counts in a form that `merge` takes, and JSON."""
        return {"violations": self.violations, **{
            name: [[list(key), count] for key, count in getattr(self, name).items()]
            for name in ("tries", "found", "reported")}}

    def lines(self) -> list[str]:
        """Return the violations, one a line."""
        return [" | ".join(" ".join(part.split())[:300] for part in each)
                for each in self.violations]


@dataclass
class Look:
    """What a person sees who opens the store."""
    rows: dict[str, str] | None = None
    cold: dict[str, str] = field(default_factory=dict)
    saved: str = ""                                # the text of backups and archives
    said: str = ""
    codes: list[int] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)


def _look(scene: Scene, needed: Iterable[str], *, deep: bool) -> dict:
    """Open a store with several commands, in a child process; repair it where *needed* lacks."""
    look = Look()

    def command(*words: str) -> str:
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = core.main(["--root", str(scene.root), *words])
        except SystemExit as end:
            code = end.code
        except BaseException:
            code = 1
            look.tracebacks.append(f"{words[0]}: {traceback.format_exc()}")
        if "Traceback" in err.getvalue():
            look.tracebacks.append(f"{words[0]}: {err.getvalue()}")
        if code not in CODES:
            look.tracebacks.append(f"{words[0]}: exit code {code}")
        look.codes.append(code)
        look.said += f"{words[0]} -> {code}: {err.getvalue()}\n"
        if words[0] == "doctor":
            look.said += "".join(line for line in out.getvalue().splitlines(keepends=True)
                                 if not line.startswith("ok"))
        return out.getvalue()

    def read() -> None:
        try:
            with HermesLite(scene.root) as memory:
                look.rows = {row.id: row.content for row in memory.list()}
                look.saved = _saved(memory)
                look.said += "".join(f"library: {each}\n" for each in memory.take_notices())
        except HermesError as problem:
            look.rows = None
            look.said += f"library -> {problem.exit_code}: {problem}\n"
        except Exception:
            look.rows = None
            look.tracebacks.append(f"library: {traceback.format_exc()}")
        if (scene.root / "cold_index.json").exists() or (scene.root / "cold").exists():
            with contextlib.suppress(ValueError):
                found = json.loads(command("archive", "--thaw", "--dry-run", "--json") or "{}")
                if "ids" in found:
                    look.cold = dict(zip(found["ids"], found["texts"]))

    command("list", "--limit", "3")
    if deep:
        command("doctor")
        command("recall", _token("kept_0"))
        command("stats")
    read()
    command("remember", f"{_token('later')} was written afterwards")
    read()
    if look.rows is None or not {*needed} <= {*look.rows, *look.cold}:
        command("repair", "--yes")
        read()
    return look.__dict__


def _saved(memory: HermesLite) -> str:
    """Return the text of what prune and restore put into backups/."""
    cipher, parts = memory.store.files.cipher, []
    for path in [*memory.root.glob("backups/prune_*"), *memory.root.glob("backups/before_*")]:
        with contextlib.suppress(ValueError, OSError):
            for name, data in core.read_files(path):
                if name.startswith("prune_") or name == "index.json":
                    parts.append(core.unseal(data, cipher).decode("utf-8", "replace"))
    return "\n".join(parts)


def judge(scene: Scene, command: Command | None = None, *, ran: Outcome | None = None,
          excused: bool = False, deep: bool = False, edited: Iterable[str] = (),
          given_up: bool = False) -> list[tuple[str, str]]:
    """Open the store and return (fault, detail) of all that is not as it has to be.

    *ran* is how the command ended before; without it, it was cut off. *excused* is a damage that
    may have taken the only copy: what is lost has to be said. *edited* are ids whose text a
    person may have changed. *given_up*: the older records were taken away on purpose.
    """
    done = ran is not None and ran.code == 0 and not ran.error
    faults = [("traceback", ran.error)] if ran is not None and ran.error else []
    if ran is not None and ran.code not in {*CODES, KILLED}:
        faults.append(("traceback", f"exit code {ran.code}: {ran.err}"))
    kept = scene.ids("kept", "mortal", "target", "cold")
    may_go = {scene.id_of(name) for name in command.forgets} if command else set()
    needed = {i: text for i, text in kept.items() if i not in may_go}
    moved = {*scene.ids(*command.moves)} if command and command.moves else set()

    def look() -> Look | None:
        seen = run_child(lambda: _look(scene, needed.keys() - moved, deep=deep),
                         environ=_environ(scene.home))
        if seen.error or seen.value is None:
            faults.append(("traceback", f"opening: {seen.error or f'code {seen.code}'}"))
            return None
        return Look(**seen.value)
    found = look()
    if found is not None and found.rows is None and command is not None:
        run_child(lambda: command.run(scene), environ=_environ(scene.home))    # to go on with it
        found = look()
    if found is None:
        return faults
    faults += [("traceback", each) for each in found.tracebacks]
    said = f"{ran.out}{ran.err}" if ran is not None else ""
    has_forgotten = done and "still holds" not in said         # a cold file, for instance
    has_added = done and "not yet delivered whole" not in said             # sync comes back to it
    rows, cold = found.rows or {}, found.cold
    there = {**cold, **rows}
    lost = [] if given_up else [text for i, text in needed.items() if not (
        there.get(i) == text or i in edited and i in there or i in moved and text in found.saved)]
    everything = "\n".join(there.values())
    if has_added:
        lost += [name for name in command.adds if _token(name) not in everything]
    if lost:
        was_said = {3, 13} & {*found.codes} or re.search(_SAYS_DAMAGE, found.said, re.MULTILINE)
        kind = "reported" if excused and was_said else "lost"
        faults.append((kind, f"{len(lost)} of {len(needed)}: {[t.split()[0] for t in lost]}; "
                             f"{found.said}"))
    gone = {*scene.ids("gone"), *(may_go if has_forgotten else ())}
    back = [text for i, text in {**kept, **scene.ids("gone")}.items()
            if i in gone and (i in there or text in everything)]
    if back:
        faults.append(("returned", f"{[text.split()[0] for text in back]}; {found.said}"))
    return faults


_SAYS_DAMAGE = "damaged|cannot be|missing|recovered|fewer|lacks|are lost|^fail "


# -- the attacks --------------------------------------------------------------

Choice = Callable[[list], list]                    # which of all tries are made


def _prepared(scene: Scene, command: Command, folder: Path) -> Scene:
    copy = scene.copy(folder)
    if command.config:
        (copy.root / "config.yaml").write_text(command.config)
    if command.name == "vault":
        (copy.root / "store/by hand.md").write_text(f"{_token('new')} was written by hand\n")
        (copy.root / f"store/{copy.id_of('target_1')}.md").unlink()
    return copy


def record(scene: Scene, command: Command) -> tuple[Outcome, FaultyDisk]:
    """Run a command on a scene, for good, and return how it ended and what it did."""
    def run() -> object:
        disk = FaultyDisk(str(scene.home))
        disk.install()
        code = command.run(scene)
        return [code, disk.count, disk.kinds, _coded(disk.log)]
    ran = run_child(run, environ=_environ(scene.home))
    disk = FaultyDisk(str(scene.home))
    if not ran.error:
        ran.code, disk.count, disk.kinds, log = ran.value
        disk.log = [tuple(bytes.fromhex(part[1]) if isinstance(part, list) else part
                          for part in step) for step in log]
    return ran, disk


def _coded(log: Iterable[tuple]) -> list[list]:
    return [[["hex", part.hex()] if isinstance(part, bytes) else part for part in step]
            for step in log]


def fail_disk(scene: Scene, command: Command, tally: Tally, folder: Path, *,
              choose: Choice = list) -> None:
    """Let each operation of a command fail in each way."""
    copy = _prepared(scene, command, folder)
    ran, disk = record(copy, command)
    faults = judge(copy, command, ran=ran)
    if ran.code:
        faults.append(("traceback", f"undisturbed, it ended with {ran.code}: {ran.err}"))
    tally.add(_NO_FAULT, scene, command.name, faults)
    for number, what, fault in choose(tries_of(disk.kinds)):
        copy = _prepared(scene, command, folder)
        ran = _run_faulty(copy, command, fault, number)
        said = f"{command.name}, {fault} at {number}: {what} (code {ran.code})"
        tally.add(_NAMES[fault], scene, said, judge(copy, command, ran=ran))


_NAMES = {"kill": "`kill -9` before the N-th file operation",
          "torn": "`kill -9` in the middle of a write",
          "full": "ENOSPC from the N-th file operation on",
          "eio": "EIO in the N-th file operation"}
_NO_FAULT, _POWER, _CALL, _DAMAGE, _MOVE = (
    "every command, nothing fails", "power cut after the N-th file operation",
    "ENOSPC, EIO or `kill -9` in a system call of SQLite", "a damaged file",
    "moved or replaced under an open process")
_ATTACKS = (_NO_FAULT, *_NAMES.values(), _POWER, _CALL, _DAMAGE, _MOVE)


def _run_faulty(scene: Scene, command: Command, fault: str, number: int) -> Outcome:
    def run() -> int:
        FaultyDisk(str(scene.home), fault, number).install()
        return command.run(scene)
    return run_child(run, environ=_environ(scene.home))


def fail_calls(scene: Scene, command: Command, tally: Tally, folder: Path, *,
               choose: Choice = list) -> None:
    """Let the system calls of SQLite fail; strace has to be here."""
    copy, log = _prepared(scene, command, folder), folder / "calls"
    words = [sys.executable, "-c", _LAUNCHER, str(HOME), *command.line(copy)]
    run_traced(words, _environ(copy.home), log)
    calls = [name for line in log.read_text(errors="replace").splitlines()
             for name in SQLITE_CALLS if f" {name}(" in line[:40]]
    tries = [(call, fault, number) for call, faults in SQLITE_CALLS.items() for fault in faults
             for number in range(1, calls.count(call) + 1)]
    for call, fault, number in choose(tries):
        copy = _prepared(scene, command, folder)
        ran = run_traced(words, _environ(copy.home), log, call=call, fault=fault, number=number)
        said = f"{command.name}, {fault} at {call} {number} (code {ran.code})"
        tally.add(_CALL, scene, said, judge(copy, command, ran=ran))


_LAUNCHER = """import sys
sys.path.insert(0, sys.argv.pop(1))
name = sys.argv.pop(1)
sys.exit(__import__(name).main(sys.argv[1:]))
"""


def cut_power(scene: Scene, command: Command, tally: Tally, folder: Path, *,
              choose: Choice = list) -> None:
    """Cut the power after each operation of a command, and after its end."""
    copy = _prepared(scene, command, folder)
    power = PowerCut(copy.home)
    ran, disk = record(copy, command)
    steps = len(disk.log)
    wanted = {*choose(list(range(steps))), steps}
    seen: set[int] = set()
    for number, step in enumerate([*disk.log, ("the end", "")]):
        at_end = number == steps
        if not at_end:
            power.apply(step)
        for way in PowerCut.WAYS if number in wanted else ():
            tree = power.left(way)
            print_of = hash((at_end, *tree.items()))
            if print_of in seen:
                continue
            seen.add(print_of)
            shutil.rmtree(copy.home)
            copy.home.mkdir()
            write_tree(tree, str(copy.home), copy.home)
            faults = judge(copy, command, ran=ran if at_end else None)
            tally.add(_POWER, scene, f"{command.name}, {way} after {number} of {steps}: "
                      f"{step[:2]}", faults)


def damage_files(scene: Scene, tally: Tally, folder: Path, *, choose: Choice = list) -> None:
    """Damage every kind of file of a store in every way, one at a time."""
    used = scene.copy(folder / "used")
    _leave_a_log(used)
    tries = [(name, way) for name in _one_of_each_kind(used.root)
             for way in (*DAMAGES, *WHOLE_FILE)]
    for name, way in choose(tries):
        copy = used.copy(folder)
        if damage(copy.root / name, way, older=scene.older / name):
            is_mirror = name.startswith("store/")
            faults = judge(copy, excused=True, deep=True,
                           edited=[Path(name).stem] if is_mirror else ())
            tally.add(_DAMAGE, scene, f"{name}: {way}", faults)


def _leave_a_log(scene: Scene) -> None:
    """Write three memories and die, so that a journal or a log of SQLite is there."""
    def write() -> int:
        if hasattr(core, "_COMPACT_AT_ONCE"):
            core._COMPACT_AT_ONCE = 0               # as for a large store
        source = random.Random(3)
        memory = HermesLite(scene.root)
        made = {}
        for number in range(10, 13):
            text = _text(source, f"kept_{number}")
            made[f"kept_{number}"] = (memory.remember(text, verified=True).id, text)
        (scene.home / "told.json").write_text(json.dumps(made))
        os._exit(0)
    run_child(write, environ=_environ(scene.home))
    told = json.loads((scene.home / "told.json").read_text())
    scene.memories.update({name: tuple(pair) for name, pair in told.items()})


def _one_of_each_kind(root: Path) -> list[str]:
    """Return the names of a store's files, one for each kind; of several the newest."""
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not path.name.startswith(".lock"):
            found[re.sub(r"[0-9][0-9a-f_]{5,}", "*", name)] = name
    return list(found.values())


# -- a store that moves under an open process -----------------------------------

def move_store(scene: Scene, tally: Tally, folder: Path, *, choose: Choice = list) -> None:
    """Let another process move or replace the store while a process has it open."""
    for move, act in choose([(move, act) for move in _MOVES for act in _ACTS]):
        copy = scene.copy(folder)
        ran = run_child(lambda: _act_on_moved(copy, _MOVES[move], act),
                        environ=_environ(copy.home))
        if ran.value == "not here":
            continue
        acknowledged = isinstance(ran.value, list) and ran.value[0]
        command = _ACTS[act] if acknowledged else Command("nothing", ())
        if move in _OLDER:                         # what came later was given up on purpose
            command = dataclasses.replace(command, moves=("kept", "mortal", "cold", "target"))
            copy.memories = {name: pair for name, pair in copy.memories.items()
                             if name not in ("gone_1", "gone_2", "gone_3")}
        faults = judge(copy, command, ran=Outcome(0, error=ran.error), given_up=move in _OLDER)
        tally.add(_MOVE, scene, f"{move}, then {act}: {ran.value}",
                  faults)


_ACTS = {"remember": Command("remember", (), ("new",)),
         "batch": Command("batch", (), ("new",)),
         "forget": Command("forget", (), forgets=("target_0",)),
         "recall": Command("recall", ())}


def _act_on_moved(scene: Scene, move: Callable[[Scene], object], act: str) -> object:
    """Return [whether it was acknowledged, what was said]; runs in a child process."""
    memory = HermesLite(scene.root)
    memory.recall(_token("kept_0"))
    memory.verify(scene.id_of("kept_0"))
    if run_child(lambda: move(scene)).value == "not here":
        return "not here"
    text = f"{_token('new')} is kept in the attic"
    try:
        if act == "remember":
            memory.remember(text)
        elif act == "batch":
            with memory.batch():
                memory.remember(text)
                memory.remember(f"{_token('more')} lies in the cellar")
        elif act == "forget":
            memory.forget(scene.id_of("target_0"))
        else:
            memory.recall(_token("kept_1"))
        memory.close()
    except HermesError as problem:
        return [False, str(problem)]
    return [True, "; ".join(memory.take_notices())]


def _main(scene: Scene, *words: str) -> object:
    code = core.main(["--root", str(scene.root), *words])
    return "not here" if code else code


def _swap_in_older(scene: Scene) -> object:
    """Put yesterday's folder in place of today's, as a person with a copy does."""
    os.rename(scene.root, scene.home / "root.aside")
    shutil.copytree(scene.older, scene.root)
    return 0


def _swap_in_same(scene: Scene) -> object:
    """Replace the folder by a copy of itself, as a sync client or a restore of files does."""
    shutil.copytree(scene.root, scene.home / "root.copy")
    os.rename(scene.root, scene.home / "root.aside")
    os.rename(scene.home / "root.copy", scene.root)
    return 0


def _swap_main_file(scene: Scene) -> object:
    """Replace the file of the records by a copy of itself."""
    name = "memory_archive.db" if scene.kind.startswith("archive") else "index.json"
    path = scene.root / name
    copy = path.with_name("copy")
    if name.endswith(".db"):
        import sqlite3
        with contextlib.closing(sqlite3.connect(path)) as db, \
                contextlib.closing(sqlite3.connect(copy)) as other:
            db.backup(other)
    else:
        shutil.copy(path, copy)
    os.replace(copy, path)
    return 0


def _rescue(scene: Scene) -> object:
    """Damage the file of the records, and let another process rescue it."""
    name = "memory_archive.db" if scene.kind.startswith("archive") else "index.json"
    data = (scene.root / name).read_bytes()
    (scene.root / name).write_bytes(data[:100] + bytes(50) + data[150:])
    core.main(["--root", str(scene.root), "list"])
    return 0


_OLDER = ("an older folder", "restore")
_MOVES: dict[str, Callable[[Scene], object]] = {
    "migrate to archive": lambda scene: _main(scene, "migrate", "--to", "archive"),
    "migrate to files": lambda scene: _main(scene, "migrate", "--to", "files"),
    "encrypt on": lambda scene: _main(scene, "encrypt", "on"),
    "encrypt off": lambda scene: _main(scene, "encrypt", "off"),
    "encrypt rotate": lambda scene: _main(scene, "encrypt", "rotate"),
    "restore": lambda scene: _main(scene, "restore", f"{scene.home}/old.tar.gz", "--yes"),
    "archive --cold": lambda scene: _main(scene, "archive", "--cold", "--below", "5",
                                          "--older-than", "0"),
    "an older folder": _swap_in_older,
    "a copy of the folder": _swap_in_same,
    "a copy of the file": _swap_main_file,
    "a rescue": _rescue,
}


# -- all of it, and a sample ----------------------------------------------------

def attack_all(folder: Path, *, every: int = 1, processes: int = 2,
               progress: Callable[[str], None] = print) -> Tally:
    """Make every try on every store, or one of *every*; return the counts."""
    tally, running = Tally(), {}
    parts = {part for part in _PARTS if part != "calls" or can_trace()}
    todo = [(scene, part) for scene in scenes(folder / "scenes") for part in _PARTS
            if part in parts and not (scene.kind == NEW and part in ("damage", "move"))]

    def run(number: int) -> dict:
        scene, part = todo[number]
        own, source = Tally(), random.Random(f"{scene.kind} {part}")
        _PARTS[part](scene, own, folder / f"work-{number}", lambda tries: tries if every == 1 else
                     source.sample(tries, -(-len(tries) // every)))
        return own.plain()

    def end_one() -> None:
        first = next(iter(running))
        outcome = wait_child(*running.pop(first))
        if outcome.error or outcome.value is None:
            raise AssertionError(f"{todo[first][1]}: {outcome.error or outcome.code}")
        tally.merge(outcome.value)
        shutil.rmtree(folder / f"work-{first}", ignore_errors=True)
        progress(f"{todo[first][0].kind}, {todo[first][1]}: {sum(tally.tries.values())} tries")

    for number in range(len(todo)):
        if len(running) >= processes:
            end_one()
        running[number] = start_child(lambda: run(number), seconds=24 * 3600)
    while running:
        end_one()
    return tally


_Part = Callable[[Scene, Tally, Path, Choice], None]


def _each_command(attack: Callable[..., None]) -> _Part:
    def on_all(scene: Scene, tally: Tally, folder: Path, choose: Choice) -> None:
        for command in commands():
            if command.is_for(scene):
                attack(scene, command, tally, folder, choose=choose)
    return on_all


def _calls(scene: Scene, tally: Tally, folder: Path, choose: Choice) -> None:
    for command in commands():
        if command.is_for(scene) and ("archive" in scene.kind or "to archive" in command.name):
            fail_calls(scene, command, tally, folder, choose=lambda tries: choose(tries[::3]))


_PARTS: dict[str, _Part] = {
    "disk": _each_command(fail_disk), "power": _each_command(cut_power), "calls": _calls,
    "damage": lambda *given: damage_files(*given[:3], choose=given[3]),
    "move": lambda *given: move_store(*given[:3], choose=given[3])}


def print_of_code() -> int:
    """Return a number that changes with the code: each version meets other tries."""
    paths = [HOME / "hermes_lite.py", *sorted(HOME.glob("hermes_ext/**/*.py"))]
    return zlib.crc32(b"".join(path.read_bytes() for path in paths))


def attack_some(folder: Path, *, seed: int, pairs: int = 8) -> Tally:
    """Make a few seconds' worth of tries, chosen by *seed*; return the counts."""
    source, tally, place = random.Random(seed), Tally(), folder / "work"
    made = [*scenes(folder / "scenes")]

    def some(most: int) -> Choice:
        return lambda tries: source.sample(tries, min(most, len(tries)))
    both = [(scene, command) for scene in made for command in commands() if command.is_for(scene)]
    for scene, command in source.sample(both, min(pairs, len(both))):
        fail_disk(scene, command, tally, place, choose=some(3))
    for scene, command in source.sample(both, min(pairs, len(both))):
        cut_power(scene, command, tally, place, choose=some(1))
    for scene in [scene for scene in made if scene.kind != NEW]:
        damage_files(scene, tally, place, choose=some(3))
        move_store(scene, tally, place, choose=some(2))
    return tally

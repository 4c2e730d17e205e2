"""Cron: run the jobs of a memory by the user's crontab, or print what to paste elsewhere.

    hermes_lite.py cron show                      the lines for cron, and units for systemd
    hermes_lite.py cron install                   both jobs; or: cron install cycle
    hermes_lite.py cron remove

    cycle       `brain cycle`, each night at a quarter past three
    sediment    `auto_sediment.py --latest --apply`, every quarter of an hour

Each line ends in a comment that names the job and the data root. Only lines with this very ending
are changed or taken out; the rest of the crontab stays byte for byte. Installing twice leaves one
line. A job runs the installed program, or a line of Python that imports the module: started as a
script, it would be compiled anew each time.
"""
from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import hermes_lite as core
from hermes_ext.program import program_words
from hermes_lite import (ConfigError, HermesLite, NotFound, Operation, Param, Record, UsageError)

__all__ = ["Job", "JOBS", "OPERATIONS", "Units", "install", "line_of", "remove", "show"]

_TIMEOUT = 30                          # seconds that crontab may take
_SCHEDULE = re.compile(r"(@\w+|[^\s#]\S*(?:[ \t]+\S+){4})[ \t]")
_NO_CRONTAB = (b"no crontab", b"can't open")       # of most; of BusyBox


@dataclass(frozen=True, slots=True)
class Job(Record):
    """One job: when it runs (as cron and as systemd write it), and the module with its words."""
    name: str
    schedule: str
    calendar: str
    program: str
    module: str
    words: tuple[str, ...]
    help: str


JOBS = {job.name: job for job in (
    Job("cycle", "15 3 * * *", "*-*-* 03:15", "hermes-lite", "hermes_lite", ("brain", "cycle"),
        "Settle what faded in the memory"),
    Job("sediment", "*/15 * * * *", "*:0/15", "hermes-sediment", "auto_sediment",
        ("--latest", "--apply"), "Keep what was decided in the newest session"))}


@dataclass(frozen=True, slots=True)
class Crontab(Record):
    """What was done to the crontab: the lines that were added and those that were taken out."""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Units(Record):
    """A job for pasting: the line for a crontab, and the service and timer of systemd."""
    job: str
    line: str
    service: str
    timer: str


def install(memory: HermesLite, names: Sequence[str] = ()) -> Crontab:
    """Add the jobs of these names, all where none is given; a line that is there is replaced.

    A schedule that a person has changed in it stays.
    """
    jobs = _jobs(names)
    if any(job.name == "cycle" for job in jobs) and "brain" not in memory.config["systems"]:
        raise ConfigError("the job cycle needs the brain; put systems: {brain: {}} in "
                          "config.yaml, or install the job sediment alone")
    before = _read_crontab()
    wanted = [line_of(_as_it_is_now(job, memory.root, before), memory.root) for job in jobs]
    kept = _without(before, jobs, memory.root)
    if kept and not kept.endswith("\n"):
        kept += "\n"
    after = kept + "".join(f"{line}\n" for line in wanted)
    if sorted(after.splitlines()) == sorted(before.splitlines()):
        return Crontab()                           # all are there, in whatever order
    _write_crontab(after)
    return Crontab(added=tuple(line for line in wanted if line not in before.splitlines()),
                   removed=tuple(_difference(before, after)))


def remove(memory: HermesLite, names: Sequence[str] = ()) -> Crontab:
    """Take the jobs of these names out of the crontab, all where none is given."""
    before = _read_crontab()
    after = _without(before, _jobs(names), memory.root)
    if after != before:
        _write_crontab(after)
    return Crontab(removed=tuple(_difference(before, after)))


def show(memory: HermesLite, names: Sequence[str] = ()) -> list[Units]:
    """Return the jobs of these names, all where none is given, to be pasted."""
    return [Units(job.name, line_of(job, memory.root), _service(job, memory.root), _timer(job))
            for job in _jobs(names)]


def _jobs(names: Sequence[str]) -> list[Job]:
    unknown = [name for name in names if name not in JOBS]
    if unknown:
        raise UsageError(f"{unknown[0][:40]!r} is no job; use {' or '.join(JOBS)}")
    return [JOBS[name] for name in dict.fromkeys(names or JOBS)]


def _as_it_is_now(job: Job, root: Path, crontab: str) -> Job:
    """Return a job with the schedule that its line in the crontab has."""
    ending = " " + _ending(job, root).replace("%", r"\%")
    found = [_SCHEDULE.match(line) for line in crontab.split("\n") if line.endswith(ending)]
    return replace(job, schedule=found[0][1]) if found and found[0] else job


def line_of(job: Job, root: Path) -> str:
    """Return the line of a job in a crontab, without its end; cron takes a bare % for one."""
    if not str(root).isprintable():                # a line end in it would begin another job
        raise UsageError("the data root has a name that cannot stand in a crontab; rename it")
    command = shlex.join(["env", f"HERMES_LITE_ROOT={root}", *program_words(job.program, job.module),
                          *job.words])
    return f"{job.schedule} {command} > /dev/null {_ending(job, root)}".replace("%", r"\%")


def _ending(job: Job, root: Path) -> str:
    """Return the comment by which a line is known as ours."""
    return f"# hermes-lite {job.name} {shlex.quote(str(root))}"


def _service(job: Job, root: Path) -> str:
    words = [*program_words(job.program, job.module), *job.words]
    command = shlex.join(words).replace("%", "%%")
    environment = f"HERMES_LITE_ROOT={root}".replace("%", "%%").replace('"', r"\"")
    return (f"# ~/.config/systemd/user/hermes-lite-{job.name}.service\n"
            f"[Unit]\nDescription={job.help}\n\n"
            f"[Service]\nType=oneshot\nEnvironment=\"{environment}\"\nExecStart={command}")


def _timer(job: Job) -> str:
    return (f"# ~/.config/systemd/user/hermes-lite-{job.name}.timer; then:\n"
            f"# systemctl --user enable --now hermes-lite-{job.name}.timer\n"
            f"[Unit]\nDescription={job.help}\n\n"
            f"[Timer]\nOnCalendar={job.calendar}\nPersistent=true\n\n"
            "[Install]\nWantedBy=timers.target")


# -- the crontab --------------------------------------------------------------

def _without(crontab: str, jobs: Iterable[Job], root: Path) -> str:
    """Return a crontab without the lines of some jobs of this root."""
    endings = tuple(" " + _ending(job, root).replace("%", r"\%") for job in jobs)
    return "".join(line for line in crontab.splitlines(keepends=True)
                   if not line.rstrip("\n").endswith(endings))


def _difference(before: str, after: str) -> Iterator[str]:
    """Yield the lines of *before* that are not in *after*."""
    left = after.splitlines()
    yield from (line for line in before.splitlines() if line not in left)


def _read_crontab() -> str:
    """Return the user's crontab, "" where there is none."""
    done = _crontab("-l")
    if done.returncode and any(words in done.stderr for words in _NO_CRONTAB):
        return ""
    _check(done)
    return done.stdout.decode("utf-8", "surrogateescape")


def _write_crontab(text: str) -> None:
    """Replace the user's crontab; an empty one is taken away."""
    if text:
        _check(_crontab("-", text.encode("utf-8", "surrogateescape")))
    else:
        _check(_crontab("-r"))


def _crontab(argument: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["crontab", argument], input=text, capture_output=True,
                              timeout=_TIMEOUT)
    except FileNotFoundError:
        raise NotFound("there is no program crontab here; paste what `cron show` prints into "
                       "what starts jobs on this machine") from None
    except subprocess.TimeoutExpired:
        raise core.StorageError(f"crontab did not answer within {_TIMEOUT} s; nothing was "
                                "changed") from None


def _check(done: subprocess.CompletedProcess[bytes]) -> None:
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise core.StorageError(f"crontab refused: {said[-1]}")


# -- commands -----------------------------------------------------------------

def _show_crontab(done: Crontab) -> Iterator[str]:
    for line in done.removed:
        yield f"- {line}"
    for line in done.added:
        yield f"+ {line}"
    if not done.added and not done.removed:
        yield "the crontab is as it should be; nothing was changed"


def _show_units(rows: Iterable[Units]) -> Iterator[str]:
    for row in rows:
        yield f"# {row.job}: cron"
        yield row.line
        yield ""
        yield from row.service.split("\n")
        yield ""
        yield from row.timer.split("\n")
        yield ""


_JOB_NAMES = Param("jobs", str, f"{' or '.join(JOBS)} (default: both)", (), positional=True,
                   repeated=True)

OPERATIONS = (
    Operation("cron install", "add a job to the crontab, and nothing else",
              lambda memory, jobs: install(memory, jobs), (_JOB_NAMES,), _show_crontab,
              writes=True, scope="local"),
    Operation("cron remove", "take the jobs of this memory out of the crontab",
              lambda memory, jobs: remove(memory, jobs), (_JOB_NAMES,), _show_crontab,
              writes=True, scope="local"),
    Operation("cron show", "print the lines for cron, and units for systemd",
              lambda memory, jobs: show(memory, jobs), (_JOB_NAMES,), _show_units, scope="local"),
)

"""The program behind a host's hooks: quick, and never in the host's way.

    launcher session-start --host claude-code      prints what the session should know
    launcher session-end --host claude-code        reads the session's log in the background

The host's JSON comes on standard input. `session-start` answers from `.hook_context.json`, which is
made anew after each session; it counts only while no file of the store has changed since, else the
block is built, which opens the store. This module imports neither the core nor another one of this
package until that is needed: starting Python is most of its time.

Whatever happens, the exit code is 0, nothing but the answer is on standard output, and a failure is
a line in `logs/hooks.log`. After `HERMES_LITE_HOOK_SECONDS` (5) it gives up.
"""
from __future__ import annotations

import json
import os
import sys
import time

CONTEXT = ".hook_context.json"                     # {"version": …, "text": …}
_STORE_FILES = ("config.yaml", "index.json", "index.journal", "memory_archive.db",
                "memory_archive.db-wal", "tombstones.json")
_LOG_BYTES = 1_000_000
# How a host takes what a session should know; the others take Claude Code's form.
_PLAIN_KEYS = {"cursor": "additional_context"}
_SHOWS_MESSAGES = ("claude-code",)                 # other schemas allow no field more
_PRIVATE = "hermes-lite: private mode is on; nothing of this session is read or kept."


def main(words: list[str]) -> int:
    """Run one hook; *words* are EVENT --host H --root R [--agent A] [--reads A,B]. Always returns 0."""
    event = words[0] if words else ""
    options = dict(zip(words[1::2], words[2::2]))
    root = options.get("--root", "")
    try:
        _limit_time()
        answer = _run(event, root, options.get("--host", ""), options.get("--agent"),
                      options.get("--reads", ""))
        if answer:
            sys.stdout.write(json.dumps(answer, ensure_ascii=True))
            sys.stdout.flush()
    except BaseException as problem:               # the host must not notice
        _log(root, f"{event} {options.get('--host', '')}: {_reason(problem)}")
    return 0


def _run(event: str, root: str, host: str, agent: str | None, reads: str
         ) -> dict[str, object] | None:
    payload = {} if event == "refresh" or sys.stdin is None else _payload()
    session = str(payload.get("session_id") or "") or None
    project = payload.get("cwd")
    _leave_mark(root, host)
    if event == "session-start":
        if _is_private(root, session, project):
            return _answer(host, payload, _PRIVATE, is_private=True)
        text = None if reads else kept_context(root)
        if text is None:
            text = keep_context(root, host, agent=agent, reads=reads)
        return _answer(host, payload, text)
    if event == "session-end" and not _is_private(root, session, project):
        _in_background(root, host, agent, payload.get("transcript_path"))
    elif event == "sediment":
        _sediment(root, host, agent, payload.get("transcript_path"))
    return None


def _payload() -> dict[str, object]:
    found = json.loads(sys.stdin.read() or "{}")
    return found if isinstance(found, dict) else {}


def _answer(host: str, payload: dict[str, object], text: str, *,
            is_private: bool = False) -> dict[str, object] | None:
    if not text:
        return None
    if host in _PLAIN_KEYS:
        return {_PLAIN_KEYS[host]: text}
    answer: dict[str, object] = {"hookSpecificOutput": {
        "hookEventName": str(payload.get("hook_event_name") or "SessionStart"),
        "additionalContext": text}}
    if is_private and host in _SHOWS_MESSAGES:
        answer["systemMessage"] = text
    return answer


# -- what a session should know -----------------------------------------------

def store_version(root: str) -> list[list[object]]:
    """Return what differs once any file of the store has changed."""
    found: list[list[object]] = []
    for name in _STORE_FILES:
        try:
            stat = os.stat(os.path.join(root, name))
        except FileNotFoundError:
            continue
        found.append([name, stat.st_mtime_ns, stat.st_size, stat.st_ino])
    return found


def kept_context(root: str) -> str | None:
    """Return the block that was kept, None where it is not of the store as it is now."""
    try:
        with open(os.path.join(root, CONTEXT), encoding="utf-8") as file:
            kept = json.load(file)
        return str(kept["text"]) if kept["version"] == store_version(root) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_context(root: str, host: str, *, agent: str | None = None, reads: str = "") -> str:
    """Build the block of a session's first turn from the store, and return it.

    It is kept for the next session, unless the store is encrypted, or this host may not read all.
    """
    os.environ.setdefault("HERMES_LITE_TURN_MS", "4000")
    import logging
    from pathlib import Path

    from hermes_ext.agents.host import HostMemory
    from hermes_lite import write_atomic
    if not logging.getLogger("hermes_lite.host").handlers:     # else it would come on stderr
        logging.getLogger("hermes_lite.host").addHandler(logging.FileHandler(
            os.path.join(_log_folder(root), "hooks.log"), delay=True))
    memory = HostMemory(root, host=agent or host, reads=reads)
    text = memory.turn("", session=None, is_first=True)
    memory.close()
    if text and not reads and not _is_sealed(root):              # none may be one that failed
        kept = {"version": store_version(root), "text": text}
        write_atomic(Path(root, CONTEXT), json.dumps(kept, ensure_ascii=False).encode(),
                     durable=False)
    return text


def _is_sealed(root: str) -> bool:
    """Tell whether the records are encrypted, or cannot be looked at."""
    for name in ("index.json", "index.journal"):
        try:
            with open(os.path.join(root, name), "rb") as file:
                if file.read(5) == b"gAAAA":
                    return True
        except FileNotFoundError:
            continue
    return False


# -- after a session ----------------------------------------------------------

def _in_background(root: str, host: str, agent: str | None, transcript: object) -> None:
    """Start `sediment` as a process of its own, which outlives the host."""
    import subprocess
    words = [sys.executable, sys.argv[0], "sediment", "--host", host, "--root", root]
    words += ["--agent", agent] if agent else []
    with open(os.path.join(_log_folder(root), "hooks.log"), "ab") as log:
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log,
                                 start_new_session=True)
        child.stdin.write(json.dumps({"transcript_path": transcript}).encode())
        child.stdin.close()


def _sediment(root: str, host: str, agent: str | None, transcript: object) -> None:
    """Take the session into the memory, and keep what the next one should know."""
    _unlimit_time()
    import auto_sediment
    words = ["--from", host, "--apply", "--root", root, "--agent", agent or host]
    words += ["--wait", "600"]                     # the next end of a session takes another log
    words += ["--session", transcript] if isinstance(transcript, str) and os.path.exists(
        transcript) else ["--latest"]
    auto_sediment.main(words)
    keep_context(root, host)


# -- privacy, time and failures -----------------------------------------------

def _is_private(root: str, session: str | None, project: object) -> bool:
    if not os.path.exists(os.path.join(root, "private.json")):
        return False
    from hermes_ext.agents.private import is_private
    return is_private(root, session=session, project=project if isinstance(project, str) else None)


class _TooLong(BaseException):
    """The time of a hook is over; no `except Exception` on the way may keep it."""


def _limit_time() -> None:
    """Raise _TooLong in the main thread after HERMES_LITE_HOOK_SECONDS, where signals can."""
    import signal

    def stop(*_: object) -> None:
        raise _TooLong("it took too long and was left out")
    if hasattr(signal, "setitimer"):
        try:
            seconds = float(os.environ.get("HERMES_LITE_HOOK_SECONDS", "5"))
        except ValueError:
            seconds = 5.0
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, max(0.1, seconds))


def _unlimit_time() -> None:
    import signal
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def _reason(problem: BaseException) -> str:
    """Return what may be said of a failure: only our own errors are known to show no secret."""
    core = sys.modules.get("hermes_lite")
    if isinstance(problem, _TooLong) or core and isinstance(problem, core.HermesError):
        return str(problem)
    return type(problem).__name__


def _log_folder(root: str) -> str:
    folder = os.path.join(root, "logs")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def _leave_mark(root: str, host: str) -> None:
    """Leave the time at which a hook of the host ran, for `agents`."""
    with open(os.path.join(_log_folder(root), f"hook_{host}"), "w", encoding="ascii"):
        pass


def _log(root: str, line: str) -> None:
    """Append a line to logs/hooks.log; a long one is begun anew."""
    try:
        path = os.path.join(_log_folder(root), "hooks.log")
        if os.path.exists(path) and os.path.getsize(path) > _LOG_BYTES:
            os.replace(path, f"{path}.1")
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {' '.join(line.split())}\n")
    except OSError:
        pass

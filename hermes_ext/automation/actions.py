"""Actions: run a command, call a webhook, write an event or a line; what a rule may do.

The module rules uses them; a program of yours may, too:

    actions.run(memory, ["python3", "/opt/mail.py"], data, timeout=10, rule="legal")
    actions.post(memory, "https://example.com/hook", {"at": …}, timeout=10)
    actions.append(memory, "deadlines.ics", a_memory, cause="3f…")
    actions.take_out(memory, "deadlines.ics", "3f…")

Each raises a HermesError that says what went wrong, and shows no more of a URL than its host: the
path of a webhook is often its password. `cause` names what an entry was written for; a file takes
each cause once, and `take_out` finds it again. Several processes may write to one file.

An .ics file is iCalendar (RFC 5545) of all-day events; a calendar that a person made is added to,
anything else is refused. An .md file gets a line `- DATE text ^hermes-CAUSE`.
"""
from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from urllib.parse import urlsplit

from hermes_lite import (ConfigError, FileLock, HermesLite, Memory, MissingPackage, Refused,
                         RemoteError, StorageError, append_bytes, excerpt, import_system, is_date,
                         make_folder, parse_time, to_json, write_atomic)

__all__ = ["OPERATIONS", "append", "check_address", "event", "post", "run", "take_out"]

OPERATIONS = ()


# -- run ----------------------------------------------------------------------

# The only variables that a command gets, beside those that its rule names under `env`.
_PASSED_ON = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|TMPDIR|TEMP|TMP|PYTHONPATH"
    r"|VIRTUAL_ENV|DISPLAY|WAYLAND_DISPLAY|XDG_[A-Z_]+|DBUS_SESSION_BUS_ADDRESS"
    r"|SYSTEMROOT|SYSTEMDRIVE|WINDIR|COMSPEC|PATHEXT|USERPROFILE|APPDATA|LOCALAPPDATA")


def run(memory: HermesLite, command: Sequence[str], data: bytes, *, timeout: float,
        rule: str = "", env: Iterable[str] = ()) -> None:
    """Run a program with *data* on its standard input and wait, without a shell.

    Its environment holds common variables such as PATH, HOME and LANG and those named in *env*,
    so that no key gets there unasked. What it prints is thrown away; of its errors the end
    becomes a notice, redacted. After *timeout* seconds it is killed with all that it started.
    """
    wanted = {*env}
    keep = {name: value for name, value in os.environ.items()
            if name in wanted or _PASSED_ON.fullmatch(name.upper())}
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True, env={**keep, "HERMES_RULE": rule,
                                         "HERMES_LITE_ROOT": str(memory.root)})
    except (OSError, ValueError) as problem:
        raise StorageError(f"{command[0]} cannot be started: "
                           f"{getattr(problem, 'strerror', None) or problem}") from None
    try:
        _, errors = child.communicate(data, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Refused(f"{command[0]} took more than {timeout:g} s and was ended", "timeout"
                      ) from None
    finally:
        _end(child)
    if child.returncode:
        output = memory.redact(errors[-2000:].decode("utf-8", "replace"))[0].strip()
        if output:                                 # shown to the caller, stored nowhere
            memory.notices.append(f"{command[0]} says: {output[-200:]}")
        raise Refused(f"{command[0]} ended with {child.returncode}", "failed")


def _end(child: subprocess.Popen) -> None:
    """End a child that is still there, with all that it started."""
    if child.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL) if hasattr(os, "killpg") else child.kill()
        child.wait()
        for pipe in (child.stdin, child.stderr):
            with contextlib.suppress(OSError):
                pipe.close()


# -- webhook ------------------------------------------------------------------

def post(memory: HermesLite, url: str, payload: Mapping[str, object], *, timeout: float,
         private: bool = False) -> None:
    """Send *payload* as JSON; *url* may be $NAME, which the environment or .env says.

    RemoteError for no answer and for every answer but 2xx. Redirects are not followed.
    """
    url = memory.config.env(url[1:]) if (name := url).startswith("$") else url
    if not url:
        raise ConfigError(f"{name} is not set; set it in the environment or in .env")
    check_address(url, private=private)
    try:
        import requests
    except ImportError:
        raise MissingPackage("webhooks need the package requests; run: pip install "
                             "requests") from None
    with requests.Session() as session:
        session.trust_env = False                  # no proxy, and no password from .netrc
        try:
            answer = session.post(url, data=to_json(payload), timeout=timeout, stream=True,
                                  allow_redirects=False, headers={
                                      "Content-Type": "application/json",
                                      "Idempotency-Key": str(payload.get("cause", ""))})
            answer.close()
        except (OSError, ValueError) as problem:   # requests derives its errors from these
            raise RemoteError(f"{urlsplit(url).hostname} cannot be reached "
                              f"({type(problem).__name__})") from None
    if answer.status_code >= 300:
        moved = "; redirects are not followed" if answer.status_code < 400 else ""
        raise RemoteError(f"{urlsplit(url).hostname} answered {answer.status_code}{moved}")


def check_address(url: str, *, private: bool = False) -> None:
    """Refuse what is neither https nor this machine, or not public unless *private*."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 443
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        raise ConfigError("the webhook is no URL; give one such as https://example.com/hook")
    if _is_here(host):
        return
    if parts.scheme != "https":
        raise Refused(f"the webhook at {host} is not https; only this machine may be called by "
                      "http", "not_https")
    try:
        found = {row[4][0] for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        raise RemoteError(f"{host} is not known to the network") from None
    if not private and not all(_is_public(address) for address in found):
        raise Refused(f"{host} is no public address; say `private: true` in the rule if it "
                      "should be called", "private_address")


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_public(address: str) -> bool:
    """Tell whether an address is public; of an IPv4 address inside IPv6, that one counts."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(ip, "ipv4_mapped", None) or getattr(ip, "sixtofour", None)
    return (inner or ip).is_global and not (inner or ip).is_multicast


# -- append -------------------------------------------------------------------

def append(memory: HermesLite, file: str, row: Memory, *, cause: str,
           dates: Iterable[str] = ()) -> None:
    """Write a memory's event (.ics) or line (.md) into *file*, once for each cause.

    A relative name is one in the data root. The event is on the first of *dates* that can be
    read, on expires_at, on a date in the text, or on the day the memory was made. Where a
    memory is encrypted and has no readable notes, none is written here either.
    """
    if memory.store.files.cipher and not memory.config["encryption"]["markdown"]:
        raise Refused(f"{Path(file).name} would hold readable text, and encryption.markdown is "
                      "false; use run or webhook, or set it to true")
    with _locked(memory):
        path = _path(memory, file)
        old = _bytes(path)
        if cause.encode() in old:
            return
        if path.suffix.lower() == ".ics":
            write_atomic(path, _calendar(old, event(row, cause=cause, dates=dates,
                                                    now=memory.clock().astimezone(
                                                        memory.config.zone)), path))
        else:
            made = parse_time(row.created_at)
            day = f"{made.astimezone(memory.config.zone):%Y-%m-%d}" if made else (
                row.created_at[:10])
            line = f"- {day} {_one_line(row.content)} ^hermes-{cause}\n"
            append_bytes(path, (b"\n" if old and old[-1:] != b"\n" else b"")
                         + line.encode("utf-8", "replace"))


def take_out(memory: HermesLite, file: str, cause: str) -> None:
    """Take the event or line of a cause out of *file* again, where it is there."""
    path, mark = memory.root / Path(file).expanduser(), re.escape(cause.encode())
    entry = (rb"BEGIN:VEVENT\r?\n(?:(?!END:VEVENT).*\n)*?UID:%s@(?:.*\n)*?END:VEVENT\r?\n"
             if path.suffix.lower() == ".ics" else rb"(?m)^.*\^hermes-%s\n") % mark
    with _locked(memory):
        old = _bytes(path)
        new = re.sub(entry, b"", old)
        if new != old:
            write_atomic(path, new)


@contextlib.contextmanager
def _locked(memory: HermesLite) -> Iterator[None]:
    """Hold the lock that guards files which are appended to."""
    make_folder(memory.root)
    lock = FileLock(memory.root / ".lock_append")
    lock.acquire(timeout=5.0)
    try:
        yield
    finally:
        lock.release()


def _path(memory: HermesLite, file: str) -> Path:
    """Return the file to write to: in the data root itself, or outside of it."""
    path, root = memory.root / Path(file).expanduser(), Path(os.path.realpath(memory.root))
    folder = Path(os.path.realpath(path)).parent
    if folder != root and folder.is_relative_to(root):
        raise ConfigError(f"append may not write into {folder.name}/, where the store's own files "
                          "are; name a file in the data root or outside of it")
    if not folder.is_dir():
        raise ConfigError(f"append: there is no folder {folder}; create it")
    return path


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as problem:
        raise StorageError(f"cannot read {path}: {problem.strerror}") from None


def _one_line(text: str) -> str:
    return " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", text).split())


_CALENDAR = b"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//hermes-lite//EN\r\n"
_CALENDAR_END = b"END:VCALENDAR"


def _calendar(old: bytes, more: bytes, path: Path) -> bytes:
    """Return the calendar with one more event before its end."""
    old = old if old.strip() else _CALENDAR + _CALENDAR_END + b"\r\n"
    head, end, tail = old.rpartition(_CALENDAR_END)
    if not old.lstrip(b"\xef\xbb\xbf").startswith(b"BEGIN:VCALENDAR") or tail.strip() or not end:
        raise Refused(f"{path.name} is no calendar; move it away or name another file",
                      "no_calendar")
    return head + more + end + b"\r\n"


def event(row: Memory, *, cause: str, now: datetime, dates: Iterable[str] = ()) -> bytes:
    """Return a VEVENT: an all-day event, lines end with CRLF and are folded at 75 octets.

    The day of a moment is that in the zone of *now*.
    """
    day = _day(row, dates, now.tzinfo)
    text = re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", " ", row.content.replace("\r\n", "\n"))
    lines = ["BEGIN:VEVENT", f"UID:{cause}@hermes-lite",
             f"DTSTAMP:{now.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}",
             f"DTSTART;VALUE=DATE:{day:%Y%m%d}",
             f"DTEND;VALUE=DATE:{day + timedelta(days=1):%Y%m%d}",
             f"SUMMARY:{_escaped(_one_line(excerpt(text)))}", f"DESCRIPTION:{_escaped(text)}",
             *([f"CATEGORIES:{','.join(_escaped(_one_line(tag)) for tag in row.tags)}"]
               if row.tags else []), "END:VEVENT"]
    return b"".join(_folded(line) for line in lines)


def _day(row: Memory, dates: Iterable[str], zone: tzinfo) -> datetime:
    """Return the first readable date: of *dates*, the memory's end, its text, its creation."""
    found = import_system("anchors").extract(row.content)
    in_text = [value for kind, value in found if kind in ("deadline", "date")]
    for word in filter(None, (*dates, row.expires_at, *in_text, row.created_at)):
        date = re.sub(r"[年月]", "-", _with_year(str(word), row.created_at)).rstrip("日号")
        is_moment_of_record = word == row.created_at and not is_date(date)
        when = parse_time(date, zone=timezone.utc if is_moment_of_record else zone)
        if when:
            return when.astimezone(zone)
    return datetime(1970, 1, 1, tzinfo=timezone.utc)


def _with_year(date: str, created_at: str) -> str:
    """Return a date such as --08-17 with the year in which it comes next; any other unchanged."""
    found = re.fullmatch(r"--(\d\d-\d\d)", date)
    if not found:
        return date
    created = created_at[:10]
    year = int(created[:4]) if created[:4].isdecimal() else 1970
    if f"{year}-{found[1]}" < created:
        year += 1
    return f"{year}-{found[1]}"


def _escaped(text: str) -> str:
    return re.sub(r"([\\;,])", r"\\\1", text).replace("\n", "\\n")


def _folded(line: str) -> bytes:
    """Cut a line at 75 octets, never inside a character; what follows starts with a blank."""
    rows, row = [], b""
    for char in line:
        data = char.encode("utf-8", "replace")
        if len(row) + len(data) > 75:
            rows.append(row)
            row = b" "
        row += data
    return b"\r\n".join([*rows, row]) + b"\r\n"

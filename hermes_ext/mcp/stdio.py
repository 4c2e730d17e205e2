"""Standard input and output as the protocol's pipe: one JSON-RPC message a line, nothing else.

`claim` takes both away from the rest of the process before a system is loaded: file descriptor 1
then leads to standard error and 0 to nowhere, so that no print, warning or program that is run
can disturb the pipe, or read from it.

A line that is no message is answered with an error, with the id that stands in it, and the session
goes on. When the input ends, what was asked before is still answered.
"""
from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes_lite import UsageError, from_json

if TYPE_CHECKING:
    from hermes_ext.mcp.surface import Surface

__all__ = ["claim", "serve"]

_PIECE = 65536
_PARSE_ERROR = -32700
_INVALID_REQUEST = -32600


@dataclass(frozen=True, slots=True)
class Pipe:
    """The file descriptors from which requests are read, and to which answers are written."""
    reading: int
    writing: int


_claimed: list[Pipe] = []                          # at most one: a process has one standard input


def claim() -> None:
    """Take standard input and output for the protocol alone, until the process ends.

    Streams that are no files, as in a test of the command line, are left as they are.
    """
    if _claimed:
        return
    try:
        given, taken = sys.stdin.fileno(), sys.stdout.fileno()
        errors = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return
    sys.stdout.flush()
    _claimed.append(Pipe(os.dup(given), os.dup(taken)))
    os.dup2(errors, taken)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, given)
    os.close(nowhere)
    sys.stdout = sys.stderr


def serve(surface: Surface) -> None:
    """Answer requests from standard input until it ends, or until SIGTERM or SIGINT."""
    from hermes_ext.mcp.sdk import make_server
    if not _claimed:
        raise UsageError("mcp speaks through a pipe; start it as a program of its own, or give "
                         "--http PORT")
    server = make_server(surface)
    if os.isatty(_claimed[0].reading):
        print("hermes-lite: waiting for a client's JSON-RPC on standard input; Ctrl-D ends",
              file=sys.stderr)
    import anyio
    anyio.run(_serve, server, _claimed[0])


async def _serve(server: Any, pipe: Pipe) -> None:
    import anyio
    from mcp.server.stdio import stdio_server
    output: Any = _Output(pipe.writing)
    requests: Any = _Requests(pipe.reading, output)
    async with anyio.create_task_group() as group:
        group.start_soon(_cancel_on_signal, group.cancel_scope)
        output.on_closed = group.cancel_scope.cancel
        async with stdio_server(stdin=requests, stdout=output) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
        group.cancel_scope.cancel()


async def _cancel_on_signal(scope: Any) -> None:
    """Cancel the session at a signal; a write that is under way is finished first."""
    import anyio
    with contextlib.suppress(NotImplementedError):          # Windows
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                scope.cancel()
                return


# -- reading ------------------------------------------------------------------

class _Requests:
    """The lines of the input that are JSON objects, as the package reads them from a file.

    Where the input ends, iteration ends only once every request has been answered: the package
    would drop what it is still working on.
    """

    def __init__(self, descriptor: int, output: _Output) -> None:
        self._descriptor, self._output = descriptor, output

    async def __aiter__(self) -> AsyncIterator[str]:
        import asyncio
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()

        def put(line: bytes | None) -> None:
            with contextlib.suppress(RuntimeError):         # the session has ended meanwhile
                loop.call_soon_threadsafe(lines.put_nowait, line)

        # A daemon: no signal could end a thread that waits for input.
        threading.Thread(target=_read_lines, args=(self._descriptor, put), daemon=True).start()
        while (line := await lines.get()) is not None:
            if line.strip():
                message = await self._message(line)
                if message is not None:
                    yield message
        await self._output.wait_for_answers()

    async def _message(self, line: bytes) -> str | None:
        """Return a line as the package takes it; None where it was answered here."""
        try:
            found = from_json(line)
        except ValueError:
            await self._output.refuse(None, _PARSE_ERROR, "the line is no JSON")
            return None
        if not isinstance(found, dict):
            await self._output.refuse(None, _INVALID_REQUEST,
                                      "a line holds one JSON-RPC object; batches are not taken")
            return None
        identity = _identity_of(found)
        is_message = found.get("jsonrpc") == "2.0" and (
            isinstance(found.get("method"), str) or "result" in found or "error" in found)
        if not is_message or ("id" in found and identity is None):
            await self._output.refuse(identity, _INVALID_REQUEST,
                                      "this is no JSON-RPC 2.0 message")
            return None
        if identity is not None and "method" in found:
            self._output.expect(identity)
        if found.get("method") == "notifications/cancelled" and isinstance(
                found.get("params"), dict):
            self._output.forget(found["params"].get("requestId"))
        # A lone surrogate is no text; the package would drop the whole message.
        return json.dumps(found, ensure_ascii=False).encode("utf-8", "replace").decode()


def _identity_of(message: dict[str, Any]) -> str | int | None:
    """Return the id of a message; None where it has none that is a text or a whole number."""
    identity = message.get("id")
    if isinstance(identity, bool) or not isinstance(identity, (str, int)):
        return None
    return identity


def _read_lines(descriptor: int, put: Callable[[bytes | None], None]) -> None:
    """Put every line of a file, then None; a last line without an end counts."""
    pieces: list[bytes] = []
    with contextlib.suppress(OSError):
        while piece := os.read(descriptor, _PIECE):
            *ended, rest = piece.split(b"\n")
            for end in ended:
                put(b"".join([*pieces, end]))
                pieces = []
            pieces.append(rest)
    put(b"".join(pieces))
    put(None)


# -- writing ------------------------------------------------------------------

class _Output:
    """Writes messages whole, one after the other, and knows which requests are unanswered.

    Where the client has closed its end, `on_closed` is called and the rest is dropped.
    """

    def __init__(self, descriptor: int) -> None:
        import anyio
        self._descriptor = descriptor
        self._lock = anyio.Lock()
        self._unanswered: set[str | int] = set()
        self._answered = anyio.Event()
        self.on_closed: Callable[[], None] = lambda: None

    async def write(self, text: str) -> None:
        """Write one message, as the package writes it to a file."""
        import anyio.to_thread
        async with self._lock:
            try:
                await anyio.to_thread.run_sync(_write_all, self._descriptor, text.encode())
            except OSError:                        # the client has gone
                self.on_closed()
        message = json.loads(text)
        if "method" not in message:
            self.forget(message.get("id"))

    async def flush(self) -> None:
        """Do nothing: `write` has written."""

    async def refuse(self, identity: str | int | None, code: int, message: str) -> None:
        """Answer what the package could not read with an error."""
        await self.write(json.dumps({"jsonrpc": "2.0", "id": identity,
                                     "error": {"code": code, "message": message}}) + "\n")

    def expect(self, identity: str | int) -> None:
        """Note a request that needs an answer."""
        self._unanswered.add(identity)

    def forget(self, identity: object) -> None:
        """Note that a request was answered, or that nobody waits for its answer."""
        import anyio
        if isinstance(identity, (str, int)):
            self._unanswered.discard(identity)
        self._answered.set()
        self._answered = anyio.Event()

    async def wait_for_answers(self) -> None:
        """Return once every request was answered, at the latest after a minute."""
        import anyio
        with anyio.move_on_after(_LAST_ANSWERS_SECONDS):
            while self._unanswered:
                await self._answered.wait()


_LAST_ANSWERS_SECONDS = 60


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left):]

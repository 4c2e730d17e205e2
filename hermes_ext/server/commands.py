"""The commands `serve` and `token`."""
from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from hermes_ext.server.tokens import Issued, Tokens
from hermes_lite import (
    HermesError,
    HermesLite,
    MissingPackage,
    Operation,
    Param,
    StorageError,
    UsageError,
    display_text,
    import_system,
    make_folder,
)

__all__ = ["OPERATIONS", "serve"]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(memory: HermesLite, *, host: str = "127.0.0.1", port: int = 8765,
          allow_host: Sequence[str] = (), body_mb: int = 2, per_minute: int = 1_200) -> None:
    """Serve HTTP until the process is told to stop; requests that have begun are finished.

    MissingPackage without the extra `server`, StorageError where the port is taken.
    """
    try:
        import uvicorn

        from hermes_ext.server.app import make_app
        from hermes_ext.server.guard import Limits
        limits = Limits(body_bytes=body_mb * 1_000_000, per_minute=per_minute)
        tokens = Tokens(memory)
        app = make_app(memory, hosts=[*_LOOPBACK, host, *allow_host], limits=limits)
        issued = tokens.create("page", ["read", "write", "review"], days=_PAGE_DAYS)
    except ImportError as problem:
        raise MissingPackage(f"`serve` needs the package {problem.name}: pip install "
                             "'hermes-lite-memory[server]'") from None
    _switch_events_on(memory)
    _switch_undo_on(memory)
    bound = _bind(host, port)
    server = _server(uvicorn, app)
    address = f"[{host}]" if ":" in host else host
    print(f"serving {memory.root.name} on http://{address}:{port}/ until Ctrl-C")
    if sys.stdout.isatty():
        print(f"open http://{address}:{port}/#token={issued.token}")
    else:
        tokens.revoke(issued.id)                   # nobody reads it; it would stand in a log
        print("`token create` makes a token for a program, or for the page: /#token=…")
    sys.stdout.flush()
    # uvicorn hands the signal on when it has stopped; the memory is still to be closed then.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with _publishing(memory):
        server.run(sockets=[bound])


_PAGE_DAYS = 1 / 24        # an hour


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens; StorageError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as problem:
        raise StorageError(f"port {port} of {host} cannot be used ({problem.strerror}); give "
                           "another --port or --host") from None


def _server(uvicorn: Any, app: Any) -> Any:
    config = uvicorn.Config(app, access_log=False, log_level="warning", server_header=False,
                            timeout_graceful_shutdown=10)

    class Server(uvicorn.Server):                  # type: ignore[misc]
        def handle_exit(self, sig: int, frame: Any) -> None:
            app.state.is_stopping = True           # the streams of events end
            super().handle_exit(sig, frame)
    return Server(config)


def _switch_events_on(memory: HermesLite) -> None:
    """Make the file that has every program on this root write down what it does."""
    folder = memory.root / "logs"
    make_folder(memory.root)
    make_folder(folder)
    (folder / "events.log").touch(mode=0o600)
    events = import_system("events")
    if not any(isinstance(each, events.Events) for each in memory.systems):
        memory.systems.append(events.system(memory))


def _switch_undo_on(memory: HermesLite) -> None:
    """Let what is done here be taken back, in this process alone where config.yaml has no undo."""
    module = import_system("undo")
    if not any(isinstance(each, module.Undo) for each in memory.systems):
        memory.systems.append(module.Undo(memory, hours=24, on_disk=False))


@contextlib.contextmanager
def _publishing(memory: HermesLite) -> Iterator[None]:
    """In the background, append what killed programs left out, and publish what Redis missed."""
    events = import_system("events").find(memory)
    stopping = threading.Event()

    def work() -> None:
        turns = 0
        while not stopping.wait(_PUBLISH_SECONDS):
            turns += 1
            try:
                if turns % _CATCH_UP_TURNS == 1:
                    events.catch_up()
                events.publish()
            except HermesError as problem:         # a full disk, a lock: the next turn tries again
                memory.notices.append(str(problem))

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        yield
    finally:
        stopping.set()
        worker.join()


_PUBLISH_SECONDS, _CATCH_UP_TURNS = 1.0, 10


# -- commands -----------------------------------------------------------------

def _create(memory: HermesLite, *, agent: str | None, scope: Sequence[str], days: int) -> Issued:
    if agent is None:
        raise UsageError("give --agent, the name under which the token writes")
    try:
        return Tokens(memory).create(agent, scope or ("read",), days=days)
    except ImportError:
        raise MissingPackage("tokens need the package pyjwt: pip install "
                             "'hermes-lite-memory[server]'") from None


def _show_created(issued: Issued) -> Iterator[str]:
    yield str(issued.token)
    yield (f"  {issued.id}: {display_text(issued.agent)} may {', '.join(issued.scopes)} until "
           f"{issued.expires[:10]}; it is not shown again")


def _show_tokens(rows: Sequence[Issued]) -> Iterator[str]:
    for row in rows:
        state = f"revoked {row.revoked[:10]}" if row.revoked else f"until {row.expires[:10]}"
        yield f"{row.id}  {display_text(row.agent)}  {', '.join(row.scopes)}  {state}"


def _serve(memory: HermesLite, *, host: str, port: int, allow_host: Sequence[str], body_mb: int,
           per_minute: int) -> None:
    serve(memory, host=host, port=port, allow_host=allow_host, body_mb=body_mb,
          per_minute=per_minute)


OPERATIONS = (
    Operation("serve", "serve the memory over HTTP, with a page to look at it", _serve, (
        Param("host", str, "the address to listen on; any but loopback is open to others",
              "127.0.0.1"),
        Param("port", int, "the port", 8765, least=1, most=65535),
        Param("allow_host", str, "answer for this name, too", (), repeated=True),
        Param("body_mb", int, "the longest body in MB", 2, least=1, most=100),
        Param("per_minute", int, "requests a minute of one token; 0 is no limit", 1_200,
              least=0)), scope="local"),
    Operation("token create", "make a token for an agent or a person", _create, (
        Param("agent", str, "the name under which it writes"),
        Param("scope", str, "read, write, review or admin; several may follow (default: read)",
              (), repeated=True),
        Param("days", int, "how long it counts", 30, least=1, most=3650)), _show_created,
        writes=True, scope="local"),
    Operation("token list", "list the tokens that were made",
              lambda memory: Tokens(memory).rows(), (), _show_tokens, scope="local"),
    Operation("token revoke", "let a token count no longer",
              lambda memory, id: Tokens(memory).revoke(id), (
                  Param("id", str, "its id, as `token list` shows it", positional=True,
                        required=True),),
              lambda row: [f"revoked {row.id}"], writes=True, scope="local"),
)

"""Streamable HTTP on the loopback interface: who may connect, and until when.

Each request needs `Authorization: Bearer TOKEN`, a token that `token create` has made: its agent
is the name under which the client writes, and its scopes say what the client may do. Of them read
and write count here, and no more than --scope allows; nobody reviews or administers through MCP.

Host and Origin must name this machine, so that no page in a browser reaches the memory under a
name of its own. A body has at most 4 MiB.
"""
from __future__ import annotations

import json
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

from hermes_ext.calls import Caller
from hermes_ext.mcp.sdk import make_server
from hermes_ext.mcp.surface import Surface
from hermes_lite import StorageError, import_system

__all__ = ["PATH", "serve"]

PATH = "/mcp"
_HOST = "127.0.0.1"
_NAMES = (_HOST, "localhost", "[::1]")
_BODY = 4 * 1024 * 1024                            # bytes; mcp 1.26 has no limit of its own
_GRACE_SECONDS = 3                                 # for streams that are open at the end

Scope = Mapping[str, Any]
# Returns the caller that a token stands for, None where it stands for nobody.
Authenticate = Callable[[str], "Caller | None"]


def serve(surface: Surface, port: int) -> None:
    """Serve until SIGINT or SIGTERM; StorageError where the port cannot be taken."""
    server = make_server(surface)
    authenticate = _authentication(surface)
    try:
        listening = socket.create_server((_HOST, port))
    except OSError as problem:
        raise StorageError(f"port {port} of {_HOST} cannot be taken: {problem.strerror}"
                           ) from None
    with listening:
        import anyio
        address = f"http://{_HOST}:{listening.getsockname()[1]}{PATH}"
        print(f"hermes-lite: MCP at {address} until Ctrl-C; `token create` makes a token for a "
              "client", file=sys.stderr, flush=True)
        # uvicorn ends at these signals, and then raises them once more; by then nothing is to do.
        for ending in (signal.SIGINT, signal.SIGTERM):
            signal.signal(ending, lambda number, frame: None)
        anyio.run(_serve, server, listening, authenticate)


async def _serve(server: Any, listening: socket.socket, authenticate: Authenticate) -> None:
    import uvicorn
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.server.transport_security import TransportSecuritySettings
    port = listening.getsockname()[1]
    hosts = [f"{name}:{port}" for name in _NAMES]
    manager = StreamableHTTPSessionManager(
        app=server, security_settings=TransportSecuritySettings(
            allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts]))
    web = uvicorn.Server(uvicorn.Config(
        _Guarded(manager.handle_request, authenticate), lifespan="off", log_config=None,
        access_log=False, timeout_graceful_shutdown=_GRACE_SECONDS, ws="none"))
    async with manager.run():
        await web.serve(sockets=[listening])


# -- who may connect ----------------------------------------------------------

class _Guarded:
    """Passes on what asks for PATH with a valid token, with the caller beside the request."""

    def __init__(self, handle: Callable[..., Any], authenticate: Authenticate) -> None:
        self._handle, self._authenticate = handle, authenticate

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one request, as ASGI has it."""
        if scope["type"] != "http":
            return
        if scope["path"].rstrip("/") != PATH:
            await _refuse(send, 404, "not_found", f"there is nothing here; MCP is at {PATH}")
            return
        caller = self._authenticate(_bearer(scope))
        if caller is None:
            await _refuse(send, 401, "unauthorized",
                          "a valid token is needed: Authorization: Bearer TOKEN")
            return
        address = scope.get("client") or ("unknown",)
        known = Caller("mcp", caller.agent, caller.scopes,
                       {"ip": address[0], "request": secrets.token_hex(8)})
        body = await _body(receive) if scope["method"] == "POST" else b""
        if body is None:
            await _refuse(send, 413, "too_large", f"a request has at most {_BODY:,} bytes")
            return
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Any:
            return waiting.pop() if waiting else await receive()

        await self._handle({**scope, "hermes.caller": known}, receive_again, send)


async def _body(receive: Any) -> bytes | None:
    """Return the body of a request; None where it is too long."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > _BODY:
            return None
        if not message.get("more_body"):
            return b"".join(pieces)


def _bearer(scope: Scope) -> str:
    """Return the token of a request, "" where there is none."""
    found = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    if len(found) != 1:
        return ""
    kind, _, token = found[0].decode("latin-1").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


async def _refuse(send: Any, status: int, name: str, message: str) -> None:
    body = json.dumps({"error": {"name": name, "message": message}}).encode()
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="hermes-lite"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _authentication(surface: Surface) -> Authenticate:
    """Return the function that checks tokens; ConfigError where the server is not installed."""
    server = import_system("server")
    tokens = server.Tokens(surface.memory)
    most = Caller("mcp", scopes=surface.scopes)

    def authenticate(token: str) -> Caller | None:
        try:
            identity = tokens.identify(token)
        except server.Unauthorized:
            return None
        holder = Caller("mcp", identity.agent, identity.scopes)
        scopes = frozenset(scope for scope in ("read", "write")
                           if holder.may(scope) and most.may(scope))
        return Caller("mcp", identity.agent, scopes)
    return authenticate

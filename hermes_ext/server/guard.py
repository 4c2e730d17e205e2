"""What stands before every request: host, origin, size, token and rate.

`Guard` is a plain ASGI middleware, so that no route can be reached without it: a route that nobody
thought of needs a token like any other. It leaves `request_id` and `caller` in the request's state.
"""
from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from hermes_ext.calls import Caller, error_name
from hermes_ext.server.tokens import Tokens, Unauthorized
from hermes_lite import HermesError

__all__ = ["Guard", "Limits", "error_body"]

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OPEN_PATHS = ("/", "/favicon.ico", "/api/v1/health")
OPEN_FOLDERS = ("/static/",)

# Of the page; a memory's text can run nothing, whatever it holds.
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
                               "img-src 'self' data:; connect-src 'self'; font-src 'self'; "
                               "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin"}


class Limits:
    """How much one caller may ask: bytes of a body, requests a minute (0 is no limit)."""

    def __init__(self, *, body_bytes: int, per_minute: int) -> None:
        from limits import parse
        from limits.storage import MemoryStorage
        from limits.strategies import FixedWindowRateLimiter
        self.body_bytes = body_bytes
        self._limiter = FixedWindowRateLimiter(MemoryStorage())
        self._rate = parse(f"{per_minute}/minute") if per_minute else None

    def allows(self, caller_id: str) -> bool:
        """Count a request, and tell whether it is within the limit."""
        return self._rate is None or self._limiter.hit(self._rate, caller_id)

    def seconds_left(self, caller_id: str) -> int:
        """Return the seconds until the caller may ask again."""
        assert self._rate is not None
        reset = self._limiter.get_window_stats(self._rate, caller_id).reset_time
        return max(1, int(reset - time.time()) + 1)


class Guard:
    """Lets a request through, or answers it with an error."""

    def __init__(self, app: Any, *, tokens: Tokens, hosts: Iterable[str], limits: Limits,
                 observe: Callable[[str, str, int, float], None]) -> None:
        self._app, self._tokens, self._limits = app, tokens, limits
        self._hosts = {host.lower() for host in hosts}
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; everything but HTTP is the business of the server itself."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(8)
        started = time.perf_counter()
        status = 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = {**_HEADERS, "x-request-id": request_id}
                message["headers"] = [*message["headers"], *(
                    (name.encode(), value.encode()) for name, value in extra.items())]
            await send(message)

        try:
            refusal = await self._admit(scope, receive, request_id)
            if isinstance(refusal, _Refusal):
                await refusal.send(answer, request_id)
            else:
                await self._app(scope, refusal, answer)
        finally:
            route = scope.get("route")
            name = getattr(route, "path", "none")
            self._observe(scope["method"], name, status, time.perf_counter() - started)

    async def _admit(self, scope: Scope, receive: Receive,
                     request_id: str) -> _Refusal | Receive:
        """Return what gives the request's body, or why the request is refused."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1")
                   for name, value in scope["headers"]}
        if _host_of(headers.get("host", "")) not in self._hosts:
            return _Refusal(421, "refused", "this server does not answer for that host; name it "
                            "with --allow-host")
        origin = headers.get("origin")
        if origin is not None and _host_of(origin.partition("://")[2]) not in self._hosts:
            return _Refusal(403, "refused", "pages of another origin may not ask this server")
        caller = None
        if not _is_open(scope["path"]):
            caller = self._identify(headers, scope, request_id)
            if isinstance(caller, _Refusal):
                return caller
        scope.setdefault("state", {}).update(request_id=request_id, caller=caller)
        return await self._body(receive)

    def _identify(self, headers: Mapping[str, str], scope: Scope,
                  request_id: str) -> Caller | _Refusal:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        try:
            if scheme.lower() != "bearer":
                raise Unauthorized
            who = self._tokens.identify(token.strip())
        except Unauthorized:
            return _Refusal(401, "unauthorized", "give a valid token in the header Authorization: "
                            "Bearer …; `token create` makes one", {"www-authenticate": "Bearer"})
        except HermesError as problem:             # the list of tokens, or the key, is damaged
            return _Refusal(503, error_name(problem), str(problem))
        if not self._limits.allows(who.id):
            seconds = self._limits.seconds_left(who.id)
            return _Refusal(429, "rate_limited", f"too many requests; go on in {seconds} s",
                            {"retry-after": str(seconds)})
        ip = (scope.get("client") or ("unknown",))[0]
        return Caller("http", who.agent, who.scopes, {
            "ip": ip, "user_agent": headers.get("user-agent", "")[:200], "request": request_id})

    async def _body(self, receive: Receive) -> _Refusal | Receive:
        """Read the body as far as it may be long, and return what gives it again."""
        too_large = _Refusal(413, "too_large", "the body is longer than "
                             f"{self._limits.body_bytes:,} bytes; send it in smaller pieces",
                             {"connection": "close"})
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":      # the client has gone
                break
            size += len(message.get("body", b""))
            if size <= self._limits.body_bytes:
                chunks.append(message.get("body", b""))
            # What is too long is read on for a while: a client that is still sending would not
            # see the answer.
            if not message.get("more_body") or size > 10 * self._limits.body_bytes:
                break
        if size > self._limits.body_bytes:
            return too_large
        waiting = [{"type": "http.request", "body": b"".join(chunks), "more_body": False}]

        async def give() -> Message:
            return waiting.pop() if waiting else await receive()
        return give


class _Refusal:
    """An answer in place of the one that was asked for."""

    def __init__(self, status: int, name: str, message: str,
                 headers: Mapping[str, str] | None = None) -> None:
        self.status, self.name, self.message = status, name, message
        self.headers = dict(headers or {})

    async def send(self, send: Send, request_id: str) -> None:
        body = json.dumps(error_body(self.name, self.message, request_id)).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)),
                   **self.headers}
        await send({"type": "http.response.start", "status": self.status, "headers": [
            (name.encode(), value.encode()) for name, value in headers.items()]})
        await send({"type": "http.response.body", "body": body})


def error_body(name: str, message: str, request_id: str | None = None) -> dict[str, Any]:
    """Return an error of the server itself in the shape of `calls.error_of`."""
    return {"error": {"name": name, "message": message, "exit_code": 1, "request": request_id}}


def _host_of(text: str) -> str:
    """Return the host of "host:port" or "[::1]:port", in lower case."""
    if text.startswith("["):
        return text[1:].partition("]")[0].lower()
    return text.partition(":")[0].lower()


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)

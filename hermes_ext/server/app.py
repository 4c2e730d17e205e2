"""The HTTP interface: a route for each operation, and the ones that programs expect.

    POST   /api/v1/memory            remember: {"text" or "content", "tags", …}
    GET    /api/v1/memory            recall with q=, list without: tags, room, agent, limit, offset
    GET    /api/v1/memory/{id}       show
    DELETE /api/v1/memory/{id}       forget
    GET    /api/v1/context           context: q, budget, …
    GET    /api/v1/health            {"status": "ok", "stb_size": …, "lta_count": …}
    GET    /api/v1/events            server-sent events
    GET    /api/v1/me                whom the token speaks for
    GET    /api/v1/ops               the operations with schema and scope
    POST   /api/v1/ops/{name}        each of them; the two words of a name are joined by a slash
    GET    /metrics                  for Prometheus

The module needs the packages of the extra `server`: only what serves imports it. An answer is
{"result": …, "notices": […]}, an error {"error": {…}} (see `calls.error_of`).
"""
from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException

from hermes_ext import calls
from hermes_ext.server.guard import Guard, Limits, error_body
from hermes_ext.server.tokens import Tokens
from hermes_lite import (
    HermesError,
    HermesLite,
    Operation,
    UsageError,
    __version__,
    from_json,
)

__all__ = ["make_app", "STATUS"]

STATUS = {"usage": 400, "config": 409, "not_found": 404, "refused": 403, "locked": 503,
          "damaged": 503, "storage": 507, "remote": 502, "missing_package": 501, "error": 500,
          "internal": 500}
STATIC = Path(__file__).parent / "static"

log = logging.getLogger("hermes_lite.server")


def make_app(memory: HermesLite, *, hosts: Iterable[str] = ("127.0.0.1", "localhost", "::1"),
             limits: Limits | None = None) -> Any:
    """Return the ASGI application over an open memory, which it does not close.

    *hosts* are the names and addresses for which it answers.
    """
    app = FastAPI(title="hermes-lite", version=__version__, docs_url=None, redoc_url=None,
                  openapi_url="/api/v1/openapi.json",
                  description="The memory of your agents. Every route but health needs a token.")
    metrics = _Metrics(memory)
    app.add_middleware(Guard, tokens=Tokens(memory), hosts=hosts, observe=metrics.observe,
                       limits=limits or Limits(body_bytes=2_000_000, per_minute=1_200))

    @app.exception_handler(HermesError)
    async def told(request: Request, problem: HermesError) -> JSONResponse:
        name = calls.error_name(problem)
        headers = {"retry-after": "1"} if name == "locked" else None
        return JSONResponse(calls.error_of(problem, request.state.request_id), STATUS[name],
                            headers=headers)

    @app.exception_handler(HTTPException)
    async def unknown_route(request: Request, problem: HTTPException) -> JSONResponse:
        name = {404: "not_found", 405: "method_not_allowed"}.get(problem.status_code, "error")
        return JSONResponse(error_body(name, str(problem.detail), request.state.request_id),
                            problem.status_code, headers=problem.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, problem: RequestValidationError) -> JSONResponse:
        first = problem.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        return JSONResponse(error_body("usage", f"{place}: {first['msg']}",
                                       request.state.request_id), 422)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, problem: Exception) -> JSONResponse:
        log.error("request %s failed", request.state.request_id, exc_info=problem)
        return JSONResponse(calls.error_of(problem, request.state.request_id), 500)

    known = calls.operations()
    _add_operations(app, memory, known)
    _add_routes(app, memory, known, metrics)
    if STATIC.is_dir():
        app.mount("/static", StaticFiles(directory=STATIC))
    return app


# -- routes -------------------------------------------------------------------

def _add_operations(app: Any, memory: HermesLite, known: Mapping[str, Operation]) -> None:
    """Add a POST route for each operation, and the list of them."""
    def route(operation: Operation) -> Callable[..., dict[str, Any]]:
        def run(request: Request, body: _Body) -> dict[str, Any]:
            return _run(memory, operation, body, request)
        return run

    for operation in known.values():
        app.post(f"/api/v1/ops/{operation.name.replace(' ', '/')}", tags=["operations"],
                 operation_id=operation.name.replace(" ", "_"), summary=operation.help,
                 description=f"Scope: {calls.scope_of(operation)}", responses=_ERRORS,
                 openapi_extra=_body_schema(calls.input_schema(operation), _example(operation)),
                 )(route(operation))

    @app.get("/api/v1/ops", tags=["operations"], responses=_ERRORS)
    def operations(request: Request) -> dict[str, Any]:
        """List the operations with their arguments and the scope that each takes."""
        _need(request, "read")
        return {"result": [{"name": one.name, "help": one.help, "scope": calls.scope_of(one),
                            "destructive": one.destructive,
                            "arguments": calls.input_schema(one)} for one in known.values()],
                "notices": []}


def _add_routes(app: Any, memory: HermesLite, known: Mapping[str, Operation],
                metrics: _Metrics) -> None:
    """Add the routes that are not named after an operation."""
    @app.post("/api/v1/memory", status_code=201, tags=["memory"], responses=_ERRORS,
              openapi_extra=_body_schema(_memory_schema(known["remember"]),
                                         {"text": "The staging database listens on port 5433",
                                          "tags": ["staging"]}))
    def remember(request: Request, body: _Body) -> dict[str, Any]:
        """Keep a text: `text` or `content`, `tags`, and what the operation remember takes."""
        return _run(memory, known["remember"], _memory_fields(body), request)

    @app.get("/api/v1/memory", tags=["memory"], responses=_ERRORS)
    def find(request: Request, q: str | None = None, tags: str = "", room: str | None = None,
             agent: str | None = None, unverified: bool = False,
             limit: int = Query(20, ge=1, le=1_000),
             offset: int = Query(0, ge=0, le=1_000_000)) -> dict[str, Any]:
        """Find memories: with `q` the best hits, else the newest that pass the filters."""
        filters = {"room": room, "agent": agent, "tags": tags}
        if q is not None and q.strip():
            given: dict[str, object] = {**filters, "query": q, "top_k": limit + offset}
            found = _run(memory, known["recall"], given, request)
            found["result"]["hits"] = found["result"]["hits"][offset:]
            return found
        given = {**filters, "unverified": unverified, "limit": limit + offset}
        found = _run(memory, known["list"], given, request)
        return {**found, "result": found["result"][offset:]}

    @app.get("/api/v1/memory/{id}", tags=["memory"], responses=_ERRORS)
    def show(request: Request, id: str) -> dict[str, Any]:
        """Show one memory whole."""
        return _run(memory, known["show"], {"id": id}, request)

    @app.delete("/api/v1/memory/{id}", tags=["memory"], responses=_ERRORS)
    def forget(request: Request, id: str, reason: str | None = None) -> dict[str, Any]:
        """Forget one memory at once."""
        given: dict[str, object] = {"id": id}
        if reason:
            given["reason"] = reason
        return _run(memory, known["forget"], given, request)

    if "context" in known:
        @app.get("/api/v1/context", tags=["memory"], responses=_ERRORS)
        def context(request: Request, q: str, budget: int | None = Query(None, ge=1),
                    tags: str = "", room: str | None = None,
                    agent: str | None = None) -> dict[str, Any]:
            """Find memories and lay them out for a prompt."""
            return _run(memory, known["context"], {
                "query": q, "budget": budget, "tags": tags, "room": room, "agent": agent},
                request)

    @app.get("/api/v1/health", tags=["server"])
    def health() -> dict[str, Any]:
        """Tell that the server answers, and how much it holds."""
        return {"status": "ok", "stb_size": len(getattr(memory.store, "entries", ())),
                "lta_count": len(memory.store)}

    @app.get("/api/v1/me", tags=["server"], responses=_ERRORS)
    def me(request: Request) -> dict[str, Any]:
        """Tell whom the token speaks for, and what this memory has switched on."""
        caller = request.state.caller
        return {"result": {"agent": caller.agent, "scopes": sorted(caller.scopes),
                           "root_name": memory.root.name, "version": __version__,
                           "systems": sorted(memory.config["systems"])}, "notices": []}

    @app.get("/api/v1/events", tags=["server"], responses=_ERRORS,
             response_class=StreamingResponse)
    async def events(request: Request) -> StreamingResponse:
        """Stream the events as they come (server-sent); Last-Event-ID goes on after a break."""
        _need(request, "read")
        number = request.headers.get("last-event-id", "")
        stream = _event_stream(memory, int(number) if number.isdigit() else None, app.state)
        return StreamingResponse(stream, media_type="text/event-stream",
                                 headers={"cache-control": "no-store"})

    @app.get("/metrics", tags=["server"], response_class=PlainTextResponse, responses=_ERRORS)
    def prometheus(request: Request) -> PlainTextResponse:
        """Tell counts and times in the format of Prometheus."""
        _need(request, "read")
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", media_type="text/html")


def _run(memory: HermesLite, operation: Operation, given: object,
         request: Request) -> dict[str, Any]:
    """Run an operation for the caller of a request."""
    done = calls.call(memory, operation, given, request.state.caller)
    return {"result": done.result, "notices": list(done.notices)}


def _need(request: Request, scope: str) -> None:
    calls.check_scope(request.state.caller, scope, request.url.path)


async def _json_body(request: Request) -> object:
    """Return the JSON of a request's body, None where there is no body."""
    data = await request.body()
    if not data.strip():
        return None
    try:
        return from_json(data)
    except (ValueError, RecursionError):
        raise UsageError("the body is no JSON; send an object with the arguments") from None


def _memory_fields(body: object) -> object:
    """Return the arguments of `remember`: `content` and `source_agent` are other names there."""
    if not isinstance(body, Mapping):
        raise UsageError("the body is no object; send {\"text\": \"…\"}")
    fields = dict(body)
    for name, other in (("text", "content"), ("agent", "source_agent"), ("importance", "score")):
        if other in fields:
            value = fields.pop(other)
            fields.setdefault(name, value)
    if fields.get("text") is None:
        raise UsageError("text is missing: the text to keep")
    return fields


_Body = Annotated[Any, Depends(_json_body)]


# -- OpenAPI ------------------------------------------------------------------

_ERROR_SCHEMA = {"type": "object", "required": ["error"], "properties": {"error": {
    "type": "object", "required": ["name", "message"], "properties": {
        "name": {"type": "string"}, "message": {"type": "string"},
        "reason": {"type": "string"}, "exit_code": {"type": "integer"},
        "request": {"type": ["string", "null"]}}}}}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": _ERROR_SCHEMA}}}
    for status, text in {
        400: "an argument is wrong", 401: "no token that counts", 403: "not allowed, or refused",
        404: "not there", 409: "a system is not switched on", 413: "too long",
        422: "a query parameter is wrong", 429: "too many requests",
        503: "the store is busy, or damaged"}.items()}
_EXAMPLES: dict[str, dict[str, object]] = {
    "remember": {"text": "The staging database listens on port 5433", "tags": ["staging"]},
    "recall": {"query": "staging port", "top_k": 3}, "show": {"id": "a621"},
    "forget": {"id": "a621"}, "list": {"limit": 10}, "verify": {"id": ["a621"]},
    "context": {"query": "staging port", "budget": 500}}


def _example(operation: Operation) -> dict[str, object]:
    found = _EXAMPLES.get(operation.name)
    if found is not None:
        return found
    return {param.name: ["…"] if param.repeated else "…"
            for param in operation.params if param.required}


def _body_schema(schema: Mapping[str, Any], example: Mapping[str, object]) -> dict[str, Any]:
    return {"requestBody": {"required": bool(schema.get("required")), "content": {
        "application/json": {"schema": schema, "example": example}}}}


def _memory_schema(remember: Operation) -> dict[str, Any]:
    schema = calls.input_schema(remember)
    schema["properties"] = {**schema["properties"], "content": schema["properties"]["text"]}
    schema["anyOf"] = [{"required": ["text"]}, {"required": ["content"]}]
    return schema


# -- events and metrics -------------------------------------------------------

async def _event_stream(memory: HermesLite, after: int | None, state: Any) -> AsyncIterator[str]:
    """Yield each event as it is appended to the log, by whatever program; a sign of life else."""
    from hermes_lite import import_system
    log_of_events = import_system("events").find(memory)
    number = log_of_events.last_number() if after is None else after
    idle = 0.0
    yield ": connected\n\n"
    while not getattr(state, "is_stopping", False):
        rows = await asyncio.to_thread(_new_rows, log_of_events, number)
        for row in rows:
            number = row["n"]
            yield f"id: {number}\nevent: {row['type']}\ndata: {json.dumps(row)}\n\n"
        idle = 0.0 if rows else idle + _POLL_SECONDS
        if idle >= _ALIVE_SECONDS:
            idle = 0.0
            yield ": alive\n\n"
        await asyncio.sleep(_POLL_SECONDS)


def _new_rows(log_of_events: Any, number: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        log_of_events.after(number) if log_of_events.last_number() > number else [])
    return rows


_POLL_SECONDS, _ALIVE_SECONDS = 0.25, 15.0


class _Metrics:
    """Counts requests and their time by route, in a registry of its own."""

    def __init__(self, memory: HermesLite) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("hermes_requests", "Requests", ["method", "route", "status"],
                                 registry=self._registry)
        self._seconds = Histogram("hermes_request_seconds", "Time of a request", ["route"],
                                  registry=self._registry)
        Gauge("hermes_memories", "Memories that are stored",
              registry=self._registry).set_function(lambda: len(memory.store))

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> str:
        """Return all of it as Prometheus reads it."""
        return generate_latest(self._registry).decode()

"""The server of the package mcp around a Surface, for its versions 1 and 2."""
from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from hermes_ext.calls import Caller
from hermes_ext.mcp.surface import INSTRUCTIONS, Surface, caller_of, failure
from hermes_lite import HermesError, MissingPackage, __version__, redact

__all__ = ["make_server"]

INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
NAME = "hermes-lite"


class _Redacting(logging.Formatter):
    """Formats what packages log: they quote requests, in which a secret may stand."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, redacted and cut."""
        return redact(super().format(record))[0][:_LONGEST_LOG]


_LONGEST_LOG = 2_000


def make_server(surface: Surface) -> Any:
    """Return a server of the package that answers from *surface*; it runs over any transport.

    What packages log from now on is redacted.
    """
    _need_package()
    handler = logging.StreamHandler()
    handler.setFormatter(_Redacting("%(levelname)s: %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    try:
        from mcp.shared.exceptions import MCPError                              # noqa: F401
    except ImportError:
        return _server_of_version_1(surface)
    return _server_of_version_2(surface)


def _need_package() -> None:
    try:
        import mcp.server                                                       # noqa: F401
    except ImportError:
        raise MissingPackage('this needs the package mcp; run: pip install "mcp>=1.26,<3"'
                             ) from None


def _result_type(name: str) -> Any:
    """Return the class of the package for the result of a method: list_tools, ListToolsResult."""
    from mcp import types
    return getattr(types, f"{_class_prefix(name)}Result")


def _class_prefix(name: str) -> str:
    return name.title().replace("_", "")


# What a method of the protocol does with the surface, by the name of its handler.
_HANDLERS: dict[str, Callable[[Surface, Any, Caller], dict[str, Any]]] = {
    "list_tools": lambda surface, params, caller: surface.list_tools(),
    "call_tool": lambda surface, params, caller: surface.call_tool(
        params.name, params.arguments, caller),
    "list_resources": lambda surface, params, caller: surface.list_resources(caller),
    "list_resource_templates": lambda surface, params, caller: surface.list_templates(),
    "read_resource": lambda surface, params, caller: surface.read_resource(
        str(params.uri), caller),
    "list_prompts": lambda surface, params, caller: surface.list_prompts(),
    "get_prompt": lambda surface, params, caller: surface.get_prompt(
        params.name, params.arguments, caller),
}


class _Answers:
    """Answers requests from a surface, one after the other and beside the event loop.

    So a request sees what an earlier one has written, even where its client did not wait for the
    answer, and no two operations meet in one process.
    """

    def __init__(self, surface: Surface, error: Callable[[int, str], Exception]) -> None:
        import anyio
        self._surface = surface
        self._error = error                        # makes the exception of the package
        self._one_at_a_time = anyio.CapacityLimiter(1)

    async def answer(self, name: str, context: Any, params: Any) -> Any:
        """Return the package's result for a method of the protocol."""
        import anyio.to_thread
        act = partial(_HANDLERS[name], self._surface, params, _caller(self._surface, context))
        try:
            found = await anyio.to_thread.run_sync(act, limiter=self._one_at_a_time)
            return _result_type(name).model_validate(found)
        except HermesError as problem:
            raise self._error(INVALID_PARAMS, failure(problem)) from None
        except (Exception, SystemExit) as problem:     # one bad request must not end the session
            raise self._error(INTERNAL_ERROR, failure(problem)) from None


def _caller(surface: Surface, context: Any) -> Caller:
    """Return who asks: the caller that HTTP has found by its token, or the client of the pipe."""
    request = getattr(context, "request", None)
    granted: Caller | None = request.scope.get("hermes.caller") if request is not None else None
    params = context.session.client_params
    info = getattr(params, "client_info", None) or getattr(params, "clientInfo", None)
    name, version = (info.name, info.version) if info is not None else ("", "")
    if granted is not None:
        return caller_of(name, version, scopes=granted.scopes, agent=granted.agent,
                         client=granted.client)
    own = surface.memory.config.env("HERMES_AGENT") or None
    return caller_of(name, version, scopes=surface.scopes, agent=own)


# -- version 2 ----------------------------------------------------------------

def _server_of_version_2(surface: Surface) -> Any:
    from mcp.server.lowlevel import Server
    from mcp.shared.exceptions import MCPError

    answers = _Answers(surface, lambda code, message: MCPError(code=code, message=message))
    handlers: dict[str, Any] = {f"on_{name}": partial(answers.answer, name) for name in _HANDLERS}
    return Server(NAME, version=__version__, instructions=INSTRUCTIONS, **handlers)


# -- version 1 ----------------------------------------------------------------

def _server_of_version_1(surface: Surface) -> Any:
    import mcp.shared.exceptions
    from mcp.server.lowlevel import Server
    types: Any = mcp.types                         # its classes differ from those of version 2
    exceptions: Any = mcp.shared.exceptions
    server: Any = Server(NAME, version=__version__, instructions=INSTRUCTIONS)
    answers = _Answers(surface, lambda code, message: exceptions.McpError(
        types.ErrorData(code=code, message=message)))

    def handler(name: str) -> Callable[[Any], Awaitable[Any]]:
        async def handle(request: Any) -> Any:
            return types.ServerResult(await answers.answer(
                name, server.request_context, request.params))
        return handle

    for name in _HANDLERS:
        request = getattr(types, f"{_class_prefix(name)}Request")
        server.request_handlers[request] = handler(name)
    return server

"""Operations called by name with JSON, as HTTP and MCP do: schema, arguments, call and errors.

A surface needs no line of its own for an operation: `operations` lists them, `input_schema` tells
a client what one takes, and `call` reads the arguments leniently, checks what the caller may do
and runs it. `error_of` is the one shape in which every failure is told.
"""
from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_lite import (
    ConfigError,
    DamagedData,
    HermesError,
    HermesLite,
    Hits,
    Locked,
    MissingPackage,
    NotFound,
    Operation,
    Param,
    Refused,
    RemoteError,
    StorageError,
    UsageError,
    cut_tags,
    load_commands,
    plain,
    redact,
    result_warnings,
    run_operation,
)

__all__ = ["Called", "Caller", "SCOPES", "as_json", "call", "check_scope", "error_name", "error_of",
           "input_schema", "operations", "read_arguments", "scope_of"]

SCOPES = ("read", "write", "review", "admin")      # admin may do everything, write may read

_INCLUDED = {"read": {"read"}, "write": {"read", "write"}, "review": {"read", "review"},
             "admin": set(SCOPES)}

# The name of an error in an answer; the first class that fits counts.
_NAMES: tuple[tuple[type[HermesError], str], ...] = (
    (UsageError, "usage"), (ConfigError, "config"), (NotFound, "not_found"), (Refused, "refused"),
    (Locked, "locked"), (DamagedData, "damaged"), (StorageError, "storage"),
    (RemoteError, "remote"), (MissingPackage, "missing_package"), (HermesError, "error"))

_SELF_LABELLED = ("remember", "digest")            # their `agent` says who writes
_BRINGING_BACK = ("remember", "edit")              # a person's text counts although it was forgotten


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls through a surface, and what it may do.

    *surface* is http or mcp, *agent* the name under which it writes; *client* goes into the events
    (see `Event`). *scopes* are those of SCOPES that it was given.
    """
    surface: str
    agent: str | None = None
    scopes: frozenset[str] = frozenset({"read", "write"})
    client: Mapping[str, str] | None = None

    def may(self, scope: str) -> bool:
        """Tell whether one of the caller's scopes includes this one."""
        return any(scope in _INCLUDED[own] for own in self.scopes)


@dataclass(frozen=True, slots=True)
class Called:
    """What a call gave: a result of JSON's own types, and sentences that a person should see."""
    result: object
    notices: tuple[str, ...] = ()


def operations() -> dict[str, Operation]:
    """Return every operation that a surface offers, by name, sorted.

    Those of systems that are switched off are there, too: they say so when they are called.
    """
    known = load_commands(None)
    loaded: dict[str, Operation] = {}
    for name in known:
        if name not in loaded:
            found = load_commands(name)            # the core's, and the whole system's of this one
            loaded.update({other: found[other] for other in found if found[other].handler != print})
    known = {name: loaded[name] for name in known if name in loaded}
    return {name: known[name] for name in sorted(known) if known[name].scope != "local"}


def scope_of(operation: Operation, arguments: Mapping[str, object] | None = None) -> str:
    """Return the scope that a call takes; arguments can ask for more than the operation does."""
    scope = operation.scope
    if not scope:
        scope = "admin" if operation.destructive else "write" if operation.writes else "read"
    for param in operation.params:
        if not (arguments or {}).get(param.name):
            continue
        own = "admin" if param.kind is Path else param.scope
        if own and SCOPES.index(own) > SCOPES.index(scope):
            scope = own
    return scope


# -- schema -------------------------------------------------------------------

_TYPES: dict[type, str] = {int: "integer", bool: "boolean"}


def input_schema(operation: Operation) -> dict[str, Any]:
    """Return the JSON Schema of an operation's arguments."""
    properties = {param.name: _schema_of(param) for param in operation.params}
    if operation.destructive:
        properties["dry_run"] = {"type": "boolean", "default": False,
                                 "description": "only show what and why"}
        properties["yes"] = {"type": "boolean", "default": False,
                             "description": "do it; without it nothing is changed"}
    schema: dict[str, Any] = {"type": "object", "properties": properties,
                              "additionalProperties": False}
    required = [param.name for param in operation.params if param.required]
    if required:
        schema["required"] = required
    return schema


def _schema_of(param: Param) -> dict[str, Any]:
    one: dict[str, Any] = {"type": _TYPES.get(param.kind, "string")}
    if param.least is not None:
        one["minimum"] = param.least
    if param.most is not None:
        one["maximum"] = param.most
    if param.repeated:
        one = {"type": "array", "items": one}
    # Standard input is the command line's.
    one["description"] = param.help.replace("; - reads standard input", "")
    if param.default not in (None, ()):
        one["default"] = param.default
    return one


# -- arguments ----------------------------------------------------------------

def read_arguments(operation: Operation, given: object) -> dict[str, Any]:
    """Return a value for each parameter, read from JSON; UsageError names the field at fault.

    Lenient as models need it: "5" and 5.0 are 5, "true" is true, one string is a list of one, and
    null counts as left out. A number beyond its range becomes the nearest that is allowed.
    """
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise UsageError(f"{operation.name}: the arguments are no object; give names and values")
    extra = ("dry_run", "yes") if operation.destructive else ()
    names = [param.name for param in operation.params]
    _check_names(operation, given, [*names, *extra])
    arguments: dict[str, Any] = {}
    for param in operation.params:
        value = given.get(param.name)
        arguments[param.name] = param.default if value is None else _read(param, value)
        if param.required and arguments[param.name] in (None, "", (), []):
            raise UsageError(f"{param.name} is missing: {param.help}")
    for name in extra:
        arguments[name] = _read_bool(name, given.get(name) or False)
    return arguments


def _check_names(operation: Operation, given: Mapping[str, object],
                 known: Collection[str]) -> None:
    import difflib
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else (
                f"known: {', '.join(known)}" if known else "it takes none")
            raise UsageError(f"{operation.name} has no argument {str(name)[:40]!r}; {hint}")


def _read(param: Param, value: object) -> object:
    if param.repeated:
        return _read_list(param, value)
    if param.kind is bool:
        return _read_bool(param.name, value)
    if param.kind is int:
        return _read_int(param, value)
    return _read_text(param.name, value)


def _read_list(param: Param, value: object) -> list[str]:
    if param.name == "tags":
        return list(cut_tags(value))
    if isinstance(value, str):
        return [value]
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"{param.name} is of type {_type_name(value)}; give a list of strings")
    return [_read_text(param.name, item) for item in value]


def _read_bool(name: str, value: object) -> bool:
    if isinstance(value, str):
        value = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False,
                 "": False}.get(value.strip().lower(), value)
    if value in (0, 1) and not isinstance(value, str):
        return bool(value)
    raise UsageError(f"{name} is {_quoted(value)}; give true or false")


def _read_int(param: Param, value: object) -> int:
    number: float = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            pass
    if not math.isfinite(number) or number != int(number):
        raise UsageError(f"{param.name} is {_quoted(value)}; give a whole number")
    least = int(number) if param.least is None else param.least
    most = int(number) if param.most is None else param.most
    return max(least, min(most, int(number), _LARGEST))


_LARGEST = 1_000_000


def _read_text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return json.dumps(value)                   # a model writes an id or a value as a number
    raise UsageError(f"{name} is of type {_type_name(value)}; give a string")


def _type_name(value: object) -> str:
    return {dict: "object", list: "list", bool: "boolean"}.get(type(value), type(value).__name__)


def _quoted(value: object) -> str:
    return repr(value)[:40]


# -- call ---------------------------------------------------------------------

def call(memory: HermesLite, operation: Operation, given: object, caller: Caller) -> Called:
    """Run an operation as *caller* with arguments from JSON.

    Refused (needs_scope) where the caller may not, UsageError for a wrong argument; a destructive
    one needs `yes`, or `dry_run`.
    """
    arguments = read_arguments(operation, given)
    check_scope(caller, scope_of(operation, arguments), operation.name)
    _label_writer(operation, arguments, caller)
    if operation.name in _BRINGING_BACK and not _is_reviewer(caller):
        arguments["deliberate"] = False            # a model does not bring back what was forgotten
    with _reviewing(memory, caller):
        result = run_operation(memory, operation, arguments, surface=caller.surface,
                               agent=caller.agent, client=caller.client, confirm=_confirm)
    return Called(as_json(result), (*result_warnings(result), *memory.take_notices()))


def check_scope(caller: Caller, scope: str, what: str) -> None:
    """Raise Refused (needs_scope) where a caller may not do what takes this scope."""
    if not caller.may(scope):
        raise Refused(f"{what}: this needs the scope {scope}", "needs_scope")


def as_json(result: object) -> object:
    """Return a result in JSON's own types; rows of `list` say until when each is kept."""
    if isinstance(result, Hits):
        return plain({"hits": list(result), "degraded": result.degraded,
                      "why_empty": result.why_empty})
    rows = plain(list(result) if isinstance(result, Iterator) else result)
    kept_until = getattr(result, "kept_until", None)
    if isinstance(rows, list) and isinstance(kept_until, Mapping):
        return [{**row, "kept_until": kept_until[row["id"]]} for row in rows]
    return rows


def _label_writer(operation: Operation, arguments: dict[str, Any], caller: Caller) -> None:
    """Label what is written with the caller's agent; only an admin writes for another one."""
    if operation.name not in _SELF_LABELLED or caller.agent is None:
        return
    wanted = arguments.get("agent") or caller.agent
    if wanted != caller.agent and not caller.may("admin"):
        raise Refused(f"this caller writes as {caller.agent!r}; leave agent out, or give that "
                      "name", "other_agent")
    arguments["agent"] = wanted


def _reviewing(memory: HermesLite, caller: Caller) -> Any:
    """Name the door of a person's review where the caller was given that right by a person."""
    import contextlib
    if _is_reviewer(caller):
        return memory.systems.entering("reviewer")
    return contextlib.nullcontext()


def _is_reviewer(caller: Caller) -> bool:
    return caller.surface == "http" and caller.may("review")


def _confirm(memory: HermesLite, operation: Operation, arguments: dict[str, Any]) -> None:
    is_agreed = arguments.pop("yes")
    if not is_agreed and not arguments["dry_run"]:
        raise Refused(f"{operation.name} changes what is stored; give yes, or dry_run to see what "
                      "it would do", "needs_yes")


# -- errors -------------------------------------------------------------------

def error_name(problem: BaseException) -> str:
    """Return the stable word for an error: usage, not_found, refused, locked …; else internal."""
    return next((name for kind, name in _NAMES if isinstance(problem, kind)), "internal")


def error_of(problem: BaseException, request: str | None = None) -> dict[str, Any]:
    """Return an error as every surface tells it; nothing of an unexpected one but that it was.

    {"error": {"name", "reason", "message", "exit_code", "request"}}
    """
    found: dict[str, Any] = {"name": error_name(problem), "message": _UNEXPECTED, "exit_code": 1}
    if isinstance(problem, HermesError):
        found["message"] = " ".join(redact(str(problem))[0].split())
        found["exit_code"] = problem.exit_code
    if isinstance(problem, Refused):
        found["reason"] = problem.reason_code
    if request is not None:
        found["request"] = request
    return {"error": found}


_UNEXPECTED = "this failed in a way that was not expected; the server's log says more"

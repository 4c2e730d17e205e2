"""The commands of the brain, and the options that it adds to `recall`."""
from __future__ import annotations

import contextlib
from typing import Any

from hermes_ext.brain import (agents_md, changes, concepts, cycle, levels, notes, orders,
                              sleep, timeline)
from hermes_ext.brain.associate import (as_of, associate, list_awake, recall_deep,
                                        recall_keywords)
from hermes_lite import HermesLite, Hit, Hits, Operation, UsageError

__all__ = ["OPERATIONS", "run_with"]

_MODULES = (cycle, orders, levels, changes, sleep, concepts, timeline, notes, agents_md)
OPERATIONS: tuple[Operation, ...] = tuple(
    operation for module in _MODULES for operation in module.OPERATIONS)


def run_with(memory: HermesLite, operation: Operation, arguments: dict[str, Any],
             options: dict[str, Any]) -> object:
    """Run `recall` with options of the brain (hermes_ext.OPTIONS)."""
    mode, date = options["mode"], options["as_of"]
    if mode not in (None, *_MODES):
        raise UsageError(f"--mode is {mode[:40]!r}; use one of: {', '.join(_MODES)}")
    if mode != "associative" and (options["temp"] is not None or options["seed"] is not None):
        raise UsageError("--temp and --seed go with --mode associative")
    if options["deep"] and (mode is not None or date is not None):
        raise UsageError("--deep goes with a plain recall of today; leave out --mode and --as-of")
    if options["deep"]:
        return recall_deep(memory, arguments.pop("query"), **arguments)
    view = contextlib.nullcontext() if date is None else as_of(memory, date)
    with view as moment:
        now = arguments.pop("now", None)
        if mode is None or mode == "associative":
            arguments["now"] = moment if now is None else now
        if mode is None:
            return operation.handler(memory, **arguments)
        return _MODES[mode](memory, arguments, options)


def _associative(memory: HermesLite, arguments: dict[str, Any], options: dict[str, Any]) -> object:
    temperature = 0.3 if options["temp"] is None else _number(options["temp"])
    top_k = 3 if arguments["top_k"] is None else arguments["top_k"]
    return associate(memory, **{**arguments, "top_k": top_k, "temperature": temperature},
                     seed=options["seed"])


def _by_keywords(memory: HermesLite, arguments: dict[str, Any], options: dict[str, Any]) -> object:
    return recall_keywords(memory, **arguments)


def _awake(memory: HermesLite, arguments: dict[str, Any], options: dict[str, Any]) -> object:
    if arguments.pop("query") is not None:
        raise UsageError("--mode list lists all that is awake; leave out the query")
    rows = list_awake(memory, limit=arguments.pop("top_k"), **arguments)
    return Hits(Hit(one, 0.0, 0.0, 0.0, {"retrievers": {}}) for one in rows)


_MODES = {"associative": _associative, "keyword": _by_keywords, "list": _awake}


def _number(word: str) -> object:
    """Return --temp as a number, or as it is, which `associate` refuses."""
    try:
        return float(word)
    except ValueError:
        return word

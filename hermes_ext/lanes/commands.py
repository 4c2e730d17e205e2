"""The commands of the lanes, and the options that they add to commands of the core."""
from __future__ import annotations

from typing import Any

from hermes_ext.lanes import (conflicts, duplicates, facts, inject, notes, provenance, relations,
                              review, rules, snapshots, stale)
from hermes_ext.lanes.extension import find
from hermes_ext.lanes.origin import Claim, claiming
from hermes_ext.lanes.tied import read_tie
from hermes_lite import HermesLite, Operation, UsageError

__all__ = ["OPERATIONS", "run_with"]

OPERATIONS = tuple(operation for module in (
    facts, review, rules, conflicts, notes, relations, stale, provenance, snapshots, duplicates,
    inject)
    for operation in module.OPERATIONS)


def run_with(memory: HermesLite, operation: Operation, arguments: dict[str, Any],
             options: dict[str, Any]) -> object:
    """Run a command of the core with options of the lanes (hermes_ext.OPTIONS)."""
    lanes = find(memory)
    if operation.name == "remember":
        if arguments.get("batch") is not None:
            raise UsageError("--tied-to goes with one text, not with --batch")
        with claiming(Claim(data={"tied": read_tie(options["tied_to"], lanes.key)})):
            return operation.handler(memory, **arguments)
    if operation.name == "verify":
        if len(arguments["id"]) != 1:
            raise UsageError("--fingerprint goes with one id")
        return review.verify(memory, arguments["id"][0], options["fingerprint"])
    lane, limit = lanes.policy.lane(options["authority"]).name, arguments.pop("limit", None)
    if arguments.pop("all_tags", False):
        raise UsageError("--authority lists facts; leave out --all-tags")
    found = operation.handler(memory, **arguments, all_tags=False, limit=None)
    wanted = {one.id for one in lanes.of_lane(lane)}
    return [one for one in found if one.id in wanted][:limit]

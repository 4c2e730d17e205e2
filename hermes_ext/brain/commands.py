"""The commands of the brain, and the options that it adds to `recall`."""
from __future__ import annotations

from hermes_ext.brain import changes, concepts, cycle, orders, sleep
from hermes_lite import Operation

__all__ = ["OPERATIONS"]

OPERATIONS: tuple[Operation, ...] = tuple(
    operation for module in (cycle, orders, changes, sleep, concepts)
    for operation in module.OPERATIONS)

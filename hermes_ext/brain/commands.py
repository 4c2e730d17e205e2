"""The commands of the brain, and the options that it adds to `recall`."""
from __future__ import annotations

from hermes_lite import Operation

__all__ = ["OPERATIONS"]

OPERATIONS: tuple[Operation, ...] = ()

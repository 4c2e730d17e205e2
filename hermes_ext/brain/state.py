"""What the brain keeps beside the memories: counts, ids and times, never a text.

State "brain" (.state_brain.json, version 1):

    baseline    when the first cycle ran; nothing fades before it
    last        when the last cycle ran
    days        {day: {awake, asleep, open_orders}} at the last cycle of each of 400 days
    cursor      the id up to which neighbourhoods were looked for
    orders      {id: {status, level, concept, sources, at}}: see `orders`; the concept is a keyed
                fingerprint. `made` is the id of the answer, `tries` counts answers of a model
                that could not be used

A state that was lost means a new baseline: nothing falls asleep because of it.
"""
from __future__ import annotations

from datetime import datetime
from typing import Any

from hermes_ext.brain.note import NAME
from hermes_lite import HermesLite, fits, parse_time

__all__ = ["baseline_of", "read_state", "save_state"]

_ORDER = {"status": str, "level": int, "concept": str, "sources": [str], "at": str, "made?": str,
          "tries?": int}
_FORM = {"version": int, "baseline?": str, "last?": str, "cursor?": str,
         "days?": {str: {str: int}}, "orders?": {str: _ORDER}}


def read_state(memory: HermesLite) -> dict[str, Any]:
    """Return the state; {} where there is none that can be read."""
    return memory.jobs.state(NAME, sound=lambda state: fits(state, _FORM))


def save_state(memory: HermesLite, state: dict[str, Any]) -> None:
    """Replace the state; in a transaction, so that no other process changes it in between."""
    memory.jobs.save_state(NAME, {**state, "version": 1})


def baseline_of(state: dict[str, Any]) -> datetime | None:
    """Return when the first cycle ran, None where none has."""
    return parse_time(state.get("baseline"))

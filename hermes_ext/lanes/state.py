"""What the lanes count: refusals by reason, and new facts after a long rest.

State "lanes" (.state_lanes.json, version 1), which holds no text of a memory:

    counts      {reason code: how often}
    active_at   when something was last remembered, to the minute
    rebound     {since, facts: {session: new facts}}: the time after the last long rest
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from hermes_ext.lanes.authority import text_fingerprint
from hermes_ext.lanes.policy import Policy
from hermes_lite import HermesLite, fits, iso, parse_time

__all__ = ["LaneState"]

_NAME = "lanes"
_FORM = {"version": int, "counts?": {str: int}, "active_at?": str,
         "rebound?": {"since": str, "facts": {str: int}}}
_SESSION = timedelta(hours=1)      # one-shot commands within it count as one session
_MINUTE = timedelta(minutes=1)
_ONE = "-"                         # the session of those that name none


class LaneState:
    """Counters of one root."""

    def __init__(self, memory: HermesLite, policy: Policy) -> None:
        self.memory, self.policy = memory, policy
        self._free: tuple[str, datetime] | None = None     # the session without a limit, and when

    def counts(self) -> dict[str, int]:
        """Return how often each reason code was met."""
        return dict(self._read().get("counts", {}))

    def count(self, reason: str) -> None:
        """Count one refusal or quarantine."""
        state = self._read()
        counts = Counter(state.get("counts", {}))
        counts[reason] += 1
        self._write({**state, "counts": dict(counts)})

    def must_wait(self, session: str | None) -> bool:
        """Note one new fact; tell whether it is one too many after a long rest.

        After more than rebound.idle_hours without a write, a session may add rebound.facts new
        facts. Without a session's name, all that is written within an hour is one session.
        """
        now, key = self.memory.clock(), _ONE if session is None else text_fingerprint(session)
        if self._free is not None and self._free[0] == key and (
                timedelta(0) <= now - self._free[1] < _MINUTE):
            return False
        state = self._read()
        active = parse_time(state.get("active_at"))
        rebound = state.get("rebound")
        if active and now - active > timedelta(hours=self.policy.idle_hours):
            rebound = {"since": iso(now), "facts": {}}
        waits = False
        if rebound and self._is_limited(rebound, key, now):
            done = rebound["facts"].get(key, 0)
            waits = done >= self.policy.rebound_facts
            rebound = {**rebound, "facts": {**rebound["facts"], key: done + (not waits)}}
        fresh = {**state, **({"rebound": rebound} if rebound else {})}
        if active is None or now - active >= _MINUTE:
            fresh["active_at"] = iso(now)
        if fresh != state:
            self._write(fresh)
        is_free = rebound is None or not self._is_limited(rebound, key, now)
        self._free = (key, now) if is_free else None
        return waits

    @staticmethod
    def _is_limited(rebound: Mapping[str, Any], key: str, now: datetime) -> bool:
        """Tell whether a session began in the hour after the rest."""
        since = parse_time(rebound["since"])
        begins = since is not None and now - since < _SESSION
        return begins or key != _ONE and key in rebound["facts"]

    def _read(self) -> dict[str, Any]:
        return self.memory.jobs.state(_NAME, sound=lambda state: fits(state, _FORM))

    def _write(self, state: Mapping[str, Any]) -> None:
        self.memory.jobs.save_state(_NAME, {**state, "version": 1})

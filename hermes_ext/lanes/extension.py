"""The Extension: decides what is stored under which authority, and what a search finds."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hermes_ext.lanes.authority import (NAME, UNTRUSTED, Authority, claimed, is_hidden,
                                        read_authority, sealed_meta, tags_of)
from hermes_ext.lanes.origin import Claim, ceiling, current_claim, default_origin, is_model
from hermes_ext.lanes.policy import (CONFIDENCE, ORIGINS, REASONS, Policy, lowest, rank,
                                     read_policy)
from hermes_ext.lanes.wording import Wording
from hermes_lite import (Draft, HermesLite, Hit, Memory, Refused, UsageError, fits, iso,
                         parse_time, tag_forms)

__all__ = ["Lanes", "find", "system"]

_PERSON = ("observation", "conversation")


class Lanes:
    """Takes part in every write, read and prune; what a memory may do is `authority(memory)`."""
    name = NAME

    def __init__(self, memory: HermesLite, policy: Policy | None = None) -> None:
        self.memory = memory
        self.policy = policy or Policy()
        self._wording = Wording(self.policy.synonyms)
        self._reworded: tuple[str, dict[str, float]] = "", {}
        self._key: bytes | None = None

    @property
    def key(self) -> bytes:
        """This root's own key for seals."""
        if self._key is None:
            self._key = self.memory.redactor.key("authority lanes")
        return self._key

    def authority(self, memory: Memory) -> Authority:
        """Return what a memory may do; without a valid seal it is evidence of external origin."""
        return read_authority(memory, self.key)

    def sealed(self, memory: Memory, authority: Authority) -> Memory:
        """Return the memory with this authority under a new seal; nothing is stored."""
        return sealed_meta(memory, replace(authority, rev=authority.rev + 1), self.key,
                           self.memory.redactor.redact_field)

    # -- write --------------------------------------------------------------

    def before_store(self, draft: Draft) -> Draft:
        """Give the draft its authority, or refuse it and count the refusal."""
        if "admit" in self.memory.systems.entry_points:
            return draft                           # a record brings its own note; the seal decides
        try:
            authority = self._granted(draft, current_claim() or Claim())
        except Refused as refusal:
            self.count(refusal.reason_code)
            raise
        note = {"lane": authority.lane, "origin": authority.origin,
                "confidence": authority.confidence, "kind": authority.kind,
                "data": authority.data}
        if authority.held:
            note["held"] = authority.held
        tags = [tag for tag in tag_forms(draft.tags) if not tag.startswith(("lane/", "kind/",
                                                                            "lanes/"))]
        return replace(draft, meta={**draft.meta, NAME: note},
                       tags=tag_forms([*tags, *tags_of(authority)]))

    def _granted(self, draft: Draft, claim: Claim) -> Authority:
        """Return the authority that the entry points allow to a new text."""
        origin = self._origin(draft, claim)
        confidence = CONFIDENCE[origin] if claim.confidence is None else claim.confidence
        wanted = claim.lane or ("preference" if draft.category == "preference" else "evidence")
        lane = self.policy.lane(wanted)
        if lane.name == "procedural" and claim.kind != "rule":
            raise Refused("a rule is proposed and approved: use propose-rule", "needs_review")
        reason = self.policy.refusal(lane, origin, confidence)
        if reason and (claim.lane is None or origin in ("tool", "external")):
            if lane.name != "evidence":
                self.count("quarantined")
            lane = self.policy.lane("evidence")
            reason = self.policy.refusal(lane, origin, confidence)
        if reason:
            raise Refused(f"lane {lane.name}, origin {origin}, confidence {confidence:g}: "
                          f"{REASONS[reason]}", reason)
        held = "review" if self.policy.review == "models" and is_model(self.memory) else None
        return Authority(lane.name, origin, confidence, claim.kind, held, data=claim.data)

    def _origin(self, draft: Draft, claim: Claim) -> str:
        """Return the lowest of what code claims, the entry points allow and the lineage has."""
        if claim.source is not None and claim.source not in ORIGINS:
            raise UsageError(f"{claim.source[:40]!r} is no source; use one of: "
                             f"{', '.join(ORIGINS)}")
        own = claim.source or default_origin(self.memory, self.policy)
        said = draft.meta.get(NAME)
        asked = said.get("origin") if isinstance(said, Mapping) else None
        lower = [asked] if isinstance(asked, str) else []      # data can lower it, never raise it
        return lowest([own, ceiling(self.memory, self.policy), *lower,
                       *self._lineage(draft.meta.get("derived_from"))])

    def _lineage(self, ids: object) -> Iterator[str]:
        """Yield the origin of each memory that a text is made of; an unknown one is external."""
        for memory_id in ids if isinstance(ids, (list, tuple)) else ():
            found = self.memory.store.get(str(memory_id))
            yield self.authority(found).origin if found else UNTRUSTED.origin

    def may_merge(self, memory: Memory, draft: Draft) -> bool:
        """Tell whether a near-duplicate may be merged: never into what is less trusted."""
        new = claimed(draft.meta) or UNTRUSTED
        old = self.authority(memory)
        if "admit" in self.memory.systems.entry_points:
            new = replace(UNTRUSTED, kind=new.kind, held=new.held)
        if (old.kind, new.kind) != ("fact", "fact") or old.held:
            return False
        if is_trusted_over(old, new):
            return True                            # dropped in favour of the trusted one
        if old.lane != new.lane:
            return False
        return not (new.origin in _PERSON and rank(new.origin) < rank(old.origin))

    def storing(self, memory: Memory, old: Memory | None, draft: Draft) -> Memory:
        """Seal what is stored; what is merged keeps the lowest origin of both."""
        if "admit" in self.memory.systems.entry_points:
            return self._admitted(memory, old)
        new = claimed(draft.meta) or UNTRUSTED
        if old is None:
            return self.sealed(memory, new)
        before = self.authority(old)
        if is_trusted_over(before, new):
            return old
        origin = lowest([before.origin, new.origin])
        return self.sealed(memory, replace(
            before, origin=origin, confidence=min(before.confidence, new.confidence)
            if origin != before.origin else before.confidence, at=iso(self.memory.clock())))

    def _admitted(self, memory: Memory, old: Memory | None) -> Memory:
        """Return a record from elsewhere: its seal decides, and never an older copy of it."""
        if old is not None:
            return old if self.authority(old).sealed else memory
        here = self.memory.store.get(memory.id)
        if here is None or here.content != memory.content:
            return memory
        kept, brought = self.authority(here), self.authority(memory)
        if not kept.sealed or brought.sealed and brought.rev > kept.rev:
            return memory
        return replace(memory, meta={**memory.meta, NAME: here.meta[NAME]}, tags=tag_forms(
            [*(tag for tag in memory.tags if not tag.startswith(("lane/", "kind/", "lanes/"))),
             *tags_of(kept)]))

    # -- read ---------------------------------------------------------------

    def hidden(self) -> Collection[str]:
        """Return the ids of what waits, of raw snippets and of what no longer holds."""
        return self.memory.store.search.tagged(("lanes/hidden",))

    def retrieve(self, query: str) -> list[str]:
        """Return what answers a question in other spellings, compounds and synonyms."""
        found = self._wording.retrieve(self.memory, query, self.hidden())
        self._reworded = query, found
        return list(found)

    def rerank(self, hits: Sequence[Hit], query: str) -> list[Hit]:
        """Say of each hit what it may do; drop what must not be found."""
        kept = []
        asked, reworded = self._reworded
        for hit in hits:
            found = self.authority(hit.memory)
            likely = reworded.get(hit.id, 0.0) if query == asked else 0.0
            if not is_hidden(found):
                kept.append(replace(
                    hit, confidence=max(hit.confidence, round(likely, 4)), why={**hit.why, NAME: {
                        "lane": found.lane, "origin": found.origin,
                        "confidence": found.confidence}}))
        return kept

    def describe(self, memory: Memory) -> Memory:
        """Show what a memory may do and until when it is kept."""
        found = self.authority(memory)
        ends = self.ends(memory)
        note = {**found.entry(), "until": iso(ends) if ends else None}
        return replace(memory, meta={**memory.meta, NAME: note})

    def of_lane(self, lane: str, *, most: int | None = None) -> list[Memory]:
        """Return the facts of a lane that hold now, the newest first."""
        wanted = self.policy.lane(lane).name
        return self._found(f"lane/{lane}", most, lambda one: one.lane == wanted
                           and one.kind == "fact")

    def of_kind(self, kind: str, *, most: int | None = None) -> list[Memory]:
        """Return what is of a kind, such as lesson or relation, and does not wait."""
        return self._found(f"kind/{kind}", most, lambda one: one.kind == kind)

    def _found(self, tag: str, most: int | None,
               accept: Callable[[Authority], bool]) -> list[Memory]:
        self.memory.store.refresh()
        now, found = self.memory.clock(), []
        for memory_id in self.memory.store.search.tagged((tag,)):
            one = self.memory.store.get(memory_id)
            if one is None:
                continue
            authority = self.authority(one)
            if accept(authority) and not authority.held and not authority.data.get(
                    "inactive") and not self.is_over(one, now):
                found.append(one)
                if len(found) == most:
                    break
        return found

    # -- life ---------------------------------------------------------------

    def ends(self, memory: Memory) -> datetime | None:
        """Return when a memory expires by its lane: so many days after the last recall.

        None where it never does, or where this root does not vouch for it: then the limits of
        config.yaml hold alone.
        """
        found = self.authority(memory)
        days = self.policy.lanes[found.lane].days
        if not found.sealed or days is None:
            return None
        times = (memory.created_at, memory.meta.get("stored_at"), memory.last_accessed, found.at)
        known = [moment for moment in map(parse_time, times) if moment]
        return max(known) + timedelta(days=days) if known else None

    def is_over(self, memory: Memory, now: datetime) -> bool:
        """Tell whether the days of its lane are over."""
        ends = self.ends(memory)
        return ends is not None and ends < now

    def keeps(self, memory: Memory, now: datetime) -> bool:
        """Tell whether the lane alone says how long a memory stays, and it is not over."""
        return self.authority(memory).sealed and not self.is_over(memory, now)

    def expired(self, memory: Memory, now: datetime) -> str | None:
        """Say that the days of a lane are over."""
        if not self.is_over(memory, now):
            return None
        lane = self.policy.lanes[self.authority(memory).lane]
        return f"{lane.name} not recalled for {lane.days} days"

    # -- counters -----------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return how often each reason code was met."""
        return dict(self._state().get("counts", {}))

    def count(self, reason: str) -> None:
        """Count one refusal or quarantine."""
        state = self._state()
        counts = Counter(state.get("counts", {}))
        counts[reason] += 1
        self.memory.jobs.save_state(NAME, {**state, "version": 1, "counts": dict(counts)})

    def _state(self) -> dict[str, Any]:
        return self.memory.jobs.state(NAME, sound=lambda state: fits(
            state, {"version": int, "counts?": {str: int}}))


def is_trusted_over(old: Authority, new: Authority) -> bool:
    """Tell whether a text that is there already outranks a new one that says the same."""
    return rank(old.origin) < rank(new.origin) or (
        old.origin == new.origin and old.lane != "evidence" and new.lane == "evidence")


def find(memory: HermesLite) -> Lanes:
    """Return the system that is switched on, else one with the settings of config.yaml."""
    found = next((each for each in memory.systems if isinstance(each, Lanes)), None)
    return found or system(memory, **(memory.config["systems"].get(NAME) or {}))


def system(memory: HermesLite, *, lanes: object = None, origins: object = None,
           review: object = "off", rebound: object = None, synonyms: object = None,
           inject: object = None) -> Lanes:
    """Make the Extension; the arguments are its settings in config.yaml."""
    return Lanes(memory, read_policy(lanes=lanes, origins=origins, review=review,
                                     rebound=rebound, synonyms=synonyms, inject=inject))

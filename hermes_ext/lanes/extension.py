"""The Extension: decides what is stored under which authority, and what a search finds."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from hermes_ext.lanes import aliases
from hermes_ext.lanes.authority import (LASTING, NAME, UNTRUSTED, Authority, claimed, is_hidden,
                                        read_authority, sealed_meta, with_own_tags)
from hermes_ext.lanes.origin import Claim, ceiling, current_claim, default_origin, is_model
from hermes_ext.lanes.person import is_person
from hermes_ext.lanes.policy import (CONFIDENCE, ORIGINS, REASONS, Policy, lowest, rank,
                                     read_policy)
from hermes_ext.lanes.state import LaneState
from hermes_ext.lanes.tied import stale_reason
from hermes_ext.lanes.wording import Wording
from hermes_lite import (ConfigError, Draft, HermesLite, Hit, Memory, Refused, Store, UsageError,
                         iso, parse_time)

__all__ = ["Lanes", "find", "system"]

_DEPTH = 50                    # memories that are looked at for each other name of a person
_CHECKED = 4_096              # seals whose check is remembered
_PERSON = ("observation", "conversation")


class Lanes:
    """Takes part in every write, read and prune; what a memory may do is `authority(memory)`."""
    name = NAME

    def __init__(self, memory: HermesLite, policy: Policy | None = None) -> None:
        self.memory = memory
        self.policy = policy or Policy()
        self.state = LaneState(memory, self.policy)
        self._wording = Wording(self.policy.synonyms)
        self._reworded: tuple[str, dict[str, float]] = "", {}
        self._key: bytes | None = None
        self._checked: dict[str, tuple[str, object, Authority]] = {}       # by seal
        self._cutoff: tuple[int, datetime, str] = 0, memory.clock(), ""

    @property
    def key(self) -> bytes:
        """This root's own key for seals."""
        if self._key is None:
            self._key = self.memory.redactor.key("authority lanes")
        return self._key

    def authority(self, memory: Memory) -> Authority:
        """Return what a memory may do; without a valid seal it is evidence of external origin."""
        note = memory.meta.get(NAME)
        seal = note.get("seal") if isinstance(note, Mapping) else None
        if not isinstance(seal, str):
            return read_authority(memory, self.key)
        known = self._checked.get(seal)
        if known is not None and known[:2] == (memory.content, note):
            return known[2]
        if len(self._checked) >= _CHECKED:
            self._checked.clear()
        found = read_authority(memory, self.key)
        self._checked[seal] = memory.content, note, found
        return found

    def rank_of(self, memory: Memory) -> int:
        """Return the place of a memory's origin; 0 is the most trusted."""
        return rank(self.authority(memory).origin)

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
            self.state.count(refusal.reason_code)
            raise
        note = {"lane": authority.lane, "origin": authority.origin,
                "confidence": authority.confidence, "kind": authority.kind,
                "data": authority.data}
        if authority.held:
            note["held"] = authority.held
        critical = self.memory.config["pruning"]["critical_importance"]
        importance = draft.importance
        if authority.origin not in _PERSON:        # only a person keeps something for ever
            importance = max(1, min(importance, critical - 1))
        agent = self.agent_name(draft.agent) if draft.agent else draft.agent
        return replace(draft, meta={**draft.meta, NAME: note}, importance=importance, agent=agent,
                       tags=with_own_tags(draft.tags, authority))

    def _granted(self, draft: Draft, claim: Claim) -> Authority:
        """Return the authority that the entry points allow to a new text."""
        origin = self._origin(draft, claim)
        confidence = CONFIDENCE[origin] if claim.confidence is None else claim.confidence
        if claim.kind == "rule":
            return self._proposed(claim, origin)
        wanted = claim.lane or ("preference" if draft.category == "preference" else "evidence")
        lane = self.policy.lane(wanted)
        if lane.name == "procedural":
            raise Refused("a rule is proposed and approved: use propose-rule", "needs_review")
        reason = self.policy.refusal(lane, origin, confidence)
        if reason and (claim.lane is None or origin in ("tool", "external")):
            if lane.name != "evidence":
                self.state.count("quarantined")
            lane = self.policy.lane("evidence")
            reason = self.policy.refusal(lane, origin, confidence)
        if reason:
            raise Refused(f"lane {lane.name}, origin {origin}, confidence {confidence:g}: "
                          f"{REASONS[reason]}", reason)
        held = "review" if self.policy.review == "models" and is_model(self.memory) else None
        return Authority(lane.name, origin, confidence, claim.kind, held, data=claim.data)

    def _proposed(self, claim: Claim, origin: str) -> Authority:
        """Return the authority of a rule that waits: an agent may propose one, a tool may not."""
        lane = self.policy.lane("procedural")
        if claim.source not in (None, *lane.sources) or origin in ("tool", "external"):
            raise Refused(f"a rule cannot come from {claim.source or origin}",
                          "source_not_allowed")
        return Authority(lane.name, origin, CONFIDENCE[origin], "rule", data=claim.data)

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

    def need_right_to_write(self, lane: str) -> None:
        """Raise Refused where the present entry point could not write to a lane."""
        origin = default_origin(self.memory, self.policy)
        if self.memory.systems.entry_points == ("python",):
            origin = "observation"                 # the user's own program speaks for the user
        if origin not in self.policy.lanes[lane].sources:
            raise Refused(f"lane {lane}, origin {origin}: {REASONS['source_not_allowed']}",
                          "source_not_allowed")

    def may_merge(self, memory: Memory, draft: Draft) -> bool:
        """Tell whether a near-duplicate may be merged: never into what is less trusted."""
        new = claimed(draft.meta) or UNTRUSTED
        old = self.authority(memory)
        if "admit" in self.memory.systems.entry_points:
            new = replace(UNTRUSTED, kind=new.kind, held=new.held)
        if (old.kind, new.kind) != ("fact", "fact") or old.held or self.is_resting(old):
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
            return self.sealed(memory, self._slowed(memory.id, new))
        before = self.authority(old)
        if is_trusted_over(before, new):
            return old
        origin, confidence = lowest([before.origin, new.origin]), before.confidence
        if origin != before.origin:
            confidence = min(confidence, new.confidence)
        data = {**before.data, **new.data} if before.sealed else new.data
        return self.sealed(memory, replace(before, origin=origin, confidence=confidence, data=data,
                                           at=iso(self.memory.clock())))

    def _slowed(self, memory_id: str, new: Authority) -> Authority:
        """Let a new fact wait that is one too many after a long rest, and say what waits."""
        if new.kind == "fact" and new.lane != "identity" and not new.held and (
                not is_person(self.memory)) and self.state.must_wait(
                    (current_claim() or Claim()).session):
            new = replace(new, held="rebound")
        if new.held:
            self.state.count(f"held_{new.held}")
            self.memory.notices.append(f"{memory_id} waits for a person ({new.held}); `pending` "
                                       "lists what waits")
        return new

    def _admitted(self, memory: Memory, old: Memory | None) -> Memory:
        """Return a record from elsewhere: its seal decides, and never an older copy of it."""
        if old is not None:
            return old if self.authority(old).sealed else memory
        here = self.memory.store.get(memory.id)
        if here is None:
            return memory
        if here.content != memory.content:         # it was verified as another text
            self._check_rewriting(here)
            return replace(memory, execution_verified=False)
        kept, brought = self.authority(here), self.authority(memory)
        if not kept.sealed or brought.sealed and brought.rev > kept.rev:
            return memory
        return replace(memory, meta={**memory.meta, NAME: here.meta[NAME]},
                       tags=with_own_tags(memory.tags, kept))

    def _check_rewriting(self, here: Memory) -> None:
        """Refuse a model's new text for what a person has let hold, where models are reviewed."""
        is_reviewed = self.policy.review == "models" and is_model(self.memory)
        if is_reviewed and self.authority(here).held is None:
            raise Refused(f"{here.id} holds, and a new text needs a person's review; add the new "
                          "text as a memory of its own", "needs_review")

    # -- read ---------------------------------------------------------------

    def agent_name(self, agent: str) -> str:
        """Return the person whom an agent's name stands for, or the name itself."""
        with self.memory.session.reading() as store:
            return aliases.names_of(store, self.authority, agent)[0]

    def hidden(self) -> Collection[str]:
        """Return the ids of what waits, of raw snippets and of what no longer holds."""
        store = self.memory.store
        resting = (store.get(i) for i in store.search.tagged(("lanes/resting",)))
        return [*store.search.tagged(("lanes/hidden",)),
                *(one.id for one in resting if one and self.is_resting(self.authority(one)))]

    def is_hidden(self, found: Authority) -> bool:
        """Tell whether no search may find what has this authority."""
        return is_hidden(found) or self.is_resting(found)

    def is_resting(self, found: Authority) -> bool:
        """Tell whether a fact was put to rest for another one that still lives."""
        kept = found.data.get("inactive")
        if not isinstance(kept, str):
            return False
        other = self.memory.store.get(kept)
        return other is not None and not self.is_over(other, self.memory.clock())

    def retrieve(self, query: str) -> list[str]:
        """Return what answers a question in other spellings, synonyms and names of people."""
        found = self._wording.retrieve(self.memory, query, self.hidden())
        self._reworded = query, found
        return list(dict.fromkeys((*found, *self._under_other_names(query))))

    def _under_other_names(self, query: str) -> Iterator[str]:
        """Yield what is found under the other names of the people in a question."""
        store = self.memory.store
        for name in aliases.names_in(store, self.authority, query):
            for memory_id, _ in store.search.words(name, _DEPTH):
                yield memory_id

    def rerank(self, hits: Sequence[Hit], query: str) -> list[Hit]:
        """Say of each hit what it may do; drop what must not be found."""
        kept = []
        asked, reworded = self._reworded
        for hit in hits:
            found = self.authority(hit.memory)
            if self.is_hidden(found):
                continue
            said = {"lane": found.lane, "origin": found.origin, "confidence": found.confidence}
            if reason := stale_reason(found, self.key):
                said["stale"] = reason
            likely = reworded.get(hit.id, 0.0) if query == asked else 0.0
            kept.append(replace(hit, confidence=max(hit.confidence, round(likely, 4)),
                                why={**hit.why, NAME: said}))
        return kept

    def describe(self, memory: Memory) -> Memory:
        """Show what a memory may do and until when it is kept."""
        found = self.authority(memory)
        ends = self.ends(memory)
        note = {**found.entry(), "until": iso(ends) if ends else None}
        return replace(memory, meta={**memory.meta, NAME: note})

    def stale_reason(self, memory: Memory) -> str | None:
        """Return why a tied fact no longer agrees with its file, or None."""
        return stale_reason(self.authority(memory), self.key)

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
        with self.memory.session.reading() as store:
            newest = store.search.tagged((tag,), None if most is None else 4 * most)
            rest = () if most is None or len(newest) < 4 * most else _after(
                store, tag, len(newest))
            rows = filter(None, map(store.get, itertools.chain(newest, rest)))
            return [*itertools.islice((one for one in rows if self._holds(one, accept)), most)]

    def _holds(self, one: Memory, accept: Callable[[Authority], bool]) -> bool:
        """Tell whether a memory is accepted, does not wait or rest, and is not over."""
        authority = self.authority(one)
        return (accept(authority) and not authority.held and not self.is_resting(authority)
                and not self.is_over(one, self.memory.clock()))

    # -- life ---------------------------------------------------------------

    def ends(self, memory: Memory) -> datetime | None:
        """Return when a memory expires by its lane: so many days after the last recall.

        None where it never does, or where this root does not vouch for it: then the limits of
        config.yaml hold alone.
        """
        return self._ends(memory, self.authority(memory))

    def _ends(self, memory: Memory, found: Authority) -> datetime | None:
        days = self.policy.lanes[found.lane].days
        if not found.sealed or days is None or found.kind in LASTING:
            return None
        latest = latest_of(memory.created_at, memory.meta.get("stored_at"), memory.last_accessed,
                           found.at)
        return latest + timedelta(days=days) if latest else None

    def is_over(self, memory: Memory, now: datetime) -> bool:
        """Tell whether the days of its lane are over."""
        ends = self.ends(memory)
        return ends is not None and ends < now

    def keeps(self, memory: Memory, now: datetime) -> bool:
        """Tell whether the lane alone says how long a memory stays, and it is not over."""
        found = self.authority(memory)
        if not found.sealed:
            return False
        if self._is_recent(memory, found, now):
            return True
        ends = self._ends(memory, found)
        return ends is None or ends >= now

    def _is_recent(self, memory: Memory, found: Authority, now: datetime) -> bool:
        """Tell whether a memory surely lives, by the text of its times: a prune asks of all."""
        days = self.policy.lanes[found.lane].days
        if days is None:
            return True
        if self._cutoff[:2] != (days, now):
            self._cutoff = days, now, iso(now - timedelta(days=days) + timedelta(seconds=1))
        return any(is_plain_time(time) and str(time) >= self._cutoff[2]
                   for time in (memory.created_at, memory.last_accessed, found.at))

    def expired(self, memory: Memory, now: datetime) -> str | None:
        """Say that the days of a lane are over; not of what another system keeps."""
        said = claimed(memory.meta)
        if said is None or self._is_recent(memory, said, now) or not self.is_over(memory, now):
            return None
        others = [each for each in self.memory.systems.having("keeps") if each is not self]
        if any(each.keeps(memory, now) for each in others):
            return None
        lane = self.policy.lanes[self.authority(memory).lane]
        return f"{lane.name} not recalled for {lane.days} days"


def _after(store: Store, tag: str, count: int) -> Iterator[str]:
    """Yield the ids of a tag after the *count* newest; they are looked for when one is wanted."""
    yield from store.search.tagged((tag,))[count:]


def latest_of(*times: object) -> datetime | None:
    """Return the latest of some times, None where none can be read."""
    given = [time for time in times if time]
    if all(map(is_plain_time, given)):
        given = [max(given, key=str)] if given else []     # in this form the text has their order
    return max(filter(None, map(parse_time, given)), default=None)


def is_plain_time(time: object) -> bool:
    """Tell whether a time has the form that `iso` gives it: then its text sorts like the time."""
    return isinstance(time, str) and len(time) == 25 and time.endswith("+00:00")


def is_trusted_over(old: Authority, new: Authority) -> bool:
    """Tell whether a text that is there already outranks a new one that says the same."""
    return rank(old.origin) < rank(new.origin) or (
        old.origin == new.origin and old.lane != "evidence" and new.lane == "evidence")


def find(memory: HermesLite) -> Lanes:
    """Return the system that is switched on; ConfigError when it is not."""
    found = next((each for each in memory.systems if isinstance(each, Lanes)), None)
    if found is None:
        raise ConfigError("lanes are not switched on; put systems: {lanes: {}} in config.yaml "
                          "(`config path` says where it is)")
    return found


def system(memory: HermesLite, *, lanes: object = None, origins: object = None,
           review: object = "off", rebound: object = None, synonyms: object = None,
           inject: object = None) -> Lanes:
    """Make the Extension; the arguments are its settings in config.yaml."""
    return Lanes(memory, read_policy(lanes=lanes, origins=origins, review=review,
                                     rebound=rebound, synonyms=synonyms, inject=inject))

"""AgentMemory: the lanes as one class, with the method and argument names of agent-memory.

    from hermes_ext.lanes.agent_memory import AgentMemory

    mem = AgentMemory()
    mem.remember("User's name is Alex", authority_class="identity",
                 source="observation", confidence=1.0)
    facts = mem.recall("name")

It works on the same store as everything else, also where config.yaml does not switch the lanes
on. It is for the user's own program: what is named as the source holds, unless the program runs
inside a surface (`memory.systems.acting`), whose ceiling cannot be outbid.

A write that the policy refuses returns None, as code written for agent-memory expects;
`last_refusal` then says why, and `stats()` counts it.
"""
from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hermes_ext.lanes import (conflicts, duplicates, facts, notes, provenance, relations, rules,
                              snapshots)
from hermes_ext.lanes.extension import Lanes, system
from hermes_ext.lanes.rule_conflicts import Rule, RuleConflict
from hermes_lite import (HermesLite, Memory, NotFound, Record, Refused, UsageError, iso)

__all__ = ["AgentMemory", "RecalledFact"]


@dataclass(frozen=True, slots=True)
class RecalledFact(Record):
    """A fact as AgentMemory returns it; reads like a mapping, too."""
    id: str
    content: str
    authority_class: str
    source: str
    confidence: float
    created_at: str
    last_accessed: str | None
    expires_at: str | None
    tags: tuple[str, ...] = ()


class AgentMemory:
    """Facts in lanes, snippets, lessons, entities, relations, rules, over one HermesLite.

    *root* is the data root. An open *memory* is used as it is and stays open. *session_id* names
    the session for the protection after a rest; without one, each object is a session.
    *approver* shows a rule to a person and returns True: a program with a window of its own gives
    it; without one, `approve_rule` asks at the terminal.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None, *,
                 memory: HermesLite | None = None, session_id: str | None = None,
                 approver: Callable[[Rule], bool] | None = None) -> None:
        self.memory = memory or HermesLite(root)
        self._owns = memory is None
        self.session_id = session_id or uuid.uuid4().hex
        self.approver = approver
        self.last_refusal: Refused | None = None
        lanes = next((each for each in self.memory.systems if isinstance(each, Lanes)), None)
        if lanes is None:
            settings = self.memory.config["systems"].get("lanes") or {}
            lanes = system(self.memory, **settings)
            self.memory.systems.append(lanes)
        self.lanes = lanes

    def __enter__(self) -> AgentMemory:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the memory that this object has opened."""
        if self._owns:
            self.memory.close()

    # -- facts --------------------------------------------------------------

    def remember(self, content: str, authority_class: str = "evidence",
                 source: str = "conversation", confidence: float | None = None, *,
                 tags: Iterable[str] = (), **more: Any) -> str | None:
        """Keep a fact in a lane and return its id; None where the policy refuses it.

        *confidence* is 0 to 1; without it the source says how much. *more* goes to
        `HermesLite.remember`.
        """
        if confidence is not None and (type(confidence) not in (int, float)
                                       or not 0 <= confidence <= 1):
            raise UsageError(f"confidence is {self.memory.redactor.quote(confidence)}; "
                             "give a number from 0 to 1")
        self.last_refusal = None
        try:
            done = facts.add(self.memory, content, authority=authority_class, source=source,
                             confidence=confidence, session=self.session_id, tags=tags, **more)
        except Refused as refusal:
            self.last_refusal = refusal
            return None
        return done.id

    def recall(self, query: str, limit: int = 5, *,
               authority_class: str | None = None) -> list[RecalledFact]:
        """Return the facts that answer a query, best first; renews their life."""
        hits = self.memory.recall(query, top_k=limit if authority_class is None else 4 * limit)
        found = [self._fact(hit.memory) for hit in hits]
        return [fact for fact in found if authority_class in (None, fact.authority_class)][:limit]

    def recall_by_authority(self, authority_class: str,
                            limit: int | None = None) -> list[RecalledFact]:
        """Return the facts of a lane, newest first; renews their life."""
        return self._read(self.lanes.of_lane(authority_class, most=limit))

    def get_fact(self, fact_id: str) -> RecalledFact | None:
        """Return one fact, None when there is none of this id; renews its life."""
        try:
            one = self.memory.lookup(fact_id)
        except NotFound:
            return None
        return self._read([one])[0]

    def _read(self, rows: list[Memory]) -> list[RecalledFact]:
        """Count the reads, and return the facts as they are afterwards."""
        ids = [one.id for one in rows]
        if ids:
            with self.memory.session.writing() as store:
                store.count_accesses(ids, self.memory.clock())
        self.memory.systems.emit("recall", ids)
        return [self._fact(self.memory.lookup(each)) for each in ids]

    def _fact(self, one: Memory) -> RecalledFact:
        found, ends = self.lanes.authority(one), self.lanes.ends(one)
        return RecalledFact(one.id, self.memory.redactor.redact_field(one.content), found.lane,
                            found.origin, found.confidence, one.created_at, one.last_accessed,
                            iso(ends) if ends else one.expires_at, one.tags)

    def forget(self, fact_id: str) -> bool:
        """Delete a memory at once; False when there is none of this id."""
        try:
            self.memory.forget(fact_id)
        except NotFound:
            return False
        return True

    def forget_stale(self) -> int:
        """Delete what was not recalled for the days of its lane; return how many."""
        return len(facts.forget_stale(self.memory).expired)

    def stats(self) -> dict[str, Any]:
        """Return facts by lane, other kinds, and what was refused, held or quarantined."""
        found = facts.standing(self.memory)
        lanes: Any = found["lanes"]
        by_lane = {name: lane["facts"] for name, lane in lanes.items()}
        return {"total_facts": sum(by_lane.values()), "by_authority": by_lane,
                "kinds": found["kinds"], "refused": found["counts"],
                "conflicts": len(self.get_conflicts()), "root": str(self.memory.root)}

    # -- snippets, lessons, entities ----------------------------------------

    def remember_snippet(self, text: str, session_id: str | None = None) -> str:
        """Keep raw conversation, which only `search_snippets` finds; return its id."""
        return notes.remember_snippet(self.memory, text, session_id=session_id,
                                      source="conversation").id

    def search_snippets(self, query: str, session_id: str | None = None,
                        limit: int = 5) -> list[dict[str, Any]]:
        """Return the snippets in which words of the query stand, best first."""
        rows = notes.search_snippets(self.memory, query, session_id=session_id, limit=limit)
        return [{"id": one.id, "content": one.content, "created_at": one.created_at,
                 "session_id": self.lanes.authority(one).data.get("session")} for one in rows]

    def learn(self, action: str, context: str, outcome: str, insight: str) -> str:
        """Keep what an action taught; return its id."""
        return notes.learn(self.memory, action=action, context=context, outcome=outcome,
                           insight=insight, source="observation").id

    def get_lessons(self, outcome: str | None = None,
                    limit: int | None = None) -> list[dict[str, Any]]:
        """Return the lessons, newest first."""
        rows = notes.lessons(self.memory, outcome=outcome, most=limit)
        return [{"id": one.id, "created_at": one.created_at, **self.lanes.authority(one).data}
                for one in rows]

    def track_entity(self, name: str, entity_type: str = "thing",
                     attributes: Mapping[str, object] | None = None) -> str:
        """Keep an entity with what is known about it; return its id."""
        return relations.track(self.memory, name, entity_type, attributes,
                               source="observation").id

    def get_entity(self, name: str) -> relations.Entity | None:
        """Return the entity of a name or alias, or None."""
        return relations.entity(self.memory, name)

    def relate(self, source: str, relation: str, target: str) -> str:
        """Say how one entity relates to another; return the id of the edge."""
        return relations.relate(self.memory, source, relation, target, source="observation").id

    def get_relations(self, name: str, direction: str = "both") -> list[relations.Relation]:
        """Return the edges of an entity: out, in or both."""
        return relations.relations(self.memory, name, direction=direction)

    # -- conflicts, provenance ----------------------------------------------

    def get_conflicts(self) -> list[conflicts.LaneConflict]:
        """Return the facts of single-valued lanes that say different things."""
        return conflicts.open_conflicts(self.memory)

    def resolve_conflict(self, keep_id: str,
                         drop_ids: Iterable[str]) -> list[conflicts.LaneConflict]:
        """Let one fact hold and the others rest; return the conflicts that remain."""
        return conflicts.resolve_conflict(self.memory, keep_id, drop_ids)

    def get_provenance(self, fact_id: str) -> dict[str, Any]:
        """Return how a memory came to be."""
        return provenance.provenance(self.memory, fact_id)

    def snapshot(self, label: str | None = None) -> snapshots.Snapshot:
        """Keep all memories as they are now."""
        return snapshots.snapshot(self.memory, label)

    def consolidate(self, dry_run: bool = True) -> duplicates.Consolidated:
        """Find facts that say the same; without *dry_run*, keep the most trusted of each."""
        return duplicates.consolidate(self.memory, dry_run=dry_run)

    # -- rules --------------------------------------------------------------

    def propose_rule(self, text: str, trigger: str | Iterable[str] = (),
                     source: str = "observation") -> str | None:
        """Propose a rule and return its id; None where the policy refuses it."""
        self.last_refusal = None
        try:
            return rules.propose_rule(self.memory, text, trigger=trigger, source=source).id
        except Refused as refusal:
            self.last_refusal = refusal
            return None

    def approve_rule(self, rule_id: str, ack_interactions: bool = False) -> Rule:
        """Let a rule hold once a person has seen it; Refused where nobody can be asked."""
        return rules.approve_rule(self.memory, rule_id, ack_interactions=ack_interactions,
                                  approver=self.approver)

    def reject_rule(self, rule_id: str) -> Rule:
        """Refuse a rule that waits."""
        return rules.reject_rule(self.memory, rule_id)

    def retire_rule(self, rule_id: str) -> Rule:
        """End a rule that holds."""
        return rules.retire_rule(self.memory, rule_id)

    def get_pending_rules(self) -> list[Rule]:
        """Return the rules that wait."""
        return rules.list_rules(self.memory, status="pending")

    def get_active_rules(self) -> list[Rule]:
        """Return the rules that hold."""
        return rules.active_rules(self.memory)

    def get_rule_conflicts(self) -> list[RuleConflict]:
        """Return what stands between the rules."""
        return rules.rule_conflicts(self.memory)

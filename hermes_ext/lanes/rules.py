"""Procedural rules: how to behave. An agent may propose one; a person lets it hold.

    hermes_lite.py propose-rule --text "Answer in German" --trigger german,deutsch
    hermes_lite.py pending-rules                  what waits, with the fingerprint of each text
    hermes_lite.py approve-rule ID                shows the rule and what stands against it, asks
    hermes_lite.py active-rules | reject-rule ID | retire-rule ID | rule-conflicts

A rule is a memory of the kind `rule` in the lane procedural; its status stands in the sealed
note, so that no edit of a file makes it active. It is hidden from every search: only
`matching_rules` brings it back, where it holds and a trigger stands in the message. It holds for
the days of its lane from its approval (30), then it is expired.

data of the note: `triggers`, `status` (pending, active, rejected, retired), and of an approved
one `fingerprint`, the text that was approved.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta

from hermes_ext.lanes.authority import text_fingerprint
from hermes_ext.lanes.extension import Lanes, find
from hermes_ext.lanes.origin import Claim, claiming
from hermes_ext.lanes.person import confirm, need_person
from hermes_ext.lanes.review import check_fingerprint
from hermes_ext.lanes.rule_conflicts import Rule, RuleConflict, find_rule_conflicts
from hermes_lite import (HermesLite, Memory, MemoryId, NotFound, Operation, Param, Refused,
                         UsageError, display_text, iso, normalise, parse_time)

__all__ = ["OPERATIONS", "active_rules", "approve_rule", "list_rules", "matching_rules",
           "propose_rule", "reject_rule", "retire_rule", "rule_conflicts"]


def propose_rule(memory: HermesLite, text: str, *, trigger: str | Iterable[str] = (),
                 source: str | None = None) -> Rule:
    """Propose a rule; it waits for a person. One that waits or holds already is returned as it is.

    Refused for a *source*, or an entry point, that no rule may come from.
    """
    lanes, triggers = find(memory), read_triggers(trigger)
    for rule in list_rules(memory):
        if rule.status in ("pending", "active") and rule.triggers == triggers and (
                normalise(rule.text) == normalise(text)):
            return rule
    data = {"triggers": list(triggers), "status": "pending"}
    claim = Claim("procedural", source, kind="rule", data=data)
    with claiming(claim):
        made = memory.remember(text)
    return _rule(lanes, memory.lookup(made.id))


def read_triggers(trigger: str | Iterable[str]) -> tuple[str, ...]:
    """Return trigger words in one form, each once: a string is cut at commas."""
    words = re.split(r"[,，、;；]", trigger) if isinstance(trigger, str) else trigger
    return tuple(sorted({normalise(str(word)) for word in words} - {""}))


def list_rules(memory: HermesLite, *, status: str | None = None) -> list[Rule]:
    """Return the rules, oldest first; of a *status* only those."""
    lanes, rules = find(memory), []
    with memory.session.reading() as store:
        for memory_id in reversed(store.search.tagged(("kind/rule",))):
            one = store.get(memory_id)
            if one is None or lanes.authority(one).kind != "rule":
                continue
            rule = _rule(lanes, one)
            if status in (None, rule.status):
                rules.append(rule)
    return rules


def active_rules(memory: HermesLite) -> list[Rule]:
    """Return the rules that hold."""
    return list_rules(memory, status="active")


def matching_rules(memory: HermesLite, message: str) -> list[Rule]:
    """Return the rules that hold and have no trigger, or one that stands in the message."""
    said = normalise(message)
    return [rule for rule in active_rules(memory)
            if not rule.triggers or any(_stands_in(word, said) for word in rule.triggers)]


def _stands_in(word: str, text: str) -> bool:
    """Tell whether a trigger stands in a text as a word, or the beginning of one."""
    return re.search(rf"(?<![a-z0-9äöüß]){re.escape(word)}", text) is not None


def _rule(lanes: Lanes, one: Memory) -> Rule:
    """Return a memory as a rule; without a valid seal it can only be pending."""
    found = lanes.authority(one)
    status, triggers = str(found.data.get("status")), found.data.get("triggers")
    until = None
    if not found.sealed or status not in ("pending", "active", "rejected", "retired"):
        status = "pending"
    approved = parse_time(found.at)
    if status == "active":
        days = lanes.policy.lanes["procedural"].days
        ends = approved + timedelta(days=days) if approved and days else None
        until = iso(ends) if ends else None
        if found.data.get("fingerprint") != text_fingerprint(one.content):
            status = "pending"
        elif ends is not None and ends < lanes.memory.clock():
            status = "expired"
    return Rule(one.id, lanes.memory.redactor.redact_field(one.content),
                tuple(map(str, triggers)) if isinstance(triggers, (list, tuple)) else (), status,
                found.origin, text_fingerprint(one.content), until)


def approve_rule(memory: HermesLite, rule_id: str, *, fingerprint: str | None = None,
                 ack_interactions: bool = False,
                 approver: Callable[[Rule], bool] | None = None) -> Rule:
    """Let a rule hold, exactly as a person has seen it.

    The person is asked at the terminal, or by *approver*, a function of the user's program that
    shows the rule and returns True. Refused (`rule_conflict`) where an active rule says the
    opposite, and for any other conflict unless *ack_interactions*.
    """
    lanes, shown = find(memory), _one(memory, rule_id)
    if shown.status not in ("pending", "expired"):
        raise Refused(f"the rule {rule_id} is {shown.status}; only one that waits can be approved",
                      "not_pending")
    found = find_rule_conflicts(shown, active_rules(memory))
    _check_conflicts(found, ack_interactions)
    if fingerprint is not None:
        need_person(memory, "approve-rule")
        check_fingerprint(memory.lookup(rule_id), fingerprint)
    elif approver is None:
        confirm(memory, "approve-rule", _lines(shown, found))
    elif memory.systems.entry_points != ("python",) or not approver(shown):
        raise Refused("the rule was not approved", "not_confirmed")
    with memory.session.writing() as store:
        one = memory.lookup(rule_id)
        check_fingerprint(one, shown.fingerprint)
        if _rule(lanes, one).triggers != shown.triggers:
            raise Refused(f"the triggers of {rule_id} have changed; look at it again",
                          "text_changed")
        before = lanes.authority(one)
        data = {"triggers": list(shown.triggers), "status": "active",
                "fingerprint": shown.fingerprint}
        one = lanes.sealed(one, replace(before, lane="procedural", origin="observation",
                                        confidence=1.0, held=None, at=iso(memory.clock()),
                                        data=data))
        store.put(one)
    memory.systems.emit("approve-rule", [rule_id])
    return _rule(lanes, one)


def _check_conflicts(found: Iterable[RuleConflict], ack_interactions: bool) -> None:
    for conflict in found:
        if conflict.blocks:
            raise Refused(f"{conflict.ids[0]} {conflict.said}; retire that one first",
                          "rule_conflict")
        if not ack_interactions:
            raise Refused(f"{conflict.ids[0]} {conflict.said}; add --ack-interactions if that is "
                          "meant", "rule_conflict")


def reject_rule(memory: HermesLite, rule_id: str) -> Rule:
    """Refuse a rule that waits; it stays listed as rejected."""
    return _ended(memory, rule_id, before=("pending", "expired"), status="rejected")


def retire_rule(memory: HermesLite, rule_id: str) -> Rule:
    """End a rule that holds; it stays listed as retired."""
    return _ended(memory, rule_id, before=("active", "expired"), status="retired")


def _ended(memory: HermesLite, rule_id: str, *, before: tuple[str, ...], status: str) -> Rule:
    lanes = find(memory)
    with memory.session.writing() as store:
        rule = _one(memory, rule_id)
        if rule.status not in before:
            raise Refused(f"the rule {rule_id} is {rule.status}, not {before[0]}",
                          f"not_{before[0]}")
        one = memory.lookup(rule_id)
        found = lanes.authority(one)
        one = lanes.sealed(one, replace(found, data={**found.data, "status": status}))
        store.put(one)
    memory.systems.emit(f"{'reject' if status == 'rejected' else 'retire'}-rule", [rule_id])
    return _rule(lanes, one)


def _one(memory: HermesLite, rule_id: str) -> Rule:
    """Return a rule by its id; NotFound when the memory is none."""
    lanes, one = find(memory), memory.lookup(rule_id)
    if lanes.authority(one).kind != "rule":
        raise NotFound(f"{rule_id} is no rule; `pending-rules` and `active-rules` list them")
    return _rule(lanes, one)


def rule_conflicts(memory: HermesLite) -> list[RuleConflict]:
    """Return what stands between the rules that wait or hold and those that hold, each once."""
    rules = list_rules(memory)
    active = [rule for rule in rules if rule.status == "active"]
    found: dict[tuple[str, ...], RuleConflict] = {}
    for rule in rules:
        if rule.status in ("pending", "active"):
            for conflict in find_rule_conflicts(rule, active):
                found.setdefault((conflict.kind, *sorted(conflict.ids)), conflict)
    return list(found.values())


# -- commands -----------------------------------------------------------------

def _propose(memory: HermesLite, *, text: str | None, trigger: str | None,
             source: str | None) -> Rule:
    if text is None:
        raise UsageError("the following arguments are required: --text")
    return propose_rule(memory, text, trigger=trigger or (), source=source)


def _lines(rule: Rule, found: Iterable[RuleConflict] = ()) -> Iterator[str]:
    when = ", ".join(rule.triggers) or "always"
    yield f"{rule.id}  {rule.status}  {rule.fingerprint}  when: {when}"
    yield f"    {display_text(rule.text)}"
    yield from (f"    {conflict.kind}: {conflict.said}" for conflict in found)


def _show_rules(rules: Rule | Iterable[Rule]) -> Iterator[str]:
    for rule in [rules] if isinstance(rules, Rule) else rules:
        yield from _lines(rule)


def _show_conflicts(found: Iterable[RuleConflict]) -> Iterator[str]:
    yield from (f"{one.kind}: {one.ids[0]} {one.said}" for one in found)


def _listing(status: str) -> Callable[[HermesLite], list[Rule]]:
    return lambda memory: list_rules(memory, status=status)


_ID = Param("rule_id", MemoryId, "the id, as the lists of rules show it", positional=True,
            required=True)

OPERATIONS = (
    Operation("propose-rule", "propose a rule of behaviour; it holds once a person has approved "
              "it", _propose, (
        Param("text", str, "the rule"),
        Param("trigger", str, "words that call for it, with commas between; none: it always "
              "holds"),
        Param("source", str, "the origin; only observation is taken")), _show_rules, writes=True),
    Operation("pending-rules", "list the rules that wait", _listing("pending"), (), _show_rules),
    Operation("active-rules", "list the rules that hold", _listing("active"), (), _show_rules),
    Operation("approve-rule", "let a rule hold, exactly as it was shown", approve_rule, (
        _ID, Param("fingerprint", str, "that `pending-rules` has shown, in place of the question"),
        Param("ack_interactions", bool, "even if it touches other rules, is long, or there are "
              "many", False)), _show_rules, writes=True, scope="review"),
    Operation("reject-rule", "refuse a rule that waits", reject_rule, (_ID,), _show_rules,
              writes=True, scope="review"),
    Operation("retire-rule", "end a rule that holds", retire_rule, (_ID,), _show_rules,
              writes=True, scope="review"),
    Operation("rule-conflicts", "list rules that contradict or touch each other", rule_conflicts,
              (), _show_conflicts),
)

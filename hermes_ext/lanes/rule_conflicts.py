"""Conflicts between rules of behaviour: contradiction, interaction, bloat, too many at once.

Deterministic, by words alone. A contradiction blocks an approval; the others have to be
acknowledged. Two rules can only meet where a trigger is common to both, or one has none.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hermes_lite import Record, differs_in_fact, find_conflicts, normalise, similarity

__all__ = ["BUDGET_CHARS", "LONGEST_RULE", "Rule", "RuleConflict", "find_rule_conflicts"]

LONGEST_RULE = 300             # characters; a longer rule is bloat
BUDGET_CHARS = 1_500           # of all active rules together, as they are injected

# Words of which a rule can ask for one side only. German and Chinese beside English.
_OPPOSITES = tuple(tuple(frozenset(side.split()) for side in pair.split("|")) for pair in (
    "always immer 总是 一直 必须 must|never nie niemals 绝不 从不 不要 don't",
    "short brief concise terse kurz knapp 简短 简洁|long detailed verbose lang ausführlich 详细",
    "formal förmlich 正式 sie|informal casual locker 随意 du",
    "german deutsch 德语|english englisch 英语", "german deutsch 德语|chinese chinesisch 中文",
    "english englisch 英语|chinese chinesisch 中文", "tabs|spaces leerzeichen",
    "ask frage nachfragen 询问 before|directly direkt 直接 without",
    "enable on aktivieren 启用|disable off deaktivieren 禁用", "before vorher 之前|after nachher 之后",
    "with mit|without ohne"))
_NOT = frozenset("not never no don't dont avoid stop without nicht kein keine nie niemals ohne "
                 "不 不要 别 勿 绝不 从不 避免 禁止".split())


@dataclass(frozen=True, slots=True)
class Rule(Record):
    """One rule of behaviour and the words that call for it; without triggers it always holds.

    `status` is pending, active, rejected, retired or expired.
    """
    id: str
    text: str
    triggers: tuple[str, ...] = ()
    status: str = "pending"
    origin: str = "observation"
    fingerprint: str = ""
    until: str | None = None


@dataclass(frozen=True, slots=True)
class RuleConflict(Record):
    """What stands between rules. `kind` is contradiction, interaction, bloat or budget."""
    kind: str
    ids: tuple[str, ...]
    said: str

    @property
    def blocks(self) -> bool:
        return self.kind == "contradiction"


def find_rule_conflicts(rule: Rule, others: Iterable[Rule]) -> list[RuleConflict]:
    """Return what stands between a rule and those that hold, contradictions first."""
    active = [other for other in others if other.id != rule.id]
    found = []
    for other in active:
        meets = _meet(rule, other)
        if meets and contradict(rule.text, other.text):
            found.append(RuleConflict("contradiction", (rule.id, other.id),
                                      f"says the opposite of {other.id}"))
        elif similarity(rule.text, other.text) >= 0.85:
            found.append(RuleConflict("bloat", (rule.id, other.id),
                                      f"says nearly the same as {other.id}"))
        elif meets and rule.triggers and other.triggers:
            shared = ", ".join(sorted({*rule.triggers} & {*other.triggers}))
            found.append(RuleConflict("interaction", (rule.id, other.id),
                                      f"holds together with {other.id}: {shared}"))
    if len(rule.text) > LONGEST_RULE:
        found.append(RuleConflict("bloat", (rule.id,), f"has {len(rule.text)} characters; "
                                  f"{LONGEST_RULE} are enough for a rule"))
    total = len(rule.text) + sum(len(other.text) for other in active)
    if total > BUDGET_CHARS:
        found.append(RuleConflict("budget", (rule.id,), f"all rules together would have {total} "
                                  f"characters; {BUDGET_CHARS} are injected"))
    return sorted(found, key=lambda one: not one.blocks)


def _meet(one: Rule, two: Rule) -> bool:
    """Tell whether both rules can hold in the same turn."""
    return not one.triggers or not two.triggers or bool({*one.triggers} & {*two.triggers})


def contradict(one: str, two: str) -> bool:
    """Tell whether two rules ask for opposite things about the same matter."""
    if find_conflicts(one, two) or find_conflicts(two, one):
        return True
    if similarity(one, two) >= 0.85 and differs_in_fact(one, two):
        return True
    first, second = _words(one), _words(two)
    for left, right in _OPPOSITES:
        crossed = (first & left and second & right and not first & right and not second & left
                   or first & right and second & left and not first & left and not second & right)
        if crossed and _alike(first - left - right, second - left - right):
            return True
    return bool(first & _NOT) != bool(second & _NOT) and _alike(first - _NOT, second - _NOT)


def _alike(one: frozenset[str], two: frozenset[str]) -> bool:
    """Tell whether at least half of the words of the shorter rule stand in the other, too."""
    one, two = one - _FILLERS, two - _FILLERS
    shorter = min(len(one), len(two))
    return shorter == 0 or 2 * len(one & two) >= shorter


_FILLERS = frozenset("a an the to in of for and or is are be do use please when with on at by it "
                     "user der die das den ein eine zu im und oder bitte in 的 了 请 用 时 在"
                     .split())


def _words(text: str) -> frozenset[str]:
    """Return the words of a rule; of Chinese, its characters in ones and twos."""
    words: list[str] = re.findall(r"[a-zäöüß']+|\d+", normalise(text))
    for run in re.findall(r"[\u4e00-\u9fff]+", text):
        words += _grams(run)
    return frozenset(words)


def _grams(run: Sequence[str]) -> list[str]:
    return [*run, *("".join(run[i:i + 2]) for i in range(len(run) - 1))]

"""Authority lanes: who may say what, how long it holds, and what reaches the prompt.

A web page that a tool has read must never become "the user's preference". So authority is a
property of a memory that its writer cannot choose. Switched on in config.yaml:

    systems:
      lanes: {}

Lane           kept for    confidence  written by
identity       for ever    0.9         observation, conversation
preference     14 days     0.3         observation, conversation
evidence       60 days     0.5         any origin
authorization  90 days     0.9         observation
procedural     30 days     0.5         observation, and active only once a person has approved it

Origin: observation (a person at a terminal, or the user's own program), conversation, inference,
tool, external, from the most to the least trusted. `origin.py` fixes it by the entry point
(`memory.systems.entry_points`): each surface and door has a ceiling, the lowest of them holds.
Data, that is an argument, `meta`, frontmatter or a record of another store, can only lower it. Code
names the origin of what it writes with `claiming(…)`, which is what `AgentMemory` and `lanes add`
do; the ceilings hold for it, too. What is made of other memories names them in
`meta["derived_from"]`, a list of ids, and gets the lowest origin of them.

Authority: what a memory may do, kept in meta["lanes"] and closed by a seal, a MAC of the text and
of all that is said about it under this root's own key (`authority.py`). Without a valid seal a
memory is evidence of external origin: so an edit in store/, an import, a sync or a changed
index.json brings no authority in, and a changed text loses it. `Lanes.authority(memory)` is the
only way to read it.

Modules, each using only those above it:

    wording       a question in other spellings, compounds and synonyms: German, English, Chinese
    policy        lanes, origins, ceilings, reason codes; the settings of config.yaml
    authority     Authority of one memory, its form in meta, its seal, its quoted form
    person        whether a person is at the terminal, and what that person says
    origin        entry points, and what code claims about a text
    state         counters, and the protection after a rest
    tied, aliases the value of a file that a fact states; the names of one person
    extension     Lanes, the Extension: gate, merge, sliding life, what is hidden from search
    facts, review, rules (rule_conflicts), conflicts, notes, relations, stale, provenance,
    snapshots, duplicates: each a few functions and their commands
    inject        the block for a turn: the newest of each lane, or what a message asks for
    commands      all commands; agent_memory: the same as one class

A write that breaks the policy raises Refused with a reason code of `policy.REASONS`, and is
counted in the state "lanes". What waits for a person (`held`), raw snippets and rejected rules
are hidden from every search; tags such as lane/evidence and kind/lesson find the rest quickly,
but only `authority` says what a memory is.

Life slides: the days count from the last recall. `show`, `list` and `vsearch` renew nothing. A
near-duplicate of a trusted fact from a lower origin is dropped in favour of the trusted one and
changes nothing about it; one from a higher origin becomes a memory of its own.

Not promised: whoever can read .personal_key can seal; a terminal can be faked by a program that
runs as the user.
"""
from typing import Any

from hermes_ext.lanes.extension import Lanes, find, system

__all__ = ["Lanes", "find", "system"]


def __getattr__(name: str) -> Any:
    """Import the commands where they are asked for: a write or a recall needs none of them."""
    if name in ("OPERATIONS", "run_with"):
        from hermes_ext.lanes import commands
        return getattr(commands, name)
    if name == "build_turn":
        from hermes_ext.lanes.inject import build_turn
        return build_turn
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

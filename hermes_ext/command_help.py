"""Help of the command line: all commands in groups, one command with examples.

`help_text` is called by the core (through completion.py) for `--help`. GROUPS and EXAMPLES are also what the manual page
is made from. No system is imported here but the one whose command is asked about.
"""
from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping

from hermes_lite import Operation, build_parser

__all__ = ["EXAMPLES", "GROUPS", "groups_of", "help_text"]

# A word stands for all commands that begin with it.
GROUPS: dict[str, tuple[str, ...]] = {
    "Keep and find": ("remember", "recall", "list", "show", "vsearch", "context", "digest",
                      "graph", "anchors", "timeline"),
    "Change and delete": ("edit", "verify", "undo", "forget", "prune", "pin", "score",
                          "reinforce", "decay", "vault", "private"),
    "Move and save": ("import", "export", "backup", "restore", "sync", "migrate", "archive",
                      "buffer", "snapshot", "snapshots"),
    "Look after it": ("init", "stats", "rooms", "config", "vectors", "doctor", "repair", "scrub",
                      "reindex", "encrypt", "audit", "events", "cron", "version"),
    "Serve agents": ("connect", "disconnect", "agents", "mcp", "serve", "token",
                     "inject", "rules", "report"),
    "Brain (systems: brain)": ("brain", "concept", "forgotten", "revive"),
    "Lanes (systems: lanes)": (
        "lanes", "pending", "approve", "reject", "conflicts", "resolve-conflict", "forget-stale",
        "propose-rule", "pending-rules", "active-rules", "approve-rule", "reject-rule",
        "retire-rule", "rule-conflicts", "snippet", "learn", "track", "relate", "relations",
        "alias", "stale", "provenance", "consolidate"),
    "Shell": ("shell", "completion", "man"),
}

EXAMPLES: dict[str, tuple[str, ...]] = {
    "remember": ('hermes-lite remember "We deploy on Fridays" --category decision --verified',
                 "echo note | hermes-lite remember -",
                 "hermes-lite remember --batch notes.jsonl"),
    "recall": ('hermes-lite recall "when do we deploy?"',
               "hermes-lite recall deploy --room decisions --top-k 3",
               "hermes-lite recall deploy --json | jq -r '.hits[].memory.content'"),
    "list": ("hermes-lite list --since yesterday", "hermes-lite list --since 上周 --unverified",
             "hermes-lite list --sort importance --limit 20 --offset 20"),
    "show": ("hermes-lite show a621",),
    "verify": ("hermes-lite verify a621 b00c", "hermes-lite verify --tags release --json"),
    "forget": ("hermes-lite forget a621", "hermes-lite forget --query draft --since 2w",
               "hermes-lite forget --source import.md --yes"),
    "prune": ("hermes-lite prune --dry-run", "hermes-lite prune --yes"),
    "digest": ('hermes-lite digest "From now on we use PostgreSQL 16" --apply',
               "hermes-lite digest --file meeting.txt --max 5"),
    "edit": ("hermes-lite edit a621", 'hermes-lite edit a621 --text "The port is 5434"'),
    "export": ("hermes-lite export notes.json", "hermes-lite export --format csv --since 1w"),
    "import": ("hermes-lite import notes.json --dry-run", "hermes-lite import ~/notes --yes"),
    "backup": ("hermes-lite backup memory.tar.gz", "hermes-lite backup memory.tar.gz --verify"),
    "context": ('hermes-lite context "the release" --budget 2000',),
    "undo": ("hermes-lite undo --dry-run", "hermes-lite undo"),
    "completion": ('eval "$(hermes-lite completion bash)"',
                   "hermes-lite completion zsh > ~/.zfunc/_hermes-lite",
                   "hermes-lite completion fish > ~/.config/fish/completions/hermes-lite.fish"),
    "man": ("hermes-lite man > ~/.local/share/man/man1/hermes-lite.1",),
}

_FOOT = """options:
  -h, --help   show this, or after a command its help with examples
  --root DIR   the data root
  --json       print JSON
  --quiet      print data and errors alone: no notices, progress, colour or pager

exit codes: 0 ok, 1 failure, 2 usage, 3 configuration, 10 not found, 11 refused, 12 locked,
            13 damaged data, 130 interrupted"""


def groups_of(known: Mapping[str, Operation]) -> dict[str, list[Operation]]:
    """Return the operations in their groups, each once; those of no group come as More."""
    rest = dict(known)
    found: dict[str, list[Operation]] = {}
    for title, words in GROUPS.items():
        for word in words:
            for name in [name for name in rest if name.split()[0] == word]:
                found.setdefault(title, []).append(rest.pop(name))
    if rest:
        found["More"] = list(rest.values())
    return found


def help_text(known: Mapping[str, Operation], command: str | None) -> str:
    """Return the help of one command with its examples, or of all where it is None."""
    if command is None:
        return _of_all(known)
    written = io.StringIO()
    parser = build_parser({command: known[command]})
    with contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
        parser.parse_args([command, "--help"])
    lines = [written.getvalue().rstrip()]
    if command in EXAMPLES:
        lines += ["", "examples:", *(f"  {example}" for example in EXAMPLES[command])]
    return "\n".join(lines)


def _of_all(known: Mapping[str, Operation]) -> str:
    lines = ["usage: hermes-lite [--root DIR] [--json] [--quiet] COMMAND ...", "",
             "The memory of your agents, in files of your own."]
    for title, operations in groups_of(known).items():
        lines += ["", f"{title}:"]
        lines += [f"    {one.name:<20}  {one.help}" for one in operations]
    return "\n".join([*lines, "", _FOOT])


"""Registry of the systems that build on the core; it imports none of them.

CONTENTS maps the name of a system, as config.yaml writes it under `systems:`, to its module below
hermes_ext and to the commands that it brings, each with its line of help. The command line lists
commands from here, so `--help` imports no system. The module of a system with commands has
`OPERATIONS`, one operation a command; that of a system which takes part in writes and reads has
`system(memory, **settings)`, which makes the extension object.

The other tables give a system a role; the core knows the role and never the name:

    STORES        {value of storage.backend: system}; its module has
                  `open_store(root, config, clock=...)`
    VECTORIZERS   {value of vectors.backend: system}; its module has `make(backend)`
    AUTOSTART     {file in the data root: system}; the file switches the system on
    OPTIONS       {command of the core: {system: {option: (type, line of help)}}}; where one is
                  given, `run_with(memory, operation, arguments, options)` of the system's module
                  runs instead; a bool is a switch
    HOOKS         {hook: (system, function of its module)}
        before_command(memory, command)    runs before a command of the command line
        forget_selection(memory, ...)      does `forget` with a selection or --purge
        check_compression()                raises when no package reads a compressed archive
        help_text(known, command)          writes the help, of all commands where it is None
        print_on_terminal(operation, result, lines)    prints with colour, a table or a pager
    MISSING       {command: file or folder of its system}, of systems that were deleted

Each folder is one group of systems, and no folder imports another: any folder, or a module that
lies beside this file, can be deleted, and what remains works. Deleted systems leave the tables
when this file is imported. calls, cold_files, command_help, framing, host_notes, program, reads and scores are no
systems; all may import them.
"""

import os
from pathlib import Path

__all__ = ["AUTOSTART", "CONTENTS", "HOOKS", "MISSING", "OPTIONS", "STORES", "VECTORIZERS"]

STORES: dict[str, str] = {"archive": "archive"}
VECTORIZERS: dict[str, str] = {"e5": "embedders", "use": "embedders", "e5+use": "embedders"}
AUTOSTART: dict[str, str] = {"cold_index.json": "cold", "logs/events.log": "events",
                             ".hook_context.json": "kept_context"}
OPTIONS: dict[str, dict[str, dict[str, tuple[type, str]]]] = {
    "remember": {"lanes": {
        "tied_to": (Path, "the file whose value it states, FILE, FILE#key or FILE:line")}},
    "recall": {"brain": {
        "mode": (str, "associative: by likeness, then by shared concepts; keyword: by words "
                      "alone; list: all that is awake"),
        "temp": (str, "associative: how freely the last answer is drawn from the next ranks; 0 "
                      "is not at all (default: 0.3)"),
        "seed": (int, "associative: the same number draws the same answer"),
        "deep": (bool, "search what is asleep, too; a strong match wakes up"),
        "as_of": (str, "as if it were this date: 2026-08-17, or 12h, 1d, 2w ago")}},
    "list": {"lanes": {"authority": (str, "only this lane, such as preference")}},
    "verify": {"lanes": {
        "fingerprint": (str, "refuse if the text is no longer the one that was shown")}},
}
HOOKS: dict[str, tuple[str, str]] = {
    "before_command": ("vault", "take_over"),
    "forget_selection": ("forget", "forget"),
    "check_compression": ("archive", "check_package"),
    "help_text": ("completion", "help_text"),
    "print_on_terminal": ("terminal", "print_on_terminal"),
}

CONTENTS: dict[str, tuple[str, dict[str, str]]] = {
    "import_export": ("import_export", {
        "export": "write memories to a file or to standard output",
        "import": "bring memories in from a file or a folder of notes"}),
    "anchors": ("anchors", {
        "anchors": "list typed values such as contract numbers, and who holds one"}),
    "salience": ("salience", {
        "pin": "pin a memory (never pruned) and update the decay rate",
        "reinforce": "raise the score of a memory",
        "decay": "multiply the scores of all that have the tags",
        "score": "show the score of a memory and how it comes about"}),
    "edit": ("edit", {"edit": "change the text of a memory"}),
    "vault": ("vault", {"vault": "take over notes that were edited by hand in store/"}),
    "sync": ("sync.sync", {
        "sync": "bring the memories of several machines together through a folder"}),
    "embedders": ("embedders", {}),
    "doctor": ("maintenance.doctor", {
        "doctor": "check the store and name the command that repairs it"}),
    "repair": ("maintenance.repair", {
        "repair": "repair whatever can be repaired without loss"}),
    "backups": ("maintenance.backups", {
        "backup": "write everything needed into one file"}),
    "restore": ("maintenance.restore", {
        "restore": "bring the records of a backup back"}),
    "scrub": ("maintenance.scrub", {
        "scrub": "apply today's redaction to all that is stored",
        "reindex": "make every index anew from the records"}),
    "forget": ("maintenance.forget", {}),
    "encryption": ("maintenance.encryption", {
        "encrypt": "switch encryption on or off, or rotate the key"}),
    "prompt": ("prompt", {"context": "find memories and lay them out for a prompt"}),
    "rules": ("automation.rules", {
        "rules": "show the rules and what they did, look at all memories, or try again"}),
    "actions": ("automation.actions", {}),
    "report": ("automation.report", {"report": "write the digest of alerts"}),
    "audit": ("audit", {"audit": "list or verify the log of who did what"}),
    "connect": ("agents.connect", {
        "connect": "enter this memory (hermes-memory) into the settings of an agent's host",
        "disconnect": "take this memory out of the settings of a host",
        "agents": "list the hosts of this machine, what is connected and what is broken"}),
    "kept_context": ("agents.kept_context", {}),
    "server": ("server", {
        "serve": "serve the memory over HTTP, with a page to look at it",
        "token create": "make a token for an agent or a person",
        "token list": "list the tokens that were made",
        "token revoke": "let a token count no longer"}),
    "events": ("events", {"events tail": "list the newest events, or follow them"}),
    "lanes": ("lanes", {
        "lanes": "show the lanes, add to one, list one, or seal again what this root vouches for",
        "forget-stale": "delete what was not recalled for the days of its lane",
        "pending": "list what waits for a person",
        "approve": "let what waits hold, exactly as it was shown",
        "reject": "delete what waits",
        "propose-rule": "propose a rule of behaviour; it holds once a person has approved it",
        "pending-rules": "list the rules that wait",
        "active-rules": "list the rules that hold",
        "approve-rule": "let a rule hold, exactly as it was shown",
        "reject-rule": "refuse a rule that waits",
        "retire-rule": "end a rule that holds",
        "rule-conflicts": "list rules that contradict or touch each other",
        "conflicts": "list facts of single-valued lanes that say different things",
        "resolve-conflict": "keep one fact and let those that it contradicts rest",
        "snippet": "keep raw conversation, or search it",
        "learn": "keep what an action taught",
        "track": "keep a person, a place or a thing with what is known about it",
        "relate": "say how one entity relates to another",
        "relations": "list how an entity relates to others",
        "alias": "let several names stand for one person",
        "stale": "list facts whose file says otherwise by now",
        "provenance": "show how a memory came to be",
        "snapshot": "keep all memories as they are now, compare with that, or bring it back",
        "snapshots": "list the snapshots",
        "consolidate": "list, or merge, facts that say the same in several lanes",
        "inject": "lay out what an agent should know before it answers a message"}),
    "brain": ("brain", {
        "brain cycle": "settle what faded, and write the work orders of this run",
        "brain status": "count what is awake and asleep, concepts, levels and open orders",
        "brain orders": "list the work orders, or show one with its texts and its question",
        "brain fulfil": "answer a work order with the pattern that its texts have in common",
        "brain decline": "close a work order without an answer",
        "brain keep": "keep an insight: what happened, and the structure drawn from it",
        "brain notes": "propose a shorter MEMORY.md or USER.md of a host, as a diff",
        "brain log": "list the changes that the brain made",
        "brain agents-md": "write an AGENTS.md for an agent without memory",
        "brain levels": "show what a memory was made from, and what was made from it",
        "timeline": "show how a matter developed: first, turns, latest",
        "concept add": "define a concept",
        "concept show": "show a concept, its relations and its memories",
        "concept link": "relate two concepts, or take a relation back",
        "concept list": "list the concepts, the most used first",
        "forgotten": "list what is asleep",
        "revive": "wake up what is asleep"}),
    "undo": ("undo", {
        "undo": "take back the last act that changed memories, deletions included"}),
    "agent_logs": ("agents.logs", {}),
    "private": ("agents.private", {
        "private on": "keep what is said from now on out of the memory",
        "private off": "end private mode; what was said meanwhile stays out",
        "private status": "show what is private now"}),
    "cron": ("cron", {
        "cron install": "add a job to the crontab, and nothing else",
        "cron remove": "take the jobs of this memory out of the crontab",
        "cron show": "print the lines for cron, and units for systemd"}),
    "completion": ("completion", {
        "completion": "print the completion of a shell: bash, zsh or fish",
        "man": "print the manual page"}),
    "terminal": ("terminal", {}),
    "shell": ("shell", {"shell": "type commands one after the other"}),
    "mcp": ("mcp", {"mcp": "serve the memory to a client of the Model Context Protocol"}),
    "settings": ("settings", {
        "config": "list, get or set a setting, or show where they stand"}),
    "archive": ("archive.store", {}),
    "buffer": ("archive.buffer", {"buffer": "show what the short-term buffer holds"}),
    "cold": ("archive.cold", {
        "archive": "move low memories to cold storage, or bring them back"}),
    "migrate": ("maintenance.migrate", {
        "migrate": "move all memories into the archive, or back into files"}),
}


def _is_installed(module: str) -> bool:
    """Tell whether a module or folder is there; inside a zip file all are."""
    if not os.path.isdir(__path__[0]):
        return True
    path = os.path.join(__path__[0], *module.split("."))
    return os.path.exists(f"{path}.py") or os.path.exists(os.path.join(path, "__init__.py"))


MISSING: dict[str, str] = {}
for _name in [name for name, (module, _) in CONTENTS.items() if not _is_installed(module)]:
    _module, _commands = CONTENTS.pop(_name)
    for _command in _commands:                     # of two words: the first alone, too
        MISSING[_command] = MISSING[_command.split()[0]] = f"hermes_ext/{_module}"
for _backend in [backend for backend, name in VECTORIZERS.items() if name not in CONTENTS]:
    del VECTORIZERS[_backend]
for _command in OPTIONS:
    OPTIONS[_command] = {name: options for name, options in OPTIONS[_command].items()
                         if name in CONTENTS}
for _hook in [hook for hook, (name, _) in HOOKS.items() if name not in CONTENTS]:
    del HOOKS[_hook]

"""Systems that build on the core, one flat module each; delete any of them and the rest stands.

CONTENTS says which commands a module brings, {module: {command: one help line}}, so that the
command line knows them without importing any. A module has `OPERATIONS`, the operations of its
commands, and, where it takes part in every write or read, `system(memory, **settings)`, which
makes the Extension that config.yaml switches on under `systems:`.

The other tables say where the core finds what it knows by a role alone. STORES and VECTORIZERS
are {backend: module}: a value of storage.backend is a module with `open_store(root, config,
clock=…)`, one of vectors.backend a module with `make(backend)`. AUTOSTART is {file: module}: a
file in the data root that switches its system on. HOOKS is {hook: (module, function)}:
`before_command(memory, command)` runs before a command of the command line, and
`forget_selection(memory, …)` is `forget` with a selection or --purge; `check_compression()` raises
where what a compressed archive needs is not installed.

A module that is not in CONTENTS is part of the system whose name it begins with (sync_merge), or
shared by several: workshop, by those that work on a store's files, cold_files, by all that
reach what lies in cold storage, and scores, by all that ask for the score of a memory.
"""

__all__ = ["AUTOSTART", "CONTENTS", "HOOKS", "STORES", "VECTORIZERS"]

STORES: dict[str, str] = {"archive": "archive"}
VECTORIZERS: dict[str, str] = {"e5": "embedders", "use": "embedders", "e5+use": "embedders"}
AUTOSTART: dict[str, str] = {"cold_index.json": "cold"}
HOOKS: dict[str, tuple[str, str]] = {
    "before_command": ("vault", "take_over"),
    "forget_selection": ("hygiene", "forget"),
    "check_compression": ("archive", "check_package"),
}

CONTENTS: dict[str, dict[str, str]] = {
    "exchange": {
        "export": "write memories to a file or to standard output",
        "import": "bring memories in from a file or a folder of notes"},
    "anchors": {"anchors": "list typed values such as contract numbers, and who holds one"},
    "salience": {
        "pin": "keep a memory for ever, and learn from it how fast the others fade",
        "reinforce": "raise the score of a memory",
        "decay": "multiply the scores of all that have the tags",
        "score": "show the score of a memory and how it comes about"},
    "vault": {"vault": "take over notes that were edited by hand in store/"},
    "sync": {"sync": "bring the memories of several machines together through a folder"},
    "embedders": {},
    "care": {
        "doctor": "check the store and say what mends it",
        "repair": "mend what can be mended without loss"},
    "backups": {
        "backup": "write everything needed into one file",
        "restore": "bring the records of a backup back"},
    "hygiene": {
        "scrub": "apply today's redaction to all that is stored",
        "reindex": "make every index anew from the records"},
    "encryption": {
        "encrypt": "switch encryption on or off, or rotate the key"},
    "weave": {"context": "find memories and lay them out for a prompt"},
    "rules": {
        "rules": "show the rules and what they did, look at all memories, or try again"},
    "actions": {},
    "report": {"report": "write the digest of alerts"},
    "audit": {"audit": "list or verify the log of who did what"},
    "shell": {"shell": "type commands one after the other"},
    "settings": {"config": "list, get or set a setting, or show where they stand"},
    "archive": {},                                 # a store: storage.backend in config.yaml
    "buffer": {"buffer": "show what the short-term buffer holds"},
    "cold": {"archive": "move low memories to cold storage, or bring them back"},
    "migrate": {"migrate": "move all memories into the archive, or back into files"},
}

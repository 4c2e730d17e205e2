"""Systems that build on the core, one flat module each; delete any of them and the rest stands.

CONTENTS says which commands a module brings, {module: {command: one help line}}, so that the
command line knows them without importing any. A module has `OPERATIONS`, the operations of its
commands, and, where it takes part in every write or read, `system(memory, **settings)`, which
makes the Extension that config.yaml switches on under `systems:`.
"""

CONTENTS: dict[str, dict[str, str]] = {}

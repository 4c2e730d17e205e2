"""Edit: change the text of a memory, in an editor or in one command.

    hermes_lite.py edit a621                      opens $VISUAL or $EDITOR
    hermes_lite.py edit a621 --text "The port is 8081"
    hermes_lite.py edit a621 --text - < note.txt

The new text is redacted, passes the gate of every write and keeps the memory's id, tags, age and
counts. It is no longer confirmed: `verify` says so of the new text. With lanes it loses its
authority like any text that was changed.
"""
from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hermes_lite import (HermesLite, MemoryId, NotFound, Operation, Param, Record, Refused,
                         StorageError, UsageError, display_text)

__all__ = ["Edited", "OPERATIONS", "edit", "text_from_editor"]


@dataclass(frozen=True, slots=True)
class Edited(Record):
    """What became of an edit; the same text changes nothing."""
    id: str
    changed: bool
    before: str
    after: str
    redacted: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def edit(memory: HermesLite, memory_id: str, text: str, *, deliberate: bool = True) -> Edited:
    """Give a memory another text; UsageError for a blank one, NotFound for an unknown id.

    Unless *deliberate*, that is, unless a person does it, a text that was forgotten is Refused.
    """
    if not isinstance(text, str) or not text.strip():
        raise UsageError("the text is empty; `forget` deletes a memory")
    old = memory.lookup(memory_id)
    if text.strip() == old.content:
        return Edited(old.id, False, _shown(memory, old.content), _shown(memory, old.content))
    if not deliberate:
        _check_forgotten(memory, text.strip())
    done = memory.admit(replace(old, content=text.strip(), execution_verified=False),
                        replacing=True)
    new = memory.lookup(done.id)
    memory.systems.emit("edit", [new.id])
    return Edited(new.id, True, _shown(memory, old.content), _shown(memory, new.content),
                  done.redacted, done.warnings)


def _check_forgotten(memory: HermesLite, text: str) -> None:
    with memory.session.reading() as store:
        tombstone = store.forgotten(memory.redactor.redact_field(text))
    if tombstone is not None and not tombstone["why"].startswith("pruned: "):
        raise Refused("this text was removed and is not taken up again; edit it by hand to bring "
                      "it back", "forgotten")


def _shown(memory: HermesLite, text: str) -> str:
    return memory.redactor.redact_field(text)


def text_from_editor(text: str) -> str:
    """Open a text in the editor of the environment and return what the person has saved."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor or not sys.stdin.isatty():
        raise UsageError("there is no editor to open; set EDITOR, or give the new text with --text")
    handle, name = tempfile.mkstemp(suffix=".md", prefix="memory_")        # readable by us alone
    path = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        done = subprocess.run([*shlex.split(editor), name])
        if done.returncode:
            raise Refused(f"the editor ended with code {done.returncode}; nothing was changed",
                          "editor_failed")
        return path.read_bytes().decode("utf-8", "replace").rstrip("\r\n")
    except FileNotFoundError:
        raise NotFound(f"there is no program {shlex.split(editor)[0]!r}; set EDITOR to one that "
                       "there is") from None
    except OSError as problem:
        raise StorageError(f"the editor's file: {problem.strerror}") from None
    finally:
        path.unlink(missing_ok=True)


# -- commands -----------------------------------------------------------------

def _edit(memory: HermesLite, *, id: str, text: str | None, deliberate: bool = True) -> Edited:
    if text is None:
        surface = memory.systems.entry_points[0].split(" ")[0]
        if surface not in ("cli", "shell"):
            raise UsageError("give the new text")
        text = text_from_editor(memory.lookup(id).content)
    return edit(memory, id, text, deliberate=deliberate)


def _show(done: Edited) -> Iterator[str]:
    if not done.changed:
        yield f"{done.id} has this text already; nothing was changed"
        return
    yield f"edited {done.id}"
    yield f"  - {display_text(done.before)}"
    yield f"  + {display_text(done.after)}"
    if done.redacted:
        yield f"  redacted: {', '.join(done.redacted)}"


OPERATIONS = (
    Operation("edit", "change the text of a memory", _edit, (
        Param("id", MemoryId, "the memory's id, or its last characters", positional=True,
              required=True),
        Param("text", str, "the new text (default: opens $VISUAL or $EDITOR); - reads standard "
              "input")), _show, writes=True),
)

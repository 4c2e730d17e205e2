"""How results look on a terminal: colour and tables by `rich`, long ones page by page.

Called by the core for results on a terminal, never for a pipe, `--json` or `--quiet`. Without the
package `rich` (pip install '.[cli]'), with NO_COLOR set or TERM=dumb the lines stay plain text.
What is longer than the terminal goes through HERMES_PAGER, PAGER or `less -FRX`; `cat` or an empty
value is no pager. Only what reads is paged, and only where standard input is a terminal, too.
"""
from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_lite import Memory, Operation, printable

__all__ = ["print_on_terminal"]

_LESS = "less -FRX"


def print_on_terminal(operation: Operation, result: object, lines: Sequence[str]) -> None:
    """Print a result for a person: its lines, or where rich is there a table or colours."""
    text = _coloured(operation, result, lines) or "\n".join(lines) + "\n"
    if operation.writes or operation.name == "shell" or not _page(text):
        sys.stdout.write(text)


def _coloured(operation: Operation, result: object, lines: Sequence[str]) -> str | None:
    """Return the result with colours; None where it should be, or can only be, plain."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return None
    draw = _DRAWN.get(operation.name)
    if draw is None or isinstance(result, Mapping):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, highlight=False, markup=False,
                      width=shutil.get_terminal_size().columns)
    draw(console, result, lines)
    return written.getvalue()


def _draw_list(console: Any, rows: Any, lines: Sequence[str]) -> None:
    from rich.table import Table
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, style, options in (
            ("id", "cyan", {"no_wrap": True}), ("made", "green", {"no_wrap": True}),
            ("until", "", {"no_wrap": True}), ("room", "magenta", {"no_wrap": True}),
            ("imp", "", {"justify": "right"}), ("text", "", {"ratio": 1, "overflow": "fold"})):
        table.add_column(title, style=style, **options)
    until = getattr(rows, "kept_until", {})
    for memory in rows:
        state = "" if memory.execution_verified else " ?"
        text = " ".join([memory.content, *(f"#{tag}" for tag in memory.tags)])
        table.add_row(memory.id, memory.created_at[:10],
                      ((until.get(memory.id) or "for ever")[:10]) + state, memory.room,
                      str(memory.importance), printable(" ".join(text.split())))
    console.print(table)


def _draw_hits(console: Any, hits: Any, lines: Sequence[str]) -> None:
    from rich.text import Text
    words = sorted({word for hit in hits for word in hit.why.get("words", ())}, key=len)
    for line in lines:
        is_answer = line[:1].isdigit()
        text = Text(line, style="" if is_answer else "dim")
        if is_answer and words:
            text.highlight_words(words, style="bold yellow", case_sensitive=False)
        console.print(text, soft_wrap=True)


def _draw_memory(console: Any, memory: Memory, lines: Sequence[str]) -> None:
    from rich.text import Text
    for line in lines:
        text = Text(line)
        name, colon, _ = line.partition(":")
        if colon and name.replace("_", "").isalpha():
            text.stylize("cyan", 0, len(name) + 1)
        console.print(text, soft_wrap=True)


_DRAWN = {"list": _draw_list, "recall": _draw_hits, "vsearch": _draw_hits, "show": _draw_memory}


def _page(text: str) -> bool:
    """Show a text page by page; False where it fits, or no pager is there."""
    size = shutil.get_terminal_size()
    rows = sum(1 + len(line) // max(size.columns, 1) for line in text.splitlines())
    if rows < size.lines or not sys.stdin.isatty():
        return False
    pager = os.environ.get("HERMES_PAGER", os.environ.get("PAGER", _LESS))
    try:
        words = shlex.split(pager)
    except ValueError:
        return False
    if not words or words == ["cat"] or shutil.which(words[0]) is None:
        return False
    with subprocess.Popen(words, stdin=subprocess.PIPE,
                          env={**os.environ, "LESS": os.environ.get("LESS", "FRX"),
                               "LESSCHARSET": "utf-8"}) as process:
        with contextlib.suppress(BrokenPipeError):     # the reader has seen enough
            process.communicate(text.encode())
    return True


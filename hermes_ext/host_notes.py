"""What other programs keep for an agent, as rows for an import: notes of hosts, and exports.

    MEMORY.md, USER.md      of Hermes: entries between lines of `§`; without one they are Markdown
    CLAUDE.md, AGENTS.md, GEMINI.md, CLAUDE.local.md: each item of a list, and each paragraph, with
                            the heading or the sentence above it; code stays with its text
    mem0                    what `get_all` or an export returns: objects with `memory`
    Honcho                  conclusions, a representation, or a peer card

Each row has its origin (file and line, or program and id) as source, and its date: that of the
row, else of the file. What this program wrote into such a file is left out. It is no system
itself.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hermes_lite import iso, parse_time, read_markdown, utc_now

__all__ = ["entry_of", "is_host_note", "notes_in", "rows_in"]

_HOSTS = {"memory.md": ("hermes",), "user.md": ("hermes", "user"), "claude.md": ("claude-code",),
          "claude.local.md": ("claude-code",), "agents.md": ("agents-md",),
          "agents.override.md": ("agents-md",), "gemini.md": ("gemini",)}
_OURS = re.compile(r"<!-- hermes-lite: begin -->.*?(?:<!-- hermes-lite: end -->|\Z)"
                   r"|<memories\b[^>\n]*>.*?(?:</memories>|\Z)|<!--.*?(?:-->|\Z)", re.DOTALL)
_SIGN = re.compile(r"(?m)^[ \t]*§[ \t]*$")
_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*$")
_ITEM = re.compile(r"( *)(?:[-*+]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?(.*)")
_RULE = re.compile(r"\s*(?:-{3,}|\*{3,}|_{3,})\s*$")
_FENCE = re.compile(r"\s*(?:```|~~~)")


def is_host_note(name: str, text: str) -> bool:
    """Tell whether a file holds the notes of a host: by its name, and it is no note of ours."""
    if Path(name).name.lower() not in _HOSTS:
        return False
    try:
        return "id" not in read_markdown(text)
    except ValueError:
        return True


def notes_in(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, entry) of each note of a host in the text of a file."""
    tags = _HOSTS.get(path.name.lower(), ("notes",))
    made = _date_of(path)
    text = _OURS.sub(lambda found: "\n" * found[0].count("\n"), text)
    found = _between_signs(text) if _SIGN.search(text) else _of_markdown(text)
    for line, content in found:
        yield f"{path.name} line {line}", {
            "content": content, "tags": list(tags),
            "source": f"{tags[0]}:{path.absolute()}#{line}",
            **({"created_at": made} if made else {})}


def _date_of(path: Path) -> str | None:
    try:
        return _past(datetime.fromtimestamp(path.stat().st_mtime, timezone.utc))
    except OSError:
        return None


def _past(value: object) -> str | None:
    """Return a time that is over as ISO, else None."""
    moment = parse_time(value)
    return iso(moment) if moment and moment <= utc_now() else None


def _between_signs(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, entry) of entries between lines of `§`; inside a line it is a letter."""
    line = 1
    for part in _SIGN.split(text):
        content = part.strip()
        if content and not _HEADING.fullmatch(content):
            yield line + part[:len(part) - len(part.lstrip())].count("\n"), content
        line += part.count("\n")


class _Block:
    """An item or a paragraph that is being read."""

    def __init__(self, line: int, first: str, *, is_item: bool) -> None:
        self.line, self.lines, self.is_item = line, [first], is_item
        self.keeps_lines = False               # code or a list inside it

    def text(self) -> str:
        """Return the block as one text."""
        return ("\n" if self.keeps_lines else " ").join(
            line if self.keeps_lines else line.strip() for line in self.lines).strip()


def _of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each item and paragraph, with what stands above it in front."""
    heading = lead = ""
    block: _Block | None = None
    in_code = False

    def ended() -> Iterator[tuple[int, str]]:
        nonlocal block, lead
        if block is not None and (said := block.text()) and not said.startswith("@"):
            above = (lead if block.is_item else "") or heading
            yield block.line, f"{above}: {said}" if above else said
        block = None

    for number, line in enumerate(_without_head(text).split("\n"), 1):
        title, item = _HEADING.match(line), _ITEM.match(line)
        if in_code or _FENCE.match(line):
            in_code = in_code != bool(_FENCE.match(line))
            block = block or _Block(number, "", is_item=False)
            block.keeps_lines = True
            block.lines.append(line)
        elif title:
            yield from ended()
            heading, lead = title[2] if len(title[1]) > 1 else "", ""
        elif _RULE.match(line):
            yield from ended()
        elif item and (block is None or not block.is_item or len(item[1]) < 2):
            if block is not None and not block.is_item and block.text().endswith(":"):
                lead, block = block.text()[:-1], None      # a sentence that the items continue
            yield from ended()
            block = _Block(number, item[2], is_item=True)
        elif not line.strip():
            if block is not None and not block.text().endswith(":"):
                yield from ended()
        elif block is None:
            lead = ""
            block = _Block(number, line, is_item=False)
        else:
            block.keeps_lines |= bool(item) or line.lstrip().startswith("|")
            block.lines.append(line)
    yield from ended()


def _without_head(text: str) -> str:
    """Return a text with its frontmatter blanked."""
    found = re.match(r"---\n.*?\n---\n", text, re.DOTALL)
    return "\n" * found[0].count("\n") + text[found.end():] if found else text


# -- exports ------------------------------------------------------------------

_LISTS = ("memories", "results", "items", "conclusions", "observations")


def rows_in(document: Mapping[str, Any]) -> list[object] | None:
    """Return the rows of an object that holds a list of them; None where it is a row itself."""
    if "content" in document:
        return None
    for name in _LISTS:
        if isinstance(document.get(name), list):
            return list(document[name])
    inner = document.get("representation", document)
    rows: list[object] = []
    for name in ("explicit", "deductive"):
        found = inner.get(name) if isinstance(inner, Mapping) else None
        rows += [{"honcho": row} for row in (found if isinstance(found, list) else ())]
    card = document.get("peer_card")
    if isinstance(card, list):
        rows += [{"honcho": {"content": line, "id": "peer_card"}} for line in card]
    return rows or None


def entry_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of mem0 or Honcho as an entry of ours, any other as it is.

    ValueError for a message of Honcho: it was said, and nobody has concluded anything.
    """
    if isinstance(row.get("memory"), str) and "content" not in row:
        return _entry("mem0", row, row["memory"], of=row.get("user_id"),
                      tags=row.get("categories"), agent=row.get("agent_id"))
    inner = row.get("honcho", row)
    if not isinstance(inner, Mapping):
        return row
    of = inner.get("observed_id") or inner.get("observed")
    if "honcho" in row or ("content" in row and (of or "observer_id" in row)):
        return _entry("honcho", inner, inner.get("content") or inner.get("conclusion"), of=of)
    if {"content", "peer_id", "session_id"} <= row.keys():
        raise ValueError("this is a message and no conclusion; give an export of conclusions")
    return row


def _entry(program: str, row: Mapping[str, Any], content: object, *, of: object,
           tags: object = None, agent: object = None) -> dict[str, Any]:
    made = _past(row.get("created_at") or row.get("updated_at"))
    origin = "#".join(str(part) for part in (of, row.get("id")) if part)
    entry = {"content": content, "source": f"{program}:{origin}" if origin else program,
             "tags": [program, *(tag for tag in (tags if isinstance(tags, list) else ())
                                 if isinstance(tag, str))],
             "agent": agent, "created_at": made}
    return {name: value for name, value in entry.items() if value is not None}

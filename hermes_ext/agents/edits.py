"""Entries in the settings of a host: made, found and taken out again, nothing else touched.

Each kind has `path`, `added(data)`, `removed(data)` and `is_in(data)`; *data* are the bytes of the
file, None where there is none. UnreadableSettings where a file cannot be changed safely.
"""
from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_ext.agents import json_text
from hermes_lite import Refused

__all__ = ["JsonEntries", "TextBlock", "YamlMemory"]

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JsonEntries:
    """Values at keys of a JSON file, and items at the end of lists in it.

    The file stays as it is written, with its comments; only our entries go in and out.
    """
    path: Path
    values: Mapping[Keys, Any] = field(default_factory=dict)
    items: Mapping[Keys, Any] = field(default_factory=dict)

    def added(self, data: bytes | None) -> bytes:
        """Return the file with the entries."""
        with self._naming():
            text = self._text(data)
            for entry in self._entries():
                found = json_text.parse(text)
                if entry.name is not None and json_text.has(found, entry):
                    if _at(found, (*entry.path, entry.name)) == entry.value:
                        continue
                    text = json_text.cut(text, entry)
                if not json_text.has(found, entry) or entry.name is not None:
                    text = json_text.inserted(text, entry)
        return text.encode()

    def removed(self, data: bytes | None) -> bytes | None:
        """Return the file without the entries, and without what held nothing else."""
        if data is None:
            return None
        with self._naming():
            text = self._text(data)
            for entry in self._entries():
                if json_text.has(json_text.parse(text), entry):
                    text = json_text.cut(text, entry)
            return text.encode() if json_text.parse(text) else None

    def is_in(self, data: bytes | None) -> bool:
        """Tell whether every entry is there."""
        try:
            with self._naming():
                content = json_text.parse(self._text(data))
        except Refused:
            return False
        return all(_at(content, keys) == value for keys, value in self.values.items()) and all(
            item in (_at(content, keys) or []) for keys, item in self.items.items())

    def _entries(self) -> list[json_text.Entry]:
        return [*(json_text.Entry(keys[:-1], keys[-1], value)
                  for keys, value in self.values.items()),
                *(json_text.Entry(keys, None, item) for keys, item in self.items.items())]

    def _text(self, data: bytes | None) -> str:
        text = (data or b"").decode("utf-8")
        if not isinstance(json_text.parse(text), dict):
            raise json_text.UnknownForm("it is no JSON object")
        return text

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """Name the file in what is said about it."""
        try:
            yield
        except ValueError as problem:              # UnknownForm, or no UTF-8
            why = str(problem) if isinstance(problem, json_text.UnknownForm) else "it is not UTF-8"
            raise Refused(f"{self.path} cannot be changed safely: {why}; nothing was written. Add "
                          "the entries by hand: docs/agents.md shows them",
                          "unreadable_settings") from None


def _at(content: Any, keys: Keys) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A block of text at the end of a file; *is_there* is a part that no second one may have."""
    path: Path
    text: str
    is_there: str

    def added(self, data: bytes | None) -> bytes:
        """Return the file with the block at its end."""
        if data is None or not data:
            return self.text.encode()
        if self.text.encode() in data:
            return data
        if self.is_there.encode() in data:
            raise Refused(f"{self.path} has an entry of this name already; take it out first",
                          "already_there")
        return data + self._gap(data).encode() + self.text.encode()

    def removed(self, data: bytes | None) -> bytes | None:
        """Return the file without the block; None where nothing else is left."""
        block = self.text.encode()
        if data is None or block not in data:
            return data
        before, _, after = data.partition(block)
        rest = before.removesuffix(b"\n") + after if before.endswith(b"\n\n") else before + after
        return rest or None

    def is_in(self, data: bytes | None) -> bool:
        """Tell whether the block is there as it was written."""
        return data is not None and self.text.encode() in data

    def _gap(self, data: bytes) -> str:
        return "\n" if data.endswith(b"\n") else "\n\n"


@dataclass(frozen=True, slots=True)
class YamlMemory:
    """`memory.provider` in the config.yaml of Hermes Agent."""
    path: Path
    provider: str

    def added(self, data: bytes | None) -> bytes:
        """Return the file with this provider."""
        text = (data or b"").decode("utf-8-sig")
        lines = text.splitlines(keepends=True)
        place = next((n for n, line in enumerate(lines) if re.match(r"memory:\s*(#.*)?$", line)), None)
        if place is None:
            if re.search(r"(?m)^memory:", text):
                raise Refused(f"{self.path} cannot be changed safely: memory is written on one line; "
                              "nothing was written", "unreadable_settings")
            gap = "" if not text or text.endswith("\n") else "\n"
            return f"{text}{gap}memory:\n  provider: {self.provider}\n".encode()
        end = next((n for n in range(place + 1, len(lines)) if re.match(r"[^\s#]", lines[n])),
                   len(lines))
        for number in range(place + 1, end):
            found = re.match(r"(\s+provider:\s*)(.*?)(\r?\n|$)", lines[number])
            if found:
                lines[number] = f"{found[1]}{self.provider}{found[3]}"
                return "".join(lines).encode()
        lines.insert(place + 1, f"  provider: {self.provider}\n")
        return "".join(lines).encode()

    def removed(self, data: bytes | None) -> bytes | None:
        """Return the file without the provider; what stood there before is in the backup alone."""
        text = (data or b"").decode("utf-8-sig")
        line = rf"(?m)^\s+provider:\s*{re.escape(self.provider)}\s*\n"
        rest = re.sub(line, "", text)
        rest = re.sub(r"(?m)^memory:\s*\n(?=\S|\Z)", "", rest)
        return rest.encode() or None

    def is_in(self, data: bytes | None) -> bool:
        """Tell whether this provider is chosen."""
        return data is not None and re.search(
            rf"(?m)^\s+provider:\s*{re.escape(self.provider)}\s*$", data.decode("utf-8", "replace")
        ) is not None

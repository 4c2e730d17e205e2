"""Edit JSON as text: one entry is put in or cut out, and each other byte stays.

Comments, trailing commas and the other liberties of JSON5 are read. `inserted` and `cut` parse what
they made and compare it with what it must mean; a form that they do not understand is an error.
"""
from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Entry", "UnknownForm", "cut", "has", "inserted", "parse"]


class UnknownForm(ValueError):
    """A text that is broken, or cannot be changed safely."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A member of an object, or without a *name* an item of a list, at a *path* of keys."""
    path: tuple[str, ...]
    name: str | None
    value: Any


def parse(text: str) -> Any:
    """Return what a text means, {} for a blank one; UnknownForm where it is broken."""
    return _json_nodes(text).value if text.removeprefix("\ufeff").strip() else {}


def has(data: Any, entry: Entry) -> bool:
    """Tell whether an entry is there: a member of this name, or an item that is the same."""
    for key in entry.path:
        data = data.get(key) if isinstance(data, dict) else None
    if entry.name is not None:
        return isinstance(data, dict) and entry.name in data
    return isinstance(data, list) and entry.value in data


def inserted(text: str, entry: Entry) -> str:
    """Return the text with an entry put in, last in its object or list."""
    at, piece = _insert_json(text, entry)
    after = text[:at] + piece + text[at:]
    if parse(after) != _with(parse(text), entry):
        raise _refused(entry)
    return after


def cut(text: str, entry: Entry) -> str:
    """Return the text without an entry that is there, nor objects around it that are empty then."""
    after = _cut_json(text, entry)
    if parse(after) != _without(parse(text), entry):
        raise _refused(entry)
    for size in range(len(entry.path), 0, -1):
        above = Entry(entry.path[:size - 1], entry.path[size - 1], None)
        place = parse(after)
        for key in entry.path[:size]:
            place = place[key]
        if place:
            break
        after = _cut_json(after, above)
    return after


def _refused(entry: Entry) -> UnknownForm:
    place = ".".join([*entry.path, *([entry.name] if entry.name else [])])
    return UnknownForm(f"{place} stands there in a form that is not understood")


def _with(data: Any, entry: Entry) -> Any:
    """Return the data with an entry put in, as a new value."""
    data = copy.deepcopy(data)
    parents = entry.path if entry.name is not None else entry.path[:-1]
    place = data
    for key in parents:
        if not isinstance(place, dict):
            raise _refused(entry)
        place[key] = place = {} if place.get(key) is None else place[key]
    if not isinstance(place, dict):
        raise _refused(entry)
    if entry.name is not None:
        place[entry.name] = entry.value
        return data
    items = place.get(entry.path[-1]) or []
    if not isinstance(items, list):
        raise _refused(entry)
    place[entry.path[-1]] = [*items, entry.value]
    return data


def _without(data: Any, entry: Entry) -> Any:
    """Return the data without an entry that is there, as a new value."""
    data = copy.deepcopy(data)
    place = data
    for key in entry.path:
        place = place[key]
    if entry.name is not None:
        del place[entry.name]
    else:
        place.remove(entry.value)
    return data


def _nested(entry: Entry, depth: int) -> tuple[str | None, Any]:
    """Return the (key, value) that brings an entry in where its path exists up to *depth*."""
    value = entry.value
    names = [*entry.path[depth:], *([entry.name] if entry.name is not None else [])]
    if entry.name is None and depth < len(entry.path):
        value = [value]
    for name in reversed(names[1:]):
        value = {name: value}
    return (names[0] if names else None), value


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


# -- the text --------------------------------------------------------------------

_BLANK = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.S)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"' r"|'(?:[^'\\\n]|\\.)*'", re.S)
_KEY = re.compile(r"[A-Za-z_$][\w$]*")
_LITERAL = re.compile(r"true|false|null|[-+]?(?:0[xX][0-9a-fA-F]+|Infinity|NaN"
                      r"|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")


@dataclass(slots=True)
class _Node:
    """A value with its place in the text; children are (start of the key or value, key, node)."""
    start: int
    end: int = 0
    value: Any = None
    children: list[tuple[int, str | None, _Node]] = field(default_factory=list)


class _JsonReader:
    """Reads a text into nodes."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def whole(self) -> _Node:
        """Return the node of the whole text."""
        self._skip()
        node = self._value()
        self._skip()
        if self.at != len(self.text):
            raise self._broken()
        return node

    def _skip(self) -> None:
        found = _BLANK.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def _value(self) -> _Node:
        sign = self.text[self.at:self.at + 1]
        if sign in ("{", "["):
            return self._container("}" if sign == "{" else "]")
        node = _Node(self.at)
        node.value = self._string() if sign in ('"', "'") else self._literal()
        node.end = self.at
        return node

    def _container(self, closing: str) -> _Node:
        node, is_object = _Node(self.at), closing == "}"
        node.value = {} if is_object else []
        self.at += 1
        self._skip()
        while self.text[self.at:self.at + 1] != closing:
            start, key = self.at, None
            if is_object:
                key = self._key()
                self._skip()
                self._expect(":")
                self._skip()
            child = self._value()
            node.children.append((start, key, child))
            if is_object:
                node.value[key] = child.value
            else:
                node.value.append(child.value)
            self._skip()
            if self.text[self.at:self.at + 1] != closing:
                self._expect(",")
                self._skip()
        self.at += 1
        node.end = self.at
        return node

    def _key(self) -> str:
        if self.text[self.at:self.at + 1] in ('"', "'"):
            return self._string()
        return self._matching(_KEY)

    def _string(self) -> str:
        raw = self._matching(_STRING)
        if raw[0] == "'":
            raw = '"' + raw[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
        try:
            return str(json.loads(raw, strict=False))
        except ValueError:                         # an escape of JSON5 alone
            return raw

    def _literal(self) -> Any:
        raw = self._matching(_LITERAL)
        try:
            return json.loads(raw)
        except ValueError:                         # a number of JSON5 alone
            return raw

    def _matching(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self._broken()
        self.at = found.end()
        return found[0]

    def _expect(self, sign: str) -> None:
        if self.text[self.at:self.at + 1] != sign:
            raise self._broken()
        self.at += 1

    def _broken(self) -> UnknownForm:
        line = self.text.count("\n", 0, self.at) + 1
        return UnknownForm(f"it is broken at line {line}")


def _json_nodes(text: str) -> _Node:
    try:
        if text.startswith("\ufeff"):              # as long, so that all places stay
            text = " " + text[1:]
        return _JsonReader(text).whole()
    except RecursionError:
        raise UnknownForm("it is nested too deeply") from None


def _child(node: _Node, key: str) -> _Node | None:
    """Return the last member of this name, which is the one that counts."""
    found = [child for _, name, child in node.children if name == key]
    return found[-1] if found else None


def _insert_json(text: str, entry: Entry) -> tuple[int, str]:
    newline = _newline(text)
    if not text.removeprefix("\ufeff").strip():
        whole = json.dumps(_with({}, entry), indent=2, ensure_ascii=False) + "\n"
        return len(text), whole
    root = node = _json_nodes(text)
    depth = 0
    for key in entry.path:
        child = _child(node, key) if isinstance(node.value, dict) else None
        if child is None:
            break
        node, depth = child, depth + 1
    key, value = _nested(entry, depth)
    if not isinstance(node.value, dict if key is not None else list):
        raise _refused(entry)
    unit = _indent_of(text, root.children[0][0]) if root.children else "  "
    is_long = _starts_line(text, node.children[0][0]) if node.children else (
        unit != "" or node is root)
    if node.children:
        indent = _indent_of(text, node.children[0][0])
        gap = newline + indent if is_long else " "
        piece = "," + gap + _rendered_json(key, value, indent, unit, newline, is_long)
        return node.children[-1][2].end, piece
    outer = _line_indent(text, node.start)
    indent = outer + unit
    piece = newline + indent + _rendered_json(key, value, indent, unit, newline, True)
    if "\n" not in text[node.start:node.end]:
        piece += newline + outer
    return node.start + 1, piece


def _rendered_json(key: str | None, value: Any, indent: str, unit: str, newline: str,
                   is_long: bool) -> str:
    lines = json.dumps(value, indent=(unit or 2) if is_long else None, ensure_ascii=False)
    body = lines.replace("\n", newline + indent)
    return body if key is None else f"{json.dumps(key, ensure_ascii=False)}: {body}"


def _starts_line(text: str, at: int) -> bool:
    line = text[text.rfind("\n", 0, at) + 1:at]
    return not line.strip() and "\n" in text[:at]


def _indent_of(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1:at] if _starts_line(text, at) else ""


def _line_indent(text: str, at: int) -> str:
    """Return the white space with which the line of a place begins."""
    found = re.match(r"[ \t]*", text[text.rfind("\n", 0, at) + 1:at])
    return found[0] if found else ""


def _cut_json(text: str, entry: Entry) -> str:
    node: _Node | None = _json_nodes(text)
    for key in entry.path:
        node = _child(node, key) if node is not None else None
    assert node is not None                        # `has` has found it
    for number, (start, key, child) in enumerate(node.children):
        is_ours = key == entry.name if entry.name is not None else child.value == entry.value
        if not is_ours:
            continue
        previous = node.children[number - 1][2].end if number else start
        if re.fullmatch(r",\s*", text[previous:start]):
            return text[:previous] + text[child.end:]
        return _cut_first(text, start, child.end, previous)
    return text


def _cut_first(text: str, start: int, end: int, previous: int) -> str:
    """Cut a child that comes first, or before which a comment stands."""
    after = _BLANK.match(text, end)
    if after is not None and text[after.end():after.end() + 1] == ",":
        return _cut_span(text, start, after.end() + 1)
    comma = _BLANK.match(text, previous)
    if comma is not None and text[comma.end():comma.end() + 1] == ",":
        text = text[:comma.end()] + text[comma.end() + 1:]
        start, end = start - 1, end - 1
    return _cut_span(text, start, end)


def _cut_span(text: str, start: int, end: int) -> str:
    """Cut a span, and its line where nothing else stands on it."""
    line = text.rfind("\n", 0, start) + 1
    rest = re.match(r"[ \t]*\r?(?=\n)", text[end:])
    if line and rest is not None and not text[line:start].strip():
        return text[:line - 1].removesuffix("\r") + text[end + rest.end() - (
            1 if rest[0].endswith("\r") else 0):]
    return text[:start] + text[end:]

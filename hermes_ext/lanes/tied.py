"""Facts tied to a file: the value that the file had when the fact was written.

    hermes_lite.py remember "The service listens on 8080" --tied-to config.json#server.port
    hermes_lite.py remember "Tests run in CI" --tied-to .ci/run:12
    hermes_lite.py stale

FILE stands for the whole file, FILE#key for one value (JSON, TOML, or a line such as `key = value`
or `key: value`), FILE:line for the text of that line, wherever it stands by now. The note keeps
the path, the part and a keyed fingerprint, never the value. A fact whose file says otherwise is stale:
it is listed by `stale`, marked in recall, and not injected; remember it anew with --tied-to.
"""
from __future__ import annotations

import hashlib
import hmac
import importlib
import json
import re
import uuid
from collections.abc import Mapping
from pathlib import Path

from hermes_ext.lanes.authority import Authority
from hermes_lite import NotFound, UsageError

__all__ = ["read_tie", "stale_reason"]

_MOST_BYTES = 5_000_000


def read_tie(word: str, key: bytes) -> dict[str, str]:
    """Return what a note keeps of FILE, FILE#key or FILE:line; NotFound when it is not there."""
    if not word.strip():
        raise UsageError("--tied-to is empty; give FILE, FILE#key or FILE:line")
    name, part = _split(word)
    path = Path(name).absolute()
    try:
        value = _value(path, part)
    except OSError as problem:
        raise NotFound(f"cannot read {name}: {problem.strerror or problem}") from None
    if value is None:
        raise NotFound(f"{name} has no {_words_for(part)}")
    return {"file": str(path), "part": part, "print": _fingerprint(key, value)}


def stale_reason(authority: Authority, key: bytes) -> str | None:
    """Return why a fact no longer agrees with its file, or None. Reads the file.

    A file that cannot be read for lack of permission says nothing.
    """
    tie = authority.data.get("tied")
    if not isinstance(tie, Mapping) or not authority.sealed:
        return None
    name, part = str(tie.get("file")), str(tie.get("part"))
    try:
        value = _value(Path(name), part)
    except FileNotFoundError:
        return f"{name} is no longer there"
    except OSError:
        return None
    if value is None:
        return f"{name} has no {_words_for(part)} any more"
    if _fingerprint(key, value) == tie.get("print"):
        return None
    if part.startswith(":") and _stands_elsewhere(Path(name), key, str(tie.get("print"))):
        return None
    return f"{name} says otherwise" + (f" at {part[1:]}" if part else "")


def _split(word: str) -> tuple[str, str]:
    """Return the file and the part: "" for the whole, "#key" or ":line"."""
    if Path(word).exists():
        return word, ""
    found = re.fullmatch(r"(.+?)(#[^#]+|:\d+)", word)
    return (found[1], found[2]) if found else (word, "")


def _words_for(part: str) -> str:
    return f"line {part[1:]}" if part.startswith(":") else f"key {part[1:]}"


def _value(path: Path, part: str) -> str | None:
    """Return the text that a part of a file has now, None where there is no such part."""
    if path.stat().st_size > _MOST_BYTES:
        raise OSError(None, "it is larger than 5 MB")
    text = path.read_bytes().decode("utf-8-sig", "replace")
    if part.startswith(":"):
        lines, number = text.splitlines(), int(part[1:])
        return lines[number - 1].strip() if 1 <= number <= len(lines) else None
    if part.startswith("#"):
        return _value_of_key(path.suffix.lower(), text, part[1:])
    return text


def _value_of_key(suffix: str, text: str, key: str) -> str | None:
    tree: object = None
    try:
        if suffix == ".json":
            tree = json.loads(text)
        elif suffix == ".toml":
            tree = importlib.import_module("tomllib").loads(text)      # from Python 3.11 on
    except (ValueError, RecursionError, ImportError):
        tree = None
    if tree is None:
        return _value_of_line(text, key.split(".")[-1])
    for name in key.split("."):
        if isinstance(tree, list) and name.isdecimal() and int(name) < len(tree):
            tree = tree[int(name)]
        elif isinstance(tree, dict) and name in tree:
            tree = tree[name]
        else:
            return None
    return tree if isinstance(tree, str) else json.dumps(tree, sort_keys=True, default=str)


def _value_of_line(text: str, key: str) -> str | None:
    """Return the value of the first line `key = value` or `key: value`."""
    line = re.compile(rf"""^\s*(?:export\s+)?["']?{re.escape(key)}["']?\s*[:=]\s*(.*?)\s*$""",
                      re.MULTILINE)
    found = line.search(text)
    return found[1].strip("\"',") if found else None


def _stands_elsewhere(path: Path, key: bytes, print_: str) -> bool:
    """Tell whether a line moved: its text stands at another number."""
    try:
        lines = path.read_bytes().decode("utf-8-sig", "replace").splitlines()
    except OSError:
        return False
    return any(_fingerprint(key, line.strip()) == print_ for line in dict.fromkeys(lines))


def _fingerprint(key: bytes, value: str) -> str:
    """Return a keyed fingerprint as a UUID, which redaction does not take for a secret."""
    digest = hmac.new(key, b"tied\n" + value.encode("utf-8", "replace"), hashlib.sha256).digest()
    return str(uuid.UUID(bytes=digest[:16]))

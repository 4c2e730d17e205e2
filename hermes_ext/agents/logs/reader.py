"""What a reader of logs is made of, and what several readers need."""
from __future__ import annotations

import importlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hermes_lite import DamagedData, MissingPackage, parse_time

__all__ = ["Event", "Log", "Reader", "Said", "database_rows", "document", "home", "millis",
           "parsed", "text_of", "unpacked"]

# Its place in the log, such as a line number, and the event, None where it cannot be read.
Event = tuple[str, "dict[str, Any] | None"]
_SQLITE = b"SQLite format 3\0"


class Said(NamedTuple):
    """What somebody said; *role* is "user" or "assistant", *time* in ms since 1970.

    *id* is the host's own for this message, "" where it gives none. *place* stands in for the
    place of the event, where one event holds many messages.
    """
    role: str
    text: str
    time: int | None = None
    id: str = ""
    place: str = ""


@dataclass(slots=True)
class Log:
    """What a log has said of itself up to the event that is read; a reader keeps it current.

    *project* is a folder, "sha256:…" of one, "" where the log should say it and does not, and
    None for a host without projects. *parent* is the session that this one is a copy of.
    *nested*: what follows was said to a subagent or by a schedule. *known* counts the events that
    this host writes.
    """
    session: str = ""
    project: str | None = ""
    parent: str = ""
    nested: bool = False
    known: int = 0


@dataclass(frozen=True, slots=True)
class Reader:
    """How to read the logs of one host.

    `folders(environ)` are those where its logs lie by default; *names* is a pattern for the path
    of a log below one. `read(event, log)` yields what is said in an event. `rows(path, head)`
    yields the events of a log that is not of JSON lines, and is None where it is; *head* are its
    first bytes. ValueError: it is a database or document of another program.
    """
    name: str
    folders: Callable[[Mapping[str, str]], list[Path]]
    names: str
    read: Callable[[dict[str, Any], Log], Iterable[Said]]
    rows: Callable[[Path, bytes], Iterator[Event] | None] | None = None


def home(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """Return the folder that a variable names, else *default*; a blank one counts as unset."""
    return Path(environ.get(variable, "").strip() or default).expanduser()


def millis(value: object) -> int | None:
    """Return any form of time as milliseconds since 1970; None where it is none."""
    moment = parse_time(value)
    return int(moment.timestamp() * 1000) if moment else None


def text_of(content: object, kinds: Sequence[str] = ("text",)) -> str:
    """Return the text of a message: a string, or blocks of which those of some kinds are text."""
    if isinstance(content, str):
        return content
    parts = [block.get("text") if isinstance(block, dict) and block.get("type", kinds[0]) in kinds
             else block for block in (content if isinstance(content, list) else [content])]
    return "\n".join(part for part in parts if isinstance(part, str))


def document(path: Path) -> object:
    """Return a JSON file that is one document; ValueError where it is none."""
    return parsed(path.read_bytes())


def parsed(data: bytes) -> object:
    """Return what JSON says; ValueError where it is none, or too deep."""
    try:
        return json.loads(data.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def database_rows(path: Path, head: bytes, tables: Sequence[str],
                  query: Callable[[dict[str, set[str]]], str]) -> Iterator[dict[str, Any]] | None:
    """Yield the rows of an SQLite file; None where *head* is of no such file.

    *query* is given {table: its columns}. ValueError when a table is missing, DamagedData when the
    file cannot be read. It is opened to read, beside a host that writes.
    """
    if not head.startswith(_SQLITE):
        return None
    columns: dict[str, set[str]] = {}
    try:
        with closing(_opened(path)) as database:
            for table in tables:
                columns[table] = {row[1] for row in database.execute(
                    f"PRAGMA table_info({table})")}
    except sqlite3.Error as problem:
        raise DamagedData(f"{path}: the database cannot be read ({problem})") from None
    if not all(columns.values()):
        raise ValueError("it has other tables")
    return _rows(path, query(columns))


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
    database.row_factory = sqlite3.Row
    database.text_factory = lambda data: data.decode("utf-8", "replace")
    return database


def _rows(path: Path, query: str) -> Iterator[dict[str, Any]]:
    try:
        with closing(_opened(path)) as database:
            yield from map(dict, database.execute(query))
    except sqlite3.Error as problem:
        raise DamagedData(f"{path}: the database cannot be read ({problem})") from None


def unpacked(data: bytes) -> bytes:
    """Return what one zstd frame holds; ValueError where it is damaged."""
    for name in ("compression.zstd", "backports.zstd", "zstandard"):
        try:
            decompressor = importlib.import_module(name).ZstdDecompressor()
        except ImportError:
            continue
        if name == "zstandard":
            decompressor = decompressor.decompressobj()
        try:
            plain: bytes = decompressor.decompress(data)
        except Exception as problem:               # each package has errors of its own
            raise ValueError(f"damaged: {problem}") from None
        return plain
    raise MissingPackage("this log is compressed and no package reads zstd here: "
                         "pip install backports.zstd, or zstandard")

"""Import and export: write memories to a file to read, keep or move them; read them in again.

    hermes_lite.py export notes.jsonl --room decisions
    hermes_lite.py export notes.zip --format markdown
    hermes_lite.py import notes.jsonl --dry-run

Formats, chosen by the suffix or `--format`; all four carry every field.
    json       an array with one entry a line, laid out like index.json
    jsonl      one entry a line
    csv        a row a memory; tags as "a, b", meta and extra as JSON. A cell that a spreadsheet
               would calculate gets an apostrophe in front, and import takes it off. What a
               spreadsheet changes on saving, such as the form of a date, import cannot undo
    markdown   a note a memory, like store/, in a folder or a .zip; not in stored order

Export writes to standard output, or to FILE: 0600, whole or not at all. A folder must be new
or empty, and no place inside the data root. The text leaves redacted and not encrypted.

Import reads its own exports, an index.json, a backup or prune archive (sealed ones with this
store's key) and any folder of Markdown notes. Each row passes the door of `remember` with every
field: redaction, the systems' gates, near-duplicates, tombstones.
    again      a second import of the same file adds nothing
    ids        stay where they are free and a safe file name on any disk, else new ones
    dates      created_at, access_count and last_accessed stay
    forgotten  what was forgotten, by text or id, stays out and is counted
    bad rows   cost themselves; each is reported with its line, never with its text
    fields     null is a field that was left out; a number, yes, or tags written as a text are
               read as what they mean. Several JSON objects may stand on a line
    rooms      unknown ones become the category's, unknown categories become general
    memory     jsonl, csv, Markdown and our own json are read row by row, other json whole
    links      a link inside a folder is not followed; nothing of a zip is unpacked to disk
    notes      MEMORY.md and USER.md of Hermes, CLAUDE.md, AGENTS.md and GEMINI.md are cut into
               their entries (`host_notes`), each with file, line and the file's date; `--format
               notes` does it with any Markdown file, `--format markdown` keeps one note a file
    programs   objects of mem0 and Honcho are read as such, with their dates; `--verified` keeps
               what comes in as confirmed, so that it does not expire after a week
    tables     a csv without a column `content` is a table of your own: each row becomes the text
               "heading: cell; heading: cell", the headings of its filled cells become its tags
               (a heading such as `password` does not), and its source is "file.csv#line". A
               column `note` or `text` comes first, bare; `tags` and a past `date` are read as such
A chunk of rows is one transaction: after a kill, importing again does the rest. `--dry-run` does
all of it under the store's lock and then undoes it.
"""
from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import re
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from pathlib import Path
from typing import IO

from hermes_ext import host_notes
from hermes_lite import (HermesLite, Memory, NotFound, Operation, Param, Record, Refused,
                         UsageError, check_selectors, pluralize, cut_tags, display_text, from_json,
                         is_ciphertext, is_safe_id, iso, make_folder, parse_time, printable_json,
                         read_markdown, tag_forms, to_json, to_markdown, unseal, utc_now,
                         write_atomic)

__all__ = ["COLUMNS", "Exported", "FORMATS", "Imported", "OPERATIONS", "bring_in", "export"]

FORMATS = ("json", "jsonl", "markdown", "csv")
COLUMNS = tuple(Memory.__dataclass_fields__)
_IMPORTED = (*FORMATS, "notes")
Row = tuple[str, object]     # its place, and its entry or the ValueError that it raised
_CHUNK, _FAULTS = 50, 50
_SUFFIXES = {".json": "json", ".bak": "json", ".jsonl": "jsonl", ".ndjson": "jsonl",
             ".csv": "csv", ".zip": "markdown", ".md": "markdown"}


@dataclass(frozen=True, slots=True)
class Exported(Record):
    """What was written; `text` holds it where it goes to standard output."""
    format: str
    count: int
    file: str | None = None
    text: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Imported(Record):
    """What became of the rows; `faults` pairs the places of the first bad ones with reasons."""
    rows: int
    added: int
    merged: int
    forgotten: int
    bad: int
    new_ids: int
    faults: tuple[tuple[str, str], ...] = ()
    dry_run: bool = False
    warnings: tuple[str, ...] = ()


# -- export -------------------------------------------------------------------

def export(memory: HermesLite, file: str | os.PathLike | None = None, *,
           format: str | None = None, room: str | None = None, category: str | None = None,
           since: str | None = None, tags: Iterable[str] | None = None,
           agent: str | None = None) -> Exported:
    """Write the memories that pass the filters, oldest first; return where and how many.

    Refused is a place inside the data root, and a folder with something in it; UsageError is a
    filter that was given blank.
    """
    if tags is not None:
        tags = cut_tags(tags) if isinstance(tags, str) else [*tags]
    check_selectors(room=room, category=category, since=since, tags=tags, agent=agent)
    file = "-" if file is None else os.fspath(file)
    _check(memory, file, format)
    target = None if file == "-" else Path(file)
    if target and Path(os.path.realpath(target)).is_relative_to(os.path.realpath(memory.root)):
        raise Refused("FILE lies inside the data root, where the store's own files are; choose "
                      "another place", "inside_root")
    name = format or (target and _SUFFIXES.get(target.suffix.lower())) or (
        "markdown" if target and target.is_dir() else "json")
    chosen = {row.id for row in memory.matching(room=room, category=category, since=since,
                                                tags=tags or (), agent=agent)}
    with memory.session.reading() as store:
        rows = [memory.redactor.outgoing(row) for row in store if row.id in chosen]
    warnings = ("the store is encrypted, this export is plain text",) if (
        memory.store.files.cipher) else ()
    if target is None:
        text = _text(name, rows)
        memory.systems.emit("export", [row.id for row in rows])
        return Exported(name, len(rows), None, text, warnings)
    if target.is_file() and target.stat().st_size:
        raise Refused(f"{target} exists already; give another name, or remove it first", "exists")
    if name == "markdown":
        (_write_zip if target.suffix.lower() == ".zip" else _write_folder)(target, rows)
    elif target.is_dir():
        raise UsageError(f"{target} is a folder; give a file name for {name}")
    else:
        mark = "\ufeff" if name == "csv" else ""   # Excel takes csv without it for Latin-1
        write_atomic(target, (mark + _text(name, rows)).encode("utf-8", "replace"))
    memory.systems.emit("export", [row.id for row in rows])
    return Exported(name, len(rows), str(target), None, warnings)


def _check(memory: HermesLite, file: str, format: str | None,
           formats: Sequence[str] = FORMATS) -> None:
    if format not in (None, *formats):
        raise UsageError(f"--format is {memory.redact(str(format))[0]!r}; use one of: "
                         f"{', '.join(formats)}")
    if not file.strip() or "\0" in file:
        raise UsageError("FILE is empty or contains a NUL character; give a name")


def _text(name: str, rows: Iterable[Memory]) -> str:
    if name == "markdown":
        raise UsageError("markdown needs FILE: a folder, or a name that ends in .zip")
    if name != "csv":
        lines = [printable_json(row.entry(), indent=None) for row in rows]
        return "".join(f"{line}\n" for line in lines) if name == "jsonl" else (
            "[\n" + ",\n".join(lines) + "\n]\n")
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_guarded(_cell(getattr(row, column))) for column in COLUMNS])
    return text.getvalue()


def _cell(value: object) -> str:
    """Return a field as the text of a cell; nothing is the empty cell."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        is_plain = all(item and item == item.strip() and "," not in item for item in value)
        return ", ".join(value) if is_plain and not "".join(value[:1]).startswith("[") else (
            to_json(list(value)).decode())
    if isinstance(value, Mapping):
        return to_json(dict(value)).decode() if value else ""
    return "" if value is None else str(value)


_FORMULA = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20'"


def _guarded(cell: str) -> str:
    """Put an apostrophe before what a spreadsheet would calculate, or before another one."""
    return f"'{cell}" if cell[:1] and cell[0] in _FORMULA else cell


def _bare(cell: str) -> str:
    return cell[1:] if cell[:1] == "'" and cell[1:2] and cell[1] in _FORMULA else cell


def _write_zip(target: Path, rows: Iterable[Memory]) -> None:
    """Write one zip with a note a memory; the same memories give the same bytes."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for row in rows:
            entry = zipfile.ZipInfo(f"{row.id}.md")
            entry.external_attr, entry.compress_type = 0o600 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, to_markdown(row).encode("utf-8", "replace"))
    write_atomic(target, data.getvalue())


def _write_folder(target: Path, rows: Iterable[Memory]) -> None:
    """Fill a folder beside the target, then rename it: the target is whole or not there."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise Refused(f"{target} is not an empty folder; choose a new one, or a name that ends "
                      "in .zip", "not_empty")
    target = Path(os.path.realpath(target))
    partial = target.with_name(f".{target.name[:80]}.{os.getpid()}.tmp")
    make_folder(partial)
    try:
        for row in rows:
            write_atomic(partial / f"{row.id}.md", to_markdown(row).encode("utf-8", "replace"),
                         durable=False)
        with contextlib.suppress(FileNotFoundError):
            target.rmdir()
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


# -- reading rows -------------------------------------------------------------

def _read(memory: HermesLite, file: str, format: str | None) -> Iterator[Row]:
    """Yield the rows of a file, a pipe or a folder; NotFound when it cannot be read."""
    path = Path(file)
    most = 8 * memory.config["storage"]["max_text_chars"] + 1_048_576
    if file != "-" and path.is_dir():
        yield from _folder_rows(path, most, format)
        return
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if file == "-" else open(
                path, "rb") as stream:
            yield from _file_rows(memory, stream, path, format=format, most=most)
    except OSError as problem:
        raise NotFound(f"cannot read {path}: {problem.strerror or problem}") from None


def _file_rows(memory: HermesLite, stream: IO[bytes], path: Path, *, format: str | None,
               most: int) -> Iterator[Row]:
    head = stream.peek(64).removeprefix(b"\xef\xbb\xbf").lstrip()
    if is_ciphertext(head):
        try:
            plain = unseal(stream.read(), memory.store.files.cipher)
        except ValueError as problem:
            raise UsageError(f"{path.name} cannot be opened: {problem}") from None
        stream = io.BufferedReader(io.BytesIO(plain))
        head = plain[:64].lstrip()
    form = format or _form(path, head)
    if form == "csv":
        yield from _csv_rows(memory, stream, path.name)
    elif form == "markdown" and head.startswith(b"PK"):
        yield from _zip_rows(stream, most)
    elif form in ("markdown", "notes"):
        yield from _notes(stream.read(most + 1), path, f"{path.stem}.md", most=most, format=format)
    elif form == "jsonl" or head.startswith(b'[\n{"id": "'):
        yield from _line_rows(stream, most)
    else:
        yield from _array_rows(stream.read(), path.name)


def _form(path: Path, head: bytes) -> str:
    by_suffix = _SUFFIXES.get(path.suffix.lower())
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "markdown"
    if by_suffix not in ("json", None):
        return by_suffix
    if head.startswith(b"{") and by_suffix is None:
        return "json" if b'"archived_at"' in head or b"\n" in head[:3] else "jsonl"
    if by_suffix or head[:1] in (b"", b"["):
        return "json" if head else "jsonl"
    if b"content" in head:
        return "csv"
    raise UsageError(f"{path.name} is in no form that import knows; add --format, one of: "
                     f"{', '.join(FORMATS)}")


def _line_rows(stream: IO[bytes], most: int) -> Iterator[Row]:
    """One entry a line; of a json array the brackets and commas are passed over."""
    for number in itertools.count(1):
        line = stream.readline(most)
        if not line:
            return
        if len(line) == most and not line.endswith(b"\n"):
            while (rest := stream.readline(most)) and not rest.endswith(b"\n"):
                pass
            yield f"line {number}", ValueError("longer than any memory may be")
            continue
        text = line.removeprefix(b"\xef\xbb\xbf").strip().removesuffix(b",")
        if text not in (b"", b"[", b"]"):
            yield from _numbered(f"line {number}", _entries(text))


def _numbered(place: str, entries: Iterable[object]) -> Iterator[Row]:
    """Name the place of each entry of a line; of several it counts them."""
    for number, entry in enumerate(entries, 1):
        yield place if number == 1 else f"{place}, object {number}", entry


def _entries(text: bytes) -> Iterator[object]:
    """Yield the JSON value of a text, or each object where several follow each other."""
    whole = _entry(text)
    if not isinstance(whole, ValueError) or not text.startswith(b"{"):
        yield whole
        return
    rest = text.decode("utf-8", "surrogateescape")
    decoder, at = json.JSONDecoder(), 0
    while at < len(rest):
        try:
            entry, at = decoder.raw_decode(rest, at)
        except (ValueError, RecursionError):
            yield whole
            return
        if not isinstance(entry, dict) or re.search("[\ud800-\udfff]", rest[:at]):
            yield whole
            return
        yield entry
        at = re.compile(r"[\s,]*").match(rest, at).end()


def _entry(text: bytes) -> object:
    try:
        return from_json(text)
    except ValueError:
        return ValueError("this is not JSON in UTF-8")


def _array_rows(data: bytes, name: str) -> Iterator[Row]:
    content = _entry(data)
    if isinstance(content, ValueError):            # objects that follow each other are rows too
        several = [*_entries(data.removeprefix(b"\xef\xbb\xbf").strip())]
        content = several if several[1:] else content
    if isinstance(content, dict):
        rows = host_notes.rows_in(content)
        content = [content] if rows is None else rows
    if not isinstance(content, list):
        raise UsageError(f"{name} is not a JSON array of memories")
    for number, entry in enumerate(content, 1):
        yield f"entry {number}", entry


def _csv_rows(memory: HermesLite, stream: IO[bytes], file: str) -> Iterator[Row]:
    """One entry a row; the first row names the columns, commas, semicolons or tabs part them."""
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    limit = csv.field_size_limit(sys.maxsize)
    try:
        first, above = text.readline(), 1          # lines above the rows
        # Excel may write its separator into a line of its own.
        separator_line = re.fullmatch(r"\"?sep=(.)\"?\s*", first, re.IGNORECASE)
        if separator_line:
            first, above = text.readline(), 2
        mark = separator_line[1] if separator_line else max(",;\t", key=first.count)
        heads = [cell.strip() for cell in next(csv.reader([first], delimiter=mark), [])]
        names = [head.lower() for head in heads]
        if not any(names) or re.search("[\ud800-\udfff]", first):
            raise UsageError("the first row names no columns; save the table as csv in UTF-8")
        tags = None if "content" in names else [_heading_tag(memory, head) for head in heads]
        reader = csv.reader(text, delimiter=mark)
        while True:
            place = f"line {reader.line_num + above + 1}"
            try:
                cells = next(reader)
                if cells and tags is not None:
                    yield place, _from_table(heads, tags, cells, f"{file}#{place[5:]}",
                                             zone=memory.config.zone)
                elif cells:
                    yield place, _from_cells(names, cells)
            except StopIteration:
                return
            except csv.Error as problem:
                yield place, ValueError(str(problem))
    finally:
        csv.field_size_limit(limit)
        text.detach()


def _heading_tag(memory: HermesLite, head: str) -> str:
    """Return the tag that a column's heading makes; "" for a blank one or one of a secret."""
    tags = tag_forms("_".join(re.split(r"[\W_]+", head)).strip("_"))
    with contextlib.suppress(Refused):
        memory.redactor.check_tags(tags)
        return "".join(tags[:1])
    return ""


_COLUMN_KINDS = {name: kind for kind, names in {
    "text": "text note notes memory notiz notizen 内容 笔记",
    "tags": "tags labels schlagworte 标签",
    "created_at": "created created_at date datum 日期"}.items() for name in names.split()}


def _from_table(heads: list[str], tags: list[str], cells: list[str], source: str, *,
                zone: tzinfo) -> object:
    """Return the entry of a row of any table: its text is "heading: cell; heading: cell"."""
    if len(cells) > len(heads):
        return ValueError("there are more cells than columns")
    if re.search("[\ud800-\udfff]", "".join(cells)):
        return ValueError("not UTF-8 text; save the table as csv in UTF-8")
    entry: dict[str, object] = {"source": source}
    said, own = [], []
    for head, tag, cell in zip(heads, tags, (" ".join(_bare(c).split()) for c in cells)):
        kind = _COLUMN_KINDS.get(head.lower())
        if kind == "tags":
            own += re.split("[,;，、]", cell)
            continue
        made = parse_time(cell, zone=zone) if kind == "created_at" else None
        if made and made <= utc_now():             # a day to come is no day of making
            entry["created_at"] = iso(made)
        if cell and kind == "text":
            said.insert(0, ("", "", cell))
        elif cell:
            said.append((head, tag, cell))
    if not said:
        return ValueError("the row is empty")
    return {**entry, "content": "; ".join(f"{head}: {cell}" if head else cell
                                          for head, _, cell in said),
            "tags": [*own, *(tag for _, tag, _ in said if tag)]}


def _from_cells(names: list[str], cells: list[str]) -> object:
    """Return the entry of a row, or the ValueError that names its bad column."""
    entry: dict[str, object] = {}
    extra: dict[str, object] = {}
    if len(cells) > len(names):
        return ValueError("there are more cells than columns")
    for name, cell in zip(names, map(_bare, cells)):
        try:
            if re.search("[\ud800-\udfff]", cell):
                raise ValueError
            if name in ("meta", "extra") and cell:
                value = from_json(cell.encode())
                if not isinstance(value, dict):
                    raise ValueError
                (extra.update if name == "extra" else entry.setdefault("meta", {}).update)(value)
            elif cell and name:
                entry[name] = _value(name, cell)
        except ValueError:
            return ValueError(f"the column {name} cannot be read")
    return {**extra, **entry}


def _value(name: str, cell: str) -> object:
    if name in ("importance", "access_count"):
        return int(cell)
    if name == "execution_verified":
        return {"true": True, "1": True, "yes": True}.get(cell.lower(), False)
    if name in ("tags", "redacted"):
        return from_json(cell.encode()) if cell.startswith("[") else re.split(r",\s*", cell)
    return cell


def _folder_rows(folder: Path, most: int, format: str | None) -> Iterator[Row]:
    """Every .md file below a folder, by name; hidden folders and links are passed over."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path = Path(place, name)
            if path.suffix.lower() != ".md":
                continue
            shown = path.relative_to(folder).as_posix()
            if path.is_symlink() or not path.is_file():
                yield shown, ValueError("a link, it is not followed")
                continue
            try:
                with open(path, "rb") as stream:
                    data = stream.read(most + 1)
                yield from _notes(data, path, shown, most=most, format=format)
            except OSError as problem:
                yield shown, ValueError(problem.strerror or "it cannot be read")


def _zip_rows(stream: IO[bytes], most: int) -> Iterator[Row]:
    """Every .md file in a zip, read in memory up to the size that a memory may have."""
    try:
        archive = zipfile.ZipFile(stream if stream.seekable() else io.BytesIO(stream.read()))
    except zipfile.BadZipFile:
        raise UsageError("the zip file is damaged") from None
    for info in archive.infolist():
        if info.is_dir() or not info.filename.lower().endswith(".md"):
            continue
        try:
            with archive.open(info) as note:
                yield info.filename, _note(note.read(most + 1), info.filename, most)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError):
            yield info.filename, ValueError("damaged, locked or packed in an unknown way")


def _notes(data: bytes, path: Path, name: str, *, most: int, format: str | None
           ) -> Iterator[Row]:
    """Yield the one note of a Markdown file, or those of a host that are in it."""
    text = data.decode("utf-8-sig", "replace")
    is_whole = len(data) <= most and "\ufffd" not in text
    if is_whole and (format == "notes" or (
            format is None and host_notes.is_host_note(path.name, text))):
        yield from host_notes.notes_in(path, text)
    else:
        yield name, _note(data, name, most)


def _note(data: bytes, name: str, most: int) -> object:
    """Return the entry of one note; of a foreign one, its file name as the source."""
    if len(data) > most:
        return ValueError("longer than any memory may be")
    try:
        entry = read_markdown(data.decode("utf-8"))
    except UnicodeDecodeError:
        return ValueError("not UTF-8 text; save it as UTF-8")
    except ValueError as problem:
        return problem
    return entry if "id" in entry else {"source": name[:-3], **entry}


# -- import -------------------------------------------------------------------

class _Undo(Exception):
    """Ends the transaction of a dry run."""


class _Intake:
    """Takes rows in, one after the other, and counts what became of them."""
    rows = added = merged = forgotten = bad = new_ids = 0

    def __init__(self, memory: HermesLite, agent: str | None, verified: bool) -> None:
        self.memory, self.agent, self.verified = memory, agent, verified
        self.faults: list[tuple[str, str]] = []
        self._moved: dict[str, str] = {}           # ids of the file that are others here

    def take(self, place: str, entry: object) -> None:
        """Admit one row; whatever is wrong with it costs this row alone."""
        self.rows += 1
        try:
            record = _record(entry)
            result = self.memory.admit(replace(
                record, agent=record.agent or self.agent,
                execution_verified=record.execution_verified or self.verified,
                supersedes=self._moved.get(record.supersedes, record.supersedes)))
        except ValueError as problem:
            if getattr(problem, "reason_code", "") == "forgotten":
                self.forgotten += 1
            else:
                self._fault(place, problem)
        else:
            self.added += result.created
            self.merged += result.merged
            if record.id != result.id:
                self.new_ids += result.created
                self._moved[record.id] = result.id

    def _fault(self, place: str, problem: ValueError) -> None:
        self.bad += 1
        if len(self.faults) < _FAULTS:
            stem, dot, suffix = place.partition(".md")     # redacted without: X.md is a file
            self.faults.append((self.memory.redact(stem)[0] + dot + suffix,
                                self.memory.redact(str(problem))[0]))


def _record(entry: object) -> Memory:
    """Read an entry; an id that is missing or unsafe is left for the store to draw."""
    if isinstance(entry, ValueError):
        raise entry
    if not isinstance(entry, Mapping):
        raise ValueError("this is not a memory: an object with `content`")
    entry = host_notes.entry_of(entry)
    wanted = entry.get("id")
    is_kept = isinstance(wanted, str) and is_safe_id(wanted)
    fitted = {name: _fitted(name, value) for name, value in entry.items()
              if value is not None or name == "content"}
    record = Memory.from_entry({**fitted, "id": wanted if is_kept else "new"})
    return replace(record, id=record.id if is_kept else "",
                   access_count=max(record.access_count, 0))


def _fitted(name: str, value: object) -> object:
    """Return what another program wrote in the type of its field, where it can only mean that."""
    if name in ("importance", "access_count") and type(value) in (str, float):
        with contextlib.suppress(ValueError, OverflowError):
            return round(float(value))
    elif name == "execution_verified" and type(value) in (str, int):
        return {"true": True, "yes": True, "1": True, "false": False, "no": False,
                "0": False}.get(str(value).strip().lower(), value)
    elif name == "tags" and isinstance(value, str):
        return [*cut_tags(value)]
    elif name == "redacted" and isinstance(value, str):
        return [label for part in value.split(",") if (label := part.strip())]
    elif name in ("tags", "redacted") and isinstance(value, list):
        return [item for item in value if item is not None]
    elif name in ("source", "agent", "status", "supersedes", "last_accessed", "expires_at") and (
            type(value) in (int, float)):
        return str(value)
    return value


def bring_in(memory: HermesLite, file: str | os.PathLike, *, format: str | None = None,
             dry_run: bool = False, agent: str | None = None, verified: bool = False) -> Imported:
    """Import a file or folder; bad rows are counted, and UsageError when there are no others.

    *agent* becomes the agent of the rows that name none; *verified* keeps all as confirmed.
    """
    file = os.fspath(file)
    _check(memory, file, format, _IMPORTED)
    rows, intake = _read(memory, file, format), _Intake(memory, agent, verified)
    if dry_run:
        with contextlib.suppress(_Undo), memory.batch():
            for place, entry in rows:
                intake.take(place, entry)
            raise _Undo
        memory.store.refresh()
    else:
        while chunk := list(itertools.islice(rows, _CHUNK)):
            with memory.batch():
                for place, entry in chunk:
                    intake.take(place, entry)
    if intake.rows and intake.bad == intake.rows:
        place, reason = intake.faults[0]
        raise UsageError(f"no row could be read; {place}: {reason}")
    return Imported(intake.rows, intake.added, intake.merged, intake.forgotten, intake.bad,
                    intake.new_ids, tuple(intake.faults), dry_run,
                    (f"{intake.bad} of {intake.rows} rows were left out",) if intake.bad else ())


def _show_exported(result: Exported) -> list[str]:
    return [f"{pluralize(result.count, 'memory', 'memories')} in {display_text(result.file)} "
            f"({result.format})"] if (
        result.text is None) else result.text.removesuffix("\n").split("\n")


def _show_imported(result: Imported) -> Iterator[str]:
    for place, reason in result.faults:
        yield f"{display_text(place)}: left out: {display_text(reason)}"
    verb = "would be added" if result.dry_run else "added"
    yield (f"{pluralize(result.rows, 'row')}: {result.added} {verb}, {result.merged} merged, "
           f"{result.forgotten} forgotten before and left out, {result.bad} bad"
           + (f", {result.new_ids} given a new id" if result.new_ids else ""))


_FORMAT = Param("format", str, f"one of {', '.join(FORMATS)} (default: by the suffix)")
OPERATIONS = (
    Operation("export", "write memories to a file or to standard output",
              lambda memory, file, tags, **more: export(memory, file, tags=tags or None, **more),
              (
        Param("file", Path, "where to; none, or -, is standard output", positional=True),
        _FORMAT, Param("room", str, "only this room"), Param("category", str, "only this one"),
        Param("since", str, "from this date on, or 12h, 1d, 2w"),
        Param("tags", str, "only what has all these tags", (), repeated=True),
        Param("agent", str, "only what this agent wrote")), _show_exported, scope="admin"),
    Operation("import", "bring memories in from a file or a folder of notes",
              lambda memory, file, yes, **more: bring_in(memory, file, **more), (
        Param("file", Path, "an export, index.json, backup, or folder; - is standard input",
              positional=True, required=True),
        Param("format", str, f"one of {', '.join(_IMPORTED)} (default: by name and suffix)"),
        Param("agent", str, "the agent of the rows that name none"),
        Param("verified", bool, "keep what comes in as confirmed", False),
        Param("dry_run", bool, "only show what would come in", False),
        Param("yes", bool, "changes nothing: import only adds, and never asks", False)),
        _show_imported, writes=True, scope="admin"),
)

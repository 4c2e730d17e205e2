#!/usr/bin/env python3
"""Measure the archive beside SQLite alone and the store of files, in one run.

usage: archive.py [--sizes 1000,100000] [--full] [--singles 200] [--files 100000] [--keep DIR]
                  [--out FILE.json]

The texts are those of bench/notes.py; each memory has two tags. Measured: one durable write, a
batch (until it is on the disk, and until it is in the indexes), recall by words and by tags, a
recall as a process of its own with its memory, bytes on disk. Beside it: a bare INSERT + COMMIT of
the same row into a table of as many; FTS5 over the same texts as it cuts words itself (unicode61:
no Chinese words), by trigrams, and over the core's own tokens, each answering with the best 50 by
bm25(); the store of files, up to --files memories.
What is compared is asked in turns, so that a busy machine troubles all alike. --full adds
1,000,000, which takes about an hour and 8 GB. With --keep the stores stay, and a later run asks
them again without filling them.
"""
from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HOME), str(HOME / "bench")]

import hermes_lite as core                                                        # noqa: E402
from notes import Notes                                                           # noqa: E402
from speed import process, spread, timed                                          # noqa: E402
from hermes_ext.archive.store import ArchiveStore                                       # noqa: E402

__all__ = ["main", "measure"]
_BATCH, _DEPTH = 10_000, 50
CODE = ("import sys; sys.path.insert(0, sys.argv.pop(1)); import hermes_lite; "
        "sys.exit(hermes_lite.main())")


def memories(notes: Notes, size: int) -> Iterator[core.Memory]:
    """Yield different memories, each with two tags of Zipf frequency."""
    for number in range(size):
        draw = notes.rng.random
        tags = f"project_{int(300 ** draw())}", f"client_{int(20_000 ** draw())}"
        yield core.Memory(f"mem_{number:08}", notes.text(), tags=tags,
                          created_at=f"20{10 + number % 16:02}-03-{number % 28 + 1:02}"
                                     "T08:00:00+00:00")


def fill(store: core.Store, rows: Sequence[core.Memory]) -> float:
    """Write in batches; return memories a second."""
    start = time.perf_counter()
    for at in range(0, len(rows), _BATCH):
        with store.transaction():
            for row in rows[at:at + _BATCH]:
                store.put(row)
    return len(rows) / (time.perf_counter() - start)


class Fts:
    """FTS5 over some wording of the texts."""

    def __init__(self, path: Path, tokenizer: str, wording: Callable[[str], str],
                 ask: Callable[[str], list[str]]) -> None:
        self.base, self.wording, self.words = sqlite3.connect(path), wording, ask
        self.base.execute("create virtual table if not exists notes using "
                          f"fts5(text, tokenize='{tokenizer}')")

    def fill(self, rows: Sequence[core.Memory]) -> None:
        """Write all texts in one transaction."""
        with self.base:
            self.base.executemany("insert into notes values (?)",
                                  ((self.wording(row.content),) for row in rows))

    def ask(self, query: str) -> int:
        """Search for any of the words; return how many were found."""
        words = " OR ".join(f'"{word}"' for word in self.words(query))
        return len(self.base.execute(
            "select rowid, bm25(notes) from notes where notes match ? order by bm25(notes) "
            f"limit {_DEPTH}", (words,)).fetchall()) if words else 0


def fts_rivals(folder: Path) -> dict[str, Fts]:
    """Return the three ways to have FTS5 read these texts."""
    tokens = functools.partial(core.tokenize_terms, stem=True, grams=2, cues=True)
    as_word = functools.cache(lambda term: "t" + term.encode().hex())

    def asked(query: str) -> list[str]:
        return [*map(as_word, dict.fromkeys(core.query_terms(tokens(query))))]

    def cut(query: str) -> list[str]:
        return query.replace('"', "").split()
    return {"fts5_words": Fts(folder / "unicode61.db", "unicode61", str, cut),
            "fts5_trigram": Fts(folder / "trigram.db", "trigram", str, cut),
            "fts5_tokens": Fts(folder / "tokens.db", "unicode61", lambda text: " ".join(
                map(as_word, tokens(text))), asked)}


def open_bare(folder: Path) -> sqlite3.Connection:
    """Return a plain table in WAL mode, each commit synced."""
    base = sqlite3.connect(folder / "bare.db", isolation_level=None)
    base.execute("pragma journal_mode=wal")
    base.execute("pragma synchronous=full")
    base.execute("create table if not exists memory (id text primary key, entry text)")
    return base


def filled(root: Path, folder: Path, rows: Sequence[core.Memory], *, rivals: Iterable[Fts],
           files: bool) -> dict[str, object]:
    """Fill every store; return what that took, and the size of the archive."""
    root.mkdir()
    store = ArchiveStore(root, core.load_config(root))
    found = {"size": len(rows), "batch_per_s": round(fill(store, rows)),
             "index_per_s": round(1e3 * len(rows) / timed(store.checkpoint))}
    store.close()
    found["bytes"] = store.files.sizes()["records"]
    for rival in rivals:
        rival.fill(rows)
    with contextlib.closing(open_bare(folder)) as base:
        base.execute("begin")
        base.executemany("insert into memory values (?, ?)", (
            (row.id, core.to_json(row.entry()).decode()) for row in rows))
        base.execute("commit")
    if files:
        plain = core.FileStore(folder / "files", core.load_config(root))
        found["files_batch_per_s"] = round(fill(plain, rows))
        plain.search.words("warm", 3, accept=None)
        plain.close()
    return found


def measure_writes(memory: core.HermesLite, base: sqlite3.Connection, *, notes: Notes,
                   count: int) -> dict[str, dict[str, float]]:
    """Write one by one, in turns: the store, a bare insert, and the whole of remember."""
    store = memory.store
    times: dict[str, list[float]] = {"put": [], "bare": [], "remember": []}
    for _ in range(count):
        row = core.Memory(f"mem_single_{time.time_ns()}", notes.text(),
                          tags=("project_1", "single"),
                          created_at="2026-08-17T03:31:06+00:00")
        entry, text = core.to_json(row.entry()).decode(), notes.text()

        def put() -> None:
            with store.transaction():
                store.put(row)

        def insert() -> None:
            base.execute("begin immediate")
            base.execute("insert into memory values (?, ?)", (row.id, entry))
            base.execute("commit")
        times["put"].append(timed(put))
        times["bare"].append(timed(insert))
        times["remember"].append(timed(lambda: memory.remember(text)))
    return {name: spread(row) for name, row in times.items()}


def measure_questions(asks: dict[str, Callable[[str], object]],
                      queries: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Ask every query of each in turn, after a first round that warms caches.

    `ask` is of all queries, `ask_latin` of those in English and German, where FTS5 as it is finds
    what the others find.
    """
    times: dict[str, dict[str, float]] = {name: {} for name in asks}
    for query in queries[:20]:
        for ask in asks.values():
            ask(query)
    for query in queries:
        for name, ask in asks.items():
            times[name][query] = timed(lambda: ask(query))
    return {"ask": {name: spread([*row.values()]) for name, row in times.items()},
            "ask_latin": {name: spread([ms for query, ms in row.items() if max(query) < "\u2e80"])
                          for name, row in times.items()}}


def measure_cold(root: Path, queries: Sequence[str], count: int) -> dict[str, float]:
    """Run a recall as a process of its own; the first is not counted."""
    runs = [process([sys.executable, "-c", CODE, str(HOME), "--root", str(root), "recall", query],
                    {"PYTHONDONTWRITEBYTECODE": ""}) for query in queries[:count + 1]][1:]
    return {"ms": round(statistics.median(ms for ms, _ in runs), 1),
            "rss_mb": round(max(rss for _, rss in runs) / 1e6, 1)}


def measure(size: int, folder: Path, *, singles: int, files: int) -> dict[str, object]:
    """Measure everything at one size."""
    notes = Notes(11)
    rows, root = list(memories(notes, size)), folder / "archive"
    config, done = core.load_config(root), folder / "filled.json"
    rivals = fts_rivals(folder)
    if done.exists():
        found: dict[str, object] = json.loads(done.read_text())
    else:
        found = filled(root, folder, rows, rivals=rivals.values(), files=size <= files)
        done.write_text(json.dumps(found))
    queries = [notes.query(notes.rng.choice(rows).content) for _ in range(200)]
    rng = random.Random(3)
    tags = [rng.choice(rows).tags for _ in range(200)]
    del rows
    memory = core.HermesLite(root, store=ArchiveStore(root, config))
    base = open_bare(folder)
    asks: dict[str, Callable[[str], object]] = {
        "words": lambda q: memory.store.search.words(q, _DEPTH, accept=None),
        "recall": memory.recall, **{name: rival.ask for name, rival in rivals.items()}}
    if size <= files:
        plain = core.FileStore(folder / "files", config)
        plain.refresh()
        asks["files_words"] = lambda q: plain.search.words(q, _DEPTH, accept=None)
    found.update(measure_questions(asks, queries))
    found["tags"] = spread([timed(lambda pair=pair: memory.recall(tags=pair)) for pair in tags])
    found["one_tag"] = spread([timed(lambda t=one: memory.recall(tags=[t])) for _, one in tags])
    found["write"] = measure_writes(memory, base, notes=notes, count=singles)
    memory.close()
    if size <= files:
        plain.close()
        found["files_cold"] = measure_cold(folder / "files", queries, 7)
    found["cold"] = measure_cold(root, queries, 9)
    found["fts_bytes"] = {path.stem: path.stat().st_size for path in sorted(folder.glob("*.db"))}
    return found


def table(results: Sequence[dict]) -> Iterator[str]:
    """Return the lines of the Markdown table: a row a figure, a column a size."""
    def two(row: dict) -> str:
        return f"{row['p50_ms']:.2f} / {row['p95_ms']:.2f}"

    def against(name: str, which: str = "ask") -> Callable[[dict], str]:
        return lambda r: (f"{two(r[which][name])}; words take "
                          f"{r[which]['words']['p50_ms'] / r[which][name]['p50_ms']:.2f} x"
                          ) if name in r[which] else "not measured"

    def cold(name: str) -> Callable[[dict], str]:
        return lambda r: "{ms:.0f} ms, {rss_mb:.0f} MB".format(**r[name]) if name in r else (
            "not measured")

    rows: list[tuple[str, Callable[[dict], str]]] = [
        ("one write, durable: p50 / p95 ms", lambda r: two(r["write"]["put"])),
        ("a bare INSERT + COMMIT", lambda r: f"{two(r['write']['bare'])}; one write takes "
         f"{r['write']['put']['p50_ms'] / r['write']['bare']['p50_ms']:.1f} x"),
        ("remember (redaction, conflicts …)", lambda r: two(r["write"]["remember"])),
        ("batch, memories a second", lambda r: f"{r['batch_per_s']:,}; "
         f"{r['write']['put']['p50_ms'] * r['batch_per_s'] / 1e3:.1f} x as fast as one by one"),
        ("… and into the indexes", lambda r: f"{r['index_per_s']:,}"),
        ("words, best 50: p50 / p95 ms", lambda r: two(r["ask"]["words"])),
        ("FTS5 over the same tokens", against("fts5_tokens")),
        ("FTS5 trigram", against("fts5_trigram")),
        ("FTS5 unicode61, no Chinese words", against("fts5_words")),
        ("the store of files", against("files_words")),
        ("English and German questions: words", lambda r: two(r["ask_latin"]["words"])),
        ("FTS5 unicode61 on these", against("fts5_words", "ask_latin")),
        ("recall, whole", lambda r: two(r["ask"]["recall"])),
        ("recall by two tags", lambda r: two(r["tags"])),
        ("recall by one tag", lambda r: two(r["one_tag"])),
        ("recall as a process", cold("cold")),
        ("… of the store of files", cold("files_cold")),
        ("disk MB; a memory", lambda r: f"{r['bytes'] / 1e6:,.0f}; "
         f"{r['bytes'] / r['size']:,.0f} bytes"),
        ("batch into files", lambda r: f"{r['files_batch_per_s']:,}" if "files_batch_per_s" in r
         else "not measured")]
    yield "| | " + " | ".join(f"{r['size']:,}" for r in results) + " |"
    yield "|---" * (len(results) + 1) + "|"
    for label, cell in rows:
        yield f"| {label} | " + " | ".join(cell(result) for result in results) + " |"


def main() -> int:
    """Measure, write the JSON file, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="1000,100000")
    parser.add_argument("--full", action="store_true", help="1,000,000 as well")
    parser.add_argument("--singles", type=int, default=200, help="writes one by one")
    parser.add_argument("--files", type=int, default=100_000,
                        help="measure the store of files up to this size")
    parser.add_argument("--keep", type=Path,
                        help="make the stores in this folder, or ask those that are there")
    parser.add_argument("--out", type=Path, default=HOME / "bench/results/archive.json")
    options = parser.parse_args()
    os.environ.update(HERMES_VECTOR_BACKEND="local", HERMES_RERANK="off")
    about = {"python": platform.python_version(), "machine": platform.machine(),
             "cores": os.cpu_count(), "sqlite": sqlite3.sqlite_version}
    results = []
    for size in [*map(int, options.sizes.split(",")), *([1_000_000] if options.full else ())]:
        with contextlib.ExitStack() as stack:
            if options.keep:
                folder = options.keep / f"archive{size}"
                folder.mkdir(parents=True, exist_ok=True)
            else:
                folder = Path(tempfile.mkdtemp(prefix=f"archive{size}_"))
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
            results.append(measure(size, folder, singles=options.singles, files=options.files))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
    print("\n".join(table(results)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

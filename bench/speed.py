#!/usr/bin/env python3
"""Measure how fast the core is, beside what the field has, on one machine, in one run.

usage: speed.py [--sizes 1000,10000,100000] [--singles 200] [--colds 9] [--smoke] [--out DIR]

Each size has a store of its own, filled in batches of 1,000 with the memories of notes.py.
Measured: the keyword index beside rank_bm25, bm25s, FTS5 and tantivy (engines.py); the search for
duplicates beside a comparison with every text; one write and one question in a running process; a
batch; the same with every system of hermes_ext switched on, in both stores (up to 10,000
memories); one command as a process of its own beside `json.load` of the same index.json; the memory
of that process; bytes on disk; a JSON file written again for each memory, SQLite FTS5 on disk and
grep for comparison. speed.json holds everything, speed.png how each figure grows (with
matplotlib), standard output the table of README.md. Read ratios: machines differ.

--smoke measures 300 memories in some seconds, checks the answers and ratios far from the limit,
writes nothing, and ends with 1 when one does not hold.
"""
from __future__ import annotations

import argparse
import compileall
import json
import math
import os
import platform
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HOME), str(HOME / "bench")]

from engines import ENGINES  # noqa: E402
from notes import Notes  # noqa: E402

__all__ = ["main", "measure"]
Row = dict[str, object]


def timed(call: Callable[[], object]) -> float:
    """Return the milliseconds of one call."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def each(call: Callable[..., object], items: Iterable[object]) -> dict[str, float]:
    """Time a call for each item; return p50 and p95 in milliseconds."""
    return spread([timed(lambda: call(item)) for item in items])


def spread(times: list[float]) -> dict[str, float]:
    """Return p50 and p95 of milliseconds."""
    ordered = sorted(times)
    return {"p50_ms": round(statistics.median(ordered), 3),
            "p95_ms": round(ordered[int(len(ordered) * 0.95)], 3)}


# Run by a small process of its own: the peak of a child starts at the size of its parent.
LAUNCH = """
import os, sys, time
start = time.perf_counter()
child = os.fork()
if not child:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.execvp(sys.argv[1], sys.argv[1:])
status, usage = os.wait4(child, 0)[1:]
print((time.perf_counter() - start) * 1e3, usage.ru_maxrss * 1024, status)
"""


def process(words: list[str], env: dict[str, str] | None = None, *,
            least: int = 0) -> tuple[float, int]:
    """Run a command to its end; return (milliseconds, peak resident bytes).

    An exit code above *least* is an error of this script.
    """
    done = subprocess.run([sys.executable, "-S", "-c", LAUNCH, *words], capture_output=True,
                          text=True, env={**os.environ, **(env or {})}, check=True,
                          cwd=tempfile.gettempdir())       # not beside another hermes_lite.py
    elapsed, peak, status = done.stdout.split()
    if os.waitstatus_to_exitcode(int(status)) > least:
        raise SystemExit(f"{words}: {done.stderr}")
    return float(elapsed), int(peak)


def on_disk(root: Path) -> dict[str, dict[str, int]]:
    """Return bytes by part of the data root: as written, and as blocks of the file system."""
    sizes: dict[str, dict[str, int]] = {}
    for path in root.rglob("*"):
        if path.is_file():
            status = path.stat()
            for name in (path.relative_to(root).parts[0], "total"):
                row = sizes.setdefault(name, {"bytes": 0, "du": 0, "files": 0})
                row["bytes"] += status.st_size
                row["du"] += status.st_blocks * 512
                row["files"] += 1
    return sizes


def measure_keywords(size: int, singles: int) -> Row:
    """Build, ask, add and remove with each engine that is installed."""
    notes, found = Notes(5), {}
    texts, more = ([notes.text() for _ in range(count)] for count in (size, 100))
    queries = [notes.query(notes.rng.choice(texts)) for _ in range(singles)]
    gone = random.Random(3).sample(range(size), min(100, size // 3))
    for kind in ENGINES:
        engine = kind()
        try:
            build = timed(lambda: engine.build(texts))
        except ImportError:
            continue
        engine.search(queries[0])
        few = getattr(engine, "slow", False) and size > 20_000
        row: Row = {"build_ms": round(build), "query": each(engine.search, queries[:30 if few else
                                                                                   singles])}
        if hasattr(engine, "add"):
            row["add"] = each(lambda pair: engine.add(*pair), enumerate(more, size))
            row["remove"] = each(engine.remove, gone)
        found[engine.name] = row
    return found


def measure_duplicates(size: int, singles: int) -> Row:
    """Look for the duplicate of texts with a typo: by the index, and by comparing with all."""
    from hermes_lite import BM25Index, differs_in_fact, find_duplicate, similarity, text_labels
    notes, index = Notes(6), BM25Index()
    texts = {str(key): notes.text() for key in range(size)}
    for key, text in texts.items():
        index.add(key, text, text_labels(text))
    asked = [text[:40] + text[41:] for text in notes.rng.sample(list(texts.values()), singles)]

    def brute(query: str) -> str | None:
        found = [(similarity(query, text), -int(key)) for key, text in texts.items()
                 if not differs_in_fact(query, text)]
        ratio, key = max(found, default=(0.0, 0))
        return str(-key) if ratio >= 0.85 else None

    few = asked[:3 if size <= 10_000 else 0]
    return {"index": each(lambda query: find_duplicate(index, query, texts.get), asked),
            "brute": each(brute, few) if few else None,
            "same": all(brute(query) == find_duplicate(index, query, texts.get) for query in few)}


def measure_core(root: Path, notes: Notes, size: int, singles: int) -> Row:
    """Fill a store of *size* memories in batches, then write and ask one by one."""
    import hermes_lite
    texts, merged, conflicts, rates = [notes.text() for _ in range(size)], 0, 0, []
    with hermes_lite.HermesLite(root) as memory:
        for at in range(0, size, 1000):
            start = time.perf_counter()
            with memory.batch():
                for text in texts[at:at + 1000]:
                    result = memory.remember(text)
                    merged += result.merged
                    conflicts += len(result.conflicts)
            rates.append(min(1000, size - at) / (time.perf_counter() - start))
        first = timed(lambda: memory.recall("database"))
        written = each(lambda _: memory.remember(notes.text()), range(singles))
        queries = [notes.query(notes.rng.choice(texts)) for _ in range(singles)]
        asked = each(memory.recall, queries)
        after = [notes.rng.choice(texts) for _ in range(50)]
        found = sum(any(hit.content == text for hit in memory.recall(notes.query(text), top_k=5))
                    for text in after)
        closed = timed(memory.close)
    return {"batch_per_s": round(size / sum(min(1000, size) / rate for rate in rates)),
            "last_batch_per_s": round(rates[-1]), "merged": merged, "conflicts": conflicts,
            "remember": written, "recall": asked, "first_recall_ms": round(first),
            "close_ms": round(closed), "answered_of_50": found, "queries": queries,
            "disk": on_disk(root)}


SYSTEMS = {"anchors": {}, "salience": {}, "prompt": {}, "audit": {}, "rules": {
    "calendar": {"when": {"tag": "deadline", "score_above": 5}, "append": "deadlines.ics"},
    "legal": {"when": {"anchor": "contract_id", "recalled_more_than": 3}, "append": "legal.md"},
    "crm": {"when": {"anchor": "status", "from": "draft", "to": "signed"}, "append": "crm.md"}}}
MOST_WITH_SYSTEMS = 10_000      # a store with all systems is filled up to this size only


def measure_systems(folder: Path, size: int, singles: int) -> dict[str, Row]:
    """Write, ask and look for tags with every system switched on, in each store.

    Every memory has one of 40 tags and a tag that all have.
    """
    import hermes_lite
    found = {}
    for backend in ("files", "archive"):
        notes = Notes(11)
        config = hermes_lite.Config({"systems": SYSTEMS, "storage": {"backend": backend}},
                                    environ=os.environ)
        with hermes_lite.HermesLite(folder / f"systems_{backend}", config=config) as memory:
            texts, start = [notes.text() for _ in range(size)], time.perf_counter()
            for at in range(0, size, 1000):
                with memory.batch():
                    for number, text in enumerate(texts[at:at + 1000], at):
                        memory.remember(text, tags=("all", f"tag{number % 40}"))
            filled = time.perf_counter() - start
            memory.recall("database")
            written = each(lambda _: memory.remember(notes.text(), tags=("all", "tag7")),
                           range(singles))
            asked = each(memory.recall, [notes.query(notes.rng.choice(texts))
                                         for _ in range(singles)])
            tagged = each(lambda number: memory.recall(tags=("all", f"tag{number % 40}")),
                          range(singles))
        found[backend] = {"batch_ms": round(filled * 1e3 / size, 3), "remember": written,
                          "recall": asked, "tags": tagged}
    return found


def measure_cold(root: Path, notes: Notes, queries: list[str], colds: int) -> Row:
    """Time whole processes, taking turns with json.load so that all see the same machine."""
    installed = Path(tempfile.mkdtemp(prefix="installed"))
    shutil.copy(HOME / "hermes_lite.py", installed)
    shutil.copytree(HOME / "hermes_ext", installed / "hermes_ext",
                    ignore=shutil.ignore_patterns("tests", "__pycache__"))
    compileall.compile_dir(installed, quiet=1)       # as pip does
    index, env = root / "index.json", {"PYTHONPATH": str(installed)}
    script, module = [str(HOME / "hermes_lite.py")], ["-m", "hermes_lite"]
    runs = {"json_load": lambda n: ["-c", f"import json; json.load(open({str(index)!r}))"],
            "python_alone": lambda n: ["-c", "pass"],
            "import": lambda n: ["-c", "import hermes_lite"],
            "recall_script": lambda n: [*script, "--root", str(root), "recall", queries[n]],
            "recall_module": lambda n: [*module, "--root", str(root), "recall", queries[n]],
            "remember_script": lambda n: [*script, "--root", str(root), "remember", notes.text()],
            "remember_module": lambda n: [*module, "--root", str(root), "remember", notes.text()]}
    times: dict[str, list[float]] = {name: [] for name in runs}
    peaks: dict[str, int] = {}
    for n in range(-1, colds):                       # the first round warms caches and .pyc
        for name, words in runs.items():
            took, peak = process([sys.executable, *words(n)], env)
            if n >= 0:
                times[name].append(took)
                peaks[name] = max(peak, peaks.get(name, 0))
    shutil.rmtree(installed)
    base = min(times["json_load"])                   # the least: what others do only adds to it
    return {name: {"ms": round(min(row), 1), "rss_mb": round(peaks[name] / 1e6, 1),
                   "x_json_load": round(min(row) / base, 2)} for name, row in times.items()}


def measure_json(folder: Path, notes: Notes, size: int) -> Row:
    """A list of objects in one file, written whole and synced for each new memory."""
    path, rows = folder / "plain.json", [{"id": n, "text": notes.text()} for n in range(size)]

    def write(text: str) -> None:
        rows.append({"id": len(rows), "text": text})
        temporary = path.with_suffix(".tmp")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(rows, file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    return {"write": each(write, [notes.text() for _ in range(20)])}


def measure_fts5(folder: Path, notes: Notes, size: int) -> Row:
    """One table of trigrams on disk, one commit a memory with the default (full) sync."""
    base = sqlite3.connect(folder / "notes.db")
    base.execute("create virtual table notes using fts5(text, tokenize='trigram')")
    texts = [notes.text() for _ in range(size)]
    with base:
        base.executemany("insert into notes values (?)", ((text,) for text in texts))

    def write(text: str) -> None:
        with base:
            base.execute("insert into notes values (?)", (text,))

    def ask(query: str) -> None:
        words = " OR ".join(f'"{word}"' for word in query.replace('"', "").split())
        base.execute("select rowid, bm25(notes) from notes where notes match ? "
                     "order by bm25(notes) limit 5", (words,)).fetchall()

    row = {"write": each(write, [notes.text() for _ in range(50)]),
           "query": each(ask, [notes.query(notes.rng.choice(texts)) for _ in range(50)])}
    base.close()
    return {**row, "bytes": (folder / "notes.db").stat().st_size}


def measure_grep(root: Path, queries: list[str]) -> dict[str, float]:
    """List the Markdown files that hold a word of the query."""
    return spread([process(["grep", "-rliF", *(p for w in query.split() for p in ("-e", w)),
                            str(root / "store")], least=1)[0] for query in queries[:10]])


def measure(size: int, singles: int, colds: int) -> Row:
    """Measure everything at one size, each with texts of the same kind."""
    folder = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        notes = Notes()
        core = measure_core(folder / "root", notes, size, singles)
        queries = core.pop("queries")
        systems = measure_systems(folder, size, singles) if size <= MOST_WITH_SYSTEMS else {}
        return {"size": size, "core": core, "systems": systems,
                "cold": measure_cold(folder / "root", notes, queries, colds),
                "keywords": measure_keywords(size, singles),
                "duplicates": measure_duplicates(size, min(singles, 100)),
                "json_rewrite": measure_json(folder, Notes(8), size),
                "fts5_disk": measure_fts5(folder, Notes(9), size),
                "grep": measure_grep(folder / "root", queries)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- what is told --------------------------------------------------------------

def figures(result: Row) -> dict[str, float]:
    """Return the figures of one size by label, as the table and the plot show them."""
    core, cold = result["core"], result["cold"]
    rows = {"remember p50, ms": core["remember"]["p50_ms"],
            "remember p95, ms": core["remember"]["p95_ms"],
            "recall p50, ms": core["recall"]["p50_ms"],
            "recall p95, ms": core["recall"]["p95_ms"],
            "batch, ms a memory": round(1e3 / core["batch_per_s"], 3),
            "first recall after the batches, ms": core["first_recall_ms"],
            "close, ms": core["close_ms"]}
    for backend, row in result["systems"].items():
        for name in ("remember", "recall", "tags"):
            rows[f"all systems, {backend}: {name} p50, ms"] = row[name]["p50_ms"]
            rows[f"all systems, {backend}: {name} p95, ms"] = row[name]["p95_ms"]
        rows[f"all systems, {backend}: batch, ms a memory"] = row["batch_ms"]
    for name in cold:
        rows[f"cold {name.replace('_', ' ')}, ms"] = cold[name]["ms"]
    for name in ("recall_module", "remember_module"):
        rows[f"resident {name.replace('_', ' ')}, MB"] = cold[name]["rss_mb"]
    for name in ("index.json", "store", ".search", "total"):
        rows[f"du {name}, MB"] = round(core["disk"].get(name, {"du": 0})["du"] / 1e6, 1)
    for name, row in result["keywords"].items():
        rows[f"{name}: build, ms"] = row["build_ms"]
        rows[f"{name}: query p50, ms"] = row["query"]["p50_ms"]
        rows[f"{name}: query p95, ms"] = row["query"]["p95_ms"]
        for change in ("add", "remove"):
            if change in row:
                rows[f"{name}: {change} p50, ms"] = row[change]["p50_ms"]
    rows["duplicate by index p50, ms"] = result["duplicates"]["index"]["p50_ms"]
    if result["duplicates"]["brute"]:
        rows["duplicate by comparing p50, ms"] = result["duplicates"]["brute"]["p50_ms"]
    rows["JSON file rewritten p50, ms"] = result["json_rewrite"]["write"]["p50_ms"]
    rows["FTS5 trigram on disk: write p50, ms"] = result["fts5_disk"]["write"]["p50_ms"]
    rows["FTS5 trigram on disk: query p50, ms"] = result["fts5_disk"]["query"]["p50_ms"]
    rows["grep over store/*.md p50, ms"] = result["grep"]["p50_ms"]
    return rows


def exponent(points: list[tuple[int, float]]) -> float | None:
    """Fit figure ~ size ** e by least squares of the logarithms; None for fewer than two."""
    logs = [(math.log(size), math.log(value)) for size, value in points if value > 0]
    if len(logs) < 2:
        return None
    x, y = (statistics.fmean(side) for side in zip(*logs))
    return sum((a - x) * (b - y) for a, b in logs) / sum((a - x) ** 2 for a, _ in logs)


def grown(results: list[Row]) -> dict[str, list[tuple[int, float]]]:
    """Return the points (size, figure) of each label, in the order of the table."""
    points: dict[str, list[tuple[int, float]]] = {}
    for result in results:
        for label, value in figures(result).items():
            points.setdefault(label, []).append((result["size"], value))
    return points


def table(results: list[Row]) -> Iterator[str]:
    """Yield the lines of the Markdown table: a row a figure, a column a size, the exponent."""
    yield "| | " + " | ".join(f"{row['size']:,}" for row in results) + " | grows as n to the |"
    yield "|---" * (len(results) + 2) + "|"
    rate = [f"{row['core']['batch_per_s']:,}" for row in results]
    yield "| batch, memories a second | " + " | ".join(rate) + " | |"
    for name in ("recall_module", "recall_script", "remember_module", "remember_script"):
        cells = [f"{row['cold'][name]['x_json_load']:.1f} x" for row in results]
        label = f"cold {name.replace('_', ', as a ')}, of json.load"
        yield f"| {label} | " + " | ".join(cells) + " | |"
    for label, points in grown(results).items():
        by_size, slope = dict(points), exponent(points)
        cells = [f"{by_size[row['size']]:,g}" if row["size"] in by_size else ""
                 for row in results]
        yield f"| {label} | {' | '.join(cells)} | {'' if slope is None else f'{slope:.2f}'} |"


def draw(results: list[Row], path: Path) -> bool:
    """Draw how the figures grow, both axes logarithmic; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot
    groups = {"in a running process": ("remember p50", "recall p50", "batch", "duplicate"),
              "as a process of its own": ("cold",),
              "keyword query p50": ("query p50",), "memory and disk": ("resident", "du ")}
    figure, axes = pyplot.subplots(2, 2, figsize=(13, 10))
    for axis, (title, wanted) in zip(axes.flat, groups.items()):
        for label, points in grown(results).items():
            if any(part in label for part in wanted) and len(points) > 1:
                slope = exponent(points)
                axis.loglog(*zip(*points), marker="o",
                            label=label if slope is None else f"{label} ~ n^{slope:.2f}")
        axis.set_title(title)
        axis.set_xlabel("memories")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    return True


def smoke() -> int:
    """Hold answers and wide ratios; print each check, return 1 when one fails."""
    result = measure(300, 20, 2)
    core, cold = result["core"], result["cold"]
    checks = {"duplicates equal those of comparing with all": result["duplicates"]["same"],
              "most texts are found again": core["answered_of_50"] >= 40,
              "a batch is cheaper than single writes":
                  1e3 / core["batch_per_s"] < 3 * core["remember"]["p50_ms"],
              "a cold recall costs less than 60 times python -c pass":
                  cold["recall_module"]["ms"] < 60 * cold["python_alone"]["ms"],
              "with all systems a write costs less than 30 times one without":
                  all(row["remember"]["p50_ms"] < 30 * core["remember"]["p50_ms"]
                      for row in result["systems"].values()),
              "the index beats comparing with all": result["duplicates"]["index"]["p50_ms"]
                  < result["duplicates"]["brute"]["p50_ms"]}
    for sentence, holds in checks.items():
        print(f"{'ok  ' if holds else 'FAIL'} {sentence}")
    return 0 if all(checks.values()) else 1


def main() -> int:
    """Measure, write speed.json and speed.png, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--singles", type=int, default=200, help="writes and questions one by one")
    parser.add_argument("--colds", type=int, default=9, help="processes of each kind")
    parser.add_argument("--smoke", action="store_true", help="a small run that checks and ends")
    parser.add_argument("--out", type=Path, default=HOME / "bench/results")
    options = parser.parse_args()
    os.environ.update(HERMES_VECTOR_BACKEND="local", HERMES_RERANK="off")
    if options.smoke:
        return smoke()
    results = []
    for size in map(int, options.sizes.split(",")):
        print(f"measuring {size:,} memories", file=sys.stderr)
        results.append(measure(size, options.singles, options.colds))
    about = {"python": platform.python_version(), "machine": platform.machine(),
             "cores": os.cpu_count(), "sqlite": sqlite3.sqlite_version}
    slopes = {label: exponent(points) for label, points in grown(results).items()}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "speed.json").write_text(json.dumps(
        {"about": about, "exponents": slopes, "results": results}, indent=1) + "\n")
    if not draw(results, options.out / "speed.png"):
        print("no speed.png: pip install matplotlib", file=sys.stderr)
    print("\n".join(table(results)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Time of a host's hooks as whole processes, beside `python -c pass`.

    python3 bench/hooks.py [--memories 10000] [--rounds 40]

Fills a root of files and an archive, connects a host that has only a folder, and runs the hook at
the start of a session: with the block that was kept, and after a change, when it is built anew; and
the one at the end. The rounds of all kinds alternate, so that a busy machine slows all of them.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

HOME = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HOME))

from hermes_lite import HermesLite, Memory  # noqa: E402

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("ck", "nd", "rl", "st")]


def fill(root: Path, backend: str, count: int) -> None:
    """Write a root of so many memories, some of them preferences."""
    root.mkdir(parents=True)
    (root / "config.yaml").write_text(f"storage: {{backend: {backend}}}\nsystems: {{lanes: {{}}}}\n")
    source = random.Random(3)
    with HermesLite(root) as memory:
        for number in range(20):
            memory.remember(f"The build of project {number} needs {source.choice(WORDS)}")
        with memory.store.transaction():
            for number in range(count):
                text = f"note {number} " + " ".join(source.choices(WORDS, k=18))
                memory.store.put(Memory(f"mem_20260101_000000_{number:05x}", text,
                                        created_at="2026-01-01T00:00:00+00:00"))
        memory.recall("note 5")


def seconds(words: list[str], payload: str, environ: dict[str, str]) -> float:
    """Return how long a process takes from its start to its end."""
    started = time.perf_counter()
    ran = subprocess.run(words, input=payload, text=True, env=environ, stdout=subprocess.PIPE)
    if ran.returncode:
        sys.exit(f"{words} ended with {ran.returncode}")
    return time.perf_counter() - started


def measure(folder: Path, backend: str, count: int, rounds: int) -> None:
    """Print p50 and p95 of each kind beyond `pass`."""
    root = folder / backend
    fill(root, backend, count)
    environ = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, str(HOME / "hermes_lite.py"), "--root", str(root), "connect",
                    "claude-code", "--yes"], env=environ, check=True, stdout=subprocess.DEVNULL)
    settings = json.loads((folder / ".claude" / "settings.json").read_text())
    command = settings["hooks"]["SessionStart"][0]["hooks"][0]["command"].split()
    end = [word if word != "session-start" else "session-end" for word in command]
    payload = json.dumps({"session_id": "s", "cwd": "/", "hook_event_name": "SessionStart"})
    kinds = {"pass": [sys.executable, "-c", "pass"], "start, kept": command, "end": end,
             "start, built": command}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, words in kinds.items():
            if kind == "start, built":
                (root / ".hook_context.json").unlink(missing_ok=True)
            times[kind].append(seconds(words, payload, environ))
    base = median(times["pass"])
    for kind, rows in times.items():
        cuts = quantiles(rows, n=20)
        print(f"{backend:8} {kind:13} p50 {(median(rows) - base) * 1000:5.0f} ms  "
              f"p95 {(cuts[-1] - base) * 1000:5.0f} ms beyond pass ({base * 1000:.0f} ms)")


def main() -> None:
    """Measure on both stores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memories", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=40)
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        for backend in ("files", "archive"):
            measure(folder, backend, wanted.memories, wanted.rounds)
            shutil.rmtree(folder / ".claude")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

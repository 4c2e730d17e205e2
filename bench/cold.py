"""Compare the CPU time of a cold `recall` in two checkouts, beyond `python -c pass`.

usage: cold.py BASE [--size 1000] [--pairs 15]

BASE is a checkout of an older commit (`git worktree add --detach /tmp/base COMMIT`). Each
checkout reads a store of its own with the same memories. The processes of the two alternate, so
that other work on the machine weighs on both alike; a figure is the median of user + system time.
"""
from __future__ import annotations

import argparse
import compileall
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from notes import Notes

HERE = Path(__file__).resolve().parent.parent
ONE_CALL = "import hermes_lite, sys; sys.exit(hermes_lite.main(sys.argv[1:]))"


def cpu_seconds(command: list[str], folder: Path) -> float:
    """Run a command in a folder and return its user + system time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def fill(checkout: Path, root: Path, texts: list[str]) -> None:
    """Store the texts with the checkout's own code."""
    code = ("import hermes_lite, json, sys\n"
            "memory = hermes_lite.HermesLite(sys.argv[1])\n"
            "with memory.batch():\n"
            "    for text in json.load(sys.stdin):\n"
            "        memory.remember(text)\n"
            "memory.close()\n")
    subprocess.run([sys.executable, "-c", code, str(root)], cwd=checkout, check=True,
                   input=json.dumps(texts), text=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path, help="the older checkout")
    parser.add_argument("--size", type=int, default=1000, help="memories in the store")
    parser.add_argument("--pairs", type=int, default=15, help="processes of each kind")
    options = parser.parse_args()
    checkouts = {"base": options.base.resolve(), "this": HERE}
    notes = Notes()
    texts = [notes.text() for _ in range(options.size)]
    for checkout in checkouts.values():               # as pip does
        compileall.compile_file(checkout / "hermes_lite.py", quiet=1)
        compileall.compile_dir(checkout / "hermes_ext", quiet=1)
    with tempfile.TemporaryDirectory() as folder:
        roots = {name: Path(folder) / name for name in checkouts}
        for name, checkout in checkouts.items():
            fill(checkout, roots[name], texts)
        times: dict[str, list[float]] = {}
        for number in range(-1, options.pairs):           # the first round fills the caches
            query = notes.query(texts[number * 37 % options.size])
            for name, checkout in checkouts.items():
                words = ["--root", str(roots[name]), "recall", query]
                commands = {"script": [sys.executable, "hermes_lite.py", *words],
                            "module": [sys.executable, "-c", ONE_CALL, *words],
                            "python": [sys.executable, "-c", "pass"]}
                for kind, command in commands.items():
                    spent = cpu_seconds(command, checkout)
                    if number >= 0:
                        times.setdefault(f"{name} {kind}", []).append(spent)
    median = {key: 1000 * statistics.median(spent) for key, spent in times.items()}
    for kind in ("script", "module"):
        base = median[f"base {kind}"] - median["base python"]
        this = median[f"this {kind}"] - median["this python"]
        print(f"{kind}: base {base:.0f} ms, this {this:.0f} ms, ratio {this / base:.2f}")


if __name__ == "__main__":
    main()

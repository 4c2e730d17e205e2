"""`python3 -m hermes_ext.tests`: run every test module in a process of its own, some at once.

The modules are those that `python3 -m unittest discover` finds. As many run at once as this
machine has processors (`-j N` says otherwise); each module's output comes in one piece when it has
ended, and the sum of all at the end, in the words of unittest.
"""
from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]


def modules() -> list[str]:
    """Return the names of all test modules, the largest first: they take longest."""
    paths = [*HOME.glob("test_*.py"), *(HOME / "hermes_ext" / "tests").glob("test_*.py")]
    paths.sort(key=lambda path: path.stat().st_size, reverse=True)
    return [".".join(path.relative_to(HOME).with_suffix("").parts) for path in paths]


def run(module: str) -> tuple[str, int, str]:
    """Run one module; return its name, exit code and output."""
    done = subprocess.run([sys.executable, "-m", "unittest", module], cwd=HOME, text=True,
                          errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return module, done.returncode, done.stdout


def counts_in(output: str) -> Counter[str]:
    """Return how many tests ran, failed and were skipped, as the last lines of unittest say."""
    found = Counter({"tests": 0})
    for number in re.findall(r"(?m)^Ran (\d+) tests? in ", output)[-1:]:
        found["tests"] = int(number)
    for verdict in re.findall(r"(?m)^(?:OK|FAILED)(?: \((.*)\))?$", output)[-1:]:
        found.update({name: int(number) for name, number in re.findall(r"([a-z ]+)=(\d+)", verdict)})
    return found


def main() -> int:
    """Run all, and return 0 when every module passed."""
    parser = argparse.ArgumentParser(prog="python3 -m hermes_ext.tests", description=__doc__)
    parser.add_argument("-j", type=int, metavar="N", default=os.cpu_count() or 1,
                        help="run N modules at once")
    jobs = max(1, parser.parse_args().j)
    started = time.monotonic()
    total: Counter[str] = Counter()
    failed: list[str] = []
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(run, module) for module in modules()]):
            module, code, output = future.result()
            print(f"== {module}\n{output.rstrip()}\n", flush=True)
            total += counts_in(output)
            if code:
                failed.append(module)
    print("-" * 70)
    print(f"Ran {total.pop('tests', 0)} tests in {time.monotonic() - started:.1f}s\n")
    rest = ", ".join(f"{name.strip()}={number}" for name, number in sorted(total.items()))
    print(("FAILED" if failed else "OK") + (f" ({rest})" if rest else ""))
    for module in sorted(failed):
        print(f"failed: {module}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

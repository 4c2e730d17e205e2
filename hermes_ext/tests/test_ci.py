"""The script of the continuous integration runs every stage, whatever becomes of the others."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
# Stands for python3 and pip; it makes virtual environments of itself, and one stage fails.
STUB = """#!/bin/sh
case "$*" in
    *"-m venv"*) for folder; do :; done
        mkdir -p "$folder/bin"
        for name in python python3 pip ruff mypy; do cp "$0" "$folder/bin/$name"; done ;;
    *"$BROKEN"*) echo "the last words of $*"; exit 3 ;;
    *) echo "the last words of $*" ;;
esac
case "$*" in *"-m hermes_ext.tests") echo "$SUITE" ;; esac
"""


@unittest.skipUnless(shutil.which("bash") and (HOME / ".ci/run").exists(),
                     "needs bash and the checkout")
class TestRun(unittest.TestCase):

    def run_script(self, broken: str, *, suite: str = "OK") -> subprocess.CompletedProcess:
        """Run the script; *broken* is in the command that fails, *suite* ends the full run."""
        folder = Path(tempfile.mkdtemp(prefix="ci"))
        self.addCleanup(shutil.rmtree, folder)
        (folder / ".ci").mkdir()
        shutil.copy(HOME / ".ci/run", folder / ".ci/run")
        stubs = folder / "stubs"
        stubs.mkdir()
        versions = [f"python3.{minor}" for minor in range(10, 15)]
        for name in ("python3", *versions, "zstd"):
            (stubs / name).write_text(STUB)
            (stubs / name).chmod(0o755)
        environ = {**os.environ, "PATH": f"{stubs}{os.pathsep}{os.environ['PATH']}",
                   "BROKEN": broken, "SUITE": suite}
        return subprocess.run(["bash", str(folder / ".ci/run")], env=environ,
                              capture_output=True, text=True)

    def test_a_failed_stage_stops_no_other_and_decides_the_exit_code(self) -> None:
        done = self.run_script(broken="test_stress.py")
        self.assertEqual(done.returncode, 1, done.stderr)
        closing = done.stdout.split("== how the stages ended")[1]
        self.assertEqual(closing.count("== FAILED:"), 1)
        self.assertEqual(closing.count("== passed:"), 8)
        for words in ("test_hermes_lite.py", "test_stress.py", "bench/speed.py --smoke",
                      "bench/recall_quality.py --smoke", "hermes_ext.tests", "test_embedders"):
            self.assertIn(f"the last words of {words}".split()[-1], closing)

    def test_without_a_failure_the_exit_code_is_0(self) -> None:
        done = self.run_script(broken="nothing like this")
        self.assertEqual((done.returncode, done.stdout.count("== FAILED:")), (0, 0), done.stdout)

    def test_more_skipped_tests_than_the_committed_number_fail(self) -> None:
        allowed = int(re.search(r"(?m)^most_skips=(\d+)$", (HOME / ".ci/run").read_text())[1])
        for suite, failed in ((f"OK (skipped={allowed})", 0),
                              (f"OK (skipped={allowed + 1})", 1),
                              (f"FAILED (failures=2, skipped={allowed + 1}, expected failures=1)", 1)):
            done = self.run_script(broken="nothing like this", suite=suite)
            self.assertEqual(done.stdout.count("== FAILED:"), failed, suite)
            self.assertEqual(done.returncode, failed, suite)
            self.assertIn(f", {allowed} may be", done.stdout)


if __name__ == "__main__":
    unittest.main()

"""Every claim of docs/claims.md is proved by the command beside it."""
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hermes_ext.tests.base import HOME, TIMEOUT

HAS_PACKAGES = all(map(importlib.util.find_spec, ("requests", "yaml")))
CLAIMS = HOME / "docs" / "claims.md"


def claims() -> list[tuple[str, str]]:
    """Return each claim and its command."""
    rows = re.findall(r"(?m)^\| (.+?) \| `(.+)` \|$", CLAIMS.read_text(encoding="utf-8"))
    return [(claim, command.replace("\\|", "|")) for claim, command in rows]


def proved(command: str) -> subprocess.CompletedProcess:
    """Run a command in a folder of its own, with the programs of this checkout on PATH."""
    with tempfile.TemporaryDirectory() as place:
        programs = Path(place, "bin")
        programs.mkdir()
        for name, script in (("hermes-lite", "hermes_lite"), ("hermes-sediment", "auto_sediment")):
            code = (f"import sys; sys.path.insert(0, {str(HOME)!r}); sys.argv[0] = {name!r}; "
                    f"import {script} as m; sys.exit(m.main())")
            (programs / f"{name}.py").write_text(code)
            launcher = programs / name
            launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$0.py" "$@"\n')
            launcher.chmod(0o755)
        python = programs / "python3"              # no link: it would leave its packages behind
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        work = Path(place, "work")
        work.mkdir()
        return subprocess.run(
            ["bash", "-c", command], cwd=work, capture_output=True, text=True, timeout=TIMEOUT,
            env={"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(work),
                 "LC_ALL": "C.UTF-8", "HERMES_LITE_ROOT": str(Path(place, "root")),
                 "PYTHONPATH": str(HOME), "SOURCE": str(HOME)}, stdin=subprocess.DEVNULL)


@unittest.skipUnless(shutil.which("jq") and shutil.which("bash") and HAS_PACKAGES,
                     "needs bash, jq, requests and pyyaml")
class Claims(unittest.TestCase):
    def test_a_claim_that_does_not_hold_is_noticed(self) -> None:
        self.assertNotEqual(proved("hermes-lite recall lamp | grep -q lamp").returncode, 0)
        self.assertNotEqual(proved("hermes-lite frobnicate").returncode, 0)

    def test_each_claim_holds(self) -> None:
        rows = claims()
        self.assertGreater(len(rows), 20)
        self.assertEqual(len(rows), CLAIMS.read_text(encoding="utf-8").count("\n| ") - 1)
        with ThreadPoolExecutor(2) as pool:
            for (claim, command), done in zip(rows, pool.map(proved, [row[1] for row in rows])):
                with self.subTest(claim):
                    self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    unittest.main()

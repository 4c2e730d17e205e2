"""The words that start a program of this project, for a crontab, a unit or a document."""
from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import hermes_lite as core

__all__ = ["program_words"]

_DISTRIBUTION = "hermes-lite-memory"


def program_words(program: str, module: str) -> list[str]:
    """Return the installed *program*, or else Python with the code that runs *module*.

    Another project on PyPI has a program hermes-lite: so one counts as ours only beside this
    Python, and where our distribution is installed for it. A module is imported rather than run
    as a script, which would be compiled anew each time.
    """
    installed = Path(sys.executable).parent / program
    if installed.is_file() and _is_installed():
        return [str(installed)]
    home = str(Path(core.__file__).resolve().parent)
    code = f"import sys; sys.path.insert(0, {home!r}); import {module} as m; sys.exit(m.main())"
    return [sys.executable, "-c", code]


def _is_installed() -> bool:
    try:
        metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return False
    return True

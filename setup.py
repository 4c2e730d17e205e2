"""The part of the build that pyproject.toml cannot say: two files are copied into the wheel.

hermes_lite.py is a single module, and a type checker takes types from a package alone (PEP 561):
so a copy of it goes in as the stub package hermes_lite-stubs. config.yaml, with its comments, goes
into hermes_ext, where `init` finds it.
"""
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithCopies(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:                     # this folder is used as it is
            return
        stubs = Path(self.build_lib, "hermes_lite-stubs")
        self.mkpath(str(stubs))
        self.copy_file("hermes_lite.py", str(stubs / "__init__.pyi"))
        self.copy_file("config.yaml", str(Path(self.build_lib, "hermes_ext", "config.yaml")))


setup(cmdclass={"build_py": BuildWithCopies})

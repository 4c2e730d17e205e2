"""Modules build on public names, folders on nothing of their siblings, the core on the registry.

    python3 -m unittest hermes_ext.tests.test_contract
"""
from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HOME)]

import hermes_ext                                                                 # noqa: E402
import hermes_lite as core                                                        # noqa: E402

TESTS = HOME / "hermes_ext" / "tests"
MODULES = [*sorted(path for path in (HOME / "hermes_ext").rglob("*.py")
                   if TESTS not in path.parents), HOME / "auto_sediment.py"]

PACKAGE = HOME / "hermes_ext"
FOLDERS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")
                 if path.parent != TESTS)
SHARED = ("calls", "cold_files", "command_help", "framing", "host_notes", "program",
          "reads", "scores")       # no systems; every folder may import them


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Yield every module of hermes_ext that is imported, below hermes_ext: `archive.store`.

    `from hermes_ext.archive import store` yields `archive.store`, and so does
    `from hermes_ext.archive.store import FILE`, with the name FILE behind it.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in found:
            if name.startswith("hermes_ext."):
                yield name.removeprefix("hermes_ext.")


def names_of_the_core(tree: ast.Module) -> Iterator[str]:
    """Yield every name of the core that a module imports or reads as an attribute."""
    aliases = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname or a.name for a in node.names if a.name == "hermes_lite"}
        if isinstance(node, ast.ImportFrom) and node.module == "hermes_lite":
            yield from (a.name for a in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in aliases:
            yield node.attr


def private_reaches(tree: ast.Module) -> Iterator[str]:
    """Yield each use of a private attribute that neither the module nor its own class defines."""
    own = {node.name for node in ast.walk(tree)
           if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {node.attr for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    own |= {node.target.id for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    own |= {"_replace", "_asdict", "_fields", "_make"}          # of a NamedTuple
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            is_private = node.attr.startswith("_") and not node.attr.startswith("__")
            if is_private and node.attr not in own:
                yield f"line {node.lineno}: {ast.unparse(node)}"


class PublicNames(unittest.TestCase):
    def test_a_module_uses_names_that_the_core_exports(self) -> None:
        exported = {*core.__all__, "__version__", "__file__"}
        for path in MODULES:
            used = {*names_of_the_core(ast.parse(path.read_text(encoding="utf-8")))}
            with self.subTest(path.name):
                self.assertEqual(used - exported, set())

    def test_a_module_reaches_into_nothing_private(self) -> None:
        for path in MODULES:
            found = [*private_reaches(ast.parse(path.read_text(encoding="utf-8")))]
            with self.subTest(path.name):
                self.assertEqual(found, [])

    def test_no_module_assigns_to_a_class_or_module_of_the_core(self) -> None:
        for path in MODULES:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    owner = ast.unparse(node.value).split(".")[-1]
                    self.assertFalse(owner == "core" or owner in core.__all__,
                                     f"{path.name}:{node.lineno}: {ast.unparse(node)}")


class Folders(unittest.TestCase):
    def test_a_module_imports_its_own_folder_and_the_shared_modules_alone(self) -> None:
        """What a system needs of another folder it reaches through the registry."""
        for path in MODULES:
            inside = path.relative_to(PACKAGE).parts if PACKAGE in path.parents else ()
            own_folder = ".".join(inside[:-1])
            for name in imported_modules(ast.parse(path.read_text(encoding="utf-8"))):
                top = name.partition(".")[0]
                self.assertTrue(top in SHARED or (own_folder and name.startswith(f"{own_folder}.")),
                                f"{path}: {name}")

    def test_the_shared_modules_import_no_system(self) -> None:
        for name in SHARED:
            tree = ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8"))
            self.assertEqual([*imported_modules(tree)], [], name)

    def test_a_name_that_a_module_asks_the_registry_for_is_in_it(self) -> None:
        for path in MODULES:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_system"):
                    self.assertIn(ast.literal_eval(node.args[0]), hermes_ext.CONTENTS, path.name)

    def test_every_folder_is_named_in_the_project_file(self) -> None:
        project = HOME / "pyproject.toml"
        if not project.exists():
            self.skipTest("needs the checkout")
        named = re.search(r"^packages = \[(.*?)\]", project.read_text("utf-8"), re.M | re.S)[1]
        self.assertEqual(re.findall(r'"(.+?)"', named),
                         [".".join(path.parent.relative_to(HOME).parts)
                          for path in sorted(PACKAGE.rglob("__init__.py"))
                          if path.parent != TESTS])


class Deleted(unittest.TestCase):
    """A copy of the tree without one part still does what needs no system."""

    def copy_without(self, part: str) -> Path:
        home = Path(tempfile.mkdtemp(prefix="without"))
        self.addCleanup(shutil.rmtree, home, True)
        shutil.copy(HOME / "hermes_lite.py", home)
        shutil.copytree(PACKAGE, home / "hermes_ext",
                        ignore=shutil.ignore_patterns("tests", "__pycache__"))
        path = home / "hermes_ext" / part
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        return home

    def run_in(self, home: Path, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, str(home / "hermes_lite.py"), "--root", str(home / "root"), *words],
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
            env={"PATH": os.defpath, "HERMES_VECTOR_BACKEND": "local"})

    def hold(self, part: str) -> None:
        home = self.copy_without(part)
        module = part.removesuffix(".py")
        lost = {command for where, commands in hermes_ext.CONTENTS.values() for command in commands
                if where == module or where.startswith(f"{module}.")}
        kept = self.run_in(home, "remember", "The gateway listens on port 8080")
        self.assertEqual((kept.returncode, kept.stderr), (0, ""))
        found = self.run_in(home, "recall", "gateway")
        self.assertEqual((found.returncode, found.stderr), (0, ""))
        self.assertIn("port 8080", found.stdout)
        listed = self.run_in(home, "list")
        self.assertEqual((listed.returncode, listed.stderr), (0, ""))
        self.assertIn("port 8080", listed.stdout)
        if "doctor" not in lost:
            checked = self.run_in(home, "doctor")
            self.assertEqual((checked.returncode, checked.stderr), (0, ""), checked.stdout)
        help_text = self.run_in(home, "--help").stdout
        for command in sorted(lost):
            self.assertNotRegex(help_text, rf"(?m)^    {command} ")
            refused = self.run_in(home, command)
            self.assertEqual(refused.returncode, 3, refused.stderr)
            self.assertIn(f"there is no command '{command}'", refused.stderr)

    def test_any_folder_can_be_deleted(self) -> None:
        self.assertGreaterEqual(len(FOLDERS), 4)
        for folder in FOLDERS:
            with self.subTest(folder):
                self.hold(folder)

    def test_a_flat_module_can_be_deleted(self) -> None:
        """Two of them in a run: those with a role that the core knows."""
        for module in ("vault.py", "embedders.py"):
            with self.subTest(module):
                self.hold(module)

    def test_cold_storage_that_cannot_be_used_is_mentioned(self) -> None:
        home = self.copy_without("archive")
        (home / "root").mkdir()
        (home / "root" / "cold_index.json").write_text(
            '{"version": 1, "place": "cold", "files": {}, "memories": {}}')
        kept = self.run_in(home, "remember", "The gateway listens on port 8080")
        self.assertEqual(kept.returncode, 0, kept.stderr)
        self.assertIn("the system cold is not installed", kept.stderr)


class Registry(unittest.TestCase):
    def test_the_core_imports_no_module_by_name(self) -> None:
        source = (HOME / "hermes_lite.py").read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "import_system":
                self.assertNotIsInstance(node.args[0], ast.Constant, f"line {node.lineno}")
        for name in hermes_ext.CONTENTS:
            self.assertNotIn(f"hermes_ext.{name}", source)

    def test_every_entry_leads_to_what_it_promises(self) -> None:
        for module in hermes_ext.STORES.values():
            self.assertTrue(callable(core.import_system(module).open_store))
        for module in hermes_ext.VECTORIZERS.values():
            self.assertTrue(callable(core.import_system(module).make))
        for module in hermes_ext.AUTOSTART.values():
            self.assertTrue(callable(core.import_system(module).system))
        for module, function in hermes_ext.HOOKS.values():
            self.assertTrue(callable(getattr(core.import_system(module), function)))
        for name, (module, commands) in hermes_ext.CONTENTS.items():
            self.assertIs(core.import_system(name), importlib.import_module(f"hermes_ext.{module}"))
            operations = getattr(core.import_system(name), "OPERATIONS", ())
            self.assertEqual({each.name: each.help for each in operations}, commands, name)


if __name__ == "__main__":
    unittest.main()

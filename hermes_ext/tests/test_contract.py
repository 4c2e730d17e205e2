"""Modules build on public names of the core, and the core knows the registry alone."""
from __future__ import annotations

import ast
import importlib
import sys
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

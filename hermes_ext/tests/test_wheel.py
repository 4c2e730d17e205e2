"""What an installed wheel gives: types, config.yaml with its comments, both programs, metadata."""
import importlib.util
import subprocess
import sys
import tempfile
import unittest
import zipfile
from email.parser import Parser
from pathlib import Path

from hermes_ext.tests.base import HOME, TIMEOUT

CAN_BUILD = all(map(importlib.util.find_spec, ("setuptools", "wheel", "pip")))
HAS_MYPY = importlib.util.find_spec("mypy") is not None
PROGRAM = HOME / "hermes_ext" / "tests" / "data" / "typed_program.py"


def run(*words: object, **more):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          timeout=TIMEOUT, **more)


@unittest.skipUnless(CAN_BUILD, "building a wheel needs pip, setuptools and wheel")
class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        import shutil
        place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(place.cleanup)
        cls.home = Path(place.name)
        source = cls.home / "source"               # a build leaves files behind
        source.mkdir()
        for name in ("hermes_lite.py", "auto_sediment.py", "setup.py", "pyproject.toml",
                     "config.yaml", "README.md", "LICENSE"):
            shutil.copy(HOME / name, source)
        shutil.copytree(HOME / "hermes_ext", source / "hermes_ext",
                        ignore=shutil.ignore_patterns("tests", "__pycache__"))
        built = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index",
                    "--no-build-isolation", "-w", cls.home, source)
        if built.returncode:
            raise AssertionError(built.stderr)
        wheel, = cls.home.glob("*.whl")
        made = run(sys.executable, "-m", "venv", "--without-pip", cls.home / "env")
        if made.returncode:
            raise AssertionError(made.stderr)
        cls.python = cls.home / "env" / "bin" / "python"
        cls.packages = Path(run(cls.python, "-c", "import sysconfig; print(sysconfig.get_path("
                                "'purelib'))").stdout.strip())
        with zipfile.ZipFile(wheel) as file:
            file.extractall(cls.packages)

    @unittest.skipUnless(HAS_MYPY, "mypy is not installed")
    def test_a_typed_program_passes_mypy_and_a_slip_in_it_does_not(self) -> None:
        def checked(text: str):
            (self.home / "program.py").write_text(text)
            return run(sys.executable, "-m", "mypy", "--strict", "--python-executable",
                       self.python, "program.py", cwd=self.home)
        text = PROGRAM.read_text()
        done = checked(text)
        self.assertEqual(done.returncode, 0, done.stdout)
        wrong = checked(text.replace("one.id for", "one.idd for"))
        self.assertIn('has no attribute "idd"', wrong.stdout)

    def test_the_program_keeps_its_loop_free_and_finds(self) -> None:
        done = run(self.python, PROGRAM, self.home / "root")
        self.assertEqual(done.stdout.splitlines(), ["8", "Shelf 3 holds the lamp True"],
                         done.stderr)

    def test_init_writes_the_config_with_its_comments(self) -> None:
        root = self.home / "fresh"
        done = run(self.python, "-m", "hermes_lite", "--root", root, "init")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual((root / "config.yaml").read_bytes(), (HOME / "config.yaml").read_bytes())

    def test_each_program_uses_its_own_name(self) -> None:
        for module, name in (("auto_sediment", "hermes-sediment"), ("hermes_lite", "hermes-lite")):
            code = f"import sys, {module} as m; sys.argv[0] = {name!r}; sys.exit(m.main())"
            done = run(self.python, "-c", code, "--help")
            self.assertTrue(done.stdout.startswith(f"usage: {name} "), done.stdout[:80])

    def test_the_metadata_are_complete(self) -> None:
        info, = self.packages.glob("hermes_lite_memory-*.dist-info")
        said = Parser().parsestr((info / "METADATA").read_text(encoding="utf-8"))
        for field in ("Name", "Version", "Summary", "Keywords", "Requires-Python",
                      "Classifier", "Description-Content-Type"):
            self.assertTrue(said.get(field), field)
        self.assertIn("Typing :: Typed", said.get_all("Classifier"))
        self.assertTrue(said.get_payload().startswith("# hermes-lite"))
        programs = (info / "entry_points.txt").read_text()
        self.assertIn("hermes-lite = hermes_lite:main", programs)
        self.assertIn("hermes-sediment = auto_sediment:main", programs)


if __name__ == "__main__":
    unittest.main()

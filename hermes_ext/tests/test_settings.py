"""Settings: what is listed is in force, and a set changes one line and nothing else."""
import difflib
import importlib
import importlib.util
import json
import os
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from hermes_ext import CONTENTS                                         # noqa: E402
from hermes_ext.settings import get, set_value, settings                # noqa: E402
from hermes_lite import (ConfigError, DEFAULTS, HermesError, HermesLite, MissingPackage,  # noqa: E402
                         NotFound, UsageError, import_system, load_config)
from hermes_ext.tests.base import run_command  # noqa: E402

HAS_BOTH = all(importlib.util.find_spec(name) for name in ("yaml", "ruamel"))
SHIPPED = (HOUSE / "config.yaml").read_text(encoding="utf-8")


class SettingsCase(unittest.TestCase):

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name) / "root"
        self.root.mkdir(mode=0o700)
        self.path = self.root / "config.yaml"
        for name in [name for name in os.environ if name.startswith("HERMES_")]:
            self.addCleanup(os.environ.__setitem__, name, os.environ.pop(name))

    def cli(self, *words: str, **environ: str) -> subprocess.CompletedProcess:
        return run_command(self.root, *words, environ={
            "PATH": os.defpath, "HOME": str(self.root.parent), **environ})

    def environ(self, **values: str) -> None:
        for name, value in values.items():
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name, None)

    def changed(self) -> list[str]:
        """Return the lines of config.yaml that the shipped one has not, with a mark."""
        return [line for line in difflib.ndiff(
            SHIPPED.split("\n"), self.path.read_bytes().decode().split("\n"))
            if line[0] in "+-"]


class TestList(SettingsCase):

    def test_every_setting_is_listed_with_its_default(self):
        found = {each.name: (each.value, each.origin) for each in settings(self.root)}
        for section, keys in DEFAULTS.items():
            for key, value in keys.items():
                self.assertEqual(found[f"{section}.{key}"], (value, "default"))

    def test_the_file_and_the_environment_are_named_as_origins(self):
        self.path.write_text('{"retrieval": {"stem": false}, "rooms": {"lab": 30}, '
                             '"systems": {"audit": {}}}')
        self.environ(HERMES_VECTOR_BACKEND="local")
        self.assertEqual(tuple(dict(get(self.root, "retrieval.stem")).values()),
                         ("retrieval.stem", False, "config.yaml"))
        self.assertEqual(get(self.root, "retrieval.grams").origin, "default")
        self.assertEqual(get(self.root, "rooms.lab").value, 30)
        self.assertEqual(get(self.root, "systems.audit").origin, "config.yaml")
        self.assertEqual(tuple(dict(get(self.root, "vectors.backend")).values()),
                         ("vectors.backend", "local", "env HERMES_VECTOR_BACKEND"))

    def test_keys_are_never_shown(self):
        key = secrets.token_hex(20)
        (self.root / ".env").write_text(f"JINA_API_KEY={key}\n")
        os.chmod(self.root / ".env", 0o600)
        done = self.cli("config", "list", HERMES_MASTER_KEY=key)
        self.assertNotIn(key, done.stdout + done.stderr)
        self.assertIn("JINA_API_KEY = set", done.stdout)
        self.assertIn("DEEPSEEK_API_KEY = unset", done.stdout)

    def test_a_section_is_got_whole_and_an_unknown_name_gets_advice(self):
        self.assertEqual(len(get(self.root, "encryption")), len(DEFAULTS["encryption"]))
        with self.assertRaises(NotFound) as caught:
            get(self.root, "retrieval.steam")
        self.assertIn("'retrieval.stem'", str(caught.exception))


@unittest.skipUnless(HAS_BOTH, "needs ruamel.yaml and PyYAML")
class TestSet(SettingsCase):

    def test_one_line_changes_and_comments_and_order_stay(self):
        set_value(self.root, "retrieval.stem", "false")
        self.assertEqual(self.changed(), [
            '-   stem: true                # "ports" finds "port" (English and German)',
            '+   stem: false               # "ports" finds "port" (English and German)'])
        self.assertIs(load_config(self.root)["retrieval"]["stem"], False)
        self.assertEqual(stat.S_IMODE(self.path.stat().st_mode), 0o600)
        set_value(self.root, "retrieval.stem", "true")
        self.assertEqual(self.path.read_text(encoding="utf-8"), SHIPPED)

    def test_every_setting_can_be_set_to_its_default_and_the_file_says_the_same(self):
        for name in ("rooms.prefs", "retrieval.hot_boost", "retrieval.fusion", "vectors.url",
                     "vectors.backend", "digest.base_url", "security.personal_numbers",
                     "storage.max_text_chars", "encryption.markdown", "category_mapping.idea"):
            section, _, key = name.partition(".")
            value = DEFAULTS[section][key]
            set_value(self.root, name, value if isinstance(value, str) else json.dumps(value))
        self.assertEqual([line for line in self.changed()], [])

    def test_words_that_yaml_reads_as_something_else_stay_words(self):
        for name, word in (("rerank.backend", "off"), ("digest.model", "3.5"),
                           ("digest.model", "yes"), ("digest.model", "a: b # c"),
                           ("vectors.model", "模型"), ("vectors.model", "")):
            set_value(self.root, name, word)
            section, _, key = name.partition(".")
            self.assertEqual(load_config(self.root)[section][key], word)
        set_value(self.root, "vectors.model", "null")
        self.assertIsNone(load_config(self.root)["vectors"]["model"])

    def test_a_persons_own_file_keeps_its_form(self):
        own = ("# mine\r\nretrieval:   # how\r\n    stem: yes  # by me\r\n\r\n"
               "rooms: {lab: 3}\r\nsystems:\r\n    audit: {}\r\n")
        self.path.write_bytes(own.encode())
        set_value(self.root, "retrieval.grams", "3")
        text = self.path.read_bytes().decode()
        self.assertIn("# mine\r\n", text)
        self.assertIn("    stem: yes  # by me\r\n", text)
        self.assertIn("    audit: {}\r\n", text)
        self.assertIn("rooms: {lab: 3}\r\n", text)
        self.assertNotIn("\n", text.replace("\r\n", ""))
        self.assertEqual(load_config(self.root)["retrieval"]["grams"], 3)
        self.assertIs(load_config(self.root)["retrieval"]["stem"], True)

    def test_lists_keep_their_indent(self):
        for own in ("a:\n- (b+)\n", "a:\n  - (b+)\n", "a:\n    - (b+)\n"):
            own = own.replace("a:", "    redact_patterns:").replace("\n", "\n    ").rstrip(" ")
            self.path.write_text(f"security:\n{own}retrieval:\n    grams: 2\n")
            set_value(self.root, "retrieval.grams", "3")
            self.assertEqual(self.path.read_text(),
                             f"security:\n{own}retrieval:\n    grams: 3\n")

    def test_a_json_file_and_nested_settings_of_a_system(self):
        self.path.write_text('{"retrieval": {"stem": false}}')
        set_value(self.root, "systems.audit.reads", "false")
        config = load_config(self.root)
        self.assertEqual((config["systems"], config["retrieval"]["stem"]),
                         ({"audit": {"reads": False}}, False))

    def test_what_cannot_be_right_changes_nothing(self):
        set_value(self.root, "retrieval.stem", "false")
        before = self.path.read_bytes()
        for name, word, error in (
                ("retrieval.stem", "banana", ConfigError), ("retrieval.steam", "1", ConfigError),
                ("retrival.stem", "1", ConfigError), ("retrieval", "1", UsageError),
                ("retrieval.", "1", UsageError), ("retrieval.grams", "[", ConfigError),
                ("retrieval.grams", "-1", ConfigError), ("retrieval.fusion", "best", ConfigError),
                ("security.redact_patterns", "['(']", HermesError),
                ("category_mapping.idea", "nowhere", ConfigError),
                ("systems.nothing", "{}", ConfigError), ("systems.doctor", "{}", ConfigError),
                ("systems.audit.unknown", "1", ConfigError),
                ("systems.rules.mine", "{when: {}}", ConfigError)):
            with self.assertRaises(error, msg=name):
                set_value(self.root, name, word)
            self.assertEqual(self.path.read_bytes(), before, name)

    def test_settings_can_be_set_where_every_system_is_named_on_both_stores(self):
        names = [name for name in CONTENTS if hasattr(import_system(name), "system")]
        self.assertIn("buffer", names)
        for store in ("files", "archive"):
            self.path.unlink(missing_ok=True)
            with HermesLite(self.root) as memory:
                memory.remember("The gateway listens on port 8080")
            (self.root / "cold_index.json").write_text(
                '{"version": 1, "place": "cold", "files": {}, "memories": {}}')
            if store == "archive":                 # its file alone says what it is
                done = self.cli("migrate", "--to", "archive")
                self.assertEqual(done.returncode, 0, done)
            for name in names:
                if name == "buffer" and store == "files":
                    with self.assertRaises(ConfigError):
                        set_value(self.root, "systems.buffer", "{}")
                else:
                    set_value(self.root, f"systems.{name}", "{}")
            for words in (["set", "retrieval.grams", "3"], ["set", "systems.audit.reads", "false"],
                          ["get", "systems"], ["list"], ["path"]):
                done = self.cli("config", *words)
                self.assertEqual((done.returncode, done.stderr), (0, ""), words)
            self.assertEqual(load_config(self.root)["retrieval"]["grams"], 3)
            self.assertEqual(len(HermesLite(self.root).list()), 1)

    def test_a_broken_file_is_left_alone(self):
        self.path.write_text("retrieval: [")
        with self.assertRaises(ConfigError):
            set_value(self.root, "retrieval.stem", "true")
        self.assertEqual(self.path.read_text(), "retrieval: [")

    def test_two_at_once_both_count(self):
        words = [("retrieval.stem", "false"), ("retrieval.grams", "3"), ("rerank.backend", "off"),
                 ("retrieval.cues", "false")]
        code = (f"import sys; sys.path.insert(0, {str(HOUSE)!r})\n"
                "from pathlib import Path\nfrom hermes_ext.settings import set_value\n"
                "from hermes_lite import Locked\n"
                "while True:\n    try:\n"
                "        set_value(Path(sys.argv[1]), sys.argv[2], sys.argv[3])\n"
                "        break\n    except Locked:\n        pass      # a busy machine\n")
        children = [subprocess.Popen([sys.executable, "-c", code, str(self.root), *pair])
                    for pair in words]
        self.assertEqual([child.wait() for child in children], [0] * 4)
        found = load_config(self.root)
        self.assertEqual((found["retrieval"]["stem"], found["retrieval"]["grams"],
                          found["rerank"]["backend"], found["retrieval"]["cues"]),
                         (False, 3, "off", False))


class TestCommand(SettingsCase):

    def test_it_works_where_the_config_is_broken(self):
        self.path.write_text("{\"retrieval\": {\"steam\": 1}}")
        self.assertEqual(self.cli("config", "path").returncode, 0)
        done = self.cli("config", "list")
        self.assertEqual((done.returncode, "did you mean 'stem'" in done.stderr), (3, True), done)

    def test_wrong_arguments_are_one_sentence(self):
        for words, code in ((["put"], 2), (["get"], 2), (["get", "a", "b"], 2), (["set", "a"], 2),
                            (["list", "a"], 2), (["get", "retrieval.x"], 10)):
            done = self.cli("config", *words)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (code, 1), done)

    def test_path_and_get_answer(self):
        shown = json.loads(self.cli("config", "path", "--json").stdout)
        self.assertEqual((shown["config"], shown["exists"]), (str(self.path), False))
        self.assertEqual(self.cli("config", "get", "retrieval.stem").stdout,
                         "retrieval.stem = true  (default)\n")

    @unittest.skipIf(importlib.util.find_spec("ruamel"), "ruamel.yaml is installed")
    def test_without_the_packages_the_sentence_names_them(self):
        with self.assertRaises(MissingPackage) as caught:
            set_value(self.root, "retrieval.grams", "3")
        self.assertIn("pip install ruamel.yaml pyyaml", str(caught.exception))

    def test_a_setting_of_a_system_that_it_does_not_know_is_a_sentence_at_every_start(self):
        shutil.copy(HOUSE / "config.yaml", self.path)
        self.path.write_text(json.dumps({"systems": {"audit": {"read": True}}}))
        with self.assertRaises(ConfigError) as caught:
            HermesLite(self.root)
        self.assertIn("systems.audit: unknown key 'read'; did you mean 'reads'", str(
            caught.exception))


if __name__ == "__main__":
    unittest.main()

"""connect, disconnect and agents, through the commands, on settings as hosts and people write them."""
from __future__ import annotations

import importlib.util
import json
import os
import unittest

from hermes_ext.agents import json_text
from hermes_ext.agents.hosts import HOSTS
from hermes_ext.tests.base import Case

try:
    import tomllib
except ImportError:                                # Python 3.10
    from pip._vendor import tomli as tomllib

ODD = {
    ".claude/settings.json": b'{"theme":"dark",\n\t"hooks": {"Stop": [], "SessionStart": [{"hooks": '
                             b'[{"type": "command", "command": "mine"}]}]}}',
    ".claude.json": '{\n   "projects": {"/ws": {"mcpServers": {}}},\n   "größe": 1e3\n}\n'.encode(),
    ".codex/config.toml": b'# mine\nmodel = "x"   # and a comment\n\n[mcp_servers.other]\n'
                          b'command = "other"',
    ".codex/hooks.json": b'{"hooks": {}}\n\n',
    ".gemini/settings.json": b'\xef\xbb\xbf{"mcpServers": {"other": {"command": "other"}}}\r\n',
    ".cursor/mcp.json": b"{}", ".cursor/hooks.json": b'{"version": 1, "hooks": {}}',
    ".openclaw/openclaw.json": b'{"mcp": {"servers": {}}, "agents": {}}\n',
    ".dsh/cordis.patch.yml": b"# mine\n- insert:\n    - id: other\n",
    ".hermes/config.yaml": b"model: x\nmemory:\n  provider: mem0   # was here\n  size: 3\nend: 1\n"}
WITH_FILES = [name for name in HOSTS if name != "workbuddy"]


ENTRIES = (json_text.Entry(("mcp", "servers"), "ours", {"command": "x", "args": ["-m"], "env": {}}),
           json_text.Entry(("hooks", "Stop"), None, {"hooks": [{"command": "hook 'a\"b' stop"}]}))
FORMS = (
    '{"a": 1}', '{\n\t"mcp": {\n\t\t"servers": {\n\t\t\t"other": {"x": 1}\n\t\t}\n\t}\n}',
    '// mine\n{\n  "mcp": {"servers": {"a": {}, /* b */ "b": {}}}, // end\n}\n',
    '\ufeff{\r\n    "hooks": {"Stop": [ {"hooks": []} ]}\r\n}\r\n',
    "{mcp: {servers: {'it\\'s': .5,},}, hooks: {Stop: [1]}}",
    '{"hooks": {"Stop": [\n  {"hooks": [{"command": "other"}]}, // keep\n]}, "z": 0}')


class TextOfJson(unittest.TestCase):
    def test_what_is_put_in_is_cut_out_and_each_other_byte_stays(self):
        for text in FORMS:
            for entry in ENTRIES:
                with self.subTest(text=text, entry=entry.path):
                    after = json_text.inserted(text, entry)
                    self.assertTrue(json_text.has(json_text.parse(after), entry))
                    self.assertEqual(json_text.cut(after, entry), text)

    def test_what_came_behind_ours_stays(self):
        text = json_text.inserted('{"mcp": {"servers": {}}}', ENTRIES[0])
        later = json_text.inserted(text, json_text.Entry(("mcp", "servers"), "later", 2))
        self.assertEqual(json_text.parse(json_text.cut(later, ENTRIES[0])),
                         {"mcp": {"servers": {"later": 2}}})

    def test_a_text_that_is_broken_or_of_another_form_is_an_error(self):
        for text in ('{\n"a": }', "[1", '{"a": 1} x', '{"a": foo}', "{'a' 1}", "[" * 100_000):
            with self.assertRaises(json_text.UnknownForm):
                json_text.parse(text)
        with self.assertRaises(json_text.UnknownForm):
            json_text.inserted('{"mcp": {"servers": []}}', ENTRIES[0])


class Connecting(Case):
    def setUp(self) -> None:
        super().setUp()
        self.root.mkdir()

    def run_ok(self, *words: str, **environ: str) -> str:
        code, out, err = self.cli(*words, **environ)
        self.assertEqual(code, 0, err)
        return out

    def tree(self) -> dict[str, bytes]:
        """Return the files of every host below the home folder."""
        return {path.relative_to(self.home).as_posix(): path.read_bytes()
                for path in self.home.rglob("*")
                if path.is_file() and not path.is_relative_to(self.root)}

    def write(self, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def connect_all(self) -> None:
        for name in WITH_FILES:
            self.run_ok("connect", name, "--yes")

    def test_disconnect_leaves_every_file_as_it_was_to_the_byte(self):
        for files in ({}, ODD):
            self.write(files)
            before = self.tree()
            self.connect_all()
            connected = self.tree()
            for name in WITH_FILES:
                self.assertIn("0 files written", self.run_ok("connect", name, "--yes"))
            self.assertEqual(self.tree(), connected)
            for name in WITH_FILES:
                self.run_ok("disconnect", name, "--yes")
            self.assertEqual(self.tree(), before)

    def test_a_preview_writes_nothing_and_without_a_person_nothing_is_done(self):
        self.write(ODD)
        before = self.tree()
        for name in WITH_FILES:
            self.assertIn("+", self.run_ok("connect", name, "--dry-run"))
            self.assertEqual(self.cli("connect", name)[0], 11)
        self.assertEqual(self.tree(), before)
        self.assertFalse((self.root / ".connections.json").exists())

    def test_what_is_entered_is_what_the_hosts_read(self):
        self.write(ODD)
        self.connect_all()
        read = {name: json.loads((self.home / name).read_bytes().decode("utf-8-sig"))
                for name in ODD if name.endswith(".json")}
        for name, keys in ((".claude.json", ("mcpServers",)), (".gemini/settings.json",
                           ("mcpServers",)), (".cursor/mcp.json", ("mcpServers",)),
                           (".openclaw/openclaw.json", ("mcp", "servers"))):
            servers = read[name]
            for key in keys:
                servers = servers[key]
            self.assertEqual(servers["hermes-memory"]["args"][-1], "mcp", name)
        toml = tomllib.loads((self.home / ".codex/config.toml").read_text())
        self.assertEqual(toml["mcp_servers"]["hermes-memory"]["args"][-3:],
                         ["--root", str(self.root.resolve()), "mcp"])
        self.assertEqual(toml["mcp_servers"]["other"]["command"], "other")
        starts = read[".claude/settings.json"]["hooks"]["SessionStart"]
        self.assertEqual(starts[0]["hooks"][0]["command"], "mine")
        self.assertIn("session-start --host claude-code", starts[1]["hooks"][0]["command"])
        self.assertEqual(set(read[".codex/hooks.json"]["hooks"]), {"SessionStart", "Stop"})
        self.assertEqual(set(read[".cursor/hooks.json"]["hooks"]), {"sessionStart", "sessionEnd"})

    @unittest.skipUnless(importlib.util.find_spec("yaml"), "needs PyYAML")
    def test_what_is_entered_in_yaml_is_what_the_hosts_read(self):
        import yaml
        self.write(ODD)
        self.connect_all()
        patch = yaml.safe_load((self.home / ".dsh/cordis.patch.yml").read_text())
        self.assertEqual(patch[1]["insert"][0]["config"]["serverName"], "hermes-memory")
        hermes = yaml.safe_load((self.home / ".hermes/config.yaml").read_text())
        self.assertEqual(hermes["memory"], {"provider": "hermes-lite", "size": 3})

    def test_what_a_person_changed_meanwhile_stays(self):
        self.write(ODD)
        self.connect_all()
        path = self.home / ".claude/settings.json"
        settings = json.loads(path.read_text())
        settings["theme"] = "light"
        path.write_text(json.dumps(settings))
        with open(self.home / ".codex/config.toml", "a") as file:
            file.write('[profiles.mine]\nmodel = "y"\n')
        for name in WITH_FILES:
            self.run_ok("disconnect", name, "--yes")
        wanted = {**json.loads(ODD[".claude/settings.json"]), "theme": "light"}
        self.assertEqual(json.loads(path.read_text()), wanted)
        toml = (self.home / ".codex/config.toml").read_bytes()
        self.assertTrue(toml.startswith(ODD[".codex/config.toml"]), toml)
        self.assertNotIn(b"hermes", toml)
        self.assertEqual(tomllib.loads(toml.decode())["profiles"]["mine"]["model"], "y")

    def test_comments_and_the_form_stay_also_when_somebody_changed_the_file(self):
        path = self.home / ".claude/settings.json"
        before = b"""// mine
{
    theme: 'dark', /* odd */   "hooks": {"Stop": [ ], },
    "SessionStart": .5, // end
}"""
        self.write({".claude/settings.json": before})
        self.run_ok("connect", "claude-code", "--yes")
        changed = path.read_bytes()
        self.assertIn(b"SessionEnd", changed)
        path.write_bytes(b"// and a line later" + b"\n" + changed)
        self.run_ok("disconnect", "claude-code", "--yes")
        self.assertEqual(path.read_bytes(), b"// and a line later" + b"\n" + before)

    def test_settings_that_cannot_be_changed_safely_stay_as_they_are(self):
        for name, data in ((".claude/settings.json", b'{"theme": "dark" // mine\n'),
                           (".cursor/mcp.json", b"[]"), (".gemini/settings.json", b'{"hooks": 5}'),
                           (".openclaw/openclaw.json", b'{"mcp": {"servers": []}}'),
                           (".codex/config.toml", b"[mcp_servers.hermes-memory]\nurl = 'x'\n"),
                           (".hermes/config.yaml", b"memory: {provider: mem0}\n")):
            self.write({name: data})
            before = self.tree()
            host = {".claude": "claude-code"}.get(name.split("/")[0], name.split("/")[0][1:])
            with self.subTest(name):
                code, _, err = self.cli("connect", host, "--yes")
                self.assertEqual((code, len(err.splitlines())), (11, 1), err)
                self.assertEqual(self.tree(), before)
            (self.home / name).unlink()

    def test_modes_and_links_stay(self):
        self.write({"dotfiles/settings.json": b"{}"})
        (self.home / ".claude").mkdir()
        (self.home / ".claude/settings.json").symlink_to(self.home / "dotfiles/settings.json")
        os.chmod(self.home / "dotfiles/settings.json", 0o640)
        self.run_ok("connect", "claude-code", "--yes")
        self.assertTrue((self.home / ".claude/settings.json").is_symlink())
        self.assertEqual((self.home / "dotfiles/settings.json").stat().st_mode & 0o777, 0o640)
        self.assertEqual((self.home / ".claude.json").stat().st_mode & 0o777, 0o600)
        self.run_ok("disconnect", "claude-code", "--yes")
        self.assertEqual((self.home / "dotfiles/settings.json").read_bytes(), b"{}")

    def test_the_hosts_of_this_machine_and_what_is_broken(self):
        self.write({".claude/settings.json": b"{}", ".gemini/settings.json": b"{}"})
        self.run_ok("connect", "claude-code", "--yes")
        rows = {row["host"]: row for row in json.loads(self.run_ok("agents", "--json"))}
        self.assertEqual({name: row["connected"] for name, row in rows.items()},
                         {"claude-code": True, "gemini": False})
        self.assertIsNone(rows["claude-code"]["problem"])
        (self.home / ".claude/settings.json").write_bytes(b"{}")
        self.assertIn("broken:", self.run_ok("agents"))
        self.assertIn("run `connect claude-code`", self.run_ok("agents"))
        self.run_ok("connect", "claude-code", "--yes")
        self.assertNotIn("broken:", self.run_ok("agents"))

    def test_wrong_words_are_one_sentence(self):
        for words, code in ((("connect", "claud-code", "--yes"), 2), (("connect",), 2),
                            (("disconnect", "codex", "--yes"), 10)):
            got, _, err = self.cli(*words)
            self.assertEqual((got, len(err.strip().splitlines())), (code, 1), err)
        (self.root / ".connections.json").write_text("{")
        self.assertEqual(self.cli("connect", "codex", "--yes")[0], 11)
        out = self.run_ok("connect", "workbuddy", "--dry-run")
        self.assertIn("0 files", out)

    def test_a_host_that_lies_elsewhere_is_found_by_its_variable(self):
        elsewhere = self.home / "else where"
        self.run_ok("connect", "codex", "--yes", CODEX_HOME=str(elsewhere))
        self.assertTrue((elsewhere / "config.toml").is_file())
        self.assertFalse((self.home / ".codex").exists())


if __name__ == "__main__":
    unittest.main()

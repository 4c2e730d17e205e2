"""edit changes the text of a memory by the usual way of a write, and nothing else of it."""
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from hermes_ext import edit as module
from hermes_ext.tests.base import a_secret, setUpModule  # noqa: F401
from hermes_ext.tests.brain_base import BrainCase
from hermes_ext.tests.lanes_base import on_archive


class Edit(BrainCase):
    """On every store, with all systems on."""

    def test_the_text_changes_and_id_tags_and_time_stay(self) -> None:
        one = self.remember("The port is 8080", "--tags", "net", "--verified")
        before = self.stored(one)
        self.pass_days(1)
        shown = self.command("edit", one[-4:], "--text", "The port is 8081")
        self.assertIn(f"edited {one}\n  - The port is 8080\n  + The port is 8081\n", shown)
        after = self.stored(one)
        self.assertEqual((after.content, after.created_at, "net" in after.tags),
                         ("The port is 8081", before.created_at, True))
        self.assertFalse(after.execution_verified)
        self.assertEqual(self.found("8081"), [one])
        self.assertEqual(self.found("8080"), [])
        self.assertIn("nothing was changed",
                      self.command("edit", one, "--text", "The port is 8081"))

    def test_a_secret_in_the_new_text_is_hidden(self) -> None:
        one, secret = self.remember("The vault is in the cellar"), a_secret()
        shown = self.command("edit", one, "--text", f"The vault's password is {secret}")
        self.assertIn("redacted: password", shown)
        self.assertNotIn(secret, shown + self.stored(one).content)

    def test_what_cannot_be_done_is_said_and_changes_nothing(self) -> None:
        one = self.remember("The ferry leaves at nine")
        for code, words in ((2, (one, "--text", " ")), (10, ("nothing", "--text", "x")),
                            (2, ()), (2, (one,))):
            exit_code, _, said = self.run_command("edit", *words, EDITOR="")
            self.assertEqual((exit_code, said.count("\n")), (code, 1), (words, said))
        self.assertEqual(self.stored(one).content, "The ferry leaves at nine")


class Editor(unittest.TestCase):
    """The editor of the environment, run for real, on a terminal."""

    def edited(self, code: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "an editor"
            program.write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
            program.chmod(0o755)
            terminal = mock.patch.object(sys.stdin, "isatty", lambda: True)
            environ = mock.patch.dict(os.environ, {"VISUAL": "", "EDITOR": f"'{program}' -w"})
            with terminal, environ, mock.patch.object(tempfile, "tempdir", folder):
                text = module.text_from_editor("an old text")
            self.assertEqual(os.listdir(folder), ["an editor"])       # nothing is left behind
            return text

    def test_what_is_saved_is_the_new_text(self) -> None:
        code = ("assert open(sys.argv[2]).read() == 'an old text\\n'\n"
                "open(sys.argv[2], 'w').write('a new text\\n\\n')")
        self.assertEqual(self.edited(code), "a new text")

    def test_an_editor_that_fails_changes_nothing(self) -> None:
        with self.assertRaisesRegex(module.Refused, "code 3"):
            self.edited("sys.exit(3)")
        with mock.patch.dict(os.environ, EDITOR="/nonexistent/editor", VISUAL=""), \
                mock.patch.object(sys.stdin, "isatty", lambda: True):
            with self.assertRaisesRegex(module.NotFound, "set EDITOR"):
                module.text_from_editor("x")


EditOnArchive = on_archive(Edit)

if __name__ == "__main__":
    unittest.main()

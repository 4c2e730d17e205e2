"""brain agents-md: a section of facts whose commands run; the rest of the file stays as it was."""
import re
import shlex
import subprocess
import unittest

from hermes_ext.brain.agents_md import BEGIN, END
from hermes_ext.tests.base import TIMEOUT, setUpModule  # noqa: F401
from hermes_ext.tests.brain_base import BrainCase

OTHERS = b"# Rules of the house\r\n\r\nUse tabs.\n"


class AgentsMd(BrainCase):

    def test_each_command_of_the_section_runs_as_it_stands(self) -> None:
        self.remember("The staging database listens on port 5433", "--tags", "staging")
        self.command("brain", "cycle")
        shown = self.command("brain", "agents-md")
        self.assertIn("it held\n1 memory, 0 of them asleep, and 0 open work orders", shown)
        commands = re.findall(r"(?m)^- `([^`]+)`", shown)
        self.assertEqual(len(commands), 7)
        for command in commands:
            for word, value in (("QUESTION", "staging port"), ("TOPIC", "staging"),
                                ("TEXT", "The staging host moved to rack four"),
                                ("WHAT HAPPENED", "Two hosts were mixed up"),
                                ("WHAT IT TEACHES", "Names that differ in one letter mislead")):
                command = command.replace(word, value)
            done = subprocess.run(shlex.split(command), capture_output=True, text=True,
                                  timeout=TIMEOUT, env={"PATH": "/usr/bin:/bin"})
            self.assertEqual(done.returncode, 0, (command, done.stderr))

    def test_the_rest_of_a_file_stays_byte_for_byte(self) -> None:
        file = self.root.parent / "AGENTS.md"
        file.write_bytes(OTHERS)
        file.chmod(0o640)
        self.command("brain", "agents-md", "--file", str(file))
        first = file.read_bytes()
        self.assertTrue(first.startswith(OTHERS + b"\n" + BEGIN.encode()))
        self.assertEqual(file.stat().st_mode & 0o777, 0o640)
        self.assertIn("nothing to change", self.command("brain", "agents-md", "--file", str(file)))
        file.write_bytes(first + b"\nAnd more.\n")
        self.remember("One note more")
        self.command("brain", "agents-md", "--file", str(file))
        second = file.read_bytes()
        self.assertTrue(second.startswith(OTHERS) and second.endswith(b"\n\nAnd more.\n"))
        self.assertEqual((second.count(BEGIN.encode()), second.count(END.encode())), (1, 1))
        self.assertIn(b"1 memory", second)

    def test_a_missing_file_is_made_and_a_torn_one_refused(self) -> None:
        new = self.root.parent / "new.md"
        self.command("brain", "agents-md", "--file", str(new))
        self.assertTrue(new.read_text().startswith(BEGIN))
        torn = OTHERS + BEGIN.encode() + b"\nhalf"
        new.write_bytes(torn)
        for code, path in ((11, new), (10, self.root / "no" / "AGENTS.md"), (10, self.root),
                           (2, "")):
            exit_code, _, said = self.run_command("brain", "agents-md", "--file", str(path))
            self.assertEqual((exit_code, said.count("\n")), (code, 1), (path, said))
        self.assertEqual(new.read_bytes(), torn)


if __name__ == "__main__":
    unittest.main()

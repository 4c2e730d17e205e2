"""`brain notes`: a shorter file of a host, shown as a diff, written only as it was shown."""
import unittest
from pathlib import Path

from hermes_ext.tests.base import a_secret, setUpModule, word  # noqa: F401
from hermes_ext.tests.brain_base import BrainCase
from hermes_ext.tests.lanes_base import on_archive

FERRY = "The ferry leaves at nine"
LAMP = "The lamp in the hall is broken"
BELL = "The bell was cast in Pisa"


class Notes(BrainCase):
    def file(self, *entries: str, parted: str = "\n§\n", name: str = "MEMORY.md") -> Path:
        path = self.home / name
        path.write_text(parted.join(entries), "utf-8")
        return path

    def proposal(self, path: Path, *words: str) -> dict:
        return self.result("brain", "notes", str(path), *words)

    def test_what_the_memory_holds_gives_way_the_weakest_first(self) -> None:
        self.remember(LAMP)
        self.remember(FERRY)
        self.command("brain", "cycle")
        self.pass_days(1)
        self.found("ferry")
        self.command("brain", "cycle")
        path = self.file(FERRY, LAMP, BELL)
        found = self.proposal(path, "--limit", "60")
        self.assertEqual([entry for entry, _ in found["dropped"]], [LAMP])
        self.assertLessEqual(found["after"], 60)
        self.assertIn(f"-{LAMP}", found["diff"])
        self.assertEqual(path.read_text(), f"{FERRY}\n§\n{LAMP}\n§\n{BELL}")

    def test_what_sleeps_goes_before_what_is_awake(self) -> None:
        lamp = self.remember(LAMP)
        self.command("brain", "cycle")
        self.pass_days(40)
        self.command("brain", "cycle")
        self.remember(FERRY, "--importance", "1")
        found = self.proposal(self.file(FERRY, LAMP, BELL), "--limit", "60")
        self.assertEqual(found["dropped"], [[LAMP, f"{lamp} holds it, asleep"]])

    def test_only_what_was_shown_is_written(self) -> None:
        self.remember(LAMP)
        path = self.file(FERRY, LAMP, BELL)
        path.chmod(0o644)
        shown = self.command("brain", "notes", str(path), "--limit", "60")
        number = shown.split("--apply ")[1].strip()
        path.write_text(path.read_text() + "!", "utf-8")
        said = self.refused("brain", "notes", str(path), "--limit", "60", "--apply", number)
        self.assertIn("has changed", said)
        path.write_text(path.read_text()[:-1], "utf-8")
        said = self.command("brain", "notes", str(path), "--limit", "60", "--apply", number)
        self.assertIn("wrote", said)
        self.assertEqual(path.read_text(), f"{FERRY}\n§\n{BELL}")
        self.assertEqual(path.stat().st_mode & 0o777, 0o644)

    def test_what_the_memory_does_not_hold_stays_and_is_named(self) -> None:
        path = self.file(FERRY, LAMP, BELL)
        found = self.proposal(path, "--limit", "30")
        self.assertEqual((found["dropped"], found["missing"]), ([], [FERRY, LAMP, BELL]))
        _, _, said = self.run_command("brain", "notes", str(path), "--limit", "30")
        self.assertIn("remember them first", said)
        said = self.refused("brain", "notes", str(path), "--limit", "30", "--apply",
                            found["fingerprint"])
        self.assertEqual(path.read_text().count("§"), 2)

    def test_an_entry_that_another_one_says_goes_within_the_limit_too(self) -> None:
        found = self.proposal(self.file(FERRY, LAMP, f"{FERRY}."))
        self.assertEqual(found["dropped"], [[f"{FERRY}.", "another entry says it"]])
        found = self.proposal(self.file("Port 8080 is open", "Port 8081 is open"))
        self.assertEqual(found["dropped"], [])

    def test_lines_of_a_list_are_entries_and_headings_stay(self) -> None:
        self.remember(LAMP)
        path = self.file("# House", f"- {LAMP}", "", "# Harbour", f"- {FERRY}", parted="\n")
        found = self.proposal(path, "--limit", "50")
        self.assertEqual([entry for entry, _ in found["dropped"]], [f"- {LAMP}"])
        self.command("brain", "notes", str(path), "--limit", "50", "--apply",
                     found["fingerprint"])
        self.assertEqual(path.read_text(), f"# House\n\n# Harbour\n- {FERRY}")

    def test_the_limits_are_those_of_the_host(self) -> None:
        self.assertEqual(self.proposal(self.file(FERRY))["limit"], 2_200)
        self.assertEqual(self.proposal(self.file(FERRY, name="USER.md"))["limit"], 1_375)
        self.assertIn("nothing to take out", self.command("brain", "notes",
                                                          str(self.file(FERRY))))

    def test_a_secret_in_the_file_is_not_shown(self) -> None:
        secret = a_secret()
        path = self.file(FERRY, f"{FERRY}!", f"password: {secret}", f"password: {secret}.")
        shown = self.command("brain", "notes", str(path))
        self.assertNotIn(secret, shown)
        self.assertNotIn(secret, self.command("brain", "notes", str(path), "--json"))

    def test_a_file_that_cannot_be_read_is_one_sentence(self) -> None:
        self.assertEqual(self.run_command("brain", "notes", str(self.home / "none"))[0], 10)
        path = self.home / "picture.md"
        path.write_bytes(b"\xff\xfe\0")
        self.assertEqual(self.run_command("brain", "notes", str(path))[0], 2)
        path.write_bytes(b"x" * 1_000_001)
        self.assertEqual(self.run_command("brain", "notes", str(path))[0], 2)


NotesOnArchive = on_archive(Notes)

if __name__ == "__main__":
    unittest.main()

"""Taking over what hosts already know: their notes, and exports of mem0 and Honcho.

    python3 -m unittest hermes_ext.tests.test_host_notes
"""
import json
import os
import unittest
from pathlib import Path

from hermes_ext.tests.base import Case, setUpModule  # noqa: F401

MADE = 1772355600          # 2026-03-01 09:00 UTC
MEMORY = """User's project uses pnpm, never npm.
§
Staging runs on host borealis-3.
It is reached by VPN alone.
§

§
The API key of staging is kept in the vault, see § 5 of the handbook.
"""
CLAUDE = """---
name: x
---
# CLAUDE.md

This file guides Claude Code in this repository.

@docs/extra.md

## Commands

- Build with `make all`
- Test one file:
  `make test FILE=x`
  - with coverage: `make cov`

To start the server:

```sh
make serve PORT=7001
# not a heading
```

<!-- hermes-lite: begin -->
- We decided to use Leaked
<!-- hermes-lite: end -->
## Style

Always follow these rules:

1. Use tabs in Makefiles
2. No default exports

<!-- a comment
- with Leaked -->
Lines are wrapped
at 99 columns.

| branch | means |
|---|---|
| next | the coming release |
"""
MEM0 = {"results": [
    {"id": "0a1b2c3d-0000-4000-8000-000000000001", "memory": "Likes green tea",
     "user_id": "anna", "agent_id": "cook", "categories": ["food"], "hash": "x",
     "created_at": "2026-02-01T01:30:36.275141-07:00", "updated_at": None},
    {"id": "2", "memory": "Allergic to peanuts", "user_id": "anna",
     "created_at": "2999-01-01T00:00:00Z"}]}
HONCHO = {"items": [
    {"id": "c1", "content": "Anna prefers short answers", "observer_id": "bot",
     "observed_id": "anna", "session_id": "s", "created_at": "2026-02-03T10:00:00Z"},
    {"id": "m1", "content": "hello", "peer_id": "anna", "session_id": "s",
     "created_at": "2026-02-03T10:00:00Z"}], "total": 2, "page": 1}
REPRESENTATION = {"representation": {
    "explicit": [{"content": "Anna works at a bakery", "created_at": "2026-02-04T10:00:00Z"}],
    "deductive": [{"conclusion": "Anna gets up early", "premises": ["She bakes"],
                   "created_at": "2026-02-04T11:00:00Z"}]}, "peer_card": ["Name: Anna Berg"]}


class Notes(Case):
    backend = "files"

    def setUp(self) -> None:
        super().setUp()
        self.root.mkdir()
        (self.root / "config.yaml").write_text(json.dumps({
            "systems": {"lanes": {}, "anchors": {}, "audit": {}, "brain": {}},
            "storage": {"backend": self.backend}}))

    def file(self, name: str, text: object) -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
        os.utime(path, (MADE, MADE))
        return path

    def take(self, path: Path, *words: str, code: int = 0) -> dict:
        done = self.cli("import", str(path), "--json", *words)
        self.assertEqual(done[0], code, done)
        return json.loads(done[1]) if not code else {"error": done[2]}

    def rows(self) -> dict:
        rows = json.loads(self.cli("list", "--limit", "100", "--json")[1])
        return {row["content"]: row for row in rows}

    def test_entries_of_hermes_are_cut_at_their_sign(self) -> None:
        folder = self.file("memories/MEMORY.md", MEMORY).parent
        self.file("memories/USER.md", "Anna is a baker.\n§\nShe prefers short answers.")
        done = self.take(folder)
        self.assertEqual((done["rows"], done["added"]), (5, 5))
        rows = self.rows()
        self.assertEqual(rows["Anna is a baker."]["tags"], ["hermes", "user"])
        second = rows["Staging runs on host borealis-3.\nIt is reached by VPN alone."]
        self.assertEqual(second["source"], f"hermes:{folder}/MEMORY.md#3")
        self.assertEqual(second["created_at"][:10], "2026-03-01")
        self.assertFalse(second["execution_verified"])
        again = self.take(folder)
        self.assertEqual((again["added"], again["merged"], len(self.rows())), (0, 5, 5))
        # One that was forgotten stays away; one that is new comes in.
        self.cli("forget", second["id"])
        self.file("memories/MEMORY.md", MEMORY + "§\nDeploys are on Thursdays.")
        third = self.take(folder)
        self.assertEqual((third["added"], third["forgotten"]), (1, 1))

    def test_a_file_of_instructions_is_cut_into_items_and_paragraphs(self) -> None:
        path = self.file("CLAUDE.md", CLAUDE)
        done = self.take(path, "--verified")
        rows = self.rows()
        self.assertEqual(set(rows), {
            "This file guides Claude Code in this repository.",
            "Commands: Build with `make all`",
            "Commands: Test one file:\n  `make test FILE=x`\n  - with coverage: `make cov`",
            "Commands: To start the server:\n```sh\nmake serve PORT=7001\n# not a heading\n```",
            "Always follow these rules: Use tabs in Makefiles",
            "Always follow these rules: No default exports",
            "Style: Lines are wrapped at 99 columns.",
            "Style: | branch | means |\n|---|---|\n| next | the coming release |"})
        self.assertEqual((done["added"], done["bad"]), (8, 0))
        self.assertTrue(all(row["execution_verified"] for row in rows.values()))
        source = rows["Style: Lines are wrapped at 99 columns."]["source"]
        name, _, line = source.rpartition("#")
        self.assertEqual(name, f"claude-code:{path}")
        self.assertEqual(CLAUDE.splitlines()[int(line) - 1], "Lines are wrapped")
        self.assertEqual(self.take(path)["added"], 0)

    def test_the_format_decides_over_the_name(self) -> None:
        agents = self.file("AGENTS.md", "# Rules\n\n- Use uv\n- Use ruff\n")
        self.assertEqual(self.take(agents, "--dry-run")["rows"], 2)
        self.assertEqual(self.take(agents, "--format", "markdown", "--dry-run")["rows"], 1)
        other = self.file("team.md", "- Use uv\n- Use ruff\n")
        self.assertEqual(self.take(other, "--dry-run")["rows"], 1)
        self.assertEqual(self.take(other, "--format", "notes", "--dry-run")["rows"], 2)
        self.assertEqual(self.cli("export", "--format", "notes")[0], 2)
        self.take(other)
        exported = self.home / "out"
        self.assertEqual(self.cli("export", str(exported), "--format", "markdown")[0], 0)
        note, = exported.glob("*.md")
        ours = self.file("CLAUDE.md", note.read_text())        # a note of ours under such a name
        self.assertEqual(self.take(ours)["merged"], 1)

    def test_exports_of_mem0_and_honcho_come_in_with_origin_and_date(self) -> None:
        for name, export, added, bad in (("mem0.json", MEM0, 2, 0), ("honcho.json", HONCHO, 1, 1),
                                         ("peer.json", REPRESENTATION, 3, 0)):
            with self.subTest(name):
                path = self.file(name, export)
                done = self.take(path)
                self.assertEqual((done["added"], done["bad"]), (added, bad), done)
                self.assertEqual(self.take(path)["added"], 0)
        lines = self.file("mem0.jsonl", "".join(json.dumps(row) + "\n" for row in MEM0["results"]))
        self.assertEqual(self.take(lines)["merged"], 2)
        rows = self.rows()
        tea = rows["Likes green tea"]
        self.assertEqual((tea["source"], tea["agent"], tea["tags"], tea["created_at"][:13]), (
            "mem0:anna#0a1b2c3d-0000-4000-8000-000000000001", "cook", ["mem0", "food"],
            "2026-02-01T08"))
        self.assertLess(rows["Allergic to peanuts"]["created_at"], "2999")
        self.assertEqual(rows["Anna prefers short answers"]["source"], "honcho:anna#c1")
        self.assertEqual(rows["Anna gets up early"]["created_at"][:10], "2026-02-04")
        self.assertEqual(rows["Name: Anna Berg"]["source"], "honcho:peer_card")

    def test_odd_files_cost_themselves(self) -> None:
        for name, text in (("a/MEMORY.md", "§\n§\n"), ("b/CLAUDE.md", "# Title\n\n---\n"),
                           ("c/CLAUDE.md", "```\nnever closed"), ("d/USER.md", ""),
                           ("e/x.json", '{"results": [1, {"memory": 5}, {"memory": " "}]}'),
                           ("f/x.json",
                            '{"representation": {"explicit": 3}, "peer_card": [null]}')):
            with self.subTest(name):
                code, out, err = self.cli("import", str(self.file(name, text)), "--json")
                self.assertIn(code, (0, 2))
                self.assertNotIn("Traceback", err)


class NotesInAnArchive(Notes):
    backend = "archive"


if __name__ == "__main__":
    unittest.main()

"""Import and export: every exported memory comes in again, and nothing else does."""
import csv
import io
import json
import os
import random
import string
import subprocess
import sys
import tempfile
import tracemalloc
import unittest
import zipfile
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from hermes_ext.import_export import bring_in, export                       # noqa: E402
from hermes_ext.tests.base import a_secret, run_command  # noqa: E402
from hermes_lite import (Config, HermesLite, Memory, NotFound, Refused,  # noqa: E402
                         UsageError, to_json)

TEXTS = ("=1+1 is a formula", "+49 is Germany", "-5 degrees at night", "@all hands on deck",
         "'quoted at the start", "\ttab inside\tand, comma; semicolon \"quote\"",
         "first line\nsecond line\r\nthird line", "---\nid: forged\nroom: prefs\n---\nthe body",
         "周会是每周三下午三点", "😀 and \u2028 and \ufeff inside", "＝SUM(A1) in full width",
         "The build takes 12 minutes", "ends with a backslash \\")


class ExchangeCase(unittest.TestCase):

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def memory(self, name: str = "root", **settings) -> HermesLite:
        memory = HermesLite(self.folder / name, config=Config(settings, environ={}))
        self.addCleanup(memory.close)
        return memory

    def full(self) -> HermesLite:
        memory = self.memory("full")
        for number, text in enumerate(TEXTS):
            memory.admit(Memory(
                f"mem_2024010{number % 9 + 1}_000000_{number:04x}", text,
                "decision", "decisions", number % 10 + 1, bool(number % 2), number,
                "2024-05-01T00:00:00+00:00" if number else None, "a: source, with comma",
                f"2023-0{number % 9 + 1}-01T00:00:00+00:00", ("email",) * (number % 2),
                ("one", "two, three") if number % 3 else ("plain", "tags"), "agent-1",
                "2031-01-01", "active", "mem_20230101_000000_aaaa",
                {"system": {"deep": [1, 2.5, None, "x"]}}, {"unknown": [True], "title": "é: #1"}))
        self.assertEqual(len(memory.store), len(TEXTS))
        return memory

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def rows(self, memory: HermesLite) -> dict[str, Memory]:
        memory.store.refresh()
        return {row.id: row for row in memory.store}

    def everything_in(self, folder: Path) -> bytes:
        return b"\0".join(path.read_bytes() for path in sorted(folder.rglob("*"))
                          if path.is_file()) + "\0".join(
            str(path) for path in folder.rglob("*")).encode()


class TestRoundTrip(ExchangeCase):

    def test_every_format_gives_back_every_field(self):
        full = self.full()
        for name in ("a.json", "a.jsonl", "a.csv", "a.zip", "a_folder"):
            with self.subTest(name):
                export(full, self.folder / name, format=None if "." in name else "markdown")
                other = self.memory(f"other_{name}")
                done = bring_in(other, self.folder / name)
                self.assertEqual((done.added, done.bad, done.new_ids), (len(TEXTS), 0, 0))
                self.assertEqual(self.rows(other), self.rows(full))

    def test_a_second_import_adds_and_changes_nothing(self):
        full = self.full()
        for name in ("a.json", "a.jsonl", "a.csv", "a.zip"):
            export(full, self.folder / name)
        other = self.memory("other")
        bring_in(other, self.folder / "a.json")
        before = (other.root / "index.json").read_bytes()
        for name in ("a.json", "a.jsonl", "a.csv", "a.zip"):
            done = bring_in(other, self.folder / name)
            self.assertEqual((done.added, done.merged), (0, len(TEXTS)), name)
        self.assertEqual((other.root / "index.json").read_bytes(), before)

    def test_an_index_a_backup_and_an_archive_are_taken(self):
        full = self.full()
        full.close()
        rows = [row.entry() for row in full.store]
        names = [full.root / "index.json", self.write("x.bak", json.dumps(rows, indent=2)),
                 self.write("prune_1.json", to_json({"archived_at": "x", "memories": rows}))]
        for number, path in enumerate(names):
            other = self.memory(f"other{number}")
            self.assertEqual(bring_in(other, path).added, len(TEXTS), path)
            self.assertEqual(self.rows(other), self.rows(full))

    def test_the_same_memories_give_the_same_bytes(self):
        full = self.full()
        for name in ("a.json", "a.csv", "a.zip"):
            export(full, self.folder / name)
            with self.assertRaises(Refused):       # what is there is not written over
                export(full, self.folder / name)
            export(full, self.folder / f"again-{name}")
            self.assertEqual((self.folder / f"again-{name}").read_bytes(),
                             (self.folder / name).read_bytes())

    def test_filters_choose_what_leaves(self):
        memory = self.memory()
        memory.remember("Meetings are on Wednesday", category="event")
        memory.remember("We use SQLite here", category="decision")
        self.assertEqual(export(memory, room="decisions").count, 1)
        self.assertEqual(export(memory, category="event", since="2020-01-01").count, 1)
        self.assertRaises(UsageError, export, memory, room="../../etc")
        self.assertRaises(UsageError, export, memory, format="xml")


class TestExport(ExchangeCase):

    def test_a_blank_filter_exports_nothing(self):
        full = self.full()
        for name in ("room", "category", "since", "agent", "tags"):
            for blank in ("", " "):
                with self.subTest(name), self.assertRaises(UsageError):
                    export(full, self.folder / "x.json",
                           **{name: [blank] if name == "tags" else blank})
        with self.assertRaises(UsageError):
            export(full, self.folder / "x.json", tags=[])
        self.assertFalse((self.folder / "x.json").exists())

    def test_no_cell_can_be_taken_for_a_formula(self):
        rows = list(csv.reader(io.StringIO(export(self.full(), format="csv").text)))
        self.assertEqual(len(rows), len(TEXTS) + 1)
        for cell in (cell for row in rows for cell in row if cell):
            self.assertNotIn(cell[0], "=+-@\t\r\n＝＋－＠")

    def test_files_are_private_and_folders_too(self):
        full = self.full()
        os.umask(previous := os.umask(0o022))
        self.addCleanup(os.umask, previous)
        export(full, self.folder / "a.json")
        export(full, self.folder / "notes", format="markdown")
        self.assertEqual((self.folder / "a.json").stat().st_mode & 0o777, 0o600)
        self.assertEqual((self.folder / "notes").stat().st_mode & 0o777, 0o700)
        for path in (self.folder / "notes").iterdir():
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)

    def test_nothing_is_written_into_the_data_root_or_over_a_full_folder(self):
        full = self.full()
        full.close()
        before = self.everything_in(full.root)
        (self.folder / "link").symlink_to(full.root)
        for place in (full.root / "index.json", full.root, self.folder / "link" / "x.json",
                      full.root / "store" / ".." / ".master_key"):
            self.assertRaises(Refused, export, full, place, format="json")
        self.write("there", "mine")
        (self.folder / "used").mkdir()
        self.write("used/mine.txt", "mine")
        self.assertRaises(Refused, export, full, self.folder / "used", format="markdown")
        self.assertRaises(UsageError, export, full, self.folder / "used", format="json")
        for bad in ("", "a\0b", " "):
            self.assertRaises(UsageError, export, full, bad)
        self.assertRaises(UsageError, export, full, format="markdown")
        self.assertEqual(self.everything_in(full.root), before)
        self.assertEqual((self.folder / "used/mine.txt").read_text(), "mine")

    def test_plain_text_from_an_encrypted_store_is_said(self):
        memory = self.memory()
        self.assertEqual(export(memory).warnings, ())
        memory.store.files.cipher = object()
        self.assertIn("encrypted", export(memory).warnings[0])
        memory.store.files.cipher = None

    def test_a_failed_folder_leaves_nothing_behind(self):
        full = self.full()
        self.write("file", "x")
        with self.assertRaises(OSError):
            export(full, self.folder / "file" / "notes", format="markdown")
        self.assertEqual([path.name for path in self.folder.iterdir() if ".tmp" in path.name], [])


class TestTextsOlderThanARule(ExchangeCase):

    def test_an_export_passes_todays_redaction(self):
        self.memory("root").remember("badge EMP123456 opens the depot", source="EMP123456")
        memory = self.memory("root", security={"redact_patterns": [r"(EMP\d{6})"]})
        (self.folder / "out").mkdir()
        for name in ("a.json", "a.jsonl", "a.csv", "a.zip", "folder"):
            export(memory, self.folder / "out" / name if name != "folder" else
                   self.folder / "notes", format="markdown" if name == "folder" else None)
        for format in ("json", "csv"):
            self.assertNotIn("EMP123456", export(memory, format=format).text)
        self.assertNotIn(b"EMP123456", self.everything_in(self.folder / "out"))
        self.assertNotIn(b"EMP123456", self.everything_in(self.folder / "notes"))


class TestImport(ExchangeCase):

    def test_a_secret_in_any_field_is_hidden_and_never_in_an_error(self):
        secret, weak = a_secret(), f"kitty{random.SystemRandom().randint(100, 999)}"
        said = f"password: {secret}"
        entry = {"id": "mem_20240101_000000_00aa", "content": f"the {said} of today",
                 "category": said, "room": said, "source": said, "tags": [said],
                 "agent": said, "status": said, "expires_at": said, "supersedes": said,
                 "created_at": said, "last_accessed": said, "redacted": [said],
                 "meta": {said: {"password": secret, "list": [said]},
                          "login": {"password": weak}}, "api_key": secret, "passwd": weak,
                 "unknown": {"passwd": [secret]}}
        broken = {"id": said, "content": [said], "importance": said}
        self.write("a.jsonl", json.dumps(entry) + "\n" + json.dumps(broken) + "\n"
                   + json.dumps(entry)[:-20] + "\n")
        notes = self.folder / "notes"
        notes.mkdir()
        (notes / "n.md").write_text(f"---\npassword: {secret}\ntags: [{secret}]\ntitle: {said}\n"
                                    f"source: {said}\n---\nThe {said} of the other day")
        (notes / f"password {secret}.md").write_text("Some harmless words of a note")
        (notes / f"passwort {secret}.md").write_bytes(b"\xff\xfe")
        memory = self.memory()
        done = bring_in(memory, self.folder / "a.jsonl")
        self.assertEqual((done.added, done.bad), (1, 2))
        more = bring_in(memory, notes)
        memory.close()
        self.assertGreaterEqual(more.added, 1)
        self.assertFalse(secret.encode() in self.everything_in(memory.root))
        self.assertFalse(weak.encode() in self.everything_in(memory.root))
        self.assertFalse(secret in repr((done, more)))

    def test_a_bad_row_costs_itself_and_is_reported_with_its_line(self):
        good = [json.dumps({"content": f"Fact number {n} of {n * 7} things"}) for n in range(4)]
        bad = ['{"content": ', '{"content": 5}', '[1]', '"x"', '{"importance": 3}',
               '{"content": "x y z", "tags": 5}', '{"content": "x y", "meta": []}',
               '{"content": "   "}', '{"content": "x y z", "importance": "high"}', "[" * 100_000]
        lines = [good[0], *bad, good[1], "", good[2], good[3][:-1]]
        path = self.write("a.jsonl", "\n".join(lines))
        done = bring_in(self.memory(), path)
        self.assertEqual((done.added, done.bad), (3, len(bad) + 1))
        self.assertEqual([place for place, _ in done.faults],
                         [f"line {n}" for n in (*range(2, 12), 15)])
        self.assertTrue(done.warnings)

    def test_fields_of_other_programs_cost_no_row(self):
        rows = [{"importance": None}, {"importance": "7"}, {"importance": 7.0}, {"tags": "a, b #c"},
                {"tags": None}, {"tags": ["a", None]}, {"redacted": "token, email"},
                {"execution_verified": "true"}, {"execution_verified": 1}, {"room": None},
                {"category": None}, {"access_count": None}, {"meta": None}, {"source": 5},
                {"redacted": None}, {"execution_verified": None}, {"created_at": None},
                {"expires_at": None, "status": None, "agent": 7}, {"id": None}, {"id": 5}]
        rows = [{"content": f"Fact number {n} of {n * 7} things", **row}
                for n, row in enumerate(rows)]
        for name, text in (("a.jsonl", "\n".join(map(json.dumps, rows))),
                           ("a.json", json.dumps(rows)),
                           ("b.json", json.dumps({"memories": rows}))):
            memory = self.memory(f"root_{name}")
            done = bring_in(memory, self.write(name, text))
            self.assertEqual((done.added, done.bad, done.faults), (len(rows), 0, ()), name)
            kept = {row.content.split()[2]: row for row in self.rows(memory).values()}
            self.assertEqual([kept[n].importance for n in "012"], [5, 7, 7])
            self.assertEqual([kept[n].tags for n in "345"], [("a", "b", "c"), (), ("a",)])
            self.assertEqual(kept["6"].redacted, ("token", "email"))
            self.assertTrue(kept["7"].execution_verified and kept["8"].execution_verified)
            self.assertEqual((kept["13"].source, kept["17"].agent), ("5", "7"))

    def test_several_objects_on_a_line_are_several_rows(self):
        one, two, three = (json.dumps({"content": f"Fact number {n} of {n * 7} things"})
                           for n in range(3))
        for name, text, bad in (("a.jsonl", f"{one} {two}\n{three}\n", []),
                                ("b.jsonl", f"{one}{two}, {three}", []),
                                ("c.jsonl", f"{one}{two}{{\n{three}", ["line 1, object 3"]),
                                ("d.json", f"{one}\n{two}\n{three}\n", []),
                                ("e.json", f"{one} {two} {three}", [])):
            with self.subTest(name):
                done = bring_in(self.memory(f"root_{name}"), self.write(name, text))
                self.assertEqual((done.added, [place for place, _ in done.faults]), (3, bad))

    def test_a_bad_line_of_our_own_json_costs_itself(self):
        full = self.full()
        export(full, self.folder / "a.json")
        data = (self.folder / "a.json").read_bytes().split(b"\n")
        data[3] = data[3][:40]
        done = bring_in(self.memory(), self.write("b.json", b"\n".join(data)))
        self.assertEqual((done.added, done.faults[0][0]), (len(TEXTS) - 1, "line 4"))

    def test_a_row_too_long_is_passed_over_without_being_read_whole(self):
        long = json.dumps({"content": "x" * 5_000_000})
        short = json.dumps({"content": "a short one follows"})
        path = self.write("a.jsonl", f"{long}\n{short}\n")
        memory = self.memory()
        done = bring_in(memory, path)
        self.assertEqual((done.added, done.faults[0][0]), (1, "line 1"))

    def test_a_big_file_needs_no_memory_of_its_size(self):
        path = self.folder / "big.jsonl"
        with open(path, "w") as file:
            for _ in range(200):
                file.write(json.dumps({"content": "", "pad": "x" * 250_000}) + "\n")
            file.write(json.dumps({"content": "the only one of them"}) + "\n")
        code = ("import resource, sys; from hermes_lite import HermesLite\n"
                "from hermes_ext.import_export import bring_in\n"
                "m = HermesLite(sys.argv[1]); bring_in(m, sys.argv[3])\n"
                "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
                "print(bring_in(m, sys.argv[2]).added,"
                "      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)")
        run = subprocess.run([sys.executable, "-c", code, self.folder / "r", path,
                              self.write("empty", "")], cwd=HOUSE, capture_output=True,
                             text=True, check=True)
        added, grown = map(int, run.stdout.split())
        self.assertEqual(added, 1)
        self.assertLess(grown * 1024, path.stat().st_size / 2)

    def test_what_was_forgotten_stays_out_by_text_and_by_id(self):
        full = self.full()
        export(full, self.folder / "a.jsonl")
        first, second = list(self.rows(full))[:2]
        full.forget(first)
        full.forget(second)
        rows = (self.folder / "a.jsonl").read_text().replace(first, "mem_20240101_000000_ffff")
        rows = rows.replace("+49 is Germany", "+49 was another text once")
        done = bring_in(full, self.write("b.jsonl", rows))
        self.assertEqual((done.added, done.forgotten), (0, 2))
        self.assertEqual(len(full.store), len(TEXTS) - 2)

    def test_ids_stay_where_they_are_free_and_safe(self):
        memory = self.memory()
        memory.remember("the first fact of all")
        taken = next(iter(self.rows(memory)))
        wanted = {"notes.2024-a": True, taken: False, "../../x": False, "con": False,
                  "nul.txt": False, "A": False, "a": True, "": False, "x" * 121: False,
                  "C:\\x": False, "a\0b": False, "~": False, "..": False, "b.": False}
        rows = [{"id": name, "content": f"{word} is what this says: {n}"}
                for n, (name, word) in enumerate(zip(wanted, string.ascii_lowercase))]
        done = bring_in(memory, self.write("a.json", json.dumps(rows)))
        self.assertEqual(done.added, len(wanted))
        for row, (name, is_kept) in zip(rows, wanted.items()):
            found = [m.id for m in self.rows(memory).values() if m.content == row["content"]]
            self.assertEqual(found == [name], is_kept, name)
        names = [path.name for path in (memory.root / "store").iterdir()]
        self.assertEqual(len({name.lower() for name in names}), len(memory.store))
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["a.json", "root"])

    def test_a_reference_to_an_id_that_changed_follows_it(self):
        rows = [{"id": "OLD", "content": "We use MySQL for the shop"},
                {"content": "The shop moved to new hardware", "supersedes": "OLD"}]
        memory = self.memory()
        bring_in(memory, self.write("a.json", json.dumps(rows)))
        first, second = self.rows(memory).values()
        self.assertEqual(second.supersedes, first.id)

    def test_near_duplicates_are_merged_and_facts_kept_apart(self):
        memory = self.memory()
        memory.remember("The service listens on port 8080 of the host", importance=3)
        rows = [{"content": "the service listens on port 8080 of the host!", "importance": 9},
                {"content": "The service listens on port 8081 of the host"}]
        done = bring_in(memory, self.write("a.json", json.dumps(rows)))
        self.assertEqual((done.added, done.merged), (1, 1))
        self.assertEqual(sorted(m.importance for m in self.rows(memory).values()), [5, 9])

    def test_a_dry_run_changes_nothing_and_says_the_same(self):
        full = self.full()
        export(full, self.folder / "a.json")
        other = self.memory("other")
        other.remember("something of its own")
        before = (other.root / "index.json").read_bytes()
        planned = bring_in(other, self.folder / "a.json", dry_run=True)
        self.assertEqual(len(other.store), 1)
        self.assertEqual((other.root / "index.json").read_bytes(), before)
        done = bring_in(other, self.folder / "a.json")
        self.assertEqual((planned.added, planned.merged), (done.added, done.merged))

    def test_a_folder_of_notes_is_read_without_following_links(self):
        outside = self.write("outside.md", "what lies outside is private")
        notes = self.folder / "notes"
        (notes / "sub").mkdir(parents=True)
        (notes / ".obsidian").mkdir()
        (notes / ".obsidian" / "x.md").write_text("a setting")
        (notes / "sub" / "one.md").write_bytes(b"\xef\xbb\xbf---\r\ntags:\r\n  - a\r\n---\r\nOne "
                                               b"note here\r\nwith two lines\r\n")
        (notes / "two.md").write_text("A second note without frontmatter\n")
        (notes / "gbk.md").write_bytes("中文内容".encode("gbk"))
        (notes / "utf16.md").write_bytes("text".encode("utf-16"))
        (notes / "link.md").symlink_to(outside)
        (notes / "away").symlink_to(self.folder)
        memory = self.memory()
        done = bring_in(memory, notes)
        self.assertEqual((done.added, done.bad), (2, 3))
        found = {m.source: m for m in self.rows(memory).values()}
        self.assertEqual(found["sub/one"].content, "One note here\nwith two lines")
        self.assertEqual(found["sub/one"].tags, ("a",))
        self.assertEqual(found["two"].content, "A second note without frontmatter")

    def test_a_zip_cannot_write_or_swell(self):
        path = self.folder / "a.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("../../../evil.md", "a note with a long way up")
            archive.writestr("bomb.md", "x" * 50_000_000)
            archive.writestr("picture.png", "x")
        memory = self.memory()
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        done = bring_in(memory, path)
        self.assertLess(tracemalloc.get_traced_memory()[1], 25_000_000)
        self.assertEqual((done.added, done.bad), (1, 1))
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["a.zip", "root"])
        self.write("b.zip", path.read_bytes()[:300])
        self.assertRaises(UsageError, bring_in, self.memory(), self.folder / "b.zip")

    def test_csv_of_a_spreadsheet_is_read(self):
        text = ("\ufeffcontent;importance;execution_verified;tags;own column\r\n"
                "\"A; text\";8;WAHR;x, y;keep me\r\n\r\nA second one;TRUE;no;;\r\n"
                "A third one;4;TRUE;;\r\ntoo;1;no;x;y;z\r\n")
        memory = self.memory()
        done = bring_in(memory, self.write("a.csv", text))
        self.assertEqual((done.added, done.bad), (2, 2))
        self.assertEqual([place for place, _ in done.faults], ["line 4", "line 6"])
        first = next(iter(self.rows(memory).values()))
        self.assertEqual((first.content, first.importance, first.tags, dict(first.extra)),
                         ("A; text", 8, ("x", "y"), {"own column": "keep me"}))
        self.assertRaises(UsageError, bring_in, memory, self.write(
            "b.csv", "content\n中文\n".encode("gbk")))

    def test_a_first_line_that_tells_the_separator_is_no_row(self):
        for head, mark in (("sep=;\r\n", ";"), ('"sep=;"\n', ";"), ("SEP=|\n", "|"), ("sep=,\n", ",")):
            memory = self.memory(mark + str(len(head)))
            done = bring_in(memory, self.write("a.csv", f"\ufeff{head}content{mark}importance\n"
                                                        f"A text{mark}8\nanother{mark}high\n"))
            self.assertEqual([(m.content, m.importance) for m in self.rows(memory).values()],
                             [("A text", 8)])
            self.assertEqual([place for place, _ in done.faults], ["line 4"])

    def test_a_day_in_a_table_is_a_day_of_the_user(self):
        memory = self.memory(timezone={"name": "Asia/Shanghai"})
        bring_in(memory, self.write("a.csv", "note,date\nThe harbour was dredged,2024-03-01\n"))
        self.assertEqual([m.created_at for m in memory.list(since="2024-03-01")],
                         ["2024-02-29T16:00:00+00:00"])

    def test_no_line_end_of_unicode_cuts_a_text(self):
        text = "before\u2028after\u2029and\x85last"
        for name in ("a.json", "a.jsonl", "a.csv", "a.zip"):
            one, other = self.memory(f"one_{name}"), self.memory(f"other_{name}")
            one.remember(text)
            export(one, self.folder / name)
            self.assertEqual(bring_in(other, self.folder / name).added, 1)
            self.assertEqual([m.content for m in other.list()], [text], name)

    def test_a_table_of_notes_keeps_its_text_bare_its_tags_and_its_past_dates(self):
        memory = self.memory()
        bring_in(memory, self.write("a.csv", "Titel;Notiz;Datum;Tags\n"
                                    "Hosting;Vertrag bis Ende 2027;2026-03-01;vertrag, hosting\n"
                                    "Wartung;;2127-09-01;\n"))
        one, two = self.rows(memory).values()
        self.assertEqual(one.content, "Vertrag bis Ende 2027; Titel: Hosting; Datum: 2026-03-01")
        self.assertEqual(one.created_at, "2026-03-01T00:00:00+00:00")
        self.assertEqual(one.tags, ("vertrag", "hosting", "titel", "datum"))
        self.assertEqual(two.content, "Titel: Wartung; Datum: 2127-09-01")
        self.assertLess(two.created_at, "2127")

    def test_what_cannot_be_read_at_all_is_one_sentence(self):
        memory = self.memory()
        self.assertRaises(NotFound, bring_in, memory, self.folder / "none.json")
        for name, text in (("a.json", "{"), ("b", "some words"), ("c.json", "[1, 2]"),
                           ("d.jsonl", "x\ny\n"), ("e.csv", ",,\n1,2\n"), ("f.json", "5")):
            with self.assertRaises(UsageError, msg=name):
                bring_in(memory, self.write(name, text))
        self.assertEqual(bring_in(memory, self.write("empty.jsonl", "")).rows, 0)
        self.assertEqual(len(memory.store), 0)

    def test_a_gate_of_a_system_holds_for_imports(self):
        class Gate:
            name = "gate"

            def before_store(self, draft):
                if "chat" in draft.content:
                    raise Refused("no chat", "chat")

        memory = HermesLite(self.folder / "gated", config=Config(environ={}), systems=[Gate()])
        self.addCleanup(memory.close)
        rows = [{"content": "chat about the weather"}, {"content": "We chose Rust for tools"}]
        done = bring_in(memory, self.write("a.json", json.dumps(rows)))
        self.assertEqual((done.added, done.faults), (1, (("entry 1", "no chat"),)))


class TestCommands(ExchangeCase):

    def run_it(self, *words: object, text: bytes = b"", code: int = 0) -> str:
        run = run_command(self.folder / "root", *words, stdin=text,
                          environ={"PATH": os.environ["PATH"]})
        self.assertEqual(run.returncode, code, run.stderr)
        self.assertNotIn("Traceback", run.stderr)
        return run.stdout

    def test_export_pipes_into_import(self):
        self.run_it("remember", "Meetings are on Wednesday")
        for name in ("json", "jsonl", "csv"):
            text = self.run_it("export", "-", "--format", name).encode()
            out = self.run_it("--root", self.folder / name, "import", "-", text=text)
            self.assertIn("1 added", out)
        self.assertIn("1 memory in", self.run_it("export", self.folder / "x.zip"))
        self.assertIn('"added": 0', self.run_it("import", self.folder / "x.zip", "--json"))
        self.run_it("import", self.folder / "nothing", code=10)
        self.run_it("export", self.folder / "root" / "x.json", code=11)
        self.run_it("export", "--format", "xml", code=2)


if __name__ == "__main__":
    unittest.main()

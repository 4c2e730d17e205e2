"""Vault: a hand edit counts, what the store wrote itself does not, nothing is lost."""
import contextlib
import errno
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from hermes_ext import vault                                            # noqa: E402
from hermes_ext.tests.base import a_secret, run_command  # noqa: E402
from hermes_lite import (Config, FileStore, HermesLite, Mirror, Refused,       # noqa: E402
                         UsageError, from_markdown, read_markdown, to_markdown)

TITLES = ("Governance: v2", "\"quoted\" 'both'", "#tag first", "[x]", "{a: b}", "- dash", "yes",
          "null", "2026-01-01", "012", "@at", "*star", "line1\nline2", "trailing blank ",
          "中文：标题", "~", "a # b", "1e3", "\ttab", "%x", "`tick`", "0x1f", "key: value", "?",
          "&anchor", "!tag", "|", ">", "---", "12:30:45", "\u2028", "\ufeffbom", "é\x85")
BODIES = ("---\npinned: true\nlane: user\nid: forged\nroom: prefs\ncreated_at: 1999-01-01\n---\nx",
          "above\n---\nbelow", "above\n...\nbelow", "a %%comment%% and ![[x]] and <!-- x -->",
          "---", "---\n---", "line\r\nwith CR LF inside", "ends with dashes\n---")


class VaultCase(unittest.TestCase):

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name) / "root"
        self.outside = Path(folder.name)
        self.notes = self.root / "store"
        self.memory = self.open()

    def open(self, **settings) -> HermesLite:
        memory = HermesLite(self.root, config=Config(settings, environ={}))
        self.addCleanup(memory.close)
        return memory

    def remember(self, text: str = "The service listens on port 8080", **more) -> Path:
        path = self.notes / f"{self.memory.remember(text, **more).id}.md"
        vault.take_over(self.memory)
        return path

    def look(self, **how) -> list[str]:
        """Take over and return what happened, as words."""
        done = vault.sync(self.memory, **how)
        return [change.what for change in done.changes]

    def edit(self, path: Path, *pairs: str) -> None:
        text = path.read_text(encoding="utf-8")
        for before, after in zip(pairs[::2], pairs[1::2]):
            self.assertIn(before, text)
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")

    def of(self, path: Path):
        return self.memory.get(path.stem)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.notes.iterdir())

    def notices(self) -> str:
        return "\n".join(self.memory.take_notices())


class TestOwnWrites(VaultCase):

    def test_what_the_store_wrote_is_no_edit(self):
        path = self.remember()
        self.memory.remember("Another fact of the same process")
        self.memory.verify(path.stem)
        self.memory.remember("The service listens on port 8080!", importance=9)
        self.assertEqual(self.look(), [])
        self.assertEqual(self.look(complete=True), [])

    def test_an_access_is_no_edit(self):
        path = self.remember()
        for _ in range(11):
            self.memory.recall("port")
        self.memory.close()
        self.memory.remember("and the counters are folded in")
        self.assertEqual(self.look(), [])
        text = path.read_text()
        path.write_text(text.replace("access_count: 11", "access_count: 3"))
        self.assertEqual(self.look(), [])
        self.assertEqual(self.of(path).access_count, 11)

    def test_a_file_torn_by_a_power_cut_is_no_edit(self):
        text = " ".join(f"sentence {n} of a long protocol 会议记录," for n in range(400))
        for number, seen in enumerate((True, False)):
            memory_id = self.memory.remember(f"{text} {number * 7919}").id
            path = self.notes / f"{memory_id}.md"
            if seen:
                vault.take_over(self.memory)
            whole, content = path.read_bytes(), self.of(path).content
            cuts = [whole[:4096], whole[:4096] + bytes(900), bytes(4096), whole[:70],
                    whole + bytes(100)] + [whole[:5003], whole[:-9]] * (not seen)
            for torn in cuts:
                with self.subTest(seen=seen, size=len(torn)):
                    path.write_bytes(torn)
                    if not seen:
                        (self.root / ".state_vault.json").unlink(missing_ok=True)
                    self.memory = self.open()
                    vault.take_over(self.memory)
                    self.assertIn(f"store/{path.name}: it was cut short", self.notices())
                    self.assertEqual(self.of(path).content, content)
                    self.assertEqual(path.read_bytes(), whole)

    def test_an_access_meanwhile_hides_no_torn_file(self):
        path = self.remember("The harbour is closed in winter, " * 100)
        self.memory.recall("harbour")
        path.write_bytes(path.read_bytes()[:1024])
        self.assertEqual(self.look(), ["written"])
        self.assertGreater(len(self.of(path).content), 3000)

    def test_a_person_may_cut_a_note_short(self):
        for kept in ("First paragraph.\n", "First paragraph. Half a"):
            path = self.remember("First paragraph. Half a sentence.\n\nSecond paragraph." if kept[
                -1] != "\n" else "First paragraph.\n\nSecond paragraph.")
            text = path.read_text()
            path.write_text(text[:text.index("First")] + kept)
            self.assertEqual(self.look(), ["edited"])
            self.assertEqual(self.of(path).content, kept.strip())

    def test_a_kill_between_journal_and_mirror_is_no_edit(self):
        for know_it_before, text in ((True, "The service listens on port 8080"),
                                     (False, "Meetings are every Wednesday at noon")):
            with self.subTest(know_it_before):
                path = self.remember(text)
                if not know_it_before:
                    (self.root / ".state_vault.json").unlink()
                before, mirror = path.read_bytes(), Mirror.write_pending
                Mirror.write_pending = FileStore.compact = lambda part: None
                try:
                    self.memory.verify(path.stem)
                    self.memory.remember(f"{text}!", importance=8)
                finally:
                    Mirror.write_pending, FileStore.compact = mirror, FOLD
                self.assertEqual(path.read_bytes(), before)
                os.utime(path)
                self.memory = self.open()
                self.look()
                self.assertTrue(self.of(path).execution_verified)
                self.assertEqual(self.of(path).importance, 8)
                self.assertIn("execution_verified: true", path.read_text())

    def test_a_file_that_lags_is_found_by_a_whole_look(self):
        path, mirror = self.remember(), Mirror.write_pending
        other = self.notes / f"{self.memory.remember('a note whose file never came').id}.md"
        other.unlink()
        Mirror.write_pending = lambda mirror: mirror.pending.clear()
        try:
            self.memory.verify(path.stem)
        finally:
            Mirror.write_pending = mirror
        self.assertEqual(self.look(complete=True), ["written", "written"])
        self.assertIn("execution_verified: true", path.read_text())
        self.assertTrue(other.exists())
        self.assertEqual(self.look(complete=True), [])

    def test_an_edit_in_the_same_instant_as_the_last_look_is_seen(self):
        path, instant = self.remember(), time.time_ns() + 10 ** 9
        os.utime(path, ns=(instant, instant))
        self.look()
        self.edit(path, "8080", "8081")            # neither size nor time tell
        os.utime(path, ns=(instant, instant))
        self.assertEqual(self.look(), ["edited"])

    def test_a_touched_file_is_no_edit(self):
        path = self.remember()
        os.utime(path, ns=(1, 10 ** 18))
        self.assertEqual(self.look(), [])


FOLD = FileStore.compact


class TestEdits(VaultCase):

    def test_text_and_fields_are_taken_over(self):
        path = self.remember(category="config")
        self.edit(path, "8080", "9090", "importance: 5", "importance: 7", "source: null",
                  "source: by hand\ntags:\n  - net\n  - ops\nmine: keep me\nnested:\n  a: 1",
                  "category: config", "category: decision")
        self.assertEqual(self.look(), ["edited"])
        row = self.of(path)
        self.assertEqual((row.content, row.importance, row.source, row.tags, row.category,
                          row.room, dict(row.extra)),
                         ("The service listens on port 9090", 7, "by hand", ("net", "ops"),
                          "decision", "decisions", {"mine": "keep me", "nested": {"a": 1}}))
        self.assertEqual([hit.id for hit in self.memory.recall("9090")], [path.stem])
        self.assertEqual(self.memory.recall("8080"), [])
        self.memory.verify(path.stem)
        self.assertIn("keep me", path.read_text())
        self.edit(path, "mine: keep me\n", "")
        self.look()
        self.assertNotIn("mine", self.of(path).extra)

    def test_the_stores_own_fields_cannot_be_set(self):
        path = self.remember()
        before = self.of(path)
        self.edit(path, f"id: {path.stem}", "id: other", "access_count: 0", "access_count: 99",
                  f"created_at: {before.created_at}", "created_at: 1999-01-01",
                  "8080", "8081")
        self.look()
        after = self.of(path)
        self.assertEqual((after.id, after.access_count, after.created_at),
                         (before.id, 0, before.created_at))
        self.assertIn(f"id: {path.stem}\n", path.read_text())

    def test_a_value_that_cannot_be_right_keeps_the_old_one_and_is_said(self):
        path = self.remember(category="decision", expires_at="2031-01-01")
        self.edit(path, "room: decisions", "room: ../../etc", "importance: 5",
                  "importance: lots", "expires_at: \"2031-01-01\"", "expires_at: soon",
                  "category: decision", "category: nonsense", "8080", "8081")
        vault.take_over(self.memory)
        row = self.of(path)
        self.assertEqual((row.room, row.category, row.importance, row.expires_at),
                         ("decisions", "decision", 5, "2031-01-01"))
        self.assertIn("8081", row.content)
        said = self.notices()
        for word in ("room", "category", "expires_at"):
            self.assertIn(word, said)

    def test_a_secret_typed_into_a_file_is_redacted_there_too(self):
        path, secret = self.remember(), a_secret()
        said = f"password: {secret}"
        self.edit(path, "8080", f"8080 and {said}", "source: null",
                  f"source: \"{said}\"\ntags: [\"{said}\"]\npassword: {secret}\n"
                  f"\"{said}\": 1\ndeep:\n  api_key: {secret}")
        (self.notes / f"password {secret}.md").write_text(f"A new note, {said}")
        (self.notes / f"passwort {secret}.md").write_bytes(b"\xff\xfe\x00")
        self.edit(self.remember("A second fact"), "last_accessed: null",
                  f"last_accessed: \"{said}\"")
        self.edit(self.remember("A third fact"), "room:", f"# {said}\nroom:")
        done = vault.sync(self.memory)
        self.memory.close()
        (self.notes / f"passwort {secret}.md").unlink()
        held = b"\0".join(p.read_bytes() + bytes(p) for p in self.root.rglob("*") if p.is_file())
        state = held.replace(f"passwort {secret}.md".encode(), b"")
        state = state.replace(f"passwort {secret}".encode(), b"")
        self.assertFalse(secret.encode() in state)
        self.assertFalse(secret in repr(done))
        self.assertIn("password", self.of(path).redacted)

    def test_an_edit_on_both_sides_keeps_both_texts(self):
        path = self.remember("The office is on floor three of the tower")
        self.edit(path, "floor three", "floor four")
        other = HermesLite(self.root, config=Config(environ={}))
        self.addCleanup(other.close)
        mirror = Mirror.write_pending
        Mirror.write_pending = lambda mirror: mirror.pending.clear()
        try:
            other.admit(HermesLite.get(other, path.stem).__class__(
                path.stem, "The office is on floor five of the tower"), replacing=True)
        finally:
            Mirror.write_pending = mirror
        vault.take_over(self.memory)
        self.assertIn("floor four", self.of(path).content)
        self.assertEqual(sorted(row.content.split()[5] for row in self.memory.list()),
                         ["five", "four"])
        self.assertIn("is kept as", self.notices())
        self.assertEqual(len(self.names()), 2)
        self.assertEqual(self.look(complete=True), [])

    def test_hand_edit_of_the_text_keeps_what_the_record_learned(self):
        path = self.remember()
        self.edit(path, "8080", "8081")
        mirror = Mirror.write_pending
        Mirror.write_pending = lambda mirror: mirror.pending.clear()
        try:
            self.memory.verify(path.stem)
        finally:
            Mirror.write_pending = mirror
        self.look()
        self.assertTrue(self.of(path).execution_verified)
        self.assertIn("8081", self.of(path).content)


class TestFiles(VaultCase):

    def test_an_added_note_becomes_a_memory(self):
        self.remember()
        (self.notes / "Lunch: 中文.md").write_text(
            "---\r\ntags: [food, team]\r\ncategory: event\r\nmine: 1\r\n---\r\nLunch is at noon",
            newline="")
        self.assertEqual(self.look(), ["added"])
        row = self.memory.list(category="event")[0]
        self.assertEqual((row.content, row.tags, row.room, dict(row.extra)),
                         ("Lunch is at noon", ("food", "team"), "events",
                          {"mine": 1, "title": "Lunch: 中文"}))
        self.assertEqual(self.names(), sorted(f"{m.id}.md" for m in self.memory.list()))
        self.assertEqual(self.look(complete=True), [])

    def test_a_renamed_note_keeps_its_memory_and_its_new_name(self):
        path = self.remember()
        path.rename(self.notes / "The port.md")
        self.edit(self.notes / "The port.md", "8080", "8085")
        self.assertEqual(self.look(), ["renamed"])
        self.assertEqual(self.names(), [path.name])
        self.assertEqual(self.of(path).extra["title"], "The port")
        self.assertIn("8085", self.of(path).content)
        self.assertEqual(self.look(complete=True), [])

    def test_a_copy_is_another_note_and_an_equal_copy_none(self):
        path = self.remember()
        text = path.read_text()
        (self.notes / "copy.md").write_text(text)
        (self.notes / "other.md").write_text(text.replace("8080", "8090"))
        self.assertEqual(sorted(self.look()), ["added", "merged"])
        self.assertEqual(len(self.memory.list()), 2)
        self.assertIn("8080", self.of(path).content)

    def test_a_deleted_file_is_a_question(self):
        path, other = self.remember(), self.remember("Meetings are on Wednesday")
        path.unlink()
        for _ in range(3):
            vault.take_over(self.memory, "list")
            self.memory.verify(path.stem)          # a write does not answer the question
            self.assertFalse(path.exists())
        said = self.notices()
        self.assertIn("vault sync --yes", said)
        self.assertIn(path.stem, said)
        self.assertEqual(self.look(dry_run=True, yes=True), ["deleted"])
        self.assertEqual(len(self.memory.list()), 2)
        self.look(put_back=True)
        self.assertEqual(from_markdown(path.read_text()), self.of(path))
        self.assertEqual(self.look(), [])
        path.unlink()
        self.assertEqual(self.look(yes=True), ["deleted"])
        self.assertEqual([m.id for m in self.memory.list()], [other.stem])
        self.assertIsNotNone(self.memory.store.forgotten("The service listens on port 8080"))
        self.assertEqual(self.look(complete=True), [])

    def test_a_folder_that_is_gone_forgets_nothing(self):
        self.remember()
        self.notes.rename(self.outside / "away")
        self.assertRaises(Refused, self.look, yes=True)
        self.assertEqual(len(self.memory.list()), 1)
        self.look(put_back=True)
        self.assertEqual(len(self.names()), 1)

    def test_what_was_forgotten_does_not_come_back_as_a_file(self):
        path = self.remember()
        data = path.read_bytes()
        self.memory.forget(path.stem)
        self.look()
        path.write_bytes(data)
        (self.notes / "again.md").write_text("the service listens on port 8080")
        self.assertEqual(self.look(), ["forgotten", "forgotten"])
        self.assertEqual((self.names(), len(self.memory.list())), ([], 0))
        secret = a_secret()
        path.write_bytes(data.replace(b"8080", b"8099, password: " + secret.encode()))
        vault.take_over(self.memory)
        self.assertEqual((self.names(), len(self.memory.list())), ([], 0))
        aside = list((self.root / "backups").glob("set_aside_*.md"))
        self.assertIn("8099", aside[0].read_text())
        self.assertFalse(secret in aside[0].read_text())
        self.assertIn(aside[0].name, self.notices())

    def test_a_forgotten_file_put_back_with_its_old_time_is_found_by_a_whole_look(self):
        path = self.remember()
        times, data = os.stat(path), path.read_bytes()
        self.memory.forget(path.stem)
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        self.assertEqual(self.look(complete=True), ["forgotten"])
        self.assertFalse(path.exists())

    def test_what_cannot_be_read_is_said_and_left_alone(self):
        path = self.remember()
        files = {path.name: "中文内容".encode("gbk"), "u16.md": "text".encode("utf-16"),
                 "open.md": b"---\nkey: value\nno end", "odd.md": b"---\n{[\n---\nx",
                 "long.md": b"x" * 100_001}
        for name, data in files.items():
            (self.notes / name).write_bytes(data)
        (self.notes / "empty.md").write_bytes(b"")
        vault.take_over(self.memory)
        self.assertEqual(self.notices().count("\n") + 1, len(files))
        self.memory.verify(path.stem)
        for name, data in files.items():
            self.assertEqual((self.notes / name).read_bytes(), data, name)
        vault.take_over(self.memory)
        self.assertEqual(self.notices(), "")
        self.assertEqual(self.look(complete=True, dry_run=True), ["left"] * len(files))
        path.write_text("Now it is UTF-8: 中文内容")
        self.assertEqual(self.look(), ["edited"])
        self.assertEqual(self.of(path).content, "Now it is UTF-8: 中文内容")
        self.memory.forget(path.stem)
        self.assertFalse(path.exists())

    def test_a_note_that_the_disk_does_not_give_is_read_at_the_next_look(self):
        self.remember()
        note = self.notes / "by hand.md"
        note.write_text("The gate code of the harbour is on the blue card\n")
        opened = os.open

        def failing(path, *flags, **more):
            if os.fspath(path) == str(note):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(note))
            return opened(path, *flags, **more)
        with mock.patch.object(os, "open", failing):
            self.assertEqual(self.look(), ["left"])
            self.assertEqual(self.look(), ["left"])
        self.assertEqual(self.look(), ["added"])
        self.assertIn("harbour", "".join(memory.content for memory in self.memory.list()))

    def test_a_link_is_not_followed_in_either_direction(self):
        path = self.remember()
        secret = self.outside / "secret.md"
        secret.write_text("what lies outside is private")
        path.unlink()
        path.symlink_to(secret)
        (self.notes / "more.md").symlink_to(secret)
        (self.notes / "gone.md").symlink_to(self.outside / "nothing")
        os.mkfifo(self.notes / "pipe.md")          # a read of it would wait for ever
        self.assertEqual(self.look(), ["left"] * 4)
        self.memory.verify(path.stem)
        bare = HermesLite(self.root, config=Config(environ={}))    # without a look before
        bare.remember("The service listens on port 8080!", importance=9)
        bare.close()
        self.assertEqual(secret.read_text(), "what lies outside is private")
        self.assertNotIn("outside", "".join(m.content for m in self.memory.list()))

    def test_names_of_any_length_and_case_stay_apart(self):
        names = ("前" * 84, "😀" * 60, "a" * 252, "前" * 83 + "b", "Note", "note", "CON", "a..b", "~")
        for number, name in enumerate(names):
            self.notes.mkdir(parents=True, exist_ok=True)
            (self.notes / f"{name}.md").write_text(f"Fact {number} is about {number * 31} things")
        self.look()
        self.assertEqual(len(self.memory.list()), len(names))
        self.assertEqual(len({name.lower() for name in self.names()}), len(names))
        self.assertEqual({m.extra["title"] for m in self.memory.list()}, set(names))
        self.assertEqual(sorted(p.name for p in self.outside.iterdir()), ["root"])

    def test_ids_and_rooms_of_a_file_lead_nowhere_else(self):
        self.remember()
        for number, bad in enumerate(("../../x", "/etc/x", "a/../../b", "..%2f..%2fx", "C:\\x",
                                      "\\\\h\\s", "a\\0b", ".", "''", "CON", "~/x")):
            (self.notes / f"n{number}.md").write_text(
                f"---\nid: {bad}\nroom: {bad}\ntags: [{bad}]\n---\nFact {number} of {number * 7}")
        self.assertEqual(self.look(), ["added"] * 11)
        self.assertTrue({m.room for m in self.memory.list()} <= set(self.memory.config.rooms))
        self.assertEqual(sorted(p.name for p in self.outside.iterdir()), ["root"])
        self.assertEqual(self.names(), sorted(f"{m.id}.md" for m in self.memory.list()))


class TestFrontmatter(VaultCase):

    def test_text_and_titles_cannot_break_or_forge_it(self):
        for number, title in enumerate(TITLES):
            row = self.memory.remember(f"note {number * 977} about {'xyz'[number % 3] * number}",
                                       meta={"title": title}, source=title).id
            self.memory.admit(self.memory.get(row).__class__.from_entry(
                {**self.memory.get(row).entry(), "title": title}), replacing=True)
        for body in BODIES:
            self.memory.remember(body)
        rows = {row.id: row for row in self.memory.list()}
        self.assertEqual(self.look(complete=True), [])
        for path in self.notes.iterdir():
            read = from_markdown(path.read_bytes().decode())
            self.assertEqual(read, rows[path.stem])
        forged = next(row for row in rows.values() if "pinned" in row.content)
        self.assertEqual((forged.room, forged.extra), ("events", {}))

    def test_other_forms_of_the_same_file_are_no_edit(self):
        body = "first line\nsecond line\n---\nthird"
        path = self.remember(body)
        plain = path.read_bytes()
        for form in (plain.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + plain,
                     b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"), plain[:-1]):
            path.write_bytes(form)
            self.assertEqual(self.look(), [])
            self.assertEqual(self.of(path).content, body)
        path.write_bytes(plain.replace(b"first", b"1st").replace(b"\n", b"\r\n"))
        self.assertEqual(self.look(), ["edited"])
        self.assertEqual(path.read_bytes(), plain.replace(b"first", b"1st"))

    def test_a_file_without_frontmatter_or_text(self):
        path = self.remember()
        self.edit(path, "source: null", "source: kept")
        self.look()
        path.write_text("Only this text is left")
        self.assertEqual(self.look(), ["edited"])
        self.assertEqual((self.of(path).content, self.of(path).source),
                         ("Only this text is left", "kept"))
        self.assertEqual(path.read_text().count("---\n"), 2)
        whole = path.read_text()
        path.write_text(whole[:whole.index("---\n", 4) + 3])     # ends with the closing ---
        self.assertEqual(self.look(), ["left"])
        self.assertEqual(self.of(path).content, "Only this text is left")

    def test_hostile_frontmatter_is_left_alone_in_linear_time(self):
        blank = " " * 200_000
        texts = ("".join(" " * depth + "a:\n" for depth in range(1500)), f"a{blank}b",
                 f"a: x{blank}b", f"tags: x{blank}b", '"a' * 100_000, f"- {blank}x", "[x]: 1")
        for number, text in enumerate(texts):
            path = self.notes / f"n{number}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"---\n{text}\n---\nFact {number} of {number * 7}")
        before = time.process_time()
        for path in self.notes.iterdir():
            with contextlib.suppress(ValueError):
                read_markdown(path.read_text())
        spent = time.process_time() - before
        before = time.process_time()
        for path in self.notes.iterdir():
            for _ in range(20):
                sorted(path.read_text())
        self.assertLess(spent, 5 * (time.process_time() - before))
        self.assertEqual(self.look().count("left"), 5)

    def test_any_number_of_saves_leaves_one_block(self):
        path = self.remember("---\npinned: true\n---\nbody")
        for number in range(4):
            self.edit(path, "body", f"body{number}")
            self.look()
            self.assertTrue(path.read_text().startswith(f"---\nid: {path.stem}\n"))
            self.assertEqual(path.read_text().count("id: mem_"), 1)
        self.assertEqual(self.of(path).content, "---\npinned: true\n---\nbody3210")

    def test_a_yaml_parser_reads_the_same(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("PyYAML is not there")
        for number, title in enumerate(TITLES):
            self.memory.remember(f"note {number * 977} about {'xyz'[number % 3] * number}",
                                 meta={"title": title, title: [title]}, tags=[title],
                                 source=title, agent=title)
        for row in self.memory.list():
            head = yaml.safe_load(to_markdown(row).split("\n---\n")[0].removeprefix("---\n"))
            wanted = row.entry()
            wanted.pop("content"), wanted.pop("redacted")
            head = {key: value.isoformat() if hasattr(value, "isoformat") else value
                    for key, value in head.items()}
            self.assertEqual(head, wanted)


class TestCost(VaultCase):

    def test_nothing_is_opened_when_nothing_changed(self):
        for number in range(30):
            self.memory.remember(f"Fact {number} is about {number * 31} things")
        time.sleep(0.05)
        vault.take_over(self.memory)
        vault.take_over(self.memory)
        opened, before = [], vault._Folder.read
        vault._Folder.read = lambda look, name: opened.append(name) or before(look, name)
        self.addCleanup(setattr, vault._Folder, "read", before)
        fresh = self.open()
        vault.take_over(fresh)
        self.assertEqual(opened, [])
        self.assertIsNone(fresh.store.journal.seen)       # the records were not even loaded

    def test_a_store_that_cannot_be_written_still_answers(self):
        path = self.remember()
        self.edit(path, "8080", "8081")
        locked = HermesLite(self.root, config=Config(
            {"storage": {"lock_timeout_seconds": 0.05}}, environ={}))
        self.addCleanup(locked.close)
        with self.memory.store.transaction():
            vault.take_over(locked, "recall")
        self.assertIn("not taken over yet", "".join(locked.take_notices()))
        self.assertIn("8080", locked.get(path.stem).content)

    def test_without_a_mirror_there_is_nothing_to_do(self):
        memory = self.open(encryption={"markdown": False})
        memory.remember("not in a file")
        self.assertIsNone(vault.take_over(memory))
        self.assertRaises(Refused, vault.sync, memory)
        self.assertFalse(self.notes.exists())

    def test_two_looks_at_once_take_an_edit_over_once(self):
        path = self.remember()
        (self.notes / "new.md").write_text("A note that two processes see")
        self.edit(path, "8080", "8081")
        code = ("import sys; from hermes_lite import Config, HermesLite\n"
                "from hermes_ext import vault\n"
                "config = Config({'storage': {'lock_timeout_seconds': 1800}}, environ={})\n"
                "with HermesLite(sys.argv[1], config=config) as m: vault.take_over(m)")
        runs = [subprocess.Popen([sys.executable, "-c", code, self.root], cwd=HOUSE)
                for _ in range(4)]
        self.assertEqual([run.wait() for run in runs], [0] * 4)
        self.assertEqual(len(self.memory.list()), 2)
        self.assertEqual(self.names(), sorted(f"{m.id}.md" for m in self.memory.list()))


class TestCommands(VaultCase):

    def run_it(self, *words: str, code: int = 0) -> tuple[str, str]:
        run = run_command(self.root, *words, environ={"PATH": os.environ["PATH"]})
        self.assertEqual(run.returncode, code, run.stderr)
        return run.stdout, run.stderr

    def test_the_next_command_takes_over_and_says_so(self):
        path = self.remember()
        self.edit(path, "8080", "8099")
        self.assertIn("edited", self.run_it("vault")[0])
        self.assertIn("8099", path.read_text())
        out, err = self.run_it("recall", "8099")
        self.assertIn(path.stem, out)
        self.assertIn("taken over", err)
        self.assertEqual(self.run_it("recall", "8099")[1], "")
        path.unlink()
        self.assertIn("--put-back", self.run_it("list")[1])
        self.assertIn("deleted", self.run_it("vault", "sync", "--yes")[0])
        self.run_it("show", path.stem, code=10)
        self.run_it("vault", "nonsense", code=2)
        self.assertRaises(UsageError, vault.sync, self.memory, yes=True, put_back=True)


if __name__ == "__main__":
    unittest.main()

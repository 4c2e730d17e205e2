"""Tests of hermes_ext.maintenance.scrub: what it hides and wipes out."""
import json
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import hermes_lite as core
from hermes_ext.maintenance import backups, forget, repair, restore, scrub, store_files
from hermes_ext.tests.base import Case, HOME, NOW, a_secret, word
from hermes_lite import ConfigError, HermesLite, NotFound, Refused, UsageError


class Scrub(Case):
    def test_a_command_named_pin_is_no_secret_in_a_log_and_a_real_one_is_hidden(self) -> None:
        memory, key = self.filled(), a_secret()
        log, line = self.root / "logs" / "audit.log", b'{"surface": "cli pin", "what": "show"}\n'
        log.parent.mkdir(exist_ok=True)
        log.write_bytes(line)
        self.assertNotIn("logs/audit.log", scrub.scrub(memory, dry_run=True).changed)
        log.write_bytes(line + json.dumps({"why": f"password: {key}"}).encode() + b"\n")
        scrub.scrub(memory)
        self.assertTrue(log.read_bytes().startswith(line))
        self.assertNotIn(key.encode(), log.read_bytes())

    def test_a_secret_of_any_place_is_gone_afterwards(self) -> None:
        memory, key = self.filled(), a_secret()
        memory.remember("a third note for the archive")
        backups.backup(memory)
        memory.close()
        leak = f"password: {key}"
        for path in [*self.root.glob("store/*.md"), self.root / "index.json",
                     *self.root.glob("backups/auto_*")]:
            path.write_bytes(path.read_bytes().replace(b"Olga", leak.encode()))
        store = memory.store
        archive = next(self.root.glob("backups/manual_*"))
        files = {n: d.replace(b"Olga", leak.encode()) for n, d in core.read_files(archive)}
        store_files.write_archive(store, archive, files.items())
        row = json.dumps([{"id": "mem_x", "content": leak, "source": leak, "tags": [leak],
                           "meta": {"a": {"password": key}}}])
        for name, text in {
                "backups/prune_20260101_000000.json": f'{{"memories": {row}}}',
                "backups/rejected_00000000.json": row,
                "index.json.damaged-20260101_000000": row[:-9],
                "store/mine.md": f"my own page, {leak}\n", "sediment.log": f"read {leak}\n",
                ".state_job.json": json.dumps({"last": leak, "login": {"password": key}}),
                "tombstones.json": json.dumps({"version": 1, "key": "ab" * 32, "tombstones": {
                    "ff" * 20: {"id": "mem_y", "why": leak, "at": "2026-08-17T12:00:00+00:00"}}}),
                ".search/index.bin.damaged-20260101_000000": leak,
                ".index.json.999999999.0123abcd.tmp": leak}.items():
            (self.root / name).write_text(text)
        self.assertGreater(len(self.grep(key)), 10)
        before = self.prints()
        code, out, err = self.cli("scrub", "--dry-run")
        self.assertEqual((code, self.prints()), (0, before))
        self.assertNotIn(key, out + err)
        self.assertIn("would change", out)
        code, out, err = self.cli("scrub", "--yes")
        self.assertEqual(code, 0, err)
        self.assertNotIn(key, out + err)
        self.assertIn("backups/rejected_00000000.json: password", out)
        self.assertEqual(self.grep(key), [])
        fresh = self.open()
        self.assertEqual(fresh.recall("harbour")[0].memory.redacted, ("password",))
        self.assertEqual(scrub.scrub(fresh, dry_run=True).changed, ())
        self.assertEqual(backups.verify(fresh).problems, ())
        saved = json.loads((self.root / "tombstones.json").read_bytes())
        self.assertEqual(saved["key"], "ab" * 32)

    def test_harmless_text_stays_byte_for_byte(self) -> None:
        memory = self.filled("the token count is 500", "max_tokens=4096 and the secret to success")
        backups.backup(memory)
        memory.close()
        before = self.records()
        self.assertEqual(scrub.scrub(memory).changed, ())
        memory.close()
        self.assertEqual(self.records(), before)

    def test_a_large_store_has_it_in_no_index_afterwards(self) -> None:
        memory, key = self.open(), a_secret()
        self.fill(memory, 1500)
        memory.redactor.redact = lambda text: (text, ())  # as under the rules of an earlier version
        memory.remember(f"the lamp's password: {key}")
        memory.recall("lamp")                         # makes the index of words
        memory.close()
        self.assertIn(".search/index.bin", self.grep(key))
        code, _, err = self.cli("scrub", "--yes")
        self.assertEqual((code, self.grep(key)), (0, []), err)

    def test_rejected_entries_of_any_form_are_scrubbed(self) -> None:
        memory, key = self.filled(), a_secret()
        leak = f"password: {key}"
        for rows in ([leak, 5, None, [leak]], [{"redacted": 7, "content": leak}], {"a": leak}):
            memory.store.files.write("backups/rejected_00000000.json", json.dumps(rows).encode())
            scrub.scrub(memory)
            self.assertEqual(self.grep(key), [], rows)

    def test_a_link_is_followed_only_where_the_store_follows_it(self) -> None:
        memory, key = self.filled(), a_secret()
        memory.close()
        outside = self.home / "notes"
        shutil.move(self.root / "store", outside)
        (self.root / "store").symlink_to(outside)
        (outside / "mine.md").write_text(f"password: {key}\n")
        other = self.home / "other.md"
        other.write_text(f"password: {key}\n")
        (self.root / "store" / "link.md").symlink_to(other)
        scrub.scrub(memory)
        self.assertNotIn(key, (outside / "mine.md").read_text())
        self.assertIn(key, other.read_text())
        names = {name for name, _ in core.read_files(Path(backups.backup(memory).file))}
        self.assertIn("store/mine.md", names)
        self.assertNotIn("store/link.md", names)

    def test_what_is_no_text_is_named(self) -> None:
        memory = self.filled()
        (self.root / "archive.sqlite").write_bytes(b"SQLite format 3\0\xff\xfe\0")
        self.assertEqual(scrub.scrub(memory).left, ("archive.sqlite",))
        self.assertEqual((self.root / "archive.sqlite").read_bytes()[-2:], b"\xfe\0")


class Forget(Case):
    """Field cases: forget leaves copies behind; the forgotten comes back."""

    def spread(self) -> tuple[HermesLite, str, str]:
        """Put one note with a marker into every kind of place; return memory, marker, id."""
        marker = word()
        memory = self.filled()
        memory_id = memory.remember(f"{marker.title()} keeps the lighthouse since 1998").id
        self.now += timedelta(days=1)
        memory.remember("the light is green")         # writes today's backup, with the marker
        backups.backup(memory)
        scrub.reindex(memory)
        entry = memory.get(memory_id).entry()
        memory.store.files.write("backups/prune_20260101_000000.json", json.dumps(
            {"archived_at": "x", "memories": [entry]}).encode())
        memory.store.files.write("backups/rejected_00000000.json", json.dumps(
            [{**entry, "importance": "x"}, 5]).encode())
        (self.root / "index.json.damaged-20260101_000000").write_bytes(
            (self.root / "index.json").read_bytes()[:-2])
        (self.root / ".search/index.bin.damaged-20260101_000000").write_text(marker)
        (self.root / ".index.json.999999999.0123abcd.tmp").write_text(marker)
        self.assertGreater(len(self.grep(marker)), 8)
        return memory, marker, memory_id

    def assert_gone(self, memory: HermesLite, marker: str) -> None:
        self.assertEqual(self.grep(marker), [])
        self.assertEqual([h for h in memory.recall(marker) if marker in h.content.lower()], [])
        self.assertEqual([h for h in memory.vsearch(marker) if marker in h.content.lower()], [])
        with self.assertRaises(NotFound):
            memory.graph(marker.title())

    def test_without_purge_only_copies_that_are_named_hold_it(self) -> None:
        memory, marker, memory_id = self.spread()
        held = memory.forget(memory_id).backups
        (self.root / ".index.json.999999999.0123abcd.tmp").unlink(missing_ok=True)
        (self.root / ".search/index.bin.damaged-20260101_000000").unlink()
        self.assertEqual(self.grep(marker), sorted(held))

    def test_purge_by_id_by_words_by_room_by_source_and_by_date(self) -> None:
        for how in ("id", "query", "room", "tags", "source", "since", "until"):
            self.root = self.home / how
            memory, marker, memory_id = self.spread()
            with memory.store.transaction():
                memory.store.put(core.replace(memory.get(memory_id), room="prefs", tags=("odd",),
                                              source="session 7"))
            choice = {"id": {"id": memory_id}, "query": {"query": f"LIGHTHOUSE {marker}"},
                      "room": {"room": "prefs"}, "tags": {"tags": ["odd"]},
                      "source": {"source": "session 7"},
                      "since": {"since": self.now.isoformat(), "query": "lighthouse"},
                      "until": {"until": f"{self.now:%Y-%m-%d}", "query": "lighthouse"}}[how]
            if how == "since":
                choice["since"] = NOW.isoformat()
            taken = forget.forget(memory, **choice, purge=True, yes=True)
            self.assertEqual(taken.ids, (memory_id,), how)
            self.assertEqual(taken.backups + taken.left, (), how)
            self.assert_gone(memory, marker)
            memory.close()
            self.assert_gone(self.open(), marker)
            self.assertEqual(len(self.open().list()), 3)
            self.assertEqual(backups.verify(memory).problems, ())
            self.now = NOW

    def test_what_prune_took_can_be_purged_too(self) -> None:
        memory, marker, memory_id = self.spread()
        self.now += timedelta(days=30)
        memory.prune()
        self.assertTrue(self.grep(marker))
        forget.forget(memory, id=memory_id, purge=True)
        self.assert_gone(memory, marker)

    def test_a_note_that_links_to_it_stays_as_it_is(self) -> None:
        memory, marker, memory_id = self.spread()
        note = self.root / "store" / "mine.md"
        note.write_text(f"see [[{memory_id}]]\n")
        forget.forget(memory, id=memory_id, purge=True)
        self.assertEqual(note.read_text(), f"see [[{memory_id}]]\n")
        self.assert_gone(memory, marker)

    def test_a_copy_that_cannot_be_rewritten_is_named(self) -> None:
        memory, marker, memory_id = self.spread()
        (self.root / "copy.sqlite").write_bytes(f"\0{memory_id} {marker}".encode())
        taken = forget.forget(memory, id=memory_id, purge=True)
        self.assertEqual(taken.left, ("copy.sqlite",))
        self.assertEqual(self.grep(marker), ["copy.sqlite"])

    def test_a_selection_shows_its_plan_and_wants_yes(self) -> None:
        memory, marker, memory_id = self.spread()
        memory.close()
        before = self.records()
        code, out, _ = self.cli("forget", "--query", marker)
        self.assertEqual(code, Refused.exit_code)
        self.assertIn(memory_id, out)
        self.assertEqual(self.records(), before)
        self.assertEqual(self.cli("forget", "--query", marker, "--yes")[0], 0)
        self.assertEqual(self.cli("forget", "--query", word(), "--yes")[0], 0)

    def test_a_selection_needs_a_filter_and_an_id_takes_none(self) -> None:
        memory = self.filled()
        for arguments in ({}, {"purge": True, "yes": True}, {"reason": "x", "yes": True},
                          {"query": "", "yes": True}, {"id": "x", "room": "events"},
                          {"until": "soon", "yes": True}, {"since": "soon", "yes": True},
                          {"room": "nowhere", "yes": True}):
            with self.assertRaises(UsageError, msg=str(arguments)):
                forget.forget(memory, **arguments)
        with self.assertRaises(NotFound):
            forget.forget(memory, id="mem_of_nobody", purge=True)
        self.assertEqual(len(memory.list()), 2)

    def test_a_blank_selector_is_refused_beside_any_other(self) -> None:
        memory = self.filled()
        for blank in ("", " ", "\u200b"):
            for name in ("id", "room", "query", "agent", "source", "since", "until", "tags"):
                value = [blank] if name == "tags" else blank
                for other in ({}, {"query": "harbour"}):
                    with self.assertRaises(UsageError, msg=(name, other)):
                        forget.forget(memory, **{**other, name: value}, yes=True)
        for tags in ((), [], ["ferry", ""], iter(())):
            with self.assertRaises(UsageError):
                forget.forget(memory, query="ferry", tags=tags, yes=True)
        for words in (["--agent", ""], ["--agent", " "], ["--tags", ""], ["--tags", "a", " "],
                      ["--source", ""], ["", "--agent", "x"], ["--query", "ferry", "--room", ""]):
            code, out, err = self.cli("forget", *words, "--yes")
            self.assertEqual((code, out), (2, ""), words)
            self.assertIn("is empty", err)
        self.assertEqual(len(self.open().list()), 2)

    def test_days_are_those_of_the_user_and_end_with_the_day(self) -> None:
        memory = self.open()
        texts = {"2026-08-16T15:30:00+00:00": "the evening boat of Chen",
                 "2026-08-16T16:30:00+00:00": "a morning train for Olga"}
        for when, text in texts.items():           # 23:30 and, a day later, 0:30 in Shanghai
            self.now = core.parse_time(when)
            memory.remember(text)
        memory.close()
        code, out, _ = self.cli("forget", "--until", "2026-08-16", TZ="Asia/Shanghai")
        self.assertEqual((code, "evening" in out, "morning" in out), (11, True, False))
        code, out, _ = self.cli("forget", "--since", "2026/8/17", TZ="Asia/Shanghai")
        self.assertEqual((code, "evening" in out, "morning" in out), (11, False, True))
        code, out, _ = self.cli("forget", "--until", "2026/8/16", TZ="UTC")
        self.assertEqual((code, "evening" in out, "morning" in out), (11, True, True))

    def test_a_note_of_unknown_age_is_not_taken_by_a_date(self) -> None:
        memory = self.filled()
        with memory.store.transaction():
            memory.store.put(core.replace(memory.list()[0], created_at="yesterday"))
        self.assertEqual(len(forget.forget(memory, until="2099-01-01").ids), 1)

    def test_the_reason_is_kept_and_redacted(self) -> None:
        memory, key = self.filled(), a_secret()
        each = memory.list()[0]
        forget.forget(memory, id=each.id, reason=f"moved out, password: {key}")
        self.assertEqual(self.grep(key), [])
        with self.assertRaisesRegex(Refused, "moved out"):
            memory.remember(each.content, deliberate=False)

    def test_plain_forget_works_in_the_single_copied_file(self) -> None:
        alone = self.home / "alone"
        alone.mkdir()
        shutil.copy(HOME / "hermes_lite.py", alone)
        memory = self.filled()
        each = memory.list()[0]
        memory.close()

        def run(*words: str) -> subprocess.CompletedProcess:
            return subprocess.run(
                [sys.executable, "-S", str(alone / "hermes_lite.py"), "--root", str(self.root),
                 *words],
                capture_output=True, text=True, cwd=alone, env={"PATH": os.defpath})
        self.assertEqual(run("forget", each.id).returncode, 0)
        missing = run("forget", "--room", "events")
        self.assertEqual(missing.returncode, ConfigError.exit_code)
        self.assertIn("hermes_ext", missing.stderr)
        self.assertNotIn("Traceback", missing.stderr)

    def test_the_forgotten_stays_away_on_every_road(self) -> None:
        memory, marker, memory_id = self.spread()
        text = memory.get(memory_id).content
        markdown = (self.root / "store" / f"{memory_id}.md").read_bytes()
        yesterday = backups.backup(memory, self.home / "yesterday.tar.gz")
        daily = self.home / "daily.bak"
        shutil.copy(next(self.root.glob("backups/auto_*")), daily)
        memory.forget(memory_id)
        old_index = daily.read_bytes()

        def is_away() -> None:
            memory.close()
            fresh = self.open()
            self.assertFalse([m for m in fresh.list() if marker in m.content.lower()])
            self.assertFalse([h for h in fresh.recall(marker) if marker in h.content.lower()])
            fresh.close()

        scrub.reindex(memory)
        repair.repair(memory)
        is_away()
        with self.assertRaises(Refused):
            memory.remember(text, deliberate=False)
        for source in (yesterday.file, daily, self.root / "backups/prune_20260101_000000.json"):
            done = restore.restore(memory, source)
            self.assertEqual(done.forgotten, 1)
            self.assertIn("1 forgotten note left out", list(done.lines()))
            is_away()
        path = self.root / "store" / f"{memory_id}.md"
        path.write_bytes(markdown)
        is_away()
        repair.repair(memory)
        self.assertFalse(path.exists())
        path.write_bytes(markdown)
        (self.root / "index.json").unlink()           # recovery reads the mirror
        is_away()
        path.unlink(missing_ok=True)
        (self.root / "index.json").write_bytes(old_index)
        is_away()
        (self.root / "tombstones.json").unlink()
        memory = self.open()
        with self.assertRaises(Refused):
            memory.remember(text, deliberate=False)
        self.assertEqual(restore.restore(memory, yesterday.file).forgotten, 1)
        is_away()
        again = self.open().remember(text)            # a person may
        self.assertTrue(again.warnings and again.created)

    def test_with_forgotten_brings_it_back_for_good(self) -> None:
        memory = self.filled()
        each = memory.list()[0]
        copy = backups.backup(memory, self.home / "b.tar.gz")
        memory.forget(each.id)
        code, out, _ = self.cli("restore", copy.file, "--with-forgotten", "--yes")
        self.assertEqual((code, self.open().get(each.id).content), (0, each.content))
        self.assertNotIn("left out", out)
        path = self.root / "index.json"
        path.write_bytes(path.read_bytes() + b"\n")
        self.assertEqual(self.open().get(each.id).content, each.content)

    def test_a_kill_between_acknowledging_and_erasing_is_made_good(self) -> None:
        memory, marker, memory_id = self.spread()
        memory.store.compact = memory.store._purge_deleted = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
        with self.assertRaises(KeyboardInterrupt):
            memory.forget(memory_id)
        del memory.store.compact, memory.store._purge_deleted
        memory.store.state.has_pending_purge = memory.store.journal.end = 0      # this process is dead
        self.assertIn("index.json", self.grep(marker))
        fresh = self.open()
        forget.forget(fresh, id=memory_id, purge=True)
        self.assert_gone(fresh, marker)

    def test_a_large_store_leaves_nothing_in_journal_or_parts(self) -> None:
        marker, memory = word(), self.open()
        self.fill(memory, 1500)
        memory_id = memory.remember(f"{marker.title()} keeps the lamps").id
        memory.close()
        self.assertGreater((self.root / "index.json").stat().st_size, 262_144)
        memory = self.open()
        memory.remember("one more, for the journal")
        forget.forget(memory, id=memory_id, purge=True)
        self.assert_gone(memory, marker)

    def test_no_trace_of_a_removed_text_stays_in_the_index(self) -> None:
        gone, kept = "We use lighthouse 7", "We use another 9"
        index, fresh = core.BM25Index(), core.BM25Index()
        for key, text in (("a", gone), ("b", kept)):
            index.add(key, text, core.text_labels(text))
        fresh.add("b", kept, core.text_labels(kept))
        for each in (core.BM25Index.load(index.dump()), index):
            self.assertIn(core.fingerprint(gone).encode(), each.dump())
            each.remove("a")
            self.assertEqual(each.dump(), fresh.dump())

"""Tests of hermes_ext.care: what it finds, mends, keeps, brings back and wipes out.

Run: python3 -m unittest hermes_ext.tests.test_care. The tests of encryption are skipped where
the package cryptography is missing.
"""
import contextlib
import gzip
import hashlib
import importlib.util
import io
import json
import os
import random
import secrets
import shutil
import stat
import string
import subprocess
import sys
import tarfile
import tempfile
import unittest
from datetime import datetime, timedelta, timezone
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME))

import hermes_lite as core
from hermes_ext import care
from hermes_lite import ConfigError, DamagedData, HermesLite, NotFound, Refused, UsageError

HAS_CRYPTO = importlib.util.find_spec("cryptography") is not None
NOW = datetime(2026, 8, 17, 12, 0, tzinfo=timezone.utc)


def word(size: int = 14) -> str:
    """Return a random word that stands nowhere else: a marker to grep for."""
    return "q" + "".join(random.choices(string.ascii_lowercase, k=size))


def secret() -> str:
    return secrets.token_urlsafe(24).replace("-", "x").replace("_", "y") + "7Qz"


class Case(unittest.TestCase):
    """A root in a temporary folder, a clock that a test moves, and a grep over everything."""

    def setUp(self) -> None:
        self.home = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.home)
        self.root, self.now, self.environ = self.home / "root", NOW, {}

    def open(self, **environ: str) -> HermesLite:
        """Open the store with these variables only; it is closed at the end of the test."""
        config = core.load_config(self.root, environ={**self.environ, **environ})
        memory = HermesLite(self.root, config=config, clock=lambda: self.now)
        self.addCleanup(memory.close)
        return memory

    def filled(self, *texts: str, **environ: str) -> HermesLite:
        memory = self.open(**environ)
        for text in texts or ("the harbour master is Olga", "the ferry leaves at nine"):
            memory.remember(text)
        return memory

    def cli(self, *words: str, **environ: str) -> tuple[int, str, str]:
        ran = subprocess.run(
            [sys.executable, str(HOME / "hermes_lite.py"), "--root", str(self.root), *words],
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
            env={"PATH": os.defpath, "HOME": str(self.home), **environ})
        return ran.returncode, ran.stdout, ran.stderr

    def grep(self, needle: str) -> list[str]:
        """Return the files that hold *needle*, in any case; archives are looked into."""
        found = []
        for path in self.root.rglob("*"):
            if path.is_file():
                pieces = [path.read_bytes()]
                with contextlib.suppress(ValueError):
                    pieces += [data for _, data in core.read_files(path)]
                if any(needle.lower().encode() in piece.lower() for piece in pieces):
                    found.append(str(path.relative_to(self.root)))
        return sorted(found)

    def prints(self) -> dict[str, str]:
        """Return a checksum of every file but locks."""
        return {str(path.relative_to(self.root)): hashlib.sha256(path.read_bytes()).hexdigest()
                for path in self.root.rglob("*") if path.is_file()
                and not path.name.startswith(".lock")}

    def records(self) -> dict[str, str]:
        """Return a checksum of every file that is not derived from others."""
        derived = (".search", ".state", "vectors.json", "graph.json")
        return {name: print for name, print in self.prints().items()
                if not name.startswith(derived)}

    def states(self, memory: HermesLite) -> dict[str, str]:
        return {check.name: check.state for check in care.doctor(memory)}


class Doctor(Case):
    def look(self) -> dict[str, str]:
        return self.states(care._bare(str(self.root)))

    def test_a_healthy_store_passes_and_is_not_changed(self) -> None:
        self.filled().close()
        before = self.prints()
        code, out, _ = self.cli("doctor", "--json")
        self.assertEqual(code, 0)
        checks = json.loads(out)
        self.assertEqual({row["state"] for row in checks}, {"ok"}, checks)
        self.assertEqual({row["name"] for row in checks}, {
            "permissions", "disk", "lock", "config", "key", "records", "mirror", "search",
            "vectors", "tombstones", "backups", "leftovers", "clock", "secrets"})
        self.assertEqual(self.prints(), before)

    def test_help_lists_the_commands_without_importing_the_module(self) -> None:
        ran = subprocess.run(
            [sys.executable, "-X", "importtime", str(HOME / "hermes_lite.py"), "--help"],
            capture_output=True, text=True)
        for command in ("doctor", "repair", "backup", "restore", "scrub", "reindex", "encrypt"):
            self.assertIn(f"\n    {command} ", ran.stdout)
        self.assertNotIn("hermes_ext.care", ran.stderr)

    def test_the_table_of_contents_agrees_with_the_operations(self) -> None:
        from hermes_ext import CONTENTS
        self.assertEqual(CONTENTS["care"], {o.name: o.help for o in care.OPERATIONS})

    def test_a_broken_config_is_a_failed_check_not_a_refusal_to_look(self) -> None:
        self.filled().close()
        (self.root / "config.yaml").write_text("retrieval:\n  vektor: 1\n")
        code, out, _ = self.cli("doctor")
        if importlib.util.find_spec("yaml"):
            self.assertEqual(code, 1)
            self.assertIn("config.yaml:2", out)
        else:
            self.assertIn("warn  config", out)

    def test_a_store_that_is_not_there_is_a_warning(self) -> None:
        self.assertEqual(self.look(), {"root": "warn"})

    def test_a_damaged_index_fails_and_is_left_alone(self) -> None:
        self.filled().close()
        for damage in (b"", b"\0" * 4096, b'{"a": 1}', b"[1, 2", b"[" * 100_000, b"null"):
            (self.root / "index.json").write_bytes(damage)
            before = self.prints()
            self.assertEqual(self.look()["records"], "fail", damage[:9])
            self.assertEqual(self.prints(), before)

    def test_one_damaged_entry_fails(self) -> None:
        self.filled().close()
        path = self.root / "index.json"
        path.write_bytes(path.read_bytes().replace(b'"importance": 5', b'"importance": "x"', 1))
        self.assertEqual(self.look()["records"], "fail")
        self.assertFalse(list(self.root.glob("backups/rejected*")))

    def test_open_modes_fail(self) -> None:
        self.filled().close()
        os.chmod(self.root / "index.json", 0o644)
        self.assertEqual(self.look()["permissions"], "fail")
        os.chmod(self.root / "index.json", 0o600)
        os.chmod(self.root / "store", 0o755)
        self.assertEqual(self.look()["permissions"], "warn")

    def test_a_missing_and_a_returned_markdown_file_are_told_apart(self) -> None:
        memory = self.filled()
        gone, kept = memory.list()
        text = (self.root / "store" / f"{gone.id}.md").read_bytes()
        memory.forget(gone.id)
        memory.close()
        (self.root / "store" / f"{kept.id}.md").unlink()
        self.assertEqual(self.look()["mirror"], "warn")
        (self.root / "store" / f"{gone.id}.md").write_bytes(text)
        self.assertEqual(self.look()["mirror"], "fail")

    def test_damaged_derived_files_are_named(self) -> None:
        memory = self.filled()
        care.reindex(memory)
        memory.close()
        for name, check in (("vectors.json", "vectors"), (".search/words.bin", "search"),
                            (".search/twins.bin", "search"), ("graph.json", "search")):
            path, good = self.root / name, (self.root / name).read_bytes()
            path.write_bytes(good[:len(good) // 2])
            self.assertEqual(self.look()[check], "fail", name)
            path.write_bytes(good)
        self.assertEqual(set(self.look().values()), {"ok"})

    def test_vectors_of_unknown_memories_warn(self) -> None:
        self.filled().close()
        path = self.root / "vectors.json"
        content = json.loads(path.read_bytes())
        content["vectors"]["mem_of_nobody"] = {"1": 1.0}
        path.write_text(json.dumps(content))
        self.assertEqual(self.look()["vectors"], "warn")

    def test_damaged_tombstones_warn_while_the_copy_serves_and_fail_without_it(self) -> None:
        memory = self.filled()
        memory.forget(memory.list()[0].id)
        memory.close()
        (self.root / "tombstones.json").write_bytes(b"{")
        self.assertEqual(self.look()["tombstones"], "warn")
        (self.root / "backups/tombstones.bak").write_bytes(b"{")
        self.assertEqual(self.look()["tombstones"], "fail")

    def test_damaged_backups_leftovers_and_odd_dates_warn(self) -> None:
        memory = self.filled()
        care.backup(memory)
        self.now = NOW + timedelta(days=9)
        memory.remember("a note from the days to come")
        self.now = NOW
        memory.close()
        checks = care.doctor(care._bare(str(self.root)))
        self.assertEqual({c.state for c in checks if c.name == "backups"}, {"ok"})
        archive = next(self.root.glob("backups/manual_*"))
        archive.write_bytes(archive.read_bytes()[:-30])
        (self.root / ".index.json.999999999.0123abcd.tmp").write_bytes(b"x")
        bare = HermesLite(self.root, config=core.Config(environ={}), clock=lambda: NOW)
        found = self.states(bare)
        self.assertEqual((found["backups"], found["leftovers"], found["clock"]), ("warn",) * 3)

    def test_a_secret_in_an_old_record_or_backup_fails_and_is_not_shown(self) -> None:
        memory, key = self.filled(), secret()
        memory.close()
        path = self.root / "index.json"
        path.write_bytes(path.read_bytes().replace(b"Olga", f"password: {key}".encode()))
        code, out, err = self.cli("doctor")
        self.assertEqual(code, 1)
        self.assertIn("fail  secrets", out)
        self.assertNotIn(key, out + err)

    def test_a_held_lock_is_said(self) -> None:
        memory = self.filled()
        with memory.store.transaction():
            self.assertEqual(self.look()["lock"], "warn")


class Repair(Case):
    def test_it_mends_what_the_doctor_names_and_loses_nothing(self) -> None:
        memory = self.filled()
        gone, kept = memory.list()
        returned = (self.root / "store" / f"{gone.id}.md").read_bytes()
        memory.forget(gone.id)
        memory.close()
        (self.root / "store" / f"{kept.id}.md").unlink()
        (self.root / "store" / f"{gone.id}.md").write_bytes(returned)
        (self.root / ".search" / "words.bin").write_bytes(b"nothing")
        (self.root / "vectors.json").write_bytes(b"{")
        (self.root / ".index.json.999999999.0123abcd.tmp").write_bytes(b"x")
        os.chmod(self.root / "index.json", 0o644)
        os.chmod(self.root / "store", 0o755)
        before = self.prints()
        code, out, _ = self.cli("repair", "--dry-run")
        self.assertEqual((code, self.prints()), (0, before))
        self.assertIn("would write 1 missing Markdown files", out)
        self.assertEqual(self.cli("repair")[0], Refused.exit_code)
        self.assertEqual(self.cli("repair", "--yes")[0], 0)
        checks = care.doctor(care._bare(str(self.root)))
        self.assertEqual([c for c in checks if c.state != "ok"], [])
        self.assertEqual([m.id for m in self.open().list()], [kept.id])
        self.assertFalse((self.root / "store" / f"{gone.id}.md").exists())
        self.assertEqual(stat.S_IMODE(os.stat(self.root / "index.json").st_mode), 0o600)

    def test_a_damaged_index_is_recovered_and_set_aside(self) -> None:
        self.filled().close()
        (self.root / "index.json").write_bytes(b"[{")
        self.assertEqual(self.cli("repair", "--dry-run")[0], 0)
        self.assertEqual((self.root / "index.json").read_bytes(), b"[{")
        self.assertEqual(self.cli("repair", "--yes")[0], 0)
        self.assertEqual(len(self.open().list()), 2)
        aside = list(self.root.glob("index.json.damaged-*"))
        self.assertEqual([path.read_bytes() for path in aside], [b"[{"])

    def test_a_temporary_file_of_a_living_process_stays(self) -> None:
        memory = self.filled()
        mine = self.root / f".index.json.{os.getppid()}.0123abcd.tmp"
        mine.write_bytes(b"x")
        care.repair(memory)
        self.assertTrue(mine.exists())


class Backup(Case):
    def test_it_holds_everything_and_no_key_and_is_closed_to_others(self) -> None:
        memory, key = self.filled(), secret()
        memory.forget(memory.list()[0].id)
        (self.root / ".env").write_text(f"JINA_API_KEY={key}\n")
        (self.root / ".master_key").write_text(key)
        old = os.umask(0o022)
        self.addCleanup(os.umask, old)
        copy = care.backup(memory)
        names = {name for name, _ in core.read_files(Path(copy.file))}
        self.assertLessEqual({"index.json", "tombstones.json", "MANIFEST.json"}, names)
        self.assertFalse({".env", ".master_key", ".key_check", ".lock"} & names)
        self.assertNotIn(key.encode(), gzip.decompress(Path(copy.file).read_bytes()))
        self.assertEqual((copy.memories, copy.tombstones, copy.problems), (1, 1, ()))
        self.assertEqual(stat.S_IMODE(os.stat(copy.file).st_mode), 0o600)

    def test_an_unfolded_journal_is_in_it(self) -> None:
        memory = self.filled()
        memory.store._index_size = lambda: 10 ** 6    # too large to be folded at once
        memory.remember("a note that stands in the journal alone")
        self.assertTrue((self.root / "index.journal").exists())
        self.assertEqual(care.backup(memory).memories, 3)

    def test_an_existing_file_is_not_overwritten(self) -> None:
        target = self.home / "there.tar.gz"
        target.write_bytes(b"mine")
        with self.assertRaises(UsageError):
            care.backup(self.filled(), target)
        self.assertEqual(target.read_bytes(), b"mine")

    def test_verify_finds_every_flipped_or_missing_byte(self) -> None:
        memory = self.filled()
        good = care.backup(memory, self.home / "b.tar.gz")
        self.assertEqual(care.verify(memory, good.file).problems, ())
        data = Path(good.file).read_bytes()
        for at in (1, len(data) // 3, len(data) // 2, len(data) - 20):
            bad = self.home / "bad.tar.gz"
            for damaged in (data[:at], data[:at] + bytes([data[at] ^ 255]) + data[at + 1:]):
                bad.write_bytes(damaged)
                copy = care.verify(memory, bad)
                self.assertEqual(copy.exit_code, DamagedData.exit_code)

    def test_verify_without_a_backup_says_how_to_make_one(self) -> None:
        with self.assertRaisesRegex(NotFound, "backup"):
            care.verify(self.filled())


class Restore(Case):
    def archive(self, files: dict[str, bytes], *, kind: bytes = tarfile.REGTYPE) -> Path:
        """Write an archive with a right manifest, as an attacker would."""
        listed = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                  for name, data in files.items()}
        manifest = json.dumps({"version": 1, "made_at": "x", "memories": 0, "files": listed})
        path = self.home / "evil.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name, data in {**files, "MANIFEST.json": manifest.encode()}.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                if kind != tarfile.REGTYPE and name not in ("index.json", "MANIFEST.json"):
                    member.type, member.linkname, member.size = kind, "/etc/passwd", 0
                archive.addfile(member, io.BytesIO(data))
        return path

    def test_it_brings_the_old_state_back_and_keeps_what_was_there(self) -> None:
        memory = self.filled()
        copy = care.backup(memory, self.home / "b.tar.gz")
        ids = {m.id for m in memory.list()}
        memory.verify(min(ids))
        later = memory.remember("a note made after the backup").id
        plan = care.restore(memory, copy.file, dry_run=True)
        self.assertEqual((plan.added, plan.changed, plan.removed, plan.before), (0, 1, 1, None))
        done = care.restore(memory, copy.file)
        self.assertEqual({m.id for m in memory.list()}, ids)
        self.assertFalse(memory.get(min(ids)).execution_verified)
        self.assertFalse((self.root / "store" / f"{later}.md").exists())
        self.assertEqual(memory.recall("harbour")[0].content, "the harbour master is Olga")
        back = care.restore(memory, self.root / done.before)
        self.assertEqual((back.added, back.changed), (1, 1))
        self.assertEqual(memory.get(later).content, "a note made after the backup")

    def test_a_second_restore_changes_nothing(self) -> None:
        memory = self.filled()
        copy = care.backup(memory, self.home / "b.tar.gz")
        memory.remember("a note made after the backup")
        care.restore(memory, copy.file)
        memory.close()
        before = self.prints()
        again = care.restore(memory, copy.file)
        self.assertEqual((again.added, again.changed, again.removed, again.same), (0, 0, 0, 2))
        memory.close()
        self.assertEqual(self.prints(), before)

    def test_an_empty_root_gets_records_tombstones_and_other_files_back(self) -> None:
        memory = self.filled("the ferry leaves at nine", "the pilot boards at the buoy")
        gone = memory.list()[0]
        memory.forget(gone.id)
        memory.store.write("rooms/events.md", b"# my own words\n")
        copy = care.backup(memory, self.home / "b.tar.gz")
        self.root = self.home / "other"
        fresh = self.open()
        care.restore(fresh, copy.file)
        self.assertEqual(len(fresh.list()), 1)
        self.assertEqual((self.root / "rooms/events.md").read_bytes(), b"# my own words\n")
        with self.assertRaises(Refused):
            fresh.remember(gone.content, deliberate=False)
        fresh.close()
        with self.assertRaises(Refused):
            self.open().remember(gone.content, deliberate=False)

    def test_daily_backups_and_archives_of_prune_are_accepted(self) -> None:
        memory = self.filled()
        self.now += timedelta(days=1)
        memory.remember("the buoy is red")
        daily = next(self.root.glob("backups/auto_index*.bak"))
        self.now += timedelta(days=30)
        pruned = memory.prune()
        self.assertEqual(len(pruned.expired), 3)
        done = care.restore(memory, self.root / pruned.archive)
        self.assertEqual((done.added, done.removed, done.forgotten), (3, 0, 0))
        memory.remember("one more, so that something is there to take away")
        self.assertEqual(care.restore(memory, daily).removed, 4 - len(json.loads(
            daily.read_bytes())))

    def test_what_was_pruned_and_restored_stays_after_the_next_start(self) -> None:
        memory = self.filled()
        self.now += timedelta(days=30)
        pruned = memory.prune()
        care.restore(memory, self.root / pruned.archive)
        memory.close()
        path = self.root / "index.json"
        path.write_bytes(path.read_bytes() + b"\n")   # so that it is read with care
        self.assertEqual(len(self.open().list()), 2)

    def test_unsafe_names_links_and_foreign_archives_change_nothing(self) -> None:
        memory = self.filled()
        memory.close()
        before, target = self.prints(), self.home / "outside"
        for name in ("../outside", "/tmp/outside", "a/../../outside", "a\\..\\outside", "C:x",
                     "./x", "store/../../outside"):
            with self.assertRaises(Refused, msg=name):
                care.restore(memory, self.archive({"index.json": b"[]", name: b"x"}))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            with self.assertRaises(DamagedData):
                care.restore(memory, self.archive({"index.json": b"[]", "rooms/x": b""},
                                                  kind=kind))
        with self.assertRaises(DamagedData):
            care.restore(memory, self.archive({"store/x.md": b"x"}))
        for content in (b"", b"hello", b"[1, 2", b'{"a": 1}', b"[" * 100_000):
            (self.home / "odd").write_bytes(content)
            with self.assertRaises(DamagedData, msg=content[:9]):
                care.restore(memory, self.home / "odd")
        with self.assertRaises(NotFound):
            care.restore(memory, self.home / "nowhere")
        memory.close()
        self.assertEqual(self.prints(), before)
        self.assertFalse(target.exists())

    def test_a_file_that_is_not_what_the_manifest_says_is_damage(self) -> None:
        memory = self.filled()
        good = dict(core.read_files(Path(care.backup(memory, self.home / "b.tar.gz").file)))
        manifest = json.loads(good["MANIFEST.json"])
        for files in ({**good, "index.json": good["index.json"].replace(b"Olga", b"Vera")},
                      {n: d for n, d in good.items() if n != "rooms/events.md"},
                      {n: d for n, d in good.items() if n != "MANIFEST.json"},
                      {**good, "one-more.md": b"x"},
                      {**good, "MANIFEST.json": json.dumps({**manifest, "memories": 3}).encode()},
                      {**good, "MANIFEST.json": b"[1]"}, {**good, "MANIFEST.json": b'{"files": 1}'}):
            path = self.home / "changed.tar.gz"
            with tarfile.open(path, "w:gz") as archive:
                for name, data in files.items():
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
            self.assertTrue(care.verify(memory, path).problems, list(files))
            with self.assertRaises(DamagedData):
                care.restore(memory, path)

    def test_odd_tombstones_in_an_archive_are_damage(self) -> None:
        memory = self.filled()
        for tombs in (b"[]", b"{", b'{"key": "a", "tombstones": {"x": 1}}', b'{"tombstones": {}}'):
            with self.assertRaises(DamagedData, msg=tombs):
                care.restore(memory, self.archive({"index.json": b"[]", "tombstones.json": tombs}))
        self.assertEqual(len(memory.list()), 2)

    def test_keys_in_an_archive_are_not_put_back(self) -> None:
        memory = self.filled()
        care.restore(memory, self.archive({"index.json": b"[]", ".env": b"A=b",
                                           ".master_key": b"x", "rooms/new.md": b"# new"}))
        self.assertTrue((self.root / "rooms/new.md").exists())
        self.assertFalse((self.root / ".env").exists() or (self.root / ".master_key").exists())

    def test_a_damaged_archive_changes_nothing(self) -> None:
        memory = self.filled()
        path = Path(care.backup(memory, self.home / "b.tar.gz").file)
        data = path.read_bytes()
        memory.remember("a later note")
        memory.close()
        before = self.prints()
        for cut in (10, len(data) // 2, len(data) - 9):
            path.write_bytes(data[:cut])
            with self.assertRaises(DamagedData):
                care.restore(memory, path)
        memory.close()
        self.assertEqual(self.prints(), before)

    def test_what_comes_back_is_redacted_by_todays_rules(self) -> None:
        memory, key = self.filled(), secret()
        entries = [m.entry() for m in memory.list()]
        entries[0]["content"] = f"password: {key}"
        entries[0]["meta"] = {"login": {"password": key}}
        old = self.home / "auto_index.json.20200101.bak"
        old.write_text(json.dumps(entries))
        self.assertEqual(care.restore(memory, old).changed, 1)
        memory.close()
        self.assertEqual(self.grep(key), [])

    def test_one_damaged_entry_costs_one_entry(self) -> None:
        memory = self.filled()
        entries = [m.entry() for m in memory.list()] + [{"id": "../x", "content": 1}, 7]
        old = self.home / "old.json"
        old.write_text(json.dumps(entries))
        done = care.restore(memory, old)
        self.assertEqual((done.same, done.damaged), (2, 2))

    def test_a_crash_before_the_end_leaves_the_old_state(self) -> None:
        memory = self.filled()
        copy = care.backup(memory, self.home / "b.tar.gz")
        memory.remember("a later note")
        memory.store._commit = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
        with self.assertRaises(KeyboardInterrupt):
            care.restore(memory, copy.file)
        del memory.store._commit
        self.assertEqual(len(self.open().list()), 3)


class Scrub(Case):
    def test_a_command_named_pin_is_no_secret_in_a_log_and_a_real_one_is_hidden(self) -> None:
        memory, key = self.filled(), secret()
        log, line = self.root / "logs" / "audit.log", b'{"surface": "cli pin", "what": "show"}\n'
        log.parent.mkdir(exist_ok=True)
        log.write_bytes(line)
        self.assertNotIn("logs/audit.log", care.scrub(memory, dry_run=True).changed)
        log.write_bytes(line + json.dumps({"why": f"password: {key}"}).encode() + b"\n")
        care.scrub(memory)
        self.assertTrue(log.read_bytes().startswith(line))
        self.assertNotIn(key.encode(), log.read_bytes())

    def test_a_secret_of_any_place_is_gone_afterwards(self) -> None:
        memory, key = self.filled(), secret()
        memory.remember("a third note for the archive")
        care.backup(memory)
        memory.close()
        leak = f"password: {key}"
        for path in [*self.root.glob("store/*.md"), self.root / "index.json",
                     *self.root.glob("backups/auto_*")]:
            path.write_bytes(path.read_bytes().replace(b"Olga", leak.encode()))
        store = memory.store
        archive = next(self.root.glob("backups/manual_*"))
        files = {n: d.replace(b"Olga", leak.encode()) for n, d in core.read_files(archive)}
        care._write_archive(store, archive, files.items())
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
                ".search/words.bin.damaged-20260101_000000": leak,
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
        self.assertEqual(care.scrub(fresh, dry_run=True).changed, ())
        self.assertEqual(care.verify(fresh).problems, ())
        saved = json.loads((self.root / "tombstones.json").read_bytes())
        self.assertEqual(saved["key"], "ab" * 32)

    def test_harmless_text_stays_byte_for_byte(self) -> None:
        memory = self.filled("the token count is 500", "max_tokens=4096 and the secret to success")
        care.backup(memory)
        memory.close()
        before = self.records()
        self.assertEqual(care.scrub(memory).changed, ())
        memory.close()
        self.assertEqual(self.records(), before)

    def test_a_large_store_has_it_in_no_index_afterwards(self) -> None:
        memory, key = self.open(), secret()
        with memory.batch():
            for number in range(1500):
                memory.remember(f"lamp {number} " + " ".join(word(8) for _ in range(24)))
        memory.redact = lambda text: (text, ())       # as under the rules of an earlier version
        memory.remember(f"the lamp's password: {key}")
        memory.close()
        self.assertIn(".search/words.bin", self.grep(key))
        code, _, err = self.cli("scrub", "--yes")
        self.assertEqual((code, self.grep(key)), (0, []), err)

    def test_rejected_entries_of_any_form_are_scrubbed(self) -> None:
        memory, key = self.filled(), secret()
        leak = f"password: {key}"
        for rows in ([leak, 5, None, [leak]], [{"redacted": 7, "content": leak}], {"a": leak}):
            memory.store.write("backups/rejected_00000000.json", json.dumps(rows).encode())
            care.scrub(memory)
            self.assertEqual(self.grep(key), [], rows)

    def test_a_link_is_followed_only_where_the_store_follows_it(self) -> None:
        memory, key = self.filled(), secret()
        memory.close()
        outside = self.home / "notes"
        shutil.move(self.root / "store", outside)
        (self.root / "store").symlink_to(outside)
        (outside / "mine.md").write_text(f"password: {key}\n")
        other = self.home / "other.md"
        other.write_text(f"password: {key}\n")
        (self.root / "store" / "link.md").symlink_to(other)
        care.scrub(memory)
        self.assertNotIn(key, (outside / "mine.md").read_text())
        self.assertIn(key, other.read_text())
        names = {name for name, _ in core.read_files(Path(care.backup(memory).file))}
        self.assertIn("store/mine.md", names)
        self.assertNotIn("store/link.md", names)

    def test_what_is_no_text_is_named(self) -> None:
        memory = self.filled()
        (self.root / "archive.sqlite").write_bytes(b"SQLite format 3\0\xff\xfe\0")
        self.assertEqual(care.scrub(memory).left, ("archive.sqlite",))
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
        care.backup(memory)
        care.reindex(memory)
        entry = memory.get(memory_id).entry()
        memory.store.write("backups/prune_20260101_000000.json", json.dumps(
            {"archived_at": "x", "memories": [entry]}).encode())
        memory.store.write("backups/rejected_00000000.json", json.dumps(
            [{**entry, "importance": "x"}, 5]).encode())
        (self.root / "index.json.damaged-20260101_000000").write_bytes(
            (self.root / "index.json").read_bytes()[:-2])
        (self.root / ".search/words.bin.damaged-20260101_000000").write_text(marker)
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
        (self.root / ".search/words.bin.damaged-20260101_000000").unlink()
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
            taken = care.forget(memory, **choice, purge=True, yes=True)
            self.assertEqual(taken.ids, (memory_id,), how)
            self.assertEqual(taken.backups + taken.left, (), how)
            self.assert_gone(memory, marker)
            memory.close()
            self.assert_gone(self.open(), marker)
            self.assertEqual(len(self.open().list()), 3)
            self.assertEqual(care.verify(memory).problems, ())
            self.now = NOW

    def test_what_prune_took_can_be_purged_too(self) -> None:
        memory, marker, memory_id = self.spread()
        self.now += timedelta(days=30)
        memory.prune()
        self.assertTrue(self.grep(marker))
        care.forget(memory, id=memory_id, purge=True)
        self.assert_gone(memory, marker)

    def test_a_note_that_links_to_it_stays_as_it_is(self) -> None:
        memory, marker, memory_id = self.spread()
        note = self.root / "store" / "mine.md"
        note.write_text(f"see [[{memory_id}]]\n")
        care.forget(memory, id=memory_id, purge=True)
        self.assertEqual(note.read_text(), f"see [[{memory_id}]]\n")
        self.assert_gone(memory, marker)

    def test_a_copy_that_cannot_be_rewritten_is_named(self) -> None:
        memory, marker, memory_id = self.spread()
        (self.root / "copy.sqlite").write_bytes(f"\0{memory_id} {marker}".encode())
        taken = care.forget(memory, id=memory_id, purge=True)
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
                care.forget(memory, **arguments)
        with self.assertRaises(NotFound):
            care.forget(memory, id="mem_of_nobody", purge=True)
        self.assertEqual(len(memory.list()), 2)

    def test_a_note_of_unknown_age_is_not_taken_by_a_date(self) -> None:
        memory = self.filled()
        with memory.store.transaction():
            memory.store.put(core.replace(memory.list()[0], created_at="yesterday"))
        self.assertEqual(len(care.forget(memory, until="2099-01-01").ids), 1)

    def test_the_reason_is_kept_and_redacted(self) -> None:
        memory, key = self.filled(), secret()
        each = memory.list()[0]
        care.forget(memory, id=each.id, reason=f"moved out, password: {key}")
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
                [sys.executable, "-S", str(alone / "hermes_lite.py"), "--root", str(self.root), *words],
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
        yesterday = care.backup(memory, self.home / "yesterday.tar.gz")
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

        care.reindex(memory)
        care.repair(memory)
        is_away()
        with self.assertRaises(Refused):
            memory.remember(text, deliberate=False)
        for source in (yesterday.file, daily, self.root / "backups/prune_20260101_000000.json"):
            done = care.restore(memory, source)
            self.assertEqual(done.forgotten, 1)
            self.assertIn("1 forgotten note left out", list(done.lines()))
            is_away()
        path = self.root / "store" / f"{memory_id}.md"
        path.write_bytes(markdown)
        is_away()
        care.repair(memory)
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
        self.assertEqual(care.restore(memory, yesterday.file).forgotten, 1)
        is_away()
        again = self.open().remember(text)            # a person may
        self.assertTrue(again.warnings and again.created)

    def test_with_forgotten_brings_it_back_for_good(self) -> None:
        memory = self.filled()
        each = memory.list()[0]
        copy = care.backup(memory, self.home / "b.tar.gz")
        memory.forget(each.id)
        code, out, _ = self.cli("restore", copy.file, "--with-forgotten", "--yes")
        self.assertEqual((code, self.open().get(each.id).content), (0, each.content))
        self.assertNotIn("left out", out)
        path = self.root / "index.json"
        path.write_bytes(path.read_bytes() + b"\n")
        self.assertEqual(self.open().get(each.id).content, each.content)

    def test_a_kill_between_acknowledging_and_erasing_is_made_good(self) -> None:
        memory, marker, memory_id = self.spread()
        memory.store._fold = memory.store._purge = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
        with self.assertRaises(KeyboardInterrupt):
            memory.forget(memory_id)
        del memory.store._fold, memory.store._purge
        memory.store._residue = memory.store._journal_end = 0      # this process is dead
        self.assertIn("index.json", self.grep(marker))
        fresh = self.open()
        care.forget(fresh, id=memory_id, purge=True)
        self.assert_gone(fresh, marker)

    def test_a_large_store_leaves_nothing_in_journal_or_parts(self) -> None:
        marker, memory = word(), self.open()
        with memory.batch():
            for number in range(1500):
                memory.remember(f"lamp {number} " + " ".join(word(8) for _ in range(24)))
        memory_id = memory.remember(f"{marker.title()} keeps the lamps").id
        memory.close()
        self.assertGreater((self.root / "index.json").stat().st_size, core._FOLD_AT_ONCE)
        memory = self.open()
        memory.remember("one more, for the journal")
        care.forget(memory, id=memory_id, purge=True)
        self.assert_gone(memory, marker)

    def test_no_trace_of_a_removed_text_stays_in_the_indexes(self) -> None:
        vector = core.LocalHashVectorizer().embed_query("the lighthouse is haunted")
        kept = core.LocalHashVectorizer().embed_query("an unlike thing")
        for index, one, two in ((core.SparseIndex(), vector, kept),
                                (core.DuplicateIndex(), "lighthouse 7", "other thing 9")):
            index.add("a", one)
            index.add("b", two)
            index = type(index).load(index.dump())
            whole = len(index.dump())
            index.remove("a")
            again = type(index)()
            again.add("a", "" if isinstance(one, str) else {})
            again.remove("a")
            again.add("b", two)
            if isinstance(one, str):
                self.assertNotIn(core._fact_mark(one), index.dump())
            else:
                self.assertLess(len(index.dump()), whole)
            self.assertEqual(type(index).load(index.dump())._slices._row(0) & 1, 0)


@unittest.skipUnless(HAS_CRYPTO, "needs the package cryptography")
class Encrypt(Case):
    """Field case: the encryption key is lost, regenerated or changed."""

    def key(self) -> str:
        from cryptography.fernet import Fernet
        return Fernet.generate_key().decode()

    def plain_files(self, marker: str) -> list[str]:
        return [name for name in self.grep(marker) if not name.startswith("store/")]

    def spread(self, marker: str) -> HermesLite:
        memory = self.filled(f"{marker.title()} keeps the lighthouse", "the ferry leaves at nine")
        self.now += timedelta(days=1)
        memory.remember("the light is green")
        care.backup(memory)
        care.reindex(memory)
        memory.store.write("backups/prune_20260101_000000.json", json.dumps(
            {"archived_at": "x", "memories": [m.entry() for m in memory.list()]}).encode())
        memory.save_state("job", {"note": marker})
        (self.root / "index.json.damaged-20260101_000000").write_bytes(
            (self.root / "index.json").read_bytes()[:-2])
        return memory

    def test_on_leaves_no_plain_copy_but_the_mirror(self) -> None:
        marker = word()
        for environ in ({}, {"HERMES_ENCRYPT": "on"}):
            self.root, self.environ, self.now = self.home / f"r{len(environ)}", {}, NOW
            self.spread(marker).close()
            self.environ = environ
            memory = self.open()
            (self.root / ".graph.json.999999999.0123abcd.tmp").write_text(marker)
            done = care.encrypt(memory, "on")
            self.assertTrue(any("mirror" in warning for warning in done.warnings))
            memory.close()
            self.assertEqual(self.plain_files(marker), [])
            self.environ = {}                          # .env has switched it on
            fresh = self.open()
            self.assertEqual(len(fresh.list()), 3)
            self.assertIn(marker, fresh.recall("lighthouse")[0].content.lower())
            self.assertEqual(care.verify(fresh).memories, 3)
            fresh.close()
            self.assertEqual(set(self.states(care._bare(str(self.root))).values()) - {"ok"},
                             {"warn"})                # index.json.damaged-… is still there
            self.assertNotIn((self.root / ".master_key").read_text().strip().encode(),
                             b"".join(p.read_bytes() for p in self.root.rglob("*")
                                      if p.is_file() and p.name != ".master_key"))

    def test_without_a_mirror_nothing_readable_stays(self) -> None:
        marker = word()
        self.spread(marker).close()
        memory = self.open()
        memory.config["encryption"]["markdown"] = False
        care.encrypt(memory, "on")
        memory.remember("something new about the buoy")
        memory.close()
        self.assertEqual(self.grep(marker), [])
        self.assertEqual(list(self.root.glob("store/*.md")), [])

    def test_off_opens_everything_again(self) -> None:
        marker = word()
        care.encrypt(self.spread(marker), "on")
        before = len(self.plain_files(marker))
        care.encrypt(self.open(), "off")
        self.assertEqual(before, 0)
        self.assertGreater(len(self.plain_files(marker)), 5)
        self.assertFalse([n for n in self.prints() if core.is_ciphertext(
            (self.root / n).read_bytes())])
        fresh = self.open()
        self.assertIsNone(fresh.store.cipher)
        self.assertEqual(len(fresh.list()), 3)

    def test_rotate_makes_a_new_key_and_old_backups_still_open(self) -> None:
        memory = self.spread(word())
        care.encrypt(memory, "on")
        outside = care.backup(memory, self.home / "old.tar.gz")
        memory.remember("made under the first key")
        memory.close()
        old = (self.root / ".master_key").read_bytes()
        memory = self.open()
        done = care.encrypt(memory, "rotate")
        self.assertTrue(any(".master_key.old" in warning for warning in done.warnings))
        new = (self.root / ".master_key").read_bytes().strip()
        self.assertNotEqual(new, old.strip())
        newest = core.Cipher(new)
        for name in self.prints():
            for _, data in core.read_files(self.root / name):
                if core.is_ciphertext(data):
                    newest.open(data)
        memory.close()
        fresh = self.open()
        self.assertEqual(len(fresh.list()), 4)
        self.assertEqual(care.restore(fresh, outside.file).removed, 1)
        fresh.forget(fresh.list()[0].id)
        fresh.close()
        self.assertEqual(len(self.open().list()), 2)

    def test_a_damaged_sealed_file_is_named_and_never_ends_rotation(self) -> None:
        memory = self.filled()
        care.encrypt(memory, "on")
        memory.store.write("backups/prune_20260101_000000.json", b'{"memories": []}')
        path = self.root / "backups/prune_20260101_000000.json"
        path.write_bytes(path.read_bytes()[:-7])
        keys = set()
        for _ in range(3):
            keys.add((self.root / ".master_key").read_bytes())
            self.assertEqual(care.encrypt(memory, "rotate").left,
                             ("backups/prune_20260101_000000.json",))
        self.assertEqual(len(keys), 3)

    def test_a_key_of_the_environment_rotates_with_both_set(self) -> None:
        one, two = self.key(), self.key()
        self.environ = {"HERMES_ENCRYPT": "on", "HERMES_MASTER_KEY": one}
        memory = self.filled()
        memory.close()
        with self.assertRaisesRegex(ConfigError, "HERMES_MASTER_KEY_OLD"):
            care.encrypt(self.open(), "rotate")
        self.environ = {"HERMES_ENCRYPT": "on", "HERMES_MASTER_KEY": two}
        before = self.prints()
        with self.assertRaises(ConfigError):
            self.open()
        self.assertEqual(self.prints(), before)
        self.environ["HERMES_MASTER_KEY_OLD"] = one
        care.encrypt(self.open(), "rotate")
        del self.environ["HERMES_MASTER_KEY_OLD"]
        self.assertEqual(len(self.open().list()), 2)
        self.assertFalse((self.root / ".master_key").exists())
        self.assertEqual(self.grep(one) + self.grep(two), [])

    def test_a_crash_at_any_file_leaves_a_store_that_opens_and_goes_on(self) -> None:
        marker, write = word(), core.write_atomic
        self.addCleanup(setattr, core, "write_atomic", write)
        for mode in ("on", "off", "rotate"):
            for stop in range(1, 60):
                core.write_atomic = write
                self.root, self.now = self.home / f"{mode}{stop}", NOW
                memory = self.spread(marker)
                if mode != "on":
                    care.encrypt(memory, "on")
                memory.close()
                memory, left = self.open(), [stop]

                def limited(path, data, **more):
                    left[0] -= 1
                    if left[0] < 0:
                        raise KeyboardInterrupt
                    return write(path, data, **more)
                core.write_atomic = limited
                try:
                    care.encrypt(memory, mode)
                    finished = True
                except KeyboardInterrupt:
                    finished = False
                core.write_atomic = write
                fresh = self.open()
                self.assertEqual(len(fresh.list()), 3, (mode, stop))
                fresh.remember(f"written after the crash at {stop}")
                care.encrypt(fresh, mode)
                fresh.close()
                again = self.open()
                self.assertEqual(len(again.list()), 4, (mode, stop))
                self.assertEqual(care.verify(again).problems, ())
                sealed = [n for n in self.prints() for _, d in core.read_files(self.root / n)
                          if core.is_ciphertext(d)]
                if mode == "off":
                    self.assertEqual(sealed, [], stop)
                else:
                    self.assertEqual(self.plain_files(marker), [], (mode, stop))
                if mode == "rotate":
                    self.assertFalse(care._is_behind(self.root, care._keys(again)), stop)
                shutil.rmtree(self.root)
                if finished:
                    break
            self.assertTrue(finished)

    def test_every_wrong_key_is_refused_and_touches_nothing(self) -> None:
        memory = self.filled()
        self.now += timedelta(days=1)
        memory.forget(memory.remember("so that there is a backup").id)
        care.encrypt(memory, "on")
        memory.close()
        good = (self.root / ".master_key").read_text().strip()
        (self.root / ".env").unlink()
        before = self.prints()
        for environ in ({}, {"HERMES_ENCRYPT": "off"}, {"HERMES_ENCRYPT": "maybe"},
                        *({"HERMES_ENCRYPT": "on", "HERMES_MASTER_KEY": key}
                          for key in (self.key(), "x" * 31, good[:-3], "\u00e9" * 44))):
            with self.assertRaises(ConfigError, msg=environ):
                self.open(**environ)
        self.assertEqual(self.prints(), before)
        for environ in ({"HERMES_MASTER_KEY": f" {good}\n"}, {"HERMES_MASTER_KEY": "  "}, {}):
            self.assertEqual(len(self.open(HERMES_ENCRYPT="on", **environ).list()), 2)
        os.chmod(self.root / ".master_key", 0o644)
        self.open(HERMES_ENCRYPT="on")
        self.assertEqual(stat.S_IMODE(os.stat(self.root / ".master_key").st_mode), 0o600)
        (self.root / ".master_key").unlink()
        before = self.prints()
        with self.assertRaisesRegex(ConfigError, "no new key"):
            self.open(HERMES_ENCRYPT="on")
        for name in ("index.json", "vectors.json", "graph.json"):
            (self.root / name).unlink()               # only backups are left under the key
        with self.assertRaises(ConfigError):
            self.open(HERMES_ENCRYPT="on")
        self.assertFalse((self.root / ".master_key").exists())

    def test_a_process_that_runs_on_with_the_old_state_is_refused(self) -> None:
        for mode in ("on", "rotate", "off"):
            stale = self.filled() if mode == "on" else self.open()
            stale.recall("ferry")
            care.encrypt(self.open(), mode)
            before = self.prints()
            with self.assertRaises(ConfigError, msg=mode):
                stale.remember("written with what is no longer true")
            self.assertEqual(self.prints(), before, mode)
            self.assertEqual(len(self.open().list()), 2)

    def test_a_flipped_byte_or_a_doubled_token_costs_nothing_that_has_a_copy(self) -> None:
        memory = self.filled()
        care.encrypt(memory, "on")
        memory.close()
        path = self.root / "index.json"
        good = path.read_bytes()
        for damaged in (good[:60] + bytes([good[60] ^ 1]) + good[61:], b"x" + good[1:],
                        good + b"." + good, good + good, good[:-9]):
            path.write_bytes(damaged)
            fresh = self.open()
            self.assertEqual(len(fresh.list()), 2)
            fresh.close()

    def test_a_plain_file_in_an_encrypted_store_fails_the_check(self) -> None:
        memory = self.filled()
        care.encrypt(memory, "on")
        memory.close()
        memory.store.write("backups/auto_index.json.20200101.bak", b"[]")
        self.assertEqual(self.states(care._bare(str(self.root)))["key"], "ok")
        (self.root / "backups/auto_index.json.20200101.bak").write_bytes(b"[]")
        self.assertEqual(self.states(care._bare(str(self.root)))["key"], "fail")
        (self.root / ".master_key").write_text(self.key())
        checks = care.doctor(care._bare(str(self.root)))
        self.assertEqual((checks[-1].name, checks[-1].state), ("key", "fail"))
        self.assertEqual(checks.exit_code, 1)

    def test_scrub_purge_and_backup_keep_sealed_what_was_sealed(self) -> None:
        marker, key = word(), secret()
        memory = self.spread(marker)
        care.encrypt(memory, "on")
        memory.save_state("job", {"last": f"password: {key}"})
        self.assertTrue(care.scrub(memory).changed)
        self.assertTrue(core.is_ciphertext((self.root / ".state_job.json").read_bytes()))
        self.assertEqual(memory.state("job"), {"last": "password: [已脱敏:password]"})
        chosen = care.forget(memory, query=marker, purge=True, yes=True)
        self.assertEqual((len(chosen.ids), chosen.backups, chosen.left), (1, (), ()))
        self.assertEqual(memory.store.holding(chosen.ids[0]), [])
        self.assertTrue(all(core.is_ciphertext(p.read_bytes())
                            for p in self.root.glob("backups/auto_*")))
        copy = care.backup(memory)
        self.assertTrue(copy.encrypted)
        self.assertFalse([n for n, _ in core.read_files(Path(copy.file))
                          if n.startswith("store/")])

    def test_an_encrypted_backup_without_its_key_is_refused(self) -> None:
        memory = self.filled()
        care.encrypt(memory, "on")
        copy = care.backup(memory, self.home / "b.tar.gz")
        self.root = self.home / "other"
        with self.assertRaisesRegex(ConfigError, "HERMES_MASTER_KEY"):
            care.restore(self.open(), copy.file)
        self.environ = {"HERMES_MASTER_KEY": (
            self.home / "root" / ".master_key").read_text().strip()}
        fresh = self.open()
        self.assertEqual(care.restore(fresh, copy.file).added, 2)
        self.assertFalse(core.is_ciphertext((self.root / "index.json").read_bytes()))


class WithoutCryptography(Case):
    @unittest.skipIf(HAS_CRYPTO, "the package cryptography is there")
    def test_encrypt_names_the_install_command_and_touches_nothing(self) -> None:
        self.filled().close()
        before = self.prints()
        code, _, err = self.cli("encrypt", "on")
        self.assertEqual(code, 1)
        self.assertIn("pip install cryptography", err)
        self.assertEqual(self.prints(), before)

    def test_modes_are_checked_and_off_is_idle_on_a_plain_store(self) -> None:
        memory = self.filled()
        with self.assertRaises(UsageError):
            care.encrypt(memory, "maybe")
        self.assertEqual(care.encrypt(memory, "off").did, ("encryption is off",))
        with self.assertRaises(ConfigError):
            care.encrypt(memory, "rotate")


if __name__ == "__main__":
    unittest.main()

"""Tests of hermes_ext.maintenance.doctor: its findings, and what repair does about them."""
import importlib.util
import json
import os
import stat
import subprocess
import sys
import unittest
from datetime import timedelta

import hermes_lite as core
from hermes_ext.archive import cold
from hermes_ext.maintenance import backups, doctor, migrate, repair, scrub
from hermes_ext.tests.base import Case, HAS_CRYPTO, HAS_YAML, HOME, NOW, a_secret
from hermes_lite import HermesLite, Refused


class Doctor(Case):
    def look(self) -> dict[str, str]:
        return self.states(doctor.open_unread(str(self.root)))

    def test_a_healthy_store_passes_and_is_not_changed(self) -> None:
        self.filled().close()
        before = self.prints()
        code, out, _ = self.cli("doctor", "--json")
        self.assertEqual(code, 0)
        checks = json.loads(out)
        self.assertEqual({row["state"] for row in checks}, {"ok"}, checks)
        self.assertEqual({row["name"] for row in checks}, {
            "permissions", "disk", "lock", "config", "key", "records", "mirror", "search",
            "vectors", "tombstones", "cold", "backups", "leftovers", "clock", "secrets"})
        self.assertEqual(self.prints(), before)

    def test_a_smaller_index_json_is_named_and_repair_brings_the_better_copy_back(self) -> None:
        self.filled().close()
        index = self.root / "index.json"
        rows = json.loads(index.read_bytes())
        self.assertGreater(len(rows), 1)
        smaller = json.dumps(rows[:1]).encode()
        index.write_bytes(smaller)
        code, out, _ = self.cli("doctor")
        self.assertEqual(code, 1)
        self.assertRegex(out, rf"fail  records: index.json was replaced .* holds 1 where there "
                              rf"were {len(rows)}; run `repair`")
        code, out, _ = self.cli("repair", "--dry-run")
        offer = f"would bring back {core.pluralize(len(rows) - 1, 'memory', 'memories')}"
        self.assertIn(offer, out)
        self.assertEqual(index.read_bytes(), smaller)
        self.assertEqual(self.cli("repair", "--yes")[0], 0)
        self.assertEqual({row["id"] for row in json.loads(index.read_bytes())},
                         {row["id"] for row in rows})
        code, out, err = self.cli("list")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(self.cli("doctor")[0], 0)

    @unittest.skipUnless(HAS_CRYPTO, "needs cryptography")
    def test_the_index_of_cold_storage_can_be_read_in_an_encrypted_store(self) -> None:
        with self.filled() as memory:
            cold.freeze(memory, below=100, older_than=-1)
        self.assertEqual(self.cli("encrypt", "on")[0], 0)
        code, out, err = self.cli("doctor")
        self.assertRegex(out, "ok    cold: 2 memories")
        self.assertEqual((code, err), (0, ""))

    @unittest.skipUnless(HAS_YAML, "needs PyYAML")
    def test_an_archive_is_looked_at_with_the_rules_of_today(self) -> None:
        with self.filled("the badge EMP123456 opens the depot") as memory:
            migrate.migrate(memory, "archive")
        self.assertEqual(self.look()["secrets"], "ok")
        (self.root / "config.yaml").write_text(
            "security:\n  redact_patterns: ['(EMP[0-9]+)']\n")
        self.assertEqual(self.look()["secrets"], "fail")

    def test_a_smaller_index_json_can_be_accepted(self) -> None:
        self.filled().close()
        index = self.root / "index.json"
        rows = json.loads(index.read_bytes())
        index.write_bytes(json.dumps(rows[:1]).encode())
        self.assertEqual(self.cli("repair", "--accept-loss", "--yes")[0], 0)
        self.assertEqual(self.cli("list")[2], "")
        self.assertEqual([row["id"] for row in json.loads(index.read_bytes())], [rows[0]["id"]])
        self.assertTrue((self.root / "backups" / f"set_aside_{rows[1]['id']}.md").exists())

    def test_a_backup_dated_in_the_future_is_named(self) -> None:
        self.filled().close()
        late = self.root / "backups" / "auto_index.json.20990101.bak"
        late.parent.mkdir(exist_ok=True)
        late.write_bytes((self.root / "index.json").read_bytes())
        late.chmod(0o600)
        self.assertIn(f"warn  backups: {late.name}: dated in the future by a wrong clock",
                      self.cli("doctor")[1])

    def test_help_lists_the_commands_without_importing_the_module(self) -> None:
        ran = subprocess.run(
            [sys.executable, "-X", "importtime", str(HOME / "hermes_lite.py"), "--help"],
            capture_output=True, text=True)
        for command in ("doctor", "repair", "backup", "restore", "scrub", "reindex", "encrypt"):
            self.assertIn(f"\n    {command} ", ran.stdout)
        self.assertNotIn("hermes_ext.maintenance", ran.stderr)

    def test_the_table_of_contents_agrees_with_the_operations(self) -> None:
        from hermes_ext import CONTENTS
        for name in ("doctor", "repair", "backups", "restore", "scrub", "encryption"):
            made = core.import_system(name).OPERATIONS
            self.assertEqual(CONTENTS[name][1], {o.name: o.help for o in made})

    def test_a_broken_config_is_a_failed_check_not_a_refusal_to_look(self) -> None:
        self.filled().close()
        (self.root / "config.yaml").write_text("retrieval:\n  vektor: 1\n")
        code, out, _ = self.cli("doctor")
        if importlib.util.find_spec("yaml"):
            self.assertEqual(code, 1)
            self.assertIn("config.yaml:2", out)
        else:
            self.assertIn("warn  config", out)

    def test_the_size_of_a_store_counts_every_file(self) -> None:
        self.filled().close()
        (self.root / "memory_archive.db").write_bytes(bytes(123_456))
        said = doctor._check_disk(self.root).message
        held = sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())
        self.assertIn(f"the store has {held:,}", said)

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
        scrub.reindex(memory)
        memory.close()
        for name, check in ((".search/index.bin", "search"), ("graph.json", "search")):
            path, good = self.root / name, (self.root / name).read_bytes()
            path.write_bytes(good[:len(good) // 2])
            self.assertEqual(self.look()[check], "fail", name)
            path.write_bytes(good)
        self.assertEqual(set(self.look().values()), {"ok"})

    def test_vectors_of_unknown_memories_warn(self) -> None:
        self.filled().close()
        path = self.root / "vectors.json"
        content = {"backend": "far", "model": "m", "dimension": 2, "vectors": {}}
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
        backups.backup(memory)
        self.now = NOW + timedelta(days=9)
        memory.remember("a note from the days to come")
        self.now = NOW
        memory.close()
        checks = doctor.doctor(doctor.open_unread(str(self.root)))
        self.assertEqual({c.state for c in checks if c.name == "backups"}, {"ok"})
        archive = next(self.root.glob("backups/manual_*"))
        archive.write_bytes(archive.read_bytes()[:-30])
        (self.root / ".index.json.999999999.0123abcd.tmp").write_bytes(b"x")
        bare = HermesLite(self.root, config=core.Config(environ={}), clock=lambda: NOW)
        found = self.states(bare)
        self.assertEqual((found["backups"], found["leftovers"], found["clock"]), ("warn",) * 3)

    def test_a_secret_in_an_old_record_or_backup_fails_and_is_not_shown(self) -> None:
        memory, key = self.filled(), a_secret()
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
        (self.root / ".search" / "index.bin").write_bytes(b"nothing")
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
        checks = doctor.doctor(doctor.open_unread(str(self.root)))
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
        repair.repair(memory)
        self.assertTrue(mine.exists())

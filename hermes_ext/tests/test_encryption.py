"""Tests of hermes_ext.maintenance.encryption, most of them only where the package cryptography is there."""
import json
import os
import shutil
import stat
import unittest
from datetime import timedelta
from pathlib import Path
from unittest import mock

import hermes_lite as core
from hermes_ext import import_export
from hermes_ext.archive import cold
from hermes_ext.automation import actions
from hermes_ext.maintenance import (backups, doctor, encryption, forget, restore, scrub,
                                    store_files)
from hermes_ext.sync import sync
from hermes_ext.tests.base import Case, HAS_CRYPTO, NOW, a_secret, word
from hermes_lite import ConfigError, HermesLite, Refused, StorageError, UsageError


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
        with memory.store.transaction():
            memory.store.put(core.Memory("mem_20200101_000000_cccc", f"{marker} was the first keeper",
                                         importance=1, created_at="2020-01-01T00:00:00+00:00"))
        cold.freeze(memory)
        backups.backup(memory)
        scrub.reindex(memory)
        memory.store.files.write("backups/prune_20260101_000000.json", json.dumps(
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
            done = encryption.encrypt(memory, "on")
            self.assertTrue(any("mirror" in warning for warning in done.warnings))
            memory.close()
            self.assertEqual(self.plain_files(marker), [])
            self.environ = {}                          # .env has switched it on
            fresh = self.open()
            self.assertEqual(len(fresh.list()), 3)
            self.assertIn(marker, fresh.recall("lighthouse")[0].content.lower())
            self.assertEqual(backups.verify(fresh).memories, 3)
            fresh.close()
            self.assertEqual(set(self.states(doctor.open_unread(str(self.root))).values()) - {"ok"},
                             {"warn"})                # index.json.damaged-… is still there
            self.assertNotIn((self.root / ".master_key").read_text().strip().encode(),
                             b"".join(p.read_bytes() for p in self.root.rglob("*")
                                      if p.is_file() and p.name != ".master_key"))

    def test_without_a_mirror_nothing_readable_stays(self) -> None:
        marker = word()
        self.spread(marker).close()
        memory = self.open()
        memory.config["encryption"]["markdown"] = False
        encryption.encrypt(memory, "on")
        memory.remember("something new about the buoy")
        memory.close()
        self.assertEqual(self.grep(marker), [])
        self.assertEqual(list(self.root.glob("store/*.md")), [])

    def test_the_reason_of_a_forget_is_readable_nowhere(self) -> None:
        marker = word()
        for mode in ("from the start", "later"):
            self.root = self.home / mode
            self.environ = {"HERMES_ENCRYPT": "on"} if mode == "from the start" else {}
            memory = self.filled()
            first, second = (each.id for each in memory.list())
            memory.forget(first, why=f"{marker} asked for it")
            encryption.encrypt(memory, "on")
            memory.close()
            memory = self.open()
            forget.forget(memory, id=second, reason=f"{marker} asked again")
            self.now += timedelta(days=1)
            memory.remember("the light is green")
            backups.backup(memory)
            memory.close()
            self.assertEqual(self.grep(marker), [])
            text = "the harbour master is Olga"
            with self.assertRaisesRegex(Refused, marker):
                self.open().remember(text, deliberate=False)
            self.assertEqual(self.states(doctor.open_unread(str(self.root)))["tombstones"], "ok")
            encryption.encrypt(self.open(), "rotate")
            (self.root / "tombstones.json").unlink()       # the copy serves
            with self.assertRaisesRegex(Refused, marker):
                self.open().remember(text, deliberate=False)
            copy = backups.backup(self.open(), self.home / f"{mode}.tar.gz")
            self.assertEqual((copy.tombstones, copy.encrypted), (2, True))
            encryption.encrypt(self.open(), "off")
            self.environ = {}
            with self.assertRaisesRegex(Refused, marker):
                self.open().remember(text, deliberate=False)
            self.assertIn("tombstones.json", self.grep(marker))

    def test_every_way_out_of_a_sealed_store_knows_that_it_is_sealed(self) -> None:
        marker = word()
        self.root.mkdir()
        (self.root / "config.yaml").write_text(
            "encryption: {markdown: false}\nsystems: {audit: {}}\n")
        self.environ = {"HERMES_ENCRYPT": "on"}
        memory = self.open()
        note = memory.get(memory.remember(f"{marker.title()} keeps the lighthouse").id)
        memory.forget(memory.remember("the ferry leaves at nine").id, why=f"{marker} asked for it")
        self.assertIn("plain text", "".join(import_export.export(memory).warnings))
        with self.assertRaisesRegex(Refused, "would hold readable text"):
            actions.append(memory, "notes.md", note, cause="test")
        with self.assertRaisesRegex(Refused, "would become readable in the folder"):
            sync.sync(memory, self.home / "shared")
        sealed = self.home / "rows.jsonl"
        row = json.dumps({"content": f"{marker} rang the bell"}).encode()
        sealed.write_bytes(core.seal(row, memory.store.files.cipher))
        self.assertEqual(import_export.bring_in(memory, sealed).added, 1)
        memory.close()
        self.assertEqual(self.grep(marker), [])

    def test_a_forget_with_the_wrong_key_loses_no_tombstone(self) -> None:
        self.environ = {"HERMES_ENCRYPT": "on", "HERMES_MASTER_KEY": self.key()}
        memory = self.filled()
        memory.forget(memory.list()[0].id)
        memory.close()
        before = self.prints()
        for environ in ({}, {"HERMES_ENCRYPT": "on", "HERMES_MASTER_KEY": self.key()}):
            self.environ = environ
            for name in ("index.json", "index.journal", "vectors.json", "graph.json"):
                (self.root / name).rename(self.home / name) if (self.root / name).exists() else None
            with self.assertRaises(ConfigError):
                self.open()
            for path in self.home.glob("*.json*"):
                path.rename(self.root / path.name)
            self.assertEqual(self.prints(), before)

    def test_off_opens_everything_again(self) -> None:
        marker = word()
        encryption.encrypt(self.spread(marker), "on")
        before = len(self.plain_files(marker))
        encryption.encrypt(self.open(), "off")
        self.assertEqual(before, 0)
        self.assertGreater(len(self.plain_files(marker)), 5)
        self.assertFalse([n for n in self.prints() if core.is_ciphertext(
            (self.root / n).read_bytes())])
        fresh = self.open()
        self.assertIsNone(fresh.store.files.cipher)
        self.assertEqual(len(fresh.list()), 3)

    def test_rotate_makes_a_new_key_and_old_backups_still_open(self) -> None:
        memory = self.spread(word())
        encryption.encrypt(memory, "on")
        outside = backups.backup(memory, self.home / "old.tar.gz")
        memory.remember("made under the first key")
        memory.close()
        old = (self.root / ".master_key").read_bytes()
        memory = self.open()
        done = encryption.encrypt(memory, "rotate")
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
        self.assertEqual(restore.restore(fresh, outside.file).removed, 1)
        fresh.forget(fresh.list()[0].id)
        fresh.close()
        self.assertEqual(len(self.open().list()), 2)

    def test_a_damaged_sealed_file_is_named_and_never_ends_rotation(self) -> None:
        memory = self.filled()
        encryption.encrypt(memory, "on")
        memory.store.files.write("backups/prune_20260101_000000.json", b'{"memories": []}')
        path = self.root / "backups/prune_20260101_000000.json"
        path.write_bytes(path.read_bytes()[:-7])
        keys = set()
        for _ in range(3):
            keys.add((self.root / ".master_key").read_bytes())
            self.assertEqual(encryption.encrypt(memory, "rotate").left,
                             ("backups/prune_20260101_000000.json",))
        self.assertEqual(len(keys), 3)

    def test_records_that_cannot_be_read_leave_encryption_as_it_was(self) -> None:
        for mode in ("off", "rotate"):
            with self.subTest(mode=mode):
                memory = self.open(HERMES_ENCRYPT="on")
                memory.remember(f"the ferry leaves at nine, says {mode}")
                count = len(memory.list())
                read = core.read_files

                def failing(path: Path) -> object:
                    if path.name == "index.json":
                        raise OSError(5, "I/O error")
                    return read(path)
                with mock.patch.object(core, "read_files", failing):
                    with self.assertRaises(StorageError):
                        encryption.encrypt(memory, mode)
                self.assertEqual(len(self.open(HERMES_ENCRYPT="on").list()), count)

    def test_a_key_of_the_environment_rotates_with_both_set(self) -> None:
        one, two = self.key(), self.key()
        self.environ = {"HERMES_ENCRYPT": "on", "HERMES_MASTER_KEY": one}
        memory = self.filled()
        memory.close()
        with self.assertRaisesRegex(ConfigError, "HERMES_MASTER_KEY_OLD"):
            encryption.encrypt(self.open(), "rotate")
        self.environ = {"HERMES_ENCRYPT": "on", "HERMES_MASTER_KEY": two}
        before = self.prints()
        with self.assertRaises(ConfigError):
            self.open()
        self.assertEqual(self.prints(), before)
        self.environ["HERMES_MASTER_KEY_OLD"] = one
        encryption.encrypt(self.open(), "rotate")
        del self.environ["HERMES_MASTER_KEY_OLD"]
        self.assertEqual(len(self.open().list()), 2)
        self.assertFalse((self.root / ".master_key").exists())
        self.assertEqual(self.grep(one) + self.grep(two), [])

    def test_a_crash_at_any_file_leaves_a_store_that_opens_and_goes_on(self) -> None:
        marker, write = word(), core.write_atomic
        self.addCleanup(setattr, core, "write_atomic", write)
        for mode in ("on", "off", "rotate"):
            self.root, self.now = self.home / mode, NOW
            memory = self.spread(marker)
            if mode != "on":
                encryption.encrypt(memory, "on")
            memory.close()
            ready = shutil.copytree(self.root, self.home / f"{mode}-ready", symlinks=True)
            for stop in range(1, 60):
                core.write_atomic = write
                shutil.rmtree(self.root)
                shutil.copytree(ready, self.root, symlinks=True)
                memory, left = self.open(), [stop]

                def limited(path, data, **more):
                    left[0] -= 1
                    if left[0] < 0:
                        raise KeyboardInterrupt
                    return write(path, data, **more)
                core.write_atomic = limited
                try:
                    encryption.encrypt(memory, mode)
                    finished = True
                except KeyboardInterrupt:
                    finished = False
                core.write_atomic = write
                fresh = self.open()
                self.assertEqual(len(fresh.list()), 3, (mode, stop))
                fresh.remember(f"written after the crash at {stop}")
                encryption.encrypt(fresh, mode)
                fresh.close()
                again = self.open()
                self.assertEqual(len(again.list()), 4, (mode, stop))
                self.assertEqual(cold.thaw(again, dry_run=True).left, (), (mode, stop))
                self.assertEqual(len(cold.Cold(again).memories), 1)
                self.assertEqual(backups.verify(again).problems, ())
                sealed = [n for n in self.prints() for _, d in core.read_files(self.root / n)
                          if core.is_ciphertext(d)]
                if mode == "off":
                    self.assertEqual(sealed, [], stop)
                else:
                    self.assertEqual(self.plain_files(marker), [], (mode, stop))
                if mode == "rotate":
                    self.assertFalse(store_files.is_behind(self.root, store_files.keys_of(again)), stop)
                if finished:
                    break
            self.assertTrue(finished)

    def test_every_wrong_key_is_refused_and_touches_nothing(self) -> None:
        memory = self.filled()
        self.now += timedelta(days=1)
        memory.forget(memory.remember("so that there is a backup").id)
        encryption.encrypt(memory, "on")
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
        for name in ("index.json", "graph.json"):
            (self.root / name).unlink()               # only backups are left under the key
        with self.assertRaises(ConfigError):
            self.open(HERMES_ENCRYPT="on")
        self.assertFalse((self.root / ".master_key").exists())

    def test_off_stops_where_a_file_cannot_be_read_now_and_the_store_stays_in_use(self) -> None:
        self.spread(word()).close()
        encryption.encrypt(self.open(), "on")
        real = core.read_files
        for part in ("graph.json", "tombstones.json", "cold_", "prune_"):
            failed: list[str] = []

            def read(path: Path) -> object:
                if part in path.name and not failed:
                    failed.append(path.name)
                    raise OSError(5, "Input/output error")
                return real(path)
            memory = self.open()
            memory.forget(memory.remember("something to forget").id)
            with mock.patch.object(core, "read_files", read), \
                    self.assertRaisesRegex(StorageError, "encryption was not switched"):
                encryption.encrypt(memory, "off")
            self.assertTrue(failed)
            memory.close()
            self.assertEqual(len(self.open().list()), 3)
            self.assertEqual(len(cold.thaw(self.open(), dry_run=True).ids), 1)
        encryption.encrypt(self.open(), "off")
        self.assertEqual(len(self.open().list()), 3)
        self.assertEqual(len(cold.thaw(self.open(), dry_run=True).ids), 1)

    def test_what_was_set_aside_as_damaged_is_sealed_too(self) -> None:
        marker = word()
        memory = self.open()
        memory.forget(memory.remember("the lantern is lit").id, why=f"asked for by {marker}")
        memory.close()
        for name in ("tombstones.json", "backups/tombstones.bak"):
            path = self.root / name
            shutil.copy(path, path.with_name(f"{path.name}.damaged-20260101_000000"))
        encryption.encrypt(self.open(), "on")
        readable = [path.name for path in self.root.rglob("*")
                    if path.is_file() and marker.encode() in path.read_bytes()]
        self.assertEqual(readable, [])

    def test_off_moves_a_damaged_side_file_out_of_the_way(self) -> None:
        for name in ("graph.json", "tombstones.json"):
            self.root = self.home / name
            memory = self.filled()
            memory.forget(memory.remember("something to forget").id)
            encryption.encrypt(memory, "on")
            memory.close()
            memory = self.open()
            real = memory.store.checkpoint

            def checkpoint() -> None:
                real()
                (self.root / name).write_bytes(b"gAAAAAAAAAAAA-no-key-opens-this")
            with mock.patch.object(memory.store, "checkpoint", checkpoint):
                self.assertEqual(encryption.encrypt(memory, "off").left, (name,))
            fresh = self.open()
            self.assertEqual(len(fresh.list()), 2)
            self.assertIsNotNone(fresh.store.forgotten("something to forget"))

    def test_a_process_that_runs_on_with_the_old_state_is_refused(self) -> None:
        for mode in ("on", "rotate", "off"):
            stale = self.filled() if mode == "on" else self.open()
            stale.recall("ferry")
            encryption.encrypt(self.open(), mode)
            before = self.prints()
            with self.assertRaises(ConfigError, msg=mode):
                stale.remember("written with what is no longer true")
            self.assertEqual(self.prints(), before, mode)
            self.assertEqual(len(self.open().list()), 2)

    def test_a_flipped_byte_or_a_doubled_token_costs_nothing_that_has_a_copy(self) -> None:
        memory = self.filled()
        encryption.encrypt(memory, "on")
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
        encryption.encrypt(memory, "on")
        memory.close()
        memory.store.files.write("backups/auto_index.json.20200101.bak", b"[]")
        self.assertEqual(self.states(doctor.open_unread(str(self.root)))["key"], "ok")
        (self.root / "backups/auto_index.json.20200101.bak").write_bytes(b"[]")
        self.assertEqual(self.states(doctor.open_unread(str(self.root)))["key"], "fail")
        (self.root / ".master_key").write_text(self.key())
        checks = doctor.doctor(doctor.open_unread(str(self.root)))
        self.assertEqual((checks[-1].name, checks[-1].state), ("key", "fail"))
        self.assertEqual(checks.exit_code, 1)

    def test_scrub_purge_and_backup_keep_sealed_what_was_sealed(self) -> None:
        marker, key = word(), a_secret()
        memory = self.spread(marker)
        encryption.encrypt(memory, "on")
        memory.save_state("job", {"last": f"password: {key}"})
        self.assertTrue(scrub.scrub(memory).changed)
        self.assertTrue(core.is_ciphertext((self.root / ".state_job.json").read_bytes()))
        self.assertEqual(memory.state("job"), {"last": "password: [已脱敏:password]"})
        chosen = forget.forget(memory, query=marker, purge=True, yes=True)
        self.assertEqual((len(chosen.ids), chosen.backups, chosen.left), (1, (), ()))
        self.assertEqual(memory.store.files.copies_of(chosen.ids[0]), [])
        self.assertTrue(all(core.is_ciphertext(p.read_bytes())
                            for p in self.root.glob("backups/auto_*")))
        copy = backups.backup(memory)
        self.assertTrue(copy.encrypted)
        self.assertFalse([n for n, _ in core.read_files(Path(copy.file))
                          if n.startswith("store/")])

    def test_an_encrypted_backup_without_its_key_is_refused(self) -> None:
        memory = self.filled()
        encryption.encrypt(memory, "on")
        copy = backups.backup(memory, self.home / "b.tar.gz")
        self.root = self.home / "other"
        with self.assertRaisesRegex(ConfigError, "HERMES_MASTER_KEY"):
            restore.restore(self.open(), copy.file)
        self.environ = {"HERMES_MASTER_KEY": (
            self.home / "root" / ".master_key").read_text().strip()}
        fresh = self.open()
        self.assertEqual(restore.restore(fresh, copy.file).added, 2)
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
            encryption.encrypt(memory, "maybe")
        self.assertEqual(encryption.encrypt(memory, "off").did, ("encryption is off",))
        with self.assertRaises(ConfigError):
            encryption.encrypt(memory, "rotate")

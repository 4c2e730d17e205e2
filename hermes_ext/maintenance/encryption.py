"""Encryption of a file store: switched on or off, or brought under a new key.

    hermes_lite.py encrypt on
    hermes_lite.py encrypt rotate
    hermes_lite.py encrypt off

encrypt  `on` and `off` also write HERMES_ENCRYPT into the root's .env, and bring every file over,
         backups and archives too. `rotate` makes a new .master_key and keeps the old one in
         .master_key.old: copies made elsewhere need it. With HERMES_MASTER_KEY, set the new key
         there and the old one in HERMES_MASTER_KEY_OLD, then rotate. Killed half-way, the store
         opens with what it has, and the same command goes on. Cold storage is brought over too,
         wherever its files lie. Key files, rooms, config.yaml and, unless encryption.markdown is
         false, the Markdown mirror stay readable.

It holds the store's lock meanwhile: every other process waits, or gets Locked. An archive has no
encryption and is refused.
"""
from __future__ import annotations

import base64
import contextlib
import os
import re
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

import hermes_lite as core
from hermes_ext.cold_files import ColdFiles, open_place, sha256_of
from hermes_ext.maintenance.store_files import (
    DERIVED, SEALED, Done, change_files, drop_undo, file_store, is_archive, is_behind, keys_of,
    leftovers, opens, remove_files, show)
from hermes_lite import (ConfigError, FileStore, HermesError, HermesLite, Operation, Param,
                         Refused, StorageError, UsageError)

__all__ = ["OPERATIONS", "encrypt"]

_RECORDS = ("index.json", "index.journal")


def encrypt(memory: HermesLite, mode: str) -> Done:
    """Switch encryption `on` or `off`, or `rotate` the key; goes on where a killed run stopped.

    ConfigError when the key is missing, MissingPackage without cryptography: nothing is
    touched then. Files that no key opens are named in `left`.
    """
    store = file_store(memory)
    if is_archive(store):
        raise ConfigError("the archive has no encryption; use an encrypted disk, or `migrate --to "
                          "files` first")
    if mode not in ("on", "off", "rotate"):
        raise UsageError(f"encrypt {mode!r}: use on, off or rotate")
    if store.files.cipher is None and mode != "on":
        if mode == "off":
            return Done(("encryption is off",))
        raise ConfigError("encryption is off, there is no key to rotate; run `encrypt on` first")
    cold = ColdFiles(store)
    with cold.locked(), store.transaction():
        if mode == "off":
            changed, left = _switch_off(store, cold)
        else:
            cipher = _first_cipher(memory) if mode == "on" else _next_cipher(memory)
            changed, left = _switch_on(memory, cipher, cold)
        store.journal.read_anew()                         # index.json is another file now
    state = "off" if mode == "off" else "on"
    return Done((f"encryption is {state}, {changed} files were brought over",), tuple(left),
                tuple(_advice(memory, mode)))


def _switch_on(memory: HermesLite, cipher: core.Cipher, cold: ColdFiles) -> tuple[int, list[str]]:
    """Seal every file under the newest key; return (files changed, names left).

    *cipher* also opens files under older keys. The switch is set first: a killed run leaves a
    store that opens both sealed and plain files.
    """
    store = memory.store
    store.checkpoint()
    store.files.cipher = cipher
    _update_checksums(cold)
    target = core.Cipher(keys_of(memory)[0])
    core.write_atomic(store.root / ".key_check", target.fingerprints[0])
    _set_switch(store.root, "on")
    changed, left = _bring_over(store, target, cold)
    _refuse_unread(name for name in left if name in _RECORDS)
    return changed, left


def _switch_off(store: FileStore, cold: ColdFiles) -> tuple[int, list[str]]:
    """Open every file; return (files changed, names left). The switch is set last."""
    _refuse_unreached(cold)
    store.checkpoint()
    _update_checksums(cold)
    changed, left = _bring_over(store, None, cold)
    _refuse_unread(name for name in left if name in _RECORDS or _can_be_opened(store, name))
    for name in left:
        _move_out_of_the_way(store, name)
    store.files.cipher = None
    core.write_atomic(store.root / ".key_check", b"off")
    _set_switch(store.root, "off")
    return changed, left


def _refuse_unread(names: Iterable[str]) -> None:
    """Raise for the first file that could be read later and would be lost by the switch."""
    for name in names:
        raise StorageError(f"{name} cannot be read; encryption was not switched, files that were "
                           "brought over open as before: run `doctor`, then try again")


def _can_be_opened(store: FileStore, name: str) -> bool:
    """Tell whether a file that was left can be opened, now or when the disk reads it again.

    Without encryption nothing would open it any more. A file that no key opens is damaged.
    """
    try:
        files = [*core.read_files(store.root / name.partition(": ")[0])]
    except OSError:
        return True
    except ValueError:
        return False
    return all(opens(store.files.cipher, data) for _, data in files)


def _move_out_of_the_way(store: FileStore, name: str) -> None:
    """Set aside a sealed file that no key opens, or HERMES_ENCRYPT=off would be refused."""
    if DERIVED.fullmatch(name):
        (store.root / name).unlink(missing_ok=True)
    elif name == "tombstones.json" or re.fullmatch(r"backups/auto_.+\.bak", name):
        core.set_aside(store.root / name)


def _refuse_unreached(cold: ColdFiles) -> None:
    """Refuse where a cold file outside of the root cannot be read now: it would stay sealed."""
    for name, known in cold.files.items():
        try:
            if not cold.is_inside(known["place"]):
                open_place(cold.root, known["place"]).read(name)
        except HermesError as problem:
            raise Refused(f"a file of cold storage cannot be reached and would stay encrypted; "
                          f"nothing was changed: {problem}", "unreachable") from None


def _first_cipher(memory: HermesLite) -> core.Cipher:
    """Return the store's cipher, made with a new key where there is none yet."""
    if memory.store.files.cipher:
        return memory.store.files.cipher
    env = memory.config.env
    switched_on = types.SimpleNamespace(
        env=lambda name: "on" if name == "HERMES_ENCRYPT" else env(name))
    return core.get_encryption(memory.root, switched_on)


def _next_cipher(memory: HermesLite) -> core.Cipher:
    """Return a cipher of the new key and the old ones; an earlier, killed run may have made it."""
    keys = keys_of(memory)
    root = memory.root
    if memory.config.env("HERMES_MASTER_KEY"):
        if len(keys) < 2:
            raise ConfigError("the key comes from HERMES_MASTER_KEY; set the new key there and "
                              "the old one in HERMES_MASTER_KEY_OLD, then rotate again")
        return memory.store.files.cipher
    if len(keys) > 1 and is_behind(root, keys):
        return memory.store.files.cipher
    new = base64.urlsafe_b64encode(os.urandom(32))
    core.write_atomic(root / ".master_key.old", b"\n".join(dict.fromkeys(keys)) + b"\n")
    core.write_atomic(root / ".master_key", new + b"\n")
    return core.Cipher(new, *keys)


def _bring_over(store: FileStore, target: core.Cipher | None,
                cold: ColdFiles) -> tuple[int, list[str]]:
    """Seal every file under *target*, or open it where that is None; return (count, left)."""
    has_plain_mirror = bool(store.config["encryption"]["markdown"])

    def change(name: str, data: bytes, is_packed: bool) -> bytes | None:
        if target and name.startswith("store/"):
            is_own = store.entry(PurePosixPath(name).stem) is not None
            if is_packed or is_own and not has_plain_mirror:
                return None                        # the records say the same, sealed
        if core.is_ciphertext(data):
            plain = core.unseal(data, store.files.cipher)
            if target is None:
                return plain
            return data if opens(target, data) else target.seal(plain)
        is_to_be_sealed = target is not None and SEALED.fullmatch(name)
        return target.seal(data) if is_to_be_sealed else data

    remove_files(leftovers(store.root))
    drop_undo(store.root)
    found = list(change_files(store, "bringing over", change))
    left = [name for name, is_read in found if not is_read]
    changed_cold, left_cold = _reseal(
        cold, lambda data: change("cold/cold_file", data, is_packed=False))
    return len(found) - len(left) + changed_cold, left + left_cold


def _update_checksums(cold: ColdFiles) -> None:
    """Replace checksums of version 1, of sealed bytes, by those of version 2, of plain ones."""
    before = {name: dict(known) for name, known in cold.files.items()}
    for name, known in cold.files.items():
        with contextlib.suppress(HermesError):
            data = open_place(cold.root, known["place"]).read(name)
            if known["sha256"] == sha256_of(data):
                known["sha256"] = sha256_of(core.unseal(data, cold.store.files.cipher))
    if cold.files != before:
        cold.write()


def _reseal(cold: ColdFiles, change: Callable[[bytes], bytes]) -> tuple[int, list[str]]:
    """Pass every cold file outside of the data root through *change*, which keeps the content.

    Returns how many were changed, and the names of those that could not be.
    """
    changed = 0
    left = []
    for name, known in cold.files.items():
        if cold.is_inside(known["place"]):
            continue
        try:
            where = open_place(cold.root, known["place"])
            old = where.read(name)
            new = change(old)
            if new != old:
                where.write(name, new)
                changed += 1
        except (HermesError, ValueError):
            left.append(f"{known['place']}/{name}")
    return changed, left


def _set_switch(root: Path, value: str) -> None:
    """Set HERMES_ENCRYPT in the root's .env; its other lines stay."""
    path = root / ".env"
    old = path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else ""
    rows = old.removesuffix("\n").split("\n") if old else []
    lines = [line for line in rows
             if not re.match(r"\s*(export\s+)?HERMES_ENCRYPT\s*=", line)]
    new = "\n".join([*lines, f"HERMES_ENCRYPT={value}", ""])
    core.write_atomic(path, new.encode("utf-8", "surrogateescape"))


def _advice(memory: HermesLite, mode: str) -> Iterator[str]:
    """Yield sentences for a person about the next steps after a switch."""
    value = "off" if mode == "off" else "on"
    has_own_key = bool(memory.config.env("HERMES_MASTER_KEY"))
    shell = os.environ.get("HERMES_ENCRYPT", value).strip().lower() or value
    if shell != value:
        yield (f"HERMES_ENCRYPT is {shell} in the environment, which wins over .env; set it to "
               f"{value} there")
    if mode == "rotate":
        place = "HERMES_MASTER_KEY_OLD" if has_own_key else ".master_key.old"
        yield (f"the old key stays in {place}; backups that were copied elsewhere need it, take "
               "it away when there are none")
    elif mode == "on":
        if not has_own_key:
            yield ("the key is in .master_key and in no backup; keep a copy of it elsewhere, "
                   "without it nothing can be read")
        if memory.config["encryption"]["markdown"]:
            yield ("the Markdown mirror in store/ stays readable; set encryption.markdown to "
                   "false and run `encrypt on` again to have none")


OPERATIONS = (
    Operation("encrypt", "switch encryption on or off, or rotate the key", encrypt, (
        Param("mode", str, "on, off or rotate", positional=True, required=True),), show,
              writes=True, scope="local"),
)

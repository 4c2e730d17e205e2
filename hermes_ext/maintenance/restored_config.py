"""The config.yaml of a backup: how it differs, which commands it would run, when it is accepted.

A config.yaml may run commands, so `restore` never puts one in force unasked.
"""
from __future__ import annotations

import contextlib
import difflib
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import hermes_lite as core
from hermes_lite import HermesLite, Refused, StorageError

__all__ = ["PLAIN_NAME", "RestoredConfig", "SET_ASIDE", "appended_files", "check_config",
           "read_config"]

SET_ASIDE = "config.yaml.restored"
# A name of one file, not hidden, so that nothing is run or read as code.
PLAIN_NAME = r"[^\W_][^/\\:*?\"<>|\x00-\x1f]{0,119}"


@dataclass(frozen=True, slots=True)
class RestoredConfig:
    """The config.yaml of a backup that differs from the one here."""
    root: Path
    data: bytes
    diff: tuple[str, ...]
    commands: tuple[str, ...]

    def is_set_aside(self) -> bool:
        """Tell whether an earlier restore has put it beside the one in force."""
        try:
            return (self.root / SET_ASIDE).read_bytes() == self.data
        except OSError:
            return False


def read_config(memory: HermesLite, files: Mapping[str, bytes]) -> RestoredConfig | None:
    """Return the config.yaml of a backup, redacted for display; None where it is the same."""
    data = files.get("config.yaml")
    path = memory.root / "config.yaml"
    try:
        here = path.read_bytes() if path.exists() else b""
    except OSError as problem:
        raise StorageError(f"cannot read {path}: {problem.strerror}") from None
    if data is None or data == here:
        return None
    old, new = (each.decode("utf-8", "replace").splitlines() for each in (here, data))
    lines = list(difflib.unified_diff(old, new, "config.yaml here", "config.yaml of the backup",
                                      lineterm="", n=1))
    diff = tuple(memory.redact(line)[0] for line in lines) or ("only line ends differ",)
    commands = tuple(memory.redact(sentence)[0] for sentence in _commands_in(data))
    return RestoredConfig(memory.root, data, diff, commands)


def _commands_in(data: bytes) -> Iterator[str]:
    """Yield, in words, what the rules of a config.yaml do outside of the store."""
    try:
        values = _read_yaml(data)
    except ValueError as problem:
        yield f"may run commands: {problem}"
        return
    verbs = {"run": "runs", "webhook": "sends memories to", "append": "writes memories into"}
    for name, rule in _rules_in(values):
        for key, verb in verbs.items():
            target = rule.get(key)
            if isinstance(target, list):
                target = shlex.join(map(str, target))
            if target is not None:
                yield f"({name}) {verb}: {target}"


def _read_yaml(data: bytes) -> object:
    """Return what a config.yaml says, unchecked; ValueError where it cannot be read."""
    try:
        import yaml
    except ImportError:
        raise ValueError("PyYAML is missing, so it was not read; pip install pyyaml") from None
    try:
        return yaml.safe_load(data.decode("utf-8-sig", "replace"))
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ValueError("it cannot be read") from None


def _rules_in(values: object) -> list[tuple[str, Mapping[str, object]]]:
    """Return (name, rule) of the rules in the settings of a config.yaml."""
    systems = values.get("systems") if isinstance(values, Mapping) else None
    rules = systems.get("rules") if isinstance(systems, Mapping) else None
    if not isinstance(rules, Mapping):
        return []
    return [(str(name), rule) for name, rule in rules.items() if isinstance(rule, Mapping)]


def appended_files(systems: object, config: RestoredConfig | None) -> set[str]:
    """Return the files in the root that rules write to, which a restore may put back."""
    rules = _rules_in({"systems": systems})
    if config is not None:
        with contextlib.suppress(ValueError):
            rules += _rules_in(_read_yaml(config.data))
    names = {str(rule.get("append")) for _, rule in rules}
    return {name for name in names if re.fullmatch(rf"{PLAIN_NAME}\.(md|ics)", name)}


def check_config(config: RestoredConfig | None, *, with_commands: bool) -> None:
    """Refuse a config.yaml that acts without a person's word, or that would not be accepted."""
    if config is None:
        return
    if config.commands and not with_commands:
        raise Refused("with the config.yaml of this backup a rule "
                      f"{'; a rule '.join(config.commands)}; add --with-commands if this is what "
                      "you want, nothing was changed", "commands")
    with tempfile.TemporaryDirectory() as folder:
        core.write_atomic(Path(folder) / "config.yaml", config.data, durable=False)
        core.check_rules(core.load_config(Path(folder), environ={})["security"]["redact_patterns"])

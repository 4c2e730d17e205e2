"""Settings: list, get and set what config.yaml holds, and say where each value comes from.

    hermes_lite.py config list
    hermes_lite.py config get retrieval.default_top_k
    hermes_lite.py config set retrieval.default_top_k 8
    hermes_lite.py config set systems.audit '{}'
    hermes_lite.py config path

A setting is named section.key, as in config.yaml. Where it comes from is `default`, `config.yaml`
or `env NAME`; of keys and switches in the environment or .env only `set` or `unset` is shown.

`set` edits the data root's config.yaml, and first makes it from the shipped one where there is
none. Comments, order and everything else stay. The value is read as YAML (true, 8, [a, b], null);
a setting that is a text takes the word as it is. The new file is held against the same check as
at every start, systems included, and only then replaces the old one, whole or not at all; two
`set` at once both count. Needs `pip install ruamel.yaml pyyaml`.

These commands also work where config.yaml is broken: `list` and `get` say what is wrong, `path`
where to look.
"""
from __future__ import annotations

import contextlib
import difflib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import hermes_lite as core
from hermes_lite import (DEFAULTS, Config, ConfigError, FileLock, HermesError, HermesLite,
                         MissingPackage, NotFound, Operation, Param, Record, StorageError,
                         UsageError, display_text, find_root, load_config, make_folder,
                         write_atomic)

__all__ = ["OPERATIONS", "Setting", "Settings", "paths", "set_value", "settings"]

_SWITCHES = {"vectors.backend": "HERMES_VECTOR_BACKEND", "rerank.backend": "HERMES_RERANK"}
_SECRETS = ("JINA_API_KEY", "SILICONFLOW_API_KEY", "DEEPSEEK_API_KEY", "HERMES_MASTER_KEY",
            "HERMES_ENCRYPT")


@dataclass(frozen=True, slots=True)
class Setting(Record):
    """One setting: its value in force, and `default`, `config.yaml` or `env NAME`."""
    name: str
    value: object
    origin: str


class Settings(list):
    """A list of Setting, in the order of config.yaml."""


# -- list and get -------------------------------------------------------------

def settings(root: Path) -> Settings:
    """Return every setting of a data root; ConfigError where config.yaml cannot be read."""
    config, own = load_config(root), _own(root)
    made = Settings()
    for section, defaults in DEFAULTS.items():
        for key in {**defaults, **config[section]}:
            name = f"{section}.{key}"
            switch = _SWITCHES.get(name, "")
            value, origin = config[section][key], "default"
            if key in own.get(section, {}):
                origin = "config.yaml"
            if switch and config.env(switch):
                value, origin = config.env(switch), f"env {switch}"
            made.append(Setting(name, value, origin))
    made += [Setting(name, "set" if config.env(name) else "unset", f"env {name}")
             for name in _SECRETS]
    return made


def _own(root: Path) -> Mapping[str, Mapping[str, object]]:
    """Return what the root's own config.yaml says; {} where it says what the shipped one does."""
    path = root / "config.yaml"
    return core.read_yaml(path, []) if path.is_file() else {}


def get(root: Path, name: str) -> Setting | Settings:
    """Return one setting, or all of a section; NotFound names the nearest."""
    found = settings(root)
    exact = [each for each in found if each.name == name]
    if exact:
        return exact[0]
    inside = Settings(each for each in found if each.name.startswith(f"{name}."))
    if inside:
        return inside
    near = difflib.get_close_matches(name, [each.name for each in found], 1, 0.4)
    raise NotFound(f"there is no setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else
                                                      "; `config list` shows them all"))


def paths(root: Path) -> dict[str, object]:
    """Return the files that settings come from, and whether each is there."""
    shipped = core.shipped_config()
    return {"config": str(root / "config.yaml"), "exists": (root / "config.yaml").is_file(),
            "env": str(root / ".env"), "env_exists": (root / ".env").is_file(),
            "shipped": str(shipped) if shipped.is_file() else None}


# -- set ----------------------------------------------------------------------

def set_value(root: Path, name: str, word: str) -> Setting:
    """Write one setting into the root's config.yaml and return it; the file keeps its form.

    UsageError for a name without a section, ConfigError for a value that cannot be right.
    """
    keys = name.split(".")
    if len(keys) < 2 or not all(keys):
        raise UsageError(f"a setting is named section.key, such as retrieval.stem, not {name!r}")
    core.check_known(keys[0], DEFAULTS, "config")
    if keys[0] not in core.OPEN_SECTIONS:
        core.check_known(".".join(keys[1:]), DEFAULTS[keys[0]], "config")
    make_folder(root)
    lock = FileLock(root / ".lock_config")
    lock.acquire(timeout=5.0)
    try:
        path = root / "config.yaml"
        data = _changed(_present(path), keys, _value(keys, word))
        _check(data, root)
        write_atomic(path, data)
    finally:
        lock.release()
    return Setting(name, _at(_plain(data), keys), "config.yaml")


def _present(path: Path) -> bytes:
    """Return the file to edit: the root's own, else the shipped one, else nothing."""
    shipped = core.shipped_config()
    for each in (path, shipped):
        with contextlib.suppress(FileNotFoundError):
            try:
                return each.read_bytes()
            except OSError as problem:
                if isinstance(problem, FileNotFoundError):
                    raise
                raise StorageError(f"cannot read {each}: {problem.strerror}") from None
    return b""


def _value(keys: list[str], word: str) -> object:
    """Read the word: as it is for a setting that is a text, else as YAML."""
    default = DEFAULTS[keys[0]].get(keys[1]) if keys[0] not in core.OPEN_SECTIONS else 0
    if isinstance(default, (str, type(None))):
        return None if word in ("null", "~") else word
    return _plain(word.encode(), "the value")


def _plain(data: bytes, what: str = "config.yaml") -> object:
    yaml = _package("yaml")
    try:
        return yaml.safe_load(data.decode("utf-8-sig"))
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError(f"{what} cannot be read as YAML; `config path` shows where it is"
                          if what == "config.yaml" else
                          f"{what} cannot be read as YAML; put it in quotes") from None


def _package(name: str) -> object:
    import importlib
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingPackage("config set needs ruamel.yaml and PyYAML; run: pip install "
                             "ruamel.yaml pyyaml") from None


def _changed(data: bytes, keys: list[str], value: object) -> bytes:
    """Return the file with one value set and all else as it was, comments and order too."""
    before, is_dos = _plain(data) or {}, b"\r\n" in data
    text = data.decode("utf-8-sig").replace("\r\n", "\n")
    editor = _editor(text)
    tree = (editor.load(text) if text.strip() else None) or {}
    quoted = _package("ruamel.yaml.scalarstring").SingleQuotedScalarString
    is_word = isinstance(value, str) and _plain(value.encode(), "the value") == value
    _put(tree, keys, quoted(value) if isinstance(value, str) and not is_word else value)
    out = io.StringIO()
    editor.dump(tree, out)
    made = out.getvalue()
    _put(before, keys, value)
    made = made.replace("\n", "\r\n") if is_dos else made
    if _plain(made.encode()) != before:            # never lose a setting to a round trip
        raise ConfigError(f"config.yaml cannot be edited without harm; set {'.'.join(keys)} in it "
                          "by hand")
    return made.encode()


def _editor(text: str) -> object:
    """Return ruamel.yaml's editor, set to the indents of *text*."""
    editor = _package("ruamel.yaml").YAML()
    editor.preserve_quotes, editor.width = True, 1 << 20
    step = re.search(r"(?m)^\S.*:\s*(?:#.*)?\n(?:\s*#.*\n|\s*\n)*( +)[^\s#-]", text)
    dash = re.search(r"(?m)^( *)\S.*:\s*(?:#.*)?\n(?:\s*#.*\n|\s*\n)*( *)- ", text)
    width, offset = len(step[1]) if step else 2, len(dash[2]) - len(dash[1]) if dash else 2
    editor.indent(mapping=width, sequence=offset + 2, offset=offset)
    editor.representer.add_representer(type(None), lambda representer, _:
                                       representer.represent_scalar("tag:yaml.org,2002:null",
                                                                    "null"))
    return editor


def _put(tree: dict, keys: list[str], value: object) -> None:
    for key in keys[:-1]:
        if not isinstance(tree.get(key), dict):
            tree[key] = {}
        tree = tree[key]
    tree[keys[-1]] = value


def _at(tree: object, keys: list[str]) -> object:
    for key in keys:
        tree = tree[key]
    return tree


def _check(data: bytes, root: Path) -> None:
    """Open a memory with the new file in a folder of its own: every check of a start is made.

    The store is of the kind that *root* has, which is an archive also where only its file says so.
    """
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder)
        write_atomic(trial / "config.yaml", data, durable=False)
        config = load_config(trial, environ={})
        if (root / "memory_archive.db").exists() and not (root / "index.json").exists():
            config["storage"]["backend"] = "archive"
        HermesLite(trial, config=config).close()


# -- commands -----------------------------------------------------------------

class _NoFiles:
    """Stands where the files of a root would, whose key may be the wrong one."""
    cipher = None

    def __init__(self) -> None:
        self.notices: list[str] = []

    def read(self, name: str) -> None:
        """There is no file to read."""


class _NoStore:
    """Stands where a store would, for commands that need none."""
    progress = None

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = _NoFiles()

    def close(self) -> None:
        """There is nothing to close."""


def _bare(root: Path, config: Config) -> HermesLite:
    """Return a memory without store and systems, for looking at a config."""
    return HermesLite(root, config=Config({**{name: config[name] for name in DEFAULTS},
                                           "systems": {}}), store=_NoStore(root))


def _open(root: str | os.PathLike | None) -> HermesLite:
    """Open the memory as always; without a store where config or key are broken."""
    try:
        return HermesLite(root)
    except HermesError:
        return _bare(find_root(root), Config())


def _run(memory: HermesLite, *, action: str, name: str | None, value: str | None) -> object:
    wanted = {"list": 0, "path": 0, "get": 1, "set": 2}
    given = (name is not None) + (value is not None)
    if wanted.get(action) != given:
        raise UsageError("config list, config get NAME, config set NAME VALUE, or config path")
    if action == "list":
        return settings(memory.root)
    if action == "path":
        return paths(memory.root)
    return get(memory.root, name) if action == "get" else set_value(memory.root, name, value)


def _show(result: object) -> Iterator[str]:
    if isinstance(result, Mapping):
        for name, value in result.items():
            yield f"{name.replace('_', ' ')}: {'none' if value is None else _word(value)}"
        return
    for each in result if isinstance(result, Settings) else (result,):
        yield display_text(f"{each.name} = {_word(each.value)}  ({each.origin})")


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


OPERATIONS = (
    Operation("config", "list, get or set a setting, or show where they stand", _run, (
        Param("action", str, "list, get, set or path", "list", positional=True),
        Param("name", str, "section.key", positional=True),
        Param("value", str, "the new value", positional=True)), _show, writes=True, open=_open,
        scope="local"),
)

"""Survival: whether the data root outlives a container, and what leads the next agent to it.

`doctor` asks both in a container of Docker, Podman or Kubernetes. A root that lies in the
container's own layer or in memory is gone with the container. The second question is asked where
the brain is switched on: its cycle needs a job, and an agent that has forgotten everything finds
the memory by an AGENTS.md or by an entry in its host's own files. Any one of the three is enough, as
long as its file outlives the container, too.
"""
from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["LAYERS", "Place", "Pointer", "Surroundings", "find_pointers", "is_container",
           "place_of"]

LAYERS = ("cron", "AGENTS.md", "host's pointer")
_RUNTIMES = re.compile(r"docker|containerd|kubepods|libpod|podman|crio")
_IN_MEMORY = ("tmpfs", "ramfs")
_ANONYMOUS = re.compile(r"/volumes/[0-9a-f]{64}(?:/_data)?(?:/|$)")
_NAMES = re.compile(r"hermes[-_]lite|auto_sediment|hermes-sediment", re.IGNORECASE)
_MOST_BYTES = 2_000_000
_TIMEOUT = 10                          # seconds that crontab may take
_SPOOLS = ("var/spool/cron/crontabs", "var/spool/cron")      # Debian, Alpine; others


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The system that is looked at: *system* is the folder with its /proc and /etc."""
    system: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    folder: Path = field(default_factory=Path.cwd)

    @property
    def home(self) -> Path:
        return Path(self.environ.get("HOME") or os.path.expanduser("~"))

    def host_home(self, variable: str, name: str) -> Path:
        """Return the folder of a host: what its variable says, or *name* in the home folder."""
        return Path(self.environ.get(variable, "").strip() or self.home / name)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path lies: the mount with its file system, and what happens to it."""
    mount: str
    kind: str
    fate: str                          # "volume", "layer", "memory" or "anonymous"

    @property
    def is_lasting(self) -> bool:
        return self.fate == "volume"

    def __str__(self) -> str:
        """Say where it lies and what that means."""
        return {"volume": f"on the mounted volume {self.mount}",
                "layer": "in the container's own layer, which is deleted with the container",
                "memory": f"in memory ({self.kind} at {self.mount}), which ends with the container",
                "anonymous": f"on a volume without a name ({self.mount}), which a new container "
                             "does not get"}[self.fate]


@dataclass(frozen=True, slots=True)
class Pointer:
    """A file that leads to the memory; `layer` is one of LAYERS."""
    layer: str
    file: Path


# -- containers and mounts ---------------------------------------------------------

def is_container(around: Surroundings) -> bool:
    """Tell whether this runs in a container of Docker, Podman or Kubernetes.

    A container that is kept like a machine (lxc, systemd-nspawn) does not count.
    """
    if "KUBERNETES_SERVICE_HOST" in around.environ:
        return True
    if any((around.system / name).exists() for name in (".dockerenv", "run/.containerenv")):
        return True
    return any(_RUNTIMES.search(_text(around.system / "proc" / process / "cgroup"))
               for process in ("self", "1"))


def place_of(path: Path, around: Surroundings) -> Place | None:
    """Return where a path lies by /proc/self/mountinfo; None where that says nothing."""
    found: tuple[str, ...] | None = None
    real = os.path.realpath(path)
    for source, mount, kind in _mounts(_text(around.system / "proc/self/mountinfo")):
        is_above = real == mount or real.startswith(mount.rstrip("/") + "/")
        if is_above and (found is None or len(mount) >= len(found[1])):    # a later one hides it
            found = (source, mount, kind)
    if found is None:
        return None
    source, mount, kind = found
    fate = "volume"
    if kind in _IN_MEMORY:
        fate = "memory"
    elif mount == "/":
        fate = "layer"
    elif _ANONYMOUS.search(source):
        fate = "anonymous"
    return Place(mount, kind, fate)


def _mounts(mountinfo: str) -> Iterator[tuple[str, str, str]]:
    """Yield (root within its file system, mount point, kind) of each line, see proc(5)."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) >= 5 and after:
            yield _unescaped(fields[3]), _unescaped(fields[4]), after.split(" ")[0]


def _unescaped(name: str) -> str:
    r"""Return a path of mountinfo, where blank, tab, line break and backslash are \ooo."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), name)


# -- what leads to the memory ------------------------------------------------------

def find_pointers(root: Path, around: Surroundings) -> list[Pointer]:
    """Return the files that name this memory, each layer's in the order of looking."""
    found = [Pointer("cron", path) for path in _crontabs(root, around)]
    for layer, paths in (("cron", _schedules(around)), ("AGENTS.md", _agents_files(root, around)),
                         ("host's pointer", _host_files(around))):
        found += [Pointer(layer, path) for path in dict.fromkeys(paths)
                  if _names_it(_text(path), root)]
    return found


def _crontabs(root: Path, around: Surroundings) -> Iterator[Path]:
    """Yield where the user's crontab lies, if a line of it that is in force names the memory."""
    program = shutil.which("crontab", path=around.environ.get("PATH"))
    if program is None:
        return
    try:
        done = subprocess.run([program, "-l"], capture_output=True, timeout=_TIMEOUT,
                              env=dict(around.environ))
    except (OSError, subprocess.TimeoutExpired):
        return
    lines = done.stdout.decode("utf-8", "replace").replace(r"\%", "%").splitlines()
    if any(_names_it(line, root) for line in lines if not line.lstrip().startswith("#")):
        folder = next((name for name in _SPOOLS if (around.system / name).is_dir()), _SPOOLS[0])
        yield around.system / folder


def _schedules(around: Surroundings) -> list[Path]:
    """Return the other files that start jobs: of cron, systemd and Hermes Agent."""
    return [*sorted(around.system.glob("etc/cron.d/*")),
            *sorted(around.home.glob(".config/systemd/user/*.service")),
            around.host_home("HERMES_HOME", ".hermes") / "cron" / "jobs.json"]


def _agents_files(root: Path, around: Surroundings) -> list[Path]:
    folders = [around.folder, *around.folder.parents, root, *root.parents, around.home,
               around.host_home("HERMES_HOME", ".hermes"),
               around.host_home("CODEX_HOME", ".codex")]
    return [folder / "AGENTS.md" for folder in folders]


def _host_files(around: Surroundings) -> list[Path]:
    """Return where hosts keep notes and settings that every session of theirs sees."""
    hermes = around.host_home("HERMES_HOME", ".hermes")
    home = around.home
    return [hermes / "memories" / "MEMORY.md", hermes / "memories" / "USER.md",
            hermes / "MEMORY.md", hermes / "config.yaml",
            around.host_home("CODEX_HOME", ".codex") / "config.toml",
            home / ".claude.json", home / ".claude" / "settings.json",
            home / ".claude" / "CLAUDE.md", around.folder / "CLAUDE.md",
            around.folder / ".mcp.json", home / ".openclaw" / "openclaw.json",
            home / ".openclaw" / "workspace" / "MEMORY.md", home / ".gemini" / "settings.json",
            home / ".cursor" / "mcp.json",
            around.host_home("DSH_HOME", ".dsh") / "cordis.patch.yml"]


def _names_it(text: str, root: Path) -> bool:
    """Tell whether a text names the program or the data root."""
    return bool(_NAMES.search(text)) or _holds_path(text, str(root))


def _holds_path(text: str, path: str) -> bool:
    """Tell whether a path stands in a text, and not only as the beginning of another."""
    return re.search(re.escape(path) + r"(?![\w-]|\.\w)", text) is not None


def _text(path: Path) -> str:
    """Return what a file says; "" where it cannot be read or is very large."""
    try:
        if path.is_file() and path.stat().st_size <= _MOST_BYTES:
            return path.read_text("utf-8", "replace")
    except OSError:
        pass
    return ""

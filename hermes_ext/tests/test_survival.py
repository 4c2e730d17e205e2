"""Tests of what doctor says of containers: whether the root survives, and what leads to it."""
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

from hermes_ext.maintenance import doctor, survival
from hermes_ext.tests.base import Case, HAS_YAML, HOME

OVERLAY = "600 500 0:50 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/a\\040b"


class ContainerCase(Case):
    """A system of the test's own: its /proc, its crontab, its home folder."""

    def setUp(self) -> None:
        super().setUp()
        self.root.mkdir()
        self.root = self.root.resolve()
        self.system = self.home / "system"
        self.person = self.home / "person"
        for folder in (self.system / "proc" / "self", self.person, self.home / "bin"):
            folder.mkdir(parents=True)
        (self.system / ".dockerenv").touch()
        self.mount(OVERLAY)
        self.around = survival.Surroundings(
            self.system, {"HOME": str(self.person), "PATH": str(self.home / "bin")}, self.person)

    def mount(self, *lines: str) -> None:
        text = "".join(f"{line}\n" for line in lines)
        (self.system / "proc" / "self" / "mountinfo").write_text(text)

    def volume(self, point: "str | Path", kind: str = "ext4", source: str = "/data") -> str:
        point = str(point).replace(" ", "\\040")
        return f"601 600 8:1 {source} {point} rw,relatime - {kind} /dev/sda1 rw"

    def check(self, name: str) -> "doctor.Check | None":
        with self.open() as memory:
            found = doctor.doctor(memory, around=self.around)
        return next((check for check in found if check.name == name), None)


class Place(ContainerCase):
    def test_the_container_s_own_layer_is_lost_with_it(self) -> None:
        check = self.check("place")
        self.assertEqual((check.state, check.message), (
            "warn", "the root lies in the container's own layer, which is deleted with the "
                    "container"))

    def test_a_volume_lasts(self) -> None:
        for point in (self.root, self.root.parent):
            with self.subTest(point=point):
                self.mount(OVERLAY, self.volume(point))
                check = self.check("place")
                self.assertEqual((check.state, check.message),
                                 ("ok", f"the root lies on the mounted volume {point}"))

    def test_a_volume_beside_the_root_does_not_count(self) -> None:
        self.mount(OVERLAY, self.volume(f"{self.root}-other"), self.volume(self.root / "store"))
        self.assertEqual(self.check("place").state, "warn")

    def test_the_innermost_and_latest_mount_decides(self) -> None:
        self.mount(OVERLAY, self.volume(self.root.parent), self.volume(self.root, "tmpfs"))
        check = self.check("place")
        self.assertEqual(check.state, "warn")
        self.assertIn("in memory (tmpfs", check.message)
        self.mount(OVERLAY, self.volume(self.root, "tmpfs"), self.volume(self.root))
        self.assertEqual(self.check("place").state, "ok")

    def test_a_volume_without_a_name_is_not_the_next_container_s(self) -> None:
        source = f"/var/lib/docker/volumes/{'0a' * 32}/_data"
        self.mount(OVERLAY, self.volume(self.root, source=source))
        check = self.check("place")
        self.assertEqual(check.state, "warn")
        self.assertIn("a new container does not get", check.message)
        self.mount(OVERLAY, self.volume(self.root, source="/var/lib/docker/volumes/mine/_data"))
        self.assertEqual(self.check("place").state, "ok")

    def test_a_path_with_a_blank_is_found(self) -> None:
        place = survival.place_of(Path("/a b/c"), self.around)
        self.assertEqual(place.fate, "layer")
        self.mount(OVERLAY, self.volume("/a b"))
        self.assertEqual(survival.place_of(Path("/a b/c"), self.around).mount, "/a b")

    def test_a_mountinfo_that_is_not_there_or_odd_is_no_warning(self) -> None:
        self.mount("", "1 2", "rubbish - - -", "\\999 - \\")
        check = self.check("place")
        self.assertEqual(check.state, "ok")
        (self.system / "proc" / "self" / "mountinfo").unlink()
        self.assertEqual(self.check("place").state, "ok")

    def test_what_counts_as_a_container(self) -> None:
        (self.system / ".dockerenv").unlink()
        cgroup = self.system / "proc" / "self" / "cgroup"
        cases = {"0::/\n": False, "0::/user.slice/session-1.scope\n": False,
                 "12:cpu:/docker/0123abcd\n": True, "0::/kubepods.slice/pod1\n": True,
                 "0::/machine.slice/libpod-77.scope\n": True, "1:cpu:/lxc/machine\n": False}
        for text, expected in cases.items():
            cgroup.write_text(text)
            with self.subTest(text=text):
                self.assertEqual(survival.is_container(self.around), expected)
        cgroup.unlink()
        self.assertIsNone(self.check("place"))
        (self.system / "run").mkdir()
        (self.system / "run" / ".containerenv").touch()
        self.assertTrue(survival.is_container(self.around))
        pod = survival.Surroundings(self.home / "none", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
        self.assertTrue(survival.is_container(pod))


@unittest.skipUnless(HAS_YAML, "needs PyYAML")
class Pointers(ContainerCase):
    def setUp(self) -> None:
        super().setUp()
        (self.root / "config.yaml").write_text(json.dumps({"systems": {"brain": {}}}))
        self.mount(OVERLAY, self.volume(self.home))

    def crontab(self, text: str) -> None:
        program = self.home / "bin" / "crontab"
        program.write_text(f"#!{sys.executable}\nprint({text!r}, end='')\n")
        program.chmod(0o755)

    def write(self, name: str, text: str) -> Path:
        path = self.person / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def test_none_is_a_warning_that_names_the_command(self) -> None:
        self.crontab("# hermes-lite was here once\n5 4 * * * backup\n")
        self.write("AGENTS.md", "# Rules\nBe brief.\n")
        self.write(".hermes/memories/MEMORY.md", f"notes lie in {self.root}-old\n")
        check = self.check("pointers")
        self.assertEqual((check.state, check.message, check.command), (
            "warn", "cron: none; AGENTS.md: none; host's pointer: none",
            "brain agents-md --file AGENTS.md"))

    def test_any_one_is_enough(self) -> None:
        cases = {"AGENTS.md": ("AGENTS.md", f"the memory lies in {self.root}."),
                 ".hermes/memories/MEMORY.md": ("host's pointer", "hermes-lite recall asks it"),
                 ".claude.json": ("host's pointer", '{"mcpServers": {"hermes-lite": {}}}'),
                 ".codex/config.toml": ("host's pointer", "[mcp_servers.hermes_lite]"),
                 ".hermes/cron/jobs.json": ("cron", f'{{"prompt": "brain cycle {self.root}"}}')}
        for name, (layer, text) in cases.items():
            path = self.write(name, text)
            with self.subTest(name=name):
                check = self.check("pointers")
                self.assertEqual(check.state, "ok")
                self.assertIn(f"{layer}: {path}", check.message)
                self.assertEqual(check.message.count("none"), 2)
            path.unlink()

    def test_a_host_s_own_variable_says_where_its_files_are(self) -> None:
        path = self.home / "elsewhere" / "memories" / "USER.md"
        path.parent.mkdir(parents=True)
        path.write_text("hermes-lite keeps what was said")
        self.around.environ["HERMES_HOME"] = str(path.parents[1])
        self.assertIn(str(path), self.check("pointers").message)

    def test_a_pointer_that_is_lost_itself_is_not_enough(self) -> None:
        path = self.write("AGENTS.md", "hermes-lite")
        self.mount(OVERLAY, self.volume(self.root))
        check = self.check("pointers")
        self.assertEqual(check.state, "warn")
        self.assertIn(f"AGENTS.md: {path}, lost with the container", check.message)

    def test_a_crontab_counts_where_its_folder_is_a_volume(self) -> None:
        self.crontab(f"15 3 * * * env HERMES_LITE_ROOT={self.root} prog brain cycle\n")
        spool = self.system / "var/spool/cron/crontabs"
        spool.mkdir(parents=True)
        self.assertIn(f"cron: {spool};", self.check("pointers").message)
        self.mount(OVERLAY, self.volume(self.root))
        self.assertIn(f"cron: {spool}, lost with the container", self.check("pointers").message)

    def test_a_crontab_program_that_fails_is_no_pointer(self) -> None:
        program = self.home / "bin" / "crontab"
        program.write_text("#!/bin/sh\necho no crontab for me >&2; exit 1\n")
        program.chmod(0o755)
        self.assertEqual(self.check("pointers").state, "warn")
        program.write_text("no program at all")
        self.assertEqual(self.check("pointers").state, "warn")

    def test_what_agents_md_and_cron_write_is_found(self) -> None:
        self.assertEqual(self.cli("brain", "agents-md", "--file",
                                  str(self.person / "AGENTS.md"))[0], 0)
        self.assertIn("AGENTS.md: /", self.check("pointers").message)

    def test_without_the_brain_or_a_container_nobody_asks(self) -> None:
        (self.system / ".dockerenv").unlink()
        self.assertIsNone(self.check("pointers"))
        (self.system / ".dockerenv").touch()
        (self.root / "config.yaml").write_text("{}")
        self.assertIsNone(self.check("pointers"))

    def test_doctor_changes_nothing(self) -> None:
        self.open().remember("the harbour master is Olga")
        before = self.prints()
        self.check("pointers")
        self.assertEqual(self.prints(), before)


def may_mount() -> bool:
    """Tell whether a process may have mounts of its own here."""
    try:
        return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
    except OSError:
        return False


if may_mount():
    class RealMounts(Case):
        """The kernel's own mountinfo, in a mount namespace where a folder is mounted."""

        def place(self, *command: str) -> str:
            code = ("import sys; from pathlib import Path; "
                    "from hermes_ext.maintenance.survival import Surroundings, place_of; "
                    "place = place_of(Path(sys.argv[1]), Surroundings()); "
                    "print(place.fate, place.mount)")
            script = " && ".join([*command, 'exec "$0" -c "$1" "$2"'])
            done = subprocess.run(
                ["unshare", "--mount", "sh", "-c", script, sys.executable, code,
                 str(self.root), str(self.home)], capture_output=True, text=True, cwd=HOME,
                env={"PATH": os.defpath, "PYTHONPATH": str(HOME)})
            self.assertEqual(done.stderr, "")
            return done.stdout.rstrip("\n")

        def test_a_bind_mount_a_mount_in_memory_and_none(self) -> None:
            self.root = self.home.resolve() / "a root"
            self.root.mkdir()
            self.assertEqual(self.place('mount --bind "$3" "$2"').split(" ", 1)[1],
                             str(self.root))
            self.assertEqual(self.place('mount -t tmpfs none "$2"'), f"memory {self.root}")
            self.assertNotIn(str(self.root), self.place())


if __name__ == "__main__":
    unittest.main()

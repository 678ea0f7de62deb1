import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dart_gym.core.errors import ConfigurationError, MissingDependencyError
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.confinement import machine_settings
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.sandbox import runtime_directory, sandbox_check
from dart_gym.utils.processes import start_time


@pytest.fixture
def path_with(monkeypatch):
    """A search path that holds the given programs only, and stand-ins written as shell scripts."""
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    directory.chmod(0o755)  # the users of root's desktops find it too

    def make(*programs: str, **scripts: str) -> None:
        for program in programs:
            (directory / program).symlink_to(shutil.which(program))
        for name, script in scripts.items():
            (directory / name).write_text("#!/bin/sh\n" + script)
            (directory / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(directory))

    yield make
    shutil.rmtree(directory)


def test_the_runtime_directory_is_private_and_short(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("long" * 20)))
    path = runtime_directory.runtime_dir()
    assert path.parent == Path("/tmp")
    readable = 0o066 if os.getuid() == 0 else 0o077  # the desktops of root have users of their own, who must pass
    assert path.stat().st_mode & readable == 0


@pytest.fixture
def base(monkeypatch):
    """A runtime directory of the test's own."""
    base = Path(f"/tmp/dart-test-{os.getpid()}")
    base.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    yield runtime_directory.runtime_dir()
    shutil.rmtree(base)


def leave(directory, name: str, **owner) -> None:
    own = {
        "pid": os.getpid(),
        "start_time": start_time(os.getpid()),
        "pid_namespace": os.readlink("/proc/self/ns/pid"),
    }
    (directory / name / "home").mkdir(parents=True)
    (directory / name / "owner").write_text(json.dumps({**own, **owner}))


def test_only_directories_of_dead_owners_are_leftovers(base):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    leave(base, "mine")
    leave(base, "dead", pid=process.pid, start_time=1)
    leave(base, "pid-reused", start_time=1)
    leave(base, "other-container", pid=process.pid, pid_namespace="pid:[1]")
    (base / "nobody-says-whose").mkdir()
    (base / "a-file").touch()
    assert {path.name for path in runtime_directory.clean_leftovers()} == {"dead", "pid-reused"}
    kept = {"mine", "other-container", "nobody-says-whose", "a-file"}
    assert {path.name for path in base.iterdir()} == kept


def test_a_directory_that_was_being_made_names_its_owner_already(base, monkeypatch):
    def fail(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)  # as if it was killed there
        with pytest.raises(KeyboardInterrupt):
            runtime_directory.own_directory()
    (half_made,) = base.iterdir()
    assert runtime_directory.clean_leftovers() == [] and half_made.exists()  # its owner lives
    words = half_made.name.split(".")
    half_made.rename(base / ".".join([*words[:3], "1", words[4]]))  # of an earlier process with this pid
    assert len(runtime_directory.clean_leftovers()) == 1 and not list(base.iterdir())


def test_an_owned_directory_is_private_and_kept(base):
    path = runtime_directory.own_directory("cluster-")
    assert path.name.startswith(f"cluster-{os.getpid()}-") and path.stat().st_mode & 0o077 == 0
    assert runtime_directory.clean_leftovers() == [] and path.exists()


async def test_missing_bubblewrap_is_named_with_the_next_step(path_with):
    path_with("Xvfb", "openbox", "dbus-daemon", "xkbcomp")
    assert "apt-get install bubblewrap" in sandbox_check.check_sandbox()
    with pytest.raises(MissingDependencyError, match="apt-get install bubblewrap .*--isolation none"):
        await make_desktop(DesktopSpec()).start()


async def test_missing_programs_are_named_with_their_packages(path_with):
    path_with("openbox", "bwrap")
    with pytest.raises(MissingDependencyError, match="Xvfb, dbus-daemon, xkbcomp; .*install dbus x11-xkb-utils xvfb"):
        await make_desktop(DesktopSpec()).start()


async def test_a_machine_that_forbids_sandboxes_is_explained(path_with):
    refuses = "echo 'bwrap: Creating new namespace failed: Operation not permitted' >&2; exit 1"
    bwrap = f'if [ "$1" = --help ]; then exec {shutil.which("bwrap")} --help; fi; {refuses}'
    path_with("Xvfb", "openbox", "dbus-daemon", "xkbcomp", "setpriv", bwrap=bwrap)
    assert "Operation not permitted; next step: " in sandbox_check.check_sandbox()
    with pytest.raises(MissingDependencyError, match="Operation not permitted; next step: .*--isolation none"):
        await make_desktop(DesktopSpec()).start()


@pytest.mark.desktop
def test_this_machine_can_make_sandboxes():
    assert sandbox_check.check_sandbox() is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "xvbf"}, "did you mean 'xvfb'"),
        ({"profile": "office"}, "bare, browser"),
        ({"sandbox": "docker"}, "bwrap, none"),
        ({"width": 1}, "1x1080"),
        ({"margin": 65}, "its margin 65"),
    ],
)
def test_impossible_specs_are_refused(fields, message):
    with pytest.raises(ConfigurationError, match=message):
        make_desktop(DesktopSpec(**fields))


def test_the_copy_of_the_machines_settings_is_made_again_when_it_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_settings, "kept_directory", lambda: tmp_path)
    machine_settings.made_copy.cache_clear()
    try:
        first = machine_settings.settings_copy()
        assert (first / "passwd").exists() and machine_settings.settings_copy() == first
        shutil.rmtree(first)
        assert (machine_settings.settings_copy() / "passwd").exists()
    finally:
        machine_settings.made_copy.cache_clear()

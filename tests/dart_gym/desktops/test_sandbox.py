import json
import os
import shutil
import subprocess
import sys

import pytest

from dart_gym.desktops import make_desktop, sandbox
from dart_gym.desktops.base import DesktopSpec
from dart_gym.errors import ConfigurationError, MissingDependencyError


@pytest.fixture
def path_with(tmp_path, monkeypatch):
    """A search path that holds the given programs only, and stand-ins written as shell scripts."""

    def make(*programs: str, **scripts: str) -> None:
        directory = tmp_path / "bin"
        directory.mkdir()
        for program in programs:
            (directory / program).symlink_to(shutil.which(program))
        for name, script in scripts.items():
            (directory / name).write_text("#!/bin/sh\n" + script)
            (directory / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(directory))

    return make


def test_the_runtime_directory_is_private_and_short(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("long" * 20)))
    path = sandbox.runtime_dir()
    assert path.parent == sandbox.Path("/tmp")
    assert path.stat().st_mode & 0o077 == 0


@pytest.fixture
def runtime(tmp_path_factory, monkeypatch):
    """A runtime directory of the test's own."""
    base = sandbox.Path("/tmp") / f"dart-test-{os.getpid()}"
    base.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    yield sandbox.runtime_dir()
    shutil.rmtree(base)


def leave(directory, name: str, **owner) -> None:
    own = {
        "pid": os.getpid(),
        "start_time": sandbox._start_time(os.getpid()),
        "pid_namespace": os.readlink("/proc/self/ns/pid"),
    }
    (directory / name / "home").mkdir(parents=True)
    (directory / name / "owner").write_text(json.dumps({**own, **owner}))


def test_only_directories_of_dead_owners_are_leftovers(runtime):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    leave(runtime, "mine")
    leave(runtime, "dead", pid=process.pid, start_time=1)
    leave(runtime, "pid-reused", start_time=1)
    leave(runtime, "other-container", pid=process.pid, pid_namespace="pid:[1]")
    (runtime / "just-being-made").mkdir()
    assert {path.name for path in sandbox.clean_leftovers()} == {"dead", "pid-reused"}
    assert {path.name for path in runtime.iterdir()} == {"mine", "other-container", "just-being-made"}


async def test_missing_bubblewrap_is_named_with_the_next_step(path_with):
    path_with("Xvfb", "openbox", "dbus-daemon", "xkbcomp")
    assert "apt-get install bubblewrap" in sandbox.check_sandbox()
    with pytest.raises(MissingDependencyError, match="apt-get install bubblewrap .*sandbox: none"):
        await make_desktop(DesktopSpec()).start()


async def test_missing_programs_are_named_with_their_packages(path_with):
    path_with("openbox", "bwrap")
    with pytest.raises(MissingDependencyError, match="Xvfb, dbus-daemon, xkbcomp; .*install dbus x11-xkb-utils xvfb"):
        await make_desktop(DesktopSpec()).start()


async def test_a_machine_that_forbids_sandboxes_is_explained(path_with):
    path_with(
        *("Xvfb", "openbox", "dbus-daemon", "xkbcomp"),
        bwrap="echo 'bwrap: Creating new namespace failed: Operation not permitted' >&2; exit 1",
    )
    assert "Operation not permitted; next step: " in sandbox.check_sandbox()
    with pytest.raises(MissingDependencyError, match="Operation not permitted; next step: .*sandbox: none"):
        await make_desktop(DesktopSpec()).start()


@pytest.mark.desktop
def test_this_machine_can_make_sandboxes():
    assert sandbox.check_sandbox() is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "xvbf"}, "did you mean 'xvfb'"),
        ({"profile": "office"}, "bare, browser"),
        ({"sandbox": "docker"}, "bwrap, none"),
        ({"width": 1}, "1x1080"),
    ],
)
def test_impossible_specs_are_refused(fields, message):
    with pytest.raises(ConfigurationError, match=message):
        make_desktop(DesktopSpec(**fields))

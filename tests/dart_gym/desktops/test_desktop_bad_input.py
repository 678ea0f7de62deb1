"""What goes wrong around a desktop: missing programs, a full disk, a screen that never stands still."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from dart_gym.core.errors import MissingDependencyError, MissingProgramError
from dart_gym.desktops.base.desktop import DesktopSpec, SettlePolicy
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.sandbox import osworld_profile

pytestmark = pytest.mark.desktop

ON_A_SMALL_DISK = """
import asyncio, os
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.sandbox import runtime_directory
from dart_gym.core.errors import DesktopError

async def main():
    os.environ["XDG_RUNTIME_DIR"] = "/small"
    filler = open("/small/filler", "wb")
    free = {free}
    filler.truncate(0)
    while os.statvfs("/small").f_bavail * 4096 > free:
        filler.write(bytes(4096)); filler.flush()
    desktop = make_desktop(DesktopSpec(width=400, height=300, storage_mb=16))
    try:
        await desktop.start(timeout=20)
        await desktop.write_file("/home/user/large", bytes(20 << 20))
    except DesktopError as error:
        print("DesktopError:", error)
    await desktop.stop()
    print("left:", [path.name for path in runtime_directory.runtime_dir().iterdir()])

asyncio.run(main())
"""


@pytest.mark.parametrize("free", [0, 64 << 10, 16 << 20], ids=["at once", "for the screen", "for a file"])
def test_a_full_disk_is_the_cause_that_is_named_and_nothing_is_left(free):
    command = [
        *(str(shutil.which("bwrap")), "--dev-bind", "/", "/", "--size", str(20 << 20), "--tmpfs", "/small"),
        *(sys.executable, "-c", ON_A_SMALL_DISK.replace("{free}", str(free))),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert "DesktopError: " in result.stdout, result.stdout + result.stderr
    assert "full" in result.stdout or "No space left" in result.stdout
    assert "left: []" in result.stdout and "Traceback" not in result.stderr


SHARED = "/run/dart-gym" if os.geteuid() == 0 else "/small"
"""Where what desktops share is kept: an ordinary user chooses the place."""
ON_A_MACHINE_OF_ITS_OWN = """
import asyncio, os, sys
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.core.errors import DesktopError

async def main():
    os.umask(0o077)
    desktop = make_desktop(DesktopSpec(width=400, height=300, sandbox=sys.argv[1], profile=sys.argv[2]))
    try:
        await desktop.start(timeout=60)
        print("umask:", (await desktop.execute(["sh", "-c", "umask"])).stdout.decode())
    except DesktopError as error:
        print("DesktopError:", error)
    await desktop.stop()

asyncio.run(main())
"""


def start_with_shared_place(*options: str, sandbox: str = "bwrap", profile: str = "bare") -> str:
    """Start a desktop where nothing is kept from earlier ones, under umask 077, and return what was printed."""
    command = [
        *(str(shutil.which("bwrap")), "--dev-bind", "/", "/", "--tmpfs", SHARED, *options),
        *(sys.executable, "-c", ON_A_MACHINE_OF_ITS_OWN, sandbox, profile),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": "/small"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    return result.stdout + result.stderr


@pytest.mark.parametrize(("sandbox", "profile"), [("bwrap", "bare"), ("bwrap", "osworld"), ("none", "bare")])
def test_a_desktop_starts_under_every_umask_and_has_its_own(sandbox, profile):
    printed = start_with_shared_place(sandbox=sandbox, profile=profile)
    assert "umask: 0022" in printed, printed


def test_a_place_of_shared_files_that_cannot_be_written_to_is_named():
    printed = start_with_shared_place("--remount-ro", SHARED)
    assert f"DesktopError: cannot lay out a desktop in {SHARED}" in printed, printed
    assert "choose a directory" in printed and "XDG_RUNTIME_DIR" not in printed


async def test_a_missing_application_is_named_with_its_package(start_desktop, monkeypatch):
    desktop = await start_desktop()
    with pytest.raises(MissingProgramError, match="no program 'code'; next step: VS Code is not in Debian"):
        await desktop.launch(["code"])
    with pytest.raises(MissingProgramError, match="'/nowhere/gimp'; next step: apt-get install gimp"):
        await desktop.launch(["/nowhere/gimp"])
    assert desktop.alive


async def test_missing_packages_of_the_osworld_profile_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv(osworld_profile.PYTHON_VARIABLE, str(tmp_path))
    with pytest.raises(MissingDependencyError, match="pyautogui .*next step: make apps"):
        await make_desktop(DesktopSpec(profile="osworld")).start()
    assert list(tmp_path.iterdir()) == []


async def test_a_screen_that_never_stands_still_is_waited_for_only_so_long(start_desktop, until):
    desktop = await start_desktop()
    blink = "while :; do xsetroot -solid red; xsetroot -solid blue; done"
    await desktop.launch(["sh", "-c", blink])

    async def changes():
        first = await desktop.screenshot()
        await desktop.settle(SettlePolicy(quiet_ms=20, max_ms=50))
        return (first != await desktop.screenshot()).any()

    await until(changes)
    result = await desktop.settle(SettlePolicy(quiet_ms=200, max_ms=600))
    assert not result.stable and 0.6 <= result.waited_s < 2.0

"""Control groups of version 2 on the kernel's own hierarchy, with whichever controllers it has there.

Where version 1 holds memory, processes and processors (a "hybrid" machine), these limits themselves are not shown here,
but all that is done to a group: finding its place, enabling, limiting, entering, and ending what is in it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.confinement import resource_limits
from dart_gym.desktops.confinement.bubblewrap import launcher
from dart_gym.desktops.confinement.resource_limits import DesktopLimits, find_places, make_groups
from dart_gym.desktops.xvfb.xvfb_desktop import XvfbDesktop

MOUNTS = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line]
LIMITS = {"memory": {"memory.max": "300000000"}, "pids": {"pids.max": "9"}, "hugetlb": {"hugetlb.2MB.max": "0"}}
ROOT = Path(MOUNTS[0].split()[4]) if MOUNTS else Path("/")
THERE = tuple(name for name in LIMITS if MOUNTS and name in (ROOT / "cgroup.controllers").read_text().split())
FORKS = "for i in 1 2 3 4; do sleep 1000 & done; setsid sleep 1000 & wait"

pytestmark = [
    pytest.mark.security,
    pytest.mark.desktop,
    pytest.mark.skipif(
        os.geteuid() != 0 or not THERE or not os.access(ROOT / "cgroup.procs", os.W_OK),
        reason="only root may make groups, in a hierarchy that has a controller",
    ),
]


@pytest.fixture
def place(monkeypatch):
    """A group of this test's own below the hierarchy's root, as if the server were in it; it has all there is."""
    root, controllers = ROOT, THERE
    enabled = set((root / "cgroup.subtree_control").read_text().split())
    monkeypatch.setattr(resource_limits, "CONTROLLERS", controllers)
    settings = {name: value for controller in controllers for name, value in LIMITS[controller].items()}
    monkeypatch.setattr(resource_limits, "version_2_settings", lambda limits: settings)
    place = root / f"dart-test-{os.getpid()}"
    (root / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
    place.mkdir()
    yield place
    resource_limits.remove_groups([*place.glob("*/*"), *place.glob("*/"), place])
    for name in set(controllers) - enabled:
        with contextlib.suppress(OSError):  # in use by others meanwhile
            (root / "cgroup.subtree_control").write_text(f"-{name}")
    assert not place.exists()


def found(place: Path) -> list[tuple[Path, tuple[str, ...]]]:
    return list(find_places("\n".join(MOUNTS), f"0::/{place.name}\n"))


def test_a_group_is_made_limited_entered_and_ended(place, tmp_path, monkeypatch):
    assert found(place) == [(place, resource_limits.CONTROLLERS)]
    assert set(resource_limits.CONTROLLERS) <= set((place / "cgroup.subtree_control").read_text().split())
    monkeypatch.setattr(resource_limits, "group_places", lambda: found(place))
    groups = make_groups("desktop", DesktopLimits(), tmp_path / "record")
    assert groups.directories == (place / "desktop",) and groups.ended_for_memory() == 0
    for name, value in resource_limits.version_2_settings(DesktopLimits()).items():
        assert int((place / "desktop" / name).read_text()) == pytest.approx(int(value), abs=4096)
    process = subprocess.Popen([*launcher(None, groups.directories, {}), "sh", "-c", FORKS])
    while len((place / "desktop/cgroup.procs").read_text().split()) < 6:
        assert process.poll() is None
    groups.remove()
    assert process.wait(timeout=10) == -9 and not (place / "desktop").exists()


def test_a_group_with_processes_of_its_own_gives_way_to_the_one_above_it(place):
    inner = place / "server"
    inner.mkdir()
    process = subprocess.Popen([*launcher(None, [inner], {}), "sleep", "1000"])
    try:
        while not (inner / "cgroup.procs").read_text():
            assert process.poll() is None
        places = find_places("\n".join(MOUNTS), f"0::/{place.name}/server\n")
        assert places == [(place, resource_limits.CONTROLLERS)], "the kernel allows no groups below it"
    finally:
        process.kill()
        process.wait()


async def test_a_desktop_lives_in_its_group_and_takes_it_along(place, monkeypatch):
    monkeypatch.setattr(resource_limits, "group_places", lambda: found(place))
    desktop = XvfbDesktop(DesktopSpec(width=320, height=240))  # its keeper's part, in this process
    await desktop.start()
    try:
        (group,) = [path for path in place.iterdir() if path.is_dir()]
        inside = (await desktop.execute(["sh", "-c", "ls /proc | grep -c '^[0-9]'"])).stdout
        assert len((group / "cgroup.procs").read_text().split()) >= int(inside) - 3
        assert (await desktop.execute(["ls", "/sys"])).returncode != 0, "no group is seen from inside"
    finally:
        await desktop.stop()
    assert [path for path in place.iterdir() if path.is_dir()] == []

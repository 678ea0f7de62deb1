"""Where control groups can be made, and what is written into them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dart_gym.desktops.confinement import resource_limits
from dart_gym.desktops.confinement.resource_limits import (
    CONTROLLERS,
    ControlGroups,
    DesktopLimits,
    find_places,
    make_groups,
)
from dart_gym.utils.processes import own_pid_namespace

LIMITS = DesktopLimits(memory=1 << 30, processes=100, cpus=1.5)


def version_2(root: Path, own: str, controllers: str = "cpu memory pids io") -> tuple[str, str]:
    """A hierarchy of version 2 as files, and the kernel's words about it."""
    path = root
    for name in ("", *filter(None, own.split("/"))):
        path = path / name
        path.mkdir(exist_ok=True)
        (path / "cgroup.controllers").write_text(controllers)
        (path / "cgroup.subtree_control").write_text("")
        (path / "cgroup.procs").write_text("")
    return f"30 20 0:26 / {root} rw - cgroup2 cgroup2 rw\n", f"0::{own}\n"


def test_a_group_of_version_2_has_all_limits(tmp_path, monkeypatch):
    mountinfo, own = version_2(tmp_path / "cgroup", "/user.slice/app")
    places = find_places(mountinfo, own)
    assert places == [(tmp_path / "cgroup/user.slice/app", CONTROLLERS)]
    assert (places[0][0] / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    monkeypatch.setattr(resource_limits, "group_places", lambda: places)
    groups = make_groups("desktop", LIMITS, tmp_path / "record")
    (directory,) = groups.directories
    assert (tmp_path / "record").read_text() == f"{directory}\n"
    written = {path.name: path.read_text() for path in directory.iterdir()}
    assert written == {
        "memory.max": "1073741824",
        "memory.swap.max": "0",
        "pids.max": "100",
        "cpu.max": "150000 100000",
    }


def test_without_all_controllers_there_is_no_place(tmp_path):
    assert find_places(*version_2(tmp_path / "cgroup", "/app", "cpu memory")) == []
    assert find_places("", "") == []


def test_groups_of_version_1_are_beside_this_process_own(tmp_path):
    lines, own = "", ""
    for number, name in enumerate(CONTROLLERS):
        (tmp_path / name / "docker").mkdir(parents=True)
        lines += f"3{number} 20 0:26 /docker {tmp_path / name}/docker rw - cgroup cgroup rw,{name}\n"
        own += f"{number}:{name}:/docker\n"
    assert find_places(lines, own) == [(tmp_path / name / "docker", (name,)) for name in CONTROLLERS]


def test_limits_of_each_process_take_the_place_of_groups():
    assert "DATA" not in LIMITS.rlimits(grouped=True)
    own = LIMITS.rlimits(grouped=False)
    assert own | {"NPROC": 100, "CORE": 0, "DATA": 1 << 30} == own
    assert {"MEMLOCK", "MSGQUEUE", "SIGPENDING"} < own.keys()


def test_a_record_that_is_missing_names_no_groups(tmp_path):
    assert resource_limits.recorded_groups(tmp_path / "none") == []


@pytest.mark.parametrize("refused", ["memory.max", "pids.max"])
def test_a_group_that_cannot_be_limited_is_none(tmp_path, monkeypatch, refused):
    write = Path.write_text

    def refuse(path: Path, text: str, *args: object, **options: object) -> int:
        if path.name == refused:
            raise PermissionError
        return write(path, text, *args, **options)

    (tmp_path / "place").mkdir()
    monkeypatch.setattr(resource_limits, "group_places", lambda: [(tmp_path / "place", CONTROLLERS)])
    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(resource_limits, "GONE_S", 0.0)
    assert make_groups("desktop", LIMITS, tmp_path / "record").directories == ()


def test_groups_of_processes_that_have_ended_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(resource_limits, "group_places", lambda: [(tmp_path, CONTROLLERS)])
    namespace = own_pid_namespace().strip("pid:[]")
    names = [f"kind.{namespace}.{pid}.1" for pid in (os.getpid(), 1 << 30)] + ["kind.1.1073741824.1", "other"]
    for name in names:
        (tmp_path / name).mkdir()
    resource_limits.remove_groups_of_the_dead("kind")
    assert {path.name for path in tmp_path.iterdir()} == set(names) - {names[1]}


@pytest.mark.parametrize(
    ("files", "seconds"),
    [
        ({"cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n"}, 2.5),
        ({"cpu.stat": "nr_periods 3\nnr_throttled 0\nthrottled_time 0\n", "cpuacct.usage": "2500000000\n"}, 2.5),
        ({"cpu.stat": "nr_periods 3\nnr_throttled 0\nthrottled_time 0\n"}, 0.0),
        ({}, 0.0),
    ],
)
def test_processor_time_is_read_in_either_version(tmp_path, files, seconds):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert ControlGroups((tmp_path,)).processor_seconds() == seconds

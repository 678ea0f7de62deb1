"""What is asked of Docker, as values: limits, labels, no published control port; and whose containers may go."""

from __future__ import annotations

import dataclasses
import os

import pytest

from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.desktop_service import parse_spec
from dart_gym.providers.containers import (
    SERVER_LABEL,
    Limits,
    Owner,
    desktop_container,
    is_orphan,
)
from dart_gym.utils.processes import start_time

OWNER = Owner("host", "boot", "pid:[1]", 17, 4711)
LIMITS = Limits(memory=2**30, cpus=1.5, pids=512)


def of_desktop(tmp_path, spec=None, **changes):
    values = {
        "image": "dart-gym",
        "directory": tmp_path,
        "user": "1000:1000",
        "network": "none",
        "limits": LIMITS,
        "owner": OWNER,
    }
    return desktop_container(spec or DesktopSpec(), **{**values, **changes})


@pytest.mark.parametrize("sandbox", ["bwrap", "none"])
def test_a_desktop_container_is_limited_labelled_and_shows_no_port(tmp_path, sandbox):
    container = of_desktop(tmp_path, DesktopSpec(sandbox=sandbox))
    host = container["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"]) == (2**30, 2**30, 15 * 10**8, 512)
    assert host["CapDrop"] == ["ALL"] and host["ReadonlyRootfs"] and host["AutoRemove"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert host["NetworkMode"] == "none"
    assert "PortBindings" not in host and "ExposedPorts" not in container and "PublishAllPorts" not in host
    assert host["Binds"] == [f"{tmp_path}:/run/dart-gym"]
    assert container["User"] == "1000:1000"
    assert Owner.parse(container["Labels"][SERVER_LABEL]) == OWNER
    assert "Privileged" not in host and "CapAdd" not in host


def test_only_a_sandbox_inside_relaxes_dockers_own(tmp_path):
    inside = of_desktop(tmp_path, DesktopSpec(sandbox="bwrap"))["HostConfig"]
    assert {"seccomp=unconfined", "apparmor=unconfined"} <= set(inside["SecurityOpt"])
    assert inside["MaskedPaths"] == inside["ReadonlyPaths"] == []
    plain = of_desktop(tmp_path, DesktopSpec(sandbox="none"))["HostConfig"]
    assert plain["SecurityOpt"] == ["no-new-privileges"]
    assert "MaskedPaths" not in plain
    own = of_desktop(tmp_path, DesktopSpec(sandbox="bwrap"), seccomp='{"names": []}')["HostConfig"]["SecurityOpt"]
    assert 'seccomp={"names": []}' in own and "seccomp=unconfined" not in own


def test_the_spec_reaches_the_service_in_the_container_as_it_is(tmp_path):
    spec = DesktopSpec(width=640, profile="browser", reusable=True, env=(("A", "b c"), ("D", "'\"")))
    container = of_desktop(tmp_path, spec, runtime="runsc", network="bridge")
    assert parse_spec(container["Cmd"][1]) == spec
    assert container["HostConfig"]["Runtime"] == "runsc"
    assert container["HostConfig"]["NetworkMode"] == "bridge"


# --- orphans


def test_this_process_is_no_orphan_and_its_label_reads_back():
    here = Owner.here()
    assert Owner.parse(here.label) == here
    assert here.pid == os.getpid() and here.started == start_time(os.getpid())
    assert not is_orphan({SERVER_LABEL: here.label}, here)


@pytest.mark.parametrize(
    ("changes", "dead"),
    [
        ({}, False),
        ({"started": 1}, True),  # its pid belongs to another process now
        ({"pid": 2**22 + 1}, True),
        ({"boot": "an earlier one"}, True),
        ({"host": "another machine", "started": 1}, False),  # it uses the same daemon
        ({"pid_namespace": "pid:[0]", "started": 1}, False),  # of a server in a container
    ],
)
def test_only_who_is_dead_for_sure_leaves_orphans(changes, dead):
    here = Owner.here()
    owner = dataclasses.replace(here, **changes)
    assert is_orphan({SERVER_LABEL: owner.label}, here) is dead


@pytest.mark.parametrize("labels", [{}, {SERVER_LABEL: ""}, {SERVER_LABEL: "a/b/c/d/e"}, {SERVER_LABEL: "17"}])
def test_containers_of_others_are_no_orphans(labels):
    assert not is_orphan(labels, Owner.here())

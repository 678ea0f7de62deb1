"""What is asked of Docker, as values: limits, labels, no published control port; and whose containers may go."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

from dart_gym.core.errors import ConfigurationError, MissingDependencyError
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.desktop_service import parse_spec
from dart_gym.desktops.osworld_vm.machine_address import parse_machine_url
from dart_gym.providers.containers import (
    OSWORLD_PORTS,
    SERVER_LABEL,
    Limits,
    Owner,
    desktop_container,
    is_orphan,
    published_url,
    vm_container,
)
from dart_gym.providers.osworld_vm_provider import OSWorldVmOptions, check_machine
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


# --- OSWorld's virtual machines


def test_a_virtual_machine_has_its_disk_read_only_and_ports_on_loopback_alone(tmp_path):
    machine = vm_container(
        image="osworld",
        disk=tmp_path / "Ubuntu.qcow2",
        kvm=True,
        limits=LIMITS,
        vm_memory=4 * 2**30,
        vm_cores=4,
        owner=OWNER,
    )
    host = machine["HostConfig"]
    assert host["Binds"] == [f"{tmp_path}/Ubuntu.qcow2:/System.qcow2:ro"]
    assert host["Devices"][0]["PathOnHost"] == "/dev/kvm"
    assert {"RAM_SIZE=4096M", "CPU_CORES=4", "KVM=Y"} <= set(machine["Env"])
    assert set(host["PortBindings"]) == {f"{port}/tcp" for port in OSWORLD_PORTS.values()}
    assert {binding["HostIp"] for bindings in host["PortBindings"].values() for binding in bindings} == {"127.0.0.1"}
    assert host["Memory"] == 2**30 and host["AutoRemove"]
    json.dumps(machine)


def test_a_virtual_machine_without_kvm_says_so_to_its_image(tmp_path):
    values = {"image": "i", "disk": tmp_path, "limits": LIMITS, "vm_memory": 2**30, "vm_cores": 1, "owner": OWNER}
    machine = vm_container(kvm=False, **values)
    assert "KVM=N" in machine["Env"] and "Devices" not in machine["HostConfig"]


def test_the_ports_that_docker_chose_become_the_machines_url():
    ports = {5000: 32768, 9222: 32769, 8006: 32770, 8080: 32771}
    described = {f"{port}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(to)}] for port, to in ports.items()}
    address = parse_machine_url(published_url({"NetworkSettings": {"Ports": described}}))
    assert address.shown == "127.0.0.1:32768"
    assert dict(address.ports) == {9222: 32769, 8080: 32771}


def test_what_a_host_lacks_for_virtual_machines_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="Ubuntu.qcow2"):
        check_machine(OSWorldVmOptions(disk=tmp_path / "none"))
    disk = tmp_path / "disk.qcow2"
    disk.touch()
    with pytest.raises(MissingDependencyError, match="bare metal"):
        check_machine(OSWorldVmOptions(disk=disk), kvm=tmp_path / "no kvm")
    check_machine(OSWorldVmOptions(disk=disk, kvm=False), kvm=tmp_path / "no kvm")

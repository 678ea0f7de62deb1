"""`integrations/osworld_vm`, installed and found by its entry point: what it asks of Docker, as values."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from dart_gym.core.errors import ConfigurationError, MissingDependencyError
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.desktops.osworld_vm.machine_address import parse_machine_url
from dart_gym.providers.containers import Limits, Owner
from dart_gym.providers.provider_registry import PROVIDERS, make_provider
from tests.helpers.packages import INTEGRATIONS, installed

OWNER = Owner("host", "boot", "pid:[1]", 17, 4711)
LIMITS = Limits(memory=2**30, cpus=1.5, pids=512)
pytestmark = pytest.mark.process  # pip installs the package


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory):
    with installed(INTEGRATIONS / "osworld_vm", tmp_path_factory.mktemp("osworld_vm")):
        yield


@pytest.fixture
def vm() -> ModuleType:
    """The package's module."""
    import dart_gym_osworld_vm

    return dart_gym_osworld_vm


def test_its_entry_point_gives_the_provider_its_name(vm):
    assert PROVIDERS.describe()["osworld-vm"] == "package dart-gym-osworld-vm"
    assert PROVIDERS.get("osworld-vm") is vm.OSWorldVmProvider
    with pytest.raises(ConfigurationError, match="disk"):
        make_provider("osworld-vm")


def test_it_leaves_drawn_desktops_and_named_machines_alone(tmp_path):
    provider = make_provider("osworld-vm", {"disk": f"{tmp_path}"})
    assert isinstance(provider.desktop(DesktopSpec(kind="fake")), FakeDesktop)
    assert provider.desktop(DesktopSpec(kind="osworld", url="http://127.0.0.1:2")).spec.url == "http://127.0.0.1:2"


def test_a_virtual_machine_has_its_disk_read_only_and_ports_on_loopback_alone(vm, tmp_path):
    machine = vm.vm_container(
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
    assert set(host["PortBindings"]) == {f"{port}/tcp" for port in vm.OSWORLD_PORTS.values()}
    assert {binding["HostIp"] for bindings in host["PortBindings"].values() for binding in bindings} == {"127.0.0.1"}
    assert host["Memory"] == 2**30 and host["AutoRemove"]
    json.dumps(machine)


def test_a_virtual_machine_without_kvm_says_so_to_its_image(vm, tmp_path):
    values = {"image": "i", "disk": tmp_path, "limits": LIMITS, "vm_memory": 2**30, "vm_cores": 1, "owner": OWNER}
    machine = vm.vm_container(kvm=False, **values)
    assert "KVM=N" in machine["Env"] and "Devices" not in machine["HostConfig"]


def test_the_ports_that_docker_chose_become_the_machines_url(vm):
    ports = {5000: 32768, 9222: 32769, 8006: 32770, 8080: 32771}
    described = {f"{port}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(to)}] for port, to in ports.items()}
    address = parse_machine_url(vm.published_url({"NetworkSettings": {"Ports": described}}))
    assert address.shown == "127.0.0.1:32768"
    assert dict(address.ports) == {9222: 32769, 8080: 32771}


def test_what_a_host_lacks_for_virtual_machines_is_named(vm, tmp_path):
    with pytest.raises(ConfigurationError, match="Ubuntu.qcow2"):
        vm.check_machine(vm.OSWorldVmOptions(disk=tmp_path / "none"))
    disk = tmp_path / "disk.qcow2"
    disk.touch()
    with pytest.raises(MissingDependencyError, match="bare metal"):
        vm.check_machine(vm.OSWorldVmOptions(disk=disk), kvm=tmp_path / "no kvm")
    vm.check_machine(vm.OSWorldVmOptions(disk=disk, kvm=False), kvm=tmp_path / "no kvm")

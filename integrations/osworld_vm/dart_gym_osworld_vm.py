"""The provider "osworld-vm": OSWorld's own virtual machine, which QEMU runs in a container, one per desktop.

It needs a host with KVM, OSWorld's image of QEMU and its disk of Ubuntu (a qcow2 of some 24 GB, which all machines
share read-only). Their ports are published on loopback alone.
"""

import asyncio
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import ByteSize, Field

from dart_gym.core.errors import ConfigurationError, DesktopError, MissingDependencyError
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.desktops.osworld_vm.machine_address import parse_machine_url
from dart_gym.providers.containers import Limits, Owner, confined, labels_of
from dart_gym.providers.docker_engine import Engine
from dart_gym.providers.lent_machines import Machine, osworld_machine
from dart_gym.providers.provider import Options

DEFAULT_IMAGE = "happysixd/osworld-docker:latest"
KVM = Path("/dev/kvm")
OSWORLD_PORTS = {"server": 5000, "chromium": 9222, "vnc": 8006, "vlc": 8080}
_LOOPBACK = "127.0.0.1"
_OVERHEAD = 2**30  # QEMU itself, and the layer that the machine writes to
_PIDS = 1024


class OSWorldVmOptions(Options):
    """Options of the provider "osworld-vm".

    Attributes:
        disk: OSWorld's Ubuntu.qcow2.
        image: tag of the image with QEMU.
        memory: memory of a virtual machine, such as "4GiB".
        cores: number of processors of a virtual machine.
        boot_timeout_s: how long a machine may take until it answers.
        kvm: False runs without it, which takes minutes to boot and is for trying only.
        host: the Docker Engine, as in DOCKER_HOST.
    """

    disk: Path
    image: str = DEFAULT_IMAGE
    memory: Annotated[ByteSize, Field(ge=2**30)] = ByteSize(4 * 2**30)
    cores: Annotated[int, Field(ge=1)] = 4
    boot_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    kvm: bool = True
    host: str = ""


def check_machine(options: OSWorldVmOptions, kvm: Path = KVM) -> None:
    """Look for what the host must have. Raises `ConfigurationError`: no disk; `MissingDependencyError`: no KVM."""
    if not options.disk.is_file():
        raise ConfigurationError(
            f"there is no file {options.disk}; next step: download OSWorld's Ubuntu.qcow2 and give its path with "
            "--provider-option disk=PATH"
        )
    if options.kvm and not kvm.exists():
        raise MissingDependencyError(
            f"the host has no {kvm}; next step: use one with KVM (bare metal, or nested virtualisation switched on), "
            "choose --provider docker or xvfb, or --provider-option kvm=false to wait for minutes"
        )
    if options.kvm and not os.access(kvm, os.R_OK | os.W_OK):
        raise MissingDependencyError(f"{kvm} cannot be used by this user; next step: add the user to the group kvm")


class OSWorldVmProvider:
    """See `dart_gym.providers.provider.Provider`. Raises `ConfigurationError`, `MissingDependencyError`."""

    name = "osworld-vm"
    options_type = OSWorldVmOptions
    capacity: int | None = None
    local, warm = True, 1

    def __init__(self, options: OSWorldVmOptions) -> None:
        self.options = options
        self.longest_start_s = options.boot_timeout_s
        self._engine = Engine(options.host)
        self._owner = Owner.here()
        self._numbers = itertools.count(1)

    async def open(self) -> list[str]:
        """Look for KVM and the disk, connect to Docker, and remove the machines of dead servers."""
        check_machine(self.options)
        return await self._engine.open(self.options.image)

    def desktop(self, spec: DesktopSpec) -> Desktop:
        """A desktop, not started yet."""
        return osworld_machine(spec, self, self.name)

    async def take(self, spec: DesktopSpec, timeout: float) -> Machine:
        """Start a machine. It boots while the desktop waits for its server."""
        options = self.options
        config = vm_container(
            image=options.image,
            disk=options.disk.resolve(),
            kvm=options.kvm,
            limits=Limits(int(options.memory) + _OVERHEAD, float(options.cores), _PIDS),
            vm_memory=int(options.memory),
            vm_cores=options.cores,
            owner=self._owner,
        )
        container_id = await self._engine.run(config, f"dart-gym-vm-{os.getpid()}-{next(self._numbers)}")
        try:
            found = await self._engine.inspect(container_id)
            if found is None:
                raise DesktopError("the container of a virtual machine ended at once; look at `docker events`")
            return Machine(container_id, parse_machine_url(published_url(found)))
        except (LookupError, TypeError) as error:
            await self._engine.remove(container_id)
            raise DesktopError(f"Docker published no ports of a virtual machine: {error!r}") from error
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self._engine.remove(container_id)))
            raise

    async def give_back(self, machine: Machine) -> None:
        """Throw the machine away."""
        await self._engine.remove(machine.id)

    async def close(self) -> None:
        """Wait until what is being removed is gone. Idempotent."""
        await self._engine.close()


def vm_container(
    *, image: str, disk: Path, kvm: bool, limits: Limits, vm_memory: int, vm_cores: int, owner: Owner
) -> dict[str, Any]:
    """What to create for one of OSWorld's virtual machines, which QEMU runs in a container."""
    ports = [f"{port}/tcp" for port in OSWORLD_PORTS.values()]
    host_config: dict[str, Any] = {
        **confined(limits, "bridge"),
        "Binds": [f"{disk}:/System.qcow2:ro"],
        "CapAdd": ["NET_ADMIN"],  # QEMU's network is a bridge of its own
        "PortBindings": {port: [{"HostIp": _LOOPBACK, "HostPort": ""}] for port in ports},
    }
    if kvm:
        host_config["Devices"] = [{"PathOnHost": "/dev/kvm", "PathInContainer": "/dev/kvm", "CgroupPermissions": "rwm"}]
    return {
        "Image": image,
        "Env": [
            f"RAM_SIZE={vm_memory // 2**20}M",
            f"CPU_CORES={vm_cores}",
            "DISK_SIZE=32G",
            f"KVM={'Y' if kvm else 'N'}",
        ],
        "ExposedPorts": {port: {} for port in ports},
        "Labels": labels_of(owner, "osworld-vm"),
        "HostConfig": host_config,
    }


def published_url(container: Mapping[str, Any]) -> str:
    """The URL of a virtual machine by its container's `/containers/ID/json`. Raises `KeyError`: no published ports."""
    published = container["NetworkSettings"]["Ports"] or {}
    port = {name: int(published[f"{number}/tcp"][0]["HostPort"]) for name, number in OSWORLD_PORTS.items()}
    return f"http://{_LOOPBACK}:{port['server']}?9222={port['chromium']}&8080={port['vlc']}"

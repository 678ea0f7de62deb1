"""Containers as values: what is asked of the Docker Engine, and whose containers may be removed. No effects.

Invariants:
    - No port of a desktop container is published: it is reached by Unix sockets in a directory that only this user can
      open.
    - Every container is labelled with the server process that made it, so that a later server can tell orphans.
    - A container removes itself when it ends, gains no privileges, and has limits of memory, CPU and processes.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.utils.processes import has_ended, own_pid_namespace, start_time

SERVER_LABEL = "dart-gym.server"
PROVIDER_LABEL = "dart-gym.provider"
DIRECTORY = "/run/dart-gym"
"""Where a container sees the directory of its sockets."""

_CPU_UNIT = 1_000_000_000  # the Engine counts in billionths


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that a container belongs to.

    Attributes:
        started: when it was started, in clock ticks since the boot.
    """

    host: str
    boot: str
    pid_namespace: str
    pid: int
    started: int

    @classmethod
    def here(cls) -> Owner:
        """This process."""
        pid = os.getpid()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return cls(socket.gethostname(), boot, own_pid_namespace(), pid, start_time(pid) or 0)

    @classmethod
    def parse(cls, label: str) -> Owner | None:
        """Return the owner that a label names, or None if it is not such a label."""
        parts = label.split("/")
        if len(parts) != 5 or not (parts[3].isdigit() and parts[4].isdigit()):
            return None
        return cls(parts[0], parts[1], parts[2], int(parts[3]), int(parts[4]))

    @property
    def label(self) -> str:
        """As the value of a label."""
        return f"{self.host}/{self.boot}/{self.pid_namespace}/{self.pid}/{self.started}"

    def is_dead(self, here: Owner) -> bool:
        """Return whether the owner has ended for sure, as process `here` can tell."""
        if self.host != here.host:
            return False  # of another machine that uses the same Docker daemon
        if self.boot != here.boot:
            return True
        return has_ended(self.pid, self.started, self.pid_namespace)


def is_orphan(labels: Mapping[str, str], here: Owner) -> bool:
    """Return whether a container was made by a server that is dead."""
    owner = Owner.parse(labels.get(SERVER_LABEL, ""))
    return owner is not None and owner.is_dead(here)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a container may use: bytes of memory, without any swap, cores, and processes and threads."""

    memory: int
    cpus: float
    pids: int

    def host_config(self) -> dict[str, Any]:
        """As the Engine's API wants them."""
        return {
            "Memory": self.memory,
            "MemorySwap": self.memory,
            "NanoCpus": int(self.cpus * _CPU_UNIT),
            "PidsLimit": self.pids,
        }


def desktop_container(
    spec: DesktopSpec,
    *,
    image: str,
    directory: Path,
    user: str,
    network: str,
    limits: Limits,
    owner: Owner,
    seccomp: str = "",
    runtime: str = "",
) -> dict[str, Any]:
    """Return what to create for one desktop: the body of the Engine's `/containers/create`."""
    host_config: dict[str, Any] = {
        **confined(limits, network),
        "Binds": [f"{directory}:{DIRECTORY}"],
        "CapDrop": ["ALL"],
        "ReadonlyRootfs": True,
        "Tmpfs": {"/tmp": "mode=1777,exec", "/run/user": "mode=1777"},
    }
    options: list[str] = host_config["SecurityOpt"]
    if seccomp:
        options.append(f"seccomp={seccomp}")
    if spec.sandbox == "bwrap":
        if not seccomp:
            options.append("seccomp=unconfined")  # Docker's profile forbids mounts, and namespaces to all but root
        options.append("apparmor=unconfined")
        host_config |= {"MaskedPaths": [], "ReadonlyPaths": []}  # else the kernel refuses an own /proc
    if runtime:
        host_config["Runtime"] = runtime
    fields = {name: getattr(spec, name) for name in spec.__slots__}
    return {
        "Image": image,
        "Entrypoint": ["python", "-m", "dart_gym.desktops.desktop_service"],
        "Cmd": [DIRECTORY, json.dumps(fields)],
        "User": user,
        "WorkingDir": "/",
        "Env": ["HOME=/tmp", "XDG_RUNTIME_DIR=/tmp"],
        "Hostname": "desktop",
        "Labels": labels_of(owner, "docker"),
        "Healthcheck": {"Test": ["NONE"]},  # the image's own looks for a server
        "HostConfig": host_config,
    }


def confined(limits: Limits, network: str) -> dict[str, Any]:
    """The `HostConfig` of every container: its limits, no privileges to gain, and gone when it ends."""
    return {
        **limits.host_config(),
        "AutoRemove": True,
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
        "NetworkMode": network,
        "SecurityOpt": ["no-new-privileges"],
    }


def labels_of(owner: Owner, provider: str) -> dict[str, str]:
    """The labels by which a later server knows a container: whose it is, and of which provider."""
    return {SERVER_LABEL: owner.label, PROVIDER_LABEL: provider}

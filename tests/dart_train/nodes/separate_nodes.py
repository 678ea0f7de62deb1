"""Machines of a test: each in network, mount and pid namespaces of its own, with a file system of its own to write to.

They have the operating system in common, as machines with the same image have, and nothing that can be written: `/tmp`,
`/dev/shm`, `/run` and the home directory are each one's own. A bridge joins their networks. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[3]
HOME = "/tmp/home"
RAY_PORT = 6379
_PRIVATE = ("/tmp", "/dev/shm", "/run")


class Network:
    """A bridge for nodes, with addresses 10.77.NUMBER.x. A context manager: leaving it kills all nodes."""

    def __init__(self) -> None:
        self.number = 1 + os.getpid() % 250
        self.bridge = f"dartbr{self.number}"
        self.nodes: list[Node] = []

    def __enter__(self) -> Network:
        # an address of its own: else it has its lowest port's, another one when that node is killed, and the others go
        # on sending to the former one for a minute
        _ip("link", "add", self.bridge, "address", f"02:00:00:00:00:{self.number:02x}", "type", "bridge")
        _ip("addr", "add", f"10.77.{self.number}.254/24", "dev", self.bridge)  # the test's own
        _ip("link", "set", self.bridge, "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in list(self.nodes):
            node.kill()
        _ip("link", "del", self.bridge)

    def node(self, host: int) -> Node:
        """A new machine with the address 10.77.NUMBER.host."""
        node = Node(self, host)
        self.nodes.append(node)
        return node


class Node:
    """One machine; its processes die with its first one."""

    def __init__(self, network: Network, host: int) -> None:
        self.address, self._network, self._host = f"10.77.{network.number}.{host}", network, host
        mounts = "; ".join(f"mount -t tmpfs none {path}" for path in _PRIVATE)
        checkout = f"mkdir -p {ROOT} && mount --no-canonicalize --bind /proc/self/fd/9 {ROOT}"  # it may lie below /tmp
        script = f"exec 9<{ROOT}; {mounts}; {checkout} && mkdir -p {HOME} && touch /tmp/made && exec sleep infinity"
        command = ["unshare", *"--net --mount --pid --fork --kill-child --mount-proc bash -c".split(), script]
        self._keeper = subprocess.Popen(command, start_new_session=True)
        wait_until(self._has_first, 20)
        outside, inside = f"dv{network.number}x{host}", "eth0"
        # the kernel takes its time to remove that of a killed node of this name
        subprocess.run(["ip", "link", "del", outside], check=False, stderr=subprocess.DEVNULL)
        _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", str(self.first))
        _ip("link", "set", outside, "master", network.bridge, "up")
        for words in (
            ["addr", "add", f"{self.address}/24", "dev", inside],
            ["link", "set", inside, "up"],
            ["link", "set", "lo", "up"],
        ):
            self.run("ip", *words)

    @property
    def first(self) -> int:
        """Process id of its first process, as the test's machine counts."""
        children = Path(f"/proc/{self._keeper.pid}/task/{self._keeper.pid}/children").read_text().split()
        return int(children[0])

    def _has_first(self) -> bool:
        with contextlib.suppress(OSError, IndexError):
            return Path(f"/proc/{self.first}/root/tmp/made").exists()
        return False

    def path(self, path: str) -> Path:
        """A path of the node as the test reaches it."""
        return Path(f"/proc/{self.first}/root{path}")

    def start(self, *argv: str, environment: Mapping[str, str] = {}, **options: Any) -> subprocess.Popen[bytes]:
        """Start a program there."""
        own = {
            "HOME": HOME, "PYTHONPATH": str(ROOT), "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **environment,
        }  # fmt: skip
        command = ["nsenter", "-t", str(self.first), "--net", "--mount", "--pid", f"--wdns={HOME}", *argv]
        return subprocess.Popen(command, env=own, **options)

    def run(self, *argv: str, timeout: float = 120, **environment: str) -> str:
        """Run a program there and return what it prints; raise with that where it fails."""
        process = self.start(*argv, environment=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output = process.communicate(timeout=timeout)[0].decode()
        if process.returncode:
            raise AssertionError(f"{argv} ended with {process.returncode}: {output}")
        return output

    def join(self, head: Node | None = None, *, cpus: int = 0, desktops: int = 0) -> None:
        """Be a node of a Ray cluster: its head, or of the one that `head` is."""
        where = ["--head", f"--port={RAY_PORT}", "--include-dashboard=false", "--disable-usage-stats"]
        if head is not None:
            where = [f"--address={head.address}:{RAY_PORT}"]
        offered = [f'--resources={{"desktops": {desktops}}}'] if desktops else []
        quick = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "8"}
        size = (f"--num-cpus={cpus}", "--object-store-memory=100000000", *offered)
        command = (f"{ROOT}/.venv/bin/ray", "start", *where, f"--node-ip-address={self.address}", *size)
        for tries_left in (2, 1, 0):
            try:
                self.run(*command, **quick)
                return
            except (AssertionError, subprocess.TimeoutExpired):  # on a busy machine Ray's own times may be too short
                if not tries_left:
                    raise
                self.run(f"{ROOT}/.venv/bin/ray", "stop", "--force")

    def kill(self) -> None:
        """Cut its power: nothing there runs a moment longer, and nothing on its disk is left."""
        self._network.nodes.remove(self)
        with contextlib.suppress(OSError, IndexError):
            os.kill(self.first, 9)
        self._keeper.kill()
        self._keeper.wait()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def python() -> str:
    """The interpreter of all nodes."""
    return sys.executable

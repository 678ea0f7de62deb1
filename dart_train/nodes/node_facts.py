"""The facts that a node of a cluster reports, and the decisions that follow from them. Pure but for `node_facts`."""

import os
import platform
import shutil
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dart_gym.cluster.pool.boot_admission import read_machine
from dart_gym.commands.doctor import PROGRAMS
from dart_train.core.package_version import VERSION

DESKTOPS = "desktops"
"""The resource of nodes that hold desktops: `ray start --resources='{"desktops": 16}'`."""

DESKTOP_MB = 400.0
DESKTOPS_PER_CORE = 8
MOST_SKEW_S = 2.0
LEAST_DISK_GB = 2.0


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts of one node.

    Attributes:
        versions: versions of this package, Python and Ray, by name.
        clock: its Unix time when it was asked.
        cores: number of processors that it may use.
        memory_mb: free memory within the limits of its control groups.
        disk_gb: free space of the disk that runs are written to.
        lacks: missing Debian packages of desktops.
    """

    versions: dict[str, str]
    clock: float
    cores: int
    memory_mb: float
    disk_gb: float
    lacks: tuple[str, ...]


def node_facts() -> NodeFacts:
    """Return the facts of this node."""
    try:
        ray = version("ray")
    except PackageNotFoundError:
        ray = ""
    return NodeFacts(
        versions={"dart-gui": VERSION, "Python": platform.python_version(), "Ray": ray},
        clock=time.time(),
        cores=len(os.sched_getaffinity(0)),
        memory_mb=(read_machine().available or 0) / 2**20,
        disk_gb=shutil.disk_usage(Path.home()).free / 1e9,
        lacks=tuple(sorted({package for name, package in PROGRAMS.items() if shutil.which(name) is None})),
    )


def desktops_of(offered: float, facts: NodeFacts) -> int:
    """Return the number of desktops of a node: as many as it offers, or fewer if memory or cores do not suffice."""
    return max(1, min(int(offered), int(facts.memory_mb / DESKTOP_MB), DESKTOPS_PER_CORE * facts.cores))


def why_unusable(name: str, facts: NodeFacts, here: NodeFacts) -> str:
    """Return why a node cannot hold desktops, and what to do; "" if it can.

    Args:
        name: name of the node.
        facts: its facts.
        here: the facts of the launcher's node.
    """
    for what, ours in here.versions.items():
        if facts.versions[what] != ours:
            found = facts.versions[what] or "nothing"
            return f"node {name} has {what} {found}, and the launcher's has {ours}: install the same there"
    if facts.disk_gb < LEAST_DISK_GB:
        left = f"{facts.disk_gb:.1f} GB of disk left"
        return f"node {name} has {left}: free some, or set DART_NODE_DIR to another disk there"
    if facts.lacks:
        return f"node {name} offers desktops and lacks {', '.join(facts.lacks)}: apt-get install them there"
    return ""


def clock_skew(name: str, facts: NodeFacts, asked: float, answered: float) -> str:
    """Return a warning if a node's clock differs from the launcher's by more than the question took, or ""."""
    off = max(asked - facts.clock, facts.clock - answered, 0.0)
    if off <= MOST_SKEW_S:
        return ""
    return f"the clock of node {name} is {off:.0f} s off: synchronise it (chrony), or timings in reports are wrong"

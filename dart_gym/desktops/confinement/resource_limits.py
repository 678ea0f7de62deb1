"""What one desktop may use of the machine, and the control groups that hold it to that.

Where this process may make control groups (version 2 or 1; root, or a user to whom systemd delegates), the kernel
counts memory, processes and processors of a desktop as a whole. Elsewhere limits of each process and of the user
namespace take their place, and the first process inside watches the sum (see `first_process`).

Invariants:
    - The groups of a desktop are written down in its directory before they are made, so that a later server finds them.
    - Home, `/tmp` and `/dev/shm` are memory of a given size, in either case.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dart_gym.utils.processes import own_pid_namespace, start_time

log = logging.getLogger(__name__)

EVALUATION_GROUPS = "dart-evaluation"
"""What the names of evaluations' groups begin with."""
GROUPS_FILE = "groups"
CONTROLLERS = ("memory", "pids", "cpu")
_ACCOUNTS = "cpuacct"  # of version 1: counts processor time, as `cpu` of version 2 does; used where it is there
NO_GROUPS = """no control groups may be made: each process is limited, a desktop as a whole only by a watch; \
next step: run the server by systemd-run --user --scope -p Delegate=yes, or as root"""
_PERIOD_US = 100_000
GONE_S = 2.0
_POLL_S = 0.005
_SHARED_LIMITS = {"SIGPENDING": 2048, "MSGQUEUE": 256 << 10, "MEMLOCK": 64 << 20}
_NEARLY_BYTES = 8 << 20  # the kernel takes memory in batches, and ends programs when the next one would be too much
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class DesktopLimits:
    """What the programs of one desktop may use: bytes of memory with all files, and of files in each place for them."""

    memory: int = 4096 * MIB
    processes: int = 1024
    cpus: float = 4.0
    storage: int = 1024 * MIB

    def rlimits(self, *, grouped: bool) -> dict[str, int]:
        """Limits of each process, by resource; `grouped`: control groups count the memory.

        Signals that wait, message queues and locked memory the kernel counts for all processes of a user namespace.
        """
        limits = {"NPROC": self.processes, "CORE": 0, **_SHARED_LIMITS}
        return limits if grouped else {**limits, "DATA": self.memory}


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """The control groups of one desktop: one directory in version 2, one for each controller in version 1, or none."""

    directories: tuple[Path, ...] = ()

    def remove(self) -> None:
        """Kill what is still in them, and remove them."""
        remove_groups(self.directories)

    def ended_for_memory(self) -> int:
        """How many programs the kernel has ended because all together used more memory than they may."""
        for path in (place / name for place in self.directories for name in ("memory.events", "memory.oom_control")):
            with contextlib.suppress(OSError):
                return int(dict(line.split() for line in path.read_text().splitlines()).get("oom_kill", 0))
        return 0

    def processor_seconds(self) -> float:
        """How much processor time all programs have had, ended ones included; 0 where it is not counted."""
        for place in self.directories:
            with contextlib.suppress(OSError):
                usage = dict(line.split() for line in (place / "cpu.stat").read_text().splitlines()).get("usage_usec")
                if usage is not None:  # version 1 has none
                    return int(usage) / 1e6
            with contextlib.suppress(OSError):
                return int((place / "cpuacct.usage").read_text()) / 1e9
        return 0.0

    def short_of_own_memory(self) -> bool:
        """Return whether the kernel has ended programs since these groups were full, not since the machine was.

        A group counts what was ended in it for either reason; only its own limit counts as reached (`oom` in version 2,
        the largest use in version 1).
        """
        if not self.ended_for_memory():
            return False
        for place in self.directories:
            with contextlib.suppress(OSError):
                events = dict(line.split() for line in (place / "memory.events").read_text().splitlines())
                return int(events.get("oom", 0)) > 0
            with contextlib.suppress(OSError):
                most, used = (int((place / f"memory.{name}_in_bytes").read_text()) for name in ("limit", "max_usage"))
                return used > most - _NEARLY_BYTES
        return False


def version_2_settings(limits: DesktopLimits) -> dict[str, str]:
    """File -> content. Pure."""
    return {
        "memory.max": str(limits.memory),
        "memory.swap.max": "0",
        "pids.max": str(limits.processes),
        "cpu.max": f"{round(limits.cpus * _PERIOD_US)} {_PERIOD_US}",
    }


def version_1_settings(controller: str, limits: DesktopLimits) -> dict[str, str]:
    """File -> content, in the order in which the kernel takes them. Pure."""
    return {
        "memory": {"memory.limit_in_bytes": str(limits.memory), "memory.memsw.limit_in_bytes": str(limits.memory)},
        "pids": {"pids.max": str(limits.processes)},
        "cpu": {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(round(limits.cpus * _PERIOD_US))},
        _ACCOUNTS: {},
    }[controller]


_OPTIONAL_FILES = ("memory.swap.max", "memory.memsw.limit_in_bytes")  # kernels without accounting of swap


def make_groups(name: str, limits: DesktopLimits, record: Path) -> ControlGroups:
    """Make the control groups of a desktop, written down in the file `record` first; none where that is not allowed."""
    places = group_places()
    directories = tuple(place / name for place, _ in places)
    if not directories:
        return ControlGroups()
    record.write_text("".join(f"{directory}\n" for directory in directories))
    try:
        for directory, (_, controllers) in zip(directories, places, strict=True):
            directory.mkdir(exist_ok=True)
            if controllers == CONTROLLERS:
                _write(directory, version_2_settings(limits))
            else:
                _write(directory, version_1_settings(controllers[0], limits))
    except OSError as error:
        log.warning("no control group for a desktop could be made, each of its processes is limited instead: %s", error)
        remove_groups(directories)
        return ControlGroups()
    return ControlGroups(directories)


def _write(directory: Path, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        try:
            (directory / name).write_text(value)
        except OSError:
            if name not in _OPTIONAL_FILES:
                raise


@functools.cache
def group_places() -> Sequence[tuple[Path, tuple[str, ...]]]:
    """Directories in which groups may be made, with the controllers of each; () where not all of them can be had."""
    return find_places(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())


def find_places(mountinfo: str, own: str) -> Sequence[tuple[Path, tuple[str, ...]]]:
    """See `group_places`: from the contents of /proc/self/mountinfo and /proc/self/cgroup."""
    mounts = [_Mount.parse(line) for line in mountinfo.splitlines() if " - cgroup" in line]
    paths = {names: path for _, names, path in (line.split(":", 2) for line in own.splitlines())}
    for mount in mounts:
        if mount.kind == "cgroup2" and (place := _version_2_place(mount.under(paths.get("", "/")))):
            return [(place, CONTROLLERS)]
    found = []
    for controller in (*CONTROLLERS, _ACCOUNTS):
        for mount in mounts:
            if mount.kind == "cgroup" and controller in mount.options:
                if controller == _ACCOUNTS and "cpu" in mount.options:
                    break  # in one hierarchy with it
                own_path = next((path for names, path in paths.items() if controller in names.split(",")), "/")
                place = mount.under(own_path)
                if os.access(place, os.W_OK):
                    found.append((place, (controller,)))
                break
    return found if {name for _, names in found for name in names}.issuperset(CONTROLLERS) else []


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy: the part that is mounted (`root`), the place, its kind and its options."""

    root: str
    point: str
    kind: str
    options: frozenset[str]

    @classmethod
    def parse(cls, line: str) -> _Mount:
        left, _, right = line.partition(" - ")
        words, more = left.split(), right.split()
        return cls(words[3], words[4], more[0], frozenset(more[2].split(",")))

    def under(self, path: str) -> Path:
        """Where a group of this hierarchy is seen."""
        return Path(self.point, os.path.relpath(path, self.root)) if path.startswith(self.root) else Path(self.point)


def _version_2_place(own: Path) -> Path | None:
    """The nearest group at or above this process's own in which others may be made that have all controllers.

    A group with processes of its own cannot have groups with limits below it, except for the root: so this process's
    own group will seldom do, and the one above it will where it is delegated to this user.
    """
    for place in (own, *own.parents):
        controllers, enabled = place / "cgroup.controllers", place / "cgroup.subtree_control"
        if not controllers.exists():
            return None  # above the hierarchy
        if not os.access(place, os.W_OK) or not os.access(place / "cgroup.procs", os.W_OK):
            continue
        if not set(CONTROLLERS) <= set(controllers.read_text().split()):
            continue
        with contextlib.suppress(OSError):
            if not set(CONTROLLERS) <= set(enabled.read_text().split()):
                enabled.write_text(" ".join(f"+{name}" for name in CONTROLLERS))
            return place
    return None


def groups_of(pids: Iterable[int]) -> ControlGroups:
    """Return those groups made by this program that hold one of the processes."""
    found = set[Path]()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            names = {line.rpartition("/")[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()}
            found |= {place / name for place, _ in group_places() for name in names if name.startswith("dart-")}
    return ControlGroups(tuple(sorted(path for path in found if path.is_dir())))


def recorded_groups(record: Path) -> list[Path]:
    """The directories of the groups that a desktop had, as written down."""
    try:
        return [Path(line) for line in record.read_text().splitlines()]
    except OSError:
        return []


def group_name(kind: str, rest: str) -> str:
    """A group's name, `<kind>.<pid namespace>.<rest>`: a pid in the rest counts in that namespace."""
    return f"{kind}.{own_pid_namespace().strip('pid:[]')}.{rest}"


def remove_groups_of_the_dead(kind: str) -> None:
    """Remove groups that are named after processes that have ended: those whose rest is `<pid>.<anything>`."""
    for place, _ in group_places():
        for path in place.glob(group_name(kind, "*")):
            pid = path.name.split(".")[2]
            if pid.isdigit() and start_time(int(pid)) is None:
                remove_groups([path])


def remove_groups(directories: Iterable[Path]) -> None:
    """Kill what is in groups and remove them; what cannot be removed within some seconds stays."""
    deadline = time.monotonic() + GONE_S
    for directory in directories:
        while directory.exists():
            with contextlib.suppress(OSError):
                directory.rmdir()
                break
            if time.monotonic() > deadline:
                break
            with contextlib.suppress(OSError):
                for pid in map(int, (directory / "cgroup.procs").read_text().split()):
                    os.kill(pid, 9)
            time.sleep(_POLL_S)

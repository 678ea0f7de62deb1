"""Which processes of a desktop run, and how much they have run, read from outside.

Invariants:
    - Only reads. Nothing inside is run, and no path is opened that a program inside could have replaced.
    - A process that waits for a processor counts as one that runs: a busy machine does not make it look idle.
"""

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

_PROCESS_CLOCK = 2  # CPUCLOCK_SCHED: nanoseconds of all threads, by a process's number (clock_getcpuclockid(3))


class ProcessorDemand:
    """Seconds of processor time that processes have used, or that their first threads have waited for.

    Cheap enough for every look at a screen: what has not run since the last reading has not waited either.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}  # by pid: time of its clock, and demand

    def __call__(self, pids: Iterable[str]) -> dict[str, float]:
        """By pid; those that have ended are missing."""
        seen, self._seen = self._seen, {}
        for pid in pids:
            with suppress(OSError):
                used = time.clock_gettime(~int(pid) << 3 | _PROCESS_CLOCK)
                before = seen.get(pid)
                self._seen[pid] = before if before and before[0] == used else (used, used + _waited(pid))
        return {pid: demand for pid, (_, demand) in self._seen.items()}


def _waited(pid: str) -> float:
    """Seconds that the first thread of a process has waited for a processor; 0 where the kernel does not tell."""
    with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/schedstat", "rb") as file:
        return 1e-9 * int(file.read().split()[1])
    return 0.0


def running_processes(groups: Sequence[Path], root: int) -> dict[str, bool]:
    """Pid -> whether its first thread runs, or waits for processor or disk, at this moment.

    Of the processes in the control `groups` of a desktop, or without groups of `root` and all below it; those that end
    meanwhile may be missing.
    """
    found = {}
    for pid in _grouped(groups[0]) if groups else _below(root):
        with suppress(FileNotFoundError, ProcessLookupError):
            found[pid] = _runs(f"/proc/{pid}/stat")
    return found


def any_thread_runs(pid: str) -> bool:
    """Return whether a thread of a process runs, or waits for a processor or disk; False once it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return any(_runs(f"/proc/{pid}/task/{thread}/stat") for thread in os.listdir(f"/proc/{pid}/task"))
    return False


def _runs(stat: str) -> bool:
    with open(stat, "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"R", b"D")


def _grouped(group: Path) -> list[str]:
    with suppress(OSError):  # the desktop has ended, which others tell
        return (group / "cgroup.procs").read_text().split()
    return []


def _below(root: int) -> list[str]:
    found, left = [], [str(root)]
    while left:
        pid = left.pop()
        found.append(pid)
        with suppress(FileNotFoundError, ProcessLookupError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children") as file:
                    left += file.read().split()
    return found

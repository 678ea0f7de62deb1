"""Which processes of a desktop run, read from outside.

Invariants:
    - Only reads. Nothing inside is run, and no path is opened that a program inside could have replaced.
    - A process that waits for a processor counts as one that runs: a busy machine does not make it look idle.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def running_processes(groups: Sequence[Path], root: int) -> dict[str, bool]:
    """Pid -> whether its first thread runs, or waits for processor or disk, at this moment.

    Of the processes in the control `groups` of a desktop, or without groups of `root` and all below it; those that end
    meanwhile may be missing.
    """
    found = {}
    for pid in _grouped(groups[0]) if groups else _below(root):
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat", "rb") as file:
            found[pid] = file.read().rpartition(b")")[2].split()[0] in (b"R", b"D")
    return found


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

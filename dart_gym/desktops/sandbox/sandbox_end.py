"""The end of a sandbox: its processes, files, control groups and user, in this order.

Invariants:
    - What is given back is given back once nothing uses it: files after the last process, the user after the files.
    - What its programs were refused is kept for `dart-gym doctor`.
"""

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from dart_gym.desktops.confinement.file_removal import remove_tree
from dart_gym.desktops.confinement.machine_settings import kept_directory
from dart_gym.desktops.confinement.resource_limits import ControlGroups
from dart_gym.desktops.confinement.user_ids import UserId
from dart_gym.desktops.sandbox.guest import kill_descendants
from dart_gym.desktops.sandbox.runtime_directory import OWNER_FILE, end_processes, processes_of, remove_display

REFUSED_FILE = "refused"
_MOST_REFUSED = 1000
_LONGEST_END_S = 5.0


@dataclass(slots=True)
class Remains:
    """What is to go at the end of a sandbox.

    Attributes:
        info_fd: descriptor on which bubblewrap names its first process inside.
        handover: connection to that.
        inner: what bubblewrap has named, once it was read.
    """

    process: subprocess.Popen[bytes]
    info_fd: int
    handover: socket.socket
    directory: Path
    user: UserId | None
    groups: ControlGroups
    directories: list[int] = field(default_factory=list)
    inner: int | None = None


def destroy(owner: int, remains: Remains) -> None:
    """Kill a sandbox and remove what belonged to it.

    The init process inside is killed rather than bwrap outside: the kernel ends it only after all others of its pid
    namespace are gone, and bwrap ends after it, so that nothing writes to the directory any more.
    """
    if os.getpid() != owner:
        return  # a forked child that runs its parent's finalizers
    process, directory = remains.process, remains.directory
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            if (inner := inner_pid(remains)) is not None:
                os.kill(inner, signal.SIGKILL)
            else:
                process.terminate()  # no sandbox: the guest kills what it started
        try:
            process.wait(_LONGEST_END_S)
        except subprocess.TimeoutExpired:  # a guest that hangs, or a machine under heavy load
            kill_descendants(process.pid)
            process.kill()
            process.wait()
    else:  # it was killed, perhaps before it could end what it had started
        end_processes(processes_of([directory]))
    for fd in (remains.info_fd, *remains.directories):
        os.close(fd)
    remains.handover.close()
    keep_refused(refused_calls(directory / REFUSED_FILE))
    remains.groups.remove()
    remove_display(directory)  # of a guest that was killed before it could
    remove_tree(directory, last=OWNER_FILE)
    if remains.user is not None:
        remains.user.release()


def inner_pid(remains: Remains) -> int | None:
    """Pid of the init process inside, from `bwrap --info-fd`; None without a sandbox, or when it did not get so far."""
    data, fd = b"", remains.info_fd
    while remains.inner is None and select.select([fd], [], [], _LONGEST_END_S)[0] and (chunk := os.read(fd, 4096)):
        data += chunk
        if match := re.search(rb'"child-pid": (\d+)', data):
            remains.inner = int(match[1])
    return remains.inner


def refused_calls(path: Path) -> list[str]:
    """Return what a file of refused calls says, as "program: call"."""
    found = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        for line in path.read_text(encoding="utf-8").splitlines():
            values = json.loads(line)
            found.append(f"{values['program']}: {values['call']}")
    return found


def keep_refused(calls: list[str]) -> None:
    """Remember refused calls for `kept_refused`, with whose desktop it was."""
    known, whose = _kept(), _whose()
    if new := [[whose, call] for call in calls if [whose, call] not in known]:
        with contextlib.suppress(OSError):
            lines = [f"{json.dumps(entry)}\n" for entry in [*known, *new][-_MOST_REFUSED:]]
            (kept_directory() / REFUSED_FILE).write_text("".join(lines), encoding="utf-8")


def kept_refused() -> list[str]:
    """Return which programs were refused which calls so far, on desktops of this user and this installation."""
    whose = _whose()
    return [call for owner, call in _kept() if owner == whose]


def _whose() -> str:
    """Whose desktops these are: root's file has those of everybody who became root, and of each of their projects."""
    return f"{os.environ.get('SUDO_UID') or os.getuid()} {sys.prefix}"


def _kept() -> list[list[str]]:
    """Pairs of whose desktop and call; what an earlier version or somebody else wrote is left out."""
    try:
        lines = (kept_directory() / REFUSED_FILE).read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines]
    except (OSError, ValueError):
        return []
    return [entry for entry in found if isinstance(entry, list) and len(entry) == 2]

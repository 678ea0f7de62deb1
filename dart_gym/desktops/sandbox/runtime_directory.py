"""Where this user's desktops live on this machine: one directory, what is in it and whose it is.

Invariants:
    - Each entry names its owner: a process by pid, start time and pid namespace, so that neither a pid that is used
      again nor another container that shares the directory is mistaken for it. It does so from its first moment on:
      in its name while it is being made, in its file `owner` afterwards.
    - Only what a dead owner left is removed, with the processes that still use it and the X display that it had.
      What names no owner is not touched.
"""

import contextlib
import itertools
import json
import os
import re
import select
import signal
import socket
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dart_gym.core.errors import DesktopError
from dart_gym.desktops.confinement.file_removal import remove_tree
from dart_gym.desktops.confinement.resource_limits import (
    EVALUATION_GROUPS,
    GROUPS_FILE,
    recorded_groups,
    remove_groups,
    remove_groups_of_the_dead,
)
from dart_gym.desktops.sandbox.log_files import open_directory, read_tail
from dart_gym.utils.processes import has_ended, own_pid_namespace, start_time

DISPLAY_FILE = "display"
OWNER_FILE = "owner"
_NEW = "new"
X_SOCKETS = Path("/tmp/.X11-unix")
_END_S = 5.0
_counter = itertools.count(1)


def runtime_dir(*, make: bool = True) -> Path:
    """The directory of this user's desktops on this machine; created, private to the user, unless `make` is false."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    if len(base) > 60 or not os.access(base, os.W_OK):
        base = "/tmp"  # paths of Unix sockets must stay below 108 bytes
    path = Path(base) / f"dart-gym-{os.getuid()}"
    if make:
        path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise DesktopError(f"{path} belongs to another user; remove it or set XDG_RUNTIME_DIR to a directory of yours")
    return path


def own_directory(prefix: str = "") -> Path:
    """Make a directory `<runtime_dir>/<prefix><pid>-<n>` that this process owns. Raises `OSError`."""
    base = runtime_dir()
    pid = os.getpid()
    number = next(_counter)
    owner = {"pid": pid, "start_time": start_time(pid), "pid_namespace": own_pid_namespace()}
    making = base / f"{_NEW}.{own_pid_namespace().strip('pid:[]')}.{pid}.{owner['start_time']}.{number}"
    path = base / f"{prefix}{pid}-{number}"
    making.mkdir(mode=0o700)
    try:
        (making / OWNER_FILE).write_text(json.dumps(owner))
        making.rename(path)
    except OSError:
        remove_tree(making, last=OWNER_FILE)
        raise
    return path


def clean_leftovers() -> list[Path]:
    """Remove directories of dead owners, end their programs that still run, and return the removed directories."""
    remove_groups_of_the_dead(EVALUATION_GROUPS)
    dead = [path for path in runtime_dir().iterdir() if _owner_is_dead(path)]
    if dead:
        end_processes(processes_of(dead))
    for path in dead:
        remove_groups(recorded_groups(path / GROUPS_FILE))
        remove_display(path)
        remove_tree(path, last=OWNER_FILE)
    return [path for path in dead if not path.exists()]


def _owner_is_dead(path: Path) -> bool:
    owner: dict[str, Any]
    if made := re.fullmatch(rf"{_NEW}\.(\d+)\.(\d+)\.(\d+)\.\d+", path.name):
        owner = {"pid_namespace": f"pid:[{made[1]}]", "pid": int(made[2]), "start_time": int(made[3])}
    else:
        try:
            owner = json.loads((path / OWNER_FILE).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return False  # nobody says whose it is
    return has_ended(owner["pid"], owner["start_time"], owner["pid_namespace"])


def mark(directory: Path) -> dict[str, str]:
    """An environment variable by which `processes_of` knows the programs of a desktop without a sandbox."""
    return {"DART_GYM_DIRECTORY": str(directory)}


def processes_of(directories: Iterable[Path]) -> list[int]:
    """Living processes that belong to desktops in these directories, of all processes of this machine.

    The kernel ends them with their owner. This finds those that it could not: a sandbox whose owner died before it
    had tied itself to it, and programs outside of a sandbox whose own supervisor was killed too.
    """
    directories = list(directories)
    variables = {os.fsencode("=".join(pair)) for path in directories for pair in mark(path).items()}
    mounts = [f"/{path.parent.name}/{path.name}/machine-id /etc/machine-id " for path in directories]
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            mounted = Path(f"/proc/{pid}/mountinfo").read_text()
        except (OSError, UnicodeDecodeError):
            continue  # it has ended, or belongs to somebody else
        if not variables.isdisjoint(environment) or any(mount in mounted for mount in mounts):
            found.append(pid)
    return found


def end_processes(pids: Iterable[int]) -> None:
    """Kill processes and wait until they are gone; at most `_END_S`, for one in the kernel's hands may take long."""
    deadline = time.monotonic() + _END_S
    with contextlib.ExitStack() as stack:
        waiting = []
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            stack.callback(os.close, fd)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            waiting.append(fd)
        while waiting and (left := deadline - time.monotonic()) > 0:
            ended, _, _ = select.select(waiting, [], [], left)
            waiting = [fd for fd in waiting if fd not in ended]


def remove_display(path: Path) -> None:
    """Remove the socket of a killed X server that used the displays of this machine (no sandbox)."""
    try:
        directory = open_directory(path)
    except OSError:
        return
    try:
        number = read_tail(directory, "shared", "log", DISPLAY_FILE, most=10)
    finally:
        os.close(directory)
    display = X_SOCKETS / f"X{number}"
    if number.isdigit() and is_deserted(display):
        display.unlink(missing_ok=True)


def is_deserted(path: Path) -> bool:
    """Return whether a Unix socket is there, on which nobody listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False  # gone, or of somebody who is busy
    return False

"""Unprivileged users of this machine, one for each desktop (and each evaluation) of a server that runs as root.

Programs never have the rights of root, and never those of another desktop. A server of an ordinary user has no choice:
its desktops run as that user, in user namespaces of their own.

Invariants:
    - A number is used by one desktop at a time on this machine, for all servers: it is locked by a file that
      the kernel unlocks when its holder ends.
    - A number whose last holder died is given out again only after all processes that had it are gone.
"""

import contextlib
import fcntl
import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dart_gym.core.errors import ConfigurationError, MissingDependencyError

VARIABLE = "DART_GYM_UIDS"
LOCKS = Path("/run/dart-gym/uids")
_FIRST, _COUNT = 1_900_000_000, 4096  # a range that Linux distributions leave free (systemd's UIDS-GIDS)
_MAPPED_COUNT = 1024  # of the last ones, in a container that has few
_CAPABILITIES = {"CAP_CHOWN": 0, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7}
_IN_USE, _FREE = b"in use", b""
_END_S = 10.0


@dataclass(frozen=True, slots=True)
class UserId:
    """A number, uid and gid in one, that is taken until `release`."""

    number: int
    lock: int

    def end_processes(self) -> None:
        """Kill every process of this user, wherever it is."""
        command = [*as_user(self.number), "/bin/sh", "-c", "kill -9 -1"]  # the kernel spares only who may not be asked
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=_END_S, check=False)

    def release(self) -> None:
        """Give the number back, after its last process is gone."""
        with contextlib.suppress(OSError):
            os.ftruncate(self.lock, 0)
        with contextlib.suppress(OSError):
            os.close(self.lock)


def as_user(number: int) -> list[str]:
    """The start of a command that runs the rest as this user, without more rights. Raises `MissingDependencyError`."""
    program = shutil.which("setpriv")
    if program is None:
        raise MissingDependencyError(
            "setpriv is missing, by which a server that runs as root gives its desktops users of their own; next step: "
            "apt-get install util-linux, or run the server as an ordinary user"
        )
    return [
        program,
        f"--reuid={number}",
        f"--regid={number}",
        "--clear-groups",
        "--inh-caps=-all",
        "--no-new-privs",
        "--",
    ]


def let_read(*places: Path) -> None:
    """Let every user read these files and directories, and all below them, whatever the umask of this process is."""
    for place in places:
        _add_mode(place)
        for directory, folders, files in os.walk(place):
            for name in (*folders, *files):
                _add_mode(Path(directory, name))


def _add_mode(path: Path) -> None:
    mode = path.lstat().st_mode
    if not stat.S_ISLNK(mode):
        path.chmod(stat.S_IMODE(mode) | (0o555 if mode & stat.S_IXUSR else 0o444))


def take_user_id() -> UserId | None:
    """A desktop's user; None for an ordinary user's server. Raises `MissingDependencyError`, `ConfigurationError`."""
    if os.geteuid() != 0:
        return None
    _check_capabilities()
    LOCKS.mkdir(mode=0o700, parents=True, exist_ok=True)
    numbers = uid_range(os.environ.get(VARIABLE), Path("/proc/self/uid_map").read_text())
    for number in numbers:
        if (taken := _take(number)) is not None:
            return taken
    raise ConfigurationError(
        f"all {len(numbers)} user ids from {numbers[0]} to {numbers[-1]} are taken by desktops; next step: name a "
        f"wider range with {VARIABLE}=FIRST-LAST"
    )


def _take(number: int) -> UserId | None:
    fd = os.open(LOCKS / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    taken = UserId(number, fd)
    if os.pread(fd, len(_IN_USE), 0):
        taken.end_processes()  # of a holder that died
    elif _belongs_to_somebody(number):
        os.close(fd)
        return None
    os.pwrite(fd, _IN_USE, 0)
    return taken


def _belongs_to_somebody(number: int) -> bool:
    try:
        pwd.getpwuid(number)
    except KeyError:
        return False
    return True


def uid_range(named: str | None, uid_map: str) -> range:
    """Which numbers desktops get: "FIRST-LAST" where `named`, else nobody's. Pure. Raises `ConfigurationError`."""
    maps = [tuple(map(int, line.split())) for line in uid_map.splitlines()]
    mapped = [range(first, first + count) for first, _, count in maps]
    if named:
        first, _, last = named.partition("-")
        if not first.isdigit() or not last.isdigit() or not 0 < int(first) <= int(last):
            raise ConfigurationError(f"{VARIABLE}={named} is no range of user ids; next step: write FIRST-LAST")
        wanted = range(int(first), int(last) + 1)
        if not any(wanted[0] in part and wanted[-1] in part for part in mapped):
            raise ConfigurationError(f"{VARIABLE}={named} is not within the user ids that this container has: {maps}")
        return wanted
    wanted = range(_FIRST, _FIRST + _COUNT)
    if any(wanted[0] in part and wanted[-1] in part for part in mapped):
        return wanted
    largest = max(mapped, key=len, default=range(0))
    if len(largest) < 2 * _MAPPED_COUNT:
        raise ConfigurationError(
            f"this container has {len(largest)} user ids, too few to give each desktop one; next step: map 65536, "
            f"name some with {VARIABLE}=FIRST-LAST, or run the server as an ordinary user"
        )
    return range(largest[-1] - _MAPPED_COUNT - 8, largest[-1] - 8)  # the last ones are "nobody"


def _check_capabilities() -> None:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    held = int(status["CapEff"], 16)
    if missing := [name for name, bit in _CAPABILITIES.items() if not held & 1 << bit]:
        raise MissingDependencyError(
            f"this process is root without {', '.join(missing)}, so that it cannot run its desktops as other users; "
            "next step: run it as an ordinary user, or give it these capabilities"
        )

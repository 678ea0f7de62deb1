"""How bubblewrap is asked for a sandbox: namespaces, the parts of the machine that are shown, and the user it runs as.

Invariants:
    - Of the machine nothing is shown but what is named here: programs and libraries, and of `/etc` and `/opt` what
      Debian's applications read. All of it is read-only, `/proc/sys` too; there is no `/sys` and no cgroup.
    - What can be written to is memory of a given size.
    - No program inside can make namespaces, and none has a capability.
"""

import functools
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from dart_gym.core.errors import MissingDependencyError
from dart_gym.desktops.confinement.user_ids import UserId, as_user

GUEST_PYTHON = "/usr/bin/python3"
SECCOMP = "/proc/sys/kernel/seccomp/actions_avail"
_NEEDED_OPTIONS = ("--disable-userns", "--size", "--as-pid-1", "--info-fd")
_OLDEST = "0.8"
STAGE = Path("/run/dart-gym/stage")
WORKSPACE = "/tmp_workspace"  # where newer bundles of CUA-Gym have their files; a link into /tmp
_BINDS = ("--bind", "--ro-bind", "--ro-bind-try")
_USER_LIMITS = "/proc/sys/user"
_SHARES = {"max_inotify_instances": 16, "max_inotify_watches": 8192}  # at least, for a desktop full of applications
_SHARED_BY = 10
_USER_NAMESPACE = ("unshare", "--user", "--map-root-user", "--")
_SMALL = 64 << 20  # bytes of a directory in memory that little belongs into
_OOM_SCORE = 500  # of -1000 to 1000: when the machine is short of memory, desktops go before servers

# What may be installed in /opt.
_OPTIONAL_PROGRAMS = ("google", "chromium.org", "brave.com", "microsoft", "firefox", "libreoffice*", "vivaldi*")


def missing_parts() -> str | None:
    """Return what is missing on this machine to start bubblewrap, with the next step; None when nothing is."""
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed; next step: apt-get install bubblewrap (or choose --isolation none)"
    text, version = _help(program)
    lacking = [option for option in _NEEDED_OPTIONS if option not in text]
    if text and lacking:
        return (
            f"{version} is too old: it has no {', '.join(lacking)}, without which programs could make namespaces and "
            f"fill the memory; next step: install bubblewrap {_OLDEST} or newer (or choose --isolation none)"
        )
    if not os.path.exists(SECCOMP):
        return (
            "this kernel has no seccomp, so that programs could make any system call; next step: use a kernel with "
            "CONFIG_SECCOMP_FILTER (or choose --isolation none)"
        )
    return None


@functools.cache
def _help(program: str) -> tuple[str, str]:
    try:
        found = [
            subprocess.run([program, option], capture_output=True, text=True, timeout=20, check=False).stdout
            for option in ("--help", "--version")
        ]
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{program} ({error})"
    return found[0], found[1].strip() or program


def namespaces(hostname: str) -> list[str]:
    """Arguments of bubblewrap for namespaces of its own, without capabilities and without a way to more."""
    return [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"),
        *("--hostname", hostname, "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    ]


def system_directories(settings: Path) -> list[str]:
    """Arguments of bubblewrap that show the machine's programs, libraries and `machine_settings`, read-only."""
    args = ["--ro-bind", "/usr", "/usr", "--ro-bind", str(settings), "/etc"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            args += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            args += ["--ro-bind", str(path), str(path)]
    for pattern in _OPTIONAL_PROGRAMS:
        for found in map(str, Path("/opt").glob(pattern)):
            args += ["--ro-bind-try", found, found]
    return args


def kernel_directories(shared_memory: int) -> list[str]:
    """Arguments for `/proc` and `/dev`, of which nothing can be changed; `shared_memory` is the size of /dev/shm.

    `oom_score_adj` cannot be lowered in a `/proc` that is read-only: the kernel would let a program lower its own to
    that of its server, and end a keeper in its place.
    """
    return [
        *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--remount-ro", "/proc", "--dev", "/dev"),
        *("--remount-ro", "/dev", *memory_directory("/dev/shm", shared_memory, "1777")),
    ]


def memory_directory(path: str, size: int, mode: str = "0755") -> list[str]:
    """Arguments for a directory in memory of at most `size` bytes."""
    return ["--perms", mode, "--size", str(size), "--tmpfs", path]


def desktop_skeleton(settings: Path, storage: int) -> list[str]:
    """Arguments of bubblewrap for all that desktops have in common; `storage` is the bytes of each place for files."""
    return [
        *(*namespaces("desktop"), "--as-pid-1", *system_directories(settings), *kernel_directories(storage)),
        *(*memory_directory("/tmp", storage, "1777"), "--perms", "1777", "--dir", "/tmp/.X11-unix"),
        *(*memory_directory("/run", _SMALL), "--perms", "0700", "--dir", "/run/user/1000"),
        *(*memory_directory("/var/tmp", _SMALL, "1777"), *memory_directory("/home/user", storage)),
        *("--ro-bind-try", "/var/cache/fontconfig", "/var/cache/fontconfig"),
        *("--symlink", "/tmp/tmp_workspace", WORKSPACE),
    ]


def everybody_passes(path: Path) -> bool:
    """Return whether any user of this machine may search a directory and all those above it."""
    return all(directory.stat().st_mode & 0o001 for directory in (path.absolute(), *path.absolute().parents))


class Stage:
    """Where a sandbox's user finds what root alone can reach: `mounts` (source -> place) for the started processes."""

    def __init__(self, user: UserId | None) -> None:
        self._active = user is not None
        self.mounts: dict[str, str] = {}

    def place(self, path: Path) -> Path:
        """Where that user finds a path: there, or below a place that what leads to it is mounted on."""
        path = path.absolute()
        closed = [parent for parent in path.parents if not parent.stat().st_mode & 0o001] if self._active else []
        if not closed:
            return path
        rest = path.relative_to(closed[0]).parts  # the deepest directory that is closed
        source = str(closed[0] / rest[0])
        if source not in self.mounts:
            self.mounts[source] = _mount_point(len(self.mounts), directory=os.path.isdir(source))
        return Path(self.mounts[source], *rest[1:])

    def arguments(self, arguments: list[str]) -> list[str]:
        """Arguments of bubblewrap whose sources that user can reach."""
        changed = list(arguments)
        for index, word in enumerate(arguments[:-1]):
            if word in _BINDS and os.path.exists(source := arguments[index + 1]):
                changed[index + 1] = str(self.place(Path(source)))
        return changed


def _mount_point(number: int, *, directory: bool) -> str:
    """A path at which something can be mounted; what is there is never seen."""
    STAGE.mkdir(parents=True, exist_ok=True)
    path = STAGE / f"{'directory' if directory else 'file'}-{number}"
    if directory:
        path.mkdir(exist_ok=True)
    else:
        path.touch()
    for place in (STAGE.parent, STAGE, path):  # whatever root's umask is
        place.chmod(0o644 if place.is_file() else 0o755)
    return str(path)


@functools.cache
def shared_limits() -> Mapping[str, int]:
    """Return what one sandbox of an ordinary user may take of what the kernel counts for the user: file -> number.

    Root gives each sandbox a user of its own, with all of it. An ordinary user's sandboxes are that user, and one of
    them could take all; a user namespace around a sandbox has limits of its own. None where no such can be made.
    """
    found = {name: int(Path(_USER_LIMITS, name).read_text()) for name in _SHARES if Path(_USER_LIMITS, name).exists()}
    limits = {name: max(most // _SHARED_BY, min(_SHARES[name], most)) for name, most in found.items()}
    return limits if limits and _can_limit() else {}


def _can_limit() -> bool:
    probe = [*_USER_NAMESPACE, "/bin/sh", "-ec", f"echo 100 > {_USER_LIMITS}/max_inotify_instances"]
    try:
        return subprocess.run(probe, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False  # such as where only bubblewrap may make namespaces


def launcher(
    user: UserId | None, groups: Iterable[Path], mounts: Mapping[str, str], limits: Mapping[str, int] | None = None
) -> list[str]:
    """The beginning of a command that runs the rest as a user, in control groups. Raises `MissingDependencyError`.

    `limits`, as of `shared_limits`, are those of a user namespace in which it runs; none without any.
    """
    if limits and user is None:
        plain = launcher(None, groups, mounts)
        lines = [f"echo {number} > {_USER_LIMITS}/{name}" for name, number in limits.items()]
        return [*_USER_NAMESPACE, "/bin/sh", "-ec", "\n".join([*lines, 'exec "$@"']), "limits", *plain]
    lines = ["umask 022"]  # the same on every machine: programs of the desktop have it
    lines += [f"echo 0 > {shlex.quote(str(group / 'cgroup.procs'))}" for group in groups]
    lines += [f"mount --bind {shlex.quote(source)} {shlex.quote(place)}" for source, place in mounts.items()]
    lines += [f"echo {_OOM_SCORE} > /proc/self/oom_score_adj", 'exec "$@"']
    started = ["/bin/sh", "-ec", "\n".join(lines), "sandbox", *(as_user(user.number) if user is not None else ())]
    if not mounts:
        return started
    unshare = shutil.which("unshare")
    if unshare is None:
        raise MissingDependencyError("unshare is missing; next step: apt-get install util-linux")
    return [unshare, "--mount", "--propagation", "private", "--", *started]

"""One desktop's own little machine: a bubblewrap sandbox, or plain processes where the user asked for that.

Inside a sandbox are an own user, pid, network, IPC and mount namespace: `/usr` and `/etc` are read-only, `/home/user`,
`/tmp` and `/run` belong to the desktop, so two desktops can use the same ports and paths.

Invariants:
    - Everything on the host lies below one directory `<runtime_dir>/<pid>-<n>`, which names its owner (see `runtime`).
    - Nothing outlives the owner: the kernel kills the sandbox when the thread that started it ends (also by kill -9);
      the directory of a dead owner is removed by `clean_leftovers`, which each process calls before its first sandbox.
    - The host never opens a path that a program inside could have replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dart_gym.core.errors import DesktopError, MissingDependencyError
from dart_gym.desktops.sandbox.guest import kill_descendants
from dart_gym.desktops.sandbox.log_files import open_directory, read_tail
from dart_gym.desktops.sandbox.openbox_config import openbox_config
from dart_gym.desktops.sandbox.osworld_profile import Machine, osworld_machine
from dart_gym.desktops.sandbox.runtime_directory import (
    clean_leftovers,
    end_processes,
    own_directory,
    processes_of,
    runtime_dir,
)

GUEST_PYTHON = "/usr/bin/python3"
_GUEST = Path(__file__).with_name("guest.py")
_INSIDE = "/run/desktop"
_PROGRAMS = {"Xvfb": "xvfb", "openbox": "openbox", "dbus-daemon": "dbus", "xkbcomp": "x11-xkb-utils"}
_MAX_SOCKET_PATH = 107
_LOG_TAIL = 2000
LOG_MARK = "\n--- end of "
_LONGEST_END_S = 5.0
_FULL_BYTES = 1 << 20
_cleaned = False

# Secrets of the host that its own root user could otherwise read inside.
_MASKED_FILES = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/krb5.keytab")
_MASKED_DIRS = ("/etc/ssl/private", "/etc/ssh", "/etc/sudoers.d", "/etc/letsencrypt", "/etc/NetworkManager")


def check_sandbox() -> str | None:
    """Why sandboxes do not work on this machine, with the next step; None when they do."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed; next step: apt-get install bubblewrap (or choose sandbox: none)"
    command = [str(shutil.which("bwrap")), *_namespaces(), *_file_system(), GUEST_PYTHON, "-I", "-S", "-c", ""]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return "bwrap did not start a program within 20 s; next step: run it by hand, the machine may be overloaded"
    return None if result.returncode == 0 else _explain(result.stderr.strip())


def _explain(message: str) -> str:
    """Find out which setting of the machine forbids sandboxes."""
    text = f"bwrap cannot make a sandbox: {message or 'no message'}; next step: "
    for setting, allowed in (
        ("kernel.unprivileged_userns_clone", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "0"),
    ):
        file = Path("/proc/sys") / setting.replace(".", "/")
        if os.getuid() != 0 and file.exists() and file.read_text().strip() != allowed:
            return text + f"sudo sysctl -w {setting}={allowed} (or choose sandbox: none)"
    limit = Path("/proc/sys/user/max_user_namespaces")
    if limit.exists() and limit.read_text().strip() == "0":
        return text + "sudo sysctl -w user.max_user_namespaces=10000 (or choose sandbox: none)"
    if GUEST_PYTHON in message:
        return text + "apt-get install python3 (the desktop's helper runs on the system's Python)"
    return text + (
        "in a container, start it with --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
        "--security-opt systempaths=unconfined; or choose sandbox: none"
    )


def missing_programs() -> dict[str, str]:
    """The programs that a bare desktop needs and this machine lacks, with the Debian package of each."""
    return {program: package for program, package in _PROGRAMS.items() if shutil.which(program) is None}


def _namespaces() -> list[str]:
    return [
        "--unshare-all",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--hostname",
        "desktop",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
    ]


def system_directories() -> list[str]:
    """Arguments of bubblewrap that show the machine's programs and libraries, read-only."""
    args = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            args += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            args += ["--ro-bind", str(path), str(path)]
    return args


def _file_system() -> list[str]:
    args = [*system_directories(), "--ro-bind", "/etc", "/etc"]
    args += ["--ro-bind-try", "/opt", "/opt", "--proc", "/proc", "--dev", "/dev"]
    args += ["--tmpfs", "/tmp", "--tmpfs", "/run", "--tmpfs", "/var/tmp"]
    args += ["--ro-bind-try", "/var/cache/fontconfig", "/var/cache/fontconfig"]
    args += ["--perms", "0700", "--dir", "/run/user/1000"]
    for file in _MASKED_FILES:
        args += ["--ro-bind", "/dev/null", file] if os.path.exists(file) else []
    for directory in _MASKED_DIRS:
        args += ["--tmpfs", directory] if os.path.isdir(directory) else []
    return args


class Sandbox:
    """The namespaces, processes and files of one desktop.

    Must be made in a thread that lives at least as long as the desktop: the kernel ties the two together.

    Args:
        kind: "bwrap" or "none".
        screen: width and height in pixels.
        env: extra environment variables of the programs inside.
        profile: "osworld" for the machine that OSWorld's tasks expect; others add nothing here.
        prefix: what the name of its directory begins with.

    Raises:
        MissingDependencyError: a program or a right is missing.

    Attributes:
        directory: where the host keeps what belongs to this desktop.
        shared: the part of it that programs inside see (as `inside`): framebuffer and logs.
        guest_socket: where `guest.py` answers.
    """

    def __init__(
        self, kind: str, screen: tuple[int, int], env: dict[str, str], profile: str = "bare", prefix: str = ""
    ) -> None:
        self.kind = kind
        self.isolated = kind == "bwrap"
        self._check_programs()
        self.directory = make_directory(prefix)
        try:
            self._lay_out(profile)
            self._process, self._info_fd = self._spawn(screen, {**self._machine.env, **env})
        except OSError as error:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise _cannot_write(self.directory, error) from error
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        args = (os.getpid(), self._process, self._info_fd, self.directory, self._log_fd)
        self._finalizer = weakref.finalize(self, _destroy, *args)

    def _check_programs(self) -> None:
        if missing := missing_programs():
            packages = " ".join(sorted(set(missing.values())))
            raise MissingDependencyError(f"a desktop needs {', '.join(missing)}; next step: apt-get install {packages}")
        if not os.path.exists(GUEST_PYTHON):
            raise MissingDependencyError(f"a desktop needs {GUEST_PYTHON}; next step: apt-get install python3")
        if self.isolated and shutil.which("bwrap") is None:
            raise MissingDependencyError(str(check_sandbox()))

    def _lay_out(self, profile: str) -> None:
        self.shared = self.directory / "shared"
        self.log_dir = self.shared / "log"
        self.home = self.directory / "home"
        self.x11 = self.directory / "x11"
        self.guest_socket = self.directory / "guest.sock"
        self.inside = _INSIDE if self.isolated else str(self.shared)
        for path in (self.log_dir, self.home, self.x11, self.directory / "tmp"):
            path.mkdir(parents=True)
        self._log_fd = open_directory(self.log_dir)  # while it is what was made here
        self.x11.chmod(0o1777)
        self._machine = Machine()
        if profile == "osworld":
            self._machine = osworld_machine(self.directory / "machine", self.home, isolated=self.isolated)
        (self.shared / "openbox.xml").write_text(openbox_config(terminal_key=self._machine.terminal_key))
        (self.directory / "passwd").write_text(
            "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/bash\n"
        )
        (self.directory / "group").write_text("root:x:0:\nuser:x:1000:\n")
        (self.directory / "machine-id").write_text(secrets.token_hex(16) + "\n")

    def _spawn(self, screen: tuple[int, int], env: dict[str, str]) -> tuple[subprocess.Popen[bytes], int]:
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(self.guest_socket))
            listener.listen(128)  # from here on the host can connect: there is nothing to wait for
            info_read, info_write = os.pipe()
            stack.callback(os.close, info_write)
            log = stack.enter_context(open(self.log_dir / "guest.log", "ab"))
            fds = [listener.fileno()]
            plan = self._plan(screen, listener.fileno())
            guest = "/run/guest.py" if self.isolated else str(_GUEST)
            command = [GUEST_PYTHON, "-I", "-S", guest, json.dumps(plan)]
            if self.isolated:
                arguments = stack.enter_context(tempfile.TemporaryFile())
                arguments.write(b"\0".join(os.fsencode(word) for word in self._bwrap_arguments(info_write)))
                arguments.seek(0)
                fds += [info_write, arguments.fileno()]
                # through a file: `ps` inside shows the command line of its first process, and `grep` would find in it
                # the names of programs that do not run
                command = [str(shutil.which("bwrap")), "--args", str(arguments.fileno()), "--", *command]
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=self._environment(env),
                    pass_fds=fds,
                    start_new_session=True,
                )
            except BaseException:
                os.close(info_read)
                raise
        return process, info_read

    def _bwrap_arguments(self, info_fd: int) -> list[str]:
        machine_id = "/etc/machine-id" if os.path.exists("/etc/machine-id") else "/var/lib/dbus/machine-id"
        return [
            *(*_namespaces(), "--info-fd", str(info_fd), *_file_system()),
            *("--ro-bind", str(self.directory / "passwd"), "/etc/passwd"),
            *("--ro-bind", str(self.directory / "group"), "/etc/group"),
            *("--ro-bind", str(self.directory / "machine-id"), machine_id),
            *("--bind", str(self.home), "/home/user", "--bind", str(self.shared), _INSIDE),
            *("--bind", str(self.x11), "/tmp/.X11-unix", "--ro-bind", str(_GUEST), "/run/guest.py"),
            *self._machine.mounts,
        ]

    def _plan(self, screen: tuple[int, int], listen_fd: int) -> dict[str, Any]:
        """What `guest.py` is to start."""
        width, height = screen
        display = [":0"] if self.isolated else []
        bus = "/run/user/1000/bus" if self.isolated else f"{self.inside}/bus"
        return {
            "listen_fd": listen_fd,
            "isolated": self.isolated,
            "log_dir": f"{self.inside}/log",
            "display_server": [
                *("Xvfb", *display, "-screen", "0", f"{width}x{height}x24", "-dpi", "96", "-fbdir", self.inside),
                *("-nolisten", "tcp", "-extension", "GLX", "-noreset", "-s", "0", "-maxclients", "2048", "-displayfd"),
            ],
            "message_bus": [
                *("dbus-daemon", "--session", f"--address=unix:path={bus}"),
                *("--nofork", "--nopidfile", "--nosyslog", "--print-address"),
            ],
            "window_manager": ["openbox", "--sm-disable", "--config-file", f"{self.inside}/openbox.xml"],
        }

    def _environment(self, extra: dict[str, str]) -> dict[str, str]:
        """Environment of everything inside: nothing of the host's (which may hold secrets) but the search path."""
        home = "/home/user" if self.isolated else str(self.home)
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/games",
            "HOME": home,
            "USER": "user",
            "LOGNAME": "user",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp" if self.isolated else str(self.directory / "tmp"),
            "XDG_RUNTIME_DIR": "/run/user/1000" if self.isolated else home,
            "XDG_SESSION_TYPE": "x11",
            "XDG_CURRENT_DESKTOP": "GNOME",
            "GSK_RENDERER": "cairo",  # else GTK 4 draws by OpenGL in software: seconds instead of milliseconds a frame
            "NO_AT_BRIDGE": "1",  # the accessibility bus costs each program a start; a profile can switch it on
            **({"DISPLAY": ":0"} if self.isolated else {}),
            **extra,
        }

    @property
    def alive(self) -> bool:
        """Whether the sandbox still runs."""
        return self._finalizer.alive and self._process.poll() is None

    async def ended(self) -> None:
        """Return when it runs no more."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        try:
            fd = os.pidfd_open(self._process.pid)
        except ProcessLookupError:
            return  # it has ended, and somebody knows
        try:
            loop.add_reader(fd, over.set)
            await over.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)

    def display_socket(self, number: int) -> Path:
        """Where the X server listens, seen from the host."""
        return (self.x11 if self.isolated else Path("/tmp/.X11-unix")) / f"X{number}"

    @contextlib.contextmanager
    def listener(self, name: str) -> Iterator[tuple[Path, socket.socket]]:
        """A listening Unix socket of this desktop, bound by the host; closed here after the guest has taken it over."""
        path = self.directory / name
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(128)
            yield path, listener

    def log_tail(self, *names: str) -> str:
        """The last lines of logs, for an error message; "" when they are empty."""
        parts = []
        for name in names:
            text = read_tail(self._log_fd, f"{name}.log", most=_LOG_TAIL) if self._finalizer.alive else ""
            if text:
                parts.append(f"{LOG_MARK}{name}.log:\n{text}")
        return "".join(parts)

    def disk_note(self) -> str:
        """The cause of what else may be wrong, when it is a full disk; else ""."""
        try:
            disk = os.statvfs(self.directory)
        except OSError:
            return ""  # stopped in between
        return f" (the disk of {self.directory} is full)" if disk.f_bavail * disk.f_frsize < _FULL_BYTES else ""

    def destroy(self) -> None:
        """Kill everything inside, wait until it is gone, remove the directory. Idempotent; blocks some 10 ms."""
        self._finalizer()


def make_directory(prefix: str = "") -> Path:
    """A directory of this process's own for one desktop, private to the user; the caller removes it."""
    global _cleaned
    if not _cleaned:
        _cleaned = True
        clean_leftovers()
    try:
        path = own_directory(prefix)
    except OSError as error:
        raise _cannot_write(runtime_dir(), error) from error
    if len(str(path / "port-65535.sock")) > _MAX_SOCKET_PATH:
        shutil.rmtree(path, ignore_errors=True)
        raise DesktopError(f"the path {path} is too long for sockets; set XDG_RUNTIME_DIR to a shorter one")
    return path


def _cannot_write(path: Path, error: OSError) -> DesktopError:
    return DesktopError(
        f"cannot lay out a desktop in {path}: {error.strerror or error}; next step: free some space there, or set "
        "XDG_RUNTIME_DIR to a directory on another disk"
    )


def _destroy(owner: int, process: subprocess.Popen[bytes], info_fd: int, directory: Path, log_fd: int) -> None:
    """Kill a sandbox and remove its directory.

    The init process inside is killed rather than bwrap outside: the kernel ends it only after all others of its pid
    namespace are gone, and bwrap ends after it, so that nothing writes to the directory any more.
    """
    if os.getpid() != owner:
        return  # a forked child that runs its parent's finalizers
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            if (inner := _inner_pid(info_fd)) is not None:
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
    os.close(info_fd)
    os.close(log_fd)
    shutil.rmtree(directory, ignore_errors=True)


def _inner_pid(info_fd: int) -> int | None:
    """Pid of the init process inside, from `bwrap --info-fd`; None without a sandbox, or when it did not get so far."""
    data = b""
    while select.select([info_fd], [], [], _LONGEST_END_S)[0] and (chunk := os.read(info_fd, 4096)):
        data += chunk
        if match := re.search(rb'"child-pid": (\d+)', data):
            return int(match[1])
    return None

"""One desktop's own little machine: a bubblewrap sandbox, or plain processes where the user asked for that.

Inside a sandbox are an own user, pid, network, IPC and mount namespace: `/usr` and `/etc` are read-only, `/home/user`,
`/tmp` and `/run` belong to the desktop, so two desktops can use the same ports and paths.

Invariants:
    - Everything on the host lies below one directory `<runtime_dir>/<pid>-<n>`, which names its owner (see `runtime`).
    - Nothing outlives the owner: the kernel kills the sandbox when the thread that started it ends (also by kill -9);
      the directory of a dead owner is removed by `clean_leftovers`, which each process calls before its first sandbox.
    - The host never opens a path that a program inside could have replaced.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

from dart_gym.core.errors import DesktopError, MissingDependencyError
from dart_gym.core.os_remedies import remedy
from dart_gym.core.project_pages import page
from dart_gym.desktops.confinement import first_process
from dart_gym.desktops.confinement.bubblewrap import (
    GUEST_PYTHON,
    Stage,
    desktop_skeleton,
    launcher,
    memory_directory,
    missing_parts,
    shared_limits,
)
from dart_gym.desktops.confinement.file_removal import remove_tree
from dart_gym.desktops.confinement.machine_settings import kept_place, settings_copy
from dart_gym.desktops.confinement.resource_limits import GROUPS_FILE, MIB, DesktopLimits, group_name, make_groups
from dart_gym.desktops.confinement.running_processes import running_processes
from dart_gym.desktops.confinement.system_calls import system_call_filter
from dart_gym.desktops.confinement.user_ids import UserId, as_user, let_read, take_user_id
from dart_gym.desktops.sandbox import guest, loopback_port
from dart_gym.desktops.sandbox.desktop_plan import Places, account_files, cookie_file, guest_environment, guest_plan
from dart_gym.desktops.sandbox.log_files import read_tail, tail_of
from dart_gym.desktops.sandbox.openbox_config import openbox_config
from dart_gym.desktops.sandbox.osworld_profile import Machine, osworld_machine
from dart_gym.desktops.sandbox.osworld_settings import EVERY_HOME, SYSTEM_FILES
from dart_gym.desktops.sandbox.runtime_directory import OWNER_FILE, clean_leftovers, mark, own_directory, runtime_dir
from dart_gym.desktops.sandbox.sandbox_check import missing_programs
from dart_gym.desktops.sandbox.sandbox_end import REFUSED_FILE, Remains, destroy, inner_pid, refused_calls

_PROGRAMS = (Path(first_process.__file__), Path(guest.__file__))
_SKELETON = "/run/skeleton"
_MAX_SOCKET_PATH = 107
_LOG_TAIL = 2000
LOG_MARK = "\n--- end of "
_FULL_BYTES = 1 << 20
_LOG_BYTES = 64 * MIB
_PIXEL_BYTES, _HEADER_BYTES = 4, 1 * MIB
_PASSABLE = 0o711  # a user who knows a name in it can open it, and nobody can list the names
_SHARED, _LOGS, _X11 = range(3)  # what the first process hands over
_SIGNALLED = 128  # and above: the exit status that stands for a signal
_cleaned = False


class Sandbox:
    """The namespaces, processes and files of one desktop.

    Must be made in a thread that lives at least as long as the desktop: the kernel ties the two together.

    Args:
        profile: "osworld" for the machine that OSWorld's tasks expect; others add nothing here.
        hosts: names that lead to its own loopback.

    Raises:
        MissingDependencyError: a program or a right is missing.

    Attributes:
        shared: the part of it that programs inside see (as `inside`): framebuffer and logs.
    """

    def __init__(
        self,
        kind: str,
        screen: tuple[int, int],
        env: dict[str, str],
        profile: str = "bare",
        limits: DesktopLimits | None = None,
        prefix: str = "",
        hosts: Sequence[str] = (),
    ) -> None:
        self.isolated = kind == "bwrap"
        self.limits = limits or DesktopLimits()
        self._hosts = hosts
        self._check_programs(profile)
        self.directory = make_directory(prefix)
        with contextlib.ExitStack() as undo:
            undo.callback(remove_tree, self.directory, last=OWNER_FILE)
            try:
                self._user = take_user_id()
                if self._user is not None:
                    undo.callback(self._user.release)
                self._stage = Stage(self._user)
                name = group_name("dart-gym", self.directory.name)
                self._groups = make_groups(name, self.limits, self.directory / GROUPS_FILE)
                undo.callback(self._groups.remove)
                self._lay_out(profile)
                self._process, self._info_fd = self._spawn(screen, {**self._machine.env, **env})
            except OSError as error:
                raise _cannot_write(self.directory, error) from error
            undo.pop_all()
        self._rest = Remains(self._process, self._info_fd, self._handover, self.directory, self._user, self._groups)
        self._finalizer = weakref.finalize(self, destroy, os.getpid(), self._rest)

    def _check_programs(self, profile: str) -> None:
        if missing := missing_programs(profile, isolated=self.isolated):
            packages = " ".join(sorted(set(missing.values())))
            raise MissingDependencyError(
                f"a desktop needs {', '.join(missing)}; next step: apt-get install {packages}, or where Docker is: "
                f"pip install 'dart-gui[docker]' and build the image dart-gym ({page('guides/docker')})"
            )
        if self.isolated and (reason := missing_parts()) is not None:
            raise MissingDependencyError(reason)

    def _lay_out(self, profile: str) -> None:
        if self._user is not None:  # another user than this process's, which must pass
            self.directory.parent.chmod(_PASSABLE)
            self.directory.chmod(_PASSABLE)
        self.home = self.directory / "home"  # in a sandbox: what its home directory begins with
        self.guest_socket = self.directory / "guest.sock"
        self._settings = self.directory / "guest"
        shared = self.directory / "shared"
        self.places = Places(isolated=True)
        if not self.isolated:
            seen = self._stage.place(self.directory)
            names = (str(seen / name) for name in ("home", "shared", "guest", "tmp", "home"))
            self.places = Places(False, *names)
        for path in (self.home, self._settings, *([] if self.isolated else [shared / "log", self.directory / "tmp"])):
            path.mkdir(parents=True)
        for name, text in EVERY_HOME.items():
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.home / name).write_text(text)
        self._machine = Machine()
        if profile == "osworld":
            self._machine = osworld_machine(
                self.directory / "machine",
                self.home,
                isolated=self.isolated,
                seen=self._stage.place(self.directory / "machine"),
            )
        self.cookie = b"" if self.isolated else secrets.token_bytes(16)
        (self._settings / "openbox.xml").write_text(openbox_config(terminal_key=self._machine.terminal_key))
        for program in _PROGRAMS:
            (self._settings / program.name).write_bytes(program.read_bytes())
        (self.directory / "hosts").write_text(f"127.0.0.1 localhost {' '.join(self._hosts)}\n")
        (self.directory / "machine-id").write_text(secrets.token_hex(16) + "\n")
        if self.isolated:
            (self._settings / "filter").write_bytes(system_call_filter(notify=True).program)
        if self._user is not None:
            machine = [path] if (path := self.directory / "machine").exists() else []
            let_read(self.home, self._settings, *(self.directory / name for name in ("hosts", "machine-id")), *machine)
        if not self.isolated:
            (self._settings / "cookie").write_bytes(cookie_file(self.cookie))
            (self._settings / "cookie").chmod(0o600)
            if self._user is not None:
                for name, text in account_files(self._user.number, self.places.home).items():
                    (self.directory / name).write_text(text)
                    let_read(self.directory / name)
                self._give_to(self._user)

    def _give_to(self, user: UserId) -> None:
        """Give the desktop's own user ownership of the directories that its programs write to."""
        for place in (self.home, self.directory / "shared", self.directory / "tmp", self._settings):
            for directory, folders, files in os.walk(place):
                for name in (".", *folders, *files):
                    os.chown(os.path.join(directory, name), user.number, user.number, follow_symlinks=False)

    def _spawn(self, screen: tuple[int, int], env: dict[str, str]) -> tuple[subprocess.Popen[bytes], int]:
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(self.guest_socket))
            listener.listen(128)  # from here on the host can connect: there is nothing to wait for
            info_read, info_write = os.pipe()
            stack.callback(os.close, info_write)
            self._handover, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(theirs)
            log = stack.enter_context(open(self.directory / "guest.log", "ab", opener=_private))
            record = stack.enter_context(open(self.directory / REFUSED_FILE, "ab", opener=_private))
            fds = [listener.fileno()]
            plan = json.dumps(guest_plan(self.places, screen, listener.fileno()))
            if self.isolated:
                settings = self._first_settings(record.fileno(), theirs.fileno(), plan)
                (self._settings / "settings.json").write_text(settings)
                if self._user is not None:
                    let_read(self._settings / "settings.json")
                inner = [GUEST_PYTHON, "-I", "-S", f"{self.places.settings}/first_process.py"]
                arguments = self._stage.arguments(self._bwrap_arguments(screen, info_write))
                file = stack.enter_context(tempfile.TemporaryFile())
                file.write(b"\0".join(os.fsencode(word) for word in arguments))
                file.seek(0)
                fds += [info_write, file.fileno(), record.fileno(), theirs.fileno()]
                prefix = launcher(self._user, self._groups.directories, self._stage.mounts, shared_limits())
                command = [*prefix, str(shutil.which("bwrap")), "--args", str(file.fileno()), "--", *inner]
            else:
                command = [*self._plain_launcher(), GUEST_PYTHON, "-I", "-S", f"{self.places.settings}/guest.py", plan]
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env={**guest_environment(self.places, env), **({} if self.isolated else mark(self.directory))},
                    pass_fds=fds,
                    start_new_session=True,
                )
            except BaseException:
                os.close(info_read)
                self._handover.close()
                raise
        return process, info_read

    def _plain_launcher(self) -> list[str]:
        """Return what starts a guest without a sandbox: as a user of its own, whom its programs can look up."""
        accounts = {str(self.directory / name): f"/etc/{name}" for name in ("passwd", "group")}
        mounts = {**self._stage.mounts, **accounts} if self._user is not None else {}
        return launcher(self._user, self._groups.directories, mounts)

    def _first_settings(self, record: int, handover: int, plan: str) -> str:
        """Return what `first_process.py` is to do."""
        grouped = bool(self._groups.directories)
        return json.dumps(
            {
                "plan": plan,
                "filter": f"{self.places.settings}/filter",
                "refused": system_call_filter(notify=True).refused,
                "senders": system_call_filter(notify=True).senders,
                "record": record,
                "handover": handover,
                "directories": [self.places.shared, f"{self.places.shared}/log", "/tmp/.X11-unix"],
                "skeleton": _SKELETON,
                "rlimits": self.limits.rlimits(grouped=grouped),
                "memory": 0 if grouped else self.limits.memory,
                "storage": ["/home/user", "/tmp", "/dev/shm", "/var/tmp", "/run"],
            }
        )

    def _bwrap_arguments(self, screen: tuple[int, int], info_fd: int) -> list[str]:
        screen_bytes = screen[0] * screen[1] * _PIXEL_BYTES + _HEADER_BYTES
        return [
            *(*desktop_skeleton(settings_copy(SYSTEM_FILES), self.limits.storage), "--info-fd", str(info_fd)),
            *("--ro-bind", str(self.directory / "machine-id"), "/etc/machine-id"),
            *(("--ro-bind", str(self.directory / "hosts"), "/etc/hosts") if self._hosts else ()),
            *memory_directory(self.places.shared, screen_bytes),
            *memory_directory(f"{self.places.shared}/log", _LOG_BYTES),
            *("--ro-bind", str(self._settings), self.places.settings, "--ro-bind", str(self.home), _SKELETON),
            *(*self._machine.mounts, "--remount-ro", "/"),
        ]

    @property
    def alive(self) -> bool:
        """Return whether the sandbox still runs."""
        return self._finalizer.alive and self._process.poll() is None

    @property
    def ended_inside(self) -> bool:
        """Return whether it has ended by what its own processes did.

        No program inside can send a signal to bubblewrap or to the first process, whose end bubblewrap reports as a
        shell does, and the first process says when a signal came from nobody inside. Memory is the exception: the
        kernel ends any process of a desktop that uses more than it may, and keeps count.
        """
        code = self._process.poll()
        if not self.isolated or code is None or code < 0:
            return False
        outside = code == first_process.ENDED_OUTSIDE or code >= _SIGNALLED
        return not outside or self._groups.short_of_own_memory()

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

    @property
    def panels(self) -> tuple[str, ...]:
        """Where the settings of bar and dock are, seen from inside; none but on the profile "osworld"."""
        return self._machine.panels

    @property
    def uid(self) -> int:
        """Which user of this machine its programs are."""
        return self._user.number if self._user is not None else os.getuid()

    def running_processes(self) -> dict[str, bool]:
        """Pid -> whether it runs at this moment, of each of its processes."""
        return running_processes(self._groups.directories, self._process.pid)

    @property
    def shared(self) -> Path:
        """The directory of the screen, seen from this process."""
        return self._directory(_SHARED) if self.isolated else self.directory / "shared"

    def display_socket(self, number: int) -> Path:
        """Where the X server listens, seen from this process."""
        return (self._directory(_X11) if self.isolated else Path("/tmp/.X11-unix")) / f"X{number}"

    def _directory(self, which: int) -> Path:
        """The path of one of the directories that were handed over."""
        return Path(f"/proc/self/fd/{self._handed_over(which)}")

    def _handed_over(self, which: int) -> int:
        """Return the descriptor of a directory inside that the first process handed over.

        Raises:
            DesktopError: if it has not done so yet.
        """
        self._handover.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            if not self._rest.directories:
                self._rest.directories = socket.recv_fds(self._handover, 1, 3)[1]
        if len(self._rest.directories) <= which:
            raise DesktopError("the desktop has not started its first process")
        return self._rest.directories[which]

    @contextlib.contextmanager
    def listener(self, name: str) -> Iterator[tuple[Path, socket.socket]]:
        """A listening Unix socket of this desktop, bound by the host; closed here after the guest has taken it over."""
        path = self.directory / name
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(128)
            yield path, listener

    def listen_inside(self, port: int) -> socket.socket:
        """A listening socket of this side on a port of the sandbox's loopback, below 1024 too. Blocks some 50 ms."""
        source, user = Path(loopback_port.__file__).read_text(), as_user(self._user.number) if self._user else []
        ours, theirs = socket.socketpair()
        with ours, theirs:
            words = [str(inner_pid(self._rest)), str(port), str(theirs.fileno())]
            command = [*user, GUEST_PYTHON, "-I", "-S", "-c", source, *words]
            made = subprocess.run(command, pass_fds=[theirs.fileno()], capture_output=True, text=True, timeout=20)
            if made.returncode:
                raise DesktopError(f"port {port} of the desktop cannot be had: {made.stderr.strip()[-300:]}")
            return socket.socket(fileno=socket.recv_fds(ours, 1, 1)[1][0])

    def log_tail(self, *names: str) -> str:
        """Return what the kernel ended for memory, and the last lines of logs, for an error message; "" without any."""
        ended, note = self._groups.ended_for_memory(), f" (it used more than {self.limits.memory} bytes of memory"
        parts = [f"{note}: programs ended: {ended})"] if ended else []
        for name in names:
            text = self._log_tail(f"{name}.log") if self._finalizer.alive else ""
            if text:
                parts.append(f"{LOG_MARK}{name}.log:\n{text}")
        return "".join(parts)

    def _log_tail(self, name: str) -> str:
        if name == "guest.log":  # which no program inside can write to
            return tail_of(self.directory, name, most=_LOG_TAIL)
        if not self.isolated:
            return tail_of(self.directory, "shared", "log", name, most=_LOG_TAIL)
        try:
            return read_tail(self._handed_over(_LOGS), name, most=_LOG_TAIL)
        except DesktopError:
            return ""

    def refused_calls(self) -> list[str]:
        """Which programs asked for which system calls and were refused: "program: call"."""
        return refused_calls(self.directory / REFUSED_FILE)

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


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


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
        remove_tree(path, last=OWNER_FILE)
        raise DesktopError(f"the path {path} is too long for sockets; set XDG_RUNTIME_DIR to a shorter one")
    return path


def _cannot_write(path: Path, error: OSError) -> DesktopError:
    """Say which place cannot be written to: the desktop's own directory, or that of what all desktops share."""
    kept, failed = kept_place(), Path(error.filename or path)
    where = f"{path} (which XDG_RUNTIME_DIR chooses)"
    if kept.is_relative_to(failed) or failed.is_relative_to(kept):
        where = f"{kept}" if os.geteuid() == 0 else f"{kept} (which XDG_CACHE_HOME chooses)"
    step = remedy(error) or "mend that"
    return DesktopError(f"cannot lay out a desktop in {where}: {error.strerror or error}; next step: {step}")

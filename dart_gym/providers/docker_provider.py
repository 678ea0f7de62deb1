"""The provider "docker": each desktop in a container of docker/osworld, reached by Unix sockets.

Invariants:
    - A container ends with its server, however that ends: the server holds a socket open which the container watches.
      What is left nevertheless (a container that was just being made) is removed by the next server, by its label.
    - The directory of the sockets can be opened by this user (and root) alone. What is in it belongs to the container,
      which is not trusted: a socket is opened once, as that and nothing else, and used by its descriptor.
    - A failed start says what the desktop in the container had to say.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import ByteSize, Field

from dart_gym.core.errors import ConfigurationError, DesktopError, DesktopTimeoutError
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.desktops.desktop_service import API, LIFE, LOG, PORTS
from dart_gym.desktops.osworld_vm.machine_address import MachineAddress
from dart_gym.desktops.sandbox.runtime_directory import own_directory
from dart_gym.providers.containers import Limits, Owner, desktop_container
from dart_gym.providers.docker_engine import Engine
from dart_gym.providers.lent_machines import LentDesktop, Machine
from dart_gym.providers.provider import Options, elsewhere

DEFAULT_IMAGE = "dart-gym:latest"
IMAGE_USER = 1000
_SOCKETS = "sockets"
_PROBE_PERIOD_S = 0.02
_LOOK_PERIOD_S = 0.5
_LOG_TAIL = 2000


class DockerOptions(Options):
    """Options of the provider "docker".

    Attributes:
        image: made from docker/osworld/Dockerfile.
        network: Docker's network of the containers. A desktop in bubblewrap has none of its own in any case.
        memory: a container's memory, "/tmp" included, such as "4GiB".
        cpus: cores of a container.
        pids: processes and threads of a container.
        boot_timeout_s: how long a container may take until its desktop is ready.
        seccomp: file with a seccomp profile to use in the place of the sandbox's default.
        runtime: another OCI runtime, such as "runsc".
        user: "uid:gid" inside; "" for this user, or the image's own where this user is root.
        host: the Docker Engine, as in DOCKER_HOST.
    """

    image: str = DEFAULT_IMAGE
    network: str = "none"
    memory: Annotated[ByteSize, Field(ge=256 * 2**20)] = ByteSize(4 * 2**30)
    cpus: Annotated[float, Field(gt=0)] = 2.0
    pids: Annotated[int, Field(ge=64)] = 2048
    boot_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    seccomp: Path | None = None
    runtime: str = ""
    user: Annotated[str, Field(pattern=r"^(\d+:\d+)?$")] = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class _Held:
    """What the server keeps of a container: its directory, and the sockets that it has open."""

    directory: Path
    sockets: contextlib.ExitStack


class DockerProvider:
    """See `dart_gym.providers.provider.Provider`. Raises `ConfigurationError`, `MissingDependencyError`."""

    name = "docker"
    options_type = DockerOptions
    capacity: int | None = None
    local, warm = True, 1

    def __init__(self, options: DockerOptions) -> None:
        self.options = options
        self.longest_start_s = options.boot_timeout_s
        self._engine = Engine(options.host)
        self._seccomp = _read(options.seccomp)
        self._limits = Limits(int(options.memory), options.cpus, options.pids)
        self._owner = Owner.here()
        self._numbers = itertools.count(1)

    async def open(self) -> list[str]:
        """Connect to Docker and remove the containers of dead servers; see `Provider.open`."""
        return await self._engine.open(self.options.image)

    def desktop(self, spec: DesktopSpec) -> Desktop:
        """A desktop, not started yet."""
        return elsewhere(spec) or LentDesktop(spec, self)

    async def take(self, spec: DesktopSpec, timeout: float) -> Machine:
        """Start a container and wait until its desktop is ready."""
        deadline = time.monotonic() + timeout
        directory = _make_directory()
        place = directory / _SOCKETS
        container_id = ""
        sockets = contextlib.ExitStack()
        try:
            config = self._config(spec, place)
            container_id = await self._engine.run(config, f"dart-gym-{os.getpid()}-{next(self._numbers)}")
            lifeline = await self._lifeline(container_id, place, deadline)
            sockets.callback(lifeline.close)
            address = MachineAddress(
                shown=f"container {container_id[:12]}",
                base="http://desktop",
                socket=socket_path(place / API, sockets),
                ports_socket=socket_path(place / PORTS, sockets),
            )
        except BaseException:
            sockets.close()
            await asyncio.shield(asyncio.ensure_future(self._discard(container_id, directory)))
            raise
        return Machine(container_id, address, _Held(directory, sockets))

    def _config(self, spec: DesktopSpec, directory: Path) -> dict[str, object]:
        options, user = self.options, self.options.user
        if not user:
            user = f"{os.getuid()}:{os.getgid()}" if os.getuid() else f"{IMAGE_USER}:{IMAGE_USER}"
        uid, gid = map(int, user.split(":"))
        if (uid, gid) != (os.getuid(), os.getgid()):
            try:
                os.chown(directory, uid, gid)  # root can open it nevertheless
            except PermissionError as error:
                message = f"only root can have containers run as {user}; next step: leave out the option user"
                raise ConfigurationError(message) from error
        return desktop_container(
            spec,
            image=options.image,
            directory=directory,
            user=user,
            network=options.network,
            limits=self._limits,
            owner=self._owner,
            seccomp=self._seccomp,
            runtime=options.runtime,
        )

    async def _lifeline(self, container_id: str, directory: Path, deadline: float) -> asyncio.StreamWriter:
        """Hold on to a container as soon as its desktop is ready."""
        look_at = time.monotonic() + _LOOK_PERIOD_S
        while True:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError), contextlib.ExitStack() as opened:
                return (await asyncio.open_unix_connection(socket_path(directory / LIFE, opened)))[1]
            now = time.monotonic()
            if now > deadline:
                raise DesktopTimeoutError(f"the desktop in a container was not ready in time{log_tail(directory)}")
            if now > look_at:
                look_at = now + _LOOK_PERIOD_S
                found = await self._engine.inspect(container_id)
                if found is None or not found["State"]["Running"]:
                    raise DesktopError(f"the container of a desktop has ended{log_tail(directory)}")
            await asyncio.sleep(_PROBE_PERIOD_S)

    async def give_back(self, machine: Machine) -> None:
        """Remove the container and what it left."""
        machine.held.sockets.close()
        await self._discard(machine.id, machine.held.directory)

    async def _discard(self, container_id: str, directory: Path) -> None:
        if container_id:
            await self._engine.remove(container_id)
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def close(self) -> None:
        """Wait until what is being removed is gone. Idempotent."""
        await self._engine.close()


def _make_directory() -> Path:
    """A directory for one container: only the one in it is the container's, so that nobody else can say whose it is."""
    try:
        directory = own_directory("container-")
        (directory / _SOCKETS).mkdir(mode=0o700)
        return directory
    except OSError as error:
        raise DesktopError(f"cannot make a directory for the sockets of a container: {error.strerror}") from error


def _read(seccomp: Path | None) -> str:
    if seccomp is None:
        return ""
    try:
        return seccomp.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"the seccomp profile {seccomp} cannot be read: {error.strerror}") from error


def socket_path(path: Path, stack: contextlib.ExitStack) -> Path:
    """Return a path to this very socket. Raises `FileNotFoundError`; `DesktopError`: no socket."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        raise DesktopError(f"the container of a desktop offers something else than a socket as {path.name}")
    return Path(f"/proc/self/fd/{fd}")


def log_tail(directory: Path) -> str:
    """Return what the desktop in the container said last, for an error message."""
    try:
        with open(os.open(directory / LOG, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), errors="replace") as file:
            text = file.read()[-_LOG_TAIL:].strip()
    except OSError:
        return "; it said nothing: look at `docker events`, and whether the image is of this version"
    return f"; it said:\n{text}"

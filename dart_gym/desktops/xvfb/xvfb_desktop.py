"""A real desktop on this machine: an Xvfb screen, a window manager and programs in a sandbox of their own.

It lives in a keeper's process: its methods may stall for as long as a program of the desktop wants them to, and end
the process where one truncates the framebuffer. What the rest of the package uses is `keeper.kept_desktop`.

Invariants:
    - Readiness is told or probed, never slept for: Xvfb and D-Bus say so themselves, the window manager by a property,
      Chromium by answering DevTools and covering the screen.
    - After `stop` (or a failed or cancelled `start`) no process, file or socket of the desktop is left.
"""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
from numpy.typing import NDArray

from dart_gym.core.actions import Action
from dart_gym.core.errors import (
    DesktopError,
    DesktopStateError,
    DesktopTimeoutError,
    MissingDependencyError,
    MissingProgramError,
)
from dart_gym.desktops.applications import accessibility, browser, debian_applications, devtools
from dart_gym.desktops.base import settling
from dart_gym.desktops.base.desktop import (
    BACKGROUND,
    AccessibilityTree,
    CommandResult,
    DesktopSpec,
    SettlePolicy,
    SettleResult,
)
from dart_gym.desktops.base.framebuffer import Framebuffer
from dart_gym.desktops.base.together import together
from dart_gym.desktops.base.work import Work
from dart_gym.desktops.confinement.resource_limits import MIB, DesktopLimits
from dart_gym.desktops.confinement.running_processes import ProcessorDemand, any_thread_runs
from dart_gym.desktops.sandbox.guest_client import GuestClient
from dart_gym.desktops.sandbox.sandbox import LOG_MARK, Sandbox
from dart_gym.desktops.sandbox.sandbox_check import check_sandbox
from dart_gym.desktops.xvfb.x_connection import XConnection
from dart_gym.desktops.xvfb.x_input import XInput
from dart_gym.desktops.xvfb.xvfb_spec import check_spec

if TYPE_CHECKING:
    from dart_gym.sites.site_server import SiteServer

SITES_PORT = 80
_LOGS = ("guest", "xvfb", "dbus", "openbox", browser.LOG)
_DRAWN = SettlePolicy(busy_ms=10_000)  # panels take their room before they are seen
_DRAG_SETTLE = SettlePolicy(quiet_ms=50, max_ms=500)
_DROP_SETTLE = SettlePolicy(quiet_ms=150, max_ms=1000)  # source and target talk by messages, which no screen shows
_PROBE_PERIOD_S = 0.004


class XvfbDesktop:
    """See `Desktop`; frames are drawn into shared memory.

    Start it in a thread that lives at least as long as the desktop.

    Raises:
        ConfigurationError: if the spec is impossible.
    """

    def __init__(self, spec: DesktopSpec) -> None:
        check_spec(spec)
        self.spec = spec
        self._sandbox: Sandbox | None = None
        self.connection: XConnection | None = None
        self._framebuffer: Framebuffer | None = None
        self._input: XInput | None = None
        self._work: Work | None = None
        self._sites: SiteServer | None = None
        self._ports: dict[int, Path] = {}
        self._real_ports: dict[int, int] = {}
        self._names = itertools.count(1)

    async def start(self, *, timeout: float = 60.0, prefix: str = "", sites: Sequence[dict[str, Any]] = ()) -> None:
        """Boot, and return when all is ready. `prefix` begins its directory's name; `sites` are for `SiteServer`."""
        if self._sandbox is not None:
            raise DesktopError("the desktop is started already; stop it first")
        spec = self.spec
        sandbox = self._sandbox = Sandbox(
            spec.sandbox,
            (spec.width, spec.drawn_height),
            dict(spec.env),
            spec.profile,
            DesktopLimits(spec.memory_mb * MIB, spec.processes, spec.cpus, spec.storage_mb * MIB),
            prefix,
            [site["host"] for site in sites],
        )
        try:
            with self._explained():
                async with asyncio.timeout(timeout):
                    await together(self._boot(sandbox), self._serve_sites(sandbox, sites))
        except TimeoutError:
            logs = sandbox.log_tail(*_LOGS)
            await self.stop()
            raise DesktopTimeoutError(f"the desktop was not ready within {timeout:g} s{logs}") from None
        except BaseException:
            await asyncio.shield(self.stop())
            raise

    async def _boot(self, sandbox: Sandbox) -> None:
        self._guest = GuestClient(sandbox.guest_socket)
        try:
            number = await self._guest.boot(timeout=60.0)
        except DesktopError as error:
            stopped = self._sandbox is not sandbox
            if sandbox.isolated and not stopped and (reason := await asyncio.to_thread(check_sandbox)):
                raise MissingDependencyError(reason) from error
            raise
        connection = self.connection = XConnection(sandbox.display_socket(number), sandbox.cookie)
        if not sandbox.isolated:
            connection.let_in(sandbox.uid)
        self._framebuffer = Framebuffer(sandbox.shared / "Xvfb_screen0", self.spec)
        self._work = Work(
            sandbox.running_processes, ProcessorDemand(), any_thread_runs, set(sandbox.running_processes())
        )
        self._input = XInput(connection, self._framebuffer.height, self._rest, apart=self.spec.profile == "osworld")
        connection.paint_root(int.from_bytes(BACKGROUND, "big"))
        await self._until(connection.has_window_manager)
        await connection.window_manager_answers(_PROBE_PERIOD_S)
        if self.spec.profile == "browser":
            await self._start_browser(sandbox, connection)
        if self.spec.panel:
            await together(*(self.launch(["tint2", "-c", settings]) for settings in sandbox.panels))
            await self._until(connection.has_panels)
            await self.settle(_DRAWN)

    async def _serve_sites(self, sandbox: Sandbox, sites: Sequence[dict[str, Any]]) -> None:
        if not sites:
            return
        from dart_gym.sites.site_server import SiteServer  # its web server takes long to import, and most need none

        opening = asyncio.ensure_future(asyncio.to_thread(sandbox.listen_inside, SITES_PORT))
        try:
            listener = await asyncio.shield(opening)
        except asyncio.CancelledError:  # the thread continues, and what it opens belongs to nobody
            opening.add_done_callback(_close_listener)
            raise
        if self._sandbox is not sandbox:  # stopped meanwhile
            return listener.close()
        self._sites = SiteServer(sites)
        await self._sites.serve(listener)

    @property
    def sites(self) -> "SiteServer":
        """Return the server of the desktop's sites.

        Raises:
            DesktopError: if the desktop has no sites.
        """
        if self._sites is None:
            raise DesktopError("this desktop has no sites: its task must name them in dart.desktop.sites")
        return self._sites

    async def _start_browser(self, sandbox: Sandbox, connection: XConnection) -> None:
        """Start Chromium; without a network of its own it takes any free port, which `open_port` knows of."""
        data_dir = "/tmp/chromium" if sandbox.isolated else f"{sandbox.places.home}/.chromium"
        port = browser.DEVTOOLS_PORT if sandbox.isolated else 0
        await self._guest.launch(browser.LOG, browser.browser_command(self.spec, port, data_dir), {}, essential=True)
        await self._until(connection.has_active_window)
        if not port:
            self._real_ports[browser.DEVTOOLS_PORT] = await self._chosen_port(data_dir)
        path = str(await self.open_port(browser.DEVTOOLS_PORT))
        while not await self._browser_answers(path):
            await asyncio.sleep(_PROBE_PERIOD_S)
        page = await devtools.DevTools.attach(path, browser.DEVTOOLS_PORT)
        await self._fill_screen(connection, page)
        await page.close()

    async def _fill_screen(self, connection: XConnection, page: devtools.DevTools) -> None:
        """Wait until the page has the whole screen.

        Its height is right once Chromium has entered full screen, on which it renews the limits of its window; only
        then can they be taken from it, which gives the page the right width.
        """
        width, height = self.spec.width, self.spec.drawn_height
        while await page.evaluate("innerHeight") != height:
            await asyncio.sleep(_PROBE_PERIOD_S)
        while not connection.active_window_fits(width, height) or await page.evaluate("innerWidth") != width:
            await asyncio.sleep(_PROBE_PERIOD_S)

    async def _chosen_port(self, data_dir: str) -> int:
        while True:
            try:
                lines = (await self.read_file(f"{data_dir}/DevToolsActivePort")).split()
            except FileNotFoundError:
                lines = []
            if lines:
                return int(lines[0])
            await asyncio.sleep(_PROBE_PERIOD_S)

    async def _browser_answers(self, path: str) -> bool:
        self._running()
        try:
            found = await devtools.targets(path, browser.DEVTOOLS_PORT)
        except httpx.TransportError:
            return False  # nothing listens yet
        return any(target["type"] == "page" for target in found)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; the caller sets the deadline."""
        while not condition():
            self._running()
            await asyncio.sleep(_PROBE_PERIOD_S)

    async def stop(self) -> None:
        """End every program and remove all files; see `Desktop.stop`."""
        sandbox, self._sandbox = self._sandbox, None
        connection, self.connection = self.connection, None
        framebuffer, self._framebuffer = self._framebuffer, None
        sites, self._sites = self._sites, None
        self._input = None
        if sites is not None:
            await sites.close()
        self._ports, self._real_ports = {}, {}
        if connection is not None:
            connection.close()
        if framebuffer is not None:
            framebuffer.close()
        if sandbox is not None:
            await asyncio.to_thread(sandbox.destroy)

    @property
    def alive(self) -> bool:
        """Return whether the desktop is started and its processes still run."""
        return self._input is not None and self._sandbox is not None and self._sandbox.alive

    async def wait_until_dead(self) -> None:
        """Return when the sandbox has ended, by itself or because it was stopped."""
        sandbox = self._sandbox
        if sandbox is not None:
            await sandbox.ended()

    async def ended_inside(self, wait_s: float = 0.0) -> bool:
        """Return whether its own programs ended the started desktop; wait up to `wait_s` for an end under way."""
        sandbox = self._sandbox
        if sandbox is None or self._input is None:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await sandbox.ended()
        return sandbox.ended_inside and not sandbox.disk_note()

    def _running(self) -> Sandbox:
        """The sandbox. Raises `DesktopError` when the desktop is not started, or has ended by itself."""
        sandbox = self._sandbox
        if sandbox is None:
            raise DesktopError("the desktop is not started, or was stopped")
        if not sandbox.alive:
            raise DesktopError("the desktop has ended by itself; the next reset gets a fresh one")
        return sandbox

    def with_logs(self, message: str) -> str:
        """The message with the last lines of the logs, which say why the desktop ended; as it is where it has them."""
        if self._sandbox is None or LOG_MARK in message:
            return message
        return f"{message}{self._sandbox.disk_note()}{self._sandbox.log_tail(*_LOGS)}"

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise a `DesktopError` with the last lines of the logs in its message."""
        try:
            yield
        except (DesktopTimeoutError, DesktopStateError):
            raise
        except DesktopError as error:
            if LOG_MARK in str(error):
                raise  # explained by a method that this one called
            raise DesktopError(self.with_logs(str(error))) from error

    def _parts(self) -> tuple[XConnection, Framebuffer, XInput]:
        self._running()
        if self.connection is None or self._framebuffer is None or self._input is None:
            raise DesktopError("the desktop is still starting")
        return self.connection, self._framebuffer, self._input

    def draw(self, frame: NDArray[np.uint8]) -> None:
        """Draw the screen with its cursor into an (H, W, 3) uint8 RGB frame."""
        with self._explained():
            connection, framebuffer, _ = self._parts()
            framebuffer.draw(frame, connection.cursor())

    def read_margin(self) -> NDArray[np.uint8]:
        """The rows below the screen; see `Desktop.read_margin`."""
        with self._explained():
            return self._parts()[1].margin()

    async def perform(self, action: Action) -> None:
        """Carry out an action; see `Desktop.perform`."""
        with self._explained():
            await self._parts()[2].perform(action)

    def release_inputs(self) -> None:
        """Bring keyboard, buttons and selections into the state of a fresh desktop."""
        with self._explained():
            self._parts()[2].release_all()

    async def settle(self, policy: SettlePolicy) -> SettleResult:
        """Wait until the screen stands still."""
        with self._explained():
            connection, framebuffer, _ = self._parts()
            return await settling.settle(framebuffer, policy, connection.wait_for_focused_program, self._work)

    async def _rest(self) -> None:
        """Let the programs of a drag keep up; longer where something is carried than where a button is only down."""
        connection, _, _ = self._parts()
        await self.settle(_DROP_SETTLE if connection.carries_something() else _DRAG_SETTLE)

    async def execute(
        self, command: list[str], *, timeout: float = 60.0, stdin: bytes = b"", env: dict[str, str] | None = None
    ) -> CommandResult:
        """Run a program to its end; see `Desktop.execute`. One that is missing has return code 127, as in a shell."""
        with self._explained():
            self._running()
            return await self._guest.run(command, env or {}, stdin, timeout)

    async def launch(self, command: list[str], *, env: dict[str, str] | None = None) -> None:
        """Start a program and leave it running; see `Desktop.launch`."""
        with self._explained():
            self._running()
            try:
                await self._guest.launch(f"program-{next(self._names)}", command, env or {})
            except FileNotFoundError:
                message = (
                    f"the desktop has no program {command[0]!r}; next step: {debian_applications.advice(command[0])}"
                )
                raise MissingProgramError(message) from None

    async def read_file(self, path: str) -> bytes:
        """Content of a file; relative paths and `~` start at the home directory."""
        with self._explained():
            self._running()
            return await self._guest.read_file(path)

    async def write_file(self, path: str, data: bytes, *, append: bool = False) -> None:
        """Create, replace or append to a file, making its parent directories."""
        with self._explained():
            self._running()
            await self._guest.write_file(path, data, append=append)

    async def accessibility_tree(self, *, timeout: float = 10.0) -> AccessibilityTree:
        """Return what the programs tell about their widgets; see `Desktop.accessibility_tree`."""
        return await accessibility.read_tree(self, timeout)

    async def open_port(self, port: int) -> Path:
        """Path of a Unix socket that leads to a TCP port of the desktop; the same path for the same port."""
        with self._explained():
            sandbox = self._running()
            if port not in self._ports:
                with sandbox.listener(f"port-{port}.sock") as (path, listener):
                    await self._guest.listen(listener, self._real_ports.get(port, port))
                    self._ports[port] = path
            return self._ports[port]


def _close_listener(opening: "asyncio.Future[socket.socket]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()

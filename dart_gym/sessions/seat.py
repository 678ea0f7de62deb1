"""A seat: the place of one desktop, which it boots, keeps over episodes, and replaces.

Invariants:
    - A seat has at most one desktop; what it gives up is stopped in the background, so that the next one boots
      without waiting for it. `close` waits for all of them.
    - A living desktop with an equal spec is kept if it is reusable, or if no episode has used it yet; anything else is
      thrown away.
    - Scenarios and the HTTP face belong to the desktop: they are closed before it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.osworld_api.api_address import FaceAddress, FacePolicy
from dart_gym.tasks.catalog.registry import make_scenario
from dart_gym.tasks.catalog.scenario import Scenario

if TYPE_CHECKING:
    from dart_gym.desktops.osworld_api.api_server import OSWorldFace

log = logging.getLogger(__name__)


class Seat:
    """The place of one desktop. Used by one session at a time.

    Args:
        name: for logs and the status operation.
        desktop_factory: makes a desktop that is not started yet.
        faces: gives each desktop OSWorld's HTTP face; None for none.
    """

    def __init__(
        self,
        name: str = "0",
        desktop_factory: Callable[[DesktopSpec], Desktop] = make_desktop,
        faces: FacePolicy | None = None,
    ) -> None:
        self.name = name
        self._faces = faces
        self._face: OSWorldFace | None = None
        self._desktop_factory = desktop_factory
        self._desktop: Desktop | None = None
        self._fresh = False
        self._scenarios: dict[str, Scenario] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    @property
    def spec(self) -> DesktopSpec | None:
        """Spec of the desktop that it has; None without one."""
        return self._desktop.spec if self._desktop else None

    @property
    def face(self) -> FaceAddress | None:
        """Where the desktop's HTTP face listens; None without one."""
        return self._face.address if self._face else None

    @property
    def alive(self) -> bool:
        """Whether it has a living desktop."""
        return self._desktop is not None and self._desktop.alive

    def fits(self, spec: DesktopSpec) -> bool:
        """Whether its desktop can be kept for an episode with this spec."""
        return self.alive and (spec.reusable or self._fresh) and self.spec == spec

    @property
    def memory_bytes(self) -> Callable[[], int] | None:
        """Measures the memory that its desktop uses, for a thread; None where that cannot be known here."""
        return getattr(self._desktop, "memory_bytes", None) if self.alive else None

    async def desktop(self, spec: DesktopSpec) -> Desktop:
        """Return a started desktop for a new episode: the one there is if it fits, else a fresh one.

        Raises:
            DesktopError: it did not boot; the seat is empty then.
        """
        if not self.fits(spec):
            await self.boot(spec)
        assert self._desktop is not None  # for the type checker: it fits, or was booted
        self._fresh = False
        return self._desktop

    async def boot(self, spec: DesktopSpec) -> None:
        """Replace the desktop by a fresh one, which waits for its first episode.

        Raises:
            DesktopError: it did not boot; the seat is empty then.
        """
        self.discard()
        desktop = self._desktop_factory(spec)
        self._desktop = desktop
        try:
            await desktop.start()
            if self._faces is not None:
                self._face = await self._faces.open(desktop)
        except BaseException:
            self.discard()
            raise
        self._fresh = True

    def scenario(self, suite: str) -> Scenario:
        """The scenario of a suite on this desktop; made when first asked for."""
        if suite not in self._scenarios:
            self._scenarios[suite] = make_scenario(suite)
        return self._scenarios[suite]

    def exchange(self, other: Seat) -> None:
        """Swap desktops with another seat."""
        self._desktop, other._desktop = other._desktop, self._desktop
        self._scenarios, other._scenarios = other._scenarios, self._scenarios
        self._face, other._face = other._face, self._face
        self._fresh, other._fresh = other._fresh, self._fresh

    def discard(self) -> None:
        """Give the desktop up; it is stopped in the background."""
        if self._desktop is None:
            return
        ending = self._stop(self._desktop, list(self._scenarios.values()), self._face)
        task = asyncio.create_task(ending, name=f"stop-{self.name}")
        self._desktop, self._scenarios, self._face, self._fresh = None, {}, None, False
        self._stopping.add(task)
        task.add_done_callback(self._stopped)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        self._stopping.discard(task)
        if not task.cancelled() and task.exception() is not None:  # logged: nobody can act on it here
            log.warning("a desktop of seat %s did not stop cleanly", self.name, exc_info=task.exception())

    async def _stop(self, desktop: Desktop, scenarios: list[Scenario], face: OSWorldFace | None) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(desktop.stop)
            if face is not None:
                stack.push_async_callback(face.close)
            for scenario in scenarios:
                stack.push_async_callback(scenario.close)

    async def close(self) -> None:
        """Give the desktop up and wait until everything is stopped."""
        self.discard()
        if self._stopping:
            await asyncio.wait(self._stopping)

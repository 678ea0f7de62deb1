"""A slot: the place of one desktop, which it boots, keeps over episodes, and replaces.

Invariants:
    - A slot has at most one desktop; what it gives up is stopped in the background, so that the next one boots
      without waiting for it. `close` waits for all of them.
    - A living desktop with an equal spec is kept if it is reusable, of the same owner, and without traces that no reset
      takes back, or if no episode has used it yet; anything else is thrown away.
    - After its lease a session cannot reach a desktop: its OSWorld API gets another address and token for each lease.
    - Scenarios and the OSWorld API belong to the desktop: they are closed before it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Protocol

from dart_gym.desktops.base.desktop import Desktop, DesktopSpec, Traceable
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.osworld_api.api_address import APIAddress, APIPolicy
from dart_gym.tasks.catalog.registry import make_scenario
from dart_gym.tasks.catalog.scenario import Scenario

log = logging.getLogger(__name__)


class _API(Protocol):
    """What a slot needs of `api_server.OSWorldAPI`, whose web server takes long to import."""

    address: APIAddress

    async def close(self) -> None: ...


class Slot:
    """The place of one desktop in a server (or of a session without one). Used by one session at a time.

    Attributes:
        phase: "idle", "held" (by a session, between operations), or the operation under way.
        phase_since: monotonic time of the last change of the phase.
        episodes: how many resets went well.
        booted: the desktop that it has now; None without one. Sessions ask `desktop` for one that fits.
        busy_s: seconds by operation, of those that are finished.
        released_at: monotonic time of the last release.
    """

    def __init__(
        self,
        name: str = "0",
        desktop_factory: Callable[[DesktopSpec], Desktop] = make_desktop,
        api_policy: APIPolicy | None = None,
    ) -> None:
        self.name = name
        self.phase, self.phase_since = "idle", time.monotonic()
        self.owner = self.client = self.task = ""
        self.episodes = 0
        self.busy_s: defaultdict[str, float] = defaultdict(float)
        self.released_at = 0.0
        self._desktop_factory, self._api_policy = desktop_factory, api_policy
        self.booted: Desktop | None = None
        self._api: _API | None = None
        self._fresh = False
        self._traces = 0  # those that its desktop had when the episode began
        self._user = ""  # the owner whose episodes the desktop has had
        self._ending_api: asyncio.Task[None] | None = None
        self._scenarios: dict[str, Scenario] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    def enter(self, phase: str) -> None:
        """Change the phase."""
        self.phase, self.phase_since = phase, time.monotonic()

    @contextlib.contextmanager
    def working(self, operation: str) -> Iterator[None]:
        """Account the time inside to an operation."""
        self.enter(operation)
        try:
            yield
        finally:
            self.busy_s[operation] += time.monotonic() - self.phase_since
            self.enter("held")

    @property
    def spec(self) -> DesktopSpec | None:
        """Spec of the desktop that it has; None without one."""
        return self.booted.spec if self.booted else None

    @property
    def api_address(self) -> APIAddress | None:
        """Where the OSWorld API of its desktop listens; None without one."""
        return self._api.address if self._api else None

    @property
    def alive(self) -> bool:
        """Return whether it has a living desktop."""
        return self.booted is not None and self.booted.alive

    def fits(self, spec: DesktopSpec, owner: str | None = None) -> bool:
        """Return whether its desktop can be kept for an episode with this spec, of its holder or of another owner."""
        known = spec.reusable and self._user == (self.owner if owner is None else owner)
        return self.alive and (known and not self._marked or self._fresh) and self.spec == spec

    @property
    def _marked(self) -> bool:
        """Return whether the desktop has got traces in its episode that no reset takes back."""
        return isinstance(self.booted, Traceable) and self.booted.traces > self._traces

    def begin_episode(self) -> None:
        """The reset is done: what its desktop goes through from now on belongs to the episode."""
        self._traces = self.booted.traces if isinstance(self.booted, Traceable) else 0

    @property
    def memory_bytes(self) -> Callable[[], int] | None:
        """Measures the memory that its desktop uses, for a thread; None where that cannot be known here."""
        return getattr(self.booted, "memory_bytes", None) if self.alive else None

    async def desktop(self, spec: DesktopSpec) -> Desktop:
        """Return a started desktop: the present one if it fits, or else a new one.

        Raises:
            DesktopError: if the slot is empty.
        """
        if not self.fits(spec):
            await self.boot(spec)
        assert self.booted is not None  # for the type checker: it fits, or was booted
        self._fresh, self._user = False, self.owner
        if self._ending_api is not None:
            await asyncio.wait({self._ending_api})
        if self._api is None:
            await self._open_api(self.booted)
        return self.booted

    async def boot(self, spec: DesktopSpec) -> None:
        """Replace the desktop by a new one.

        Raises:
            DesktopError: if it does not boot; the slot is empty then.
        """
        self.discard()
        desktop = self._desktop_factory(spec)
        self.booted = desktop
        try:
            await desktop.start()
            await self._open_api(desktop)
        except BaseException:
            self.discard()
            raise
        self._fresh = True

    async def _open_api(self, desktop: Desktop) -> None:
        if self._api_policy is not None:
            from dart_gym.desktops.osworld_api.api_server import open_api  # takes 0.1 s, and most need none

            self._api = await open_api(desktop, self._api_policy)

    def end_lease(self) -> None:
        """Nobody holds it any more: address and token of its desktop's OSWorld API lead nowhere from now on."""
        api, self._api = self._api, None
        if api is not None:
            self._ending_api = asyncio.create_task(api.close(), name=f"api-{self.name}")
            self._stopping.add(self._ending_api)
            self._ending_api.add_done_callback(self._stopped)

    def scenario(self, suite: str) -> Scenario:
        """The scenario of a suite on this desktop; made when first asked for."""
        if suite not in self._scenarios:
            self._scenarios[suite] = make_scenario(suite)
        return self._scenarios[suite]

    def exchange(self, other: Slot) -> None:
        """Swap desktops with another slot."""
        self.booted, other.booted = other.booted, self.booted
        self._scenarios, other._scenarios = other._scenarios, self._scenarios
        self._api, other._api = other._api, self._api
        self._fresh, other._fresh = other._fresh, self._fresh
        self._traces, other._traces = other._traces, self._traces
        self._user, other._user = other._user, self._user
        self._ending_api, other._ending_api = other._ending_api, self._ending_api

    def discard(self) -> None:
        """Give the desktop up; it is stopped in the background."""
        if self.booted is None:
            return
        ending = self._stop(self.booted, list(self._scenarios.values()), self._api)
        task = asyncio.create_task(ending, name=f"stop-{self.name}")
        self.booted = None
        self._scenarios = {}
        self._api = None
        self._fresh = False
        self._stopping.add(task)
        task.add_done_callback(self._stopped)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        self._stopping.discard(task)
        if not task.cancelled() and task.exception() is not None:  # logged: nobody can act on it here
            log.warning("a desktop of slot %s did not stop cleanly", self.name, exc_info=task.exception())

    async def _stop(self, desktop: Desktop, scenarios: list[Scenario], api: _API | None) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(desktop.stop)
            if api is not None:
                stack.push_async_callback(api.close)
            for scenario in scenarios:
                stack.push_async_callback(scenario.close)

    async def close(self) -> None:
        """Give the desktop up and wait until everything is stopped."""
        self.discard()
        if self._stopping:
            await asyncio.wait(self._stopping)

"""The desktops of a server: a fixed number of seats, lent first come, first served.

Invariants:
    - At most `size` seats are lent; waiters are served in the order of their arrival.
    - A free seat keeps a living, reusable desktop for a later episode of an equal spec. Whoever needs another one
      takes an empty seat first, then the one whose desktop lay idle longest.
    - Everything happens in one event loop, so there are no locks.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dart_gym.desktops import make_desktop
from dart_gym.desktops.base import Desktop, DesktopSpec
from dart_gym.desktops.face_address import FacePolicy
from dart_gym.seat import Seat


@dataclass(slots=True, eq=False)
class Slot:
    """A seat with its accounts.

    Attributes:
        seat: where the desktop is.
        phase: "idle", "leased" (between operations), or the operation under way.
        task: id of the last episode's task.
        episodes: how many resets went well.
        busy_s: seconds by operation, finished ones.
        released_at: monotonic time of the last release.
    """

    seat: Seat
    phase: str = "idle"
    task: str = ""
    episodes: int = 0
    busy_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    released_at: float = 0.0
    phase_since: float = field(default_factory=time.monotonic)

    def enter(self, phase: str) -> None:
        """Change the phase."""
        self.phase, self.phase_since = phase, time.monotonic()

    @contextmanager
    def working(self, operation: str) -> Iterator[None]:
        """Account the time inside to an operation."""
        self.enter(operation)
        try:
            yield
        finally:
            self.busy_s[operation] += time.monotonic() - self.phase_since
            self.enter("leased")


class Pool:
    """Lends seats.

    Args:
        size: number of seats: how many desktops may run at once.
        desktop_factory: makes desktops that are not started yet.
        faces: gives each desktop OSWorld's HTTP face; None for none.
    """

    def __init__(
        self,
        size: int,
        desktop_factory: Callable[[DesktopSpec], Desktop] = make_desktop,
        faces: FacePolicy | None = None,
    ) -> None:
        self.slots = [Slot(Seat(str(i), desktop_factory, faces)) for i in range(size)]
        self._free = list(self.slots)
        self._waiters: deque[asyncio.Future[Slot]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a seat."""
        return sum(not waiter.done() for waiter in self._waiters)

    async def acquire(self, spec: DesktopSpec | None = None, owner: str = "") -> Slot:
        """Lend a seat, if possible one whose desktop fits; wait for one if none is free. Cancel to give up."""
        if self._free and not self.waiting:
            slot = self._best(spec)
            self._free.remove(slot)
        else:
            waiter: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                slot = await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():  # a seat came at the same moment: pass it on
                    self.release(waiter.result())
                else:
                    self._waiters.remove(waiter)
                raise
        slot.enter("leased")
        return slot

    def _best(self, spec: DesktopSpec | None) -> Slot:
        def rank(slot: Slot) -> tuple[int, float]:
            if spec is not None and slot.seat.fits(spec):
                return 0, 0.0
            return 1 if not slot.seat.alive else 2, slot.released_at

        return min(self._free, key=rank)

    def fit(self, slot: Slot, spec: DesktopSpec) -> None:
        """If a free seat has the desktop that a lent one needs, swap the two."""
        if slot.seat.fits(spec):
            return
        for other in self._free:
            if other.seat.fits(spec):
                slot.seat.exchange(other.seat)
                return

    def release(self, slot: Slot) -> None:
        """Take a seat back. A desktop that no later episode may use is stopped in the background."""
        spec = slot.seat.spec
        if spec is not None and not slot.seat.fits(spec):
            slot.seat.discard()
        slot.enter("idle")
        slot.released_at = time.monotonic()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(slot)
                return
        self._free.append(slot)

    def stop_idle(self, older_than_s: float) -> None:
        """Stop desktops that lay idle for long."""
        limit = time.monotonic() - older_than_s
        for slot in self._free:
            if slot.seat.spec is not None and slot.released_at < limit:
                slot.seat.discard()

    async def close(self) -> None:
        """Stop all desktops, in parallel."""
        await asyncio.gather(*(slot.seat.close() for slot in self.slots))

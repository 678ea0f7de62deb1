"""The desktops of a server: a number of seats that are lent in turn, with spare desktops beside them.

Invariants:
    - At most `size` seats are lent, to each owner at most its quota. Whose turn it is says `turns`.
    - A seat lies idle only while nobody who may have it waits.
    - A free seat keeps a living desktop that a later episode may use. Whoever needs another one takes an empty seat
      first, then the one whose desktop lay idle longest.
    - A desktop boots only when the machine has room for it (`admission`); spares (`warm`) and idle desktops make way.
    - Everything happens in one event loop, so there are no locks.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from dart_gym.cluster.pool.boot_admission import Admission
from dart_gym.cluster.pool.fair_queue import Claim, Quota, allowed, next_claim, unlimited
from dart_gym.cluster.pool.warm_pool import Stock
from dart_gym.core.errors import ConfigurationError
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.osworld_api.api_address import FacePolicy
from dart_gym.sessions.seat import Seat

_MEASURE_PERIOD_S = 5.0


@dataclass(slots=True, eq=False)
class Slot:
    """A seat with its accounts.

    Attributes:
        seat: where the desktop is.
        phase: "idle", "leased" (between operations), or the operation under way.
        owner: who has it, or had it last.
        task: id of the last episode's task.
        episodes: how many resets went well.
        busy_s: seconds by operation, finished ones.
        released_at: monotonic time of the last release.
    """

    seat: Seat
    phase: str = "idle"
    owner: str = ""
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


@dataclass(slots=True, eq=False)
class _Waiter:
    spec: DesktopSpec | None
    given: asyncio.Future[Slot]


class Pool:
    """Lends seats.

    Args:
        size: number of seats: how many desktops may be lent at once.
        desktop_factory: makes desktops that are not started yet.
        faces: gives each desktop OSWorld's HTTP face; None for none.
        warm: how many spare desktops to hold ready, beside those that are lent.
        admission: whether the machine has room for another desktop.
        quota: how many seats an owner may have. Call `serve_waiters` when it has changed.
    """

    def __init__(
        self,
        size: int,
        desktop_factory: Callable[[DesktopSpec], Desktop] = make_desktop,
        faces: FacePolicy | None = None,
        *,
        warm: int = 0,
        admission: Admission | None = None,
        quota: Quota = unlimited,
    ) -> None:
        if warm < 0:
            raise ConfigurationError(f"the number of warm desktops must not be negative, got {warm}")
        self.slots = [Slot(Seat(str(i), desktop_factory, faces)) for i in range(size)]
        self.admission = admission or Admission()
        self.stock = Stock(warm, lambda name: Seat(name, desktop_factory, faces), self.admission, self._running)
        self.quota = quota
        self._free = list(self.slots)
        self._waiters: dict[Claim, _Waiter] = {}
        self._lent: Counter[str] = Counter()
        self._served: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._measured_at = 0.0

    # --- seats

    @property
    def waiting(self) -> int:
        """How many wait for a seat."""
        return sum(not waiter.given.done() for waiter in self._waiters.values())

    async def acquire(self, spec: DesktopSpec | None = None, owner: str = "") -> Slot:
        """Lend a seat, if possible one whose desktop fits; wait for one if need be. Cancel to give up."""
        waiter = _Waiter(spec, asyncio.get_running_loop().create_future())
        claim = Claim(owner, next(self._numbers))
        self._waiters[claim] = waiter
        self.serve_waiters()
        try:
            return await waiter.given
        except asyncio.CancelledError:
            if waiter.given.done() and not waiter.given.cancelled():  # a seat came at the same moment: pass it on
                self.release(waiter.given.result())
            raise
        finally:
            self._waiters.pop(claim, None)

    def serve_waiters(self) -> None:
        """Give free seats to whoever may have one."""
        while self._free:
            waiting = [claim for claim, waiter in self._waiters.items() if not waiter.given.done()]
            claim = next_claim(waiting, self._lent, self._served, self.quota) if waiting else None
            if claim is None:
                return
            waiter = self._waiters.pop(claim)
            slot = self._best(waiter.spec)
            self._free.remove(slot)
            self._lent[claim.owner] += 1
            self._served[claim.owner] = next(self._numbers)
            slot.owner = claim.owner
            slot.enter("leased")
            waiter.given.set_result(slot)

    def why_waiting(self, owner: str) -> str:
        """Why an owner gets no seat now, as part of a sentence, with what would help."""
        if not allowed(owner, self._lent, self.quota):
            return f"the quota of {self.quota(owner)} desktops is used up: end other sessions, or ask for a larger one"
        return f"all {len(self.slots)} desktops stayed lent: use fewer sessions, more --desktops, or a longer deadline"

    def _best(self, spec: DesktopSpec | None) -> Slot:
        def rank(slot: Slot) -> tuple[int, float]:
            if spec is not None and slot.seat.fits(spec):
                return 0, 0.0
            return 1 if not slot.seat.alive else 2, slot.released_at

        return min(self._free, key=rank)

    def release(self, slot: Slot) -> None:
        """Take a seat back. A desktop that no later episode may use is stopped in the background."""
        spec = slot.seat.spec
        if spec is not None and not slot.seat.fits(spec):
            slot.seat.discard()
        slot.enter("idle")
        slot.released_at = time.monotonic()
        self._lent[slot.owner] -= 1
        self._free.append(slot)
        self.serve_waiters()

    # --- desktops

    @asynccontextmanager
    async def prepared(self, slot: Slot, spec: DesktopSpec) -> AsyncIterator[None]:
        """Have a lent seat ready for an episode; cancel to give up.

        It keeps a desktop that fits, else gets that of a free seat, else a spare one. Failing these, the caller boots
        one: inside, where the machine has room for it.
        """
        if not slot.seat.fits(spec):
            self.fit(slot, spec)
        if not slot.seat.fits(spec):
            slot.seat.discard()
            await self.stock.fill(slot.seat, spec)
        try:
            if slot.seat.fits(spec):
                yield
            else:
                async with self.admission.boot(spec, self._running, self._make_room):
                    yield
        finally:
            self.stock.tend()

    def fit(self, slot: Slot, spec: DesktopSpec) -> None:
        """If a free seat has the desktop that a lent one needs, swap the two."""
        if slot.seat.fits(spec):
            return
        for other in self._free:
            if other.seat.fits(spec):
                slot.seat.exchange(other.seat)
                return

    def _running(self) -> int:
        spares = (spare.seat for spare in self.stock.spares)
        return sum(seat.spec is not None for seat in (*(slot.seat for slot in self.slots), *spares))

    def _make_room(self) -> bool:
        """Stop the desktop that lay idle longest, or a spare; whether there was one."""
        idle = [slot for slot in self._free if slot.seat.spec is not None]
        if not idle:
            return self.stock.make_room()
        min(idle, key=lambda slot: slot.released_at).seat.discard()
        return True

    async def keep_house(self, idle_s: float) -> None:
        """Stop desktops that nobody used for so long, and spares that nobody asked for; see what one desktop uses."""
        self.stop_idle(idle_s)
        self.stock.tend(idle_s)
        now = time.monotonic()
        if now - self._measured_at >= _MEASURE_PERIOD_S:
            self._measured_at = now
            await self._measure()

    async def _measure(self) -> None:
        for slot in self.slots:
            spec, measure = slot.seat.spec, slot.seat.memory_bytes
            if spec is not None and measure is not None:
                self.admission.learn(spec, await asyncio.to_thread(measure))

    def stop_idle(self, older_than_s: float) -> None:
        """Stop desktops that lay idle for long."""
        limit = time.monotonic() - older_than_s
        for slot in self._free:
            if slot.seat.spec is not None and slot.released_at < limit:
                slot.seat.discard()

    async def close(self) -> None:
        """Stop all desktops, in parallel."""
        await asyncio.gather(self.stock.close(), *(slot.seat.close() for slot in self.slots))

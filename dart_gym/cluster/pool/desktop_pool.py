"""The desktops of a server: a number of slots that are lent in a fair order, and warm desktops in reserve.

Invariants:
    - At most `size` slots are lent, to each owner at most its quota.
    - When slots are short, owners take turns, first come first served within one (`next_claim`). An owner whose quota
      is used up waits without holding up anybody else; of the others, the one that was served longest ago comes next,
      so that it waits for each other owner once at most.
    - A slot lies idle only while nobody who may have it waits.
    - A free slot keeps a living desktop that a later episode of the same owner may use. A session that needs another
      one takes an empty slot first, then the one whose desktop lay idle longest.
    - A desktop boots only when the machine has room for it (`admission`); warm and idle desktops make way.
    - Everything happens in one event loop, so there are no locks.
"""

import asyncio
import functools
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dart_gym.cluster.pool.boot_admission import Admission
from dart_gym.cluster.pool.warm_pool import WarmPool
from dart_gym.core.errors import ConfigurationError
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.osworld_api.api_address import APIPolicy
from dart_gym.sessions.slot import Slot

_MEASURE_PERIOD_S = 5.0


Quota = Callable[[str], int | None]
"""How many slots an owner may have at once; None for any number."""


def unlimited(owner: str) -> None:
    """Return the quota of owners without a quota."""
    return None


@dataclass(frozen=True, slots=True)
class Claim:
    """Somebody waits for a slot that counts for the account `owner`; later claims have larger numbers."""

    owner: str
    number: int


def allowed(owner: str, lent: Mapping[str, int], quota: Quota) -> bool:
    """Return whether an owner may have one more slot."""
    limit = quota(owner)
    return limit is None or lent.get(owner, 0) < limit


def next_claim(
    claims: Iterable[Claim], lent: Mapping[str, int], served: Mapping[str, int], quota: Quota
) -> Claim | None:
    """The claim that gets the next free slot; None when every owner that waits has used up its quota. Pure."""
    first: dict[str, Claim] = {}
    for claim in sorted(claims, key=lambda claim: claim.number):
        first.setdefault(claim.owner, claim)
    candidates = [claim for claim in first.values() if allowed(claim.owner, lent, quota)]
    return min(candidates, key=lambda claim: (served.get(claim.owner, 0), claim.number), default=None)


@dataclass(slots=True, eq=False)
class _Waiter:
    spec: DesktopSpec | None
    given: asyncio.Future[Slot]


class Pool:
    """Lends slots.

    Args:
        size: number of slots: how many desktops may be lent at once.
        warm: number of warm desktops to hold ready in addition to those that are lent.
        quota: how many slots an owner may have. Call `serve_waiters` when it has changed.
    """

    def __init__(
        self,
        size: int,
        desktop_factory: Callable[[DesktopSpec], Desktop] = make_desktop,
        api_policy: APIPolicy | None = None,
        *,
        warm: int = 0,
        admission: Admission | None = None,
        quota: Quota = unlimited,
    ) -> None:
        if warm < 0:
            raise ConfigurationError(f"the number of warm desktops must not be negative, got {warm}")
        self.admission = admission or Admission()
        make_slot = functools.partial(Slot, desktop_factory=desktop_factory, api_policy=api_policy)
        self.slots = [make_slot(str(i)) for i in range(size)]
        self.warm_pool = WarmPool(warm, make_slot, self.admission, self._running)
        self.quota = quota
        self._free = list(self.slots)
        self._waiters: dict[Claim, _Waiter] = {}
        self._lent: Counter[str] = Counter()
        self._served: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._measured_at = 0.0

    # --- slots

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return sum(not waiter.given.done() for waiter in self._waiters.values())

    async def acquire(self, spec: DesktopSpec | None = None, owner: str = "") -> Slot:
        """Lend a slot, if possible one whose desktop fits; wait for one if need be. Cancel to give up."""
        waiter = _Waiter(spec, asyncio.get_running_loop().create_future())
        claim = Claim(owner, next(self._numbers))
        self._waiters[claim] = waiter
        self.serve_waiters()
        try:
            return await waiter.given
        except asyncio.CancelledError:
            if waiter.given.done() and not waiter.given.cancelled():  # a slot came at the same moment: pass it on
                self.release(waiter.given.result())
            raise
        finally:
            self._waiters.pop(claim, None)

    def serve_waiters(self) -> None:
        """Give free slots to waiting sessions that may have one."""
        while self._free:
            waiting = [claim for claim, waiter in self._waiters.items() if not waiter.given.done()]
            claim = next_claim(waiting, self._lent, self._served, self.quota) if waiting else None
            if claim is None:
                return
            waiter = self._waiters.pop(claim)
            slot = self._best(waiter.spec, claim.owner)
            self._free.remove(slot)
            self._lent[claim.owner] += 1
            self._served[claim.owner] = next(self._numbers)
            slot.owner = claim.owner
            slot.enter("held")
            waiter.given.set_result(slot)

    def why_waiting(self, owner: str) -> str:
        """Why an owner gets no slot now, as part of a sentence, with what would help."""
        if not allowed(owner, self._lent, self.quota):
            return f"the quota of {self.quota(owner)} desktops is used up: end other sessions, or ask for a larger one"
        return f"all {len(self.slots)} desktops stayed lent: use fewer sessions, more --desktops, or a longer deadline"

    def _best(self, spec: DesktopSpec | None, owner: str) -> Slot:
        def rank(slot: Slot) -> tuple[int, float]:
            if spec is not None and slot.fits(spec, owner):
                return 0, 0.0
            return 1 if not slot.alive else 2, slot.released_at

        return min(self._free, key=rank)

    def release(self, slot: Slot) -> None:
        """Take a slot back. A desktop that no later episode may use is stopped in the background."""
        spec = slot.spec
        if spec is not None and not slot.fits(spec):
            slot.discard()
        slot.end_lease()
        slot.enter("idle")
        slot.released_at = time.monotonic()
        self._lent[slot.owner] -= 1
        self._free.append(slot)
        self.serve_waiters()

    # --- desktops

    @asynccontextmanager
    async def prepared(self, slot: Slot, spec: DesktopSpec) -> AsyncIterator[None]:
        """Have a lent slot ready for an episode; cancel to give up.

        It keeps a desktop that fits, else gets that of a free slot, else a warm one. Failing these, the caller boots
        one: inside, where the machine has room for it.
        """
        if not slot.fits(spec):
            self.fit(slot, spec)
        if not slot.fits(spec):
            slot.discard()
            await self.warm_pool.fill(slot, spec)
        try:
            if slot.fits(spec):
                yield
            else:
                async with self.admission.boot(spec, self._running, self._make_room):
                    yield
        finally:
            self.warm_pool.tend()

    def fit(self, slot: Slot, spec: DesktopSpec) -> None:
        """If a free slot has the desktop that a lent one needs, swap the two."""
        if slot.fits(spec):
            return
        for other in self._free:
            if other.fits(spec, slot.owner):
                slot.exchange(other)
                return

    def _running(self) -> int:
        warm = (one.slot for one in self.warm_pool.desktops)
        return sum(slot.spec is not None for slot in (*self.slots, *warm))

    def _make_room(self) -> bool:
        """Stop the desktop that lay idle longest, or a warm one; whether there was one."""
        idle = [slot for slot in self._free if slot.spec is not None]
        if not idle:
            return self.warm_pool.make_room()
        min(idle, key=lambda slot: slot.released_at).discard()
        return True

    async def maintain(self, idle_s: float) -> None:
        """Stop desktops that were idle this long, and warm ones that nobody asked for; measure what desktops use."""
        self.stop_idle(idle_s)
        self.warm_pool.tend(idle_s)
        now = time.monotonic()
        if now - self._measured_at >= _MEASURE_PERIOD_S:
            self._measured_at = now
            await self._measure()

    async def _measure(self) -> None:
        for slot in self.slots:
            spec, measure = slot.spec, slot.memory_bytes
            if spec is not None and measure is not None:
                self.admission.learn(spec, await asyncio.to_thread(measure))

    def stop_idle(self, older_than_s: float) -> None:
        """Stop desktops that lay idle for long."""
        limit = time.monotonic() - older_than_s
        for slot in self._free:
            if slot.spec is not None and slot.released_at < limit:
                slot.discard()

    async def close(self) -> None:
        """Stop all desktops, in parallel."""
        await asyncio.gather(self.warm_pool.close(), *(slot.close() for slot in self.slots))

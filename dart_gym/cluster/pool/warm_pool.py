"""The warm pool: desktops booted ahead, so that a reset takes one that is ready while the old one is thrown away.

Invariants:
    - At most `size` warm desktops are held in addition to the lent slots, and only where the machine has room for more
      than one such desktop. They make way for sessions that wait for memory.
    - Only specs that were asked for lately have warm desktops. One whose desktops are kept over episodes rarely boots:
      the last warm desktop is never of such a spec.
    - A warm desktop was never used by an episode. One that dies, or is not asked for any more, is thrown away.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dart_gym.cluster.pool.boot_admission import Admission
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.sessions.slot import Slot

log = logging.getLogger(__name__)

_REMEMBERED = 32
_RETRY_S = 30.0


def wanted(asked: Sequence[DesktopSpec], size: int) -> Counter[DesktopSpec]:
    """How many warm desktops of which spec to hold: in proportion to how often each was booted lately. Pure."""
    one_way = [spec for spec in asked if not spec.reusable]
    kept = [spec for spec in asked if spec.reusable]
    plan = _shares(one_way, size)
    return plan + _shares(kept, min(size - plan.total(), size - 1))


def _shares(asked: Sequence[DesktopSpec], size: int) -> Counter[DesktopSpec]:
    """Divide by largest remainder; of equal ones the spec that was asked for last."""
    if size <= 0 or not asked:
        return Counter()
    counts = Counter(asked)
    last = {spec: place for place, spec in enumerate(asked)}
    shares = Counter({spec: count * size // len(asked) for spec, count in counts.items()})
    by_remainder = sorted(counts, key=lambda spec: (counts[spec] * size % len(asked), last[spec]), reverse=True)
    for spec in by_remainder[: size - shares.total()]:
        shares[spec] += 1
    return +shares


@dataclass(slots=True, eq=False)
class WarmDesktop:
    """A warm desktop in `slot`, the place that it has until a session takes it; `booting` is the task that boots it."""

    spec: DesktopSpec
    slot: Slot
    booting: asyncio.Task[bool]

    @property
    def usable(self) -> bool:
        """Return whether it is ready, or may still become so."""
        return not self.booting.done() or self.slot.alive


class WarmPool:
    """The warm desktops of a server."""

    def __init__(
        self, size: int, make_slot: Callable[[str], Slot], admission: Admission, running: Callable[[], int]
    ) -> None:
        self.size = size
        self.desktops: list[WarmDesktop] = []
        self.taken = self.missed = 0
        self._make_slot = make_slot
        self.admission = admission
        self._running = running
        self._asked: deque[tuple[float, DesktopSpec]] = deque(maxlen=_REMEMBERED)
        self.failed: dict[DesktopSpec, float] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._at_once = max(1, (os.cpu_count() or 1) // 4)
        self._closed = False

    async def fill(self, slot: Slot, spec: DesktopSpec) -> bool:
        """Put a warm desktop into an empty slot; whether there was one. Waits for one that is booting already."""
        if self.size and not spec.url:  # there is only one machine at a URL
            self._asked.append((time.monotonic(), spec))
        while (warm := self._best(spec)) is not None:
            self.desktops.remove(warm)
            try:
                ready = await asyncio.shield(warm.booting)
            except asyncio.CancelledError:
                self.desktops.append(warm)  # the session that asked for it has given up: it is for the next one
                if self._closed:
                    self._drop(warm)
                raise
            if ready and warm.slot.fits(spec):
                slot.exchange(warm.slot)
                self.taken += 1
                return True
            self._drop(warm)
        self.missed += self.size > 0
        return False

    def _best(self, spec: DesktopSpec) -> WarmDesktop | None:
        """A ready one, else the one that boots for longest."""
        fitting = [warm for warm in self.desktops if warm.spec == spec and warm.usable]
        return min(fitting, key=lambda warm: not warm.booting.done(), default=None)

    def tend(self, forget_s: float = float("inf")) -> None:
        """Throw away what was not asked for in `forget_s` seconds, and boot what is missing, a few at a time."""
        now = time.monotonic()
        while self._asked and self._asked[0][0] < now - forget_s:
            self._asked.popleft()
        self.failed = {spec: until for spec, until in self.failed.items() if until > now}
        missing = wanted([spec for _, spec in self._asked if spec not in self.failed], self.size)
        for warm in list(self.desktops):
            if warm.usable and missing[warm.spec] > 0:
                missing[warm.spec] -= 1
            else:
                self._drop(warm)
        for spec in missing.elements():
            booting = sum(not warm.booting.done() for warm in self.desktops)
            if self._closed or booting >= self._at_once or not self.admission.room_for(spec, self._running()):
                return
            self._boot(spec)

    def _boot(self, spec: DesktopSpec) -> None:
        slot = self._make_slot("warm")
        promise = contextlib.ExitStack()
        promise.enter_context(self.admission.promised(spec))  # at once, so that the next look at the room sees it
        booting = asyncio.create_task(self._start(slot, spec), name="boot-warm")
        self.desktops.append(WarmDesktop(spec, slot, booting))
        booting.add_done_callback(lambda _: promise.close())
        booting.add_done_callback(lambda _: self.tend())

    async def _start(self, slot: Slot, spec: DesktopSpec) -> bool:
        try:
            await slot.boot(spec)
        except Exception as error:  # the next session that needs such a desktop boots it, and gets the error
            log.warning("a warm %s desktop did not boot: %s", spec.profile, error)
            self.failed[spec] = time.monotonic() + _RETRY_S
            return False
        return True

    def make_room(self) -> bool:
        """Throw a warm desktop away because somebody needs its memory; whether there was one."""
        for warm in self.desktops:
            if warm.slot.alive:
                self._drop(warm)
                return True
        return False

    def _drop(self, warm: WarmDesktop) -> None:
        if warm in self.desktops:
            self.desktops.remove(warm)
        warm.booting.cancel()
        task = asyncio.create_task(self._end(warm), name="end-warm")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, warm: WarmDesktop) -> None:
        await asyncio.wait({warm.booting})
        await warm.slot.close()

    async def close(self) -> None:
        """Throw all away and wait until they are gone."""
        self._closed = True
        for warm in list(self.desktops):
            self._drop(warm)
        while self._ending:
            await asyncio.wait(self._ending)

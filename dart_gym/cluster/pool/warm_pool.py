"""Spare desktops: booted ahead, so that a reset takes one that is ready while the old one is thrown away.

Invariants:
    - Spares come beside the seats that are lent, at most `size` of them, and only where the machine has room for
      more than one such desktop. They make way for whoever waits for memory.
    - Only specs that were asked for lately have spares. One whose desktops are kept over episodes rarely boots, so
      that the last spare is never of such a spec.
    - A spare was never used by an episode. One that dies, or is not asked for any more, is thrown away.
"""

from __future__ import annotations

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
from dart_gym.sessions.seat import Seat

log = logging.getLogger(__name__)

_REMEMBERED = 32
_RETRY_S = 30.0


def wanted(asked: Sequence[DesktopSpec], size: int) -> Counter[DesktopSpec]:
    """How many spares of which spec to hold: in proportion to how often each was booted lately. Pure.

    Args:
        asked: specs that had to boot, oldest first.
        size: how many spares there may be.
    """
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
class Spare:
    """A desktop that is ready, or being booted.

    Attributes:
        spec: of the desktop.
        seat: its place.
        booting: the task that boots it.
    """

    spec: DesktopSpec
    seat: Seat
    booting: asyncio.Task[bool]

    @property
    def usable(self) -> bool:
        """Whether it is ready, or may still become so."""
        return not self.booting.done() or self.seat.alive


class Stock:
    """The spares of a server.

    Args:
        size: how many to hold.
        make_seat: makes an empty seat of a name.
        admission: whether the machine has room.
        running: counts this server's desktops, spares included.
    """

    def __init__(
        self, size: int, make_seat: Callable[[str], Seat], admission: Admission, running: Callable[[], int]
    ) -> None:
        self.size = size
        self.spares: list[Spare] = []
        self.taken = self.missed = 0
        self._make_seat, self._admission, self._running = make_seat, admission, running
        self._asked: deque[tuple[float, DesktopSpec]] = deque(maxlen=_REMEMBERED)
        self._failed: dict[DesktopSpec, float] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._at_once = max(1, (os.cpu_count() or 1) // 4)
        self._closed = False

    async def fill(self, seat: Seat, spec: DesktopSpec) -> bool:
        """Put a spare into an empty seat; whether there was one. Waits for one that is booting already."""
        if self.size and not spec.url:  # there is only one machine at a URL
            self._asked.append((time.monotonic(), spec))
        while (spare := self._best(spec)) is not None:
            self.spares.remove(spare)
            try:
                ready = await asyncio.shield(spare.booting)
            except asyncio.CancelledError:
                self.spares.append(spare)  # who asked for it has given up: it is for the next one
                if self._closed:
                    self._drop(spare)
                raise
            if ready and spare.seat.fits(spec):
                seat.exchange(spare.seat)
                self.taken += 1
                return True
            self._drop(spare)
        self.missed += self.size > 0
        return False

    def _best(self, spec: DesktopSpec) -> Spare | None:
        """A ready one, else the one that boots for longest."""
        fitting = [spare for spare in self.spares if spare.spec == spec and spare.usable]
        return min(fitting, key=lambda spare: not spare.booting.done(), default=None)

    def tend(self, forget_s: float = float("inf")) -> None:
        """Throw away what is not wanted any more, and boot what is missing, a few at a time.

        Args:
            forget_s: what was not asked for in so many seconds is not wanted any more.
        """
        now = time.monotonic()
        while self._asked and self._asked[0][0] < now - forget_s:
            self._asked.popleft()
        missing = self._plan(now)
        for spare in list(self.spares):
            if spare.usable and missing[spare.spec] > 0:
                missing[spare.spec] -= 1
            else:
                self._drop(spare)
        for spec in missing.elements():
            booting = sum(not spare.booting.done() for spare in self.spares)
            if self._closed or booting >= self._at_once or not self._admission.room_for(spec, self._running()):
                return
            self._boot(spec)

    def _plan(self, now: float) -> Counter[DesktopSpec]:
        self._failed = {spec: until for spec, until in self._failed.items() if until > now}
        return wanted([spec for _, spec in self._asked if spec not in self._failed], self.size)

    def _boot(self, spec: DesktopSpec) -> None:
        seat = self._make_seat("spare")
        promise = contextlib.ExitStack()
        promise.enter_context(self._admission.promised(spec))  # at once, so that the next look at the room sees it
        booting = asyncio.create_task(self._start(seat, spec), name="boot-spare")
        self.spares.append(Spare(spec, seat, booting))
        booting.add_done_callback(lambda _: promise.close())
        booting.add_done_callback(lambda _: self.tend())

    async def _start(self, seat: Seat, spec: DesktopSpec) -> bool:
        try:
            await seat.boot(spec)
        except Exception as error:  # whoever asks for such a desktop next boots it, and is told
            log.warning("a spare %s desktop did not boot: %s", spec.profile, error)
            self._failed[spec] = time.monotonic() + _RETRY_S
            return False
        return True

    def make_room(self) -> bool:
        """Throw a spare away because somebody needs its memory; whether there was one."""
        for spare in self.spares:
            if spare.seat.alive:
                self._drop(spare)
                return True
        return False

    def _drop(self, spare: Spare) -> None:
        if spare in self.spares:
            self.spares.remove(spare)
        spare.booting.cancel()
        task = asyncio.create_task(self._end(spare), name="end-spare")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, spare: Spare) -> None:
        await asyncio.wait({spare.booting})
        await spare.seat.close()

    async def close(self) -> None:
        """Throw all spares away and wait until they are gone."""
        self._closed = True
        for spare in list(self.spares):
            self._drop(spare)
        while self._ending:
            await asyncio.wait(self._ending)

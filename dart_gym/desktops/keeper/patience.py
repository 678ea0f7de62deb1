"""Decide about what is late on a busy machine: whether its processes have had the time that they need.

Invariants:
    - No program of a desktop can give itself less processor time than it has had: the control group of a desktop counts
      it, and where there is none the kernel counts it for each process and for the children that it has waited for.
"""

from __future__ import annotations

from collections.abc import Callable

from dart_gym.desktops.confinement.resource_limits import groups_of
from dart_gym.desktops.keeper.held_up import Delay, what_delays
from dart_gym.desktops.sandbox.guest import descendants
from dart_gym.utils.processes import processor_seconds

ENOUGH_S = 20.0
"""Processor seconds after which a getter's command or an evaluation has had its time; it usually takes a few."""


class Patience:
    """A judge of processes (see `core.operation_deadline.Judge`), which are given with all below them.

    The first time it is asked, what delays them at this moment decides. Where that is the machine, they have had their
    time as soon as they have used enough of a processor since the beginning, or want none twice in a row.

    Args:
        roots: returns the processes; it is called each time, for they may be replaced.
        enough_s: seconds of a processor; None for `ENOUGH_S`.
    """

    def __init__(self, roots: Callable[[], set[int]], enough_s: float | None = None) -> None:
        self._roots = roots
        self._enough_s = ENOUGH_S if enough_s is None else enough_s
        self._before = 0.0
        self._asked = self._wanted_nothing = False

    def begin(self) -> None:
        """Note what they have used until now."""
        self._before = used_by(self._roots())

    def had_its_time(self) -> bool:
        """Return whether they are late by their own doing; takes a tenth of a second."""
        return used_by(self._roots()) - self._before >= self._enough_s or self.hold_themselves_up()

    def hold_themselves_up(self) -> bool:
        """Return whether they are late by their own doing, by what their threads do now and did the last time."""
        # a machine that was too busy before: what they lacked then they get now
        delay = what_delays(self._roots(), overloaded=self._asked)
        before, self._wanted_nothing = self._wanted_nothing, delay is Delay.WANTS_NOTHING
        self._asked = True
        return delay is Delay.ITSELF or (before and self._wanted_nothing)


def used_by(roots: set[int]) -> float:
    """Return the processor time in seconds that processes and all below them have had, those that ended included."""
    pids = {pid for root in roots for pid in (root, *descendants(root))}
    counted = groups_of(pids).processor_seconds()
    return max(counted, processor_seconds(pids))

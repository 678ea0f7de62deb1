"""Whether the machine can bear another desktop: looked at before each boot.

What a desktop of the kind was seen to use must be free, beside what those that are booting will still take. A busy
processor forbids nothing: a boot only takes longer.

Invariants:
    - Boots are admitted in the order in which they were asked for.
    - What waits says why (`Admission.reason`).
    - A machine without any desktop of ours always gets one: estimates may be wrong, and nobody else would free memory.
    - What cannot be read (another kernel, a container without limits) limits nothing.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dart_gym.core.errors import ConfigurationError
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.utils.processes import machine_memory

MIB = 1 << 20
_PERIOD_S = 0.25  # the kernel tells nobody when memory becomes free
_FORGET = 0.1  # how fast an estimate follows when desktops use less than before

_FIRST_ESTIMATES = {"bare": 60 * MIB, "browser": 300 * MIB, "osworld": 400 * MIB}
"""What an Xvfb desktop of a profile needs, before any was measured."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine has left.

    Attributes:
        available: bytes of memory that programs can still take; None where that cannot be known.
    """

    available: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a machine must have left.

    Attributes:
        reserve: bytes of memory that desktops leave to others; None for a twentieth of it, at most 512 MiB.
        memory: whether desktops take memory of this machine; False where they run elsewhere.
    """

    reserve: int | None = None
    memory: bool = True

    def __post_init__(self) -> None:
        if self.reserve is not None and self.reserve < 0:
            raise ConfigurationError(f"the reserved memory must not be negative, got {self.reserve} bytes")


@dataclass(frozen=True, slots=True)
class Admit:
    """The desktop may boot now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """It may not, and why."""

    reason: str


def admit(machine: Machine, limits: Limits, *, need: int, promised: int, running: int) -> Admit | Wait:
    """Decide whether a desktop may boot."""
    if not running:
        return Admit()
    if limits.memory and machine.available is not None:
        reserve = limits.reserve
        if reserve is None:
            reserve = min(512 * MIB, (machine.total or machine.available) // 20)
        free = machine.available - promised
        if free - need < reserve:
            return Wait(
                f"the desktop needs about {need // MIB} MiB of memory, and {max(0, free) // MIB} MiB are free, "
                f"of which {reserve // MIB} MiB stay reserved, beside {running} running desktops"
            )
    return Admit()


def read_machine() -> Machine:
    """Return what this machine has left now, within the limits of the control groups that this process is in."""
    found = [pair for pair in (_meminfo(), *control_groups()) if pair is not None]
    return Machine(*min(found)) if found else Machine()


def _meminfo() -> tuple[int, int] | None:
    try:
        return machine_memory()
    except (OSError, KeyError, ValueError):
        return None


def control_groups(
    root: Path = Path("/sys/fs/cgroup"), member: Path = Path("/proc/self/cgroup")
) -> list[tuple[int, int]]:
    """(available, limit) of each control group of this process that limits memory, of either version."""
    try:
        lines = [line.split(":", 2) for line in member.read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, name in lines:
        if controllers == "":
            files, base = ("memory.max", "memory.current", "inactive_file"), root
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            files, base = names, root / "memory"
        else:
            continue
        place = Path(name.lstrip("/"))
        for part in (place, *place.parents):  # a container sees its own group as the root, under another name
            if (pair := _control_group(base / part, *files)) is not None:
                found.append(pair)
    return found


def _control_group(directory: Path, limit: str, usage: str, reclaimable: str) -> tuple[int, int] | None:
    try:
        most, used = int((directory / limit).read_text()), int((directory / usage).read_text())
        statistics = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
        used -= int(statistics.get(reclaimable, 0))
    except (OSError, ValueError):
        return None  # no such group here, or no limit ("max")
    return max(0, most - used), most


@dataclass(slots=True, eq=False)
class _Ticket:
    need: int


class Admission:
    """Lets desktops boot, one after the other, in one event loop; `reason`: why the first in the queue waits, or ""."""

    def __init__(self, limits: Limits | None = None, probe: Callable[[], Machine] = read_machine) -> None:
        self.limits = limits or Limits()
        self.reason = ""
        self._probe = probe
        self._queue: deque[_Ticket] = deque()
        self._promised: set[_Ticket] = set()
        self._used: dict[tuple[str, str, int, int], int] = {}
        self._changed = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many boots wait."""
        return len(self._queue)

    def need(self, spec: DesktopSpec) -> int:
        """Bytes that a desktop is expected to use; 0 where it runs elsewhere or costs nothing."""
        first = _FIRST_ESTIMATES.get(spec.profile, 0) if spec.kind == "xvfb" else 0
        return self._used.get(_kind(spec), first)

    def learn(self, spec: DesktopSpec, used: int) -> None:
        """Take note of what a desktop uses: estimates rise at once and fall slowly."""
        before = self._used.get(_kind(spec), 0)
        self._used[_kind(spec)] = max(used, round(before + _FORGET * (used - before)))

    def room_for(self, spec: DesktopSpec, running: int) -> bool:
        """Return whether a desktop could boot now and leave room for one more like it, and no session waits."""
        if self._queue:
            return False
        decision = self._decide(2 * self.need(spec), max(1, running))
        return isinstance(decision, Admit)

    def _decide(self, need: int, running: int) -> Admit | Wait:
        if not need:
            return Admit()
        promised = sum(ticket.need for ticket in self._promised)
        return admit(self._probe(), self.limits, need=need, promised=promised, running=running)

    @contextlib.asynccontextmanager
    async def boot(
        self, spec: DesktopSpec, running: Callable[[], int], make_room: Callable[[], bool]
    ) -> AsyncIterator[None]:
        """Wait until a desktop may boot; its memory counts as promised inside. Cancel to give up."""
        ticket = _Ticket(self.need(spec))
        self._queue.append(ticket)
        try:
            while not self._passes(ticket, running, make_room):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _PERIOD_S)
        finally:
            self._queue.remove(ticket)
            self.reason = ""
            self._notify()
        with self.promised(spec):
            yield

    @contextlib.contextmanager
    def promised(self, spec: DesktopSpec) -> Iterator[None]:
        """Count the memory of a desktop that boots as taken, without a look at the machine."""
        ticket = _Ticket(self.need(spec))
        self._promised.add(ticket)
        try:
            yield
        finally:
            self._promised.remove(ticket)
            self._notify()

    def _passes(self, ticket: _Ticket, running: Callable[[], int], make_room: Callable[[], bool]) -> bool:
        if self._queue[0] is not ticket:
            return False
        decision = self._decide(ticket.need, running())
        if isinstance(decision, Admit):
            return True
        self.reason = decision.reason
        make_room()
        return False

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _kind(spec: DesktopSpec) -> tuple[str, str, int, int]:
    return spec.kind, spec.profile, spec.width, spec.height

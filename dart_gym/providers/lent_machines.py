"""A desktop on a machine that is lent for its life: taken when it starts, given back when it stops.

Invariants:
    - A machine that was taken is given back exactly once, also when the start fails, is cancelled, or it breaks.
    - Giving back is never cut short by a cancelled caller.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Protocol

from dart_gym.core.errors import ConfigurationError, DesktopError
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.desktops.osworld_vm.machine_address import MachineAddress
from dart_gym.desktops.osworld_vm.osworld_desktop import OSWorldDesktop
from dart_gym.providers.provider import elsewhere

_NOWHERE = MachineAddress("a machine that is not lent yet", "http://localhost")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that is lent."""

    id: str
    address: MachineAddress
    held: Any = None


class Lender(Protocol):
    """Lends machines; `longest_start_s`: how long a start may take, where longer than a desktop's usual time."""

    longest_start_s: float

    async def take(self, spec: DesktopSpec, timeout: float) -> Machine:
        """A machine, running or about to; failures leave nothing. Raises `DesktopTimeoutError`, `DesktopError`."""

    async def give_back(self, machine: Machine) -> None:
        """Take a machine back. Never raises: errors are logged, and the next borrower resets the machine."""


class LentDesktop(OSWorldDesktop):
    """See `dart_gym.desktops.base.desktop.Desktop`."""

    def __init__(self, spec: DesktopSpec, lender: Lender) -> None:
        super().__init__(spec, _NOWHERE)
        self._lender = lender
        self._machine: Machine | None = None

    async def start(self, *, timeout: float = 60.0) -> None:
        """Take a machine, and wait until it answers."""
        if self._machine is not None:
            raise DesktopError("the desktop is started already; stop it first")
        deadline = time.monotonic() + max(timeout, self._lender.longest_start_s)
        machine = self._machine = await self._lender.take(self.spec, deadline - time.monotonic())
        self._address = machine.address
        await super().start(timeout=max(1.0, deadline - time.monotonic()))  # it stops itself when that fails

    async def stop(self) -> None:
        """Give the machine back. Idempotent."""
        await super().stop()
        machine, self._machine = self._machine, None
        if machine is not None:
            await asyncio.shield(asyncio.ensure_future(self._lender.give_back(machine)))


def osworld_machine(spec: DesktopSpec, lender: Lender, provider: str) -> Desktop:
    """Make a desktop, not started yet, on one of a provider's OSWorld machines.

    Raises:
        ConfigurationError: if other desktops are asked for.
    """
    if (other := elsewhere(spec)) is not None:
        return other
    if spec.profile != "osworld":
        raise ConfigurationError(
            f"the provider {provider!r} has OSWorld's machines, and the task needs a desktop of profile "
            f"{spec.profile!r}; next step: serve it from another server, with --provider xvfb or docker"
        )
    return LentDesktop(spec, lender)

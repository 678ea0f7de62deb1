"""The provider "url": machines with OSWorld's server that run already, lent one by one.

Invariants:
    - A machine is lent to one desktop at a time; who waits gets the one that was free for longest.
    - Machines are used as they are: their owner must reset them between episodes.
"""

import asyncio
from collections import deque
from typing import Annotated

from pydantic import BeforeValidator, Field

from dart_gym.core.errors import ConfigurationError, DesktopTimeoutError
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.desktops.osworld_vm.machine_address import parse_machine_url
from dart_gym.providers.lent_machines import Machine, osworld_machine
from dart_gym.providers.provider import Options


def _listed(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class UrlOptions(Options):
    """Options of the provider "url": addresses of the machines, separated by commas; see `parse_machine_url`."""

    urls: Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]


class UrlProvider:
    """See `dart_gym.providers.provider.Provider`.

    Raises:
        ConfigurationError: if a URL is malformed or given twice.
    """

    name = "url"
    options_type = UrlOptions
    local, warm = False, 0
    longest_start_s = 60.0

    def __init__(self, options: UrlOptions) -> None:
        addresses = [parse_machine_url(url) for url in options.urls]
        for number, address in enumerate(addresses):
            if any(address.shown == other.shown for other in addresses[:number]):
                raise ConfigurationError(f"the machine {address.shown} is given twice")
        self.capacity: int | None = len(addresses)
        self.free = deque(Machine(address.shown, address) for address in addresses)
        self._waiters: deque[asyncio.Future[Machine]] = deque()

    async def open(self) -> list[str]:
        """Nothing to do: whether a machine answers is seen when it is lent."""
        return []

    def desktop(self, spec: DesktopSpec) -> Desktop:
        """A desktop, not started yet."""
        return osworld_machine(spec, self, self.name)

    async def take(self, spec: DesktopSpec, timeout: float) -> Machine:
        """A free machine; waits for one."""
        if self.free:
            return self.free.popleft()
        waiter: asyncio.Future[Machine] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout):
                return await waiter
        except TimeoutError:
            self._give_up(waiter)
            raise DesktopTimeoutError(
                f"all {self.capacity} machines stayed lent for {timeout:.0f} s; next step: fewer desktops, or more urls"
            ) from None
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise

    def _give_up(self, waiter: asyncio.Future[Machine]) -> None:
        if waiter.done() and not waiter.cancelled():  # a machine came at the same moment: pass it on
            self._pass_on(waiter.result())
        elif waiter in self._waiters:
            self._waiters.remove(waiter)

    async def give_back(self, machine: Machine) -> None:
        """Take a machine back and pass it to the caller that has waited longest."""
        self._pass_on(machine)

    def _pass_on(self, machine: Machine) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(machine)
                return
        self.free.append(machine)

    async def close(self) -> None:
        """Nothing to do: the machines are not the provider's."""

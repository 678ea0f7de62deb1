"""The provider "xvfb": desktops of this machine, which is what a server has without being told otherwise."""

import asyncio

from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.keeper.fork_client import fork_client
from dart_gym.providers.provider import Options


class EmbeddedOptions(Options):
    """It has none: tasks say what they need."""


class EmbeddedProvider:
    """See `dart_gym.providers.provider.Provider`."""

    name = "xvfb"
    options_type = EmbeddedOptions
    capacity: int | None = None
    local, warm = True, 1
    desktop = staticmethod(make_desktop)

    def __init__(self, options: EmbeddedOptions) -> None:
        self.options = options

    async def open(self) -> list[str]:
        """Have keepers at hand: a server removes its predecessors' sandboxes itself."""
        await asyncio.to_thread(fork_client().prepare)
        return []

    async def close(self) -> None:
        """Nothing to do."""

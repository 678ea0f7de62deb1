"""The provider "xvfb": desktops of this machine, which is what a server has without being told otherwise."""

import asyncio
import logging

from dart_gym.desktops.confinement.resource_limits import NO_GROUPS, group_places
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.keeper.fork_client import fork_client
from dart_gym.providers.provider import Options

log = logging.getLogger(__name__)


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
        """Have keepers at hand, and say what desktops lack: a server removes its predecessors' sandboxes itself."""
        if not group_places():
            log.warning(NO_GROUPS)
        await asyncio.to_thread(fork_client().prepare)
        return []

    async def close(self) -> None:
        """Nothing to do."""

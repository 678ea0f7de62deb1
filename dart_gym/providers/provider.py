"""What a provider is: it makes desktops for a server, and leaves none behind.

Invariants:
    - `open` looks whether desktops can be made at all, and removes what a killed server of this machine left behind.
    - A desktop that was stopped, or whose start failed or was cancelled, has given all of its resources back.
    - A provider serves tasks that leave the kind of their desktop open (kind "xvfb"). Drawn desktops, and machines that
      a client names by their URL, are made as without it.
"""

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, ClassVar, Protocol

from dart_gym.core.section import Section
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.desktops.factory import make_desktop

log = logging.getLogger(__name__)


class Options(Section):
    """Base of the options of the providers."""


class Provider(Protocol):
    """Makes desktops. A class of one's own is named on the command line as those here are (`docs/guides/plugins.md`).

    Attributes:
        name: name of the provider on the command line.
        options_type: what its options are; it is constructed with one of them.
        capacity: how many desktops it can have at once; None for no limit that it knows of.
        local: whether its desktops take memory of this machine.
        warm: default number of desktops that a server holds ready in addition to those that are lent.
    """

    name: str
    options_type: ClassVar[type[Options]]
    capacity: int | None
    local: bool
    warm: int

    def __init__(self, options: Any) -> None: ...

    async def open(self) -> list[str]:
        """Get ready; what of a dead server was removed. Raises `ConfigurationError`, `MissingDependencyError`."""

    def desktop(self, spec: DesktopSpec) -> Desktop:
        """A desktop, not started yet: the factory of a server."""

    async def close(self) -> None:
        """Wait until everything that it started is gone. Call it after the desktops were stopped. Idempotent."""


@contextlib.asynccontextmanager
async def opened(provider: Provider) -> AsyncIterator[Provider]:
    """Open a provider, say what it removed, and close it at the end."""
    for name in await provider.open():
        log.info("removed %s, left behind by a server that is dead", name)
    try:
        yield provider
    finally:
        await provider.close()


def elsewhere(spec: DesktopSpec) -> Desktop | None:
    """The desktop of a spec that no provider serves; None where it is the provider's."""
    return None if spec.kind == "xvfb" else make_desktop(spec)

"""Ends a desktop from inside, as a program of an agent can."""

from __future__ import annotations

from contextlib import suppress

from dart_gym.core.errors import DesktopError
from dart_gym.desktops.base.desktop import Desktop


async def launch_the_end(desktop: Desktop, *command: str) -> None:
    """Start a program that ends the desktop, perhaps before it is answered: how the desktop ended is for the caller."""
    with suppress(DesktopError):
        await desktop.launch(list(command))

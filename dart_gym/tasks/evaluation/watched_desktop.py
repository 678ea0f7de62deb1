"""A desktop as an evaluation sees it, which notes what else would be lost: OSWorld's getters take any failure for "no".

Invariants:
    - What the desktop's own programs cause (`DesktopStateError`) is not trouble: it is what the agent has left.
    - All other failures of the desktop are kept in `trouble`, also where a getter has answered None instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dart_gym.core.errors import DesktopError, DesktopStateError
from dart_gym.desktops.base.desktop import CommandResult, Desktop, SiteHost


class WatchedDesktop:
    """Passes all on to a desktop.

    Attributes:
        watched: the desktop itself.
        trouble: the first failure of host or server.
        decides: whether it is the desktop that decides how long an evaluation takes now; see `elsewhere`.
    """

    def __init__(self, desktop: Desktop) -> None:
        self.watched = desktop
        self.trouble: DesktopError | None = None
        self.decides = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.watched, name)

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Attribute waits in the block to the machine or the network; what is given up there stays so."""
        self.decides = False
        yield
        self.decides = True

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except DesktopStateError:
            raise
        except DesktopError as error:
            self.trouble = self.trouble or error
            raise

    async def execute(
        self, command: list[str], *, timeout: float = 60.0, stdin: bytes = b"", env: dict[str, str] | None = None
    ) -> CommandResult:
        """Run a program to its end; see `Desktop.execute`."""
        with self._asking():
            return await self.watched.execute(command, timeout=timeout, stdin=stdin, env=env)

    async def read_file(self, path: str) -> bytes:
        """Content of a file; see `Desktop.read_file`."""
        with self._asking():
            return await self.watched.read_file(path)

    async def write_file(self, path: str, data: bytes) -> None:
        """Create or replace a file; see `Desktop.write_file`."""
        with self._asking():
            await self.watched.write_file(path, data)

    async def open_port(self, port: int) -> Path:
        """Path of a Unix socket that leads to a port; see `Desktop.open_port`."""
        with self._asking():
            return await self.watched.open_port(port)

    def check(self) -> None:
        """Raise what host or server have failed with, if anything."""
        if self.trouble is not None:
            raise self.trouble


class _WatchedSites(WatchedDesktop):
    async def set_site(self, name: str, state: Any) -> None:
        """See `SiteHost`."""
        await self.watched.set_site(name, state)  # type: ignore[attr-defined]  # made for such desktops alone

    async def site_state(self, name: str) -> dict[str, Any]:
        """See `SiteHost`."""
        with self._asking():
            return dict(await self.watched.site_state(name))  # type: ignore[attr-defined]

    async def seal_sites(self) -> None:
        """See `SiteHost`."""
        await self.watched.seal_sites()  # type: ignore[attr-defined]


def watch(desktop: Any) -> Any:
    """Return a desktop as one that is watched; the same one if it is already."""
    if isinstance(desktop, WatchedDesktop):
        return desktop
    return (_WatchedSites if isinstance(desktop, SiteHost) else WatchedDesktop)(desktop)

"""The windows of a desktop: found by title, awaited, measured."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass

from dart_gym.desktops.base import Desktop
from dart_gym.errors import DesktopTimeoutError, TaskError

_POLL_S = 0.03
_TIMEOUT_S = 10.0
_GEOMETRY = {
    "x": "Absolute upper-left X",
    "y": "Absolute upper-left Y",
    "width": "Width",
    "height": "Height",
}


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where a window's content lies on the screen, without its frame, in pixels."""

    x: int
    y: int
    width: int
    height: int


async def find_windows(desktop: Desktop, name: str, *, strict: bool = False, by_class: bool = False) -> list[int]:
    """X ids of the visible windows whose title (or class) contains `name`, or equals it when `strict`."""
    kind = "--class" if by_class else "--name"
    command = ["xdotool", "search", "--onlyvisible", kind, title_pattern(name, strict)]
    result = await desktop.execute(command, timeout=_TIMEOUT_S)
    return [int(line) for line in result.stdout.split()]


def title_pattern(name: str, strict: bool) -> str:
    """POSIX extended regular expression of a title. Pure."""
    pattern = re.sub(r"([\\.^$*+?()\[\]{}|])", r"\\\1", name)
    return f"^{pattern}$" if strict else pattern


async def wait_for_window(desktop: Desktop, name: str, *, strict: bool = False, timeout: float = 15.0) -> int:
    """Wait until a window with this title is mapped, and return its X id.

    Raises:
        DesktopTimeoutError: it did not appear in time.
    """
    deadline = time.monotonic() + timeout
    while not (windows := await find_windows(desktop, name, strict=strict)):
        if time.monotonic() > deadline:
            raise DesktopTimeoutError(f"no window titled {name!r} appeared within {timeout:g} s")
        await asyncio.sleep(_POLL_S)
    return windows[-1]


async def geometry(desktop: Desktop, window: int) -> Geometry:
    """Where a window is. Raises `TaskError` when it is gone."""
    result = await desktop.execute(["xwininfo", "-id", str(window)], timeout=_TIMEOUT_S)
    found = parse_geometry(result.stdout.decode(errors="replace"))
    if found is None:
        raise TaskError(f"window {window} is gone: {result.stderr.decode(errors='replace').strip()}")
    return found


def parse_geometry(text: str) -> Geometry | None:
    """Read what `xwininfo` prints; None where a number is missing. Pure."""
    values = {}
    for field, label in _GEOMETRY.items():
        match = re.search(rf"^\s*{re.escape(label)}:\s+(-?\d+)$", text, re.MULTILINE)
        if match is None:
            return None
        values[field] = int(match[1])
    return Geometry(**values)

"""The windows of a desktop, as its window manager lists them: found by title, awaited, measured."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass

from dart_gym.desktops.base import Desktop
from dart_gym.errors import DesktopTimeoutError

_POLL_S = 0.03


@dataclass(frozen=True, slots=True)
class Window:
    """A mapped window.

    Attributes:
        id: X window id.
        title: `_NET_WM_NAME`.
        x: left edge on the screen in pixels, without the frame.
        y: top edge.
        width: in pixels.
        height: in pixels.
    """

    id: int
    title: str
    x: int
    y: int
    width: int
    height: int


async def find_windows(desktop: Desktop, name: str, *, strict: bool = False, by_class: bool = False) -> list[Window]:
    """Visible windows whose title (or class) contains `name`, or equals it when `strict`; oldest first."""
    pattern = re.escape(name).replace(r"\ ", " ")
    pattern = f"^{pattern}$" if strict else pattern
    command = ["xdotool", "search", "--onlyvisible", "--class" if by_class else "--name", pattern]
    command += ["getwindowname", "%@", "getwindowgeometry", "--shell", "%@"]
    result = await desktop.execute(command, timeout=10.0)
    return parse_windows(result.stdout.decode(errors="replace"))


async def wait_for_window(desktop: Desktop, name: str, *, strict: bool = False, timeout: float = 15.0) -> Window:
    """Wait until a window with this title is mapped.

    Raises:
        DesktopTimeoutError: it did not appear in time.
    """
    deadline = time.monotonic() + timeout
    while not (windows := await find_windows(desktop, name, strict=strict)):
        if time.monotonic() > deadline:
            raise DesktopTimeoutError(f"no window titled {name!r} appeared within {timeout:g} s")
        await asyncio.sleep(_POLL_S)
    return windows[-1]


def parse_windows(text: str) -> list[Window]:
    """Read what `xdotool search ... getwindowname %@ getwindowgeometry --shell %@` prints. Pure."""
    titles: list[str] = []
    shapes: list[dict[str, int]] = []
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "WINDOW" and value.isdigit():
            shapes.append({key: int(value)})
        elif shapes and key in ("X", "Y", "WIDTH", "HEIGHT", "SCREEN"):
            shapes[-1][key] = int(value)
        elif not shapes:
            titles.append(line)
    return [
        Window(shape["WINDOW"], title, shape["X"], shape["Y"], shape["WIDTH"], shape["HEIGHT"])
        for title, shape in zip(titles, shapes, strict=False)
    ]

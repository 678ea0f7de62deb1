"""The windows of a desktop: found by title, awaited, measured."""

import asyncio
import re
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dart_gym.core.errors import DesktopTimeoutError, MissingDependencyError, TaskError
from dart_gym.desktops.base.desktop import Desktop

_ROW = re.compile(r"(0x[0-9a-f]+) +(-?\d+) ")
_GAP = re.compile(" {2,}")
_HOST = re.compile(r"(\S+) ?")
_POLL_S = 0.03
_TIMEOUT_S = 10.0
_GEOMETRY = {"x": "Absolute upper-left X", "y": "Absolute upper-left Y", "width": "Width", "height": "Height"}


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where a window's content lies on the screen, without its frame, in pixels."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Window:
    """A window that the window manager knows."""

    id: int
    wm_class: str
    title: str


async def list_windows(desktop: Desktop) -> list[Window]:
    """List all windows with titles, oldest first, using `wmctrl`.

    Raises:
        MissingDependencyError: if `wmctrl` is missing.
    """
    result = await desktop.execute(["wmctrl", "-lx"], timeout=_TIMEOUT_S)
    if result.missing:
        raise MissingDependencyError("the desktop has no wmctrl; next step: apt-get install wmctrl")
    return parse_windows(result.stdout.decode(errors="replace"))


def parse_windows(text: str) -> list[Window]:
    """Read what `wmctrl -lx` prints: id, workspace, class, host and title. Pure, and linear whatever is in a title."""
    rows = ((line, _ROW.match(line)) for line in text.split("\n"))  # a title may hold what `splitlines` splits at
    return [window for line, row in rows if row is not None and (window := _window(line, row)) is not None]


def _window(line: str, row: re.Match[str]) -> Window | None:
    """A row's window. Its class may hold spaces; two or more of them follow it, then the host without any."""
    for gap in _GAP.finditer(line, row.end()):
        if host := _HOST.match(line, gap.end()):
            return Window(int(row[1], 16), line[row.end() : gap.start()], line[host.end() :])
    return None


def matching(windows: list[Window], name: str, *, strict: bool = False, by_class: bool = False) -> Window | None:
    """The window that `wmctrl -a` would take: part of the title in any case, or the whole title when `strict`. Pure."""
    for window in windows:
        text = window.wm_class if by_class else window.title
        if (text == name) if strict else (name.lower() in text.lower()):
            return window
    return None


async def activate(desktop: Desktop, window: int) -> None:
    """Bring a window to the front, and return when it has the keyboard or is gone."""
    await desktop.execute(["wmctrl", "-i", "-a", hex(window)], timeout=_TIMEOUT_S)
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        result = await desktop.execute(["xprop", "-root", "_NET_ACTIVE_WINDOW"], timeout=_TIMEOUT_S)
        if result.returncode or active_window(result.stdout.decode(errors="replace")) == window:
            return
        await asyncio.sleep(_POLL_S)


def active_window(text: str) -> int | None:
    """The id in what `xprop -root _NET_ACTIVE_WINDOW` prints. Pure."""
    match = re.search(r"window id # (0x[0-9a-f]+)", text)
    return int(match[1], 16) if match else None


async def close(desktop: Desktop, window: int) -> None:
    """Ask a window to close, as the user does with its button."""
    await desktop.execute(["wmctrl", "-i", "-c", hex(window)], timeout=_TIMEOUT_S)


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
        DesktopTimeoutError: if it does not appear in time.
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
    """Read what `xwininfo` prints; None where a number is missing. Pure. The title stands above the numbers."""
    values = {}
    for field, label in _GEOMETRY.items():
        found = re.findall(rf"^[ \t]*+{re.escape(label)}:[ \t]++(-?\d{{1,9}})$", text, re.MULTILINE)
        if not found:
            return None
        values[field] = int(found[-1])
    return Geometry(**values)


def colour_counts(screen: NDArray[np.uint8], window: Geometry) -> NDArray[np.intp]:
    """How many pixels of every second row of a window, which may reach off the screen, have each colour. Pure."""
    top, left = max(window.y, 0), max(window.x, 0)
    part = screen[top : window.y + window.height : 2, left : window.x + window.width].astype(np.uint32)
    return np.unique(part[..., 0] << 16 | part[..., 1] << 8 | part[..., 2], return_counts=True)[1]

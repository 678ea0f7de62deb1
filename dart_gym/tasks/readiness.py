"""When a task has begun: the window that `dart.ready` names is shown, painted and stands still.

A program maps its window and sets the title before it draws, on a busy machine long before; an observation of that
moment would show an empty frame.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dart_gym.desktops.base import Desktop, SettlePolicy, SettleResult
from dart_gym.errors import DesktopTimeoutError
from dart_gym.tasks.windows import Geometry, geometry, wait_for_window

TIMEOUT_S = 30.0
# A new window is drawn in several goes: wait for a longer rest than after an action.
SETTLE = SettlePolicy(quiet_ms=150.0, max_ms=5000.0)
MIN_COLOURS = 8  # a window with any text has more, one that is not drawn yet has one or two
_POLL_S = 0.05


async def wait_until_ready(desktop: Desktop, ready: dict[str, Any], *, timeout: float = TIMEOUT_S) -> SettleResult:
    """Wait until the task's window, if it names one, is shown and painted, and the screen stands still.

    Args:
        desktop: where.
        ready: `dart.ready`: `{"window": title}` or nothing.
        timeout: seconds for the window to appear and to be painted.

    Returns:
        Whether the screen stood still in the end.

    Raises:
        DesktopTimeoutError: it did not.
    """
    title = ready.get("window")
    if title:
        deadline = time.monotonic() + timeout
        window = await wait_for_window(desktop, title, timeout=timeout)
        while colours(await desktop.screenshot(), await geometry(desktop, window)) < MIN_COLOURS:
            if time.monotonic() > deadline:
                raise DesktopTimeoutError(f"the window titled {title!r} stayed empty for {timeout:g} s")
            await asyncio.sleep(_POLL_S)
    return await desktop.settle(SETTLE)


def colours(screen: NDArray[np.uint8], window: Geometry) -> int:
    """How many different colours a window shows, of every second row. Pure."""
    top, left = max(window.y, 0), max(window.x, 0)
    part = screen[top : window.y + window.height : 2, left : window.x + window.width].astype(np.uint32)
    return len(np.unique(part[..., 0] << 16 | part[..., 1] << 8 | part[..., 2]))

"""When a task has begun: the window that `dart.ready` names is shown and painted, or the programs are idle.

OSWorld's own tasks name no window; the programs that their set-up starts are idle once they are ready.

`dart.ready` may hold
    window: a title, or a part of one.
    colours: how many different colours the window shows at least once it is painted (24). A program that shows a
        sign of its own while it loads needs more.
    idle: true; then no program may work any more. For one that shows what it has found without a sign before.
    still: for how many seconds the screen must not change (0.15). A program that fills its window later needs more.

A program maps its window and sets the title before it draws, on a busy machine long before; an observation of that
moment would show an empty frame. And it goes on starting behind what it has drawn (a shell in its terminal): while new
processes work, no rest counts.
"""

import asyncio
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dart_gym.core.errors import DesktopTimeoutError
from dart_gym.desktops.base.desktop import Desktop, SettlePolicy, SettleResult
from dart_gym.tasks.screen.idleness import wait_until_idle
from dart_gym.tasks.screen.windows import Geometry, colour_counts, geometry, wait_for_window

TIMEOUT_S = 30.0
COLOURS = 24  # a window with any text has more, one that is not drawn yet has a few
STILL_S = 0.15  # a new window is drawn in several goes: longer than after an action
_MAX_SETTLE_MS = 5000.0
_POLL_S = 0.05


async def wait_until_ready(desktop: Desktop, ready: dict[str, Any], *, timeout: float = TIMEOUT_S) -> SettleResult:
    """Wait until the conditions of `ready` hold.

    Raises:
        DesktopTimeoutError: if they do not hold in time.
    """
    title = ready.get("window")
    if not ready:
        return await wait_until_idle(desktop)
    if title:
        deadline = time.monotonic() + timeout
        least = ready.get("colours", COLOURS)
        window = await wait_for_window(desktop, title, timeout=timeout)
        while colours(await desktop.screenshot(), await geometry(desktop, window)) < least:
            if time.monotonic() > deadline:
                raise DesktopTimeoutError(f"the window titled {title!r} was not painted within {timeout:g} s")
            await asyncio.sleep(_POLL_S)
    if ready.get("idle"):
        return await wait_until_idle(desktop, timeout=timeout)
    return await desktop.settle(
        SettlePolicy(quiet_ms=1e3 * ready.get("still", STILL_S), max_ms=_MAX_SETTLE_MS, busy_ms=_MAX_SETTLE_MS)
    )


def colours(screen: NDArray[np.uint8], window: Geometry) -> int:
    """How many different colours a window shows, of every second row. Pure."""
    return len(colour_counts(screen, window))

"""Steps about windows: activate_window, close_window."""

import asyncio
import time
from typing import Any

from dart_gym.tasks.screen.idleness import Rest
from dart_gym.tasks.screen.windows import Window, activate, close, list_windows, matching
from dart_gym.tasks.setup.setup_step import POLL_S, StepError, Surroundings, required_text
from dart_gym.tasks.setup.step_patience import StepLimit, work_done

WINDOW_TIMEOUT_S = 20.0
EVALUATION_TIMEOUT_S = 1.0
CLOSED_S = 10.0
STAYS_S = 2.0
"""Programs that have rested for so long will not close their window any more."""


async def activate_window(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Bring a window to the front and give it the keyboard."""
    window = await _find(where, parameters)
    if window is not None:
        await activate(where.desktop, window.id)


async def close_window(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Ask a window to close, and wait until it is gone and its program has written down what it keeps.

    OSWorld waits half a second before it reads Thunderbird's settings, which is enough on a fast machine only. A window
    that stays, for it asks a question, is waited for until its program rests.
    """
    window = await _find(where, parameters)
    if window is None:
        return
    await close(where.desktop, window.id)
    limit, rest = StepLimit(where, CLOSED_S), Rest(where.desktop)
    while any(shown.id == window.id for shown in await list_windows(where.desktop)):
        if await rest.seconds() >= STAYS_S or await limit.has_passed():
            return
        await asyncio.sleep(POLL_S)
    await work_done(where, CLOSED_S)


async def _find(where: Surroundings, parameters: dict[str, Any]) -> Window | None:
    """Return the window that a step names, or None if it is missing during an evaluation.

    OSWorld never minds a missing window. Before an episode that means a set-up that went wrong; afterwards the agent
    may have closed it, and its score must be what OSWorld would give.
    """
    name = required_text(parameters, "window_name")
    strict, by_class = bool(parameters.get("strict")), bool(parameters.get("by_class"))
    timeout = EVALUATION_TIMEOUT_S if where.evaluating else WINDOW_TIMEOUT_S
    deadline = time.monotonic() + timeout
    while True:
        windows = await list_windows(where.desktop)
        found = matching(windows, name, strict=strict, by_class=by_class)
        if found is not None or (where.evaluating and time.monotonic() > deadline):
            return found
        if time.monotonic() > deadline:
            shown = ", ".join(repr(window.title) for window in windows) or "none"
            kind = "of class" if by_class else "titled"
            raise StepError(f"no window {kind} {name!r} appeared within {timeout:g} s (windows: {shown})")
        await asyncio.sleep(POLL_S)

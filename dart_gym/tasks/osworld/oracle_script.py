"""A perfect user, written down: the script in `dart.oracle` of a task's JSON, turned into ordinary actions.

Each entry is an action as a dict (`dart_gym.core.actions`); `Done` follows by itself. Besides the action's own fields
it may hold
    repeat: n; the entry n times (0: not at all).
    window: a title. The entry's place is counted from the content of the last window whose title contains it: for a
        click, move or scroll "left" or "right" and "top" or "bottom", pixels from that edge; for a drag the points of
        its path, from the top left corner.
    when: what must hold before the action is given: `{"window": title}` shown, `{"gone": title}` not shown,
        `{"command": shell command}` ends with status 0, `{"still": seconds}` without a change of the screen, for what
        a program works out unseen, `{"idle": true}` no program works any more; all that
        are named, in this order, within `timeout` seconds (20) each.

Invariants:
    - The script acts on the desktop through the actions that it returns only; what it looks at changes nothing.
    - A condition that does not come true is a `TaskError` that names it; the wait is bounded.
"""

import asyncio
import time
from typing import Any

from dart_gym.core.actions import Action, Done, action_from_dict
from dart_gym.core.errors import NoOracleError, TaskError
from dart_gym.desktops.base.desktop import Desktop, SettlePolicy
from dart_gym.tasks.screen.idleness import wait_until_idle
from dart_gym.tasks.screen.windows import Geometry, find_windows, geometry

MAX_REPEAT = 100
TIMEOUT_S = 20.0
_EDGES = ("left", "right", "top", "bottom")
_CONDITIONS = ("window", "gone", "command")
_POLL_S = 0.05
_COMMAND_TIMEOUT_S = 10.0
# What had to be waited for has just been drawn, perhaps not wholly.
_QUIET_MS = 150.0


class Script:
    """The oracle of one episode.

    Raises:
        TaskError: if an entry is malformed.
    """

    def __init__(self, task_id: str, entries: list[dict[str, Any]]) -> None:
        self._task_id = task_id
        self._entries = expand(task_id, entries)

    def __len__(self) -> int:
        return len(self._entries)

    async def action(self, desktop: Desktop, taken: int) -> Action:
        """Wait for the condition of the action after `taken` others, and return that action.

        Raises:
            TaskError: if the task has no oracle, or the condition never held.
        """
        if not self._entries:
            raise NoOracleError(f"task {self._task_id} has no oracle: its JSON lacks dart.oracle")
        if taken >= len(self._entries):
            return Done()
        fields = dict(self._entries[taken])
        try:
            await _wait(desktop, fields.pop("when", {}))
            return await _action(desktop, fields)
        except (TaskError, ValueError) as error:
            raise TaskError(f"task {self._task_id}: action {taken + 1} of dart.oracle: {error}") from error


def expand(task_id: str, script: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An oracle's script with its repetitions written out. Raises `TaskError` for a bad one. Pure."""
    expanded = []
    for number, entry in enumerate(script, start=1):
        fields = dict(entry)
        where = f"task {task_id}: action {number} of dart.oracle"
        repeat = fields.pop("repeat", 1)
        if isinstance(repeat, bool) or not isinstance(repeat, int) or not 0 <= repeat <= MAX_REPEAT:
            raise TaskError(f"{where}: bad repeat {repeat!r}")
        when = fields.get("when", {})
        if not isinstance(when, dict) or not when.keys() <= {*_CONDITIONS, "still", "idle", "timeout"}:
            raise TaskError(f"{where}: 'when' may hold {', '.join(_CONDITIONS)}, still and timeout, got {when!r}")
        expanded += [fields] * repeat
    return expanded


def place(window: Geometry, edges: dict[str, Any]) -> dict[str, int]:
    """Return the point at given distances, in pixels, from the named edges of a window. Pure."""
    x = window.x + (edges["left"] if "left" in edges else window.width - edges["right"])
    y = window.y + (edges["top"] if "top" in edges else window.height - edges["bottom"])
    return {"x": x, "y": y}


async def _action(desktop: Desktop, fields: dict[str, Any]) -> Action:
    if isinstance(fields.get("text"), int):  # a parameter that is nothing but a number
        fields["text"] = str(fields["text"])
    title = fields.pop("window", None)
    if title is not None:
        windows = await find_windows(desktop, title)
        if not windows:
            raise TaskError(f"the window {title!r} is not shown")
        content = await geometry(desktop, windows[-1])
        if "path" in fields:
            fields["path"] = [(content.x + x, content.y + y) for x, y in fields["path"]]
        else:
            fields |= place(content, fields)
    return action_from_dict({key: value for key, value in fields.items() if key not in _EDGES})


async def _wait(desktop: Desktop, when: dict[str, Any]) -> None:
    """Wait until the conditions hold and the screen stands still."""
    if not when:
        return
    timeout = when.get("timeout", TIMEOUT_S)
    for kind in _CONDITIONS:
        deadline = time.monotonic() + timeout
        while kind in when and not await _holds(desktop, kind, when[kind]):
            if time.monotonic() > deadline:
                raise TaskError(f"{kind} {when[kind]!r} did not come true within {timeout:g} s")
            await asyncio.sleep(_POLL_S)
    if when.get("idle"):
        await wait_until_idle(desktop, timeout=timeout)
        if "still" not in when:
            return  # the screen stands still as well
    quiet_ms = max(_QUIET_MS, 1e3 * when.get("still", 0.0))
    await desktop.settle(SettlePolicy(quiet_ms=quiet_ms, max_ms=1e3 * timeout))


async def _holds(desktop: Desktop, kind: str, value: str) -> bool:
    if kind == "command":
        return (await desktop.execute(["/bin/sh", "-c", value], timeout=_COMMAND_TIMEOUT_S)).returncode == 0
    return bool(await find_windows(desktop, value)) == (kind == "window")

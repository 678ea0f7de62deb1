"""Pointer actions of several formats: drags from the present place, keys held during an action, wheels in pixels."""

import math
from collections.abc import Mapping, Sequence

from dart_agent.formats.grammar.action_format import InexpressibleError
from dart_gym.core import actions as a

Point = tuple[int, int]
PIXELS_PER_NOTCH = 100


def click_name(names: Mapping[str, tuple[a.Button, int]], click: a.Click) -> str:
    """The first name of a click by its button and count, which must have one."""
    return next(name for name, pair in names.items() if pair == (click.button, click.count))


def drag_to(done: list[a.Action], end: Point, button: a.Button = "left") -> None:
    """Add a drag from where the pointer is: one `Drag` after a `Move`, which it takes in, else its three parts."""
    start = done[-1] if done else None
    if isinstance(start, a.Move):
        done[-1] = a.Drag(((start.x, start.y), end), button)
    else:
        done += [a.MouseDown(button), a.Move(*end), a.MouseUp(button)]


def holding(keys: Sequence[str], actions: Sequence[a.Action]) -> list[a.Action]:
    """Actions with keys held down meanwhile; a sole click has them as its modifiers."""
    if not keys:
        return list(actions)
    if len(actions) == 1 and isinstance(actions[0], a.Click):
        click = actions[0]
        return [a.Click(click.x, click.y, click.button, click.count, tuple(keys))]
    return [*(a.KeyDown(key) for key in keys), *actions, *(a.KeyUp(key) for key in reversed(keys))]


def straight(action: a.Drag, what: str) -> tuple[Point, Point]:
    """The ends of a drag along one line. Raises `InexpressibleError` for others."""
    if len(action.path) != 2:
        raise InexpressibleError(f"{what} drags along one straight line only")
    return action.path[0], action.path[1]


def notches(pixels: float, size: float) -> int:
    """Wheel notches of a distance: the nearest number, and at least one in its direction."""
    return 0 if pixels == 0 else round(pixels / size) or int(math.copysign(1, pixels))

"""What an action is on a machine without XTEST at hand: a list of numbers, carried out there by `osworld_input.py`.

Invariants:
    - Pure: no text of a model crosses to the machine, only points, buttons, X keysyms and pauses.
    - What an action presses it releases in the same list, except KeyDown and MouseDown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from dart_gym.core.actions import Action, Click, Drag, KeyDown, KeyUp, MouseDown, MouseUp, Move, Press, Scroll, Type
from dart_gym.desktops.base.desktop import ActionError
from dart_gym.desktops.input.keyboard import keysym_of

Stroke: TypeAlias = list[Any]
"""["move", x, y] | ["button", number, down] | ["key", keysym, down] | ["text", keysyms] | ["pause", seconds]"""

_BUTTONS = {"left": 1, "middle": 2, "right": 3}
_UP, _DOWN, _LEFT, _RIGHT = 4, 5, 6, 7  # the wheel's buttons
_DRAG_STEP_PX = 40
_DRAG_PAUSE_S = 0.01
_REST_S = 0.1  # at both ends of a drag, where programs decide what it is


def strokes_of(action: Action, width: int, height: int) -> list[Stroke]:
    """The strokes of an action on a screen of a size; [] for those that are none (Wait, Done, Fail, AskUser).

    Raises:
        ActionError: a point is off the screen, or no key types a character.
    """
    for point in _points(action):
        if not (0 <= point[0] < width and 0 <= point[1] < height):
            raise ActionError(f"the point {point} is off the screen, which is {width} x {height} pixels")
    match action:
        case Move():
            return _moved(action.x, action.y)
        case Click():
            return _click(action)
        case Drag():
            return _drag(action)
        case Scroll():
            return _moved(action.x, action.y) + _turns(action.dy, _DOWN, _UP) + _turns(action.dx, _RIGHT, _LEFT)
        case Type(text=text):
            return [["text", [_keysym(character) for character in text.replace("\r\n", "\n")]]]
        case Press(keys=keys):
            return _held(keys, [])
        case KeyDown(key=key) | KeyUp(key=key):
            return [["key", _keysym(key), isinstance(action, KeyDown)]]
        case MouseDown(button=button) | MouseUp(button=button):
            return [["button", _BUTTONS[button], isinstance(action, MouseDown)]]
    return []


def _points(action: Action) -> Sequence[tuple[int, int]]:
    if isinstance(action, Drag):
        return action.path
    if isinstance(action, (Click, Move, Scroll)) and action.x is not None and action.y is not None:
        return [(action.x, action.y)]
    return []


def _moved(x: int | None, y: int | None) -> list[Stroke]:
    return [] if x is None else [["move", x, y]]


def _pressed(button: int) -> list[Stroke]:
    return [["button", button, True], ["button", button, False]]


def _click(action: Click) -> list[Stroke]:
    presses: list[Stroke] = []
    for number in range(action.count):
        presses += [["pause", _DRAG_PAUSE_S]] if number else []
        presses += _pressed(_BUTTONS[action.button])
    return _held(action.modifiers, _moved(action.x, action.y) + presses)


def _drag(action: Drag) -> list[Stroke]:
    button = _BUTTONS[action.button]
    strokes: list[Stroke] = [["move", *action.path[0]], ["button", button, True]]
    for (x0, y0), (x1, y1) in zip(action.path, action.path[1:], strict=False):
        steps = max(1, -(-max(abs(x1 - x0), abs(y1 - y0)) // _DRAG_STEP_PX))
        for step in range(1, steps + 1):
            strokes += [
                ["pause", _DRAG_PAUSE_S],
                ["move", x0 + (x1 - x0) * step // steps, y0 + (y1 - y0) * step // steps],
            ]
            if len(strokes) == 4:
                strokes.append(["pause", _REST_S])
    return [*strokes, ["pause", _REST_S], ["button", button, False]]


def _turns(amount: int, forth: int, back: int) -> list[Stroke]:
    return _pressed(forth if amount > 0 else back) * abs(amount)


def _held(keys: Sequence[str], inside: list[Stroke]) -> list[Stroke]:
    keysyms = [_keysym(key) for key in keys]
    down: list[Stroke] = [["key", keysym, True] for keysym in keysyms]
    return down + inside + [["key", keysym, False] for keysym in reversed(keysyms)]


def _keysym(key: str) -> int:
    try:
        return keysym_of(key)
    except ValueError as error:
        raise ActionError(str(error)) from None

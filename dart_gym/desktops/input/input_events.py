"""What an action is in pointer and keyboard events: a list of plain values, the same for every desktop.

`dart_gym.desktops.xvfb.x_hands` carries them out: in this process, or sent to a machine with OSWorld's server.

Invariants:
    - Pure: no text of a model crosses to a machine, only points, buttons, X keysyms and pauses.
    - An action that cannot be carried out raises before there is any event.
    - What an action presses it releases in the same list, except KeyDown and MouseDown.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from dart_gym.core.actions import Action, Click, Drag, KeyDown, KeyUp, MouseDown, MouseUp, Move, Press, Scroll, Type
from dart_gym.desktops.base.desktop import ActionError
from dart_gym.desktops.input.requested_keys import keysym_of

InputEvent: TypeAlias = list[Any]
"""One of
    ["move", x, y]              the pointer, in pixels
    ["button", number, down]    1 to 3 are the mouse's, 4 to 7 the wheel's
    ["key", keysym, down]       the key alone, without Shift
    ["chord", keysyms, down]    keys that are held together, with Shift where one needs it
    ["text", keysyms]           keys struck one after the other
    ["pace"]                    a moment: programs take clicks and motions with the same time stamp for one
    ["rest"]                    until programs have kept up: they decide whether a drag begins, and where it may end
"""

DRAG_STEP_PX = 12
_ASKED_AGAIN = 2
"""How often the pointer reports the end of its path again.

Chromium tells a page first that something enters and asks only at the next motion whether it may be dropped there. The
answer counts from the motion after that. Under load the motions before are merged into one.
"""
_BUTTONS = {"left": 1, "middle": 2, "right": 3}
# the wheel's buttons
_UP = 4
_DOWN = 5
_LEFT = 6
_RIGHT = 7


def input_events(
    action: Action, width: int, height: int, dragged_from: tuple[int, int] | None = None
) -> list[InputEvent]:
    """Return the events of an action; [] for Wait, Done, Fail, AskUser.

    Args:
        action: what to carry out.
        width: of the screen.
        height: of the screen.
        dragged_from: where the pointer is, if a button is down: then a Move goes through the points of a `Drag`.

    Raises:
        ActionError: if a point is off the screen, or a character cannot be typed.
    """
    for point in _points(action):
        if not (0 <= point[0] < width and 0 <= point[1] < height):
            raise ActionError(f"the point {point} is off the screen, which is {width} x {height} pixels")
    match action:
        case Move() if dragged_from is not None:
            return _path([dragged_from, (action.x, action.y)])
        case Move():
            return _moved(action.x, action.y)
        case Click():
            return _click(action)
        case Drag():
            return _drag(action)
        case Scroll():
            return _moved(action.x, action.y) + _notches(action.dy, _DOWN, _UP) + _notches(action.dx, _RIGHT, _LEFT)
        case Type(text=text):
            return [["text", _keysyms(text.replace("\r\n", "\n"))]]
        case Press(keys=keys):
            return _holding(keys, [])
        case KeyDown(key=key) | KeyUp(key=key):
            return [["key", *_keysyms([key]), isinstance(action, KeyDown)]]
        case MouseDown(button=button) | MouseUp(button=button):
            return [["button", _BUTTONS[button], isinstance(action, MouseDown)]]
    return []


def _points(action: Action) -> Sequence[tuple[int, int]]:
    if isinstance(action, Drag):
        return action.path
    if isinstance(action, (Click, Move, Scroll)) and action.x is not None and action.y is not None:
        return [(action.x, action.y)]
    return []


def _moved(x: int | None, y: int | None) -> list[InputEvent]:
    return [] if x is None else [["move", x, y]]


def _pressed(button: int) -> list[InputEvent]:
    return [["button", button, True], ["button", button, False]]


def _click(action: Click) -> list[InputEvent]:
    events = _moved(action.x, action.y)
    for number in range(action.count):
        events += [["pace"]] if number else []
        events += _pressed(_BUTTONS[action.button])
    return _holding(action.modifiers, events)


def _drag(action: Drag) -> list[InputEvent]:
    button = _BUTTONS[action.button]
    begin: list[InputEvent] = [["move", *action.path[0]], ["button", button, True]]
    return [*begin, *_path(action.path), ["button", button, False]]


def _path(points: Sequence[tuple[int, int]]) -> list[InputEvent]:
    events: list[InputEvent] = []
    for number, point in enumerate(points_between(points)):
        events += [["pace"], ["move", *point]]
        if number == 0:
            events.append(["rest"])
    return events + [["rest"], ["move", *points[-1]]] * _ASKED_AGAIN + [["rest"]]


def points_between(path: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The points of a path after its first, with others between them, so that no step is longer than `DRAG_STEP_PX`."""
    points = []
    for (x0, y0), (x1, y1) in zip(path, path[1:], strict=False):
        steps = max(1, -(-max(abs(x1 - x0), abs(y1 - y0)) // DRAG_STEP_PX))
        points += [(x0 + (x1 - x0) * step // steps, y0 + (y1 - y0) * step // steps) for step in range(1, steps + 1)]
    return points


def _notches(amount: int, forth: int, back: int) -> list[InputEvent]:
    return _pressed(forth if amount > 0 else back) * abs(amount)


def _holding(keys: Sequence[str], inside: list[InputEvent]) -> list[InputEvent]:
    if not keys:
        return inside
    keysyms = _keysyms(keys)
    return [["chord", keysyms, True], *inside, ["chord", keysyms, False]]


def _keysyms(keys: Sequence[str]) -> list[int]:
    try:
        return [keysym_of(key) for key in keys]
    except ValueError as error:
        raise ActionError(str(error)) from None

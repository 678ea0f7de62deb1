"""The typed actions: everything a policy can do to a desktop. Only these cross the wire, never code.

Invariants:
    - Coordinates are pixels of the real screen, origin top left; floats from a model are rounded by its format.
    - What takes an integer takes NumPy's as well, and keeps a plain one; floats and truth values are refused.
    - Every action is a frozen dataclass with plain fields; `action_to_dict` and `action_from_dict` are inverse.
    - An action that cannot be carried out (off-screen, unknown key) is reported in the next observation;
      constructing one with fields of the wrong type raises `ValueError`.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from dart_gym.core.arguments import half_pair, integer, number
from dart_gym.core.keys import canonical_key, chord_keys, in_chord

Button = Literal["left", "middle", "right"]
_BUTTONS = get_args(Button)
MAX_TEXT = 20_000
MAX_WAIT_S = 60.0
MAX_DRAG_POINTS = 256
MAX_COORDINATE = 1 << 20


def _set_integers(
    action: Any, low: int = -MAX_COORDINATE, high: int = MAX_COORDINATE, *, names: tuple[str, ...] = ("x", "y")
) -> None:
    for name in names:
        value = getattr(action, name)
        if type(value) is not int or not low <= value <= high:
            object.__setattr__(action, name, integer(name, value, low, high, ValueError))


def _set_point(action: Any) -> None:
    """Check the point of an action that may be left out."""
    if (action.x is None) != (action.y is None):
        raise ValueError("x and y must be given together")
    if action.x is not None:
        _set_integers(action)


def _check_button(value: object) -> None:
    if not isinstance(value, str) or value not in _BUTTONS:
        raise ValueError(f"button must be one of {', '.join(_BUTTONS)}, got {value!r}")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise ValueError(f"{name} must be text of at most {MAX_TEXT} characters")
    if half_pair(value):
        raise ValueError(f"{name} holds half of a surrogate pair, which is no character and cannot be sent")


def _canonical_keys(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        keys = tuple(chord_keys(value))
    else:
        keys = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(key, str) for key in keys):
        raise ValueError(f"{name} must be key names, in a sequence or as one chord 'ctrl+c', got {value!r}")
    return in_chord(tuple(canonical_key(key) for key in keys))


def _single_key(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"key must be the name of a key, got {value!r}")
    return canonical_key(value)


def _path(value: Any) -> tuple[tuple[int, int], ...]:
    wanted = f"path must hold 2 to {MAX_DRAG_POINTS} points (x, y)"
    try:
        points = [tuple(point) for point in value]
    except TypeError:
        raise ValueError(f"{wanted}, got {value!r:.200}") from None
    if not 2 <= len(points) <= MAX_DRAG_POINTS or any(len(point) != 2 for point in points):
        raise ValueError(f"{wanted}, got {len(points)} entries")
    low, high = -MAX_COORDINATE, MAX_COORDINATE
    return tuple(
        (integer("x of the path", x, low, high, ValueError), integer("y of the path", y, low, high, ValueError))
        for x, y in points
    )


@dataclass(frozen=True, slots=True)
class Action:
    """Base of all actions. `kind` is the name on the wire."""

    kind: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Click(Action):
    """Press and release a button `count` times at a point; None as a coordinate means where the pointer is."""

    kind: ClassVar[str] = "click"
    x: int | None = None
    y: int | None = None
    button: Button = "left"
    count: int = 1
    modifiers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _set_point(self)
        _check_button(self.button)
        _set_integers(self, 1, 3, names=("count",))
        if self.modifiers != ():
            object.__setattr__(self, "modifiers", _canonical_keys("modifiers", self.modifiers))


@dataclass(frozen=True, slots=True)
class Move(Action):
    """Move the pointer."""

    kind: ClassVar[str] = "move"
    x: int
    y: int

    def __post_init__(self) -> None:
        _set_integers(self)


@dataclass(frozen=True, slots=True)
class Drag(Action):
    """Press at the first point of a path, move through the others, release at the last."""

    kind: ClassVar[str] = "drag"
    path: tuple[tuple[int, int], ...]
    button: Button = "left"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", _path(self.path))
        _check_button(self.button)


@dataclass(frozen=True, slots=True)
class Scroll(Action):
    """Turn the wheel at a point: `dy` notches down (negative: up), `dx` to the right (negative: left).

    As in a browser, and the other way round than pyautogui's `scroll`, for which positive is up.
    """

    kind: ClassVar[str] = "scroll"
    x: int | None = None
    y: int | None = None
    dx: int = 0
    dy: int = 0

    def __post_init__(self) -> None:
        _set_point(self)
        _set_integers(self, -100, 100, names=("dx", "dy"))


@dataclass(frozen=True, slots=True)
class Type(Action):
    """Type a text, any Unicode; a newline is Enter and a tab is Tab."""

    kind: ClassVar[str] = "type"
    text: str

    def __post_init__(self) -> None:
        _check_text("text", self.text)


@dataclass(frozen=True, slots=True)
class Press(Action):
    """Press keys together as a chord and release them in reverse order: `Press(("ctrl", "s"))` or `Press("ctrl+s")`.

    A letter with ctrl, alt or win is the key, however it is written: `("ctrl", "S")` presses no shift.
    """

    kind: ClassVar[str] = "press"
    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", _canonical_keys("keys", self.keys))
        if not 1 <= len(self.keys) <= 8:
            raise ValueError("a chord holds 1 to 8 keys")


@dataclass(frozen=True, slots=True)
class KeyDown(Action):
    """Press a key and hold it."""

    kind: ClassVar[str] = "key_down"
    key: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", _single_key(self.key))


@dataclass(frozen=True, slots=True)
class KeyUp(Action):
    """Release a key."""

    kind: ClassVar[str] = "key_up"
    key: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", _single_key(self.key))


@dataclass(frozen=True, slots=True)
class MouseDown(Action):
    """Press a button where the pointer is and hold it."""

    kind: ClassVar[str] = "mouse_down"
    button: Button = "left"

    def __post_init__(self) -> None:
        _check_button(self.button)


@dataclass(frozen=True, slots=True)
class MouseUp(Action):
    """Release a button."""

    kind: ClassVar[str] = "mouse_up"
    button: Button = "left"

    def __post_init__(self) -> None:
        _check_button(self.button)


@dataclass(frozen=True, slots=True)
class Wait(Action):
    """Let time pass."""

    kind: ClassVar[str] = "wait"
    seconds: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", number("seconds", self.seconds, 0.0, MAX_WAIT_S, ValueError))


@dataclass(frozen=True, slots=True)
class Done(Action):
    """End the episode: the task is accomplished. `answer` is for tasks that ask a question."""

    kind: ClassVar[str] = "done"
    answer: str = ""

    def __post_init__(self) -> None:
        _check_text("answer", self.answer)


@dataclass(frozen=True, slots=True)
class Fail(Action):
    """End the episode: the task cannot be accomplished."""

    kind: ClassVar[str] = "fail"
    reason: str = ""

    def __post_init__(self) -> None:
        _check_text("reason", self.reason)


@dataclass(frozen=True, slots=True)
class AskUser(Action):
    """Ask the user; environments without one take it as no action."""

    kind: ClassVar[str] = "ask_user"
    question: str = ""

    def __post_init__(self) -> None:
        _check_text("question", self.question)


ACTION_TYPES: dict[str, type[Action]] = {
    cls.kind: cls
    for cls in (
        Click,
        Move,
        Drag,
        Scroll,
        Type,
        Press,
        KeyDown,
        KeyUp,
        MouseDown,
        MouseUp,
        Wait,
        Done,
        Fail,
        AskUser,
    )
}


def action_to_dict(action: Action) -> dict[str, Any]:
    """Return an action as a flat dict of plain values, `kind` first: what crosses the wire and is stored."""
    return {"kind": action.kind, **{f.name: getattr(action, f.name) for f in dataclasses.fields(action)}}


def action_from_dict(data: dict[str, Any]) -> Action:
    """Return the action that a dict stands for.

    Raises:
        ValueError: if the kind or a field is unknown, or a value has the wrong type.
    """
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise ValueError("an action is a dict with a 'kind'")
    cls = ACTION_TYPES.get(data["kind"])
    if cls is None:
        raise ValueError(f"unknown action {data['kind']!r}; known: {', '.join(ACTION_TYPES)}")
    try:
        return cls(**{key: value for key, value in data.items() if key != "kind"})
    except TypeError as error:
        raise ValueError(f"bad fields for action {data['kind']!r}: {error}") from None


def as_action(action: Action | dict[str, Any]) -> Action:
    """Return an action, given an action or its dict.

    Raises:
        TypeError: if it is neither.
        ValueError: if the dict describes no action.
    """
    if type(action) in ACTION_TYPES.values():
        return action  # type: ignore[return-value]  # the line above looked
    if isinstance(action, dict):
        return action_from_dict(action)
    raise TypeError(f"an action is a dart_gym Action or its dict, got {type(action).__name__}: {action!r:.200}")

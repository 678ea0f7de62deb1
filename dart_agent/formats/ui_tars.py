"""The action format of UI-TARS (1.0 and 1.5), both ways.

`parse` accepts every spelling that the models and their tools produce: box tokens or none, two or four numbers,
`<point>` and `<bbox>`, floats, any argument order, several actions one after the other. `format` writes the
published spelling; the few typed actions for which there is none (modifiers, wheel notches, paths) get extra
arguments, so that every action survives the round trip.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from dart_agent.coordinates import CoordinateSpace
from dart_agent.formats.base import ParsedResponse, ParseError
from dart_agent.formats.calls import Call, parse_calls, quote
from dart_agent.prompts import UI_TARS_ACTION_SPACE
from dart_gym import actions as a
from dart_gym.keys import canonical_key

WHEEL_NOTCHES = 5
_ACTION = re.compile(r"Action:\s*")
_CANDIDATES = 16
_SPECIAL = re.compile(r"<\|[a-z_]+\|>")
_THOUGHT = re.compile(r"^\s*Thought:\s*")
_TAG = re.compile(r"<\|?/?[A-Za-z_]+\|?>|[()\[\]]")
_NUMBERS = re.compile(r"\s*[-+]?\d+(?:\.\d*)?(?:(?:\s*,\s*|\s+)[-+]?\d+(?:\.\d*)?){1,3}\s*")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?")
_FLOAT = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_START = ("start_box", "start_point", "point", "box", "")
_END = ("end_box", "end_point")
_CLICKS: dict[str, tuple[a.Button, int]] = {
    "click": ("left", 1),
    "left_single": ("left", 1),
    "left_double": ("left", 2),
    "left_triple": ("left", 3),
    "right_single": ("right", 1),
    "middle_single": ("middle", 1),
}
_DIRECTIONS = {"down": (0, 1), "up": (0, -1), "right": (1, 0), "left": (-1, 0)}


class UITarsFormat:
    """`ActionFormat` of UI-TARS."""

    name = "ui_tars"

    def __init__(self, wait_s: float = 5.0) -> None:
        """`wait_s` is what `wait()` stands for; the prompt promises five seconds."""
        self._wait_s = wait_s

    def parse(self, text: str, space: CoordinateSpace) -> ParsedResponse:
        """Return thought and actions of a response. Raises `ParseError`, whatever the text."""
        thought, calls = _split(text)
        try:
            return ParsedResponse(thought, tuple(self._action(_Arguments(call, space)) for call in calls))
        except ParseError:
            raise
        except ValueError as error:  # a typed action refused its fields: an unknown key, an absurd number
            raise ParseError(str(error)) from None

    def format(self, actions: tuple[a.Action, ...], space: CoordinateSpace, thought: str = "") -> str:
        """Write a response; `parse` returns the same actions, up to the rounding of `space`."""
        if not actions:
            raise ValueError("a response holds at least one action")
        lines = "\n\n".join(self._call(action, space) for action in actions)
        return f"Thought: {thought}\nAction: {lines}" if thought else f"Action: {lines}"

    def describe(self) -> str:
        """The action space as the prompt states it."""
        return UI_TARS_ACTION_SPACE

    def _action(self, arguments: _Arguments) -> a.Action:
        name = arguments.call.name.lower()
        if name == "wait":
            action: a.Action = a.Wait(arguments.number(("seconds", "time", "duration", ""), self._wait_s))
        elif name in _CLICKS:
            action = _click(arguments, *_CLICKS[name])
        elif name in _READERS:
            action = _READERS[name](arguments)
        else:
            raise ParseError(
                f"unknown action {arguments.call.name!r}; known: click, left_double, right_single, drag, hotkey, "
                "type, scroll, wait, finished"
            )
        arguments.check_all_used()
        return action

    def _call(self, action: a.Action, space: CoordinateSpace) -> str:
        if isinstance(action, a.Wait):
            return "wait()" if action.seconds == self._wait_s else f"wait(seconds={action.seconds!r})"
        writer = _WRITERS.get(type(action))
        if writer is None:
            raise ValueError(f"UI-TARS has no spelling for {action!r}")
        name, arguments = writer(action, space)
        return f"{name}({', '.join(f'{key}={quote(value)}' for key, value in arguments.items())})"


def _split(text: str) -> tuple[str, list[Call]]:
    """Thought and calls. The last `Action:` that calls follow to the end counts: texts may contain the word too."""
    text = _without_special_end(text)
    places = list(_ACTION.finditer(text))
    if not places:
        raise ParseError("no 'Action:' found; end your response with a line such as: Action: click(start_box='(x,y)')")
    first_error: ParseError | None = None
    for place in [*places[:-_CANDIDATES:-1], places[0]]:
        try:
            calls = parse_calls(text[place.end() :])
        except ParseError as error:
            first_error = first_error or error
            continue
        return _THOUGHT.sub("", text[: place.start()]).strip(), calls
    raise first_error or ParseError("no action found")


def _without_special_end(text: str) -> str:
    """The text without the special tokens that an engine may leave at its end."""
    text = text.rstrip()
    while text.endswith("|>") and _SPECIAL.fullmatch(text, max(text.rfind("<|"), 0)):
        text = text[: text.rfind("<|")].rstrip()
    return text


class _Arguments:
    """The arguments of one call, read by type; remembers which were used."""

    def __init__(self, call: Call, space: CoordinateSpace) -> None:
        self.call, self.space = call, space
        self._unused = set(call.arguments)

    def text(self, names: tuple[str, ...], default: str | None = None) -> str:
        """The first of several names that is given. Raises `ParseError` where none is and there is no default."""
        for name in names:
            if name in self.call.arguments:
                self._unused.discard(name)
                return self.call.arguments[name]
        if default is None:
            raise ParseError(f"{self.call.name} needs {names[0]}='...'")
        return default

    def point(self, names: tuple[str, ...]) -> tuple[int, int] | None:
        """A point in screen pixels; None where it is not given or empty."""
        value = self.text(names, "")
        return _point(self.call.name, value, self.space) if value.strip() else None

    def need_point(self, names: tuple[str, ...]) -> tuple[int, int]:
        """A point in screen pixels that must be given."""
        if (point := self.point(names)) is None:
            raise ParseError(f"{self.call.name} needs {names[0]}='(x,y)'")
        return point

    def number(self, names: tuple[str, ...], default: float) -> float:
        """A finite number."""
        value = self.text(names, "")
        if not value:
            return default
        if not _FLOAT.fullmatch(value.strip()) or not math.isfinite(number := float(value)):
            raise ParseError(f"{self.call.name}: {names[0]} must be a number, got {value[:40]!r}")
        return number

    def integer(self, names: tuple[str, ...], default: int) -> int:
        """A whole number."""
        value = self.number(names, default)
        if value != int(value):
            raise ParseError(f"{self.call.name}: {names[0]} must be a whole number, got {value}")
        return int(value)

    def check_all_used(self) -> None:
        """Raise `ParseError` for arguments that the action does not have."""
        if self._unused:
            unknown = ", ".join(sorted(self._unused)) or "a value without a name"
            raise ParseError(f"{self.call.name} has no argument {unknown}")


def _point(call: str, value: str, space: CoordinateSpace) -> tuple[int, int]:
    """Centre of `(x,y)`, `(x1,y1,x2,y2)`, `<point>x y</point>`, `<bbox>..</bbox>`, with or without box tokens."""
    plain = _TAG.sub(" ", value)
    if not _NUMBERS.fullmatch(plain):
        raise ParseError(f"{call}: {value[:60]!r} is not a place; write it as '(x,y)'")
    numbers = [float(number) for number in _NUMBER.findall(plain)]
    if len(numbers) == 3:
        raise ParseError(f"{call}: {value[:60]!r} has three numbers; a place has two, a box four")
    x, y = (numbers[0] + numbers[-2]) / 2, (numbers[1] + numbers[-1]) / 2
    screen = space.to_screen(x, y)
    return _pixel(screen[0], space.screen[0]), _pixel(screen[1], space.screen[1])


def _pixel(value: float, size: int) -> int:
    """Nearest pixel. The far edge belongs to the last one; what lies off the screen stays there for it to complain."""
    if not math.isfinite(value):
        raise ParseError("coordinates must be finite numbers")
    return size - 1 if size - 0.5 <= value <= size else round(value)


def _click(arguments: _Arguments, button: a.Button, count: int) -> a.Action:
    x, y = arguments.point(_START) or (None, None)
    named = arguments.text(("button",), button)
    modifiers = tuple(keys(arguments.text(("modifiers",), "")))
    return a.Click(x, y, named, arguments.integer(("count",), count), modifiers)  # type: ignore[arg-type]  # checked there


def _drag(arguments: _Arguments) -> a.Action:
    start, end = arguments.need_point(_START), arguments.need_point(_END)
    via = [
        _point(arguments.call.name, part, arguments.space) for part in arguments.text(("via",), "").split(";") if part
    ]
    return a.Drag((start, *via, end), arguments.text(("button",), "left"))  # type: ignore[arg-type]  # checked there


def _scroll(arguments: _Arguments) -> a.Action:
    x, y = arguments.point(("start_box", "start_point", "point", "box")) or (None, None)
    direction = arguments.text(("direction", ""), "").strip().lower()
    dx, dy = arguments.integer(("dx",), 0), arguments.integer(("dy",), 0)
    if direction:
        if direction not in _DIRECTIONS:
            raise ParseError(f"scroll: direction must be down, up, left or right, got {direction[:40]!r}")
        notches = arguments.integer(("amount",), WHEEL_NOTCHES)
        dx, dy = (notches * step for step in _DIRECTIONS[direction])
    elif not {"dx", "dy"} & arguments.call.arguments.keys():
        raise ParseError("scroll needs direction='down', 'up', 'left' or 'right'")
    return a.Scroll(x, y, dx, dy)


def _chord(arguments: _Arguments) -> a.Action:
    found = keys(arguments.text(("key", "keys", "hotkey", "")))
    if not found:
        raise ParseError(f"{arguments.call.name} needs key='...', such as key='ctrl c'")
    return a.Press(tuple(found))


def _one_key(arguments: _Arguments) -> str:
    found = keys(arguments.text(("key", "")))
    if len(found) != 1:
        raise ParseError(f"{arguments.call.name} takes one key, got {len(found)}")
    return found[0]


def keys(text: str) -> list[str]:
    """Canonical keys of a chord: `ctrl c`, `ctrl+c`, `Ctrl + C`, `ctrl page down`, `ctrl +`.

    Raises:
        ValueError: an unknown key.
    """
    words = [part for word in text.split() for part in _plus_parts(word)]
    # A plus between two keys joins them; as a key of its own it stands at an end or is called `plus`.
    words = [word for index, word in enumerate(words) if word != "+" or index in (0, len(words) - 1)]
    if text and not text.strip():
        return [canonical_key(text[0])]  # a sole space, newline or tab is that key
    if any(len(word) > 1 and word[0].isupper() for word in words):
        words = [word.lower() for word in words]  # in `Ctrl+C` the capital is a way of writing, not a Shift
    found: list[str] = []
    index = 0
    while index < len(words):
        pair = " ".join(words[index : index + 2])
        # Two words that are one key (`page down`), unless both are keys of their own (`up left`).
        joined = " " in pair and not all(map(_is_key, words[index : index + 2])) and _is_key(pair)
        found.append(canonical_key(pair if joined else words[index]))
        index += 2 if joined else 1
    return found


def _chord_text(chord: tuple[str, ...]) -> str:
    """Keys as `keys` reads them back."""
    return " ".join("plus" if key == "+" else key for key in chord)


def _plus_parts(word: str) -> list[str]:
    """`ctrl+shift+c` and `ctrl-c` in their keys; `+`, `-`, `ctrl++` and names that contain a dash stay whole keys."""
    if len(word) == 1 or _is_key(word):
        return [word]
    for mark in "+-":
        if mark in word:
            parts = word.removesuffix(2 * mark).split(mark) if word.endswith(2 * mark) else word.split(mark)
            return [part for part in parts if part] + ([mark] if word.endswith(2 * mark) else [])
    return [word]


def _is_key(name: str) -> bool:
    try:
        canonical_key(name)
    except ValueError:
        return False
    return True


_READERS: dict[str, Callable[[_Arguments], a.Action]] = {
    "drag": _drag,
    "select": _drag,
    "hover": lambda given: a.Move(*given.need_point(_START)),
    "move_to": lambda given: a.Move(*given.need_point(_START)),
    "scroll": _scroll,
    "hotkey": _chord,
    "press": _chord,
    "keydown": lambda given: a.KeyDown(_one_key(given)),
    "keyup": lambda given: a.KeyUp(_one_key(given)),
    "release": lambda given: a.KeyUp(_one_key(given)),
    "mouse_down": lambda given: a.MouseDown(given.text(("button", ""), "left")),  # type: ignore[arg-type]
    "mouse_up": lambda given: a.MouseUp(given.text(("button", ""), "left")),  # type: ignore[arg-type]
    "type": lambda given: a.Type(given.text(("content", "text", ""))),
    "finished": lambda given: a.Done(given.text(("content", "answer", ""), "")),
    "call_user": lambda given: a.Fail(given.text(("content", "reason", ""), "")),
    "ask_user": lambda given: a.AskUser(given.text(("content", "question", ""), "")),
}


def _place(x: float, y: float, space: CoordinateSpace) -> str:
    """A screen point as the model writes it: whole numbers where they come back to the same pixel."""
    precise = space.to_model(x, y)
    whole = (round(precise[0]), round(precise[1]))
    back = space.to_screen(*whole)
    if (_pixel(back[0], space.screen[0]), _pixel(back[1], space.screen[1])) == (x, y):
        return f"({whole[0]},{whole[1]})"
    return f"({precise[0]:.3f},{precise[1]:.3f})"


Written = tuple[str, dict[str, str]]


def _write_click(action: a.Click, space: CoordinateSpace) -> Written:
    known = {pair: name for name, pair in reversed(_CLICKS.items())}
    name = known.get((action.button, action.count), "click")
    arguments = {} if action.x is None or action.y is None else {"start_box": _place(action.x, action.y, space)}
    if (action.button, action.count) not in known:
        arguments |= {"button": action.button, "count": str(action.count)}
    return name, arguments | ({"modifiers": _chord_text(action.modifiers)} if action.modifiers else {})


def _write_drag(action: a.Drag, space: CoordinateSpace) -> Written:
    places = [_place(x, y, space) for x, y in action.path]
    arguments = {"start_box": places[0], "end_box": places[-1]}
    if len(places) > 2:
        arguments["via"] = ";".join(places[1:-1])
    return "drag", arguments | ({"button": action.button} if action.button != "left" else {})


def _write_scroll(action: a.Scroll, space: CoordinateSpace) -> Written:
    arguments = {} if action.x is None or action.y is None else {"start_box": _place(action.x, action.y, space)}
    for direction, (dx, dy) in _DIRECTIONS.items():
        if (action.dx, action.dy) == (dx * WHEEL_NOTCHES, dy * WHEEL_NOTCHES):
            return "scroll", arguments | {"direction": direction}
    return "scroll", arguments | {"dx": str(action.dx), "dy": str(action.dy)}


def _content(name: str, text: str) -> Written:
    return name, {"content": text} if text else {}


_WRITERS: dict[type[a.Action], Callable[..., Written]] = {
    a.Click: _write_click,
    a.Drag: _write_drag,
    a.Scroll: _write_scroll,
    a.Move: lambda action, space: ("hover", {"start_box": _place(action.x, action.y, space)}),
    a.Press: lambda action, space: ("hotkey", {"key": _chord_text(action.keys)}),
    a.KeyDown: lambda action, space: ("keydown", {"key": action.key}),
    a.KeyUp: lambda action, space: ("keyup", {"key": action.key}),
    a.MouseDown: lambda action, space: ("mouse_down", {"button": action.button}),
    a.MouseUp: lambda action, space: ("mouse_up", {"button": action.button}),
    a.Type: lambda action, space: ("type", {"content": action.text}),
    a.Done: lambda action, space: _content("finished", action.answer),
    a.Fail: lambda action, space: _content("call_user", action.reason),
    a.AskUser: lambda action, space: _content("ask_user", action.question),
}

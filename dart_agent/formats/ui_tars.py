"""The action format of UI-TARS (1.0, 1.5 and Doubao), both ways.

`parse` accepts every spelling that the models and their tools produce, in any dialect: box tokens or none, two or four
numbers, `<point>` and `<bbox>`, floats, percents, any argument order, several actions one after the other, code fences,
full-width punctuation, the tags of Doubao-Seed. Where actions begin is decided in `action_lines`. A dialect decides
what the numbers mean and how `format` writes. Typed actions without a published spelling (modifiers, wheel notches,
paths) get extra arguments, so that every action survives the round trip.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

from dart_agent.formats.grammar.action_format import (
    InexpressibleError,
    NoAnswerError,
    ParsedResponse,
    ParseError,
    Response,
    Screen,
    UnreadableError,
    answer_of,
    as_tuple,
    one_of,
    parse_error,
)
from dart_agent.formats.grammar.action_lines import read_actions
from dart_agent.formats.grammar.calls import Call, quote
from dart_agent.formats.grammar.fields import DIRECTIONS, Fields
from dart_agent.formats.grammar.key_chords import read_chord, write_chord
from dart_agent.formats.grammar.places import read_place
from dart_agent.formats.grammar.reasoning import unwrapped
from dart_agent.formats.grammar.seed_calls import OPENING
from dart_agent.formats.ui_tars_prompts import UI_TARS_ACTION_SPACE, UI_TARS_DOUBAO_ACTION_SPACE
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core import actions as a

Dialect = Literal["1.0", "1.5", "doubao", "2"]
WHEEL_NOTCHES = 5
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
    "middle_click": ("middle", 1),
}


class UITarsFormat:
    """`ActionFormat` of UI-TARS."""

    name = "ui_tars"
    variants = {
        "1.0": {"dialect": "1.0"},
        "1.5": {"dialect": "1.5"},
        "doubao": {"dialect": "doubao"},
        "2": {"dialect": "2"},
    }

    def __init__(self, dialect: Dialect = "1.5", *, wait_s: float = 5.0) -> None:
        """Choose a dialect.

        Args:
            dialect: "1.5" writes absolute pixels of the resized image, the others 0 to 1000 on both axes; "2" writes in
                the tags of Doubao-Seed, as UI-TARS-2 does.
            wait_s: what `wait()` stands for; the prompt promises five seconds.

        Raises:
            TypeError: an unknown dialect.
        """
        one_of(get_args(Dialect), "dialect", dialect)
        self._dialect, self._wait_s = dialect, wait_s

    def space(self, screen: Screen) -> CoordinateSpace:
        """Absolute in the resized image (that of UI-TARS's own limits for a bare size), or relative to 1000."""
        return CoordinateSpace.for_image(screen) if self._dialect == "1.5" else CoordinateSpace.relative(screen, 1000)

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """Thought, actions and errors of a response."""
        try:
            split, space = unwrapped(answer_of(response)), self.space(screen)
        except ValueError as error:
            thought = error.thought if isinstance(error, NoAnswerError) else ""
            return ParsedResponse(thought, (), (parse_error(error),))
        actions: list[a.Action] = []
        errors: list[ParseError] = []
        said = ""
        try:
            said, calls = read_actions(split.answer, _KNOWN)
            for call in calls:
                try:
                    actions += self._action(call, space)
                except ValueError as error:  # also a typed action that refuses its fields: an absurd number
                    errors.append(parse_error(error, call.span))
        except UnreadableError as error:
            errors.append(parse_error(error))
        if split.reasoning:
            said = "\n".join(part for part in (split.reasoning, said) if part)
        if errors:
            errors = [replace(error, span=split.place(error.span)) for error in errors]
        return ParsedResponse(said, tuple(actions), tuple(errors))

    def format(self, actions: a.Action | tuple[a.Action, ...], screen: Screen, thought: str = "") -> str:
        """Write a response; `parse` returns the same actions."""
        space = self.space(screen)
        if self._dialect == "2":
            calls = "".join(self._call(action, space) for action in as_tuple(actions))
            return f"<gui_think>{thought}</gui_think>\n" * bool(thought) + f"{OPENING}{calls}</seed:tool_call>"
        lines = "\n\n".join(self._call(action, space) for action in as_tuple(actions))
        return f"Thought: {thought}\nAction: {lines}" if thought else f"Action: {lines}"

    def describe(self) -> str:
        """The action space as the prompt states it."""
        return UI_TARS_DOUBAO_ACTION_SPACE if self._dialect in ("doubao", "2") else UI_TARS_ACTION_SPACE

    def _action(self, call: Call, space: CoordinateSpace) -> list[a.Action]:
        name, given = call.name.lower(), _Arguments(call.arguments, call.name, space)
        field = given.point(_START[:-1]) if name == "type" else None  # is clicked first
        if name == "wait":
            actions: list[a.Action] = [a.Wait(given.seconds("seconds", "time", "duration", "", default=self._wait_s))]
        elif name in _CLICKS:
            actions = [_click(given, *_CLICKS[name])]
        elif name in _READERS:
            actions = [_READERS[name](given)]
        elif name in _CHORDS:
            actions = [*given.presses("key", "keys", "hotkey", "")]
        else:
            raise UnreadableError(
                f"unknown action {call.name[:40]!r}; known: click, left_double, right_single, drag, hotkey, type, "
                "scroll, wait, finished"
            )
        given.check_all_used()
        return actions if field is None else [a.Click(*field), *actions]

    def _call(self, action: a.Action, space: CoordinateSpace) -> str:
        if isinstance(action, a.Wait):
            name, arguments = "wait", {} if action.seconds == self._wait_s else {"seconds": repr(action.seconds)}
            if self._dialect != "2":
                return "wait()" if not arguments else f"wait(seconds={action.seconds!r})"
        elif (writer := _WRITERS.get(type(action))) is not None:
            name, arguments = writer(action, space)
        else:
            raise InexpressibleError(f"UI-TARS has no spelling for {action!r}")
        if self._dialect == "2":
            return _in_tags(name, arguments)
        written = (f"{key}={quote(value)}" for key, value in arguments.items())
        if self._dialect == "doubao":
            written = (_doubao(name, *item.split("=", 1)) for item in written)
        return f"{name}({', '.join(written)})"


def _in_tags(name: str, arguments: dict[str, str]) -> str:
    """A call as `read_tag_calls` reads it: nothing is escaped there."""
    parameters = ""
    for key, value in arguments.items():
        if "</parameter>" in value or "</function>" in value:
            raise InexpressibleError("a text that holds </parameter> or </function> would end its call")
        key, value = _doubao(name, key, f"'{value}'").split("=", 1)
        parameters += f"<parameter={key}>{value[1:-1]}</parameter>"
    return f"<function={name}>{parameters}</function>"


_DOUBAO_BOX = re.compile(r"'\((.+),(.+)\)'")


def _doubao(name: str, key: str, value: str) -> str:
    """An argument in Doubao's spelling: points instead of boxes."""
    if key not in ("start_box", "end_box"):
        return f"{key}={value}"
    key = {"start_box": "start_point" if name == "drag" else "point", "end_box": "end_point"}[key]
    point = _DOUBAO_BOX.sub(r"'<point>\1 \2</point>'", value)
    return f"{key}={point}"


class _Arguments(Fields):
    """The arguments of a call, all as texts; a number or place that is empty counts as not given."""

    def __init__(self, arguments: dict[str, str], what: str, space: CoordinateSpace) -> None:
        # nothing in them is null
        self.what = what[:60]
        self.space = space
        self._given = arguments

    def number(self, *names: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.text(*names, default="")
        if not value and default is not None:
            return default
        if not value.isascii():
            value = unicodedata.normalize("NFKC", value[:41])
        if len(value) > 40 or not _FLOAT.fullmatch(value.strip()) or not math.isfinite(number := float(value)):
            raise self._wrong(names[0], "a number", value)
        return number

    def point(self, names: tuple[str, ...]) -> tuple[int, int] | None:
        """A point in screen pixels."""
        value = self.text(*names, default="")
        return read_place(self.what, value, self.space) if value.strip() else None

    def need_point(self, names: tuple[str, ...]) -> tuple[int, int]:
        """A point in screen pixels that must be given."""
        return self.need(self.point(names), f"{names[0]}='(x,y)'")


def _click(given: _Arguments, button: a.Button = "left", count: int = 1) -> a.Action:
    x, y = given.point(_START) or (None, None)
    if given.used_up:
        return a.Click(x, y, button, count)
    modifiers = read_chord(given.text("modifiers", default=""))
    return a.Click(x, y, given.button("button", default=button), given.count("count", default=count), modifiers)


def _drag(given: _Arguments) -> a.Action:
    start, end = given.need_point(_START), given.need_point(_END)
    via = [read_place(given.what, part, given.space) for part in given.text("via", default="").split(";") if part]
    return a.Drag((start, *via, end), given.button("button"))


def _scroll(given: _Arguments) -> a.Action:
    x, y = given.point(_START[:-1]) or (None, None)
    if given.has("dx", "dy") and not given.has("direction", ""):
        return a.Scroll(x, y, given.wheel("dx", default=0), given.wheel("dy", default=0))
    notches = given.wheel("amount", default=WHEEL_NOTCHES, signed=False)
    dx, dy = given.direction("direction", "")
    return a.Scroll(x, y, dx * notches, dy * notches)


_READERS: dict[str, Callable[[_Arguments], a.Action]] = {
    "drag": _drag,
    "select": lambda given: (_drag if given.has(*_END) else _click)(given),
    "hover": lambda given: a.Move(*given.need_point(_START)),
    "move_to": lambda given: a.Move(*given.need_point(_START)),
    "scroll": _scroll,
    "keydown": lambda given: a.KeyDown(given.one_key("key", "")),
    "keyup": lambda given: a.KeyUp(given.one_key("key", "")),
    "release": lambda given: a.KeyUp(given.one_key("key", "")),
    "mouse_down": lambda given: a.MouseDown(given.button("button", "")),
    "mouse_up": lambda given: a.MouseUp(given.button("button", "")),
    "type": lambda given: a.Type(given.text("content", "text", "")),
    "finished": lambda given: a.Done(given.text("content", "answer", "", default="")),
    "call_user": lambda given: a.Fail(given.text("content", "reason", "", default="")),
    "ask_user": lambda given: a.AskUser(given.text("content", "question", "", default="")),
}


_CHORDS = ("hotkey", "press")
_KNOWN = frozenset((*_CLICKS, *_READERS, *_CHORDS, "wait"))


def _place(x: int, y: int, space: CoordinateSpace) -> str:
    """A screen point as the model writes it."""
    across, down = space.written(x, y)
    return f"({across},{down})"


Written = tuple[str, dict[str, str]]


def _write_click(action: a.Click, space: CoordinateSpace) -> Written:
    known = {pair: name for name, pair in reversed(_CLICKS.items())}
    name = known.get((action.button, action.count), "click")
    arguments = {} if action.x is None or action.y is None else {"start_box": _place(action.x, action.y, space)}
    if (action.button, action.count) not in known:
        arguments |= {"button": action.button, "count": str(action.count)}
    return name, arguments | ({"modifiers": write_chord(action.modifiers)} if action.modifiers else {})


def _write_drag(action: a.Drag, space: CoordinateSpace) -> Written:
    places = [_place(x, y, space) for x, y in action.path]
    arguments = {"start_box": places[0], "end_box": places[-1]}
    if len(places) > 2:
        arguments["via"] = ";".join(places[1:-1])
    return "drag", arguments | ({"button": action.button} if action.button != "left" else {})


def _write_scroll(action: a.Scroll, space: CoordinateSpace) -> Written:
    arguments = {} if action.x is None or action.y is None else {"start_box": _place(action.x, action.y, space)}
    for direction, (dx, dy) in DIRECTIONS.items():
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
    a.Press: lambda action, space: ("hotkey", {"key": write_chord(action.keys)}),
    a.KeyDown: lambda action, space: ("keydown", {"key": action.key}),
    a.KeyUp: lambda action, space: ("keyup", {"key": action.key}),
    a.MouseDown: lambda action, space: ("mouse_down", {"button": action.button}),
    a.MouseUp: lambda action, space: ("mouse_up", {"button": action.button}),
    a.Type: lambda action, space: ("type", {"content": action.text}),
    a.Done: lambda action, space: _content("finished", action.answer),
    a.Fail: lambda action, space: _content("call_user", action.reason),
    a.AskUser: lambda action, space: _content("ask_user", action.question),
}


FORMAT = UITarsFormat

"""GLM-4.5V on a desktop: a plain text with one call in box tokens, and a memory.

    I open the menu. <|begin_of_box|>left_click(start_box='[120,40]', element_info='File')<|end_of_box|>
    Memory: [{"file": "a.txt"}]

Coordinates are 0 to 999. All boxes count, in order; without one, all lines that are calls. The memory belongs to the
thought. Source: zai-org/GLM-V@8fc9756 examples/gui-agent/glm-45v/agent.md ("Desktop Environment"), gui_agent_45v.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice

from dart_agent.formats.grammar.action_format import (
    MAX_ACTIONS,
    InexpressibleError,
    ParsedResponse,
    Reading,
    Response,
    Screen,
    UnreadableError,
    as_tuple,
    parse_error,
)
from dart_agent.formats.grammar.calls import Call, parse_calls, quote
from dart_agent.formats.grammar.fields import Fields, Point
from dart_agent.formats.grammar.key_chords import write_chord
from dart_agent.formats.grammar.places import read_place
from dart_agent.formats.grammar.pointer import click_name
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core import actions as a

OPEN, CLOSE = "<|begin_of_box|>", "<|end_of_box|>"
WAIT_S = 5.0
STEPS = 5
_CALL = re.compile(
    r"^[ \t]*(?:\**action\**[ \t]*[:\uff1a]\**[ \t]*)?([A-Za-z_]{3,20}[(\uff08].*[)\uff09])[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
_CLICKS: dict[str, tuple[a.Button, int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "left_double_click": ("left", 2),
}

DESCRIPTION = f"""Say in plain text what you do, then write one call, and what you have to remember:
{OPEN}action(param='...'){CLOSE}
Memory: [{{"key": "value"}}, ...]
Calls, with coordinates from 0 to 999:
{{left,right,middle}}_click(start_box='[x,y]', element_info=''), left_double_click(...), hover(...)
left_drag(start_box='[x1,y1]', end_box='[x2,y2]', element_info='')
key(keys='ctrl+c'), type(content='')
scroll(start_box='[x,y]', direction='down or up', step=5, element_info='')
WAIT() waits 5 seconds, DONE() says that the task is accomplished, FAIL() that it cannot be."""


class GLMVFormat:
    """`ActionFormat` of GLM-4.5V."""

    name = "glm_v"

    def space(self, screen: Screen) -> CoordinateSpace:
        """0 to 999."""
        return CoordinateSpace.relative(screen, 999)

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """Thought, actions and errors of a response."""
        reading = Reading()
        try:
            text, space = reading.answer(response), self.space(screen)
            places = _places(text)
            reading.thought = _outside(text, places)
            for start, end in places:
                for call in parse_calls(text[:end], start):
                    self._add(reading, call, space)
        except ValueError as error:
            reading.actions = []
            reading.give_up(error)
        return reading.result("there is no call in the response")

    @staticmethod
    def _add(reading: Reading, call: Call, space: CoordinateSpace) -> None:
        try:
            name = call.name if call.name in _READERS or call.name in _CLICKS else _NAMES.get(call.name.lower(), "")
            fields = Fields(call.arguments, call.name, space)
            fields.take("element_info")
            if name in _CLICKS:
                reading.actions.append(a.Click(*_at(fields), *_CLICKS[name]))
            elif name in _READERS:
                reading.actions += _READERS[name](fields)
            else:
                known = ", ".join((*_CLICKS, *_READERS))
                raise UnreadableError(f"unknown action {call.name[:40]!r}; known: {known}")
            fields.check_all_used()
        except ValueError as error:
            reading.errors.append(parse_error(error, call.span))

    def format(self, actions: a.Action | tuple[a.Action, ...], screen: Screen, thought: str = "") -> str:
        """Write a response: the thought, and the calls in one box."""
        space = self.space(screen)
        calls = "\n".join(_write(action, space) for action in as_tuple(actions))
        if CLOSE in calls or OPEN in calls:
            raise InexpressibleError(f"a text that holds {OPEN} or {CLOSE} would end its box")
        return f"{thought}\n{OPEN}{calls}{CLOSE}" if thought else f"{OPEN}{calls}{CLOSE}"

    def describe(self) -> str:
        """The calls as the prompt states them."""
        return DESCRIPTION


def _places(text: str) -> list[tuple[int, int]]:
    """Where the calls of a response are. Raises `UnreadableError`."""
    places: list[tuple[int, int]] = []
    position = 0
    while (start := text.find(OPEN, position)) >= 0:
        end = text.find(CLOSE, start)
        end = len(text) if end < 0 else end
        places.append((start + len(OPEN), end))
        position = end
        if len(places) > MAX_ACTIONS:
            raise UnreadableError(f"more than {MAX_ACTIONS} boxes in one response", (start, len(text)))
    places = places or [line.span(1) for line in islice(_CALL.finditer(text), MAX_ACTIONS + 1)]
    if not places or len(places) > MAX_ACTIONS:
        none = f"no call in {OPEN}...{CLOSE}, and no line that is one"
        raise UnreadableError(f"more than {MAX_ACTIONS} calls" if places else none, (0, len(text)))
    return places


def _outside(text: str, places: list[tuple[int, int]]) -> str:
    parts, position = [], 0
    for start, end in places:
        parts.append(text[position:start].removesuffix(OPEN).rstrip())
        position = end + len(CLOSE) if text.startswith(CLOSE, end) else end
    return "".join((*parts, text[position:])).strip()


def _place(given: Fields, name: str = "start_box") -> Point | None:
    value = given.text(name, default="")
    return read_place(given.what, value, given.space, "[x,y]") if value else None


def _at(given: Fields, name: str = "start_box") -> Point:
    return given.need(_place(given, name), f"{name}='[x,y]'")


def _scroll(given: Fields) -> a.Action:
    x, y = _place(given) or (None, None)
    direction, steps = given.text("direction"), given.wheel("step", default=STEPS, signed=False)
    if direction not in ("up", "down"):
        raise UnreadableError(f"scroll: direction must be down or up, got {direction[:40]!r}")
    return a.Scroll(x, y, dy=steps if direction == "down" else -steps)


_READERS: dict[str, Callable[[Fields], Sequence[a.Action]]] = {
    "hover": lambda given: [a.Move(*_at(given))],
    "left_drag": lambda given: [a.Drag((_at(given), _at(given, "end_box")))],
    "key": lambda given: given.presses("keys"),
    "type": lambda given: [a.Type(given.text("content"))],
    "scroll": lambda given: [_scroll(given)],
    "WAIT": lambda given: [a.Wait(WAIT_S)],
    "DONE": lambda given: [a.Done()],
    "FAIL": lambda given: [a.Fail()],
}
_NAMES = {name.lower(): name for name in (*_CLICKS, *_READERS)}


def _write(action: a.Action, space: CoordinateSpace) -> str:
    """One action as a call. Raises `InexpressibleError` where there is none."""

    def at(name: str, x: int, y: int) -> str:
        across, down = space.written(x, y)
        return f"{name}='[{across},{down}]'"

    match action:
        case a.Click(x=int() as x, y=int() as y, modifiers=()) if (action.button, action.count) in _CLICKS.values():
            return f"{click_name(_CLICKS, action)}({at('start_box', x, y)})"
        case a.Move():
            return f"hover({at('start_box', action.x, action.y)})"
        case a.Drag(path=(start, end), button="left"):
            return f"left_drag({at('start_box', *start)}, {at('end_box', *end)})"
        case a.Press():
            return f"key(keys={quote(write_chord(action.keys, '+'))})"
        case a.Type():
            return f"type(content={quote(action.text)})"
        case a.Scroll(dx=0, dy=dy):
            place = "" if action.x is None or action.y is None else at("start_box", action.x, action.y) + ", "
            return f"scroll({place}direction='{'up' if dy < 0 else 'down'}', step={abs(dy)})"
        case a.Wait(seconds=seconds) if seconds == WAIT_S:
            return "WAIT()"
        case a.Done(answer=""):
            return "DONE()"
        case a.Fail(reason=""):
            return "FAIL()"
    raise InexpressibleError(f"GLM-V has no call for {action!r:.200}")

"""Gemini's computer use: its predefined functions, those of Gemini 3.5 and the ones before (`click_at`, ...).

A response is the API's object (`response.model_dump()`, or its JSON, in camel or snake case): parts of the first
candidate with a `functionCall` hold one action each, carried out in order. Coordinates are 0 to 1000 on both axes, and
so are distances of the wheel; a notch is 100 pixels. Functions of a browser are what a person would press in one. A
turn without a call is the answer. `take_screenshot` is `Wait(0)`: the next observation is one.

Source: google-gemini/computer-use-preview@c93bb2d agent.py, whose defaults are taken where a call leaves something out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from dart_agent.formats.grammar.action_format import (
    InexpressibleError,
    ParsedResponse,
    Reading,
    Response,
    Screen,
    UnfinishedThoughtError,
    UnreadableError,
    as_tuple,
    one_of,
    parse_error,
)
from dart_agent.formats.grammar.element_actions import typing, visiting
from dart_agent.formats.grammar.fields import Fields, Point
from dart_agent.formats.grammar.key_chords import write_chord
from dart_agent.formats.grammar.pointer import PIXELS_PER_NOTCH, click_name, straight
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core import actions as a
from dart_gym_hosted_models.tool_replies import (
    ENDING,
    blocks,
    dump,
    ending,
    ending_text,
    response_object,
    words,
)

Functions = Literal["3.5", "2.5"]
SIZE = 1000
_ENDS = {
    "MAX_TOKENS": "the response is cut off: raise max_tokens",
    "MALFORMED_FUNCTION_CALL": "the model's call was malformed: write it again",
    **dict.fromkeys(("SAFETY", "PROHIBITED_CONTENT", "BLOCKLIST", "RECITATION"), "the model refused"),
}
_CLICKS: dict[str, tuple[a.Button, int]] = {
    "click": ("left", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
    "middle_click": ("middle", 1),
    "right_click": ("right", 1),
    "click_at": ("left", 1),
}


class GeminiFormat:
    """`ToolFormat` of Gemini's computer use."""

    name = "gemini"
    variants = {functions: {"functions": functions} for functions in get_args(Functions)}

    def __init__(self, functions: Functions = "3.5") -> None:
        """Choose which functions `format` writes: those of Gemini 3.5 and later, or of the preview. Both are read."""
        one_of(self.variants, "functions", functions)
        self._old = functions == "2.5"

    def space(self, screen: Screen) -> CoordinateSpace:
        """0 to 1000."""
        return CoordinateSpace.relative(screen, SIZE)

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """Thought, actions and errors of a response object."""
        reading = Reading()
        thoughts: list[str] = []
        said: list[str] = []
        called = False
        try:
            space = self.space(screen)
            feedback = response_object(response).get("promptFeedback")
            if isinstance(feedback, dict) and feedback.get("blockReason"):
                raise UnreadableError(f"the prompt was blocked: {str(feedback['blockReason'])[:60]}")
            first = (blocks(response_object(response).get("candidates"), "candidates") or [{}])[0]
            content = first.get("content")
            for part in blocks((content.get("parts") if isinstance(content, Mapping) else None) or [], "parts"):
                call = part.get("functionCall", part.get("function_call"))
                if call is not None and part.get("thought") is not True:  # one that is only thought is not done
                    called = True
                    _use(reading, call, space)
                elif "text" in part:
                    (thoughts if part.get("thought") else said).append(words(part["text"]))
            stop = str(first.get("finishReason", first.get("finish_reason"))).rpartition(".")[2]
            if stop == "MAX_TOKENS" and thoughts and not called and not any(said):
                raise UnfinishedThoughtError()
            if stop in _ENDS:
                raise UnreadableError(_ENDS[stop])
            if not called and said:
                reading.actions.append(ending("\n".join(said)))
                said = []
        except ValueError as error:
            reading.errors.append(parse_error(error))
        reading.thought = "\n".join(text for text in (*thoughts, *said) if text)
        return reading.result("the response has no function call and no text")

    def format(self, actions: a.Action | tuple[a.Action, ...], screen: Screen, thought: str = "") -> str:
        """Write a response as JSON."""
        space, given = self.space(screen), as_tuple(actions)
        parts: list[dict[str, Any]] = [{"text": thought, "thought": True}] if thought else []
        if isinstance(given[0], (a.Done, a.Fail)) and len(given) == 1:
            parts.append({"text": ending_text(given[0])})
        else:
            for action in given:
                name, arguments = (_write_old if self._old else _write)(action, space)
                parts.append({"functionCall": {"name": name, "args": arguments}})
        return dump({"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]})

    def describe(self) -> str:
        """What the prompt adds to the tool."""
        return ENDING

    def tool_schema(self, screen: Screen) -> dict[str, Any]:
        """The tool as the request declares it."""
        return {"computer_use": {"environment": "ENVIRONMENT_BROWSER"}}


def _use(reading: Reading, call: Any, space: CoordinateSpace) -> None:
    """Add the actions of one call."""
    try:
        name, given = (call.get("name"), call.get("args") or {}) if isinstance(call, Mapping) else (None, {})
        if not isinstance(name, str) or not isinstance(given, Mapping):
            raise UnreadableError("a function call has a name and args")
        fields = Fields(given, name, space)
        if isinstance(check := fields.take("safety_decision"), Mapping):
            why = words(check.get("explanation"))[:200]
            raise UnreadableError(
                f"{name[:40]} waits for a person's confirmation, and nobody is here to give it: {why}"
            )
        fields.take("intent")
        if name in _CLICKS:
            actions: list[a.Action] = [a.Click(*_at(fields), *_CLICKS[name])]
        elif name in _READERS:
            actions = _READERS[name](fields)
        else:
            raise UnreadableError(f"unknown function {name[:40]!r}; known: {', '.join((*_CLICKS, *_READERS))}")
        fields.check_all_used()
        reading.actions += actions
    except ValueError as error:
        reading.errors.append(parse_error(error))


def _at(given: Fields) -> Point:
    return given.need(given.xy(), "x and y")


def _scroll(given: Fields) -> list[a.Action]:
    x, y = given.xy() or (None, None)
    dx, dy = given.direction("direction")
    notch = PIXELS_PER_NOTCH * SIZE / given.space.screen[0 if dx else 1]
    count = given.wheel("magnitude", default=800, size=notch, signed=False)
    return [a.Scroll(x, y, dx * count, dy * count)]


def _drag(given: Fields) -> list[a.Action]:
    end = given.point_of((given.take("destination_x"), given.take("destination_y")), "destination_x and destination_y")
    return [a.Drag((_at(given), end))]


def _type_at(given: Fields) -> list[a.Action]:
    click, enter = a.Click(*_at(given)), given.flag("press_enter")
    return [click, *typing(given.text("text"), given.flag("clear_before_typing", default=True), enter)]


_READERS: dict[str, Callable[[Fields], list[a.Action]]] = {
    "move": lambda given: [a.Move(*_at(given))],
    "mouse_down": lambda given: [a.Move(*_at(given)), a.MouseDown()],
    "mouse_up": lambda given: [a.Move(*_at(given)), a.MouseUp()],
    "type": lambda given: typing(given.text("text"), False, given.flag("press_enter")),
    "drag_and_drop": _drag,
    "wait": lambda given: [a.Wait(given.seconds("seconds", default=1))],
    "press_key": lambda given: [*given.presses("key")],
    "key_down": lambda given: [a.KeyDown(given.one_key("key"))],
    "key_up": lambda given: [a.KeyUp(given.one_key("key"))],
    "hotkey": lambda given: [*given.presses("keys")],
    "take_screenshot": lambda given: [a.Wait(0.0)],
    "scroll": _scroll,
    "go_back": lambda given: [a.Press(("alt", "left"))],
    "go_forward": lambda given: [a.Press(("alt", "right"))],
    "navigate": lambda given: visiting(given.text("url")),
    "open_web_browser": lambda given: [a.Wait(0.0)],
    "hover_at": lambda given: [a.Move(*_at(given))],
    "type_text_at": _type_at,
    "scroll_document": _scroll,
    "scroll_at": _scroll,
    "wait_5_seconds": lambda given: [a.Wait(5.0)],
    "search": lambda given: visiting("https://www.google.com"),
    "key_combination": lambda given: [*given.presses("keys")],
}

Written = tuple[str, dict[str, Any]]


def _write(action: a.Action, space: CoordinateSpace) -> Written:  # noqa: C901  # one case per action
    """One action as a function of Gemini 3.5 and its arguments."""

    def at(x: int, y: int, names: tuple[str, str] = ("x", "y")) -> dict[str, Any]:
        return dict(zip(names, space.written(x, y), strict=True))

    match action:
        case a.Click(x=int() as x, y=int() as y, modifiers=()) if (action.button, action.count) in _CLICKS.values():
            return click_name(_CLICKS, action), at(x, y)
        case a.Drag(button="left"):
            start, end = straight(action, "Gemini")
            return "drag_and_drop", at(*start) | at(*end, ("destination_x", "destination_y"))
        case a.Scroll(dx=dx, dy=dy) if dx == 0 or dy == 0:
            direction = ("right" if dx > 0 else "left") if dx else ("up" if dy < 0 else "down")
            place = {} if action.x is None or action.y is None else at(action.x, action.y)
            pixels = abs(dx or dy) * PIXELS_PER_NOTCH * SIZE / space.screen[0 if dx else 1]
            return "scroll", place | {"direction": direction, "magnitude": round(pixels, 3)}
        case a.Move():
            return "move", at(action.x, action.y)
        case a.Type():
            return "type", {"text": action.text}
        case a.Press():
            return "hotkey", {"keys": list(action.keys)}
        case a.KeyDown() | a.KeyUp():
            return action.kind, {"key": action.key}
        case a.Wait():
            return ("wait", {"seconds": action.seconds}) if action.seconds else ("take_screenshot", {})
    raise InexpressibleError(f"Gemini has no function for {action!r:.200}")


def _write_old(action: a.Action, space: CoordinateSpace) -> Written:
    """One action as a function of the preview: there is no typing but into a place, and one kind of click."""
    match action:
        case a.Click(x=int(), button="left", count=1, modifiers=()):
            return "click_at", _write(action, space)[1]
        case a.Move():
            return "hover_at", _write(action, space)[1]
        case a.Scroll():
            name, arguments = _write(action, space)
            return "scroll_at" if "x" in arguments else "scroll_document", arguments
        case a.Press(keys=keys):
            return "key_combination", {"keys": write_chord(keys, "+")}
        case a.Wait(seconds=seconds) if seconds in (0.0, 5.0):
            return ("wait_5_seconds" if seconds else "open_web_browser"), {}
        case a.Drag():
            return _write(action, space)
    raise InexpressibleError(f"the functions of Gemini's preview have none for {action!r:.200}")

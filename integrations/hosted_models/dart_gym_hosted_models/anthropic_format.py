"""Anthropic's computer use: the tool versions of 2024-10, 2025-01 and 2025-11, and the toolset of 2026-08.

A response is the API's message object (`message.model_dump()`, or its JSON): blocks of `content` of type `tool_use`
hold one action each, carried out in order. Coordinates are pixels of the image that was sent, which should be no larger
than 1280x800 or so: give `parse` a `CoordinateSpace` with its size. Keys have xdotool's names.
A turn without an action is the answer. `screenshot` is `Wait(0)`: the next observation is one. The toolset has a tool
for each action instead of a field that names it, and `zoom`: a `Zoom`, whose next observation is a part of the screen.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

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
from dart_agent.formats.grammar.fields import Fields
from dart_agent.formats.grammar.key_chords import write_chord
from dart_agent.formats.grammar.pointer import click_name, drag_to, holding
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
from dart_gym_hosted_models.zoom import Zoom

Version = Literal["2024-10", "2025-01", "2025-11", "2026-08"]
MAX_REPEAT = 100
TOOLSET = "2026-08"
_TOOLS = {
    "2024-10": "computer_20241022",
    "2025-01": "computer_20250124",
    "2025-11": "computer_20251124",
    TOOLSET: "computer_toolset_20260801",
}
_STOPS = {"max_tokens": "the response is cut off: raise max_tokens", "refusal": "the model refused"}
_CLICKS: dict[str, tuple[a.Button, int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}
_SINCE_2025 = frozenset(("left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click"))


class AnthropicFormat:
    """`ToolFormat` of Anthropic's computer tool."""

    name = "anthropic"
    variants = {version: {"version": version} for version in _TOOLS}

    def __init__(self, version: Version = "2025-01") -> None:
        """Choose the version of the tool."""
        one_of(_TOOLS, "version", version)
        self._version = version

    def space(self, screen: Screen) -> CoordinateSpace:
        """Absolute in the image that was sent."""
        return CoordinateSpace.of(screen)

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """Thought, actions and errors of a message object."""
        reading = Reading()
        thoughts: list[str] = []
        said: list[str] = []
        called = False
        try:
            given, space = response_object(response), self.space(screen)
            for block in blocks(given.get("content"), "content"):
                kind = block.get("type")
                if kind == "tool_use":
                    called = True
                    self._use(reading, block, space)
                elif kind in ("text", "thinking"):
                    (said if kind == "text" else thoughts).append(words(block.get(kind)))
                elif kind != "redacted_thinking":
                    raise UnreadableError(f"content of type {str(kind)[:40]!r} is no tool_use and no text")
            stop = given.get("stop_reason")
            if stop == "max_tokens" and thoughts and not called and not any(said):
                raise UnfinishedThoughtError()
            if stop in _STOPS:
                raise UnreadableError(_STOPS[stop])
            if not called and said:
                reading.actions.append(ending("\n".join(said)))
                said = []
        except ValueError as error:
            reading.errors.append(parse_error(error))
        reading.thought = "\n".join(part for part in (*thoughts, *said) if part)
        return reading.result("the message has no tool_use and no text")

    def _use(self, reading: Reading, block: Mapping[str, Any], space: CoordinateSpace) -> None:
        try:
            given, named = block.get("input"), block.get("name")
            member = self._version == TOOLSET and block.get("toolset_name") == "computer"
            if not (member or named == "computer") or not isinstance(given, Mapping):
                raise UnreadableError(f"{str(named)[:40]!r} is not the tool computer with an input object")
            kind = named if member else given.get("action")
            if not isinstance(kind, str):
                raise UnreadableError("computer needs an action")
            taken = () if member else ("action",)
            fields = Fields({key: value for key, value in given.items() if key not in taken}, kind, space)
            done = list(reading.actions)
            self._read(done, kind, fields)
            fields.check_all_used()
            reading.actions = done
        except ValueError as error:
            reading.errors.append(parse_error(error))

    def _read(self, done: list[a.Action], kind: str, given: Fields) -> None:
        if kind in _SINCE_2025 and self._version == "2024-10":
            raise UnreadableError(f"{kind} is not an action of {_TOOLS[self._version]}")
        if kind in _CLICKS:
            held = given.chord(given.keys("text", "key"))
            x, y = given.pair("coordinate") or (None, None)
            done += holding(held, [a.Click(x, y, *_CLICKS[kind])])
        elif kind == "left_click_drag":
            _drag(done, given)
        elif kind == "key":
            presses = given.presses("text", spaces_part=True)
            done += presses * given.count("repeat", default=1, most=MAX_REPEAT)
        elif kind == "hold_key":
            held = given.need_keys("text")
            done += holding(held, [a.Wait(given.seconds("duration"))])
        elif kind == "scroll":
            done += holding(given.keys("text"), [_scroll(given)])
        elif kind in _READERS:
            done.append(_READERS[kind](given))
        elif kind == "zoom" and self._version == TOOLSET:
            done.append(_zoom(given))
        else:
            raise UnreadableError(f"the action {kind[:40]!r} is not offered; {_hint(kind)}")

    def format(self, actions: a.Action | tuple[a.Action, ...], screen: Screen, thought: str = "") -> str:
        """Write a message as JSON."""
        space, given = self.space(screen), as_tuple(actions)
        if isinstance(given[0], (a.Done, a.Fail)) and len(given) == 1:
            said = [{"type": "thinking", "thinking": thought}] if thought else []
            answer = {"type": "text", "text": ending_text(given[0])}
            return dump({"content": [*said, answer], "stop_reason": "end_turn"})
        content: list[dict[str, Any]] = [{"type": "text", "text": thought}] if thought else []
        for index, item in enumerate(self._write(action, space) for action in given):
            use: dict[str, Any] = {"type": "tool_use", "id": f"toolu_{index}", "name": "computer", "input": item}
            if self._version == TOOLSET:
                use |= {"name": item.pop("action"), "toolset_name": "computer"}
            content.append(use)
        return dump({"content": content, "stop_reason": "tool_use"})

    def _write(self, action: a.Action, space: CoordinateSpace) -> dict[str, Any]:
        item = _write(action, space)
        old = self._version == "2024-10"
        zooms = item is not None and item["action"] == "zoom" and self._version != TOOLSET
        if item is None or zooms or (old and (item["action"] in _SINCE_2025 or "start_coordinate" in item)):
            raise InexpressibleError(f"{_TOOLS[self._version]} has no spelling for {action!r:.200}")
        return item

    def describe(self) -> str:
        """What the prompt adds to the tool."""
        return ENDING

    def tool_schema(self, screen: Screen) -> dict[str, Any]:
        """The tool as the request declares it, for an image of the size that the space names; toolsets take none."""
        if self._version == TOOLSET:
            return {"type": _TOOLS[TOOLSET], "configs": {"cursor_position": {"enabled": False}}}
        width, height = self.space(screen).model
        return {
            "type": _TOOLS[self._version],
            "name": "computer",
            "display_width_px": width,
            "display_height_px": height,
        }


def _hint(kind: str) -> str:
    if kind in ("zoom", "cursor_position"):
        return "the screenshot shows all that is to be seen"
    return f"known: {', '.join((*_CLICKS, 'left_click_drag', 'key', 'hold_key', 'scroll', *_READERS))}"


def _zoom(given: Fields) -> Zoom:
    corners = given.take("region")
    if not isinstance(corners, (list, tuple)) or len(corners) != 4:
        raise UnreadableError("zoom needs region: [x0, y0, x1, y1]")
    (left, top), (right, bottom) = given.point_of(corners[:2], "region"), given.point_of(corners[2:], "region")
    return Zoom((left, top, right, bottom))


def _drag(done: list[a.Action], given: Fields) -> None:
    start, end = given.pair("start_coordinate"), given.need(given.pair("coordinate"), "coordinate")
    held = given.keys("text")
    if start is not None:
        done += holding(held, [a.Drag((start, end))])
    elif held:
        raise UnreadableError("left_click_drag with keys needs start_coordinate")
    else:
        drag_to(done, end)


def _scroll(given: Fields) -> a.Action:
    x, y = given.pair("coordinate") or (None, None)
    (dx, dy), amount = given.direction("scroll_direction"), given.wheel("scroll_amount", signed=False)
    return a.Scroll(x, y, dx * amount, dy * amount)


_READERS: dict[str, Callable[[Fields], a.Action]] = {
    "type": lambda given: a.Type(given.text("text")),
    "mouse_move": lambda given: a.Move(*given.need(given.pair("coordinate"), "coordinate")),
    "left_mouse_down": lambda given: a.MouseDown(),
    "left_mouse_up": lambda given: a.MouseUp(),
    "wait": lambda given: a.Wait(given.seconds("duration")),
    "screenshot": lambda given: a.Wait(0.0),
}


def _write(action: a.Action, space: CoordinateSpace) -> dict[str, Any] | None:
    """One action as the API writes it; None where it has no spelling."""

    def at(name: str, x: int | None, y: int | None) -> dict[str, Any]:
        return {} if x is None or y is None else {name: list(space.written(x, y))}

    match action:
        case a.Click() if (action.button, action.count) in _CLICKS.values():
            name = click_name(_CLICKS, action)
            held = {"text": write_chord(action.modifiers, "+")} if action.modifiers else {}
            return {"action": name, **at("coordinate", action.x, action.y), **held}
        case a.Drag(path=(start, end), button="left"):
            return {"action": "left_click_drag", **at("start_coordinate", *start), **at("coordinate", *end)}
        case a.Move():
            return {"action": "mouse_move", **at("coordinate", action.x, action.y)}
        case a.Press():
            return {"action": "key", "text": write_chord(action.keys, "+")}
        case a.Scroll(dx=dx, dy=dy) if dx == 0 or dy == 0:
            direction = ("right" if dx > 0 else "left") if dx else ("up" if dy < 0 else "down")
            place = at("coordinate", action.x, action.y)
            return {"action": "scroll", **place, "scroll_direction": direction, "scroll_amount": abs(dx or dy)}
        case Zoom(region=(left, top, right, bottom)):
            return {"action": "zoom", "region": [*space.written(left, top), *space.written(right, bottom)]}
        case a.Type():
            return {"action": "type", "text": action.text}
        case a.MouseDown(button="left"):
            return {"action": "left_mouse_down"}
        case a.MouseUp(button="left"):
            return {"action": "left_mouse_up"}
        case a.Wait():
            return {"action": "wait", "duration": action.seconds} if action.seconds else {"action": "screenshot"}
    return None

"""OpenAI's computer use, through the Responses API: the tool `computer` and the preview before it.

A response is the API's response object (`response.model_dump()`, or its JSON): items of `output` of type
`computer_call` hold one `action` (preview) or a list of `actions`, carried out in order. Coordinates are pixels of the
screenshot that was sent. Wheel movements are pixels, a notch is 100 of them. Names of keys are read in any case.
A turn without a call is the answer. `screenshot` is `Wait(0)`: the next observation is one.
"""

from collections.abc import Callable, Mapping, Sequence
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
from dart_agent.formats.grammar.pointer import PIXELS_PER_NOTCH, holding
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

Tool = Literal["computer", "computer_use_preview"]
_BUTTONS = {"left": "left", "right": "right", "wheel": "middle", "middle": "middle"}


class OpenAIFormat:
    """`ToolFormat` of OpenAI's computer tool."""

    name = "openai"
    variants = {"computer": {"tool": "computer"}, "computer_use_preview": {"tool": "computer_use_preview"}}

    def __init__(self, tool: Tool = "computer", *, wait_s: float = 2.0) -> None:
        """Choose a tool; both are read, whichever it is.

        Args:
            tool: what is declared, and whether `format` writes one list of actions or a call for each.
            wait_s: what the action `wait` stands for.
        """
        one_of(self.variants, "tool", tool)
        self._tool, self._wait_s = tool, wait_s

    def space(self, screen: Screen) -> CoordinateSpace:
        """Absolute in the screenshot that was sent."""
        return CoordinateSpace.of(screen)

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """Thought, actions and errors of a response object."""
        reading = Reading()
        said: list[str] = []
        called = False
        try:
            given, space = response_object(response), self.space(screen)
            for item in blocks(given.get("output"), "output"):
                kind = item.get("type")
                if kind == "reasoning":
                    parts = item.get("summary") or item.get("content") or []  # open models give all of it
                    reading.thought += "".join(words(part.get("text")) for part in blocks(parts, kind))
                elif kind == "message":
                    said += _message(item)
                elif kind == "computer_call":
                    called = True
                    self._call(reading, item, space)
                else:
                    raise UnreadableError(f"output of type {str(kind)[:40]!r} is no computer_call and no message")
            if given.get("status") == "incomplete":
                if not called and not any(said) and _spent(given):
                    raise UnfinishedThoughtError(reading.thought)
                raise UnreadableError(f"the response is cut off: {str(given.get('incomplete_details'))[:80]}")
            text = "\n".join(said)
            if called:
                reading.thought = "\n".join(part for part in (reading.thought, text) if part)
            elif said:
                reading.actions.append(ending(text))
        except ValueError as error:
            reading.errors.append(parse_error(error))
        return reading.result("the response has no computer_call and no message")

    def _call(self, reading: Reading, item: Mapping[str, Any], space: CoordinateSpace) -> None:
        actions = item.get("actions")
        for given in blocks([item.get("action")] if actions is None else actions, "actions"):
            try:
                reading.actions += self._action(given, space)
            except ValueError as error:
                reading.errors.append(parse_error(error))

    def _action(self, given: Mapping[str, Any], space: CoordinateSpace) -> list[a.Action]:
        kind = given.get("type")
        if not isinstance(kind, str):
            raise UnreadableError("an action needs a type")
        fields = Fields({key: value for key, value in given.items() if key != "type"}, kind, space)
        if kind == "wait":
            actions: list[a.Action] = [a.Wait(self._wait_s)]
        elif (reader := _READERS.get(kind)) is not None:
            held = () if kind == "keypress" else _keys(fields)
            actions = holding(held, reader(fields))
        else:
            raise UnreadableError(f"unknown action {kind[:40]!r}; known: wait, {', '.join(_READERS)}")
        fields.check_all_used()
        return actions

    def format(self, actions: a.Action | tuple[a.Action, ...], screen: Screen, thought: str = "") -> str:
        """Write a response as JSON."""
        space, given = self.space(screen), as_tuple(actions)
        output: list[dict[str, Any]] = []
        if thought:
            output.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": thought}]})
        if isinstance(given[0], (a.Done, a.Fail)) and len(given) == 1:
            text = ending_text(given[0])
            output.append({"type": "message", "content": [{"type": "output_text", "text": text}]})
            return dump({"output": output})
        written = [self._write(action, space) for action in given]
        calls: list[dict[str, Any]] = [{"action": item} for item in written]
        if self._tool == "computer":
            calls = [{"actions": written}]
        output += [{"type": "computer_call", "call_id": f"call_{index}", **call} for index, call in enumerate(calls)]
        return dump({"output": output})

    def _write(self, action: a.Action, space: CoordinateSpace) -> dict[str, Any]:
        if isinstance(action, a.Wait) and action.seconds in (0.0, self._wait_s):
            return {"type": "wait" if action.seconds == self._wait_s else "screenshot"}
        return _write(action, space)

    def describe(self) -> str:
        """What the prompt adds to the tool."""
        return ENDING

    def tool_schema(self, screen: Screen) -> dict[str, Any]:
        """The tool as the request declares it."""
        if self._tool == "computer":
            return {"type": "computer"}
        width, height = self.space(screen).model
        return {"type": self._tool, "display_width": width, "display_height": height, "environment": "linux"}


def _spent(given: Mapping[str, Any]) -> bool:
    """Whether a response was cut off because it reached its length."""
    details = given.get("incomplete_details")
    return isinstance(details, Mapping) and details.get("reason") == "max_output_tokens"


def _message(item: Mapping[str, Any]) -> list[str]:
    said = []
    for part in blocks(item.get("content"), "content"):
        if part.get("type") == "refusal":
            raise UnreadableError(f"the model refused: {words(part.get('refusal'))[:200]}")
        said.append(words(part.get("text")))
    return said


def _keys(given: Fields) -> tuple[str, ...]:
    """Keys in any case: `CTRL`, `C`."""
    return given.chord(tuple(key.lower() for key in given.keys("keys")))


def _presses(given: Fields) -> list[a.Press]:
    return [a.Press(tuple(key.lower() for key in press.keys)) for press in given.presses("keys")]


def _click(given: Fields, count: int = 1) -> a.Action:
    x, y = given.need(given.xy(), "x and y")
    button = given.text("button", default="left")
    if button not in _BUTTONS:
        raise UnreadableError(f"the desktop's mouse has no button {button[:40]!r}; for back press ALT and LEFT")
    return a.Click(x, y, _BUTTONS[button], count)  # type: ignore[arg-type]  # the table's values are buttons


def _drag(given: Fields) -> a.Action:
    path = blocks(given.take("path") or [], "path", a.MAX_DRAG_POINTS)
    points = [given.need(Fields(point, "path", given.space).xy(), "x and y") for point in path]
    return a.Drag(tuple(points))


def _scroll(given: Fields) -> a.Action:
    x, y = given.xy() or (None, None)
    dx, dy = (given.wheel(name, default=0, size=PIXELS_PER_NOTCH) for name in ("scroll_x", "scroll_y"))
    return a.Scroll(x, y, dx, dy)


_READERS: dict[str, Callable[[Fields], Sequence[a.Action]]] = {
    "click": lambda given: [_click(given)],
    "double_click": lambda given: [_click(given, 2)],
    "drag": lambda given: [_drag(given)],
    "move": lambda given: [a.Move(*given.need(given.xy(), "x and y"))],
    "keypress": _presses,
    "scroll": lambda given: [_scroll(given)],
    "type": lambda given: [a.Type(given.text("text"))],
    "screenshot": lambda given: [a.Wait(0.0)],
}


def _write(action: a.Action, space: CoordinateSpace) -> dict[str, Any]:
    """One action as the API writes it."""

    def at(x: int, y: int) -> dict[str, float]:
        return dict(zip(("x", "y"), space.written(x, y), strict=True))

    match action:
        case a.Click(x=int() as x, y=int() as y, button=button, count=1 | 2 as count) if count == 1 or button == "left":
            kind = {"type": "click", "button": "wheel" if button == "middle" else button} if count == 1 else {}
            held = {"keys": _names(action.modifiers)} if action.modifiers else {}
            return {"type": "double_click", **kind, **at(x, y), **held}
        case a.Drag(button="left"):
            return {"type": "drag", "path": [at(*point) for point in action.path]}
        case a.Move():
            return {"type": "move", **at(action.x, action.y)}
        case a.Press():
            return {"type": "keypress", "keys": _names(action.keys)}
        case a.Scroll():
            place = {} if action.x is None or action.y is None else at(action.x, action.y)
            size = PIXELS_PER_NOTCH
            return {"type": "scroll", **place, "scroll_x": action.dx * size, "scroll_y": action.dy * size}
        case a.Type():
            return {"type": "type", "text": action.text}
    raise InexpressibleError(f"OpenAI's computer tool has no spelling for {action!r:.200}")


def _names(keys: tuple[str, ...]) -> list[str]:
    """Keys in capitals, where they are read back."""
    names = [key.upper() if key.upper().lower() == key else key for key in keys]
    if any(name.lower() != key for name, key in zip(names, keys, strict=True)):
        raise InexpressibleError(f"names of keys are read in any case, so {'+'.join(keys)} has no spelling")
    return names

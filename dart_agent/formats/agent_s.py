"""Agent-S: one call such as `agent.click("the Save button", 1, "left")` in a code block. Read, never run.

Elements are descriptions, so actions on them are `Ungrounded` values; `grounding.ground` finds their places. Actions
that need more than mouse and keyboard (cells of a spreadsheet, programs, selecting text by its words) are errors that
say so. Agent-S3 allows one call in a response, and tells its planner where there are more; without the variant all are
read.
Source: `gui_agents/s3/agents/grounding.py`, `gui_agents/s3/utils/formatters.py`.
Calls stand in a code block, or bare at the end of the response.
"""

import re
from collections.abc import Callable

from dart_agent.formats.grammar.action_format import (
    InexpressibleError,
    ParsedResponse,
    Reading,
    Response,
    Screen,
    UnreadableError,
    as_tuple,
    parse_error,
)
from dart_agent.formats.grammar.element_actions import ClickOn, DragOn, ScrollOn, TypeInto, typing
from dart_agent.formats.grammar.fields import Fields
from dart_agent.formats.grammar.literals import PyCall, code_of, outside, read_calls
from dart_agent.formats.grammar.pointer import holding
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core import actions as a

_BARE = re.compile(r"agent\.\w+\(.*\)")

DESCRIPTION = """One call in a ```python block, with literal arguments only. Elements are described in words.
agent.click(element_description, num_clicks=1, button_type='left', hold_keys=[])
agent.type(element_description=None, text='', overwrite=False, enter=False)
agent.drag_and_drop(starting_description, ending_description, hold_keys=[])
agent.scroll(element_description, clicks, shift=False), up is positive; with shift it scrolls sideways
agent.hotkey(keys=['ctrl', 'c'])
agent.hold_and_press(hold_keys=['shift'], press_keys=['left', 'left'])
agent.open(app_or_filename)
agent.wait(seconds)
agent.done(), when the task is accomplished
agent.fail(), when it cannot be"""


class AgentSFormat:
    """`ActionFormat` of Agent-S3; its actions need a grounder."""

    name = "agent_s"
    variants = {"s3": {"single": True}}

    def __init__(self, single: bool = False) -> None:
        """Choose whether a second call in a response is an error."""
        self._single = single

    def space(self, screen: Screen) -> CoordinateSpace:
        """Coordinates are the screen's: descriptions have no coordinates."""
        return CoordinateSpace.of(screen)

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """Thought, actions (some of them `Ungrounded`) and errors of a response."""
        reading = Reading()
        try:
            text, space = reading.answer(response), self.space(screen)
            blocks = code_of(text, _BARE)
            if not blocks:
                raise UnreadableError("no ```python block with a call such as agent.click(...)", (0, len(text)))
            reading.thought = outside(text, blocks)
            calls = [call for block in blocks for call in read_calls(text[block.code], offset=block.code.start)]
            for call in calls:
                if isinstance(call, UnreadableError):
                    reading.errors.append(parse_error(call))
                    continue
                try:
                    reading.actions += _read(call, space)
                except ValueError as error:
                    reading.errors.append(parse_error(error, call.span))
            if self._single and len(calls) > 1:
                reading.fail(f"one call is allowed in a response, there are {len(calls)}", calls[1].span or (0, 0))
        except ValueError as error:
            reading.give_up(error)
        return reading.result("there is no call in the code")

    def format(self, actions: a.Action | tuple[a.Action, ...], screen: Screen, thought: str = "") -> str:
        """Write a response: the thought, and a code block with one line per call."""
        lines = [_write(action) for action in as_tuple(actions)]
        if self._single and len(lines) > 1:
            raise InexpressibleError("Agent-S3 allows one call in a response")
        block = "```python\n" + "\n".join(lines) + "\n```"
        return f"{thought}\n{block}" if thought else block

    def describe(self) -> str:
        """The calls as the prompt states them."""
        return DESCRIPTION


def _read(call: PyCall, space: CoordinateSpace) -> list[a.Action]:
    name = call.name.removeprefix("agent.")
    if name in _BEYOND:
        raise UnreadableError(f"agent.{name} needs more than mouse and keyboard; use click, type, hotkey or scroll")
    if not call.name.startswith("agent.") or name not in _CALLS:
        raise UnreadableError(
            f"{call.name[:60]} is not known; known: {', '.join(f'agent.{known}' for known in _CALLS)}"
        )
    names, reader = _CALLS[name]
    if len(call.args) > len(names) or set(names[: len(call.args)]) & call.kwargs.keys():
        raise UnreadableError(f"{call.name} takes {', '.join(names) or 'no arguments'}, each once")
    fields = Fields({**dict(zip(names, call.args, strict=False)), **call.kwargs}, call.name, space)
    actions = reader(fields)
    fields.check_all_used()
    return actions


def _description(given: Fields, *names: str) -> str:
    text = given.text(*names).strip()
    if not text or len(text) > 2000:
        raise UnreadableError(f"{given.what} needs {names[0]}: a description of at most 2000 characters")
    return text


def _click(given: Fields) -> list[a.Action]:
    element = _description(given, "element_description")
    count, button = given.count("num_clicks", default=1), given.button("button_type")
    click = a.Click(None, None, button, count, given.keys("hold_keys"))
    return [ClickOn(element, click.count, click.button, click.modifiers)]


def _type(given: Fields) -> list[a.Action]:
    text = a.Type(given.text("text", default="")).text
    overwrite, enter = given.flag("overwrite"), given.flag("enter")
    if given.has("element_description"):
        return [TypeInto(_description(given, "element_description"), text, overwrite, enter)]
    return typing(text, overwrite, enter)


def _scroll(given: Fields) -> list[a.Action]:
    element = _description(given, "element_description")
    clicks = given.wheel("clicks")
    turn = a.Scroll(dx=clicks) if given.flag("shift") else a.Scroll(dy=-clicks)
    return [ScrollOn(element, turn.dx, turn.dy)]


def _drag(given: Fields) -> list[a.Action]:
    start = _description(given, "starting_description")
    return [DragOn(start, _description(given, "ending_description"), given.keys("hold_keys"))]


def _hold_and_press(given: Fields) -> list[a.Action]:
    held, pressed = given.keys("hold_keys"), given.keys("press_keys")
    if not held or not pressed:
        raise UnreadableError(f"{given.what} needs hold_keys and press_keys")
    return holding(held, [a.Press((key,)) for key in pressed])


def _open(given: Fields) -> list[a.Action]:
    """As Agent-S does on Linux: the overview of GNOME, the name, Enter."""
    name = _description(given, "app_or_filename")
    return [a.Press(("win",)), a.Wait(0.5), a.Type(name), a.Wait(1.0), a.Press(("enter",))]


_BEYOND = frozenset(
    ("switch_applications", "highlight_text_span", "set_cell_values", "call_code_agent", "save_to_knowledge")
)
_CALLS: dict[str, tuple[tuple[str, ...], Callable[[Fields], list[a.Action]]]] = {
    "click": (("element_description", "num_clicks", "button_type", "hold_keys"), _click),
    "type": (("element_description", "text", "overwrite", "enter"), _type),
    "drag_and_drop": (("starting_description", "ending_description", "hold_keys"), _drag),
    "scroll": (("element_description", "clicks", "shift"), _scroll),
    "hotkey": (("keys",), lambda given: [*given.presses("keys")]),
    "hold_and_press": (("hold_keys", "press_keys"), _hold_and_press),
    "open": (("app_or_filename",), _open),
    "wait": (("time",), lambda given: [a.Wait(given.seconds("time", "seconds"))]),
    "done": ((), lambda given: [a.Done()]),
    "fail": ((), lambda given: [a.Fail()]),
}


def _write(action: a.Action) -> str:
    """Write one action as a call.

    Raises:
        InexpressibleError: if the format has no such call: coordinates have no spelling.
    """
    match action:
        case ClickOn():
            held = f", {list(action.modifiers)!r}" if action.modifiers else ""
            return f"agent.click({action.element!r}, {action.count}, {action.button!r}{held})"
        case TypeInto():
            return f"agent.type({action.element!r}, {action.text!r}, {action.overwrite}, {action.enter})"
        case DragOn():
            held = f", {list(action.modifiers)!r}" if action.modifiers else ""
            return f"agent.drag_and_drop({action.start!r}, {action.end!r}{held})"
        case ScrollOn(dy=0):
            return f"agent.scroll({action.element!r}, {action.dx}, shift=True)"
        case ScrollOn(dx=0):
            return f"agent.scroll({action.element!r}, {-action.dy})"
        case a.Type():
            return f"agent.type(text={action.text!r})"
        case a.Press():
            return f"agent.hotkey({list(action.keys)!r})"
        case a.Wait():
            return f"agent.wait({action.seconds!r})"
        case a.Done(answer=""):
            return "agent.done()"
        case a.Fail(reason=""):
            return "agent.fail()"
    raise InexpressibleError(f"Agent-S has no call for {action!r:.200}")


FORMAT = AgentSFormat

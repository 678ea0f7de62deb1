"""Calls of pyautogui and its neighbours as typed actions: what the formats `pyautogui` and `opencua` share.

Known: `pyautogui.*` with literal arguments, `time.sleep`, `pyperclip.copy` before a paste, OpenCUA's `computer.*`.
Coordinates relative to the pointer need to know where it is, so they are errors that say so. Durations and intervals
are accepted and have no effect: desktops pace themselves.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from dart_agent.formats.grammar.action_format import InexpressibleError, Reading, UnreadableError, parse_error
from dart_agent.formats.grammar.fields import Fields
from dart_agent.formats.grammar.literals import PyCall
from dart_agent.formats.grammar.pointer import drag_to, straight
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core import actions as a

MODULES = ("pyautogui", "time", "pyperclip")
MAX_PRESSES = 100
BARE = re.compile(
    r"(?:(?:pyautogui|computer|time|pyperclip)\.\w+\(.*\);?|import (?:pyautogui|time|pyperclip)"
    r"|WAIT|DONE|FAIL)"
)
"""A line that is a call without a code block around it."""
_PACE = ("duration", "interval", "tween", "logScreenshot", "_pause", "pause", "mouseDownUp")


@dataclass(slots=True)
class Run:
    """Actions of the calls read so far, and the text that was put into the clipboard and not yet pasted."""

    done: list[a.Action] = field(default_factory=list)
    clipboard: str | None = None


def read_actions(calls: Iterable[PyCall | UnreadableError], space: CoordinateSpace, reading: Reading) -> None:
    """Add the actions of calls to a reading."""
    run = Run(reading.actions)
    copied = (0, 0)
    for call in calls:
        if isinstance(call, UnreadableError):
            reading.errors.append(parse_error(call))
            continue
        before = list(run.done)
        try:
            _add(run, call, space)
            copied = call.span if call.name == "pyperclip.copy" else copied
        except ValueError as error:
            run.done[:] = before
            reading.errors.append(parse_error(error, call.span))
    if run.clipboard is not None:
        reading.fail("pyperclip.copy without pyautogui.hotkey('ctrl', 'v') after it types nothing", copied)


def _add(run: Run, call: PyCall, space: CoordinateSpace) -> None:
    name = call.name.removeprefix("pyautogui.")
    if run.clipboard is not None:
        if name in ("hotkey", "time.sleep", "sleep") and (name != "hotkey" or _is_paste(call)):
            if name == "hotkey":
                run.done.append(a.Type(run.clipboard))
                run.clipboard = None
            return
        raise UnreadableError("only pyautogui.hotkey('ctrl', 'v') is read after pyperclip.copy")
    known = _CALLS.get(name if name in _CALLS else call.name)
    if known is None:
        raise UnreadableError(f"{call.name[:60]} is not known; use pyautogui.click, write, press, hotkey, scroll, ...")
    names, reader = known
    if len(call.args) > len(names) and "*" not in names:
        raise UnreadableError(f"{call.name} takes at most {len(names)} arguments, got {len(call.args)}")
    given: dict[str, Any] = {"*": list(call.args)} if "*" in names else dict(zip(names, call.args, strict=False))
    if twice := given.keys() & call.kwargs.keys():
        raise UnreadableError(f"{call.name}: {min(twice)} is given twice")
    given |= {key: value for key, value in call.kwargs.items() if key not in _PACE}
    fields = Fields({key: value for key, value in given.items() if key not in _PACE}, call.name, space)
    reader(run, fields)
    fields.check_all_used()


def _is_paste(call: PyCall) -> bool:
    keys = call.args[0] if len(call.args) == 1 and isinstance(call.args[0], list) else list(call.args)
    return not call.kwargs and [str(key).lower() for key in keys] in (["ctrl", "v"], ["ctrl", "shift", "v"])


def _click(button: str, count: int) -> Callable[[Run, Fields], None]:
    def read(run: Run, given: Fields) -> None:
        x, y = _place(given) or (None, None)
        clicks = given.count("clicks", default=count)
        run.done.append(a.Click(x, y, given.button("button", default=button), clicks))

    return read


def _place(given: Fields) -> tuple[int, int] | None:
    """`x, y`, or both in the first argument."""
    if isinstance(pair := given.take("x"), list):
        return given.point_of(pair, "x")
    y = given.take("y")
    return None if pair is None and y is None else given.point_of((pair, y), "x and y")


def _scroll(axis: str) -> Callable[[Run, Fields], None]:
    def read(run: Run, given: Fields) -> None:
        notches = given.wheel("clicks")
        x, y = _place(given) or (None, None)
        run.done.append(a.Scroll(x, y, dx=notches) if axis == "x" else a.Scroll(x, y, dy=-notches))

    return read


def _write(run: Run, given: Fields) -> None:
    text = given.take("message", "text")
    if isinstance(text, list):
        if len(text) > MAX_PRESSES:
            raise UnreadableError(f"{given.what} needs at most {MAX_PRESSES} keys, got {len(text)}")
        run.done.extend(a.Press((str(key),)) for key in text)
    elif isinstance(text, str):
        run.done.append(a.Type(text))
    else:
        raise UnreadableError(f"{given.what} needs a text")


def _press(run: Run, given: Fields) -> None:
    keys, presses = given.take("keys", "key"), given.integer("presses", default=1)
    if not 0 < presses <= MAX_PRESSES:
        raise UnreadableError(f"{given.what}: presses must be in [1, {MAX_PRESSES}], got {presses}")
    names = keys if isinstance(keys, list) else [keys]
    if not names or len(names) * presses > MAX_PRESSES or not all(isinstance(key, str) for key in names):
        raise UnreadableError(f"{given.what} needs 1 to {MAX_PRESSES} keys")
    run.done += [a.Press((key,)) for _ in range(presses) for key in names]


def _hotkey(run: Run, given: Fields) -> None:
    keys = given.take("*") or given.take("keys", "args") or []
    if isinstance(keys, list) and len(keys) == 1 and isinstance(keys[0], list):
        keys = keys[0]
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise UnreadableError(f"{given.what} needs names of keys")
    given.take("*")
    run.done += Fields({"keys": keys}, given.what, given.space).presses("keys")


def _drag_to(run: Run, given: Fields) -> None:
    end = given.need(_place(given), "x and y")
    drag_to(run.done, end, given.button("button"))


def _mouse(kind: type[a.MouseDown] | type[a.MouseUp]) -> Callable[[Run, Fields], None]:
    def read(run: Run, given: Fields) -> None:
        if place := _place(given):
            run.done.append(a.Move(*place))
        run.done.append(kind(given.button("button")))

    return read


def _copy(run: Run, given: Fields) -> None:
    run.clipboard = given.text("text")


def _relative(run: Run, given: Fields) -> None:
    raise UnreadableError(f"{given.what} is relative to the pointer; use absolute coordinates")


def _terminate(run: Run, given: Fields) -> None:
    status, answer = given.text("status").lower(), given.text("answer", "data", default="")
    if status not in ("success", "failure"):
        raise UnreadableError("computer.terminate needs status='success' or 'failure'")
    run.done.append(a.Done(answer) if status == "success" else a.Fail(answer))


_XY = ("x", "y")
_BUTTONED = (*_XY, "clicks", "interval", "button")
_CALLS: dict[str, tuple[tuple[str, ...], Callable[[Run, Fields], Any]]] = {
    "click": (_BUTTONED, _click("left", 1)),
    "leftClick": (_XY, _click("left", 1)),
    "rightClick": (_XY, _click("right", 1)),
    "middleClick": (_XY, _click("middle", 1)),
    "doubleClick": ((*_XY, "interval", "button"), _click("left", 2)),
    "tripleClick": ((*_XY, "interval", "button"), _click("left", 3)),
    "moveTo": ((*_XY, "duration"), lambda run, given: run.done.append(a.Move(*given.need(_place(given), "x and y")))),
    "dragTo": ((*_XY, "duration"), _drag_to),
    "move": (_XY, _relative),
    "moveRel": (_XY, _relative),
    "drag": (_XY, _relative),
    "dragRel": (_XY, _relative),
    "scroll": (("clicks", *_XY), _scroll("y")),
    "vscroll": (("clicks", *_XY), _scroll("y")),
    "hscroll": (("clicks", *_XY), _scroll("x")),
    "write": (("message", "interval"), _write),
    "typewrite": (("message", "interval"), _write),
    "press": (("keys", "presses", "interval"), _press),
    "hotkey": (("*",), _hotkey),
    "keyDown": (("key",), lambda run, given: run.done.append(a.KeyDown(given.one_key("key")))),
    "keyUp": (("key",), lambda run, given: run.done.append(a.KeyUp(given.one_key("key")))),
    "mouseDown": ((*_XY, "button"), _mouse(a.MouseDown)),
    "mouseUp": ((*_XY, "button"), _mouse(a.MouseUp)),
    "sleep": (("seconds",), lambda run, given: run.done.append(a.Wait(given.seconds("seconds")))),
    "time.sleep": (("seconds",), lambda run, given: run.done.append(a.Wait(given.seconds("seconds")))),
    "pyperclip.copy": (("text",), _copy),
    "computer.triple_click": (_XY, _click("left", 3)),
    "computer.tripleClick": (_XY, _click("left", 3)),
    "computer.wait": (("seconds",), lambda run, given: run.done.append(a.Wait(given.seconds("seconds", default=2.0)))),
    "computer.terminate": (("status", "answer"), _terminate),
    "WAIT": ((), lambda run, given: run.done.append(a.Wait(2.0))),
    "DONE": ((), lambda run, given: run.done.append(a.Done())),
    "FAIL": ((), lambda run, given: run.done.append(a.Fail())),
}


def write_action(action: a.Action, space: CoordinateSpace) -> list[str]:  # noqa: C901  # one case per action
    """An action as lines of source. Raises `InexpressibleError` where there is no call for it."""

    def at(x: int | None, y: int | None) -> str:
        if x is None or y is None:
            return ""
        across, down = space.written(x, y)
        return f"x={across!r}, y={down!r}"

    def call(name: str, *arguments: str) -> list[str]:
        return [f"{name}({', '.join(argument for argument in arguments if argument)})"]

    match action:
        case a.Click(modifiers=()):
            clicks = "" if action.count == 1 else f"clicks={action.count}"
            button = "" if action.button == "left" else f"button={action.button!r}"
            return call("pyautogui.click", at(action.x, action.y), clicks, button)
        case a.Move():
            return call("pyautogui.moveTo", at(action.x, action.y))
        case a.Drag():
            start, end = straight(action, "pyautogui")
            return [
                *call("pyautogui.moveTo", at(*start)),
                *call("pyautogui.dragTo", at(*end), f"button={action.button!r}"),
            ]
        case a.Scroll(dx=0):
            return call("pyautogui.scroll", str(-action.dy), at(action.x, action.y))
        case a.Scroll(dy=0):
            return call("pyautogui.hscroll", str(action.dx), at(action.x, action.y))
        case a.Type():
            return call("pyautogui.write", repr(action.text))
        case a.Press():
            return call("pyautogui.hotkey", *map(repr, action.keys))
        case a.KeyDown():
            return call("pyautogui.keyDown", repr(action.key))
        case a.KeyUp():
            return call("pyautogui.keyUp", repr(action.key))
        case a.MouseDown():
            return call("pyautogui.mouseDown", f"button={action.button!r}")
        case a.MouseUp():
            return call("pyautogui.mouseUp", f"button={action.button!r}")
        case a.Wait():
            return call("time.sleep", repr(action.seconds))
    raise InexpressibleError(f"pyautogui has no call for {action!r:.200}")

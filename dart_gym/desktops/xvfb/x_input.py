"""Carries out input events through the XTEST extension, in this process.

Invariants:
    - What an action presses it releases, also when it fails in the middle or is cancelled; only KeyDown and MouseDown
      leave something held, until KeyUp, MouseUp or `release_all`.
    - An action that cannot be carried out raises `ActionError` before anything is pressed.
    - When `perform` returns, the server has processed all of its events (the programs may not have).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from Xlib import X

from dart_gym.core.actions import Action, Move, Wait
from dart_gym.desktops.input.input_events import InputEvent, input_events
from dart_gym.desktops.xvfb.x_connection import XConnection, translated_errors
from dart_gym.desktops.xvfb.x_keys import XKeys

_PACE_S = 0.004

_KINDS = {
    ("key", True): X.KeyPress,
    ("key", False): X.KeyRelease,
    ("button", True): X.ButtonPress,
    ("button", False): X.ButtonRelease,
}


class XInput:
    """Pointer and keyboard of one desktop; `settle` waits until its screen stands still for a moment."""

    def __init__(self, connection: XConnection, height: int, settle: Callable[[], Awaitable[object]]) -> None:
        self._connection, self._settle_screen = connection, settle
        self._display = connection.display
        self._size = (self._display.screen().width_in_pixels, height)
        self._down: dict[tuple[str, int], None] = {}  # ("key", keycode) and ("button", number), in order of pressing
        with translated_errors():
            self._keys = XKeys(connection, lambda keycode, down: self._press("key", keycode, down))

    async def perform(self, action: Action) -> None:
        """Carry out an action; Done, Fail and AskUser do nothing."""
        held = set(self._down)
        dragging = isinstance(action, Move) and any(kind == "button" for kind, _ in held)
        events = input_events(action, *self._size, self._connection.pointer() if dragging else None)
        with translated_errors():
            try:
                for event in events:
                    await self._carry_out(event)
                if isinstance(action, Wait):
                    await asyncio.sleep(action.seconds)
            except BaseException:
                self._keys.let_go()
                self._release(set(self._down) - held)
                raise
            finally:
                self._display.sync()  # sends the releases also when something failed

    async def _carry_out(self, event: InputEvent) -> None:
        match event:
            case ["move", x, y]:
                self._connection.fake_input(X.MotionNotify, x=x, y=y)
            case ["button", number, down]:
                self._press("button", number, down)
            case ["key", keysym, down]:
                await self._keys.press_alone(keysym, down)
            case ["chord", keysyms, True]:
                await self._keys.hold(keysyms)
            case ["chord", _, False]:
                self._keys.let_go()
            case ["text", keysyms]:
                await self._keys.type(keysyms)
            case ["pace"]:
                self._display.sync()  # a busy server would give what waits in its queue the same time
                await asyncio.sleep(_PACE_S)
            case ["rest"]:
                self._display.sync()
                await self._settle_screen()

    def _press(self, kind: str, code: int, down: bool) -> None:
        if down:
            self._down[kind, code] = None
        else:
            self._down.pop((kind, code), None)
        self._connection.fake_input(_KINDS[kind, down], code)

    def release_all(self) -> None:
        """Bring keyboard, buttons and selections into the state of a fresh desktop."""
        with translated_errors():
            self._release(self._down)
            self._keys.neutralize()
            self._connection.release_buttons()
            self._connection.clear_selections()
            self._display.sync()

    def _release(self, pressed: Iterable[tuple[str, int]]) -> None:
        for kind, code in [one for one in reversed(self._down) if one in pressed]:
            self._press(kind, code, False)

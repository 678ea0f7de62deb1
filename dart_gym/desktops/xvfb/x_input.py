"""Carries out input events through the XTEST extension, in this process.

Invariants:
    - What an action presses it releases, also when it fails in the middle or is cancelled; only KeyDown and MouseDown
      leave something held, until KeyUp, MouseUp or `release_all`.
    - An action that cannot be carried out raises `ActionError` before anything is pressed.
    - When `perform` returns, the server has processed all of its events (the programs may not have).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from Xlib import X

from dart_gym.core.actions import Action, Wait
from dart_gym.desktops.input.input_events import InputEvent, input_events
from dart_gym.desktops.input.keyboard import Batch, Keyboard, Keystroke, keysym_of, runs
from dart_gym.desktops.xvfb.x_connection import XConnection, translated_errors

_KEYSTROKES_IN_A_GO = 64
_CATCH_UP_S = 1.0
_BLIND_PACE_S = 0.1  # for a program that does not say how far it is: there is nothing to wait for
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
        info = self._display.display.info
        first, count = info.min_keycode, info.max_keycode - info.min_keycode + 1
        with translated_errors():
            modifiers = {keycode for row in self._display.get_modifier_mapping() for keycode in row}
            self._keyboard = Keyboard(self._display.get_keyboard_mapping(first, count), first, modifiers)
        self._shift = self._keystroke(keysym_of("shift")).keycode
        self._down: dict[tuple[str, int], None] = {}  # ("key", keycode) and ("button", number), in order of pressing
        self._chord: list[int] = []  # keycodes of the last one

    async def perform(self, action: Action) -> None:
        """Carry out an action; Done, Fail and AskUser do nothing."""
        events = input_events(action, *self._size)
        held = set(self._down)
        with translated_errors():
            try:
                for event in events:
                    await self._carry_out(event)
                if isinstance(action, Wait):
                    await asyncio.sleep(action.seconds)
            except BaseException:
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
                self._press("key", self._keystroke(keysym).keycode, down)
            case ["chord", keysyms, True]:
                self._chord = self._with_shift([self._keystroke(keysym) for keysym in keysyms])
                for keycode in self._chord:
                    self._press("key", keycode, True)
            case ["chord", _, False]:
                for keycode in reversed(self._chord):
                    self._press("key", keycode, False)
            case ["text", keysyms]:
                await self._type(keysyms)
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
        """Release what KeyDown and MouseDown left held."""
        with translated_errors():
            self._release(self._down)
            self._display.sync()

    def _release(self, pressed: Iterable[tuple[str, int]]) -> None:
        for kind, code in [one for one in reversed(self._down) if one in pressed]:
            self._press(kind, code, False)

    # Keyboard

    async def _type(self, keysyms: list[int]) -> None:
        for batch in self._keyboard.plan(keysyms):
            if batch.overwrites:
                await self._catch_up()  # else earlier keys would be read with their new meanings
            self._remap(batch)
            if batch.remap:
                await self._catch_up()  # Chromium hears of it on one connection and gets the keys on another
            await self._strike(batch.keystrokes)

    async def _catch_up(self) -> None:
        """Let the focused program handle what it was sent so far."""
        self._display.sync()
        if not await self._connection.wait_for_focused_program(_CATCH_UP_S):
            await asyncio.sleep(_BLIND_PACE_S)

    async def _strike(self, keystrokes: Sequence[Keystroke]) -> None:
        for start in range(0, len(keystrokes), _KEYSTROKES_IN_A_GO):
            if start:
                self._display.sync()
                await asyncio.sleep(0)  # a long text leaves room for others
            for keystroke in keystrokes[start : start + _KEYSTROKES_IN_A_GO]:
                keycodes = self._with_shift([keystroke])
                for keycode in keycodes:
                    self._connection.fake_input(X.KeyPress, keycode)
                for keycode in reversed(keycodes):
                    self._connection.fake_input(X.KeyRelease, keycode)

    def _with_shift(self, keystrokes: Sequence[Keystroke]) -> list[int]:
        """Keycodes in the order of pressing, with Shift before the first that needs it."""
        keycodes = [keystroke.keycode for keystroke in keystrokes]
        needing = [i for i, keystroke in enumerate(keystrokes) if keystroke.shift]
        if needing and self._shift not in keycodes:
            keycodes.insert(needing[0], self._shift)
        return keycodes

    def _keystroke(self, keysym: int) -> Keystroke:
        """How a keysym is typed; a spare keycode is mapped to it if need be."""
        batch = self._keyboard.plan([keysym])[0]
        self._remap(batch)
        return batch.keystrokes[0]

    def _remap(self, batch: Batch) -> None:
        """Give spare keycodes their meaning; programs hear of it before the events that follow."""
        for first, keysyms in runs(batch.remap):
            self._display.change_keyboard_mapping(first, [(keysym, keysym) for keysym in keysyms])
        if batch.remap:
            self._display.sync()

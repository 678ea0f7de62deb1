"""Carries out actions with pointer and keyboard through the XTEST extension.

Invariants:
    - What an action presses it releases, also when it fails in the middle or is cancelled; only KeyDown and MouseDown
      leave something held, until KeyUp, MouseUp or `release_all`.
    - An action that cannot be carried out raises `ActionError` before anything is pressed.
    - When `perform` returns, the server has processed all of its events (the programs may not have).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from Xlib import X

from dart_gym.core.actions import (
    Action,
    Click,
    Drag,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Press,
    Scroll,
    Type,
    Wait,
)
from dart_gym.desktops.base.desktop import ActionError
from dart_gym.desktops.input.keyboard import Batch, Keyboard, Stroke, keysym_of, runs
from dart_gym.desktops.xvfb.x_connection import XConnection, translated_errors

_BUTTONS = {"left": 1, "middle": 2, "right": 3}
_UP, _DOWN, _LEFT, _RIGHT = 4, 5, 6, 7  # the wheel's buttons
_STROKES_IN_A_GO = 64
_CATCH_UP_S = 1.0
_BLIND_PACE_S = 0.1  # for a program that does not say how far it is: there is nothing to wait for
_DRAG_STEP_PX = 12
_PACE_S = 0.004  # a hand is slow: programs take clicks and motions with the same time stamp for one


class XInput:
    """Pointer and keyboard of one desktop.

    Args:
        connection: to its X server.
        height: rows of the screen that the pointer may be sent to; those below are a margin.
        settle: waits until its screen stands still for a moment.
    """

    def __init__(self, connection: XConnection, height: int, settle: Callable[[], Awaitable[object]]) -> None:
        self._connection = connection
        self._settle_screen = settle
        self._display = connection.display
        self._size = (self._display.screen().width_in_pixels, height)
        info = self._display.display.info
        first, count = info.min_keycode, info.max_keycode - info.min_keycode + 1
        with translated_errors():
            modifiers = {keycode for row in self._display.get_modifier_mapping() for keycode in row}
            self._keyboard = Keyboard(self._display.get_keyboard_mapping(first, count), first, modifiers)
        self._shift = self._single(keysym_of("shift")).keycode
        self._held_keys: set[int] = set()
        self._held_buttons: set[int] = set()

    async def perform(self, action: Action) -> None:
        """Carry out an action; Done, Fail and AskUser do nothing."""
        with translated_errors():
            try:
                await self._carry_out(action)
            finally:
                self._display.sync()  # sends the releases also when something failed

    async def _carry_out(self, action: Action) -> None:
        match action:
            case Click():
                await self._click(action)
            case Move():
                self._move(action.x, action.y)
            case Drag():
                await self._drag(action)
            case Scroll():
                self._scroll(action)
            case Type():
                await self._type(action.text)
            case Press():
                self._press(action.keys)
            case KeyDown() | KeyUp():
                self._hold_key(action)
            case MouseDown() | MouseUp():
                self._hold_button(action)
            case Wait():
                await asyncio.sleep(action.seconds)

    def release_all(self) -> None:
        """Release what KeyDown and MouseDown left held."""
        with translated_errors():
            for keycode in self._held_keys:
                self._connection.fake_input(X.KeyRelease, keycode)
            for button in self._held_buttons:
                self._connection.fake_input(X.ButtonRelease, button)
            self._held_keys.clear()
            self._held_buttons.clear()
            self._display.sync()

    # Pointer

    async def _click(self, action: Click) -> None:
        self._check(action.x, action.y)
        with self._keys(self._strokes(action.modifiers)):
            self._move(action.x, action.y)
            for number in range(action.count):
                if number:
                    await self._pace()
                with self._button(_BUTTONS[action.button]):
                    pass

    async def _drag(self, action: Drag) -> None:
        """Drag, and let programs keep up: they decide whether a drag begins, and where it may end, while it goes on."""
        for x, y in action.path:
            self._check(x, y)
        self._move(*action.path[0])
        with self._button(_BUTTONS[action.button]):
            for number, (x, y) in enumerate(_points_between(action.path)):
                await self._pace()
                self._move(x, y)
                if number == 0:
                    await self._settle()
            await self._settle()

    async def _pace(self) -> None:
        self._display.sync()  # a busy server would give what waits in its queue the same time
        await asyncio.sleep(_PACE_S)

    async def _settle(self) -> None:
        self._display.sync()
        await self._settle_screen()

    def _scroll(self, action: Scroll) -> None:
        self._check(action.x, action.y)
        self._move(action.x, action.y)
        for amount, forth, back in ((action.dy, _DOWN, _UP), (action.dx, _RIGHT, _LEFT)):
            for _ in range(abs(amount)):
                with self._button(forth if amount > 0 else back):
                    pass

    def _hold_button(self, action: MouseDown | MouseUp) -> None:
        button = _BUTTONS[action.button]
        if isinstance(action, MouseDown):
            self._held_buttons.add(button)
            self._connection.fake_input(X.ButtonPress, button)
        else:
            self._held_buttons.discard(button)
            self._connection.fake_input(X.ButtonRelease, button)

    def _check(self, x: int | None, y: int | None) -> None:
        width, height = self._size
        if x is None or y is None or (0 <= x < width and 0 <= y < height):
            return
        raise ActionError(f"the point ({x}, {y}) is off the screen, which is {width} x {height} pixels")

    def _move(self, x: int | None, y: int | None) -> None:
        if x is None or y is None:
            return
        self._check(x, y)
        self._connection.fake_input(X.MotionNotify, x=x, y=y)

    # Keyboard

    async def _type(self, text: str) -> None:
        text = text.replace("\r\n", "\n")
        try:
            keysyms = [keysym_of(character) for character in text]
        except ValueError as error:
            raise ActionError(str(error)) from None
        for batch in self._keyboard.plan(keysyms):
            if batch.overwrites:
                await self._catch_up()  # else earlier keys would be read with their new meanings
            self._remap(batch)
            if batch.remap:
                await self._catch_up()  # Chromium hears of it on one connection and gets the keys on another
            await self._strike(batch.strokes)

    async def _catch_up(self) -> None:
        """Let the focused program handle what it was sent so far."""
        self._display.sync()
        if not await self._connection.wait_for_focused_program(_CATCH_UP_S):
            await asyncio.sleep(_BLIND_PACE_S)

    async def _strike(self, strokes: Sequence[Stroke]) -> None:
        for start in range(0, len(strokes), _STROKES_IN_A_GO):
            if start:
                self._display.sync()
                await asyncio.sleep(0)  # a long text leaves room for others
            for stroke in strokes[start : start + _STROKES_IN_A_GO]:
                with self._keys([stroke]):
                    pass

    def _press(self, keys: Sequence[str]) -> None:
        with self._keys(self._strokes(keys)):
            pass

    def _hold_key(self, action: KeyDown | KeyUp) -> None:
        stroke = self._strokes([action.key])[0]
        if isinstance(action, KeyDown):
            self._held_keys.add(stroke.keycode)
            self._connection.fake_input(X.KeyPress, stroke.keycode)
        else:
            self._held_keys.discard(stroke.keycode)
            self._connection.fake_input(X.KeyRelease, stroke.keycode)

    def _strokes(self, keys: Sequence[str]) -> list[Stroke]:
        """Strokes of named keys, mapped if need be."""
        try:
            return [self._single(keysym_of(key)) for key in keys]
        except ValueError as error:
            raise ActionError(str(error)) from None

    def _single(self, keysym: int) -> Stroke:
        batch = self._keyboard.plan([keysym])[0]
        self._remap(batch)
        return batch.strokes[0]

    def _remap(self, batch: Batch) -> None:
        """Give spare keycodes their meaning; programs hear of it before the events that follow."""
        for first, keysyms in runs(batch.remap):
            self._display.change_keyboard_mapping(first, [(keysym, keysym) for keysym in keysyms])
        if batch.remap:
            self._display.sync()

    # Events

    @contextmanager
    def _keys(self, strokes: Sequence[Stroke]) -> Iterator[None]:
        """Hold keys, with Shift before the first that needs it; release in reverse order."""
        keycodes = [stroke.keycode for stroke in strokes]
        if any(stroke.shift for stroke in strokes) and self._shift not in keycodes:
            keycodes.insert(next(i for i, stroke in enumerate(strokes) if stroke.shift), self._shift)
        pressed = []
        try:
            for keycode in keycodes:
                pressed.append(keycode)
                self._connection.fake_input(X.KeyPress, keycode)
            yield
        finally:
            for keycode in reversed(pressed):
                self._connection.fake_input(X.KeyRelease, keycode)

    @contextmanager
    def _button(self, button: int) -> Iterator[None]:
        try:
            self._connection.fake_input(X.ButtonPress, button)
            yield
        finally:
            self._connection.fake_input(X.ButtonRelease, button)


def _points_between(path: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The points of a path after its first, with others between them so that no step is long."""
    for (x0, y0), (x1, y1) in zip(path, path[1:], strict=False):
        steps = max(1, -(-max(abs(x1 - x0), abs(y1 - y0)) // _DRAG_STEP_PX))
        for step in range(1, steps + 1):
            yield x0 + (x1 - x0) * step // steps, y0 + (y1 - y0) * step // steps

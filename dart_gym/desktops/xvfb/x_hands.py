"""Pointer and keyboard of an X server through the XTEST extension: carries out the events of actions.

The same module serves the embedded desktop, in this process, and a machine with OSWorld's server, to which it is sent.

Invariants:
    - What a list of events presses it releases, also when it fails in the middle or is cancelled; only the events of
      KeyDown and MouseDown leave something held, until those of KeyUp and MouseUp or `release_all`.
    - When `carry_out` returns, the server has processed all events (the programs may not have).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from Xlib import X

from dart_gym.desktops.xvfb.x_client import XClient, translated_errors
from dart_gym.desktops.xvfb.x_keys import KeyMemory, XKeys

_PACE_S = 0.004

_KINDS = {
    ("key", True): X.KeyPress,
    ("key", False): X.KeyRelease,
    ("button", True): X.ButtonPress,
    ("button", False): X.ButtonRelease,
}


class XHands:
    """Pointer and keyboard; `rest` waits until programs have kept up with a drag.

    Attributes:
        keys: the keyboard.
    """

    def __init__(self, client: XClient, rest: Callable[[], Awaitable[object]], memory: KeyMemory | None = None) -> None:
        self._client, self._rest = client, rest
        self._down: dict[tuple[str, int], None] = {}  # ("key", keycode) and ("button", number), in order of pressing
        with translated_errors():
            self.keys = XKeys(client, lambda keycode, down: self._press("key", keycode, down), memory)

    @property
    def holds_button(self) -> bool:
        """Return whether a button is down."""
        return any(kind == "button" for kind, _ in self._down)

    async def carry_out(self, events: Sequence[list[Any]]) -> None:
        """Carry out the events of an action (`dart_gym.desktops.input.input_events`).

        Raises:
            NoKeyError: if the keyboard's map has no way to make a keysym.
        """
        held = set(self._down)
        with translated_errors():
            try:
                for event in events:
                    await self._one(event)
            except BaseException:
                self.keys.let_go()
                self._release(set(self._down) - held)
                raise
            finally:
                self._client.display.sync()  # sends the releases also when something failed

    async def _one(self, event: list[Any]) -> None:
        match event:
            case ["move", x, y]:
                self._client.fake_input(X.MotionNotify, x=x, y=y)
            case ["button", number, down]:
                self._press("button", number, down)
            case ["key", keysym, down]:
                await self.keys.press_alone(keysym, down)
            case ["chord", keysyms, True]:
                await self.keys.hold(keysyms)
            case ["chord", _, False]:
                self.keys.let_go()
            case ["text", keysyms]:
                await self.keys.type(keysyms)
            case ["pace"]:
                self._client.display.sync()  # a busy server would give what waits in its queue the same time
                await asyncio.sleep(_PACE_S)
            case ["rest"]:
                self._client.display.sync()
                await self._rest()

    def _press(self, kind: str, code: int, down: bool) -> None:
        if down:
            self._down[kind, code] = None
        else:
            self._down.pop((kind, code), None)
        self._client.fake_input(_KINDS[kind, down], code)

    def release_all(self) -> None:
        """Bring keyboard, buttons and selections into the state of a fresh desktop."""
        with translated_errors():
            self._release(self._down)
            self.keys.neutralize()
            self._client.release_buttons()
            self._client.clear_selections()
            self._client.display.sync()

    def _release(self, pressed: Iterable[tuple[str, int]]) -> None:
        for kind, code in [one for one in reversed(self._down) if one in pressed]:
            self._press(kind, code, False)

"""Carries out actions on the embedded desktop, in this process.

Invariants:
    - An action that cannot be carried out raises `ActionError` before anything is pressed.
    - What is pressed and released: see `x_hands`.
    - With `apart`, clicks of two actions are never one double or triple click: a press waits until programs no longer
      count it with the one before. OSWorld pauses for 2 s between actions, so that its agents know nothing else.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence

from dart_gym.core.actions import Action, Move, Wait
from dart_gym.desktops.base.desktop import ActionError
from dart_gym.desktops.input.input_events import InputEvent, input_events
from dart_gym.desktops.input.keyboard import NoKeyError
from dart_gym.desktops.xvfb.x_client import XClient
from dart_gym.desktops.xvfb.x_hands import XHands

_APART_S = 0.55  # Chromium counts clicks within 0.5 s together, GTK and Qt within 0.4 s
_NEAR_PX = 12
_MOUSE_BUTTONS = range(1, 4)


class XInput:
    """Pointer and keyboard of one desktop; `settle` waits until its screen stands still for a moment."""

    def __init__(
        self, client: XClient, height: int, settle: Callable[[], Awaitable[object]], *, apart: bool = False
    ) -> None:
        self._client, self._apart = client, apart
        self._pressed: tuple[float, tuple[int, int]] = (-math.inf, (0, 0))  # when and where the last press was
        self._size = (client.display.screen().width_in_pixels, height)
        self._hands = XHands(client, settle)
        self.release_all = self._hands.release_all

    async def perform(self, action: Action) -> None:
        """Carry out an action; Done, Fail and AskUser do nothing."""
        dragging = isinstance(action, Move) and self._hands.holds_button
        events = input_events(action, *self._size, self._client.pointer() if dragging else None)
        pressed = self._apart and any(_is_press(event) for event in events)
        if pressed:
            await self._keep_apart(events)
        try:
            await self._hands.carry_out(events)
        except NoKeyError as error:
            raise ActionError(str(error)) from None
        if pressed:
            self._pressed = time.monotonic(), self._client.pointer()
        if isinstance(action, Wait):
            await asyncio.sleep(action.seconds)

    async def _keep_apart(self, events: Sequence[InputEvent]) -> None:
        when, where = self._pressed
        rest = when + _APART_S - time.monotonic()
        if rest <= 0:
            return
        move = next(event for event in events if event[0] == "move" or _is_press(event))
        place = (int(move[1]), int(move[2])) if move[0] == "move" else self._client.pointer()
        if math.dist(place, where) <= _NEAR_PX:
            await asyncio.sleep(rest)


def _is_press(event: InputEvent) -> bool:
    return event[0] == "button" and event[1] in _MOUSE_BUTTONS and event[2]

"""Carries out actions on the embedded desktop, in this process.

Invariants:
    - An action that cannot be carried out raises `ActionError` before anything is pressed.
    - What is pressed and released: see `x_hands`.
"""

import asyncio
from collections.abc import Awaitable, Callable

from dart_gym.core.actions import Action, Move, Wait
from dart_gym.desktops.base.desktop import ActionError
from dart_gym.desktops.input.input_events import input_events
from dart_gym.desktops.input.keyboard import NoKeyError
from dart_gym.desktops.xvfb.x_client import XClient
from dart_gym.desktops.xvfb.x_hands import XHands


class XInput:
    """Pointer and keyboard of one desktop; `settle` waits until its screen stands still for a moment."""

    def __init__(self, client: XClient, height: int, settle: Callable[[], Awaitable[object]]) -> None:
        self._client = client
        self._size = (client.display.screen().width_in_pixels, height)
        self._hands = XHands(client, settle)
        self.release_all = self._hands.release_all

    async def perform(self, action: Action) -> None:
        """Carry out an action; Done, Fail and AskUser do nothing."""
        dragging = isinstance(action, Move) and self._hands.holds_button
        events = input_events(action, *self._size, self._client.pointer() if dragging else None)
        try:
            await self._hands.carry_out(events)
        except NoKeyError as error:
            raise ActionError(str(error)) from None
        if isinstance(action, Wait):
            await asyncio.sleep(action.seconds)

"""Carries out the events of an action: runs on a machine with OSWorld's server, by the code of the embedded desktop.

`sent_program` sends this module and those that it uses (`SENT`), each action anew, for a machine may be set back at any
time. The Python there needs the standard library and python-xlib (or python3-xlib 0.15, which pyautogui brings).

What the next action must know of the keyboard is kept by the machine's X server, as a property of the root window:
which keycodes were given to characters that the layout lacks, and which keys are held alone.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from Xlib import Xatom
from Xlib import display as xdisplay

from dart_gym.desktops.input.keyboard import NoKeyError
from dart_gym.desktops.xvfb.x_client import XClient
from dart_gym.desktops.xvfb.x_hands import XHands
from dart_gym.desktops.xvfb.x_keys import KeyMemory

REFUSED = 3
"""Exit status if the keyboard's map cannot make what an action asks for."""
_CATCH_UP_S = 1.0
_REST_S = 0.1
_DROP_REST_S = 0.3  # source and target of what is carried talk by messages
_PROPERTY = "_DART_GYM_KEYS"
_SPARE = 0
_SINGLE = 1
_MAP = 2


async def carry_out(display: Any, events: list[list[Any]]) -> int:
    """Carry out events, or bring the keyboard and buttons into a fresh state for none; return the exit status."""
    client = XClient(display)

    async def rest() -> None:
        await client.wait_for_focused_program(_CATCH_UP_S)
        await asyncio.sleep(_DROP_REST_S if client.carries_something() else _REST_S)

    kept = client.root.get_full_property(display.intern_atom(_PROPERTY), Xatom.CARDINAL)
    hands = XHands(client, rest, decoded(kept.value if kept is not None else []))
    try:
        if events:
            await hands.carry_out(events)
        else:
            hands.release_all()
    except NoKeyError as error:
        print(error, file=sys.stderr)
        return REFUSED
    finally:
        client.root.change_property(display.intern_atom(_PROPERTY), Xatom.CARDINAL, 32, encoded(hands.keys.memory))
        display.sync()
    return 0


def encoded(memory: KeyMemory) -> list[int]:
    """Return the state of a keyboard as numbers, three an item: a kind, a keycode, a keysym. Pure."""
    items = [(_SPARE, keycode, keysym) for keycode, keysym in memory.spare]
    items += [(_SINGLE, keycode, keysym) for keysym, keycode in memory.single.items()]
    return [number for item in [*items, (_MAP, 0, memory.map_sum or 0)] for number in item]


def decoded(numbers: Sequence[int]) -> KeyMemory:
    """Return the state that `encoded` made numbers of; what else programs may have put there says nothing. Pure."""
    items = list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=False))
    return KeyMemory(
        [(keycode, keysym) for kind, keycode, keysym in items if kind == _SPARE],
        {keysym: keycode for kind, keycode, keysym in items if kind == _SINGLE and 8 <= keycode < 256},
        next((number for kind, _, number in items if kind == _MAP), None),
    )


def main(events: list[list[Any]]) -> int:
    """Carry out events on the display that the environment names."""
    return asyncio.run(carry_out(xdisplay.Display(), events))

"""Well-formed responses of UI-TARS-1.5, drawn at random: for the benchmark and for comparing parsers."""

from __future__ import annotations

import random
from collections.abc import Callable

SCREEN = (1920, 1080)
IMAGE = (1932, 1092)  # what UI-TARS makes of it

_THOUGHTS = (
    "The spreadsheet is open, but the header row is not bold yet. I will select it first and then use the toolbar.",
    "I need to open the File menu in the top left corner to find the option for exporting the document as a PDF.",
    "The search box is focused now. Next I type the name of the setting and press Enter to see what comes up.",
    "Nothing has changed since the last step, so the page must still be loading; a short wait is the best choice.",
)
_WORDS = ("hello", "report", "Q3", "total:", "=SUM(A1:B7)", "café", "42.5", "naïve", "user@example.org", "/tmp/x", "€")
_CHORDS = (
    "ctrl c",
    "ctrl v",
    "ctrl s",
    "alt tab",
    "ctrl shift t",
    "enter",
    "esc",
    "f5",
    "delete",
    "ctrl a",
    "arrowdown",
)
_DIRECTIONS = ("down", "up", "left", "right")


def responses(count: int, seed: int = 0) -> list[str]:
    """So many responses: a thought, then one action, or two with a blank line between them."""
    rng = random.Random(seed)
    return [_response(rng) for _ in range(count)]


def _response(rng: random.Random) -> str:
    actions = [_action(rng)]
    if rng.random() < 0.1 and not actions[0].startswith("finished"):
        actions.append(_action(rng))
    return f"Thought: {rng.choice(_THOUGHTS)}\nAction: " + "\n\n".join(actions)


def _action(rng: random.Random) -> str:
    (draw,) = rng.choices(list(_ACTIONS), list(_ACTIONS.values()))
    return draw(rng)


def _box(rng: random.Random) -> str:
    return f"'({rng.randrange(IMAGE[0])},{rng.randrange(IMAGE[1])})'"


def _click(rng: random.Random) -> str:
    return f"{rng.choice(('click', 'click', 'click', 'left_double', 'right_single', 'hover'))}(start_box={_box(rng)})"


def _area(rng: random.Random) -> str:
    left, top = rng.randrange(IMAGE[0] - 200), rng.randrange(IMAGE[1] - 100)
    return f"click(start_box='({left},{top},{left + rng.randrange(1, 200)},{top + rng.randrange(1, 100)})')"


def _type(rng: random.Random) -> str:
    text = " ".join(rng.choices(_WORDS, k=rng.randrange(1, 12)))
    if rng.random() < 0.2:
        text = text.replace(" ", rng.choice(("\\n", "\\\\", "\\'")), 1)
    return f"type(content='{text}{rng.choice(('', '', chr(92) + 'n'))}')"


_ACTIONS: dict[Callable[[random.Random], str], float] = {
    _click: 10,
    _area: 1,
    _type: 4,
    lambda rng: f"drag(start_box={_box(rng)}, end_box={_box(rng)})": 2,
    lambda rng: f"hotkey(key='{rng.choice(_CHORDS)}')": 3,
    lambda rng: f"scroll(start_box={_box(rng)}, direction='{rng.choice(_DIRECTIONS)}')": 2,
    lambda rng: f"keydown(key='{rng.choice(('shift', 'ctrl'))}')": 0.3,
    lambda rng: f"keyup(key='{rng.choice(('shift', 'ctrl'))}')": 0.3,
    lambda rng: "press(key='enter')": 0.3,
    lambda rng: "wait()": 1,
    lambda rng: "finished(content='done')": 0.5,
    lambda rng: "finished()": 0.5,
}

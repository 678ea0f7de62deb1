"""Screens of buttons on the drawn desktop, with a description and the exact box of each: a set for grounders.

Deterministic by seed. Every button of a screen has a colour of its own, and the description names it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

from dart_agent.grounding.candidate import Box
from dart_agent.grounding.screenspot import GroundingItem
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.fake_desktop import Button, FakeDesktop
from dart_gym.tasks.suites.fake_suite import COLORS, LABELS

_APART = 6  # pixels between two buttons


def draw_items(screens: int, size: tuple[int, int], seed: int) -> list[GroundingItem]:
    """Make four items of each of `screens` screens of (width, height)."""
    return asyncio.run(_draw(screens, size, random.Random(f"{size}/{seed}")))


async def _draw(screens: int, size: tuple[int, int], rng: random.Random) -> list[GroundingItem]:
    desktop = FakeDesktop(DesktopSpec(kind="fake", width=size[0], height=size[1], sandbox="none"))
    await desktop.start()
    items = []
    for screen in range(screens):
        buttons = list(_buttons(size, rng))
        desktop.show(tuple(buttons))
        shot = await desktop.screenshot()
        for color, button in zip(COLORS, buttons, strict=True):
            box = Box(button.x, button.y, button.x + button.width, button.y + button.height)
            name, words = f"screen {screen}, {color}", f"the {color} button"
            items.append(GroundingItem(name, words, (box,), shot, size, application="drawn", platform="fake"))
    return items


def _buttons(size: tuple[int, int], rng: random.Random) -> Iterator[Button]:
    """One button of each colour, none on another."""
    taken: list[Button] = []
    for label, color in zip(rng.sample(LABELS, len(COLORS)), COLORS.values(), strict=True):
        while True:
            width, height = rng.randint(24, 56), rng.randint(16, 36)
            x, y = rng.randint(4, size[0] - width - 4), rng.randint(4, size[1] - height - 4)
            button = Button(label, x, y, width, height, color)
            if not any(_near(button, other) for other in taken):
                break
        taken.append(button)
        yield button


def _near(a: Button, b: Button) -> bool:
    return (
        a.x < b.x + b.width + _APART
        and b.x < a.x + a.width + _APART
        and a.y < b.y + b.height + _APART
        and b.y < a.y + a.height + _APART
    )

"""A place for tests: an application of rooms with doors, drawn on small screens. Deterministic, and quick."""

from __future__ import annotations

import zlib

import numpy as np
from dart_gym_grounding_data.exploration_graph import Deed
from dart_gym_grounding_data.screen_elements import Element, Screen

from dart_agent.grounding.candidate import Box

CLOSED = "the application closed"


class Rooms:
    """Doors lead to rooms; Escape leads to the hall; a door to nothing changes nothing, and one to CLOSED ends it."""

    def __init__(self, doors: dict[str, dict[str, str]], start: str = "hall") -> None:
        self.doors, self.start, self.at = doors, start, start
        self.deeds: list[str] = []
        self.begun = 0

    async def reset(self) -> Screen:
        """Begin in the first room."""
        self.at, self.begun = self.start, self.begun + 1
        return self.screen()

    async def act(self, deed: Deed) -> Screen:
        """Go through a door."""
        door = deed.element.name if deed.element else ""
        self.deeds.append(f"{self.at}/{door or 'escape'}")
        goal = self.doors[self.at].get(door, "") if door else self.start
        if goal == CLOSED:
            return Screen(np.zeros((60, 80, 3), np.uint8), trouble=CLOSED)
        self.at = goal or self.at
        return self.screen()

    def screen(self) -> Screen:
        """The doors of a room as buttons, on a colour of its own."""
        doors = self.doors[self.at]
        elements = tuple(
            Element(_role(name), name, Box(4, 4 + 9 * n, 76, 12 + 9 * n), self.at) for n, name in enumerate(doors)
        )
        shade = zlib.crc32(self.at.encode()) % 200
        image = np.full((60, 80, 3), shade, np.uint8)
        for n in range(len(doors)):
            image[6 + 9 * n : 10 + 9 * n, 8:40] = 255 - shade
        return Screen(image, elements, (self.at,))


def _role(name: str) -> str:
    return "menu" if name.startswith("to ") else "push-button"


def house(branches: int = 5, depth: int = 3) -> dict[str, dict[str, str]]:
    """A hall with wings of rooms one behind the other, doors that do nothing, and one that ends it in each room."""
    ways = {f"to {wing} 0".translate(WORDS): f"{wing}0" for wing in WINGS[:branches]}
    doors: dict[str, dict[str, str]] = {"hall": ways}
    for wing in WINGS[:branches]:
        for n in range(depth):
            ahead = {f"to {wing} {n + 1}".translate(WORDS): f"{wing}{n + 1}"} if n + 1 < depth else {}
            doors[f"{wing}{n}"] = {**ahead, "lamp": "", "window": "", "quit": CLOSED}
    doors["hall"] |= {"lamp": "", "window": "", "carpet": "", "quit": CLOSED}
    return doors


WINGS = ("east", "west", "north", "south", "cellar", "attic")
WORDS = str.maketrans("01234567", "abcdefgh")  # numbers in names are masked

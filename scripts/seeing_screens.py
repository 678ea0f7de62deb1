"""Drawn screens: panels of one color below bars of words, and on some of them a card, strong or faint.

They are drawn at the sizes at which a small model sees real screens, from a random generator alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

SIZES = ((288, 160), (160, 224), (256, 192))
"""(width, height) pixels of sites, pages and windows, as the model sees them."""
GRID = 4
"""Pixels between the places that may be clicked: fewer targets are easier."""
WHITE = (255, 255, 255)

Box = tuple[int, int, int, int]
"""(left, top, right, bottom) in pixels."""
Color = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Screen:
    """A screen (H, W, 3) uint8, and the boxes of its cards."""

    image: NDArray[np.uint8]
    cards: tuple[Box, ...]


def middle(box: Box) -> tuple[int, int]:
    """Where a box is clicked, (x, y) in pixels."""
    left, top, right, bottom = box
    return round((left + right) / 2 / GRID) * GRID, round((top + bottom) / 2 / GRID) * GRID


def drawn(rng: random.Random, cards: int) -> Screen:
    """Return a screen with `cards` cards, or one for each panel if there are fewer panels."""
    width, height = rng.choice(SIZES)
    ground = _shade(rng, WHITE, rng.choice((0, 0, 12, 25)))
    image = Image.new("RGB", (width, height), ground)
    draw = ImageDraw.Draw(image)
    top = rng.choice((0, 0, 20, 40)) * height // 160
    _bars(rng, draw, width, top)
    columns, rows = rng.choice((1, 2, 3, 4, 4, 5)), rng.choice((1, 1, 2, 3, 4))
    if columns * rows == 1:
        columns = 3
    across, down = width // columns, (height - top) // rows
    gap = rng.randint(1, 5)
    panels = [
        (column * across + gap, top + row * down + gap, (column + 1) * across - gap, top + (row + 1) * down - gap)
        for column in range(columns)
        for row in range(rows)
    ]
    color = _shade(rng, ground, rng.choice((0, 10, 20, 40)))
    for panel in panels:
        draw.rectangle(panel, fill=color, outline=_shade(rng, color, 60) if gap == 1 else None)
    chosen = rng.sample(panels, min(cards, len(panels)))
    placed = tuple(_card(rng, draw, panel, color) for panel in chosen)
    return Screen(np.asarray(image), placed)


def _card(rng: random.Random, draw: ImageDraw.ImageDraw, panel: Box, color: Color) -> Box:
    """Draw a card of another color on a panel, with a text or none."""
    left, top, right, bottom = panel
    high = max(8, min(bottom - top - 4, rng.randint(8, 24)))
    start = rng.choice((top + 8, top + 2, rng.randint(top, max(top, bottom - high))))
    start = max(top, min(start, bottom - high))
    box = (left + 2, start, right - 2, start + high)
    draw.rectangle(box, fill=_shade(rng, color, rng.choice((-255, -255, 20, 40, 80, 160))))
    if rng.random() < 0.7:
        _text(rng, draw, box[0] + 3, start + high // 2, rng.randint(10, max(11, right - left - 8)))
    return box


def _bars(rng: random.Random, draw: ImageDraw.ImageDraw, width: int, top: int) -> None:
    """Bars with words, fields and buttons, as above a page."""
    for y in range(0, top - 9, 12):
        draw.rectangle((0, y, width, y + 11), fill=_shade(rng, WHITE, rng.choice((0, 20, 40))))
        for _ in range(rng.randint(0, 3)):
            left = rng.randint(0, width - 30)
            field = (left, y + 1, left + rng.randint(10, 70), y + 10)
            draw.rectangle(field, fill=_shade(rng, WHITE, rng.choice((5, 150))))
            _text(rng, draw, left + 2, y + 5, rng.randint(5, 30))


def _text(rng: random.Random, draw: ImageDraw.ImageDraw, left: int, middle: int, length: int) -> None:
    """Draw what looks like small text."""
    x = left
    while x < left + length:
        run = rng.randint(2, 7)
        draw.rectangle((x, middle - 2, x + run, middle + rng.randint(0, 2)), fill=(rng.randint(60, 160),) * 3)
        x += run + rng.randint(1, 3)


def _shade(rng: random.Random, color: Color, by: int) -> Color:
    """A color that differs by so much, darker or lighter; white, where that differs, for a negative number."""
    if by < 0:
        return WHITE if sum(color) < 735 else _shade(rng, color, 30)
    tints = [round(by * rng.uniform(0.5, 1.0)) for _ in range(3)]
    red, green, blue = (
        part + tint if part + tint <= 255 and rng.random() < 0.3 else max(0, part - tint)
        for part, tint in zip(color, tints, strict=True)
    )
    return red, green, blue

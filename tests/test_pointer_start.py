"""What `scripts/make_pointer_start.py --pages` learns from: recorded demonstrations as items of a set."""

from __future__ import annotations

import numpy as np
import pytest

from dart_agent.episodes.trajectory import Step, Trajectory
from tests.helpers.scripts import load_script

pytestmark = pytest.mark.train
script = load_script("make_pointer_start")


def step(shot: str, x: int, y: int) -> Step:
    return Step(image_hashes=("older", shot), text="click", actions=({"kind": "click", "x": x, "y": y},))


def test_a_click_becomes_the_target_of_what_was_asked():
    played = [
        Trajectory("miniwob/click-tab", seed, f"Click on Tab #{seed}.", "", steps=(step(f"tab {seed}", seed, 9),))
        for seed in range(8)
    ]
    played.append(Trajectory("miniwob/click-collapsible", 0, "Expand.", "", steps=(step("a", 5, 6), step("b", 7, 8))))
    loaded: list[str] = []

    def load(name: str) -> np.ndarray:
        loaded.append(name)
        return np.zeros((224, 168, 3), np.uint8)

    items = script.page_items(reversed(played), load)
    assert loaded[:2] == ["a", "b"] and "older" not in loaded
    assert [item.description for item in items[:2]] == ["Expand.", "Expand."] and items[0].screen == (168, 224)
    assert all(item.boxes[0].contains(x, y) for item, (x, y) in zip(items, [(5, 6), (7, 8), (0, 9)], strict=False))

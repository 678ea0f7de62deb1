"""What a verifier learns from."""

from __future__ import annotations

import random

import numpy as np

from dart_agent.grounding.candidate import Box
from dart_agent.grounding.screenspot import GroundingItem
from dart_lab.agent.verifier_part import places_to_judge


def test_places_to_judge_are_right_and_wrong_ones():
    shot = np.zeros((100, 200, 3), np.uint8)
    boxes = (Box(0, 0, 50, 50), Box(100, 50, 150, 100), Box(60, 60, 60, 80))
    items = [GroundingItem(f"{n}", "x", (box,), shot, (200, 100)) for n, box in enumerate(boxes[:2])]
    items.append(GroundingItem("2", "x", (boxes[0], boxes[2]), shot, (200, 100)))  # one of its boxes has no area
    items.append(GroundingItem("3", "x", boxes[2:], shot, (200, 100)))  # nor has its only one
    found = list(places_to_judge(items, random.Random(0)))
    assert len(found) == 9
    for item, (x, y), right in found:
        assert 0 <= x < 200 and 0 <= y < 100
        assert right == any(box.contains(x, y) for box in item.boxes)
    assert 3 <= sum(right for _, _, right in found) < 9

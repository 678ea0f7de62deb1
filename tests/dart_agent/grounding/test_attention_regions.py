"""Boxes to patches, attention to candidates: what holds for all of them, and the published rules on small examples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dart_agent.grounding.attention_regions import candidates_of, patch_mask, regions
from dart_agent.grounding.candidate import Box

SCREENS = st.tuples(st.integers(1, 3000), st.integers(1, 3000))
GRIDS = st.tuples(st.integers(1, 12), st.integers(1, 12))
ATTENTION = GRIDS.flatmap(lambda grid: arrays(np.float32, grid, elements=st.floats(0, 1, width=32))).filter(
    lambda values: values.max() > 0
)


@st.composite
def boxes_on(draw: st.DrawFn, screen: tuple[int, int]) -> Box:
    left, top = draw(st.floats(0, screen[0] - 0.5)), draw(st.floats(0, screen[1] - 0.5))
    right, bottom = draw(st.floats(left + 0.25, screen[0])), draw(st.floats(top + 0.25, screen[1]))
    return Box(left, top, right, bottom)


@given(st.data(), SCREENS, GRIDS)
def test_a_box_takes_the_patches_that_it_overlaps(data: st.DataObject, screen: tuple[int, int], grid: tuple[int, int]):
    box = data.draw(boxes_on(screen))
    mask = patch_mask([box], screen, grid)
    (width, height), (rows, columns) = screen, grid
    assert mask.any()
    for row in range(rows):
        for column in range(columns):
            wide = min(box.right, (column + 1) * width / columns) - max(box.left, column * width / columns)
            tall = min(box.bottom, (row + 1) * height / rows) - max(box.top, row * height / rows)
            if min(wide, tall) > 1e-6:
                assert mask[row, column]
            elif min(wide, tall) < -1e-6:
                assert not mask[row, column]


@given(st.data(), SCREENS, GRIDS)
def test_several_boxes_take_the_patches_of_each(data: st.DataObject, screen: tuple[int, int], grid: tuple[int, int]):
    boxes = data.draw(st.lists(boxes_on(screen), max_size=3))
    each = [patch_mask([box], screen, grid) for box in boxes]
    assert (patch_mask(boxes, screen, grid) == np.logical_or.reduce([np.zeros(grid, bool), *each])).all()


@pytest.mark.parametrize("box", [Box(5, 5, 5, 9), Box(9, 5, 5, 9), Box(-9, -9, 0, 0), Box(100, 0, 120, 50)])
def test_a_box_without_area_on_the_screen_takes_none(box: Box):
    assert not patch_mask([box], (100, 50), (4, 4)).any()


@given(ATTENTION, st.floats(0.05, 0.95))
def test_regions_are_all_patches_above_the_threshold_and_do_not_touch(attention: np.ndarray, threshold: float):
    found = regions(attention, threshold)
    patches = [tuple(patch) for region in found for patch in region.tolist()]
    assert len(set(patches)) == len(patches)
    assert set(patches) == {tuple(at) for at in np.argwhere(attention > threshold * attention.max()).tolist()}
    region_of = {tuple(patch): number for number, region in enumerate(found) for patch in region.tolist()}
    for (row, column), number in region_of.items():
        for near in ((row + 1, column), (row, column + 1)):
            assert region_of.get(near, number) == number
    for region in found:
        reached, new = set(), {tuple(region[0])}
        members = {tuple(patch) for patch in region.tolist()}
        while new:
            reached |= new
            around = {(r + a, c + b) for r, c in new for a, b in ((1, 0), (-1, 0), (0, 1), (0, -1))}
            new = (around & members) - reached
        assert reached == members, "hangs together"


@given(ATTENTION, SCREENS, st.integers(1, 4))
def test_candidates_lie_in_their_regions_box_best_first(attention: np.ndarray, screen: tuple[int, int], k: int):
    found = candidates_of(attention, screen, k)
    assert 1 <= len(found) <= k
    assert [place.score for place in found] == sorted((place.score for place in found), reverse=True)
    for place in found:
        assert place.region is not None
        assert 0 <= place.x < screen[0] and 0 <= place.y < screen[1]
        assert place.region.left - 1 <= place.x <= place.region.right + 1e-6
        assert place.region.top - 1 <= place.y <= place.region.bottom + 1e-6


def test_the_region_of_the_highest_mean_wins_over_the_larger_one():
    attention = np.zeros((3, 6))
    attention[0, :3] = 0.2, 0.1, 0.2
    attention[2, 5] = 0.3
    attention[1, 4] = 0.2  # touches the last one at a corner only
    first, second, third = candidates_of(attention, (600, 300), 5)
    assert (first.x, first.y, first.score, first.region) == (550, 250, 0.3, Box(500, 200, 600, 300))
    assert (second.x, second.y, second.score) == (450, 150, 0.2)
    assert (third.x, third.y, third.region) == (150, 50, Box(0, 0, 300, 100))
    assert third.score == pytest.approx(0.5 / 3)


def test_a_place_is_drawn_to_where_attention_is_higher():
    (place,) = candidates_of(np.array([[0.5, 1.0, 0.0]]), (300, 100), 1)
    assert (place.x, place.y) == (int(300 * (0.5 * 0.5 + 1.5 * 1.0) / 1.5 / 3), 50)

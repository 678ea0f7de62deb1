"""The best constant click: places where clicks lie densest, and the one that succeeds most often."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from dart_gym.core.actions import Click, Type
from dart_lab.controls.constant_click import CANDIDATES, RADIUS, NotingOracle, best_by_task, densest

POINTS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=60)


@given(POINTS, st.integers(1, 6))
def test_densest_places_are_points_far_apart_the_densest_first(points, count):
    chosen = densest(points, count)
    assert len(chosen) <= count and set(chosen) <= set(points) and bool(chosen) == bool(points)
    assert all(math.dist(a, b) > 2 * RADIUS for i, a in enumerate(chosen) for b in chosen[:i])
    if chosen:
        around = [sum(math.dist(point, other) <= RADIUS for other in points) for point in points]
        assert sum(math.dist(chosen[0], other) <= RADIUS for other in points) == max(around)


def test_densest_finds_the_crowds():
    points = [(10, 10)] * 3 + [(100, 100)] * 5 + [(50, 50)]
    assert densest(points) == [(100, 100), (10, 10), (50, 50)]
    assert len(densest([(40 * x, 40 * y) for x in range(5) for y in range(5)])) == CANDIDATES


def test_the_best_place_counts_for_every_task():
    places = {("a", 0): (1, 2), ("a", 1): (3, 4), ("b", 0): (5, 6)}
    results = [(("a", 0), 1.0), (("a", 0), 0.0), (("a", 1), 1.0), (("a", 1), 1.0), (("b", 0), 0.0)]
    assert best_by_task(results, places) == {
        "a": {"rate": 1.0, "place": [3, 4], "episodes": 2},
        "b": {"rate": 0.0, "place": [5, 6], "episodes": 1},
    }
    assert best_by_task([], {}) == {}


def test_the_clicks_of_an_oracle_are_noted():
    told, clicks = [Click(x=3, y=4), Type("ab"), Click(x=5, y=6)], []

    async def oracle():
        return told.pop(0)

    policy = NotingOracle(clicks, SimpleNamespace(oracle=oracle))
    actions = [asyncio.run(policy.act(None)).actions for _ in range(3)]
    assert actions == [(Click(x=3, y=4),), (Type("ab"),), (Click(x=5, y=6),)] and clicks == [(3, 4), (5, 6)]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.sampled_from([0.0, 1.0])), min_size=1))
def test_no_place_beats_the_best(results):
    places = {(task, number): (number, number) for task in "ab" for number in range(4)}
    best = best_by_task([((task, number), score) for task, number, score in results], places)
    for task, number, _ in results:
        rewards = [reward for t, n, reward in results if (t, n) == (task, number)]
        assert best[task]["rate"] >= sum(rewards) / len(rewards)

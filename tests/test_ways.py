"""The five ways through the code can be counted: every stop is there, and the rule is the one that is stated."""

from __future__ import annotations

import pytest

from scripts import count_ways


@pytest.fixture(scope="module")
def places() -> dict[str, list[str]]:
    return count_ways.places_of(count_ways.modules_of(count_ways.ROOT))


@pytest.mark.thorough
def test_every_stop_is_defined_in_one_module(places):
    for stop in {stop for way in count_ways.WAYS.values() for stop in way}:
        assert count_ways.module_of(stop, places)


def test_a_stop_that_is_gone_is_named(places):
    with pytest.raises(LookupError, match="nowhere_at_all is defined in no module"):
        count_ways.module_of("nowhere_at_all", places)


def test_modules_between_two_stops_count_and_callbacks_are_followed_back():
    graph = {"p.a": ["p.b", "p.d"], "p.b": ["p.c"], "p.c": [], "p.d": ["p.c"]}
    places = {"start": ["p.a"], "end": ["p.c"], "back": ["p.a"]}
    assert count_ways.files_of(("start", "end"), graph, places) == ["p.a", "p.b", "p.c"]
    assert count_ways.files_of(("end", "back"), graph, places) == ["p.c", "p.b", "p.a"]

"""Ranks that hold slices of rows compute what one rank computes: values, and the gradient of every parameter."""

from __future__ import annotations

import itertools

import pytest
from context_work import BY_BLOCKS, LAYOUTS, Families, compare

from dart_agent.models.families.family_table import FAMILIES

pytestmark = [pytest.mark.scale, pytest.mark.train, pytest.mark.process, pytest.mark.timeout(600)]

TWO: Families = {name: ({}, {}) for name in FAMILIES}
TWO |= {f"{name} with one head of keys": ({}, {"num_key_value_heads": 1}) for name in ("qwen2_5_vl", "qwen3_5")}
FOUR: Families = {"qwen2_5_vl with two heads of keys": ({}, {"num_key_value_heads": 2}), "qwen3_vl": ({}, {})}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    return compare(tmp_path_factory.mktemp("two"), TWO)


def assert_equal_to_one_rank(found: dict[str, float]) -> None:
    assert found["norm"] > 1e-2 and found["untrained"] == 0
    assert found["micro_batches"] > 1
    assert found["values"] <= 1e-5 and found["gradients"] <= 1e-5


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TWO)
def test_two_ranks_with_half_of_each_row_are_one(name, layout, two):
    """Rows with several images, in several micro-batches; among them rows of an odd number of tokens."""
    found = two[f"{name} {layout}"]
    assert_equal_to_one_rank(found)
    assert 0.5 <= found["tokens"] < 0.51


@pytest.mark.parametrize("name", BY_BLOCKS)
def test_kernels_that_look_at_every_place_see_the_whole_row(name, two):
    """A slice's padding belongs to the places of the row, whose mask FlexAttention evaluates."""
    assert two[f"{name} by blocks"]["values"] <= 1e-5


def test_a_rank_runs_its_own_images_only(two):
    """Images at a cut are run on both sides of it."""
    shares = [found["images"] for name, found in two.items() if "by blocks" not in name]
    assert max(shares) <= 1.0 and min(shares) < 0.7


def test_rows_of_odd_lengths_were_among_them(two):
    assert any(found.get("tokens", 0.0) > 0.5 for found in two.values())


@pytest.mark.slow
def test_four_ranks_share_two_heads_of_keys(tmp_path):
    four = compare(tmp_path, FOUR, ranks=4)
    for name, layout in itertools.product(FOUR, LAYOUTS):
        assert_equal_to_one_rank(four[f"{name} {layout}"])
        assert 0.25 <= four[f"{name} {layout}"]["tokens"] < 0.26

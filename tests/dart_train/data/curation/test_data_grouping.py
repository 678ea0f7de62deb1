from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_train.core.data_states import GroupState, Reason
from dart_train.data.curation.experience_pool import Success, choose
from dart_train.data.curation.grouping import Member, balanced, settle_group
from dart_train.data.curation.rules import CurationConfig, PoolSampling

POOLING = CurationConfig(experience_pool=True)
SUCCESSES = [
    Success(101, "old", 1.0, 5.0),
    Success(102, "new", 1.0, 9.0, uses=4),
    Success(103, "mid", 0.5, 7.0),
]


def members(*rewards: float) -> list[Member]:
    return [Member(index, reward, oldest_version=index) for index, reward in enumerate(rewards)]


def test_the_pools_newest_success_takes_the_place_of_the_oldest_failure():
    settled = settle_group(members(0, 0, 0, 0), POOLING, SUCCESSES, "g")
    assert (settled.state, settled.reason, settled.rule) == (GroupState.READY, None, "experience_pool")
    assert settled.injected.trajectory_id == "new"
    assert settled.replaced.rollout_id == 0
    assert [member.rollout_id for member in settled.members] == [1, 2, 3]
    assert settled.rewards == (0, 0, 0, 1.0)


def test_without_a_success_in_the_pool_a_failed_group_is_dropped():
    settled = settle_group(members(0, 0), POOLING, [], "g")
    assert (settled.state, settled.reason) == (GroupState.REJECTED, Reason.NO_SIGNAL)


@pytest.mark.parametrize("config", [CurationConfig(), CurationConfig(select_rollouts=4)])
def test_with_its_switch_off_the_pool_joins_nothing(config):
    assert settle_group(members(0, 0), config, SUCCESSES, "g").injected is None


def test_one_partial_success_keeps_the_pool_out():
    settled = settle_group(members(0, 0.1, 0), POOLING, SUCCESSES, "g")
    assert settled.injected is None
    assert (settled.state, settled.rule) == (GroupState.READY, "")


def test_a_group_of_one_failure_becomes_the_success_alone_and_has_no_signal():
    settled = settle_group(members(0), POOLING, SUCCESSES, "g")
    assert settled.reason is Reason.NO_SIGNAL


@pytest.mark.parametrize(
    ("rewards", "drop_above", "reason"),
    [
        ((1, 1, 1, 0), 0.7, Reason.TOO_EASY),
        ((1, 1, 0, 0), 0.7, None),
        ((1, 1, 1, 0), None, None),
        ((1, 1, 1, 1), 1.0, Reason.NO_SIGNAL),
    ],
)
def test_groups_that_mostly_succeed_can_be_dropped(rewards, drop_above, reason):
    config = CurationConfig(drop_above=drop_above)
    assert settle_group(members(*rewards), config, [], "g").reason is reason


def test_a_selection_is_balanced_and_takes_the_newest():
    config = CurationConfig(select_rollouts=4)
    settled = settle_group(members(1, 0, 1, 0, 0, 1, 0, 0), config, [], "g")
    assert [member.rollout_id for member in settled.members] == [2, 5, 6, 7]
    assert [member.rollout_id for member in settled.left_out] == [0, 1, 3, 4]
    assert (settled.state, settled.rule) == (GroupState.READY, "select_rollouts")


def test_the_pools_success_has_its_place_in_a_selection():
    config = CurationConfig(experience_pool=True, select_rollouts=4)
    settled = settle_group(members(*[0] * 8), config, SUCCESSES, "g")
    assert len(settled.rewards) == 4
    assert settled.rewards[-1] == 1.0


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=20), st.integers(2, 12))
def test_balance_keeps_both_sides_and_is_as_even_as_it_can_be(rewards, size):
    chosen = balanced(rewards, size)
    assert len(chosen) == min(size, len(rewards))
    middle = (min(rewards) + max(rewards)) / 2
    sides = Counter(reward > middle for reward in rewards)
    kept = Counter(rewards[index] > middle for index in chosen)
    for side in (True, False):
        assert kept[side] >= min(1, sides[side])
        # one side is below its half only because it has no more
        assert kept[side] >= min(sides[side], len(chosen) // 2)


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=12),
    st.booleans(),
    st.none() | st.integers(2, 12),
    st.none() | st.floats(0.1, 1),
    st.booleans(),
    st.integers(0, 3),
)
def test_every_member_goes_exactly_one_way(rewards, pooling, select, drop_above, drop_flat, available):
    config = CurationConfig(
        experience_pool=pooling, select_rollouts=select, drop_above=drop_above, drop_no_signal=drop_flat
    )
    group = members(*rewards)
    settled = settle_group(group, config, SUCCESSES[:available], "g")
    gone = [settled.replaced] if settled.replaced else []
    assert sorted([*settled.members, *settled.left_out, *gone], key=lambda member: member.rollout_id) == group
    assert (settled.injected is None) == (settled.replaced is None)
    assert len(settled.rewards) == min(len(rewards), select or len(rewards))
    assert (settled.state is GroupState.REJECTED) == (settled.reason is not None)
    if settled.state is GroupState.READY and drop_flat:
        assert min(settled.rewards) < max(settled.rewards)


def test_the_pool_is_sampled_as_told():
    assert choose(SUCCESSES, PoolSampling.NEWEST, "g").trajectory_id == "new"
    assert choose(SUCCESSES, PoolSampling.LEAST_USED, "g").trajectory_id == "mid"  # newest of the unused
    drawn = Counter(choose(SUCCESSES, PoolSampling.UNIFORM, f"g{index}").trajectory_id for index in range(600))
    assert set(drawn) == {"old", "new", "mid"}
    assert min(drawn.values()) > 150
    assert choose(SUCCESSES[::-1], PoolSampling.UNIFORM, "g7") == choose(SUCCESSES, PoolSampling.UNIFORM, "g7")
    assert choose([], PoolSampling.NEWEST, "g") is None

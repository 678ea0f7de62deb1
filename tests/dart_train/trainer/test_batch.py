"""Leased groups become one optimizer batch."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

import pytest
import torch

from dart_gym.outcomes import TerminalState
from dart_train.data.manager import Group
from dart_train.trainer.batch import build_batch
from dart_train.trainer.errors import TrainingError
from dart_train.trajectory import Step, Trajectory

pytestmark = pytest.mark.train


@pytest.fixture
def make_group(make_prompt, tokens, screens):
    image = next(iter(screens))

    def make(*episodes: tuple[float, int], version: int = 0, source: str = "rollout") -> Group:
        """A group of episodes, each (reward, steps)."""
        response = tuple(tokens.response("Action: wait()"))
        step = Step(
            make_prompt("Click", image), (image,), response, (-1.0,) * len(response), (version, version)
        )  # fmt: skip
        trajectories = tuple(
            Trajectory(
                uuid.uuid4().hex, "run", "t", "0", "Click", 0, "g", TerminalState.DONE, reward, (step,) * steps, source
            )
            for reward, steps in episodes
        )
        return Group("g", "t", trajectories)

    return make


def build(groups, collator, config, version=0, seed=0):
    return build_batch(groups, collator, config, version=version, rng=random.Random(seed))


def advantages(batch) -> list[float]:
    """In the order of the samples."""
    values = torch.empty(batch.normalizer.samples)
    for micro in batch.micro_batches:
        values[micro.sample_index] = micro.advantages
    return values.tolist()


def test_rewards_become_advantages_of_steps(make_group, collator, make_config):
    batch = build([make_group((1.0, 2), (0.0, 6))], collator, make_config(), version=3)
    assert advantages(batch) == pytest.approx([1.6202] * 2 + [-0.5401] * 6, abs=1e-4)
    assert (batch.normalizer.samples, batch.normalizer.tokens) == (8, 8 * 2)
    assert batch.metrics["reward"] == 0.5
    assert batch.metrics["staleness/max"] == 3.0
    assert len(batch.trajectory_ids) == 2


def test_groups_have_their_own_baselines(make_group, collator, make_config):
    config = make_config(scale_rewards="none", advantage_level="trajectory")
    batch = build([make_group((1.0, 1), (0.0, 1)), make_group((0.5, 1), (0.5, 1))], collator, config)
    assert advantages(batch) == [0.5, -0.5, 0.0, 0.0]
    assert batch.metrics["frac_reward_zero_std"] == 0.5


def test_age_is_that_of_rollouts(make_group, collator, make_config):
    batch = build(
        [make_group((1.0, 1), (0.0, 1), version=7), make_group((1.0, 1), (0.0, 1), source="oracle")],
        collator, make_config(), version=9,
    )  # fmt: skip
    assert (batch.metrics["staleness/mean"], batch.newest_version) == (2.0, 7)


def test_shuffling_permutes_rewards_of_the_whole_lease(make_group, collator, make_config):
    config = make_config(shuffle_rewards=True, scale_rewards="none")
    groups = [make_group(*((1.0, 1),) * 8), make_group(*((0.0, 1),) * 8)]
    one, two, other = (build(groups, collator, config, seed=seed) for seed in (1, 1, 2))
    assert advantages(one) == advantages(two) != advantages(other)
    assert one.metrics["reward"] == 0.5 and any(advantages(one))


def test_steps_without_a_response_are_left_out(make_group, collator, make_config):
    group = make_group((1.0, 2), (0.0, 1))
    first = group.trajectories[0]
    silent = replace(first, steps=(first.steps[0], replace(first.steps[1], sampled_ids=(), logprobs=())))
    batch = build([replace(group, trajectories=(silent, group.trajectories[1]))], collator, make_config())
    assert batch.normalizer.samples == 2
    with pytest.raises(TrainingError, match="no step with a response"):
        build([replace(group, trajectories=())], collator, make_config())


def test_an_error_is_never_a_reward(make_group, collator, make_config):
    group = make_group((1.0, 1), (0.0, 1))
    broken = replace(group.trajectories[0], reward=None, terminal=TerminalState.ENV_ERROR)
    with pytest.raises(TrainingError, match="has no reward .it ended in env_error"):
        build([replace(group, trajectories=(broken, group.trajectories[1]))], collator, make_config())

"""Leased groups become one optimizer batch."""

from __future__ import annotations

import math
import random
import uuid
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_gym.core.outcomes import TerminalState
from dart_train.core.train_errors import TrainingError
from dart_train.data.manager.leasing import Group
from dart_train.trainer.batches.collator import PROBLEMS, Collator, ImageCache, Sample
from dart_train.trainer.batches.optimizer_batch import build_batch
from dart_train.trainer.grpo_trainer import step_settings

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
                "t",
                0,
                "Click",
                "0",
                uuid.uuid4().hex,
                "run",
                "g",
                source,
                terminal=TerminalState.DONE,
                score=reward,
                steps=(step,) * steps,
            )
            for reward, steps in episodes
        )
        return Group("g", "t", trajectories)

    return make


def build(groups, collator, config, version=0, seed=0, **options):
    settings = step_settings(config)
    rng = random.Random(seed)
    return build_batch(
        groups, collator, settings.batch, version=version, rng=rng, max_tokens=settings.micro_batch_tokens, **options
    )  # fmt: skip


def advantages(batch) -> list[float]:
    """In the order of the samples."""
    values = torch.empty(batch.parts[0].normalizer.samples)
    for micro in batch.micro_batches:
        values[micro.sample_index] = micro.advantages
    return values.tolist()


def test_rewards_become_advantages_of_steps(make_group, collator, make_config):
    batch = build([make_group((1.0, 2), (0.0, 6))], collator, make_config(), version=3)
    assert advantages(batch) == pytest.approx([1.6202] * 2 + [-0.5401] * 6, abs=1e-4)
    assert (batch.parts[0].normalizer.samples, batch.parts[0].normalizer.tokens) == (8, 8 * 2)
    assert batch.metrics["reward"] == 0.5
    assert batch.metrics["staleness/max"] == 3.0
    assert len(batch.trajectory_ids) == 2


def test_groups_have_their_own_baselines(make_group, collator, make_config):
    config = make_config(scale_rewards="none", advantage="trajectory")
    batch = build([make_group((1.0, 1), (0.0, 1)), make_group((0.5, 1), (0.5, 1))], collator, config)
    assert advantages(batch) == [0.5, -0.5, 0.0, 0.0]
    assert batch.metrics["frac_reward_zero_std"] == 0.5


def test_age_is_that_of_rollouts(make_group, collator, make_config):
    batch = build(
        [make_group((1.0, 1), (0.0, 1), version=7), make_group((1.0, 1), (0.0, 1), source="oracle")],
        collator, make_config(), version=9,
    )  # fmt: skip
    assert (batch.metrics["staleness/mean"], batch.newest_version) == (2.0, 7)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 4)), min_size=2, max_size=5))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_forks_advantages_are_of_the_steps_behind_it_alone(make_group, collator, make_config, episodes):
    """DART's formula in plain Python, over what was played behind the fork; and as young as its own oldest step."""
    group = make_group(*episodes, version=3, source="fork")
    batch = build([group], collator, make_config(), version=5)
    (part,) = batch.parts
    every = [reward for reward, steps in episodes for _ in range(steps)]
    mean = sum(every) / len(every)
    deviation = math.sqrt(sum((one - mean) ** 2 for one in every) / (len(every) - 1))
    expected = [(one - mean) / (deviation + 1e-6) for one in every] if len(set(every)) > 1 else [0.0] * len(every)
    assert [sample.advantage for sample in part.samples] == pytest.approx(expected, abs=1e-9)
    assert all(sample.stale for sample in part.samples) and batch.metrics["staleness/mean"] == 2.0
    assert batch.metrics["batch/samples"] == sum(steps for _, steps in episodes)


def test_shuffling_permutes_rewards_of_the_whole_lease(make_group, collator, make_config):
    config = make_config(shuffle_rewards=True, scale_rewards="none")
    groups = [make_group(*((1.0, 1),) * 8), make_group(*((0.0, 1),) * 8)]
    one, two, other = (build(groups, collator, config, seed=seed) for seed in (1, 1, 2))
    assert advantages(one) == advantages(two) != advantages(other)
    assert one.metrics["reward"] == 0.5 and any(advantages(one))


def test_steps_without_a_response_are_left_out(make_group, collator, make_config):
    group = make_group((1.0, 2), (0.0, 1))
    first = group.trajectories[0]
    silent = replace(first, steps=(first.steps[0], replace(first.steps[1], response_ids=(), logprobs=())))
    batch = build([replace(group, trajectories=(silent, group.trajectories[1]))], collator, make_config())
    assert batch.parts[0].normalizer.samples == 2
    with pytest.raises(TrainingError, match="no step with a response"):
        build([replace(group, trajectories=())], collator, make_config())


def test_an_error_is_never_a_reward(make_group, collator, make_config):
    group = make_group((1.0, 1), (0.0, 1))
    broken = replace(group.trajectories[0], score=None, terminal=TerminalState.ENV_ERROR)
    with pytest.raises(TrainingError, match="has no reward .it ended in env_error"):
        build([replace(group, trajectories=(broken, group.trajectories[1]))], collator, make_config())


def broken_step(step: Step, kind: str, tokens, screens) -> Step:
    """The step with one thing wrong."""
    other = [name for name in screens if screens[name].shape == (28, 28, 3)]
    return {
        "empty_response": lambda: replace(step, response_ids=(), logprobs=()),
        "unknown_token": lambda: replace(step, response_ids=(10**6, *step.response_ids[1:])),
        "bad_logprobs": lambda: replace(step, logprobs=(float("nan"), *step.logprobs[1:])),
        "bad_routing": lambda: replace(step, routing=b"\x00"),
        "special_token": lambda: replace(step, response_ids=(tokens.image_pad_id, *step.response_ids[1:])),
        "image_tokens": lambda: replace(step, image_hashes=(other[0],)),
        "image_size": lambda: replace(step, image_hashes=("thin",)),
        "too_long": lambda: replace(step, response_ids=step.response_ids * 200, logprobs=step.logprobs * 200),
    }[kind]()


@pytest.fixture
def strict(tokens, vision, screens) -> Collator:
    """A collator that knows the model's context, and a screenshot more than the others."""
    thin = np.zeros((1, 280, 3), np.uint8)  # no processor takes a side 200 times the other
    return Collator(tokens, vision, ImageCache({**screens, "thin": thin}.__getitem__), max_length=200, routing_width=2)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_broken_steps_are_left_out_counted_and_said(make_group, strict, make_config, tokens, screens, kind, caplog):
    group = make_group((1.0, 3), (0.0, 2))
    first = group.trajectories[0]
    steps = (first.steps[0], broken_step(first.steps[1], kind, tokens, screens), first.steps[2])
    batch = build(
        [replace(group, trajectories=(replace(first, steps=steps), *group.trajectories[1:]))], strict, make_config()
    )
    assert {name: count for name, count in batch.metrics.items() if name.startswith("dropped/")} == {
        f"dropped/{reason}": float(reason == kind) for reason in PROBLEMS
    } | {"dropped/share": 1 / 5}
    assert batch.parts[0].normalizer.samples == 4
    # The baseline is that of the steps that are trained: two with a reward of 1, two with 0.
    assert advantages(batch) == pytest.approx([0.8660] * 2 + [-0.8660] * 2, abs=1e-3)
    assert f"1 of 5 steps cannot be trained on and were left out ({{'dropped/{kind}': 1}})" in caplog.text


@pytest.mark.parametrize("kind", PROBLEMS)
def test_a_lease_with_nothing_left_says_why(make_group, strict, make_config, tokens, screens, kind):
    group = make_group((1.0, 1), (0.0, 1))
    members = [
        replace(item, steps=tuple(broken_step(s, kind, tokens, screens) for s in item.steps))
        for item in group.trajectories
    ]
    words = {
        "empty_response": "look at what the rollout service recorded",
        "unknown_token": "it was recorded with another",
        "bad_logprobs": "a log-probability of nan",
        "bad_routing": "was recorded with another one",
        "special_token": "serve the same model directory",
        "image_tokens": "its images need 1 in",
        "image_size": "an image cannot be what this model was shown",
        "too_long": "keep fewer screenshots",
    }
    with pytest.raises(TrainingError, match=words[kind]):
        build([replace(group, trajectories=tuple(members))], strict, make_config())


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), float("-inf"), 0.5])
def test_logprobs_that_are_none(make_group, collator, logprob):
    step = make_group((1.0, 1)).trajectories[0].steps[0]
    sample = Sample.from_step(replace(step, logprobs=(*step.logprobs[:-1], logprob)))
    problem = collator.problem(sample)
    assert problem is not None and problem.reason == "bad_logprobs"
    assert collator.problem(Sample.from_step(replace(step, logprobs=(*step.logprobs[:-1], 1e-7)))) is None


def test_missing_logprobs_are_counted_and_have_no_weight(make_group, collator, make_config):
    group = make_group((1.0, 2), (0.0, 1))
    silent = replace(group.trajectories[0], steps=tuple(replace(s, logprobs=()) for s in group.trajectories[0].steps))
    batch = build([replace(group, trajectories=(silent, group.trajectories[1]))], collator, make_config())
    assert batch.metrics["batch/behaviour_unknown"] == 2.0
    assert sum(int(micro.behaviour_known.any(-1).sum()) for micro in batch.micro_batches) == 1


def test_groups_of_one_and_without_variance_teach_nothing_and_are_counted(make_group, collator, make_config):
    batch = build([make_group((1.0, 3)), make_group((1.0, 1), (1.0, 2))], collator, make_config())
    assert advantages(batch) == [0.0] * 6
    assert batch.metrics["batch/groups_of_one"] == 1.0
    assert batch.metrics["frac_reward_zero_std"] == 1.0


def test_balanced_trajectories_count_the_same(make_group, collator, make_config):
    batch = build([make_group((1.0, 2), (0.0, 6))], collator, make_config(balance_trajectories=True))
    weights = torch.empty(8)
    for micro in batch.micro_batches:
        weights[micro.sample_index] = micro.weights
    assert weights.tolist() == pytest.approx([2.0] * 2 + [4 / 6] * 6)


def test_steps_of_older_weights_are_stale(make_group, collator, make_config):
    groups = [make_group((1.0, 1), (0.0, 1), version=version) for version in (3, 4)]
    groups.append(make_group((1.0, 1), (0.0, 1), source="oracle"))

    def stale(**options: int) -> list[bool]:
        batch = build(groups, collator, make_config(), version=4, **options)
        found = torch.empty(6, dtype=torch.bool)
        for micro in batch.micro_batches:
            found[micro.sample_index] = micro.stale
        return found.tolist()

    assert stale() == [True, True, False, False, False, False]
    assert stale(unpublished=1) == [True, True, True, True, False, False]

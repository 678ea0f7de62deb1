"""Recipes that DART does not have: each switch against its definition, by hand or against TRL's own code."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from training_lives import copy_run, open_run

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_gym.core.outcomes import TerminalState
from dart_train.core.train_errors import TrainingError
from dart_train.data.manager.leasing import Group
from dart_train.trainer import losses
from dart_train.trainer.bad_steps import BadSteps
from dart_train.trainer.batches.members import BatchSettings
from dart_train.trainer.batches.optimizer_batch import build_batch
from dart_train.trainer.grpo_trainer import DartGRPOTrainer
from dart_train.trainer.losses.advantages import GroupRewards, TrajectoryAdvantage, shortest_path_rewards
from dart_train.trainer.losses.equal_screens import EqualScreensAdvantage, anchor, pointer_after, step_advantages
from dart_train.trainer.reference_sync import REFERENCE_FILE
from dart_train.trainer.weights.ranks import Ranks

pytestmark = pytest.mark.train


def weights(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


# --- which trajectories and steps count -------------------------------------------------------------------------


@pytest.fixture
def make_group(make_prompt, tokens, screens):
    image = next(iter(screens))

    def make(*episodes: tuple[float, int, TerminalState]) -> Group:
        response = tuple(tokens.response("Action: wait()"))
        step = Step(make_prompt("Click", image), (image,), response, (-1.0,) * len(response))
        return Group("g", "t", tuple(
            Trajectory("t", 0, "Click", "0", f"{number}", "run", "g", terminal=terminal, score=reward,
                       steps=(step,) * steps)
            for number, (reward, steps, terminal) in enumerate(episodes)
        ))  # fmt: skip

    return make


def build(group: Group, collator, **settings):
    return build_batch([group], collator, BatchSettings(**settings), version=0, rng=random.Random(0), max_tokens=4096)


DONE, LIMIT = TerminalState.DONE, TerminalState.STEP_LIMIT


def test_trajectories_at_the_step_limit_stay_in_the_baseline_and_leave_the_loss(make_group, collator):
    group = make_group((1.0, 2, DONE), (0.0, 5, LIMIT), (0.0, 1, TerminalState.TIME_LIMIT), (0.0, 2, DONE))
    (whole,) = build(group, collator).parts
    batch = build(group, collator, mask_step_limit=True)
    (part,) = batch.parts
    assert {sample.trajectory for sample in part.samples} == {0, 3}  # nothing is run that does not count
    kept = [sample.advantage for sample in whole.samples if sample.trajectory in (0, 3)]
    assert [sample.advantage for sample in part.samples] == kept
    assert part.normalizer.samples == whole.normalizer.samples == 10  # as TRL's masked completions
    assert part.normalizer.tokens == 0.4 * whole.normalizer.tokens
    assert (batch.metrics["batch/masked"], batch.metrics["batch/at_step_limit"]) == (2.0, 2.0)


def test_a_garbled_last_word_is_not_taught_though_its_episode_succeeded(make_group, collator):
    def unread_at_the_end(member: Trajectory) -> Trajectory:
        return replace(member, steps=(*member.steps[:-1], replace(member.steps[-1], terminal="parse_error")))

    garbled = TerminalState.PARSE_ERROR
    whole = make_group((1.0, 3, garbled), (1.0, 2, DONE), (0.0, 2, garbled), (0.0, 1, DONE))
    one, two, three, four = whole.trajectories
    group = replace(whole, trajectories=(unread_at_the_end(one), two, unread_at_the_end(three), four))
    settings = {"advantage": TrajectoryAdvantage("none")}
    (plain,) = build(group, collator, **settings).parts
    (held,) = build(group, collator, **settings, unreadable_advantage=-0.25).parts
    by_trajectory = [[s.advantage for s in part.samples if s.trajectory == 0] for part in (plain, held)]
    assert by_trajectory == [[0.5, 0.5, 0.5], [0.5, 0.5, -0.25]]  # the steps that did the task keep what they earned
    assert [s.advantage for s in held.samples if s.trajectory == 1] == [0.5, 0.5]
    assert [s.advantage for s in held.samples if s.trajectory == 2] == [-0.5, -0.5]  # a failure counts for more


def test_failures_can_count_less_than_successes(make_group, collator):
    group = make_group((1.0, 3, DONE), (0.0, 2, DONE), (0.0, 1, DONE), (0.0, 2, DONE))
    settings = {"advantage": TrajectoryAdvantage("none")}
    (whole,) = build(group, collator, **settings).parts
    (less,) = build(group, collator, **settings, negative_advantage_scale=0.2).parts
    (none,) = build(group, collator, **settings, negative_advantage_scale=0.0, unreadable_advantage=-0.25).parts
    assert [s.advantage for s in whole.samples] == [0.75] * 3 + [-0.25] * 5
    assert [s.advantage for s in less.samples] == [0.75] * 3 + [-0.05] * 5
    assert [s.advantage for s in none.samples] == [0.75] * 3 + [0.0] * 5  # all of them were read


def test_a_lease_of_nothing_but_step_limits_changes_nothing(make_group, collator):
    (part,) = build(make_group((1.0, 2, LIMIT), (0.0, 3, LIMIT)), collator, mask_step_limit=True).parts
    assert [sample.weight for sample in part.samples] == [0.0]


def test_the_off_policy_mask_is_trls():
    from trl import GRPOTrainer

    torch.manual_seed(0)
    mask = torch.rand(40, 7) < 0.8
    mask[:, 0] = True
    logprobs, sampled = -torch.rand(40, 7) * 2, -torch.rand(40, 7) * 2
    advantages = torch.randn(40, 1)
    expected = GRPOTrainer.get_off_policy_mask(advantages, logprobs, sampled, mask.float(), 0.1)
    found = losses.off_policy_mask(advantages, logprobs, sampled, mask, 0.1)
    assert torch.equal(found.float(), expected) and 0 < found.sum() < 40


def test_masked_steps_have_no_policy_gradient_and_keep_the_kl_term():
    logprobs = torch.tensor([[-3.0, -3.0], [-3.0, -3.0]], requires_grad=True)
    scored = losses.Scored(
        logprobs, torch.ones(2, 2), logprobs.detach(), torch.ones(2, 2, dtype=torch.bool), torch.tensor([-1.0, 1.0]),
        torch.full((2, 2), -1.0), torch.ones(2, 2, dtype=torch.bool), logprobs.detach() + 0.1,
    )  # fmt: skip
    config = losses.ObjectiveConfig(off_policy_threshold=0.5, beta=0.0)
    result = losses.objective(scored, config, losses.Normalizer(4, 2))
    result.loss.backward()
    assert logprobs.grad[0].tolist() == [0.0, 0.0] and logprobs.grad[1].abs().min() > 0
    assert result.statistics["off_policy_masked"].tolist() == [[True, True], [False, False]]
    with_kl = losses.ObjectiveConfig(off_policy_threshold=0.5, beta=0.1)
    assert losses.objective(scored, with_kl, losses.Normalizer(4, 2)).divergence.abs().min() > 0


# --- rewards and advantages -------------------------------------------------------------------------------------


def test_scaled_by_the_batch_as_trl_does():
    """TRL: (R - mean of the group) / (unbiased deviation of all rewards + 1e-4)."""
    rewards = np.array([1.0, 0.0, 0.0, 0.5, 1.0, 1.0])
    expected = torch.tensor(rewards).view(2, 3)
    expected = (expected - expected.mean(1, keepdim=True)) / (torch.tensor(rewards).std() + 1e-4)
    found = [
        TrajectoryAdvantage("batch")(GroupRewards(own, np.ones(3, np.int64), (), rewards, np.ones(6, np.int64)))
        for own in (rewards[:3], rewards[3:])
    ]
    np.testing.assert_allclose(np.concatenate(found), expected.flatten().numpy(), rtol=1e-12)


def test_a_lease_is_scaled_by_all_its_groups(make_group, collator):
    groups = [make_group((1.0, 1, DONE), (0.0, 1, DONE)), make_group((0.6, 1, DONE), (0.4, 1, DONE))]
    settings = BatchSettings(advantage=TrajectoryAdvantage("batch"))
    batch = build_batch(groups, collator, settings, version=0, rng=random.Random(0), max_tokens=4096)
    spread = np.std([1.0, 0.0, 0.6, 0.4], ddof=1) + 1e-4
    found = [sample.advantage for sample in batch.parts[0].samples]
    assert found == pytest.approx([0.5 / spread, -0.5 / spread, 0.1 / spread, -0.1 / spread])


def test_a_success_counts_less_the_longer_it_took():
    rewards = np.array([1.0, 1.0, 0.0, 0.5])
    found = shortest_path_rewards(rewards, [4, 8, 2, 5], 1.0)
    assert found.tolist() == pytest.approx([1.0, 0.5, 0.0, 0.4])  # the failure's 2 steps are no path
    assert shortest_path_rewards(rewards, [4, 8, 2, 5], 0.5).tolist() == pytest.approx([1.0, 0.75, 0.0, 0.45])
    assert shortest_path_rewards(rewards, [4, 8, 2, 5], 0.0) is rewards


def test_a_group_of_successes_gets_a_signal_from_their_lengths(make_group, collator):
    group = make_group((1.0, 2, DONE), (1.0, 4, DONE))
    batch = build(group, collator, shortest_path=0.5)
    assert batch.metrics["reward"] == 0.875
    assert batch.parts[0].samples[0].advantage > 0 > batch.parts[0].samples[-1].advantage


# --- credit by equal screens ------------------------------------------------------------------------------------


def test_steps_before_the_same_screen_are_compared():
    """a-b succeeded, a-a failed: at a the returns are 0.5, 0 and 0; at b one was alone."""
    anchors, returns = [["a", "b"], ["a", "a"]], [np.array([0.5, 1.0]), np.array([0.0, 0.0])]
    plain = step_advantages(anchors, returns, scaled=False)
    assert [values.tolist() for values in plain] == [[pytest.approx(1 / 3), 0.0], [pytest.approx(-1 / 6)] * 2]
    scaled = step_advantages(anchors, returns, scaled=True)
    assert scaled[0][0] == pytest.approx((1 / 3) / (np.std([0.5, 0, 0], ddof=1) + 1e-6))


def test_equal_screens_are_those_but_for_pointer_and_clock():
    screen = np.random.default_rng(0).integers(0, 256, (100, 200, 3), dtype=np.uint8)
    other = screen.copy()
    other[20:30, 40:50] = 255  # the pointer at (45, 25) of this screen, at (90, 50) of one twice as large
    other[0:10, 150:200] = 7  # a clock
    clock = [(150, 0, 50, 10)]

    def name(image, at=(45, 25), pointer=8, masked=clock, size=(0, 0)):
        return anchor(image, size, at, pointer, masked)

    assert name(screen) == name(other)
    assert name(screen, masked=()) != name(other, masked=())
    assert name(screen, pointer=0) != name(other, pointer=0)
    assert name(screen, (90, 50), 16, [(300, 0, 100, 20)], (400, 200)) == name(
        other, (90, 50), 16, [(300, 0, 100, 20)], (400, 200)
    )
    assert name(screen, at=(0, 0)) != name(other, at=(0, 0))


def test_the_pointer_is_where_the_last_action_left_it():
    drag = Step(actions=({"kind": "drag", "path": ((1, 2), (3, 4))}, {"kind": "type", "text": "a"}))
    assert pointer_after(drag, None) == (3, 4)
    assert pointer_after(Step(actions=({"kind": "click", "x": None, "y": None},)), (5, 6)) == (5, 6)


def test_the_advantage_by_equal_screens_in_a_batch(make_prompt, tokens, screens, collator, make_config):
    """Two rollouts from one screen, of which one goes on to another and succeeds."""
    first, second = list(screens)[:2]
    response = tuple(tokens.response("Action: wait()"))

    def step(image: str) -> Step:
        return Step(make_prompt("Click", image), (image,), response, (-1.0,) * len(response))

    trajectories = tuple(
        Trajectory("t", 0, "Click", "0", f"{number}", "run", "g", terminal=DONE, score=score,
                   steps=tuple(step(image) for image in images))
        for number, (score, images) in enumerate([(1.0, (first, second)), (0.0, (first, first))])
    )  # fmt: skip
    config = make_config(
        advantage="equal_screens", scale_rewards="none", advantage_options={"gamma": 0.5, "step_weight": 2.0}
    )
    assert config.make_advantage() == EqualScreensAdvantage("none", 0.5, 2.0)
    (part,) = build(Group("g", "t", trajectories), collator, advantage=config.make_advantage()).parts
    found = [sample.advantage for sample in part.samples]
    assert found == pytest.approx([0.5 + 2 / 3, 0.5, -0.5 - 1 / 3, -0.5 - 1 / 3])


# --- the reference that follows ---------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_reference_follows_the_policy_and_survives_a_restart(recorded, model_dir, make_config, tmp_path):
    options = {
        "beta": 0.1, "ref_model_mixup_alpha": 0.25, "ref_model_sync_steps": 2,
        "groups_per_step": 1, "save_steps": 2, "optim": "sgd", "learning_rate": 0.5,
    }  # fmt: skip
    with open_run(copy_run(recorded, tmp_path / "run")) as data:
        trainer = DartGRPOTrainer(model_dir, make_config(max_steps=2, **options), data)
        before = weights(trainer.ref_model)
        trainer.run()
        mixed = 0.25 * weights(trainer.model) + 0.75 * before
        torch.testing.assert_close(weights(trainer.ref_model), mixed)
        assert not torch.equal(mixed, before)
        again = DartGRPOTrainer(model_dir, make_config(max_steps=3, **options), data)
        again.run()
        torch.testing.assert_close(weights(again.ref_model), mixed)
        assert (tmp_path / "trainer" / "checkpoint-3" / REFERENCE_FILE).is_file()


def test_a_state_without_its_reference_is_refused(recorded, model_dir, make_config, tmp_path):
    options = {"beta": 0.1, "groups_per_step": 1, "save_steps": 1}
    with open_run(copy_run(recorded, tmp_path / "run")) as data:
        DartGRPOTrainer(model_dir, make_config(max_steps=1, **options), data).run()
        following = make_config(max_steps=2, ref_model_sync_steps=2, **options)
        with pytest.raises(TrainingError, match="was saved without ref_model_sync_steps"):
            DartGRPOTrainer(model_dir, following, data).run()


@pytest.mark.parametrize("options", [{"beta": 0.0}, {"beta": 0.1, "use_peft": True}], ids=str)
def test_a_reference_that_is_not_there_cannot_follow(make_config, options):
    with pytest.raises(ValueError, match="ref_model_sync_steps=9 moves a reference model of its own, which does not"):
        make_config(ref_model_sync_steps=9, **options)


# --- fp16 -------------------------------------------------------------------------------------------------------


def test_a_gradient_that_overflows_in_fp16_is_the_scalers_business(tmp_path):
    """The scaler leaves the step out and lowers its scale; without one it is a bad step."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**16)
    judge = BadSteps(3, tmp_path, Ranks())
    for overflows in (True, False):
        optimizer.zero_grad()
        loss = (weight * 3.0).sum()
        scaler.scale(loss).backward()
        if overflows:
            weight.grad[0] = torch.inf
        assert judge.passes(loss, [weight], scaled=True) and judge.passes(loss, [weight]) is not overflows
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 2.0**15
        assert torch.equal(weight.detach(), torch.ones(2) - (0.0 if overflows else 0.3))
    assert not judge.passes(torch.tensor(torch.nan), [weight], scaled=True)

"""What the optimizer steps on a lease run, and what they leave out: mini-batches, the cap, steps that were dropped."""

from __future__ import annotations

import contextlib
import logging
import random
import uuid
from collections import Counter
from dataclasses import replace

import pytest
import torch

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_gym.core.outcomes import TerminalState
from dart_train.core.metrics_log import MetricsLog, read_metrics
from dart_train.data.manager.leasing import Group
from dart_train.trainer.batches.collator import Sample
from dart_train.trainer.batches.optimizer_batch import BatchSettings, build_batch
from dart_train.trainer.grpo_trainer import DartGRPOTrainer

pytestmark = pytest.mark.train

PLAIN = {
    "optim": "sgd",
    "learning_rate": 0.1,
    "max_steps": 1,
    "share_prompts": False,
    "pack_rows": False,
    "micro_batch_tokens": 64,
}


def weights(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


@pytest.fixture
def record(data, make_prompt, tokens, screens):
    """Records a group of four trajectories of two steps; the engine recorded these entropies, or none."""

    def make(key: str, entropies: tuple[float | None, ...] = (None,) * 8) -> None:
        image = next(iter(screens))
        values = iter(entropies)
        for number, reward in enumerate((1.0, 0.0, 0.0, 1.0)):
            steps = []
            for turn in range(2):
                response = tuple(tokens.response(f"Action: click(start_box='({number},{turn})')"))
                prompt = make_prompt(f"Click {key} {number} {turn}", image)
                logprobs = (-6.0,) * len(response)
                steps.append(Step(prompt, (image,), response, logprobs, entropy=next(values)))
            trajectory = Trajectory(
                "fake/click", 0, "Click", "0" * 16, uuid.uuid4().hex, "run", key, terminal=TerminalState.DONE,
                score=reward, steps=tuple(steps),
            )  # fmt: skip
            data.record(trajectory, {image: screens[image]})

    return make


@pytest.fixture
def run(data, make_config, model_dir, tmp_path):
    """Trains, and returns weights, metrics, and how many rows ran (without a gradient, with one)."""

    def train(name: str, **options):
        log = MetricsLog(tmp_path / name / "metrics.jsonl")
        config = make_config(output_dir=str(tmp_path / name / "trainer"), **(PLAIN | options))
        trainer = DartGRPOTrainer(model_dir, config, data, metrics=log)
        ran: Counter[bool] = Counter()

        def count(module, args, kwargs):
            ran.update({torch.is_grad_enabled(): len(kwargs["inputs_embeds"])})

        def step(*args, inner=trainer.steps.run):
            with contextlib.ExitStack() as hooks:
                for model in filter(None, (trainer.model, trainer.ref_model)):
                    text = model.model.language_model
                    hooks.enter_context(text.register_forward_pre_hook(count, with_kwargs=True))
                inner(*args)

        trainer.steps.run = step  # not where a version is published: its fingerprint takes passes too
        trainer.run()
        log.close()
        return weights(trainer.model), list(read_metrics(log.path)), (ran[False], ran[True])

    return train


@pytest.mark.parametrize(("options", "without"), [({}, 16), ({"old_logprobs": "recompute", "beta": 0.1}, 24)], ids=str)
def test_steps_that_the_selection_drops_are_not_run_again(record, run, data, options, without):
    """The same weights and numbers as where an entropy bonus, however small, has all steps run; the reference too."""
    shared = {"groups_per_step": 2, "top_entropy_quantile": 0.5, **options}
    record("a"), record("b")
    few, (short,), ran = run("few", **shared)
    data.resume("trainer", 0)  # as if nothing had been trained: the same groups again
    many, (whole,), all_ran = run("all", **shared, entropy_coef=1e-12)
    assert ran == (without, 8) and all_ran == (16 + 2 * (without - 16), 16)
    torch.testing.assert_close(few, many, atol=1e-7, rtol=1e-6)
    for name in ("loss", "entropy", "num_tokens", "step_entropy_kept", "grad_norm", "batch/samples"):
        assert short[name] == pytest.approx(whole[name], rel=1e-5, abs=1e-7), name


def test_recorded_entropies_save_the_pass(record, run):
    high = tuple(float(step % 2) for step in range(8))
    record("a", high), record("b", high)
    _, (row,), ran = run("recorded", groups_per_step=2, top_entropy_quantile=0.5, recorded_entropies=True)
    assert ran == (0, 8) and row["step_entropy_kept"] == 0.5


def test_a_lease_without_all_recorded_entropies_takes_the_pass(record, run):
    record("a", (1.0,) * 8), record("b", (1.0,) * 7 + (None,))
    _, _, ran = run("mixed", groups_per_step=2, top_entropy_quantile=0.5, recorded_entropies=True)
    assert ran == (16, 8)


def test_without_a_kl_term_no_reference_runs(record, run):
    record("a")
    _, (row,), ran = run("none", groups_per_step=1, beta=0.0)
    assert ran == (0, 8) and "kl" not in row


@pytest.mark.thorough
def test_a_kl_term_on_a_schedule_has_the_reference_run_in_its_steps_only(record, run, data):
    """And weighs as much there as all that it stands for."""
    record("a"), record("b"), record("c")
    _, rows, ran = run("spaced", groups_per_step=1, beta=0.1, kl_every=2, max_steps=3)
    assert ran == (2 * 8, 3 * 8) and ["kl" in row for row in rows] == [True, False, True]
    data.resume("trainer", 0)  # the same groups again
    first, (row,), _ = run("first", groups_per_step=1, beta=0.1, kl_every=2)
    data.resume("trainer", 0)
    double, (other,), _ = run("double", groups_per_step=1, beta=0.2)
    assert row["loss"] == pytest.approx(other["loss"], abs=1e-7)
    torch.testing.assert_close(first, double)


def test_pi_old_is_kept_from_the_first_pass(record, run):
    """Two passes over a lease need no third one: before the first update pi is pi_old."""
    record("a")
    _, rows, ran = run("kept", groups_per_step=1, num_iterations=2, old_logprobs="recompute", max_steps=2)
    assert ran == (0, 16)
    assert rows[0]["gap/staleness/max"] == 0.0 < rows[1]["gap/staleness/max"]


def test_each_mini_batch_takes_a_step_and_the_clip_acts_from_the_second_on(record, run, data):
    found = []
    for epsilon in (0.2, 1e-6):
        record(f"a{epsilon}"), record(f"b{epsilon}")
        options = {"mini_batches": 2, "old_logprobs": "recompute", "epsilon": epsilon, "epsilon_high": epsilon}
        _, rows, ran = run(f"{epsilon}", groups_per_step=2, max_steps=2, publish_steps=2, **options)
        found.append(rows)
        assert ran == (8, 16)  # pi_old of the second half, then a step on each
        assert [row["num_tokens"] for row in rows] == [sum(row["num_tokens"] for row in rows) / 2] * 2
    wide, narrow = found
    assert wide[0]["clip_ratio/region_mean"] == narrow[0]["clip_ratio/region_mean"] == 0.0
    assert wide[1]["gap/staleness/max"] > 0 and narrow[1]["clip_ratio/region_mean"] > 0.1
    assert abs(narrow[1]["grad_norm"] - wide[1]["grad_norm"]) > 1e-3
    assert [row.version for row in data.checkpoints()][:2] == [3, 2]  # one version for each lease, one resumed


def test_mini_batches_part_a_lease_by_whole_trajectories(collator, make_prompt, tokens, screens):
    image = next(iter(screens))
    response = tuple(tokens.response("Action: wait()"))
    step = Step(make_prompt("Click", image), (image,), response, (-1.0,) * len(response))
    trajectories = tuple(
        Trajectory("t", 0, "Click", "0", f"{number}", "run", "g", terminal=TerminalState.DONE, score=float(number % 2),
                   steps=(step,) * length)
        for number, length in enumerate((5, 4, 3, 2, 2))
    )  # fmt: skip
    settings = BatchSettings(mini_batches=2)
    batch = build_batch(
        [Group("g", "t", trajectories)], collator, settings, version=0, rng=random.Random(0), max_tokens=4096
    )
    parts = [Counter(sample.trajectory for sample in part.samples) for part in batch.parts]
    assert parts == [{0: 5, 3: 2, 4: 2}, {1: 4, 2: 3}]  # the longest to the part that has least
    assert [part.normalizer.samples for part in batch.parts] == [sum(part.values()) for part in parts]


def test_a_lease_of_too_many_steps_is_thinned_at_random(collator, make_prompt, tokens, screens):
    image = next(iter(screens))
    response = tuple(tokens.response("Action: wait()"))
    step = Step(make_prompt("Click", image), (image,), response, (-1.0,) * len(response))
    trajectories = tuple(
        Trajectory("t", 0, "Click", "0", f"{number}", "run", "g", terminal=TerminalState.DONE, score=float(number % 2),
                   steps=(step,) * 10)
        for number in range(4)
    )  # fmt: skip
    drawn = []
    for seed in (0, 0, 1):
        batch = build_batch(
            [Group("g", "t", trajectories)], collator, BatchSettings(max_samples=12), version=0,
            rng=random.Random(seed), max_tokens=4096,
        )  # fmt: skip
        assert len(batch.parts[0].samples) == batch.parts[0].normalizer.samples == 12
        assert batch.metrics["batch/capped"] == 28.0
        drawn.append([sample.trajectory for sample in batch.parts[0].samples])
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"epsilon": 0.1}, True), ({}, False), ({"epsilon": 0.1, "old_logprobs": "behaviour"}, False),
        ({"epsilon": 0.1, "mini_batches": 2, "old_logprobs": "recompute"}, False),
    ],
)  # fmt: skip
def test_a_clip_that_cannot_act_is_said(data, make_config, model_dir, caplog, options, warned):
    with caplog.at_level(logging.WARNING):
        DartGRPOTrainer(model_dir, make_config(**options), data)
    assert ("epsilon, epsilon_high and delta change nothing here" in caplog.text) is warned


def test_mini_batches_need_the_policy_before_them(make_config):
    with pytest.raises(ValueError, match="mini_batches=2 needs the policy before the first update on a lease"):
        make_config(mini_batches=2)
    with pytest.raises(ValueError, match="recorded_entropies are means of steps"):
        make_config(recorded_entropies=True, entropy_mask_level="token")
    with pytest.raises(ValueError, match="kl_every=4 says when the KL term is there"):
        make_config(beta=0.0, kl_every=4)


def test_a_step_of_nothing_changes_nothing(record, data, make_config, model_dir):
    """Five mini-batches of four trajectories: for the fifth nothing is left, and not even the weights decay."""
    record("a")
    options = {"groups_per_step": 1, "mini_batches": 5, "old_logprobs": "recompute", "max_steps": 5, "publish_steps": 5}
    seen = []

    class Watching(DartGRPOTrainer):
        def end_step(self, control):
            seen.append((weights(self.model), self.steps.empty))
            super().end_step(control)

    config = make_config(**(PLAIN | options | {"weight_decay": 0.5, "optim": "adamw_torch"}))
    Watching(model_dir, config, data).run()
    assert [empty for _, empty in seen] == [False] * 4 + [True]
    assert torch.equal(seen[4][0], seen[3][0]) and not torch.equal(seen[3][0], seen[2][0])


def test_rehearsal_takes_steps_of_its_own_behind_those_of_the_groups(record, run):
    """It is dealt out among all three steps; the two last ones run nothing else, and need no pass beforehand."""
    record("a")
    options = {"supervised_coef": 0.5, "self_imitation_rows": 4, "rehearsal_steps": 2, "old_logprobs": "recompute"}
    _, rows, (scored, trained) = run("behind", groups_per_step=1, max_steps=3, publish_steps=3, **options)
    assert scored == 0 and [row["version"] for row in rows] == [0.0, 0.0, 1.0]
    assert ["entropy" in row for row in rows] == [True, False, False]
    assert [row["grad_norm"] > 0 for row in rows[1:]] == ["supervised_loss" in row for row in rows[1:]]
    assert any("supervised_loss" in row for row in rows) and trained <= 8 + 4 + 2, (
        "8 steps, 4 rehearsed, 2 that fill up"
    )


def test_the_groups_parts_are_the_same_with_rehearsal_behind_them(record, data, collator):
    record("a"), record("b")
    groups = data.lease(2, "trainer", at_least=2).groups
    shown = [replace(Sample.from_step(groups[0].trajectories[0].steps[0]), trajectory=number) for number in range(6)]
    options = {"version": 0, "rng": random.Random(0), "max_tokens": 64, "demonstrations": shown}
    plain = build_batch(groups, collator, BatchSettings(mini_batches=2), **(options | {"demonstrations": ()}))
    batch = build_batch(groups, collator, BatchSettings(mini_batches=2, rehearsal_steps=4), **options)
    assert [part.rehearsal for part in batch.parts] == [False] * 2 + [True] * 4
    assert [sum(sample.supervised for sample in part.samples) for part in batch.parts] == [1] * 6
    assert all(sample.supervised for part in batch.rehearsed for sample in part.samples)
    for part, alone in zip(batch.reinforced, plain.parts, strict=True):
        assert [one for one in part.samples if not one.supervised] == alone.samples
        assert part.normalizer.tokens == alone.normalizer.tokens


def test_neither_guard_nor_alarms_take_a_leases_numbers_again_for_its_rehearsal(record, data, make_config, model_dir):
    record("a")
    options = {"supervised_coef": 0.5, "self_imitation_rows": 4, "rehearsal_steps": 2, "old_logprobs": "recompute"}
    trainer = DartGRPOTrainer(model_dir, make_config(groups_per_step=1, **(PLAIN | options | {"max_steps": 3})), data)
    looked: list[str] = []
    for name in ("guard", "alarms"):
        watch = getattr(trainer, name)

        def look(report, name=name, inner=watch.look):
            looked.append(name)
            return inner(report)

        watch.look = look
    trainer.run()
    assert trainer.state.global_step == 3 and looked == ["guard", "alarms"]


@pytest.mark.parametrize("level", ["step", "token"])
def test_rehearsal_takes_no_part_in_the_selection_by_entropy(record, run, level):
    record("a")
    options = {"supervised_coef": 0.5, "self_imitation_rows": 4, "rehearsal_steps": 2}
    chosen = {"top_entropy_quantile": 0.5, "entropy_mask_level": level}
    _, rows, (scored, _) = run(level, groups_per_step=1, max_steps=3, publish_steps=3, **options, **chosen)
    assert 8 <= scored <= 8 + 2, "the lease's own steps, and the episode that is rehearsed beside them"
    assert ["entropy" in row for row in rows] == [True, False, False]
    assert rows[0]["step_entropy_kept" if level == "step" else "token_entropy_kept"] == pytest.approx(0.5, abs=0.05)
    assert sum("supervised_loss" in row for row in rows) >= 1

"""The trainer on recorded groups, with the real data manager and a tiny model."""

from __future__ import annotations

import logging
import math
import time

import pytest
import torch

from dart_agent.models.model_tokens import ModelTokens
from dart_train.core.fingerprint import IMAGE_SIZE
from dart_train.core.metrics_log import MetricsLog, read_metrics
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.batches import lease_source
from dart_train.trainer.grpo_trainer import DartGRPOTrainer, load_model
from dart_train.trainer.weights import checkpoint

pytestmark = pytest.mark.train


def weights(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


def counted(data) -> dict[str, int]:
    """How many trajectories are in each state."""
    return {state: number for state, number in data.counts().items() if number}


@pytest.fixture
def log(tmp_path):
    log = MetricsLog(tmp_path / "metrics" / "trainer.jsonl")
    yield log
    log.close()


def test_trains_publishes_and_commits(data, record_group, make_config, model_dir, tmp_path, log):
    for key in "abcde":
        record_group(key)
    trainer = DartGRPOTrainer(model_dir, make_config(), data, metrics=log)
    before = weights(trainer.model)
    trainer.run()
    assert not torch.equal(weights(trainer.model), before)
    assert counted(data) == {"trained": 16, "recorded": 4}
    assert [(row.version, row.source) for row in data.checkpoints()] == [
        (2, "training"), (1, "training"), (0, "initial"),
    ]  # fmt: skip
    newest = data.newest_checkpoint()
    assert newest is not None
    assert torch.equal(weights(load_model(newest.path)), weights(trainer.model))
    assert ModelTokens.load(newest.path) == ModelTokens.load(model_dir)
    rows = list(read_metrics(log.path))
    assert [(row["step"], row["version"]) for row in rows] == [(1, 1), (2, 2)]
    names = (
        "loss reward reward_std frac_reward_zero_std entropy clip_ratio/low_mean staleness/mean staleness/max "
        "sampling/importance_sampling_ratio/mean sampling/sampling_logp_difference/max perf/wait_s perf/step_s "
        "step_entropy_kept grad_norm learning_rate num_tokens"
    )
    assert rows[0].keys() >= set(names.split())
    assert rows[1]["staleness/max"] == 1.0  # sampled by version 0, trained by version 1
    assert rows[0]["reward"] == 0.5


def test_everything_at_once(data, record_group, make_config, model_dir, log):
    """All options that cost an extra pass: reference, entropy selection, two updates per lease, few tokens."""
    for key in "abcd":
        record_group(key)
    config = make_config(
        max_steps=4, num_iterations=2, old_logprobs="recompute", beta=0.1, top_entropy_quantile=0.5,
        entropy_coef=0.01, micro_batch_tokens=64, share_prompts=False, importance_sampling_level="sequence",
        publish_steps=3, freeze_vision=True,
    )  # fmt: skip
    trainer = DartGRPOTrainer(model_dir, config, data, metrics=log)
    vision = trainer.model.model.visual.patch_embed.proj.weight.clone()
    trainer.run()
    rows = list(read_metrics(log.path))
    assert len(rows) == 4 and counted(data) == {"trained": 16}
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-6) and rows[3]["kl"] > 0
    assert rows[0]["batch/micro_batches"] > 1
    assert rows[0]["step_entropy_kept"] == 0.5
    assert torch.equal(trainer.model.model.visual.patch_embed.proj.weight, vision)
    assert [row.version for row in data.checkpoints()] == [2, 1, 0]  # after three updates, and the rest at the end


def test_every_correction_and_selection_at_once(data, record_group, make_config, model_dir, log):
    for key in "ab":
        record_group(key)
    config = make_config(
        max_steps=1, top_entropy_quantile=0.4, entropy_mask_level="token", entropy_coef=0.01, tis_mode="token_mask",
        tis_clip_min=1e-6, tis_clip_max=2.0, geometric_clip_min=0.0, geometric_clip_max=1.0, kl_estimator="k2",
        beta=0.1, advantage="rloo", balance_trajectories=True, loss_type="cispo", epsilon_high=5.0,
        temperature=2.0,
    )  # fmt: skip
    DartGRPOTrainer(model_dir, config, data, metrics=log).run()
    (row,) = read_metrics(log.path)
    # The record says -1 per token, an untrained model is far below: the geometric mean is small, and kept.
    assert 0.3 < row["token_entropy_kept"] < 0.7 and row["cispo_clip_ratio"] == 0.0
    assert row["gap/engine/mean"] > 3 and row["gap/staleness/mean"] == 0.0
    assert 0 < row["sampling/effective_sample_share"] <= 1


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"freeze_vision": True}, {"gradient_checkpointing": True}], ids=str)
def test_images_run_once_a_lease_and_nothing_changes(
    data, record_group, make_config, model_dir, tmp_path, monkeypatch, options
):
    """Features of the whole lease against the tower in every micro-batch: the same weights after two steps."""
    found = []
    for number, cached in enumerate((True, False)):
        for key in "abcd":
            record_group(f"{key}{number}")
        config = make_config(
            max_steps=2, beta=0.1, top_entropy_quantile=0.5, micro_batch_tokens=60, share_prompts=False,
            image_features_mb=4096 if cached else 0, output_dir=str(tmp_path / str(number) / "trainer"), **options,
        )  # fmt: skip
        trainer = DartGRPOTrainer(model_dir, config, data)
        images: list[int] = []
        size = trainer.steps.collator.patches.vision.resized(*IMAGE_SIZE)
        trainer.model.model.visual.register_forward_pre_hook(
            lambda module, args, kwargs, images=images, own=[1, size[0] // 14, size[1] // 14]: images.append(
                sum(grid != own for grid in kwargs["grid_thw"].tolist())  # not that of the published fingerprints
            ),
            with_kwargs=True,
        )
        trainer.run()
        found.append((weights(trainer.model), sum(images)))
    (cached_weights, cached_images), (plain_weights, plain_images) = found
    torch.testing.assert_close(cached_weights, plain_weights, atol=1e-5, rtol=1e-4)
    # Two leases of one image: once for all passes and rows, and once more for a gradient; else in four rows, and again
    # in the two that the selection keeps.
    assert (cached_images, plain_images) == (2 if options.get("freeze_vision") else 4, 12)


@pytest.mark.thorough
def test_first_iteration_of_a_recomputed_policy_equals_the_current_one(
    data, record_group, make_config, model_dir, tmp_path
):
    """With one update the ratio is 1 whichever way; the clip cannot act, so the gradients are equal."""
    gradients = []
    for number, old in enumerate(("current", "recompute")):
        for key in "ab":
            record_group(f"{key}{number}")
        config = make_config(old_logprobs=old, max_steps=1, output_dir=str(tmp_path / old / "trainer"))
        trainer = DartGRPOTrainer(model_dir, config, data)
        trainer.run()
        gradients.append(weights(trainer.model))
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-5)


def test_a_step_that_is_not_finite_changes_nothing(data, record_group, make_config, model_dir, monkeypatch, log):
    for key in "abcdef":
        record_group(key)
    trainer = DartGRPOTrainer(model_dir, make_config(max_steps=3, weight_decay=0.1), data, metrics=log)
    seen, compute = [], trainer.steps.loss

    def poisoned(micro):
        seen.append(weights(trainer.model))
        loss = compute(micro)
        return loss * math.nan if len(seen) == 2 else loss

    monkeypatch.setattr(trainer.steps, "loss", poisoned)
    trainer.run()
    assert torch.equal(seen[1], seen[2])
    assert not torch.equal(seen[0], seen[1])
    assert trainer.bad_steps.skipped == 1
    assert weights(trainer.model).isfinite().all()
    assert data.newest_checkpoint().version == 2
    assert [row["skipped_steps"] for row in read_metrics(log.path)] == [0, 1, 1]


def test_three_bad_steps_in_a_row_end_the_run(data, record_group, make_config, model_dir):
    for key in "abcdefgh":
        record_group(key)
    trainer = DartGRPOTrainer(model_dir, make_config(max_steps=9), data)
    before = weights(trainer.model)
    trainer.model.lm_head.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(TrainingError, match="3 steps in a row"):
        trainer.run()
    assert torch.equal(weights(trainer.model), before)
    assert counted(data) == {"trained": 8 + 8, "recorded": 16}  # the third lease came back
    assert data.newest_checkpoint().version == 0


def test_weights_that_are_not_finite_are_never_published(data, make_config, model_dir, tmp_path):
    model = load_model(model_dir)
    with torch.no_grad():
        model.lm_head.weight[0, 0] = math.nan
    trainer = DartGRPOTrainer(model, make_config(), data, model_dir=model_dir)
    with pytest.raises(TrainingError, match=r"weight lm_head\.weight is not finite"):
        trainer.run()
    assert data.newest_checkpoint() is None
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.thorough
def test_resumes_where_it_was(data, record_group, make_config, model_dir, tmp_path, log):
    for key in "abcdefgh":
        record_group(key)
    first = DartGRPOTrainer(model_dir, make_config(max_steps=2, save_steps=1), data, metrics=log)
    first.run()
    second = DartGRPOTrainer(model_dir, make_config(max_steps=4, save_steps=1), data, metrics=log)
    second.run()
    assert [row["step"] for row in read_metrics(log.path)] == [1, 2, 3, 4]
    assert [row.version for row in data.checkpoints()] == [4, 3, 2, 1, 0]
    assert counted(data) == {"trained": 32}
    moments = next(iter(second.optimizer.state.values()))
    assert moments["step"] == 4
    third = DartGRPOTrainer(model_dir, make_config(max_steps=4, save_steps=1), data)
    assert third.run().global_step == 4  # nothing left to do
    assert torch.equal(weights(third.model), weights(second.model))


@pytest.mark.thorough
def test_a_run_in_two_parts_equals_one_in_one(data, record_group, make_config, model_dir, tmp_path):
    for key in "abcdefgh":
        record_group(key)
    for steps in (1, 2):
        parts = DartGRPOTrainer(model_dir, make_config(max_steps=steps, save_steps=1), data)
        parts.run()
    for key in "ABCD":
        record_group(key)
    data.resume("nobody", None)
    for lease in iter(lambda: data.lease(2, "skip"), None):  # leave what is as the first four groups were
        lease.commit(0)
        break
    whole_config = make_config(max_steps=2, output_dir=str(tmp_path / "whole" / "trainer"))
    whole = DartGRPOTrainer(load_model(model_dir), whole_config, data, model_dir=model_dir)
    whole.run()
    torch.testing.assert_close(weights(parts.model), weights(whole.model), atol=1e-6, rtol=1e-5)


def test_a_version_published_after_the_saved_state_is_followed_by_a_newer_one(
    data, record_group, make_config, model_dir, tmp_path
):
    """Killed between a publication and the next save: the engines serve v2, the state knows of v1."""
    for key in "abcd":
        record_group(key)
    DartGRPOTrainer(model_dir, make_config(max_steps=1), data).run()
    newest = data.newest_checkpoint()
    data.publish(2, checkpoint.write_model(load_model(newest.path), tmp_path / "checkpoints" / "v000002", model_dir))
    trainer = DartGRPOTrainer(model_dir, make_config(max_steps=2), data)
    trainer.run()
    assert [(row.version, row.source) for row in data.checkpoints()][:2] == [(4, "training"), (3, "resumed")]


def test_starts_from_the_version_that_is_published(data, record_group, make_config, model_dir, tmp_path):
    record_group("a"), record_group("b")
    data.publish(0, model_dir, "initial")
    data.publish(1, model_dir, "warmup")
    DartGRPOTrainer(model_dir, make_config(max_steps=1), data).run()
    assert [row.version for row in data.checkpoints()] == [2, 1, 0]


@pytest.mark.thorough
def test_old_versions_go_and_the_warm_start_stays(data, record_group, make_config, model_dir, tmp_path):
    root = tmp_path / "checkpoints"
    for version, source in enumerate(("initial", "warmup")):
        path = checkpoint.write_model(load_model(model_dir), checkpoint.version_dir(root, version), model_dir)
        data.publish(version, path, source)
    for number, steps in enumerate((3, 6)):  # two lives: what the first published is the second's to delete
        for _ in range(3):
            record_group(f"g{len(list(data.trajectories()))}", version=2 * number + 2)
        config = make_config(groups_per_step=1, max_steps=steps, keep_published=2, keep_published_s=0.0)
        DartGRPOTrainer(root / "v000001", config, data).run()
    left = sorted(int(path.name[1:]) for path in root.iterdir())
    assert left == [0, 1, 4, 5, 6, 7]  # v4 was seen in the data: anything newer may be about to be loaded
    status = {row.version: str(row.status) for row in data.checkpoints()}
    assert status[2].lower() == status[3].lower() == "deprecated"


@pytest.mark.parametrize("options", [{"bf16": True}, {"activation_checkpointing": True}, {"beta": 0.1}])
def test_options_of_large_models(data, record_group, make_config, model_dir, options, log):
    record_group("a"), record_group("b")
    trainer = DartGRPOTrainer(model_dir, make_config(max_steps=1, **options), data, metrics=log)
    before = weights(trainer.model)
    trainer.run()
    assert not torch.equal(weights(trainer.model), before)
    (row,) = read_metrics(log.path)
    assert row["entropy"] == pytest.approx(math.log(937 - 7), abs=0.1)  # an untrained model, whatever the precision


def test_stops_when_told_and_keeps_its_state(data, record_group, make_config, model_dir, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(lease_source, "REASON_INTERVAL_S", 0.2)
    monkeypatch.setattr(lease_source, "POLL_S", 0.05)
    for key in "abc":
        record_group(key)
    asked = []

    def stop() -> bool:
        asked.append(None)
        return len(asked) > 8

    config = make_config(max_steps=100, save_steps=100)
    trainer = DartGRPOTrainer(model_dir, config, data, stop=stop)
    with caplog.at_level(logging.INFO, logger="dart_train"):
        trainer.run()
    assert trainer.state.global_step == 1
    assert counted(data) == {"trained": 8, "recorded": 4}
    assert "waiting for data since" in caplog.text
    point = checkpoint.resume_point(config.output_dir)
    assert point is not None and (point.step, point.version, point.unpublished) == (1, 1, 0)


def test_fewer_groups_suffice_where_allowed(data, record_group, make_config, model_dir):
    record_group("a")
    DartGRPOTrainer(model_dir, make_config(max_steps=1, min_groups_per_step=1), data).run()
    assert counted(data) == {"trained": 4}


def test_what_an_earlier_life_held_comes_back_at_once(data, record_group, make_config, model_dir):
    record_group("a"), record_group("b")
    assert data.lease(2, "trainer", ttl_s=3600) is not None
    DartGRPOTrainer(model_dir, make_config(max_steps=1), data).run()
    assert counted(data) == {"trained": 8}


def test_a_lease_lost_meanwhile_is_a_warning(data, record_group, make_config, model_dir, caplog, monkeypatch):
    record_group("a"), record_group("b")
    trainer = DartGRPOTrainer(model_dir, make_config(max_steps=1), data)
    finish = trainer.steps.finish

    def slow(*args):
        data.resume("trainer", None)  # as a sweep does when heartbeats stop
        return finish(*args)

    monkeypatch.setattr(trainer.steps, "finish", slow)
    trainer.run()
    assert "lost meanwhile" in caplog.text


def test_a_heartbeat_outlives_the_time_to_live(data, record_group, make_config):
    record_group("a")
    with lease_source.LeaseSource(data, "t", groups=1, at_least=1, ttl_s=1.5, stop=lambda: False) as holder:
        assert holder.take() is not None
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            assert data.sweep().returned_leases == 0
            time.sleep(0.02)  # a sweeper that never pauses would keep the heartbeats out of SQLite
    assert counted(data) == {"recorded": 4}


FOREIGN = [((10**6,), ())] * 4
"""Prompts of another model: no step with them can be trained on."""


def test_a_lease_without_a_step_to_train_on_is_passed_over(data, record_group, make_config, model_dir, log, caplog):
    for key in "abc":
        record_group(key, prompts=FOREIGN if key == "b" else ())
    DartGRPOTrainer(model_dir, make_config(max_steps=2, groups_per_step=1), data, metrics=log).run()
    rows = list(read_metrics(log.path))
    assert [(row["step"], row["skipped_leases"]) for row in rows] == [(1, 0.0), (2, 1.0)]
    assert "lease 2 is passed over (1 in a row): the lease holds no step that can be trained on" in caplog.text
    assert counted(data) == {"trained": 12}, "it does not come back"


def test_leases_that_are_all_like_that_end_the_run(data, record_group, make_config, model_dir):
    for key in "abc":
        record_group(key, prompts=FOREIGN)
    trainer = DartGRPOTrainer(model_dir, make_config(groups_per_step=1, max_bad_steps=2), data)
    with pytest.raises(TrainingError, match="2 leases in a row were passed over: .* recorded with another model"):
        trainer.run()


def test_only_complete_states_are_resumed_from(make_config, data, model_dir, tmp_path):
    trainer = DartGRPOTrainer(model_dir, make_config(), data)
    (tmp_path / "trainer" / "checkpoint-7").mkdir(parents=True)
    with pytest.raises(TrainingError, match="is incomplete"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "trainer" / "checkpoint-7"))
    with pytest.raises(TrainingError, match="no complete state"):
        trainer.train(resume_from_checkpoint=True)


def test_a_loaded_model_needs_its_directory(make_config, data, model_dir):
    with pytest.raises(ValueError, match="model_dir is missing"):
        DartGRPOTrainer(load_model(model_dir), make_config(), data)


@pytest.mark.thorough
def test_tensorboard_gets_the_numbers(data, record_group, make_config, model_dir, tmp_path, monkeypatch):
    record_group("a"), record_group("b")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    DartGRPOTrainer(model_dir, make_config(max_steps=1, report_to="tensorboard"), data).run()
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_a_group_whose_images_are_gone_is_left_out_with_one_message_before_the_step(
    data, record_group, make_config, model_dir, make_prompt, screens, caplog
):
    lost, kept = list(screens)[1:3]
    for key, name in (("a", lost), ("b", kept)):
        record_group(key, prompts=[(make_prompt("Click", name), (name,))] * 4)
    (image,) = data.files.root.rglob(f"{lost}.png")
    image.unlink()
    DartGRPOTrainer(model_dir, make_config(max_steps=1, groups_per_step=1), data).run()
    (said,) = [row.getMessage() for row in caplog.records if "left out" in row.getMessage()]
    assert said.startswith("group a is left out: ") and "damaged or missing (there is no such file)" in said
    assert counted(data) == {"rejected": 4, "trained": 4}

"""What may be chosen beside the loss: adapters, accumulation, demonstrations in the batch, memory, the best state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dart_train.core.metrics_log import MetricsLog, read_metrics
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.grpo_trainer import DartGRPOTrainer, load_model
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.adapters import LoraSettings, add_adapter, merged_weights, without_adapter

pytestmark = pytest.mark.train

LORA = {"use_peft": True, "lora_r": 4, "lora_alpha": 8}
ADAPTER = LoraSettings(r=4, alpha=8)


def weights(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


@pytest.fixture
def log(tmp_path):
    log = MetricsLog(tmp_path / "metrics" / "trainer.jsonl")
    yield log
    log.close()


# --- adapters ---------------------------------------------------------------------------------------------------


def test_an_adapter_begins_alike_in_every_process(model_dir):
    made = []
    for state in (1, 2):
        torch.manual_seed(state)
        made.append(add_adapter(load_model(model_dir), ADAPTER).state_dict())
    torch.testing.assert_close(made[0], made[1], rtol=0, atol=0)


def test_merged_weights_are_the_adapted_model(model_dir, collator, samples, tokens, tmp_path):
    model = add_adapter(load_model(model_dir), ADAPTER)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.05)
    before = weights(model)
    batch = collator(samples)
    expected, _ = response_logprobs(model, batch, tokens.suppressed_ids)
    published = load_model(checkpoint.write_model(model, tmp_path / "v000001", model_dir))
    found, _ = response_logprobs(published, batch, tokens.suppressed_ids)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(weights(model), before)  # nothing was merged in place
    plain, _ = response_logprobs(load_model(model_dir), batch, tokens.suppressed_ids)
    with without_adapter(model) as reference:
        off, _ = response_logprobs(reference, batch, tokens.suppressed_ids)
    torch.testing.assert_close(off, plain, atol=1e-6, rtol=1e-6)
    assert (found - plain).abs().max() > 0.01
    assert merged_weights(load_model(model_dir)) is None


def test_an_adapter_is_trained_published_merged_and_resumed(data, record_group, make_config, model_dir, log, tmp_path):
    for key in "abcdefgh":
        record_group(key)
    options = LORA | {"beta": 0.1, "save_steps": 1, "gradient_checkpointing": True}
    first = DartGRPOTrainer(model_dir, make_config(max_steps=2, **options), data)
    first.run()
    assert first.ref_model is first.model  # no second copy
    base = load_model(model_dir)
    assert torch.equal(first.model.get_base_model().lm_head.weight, base.lm_head.weight)
    names = [name for name, parameter in first.model.named_parameters() if parameter.requires_grad]
    assert names and all("lora_" in name and "visual" not in name for name in names)
    published = load_model(data.newest_checkpoint().path)
    changed = published.model.language_model.layers[0].self_attn.q_proj.weight
    assert not torch.equal(changed, base.model.language_model.layers[0].self_attn.q_proj.weight)
    again = DartGRPOTrainer(model_dir, make_config(max_steps=3, **options), data, metrics=log)
    again.run()
    (row,) = read_metrics(log.path)
    assert row["step"] == 3 and row["kl"] > 0  # goes on from the adapter, not from the base
    assert data.counts()["trained"] == 24


def test_weights_under_an_adapter_may_be_kept_in_half_precision(data, record_group, make_config, model_dir, tmp_path):
    steps = {}
    for dtype in ("float32", "bfloat16"):
        for key in "abcd":
            record_group(f"{key}-{dtype}", (1.0, 0.0, 0.5, 0.0))
        options = LORA | {"frozen_dtype": dtype, "optim": "sgd", "learning_rate": 1.0, "max_steps": 1, "bf16": True}
        trainer = DartGRPOTrainer(model_dir, make_config(output_dir=str(tmp_path / dtype / "trainer"), **options), data)
        started = [item.detach().clone() for item in trainer.model.parameters() if item.requires_grad]
        trainer.run()
        after = [item.detach() for item in trainer.model.parameters() if item.requires_grad]
        steps[dtype] = torch.cat([(new - old).flatten() for new, old in zip(after, started, strict=True)])
        kept = {item.dtype for item in trainer.model.parameters() if not item.requires_grad}
        assert kept == {getattr(torch, dtype)} and {item.dtype for item in after} == {torch.float32}
    alike = torch.nn.functional.cosine_similarity(steps["float32"], steps["bfloat16"], dim=0)
    assert steps["float32"].abs().max() > 0 and alike > 0.98


@pytest.mark.parametrize(
    ("options", "said"),
    [({"frozen_dtype": "bfloat16"}, "without use_peft all are trained"), ({"frozen_dtype": "half"}, "frozen_dtype")],
)
def test_half_precision_is_for_weights_that_are_not_trained(make_config, options, said):
    with pytest.raises(ValueError, match=said):
        make_config(**options)


def test_an_adapter_needs_layers_of_the_model(model_dir, make_config, data):
    with pytest.raises(TrainingError, match="lora_target_modules"):
        DartGRPOTrainer(model_dir, make_config(use_peft=True, lora_target_modules=["nowhere"]), data)


# --- one step in parts ------------------------------------------------------------------------------------------


def trained(data, record_group, model_dir, config, *, prepare=None, **options) -> DartGRPOTrainer:
    for key in "abcd":
        record_group(f"{key}{config.output_dir}"[-100:], (1.0, 0.0, 0.5, 0.0))
    trainer = DartGRPOTrainer(model_dir, config, data, **options)
    if prepare is not None:
        prepare(trainer)
    trainer.run()
    return trainer


def test_accumulation_over_four_calls_gives_the_gradient_of_one(data, record_group, make_config, model_dir, tmp_path):
    found = []
    for parts in (1, 4):
        config = make_config(
            output_dir=str(tmp_path / str(parts) / "trainer"), gradient_accumulation_steps=parts, max_steps=2,
            optim="sgd", learning_rate=0.1, micro_batch_tokens=40, share_prompts=False, top_entropy_quantile=0.5,
            old_logprobs="recompute",
        )  # fmt: skip
        trainer = trained(data, record_group, model_dir, config)
        assert trainer.state.global_step == 2
        found.append(weights(trainer.model))
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-5)
    assert data.counts()["trained"] == 16  # the second one began again from weights that contain nothing


class ShortOfMemory:
    """Lets forward passes above a size fail, as a device does."""

    def __init__(self, trainer: DartGRPOTrainer, most: int) -> None:
        self._compute, self._most, self.failures = trainer.steps.loss, most, 0
        trainer.steps.loss = self

    def __call__(self, micro):
        if micro.input_ids.numel() > self._most:
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self._compute(micro)


@pytest.mark.thorough
def test_a_step_that_does_not_fit_is_made_again_of_smaller_parts(
    data, record_group, make_config, model_dir, tmp_path, log, caplog
):
    shared = {
        "optim": "sgd",
        "learning_rate": 0.1,
        "max_steps": 2,
        "num_iterations": 2,
        "old_logprobs": "recompute",
        "share_prompts": False,
    }
    ample = make_config(output_dir=str(tmp_path / "ample" / "trainer"), **shared)
    expected = weights(trained(data, record_group, model_dir, ample).model)
    config = make_config(output_dir=str(tmp_path / "short" / "trainer"), gradient_accumulation_steps=2, **shared)
    memory: list[ShortOfMemory] = []
    trainer = trained(
        data, record_group, model_dir, config, metrics=log,
        prepare=lambda trainer: memory.append(ShortOfMemory(trainer, 160)),
    )  # fmt: skip
    assert memory[0].failures > 2
    torch.testing.assert_close(weights(trainer.model), expected, atol=1e-6, rtol=1e-5)
    rows = list(read_metrics(log.path))
    assert rows[0]["memory_retries"] == rows[1]["memory_retries"] > 0  # the second step knows
    assert (
        "step 1: out of memory; it is made of smaller ones, micro_batch_tokens is 8192 from now on instead of 16384"
        in caplog.text
    )


@pytest.mark.thorough
def test_rows_of_a_step_that_is_made_again_hold_what_ran_before_and_what_did_not(
    data, record_group, make_config, model_dir, tmp_path
):
    """Memory runs out at the second micro-batch: the cuts move, and pi_old is known of a part of a row's samples."""

    class FailsOnce:
        def __init__(self, trainer: DartGRPOTrainer) -> None:
            self._compute, self.calls = trainer.steps.loss, 0
            trainer.steps.loss = self

        def __call__(self, micro):
            self.calls += 1
            if self.calls == 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return self._compute(micro)

    shared = {"optim": "sgd", "learning_rate": 0.1, "max_steps": 2, "num_iterations": 2, "old_logprobs": "recompute"}
    shared |= {"micro_batch_tokens": 150, "share_prompts": False, "top_entropy_quantile": 1.0}
    ample = make_config(output_dir=str(tmp_path / "ample" / "trainer"), **shared)
    expected = weights(trained(data, record_group, model_dir, ample).model)
    short = make_config(output_dir=str(tmp_path / "short" / "trainer"), **shared)
    memory: list[FailsOnce] = []
    trainer = trained(data, record_group, model_dir, short, prepare=lambda trainer: memory.append(FailsOnce(trainer)))
    assert trainer.steps.memory_retries == 1 and memory[0].calls > 4
    torch.testing.assert_close(weights(trainer.model), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.thorough
def test_a_step_that_never_fits_ends_the_run_with_advice(data, record_group, make_config, model_dir):
    record_group("a"), record_group("b")
    trainer = DartGRPOTrainer(model_dir, make_config(max_steps=1, micro_batch_tokens=256), data)
    ShortOfMemory(trainer, 1)
    with pytest.raises(TrainingError, match=r"out of memory with micro-batches of") as raised:
        trainer.run()
    for words in ("this rank takes", "weights 0.", "MiB", "gradient_checkpointing: true", "larger device"):
        assert words in str(raised.value)
    assert data.counts()["recorded"] == 8 and not data.counts()["leased"]


# --- demonstrations in the batch --------------------------------------------------------------------------------


def test_demonstrations_are_imitated_beside(data, record_group, make_config, model_dir, samples, log, screens):
    for key in "abcdefgh":
        record_group(key)
    data.files.write_images(screens)
    shown = [sample for sample in samples if sample.image_hashes]
    config = make_config(
        max_steps=4, supervised_coef=0.5, supervised_rows=3, learning_rate=3e-3, micro_batch_tokens=128
    )
    DartGRPOTrainer(model_dir, config, data, metrics=log, demonstrations=shown).run()
    rows = list(read_metrics(log.path))
    assert rows[0]["supervised_loss"] == pytest.approx(6.83, abs=0.1)  # log of the vocabulary
    assert rows[-1]["supervised_loss"] < rows[0]["supervised_loss"] - 0.3
    assert rows[0]["batch/samples"] == 8.0  # reinforced ones
    assert rows[0]["loss"] == pytest.approx(0.5 * rows[0]["supervised_loss"], abs=0.05)


def test_own_successes_are_imitated_beside(data, record_group, make_config, model_dir, log, screens):
    for key in "abcdefgh":
        record_group(key)
    config = make_config(max_steps=3, supervised_coef=0.5, self_imitation_rows=2, micro_batch_tokens=128)
    DartGRPOTrainer(model_dir, config, data, metrics=log).run()
    rows = list(read_metrics(log.path))
    assert rows[0]["supervised_loss"] == pytest.approx(6.83, abs=0.1)  # log of the vocabulary
    assert rows[0]["batch/samples"] == 8.0
    assert rows[0]["loss"] == pytest.approx(0.5 * rows[0]["supervised_loss"], abs=0.05)


def test_shuffled_rewards_imitate_no_success(data, record_group, make_config, model_dir, log):
    """A control without rewards would learn from them nevertheless."""
    for key in "abcd":
        record_group(key)
    config = make_config(max_steps=1, supervised_coef=0.5, self_imitation_rows=2, shuffle_rewards=True)
    DartGRPOTrainer(model_dir, config, data, metrics=log).run()
    (row,) = read_metrics(log.path)
    assert "supervised_loss" not in row and row["batch/samples"] == 8.0


def test_answers_of_a_teacher_are_rehearsed(data, record_group, make_config, model_dir, log):
    """The first lease has a group with lessons, and the second one rehearses them."""
    record_group("a", (0.0,) * 4, target_ids=(5, 6))
    for key in "bcd":
        record_group(key)
    config = make_config(
        max_steps=2, groups_per_step=2, teacher_when="failed", teacher_rehearsed_rows=1, micro_batch_tokens=128
    )
    DartGRPOTrainer(model_dir, config, data, metrics=log).run()
    rows = list(read_metrics(log.path))
    assert [row.get("teacher/loss", 0.0) > 1.0 for row in rows] == [True, True]


def test_supervised_coef_needs_demonstrations(data, make_config, model_dir):
    with pytest.raises(ValueError, match="supervised_coef needs demonstrations"):
        DartGRPOTrainer(model_dir, make_config(supervised_coef=0.5), data)


def test_a_callback_of_trl_works(data, record_group, make_config, model_dir):
    from trl import RichProgressCallback

    record_group("a"), record_group("b")
    seen: list[dict] = []

    class Watching(RichProgressCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append(dict(logs))
            super().on_log(args, state, control, logs=logs, **kwargs)

    DartGRPOTrainer(model_dir, make_config(max_steps=1), data, callbacks=[Watching()]).run()
    assert seen[0]["reward"] == 0.5 and "grad_norm" in seen[0]


# --- what is kept -----------------------------------------------------------------------------------------------


def test_states_are_saved_between_leases_only(data, record_group, make_config, model_dir, tmp_path):
    for key in "abcd":
        record_group(key)
    options = {"num_iterations": 2, "old_logprobs": "behaviour", "groups_per_step": 1, "save_total_limit": 5}
    DartGRPOTrainer(model_dir, make_config(max_steps=6, save_steps=3, **options), data).run()
    states = sorted((tmp_path / "trainer").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    points = [checkpoint.read_resume_point(path) for path in states]
    assert [(point.step, point.lease) for point in points] == [(4, 2), (6, 3)]  # the third step was within a lease


def test_the_best_state_and_version_stay(data, record_group, make_config, model_dir, tmp_path):
    rewards = [(1.0, 1.0, 1.0, 0.0)] + [(1.0, 0.0, 0.0, 0.0)] * 5
    for number, values in enumerate(rewards):
        record_group(f"g{number}", values, version=9)  # sampled by a version that is served: old ones may go
    config = make_config(
        max_steps=6, groups_per_step=1, save_steps=1, save_total_limit=3, keep_published=2, keep_published_s=0.0,
        metric_for_best_model="reward", best_window=1,
    )  # fmt: skip
    trainer = DartGRPOTrainer(model_dir, config, data)
    trainer.run()
    assert trainer.state.best_metric == 0.75 and trainer.state.best_global_step == 1
    assert sorted(path.name for path in (tmp_path / "trainer").glob("checkpoint-*")) == [
        "checkpoint-1", "checkpoint-5", "checkpoint-6",
    ]  # fmt: skip
    kept = {row.version for row in data.checkpoints() if str(row.status) == "COMPLETED"}
    assert kept == {0, 1, 5, 6} and trainer.publisher.best == 1
    assert kept == {int(path.name[1:]) for path in (tmp_path / "checkpoints").iterdir()}


def test_the_best_needs_a_place_of_its_own(make_config):
    with pytest.raises(ValueError, match="save_total_limit=2 leaves no room"):
        make_config(metric_for_best_model="reward")


def test_a_version_that_cannot_be_written_is_failed(data, record_group, make_config, model_dir, monkeypatch):
    record_group("a"), record_group("b")
    trainer = DartGRPOTrainer(model_dir, make_config(max_steps=1), data)
    write, seen = checkpoint.companion_files, []

    def full_disk(path: Path) -> list[Path]:
        seen.append([(row.version, str(row.status)) for row in data.checkpoints()])
        if len(seen) == 2:
            raise OSError(28, "No space left on device")
        return write(path)

    monkeypatch.setattr(checkpoint, "companion_files", full_disk)
    with pytest.raises(OSError, match="No space left"):
        trainer.run()
    assert seen == [[(0, "RUNNING")], [(1, "RUNNING"), (0, "COMPLETED")]]
    assert [(row.version, str(row.status)) for row in data.checkpoints()] == [(1, "FAILED"), (0, "COMPLETED")]
    monkeypatch.setattr(checkpoint, "companion_files", write)
    DartGRPOTrainer(model_dir, make_config(max_steps=1), data).run()  # what only that version contained comes back
    newest = data.checkpoints()[0]
    assert (newest.version, str(newest.status), newest.source) == (2, "COMPLETED", "training")
    assert data.counts()["trained"] == 8

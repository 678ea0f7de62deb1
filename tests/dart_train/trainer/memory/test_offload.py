"""Moments and activations in the host's memory: the same training bit by bit, and where the bytes are meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback, modeling_utils

from dart_train.config.run_config import load_config
from dart_train.plan.run_plan import Machine, plan
from dart_train.plan.step_passes import Assumed
from dart_train.preflight.settings_check import settings_problems
from dart_train.trainer.grpo_trainer import DartGRPOTrainer
from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.memory.offload import HostMoments
from dart_train.trainer.memory.rank_memory import Setting, Work, rank_memory
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.settings.grpo_config import DartGRPOConfig
from dart_train.trainer.weights.model_loading import load_model

PAPER = Path(__file__).parents[4] / "configs" / "dart_osworld_7b.yaml"


@pytest.fixture
def train(data, record_group, make_config, model_dir, tmp_path):
    """Trains three steps, with a state after the second, and returns the trainer; another life goes on."""
    for number in range(4):
        record_group(f"g{number}", (1.0, 0.0, 0.1 * number, 0.5))

    def make(name: str, *, again: bool = False, callback: TrainerCallback | None = None, **options: object):
        if not again:
            data.resume("trainer", 0)  # the same groups for each
        shared = {"groups_per_step": 1, "max_steps": 3, "save_steps": 2, "weight_decay": 0.1}
        config = make_config(output_dir=str(tmp_path / name / "trainer"), **(shared | options))
        callbacks = [callback] if callback else []
        trainer = DartGRPOTrainer(
            model_dir, config, data, checkpoints=tmp_path / name / "checkpoints", callbacks=callbacks
        )
        trainer.run()
        return trainer

    return make


def weights(trainer: DartGRPOTrainer) -> torch.Tensor:
    return torch.cat([item.detach().flatten() for item in trainer.model.parameters()])


class Seen(TrainerCallback):
    """Bytes of the optimizer's moments at the beginning of each step."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    def on_step_begin(self, args, state, control, optimizer=None, **more):
        moments = [item for one in optimizer.state.values() for item in one.values() if item.numel() > 1]
        self.bytes.append(sum(item.untyped_storage().nbytes() for item in moments))


@pytest.mark.thorough
@pytest.mark.train
@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({}, id="whole", marks=pytest.mark.slow),
        pytest.param({"use_peft": True, "lora_r": 2, "beta": 0.1}, id="adapter"),
    ],
)
def test_training_with_moments_on_the_host_is_the_same_bit_by_bit(train, extra):
    plain, found = train("plain", **extra), train("offloaded", offload_optimizer=True, **extra)
    assert torch.equal(weights(plain), weights(found))


@pytest.mark.train
def test_gradients_are_the_same_where_layers_keep_their_inputs_elsewhere(
    model_dir, collator, samples, tokens, monkeypatch
):
    """As on a GPU, but for memory that a CPU cannot pin; what goes is what the plan says."""
    moved: list[torch.Tensor] = []

    class Elsewhere(torch.autograd.graph.saved_tensors_hooks):
        def __init__(self, pin_memory: bool, device_type: str) -> None:
            assert pin_memory
            super().__init__(lambda one: moved.append(one) or one.clone(), lambda one: one)

    monkeypatch.setattr(modeling_utils, "save_on_cpu", Elsewhere)
    batch, model, found = collator(samples), load_model(model_dir).train(), []
    for offload in (False, True):
        model.zero_grad(set_to_none=True)
        model.activation_checkpointing_enable(offload=offload)
        logprobs, _ = response_logprobs(model, batch, tokens.suppressed_ids)
        logprobs.sum().backward()
        found.append({name: item.grad for name, item in model.named_parameters()})
        assert bool(moved) == offload
    torch.testing.assert_close(*found, atol=0.0, rtol=0.0)
    text = model.config.text_config
    kept = [one for one in moved if one.shape[-1] == text.hidden_size and one.ndim == 3]
    setting = Setting(checkpointing=True, offload_activations=True)
    shapes = {name: tuple(item.shape) for name, item in model.named_parameters()}
    size = ModelSize.of(model.config.to_dict(), shapes)
    planned = rank_memory(size, setting, Work(batch.input_ids.numel(), batch.num_tokens)).activations_on_host
    assert sum(one.nbytes for one in kept) == planned == text.num_hidden_layers * batch.input_ids.numel() * 4 * 32


@pytest.mark.train
def test_on_a_gpu_the_library_is_asked_for_it(make_config, monkeypatch):
    monkeypatch.setattr(DartGRPOConfig, "device", torch.device("cuda"))
    config = make_config(offload_activations=True, gradient_checkpointing=True)
    assert config.activation_checkpointing_kwargs == {"offload": True}


@pytest.mark.thorough
@pytest.mark.train
def test_moments_are_on_the_device_in_steps_only_and_saved_and_taken_up(train, tmp_path):
    plain, whole = Seen(), Seen()
    expected = train("plain", callback=plain, max_steps=4)
    train("offloaded", callback=whole, max_steps=2, offload_optimizer=True)
    again = Seen()
    found = train("offloaded", again=True, callback=again, max_steps=4, offload_optimizer=True)
    trained = sum(item.numel() for item in found.model.parameters() if item.requires_grad)
    moments = sum(item.numel() * 2 * 4 for item in found.model.parameters() if item.requires_grad and item.numel() > 1)
    assert plain.bytes[0] == 0 and set(plain.bytes[1:]) == {moments} and moments == pytest.approx(8 * trained)
    assert not any(whole.bytes + again.bytes) and len(again.bytes) == 2
    assert torch.equal(weights(expected), weights(found))
    saved = (tmp_path / name / "trainer" / "checkpoint-4" / "optimizer.pt" for name in ("plain", "offloaded"))
    left, right = map(torch.load, saved)
    torch.testing.assert_close(left["state"], right["state"], atol=0.0, rtol=0.0)


def test_moments_come_back_as_they_went():
    weight = torch.nn.Parameter(torch.ones(5))
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.arange(5.0)
    optimizer.step()
    before = optimizer.state[weight]["exp_avg"].clone()
    moments = HostMoments(optimizer)
    assert optimizer.state[weight]["exp_avg"].untyped_storage().nbytes() == 0
    with moments.here():
        assert torch.equal(optimizer.state[weight]["exp_avg"], before)
    assert optimizer.state[weight]["exp_avg_sq"].untyped_storage().nbytes() == 0


def test_the_plan_has_them_on_the_host():
    seven, machine = ModelSize.published("7b"), Machine(gpus=8, gpu_bytes=80 * 10**9)
    base = plan(load_config(PAPER), seven, machine, Assumed())
    both = ["trainer.offload_optimizer=true", "trainer.offload_activations=true"]
    found = plan(load_config(PAPER, both), seven, machine, Assumed())
    moments = base.rank.held["optimizer"]
    assert found.rank.held["optimizer"] == 0 and found.rank.moments_on_host == moments
    assert found.host["moments of the optimizer"] == 6 * moments
    moved = base.rank.passes["activations"] - found.rank.passes["activations"]
    assert found.rank.activations_on_host == moved > 1 << 30
    assert found.rank.peak == base.rank.peak - moments - moved
    # A step holds them beside weights and gradients, whatever the passes take.
    small = rank_memory(seven, found.setting, Work(1, 1))
    assert small.peak >= sum(small.held.values()) + moments


@pytest.mark.train
def test_activations_that_nothing_keeps_are_refused_before_the_start(make_config):
    with pytest.raises(ValueError, match="offload_activations moves what gradient_checkpointing keeps"):
        make_config(offload_activations=True)
    wrong = load_config(PAPER, ["trainer.gradient_checkpointing=false", "trainer.offload_activations=true"])
    assert any("offload_activations moves" in problem for problem in settings_problems(wrong, 6))

"""Experts in all layouts of files are the same experts, and what is written is what was published."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from dart_agent.engines.embedded.qwen_runner import QwenRunner
from dart_agent.models.expert_weights import save_model
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model

pytestmark = pytest.mark.train

FUSED = "model.language_model.layers.0.mlp.experts.gate_up_proj"
HIDDEN, INNER, EXPERTS = 32, 24, 3
SHAPES = {"qwen3_vl_moe": (EXPERTS, HIDDEN, 2 * INNER), "qwen3_5_moe": (EXPERTS, 2 * INNER, HIDDEN)}
"""Of that tensor in the published checkpoints, and of what vLLM reads."""


@pytest.fixture(scope="module", params=SHAPES)
def family(request, tmp_path_factory):
    """(directory, runner)"""
    config = TinyModelConfig(
        family=request.param, hidden_size=HIDDEN, layers=2, vision_hidden_size=32, vision_layers=1, experts=EXPERTS
    )
    directory = build_tiny_model(tmp_path_factory.mktemp(request.param), config=config)
    return directory, QwenRunner.load(directory, VisionSpec.from_dir(directory))


def changed(runner: QwenRunner) -> dict[str, torch.Tensor]:
    """Give the model other weights and return what they were."""
    before = {name: tensor.clone() for name, tensor in runner.model.state_dict().items()}
    with torch.no_grad():
        for parameter in runner.model.parameters():
            parameter.mul_(1.5).add_(0.01)
    return before


def test_what_is_written_has_the_published_layout(family, tmp_path):
    directory, runner = family
    shape = SHAPES[runner.model.config.model_type]
    assert load_file(directory / "model.safetensors")[FUSED].shape == shape
    save_model(runner.model, tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() == load_file(directory / "model.safetensors").keys() and written[FUSED].shape == shape
    loaded = type(runner.model).from_pretrained(tmp_path).state_dict()
    torch.testing.assert_close(loaded, runner.model.state_dict(), atol=0, rtol=0)


def test_an_engine_loads_what_was_published_and_what_transformers_saves(family, tmp_path):
    directory, runner = family
    before = changed(runner)
    runner.load_weights(directory)
    torch.testing.assert_close(dict(runner.model.state_dict()), before, atol=0, rtol=0)
    runner.model.save_pretrained(tmp_path)  # in another layout than the published one
    changed(runner)
    runner.load_weights(tmp_path)
    torch.testing.assert_close(dict(runner.model.state_dict()), before, atol=0, rtol=0)


def one_by_one(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors in memory, those of experts as matrices of their own."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        before, _, which = name.partition(".mlp.experts.")
        for expert, matrix in enumerate(tensor) if which else ():
            parts = [matrix] if which == "down_proj" else matrix.chunk(2)
            names = ("down",) if which == "down_proj" else ("gate", "up")
            for kind, part in zip(names, parts, strict=True):
                found[f"{before}.mlp.experts.{expert}.{kind}_proj.weight"] = part.contiguous()
        if not which:
            found[name] = tensor
    return found


def test_experts_that_lie_one_by_one_are_put_together_and_missed(family, tmp_path):
    _, runner = family
    weights = one_by_one(dict(runner.model.state_dict()))
    save_file(weights, tmp_path / "model.safetensors")
    before = changed(runner)
    runner.load_weights(tmp_path)
    torch.testing.assert_close(dict(runner.model.state_dict()), before, atol=0, rtol=0)
    del weights["model.language_model.layers.1.mlp.experts.2.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="1 tensors missing, 5 unknown"):
        runner.load_weights(tmp_path)
    torch.testing.assert_close(dict(runner.model.state_dict()), before, atol=0, rtol=0)

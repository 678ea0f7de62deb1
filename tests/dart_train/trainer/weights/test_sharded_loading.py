"""Ranks read their own rows of every family's models; what does not fit a model is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dart_agent.models.families.family_table import FAMILIES
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.weights.adapters import LoraSettings, add_adapter, begin_adapter
from dart_train.trainer.weights.model_loading import load_model
from dart_train.trainer.weights.ranks import ALONE
from dart_train.trainer.weights.sharded_loading import empty_model, fill, sources

pytestmark = pytest.mark.train


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lora", [None, LoraSettings(r=4)], ids=["whole", "adapter"])
def test_a_model_built_without_weights_is_the_one_that_is_loaded(family, lora, tmp_path):
    """Weights, rotary frequencies that no file has, what is trained, and the adapter's first numbers."""
    model_dir = build_tiny_model(tmp_path, config=TinyModelConfig(family=family))
    expected, model = load_model(model_dir), empty_model(model_dir)
    assert all(item.is_meta for item in model.parameters())
    places = sources(model, model_dir)
    if lora is not None:
        expected, model = add_adapter(expected, lora), add_adapter(model, lora)
    fill(model, places, torch.device("cpu"), ALONE)
    if lora is not None:
        begin_adapter(model, lora)
    for found, wanted in (
        (model.named_parameters(), expected.named_parameters()),
        (model.named_buffers(), expected.named_buffers()),
    ):
        for (name, left), (same, right) in zip(found, wanted, strict=True):
            assert name == same and left.requires_grad == right.requires_grad
            torch.testing.assert_close(left, right, atol=0, rtol=0)


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.mixture])
def test_ranks_read_their_experts_from_all_layouts(family, tmp_path):
    """As published, as in memory, and with a matrix for each expert, of which one may be missing."""
    config = TinyModelConfig(family=family, hidden_size=32, layers=1, vision_hidden_size=32, vision_layers=1, experts=3)
    model_dir = build_tiny_model(tmp_path / "model", config=config)
    whole = load_model(model_dir)
    named = dict(whole.state_dict())
    name = "model.language_model.layers.0.mlp.experts.gate_up_proj"
    published = load_file(model_dir / "model.safetensors")
    tensors = published.pop(name)
    alone = {
        name.replace("gate_up_proj", f"{expert}.{kind}_proj.weight"): part.contiguous()
        for expert, matrix in enumerate(named[name])
        for kind, part in zip(("gate", "up"), matrix.chunk(2), strict=True)
    }
    for layout in ({name: tensors}, {name: named[name]}, alone):
        save_file(published | layout, model_dir / "model.safetensors", {"format": "pt"})
        model = empty_model(model_dir)
        fill(model, sources(model, model_dir), torch.device("cpu"), ALONE)
        torch.testing.assert_close(dict(model.state_dict()), named, atol=0, rtol=0)
    del alone[name.replace("gate_up_proj", "1.up_proj.weight")]
    save_file(published | alone, model_dir / "model.safetensors", {"format": "pt"})
    with pytest.raises(TrainingError, match=rf"lacks 1 of the model's weights, such as {name}"):
        sources(empty_model(model_dir), model_dir)


@pytest.fixture
def broken(model_dir, tmp_path) -> Path:
    return Path(shutil.copytree(model_dir, tmp_path / "model"))


def test_missing_weights_are_named(broken):
    weights = load_file(broken / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(TrainingError, match=r"lacks 1 of the model's weights, such as lm_head.weight: .*tie_word"):
        sources(empty_model(broken), broken)


def test_a_head_that_is_tied_is_read_once(broken):
    weights = load_file(broken / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    config = json.loads((broken / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True
    (broken / "config.json").write_text(json.dumps(config))
    model = empty_model(broken)
    fill(model, sources(model, broken), torch.device("cpu"), ALONE)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    torch.testing.assert_close(model.lm_head.weight, weights["model.embed_tokens.weight"], atol=0, rtol=0)


def test_weights_of_another_shape_are_named(broken):
    config = json.loads((broken / "config.json").read_text())
    config["text_config"]["intermediate_size"] *= 2
    (broken / "config.json").write_text(json.dumps(config))
    model = empty_model(broken)
    with pytest.raises(TrainingError, match=r"mlp.* is \(64, 32\) and the model's \(128, 32\): config.json is another"):
        fill(model, sources(model, broken), torch.device("cpu"), ALONE)

"""Every family is trained exactly: log-probabilities and gradients are those of the model's own forward pass."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from family_models import Family
from torch import Tensor

from dart_agent.models.families.family_table import FAMILIES, family_in
from dart_gym.core.errors import ConfigurationError
from dart_train.trainer.image_features import ImageFeatures
from dart_train.trainer.policy_logprobs import response_logprobs, token_logprobs, tower_features
from dart_train.trainer.weights.model_loading import load_model

pytestmark = pytest.mark.train


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory) -> Family:
    return Family(request.param, tmp_path_factory.mktemp(request.param))


def gradients(model: Any) -> dict[str, Tensor]:
    found = {name: item.grad.clone() for name, item in model.named_parameters() if item.grad is not None}
    model.zero_grad()
    return found


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    norm = float(torch.nn.utils.get_total_norm(list(expected.values())))
    assert norm > 1e-2
    for name, gradient in expected.items():
        assert float((found[name] - gradient).abs().max()) <= 2e-6 * max(norm, 1.0), name


LAYOUTS = {
    "separate": {"share_prompts": False, "merge_prefixes": False},
    "merged": {},
    "packed": {"pack_rows": True},
}


def test_logprobs_and_gradients_are_the_models_own(family):
    """Two images and more in a prompt, every layout, through the cache of features and without it."""
    samples, model = family.samples(), family.model
    own = [family.own(sample) for sample in samples]
    torch.cat(own).sum().backward()
    expected = gradients(model)
    assert any("deepstack" in name for name in expected) == FAMILIES[family.model.config.model_type].deepstack
    for options in LAYOUTS.values():
        for cached in (False, True):
            features = ImageFeatures(partial(tower_features, model), trainable=True) if cached else None
            for batch in family.collator(**options).micro_batches(samples, 1200):
                logprobs, _ = response_logprobs(model, batch, family.tokens.suppressed_ids, features=features)
                for row, place in enumerate(batch.sample_index.tolist()):
                    torch.testing.assert_close(logprobs[row][batch.mask[row]], own[place], atol=1e-5, rtol=0)
                logprobs.sum().backward()
            if features is not None:
                features.backward()
            assert_close(gradients(model), expected)


def test_images_reach_their_places(family):
    """Two images of one size swapped: the ids are the same, the log-probabilities are not."""
    samples = family.samples()
    same = [name for name, image in family.screens.items() if image.shape == (84, 84, 3)]
    other = {same[0]: same[1], same[1]: same[0]}
    sample = samples[1]
    swapped = replace(sample, image_hashes=tuple(other.get(name, name) for name in sample.image_hashes))
    assert swapped.image_hashes != sample.image_hashes
    with torch.no_grad():
        first, second = (
            response_logprobs(family.model, family.collator()([one]), family.tokens.suppressed_ids)[0]
            for one in (sample, swapped)
        )
    assert (first - second).abs().max() > 1e-3


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tied_head_and_a_vocabulary_larger_than_the_tokenizers(name, tmp_path):
    family = Family(name, tmp_path, tied=True)
    family.model.resize_token_embeddings(family.tokens.vocab_size + 37)
    assert family.model.lm_head.weight is family.model.get_input_embeddings().weight
    sample = family.samples()[2]
    with torch.no_grad():
        found, _ = response_logprobs(family.model, family.collator()([sample]), family.tokens.suppressed_ids)
        torch.testing.assert_close(found[0], family.own(sample), atol=1e-5, rtol=0)


def test_head_is_in_float32_under_autocast_and_for_half_weights(family):
    """bfloat16 logits are up to 0.06 nats off: what is rounded is the hidden state alone."""
    sample = family.samples()[3]
    batch, seen = family.collator()([sample]), []
    hook = family.model.model.language_model.register_forward_hook(
        lambda module, args, out: seen.append(out[0].detach())
    )
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = response_logprobs(family.model, batch, family.tokens.suppressed_ids)
    hook.remove()
    hidden = seen[0].flatten(0, 1)[batch.predict_index].double()
    logits = hidden @ family.model.lm_head.weight.double().T
    exact, _ = token_logprobs(logits, batch.response_ids, family.tokens.suppressed_ids)
    assert (found[0] - exact.float()).abs().max() < 1e-4


@pytest.fixture(scope="module", params=[name for name, family in FAMILIES.items() if family.mixture])
def mixture(request, tmp_path_factory) -> Family:
    return Family(request.param, tmp_path_factory.mktemp(request.param))


def test_experts_in_groups_are_those_one_after_the_other(mixture):
    """Products by groups of tokens, as they are trained, beside transformers' loop over the experts."""
    model, sample = mixture.model, mixture.samples()[2]
    assert model.get_experts_implementation()["text_config"] == "grouped_mm"
    found: list[dict[str, Tensor]] = []
    for way in ("grouped_mm", "eager"):
        model.set_experts_implementation(way)
        logprobs, _ = response_logprobs(model, mixture.collator()([sample]), mixture.tokens.suppressed_ids)
        logprobs.sum().backward()
        found.append(gradients(model))
    model.set_experts_implementation("grouped_mm")
    assert_close(*found)
    trained = {name.rpartition("mlp.")[2] for name in found[0] if ".mlp.experts." in name or ".mlp.gate." in name}
    assert trained == {"gate.weight", "experts.gate_up_proj", "experts.down_proj"}


def test_the_router_s_own_loss_is_not_trained(mixture):
    """A configuration that asks for it changes transformers' loss, and no gradient of ours."""
    model, text, sample = mixture.model, mixture.model.config.text_config, mixture.samples()[2]
    found: list[dict[str, Tensor]] = []
    for asked in (False, True):
        text.output_router_logits = asked
        logprobs, _ = response_logprobs(model, mixture.collator()([sample]), mixture.tokens.suppressed_ids)
        logprobs.sum().backward()
        found.append(gradients(model))
    text.output_router_logits = False
    assert_close(*found)


def _changed(model_dir: Path, target: Path, **values: Any) -> Path:
    target.mkdir()
    for file in model_dir.iterdir():
        if file.suffix != ".safetensors":  # nothing is loaded, so nothing need be there
            (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | values))
    return target


def test_an_unknown_family_is_refused_by_name_before_anything_is_loaded(model_dir, tmp_path):
    other = _changed(model_dir, tmp_path / "other", model_type="qwen9_vl")
    for ask in (family_in, load_model):
        with pytest.raises(ConfigurationError, match="is a qwen9_vl model.*Known are qwen2_vl, qwen2_5_vl, qwen3_vl"):
            ask(other)


def test_models_that_would_be_trained_wrongly_are_refused(model_dir, tmp_path):
    text = json.loads((model_dir / "config.json").read_text())["text_config"]
    small = _changed(model_dir, tmp_path / "small", text_config=text | {"vocab_size": 9})
    with pytest.raises(ConfigurationError, match="the model has weights for 9"):
        load_model(small)
    sliding = text | {"use_sliding_window": True, "sliding_window": 64}
    with pytest.raises(ConfigurationError, match="sliding-window attention are not trained"):
        load_model(_changed(model_dir, tmp_path / "sliding", text_config=sliding))

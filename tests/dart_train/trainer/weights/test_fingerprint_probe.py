"""A fingerprint is what plain forward passes of one prompt at a time answer, in as few passes as it has tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dart_agent.models.families.family_table import FAMILIES
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_train.core.fingerprint import LENGTH, difference
from dart_train.trainer.weights.fingerprint_probe import fingerprint_of
from dart_train.trainer.weights.model_loading import load_model

pytestmark = pytest.mark.train


@torch.no_grad()
def one_by_one(model, directory, prompt, images):
    """The likeliest next tokens of one prompt and their log-probabilities, by a pass for each."""
    tokens, vision = ModelTokens.load(directory), VisionSpec.from_dir(directory)
    shown = {}
    if images:
        shown = {
            "pixel_values": torch.from_numpy(np.concatenate([vision.patchify(image) for image in images])),
            "image_grid_thw": torch.tensor([vision.grid(image) for image in images]),
        }
    ids, logprobs = list(prompt), []
    for _ in range(LENGTH):
        row = torch.tensor([ids])
        logits = model(input_ids=row, mm_token_type_ids=(row == tokens.image_pad_id).long(), **shown).logits[0, -1]
        logits[list(tokens.suppressed_ids)] = -torch.inf
        logprob, token = logits.log_softmax(-1).max(-1)
        ids.append(int(token))
        logprobs.append(float(logprob))
    return tuple(ids[len(prompt) :]), tuple(logprobs)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_all_prompts_in_a_pass_for_each_token(family, tmp_path):
    config = TinyModelConfig(family=family, hidden_size=64, layers=4, vision_hidden_size=32, vision_layers=2)
    directory = build_tiny_model(tmp_path, config=config)
    model, passes = load_model(directory).train(), []
    counting = model.register_forward_hook(lambda *_: passes.append(1))
    found = fingerprint_of(model, directory)
    counting.remove()
    assert len(passes) == LENGTH and model.training
    model.eval()
    for number, prompt in enumerate(found.prompts):
        expected = one_by_one(model, directory, prompt, found.drawn(number))
        assert difference(expected, (found.response_ids[number], found.logprobs[number])) < 1e-5
    assert {len(prompt) for prompt in found.prompts} != {len(found.prompts[0])}, "rows of unlike lengths are filled up"

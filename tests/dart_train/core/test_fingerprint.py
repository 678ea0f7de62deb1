from __future__ import annotations

import dataclasses

import pytest

from dart_agent.engines.base.engine import EngineError, EngineMismatch, Generation, Prompt, Sampling
from dart_train.core.fingerprint import FILE, Fingerprint, check_fingerprint, difference, read_fingerprint
from dart_train.core.train_errors import CheckpointError

MADE = Fingerprint(((1, 2), (3,)), ((5, 6), (7, 8)), ((-0.1, -0.2), (-0.3, -0.4)), (9,))


class Answering:
    """An engine that gives the answers that it is made with."""

    def __init__(self, made: Fingerprint) -> None:
        self.made = made

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        assert (sampling.temperature, sampling.suppressed_ids, sampling.max_tokens) == (0.0, (9,), 2)
        row = self.made.prompts.index(prompt.token_ids)
        return Generation("", self.made.response_ids[row], self.made.logprobs[row], (1, 1), "length")


def changed(**rows) -> Fingerprint:
    return dataclasses.replace(MADE, **rows)


async def test_the_answers_of_the_same_weights_pass_and_others_do_not(tmp_path):
    MADE.write(tmp_path)
    assert read_fingerprint(tmp_path) == MADE
    assert await check_fingerprint(Answering(MADE), tmp_path, 1e-3) == 0.0
    rounded = changed(logprobs=((-0.1, -0.2), (-0.3, -0.405)))
    assert await check_fingerprint(Answering(rounded), tmp_path, 0.01) == pytest.approx(0.005)
    with pytest.raises(EngineMismatch, match="serves other weights, or another model"):
        await check_fingerprint(Answering(rounded), tmp_path, 1e-3)
    nothing = changed(logprobs=((float("nan"), -0.2), (-0.3, -0.4)))
    with pytest.raises(EngineError, match="log-probability of token 0 is nan"):
        await check_fingerprint(Answering(nothing), tmp_path, 1e-3)


def test_a_tie_that_rounding_turned_around_is_no_difference():
    expected = ((5, 6), (-0.7, -0.1))
    assert difference(expected, ((4, 9), (-0.7001, -3.0))) == pytest.approx(1e-4), "what follows is another text"
    assert difference(expected, ((4, 9), (-0.9, -3.0))) == pytest.approx(0.2)


async def test_weights_without_a_fingerprint_are_not_compared_and_a_broken_one_is_told(tmp_path):
    assert await check_fingerprint(Answering(MADE), tmp_path, 1e-3) is None
    (tmp_path / FILE).write_text("{")
    with pytest.raises(CheckpointError, match="publish this version again"):
        await check_fingerprint(Answering(MADE), tmp_path, 1e-3)


@pytest.mark.train
async def test_the_engine_answers_as_the_model_that_was_published(tmp_path):
    import torch

    from dart_agent.engines.embedded.qwen_runner import QwenRunner
    from dart_agent.engines.embedded.transformers_engine import TransformersEngine
    from dart_agent.models.image_patches import VisionSpec
    from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
    from dart_train.trainer.weights.checkpoint import write_model

    small = TinyModelConfig(hidden_size=32, layers=2, intermediate_size=64, vision_hidden_size=32, vision_layers=1)
    base = build_tiny_model(tmp_path / "base", seed=1, config=small)
    model = QwenRunner.load(base, VisionSpec.from_dir(base)).model.train()
    first = write_model(model, tmp_path / "v1", base)
    assert model.training
    with torch.no_grad():
        for tensor in model.parameters():
            tensor += 0.3 * torch.randn_like(tensor) * tensor.std(correction=0)
    second = write_model(model, tmp_path / "v2", first)
    assert read_fingerprint(first) != read_fingerprint(second), "it is made anew, not copied with the tokenizer"
    engine = TransformersEngine(second, threads=1)
    worst = await check_fingerprint(engine, second, 1e-3)
    assert worst is not None and worst < 1e-5
    with pytest.raises(EngineMismatch):
        await check_fingerprint(engine, first, 1e-3)
    await engine.close()


@pytest.mark.train
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
async def test_a_vision_tower_with_other_weights_is_found_out(tmp_path, family):
    """A fingerprint of text alone would let it pass."""
    import torch

    from dart_agent.engines.embedded.transformers_engine import TransformersEngine
    from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
    from dart_train.trainer.weights.checkpoint import write_model
    from dart_train.trainer.weights.model_loading import load_model

    small = TinyModelConfig(family=family, layers=2, vision_layers=2, temporal_patch_size=2, edge_std=0.2)
    base = build_tiny_model(tmp_path / "base", seed=1, config=small)
    model = load_model(base)
    published = write_model(model, tmp_path / "v1", base)
    found = read_fingerprint(published)
    assert found is not None and sum(map(len, found.images)) == 1
    engine = TransformersEngine(published, threads=1)
    assert await check_fingerprint(engine, published, 1e-4) is not None
    await engine.close()
    with torch.no_grad():
        for tensor in model.model.visual.parameters():
            tensor += 0.5 * torch.randn_like(tensor) * tensor.std(correction=0)
    model.save_pretrained(published)
    engine = TransformersEngine(published, threads=1)
    with pytest.raises(EngineMismatch):
        await check_fingerprint(engine, published, 1e-3)
    await engine.close()

"""The head in engines and trainers: they compute what the grounder computes, and versions carry it on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dart_agent.engines.base.engine import RequestRefused, Sampling
from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.grounding.candidate import Query
from dart_agent.grounding.pointer_model import PointerModel
from dart_agent.grounding.pointer_prompt import PointerPrompt
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.pointer_head import ATTRIBUTE
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.model_loading import load_model
from dart_train.trainer.weights.sharded_loading import empty_model

pytestmark = pytest.mark.train
TEMPERATURE = 0.7


@pytest.fixture(scope="module", params=("qwen2_vl", "qwen2_5_vl", "qwen3_vl"))
def pointer_dir(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(request.param)
    config = TinyModelConfig(family=request.param, vision_layers=2, words=(), numbers=0)
    start = build_tiny_model(root / "start", seed=3, config=config)
    torch.manual_seed(0)
    model = PointerModel(start, begin="Find it.", dtype="float32")
    with torch.no_grad():
        model.head.projection_dec[2].weight *= 30  # an untrained head hardly prefers any patch
    return model.save(root / "pointer")


def queries() -> list[Query]:
    rng = np.random.default_rng(0)
    sizes = ((64, 96), (128, 160), (64, 96))
    return [Query(f"the {n}nd", rng.integers(0, 256, (*size, 3), np.uint8)) for n, size in enumerate(sizes)]


def expected(directory: Path, asked: list[Query]) -> list[torch.Tensor]:
    """(patches,) log-probabilities at the temperature, by the grounder's own forward pass."""
    model = PointerModel(directory)
    with torch.no_grad():
        logprobs, sizes = model(asked)
    return [
        (row[: rows * columns] / TEMPERATURE).log_softmax(-1)
        for row, (rows, columns) in zip(logprobs, sizes, strict=True)
    ]


async def test_an_engine_draws_patches_beside_text(pointer_dir: Path):
    asked, right = PointerPrompt.load(pointer_dir), expected(pointer_dir, queries())
    engine = TransformersEngine(pointer_dir, threads=1)
    try:
        for query, wanted in zip(queries(), right, strict=True):
            prompt = asked.prompt(query.description, query.screenshot)
            drawn = [await engine.generate(prompt, Sampling(1, TEMPERATURE, seed=seed)) for seed in range(60)]
            for answer in drawn:
                (patch,), (logprob,) = answer.response_ids, answer.logprobs
                assert logprob == pytest.approx(float(wanted[patch]), abs=1e-4)
                assert answer.entropy == pytest.approx(float(-(wanted.exp() * wanted).sum()), abs=1e-3)
            shares = np.bincount([answer.response_ids[0] for answer in drawn], minlength=len(wanted)) / len(drawn)
            assert np.abs(shares - wanted.exp().numpy()).max() < 0.25
            greedy = await engine.generate(prompt, Sampling(1, 0.0))
            assert greedy.response_ids == (int(wanted.argmax()),)
            x, y = asked.place(greedy.response_ids[0], query.screenshot)
            assert 0 <= x < query.screenshot.shape[1] and 0 <= y < query.screenshot.shape[0]
        text = await engine.generate(type(prompt)(prompt.token_ids[:-1], prompt.images), Sampling(3, seed=0))
        assert len(text.response_ids) == 3
    finally:
        await engine.close()


def test_the_trainer_finds_the_same_log_probabilities(pointer_dir: Path):
    """Equal prompts in one row, packed rows, and a response in text between them."""
    asked, right = PointerPrompt.load(pointer_dir), expected(pointer_dir, queries())
    shots = {str(n): asked.vision.resize(query.screenshot) for n, query in enumerate(queries())}
    samples, wanted = [], []
    for n, query in enumerate(queries()):
        prompt = asked.prompt(query.description, query.screenshot)
        for patch in (0, len(right[n]) - 1):
            samples.append(Sample(prompt.token_ids, (str(n),), (patch,), trajectory=len(samples)))
            wanted.append((float(right[n][patch]), float(-(right[n].exp() * right[n]).sum())))
    samples.append(Sample(prompt.token_ids[:-1], ("2",), (5, 6), trajectory=len(samples)))
    model, tokens = load_model(pointer_dir).eval(), ModelTokens.load(pointer_dir)
    for options in ({"share_prompts": True}, {"share_prompts": False}, {"share_prompts": True, "pack_rows": True}):
        collate = Collator(tokens, VisionSpec.from_dir(pointer_dir), ImageCache(shots.__getitem__), **options)
        batch = collate(samples)
        found = response_logprobs(model, batch, tokens.suppressed_ids, temperature=TEMPERATURE)
        logprobs, entropies = (values.detach() for values in found)
        for row, index in enumerate(batch.sample_index.tolist()):
            if index < len(wanted):
                assert (float(logprobs[row, 0]), float(entropies[row, 0])) == pytest.approx(wanted[index], abs=1e-3)
            else:
                assert batch.mask[row].sum() == 2 and (logprobs[row, :2] < 0).all()
    found[0].sum().backward()
    head = getattr(model, ATTRIBUTE)
    assert all(bool((weight.grad != 0).any()) for weight in head.layer_norm.parameters())
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters() if weight.grad is not None)


async def test_a_version_carries_the_head_on(pointer_dir: Path, tmp_path: Path):
    """Written as a released checkpoint has it, read by engine, trainer and grounder; the version before loads again."""
    model = load_model(pointer_dir)
    with torch.no_grad():
        for weight in getattr(model, ATTRIBUTE).parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    version = checkpoint.write_model(model, tmp_path / "v1", pointer_dir)
    assert PointerPrompt.load(version).system == "Find it."
    query = queries()[0]
    before, after = (expected(directory, [query])[0] for directory in (pointer_dir, version))
    assert (before - after).abs().max() > 0.1
    asked = PointerPrompt.load(version)
    prompt = asked.prompt(query.description, query.screenshot)
    engine = TransformersEngine(pointer_dir, threads=1)
    try:
        for directory, wanted in ((version, after), (pointer_dir, before)):
            await engine.update_weights(str(directory), 1)
            answer = await engine.generate(prompt, Sampling(1, TEMPERATURE, seed=3))
            assert answer.logprobs[0] == pytest.approx(float(wanted[answer.response_ids[0]]), abs=1e-4)
    finally:
        await engine.close()


async def test_what_cannot_be_chosen_is_refused(pointer_dir: Path):
    asked = PointerPrompt.load(pointer_dir)
    screen = np.zeros((1600, 1600, 3), np.uint8)
    engine = TransformersEngine(pointer_dir, threads=1)
    try:
        with pytest.raises(RequestRefused, match="patches to choose among are more than"):
            await engine.generate(asked.prompt("x", screen), Sampling(1))
    finally:
        await engine.close()
    with pytest.raises(ValueError, match="no patch 9999"):
        asked.place(9999, screen)
    with pytest.raises(TrainingError, match="without fsdp"):
        empty_model(pointer_dir)

"""Recurrent layers (Qwen3.5) by segments: no sample's memory reaches another's; a branch begins with its prompt's."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from dart_agent.engines.base.engine import Prompt, Sampling
from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_train.trainer.attention import recurrent_layers
from dart_train.trainer.attention.kernels import Attention, Layout
from dart_train.trainer.attention.segments import Segment
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.grpo_trainer import DartGRPOTrainer
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.weights.adapters import LoraSettings, add_adapter, merged_weights, without_adapter
from dart_train.trainer.weights.model_loading import load_model

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Any:
    config = TinyModelConfig(
        family="qwen3_5", hidden_size=32, layers=3, intermediate_size=64, vision_hidden_size=32, vision_layers=1,
        matrix_std=0.3, edge_std=0.5,
    )  # fmt: skip
    return load_model(build_tiny_model(tmp_path_factory.mktemp("qwen3_5"), seed=2, config=config)).eval()


@pytest.fixture
def plain(samples) -> list[Sample]:
    """Of the samples those without images, and more of unlike lengths."""
    base = samples[2]
    longer = [replace(base, prompt_ids=base.prompt_ids * times, trajectory=20 + times) for times in (2, 7, 9)]
    # Two of one prompt: branches of one row, one of them of a single token.
    short = replace(longer[1], response_ids=longer[1].response_ids[:1], logprobs=(), trajectory=30, group=1)
    return [base, *longer, short, replace(longer[1], response_ids=samples[1].response_ids, logprobs=(), trajectory=31)]


def alone(model: Any, sample: Sample, tokens: ModelTokens) -> Tensor:
    """Log-probabilities by the published forward pass, whose memory begins with the row."""
    ids = torch.tensor([[*sample.prompt_ids, *sample.response_ids]])
    logits = model(input_ids=ids).logits[0, len(sample.prompt_ids) - 1 : -1].float()
    logits[:, list(tokens.suppressed_ids)] = torch.finfo(torch.float32).min
    return logits.log_softmax(-1).gather(1, torch.tensor(sample.response_ids)[:, None])[:, 0]


def by_sample(model: Any, batch: Any, tokens: ModelTokens) -> dict[int, Tensor]:
    logprobs, _ = response_logprobs(model, batch, tokens.suppressed_ids)
    return {place: logprobs[row][batch.mask[row]] for row, place in enumerate(batch.sample_index.tolist())}


@pytest.mark.parametrize("layout", [{}, {"padding_side": "left"}, {"pack_rows": True}, {"share_prompts": False}])
def test_samples_of_a_row_do_not_reach_one_another(model, tokens, vision, screens, plain, layout):
    collator = Collator(tokens, vision, ImageCache(screens.__getitem__), **layout)
    exact = copy.deepcopy(model).double()  # float32's last digit is another one on another processor
    with torch.no_grad():
        found = by_sample(exact, collator(plain), tokens)
        for place, sample in enumerate(plain):
            torch.testing.assert_close(found[place].float(), alone(exact, sample, tokens), atol=1e-5, rtol=0)


def test_a_memory_that_did_leak_would_be_seen(model, tokens, vision, screens, plain):
    """The published forward pass over the same packed row, which attention alone keeps apart, is far off."""
    batch = Collator(tokens, vision, ImageCache(screens.__getitem__), pack_rows=True)(plain)
    mixers = [layer.linear_attn for layer in model.model.language_model.layers if hasattr(layer, "linear_attn")]
    ours = [mixer.forward for mixer in mixers]
    for mixer in mixers:
        mixer.forward = lambda segments=None, own=mixer, **others: type(own).forward(own, **others)
    try:
        with torch.no_grad():
            found = by_sample(model, batch, tokens)
            off = max(
                float((found[place] - alone(model, sample, tokens)).abs().max()) for place, sample in enumerate(plain)
            )
    finally:
        for mixer, forward in zip(mixers, ours, strict=True):
            mixer.forward = forward
    assert off > 1e-2


def test_a_branch_continues_where_its_prompt_ended(model):
    """Whole rows against a prompt with branches, and gradients; also of prompts that the convolution reaches beyond."""
    mixer = model.model.language_model.layers[0].linear_attn
    torch.manual_seed(0)
    for prompt in (1, 2, 70):
        hidden = torch.randn(1, prompt + 3 + 65 + 4, 32, requires_grad=True)
        ends = [prompt, prompt + 3, prompt + 68, prompt + 72]
        segments = [Segment(0, prompt), *(Segment(a, b, 0, prompt) for a, b in zip(ends, ends[1:], strict=False))]
        found = mixer.forward(hidden, segments=Attention(Layout(segments, hidden.shape[1])))
        # The same branches as rows of their own, by transformers' own forward pass.
        whole = [
            type(mixer).forward(mixer, torch.cat([hidden[:, :prompt], hidden[:, a:b]], 1))
            for a, b in zip(ends, ends[1:], strict=False)
        ]
        torch.testing.assert_close(found[:, :prompt], whole[0][:, :prompt], atol=1e-5, rtol=0)
        own = torch.cat([whole[0][:, :prompt], *(row[:, prompt:] for row in whole)], 1)
        torch.testing.assert_close(found, own, atol=1e-5, rtol=0)
        weights = torch.randn_like(found)
        gradients = [torch.autograd.grad((values * weights).sum(), hidden)[0] for values in (found, own)]
        torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_few_calls_compute_a_micro_batch_and_padding_is_less_than_half():
    lengths = [700, 650, 40, 33, 35, 1, 90, 600]
    starts = [sum(lengths[:place]) for place in range(len(lengths))]
    segments = [Segment(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    parts = recurrent_layers.parts_of(segments, sum(lengths), 3, torch.device("cpu"))
    assert len(parts) == 4  # of 1, of 32 to 63, of 64 to 127, of 512 to 1023
    assert all(2 * (part.places < sum(lengths)).sum() > part.places.numel() for part in parts)
    places = torch.cat([part.places.flatten() for part in parts])
    assert sorted(places[places < sum(lengths)].tolist()) == list(range(sum(lengths)))


def test_gradient_checkpointing_changes_no_gradient(model, collator, tokens, samples):
    def gradients(checkpointing: bool) -> dict[str, Tensor]:
        own = copy.deepcopy(model).train()
        assert all(
            layer.linear_attn.forward.__self__ is layer.linear_attn
            for layer in own.model.language_model.layers
            if hasattr(layer, "linear_attn")
        )
        if checkpointing:
            own.gradient_checkpointing_enable({"use_reentrant": False})
        response_logprobs(own, collator([samples[2], samples[6]]), tokens.suppressed_ids)[0].sum().backward()
        return {name: item.grad for name, item in own.named_parameters() if item.grad is not None}

    once, again = gradients(False), gradients(True)
    assert any("A_log" in name for name in once) and once.keys() == again.keys()
    for name, gradient in once.items():
        torch.testing.assert_close(again[name], gradient, atol=1e-5, rtol=1e-4)


def test_an_adapter_reaches_recurrent_layers_and_merges(model, collator, tokens, plain):
    adapted = add_adapter(copy.deepcopy(model), LoraSettings(r=4))
    layers = {name for name, _ in adapted.named_parameters() if ".lora_B." in name}
    assert any("linear_attn.in_proj_qkv" in name for name in layers) and any("o_proj" in name for name in layers)
    torch.manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.1)
    merged = copy.deepcopy(model)
    merged.load_state_dict(merged_weights(adapted))
    score = partial(by_sample, batch=collator(plain[:2]), tokens=tokens)
    with torch.no_grad():
        base, changed, whole = score(model), score(adapted), score(merged)
        with without_adapter(adapted):
            off = score(adapted)
    torch.testing.assert_close(changed, whole, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(off, base, atol=1e-6, rtol=0)
    assert (changed[1] - base[1]).abs().max() > 1e-3


async def test_two_steps_of_training_are_served(data, record_group, make_config, screens, tmp_path):
    """Recorded, trained with recomputed activations, published, loaded by the engine, and exact there."""
    config = TinyModelConfig(
        family="qwen3_5", hidden_size=32, layers=2, vision_hidden_size=32, vision_layers=1, matrix_std=0.2
    )
    start = build_tiny_model(tmp_path / "model", config=config)
    tokens, vision = ModelTokens.load(start), VisionSpec.from_dir(start)
    name, screen = next((name, screen) for name, screen in screens.items() if screen.shape[0] != screen.shape[1])
    screen = vision.resize(screen)
    pads = [tokens.vision_start_id, *[tokens.image_pad_id] * vision.num_tokens(screen), tokens.vision_end_id]
    prompt = Prompt((tokens.im_start_id, *tokens.encode("user\nClick"), *pads, tokens.im_end_id), (screen,))
    for key in "abcd":
        record_group(key, prompts=[(prompt.token_ids, (name,))] * 4)
    DartGRPOTrainer(start, make_config(gradient_checkpointing=True, learning_rate=1e-2), data).run()
    newest = data.newest_checkpoint()
    assert newest is not None and newest.version == 2
    engine = TransformersEngine(start, threads=1)
    sampling = Sampling(max_tokens=8, seed=1, stop_ids=(), suppressed_ids=tokens.suppressed_ids)
    try:
        before = await engine.generate(prompt, sampling)
        await engine.update_weights(newest.path, 2)
        after = await asyncio.gather(*[engine.generate(prompt, replace(sampling, seed=seed)) for seed in range(3)])
    finally:
        await engine.close()
    trained = load_model(newest.path).eval()
    for answer in after:
        sample = Sample(prompt.token_ids, (name,), answer.response_ids, answer.logprobs)
        batch = Collator(tokens, vision, ImageCache({name: screen}.__getitem__))([sample])
        with torch.no_grad():
            expected = by_sample(trained, batch, tokens)[0]
        torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-5, rtol=0)
        assert answer.version == (2, 2)
    assert abs(after[1].logprobs[0] - before.logprobs[0]) > 1e-3 or after[1].response_ids != before.response_ids

"""The forward pass of training: independent of rows, padding, order and micro-batches, and equal to the engine's."""

from __future__ import annotations

import random

import pytest
import torch

from dart_agent.engines.base.engine import Prompt, Sampling
from dart_agent.engines.embedded.qwen_runner import QwenRunner
from dart_train.trainer import losses, policy_logprobs
from dart_train.trainer.batches.collator import Collator, ImageCache, MicroBatch, Sample
from dart_train.trainer.grpo_trainer import load_model
from dart_train.trainer.policy_logprobs import response_logprobs
from tests.helpers.batch_images import image_grid_thw, pixel_values

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def model(model_dir):
    model = load_model(model_dir)
    # An untrained model is nearly uniform: make its answers differ, so that an error shows.
    torch.manual_seed(0)
    torch.nn.init.normal_(model.lm_head.weight, std=0.5)
    return model


def by_sample(model, batches: list[MicroBatch], suppressed) -> dict[int, list[float]]:
    """Log-probabilities of each sample by its place in the list."""
    found = {}
    with torch.no_grad():
        for batch in batches:
            logprobs, _ = response_logprobs(model, batch, suppressed)
            for row, index in enumerate(batch.sample_index.tolist()):
                found[index] = logprobs[row][batch.mask[row]].tolist()
    return found


def assert_equal(left: dict[int, list[float]], right: dict[int, list[float]]) -> None:
    assert left.keys() == right.keys()
    for index, values in left.items():
        assert values == pytest.approx(right[index], abs=2e-5)


def reference(model, sample: Sample, collator: Collator, suppressed) -> list[float]:
    """The same by the model's own forward pass over the plain sequence."""
    plain = collator([sample])
    ids = torch.tensor([[*sample.prompt_ids, *sample.response_ids]])
    types = torch.zeros_like(ids)
    types[:, : plain.mm_token_type_ids.shape[1]] = plain.mm_token_type_ids
    images = (
        {"pixel_values": pixel_values(plain), "image_grid_thw": image_grid_thw(plain)} if sample.image_hashes else {}
    )
    with torch.no_grad():
        logits = model(input_ids=ids, mm_token_type_ids=types, attention_mask=torch.ones_like(ids), **images).logits[0]
    count = len(sample.response_ids)
    logprobs, _ = policy_logprobs.token_logprobs(logits[-count - 1 : -1], ids[0, -count:], suppressed)
    return logprobs.tolist()


def test_equals_the_models_own_forward(model, collator, samples, tokens):
    distinct = [sample for index, sample in enumerate(samples) if len(sample.image_hashes) <= 1 or index < 2]
    found = by_sample(model, [collator(distinct)], tokens.suppressed_ids)
    for index, sample in enumerate(distinct):
        assert found[index] == pytest.approx(reference(model, sample, collator, tokens.suppressed_ids), abs=2e-5)


def test_sharing_prompts_changes_nothing(model, tokens, vision, screens, samples):
    images = ImageCache(screens.__getitem__)
    shared = Collator(tokens, vision, images)(samples)
    plain = Collator(tokens, vision, images, share_prompts=False)(samples)
    assert_equal(by_sample(model, [shared], tokens.suppressed_ids), by_sample(model, [plain], tokens.suppressed_ids))


def test_order_and_padding_change_nothing(model, collator, samples, tokens):
    whole = by_sample(model, [collator(samples)], tokens.suppressed_ids)
    order = list(range(len(samples)))
    random.Random(1).shuffle(order)
    batches = collator.micro_batches([samples[index] for index in order], max_tokens=100)
    found = by_sample(model, batches, tokens.suppressed_ids)
    assert_equal(whole, {order[place]: values for place, values in found.items()})


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
def test_gradients_of_micro_batches_add_up(model, collator, samples, tokens, loss_type):
    tokens_in_all = sum(len(sample.response_ids) for sample in samples)
    normalizer = losses.Normalizer(tokens_in_all, len(samples), max_tokens=20)

    def gradient(batches: list[MicroBatch]) -> torch.Tensor:
        model.zero_grad()
        for batch in batches:
            logprobs, entropies = response_logprobs(model, batch, tokens.suppressed_ids)
            ratio = losses.importance_ratio(logprobs, logprobs.detach(), batch.mask)
            terms = losses.Terms(ratio, logprobs, batch.advantages[:, None], batch.mask)
            loss = losses.LOSSES.get(loss_type)()
            loss.aggregate(loss(terms) - 0.01 * entropies, batch.mask, normalizer).backward()
        gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        return torch.cat(gradients)

    whole = gradient([collator(samples)])
    parts = collator.micro_batches(samples, max_tokens=40)
    assert len(parts) > 2
    assert whole.abs().max() > 1e-3
    torch.testing.assert_close(gradient(parts), whole, atol=2e-6, rtol=1e-4)
    model.zero_grad()


def test_equals_the_logprobs_of_the_engine(model, vision, collator, samples, screens, tokens):
    runner = QwenRunner(model, vision)
    asked = [samples[0], samples[1], samples[2], samples[3], samples[0]]
    prompts = [Prompt(sample.prompt_ids, tuple(screens[h] for h in sample.image_hashes)) for sample in asked]
    settings = {"stop_ids": tokens.stop_ids, "suppressed_ids": tokens.suppressed_ids}
    rows = runner.sample(prompts, [Sampling(max_tokens=12, seed=seed, **settings) for seed in range(len(asked))])
    replayed = [
        Sample(sample.prompt_ids, sample.image_hashes, row.response_ids, row.logprobs)
        for sample, row in zip(asked, rows, strict=True)
    ]
    found = by_sample(model, [collator(replayed)], tokens.suppressed_ids)
    for index, row in enumerate(rows):
        assert found[index] == pytest.approx(list(row.logprobs), abs=1e-4)


def test_entropy_is_zero_off_the_mask(model, collator, samples, tokens):
    batch = collator(samples)
    logprobs, entropies = response_logprobs(model, batch, tokens.suppressed_ids)
    assert (logprobs[~batch.mask] == 0).all() and (entropies[~batch.mask] == 0).all()
    assert (entropies[batch.mask] > 0).all()


def test_logits_in_parts_give_the_same(model, collator, samples, tokens, monkeypatch):
    """Large vocabularies: the logits of all tokens at once would not fit."""
    batch = collator(samples)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        model.zero_grad()
        logprobs, entropies = response_logprobs(model, batch, tokens.suppressed_ids, temperature=1.5)
        (logprobs.sum() + entropies.square().sum()).backward()
        return torch.stack([logprobs.detach(), entropies.detach()]), model.lm_head.weight.grad.clone()

    whole = run()
    monkeypatch.setattr(policy_logprobs, "LOGITS_AT_ONCE", 7 * model.lm_head.weight.shape[0])
    parts: list[int] = []
    hook = model.lm_head.register_forward_pre_hook(lambda module, args: parts.append(len(args[0])))
    found = run()
    hook.remove()
    assert max(parts) == 7 and len(parts) > 4
    for left, right in zip(found, whole, strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)


def test_adapters_are_in_effect_and_get_the_gradient(model_dir, collator, samples, tokens):
    from dart_lab.train.bench_models import with_lora

    batch = collator(samples)
    plain = load_model(model_dir)
    torch.manual_seed(0)
    adapted = with_lora(load_model(model_dir))
    with torch.no_grad():
        before, _ = response_logprobs(plain, batch, tokens.suppressed_ids)
        same, _ = response_logprobs(adapted, batch, tokens.suppressed_ids)
        torch.testing.assert_close(before, same)
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    logprobs, _ = response_logprobs(adapted, batch, tokens.suppressed_ids)
    assert (logprobs - before).abs().max() > 1e-3
    logprobs.sum().backward()
    for name, parameter in adapted.named_parameters():
        assert (parameter.grad is not None) == ("lora" in name), name


def test_temperature_is_that_of_the_engine(model, vision, collator, samples, screens, tokens):
    """A prompt sampled at a temperature: the engine's log-probabilities are the trainer's at the same."""
    runner = QwenRunner(model.eval(), vision)
    sample = samples[0]
    sampling = Sampling(
        temperature=0.7, max_tokens=6, stop_ids=tokens.stop_ids, suppressed_ids=tokens.suppressed_ids, seed=1
    )
    prompt = Prompt(sample.prompt_ids, tuple(screens[name] for name in sample.image_hashes))
    (row,) = runner.sample([prompt], [sampling])
    batch = collator([Sample(sample.prompt_ids, sample.image_hashes, row.response_ids, row.logprobs)])
    with torch.no_grad():
        found, _ = response_logprobs(model, batch, tokens.suppressed_ids, temperature=0.7)
    assert found[0].tolist() == pytest.approx(row.logprobs, abs=2e-5)

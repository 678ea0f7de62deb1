"""The same numbers as TRL's `GRPOTrainer`, loss and gradients, for everything that both have.

TRL's own code runs: a real trainer on the tiny Qwen2.5-VL takes given completions through its documented
`rollout_func`, scores them, makes advantages and weights, and computes its loss. Ours starts from the same ids.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dart_train.trainer import losses
from dart_train.trainer.batches.collator import Collator, ImageCache, MicroBatch, Sample
from dart_train.trainer.grpo_trainer import load_model
from dart_train.trainer.policy_logprobs import response_logprobs

pytestmark = pytest.mark.train

MAX_LENGTH = 32
REWARDS = (1.0, 0.0, 0.0, 0.25, 1.0, 1.0, 0.0, 0.5)
TEXTS = ("Action: wait()", "Action: click(start_box='(12,34)')", "Action: finished()", "wait and more text")


@pytest.fixture(scope="module")
def model(model_dir: Path) -> Any:
    model = load_model(model_dir, dtype=torch.float64)  # so that an error of 1e-6 is one, and not rounding
    torch.manual_seed(0)
    torch.nn.init.normal_(model.lm_head.weight, std=0.5)
    return model


@pytest.fixture(scope="module")
def rollouts(model, tokens, vision, screens, make_prompt) -> list[Sample]:
    """Two groups of four: prompts and responses of several lengths, sampled near the model, or not so near."""
    found = []
    for index in range(8):
        response = tuple(tokens.response(TEXTS[index % 4]))
        prompt = make_prompt("Click on the tab" if index < 4 else "no")
        found.append(Sample(prompt, (), response, group=index // 4, trajectory=index))
    batch = Collator(tokens, vision, ImageCache(screens.__getitem__))(found)
    with torch.no_grad():
        logprobs = _by_sample(response_logprobs(model, batch, ())[0], batch)
    noise = torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(3))
    noise *= torch.tensor([0.05, 0.8] * 4)[:, None]
    sampled = [row[: len(sample.response_ids)] for row, sample in zip(logprobs + noise, found, strict=True)]
    return [
        dataclasses.replace(sample, logprobs=tuple(row.clamp(max=0.0).tolist()))
        for sample, row in zip(found, sampled, strict=True)
    ]


@pytest.fixture(scope="module")
def trl_trainer(model, model_dir, tmp_path_factory, rollouts) -> Iterator[Any]:
    """TRL's trainer, made to learn from the given completions."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    def play(prompts: list[str], trainer: Any) -> dict[str, Any]:
        return {
            "prompt_ids": [list(sample.prompt_ids) for sample in rollouts],
            "completion_ids": [list(sample.response_ids) for sample in rollouts],
            "logprobs": [list(sample.logprobs) for sample in rollouts],
        }

    arguments = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")), use_cpu=True, bf16=False, beta=0.1, report_to="none",
        per_device_train_batch_size=8, num_generations=4, max_completion_length=MAX_LENGTH,
        gradient_checkpointing=False, steps_per_generation=1,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=copy.deepcopy(model),
        reward_funcs=lambda completions, **kwargs: list(REWARDS),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 8),
        processing_class=AutoTokenizer.from_pretrained(model_dir),
        rollout_func=play,
    )
    # An engine was there: its log-probabilities came with the completions. Nothing is left to be synchronised.
    trainer.use_vllm, trainer._last_loaded_step = True, trainer.state.global_step
    trainer.current_gradient_accumulation_steps = 1  # set by the training loop of transformers
    trainer.ref_model.load_state_dict(model.state_dict())
    _move(trainer.ref_model, seed=8, scale=0.05)
    yield trainer


def _move(model: Any, *, seed: int, scale: float) -> None:
    """Change the weights a little, the same way every time."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * parameter.std() * torch.randn(parameter.shape, generator=generator))


@dataclasses.dataclass(frozen=True)
class Case:
    """A configuration that both sides have."""

    config: losses.ObjectiveConfig
    keep_tokens: float = 1.0

    def apply(self, trainer: Any) -> None:
        config, loss = self.config, self.config.loss
        trainer.loss_type = next(name for name in losses.LOSSES.names() if losses.LOSSES.get(name) is type(loss))
        trainer.importance_sampling_level = config.importance_sampling_level
        trainer.epsilon_low, trainer.epsilon_high, trainer.args.delta = (
            getattr(loss, "epsilon", 0.2), loss.epsilon_high, getattr(loss, "delta", None),
        )  # fmt: skip
        trainer.beta, trainer.args.use_bias_correction_kl = config.beta, config.use_bias_correction_kl
        trainer.vllm_importance_sampling_correction = config.tis_clip_max is not None
        trainer.vllm_importance_sampling_mode = config.tis_mode
        trainer.vllm_importance_sampling_clip_max = config.tis_clip_max
        trainer.vllm_importance_sampling_clip_min = config.tis_clip_min
        trainer.top_entropy_quantile = self.keep_tokens
        trainer.entropy_coef, trainer._entropy_bonus_enabled = config.entropy_coef, config.entropy_coef > 0


def _config(loss_type: str = "dapo", **values: Any) -> losses.ObjectiveConfig:
    defaults = {"epsilon_high": 0.28, "delta": None}
    own = {name: values.pop(name) for name in ("epsilon", "epsilon_high", "delta") if name in values}
    loss = losses.LOSSES.get(loss_type)
    if loss_type == "cispo":
        defaults = {}
    return losses.ObjectiveConfig(**({"loss": loss(**(defaults | own)), "beta": 0.0, "tis_clip_max": None} | values))


CASES = {
    **{
        f"{name}-{level}": Case(
            _config(loss_type=name, importance_sampling_level=level, epsilon=0.05, epsilon_high=0.1)
        )
        for name in ("grpo", "dapo", "bnpo", "dr_grpo")
        for level in ("token", "sequence")
    },
    "cispo": Case(_config(loss_type="cispo", epsilon_high=1.02)),
    "cispo-sequence": Case(_config(loss_type="cispo", epsilon_high=1.02, importance_sampling_level="sequence")),
    "delta": Case(_config(epsilon=0.01, epsilon_high=0.02, delta=1.03)),
    "kl": Case(_config(loss_type="grpo", beta=0.1)),
    "kl-corrected": Case(_config(beta=0.1, use_bias_correction_kl=True)),
    **{
        f"{mode}-{low}-{high}": Case(_config(tis_mode=mode, tis_clip_min=low, tis_clip_max=high))
        for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
        for low, high in ((None, 1.0), (0.5, 2.0))
    },
    "token-entropy": Case(_config(beta=0.1, tis_clip_max=1.0), keep_tokens=0.4),
    "bonus": Case(_config(loss_type="grpo", entropy_coef=0.05)),
    "bonus-token-entropy": Case(_config(loss_type="dr_grpo", entropy_coef=0.05), keep_tokens=0.4),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_equal_trls(name, trl_trainer, model, collator, rollouts):
    case = CASES[name]
    case.apply(trl_trainer)
    trl_trainer.model.load_state_dict(model.state_dict())
    trl_trainer.model.train()
    inputs = trl_trainer._generate_and_score_completions([{"prompt": "a"}] * 8)
    before = copy.deepcopy(model)
    batch = collator(
        [dataclasses.replace(sample, advantage=a) for sample, a in zip(rollouts, _advantages(), strict=True)]
    )
    with torch.no_grad():
        old, _ = response_logprobs(before, batch, ())
        reference, _ = response_logprobs(trl_trainer.ref_model, batch, ())
    if "old_per_token_logps" not in inputs:  # TRL leaves it out where the policy has not moved; here it has
        inputs["old_per_token_logps"] = _by_sample(old, batch)
    torch.testing.assert_close(inputs["advantages"], torch.tensor(_advantages()), atol=1e-6, rtol=0)
    _move(trl_trainer.model, seed=5, scale=0.02)
    trl_trainer.model.zero_grad()
    expected = trl_trainer._compute_loss(trl_trainer.model, inputs)
    expected.backward()

    _move(before, seed=5, scale=0.02)
    before.train()
    before.zero_grad()
    loss = _ours(before, batch, case, old, reference)
    loss.backward()
    assert abs(float(expected)) > 1e-4
    assert float(loss) == pytest.approx(float(expected), abs=1e-6)
    _assert_equal_gradients(before, trl_trainer.model)


def _ours(
    model: Any, batch: MicroBatch, case: Case, old: Tensor, reference: Tensor, suppressed: Sequence[int] = ()
) -> Tensor:
    logprobs, entropies = response_logprobs(model, batch, suppressed)
    kept = (
        losses.high_entropy_tokens(entropies.detach(), batch.mask, case.keep_tokens) if case.keep_tokens < 1 else None
    )
    scored = losses.Scored(
        logprobs, entropies, old, batch.mask, batch.advantages, batch.behaviour_logprobs, batch.behaviour_known,
        reference, kept_tokens=kept, weights=batch.weights,
    )  # fmt: skip
    normalizer = losses.Normalizer(
        batch.num_tokens, len(batch.mask), MAX_LENGTH, kept_tokens=None if kept is None else int(kept.sum())
    )
    return losses.objective(scored, case.config, normalizer).loss


def _advantages() -> list[float]:
    advantage = losses.ADVANTAGES.get("trajectory")()
    rewards = np.array(REWARDS, np.float64)
    groups = [advantage(losses.GroupRewards(rewards[start : start + 4], np.ones(4, np.int64))) for start in (0, 4)]
    return [float(value) for group in groups for value in group]


def _by_sample(values: Tensor, batch: MicroBatch) -> Tensor:
    """(S, T) of a micro-batch in the order of the samples that it was made of."""
    return values[batch.sample_index.argsort()]


def _assert_equal_gradients(left: Any, right: Any) -> None:
    """Every entry to 1e-6 of the gradient's norm: TRL's head computes in float32, whatever the precision."""
    named = dict(right.named_parameters())
    pairs = {name: (parameter.grad, named[name].grad) for name, parameter in left.named_parameters()}
    norm = float(torch.nn.utils.get_total_norm([other for _, other in pairs.values() if other is not None]))
    assert norm > 1e-3
    for name, (own, other) in pairs.items():
        if own is None or other is None:
            assert all(gradient is None or not gradient.any() for gradient in (own, other)), name
        else:
            difference = float((own - other).abs().max())
            assert difference <= 1e-6 * max(norm, 1.0), f"{name}: {difference} of {norm}"


def test_images_too(trl_trainer, model, collator: Collator, samples: list[Sample], tokens, vision, screens):
    """Rows with one, two and no images, padded on the left as TRL does: the same loss and gradients."""
    case = CASES["grpo-token"]
    case.apply(trl_trainer)
    chosen = [samples[index] for index in (0, 1, 2, 4, 5)]
    trl_trainer.model.load_state_dict(model.state_dict())
    trl_trainer.model.train()
    inputs = _trl_inputs(chosen, tokens, vision, screens)
    trl_trainer.model.zero_grad()
    expected = trl_trainer._compute_loss(trl_trainer.model, inputs)
    expected.backward()
    ours = copy.deepcopy(model).train()
    ours.zero_grad()
    batch = collator(chosen)
    with torch.no_grad():
        old, _ = response_logprobs(ours, batch, ())
    loss = _ours(ours, batch, case, old, old)
    loss.backward()
    assert float(loss) == pytest.approx(float(expected), abs=1e-6)
    _assert_equal_gradients(ours, trl_trainer.model)
    assert ours.model.visual.patch_embed.proj.weight.grad.abs().max() > 0


def _trl_inputs(chosen: list[Sample], tokens: Any, vision: Any, screens: dict[str, Any]) -> dict[str, Any]:
    pad: Callable[..., Tensor] = torch.nn.utils.rnn.pad_sequence
    prompts = [torch.tensor(sample.prompt_ids) for sample in chosen]
    responses = [torch.tensor(sample.response_ids) for sample in chosen]
    prompt_ids = pad(prompts, batch_first=True, padding_value=tokens.pad_id, padding_side="left")
    completion_ids = pad(responses, batch_first=True, padding_value=tokens.pad_id)
    images = [screens[image] for sample in chosen for image in sample.image_hashes]
    ids = torch.cat([prompt_ids, completion_ids], 1)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": pad([torch.ones_like(ids) for ids in prompts], batch_first=True, padding_side="left"),
        "completion_ids": completion_ids,
        "completion_mask": pad([torch.ones_like(ids) for ids in responses], batch_first=True),
        "advantages": torch.tensor([sample.advantage for sample in chosen]),
        "num_items_in_batch": torch.tensor(sum(len(ids) for ids in responses)),
        "pixel_values": torch.cat([torch.from_numpy(vision.patchify(image)) for image in images]),
        "image_grid_thw": torch.tensor([vision.grid(image) for image in images]),
        "num_images": [len(sample.image_hashes) for sample in chosen],
        "mm_token_type_ids": (ids == tokens.image_pad_id).long(),
    }

"""The head and the loss run on a part of the tokens at a time: the logits of all of them never exist at once, and every
loss and its gradient are those of the whole."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dart_train.trainer import losses, policy_logprobs
from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.memory.rank_memory import Setting, Work, rank_memory
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.weights.model_loading import load_model

pytestmark = pytest.mark.train
AT_ONCE = 7


class _Widest(TorchDispatchMode):
    """The most rows of any tensor as wide as the vocabulary, gradients included; the head's own weights left out."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self._vocabulary, self._hidden = vocabulary, hidden
        self.rows = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for one in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(one, torch.Tensor) and one.ndim == 2 and one.shape[1] == self._vocabulary:
                self.rows = max(self.rows, len(one) if len(one) != self._hidden else 0)
        return found


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
@pytest.mark.parametrize("name", sorted(losses.LOSSES.built_in))
def test_every_loss_and_its_gradient_are_those_of_the_whole(
    name, level, model_dir, collator, samples, tokens, monkeypatch
):
    batch, model = collator(samples), load_model(model_dir)
    vocabulary, hidden = model.lm_head.weight.shape
    kind = losses.LOSSES.get(name)
    config = losses.ObjectiveConfig(kind(), level, beta=0.1, entropy_coef=0.01)
    normalizer = losses.Normalizer(batch.num_tokens, len(samples), max_tokens=64)
    noise = torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(0))

    def run() -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
        model.zero_grad(set_to_none=True)
        with _Widest(vocabulary, hidden) as widest:
            logprobs, entropies = response_logprobs(model, batch, tokens.suppressed_ids)
            old = logprobs.detach() + 0.1 * noise
            scored = losses.Scored(
                logprobs, entropies, old, batch.mask, batch.advantages, batch.behaviour_logprobs,
                batch.behaviour_known, reference_logprobs=old - 0.2,
            )  # fmt: skip
            loss = losses.objective(scored, config, normalizer).loss
            loss.backward()
        return loss.detach(), {key: item.grad for key, item in model.named_parameters()}, widest.rows

    whole, gradient, rows = run()
    assert rows == batch.num_tokens > 3 * AT_ONCE
    monkeypatch.setattr(policy_logprobs, "LOGITS_AT_ONCE", AT_ONCE * vocabulary)
    found, parts, rows = run()
    assert rows == AT_ONCE
    torch.testing.assert_close(found, whole, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(parts, gradient, atol=1e-6, rtol=1e-6)


def test_the_plan_knows_how_many_logits_exist_at_once():
    seven = ModelSize.published("7b")
    few, many, more = (rank_memory(seven, Setting(), Work(9000, one)).passes["logits"] for one in (100, 1000, 9000))
    assert few < many == more


def test_weights_in_half_precision_are_cast_once_for_all_parts(model_dir, collator, samples, tokens, monkeypatch):
    """And the plan has the copy."""
    batch, model = collator(samples), load_model(model_dir, dtype=torch.bfloat16)
    head = model.lm_head.weight
    monkeypatch.setattr(policy_logprobs, "LOGITS_AT_ONCE", AT_ONCE * len(head))
    casts = []

    class _Casts(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            if (
                isinstance(found, torch.Tensor)
                and found.shape == head.shape
                and function is torch.ops.aten._to_copy.default
            ):
                casts.append(function)
            return found

    model.requires_grad_(False)
    embeddings = model.get_input_embeddings()
    embeddings.register_forward_hook(lambda module, args, found: found.requires_grad_())
    with _Casts():
        logprobs, _ = response_logprobs(model, batch, tokens.suppressed_ids)
        logprobs.sum().backward()
    assert len(casts) == 1
    seven = ModelSize.published("7b")
    settings = (Setting(lora_rank=8, half_base=half_base) for half_base in (False, True))
    whole, half = (rank_memory(seven, setting, Work(9000, 100)).passes for setting in settings)
    assert half["head in single precision"] == 4 * 152064 * 3584 and not whole["head in single precision"]

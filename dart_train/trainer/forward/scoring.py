"""The pass before the first update on a lease: pi_old, and what a selection by entropy keeps of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dart_train.trainer import losses
from dart_train.trainer.batches.collator import MicroBatch
from dart_train.trainer.batches.optimizer_batch import OptimizerBatch
from dart_train.trainer.settings.grpo_config import DartGRPOConfig
from dart_train.trainer.weights.ranks import Ranks

Forward = Callable[[MicroBatch], tuple[Tensor, Tensor]]
Scores = list[tuple[Tensor, Tensor]]


def needs_scoring(config: DartGRPOConfig) -> bool:
    """Whether a batch takes a pass of its own before the first update."""
    return config.top_entropy_quantile < 1.0 or config.old_logprobs == "recompute"


def score_batch(batch: OptimizerBatch, config: DartGRPOConfig, forward: Forward) -> Scores | None:
    """Run the pass over all micro-batches of a batch; None if none is needed: later iterations keep what was found.

    Args:
        batch: of all its micro-batches.
        config: of the trainer.
        forward: log-probabilities and entropies (S, T) of a micro-batch under the policy as it is.
    """
    if batch.old_logprobs is not None or batch.kept is not None or not needs_scoring(config):
        return None
    with torch.no_grad():
        return [forward(micro) for micro in batch.micro_batches]


def use_scores(batch: OptimizerBatch, config: DartGRPOConfig, scored: Scores, ranks: Ranks | None = None) -> None:
    """Fill in `old_logprobs` and `kept` of a batch.

    Args:
        batch: that was scored.
        config: of the trainer.
        scored: what `score_batch` returned.
        ranks: who shares the batch; quantiles are those of all of it. All must call this.
    """
    if config.old_logprobs == "recompute":
        batch.old_logprobs = [logprobs for logprobs, _ in scored]
    if config.top_entropy_quantile < 1.0:
        entropies = [values for _, values in scored]
        select = _keep_tokens if config.entropy_mask_level == "token" else _keep_steps
        select(batch, entropies, config, ranks or Ranks())


def _keep_steps(batch: OptimizerBatch, entropies: list[Tensor], config: DartGRPOConfig, ranks: Ranks) -> None:
    counting = [micro.reinforced.to(values.device) > 0 for micro, values in _pairs(batch, entropies)]
    means = [losses.masked_mean(values, micro.mask.to(values.device), -1) for micro, values in _pairs(batch, entropies)]
    groups = torch.cat([micro.groups for micro in batch.micro_batches]).to(means[0].device)
    if config.entropy_mask_scope == "batch":
        groups = torch.zeros_like(groups)
    where = torch.cat(counting)
    all_means, own = _of_all(torch.cat(means)[where], ranks)
    all_groups, _ = _of_all(groups[where], ranks)
    kept = torch.ones_like(where)
    kept[where] = losses.high_entropy_steps(all_means, all_groups, config.top_entropy_quantile)[own]
    batch.kept = list(kept.split([len(mean) for mean in means]))


def _keep_tokens(batch: OptimizerBatch, entropies: list[Tensor], config: DartGRPOConfig, ranks: Ranks) -> None:
    masks = [
        micro.mask.to(values.device) & (micro.reinforced.to(values.device) > 0)[:, None]
        for micro, values in _pairs(batch, entropies)
    ]
    flat = torch.cat([values[mask] for values, mask in zip(entropies, masks, strict=True)])
    everything, own = _of_all(flat, ranks)
    whole = losses.high_entropy_tokens(
        everything, torch.ones_like(everything, dtype=torch.bool), config.top_entropy_quantile
    )
    parts = whole[own].split([int(mask.sum()) for mask in masks])
    batch.kept = [torch.zeros_like(mask).masked_scatter(mask, part) for mask, part in zip(masks, parts, strict=True)]
    batch.normalizer = replace(batch.normalizer, kept_tokens=int(whole.sum()))


def _pairs(batch: OptimizerBatch, values: list[Tensor]) -> list[tuple[MicroBatch, Tensor]]:
    return list(zip(batch.micro_batches, values, strict=True))


def _of_all(values: Tensor, ranks: Ranks) -> tuple[Tensor, slice]:
    """(N,) values of all ranks one after the other, and where this rank's are."""
    parts = ranks.gather(values.cpu())
    start = sum(len(part) for part in parts[: ranks.rank])
    return torch.cat(parts).to(values.device), slice(start, start + len(values))

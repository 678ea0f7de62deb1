"""The pass before the first update on a lease: pi_old, and what a selection by entropy keeps of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dart_train.trainer import losses
from dart_train.trainer.batch import OptimizerBatch
from dart_train.trainer.collate import MicroBatch
from dart_train.trainer.config import DartGRPOConfig

Forward = Callable[[MicroBatch], tuple[Tensor, Tensor]]


def needs_scoring(config: DartGRPOConfig) -> bool:
    """Whether a batch takes a pass of its own before the first update."""
    return config.top_entropy_quantile < 1.0 or config.old_logprobs == "recompute"


def score_batch(batch: OptimizerBatch, config: DartGRPOConfig, forward: Forward) -> None:
    """Fill in `old_logprobs` and `kept` of a batch, unless they are there: later iterations keep them.

    Args:
        batch: of all its micro-batches.
        config: of the trainer.
        forward: log-probabilities and entropies (S, T) of a micro-batch under the policy as it is.
    """
    if batch.old_logprobs is not None or batch.kept is not None or not needs_scoring(config):
        return
    with torch.no_grad():
        scored = [forward(micro) for micro in batch.micro_batches]
    if config.old_logprobs == "recompute":
        batch.old_logprobs = [logprobs for logprobs, _ in scored]
    if config.top_entropy_quantile < 1.0:
        entropies = [values for _, values in scored]
        select = _keep_tokens if config.entropy_mask_level == "token" else _keep_steps
        select(batch, entropies, config)


def _keep_steps(batch: OptimizerBatch, entropies: list[Tensor], config: DartGRPOConfig) -> None:
    pairs = zip(batch.micro_batches, entropies, strict=True)
    means = [losses.masked_mean(values, micro.mask.to(values.device), -1) for micro, values in pairs]
    groups = torch.cat([micro.groups for micro in batch.micro_batches]).to(means[0].device)
    if config.entropy_mask_scope == "batch":
        groups = torch.zeros_like(groups)
    kept = losses.high_entropy_steps(torch.cat(means), groups, config.top_entropy_quantile)
    batch.kept = list(kept.split([len(mean) for mean in means]))


def _keep_tokens(batch: OptimizerBatch, entropies: list[Tensor], config: DartGRPOConfig) -> None:
    masks = [micro.mask.to(values.device) for micro, values in zip(batch.micro_batches, entropies, strict=True)]
    flat = torch.cat([values[mask] for values, mask in zip(entropies, masks, strict=True)])
    kept = losses.high_entropy_tokens(flat, torch.ones_like(flat, dtype=torch.bool), config.top_entropy_quantile)
    parts = kept.split([int(mask.sum()) for mask in masks])
    batch.kept = [torch.zeros_like(mask).masked_scatter(mask, part) for mask, part in zip(masks, parts, strict=True)]
    batch.normalizer = replace(batch.normalizer, kept_tokens=int(kept.sum()))

"""The numbers that describe an optimizer step, under TRL's names."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dart_train.trainer.collate import MicroBatch


class StepStatistics:
    """Sums over the micro-batches of one step."""

    def __init__(self) -> None:
        self._tokens = 0
        self._known = 0
        self._samples = 0
        self._sums: dict[str, float] = {}
        self._extremes: dict[str, float] = {}
        self._weighted = False
        self._divergence = False

    def add(
        self,
        micro: MicroBatch,
        logprobs: Tensor,
        entropies: Tensor,
        clipped: dict[str, Tensor],
        weight: Tensor | None,
        divergence: Tensor | None,
        kept: Tensor | None,
    ) -> None:
        """Take in one micro-batch. Tensors are (S, T) without gradient, `kept` is (S,), `clipped` counts tokens."""
        self._tokens += micro.num_tokens
        self._samples += len(micro.mask)
        self._sum("entropy", entropies[micro.mask])
        self._sum("kept", torch.ones(len(micro.mask)) if kept is None else kept)
        for name, count in clipped.items():
            self._sum(name, count)
        if divergence is not None:
            self._divergence = True
            self._sum("kl", divergence.detach()[micro.mask])
        known = micro.behaviour_known
        if bool(known.any()):
            difference = (logprobs - micro.behaviour_logprobs)[known].abs()
            self._known += difference.numel()
            self._sum("difference", difference)
            self._extreme("difference_max", difference.max(), largest=True)
            if weight is not None:
                self._weighted = True
                self._sum("ratio", weight[known])
                self._extreme("ratio_min", weight[known].min(), largest=False)
                self._extreme("ratio_max", weight[known].max(), largest=True)

    def summary(self) -> dict[str, float]:
        """Numbers by log name."""
        tokens, known = max(self._tokens, 1), max(self._known, 1)
        result = {
            "num_tokens": float(self._tokens),
            "entropy": self._sums["entropy"] / tokens,
            "step_entropy_kept": self._sums["kept"] / max(self._samples, 1),
            "clip_ratio/low_mean": self._sums["low"] / tokens,
            "clip_ratio/high_mean": self._sums["high"] / tokens,
            "clip_ratio/region_mean": self._sums["region"] / tokens,
        }
        if self._divergence:
            result["kl"] = self._sums["kl"] / tokens
        if self._known:
            result["sampling/sampling_logp_difference/mean"] = self._sums["difference"] / known
            result["sampling/sampling_logp_difference/max"] = self._extremes["difference_max"]
        if self._weighted:
            result["sampling/importance_sampling_ratio/mean"] = self._sums["ratio"] / known
            result["sampling/importance_sampling_ratio/min"] = self._extremes["ratio_min"]
            result["sampling/importance_sampling_ratio/max"] = self._extremes["ratio_max"]
        return result

    def _sum(self, name: str, values: Tensor) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + float(values.sum())

    def _extreme(self, name: str, value: Tensor, *, largest: bool) -> None:
        choose = max if largest else min
        self._extremes[name] = choose(self._extremes.get(name, -math.inf if largest else math.inf), float(value))


def merge_metrics(reports: Sequence[dict[str, float]]) -> dict[str, float]:
    """One report of several steps: largest of "*/max*", smallest of "*/min*", newest of counters, else the mean."""
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for report in reports for name in report):
        values = [report[name] for report in reports if name in report]
        kind = name.rsplit("/", 1)[-1]
        if kind.startswith("max"):
            merged[name] = max(values)
        elif kind.startswith("min"):
            merged[name] = min(values)
        elif name in ("version", "skipped_steps"):
            merged[name] = values[-1]
        else:
            merged[name] = sum(values) / len(values)
    return merged

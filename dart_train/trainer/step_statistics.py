"""The numbers that describe an optimizer step, under TRL's names."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from dart_train.trainer.batches.collator import MicroBatch
from dart_train.trainer.batches.optimizer_batch import Dropped
from dart_train.trainer.losses import Objective, Scored, effective_sample_share
from dart_train.trainer.losses.ratios import LOG_RATIO_LIMIT


class StepStatistics:
    """Sums over the micro-batches of one step.

    The two gaps between the policies are kept separate. `gap/engine`: pi_old against mu where both are of the same
    version, which is what kernels and precision make. `gap/behind`: the same where an older version sampled.
    `gap/staleness`: pi against pi_old, which is what the updates on this lease make.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._extremes: dict[str, float] = {}

    def add(self, micro: MicroBatch, scored: Scored, result: Objective) -> None:
        """Take in one micro-batch; one that only fills up counts nothing."""
        counting = micro.reinforced > 0
        if not bool(counting.any()):
            return
        mask = scored.mask & counting[:, None]
        logprobs, old = scored.logprobs.detach(), scored.old_logprobs
        self._mean("entropy", scored.entropies.detach()[mask])
        steps = counting.float()
        kept = scored.mask.any(-1) if scored.kept_steps is None else scored.kept_steps
        self._mean("step_entropy_kept", kept.float()[steps > 0])
        if scored.kept_tokens is not None:
            self._mean("token_entropy_kept", scored.kept_tokens[mask].float())
        for name, values in result.statistics.items():
            self._mean(name, values[mask].float())
        if result.divergence is not None:
            self._mean("kl", result.divergence[mask])
        self._gap("gap/staleness", logprobs, old, mask)
        judged = micro.teacher_known & mask
        if bool(judged.any()):
            self._mean("teacher/reverse_kl", (old - micro.teacher_logprobs)[judged])
        known = scored.behaviour_known & mask
        if bool(known.any()):
            self._behaviour(micro, scored, result.weight, known)

    def _behaviour(self, micro: MicroBatch, scored: Scored, weight: Tensor | None, known: Tensor) -> None:
        """Return how far the sampling policy is from the trained one, and the effect of the correction."""
        old, behaviour = scored.old_logprobs, scored.behaviour_logprobs
        stale = micro.stale[:, None]
        self._gap("sampling/sampling_logp_difference", old, behaviour, known)
        self._gap("gap/engine", old, behaviour, known & ~stale)
        self._gap("gap/behind", old, behaviour, known & stale)
        raw = (old - behaviour)[known].clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        self._mean("ess_sum", raw)
        self._mean("ess_squares", raw.square())
        if weight is None:
            return
        applied = weight[known]
        self._mean("sampling/importance_sampling_ratio/mean", applied)
        self._extreme("sampling/importance_sampling_ratio/min", applied.min(), largest=False)
        self._extreme("sampling/importance_sampling_ratio/max", applied.max(), largest=True)
        self._mean("sampling/truncated_fraction", ((applied - raw).abs() > 1e-5 * raw).float())
        self._mean("sampling/masked_fraction", (applied == 0).float())

    def add_dropped(self, dropped: Dropped) -> None:
        """Take in steps that a selection by entropy left out: of them nothing else is known."""
        if dropped.steps:
            self._sums["entropy"] = self._sums.get("entropy", 0.0) + dropped.entropy
            self._counts["entropy"] = self._counts.get("entropy", 0) + dropped.tokens
            self._sums.setdefault("step_entropy_kept", 0.0)
            self._counts["step_entropy_kept"] = self._counts.get("step_entropy_kept", 0) + dropped.steps

    def add_nll(self, name: str, loss: Tensor) -> None:
        """Take in a micro-batch's share in a cross-entropy by its log name, in nats per token of all ranks."""
        self._sums[name] = self._sums.get(name, 0.0) + float(loss)
        self._counts[name] = 0  # a sum of shares of all ranks

    def absorb(self, other: StepStatistics) -> None:
        """Take in what another rank counted."""
        for name, value in other._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + other._counts[name]
        for name, value in other._extremes.items():
            choose = max if name.rsplit("/", 1)[-1].startswith("max") else min
            self._extremes[name] = choose(self._extremes.get(name, value), value)

    def summary(self) -> dict[str, float]:
        """Numbers by log name."""
        means = {name: self._sums[name] / max(self._counts[name], 1) for name in self._sums}
        tokens = self._counts.get("entropy", 0)
        result = {"num_tokens": float(tokens)}
        if "ess_sum" in means:
            count = self._counts["ess_sum"]
            result["sampling/effective_sample_share"] = effective_sample_share(
                self._sums["ess_sum"], self._sums["ess_squares"], count
            )
        hidden = ("ess_sum", "ess_squares")
        return result | {name: value for name, value in means.items() if name not in hidden} | self._extremes

    def _gap(self, name: str, left: Tensor, right: Tensor, where: Tensor) -> None:
        """Mean and largest absolute difference of log-probabilities."""
        if bool(where.any()):
            difference = (left - right)[where].abs()
            self._mean(f"{name}/mean", difference)
            self._extreme(f"{name}/max", difference.max(), largest=True)

    def _mean(self, name: str, values: Tensor) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + float(values.sum())
        self._counts[name] = self._counts.get(name, 0) + values.numel()

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
        elif name in ("version", "skipped_steps", "skipped_leases"):
            merged[name] = values[-1]
        else:
            merged[name] = sum(values) / len(values)
    return merged

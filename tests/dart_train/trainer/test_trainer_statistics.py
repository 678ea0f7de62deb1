"""What a step reports: gaps between the three policies apart, clips, truncation, effective samples."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from dart_train.trainer import losses
from dart_train.trainer.batches.collator import equal_counts
from dart_train.trainer.step_statistics import StepStatistics, merge_metrics

pytestmark = pytest.mark.train


@pytest.fixture
def micro(collator, samples):
    """Three samples without an image row in common: the first two with log-probabilities, the first stale."""
    chosen = [replace(samples[2], stale=True), samples[6], samples[3]]
    return collator(chosen)


def report(config: losses.ObjectiveConfig, *micros, shift: float = 0.0, engine: float = 0.0, behind: float = 0.0):
    """Statistics where pi is `shift` above pi_old, and pi_old so much above mu: by the engine, or an older version."""
    statistics = StepStatistics()
    for micro in micros:
        mu = torch.where(micro.stale[:, None], -2.0 - behind, -2.0 - engine).expand(micro.mask.shape)
        old = torch.full(micro.mask.shape, -2.0)
        scored = losses.Scored(
            old + shift, torch.ones_like(old), old, micro.mask, micro.advantages, mu, micro.behaviour_known,
            old - 0.5, weights=micro.weights,
        )  # fmt: skip
        normalizer = losses.Normalizer(micro.num_tokens, len(micro.mask))
        statistics.add(micro, scored, losses.objective(scored, config, normalizer))
    return statistics.summary()


def test_the_gaps_are_apart(micro):
    found = report(losses.ObjectiveConfig(tis_clip_max=1.0), micro, shift=0.01, engine=0.02, behind=0.3)
    assert found["gap/engine/mean"] == pytest.approx(0.02, abs=1e-6)
    assert found["gap/behind/mean"] == found["gap/behind/max"] == pytest.approx(0.3, abs=1e-6)
    assert found["gap/staleness/mean"] == pytest.approx(0.01, abs=1e-6)
    assert 0.02 < found["sampling/sampling_logp_difference/mean"] < 0.3
    assert found["kl"] == pytest.approx(math.exp(-0.51) + 0.51 - 1, abs=1e-6)
    assert found["num_tokens"] == micro.num_tokens and found["entropy"] == 1.0


def test_truncation_and_effective_samples(micro):
    same = report(losses.ObjectiveConfig(tis_clip_max=1.0), micro)
    assert same["sampling/effective_sample_share"] == pytest.approx(1.0)
    assert same["sampling/truncated_fraction"] == 0.0 == same["clip_ratio/region_mean"]
    apart = report(losses.ObjectiveConfig(tis_clip_max=1.0), micro, behind=2.0)
    stale = int(micro.mask[micro.stale].sum())
    known = int(micro.behaviour_known.sum())
    weights = torch.tensor([math.exp(2.0)] * stale + [1.0] * (known - stale))
    assert apart["sampling/truncated_fraction"] == pytest.approx(stale / known)
    share = float(weights.sum() ** 2 / (len(weights) * weights.square().sum()))
    assert apart["sampling/effective_sample_share"] == pytest.approx(share)
    masked = report(losses.ObjectiveConfig(tis_mode="token_mask", tis_clip_max=2.0), micro, behind=2.0)
    assert masked["sampling/masked_fraction"] == pytest.approx(stale / known)


def test_clips_of_either_kind(micro):
    clipped = report(losses.ObjectiveConfig(), micro, shift=1.0)
    positive = float(micro.mask[micro.advantages > 0].sum() / micro.mask.sum())
    assert clipped["clip_ratio/high_mean"] == clipped["clip_ratio/region_mean"] == pytest.approx(positive)
    cispo = report(losses.ObjectiveConfig(loss=losses.CISPO(epsilon_high=2.0)), micro, shift=1.0)
    assert cispo["cispo_clip_ratio"] == pytest.approx(positive) and "clip_ratio/high_mean" not in cispo


def test_rows_that_fill_up_are_not_counted(micro):
    config = losses.ObjectiveConfig()
    assert report(config, *equal_counts([micro], 3), engine=0.1) == report(config, micro, engine=0.1)


def test_merging_keeps_extremes():
    merged = merge_metrics(
        [{"gap/engine/max": 1.0, "kl": 1.0, "version": 3.0}, {"gap/engine/max": 0.5, "kl": 2.0, "version": 4.0}]
    )
    assert merged == {"gap/engine/max": 1.0, "kl": 1.5, "version": 4.0}

"""Several processes train as one: the same losses and weights, however unequal their shares; none waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training_lives import copy_run, live, open_run

from dart_train.core.metrics_log import read_metrics
from dart_train.trainer.batches.optimizer_batch import rank_samples
from dart_train.trainer.batches.samples import Sample
from dart_train.trainer.grpo_trainer import load_model
from dart_train.trainer.rank_agreement import checkout_digest, difference
from dart_train.trainer.weights.ranks import Ranks

pytestmark = pytest.mark.train

CASES: dict[str, dict[str, object]] = {
    "defaults": {},
    "everything": {
        "top_entropy_quantile": 0.5, "old_logprobs": "recompute", "num_iterations": 2, "beta": 0.1, "max_steps": 4,
        "micro_batch_tokens": 64, "gradient_accumulation_steps": 2, "loss_type": "dapo", "entropy_coef": 0.01,
    },
}  # fmt: skip


def result(root: Path) -> tuple[list[dict], torch.Tensor]:
    with open_run(root) as data:
        model = load_model(data.newest_checkpoint().path)
        assert not data.counts().get("leased")
        assert [str(row.status) for row in data.checkpoints()].count("COMPLETED") >= 2
    return list(read_metrics(root / "metrics.jsonl")), torch.cat(
        [item.detach().flatten() for item in model.parameters()]
    )


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_two_processes_are_one(case, recorded, model_dir, tmp_path):
    """A lease of three groups, shared by two ranks in halves that are no whole groups.

    By plain gradient descent: Adam would blow the rounding of gradients of almost 0 up to the learning rate.
    """
    settings = {"optim": "sgd", "learning_rate": 0.1, "max_steps": 2, "groups_per_step": 3, "publish_steps": 1} | CASES[
        case
    ]
    found = {}
    for ranks in (1, 2):
        root = copy_run(recorded, tmp_path / str(ranks))
        assert live(root, model_dir, ranks=ranks, **settings) == [0] * ranks
        found[ranks] = result(root)
    (alone, one), (together, two) = found[1], found[2]
    assert len(alone) == len(together) == settings["max_steps"]
    for left, right in zip(alone, together, strict=True):
        for name in ("loss", "grad_norm", "entropy", "reward", "num_tokens", "step_entropy_kept", "batch/samples"):
            assert right[name] == pytest.approx(left[name], abs=2e-6, rel=1e-5), name
    torch.testing.assert_close(two, one, atol=2e-6, rtol=1e-5)


def sample(trajectory: int, length: int) -> Sample:
    return Sample(tuple(range(length)), (), (1,), trajectory=trajectory)


def test_samples_are_shared_by_whole_trajectories():
    samples = [sample(trajectory, length) for trajectory, length in [(0, 9), (0, 12), (1, 10), (2, 8), (3, 3)]]
    shares = [rank_samples(samples, Ranks(rank, 2)) for rank in (0, 1)]
    assert [{item.trajectory for item in share} for share in shares] == [{0}, {1, 2, 3}]
    assert sorted(map(id, shares[0] + shares[1])) == sorted(map(id, samples))
    assert rank_samples(samples, Ranks()) == samples


def test_a_rank_without_a_share_runs_along_and_counts_nothing():
    samples = [sample(0, 9), sample(0, 4), sample(1, 6)]
    shares = [rank_samples(samples, Ranks(rank, 3)) for rank in range(3)]
    assert [len(share) for share in shares] == [2, 1, 1]
    assert shares[2][0].weight == 0 and shares[2][0].prompt_ids == samples[1].prompt_ids


@pytest.mark.process
def test_ranks_with_different_settings_are_refused_before_anything_is_loaded(recorded, model_dir, tmp_path):
    root = copy_run(recorded, tmp_path / "run")
    assert live(root, model_dir, ranks=2, of_last={"learning_rate": 0.5}) == [1, 1]
    assert not (root / "checkpoints").exists()


def test_what_differs_between_ranks_is_said_with_the_ranks():
    same = {"checkout": "ab12", "setting beta": "0.1", "python": "3.11.2"}
    assert difference([same, same]) is None
    said = difference([same, same | {"checkout": "cd34", "python": "3.12.0"}, same])
    assert said == (
        "ranks differ in checkout: ab12 on ranks 0, 2, cd34 on rank 1 (1 more differ: python). "
        "Start all with the same checkout, packages, model and configuration"
    )
    assert checkout_digest() == checkout_digest()

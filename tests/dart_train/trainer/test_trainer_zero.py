"""Ranks that share the optimizer's state (DeepSpeed's ZeRO) train as one process does, and go on from there.

Needs the package, in an environment of its own: `make test-deepspeed`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training_lives import copy_run, live

from dart_train.data.curation import CurationConfig
from dart_train.data.manager import DataManager
from dart_train.metrics import read_metrics
from dart_train.trainer import checkpoint
from dart_train.trainer.models import load_model

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(800)]

PLAIN = {"optim": "sgd", "learning_rate": 0.1, "max_steps": 2, "groups_per_step": 3, "publish_steps": 1}
"""By plain gradient descent: Adam would blow the rounding of gradients of almost 0 up to the learning rate."""
EVERYTHING = {
    "top_entropy_quantile": 0.5, "old_logprobs": "recompute", "num_iterations": 2, "beta": 0.1, "max_steps": 4,
    "micro_batch_tokens": 64, "gradient_accumulation_steps": 2, "loss_type": "dapo", "entropy_coef": 0.01,
    "gradient_checkpointing": True,
}  # fmt: skip
ADAPTER = {"use_peft": True, "lora_r": 4, "beta": 0.1, "old_logprobs": "recompute", "learning_rate": 1.0}


def zero(stage: int, **more: object) -> dict[str, object]:
    """Settings of ranks that share the optimizer's state."""
    return {"deepspeed": {"zero_optimization": {"stage": stage, **more}}}


def open_run(root: Path) -> DataManager:
    curation = CurationConfig(group_size=4, max_staleness=None)
    return DataManager.open(f"sqlite:///{root}/data/dart.sqlite", root / "data", "run", config=curation)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, record_into) -> Path:
    root = tmp_path_factory.mktemp("recorded")
    with open_run(root) as data:
        for number in range(6):
            rewards = tuple(float((number + place) % 4 < 2) + 0.1 * number * place for place in range(4))
            record_into(data, f"g{number}", rewards, -6.0 - number / 4)
    return root


def result(root: Path) -> tuple[list[dict], dict[str, torch.Tensor]]:
    """What was logged, and the newest version's weights."""
    with open_run(root) as data:
        newest = data.newest_checkpoint()
        assert newest.version == len(list(read_metrics(root / "metrics.jsonl")))
        assert not data.counts().get("leased")
        model = load_model(newest.path)
    assert model.config.architectures == ["Qwen2_5_VLForConditionalGeneration"]
    return list(read_metrics(root / "metrics.jsonl")), model.state_dict()


CASES = {
    "stage 2": ({}, zero(2)),
    "stage 2, everything, small buckets": (EVERYTHING, zero(2, reduce_bucket_size=3000, allgather_bucket_size=3000)),
    "stage 1, adapter": (ADAPTER, zero(1)),
}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_with_half_an_optimizer_each_are_one_process(case, recorded, model_dir, tmp_path):
    more, shared = CASES[case]
    settings = PLAIN | more
    found = {}
    for ranks in (1, 2):
        root = copy_run(recorded, tmp_path / str(ranks))
        assert live(root, model_dir, ranks=ranks, **settings, **(shared if ranks > 1 else {})) == [0] * ranks
        found[ranks] = result(root)
    (alone, one), (together, two) = found[1], found[2]
    assert len(alone) == len(together) == settings["max_steps"]
    for left, right in zip(alone, together, strict=True):
        for name in ("loss", "grad_norm", "entropy", "reward", "num_tokens", "batch/samples"):
            assert right[name] == pytest.approx(left[name], abs=2e-6, rel=1e-5), name
    torch.testing.assert_close(two, one, atol=2e-6, rtol=1e-5)
    untouched = load_model(model_dir).state_dict()
    assert any(not torch.equal(one[name], untouched[name]) for name in one)

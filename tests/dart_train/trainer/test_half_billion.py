"""A Qwen2.5-VL of half a billion random weights on two ranks (FSDP2) against one process: widths that users train."""

from __future__ import annotations

import math
from pathlib import Path

import psutil
import pytest
from safetensors import safe_open
from training_lives import copy_run, live

from dart_lab.train.transfer_bench import build_model
from dart_train.core.metrics_log import read_metrics

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.timeout(3000)]

SETTINGS = {"optim": "sgd", "learning_rate": 0.05, "max_steps": 2, "publish_steps": 9, "save_strategy": "no"}
WAYS = {"full": {"micro_batch_tokens": 128}, "lora": {"use_peft": True, "lora_r": 16, "micro_batch_tokens": 128}}
NEEDED = 14 << 30
"""Bytes of memory for two ranks and what they publish."""


@pytest.fixture(scope="module")
def half_a_billion(tmp_path_factory) -> Path:
    path = build_model("half", tmp_path_factory.mktemp("half") / "model")
    with safe_open(path / "model.safetensors", "pt") as file:
        assert 0.45e9 < sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys()) < 1e9
    return path


@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_of_half_a_billion_have_the_losses_of_one_process(way, recorded, half_a_billion, tmp_path):
    """The head in chunks of seven tokens, rows packed, two steps."""
    assert psutil.virtual_memory().available > NEEDED, "run it when 14 GiB of memory are free"
    logged = []
    for ranks in (1, 2):
        root = copy_run(recorded, tmp_path / str(ranks))
        shared = {"fsdp": True} if ranks > 1 else {}
        assert live(root, half_a_billion, "chunks", ranks=ranks, **SETTINGS, **WAYS[way], **shared) == [0] * ranks
        logged.append(list(read_metrics(root / "metrics.jsonl")))
    alone, together = logged
    assert len(alone) == len(together) == 2 and alone[0]["loss"] != alone[1]["loss"]
    for expected, found in zip(alone, together, strict=True):
        for name in ("loss", "grad_norm", "entropy"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name

"""`dart-train parity --engine vllm`: a real server is started, and agrees with the trainer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dart_agent.models.tiny_model import build_tiny_model
from dart_train.parity.check_model import compare
from dart_train.parity.gap_table import Gap
from dart_train.parity.recorded_conversation import Shape
from tests.helpers.vllm_server import ENVIRONMENT, OPTIONS, program, tiny_config, vllm_model

__all__ = ["vllm_model"]
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]


def gaps_of_engine(model: Path, dtype: str) -> list[Gap]:
    """What parts a started server from the model's own forward pass and from the trainer."""
    found = compare(
        model,
        engine="vllm",
        engine_options={
            "program": [str(program())],
            "options": (*OPTIONS, "--dtype", dtype),
            "environment": ENVIRONMENT,
            "max_length": 2048,
        },
        engine_dtype=dtype,
        shape=Shape(screen=(112, 84), steps=4, tokens=8),
        dtypes=(torch.float32,),
    )
    engines = [item for item in found.gaps if "engine" in item.pair]
    assert engines and all(item.agrees for item in found.gaps if "engine" not in item.pair)
    return engines


def test_vllm_agrees_with_the_trainer_on_qwen2_5_vl(vllm_model):
    assert max(item.largest for item in gaps_of_engine(vllm_model, "float32")) < 1e-3


def test_vllm_agrees_with_the_trainer_on_qwen3_5(tmp_path):
    """Its recurrent layers, whose memory vLLM keeps in its own cache; on a CPU it computes them in bfloat16 alone."""
    model = build_tiny_model(tmp_path, seed=11, config=tiny_config("qwen3_5"))
    engines = gaps_of_engine(model, "bfloat16")
    assert all(item.agrees for item in engines), engines


@pytest.mark.parametrize(("family", "dtype"), [("qwen3_vl_moe", "float32"), ("qwen3_5_moe", "bfloat16")])
def test_vllm_agrees_with_the_trainer_on_mixtures_of_experts(family, dtype, tmp_path):
    """It reads experts as they were published, whose sides another layout would swap without an error."""
    model = build_tiny_model(tmp_path, seed=11, config=tiny_config(family))
    engines = gaps_of_engine(model, dtype)
    if dtype == "float32":
        assert max(item.largest for item in engines) < 1e-3
    assert all(item.agrees for item in engines), engines

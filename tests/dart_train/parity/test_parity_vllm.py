"""`dart-train parity --engine vllm`: a real server is started, and agrees with the trainer."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from dart_agent.models.tiny_model import build_tiny_model
from dart_train.parity.check_model import compare
from dart_train.parity.recorded_conversation import Shape
from tests.helpers.vllm_server import ENVIRONMENT, OPTIONS, program, tiny_config, vllm_model

__all__ = ["vllm_model"]
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]


def test_vllm_agrees_with_the_trainer_on_qwen2_5_vl(vllm_model):
    agree(vllm_model)


def test_vllm_agrees_with_the_trainer_on_qwen3_5(tmp_path):
    """Its recurrent layers too, whose memory vLLM keeps in its own cache."""
    agree(build_tiny_model(tmp_path, seed=11, config=dataclasses.replace(tiny_config(), family="qwen3_5")))


def agree(model: Path) -> None:
    options = {"program": [str(program())], "options": OPTIONS, "environment": ENVIRONMENT, "max_length": 2048}
    found = compare(
        model, engine="vllm", engine_options=options, shape=Shape(screen=(112, 84), steps=4, tokens=8),
        dtypes=(torch.float32,),
    )  # fmt: skip
    engines = [item for item in found.gaps if "engine" in item.pair]
    assert engines and max(item.largest for item in engines) < 1e-3

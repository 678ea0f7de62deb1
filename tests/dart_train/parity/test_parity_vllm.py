"""`dart-train parity --engine vllm`: a real server is started, and agrees with the trainer."""

from __future__ import annotations

import pytest
import torch

from dart_train.parity.check_model import compare
from dart_train.parity.recorded_conversation import Shape
from tests.helpers.vllm_server import ENVIRONMENT, OPTIONS, program, vllm_model

__all__ = ["vllm_model"]
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]


def test_vllm_agrees_with_the_trainer(vllm_model):
    options = {"program": [str(program())], "options": OPTIONS, "environment": ENVIRONMENT, "max_length": 2048}
    found = compare(
        vllm_model, engine="vllm", engine_options=options, shape=Shape(screen=(112, 84), steps=4, tokens=8),
        dtypes=(torch.float32,),
    )  # fmt: skip
    engines = [item for item in found.gaps if "engine" in item.pair]
    assert engines and max(item.largest for item in engines) < 1e-3

"""Ranks that hold parts of a mixture of experts (FSDP2) train it as one process does, also with fewer experts."""

from __future__ import annotations

import pytest
from rank_checks import PLAIN, trained_alone_and_together
from training_lives import assert_same_training

from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model

pytestmark = [pytest.mark.scale, pytest.mark.train, pytest.mark.process, pytest.mark.timeout(800)]


@pytest.mark.parametrize(
    ("family", "experts"), [("qwen3_vl_moe", 3), pytest.param("qwen3_5_moe", 1, marks=pytest.mark.slow)]
)
def test_two_ranks_with_parts_of_a_mixture_are_one_process(family, experts, recorded, tmp_path):
    """Of three experts one rank holds two; a single one leaves the other rank without any."""
    shape = TinyModelConfig(
        family=family, hidden_size=32, layers=2, vision_hidden_size=32, vision_layers=1, experts=experts
    )
    model_dir = build_tiny_model(tmp_path / "model", seed=1, config=shape)
    settings = PLAIN | {"gradient_checkpointing": True}
    alone, together = trained_alone_and_together(recorded, model_dir, tmp_path, {"fsdp": True}, **settings)
    assert_same_training(alone, together, settings["max_steps"], model_dir)

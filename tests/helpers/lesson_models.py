"""The fresh model that the lessons of `scripts/` begin with."""

from __future__ import annotations

from pathlib import Path

from dart_train.config.run_config import load_config
from dart_train.processes.prepare import place_model

CONFIG = Path(__file__).parents[2] / "configs" / "tiny_copier.yaml"


def fresh_copier(target: Path) -> Path:
    """Write the model of `configs/tiny_copier.yaml` as it is before its first lesson; returns its directory."""
    config = load_config(CONFIG)
    place_model("tiny", config.model.tiny, target, seed=0, pixels={"max_pixels": config.agent.max_pixels})
    return target

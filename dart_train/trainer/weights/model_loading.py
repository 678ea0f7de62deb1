"""Models as they are trained and as they are compared with."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForImageTextToText

from dart_train.trainer.weights.adapters import add_adapter, base_model, is_adapted

if TYPE_CHECKING:
    from dart_train.trainer.settings.grpo_config import DartGRPOConfig


def load_model(model_dir: str | Path, *, dtype: torch.dtype = torch.float32) -> Any:
    """Load the model of a directory for training: PyTorch's attention, no dropout changes, no cache."""
    return AutoModelForImageTextToText.from_pretrained(str(model_dir), dtype=dtype, attn_implementation="sdpa")


def trainable(model: Any, config: DartGRPOConfig) -> Any:
    """A model with the parts frozen and the adapter added that a configuration asks for."""
    if config.freeze_vision:
        base_model(model).model.visual.requires_grad_(False)
    return add_adapter(model, config) if config.use_peft and not is_adapted(model) else model


def frozen_copy(model: Any, path: str | Path | None, device: torch.device) -> Any:
    """A second model that is never trained: of a directory, or of a model as it is."""
    reference = copy.deepcopy(model) if path is None else load_model(path)
    return reference.to(device).eval().requires_grad_(False)

"""Models as they are trained and as they are compared with."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from dart_train.trainer.weights.adapters import LoraSettings, add_adapter, base_model, is_adapted


def load_model(model_dir: str | Path, *, dtype: torch.dtype = torch.float32) -> Any:
    """Load the model of a directory for training: PyTorch's attention, no dropout changes, no cache."""
    return AutoModelForImageTextToText.from_pretrained(str(model_dir), dtype=dtype, attn_implementation="sdpa")


def trainable(model: Any, *, freeze_vision: bool, lora: LoraSettings | None) -> Any:
    """A model as it is trained.

    Args:
        model: a `PreTrainedModel`, or one inside a peft model, which keeps its adapter.
        freeze_vision: whether the vision tower's weights stay as they are.
        lora: adapter that is added where there is none; None for no adapter.
    """
    if freeze_vision:
        base_model(model).model.visual.requires_grad_(False)
    return add_adapter(model, lora) if lora and not is_adapted(model) else model


def frozen_copy(model: Any, path: str | Path | None, device: torch.device) -> Any:
    """A second model that is never trained: of a directory, or of a model as it is."""
    reference = copy.deepcopy(model) if path is None else load_model(path)
    return reference.to(device).eval().requires_grad_(False)

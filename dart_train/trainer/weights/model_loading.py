"""Models as they are trained and as they are compared with."""

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from dart_agent.models.families.family_table import family_in, model_config
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.pointer_head import attach_head
from dart_gym.core.errors import ConfigurationError
from dart_train.trainer.attention.model_attention import take_over
from dart_train.trainer.weights.adapters import LoraSettings, add_adapter, base_model, is_adapted


def load_model(model_dir: str | Path, *, dtype: torch.dtype = torch.float32) -> Any:
    """Load a directory's model for training: our attention, no cache, with its pointer head where it has one.

    Raises:
        ConfigurationError: if there is no model to train.
    """
    check_model(model_dir)
    model = AutoModelForImageTextToText.from_pretrained(str(model_dir), dtype=dtype, attn_implementation="sdpa")
    take_over(model)
    attach_head(model, model_dir)
    return model


def check_model(model_dir: str | Path) -> None:
    """Refuse a model that would be trained wrongly, by the small files of its directory. Raises as `load_model`."""
    family_in(model_dir)
    text = model_config(model_dir).get("text_config") or model_config(model_dir)
    if text.get("use_sliding_window") and text.get("sliding_window"):
        raise ConfigurationError(
            f"{model_dir}: models with sliding-window attention are not trained: set use_sliding_window to false in "
            "its config.json if it was trained without"
        )
    if not (Path(model_dir) / "tokenizer.json").is_file():  # a state that training resumes from: weights alone
        return
    tokens, rows = ModelTokens.load(model_dir).highest_id + 1, text.get("vocab_size")
    if rows is not None and tokens > rows:
        raise ConfigurationError(
            f"{model_dir}: the tokenizer has ids up to {tokens - 1}, the model has weights for {rows}: resize its "
            "embeddings, or take the tokenizer that belongs to it"
        )


def trainable(model: Any, *, freeze_vision: bool, lora: LoraSettings | None) -> Any:
    """Return a model as it is trained, with a new adapter if it has none yet."""
    if freeze_vision:
        base_model(model).model.visual.requires_grad_(False)
    return add_adapter(model, lora) if lora and not is_adapted(model) else model


def frozen_copy(model: Any, path: str | Path | None, device: torch.device) -> Any:
    """A second model that is never trained: of a directory, or of a model as it is."""
    reference = copy.deepcopy(model) if path is None else load_model(path)
    return reference.to(device).eval().requires_grad_(False)

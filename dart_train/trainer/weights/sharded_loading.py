"""Reading a model of which this process holds a part: it is built without weights, cut, and filled tensor by tensor.

Invariant: in addition to its own part, a rank has a part of one tensor in memory at a time. Nobody reads the whole
model: 8 ranks of an 8.3B model would be 8 copies of 33 GB otherwise.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, GenerationConfig
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from dart_agent.models.pointer_head import head_weights
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.attention.model_attention import take_over
from dart_train.trainer.weights.adapters import base_model
from dart_train.trainer.weights.model_loading import check_model
from dart_train.trainer.weights.ranks import Ranks, first_row, local_part

BYTES_AT_ONCE = 64 << 20
"""Bytes of a file that are read at a time into a tensor."""


def empty_model(model_dir: str | Path, *, dtype: torch.dtype = torch.float32) -> Any:
    """The model of a directory without its weights: they are on the meta device, which has no memory."""
    check_model(model_dir)
    if head_weights(model_dir):
        raise TrainingError(f"{model_dir} has a pointer head, which is not cut among ranks: train it without fsdp")
    config = AutoConfig.from_pretrained(str(model_dir))
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype, attn_implementation="sdpa")
    if (Path(model_dir) / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(str(model_dir))
    take_over(model)
    return model


def sources(model: Any, model_dir: str | Path) -> dict[str, tuple[Path, str]]:
    """Return where each weight of a model lies: file and name.

    Raises:
        TrainingError: if a weight is missing, or has another layout.
    """
    transforms = get_model_conversion_mapping(model)
    renamings = [item for item in transforms if isinstance(item, WeightRenaming)]
    others = [item for item in transforms if isinstance(item, WeightConverter)]
    wanted = model.state_dict()
    found: dict[str, tuple[Path, str]] = {}
    for file in sorted(Path(model_dir).glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for key in weights.keys():
                name, converted = rename_source_key(key, renamings, others, model.base_model_prefix, wanted)
                if converted is not None:
                    raise TrainingError(
                        f"{file}: {key} has another layout than {name} in memory, so ranks cannot read parts of it: "
                        "load the model and save it with the installed transformers first, or train without fsdp"
                    )
                found[name] = (file, key)
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    missing = sorted(wanted.keys() - found.keys() - tied)
    if missing:
        raise TrainingError(
            f"{model_dir} lacks {len(missing)} of the model's weights, such as {missing[0]}: it is no whole directory "
            "of safetensors files, or its config.json says tie_word_embeddings wrongly"
        )
    return found


def fill(model: Any, places: dict[str, tuple[Path, str]], device: torch.device, ranks: Ranks) -> None:
    """Allocate an empty model on a device and fill it with this rank's part.

    Raises:
        TrainingError: if a weight has another shape.
    """
    model.to_empty(device=device)
    base = base_model(model)
    base.tie_weights()
    for module in model.modules():
        if module._non_persistent_buffers_set:  # rotary frequencies, which no file has
            base._init_weights(module)
    with ExitStack() as files:
        opened: dict[Path, Any] = {}
        for name, parameter in base.named_parameters():
            if ".lora_" in name:
                continue
            file, key = places[name.replace(".base_layer.", ".")]
            if file not in opened:
                opened[file] = files.enter_context(safe_open(file, framework="pt"))
            _read(opened[file].get_slice(key), parameter.detach(), f"{file}: {key}", ranks)


def _read(source: Any, target: Tensor, what: str, ranks: Ranks) -> None:
    """Read the rows of a tensor in a file that a rank holds of a parameter."""
    shape = tuple(source.get_shape())
    if shape != tuple(target.shape):
        raise TrainingError(f"{what} is {shape} and the model's {tuple(target.shape)}: config.json is another model's")
    own, first = local_part(target), first_row(target, ranks)
    size = max(BYTES_AT_ONCE // (4 * max(own[:1].numel(), 1)), 1)
    for start in range(0, len(own), size):
        part = own[start : start + size]
        part.copy_(source[first + start : first + start + len(part)])

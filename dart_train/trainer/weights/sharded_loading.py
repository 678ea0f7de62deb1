"""Reading a model of which this process holds a part: it is built without weights, cut, and filled tensor by tensor.

Invariant: in addition to its own part, a rank has a part of one tensor in memory at a time. Nobody reads the whole
model: 8 ranks of an 8.3B model would be 8 copies of 33 GB otherwise.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, GenerationConfig
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from dart_agent.models.expert_weights import all_matrices, expert_matrix, is_fused, is_swapped
from dart_agent.models.pointer_head import head_weights
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.attention.model_attention import take_over
from dart_train.trainer.weights.adapters import base_model
from dart_train.trainer.weights.model_loading import check_model
from dart_train.trainer.weights.ranks import Ranks, first_row, local_part

BYTES_AT_ONCE = 64 << 20
"""Bytes of a file that are read at a time into a tensor."""


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor in a file that is a weight of the model.

    Attributes:
        key: name of the tensor in the file.
        expert: whose matrix it is, where the weight holds those of all experts; None where it is the whole weight.
        half: 1 for the second half of the expert's rows.
    """

    file: Path
    key: str
    expert: int | None = None
    half: int = 0


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


def sources(model: Any, model_dir: str | Path) -> dict[str, list[Source]]:
    """Return where each weight of a model lies.

    Raises:
        TrainingError: if a weight is missing, or has another layout.
    """
    transforms = get_model_conversion_mapping(model)
    renamings = [item for item in transforms if isinstance(item, WeightRenaming)]
    others = [item for item in transforms if isinstance(item, WeightConverter)]
    wanted = model.state_dict()
    found: dict[str, list[Source]] = {}
    for file in sorted(Path(model_dir).glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for key in weights.keys():
                matrix = expert_matrix(key)
                fused = key if matrix is None else matrix.fused
                name, converted = rename_source_key(fused, renamings, others, model.base_model_prefix, wanted)
                if converted is not None and not is_fused(name):
                    raise TrainingError(
                        f"{file}: {key} has another layout than {name} in memory, so ranks cannot read parts of it: "
                        "load the model and save it with the installed transformers first, or train without fsdp"
                    )
                if matrix is None:
                    found[name] = [Source(file, key)]
                else:
                    found.setdefault(name, []).append(Source(file, key, matrix.expert, matrix.half))
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    missing = [name for name in wanted if name not in tied and not _whole(name, found.get(name), wanted[name])]
    if missing:
        raise TrainingError(
            f"{model_dir} lacks {len(missing)} of the model's weights, such as {min(missing)}: it is no whole "
            "directory of safetensors files, or its config.json says tie_word_embeddings wrongly"
        )
    return found


def _whole(name: str, found: list[Source] | None, wanted: Tensor) -> bool:
    """Return whether a weight is there, of each expert where every one has its own."""
    if not found or found[0].expert is None:
        return bool(found)
    return {(source.expert, source.half) for source in found} == all_matrices(name, len(wanted))


def fill(model: Any, places: dict[str, list[Source]], device: torch.device, ranks: Ranks) -> None:
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
            for place in places[name.replace(".base_layer.", ".")]:
                if place.file not in opened:
                    opened[place.file] = files.enter_context(safe_open(place.file, framework="pt"))
                _read(opened[place.file].get_slice(place.key), parameter.detach(), place, ranks)


def _read(source: Any, target: Tensor, place: Source, ranks: Ranks) -> None:
    """Read what a rank holds of a parameter from a tensor in a file.

    Raises:
        TrainingError: if the tensor has another shape.
    """
    shape, wanted = tuple(source.get_shape()), tuple(target.shape)
    own, first = local_part(target), first_row(target, ranks)
    if place.expert is not None:
        wanted = (wanted[1] // (1 if place.key.endswith(".down_proj.weight") else 2), wanted[2])
    swapped = is_fused(place.key) and is_swapped(shape, wanted)
    if shape != wanted and not swapped:
        raise TrainingError(
            f"{place.file}: {place.key} is {shape} and the model's {wanted}: config.json is another model's"
        )
    if place.expert is not None:
        if first <= place.expert < first + len(own):
            rows = own[place.expert - first]
            rows[place.half * shape[0] : (place.half + 1) * shape[0]].copy_(source[:])
        return
    size = max(BYTES_AT_ONCE // (4 * max(own[:1].numel(), 1)), 1)
    for start in range(0, len(own), size):
        part = own[start : start + size]
        read = source[first + start : first + start + len(part)]
        part.copy_(read.transpose(1, 2) if swapped else read)

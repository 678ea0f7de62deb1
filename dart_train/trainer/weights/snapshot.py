"""A snapshot of the weights, apart from the model: a version is written from it while training continues.

Invariants:
    - A snapshot is in the CPU's memory, shares none with the model, and has the number type of the checkpoint that
      training began from: what is published of a bfloat16 model takes two bytes a weight.
    - Its fingerprint was made with the weights that training computes with. Rounding to bfloat16 moves it by hundredths
      of a nat, as an engine that computes in bfloat16 does.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dart_agent.engines.weight_stream.dart_weight_socket import TensorShape
from dart_agent.models.expert_weights import as_published
from dart_agent.models.families.family_table import family_of
from dart_train.core.fingerprint import Fingerprint
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.weights.adapters import base_model, is_adapted, merged_weights
from dart_train.trainer.weights.fingerprint_probe import fingerprint_of
from dart_train.trainer.weights.gathering import gathered
from dart_train.trainer.weights.ranks import ALONE, Ranks
from dart_train.trainer.weights.sharding import is_sharded, through
from dart_train.trainer.weights.weight_server import VersionInMemory


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Data that the main rank writes; on other ranks without weights (adapters merged) and fingerprint.

    Weights are as files hold them (`expert_weights.as_published`), by their names in memory.
    """

    model: Any
    weights: dict[str, Tensor]
    dtype: torch.dtype
    fingerprint: Fingerprint | None


def snapshot(
    model: Any,
    model_dir: str | Path,
    ranks: Ranks = ALONE,
    offer: Callable[[list[TensorShape]], VersionInMemory] | None = None,
) -> Snapshot:
    """Take the weights as they are, in the number type of `model_dir`'s. Called by all ranks.

    Args:
        model: the trainer's.
        model_dir: directory of weights that says which number type they have.
        ranks: those that train.
        offer: is told on the main rank what will be taken; readers of what it returns get each tensor once it is here.
    """
    dtype = published_dtype(model_dir)
    sharded = is_sharded(model)
    if not sharded and not ranks.is_main:
        return Snapshot(model, {}, dtype, None)
    weights: dict[str, Tensor] = {}
    with torch.no_grad():
        found = _weights(model)
        offered = offer(_shapes(found, dtype)) if offer is not None and ranks.is_main else None
        try:
            for name in list(found):
                tensor = found.pop(name)  # at most one more than the main rank keeps
                whole = gathered(tensor, dtype if tensor.is_floating_point() else tensor.dtype, ranks)
                if whole is not None:
                    weights[name] = whole
                    if offered is not None:
                        offered.put(whole)
            answers = through(model, lambda: fingerprint_of(base_model(model), model_dir))
        except BaseException as error:
            if offered is not None:
                offered.give_up(f"the trainer failed: {type(error).__name__}: {error}")
            raise
    if offered is not None:
        offered.finish(answers)
    return Snapshot(model, weights, dtype, answers)


def adapter_snapshot(model: Any, model_dir: str | Path, ranks: Ranks = ALONE) -> Snapshot:
    """Take the LoRA adapter alone, as `checkpoint.write_adapter` writes it. Called by all ranks.

    Its tensors have peft's names, and the number type of the weights under it: engines compute in that.

    Raises:
        TrainingError: if there is none, or it changes more than the language model, to which alone engines apply it.
    """
    from peft import get_peft_model_state_dict

    if not is_adapted(model):
        raise TrainingError("a version is to be an adapter alone, and none is trained: set trainer.use_peft: true")
    dtype = published_dtype(model_dir)
    if not is_sharded(model) and not ranks.is_main:
        return Snapshot(model, {}, dtype, None)
    with torch.no_grad():
        found = get_peft_model_state_dict(model, save_embedding_layers=False)
        outside = [name for name in found if "language_model." not in name]
        if outside:
            raise TrainingError(
                f"rollout.sync.transfer adapter: vLLM applies an adapter to the language model alone, and this one "
                f"changes {outside[0]}: leave such names out of trainer.lora_target_modules, or set transfer to files"
            )
        weights = {}
        for name, tensor in found.items():
            whole = gathered(tensor, dtype, ranks)
            if whole is not None:
                weights[name] = whole
        answers = through(model, lambda: fingerprint_of(base_model(model), model_dir))
    return Snapshot(model, weights, dtype, answers)


def published_dtype(model_dir: str | Path) -> torch.dtype:
    """Number type of a directory's weights, by its `config.json`; float32 where it does not say."""
    config = json.loads((Path(model_dir) / "config.json").read_text())
    text = config.get("text_config") or {}
    name = next((part[key] for part in (config, text) for key in ("dtype", "torch_dtype") if part.get(key)), "float32")
    return getattr(torch, str(name).removeprefix("torch."))


def _weights(model: Any) -> dict[str, Tensor]:
    """Each weight that a file has, of a sharded model this rank's part."""
    merged = merged_weights(model)
    found: dict[str, Tensor] = base_model(model).state_dict() if merged is None else merged
    for copy in getattr(base_model(model), "all_tied_weights_keys", None) or {}:
        found.pop(copy, None)  # a tied head: the file has the embeddings only
    family = family_of(base_model(model).config)
    return {name: as_published(name, tensor, family) for name, tensor in found.items()}


def _shapes(weights: dict[str, Tensor], dtype: torch.dtype) -> list[TensorShape]:
    """Return what whole weights will be, once they are taken."""
    return [
        TensorShape(
            name,
            str(dtype if tensor.is_floating_point() else tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
        )
        for name, tensor in weights.items()
    ]

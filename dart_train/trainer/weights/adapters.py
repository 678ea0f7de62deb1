"""LoRA adapters: on a model, off it for the reference, and merged into the weights that engines load.

Invariant: merging never changes the weights in memory. In place, every publication would leave its rounding behind.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from dart_agent.models.families.family_table import family_of
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.weights.ranks import ALONE, Ranks, first_row, local_part


def is_adapted(model: Any) -> bool:
    """Return whether a model carries peft's adapters."""
    return hasattr(model, "get_base_model")


def base_model(model: Any) -> Any:
    """The model itself inside a peft model; its adapters stay in effect."""
    return model.get_base_model() if is_adapted(model) else model


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """A LoRA adapter.

    Attributes:
        alpha: the adapter's scale is alpha / r.
        target_modules: names of layers, or one regular expression; None for the language model's linear layers.
    """

    r: int = 16
    alpha: int = 32
    target_modules: Sequence[str] | None = None
    seed: int = 42

    @classmethod
    def of(cls, args: Any) -> Self | None:
        """Return the adapter that a trainer's arguments describe; None where the weights themselves are trained."""
        return cls(args.lora_r, args.lora_alpha, args.lora_target_modules, args.seed) if args.use_peft else None


def add_adapter(model: Any, lora: LoraSettings) -> Any:
    """Return the model with a fresh LoRA adapter, which is all that is trained.

    Raises:
        TrainingError: if peft is missing, or there is no such layer.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise TrainingError("use_peft needs the package peft: pip install 'dart-gui[train]'") from None

    targets: Any = lora.target_modules or family_of(model.config).adapted_layers
    if isinstance(targets, list) and len(targets) == 1:
        targets = targets[0]
    config = LoraConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=targets)
    try:
        adapted = get_peft_model(model, config)
    except ValueError as error:
        raise TrainingError(f"lora_target_modules: {error}") from None
    begin_adapter(adapted, lora)
    return adapted


def begin_adapter(model: Any, lora: LoraSettings, ranks: Ranks = ALONE) -> None:
    """Let an adapter begin as peft's do, A uniform and B zero, the same on any number of ranks; once it has memory."""
    generator = torch.Generator().manual_seed(lora.seed)
    for name, parameter in model.named_parameters():
        if parameter.is_meta or not (".lora_A." in name or ".lora_B." in name):
            continue
        values = torch.zeros(parameter.shape)
        if ".lora_A." in name:
            values.uniform_(-(parameter.shape[1] ** -0.5), parameter.shape[1] ** -0.5, generator=generator)
        own, first = local_part(parameter.detach()), first_row(parameter, ranks)
        own.copy_(values[first : first + len(own)])


@contextmanager
def without_adapter(model: Any) -> Iterator[Any]:
    """The model as it was before its adapter, in evaluation mode: the reference of the KL term."""
    was_training = model.training
    model.eval()
    try:
        with model.disable_adapter():
            yield model
    finally:
        model.train(was_training)


def merged_weights(model: Any) -> dict[str, Tensor] | None:
    """Weights with the adapters added to them, under the base model's names; None for a model without adapters.

    W + scaling * B A for each adapted layer, tensor by tensor: at most one weight that is not
    adapted exists twice at a time.
    """
    if not is_adapted(model):
        return None
    from peft.tuners.lora import LoraLayer

    base = model.get_base_model()
    layers = {name: module for name, module in base.named_modules() if isinstance(module, LoraLayer)}
    merged: dict[str, Tensor] = {}
    for name, weight in base.state_dict().items():
        owner, _, own = name.rpartition(".base_layer.")
        if owner in layers:
            if own == "weight":
                layer: Any = layers[owner]
                for adapter in layer.active_adapters:
                    weight = weight + layer.get_delta_weight(adapter).to(weight.dtype)
            merged[f"{owner}.{own}"] = weight
        elif not any(name.startswith(f"{owner}.") for owner in layers):
            merged[name] = weight
    return merged

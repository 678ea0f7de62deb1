"""FSDP2: every rank holds a part of the language model's weights, gradients and optimizer state.

accelerate shards (`fully_shard`), the plugin is `TrainingArguments.fsdp` and `fsdp_config`. What the trainer adds:

    - The vision tower is whole on every rank, a tenth of a 7B model. Ranks see different numbers of images, and their
      features are shared between micro-batches: sharded, a rank would wait for one that has no image to run.
    - A policy's pass goes through the root (`through`), though it calls the model's parts: FSDP gathers what belongs to
      no part, and knows where a pass begins.
    - Published weights are gathered tensor by tensor, and the main rank writes them: one layout, however many ranks.

Invariants:
    - Everything here that needs whole weights is called by all ranks, in the same order.
    - Gradients meet in float32, whatever the passes compute in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dart_train.core.fingerprint import Fingerprint
from dart_train.trainer.weights.adapters import base_model, merged_weights
from dart_train.trainer.weights.fingerprint_probe import fingerprint_of
from dart_train.trainer.weights.ranks import Ranks

if TYPE_CHECKING:
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin

_T = TypeVar("_T")
_METHOD = "call_through_root"


def is_sharded(model: Any) -> bool:
    """Whether ranks hold parts of a model."""
    from torch.distributed.fsdp import FSDPModule  # takes a second: not for who only reads checkpoints

    return isinstance(model, FSDPModule)


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: all of it, unless it is sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def through(model: Any, work: Callable[[], _T]) -> _T:
    """Call `work`, which runs parts of a model, as if it were the model's forward pass."""
    if not is_sharded(model):
        return work()
    if not hasattr(model, _METHOD):
        from torch.distributed.fsdp import register_fsdp_forward_method

        setattr(model, _METHOD, lambda work: work())
        register_fsdp_forward_method(model, _METHOD)
    return getattr(model, _METHOD)(work)


def configure(accelerator: Accelerator, plugin_args: Mapping[str, Any], model: Any) -> None:
    """Tell accelerate's plugin how this model is cut, before it is prepared.

    Args:
        accelerator: of the trainer.
        plugin_args: `TrainingArguments.fsdp_plugin_args`.
        model: to be trained, also one inside a peft model.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None:  # accelerate reads the plugin on devices only: ranks on CPUs, as in tests, are told of it here
        plugin = _enable(accelerator, plugin_args)
    tower = base_model(model).model.visual.to(accelerator.device)
    plugin.ignored_modules = [tower]
    layers = base_model(model).model.language_model.layers
    plugin.transformer_cls_names_to_wrap = sorted({type(layer).__name__ for layer in layers})
    # Put off to the last part of a step, gradients of the whole model would lie on every rank until then.
    accelerator.gradient_state.plugin_kwargs["sync_each_batch"] = True
    if plugin.mixed_precision_policy is not None:
        # accelerate's own would reduce gradients in bfloat16, and round log-probabilities to it.
        from torch.distributed.fsdp import MixedPrecisionPolicy

        computed = plugin.mixed_precision_policy.param_dtype
        plugin.mixed_precision_policy = MixedPrecisionPolicy(param_dtype=computed, reduce_dtype=torch.float32)


def _enable(accelerator: Accelerator, plugin_args: Mapping[str, Any]) -> FullyShardedDataParallelPlugin:
    from accelerate import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(**plugin_args)
    if accelerator.mixed_precision != "no":
        plugin.set_mixed_precision(accelerator.mixed_precision)
    accelerator.state.fsdp_plugin = plugin
    accelerator.state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
    return plugin


def shard_frozen(accelerator: Accelerator, model: Any) -> Any:
    """Shard a model that is not trained, as the one that is will be: the reference of the KL term."""
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    plugin = accelerator.state.fsdp_plugin
    trained = plugin.ignored_modules
    plugin.ignored_modules = [base_model(model).model.visual.to(accelerator.device)]
    try:
        return fsdp2_prepare_model(accelerator, model)
    finally:
        plugin.ignored_modules = trained


def split_groups(optimizer: torch.optim.Optimizer, whole: Iterable[torch.nn.Parameter]) -> None:
    """Give parameters that stay whole groups of their own: one kernel does not take them with sharded ones.

    Args:
        optimizer: that was just made.
        whole: parameters that will not be sharded.
    """
    names = {id(parameter) for parameter in whole}
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        kept = [item for item in group["params"] if id(item) in names]
        others = [item for item in group["params"] if id(item) not in names]
        groups += [{**group, "params": part} for part in (others, kept) if part]
    optimizer.param_groups[:] = groups


@dataclass(frozen=True, slots=True)
class Gathered:
    """A sharded model as the main rank writes it.

    Attributes:
        model: its configuration is written too.
        weights: by the base model's names, on the CPU, adapters merged; empty on other ranks.
        fingerprint: what they answer.
    """

    model: Any
    weights: dict[str, Tensor]
    fingerprint: Fingerprint


def gathered(model: Any, model_dir: str | Path, ranks: Ranks) -> Any:
    """What the main rank needs to write a model: the model itself, or its weights if they lie on all ranks.

    Args:
        model: anything; only a sharded model is gathered.
        model_dir: of its tokenizer.
        ranks: all of which call this.
    """
    if not is_sharded(model):
        return model
    weights = merged_weights(model)
    found = base_model(model).state_dict() if weights is None else weights
    for copy in getattr(base_model(model), "all_tied_weights_keys", None) or {}:
        found.pop(copy, None)  # a tied head: the file has the embeddings only
    whole: dict[str, Tensor] = {}
    with torch.no_grad():
        for name in list(found):
            tensor = found.pop(name)  # at most one more than the main rank keeps
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if ranks.is_main:
                whole[name] = full.detach().to("cpu", copy=True)
        answers = through(model, lambda: fingerprint_of(base_model(model), model_dir))
    return Gathered(model, whole, answers)

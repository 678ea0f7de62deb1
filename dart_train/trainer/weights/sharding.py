"""FSDP2: every rank holds a part of the language model's weights, gradients and optimizer state.

PyTorch's `fully_shard` cuts, here, before the trainer is made; accelerate finds the model cut and leaves it alone.

    - A layer is a unit of its own; embeddings, last norm and head are the root's, which a pass gathers once, however
      often it calls the head. They stay in float32: the head's logits are taken in it.
    - The vision tower is whole on every rank, a tenth of a 7B model. Ranks see different numbers of images, and their
      features are shared between micro-batches: sharded, a rank would wait for one that has no image to run.
    - A policy's pass goes through the root (`through`), though it calls the model's parts: FSDP gathers what belongs to
      no part, and knows where a pass begins.
    - Published weights are gathered tensor by tensor, and the main rank writes them: one layout, however many ranks.

Invariants:
    - Everything here that needs whole weights is called by all ranks, in the same order.
    - Gradients are reduced in float32, regardless of the precision of the passes.
    - No rank ever has the whole language model in memory (`sharded_loading`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from dart_train.trainer.weights.adapters import LoraSettings, base_model, begin_adapter
from dart_train.trainer.weights.ranks import Ranks

if TYPE_CHECKING:
    from accelerate import Accelerator

_T = TypeVar("_T")
_METHOD = "call_through_root"


@dataclass(frozen=True, slots=True)
class Cut:
    """Settings for sharding a model among ranks.

    Attributes:
        reshard_after_forward: whether a layer is let go of between its forward and its backward pass, and gathered
            twice; otherwise a rank holds all layers between them.
    """

    device: torch.device
    ranks: Ranks
    computes_in: torch.dtype | None = None
    reshard_after_forward: bool = True


def is_sharded(model: Any) -> bool:
    """Return whether ranks hold parts of a model."""
    from torch.distributed.fsdp import FSDPModule  # takes a second, which reading checkpoints does not need

    return isinstance(model, FSDPModule)


def through(model: Any, work: Callable[[], _T]) -> _T:
    """Call `work`, which runs parts of a model, as if it were the model's forward pass."""
    if not is_sharded(model):
        return work()
    if not hasattr(model, _METHOD):
        from torch.distributed.fsdp import register_fsdp_forward_method

        setattr(model, _METHOD, lambda work: work())
        register_fsdp_forward_method(model, _METHOD)
    return getattr(model, _METHOD)(work)


def shard(model: Any, cut: Cut) -> Any:
    """Cut a model in place, also one without memory (the meta device), also one inside a peft model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(cut.device.type, (cut.ranks.count,))
    parts = base_model(model).model
    policy = MixedPrecisionPolicy(param_dtype=cut.computes_in, reduce_dtype=torch.float32)
    for layer in parts.language_model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=cut.reshard_after_forward)
    if not any(item.is_meta for item in parts.visual.parameters()):
        parts.visual.to(cut.device)
    trained = any(item.requires_grad for item in model.parameters())  # no backward pass lets go of one that is frozen
    fully_shard(
        model,
        mesh=mesh,
        mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32),
        reshard_after_forward=not trained,
        ignored_params=set(parts.visual.parameters()),
    )
    return model


def load_sharded(
    model_dir: str | Path,
    cut: Cut,
    prepare: Callable[[Any], Any] = lambda model: model,
    *,
    lora: LoraSettings | None = None,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """Read this rank's part of a model.

    Raises:
        TrainingError: if the model is incomplete, or is not what config.json says.
    """
    from dart_train.trainer.weights.sharded_loading import empty_model, fill, sources

    model = empty_model(model_dir, dtype=dtype)
    places = sources(model, model_dir)
    model = shard(prepare(model), cut)
    fill(model, places, cut.device, cut.ranks)
    if lora is not None:
        begin_adapter(model, lora, cut.ranks)
    return model


def put_off_gradients(model: Any, put_off: bool) -> None:
    """Return whether the next backward pass accumulates on each rank only, and a later one shares the sum."""
    if is_sharded(model):
        model.set_requires_gradient_sync(not put_off)


def take_over(accelerator: Accelerator, plugin_args: dict[str, Any], model: Any) -> None:
    """Let accelerate save, load and clip a model that is cut already, and leave it as it is."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    if getattr(accelerator.state, "fsdp_plugin", None) is None:  # accelerate reads the plugin on devices only
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(**plugin_args)
    accelerator.state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
    accelerator.gradient_state.plugin_kwargs["sync_each_batch"] = True  # see `put_off_gradients`
    prepare = accelerator.prepare

    def prepared(*objects: Any, **options: Any) -> Any:
        if not any(item is model for item in objects):
            return prepare(*objects, **options)
        accelerator._models.append(model)  # whose gradients it clips
        # Its own way finds an optimizer's parameters by their addresses, and a rank's empty parts have none.
        return tuple(item if item is model else accelerator.prepare_optimizer(item, False) for item in objects)

    accelerator.prepare = prepared


def split_groups(optimizer: torch.optim.Optimizer, whole: Iterable[torch.nn.Parameter]) -> None:
    """Give parameters that stay whole groups of their own: one kernel does not take them with sharded ones."""
    names = {id(parameter) for parameter in whole}
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        kept = [item for item in group["params"] if id(item) in names]
        others = [item for item in group["params"] if id(item) not in names]
        groups += [{**group, "params": part} for part in (others, kept) if part]
    optimizer.param_groups[:] = groups

"""`ShardedTrainer`: `transformers.Trainer` for a model that `sharding` may have cut among ranks.

Invariants:
    - Without `fsdp` it trains as `transformers.Trainer` does.
    - Directories of states are those of `transformers`, and it loads them. Large parts (weights, the optimizer's state)
      are written by `StateWriter` from copies; what is small, by `transformers` at once.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from dart_train.trainer.memory.offload import HostMoments
from dart_train.trainer.weights import sharding
from dart_train.trainer.weights.adapters import base_model, is_adapted
from dart_train.trainer.weights.ranks import Ranks
from dart_train.trainer.weights.state_writer import StateWriter


def cut_of(args: TrainingArguments, ranks: Ranks) -> sharding.Cut:
    """Return how the language model is cut among ranks."""
    half = torch.float16 if args.fp16 else None
    if args.bf16:
        half = torch.bfloat16
    reshard = (args.fsdp_plugin_args or {}).get("reshard_after_forward", True)
    return sharding.Cut(args.device, ranks, half, reshard)


class ShardedTrainer(Trainer):
    """Saves, loads and clips a model that is cut already; the vision tower is whole on every rank."""

    writer: StateWriter
    """Set before `transformers.Trainer` is made."""
    _moments: HostMoments | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.args.fsdp:
            sharding.take_over(self.accelerator, self.args.fsdp_plugin_args or {}, self.model)
            self.is_fsdp_enabled = True

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """As `transformers.Trainer.create_optimizer`."""
        optimizer = super().create_optimizer(model)
        if self.args.fsdp:
            whole: Any = self.model
            sharding.split_groups(optimizer, base_model(whole).model.visual.parameters())
        return optimizer

    def _has_mixed_mesh_grads(self, model: Any) -> bool:
        """Return whether gradients are sharded; transformers looks at the first step's, which may not exist."""
        return bool(self.args.fsdp)

    def _mixed_mesh_grad_norm(self, model: Any, max_norm: float) -> Tensor:
        """As `transformers.Trainer`; 0 where no gradient is left, of a sharded step that changes nothing."""
        if all(parameter.grad is None for parameter in model.parameters()):
            return torch.zeros((), device=self.args.device)
        return super()._mixed_mesh_grad_norm(model, max_norm)

    def keep_moments_on_host(self) -> None:
        """Have the optimizer's moments on the device in its steps only, from now on. Once, when all is loaded."""
        wrapped: Any = self.optimizer
        self._moments = HostMoments(getattr(wrapped, "optimizer", wrapped))  # accelerate wraps it

    # --- states -------------------------------------------------------------------------------------------------

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As `transformers.Trainer.save_model`; the weights of a state are written in the background."""
        if not _internal_call or self.args.fsdp:
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            path = Path(output_dir or str(self.args.output_dir))
            path.mkdir(parents=True, exist_ok=True)
            weights = self.writer.copied(_weights_of_state(self.model))
            self.writer.add(partial(self._save, str(path), state_dict=weights))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """As `transformers.Trainer`, but write the optimizer's state and sharded weights in the background."""
        path = Path(output_dir)
        with nullcontext() if self._moments is None else self._moments.here():
            if self.args.fsdp:
                for name, state in _sharded_state(self.model, self.optimizer).items():
                    part = self.writer.copied(state)
                    self.writer.add(partial(_save_parts, path / name, part, self.writer.ranks.group))
            elif self.args.should_save:
                assert self.optimizer is not None  # it trains
                state = self.writer.copied(self.optimizer.state_dict())
                self.writer.add(lambda: torch.save(state, path / OPTIMIZER_NAME))
        if self.args.should_save:
            path.mkdir(parents=True, exist_ok=True)
            assert self.lr_scheduler is not None
            torch.save(self.lr_scheduler.state_dict(), path / SCHEDULER_NAME)


def _weights_of_state(model: Any) -> dict[str, Tensor]:
    """The weights that a state holds: the adapter's if there is one, else all."""
    found = model.state_dict()
    if not is_adapted(model):
        return found
    trained = {name for name, item in model.named_parameters() if item.requires_grad}
    return {name: tensor for name, tensor in found.items() if name in trained}


def _sharded_state(model: Any, optimizer: Any) -> dict[str, dict[str, Any]]:
    """This rank's part of weights and optimizer, by the folders in which accelerate looks for them."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    if is_adapted(model):
        from peft import get_peft_model_state_dict

        weights = get_peft_model_state_dict(model, adapter_name=model.active_adapter)
    else:
        weights = get_model_state_dict(model)
    moments = get_optimizer_state_dict(model, optimizer)
    return {"pytorch_model_fsdp_0": {"model": weights}, "optimizer_0": {"optimizer": moments}}


def _save_parts(folder: Path, state: dict[str, Any], group: Any) -> None:
    """Write this rank's part of a state. Called by all ranks."""
    import torch.distributed.checkpoint as parts
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    folder.mkdir(parents=True, exist_ok=True)
    parts.save(state, storage_writer=parts.FileSystemWriter(folder), planner=DefaultSavePlanner(), process_group=group)

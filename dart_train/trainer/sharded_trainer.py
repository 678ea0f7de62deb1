"""`ShardedTrainer`: `transformers.Trainer` for a model that `sharding` may have cut among ranks.

Invariant: without `fsdp` it is `transformers.Trainer`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments

from dart_train.trainer.weights import sharding
from dart_train.trainer.weights.adapters import base_model
from dart_train.trainer.weights.ranks import Ranks


def cut_of(args: TrainingArguments, ranks: Ranks) -> sharding.Cut:
    """Return how the language model is cut among ranks."""
    half = torch.float16 if args.fp16 else None
    if args.bf16:
        half = torch.bfloat16
    reshard = (args.fsdp_plugin_args or {}).get("reshard_after_forward", True)
    return sharding.Cut(args.device, ranks, half, reshard)


class ShardedTrainer(Trainer):
    """Saves, loads and clips a model that is cut already; the vision tower is whole on every rank."""

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

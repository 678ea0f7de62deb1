"""DeepSpeed's ZeRO, stages 1 and 2: every rank holds a part of the optimizer's state, and steps that part.

The engine is accelerate's, made from `TrainingArguments.deepspeed`. It gets an optimizer step's gradients in one piece:

    - Its hooks reduce a gradient as soon as a backward pass has made it, in buckets that must be the same on all ranks.
      A lease's micro-batches add up here over several passes, a rank without an image has no gradient for the vision
      tower, and a step may turn out not to be finite, or not to fit. So the hooks are taken off: gradients gather in
      `parameter.grad` as without the engine, and are handed over once they are whole, judged, and there on all ranks.
    - It steps where the trainer says so, and clips to `max_grad_norm`.
    - It is not told of bf16: passes compute in it, weights, gradients and moments are float32 as without the engine.

What that costs: until the step, a rank holds its gradients whole. Stage 2 is as large as stage 1 between steps.

Invariant: everything here is called by all ranks, in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dart_train.core.train_errors import TrainingError

if TYPE_CHECKING:
    from accelerate import Accelerator

STAGES = (1, 2)
_SETTINGS = frozenset({
    "zero_optimization", "gradient_clipping", "bf16", "fp16", "train_batch_size", "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps", "communication_data_type", "prescale_gradients", "gradient_predivide_factor",
    "zero_allow_untested_optimizer", "steps_per_print", "wall_clock_breakdown", "memory_breakdown", "comms_logger",
    "dump_state",
})  # fmt: skip
_ZERO_SETTINGS = frozenset({
    "stage", "allgather_partitions", "allgather_bucket_size", "overlap_comm", "reduce_scatter", "reduce_bucket_size",
    "contiguous_gradients", "round_robin_gradients", "ignore_unused_parameters",
})  # fmt: skip
_OWN = {
    "optimizer": "set optim, learning_rate, weight_decay beside it: the trainer makes the optimizer",
    "scheduler": "set lr_scheduler_type and warmup_steps beside it: the trainer makes the schedule",
    "zero_optimization.offload_optimizer": "it is not carried; fsdp or use_peft are other ways to save memory",
    "zero_optimization.offload_param": "it belongs to stage 3",
}
"""Settings that the trainer has its own for, or that are asked for often, and what to do."""


def read_config(given: Mapping[str, Any] | str) -> dict[str, Any]:
    """The engine's configuration from `TrainingArguments.deepspeed`: itself, or the JSON file that it names.

    Raises:
        ValueError: there is no such file, or it is not a JSON object.
    """
    if isinstance(given, Mapping):
        return dict(given)
    try:
        found = json.loads(Path(given).read_text())
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"deepspeed: {given} is no JSON file that can be read: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"deepspeed: {given} holds no JSON object; see DeepSpeed's configuration files")
    return found


def check_config(given: Mapping[str, Any] | str) -> None:
    """Refuse what the trainer does not carry.

    Args:
        given: `TrainingArguments.deepspeed`.

    Raises:
        ValueError: names the setting, why, and what to do.
    """
    config = read_config(given)
    zero = config.get("zero_optimization") or {}
    if not isinstance(zero, Mapping):
        raise ValueError(f"deepspeed: zero_optimization={zero!r} is no object; write {{'stage': 2}}")
    stage = zero.get("stage", 0)
    if stage == 3:
        raise ValueError(
            "deepspeed: zero_optimization.stage=3 is not supported: ranks run the vision tower as often as they have "
            "images, and one that has none would leave the others waiting for its part of the tower. Set fsdp: true, "
            "which shards the language model as ZeRO-3 does, or stage 2"
        )
    if stage not in STAGES:
        raise ValueError(
            f"deepspeed: zero_optimization.stage={stage!r} shards nothing; choose 1 or 2, or leave deepspeed empty: "
            "ranks share their gradients without it"
        )
    for name, section in (("fp16", config.get("fp16")), ("bf16", config.get("bf16"))):
        enabled = section.get("enabled", False) if isinstance(section, Mapping) else section
        if enabled not in (None, False, "auto"):
            raise ValueError(
                f"deepspeed: {name}.enabled={enabled!r} would round the weights themselves; set bf16: true beside it: "
                "passes compute in bfloat16, weights and optimizer stay float32"
            )
    names = [name for name in config if name not in _SETTINGS]
    names += [f"zero_optimization.{name}" for name, value in zero.items() if name not in _ZERO_SETTINGS and value]
    if names:
        why = _OWN.get(names[0], "the trainer does not use it")
        raise ValueError(f"deepspeed: {names[0]} is not supported: {why}; remove it")


def configure(
    accelerator: Accelerator, *, max_grad_norm: float, bf16: bool, ranks: int, parts: int
) -> Callable[[], AbstractContextManager[Any]]:
    """Complete the engine's configuration before the model is prepared; returns the context that passes compute in.

    Args:
        accelerator: of the trainer, with DeepSpeed's plugin.
        max_grad_norm: that the engine clips to; 0 for not at all.
        bf16: whether passes compute in bfloat16.
        ranks: how many train.
        parts: `gradient_accumulation_steps`.
    """
    config = accelerator.state.deepspeed_plugin.deepspeed_config
    config["gradient_clipping"] = max_grad_norm
    config |= {"bf16": {"enabled": False}, "fp16": {"enabled": False}}
    config |= {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": parts}
    config["train_batch_size"] = ranks * parts  # bookkeeping of the engine: what a step is made of are leases
    config.setdefault("steps_per_print", None)  # the log has a line per step
    device = accelerator.device.type
    return lambda: torch.autocast(device, dtype=torch.bfloat16, enabled=bf16)


class ZeroEngine:
    """DeepSpeed's engine as one trainer uses it.

    Args:
        engine: that accelerate has made of the model.

    Raises:
        TrainingError: this version of DeepSpeed lacks what is used of it.
    """

    def __init__(self, engine: Any) -> None:
        hooks = getattr(engine.optimizer, "_grad_acc_hooks", None)
        if hooks is None or not hasattr(engine, "coalesce_grad_reduction"):
            raise TrainingError(
                "deepspeed: this version of the package cannot be handed a step's gradients in one piece; install "
                "deepspeed>=0.19.8, or set fsdp: true instead"
            )
        while hooks:  # no public way to say that backward passes only add up
            hooks.pop().remove()
        engine.set_gradient_accumulation_boundary(True)
        self._engine = engine

    def step(self) -> None:
        """Reduce the gradients that all ranks have, clip them, and update the weights; leaves no gradients.

        Raises:
            TrainingError: finite gradients of the ranks added up to one that is not.
        """
        with self._engine.coalesce_grad_reduction():
            pass  # its end reduces what lies in `parameter.grad`, bucket by bucket in one order
        self._engine.step()
        if not self._engine.was_step_applied():
            raise TrainingError(
                "the gradients of the ranks are finite and their sum is not; the weights are those before this step. "
                "Lower learning_rate and run the same command again, it resumes"
            )

"""Keys that configurations once had, and the value that each always has now.

A key that nobody would set costs every reader of the configuration. One that was removed is refused with a line that
says what holds instead, so that an older file can be mended without reading the changelog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TRAINER = {
    "optim_args": None, "optim_target_modules": None, "gradient_accumulation_steps": 1,
    "activation_checkpointing_kwargs": None, "gradient_checkpointing_kwargs": None,
    "torch_compile": False, "torch_compile_backend": None, "torch_compile_mode": None,
    "use_liger_kernel": False, "liger_kernel_config": None, "use_cache": False, "neftune_noise_alpha": None,
    "logging_strategy": "steps", "logging_first_step": False, "log_on_each_node": True, "logging_nan_inf_filter": True,
    "log_level": "passive", "log_level_replica": "warning",
    "trackio_space_id": None, "trackio_bucket_id": None, "trackio_static_space_id": None,
    "save_only_model": False, "save_strategy": "steps", "save_on_each_node": False, "enable_jit_checkpoint": False,
    "full_determinism": False, "accelerator_config": None, "ddp_find_unused_parameters": None,
    "ddp_bucket_cap_mb": None, "ddp_broadcast_buffers": None, "ddp_static_graph": None, "ddp_backend": None,
    "debug": "", "skip_memory_metrics": True,
}  # fmt: skip
"""Fields of `transformers.TrainingArguments`, with its defaults."""

REMOVED: Mapping[str, str] = {
    **{f"trainer.{name}": f"it is always {value!r} now" for name, value in _TRAINER.items()},
    "trainer.activation_checkpointing": "it is always that of trainer.gradient_checkpointing now; set that",
    "controls.constant_click": "it is always false now, unless controls.phases names constant-click",
    "controls.constant_click_seeds": "controls.phases: {constant-click: {seeds: 100}} says it now",
    "rollout.over_provision": "it is always 1.0 now, but for rollout.mode batch-wise-1.5",
}
"""What holds instead of each removed key."""


def removed(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield one line for every removed key among plain values, such as those of a YAML file."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if key in REMOVED:
            yield f"{key}: this key was removed: {REMOVED[key]}. Take it out"
        elif isinstance(value, Mapping):
            yield from removed(value, f"{key}.")

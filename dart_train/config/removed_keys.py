"""Keys that configurations once had, and the value that each always has now.

A key that nobody would set costs every reader of the configuration. One that was removed is refused with a line that
says what holds instead, so that an older file can be mended without reading the changelog.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dart_gym.cluster.server.server_settings import DesktopSettings
from dart_gym.core.section import removed_key

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
    "adam_epsilon": 1e-08, "tf32": None, "torch_empty_cache_steps": None, "ddp_timeout": 1800,
}  # fmt: skip
"""Fields of `transformers.TrainingArguments`, with its defaults."""

_CONSTANT: Mapping[str, Mapping[str, Any]] = {
    "agent": {"report_errors": True},
    "warmup": {
        "schedule": "cosine", "final_share": 0.1, "weight_decay": 0.01, "adam_beta2": 0.98, "max_grad_norm": 1.0,
        "image_cache_mb": 512, "max_seconds": None,
    },
    "rollout": {
        "stay_groups": 2.0, "admission_interval_s": 0.25, "breaker_losses": 6, "breaker_reset_s": 30.0,
        "max_unrecorded": 256, "record_grace_s": 8.0, "max_unrecorded_mb": 2048, "max_attempts": 5,
    },
    "rollout.engine": {
        "health_interval_s": 1.0, "max_backoff_s": 30.0, "least_requests": 4, "most_requests": 256, "drain_s": 60.0,
    },
    "rollout.sync": {"buffer_mib": 1024.0, "lease_s": 30.0},
    "data": {"sweep_interval_s": 0.5, "image_format": "auto"},
    "demonstrations": {"wrong_instruction_share": 0.0, "wrong_instruction_share_of": {}},
    "data.curation": {
        "partial_members": 2, "retire_after": 16, "length_margin": 1, "min_length": 2, "length_growth": 1.5,
        "sampling_floor": 0.1, "curriculum_bands": [0.7, 0.3], "curriculum_opens_at": 0.6, "leftover_after_s": 600.0,
        "task_groups_ahead": None,
    },
    "trainer": {
        "keep_published_s": 120.0, "pack_rows": True, "merge_prefixes": True, "lease_ttl_s": 60.0, "max_bad_steps": 3,
        "collapse_window": 20, "alarm_window": 10, "best_window": 10, "lora_dropout": 0.0, "adam_beta1": 0.9,
        "metric_for_best_model": None, "save_total_limit": 2, "logging_steps": 1, "supervised_rows": 16,
        "ref_model_mixup_alpha": 0.6, "use_bias_correction_kl": False, "geometric_clip_min": None,
        "geometric_clip_max": None, "entropy_mask_scope": "group", "share_prompts": True, "reduce_gradients": "auto",
        **_TRAINER,
    },
    "evaluation": {"first_seed": 0},
}  # fmt: skip
"""Keys of each section that are constants now."""

REMOVED: Mapping[str, str] = {
    **{
        f"{section}.{name}": f"it is always {json.dumps(value)} now"  # as YAML spells it
        for section, values in _CONSTANT.items()
        for name, value in values.items()
    },
    **{f"cluster.{name}": holds for name, holds in DesktopSettings.REMOVED.items()},
    "trainer.activation_checkpointing": "it is always that of trainer.gradient_checkpointing now; set that",
    "controls.constant_click": "it is always false now, unless controls.phases names constant-click",
    "controls.constant_click_seeds": "controls.phases: {constant-click: {seeds: 100}} says it now",
    "trainer.run_name": "it is always the run's name now",
    "trainer.greater_is_better": "trainer.metric_for_best_model, which it was for, is always null now",
    "trainer.project": 'it is always "huggingface" now; the variable WANDB_PROJECT names another one to wandb',
    "trainer.min_groups_per_step": "it is always trainer.groups_per_step now",
    "trainer.sync_ref_model": "trainer.ref_model_sync_steps says it now: a number of steps, or null for never",
    "trainer.teacher_when": "it always follows from teacher.kind and teacher.when",
    "trainer.teacher_coef": "it is always that of teacher.coef; set that",
    "data.retention.interval_s": "it is always an hour now, where data.retention has any limit",
    "rollout.turn_limit_s": "it is always rollout.unavailable_timeout_s and one request more now",
    "rollout.engine.updates_at_once": "it is always half of the replicas now",
    "data.curation.leases_per_version": "it always follows from trainer.publish_steps, mini_batches and num_iterations",
    "rollout.over_provision": "it is always 1.0 now, but for rollout.mode batch-wise-1.5",
}
"""What holds instead of each removed key."""


def removed(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield one line for every removed key among plain values, such as those of a YAML file."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if key in REMOVED:
            yield removed_key(key, REMOVED[key])
        elif isinstance(value, Mapping):
            yield from removed(value, f"{key}.")

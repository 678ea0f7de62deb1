"""The settings that may change when a run is resumed, and the record of what was changed. Pure but for the record.

A run is resumed with the configuration that it began with, except for the keys listed here: those of budgets, memory,
machine, logging, monitoring and rollouts, the learning rate, and curation's windows. They change how far, how fast and
where a run goes on. All others define what is learned and what is compared: with another value it is another run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dart_train.config.run_config import RunConfig
from dart_train.core.metrics_log import MetricsLog, read_metrics

CHANGEABLE: Mapping[str, tuple[str, ...]] = {
    "name and description": ("description",),
    "optimizer": ("trainer.learning_rate", "trainer.max_grad_norm", "trainer.weight_decay"),
    "budgets": ("trainer.max_steps", "rollout.budget_rollouts", "rollout.budget_minutes", "rollout.budget_actions"),
    "memory and speed": (
        "trainer.micro_batch_tokens", "trainer.image_features_mb", "trainer.image_cache_mb", "trainer.device_memory_mb",
        "trainer.gradient_checkpointing", "trainer.offload_optimizer", "trainer.offload_activations",
        "trainer.torch_threads", "trainer.attention", "trainer.context_parallel",
    ),
    "saving": (
        "trainer.save_steps", "trainer.background_states", "trainer.publish_steps", "trainer.keep_published",
    ),
    "logging and alarms": (
        "trainer.report_to", "trainer.on_collapse", "trainer.stop_on",
    ),
    "machine": ("resources.*", "cluster.*"),
    "rollouts": (
        "rollout.workers", "rollout.groups_at_once", "rollout.engine.*", "rollout.sync.*",
        "rollout.*_interval_s", "rollout.*_limit_s", "rollout.*_timeout_s", "rollout.stop_grace_s",
        "rollout.metrics_listen",
    ),
    "data": (
        "data.retention.*", "data.unavailable_timeout_s", "data.curation.max_staleness",
        "data.curation.partial_after_s", "data.curation.batches_ahead",
        "data.curation.success_window", "data.curation.retire_above", "data.curation.replay_leftovers",
        "data.curation.min_rollouts", "data.curation.dynamic_rollouts_threshold",
    ),
    "evaluation": ("evaluation.monitor.*", "evaluation.final", "controls.*"),
}  # fmt: skip
"""Patterns of keys by subject; `*` stands for the rest of a name."""
FIXED = ("rollout.engine.images", "cluster.suites")
"""Keys that a pattern matches and that define the run all the same: the prompts' screenshots, and its tasks."""


@dataclass(frozen=True, slots=True)
class Change:
    """A key whose value is not the one that the run had."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {json.dumps(self.before)} -> {json.dumps(self.after)}"


def may_change(key: str) -> bool:
    """Return whether a key may have another value when a run is resumed."""
    if key in FIXED:
        return False
    return any(fnmatchcase(key, pattern) for patterns in CHANGEABLE.values() for pattern in patterns)


def changes(known: RunConfig, wanted: RunConfig) -> list[Change]:
    """Return every key whose value differs, in the order of the configuration."""
    before, after = _flat(known.model_dump(mode="json")), _flat(wanted.model_dump(mode="json"))
    keys = list(dict.fromkeys([*before, *after]))
    return [Change(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def record(path: Path, found: list[Change], life: int) -> None:
    """Append changes to a run's list of them.

    Args:
        path: the run's `changes.jsonl`.
        found: what was changed.
        life: number of the life of the run that begins with these values.
    """
    log = MetricsLog(path)
    try:
        for change in found:
            log.write(life=life, key=change.key, before=change.before, after=change.after)
    finally:
        log.close()


def recorded(path: Path) -> list[tuple[int, Change]]:
    """Return the (life, change) pairs of a run, oldest first."""
    return [(row["life"], Change(row["key"], row["before"], row["after"])) for row in read_metrics(path)]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return values by dotted key. Empty sections and lists are values."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found

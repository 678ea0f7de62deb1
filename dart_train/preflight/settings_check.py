"""Settings that are wrong in themselves or against each other, whatever the machine; what can be said without torch."""

from __future__ import annotations

import importlib.util
import math
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dart_agent.engines.kinds.vllm_server import REPORT_ROUTING
from dart_agent.engines.vllm.adapter_names import rank_limit
from dart_gym.core.suggestions import suggest
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_gym.utils.plugins import Registry
from dart_train.config.run_config import RunConfig
from dart_train.placement.placement import OUR_TRAINER
from dart_train.preflight.library_names import optimizers, schedules
from dart_train.preflight.problems import found_by
from dart_train.preflight.tracker_check import tracker_problems
from dart_train.trainer.settings.grpo_settings import CONTEXT_WITHOUT_SHARDING, OFFLOADS_NOTHING

MONITOR_SEEDS = 9_000
BOUNDS: dict[str, tuple[float, float]] = {
    "learning_rate": (1e-12, 1.0),
    "weight_decay": (0.0, 1.0),
    "max_grad_norm": (0.0, math.inf),
    "adam_beta2": (0.0, 0.999999999),
    "warmup_steps": (0.0, math.inf),
    "save_steps": (1e-9, math.inf),
    "lora_alpha": (1, math.inf),
}
"""Least and most of numbers of the section `trainer` that its library checks late or not at all."""

PACKAGES = {"bnb": "bitsandbytes", "8bit": "bitsandbytes", "galore": "galore_torch", "apollo": "apollo_torch",
            "lomo": "lomo_optim", "grokadamw": "grokadamw", "schedule_free": "schedulefree", "torch_4bit": "torchao",
            "torch_8bit": "torchao", "stable_adamw": "optimi", "apex": "apex"}  # fmt: skip
"""Part of an optimizer's name -> module that it needs."""

CHECKED_HERE = frozenset({
    "learning_rate", "weight_decay", "max_grad_norm", "adam_beta2", "warmup_steps", "save_steps", "optim",
    "lr_scheduler_type", "report_to", "bf16", "fp16", "gradient_checkpointing", "use_cpu",
})  # fmt: skip
"""Settings of `TrainingArguments` of which all is said here: those that a run may set without importing torch."""


def settings_problems(config: RunConfig, ranks: int) -> list[str]:
    """Return everything that is wrong with the settings of a run whose trainer has `ranks` ranks."""
    found = [
        *_plugins(config),
        *_sections(config),
        *_engines(config),
        *found_by(config.data.database_url, config.cluster.token),
    ]
    if config.trainer.kind != OUR_TRAINER:
        return found
    own = list(_trainer(config))
    found += own
    if not own and _needs_library(config):
        found += found_by(lambda: library_check(config, ranks))
    return found


def library_check(config: RunConfig, ranks: int) -> None:
    """Have transformers check the trainer's arguments. Imports torch. Raises `ConfigError`."""
    from transformers.utils import logging

    from dart_train.processes.learn import trainer_arguments
    from dart_train.run.run_directory import RunDirectory

    # transformers makes its output directory; what it warns of is for its own users.
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.set_verbosity_error()
        trainer_arguments(config, RunDirectory(Path(scratch) / config.name), ranks)


def _needs_library(config: RunConfig) -> bool:
    from dart_train.trainer.settings.grpo_settings import OWN_HINTS

    return bool(config.trainer.given().keys() - CHECKED_HERE - OWN_HINTS.keys())


def _plugins(config: RunConfig) -> list[str]:
    """Names of what is not built in: importable before the processes that use it start."""
    from dart_agent.formats import get_format
    from dart_gym.providers.provider_registry import make_provider
    from dart_train.trainer.losses import advantages, surrogates
    from dart_train.trainer.settings.trainer_section import TRAINERS

    trainer, cluster = config.trainer, config.cluster
    named: tuple[tuple[Registry[Any], str], ...] = (
        (TRAINERS, trainer.kind),
        (surrogates.LOSSES, trainer.loss_type),
        (advantages.ADVANTAGES, trainer.advantage),
    )
    found: list[str] = []
    for registry, name in named:
        if registry.describe().get(name) != "built in":
            found += found_by(lambda registry=registry, name=name: registry.get(name))  # type: ignore[misc]
    found += [f"agent.format: {text}" for text in found_by(lambda: get_format(config.agent.format))]
    if cluster.url is None:
        wrong = found_by(lambda: make_provider(cluster.provider, cluster.provider_options))
        found += [f"cluster.provider: {text}" for text in wrong]
    return found


def _sections(config: RunConfig) -> Iterator[str]:
    """Keys against keys of other sections."""
    rollout = config.rollout
    curation = config.data.curation
    evaluation = config.evaluation
    size, trainer = rollout.group_size, config.trainer
    if curation.dynamic_rollouts and curation.min_rollouts > size:
        yield (
            f"data.curation.min_rollouts {curation.min_rollouts} is above rollout.group_size {size}: lower it, or "
            "raise the group's size"
        )
    own = trainer.kind == OUR_TRAINER and ":" not in trainer.advantage
    if size == 1 and own:
        yield (
            "rollout.group_size 1 trains nothing: advantages compare the rollouts of a group with each other. Set it "
            "to 2 or more (8 in DART)"
        )
    lease = trainer.groups_per_step * size
    if rollout.budget_rollouts is not None and rollout.budget_rollouts < lease:
        yield (
            f"rollout.budget_rollouts {rollout.budget_rollouts} is less than one lease of the trainer ({lease}: "
            "trainer.groups_per_step groups of rollout.group_size): raise it, or nothing is trained"
        )
    monitor = evaluation.monitor
    wanted = rollout.workers + (monitor.workers if monitor.every_rollouts else 0)
    if config.cluster.url is None and config.cluster.desktops < wanted:
        yield (
            f"cluster.desktops {config.cluster.desktops} is less than the {wanted} workers of rollouts and monitor: "
            "raise it, leave it out, or lower rollout.workers"
        )
    last = max(evaluation.episodes, evaluation.beside_episodes)
    limit = MONITOR_SEEDS if monitor.every_rollouts else FIRST_TRAINING_SEED
    if last > limit:
        what = "the monitor's" if monitor.every_rollouts else "trained on"
        yield (
            f"evaluation plays the seeds from 0 to {last - 1}, and those from {limit} on are {what}: lower "
            "evaluation.episodes and beside_episodes"
        )
    warmup = config.warmup
    if warmup.limited and not config.demonstrations.per_task and not warmup.pool_sources:
        yield (
            "warmup trains on demonstrations, but the run has no demonstrations: set demonstrations.per_task, "
            "warmup.pool_sources, or warmup.max_steps to 0"
        )
    ranks = (config.resources.trainer_ranks or 1) // config.resources.trainer_nodes
    if warmup.limited and own and trainer.fsdp and warmup.batch_size < (shares := ranks // trainer.context_parallel):
        each = "ranks" if trainer.context_parallel == 1 else f"groups of {trainer.context_parallel} ranks"
        yield (
            f"warmup.batch_size {warmup.batch_size} leaves some of the {shares} {each} that warm up together without "
            f"a sample: raise it to {shares} or more"
        )
    if config.controls.supervised and not warmup.limited:
        yield "controls.supervised continues a warm-up, but the run has none: set warmup.max_steps, or leave it out"
    yield from _rehearsed(config)


def _rehearsed(config: RunConfig) -> Iterator[str]:
    """Yield what every step is to train on once more, and the run does not have."""
    trainer, warmup = config.trainer, config.warmup
    rehearsed = trainer.self_imitation_rows or trainer.shown_rows
    if trainer.supervised_coef and not (config.demonstrations.per_task or warmup.pool_sources or rehearsed):
        yield (
            "trainer.supervised_coef needs demonstrations: set demonstrations.per_task or trainer.self_imitation_rows, "
            "or supervised_coef to 0"
        )
    for name in ("self_imitation_rows", "shown_rows"):
        if getattr(trainer, name) and not trainer.supervised_coef:
            yield f"trainer.{name} needs a weight: set trainer.supervised_coef, or leave it out"
    if trainer.rehearsal_steps and not (trainer.supervised_coef or config.teacher.rehearsed_rows):
        yield "trainer.rehearsal_steps have nothing to train on: set trainer.supervised_coef, or leave them out"
    if trainer.shown_rows and not config.demonstrations.shown_pages:
        yield "trainer.shown_rows needs pages that are shown: set demonstrations.shown_pages, or leave it out"


def _engines(config: RunConfig) -> Iterator[str]:
    """Yield the settings of engines that these engines cannot follow."""
    rollout = config.rollout
    options = rollout.engine.options
    length = options.get("max_length") if isinstance(options, dict) else None
    if isinstance(length, int) and rollout.sampling.max_tokens >= length:
        yield (
            f"rollout.sampling.max_tokens {rollout.sampling.max_tokens} leaves no room for a prompt in "
            f"rollout.engine.options.max_length {length}: lower the one or raise the other"
        )
    if config.trainer.replay_routing and not rollout.engine.urls and not rollout.engine.servers()[0][0].reports_routing:
        yield (
            "trainer.replay_routing asks for the experts that the engine took, and a server of rollout.engine does not "
            f"report them: add {REPORT_ROUTING} to rollout.engine.options.options, or leave it out"
        )
    yield from _transfer(config)


def _transfer(config: RunConfig) -> Iterator[str]:
    """Yield what keeps new weights from the engines."""
    transfer, kind = config.rollout.sync.transfer, config.trainer.kind
    if transfer == "nccl" and config.resources.engine_gpus == 0:
        yield "rollout.sync.transfer nccl is between GPUs, and resources.engine_gpus is 0: set transfer to files or tcp"
    if transfer in ("memory", "adapter") and kind != OUR_TRAINER:
        yield f"rollout.sync.transfer {transfer} is for our own trainer, not for trainer.kind {kind}: set it to files"
    if transfer == "adapter":
        yield from _adapter(config)


def _adapter(config: RunConfig) -> Iterator[str]:
    """Yield what keeps an adapter from being served as one."""
    if not config.trainer.use_peft:
        yield "rollout.sync.transfer adapter sends a LoRA adapter, and none is trained: set trainer.use_peft: true"
    try:
        rank_limit(config.trainer.lora_r)
    except ValueError as error:
        yield f"trainer.lora_r with rollout.sync.transfer adapter: {error}; lower it, or set transfer to files"


def _trainer(config: RunConfig) -> Iterator[str]:
    """Yield the errors that the trainer's library would raise when training begins."""
    given = config.trainer.model_dump()
    for name, (low, high) in BOUNDS.items():
        value = given.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or low <= value <= high:
            continue
        yield f"trainer.{name}={value!r} is out of range: choose a value in [{low:g}, {high:g}]"
    if given.get("fp16") and given.get("bf16"):
        yield "trainer.fp16 and trainer.bf16 are both set: choose one of them"
    yield from _partners(config)
    optimizer, schedule = str(given.get("optim") or ""), str(given.get("lr_scheduler_type") or "")
    if optimizer and optimizers() and optimizer not in optimizers():
        yield f"trainer.optim: unknown optimizer {optimizer!r}; {_near(optimizer, optimizers())}"
    module = next((module for part, module in PACKAGES.items() if part in optimizer), None)
    if optimizer in optimizers() and module and importlib.util.find_spec(module) is None:
        yield f"trainer.optim {optimizer} needs the package {module}, which is not installed: install it"
    if schedule and schedules() and schedule not in schedules():
        yield f"trainer.lr_scheduler_type: unknown schedule {schedule!r}; {_near(schedule, schedules())}"
    if schedule in ("reduce_lr_on_plateau", "greedy"):
        yield f"trainer.lr_scheduler_type {schedule} follows evaluations, which the trainer does not make"
    kwargs = given.get("lr_scheduler_kwargs") or {}
    if schedule.endswith("with_min_lr") and isinstance(kwargs, dict) and not kwargs.keys() & {"min_lr", "min_lr_rate"}:
        yield f"trainer.lr_scheduler_type {schedule} needs lr_scheduler_kwargs with min_lr or min_lr_rate"
    yield from tracker_problems(config.trainer.report_to)
    if given.get("lora_target_modules") and not config.trainer.use_peft:
        yield "trainer.lora_target_modules is for an adapter: set trainer.use_peft, or leave them out"
    if config.trainer.use_peft and importlib.util.find_spec("peft") is None:
        yield "trainer.use_peft needs the package peft: pip install 'dart-gui[train]'"


def _partners(config: RunConfig) -> Iterator[str]:
    """Yield the settings that do nothing, or cannot be followed, without another one."""
    trainer = config.trainer
    if trainer.offload_activations and not trainer.gradient_checkpointing:
        yield f"trainer.{OFFLOADS_NOTHING}"
    if trainer.context_parallel > 1 and not trainer.fsdp:
        yield f"trainer.{CONTEXT_WITHOUT_SHARDING.format(trainer.context_parallel)}"


def _near(name: str, known: frozenset[str]) -> str:
    return suggest(name, dict.fromkeys(sorted(known)), otherwise=f"there are {', '.join(sorted(known))}")

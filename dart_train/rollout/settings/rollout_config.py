"""Configuration of the rollout service. Unknown keys are errors."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dart_agent.engines.base.engine_kind import EngineKind, Transfer
from dart_agent.engines.engine_kinds import ENGINES, kind_of_url
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.section import Section

FIRST_TRAINING_SEED = 10_000
"""Seeds below are held out for evaluation."""


class Mode(StrEnum):
    """What a free desktop waits for."""

    ROLLOUT = "rollout-wise"
    """For nothing: an episode that ended is replaced at once."""
    TASK = "task-wise"
    """For the other members of the group that it played."""
    BATCH = "batch-wise"
    """For all groups of the batch, their training, and the new weights in all engines."""


class TaskEntry(Section):
    """One task of the training set."""

    id: str = Field(min_length=1, description='such as "miniwob/click-tab"')
    weight: float = Field(default=1.0, gt=0, description="share of the rollouts, relative to the other tasks")
    max_steps: int | None = Field(
        default=None, ge=1, description="step limit; None for the service's, then the task's own"
    )


class SamplingConfig(Section):
    """How the policy samples. There is no top_p, top_k or penalty: they would bias the log-probabilities."""

    temperature: float = Field(default=1.0, ge=0)
    max_tokens: int = Field(default=24, ge=1)


class EngineConfig(Section):
    """The engine replicas: started here as processes, or running elsewhere and reached by URL."""

    kind: str = Field(
        default="transformers",
        description='what is started: "transformers" (our own engine), "vllm" (`vllm serve`), the entry point of an '
        "installed package, or module:Class of your own",
    )
    options: dict[str, Any] = Field(
        default={}, validate_default=True, description="of this kind of engine; docs/engines.md lists those of each"
    )
    replicas: int = Field(default=1, ge=1, description="processes to start; ignored where `urls` is given")
    urls: tuple[str, ...] = Field(
        default=(),
        description="replicas that already run, of this kind or that which their scheme names: ours (ws://, "
        "ws+unix://), vLLM's (http://); they are never restarted from here; rollout services with one database may "
        "share them, and update them one at a time",
    )
    images: int = Field(default=5, ge=1, description="most screenshots of a prompt")
    request_timeout_s: float = Field(
        default=60.0, gt=0, description="a replica that takes longer over one request is dead"
    )
    start_timeout_s: float = Field(default=120.0, gt=0, description="until a started replica answers")
    health_interval_s: float = Field(default=1.0, gt=0)
    unavailable_timeout_s: float = Field(
        default=300.0, gt=0, description="how long a request waits for any replica before MODEL_ERROR"
    )
    max_backoff_s: float = Field(default=30.0, gt=0, description="longest pause before a dead replica is started again")
    least_requests: int = Field(default=4, ge=1, description="requests that a loaded replica gets at the same time")
    most_requests: int = Field(default=256, ge=1, description="requests that any replica gets at the same time")
    updates_at_once: int = Field(
        default=1, ge=1, description="replicas whose weights are updated at the same time; one always goes on serving"
    )
    update: Literal["drain", "abort", "keep"] | None = Field(
        default=None,
        description="what an update does to running requests: drain lets them end first, while the other replicas "
        "serve; abort cuts them off, and the rest is sampled with the new weights; keep freezes them (vLLM 0.32 "
        "ends itself over frozen requests whose images were in its prefix cache). None: drain for vLLM; our own engine "
        "updates between two batches in any case",
    )
    drain_s: float = Field(default=60.0, gt=0, description="longest wait for running requests; then they are cut off")
    fingerprint_tolerance: float | None = Field(
        default=0.2,
        gt=0,
        description="most that a log-probability may be off the published fingerprint of the weights (bfloat16 rounds "
        "to some hundredths); None for no such check",
    )

    @field_validator("options")
    @classmethod
    def _resolve(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """All options of the kind, those that are left to their default included."""
        if "kind" not in info.data:
            return options
        try:
            return ENGINES.get(info.data["kind"]).parse(options).model_dump(mode="json")
        except ConfigurationError as error:
            raise ValueError(str(error)) from None

    def servers(self) -> list[tuple[EngineKind, str]]:
        """The kind and the URL of each replica; the URL is "" where the replica is to be started."""
        kind = ENGINES.get(self.kind).parse(self.options)
        if self.urls:
            return [(kind_of_url(url, kind), url) for url in self.urls]
        return [(kind, "")] * kind.count(self.replicas)

    @model_validator(mode="after")
    def _whole(self) -> EngineConfig:
        if self.least_requests > self.most_requests:
            raise ValueError(f"least_requests {self.least_requests} is above most_requests {self.most_requests}")
        try:
            self.servers()
        except ConfigurationError as error:
            raise ValueError(f"urls: {error}") from None
        return self


class SyncConfig(Section):
    """How new weights get into the replicas."""

    transfer: Transfer = Field(
        default="files",
        description="files: each replica reads the published directory itself. lora: versions are adapters, whole "
        "models are not taken. nccl, tcp (vLLM only): a sender beside the rollout service reads the directory and "
        "streams the tensors, between GPUs or without; servers that were not started from here must have been started "
        "for it (docs/engines.md)",
    )
    python: str | None = Field(
        default=None,
        min_length=1,
        description="interpreter of the sender: for nccl that of vLLM's own environment; None for ours, which does for "
        "tcp",
    )
    device: str = Field(
        default="cuda:0", description="the sender's GPU for nccl: no replica may use it, the trainer's is the usual one"
    )
    address: str = Field(
        default="127.0.0.1", min_length=1, description="of this machine, where replicas reach the sender"
    )
    buffer_mib: float = Field(default=1024.0, gt=0, description="tensors are sent together up to this size")
    lora_rank: int = Field(default=16, ge=1, description="largest rank of adapters; for vLLM servers started from here")
    lease_s: float = Field(
        default=30.0,
        gt=0,
        description="services that share replicas update one at a time; one that is dead gives way after this time",
    )


class RolloutConfig(Section):
    """Everything that the rollout service decides by. The paths and the cluster's URL come from the run."""

    tasks: tuple[TaskEntry, ...] = Field(min_length=1, description="ids, or entries with weight and max_steps")
    workers: int = Field(default=4, ge=1, description="desktops used at the same time")
    group_size: int = Field(
        default=8, ge=1, description="rollouts of one task and seed that are compared with one another"
    )
    max_steps: int | None = Field(default=None, ge=1, description="step limit of tasks without one in their entry")
    budget_rollouts: int | None = Field(
        default=None, ge=1, description="stop after so many recorded rollouts of the run"
    )
    mode: Mode = Field(
        default=Mode.ROLLOUT,
        description="what a free desktop waits for: nothing (rollout-wise, as DART does), its group (task-wise), or "
        "batch, training and weights (batch-wise)",
    )
    over_provision: float = Field(
        default=1.0,
        ge=1.0,
        le=2.0,
        description="batch-wise only: groups that are opened for a batch, as a multiple of those that complete it; "
        "what is left over goes on and is in the next batch",
    )
    pacing: Literal["settle", "osworld", "step-pause"] = Field(
        default="settle",
        description="how long desktops wait for their screen: until it stands still, as OSWorld's runners do, or with "
        "its pause of 2 s after each action alone",
    )
    seed: int = Field(default=0, ge=0, description="of the stream of training seeds and of sampling")
    stay_groups: float = Field(
        default=2.0, ge=0, description="full groups that a task may run ahead so that a worker can stay on it"
    )
    groups_at_once: int | None = Field(
        default=None,
        ge=1,
        description="no group is begun while so many have members to deal. 1 completes groups soonest: for many tasks "
        "and desktops that are thrown away; None lets a desktop stay on a task, for those kept over episodes",
    )
    max_attempts: int = Field(default=5, ge=1, description="tries of one rollout that the environment loses")
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = EngineConfig()
    sync: SyncConfig = SyncConfig()
    sync_interval_s: float = Field(default=0.2, gt=0, description="how often the checkpoint table is looked at")
    admission_interval_s: float = Field(
        default=0.25, gt=0, description="how often the data manager is asked for admission"
    )
    metrics_interval_s: float = Field(default=1.0, gt=0)
    time_limit_s: float | None = Field(
        default=None, gt=0, description="of an episode, looked at after each step; it is scored then. None for none"
    )
    turn_limit_s: float | None = Field(
        default=None,
        gt=0,
        description="of one decision of the policy; the episode ends as MODEL_ERROR then, and is played again. None: "
        "engine.unavailable_timeout_s and one request more, so that a policy may wait for engines that are away",
    )
    breaker_losses: int = Field(
        default=6, ge=1, description="rollouts of a task that its desktop loses in a row before the task is left out"
    )
    breaker_reset_s: float = Field(
        default=30.0,
        gt=0,
        description="for how long; twice as long after each try that is lost, up to 20 times that",
    )
    unavailable_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="how long cluster, database, space on the disk, all engines, or all tasks may be away",
    )
    max_unrecorded: int = Field(default=256, ge=1, description="episodes waiting for the database before workers pause")
    max_unrecorded_mb: int = Field(
        default=2048, ge=1, description="megabytes of screenshots waiting for the database before workers pause"
    )
    stop_grace_s: float = Field(default=3.0, ge=0, description="time that running episodes get to end after SIGTERM")
    record_grace_s: float = Field(
        default=8.0, ge=0, description="time that is left to record what has ended, after that"
    )
    metrics_listen: str | None = Field(
        default=None,
        description='where Prometheus finds /metrics: "127.0.0.1:9465", "unix:/path/to.sock", or "" for nowhere. '
        "None: rollout.sock in the run's directory",
    )

    @field_validator("tasks", mode="before")
    @classmethod
    def _ids_to_entries(cls, value: object) -> object:
        if isinstance(value, str):
            value = [value]
        if isinstance(value, Sequence):
            return tuple({"id": item} if isinstance(item, str) else item for item in value)
        return value

    @property
    def longest_turn_s(self) -> float:
        """Seconds that one decision may take."""
        return self.turn_limit_s or self.engine.unavailable_timeout_s + self.engine.request_timeout_s

    @model_validator(mode="after")
    def _surplus_has_a_batch(self) -> RolloutConfig:
        if self.over_provision > 1.0 and self.mode is not Mode.BATCH:
            raise ValueError(
                f"over_provision {self.over_provision} needs mode batch-wise, but it is {self.mode}: remove it; how "
                f"far rollouts run ahead of the trainer is data.curation.batches_ahead there"
            )
        return self

    @model_validator(mode="after")
    def _transfer_has_a_server(self) -> RolloutConfig:
        for kind, url in self.engine.servers():
            if self.sync.transfer not in kind.transfers:
                what = url or f"engine.kind {self.engine.kind}"
                known = ", ".join(kind.transfers)
                raise ValueError(f"sync.transfer {self.sync.transfer} is not for {what}, which takes {known}")
        return self

    @model_validator(mode="after")
    def _unique_tasks(self) -> RolloutConfig:
        ids = [entry.id for entry in self.tasks]
        twice = sorted({task_id for task_id in ids if ids.count(task_id) > 1})
        if twice:
            raise ValueError(f"task listed more than once: {', '.join(twice)}; use `weight` to give it a larger share")
        return self

"""Configuration of the rollout service. Unknown keys are errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dart_agent.engines.base.engine_kind import EngineKind, Transfer
from dart_agent.engines.engine_kinds import ENGINES, kind_of_url
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.section import Section, as_mistake, constant
from dart_gym.utils.plugins import Registry, has
from dart_train.core.tolerances import HALF

SCHEDULERS: Registry[Any] = Registry(
    "rollout mode",
    "dart_gui.rollout_modes",
    {"rollout-wise": "dart_train.rollout.schedule.scheduler:Scheduler"},
    (has("next", "complete", "lose", "helpers", "for_run"),),
)
"""Schedulers by the values of `rollout.mode`, which say what a free desktop waits for: subclasses of `Scheduler`."""


@dataclass(frozen=True, slots=True)
class EnginePlaces:
    """The GPUs of the replicas that are started here, as the launcher has split this machine.

    Attributes:
        gpus: indices of the GPUs of each replica, in bus order; empty if nothing was assigned.
        memory: share of their memory that a replica takes; None for the default of the engine.
    """

    gpus: tuple[tuple[int, ...], ...] = ()
    memory: float | None = None

    @classmethod
    def parse(cls, texts: Sequence[str], memory: float | None = None) -> EnginePlaces:
        """Read one text for each replica, such as "0,1"; "" is the CPU. Raises `ConfigurationError`."""
        wrong = [text for text in texts if not all(part.isdigit() for part in text.split(",") if text)]
        if wrong:
            raise ConfigurationError(f"--engine-gpus {wrong[0]!r}: give indices of GPUs such as 0,1, or '' for the CPU")
        return cls(tuple(tuple(map(int, text.split(","))) if text else () for text in texts), memory)


class TaskEntry(Section):
    """One task of the training set."""

    id: str = Field(
        min_length=1,
        description='Task id such as "miniwob/click-tab", all of a suite as "miniwob/*", the path of an OSWorld '
        "JSON, or that of a list of them such as OSWorld's test_all.json.",
    )
    weight: float = Field(1.0, gt=0, description="Share of the rollouts, relative to the other tasks.")
    max_steps: int | None = Field(
        None, ge=1, description="Step limit of the task; null is `rollout.max_steps`, then the task's own."
    )


class SamplingConfig(Section):
    """How the policy samples. There is no top_p, top_k or penalty: they would bias the log-probabilities."""

    temperature: float = Field(1.0, ge=0, description="Temperature of the sampling, above 0.")
    max_tokens: int = Field(24, ge=1, description="Longest response in tokens.")


class EngineConfig(Section):
    """The engine replicas: started here as processes, or running elsewhere and reached by URL."""

    kind: str = Field(
        "transformers",
        description='The engine to start: "transformers" (our own engine), "vllm" (`vllm serve`), the name of an '
        "installed package's engine, or module:Class.",
    )
    options: dict[str, Any] = Field(
        {},
        validate_default=True,
        description="Options of this kind of engine; docs/guides/engines.md lists those of each.",
    )
    replicas: int | None = Field(
        None,
        ge=1,
        description="Replicas to start as processes; ignored where `urls` is given. null is as many as have room on "
        "the GPUs that are for engines (`resources`), or 1.",
    )
    urls: tuple[str, ...] = Field(
        (),
        description="Replicas that run already, of this kind or of that which their scheme names: ours (ws://, "
        "ws+unix://), vLLM's (http://). They are never restarted from here; rollout services with one "
        "database may share them, and update them one at a time.",
    )
    images: int = Field(default=5, ge=1, description="Most screenshots of a prompt.")
    request_timeout_s: float = Field(
        60.0,
        gt=0,
        description="Seconds after which a replica that has not answered a request counts as dead. Each round of "
        "requests that wait in the replica adds as much again, up to `unavailable_timeout_s`.",
    )
    start_timeout_s: float = Field(120.0, gt=0, description="Seconds until a started replica must answer.")
    health_interval_s: float = constant(1.0, "Seconds between two looks at a replica's health.", gt=0)
    unavailable_timeout_s: float = Field(
        300.0, gt=0, description="Seconds that a request waits for any replica before its episode ends as MODEL_ERROR."
    )
    max_backoff_s: float = constant(30.0, "Longest pause in seconds before a dead replica is started again.", gt=0)
    least_requests: int = constant(4, "Requests that a loaded replica gets at the same time, at least.", ge=1)
    most_requests: int = constant(256, "Requests that a replica gets at the same time, at most.", ge=1)
    updates_at_once: int | None = constant(
        None,
        "Replicas whose weights are updated at the same time, so that they read a version side by side; None for half "
        "of them. One always goes on serving.",
        ge=1,
    )
    update: Literal["drain", "abort", "keep"] | None = Field(
        None,
        description="What an update does to running requests. drain: they end first, while the other replicas serve. "
        "abort: they are cut off, and the rest is sampled with the new weights. keep: they are frozen (vLLM 0.32 "
        "crashes over frozen requests whose images were in its prefix cache). null is drain for vLLM; our own engine "
        "updates between two batches in any case.",
    )
    fingerprint_tolerance: float | None = Field(
        HALF,
        gt=0,
        description="Largest difference in nats between a log-probability and the published fingerprint of the "
        "weights. The default is what `dart-train parity` allows for bfloat16; null for no such check.",
    )

    @field_validator("options")
    @classmethod
    def _resolve(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Return all options of the kind, including those that have their default."""
        if "kind" not in info.data:
            return options
        with as_mistake():
            return ENGINES.get(info.data["kind"]).parse(options, "options").model_dump(mode="json")

    def servers(self, places: EnginePlaces = EnginePlaces()) -> list[tuple[EngineKind, str]]:
        """Return the kind and URL of each replica; the URL is "" if the replica is to be started."""
        kind = ENGINES.get(self.kind).parse(self.options)
        if self.urls:
            return [(kind_of_url(url, kind), url) for url in self.urls]
        return [(kind, "")] * (len(places.gpus) or self.replicas or 1)

    @model_validator(mode="after")
    def _whole(self) -> EngineConfig:
        try:
            self.servers()
        except ConfigurationError as error:
            raise ValueError(f"urls: {error}") from None
        return self


class SyncConfig(Section):
    """How new weights get into the replicas."""

    transfer: Transfer = Field(
        "files",
        description="How new weights get into the replicas. files: each replica reads the published directory "
        "itself. memory (transformers only): replicas on the trainer's node read each version from its memory, before "
        "its files are written; those that start, and those on other nodes, read files. nccl, tcp (vLLM only): a "
        "sender beside the rollout service streams the tensors, between GPUs or without, from the trainer's memory if "
        "the trainer is on its node, otherwise from files; servers that were not started from here must have been "
        "started for it (docs/guides/engines.md). adapter (vLLM on this machine, trainer.use_peft): a version is the "
        "LoRA adapter alone, which replicas serve beside the weights under it, without a pause.",
    )
    lora_rank: int = Field(0, ge=0, description="Rank of the adapters that transfer adapter brings.")
    lora_target_modules: list[str] | None = Field(
        None, description="Layers that they are for, as the trainer names them; null for the model's own choice."
    )
    python: str | None = Field(
        None,
        min_length=1,
        description="Python interpreter of the sender: for nccl that of vLLM's own environment; null is ours, which "
        "does for tcp.",
    )
    device: str = Field(
        "cuda:0", description="GPU of the sender for nccl: no replica may use it, the trainer's is the usual one."
    )
    address: str = Field(
        "127.0.0.1", min_length=1, description="Address of this machine at which replicas reach the sender."
    )
    buffer_mib: float = constant(1024.0, "Tensors are sent together up to this size in MiB.", gt=0)
    lease_s: float = constant(
        30.0,
        "Seconds after which the lock of a dead service is free: services that share replicas update one at a time.",
        gt=0,
    )


class RolloutConfig(Section):
    """All settings of the rollout service. Paths and the URL of the cluster come from the run."""

    tasks: tuple[TaskEntry, ...] = Field(
        min_length=1, description="Tasks to train on: names, or entries with weight and max_steps."
    )
    workers: int = Field(4, ge=1, description="Rollouts that are played at the same time, each on a desktop.")
    group_size: int = Field(8, ge=1, description="Rollouts of one task and seed that are compared with one another.")
    max_steps: int | None = Field(
        None, ge=1, description="Step limit of tasks that have none in their entry; null is the task's own."
    )
    budget_rollouts: int | None = Field(
        None, ge=1, description="Rollouts of the run after which the service ends; null for no end."
    )
    budget_minutes: float | None = Field(
        None, gt=0, description="Minutes of rolling out after which the service ends; null for no end."
    )
    budget_actions: int | None = Field(
        None,
        ge=1,
        description="Actions on desktops, those that forks replay included, after which the service ends; null for no "
        "end.",
    )
    mode: str = Field(
        "rollout-wise",
        description="What a free desktop waits for: nothing (rollout-wise, as DART does), or what an installed package "
        "adds. A checkout has task-wise, batch-wise and batch-wise-1.5, for comparison.",
    )
    pacing: Literal["settle", "osworld", "step-pause"] = Field(
        "settle",
        description="How long desktops wait for their screen: until it stands still (settle), as OSWorld's runners "
        "do (osworld), or their pause of 2 s after each action alone (step-pause).",
    )
    seed: int = Field(0, ge=0, description="Seed of the stream of training seeds and of the sampling.")
    groups_at_once: int | None = Field(
        None,
        ge=1,
        description="No group is begun while this many have members to deal. 1 completes groups soonest, for many "
        "tasks and desktops that are thrown away; null lets a desktop stay on a task, for those kept "
        "over episodes.",
    )
    max_attempts: int = constant(5, "Tries of a rollout that the environment loses.", ge=1)
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = Field(default_factory=EngineConfig)
    sync: SyncConfig = SyncConfig()
    sync_interval_s: float = Field(0.2, gt=0, description="Seconds between two looks for new weights.")
    admission_interval_s: float = constant(
        0.25, "Seconds between two questions to the data manager whether more may be rolled out.", gt=0
    )
    metrics_interval_s: float = Field(1.0, gt=0, description="Seconds between two lines of metrics.")
    time_limit_s: float | None = Field(
        None,
        gt=0,
        description="Seconds of an episode, looked at after each step; it is scored then. null for no limit.",
    )
    turn_limit_s: float | None = constant(
        None,
        "Seconds of one decision of the policy; then the episode ends as MODEL_ERROR and is played again. None is "
        "`unavailable_timeout_s` and one request more, so that a policy may wait for engines that are away.",
        gt=0,
    )
    breaker_losses: int = constant(
        6, "Rollouts of a task that its desktop loses in a row before the task is left out.", ge=1
    )
    breaker_reset_s: float = constant(
        30.0,
        "Seconds for which a task is left out; twice as long after each try that is lost, up to 20 times that.",
        gt=0,
    )
    unavailable_timeout_s: float = Field(
        300.0,
        gt=0,
        description="Seconds for which the cluster, the database, space on the disk, all engines or all tasks may "
        "be away. Rollouts, the trainer and the data manager's process wait as long.",
    )
    max_unrecorded: int = constant(256, "Episodes that wait for the database before workers pause.", ge=1)
    max_unrecorded_mb: int = constant(
        2048, "Megabytes of screenshots that wait for the database before workers pause.", ge=1
    )
    stop_grace_s: float = Field(3.0, ge=0, description="Seconds that running episodes get to end after SIGTERM.")
    metrics_listen: str | None = Field(
        None,
        description='Where Prometheus finds /metrics: "127.0.0.1:9465", "unix:/path/to.sock", or "" for nowhere; '
        "null is rollout.sock in the run's directory.",
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
        """Return the longest time in seconds of one decision."""
        return self.turn_limit_s or self.engine.unavailable_timeout_s + self.engine.request_timeout_s

    @field_validator("mode")
    @classmethod
    def _mode_can_be_used(cls, name: str) -> str:
        if name not in SCHEDULERS.built_in:
            with as_mistake():
                SCHEDULERS.get(name)
        return name

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

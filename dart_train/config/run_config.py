"""Configuration of a run: typed, in YAML, with dotted overrides. An unknown key is an error with a suggestion.

One file describes everything: model, desktops, demonstrations, warm-up, rollouts, data, trainer, evaluation.
A value that two sections need is set in one of them: `SAME` and `DEFAULTS` say where, and the others follow.
"""

from __future__ import annotations

import copy
import functools
import os
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from dart_agent.formats.ui_tars_prompts import Style
from dart_agent.prompting.conversation import ConversationConfig
from dart_gym.cluster.server.server_settings import DesktopSettings, token_of
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.section import Section, as_mistake, constant, mistakes
from dart_train.config.added_phases import added_phases
from dart_train.config.removed_keys import removed
from dart_train.config.resources_config import ResourcesConfig
from dart_train.core.train_errors import DartTrainError
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.maintenance.retention_plan import RetentionConfig
from dart_train.rollout.settings.reward_config import RewardConfig
from dart_train.rollout.settings.rollout_config import RolloutConfig
from dart_train.rollout.settings.teacher_config import TeacherConfig
from dart_train.trainer.settings.supervised_config import WarmupConfig
from dart_train.trainer.settings.trainer_section import TrainerConfig

RUN_TOKEN_ENV = "DART_RUN_TOKEN"


class ConfigError(DartTrainError):
    """The configuration is wrong; the message names the key and the next step."""

    hopeless = True


class ModelConfig(Section):
    """Where the weights come from."""

    path: str = Field(
        "tiny",
        description='Where the weights come from: "tiny" is built in place, "tiny-base", '
        '"tiny-copier", "tiny-actor" and "tiny-multiturn" are of the package dart-gym-demo-models, anything else is a '
        "directory of Hugging Face's layout.",
    )
    tiny: dict[str, Any] = Field(
        default_factory=dict, description='Fields of `dart_agent.models.tiny_model.TinyModelConfig`, for path "tiny".'
    )

    @field_validator("tiny")
    @classmethod
    def _of_a_model(cls, tiny: dict[str, Any]) -> dict[str, Any]:
        if tiny:
            from dart_agent.models.tiny_model import config_from_values  # needs the tokenizers' library

            with as_mistake():
                config_from_values(tiny)
        return tiny


class ClusterConfig(DesktopSettings):
    """The desktops: a cluster that runs already at `url`, or else a server that is started for the run.

    The other settings are those of that server, as of `dart-gym serve`.
    """

    url: str | None = Field(
        None, description="Address of a running `dart-gym serve`; null starts a server for the run. Commands: `--url`."
    )
    token_env: str | None = Field(
        None, description="Environment variable that holds the token of the cluster at `url`."
    )

    def token(self) -> str | None:
        """Token of the cluster at `url`; None where none is needed. Raises `ConfigError` if the variable is not set."""
        if self.url is None or self.token_env is None:
            return os.environ.get(RUN_TOKEN_ENV)  # of a run on several nodes
        if self.url.startswith("ws+unix:"):
            return os.environ.get(self.token_env)  # this user's own socket: it may do without
        try:
            return token_of(self.token_env)
        except ConfigurationError as error:
            raise ConfigError(f"cluster.token_env: {error}") from None


def _as_in_conversations(name: str, default: object) -> Any:
    """A field of `ConversationConfig` with another default."""
    info = copy.copy(ConversationConfig.model_fields[name])
    info.default = default
    return info


class AgentConfig(ConversationConfig):
    """How screenshots become prompts and text becomes actions."""

    style: Style = _as_in_conversations("style", "short")
    screenshots: int = _as_in_conversations("screenshots", 1)
    texts: int = _as_in_conversations("texts", 4)
    block: int = _as_in_conversations("block", 0)
    format: str = Field(
        "ui_tars",
        description="How the model writes actions: a built-in format (docs/reference/formats.md), the name of an "
        "installed package's format, or module:Class.",
    )
    planner: Literal["instruction"] | None = Field(
        None,
        description='Who says what to do: null is the model itself; "instruction" clicks, at every step, on what the '
        "instruction names, and the model is a grounder that finds it (docs/guides/grounding.md).",
    )


class DemonstrationConfig(Section):
    """Demonstrations by the scripted oracles."""

    per_task: int = Field(0, ge=0, description="Episodes per task; 0 for no demonstrations.")
    tasks: tuple[str, ...] | None = Field(
        None, description="Tasks to demonstrate, by name or as suite/*; null is the trained tasks."
    )
    per_task_of: dict[str, int] = Field(default_factory=dict, description="Other numbers of episodes, by task.")
    shown_pages: int = Field(
        0,
        ge=0,
        description="Most pages of each task that the oracle also plays during training: those that a whole group "
        "failed on. They count against the budget of actions, and teach little without data.curation.experience_pool.",
    )
    grid: int = Field(1, ge=1, description="Clicks are demonstrated on multiples of this many pixels.")


class DataConfig(Section):
    """The data manager. Size of groups and batches come from `rollout` and `trainer`."""

    url: str | None = Field(
        None,
        description="SQLAlchemy URL of the database, without a password; null is a SQLite file in the run's directory.",
    )
    url_env: str | None = Field(
        None, description="Environment variable that holds the URL of the database, with its password."
    )
    files: str | None = Field(
        None,
        description="Directory or fsspec URL (s3://bucket/prefix) below which trajectories and screenshots lie, "
        "under the run's name; null is the run's directory.",
    )
    image_format: Literal["auto", "png", "webp"] = constant(
        "auto", "Format of new screenshots, lossless; auto: WebP for those of more than a million pixels."
    )
    retention: RetentionConfig = RetentionConfig()
    unavailable_timeout_s: float = Field(
        300.0, gt=0, description="Seconds for which the trainer and the data manager's process wait for the database."
    )
    curation: CurationConfig = CurationConfig()

    @field_validator("url")
    @classmethod
    def _without_password(cls, url: str | None) -> str | None:
        """The configuration is written into the run's directory and shown: a password must not be in it."""
        if url is not None and urlsplit(url).password:
            raise ValueError("a password in a file; put the url into an environment variable and name that in url_env")
        return url

    def database_url(self) -> str | None:
        """The database's URL; None for a file in the run directory. Raises `ConfigError` if the variable is not set."""
        if self.url_env is None:
            return self.url
        url = os.environ.get(self.url_env)
        if not url:
            raise ConfigError(
                f"data.url_env: the environment variable {self.url_env} is not set: export the database's URL"
            )
        return url


class MonitorConfig(Section):
    """Small evaluations on held-out seeds of their own (from 9 000 on) beside the training."""

    every_rollouts: int | None = Field(None, ge=1, description="Rollouts between two of them; null for none.")
    episodes: int = Field(5, ge=1, le=1000, description="Episodes per trained task.")
    workers: int = Field(2, ge=1, description="Episodes at the same time, on desktops beside those of the rollouts.")
    patience: int | None = Field(
        None, ge=1, description="Evaluations without a new best one after which training ends; null for no such end."
    )


class EvaluationConfig(Section):
    """Held-out seeds before and after."""

    monitor: MonitorConfig = MonitorConfig()
    final: Literal["newest", "best"] = Field(
        "newest", description="The version that is tested after: the newest, or the best of the monitor's evaluations."
    )

    episodes: int = Field(
        50,
        ge=1,
        description="Episodes per trained task, with the seeds from 0 on; those below 10 000 are never trained on.",
    )
    beside: tuple[str, ...] = Field(
        (), description="Tasks that are not trained, evaluated and reported beside them, by name or as suite/*."
    )
    beside_episodes: int = Field(10, ge=1, description="Episodes per task beside.")
    temperature: float = Field(1.0, ge=0, description="Temperature of the sampling; 0 is greedy.")
    greedy: bool = Field(False, description="Evaluate greedily as well.")


class ControlConfig(Section):
    """What the reinforcement learning is compared with."""

    supervised: bool = Field(
        False,
        description="Supervised training goes on for as long as the reinforcement learning took, or until the "
        "demonstrations are known by heart, as a comparison.",
    )
    phases: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Further phases before the report, each with its options: names of installed packages, or "
        "`module:Class`. A checkout has `constant-click`: the best constant click of every trained task.",
    )

    @field_validator("phases")
    @classmethod
    def _phases_can_be_used(cls, named: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        with as_mistake():
            added_phases(named)
        return named


class RunConfig(Section):
    """One run."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name of the run and of its directory below --runs-dir."
    )
    description: str = Field("", description="What the report says of the run.")
    seed: int = Field(0, description="Seed of everything that is drawn at random.")
    resources: ResourcesConfig = ResourcesConfig()
    model: ModelConfig = ModelConfig()
    cluster: ClusterConfig = ClusterConfig()
    agent: AgentConfig = AgentConfig()
    demonstrations: DemonstrationConfig = DemonstrationConfig()
    warmup: WarmupConfig = WarmupConfig()
    rollout: RolloutConfig
    teacher: TeacherConfig = TeacherConfig()
    rewards: dict[str, RewardConfig] = Field(
        default_factory=dict,
        description="Judges, by the names under which their values are recorded beside the evaluator's score.",
    )
    data: DataConfig = DataConfig()
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    evaluation: EvaluationConfig = EvaluationConfig()
    controls: ControlConfig = ControlConfig()

    @model_validator(mode="after")
    def _follow(self) -> RunConfig:
        """Copy what is set in one section into those that need it too."""
        if self.rollout.sampling.temperature <= 0:
            raise ValueError("rollout.sampling.temperature must be above 0: what is trained on is sampled")
        for target, source, why in SAME:
            value, parent = _get(self, source), _get(self, target.rpartition(".")[0])
            found = _get(self, target)
            if target.rpartition(".")[2] in parent.model_fields_set and found != value:
                raise ValueError(f"{target} is {found!r} and {source} is {value!r}: {why}; set {source} only")
            _set(self, target, value)
        for target, source in DEFAULTS:
            if target.rpartition(".")[2] not in _get(self, target.rpartition(".")[0]).model_fields_set:
                _set(self, target, _get(self, source))
        if self.data.curation.forks.per_group and self.agent.planner:
            raise ValueError(
                "data.curation.forks replays what the run's own model said, and agent.planner has another one speak: "
                "leave one of them out"
            )
        if self.teacher.kind and self.agent.planner:
            raise ValueError(
                "teacher.kind teaches the run's own model in the states that it came to, and agent.planner has another "
                "one speak: leave one of them out"
            )
        monitor = self.evaluation.monitor
        if self.evaluation.final == "best" and not monitor.every_rollouts:
            raise ValueError("evaluation.final best needs evaluation.monitor.every_rollouts, which finds it: set both")
        if monitor.every_rollouts and self.rollout.engine.urls:
            raise ValueError(
                "evaluation.monitor loads versions into an engine of its own, and rollout.engine.urls names running "
                "ones: leave evaluation.monitor.every_rollouts out"
            )
        if monitor.every_rollouts and "desktops" not in self.cluster.model_fields_set:
            _set(self, "cluster.desktops", self.rollout.workers + monitor.workers)
        self._derive()
        if "suites" not in self.cluster.model_fields_set:
            named = [*self.train_tasks, *(self.demonstrations.tasks or ()), *self.evaluation.beside]
            _set(self, "cluster.suites", tuple(dict.fromkeys(name.partition("/")[0] for name in named if ":" in name)))
        return self

    def changed(self, **values: Any) -> RunConfig:
        """The same run with other values; what follows a key of them changes with it."""
        copy = self.model_copy(update=values)
        for target, source, _ in SAME:
            _set(copy, target, _get(copy, source))
        copy._derive()
        return copy

    def _derive(self) -> None:
        """Fill in what follows from several keys."""
        trainer = self.trainer
        steps = trainer.num_iterations * trainer.mini_batches + trainer.rehearsal_steps  # on each lease
        _set(self, "data.curation.leases_per_version", trainer.publish_steps / steps)

    @property
    def train_tasks(self) -> tuple[str, ...]:
        """Ids of the tasks that are trained."""
        return tuple(entry.id for entry in self.rollout.tasks)


SAME: tuple[tuple[str, str, str], ...] = (
    ("trainer.temperature", "rollout.sampling.temperature", "log-probabilities are taken at what was sampled at"),
    ("trainer.max_completion_length", "rollout.sampling.max_tokens", "both are the longest response"),
    ("data.curation.group_size", "rollout.group_size", "groups are as large as they are rolled out"),
    ("data.curation.batch_groups", "trainer.groups_per_step", "a batch is what one step trains on"),
    ("rollout.seed", "seed", "the run has one seed"),
    ("warmup.seed", "seed", "the run has one seed"),
    ("rollout.engine.images", "agent.screenshots", "a prompt holds that many screenshots"),
    (
        "rollout.engine.unavailable_timeout_s",
        "rollout.unavailable_timeout_s",
        "one time holds for all that may be away",
    ),
    ("data.unavailable_timeout_s", "rollout.unavailable_timeout_s", "one time holds for all that may be away"),
    ("rollout.sync.lora_rank", "trainer.lora_r", "engines serve what is trained"),
    ("rollout.sync.lora_target_modules", "trainer.lora_target_modules", "engines serve what is trained"),
)
"""(key, key that it always equals, why): a key that follows another is refused where it is set to something else."""

DEFAULTS = (("evaluation.temperature", "rollout.sampling.temperature"), ("cluster.desktops", "rollout.workers"))
"""(key, key that it equals unless it is set)."""


def _get(section: Any, path: str) -> Any:
    return functools.reduce(getattr, path.split("."), section)


def _set(section: Section, path: str, value: Any) -> None:
    """Set a key of a section that is still being made; the sections below are replaced, not changed."""
    key, _, rest = path.partition(".")
    if rest:
        below = getattr(section, key).model_copy()
        _set(below, rest, value)
        value = below
    section.__dict__[key] = value


def parse_overrides(items: list[str]) -> list[tuple[list[str], Any]]:
    """Parse `a.b=value` overrides; values are YAML.

    Raises:
        ConfigError: if an item has no `=`.
    """
    parsed = []
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"override {item!r} is not of the form key.subkey=value")
        try:
            parsed.append((key.split("."), yaml.safe_load(text)))
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of override {item!r} is not YAML: {error}") from None
    return parsed


def apply_override(values: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set a nested key in place, making the levels on the way."""
    for key in keys[:-1]:
        node = values.setdefault(key, {})
        if not isinstance(node, dict):
            raise ConfigError(f"{'.'.join(keys)}: {key!r} is a value, it has no keys of its own")
        values = node
    values[keys[-1]] = value


def load_config(path: str | Path, overrides: list[str] | None = None) -> RunConfig:
    """Read a YAML configuration with overrides `key.subkey=value`.

    Raises:
        ConfigError: if the file, a key or a value is invalid.
    """
    path = Path(path)
    try:
        values = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        near = ", ".join(sorted(map(str, path.parent.glob("*.yaml")))) if path.parent.is_dir() else ""
        step = f"there are: {near}" if near else "`dart-train init` writes a first one"
        raise ConfigError(f"no configuration {path}; {step}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of keys to values")
    for keys, value in parse_overrides(overrides or []):
        apply_override(values, keys, value)
    return parse_config(values, str(path))


def parse_config(values: dict[str, Any], origin: str = "configuration") -> RunConfig:
    """Check plain values and return the configuration. Raises `ConfigError`."""
    if old := list(removed(values)):
        raise ConfigError("\n  ".join([f"{origin}:", *old]))
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n  ".join([f"{origin}:", *mistakes(error, RunConfig)])) from None


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

"""The supervised warm-up: from version 0 and the demonstrations to version 1. Also its continuation, the control."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.prompting.conversation import Conversation
from dart_train.config.run_config import RunConfig
from dart_train.core.data_states import ORACLE_SOURCE, SHOWN_MARK
from dart_train.core.rank_environment import follow_launcher, rank, rank_count
from dart_train.core.train_errors import DartTrainError
from dart_train.data.manager.data_manager import DataManager
from dart_train.processes.process_context import ProcessContext
from dart_train.processes.process_context import Progress as PanelProgress
from dart_train.run.run_directory import RunState
from dart_train.trainer.batches.collator import Sample
from dart_train.trainer.batches.demonstrations import Demonstration, encode, recorded
from dart_train.trainer.supervised import Progress, SupervisedConfig, TrainedAs, train_supervised
from dart_train.trainer.weights.adapters import LoraSettings

KNOWN_BY_HEART = 1e-3
"""Loss in nats per token at which the control ends: its demonstrations have nothing left to teach."""


def main(context: ProcessContext, *, control: bool = False) -> None:
    """Train on the demonstrations and publish version 1; or train the supervised control and only save it.

    The control continues from version 1 for as long as the reinforcement learning took, or until it knows the
    demonstrations by heart.
    """
    follow_launcher()
    config, version = context.config, 1
    seconds = _training_seconds(context) if control else None
    with context.open_data() as data:
        published = {row.version: row for row in data.checkpoints()}
        if not control and version in published:
            return
        start = published.get(version if control else 0)
        if start is None:
            raise DartTrainError("the weights to start from are not published; run `dart-train run`, which does it")
        target = context.run.supervised if control else context.run.checkpoint(version)
        model_dir, settings = data.local_copy(start.path), _settings(config, seconds)
        samples = load_samples(config, data, model_dir, shown=control)
        say = _teller(context.progress("supervised" if control else "warmup"), settings)
        train_supervised(
            model_dir,
            samples,
            data.load_image,
            target,
            settings,
            on_progress=say,
            trained_as=trained_as(config),
            until_loss=KNOWN_BY_HEART if control else 0.0,
        )
        if not control and rank() == 0:
            data.publish(version, target, source="warmup")


def trained_as(config: RunConfig) -> TrainedAs:
    """Return the trainer's ways to save memory; `fsdp` is among them if this process is one of several ranks."""
    trainer = config.trainer
    if trainer.kind != "dart_grpo":
        return TrainedAs()
    arguments: dict[str, Any] = {name: True for name in ("bf16", "fp16") if getattr(trainer, name)}
    sharing = 1
    if trainer.gradient_checkpointing:
        arguments["gradient_checkpointing"] = True
    if trainer.fsdp and rank_count() > 1:
        arguments |= {"fsdp": trainer.fsdp, "fsdp_config": trainer.fsdp_config}
        sharing = trainer.context_parallel
    lora = None
    if trainer.use_peft:
        targets = trainer.lora_target_modules
        lora = LoraSettings(trainer.lora_r, trainer.lora_alpha, targets, config.warmup.seed)
    return TrainedAs(arguments, trainer.freeze_vision, lora, trainer.frozen_dtype, sharing)


def _training_seconds(context: ProcessContext) -> float:
    """Return how long the run's reinforcement learning took.

    Raises:
        DartTrainError: if it has not run yet.
    """
    state = RunState(context.run.root / "state.json")
    if not state.finished("rl"):
        raise DartTrainError(
            "the supervised control trains for as long as the reinforcement learning took, which has not ended yet; "
            "`dart-train run` runs both"
        )
    return round(state.seconds("rl"))


def _settings(config: RunConfig, seconds: float | None) -> SupervisedConfig:
    """As configured, or for some seconds with another order of samples."""
    if seconds is None:
        return config.warmup
    changed = {"max_steps": 0, "max_seconds": seconds, "seed": config.seed + 1}
    return config.warmup.model_copy(update=changed)


def _teller(progress: PanelProgress, settings: SupervisedConfig) -> Callable[[Progress], None]:
    def say(now: Progress) -> None:
        if settings.max_steps:
            progress.say(now.steps, settings.max_steps, f"loss {now.loss:.3f}")
        else:
            progress.say(min(now.seconds, settings.max_seconds or 0), settings.max_seconds or 0, f"loss {now.loss:.3f}")

    return say


def load_samples(config: RunConfig, data: DataManager, model_dir: str | Path, *, shown: bool = False) -> list[Sample]:
    """The run's demonstrations as training samples, and successes of other sources.

    `shown` adds the pages that were shown during training, which the trainer draws as rehearsal: the supervised control
    learns from all that the run learned from.
    """
    found = data.trajectories(source=ORACLE_SOURCE)
    own = (one for one in found if shown or not one.group_key.endswith(SHOWN_MARK))
    oracles = sorted(own, key=lambda trajectory: trajectory.trajectory_id)
    demonstrations = [Demonstration.from_trajectory(trajectory) for trajectory in oracles]
    tokens = ModelTokens.load(model_dir)
    vision, action_format = VisionSpec.from_dir(model_dir), get_format(config.agent.format)
    conversation = Conversation(tokens, vision, config.agent, action_format)
    samples: list[Sample] = []
    for source in config.warmup.pool_sources:
        samples += recorded(data.trajectories(source=source))
    return samples + encode(demonstrations, conversation, tokens, data.load_image)

"""The trainer as a process: leases groups, trains, publishes, until the rollouts have ended and nothing is left.

`trainer.kind` puts another trainer in the place of `DartGRPOTrainer`: see `dart_train.trainer.trainer_loop`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_gym.utils.processes import STOPPED_STATUS
from dart_train.config.run_config import ConfigError, RunConfig
from dart_train.core.metrics_log import MetricsLog
from dart_train.core.rank_environment import follow_launcher, local_rank
from dart_train.data.manager.leasing import Leasing
from dart_train.processes.process_context import ProcessContext, published, stop_on_signals
from dart_train.run.run_directory import RunDirectory
from dart_train.trainer.settings.trainer_section import TRAINERS

if TYPE_CHECKING:
    from dart_train.trainer.batches.samples import Sample

ROLLOUTS_ENDED = "rollouts_ended"
"""Fact of the run: the rollout service has spent its budget."""

STOP_TRAINING = "stop_training"
"""Fact of the run: the monitor has seen no better version for `patience` evaluations, so training ends."""

START_SOURCES = ("initial", "warmup")
"""Sources of published weights that are not the trainer's own."""

LOOK_INTERVAL_S = 0.5


def trainer_arguments(config: RunConfig, run: RunDirectory, ranks: int | None = None) -> Any:
    """Return the `DartGRPOConfig` of a run.

    Args:
        config: the run.
        run: its directory.
        ranks: that will train together, where this process is not one of them: it only checks the settings. It does not
            see what a rank sees (the launcher sees all GPUs, a rank one), so it looks at no device and initializes
            none, which would take memory of it.

    Raises:
        ConfigError: the settings are wrong.
    """
    from dart_train.trainer.settings.grpo_config import DartGRPOConfig

    given = config.trainer.given()
    kind: Any = DartGRPOConfig
    if ranks is None:
        import torch

        on_cpu = not torch.cuda.is_available()
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(run.root / "tensorboard"))
    else:
        on_cpu = True
        given = {name: value for name, value in given.items() if name != "use_cpu"}
        kind = type("PlannedConfig", (DartGRPOConfig,), {"world_size": property(lambda self: ranks)})
    values: dict[str, Any] = {"use_cpu": on_cpu, "output_dir": str(run.trainer), "seed": config.seed}
    teacher = config.teacher
    values |= {"teacher_when": teacher.when if teacher.kind else "never", "teacher_coef": teacher.coef}
    values |= {"teacher_rehearsed_rows": teacher.rehearsed_rows}
    values |= {"run_name": config.name, **given}
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"trainer: {error}") from error


class EndOfData:
    """Asked by the trainer whether to stop: told to, or no rollouts will come and none is left, or nothing improves."""

    def __init__(self, context: ProcessContext, data: Leasing, groups: int) -> None:
        self._context = context
        self._data = data
        self._groups = groups
        self._looked = 0.0
        self._ended = False

    def __call__(self) -> bool:
        """True to stop. Looks into the data base twice a second at most."""
        if self._context.stop.is_set():
            return True
        now = time.monotonic()
        if now - self._looked > LOOK_INTERVAL_S:
            self._looked = now
            ended = bool(self._data.fact(ROLLOUTS_ENDED)) and self._data.ready()[0] < self._groups
            self._ended = ended or bool(self._data.fact(STOP_TRAINING))
        return self._ended


def main(context: ProcessContext, *, gpu_memory: float | None = None) -> None:
    """Train until the data ends, from the newest state in `trainer/` on. `gpu_memory`: share of the GPU to take.

    Raises:
        SystemExit: told to stop before that.
    """
    follow_launcher()
    stop_on_signals(context.stop, orphan_exits=True)  # a step may take minutes
    if gpu_memory is not None:
        import torch

        torch.cuda.set_per_process_memory_fraction(gpu_memory, local_rank())
    if context.config.trainer.kind == "dart_grpo":
        _learn(context)
    else:
        learn_with(context)
    if context.stop.is_set():
        raise SystemExit(STOPPED_STATUS)


def _learn(context: ProcessContext) -> None:
    from dart_train.trainer import DartGRPOTrainer

    arguments = trainer_arguments(context.config, context.run)
    transfer = context.config.rollout.sync.transfer
    with context.open_data(context.config.data.unavailable_timeout_s) as data:
        newest = published(data)
        started_from = max(
            (row for row in data.checkpoints() if row.source in START_SOURCES), key=lambda row: row.version
        )
        demonstrations: Sequence[Sample] = ()
        if arguments.supervised_coef:
            from dart_train.processes.warmup import load_samples

            demonstrations = load_samples(context.config, data, newest.path)
        # An adapter belongs to the weights that it was begun on, which are the reference as well when it is off.
        begun = data.local_copy(started_from.path)
        start, reference = (begun, None) if arguments.use_peft else (newest.path, begun)
        main_rank = arguments.process_index == 0
        trainer = DartGRPOTrainer(
            start,
            arguments,
            data,
            ref_model=reference,  # of the KL term: the same one after every restart
            demonstrations=demonstrations,
            checkpoints=context.run.checkpoints,
            metrics=MetricsLog(context.run.metrics("trainer")) if main_rank else None,
            weights_in_memory=transfer not in ("files", "adapter"),
            adapters_alone=transfer == "adapter",
            stop=EndOfData(context, data, arguments.groups_per_step),
        )
        trainer.run()
        trainer.accelerator.end_training()  # a rank that ends without it may abort, and the other nodes wait for it


def learn_with(context: ProcessContext) -> None:
    """Train with another trainer.

    Raises:
        PluginError: if there is no trainer of this name.
        ConfigError: if its options are invalid.
    """
    from dart_train.trainer.trainer_loop import run_trainer

    settings = context.config.trainer
    kind = TRAINERS.get(settings.kind)
    with context.open_data(context.config.data.unavailable_timeout_s) as data:
        newest = published(data)
        try:
            trainer = kind(newest.path, data, **settings.options)
        except TypeError as error:
            raise ConfigError(f"trainer.options: {settings.kind} does not take these settings: {error}") from error
        run_trainer(
            trainer,
            data,
            settings,
            model_dir=Path(newest.path),
            checkpoints=context.run.checkpoints,
            metrics=MetricsLog(context.run.metrics("trainer")),
            stop=EndOfData(context, data, settings.groups_per_step),
        )

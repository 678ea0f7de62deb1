"""The one check of a run before anything starts: what `run`, `run --dry-run`, `controls` and `plan` ask."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from dart_train.config.run_config import RunConfig
from dart_train.core.train_errors import DartTrainError
from dart_train.placement.gpu_discovery import GPU, gpus_here
from dart_train.placement.placement import Placement, place
from dart_train.preflight.machine_check import machine_problems
from dart_train.preflight.model_check import model_problems
from dart_train.preflight.settings_check import settings_problems
from dart_train.preflight.store_check import store_problems
from dart_train.preflight.task_check import task_problems
from dart_train.preflight.teacher_check import teacher_problems


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check came to.

    Attributes:
        problems: sentences; none where nothing is known to be wrong.
        placement: on this machine; None where it has too few GPUs, or was not asked.
    """

    problems: tuple[str, ...]
    placement: Placement | None = None


def check_run(config: RunConfig, runs_dir: Path, *, occupied: bool = True) -> Checked:
    """Check a run on this machine.

    Args:
        config: the run.
        runs_dir: where its directory is to be.
        occupied: whether GPUs in use by others count as taken; a run that goes on may find its own processes there.
    """
    problems: list[str] = []
    placement: Placement | None = None
    gpus: list[GPU] = []
    try:
        gpus = gpus_here()
        if not occupied:
            gpus = [dataclasses.replace(gpu, used_mb=0) for gpu in gpus]
        placement = place(config, gpus, sorted(os.sched_getaffinity(0)))
    except DartTrainError as error:
        problems.append(str(error))
    ranks = _assumed_ranks(config) if placement is None else placement.demand.ranks
    problems += [*settings_problems(config, ranks), *model_problems(config), *task_problems(config)]
    problems += teacher_problems(config)
    problems += store_problems(config)
    if placement is not None:
        problems += machine_problems(config, placement, gpus, runs_dir)
    return Checked(tuple(dict.fromkeys(problems)), placement)


def _assumed_ranks(config: RunConfig) -> int:
    """Return how many ranks a trainer may have whose machine is not known."""
    return config.resources.trainer_ranks or 2 * config.trainer.context_parallel


def check_elsewhere(config: RunConfig, *, model_here: bool = True, stores: bool = True) -> Checked:
    """Check what is the same on every machine.

    Args:
        config: of a run on a Ray cluster, or of a plan for another machine.
        model_here: whether the model lies on this machine.
        stores: whether the run's database and storage can be reached from this machine.
    """
    problems = settings_problems(config, _assumed_ranks(config))
    problems += store_problems(config) if stores else []
    problems += [*model_problems(config), *teacher_problems(config)] if model_here else []
    return Checked(tuple(dict.fromkeys([*problems, *task_problems(config, here=False)])))

"""`dart-train bench efficiency --real`: the same run rollout-wise, task-wise and batch-wise, on real desktops.

Each run is the pipeline's (`dart-train run`), without warm-up and evaluation, in a directory of its own that is removed
afterwards. The measured time runs from the end of the first training step to the end of the last one, so that the start
of processes does not count.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from dart_lab.modes.waiting_schedulers import Mode
from dart_lab.reporting.report import Aim, Report
from dart_train.config.run_config import RunConfig
from dart_train.core.metrics_log import engine_use, read_metrics
from dart_train.core.train_errors import DartTrainError
from dart_train.launch import pipeline
from dart_train.run.run_directory import RunDirectory

MODES = {"coupled": Mode.BATCH, "task_wise": Mode.TASK, "dart": Mode.ROLLOUT}
PHASES = ("prepare", "rl")
LEAST_STEPS = 4
"""Training steps without which a run says nothing."""
AIMS = {
    "env_utilisation_ratio": Aim(3.0, at_most=False),
    "throughput_ratio": Aim(1.9, at_most=False),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One run.

    Attributes:
        env_utilisation: seconds in reset, step and evaluate over workers x wall.
        rollout_utilisation: share of the time that engines computed.
        throughput: trained actions per minute.
        seconds: that were measured.
        steps: training steps in them.
    """

    env_utilisation: float
    rollout_utilisation: float
    throughput: float
    seconds: float
    steps: int


class BenchmarkError(DartTrainError):
    """A run was too short to say anything."""


def measure(config: RunConfig, *, rollouts: int, repeat: int, progress: Callable[[str], None]) -> Report:
    """Run all modes in turn, `repeat` times, and compare them.

    Args:
        config: the run, in any mode.
        rollouts: budget of each run.
        repeat: runs of each mode; each has a seed of its own, the same for all modes.
        progress: told what begins.

    Raises:
        BenchmarkError: a run had too few training steps.
        DartTrainError, DartGymError: a run failed.
    """
    found: dict[str, list[Measured]] = {name: [] for name in MODES}
    for turn in range(repeat):
        for name, mode in MODES.items():
            progress(f"{name}, {turn + 1} of {repeat}")
            found[name].append(_run(config, mode, seed=config.seed + turn, rollouts=rollouts))
    return report(found)


def variant(config: RunConfig, mode: Mode, *, seed: int, rollouts: int) -> RunConfig:
    """The run in a mode. Pure."""
    rollout = config.rollout.model_copy(update={"mode": mode, "budget_rollouts": rollouts})
    return config.changed(name=f"{config.name}-{mode}-{seed}", seed=seed, rollout=rollout)


def _run(config: RunConfig, mode: Mode, *, seed: int, rollouts: int) -> Measured:
    with tempfile.TemporaryDirectory(prefix="dart-efficiency-") as directory:
        changed = variant(config, mode, seed=seed, rollouts=rollouts)
        return read(pipeline.execute(changed, Path(directory), plain=True, only=PHASES))


def read(run: RunDirectory) -> Measured:
    """Read the metrics of a run.

    Raises:
        BenchmarkError: there were too few training steps.
    """
    steps = [row for row in read_metrics(run.metrics("trainer")) if "batch/samples" in row]
    if len(steps) < LEAST_STEPS:
        raise BenchmarkError(
            f"{run.root.name} had {len(steps)} training steps, at least {LEAST_STEPS} are needed: use more --rollouts"
        )
    begin, end = steps[0]["t"], steps[-1]["t"]
    lines = [row for row in read_metrics(run.metrics("rollout")) if begin <= row["t"] <= end]
    engines = [share for share in map(engine_use, lines) if share is not None]
    if not engines:
        raise BenchmarkError(
            f"{run.root.name} trained all its {len(steps)} steps between two lines of metrics: use more --rollouts"
        )
    return Measured(
        env_utilisation=fmean(row["env_utilisation"] for row in lines),
        rollout_utilisation=fmean(engines),
        throughput=60 * sum(row["batch/samples"] for row in steps[1:]) / (end - begin),
        seconds=end - begin,
        steps=len(steps) - 1,
    )


def report(found: Mapping[str, Sequence[Measured]]) -> Report:
    """Medians of the repetitions, and the ratios of each: the least one is kept together with the median. Pure."""
    keys: dict[str, float] = {}
    names = ("env_utilisation", "throughput", "rollout_utilisation")
    for name in names:
        ratios = [
            getattr(dart, name) / max(1e-9, getattr(coupled, name))
            for dart, coupled in zip(found["dart"], found["coupled"], strict=True)
        ]
        keys[f"real.{name}_ratio"] = median(ratios)
        keys[f"real.{name}_ratio_least"] = min(ratios)
    for mode, runs in found.items():
        for name in names:
            keys[f"real.{mode}.{name}"] = median(getattr(run, name) for run in runs)
    keys["real.best_env_utilisation"] = max(run.env_utilisation for run in found["dart"])  # of the repetitions
    keys["real.seconds"] = min(run.seconds for runs in found.values() for run in runs)
    notes = [
        f"{mode}: {run.steps} training steps in {run.seconds:.0f} s, desktops {100 * run.env_utilisation:.0f} %, "
        f"engines {100 * run.rollout_utilisation:.0f} %, {run.throughput:.0f} trained actions/min"
        for mode, runs in found.items()
        for run in runs
    ]
    return Report("efficiency (real desktops)", keys, {f"real.{name}": aim for name, aim in AIMS.items()}, notes)

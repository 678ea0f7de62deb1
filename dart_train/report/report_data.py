"""What a report says, as values: no files, no plots, no HTML."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BOOTSTRAP_SAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Rate:
    """A success rate with its 95 % confidence interval."""

    rate: float
    low: float
    high: float
    episodes: int


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """One task before and after, and what it is compared with. None: not measured."""

    task_id: str
    trained: bool
    before: Rate | None = None
    after: Rate | None = None
    greedy_before: Rate | None = None
    greedy_after: Rate | None = None
    constant_click: float | None = None
    base: Rate | None = None
    supervised: Rate | None = None
    shuffled: Rate | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Success of one task while it was trained: (K,) rollouts so far, and mean reward of those around that point."""

    task_id: str
    rollouts: NDArray[np.float64]
    success: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Turns:
    """One task in one stretch of the training.

    Attributes:
        task_id: the task.
        upto: rollouts of the run at the end of the stretch.
        rollouts: of the task in it.
        success: their mean reward.
        steps: their mean length.
        group: mean size of their groups.
    """

    task_id: str
    upto: int
    rollouts: int
    success: float
    steps: float
    group: float


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """Named shares in [0, 1] over the seconds of the training phase."""

    seconds: NDArray[np.float64]
    values: dict[str, NDArray[np.float64]]


@dataclass(slots=True)
class ReportData:
    """Everything that a report says."""

    name: str
    description: str
    machine: str
    phases: list[tuple[str, float]]
    tasks: list[TaskFigures]
    figures: dict[str, float | int | str | None]
    curves: list[Curve] = field(default_factory=list)
    held_out: list[tuple[int, float]] = field(default_factory=list)
    turns: list[Turns] = field(default_factory=list)
    entropies: dict[str, list[float]] = field(default_factory=dict)
    utilisation: TimeSeries | None = None
    staleness: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    config_yaml: str = ""


def mean_rate(successes: Sequence[Sequence[float]], seed: int = 0) -> Rate:
    """Return the mean over tasks of the success rate, with a 95 % bootstrap interval within each task.

    Raises:
        ValueError: if a task has no episodes, or there are no tasks.
    """
    if not successes or not all(successes):
        raise ValueError("need at least one episode of at least one task")
    rng = np.random.default_rng(seed)
    means = np.zeros(BOOTSTRAP_SAMPLES)
    for scores in successes:
        values = np.asarray(scores, dtype=np.float64)
        picks = rng.integers(0, len(values), (BOOTSTRAP_SAMPLES, len(values)))
        means += values[picks].mean(axis=1)
    means /= len(successes)
    rate = float(np.mean([np.mean(scores) for scores in successes]))
    low, high = np.quantile(means, [0.025, 0.975])
    return Rate(rate, float(low), float(high), sum(map(len, successes)))


def smooth(positions: Sequence[float], rewards: Sequence[float], window: int) -> tuple[list[float], list[float]]:
    """Moving average over `window` rollouts, one point every quarter of a window."""
    xs, ys = [], []
    step = max(1, window // 4)
    for end in range(min(window, len(rewards)), len(rewards) + 1, step):
        start = max(0, end - window)
        if end == start:
            continue
        xs.append(float(np.mean(positions[start:end])))
        ys.append(float(np.mean(rewards[start:end])))
    return xs, ys

"""The simulated questions: DART beside a coupled loop, what each part adds, which ratio is best, what changes it.

Each run is a pure function of setting, design and length, so that they are spread over the processors.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from statistics import fmean

from dart_gym.utils.processes import follow_parent
from dart_lab.efficiency.simulation import COUPLED, DART, TASK_WISE, Design, Outcome, Simulation
from dart_lab.efficiency.workload import Setting
from dart_lab.modes.waiting_schedulers import Mode

MODES = {"coupled": COUPLED, "task-wise": TASK_WISE, "DART": DART}

FULL = Design(batches_ahead=4.0, warm=0.2, prefix_reuse=True)
"""Every part: `batches_ahead` is the over-provisioning of rollouts that wait for no batch."""

FAST_TRAINER = 4.0
"""The parts are compared with a trainer FAST_TRAINER times as fast: the published one is what everything waits for, and
with back-pressure no part of the rollouts would make a difference."""

WITHOUT = {
    "all parts": FULL,
    "without rollout-wise (task-wise)": replace(FULL, mode=Mode.TASK),
    "without rolling update": replace(FULL, rolling=False),
    "without over-provisioning": replace(FULL, batches_ahead=1.0),
    "without warm pool": replace(FULL, warm=0.0),
    "without prefix reuse": replace(FULL, prefix_reuse=False),
}

_ONE_BATCH = Design(mode=Mode.TASK, rolling=False, batches_ahead=1.0)
LADDER = {
    "coupled": COUPLED,
    "+ trainer beside rollouts": _ONE_BATCH,
    "+ rollout-wise": replace(_ONE_BATCH, mode=Mode.ROLLOUT),
    "+ rolling update": replace(_ONE_BATCH, mode=Mode.ROLLOUT, rolling=True),
    "+ over-provisioning": replace(FULL, warm=0.0, prefix_reuse=False),
    "+ warm pool": replace(FULL, prefix_reuse=False),
    "+ prefix reuse": FULL,
}

APRIL = (1.0, 1.25, 1.5)
"""Over-provisioning of coupled batches."""

DESKTOPS = (40, 80, 120, 180)
TAILS = (0.3, 0.6, 0.9, 1.2)
ENGINES = (2, 4, 8)
SEARCH_DESKTOPS = (16, 20, 24, 28, 32, 40, 56, 80)
SEARCH_ENGINES = (1, 2, 3, 4, 6)
GROWTH_DESKTOPS = (20, 80, 180, 500, 1000, 2000, 5000)
GROWTH_ENGINES = (1, 4, 16, 64)
FED = 0.9
"""The search looks among the clusters that give the trainer this share of what it can train."""


@dataclass(frozen=True, slots=True)
class Length:
    """Virtual hours of a run after the skipped ones, and its seeds."""

    hours: float = 10.0
    skip_hours: float = 1.0
    seeds: tuple[int, ...] = (0, 1, 2)


Case = tuple[Setting, Design]


class Runner:
    """Runs cases on all processors. A context manager.

    Args:
        length: of every run.
        workers: processes; by default one for each processor.
    """

    def __init__(self, length: Length, workers: int | None = None) -> None:
        self._length = length
        self._pool = ProcessPoolExecutor(
            workers or len(os.sched_getaffinity(0)),
            initializer=follow_parent,  # a killed benchmark leaves no workers
            initargs=(os.getpid(), signal.SIGKILL),
        )

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(self, cases: Sequence[Case]) -> list[Outcome]:
        """The outcome of every case, each the mean over the seeds."""
        seeds = self._length.seeds
        jobs = [(replace(setting, seed=seed), design, self._length) for setting, design in cases for seed in seeds]
        found = list(self._pool.map(_run_one, jobs))
        return [mean_outcome(found[i : i + len(seeds)]) for i in range(0, len(found), len(seeds))]

    def named(self, setting: Setting, designs: Mapping[str, Design]) -> dict[str, Outcome]:
        """The outcome of every design in a setting."""
        return dict(zip(designs, self.run([(setting, design) for design in designs.values()]), strict=True))


def _run_one(job: tuple[Setting, Design, Length]) -> Outcome:
    setting, design, length = job
    return Simulation(setting, design).run(length.hours, skip_hours=length.skip_hours)


def mean_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """The mean of every figure; of staleness the greatest. Pure."""
    values = {field.name: fmean(getattr(outcome, field.name) for outcome in outcomes) for field in fields(Outcome)}
    return Outcome(**{**values, "staleness": max(outcome.staleness for outcome in outcomes)})  # type: ignore[arg-type]


COUPLED_IN_THE_PAPER = {"env_utilisation": 0.122, "rollout_utilisation": 0.296, "throughput": 22.6}
FITTED_TAILS = (0.6, 0.75, 0.9, 1.05)
FITTED_TRAIN_S = (0.7, 0.85, 1.0, 1.15)


def misfit(coupled: Outcome) -> float:
    """Return how far a coupled outcome is from the paper's: the sum of the squared logarithms of three ratios. Pure."""
    return sum(math.log(getattr(coupled, name) / value) ** 2 for name, value in COUPLED_IN_THE_PAPER.items())


def calibrate(runner: Runner, setting: Setting) -> dict[tuple[float, float], float]:
    """The misfit of the coupled baseline by (tail, train_s_per_action): where the defaults of these two come from."""
    places = [(tail, train) for tail in FITTED_TAILS for train in FITTED_TRAIN_S]
    settings = [
        replace(setting, desktop=replace(setting.desktop, tail=tail), train_s_per_action=train)
        for tail, train in places
    ]
    outcomes = runner.run([(changed, COUPLED) for changed in settings])
    return dict(zip(places, map(misfit, outcomes), strict=True))


@dataclass(frozen=True, slots=True)
class Best:
    """Results of the search.

    Attributes:
        desktops: of the best cluster.
        engines: of the best cluster.
        outcome: its figures.
        table: environment utilisation by (desktops, engines), NaN where the trainer is not fed.
    """

    desktops: int
    engines: int
    outcome: Outcome
    table: dict[tuple[int, int], float]


def search(runner: Runner, setting: Setting, design: Design) -> Best:
    """Find the ratio of desktops to engines at which desktops are used best and the trainer is kept fed.

    A cluster of one desktop would be used well, too; so only clusters count that give the trainer the share `FED` of
    what it can train.
    """
    places = [(desktops, engines) for desktops in SEARCH_DESKTOPS for engines in SEARCH_ENGINES]
    cases = [(replace(setting, desktops=desktops, engines=engines), design) for desktops, engines in places]
    found = dict(zip(places, runner.run(cases), strict=True))
    enough = FED * 60 / setting.train_s_per_action
    table = {
        place: outcome.env_utilisation if outcome.throughput >= enough else math.nan for place, outcome in found.items()
    }
    fed = [place for place in places if not math.isnan(table[place])] or places
    best = max(fed, key=lambda place: found[place].env_utilisation)
    return Best(*best, found[best], table)


def growth(runner: Runner, setting: Setting) -> dict[int, dict[int, Outcome]]:
    """Return the throughput of desktops and engines if the trainer takes everything and no weights are updated."""
    rollouts = replace(setting, batch_groups=10**9)
    design = replace(FULL, batches_ahead=None)
    places = [(desktops, engines) for desktops in GROWTH_DESKTOPS for engines in GROWTH_ENGINES]
    cases = [(replace(rollouts, desktops=desktops, engines=engines), design) for desktops, engines in places]
    found = dict(zip(places, runner.run(cases), strict=True))
    return {desktops: {engines: found[desktops, engines] for engines in GROWTH_ENGINES} for desktops in GROWTH_DESKTOPS}


def sweeps(runner: Runner, setting: Setting) -> dict[str, dict[float, dict[str, Outcome]]]:
    """Coupled and DART over the number of desktops, the weight of the tail, the number of engines."""
    variants: dict[str, dict[float, Setting]] = {
        "desktops": {n: replace(setting, desktops=n) for n in DESKTOPS},
        "tail": {tail: replace(setting, desktop=replace(setting.desktop, tail=tail)) for tail in TAILS},
        "engines": {n: replace(setting, engines=n) for n in ENGINES},
    }
    designs = {"coupled": COUPLED, "DART": DART}
    return {
        axis: {value: runner.named(changed, designs) for value, changed in settings.items()}
        for axis, settings in variants.items()
    }

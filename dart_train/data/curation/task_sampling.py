"""Shares of the tasks in the rollouts, from their success rates so far. Pure.

Invariants:
    - A share is a factor on the task's configured weight, in [floor, 1]: every task keeps a share, since a success rate
      that is never measured again stays wrong.
    - A task that was never tried, or in fewer than `MEASURED_GROUPS` groups, has share 1.
"""

from bisect import bisect_left
from collections.abc import Mapping

from dart_train.data.curation.rules import CurationConfig, TaskSampling

CURRICULUM_BANDS = (0.7, 0.3)
"""Success rates that divide the tasks of a curriculum into bands, falling: easy, medium, hard."""
MEASURED_GROUPS = 3
"""Groups after which a task's success rate counts. The members of a group begin from the same screen, so a task of
which half of the instances can be done shows 0 or 1 after its first group."""
OPENS_AT = 0.6
"""A band opens once the mean success of all tasks in easier bands is this high."""


def task_shares(config: CurationConfig, success: Mapping[str, float | None]) -> dict[str, float]:
    """Return every task's share by the configured way of sampling; a success rate is None where it was never tried."""
    if config.task_sampling is TaskSampling.SUCCESS:
        return {task: success_share(rate, config.sampling_floor) for task, rate in success.items()}
    if config.task_sampling is TaskSampling.CURRICULUM:
        return curriculum_shares(success, floor=config.sampling_floor)
    return dict.fromkeys(success, 1.0)


def is_measured(config: CurationConfig, rollouts: int) -> bool:
    """Return whether a task has had enough rollouts that its success rate says something about it."""
    return rollouts >= MEASURED_GROUPS * config.group_size


def retired_tasks(config: CurationConfig, tried: Mapping[str, tuple[int, float | None]], tasks: int) -> set[str]:
    """Return the tasks that are mastered and not played any more (ScaleRL's "No-Positive-Resampling", 2510.13786).

    A task that is retired is not measured again, so it stays retired. If all tasks are mastered, the one that succeeds
    least stays active: a run ends by its limits, and not by waiting for ever.
    """
    if config.retire_above is None:
        return set()
    mastered = {
        task: rate
        for task, (rollouts, rate) in tried.items()
        if rate is not None and rollouts >= config.retire_after and rate >= config.retire_above
    }
    if len(mastered) == tasks and mastered:
        del mastered[min(mastered, key=lambda task: (mastered[task], task))]
    return set(mastered)


def success_share(rate: float | None, floor: float = 0.1) -> float:
    """Return the share of a task by its success rate: `4 p (1 - p)`, the variance of its rewards, scaled to 1 at 1/2.

    The advantages of a group are zero if all members fail or all succeed, so rollouts go to tasks where they carry
    signal: 0.36 at success rates 0.1 and 0.9, 0.75 at 0.25 and 0.75, and the floor where a task never or always
    succeeds.
    """
    if rate is None:
        return 1.0
    return max(floor, min(1.0, 4.0 * rate * (1.0 - rate)))


def band_of(rate: float) -> int:
    """Return the difficulty band of a success rate: 0 is the easiest; n falling boundaries make n + 1 bands."""
    rising = [-bound for bound in CURRICULUM_BANDS]
    return bisect_left(rising, -rate)


def curriculum_shares(success: Mapping[str, float | None], *, floor: float = 0.1) -> dict[str, float]:
    """Return shares that let harder bands wait until the easier ones are learned.

    A band is open if the mean success of all tasks in easier bands is at least `OPENS_AT`, or if no band is easier.
    Tasks of open bands have share 1, the others the floor: tasks below 0.3 wait until those above it average 0.6; a
    task that is learned moves up by itself.
    """
    known = {task: (band_of(rate), rate) for task, rate in success.items() if rate is not None}

    def is_open(band: int) -> bool:
        easier = [rate for other, rate in known.values() if other < band]
        return not easier or sum(easier) / len(easier) >= OPENS_AT

    opened = {band: is_open(band) for band in range(len(CURRICULUM_BANDS) + 1)}
    return {task: 1.0 if task not in known or opened[known[task][0]] else floor for task in success}

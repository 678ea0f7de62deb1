"""When another group of rollouts may start, so that nothing is made that will be too old to train on: pure decisions.

AReaL (arXiv 2505.24298, `staleness_manager.py`) admits `(max_staleness + version + 1) * batch - (accepted + running)`
rollouts, where `accepted` counts from the start of the run what came back and was not filtered out; on resume it sets
`accepted = version * batch`, or a restart would admit too many or none.

Here `accepted` is counted in rows: trained + leased + ready. What was filtered, expired or rejected is in none of them,
so it is uncounted by itself, and a resumed run finds its rows as it left them. Where each version consumed one whole
batch, trained = version * batch, and both sides of the formula lose it: what remains is `capacity` below. Where batches
were smaller, or versions were published otherwise, it goes by what was consumed, so that the bound keeps its meaning:
before what starts now is trained, at most `max_staleness` other batches are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backlog:
    """What lies between rollouts and trainer, in trajectories.

    Attributes:
        ready: trajectories in groups that can be leased now.
        leased: trajectories that a trainer has.
        running: episodes that have begun.
    """

    ready: int
    leased: int
    running: int


def capacity(
    backlog: Backlog, *, batch_size: int, max_staleness: int | None, batches_ahead: float | None
) -> int | None:
    """Return how many more rollouts may start; negative when there are too many already, None: any number.

    Args:
        backlog: what waits, is leased, and runs.
        batch_size: trajectories in a batch.
        max_staleness: versions that a rollout may lie behind those that it is trained into; None: no limit.
        batches_ahead: batches that may wait or run, to save desktops rather than for freshness; None: no limit.
    """
    rooms = []
    if max_staleness is not None:
        rooms.append((max_staleness + 1) * batch_size - (backlog.leased + backlog.ready + backlog.running))
    if batches_ahead is not None:
        rooms.append(int(batches_ahead * batch_size) - backlog.ready - backlog.running)
    return min(rooms, default=None)


def crowded(ready: int, task_groups: int, *, batch_size: int, task_groups_ahead: int | None) -> bool:
    """Whether so many groups of a task wait that others should go first.

    While less than a batch waits, no task is refused: all of them could be, and the trainer would wait for ever.

    Args:
        ready: trajectories in groups that can be leased now.
        task_groups: groups of the task that can be leased now.
        batch_size: trajectories in a batch.
        task_groups_ahead: groups of one task that may wait; None: no limit.
    """
    return task_groups_ahead is not None and ready >= batch_size and task_groups >= task_groups_ahead

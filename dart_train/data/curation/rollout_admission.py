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


def areal_capacity(*, version: int, accepted: int, running: int, batch_size: int, max_staleness: int) -> int:
    """Return how many more rollouts AReaL would start; negative when there are too many already.

    Args:
        version: of the weights now, 0 at first, one more with every batch.
        accepted: rollouts that came back since the start of the run and were not filtered out.
        running: rollouts that have begun.
        batch_size: rollouts in a batch.
        max_staleness: versions that a rollout's weights may lie behind those that it is trained into.
    """
    return (max_staleness + version + 1) * batch_size - (accepted + running)


@dataclass(frozen=True, slots=True)
class Backlog:
    """What lies between rollouts and trainer, in trajectories.

    Attributes:
        ready: in groups that can be leased now.
        leased: with a trainer.
        running: episodes that have begun.
        task_ready: groups of the task in question that wait already.
    """

    ready: int
    leased: int
    running: int
    task_ready: int = 0


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether another group of a task may start.

    Attributes:
        room: how many more rollouts may start; None: any number.
        reason: why not, in words; "" if it may.
    """

    room: int | None
    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


def capacity(
    backlog: Backlog, *, batch_size: int, max_staleness: int | None, batches_ahead: float | None
) -> int | None:
    """Return how many more rollouts may start; negative when there are too many already, None: any number.

    Args:
        backlog: what waits, is leased, and runs.
        batch_size: trajectories in a batch.
        max_staleness: the window of `areal_capacity`; None: no limit.
        batches_ahead: how many batches may wait or run, to save desktops rather than for freshness; None: no limit.
    """
    rooms = []
    if max_staleness is not None:
        rooms.append((max_staleness + 1) * batch_size - (backlog.leased + backlog.ready + backlog.running))
    if batches_ahead is not None:
        rooms.append(int(batches_ahead * batch_size) - backlog.ready - backlog.running)
    return min(rooms, default=None)


def crowded(backlog: Backlog, *, batch_size: int, task_groups_ahead: int | None) -> bool:
    """Whether so many groups of a task wait that others should go first.

    While less than a batch waits, no task is refused: all of them could be, and the trainer would wait for ever.

    Args:
        backlog: what waits.
        batch_size: trajectories in a batch.
        task_groups_ahead: groups of one task that may wait; None: no limit.
    """
    return task_groups_ahead is not None and backlog.ready >= batch_size and backlog.task_ready >= task_groups_ahead


def admission(
    backlog: Backlog,
    *,
    batch_size: int,
    max_staleness: int | None,
    batches_ahead: float | None,
    task_groups_ahead: int | None = None,
) -> Admission:
    """Decide whether another group may start.

    Args:
        backlog: what waits, is leased, and runs.
        batch_size: trajectories in a batch.
        max_staleness: as for `capacity`.
        batches_ahead: as for `capacity`.
        task_groups_ahead: as for `crowded`.
    """
    room = capacity(backlog, batch_size=batch_size, max_staleness=max_staleness, batches_ahead=batches_ahead)
    if room is not None and room <= 0:
        return Admission(
            room,
            f"the trainer is behind: {backlog.ready} trajectories wait, {backlog.leased} are leased, {backlog.running} "
            f"run, {-room} more than it can use while they are fresh",
        )
    if crowded(backlog, batch_size=batch_size, task_groups_ahead=task_groups_ahead):
        return Admission(room, f"{backlog.task_ready} groups of this task wait already, {task_groups_ahead} may")
    return Admission(room)

"""Queries about a run: success, lengths, staleness, utilisation, and the state of every trajectory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from dart_gym.core.outcomes import TerminalState
from dart_train.core.data_states import (
    FORK_SOURCE,
    ORACLE_SOURCE,
    POLICY_SOURCE,
    POLICY_SOURCES,
    SHOWN_MARK,
    GroupState,
    Reason,
    RolloutState,
)
from dart_train.data.curation.rules import Census
from dart_train.data.store.schema import group_injection, rollout_group, rollout_meta, task_state
from dart_train.data.store.sql_store import now

_meta = rollout_meta.c
_group = rollout_group.c
_task = task_state.c


@dataclass(frozen=True, slots=True)
class TaskStats:
    """A task's record.

    Attributes:
        window_size: number of the latest rollouts over which the next two are taken.
        longest_success: steps of the longest rollout ever with the full reward; None before the first one.
    """

    task_id: str
    rollouts: int
    window_size: int
    success_rate: float | None
    mean_steps: float | None
    longest_success: int | None


@dataclass(frozen=True, slots=True)
class Throughput:
    """Work of the desktops between two times.

    Attributes:
        env_seconds: desktop time they took (reset, step, evaluate, and the way there and back).
        utilisation: env_seconds / (workers * wall_s); None without workers.
    """

    wall_s: float
    trajectories: int
    actions: int
    env_seconds: float
    utilisation: float | None
    actions_per_minute: float


def _scored(run_id: str, sources: Sequence[str] = (POLICY_SOURCE,)) -> sa.ColumnElement[bool]:
    """Rollouts of the policy, or of other sources, that have a score."""
    return (
        (_meta.run_id == run_id)
        & _meta.source.in_(sources)
        & _meta.reward.is_not(None)
        & (_meta.reason != Reason.UNTRAINABLE.value)
    )


def _shown(run_id: str) -> sa.ColumnElement[bool]:
    """Pages that an oracle played because a whole group had failed on them."""
    return (_meta.run_id == run_id) & (_meta.source == ORACLE_SOURCE) & _meta.group_key.endswith(SHOWN_MARK)


def task_stats(connection: sa.Connection, run_id: str, window: int | None) -> dict[str, TaskStats]:
    """Every task's record from all rows, by id; success rates of the latest `window`, or its latest group's size."""
    latest: dict[str, Any] = {"partition_by": _meta.task_id, "order_by": _meta.rollout_id.desc()}
    columns = (
        sa.func.row_number().over(**latest).label("place"),
        sa.func.first_value(_meta.expected).over(**latest).label("group_size"),
    )
    query = sa.select(_meta.task_id, _meta.reward, _meta.num_steps, *columns)
    rows = query.where(_scored(run_id)).subquery()
    recent = rows.c.place <= (rows.c.group_size if window is None else window)
    totals: sa.Select[Any] = sa.select(
        rows.c.task_id,
        sa.func.count(),
        sa.func.sum(sa.case((recent, 1), else_=0)),
        sa.func.avg(sa.case((recent, rows.c.reward))),
        sa.func.sum(sa.case((recent, rows.c.num_steps), else_=0)),  # MySQL's mean of integers has four digits
        sa.func.max(sa.case((rows.c.reward >= 1.0, rows.c.num_steps))),
    ).group_by(rows.c.task_id)
    return {
        task: TaskStats(task, count, int(size), rate, int(steps) / int(size), longest)
        for task, count, size, rate, steps, longest in connection.execute(totals.order_by(rows.c.task_id))
    }


def scored_forks(connection: sa.Connection, run_id: str) -> int:
    """Return how many continuations of forks have a score. They count against the budget, and in no task's record."""
    return int(connection.execute(sa.select(sa.func.count()).where(_scored(run_id, (FORK_SOURCE,)))).scalar_one())


def actions_played(connection: sa.Connection, run_id: str) -> int:
    """Return the actions of all rollouts on desktops, those that forks replayed and oracles showed included."""
    mine = ((_meta.run_id == run_id) & _meta.source.in_(POLICY_SOURCES)) | _shown(run_id)
    return int(connection.execute(sa.select(sa.func.sum(_meta.num_actions)).where(mine)).scalar_one() or 0)


def shown_counts(connection: sa.Connection, run_id: str) -> dict[str, int]:
    """Return how many pages an oracle showed because a whole group had failed on them, by task."""
    query = sa.select(_meta.task_id, sa.func.count()).where(_shown(run_id)).group_by(_meta.task_id)
    return {task: int(count) for task, count in connection.execute(query)}


def untrainable_counts(connection: sa.Connection, run_id: str) -> dict[str, dict[str, int]]:
    """Return how many rollouts an environment, engine or evaluation error ended, by its name and by task."""
    broken = (_meta.state == RolloutState.REJECTED.value) & (_meta.reason == Reason.UNTRAINABLE.value)
    columns = (_meta.terminal, _meta.task_id)
    query = sa.select(*columns, sa.func.count()).where(_meta.run_id == run_id, broken).group_by(*columns)
    found: dict[str, dict[str, int]] = {}
    for terminal, task, count in connection.execute(query):
        found.setdefault(terminal, {})[task] = int(count)
    return found


@dataclass(frozen=True, slots=True)
class ForkCounts:
    """Results of a run's forks.

    Attributes:
        begun: forks with at least one ended replay.
        given_up: of these, by task, the forks with a replay that came out differently.
        rollouts: continuations with a score.
    """

    begun: int = 0
    given_up: Mapping[str, int] = field(default_factory=dict)
    rollouts: int = 0


def forks(connection: sa.Connection, run_id: str) -> ForkCounts:
    """Return how many forks there were, and how many of each task were given up."""
    query = (
        sa.select(_group.task_id, _group.reason, sa.func.count(sa.distinct(_group.id)))
        .join_from(rollout_meta, rollout_group, _group.id == _meta.group_id)
        .where(_meta.run_id == run_id, _meta.source == FORK_SOURCE)
        .group_by(_group.task_id, _group.reason)
        .order_by(_group.task_id)
    )
    begun = 0
    given_up = {}
    for task_id, reason, count in connection.execute(query):
        begun += count
        if reason == Reason.FORK_DIFFERS:
            given_up[task_id] = count
    return ForkCounts(begun, given_up, scored_forks(connection, run_id))


@dataclass(frozen=True, slots=True)
class TaughtCounts:
    """Contribution of a teacher.

    Attributes:
        episodes: rollouts with a step that a teacher taught, by task.
        steps: these steps.
        groups: groups of equal rewards that were trained on, or can be, since a member of them was taught.
    """

    episodes: Mapping[str, int] = field(default_factory=dict)
    steps: int = 0
    groups: int = 0


def taught(connection: sa.Connection, run_id: str) -> TaughtCounts:
    """Return what a teacher taught the policy of a run."""
    mine = (_meta.run_id == run_id) & (_meta.taught > 0)
    query = sa.select(_meta.task_id, sa.func.count(), sa.func.sum(_meta.taught)).where(mine).group_by(_meta.task_id)
    rows = list(connection.execute(query.order_by(_meta.task_id)))
    flat = (_group.run_id == run_id) & (_group.taught > 0) & (_group.reward_min == _group.reward_max)
    kept = flat & _group.state.in_([state.value for state in (GroupState.READY, GroupState.LEASED, GroupState.TRAINED)])
    groups = connection.execute(sa.select(sa.func.count()).where(kept)).scalar_one()
    return TaughtCounts({task: count for task, count, _ in rows}, sum(int(steps) for _, _, steps in rows), groups)


@dataclass(frozen=True, slots=True)
class AskedCounts:
    """What a teacher was asked for.

    Attributes:
        episodes: rollouts that were to be taught.
        untaught: of these, those of which it taught no step.
        newest: the newest rollout's number, whether it was to be taught or not.
    """

    episodes: int = 0
    untaught: int = 0
    newest: int = 0


def asked(connection: sa.Connection, run_id: str, after: int = 0, *, always: bool = False) -> AskedCounts:
    """Return how many of a run's rollouts were to be taught, and how many of them were not.

    Args:
        connection: to the database.
        run_id: the run.
        after: only rollouts with higher numbers.
        always: whether all rollouts are taught; otherwise those whose score is 0.
    """
    mine = (_meta.run_id == run_id) & (_meta.rollout_id > after)
    scored = _scored(run_id, POLICY_SOURCES)
    wanted = scored if always else scored & (_meta.reward == 0.0)
    query = sa.select(
        sa.func.sum(sa.case((wanted, 1), else_=0)),
        sa.func.sum(sa.case((wanted & (_meta.taught == 0), 1), else_=0)),
        sa.func.max(_meta.rollout_id),
    ).where(mine)
    episodes, untaught, newest = (int(value or 0) for value in connection.execute(query).one())
    return AskedCounts(episodes, untaught, max(newest, after))


@dataclass(frozen=True, slots=True)
class EpisodeOf:
    """An episode of the policy, its task, and what the task was drawn by: episodes with one seed begin alike."""

    rollout_id: int
    task_id: str
    seed: int
    trajectory_id: str


def full_successes(connection: sa.Connection, run_id: str, after: int = 0) -> list[EpisodeOf]:
    """Return a run's rollouts and continuations with the full reward that can be trained on, oldest first."""
    return _episodes(connection, run_id, after, _scored(run_id, POLICY_SOURCES) & (_meta.reward >= 1.0))


def taught_episodes(connection: sa.Connection, run_id: str, after: int = 0) -> list[EpisodeOf]:
    """Return a run's rollouts and continuations of which a teacher taught a step, oldest first."""
    return _episodes(connection, run_id, after, _scored(run_id, POLICY_SOURCES) & (_meta.taught > 0))


def shown_episodes(connection: sa.Connection, run_id: str, after: int = 0) -> list[EpisodeOf]:
    """Return the pages of a run that an oracle played because a whole group had failed on them, oldest first."""
    return _episodes(connection, run_id, after, _shown(run_id))


def _episodes(connection: sa.Connection, run_id: str, after: int, which: sa.ColumnElement[bool]) -> list[EpisodeOf]:
    """Those with a higher number."""
    columns = (_meta.rollout_id, _meta.task_id, _meta.seed, _meta.trajectory_id)
    query = sa.select(*columns).where(which & (_meta.rollout_id > after)).order_by(_meta.rollout_id)
    return [EpisodeOf(*row) for row in connection.execute(query)]


def refresh_task_stats(connection: sa.Connection, run_id: str, window: int | None) -> int:
    """Bring `task_state` up to date at a cost that does not grow with the run; return how many tasks had news."""
    upto = connection.execute(sa.select(sa.func.max(_task.last_rollout_id)).where(_task.run_id == run_id)).scalar() or 0
    new = (
        sa.select(
            _meta.task_id,
            sa.func.max(_meta.rollout_id),
            sa.func.count(),
            sa.func.max(sa.case((_meta.reward >= 1.0, _meta.num_steps))),
        )
        .where(_scored(run_id), _meta.rollout_id > upto)
        .group_by(_meta.task_id)
    )
    news = list(connection.execute(new))
    moment = now(connection)
    for task_id, newest, count, longest in news:
        mine = (_task.run_id == run_id) & (_task.task_id == task_id)
        known = connection.execute(sa.select(_task.rollouts, _task.longest_success).where(mine)).first()
        successes = [steps for steps in (longest, known and known.longest_success) if steps is not None]
        values = {
            "rollouts": count + (known.rollouts if known else 0),
            "longest_success": max(successes, default=None),
            "last_rollout_id": newest,
            "updated_at": moment,
            **_recent(connection, run_id, task_id, window),
        }
        if known:
            connection.execute(task_state.update().where(mine).values(**values))
        else:
            connection.execute(task_state.insert().values(run_id=run_id, task_id=task_id, **values))
    return len(news)


def _recent(connection: sa.Connection, run_id: str, task_id: str, window: int | None) -> dict[str, float]:
    """Return success rate and mean steps of a task's latest rollouts."""
    mine, newest_first = _scored(run_id) & (_meta.task_id == task_id), _meta.rollout_id.desc()
    if window is None:
        window = connection.execute(sa.select(_meta.expected).where(mine).order_by(newest_first).limit(1)).scalar_one()
    recent = sa.select(_meta.reward, _meta.num_steps).where(mine)
    rows = list(connection.execute(recent.order_by(newest_first).limit(window)))
    rewards, steps = zip(*rows, strict=True)
    return {"window_size": len(rows), "success_rate": sum(rewards) / len(rows), "mean_steps": sum(steps) / len(rows)}


def saved_task_stats(connection: sa.Connection, run_id: str) -> dict[str, TaskStats]:
    """Return the records by task id, as of the last `refresh_task_stats`, at next to no cost."""
    columns = (
        _task.task_id,
        _task.rollouts,
        _task.window_size,
        _task.success_rate,
        _task.mean_steps,
        _task.longest_success,
    )
    query = sa.select(*columns).where(_task.run_id == run_id).order_by(_task.task_id)
    return {row.task_id: TaskStats(*row) for row in connection.execute(query)}


def rollout_history(connection: sa.Connection, run_id: str) -> list[tuple[str, float, int, int]]:
    """Return (task id, reward, steps, size of the group) of every scored rollout of the policy, in order."""
    columns = (_meta.task_id, _meta.reward, _meta.num_steps, _meta.expected)
    query = sa.select(*columns).where(_scored(run_id)).order_by(_meta.rollout_id)
    return [(task_id, reward, steps, size) for task_id, reward, steps, size in connection.execute(query)]


def injections(connection: sa.Connection, run_id: str) -> int:
    """Return how many groups got a success from the experience pool."""
    joined = sa.select(sa.func.count()).join_from(
        group_injection, rollout_group, _group.id == group_injection.c.group_id
    )
    return int(connection.execute(joined.where(_group.run_id == run_id)).scalar_one())


def staleness_histogram(connection: sa.Connection, run_id: str) -> dict[int, int]:
    """Return how many trained trajectories were how many versions old: that at commit less `staleness_version`."""
    staleness = _meta.trained_version - _meta.staleness_version
    trained = (_meta.run_id == run_id) & (_meta.state == RolloutState.TRAINED.value)
    query = sa.select(staleness, sa.func.count()).where(trained).group_by(staleness).order_by(staleness)
    return {int(age): count for age, count in connection.execute(query)}


def throughput(
    connection: sa.Connection, run_id: str, start: float, end: float, workers: int | None = None
) -> Throughput:
    """Return what the desktops did between two Unix times, counted by the ends of episodes.

    An episode counts wholly where it ended, so over stretches that are not long against an episode the utilisation is
    off by up to one episode per worker.
    """
    inside = (_meta.run_id == run_id) & (_meta.created_at >= start) & (_meta.created_at < end)
    sums = [sa.func.coalesce(sa.func.sum(column), 0) for column in (_meta.num_actions, _meta.env_seconds)]
    query = sa.select(sa.func.count(), *sums).where(inside, _meta.source.in_(POLICY_SOURCES))
    trajectories, actions, env_seconds = connection.execute(query).one()
    wall = max(end - start, 1e-9)
    return Throughput(
        wall_s=wall,
        trajectories=trajectories,
        actions=int(actions),
        env_seconds=float(env_seconds),
        utilisation=float(env_seconds) / (workers * wall) if workers else None,
        actions_per_minute=60.0 * int(actions) / wall,
    )


def census(connection: sa.Connection, run_id: str, oldest: int | None) -> Census:
    """Return where every trajectory stands; what is stale counts as stale whether or not it was swept yet."""
    by_state = (
        sa.select(_meta.state, _meta.reason, sa.func.count())
        .where(_meta.run_id == run_id, _meta.state != RolloutState.RECORDED.value)
        .group_by(_meta.state, _meta.reason)
    )
    counts: dict[str, int] = {}
    dropped: dict[str, int] = {}
    for state, reason, count in connection.execute(by_state):
        part, name = (dropped, reason) if reason else (counts, state)
        part[name] = part.get(name, 0) + count
    waiting = (_group.run_id == run_id) & _group.state.in_([GroupState.OPEN.value, GroupState.READY.value])
    stale = sa.literal(0) if oldest is None else sa.case((_group.oldest_version < oldest, 1), else_=0)
    by_group = (
        sa.select(_group.state, stale.label("is_stale"), sa.func.count(), sa.func.sum(_group.members))
        .where(waiting)
        .group_by(_group.state, sa.text("is_stale"))
    )
    groups = 0
    for state, is_stale, number, size in connection.execute(by_group):
        if is_stale:
            dropped[Reason.STALE] = dropped.get(Reason.STALE, 0) + int(size)
        else:
            counts["eligible" if state == GroupState.READY else "unfinished"] = int(size)
            groups += number if state == GroupState.READY else 0
    joined = (
        sa.select(_group.state, stale.label("is_stale"), sa.func.count())
        .join_from(group_injection, rollout_group, _group.id == group_injection.c.group_id)
        .where(waiting)
        .group_by(_group.state, sa.text("is_stale"))
    )
    for _, is_stale, number in connection.execute(joined):  # of the pool: counted there
        if is_stale:
            dropped[Reason.STALE] -= number
        else:
            counts["eligible"] -= number
    dropped = {str(name): count for name, count in sorted(dropped.items()) if count}
    return Census(**counts, eligible_groups=groups, dropped=dropped, oldest_allowed=oldest)


def count_states(connection: sa.Connection, run_id: str) -> dict[str, int]:
    """Return the number of trajectories by state; every state is there."""
    query = sa.select(_meta.state, sa.func.count()).where(_meta.run_id == run_id).group_by(_meta.state)
    return {
        **{state.value: 0 for state in RolloutState},
        **{state: count for state, count in connection.execute(query)},
    }


def cut_off_steps(connection: sa.Connection, run_id: str, tasks: Sequence[str], attempts: int) -> dict[str, int]:
    """Return the steps at which a task's latest attempts ended, for tasks where all of them ended at their limit."""
    found = {}
    for task_id in tasks:
        latest = sa.select(_meta.terminal, _meta.num_steps).where(_scored(run_id), _meta.task_id == task_id)
        rows = connection.execute(latest.order_by(_meta.rollout_id.desc()).limit(attempts)).all()
        if len(rows) == attempts and all(row.terminal == TerminalState.STEP_LIMIT for row in rows):
            found[task_id] = max(row.num_steps for row in rows)
    return found

"""One snapshot of a run's data: queued, incomplete, stale, pooled and dropped groups, and the reasons.

Invariants:
    - One read transaction gives all numbers, so they agree with one another.
    - What is written to the metrics (`figures_of`) is shown by `dart-train status` as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from dart_train.core.data_states import CheckpointStatus, GroupState, LeaseState, Reason, RolloutState
from dart_train.data.curation import experience_pool as pool
from dart_train.data.curation.experience_pool import PoolCount
from dart_train.data.curation.rules import Census, CurationConfig, oldest_allowed
from dart_train.data.groups import checkpoint_rows, lease_rows
from dart_train.data.insight import serving, statistics
from dart_train.data.insight.diagnosis import Evidence, explain
from dart_train.data.insight.serving import VersionLife
from dart_train.data.insight.statistics import TaskStats
from dart_train.data.store.schema import curation_decision, lease, rollout_group, rollout_meta
from dart_train.data.store.sql_store import now

_meta = rollout_meta.c
_group = rollout_group.c
_decision = curation_decision.c
RECENT_S = 600.0
"""Leases taken within this time count for the staleness that the status shows."""
VERSIONS_SHOWN = 5
"""Number of newest versions that a status shows, in addition to those that are served."""
_WAITING = (GroupState.OPEN.value, GroupState.READY.value)


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that a trainer holds: who, how many groups, and the seconds until it runs out."""

    holder: str
    groups: int
    expires_in_s: float


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a run's data.

    Attributes:
        trained_staleness: trained trajectories by versions that they were behind.
        dropped_groups: groups by the rule that dropped them.
        versions: the newest versions of the weights and those that are served, newest first.
        figures: what a line of metrics has beyond the census.
    """

    run_id: str
    newest_version: int | None
    census: Census
    diagnosis: str
    making: Mapping[tuple[int, int], int] = field(default_factory=dict)
    trained_staleness: Mapping[int, int] = field(default_factory=dict)
    tasks: tuple[TaskStats, ...] = ()
    pool: tuple[PoolCount, ...] = ()
    dropped_groups: Mapping[str, int] = field(default_factory=dict)
    decisions: Mapping[str, int] = field(default_factory=dict)
    leases: tuple[Held, ...] = ()
    versions: tuple[VersionLife, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)


def figures_of(
    connection: sa.Connection, run_id: str, census: Census, newest: int | None, oldest: int | None
) -> dict[str, Any]:
    """Return what a line of metrics has beyond the census, at a cost that hardly grows with the run."""
    held, ready = pool.counts(connection, run_id), lease_rows.count_ready_by_task(connection, run_id, oldest)
    return {
        "groups_making": sum(_making(connection, run_id, oldest).values()),
        "groups_ready_by_task": {task: groups for task, (groups, _) in sorted(ready.items())},
        "staleness_waiting": _waiting_staleness(connection, run_id, newest),
        "staleness_trained": _trained_lately(connection, run_id, now(connection) - RECENT_S),
        "pool": sum(item.trajectories for item in held),
        "pool_uses": sum(item.uses for item in held),
        "dropped": census.dropped,
    }


def gather_evidence(connection: sa.Connection, run_id: str, oldest: int | None, asked: int | None = None) -> Evidence:
    """Return the values behind what cannot be leased now; `asked` counts the groups that the waiting lease asks for."""
    mine = _group.run_id == run_id
    is_dry = mine & (_group.state == GroupState.REJECTED.value) & (_group.reason == Reason.NO_SIGNAL.value)
    dry = sa.select(_group.reward_max, sa.func.count()).where(is_dry).group_by(_group.reward_max)
    holders = (
        sa.select(lease.c.holder, sa.func.sum(_group.members))
        .join(rollout_group, _group.lease_id == lease.c.lease_id)
        .where(mine, _group.state == GroupState.LEASED.value)
        .group_by(lease.c.holder)
    )
    broken = statistics.untrainable_counts(connection, run_id)
    return Evidence(
        serving=tuple(serving.serving_now(connection, run_id).values()) or _in_window(connection, run_id, oldest),
        stale=_stale_versions(connection, run_id, oldest),
        making=_making(connection, run_id, oldest),
        no_signal={float(reward): count for reward, count in connection.execute(dry)},
        terminals={name: sum(tasks.values()) for name, tasks in broken.items()},
        asked=asked,
        holders={holder: int(count) for holder, count in connection.execute(holders)},
    )


def _in_window(connection: sa.Connection, run_id: str, oldest: int | None) -> tuple[int, ...]:
    published = checkpoint_rows.list_checkpoints(connection, run_id, CheckpointStatus.COMPLETED, limit=64)
    return tuple(row.version for row in published if oldest is None or row.version >= oldest)


def _stale_versions(connection: sa.Connection, run_id: str, oldest: int | None) -> dict[int, int]:
    """Return trajectories by the oldest version of their group: it is what takes the others out with it."""
    expired = (_meta.run_id == run_id) & (_meta.state == RolloutState.EXPIRED.value)
    counts: dict[int, int] = {}
    by_group = sa.select(_group.oldest_version, sa.func.count()).join_from(
        rollout_meta, rollout_group, _group.id == _meta.group_id
    )
    queries = [by_group.where(expired).group_by(_group.oldest_version)]
    if oldest is not None:  # groups that no sweep has expired yet
        waiting = (_group.run_id == run_id) & _group.state.in_(_WAITING) & (_group.oldest_version < oldest)
        by_version = sa.select(_group.oldest_version, sa.func.sum(_group.members)).where(waiting)
        queries.append(by_version.group_by(_group.oldest_version))
    for query in queries:
        for version, count in connection.execute(query):
            counts[version] = counts.get(version, 0) + int(count)
    return dict(sorted(counts.items()))


def _making(connection: sa.Connection, run_id: str, oldest: int | None) -> dict[tuple[int, int], int]:
    open_groups = (_group.run_id == run_id) & (_group.state == GroupState.OPEN.value)
    if oldest is not None:
        open_groups &= _group.oldest_version >= oldest
    query = sa.select(_group.members, _group.expected, sa.func.count()).where(open_groups)
    rows = connection.execute(query.group_by(_group.members, _group.expected).order_by(_group.members))
    return {(members, expected): count for members, expected, count in rows}


def status_of(connection: sa.Connection, run_id: str, config: CurationConfig) -> Status:
    """Return how a run's data stands, in the snapshot of the connection's transaction."""
    newest = checkpoint_rows.newest_version(connection, run_id)
    oldest = oldest_allowed(newest, config.max_staleness)
    decided = sa.select(_decision.rule, _decision.verdict, sa.func.count()).where(_decision.run_id == run_id)
    evidence = gather_evidence(connection, run_id, oldest)
    census = statistics.census(connection, run_id, oldest)
    return Status(
        run_id=run_id,
        newest_version=newest,
        census=census,
        diagnosis=explain(census, evidence, config.sentences()),
        making=evidence.making,
        trained_staleness=statistics.staleness_histogram(connection, run_id),
        tasks=tuple(statistics.task_stats(connection, run_id, config.success_window).values()),
        pool=tuple(pool.counts(connection, run_id)),
        dropped_groups=_dropped_groups(connection, run_id),
        decisions={
            f"{rule}: {verdict}": count
            for rule, verdict, count in connection.execute(decided.group_by(_decision.rule, _decision.verdict))
        },
        leases=_leases(connection, run_id),
        versions=_versions(connection, run_id),
        figures=figures_of(connection, run_id, census, newest, oldest),
    )


def _waiting_staleness(connection: sa.Connection, run_id: str, newest: int | None) -> dict[int, int]:
    if newest is None:
        return {}
    age = sa.literal(newest) - _group.oldest_version
    waiting = (_group.run_id == run_id) & _group.state.in_(_WAITING)
    query = sa.select(age.label("age"), sa.func.sum(_group.members)).where(waiting)
    return {int(behind): int(count) for behind, count in connection.execute(query.group_by("age").order_by("age"))}


def _trained_lately(connection: sa.Connection, run_id: str, since: float) -> dict[int, int]:
    """Return trajectories that were trained on leases of late, by versions that they were behind."""
    behind = (lease.c.version - _group.oldest_version).label("behind")
    committed = (lease.c.run_id == run_id) & (lease.c.state == LeaseState.COMMITTED.value)
    query = (
        sa.select(behind, sa.func.sum(_group.members))
        .join_from(lease, rollout_group, _group.lease_id == lease.c.lease_id)
        .where(committed, lease.c.created_at >= since)
        .group_by("behind")
        .order_by("behind")
    )
    return {int(age): int(count) for age, count in connection.execute(query)}


def _dropped_groups(connection: sa.Connection, run_id: str) -> dict[str, int]:
    dropped = (_group.run_id == run_id) & (_group.reason != "")
    query = sa.select(_group.reason, sa.func.count()).where(dropped).group_by(_group.reason).order_by(_group.reason)
    return {reason: count for reason, count in connection.execute(query)}


def _versions(connection: sa.Connection, run_id: str) -> tuple[VersionLife, ...]:
    lives = serving.version_lives(connection, run_id)
    return tuple(life for index, life in enumerate(lives) if index < VERSIONS_SHOWN or life.replicas)


def _leases(connection: sa.Connection, run_id: str) -> tuple[Held, ...]:
    held = (lease.c.run_id == run_id) & (lease.c.state == LeaseState.HELD.value)
    query = sa.select(lease.c.holder, lease.c.num_groups, lease.c.expires_at).where(held).order_by(lease.c.created_at)
    moment = now(connection)
    return tuple(Held(holder, groups, expires - moment) for holder, groups, expires in connection.execute(query))

"""Rows of trajectories and their groups: the one transaction of `DataManager.record`.

Invariants:
    - A row exists only for a trajectory whose files are complete.
    - A trajectory is inserted once, however often that is asked for; another one under its id is refused.
    - A group's row sums up its trainable members, so that a lease never has to look at them one by one.
    - Times are the database's. If the clock of a trajectory's machine is ahead, the trajectory gets the time of its
      recording, and a mark.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import sqlalchemy as sa

from dart_agent.episodes.trajectory import Trajectory
from dart_train.core.data_states import FORK_SOURCE, POLICY_SOURCES, GroupState, Provenance, Reason, RolloutState
from dart_train.core.train_errors import DuplicateTrajectoryError
from dart_train.data.curation import experience_pool, grouping
from dart_train.data.curation.rules import CurationConfig, judge_group, staleness_version, untrainable
from dart_train.data.store.prepared_statements import Prepared
from dart_train.data.store.schema import INSTRUCTION_LENGTH, rollout_group, rollout_meta, rollout_run, rollout_step
from dart_train.data.store.sql_store import now, unix_now

ENVIRONMENT_PHASES = ("reset", "step", "evaluate", "wire")  # from the request to its reply, as the panel counts it
CLOCK_TOLERANCE_S = 2.0  # a clock this far ahead is no skew: what NTP keeps, and a float's way through the database
ENGINE_LENGTH = 64


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a new trajectory belongs."""

    state: RolloutState
    reason: str = ""
    group_id: int | None = None
    group_rejected: Reason | None = None
    complete: bool = False


class _Found(NamedTuple):
    """A row of `_LOOK`; the group's columns are None if there is no group."""

    now: Any
    known: int
    group_id: int | None
    group_state: str
    expected: int
    members: int
    reward_min: float
    reward_max: float
    oldest_version: int
    taught: int


_FIND = sa.select(rollout_meta.c.state, rollout_meta.c.digest).where(
    rollout_meta.c.run_id == sa.bindparam("run"), rollout_meta.c.trajectory_id == sa.bindparam("trajectory")
)
# All that recording has to know, in one round trip: the time, whether it is known, and its group, locked.
_ONE_ROW = sa.select(sa.literal_column("1").label("always")).subquery("one_row")
_ITS_GROUP = sa.and_(
    _ONE_ROW.c.always == sa.literal_column("1"),
    rollout_group.c.run_id == sa.bindparam("run"),
    rollout_group.c.group_key == sa.bindparam("key"),
)
_LOOK = Prepared(
    sa.select(
        unix_now().label("now"),
        sa.exists(_FIND).label("known"),
        rollout_group.c.id.label("group_id"),
        rollout_group.c.state.label("group_state"),
        rollout_group.c.expected,
        rollout_group.c.members,
        rollout_group.c.reward_min,
        rollout_group.c.reward_max,
        rollout_group.c.oldest_version,
        rollout_group.c.taught,
    )
    .select_from(_ONE_ROW.outerjoin(rollout_group, _ITS_GROUP))
    .with_for_update()
)
_INSERT_RUN = Prepared(
    rollout_run.insert(),
    [name for name in rollout_run.c.keys() if name not in ("id", "used", "create_at")],  # the database's to set
)
_INSERT_META = Prepared(
    rollout_meta.insert(), [name for name in rollout_meta.c.keys() if name not in ("trained_version", "lease_id")]
)
_INSERT_STEP = Prepared(rollout_step.insert(), rollout_step.c.keys())
_GROUP_SUMS = ("members", "reward_min", "reward_max", "oldest_version", "taught", "state", "reason")
_INSERT_GROUP = Prepared(
    rollout_group.insert(), ("run_id", "group_key", "task_id", "expected", "created_at", *_GROUP_SUMS)
)
_UPDATE_GROUP = Prepared(rollout_group.update().where(rollout_group.c.id == sa.bindparam("group")), _GROUP_SUMS)
_REJECT_MEMBERS = rollout_meta.update().where(
    rollout_meta.c.group_id == sa.bindparam("group"), rollout_meta.c.state == sa.bindparam("was")
)


def digest(packed: bytes) -> str:
    """Return what tells a trajectory from another under its id: 32 hex digits of its stored form."""
    return hashlib.blake2b(packed, digest_size=16).hexdigest()


def find_state(connection: sa.Connection, run_id: str, trajectory_id: str, digest: str) -> RolloutState | None:
    """Return a trajectory's state, or None if it has no rows.

    Raises:
        DuplicateTrajectoryError: if another trajectory has its id.
    """
    row = connection.execute(_FIND, {"run": run_id, "trajectory": trajectory_id}).first()
    if row is None:
        return None
    if row.digest and row.digest != digest:
        raise DuplicateTrajectoryError(
            f"run {run_id!r} has another trajectory with the id {trajectory_id!r}: two rollouts made it, or one was "
            "played again; give every rollout an id of its own (the first one is kept, this one was not stored)"
        )
    return RolloutState(row.state)


def list_stored(
    connection: sa.Connection, run_id: str, source: str | None = None, state: RolloutState | None = None
) -> list[str]:
    """Return the ids of a run's trajectories that have files, in the order of their recording."""
    meta = rollout_meta.c
    query = (
        sa.select(meta.trajectory_id)
        .join(rollout_run, rollout_run.c.id == meta.rollout_id)
        .where(meta.run_id == run_id, rollout_run.c.split_dir.is_not(None))  # else retention removed the files
    )
    for column, value in ((meta.source, source), (meta.state, state)):
        if value is not None:
            query = query.where(column == str(value))
    return list(connection.execute(query.order_by(meta.rollout_id)).scalars())


def insert_trajectory(
    connection: sa.Connection,
    run_id: str,
    trajectory: Trajectory,
    *,
    split_dir: str,
    digest: str,
    expected: int,
    config: CurationConfig,
) -> RolloutState:
    """Insert the rows of a trajectory whose files are complete; where it stands now. Raises `DuplicateTrajectoryError`.

    The first of a group decides by `expected` how many trainable members complete it.
    """
    names = {"run": run_id, "trajectory": trajectory.trajectory_id, "key": trajectory.group_key}
    found = _Found(*cast(tuple[Any, ...], _LOOK.run(connection, names).fetchone()))
    if found.known and (known := find_state(connection, run_id, trajectory.trajectory_id, digest)):
        return known
    moment = now(connection, said=found.now)
    run_row = {
        "run_id": run_id,
        "trajectory_id": trajectory.trajectory_id,
        "task_id": trajectory.task_id,
        "trace_id": trajectory.trajectory_id,
        "split_dir": split_dir,
        "reward": trajectory.score,
        "num_chunks": len(trajectory.steps),
        "model_version": f"v{trajectory.oldest_version}",
        "instruction": trajectory.instruction[:INSTRUCTION_LENGTH],
    }
    rollout_id = _INSERT_RUN.run(connection, run_row).lastrowid
    place = _place(connection, trajectory, found, run_id, expected, config, moment)
    _INSERT_META.run(connection, _meta_row(trajectory, run_id, rollout_id, digest, place, expected, moment, config))
    if trajectory.steps:
        _INSERT_STEP.run_all(connection, _step_rows(trajectory, rollout_id))
    if trajectory.source not in POLICY_SOURCES or Provenance.ROLLOUT in config.pool_sources:
        experience_pool.add(connection, run_id, rollout_id, trajectory, moment)
    if place.group_rejected:
        rejected = {"state": RolloutState.REJECTED.value, "reason": place.group_rejected.value}
        connection.execute(_REJECT_MEMBERS, {"group": place.group_id, "was": RolloutState.RECORDED.value, **rejected})
    if place.complete and config.settles_groups and place.group_id is not None:
        grouping.settle(connection, run_id, place.group_id, config, moment)
        state = connection.execute(_FIND, {"run": run_id, "trajectory": trajectory.trajectory_id}).one().state
        return RolloutState(state)
    return place.state


def _step_rows(trajectory: Trajectory, rollout_id: int) -> list[dict[str, Any]]:
    return [
        {
            "rollout_id": rollout_id,
            "step": index,
            "oldest_version": step.version[0],
            "newest_version": step.version[1],
            "num_tokens": len(step.response_ids),
            "num_actions": len(step.actions),
            "failed": bool(step.action_error),
            "seconds": sum(step.timings.values()),
            "engine": step.engine[:ENGINE_LENGTH],
        }
        for index, step in enumerate(trajectory.steps)
    ]


def _place(
    connection: sa.Connection,
    trajectory: Trajectory,
    group: _Found,
    run_id: str,
    expected: int,
    config: CurationConfig,
    moment: float,
) -> _Place:
    if trajectory.source not in POLICY_SOURCES:
        return _Place(RolloutState.POOLED)
    if trajectory.lost_by == FORK_SOURCE:
        return _give_up_fork(connection, trajectory, group, run_id, expected, moment)
    if untrainable(trajectory):
        return _Place(RolloutState.REJECTED, Reason.UNTRAINABLE.value)
    reward, version = trajectory.whole_reward, staleness_version(trajectory, config.staleness_by)
    taught = int(bool(trajectory.taught_steps))
    if group.group_id is None:
        members = 1
        low = reward
        high = reward
        oldest = version
    elif group.group_state != GroupState.OPEN:
        stale = group.group_state == GroupState.EXPIRED
        state, reason = (RolloutState.EXPIRED, Reason.STALE) if stale else (RolloutState.REJECTED, Reason.SURPLUS)
        return _Place(state, reason.value, group.group_id)
    else:
        expected = group.expected
        members, oldest = group.members + 1, min(group.oldest_version, version)
        taught += group.taught
        low, high = min(group.reward_min, reward), max(group.reward_max, reward)
    drop = config.drop_no_signal and not config.settles_groups  # else `grouping.settle` decides, pool and all
    verdict, reason_or_none = judge_group(members, expected, low, high, drop_no_signal=drop, taught=taught)
    values: dict[str, Any] = {
        "members": members,
        "reward_min": low,
        "reward_max": high,
        "oldest_version": oldest,
        "taught": taught,
        "state": verdict.value,
        "reason": reason_or_none.value if reason_or_none else "",
    }
    if group.group_id is None:
        names = {"run_id": run_id, "group_key": trajectory.group_key, "task_id": trajectory.task_id}
        row = {**names, **values, "expected": expected, "created_at": moment}
        group_id = _INSERT_GROUP.run(connection, row).lastrowid
    else:
        group_id = group.group_id
        _UPDATE_GROUP.run(connection, {"group": group_id, **values})
    if reason_or_none:
        return _Place(RolloutState.REJECTED, reason_or_none.value, group_id, reason_or_none)
    dropped = config.dropped_by(trajectory)  # counts towards its group, which is settled without it
    return _Place(RolloutState.RECORDED, dropped, group_id, complete=verdict is GroupState.READY)


def _give_up_fork(
    connection: sa.Connection, trajectory: Trajectory, group: _Found, run_id: str, expected: int, moment: float
) -> _Place:
    """Reject a fork's group because a replay came out differently, unless the group has been decided already."""
    reason = Reason.FORK_DIFFERS
    given_up = {"state": GroupState.REJECTED.value, "reason": reason.value}
    if group.group_id is None:
        sums: dict[str, Any] = {"members": 0, "reward_min": 0.0, "reward_max": 0.0, "oldest_version": 0, "taught": 0}
        names = {"run_id": run_id, "group_key": trajectory.group_key, "task_id": trajectory.task_id}
        row = {**names, **sums, **given_up, "expected": expected, "created_at": moment}
        return _Place(RolloutState.REJECTED, reason.value, _INSERT_GROUP.run(connection, row).lastrowid)
    if group.group_state != GroupState.OPEN:
        return _Place(RolloutState.REJECTED, reason.value, group.group_id)
    sums = {name: getattr(group, name) for name in _GROUP_SUMS[:-2]}
    _UPDATE_GROUP.run(connection, {"group": group.group_id, **sums, **given_up})
    return _Place(RolloutState.REJECTED, reason.value, group.group_id, reason)


def _meta_row(
    trajectory: Trajectory,
    run_id: str,
    rollout_id: int,
    digest: str,
    place: _Place,
    expected: int,
    moment: float,
    config: CurationConfig,
) -> dict[str, Any]:
    ahead = trajectory.ended_at - moment
    skewed = ahead > CLOCK_TOLERANCE_S
    return {
        "rollout_id": rollout_id,
        "run_id": run_id,
        "trajectory_id": trajectory.trajectory_id,
        "task_id": trajectory.task_id,
        "group_id": place.group_id,
        "group_key": trajectory.group_key,
        "expected": expected,
        "task_hash": trajectory.task_hash,
        "seed": trajectory.seed,
        "state": place.state.value,
        "reason": place.reason,
        "source": trajectory.source,
        "terminal": trajectory.terminal.value,
        "reward": trajectory.score,
        "num_steps": len(trajectory.steps),
        "num_actions": trajectory.num_actions
        if trajectory.forked_from
        else sum(len(step.actions) for step in trajectory.steps),
        "oldest_version": trajectory.oldest_version,
        "newest_version": trajectory.newest_version,
        "staleness_version": staleness_version(trajectory, config.staleness_by),
        "env_seconds": sum(trajectory.timings.get(phase, 0.0) for phase in ENVIRONMENT_PHASES),
        "timings": json.dumps(trajectory.timings),
        "created_at": moment if skewed else trajectory.ended_at or moment,
        "digest": digest,
        "recorded_at": moment,
        "clock_skew_s": ahead if skewed else None,
        "taught": trajectory.taught_steps,
        "training_reward": trajectory.whole_reward if trajectory.judged else None,
    }

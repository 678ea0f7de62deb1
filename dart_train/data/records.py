"""Rows of trajectories and their groups: what `DataManager.record` does inside its one transaction.

Invariants:
    - A row exists only for a trajectory whose files are complete.
    - A group's row sums up its trainable members, so that a lease never has to look at them one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from dart_train.data.curation import CurationConfig, judge_group, untrainable
from dart_train.data.schema import (
    INSTRUCTION_LENGTH,
    GroupState,
    Reason,
    RolloutState,
    rollout_group,
    rollout_meta,
    rollout_run,
)
from dart_train.trajectory import Trajectory

ENVIRONMENT_PHASES = ("reset", "step", "evaluate", "wire")  # from the request to its reply, as the panel counts it
POLICY_SOURCE = "rollout"  # the one source whose trajectories form groups and are trained on by reinforcement


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a new trajectory belongs."""

    state: RolloutState
    reason: str = ""
    group_id: int | None = None
    group_rejected: Reason | None = None


_INSERT_RUN = rollout_run.insert()
_INSERT_META = rollout_meta.insert()
_INSERT_GROUP = rollout_group.insert()
_FIND_STATE = (
    sa.select(rollout_meta.c.state)
    .join_from(rollout_run, rollout_meta, rollout_meta.c.rollout_id == rollout_run.c.id)
    .where(rollout_run.c.trajectory_id == sa.bindparam("trajectory"), rollout_run.c.run_id == sa.bindparam("run"))
)
_FIND_GROUP = (
    sa.select(rollout_group)
    .where(rollout_group.c.run_id == sa.bindparam("run"), rollout_group.c.group_key == sa.bindparam("key"))
    .with_for_update()
)
_UPDATE_GROUP = rollout_group.update().where(rollout_group.c.id == sa.bindparam("group"))
_REJECT_MEMBERS = rollout_meta.update().where(
    rollout_meta.c.group_id == sa.bindparam("group"), rollout_meta.c.state == sa.bindparam("was")
)


def find_state(connection: sa.Connection, run_id: str, trajectory_id: str) -> RolloutState | None:
    """Return where a trajectory stands; None if it has no rows."""
    state = connection.execute(_FIND_STATE, {"trajectory": trajectory_id, "run": run_id}).scalar()
    return None if state is None else RolloutState(state)


def insert_trajectory(
    connection: sa.Connection,
    trajectory: Trajectory,
    *,
    run_id: str,
    split_dir: str,
    expected: int,
    config: CurationConfig,
    now: float,
) -> RolloutState:
    """Insert the rows of a trajectory, bring its group up to date, and return where the trajectory stands."""
    run_row = {
        "run_id": run_id,
        "trajectory_id": trajectory.trajectory_id,
        "task_id": trajectory.task_id,
        "trace_id": trajectory.trajectory_id,
        "split_dir": split_dir,
        "reward": trajectory.reward,
        "num_chunks": len(trajectory.steps),
        "model_version": f"v{trajectory.oldest_version}",
        "instruction": trajectory.instruction[:INSTRUCTION_LENGTH],
    }
    key = connection.execute(_INSERT_RUN, run_row).inserted_primary_key
    assert key is not None  # SQLAlchemy's type: a single-row insert always has one
    place = _place(connection, trajectory, run_id, expected, config, now)
    connection.execute(_INSERT_META, _meta_row(trajectory, run_id, key[0], place, expected, now))
    if place.group_rejected:
        rejected = {"state": RolloutState.REJECTED.value, "reason": place.group_rejected.value}
        connection.execute(_REJECT_MEMBERS, {"group": place.group_id, "was": RolloutState.RECORDED.value, **rejected})
    return place.state


def _place(
    connection: sa.Connection, trajectory: Trajectory, run_id: str, expected: int, config: CurationConfig, now: float
) -> _Place:
    if trajectory.source != POLICY_SOURCE:
        return _Place(RolloutState.POOLED)
    if untrainable(trajectory):
        return _Place(RolloutState.REJECTED, Reason.UNTRAINABLE.value)
    reward, version = trajectory.reward or 0.0, trajectory.oldest_version
    group = connection.execute(_FIND_GROUP, {"run": run_id, "key": trajectory.group_key}).first()
    if group is None:
        members, low, high, oldest = 1, reward, reward, version
    elif group.state != GroupState.OPEN:
        stale = group.state == GroupState.EXPIRED
        state, reason = (RolloutState.EXPIRED, Reason.STALE) if stale else (RolloutState.REJECTED, Reason.SURPLUS)
        return _Place(state, reason.value, group.id)
    else:
        expected = group.expected
        members, oldest = group.members + 1, min(group.oldest_version, version)
        low, high = min(group.reward_min, reward), max(group.reward_max, reward)
    verdict, reason_or_none = judge_group(members, expected, low, high, drop_no_signal=config.drop_no_signal)
    values: dict[str, Any] = {
        "members": members,
        "reward_min": low,
        "reward_max": high,
        "oldest_version": oldest,
        "state": verdict.value,
        "reason": reason_or_none.value if reason_or_none else "",
    }
    if group is None:
        names = {"run_id": run_id, "group_key": trajectory.group_key, "task_id": trajectory.task_id}
        key = connection.execute(_INSERT_GROUP, {**names, **values, "expected": expected, "created_at": now})
        assert key.inserted_primary_key is not None
        group_id = key.inserted_primary_key[0]
    else:
        group_id = group.id
        connection.execute(_UPDATE_GROUP, {"group": group_id, **values})
    if reason_or_none:
        return _Place(RolloutState.REJECTED, reason_or_none.value, group_id, reason_or_none)
    return _Place(RolloutState.RECORDED, "", group_id)


def _meta_row(
    trajectory: Trajectory, run_id: str, rollout_id: int, place: _Place, expected: int, now: float
) -> dict[str, Any]:
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
        "reward": trajectory.reward,
        "num_steps": len(trajectory.steps),
        "num_actions": sum(len(step.actions) for step in trajectory.steps),
        "oldest_version": trajectory.oldest_version,
        "newest_version": trajectory.newest_version,
        "env_seconds": sum(trajectory.timings.get(phase, 0.0) for phase in ENVIRONMENT_PHASES),
        "timings": trajectory.timings,
        "created_at": trajectory.created_at or now,
    }

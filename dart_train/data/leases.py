"""Leases: which trainer has which groups, and what becomes of them. Functions of one write transaction each.

Invariants:
    - A group is in at most one held lease; its row and its members' rows change state together.
    - Nothing is marked trained before it was: that is `commit`. A lease that runs out gives its groups back.
    - A lease that has run out stays its holder's until somebody else sweeps it: late work is not thrown away in vain.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from dart_train.data.schema import (
    GroupState,
    LeaseState,
    Reason,
    RolloutState,
    lease,
    rollout_group,
    rollout_meta,
    rollout_run,
)
from dart_train.errors import LeaseError

_group, _meta = rollout_group.c, rollout_meta.c


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep changed.

    Attributes:
        returned_leases: leases of dead holders that were given back.
        expired_groups: groups that left the staleness window.
        expired: their trajectories.
    """

    returned_leases: int = 0
    expired_groups: int = 0
    expired: int = 0


def _ready(run_id: str, oldest: int | None) -> sa.ColumnElement[bool]:
    condition = (_group.run_id == run_id) & (_group.state == GroupState.READY.value)
    return condition if oldest is None else condition & (_group.oldest_version >= oldest)


@dataclass(frozen=True, slots=True)
class TakenGroup:
    """A leased group: its row's id, key, task, and its trajectories in the order of their recording."""

    group_id: int
    key: str
    task_id: str
    trajectory_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """A new lease."""

    lease_id: str
    groups: tuple[TakenGroup, ...]


def _dead(run_id: str, now: float) -> sa.Select:
    held = (lease.c.run_id == run_id) & (lease.c.state == LeaseState.HELD.value)
    return sa.select(lease.c.lease_id).where(held, lease.c.expires_at < now)


def count_ready(connection: sa.Connection, run_id: str, oldest: int | None) -> tuple[int, int]:
    """Return how many groups could be leased now, and how many trajectories they hold."""
    columns = sa.func.count(_group.id), sa.func.coalesce(sa.func.sum(_group.members), 0)
    row = connection.execute(sa.select(*columns).where(_ready(run_id, oldest))).one()
    return int(row[0]), int(row[1])


def take(
    connection: sa.Connection,
    run_id: str,
    holder: str,
    groups: int,
    at_least: int,
    oldest: int | None,
    ttl_s: float,
    now: float,
) -> Taken | None:
    """Lease the oldest eligible groups, up to `groups`; None if there are fewer than `at_least`."""
    query = sa.select(rollout_group).where(_ready(run_id, oldest)).order_by(_group.id).limit(groups)
    rows = list(connection.execute(query.with_for_update(skip_locked=True)))
    if len(rows) < at_least:
        return None
    lease_id = uuid.uuid4().hex
    connection.execute(
        lease.insert().values(
            lease_id=lease_id,
            run_id=run_id,
            holder=holder,
            state=LeaseState.HELD.value,
            num_groups=len(rows),
            ttl_s=ttl_s,
            created_at=now,
            expires_at=now + ttl_s,
        )
    )
    ids = [row.id for row in rows]
    connection.execute(
        rollout_group.update().where(_group.id.in_(ids)).values(state=GroupState.LEASED.value, lease_id=lease_id)
    )
    connection.execute(
        rollout_meta.update()
        .where(_meta.group_id.in_(ids), _meta.state == RolloutState.RECORDED.value)
        .values(state=RolloutState.LEASED.value, lease_id=lease_id)
    )
    names = _members(connection, ids)
    return Taken(lease_id, tuple(TakenGroup(row.id, row.group_key, row.task_id, tuple(names[row.id])) for row in rows))


def _members(connection: sa.Connection, group_ids: Sequence[int]) -> dict[int, list[str]]:
    query = (
        sa.select(_meta.group_id, _meta.trajectory_id)
        .where(_meta.group_id.in_(group_ids), _meta.state == RolloutState.LEASED.value)
        .order_by(_meta.rollout_id)
    )
    found: dict[int, list[str]] = {group_id: [] for group_id in group_ids}
    for group_id, trajectory_id in connection.execute(query):
        found[group_id].append(trajectory_id)
    return found


def extend(connection: sa.Connection, run_id: str, lease_id: str, now: float) -> None:
    """Give a lease its full time to live again."""
    row = _held(connection, run_id, lease_id)
    connection.execute(lease.update().where(lease.c.lease_id == lease_id).values(expires_at=now + row.ttl_s))


def commit(connection: sa.Connection, run_id: str, lease_id: str, version: int) -> None:
    """Mark a lease's groups trained; a second commit changes nothing."""
    if _find(connection, run_id, lease_id).state == LeaseState.COMMITTED:
        return
    _held(connection, run_id, lease_id)
    trained = sa.select(_meta.rollout_id).where(_meta.lease_id == lease_id, _meta.state == RolloutState.LEASED.value)
    rollout_ids = list(connection.execute(trained).scalars())
    for start in range(0, len(rollout_ids), 500):  # SQLite bounds the number of parameters
        part = rollout_ids[start : start + 500]
        connection.execute(rollout_run.update().where(rollout_run.c.id.in_(part)).values(used=rollout_run.c.used + 1))
        connection.execute(
            rollout_meta.update()
            .where(_meta.rollout_id.in_(part))
            .values(state=RolloutState.TRAINED.value, trained_version=version)
        )
    connection.execute(
        rollout_group.update()
        .where(_group.lease_id == lease_id, _group.state == GroupState.LEASED.value)
        .values(state=GroupState.TRAINED.value)
    )
    connection.execute(
        lease.update().where(lease.c.lease_id == lease_id).values(state=LeaseState.COMMITTED.value, version=version)
    )


def release(connection: sa.Connection, run_id: str, lease_id: str, state: LeaseState = LeaseState.RELEASED) -> None:
    """Give a lease's groups back; nothing happens to one that is over already."""
    if _find(connection, run_id, lease_id).state != LeaseState.HELD:
        return
    connection.execute(
        rollout_group.update()
        .where(_group.lease_id == lease_id, _group.state == GroupState.LEASED.value)
        .values(state=GroupState.READY.value, lease_id=None)
    )
    connection.execute(
        rollout_meta.update()
        .where(_meta.lease_id == lease_id, _meta.state == RolloutState.LEASED.value)
        .values(state=RolloutState.RECORDED.value, lease_id=None)
    )
    connection.execute(lease.update().where(lease.c.lease_id == lease_id).values(state=state.value))


def reject_group(connection: sa.Connection, group_id: int, reason: Reason) -> None:
    """Take a leased group out for good."""
    connection.execute(
        rollout_group.update()
        .where(_group.id == group_id)
        .values(state=GroupState.REJECTED.value, reason=reason.value, lease_id=None)
    )
    connection.execute(
        rollout_meta.update()
        .where(_meta.group_id == group_id, _meta.state == RolloutState.LEASED.value)
        .values(state=RolloutState.REJECTED.value, reason=reason.value, lease_id=None)
    )


def reject_leased(connection: sa.Connection, run_id: str, lease_id: str, group_key: str, reason: Reason) -> None:
    """Take one group out of a held lease for good."""
    _held(connection, run_id, lease_id)
    query = sa.select(_group.id).where(_group.lease_id == lease_id, _group.group_key == group_key)
    group_id = connection.execute(query).scalar()
    if group_id is None:
        raise LeaseError(f"lease {lease_id} has no group {group_key!r}")
    reject_group(connection, group_id, reason)


def held_by(connection: sa.Connection, run_id: str, holder: str) -> list[str]:
    """Return the leases that a holder has."""
    mine = (lease.c.run_id == run_id) & (lease.c.holder == holder) & (lease.c.state == LeaseState.HELD.value)
    return list(connection.execute(sa.select(lease.c.lease_id).where(mine)).scalars())


def any_dead(connection: sa.Connection, run_id: str, now: float) -> bool:
    """Whether a lease has run out."""
    return connection.execute(_dead(run_id, now).limit(1)).first() is not None


def sweep(connection: sa.Connection, run_id: str, oldest: int | None, now: float) -> Sweep:
    """Give back the leases that ran out, and expire the groups that left the staleness window."""
    dead = list(connection.execute(_dead(run_id, now)).scalars())
    for lease_id in dead:
        release(connection, run_id, lease_id, LeaseState.EXPIRED)
    if oldest is None:
        return Sweep(returned_leases=len(dead))
    waiting = (_group.run_id == run_id) & _group.state.in_([GroupState.OPEN.value, GroupState.READY.value])
    stale = list(connection.execute(sa.select(_group.id).where(waiting, _group.oldest_version < oldest)).scalars())
    expired = 0
    for start in range(0, len(stale), 500):
        part = stale[start : start + 500]
        connection.execute(
            rollout_group.update()
            .where(_group.id.in_(part))
            .values(state=GroupState.EXPIRED.value, reason=Reason.STALE.value)
        )
        expired += connection.execute(
            rollout_meta.update()
            .where(_meta.group_id.in_(part), _meta.state == RolloutState.RECORDED.value)
            .values(state=RolloutState.EXPIRED.value, reason=Reason.STALE.value)
        ).rowcount
    return Sweep(len(dead), len(stale), expired)


def _find(connection: sa.Connection, run_id: str, lease_id: str) -> sa.Row:
    query = sa.select(lease).where(lease.c.lease_id == lease_id, lease.c.run_id == run_id).with_for_update()
    row = connection.execute(query).first()
    if row is None:
        raise LeaseError(f"no lease {lease_id!r} in run {run_id!r}: take one with lease()")
    return row


def _held(connection: sa.Connection, run_id: str, lease_id: str) -> sa.Row:
    row = _find(connection, run_id, lease_id)
    if row.state != LeaseState.HELD:
        raise LeaseError(
            f"lease {lease_id} of {row.holder!r} is {row.state}: its groups may be another trainer's now; take a new "
            f"lease, and send heartbeats more often than every {row.ttl_s:g} s or ask for a longer ttl_s"
        )
    return row

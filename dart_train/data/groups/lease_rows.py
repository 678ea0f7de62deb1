"""Leases: which trainer holds which groups, and whether they were trained. Functions of one write transaction each.

Invariants:
    - A group is in at most one held lease; its row and its members' rows change state together.
    - Nothing is marked trained before it was: that is `commit`. A lease that runs out gives its groups back.
    - An expired lease stays its holder's until another process sweeps it, and each of its groups until another holder
      leases it: late work is not thrown away in vain. Groups that were trained although another holder had them are
      counted.
    - Each function may be run twice with the effect of once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import sqlalchemy as sa

from dart_train.core.data_states import GroupState, LeaseState, Reason, RolloutState
from dart_train.core.train_errors import LeaseError
from dart_train.data.curation.grouping import injected_into
from dart_train.data.groups import checkpoint_rows
from dart_train.data.store.schema import group_injection, lease, lease_item, rollout_group, rollout_meta, rollout_run
from dart_train.data.store.sql_store import now

_group = rollout_group.c
_meta = rollout_meta.c
_lease = lease.c
SWEEP_GROUPS = 200  # stale groups that one transaction expires, so that no other waits long for it
_PARAMETERS = 500  # SQLite bounds their number


@dataclass(frozen=True, slots=True)
class Sweep:
    """Changes by a sweep: leases of dead holders given back, and groups (with trajectories) that left the window."""

    returned_leases: int = 0
    expired_groups: int = 0
    expired: int = 0

    def __add__(self, other: Sweep) -> Sweep:
        return Sweep(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class TakenGroup:
    """A leased group: its own members, in the order of recording, and those of the experience pool that joined it."""

    group_id: int
    key: str
    task_id: str
    trajectory_ids: tuple[str, ...]
    injected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """A new lease, and its number among its holder's leases."""

    lease_id: str
    serial: int
    groups: tuple[TakenGroup, ...]


def _ready(run_id: str, oldest: int | None) -> sa.ColumnElement[bool]:
    condition = (_group.run_id == run_id) & (_group.state == GroupState.READY.value)
    return condition if oldest is None else condition & (_group.oldest_version >= oldest)


def waiting_in_order(run_id: str, oldest: int | None) -> sa.Select:
    """Groups that can be leased, oldest first: read off an index, without sorting what waits."""
    query = sa.select(rollout_group).where(_group.run_id == run_id, _group.state == GroupState.READY.value)
    if oldest is not None:
        query = query.where(_group.oldest_version + 0 >= oldest)  # + 0: no other index may take its place
    # MariaDB would rather follow the primary key, through everything that was ever trained.
    return query.with_hint(rollout_group, "FORCE INDEX (idx_rollout_group_state)", "mysql").order_by(_group.id)


def _dead(run_id: str, moment: float) -> sa.Select:
    held = (_lease.run_id == run_id) & (_lease.state == LeaseState.HELD.value)
    return sa.select(_lease.lease_id).where(held, _lease.expires_at < moment)


# What can be leased


def count_ready(connection: sa.Connection, run_id: str, oldest: int | None) -> tuple[int, int]:
    """Return how many groups could be leased now, and how many trajectories they hold."""
    query = sa.select(sa.func.count(_group.id), sa.func.coalesce(sa.func.sum(_group.members), 0))
    row = connection.execute(query.where(_ready(run_id, oldest))).one()
    return int(row[0]), int(row[1])


def count_ready_by_task(connection: sa.Connection, run_id: str, oldest: int | None) -> dict[str, tuple[int, int]]:
    """Return what `count_ready` says of each task; tasks without waiting groups are left out."""
    query = sa.select(_group.task_id, sa.func.count(_group.id), sa.func.sum(_group.members))
    rows = connection.execute(query.where(_ready(run_id, oldest)).group_by(_group.task_id))
    return {task_id: (groups, int(members)) for task_id, groups, members in rows}


def count_leased(connection: sa.Connection, run_id: str) -> int:
    """Return how many groups trainers have now."""
    leased = (_group.run_id == run_id) & (_group.state == GroupState.LEASED.value)
    return connection.execute(sa.select(sa.func.count()).where(leased)).scalar_one()


def count_usable(connection: sa.Connection, run_id: str, latest: int) -> tuple[int, int]:
    """Return how many of the latest decided groups could be trained on, and how many were decided."""
    found: list[tuple[int, bool]] = []
    for state in (GroupState.READY, GroupState.LEASED, GroupState.TRAINED, GroupState.REJECTED):
        query = sa.select(_group.id).where(_group.run_id == run_id, _group.state == state.value)
        ids = connection.execute(query.order_by(_group.id.desc()).limit(latest)).scalars()
        found += [(number, state is not GroupState.REJECTED) for number in ids]
    newest = sorted(found, reverse=True)[:latest]
    return sum(usable for _, usable in newest), len(newest)


def may_take(connection: sa.Connection, run_id: str, oldest: int | None, groups: int) -> bool:
    """Return whether enough groups could be leased, or a lease has run out, without a writer's lock."""
    few = waiting_in_order(run_id, oldest).with_only_columns(_group.id).limit(groups)
    if len(connection.execute(few).all()) >= groups:
        return True
    return connection.execute(_dead(run_id, now(connection)).limit(1)).first() is not None


# The life of a lease


def take(
    connection: sa.Connection,
    run_id: str,
    lease_id: str,
    holder: str,
    groups: int,
    at_least: int,
    oldest: int | None,
    ttl_s: float,
) -> Taken | None:
    """Lease the oldest eligible groups, up to `groups`; None if there are fewer than `at_least`."""
    known = connection.execute(sa.select(_lease.serial).where(_lease.lease_id == lease_id)).scalar()
    if known is not None:  # the connection was lost while the server said that it was committed
        return _taken(connection, lease_id, known)
    rows = list(connection.execute(waiting_in_order(run_id, oldest).limit(groups).with_for_update(skip_locked=True)))
    if len(rows) < at_least:
        return None
    newest = sa.select(sa.func.max(_lease.serial)).where(_lease.run_id == run_id, _lease.holder == holder)
    serial = (connection.execute(newest).scalar() or 0) + 1
    moment = now(connection)
    connection.execute(
        lease.insert().values(
            lease_id=lease_id,
            run_id=run_id,
            holder=holder,
            serial=serial,
            state=LeaseState.HELD.value,
            num_groups=len(rows),
            ttl_s=ttl_s,
            created_at=moment,
            expires_at=moment + ttl_s,
        )
    )
    ids = [row.id for row in rows]
    connection.execute(lease_item.insert(), [{"lease_id": lease_id, "group_id": group_id} for group_id in ids])
    connection.execute(
        rollout_group.update().where(_group.id.in_(ids)).values(state=GroupState.LEASED.value, lease_id=lease_id)
    )
    connection.execute(
        rollout_meta.update()
        .where(_meta.group_id.in_(ids), _meta.state == RolloutState.RECORDED.value)
        .values(state=RolloutState.LEASED.value, lease_id=lease_id)
    )
    return Taken(lease_id, serial, _groups_taken(connection, rows))


def _taken(connection: sa.Connection, lease_id: str, serial: int) -> Taken:
    rows = list(connection.execute(sa.select(rollout_group).where(_group.lease_id == lease_id).order_by(_group.id)))
    return Taken(lease_id, serial, _groups_taken(connection, rows))


def _groups_taken(connection: sa.Connection, rows: Sequence[sa.Row]) -> tuple[TakenGroup, ...]:
    ids = [row.id for row in rows]
    own, joined = _members(connection, ids), injected_into(connection, ids)
    return tuple(
        TakenGroup(row.id, row.group_key, row.task_id, tuple(own[row.id]), tuple(joined.get(row.id, ())))
        for row in rows
    )


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


def extend(connection: sa.Connection, run_id: str, lease_id: str) -> None:
    """Give a lease its full time to live again."""
    row = find(connection, run_id, lease_id)
    if row.state != LeaseState.HELD:
        raise _over(row)
    over = now(connection) + row.ttl_s
    connection.execute(lease.update().where(_lease.lease_id == lease_id).values(expires_at=over))


def commit(connection: sa.Connection, run_id: str, lease_id: str, version: int) -> int:
    """Mark the lease's groups as trained and return how many were lost. Idempotent.

    If the lease has expired, groups that another holder has taken since are skipped and counted as lost.
    """
    row = find(connection, run_id, lease_id)
    if row.state == LeaseState.COMMITTED:
        return row.surplus
    if row.state not in (LeaseState.HELD, LeaseState.EXPIRED):
        raise _over(row)
    group_ids, surplus = _groups_of(connection, row)
    _mark_trained(connection, lease_id, group_ids, version)
    newest = checkpoint_rows.newest_version(connection, run_id)
    connection.execute(
        lease.update()
        .where(_lease.lease_id == lease_id)
        .values(
            state=LeaseState.COMMITTED.value,
            version=version,
            result_version=newest if newest is not None and newest > version else None,  # else the next one published
            surplus=surplus,
        )
    )
    return surplus


def _groups_of(connection: sa.Connection, row: sa.Row) -> tuple[list[int], int]:
    """Return the groups of a lease that are still its own, and how many went to others."""
    items = sa.select(lease_item.c.group_id).where(lease_item.c.lease_id == row.lease_id)
    query = sa.select(_group.id, _group.state, _group.lease_id).where(_group.id.in_(items)).with_for_update()
    own: list[int] = []
    lost = 0
    for group_id, state, lease_id in connection.execute(query):
        if (state == GroupState.LEASED and lease_id == row.lease_id) or (
            row.state == LeaseState.EXPIRED and state == GroupState.READY
        ):
            own.append(group_id)
        elif state in (GroupState.LEASED, GroupState.TRAINED):
            lost += 1
    return own, lost


def _mark_trained(connection: sa.Connection, lease_id: str, group_ids: Sequence[int], version: int) -> None:
    waiting = [RolloutState.LEASED.value, RolloutState.RECORDED.value]
    values = {"state": RolloutState.TRAINED.value, "trained_version": version, "lease_id": lease_id}
    _change_members(connection, group_ids, waiting, values, uses=1)
    _change_groups(connection, group_ids, {"state": GroupState.TRAINED.value, "lease_id": lease_id})


def _change_groups(connection: sa.Connection, group_ids: Sequence[int], values: dict[str, object]) -> None:
    for start in range(0, len(group_ids), _PARAMETERS):
        part = group_ids[start : start + _PARAMETERS]
        connection.execute(rollout_group.update().where(_group.id.in_(part)).values(**values))


def _change_members(
    connection: sa.Connection,
    group_ids: Sequence[int],
    states: Sequence[str],
    values: dict[str, object],
    *,
    uses: int = 0,
) -> int:
    """Change the members of groups that are in one of some states; return how many there were."""
    changed = 0
    for start in range(0, len(group_ids), _PARAMETERS):
        part = group_ids[start : start + _PARAMETERS]
        mine = _meta.group_id.in_(part) & _meta.state.in_(states)
        if uses:
            ids = list(connection.execute(sa.select(_meta.rollout_id).where(mine)).scalars())
            joined = sa.select(group_injection.c.rollout_id).where(group_injection.c.group_id.in_(part))
            ids += connection.execute(joined).scalars()
            for begin in range(0, len(ids), _PARAMETERS):
                used = rollout_run.c.id.in_(ids[begin : begin + _PARAMETERS])
                connection.execute(rollout_run.update().where(used).values(used=rollout_run.c.used + uses))
        changed += connection.execute(rollout_meta.update().where(mine).values(**values)).rowcount
    return changed


def release(connection: sa.Connection, run_id: str, lease_id: str, state: LeaseState = LeaseState.RELEASED) -> int:
    """Give a lease's groups back and return their number; one that ran out has none left, and none by a late commit."""
    row = find(connection, run_id, lease_id)
    if row.state == LeaseState.EXPIRED:
        connection.execute(lease.update().where(_lease.lease_id == lease_id).values(state=state.value))
    if row.state != LeaseState.HELD:
        return 0
    group_ids, _ = _groups_of(connection, row)
    give_back(connection, group_ids, RolloutState.LEASED)
    connection.execute(lease.update().where(_lease.lease_id == lease_id).values(state=state.value))
    return len(group_ids)


def give_back(connection: sa.Connection, group_ids: Sequence[int], was: RolloutState, *, uses: int = 0) -> None:
    """Make groups whose members are in one state leasable again, and change how often those count as used."""
    values: dict[str, object] = {"state": RolloutState.RECORDED.value, "lease_id": None, "trained_version": None}
    _change_members(connection, group_ids, [was.value], values, uses=uses)
    _change_groups(connection, group_ids, {"state": GroupState.READY.value, "lease_id": None})


# Groups that leave


def reject_group(connection: sa.Connection, group_id: int, reason: Reason) -> None:
    """Take a leased group out for good."""
    _change_groups(
        connection, [group_id], {"state": GroupState.REJECTED.value, "reason": reason.value, "lease_id": None}
    )
    rejected: dict[str, object] = {"state": RolloutState.REJECTED.value, "reason": reason.value, "lease_id": None}
    _change_members(connection, [group_id], [RolloutState.LEASED.value], rejected)


def sweep(connection: sa.Connection, run_id: str, oldest: int | None) -> Sweep:
    """Give back the leases that ran out, and expire `SWEEP_GROUPS` groups that left the staleness window."""
    dead = list(connection.execute(_dead(run_id, now(connection))).scalars())
    for lease_id in dead:
        release(connection, run_id, lease_id, LeaseState.EXPIRED)
    if oldest is None:
        return Sweep(returned_leases=len(dead))
    waiting = (_group.run_id == run_id) & _group.state.in_([GroupState.OPEN.value, GroupState.READY.value])
    query = sa.select(_group.id).where(waiting, _group.oldest_version < oldest).limit(SWEEP_GROUPS)
    stale = list(connection.execute(query.with_for_update(skip_locked=True)).scalars())
    _change_groups(connection, stale, {"state": GroupState.EXPIRED.value, "reason": Reason.STALE.value})
    values: dict[str, object] = {"state": RolloutState.EXPIRED.value, "reason": Reason.STALE.value}
    return Sweep(len(dead), len(stale), _change_members(connection, stale, [RolloutState.RECORDED.value], values))


def count_surplus(connection: sa.Connection, run_id: str) -> int:
    """Return how many groups were trained a second time because their lease was lost meanwhile."""
    query = sa.select(sa.func.coalesce(sa.func.sum(_lease.surplus), 0)).where(_lease.run_id == run_id)
    return int(connection.execute(query).scalar_one())


def find(connection: sa.Connection, run_id: str, lease_id: str) -> sa.Row:
    """Return a lease's row, locked until the transaction ends. Raises `LeaseError`."""
    query = sa.select(lease).where(_lease.lease_id == lease_id, _lease.run_id == run_id).with_for_update()
    row = connection.execute(query).first()
    if row is None:
        raise LeaseError(f"no lease {lease_id!r} in run {run_id!r}: take one with lease()")
    return row


def _over(row: sa.Row) -> LeaseError:
    return LeaseError(
        f"lease {row.lease_id} of {row.holder!r} is {row.state}: its groups may be another trainer's now; take a new "
        f"lease, and send heartbeats more often than every {row.ttl_s:g} s or ask for a longer ttl_s"
    )

"""Leases of a trainer that restarts: groups that its weights contain are marked trained, all others are given back.

Invariants:
    - Afterwards the holder has no earlier leases, and exactly the commits that its weights contain.
    - What its weights contain although others had it meanwhile is counted as surplus.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import sqlalchemy as sa

from dart_train.core.data_states import GroupState, LeaseState, RolloutState
from dart_train.data.groups import checkpoint_rows, lease_rows
from dart_train.data.store.schema import lease, rollout_group

_group, _lease = rollout_group.c, lease.c


@dataclass(frozen=True, slots=True)
class Resumed:
    """Counts of a holder's leases after a restart.

    Attributes:
        committed: groups that its weights contain although it had not said so: marked trained now.
        released: groups of leases that it had not trained on: they can be leased again.
        undone: groups that were marked trained, but into weights that are lost: they can be leased again.
        surplus: groups that its weights contain and that others had meanwhile: trained twice.
    """

    committed: int = 0
    released: int = 0
    undone: int = 0
    surplus: int = 0

    def __add__(self, other: Resumed) -> Resumed:
        return Resumed(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def undo(connection: sa.Connection, run_id: str, lease_id: str) -> int:
    """Take a commit back, because the weights that were trained on it are lost; return how many groups it had."""
    row = lease_rows.find(connection, run_id, lease_id)
    if row.state != LeaseState.COMMITTED:
        return 0
    mine = (_group.lease_id == lease_id) & (_group.state == GroupState.TRAINED.value)
    group_ids = list(connection.execute(sa.select(_group.id).where(mine)).scalars())
    lease_rows.give_back(connection, group_ids, RolloutState.TRAINED, uses=-1)
    values = {"state": LeaseState.UNDONE.value, "version": None, "result_version": None, "surplus": 0}
    connection.execute(lease.update().where(_lease.lease_id == lease_id).values(**values))
    return len(group_ids)


def resume(
    connection: sa.Connection, run_id: str, holder: str, last: int | None, version: int | None = None
) -> Resumed:
    """Settle a holder's leases by what its weights contain: everything up to serial `last`; None leaves commits."""
    if version is None:
        version = checkpoint_rows.newest_version(connection, run_id) or 0
    mine = (_lease.run_id == run_id) & (_lease.holder == holder)
    unsettled = [LeaseState.HELD.value, LeaseState.EXPIRED.value]  # each was trained on, or released, before the next
    query = sa.select(_lease.lease_id, _lease.serial, _lease.state).where(mine)
    if last is None:
        query = query.where(_lease.state == LeaseState.HELD.value)
    else:
        query = query.where(_lease.state.in_(unsettled) | (_lease.serial > last))
    done = Resumed()
    for lease_id, serial, state in list(connection.execute(query.order_by(_lease.serial))):
        if last is not None and serial <= last:
            surplus = lease_rows.commit(connection, run_id, lease_id, version)
            size = sa.select(sa.func.count()).where(_group.lease_id == lease_id)
            done += Resumed(committed=connection.execute(size).scalar_one(), surplus=surplus)
        elif state in unsettled:
            done += Resumed(released=lease_rows.release(connection, run_id, lease_id))
        elif state == LeaseState.COMMITTED:
            done += Resumed(undone=undo(connection, run_id, lease_id))
    return done

"""Locks across processes and machines: rows with a lease, by the database's clock.

Invariants:
    - A lock has one holder at a time; who holds it says so again before the lease is over, or loses it.
    - Locks are of the database, not of a run: what they guard may be shared by runs.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dart_train.data.store.schema import NAME_LENGTH, run_state

_PREFIX = "lock:"
_NO_RUN = ""
LONGEST_NAME = NAME_LENGTH - len(_PREFIX)


def take(connection: sa.Connection, name: str, holder: str, ttl_s: float, now: float) -> str:
    """Take a lock, or hold it for longer; returns who has it now.

    Args:
        connection: of a write transaction.
        name: of the lock.
        holder: who wants it.
        ttl_s: how long it is held unless it is taken again.
        now: Unix time by the database's clock.
    """
    value = {"holder": holder, "expires_at": now + ttl_s}
    row = connection.execute(sa.select(run_state.c.value).where(_here(name)).with_for_update()).first()
    if row is None:
        connection.execute(run_state.insert().values(run_id=_NO_RUN, name=_PREFIX + name, value=value))
        return holder
    held: dict[str, Any] = row.value
    if held["holder"] != holder and held["expires_at"] > now:
        return str(held["holder"])
    connection.execute(run_state.update().where(_here(name)).values(value=value))
    return holder


def give_back(connection: sa.Connection, name: str, holder: str) -> None:
    """Let a lock go, if it is still the holder's."""
    row = connection.execute(sa.select(run_state.c.value).where(_here(name)).with_for_update()).first()
    if row is not None and row.value["holder"] == holder:
        connection.execute(run_state.delete().where(_here(name)))


def _here(name: str) -> sa.ColumnElement[bool]:
    return (run_state.c.run_id == _NO_RUN) & (run_state.c.name == _PREFIX + name)

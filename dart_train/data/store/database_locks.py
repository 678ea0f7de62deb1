"""Locks across processes and machines: rows with a lease, by the database's clock.

Invariants:
    - A lock has one holder at a time; its holder renews it before the lease ends, or loses it.
    - Locks are of the database, not of a run: what they guard may be shared by runs.
"""

import sqlalchemy as sa

from dart_train.data.store.schema import NAME_LENGTH, run_state
from dart_train.data.store.sql_store import Store, now

_PREFIX = "lock:"
_NO_RUN = ""
LONGEST_NAME = NAME_LENGTH - len(_PREFIX)


class DatabaseLocks:
    """The locks of one database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def take_lock(self, name: str, holder: str, ttl_s: float) -> str:
        """Take a lock for `ttl_s` seconds, or renew it; return its holder."""

        def work(connection: sa.Connection) -> str:
            moment = now(connection)
            value = {"holder": holder, "expires_at": moment + ttl_s}
            row = connection.execute(sa.select(run_state.c.value).where(_here(name)).with_for_update()).first()
            if row is None:
                connection.execute(run_state.insert().values(run_id=_NO_RUN, name=_PREFIX + name, value=value))
                return holder
            if row.value["holder"] != holder and row.value["expires_at"] > moment:
                return str(row.value["holder"])
            connection.execute(run_state.update().where(_here(name)).values(value=value))
            return holder

        return self._store.write(work)

    def give_back_lock(self, name: str, holder: str) -> None:
        """Let a lock go, if it is still the holder's."""

        def work(connection: sa.Connection) -> None:
            row = connection.execute(sa.select(run_state.c.value).where(_here(name)).with_for_update()).first()
            if row is not None and row.value["holder"] == holder:
                connection.execute(run_state.delete().where(_here(name)))

        self._store.write(work)


def _here(name: str) -> sa.ColumnElement[bool]:
    return (run_state.c.run_id == _NO_RUN) & (run_state.c.name == _PREFIX + name)

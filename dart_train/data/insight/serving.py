"""The life of model versions: published, serving on which replicas, retired. Rows of `serving` and `checkpoint_meta`.

Invariants:
    - A replica serves at most one version at a time; its earlier ones stay as rows with an end.
"""

from dataclasses import dataclass

import sqlalchemy as sa

from dart_train.data.store.schema import NAME_LENGTH, checkpoint_meta, serving
from dart_train.data.store.sql_store import now

_serving, _meta = serving.c, checkpoint_meta.c


@dataclass(frozen=True, slots=True)
class VersionLife:
    """One version of the weights, published and retired (its files were given up) at Unix times; None before."""

    version: int
    published_at: float | None
    retired_at: float | None
    replicas: tuple[str, ...]


def serve(connection: sa.Connection, run_id: str, replica: str, version: int | None) -> None:
    """Write down that a replica serves a version from now on; None: that it serves none."""
    replica = replica[:NAME_LENGTH]
    current = (_serving.run_id == run_id) & (_serving.replica == replica) & _serving.ended_at.is_(None)
    query = sa.select(_serving.version).where(current).with_for_update()
    if list(connection.execute(query).scalars()) == [version]:
        return
    moment = now(connection)
    connection.execute(serving.update().where(current).values(ended_at=moment))
    if version is not None:
        row = {"run_id": run_id, "replica": replica, "version": version, "started_at": moment}
        connection.execute(serving.insert().values(**row))


def serving_now(connection: sa.Connection, run_id: str) -> dict[str, int]:
    """Return which version each replica serves."""
    query = sa.select(_serving.replica, _serving.version).where(_serving.run_id == run_id, _serving.ended_at.is_(None))
    return {replica: version for replica, version in connection.execute(query.order_by(_serving.id))}


def version_lives(connection: sa.Connection, run_id: str) -> list[VersionLife]:
    """Return all versions of a run, newest first."""
    replicas: dict[int, list[str]] = {}
    for replica, version in serving_now(connection, run_id).items():
        replicas.setdefault(version, []).append(replica)
    query = sa.select(_meta.version, _meta.completed_at, _meta.retired_at).where(_meta.run_id == run_id)
    return [
        VersionLife(version, published, retired, tuple(sorted(replicas.get(version, ()))))
        for version, published, retired in connection.execute(query.order_by(_meta.version.desc()))
    ]

"""Checkpoints: rows of the published `checkpoint` table whose status is true at every moment.

Invariants:
    - PENDING once announced, RUNNING while being written, COMPLETED once readable, FAILED or DEPRECATED afterwards;
      versions only grow.
    - A version has one row; `version` in the published table is "v<number>".
"""

from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from dart_train.core.data_states import CheckpointStatus, LeaseState
from dart_train.core.train_errors import CheckpointError
from dart_train.data.store.schema import PATH_LENGTH, checkpoint, checkpoint_meta, lease
from dart_train.data.store.sql_store import now

IN_MEMORY = "weights_in_memory"
"""Fact of the run: the newest version in the trainer's memory, `{"version", "path", "address"}`."""

_meta = checkpoint_meta.c


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint.

    Attributes:
        completed_at: Unix time from which it could be read; None before.
        url: where other nodes find it, once `path` is of this node; "" where there is no such place.
    """

    version: int
    path: str
    status: CheckpointStatus
    source: str
    created_at: float
    completed_at: float | None
    url: str = ""


def newest_version(connection: sa.Connection, run_id: str) -> int | None:
    """Return the newest completed version; None before the first one."""
    query = sa.select(sa.func.max(_meta.version)).where(_meta.run_id == run_id, _meta.completed_at.is_not(None))
    return connection.execute(query).scalar()


def next_version(connection: sa.Connection, run_id: str) -> int:
    """Return the version after every one that was ever announced; 0 for the first."""
    newest = connection.execute(sa.select(sa.func.max(_meta.version)).where(_meta.run_id == run_id)).scalar()
    return 0 if newest is None else newest + 1


def list_checkpoints(
    connection: sa.Connection, run_id: str, *statuses: CheckpointStatus, limit: int | None = None
) -> list[CheckpointRow]:
    """Return the checkpoints of a run, newest first, of the given statuses or of all."""
    table = checkpoint.c
    query = (
        sa.select(_meta.version, table.path, table.status, table.source, _meta.created_at, _meta.completed_at)
        .join_from(checkpoint_meta, checkpoint, table.id == _meta.checkpoint_id)
        .where(_meta.run_id == run_id)
        .order_by(_meta.version.desc())
        .limit(limit)
    )
    if statuses:
        query = query.where(table.status.in_([status.value for status in statuses]))
    return [
        CheckpointRow(row.version, row.path, CheckpointStatus(row.status), row.source or "", *row[4:])
        for row in connection.execute(query)
    ]


def announce(connection: sa.Connection, run_id: str, version: int, path: str | Path, source: str = "training") -> None:
    """Insert the PENDING row of a version that will be written at `path`, once.

    Raises:
        CheckpointError: if the version was announced with another path.
    """
    path = _absolute(path)
    if len(path) > PATH_LENGTH:
        raise CheckpointError(
            f"the path of v{version} is longer than {PATH_LENGTH} characters: use a shorter run directory"
        )
    known = _find(connection, run_id, version)
    if known is not None:
        if known.path != path:
            raise CheckpointError(
                f"v{version} of run {run_id!r} is {known.path}, not {path}: versions are never reused, "
                "take the next one from next_version()"
            )
        return
    values = {
        "name": f"v{version}",
        "version": f"v{version}",
        "run_id": run_id,
        "status": CheckpointStatus.PENDING.value,
        "path": path,
        "source": source,
        "started_at": sa.func.current_timestamp(),
    }
    key = connection.execute(checkpoint.insert().values(**values)).inserted_primary_key
    assert key is not None  # SQLAlchemy's type: a single-row insert always has one
    own = {"run_id": run_id, "version": version, "checkpoint_id": key[0], "created_at": now(connection)}
    connection.execute(checkpoint_meta.insert().values(own))


def begin(connection: sa.Connection, run_id: str, version: int) -> None:
    """Mark a version that is being written from now on; one that is complete stays so."""
    row = _find(connection, run_id, version)
    if row is None:
        raise CheckpointError(f"there is no v{version} in run {run_id!r}: announce it first")
    if row.status == CheckpointStatus.PENDING:
        running = CheckpointStatus.RUNNING.value
        connection.execute(checkpoint.update().where(checkpoint.c.id == row.id).values(status=running))


def complete(connection: sa.Connection, run_id: str, version: int, path: str | Path, source: str = "training") -> None:
    """Mark a version readable, and announce it first if it is unknown; nothing changes the second time."""
    path = _absolute(path)
    if "://" not in path and not Path(path).exists():
        raise CheckpointError(f"{path} does not exist: write v{version} there first, then publish it")
    announce(connection, run_id, version, path, source)
    row = _find(connection, run_id, version)
    if row is None or row.status == CheckpointStatus.COMPLETED:
        return
    _set_status(connection, row.id, CheckpointStatus.COMPLETED)
    mine = (_meta.run_id == run_id) & (_meta.version == version)
    connection.execute(checkpoint_meta.update().where(mine).values(completed_at=now(connection)))
    waiting = (lease.c.run_id == run_id) & (lease.c.state == LeaseState.COMMITTED.value)
    connection.execute(  # what was learned since the version before is in this one
        lease.update()
        .where(waiting, lease.c.result_version.is_(None), lease.c.version < version)
        .values(result_version=version)
    )


def fail(connection: sa.Connection, run_id: str, version: int) -> None:
    """Mark a version that could not be written."""
    _retire(connection, run_id, version, CheckpointStatus.FAILED)


def deprecate(connection: sa.Connection, run_id: str, version: int) -> None:
    """Mark a version before its files are deleted. Its number still counts for staleness."""
    _retire(connection, run_id, version, CheckpointStatus.DEPRECATED)
    mine = (_meta.run_id == run_id) & (_meta.version == version)
    alive = mine & _meta.retired_at.is_(None)
    connection.execute(checkpoint_meta.update().where(alive).values(retired_at=now(connection)))


def _absolute(path: str | Path) -> str:
    return str(path) if "://" in str(path) else str(Path(path).absolute())


def _retire(connection: sa.Connection, run_id: str, version: int, status: CheckpointStatus) -> None:
    row = _find(connection, run_id, version)
    if row is None:
        raise CheckpointError(f"there is no v{version} in run {run_id!r}")
    _set_status(connection, row.id, status)


def _set_status(connection: sa.Connection, checkpoint_id: int, status: CheckpointStatus) -> None:
    moment = "deleted_at" if status is CheckpointStatus.DEPRECATED else "finished_at"
    connection.execute(
        checkpoint.update()
        .where(checkpoint.c.id == checkpoint_id)
        .values(status=status.value, **{moment: sa.func.current_timestamp()})
    )


def _find(connection: sa.Connection, run_id: str, version: int) -> sa.Row | None:
    query = (
        sa.select(checkpoint.c.id, checkpoint.c.path, checkpoint.c.status)
        .join_from(checkpoint_meta, checkpoint, checkpoint.c.id == _meta.checkpoint_id)
        .where(_meta.run_id == run_id, _meta.version == version)
    )
    return connection.execute(query).first()

"""The experience pool: successes kept for groups that fail as a whole, with where they come from.

The pool consists of rows of `experience_pool` that refer to ordinary rollout rows: demonstrations of the run, successes
of the run itself (`pool_sources: [rollout]`), and what was imported from elsewhere (`data.pool_import`).

Invariants:
    - Only successes: a reward above 0, whole files.
    - Nothing in the pool is removed by retention before it is retired.
    - A trajectory without behaviour log-probabilities is marked so: its importance weight is 1.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from dart_agent.episodes.trajectory import Trajectory
from dart_train.core.data_states import Provenance
from dart_train.data.curation.rules import PoolSampling
from dart_train.data.store.schema import experience_pool, rollout_meta, rollout_run

_pool, _meta = experience_pool.c, rollout_meta.c

COLLECTED_SOURCE = "collected"
"""`Trajectory.source` of successes that the policy made in another run."""

ORIGIN_LENGTH = 512

PROVENANCES = {
    "rollout": Provenance.ROLLOUT,
    COLLECTED_SOURCE: Provenance.ROLLOUT,
    "oracle": Provenance.ORACLE,
    "human": Provenance.HUMAN,
    "hinted": Provenance.HINTED,
}
"""Provenance by `Trajectory.source`."""


@dataclass(frozen=True, slots=True)
class Success:
    """A trajectory of the pool, since Unix time `added_at`, and the groups that it joined so far."""

    rollout_id: int
    trajectory_id: str
    reward: float
    added_at: float
    uses: int = 0
    num_steps: int = 0


def choose(successes: Sequence[Success], sampling: PoolSampling, key: str) -> Success | None:
    """Return the pool's success that joins a group, or None.

    NEWEST is as the original; UNIFORM draws from the hash of the group's key, so that a decision can be repeated;
    LEAST_USED goes round all of them, the newest first.
    """
    if not successes:
        return None
    if sampling is PoolSampling.UNIFORM:
        ordered = sorted(successes, key=lambda item: item.rollout_id)
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        return ordered[int.from_bytes(digest) % len(ordered)]
    if sampling is PoolSampling.LEAST_USED:
        return min(successes, key=lambda item: (item.uses, -item.added_at, -item.rollout_id))
    return max(successes, key=lambda item: (item.added_at, item.rollout_id))


def belongs(trajectory: Trajectory) -> bool:
    """Return whether a trajectory may be kept in the pool: a success that can be trained on."""
    usable = trajectory.terminal.trainable and any(step.response_ids for step in trajectory.steps)
    return usable and trajectory.score is not None and trajectory.score > 0.0


def add(connection: sa.Connection, run_id: str, rollout_id: int, trajectory: Trajectory, now: float) -> bool:
    """Put a recorded trajectory into the pool; False if it is there, or is no success of a known source."""
    provenance = PROVENANCES.get(trajectory.source)
    if provenance is None or not belongs(trajectory):
        return False
    if connection.execute(sa.select(_pool.rollout_id).where(_pool.rollout_id == rollout_id)).first():
        return False
    connection.execute(
        experience_pool.insert().values(
            rollout_id=rollout_id,
            run_id=run_id,
            trajectory_id=trajectory.trajectory_id,
            task_id=trajectory.task_id,
            provenance=provenance.value,
            origin="",
            has_logprobs=all(len(step.logprobs) == len(step.response_ids) for step in trajectory.steps),
            reward=trajectory.score,
            uses=0,
            added_at=now,
        )
    )
    return True


def has(connection: sa.Connection, run_id: str, trajectory_id: str) -> bool:
    """Return whether a trajectory is in the pool, retired or not."""
    mine = (_pool.run_id == run_id) & (_pool.trajectory_id == trajectory_id)
    return connection.execute(sa.select(_pool.rollout_id).where(mine)).first() is not None


def set_origin(connection: sa.Connection, run_id: str, trajectory_id: str, origin: str) -> None:
    """Write down where a trajectory of the pool came from."""
    mine = (_pool.run_id == run_id) & (_pool.trajectory_id == trajectory_id)
    connection.execute(experience_pool.update().where(mine).values(origin=origin[:ORIGIN_LENGTH]))


def missing(connection: sa.Connection, run_id: str, sources: Iterable[Provenance]) -> list[tuple[int, str]]:
    """Return (row id, trajectory id) of recorded successes that could be in the pool and are not."""
    wanted = [source for source, provenance in PROVENANCES.items() if provenance in set(sources)]
    known = sa.select(_pool.rollout_id).where(_pool.run_id == run_id)
    has_files = sa.select(rollout_run.c.id).where(
        rollout_run.c.id == _meta.rollout_id, rollout_run.c.split_dir.is_not(None)
    )
    query = (
        sa.select(_meta.rollout_id, _meta.trajectory_id)
        .where(_meta.run_id == run_id, _meta.source.in_(wanted), _meta.reward > 0.0, has_files.exists())
        .where(_meta.rollout_id.not_in(known))
        .order_by(_meta.rollout_id)
    )
    return [(row[0], row[1]) for row in connection.execute(query)]


def successes(connection: sa.Connection, run_id: str, task_id: str, sources: Iterable[Provenance]) -> list[Success]:
    """Return the pool's trajectories of a task, by provenance."""
    mine = (_pool.run_id == run_id) & (_pool.task_id == task_id) & _pool.retired_at.is_(None)
    columns = _pool.rollout_id, _pool.trajectory_id, _pool.reward, _pool.added_at, _pool.uses, _meta.num_steps
    query = (
        sa.select(*columns)
        .join_from(experience_pool, rollout_meta, _meta.rollout_id == _pool.rollout_id)
        .where(mine, _pool.provenance.in_([source.value for source in sources]))
    )
    return [Success(*row) for row in connection.execute(query.order_by(_pool.rollout_id))]


def mark_used(connection: sa.Connection, rollout_id: int, now: float) -> None:
    """Count one more group that a trajectory of the pool joined."""
    used = {"uses": _pool.uses + 1, "last_used_at": now}
    connection.execute(experience_pool.update().where(_pool.rollout_id == rollout_id).values(used))


@dataclass(frozen=True, slots=True)
class PoolCount:
    """Contents of the pool for a task and provenance: trajectories, the groups they joined, those without log-probs."""

    task_id: str
    provenance: Provenance
    trajectories: int
    uses: int
    without_logprobs: int


def counts(connection: sa.Connection, run_id: str) -> list[PoolCount]:
    """Return what the pool holds, by task and provenance."""
    sums = (
        sa.func.count(),
        sa.func.coalesce(sa.func.sum(_pool.uses), 0),
        sa.func.coalesce(sa.func.sum(sa.case((_pool.has_logprobs, 0), else_=1)), 0),
    )
    query = (
        sa.select(_pool.task_id, _pool.provenance, *sums)
        .where(_pool.run_id == run_id, _pool.retired_at.is_(None))
        .group_by(_pool.task_id, _pool.provenance)
        .order_by(_pool.task_id, _pool.provenance)
    )
    return [PoolCount(row[0], Provenance(row[1]), *map(int, row[2:])) for row in connection.execute(query)]

"""Removal of data: garbage of crashes, finished trajectories, screenshots that no trajectory shows any more.

`collect` looks, decides (`retention_plan`) and acts. One at a time is enough; two do no harm.

Invariants:
    - What is leased, waits to be leased, or is in the pool is never removed; nor is a demonstration.
    - The row stays: its reward and versions are history. `rollout_run.split_dir` becomes NULL, and only then the files
      go, so that a crash between the two leaves files that the next collection knows to be garbage.
    - A complete trajectory without a row (its recorder died between files and row) is recorded, not thrown away.
    - An image goes only if no stored trajectory shows it and it is older than `IMAGE_GRACE_S`: see `data.files`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sqlalchemy as sa

from dart_train.core.data_states import RolloutState
from dart_train.core.train_errors import CorruptDataError, DataError
from dart_train.data.files.trajectory_files import IMAGE_GRACE_S
from dart_train.data.maintenance.retention_plan import RetentionConfig, StoredTrajectory, plan_removal
from dart_train.data.store.schema import experience_pool, group_injection, rollout_meta, rollout_run

if TYPE_CHECKING:
    from dart_train.data.manager.data_manager import DataManager

_log = logging.getLogger(__name__)
_meta, _run = rollout_meta.c, rollout_run.c
DONE_STATES = (RolloutState.TRAINED, RolloutState.EXPIRED, RolloutState.REJECTED)
ORPHAN_GRACE_S = 600.0  # a trajectory's row follows its files within this time, or its recorder is dead
GIGABYTE = 1e9


@dataclass(slots=True)
class Collection:
    """Counts of a collection, done or (with `dry_run`) planned.

    Attributes:
        adopted: complete trajectories without a row, recorded.
        unreadable: files without a row that are no whole trajectory, removed.
        half_removed: files of trajectories that an interrupted collection had given up, removed.
    """

    leftovers: int = 0
    adopted: int = 0
    unreadable: int = 0
    half_removed: int = 0
    removed: int = 0
    images: int = 0
    reencoded: int = 0
    freed_bytes: int = 0
    kept_bytes: int = 0
    problems: list[str] = field(default_factory=list)


def collect(
    data: DataManager,
    policy: RetentionConfig | None = None,
    *,
    dry_run: bool = False,
    orphan_grace_s: float = ORPHAN_GRACE_S,
    image_grace_s: float = IMAGE_GRACE_S,
) -> Collection:
    """Clear away what may go; without a policy only garbage. With `dry_run` only count. Raises `DataError`.

    Files without rows are recorded once they are `orphan_grace_s` old; until then their recorder may still be at work.
    """
    policy = policy or RetentionConfig()
    result = Collection()
    now = time.time()  # the files' clock
    if not dry_run:
        result.leftovers = data.files.remove_leftovers(orphan_grace_s)
    _settle_orphans(data, result, now - orphan_grace_s, dry_run)
    image_sizes = {name: entry.size for name, entry in data.files.stored_images()}
    stored, known = _stored(data, result)
    chosen = plan_removal(
        stored,
        image_sizes,
        now=now,
        max_age_s=None if policy.max_age_days is None else policy.max_age_days * 86400,
        max_bytes=None if policy.max_gigabytes is None else policy.max_gigabytes * GIGABYTE,
    )
    gone = {name for name in chosen if dry_run or _remove_trajectory(data, name)}
    result.removed = len(gone)
    result.freed_bytes += sum(item.size for item in stored if item.trajectory_id in gone)
    if len(stored) == known:
        shown = {name for item in stored if item.trajectory_id not in gone for name in item.image_ids}
        _remove_images(data, result, shown, now - image_grace_s, dry_run)
    else:
        result.problems.append(
            f"{known - len(stored)} trajectories cannot be read, so it is unknown which screenshots they show: "
            "no screenshot is removed before `dart-train data check --repair` has given those trajectories up"
        )
    if policy.webp_after_days is not None:
        _reencode(data, result, now - policy.webp_after_days * 86400, dry_run)
    kept = sum(item.size for item in stored if item.trajectory_id not in gone)
    result.kept_bytes = kept + sum(entry.size for _, entry in data.files.stored_images())
    return result


def _settle_orphans(data: DataManager, result: Collection, before: float, dry_run: bool) -> None:
    """Record complete trajectories without a row; remove what an interrupted collection had given up."""
    query = sa.select(_run.trajectory_id, _run.split_dir).where(_run.run_id == data.run_id)
    split_dirs = {name: split_dir for name, split_dir in data.store.read(lambda c: c.execute(query).all())}
    for name, entry in list(data.files.stored_trajectories()):
        if name in split_dirs:
            if split_dirs[name] is None:
                result.half_removed += 1
                result.freed_bytes += entry.size
                if not dry_run:
                    data.files.remove_trajectory(name)
            continue
        if entry.modified > before:
            continue
        try:
            trajectory = data.files.read_trajectory(name)
        except CorruptDataError as error:
            _log.warning("removing files without a row that cannot be read: %s", error)
            result.unreadable += 1
            result.freed_bytes += entry.size
            if not dry_run:
                data.files.remove_trajectory(name)
            continue
        try:
            if not dry_run:
                data.record(trajectory)
            result.adopted += 1
        except DataError as error:
            result.problems.append(f"{name} has files and no row, and cannot be recorded: {error}")


def _stored(data: DataManager, result: Collection) -> tuple[list[StoredTrajectory], int]:
    """Read what every stored trajectory shows; return the readable ones, and the number of all."""
    sizes = {name: entry.size for name, entry in data.files.stored_trajectories()}
    found: list[StoredTrajectory] = []
    known = 0
    for row in data.store.read(lambda c: c.execute(_candidates(data.run_id)).all()):
        if row.trajectory_id not in sizes:
            continue
        known += 1
        try:
            trajectory = data.files.read_trajectory(row.trajectory_id)
        except CorruptDataError as error:
            result.problems.append(str(error))
            continue
        images = trajectory.shown_images
        removable = bool(row.done) and not row.pooled
        found.append(StoredTrajectory(row.trajectory_id, row.created_at, sizes[row.trajectory_id], images, removable))
    return found, known


def _is_pooled() -> sa.ColumnElement[bool]:
    """Return whether a row may still join a group, or has joined one."""
    entry = sa.select(experience_pool.c.rollout_id).where(experience_pool.c.rollout_id == _meta.rollout_id)
    joined = sa.select(group_injection.c.rollout_id).where(group_injection.c.rollout_id == _meta.rollout_id)
    return entry.where(experience_pool.c.retired_at.is_(None)).exists() | joined.exists()


def _candidates(run_id: str) -> sa.Select:
    done = _meta.state.in_([state.value for state in DONE_STATES])
    return sa.select(_meta.trajectory_id, _meta.created_at, done.label("done"), _is_pooled().label("pooled")).where(
        _meta.run_id == run_id
    )


def _remove_trajectory(data: DataManager, trajectory_id: str) -> bool:
    """Give a trajectory's files up, unless it is in use by now."""

    def work(connection: sa.Connection) -> bool:
        mine = (_meta.run_id == data.run_id) & (_meta.trajectory_id == trajectory_id)
        row = connection.execute(
            sa.select(_meta.rollout_id, _meta.state, _is_pooled().label("pooled")).where(mine).with_for_update()
        ).first()
        if row is None or row.pooled or row.state not in {state.value for state in DONE_STATES}:
            return False
        connection.execute(rollout_run.update().where(_run.id == row.rollout_id).values(split_dir=None))
        return True

    if not data.store.write(work):
        return False
    data.files.remove_trajectory(trajectory_id)
    return True


def _remove_images(data: DataManager, result: Collection, shown: set[str], before: float, dry_run: bool) -> None:
    for name, entry in list(data.files.stored_images()):
        if name in shown or entry.modified > before:
            continue
        now = data.files.storage.entry(entry.key)  # a recorder may have touched it since it was listed
        if now is None or now.modified > before:
            continue
        if not dry_run:
            data.files.storage.remove(entry.key)
        result.images += 1
        result.freed_bytes += entry.size


def _reencode(data: DataManager, result: Collection, before: float, dry_run: bool) -> None:
    for name, entry in list(data.files.stored_images()):
        if not entry.key.endswith(".png") or entry.modified > before:
            continue
        if dry_run:
            result.reencoded += 1
            continue
        try:
            saved = data.files.reencode_image(name)
        except CorruptDataError as error:
            result.problems.append(str(error))
            continue
        result.reencoded += bool(saved)
        result.freed_bytes += saved

"""Looks whether a run's database and files are whole and agree, and mends what can be mended.

Invariants:
    - Checking writes one small fact and one small file, which is how a read-only or full disk shows; all else is read.
    - A check continues after a finding: one look tells everything.
    - A repair loses nothing that could still be used: what is damaged is given up, what has no row gets one.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from dart_agent.episodes.trajectory import Trajectory
from dart_agent.episodes.trajectory_format import pack_trajectory
from dart_train.core.data_states import GroupState, LeaseState, Reason, RolloutState
from dart_train.core.train_errors import (
    CorruptDataError,
    DatabaseBusyError,
    DatabaseGoneError,
    DataError,
    DiskFullError,
    ReadOnlyError,
    SchemaError,
    StorageGoneError,
)
from dart_train.data.files.trajectory_files import IMAGE_GRACE_S, image_key
from dart_train.data.groups import trajectory_rows
from dart_train.data.maintenance import retention
from dart_train.data.maintenance.retention import ORPHAN_GRACE_S
from dart_train.data.store.schema import (
    experience_pool,
    group_injection,
    lease,
    rollout_group,
    rollout_meta,
    rollout_run,
)

if TYPE_CHECKING:
    from dart_train.data.manager.data_manager import DataManager

_meta = rollout_meta.c
_run = rollout_run.c
_group = rollout_group.c
LEAST_FREE_BYTES = 1 << 30
_WAITING = (GroupState.OPEN.value, GroupState.READY.value)


class Problem(StrEnum):
    """Kinds of findings."""

    UNWRITABLE = "cannot be written"
    LOW_SPACE = "disk nearly full"
    DATABASE = "database damaged"
    ROW_WITHOUT_FILES = "row without files"
    FILES_WITHOUT_ROW = "files without row"
    CORRUPT_TRAJECTORY = "damaged trajectory"
    ROW_DIFFERS = "row and file differ"
    WRONG_SCHEMA = "schema of another version"
    UNREACHABLE = "cannot be reached"
    IMAGE_MISSING = "screenshot missing"
    CORRUPT_IMAGE = "damaged screenshot"
    UNUSED_IMAGE = "screenshot that nothing shows"
    GROUP_COUNT = "group with a wrong count"
    LOST_LEASE = "leased by nobody"
    CLOCK_SKEW = "clock of a machine was ahead"


HARMLESS = (Problem.UNUSED_IMAGE, Problem.CLOCK_SKEW)
"""Findings that are worth knowing, and are no damage."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: what, where (a trajectory, image, group or path), and in words."""

    problem: Problem
    where: str
    detail: str


@dataclass(slots=True)
class CheckReport:
    """Report of a check: the number of items read, the findings, and how many of them were repaired."""

    trajectories: int = 0
    images: int = 0
    findings: list[Finding] = field(default_factory=list)
    repaired: int = 0

    @property
    def whole(self) -> bool:
        """Return whether nothing is damaged."""
        return all(finding.problem in HARMLESS for finding in self.findings)

    def counts(self) -> dict[str, int]:
        """Return the number of findings by problem."""
        return dict(Counter(finding.problem.value for finding in self.findings))

    def add(self, problem: Problem, where: str, detail: object) -> None:
        """Write a finding down."""
        self.findings.append(Finding(problem, where, str(detail)))


_PROBLEM_OF: tuple[tuple[type[DataError], Problem], ...] = (
    (ReadOnlyError, Problem.UNWRITABLE),
    (DiskFullError, Problem.LOW_SPACE),
    (SchemaError, Problem.WRONG_SCHEMA),
    (DatabaseGoneError, Problem.UNREACHABLE),
    (DatabaseBusyError, Problem.UNREACHABLE),
    (StorageGoneError, Problem.UNREACHABLE),
)


def unopened(error: DataError, where: str) -> CheckReport:
    """Return the report of a run that cannot even be opened."""
    report = CheckReport()
    report.add(
        next((problem for kind, problem in _PROBLEM_OF if isinstance(error, kind)), Problem.DATABASE), where, error
    )
    return report


def check_run(
    data: DataManager,
    *,
    pixels: bool = True,
    repair: bool = False,
    orphan_grace_s: float = ORPHAN_GRACE_S,
    least_free_bytes: int = LEAST_FREE_BYTES,
) -> CheckReport:
    """Look at everything that a run has."""
    report = CheckReport()
    _check_places(data, report, least_free_bytes)
    _check_database(data, report)
    stored = {name: entry.modified for name, entry in data.files.stored_trajectories()}
    images = {name: entry for name, entry in data.files.stored_images()}
    rows = {row.trajectory_id: row for row in data.store.read(lambda c: c.execute(_rows(data.run_id)).all())}
    for name, modified in stored.items():
        if (name not in rows or rows[name].split_dir is None) and time.time() - modified > orphan_grace_s:
            report.add(
                Problem.FILES_WITHOUT_ROW,
                name,
                "its recorder died before the row; `dart-train data check --clean` helps",
            )
    bad_images: dict[str, str] = {}
    shown: set[str] = set()
    given_up: list[str] = []
    for name, row in rows.items():
        if row.split_dir is None:
            continue
        before = len(report.findings)
        trajectory = _check_trajectory(data, report, row, has_files=name in stored)
        if trajectory is not None:
            _check_images(data, report, trajectory, shown, bad_images, pixels=pixels)
        if len(report.findings) > before:
            given_up.append(name)
    report.images = len(shown)
    for name, entry in images.items():
        if name not in shown and time.time() - entry.modified > IMAGE_GRACE_S:
            report.add(
                Problem.UNUSED_IMAGE, entry.key, f"{entry.size} bytes; `dart-train data check --clean` removes it"
            )
    if repair:
        _repair(data, report, given_up, orphan_grace_s)
    return report


def _check_places(data: DataManager, report: CheckReport, least_free_bytes: int) -> None:
    try:
        data.set_fact("checked_at", time.time())
    except DataError as error:
        report.add(Problem.UNWRITABLE, data.store.where, error)
    try:
        data.files.storage.check_writable()
    except DataError as error:
        full = isinstance(error, DiskFullError)
        report.add(Problem.LOW_SPACE if full else Problem.UNWRITABLE, data.files.storage.where, error)
    folders = {data.files.storage.directory, Path(data.store.where).parent if data.store.is_sqlite else None}
    for folder in sorted(folder for folder in folders if folder is not None):
        free = shutil.disk_usage(folder).free
        if free < least_free_bytes:
            report.add(Problem.LOW_SPACE, str(folder), f"{free / 1e6:.0f} MB free: make room before recording stops")


def _check_database(data: DataManager, report: CheckReport) -> None:
    """Look at what the database's own constraints do not cover."""

    def work(connection: sa.Connection) -> None:
        if data.store.is_sqlite:
            for (line,) in connection.exec_driver_sql("PRAGMA integrity_check"):
                if line != "ok":
                    report.add(Problem.DATABASE, data.store.where, line)
        for key, members, found in connection.execute(_wrong_counts(data.run_id)):
            report.add(Problem.GROUP_COUNT, key, f"its row says {members} members, there are {found}")
        for key, lease_id in connection.execute(_lost_leases(data.run_id)):
            report.add(Problem.LOST_LEASE, key, f"lease {lease_id} is not held")
        skewed = (_meta.run_id == data.run_id) & _meta.clock_skew_s.is_not(None)
        worst = connection.execute(sa.select(sa.func.count(), sa.func.max(_meta.clock_skew_s)).where(skewed)).one()
        if worst[0]:
            report.add(
                Problem.CLOCK_SKEW,
                f"{worst[0]} rollouts",
                f"up to {worst[1]:.1f} s ahead of the database's: they are dated at their recording; set NTP up",
            )

    try:
        data.store.read(work)
    except DataError as error:
        report.add(Problem.DATABASE, data.store.where, error)


def _rows(run_id: str) -> sa.Select:
    columns = _meta.rollout_id, _meta.trajectory_id, _meta.task_id, _meta.reward, _meta.num_steps, _meta.digest
    joined = sa.select(*columns, _run.split_dir).join_from(rollout_meta, rollout_run, _run.id == _meta.rollout_id)
    return joined.where(_meta.run_id == run_id).order_by(_meta.rollout_id)


def _wrong_counts(run_id: str) -> sa.Select:
    """Groups that wait with another number of members than their row says; the pool's are members as well."""
    own = (
        sa.select(sa.func.count())
        .where(_meta.group_id == _group.id, _meta.state == RolloutState.RECORDED.value)
        .scalar_subquery()
    )
    joined = sa.select(sa.func.count()).where(group_injection.c.group_id == _group.id).scalar_subquery()
    found = own + joined
    waiting = (_group.run_id == run_id) & _group.state.in_(_WAITING)
    return sa.select(_group.group_key, _group.members, found).where(waiting, _group.members != found)


def _lost_leases(run_id: str) -> sa.Select:
    held = sa.select(lease.c.lease_id).where(lease.c.run_id == run_id, lease.c.state == LeaseState.HELD.value)
    leased = (_group.run_id == run_id) & (_group.state == GroupState.LEASED.value)
    return sa.select(_group.group_key, _group.lease_id).where(leased, _group.lease_id.not_in(held))


def _check_trajectory(data: DataManager, report: CheckReport, row: sa.Row, *, has_files: bool) -> Trajectory | None:
    name = row.trajectory_id
    if not has_files:
        report.add(Problem.ROW_WITHOUT_FILES, name, f"nothing is at {data.files.storage.name(row.split_dir)}")
        return None
    report.trajectories += 1
    try:
        trajectory = data.files.read_trajectory(name)
    except CorruptDataError as error:
        report.add(Problem.CORRUPT_TRAJECTORY, name, error)
        return None
    for label, stored, said in (
        ("id", trajectory.trajectory_id, name),
        ("task", trajectory.task_id, row.task_id),
        ("reward", trajectory.score, row.reward),
        ("number of steps", len(trajectory.steps), row.num_steps),
    ):
        if stored != said:
            report.add(Problem.ROW_DIFFERS, name, f"the file's {label} is {stored!r}, the row's {said!r}")
            return trajectory
    if row.digest and trajectory_rows.digest(pack_trajectory(trajectory)) != row.digest:
        report.add(Problem.ROW_DIFFERS, name, "the file belongs to another rollout with the same id")
    return trajectory


def _check_images(
    data: DataManager,
    report: CheckReport,
    trajectory: Trajectory,
    shown: set[str],
    bad: dict[str, str],
    *,
    pixels: bool,
) -> None:
    names = sorted(trajectory.shown_images)
    for name in names:
        if name not in shown:
            shown.add(name)
            try:
                if pixels:
                    data.files.read_image(name)
                else:
                    data.files.check_images([name])
            except CorruptDataError as error:
                bad[name] = str(error)
        if name in bad:
            gone = data.files.find_image(name) is None
            problem = Problem.IMAGE_MISSING if gone else Problem.CORRUPT_IMAGE
            report.add(problem, name, f"shown by {trajectory.trajectory_id}: {bad[name]}")


def _repair(data: DataManager, report: CheckReport, given_up: list[str], orphan_grace_s: float) -> None:
    """Give up damaged trajectories with the groups that wait for a lease with them, and record those without rows."""
    for name in given_up:
        report.repaired += data.write(_give_up, name)
        data.files.remove_trajectory(name)
    for problem in _broken_images(report):
        data.files.storage.remove(problem)
    done = retention.collect(data, orphan_grace_s=orphan_grace_s)
    report.repaired += done.adopted + done.half_removed + done.unreadable


def _broken_images(report: CheckReport) -> Iterator[str]:
    """Keys of damaged screenshots: once they are gone, the next trajectory that shows one stores it again."""
    for name in {finding.where for finding in report.findings if finding.problem is Problem.CORRUPT_IMAGE}:
        yield image_key(name)
        yield image_key(name, "webp")


def _give_up(connection: sa.Connection, run_id: str, trajectory_id: str) -> int:
    mine = (_meta.run_id == run_id) & (_meta.trajectory_id == trajectory_id)
    row = connection.execute(sa.select(_meta.rollout_id, _meta.group_id).where(mine).with_for_update()).one()
    connection.execute(rollout_run.update().where(_run.id == row.rollout_id).values(split_dir=None))
    pooled = experience_pool.c.rollout_id == row.rollout_id
    connection.execute(experience_pool.update().where(pooled).values(retired_at=time.time()))
    rejected = {"state": RolloutState.REJECTED.value, "reason": Reason.CORRUPT.value}
    waiting = (_group.id == row.group_id) & _group.state.in_(_WAITING)
    if connection.execute(rollout_group.update().where(waiting).values(rejected)).rowcount:
        recorded = (_meta.group_id == row.group_id) & (_meta.state == RolloutState.RECORDED.value)
        connection.execute(rollout_meta.update().where(recorded).values(rejected))
    return 1

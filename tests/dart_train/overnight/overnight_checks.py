"""What the data base, the files and the machine must look like after the run, however often it was hit.

Every function returns what is wrong in words; nothing, where all is well.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from pathlib import Path

import psutil
import sqlalchemy as sa

from dart_train.core.data_states import GroupState, LeaseState, RolloutState
from dart_train.data.maintenance.integrity_check import HARMLESS, Problem, check_run
from dart_train.data.maintenance.retention import collect
from dart_train.data.manager.data_manager import DataManager
from dart_train.data.store.schema import checkpoint_meta, lease, lease_item, rollout_group, rollout_meta, rollout_step
from dart_train.trainer.weights.checkpoint import resume_point
from tests.dart_train.overnight.overnight_run import OvernightRun

CLOCK_S = 0.5
_meta, _lease, _group, _step, _version = rollout_meta.c, lease.c, rollout_group.c, rollout_step.c, checkpoint_meta.c


def all_rows(data: DataManager, query: sa.Select) -> list[sa.Row]:
    """Read everything that a query finds."""
    return list(data.store.read(lambda connection: connection.execute(query).all()))


def wrong_in_store(data: DataManager, kills: int) -> tuple[list[str], dict[str, int]]:
    """Check the run as `dart-train data check` does, collect, check again; return what is wrong, and counts.

    Args:
        data: the run.
        kills: how often a recorder died: each may have left one trajectory's files without their row, which the
            collection then records.
    """
    before = check_run(data, orphan_grace_s=0.0)
    orphans = [each for each in before.findings if each.problem is Problem.FILES_WITHOUT_ROW]
    wrong = [str(each) for each in before.findings if each not in orphans and each.problem not in HARMLESS]
    if len(orphans) > kills:
        wrong.append(f"{len(orphans)} trajectories without a row after {kills} deaths of their recorder")
    done = collect(data, orphan_grace_s=0.0)
    wrong += [f"not collected: {problem}" for problem in done.problems]
    after = check_run(data, orphan_grace_s=0.0)
    wrong += [f"after the collection: {each}" for each in after.findings if each.problem not in HARMLESS]
    counts = {
        "trajectories": after.trajectories,
        "screenshots": after.images,
        "adopted": done.adopted,
        "temporary_files": done.leftovers,
    }
    return wrong, {**counts, **{f"found: {name}": count for name, count in before.counts().items()}}


def wrong_in_training(data: DataManager, output_dir: Path) -> tuple[list[str], dict[str, int]]:
    """Each trained group is in the weights once: by one committed lease, of which there is one for each step.

    Args:
        data: the run.
        output_dir: states of the trainer; the newest says how many steps its weights have, and up to which lease.
    """
    wrong: list[str] = []
    leases = {row.lease_id: row for row in all_rows(data, sa.select(lease).where(_lease.run_id == data.run_id))}
    committed = {key for key, row in leases.items() if row.state == LeaseState.COMMITTED}
    twice = sum(row.surplus for row in leases.values())
    if twice:
        wrong.append(f"{twice} groups are in the weights twice")
    point = resume_point(output_dir)
    if point is None:
        return [*wrong, f"no whole state in {output_dir}"], {}
    if point.step != len(committed):
        wrong.append(f"the weights have {point.step} steps, and {len(committed)} leases are committed")
    late = [row.serial for key, row in leases.items() if key in committed and row.serial > (point.lease or 0)]
    if late:
        wrong.append(f"leases {late} are committed, the weights contain them up to {point.lease} only")
    held = [row.serial for row in leases.values() if row.state == LeaseState.HELD]
    if held:
        wrong.append(f"leases {held} are still held")
    items: dict[int, int] = {}
    for row in all_rows(data, sa.select(lease_item)):
        if row.lease_id in committed:
            items[row.group_id] = items.get(row.group_id, 0) + 1
    trained = select_groups(data, GroupState.TRAINED)
    doubled = [group for group, count in items.items() if count > 1]
    if doubled:
        wrong.append(f"groups {doubled} are in several committed leases")
    if set(items) != trained:
        wrong.append(f"{len(set(items) ^ trained)} groups are trained without a committed lease, or the reverse")
    if select_groups(data, GroupState.LEASED):
        wrong.append("groups are still leased")
    counts = {state.value: sum(row.state == state for row in leases.values()) for state in LeaseState}
    return wrong, {"steps": point.step, "trained_groups": len(trained), **{f"leases {k}": v for k, v in counts.items()}}


def select_groups(data: DataManager, state: GroupState) -> set[int]:
    """Ids of the run's groups in a state."""
    query = sa.select(_group.id).where(_group.run_id == data.run_id, _group.state == state.value)
    return {row.id for row in all_rows(data, query)}


def wrong_versions(data: DataManager, max_staleness: int) -> tuple[list[str], dict[str, int]]:
    """No trajectory is of a version that was not published when it ended, and none was trained on too late."""
    versions = all_rows(data, sa.select(checkpoint_meta).where(_version.run_id == data.run_id))
    published = {row.version: row.completed_at for row in versions if row.completed_at is not None}
    query = sa.select(rollout_meta).where(_meta.run_id == data.run_id, _meta.state != RolloutState.POOLED.value)
    rows = [row for row in all_rows(data, query) if row.source == "rollout"]
    wrong: list[str] = []
    for row in rows:
        if not {row.oldest_version, row.newest_version} <= set(published):
            wrong.append(f"{row.trajectory_id}: version {row.oldest_version} to {row.newest_version} never was")
        elif published[row.newest_version] > row.created_at + CLOCK_S:
            wrong.append(f"{row.trajectory_id}: ended before its version {row.newest_version} was published")
        if row.trained_version is not None and row.trained_version - row.staleness_version > max_staleness:
            wrong.append(f"{row.trajectory_id}: of version {row.oldest_version}, trained on at {row.trained_version}")
    spans = {row.rollout_id: (row.oldest_version, row.newest_version) for row in rows}
    steps = [row for row in all_rows(data, sa.select(rollout_step)) if row.rollout_id in spans]
    for step in steps:
        oldest, newest = spans[step.rollout_id]
        if not oldest <= step.oldest_version <= step.newest_version <= newest:
            wrong.append(f"step {step.step} of rollout {step.rollout_id} is outside its trajectory's versions")
    names = [row.trajectory_id for row in rows]
    if len(names) != len(set(names)):
        wrong.append(f"{len(names) - len(set(names))} trajectories are recorded twice")
    return wrong, {"rollouts": len(rows), "steps": len(steps), "versions": len(published)}


def left_behind(run: OvernightRun, seen: Iterable[tuple[int, float]], patience_s: float = 30.0) -> list[str]:
    """What is left of the run on the machine: processes, mounts, displays, sockets, temporary files, its lock.

    Args:
        run: ended.
        seen: its processes, as (pid, time of start).
        patience_s: that the last processes get to end.
    """
    deadline = time.monotonic() + patience_s
    while (left := _living(seen) + [str(process.cmdline()) for process in run.processes()]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.1)
    wrong = [f"process {name}" for name in left]
    wrong += [f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if str(run.place) in line]
    for path in run.scratch.iterdir():
        if path.name.startswith("dart-gym-"):  # the directory of this user's desktops stays, empty
            wrong += [f"desktop {desktop}" for desktop in path.iterdir()]
        elif not path.name.startswith("torchinductor_"):  # PyTorch's own cache, the same for all its programs
            wrong.append(f"temporary {path}")
    root = run.directory.root
    wrong += [f"socket {path}" for path in root.rglob("*.sock")]
    wrong += [f"lock {path}" for path in (root / "run.lock",) if path.exists()]
    return wrong


def _living(seen: Iterable[tuple[int, float]]) -> list[str]:
    names = []
    for pid, created in seen:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE:
                names.append(json.dumps(process.cmdline()))
    return names


def recorded_at(data: DataManager) -> list[float]:
    """Unix times at which rollouts were recorded, in order."""
    query = sa.select(_meta.recorded_at).where(_meta.run_id == data.run_id, _meta.source == "rollout")
    return sorted(row.recorded_at for row in all_rows(data, query) if row.recorded_at is not None)

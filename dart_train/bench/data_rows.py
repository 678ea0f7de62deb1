"""Rows for the measurements of the data manager: a run of any length, of complete groups that all wait."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from dart_train.data.schema import metadata, rollout_group, rollout_meta, rollout_run
from dart_train.data.store import Store

RUN = "bench"
GROUP = 8
TASKS = 128
VERSIONS = 10
_PART = 50_000  # rows per transaction
_BATCH = 2_000  # rows per statement


def fill(url: str, rows: int) -> None:
    """Make a run of so many trajectories in place of what there was."""
    store = Store(url, busy_timeout_s=600)
    store.write(lambda c: [c.execute(table.delete()) for table in metadata.tables.values()])
    for first in range(0, rows, _PART):
        store.write(lambda c: _fill_part(c, first, min(first + _PART, rows)))  # noqa: B023 - called at once
    if not store.is_sqlite:
        store.write(lambda c: c.exec_driver_sql("ANALYZE TABLE rollout_group, rollout_meta, rollout_run").close())
    store.close()


def _fill_part(connection: sa.Connection, first: int, end: int) -> None:
    now = time.time()
    for start in range(first, end, _BATCH):
        ids = range(start, min(start + _BATCH, end))
        connection.execute(rollout_run.insert(), [_run_row(index) for index in ids])
        connection.execute(rollout_meta.insert(), [_meta_row(index, now) for index in ids])
        groups = [_group_row(index // GROUP, now) for index in ids if index % GROUP == 0]
        connection.execute(rollout_group.insert(), groups)


def _version(index: int) -> int:
    return VERSIONS - (index // GROUP) % 2


def _run_row(index: int) -> dict[str, Any]:
    return {
        "id": index + 1, "run_id": RUN, "trajectory_id": f"t{index}", "task_id": f"task-{(index // GROUP) % TASKS}",
        "trace_id": f"t{index}", "split_dir": f"trajectories/t{index}", "reward": float(index % 2), "num_chunks": 15,
        "used": 0, "model_version": f"v{_version(index)}", "instruction": "Click the button that says OK",
    }  # fmt: skip


def _meta_row(index: int, now: float) -> dict[str, Any]:
    group = index // GROUP
    return {
        "rollout_id": index + 1, "run_id": RUN, "trajectory_id": f"t{index}", "task_id": f"task-{group % TASKS}",
        "group_id": group + 1, "group_key": f"g{group}", "expected": GROUP, "task_hash": "0" * 16, "seed": 1,
        "state": "recorded", "reason": "", "source": "rollout", "terminal": "DONE", "reward": float(index % 2),
        "num_steps": 15, "num_actions": 15, "oldest_version": _version(index), "newest_version": _version(index),
        "env_seconds": 30.0, "timings": {"step": 30.0}, "created_at": now, "digest": "0" * 32, "recorded_at": now,
    }  # fmt: skip


def _group_row(group: int, now: float) -> dict[str, Any]:
    return {
        "id": group + 1, "run_id": RUN, "group_key": f"g{group}", "task_id": f"task-{group % TASKS}",
        "expected": GROUP, "members": GROUP, "reward_min": 0.0, "reward_max": 1.0,
        "oldest_version": _version(group * GROUP), "state": "ready", "reason": "", "created_at": now,
    }  # fmt: skip

"""Rows for the measurements of the data manager: a run of any length, of complete groups that all wait.

The database makes them itself, from numbers, thousands per statement: to send them would take many times as long.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from dart_train.data.store.schema import rollout_group, rollout_meta, rollout_run
from dart_train.data.store.sql_store import Store

RUN = "bench"
GROUP = 8
TASKS = 128
VERSIONS = 10
STEPS = 15
FIRST_ID = 100_000_000  # behind whatever was recorded before
_PART = 1000  # groups per transaction


def fill(url: str, first: int, end: int) -> None:
    """Add the trajectories with the numbers `first` to `end` to the run; both are multiples of `GROUP`."""
    store, now = Store(url, busy_timeout_s=600), time.time()
    for part in range(first // GROUP, end // GROUP, _PART):
        store.write(lambda c: _add(c, part, min(part + _PART, end // GROUP), now))  # noqa: B023 - called at once
    if not store.is_sqlite:
        store.write(lambda c: c.exec_driver_sql("ANALYZE TABLE rollout_group, rollout_meta, rollout_run").close())
    store.close()


def _add(connection: sa.Connection, first: int, end: int, now: float) -> None:
    """Add groups with their members."""
    low = _numbers(50, "low")
    high = _numbers(_PART // 50, "high")
    member = _numbers(GROUP, "member")
    group = first + low.c.n + 50 * high.c.n
    groups = low.join(high, 50 * high.c.n < end - first - low.c.n)
    members = groups.join(member, member.c.n < GROUP + low.c.n)  # all of them
    index = group * GROUP + member.c.n
    _insert(connection, rollout_group, _group_row(group, now), groups)
    _insert(connection, rollout_run, _run_row(group, index, member.c.n), members)
    _insert(connection, rollout_meta, _meta_row(group, index, member.c.n, now), members)


def _insert(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any], source: sa.FromClause) -> None:
    values = [value if isinstance(value, sa.ColumnElement) else sa.literal(value) for value in row.values()]
    query = sa.select(*values).select_from(source).order_by(sa.literal_column("1"))
    connection.execute(table.insert().from_select(list(row), query))


def _numbers(count: int, name: str) -> sa.Subquery:
    rows: list[sa.Select[Any]] = [sa.select(sa.literal_column(str(number)).label("n")) for number in range(count)]
    return sa.union_all(*rows).subquery(name)


def _text(prefix: str, number: sa.ColumnElement[int]) -> sa.ColumnElement[str]:
    return sa.literal(prefix) + sa.cast(number, sa.String())


def _version(group: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return VERSIONS - group % 2


def _run_row(
    group: sa.ColumnElement[int], index: sa.ColumnElement[int], member: sa.ColumnElement[int]
) -> dict[str, Any]:
    return {
        "id": FIRST_ID + index,
        "run_id": RUN,
        "trajectory_id": _text("t", index),
        "task_id": _text("task-", group % TASKS),
        "trace_id": _text("t", index),
        "split_dir": _text("trajectories/t", index),
        "reward": member % 2,
        "num_chunks": STEPS,
        "used": 0,
        "model_version": _text("v", _version(group)),
        "instruction": "Click the button that says OK",
    }


def _meta_row(
    group: sa.ColumnElement[int], index: sa.ColumnElement[int], member: sa.ColumnElement[int], now: float
) -> dict[str, Any]:
    return {
        "rollout_id": FIRST_ID + index,
        "run_id": RUN,
        "trajectory_id": _text("t", index),
        "task_id": _text("task-", group % TASKS),
        "group_id": FIRST_ID + group,
        "group_key": _text("g", group),
        "expected": GROUP,
        "task_hash": "0" * 16,
        "seed": 1,
        "state": "recorded",
        "reason": "",
        "source": "rollout",
        "terminal": "DONE",
        "reward": member % 2,
        "num_steps": STEPS,
        "num_actions": STEPS,
        "oldest_version": _version(group),
        "newest_version": _version(group),
        "staleness_version": _version(group),
        "env_seconds": 30.0,
        "timings": '{"step": 30.0}',
        "created_at": now,
        "digest": "0" * 32,
        "recorded_at": now,
    }


def _group_row(group: sa.ColumnElement[int], now: float) -> dict[str, Any]:
    return {
        "id": FIRST_ID + group,
        "run_id": RUN,
        "group_key": _text("g", group),
        "task_id": _text("task-", group % TASKS),
        "expected": GROUP,
        "members": GROUP,
        "reward_min": 0.0,
        "reward_max": 1.0,
        "oldest_version": _version(group),
        "state": "ready",
        "reason": "",
        "created_at": now,
    }

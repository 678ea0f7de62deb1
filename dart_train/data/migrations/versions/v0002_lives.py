"""Steps, the groups of each lease, who serves which version, the experience pool, decisions, digests."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from dart_train.data.migrations.steps import add_column, add_index

revision = "0002"
down_revision = "0001"

_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_NAME = sa.String(191)


def upgrade() -> None:
    """Add columns to the first tables, and the new tables."""
    add_column("rollout_meta", sa.Column("digest", sa.String(32), nullable=False, server_default=""))
    add_column("rollout_meta", sa.Column("recorded_at", sa.Double()))
    add_column("rollout_meta", sa.Column("clock_skew_s", sa.Double()))
    add_index("uk_rollout_meta_trajectory", "rollout_meta", ["run_id", "trajectory_id"], unique=True)
    add_index("idx_rollout_group_age", "rollout_group", ["run_id", "state", "oldest_version", "members"])
    add_index("idx_rollout_group_task", "rollout_group", ["run_id", "task_id", "state"])
    add_column("lease", sa.Column("serial", sa.Integer(), nullable=False, server_default="0"))
    add_column("lease", sa.Column("result_version", sa.Integer()))
    add_column("lease", sa.Column("surplus", sa.Integer(), nullable=False, server_default="0"))
    add_index("idx_lease_holder", "lease", ["run_id", "holder", "serial"])
    add_column("checkpoint_meta", sa.Column("retired_at", sa.Double()))
    _make_tables()
    _fill_lease_items()


def _make_tables() -> None:
    _table(
        "rollout_step",
        sa.Column("rollout_id", _ID, primary_key=True, autoincrement=False),
        sa.Column("step", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("oldest_version", sa.Integer(), nullable=False),
        sa.Column("newest_version", sa.Integer(), nullable=False),
        sa.Column("num_tokens", sa.Integer(), nullable=False),
        sa.Column("num_actions", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Boolean(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("engine", sa.String(64), nullable=False),
    )
    _table(
        "lease_item",
        sa.Column("lease_id", sa.String(32), primary_key=True),
        sa.Column("group_id", _ID, primary_key=True, autoincrement=False),
    )
    _table(
        "serving",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("run_id", _NAME, nullable=False),
        sa.Column("replica", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
    )
    add_index("idx_serving_run", "serving", ["run_id", "ended_at"])
    _table(
        "experience_pool",
        sa.Column("rollout_id", _ID, primary_key=True, autoincrement=False),
        sa.Column("run_id", _NAME, nullable=False),
        sa.Column("trajectory_id", _NAME, nullable=False),
        sa.Column("task_id", _NAME, nullable=False),
        sa.Column("provenance", sa.String(16), nullable=False),
        sa.Column("origin", sa.String(512), nullable=False, server_default=""),
        sa.Column("has_logprobs", sa.Boolean(), nullable=False),
        sa.Column("reward", sa.Double(), nullable=False),
        sa.Column("uses", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("added_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double()),
        sa.Column("retired_at", sa.Double()),
    )
    add_index("idx_experience_pool_task", "experience_pool", ["run_id", "task_id", "retired_at"])
    _table(
        "group_injection",
        sa.Column("group_id", _ID, primary_key=True, autoincrement=False),
        sa.Column("rollout_id", _ID, primary_key=True, autoincrement=False),
        sa.Column("replaced_id", _ID),
        sa.Column("injected_at", sa.Double(), nullable=False),
    )
    _table(
        "curation_decision",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("run_id", _NAME, nullable=False),
        sa.Column("rule", sa.String(32), nullable=False),
        sa.Column("verdict", sa.String(32), nullable=False),
        sa.Column("task_id", _NAME, nullable=False, server_default=""),
        sa.Column("group_id", _ID),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("decided_at", sa.Double(), nullable=False),
    )
    add_index("idx_curation_decision_rule", "curation_decision", ["run_id", "rule", "id"])


def _table(name: str, *columns: sa.Column) -> None:
    if not sa.inspect(op.get_bind()).has_table(name):
        op.create_table(name, *columns, **_OPTIONS)


def _fill_lease_items() -> None:
    """Write down the groups of the leases that there are: a trainer may hold one while the schema is brought up."""
    op.execute(
        "INSERT INTO lease_item (lease_id, group_id) SELECT lease_id, id FROM rollout_group AS taken "
        "WHERE lease_id IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM lease_item WHERE lease_item.lease_id = taken.lease_id AND lease_item.group_id = taken.id)"
    )

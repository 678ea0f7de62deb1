"""The first version: runs, groups, leases, checkpoints, records of tasks. Its statements stand beside this file."""

from __future__ import annotations

from pathlib import Path

from alembic import op

from dart_train.data.migrations.steps import run_statements

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the first tables."""
    dialect = "sqlite" if op.get_bind().dialect.name == "sqlite" else "mysql"
    run_statements(Path(__file__).with_name(f"v0001_{dialect}.sql"))

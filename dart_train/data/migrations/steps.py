"""Steps of migrations that may be run again after an interruption: each looks first whether it was done."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op


def add_column(table: str, column: sa.Column) -> None:
    """Add a column that is not there yet."""
    if column.name not in {known["name"] for known in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


def add_index(name: str, table: str, columns: list[str], *, unique: bool = False) -> None:
    """Add an index that is not there yet."""
    if name not in _indexes(table):
        op.create_index(name, table, columns, unique=unique)


def run_statements(path: Path) -> None:
    """Run a file of `CREATE TABLE` and `CREATE INDEX` statements, leaving out what is there."""
    for statement in path.read_text().split(";\n"):
        words = statement.split()
        if not words:
            continue
        name, bind = words[2], op.get_bind()
        if words[1] == "TABLE":
            known = sa.inspect(bind).has_table(name)
        else:
            known = name in _indexes(words[4])
        if not known:
            bind.exec_driver_sql(statement.replace("%", "%%"))


def _indexes(table: str) -> set[str]:
    return {str(index["name"]) for index in sa.inspect(op.get_bind()).get_indexes(table)}

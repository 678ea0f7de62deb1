"""The schema as SQL text for people and database administrators: `python -m dart_train.data.ddl sql`."""

from __future__ import annotations

import sys
from pathlib import Path

from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable

from dart_train.data.schema import SCHEMA_VERSION, metadata

_DIALECTS: dict[str, type[Dialect]] = {"sqlite": sqlite.dialect, "mysql": mysql.dialect}


def ddl(dialect: str) -> str:
    """Return the whole schema as SQL statements for "sqlite" or "mysql"."""
    compiler = _DIALECTS[dialect]()
    parts = [f"-- Generated from dart_train/data/schema.py (schema version {SCHEMA_VERSION}): do not edit."]
    for table in metadata.sorted_tables:
        statements: list[CreateTable | CreateIndex] = [CreateTable(table)]
        statements += [CreateIndex(index) for index in sorted(table.indexes, key=lambda index: str(index.name))]
        parts += [str(statement.compile(dialect=compiler)).strip() + ";" for statement in statements]
    return "\n\n".join("\n".join(line.rstrip() for line in part.splitlines()) for part in parts) + "\n"


def write_sql(folder: str | Path) -> None:
    """Write `sqlite.sql` and `mysql.sql` into a folder."""
    for dialect in _DIALECTS:
        Path(folder, f"{dialect}.sql").write_text(ddl(dialect))


if __name__ == "__main__":
    write_sql(sys.argv[1] if len(sys.argv) > 1 else "sql")

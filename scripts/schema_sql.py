"""Writes sql/schema.sql (MySQL) and sql/sqlite.sql from the tables, for people and database administrators.

`python scripts/schema_sql.py` writes them; a test compares them with what this would write.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable

from dart_train.data.store.schema import REVISION, alembic_version, metadata, version_metadata

_DIALECTS: dict[str, type[Dialect]] = {"sqlite": sqlite.dialect, "mysql": mysql.dialect}
FOLDER = Path(__file__).parents[1] / "sql"
FILES = {"mysql": "schema.sql", "sqlite": "sqlite.sql"}


def ddl(dialect: str) -> str:
    """Return the whole schema as SQL statements for "sqlite" or "mysql"."""
    compiler = _DIALECTS[dialect]()
    parts = [f"-- Generated from dart_train/data/store/schema.py (revision {REVISION}): do not edit."]
    for table in (*metadata.sorted_tables, *version_metadata.sorted_tables):
        statements: list[CreateTable | CreateIndex] = [CreateTable(table)]
        statements += [CreateIndex(index) for index in sorted(table.indexes, key=lambda index: str(index.name))]
        parts += [str(statement.compile(dialect=compiler)).strip() + ";" for statement in statements]
    parts.append(f"INSERT INTO {alembic_version.name} (version_num) VALUES ('{REVISION}');")
    return "\n\n".join("\n".join(line.rstrip() for line in part.splitlines()) for part in parts) + "\n"


if __name__ == "__main__":
    for dialect, name in FILES.items():
        (FOLDER / name).write_text(ddl(dialect))

"""The first released schema. Its statements, generated from `schema.py` at the time, stand beside this file."""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0.2.0"
down_revision = None


def upgrade() -> None:
    """Make every table and index that is not there yet: an interrupted migration can be run again."""
    bind = op.get_bind()
    inspector = sa.inspect(bind)
    tables = inspector.get_table_names()
    known = {*tables, *(str(index["name"]) for table in tables for index in inspector.get_indexes(table))}
    dialect = "sqlite" if bind.dialect.name == "sqlite" else "mysql"
    lines = Path(__file__).with_name(f"v0_2_0_{dialect}.sql").read_text(encoding="utf-8").splitlines()
    for statement in "\n".join(line for line in lines if not line.startswith("--")).split(";\n"):
        words = statement.split()
        if words and words[0] == "CREATE" and words[2] not in known:  # the rest is Alembic's own table, which it writes
            bind.exec_driver_sql(statement.replace("%", "%%"))

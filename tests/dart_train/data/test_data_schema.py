from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from dart_train.data import schema
from dart_train.data.ddl import ddl
from dart_train.data.store import Store

SQL = Path(__file__).parents[3] / "sql"

# (name, MySQL type, nullable) of the published tables.
PUBLISHED = {
    "rollout_run": [
        ("id", "BIGINT", False),
        ("run_id", "VARCHAR(191)", True),
        ("trajectory_id", "VARCHAR(191)", False),
        ("task_id", "VARCHAR(191)", False),
        ("trace_id", "VARCHAR(191)", False),
        ("split_dir", "VARCHAR(512)", True),
        ("reward", "DOUBLE", True),
        ("num_chunks", "INTEGER", True),
        ("used", "INTEGER", False),
        ("model_version", "VARCHAR(512)", True),
        ("instruction", "VARCHAR(1024)", True),
        ("create_at", "TIMESTAMP", False),
    ],
    "checkpoint": [
        ("id", "BIGINT", False),
        ("name", "VARCHAR(50)", False),
        ("version", "VARCHAR(50)", False),
        ("run_id", "VARCHAR(191)", False),
        ("status", "VARCHAR(20)", False),
        ("path", "VARCHAR(255)", False),
        ("source", "VARCHAR(50)", True),
        ("operator", "VARCHAR(50)", True),
        ("remark", "VARCHAR(1024)", True),
        ("config_yaml", "TEXT", True),
        ("created_at", "TIMESTAMP", False),
        ("updated_at", "TIMESTAMP", False),
        ("deleted_at", "TIMESTAMP", True),
        ("started_at", "TIMESTAMP", True),
        ("finished_at", "TIMESTAMP", True),
    ],
}
PUBLISHED_UNIQUE = {"rollout_run": {("id",), ("trajectory_id", "run_id")}, "checkpoint": set()}
PUBLISHED_DEFAULTS = {
    "used INTEGER NOT NULL DEFAULT '0'",
    "create_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP",
    "name VARCHAR(50) NOT NULL COMMENT 'Checkpoint Name' DEFAULT ''",
    "run_id VARCHAR(191) NOT NULL DEFAULT ''",
    "DEFAULT 'PENDING'",
    "created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP",
    "updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP",
    "deleted_at TIMESTAMP NULL",
    "started_at TIMESTAMP NULL",
    "finished_at TIMESTAMP NULL",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tables_are_kept_column_for_column(name):
    table = schema.metadata.tables[name]
    dialect = mysql.dialect()
    found = [(column.name, column.type.compile(dialect=dialect), bool(column.nullable)) for column in table.columns]
    assert found == PUBLISHED[name]
    unique = {
        tuple(column.name for column in constraint.columns)
        for constraint in table.constraints
        if isinstance(constraint, sa.UniqueConstraint)
    }
    assert unique == PUBLISHED_UNIQUE[name]
    assert [column.name for column in table.primary_key] == ["id"]


def test_published_defaults_are_kept():
    text = ddl("mysql")
    assert [default for default in PUBLISHED_DEFAULTS if default not in text] == []


@pytest.mark.parametrize("dialect", ["sqlite", "mysql"])
def test_sql_files_are_up_to_date(dialect):
    hint = "run `python -m dart_train.data.ddl sql`"
    assert (SQL / f"{dialect}.sql").read_text() == ddl(dialect), hint


def test_sql_file_makes_what_the_store_makes(tmp_path):
    def tables(path: Path) -> dict[str, str]:
        with sqlite3.connect(path) as connection:
            return dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))

    by_hand = tmp_path / "hand.sqlite"
    with sqlite3.connect(by_hand) as connection:
        connection.executescript((SQL / "sqlite.sql").read_text())
    Store(f"sqlite:///{tmp_path}/store.sqlite").close()
    normal = {name: " ".join(sql.split()) for name, sql in tables(by_hand).items()}
    assert normal == {name: " ".join(sql.split()) for name, sql in tables(tmp_path / "store.sqlite").items()}


def test_mysql_statements_fit_innodb():
    text = ddl("mysql")
    assert text.count("ENGINE=InnoDB") == len(schema.metadata.tables)
    for table in schema.metadata.tables.values():
        for index in table.indexes:
            width = sum(4 * getattr(column.type, "length", 4) for column in index.columns if column.type)
            assert width <= 3072, index.name  # InnoDB's limit of a key, in utf8mb4

from __future__ import annotations

import sqlite3
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.dialects import mysql

from dart_train.core.package_version import VERSION
from dart_train.core.train_errors import SchemaError
from dart_train.data.store import migrate, schema
from dart_train.data.store.sql_store import Store
from scripts.schema_sql import FILES, FOLDER, ddl

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
    assert (FOLDER / FILES[dialect]).read_text() == ddl(dialect), "run `python scripts/schema_sql.py`"


def test_sql_file_makes_what_the_store_makes(tmp_path):
    def tables(path: Path) -> dict[str, str]:
        with sqlite3.connect(path) as connection:
            return dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))

    by_hand = tmp_path / "hand.sqlite"
    with sqlite3.connect(by_hand) as connection:
        connection.executescript((FOLDER / "sqlite.sql").read_text())
    Store(f"sqlite:///{tmp_path}/store.sqlite").close()
    normal = {name: " ".join(sql.split()) for name, sql in tables(by_hand).items()}
    assert normal == {name: " ".join(sql.split()) for name, sql in tables(tmp_path / "store.sqlite").items()}


def test_mysql_statements_fit_innodb():
    text = ddl("mysql")
    assert text.count("ENGINE=InnoDB") == len(schema.metadata.tables) + 1  # and Alembic's
    for table in schema.metadata.tables.values():
        for index in table.indexes:
            width = sum(4 * getattr(column.type, "length", 4) for column in index.columns if column.type)
            assert width <= 3072, index.name  # InnoDB's limit of a key, in utf8mb4


def test_mysql_statements_are_those_that_mysql_8_knows():
    """That server is not in Debian: a parser of its dialect reads the file, and finds every column."""
    import sqlglot  # a third of a second: for this test alone

    parsed = sqlglot.parse((FOLDER / "schema.sql").read_text(), dialect="mysql", error_level=sqlglot.ErrorLevel.RAISE)
    assert not [statement for statement in parsed if isinstance(statement, sqlglot.exp.Command)]  # not understood
    tables = {
        statement.find(sqlglot.exp.Table).name: {column.name for column in statement.find_all(sqlglot.exp.ColumnDef)}
        for statement in parsed
        if isinstance(statement, sqlglot.exp.Create) and statement.kind == "TABLE"
    }
    expected = {name: set(table.columns.keys()) for name, table in schema.metadata.tables.items()}
    assert tables == {**expected, "alembic_version": {"version_num"}}


def test_published_statements_and_ours_have_the_same_keys():
    indexes = {
        name: {index.name: tuple(index.columns.keys()) for index in schema.metadata.tables[name].indexes}
        for name in PUBLISHED
    }
    assert indexes == {
        "rollout_run": {"idx_rollout_run_task": ("task_id",)},
        "checkpoint": {
            "idx_status": ("status",),
            "idx_created_at": ("created_at",),
            "idx_updated_at": ("updated_at",),
        },
    }


# Migrations


@pytest.fixture
def empty(new_url) -> Iterator[sa.Engine]:
    """An engine of a database without tables."""
    engine = sa.create_engine(new_url)
    yield engine
    engine.dispose()


def _url(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def test_the_newest_migration_is_the_schemas():
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parents[1] / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [schema.REVISION]


def _described(engine: sa.Engine) -> dict[str, object]:
    """What a database says about its tables: columns in their order, keys, indexes."""
    inspector = sa.inspect(engine)
    return {
        name: {
            "columns": [
                (column["name"], str(column["type"]), column["nullable"], str(column["default"]))
                for column in inspector.get_columns(name)
            ],
            "key": inspector.get_pk_constraint(name)["constrained_columns"],
            "indexes": sorted(
                (str(index["name"]), tuple(index["column_names"]), bool(index["unique"]))
                for index in inspector.get_indexes(name)
            ),
        }
        for name in sorted(inspector.get_table_names())
    }


def test_migrations_from_nothing_make_the_schema(empty):
    """`dart-train data check --migrate` runs them; opening a database without tables makes the schema at once."""
    Store(_url(empty), upgrade=True).close()
    Store(_url(empty)).close()
    migrated = _described(empty)
    with empty.begin() as connection:
        assert migrate.writer(connection, schema.REVISION) == VERSION
        schema.metadata.drop_all(connection)
        schema.version_metadata.drop_all(connection)
    Store(_url(empty)).close()
    assert migrated == _described(empty)
    assert len(migrated) == len(schema.metadata.tables) + 1


@pytest.mark.parametrize("upgrade", [True, False])
def test_an_interrupted_start_can_be_made_again(empty, upgrade):
    """MySQL commits each such statement by itself: some tables are there, and one lacks an index."""
    with empty.begin() as connection:
        for name in ("rollout_run", "lease", "serving"):
            schema.metadata.tables[name].create(connection)
        schema.serving.indexes.copy().pop().drop(connection)
    Store(_url(empty), upgrade=upgrade).close()
    Store(_url(empty)).close()
    assert ("idx_serving_run", ("run_id", "ended_at"), False) in _described(empty)["serving"]["indexes"]


@pytest.mark.parametrize(("revision", "version"), [("0001", "0.1.0"), ("0002", "0.1.0"), ("0.3.0", "0.3.1")])
@pytest.mark.parametrize("upgrade", [True, False])
def test_a_database_of_another_version_is_refused_with_who_wrote_it(empty, revision, version, upgrade):
    with empty.begin() as connection:
        migrate.create(connection)
        connection.execute(schema.alembic_version.update().values(version_num=revision))
        if revision.count(".") == 2:
            written = schema.run_state.c.name == "package_version"
            connection.execute(schema.run_state.update().where(written).values(value=version))
    message = rf"written by version {version} of this package \(schema {revision}\).*go on with that version, or start"
    with pytest.raises(SchemaError, match=message):
        Store(_url(empty), upgrade=upgrade)


def test_a_database_from_before_there_were_migrations_is_refused(empty):
    with empty.begin() as connection:
        schema.run_state.create(connection)
        connection.execute(schema.run_state.insert().values(run_id="", name="schema_version", value=1))
    with pytest.raises(SchemaError, match=r"written by version 0\.1\.0 of this package"):
        Store(_url(empty))


def test_the_version_is_the_packages():
    pyproject = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert pyproject["project"]["version"] == VERSION

"""Which version of the schema a database has, which version of the package wrote it, and how it gets the present one.

Invariants:
    - An empty database gets the present schema at once; an older one only by `upgrade`, which a person asks for.
    - The version is written last, so that what was interrupted is done again.
"""

from pathlib import Path

import sqlalchemy as sa

from dart_train.core.package_version import VERSION
from dart_train.data.store import schema
from dart_train.data.store.schema import REVISION, alembic_version, run_state

UPGRADABLE: tuple[str, ...] = ()
"""Earlier revisions from which migrations lead to the present one; empty before the first release."""

_UNRELEASED = ("0001", "0002")  # of 0.1.0, which was not released: no migration leads on from them
_OLDEST_KEY = "schema_version"  # how the first of them marked its databases
_WRITER_KEY = "package_version"
_SCRIPTS = Path(__file__).parents[1] / "migrations"


def revision(connection: sa.Connection) -> str | None:
    """Return the revision of a database's schema; None if it has no table of ours."""
    inspector = sa.inspect(connection)
    if inspector.has_table(alembic_version.name):
        found = connection.execute(sa.select(alembic_version.c.version_num)).scalar()
        if found is not None:
            return found
    if not inspector.has_table(run_state.name):
        return None
    return None if _fact(connection, _OLDEST_KEY) is None else _UNRELEASED[0]


def writer(connection: sa.Connection, found: str) -> str:
    """Return which version of the package made a database, by the revision of its schema."""
    return "0.1.0" if found in _UNRELEASED else str(_fact(connection, _WRITER_KEY) or found)


def create(connection: sa.Connection) -> None:
    """Give an empty database the present schema."""
    schema.metadata.create_all(connection)
    for table in schema.metadata.tables.values():  # those that an interruption kept from a table that is there
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    schema.version_metadata.create_all(connection)
    _sign(connection)
    connection.execute(alembic_version.delete())
    connection.execute(alembic_version.insert().values(version_num=REVISION))


def upgrade(connection: sa.Connection) -> None:
    """Run the migrations that a database lacks, all of them if it is empty."""
    from alembic import command  # here: opening an up-to-date database does not need it
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    _sign(connection)


def _sign(connection: sa.Connection) -> None:
    connection.execute(run_state.delete().where(_here(_WRITER_KEY)))
    connection.execute(run_state.insert().values(run_id="", name=_WRITER_KEY, value=VERSION))


def _fact(connection: sa.Connection, name: str) -> str | None:
    return connection.execute(sa.select(run_state.c.value).where(_here(name))).scalar()


def _here(name: str) -> sa.ColumnElement[bool]:
    return (run_state.c.run_id == "") & (run_state.c.name == name)

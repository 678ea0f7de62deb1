"""Which version of the schema a database has, and how it gets the present one.

Invariants:
    - An empty database gets the present schema at once; an older one only by `upgrade`, which a person asks for.
    - The version is written last, so that what was interrupted is done again.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from dart_train.data.store import schema
from dart_train.data.store.schema import REVISION, alembic_version, run_state

FIRST = "0001"
_FIRST_KEY = "schema_version"  # how the first version marked its databases, before there were migrations
_SCRIPTS = Path(__file__).parents[1] / "migrations"


def revision(connection: sa.Connection) -> str | None:
    """Return the revision of a database's schema; None where it has none of our tables."""
    inspector = sa.inspect(connection)
    if inspector.has_table(alembic_version.name):
        found = connection.execute(sa.select(alembic_version.c.version_num)).scalar()
        if found is not None:
            return found
    if not inspector.has_table(run_state.name):
        return None
    here = (run_state.c.run_id == "") & (run_state.c.name == _FIRST_KEY)
    return None if connection.execute(sa.select(run_state.c.value).where(here)).scalar() is None else FIRST


def create(connection: sa.Connection) -> None:
    """Give an empty database the present schema."""
    schema.metadata.create_all(connection)
    schema.version_metadata.create_all(connection)
    connection.execute(alembic_version.delete())
    connection.execute(alembic_version.insert().values(version_num=REVISION))


def upgrade(connection: sa.Connection, to: str = REVISION) -> str | None:
    """Run the migrations that a database lacks; return the revision that it had.

    Args:
        connection: in a write transaction.
        to: the revision that it gets.
    """
    from alembic import command  # here: opening an up-to-date database does not need it
    from alembic.config import Config

    before = revision(connection)
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    if before == FIRST and not sa.inspect(connection).has_table(alembic_version.name):
        command.stamp(config, FIRST)
    command.upgrade(config, to)
    return before

"""Statements that are run for every trajectory: compiled once, then handed to the driver.

SQLAlchemy examines a statement, each of its parameters and its result again at every execution. With eight
processes on two cores that took two fifths of what recording costs a client. Here the driver's cursor is used inside
SQLAlchemy's transaction; connections, transactions and errors stay SQLAlchemy's, but its events are not called.

Invariants:
    - Values are the driver's parameters, never part of the text.
    - A driver's error leaves as the `DBAPIError` that SQLAlchemy would raise; a dead connection leaves the pool, and so
      do the others, which are likely to be dead too.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.sql.compiler import SQLCompiler


class Prepared:
    """One statement with named parameters; `columns` are those that it sets besides."""

    def __init__(self, statement: sa.ClauseElement, columns: Iterable[str] = ()) -> None:
        self._statement, self._columns = statement, list(columns)
        self._compiled: dict[str, tuple[str, list[str]]] = {}

    def run(self, connection: sa.Connection, values: Mapping[str, Any]) -> DBAPICursor:
        """Execute it with values of types that the drivers know: JSON as text, no enums."""
        text, order = self._text(connection.dialect)
        return execute(connection, text, tuple([values[name] for name in order]))

    def run_all(self, connection: sa.Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Execute it for each row, in one round trip where the driver can."""
        text, order = self._text(connection.dialect)
        execute(connection, text, [tuple([row[name] for name in order]) for row in rows])

    def _text(self, dialect: sa.Dialect) -> tuple[str, list[str]]:
        found = self._compiled.get(dialect.name)
        if found is None:
            columns = self._columns or None
            compiled = cast(SQLCompiler, self._statement.compile(dialect=dialect, column_keys=columns))
            assert compiled.positiontup is not None, "the engines of `Store` count parameters"
            found = self._compiled[dialect.name] = str(compiled), compiled.positiontup
        return found


def execute(connection: sa.Connection, text: str, parameters: tuple[Any, ...] | list[tuple[Any, ...]]) -> DBAPICursor:
    """Execute a statement, once or for each tuple of a list.

    Raises:
        DBAPIError: as SQLAlchemy raises it; the driver's error is its `orig`.
    """
    cursor = connection.connection.cursor()
    try:
        if isinstance(parameters, tuple):
            cursor.execute(text, parameters)
        else:
            cursor.executemany(text, parameters)
    except connection.dialect.loaded_dbapi.Error as error:
        dead = connection.dialect.is_disconnect(error, connection.connection, cursor)
        if dead:
            connection.invalidate(error)
            connection.engine.dispose()
        base = connection.dialect.loaded_dbapi.Error
        raise exc.DBAPIError.instance(
            text, None, error, base, connection_invalidated=dead, dialect=connection.dialect
        ) from error
    return cursor

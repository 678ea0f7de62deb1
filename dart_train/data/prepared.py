"""Statements that are run for every trajectory: compiled once, then handed to the driver as text.

SQLAlchemy looks at a statement and at the type of each of its parameters every time it is executed. With a hundred and
more parameters a trajectory that was the largest part of what recording cost a client. Errors, events and transactions
stay SQLAlchemy's.

Invariants:
    - Values are the driver's parameters, never part of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.sql.compiler import SQLCompiler


class Prepared:
    """One statement.

    Args:
        statement: with named parameters.
        columns: that an insert or update sets, besides the parameters named in the statement.
    """

    def __init__(self, statement: sa.ClauseElement, columns: Iterable[str] = ()) -> None:
        self._statement, self._columns = statement, list(columns)
        self._compiled: dict[str, tuple[str, list[str]]] = {}

    def run(self, connection: sa.Connection, values: Mapping[str, Any]) -> sa.CursorResult[Any]:
        """Execute it with values of types that the drivers know: JSON as text, no enums."""
        text, order = self._text(connection.dialect)
        return connection.exec_driver_sql(text, tuple([values[name] for name in order]))

    def run_all(self, connection: sa.Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Execute it once for each row, in one round trip where the driver can."""
        text, order = self._text(connection.dialect)
        connection.exec_driver_sql(text, [tuple([row[name] for name in order]) for row in rows])

    def _text(self, dialect: sa.Dialect) -> tuple[str, list[str]]:
        found = self._compiled.get(dialect.name)
        if found is None:
            columns = self._columns or None
            compiled = cast(SQLCompiler, self._statement.compile(dialect=dialect, column_keys=columns))
            assert compiled.positiontup is not None, "the engines of `Store` count parameters"
            found = self._compiled[dialect.name] = str(compiled), compiled.positiontup
        return found

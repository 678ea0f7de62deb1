"""The database behind the data manager: engine, transactions, and errors that say what to do.

Invariants:
    - A write transaction is exclusive from its first statement (`BEGIN IMMEDIATE` on SQLite, row locks on MySQL), so
      what it read is still true when it writes.
    - A function given to `Store.write` may run more than once (races on MySQL): it must only touch the database.
    - Every driver error leaves as a `DataError`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc

from dart_train.data import schema
from dart_train.errors import (
    CorruptDataError,
    DatabaseBusyError,
    DatabaseGoneError,
    DataError,
    DiskFullError,
    ReadOnlyError,
    SchemaError,
)

T = TypeVar("T")
BUSY_TIMEOUT_S = 30.0
RACE_ATTEMPTS = 5
MYSQL_RACES = (1213, 1062)  # deadlock; duplicate key: two processes recorded the first member of one group
RETRY_S = 0.01
_SCHEMA_KEY = "schema_version"
_ALL_RUNS = ""  # the run_id of facts about the database itself


class Store:
    """One database, shared by threads; any number of processes may open the same one.

    Args:
        url: `sqlite:////absolute/path.sqlite` or `mysql+pymysql://user:password@host/database`.
        busy_timeout_s: how long a transaction waits for the lock of another one.

    Raises:
        DataError: the database cannot be opened, or has another schema.
    """

    def __init__(self, url: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        try:
            parsed = sa.make_url(url)
        except exc.ArgumentError as error:
            raise DataError(
                f"{url!r} is no database URL ({error}): use sqlite:////path/db.sqlite or mysql+pymysql://..."
            ) from None
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self.where = str(parsed.database) if self.is_sqlite else parsed.render_as_string(hide_password=True)
        self._busy_timeout_s = busy_timeout_s
        if self.is_sqlite:
            self._make_folder(parsed.database)
            self.engine = sa.create_engine(parsed, connect_args={"timeout": busy_timeout_s}, pool_size=16)
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        else:
            self.engine = sa.create_engine(parsed, pool_pre_ping=True, isolation_level="READ COMMITTED")
        self._writer = self.engine.execution_options(dart_write=True)
        self._create_tables()
        self._inode = os.stat(self.where).st_ino if self.is_sqlite else 0

    @staticmethod
    def _make_folder(database: str | None) -> None:
        if not database or database == ":memory:":
            raise DataError("an in-memory database cannot be shared by processes: use sqlite:////path/db.sqlite")
        try:
            Path(database).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ReadOnlyError(
                f"cannot make the folder of {database} ({error}): choose another run directory"
            ) from error

    def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a function in a write transaction and return what it returns."""
        attempts = 0
        while True:
            attempts += 1
            try:
                with self._writer.begin() as connection:
                    return work(connection)
            except exc.DBAPIError as error:  # rolled back whole, so it may run again
                if _mysql_code(error) not in MYSQL_RACES or attempts == RACE_ATTEMPTS:
                    raise self._explain(error) from error

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a function in a read transaction (one snapshot) and return what it returns."""
        try:
            with self.engine.begin() as connection:
                return work(connection)
        except exc.DBAPIError as error:
            raise self._explain(error) from error

    def check_alive(self) -> None:
        """Raise `DatabaseGoneError` if the SQLite file was deleted or replaced: SQLite itself does not notice."""
        if not self.is_sqlite:
            return
        try:
            same = os.stat(self.where).st_ino == self._inode
        except FileNotFoundError:
            same = False
        if not same:
            raise DatabaseGoneError(
                f"{self.where} was deleted or replaced while in use: what is recorded now is lost; stop the run, "
                "restore the file (with its -wal file) or start a new run directory"
            )

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _create_tables(self) -> None:
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                return self.write(self._create_tables_in)
            except (
                DatabaseBusyError
            ):  # SQLite's switch to WAL does not wait for its lock: another process is creating too
                if time.monotonic() > deadline:
                    raise
                threading.Event().wait(RETRY_S)

    def _create_tables_in(self, connection: sa.Connection) -> None:
        if not sa.inspect(connection).has_table(schema.run_state.name):
            schema.metadata.create_all(connection)
        table = schema.run_state
        here = (table.c.run_id == _ALL_RUNS) & (table.c.name == _SCHEMA_KEY)
        found = connection.execute(sa.select(table.c.value).where(here)).scalar()
        if found is None:
            connection.execute(table.insert().values(run_id=_ALL_RUNS, name=_SCHEMA_KEY, value=schema.SCHEMA_VERSION))
        elif found != schema.SCHEMA_VERSION:
            raise SchemaError(
                f"{self.where} has schema version {found}, this program needs {schema.SCHEMA_VERSION}: "
                "open it with the version of the package that made it, or start a new run directory"
            )

    def _explain(self, error: exc.DBAPIError) -> DataError:
        """Turn a driver's error into the one that says what to do."""
        text, code = str(error.orig), _mysql_code(error)
        if "disk is full" in text or code in (1021, 1114):
            return DiskFullError(self.where)
        unwritable = self.is_sqlite and "unable to open" in text and not os.access(Path(self.where).parent, os.W_OK)
        if unwritable or "readonly database" in text or code in (1290, 1836):
            return ReadOnlyError(f"{self.where} cannot be written ({text}): check its owner, rights and mount")
        if "is locked" in text or code in (1205, 1213):
            return DatabaseBusyError(
                f"{self.where} was locked for more than {self._busy_timeout_s:g} s ({text}): "
                "look for a stuck process that has it open"
            )
        if "malformed" in text or "not a database" in text:
            return CorruptDataError(self.where, text)
        if "no such table" in text or "no such column" in text or "no column named" in text or code in (1146, 1054):
            return SchemaError(f"{self.where} lacks a table or column ({text}): it was not made by this version")
        if "unable to open" in text or "disk I/O error" in text or code in (1045, 1049, 2002, 2003, 2006, 2013):
            return DatabaseGoneError(f"{self.where} cannot be reached ({text}): check that it exists and is running")
        return DataError(f"{self.where}: {text}")


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # the driver must not begin transactions by itself
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    write = connection.get_execution_options().get("dart_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _mysql_code(error: exc.DBAPIError) -> int | None:
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None

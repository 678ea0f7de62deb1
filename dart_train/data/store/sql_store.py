"""The database behind the data manager: engines, transactions, its clock, and errors that say what to do.

Invariants:
    - A write transaction is exclusive from its first statement (`BEGIN IMMEDIATE` on SQLite, row locks on MySQL), so
      what it read is still true when it writes. A read transaction sees one snapshot.
    - A function given to `Store.write` may run more than once, even after it was committed (the connection may be lost
      while the server says so): it must only touch the database, and doing so twice must be the same as once.
    - Every driver error leaves as a `DataError`.
"""

import functools
import logging
import os
import select
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from dart_gym.core.errors import MissingDependencyError
from dart_gym.utils.backoff import Pauses
from dart_gym.utils.waits import waiting_for
from dart_train.core.package_version import VERSION
from dart_train.core.train_errors import (
    CorruptDataError,
    DatabaseBusyError,
    DatabaseGoneError,
    DatabaseRefusedError,
    DataError,
    DiskFullError,
    DuplicateTrajectoryError,
    ReadOnlyError,
    SchemaError,
)
from dart_train.data.store import migrate
from dart_train.data.store.schema import REVISION

_log = logging.getLogger(__name__)
T = TypeVar("T")
BUSY_TIMEOUT_S = 30.0
UNAVAILABLE_TIMEOUT_S = 15.0
SAY_AWAY_S = 5.0  # a shorter absence is not reported
RACE_ATTEMPTS = 5
MYSQL_RACES = (1213, 1062, 1020)  # deadlock; duplicate key and changed record: two processes began one group at once
# Refused or broken connections, too many of them, and what a server says that is shutting down.
MYSQL_AWAY = (0, 1040, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2006, 2013, 2055)
# Wrong name or password, no right to this database or table: trying again does not help.
MYSQL_REFUSED = (1044, 1045, 1142, 1143, 1227, 1698)
CONNECT_TIMEOUT_S = 10
GREETING_TIMEOUT_S = 30.0
# What asks a server that is silent: a connection to a machine that is gone fails after half a minute, not after hours.
PROBES = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3, socket.TCP_USER_TIMEOUT: 30_000}
RETRY_S = 0.01
PAGE_BYTES = 65536
WAL_PAGES = 8000  # SQLite moves what it wrote into the database's file after this many: an index's page once, not often
LONGEST_PAUSE_S = 0.5
_SCHEMA_LOCK = "dart_train_schema"
_CLOCK = "dart_clock"  # the test's clock, where there is one


class unix_now(FunctionElement[float]):  # noqa: N801 - a function of SQL
    """Unix time by the database's clock, where a statement begins."""

    type = sa.Double()
    inherit_cache = True


@compiles(unix_now, "sqlite")
def _unix_now_sqlite(element: unix_now, compiler: Any, **_: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(unix_now, "mysql")
@compiles(unix_now, "mariadb")
def _unix_now_mysql(element: unix_now, compiler: Any, **_: Any) -> str:
    return "UNIX_TIMESTAMP(NOW(6))"


_NOW = sa.select(unix_now())


def now(connection: sa.Connection, *, said: Any = None) -> float:
    """Return Unix time by the database's clock, which all machines of a run share, or by the test's.

    `said` is what the database said of the time in an earlier statement of the transaction.
    """
    clock = connection.get_execution_options().get(_CLOCK)
    if clock is not None:
        return clock()
    return float(connection.execute(_NOW).scalar_one() if said is None else said)


class Store:
    """One database, shared by threads; any number of processes may open the same one.

    Args:
        url: `sqlite:////absolute/path.sqlite` or `mysql+pymysql://user:password@host/database`.
        busy_timeout_s: seconds for which a transaction waits for the lock of another one.
        unavailable_timeout_s: seconds for which a transaction is tried again while a server cannot be reached.
        upgrade: make the tables by the migrations, or bring an older schema up to date instead of refusing it.
        make: make missing tables; otherwise an empty database is left as it is.
        clock: returns Unix time, for tests to turn; None for the database's own, which all machines of a run share.

    Raises:
        DataError: the database cannot be opened, or has another schema.
    """

    def __init__(
        self,
        url: str,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        unavailable_timeout_s: float = UNAVAILABLE_TIMEOUT_S,
        upgrade: bool = False,
        make: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock
        try:
            parsed = sa.make_url(url)
        except exc.ArgumentError as error:
            raise DataError(
                f"{url!r} is no database URL ({error}): use sqlite:////path/db.sqlite or mysql+pymysql://..."
            ) from None
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self.where = str(parsed.database) if self.is_sqlite else parsed.render_as_string(hide_password=True)
        self._busy_timeout_s, self.unavailable_timeout_s = busy_timeout_s, unavailable_timeout_s
        self._greeting_s = min(GREETING_TIMEOUT_S, max(unavailable_timeout_s, 1.0))
        self._inode: int | None = None  # of the SQLite file, once it is there
        if self.is_sqlite:
            self._make_folder(parsed.database)
            options: dict[str, Any] = {"timeout": busy_timeout_s}
            # `_run` ends each transaction itself, so that a connection needs no ROLLBACK before the next one.
            self.engine: sa.Engine = sa.create_engine(
                parsed, connect_args=options, pool_size=16, pool_reset_on_return=None, execution_options={_CLOCK: clock}
            )
            self.writer: sa.Engine = self.engine.execution_options(dart_write=True)
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        else:
            self.engine = self._mysql_engine(parsed, "REPEATABLE READ")
            self.writer = self._mysql_engine(parsed, "READ COMMITTED")
        self._ready_schema(upgrade=upgrade, make=make)
        self._inode = os.stat(self.where).st_ino if self.is_sqlite else None

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

    def _mysql_engine(self, url: sa.URL, isolation: Any) -> sa.Engine:
        try:
            url.get_dialect().import_dbapi()
        except (ImportError, exc.NoSuchModuleError) as error:
            raise MissingDependencyError(
                f"no driver for {url.drivername}:// ({error}); next step: write mysql+pymysql:// in the database's "
                "address, and pip install 'dart-gui[train]'"
            ) from error
        engine = sa.create_engine(
            url,
            # Two round trips less per transaction: `_run` ends each one itself, and begins it again where the server
            # has closed an idle connection, so that neither a ROLLBACK nor a ping is needed in between.
            pool_reset_on_return=None,
            pool_pre_ping=False,
            pool_size=4,
            max_overflow=28,
            pool_timeout=self._busy_timeout_s,
            isolation_level=isolation,
            paramstyle="format",  # counted, as SQLite's are: see `Prepared`
            execution_options={_CLOCK: self._clock},
        )

        def prepare(connection: Any, _: Any) -> None:
            wait = max(1, round(self._busy_timeout_s))
            with connection.cursor() as cursor:  # UTC, so that no hour of the year comes twice
                cursor.execute(
                    f"SET time_zone = '+00:00', innodb_lock_wait_timeout = {wait}, lock_wait_timeout = {wait}"
                )

        event.listen(engine, "do_connect", functools.partial(_connect_mysql, limit_s=self._greeting_s))
        event.listen(engine, "connect", prepare)
        return engine

    def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a function in a write transaction and return what it returns."""
        return self._run(self.writer, work)

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a function in a read transaction (one snapshot) and return what it returns."""
        return self._run(self.engine, work)

    def check_alive(self) -> None:
        """Raise `DatabaseGoneError` if the SQLite file was deleted or replaced: SQLite itself does not notice."""
        if self._inode is None:
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
        self.writer.dispose()

    def _run(self, engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
        with waiting_for(f"the database {self.where}"):
            return self._insist(engine, work)

    def _insist(self, engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
        self.check_alive()  # or it would be made anew, empty
        races = 0
        began = time.monotonic()
        said = False
        pauses = Pauses(began + self.unavailable_timeout_s, RETRY_S, LONGEST_PAUSE_S)
        while True:
            try:
                with engine.begin() as connection:
                    result = work(connection)
            except exc.TimeoutError as error:
                raise DatabaseBusyError(
                    f"{self.where}: all connections are in use ({error}): use fewer threads"
                ) from error
            except exc.DBAPIError as error:
                code = _mysql_code(error)
                if code in MYSQL_RACES and races + 1 < RACE_ATTEMPTS:  # rolled back whole
                    races += 1
                    continue
                away = not self.is_sqlite and (code in MYSQL_AWAY or error.connection_invalidated)
                pause = pauses.next() if away else None
                if pause is None:
                    raise self._explain(error) from error
                if time.monotonic() - began > SAY_AWAY_S and not said:
                    said = True
                    reason = " ".join(str(error.orig).split())
                    _log.warning(
                        "%s is away, will go on trying for %.0f s: %s", self.where, self.unavailable_timeout_s, reason
                    )
            else:
                if said:
                    _log.warning("%s is back after %.0f s", self.where, time.monotonic() - began)
                return result
            time.sleep(pause)

    # Schema

    def _ready_schema(self, *, upgrade: bool, make: bool) -> None:
        found = self._patiently(lambda: self.read(migrate.revision))
        if found is None and not make:
            return
        if upgrade and (found is None or found in migrate.UPGRADABLE):
            self.write(self._locked(migrate.upgrade))
        elif found is None:
            self._create()
        elif found != REVISION:
            step = (
                "bring it up to date with `dart-train data check --migrate`"
                if found in migrate.UPGRADABLE
                else "go on with that version, or start a new run directory (or an empty database) with this one"
            )
            raise SchemaError(
                f"{self.where} was written by version {self.read(lambda c: migrate.writer(c, found))} of this package "
                f"(schema {found}), and this is version {VERSION} (schema {REVISION}): {step}"
            )

    def _create(self) -> None:
        def work(connection: sa.Connection) -> None:
            if migrate.revision(connection) is None:  # no other process was faster
                migrate.create(connection)

        self._patiently(lambda: self.write(self._locked(work)))

    def _locked(self, work: Callable[[sa.Connection], T]) -> Callable[[sa.Connection], T]:
        """Let one process at a time change the schema: MySQL commits each such statement by itself."""
        if self.is_sqlite:
            return work

        def locked(connection: sa.Connection) -> T:
            name = {"name": _SCHEMA_LOCK, "wait": self._busy_timeout_s}
            if not connection.execute(sa.text("SELECT GET_LOCK(:name, :wait)"), name).scalar():
                raise DatabaseBusyError(f"another process is changing the schema of {self.where}: wait for it")
            try:
                return work(connection)
            finally:
                connection.execute(sa.text("SELECT RELEASE_LOCK(:name)"), {"name": _SCHEMA_LOCK})

        return locked

    def _patiently(self, work: Callable[[], T]) -> T:
        """SQLite's switch to WAL does not wait for its lock: another process may be creating the file too."""
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                return work()
            except DatabaseBusyError:
                if not self.is_sqlite or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)

    # Errors

    def _explain(self, error: exc.DBAPIError) -> DataError:
        """Turn a driver's error into the one that says what to do."""
        text, code = str(error.orig), _mysql_code(error)
        if "disk I/O error" in text and self.is_sqlite and _is_full(Path(self.where).parent):
            return DiskFullError(self.where)
        if "disk is full" in text or "No space left" in text or code in (1021, 1114):
            return DiskFullError(self.where)
        unwritable = self.is_sqlite and "unable to open" in text and not os.access(Path(self.where).parent, os.W_OK)
        if unwritable or "readonly database" in text or code in (1290, 1836, 1792):
            return ReadOnlyError(f"{self.where} cannot be written ({text}): check its owner, rights and mount")
        if "is locked" in text or code in (1205, 1213):
            return DatabaseBusyError(
                f"{self.where} was locked for more than {self._busy_timeout_s:g} s ({text}): "
                "look for a stuck process that has it open"
            )
        if "malformed" in text or "not a database" in text:
            return CorruptDataError(self.where, text)
        if "no such table" in text or "no such column" in text or "no column named" in text or code in (1146, 1054):
            return SchemaError(
                f"{self.where} lacks a table or column ({text}): it was not made by this version; run "
                "`dart-train data check --migrate` or start a new run directory"
            )
        if code == 1062 and "uk_rollout_run_traj_run" in text:
            return DuplicateTrajectoryError(
                f"{self.where}: {text}; the published table does not tell upper from lower case in ids: use ids "
                "that differ in more"
            )
        gone = "unable to open" in text or "disk I/O error" in text
        if code in MYSQL_REFUSED:
            return DatabaseRefusedError(
                f"{self.where} does not let this user in ({text}): check the name, the password and the rights in the "
                "database's address"
            )
        if gone or code in (1049, *MYSQL_AWAY) or error.connection_invalidated:
            return DatabaseGoneError(f"{self.where} cannot be reached ({text}): check that it exists and is running")
        if text.startswith("Packet sequence number wrong"):
            return DatabaseRefusedError(f"{self.where}: what answers there is no MySQL server: check host and port")
        return DataError(f"{self.where}: {text}; the database's own log may say more")


def _is_full(folder: Path) -> bool:
    return shutil.disk_usage(folder).free < PAGE_BYTES


def _connect_mysql(dialect: Any, _: Any, __: Any, options: dict[str, Any], *, limit_s: float) -> Any:
    """Connect by a socket that probes its server from the first moment.

    The driver waits for the server's greeting without a limit, and what listens there may be something else. Through a
    Unix socket it would encrypt as well, and read the system's certificates for each connection: tens of milliseconds.
    """
    if options.get("unix_socket") and not any(name.startswith("ssl") for name in options):
        options = {**options, "ssl_disabled": True}
    connection = dialect.loaded_dbapi.connect(**options, defer_connect=True)
    reached = None
    if not connection.unix_socket:
        try:
            own = (connection.bind_address, 0) if connection.bind_address else None
            reached = socket.create_connection((connection.host, connection.port), min(CONNECT_TIMEOUT_S, limit_s), own)
        except OSError as error:
            raise dialect.loaded_dbapi.OperationalError(2003, f"no connection to {connection.host}: {error}") from error
        for option, value in {socket.TCP_NODELAY: 1, **PROBES}.items():
            reached.setsockopt(socket.IPPROTO_TCP, option, value)
        reached.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not select.select([reached], [], [], limit_s)[0]:
            reached.close()
            raise dialect.loaded_dbapi.OperationalError(
                2013, f"{connection.host}:{connection.port} sends no greeting within {limit_s:g} s"
            )
    connection.connect(reached)
    return connection


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # the driver must not begin transactions by itself
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")  # NORMAL may lose the last commits to a power cut
    cursor.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    write = connection.get_execution_options().get("dart_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _mysql_code(error: exc.DBAPIError) -> int | None:
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None

"""A private MariaDB server in a directory of its own, for tests and measurements. Nothing of the system's is touched.

Invariants:
    - It listens on a Unix socket inside its directory only, and belongs to whoever starts it; root is not needed.
    - Its temporary files are its own: a server that starts removes what others keep in a shared directory for them.
    - It ends with its owner: `stop` (or leaving the context) ends it, and so does the end of the thread that started
      it (the kernel's `PR_SET_PDEATHSIG` goes by threads), such as by SIGKILL of its process.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

import pymysql

from dart_train.core.train_errors import DatabaseGoneError
from tests.helpers.waiting import wait_until

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.05
_PR_SET_PDEATHSIG = 1


class MariaDB:
    """A server. A context manager: entering starts it, leaving ends it.

    Args:
        folder: an absolute path; made if needed. None: a temporary one, removed at the end.
        buffer_pool_mb: memory for pages.
        options: further options of mariadbd, such as "--innodb-flush-log-at-trx-commit=2".

    Raises:
        DatabaseGoneError: it is not installed, or did not start; the message holds its last words.
    """

    def __init__(self, folder: str | Path | None = None, *, buffer_pool_mb: int = 64, options: tuple[str, ...] = ()):
        self._temporary = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix="dart-mariadb-"))
        self.socket = self.folder / "s"
        self._options = (f"--innodb-buffer-pool-size={buffer_pool_mb}M", *options)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise DatabaseGoneError(f"the server in {self.folder} is not running: start() it")
        return self._process.pid

    def start(self) -> None:
        """Start the server, making its directory first where needed, and wait until it answers."""
        data = self.folder / "data"
        if not data.exists():
            self._install(data)
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    _program("mariadbd"),
                    *self._common(data),
                    f"--socket={self.socket}",
                    f"--pid-file={self.folder / 'pid'}",
                    "--skip-networking",
                    "--skip-name-resolve",
                    "--innodb-log-file-size=64M",
                    *self._options,
                ],
                env=self._environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._wait()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the server; SIGKILL for a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def new_url(self) -> str:
        """Make an empty database and return its URL."""
        name = f"dart_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return f"mysql+pymysql://root@localhost/{name}?unix_socket={self.socket}"

    def drop(self, url: str) -> None:
        """Remove a database of `new_url`."""
        self.execute(f"DROP DATABASE IF EXISTS {url.partition('?')[0].rpartition('/')[2]}")

    def counters(self) -> dict[str, int]:
        """Return what the server has counted since it started, by the names of `SHOW GLOBAL STATUS`."""
        with pymysql.connect(unix_socket=str(self.socket), user="root") as connection, connection.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS")
            return {name: int(value) for name, value in cursor.fetchall() if value.isdigit()}

    def execute(self, statement: str) -> None:
        """Run a statement as the server's administrator."""
        with pymysql.connect(unix_socket=str(self.socket), user="root") as connection, connection.cursor() as cursor:
            cursor.execute(statement)

    def _install(self, data: Path) -> None:
        partial = data.with_name("data.partial")
        shutil.rmtree(partial, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            _program("mariadb-install-db"),
            *self._common(partial),
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--innodb-log-file-size=64M",
        ]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, timeout=START_TIMEOUT_S)
        if done.returncode:
            raise DatabaseGoneError(f"mariadb-install-db failed in {self.folder}: {_tail(done.stdout + done.stderr)}")
        partial.rename(data)

    def _environment(self) -> dict[str, str]:
        temporary = self.folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        return {**os.environ, "TMPDIR": str(temporary)}

    def _common(self, data: Path) -> list[str]:
        user = ["--user=root"] if os.geteuid() == 0 else []  # it refuses to run as root unless told so
        return ["--no-defaults", f"--datadir={data}", *user]

    def _wait(self) -> None:
        try:
            wait_until(self._answers, START_TIMEOUT_S, trouble=self._ended, look_s=POLL_S)
        except AssertionError as error:
            words = _tail((self.folder / "log").read_text(errors="replace"))
            raise DatabaseGoneError(f"the server in {self.folder} did not start ({error}): {words}") from error

    def _ended(self) -> str:
        return "it has ended" if self._process is None or self._process.poll() is not None else ""

    def _answers(self) -> bool:
        if not self.socket.exists():
            return False
        try:
            self.execute("SELECT 1")
        except pymysql.err.OperationalError:
            return False
        return True


def installed() -> bool:
    """Whether this machine has the server's programs."""
    return (
        shutil.which("mariadbd", path=_PATH) is not None and shutil.which("mariadb-install-db", path=_PATH) is not None
    )


_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))


def _program(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        raise DatabaseGoneError(f"{name} is not installed: on Debian, apt-get install mariadb-server-core")
    return found


def _tail(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-4:])


_LIBC = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

"""The directory of one run: its paths, its lock, and how far it has come.

Invariants:
    - One launcher at a time holds the lock. The kernel releases it when that launcher and all processes that it started
      have ended, for whatever reason.
    - `state.json` is replaced atomically, so it is always complete. A phase is marked as finished only after its
      results are in place. Running the same command again therefore resumes a killed run.
    - A run is defined by its resolved configuration. A different configuration under the same name is refused, except
      for the settings in `resume_changes`.
    - `run.json` holds the version of the package that began the run; a version with other formats refuses to resume it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dart_gym.core.errors import DartGymError
from dart_gym.core.os_remedies import FULL, lost_output, remedy
from dart_gym.utils.durable_files import make_directories, write_file
from dart_gym.utils.processes import has_ended, start_time
from dart_train.core.package_version import VERSION, same_series
from dart_train.core.train_errors import DartTrainError, DiskFullError

_log = logging.getLogger(__name__)
MODULES_END_S = 15.0
"""Seconds that the processes of a killed launcher have to end."""

MAX_SOCKET_PATH = 100
"""Longest path of a Unix socket in bytes (the kernel allows 107)."""

FULL_DISK_BYTES = 1 << 18
"""With less free space than this, an unexpected error is blamed on the full disk."""

_AGAIN = "run the same command again to resume the run; --runs-dir chooses another place"


class RunDirectoryError(DartTrainError):
    """The run directory cannot be used; the message says why and what to do."""

    hopeless = True


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths inside `runs/<name>`."""

    root: Path

    @property
    def config(self) -> Path:
        """The resolved configuration, which the processes read."""
        return self.root / "config.yaml"

    @property
    def data(self) -> Path:
        """Directory of trajectories, screenshots and the database."""
        return self.root / "data"

    @property
    def database(self) -> Path:
        """File of the run's own database."""
        return self.data / "dart.sqlite"

    @property
    def database_url(self) -> str:
        """SQLAlchemy URL of the run's own database."""
        return f"sqlite:///{self.database.resolve()}"

    @property
    def checkpoints(self) -> Path:
        """Published weights, one plain Hugging Face directory per version."""
        return self.root / "checkpoints"

    @property
    def supervised(self) -> Path:
        """Weights of the supervised control."""
        return self.root / "controls" / "supervised"

    @property
    def best(self) -> Path:
        """Weights of the best version that the monitor has evaluated."""
        return self.root / "best"

    def checkpoint(self, version: int) -> Path:
        """Directory of one published version."""
        return self.checkpoints / f"v{version:06d}"

    @property
    def trainer(self) -> Path:
        """Resume state of the trainer."""
        return self.root / "trainer"

    @property
    def changes(self) -> Path:
        """Settings that were changed when the run was resumed, as JSON lines."""
        return self.root / "changes.jsonl"

    @property
    def logs(self) -> Path:
        """Directory with the output of the processes."""
        return self.root / "logs"

    def metrics(self, process: str) -> Path:
        """Return the metrics file of one process, which holds JSON lines."""
        return self.root / "metrics" / f"{process}.jsonl"

    def scores(self, label: str) -> Path:
        """Return the result file of one evaluation, in the directory of its episodes."""
        return self.root / "eval" / label / "scores.json"

    @property
    def report(self) -> Path:
        """The report as a page for people."""
        return self.root / "report.html"

    @property
    def figures(self) -> Path:
        """The report as JSON for programs."""
        return self.root / "report.json"

    def create(self) -> None:
        """Create the directories, or check the existing ones.

        Raises:
            RunDirectoryError: if a directory cannot be written, or if a version with other formats began the run.
        """
        written = self._written_by()
        if written is not None and not same_series(written):
            raise RunDirectoryError(
                f"{self.root} was written by version {written} of this package, and this is version {VERSION}, which "
                "does not read its formats: go on with that version, or choose another --name for a new run"
            )
        try:
            for path in (
                self.data,
                self.checkpoints,
                self.trainer,
                self.logs,
                self.root / "metrics",
                self.root / "eval",
            ):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain_os_error(error, self.root) from error
        if written is None:
            write_json(self.root / "run.json", {"version": VERSION})

    def _written_by(self) -> str | None:
        """Return the version of the package that began the run; None if the run has not begun."""
        path = self.root / "run.json"
        if path.exists():
            return str(read_json(path, f"remove {self.root} to start this run afresh").get("version"))
        begun = self.config.exists() or (self.root / "state.json").exists()
        return "0.1.0" if begun else None  # version 0.1.0 left no such file


class RunDiskFullError(RunDirectoryError):
    """The disk of the run directory is full, or the user's quota is used up."""


def explain_os_error(error: OSError, path: Path) -> RunDirectoryError:
    """Return an error of the file system as a message with the next step."""
    step = f"{remedy(error) or 'fix that'}, and {_AGAIN}"
    kind = RunDiskFullError if error.errno in FULL else RunDirectoryError
    return kind(f"cannot write to {path}: {error.strerror or error}; {step}")


def disk_is_full(path: Path) -> bool:
    """Return whether the disk of `path` is nearly full."""
    try:
        return shutil.disk_usage(path).free < FULL_DISK_BYTES
    except OSError:  # there is nothing at `path`
        return False


@contextlib.contextmanager
def explained_file_errors(root: Path) -> Iterator[None]:
    """Turn errors of the file system in the block into readable ones. Bugs pass through.

    Some libraries raise errors of their own: those of `safetensors` (Rust) hold the error number; for others, such as
    those of `torch.save`, the free space of the disk decides.

    Raises:
        RunDirectoryError: if the file system refused an operation.
        DiskFullError: if an unexpected error occurred and the disk is full.
    """
    try:
        yield
    except (DartTrainError, DartGymError):
        raise
    except OSError as error:
        if remedy(error) is not None and not lost_output(error):
            raise explain_os_error(error, Path(error.filename or root)) from error
        raise
    except Exception as error:
        named = re.search(r"\(os error (\d+)\)", str(error))
        if named and remedy(known := OSError(int(named[1]), os.strerror(int(named[1])))) is not None:
            raise explain_os_error(known, root) from error
        if disk_is_full(root):
            raise DiskFullError(root) from error
        raise


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(value, indent=1))


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically, leaving no other file in its directory.

    Raises:
        RunDirectoryError: if the disk is full or read-only.
    """
    try:
        make_directories(path.parent)
        write_file(path, text)
    except OSError as error:
        raise explain_os_error(error, path) from error


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object from the run directory; `remedy` says what to do about a damaged file.

    Raises:
        RunDirectoryError: if the file is missing or damaged.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunDirectoryError(f"{path} is missing; {remedy}") from None
    except ValueError as error:
        raise RunDirectoryError(f"{path} is damaged ({error}); {remedy}") from error
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{path} is damaged (no object in it); {remedy}")
    return value


class RunState:
    """The progress of a run: which phases have started and finished, and when."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = {"phases": {}, "lives": 0}
        if path.exists():
            remedy = f"remove {path.parent} to start this run afresh"
            self.values = read_json(path, remedy)
            if not _is_state(self.values):
                raise RunDirectoryError(f"{path} is damaged (not the state of a run); {remedy}")

    def finished(self, phase: str) -> bool:
        """Return whether a phase is over."""
        return "finished" in self.values["phases"].get(phase, {})

    def begin(self, phase: str) -> None:
        """Record that a phase starts, or is resumed."""
        entry = self.values["phases"].setdefault(phase, {"spans": []})
        entry["spans"].append([time.time(), None])
        self.save()

    def touch(self, phase: str) -> None:
        """Extend the last time span of the running phase until now, so that a kill loses only seconds."""
        self.values["phases"][phase]["spans"][-1][1] = time.time()
        self.save()

    def finish(self, phase: str, **facts: Any) -> None:
        """Record that a phase is over, with `facts` about it."""
        self.values["phases"][phase]["spans"][-1][1] = time.time()
        self.values["phases"][phase].update(facts, finished=time.time())
        self.save()

    def fact(self, phase: str, name: str, default: Any = None) -> Any:
        """Return a fact that was recorded when a phase finished."""
        return self.values["phases"].get(phase, {}).get(name, default)

    def seconds(self, phase: str) -> float:
        """Return the wall-clock seconds spent in a phase, without interruptions."""
        spans = self.values["phases"].get(phase, {}).get("spans", [])
        return sum(end - start for start, end in spans if end is not None)

    def save(self) -> None:
        """Write the state to its file."""
        write_json(self.path, self.values)


def _is_state(values: dict[str, Any]) -> bool:
    phases = values.get("phases")
    if not isinstance(phases, dict) or not isinstance(values.get("lives"), int):
        return False
    return all(isinstance(phase, dict) and isinstance(phase.get("spans"), list) for phase in phases.values())


class RunLock:
    """Exclusive use of a run directory.

    A launcher passes the lock's file on to the processes that it starts. The lock of a killed launcher is free only
    after these processes have ended: they save and clean up, which nobody else may do at the same time. Processes that
    do not end within `MODULES_END_S` are killed.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._path = run.root / "run.lock"
        self._file: IO[str] | None = None

    def fileno(self) -> int:
        """Return the file descriptor that processes of the run keep open."""
        if self._file is None:
            raise ValueError("the lock is not held")
        return self._file.fileno()

    def __enter__(self) -> RunLock:
        file = self._lock()
        while not self._path.exists() or not os.path.samestat(os.fstat(file.fileno()), os.stat(self._path)):
            file.close()  # its holder removed the file between our open and our lock, so this lock excludes nobody
            file = self._lock()
        file.truncate(0)
        file.write(f"{os.getpid()} {start_time(os.getpid())}")
        file.flush()
        self._file = file
        return self

    def _lock(self) -> IO[str]:
        kill_at = None
        while True:
            try:
                file = self._path.open("a+")
            except OSError as error:
                raise explain_os_error(error, self._path) from error
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                with file:
                    self._refuse_if_alive(file)
                    left = _holders(file.fileno())
            if kill_at is None:
                _log.warning("the launcher before was killed: waiting for its processes to end (%s)", left)
                kill_at = time.monotonic() + MODULES_END_S
            if time.monotonic() > kill_at:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def _refuse_if_alive(self, file: IO[str]) -> None:
        """Raise `RunDirectoryError` unless the launcher that wrote the lock file is dead."""
        file.seek(0)
        pid, _, started = file.read().strip().partition(" ")
        if not started.isdigit() or not has_ended(int(pid), int(started)):
            raise RunDirectoryError(
                f"{self._path.parent} is in use by process {pid or '(starting)'}; wait for it, stop it, or choose "
                "another --name"
            )

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._file.close()


def _holders(fd: int) -> list[int]:
    """Return the other processes of this user that have the lock file open."""
    wanted, found = os.fstat(fd), []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            for name in os.listdir(f"/proc/{pid}/fd"):
                if pid != os.getpid() and os.path.samestat(wanted, os.stat(f"/proc/{pid}/fd/{name}")):
                    found.append(pid)
                    break
    return found

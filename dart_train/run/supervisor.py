"""Keeps a set of processes running: starts them, notices deaths, restarts with back-off, ends all cleanly.

Invariants:
    - Every child is tied to this process by the kernel: `kill -9` of the supervisor ends them too.
    - A child that exits with 0 has finished its work, unless it is a service, which never finishes. Any other exit is a
      crash. The child is restarted until there were `max_crashes` within `crash_window_s`; then `ProcessCrashed` is
      raised with the last output. An error that a restart cannot fix (`HOPELESS_STATUS`) is final at once.
    - A child that is alive but does not answer (`ProcessSpec.look`) is killed, which counts as a crash.
    - `stop_all` sends SIGTERM, waits, then SIGKILLs; afterwards no child is left.
"""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from dart_gym.cluster.client.server_health import PERIOD_S, Health, Patience
from dart_gym.utils.backoff import backoff
from dart_gym.utils.plugins import child_environment
from dart_gym.utils.processes import HOPELESS_STATUS, SUPERVISED, die_with_parent
from dart_train.core.availability import Availability
from dart_train.core.child_process import ChildProcess, Process
from dart_train.core.train_errors import DartTrainError
from dart_train.run.run_directory import disk_is_full

STOP_GRACE_S = 15.0
UNAVAILABLE_TIMEOUT_S = 300.0
FIRST_BACKOFF_S = 0.5
LOG_TAIL_LINES = 15
LOG_TAIL_BYTES = 1 << 16
ERROR_WINDOW_S = 1800.0
"""Time window in seconds for crashes with an error message: each of them may come after minutes of waiting."""

_ERROR_MARKS = ("error: ", "dart-gym: ", "dart-agent: ")
"""The beginning of the last message of our programs."""


class ProcessCrashed(DartTrainError):
    """A process crashed too often, or in a way that a restart cannot fix; the message holds its last output."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """How a process of a run is started and watched.

    Attributes:
        max_crashes: give up at this many crashes within `crash_window_s`.
        crash_window_s: seconds.
        service: whether it runs until it is stopped; then an exit with status 0 is a crash, too.
        look: checks in a thread whether the process still answers; None for no check.
        look_period_s: seconds between two checks.
        asks: options of its actor on a Ray cluster (`dart_train.nodes`), such as resources.
    """

    name: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    max_crashes: int = 4
    crash_window_s: float = 60.0
    service: bool = False
    look: Callable[[], Health] | None = None
    look_period_s: float = PERIOD_S
    asks: dict[str, Any] = field(default_factory=dict)


class Probe:
    """Checks a process periodically, in a thread; `given_up` is set after too many checks without an answer."""

    def __init__(self, look: Callable[[], Health], period_s: float) -> None:
        self._look, self._period_s = look, period_s
        self.given_up, self._over = threading.Event(), threading.Event()
        threading.Thread(target=self._run, name="probe", daemon=True).start()

    def _run(self) -> None:
        patience = Patience()
        while not self._over.wait(self._period_s):
            if patience.is_over(self._look()):
                self.given_up.set()
                return

    def stop(self) -> None:
        """Stop checking; a check that is running ends by itself."""
        self._over.set()


@dataclass(slots=True)
class Watched:
    """A process of a run, through all of its restarts."""

    spec: ProcessSpec
    log: Path
    process: Process | None = None
    restarts: int = 0
    crashes: deque[float] = field(default_factory=deque)
    errors: deque[float] = field(default_factory=deque)
    log_start: int = 0
    not_before: float = 0.0
    finished: bool = False
    probe: Probe | None = None

    @property
    def running(self) -> bool:
        """Return whether the process is alive."""
        return self.process is not None and self.process.poll() is None


def next_start(crashes: deque[float], now: float, spec: ProcessSpec, window_s: float | None = None) -> float | None:
    """Return when a crashed process may restart (monotonic seconds), or None if it crashed too often. Pure."""
    recent = [t for t in crashes if now - t <= (spec.crash_window_s if window_s is None else window_s)]
    if len(recent) >= spec.max_crashes:
        return None
    return now + backoff(len(recent), FIRST_BACKOFF_S)


def log_tail(path: Path, start: int = 0) -> str:
    """Return the end of a log, from byte `start` at the earliest; "" if there is no log."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").strip()


def last_error(log: str) -> str:
    """Return the message with which one of our programs ended, which may have several lines; "" without one."""
    lines = log.splitlines()
    for index in range(len(lines) - 1, -1, -1):
        mark = next((mark for mark in _ERROR_MARKS if lines[index].startswith(mark)), None)
        if mark is not None:
            return "\n".join([lines[index].removeprefix(mark), *lines[index + 1 :]])
    return ""


def start_child(
    argv: Sequence[str],
    environment: Mapping[str, str],
    log: IO[bytes],
    *,
    directory: str | None = None,
    handed_on: Sequence[int] = (),
) -> ChildProcess:
    """Start a program of a run as a child that ends with this process; its output goes to `log`.

    Args:
        argv: program and arguments.
        environment: its complete environment.
        log: file for its output.
        directory: its working directory; None for that of this process.
        handed_on: file descriptors that it keeps open.
    """
    return ChildProcess(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=directory,
        pass_fds=handed_on,
        start_new_session=True,  # Ctrl-C reaches the supervisor alone, which then stops its children cleanly
        preexec_fn=die_with_parent(signal.SIGTERM),
    )


class Supervisor:
    """Run processes as children of this one. Use from one (the main) thread; call `check` a few times a second.

    Every process keeps the file descriptors `handed_on` open while it lives, such as a lock's.

    Args:
        elsewhere: starts a process on a node of a cluster, with its output in a local log; None starts processes here.
        unavailable_timeout_s: seconds for which the disk may stay full; a process that ends meanwhile restarts later.
    """

    def __init__(
        self,
        log_dir: Path,
        handed_on: Sequence[int] = (),
        elsewhere: Callable[[ProcessSpec, Path], Process] | None = None,
        unavailable_timeout_s: float = UNAVAILABLE_TIMEOUT_S,
    ) -> None:
        self.disk = Availability("the disk", unavailable_timeout_s, words=("is full", "has space again"))
        self.log_dir = log_dir
        self._handed_on = tuple(handed_on)
        self._elsewhere = elsewhere
        self.processes: dict[str, Watched] = {}
        log_dir.mkdir(parents=True, exist_ok=True)

    def start(self, spec: ProcessSpec) -> Watched:
        """Start a process and watch it from now on."""
        watched = Watched(spec, self.log_dir / f"{spec.name}.log")
        self.processes[spec.name] = watched
        self._spawn(watched)
        return watched

    def _spawn(self, watched: Watched) -> None:
        spec = watched.spec
        with watched.log.open("ab", buffering=0) as log:
            with contextlib.suppress(OSError):  # the disk may be full, which `check` waits for
                log.write(f"--- {time.strftime('%F %T')} start: {' '.join(spec.argv)}\n".encode())
            watched.log_start = log.tell()
            if self._elsewhere is not None:
                watched.process = self._elsewhere(spec, watched.log)
            else:
                environment = child_environment() | {SUPERVISED: "1", **spec.env}
                watched.process = start_child(spec.argv, environment, log, handed_on=self._handed_on)
        if spec.look is not None:
            watched.probe = Probe(spec.look, spec.look_period_s)

    def check(self) -> None:
        """Reap processes that have ended and restart processes that have crashed.

        Raises:
            ProcessCrashed: if a process crashed too often, or in a way that a restart cannot fix.
        """
        now = time.monotonic()
        if self.disk.away and not disk_is_full(self.log_dir):
            self.disk.restored()
        for watched in self.processes.values():
            if watched.running and watched.probe is not None and watched.probe.given_up.is_set():
                self._end_silent(watched)
            if watched.finished or watched.running:
                continue
            if watched.process is not None:
                self._reap(watched, now)
            elif now >= watched.not_before:
                watched.restarts += 1
                self._spawn(watched)

    def _end_silent(self, watched: Watched) -> None:
        assert watched.process is not None  # it runs
        with contextlib.suppress(OSError), watched.log.open("ab", buffering=0) as log:
            log.write(f"--- {time.strftime('%F %T')} it does not answer any more, and is killed\n".encode())
        watched.process.kill_all()
        watched.process.wait()

    def _reap(self, watched: Watched, now: float) -> None:
        code = (watched.process.returncode if watched.process else 0) or 0
        watched.process = None
        if watched.probe is not None:
            watched.probe.stop()
        if code == 0 and not watched.spec.service:
            watched.finished = True
            return
        if disk_is_full(self.log_dir):  # its last output is lost then, and it is not to blame
            watched.not_before = now + max(self.disk.failed("no space is left", watched.spec.name), FIRST_BACKOFF_S)
            if not self.disk.timed_out:
                return
            raise ProcessCrashed(
                f"process {watched.spec.name!r} ended with {describe_exit(code)}: no space is left on the device of "
                f"{self.log_dir}; free some and run the same command again to resume the run"
            )
        log = log_tail(watched.log, watched.log_start)
        message = last_error(log)
        watched.crashes.append(now)
        if message:
            watched.errors.append(now)
        start = next_start(watched.crashes, now, watched.spec)
        if code == HOPELESS_STATUS or next_start(watched.errors, now, watched.spec, ERROR_WINDOW_S) is None:
            start = None
        if start is None:
            raise ProcessCrashed(_last_words(watched, code, message, log))
        watched.not_before = start

    def wait(self, name: str, poll_s: float = 0.1) -> None:
        """Wait until a process has finished, restarting processes that crash meanwhile."""
        while not self.processes[name].finished:
            self.check()
            watched = self.processes[name]
            if watched.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    watched.process.wait(poll_s)

    def stop(self, name: str, grace_s: float = STOP_GRACE_S) -> None:
        """End one process by SIGTERM, then by SIGKILL to its process group, and forget it."""
        watched = self.processes.pop(name, None)
        if watched is not None:
            _end([watched], grace_s)

    def stop_all(self, grace_s: float = STOP_GRACE_S) -> None:
        """End all processes; the one that was started last is told first."""
        found = list(self.processes.values())[::-1]
        self.processes.clear()
        _end(found, grace_s)


def _end(found: list[Watched], grace_s: float) -> None:
    for watched in found:
        if watched.probe is not None:
            watched.probe.stop()
    living = [watched.process for watched in found if watched.process is not None and watched.running]
    for process in living:
        process.terminate()
    deadline = time.monotonic() + grace_s
    for process in living:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill_all()
            process.wait()


def _last_words(watched: Watched, code: int, message: str, log: str) -> str:
    """Return the message about a process that is given up."""
    count = len(watched.crashes)
    times = "" if count == 1 else f", {count} times"
    head = f"process {watched.spec.name!r} ended with {describe_exit(code)}{times}"
    if message:
        return f"{message}\n({head}; its log is {watched.log})"
    tail = "\n".join(log.splitlines()[-LOG_TAIL_LINES:])
    return f"{head}. The end of {watched.log}:\n{tail}"


def describe_exit(code: int) -> str:
    """Return an exit status in words."""
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"status {code}"


def python_process(
    name: str, module: str, *args: str, threads: int = 1, service: bool = False, **env: str
) -> ProcessSpec:
    """Return the specification of `python -m module args...` with this interpreter and its share of threads."""
    threading = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
    environment = {**threading, "PYTHONUNBUFFERED": "1", **env}
    return ProcessSpec(name, (sys.executable, "-m", module, *args), environment, service=service)

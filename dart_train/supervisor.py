"""Keeps a set of processes running: starts them, notices deaths, restarts with back-off, ends all cleanly.

Invariants:
    - Every child is tied to this process by the kernel: `kill -9` of the supervisor ends them too.
    - A child that ends with 0 has finished its work; any other end is a crash and is restarted, until it has
      crashed `max_crashes` times within `crash_window_s`: then `ModuleCrashed` with the last lines of its log.
    - `stop_all` sends SIGTERM, waits, then SIGKILLs; after it no child is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from dart_gym.processes import die_with_parent
from dart_train.errors import DartTrainError

STOP_GRACE_S = 15.0
FIRST_BACKOFF_S = 0.5
LOG_TAIL_LINES = 15


class ModuleCrashed(DartTrainError):
    """A module died again and again; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class ModuleSpec:
    """One module as a process.

    Attributes:
        name: for logs and people.
        argv: program and arguments.
        env: additions to the environment.
        max_crashes: give up at this many crashes within `crash_window_s`.
        crash_window_s: seconds.
    """

    name: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    max_crashes: int = 4
    crash_window_s: float = 60.0


@dataclass(slots=True)
class Module:
    """A module and its process of the moment."""

    spec: ModuleSpec
    log: Path
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    crashes: deque[float] = field(default_factory=deque)
    not_before: float = 0.0
    finished: bool = False

    @property
    def running(self) -> bool:
        """Whether its process is alive."""
        return self.process is not None and self.process.poll() is None


def next_start(crashes: deque[float], now: float, spec: ModuleSpec) -> float | None:
    """When a crashed module may start again (monotonic seconds); None when it has crashed too often. Pure."""
    recent = [t for t in crashes if now - t <= spec.crash_window_s]
    if len(recent) >= spec.max_crashes:
        return None
    return now + FIRST_BACKOFF_S * 2 ** (len(recent) - 1)


def log_tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log; "" if there is none."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


class Supervisor:
    """Runs modules as child processes. Use from one (the main) thread; call `check` a few times a second."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.modules: dict[str, Module] = {}
        log_dir.mkdir(parents=True, exist_ok=True)

    def start(self, spec: ModuleSpec) -> Module:
        """Start a module and watch it from now on."""
        module = Module(spec, self.log_dir / f"{spec.name}.log")
        self.modules[spec.name] = module
        self._spawn(module)
        return module

    def _spawn(self, module: Module) -> None:
        spec = module.spec
        with module.log.open("ab") as log:
            log.write(f"--- {time.strftime('%F %T')} start: {' '.join(spec.argv)}\n".encode())
            log.flush()
            module.process = subprocess.Popen(
                spec.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **spec.env},
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which then stops the others in order
                preexec_fn=die_with_parent(signal.SIGTERM),
            )

    def check(self) -> None:
        """Reap what has ended and restart what has crashed.

        Raises:
            ModuleCrashed: a module crashed too often.
        """
        now = time.monotonic()
        for module in self.modules.values():
            if module.finished or module.running:
                continue
            if module.process is not None:
                self._reap(module, now)
            elif now >= module.not_before:
                module.restarts += 1
                self._spawn(module)

    def _reap(self, module: Module, now: float) -> None:
        code = module.process.returncode if module.process else 0
        module.process = None
        if code == 0:
            module.finished = True
            return
        module.crashes.append(now)
        start = next_start(module.crashes, now, module.spec)
        if start is None:
            raise ModuleCrashed(
                f"module {module.spec.name!r} ended {len(module.crashes)} times (last with {describe_exit(code)}). "
                f"The end of {module.log}:\n{log_tail(module.log)}"
            )
        module.not_before = start

    def wait(self, name: str, poll_s: float = 0.1) -> None:
        """Wait until a module has finished, restarting whatever crashes meanwhile."""
        while not self.modules[name].finished:
            self.check()
            module = self.modules[name]
            if module.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    module.process.wait(poll_s)

    def stop(self, name: str, grace_s: float = STOP_GRACE_S) -> None:
        """End one module: SIGTERM, then SIGKILL to its process group. Forget it."""
        module = self.modules.pop(name, None)
        if module is not None:
            _end([module], grace_s)

    def stop_all(self, grace_s: float = STOP_GRACE_S) -> None:
        """End all modules, the latest started first to be told."""
        modules = list(self.modules.values())[::-1]
        self.modules.clear()
        _end(modules, grace_s)


def _end(modules: list[Module], grace_s: float) -> None:
    living = [module.process for module in modules if module.process is not None and module.running]
    for process in living:
        process.terminate()
    deadline = time.monotonic() + grace_s
    for process in living:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def describe_exit(code: int) -> str:
    """An exit status in words."""
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"status {code}"


def python_module(name: str, module: str, *args: str, threads: int = 1, **env: str) -> ModuleSpec:
    """A `python -m module args...` of this interpreter, with its share of threads."""
    threading = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
    return ModuleSpec(name, (sys.executable, "-m", module, *args), {**threading, "PYTHONUNBUFFERED": "1", **env})

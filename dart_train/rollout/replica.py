"""One engine replica: a process that is started here, or an engine that runs elsewhere, and what is known about it.

Invariants:
    - A process that was started here dies with this process, `kill -9` included, and leaves no socket behind.
    - `state` says whether requests may be sent: READY and UPDATING take them, STARTING and DOWN do not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from dart_agent.engines.base import EngineError, EngineInfo
from dart_agent.engines.remote import RemoteEngine
from dart_gym.processes import die_with_parent

_log = logging.getLogger(__name__)
FIRST_LOOK_S = 0.02
SLOWEST_LOOK_S = 0.5
TERMINATE_S = 3.0
ENGINE_PROGRAM = (sys.executable, "-m", "dart_agent.engines.server")


class ReplicaState(StrEnum):
    """Whether a replica can be used."""

    STARTING = "starting"
    READY = "ready"
    UPDATING = "updating"  # loads weights between two batches; requests wait, so others are preferred
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Weights:
    """A checkpoint directory and its version."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """How a replica is reached, and started if it is ours.

    Attributes:
        name: unique in the pool.
        url: where it listens.
        owned: whether it is a process of ours.
        threads: torch threads.
        max_batch: requests in one forward pass.
        log: where its output goes.
        program: what is started; it takes the arguments of `dart_agent.engines.server`.
    """

    name: str
    url: str
    owned: bool
    threads: int = 1
    max_batch: int = 32
    log: Path | None = None
    program: tuple[str, ...] = ENGINE_PROGRAM


@dataclass(slots=True)
class Replica:
    """State of a replica. Only `EnginePool` changes it."""

    spec: ReplicaSpec
    state: ReplicaState = ReplicaState.STARTING
    version: int = -1
    in_flight: int = 0
    requests: int = 0
    failures: int = 0
    restarts: int = 0
    busy_share: float = 0.0
    engine: RemoteEngine | None = None
    process: subprocess.Popen[bytes] | None = None
    alarm: asyncio.Event = field(default_factory=asyncio.Event)
    why_down: str = ""
    _busy_at: tuple[float, float] | None = None  # (monotonic time, busy seconds)

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name

    @property
    def usable(self) -> bool:
        """Whether requests may be sent to it."""
        return self.state in (ReplicaState.READY, ReplicaState.UPDATING)

    @property
    def died(self) -> bool:
        """Whether its process is ours and has ended."""
        return self.process is not None and self.process.poll() is not None

    def launch(self, weights: Weights) -> None:
        """Start the process, or for a replica elsewhere just the client."""
        if self.spec.owned:
            _remove_socket(self.spec.url)
            self.process = _start_server(self.spec, weights)
        self.engine = RemoteEngine(self.spec.url)
        self._busy_at = None

    async def until_ready(self, timeout: float) -> EngineInfo:
        """Wait until it answers.

        Raises:
            EngineError: its process ended, or the time is over.
        """
        deadline = time.monotonic() + timeout
        pause = FIRST_LOOK_S
        while True:
            try:
                return await self.look(timeout=max(0.1, deadline - time.monotonic()))
            except EngineError as error:
                if self.died:
                    raise EngineError(f"its process ended with status {self._status()}; see {self.spec.log}") from error
                if time.monotonic() + pause > deadline:
                    raise EngineError(f"no answer within {timeout:.0f} s: {error}") from error
            await asyncio.sleep(pause)
            pause = min(SLOWEST_LOOK_S, pause * 1.5)

    async def look(self, timeout: float) -> EngineInfo:
        """Ask for its state, and learn version and busy share from the answer. Raises `EngineError`."""
        if self.engine is None:
            raise EngineError("not started")
        try:
            async with asyncio.timeout(timeout):
                info = await self.engine.info()
        except TimeoutError:
            raise EngineError(f"no answer within {timeout:.1f} s") from None
        now = time.monotonic()
        if self._busy_at is not None and now > self._busy_at[0]:
            self.busy_share = min(1.0, max(0.0, (info.busy_s - self._busy_at[1]) / (now - self._busy_at[0])))
        if self._busy_at is None or now - self._busy_at[0] > 0.5:
            self._busy_at = (now, info.busy_s)
        self.version = info.version
        return info

    async def shut_down(self, grace_s: float = TERMINATE_S) -> None:
        """End the process, by SIGKILL after `grace_s`, and close the client. Idempotent."""
        engine, process = self.engine, self.process
        self.engine = self.process = None
        if process is not None and process.poll() is None:
            process.terminate()
        if process is not None:
            await asyncio.to_thread(_reap, process, grace_s)
            _remove_socket(self.spec.url)
        if engine is not None:  # last: closing waits for the other side, which may have stood still until its end
            await engine.close()

    def _status(self) -> int | None:
        return self.process.returncode if self.process is not None else None


def _start_server(spec: ReplicaSpec, weights: Weights) -> subprocess.Popen[bytes]:
    argv = [*spec.program, "--model", weights.path, "--listen", spec.url]
    argv += ["--name", spec.name, "--threads", str(spec.threads), "--max-batch", str(spec.max_batch)]
    argv += ["--version", str(weights.version)]
    threading = {"OMP_NUM_THREADS": str(spec.threads), "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
    if spec.log is not None:
        spec.log.parent.mkdir(parents=True, exist_ok=True)
    with open(spec.log or os.devnull, "ab") as log:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **threading},
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )


def _reap(process: subprocess.Popen[bytes], grace_s: float) -> None:
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _remove_socket(url: str) -> None:
    scheme, _, path = url.partition("://")
    if scheme == "ws+unix":
        Path(path).unlink(missing_ok=True)

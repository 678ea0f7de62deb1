"""One engine replica: a process that is started here, or an engine that runs elsewhere, and what is known about it.

Invariants:
    - A process that was started here dies with this process, `kill -9` included, and leaves no socket behind; when it
      is ended, so is every process that it started.
    - `state` says whether requests may be sent: READY and UPDATING take them, the others do not.
    - `verified` is the version that it is known to serve, by its own word after it was started or updated. A replica
      that then says another one was changed behind our back: that is an error, and not its new version.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from dart_agent.engines.base.engine import Engine, EngineError, EngineInfo, EngineMismatch
from dart_agent.engines.remote.remote_engine import RemoteEngine
from dart_agent.engines.vllm.vllm_loading import WeightLoading
from dart_gym.utils.processes import die_with_parent
from dart_train.rollout.fleet.concurrency import Concurrency, adapt
from dart_train.rollout.fleet.server_programs import Command, Program, command_of, full_environment
from dart_train.rollout.fleet.weight_files import Weights as Weights

FIRST_LOOK_S = 0.02
SLOWEST_LOOK_S = 0.5
TERMINATE_S = 3.0
UNKNOWN = -1
"""Version of weights of which nobody knows what they are: those of a vLLM server that nobody has updated yet."""


class ReplicaState(StrEnum):
    """Whether a replica can be used."""

    STARTING = "starting"
    READY = "ready"
    UPDATING = "updating"  # loads weights between two batches; requests wait, so others are preferred
    DRAINING = "draining"  # ends its requests before an update
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """How a replica is reached, and started if it is ours.

    Attributes:
        name: unique in the pool.
        url: where it listens; "" for a server that gets a free port when it is started.
        owned: whether it is a process of ours.
        program: how it is started.
        log: where its output goes.
        request_timeout_s: for one request to a vLLM server.
        update_timeout_s: for one update of its weights.
        least_requests: that it gets at the same time when it is loaded.
        most_requests: that it ever gets at the same time.
        pause: what an update of a vLLM server does to requests that still run.
    """

    name: str
    url: str
    owned: bool
    program: Program = Program()
    log: Path | None = None
    request_timeout_s: float = 60.0
    update_timeout_s: float = 120.0
    least_requests: int = 4
    most_requests: int = 256
    pause: Literal["keep", "abort"] = "abort"


@dataclass(slots=True)
class Replica:
    """State of a replica. Only `EnginePool` changes it.

    Attributes:
        spec: what it is.
        state: whether it can be used.
        url: where it listens now.
        version: of the weights that it last said it serves; `UNKNOWN` before.
        verified: the version that it must say; None while it is not known.
        loading: the version that it is being updated to.
        tainted: an update failed, so that it may hold a mixture: it serves nothing before it was started or updated.
        in_flight: requests that it has from here.
        requests: answered ones.
        errors: failed ones since the last answer.
        failures: times that it went out of service since it last served well.
        restarts: times that it was started or connected again.
        busy_share: share of the last seconds in which it computed.
        info: what it last said about itself.
        concurrency: how many requests it gets.
        alarm: wakes who watches it.
        why_down: why it last went out of service.
        stream: how a vLLM server gets the weights of whole models where it does not read their files.
    """

    spec: ReplicaSpec
    state: ReplicaState = ReplicaState.STARTING
    url: str = ""
    version: int = UNKNOWN
    verified: int | None = None
    loading: int | None = None
    tainted: bool = False
    in_flight: int = 0
    requests: int = 0
    errors: int = 0
    failures: int = 0
    restarts: int = 0
    busy_share: float = 0.0
    info: EngineInfo | None = None
    engine: Engine | None = None
    process: subprocess.Popen[bytes] | None = None
    alarm: asyncio.Event = field(default_factory=asyncio.Event)
    examining: asyncio.Lock = field(default_factory=asyncio.Lock)
    why_down: str = ""
    stream: WeightLoading | None = None
    concurrency: Concurrency = field(init=False)
    _busy_at: tuple[float, float] | None = None  # (monotonic time, busy seconds)

    def __post_init__(self) -> None:
        self.concurrency = Concurrency.begin(self.spec.least_requests, self.spec.most_requests)

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name

    @property
    def is_vllm(self) -> bool:
        """Whether it is a vLLM server."""
        return self.url.partition("://")[0] in ("http", "https")

    @property
    def usable(self) -> bool:
        """Whether it is in service: requests may be sent to it, or may again once it is updated."""
        return self.state in (ReplicaState.READY, ReplicaState.UPDATING, ReplicaState.DRAINING)

    @property
    def died(self) -> bool:
        """Whether its process is ours and has ended."""
        return self.process is not None and self.process.poll() is not None

    def launch(self, weights: Weights) -> None:
        """Start the process, or for a replica elsewhere just the client.

        Raises:
            OSError: its program cannot be started.
            DartGymError: its address is none, or `weights` has no tokenizer.
        """
        self.url = self.spec.url
        if self.spec.owned:
            _remove_socket(self.spec.url)
            command = command_of(self.spec.program, self.name, self.spec.url, weights)
            self.process = _start_server(command, self.spec.log)
            self.url = command.url
            self.tainted = False  # a new process
        self.engine = self._client(weights)
        self.version, self.verified, self.loading, self.info, self._busy_at = UNKNOWN, None, None, None, None

    def _client(self, weights: Weights) -> Engine:
        if not self.is_vllm:
            return RemoteEngine(self.url)
        from dart_agent.engines.vllm.vllm_engine import VLLMEngine

        return VLLMEngine(
            self.url,
            weights.model,
            model=self.spec.program.model,
            name=self.name,
            version=weights.version if self.spec.owned and not weights.is_adapter else UNKNOWN,
            timeout_s=self.spec.request_timeout_s,
            update_timeout_s=self.spec.update_timeout_s,
            pause=self.spec.pause,
            loading=self.stream,
        )

    async def until_ready(self, timeout: float) -> EngineInfo:
        """Wait until it answers.

        Raises:
            EngineMismatch: it is there, and not what was expected.
            EngineError: its process ended, or the time is over.
        """
        deadline = time.monotonic() + timeout
        pause = FIRST_LOOK_S
        while True:
            try:
                return await self.look(timeout=max(0.1, deadline - time.monotonic()))
            except EngineMismatch:
                raise
            except EngineError as error:
                if self.died:
                    raise EngineError(f"its process ended with status {self._status()}; see {self.spec.log}") from error
                if time.monotonic() + pause > deadline:
                    raise EngineError(f"no answer within {timeout:.0f} s: {error}") from error
            await asyncio.sleep(pause)
            pause = min(SLOWEST_LOOK_S, pause * 1.5)

    async def look(self, timeout: float) -> EngineInfo:
        """Ask for its state, and learn version, load and busy share from the answer.

        Raises:
            EngineMismatch: it serves another version than the one it was given.
            EngineError: no answer.
        """
        if self.engine is None:
            raise EngineError("not started")
        expected = (self.verified, self.loading)
        try:
            async with asyncio.timeout(timeout):
                info = await self.engine.info()
        except TimeoutError:
            raise EngineError(f"no answer within {timeout:.1f} s") from None
        if expected != (self.verified, self.loading):
            return info  # an update began or ended meanwhile: whatever it says may be of before
        if self.verified is not None and self.loading is None and info.version != self.verified:
            raise EngineMismatch(
                f"it says that it serves version {info.version}, it was given {self.verified}: it was started again or "
                "is updated by somebody else"
            )
        self._take(info)
        return info

    def _take(self, info: EngineInfo) -> None:
        now = time.monotonic()
        if self._busy_at is not None and now > self._busy_at[0]:
            self.busy_share = min(1.0, max(0.0, (info.busy_s - self._busy_at[1]) / (now - self._busy_at[0])))
        if self._busy_at is None or now - self._busy_at[0] > 0.5:
            self._busy_at = (now, info.busy_s)
        self.concurrency = adapt(self.concurrency, info, self.in_flight)
        self.version, self.info = info.version, info

    def explains(self, asked_at: int, oldest: int, newest: int) -> bool:
        """Whether a response to a request that was sent at version `asked_at` can be of these versions."""
        known = [asked_at, self.version]
        if self.loading is not None:
            known.append(self.loading)
        return min(known) <= oldest <= newest <= max(known)

    async def shut_down(self, grace_s: float = TERMINATE_S) -> None:
        """End the process and what it started, by SIGKILL after `grace_s`, and close the client. Idempotent."""
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


def _start_server(command: Command, log_path: Path | None) -> subprocess.Popen[bytes]:
    if log_path is not None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
    with open(log_path or os.devnull, "ab") as log:
        return subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=full_environment(command),
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )


def _reap(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Wait for a server, and end its whole process group: a vLLM server computes in children of its own."""
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with contextlib.suppress(ProcessLookupError):  # the usual case: nobody is left
        os.killpg(process.pid, signal.SIGKILL)


def _remove_socket(url: str) -> None:
    scheme, _, path = url.partition("://")
    if scheme == "ws+unix":
        Path(path).unlink(missing_ok=True)

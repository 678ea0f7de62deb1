"""One engine replica, which is started here as a process or runs elsewhere, and everything known about it.

Several rollout services may share a replica, but only one at a time updates it. Within a process `EnginePool` ensures
that; between processes it is a lock in the data manager's database (`UpdateLocks`), named by the replica's address.

Invariants:
    - A process that was started here ends with this process, even after `kill -9`, and leaves no socket behind. When it
      is stopped, all processes that it started are stopped as well.
    - `state` says whether requests may be sent: READY and UPDATING take them, the other states do not.
    - `verified` is the version that the replica itself reported after its start or its last update. If it reports a
      different version later, somebody else has changed it: this is an error and not its new version.
    - A replica that this process started is used by nobody else: it needs no lock, and works without a database.
    - The holder of a lock renews it regularly. A holder that is dead, or hangs for longer than its lease, loses the
      lock; if it wakes up again, its update fails.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, cast

from dart_agent.engines.base.engine import EngineBusy, EngineError, EngineInfo, EngineMismatch, ModelEngine
from dart_agent.engines.base.engine_kind import Command, Connection, EngineKind, Launch
from dart_agent.engines.base.engine_replies import engine_info
from dart_gym.utils.backoff import Pauses
from dart_gym.utils.plugins import child_environment
from dart_gym.utils.processes import die_with_parent
from dart_train.core.child_process import ChildProcess, Process
from dart_train.core.train_errors import CheckpointError, DataError
from dart_train.data.store.database_locks import LONGEST_NAME
from dart_train.rollout.fleet.concurrency import Concurrency, adapt
from dart_train.rollout.fleet.weight_files import Weights as Weights
from dart_train.rollout.fleet.weight_files import launched
from dart_train.rollout.settings.rollout_config import EngineConfig, SyncConfig

FIRST_LOOK_S = 0.02
SLOWEST_LOOK_S = 0.5
TERMINATE_S = 3.0
UNKNOWN = -1
"""Version number of unknown weights, such as those of a vLLM server that has not been updated yet."""
RENEWALS = 3  # of a lock during one lease
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0


class Wakeup:
    """Lets coroutines wait for a change, which each of them then examines itself. For one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """Wake all waiting coroutines."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, deadline: float) -> None:
        """Return at the next `wake`, or at the deadline (of `time.monotonic`)."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await future
        except TimeoutError:
            return
        finally:
            self._waiting.discard(future)


class ReplicaState(StrEnum):
    """Whether a replica can be used."""

    STARTING = "starting"
    READY = "ready"
    UPDATING = "updating"  # loads weights between two batches; its requests wait, so other replicas are preferred
    DRAINING = "draining"  # finishes its requests before an update
    DOWN = "down"


class ServerProcess(Process, Protocol):
    """A server on another node."""

    async def fetch(self, url: str) -> str:
        """Fetch shared weights to its node; return their directory there. Raises `EngineError`."""


class EngineNodes(Protocol):
    """Nodes on which servers are started."""

    async def start(self, kind: EngineKind, launch: Launch, url: str, log: Path | None) -> tuple[ServerProcess, str]:
        """Start a server with the weights at `url` as soon as a node has room; return it and its address.

        Raises:
            EngineError: if it cannot be started.
        """


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """The settings of a replica.

    Attributes:
        url: address of an engine that runs elsewhere; "" for a process that is started here.
        directory: directory for the sockets and temporary files of a process that is started here; a short path.
        gpus: indices of its GPUs; None if no GPUs were assigned.
        gpu_memory: share of their memory that it takes; None for its own default.
        nodes: starts it on a node of a cluster; None starts it here.
    """

    index: int
    kind: EngineKind
    url: str = ""
    directory: Path = Path()
    log: Path | None = None
    config: EngineConfig = field(default_factory=EngineConfig)
    sync: SyncConfig = SyncConfig()
    gpus: tuple[int, ...] | None = None
    gpu_memory: float | None = None
    nodes: EngineNodes | None = None

    @property
    def owned(self) -> bool:
        """Return whether the replica is a process that is started here."""
        return not self.url

    @property
    def drains(self) -> bool:
        """Return whether requests are let end before an update; an adapter leaves those that run with their own."""
        return self.kind.drains and self.sync.transfer != "adapter"

    def launch(self, weights: Weights) -> Launch:
        """Return the launch settings of its process."""
        return Launch(
            name=f"r{self.index}",
            index=self.index,
            path=weights.path,
            version=weights.version,
            directory=self.directory,
            images=self.config.images,
            transfer=self.sync.transfer,
            lora_rank=self.sync.lora_rank,
            lora_target_modules=tuple(self.sync.lora_target_modules) if self.sync.lora_target_modules else None,
            gpus=self.gpus,
            gpu_memory=self.gpu_memory,
        )

    def command(self, weights: Weights) -> Command:
        """Return the command that starts its process on this machine."""
        return self.kind.command(self.launch(weights))


@dataclass(slots=True)
class Replica:
    """State of a replica. Only its `ReplicaLife` changes it.

    Attributes:
        name: unique in the fleet.
        loading: how weights are streamed into its server; None where it reads files.
        version: version of the weights that it reported last; `UNKNOWN` before the first report.
        verified: the version that it must report; None while that is not known.
        updating_to: the version that it is being updated to; None outside of an update.
        tainted: whether an update failed and it may hold a mixture of weights. It then serves nothing until a restart
            or a successful update.
        in_flight: number of requests from here that it is working on.
        errors: number of requests that have failed since its last answer.
        bad_responses: total number of its invalid responses.
        failures: number of times that it went out of service since it last served well.
        busy_share: share of the last seconds in which it computed, from 0 to 1.
        alarm: set when it goes out of service.
        examining: held while a test finds out whether the replica is the cause of a failure.
    """

    spec: ReplicaSpec
    loading: Any = None
    state: ReplicaState = ReplicaState.STARTING
    url: str = ""
    version: int = UNKNOWN
    verified: int | None = None
    updating_to: int | None = None
    tainted: bool = False
    in_flight: int = 0
    requests: int = 0
    errors: int = 0
    bad_responses: int = 0
    failures: int = 0
    restarts: int = 0
    busy_share: float = 0.0
    info: EngineInfo | None = None
    engine: ModelEngine | None = None
    process: Process | None = None
    alarm: asyncio.Event = field(default_factory=asyncio.Event)
    examining: asyncio.Lock = field(default_factory=asyncio.Lock)
    why_down: str = ""
    name: str = field(init=False)
    concurrency: Concurrency = field(init=False)
    _busy_at: tuple[float, float] | None = None  # (monotonic time, busy seconds)

    def __post_init__(self) -> None:
        self.url = self.spec.url
        self.name = f"r{self.spec.index}"
        self.concurrency = Concurrency.begin(self.spec.config.least_requests, self.spec.config.most_requests)

    @property
    def limit(self) -> int:
        """Largest number of requests that it gets at the same time."""
        return self.concurrency.limit

    @property
    def usable(self) -> bool:
        """Return whether it is in service: requests may be sent to it now, or once its update is over."""
        return self.state in (ReplicaState.READY, ReplicaState.UPDATING, ReplicaState.DRAINING)

    @property
    def died(self) -> bool:
        """Return whether its process was started here and has ended."""
        return self.process is not None and self.process.poll() is not None

    async def launch(self, weights: Weights) -> None:
        """Start the process, or connect only, if it runs elsewhere.

        Raises:
            OSError: if the process does not start.
            DartGymError: if the address or the model is wrong.
        """
        spec = self.spec
        started = launched(weights, UNKNOWN)
        if spec.owned:
            if spec.nodes is not None:
                self.process, self.url = await spec.nodes.start(spec.kind, spec.launch(weights), weights.url, spec.log)
            else:
                command = spec.command(started)
                _remove_socket(command.url)
                self.process, self.url = _start_server(command, spec.log), command.url
            self.tainted = False  # the process is new
        self.engine = spec.kind.connect(
            Connection(
                self.url,
                weights.path,
                name=self.name,
                version=started.version if spec.owned else UNKNOWN,
                # `ReplicaLife.ask` sets a shorter limit: it knows the queue
                request_timeout_s=max(spec.config.request_timeout_s, spec.config.unavailable_timeout_s),
                update_timeout_s=spec.config.start_timeout_s,
                pause="keep" if spec.config.update == "keep" else "abort",
                loading=self.loading,
                adapters=spec.sync.transfer == "adapter",
            )
        )
        self.version = UNKNOWN
        self.verified = None
        self.updating_to = None
        self.info = None
        self._busy_at = None

    async def path_of(self, weights: Weights) -> str:
        """Return the directory of weights on the server's node. Raises `EngineError` if the node cannot fetch them."""
        process = self.process
        if self.spec.nodes is None or process is None:
            return weights.path
        return await cast(ServerProcess, process).fetch(weights.url)

    async def until_ready(self, timeout: float) -> EngineInfo:
        """Wait until the replica answers.

        Raises:
            EngineMismatch: if it serves something other than expected.
            EngineError: if its process has ended, or it does not answer in time.
        """
        deadline = time.monotonic() + timeout
        pauses = Pauses(deadline, FIRST_LOOK_S, SLOWEST_LOOK_S)
        while True:
            try:
                return await self.look(timeout=max(0.1, deadline - time.monotonic()))
            except EngineMismatch:
                raise
            except EngineError as error:
                if self.process is not None and self.process.poll() is not None:
                    status = self.process.returncode
                    raise EngineError(f"its process ended with status {status}; see {self.spec.log}") from error
                late = EngineError(f"no answer within {timeout:.0f} s: {error}")
                await pauses.wait(late, f"engine {self.name} has not answered yet (limit {timeout:.0f} s): {error}")

    async def look(self, timeout: float) -> EngineInfo:
        """Read the version, load and busy share from the replica's state.

        Raises:
            EngineMismatch: if it has another version.
            EngineError: if it does not answer.
        """
        if self.engine is None:
            raise EngineError("not started")
        expected = (self.verified, self.updating_to)
        try:
            async with asyncio.timeout(timeout):
                info = await self.told()
        except TimeoutError:
            raise EngineError(f"no answer within {timeout:.1f} s") from None
        if expected != (self.verified, self.updating_to):
            return info  # an update began or ended in the meantime: the answer may be stale
        if self.verified is not None and self.updating_to is None and info.version != self.verified:
            raise EngineMismatch(
                f"it reports version {info.version} instead of {self.verified}: it was restarted, or it is updated by "
                "somebody else"
            )
        self._take(info)
        return info

    async def told(self) -> EngineInfo:
        """Return the engine's own report, checked by type and range. Raises `EngineError`."""
        if self.engine is None:
            raise EngineError("not started")
        with client_errors():
            info = await self.engine.info()
        if not isinstance(info, EngineInfo):
            raise EngineError(f"its state is a {type(info).__name__}, not an EngineInfo")
        return engine_info(dataclasses.asdict(info))

    def _take(self, info: EngineInfo) -> None:
        now = time.monotonic()
        if self._busy_at is not None and now > self._busy_at[0]:
            self.busy_share = min(1.0, max(0.0, (info.busy_s - self._busy_at[1]) / (now - self._busy_at[0])))
        if self._busy_at is None or now - self._busy_at[0] > 0.5:
            self._busy_at = (now, info.busy_s)
        self.concurrency = adapt(self.concurrency, info, self.in_flight)
        self.version, self.info = info.version, info

    def explains(self, asked_at: int, oldest: int, newest: int) -> bool:
        """Return whether a response to a request sent at version `asked_at` can come from these versions."""
        known = [asked_at, self.version]
        if self.updating_to is not None:
            known.append(self.updating_to)
        return min(known) <= oldest <= newest <= max(known)

    async def shut_down(self, grace_s: float = TERMINATE_S) -> None:
        """Stop the process and its children, by SIGKILL after `grace_s`, and close the client. Idempotent."""
        engine, process = self.engine, self.process
        self.engine = self.process = None
        if process is not None and process.poll() is None:
            process.terminate()
        if process is not None:
            await asyncio.to_thread(_reap, process, grace_s)
            _remove_socket(self.url)
        if engine is not None:  # last: closing waits for the other side, which may have hung until its end
            await engine.close()


@contextlib.contextmanager
def client_errors() -> Iterator[None]:
    """Turn any error of a client, also of a plug-in, into an `EngineError`: no server may end the service."""
    try:
        yield
    except (EngineError, CheckpointError, TimeoutError):
        raise
    except Exception as error:
        raise EngineError(f"its client failed with {type(error).__name__}: {error}") from error


def _start_server(command: Command, log_path: Path | None) -> ChildProcess:
    if log_path is not None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
    with open(log_path or os.devnull, "ab") as log:
        return ChildProcess(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_environment() | command.environment,  # so that plug-ins that are found here are found there, too
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGTERM if command.has_workers else signal.SIGKILL),
        )


def _reap(process: Process, grace_s: float) -> None:
    """Wait for a server, and end all processes that it started, such as the workers of vLLM."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    process.kill_all()
    process.wait()


def _remove_socket(url: str) -> None:
    scheme, _, path = url.partition("://")
    if scheme == "ws+unix":
        Path(path).unlink(missing_ok=True)


class Locks(Protocol):
    """The store of locks: `DatabaseLocks`. Its methods may block, and raise `DataError`."""

    def take_lock(self, name: str, holder: str, ttl_s: float) -> str:
        """Take or renew a lock; return its holder, who may be another one."""

    def give_back_lock(self, name: str, holder: str) -> None:
        """Release a lock."""


class UpdateLocks:
    """The locks of a service that may share its replicas. It loses a lock if it does not renew it for `lease_s`."""

    def __init__(self, locks: Locks | None, lease_s: float) -> None:
        self._locks, self._lease = locks, lease_s
        self._holder = uuid.uuid4().hex

    @contextlib.asynccontextmanager
    async def held(self, replica: Replica, wait_s: float = 0.0) -> AsyncIterator[None]:
        """Hold the lock during the block, so that no other process updates the replica.

        Raises:
            EngineBusy: if the lock cannot be taken; the block is not entered.
            EngineError: if the lock was lost during the block.
        """
        if self._locks is None or replica.spec.owned:
            yield
            return
        name = _name(replica.url)
        await self._take(name, wait_s)
        lost, over = "", asyncio.Event()
        try:
            async with asyncio.timeout(None) as limit:

                async def renew() -> None:
                    nonlocal lost
                    lost = await self._renew(name, over)
                    if lost:
                        limit.reschedule(asyncio.get_running_loop().time())

                renewing = asyncio.create_task(renew(), name=f"lock {replica.name}")
                try:
                    yield
                finally:
                    over.set()  # waits for a running renewal, which must not take the lock again once it is released
                    await renewing
        except TimeoutError:
            if not lost:
                raise
            raise EngineError(
                f"{replica.name}: the lock on its updates was lost to {lost}; locks last {self._lease:g} s"
            ) from None
        finally:
            if not lost:
                with contextlib.suppress(DataError):  # the lock ends with its lease anyway
                    await asyncio.to_thread(self._locks.give_back_lock, name, self._holder)

    async def _take(self, name: str, wait_s: float) -> None:
        pauses = Pauses(time.monotonic() + wait_s, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                holder = await self._ask(name)
            except DataError as error:
                busy = EngineBusy(f"the lock on its updates cannot be taken: {error}")
            else:
                if holder == self._holder:
                    return
                busy = EngineBusy(f"the rollout service {holder} updates it")
            await pauses.wait(busy)

    async def _renew(self, name: str, over: asyncio.Event) -> str:
        """Renew the lock until `over`; return the holder that took it away, or ""."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lease / RENEWALS):
                    await over.wait()
            if over.is_set():
                return ""
            try:
                holder = await self._ask(name)
            except DataError:
                continue  # nobody else can take the lock either; it is renewed soon
            if holder != self._holder:
                return holder

    async def _ask(self, name: str) -> str:
        assert self._locks is not None
        return await asyncio.to_thread(self._locks.take_lock, name, self._holder, self._lease)


def _name(url: str) -> str:
    name = f"update {url}"
    return name if len(name) <= LONGEST_NAME else f"update {hashlib.sha256(url.encode()).hexdigest()}"

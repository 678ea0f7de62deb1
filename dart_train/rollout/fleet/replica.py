"""One engine replica: a process that is started here, or an engine that runs elsewhere, and what is known about it.

One rollout service at a time updates a replica that several of them use. Within a process `EnginePool` sees to that;
between processes it is a lock (`UpdateLocks`) in the data manager's database, by the replica's address.

Invariants:
    - A process that was started here dies with this process, `kill -9` included, and leaves no socket behind; when it
      is ended, so is every process that it started.
    - `state` says whether requests may be sent: READY and UPDATING take them, the others do not.
    - `verified` is the version that it is known to serve, by its own word after it was started or updated. A replica
      that then says another one was changed behind our back: that is an error, and not its new version.
    - A replica that this process started is nobody else's: it needs no lock, and works on without a database.
    - The holder of a lock renews it all the time. One that is dead, or hung for longer than its lease, gives way; where
      it wakes up again, its update fails.
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
from dart_train.rollout.settings.rollout_config import EngineConfig, SyncConfig

FIRST_LOOK_S = 0.02
SLOWEST_LOOK_S = 0.5
TERMINATE_S = 3.0
UNKNOWN = -1
"""Version of weights of which nobody knows what they are: those of a vLLM server that nobody has updated yet."""
RENEWALS = 3  # of a lock within a lease
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0


class Wakeup:
    """Lets coroutines wait until something changed; each then looks for itself. For one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """Let all that wait look again."""
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
    UPDATING = "updating"  # loads weights between two batches; requests wait, so others are preferred
    DRAINING = "draining"  # ends its requests before an update
    DOWN = "down"


class ServerProcess(Process, Protocol):
    """A server on another node."""

    async def fetch(self, url: str) -> str:
        """Have its node fetch shared weights; returns their directory there. Raises `EngineError`."""


class EngineNodes(Protocol):
    """Nodes that servers are started on."""

    async def start(self, kind: EngineKind, launch: Launch, url: str, log: Path | None) -> tuple[ServerProcess, str]:
        """Start a server of the weights at `url`, as soon as a node has room; returns it and its address.

        Raises:
            EngineError: it could not be started.
        """


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What a replica is.

    Attributes:
        url: address of an engine that runs elsewhere; "" for a process that is started here.
        directory: directory for the sockets and temporary files of a process that is started here; a short path.
        gpus: indices of its GPUs; None where nobody gave it any.
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
        """Return whether it is a process that is started here."""
        return not self.url

    def launch(self, weights: Weights) -> Launch:
        """Return what its process is started with."""
        return Launch(
            name=f"r{self.index}",
            index=self.index,
            path=weights.path,
            version=weights.version,
            directory=self.directory,
            images=self.config.images,
            transfer=self.sync.transfer,
            gpus=self.gpus,
            gpu_memory=self.gpu_memory,
        )

    def command(self, weights: Weights) -> Command:
        """Return what starts its process on this machine."""
        return self.kind.command(self.launch(weights))


@dataclass(slots=True)
class Replica:
    """State of a replica. Only its `ReplicaLife` changes it.

    Attributes:
        name: unique in the fleet.
        loading: how weights are streamed into its server; None where it reads files.
        version: version of the weights that it last said it serves; `UNKNOWN` before.
        verified: the version that it must say; None while it is not known.
        updating_to: the version that it is being updated to; None while it is not.
        tainted: an update failed, so that it may hold a mixture: it serves nothing before it was started or updated.
        in_flight: number of requests that it has from here.
        errors: number of requests that have failed since its last answer.
        bad_responses: number of its responses that no response can be, in all.
        failures: times that it went out of service since it last served well.
        busy_share: share of the last seconds in which it computed, from 0 to 1.
        alarm: set when it goes out of service.
        examining: held while somebody finds out whether it is what is wrong.
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
        """Most requests that it gets at a time."""
        return self.concurrency.limit

    @property
    def usable(self) -> bool:
        """Return whether it is in service: requests may be sent to it, or may again once it is updated."""
        return self.state in (ReplicaState.READY, ReplicaState.UPDATING, ReplicaState.DRAINING)

    @property
    def died(self) -> bool:
        """Return whether its process is ours and has ended."""
        return self.process is not None and self.process.poll() is not None

    async def launch(self, weights: Weights) -> None:
        """Start the process, or only a client.

        Raises:
            OSError: if the process does not start.
            DartGymError: if the address or the model is wrong.
        """
        spec = self.spec
        if spec.owned:
            if spec.nodes is not None:
                self.process, self.url = await spec.nodes.start(spec.kind, spec.launch(weights), weights.url, spec.log)
            else:
                command = spec.command(weights)
                _remove_socket(command.url)
                self.process, self.url = _start_server(command, spec.log), command.url
            self.tainted = False  # a new process
        self.engine = spec.kind.connect(
            Connection(
                self.url,
                weights.path,
                name=self.name,
                version=weights.version if spec.owned else UNKNOWN,
                # `ReplicaLife.ask` is stricter: it knows the queue.
                request_timeout_s=max(spec.config.request_timeout_s, spec.config.unavailable_timeout_s),
                update_timeout_s=spec.config.start_timeout_s,
                pause="keep" if spec.config.update == "keep" else "abort",
                loading=self.loading,
            )
        )
        self.version = UNKNOWN
        self.verified = None
        self.updating_to = None
        self.info = None
        self._busy_at = None

    async def path_of(self, weights: Weights) -> str:
        """Directory of weights where the server is. Raises `EngineError` where its node cannot get them."""
        process = self.process
        if self.spec.nodes is None or process is None:
            return weights.path
        return await cast(ServerProcess, process).fetch(weights.url)

    async def until_ready(self, timeout: float) -> EngineInfo:
        """Wait until the replica answers.

        Raises:
            EngineMismatch: if it serves something else than expected.
            EngineError: if it has ended or is late.
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
                await pauses.wait(EngineError(f"no answer within {timeout:.0f} s: {error}"))

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
            return info  # an update began or ended meanwhile: the answer may be stale
        if self.verified is not None and self.updating_to is None and info.version != self.verified:
            raise EngineMismatch(
                f"it says that it serves version {info.version}, it was given {self.verified}: it was started again or "
                "is updated by somebody else"
            )
        self._take(info)
        return info

    async def told(self) -> EngineInfo:
        """Return what the engine says of itself, checked by type and range. Raises `EngineError`."""
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
        """Return whether a response to a request that was sent at version `asked_at` can be of these versions."""
        known = [asked_at, self.version]
        if self.updating_to is not None:
            known.append(self.updating_to)
        return min(known) <= oldest <= newest <= max(known)

    async def shut_down(self, grace_s: float = TERMINATE_S) -> None:
        """End the process and what it started, by SIGKILL after `grace_s`, and close the client. Idempotent."""
        engine, process = self.engine, self.process
        self.engine = self.process = None
        if process is not None and process.poll() is None:
            process.terminate()
        if process is not None:
            await asyncio.to_thread(_reap, process, grace_s)
            _remove_socket(self.url)
        if engine is not None:  # last: closing waits for the other side, which may have stood still until its end
            await engine.close()


@contextlib.contextmanager
def client_errors() -> Iterator[None]:
    """Turn what a client of ours or of a plug-in fails with into an `EngineError`: no server may end the service."""
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
            env=child_environment() | command.environment,  # an engine of a plug-in is found there as it is here
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGTERM if command.has_workers else signal.SIGKILL),
        )


def _reap(process: Process, grace_s: float) -> None:
    """Wait for a server, and end all that it started: a vLLM server computes in children of its own."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    process.kill_all()
    process.wait()


def _remove_socket(url: str) -> None:
    scheme, _, path = url.partition("://")
    if scheme == "ws+unix":
        Path(path).unlink(missing_ok=True)


class Locks(Protocol):
    """Where locks are kept: `DatabaseLocks`. Its methods may block, and raise `DataError`."""

    def take_lock(self, name: str, holder: str, ttl_s: float) -> str:
        """Take a lock, or renew it; return its holder."""

    def give_back_lock(self, name: str, holder: str) -> None:
        """Let it go."""


class UpdateLocks:
    """The locks of one service that shares its replicas (or not: None); silent for `lease_s` it gives way."""

    def __init__(self, locks: Locks | None, lease_s: float) -> None:
        self._locks, self._lease = locks, lease_s
        self._holder = uuid.uuid4().hex

    @contextlib.asynccontextmanager
    async def held(self, replica: Replica, wait_s: float = 0.0) -> AsyncIterator[None]:
        """Hold the lock in the block, so that no other process updates the replica.

        Raises:
            EngineBusy: if the block was not begun.
            EngineError: if the lock was lost.
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
                    over.set()  # a renewal under way is waited for: it must not take again what is given back
                    await renewing
        except TimeoutError:
            if not lost:
                raise
            raise EngineError(
                f"{replica.name}: the lock on its updates was lost to {lost}; locks last {self._lease:g} s"
            ) from None
        finally:
            if not lost:
                with contextlib.suppress(DataError):  # it is over after its lease in any case
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
        """Hold the lock until it is over; return who took it, "" for nobody."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lease / RENEWALS):
                    await over.wait()
            if over.is_set():
                return ""
            try:
                holder = await self._ask(name)
            except DataError:
                continue  # nobody else can take it either, and we look again soon
            if holder != self._holder:
                return holder

    async def _ask(self, name: str) -> str:
        assert self._locks is not None
        return await asyncio.to_thread(self._locks.take_lock, name, self._holder, self._lease)


def _name(url: str) -> str:
    name = f"update {url}"
    return name if len(name) <= LONGEST_NAME else f"update {hashlib.sha256(url.encode()).hexdigest()}"

"""RemoteProgram: a program on another node with the interface of a child process (`Process`).

Invariants:
    - Only `begun` and `wait`, which have a deadline, and `kill_all`, which waits 2 s, ever wait for a node.
    - Output and metrics of the program are appended to files in the launcher's run directory, once and in order.
    - A lost node looks like a program that was killed (status -9); the log says so.
"""

import asyncio
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from dart_agent.engines.base.engine import EngineError, UpdateNotBegun
from dart_gym.utils.processes import HOPELESS_STATUS
from dart_train.nodes.program_host import HOST

POLL_S = 0.3
KILL_S = 2.0
PATIENCE_S = 10.0  # starting an actor takes seconds even where resources are free


class Polled:
    """A program elsewhere that has to be polled; `pid` is 0, which no local program has."""

    def __init__(self, name: str) -> None:
        self.name, self.pid = name, 0
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """See `Process`."""
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> int:
        """See `Process`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(self.name, timeout or 0)
            time.sleep(0.05)
        return self.returncode or 0


class RemoteProgram(Polled):
    """A program that an actor runs.

    Args:
        actor: the Ray actor of a `ProgramHost`.
        begun: reference to the result of its start.
        name: name of the program.
        asks: resources that it may have to wait for, in words, such as "{GPU: 2} free".
        log: file for its output; None for no log.
        metrics: directory for its metrics; None for no metrics.

    Attributes:
        returncode: its exit status; None while it runs.
        started: result of its start; None before.
    """

    def __init__(
        self, actor: Any, begun: Any, name: str, asks: str, *, log: Path | None = None, metrics: Path | None = None
    ) -> None:
        super().__init__(name)
        self.started: Any = None
        self.asks = asks
        self.since = time.time()
        self.actor = actor
        self._answer = begun
        self._log = log
        self._metrics = metrics
        self._seen: dict[str, int] = {}
        self._looked = 0.0

    @property
    def node(self) -> str:
        """Address of the node that runs the program; "" before it was started."""
        return str((self.started or {}).get(HOST, ""))

    @property
    def waiting(self) -> str:
        """Return the resources that it waits for and since when; "" once a node runs it."""
        settled = self.started is not None or self.returncode is not None
        if settled or not self.asks or time.time() - self.since < PATIENCE_S:
            return ""
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"{self.name} waits for a node with {self.asks} since {since}"

    def poll(self) -> int | None:
        """See `Process`. Also writes the new output of the program into its files."""
        import ray

        if self.returncode is not None or time.monotonic() - self._looked < POLL_S:
            return self.returncode
        self._looked = time.monotonic()
        if not ray.wait([self._answer], timeout=0)[0]:
            return None
        try:
            answer = ray.get(self._answer)
        except ray.exceptions.RayTaskError as error:
            return self._end(HOPELESS_STATUS if getattr(error.cause, "hopeless", False) else 1, f"error: {error.cause}")
        except ray.exceptions.RayError as error:
            return self._end(-signal.SIGKILL, f"--- {self.name}: its node or its actor is lost ({_first(error)})")
        if self.started is None:
            self.started = answer
        else:
            status, parts = answer
            self._take(parts)
            if status is not None:
                return self._end(status)
        self._answer = self.actor.poll.remote(dict(self._seen))
        return None

    def terminate(self) -> None:
        """See `Process`. A program that no node runs yet is given up."""
        if self.started is None:
            self.kill_all()
        elif self.returncode is None:
            self.actor.signal.remote(int(signal.SIGTERM))

    def kill_all(self) -> None:
        """See `Process`."""
        import ray

        if self.returncode is None:
            try:
                if self.started is not None:
                    ray.get(self.actor.kill_all.remote(), timeout=KILL_S)
            except ray.exceptions.RayError:  # the actor is lost or does not answer; its end ends the program
                pass
            self._end(-signal.SIGKILL)

    async def fetch(self, url: str) -> str:
        """Have its node fetch shared weights; see `dart_train.rollout.fleet.replica.ServerProcess`."""
        import ray

        try:
            return await self.actor.fetch.remote(url)
        except ray.exceptions.RayError as error:
            raise UpdateNotBegun(f"{self.name} cannot get {url}: {_first(error)}") from error

    async def begun(self) -> Any:
        """Wait until a node has started the program; return the result of its start. Raises `EngineError`."""
        while self.started is None and self.poll() is None:
            await asyncio.sleep(POLL_S)
        if self.started is None:
            raise EngineError(f"{self.name} could not be started; see its log")
        return self.started

    def _take(self, parts: dict[str, bytes]) -> None:
        for name, part in parts.items():
            self._seen[name] = self._seen.get(name, 0) + len(part)
            metrics = self._metrics / name if self._metrics else None
            path = self._log if name == "log" else metrics
            if path is not None:
                with path.open("ab") as file:
                    file.write(part)

    def _end(self, status: int, said: str = "") -> int:
        import ray

        self.returncode = status
        if said and self._log is not None:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(f"{said}\n")
        ray.kill(self.actor)
        return status


def _first(error: Exception) -> str:
    """Return the first line of an error, or of its cause in the actor: Ray's own messages fill pages."""
    return str(getattr(error, "cause", None) or error).strip().partition("\n")[0]

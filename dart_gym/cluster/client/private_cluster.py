"""A private cluster on this machine: what environments use that are given no URL.

It is the same server as everywhere, `dart-gym serve`, as a child process on a Unix socket in a private directory.

Invariants:
    - One that has ended by itself, or lives and does not answer, is replaced on the same socket; it is given up when
      that happens `MOST_ENDS` times in a row.
    - It dies with this process, however that ends, and its directory goes with it when it ends regularly
      or the server does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import time
from pathlib import Path

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.server_health import PERIOD_S, Patience, look_at
from dart_gym.core.errors import ClusterError
from dart_gym.core.platforms import check_platform
from dart_gym.desktops.sandbox.runtime_directory import own_directory
from dart_gym.utils.plugins import child_environment
from dart_gym.utils.waits import waiting_for

log = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
MOST_ENDS = 4
LONG_LIFE_S = 60.0  # a server that ends later than this has not failed at its start
SOCKET = "gym.sock"
SHARED_DESKTOPS = 64  # a limit, not a number: desktops boot when they are first needed


class LocalCluster:
    """A `dart-gym serve` of our own, by `async with` or `start` and `stop`; `sandbox` replaces what tasks ask for."""

    def __init__(self, desktops: int = SHARED_DESKTOPS, *, sandbox: str | None = None) -> None:
        self._desktops, self._sandbox = desktops, sandbox
        self._directory: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LocalCluster:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where it listens, once started."""
        if self._directory is None:
            raise ClusterError("the private cluster is not started", "state")
        return f"ws+unix://{self._directory}/{SOCKET}"

    @property
    def pid(self) -> int | None:
        """Process id; None when not started."""
        return self._process.pid if self._process else None

    def client(self) -> ClusterClient:
        """Return a client of this cluster."""
        return ClusterClient(self.url)

    async def start(self) -> None:
        """Start the server; returns when it listens. Raises `ClusterError` with the end of its log."""
        check_platform("darwin")
        self._directory = own_directory("cluster-")
        await self._spawn()
        self._watch = asyncio.create_task(self._keep_up(), name="private-cluster")

    async def _keep_up(self) -> None:
        """Replace the server when it has ended, or lives and does not answer."""
        ends = 0
        while ends < MOST_ENDS:
            started = time.monotonic()
            process, patience = self._process, Patience()
            assert process is not None and self._directory is not None  # until `stop`, which ends this first
            socket = self._directory / SOCKET
            while process.returncode is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PERIOD_S):
                        await process.wait()
                if process.returncode is None and patience.is_over(await asyncio.to_thread(look_at, socket)):
                    process.kill()
                    await process.wait()
            ends = ends + 1 if time.monotonic() - started < LONG_LIFE_S else 1
            log.warning("the private environment cluster has ended or hung (%s); another one is started", self._log)
            self._directory.mkdir(mode=0o700, exist_ok=True)
            try:
                await self._spawn()
            except ClusterError as error:
                log.error("%s", error)
                return

    async def _spawn(self) -> None:
        command = [sys.executable, "-m", "dart_gym.commands.gym_cli", "serve", "--listen", self.url]
        command += ["--desktops", str(self._desktops), "--private", "--die-with-parent", "--parent", str(os.getpid())]
        if self._sandbox:
            command += ["--isolation", self._sandbox]
        try:
            with open(self._log, "ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=output,
                    env=child_environment(),
                )
            with waiting_for("the server of this machine's desktops", START_TIMEOUT_S):
                await self._wait_until_listening(self._process)
        except BaseException:
            await self.stop()
            raise

    @property
    def _log(self) -> Path:
        assert self._directory is not None  # `start` made it
        return self._directory / "server.log"

    async def _wait_until_listening(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # a pipe was asked for
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                line = await process.stdout.readline()  # the server says where it listens
        except TimeoutError:
            line = b""
        if not line.startswith(b"listening on "):
            tail = self._log.read_text(errors="replace")[-2000:].strip()
            raise ClusterError(f"the private environment cluster did not start:\n{tail or 'no output'}", "unreachable")

    async def stop(self) -> None:
        """Stop all desktops and the server, and remove its directory. Idempotent."""
        watch, self._watch = self._watch, None
        if watch is not None and watch is not asyncio.current_task():
            watch.cancel()
            await asyncio.wait({watch})
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

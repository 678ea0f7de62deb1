"""A private cluster on this machine: what environments use that are given no URL.

It is the same server as everywhere, `dart-gym serve`, as a child process on a Unix socket in a private directory.

Invariants:
    - It dies with this process, however that ends, and its directory goes with it when it ends regularly
      or the server does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from pathlib import Path

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.core.errors import ClusterError
from dart_gym.desktops.sandbox.runtime_directory import own_directory
from dart_gym.utils.plugins import child_environment

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
SHARED_DESKTOPS = 64  # a limit, not a number: desktops boot when they are first needed


class LocalCluster:
    """A `dart-gym serve` of our own. Use as an async context manager, or `start` and `stop`.

    Args:
        desktops: how many desktops may run at once.
        sandbox: "bwrap" or "none", replacing what the tasks ask for; None leaves it to them.
    """

    def __init__(self, desktops: int = SHARED_DESKTOPS, *, sandbox: str | None = None) -> None:
        self._desktops, self._sandbox = desktops, sandbox
        self._directory: Path | None = None
        self._process: asyncio.subprocess.Process | None = None

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
        return f"ws+unix://{self._directory}/gym.sock"

    @property
    def pid(self) -> int | None:
        """Process id; None when not started."""
        return self._process.pid if self._process else None

    def client(self) -> ClusterClient:
        """A client of it."""
        return ClusterClient(self.url)

    async def start(self) -> None:
        """Start the server and return when it listens.

        Raises:
            ClusterError: it did not come up; the message holds the end of its log.
        """
        self._directory = own_directory("cluster-")
        command = [sys.executable, "-m", "dart_gym.commands.gym_cli", "serve", "--listen", self.url]
        command += ["--desktops", str(self._desktops), "--private", "--die-with-parent", "--parent", str(os.getpid())]
        if self._sandbox:
            command += ["--sandbox", self._sandbox]
        try:
            with open(self._log, "wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env=child_environment(),
                )
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

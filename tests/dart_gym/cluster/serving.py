"""A real `dart-gym serve` process for fault tests, in a runtime directory of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.cluster.server.page_server import PageServer
from dart_gym.cluster.server.watch_proxy import cluster_routes
from dart_gym.desktops.sandbox.guest import descendants
from dart_gym.utils.processes import start_time


@contextlib.asynccontextmanager
async def watch_proxy(url: str, token: str | None = None, port: int = 0) -> AsyncIterator[PageServer]:
    """The page of a cluster, as `dart-agent view URL` serves it."""
    async with cluster_routes(url, token) as routes, PageServer(("live",), routes, port) as server:
        yield server


def small_desktop(name: str = "small", **fields: str) -> dict[str, Any]:
    """A task on a small bare desktop, without set-up, that is not kept over episodes."""
    return {
        "id": name,
        "instruction": "do nothing",
        "evaluator": {"func": "infeasible"},
        "dart": {"desktop": {"width": 320, "height": 240, "profile": "bare", **fields}, "max_steps": 10_000},
    }


class Place:
    """A runtime directory and an address, for servers one after the other or side by side."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="dg-", dir="/tmp"))  # short: sockets lie below it
        self.url = f"ws+unix://{self.path}/serve.sock"

    def desktops(self) -> list[str]:
        """Names of the desktops' directories, those in the making too."""
        return sorted(path.name for path in self.path.glob("dart-gym-*/*"))

    def remove(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.path, ignore_errors=True)


class ServeProcess:
    """`dart-gym serve` at a place. An async context manager, which ends it."""

    def __init__(self, place: Place, *options: str, env: dict[str, str] | None = None, url: str = "") -> None:
        self.place, self.url = place, url or place.url
        self._options, self._env = options, env or {}

    async def __aenter__(self) -> ServeProcess:
        env = {**os.environ, "XDG_RUNTIME_DIR": str(self.place.path), **self._env}
        command = [sys.executable, "-m", "dart_gym.commands.gym_cli", "serve", "--listen", self.url, *self._options]
        with open(self.place.path / "serve.log", "ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, env=env, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        assert self.process.stdout is not None
        async with asyncio.timeout(60.0):
            line = await self.process.stdout.readline()
        assert line.startswith(b"listening on "), self.log()
        return self

    async def __aexit__(self, *exc: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        await asyncio.wait_for(self.process.wait(), 30.0)

    @property
    def pid(self) -> int:
        """Of the server."""
        return self.process.pid

    def log(self) -> str:
        """What all servers of this place have logged."""
        return (self.place.path / "serve.log").read_text(errors="replace")

    def processes(self) -> dict[int, tuple[int | None, str]]:
        """Start time and name of all that it has started."""
        found = {}
        for pid in descendants(self.pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found[pid] = (start_time(pid), Path(f"/proc/{pid}/comm").read_text().strip())
        return found

    def named(self, name: str) -> list[int]:
        """Pids of those of a name."""
        return [pid for pid, (_, comm) in self.processes().items() if comm == name]

    async def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        await self.process.wait()

    def client(self) -> ClusterClient:
        """A client that tries for long to connect again."""
        return ClusterClient(self.url, settings=ClientSettings(reconnect_s=30.0))


class Line:
    """A line of bytes to a server's Unix socket, which can be cut, lose what comes back, and be slow.

    An async context manager.
    """

    def __init__(self, target: Path, path: Path) -> None:
        self.target, self.path = target, path
        self.url = f"ws+unix://{path}"
        self.lose_next_reply, self.lost, self.chunk = False, asyncio.Event(), 1 << 16
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Line:
        self._server = await asyncio.start_unix_server(self._join, str(self.path))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(str(self.target))
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._writers |= ends
        await asyncio.gather(self._pump(reader, far_writer, False), self._pump(far_reader, writer, True))
        for end in ends:
            end.transport.abort()
        self._writers -= ends

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(self.chunk):
                if replies and self.lose_next_reply:
                    self.lose_next_reply = False
                    self.cut()
                    self.lost.set()
                    return
                writer.write(data)
                await writer.drain()
                if self.chunk < 1 << 16:
                    await asyncio.sleep(0.001)  # a slow line
        writer.transport.abort()  # one end has gone: so does the other


def none_runs(processes: dict[int, tuple[int | None, str]]) -> bool:
    """Whether all processes of an earlier list have ended."""
    return all(start_time(pid) != started for pid, (started, _) in processes.items() if started is not None)

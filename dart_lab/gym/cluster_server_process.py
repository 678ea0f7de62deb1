"""A cluster's server in a process of its own, as clients meet it, for the benchmark.

It differs from `dart-gym serve` in one thing: drawn desktops may show a given picture, so that large frames with real
content can be measured without what a real desktop adds. Run it with `python -m`; `BenchServer` does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.core.errors import ClusterError
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.desktops.sandbox.runtime_directory import runtime_dir
from dart_gym.utils.processes import follow_parent
from dart_lab.gym.own_processes import module_command, own_environment


class PictureDesktop(FakeDesktop):
    """A drawn desktop that shows a picture of its size."""

    def __init__(self, spec: DesktopSpec, picture: NDArray[np.uint8]) -> None:
        super().__init__(spec)
        self._picture = picture

    def _draw(self) -> NDArray[np.uint8]:
        return self._picture


class DesktopMaker:
    """Makes desktops; drawn ones of the picture's size show the picture."""

    def __init__(self, picture: NDArray[np.uint8] | None) -> None:
        self._picture = picture

    def __call__(self, spec: DesktopSpec) -> Desktop:
        """A desktop that is not started yet."""
        picture = self._picture
        if picture is not None and spec.kind == "fake" and (spec.height, spec.width) == picture.shape[:2]:
            return PictureDesktop(spec, picture)
        return make_desktop(spec)


class BenchServer:
    """The server's process. Use as an async context manager.

    Args:
        desktops: how many may run at once.
        picture: of drawn desktops of its size.
    """

    def __init__(self, desktops: int, picture: NDArray[np.uint8] | None = None) -> None:
        self._desktops, self._picture = desktops, picture
        self._stack = contextlib.ExitStack()
        self._process: asyncio.subprocess.Process | None = None
        self._directory = Path()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"ws+unix://{self._directory}/gym.sock"

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None  # started
        return self._process.pid

    async def __aenter__(self) -> BenchServer:
        holder = tempfile.TemporaryDirectory(prefix="bench-", dir=runtime_dir())
        self._directory = Path(self._stack.enter_context(holder))
        command = module_command(__name__, self.url, str(self._desktops), str(os.getpid()))
        if self._picture is not None:
            np.save(self._directory / "picture.npy", self._picture)
            command.append(str(self._directory / "picture.npy"))
        self._process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, env=own_environment()
        )
        assert self._process.stdout is not None  # a pipe was asked for
        async with asyncio.timeout(60.0):
            line = await self._process.stdout.readline()
        if not line.startswith(b"listening"):
            await self.__aexit__()
            raise ClusterError("the benchmark's server did not start; its errors are above", "unreachable")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
        self._stack.close()


async def serve(url: str, desktops: int, picture: NDArray[np.uint8] | None) -> None:
    """Serve until SIGTERM."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    async with ClusterServer(ServerSettings(listen=url, desktops=desktops), DesktopMaker(picture)):
        print("listening", flush=True)
        await ending.wait()


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("desktops", type=int)
    parser.add_argument("parent", type=int)
    parser.add_argument("picture", nargs="?")
    arguments = parser.parse_args()
    follow_parent(arguments.parent)
    picture = np.load(arguments.picture) if arguments.picture else None
    asyncio.run(serve(arguments.url, arguments.desktops, picture))


if __name__ == "__main__":
    main()

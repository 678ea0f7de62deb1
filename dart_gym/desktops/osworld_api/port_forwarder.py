"""Leads local TCP ports to ports of a desktop, for clients that know only TCP (playwright, VLC's web interface)."""

import asyncio
from collections.abc import Awaitable

from dart_gym.core.errors import DesktopError
from dart_gym.desktops.base.desktop import Desktop

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_CHUNK = 1 << 16


class PortForwarder:
    """Loopback ports of this side, each leading to a port on the desktop's own loopback."""

    def __init__(self, desktop: Desktop) -> None:
        self._desktop = desktop
        self._servers: list[asyncio.Server] = []
        self._clients: set[asyncio.Task[None]] = set()

    async def forward(self, port: int) -> int:
        """Listen on a free port of this side for clients of the desktop's port, and return it."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._clients.add(task)
            task.add_done_callback(self._clients.discard)
            try:
                path = await self._desktop.open_port(port)
                await join(reader, writer, asyncio.open_unix_connection(path))
            except (OSError, DesktopError, asyncio.CancelledError):
                writer.close()  # either side may leave at any time; the client sees a closed connection

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and drop the clients. Idempotent."""
        for server in self._servers:
            server.close()
        self._servers = []
        for task in list(self._clients):
            task.cancel()
        if self._clients:
            await asyncio.wait(self._clients)


async def join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    opening: Awaitable[Streams],
    timeout: float | None = None,
) -> None:
    """Lead a connection to another one until both sides have ended; closes both. Raises `OSError` as they break."""
    try:
        async with asyncio.timeout(timeout):
            inner_reader, inner_writer = await opening
        try:
            await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))
        finally:
            inner_writer.close()
    finally:
        writer.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()

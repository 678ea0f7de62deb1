"""The host's side of `guest.py`: requests over a Unix socket, one connection each, without blocking the event loop."""

import asyncio
import builtins
import json
import math
import socket
from pathlib import Path
from typing import Any

from dart_gym.core.errors import DesktopError, DesktopStateError, DesktopTimeoutError, words_of
from dart_gym.core.os_remedies import FULL
from dart_gym.desktops.base.desktop import CommandResult

MAX_FILE = 256 << 20
"""Bytes of the largest file that is read from a desktop."""
MAX_OUTPUT = 64 << 20
"""Bytes that a program may write to be taken whole: standard output and error together."""
_MAX_HEADER = 1 << 20
_MAX_WORDS = 1 << 16  # bytes of an error
_CHUNK = 1 << 16


class GuestClient:
    """Talks to the guest of one sandbox."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def boot(self, timeout: float) -> int:
        """Start display, bus and window manager; return the display's number."""
        reply, _ = await self._request({"op": "boot"}, timeout=timeout)
        return int(reply["display"])

    async def launch(self, name: str, command: list[str], env: dict[str, str], *, essential: bool = False) -> None:
        """Start a program in the background, its output in `<name>.log`."""
        header = {"op": "launch", "name": name, "command": command, "env": env, "essential": essential}
        await self._request(header)

    async def run(self, command: list[str], env: dict[str, str], stdin: bytes, timeout: float) -> CommandResult:
        """Run a program to its end; it is killed when it is late or when the caller is cancelled."""
        try:
            header = {"op": "run", "command": command, "env": env, "limit": MAX_OUTPUT}
            reply, body = await self._request(header, stdin, timeout=timeout, limit=MAX_OUTPUT)
        except DesktopTimeoutError:
            message = f"{command[0]!r} did not end within {timeout:g} s and was killed; give it a longer timeout"
            raise DesktopTimeoutError(message) from None
        outputs = body[: reply["stdout"]], body[reply["stdout"] :]
        return CommandResult(reply["returncode"], *outputs, missing=reply.get("missing") is True)

    async def read_file(self, path: str) -> bytes:
        """Content of a file inside."""
        return (await self._request({"op": "read", "path": path, "limit": MAX_FILE}, limit=MAX_FILE))[1]

    async def write_file(self, path: str, data: bytes, *, append: bool = False) -> None:
        """Create, replace or append to a file inside."""
        await self._request({"op": "write", "path": path, "append": append}, data)

    async def listen(self, listener: socket.socket, port: int) -> None:
        """Have the guest lead the clients of a listening socket to a port of its loopback."""
        await self._request({"op": "listen", "port": port}, fd=listener.fileno())

    async def _request(
        self,
        header: dict[str, Any],
        body: bytes = b"",
        *,
        fd: int | None = None,
        timeout: float = math.inf,
        limit: int = 0,
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request, by default for as long as the caller waits.

        Raises:
            DesktopStateError: programs inside have used up what it needs.
            DesktopError: the guest failed.
            OSError: what the operation raised.
        """
        try:
            async with asyncio.timeout(timeout):
                exchange = self._exchange({**header, "body": len(body)}, body, fd, max(limit, _MAX_WORDS))
                reply, content = await exchange
        except TimeoutError:
            raise DesktopTimeoutError(f"the desktop did not answer '{header['op']}' within {timeout:g} s") from None
        except (ConnectionError, FileNotFoundError) as error:
            raise DesktopError(f"the desktop has ended ({words_of(error)})") from error
        if reply.get("error") == "Exhausted":
            raise DesktopStateError(f"programs of the desktop leave no room for '{header['op']}': {reply['message']}")
        if reply.get("errno") in FULL:
            raise DesktopError(f"the disk of the desktop is full: {reply['message']}")
        if "error" in reply:
            kind = getattr(builtins, reply["error"], None)
            if isinstance(kind, type) and issubclass(kind, OSError):
                raise kind(reply["message"])
            raise DesktopError(f"the desktop could not do '{header['op']}': {reply['message']}")
        return reply, content

    async def _exchange(
        self, header: dict[str, Any], body: bytes, fd: int | None, limit: int
    ) -> tuple[dict[str, Any], bytes]:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.setblocking(False)
            await loop.sock_connect(connection, str(self._path))
            line = json.dumps(header).encode() + b"\n"
            if fd is not None:
                socket.send_fds(connection, [line], [fd])
            else:
                await loop.sock_sendall(connection, line + body)
            data = bytearray()
            while (end := data.find(b"\n", max(0, len(data) - _CHUNK))) < 0:
                data += await self._receive(loop, connection)
                if len(data) > _MAX_HEADER + _CHUNK:
                    raise DesktopError("the desktop's answer has no header")
            reply, length = _header_of(bytes(data[:end]), limit)
            del data[: end + 1]
            while len(data) < length:
                data += await self._receive(loop, connection)
            return reply, bytes(data[:length])

    @staticmethod
    async def _receive(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> bytes:
        chunk = await loop.sock_recv(connection, _CHUNK)
        if not chunk:
            raise ConnectionResetError("its socket closed")
        return chunk


def _header_of(line: bytes, limit: int) -> tuple[dict[str, Any], int]:
    """An answer's header and the length of its body, of which nothing is believed."""
    try:
        reply = json.loads(line)
        length = reply["body"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DesktopError(f"the desktop's answer has a bad header: {error!r:.100}") from None
    if type(length) is not int or not 0 <= length <= limit:
        raise DesktopError(f"the desktop's answer is larger than {limit} bytes, and is not read")
    return reply, length

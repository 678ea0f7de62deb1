"""The server's end of the connection to one keeper: requests and answers, each with a deadline, and its end.

Invariants:
    - Requests may overlap; each gets its own answer, is cancelled in the keeper when its caller is, and ends the
      keeper with all of its desktop when it is late.
    - What comes from the keeper is bounded and checked; what is not an answer to a request ends it too.
    - When the connection has closed, the keeper is gone and so are the processes and files of its desktop: a client
      that cleans up after it holds the connection open until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from typing import Any

from dart_gym.core.errors import DesktopError, DesktopKilledError, DesktopTimeoutError
from dart_gym.desktops.keeper import keeper_deadlines
from dart_gym.desktops.keeper.fork_client import ForkClient, Keeper, fork_client
from dart_gym.desktops.keeper.held_up import held_up_inside
from dart_gym.desktops.keeper.keeper_messages import (
    STREAM_BUFFER,
    MessageError,
    decode_error,
    encode_message,
    field,
    read_message,
)

STOPPED = "the desktop is not started, or was stopped"
_CLEANING_S = 60.0


class KeeperLink:
    """Talks to one keeper, made with `open`; `killed`: its own programs ended the desktop, or held it up until then."""

    def __init__(
        self, clients: ForkClient, keeper: Keeper, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._clients = clients
        self._keeper = keeper
        self._reader = reader
        self._writer = writer
        self.pid = keeper.pid
        self.desktop_ended = False
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[asyncio.Future[tuple[dict[str, Any], bytes]], int]] = {}
        self._forgotten: dict[int, int] = {}  # cancelled, with the limits of their bodies
        self._end = ""  # why there are no more answers
        self.killed = False
        self._ended = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name=f"keeper-{keeper.pid}")

    @classmethod
    async def open(cls, spec: dict[str, Any], frame_fd: int) -> KeeperLink:
        """Start a keeper for a desktop that draws its frames into the memory `frame_fd`.

        Raises:
            DesktopError: if the keeper does not start.
        """
        ours, theirs = socket.socketpair()
        clients = fork_client()
        fds = theirs.detach(), os.dup(frame_fd)
        starting = asyncio.ensure_future(asyncio.to_thread(clients.start_keeper, spec, *fds))
        try:
            keeper = await asyncio.shield(starting)
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=STREAM_BUFFER)
        except BaseException:
            ours.close()  # which ends a keeper that has started
            starting.add_done_callback(_let_go)
            raise
        return cls(clients, keeper, reader, writer)

    @property
    def alive(self) -> bool:
        """Return whether there may still be answers, and the desktop is not known to have ended."""
        return not self._end and not self.desktop_ended

    async def ask(
        self, op: str, values: dict[str, Any] | None = None, body: bytes = b"", *, deadline_s: float, limit: int = 0
    ) -> tuple[dict[str, Any], bytes]:
        """Request an operation and return its result. An error of the operation is raised here.

        Raises:
            DesktopError: if the keeper has ended.
            DesktopTimeoutError: if it is late.
        """
        if self._end:
            raise self._gone()
        number = next(self._numbers)
        answer: asyncio.Future[tuple[dict[str, Any], bytes]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer, limit
        try:
            async with asyncio.timeout(deadline_s):
                await self._send({"id": number, "op": op, "args": values or {}}, body)
                return await answer
        except TimeoutError as error:
            if answer.done() and not answer.cancelled() and answer.exception() is error:
                raise  # it is the operation's own
            message = f"the desktop did not answer {op!r} within {deadline_s:g} s, and was ended"
            self.killed = self.killed or await asyncio.to_thread(held_up_inside, self.pid)
            self.kill(message)
            raise self._gone(DesktopTimeoutError) from None
        except asyncio.CancelledError:
            if not self._end and not answer.done():
                self._forgotten[number] = limit
                self._writer.write(encode_message({"cancel": number}))
            raise
        finally:
            self._asked.pop(number, None)

    async def _send(self, header: dict[str, Any], body: bytes = b"") -> None:
        try:
            self._writer.write(encode_message(header, len(body)))
            if body:
                self._writer.write(body)
            await self._writer.drain()
        except ConnectionError:
            pass  # the reader finds out why, and tells the waiting calls

    async def _read(self) -> None:
        try:
            while True:
                self._take(*await read_message(self._reader, self._limit))
        except MessageError as error:
            self.kill(f"the desktop's keeper sent {error}, and was ended")
            with contextlib.suppress(ConnectionError):
                while await self._reader.read(STREAM_BUFFER):
                    pass
        except (asyncio.IncompleteReadError, ConnectionError):
            if not self._end:
                why, self.killed = await asyncio.to_thread(self._clients.describe_end, self._keeper)
                self._over(why)
        finally:
            self._over(STOPPED)
            self._writer.close()
            self._keeper.close()

    def _limit(self, header: dict[str, Any]) -> int:
        number = header.get("id", 0)
        if type(number) is not int:
            return 0
        return self._asked[number][1] if number in self._asked else self._forgotten.get(number, 0)

    def _take(self, header: dict[str, Any], body: bytes) -> None:
        if header.get("event") == "ended":
            self.desktop_ended, self.killed = True, self.killed or header.get("inside") is True
            self._ended.set()
            return
        number = field(header, "id", int)
        if number in self._forgotten:
            del self._forgotten[number]
            return
        if number not in self._asked:
            raise MessageError("an answer that nobody asked for")
        answer, _ = self._asked[number]
        if answer.done():
            return
        if "error" in header:
            error = decode_error(header["error"])
            self.killed = self.killed or isinstance(error, DesktopKilledError)
            answer.set_exception(error)
        else:
            answer.set_result((field(header, "result", dict), body))

    def _over(self, why: str) -> None:
        """There are no more answers: tell everybody who waits for one."""
        if self._end:
            return
        self._end = why
        self._ended.set()
        for answer, _ in self._asked.values():
            if not answer.done():
                answer.set_exception(self._gone())
                answer.exception()  # nobody is warned about one that its caller has left

    def _gone(self, otherwise: type[DesktopError] = DesktopError) -> DesktopError:
        return (DesktopKilledError if self.killed else otherwise)(self._end)

    async def wait_until_ended(self) -> None:
        """Return when the desktop or its keeper is known to have ended."""
        await self._ended.wait()

    def kill(self, why: str) -> None:
        """End the keeper now; the kernel ends everything of its desktop with it."""
        self._over(why)
        self._keeper.kill()

    async def close(self) -> None:
        """Stop the desktop and its keeper, and return when nothing is left of them."""
        if not self._reading.done():
            self._over(STOPPED)
            await self._send({"op": "stop"})
            done, _ = await asyncio.wait({self._reading}, timeout=keeper_deadlines.STOP_S)
            if not done:
                self.kill(STOPPED)
                await asyncio.wait({self._reading}, timeout=_CLEANING_S)
        self._reading.cancel()
        await asyncio.wait({self._reading})
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


def _let_go(starting: asyncio.Future[Keeper]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()

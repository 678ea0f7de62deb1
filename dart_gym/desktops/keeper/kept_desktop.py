"""The embedded desktop as a server uses it: by its keeper, a process of its own, over a connection with deadlines.

Invariants:
    - Nothing that a program of the desktop can stall, shrink, replace or flood is touched here. What the keeper says
      is checked and bounded; what is not an answer to a request ends it. Frames come by memory that nobody can resize.
    - Requests may overlap; each gets its own answer, is cancelled in the keeper when its caller is, and ends the
      keeper with all of its desktop when it is late: `DesktopTimeoutError`.
    - After `stop` no process, file or socket of the desktop is left: when the connection has closed, the keeper is gone
      and so are the processes and files of its desktop. A client that cleans up after it holds the connection open
      until then.

A wait that the desktop itself gives a time (`settle`) is ended by the keeper when that is over; the keeper has
`ANSWER_S` more, which it needs only when a program of the desktop holds it up. A command (`execute`) that is late is
given up alone. In an operation that is judged, nothing is late before it has had its time (`patience`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from dart_gym.core.actions import Action, Drag, Type, Wait, action_to_dict
from dart_gym.core.errors import DesktopError, DesktopKilledError, DesktopTimeoutError, StuckProgramError
from dart_gym.core.operation_deadline import Judge, OperationDeadline
from dart_gym.desktops.base.desktop import AccessibilityTree, CommandResult, DesktopSpec, SettlePolicy, SettleResult
from dart_gym.desktops.base.frame_memory import FrameMemory
from dart_gym.desktops.input.carried_over import leaves_traces
from dart_gym.desktops.keeper.fork_client import ForkClient, Keeper, fork_client
from dart_gym.desktops.keeper.held_up import held_up_inside
from dart_gym.desktops.keeper.keeper_messages import (
    MAX_TREE,
    PIECE,
    STREAM_BUFFER,
    MessageError,
    decode_error,
    encode_message,
    field,
    read_message,
)
from dart_gym.desktops.keeper.patience import Patience
from dart_gym.desktops.sandbox.guest import descendants
from dart_gym.desktops.sandbox.guest_client import MAX_FILE, MAX_OUTPUT
from dart_gym.desktops.sandbox.runtime_directory import runtime_dir
from dart_gym.desktops.xvfb.xvfb_spec import check_spec
from dart_gym.sites.site_catalog import find_site
from dart_gym.sites.site_programs import program_port
from dart_gym.utils.processes import private_memory

ANSWER_S = 15.0
FILE_S = 60.0 + ANSWER_S
STOP_S = 20.0
_CLEANING_S = 60.0
_KEY_S = 0.02  # of a character whose key must be mapped first, and of a point of a path
_TYPING_S = 10.0  # what a program may take that does not say how far it is

STOPPED = "the desktop is not started, or was stopped"
_LASTING = ("execute", "launch", "write", "port")  # operations whose effects no reset takes back


class KeptDesktop:
    """See `dart_gym.desktops.base.desktop.Desktop`.

    Raises:
        ConfigurationError: if the spec is invalid.
    """

    def __init__(self, spec: DesktopSpec) -> None:
        check_spec(spec)
        self.spec = spec
        self._link: KeeperLink | None = None
        self._frame: FrameMemory | None = None
        self._started = self._starting = False
        self._showing = asyncio.Lock()
        self.traces = 0  # operations that a reset does not undo; see `desktops.input.carried_over`

    async def start(self, *, timeout: float = 60.0) -> None:
        """Boot, and return when screen and programs are ready; see `Desktop.start`."""
        if self._link is not None or self._starting:
            raise DesktopError("the desktop is started already; stop it first")
        self._starting = True
        try:
            await self._start(timeout)
        except BaseException:
            await asyncio.shield(self.stop())
            raise
        finally:
            self._starting = False
        self._started = True

    async def _start(self, timeout: float) -> None:
        found = [find_site(name) for name in self.spec.sites]
        sites = [
            {"name": name, "host": site.host, "folder": str(site.folder), "port": port}
            for name, site in zip(self.spec.sites, found, strict=True)
            for port in [await program_port(site)]
        ]
        frame = self._frame = FrameMemory.create(self.spec.height, self.spec.width)
        link = await KeeperLink.open(dataclasses.asdict(self.spec), frame.fd)
        if self._frame is not frame:
            await link.close()
            raise DesktopError(STOPPED)
        self._link = link
        values = {"timeout": timeout, "prefix": f"{os.getpid()}-", "environment": dict(os.environ), "sites": sites}
        await link.ask("start", values, deadline_s=timeout + ANSWER_S)

    async def stop(self) -> None:
        """End every program and remove all files; see `Desktop.stop`."""
        self._started = False
        link, self._link = self._link, None
        frame, self._frame = self._frame, None
        if link is not None:
            await link.close()
        if frame is not None:
            async with self._showing:  # a copy of the last frame may be under way
                frame.close()

    @property
    def alive(self) -> bool:
        """Return whether the desktop is started and its processes still run."""
        return self._started and self._link is not None and self._link.alive

    @property
    def keeper_pid(self) -> int | None:
        """Process of its keeper; None where it is not started."""
        return self._link.pid if self._link is not None else None

    @property
    def killed(self) -> bool:
        """Return whether a program inside ended it, or held it up until it had to be ended."""
        return self._link is not None and self._link.killed

    async def holds_up(self) -> bool:
        """Return whether its own programs hold it up now; see `Accountable`."""
        pid = self.keeper_pid
        return pid is not None and await asyncio.to_thread(held_up_inside, pid)

    def judge(self, enough_s: float | None = None) -> Judge:
        """Return what decides whether it is late by its own doing; see `Accountable`."""
        return Patience(self._keepers, enough_s)

    def _keepers(self) -> set[int]:
        return {self.keeper_pid} if self.keeper_pid is not None else set()

    async def wait_until_ended(self) -> None:
        """Return when it is known to have ended."""
        if self._link is not None:
            await self._link.wait_until_ended()

    def memory_bytes(self) -> int:
        """Bytes of memory that the desktop uses: programs, keeper and screen. Takes milliseconds: for a thread."""
        link = self._link
        if link is None or not link.alive:
            return 0
        return private_memory({link.pid, *descendants(link.pid)}) + 4 * self.spec.width * self.spec.drawn_height

    async def _ask(
        self,
        op: str,
        values: dict[str, Any] | None = None,
        body: bytes = b"",
        *,
        deadline_s: float = 0.0,
        limit: int = 0,
        ends: bool = True,
    ) -> tuple[dict[str, Any], bytes]:
        link = self._link
        if link is None:
            raise DesktopError(STOPPED)
        self.traces += op in _LASTING
        return await link.ask(op, values, body, deadline_s=deadline_s or ANSWER_S, limit=limit, ends=ends)

    def _distrust(self, problem: Exception | str) -> DesktopError:
        """End the keeper, which has answered with what is no answer."""
        message = f"the desktop's keeper answered with {problem}, and was ended"
        if self._link is not None:
            self._link.kill(message)
        return DesktopError(message)

    async def screenshot(self) -> NDArray[np.uint8]:
        """A fresh (H, W, 3) uint8 RGB frame with the cursor drawn in."""
        async with self._showing:
            await self._ask("screenshot")
            frame = self._frame
            if frame is None:
                raise DesktopError(STOPPED)
            return frame.pixels.copy()  # less than a millisecond: as much as a thread takes to begin

    async def read_margin(self) -> NDArray[np.uint8]:
        """The rows below the screen; see `Desktop.read_margin`."""
        shape = (self.spec.margin, self.spec.width, 3)
        size = shape[0] * shape[1] * shape[2]
        _, body = await self._ask("margin", limit=size)
        if len(body) != size:
            raise self._distrust(f"{len(body)} bytes for a margin of {size}")
        return np.frombuffer(body, np.uint8).reshape(shape)

    async def perform(self, action: Action) -> None:
        """Carry out an action; see `Desktop.perform`."""
        self.traces += leaves_traces(action)
        await self._ask("perform", action_to_dict(action), deadline_s=deadline_of_action(action))

    async def release_inputs(self) -> None:
        """Bring keyboard, buttons and selections into the state of a fresh desktop."""
        await self._ask("release")

    async def settle(self, policy: SettlePolicy) -> SettleResult:
        """Wait until the screen stands still."""
        deadline_s = deadline_of_settling(policy)
        values, _ = await self._ask("settle", dataclasses.asdict(policy), deadline_s=deadline_s)
        try:
            return SettleResult(
                field(values, "stable", bool), field(values, "waited_s", float), field(values, "frames", int)
            )
        except MessageError as error:
            raise self._distrust(error) from None

    async def execute(
        self, command: list[str], *, timeout: float = 60.0, stdin: bytes = b"", env: dict[str, str] | None = None
    ) -> CommandResult:
        """Run a program to its end; see `Desktop.execute`. One that is missing has return code 127, as in a shell."""
        values = {"command": command, "env": env or {}}
        try:
            values, body = await self._ask("execute", values, stdin, deadline_s=timeout, limit=MAX_OUTPUT, ends=False)
        except DesktopTimeoutError as error:
            message = f"{command[0]!r} {error} and was killed; give it a longer timeout"
            raise type(error)(message) from None
        try:
            length = field(values, "stdout", int)
            missing = field(values, "missing", bool)
            return CommandResult(field(values, "returncode", int), body[:length], body[length:], missing)
        except MessageError as error:
            raise self._distrust(error) from None

    async def launch(self, command: list[str], *, env: dict[str, str] | None = None) -> None:
        """Start a program and leave it running; see `Desktop.launch`."""
        await self._ask("launch", {"command": command, "env": env or {}}, deadline_s=FILE_S)

    async def read_file(self, path: str) -> bytes:
        """Content of a regular file of at most `MAX_FILE` bytes; relative paths and `~` start at the home directory."""
        return (await self._ask("read", {"path": path}, deadline_s=FILE_S, limit=MAX_FILE))[1]

    async def write_file(self, path: str, data: bytes) -> None:
        """Create or replace a file, making its parent directories."""
        for start in range(0, max(len(data), 1), PIECE):
            values = {"path": path, "append": start > 0}
            await self._ask("write", values, data[start : start + PIECE], deadline_s=FILE_S)

    async def accessibility_tree(self, *, timeout: float = 10.0) -> AccessibilityTree:
        """Return what the programs tell about their widgets; see `Desktop.accessibility_tree`."""
        deadline_s = timeout + ANSWER_S
        values, body = await self._ask("tree", {"timeout": timeout}, deadline_s=deadline_s, limit=MAX_TREE)
        try:
            xml = body.decode(errors="surrogatepass")
            return AccessibilityTree(xml, field(values, "complete", bool), field(values, "nodes", int))
        except (MessageError, UnicodeDecodeError) as error:
            raise self._distrust(error) from None

    async def set_site(self, name: str, state: Any) -> None:
        """Begin an episode of a site; see `SiteHost`."""
        await self._ask("site", {"name": name}, orjson.dumps(state), deadline_s=FILE_S)

    async def site_state(self, name: str) -> dict[str, Any]:
        """The states of a site; see `SiteHost`."""
        asked = {"name": name, "state": True}
        _, body = await self._ask("site", asked, deadline_s=FILE_S, limit=MAX_FILE)
        try:
            return dict(orjson.loads(body))
        except (ValueError, TypeError) as error:
            raise self._distrust(error) from None

    async def seal_sites(self) -> None:
        """Leave programs of the desktop what a page does; see `SiteHost`."""
        await self._ask("site", {"seal": True})

    async def open_port(self, port: int) -> Path:
        """Path of a Unix socket that leads to a TCP port of the desktop; the same path for the same port."""
        values, _ = await self._ask("port", {"port": port}, deadline_s=FILE_S)
        try:
            path = Path(field(values, "path", str))
        except MessageError as error:
            raise self._distrust(error) from None
        if path.parent.parent != runtime_dir():
            raise self._distrust("a socket that is not its own")
        return path


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
        self,
        op: str,
        values: dict[str, Any] | None = None,
        body: bytes = b"",
        *,
        deadline_s: float,
        limit: int = 0,
        ends: bool = True,
    ) -> tuple[dict[str, Any], bytes]:
        """Request an operation and return its result. An error of the operation is raised here.

        Args:
            op: the operation.
            values: its arguments.
            body: its bytes.
            deadline_s: seconds until it is late; more where it is judged and a busy machine delays it.
            limit: bytes of the answer's body.
            ends: whether the desktop is ended when it is late. Otherwise the operation alone is given up.

        Raises:
            DesktopError: if the keeper has ended.
            DesktopTimeoutError: if it is late. `StuckProgramError`, if it may go on: by the desktop's own doing.
            DesktopKilledError: if it was ended for being late by its own doing.
        """
        if self._end:
            raise self._gone()
        number = next(self._numbers)
        answer: asyncio.Future[tuple[dict[str, Any], bytes]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer, limit
        deadline = OperationDeadline(deadline_s, Patience(lambda: {self.pid}))
        try:
            async with deadline:
                await self._send({"id": number, "op": op, "args": values or {}}, body)
                return await answer
        except TimeoutError as error:
            if answer.done() and not answer.cancelled() and answer.exception() is error:
                raise  # it is the operation's own
            seconds = f"{deadline_s + deadline.extended:.4g} s"
            if not ends:
                self._forget(number, answer, limit)
                kind = StuckProgramError if deadline.own else DesktopTimeoutError
                raise kind(f"did not end within {seconds}") from None
            self.killed = self.killed or deadline.own
            self.kill(f"the desktop did not answer {op!r} within {seconds}, and was ended")
            raise self._gone(DesktopTimeoutError) from None
        except asyncio.CancelledError:
            self._forget(number, answer, limit)
            raise
        finally:
            self._asked.pop(number, None)

    def _forget(self, number: int, answer: asyncio.Future[tuple[dict[str, Any], bytes]], limit: int) -> None:
        """Have the keeper give an operation up."""
        if not self._end and (answer.cancelled() or not answer.done()):  # cancelling the caller cancels its answer
            self._forgotten[number] = limit
            self._writer.write(encode_message({"cancel": number}))

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
            done, _ = await asyncio.wait({self._reading}, timeout=STOP_S)
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


def deadline_of_action(action: Action) -> float:
    """Seconds for an action."""
    match action:
        case Wait(seconds=seconds):
            return ANSWER_S + seconds
        case Type(text=text):
            return ANSWER_S + _TYPING_S + _KEY_S * len(text)
        case Drag(path=path):
            return ANSWER_S + _KEY_S * len(path)
    return ANSWER_S


def deadline_of_settling(policy: SettlePolicy) -> float:
    """Seconds for a wait until the screen stands still."""
    return ANSWER_S + 1e-3 * max(policy.max_ms, policy.min_ms, policy.busy_ms)

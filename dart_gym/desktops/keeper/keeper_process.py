"""The keeper of one desktop: carries out what the server asks for, and ends with the connection to it.

Invariants:
    - It ends when the server says so or has gone, and stops its desktop before. One that is held up by a program of
      the desktop is killed by the server, and the desktop by the kernel with it.
    - `perform`, `settle` and `release_inputs` run one after the other, so that an action that was cancelled has let go
      of its keys before the next one begins.
"""

import asyncio
import contextlib
import functools
import math
import os
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

from dart_gym.core.actions import action_from_dict
from dart_gym.core.errors import DesktopError, DesktopKilledError
from dart_gym.desktops.base.desktop import DesktopSpec, SettlePolicy
from dart_gym.desktops.base.frame_memory import FrameMemory
from dart_gym.desktops.keeper.keeper_messages import (
    MAX_INPUT,
    STREAM_BUFFER,
    MessageError,
    encode_error,
    encode_message,
    read_message,
)
from dart_gym.desktops.xvfb.xvfb_desktop import XvfbDesktop
from dart_gym.utils.processes import set_process_name

Work = Callable[[], int]
Result = tuple[dict[str, Any], bytes]
_NOTHING: Result = ({}, b"")
_END_S = 1.0  # within which a desktop ends whose display has
_VICTIM = "250"  # of -1000 to 1000: when memory runs out, a desktop (500) goes first, then its keeper, then the server


def main(channel: int, frame: int, spec: dict[str, Any]) -> int:
    """Keep a desktop until the server has no more use for it; the exit status."""
    set_process_name(b"desktop-keeper")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # ignored signals would stay so in all programs
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError):  # not everywhere allowed
        Path("/proc/self/oom_score_adj").write_text(_VICTIM)
    fields = {
        **spec,
        "env": tuple((str(name), str(value)) for name, value in spec["env"]),
        "sites": tuple(spec["sites"]),
    }
    asyncio.run(_keep(socket.socket(fileno=channel), frame, DesktopSpec(**fields)))
    return 0


async def _keep(channel: socket.socket, frame: int, spec: DesktopSpec) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=channel, limit=STREAM_BUFFER)
    memory = FrameMemory(frame, spec.height, spec.width, writable=True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, reader.feed_eof)
    await DesktopKeeper(XvfbDesktop(spec), memory, reader, writer).serve()


class DesktopKeeper:
    """Carries out operations on a desktop."""

    def __init__(
        self, desktop: XvfbDesktop, memory: FrameMemory, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._desktop = desktop
        self._memory = memory
        self._reader = reader
        self._writer = writer
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._one_by_one = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Serve until the server says stop, or has gone."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, MessageError):
            while True:
                header, body = await read_message(self._reader, lambda _: MAX_INPUT)
                if header.get("op") == "stop":
                    break
                if "cancel" in header:
                    if (task := self._tasks.get(header["cancel"])) is not None:
                        task.cancel()
                    continue
                number = header["id"]
                task = asyncio.create_task(self._answer(number, header["op"], header["args"], body))
                self._tasks[number] = task
                task.add_done_callback(functools.partial(self._done, number))
        await self._desktop.stop()
        waiting = [*self._tasks.values(), *([self._watch] if self._watch is not None else [])]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def _done(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]

    async def _answer(self, number: int, op: str, args: dict[str, Any], body: bytes) -> None:
        handler: Callable[[dict[str, Any], bytes], Awaitable[Result]] = getattr(self, "do_" + op)
        header: dict[str, Any] = {"id": number}
        content = b""
        try:
            header["result"], content = await handler(args, body)
        except asyncio.CancelledError:
            header["error"] = encode_error(TimeoutError("cancelled"))
        except Exception as error:
            header["error"] = encode_error(await self._blamed(error))
            if header["error"]["message"].startswith("the desktop's keeper failed"):
                traceback.print_exc(file=sys.stderr)
        await self._send(header, content)

    async def _blamed(self, error: Exception) -> Exception:
        """The error, as one of the programs inside where they have ended the desktop."""
        if not isinstance(error, (DesktopError, OSError)) or not await self._desktop.ended_inside(_END_S):
            return error
        return DesktopKilledError(self._desktop.with_logs(str(error)))  # a closed socket alone says nothing

    async def _send(self, header: dict[str, Any], body: bytes = b"") -> None:
        with contextlib.suppress(ConnectionError):  # the server has gone, which the reader finds
            self._writer.write(encode_message(header, len(body)))
            if body:
                self._writer.write(body)
            await self._writer.drain()

    async def _tell_end(self) -> None:
        await self._desktop.wait_until_dead()
        await self._send({"event": "ended", "inside": await self._desktop.ended_inside()})

    # --- operations

    async def do_start(self, args: dict[str, Any], body: bytes) -> Result:
        """Boot the desktop, by what the server's environment says now."""
        os.environ.clear()
        os.environ.update(args["environment"])
        await self._desktop.start(timeout=args["timeout"], prefix=args["prefix"], sites=args["sites"])
        self._watch = asyncio.create_task(self._tell_end())
        return _NOTHING

    async def do_screenshot(self, args: dict[str, Any], body: bytes) -> Result:
        """Draw a frame into the memory."""
        self._desktop.draw(self._memory.pixels)
        return _NOTHING

    async def do_margin(self, args: dict[str, Any], body: bytes) -> Result:
        """The rows below the screen."""
        return {}, self._desktop.read_margin().tobytes()

    async def do_perform(self, args: dict[str, Any], body: bytes) -> Result:
        """Carry out an action."""
        async with self._one_by_one:
            await self._desktop.perform(action_from_dict(args))
        return _NOTHING

    async def do_release(self, args: dict[str, Any], body: bytes) -> Result:
        """Release what is held."""
        async with self._one_by_one:
            self._desktop.release_inputs()
        return _NOTHING

    async def do_settle(self, args: dict[str, Any], body: bytes) -> Result:
        """Wait until the screen stands still."""
        async with self._one_by_one:
            result = await self._desktop.settle(SettlePolicy(**args))
        return {"stable": result.stable, "waited_s": result.waited_s, "frames": result.frames}, b""

    async def do_execute(self, args: dict[str, Any], body: bytes) -> Result:
        """Run a program to its end, or until the server has waited long enough."""
        result = await self._desktop.execute(args["command"], timeout=math.inf, stdin=body, env=args["env"])
        values = {"returncode": result.returncode, "stdout": len(result.stdout), "missing": result.missing}
        return values, result.stdout + result.stderr

    async def do_launch(self, args: dict[str, Any], body: bytes) -> Result:
        """Start a program."""
        await self._desktop.launch(args["command"], env=args["env"])
        return _NOTHING

    async def do_read(self, args: dict[str, Any], body: bytes) -> Result:
        """Content of a file."""
        return {}, await self._desktop.read_file(args["path"])

    async def do_write(self, args: dict[str, Any], body: bytes) -> Result:
        """Write a file, or append to it."""
        await self._desktop.write_file(args["path"], body, append=args["append"])
        return _NOTHING

    async def do_tree(self, args: dict[str, Any], body: bytes) -> Result:
        """The accessibility tree."""
        tree = await self._desktop.accessibility_tree(timeout=args["timeout"])
        return {"complete": tree.complete, "nodes": tree.nodes}, tree.xml.encode(errors="surrogatepass")

    async def do_site(self, args: dict[str, Any], body: bytes) -> Result:
        """Begin an episode of a site, seal them all, or tell the states of one: whichever is asked for."""
        sites, name = self._desktop.sites, args.get("name", "")
        if body:
            await sites.set_state(name, orjson.loads(body))
        if args.get("seal"):
            sites.seal()
        return {}, orjson.dumps(await sites.state(name)) if args.get("state") else b""

    async def do_port(self, args: dict[str, Any], body: bytes) -> Result:
        """Path of a socket that leads to a port."""
        return {"path": str(await self._desktop.open_port(args["port"]))}, b""

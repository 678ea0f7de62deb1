"""One desktop as a process of its own, which a container runs: reached by Unix sockets in a directory.

    python -m dart_gym.desktops.desktop_service DIRECTORY SPEC

`api.sock` has OSWorld's HTTP routes, `ports.sock` leads to any port of the desktop's loopback (the first line of a
client is the port's number), and `life.sock` is what the host holds on to: it listens when all is ready, and when its
last client is gone, the desktop ends.

Invariants:
    - Nobody holding on for `LONGEST_ALONE_S` ends it, so that a host killed at any time leaves no container behind.
    - The sockets can be opened by this user (and root) alone, and are not seen from within the desktop's sandbox.
    - What it has to say is in the file `log` of the directory, which outlives the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from dart_gym.core.errors import DartGymError, DesktopError
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.osworld_api.api_server import OSWorldAPI
from dart_gym.desktops.osworld_api.port_forwarder import join

API = "api.sock"
PORTS = "ports.sock"
LIFE = "life.sock"
LOG = "log"
LONGEST_ALONE_S = 60.0
BOOT_TIMEOUT_S = 300.0
FAILED = 1
_LINE_TIMEOUT_S = 10.0
_LOOK_PERIOD_S = 0.5
_CHUNK = 1 << 16

log = logging.getLogger(__name__)


def parse_spec(text: str) -> DesktopSpec:
    """Read the spec that the host wrote as JSON.

    Raises:
        ValueError: if it is not JSON or a value is impossible.
        TypeError: if a field is unknown.
    """
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise TypeError("a spec is an object")
    env = tuple((str(name), str(value)) for name, value in fields.pop("env", ()))
    return DesktopSpec(env=env, sites=tuple(fields.pop("sites", ())), **fields)


class Lifeline:
    """Knows whether anybody holds on to the desktop, which for `longest_alone_s` nobody may."""

    def __init__(self, longest_alone_s: float = LONGEST_ALONE_S) -> None:
        self._longest_alone_s = longest_alone_s
        self._holders = 0
        self._first = asyncio.Event()
        self._over = asyncio.Event()

    async def hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one who holds on, until the connection ends."""
        self._holders += 1
        self._first.set()
        try:
            with contextlib.suppress(OSError):  # a reset is an end like any other
                while await reader.read(_CHUNK):
                    pass
        finally:
            writer.close()
            self._holders -= 1
            if not self._holders:
                self._over.set()

    async def wait(self) -> None:
        """Return when nobody holds on any more."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._first.wait(), self._longest_alone_s)
        if not self._first.is_set():
            log.warning("nobody held on to the desktop for %g s", self._longest_alone_s)
            return
        await self._over.wait()


async def serve_port(desktop: Desktop, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Lead one client to the port that its first line names; close its connection when that cannot be."""
    try:
        async with asyncio.timeout(_LINE_TIMEOUT_S):
            line = (await reader.readline()).strip()
        if not line.isdigit() or not 0 < int(line) < 1 << 16:
            log.info("a client asked for the port %r", line[:20])
            return
        path = await desktop.open_port(int(line))
        await join(reader, writer, asyncio.open_unix_connection(path))
    except (OSError, TimeoutError, ValueError, DesktopError) as error:
        log.info("a client of a port was dropped: %s", error)
    finally:
        writer.close()


async def serve(directory: Path, spec: DesktopSpec, *, longest_alone_s: float = LONGEST_ALONE_S) -> None:
    """Start a desktop and serve it until its last client has gone, or a signal arrives.

    Raises:
        DartGymError: if the desktop does not start.
    """
    ending = _ending()  # before anybody can see that it is here, and end it
    desktop = make_desktop(spec)
    await desktop.start(timeout=BOOT_TIMEOUT_S)
    lifeline = Lifeline(longest_alone_s)
    try:
        async with OSWorldAPI(desktop, path=directory / API), contextlib.AsyncExitStack() as stack:

            async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await serve_port(desktop, reader, writer)

            for name, handler in ((PORTS, lead), (LIFE, lifeline.hold)):
                stack.callback((await asyncio.start_unix_server(handler, directory / name)).close)
                (directory / name).chmod(0o600)  # no umask: the programs of the desktop would have it too
            await _first_of(lifeline.wait(), ending.wait(), _death(desktop))
    finally:
        await desktop.stop()


async def _death(desktop: Desktop) -> None:
    """Return when the desktop has died by itself: then the host is to see that, instead of errors for ever."""
    while desktop.alive:
        await asyncio.sleep(_LOOK_PERIOD_S)
    log.warning("the desktop has died")


def _ending() -> asyncio.Event:
    """Return what a signal sets from now on."""
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    return ending


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()


def main(arguments: list[str]) -> int:
    """Serve; the exit status."""
    if len(arguments) != 2:
        print("usage: python -m dart_gym.desktops.desktop_service DIRECTORY SPEC", file=sys.stderr)
        return 2
    directory = Path(arguments[0])
    (directory / LOG).touch(mode=0o600)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[logging.FileHandler(directory / LOG), logging.StreamHandler()],
    )
    try:
        asyncio.run(serve(directory, parse_spec(arguments[1])))
    except (DartGymError, ValueError, TypeError) as error:
        log.error("%s", error)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The server's side of the fork server: starts it when the first keeper is needed, and keepers by it.

Invariants:
    - A process has one fork server, which ends with it. One that has died, or does not answer, is replaced when the
      next keeper is needed; the keepers of the old one died with it.
    - Its calls block, for milliseconds once it runs: they are for threads.
"""

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

from dart_gym.core.errors import DesktopError
from dart_gym.utils.plugins import child_environment

ANSWER_S = 60.0  # it imports what keepers need first
MAX_MESSAGE = 1 << 16
_END_S = 30.0


@dataclass(slots=True)
class Keeper:
    """The process of a keeper; `pidfd` stands for it and for no later process of the same number, -1 once closed."""

    pid: int
    pidfd: int

    def kill(self) -> None:
        """End it now, if it still runs."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the descriptor."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class ForkClient:
    """The fork server of this process, as its threads use it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._used = False
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """Pid of the fork server; None while it is not running."""
        return self._process.pid if self._process is not None else None

    def prepare(self) -> None:
        """Start the fork server, so that the first keeper need not wait for it."""
        with self._lock:
            self._connected()

    def _connected(self) -> socket.socket:
        if self._socket is None or self._process is None or self._process.poll() is not None:
            self._give_up()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [sys.executable, "-m", "dart_gym.desktops.keeper.fork_server"]
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=child_environment(),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is for the server, which stops its desktops in order
                )
            ours.settimeout(ANSWER_S)
            self._socket = ours
        return self._socket

    def close(self) -> None:
        """End it, which stops the desktops that are left, and wait until nothing is."""
        with self._lock:
            process, connection = self._process, self._socket
            if self.owner != os.getpid() or process is None or connection is None:
                return
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                if not self._used:
                    return self._give_up()  # it may be importing yet, and has nobody to end
                connection.send(json.dumps({"op": "end"}).encode())
                process.wait(_END_S)
            self._give_up()

    def _give_up(self) -> None:
        connection, self._socket = self._socket, None
        process, self._process = self._process, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait()

    def _ask(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        with self._lock:
            connection = self._connected()
            try:
                socket.send_fds(connection, [json.dumps(request).encode()], fds)
                data, received, _, _ = socket.recv_fds(connection, MAX_MESSAGE, 1)
                if data:
                    return json.loads(data), received
            except OSError as error:
                cause = f"{type(error).__name__}: {error}"
            else:
                cause = "it has ended"
            self._give_up()
        raise DesktopError(f"the process that starts desktops does not answer ({cause}); the next reset gets another")

    def start_keeper(self, spec: dict[str, Any], channel_fd: int, frame_fd: int) -> Keeper:
        """Start a keeper and close both descriptors here (connection, frames).

        Raises:
            DesktopError: if the keeper does not start.
        """
        self._used = True
        try:
            reply, fds = self._ask({"op": "keeper", "spec": spec}, [channel_fd, frame_fd])
        finally:
            os.close(channel_fd)
            os.close(frame_fd)
        if not fds:
            raise DesktopError(f"no process for a desktop could be started: {reply.get('error')}")
        return Keeper(reply["pid"], fds[0])

    def describe_end(self, keeper: Keeper) -> tuple[str, bool]:
        """How a keeper has ended by itself, in words; and whether a desktop's program made it: that is SIGBUS."""
        try:
            reply, _ = self._ask({"op": "status", "pid": keeper.pid}, [])
        except DesktopError as error:
            return str(error), False
        status = reply.get("status")
        if not isinstance(status, int):
            return "the desktop's keeper has ended", False
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        words = f"the desktop's keeper has ended {how}, and its desktop with it; the next reset gets a fresh one"
        return words, status == -signal.SIGBUS


_client: ForkClient | None = None
_making = threading.Lock()


def fork_client() -> ForkClient:
    """The one of this process; a forked child has one of its own."""
    global _client
    with _making:
        if _client is None or _client.owner != os.getpid():
            _client = ForkClient()
            atexit.register(_client.close)
        return _client

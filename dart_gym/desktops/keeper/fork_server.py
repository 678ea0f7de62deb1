"""The process that forks keepers: it has imported what they need, so that one costs milliseconds and little memory.

    python -m dart_gym.desktops.keeper.fork_server DESCRIPTOR PARENT

Invariants:
    - It touches nothing of a desktop, so that no program can hold it up; all it does is fork and reap.
    - It ends with the server that started it, and every keeper with it (the kernel sees to both).
    - A keeper that has not ended well is cleaned up after, in a process of its own. Until then its connection stays
      open, so that the server knows when nothing is left.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass

from Xlib import ext

from dart_gym.desktops.keeper import keeper_process
from dart_gym.desktops.keeper.fork_client import MAX_MESSAGE
from dart_gym.desktops.sandbox.runtime_directory import clean_leftovers
from dart_gym.desktops.sandbox.sandbox_check import prepare
from dart_gym.utils.processes import follow_parent

_LOOK_MS = 1000
_FAREWELL_S = 10.0  # for keepers to stop their desktops when the server has gone
_LAST_RESORT_S = 30  # until this process ends, and by that whatever is left
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class _Child:
    """A keeper with its connection `channel`, or what cleans up after one (`cleaner`)."""

    pid: int
    channel: int
    cleaner: bool


class ForkServer:
    """Forks and reaps."""

    def __init__(self, control: socket.socket, parent: int) -> None:
        self._control, self._parent = control, parent
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)
        self._children: dict[int, _Child] = {}  # by pidfd
        self._ends: dict[int, int] = {}  # exit statuses by pid, the oldest first

    def serve(self) -> None:
        """Serve until the server says so or has gone, and its keepers with it."""
        while os.getppid() == self._parent and self._look(_LOOK_MS):
            pass
        self._poller.unregister(self._control)
        signal.alarm(_LAST_RESORT_S)
        self._signal_all(signal.SIGTERM)  # the server's ends of the connections may be open yet
        patience = time.monotonic() + _FAREWELL_S
        while self._children:
            self._look(_LOOK_MS)
            if time.monotonic() > patience:
                self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for pidfd, child in self._children.items():
            if not child.cleaner:
                signal.pidfd_send_signal(pidfd, number)

    def _look(self, patience_ms: int) -> bool:
        """Do what there is to do; False when the server has gone."""
        for fd, _ in self._poller.poll(patience_ms):
            if fd != self._control.fileno():
                self._reap(fd)
            elif not self._answer():
                return False
        return True

    def _answer(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 2)
        if not data:
            return False
        request = json.loads(data)
        if request["op"] == "end":
            return False
        if request["op"] == "status":
            self._reply({"status": self._ends.get(request["pid"])})
            return True
        channel, frame = fds
        if request["spec"]["sites"]:
            importlib.import_module("dart_gym.sites.site_server")  # once, for all keepers that need it
        try:
            pidfd = self._fork(channel, lambda: keeper_process.main(channel, frame, request["spec"]))
            self._reply({"pid": self._children[pidfd].pid}, pidfd)
        except OSError as error:
            os.close(channel)
            self._reply({"error": str(error)})
        finally:
            os.close(frame)
        return True

    def _reply(self, values: dict[str, object], *fds: int) -> None:
        try:
            socket.send_fds(self._control, [json.dumps(values).encode()], fds)
        except OSError:
            pass  # the server has gone, which the next look finds

    def _fork(self, channel: int, work: keeper_process.Work, *, cleaner: bool = False) -> int:
        """Fork a process for some work; its pidfd."""
        own = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(own, channel, work)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = _Child(pid, channel, cleaner)
        self._poller.register(pidfd, select.POLLIN)
        return pidfd

    def _become_child(self, parent: int, channel: int, work: keeper_process.Work) -> None:
        status = 1
        try:
            follow_parent(parent, signal.SIGKILL)
            self._control.close()
            for pidfd, child in self._children.items():
                os.close(pidfd)
                if child.channel != channel:
                    os.close(child.channel)
            status = work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _reap(self, pidfd: int) -> None:
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        assert ended is not None  # the poller said that it has ended
        child = self._children.pop(pidfd)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        well = ended.si_code == os.CLD_EXITED
        if not child.cleaner:
            self._ends[child.pid] = ended.si_status if well else -ended.si_status
            if len(self._ends) > _REMEMBERED:
                del self._ends[next(iter(self._ends))]
        if child.cleaner or self._ends[child.pid] == 0:
            os.close(child.channel)
        else:
            self._fork(child.channel, _clean, cleaner=True)


def _clean() -> int:
    clean_leftovers()
    return 0


def main(arguments: list[str]) -> None:
    """Serve until the server has gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its server, not before
    server = ForkServer(socket.socket(fileno=int(arguments[0])), int(arguments[1]))
    prepare()
    for name in (*(f"ext.{module}" for _, module in ext.__extensions__), "support.unix_connect", "xauth"):
        importlib.import_module(f"Xlib.{name}")  # as python-xlib does when it connects
    gc.collect()
    gc.freeze()  # so that the children's collections do not copy what they share
    server.serve()


if __name__ == "__main__":
    main(sys.argv[1:])

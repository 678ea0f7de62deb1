"""A program that was started for a run: here, or by another node, with the few things that those who keep it need."""

import contextlib
import os
import signal
import subprocess
from typing import Protocol


class Process(Protocol):
    """A program as its supervisor sees it. `subprocess.Popen` has all of this but `kill_all`."""

    returncode: int | None

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit status. Raises `subprocess.TimeoutExpired`."""

    def terminate(self) -> None:
        """Tell it to end (SIGTERM)."""

    def kill_all(self) -> None:
        """Kill it and all that it has started. Idempotent."""


class ChildProcess(subprocess.Popen[bytes]):
    """A child of this process, in a session of its own."""

    def kill_all(self) -> None:
        """See `Process`."""
        with contextlib.suppress(ProcessLookupError):  # nobody is left
            os.killpg(self.pid, signal.SIGKILL)

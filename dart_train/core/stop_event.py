"""An event that a signal's handler may set, in whatever the main thread is at that moment.

`threading.Event` is none: `set` takes the lock that `wait` holds for some microseconds, and a handler that runs just
then, in the same thread, waits for itself for ever. A process that looks ten times a second whether to stop hangs so
about once in a thousand stops; what interrupted it is lost, and so is every later signal.

Invariants:
    - Nothing here takes a lock. A byte in a pipe, which stays there, wakes the threads that wait.
"""

import os
import select
import threading
import weakref


class StopEvent(threading.Event):
    """Set once, by a handler or a thread; waited for by any number of threads."""

    def __init__(self) -> None:
        super().__init__()
        self._told = False
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        for end in (self._woken, self._wakes):
            weakref.finalize(self, os.close, end)

    def is_set(self) -> bool:
        """Return whether it was set."""
        return self._told

    def set(self) -> None:
        """Set it, and wake who waits."""
        if not self._told:
            self._told = True
            os.write(self._wakes, b"\0")

    def clear(self) -> None:
        """Refuse: who was told to stop stays told."""
        raise RuntimeError("a StopEvent is set once")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or for `timeout` seconds; return whether it is set."""
        if not self._told:
            woken = select.poll()
            woken.register(self._woken, select.POLLIN)
            woken.poll(None if timeout is None else 1000 * timeout)
        return self._told

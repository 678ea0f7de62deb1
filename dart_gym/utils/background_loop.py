"""One event loop in a daemon thread, for everything synchronous that needs the asynchronous core.

It works where a loop runs already (Jupyter), and the children that it starts live as long as the process, because
the thread that forked them does. A forked process gets a loop of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """An event loop that runs in its own daemon thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dart-gym", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> Future[T]:
        """Run a coroutine function in the loop; the future may be waited for from any other thread."""

        async def run() -> T:
            return await function(*args, **kwargs)

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Call a plain function in the loop soon; nobody waits for it."""
        self._loop.call_soon_threadsafe(function, *args)

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        """Run a coroutine function and wait for its result. An interrupt (Ctrl-C) cancels it."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("the synchronous interface was called from its own loop: await the session instead")
        future = self.submit(function, *args, **kwargs)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_shared: BackgroundLoop | None = None
_guard = threading.Lock()


def background_loop() -> BackgroundLoop:
    """The loop that this process shares."""
    global _shared
    with _guard:
        if _shared is None or _shared.pid != os.getpid():
            _shared = BackgroundLoop()
        return _shared

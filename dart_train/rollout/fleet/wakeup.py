"""Wakeup: coroutines that wait until something changed, each of which then looks for itself."""

import asyncio
import time


class Wakeup:
    """Use it within one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """Let all that wait look again."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, deadline: float) -> None:
        """Return at the next `wake`, or at the deadline (of `time.monotonic`)."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await future
        except TimeoutError:
            return
        finally:
            self._waiting.discard(future)

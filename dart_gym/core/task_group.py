"""asyncio's TaskGroup as Python 3.11.2 (Debian 12's) should have it."""

import asyncio
from types import TracebackType
from typing import Self


class TaskGroup(asyncio.TaskGroup):
    """`asyncio.TaskGroup`; the cancellation by which a failed group wakes its caller does not stay counted.

    Python before 3.11.4 leaves it counted, and then no `asyncio.timeout` around the caller ever raises TimeoutError.
    """

    async def __aenter__(self) -> Self:
        self._caller = asyncio.current_task()
        self._requests = self._caller.cancelling() if self._caller else 0
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        except BaseExceptionGroup:
            while self._caller and self._caller.cancelling() > self._requests:
                self._caller.uncancel()
            raise

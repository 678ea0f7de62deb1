"""Work that belongs together: all of it, or none goes on."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*works: Coroutine[Any, Any, Any]) -> None:
    """Do several things at the same time. When one fails, or the caller is cancelled, the others have ended on return.

    `asyncio.gather` leaves the others running: what the caller then takes down is still being put up.

    Raises:
        BaseException: what the first of them raised, not in a group.
    """
    caller = asyncio.current_task()
    requests = caller.cancelling() if caller else 0
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as failed:
        # The group has cancelled the caller to wake it. Debian 12's Python leaves that counted, and then no
        # `asyncio.timeout` around the caller ever raises TimeoutError.
        while caller and caller.cancelling() > requests:
            caller.uncancel()
        first = failed.exceptions[0]
        raise first from first.__cause__

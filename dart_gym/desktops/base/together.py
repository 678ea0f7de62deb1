"""Work that belongs together: if one part fails, the other parts are cancelled."""

from collections.abc import Coroutine
from typing import Any

from dart_gym.core.task_group import TaskGroup


async def together(*works: Coroutine[Any, Any, Any]) -> None:
    """Do several things at the same time. When one fails, or the caller is cancelled, the others have ended on return.

    `asyncio.gather` leaves the others running: what the caller then takes down is still being put up.

    Raises:
        BaseException: what the first of them raised, not in a group.
    """
    try:
        async with TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as failed:
        first = failed.exceptions[0]
        raise first from first.__cause__

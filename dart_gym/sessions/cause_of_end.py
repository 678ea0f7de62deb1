"""Decide who caused the end of an episode: programs of its desktop, or host, server and network.

The former is a failure of the agent that acts there, with a score of 0: breaking things would be a way to have bad
episodes left out of training. The latter has no score and is never trained on. It is decided by what no program inside
can forge:

- A program that the desktop cannot do without has ended: who sent the signal, which the kernel tells the first process
  of a sandbox before a program inside sends it (`confinement.first_process`).
- A program was ended for memory: the counters of the control group, whose own limit was reached, or the machine's
  (`confinement.resource_limits`).
- The sandbox or its keeper has ended: exit statuses that nobody inside can cause (`sandbox.sandbox`,
  `keeper.fork_client`).
- An operation failed and the desktop goes on: error numbers of its own files and limits, as `DesktopStateError`
  (`sandbox.guest`).
- An operation is late: the threads that want a core at that moment, the desktop's and all others (`keeper.held_up`);
  on a busy machine the time of a processor that the desktop has had by then (`keeper.patience`).
- There is no score: a control without the agent's files (`tasks.evaluation.blame`).
"""

import asyncio
import contextlib

from dart_gym.core.errors import DesktopKilledError, DesktopStateError, DesktopTimeoutError
from dart_gym.desktops.base.desktop import Accountable, Desktop, Endable
from dart_gym.tasks.evaluation.watched_desktop import WatchedDesktop

_END_TOLD_S = 0.5


async def was_killed(desktop: Desktop) -> bool:
    """Return whether a desktop was ended from inside; what failed with it may be known a moment earlier than that."""
    if not isinstance(desktop, Endable):
        return False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_TOLD_S):
            await desktop.wait_until_ended()
    return desktop.killed


async def caused_inside(desktop: Desktop, judged: WatchedDesktop | None, error: BaseException, *, late: bool) -> bool:
    """Return whether programs of a desktop caused that an operation of a running episode failed.

    Args:
        desktop: the desktop.
        judged: the desktop as its evaluation sees it; None before that.
        error: what the operation has raised.
        late: whether the desktop was found to be late by its own doing at the operation's deadline.
    """
    if isinstance(error, DesktopKilledError | DesktopStateError) or await was_killed(desktop):
        return True
    if isinstance(error, TimeoutError):
        return late and judged is not None and judged.decides and desktop.alive
    waited = isinstance(error, DesktopTimeoutError)
    return waited and isinstance(desktop, Accountable) and desktop.alive and await desktop.holds_up()

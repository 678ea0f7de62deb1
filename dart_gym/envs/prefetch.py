"""Episodes prepared ahead: sessions in addition to those of the environments, on which next episodes are being started.

When an episode ends, the session that was prepared first takes its place, and the one that it replaces prepares the
next episode: its desktop is put right in the background. A step then waits for no reset, as long as episodes do not end
faster than desktops are prepared.

Invariants:
    - Episodes are handed out in the order in which they were drawn, not in the order of readiness, so which environment
      gets which task and seed does not depend on timing, nor on the number of sessions.
    - A session draws an episode only once it holds a slot. So one that finds the cluster full holds nothing up:
      episodes are started in place then, as without prefetch.
"""

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dart_gym.cluster.client.cluster_client import ClientSession
from dart_gym.core.errors import DartGymError
from dart_gym.core.outcomes import StepResult
from dart_gym.envs.cluster_link import ClusterLink

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Draw:
    """An episode to be: its task, and its seed."""

    task: str | dict[str, Any]
    seed: int


Start = Callable[[ClientSession, Draw], Coroutine[Any, Any, StepResult]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A session on which a drawn episode is being started."""

    draw: Draw
    session: ClientSession
    starting: Future[StepResult]

    def wait(self) -> StepResult | None:
        """The first result of the episode; None if it could not be started there."""
        try:
            result = self.starting.result()
        except DartGymError as error:
            log.warning("an episode could not be prepared ahead, and is started in place: %s", error)
            return None
        return result if result.terminal is None else None


class Prefetch:
    """`count` sessions besides the environments' own, with `deadline_s` for a slot. Called from one thread."""

    def __init__(
        self, link: ClusterLink, count: int, draw: Callable[[], Draw], start: Start, deadline_s: float
    ) -> None:
        self._link = link
        self._count = count
        self._draw = draw
        self._start = start
        self._deadline_s = deadline_s
        self._seeking: list[Future[ClientSession]] = []  # sessions that wait for a slot
        self._idle: list[ClientSession] = []
        self._prepared: deque[Prepared] = deque()

    def fill(self) -> None:
        """Go on preparing in the background; returns at once."""
        if not self._count:
            return
        for future in [future for future in self._seeking if future.done()]:
            self._seeking.remove(future)
            try:
                self._idle.append(future.result())
            except DartGymError as error:
                log.warning("no desktop to prepare episodes ahead, the cluster needs more than environments: %s", error)
        while len(self._seeking) + len(self._idle) + len(self._prepared) < self._count:
            self._seeking.append(self._link.loop.submit(self._acquire))
        while self._idle:
            session, draw = self._idle.pop(), self._draw()
            self._prepared.append(Prepared(draw, session, self._link.loop.submit(self._start, session, draw)))

    async def _acquire(self) -> ClientSession:
        session = (await self._link.client()).session()
        try:
            await session.acquire(deadline_s=self._deadline_s)
        except BaseException:
            await session.close()
            raise
        return session

    def take(self) -> Prepared | None:
        """The episode that was drawn first; None if none has been."""
        return self._prepared.popleft() if self._prepared else None

    def give(self, session: ClientSession | None) -> None:
        """Take a session that is of no use any more to its environment."""
        if session is not None:
            self._idle.append(session)

    def forget(self) -> None:
        """Throw the prepared episodes away: the draws begin again. A session ends one reset before the next."""
        self._idle.extend(prepared.session for prepared in self._prepared)
        self._prepared.clear()

    async def close(self) -> None:
        """Give all desktops back, even in the middle of an operation. Runs in the link's loop."""
        for future in self._seeking:
            future.cancel()
        sessions = [*self._idle, *(prepared.session for prepared in self._prepared)]
        over = [future for future in self._seeking if future.done() and not future.cancelled()]
        sessions += [future.result() for future in over if future.exception() is None]
        self._seeking, self._idle = [], []
        self._prepared.clear()
        for session in sessions:
            await session.close()

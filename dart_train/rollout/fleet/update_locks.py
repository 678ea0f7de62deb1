"""UpdateLocks: one rollout service at a time updates a replica that several of them use.

Within a process `EnginePool` sees to that; between processes it is a lock in the data manager's database, by the
replica's address.

Invariants:
    - A replica that this process started is nobody else's: it needs no lock, and works on without a database.
    - Who holds a lock says so all the time. One that is dead, or hung for longer than its lease, gives way; where it
      wakes up again, its update fails.
"""

import asyncio
import contextlib
import hashlib
import time
import uuid
from collections.abc import AsyncIterator
from typing import Protocol

from dart_agent.engines.base.engine import EngineBusy, EngineError
from dart_gym.utils.backoff import Pauses
from dart_train.core.train_errors import DataError
from dart_train.data.store.database_locks import LONGEST_NAME
from dart_train.rollout.fleet.replica import Replica

RENEWALS = 3  # within a lease
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0


class Locks(Protocol):
    """Where locks are kept: `DatabaseLocks`. Its methods may block, and raise `DataError`."""

    def take_lock(self, name: str, holder: str, ttl_s: float) -> str:
        """Take a lock, or hold it for longer; returns who has it now."""

    def give_back_lock(self, name: str, holder: str) -> None:
        """Let it go."""


class UpdateLocks:
    """The locks of one service that shares its replicas (or not: None); silent for `lease_s` it gives way."""

    def __init__(self, locks: Locks | None, lease_s: float) -> None:
        self._locks, self._lease = locks, lease_s
        self._holder = uuid.uuid4().hex

    @contextlib.asynccontextmanager
    async def held(self, replica: Replica, wait_s: float = 0.0) -> AsyncIterator[None]:
        """Hold the lock in the block, so that no other process updates the replica.

        Raises:
            EngineBusy: if the block was not begun.
            EngineError: if the lock was lost.
        """
        if self._locks is None or replica.spec.owned:
            yield
            return
        name = _name(replica.url)
        await self._take(name, wait_s)
        lost, over = "", asyncio.Event()
        try:
            async with asyncio.timeout(None) as limit:

                async def renew() -> None:
                    nonlocal lost
                    lost = await self._renew(name, over)
                    if lost:
                        limit.reschedule(asyncio.get_running_loop().time())

                renewing = asyncio.create_task(renew(), name=f"lock {replica.name}")
                try:
                    yield
                finally:
                    over.set()  # a renewal under way is waited for: it must not take again what is given back
                    await renewing
        except TimeoutError:
            if not lost:
                raise
            raise EngineError(
                f"{replica.name}: the lock on its updates was lost to {lost}; rollout.sync.lease_s is {self._lease:g} s"
            ) from None
        finally:
            if not lost:
                with contextlib.suppress(DataError):  # it is over after its lease in any case
                    await asyncio.to_thread(self._locks.give_back_lock, name, self._holder)

    async def _take(self, name: str, wait_s: float) -> None:
        pauses = Pauses(time.monotonic() + wait_s, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                holder = await self._ask(name)
            except DataError as error:
                busy = EngineBusy(f"the lock on its updates cannot be taken: {error}")
            else:
                if holder == self._holder:
                    return
                busy = EngineBusy(f"the rollout service {holder} updates it")
            await pauses.wait(busy)

    async def _renew(self, name: str, over: asyncio.Event) -> str:
        """Hold the lock until it is over; return who took it, "" for nobody."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lease / RENEWALS):
                    await over.wait()
            if over.is_set():
                return ""
            try:
                holder = await self._ask(name)
            except DataError:
                continue  # nobody else can take it either, and we look again soon
            if holder != self._holder:
                return holder

    async def _ask(self, name: str) -> str:
        assert self._locks is not None
        return await asyncio.to_thread(self._locks.take_lock, name, self._holder, self._lease)


def _name(url: str) -> str:
    name = f"update {url}"
    return name if len(name) <= LONGEST_NAME else f"update {hashlib.sha256(url.encode()).hexdigest()}"

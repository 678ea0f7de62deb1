"""Hands finished rollouts to the data manager from a thread of its own, so that no worker waits.

Invariants:
    - Episodes are recorded in the order in which they ended, each once, regardless of retries.
    - While the database is away or the disk is full, they wait and are retried. After the time limit `failure` is set,
      and the service ends.
    - An episode that the data manager refuses as invalid is dropped, which is logged. Several in a row end the service.
    - `put` never blocks. Workers create back-pressure: they look at `full` before they begin an episode.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue

from dart_agent.episodes.screenshots import name_images, prompt_bytes
from dart_agent.episodes.trajectory import Trajectory
from dart_train.core.train_errors import CorruptDataError, DataError, DiskFullError, InvalidTrajectoryError, SchemaError
from dart_train.data.manager.recording import Kept, Recording
from dart_train.rollout.play.dependencies import Dependencies

_log = logging.getLogger(__name__)
SOURCE = "recorder"
BATCH, FILE_THREADS = 32, 8
"""Episodes of one transaction, and how many of them write files at the same time: writing mostly waits for the disk."""
MAX_REFUSED = 8
"""Episodes in a row that may be refused as invalid."""

_FOR_GOOD = (CorruptDataError, SchemaError)


class Recorder:
    """Records finished rollouts.

    Args:
        unavailable_timeout_s: how long database or disk may be away, if `dependencies` is not given.
        most: number of waiting episodes at which the recorder is full.
        most_bytes: bytes of waiting screenshots at which the recorder is full.
    """

    def __init__(
        self,
        data: Recording,
        *,
        unavailable_timeout_s: float = 300.0,
        dependencies: Dependencies | None = None,
        most: int = 256,
        most_bytes: int = 1 << 31,
        on_failure: Callable[[], object] | None = None,
    ) -> None:
        self.recorded = self.refused = 0
        self.failure: BaseException | None = None
        self.busy_s = 0.0
        self._data = data
        self._dependencies = dependencies or Dependencies(unavailable_timeout_s)
        self._most = most
        self._most_bytes = most_bytes
        self._on_failure = on_failure
        self.queue: SimpleQueue[tuple[Trajectory, int, int] | None] = SimpleQueue()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._waiting = self._waiting_bytes = 0
        self._refused_in_a_row = 0
        self._ending = False
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Episodes that are not recorded yet."""
        return self._waiting

    @property
    def full(self) -> bool:
        """Return whether workers should wait before new episodes: too many are pending, or the disk is full."""
        return self._waiting >= self._most or self._waiting_bytes >= self._most_bytes or self._dependencies.disk.away

    def put(self, trajectory: Trajectory, expected: int) -> None:
        """Queue a finished episode for recording, with its pixels; `expected` members complete its group."""
        size = prompt_bytes(trajectory)
        self._count(1, size)
        self.queue.put((trajectory, expected, size))

    def close(self, timeout_s: float = 30.0) -> None:
        """Record pending episodes and end the thread; episodes that take longer are lost, which is logged."""
        self.queue.put(None)
        self._thread.join(timeout_s)
        self._stop.set()
        self._thread.join()
        if self.pending:
            away = "; ".join(f"{state.what}: {state.reason}" for state in self._dependencies.present().values())
            _log.error("%d episodes were not recorded: %s", self.pending, self.failure or away or "no time was left")

    def _count(self, change: int, size: int) -> None:
        with self._lock:
            self._waiting += change
            self._waiting_bytes += size

    def _work(self) -> None:
        try:
            with ThreadPoolExecutor(FILE_THREADS, "files") as threads:
                while batch := self._next_batch():
                    done = len(batch) > 1 and self._record_together(batch, threads)
                    for trajectory, expected, size in batch:
                        if not done and not self._record(trajectory, expected):
                            return
                        self._count(-1, -size)
        except Exception as error:
            self.failure = error
            _log.exception("recording has failed")
            if self._on_failure is not None:
                self._on_failure()

    def _next_batch(self) -> list[tuple[Trajectory, int, int]]:
        """Return waiting episodes, in order; empty at the end."""
        batch: list[tuple[Trajectory, int, int]] = []
        while not self._ending and len(batch) < BATCH and (not batch or not self.queue.empty()):
            waiting = self.queue.get()
            self._ending = waiting is None
            batch += [waiting] if waiting is not None else []
        return batch

    def _record_together(self, batch: list[tuple[Trajectory, int, int]], threads: ThreadPoolExecutor) -> bool:
        """Record episodes in parallel in one transaction; if that fails, each is retried by itself and none is lost."""
        started = time.perf_counter()

        def keep(waiting: tuple[Trajectory, int, int]) -> Kept:
            named, images = name_images(replace(waiting[0], run_id=self._data.run_id))
            return self._data.keep(named, images, waiting[1])

        try:
            self._data.insert(list(threads.map(keep, batch)))
        except DataError as error:
            _log.debug("%d episodes are recorded one by one: %s", len(batch), error)
            return False
        self._succeed(time.perf_counter() - started, len(batch))
        return True

    def _record(self, trajectory: Trajectory, expected: int) -> bool:
        """Record one episode, with retries; return False if told to stop meanwhile."""
        started = time.perf_counter()
        named, images = name_images(replace(trajectory, run_id=self._data.run_id))
        while True:
            try:
                self._data.record(named, images, expected=expected)
            except InvalidTrajectoryError as error:
                self._refuse(error)
                return True
            except _FOR_GOOD:
                raise
            except DataError as error:
                pause = self._note(error)
            else:
                self._succeed(time.perf_counter() - started)
                return True
            if self._stop.wait(pause):
                return False

    def _succeed(self, seconds: float, episodes: int = 1) -> None:
        self._dependencies.disk.succeeded(SOURCE)
        self._dependencies.database.succeeded(SOURCE)
        self.recorded += episodes
        self.busy_s += seconds
        self._refused_in_a_row = 0

    def _refuse(self, error: InvalidTrajectoryError) -> None:
        self.refused += 1
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= MAX_REFUSED:
            raise error
        _log.error("an episode is left out: %s", error)

    def _note(self, error: DataError) -> float:
        """Note a failure; return the pause before the next try. Raises the error once the time limit has passed."""
        full = isinstance(error, DiskFullError)
        availability, other = self._dependencies.disk, self._dependencies.database
        if not full:
            availability, other = other, availability
        other.succeeded(SOURCE)  # as far as is known
        pause = availability.failed(error, SOURCE)
        if availability.timed_out:
            raise error
        return pause

"""Hands finished rollouts to the data manager from a thread of its own, so that no slot waits for disk or database.

Invariants:
    - Episodes are recorded in the order in which they ended; each once.
    - While the database is away they wait, and are tried again for `patience_s`; then `failure` is set and the
      service ends.
    - `put` never blocks. Back-pressure is the slots' business: they look at `pending` before they begin an episode.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from dart_train.data.manager import DataManager
from dart_train.errors import CorruptDataError, DataError, InvalidTrajectoryError, SchemaError
from dart_train.rollout.episode import PlayedEpisode, to_trajectory

_log = logging.getLogger(__name__)
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
_FOR_GOOD = (InvalidTrajectoryError, CorruptDataError, SchemaError)


class Recorder:
    """Records played episodes.

    Args:
        data: the run's data manager.
        source: of the trajectories.
        patience_s: how long one episode is tried.
        on_failure: called (in the recorder's thread) when recording is given up.
    """

    def __init__(
        self,
        data: DataManager,
        *,
        source: str = "rollout",
        patience_s: float = 300.0,
        on_failure: Callable[[], object] | None = None,
    ) -> None:
        self.recorded = 0
        self.failure: BaseException | None = None
        self.busy_s = 0.0
        self._data, self._source, self._patience = data, source, patience_s
        self._on_failure = on_failure
        self._queue: SimpleQueue[PlayedEpisode | None] = SimpleQueue()
        self._stop = threading.Event()
        self._given = 0
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Episodes that are not recorded yet."""
        return self._given - self.recorded

    def put(self, played: PlayedEpisode) -> None:
        """Record an episode soon."""
        self._given += 1
        self._queue.put(played)

    def close(self, timeout_s: float = 30.0) -> None:
        """Record what is pending and end the thread; what cannot be recorded within the time is lost, and said so."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        self._stop.set()
        self._thread.join()
        if self.pending:
            _log.error("%d episodes were not recorded: %s", self.pending, self.failure or "no time was left")

    def _work(self) -> None:
        try:
            while (played := self._queue.get()) is not None:
                if not self._record(played):
                    return
                self.recorded += 1
        except Exception as error:
            self.failure = error
            _log.exception("recording has failed")
            if self._on_failure is not None:
                self._on_failure()

    def _record(self, played: PlayedEpisode) -> bool:
        """Record one episode, however often that takes; False when told to stop meanwhile."""
        started = time.perf_counter()
        trajectory, images = to_trajectory(
            played, run_id=self._data.run_id, hash_image=self._data.image_hash, source=self._source
        )
        deadline = time.monotonic() + self._patience
        pause = FIRST_PAUSE_S
        while True:
            try:
                self._data.record(trajectory, images, expected=played.assignment.group_size)
            except _FOR_GOOD:
                raise
            except DataError as error:
                if time.monotonic() + pause > deadline:
                    raise
                _log.warning("cannot record yet, will go on trying for %.0f s: %s", deadline - time.monotonic(), error)
            else:
                self.busy_s += time.perf_counter() - started
                return True
            if self._stop.wait(pause):
                return False
            pause = min(LONGEST_PAUSE_S, pause * 2)

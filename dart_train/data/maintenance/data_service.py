"""The data manager's own process: keeps leases, staleness and per-task records up to date, and says how things stand.

Everything that it does is done in transactions that the other processes do as well when they need it, so a run survives
the loss of this process: only records and metrics stand still.

Invariants:
    - SIGTERM or SIGINT ends it after the turn in progress, with nothing half done and a last line of metrics.
    - A database that is busy or away costs turns, not the process, for at most `unavailable_timeout_s`; what only a
      person can mend ends it at once with its message.
"""

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable

from dart_train.core.availability import Availability
from dart_train.core.metrics_log import MetricsLog
from dart_train.core.stop_event import StopEvent
from dart_train.core.train_errors import CorruptDataError, DataError, ReadOnlyError, SchemaError
from dart_train.data.groups import lease_rows
from dart_train.data.groups.lease_rows import Sweep
from dart_train.data.insight import statistics
from dart_train.data.maintenance.pool_import import fill_pool
from dart_train.data.maintenance.retention import collect
from dart_train.data.maintenance.retention_plan import RetentionConfig
from dart_train.data.manager.data_manager import DataManager

_log = logging.getLogger(__name__)
THROUGHPUT_WINDOW_S = 60.0
LEFTOVER_AGE_S = 600.0
COLLECT_INTERVAL_S = 3600.0
"""Seconds between two collections: each may read every trajectory."""


class DataService:
    """Sweeps in turns and writes a line of metrics per interval.

    Args:
        retention: what is cleared away, every `COLLECT_INTERVAL_S`; by default nothing.
        unavailable_timeout_s: seconds for which the database may be away, or its disk full.
    """

    def __init__(
        self,
        data: DataManager,
        metrics: MetricsLog | None = None,
        *,
        workers: int | None = None,
        retention: RetentionConfig | None = None,
        metrics_interval_s: float = 1.0,
        unavailable_timeout_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._availability = Availability("the database", unavailable_timeout_s)
        self.data = data
        self._metrics = metrics
        self._workers = workers
        self._retention = retention or RetentionConfig()
        self._collected_at = clock()
        self._cleaner: threading.Thread | None = None
        self._interval_s, self._clock = metrics_interval_s, clock
        self._next_line = clock()
        self._swept = Sweep()
        self._recorded: deque[tuple[float, int]] = deque()  # (when, trajectories so far) within the throughput window

    def turn(self) -> None:
        """Do what is due once."""
        sweep = self.data.sweep()
        self._swept += sweep
        if sweep.returned_leases:
            _log.warning("%d leases ran out, their groups can be leased again", sweep.returned_leases)
        self.data.close_partial()
        self.data.refresh_task_stats()
        if self.data.config.replay_leftovers:
            self.data.regroup()
        self._clean_up()
        if self._clock() >= self._next_line:
            self._next_line = max(self._next_line + self._interval_s, self._clock())
            self._write_line()

    def figures(self) -> dict[str, object]:
        """Return the figures of a line: where every trajectory stands, throughput, success and version."""
        (census, figures), now = self.data.figures(), self._clock()
        self._recorded.append((now, census.total))
        while now - self._recorded[0][0] > THROUGHPUT_WINDOW_S:
            self._recorded.popleft()
        (first, before), wall = self._recorded[0], time.time()
        rate = (census.total - before) / (now - first) if now > first else 0.0
        throughput = self.data.read(statistics.throughput, wall - THROUGHPUT_WINDOW_S, wall, self._workers)
        newest = self.data.newest_checkpoint()
        tasks = self.data.read(statistics.saved_task_stats)
        rates = {name: item.success_rate for name, item in tasks.items() if item.success_rate is not None}
        return {
            **census.parts(),
            **figures,
            "total": census.total,
            "newest_version": newest.version if newest else None,
            "returned_leases": self._swept.returned_leases,
            "surplus_groups": self.data.read(lease_rows.count_surplus),
            "trajectories_per_s": rate,
            "actions_per_min": throughput.actions_per_minute,
            "env_utilisation": throughput.utilisation,
            "success_rate": sum(rates.values()) / len(rates) if rates else None,
            "success_rate_by_task": rates,
        }

    def run(self, stop: threading.Event, sweep_interval_s: float = 0.5) -> None:
        """Take turns until told to stop."""
        self.data.files.remove_leftovers(LEFTOVER_AGE_S)
        if self.data.config.experience_pool:
            fill_pool(self.data)
        while not stop.is_set():
            pause = sweep_interval_s
            try:
                self.turn()
                self._availability.succeeded()
            except DataError as error:
                pause = max(pause, self._availability.failed(error))
                if self._availability.timed_out or isinstance(error, (SchemaError, CorruptDataError, ReadOnlyError)):
                    raise
            stop.wait(pause)
        self.data.refresh_task_stats()
        self._write_line()

    def _clean_up(self) -> None:
        """Collect in a thread when it is due: it may read every trajectory, and the other work must not wait for it."""
        busy = self._cleaner is not None and self._cleaner.is_alive()
        if not self._retention.limited or busy or self._clock() - self._collected_at < COLLECT_INTERVAL_S:
            return
        self._collected_at = self._clock()
        self._cleaner = threading.Thread(target=self._collect, name="retention", daemon=True)
        self._cleaner.start()

    def _collect(self) -> None:
        try:
            done = collect(self.data, self._retention)
        except DataError as error:
            _log.error("nothing was cleared away, will try again: %s", error)
            return
        _log.info(
            "cleared away %d trajectories and %d screenshots, %.1f MB",
            done.removed,
            done.images,
            done.freed_bytes / 1e6,
        )
        for problem in done.problems:
            _log.warning("%s", problem)

    def _write_line(self) -> None:
        if self._metrics is not None:
            self._metrics.write(**self.figures())


def run_data_service(service: DataService, sweep_interval_s: float = 0.5) -> None:
    """Be the data manager's process until SIGTERM or SIGINT, in the main thread. Raises `DataError`."""
    stop = StopEvent()
    previous = {
        number: signal.signal(number, lambda signum, frame: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        service.run(stop, sweep_interval_s)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

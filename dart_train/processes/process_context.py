"""What every process of a run starts from: the configuration, the run's directory, the data manager, progress."""

import itertools
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils.processes import STOPPED_STATUS
from dart_train.config.run_config import RunConfig
from dart_train.config.task_names import expand_tasks
from dart_train.core.digests import why_changed
from dart_train.core.metrics_log import MetricsLog
from dart_train.core.stop_event import StopEvent
from dart_train.core.train_errors import CheckpointError
from dart_train.data.groups.checkpoint_rows import CheckpointRow
from dart_train.data.manager.data_manager import DataManager
from dart_train.data.store.sql_store import UNAVAILABLE_TIMEOUT_S
from dart_train.run.run_directory import RunDirectory
from dart_train.run.run_store import open_data

_log = logging.getLogger(__name__)
PROGRESS_INTERVAL_S = 0.2


class Progress:
    """Tells the panel how far a phase, by default the present one, is, a few times a second at most."""

    def __init__(self, run: RunDirectory, phase: str | None = None) -> None:
        self._log = MetricsLog(run.metrics("progress"))
        self._phase = phase
        self._said = 0.0

    def say(self, done: float, total: float, detail: str = "") -> None:
        """Write down `done` of `total`; the last one is never left out."""
        now = time.monotonic()
        if done >= total or now - self._said > PROGRESS_INTERVAL_S:
            self._said = now
            self._log.write(done=done, total=total, detail=detail, phase=self._phase)

    def waits(self, text: str) -> None:
        """Write down what the phase waits for; "" for nothing any more."""
        self._log.write(waiting=text, phase=self._phase)

    def counter(self, total: int, done: int = 0) -> Callable[[str], None]:
        """A function that says that one more of `total` is done, and tells a detail; `done` are done already."""
        counted = itertools.count(done + 1)
        return lambda detail: self.say(next(counted), total, detail)


@dataclass(slots=True)
class ProcessContext:
    """One process's view of its run."""

    config: RunConfig
    run: RunDirectory
    stop: StopEvent = field(default_factory=StopEvent)
    patience_s: float = UNAVAILABLE_TIMEOUT_S
    cluster_settings: ClientSettings = ClientSettings()

    def __post_init__(self) -> None:
        self.config = expand_tasks(self.config)

    def limit_waits(self, seconds: float) -> None:
        """Let nothing wait longer for a database or a cluster that does not answer."""
        self.patience_s = seconds
        self.cluster_settings = ClientSettings(reconnect_s=seconds, answer_s=seconds)
        limited = {
            name: getattr(self.config, name).model_copy(update={"unavailable_timeout_s": seconds})
            for name in ("data", "rollout")
        }
        self.config = self.config.model_copy(update=limited)

    def open_data(self, unavailable_timeout_s: float | None = None) -> DataManager:
        """Open the run's data manager; calls wait this long for a database that is away, by default `patience_s`."""
        return open_data(self.config, self.run, unavailable_timeout_s or self.patience_s)

    def database_url(self) -> str:
        """URL of the run's database."""
        return self.config.data.database_url() or self.run.database_url

    def progress(self, phase: str | None = None) -> Progress:
        """The run's progress log, of the present phase or of a named one."""
        return Progress(self.run, phase)

    @property
    def url(self) -> str:
        """Return the URL of the environment cluster.

        Raises:
            ConfigurationError: if none was given.
        """
        url = self.config.cluster.url
        if url is None:
            raise ConfigurationError(
                "this process needs desktops: start `dart-gym serve --listen URL` and pass --url URL, "
                "or use `dart-train run`, which starts them"
            )
        return url

    def client(self) -> ClusterClient:
        """A client of the environment cluster."""
        return ClusterClient(self.url, self.config.cluster.token(), self.cluster_settings)

    def catch_signals(self) -> None:
        """Turn SIGTERM and SIGINT into `stop`, for processes that end at the next good point."""
        stop_on_signals(self.stop)


def stop_on_signals(stop: StopEvent, *, orphan_exits: bool = False) -> None:
    """Have SIGTERM and SIGINT set an event.

    Args:
        stop: the event.
        orphan_exits: whether the process ends at once where the signal says that its parent has died, for work whose
            next good point is far away and that goes on from what is written.
    """
    parent = os.getppid()

    def handler(signum: int, frame: FrameType | None) -> None:
        if orphan_exits and os.getppid() != parent:
            os._exit(STOPPED_STATUS)
        stop.set()

    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)


def published(data: DataManager, version: int | None = None) -> CheckpointRow:
    """Return a version that can be loaded, or the newest that is whole, with its path on this node.

    Raises:
        CheckpointError: if there is no version, or the one that is asked for is damaged.
    """
    rows = data.completed_checkpoints()
    if version is not None:
        rows = [row for row in data.checkpoints() if row.version == version]
    first: CheckpointError | None = None
    for row in rows:
        try:
            local = data.localized(row)
            check_model(local.path)
        except CheckpointError as error:
            first = first or error
            _log.error("version %d of the weights is skipped: %s", row.version, error)
            continue
        if first is not None:
            _log.warning("version %d of the weights is used, the newest that is whole", row.version)
        return local
    raise first or CheckpointError(
        f"no weights are published as version {version or 0} yet; `dart-train run` does it, or "
        "`dart-train process CONFIG prepare`"
    )


def check_model(path: str | Path) -> None:
    """Check that a directory still holds the model that was written there.

    Raises:
        CheckpointError: if it does not.
    """
    if "://" in str(path):
        return
    config, weights = Path(path) / "config.json", [*Path(path).glob("*.safetensors"), *Path(path).glob("*.bin")]
    if not config.is_file() or not weights:
        lacks = "weights (*.safetensors)" if config.is_file() else "config.json"
        raise CheckpointError(f"{path} has no {lacks}: restore it from a copy, or remove the run to start afresh")
    if changed := why_changed(Path(path)):
        raise CheckpointError(f"{path}: {changed}; restore it from a copy, or remove the run to start afresh")

"""Any trainer in the place of `DartGRPOTrainer`: leases come in, weights go out, and the loop between is here.

A trainer is a class with two methods; `examples/reinforce.py` is one of 60 lines:

```python
class Mine:
    def __init__(self, model_dir, data, **options): ...
    def train(self, groups) -> dict[str, float]: ...         # groups: dart_train.data.LeasedGroups; returns metrics
    def save(self, path) -> None: ...                        # weights and config.json into an empty directory
```

    trainer: {kind: "module:Mine", options: {...}}           # in the run's configuration; options: its settings

Invariants:
    - A lease is committed after `train` returned; one that raises gives it back.
    - A published version says which lease it contains. A restart begins from the newest version: leases that only lost
      weights were trained on come back, so nothing is trained twice or lost.
    - A published version can be read back, and has the fingerprint of what was read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dart_train.core.fingerprint import Fingerprint
from dart_train.core.metrics_log import MetricsLog
from dart_train.core.train_errors import LeaseError
from dart_train.trainer.settings.grpo_settings import KEEP_PUBLISHED_S, LEASE_TTL_S, GRPOSettings
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.fingerprint_probe import fingerprint_of
from dart_train.trainer.weights.model_loading import load_model
from dart_train.trainer.weights.publisher import Publisher

if TYPE_CHECKING:
    from dart_train.data.manager.leasing import LeasedGroups, Leasing

_log = logging.getLogger(__name__)


class GroupTrainer(Protocol):
    """The interface of a trainer."""

    def train(self, groups: LeasedGroups) -> Mapping[str, float]:
        """Train on a lease and return metrics."""

    def save(self, path: Path) -> object:
        """Write weights and configuration, as `save_pretrained` does."""


def run_trainer(
    trainer: GroupTrainer,
    data: Leasing,
    settings: GRPOSettings,
    *,
    model_dir: Path,
    checkpoints: Path,
    metrics: MetricsLog | None = None,
    stop: Callable[[], bool] = lambda: False,
    holder: str = "trainer",
) -> int:
    """Train on lease after lease and publish, until `max_steps` or `stop`."""

    def save(model: GroupTrainer, path: Path, source_dir: Path, **values: Any) -> Path:
        return checkpoint.write_version(model.save, path, source_dir, fingerprint=_fingerprint, **values)

    checkpoint.remove_incomplete(checkpoints)
    publisher = Publisher(
        data,
        checkpoints,
        model_dir,
        every=settings.publish_steps,
        keep=settings.keep_published,
        keep_s=KEEP_PUBLISHED_S,
        save=save,
        take=None,
    )
    contained = publisher.contained(model_dir)
    data.resume(holder, contained)
    publisher.begin(trainer, None, model_dir, contained)
    done = 0

    def over() -> bool:
        return done >= settings.max_steps or stop()

    for leased in data.leases(
        holder,
        groups=settings.groups_per_step,
        ttl_s=LEASE_TTL_S,
        stop=over,
    ):
        with leased:
            before, numbers = publisher.version, trainer.train(leased)
            done, contained = done + 1, leased.serial
            publisher.unpublished += 1
            newest = [item.newest_version for group in leased for item in group.trajectories]
            publisher.served = max(publisher.served, *newest)
            publisher.publish_if_due(trainer, contained, done)
            _commit(leased, before)
        if metrics is not None:
            metrics.write(step=done, **{"version": float(publisher.version), **numbers})
    publisher.publish_rest(trainer, contained, done)
    return done


def _fingerprint(directory: Path) -> Fingerprint:
    """Return what the written weights answer when they are read back as an engine reads them."""
    return fingerprint_of(load_model(directory), directory)


def _commit(leased: LeasedGroups, version: int) -> None:
    try:
        leased.commit(version)
    except LeaseError as error:
        _log.warning("trained on a lease that was lost meanwhile: %s", error)

"""Publishes the trainer's weights as versions, and remembers which version the weights are.

Invariants:
    - A version is on disk completely before the data manager hears of it.
    - Versions only grow, also over restarts: the data manager gives the next number.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_train.trainer import checkpoint

if TYPE_CHECKING:
    from dart_train.data.manager import DataManager


_OWN = ("training", "resumed")
"""Sources of the versions that the trainer may delete; others are the warm start's."""


class Publisher:
    """One run's published versions.

    Args:
        data: told of every version.
        root: where they lie.
        model_dir: where tokenizer and processor files are copied from.
        every: optimizer updates between two versions.
        keep: versions kept on disk.

    Attributes:
        version: the newest version that the weights were published as.
        unpublished: updates since then.
        served: newest version that rollouts have shown to be served.
    """

    def __init__(self, data: DataManager, root: Path, model_dir: Path, *, every: int, keep: int) -> None:
        self._data = data
        self._root = root
        self._model_dir = model_dir
        self._every = every
        self._keep = keep
        self.version = 0
        self.unpublished = 0
        self.served = -1
        self._first = 0

    def begin(self, model: Any, resumed: checkpoint.ResumePoint | None) -> None:
        """Take up the newest version, or publish the weights where no published version is equal to them."""
        newest = self._data.newest_checkpoint()
        own = [row.version for row in self._data.checkpoints() if row.source in _OWN]
        self._first = min(own, default=self._data.next_version() if newest else 1)
        if resumed is not None:
            self.version, self.unpublished = resumed.version, resumed.unpublished
        elif newest is not None:
            self.version = newest.version
        if newest is None:
            self.publish(model, "initial")
        elif newest.version > self.version:  # killed after a publication that the saved state does not know of
            self.publish(model, "resumed")

    def publish_if_due(self, model: Any) -> None:
        """Publish after every so many updates."""
        if self.unpublished >= self._every:
            self.publish(model, "training")

    def publish_rest(self, model: Any) -> None:
        """Publish what was learned since the last version."""
        if self.unpublished:
            self.publish(model, "training")

    def publish(self, model: Any, source: str) -> None:
        """Write the weights as the next version, tell the data manager, delete what nobody needs any more."""
        version = self._data.next_version()
        path = checkpoint.version_dir(self._root, version)
        checkpoint.write_model(model, path, self._model_dir)
        self._data.publish(version, str(path), source)
        self.version, self.unpublished = version, 0
        for old in checkpoint.prune_versions(self._root, self._keep, self.served, self._first):
            self._data.deprecate_checkpoint(old)

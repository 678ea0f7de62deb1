"""Publishes the trainer's weights as versions, and remembers which version the weights are.

Invariants:
    - A version's row says what is: PENDING from its announcement, RUNNING while it is written, COMPLETED once its
      directory is whole, FAILED if it never will be, DEPRECATED before its files are deleted.
    - Versions only grow, also over restarts: the data manager gives the next number.
    - Only the main rank writes; all ranks know the version.
    - Weights are copied between two steps and written during the next ones, one version at a time. An error of the
      writing is raised by the next call that publishes or settles.
    - Where engines read from memory, a fact of the run says where the newest version is, from the moment at which its
      gathering begins; its row is RUNNING until its files are there as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_agent.engines.weight_stream.dart_weight_socket import TensorShape
from dart_train.data.groups import checkpoint_rows
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.background_write import BackgroundWrite, at_once, beside
from dart_train.trainer.weights.ranks import ALONE, Ranks
from dart_train.trainer.weights.snapshot import snapshot
from dart_train.trainer.weights.weight_server import VersionInMemory, WeightServer

if TYPE_CHECKING:
    from dart_train.data.manager.leasing import Leasing


_OWN = ("training", "resumed")
"""Sources of the versions that the trainer may delete; others are the warm start's."""


class Publisher:
    """One run's published versions.

    Args:
        keep_s: seconds for which a version is kept, however many came after it.
        save: writes what `take` took into a new directory, by default `checkpoint.write_model`.
        take: takes a model's weights as they are, by all ranks; None for a model that must be written at once.
        server: lets engines read what is taken from memory, on the main rank; None for files alone.

    Attributes:
        served: newest version that rollouts have shown to be served.
        best: version of the best weights so far, which is kept; None if that is not measured.
    """

    def __init__(
        self,
        data: Leasing,
        root: Path,
        model_dir: Path,
        *,
        every: int,
        keep: int,
        keep_s: float = 0.0,
        ranks: Ranks = ALONE,
        save: Callable[..., Path] = checkpoint.write_model,
        take: Callable[..., Any] | None = snapshot,
        server: WeightServer | None = None,
    ) -> None:
        self._data = data
        self._root = root
        self._model_dir = model_dir
        self._every = every
        self._keep = keep
        self._keep_s = keep_s
        self._ranks = ranks
        self._save = save
        self._take = take
        self.server = server
        self._writing = BackgroundWrite("version")
        self.version = 0
        self.unpublished = 0
        self.served = -1
        self.best: int | None = None
        self._first = 0

    def contained(self, weights_dir: Path | None) -> int | None:
        """Serial of the newest lease in the weights that training is about to begin from; None: unknown."""
        if weights_dir is None:
            return None
        known = checkpoint.contained_lease(weights_dir)
        if known is not None:
            return known
        own = [row for row in self._data.checkpoints() if row.source in _OWN and _same(row.path, weights_dir)]
        return None if own else 0  # no version of the trainer's: trained on nothing

    def begin(
        self, model: Any, resumed: checkpoint.ResumePoint | None, weights_dir: Path | None, lease: int | None
    ) -> None:
        """Take up the newest version, or publish weights (of `resumed`, else `weights_dir`) that are in none."""
        source = self._ranks.share(self._missing(resumed, weights_dir) if self._ranks.is_main else None)
        if source is None:
            self._tell()
        else:
            self.publish_as(model, source, lease, resumed.step if resumed else 0)
            self.settle()  # engines wait for it, and so does training

    def _missing(self, resumed: checkpoint.ResumePoint | None, weights_dir: Path | None) -> str | None:
        """Take up the newest version; the source of one to publish where none is equal to the weights."""
        self.fail_unfinished()
        newest = self._data.newest_checkpoint()
        own = [row.version for row in self._data.checkpoints() if row.source in _OWN]
        self._first = min(own, default=self._data.read(checkpoint_rows.next_version) if newest else 1)
        if resumed is not None:
            self.version, self.unpublished = resumed.version, resumed.unpublished
        elif newest is not None and weights_dir is not None and _same(newest.path, weights_dir):
            self.version = newest.version
        if newest is None:
            return "initial"
        if newest.version > self.version:  # published, but not from these weights or those before them
            return "resumed"
        return None

    def fail_unfinished(self) -> None:
        """Say of versions that an earlier life did not finish that they never will be, and clear up."""
        for row in self._data.checkpoints():
            if row.source in (*_OWN, "initial") and row.completed_at is None and row.status in ("PENDING", "RUNNING"):
                self._data.write(checkpoint_rows.fail, row.version)
                if row.source in _OWN:
                    checkpoint.remove_version(self._root, row.version)
        kept = [row for row in self._data.checkpoints() if row.source in _OWN and row.status == "COMPLETED"]
        for row in kept[self._keep :]:  # newest first; nothing else is left here of versions that a lost node published
            path = checkpoint.version_dir(self._root, row.version)
            if "://" in row.path and not path.is_dir() and row.version != self.best:
                self._data.retire(row.version, path)

    def publish_if_due(self, model: Any, lease: int | None, step: int) -> None:
        """Publish after every `publish_steps` updates."""
        if self.unpublished >= self._every:
            self.publish(model, lease, step)

    def publish_rest(self, model: Any, lease: int | None, step: int) -> None:
        """Publish what was learned since the last version."""
        if self.unpublished:
            self.publish(model, lease, step)
        self.settle()

    @property
    def writing(self) -> Future[None] | None:
        """The version that is being written, or was written last; None where there is none, and on other ranks."""
        return self._writing.future

    def settle(self) -> None:
        """Wait until what was published is on the disk. Raises what its writing raised."""
        self._writing.settle()

    def close(self) -> None:
        """Let what is being written be written, when training ends in an error of its own."""
        self._writing.close()
        if self.server is not None:
            self.server.close()

    def publish(self, model: Any, lease: int | None, step: int) -> None:
        """Write the weights as the next version, tell the data manager, delete versions that are no longer needed."""
        self.publish_as(model, "training", lease, step)

    def publish_as(self, model: Any, source: str, lease: int | None, step: int) -> None:
        """Write the weights as the next version, with the given source."""
        self.settle()
        version = self._announce(source) if self._ranks.is_main else 0
        taken = self._taken(model, version)
        if self._ranks.is_main:
            work = partial(self._write, taken, version, source, self.served, lease=lease, step=step)
            self._writing.future = at_once(work) if self._take is None else beside(work)
            self.version, self.unpublished = version, 0
        self._tell()
        if self._take is None:
            self.settle()

    def _announce(self, source: str) -> int:
        """Return the number of the next version, whose row says that it is being made."""
        version = self._data.read(checkpoint_rows.next_version)
        place = self._data.place(checkpoint.version_dir(self._root, version))
        self._data.write(checkpoint_rows.announce, version, place, source)
        self._data.write(checkpoint_rows.begin, version)
        return version

    def _taken(self, model: Any, version: int) -> Any:
        """The weights of a moment, which engines may read from memory from now on."""
        if self._take is None:
            return model
        with self._failing(version):
            if self.server is None:
                return self._take(model, self._model_dir, self._ranks)
            return self._take(model, self._model_dir, self._ranks, partial(self._offer, self.server, version))

    @contextmanager
    def _failing(self, version: int) -> Iterator[None]:
        """Have the row of a version say that it failed, where the block raises."""
        try:
            yield
        except Exception:
            if self._ranks.is_main:
                self._data.write(checkpoint_rows.fail, version)
            raise

    def _offer(self, server: WeightServer, version: int, tensors: list[TensorShape]) -> VersionInMemory:
        """Let engines read a version whose gathering begins."""
        offered = server.offer(version, tensors)
        path = str(checkpoint.version_dir(self._root, version))
        self._data.set_fact(checkpoint_rows.IN_MEMORY, {"version": version, "path": path, "address": server.address})
        return offered

    def _write(self, taken: Any, version: int, source: str, served: int, **facts: Any) -> None:
        """Write a version, announce it, and delete versions that are no longer needed."""
        path = checkpoint.version_dir(self._root, version)
        with self._failing(version):
            self._save(taken, path, self._model_dir, **facts)
        self._data.publish(version, path, source)
        spare = checkpoint.old_versions(self._root, self._keep, served, self._first, self.best, keep_s=self._keep_s)
        for old in spare:
            if not _same(checkpoint.version_dir(self._root, old), self._model_dir):  # copied from each time
                self._data.retire(old, checkpoint.version_dir(self._root, old))
                checkpoint.remove_version(self._root, old)

    def _tell(self) -> None:
        self.version, self.unpublished = self._ranks.share((self.version, self.unpublished))


def _same(left: str | Path, right: str | Path) -> bool:
    """Return whether a row's path is a local directory and not a name in an object store."""
    if "://" in str(left):
        return str(left).rpartition("/")[2] == Path(right).name
    return Path(left).absolute() == Path(right).absolute()

"""Writes states in the background; training waits only for a copy in the host's memory.

Invariants:
    - A copy shares no memory with the training: what is written is the state of the moment that it was taken.
    - One state at a time: the next one waits for the one before, and so does the end of training.
    - An error of the writing is raised by the next call of the training's own thread, after the next step at the
      latest. Where one rank fails, the state counts on none.
    - Threads of the ranks meet in a process group of their own: one that they shared with the training would mix the
      order of its calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from dart_train.core.train_errors import TrainingError
from dart_train.trainer.weights.background_write import BackgroundWrite, at_once, beside

if TYPE_CHECKING:
    from dart_train.trainer.weights.ranks import Ranks

_T = TypeVar("_T")


class StateWriter:
    """Writes one trainer's states. Made, and called, by all ranks.

    Args:
        ranks: those that train.
        beside: whether states are written in the background, from copies; otherwise it waits for each.
    """

    def __init__(self, ranks: Ranks, *, beside: bool = True) -> None:
        self._beside = beside
        self._ranks = ranks
        if beside and ranks.count > 1:
            import torch.distributed as dist

            self._ranks = replace(ranks, group=dist.new_group(backend="gloo"))
        self._work: list[Callable[[], object]] = []
        self.writing = BackgroundWrite("state")

    @property
    def ranks(self) -> Ranks:
        """The ranks as the writing threads meet."""
        return self._ranks

    def copied(self, state: dict[str, _T]) -> dict[str, _T]:
        """Copy tensors, also nested and sharded ones, into the host's memory; the same where training waits."""
        if not self._beside:
            return state
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        stager = DefaultStager(StagingOptions(False, False, False, False))
        try:
            found = stager.stage(state)
            assert isinstance(found, dict)  # and no future: nothing was asked to be asynchronous
            return found
        finally:
            stager.close()

    def add(self, work: Callable[[], object]) -> None:
        """Let something be written with the next state."""
        self._work.append(work)

    def write(self, complete: Callable[[], None]) -> None:
        """Write what was added, then let `complete` run once all ranks have written theirs."""
        work, self._work = self._work, []
        self.settle()
        run = beside if self._beside else at_once
        self.writing.future = run(lambda: self._write(work, complete))
        self.check()

    def _write(self, work: list[Callable[[], object]], complete: Callable[[], None]) -> None:
        failure: Exception | None = None
        try:
            for one in work:
                one()
        except Exception as error:  # raised below, once the other ranks know
            failure = error
        found = self._ranks.gather("" if failure is None else f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise failure
        other = next((f"rank {rank}: {text}" for rank, text in enumerate(found) if text), None)
        if other is not None:
            raise TrainingError(f"a state is not complete, because another rank could not write its part: {other}")
        complete()

    def check(self) -> None:
        """Raise what the writing raised, if it has ended."""
        self.writing.check()

    def settle(self) -> None:
        """Wait until the state is on the disk. Raises what its writing raised."""
        self.writing.settle()

    def close(self) -> None:
        """Let a state be written to its end, where training ends in an error of its own."""
        self.writing.close()

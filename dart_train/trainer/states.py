"""When the states that training resumes from are written, which of them is the best, and when one counts.

`ShardedTrainer` writes the files in the background; see `checkpoint` for what makes a directory complete.

Invariants:
    - A state is saved between leases only: in the middle of one it could not say what its weights contain.
    - What is written says which lease its weights contain, which version they were published as, and what was skipped.
"""

from __future__ import annotations

import shutil
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import TrainerControl, TrainerState

from dart_train.core.train_errors import TrainingError
from dart_train.trainer.bad_steps import BadSteps
from dart_train.trainer.batches.lease_source import LeaseSource
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.publisher import Publisher
from dart_train.trainer.weights.ranks import Ranks
from dart_train.trainer.weights.shared_states import SharedStates
from dart_train.trainer.weights.state_writer import StateWriter

if TYPE_CHECKING:
    from concurrent.futures import Future

    from dart_train.trainer.weights.checkpoint import ResumePoint


@dataclass(frozen=True, slots=True)
class BestMetric:
    """Choice of the best state, by the mean of a logged metric over `window` steps; no state is the best before."""

    name: str | None = None
    greater_is_better: bool | None = None
    window: int = 10


class States:
    """One trainer's states.

    Args:
        sharded: whether ranks hold parts of the model: states of another layout are refused.
        writer: writes the files, and declares the state complete after them.
        shared: puts states where another node finds them; None where there is no such place.

    Attributes:
        resumed: the state that this life resumed from; None at a beginning.
    """

    def __init__(
        self,
        output_dir: Path,
        publisher: Publisher,
        leases: LeaseSource,
        bad_steps: BadSteps,
        ranks: Ranks,
        *,
        best: BestMetric,
        sharded: bool,
        writer: StateWriter,
        shared: SharedStates | None = None,
    ) -> None:
        self._output_dir = output_dir
        self._best = best
        self._sharded = sharded
        self._shared = shared
        self._publisher = publisher
        self._leases = leases
        self._bad_steps = bad_steps
        self._ranks = ranks
        self._writer = writer
        self._recent: deque[float] = deque(maxlen=best.window)
        self._due = False
        self._saved = -1
        self.resumed: ResumePoint | None = None

    @property
    def none(self) -> bool:
        """Return whether no state was saved or taken up yet."""
        return self._saved < 0

    def find(self, checkpoints: Path) -> str | None:
        """The newest whole state, after what killed lives left half-written is gone. Called by all ranks."""
        if self._ranks.is_first_of_node:
            if self._ranks.several_nodes:  # a state that lies on one of them alone is of no use
                for directory in self._output_dir.glob("checkpoint-*"):
                    shutil.rmtree(directory)
            checkpoint.remove_incomplete(self._output_dir, checkpoints)
            if self._shared is not None:
                self._shared.fetch(self._output_dir)
        self._ranks.wait()
        point = checkpoint.resume_point(self._output_dir) if self._ranks.is_first_of_node else None
        found = self._ranks.of_nodes(point.path.name if point else None)
        return str(self._output_dir / found[0]) if found[0] and len(set(found)) == 1 else None

    def newest(self) -> str:
        """Return the newest complete state.

        Raises:
            TrainingError: if no complete state exists.
        """
        point = checkpoint.resume_point(self._output_dir)
        if point is None:
            raise TrainingError(f"no complete state in {self._output_dir}: train without resume_from_checkpoint")
        return str(point.path)

    def take_up(self, directory: str) -> None:
        """Continue from a state.

        Raises:
            TrainingError: if it is damaged, or was saved in another layout.
        """
        point = checkpoint.read_resume_point(directory)
        checkpoint.check_layout(point, sharded=self._sharded)
        self.resumed = point
        self._bad_steps.skipped, self._publisher.best = point.skipped, point.best
        self._saved = point.step
        self._leases.contained = point.lease

    def end(self, state: TrainerState, control: TrainerControl, *, collapsing: bool = False) -> None:
        """Training ends: keep its last state, unless it is kept already or the policy shows signs of a collapse."""
        control.should_save = state.global_step > 0 and state.global_step != self._saved and not collapsing
        self.begin(state, control)

    def end_step(
        self,
        state: TrainerState,
        control: TrainerControl,
        report: dict[str, float],
        last: bool,
        *,
        collapsing: bool = False,
    ) -> None:
        """Decide whether a state is saved now, and whether it is the best; `last` on its lease.

        While the policy shows signs of a collapse no state is saved: the newest is from before them.
        """
        self._writer.check()
        self._put_off(control, last)
        control.should_save = control.should_save and not collapsing
        self._note_best(state, control, report)
        self.begin(state, control)

    def _put_off(self, control: TrainerControl, last: bool) -> None:
        if last:
            control.should_save = control.should_save or self._due
            self._due = False
        elif control.should_save and not control.should_training_stop:
            control.should_save, self._due = False, True

    def _note_best(self, state: TrainerState, control: TrainerControl, report: dict[str, float]) -> None:
        """Let the state that is about to be saved be the best, if its steps were."""
        name = self._best.name
        value = report.get(name) if name else None
        if value is None:
            return
        self._recent.append(value)
        if not control.should_save or len(self._recent) < self._best.window:
            return
        mean, best = sum(self._recent) / len(self._recent), state.best_metric
        if best is None or (mean > best if self._best.greater_is_better else mean < best):
            state.best_metric, state.best_global_step = mean, state.global_step
            publisher = self._publisher
            publisher.best = publisher.version if not publisher.unpublished else publisher.best

    def begin(self, state: TrainerState, control: TrainerControl) -> None:
        """Mark the directory of the state that is about to be written as incomplete, once the one before is written."""
        if not control.should_save:
            return
        self._writer.settle()
        if self._ranks.is_main:
            if self._shared is not None:
                self._shared.settle()  # what `transformers` removes now may be on its way
            checkpoint.mark_incomplete(self._directory(state.global_step))

    def complete(self, step: int) -> None:
        """Have the state of this moment written, and declared complete once all ranks have written theirs."""
        self._saved = step
        point = checkpoint.ResumePoint(
            self._directory(step),
            step=step,
            version=self._publisher.version,
            unpublished=self._publisher.unpublished,
            lease=self._leases.contained,
            skipped=self._bad_steps.skipped,
            best=self._publisher.best,
        )
        published = self._publisher.writing
        self._writer.write(lambda: self._complete(point, published))

    def _complete(self, point: ResumePoint, published: Future[None] | None) -> None:
        """Declare a state complete whose files are written; it names the version that its weights were published as."""
        if published is not None:
            published.result()
        ranks = self._writer.ranks
        if ranks.several_nodes:
            if self._shared is not None and ranks.is_first_of_node and not ranks.is_main:
                self._shared.put_part(point.path, ranks.node)
            ranks.wait()
        if ranks.is_main:
            checkpoint.mark_complete(point)
            if self._shared is not None:
                self._shared.put(point.path)

    def settle(self) -> None:
        """Wait until the last state is complete. Raises what its writing raised."""
        self._writer.settle()

    def close(self) -> None:
        """Let the last state be written to its end, when training ends in an error of its own."""
        self._writer.close()

    def _directory(self, step: int) -> Path:
        return self._output_dir / f"checkpoint-{step}"

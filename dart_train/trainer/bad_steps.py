"""The rule for steps that are not finite: they change nothing, are counted, and too many in a row end the run.

Invariant: all ranks decide alike, also where each holds only a part of the gradient.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dart_train.core.train_errors import TrainingError
from dart_train.trainer.weights.ranks import Ranks, local_part

_log = logging.getLogger(__name__)


class BadSteps:
    """Judges the steps of one trainer, bears `most` bad ones in a row; `skipped` includes those of earlier lives."""

    def __init__(self, most: int, output_dir: Path, ranks: Ranks) -> None:
        self._most = most
        self._output_dir = output_dir
        self._ranks = ranks
        self._in_a_row = 0
        self.skipped = 0

    def passes(self, loss: Tensor, parameters: Iterable[torch.nn.Parameter], *, scaled: bool = False) -> bool:
        """Return whether a step may be made: its loss and the norm of its gradient are finite. Called by all ranks.

        `scaled`: whether a `GradScaler` looks at the gradient (fp16): one that overflows then only says that the scale
        is too large, the scaler leaves the step out and lowers it.
        """
        parts = [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
        finite = bool(loss.isfinite()) and (scaled or bool(torch.nn.utils.get_total_norm(parts).isfinite()))
        passed = all(self._ranks.gather(finite))
        if passed:
            self._in_a_row = 0
        return passed

    def skip(self, step: int, made_of: Sequence[str]) -> None:
        """Count a step that did not pass, by its trajectories.

        Raises:
            TrainingError: if too many steps in a row did not pass.
        """
        self.skipped += 1
        self._in_a_row += 1
        _log.warning(
            "step %d is not finite and was skipped (%d in a row); it was made of %s",
            step,
            self._in_a_row,
            ", ".join(made_of[:8]),
        )
        if self._in_a_row >= self._most:
            raise TrainingError(
                f"{self._in_a_row} steps in a row had a loss or gradient that is not finite; the weights are those "
                f"before them. Lower learning_rate or max_grad_norm and run the same command again, it resumes from "
                f"{self._output_dir}"
            )

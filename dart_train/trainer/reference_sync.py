"""The KL term's reference follows the policy: ref = alpha policy + (1 - alpha) ref, every few optimizer steps.

As TRL's `SyncRefModelCallback` (`ref_model_sync_steps`, `ref_model_mixup_alpha`; TR-DPO, arXiv 2404.09656), and it
survives a restart: a state that training resumes from holds the reference too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from dart_train.core.train_errors import TrainingError

if TYPE_CHECKING:
    from dart_train.trainer.states import States

REFERENCE_FILE = "reference.pt"


class ReferenceSync(TrainerCallback):
    """Moves the reference, and keeps it with each state. To stand before what declares a state complete."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Go on with the reference of the state that training resumes from."""
        states: States = self._trainer.states
        if states.resumed is None:
            return
        path = Path(states.resumed.path) / REFERENCE_FILE
        if not path.is_file():
            raise TrainingError(
                f"{path} is missing: that state was saved without ref_model_sync_steps; leave it out, or begin anew"
            )
        self._trainer.ref_model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move the reference if it is time."""
        if state.global_step % args.ref_model_sync_steps == 0:
            mix(self._trainer.model, self._trainer.ref_model, args.ref_model_mixup_alpha)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write it into the state that was just written."""
        if self._trainer.ranks.is_main:
            directory = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            torch.save(self._trainer.ref_model.state_dict(), directory / REFERENCE_FILE)


@torch.no_grad()
def mix(policy: torch.nn.Module, reference: torch.nn.Module, alpha: float) -> None:
    """Move a reference towards a policy of the same parameters, in place."""
    for target, source in zip(reference.parameters(), policy.parameters(), strict=True):
        target.mul_(1.0 - alpha).add_(source.to(target.dtype), alpha=alpha)

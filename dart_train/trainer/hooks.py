"""The trainer's own work at the moments that `transformers` names."""

from __future__ import annotations

from typing import Any, Protocol

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class Moments(Protocol):
    """What is done at them."""

    def begin_training(self) -> None:
        """Before the first step."""

    def end_step(self, control: TrainerControl) -> None:
        """After each optimizer step."""

    def save_complete(self) -> None:
        """After a state's files were written."""

    def end_training(self) -> None:
        """After the last step."""


class Hooks(TrainerCallback):
    """Calls them."""

    def __init__(self, trainer: Moments) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Before the first step."""
        self._trainer.begin_training()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After an optimizer step."""
        self._trainer.end_step(control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After a state was written."""
        self._trainer.save_complete()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After the last step."""
        self._trainer.end_training()

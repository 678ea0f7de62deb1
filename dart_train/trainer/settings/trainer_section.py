"""`TrainerConfig`: the section `trainer` of a run's configuration, made of the fields of `DartGRPOConfig`.

Own fields are those of `GRPOSettings`; of those inherited from `transformers.TrainingArguments` a run may set the ones
that are listed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model, field_validator, model_validator

from dart_gym.core.section import Section
from dart_gym.utils.plugins import Registry, has
from dart_train.trainer.settings.grpo_settings import OWN_HINTS, GRPOSettings

TRAINERS: Registry[Callable[..., Any]] = Registry(
    "trainer",
    "dart_gui.trainers",
    {"dart_grpo": "dart_train.trainer.grpo_trainer:DartGRPOTrainer"},
    (has(train=("groups",), save=("path",)),),
)
"""Trainers by name. Those from outside are called with a model directory, the run's data and `trainer.options`, and
hold what `dart_train.trainer.trainer_loop.GroupTrainer` says."""


class _Inherited(Section):
    """The fields of `transformers.TrainingArguments` that a run may set, under their names.

    Importing that class takes seconds and torch, and every process of a run reads the configuration. A script that
    builds `DartGRPOConfig` itself may set the other fields too.
    """

    warmup_steps: float = Field(
        0, description="Optimizer steps in which the learning rate rises from 0; below 1 it is a share of all steps."
    )
    lr_scheduler_kwargs: dict[str, Any] | None = Field(
        None, description="Arguments of the schedule that lr_scheduler_type names."
    )
    optim: str | None = Field(
        None, description="The optimizer, a name of `transformers.training_args.OptimizerNames`; null is AdamW."
    )
    weight_decay: float = Field(0.0, description="Weight decay of matrices; biases and norms have none.")
    adam_beta2: float = Field(0.999, description="Decay rate of AdamW's second moment.")
    bf16: bool = Field(False, description="Compute in bfloat16; the trained weights stay in float32.")
    fp16: bool = Field(False, description="Compute in float16 with a scaled loss, for GPUs without bfloat16.")
    gradient_checkpointing: bool | None = Field(
        None, description="Compute activations again in the backward pass, which takes less memory and more time."
    )
    fsdp_config: dict[str, Any] | str | None = Field(
        None, description="Settings of fsdp, such as reshard_after_forward, or a JSON file of them."
    )


class _Base(_Inherited):
    """Settings that belong to the run, and the checks of others."""

    kind: str = Field(
        "dart_grpo", description="The trainer: dart_grpo, one of a package, or module:Class (docs/guides/training.md)."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of a trainer of your own (docs/guides/training.md)."
    )
    report_to: str | list[str] = Field(
        ["tensorboard"], description="Trackers of the metrics: tensorboard, wandb, trackio, several, or none."
    )
    use_cpu: bool | None = Field(None, description="Train on the CPU; null: where there is no GPU.")
    fsdp: bool | str | None = Field(
        None,
        description="Shard the language model among the ranks of torchrun (FSDP2, see docs/guides/training.md).",
    )

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if ":" not in kind and kind not in TRAINERS.names():
            TRAINERS.get(kind)  # refuses it; what is there is imported when a run starts
        return kind

    @model_validator(mode="after")
    def _consistent(self) -> _Base:
        GRPOSettings(**{name: getattr(self, name) for name in OWN_HINTS}).check()
        return self

    def given(self) -> dict[str, Any]:
        """The fields that are not as `DartGRPOConfig` has them by default."""
        return self.model_dump(exclude_defaults=True, exclude={"kind", "options"}) | {"report_to": self.report_to}


if TYPE_CHECKING:

    class TrainerConfig(_Base, GRPOSettings):
        """The section `trainer`."""
else:
    _OWN = {
        item.name: (OWN_HINTS[item.name], Field(item.default, description=item.metadata["help"]))
        for item in fields(GRPOSettings)
    }
    TrainerConfig = create_model("TrainerConfig", __base__=_Base, __module__=__name__, __doc__="The trainer.", **_OWN)

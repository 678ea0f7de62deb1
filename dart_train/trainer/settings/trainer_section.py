"""`TrainerConfig`: the section `trainer` of a run's configuration, made of the fields of `DartGRPOConfig`.

Own fields are those of `GRPOSettings`. The inherited ones are read off the source of the installed `transformers`, for
its import takes seconds and torch, and every process of a run reads the configuration.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model, field_validator, model_validator

from dart_gym.core.section import Section
from dart_gym.utils.plugins import Registry, has
from dart_train.trainer.settings.grpo_settings import OWN_HINTS, GRPOSettings

NOT_SETTINGS = frozenset({
    "output_dir", "seed", "data_seed", "resume_from_checkpoint", "restore_callback_states_from_checkpoint",  # the run's
    "per_device_train_batch_size", "num_train_epochs", "auto_find_batch_size", "average_tokens_across_devices",
    "remove_unused_columns", "ignore_data_skip", "train_sampling_strategy", "length_column_name", "label_names",
    "label_smoothing_factor", "prediction_loss_only", "include_for_metrics", "include_num_input_tokens_seen",
    "batch_eval_metrics", "load_best_model_at_end", "bf16_full_eval", "fp16_full_eval", "per_device_eval_batch_size",
    "local_rank", "parallelism_config", "deepspeed", "push_to_hub", "disable_tqdm",
})  # fmt: skip
"""Fields of `TrainingArguments` that the run fills in, or that mean nothing where data come from leases."""
NOT_PREFIXES = ("eval_", "dataloader_", "do_", "hub_")


TRAINERS: Registry[Callable[..., Any]] = Registry(
    "trainer",
    "dart_gui.trainers",
    {"dart_grpo": "dart_train.trainer.grpo_trainer:DartGRPOTrainer"},
    (has(train=("groups",), save=("path",)),),
)
"""Trainers by name. Those from outside are called with a model directory, the run's data and `trainer.options`, and
hold what `dart_train.trainer.trainer_loop.GroupTrainer` says."""


class _Base(Section):
    """What a run sets in its own way, and the checks."""

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
        description="true shards the language model among the ranks of torchrun (FSDP2, see docs/guides/training.md).",
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


def _type(node: ast.expr) -> Any:
    """The type that an annotation in the source means, without parameters; names of enumerations are text."""
    match node:
        case ast.BinOp(left=left, right=right):
            return _type(left) | _type(right)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Constant(value=value)):
            return type(value)
        case ast.Subscript(value=value):
            return _type(value)
        case ast.Constant(value=None):
            return None
        case ast.Name(id=name):
            return {"int": int, "float": float, "bool": bool, "dict": dict, "list": list}.get(name, str)
    return Any


def _inherited() -> Iterator[tuple[str, tuple[Any, Any]]]:
    """(name, (type, field)) of the settings of `TrainingArguments`; what has a computed default is None unless set."""
    package = importlib.util.find_spec("transformers")
    if package is None or not package.submodule_search_locations:
        return
    source = Path(package.submodule_search_locations[0], "training_args.py").read_text(encoding="utf-8")
    body = next(node for node in ast.parse(source).body if getattr(node, "name", "") == "TrainingArguments")
    for item in body.body:  # type: ignore[attr-defined]  # it is a class
        match item:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(keywords=keywords)):
                given = {keyword.arg: keyword.value for keyword in keywords}
            case _:
                continue
        if name in NOT_SETTINGS or name.startswith(NOT_PREFIXES) or name in OWN_HINTS or name in _Base.model_fields:
            continue
        kind, default = _type(item.annotation), given.get("default")
        if isinstance(default, ast.Constant):
            yield name, (kind, Field(default.value, description=_help(given["metadata"])))
        else:
            yield name, (kind | None, Field(None, description=_help(given["metadata"])))


def _help(metadata: ast.expr) -> str:
    """The text of "help" in a field's metadata."""
    pairs = zip(metadata.keys, metadata.values, strict=True) if isinstance(metadata, ast.Dict) else ()
    texts = [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "help"]
    return str(ast.literal_eval(texts[0])) if texts else ""


if TYPE_CHECKING:

    class TrainerConfig(_Base, GRPOSettings):
        """The section `trainer`; fields of `TrainingArguments` are there as well, unknown to type checkers."""
else:
    _OWN = {
        item.name: (OWN_HINTS[item.name], Field(item.default, description=item.metadata["help"]))
        for item in fields(GRPOSettings)
    }
    TrainerConfig = create_model(
        "TrainerConfig", __base__=_Base, __module__=__name__, __doc__="The trainer.", **{**_OWN, **dict(_inherited())}
    )

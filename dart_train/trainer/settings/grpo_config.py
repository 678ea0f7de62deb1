"""`DartGRPOConfig`: `transformers.TrainingArguments` plus the settings of DART's GRPO, under TRL's names.

Defaults are those of the paper (arXiv 2509.23866, table of hyper-parameters); a small model on a CPU wants others,
see `configs/`. Wrong values raise `ValueError` that names the field and what to do.
"""

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from annotated_types import Interval
from transformers import TrainingArguments

from dart_train.trainer.losses import ObjectiveConfig
from dart_train.trainer.settings.grpo_settings import (
    CONTEXT_WITHOUT_SHARDING,
    KEEP_PUBLISHED_S,
    OFFLOADS_NOTHING,
    STATES_KEPT,
    SUPERVISED_ROWS,
    GRPOSettings,
    check_value,
    setting,
)


@dataclass
class DartGRPOConfig(GRPOSettings, TrainingArguments):
    """Settings of `DartGRPOTrainer`.

    One optimizer step trains on one lease of task groups from the data manager, shared by all ranks. Fields of
    `TrainingArguments` keep their meaning, except for batch sizes: micro-batches are made by `micro_batch_tokens`, so
    `per_device_train_batch_size` stays 1, and `gradient_accumulation_steps` only cuts the same lease into that many
    calls of `training_step`: the gradient is the same.

    `fsdp` shards the language model among the ranks of `torchrun`, see `sharding`; `fsdp_config` may set
    `reshard_after_forward`.

    `metric_for_best_model` may name any metric that is logged, such as "reward": the state and the version with the
    best mean of it over the last `best_window` steps are kept beside the newest.

    The fields written below are no keys of a run's configuration, which always has their defaults, and those that
    begin with `teacher_`, which follow its section `teacher`.
    """

    per_device_train_batch_size: int = field(default=1, metadata={"help": "Leases per step; stays 1."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Stays False: batches are not columns."})
    ignore_data_skip: bool = field(default=True, metadata={"help": "Stays True: the data manager knows what is left."})
    disable_tqdm: bool | None = field(default=True, metadata={"help": "No progress bar: the log has a line per step."})
    dataloader_pin_memory: bool = field(default=False, metadata={"help": "Batches move as they are trained on."})
    logging_steps: float = setting(1, "Optimizer steps between two reports to `report_to`.")
    save_total_limit: Annotated[int | None, Interval(ge=2)] = setting(
        STATES_KEPT, "States from which training resumes that are kept, at least 2."
    )
    min_groups_per_step: Annotated[int | None, Interval(ge=1)] = setting(
        None, "A lease may hold as few groups as this; None for groups_per_step."
    )
    geometric_clip_min: Annotated[float | None, Interval(ge=0, le=1)] = setting(
        None, "Leave out steps whose geometric mean of pi_old/mu is below; None for none."
    )
    geometric_clip_max: Annotated[float | None, Interval(ge=1)] = setting(
        None, "Leave out steps whose geometric mean of pi_old/mu is above; None for none."
    )
    use_bias_correction_kl: bool = setting(False, "Multiply the KL term by pi/pi_old, as TRL does by default.")
    ref_model_mixup_alpha: Annotated[float, Interval(ge=0, le=1)] = setting(
        0.6,
        "Share of the policy in the reference that ref_model_sync_steps moves: ref = alpha policy + (1 - alpha) ref.",
    )
    entropy_mask_scope: Literal["group", "batch"] = setting(
        "group", "Quantile of steps within each 'group' (DART), or of the whole 'batch'."
    )
    supervised_rows: Annotated[int, Interval(ge=1)] = setting(
        SUPERVISED_ROWS, "Demonstrated steps that every lease is trained with, where supervised_coef is set."
    )
    teacher_when: Literal["never", "failed", "always"] = setting(
        "never", "Groups in which what a teacher said is trained on: none, those without any reward, or all."
    )
    teacher_coef: Annotated[float, Interval(ge=0)] = setting(
        1.0, "Weight of the reverse KL to a teacher, and of the cross-entropy on its answers."
    )
    teacher_rehearsed_rows: Annotated[int, Interval(ge=0)] = setting(
        0, "Steps with an earlier answer of a teacher that every lease is trained with as well."
    )
    share_prompts: bool = setting(
        True, "Run equal prompts once, with what followed them as branches. Exact, with every attention kernel."
    )
    reduce_gradients: Literal["auto", "micro_batch", "step"] = setting(
        "auto",
        "When ranks of `fsdp` put their gradients together: after each 'micro_batch', or once a 'step', until which "
        "each rank holds those of all trained weights whole, 4 bytes a number. 'auto' is 'step' where that is 1 GiB at "
        "most, as with adapters.",
    )
    keep_published_s: float = setting(
        KEEP_PUBLISHED_S, "Seconds for which each version is kept in any case: an engine that starts may read it."
    )
    merge_prefixes: bool = setting(
        True, "Run steps whose prompts extend one another as one row with several trained spans. Exact."
    )
    pack_rows: bool = setting(
        True, "Lay the rows of a micro-batch one after the other instead of filling up the shorter ones. Exact."
    )
    max_bad_steps: int = setting(
        3, "Non-finite steps, or leases without a step that can be trained on, in a row that end the run."
    )
    collapse_window: int = setting(
        20, "Steps over which signs of a collapse are averaged, and for which they must last; 0 for no guard."
    )
    alarm_window: int = setting(10, "Steps over which the numbers behind alarms are averaged; 0 for no alarms.")
    best_window: int = setting(
        10, "Steps that metric_for_best_model is averaged over; before that no state is the best."
    )

    def __post_init__(self) -> None:
        if self.deepspeed:  # before transformers looks for the package
            raise ValueError(
                "deepspeed is not carried: fsdp: true divides weights, gradients and moments among the ranks, which is "
                "more than ZeRO-2 does; remove deepspeed"
            )
        if self.fsdp:  # whose default is a state in one rank's memory
            given = self.fsdp_config or {}
            given = json.loads(Path(given).read_text()) if isinstance(given, str) else dict(given)
            self.fsdp_config = {"state_dict_type": "SHARDED_STATE_DICT"} | given
        super().__post_init__()
        if self.offload_activations and not self.gradient_checkpointing:
            raise ValueError(OFFLOADS_NOTHING)
        if self.offload_activations and self.device.type != "cpu":  # whose activations are on the host
            self.activation_checkpointing_kwargs = {"offload": True}
        self.check()
        _check_constants(self)
        _check_parts_left_alone(self)
        _check_sharding(self)
        self.objective(), self.make_advantage()  # they refuse what does not go together

    def objective(self) -> ObjectiveConfig:
        """The terms of the loss. Without a correction where pi_old is mu itself."""
        bounds = (self.geometric_clip_min, self.geometric_clip_max)
        made: dict[str, Any] = {
            "loss": self.make_loss(),
            "beta": self.beta * self.kl_every,
            "tis_clip_max": None if self.old_logprobs == "behaviour" else self.tis_clip_max,
            "geometric_clip": None if bounds == (None, None) else bounds,
            "off_policy_threshold": self.off_policy_mask_threshold,
        }
        return ObjectiveConfig(**named(ObjectiveConfig, self) | made)


def named(settings: Any, config: Any) -> dict[str, Any]:
    """Return the values of a configuration for the fields of a dataclass that have the same name."""
    return {item.name: getattr(config, item.name) for item in fields(settings) if hasattr(config, item.name)}


def _check_constants(config: DartGRPOConfig) -> None:
    """Refuse wrong values of the fields that only code may set."""
    hints = get_type_hints(DartGRPOConfig, include_extras=True)
    for name in DartGRPOConfig.__annotations__:
        check_value(name, getattr(config, name), hints[name])
    least = config.min_groups_per_step
    if least is not None and least > config.groups_per_step:
        raise ValueError(f"min_groups_per_step={least} is above groups_per_step={config.groups_per_step}; lower it")


def _check_parts_left_alone(config: DartGRPOConfig) -> None:
    """Refuse what contradicts how data come in, are saved and are shared."""
    if config.per_device_train_batch_size != 1:
        raise ValueError(
            "per_device_train_batch_size stays 1: a step is one lease of groups_per_step groups, cut into "
            "micro-batches by micro_batch_tokens"
        )
    if not config.ignore_data_skip or config.remove_unused_columns or config.dataloader_num_workers:
        raise ValueError(
            "ignore_data_skip stays True, remove_unused_columns False and dataloader_num_workers 0: data come from "
            "leases, which the data manager keeps account of"
        )
    if config.eval_strategy != "no" or config.load_best_model_at_end:
        raise ValueError(
            "eval_strategy stays 'no' and load_best_model_at_end False: evaluate a published version with "
            "`dart-agent eval`"
        )
    if config.metric_for_best_model is not None and config.save_total_limit is not None and config.save_total_limit < 3:
        raise ValueError(
            f"save_total_limit={config.save_total_limit} leaves no room: with metric_for_best_model set it must be at "
            "least 3 (the best, the newest, and one before it while the newest is being written)"
        )
    if config.n_gpu > 1:
        raise ValueError(
            f"one process trains on one device, found {config.n_gpu}: start one per device with "
            "`torchrun --nproc-per-node N`, or set CUDA_VISIBLE_DEVICES to one of them"
        )


_FSDP_FIXED: tuple[tuple[str, Any, str], ...] = (
    ("fsdp_version", 2, "FSDP1 flattens weights, and its states are not Hugging Face layouts"),
    ("state_dict_type", "SHARDED_STATE_DICT", "whole, a state would be in one rank's memory: 100 GB of a 7B model"),
    ("auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "the language model is cut by its layers, the vision tower is not"),
    ("cpu_offload", False, "the vision tower stays on the device, and one step cannot be made on both"),
    ("cpu_ram_efficient_loading", False, "every rank reads its own part of the weights"),
    ("activation_checkpointing", False, "it renames weights; set gradient_checkpointing beside fsdp_config"),
    ("transformer_cls_names_to_wrap", "", "the layers of the language model are found"),
)
"""Options that `fsdp_config` may not change, by the plugin's names, and why."""


def _check_sharding(config: DartGRPOConfig) -> None:
    """Refuse ways to share a model among ranks that are not carried."""
    if config.deepspeed_plugin is not None:
        raise ValueError("ACCELERATE_USE_DEEPSPEED is set (as accelerate's launcher does): unset it and set fsdp: true")
    if config.context_parallel > 1 and not config.fsdp:
        raise ValueError(CONTEXT_WITHOUT_SHARDING.format(config.context_parallel))
    if not config.fsdp:
        return
    given = config.fsdp_plugin_args or {}
    for name, allowed, why in _FSDP_FIXED:
        if given.get(name, allowed) != allowed:
            raise ValueError(f"fsdp_config: {name}={given[name]!r} is not supported, only {allowed!r}: {why}")
    if config.ref_model_sync_steps is not None:
        raise ValueError(
            "ref_model_sync_steps with fsdp is not supported: policy and reference are cut differently; leave one of "
            "them out"
        )
    if config.frozen_dtype != "float32":
        raise ValueError("frozen_dtype with fsdp is not supported: ranks cut weights of one number type; leave it out")
    if config.world_size == 1:
        raise ValueError("fsdp shards a model among ranks, and this is one process: torchrun --nproc-per-node N")
    if config.world_size % config.context_parallel:
        raise ValueError(
            f"context_parallel={config.context_parallel} does not divide the {config.world_size} ranks: set it to a "
            "divisor of them, or take another number of ranks"
        )

"""`DartGRPOConfig`: `transformers.TrainingArguments` plus the settings of DART's GRPO, under TRL's names.

Defaults are those of the paper (arXiv 2509.23866, table of hyper-parameters); a small model on a CPU wants others,
see `configs/`. Wrong values raise `ValueError` that names the field and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, get_args

from transformers import TrainingArguments
from transformers.integrations import is_deepspeed_available

from dart_train.trainer.losses import CorrectionMode, KLEstimator, LossType, ObjectiveConfig, RatioLevel
from dart_train.trainer.losses.advantages import AdvantageLevel, ScaleRewards
from dart_train.trainer.settings import zero

OLD_LOGPROBS = ("current", "recompute", "behaviour")


@dataclass
class DartGRPOConfig(TrainingArguments):
    """Settings of `DartGRPOTrainer`.

    One optimizer step trains on one lease of task groups from the data manager, shared by all ranks. Fields of
    `TrainingArguments` keep their meaning, except for batch sizes: micro-batches are made by `micro_batch_tokens`, so
    `per_device_train_batch_size` stays 1, and `gradient_accumulation_steps` only cuts the same lease into so many
    calls of `training_step`: the gradient is the same.

    Parameters that control the loss: `epsilon`, `epsilon_high`, `delta`, `beta`, `kl_estimator`,
    `use_bias_correction_kl`, `loss_type`, `importance_sampling_level`, `old_logprobs`, `temperature`, `tis_mode`,
    `tis_clip_max`, `tis_clip_min`, `geometric_clip_min`, `geometric_clip_max`, `top_entropy_quantile`,
    `entropy_mask_level`, `entropy_mask_scope`, `entropy_coef`. They meet in `losses.ObjectiveConfig`, see `objective`.

    Parameters that control advantages: `scale_rewards`, `advantage_level`, `balance_trajectories`, `shuffle_rewards`.
    The size of groups is the rollout service's business (`group_size`), the age of trajectories the data manager's
    (`max_staleness`).

    Parameters that control data and weights: `groups_per_step`, `min_groups_per_step`, `num_iterations`,
    `publish_steps`, `keep_published`, `keep_published_s`, `freeze_vision`, `micro_batch_tokens`, `share_prompts`,
    `merge_prefixes`, `cache_image_features`, `image_cache_mb`, `torch_threads`, `lease_ttl_s`, `max_bad_steps`,
    `best_window`, `supervised_coef`, `supervised_rows`.

    `fsdp` shards the language model among the ranks of `torchrun`, see `sharding`; `fsdp_config` may set
    `reshard_after_forward`. `deepspeed` (a JSON file, or its contents) shards the optimizer's state, see `zero`.

    Parameters that control the adapter, as TRL's `ModelConfig`: `use_peft`, `lora_r`, `lora_alpha`, `lora_dropout`,
    `lora_target_modules`.

    `metric_for_best_model` may name any metric that is logged, such as "reward": the state and the version with the
    best mean of it over the last `best_window` steps are kept beside the newest.

    Defaults that differ from `TrainingArguments`: `learning_rate` 1e-6, `lr_scheduler_type` "constant",
    `max_grad_norm` 2.0, `max_steps` 1000, `logging_steps` 1, `save_steps` 10, `save_total_limit` 2,
    `per_device_train_batch_size` 1, `remove_unused_columns` False, `ignore_data_skip` True, `disable_tqdm` True.
    """

    learning_rate: float = field(default=1e-6, metadata={"help": "Initial learning rate of AdamW."})
    lr_scheduler_type: Any = field(default="constant", metadata={"help": "Schedule of the learning rate."})
    max_grad_norm: float = field(default=2.0, metadata={"help": "Clip of the gradient's norm."})
    max_steps: int = field(default=1000, metadata={"help": "Optimizer steps, each on one lease."})
    logging_steps: float = field(default=1, metadata={"help": "Steps between two reports to `report_to`."})
    save_steps: float = field(default=10, metadata={"help": "Steps between two states from which training resumes."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Resume states kept; at least 2."})
    per_device_train_batch_size: int = field(default=1, metadata={"help": "Leases per step; stays 1."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Stays False: batches are not columns."})
    ignore_data_skip: bool = field(default=True, metadata={"help": "Stays True: the data manager knows what is left."})
    disable_tqdm: bool | None = field(default=True, metadata={"help": "No progress bar: the log has a line per step."})
    dataloader_pin_memory: bool = field(default=False, metadata={"help": "Batches move as they are trained on."})

    epsilon: float = field(default=0.2, metadata={"help": "Lower clip of the ratio: 1 - epsilon."})
    epsilon_high: float = field(default=0.28, metadata={"help": "Upper clip of the ratio: 1 + epsilon_high."})
    delta: float | None = field(
        default=10.0, metadata={"help": "Dual clip: upper bound of the ratio for negative advantages; None for none."}
    )
    beta: float = field(
        default=0.1, metadata={"help": "Weight of the KL term to the initial model; 0 loads no reference model."}
    )
    loss_type: str = field(
        default="grpo",
        metadata={
            "help": "How token losses are weighed: 'grpo' (mean of each step, then over steps; DART), 'dapo' (mean "
            "over all tokens of the lease), 'bnpo' (the same per rank), 'dr_grpo' (sum over a constant, see "
            "max_completion_length), 'cispo' (clipped weights without gradient; set epsilon_high to such as 5.0)."
        },
    )
    max_completion_length: int = field(default=500, metadata={"help": "Constant that 'dr_grpo' divides by, in tokens."})
    importance_sampling_level: str = field(
        default="token",
        metadata={
            "help": "Ratio per 'token' (paper), one per 'sequence' (GSPO), or 'sequence_token' (GSPO with a gradient "
            "per token, as DART's released script)."
        },
    )
    old_logprobs: str = field(
        default="current",
        metadata={
            "help": "What the ratio is taken against: 'current' (the trainer's own policy as it is, one forward; exact "
            "with one update per lease), 'recompute' (a pass before the first update; needed for num_iterations > 1), "
            "'behaviour' (what the engine recorded; then there is no separate importance weight)."
        },
    )
    tis_clip_max: float | None = field(
        default=1.0, metadata={"help": "C of the truncated importance weight min(pi_old/mu, C); None switches it off."}
    )
    tis_clip_min: float | None = field(
        default=None, metadata={"help": "Lower bound of the importance weight; None for none."}
    )
    tis_mode: str = field(
        default="token_truncate",
        metadata={
            "help": "What is done with pi_old/mu, as TRL's vllm_importance_sampling_mode: 'token_truncate' (DART), "
            "'token_mask' (IcePop: tokens outside the bounds do not count), 'sequence_truncate', 'sequence_mask'."
        },
    )
    geometric_clip_min: float | None = field(
        default=None, metadata={"help": "Leave out steps whose geometric mean of pi_old/mu is below; None for none."}
    )
    geometric_clip_max: float | None = field(
        default=None, metadata={"help": "Leave out steps whose geometric mean of pi_old/mu is above; None for none."}
    )
    temperature: float = field(
        default=1.0, metadata={"help": "Temperature that rollouts sample at: log-probabilities are taken at it."}
    )
    kl_estimator: str = field(default="k3", metadata={"help": "Estimate of the KL term: 'k1', 'k2' or 'k3' (DART)."})
    use_bias_correction_kl: bool = field(
        default=False, metadata={"help": "Multiply the KL term by pi/pi_old, as TRL does by default."}
    )
    top_entropy_quantile: float = field(
        default=0.8,
        metadata={"help": "Share of each group's steps kept, those of highest mean token entropy; 1.0 keeps all."},
    )
    entropy_mask_level: str = field(
        default="step",
        metadata={"help": "What top_entropy_quantile selects: whole 'step's (DART) or single 'token's (TRL)."},
    )
    entropy_mask_scope: str = field(
        default="group", metadata={"help": "Quantile of steps within each 'group' (DART), or of the whole 'batch'."}
    )
    entropy_coef: float = field(default=0.0, metadata={"help": "Weight of an entropy bonus."})

    scale_rewards: str = field(
        default="group", metadata={"help": "'group' divides advantages by the group's deviation, 'none' does not."}
    )
    advantage_level: str = field(
        default="step",
        metadata={
            "help": "Baseline over all 'step's of a group (DART), per 'trajectory' (TRL), or 'rloo' (the others)."
        },
    )
    balance_trajectories: bool = field(
        default=False, metadata={"help": "Weigh steps so that every trajectory counts the same, however long it is."}
    )
    shuffle_rewards: bool = field(
        default=False, metadata={"help": "Control: permute rewards within each lease. Must not learn."}
    )

    groups_per_step: int = field(default=8, metadata={"help": "Task groups that a lease asks for."})
    min_groups_per_step: int | None = field(
        default=None, metadata={"help": "A lease may hold as few groups as this; None for groups_per_step."}
    )
    num_iterations: int = field(default=1, metadata={"help": "Optimizer steps on each lease."})
    publish_steps: int = field(default=1, metadata={"help": "Optimizer steps between two published versions."})
    keep_published: int = field(default=4, metadata={"help": "Published versions kept on disk; at least 2."})
    keep_published_s: float = field(
        default=120.0,
        metadata={"help": "Seconds for which each version is kept in any case: an engine that starts may read it."},
    )
    freeze_vision: bool = field(default=False, metadata={"help": "Leave the vision tower's weights as they are."})
    micro_batch_tokens: int = field(
        default=16384, metadata={"help": "Most tokens, padding included, in one forward pass."}
    )
    share_prompts: bool = field(
        default=True,
        metadata={"help": "Run equal prompts once, with their responses as branches. Exact; switch it off for "
                  "attention kernels that take no mask (FlashAttention)."},
    )  # fmt: skip
    merge_prefixes: bool = field(
        default=True,
        metadata={"help": "Run steps whose prompts extend one another as one row with several trained spans. Exact."},
    )
    cache_image_features: bool = field(
        default=True,
        metadata={"help": "Run each distinct image of a lease through the vision tower once, where that saves work."},
    )
    image_cache_mb: int = field(
        default=512, metadata={"help": "Memory for screenshots, and as much for their patches, in MiB."}
    )
    torch_threads: int = field(default=0, metadata={"help": "Threads of torch on the CPU; 0 leaves its default."})
    lease_ttl_s: float = field(default=60.0, metadata={"help": "A lease returns so long after the last heartbeat."})
    max_bad_steps: int = field(default=3, metadata={"help": "Non-finite steps in a row that end the run."})
    best_window: int = field(
        default=10,
        metadata={"help": "Steps that metric_for_best_model is averaged over; before so many, none is best."},
    )
    supervised_coef: float = field(
        default=0.0, metadata={"help": "Weight of the cross-entropy on demonstrations in every step; 0 for none."}
    )
    supervised_rows: int = field(default=16, metadata={"help": "Demonstrated steps that every optimizer step takes."})

    use_peft: bool = field(default=False, metadata={"help": "Train a LoRA adapter; what is published is merged."})
    lora_r: int = field(default=16, metadata={"help": "Rank of the adapter."})
    lora_alpha: int = field(default=32, metadata={"help": "Its scale is lora_alpha / lora_r."})
    lora_dropout: float = field(
        default=0.0, metadata={"help": "Dropout before the adapter. Above 0, pi is not the policy that is served."}
    )
    lora_target_modules: list[str] | None = field(
        default=None, metadata={"help": "Names of layers, or one regular expression; the language model's by default."}
    )

    def __post_init__(self) -> None:
        _check_deepspeed(self)  # before transformers looks for the package
        super().__post_init__()
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name}={value!r} is unknown; choose one of {', '.join(map(repr, allowed))}")
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{name}={value!r} is out of range; choose a value in [{low:g}, {high:g}]")
        _check_combinations(self)

    @property
    def sharded_by(self) -> str | None:
        """Setting that shards among ranks: "fsdp", "deepspeed", or None."""
        return "fsdp" if self.fsdp else "deepspeed" if self.deepspeed else None

    def objective(self) -> ObjectiveConfig:
        """The terms of the loss. Without a correction where pi_old is mu itself."""
        bounds = (self.geometric_clip_min, self.geometric_clip_max)
        return ObjectiveConfig(
            loss_type=self.loss_type,  # type: ignore[arg-type]  # checked above, as all names are
            importance_sampling_level=self.importance_sampling_level,  # type: ignore[arg-type]
            epsilon=self.epsilon,
            epsilon_high=self.epsilon_high,
            delta=self.delta,
            tis_mode=self.tis_mode,  # type: ignore[arg-type]
            tis_clip_max=None if self.old_logprobs == "behaviour" else self.tis_clip_max,
            tis_clip_min=self.tis_clip_min,
            geometric_clip=None if bounds == (None, None) else bounds,
            beta=self.beta,
            kl_estimator=self.kl_estimator,  # type: ignore[arg-type]
            use_bias_correction_kl=self.use_bias_correction_kl,
            entropy_coef=self.entropy_coef,
        )


_INF = float("inf")
_CHOICES: dict[str, tuple[str, ...]] = {
    "loss_type": get_args(LossType),
    "scale_rewards": get_args(ScaleRewards),
    "advantage_level": get_args(AdvantageLevel),
    "importance_sampling_level": get_args(RatioLevel),
    "tis_mode": get_args(CorrectionMode),
    "kl_estimator": get_args(KLEstimator),
    "entropy_mask_level": ("step", "token"),
    "entropy_mask_scope": ("group", "batch"),
    "old_logprobs": OLD_LOGPROBS,
}
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("epsilon", 0.0, 1.0),
    ("epsilon_high", 0.0, _INF),
    ("beta", 0.0, _INF),
    ("tis_clip_max", 1e-6, _INF),
    ("tis_clip_min", 0.0, _INF),
    ("geometric_clip_min", 0.0, 1.0),
    ("geometric_clip_max", 1.0, _INF),
    ("temperature", 1e-6, _INF),
    ("top_entropy_quantile", 1e-6, 1.0),
    ("max_completion_length", 1, _INF),
    ("groups_per_step", 1, _INF),
    ("num_iterations", 1, _INF),
    ("min_groups_per_step", 1, _INF),
    ("publish_steps", 1, _INF),
    ("keep_published", 2, _INF),
    ("keep_published_s", 0.0, _INF),
    ("micro_batch_tokens", 1, _INF),
    ("image_cache_mb", 0, _INF),
    ("torch_threads", 0, _INF),
    ("lease_ttl_s", 1.0, _INF),
    ("max_bad_steps", 1, _INF),
    ("best_window", 1, _INF),
    ("supervised_coef", 0.0, _INF),
    ("supervised_rows", 1, _INF),
    ("lora_r", 1, _INF),
    ("lora_dropout", 0.0, 1.0),
    ("max_steps", 1, _INF),
    ("save_total_limit", 2, _INF),
)


def _check_combinations(config: DartGRPOConfig) -> None:
    """Refuse settings that contradict one another, or that would be ignored without a word."""
    if config.loss_type == "cispo" and config.epsilon_high < 1.0:
        raise ValueError(
            f"epsilon_high={config.epsilon_high!r} is the largest weight of loss_type='cispo', not a distance from 1; "
            "set it to such as 5.0"
        )
    if config.tis_clip_min is not None and (config.tis_clip_max is None or config.tis_clip_min > config.tis_clip_max):
        raise ValueError(
            f"tis_clip_min={config.tis_clip_min!r} needs a tis_clip_max that is not below it, found "
            f"{config.tis_clip_max!r}"
        )
    if config.loss_type != "cispo" and config.delta is not None and config.delta <= 1 + config.epsilon_high:
        raise ValueError(
            f"delta={config.delta!r} must be above 1 + epsilon_high = {1 + config.epsilon_high:g}, else it clips "
            "before the clip does; raise it or set it to None"
        )
    if config.min_groups_per_step is not None and config.min_groups_per_step > config.groups_per_step:
        raise ValueError(
            f"min_groups_per_step={config.min_groups_per_step} is above groups_per_step={config.groups_per_step}; "
            "lower it"
        )
    if config.num_iterations > 1 and config.old_logprobs == "current":
        raise ValueError(
            f"num_iterations={config.num_iterations} needs the policy before the first of them: set "
            "old_logprobs='recompute' or 'behaviour', or num_iterations=1"
        )
    _check_parts_left_alone(config)
    _check_sharding(config)


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
    ("state_dict_type", "FULL_STATE_DICT", "a state is one Hugging Face directory, however many ranks wrote it"),
    ("auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "the language model is cut by its layers, the vision tower is not"),
    ("cpu_offload", False, "the vision tower stays on the device, and one step cannot be made on both"),
    ("cpu_ram_efficient_loading", False, "every rank reads the weights, the vision tower's too"),
    ("activation_checkpointing", False, "it renames weights; set gradient_checkpointing beside fsdp_config"),
    ("transformer_cls_names_to_wrap", "", "the layers of the language model are found"),
)
"""What `fsdp_config` may not change, by the plugin's names, and why."""


def _check_sharding(config: DartGRPOConfig) -> None:
    """Refuse ways to share a model among ranks that are not carried."""
    if config.deepspeed_plugin is not None and not config.deepspeed:
        raise ValueError(
            "ACCELERATE_USE_DEEPSPEED is set (as accelerate's launcher does) and deepspeed is not: name its JSON file "
            "in deepspeed, or unset the variable"
        )
    if config.deepspeed and config.world_size == 1:
        raise ValueError(
            "deepspeed shards an optimizer's state among ranks, and this is one process: torchrun --nproc-per-node N"
        )
    if not config.fsdp:
        return
    given = config.fsdp_plugin_args or {}
    for name, allowed, why in _FSDP_FIXED:
        if given.get(name, allowed) != allowed:
            raise ValueError(f"fsdp_config: {name}={given[name]!r} is not supported, only {allowed!r}: {why}")
    if config.world_size == 1:
        raise ValueError("fsdp shards a model among ranks, and this is one process: torchrun --nproc-per-node N")


def _check_deepspeed(config: DartGRPOConfig) -> None:
    """Refuse an engine that is not carried, that cannot be made, or that stands against other settings."""
    if not config.deepspeed:
        return
    zero.check_config(config.deepspeed)
    if config.fsdp:
        raise ValueError("deepspeed and fsdp both shard: keep one of them")
    if config.fp16:
        raise ValueError("deepspeed with fp16 is not supported: its losses want scaling; set bf16 instead")
    if not is_deepspeed_available():
        raise ValueError(
            "deepspeed is set and the package is not installed: pip install 'deepspeed>=0.19.8', or set fsdp: true, "
            "which needs no package"
        )


def own_fields() -> tuple[str, ...]:
    """Names of the fields that `TrainingArguments` does not have."""
    inherited = {item.name for item in fields(TrainingArguments)}
    return tuple(item.name for item in fields(DartGRPOConfig) if item.name not in inherited)

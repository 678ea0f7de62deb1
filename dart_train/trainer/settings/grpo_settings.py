"""`GRPOSettings`: the settings of DART's GRPO, under TRL's names. Read and checked without torch.

`DartGRPOConfig` adds them to `transformers.TrainingArguments`, and the section `trainer` of a run's configuration is
made of both (`trainer_section`). Defaults are those of the paper (arXiv 2509.23866, table of hyper-parameters); a small
model on a CPU wants others, see `configs/`. Wrong values raise `ValueError` that names the field and what to do.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Interval

from dart_gym.core.errors import PluginError
from dart_gym.utils.plugins import Registry
from dart_train.core.training_alarms import AlarmName
from dart_train.trainer.attention.segments import KernelName
from dart_train.trainer.losses.advantages import ADVANTAGES, Advantage
from dart_train.trainer.losses.surrogates import LOSSES, CorrectionMode, KLEstimator, Loss, RatioLevel

OFFLOADS_NOTHING = (
    "offload_activations moves what gradient_checkpointing keeps, and gradient_checkpointing is off: set it to true, "
    "or leave offload_activations out"
)
"""Said before a run starts, and by the trainer."""
CONTEXT_WITHOUT_SHARDING = (
    "context_parallel {} divides rows among ranks that shard a model, and fsdp is not set: set fsdp: true, or leave "
    "context_parallel out"
)
"""Said in the same places, with the number of ranks."""


def setting(default: Any, text: str) -> Any:
    """A field of `GRPOSettings`: its default and what it means."""
    return field(default=default, metadata={"help": text})


@dataclass
class GRPOSettings:
    """The fields of `DartGRPOConfig` that a run may set, beside inherited ones; see there how they belong together."""

    learning_rate: float = setting(1e-6, "Initial learning rate of AdamW.")
    lr_scheduler_type: str = setting(
        "constant", "Schedule of the learning rate, a name of `transformers.SchedulerType`."
    )
    max_grad_norm: float = setting(2.0, "The gradient's norm is clipped to this; 0 for no clip.")
    max_steps: Annotated[int, Interval(ge=1)] = setting(1000, "Optimizer steps, each on one lease.")
    save_steps: float = setting(10, "Optimizer steps between two states from which training resumes.")
    background_states: bool = setting(
        True,
        "Write those states beside the training, which waits only for a copy in the host's memory, of as many bytes as "
        "the state has on the disk. False: it waits until each is written.",
    )
    epsilon: Annotated[float, Interval(ge=0, le=1)] = setting(0.2, "Lower clip of the ratio: 1 - epsilon.")
    epsilon_high: Annotated[float, Interval(ge=0)] = setting(0.28, "Upper clip of the ratio: 1 + epsilon_high.")
    delta: float | None = setting(10.0, "Dual clip: upper bound of the ratio for negative advantages; None for none.")
    beta: Annotated[float, Interval(ge=0)] = setting(
        0.1, "Weight of the KL term to the initial model; 0 loads no reference model."
    )
    kl_every: Annotated[int, Interval(ge=1)] = setting(
        1,
        "Optimizer steps from one with the KL term to the next, in which it weighs kl_every times beta: the reference "
        "takes a pass in these only. The gradient is the same on average, and noisier.",
    )
    loss_type: str = setting(
        "grpo",
        "The loss: 'grpo' (clipped, mean of each step, then over steps; DART), 'dapo' (mean over all tokens of the "
        "lease), 'bnpo' (the same per rank), 'dr_grpo' (sum over a constant, see max_completion_length), 'cispo' "
        "(clipped weights without gradient; set epsilon_high to such as 5.0), one of an installed package, or "
        "'module:Class'.",
    )
    loss_options: dict[str, Any] | None = setting(None, "What the loss takes beside the settings of this section.")
    max_completion_length: Annotated[int, Interval(ge=1)] = setting(
        500, "Longest response in tokens: the constant that loss_type 'dr_grpo' divides by."
    )
    importance_sampling_level: RatioLevel = setting(
        "token",
        "Ratio per 'token' (paper), one per 'sequence' (GSPO), or 'sequence_token' (GSPO with a gradient per "
        "token, as DART's released script).",
    )
    old_logprobs: Literal["current", "recompute", "behaviour"] = setting(
        "current",
        "What the ratio is taken against: 'current' (the trainer's own policy as it is, one forward; exact with "
        "one update per lease), 'recompute' (the trainer's before the first update on the lease; needed for several "
        "of them), 'behaviour' (what the engine recorded; then there is no separate importance weight).",
    )
    tis_clip_max: Annotated[float | None, Interval(ge=1e-6)] = setting(
        1.0, "C of the truncated importance weight min(pi_old/mu, C); None switches it off."
    )
    tis_clip_min: Annotated[float | None, Interval(ge=0)] = setting(
        None, "Lower bound of the importance weight; None for none."
    )
    tis_mode: CorrectionMode = setting(
        "token_truncate",
        "What is done with pi_old/mu, as TRL's vllm_importance_sampling_mode: 'token_truncate' (DART), "
        "'token_mask' (IcePop: tokens outside the bounds do not count), 'sequence_truncate', 'sequence_mask'.",
    )
    off_policy_mask_threshold: Annotated[float | None, Interval(ge=1e-6)] = setting(
        None,
        "Steps with a negative advantage do not count where the mean of log mu - log pi over their tokens is above, "
        "such as 0.5 (TRL's field; DeepSeek-V3.2); None for no such mask.",
    )
    ref_model_sync_steps: Annotated[int | None, Interval(ge=1)] = setting(
        None,
        "Optimizer steps after which the KL term's reference moves towards the policy, ref = 0.6 policy + 0.4 ref "
        "(TRL's field; TR-DPO); None keeps the reference as it is.",
    )
    temperature: Annotated[float, Interval(ge=1e-6)] = setting(
        1.0, "Temperature that rollouts are sampled at; log-probabilities are taken at it."
    )
    kl_estimator: KLEstimator = setting("k3", "Estimate of the KL term: 'k1', 'k2' or 'k3' (DART).")
    top_entropy_quantile: Annotated[float, Interval(ge=1e-6, le=1)] = setting(
        0.8, "Share of each group's steps kept, those of highest mean token entropy; 1.0 keeps all."
    )
    entropy_mask_level: Literal["step", "token"] = setting(
        "step", "What top_entropy_quantile selects: whole 'step's (DART) or single 'token's (TRL)."
    )
    recorded_entropies: bool = setting(
        False,
        "Choose steps by the entropies that the engine recorded as it sampled them, without a pass of the trainer's; "
        "vLLM's are those of its 8 most likely tokens. A lease in which some are missing takes the pass.",
    )
    replay_routing: bool = setting(
        False,
        "Compute each trained token by the experts that the engine's routers chose when it was sampled: for mixtures "
        "of experts, by engines that report it (transformers; vLLM with --enable-return-routed-experts).",
    )
    entropy_coef: float = setting(0.0, "Weight of an entropy bonus.")
    scale_rewards: Literal["group", "batch", "none"] = setting(
        "group",
        "'group' divides advantages by the group's deviation, 'batch' by the whole lease's (TRL), 'none' by nothing.",
    )
    advantage: str = setting(
        "step",
        "Baseline over all 'step's of a group (DART), per 'trajectory' (TRL), 'rloo' (the others), 'equal_screens' "
        "(GiGPO: also among steps before the same screen), one of an installed package, or 'module:Class'.",
    )
    advantage_options: dict[str, Any] | None = setting(
        None, "What the advantage takes beside the settings of this section."
    )
    pool_weights: Literal["recorded", "one"] = setting(
        "recorded",
        "Importance weight of a success from the experience pool: 'recorded' (truncated as any other's where its "
        "log-probabilities are on record, else 1; DART's formula), 'one' (1 for all, so that the run's own successes "
        "count as much as an oracle's).",
    )
    balance_trajectories: bool = setting(
        False, "Weigh steps so that every trajectory counts the same, however long it is."
    )
    mask_step_limit: bool = setting(
        False,
        "Leave trajectories that ended at their step or time limit out of the loss; their rewards stay in the baseline "
        "(overlong filtering: DAPO, SkyRL; TRL's mask_truncated_completions, for trajectories).",
    )
    negative_advantage_scale: Annotated[float, Interval(ge=0, le=1)] = setting(
        1.0,
        "Factor of negative advantages, such as 0.2: less than 1 learns more from what succeeded than against what "
        "failed, which a weak policy shares most of its tokens with (the aim of AsymRE, arXiv 2506.20520).",
    )
    unreadable_advantage: Annotated[float | None, Interval(ge=-10, le=0)] = setting(
        None,
        "Highest advantage, such as -0.25, of a response that could not be read and ended its episode, whatever that "
        "scored: nothing else keeps the last word in place where the task was done by then. None for no bound.",
    )
    shortest_path: Annotated[float, Interval(ge=0, le=1)] = setting(
        0.0,
        "How much less a success counts that took longer than its group's shortest: R (1 - s (T - T_min) / T) (after "
        "MobileRL); 0 for not at all.",
    )
    shuffle_rewards: bool = setting(False, "Control: permute rewards within each lease. Must not learn.")
    groups_per_step: Annotated[int, Interval(ge=1)] = setting(
        8, "Groups that a lease asks for, trained on in one optimizer step."
    )
    mini_batches: Annotated[int, Interval(ge=1)] = setting(
        1,
        "Parts of a lease that each take an optimizer step, in whole trajectories; from the second on the clip acts. 2 "
        "in DART's released script.",
    )
    max_samples: Annotated[int | None, Interval(ge=1)] = setting(
        None,
        "Most steps of trajectories of a lease that are trained on, drawn at random; None for all. 768 in DART's "
        "released script.",
    )
    num_iterations: Annotated[int, Interval(ge=1)] = setting(1, "Passes over each lease.")
    publish_steps: Annotated[int, Interval(ge=1)] = setting(1, "Optimizer steps between two published versions.")
    keep_published: Annotated[int, Interval(ge=2)] = setting(4, "Published versions kept on disk; at least 2.")
    freeze_vision: bool = setting(False, "Leave the vision tower's weights as they are.")
    micro_batch_tokens: Annotated[int, Interval(ge=1)] = setting(
        16384,
        "Most tokens, padding included, of one forward pass; of all ranks of context_parallel together.",
    )
    context_parallel: Annotated[int, Interval(ge=1)] = setting(
        1,
        "Ranks that share each row, every one with an equal part of its tokens, for rows too long for one of them: "
        "activations are divided by their number. For fsdp; a divisor of the ranks of a machine and of the model's "
        "heads. 1: each rank has rows of its own. Exact.",
    )
    attention: KernelName = setting(
        "sdpa",
        "Kernel of attention: 'sdpa' (any device), 'flash_attention_2' and 'flash_attention_3' (GPU, half precision, "
        "with their packages), 'flex_attention' (GPU).",
    )
    image_features_mb: Annotated[int, Interval(ge=0)] = setting(
        4096,
        "Memory of the device for features of a lease's images and their gradients, in MiB, so that each image runs "
        "through the vision tower once, where that saves work; as much again for the KL reference where it has a "
        "tower of its own. What does not fit is computed anew. 0 runs the tower in every micro-batch.",
    )
    device_memory_mb: Annotated[int | None, Interval(ge=1)] = setting(
        None,
        "Memory of the device that each rank may take, in MiB; null is what a GPU has. A step that would take more is "
        "cut into smaller micro-batches before it begins, on all ranks together, or refused.",
    )
    offload_optimizer: bool = setting(
        False,
        "Keep the optimizer's moments in the host's memory, and on the device in its steps only, when no activations "
        "are there. Exact; a step takes two copies of them longer.",
    )
    offload_activations: bool = setting(
        False,
        "Keep what gradient_checkpointing keeps of each layer in the host's memory. Exact; passes take a copy longer.",
    )
    image_cache_mb: Annotated[int, Interval(ge=0)] = setting(
        512, "Memory for screenshots, and as much for their patches, in MiB."
    )
    torch_threads: Annotated[int, Interval(ge=0)] = setting(0, "Threads of torch on the CPU; 0 leaves torch's default.")
    on_collapse: Literal["warn", "return", "stop"] = setting(
        "warn",
        "What follows a collapse (entropy, length, unreadable responses or gradient far from those at first): 'warn' "
        "says so in log and metrics, 'return' goes back to the last state before its signs, 'stop' ends the run.",
    )
    stop_on: tuple[AlarmName, ...] = setting(
        (),
        "Alarms that end the run: engine_gap (engine and trainer disagree on the same weights), policy_gap (rollouts "
        "were sampled far from the trained policy), importance (importance weights shrink training), weights (they "
        "hardly change), signal (groups teach nothing), dropped (most steps cannot be trained on), collapse.",
    )
    supervised_coef: Annotated[float, Interval(ge=0)] = setting(
        0.0, "Weight of the cross-entropy on demonstrations and what else is rehearsed; 0 for none."
    )
    self_imitation_rows: Annotated[int, Interval(ge=0)] = setting(
        0,
        "Steps of the run's own newest successes, evenly over tasks and of a task over seeds, that every lease "
        "rehearses with supervised_coef (self-imitation, arXiv 1806.05635); none with shuffle_rewards.",
    )
    shown_rows: Annotated[int, Interval(ge=0)] = setting(
        0,
        "Steps of pages that the oracle showed because a whole group had failed on them (demonstrations.shown_pages), "
        "likewise.",
    )
    rehearsal_steps: Annotated[int, Interval(ge=0)] = setting(
        0,
        "Optimizer steps on each lease, behind its own, that train on rehearsed steps alone: demonstrations, own "
        "successes, shown pages and earlier lessons are dealt out among all steps on the lease.",
    )
    use_peft: bool = setting(False, "Train a LoRA adapter; what is published is merged.")
    lora_r: Annotated[int, Interval(ge=1)] = setting(16, "Rank of the adapter.")
    lora_alpha: int = setting(32, "Its scale is lora_alpha / lora_r.")
    frozen_dtype: Literal["float32", "bfloat16"] = setting(
        "float32",
        "Number type of the weights under an adapter, which are not trained: bfloat16 takes half of the memory, and is "
        "what engines serve; not with fsdp.",
    )
    lora_target_modules: list[str] | None = setting(
        None, "Names of the layers that get an adapter, or one regular expression; null for all of the language model."
    )

    @property
    def steps_per_lease(self) -> int:
        """Optimizer steps on each lease."""
        return self.reinforced_steps + self.rehearsal_steps

    @property
    def reinforced_steps(self) -> int:
        """Optimizer steps on each lease that train on its groups."""
        return self.num_iterations * self.mini_batches

    @property
    def idle_clip(self) -> str:
        """Why the clip that was set changes nothing; "" where it may, or where it was left as it is by default."""
        untouched = all(getattr(self, name) == _DEFAULTS[name] for name in ("epsilon", "epsilon_high", "delta"))
        if untouched or self.reinforced_steps > 1 or self.old_logprobs == "behaviour":
            return ""
        return (
            "epsilon, epsilon_high and delta change nothing here: with one optimizer step on each lease pi is pi_old, "
            "and their ratio 1. Set mini_batches (2 in DART's released script) with old_logprobs: recompute, or "
            "old_logprobs: behaviour"
        )

    def make_loss(self) -> Loss:
        """Return the loss that `loss_type` names.

        Raises:
            ValueError: if there is no such loss, or it does not support these settings.
        """
        return self._made(LOSSES, "loss_type", "loss_options")

    def make_advantage(self) -> Advantage:
        """Return the function that turns a group's rewards into advantages.

        Raises:
            ValueError: if there is no such function, or it does not support these settings.
        """
        return self._made(ADVANTAGES, "advantage", "advantage_options")

    def _made(self, registry: Registry[Any], name: str, options: str) -> Any:
        """An object of the class that a field names; its fields that are settings as well have their values."""
        try:
            kind = registry.get(getattr(self, name))
        except PluginError as error:
            raise ValueError(f"{name}: {error}") from None
        shared = {key: getattr(self, key) for key in getattr(kind, "__dataclass_fields__", ()) if key in OWN_HINTS}
        try:
            return kind(**(shared | (getattr(self, options) or {})))
        except TypeError as error:
            raise ValueError(f"{options} do not fit {getattr(self, name)!r}: {error}") from None

    def check(self) -> None:
        """Refuse values that are out of range, contradict each other or would be ignored.

        Raises:
            ValueError: with the field and what to do.
        """
        for name, hint in OWN_HINTS.items():
            check_value(name, getattr(self, name), hint)
        if not _from_outside(LOSSES, self.loss_type):
            self.make_loss()  # those from outside import torch: only the trainer's process can afford that
        if not _from_outside(ADVANTAGES, self.advantage):
            self.make_advantage()
        if self.tis_clip_min is not None and (self.tis_clip_max is None or self.tis_clip_min > self.tis_clip_max):
            raise ValueError(
                f"tis_clip_min={self.tis_clip_min!r} needs a tis_clip_max that is not below it, found "
                f"{self.tis_clip_max!r}"
            )
        for name in ("num_iterations", "mini_batches"):
            if getattr(self, name) > 1 and self.old_logprobs == "current":
                raise ValueError(
                    f"{name}={getattr(self, name)} needs the policy before the first update on a lease: set "
                    f"old_logprobs='recompute' or 'behaviour', or {name}=1"
                )
        if self.ref_model_sync_steps is not None and (self.beta == 0 or self.use_peft):
            why = "beta=0" if self.beta == 0 else "use_peft, whose reference is the model without its adapter"
            raise ValueError(
                f"ref_model_sync_steps={self.ref_model_sync_steps} moves a reference model of its own, which does not "
                f"exist with {why}: leave it out"
            )
        if self.kl_every > 1 and self.beta == 0:
            raise ValueError(
                f"kl_every={self.kl_every} says when the KL term is there, and beta=0 leaves it out: set beta, or "
                "leave kl_every out"
            )
        if self.frozen_dtype != "float32" and not self.use_peft:
            raise ValueError(
                f"frozen_dtype={self.frozen_dtype!r} is for weights under an adapter, and without use_peft all are "
                "trained: set use_peft, or leave it out"
            )
        if self.recorded_entropies and self.entropy_mask_level == "token":
            raise ValueError(
                "recorded_entropies are means of steps, and entropy_mask_level='token' wants those of tokens: set one "
                "of the two back"
            )


_DEFAULTS = {item.name: item.default for item in fields(GRPOSettings)}
SUPERVISED_ROWS = 16
"""Demonstrated steps that every lease is trained with, where there are any."""
STATES_KEPT = 2
"""States from which training resumes that are kept, beside the best one."""
LEASE_TTL_S = 60.0
"""Seconds after the trainer's last heartbeat at which its lease is given back."""
KEEP_PUBLISHED_S = 120.0
"""Seconds for which each published version is kept in any case: an engine that starts may read it."""
OWN_HINTS: dict[str, Any] = get_type_hints(GRPOSettings, include_extras=True)
"""Type of every field, by name."""


def _from_outside(registry: Registry[Any], name: str) -> bool:
    """Return whether a name is of something that is neither built in nor unknown."""
    return name not in registry.built_in and (":" in name or name in registry.names())


def check_value(name: str, value: Any, hint: Any) -> None:
    """Refuse a name that is no choice, and a number out of range."""
    choices: tuple[Any, ...] = get_args(hint) if get_origin(hint) is Literal else ()
    if choices and value not in choices:
        raise ValueError(f"{name}={value!r} is unknown; choose one of {', '.join(map(repr, choices))}")
    for limit in getattr(hint, "__metadata__", ()):
        low, high = limit.ge, math.inf if limit.le is None else limit.le
        if value is not None and not low <= value <= high:
            raise ValueError(f"{name}={value!r} is out of range; choose a value in [{low:g}, {high:g}]")

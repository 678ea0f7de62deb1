"""`DartGRPOTrainer`: GRPO on leases of recorded desktop rollouts, as a `transformers.Trainer`.

    lease of groups -> optimizer batch -> one optimizer step -> publish a version -> commit the lease

Only documented hooks are overridden: `get_train_dataloader`, `create_optimizer`, `training_step`, `log` and `train`,
beside callbacks. This module reads the whole configuration; the parts that it is made of take what they need. A step's
micro-batches add up to the gradient of the whole batch, regardless of their sizes, of the number of calls of
`training_step` (`gradient_accumulation_steps`), and of the number of ranks.

The policies in play: mu sampled (its log-probabilities are recorded, of versions that may lie behind), pi_old is the
trainer's policy before the step, pi the one that is trained. With `old_logprobs="current"` and one update per lease
pi_old is pi itself with the gradient stopped: the ratio pi / pi_old is 1 and carries the gradient, the clip cannot
act, and what lies between mu and pi is the truncated importance weight min(sg[pi] / mu, C) alone. One forward pass.

Invariants:
    - Nothing non-finite reaches the weights: such a step changes nothing and is counted; `max_bad_steps` in a row end
      the run with `TrainingError`.
    - A step that does not fit into memory is made again of smaller micro-batches, which changes no result.
    - A version is on disk completely before it is published, and versions only grow, also over restarts.
    - A lease is committed after the update that it led to. A saved state says which lease its weights contain, so that
      a trainer that was killed at any moment repeats nothing that they contain and loses nothing that they do not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PrinterCallback, TrainerCallback, TrainerControl
from transformers.utils.logging import disable_progress_bar

from dart_agent.models.families.family_table import model_config
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_train.core.metrics_log import MetricsLog
from dart_train.core.training_alarms import ENGINE_GAP_EXACT, PREFIX, AlarmBoard
from dart_train.trainer.attention.context_group import ContextGroup
from dart_train.trainer.attention.kernels import check_kernel, choose_backends
from dart_train.trainer.attention.routing_replay import experts_of_a_token
from dart_train.trainer.attention.shared_heads import unshared_heads
from dart_train.trainer.bad_steps import BadSteps
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.batches.lease_source import Lease, LeaseSource, StepPart
from dart_train.trainer.batches.members import BatchSettings
from dart_train.trainer.batches.rehearsal import Rehearsal
from dart_train.trainer.batches.teacher_answers import TeacherAnswers
from dart_train.trainer.collapse_guard import AlarmStop, Collapsed, CollapsedForGood, CollapseGuard
from dart_train.trainer.losses import EntropySelection
from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.memory.rank_memory import WHOLE_GRADIENTS, Setting, moments_of, usable_bytes
from dart_train.trainer.memory.remembered_limits import RememberedLimits
from dart_train.trainer.memory.step_memory import StepMemory
from dart_train.trainer.policy_logprobs import Policy, Reference
from dart_train.trainer.rank_agreement import check_agreement
from dart_train.trainer.reference_sync import ReferenceSync
from dart_train.trainer.settings.grpo_config import DartGRPOConfig, named
from dart_train.trainer.settings.grpo_settings import LEASE_TTL_S
from dart_train.trainer.sharded_trainer import ShardedTrainer, cut_of
from dart_train.trainer.states import BestMetric, States
from dart_train.trainer.step_runner import StepRunner, StepSettings
from dart_train.trainer.step_statistics import merge_metrics
from dart_train.trainer.update_size import UpdateSize
from dart_train.trainer.weights import sharding
from dart_train.trainer.weights.adapters import LoraSettings, base_model, is_adapted
from dart_train.trainer.weights.background_write import beside
from dart_train.trainer.weights.checkpoint import write_adapter, write_model
from dart_train.trainer.weights.model_loading import frozen_copy, load_model, trainable
from dart_train.trainer.weights.publisher import Publisher
from dart_train.trainer.weights.ranks import Ranks
from dart_train.trainer.weights.shared_states import SharedStates
from dart_train.trainer.weights.snapshot import adapter_snapshot, snapshot
from dart_train.trainer.weights.state_writer import StateWriter
from dart_train.trainer.weights.weight_server import WeightServer

if TYPE_CHECKING:
    from dart_train.data.manager.leasing import Leasing

_log = logging.getLogger(__name__)


class DartGRPOTrainer(ShardedTrainer):
    """Trains on leases until `max_steps` or `stop`.

    Args:
        model: a model directory, or a loaded model together with `model_dir`.
        data: the run's data manager: leases, screenshots, published versions. Every rank opens its own.
        checkpoints: directory of the published versions; `<output_dir>/../checkpoints` by default.
        model_dir: directory of the tokenizer and processor files; `model` where that is a directory.
        ref_model: model directory of the KL term's reference; by default the weights as they are given here, without
            the adapter where there is one. Only with `beta`.
        demonstrations: samples whose cross-entropy is minimised as well, `supervised_rows` of them in each step; with
            `supervised_coef`.
        metrics: where each report also goes as a JSON line.
        weights_in_memory: whether engines on this machine may read new versions from this process's memory.
        adapters_alone: whether a published version is the LoRA adapter alone, without the weights under it.
    """

    args: DartGRPOConfig
    model: Any

    def __init__(
        self,
        model: Any,
        args: DartGRPOConfig,
        data: Leasing,
        *,
        checkpoints: str | Path | None = None,
        model_dir: str | Path | None = None,
        ref_model: str | Path | None = None,
        demonstrations: Sequence[Sample] = (),
        metrics: MetricsLog | None = None,
        weights_in_memory: bool = False,
        adapters_alone: bool = False,
        stop: Callable[[], bool] | None = None,
        holder: str = "trainer",
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
    ) -> None:
        if args.disable_tqdm:
            disable_progress_bar()  # of reading and writing weights
        if args.torch_threads:
            torch.set_num_threads(args.torch_threads)
        choose_backends(args.device)
        check_kernel(args.attention, args.device, half=args.bf16 or args.fp16)
        if args.supervised_coef and not (demonstrations or args.self_imitation_rows or args.shown_rows):
            raise ValueError(
                "supervised_coef needs demonstrations: hand them over, set self_imitation_rows, or set it to 0"
            )
        self._weights_dir = Path(model) if isinstance(model, (str, Path)) else None
        if model_dir is None and self._weights_dir is None:
            raise ValueError("model_dir is missing: a loaded model comes without its tokenizer and processor files")
        self.model_dir = Path(model_dir or model)
        self._checkpoints = Path(checkpoints or Path(str(args.output_dir)).parent / "checkpoints")
        self.ranks = Ranks.current()
        if said := unshared_heads(model_config(self.model_dir), args.context_parallel):
            raise ValueError(said)
        check_agreement(self.ranks, args.to_dict(), self.model_dir)
        own, self._shares = self.ranks.in_groups(args.context_parallel)
        self._context = ContextGroup.of(own.rank, own.count, own.group)
        self._lease: Lease | None = None
        self._step_started = 0.0
        self._reports: list[dict[str, float]] = []
        self._stop = stop or (lambda: False)
        self._metrics = metrics
        self._adapters_alone = adapters_alone
        self._keep_accounts(args, data, holder, WeightServer() if weights_in_memory and self.ranks.is_main else None)
        super().__init__(
            model=self._trained_model(model, args),
            args=args,
            train_dataset=self.leases,
            callbacks=[
                *([ReferenceSync(self)] if args.ref_model_sync_steps else []),
                _Callbacks(self),
                *(callbacks or []),
            ],
            optimizers=optimizers,
        )
        if args.idle_clip and self.ranks.is_main:
            _log.warning(args.idle_clip)
        self.remove_callback(PrinterCallback)  # `log` writes a line of its own
        self._autocast: Callable[[], Any] = self.accelerator.autocast
        tokens = ModelTokens.load(self.model_dir)
        self.ref_model: Any = None
        self._make_policies(tokens, ref_model)
        self.steps = StepRunner(
            replace(step_settings(args), reduce_once=self._reduces_once(args)),
            self._collator(tokens, data),
            self._policy,
            self._reference,
            demonstrations=demonstrations if args.supervised_coef else (),
            ranks=self.ranks,
            device=args.device,
            memory=self._step_memory(args),
            backward=self.accelerator.backward,
            limits=RememberedLimits.shared(Path(str(args.output_dir)), self.ranks),
            shares=self._shares,
        )

    def _keep_accounts(self, args: DartGRPOConfig, data: Leasing, holder: str, server: WeightServer | None) -> None:
        """Set up the accounts of what is leased, published, saved and left out."""
        self.publisher = Publisher(
            data,
            self._checkpoints,
            self.model_dir,
            every=args.publish_steps,
            keep=args.keep_published,
            keep_s=args.keep_published_s,
            ranks=self.ranks,
            server=server,
            save=write_adapter if self._adapters_alone else write_model,
            take=adapter_snapshot if self._adapters_alone else snapshot,
        )
        self.leases = LeaseSource(
            data,
            holder,
            groups=args.groups_per_step,
            at_least=args.min_groups_per_step or args.groups_per_step,
            ttl_s=LEASE_TTL_S,
            stop=self._should_stop,
            on_end=self._end_training,
            weights=lambda: self.publisher.version,
            steps=args.steps_per_lease,
            parts=args.gradient_accumulation_steps,
            ranks=self.ranks,
            numbers=TeacherAnswers(data, always=args.teacher_when == "always")
            if args.teacher_when != "never"
            else dict,
            imitated=Rehearsal.of(args, data).draw,
            nothing_in=lambda lease: self.steps.nothing_in(lease),  # made after the leases
            most_passed=args.max_bad_steps,
        )
        output_dir = Path(str(args.output_dir))
        self.writer = StateWriter(self.ranks, beside=args.background_states)
        self.bad_steps = BadSteps(args.max_bad_steps, output_dir, self.ranks)
        self.guard = CollapseGuard(args.collapse_window)
        half = args.bf16 or args.fp16 or args.frozen_dtype != "float32"
        self.alarms = AlarmBoard(args.alarm_window, {} if half else {"engine_gap": ENGINE_GAP_EXACT})
        self._update_size: UpdateSize | None = None
        self.states = States(
            output_dir,
            self.publisher,
            self.leases,
            self.bad_steps,
            self.ranks,
            sharded=bool(args.fsdp),
            writer=self.writer,
            best=BestMetric(args.metric_for_best_model, args.greater_is_better, args.best_window),
            shared=None if data.files.storage.directory else SharedStates(data, beside),
        )

    def _trained_model(self, model: Any, args: DartGRPOConfig) -> Any:
        """The model that is trained, or this rank's part of it."""
        lora = LoraSettings.of(args)
        prepare = partial(trainable, freeze_vision=args.freeze_vision, lora=lora)
        if not args.fsdp:
            dtype = getattr(torch, args.frozen_dtype)  # peft keeps the adapter in float32
            return prepare(load_model(model, dtype=dtype) if self._weights_dir else model)
        if self._weights_dir is None:
            return sharding.shard(prepare(model), cut_of(args, self.ranks))
        return sharding.load_sharded(self._weights_dir, cut_of(args, self.ranks), prepare, lora=lora)

    def _step_memory(self, args: DartGRPOConfig) -> StepMemory:
        """Return a tracker of the device memory that steps use on this rank, with its limit."""
        shapes = {name: tuple(item.shape) for name, item in base_model(self.model).named_parameters()}
        setting = Setting(
            ranks=self.ranks.count,
            sharded=bool(args.fsdp),
            half=args.bf16 or args.fp16,
            checkpointing=bool(args.gradient_checkpointing or args.activation_checkpointing),
            offload_optimizer=args.offload_optimizer,
            offload_activations=args.offload_activations,
            trains_tower=self._policy.trains_tower,
            lora_rank=args.lora_r if is_adapted(self.model) else 0,
            half_base=args.frozen_dtype != "float32",
            reference=self.ref_model is not None and self.ref_model is not self.model,
            moments=moments_of(str(args.optim)),
            features_bytes=args.image_features_mb << 20,
            reshard=cut_of(args, self.ranks).reshard_after_forward,
            reduce_once=None if args.reduce_gradients == "auto" else args.reduce_gradients == "step",
        )
        limit = args.device_memory_mb << 20 if args.device_memory_mb else None
        if limit is None and args.fsdp and args.device.type == "cuda":
            limit = usable_bytes(torch.cuda.mem_get_info(args.device)[1], self.ranks.count)
        return StepMemory(ModelSize.of(self.model.config.to_dict(), shapes), setting, limit)

    def _reduces_once(self, args: DartGRPOConfig) -> bool:
        """Return whether sharded ranks put their gradients together once a step."""
        if args.reduce_gradients != "auto":
            return args.reduce_gradients == "step"
        return 4 * sum(item.numel() for item in self.model.parameters() if item.requires_grad) <= WHOLE_GRADIENTS

    def _frozen_model(self, ref_model: str | Path | None) -> Any:
        """The KL term's reference, or this rank's part of it."""
        path = ref_model or self._weights_dir
        if not self.args.fsdp:
            return frozen_copy(self.model, ref_model, self.args.device)
        if path is None:
            raise ValueError("fsdp with beta needs ref_model: a loaded model was handed over and is cut already")

        def freeze(model: Any) -> Any:
            return model.eval().requires_grad_(False)

        return sharding.load_sharded(path, cut_of(self.args, self.ranks), freeze)

    def _make_policies(self, tokens: ModelTokens, ref_model: str | Path | None) -> None:
        """The policy that is trained, and with `beta` the reference."""
        args = self.args
        options: dict[str, Any] = {
            "temperature": args.temperature,
            "autocast": self._autocast,
            "features_mb": args.image_features_mb,
            "kernel": args.attention,
            "context": self._context,
        }
        self._policy = Policy(self.model, tokens.suppressed_ids, **options)
        self._reference: Reference | None = None
        if args.beta > 0:
            adapter_off = is_adapted(self.model) and ref_model is None
            self.ref_model = self.model if adapter_off else self._frozen_model(ref_model)
            self._reference = Reference(self.ref_model, tokens.suppressed_ids, adapter_off=adapter_off, **options)

    def _routing_width(self) -> int:
        """Experts that compute a token, where the engine's choice of them is replayed; else 0."""
        if not self.args.replay_routing:
            return 0
        width = experts_of_a_token(self.model.config.text_config)
        if not width:
            raise ValueError("replay_routing is for mixtures of experts, and the model is none: leave it out")
        return width

    def _collator(self, tokens: ModelTokens, data: Leasing) -> Collator:
        return Collator(
            tokens,
            VisionSpec.from_dir(self.model_dir),
            ImageCache(data.load_image, self.args.image_cache_mb, data.image_size),
            share_prompts=self.args.share_prompts,
            merge_prefixes=self.args.merge_prefixes,
            pack_rows=self.args.pack_rows,
            routing_width=self._routing_width(),
            context=(0, 1) if self._context is None else (self._context.place, self._context.count),
            max_length=self.model.config.text_config.max_position_embeddings,
        )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """As `transformers.Trainer`, with the present learning rate and weight decay instead of the saved ones.

        A state's optimizer and schedule hold the values that they were saved with, and a resumed run may have others.
        """
        groups: list[dict[str, Any]] = [] if self.optimizer is None else self.optimizer.param_groups
        decays = [group["weight_decay"] for group in groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        groups = [] if self.optimizer is None else self.optimizer.param_groups  # loading replaces them
        schedule: Any = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)  # accelerate wraps it
        state, rate = schedule.state_dict(), self.args.learning_rate
        for group, decay, old in zip(groups, decays, state["base_lrs"], strict=True):
            group["weight_decay"] = decay
            group["initial_lr"] = rate
            group["lr"] *= rate / old if old else 1.0
        rates = [group["lr"] for group in groups]
        schedule.load_state_dict(state | {"base_lrs": [rate] * len(groups), "_last_lr": rates})

    # --- running ------------------------------------------------------------------------------------------------

    def run(self) -> Any:
        """Train; resume from the newest complete state in `output_dir` if there is one."""
        return self.train(resume_from_checkpoint=self.states.find(self._checkpoints))

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> Any:
        """As `transformers.Trainer.train`, from whole states.

        Raises:
            TrainingError: if a state is damaged, or the loss is not finite.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = self.states.newest()
        if resume_from_checkpoint:
            self.states.take_up(resume_from_checkpoint)
            if not is_adapted(self.model) and not self.args.fsdp:
                # transformers resumes by tensor names without checking them, and Qwen2.5-VL's names in a file differ
                # from those in memory: it would load nothing and say nothing. `from_pretrained` knows both.
                self.model.load_state_dict(load_model(resume_from_checkpoint).state_dict())
        else:
            self.leases.contained = self.publisher.contained(self._weights_dir)
        with self.leases:
            try:
                return super().train(resume_from_checkpoint or None, trial, ignore_keys_for_eval)
            finally:
                self.publisher.close()
                self.states.close()

    def _should_stop(self) -> bool:
        return self.state.global_step >= self.args.max_steps or self._stop()

    def _end_training(self) -> None:
        """Called by the data set once it was told to stop: end the loop, and keep the state."""
        self.control.should_training_stop = True
        self.states.end(self.state, self.control, collapsing=bool(self.guard.signs))

    def get_train_dataloader(self) -> DataLoader:
        """Leases one by one. Not prepared by accelerate: its loader gives an item only when it has the next."""
        return DataLoader(self.leases, batch_size=None, collate_fn=_as_inputs)

    # --- one step -----------------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Accumulate the gradient of one part of the optimizer batch.

        Returns:
            The batch's loss after the last part, and 0 before.
        """
        part: StepPart = inputs["step_part"]
        step = self.state.global_step
        if part.part == 0:
            self._step_started, self._lease = time.perf_counter(), part.lease
            self.steps.begin(
                part.lease, step=step, version=self.publisher.version, unpublished=self.publisher.unpublished
            )
        self.model.train()
        self.steps.run(part.part, part.parts, step)
        if part.part < part.parts - 1:
            return torch.zeros((), device=self.args.device)
        loss, report = self.steps.finish()
        first = self.steps.iteration == 1
        of_lease = part.lease.numbers if first else {}
        self._reports.append({**report, **of_lease, "perf/wait_s": part.lease.wait_s if first else 0.0})
        if not self.bad_steps.passes(loss, self.model.parameters(), scaled=self.accelerator.scaler is not None):
            self.model.zero_grad(set_to_none=True)  # without gradients the optimizer does nothing, not even decay
            self.bad_steps.skip(step + 1, self.steps.made_of)
            return torch.zeros_like(loss)
        if self.steps.empty:
            self.model.zero_grad(set_to_none=True)
        self.publisher.unpublished += 1
        return loss

    # --- between steps ------------------------------------------------------------------------------------------

    def begin_training(self) -> None:
        """Publish the weights if no version is equal to them."""
        if self.args.offload_optimizer:
            self.keep_moments_on_host()
        self._update_size = UpdateSize(self.model.parameters(), self.ranks)
        self.publisher.begin(self.model, self.states.resumed, self._weights_dir, self.leases.contained)

    def end_step(self, control: TrainerControl) -> None:
        """Publish if it is time, and hand in the lease after its last iteration."""
        batch, lease = self.steps.batch, self._lease
        if batch is None or lease is None:
            return
        before = self.publisher.version
        started = time.perf_counter()
        last = self.steps.iteration >= self.args.steps_per_lease
        contained = lease.serial if last else self.leases.contained
        self.publisher.publish_if_due(self.model, contained, self.state.global_step)
        if last:
            self.leases.commit(lease, before)
            self.publisher.served = max(self.publisher.served, batch.newest_version)
            self.steps.end()
        now = time.perf_counter()
        self._reports[-1] |= {
            "version": float(self.publisher.version),
            "skipped_steps": float(self.bad_steps.skipped),
            "skipped_leases": float(self.leases.passed),
            "memory_retries": float(self.steps.memory_retries),
            "perf/publish_s": now - started,
            "perf/step_s": now - self._step_started,
            **self._measure_update(),
            **self._speed(started - self._step_started),
        }
        if self.args.on_collapse == "return" and self.states.none:
            control.should_save = True  # there must be one to go back to
        self.states.end_step(self.state, control, self._reports[-1], last, collapsing=bool(self.guard.signs))

    def _measure_update(self) -> dict[str, float]:
        """Return how much the step changed the weights."""
        return {} if self._update_size is None else {"update/relative": self._update_size.measure()}

    def _speed(self, seconds: float) -> dict[str, float]:
        """Tokens, operations and the parts of a step that took `seconds` up to the end of its update."""
        if self.steps.speed is None:
            return {}
        device = self.args.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return self.steps.speed.report(seconds, name, self.ranks.count)

    def save_complete(self) -> None:
        """Have the state that `transformers` has just saved written; it counts once it is completely on the disk."""
        self.states.complete(self.state.global_step)

    def end_training(self) -> None:
        """Publish what was learned since the last version."""
        self.publisher.publish_rest(self.model, self.leases.contained, self.state.global_step)
        self.states.settle()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Report numbers to `report_to`, and as a JSON line."""
        if self._reports:
            logs = {**logs, **merge_metrics(self._reports)}
            self._reports = []
            collapsed = self._look_for_collapse(logs)
            self._look_for_alarms(logs)
            if self.ranks.is_main:
                self._say(logs)
            if collapsed:
                self._leave(collapsed)
            self._end_on_alarm()
        super().log(logs, start_time)

    def _look_for_collapse(self, logs: dict[str, float]) -> str:
        """Return what has collapsed; while there are signs of a collapse no state is saved."""
        collapsed = self.guard.look(logs) if "entropy" in logs else ""  # rehearsal alone repeats its lease's numbers
        if self.guard.signs:
            self.control.should_save = False
            logs["collapse"] = 1.0 if collapsed else 0.5
            _log.warning("step %d: signs of a collapse: %s", self.state.global_step, self.guard.signs)
        return collapsed

    def _look_for_alarms(self, logs: dict[str, float]) -> None:
        """Mark the raised alarms in a step's numbers, and log those that this step raised or cleared."""
        raised, cleared = self.alarms.look(logs) if "entropy" in logs else ([], [])
        logs |= {f"{PREFIX}{name}": 1.0 for name in self.alarms.raised}
        step = self.state.global_step
        for name in raised:
            _log.warning("step %d: alarm %s: %s", step, name, self.alarms.raised[name])
        for name in cleared:
            _log.warning("step %d: alarm %s is over", step, name)

    def _end_on_alarm(self) -> None:
        found = [self.alarms.raised[name] for name in self.args.stop_on if name in self.alarms.raised]
        if found:
            raise AlarmStop(
                f"step {self.state.global_step}: {'; '.join(found)}. trainer.stop_on names this alarm; the run ended, "
                f"and its states are in {self.args.output_dir}"
            )

    def _leave(self, collapsed: str) -> None:
        what = f"step {self.state.global_step}: the policy collapsed ({collapsed})"
        if self.args.on_collapse == "return":
            raise Collapsed(f"{what}; the next start goes on from the last state before that")
        if self.args.on_collapse == "stop":
            raise CollapsedForGood(
                f"{what}; lower learning_rate, or set on_collapse: return. The last state before that is in "
                f"{self.args.output_dir}, good versions are listed in metrics/held_out.jsonl where they were evaluated"
            )

    def _say(self, logs: dict[str, float]) -> None:
        _log.info(
            "step %d v%d: loss %.4f, reward %.3f, entropy %.3f, waited %.1f s, took %.2f s%s",
            self.state.global_step,
            self.publisher.version,
            logs.get("loss", 0.0),
            logs["reward"],
            logs.get("entropy", 0.0),
            logs["perf/wait_s"],
            logs["perf/step_s"],
            _spoken_speed(logs),
        )
        if self._metrics is not None:
            self._metrics.write(step=self.state.global_step, **logs)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted: a step's inputs are a lease, not tensors."""
        return 0


def _spoken_speed(logs: dict[str, float]) -> str:
    """Return tokens per second and MFU for a line of the log, "" where they are not known."""
    if "perf/tokens_per_s" not in logs:
        return ""
    share = f", MFU {logs['perf/mfu']:.0%}" if "perf/mfu" in logs else ""
    return f", {logs['perf/tokens_per_s']:,.0f} tokens/s{share}"


def _as_inputs(part: Any) -> dict[str, Any]:
    """Return what `transformers` hands to `training_step`: it insists on a mapping."""
    return {"step_part": part}


class _Callbacks(TrainerCallback):
    """Calls the trainer at the moments that `transformers` names."""

    def __init__(self, trainer: DartGRPOTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Before the first step."""
        self._trainer.begin_training()

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """After an optimizer step."""
        self._trainer.end_step(control)

    def on_save(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """After a state was written."""
        self._trainer.save_complete()

    def on_train_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """After the last step."""
        self._trainer.end_training()


def step_settings(args: DartGRPOConfig) -> StepSettings:
    """Return the parts of the loss of a step: those named in the arguments, and those made from them."""
    made: dict[str, Any] = {
        "objective": args.objective(),
        "selection": EntropySelection(args.top_entropy_quantile, args.entropy_mask_level, args.entropy_mask_scope),
        "batch": BatchSettings(**named(BatchSettings, args) | {"advantage": args.make_advantage()}),
    }
    return StepSettings(**named(StepSettings, args) | made)

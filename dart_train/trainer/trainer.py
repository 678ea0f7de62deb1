"""`DartGRPOTrainer`: GRPO on leases of recorded desktop rollouts, as a `transformers.Trainer`.

    lease of groups -> optimizer batch -> one optimizer step -> publish a version -> commit the lease

Only documented hooks are overridden: `get_train_dataloader`, `training_step`, `compute_loss`, `log`, `train`, and
callbacks. A step's micro-batches add up to the gradient of the whole batch, whatever their sizes.

The policies in play: mu sampled (its log-probabilities are recorded, of versions that may lie behind), pi_old is the
trainer's policy before the step, pi the one that is trained. With `old_logprobs="current"` and one update per lease
pi_old is pi itself with the gradient stopped: the ratio pi / pi_old is 1 and carries the gradient, the clip cannot
act, and what lies between mu and pi is the truncated importance weight min(sg[pi] / mu, C) alone. One forward pass.

Invariants:
    - Nothing non-finite reaches the weights: such a step changes nothing and is counted; `max_bad_steps` in a row end
      the run with `TrainingError`.
    - A version is on disk completely before it is published, and versions only grow, also over restarts.
    - A lease is committed after the update that it led to; a process killed before that trains it again.
"""

from __future__ import annotations

import copy
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForImageTextToText,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.utils.logging import disable_progress_bar

from dart_agent.tokens import ModelTokens
from dart_agent.vision import VisionSpec
from dart_train.metrics import MetricsLog
from dart_train.trainer import checkpoint, losses
from dart_train.trainer.batch import OptimizerBatch, build_batch
from dart_train.trainer.collate import Collator, ImageCache, MicroBatch
from dart_train.trainer.config import DartGRPOConfig
from dart_train.trainer.errors import TrainingError
from dart_train.trainer.forward import ImageFeatures, base_model, features_pay, response_logprobs
from dart_train.trainer.leases import Leased, LeaseDataset, LeaseHolder
from dart_train.trainer.publisher import Publisher
from dart_train.trainer.scoring import needs_scoring, score_batch
from dart_train.trainer.statistics import StepStatistics, merge_metrics

if TYPE_CHECKING:
    from dart_train.data.manager import DataManager

_log = logging.getLogger(__name__)


def load_model(model_dir: str | Path, *, dtype: torch.dtype = torch.float32) -> Any:
    """Load the model of a directory for training: PyTorch's attention, no dropout changes, no cache."""
    return AutoModelForImageTextToText.from_pretrained(str(model_dir), dtype=dtype, attn_implementation="sdpa")


class DartGRPOTrainer(Trainer):
    """Trains on leases until `max_steps` or `stop`.

    Args:
        model: a model directory, or a loaded model together with `model_dir`.
        args: settings.
        data: the run's data manager: leases, screenshots, published versions.
        checkpoints: directory of the published versions; `<output_dir>/../checkpoints` by default.
        model_dir: directory of the tokenizer and processor files; `model` where that is a directory.
        ref_model: model directory of the KL term's reference; by default the weights as they are given here. Only
            with `beta`.
        metrics: where each report also goes as a JSON line.
        stop: asked between steps and while waiting for data; True ends training.
        holder: name under which leases are taken.
        callbacks: as `transformers.Trainer`'s.
        optimizers: as `transformers.Trainer`'s.
    """

    args: DartGRPOConfig
    model: Any

    def __init__(
        self,
        model: Any,
        args: DartGRPOConfig,
        data: DataManager,
        *,
        checkpoints: str | Path | None = None,
        model_dir: str | Path | None = None,
        ref_model: str | Path | None = None,
        metrics: MetricsLog | None = None,
        stop: Callable[[], bool] | None = None,
        holder: str = "trainer",
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
    ) -> None:
        if args.disable_tqdm:
            disable_progress_bar()  # of reading and writing weights
        if args.torch_threads:
            torch.set_num_threads(args.torch_threads)
        if isinstance(model, (str, Path)):
            model_dir = model_dir or model
            model = load_model(model)
        if model_dir is None:
            raise ValueError("model_dir is missing: a loaded model comes without its tokenizer and processor files")
        self.model_dir = Path(model_dir)
        if args.freeze_vision:
            model.model.visual.requires_grad_(False)
        self._output_dir = Path(str(args.output_dir))
        self._checkpoints = Path(checkpoints or self._output_dir.parent / "checkpoints")
        self.publisher = Publisher(
            data, self._checkpoints, self.model_dir, every=args.publish_steps, keep=args.keep_published
        )
        self._objective = args.objective()
        self.skipped_steps = 0
        self._bad_in_a_row = 0
        self.resumed: checkpoint.ResumePoint | None = None
        self._batch: OptimizerBatch | None = None
        self._iteration = 0
        self._step_started = 0.0
        self._reports: list[dict[str, float]] = []
        self._stop = stop or (lambda: False)
        self._metrics = metrics
        tokens = ModelTokens.load(self.model_dir)
        self._suppressed = tokens.suppressed_ids
        images = ImageCache(data.load_image, args.image_cache_mb)
        vision = VisionSpec.from_dir(self.model_dir)
        self._collator = Collator(
            tokens,
            vision,
            images,
            share_prompts=args.share_prompts,
            merge_prefixes=args.merge_prefixes,
            max_length=model.config.text_config.max_position_embeddings,
        )
        self.leases = LeaseHolder(
            data,
            holder,
            groups=args.groups_per_step,
            at_least=args.min_groups_per_step or args.groups_per_step,
            ttl_s=args.lease_ttl_s,
            stop=self._should_stop,
        )
        self._leases = LeaseDataset(self.leases, args.num_iterations, self._end_training)
        super().__init__(
            model=model,
            args=args,
            train_dataset=self._leases,
            callbacks=[_Hooks(self), *(callbacks or [])],
            optimizers=optimizers,
        )
        self.remove_callback(PrinterCallback)  # `log` writes a line of its own
        self.ref_model = self._make_reference(ref_model) if args.beta > 0 else None

    def _make_reference(self, path: str | Path | None) -> Any:
        reference = copy.deepcopy(self.model) if path is None else load_model(path)
        return reference.to(self.args.device).eval().requires_grad_(False)

    # --- running ------------------------------------------------------------------------------------------------

    def run(self) -> Any:
        """Train; go on from the newest complete state in `output_dir` if there is one."""
        checkpoint.remove_incomplete(self._output_dir, self._checkpoints)
        point = checkpoint.resume_point(self._output_dir)
        return self.train(resume_from_checkpoint=str(point.path) if point else None)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> Any:
        """As `transformers.Trainer.train`; only complete states can be resumed from.

        Raises:
            TrainingError: the state is incomplete, or training met non-finite numbers again and again.
        """
        if resume_from_checkpoint is True:
            point = checkpoint.resume_point(self._output_dir)
            if point is None:
                raise TrainingError(
                    f"no complete state in {self.args.output_dir}: train without resume_from_checkpoint"
                )
            resume_from_checkpoint = str(point.path)
        if resume_from_checkpoint:
            self.resumed = checkpoint.read_resume_point(resume_from_checkpoint)
            # transformers resumes by tensor names without checking them, and Qwen2.5-VL's names in a file differ from
            # those in memory: it would load nothing and say nothing. `from_pretrained` knows both.
            self.model.load_state_dict(load_model(resume_from_checkpoint).state_dict())
        with self.leases:
            return super().train(resume_from_checkpoint or None, trial, ignore_keys_for_eval)

    def _should_stop(self) -> bool:
        return self.state.global_step >= self.args.max_steps or self._stop()

    def _end_training(self) -> None:
        """Called by the data set once it was told to stop: end the loop, and keep the state."""
        self.control.should_training_stop = True
        step = self.state.global_step
        saved = self._output_dir / f"checkpoint-{step}" / checkpoint.STATE_FILE
        self.control.should_save = step > 0 and not saved.exists()

    def get_train_dataloader(self) -> DataLoader:
        """Leases one by one. Not prepared by accelerate: its loader gives an item only when it has the next."""
        return DataLoader(self._leases, batch_size=None, collate_fn=_as_inputs)

    # --- one step -----------------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Gradient of one optimizer batch; returns its loss."""
        leased: Leased = inputs["leased"]
        batch = self._next_batch(leased)
        model.train()
        features = self._image_features(model, batch)
        score_batch(batch, self.args, lambda micro: self._forward(model, micro.to(self.args.device), features))
        reference_features = self._image_features(self.ref_model, batch)
        statistics = StepStatistics(self._objective)
        total = torch.zeros((), device=self.args.device)
        for number, micro in enumerate(batch.micro_batches):
            micro_inputs = {
                "micro_batch": micro.to(self.args.device),
                "normalizer": batch.normalizer,
                "old_logprobs": batch.old_logprobs[number] if batch.old_logprobs else None,
                "kept": batch.kept[number] if batch.kept else None,
                "features": features,
                "reference_features": reference_features,
                "statistics": statistics,
            }
            loss = self.compute_loss(model, micro_inputs)
            self.accelerator.backward(loss)
            total += loss.detach()
        if features is not None:
            features.backward()
        wait_s = leased.wait_s if self._iteration == 1 else 0.0
        self._reports.append({**batch.metrics, **statistics.summary(), "perf/wait_s": wait_s})
        if not bool(total.isfinite()) or not self._gradient_is_finite(model):
            self._skip_step(model, batch)
            return torch.zeros_like(total)
        self._bad_in_a_row = 0
        self.publisher.unpublished += 1
        return total

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Share of one micro-batch in the loss of its optimizer batch: `losses.objective`."""
        micro: MicroBatch = inputs["micro_batch"]
        logprobs, entropies = self._forward(model, micro, inputs["features"])
        reference = None
        if self.ref_model is not None:
            with torch.no_grad():
                reference, _ = self._forward(self.ref_model, micro, inputs["reference_features"])
        kept = inputs["kept"]
        by_token = self.args.entropy_mask_level == "token"
        scored = losses.Scored(
            logprobs=logprobs,
            entropies=entropies,
            old_logprobs=self._old_logprobs(micro, logprobs, inputs["old_logprobs"]),
            mask=micro.mask,
            advantages=micro.advantages,
            behaviour_logprobs=micro.behaviour_logprobs,
            behaviour_known=micro.behaviour_known,
            reference_logprobs=reference,
            kept_steps=None if by_token else kept,
            kept_tokens=kept if by_token else None,
            weights=micro.weights,
        )
        result = losses.objective(scored, self._objective, inputs["normalizer"])
        inputs["statistics"].add(micro, scored, result)
        return (result.loss, {"logprobs": logprobs}) if return_outputs else result.loss

    def _next_batch(self, leased: Leased) -> OptimizerBatch:
        """The batch of a lease: made at its first iteration, the same afterwards."""
        self._step_started = time.perf_counter()
        if self._batch is None:
            rng = random.Random(f"{self.args.seed}/{self.state.global_step}")
            self._batch = build_batch(
                leased.groups.groups,
                self._collator,
                self.args,
                version=self.publisher.version,
                rng=rng,
                unpublished=self.publisher.unpublished,
            )
            self._iteration = 0
        self._iteration += 1
        return self._batch

    def _forward(self, model: Any, micro: MicroBatch, features: ImageFeatures | None) -> tuple[Tensor, Tensor]:
        with self.accelerator.autocast():
            return response_logprobs(
                model, micro, self._suppressed, temperature=self.args.temperature, features=features
            )

    def _old_logprobs(self, micro: MicroBatch, logprobs: Tensor, recomputed: Tensor | None) -> Tensor:
        """(S, T) log-probabilities that the ratio is taken against, without gradient."""
        if self.args.old_logprobs == "behaviour":
            return torch.where(micro.behaviour_known, micro.behaviour_logprobs, logprobs.detach())
        return logprobs.detach() if recomputed is None else recomputed

    def _image_features(self, model: Any, batch: OptimizerBatch) -> ImageFeatures | None:
        """Features of the batch's images for one model with its weights as they are; None where it would not pay."""
        if model is None or not self.args.cache_image_features:
            return None
        trainable = any(parameter.requires_grad for parameter in base_model(model).model.visual.parameters())
        passes = int(needs_scoring(self.args) and model is not self.ref_model)
        if not features_pay(batch.micro_batches, trainable=trainable, scoring_passes=passes):
            return None
        return ImageFeatures(model, trainable=trainable, autocast=self.accelerator.autocast)

    def _gradient_is_finite(self, model: Any) -> bool:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        return bool(torch.nn.utils.get_total_norm(gradients).isfinite())

    def _skip_step(self, model: Any, batch: OptimizerBatch) -> None:
        """Leave the weights alone: without gradients the optimizer does nothing, not even decay."""
        model.zero_grad(set_to_none=True)
        self.skipped_steps += 1
        self._bad_in_a_row += 1
        _log.warning(
            "step %d is not finite and was skipped (%d in a row); it was made of %s",
            self.state.global_step + 1, self._bad_in_a_row, ", ".join(batch.trajectory_ids[:8]),
        )  # fmt: skip
        if self._bad_in_a_row >= self.args.max_bad_steps:
            raise TrainingError(
                f"{self._bad_in_a_row} steps in a row had a loss or gradient that is not finite; the weights are those "
                f"before them. Lower learning_rate or max_grad_norm and run the same command again, it resumes from "
                f"{self._output_dir}"
            )

    # --- between steps ------------------------------------------------------------------------------------------

    def end_step(self) -> None:
        """Publish if it is time, and hand in the lease after its last iteration."""
        batch = self._batch
        if batch is None:
            return
        before = self.publisher.version
        started = time.perf_counter()
        self.publisher.publish_if_due(self.model)
        if self._iteration >= self.args.num_iterations:
            self.leases.commit(before)
            self.publisher.served = max(self.publisher.served, batch.newest_version)
            self._batch = None
        now = time.perf_counter()
        self._reports[-1] |= {
            "version": float(self.publisher.version),
            "skipped_steps": float(self.skipped_steps),
            "perf/publish_s": now - started,
            "perf/step_s": now - self._step_started,
        }

    def save_complete(self) -> None:
        """Declare the state that `transformers` has just written complete."""
        step = self.state.global_step
        checkpoint.mark_complete(
            self._output_dir / f"checkpoint-{step}",
            step=step,
            version=self.publisher.version,
            unpublished=self.publisher.unpublished,
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Report numbers to `report_to`, and as a JSON line."""
        if self._reports:
            logs = {**logs, **merge_metrics(self._reports)}
            self._reports = []
            _log.info(
                "step %d v%d: loss %.4f, reward %.3f, entropy %.3f, waited %.1f s, took %.2f s",
                self.state.global_step, self.publisher.version, logs.get("loss", 0.0), logs["reward"], logs["entropy"],
                logs["perf/wait_s"], logs["perf/step_s"],
            )  # fmt: skip
            if self._metrics is not None:
                self._metrics.write(step=self.state.global_step, **logs)
        super().log(logs, start_time)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted: a step's inputs are a lease, not tensors."""
        return 0


class _Hooks(TrainerCallback):
    """The trainer's own work at the moments that `transformers` names."""

    def __init__(self, trainer: DartGRPOTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._trainer.publisher.begin(self._trainer.model, self._trainer.resumed)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._trainer.end_step()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._trainer.save_complete()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._trainer.publisher.publish_rest(self._trainer.model)


def _as_inputs(leased: Any) -> dict[str, Any]:
    """What `transformers` hands to `training_step`: it insists on a mapping."""
    return {"leased": leased}

"""Supervised training on demonstrations: the warm-up before reinforcement learning, and its control afterwards.

The same collator and forward pass as the trainer's, cross-entropy on responses only. TRL's `SFTTrainer` renders and
tokenises conversations itself, so it cannot carry steps by the very ids that a rollout had, nor share a batch with
reinforced ones; its loss is the same. The control ("the same time, supervised") is the same function with the warm
model as its start and a time as its limit.

Ranks that hold parts of the model (`fsdp`) each train on a share of every batch, or on slices of the same share where
they share rows (`context_parallel`); the batch, its loss and the learning rate equal those of one process.

The result is written as a plain Hugging Face directory when training has ended, never in part.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import PrinterCallback, TrainerCallback, TrainingArguments
from transformers.utils.logging import disable_progress_bar

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_train.core.metrics_log import MetricsLog
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.attention.context_group import ContextGroup
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.settings.supervised_config import SupervisedConfig
from dart_train.trainer.sharded_trainer import ShardedTrainer, cut_of
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.adapters import LoraSettings
from dart_train.trainer.weights.model_loading import load_model, trainable
from dart_train.trainer.weights.ranks import Ranks
from dart_train.trainer.weights.sharding import load_sharded, through
from dart_train.trainer.weights.snapshot import snapshot

_log = logging.getLogger(__name__)

NO_LIMIT = 1 << 40
LOG_EVERY = 20  # steps between two lines of metrics
FINAL_SHARE = 0.1  # of the learning rate, at the end of its cosine
WEIGHT_DECAY = 0.01
ADAM_BETA2 = 0.98  # suits short training
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, slots=True)
class TrainedAs:
    """Placement and precision of the model: those of `trainer`, so that a warm-up takes no more memory than training.

    Attributes:
        arguments: fields of `TrainingArguments`: bf16, fp16, gradient_checkpointing, and fsdp with its settings, which
            need several ranks.
        lora: the adapter that is trained and merged when it is written; None trains the weights.
        frozen_dtype: number type of the weights under an adapter.
        context_parallel: number of ranks that run slices of the same rows; it divides the ranks.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    freeze_vision: bool = False
    lora: LoraSettings | None = None
    frozen_dtype: str = "float32"
    context_parallel: int = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of supervised training: `loss` in nats per token of the newest steps, `share` of the nearest limit."""

    steps: int
    seconds: float
    loss: float
    share: float


def train_supervised(
    model_dir: str | Path,
    samples: Sequence[Sample],
    load_image: Callable[[str], NDArray[np.uint8]],
    output_dir: str | Path,
    config: SupervisedConfig,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    metrics: MetricsLog | None = None,
    trained_as: TrainedAs = TrainedAs(),
    until_loss: float = 0.0,
) -> Progress:
    """Train a model on samples and write it.

    Args:
        model_dir: Hugging Face directory of the model to start from.
        samples: steps with the responses to learn, at least a batch of them.
        load_image: returns a screenshot by its hash, as (height, width, 3) uint8 RGB.
        output_dir: directory that the trained model is written into when training has ended.
        config: limits, batch size and learning rate.
        on_progress: called after each step, on the main rank.
        metrics: log that gets a row every `LOG_EVERY` steps, from the main rank.
        trained_as: placement and precision of the model.
        until_loss: training ends before its limits if `Progress.loss` falls below this, in nats per token.

    Raises:
        TrainingError: if there are too few samples, or a loss is not finite.
    """
    if len(samples) < config.batch_size:
        raise TrainingError(
            f"{len(samples)} samples do not fill a batch of {config.batch_size}: collect more demonstrations or lower "
            "batch_size"
        )
    if config.threads:
        torch.set_num_threads(config.threads)
    disable_progress_bar()
    arguments = _arguments(config, trained_as, Path(output_dir).parent)
    arguments.device  # noqa: B018  # joins the ranks
    ranks = Ranks.current()
    of_row, shares = ranks.in_groups(trained_as.context_parallel)
    if config.batch_size < shares.count:
        raise TrainingError(
            f"batch_size {config.batch_size} leaves some of {shares.count} ranks without a sample: raise it, or take "
            "fewer ranks"
        )
    model = _load(model_dir, arguments, trained_as, ranks)
    tokens = ModelTokens.load(model_dir)
    slices = of_row.rank, of_row.count
    collator = Collator(tokens, VisionSpec.from_dir(model_dir), ImageCache(load_image), context=slices)
    clock = _Clock(config, on_progress, metrics, ranks, until_loss)
    trainer = _SupervisedTrainer(
        model, samples, collator, tokens.suppressed_ids, config, clock, arguments, _Sharing(ranks, of_row, shares)
    )
    trainer.train()
    taken = snapshot(model, model_dir, ranks)
    if ranks.is_main:
        checkpoint.write_model(taken, output_dir, model_dir)
    ranks.wait()
    trainer.accelerator.end_training()  # a rank that ends without it may abort
    return clock.progress


def _arguments(config: SupervisedConfig, trained_as: TrainedAs, beside: Path) -> TrainingArguments:
    """Settings of transformers, which makes its output directory `beside`, and has nothing to put there."""
    return TrainingArguments(
        output_dir=str(beside),
        max_steps=min(config.max_steps or NO_LIMIT, NO_LIMIT),
        per_device_train_batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        weight_decay=WEIGHT_DECAY,
        adam_beta2=ADAM_BETA2,
        max_grad_norm=MAX_GRAD_NORM,
        seed=config.seed,
        **trained_as.arguments,
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        remove_unused_columns=False,
        disable_tqdm=True,
    )


def _load(model_dir: str | Path, arguments: TrainingArguments, trained_as: TrainedAs, ranks: Ranks) -> Any:
    """The model that is trained, or this rank's part of it."""
    lora, dtype = trained_as.lora, getattr(torch, trained_as.frozen_dtype)
    prepare = functools.partial(trainable, freeze_vision=trained_as.freeze_vision, lora=lora)
    if arguments.fsdp:
        return load_sharded(model_dir, cut_of(arguments, ranks), prepare, lora=lora)
    return prepare(load_model(model_dir, dtype=dtype))


@dataclass(frozen=True, slots=True)
class _Sharing:
    """The ranks that train: `all`, those `of_row` that run slices of the same rows, and this one among `shares`."""

    all: Ranks
    of_row: Ranks
    shares: Ranks


class _SupervisedTrainer(ShardedTrainer):
    """Cross-entropy on responses."""

    def __init__(
        self,
        model: Any,
        samples: Sequence[Sample],
        collator: Collator,
        suppressed_ids: Sequence[int],
        config: SupervisedConfig,
        clock: _Clock,
        arguments: TrainingArguments,
        sharing: _Sharing,
    ) -> None:
        self._samples = samples
        self._collator = collator
        self._suppressed = suppressed_ids
        self._config = config
        self._clock = clock
        self._ranks, self._sharing = sharing.all, sharing
        own = sharing.of_row
        self._context = ContextGroup.of(own.rank, own.count, own.group)
        super().__init__(model=model, args=arguments, callbacks=[clock])
        self.remove_callback(PrinterCallback)

    def get_train_dataloader(self) -> DataLoader:
        """All samples in a new order every epoch, as tensors."""
        return DataLoader(
            self._samples,  # type: ignore[arg-type]  # a sequence is a data set
            batch_size=self._config.batch_size,
            shuffle=True,
            drop_last=True,
            generator=torch.Generator().manual_seed(self._config.seed),
            collate_fn=self._collate,
        )

    def _collate(self, samples: list[Sample]) -> dict[str, Any]:
        """Return this rank's share of a batch, or its slice of one, and the response tokens of the whole batch."""
        shares = self._sharing.shares
        own = samples[shares.rank :: shares.count]
        return {"micro_batch": self._collator(own), "of_tokens": sum(len(sample.response_ids) for sample in samples)}

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        """The rate follows steps or seconds, whichever are further on."""
        config, clock = self._config, self._clock
        chosen: Any = optimizer or self.optimizer
        schedule = LambdaLR(chosen, lambda step: learning_rate_share(config, step, clock.share(step)))
        self.lr_scheduler = schedule
        return schedule

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean cross-entropy per response token, in nats."""
        batch = inputs["micro_batch"].to(self.args.device)
        with self.accelerator.autocast():
            logprobs, _ = through(
                model, lambda: response_logprobs(model, batch, self._suppressed, context=self._context)
            )
        # Gradients are averaged over all ranks, and those of ranks that share rows are parts of one.
        loss = -logprobs.sum() / inputs["of_tokens"] * self._ranks.count
        self._clock.saw(self._ranks.mean(loss.detach()) / self._sharing.of_row.count)  # each of them has the whole loss
        return (loss, {"logprobs": logprobs}) if return_outputs else loss

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """As `transformers.Trainer`; the gradients of what is whole on every rank meet, too."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._ranks.average_gradients(model.parameters())
        return loss

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted."""
        return 0


def learning_rate_share(config: SupervisedConfig, step: int, done: float) -> float:
    """Share of the highest learning rate at a step.

    min(1, (step + 1) / warmup_steps) * (f + (1 - f) * (1 + cos(pi * done)) / 2), f = FINAL_SHARE
    """
    rising = min(1.0, (step + 1) / max(config.warmup_steps, 1))
    return rising * (FINAL_SHARE + (1 - FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * done)))


class _Clock(TrainerCallback):
    """Ends training by time or loss, and tells how far it is. All ranks see the main rank's seconds and one loss."""

    def __init__(
        self,
        config: SupervisedConfig,
        on_progress: Callable[[Progress], None] | None,
        metrics: MetricsLog | None,
        ranks: Ranks,
        until_loss: float,
    ) -> None:
        self._config = config
        self._until_loss = until_loss
        self._on_progress = on_progress
        self._metrics = metrics
        self._ranks = ranks
        self._started, self._seconds = time.monotonic(), 0.0
        self._loss = math.nan
        self.progress = Progress(0, 0.0, math.nan, 0.0)

    def saw(self, loss: Tensor) -> None:
        """Take note of a step's loss. Raises `TrainingError` if it is not finite: before it reaches the weights."""
        value = float(loss)
        if not math.isfinite(value):
            raise TrainingError("the supervised loss is not finite; lower learning_rate")
        self._loss = value if math.isnan(self._loss) else 0.95 * self._loss + 0.05 * value

    def share(self, step: int) -> float:
        """Share of the nearest limit that is behind."""
        steps = step / self._config.max_steps if self._config.max_steps else 0.0
        return min(1.0, max(steps, self._seconds / self._config.max_seconds if self._config.max_seconds else 0.0))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Time starts here."""
        self._started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report, and end when a limit is reached."""
        self._seconds = self._ranks.share(time.monotonic() - self._started)
        self.progress = Progress(state.global_step, self._seconds, self._loss, self.share(state.global_step))
        if self._on_progress is not None and self._ranks.is_main:
            self._on_progress(self.progress)
        if self._metrics is not None and self._ranks.is_main and state.global_step % LOG_EVERY == 0:
            self._metrics.write(step=state.global_step, seconds=self.progress.seconds, loss=self._loss)
        if self.progress.share >= 1.0 or self._loss < self._until_loss:
            control.should_training_stop = True

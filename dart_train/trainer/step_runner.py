"""The gradient of one optimizer step: the micro-batches of a lease, on all ranks, in the memory that there is.

Invariants:
    - Gradients, losses and numbers are those of the whole lease in one pass of one process, however it is cut: into
      micro-batches, into parts (`gradient_accumulation_steps`), among ranks, or smaller after memory ran out.
    - Memory that runs out on one rank is every rank's: all throw the step's gradients away and make it again.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import release_memory
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor

from dart_train.trainer.batches.collator import Collator, Sample
from dart_train.trainer.batches.lease_holder import Leased
from dart_train.trainer.batches.optimizer_batch import OptimizerBatch, build_batch
from dart_train.trainer.forward.forward_pass import ImageFeatures
from dart_train.trainer.forward.policy_logprobs import Policy, Reference
from dart_train.trainer.forward.scoring import Scores, needs_scoring, score_batch, use_scores
from dart_train.trainer.settings.grpo_config import DartGRPOConfig
from dart_train.trainer.settings.training_error import TrainingError
from dart_train.trainer.step_statistics import StepStatistics
from dart_train.trainer.weights.ranks import Ranks
from dart_train.trainer.weights.sharding import is_sharded

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Work:
    """What a step has gathered so far.

    Attributes:
        total: loss of the micro-batches that have run.
        statistics: of them.
        features: of the batch's images under the policy; valid until the weights change.
        reference_features: the same under the reference.
        prepared: whether the pass before the first micro-batch is done.
    """

    total: Tensor
    statistics: StepStatistics
    features: ImageFeatures | None = None
    reference_features: ImageFeatures | None = None
    prepared: bool = False


class StepRunner:
    """Runs the optimizer steps of one trainer, one at a time.

    Args:
        args: of the trainer.
        collator: makes micro-batches.
        policy: that is trained.
        reference: of the KL term; None without one.
        demonstrations: imitated beside, `args.supervised_rows` of them in each batch.
        ranks: who trains together.
        compute_loss: share of a micro-batch in the loss, from the trainer's inputs.
        backward: adds a loss's gradient.
        share_gradients: puts the ranks' gradients of a whole step together.

    Attributes:
        batch: of the lease that is being trained on; None between leases.
        iteration: optimizer steps begun on it.
        memory_retries: how often a step had to be made again of smaller micro-batches.
    """

    def __init__(
        self,
        args: DartGRPOConfig,
        collator: Collator,
        policy: Policy,
        reference: Reference | None,
        *,
        demonstrations: Sequence[Sample],
        ranks: Ranks,
        compute_loss: Callable[[dict[str, Any]], Tensor],
        backward: Callable[[Tensor], Any],
        share_gradients: Callable[[Iterable[torch.nn.Parameter]], Any],
    ) -> None:
        self._args = args
        self._collator = collator
        self._policy = policy
        self._reference = reference
        self._demonstrations = demonstrations
        self._ranks = ranks
        self._compute_loss = compute_loss
        self._backward = backward
        self._share_gradients = share_gradients
        self._max_tokens = args.micro_batch_tokens
        self._work: _Work | None = None
        self.batch: OptimizerBatch | None = None
        self.iteration = 0
        self.memory_retries = 0

    def begin(self, leased: Leased, *, step: int, version: int, unpublished: int) -> None:
        """Make the batch of a lease at its first iteration; it is the same afterwards.

        Args:
            leased: the lease.
            step: optimizer steps done.
            version: of the weights as they are.
            unpublished: updates since that version.
        """
        if self.batch is None:
            rng = random.Random(f"{self._args.seed}/{step}")  # the same after a restart
            rows = min(self._args.supervised_rows, len(self._demonstrations))
            self.batch = build_batch(
                leased.groups,
                self._collator,
                self._args,
                version=version,
                rng=rng,
                unpublished=unpublished,
                supervised=rng.sample(self._demonstrations, rows) if rows else (),
                max_tokens=self._max_tokens,
                ranks=self._ranks,
            )
            self.iteration = 0
        self.iteration += 1
        self._work = self._fresh()

    def run(self, part: int, parts: int, step: int) -> None:
        """Add the gradient of one part of the step.

        Args:
            part: from 0, in order.
            parts: of the step.
            step: for the log.

        Raises:
            TrainingError: a single step of a trajectory does not fit into memory.
        """
        wanted = {part}
        while not self._fits(wanted, parts):
            self._make_smaller(step)
            wanted = set(range(part + 1))  # what ran before is made again: all gradients are gone

    def finish(self) -> tuple[Tensor, dict[str, float]]:
        """Put the ranks' gradients together; returns the loss and the numbers of the whole step."""
        batch, work = self._current()
        self._share_gradients(self._policy.model.parameters())
        statistics = StepStatistics(self._args.objective())
        for other in self._ranks.gather(work.statistics):
            statistics.absorb(other)
        return self._ranks.mean(work.total), {**batch.metrics, **statistics.summary()}

    def end(self) -> None:
        """Forget the lease."""
        self.batch = self._work = None

    @property
    def made_of(self) -> Sequence[str]:
        """Ids of the trajectories of the batch."""
        return self.batch.trajectory_ids if self.batch else ()

    def _current(self) -> tuple[OptimizerBatch, _Work]:
        if self.batch is None or self._work is None:
            raise RuntimeError("no step was begun")
        return self.batch, self._work

    def _fresh(self) -> _Work:
        return _Work(torch.zeros((), device=self._args.device), StepStatistics(self._args.objective()))

    def _fits(self, wanted: set[int], parts: int) -> bool:
        """Run some parts; False if some rank's memory did not suffice."""
        batch, work = self._current()
        if not work.prepared:
            scored: list[Scores | None] = []
            if not self._attempt(lambda: scored.append(self._score(batch, work))):
                return False
            if scored[0] is not None:  # on every rank: they have come equally far
                use_scores(batch, self._args, scored[0], self._ranks)
            work.prepared = True
        return self._attempt(lambda: self._accumulate(wanted, parts))

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Do what waits for no other rank; whether the memory of all of them sufficed."""
        failed = False
        try:
            work()
        except RuntimeError as error:
            if not should_reduce_batch_size(error):
                raise
            if is_sharded(self._policy.model):  # the others wait for this rank's weights in the middle of their pass
                raise TrainingError(
                    f"out of memory with micro-batches of {self._max_tokens} tokens, and with fsdp a step cannot be "
                    "made again: set micro_batch_tokens lower, or gradient_checkpointing, and run the same command "
                    "again, it resumes"
                ) from error
            failed = True
        return not any(self._ranks.gather(failed))

    def _accumulate(self, wanted: set[int], parts: int) -> None:
        """Add the gradients of the micro-batches whose number modulo `parts` is wanted."""
        batch, work = self._current()
        for number, micro in enumerate(batch.micro_batches):
            if number % parts not in wanted:
                continue
            loss = self._compute_loss(
                {
                    "micro_batch": micro.to(self._args.device),
                    "normalizer": batch.normalizer,
                    "old_logprobs": batch.old_logprobs[number] if batch.old_logprobs else None,
                    "kept": batch.kept[number] if batch.kept else None,
                    "features": work.features,
                    "reference_features": work.reference_features,
                    "statistics": work.statistics,
                }
            )
            self._backward(loss)
            work.total += loss.detach()
        if parts - 1 in wanted and work.features is not None:
            work.features.backward()

    def _score(self, batch: OptimizerBatch, work: _Work) -> Scores | None:
        """The pass before the first micro-batch, where one is needed."""
        work.features = self._policy.features(batch.micro_batches, scoring_passes=int(needs_scoring(self._args)))
        if self._reference is not None:
            work.reference_features = self._reference.features(batch.micro_batches)
        return score_batch(batch, self._args, lambda micro: self._policy(micro.to(self._args.device), work.features))

    def _make_smaller(self, step: int) -> None:
        """Throw the step's gradients away and halve the micro-batches, now and from now on."""
        batch, _ = self._current()
        longest = max(self._ranks.gather(max(sample.length for sample in batch.samples)))
        half = batch.max_tokens // 2
        if half < longest:
            raise TrainingError(
                f"out of memory with micro-batches of {batch.max_tokens} tokens, and steps are up to {longest} long: "
                "set gradient_checkpointing, use_peft or freeze_vision, keep fewer screenshots in prompts, or take a "
                "larger device"
            )
        self._policy.model.zero_grad(set_to_none=True)
        self._work = None
        release_memory()
        self.memory_retries += 1
        _log.warning(
            "out of memory in step %d: it is made again, micro_batch_tokens is %d from now on instead of %d",
            step + 1, half, batch.max_tokens,
        )  # fmt: skip
        self._max_tokens = half
        batch.split(self._collator, half, self._ranks)
        self._work = self._fresh()

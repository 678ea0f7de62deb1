"""The gradient of one optimizer step: a mini-batch of a lease, on all ranks, in the memory that there is.

Everything that a lease needs before its first update is computed in one pass without gradient: log-probabilities of
pi_old, and the entropies by which steps are chosen. Nothing is computed for nothing: steps that the choice drops do not
run again, the first mini-batch's pi_old is kept from its own forward pass, where the engine recorded entropies there is
no pass, and the reference runs in steps with a KL term only.

Invariants:
    - Gradients, losses and numbers equal those of the whole mini-batch in one pass of one process, regardless of how it
      is cut: into micro-batches, into parts (`gradient_accumulation_steps`), among ranks, or smaller after memory ran
      out.
    - The ranks of a context group run slices of the same micro-batches and make the same batch, choices and loss; each
      adds its slice's part of the gradient.
    - Memory that runs out on one rank is every rank's: all throw the step's gradients away and make it again.
"""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from accelerate.utils import release_memory
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor

from dart_train.trainer import losses
from dart_train.trainer.batches.collator import Collator, MicroBatch, Sample
from dart_train.trainer.batches.lease_source import Lease
from dart_train.trainer.batches.members import BatchSettings
from dart_train.trainer.batches.optimizer_batch import (
    MiniBatch,
    OptimizerBatch,
    build_batch,
    by_place,
    nothing_to_train,
)
from dart_train.trainer.image_features import ImageFeatures, cut_ahead
from dart_train.trainer.memory.remembered_limits import RememberedLimits
from dart_train.trainer.memory.step_memory import StepMemory
from dart_train.trainer.memory.too_long import for_the_next_life, leave_out_known, leave_out_longest, longest_step
from dart_train.trainer.policy_logprobs import Policy, Reference
from dart_train.trainer.settings.grpo_settings import SUPERVISED_ROWS
from dart_train.trainer.step_cost import StepCost, StepSpeed
from dart_train.trainer.step_statistics import StepStatistics
from dart_train.trainer.weights.ranks import Ranks
from dart_train.trainer.weights.sharding import is_sharded, put_off_gradients

_log = logging.getLogger(__name__)


OldLogprobs = Literal["current", "recompute", "behaviour"]


@dataclass(frozen=True, slots=True)
class StepSettings:
    """Parts of the loss of a step.

    Attributes:
        old_logprobs: what the ratio is taken against: the policy as it is, that before the first update on a lease,
            or what the engine recorded.
        recorded_entropies: whether steps are chosen by the entropies that the engine recorded, where it did.
        teacher_coef: weight of what a teacher says: of the reverse KL, and of the cross-entropy on its answers.
        kl_every: optimizer steps from one with the KL term to the next; `objective` has the weight that it has then.
        reinforced_steps: optimizer steps on a lease that come before those of rehearsed steps alone.
        reduce_once: whether sharded ranks put their gradients together once a step, after its last micro-batch.
    """

    objective: losses.ObjectiveConfig
    batch: BatchSettings
    selection: losses.EntropySelection
    old_logprobs: OldLogprobs = "current"
    recorded_entropies: bool = False
    kl_every: int = 1
    supervised_coef: float = 0.0
    supervised_rows: int = SUPERVISED_ROWS
    teacher_coef: float = 1.0
    micro_batch_tokens: int = 16384
    reduce_once: bool = False
    reinforced_steps: int = 1
    seed: int = 42

    def chooses_recorded(self, batch: OptimizerBatch) -> bool:
        """Return whether the steps of a batch are chosen without a pass."""
        return self.recorded_entropies and batch.entropies_recorded and self.selection.level == "step"

    def to_score(self, batch: OptimizerBatch) -> list[MiniBatch]:
        """Return what of a batch takes a pass of its own before the first update."""
        if batch.scored:
            return []
        if self.selection.keep < 1.0 and not self.chooses_recorded(batch):
            return batch.reinforced
        return batch.reinforced[1:] if self.old_logprobs == "recompute" else []


@dataclass(slots=True)
class _Work:
    """State of a step; features are valid until the weights change."""

    total: Tensor
    statistics: StepStatistics
    cost: StepCost
    features: ImageFeatures | None = None
    reference_features: ImageFeatures | None = None
    prepared: bool = False


class StepRunner:
    """Runs the optimizer steps of one trainer, one at a time.

    Attributes:
        shares: this rank among those that train on other rows: `ranks`, or one rank of each context group.
        iteration: optimizer steps begun on it; each takes the next mini-batch, the first again after the last, and at
            the end those of rehearsed steps alone.
        memory_retries: how often a step had to be made again of smaller micro-batches.
        speed: operations and tokens of the last finished step on all ranks; None before the first.
    """

    def __init__(
        self,
        settings: StepSettings,
        collator: Collator,
        policy: Policy,
        reference: Reference | None,
        *,
        demonstrations: Sequence[Sample],
        ranks: Ranks,
        device: torch.device,
        memory: StepMemory,
        backward: Callable[[Tensor], Any],
        limits: RememberedLimits | None = None,
        shares: Ranks | None = None,
    ) -> None:
        self._settings = settings
        self.collator = collator
        self._policy = policy
        self._reference, self._kl_due = reference, True
        self._demonstrations = demonstrations
        self._ranks = ranks
        self.shares = ranks if shares is None else shares
        self._slices = ranks.count // self.shares.count
        self._device = device
        self._memory = memory
        self.backward = backward
        self._limits = limits
        self._max_tokens = settings.micro_batch_tokens
        if limits is not None and limits.micro_batch_tokens is not None:
            self._max_tokens = min(self._max_tokens, limits.micro_batch_tokens)
        self._work: _Work | None = None
        self.batch: OptimizerBatch | None = None
        self.iteration = 0
        self.memory_retries = 0
        self.speed: StepSpeed | None = None

    def nothing_in(self, lease: Lease) -> str:
        """Return why no step of a lease can be trained on, or ""."""
        return nothing_to_train(lease.groups, self.collator, self._settings.batch)

    def begin(self, lease: Lease, *, step: int, version: int, unpublished: int) -> None:
        """Make the batch of a lease at its first iteration; it is the same afterwards. See `build_batch`."""
        work = self._fresh()
        self._kl_due = step % self._settings.kl_every == 0
        with work.cost.phase("collate", self._device):
            self._begin(lease, step=step, version=version, unpublished=unpublished)
        self.iteration += 1
        self._work = work

    def _begin(self, lease: Lease, *, step: int, version: int, unpublished: int) -> None:
        """Make the batch of a lease, if this is its first iteration."""
        if self.batch is None:
            rng = random.Random(f"{self._settings.seed}/{step}")  # the same after a restart
            rows = min(self._settings.supervised_rows, len(self._demonstrations))
            shown = rng.sample(self._demonstrations, rows) if rows else []
            first = 1 + max((sample.trajectory for sample in shown), default=-1)
            shown += [replace(sample, trajectory=first + sample.trajectory) for sample in lease.imitated]
            self.batch = build_batch(
                lease.groups,
                self.collator,
                self._settings.batch,
                version=version,
                rng=rng,
                max_tokens=self._max_tokens,
                unpublished=unpublished,
                demonstrations=shown,
                ranks=self.shares,
            )
            self.iteration = 0
            if self._settings.selection.keep < 1.0 and self._settings.chooses_recorded(self.batch):
                self._select(self.batch, None)

    def run(self, part: int, parts: int, step: int) -> None:
        """Add the gradient of one part of the step.

        Raises:
            TrainingError: if a single step does not fit into memory.
        """
        wanted = {part}
        if part == 0:
            batch, _ = self._current()
            if leave_out_known(batch, self._limits, self.shares, self._explain):
                batch.split(self.collator, self._max_tokens, self.shares)
            while not all(self._ranks.gather(self._memory.fits(self._running))):
                self._make_smaller(step, "the largest would not fit into memory")
        while not self._fits(wanted, parts):
            self._make_smaller(step)
            wanted = set(range(part + 1))  # what ran before is made again: all gradients are gone

    def _explain(self) -> str:
        """Return what takes this rank's memory."""
        return self._memory.explained(self._running)

    @property
    def _running(self) -> Sequence[MicroBatch]:
        """The micro-batches that the step may run."""
        batch, _ = self._current()
        return self._part.micro_batches if batch.scored else batch.micro_batches

    def finish(self) -> tuple[Tensor, dict[str, float]]:
        """Put the ranks' gradients together; returns the loss and the numbers of the whole step."""
        batch, work = self._current()
        self._ranks.average_gradients(self._policy.model.parameters())
        work.statistics.add_dropped(self._part.dropped)
        statistics = StepStatistics()
        for other in self.shares.gather(work.statistics):
            statistics.absorb(other)
        self.speed = StepSpeed.of(self._ranks.gather((work.cost.flops, work.cost.tokens)), work.cost.seconds)
        return self._ranks.mean(work.total), {**batch.metrics, **statistics.summary()}

    def end(self) -> None:
        """Forget the lease."""
        self.batch = self._work = None

    @property
    def empty(self) -> bool:
        """Return whether the step is empty on every rank: the lease was too small, or all samples were dropped."""
        return not any(self._ranks.gather(bool(self._part.counted) or any(s.supervised for s in self._part.samples)))

    @property
    def made_of(self) -> Sequence[str]:
        """Ids of the trajectories of the batch."""
        return self.batch.trajectory_ids if self.batch else ()

    def _current(self) -> tuple[OptimizerBatch, _Work]:
        if self.batch is None or self._work is None:
            raise RuntimeError("no step was begun")
        return self.batch, self._work

    @property
    def _part(self) -> MiniBatch:
        """Return what the step trains on."""
        batch, _ = self._current()
        number, rehearsed = self.iteration - 1, batch.rehearsed
        if rehearsed and number >= self._settings.reinforced_steps:
            return rehearsed[number - self._settings.reinforced_steps]
        return batch.reinforced[number % len(batch.reinforced)]

    def _fresh(self) -> _Work:
        size, setting = self._memory.size, self._memory.setting
        cost = StepCost(size, adapter=bool(setting.lora_rank), trains_tower=setting.trains_tower)
        return _Work(torch.zeros((), device=self._device), StepStatistics(), cost)

    def _fits(self, wanted: set[int], parts: int) -> bool:
        """Run some parts; False if some rank's memory did not suffice."""
        batch, work = self._current()
        if not work.prepared:
            scores: list[dict[int, tuple[Tensor, Tensor]]] = []
            with work.cost.phase("score", self._device):
                scored = self._attempt(lambda: scores.extend(self._score(batch, work)))
            if not scored:
                return False
            if not batch.scored:  # on every rank: they have come equally far
                self._settle(batch, scores)
            self._prepare_reference(work)
            work.prepared = True
        with work.cost.phase("train", self._device):
            return self._attempt(lambda: self._accumulate(wanted, parts))

    def _score(self, batch: OptimizerBatch, work: _Work) -> list[dict[int, tuple[Tensor, Tensor]]]:
        """(T,) log-probabilities and entropies before the first update, by the samples' places, of `to_score`'s parts.

        Empty where no such pass is needed: later steps on the lease keep what the first one found.
        """
        parts = self._settings.to_score(batch)
        running = [micro for part in (batch.reinforced if parts else [self._part]) for micro in part.micro_batches]
        work.features = self._policy.features(running, scoring_passes=int(bool(parts)))
        found: list[dict[int, tuple[Tensor, Tensor]]] = []
        with torch.no_grad():
            for part in parts:
                own: dict[int, tuple[Tensor, Tensor]] = {}
                for micro in cut_ahead(part.micro_batches, work.features):
                    logprobs, entropies = self._policy(micro.to(self._device), work.features)
                    work.cost.add_pass(micro, "policy", trained=False, keeps_features=work.features is not None)
                    values = by_place(micro, entropies)
                    own |= {place: (row, values[place]) for place, row in by_place(micro, logprobs).items()}
                found.append(own)
        return found

    def _settle(self, batch: OptimizerBatch, scores: Sequence[dict[int, tuple[Tensor, Tensor]]]) -> None:
        """Keep what the pass before the first update found, and choose what the lease's steps train on."""
        settings = self._settings
        if settings.old_logprobs == "recompute":
            for part, own in zip(settings.to_score(batch), scores, strict=True):
                part.old_logprobs = {place: logprobs for place, (logprobs, _) in own.items()}
        if settings.selection.keep < 1.0 and not settings.chooses_recorded(batch):
            self._select(batch, [{place: values for place, (_, values) in own.items()} for own in scores])
        batch.scored = True

    def _select(self, batch: OptimizerBatch, entropies: Sequence[dict[int, Tensor]] | None) -> None:
        """Choose what the lease's steps train on; the entropy bonus includes all tokens, dropped ones too."""
        run_dropped = self._settings.objective.entropy_coef != 0
        batch.select(entropies, self._settings.selection, self.collator, run_dropped=run_dropped, ranks=self.shares)

    def _prepare_reference(self, work: _Work) -> None:
        if self._reference is not None and self._kl_due:
            same = self._reference.model is self._policy.model and not self._policy.trains_tower
            running = self._part.micro_batches
            work.reference_features = work.features if same else self._reference.features(running)

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Do what waits for no other rank; whether the memory of all of them sufficed."""
        failed = False
        try:
            work()
        except RuntimeError as error:
            if not should_reduce_batch_size(error):
                raise
            if is_sharded(self._policy.model):
                batch, _ = self._current()
                longest = longest_step(batch)
                raise for_the_next_life(longest, self._max_tokens, self._limits, self._explain) from error
            failed = True
        return not any(self._ranks.gather(failed))

    def _accumulate(self, wanted: set[int], parts: int) -> None:
        """Add the gradients of the micro-batches for which `number % parts` is in `wanted`."""
        _, work = self._current()
        batches = self._part.micro_batches
        closing = last_number(len(batches), parts)
        numbers = [number for number in range(len(batches)) if number % parts in wanted]
        running = cut_ahead([batches[number] for number in numbers], work.features)
        for number, micro in zip(numbers, running, strict=True):
            put_off_gradients(self._policy.model, self._settings.reduce_once and number != closing)
            loss = self.loss(micro.to(self._device))
            # Gradients are averaged over all ranks, and those of a context group are parts of one.
            self.backward(loss * self._slices)
            work.total += loss.detach()
        if parts - 1 in wanted and work.features is not None:
            work.features.backward()

    def loss(self, micro: MicroBatch) -> Tensor:
        """Scalar share of one micro-batch in the loss of its mini-batch: `losses.objective`, and `losses.nll_loss`."""
        part, (_, work) = self._part, self._current()
        logprobs, entropies = self._policy(micro, work.features)
        work.cost.add_pass(micro, "policy", trained=True, keeps_features=work.features is not None)
        reference = None
        if self._reference is not None and self._kl_due:
            reference, _ = self._reference(micro, work.reference_features)
            kept_features = work.reference_features
            shared = "policy" if kept_features is not None and kept_features is work.features else "reference"
            work.cost.add_pass(micro, shared, trained=False, keeps_features=kept_features is not None)
        kept = part.rows_of(micro, part.kept).to(logprobs.device) if part.kept else None
        by_token = self._settings.selection.level == "token"
        old = self._old_logprobs(micro, logprobs)
        coef = self._settings.teacher_coef
        scored = losses.Scored(
            logprobs=logprobs,
            entropies=entropies,
            old_logprobs=old,
            mask=micro.mask,
            advantages=losses.taught_advantages(
                micro.advantages, old, micro.teacher_logprobs, micro.teacher_known, coef
            ),
            behaviour_logprobs=micro.behaviour_logprobs,
            behaviour_known=micro.behaviour_known,
            reference_logprobs=reference,
            kept_steps=None if by_token else kept,
            kept_tokens=kept if by_token else None,
            weights=micro.reinforced,
        )
        result = losses.objective(scored, self._settings.objective, part.normalizer)
        work.statistics.add(micro, scored, result)
        loss = result.loss
        for name, weights, weight, tokens in (
            ("supervised_loss", micro.demonstrated, self._settings.supervised_coef, part.normalizer.supervised_tokens),
            ("teacher/loss", micro.targets, coef, part.normalizer.taught_tokens),
        ):
            if bool(weights.any()):
                nll = losses.nll_loss(logprobs, micro.mask, weights, tokens=tokens, ranks=part.normalizer.ranks)
                work.statistics.add_nll(name, nll.detach() / self.shares.count)
                loss = loss + weight * nll
        return loss

    def _old_logprobs(self, micro: MicroBatch, logprobs: Tensor) -> Tensor:
        """(S, T) log-probabilities that the ratio is taken against, without gradient."""
        if self._settings.old_logprobs == "behaviour":
            return torch.where(micro.behaviour_known, micro.behaviour_logprobs, logprobs.detach())
        if self._settings.old_logprobs == "current":
            return logprobs.detach()
        known = self._part.old_logprobs
        # All of them: a step that is made again of smaller micro-batches is cut elsewhere, and rows of what ran before
        # may hold samples that did not run yet.
        if all(place in known for place in micro.sample_index.tolist()):
            return self._part.rows_of(micro, known)
        known |= by_place(micro, logprobs.detach())  # no update was made yet: pi is pi_old
        return logprobs.detach()

    def _make_smaller(self, step: int, why: str = "out of memory") -> None:
        """Throw the step's gradients away and halve the micro-batches, now and from now on."""
        batch, _ = self._current()
        longest, before = max(self._ranks.gather(longest_step(batch))), self._part.max_tokens
        half = before // 2
        if half < longest:
            half = leave_out_longest(batch, longest, before, self.shares, why=why, explain=self._explain)
        self._policy.model.zero_grad(set_to_none=True)
        self._work = None
        release_memory()
        self.memory_retries += 1
        _log.warning(
            "step %d: %s; it is made of smaller ones, micro_batch_tokens is %d from now on instead of %d",
            step + 1,
            why,
            half,
            before,
        )
        self._max_tokens = half
        batch.split(self.collator, half, self.shares)
        self._work = self._fresh()


def last_number(count: int, parts: int) -> int:
    """Return the index of the micro-batch that runs last; parts take turns, and the last part may be empty."""
    part = min(parts, count) - 1
    return part + (count - 1 - part) // parts * parts

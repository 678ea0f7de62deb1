"""From leased groups to optimizer batches: rewards become advantages, steps become micro-batches.

`members` decides which parts of a trajectory count. Here is what one optimizer step trains on (`MiniBatch`), and
everything that the steps on one lease train on (`OptimizerBatch`).

Samples that cannot be trained on are dropped by a named rule and counted ("dropped/<rule>" in the metrics): empty
responses, invalid log-probabilities, tokens that are never sampled, images that are not the prompt's, steps longer than
the model's context. Nothing left is an error.

Facts about a sample (log-probabilities before the first update, the tokens that count) are kept by its place in
`samples`, so that they stay valid when the micro-batches are cut again.

Invariants:
    - Cutting micro-batches again, or leaving out steps that a selection dropped, changes no result: normalisers include
      all samples that the step was made of.
    - Every rank has the same number of micro-batches, at least one.
"""

import logging
import random
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dart_train.core.train_errors import TrainingError
from dart_train.trainer.batches.collator import Collator, MicroBatch, Problem, Sample, count_problems, equal_counts
from dart_train.trainer.batches.members import (
    BatchSettings,
    GroupLike,
    adjust_rewards,
    masked,
    member_of,
    metrics_of,
    samples_of,
    taught_metrics,
    trainable,
)
from dart_train.trainer.losses import EntropySelection, Normalizer, high_entropy_steps, high_entropy_tokens
from dart_train.trainer.weights.ranks import ALONE, Ranks

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Dropped:
    """Steps that were left out of a mini-batch by their entropy: they are reported, and not run."""

    steps: int = 0
    tokens: int = 0
    entropy: float = 0.0


@dataclass(slots=True)
class MiniBatch:
    """The samples of one optimizer step.

    Attributes:
        old_logprobs: (T,) log pi_old of each sample's response, by its place; {} before it is known.
        rehearsal: whether it holds no step of the lease's groups.
        kept: by place, () or (T,) boolean: the steps or tokens that a selection by entropy keeps; {} without one.
    """

    samples: list[Sample]
    normalizer: Normalizer
    micro_batches: list[MicroBatch] = field(default_factory=list, repr=False)
    max_tokens: int = 0
    rehearsal: bool = False
    old_logprobs: dict[int, Tensor] = field(default_factory=dict, repr=False)
    kept: dict[int, Tensor] = field(default_factory=dict, repr=False)
    dropped: Dropped = field(default_factory=Dropped)

    @property
    def counted(self) -> list[int]:
        """Places of the samples that are reinforced and not there to fill up."""
        return [place for place, sample in enumerate(self.samples) if sample.weight and not sample.supervised]

    def split(self, collator: Collator, max_tokens: int, ranks: Ranks) -> None:
        """Cut the samples into micro-batches. Called by all ranks."""
        found = collator.micro_batches(self.samples, max_tokens, checked=True)
        self.micro_batches = equal_counts(found, max(ranks.gather(len(found))))
        self.max_tokens = max_tokens

    def leave_out(self, places: Sequence[int], entropies: Sequence[float]) -> None:
        """Take samples out that a selection dropped; `split` afterwards. Normalisers stay: their loss is 0."""
        gone = set(places)
        for place, entropy in zip(places, entropies, strict=True):
            count = len(self.samples[place].response_ids)
            self.dropped.steps += 1
            self.dropped.tokens += count
            self.dropped.entropy += entropy * count
        self._take_out(gone, filling(self.samples))

    def leave_out_longer(self, length: int, filler: Sample) -> int:
        """Take out samples of more tokens than the memory holds, `split` afterwards; return how many.

        Normalisers stay. Where nothing is left, `filler` runs and counts nothing.
        """
        gone = {place for place, sample in enumerate(self.samples) if sample.length > length}
        counted = sum(bool(self.samples[place].weight) for place in gone)
        self._take_out(gone, filler)
        return counted

    def _take_out(self, gone: Set[int], filler: Sample) -> None:
        left = [place for place in range(len(self.samples)) if place not in gone]
        self.old_logprobs = {new: self.old_logprobs[old] for new, old in enumerate(left) if old in self.old_logprobs}
        if self.kept:
            whole = torch.zeros((len(filler.response_ids),), dtype=torch.bool)
            nothing = whole if next(iter(self.kept.values())).ndim else whole.any()
            self.kept = {new: self.kept[old] for new, old in enumerate(left) if old in self.kept} or {0: nothing}
        self.samples = [self.samples[place] for place in left] or [filler]

    def rows_of(self, micro: MicroBatch, values: dict[int, Tensor]) -> Tensor:
        """(S, T) or (S,) what is known of a micro-batch's samples, 0 or False beyond their responses."""
        own = [values[place] for place in micro.sample_index.tolist()]
        if not own[0].ndim:
            return torch.stack(own)
        return torch.stack([torch.nn.functional.pad(row, (0, micro.mask.shape[1] - len(row))) for row in own])


def by_place(micro: MicroBatch, values: Tensor) -> dict[int, Tensor]:
    """(S, T) values of a micro-batch's tokens as (T,) of each response, by the samples' places."""
    lengths = micro.mask.sum(-1).tolist()
    places = micro.sample_index.tolist()
    return {place: row[:length] for place, row, length in zip(places, values, lengths, strict=True)}


def filling(samples: Sequence[Sample]) -> Sample:
    """A sample that takes part in every forward pass and counts nothing: a copy of the shortest."""
    return replace(min(samples, key=lambda sample: sample.length), weight=0.0)


def rank_samples(samples: Sequence[Sample], ranks: Ranks) -> list[Sample]:
    """The samples of one rank: whole trajectories (their steps may share a row), the longest to the emptiest rank.

    Every rank comes to the same division. A rank without samples takes a copy of the shortest sample with a weight of
    0: it runs the model as the others do, and does not count.
    """
    if ranks.count == 1:
        return list(samples)
    own = shares(samples, ranks.count, lambda sample: sample.length)[ranks.rank]
    return own or [filling(samples)]


def shares(samples: Sequence[Sample], count: int, size_of: Callable[[Sample], int]) -> list[list[Sample]]:
    """Split samples into parts of about equal size, of whole trajectories, in their order; a part may be empty."""
    work: dict[int, int] = {}
    for sample in samples:
        work[sample.trajectory] = work.get(sample.trajectory, 0) + size_of(sample)
    loads, owner = [0] * count, {}
    for trajectory in sorted(work, key=lambda name: (-work[name], name)):
        least = loads.index(min(loads))
        loads[least] += work[trajectory]
        owner[trajectory] = least
    return [[sample for sample in samples if owner[sample.trajectory] == part] for part in range(count)]


@dataclass(slots=True)
class OptimizerBatch:
    """Everything that the optimizer steps on one lease train on.

    Attributes:
        entropies_recorded: whether the engine recorded the entropy of every step that is reinforced.
        scored: whether the pass before the first update is done, or none was needed.
    """

    parts: list[MiniBatch]
    metrics: dict[str, float]
    trajectory_ids: tuple[str, ...]
    newest_version: int = 0
    entropies_recorded: bool = False
    scored: bool = False

    @property
    def reinforced(self) -> list[MiniBatch]:
        """The parts with steps of the lease's groups."""
        return [part for part in self.parts if not part.rehearsal]

    @property
    def rehearsed(self) -> list[MiniBatch]:
        """The parts without any."""
        return [part for part in self.parts if part.rehearsal]

    @property
    def micro_batches(self) -> list[MicroBatch]:
        """Those of all parts."""
        return [micro for part in self.parts for micro in part.micro_batches]

    def split(self, collator: Collator, max_tokens: int, ranks: Ranks) -> None:
        """Cut all parts into micro-batches, and count them. Called by all ranks."""
        for part in self.parts:
            part.split(collator, max_tokens, ranks)
        self.metrics |= _sizes(self.micro_batches, ranks)

    def select(
        self,
        entropies: Sequence[Mapping[int, Tensor]] | None,
        selection: EntropySelection,
        collator: Collator,
        *,
        run_dropped: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """Keep the steps or tokens of highest entropy; `entropies`: of the reinforced parts. Called by all ranks."""
        parts = self.reinforced
        if selection.level == "token":
            assert entropies is not None  # an engine records the mean of a step
            left = _keep_tokens(parts, entropies, selection.keep, ranks)
            for part, tokens in zip(parts, left, strict=True):
                part.normalizer = replace(part.normalizer, kept_tokens=tokens)
            return
        means = [_means(part, None if entropies is None else entropies[place]) for place, part in enumerate(parts)]
        kept = _keep_steps(parts, means, selection, ranks)
        for part, values, flags in zip(parts, means, kept, strict=True):
            if run_dropped:
                part.kept = {place: torch.ones((), dtype=torch.bool) for place in range(len(part.samples))}
                part.kept |= {place: flag for place, flag in zip(part.counted, flags, strict=True)}
            else:
                pairs = zip(part.counted, values, flags, strict=True)
                gone = [(place, value) for place, value, flag in pairs if not flag]
                part.leave_out([place for place, _ in gone], [value for _, value in gone])
        if not run_dropped:
            self.split(collator, self.parts[0].max_tokens, ranks)


def build_batch(
    groups: Sequence[GroupLike],
    collator: Collator,
    settings: BatchSettings,
    *,
    version: int,
    rng: random.Random,
    max_tokens: int,
    unpublished: int = 0,
    demonstrations: Sequence[Sample] = (),
    ranks: Ranks = ALONE,
) -> OptimizerBatch:
    """Turn leased groups into a batch.

    With several ranks each makes the whole batch of samples, and tensors of its share: advantages, selections and
    normalisers equal those of one process.

    Raises:
        TrainingError: if no step can be trained on.
    """
    problems: list[Problem] = []
    members = [
        [member_of(item, group, collator, settings, problems) for item in group.trajectories] for group in groups
    ]
    members = [[member for member in group if member.samples] for group in members]
    flat = [member for group in members for member in group]
    if not flat:
        raise TrainingError(_nothing_left(problems))
    shown = trainable(demonstrations, collator, problems)
    _say(problems, sum(len(member.samples) for member in flat))
    for group in members:
        adjust_rewards(group, settings)
    if settings.shuffle_rewards:
        rewards = [member.reward for member in flat]
        rng.shuffle(rewards)
        for member, reward in zip(flat, rewards, strict=True):
            member.reward = reward
    newest = version + (1 if unpublished else 0)
    samples = samples_of(members, settings, newest, collator)
    metrics = metrics_of(members, samples, version) | count_problems(problems)
    metrics["dropped/share"] = len(problems) / (len(problems) + len(samples))
    first = len(flat)
    left_out = {number for number, member in enumerate(flat) if masked(member, settings)}
    targets = [replace(target, trajectory=number) for number, member in enumerate(flat) for target in member.targets]
    if settings.teacher_when != "never":
        metrics |= taught_metrics(groups, members, settings)
    shown = [replace(sample, supervised=True, trajectory=first + sample.trajectory) for sample in shown]
    chosen = _capped(samples, settings.max_samples, rng)
    alone: list[list[Sample]] = []
    if settings.rehearsal_steps:
        dealt = shares(shown, settings.mini_batches + settings.rehearsal_steps, lambda sample: 1)
        shown = [sample for own in dealt[: settings.mini_batches] for sample in own]
        alone = dealt[settings.mini_batches :]
    everything = [*chosen, *targets, *shown]
    batch = OptimizerBatch(
        parts=[
            replace(_part(own, everything, settings, ranks, left_out), rehearsal=number >= settings.mini_batches)
            for number, own in enumerate([*shares(everything, settings.mini_batches, lambda sample: 1), *alone])
        ],
        metrics=metrics | {"batch/capped": float(len(samples) - len(chosen)), "batch/masked": float(len(left_out))},
        trajectory_ids=tuple(member.trajectory.trajectory_id for member in flat),
        newest_version=max(member.trajectory.newest_version for member in flat),
        entropies_recorded=all(sample.entropy is not None for sample in chosen),
    )
    batch.split(collator, max_tokens, ranks)
    return batch


def _capped(samples: Sequence[Sample], most: int | None, rng: random.Random) -> Sequence[Sample]:
    """Return the samples, or a random choice of them in their order; baselines use the groups of all ranks."""
    if most is None or len(samples) <= most:
        return samples
    return [samples[place] for place in sorted(rng.sample(range(len(samples)), most))]


def _part(
    own: Sequence[Sample], samples: Sequence[Sample], settings: BatchSettings, ranks: Ranks, left_out: Set[int]
) -> MiniBatch:
    """One rank's mini-batch; where it would be empty, a sample that counts nothing.

    Trajectories that are left out are not run. As in TRL they count among the samples that a loss is the mean over, and
    their tokens do not.
    """
    kept = [sample for sample in own if sample.supervised or sample.trajectory not in left_out]
    mine = rank_samples(kept, ranks) if kept else [filling(samples)]
    return MiniBatch(mine, _normalizer(own, kept, mine, settings, ranks))


def _sizes(batches: Sequence[MicroBatch], ranks: Ranks) -> dict[str, float]:
    """Number of tokens, rows and images that run through the model, on all ranks."""
    counted = [micro for micro in batches if not micro.fills_up]
    numbers = {
        "batch/micro_batches": float(len(counted)),
        "batch/rows": float(sum(micro.rows for micro in counted)),
        "batch/input_tokens": float(sum(micro.input_ids.numel() * micro.slices for micro in counted)),
    }
    found = ranks.gather(numbers)
    return {name: sum(rank[name] for rank in found) for name in numbers}


def _normalizer(
    samples: Sequence[Sample], kept: Sequence[Sample], own: Sequence[Sample], settings: BatchSettings, ranks: Ranks
) -> Normalizer:
    mine = [sample for sample in own if not sample.supervised and sample.weight]
    return Normalizer(
        tokens=sum(len(sample.response_ids) for sample in kept if not sample.supervised),
        samples=sum(not sample.supervised for sample in samples),
        max_tokens=settings.max_completion_length,
        rank_tokens=sum(len(sample.response_ids) for sample in mine) if ranks.count > 1 else None,
        ranks=ranks.count,
        supervised_tokens=sum(
            len(sample.response_ids) for sample in samples if sample.supervised and not sample.taught
        ),
        taught_tokens=sum(len(sample.response_ids) for sample in samples if sample.taught),
    )


def _means(part: MiniBatch, entropies: Mapping[int, Tensor] | None) -> list[float]:
    """Mean entropy of each sample that counts."""
    if entropies is None:
        return [part.samples[place].entropy or 0.0 for place in part.counted]
    return [float(entropies[place].double().mean()) for place in part.counted]


def _keep_steps(
    parts: Sequence[MiniBatch], means: Sequence[Sequence[float]], selection: EntropySelection, ranks: Ranks
) -> list[list[Tensor]]:
    """() flags of each part's samples that count: the steps of highest entropy, of each group or of the whole lease."""
    groups = [
        part.samples[place].group if selection.scope == "group" else 0 for part in parts for place in part.counted
    ]
    all_means, own = _of_all(torch.tensor([value for values in means for value in values], dtype=torch.float64), ranks)
    all_groups, _ = _of_all(torch.tensor(groups, dtype=torch.int64), ranks)
    flags = iter(high_entropy_steps(all_means, all_groups, selection.keep)[own])
    return [[next(flags) for _ in values] for values in means]


def _keep_tokens(
    parts: Sequence[MiniBatch], entropies: Sequence[Mapping[int, Tensor]], keep: float, ranks: Ranks
) -> list[int]:
    """Fill in the tokens of highest entropy of all parts; return how many each part has on all ranks."""
    pairs = [
        (part, place, found[place]) for part, found in zip(parts, entropies, strict=True) for place in part.counted
    ]
    flat = torch.cat([values for _, _, values in pairs]) if pairs else torch.zeros(0)
    everything, own = _of_all(flat, ranks)
    whole = high_entropy_tokens(everything, torch.ones_like(everything, dtype=torch.bool), keep)[own]
    for part, found in zip(parts, entropies, strict=True):
        part.kept = {place: torch.zeros(len(values), dtype=torch.bool) for place, values in found.items()}
    for (part, place, _), flags in zip(pairs, whole.split([len(values) for _, _, values in pairs]), strict=True):
        part.kept[place] = flags.cpu()
    counts = [sum(int(flags.sum()) for flags in part.kept.values()) for part in parts]
    return [sum(rank[number] for rank in ranks.gather(counts)) for number in range(len(parts))]


def _of_all(values: Tensor, ranks: Ranks) -> tuple[Tensor, slice]:
    """(N,) values of all ranks one after the other, and where this rank's are."""
    found = ranks.gather(values.cpu())
    start = sum(len(part) for part in found[: ranks.rank])
    return torch.cat(found).to(values.device), slice(start, start + len(values))


def _say(problems: Sequence[Problem], kept: int) -> None:
    if problems:
        counts = {name: int(count) for name, count in count_problems(problems).items() if count}
        _log.warning(
            "%d of %d steps cannot be trained on and were left out (%s); the first: %s",
            len(problems),
            len(problems) + kept,
            counts,
            problems[0].text,
        )


def nothing_to_train(groups: Sequence[GroupLike], collator: Collator, settings: BatchSettings) -> str:
    """Return why no step of a lease can be trained on, or "" if one can: it looks no further then."""
    problems: list[Problem] = []
    for group in groups:
        for trajectory in group.trajectories:
            if member_of(trajectory, group, collator, settings, problems).samples:
                return ""
    return _nothing_left(problems)


def _nothing_left(problems: Sequence[Problem]) -> str:
    words = "the lease holds no step with a response: look at what the rollout service recorded"
    other = next((problem.text for problem in problems if problem.reason != "empty_response"), "")
    return f"the lease holds no step that can be trained on: {other}" if other else words

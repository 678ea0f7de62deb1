"""What one optimizer step trains on: a part of a lease's samples, as micro-batches of one rank.

What is known of a sample (log-probabilities before the first update, the tokens that count) is kept by its place in
`samples`, so that it stays where it is when the micro-batches are cut anew.

Invariants:
    - Cutting micro-batches anew, or leaving out steps that a selection dropped, changes no result: normalisers are
      those of all samples that the step was made of.
    - Every rank has the same number of micro-batches, at least one.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dart_train.trainer.batches.collator import Collator, MicroBatch, Sample, equal_counts
from dart_train.trainer.losses import Normalizer
from dart_train.trainer.weights.ranks import Ranks


@dataclass(slots=True)
class Dropped:
    """Steps that were left out of a mini-batch by their entropy: they are reported, and not run."""

    steps: int = 0
    tokens: int = 0
    entropy: float = 0.0


@dataclass(slots=True)
class MiniBatch:
    """What one optimizer step trains on.

    Attributes:
        old_logprobs: (T,) log pi_old of each sample's response, by its place; {} before it is known.
        kept: by place, () or (T,) boolean: the steps or tokens that a selection by entropy keeps; {} without one.
    """

    samples: list[Sample]
    normalizer: Normalizer
    micro_batches: list[MicroBatch] = field(default_factory=list, repr=False)
    max_tokens: int = 0
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
    """The samples of one rank: whole trajectories (their steps may share a row), the longest to who has least.

    Every rank comes to the same division. A rank for which nothing is left takes a copy of the shortest sample with a
    weight of 0: it runs the model as the others do, and nothing of it counts.
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

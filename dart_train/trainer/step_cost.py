"""Operations, tokens and seconds of one optimizer step on one rank.

Model FLOP/s utilisation (MFU) follows PaLM (arXiv 2204.02311, appendix B): the operations that the method needs, by the
seconds in which the devices could have computed, by the devices' peak. Scoring and reference passes are needed by the
method and count; what activation checkpointing and the tower's second pass compute again does not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

import torch

from dart_train.core.device_peaks import utilisation
from dart_train.trainer.attention.segments import Segment
from dart_train.trainer.batches.collator import MicroBatch
from dart_train.trainer.memory.model_size import ModelSize

WEIGHT_PASSES, ADAPTER_PASSES = 3, 2
"""Forward passes' worth of operations of a forward and backward pass: with gradients of the weights (twice a forward
pass backward), and with gradients of activations only (an adapter's own are too few to count)."""


def attended(segments: Sequence[Segment]) -> tuple[int, float]:
    """Return the tokens of all segments, and how many tokens each of them sees on average, itself included."""
    tokens = sum(segment.length for segment in segments)
    seen = sum(segment.length * (segment.seen + (segment.length + 1) / 2) for segment in segments)
    return tokens, seen / tokens if tokens else 0.0


@dataclass(slots=True)
class StepCost:
    """Cost of one optimizer step so far on this rank.

    Attributes:
        size: sizes of the trained model.
        adapter: whether only an adapter is trained.
        trains_tower: whether the vision tower is trained.
        flops: operations of all passes, without what is computed again.
        tokens: tokens that went through a forward and backward pass, padding excluded.
        seconds: by phase: "collate", "score", "train".
    """

    size: ModelSize
    adapter: bool
    trains_tower: bool
    flops: float = 0.0
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    _images: set[tuple[str, str]] = field(default_factory=set)

    def add_pass(self, micro: MicroBatch, model: str, *, trained: bool, keeps_features: bool) -> None:
        """Count one pass over a micro-batch.

        Args:
            micro: the micro-batch.
            model: "policy" or "reference"; each runs an image through its own tower.
            trained: whether a backward pass follows.
            keeps_features: whether an image runs through the tower once in the step, instead of once per pass.
        """
        tokens, seen = attended(micro.layout.segments)
        if micro.part is not None:  # heads of all tokens, as many as all heads of its own tokens
            tokens = micro.part.tokens
        trained_passes = ADAPTER_PASSES if self.adapter else WEIGHT_PASSES
        passes = trained_passes if trained else 1
        self.flops += passes * self.size.forward_flops(tokens, seen, micro.num_tokens, 0, 0)
        tower_passes = WEIGHT_PASSES if self.trains_tower and model == "policy" else 1
        for name in micro.image_hashes:
            if keeps_features and (model, name) in self._images:
                continue
            self._images.add((model, name))
            patches = prod(micro.patches.grid(name))
            self.flops += tower_passes * self.size.forward_flops(0, 0.0, 0, patches, patches)
        if trained:
            self.tokens += tokens

    @contextmanager
    def phase(self, name: str, device: torch.device) -> Iterator[None]:
        """Add the seconds of a `with` block to a phase; waits for a GPU at both ends."""
        synchronize(device)
        started = time.perf_counter()
        try:
            yield
        finally:
            synchronize(device)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class StepSpeed:
    """Operations and tokens of one step on all ranks together, with the main rank's seconds by phase."""

    flops: float
    tokens: int
    phases: dict[str, float]

    @classmethod
    def of(cls, costs: Sequence[tuple[float, int]], phases: dict[str, float]) -> StepSpeed:
        """Sum (flops, tokens) of the ranks."""
        return cls(sum(flops for flops, _ in costs), sum(tokens for _, tokens in costs), phases)

    def report(self, seconds: float, device_name: str, ranks: int) -> dict[str, float]:
        """Return the metrics of a step that took `seconds` without waiting for leases and without publishing."""
        found = {f"perf/{name}_s": value for name, value in self.phases.items()}
        if seconds <= 0:
            return found
        found |= {"perf/tokens_per_s": self.tokens / seconds, "perf/tflops_per_s": self.flops / seconds / 1e12}
        used = utilisation(self.flops, seconds, device_name, ranks)
        return found if used is None else found | {"perf/mfu": used}


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

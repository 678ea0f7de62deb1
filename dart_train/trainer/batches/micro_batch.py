"""`MicroBatch`: the tensors of one forward pass, and the part of them that one rank of a context group holds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from dart_train.trainer.attention.kernels import Layout
from dart_train.trainer.batches.image_cache import ImagePatches


@dataclass(frozen=True, slots=True)
class TokenSlice:
    """The consecutive tokens of a micro-batch that one rank of a context group holds.

    Attributes:
        tokens: of the slice, padding excluded.
        features: first and last + 1 of its image pads, counted from the first pad of its first image.
        predicted: (m,) which of the M response tokens are predicted from its tokens.
        responses: M, the response tokens of the whole micro-batch.
        slices: ranks that hold equally long slices.
    """

    tokens: int
    features: tuple[int, int]
    predicted: Tensor
    responses: int
    slices: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of one forward pass: B rows of L tokens, S samples with responses of up to T tokens, M in all.

    Packed rows are one row of these tensors.

    Attributes:
        input_ids: (B, L).
        mm_token_type_ids: (B, L), 1 on image pads, else 0.
        position_ids: (3, B, L) rotary positions in time, height and width.
        layout: which tokens see which.
        image_hashes: the images to be run through the vision tower.
        image_order: (occurrences,) which of them belongs to each run of pads, row by row; None without images.
        predict_index: (M,) position in the flattened (B * L) hidden states that predicts each response token.
        response_ids: (M,) in the order of `mask`.
        mask: (S, T) True on response tokens.
        behaviour_logprobs: (S, T), 0 where unknown.
        behaviour_known: (S, T) True where the engine recorded a log-probability.
        advantages: (S,).
        weights: (S,) of each sample in the sum of losses; 0 for rows that only fill up.
        stale: (S,) True where an older version than the trainer's sampled it.
        groups: (S,).
        supervised: (S,) True on demonstrations and a teacher's answers: the loss is their cross-entropy.
        taught: (S,) True on a teacher's answers.
        teacher_logprobs: (S, T), 0 where unknown.
        teacher_known: (S, T) True where a teacher said how likely the sampled token is.
        sample_index: (S,) place of each sample in the list that was collated.
        routing: (M, layers * k) experts that the engine's routers chose, -1 where unknown; None where all are.
        patches: makes the images' tensors.
        rows: that it was made of; packed ones lie in the one row of its tensors.
        part: the slice of a rank of a context group; None where the tensors are whole. With a slice, everything of
            shape (..., L) or (M, ...) holds the slice's alone, as one row; (S, ...) and `layout` are of the whole.
    """

    input_ids: Tensor
    mm_token_type_ids: Tensor
    position_ids: Tensor
    layout: Layout
    image_hashes: tuple[str, ...]
    image_order: Tensor | None
    predict_index: Tensor
    response_ids: Tensor
    mask: Tensor
    behaviour_logprobs: Tensor
    behaviour_known: Tensor
    advantages: Tensor
    weights: Tensor
    stale: Tensor
    groups: Tensor
    supervised: Tensor
    taught: Tensor
    teacher_logprobs: Tensor
    teacher_known: Tensor
    sample_index: Tensor
    routing: Tensor | None
    patches: ImagePatches
    rows: int
    part: TokenSlice | None = None

    @property
    def num_tokens(self) -> int:
        """Response tokens that this rank predicts."""
        return self.response_ids.numel()

    @property
    def slices(self) -> int:
        """Return how many ranks run equally long slices of it; 1 where this rank runs it whole."""
        return 1 if self.part is None else self.part.slices

    @property
    def fills_up(self) -> bool:
        """Return whether it only makes up the number of micro-batches: it does not count."""
        return not bool(self.weights.any())

    @property
    def reinforced(self) -> Tensor:
        """(S,) weights of the samples that are reinforced, 0 for the others."""
        return self.weights.masked_fill(self.supervised, 0.0)

    @property
    def demonstrated(self) -> Tensor:
        """(S,) weights of the demonstrations, 0 for the others."""
        return self.weights.masked_fill(~self.supervised | self.taught, 0.0)

    @property
    def targets(self) -> Tensor:
        """(S,) weights of a teacher's answers, 0 for the others."""
        return self.weights.masked_fill(~self.taught, 0.0)

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        if self.input_ids.device == device:
            return self
        values: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        values |= {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        if self.part is not None:
            values["part"] = replace(self.part, predicted=self.part.predicted.to(device))
        return MicroBatch(**values)

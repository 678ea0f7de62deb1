"""Steps -> tensors: exact token ids, padding, positions, images. What the engine saw is what is trained on.

A `Sample` is one step. Samples with equal prompts (the eight rollouts of a group start from the same screen) share
one row: the prompt once, then their responses as branches that see the prompt and themselves, never one another.
The result of a sample does not depend on the row, the micro-batch or the padding that it meets.

Invariants:
    - Nothing is tokenised here: ids are copied from the record.
    - Micro-batches hold at most `max_tokens` tokens with padding, unless a single row is longer.
    - Each distinct screenshot of a micro-batch goes through the vision tower once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dart_agent.engines.qwen import rope_positions
from dart_agent.tokens import ModelTokens
from dart_agent.vision import VisionSpec
from dart_train.trajectory import Step


@dataclass(frozen=True, slots=True)
class Sample:
    """One step to train on.

    Attributes:
        prompt_ids: token ids of the prompt, image pads expanded.
        image_hashes: content hash of each image of the prompt, in order.
        response_ids: sampled ids, the stop token included; at least one.
        logprobs: behaviour log-probability of each; empty where there was no behaviour policy.
        advantage: of the step, the same for all its tokens.
        group: number of its group in the optimizer batch.
        trajectory: number of its trajectory in the optimizer batch.
    """

    prompt_ids: tuple[int, ...]
    image_hashes: tuple[str, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    advantage: float = 0.0
    group: int = 0
    trajectory: int = 0

    @classmethod
    def from_step(cls, step: Step, *, advantage: float = 0.0, group: int = 0, trajectory: int = 0) -> Sample:
        """The sample of a recorded step."""
        return cls(
            step.prompt_ids, step.image_hashes, step.sampled_ids, step.logprobs, advantage, group, trajectory
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of one forward pass: B rows of L tokens, S samples with responses of up to T tokens, M in all.

    Attributes:
        input_ids: (B, L).
        mm_token_type_ids: (B, L), 1 on image pads, else 0.
        position_ids: (3, B, L) rotary positions in time, height and width.
        attention_mask: (B, L) of 0 and 1, or (B, 1, L, L) boolean where rows have branches.
        pixel_values: (patches, patch_dim) of the distinct images; None without images.
        image_grid_thw: (images, 3) of the distinct images; None without images.
        image_order: (occurrences,) which distinct image belongs to each run of pads, row by row.
        predict_index: (M,) position in the flattened (B * L) hidden states that predicts each response token.
        response_ids: (M,) in the order of `mask`.
        mask: (S, T) True on response tokens.
        behaviour_logprobs: (S, T), 0 where unknown.
        behaviour_known: (S, T) True where the engine recorded a log-probability.
        advantages: (S,).
        groups: (S,).
        sample_index: (S,) place of each sample in the list that was collated.
    """

    input_ids: Tensor
    mm_token_type_ids: Tensor
    position_ids: Tensor
    attention_mask: Tensor
    pixel_values: Tensor | None
    image_grid_thw: Tensor | None
    image_order: Tensor | None
    predict_index: Tensor
    response_ids: Tensor
    mask: Tensor
    behaviour_logprobs: Tensor
    behaviour_known: Tensor
    advantages: Tensor
    groups: Tensor
    sample_index: Tensor

    @property
    def num_tokens(self) -> int:
        """Response tokens."""
        return self.response_ids.numel()

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        if self.input_ids.device == device:
            return self
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return replace(self, **{name: value.to(device) for name, value in values.items() if value is not None})


class ImageCache:
    """Screenshots by content hash, the least recently used dropped above a limit.

    Args:
        load: reads a screenshot, such as `DataManager.load_image`.
        capacity_mb: most memory for pixels, in MiB.
    """

    def __init__(self, load: Callable[[str], NDArray[np.uint8]], capacity_mb: int = 512) -> None:
        self._load = load
        self._capacity = capacity_mb << 20
        self._images: OrderedDict[str, NDArray[np.uint8]] = OrderedDict()
        self._size = 0

    def get(self, image_hash: str) -> NDArray[np.uint8]:
        """The (H, W, 3) uint8 screenshot with this hash."""
        image = self._images.get(image_hash)
        if image is not None:
            self._images.move_to_end(image_hash)
            return image
        image = self._load(image_hash)
        self._images[image_hash] = image
        self._size += image.nbytes
        while self._size > self._capacity and len(self._images) > 1:
            self._size -= self._images.popitem(last=False)[1].nbytes
        return image


@dataclass(slots=True)
class _Row:
    """A prompt and the samples that answer it, by their place in the list."""

    prompt_ids: tuple[int, ...]
    image_hashes: tuple[str, ...]
    samples: list[int]
    length: int


class Collator:
    """Makes micro-batches of samples.

    Args:
        tokens: of the model.
        vision: of the model.
        images: where screenshots come from.
        share_prompts: whether samples with equal prompts share a row.
    """

    def __init__(
        self, tokens: ModelTokens, vision: VisionSpec, images: ImageCache, *, share_prompts: bool = True
    ) -> None:
        self._tokens = tokens
        self._vision = vision
        self._images = images
        self._share_prompts = share_prompts
        self._suppressed = frozenset(tokens.suppressed_ids)

    def micro_batches(self, samples: Sequence[Sample], max_tokens: int) -> list[MicroBatch]:
        """Cut samples into micro-batches of rows of similar length, the longest first.

        Raises:
            ValueError: a sample that cannot have come from this model's engine.
        """
        for sample in samples:
            self._check(sample)
        rows = sorted(self._rows(samples, max_tokens), key=lambda row: -row.length)
        batches, start = [], 0
        for end in range(1, len(rows) + 1):
            if end == len(rows) or (end + 1 - start) * rows[start].length > max_tokens:
                batches.append(self._tensors(rows[start:end], samples))
                start = end
        return batches

    def __call__(self, samples: Sequence[Sample]) -> MicroBatch:
        """All samples as one micro-batch."""
        (batch,) = self.micro_batches(samples, max_tokens=1 << 62)
        return batch

    def _check(self, sample: Sample) -> None:
        if not sample.response_ids or not sample.prompt_ids:
            raise ValueError("a sample needs a prompt and a response of at least one token: leave empty steps out")
        if sample.logprobs and len(sample.logprobs) != len(sample.response_ids):
            raise ValueError(f"{len(sample.logprobs)} log-probabilities for {len(sample.response_ids)} sampled tokens")
        if not self._suppressed.isdisjoint(sample.response_ids):
            raise ValueError(
                "a response holds a token that is never sampled (a special token): the rollout engine suppresses "
                "another set than the trainer; serve the same model directory to both"
            )

    def _rows(self, samples: Sequence[Sample], max_tokens: int) -> Iterable[_Row]:
        """Rows of samples; those with equal prompts together as long as a row fits into a micro-batch."""
        open_rows: dict[tuple[tuple[int, ...], tuple[str, ...]], _Row] = {}
        done: list[_Row] = []
        for index, sample in enumerate(samples):
            # The last token of a response predicts nothing, so it is not part of the input.
            extra = len(sample.response_ids) - 1
            key = (sample.prompt_ids, sample.image_hashes)
            row = open_rows.get(key) if self._share_prompts else None
            if row is not None and row.length + extra <= max_tokens:
                row.samples.append(index)
                row.length += extra
                continue
            row = _Row(sample.prompt_ids, sample.image_hashes, [index], len(sample.prompt_ids) + extra)
            open_rows[key] = row
            done.append(row)
        return done

    def _tensors(self, rows: list[_Row], samples: Sequence[Sample]) -> MicroBatch:
        count, length = len(rows), max(row.length for row in rows)
        ids = np.full((count, length), self._tokens.pad_id, np.int64)
        positions = np.zeros((3, count, length), np.int64)
        branches = np.full((count, length), -1, np.int64)  # 0 the prompt, 1... its responses, -1 padding
        predict: list[NDArray[np.int64]] = []
        for number, row in enumerate(rows):
            self._fill(row, samples, ids[number], positions[:, number], branches[number], predict, number * length)
        order = [index for row in rows for index in row.samples]
        pixel_values, grids, image_order = self._pixels([h for row in rows for h in row.image_hashes])
        pads = (ids == self._tokens.image_pad_id) & (branches == 0)
        response_tensors = _response_tensors([samples[index] for index in order])
        return MicroBatch(
            input_ids=torch.from_numpy(ids),
            mm_token_type_ids=torch.from_numpy(pads.astype(np.int64)),
            position_ids=torch.from_numpy(positions),
            attention_mask=torch.from_numpy(_attention(branches)),
            pixel_values=pixel_values,
            image_grid_thw=grids,
            image_order=image_order,
            predict_index=torch.from_numpy(np.concatenate(predict)),
            sample_index=torch.tensor(order),
            **response_tensors,
        )

    def _fill(
        self,
        row: _Row,
        samples: Sequence[Sample],
        ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        branches: NDArray[np.int64],
        predict: list[NDArray[np.int64]],
        offset: int,
    ) -> None:
        """Write one row into its slices, and append where its response tokens are predicted (plus `offset`)."""
        prompt = np.asarray(row.prompt_ids, np.int64)
        end = len(prompt)
        grids = [self._vision.grid(self._images.get(image_hash)) for image_hash in row.image_hashes]
        self._check_pads(prompt, grids)
        ids[:end] = prompt
        positions[:, :end] = rope_positions(prompt, grids, self._tokens.image_pad_id, self._vision.merge_size)
        branches[:end] = 0
        first = int(positions[:, :end].max()) + 1
        start = end
        for branch, index in enumerate(row.samples, 1):
            response = samples[index].response_ids
            extra = len(response) - 1
            ids[start : start + extra] = response[:-1]
            positions[:, start : start + extra] = np.arange(first, first + extra)
            branches[start : start + extra] = branch
            predict.append(np.concatenate(([end - 1], np.arange(start, start + extra))) + offset)
            start += extra

    def _check_pads(self, prompt: NDArray[np.int64], grids: list[tuple[int, int, int]]) -> None:
        pads = int((prompt == self._tokens.image_pad_id).sum())
        need = sum(frames * height * width for frames, height, width in grids) // self._vision.merge_size**2
        if pads != need:
            raise ValueError(
                f"a prompt has {pads} image pads, its images need {need}: it was recorded with another model or "
                "image processor than the one trained"
            )

    def _pixels(self, hashes: list[str]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Patches and grids of the distinct images, and which of them each occurrence is."""
        if not hashes:
            return None, None, None
        distinct = {image_hash: place for place, image_hash in enumerate(dict.fromkeys(hashes))}
        images = [self._images.get(image_hash) for image_hash in distinct]
        patches = np.concatenate([self._vision.patchify(image) for image in images])
        grids = torch.tensor([self._vision.grid(image) for image in images])
        return torch.from_numpy(patches), grids, torch.tensor([distinct[image_hash] for image_hash in hashes])


def _attention(branches: NDArray[np.int64]) -> NDArray[np.generic]:
    """The attention mask: of rows without branches (B, L), else (B, 1, L, L).

    A token sees what lies before it in its prompt and in its own branch; padding sees itself, so that no row of the
    softmax is empty.
    """
    if branches.max(initial=0) <= 1:
        return (branches >= 0).astype(np.int64)
    length = branches.shape[1]
    same = branches[:, :, None] == branches[:, None, :]
    prompt = (branches[:, None, :] == 0) & (branches[:, :, None] >= 0)
    allowed = (same | prompt) & np.tril(np.ones((length, length), bool))
    return (allowed & (branches[:, None, :] >= 0) | np.eye(length, dtype=bool))[:, None]


def _response_tensors(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Everything of a micro-batch that has the shape of its responses."""
    lengths = np.array([len(sample.response_ids) for sample in samples])
    mask = np.arange(lengths.max()) < lengths[:, None]
    known = mask & np.array([bool(sample.logprobs) for sample in samples])[:, None]
    behaviour = np.zeros(mask.shape, np.float32)
    behaviour[known] = [logprob for sample in samples for logprob in sample.logprobs]
    return {
        "response_ids": torch.tensor([token for sample in samples for token in sample.response_ids]),
        "mask": torch.from_numpy(mask),
        "behaviour_logprobs": torch.from_numpy(behaviour),
        "behaviour_known": torch.from_numpy(known),
        "advantages": torch.tensor([sample.advantage for sample in samples], dtype=torch.float32),
        "groups": torch.tensor([sample.group for sample in samples]),
    }

"""Steps -> tensors: exact token ids, padding, positions, images. Training uses exactly what the engine saw.

How samples share rows is decided in `samples.py`; here rows become tensors. The result of a sample does not depend on
the row, the micro-batch or the padding that it meets.

Invariants:
    - Nothing is tokenised here: ids are copied from the record.
    - Micro-batches hold at most `max_tokens` tokens with padding, unless a single row is longer.
    - Each distinct screenshot of a micro-batch goes through the vision tower once.
    - A micro-batch holds hashes of screenshots; their patches are made when it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dart_agent.engines.base import expert_routing
from dart_agent.engines.embedded.qwen_runner import rope_positions
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_train.trainer.attention.kernels import Layout
from dart_train.trainer.attention.segments import Segment
from dart_train.trainer.batches.image_cache import ImageCache, ImagePatches
from dart_train.trainer.batches.micro_batch import MicroBatch
from dart_train.trainer.batches.samples import Chain, Row, Sample, bad_logprobs, rows
from dart_train.trainer.batches.token_slices import slice_of

__all__ = ["Collator", "ImageCache", "MicroBatch", "Problem", "Sample", "equal_counts"]

PADDING = 256
"""So many tokens of padding a row may always have: a forward pass of few tokens costs more than they do."""
PROBLEMS = (
    "empty_response",
    "unknown_token",
    "bad_logprobs",
    "bad_routing",
    "special_token",
    "image_tokens",
    "image_size",
    "too_long",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a sample cannot be trained on."""

    reason: str
    text: str


class Collator:
    """Makes micro-batches of samples.

    Args:
        share_prompts: whether chains with equal first prompts share a row; needs attention that takes a mask.
        merge_prefixes: whether steps that extend one another become one row.
        distinct_images: whether an image that occurs several times in a micro-batch runs through the tower once.
        max_length: positions of the model; longer steps are refused. None for no limit.
        padding_side: where rows are filled up. It changes no result.
        pack_rows: whether the rows of a micro-batch are laid one after the other instead of being filled up.
        routing_width: experts that compute a token in all layers together, where they are taken as the engine recorded
            them; 0 where the model's own routers choose.
        context: place of this rank in its context group, and the number of its ranks: micro-batches are slices.
    """

    def __init__(
        self,
        tokens: ModelTokens,
        vision: VisionSpec,
        images: ImageCache,
        *,
        share_prompts: bool = True,
        merge_prefixes: bool = True,
        distinct_images: bool = True,
        max_length: int | None = None,
        padding_side: Literal["right", "left"] = "right",
        pack_rows: bool = False,
        routing_width: int = 0,
        context: tuple[int, int] = (0, 1),
    ) -> None:
        self._tokens = tokens
        self.load_screen = images.get
        self.patches = ImagePatches(vision, images)
        self._share_prompts, self._merge_prefixes = share_prompts, merge_prefixes
        self._distinct_images, self._max_length = distinct_images, max_length
        self._left = padding_side == "left"
        self._pack = pack_rows
        self._routing_width = routing_width
        self._context = context
        self._suppressed, self._actor = frozenset(tokens.suppressed_ids), tokens.actor_id

    def problem(self, sample: Sample) -> Problem | None:
        """Why a sample cannot have come from this model's engine, or cannot be trained on; None if it can."""
        if not sample.response_ids or not sample.prompt_ids:
            text = "a sample needs a prompt and a response of at least one token: leave empty steps out"
            return Problem("empty_response", text)
        highest = self._tokens.highest_id
        pointing = sample.prompt_ids[-1] == self._actor  # its response is the number of a patch
        ids = (*sample.prompt_ids, *(() if pointing else sample.response_ids))
        if not 0 <= min(ids) <= max(ids) <= highest:
            foreign = next(one for one in ids if not 0 <= one <= highest)
            return Problem(
                "unknown_token",
                f"a sample holds the id {foreign}, and the tokenizer ends at {highest}: it was recorded with another "
                "model, or by an engine that samples from the padding of the model's head",
            )
        if text := bad_logprobs(sample):
            return Problem("bad_logprobs", text)
        if not pointing and not self._suppressed.isdisjoint(sample.response_ids):
            return Problem(
                "special_token",
                "a response holds a token that is never sampled (special or none): the rollout engine suppresses "
                "another set than the trainer; serve the same model directory to both",
            )
        if (
            self._routing_width
            and sample.routing
            and len(sample.routing) != expert_routing.size(len(sample.response_ids), self._routing_width)
        ):
            return Problem(
                "bad_routing",
                f"a sample of {len(sample.response_ids)} tokens has {len(sample.routing)} bytes of experts, and "
                f"{self._routing_width} experts compute a token of this model: it was recorded with another one",
            )
        if self._max_length is not None and sample.length > self._max_length:
            return Problem(
                "too_long",
                f"a step of {sample.length} tokens is longer than the model's {self._max_length} positions: keep fewer "
                "screenshots or texts in the prompt",
            )
        return self._wrong_pads(sample)

    def _wrong_pads(self, sample: Sample) -> Problem | None:
        """Return whether each run of image pads fits its own image, which detects swapped images of unequal size."""
        pads = np.flatnonzero(np.asarray(sample.prompt_ids) == self._tokens.image_pad_id)
        breaks = np.flatnonzero(np.diff(pads) > 1) + 1
        runs = [len(run) for run in np.split(pads, breaks)] if len(pads) else []
        try:
            need = [self.patches.num_tokens(image_hash) for image_hash in sample.image_hashes]
        except ValueError as error:
            return Problem("image_size", f"an image cannot be what this model was shown: {error}")
        if runs == need:
            return None
        return Problem(
            "image_tokens",
            f"a prompt has {len(pads)} image pads in runs of {runs}, its images need {sum(need)} in {need}: it was "
            "recorded with another model or image processor than the one trained, or its images are not its own",
        )

    def micro_batches(self, samples: Sequence[Sample], max_tokens: int, *, checked: bool = False) -> list[MicroBatch]:
        """Cut samples into micro-batches of rows of similar length, the longest first; `max_tokens` counts padding.

        It raises `ValueError` for a sample with a `problem`, unless the caller has `checked` them.
        """
        for sample in () if checked else samples:
            if problem := self.problem(sample):
                raise ValueError(problem.text)
        found = rows(samples, max_tokens, merge=self._merge_prefixes, share=self._share_prompts)
        whole = (self._tensors(part, samples) for part in _cut(found, max_tokens, packed=self._pack))
        return [slice_of(batch, *self._context) for batch in whole]

    def __call__(self, samples: Sequence[Sample]) -> MicroBatch:
        """All samples as one micro-batch."""
        (batch,) = self.micro_batches(samples, max_tokens=1 << 62)
        return batch

    def _tensors(self, batch: list[Row], samples: Sequence[Sample]) -> MicroBatch:
        count, length = len(batch), max(row.length for row in batch)
        if self._pack:
            count, length = 1, sum(row.length for row in batch)
        ids = np.full((count, length), self._tokens.pad_id, np.int64)
        positions = np.zeros((3, count, length), np.int64)
        segments: list[Segment] = []
        predict: list[NDArray[np.int64]] = []
        hashes: list[str] = []
        begin = 0  # in the flattened micro-batch
        for number, row in enumerate(batch):
            if not self._pack:
                begin = number * length + (length - row.length if self._left else 0)
            part = slice(begin, begin + row.length)
            places, images = self._fill(row, samples, ids.reshape(-1)[part], positions.reshape(3, -1)[:, part])
            segments += _segments(row, samples, begin)
            predict += [place + begin for place in places]
            hashes += images
            begin += row.length
        order = [index for row in batch for chain in row.chains for index in chain.samples]
        responses: dict[str, Any] = _response_tensors([samples[index] for index in order])
        distinct = tuple(dict.fromkeys(hashes)) if self._distinct_images else tuple(hashes)
        which = [distinct.index(name) for name in hashes] if self._distinct_images else list(range(len(hashes)))
        return MicroBatch(
            input_ids=torch.from_numpy(ids),
            mm_token_type_ids=torch.from_numpy((ids == self._tokens.image_pad_id).astype(np.int64)),
            position_ids=torch.from_numpy(positions),
            layout=Layout(segments, ids.size),
            rows=len(batch),
            image_hashes=distinct,
            image_order=torch.tensor(which) if which else None,
            predict_index=torch.from_numpy(np.concatenate(predict)),
            sample_index=torch.tensor(order),
            patches=self.patches,
            routing=_routing([samples[index] for index in order], self._routing_width),
            **responses,
        )

    def _fill(
        self, row: Row, samples: Sequence[Sample], ids: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[list[NDArray[np.int64]], list[str]]:
        """Write one row into its slices; returns where the tokens of each response are predicted, and its images."""
        first = samples[row.chains[0].samples[0]]
        shared, start = len(first.prompt_ids), len(first.prompt_ids)
        predict: list[NDArray[np.int64]] = []
        hashes = list(first.image_hashes)
        for chain in row.chains:
            sequence, places = self._sequence(chain, samples)
            end = start + len(sequence) - shared
            ids[:shared], ids[start:end] = sequence[:shared], sequence[shared:]
            positions[:, :shared], positions[:, start:end] = places[:, :shared], places[:, shared:]
            for index in chain.samples:
                prompt, response = len(samples[index].prompt_ids), len(samples[index].response_ids)
                place = np.arange(prompt - 1, prompt - 1 + response)
                predict.append(np.where(place < shared, place, place + start - shared))
            hashes += samples[chain.samples[-1]].image_hashes[len(first.image_hashes) :]
            start = end
        return predict, hashes

    def _sequence(self, chain: Chain, samples: Sequence[Sample]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(L,) ids of a chain, those of its longest sample, and their (3, L) positions."""
        last = samples[chain.samples[-1]]
        sequence = np.asarray((*last.prompt_ids, *last.response_ids[:-1]), np.int64)
        grids = [self.patches.grid(image_hash) for image_hash in last.image_hashes]
        merge = self.patches.vision.merge_size
        return sequence, rope_positions(sequence, grids, self._tokens.image_pad_id, merge)


def _cut(found: Sequence[Row], max_tokens: int, *, packed: bool) -> Iterator[list[Row]]:
    """Rows in parts of at most `max_tokens`, the longest first; where they are filled up, similar ones together."""
    part: list[Row] = []
    for row in sorted(found, key=lambda row: -row.length):
        longest = part[0].length if part else row.length
        padding = longest - row.length
        full = sum(other.length for other in part) + row.length if packed else (len(part) + 1) * longest
        if part and (full > max_tokens or (not packed and padding > max(PADDING, longest // 4))):
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def equal_counts(batches: Sequence[MicroBatch], count: int) -> list[MicroBatch]:
    """As many micro-batches as every other rank has, by copies of the smallest with weight 0.

    Ranks that run a different number of forward passes wait for one another for ever; a row of weight 0 takes part in
    every collective operation and changes nothing.

    Raises:
        ValueError: there is nothing to copy, or `count` is less than there are.
    """
    if not batches or count < len(batches):
        raise ValueError(
            f"cannot make {count} micro-batches of {len(batches)}: every rank needs one of its own at least, and "
            "`count` is the largest number of any rank"
        )
    smallest = min(batches, key=lambda batch: batch.input_ids.numel())
    filling = replace(smallest, weights=torch.zeros_like(smallest.weights))
    return [*batches, *[filling] * (count - len(batches))]


def count_problems(problems: Sequence[Problem]) -> dict[str, float]:
    """Return the number of dropped samples by "dropped/" and the reason; reasons without samples are 0."""
    found = Counter(problem.reason for problem in problems)
    return {f"dropped/{reason}": float(found[reason]) for reason in PROBLEMS}


def _segments(row: Row, samples: Sequence[Sample], begin: int) -> list[Segment]:
    """Return which tokens of a row attend to which; a row of one chain is one segment."""
    if len(row.chains) == 1:
        return [Segment(begin, begin + row.length)]
    shared = begin + len(samples[row.chains[0].samples[0]].prompt_ids)
    found, start = [Segment(begin, shared)], shared
    for chain in row.chains:
        stop = start + samples[chain.samples[-1]].length - (shared - begin)
        if stop > start:  # a response of one token is predicted by the prompt and is no input
            found.append(Segment(start, stop, begin, shared))
        start = stop
    return found


def _response_tensors(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Everything of a micro-batch that has the shape of its responses."""
    lengths = np.array([len(sample.response_ids) for sample in samples])
    mask = np.arange(lengths.max()) < lengths[:, None]
    behaviour, known = _padded([sample.logprobs for sample in samples], mask)
    teacher, judged = _padded([sample.teacher_logprobs for sample in samples], mask)
    return {
        "response_ids": torch.tensor([token for sample in samples for token in sample.response_ids]),
        "mask": torch.from_numpy(mask),
        "behaviour_logprobs": behaviour,
        "behaviour_known": known,
        "taught": torch.tensor([sample.taught for sample in samples]),
        "teacher_logprobs": teacher,
        "teacher_known": judged,
        "advantages": torch.tensor([sample.advantage for sample in samples], dtype=torch.float32),
        "weights": torch.tensor([sample.weight for sample in samples], dtype=torch.float32),
        "stale": torch.tensor([sample.stale for sample in samples]),
        "groups": torch.tensor([sample.group for sample in samples]),
        "supervised": torch.tensor([sample.supervised for sample in samples]),
    }


def _routing(samples: Sequence[Sample], width: int) -> Tensor | None:
    """(M, width) recorded experts, -1 where a sample has none; None where nobody asks, or no sample has any."""
    if not width or not any(sample.routing for sample in samples):
        return None
    parts = [
        expert_routing.unpack(sample.routing, len(sample.response_ids))
        if sample.routing
        else np.full((len(sample.response_ids), width), -1)
        for sample in samples
    ]
    return torch.from_numpy(np.concatenate(parts))


def _padded(rows: Sequence[Sequence[float]], mask: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """(S, T) numbers of rows that have one for each token of the mask or none, and where they are known."""
    known = mask & np.array([bool(row) for row in rows])[:, None]
    values = np.zeros(mask.shape, np.float32)
    values[known] = [value for row in rows for value in row]
    return torch.from_numpy(values), torch.from_numpy(known)

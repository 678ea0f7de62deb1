"""The slice of a micro-batch that one rank of a context group runs: its tokens, their images and their responses. Pure.

Rows are laid one after the other and cut into equally long slices, one for each rank, whatever lies at the cut: a
prompt, a response, an image. All slices together are the micro-batch; what fills up the last one is in no segment.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

from torch import Tensor
from torch.nn.functional import pad

from dart_train.trainer.attention.kernels import Layout
from dart_train.trainer.batches.micro_batch import MicroBatch, TokenSlice


def slice_of(batch: MicroBatch, place: int, slices: int) -> MicroBatch:
    """Return what one rank of a context group runs of a whole micro-batch.

    An image that lies across a cut is run by both ranks, each for its own tokens. All others are run by one rank for
    each slice that they occur in.

    Args:
        batch: whole.
        place: of the rank in its group.
        slices: ranks of the group; 1 returns the batch as it is.
    """
    if slices == 1:
        return batch
    places = batch.input_ids.numel()
    length = -(-places // slices)
    first, stop = place * length, (place + 1) * length

    def cut(whole: Tensor) -> Tensor:
        """(..., B, L) -> (..., 1, length), filled up with 0."""
        return pad(whole.flatten(-2), (0, slices * length - places))[..., None, first:stop]

    hashes, order, features = _images(batch, first, stop)
    inside = ((batch.predict_index >= first) & (batch.predict_index < stop)).nonzero()[:, 0]
    tokens = sum(max(min(part.stop, stop) - max(part.start, first), 0) for part in batch.layout.segments)
    return replace(
        batch,
        input_ids=cut(batch.input_ids),
        mm_token_type_ids=cut(batch.mm_token_type_ids),
        position_ids=cut(batch.position_ids),
        layout=Layout(batch.layout.segments, slices * length),
        image_hashes=hashes,
        image_order=order,
        predict_index=batch.predict_index[inside] - first,
        response_ids=batch.response_ids[inside],
        routing=None if batch.routing is None else batch.routing[inside],
        part=TokenSlice(tokens, features, inside, len(batch.response_ids), slices),
    )


def _images(batch: MicroBatch, first: int, stop: int) -> tuple[tuple[str, ...], Tensor | None, tuple[int, int]]:
    """Return the images of the places from `first` to `stop`, their order, and which of their pads lie there."""
    if batch.image_order is None:
        return (), None, (0, 0)
    pads = batch.mm_token_type_ids.flatten()
    low = int(pads[:first].sum())
    high = low + int(pads[first:stop].sum())
    shown = batch.image_order.tolist()
    ends = [0, *accumulate(batch.patches.num_tokens(batch.image_hashes[image]) for image in shown)]
    inside = [number for number, (begin, end) in enumerate(pairwise(ends)) if begin < high and end > low]
    if not inside or low == high:
        return (), None, (0, 0)
    used = list(dict.fromkeys(shown[number] for number in inside))
    order = batch.image_order.new_tensor([used.index(shown[number]) for number in inside])
    begin = ends[inside[0]]
    return tuple(batch.image_hashes[image] for image in used), order, (low - begin, high - begin)

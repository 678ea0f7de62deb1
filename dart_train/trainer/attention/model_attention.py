"""A model's attention through our kernels: in the text layers by segments, in the tower by windows as batches.

transformers looks functions of attention up by the name in a part's configuration. Two are registered here. They
compute the same, so a model that was taken over still runs as it is: its own forward pass, generation, another
library's trainer.

The published towers make one call for each window of each image: 5,044 for a screenshot of 1932x1092 in Qwen2.5-VL-7B.
Here all windows of one size are one call, and what lies at the edges another.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from dart_train.trainer.attention.kernels import Attention, flash_varlen, half_type, of_one_type
from dart_train.trainer.attention.recurrent_layers import take_over_recurrent
from dart_train.trainer.attention.routing_replay import take_over_routers
from dart_train.trainer.attention.segments import KernelName

TEXT = "dart_segments"
# With "flash" in its name transformers hands over where windows begin and end, instead of calling once for each.
TOWER = "dart_flash_windows"


def take_over(model: Any) -> None:
    """Let the attention of a model without peft around it go through our kernels: the result stays. Idempotent."""
    model.model.language_model.config._attn_implementation = TEXT
    model.model.visual.config._attn_implementation = TOWER
    take_over_recurrent(model.model.language_model)
    take_over_routers(model.model.language_model)


@contextmanager
def as_published(model: Any) -> Iterator[None]:
    """The model with transformers' own sdpa everywhere, as a reference for other kernels."""
    parts = [model.model.language_model.config, model.model.visual.config]
    before = [part._attn_implementation for part in parts]
    for part in parts:
        part._attn_implementation = "sdpa"
    try:
        yield
    finally:
        for part, name in zip(parts, before, strict=True):
            part._attn_implementation = name


def _text(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    segments: Attention | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of a text layer; without segments transformers' own."""
    if segments is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    return segments(query, key, value, scaling), None


def _tower(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor,
    scaling: float | None = None,
    kernel: KernelName = "sdpa",
    max_length_q: int = 0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of a block of the tower: (1, heads, patches, head size) in windows, or whole images."""
    if kernel in ("flash_attention_2", "flash_attention_3"):
        ends = cu_seq_lens_q.to(torch.int32)
        flat = [part[0].transpose(0, 1) for part in of_one_type(query, key, value)]
        half = half_type(flat[0].dtype)
        mixed = flash_varlen(kernel)(
            *(part.to(half) for part in flat), ends, ends, max_length_q, max_length_q, softmax_scale=scaling
        )
        mixed = mixed[0] if isinstance(mixed, tuple) else mixed
        return mixed.to(flat[0].dtype)[None], None
    return windows_as_batches(query, key, value, cu_seq_lens_q, scaling), None


def windows_as_batches(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, scaling: float | None) -> Tensor:
    """Attention within windows, in two calls at most for any number of them.

    Windows of the most frequent size are one batch without a mask. The rest, those at the edges of images, are filled
    up to the longest of them, and a mask hides what was filled up.
    """
    flat = [part[0].transpose(0, 1) for part in of_one_type(query, key, value)]
    out = torch.zeros_like(flat[0])
    for places, real in _batches(ends):
        asking, asked, values = (part[places].transpose(1, 2) for part in flat)
        mask = None if real is None else real[:, None, None]
        mixed = F.scaled_dot_product_attention(asking, asked, values, attn_mask=mask, scale=scaling).transpose(1, 2)
        mixed, own_places = (mixed.flatten(0, 1), places.flatten()) if real is None else (mixed[real], places[real])
        out = out.index_copy(0, own_places, mixed.to(out.dtype))
    return out[None]


def _batches(ends: Tensor) -> list[tuple[Tensor, Tensor | None]]:
    """(windows, size) places of patches, and which are real (None: all); kept with the tensor, since a GPU waits."""
    found = getattr(ends, "dart_batches", None)
    if found is None:
        found = ends.dart_batches = list(_window_batches(ends))  # type: ignore[attr-defined]
    return found


def _window_batches(ends: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
    starts, lengths = ends[:-1].long(), ends.diff().long()
    sizes, counts = lengths.unique(return_counts=True)
    usual = sizes[counts.argmax()]
    for chosen in (lengths == usual, lengths != usual):
        if not bool(chosen.any()):
            continue
        steps = torch.arange(int(lengths[chosen].max()), device=ends.device)
        real = steps < lengths[chosen, None]
        yield starts[chosen, None] + steps.where(real, 0), None if bool(real.all()) else real


AttentionInterface.register(TEXT, _text)
AttentionMaskInterface.register(TEXT, sdpa_mask)
AttentionInterface.register(TOWER, _tower)

"""The kernels by name, each a function of queries, keys, values and segments; what is not there is refused by name.

| name                | where            | what it takes                                                        |
|---------------------|------------------|----------------------------------------------------------------------|
| `sdpa`              | CPU, GPU         | PyTorch only: one call for all segments of one shape                 |
| `flash_attention_2` | GPU, half types  | the package `flash-attn`: one call of variable length                |
| `flash_attention_3` | Hopper GPU, half | the package `flash-attn-3`: the same                                 |
| `flex_attention`    | GPU              | PyTorch only: compiled, blocks of 128; on a CPU forward passes alone |

All compute the same numbers up to rounding, in all layouts.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from dart_train.core.train_errors import TrainingError
from dart_train.trainer.attention.context_group import ContextGroup
from dart_train.trainer.attention.routing_replay import Replay
from dart_train.trainer.attention.segments import KERNELS, KernelName, Segment, alike, bounds, joined

STRIP = 256
"""Queries of a branch that see its prompt in one call on a CPU: their mask is this high, and as wide as the row."""

_FLASH = {
    "flash_attention_2": ("flash_attn", "flash-attn"),
    "flash_attention_3": ("flash_attn_interface", "flash-attn-3"),
}
"""Name of a kernel -> module that holds `flash_attn_varlen_func`, and the package that it comes from."""


def check_kernel(name: str, device: torch.device, *, half: bool) -> None:
    """Refuse a kernel that cannot train here, before loading anything. Raises `TrainingError` with the reason."""
    if name not in KERNELS:
        raise TrainingError(f"attention={name!r} is unknown; choose one of {', '.join(KERNELS)}")
    if name == "sdpa":
        return
    if device.type != "cuda":
        raise TrainingError(f"attention={name!r} trains on a GPU only, and this is {device.type}: set attention: sdpa")
    if name in _FLASH:
        if not half:
            raise TrainingError(
                f"attention={name!r} computes in half precision only: set bf16: true, or attention: sdpa"
            )
        flash_varlen(name)


def choose_backends(device: torch.device) -> None:
    """Leave cuDNN's kernels out of PyTorch's own attention on a GPU, in this process.

    Under activation checkpointing their output may have another layout when it is computed again, which the backward
    pass refuses; FlashAttention's kernels in PyTorch are as fast.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def at_hand(device: torch.device, dtype: torch.dtype) -> list[KernelName]:
    """The kernels that can run forward passes on this machine, for a comparison of all of them."""
    found: list[KernelName] = []
    for name in KERNELS:
        try:
            if name != "flex_attention":
                check_kernel(name, device, half=dtype in (torch.bfloat16, torch.float16))
        except TrainingError:
            continue
        found.append(name)
    return found


def of_one_type(*parts: Tensor) -> tuple[Tensor, ...]:
    """Cast queries, keys and values to the type that a kernel computes in: autocast's where it is on, else the widest.

    Under autocast with float32 weights, layers hand over values in half precision and queries and keys that rotary
    embeddings have made float32 again. Autocast would cast them inside PyTorch's own function, but FlexAttention and
    `CausalBias` compare their types before that.
    """
    widest = functools.reduce(torch.promote_types, (part.dtype for part in parts))
    device = parts[0].device.type
    if torch.is_autocast_enabled(device) and widest is not torch.float64:  # which autocast leaves as it is, too
        widest = torch.get_autocast_dtype(device)
    return tuple(part.to(widest) for part in parts)


def half_type(dtype: torch.dtype) -> torch.dtype:
    """The half precision in which FlashAttention computes what is given in this type."""
    return dtype if dtype in (torch.float16, torch.bfloat16) else torch.get_autocast_dtype("cuda")


def needs_masks(device: torch.device) -> bool:
    """Return whether `sdpa` needs a mask in memory for branches: a GPU's kernels know their alignment."""
    return device.type == "cpu"


@dataclass(eq=False)
class Layout:
    """The segments of a micro-batch with its padding, and what kernels prepare once from them."""

    segments: Sequence[Segment]
    places: int
    _prepared: dict[Any, Any] = field(default_factory=dict, repr=False)

    def prepared(self, kernel: str, device: torch.device, make: Callable[[], Any]) -> Any:
        """Return what a kernel made of the segments before, or makes of them now."""
        key = kernel, device
        if key not in self._prepared:
            self._prepared[key] = make()
        return self._prepared[key]

    @property
    def mask_bytes(self) -> int:
        """Bytes of the masks of `sdpa`, which all layers share, once a pass has made them."""
        plans = [plan for plan in self._prepared.values() if isinstance(plan, _SdpaPlan)]
        return sum(plan.mask.nbytes for plan in plans if plan.mask is not None)


@dataclass(frozen=True, slots=True)
class Attention:
    """Data of a forward pass that reaches the layers of attention, and of experts, through the model.

    Attributes:
        context: the ranks that share the rows; None where this one has whole rows.
    """

    layout: Layout
    kernel: KernelName = "sdpa"
    replay: Replay | None = None
    context: ContextGroup | None = None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Mix values.

        Args:
            query: (B, heads, L, head size).
            key: (B, key-value heads, L, head size).
            value: of the same shape.
            scaling: of the products of queries and keys; None for one over the root of the head size.

        Returns:
            (B, L, heads, head size) in the type that `of_one_type` computes in; padding has zeros or values of its own.
        """
        batch, _, length, _ = query.shape
        flat = tuple(part.transpose(1, 2).flatten(0, 1) for part in of_one_type(query, key, value))
        if self.context is not None:
            flat = self.context.whole_rows(*flat)
        mixed = FLEX_COMPUTE[self.kernel](self, *flat, scaling)
        if self.context is not None:
            mixed = self.context.own_tokens(mixed)
        return mixed.unflatten(0, (batch, length))

    def _sdpa(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """All of (places, heads, head size); segments of one shape are one call."""
        device = query.device
        plan: _SdpaPlan = self.layout.prepared(f"sdpa {query.dtype}", device, lambda: _SdpaPlan.of(self.layout, query))
        compute = partial(F.scaled_dot_product_attention, scale=scaling, enable_gqa=key.shape[1] != query.shape[1])
        done: list[Tensor] = []
        for queries, keys in plan.parts:
            own, seen, mixed = (x.transpose(1, 2) for x in (query[queries], key[keys], value[keys]))
            length, count = queries.shape[1], keys.shape[1]
            if length == count:
                found = compute(own, seen, mixed, is_causal=True)
            elif plan.mask is None:  # a GPU's kernels know this alignment
                found = compute(own, seen, mixed, attn_mask=causal_lower_right(length, count))
            else:
                found = torch.cat(
                    [
                        compute(
                            own[:, :, low:high],
                            seen[:, :, :stop],
                            mixed[:, :, :stop],
                            attn_mask=plan.mask[low - high :, -stop:],
                        )
                        for low, high, stop in _strips(length, count)
                    ],
                    2,
                )
            done.append(found.transpose(1, 2).flatten(0, 1))
        return torch.zeros_like(query).index_copy(0, plan.places, torch.cat(done).to(query.dtype))

    def _flash(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """The same by one call of variable length, whose causal mask is aligned at each segment's lower right."""
        plan: _FlashPlan = self.layout.prepared("flash", query.device, lambda: _FlashPlan.of(self.layout, query.device))
        half = half_type(query.dtype)
        mixed = flash_varlen(self.kernel)(
            query[plan.queries].to(half),
            key[plan.keys].to(half),
            value[plan.keys].to(half),
            plan.query_ends,
            plan.key_ends,
            plan.longest_query,
            plan.longest_key,
            softmax_scale=scaling,
            causal=True,
        )
        mixed = mixed[0] if isinstance(mixed, tuple) else mixed
        return torch.zeros_like(query).index_copy(0, plan.queries, mixed.to(query.dtype))

    def _flex(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """The same by blocks: blocks that no query sees are skipped, the others evaluate the mask."""
        compute, make_mask = _flex(query.device.type == "cuda")
        mask = self.layout.prepared("flex", query.device, lambda: make_mask(self.layout, query.device))
        own = [part.transpose(0, 1)[None] for part in (query, key, value)]
        mixed = compute(*own, block_mask=mask, scale=scaling, enable_gqa=key.shape[1] != query.shape[1])
        return mixed[0].transpose(0, 1)


FLEX_COMPUTE: dict[str, Callable[..., Tensor]] = {
    "sdpa": Attention._sdpa,
    "flash_attention_2": Attention._flash,
    "flash_attention_3": Attention._flash,
    "flex_attention": Attention._flex,
}


@dataclass(frozen=True, slots=True)
class _SdpaPlan:
    """The calls of `sdpa`.

    Attributes:
        parts: of each call the (count, length) places of queries and the (count, keys) places of keys.
        places: (tokens,) of all queries, call by call.
        mask: (STRIP, keys) to be added to products, of which every strip of queries takes its lower right corner; None
            where nothing needs one.
    """

    parts: list[tuple[Tensor, Tensor]]
    places: Tensor
    mask: Tensor | None

    @classmethod
    def of(cls, layout: Layout, like: Tensor) -> _SdpaPlan:
        same = alike(layout.segments)
        parts = [
            (torch.from_numpy(part.queries).to(like.device), torch.from_numpy(part.keys).to(like.device))
            for part in same
        ]
        longest = max((part.keys.shape[1] for part in same if part.seen), default=0)
        mask = None
        if longest and needs_masks(like.device):
            mask = _corner(STRIP, -(-longest // 1024) * 1024, like.dtype)
        return cls(parts, torch.cat([queries.flatten() for queries, _ in parts]), mask)


@lru_cache(maxsize=8)
def _corner(height: int, width: int, dtype: torch.dtype) -> Tensor:
    """(height, width) to be added to products, shared by micro-batches: the last row sees the last column, ..."""
    hidden = torch.ones(height, width, dtype=torch.bool).tril(width - height).logical_not()
    return torch.zeros(height, width, dtype=dtype).masked_fill(hidden, -torch.inf)


def _strips(length: int, keys: int) -> Iterator[tuple[int, int, int]]:
    """(first, last) of at most `STRIP` queries each, and how many keys the last of them sees."""
    for low in range(0, length, STRIP):
        high = min(low + STRIP, length)
        yield low, high, keys - length + high


@dataclass(frozen=True, slots=True)
class _FlashPlan:
    queries: Tensor
    keys: Tensor
    query_ends: Tensor
    key_ends: Tensor
    longest_query: int
    longest_key: int

    @classmethod
    def of(cls, layout: Layout, device: torch.device) -> _FlashPlan:
        found = joined(layout.segments)

        def there(places: NDArray[Any]) -> Tensor:
            return torch.from_numpy(places).to(device)

        return cls(
            there(found.queries),
            there(found.keys),
            there(found.query_ends),
            there(found.key_ends),
            longest_query=max(part.length for part in layout.segments),
            longest_key=max(part.seen + part.length for part in layout.segments),
        )


@cache
def flash_varlen(name: str) -> Callable[..., Any]:
    """`flash_attn_varlen_func` of a version."""
    module, package = _FLASH[name]
    try:
        return importlib.import_module(module).flash_attn_varlen_func
    except (ImportError, AttributeError) as error:
        raise TrainingError(
            f"attention={name!r} needs the package {package}, which is not installed or does not fit this torch "
            f"({error}): install it, or set attention: sdpa"
        ) from None


@cache
def _flex(compiled: bool) -> tuple[Callable[..., Tensor], Callable[[Layout, torch.device], Any]]:
    """FlexAttention and what makes its masks; not compiled on a CPU, where it only has forward passes."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if not compiled:  # it warns that this is slow, which is known
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile", category=UserWarning)

    build = torch.compile(create_block_mask) if compiled else create_block_mask

    def make(layout: Layout, device: torch.device) -> Any:
        found = bounds(layout.segments, layout.places)
        start, low, high = (
            torch.from_numpy(part).to(device) for part in (found.start, found.seen_start, found.seen_stop)
        )

        def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            own = (key >= start[query]) & (key <= query)
            return own | ((key >= low[query]) & (key < high[query]))

        return build(sees, None, None, layout.places, layout.places, device=device.type)

    compute: Any = torch.compile(flex_attention) if compiled else flex_attention
    return compute, make

"""Features of the distinct images of one optimizer batch, in a bounded part of the device's memory.

An image of a sliding window occurs in as many rows as the window has places. Its features are computed once without a
graph and kept as the tower makes them (bfloat16 under mixed precision), the rows' gradients gather beside them in
float32; then the image runs through the tower once more and the gathered gradient is handed over. One screenshot of
2691 tokens of 3584 numbers is 18 MiB of features in bfloat16 and 37 MiB of gradient: a lease of 1920 of them fits no
device. So features are kept up to a budget; the least recently used ones make room: their gradient goes to the tower at
once, and they are recomputed if a later row shows them again.

Invariants:
    - The gradient equals that of running the tower in every row, for any budget (up to rounding).
    - Kept features never exceed the budget, except the images of the micro-batch that runs.
    - Features are valid until the tower's weights change.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from dart_train.trainer.batches.collator import MicroBatch
from dart_train.trainer.memory.rank_memory import PATCHES_AT_ONCE

Tower = Callable[[MicroBatch, Sequence[str]], Sequence[Tensor]]
"""(tokens, levels, hidden) features of each named image of a micro-batch."""


class ImageFeatures:
    """Features of images, whichever micro-batches they occur in, in at most `budget_bytes` with their gradients."""

    def __init__(
        self,
        tower: Tower,
        *,
        trainable: bool,
        budget_bytes: int | None = None,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._tower, self._trainable = tower, trainable
        self._budget = math.inf if budget_bytes is None else budget_bytes
        self._autocast = autocast
        self.kept: OrderedDict[str, Tensor] = OrderedDict()
        self._gradients: dict[str, Tensor] = {}
        self._sources: dict[str, MicroBatch] = {}
        self.peak_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Return what is kept now, with room for the gradients of what is lent."""
        return sum(map(_size, self.kept.values())) + sum(map(_size, self._gradients.values()))

    def of(self, batch: MicroBatch) -> list[Tensor]:
        """(tokens, levels, hidden) float32 of each image of a micro-batch; their gradients are gathered here."""
        wanted = dict.fromkeys(batch.image_hashes)
        lends = self._trainable and torch.is_grad_enabled()
        missing = [name for name in wanted if name not in self.kept]
        for name in wanted:
            self._sources.setdefault(name, batch)
            if name in self.kept:
                self.kept.move_to_end(name)
        self._make_room(wanted, missing, lends)
        for names in _chunks(missing, batch):
            with torch.no_grad(), self._autocast():
                computed = self._tower(batch, names)
            for name, features in zip(names, computed, strict=True):
                # A copy where it is a part of something larger, which would stay with it.
                whole = features.untyped_storage().nbytes() == features.nbytes
                self.kept[name] = features.detach() if whole else features.detach().clone()
        if lends:
            for name in wanted:
                if name not in self._gradients:
                    self._gradients[name] = torch.zeros_like(self.kept[name], dtype=torch.float32)
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        lent = {name: self._lend(name) if lends else self.kept[name].float() for name in wanted}
        return [lent[name] for name in batch.image_hashes]

    def keeps(self, image_hash: str) -> bool:
        """Return whether an image need not run through the tower now."""
        return image_hash in self.kept

    def backward(self) -> None:
        """Hand what has gathered to the tower, after the last micro-batch."""
        self._hand_over(list(self._gradients))

    def _lend(self, name: str) -> Tensor:
        """Features that up to thirty rows may add gradients to, in float32."""
        leaf = self.kept[name].float().detach().requires_grad_()
        leaf.register_post_accumulate_grad_hook(partial(self._gather, name))
        return leaf

    def _gather(self, name: str, leaf: Tensor) -> None:
        if leaf.grad is not None:
            self._gradients[name] += leaf.grad
            leaf.grad = None

    def _make_room(self, wanted: Iterable[str], missing: Sequence[str], lends: bool) -> None:
        """Let go of what was used longest ago, until what is missing has room."""
        if self._budget == math.inf:
            return
        wanted = set(wanted)
        size = self._expected_bytes(missing)
        if lends:
            width = next((item.element_size() for item in self.kept.values()), 4)
            size += self._expected_bytes([name for name in wanted if name not in self._gradients]) * 4 // width
        excess = self.held_bytes + size - self._budget
        leaving: list[str] = []
        for name in self.kept:
            if excess <= 0:
                break
            if name not in wanted:
                leaving.append(name)
                excess -= _size(self.kept[name]) + _size(self._gradients.get(name))
        self._hand_over([name for name in leaving if name in self._gradients])
        for name in leaving:
            del self.kept[name]

    def _expected_bytes(self, names: Iterable[str]) -> int:
        """Return the expected size of the features of images: that of the kept features, per patch."""
        known = next(iter(self.kept.items()), None)
        if known is None:
            return 0
        each = _size(known[1]) / self._patches(known[0])
        return math.ceil(sum(each * self._patches(name) for name in names))

    def _patches(self, name: str) -> int:
        return math.prod(self._sources[name].patches.grid(name))

    def _hand_over(self, names: Sequence[str]) -> None:
        """Give the gathered gradients of some images to the tower's weights."""
        by_source: dict[int, list[str]] = {}
        for name in names:
            by_source.setdefault(id(self._sources[name]), []).append(name)
        for group in by_source.values():
            source = self._sources[group[0]]
            for part in _chunks(group, source):
                with torch.enable_grad(), self._autocast():
                    computed = self._tower(source, part)
                gradients = [self._gradients.pop(name) for name in part]
                torch.autograd.backward([item.float() for item in computed], gradients)


def cut_ahead(batches: Iterable[MicroBatch], features: ImageFeatures | None) -> Iterator[MicroBatch]:
    """Micro-batches in their order; while one runs, the images of the next that the tower needs are cut."""
    before: MicroBatch | None = None
    for batch in batches:
        needed = [name for name in batch.image_hashes if features is None or not features.keeps(name)]
        batch.patches.cut_ahead(needed)
        if before is not None:
            yield before
        before = batch
    if before is not None:
        yield before


def _size(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.nbytes


def _chunks(names: Iterable[str], batch: MicroBatch) -> Iterable[list[str]]:
    """The images in parts that the tower can take at once."""
    part: list[str] = []
    size = 0
    for name in names:
        patches = math.prod(batch.patches.grid(name))
        if part and size + patches > PATCHES_AT_ONCE:
            yield part
            part, size = [], 0
        part.append(name)
        size += patches
    if part:
        yield part


def features_pay(
    batches: Sequence[MicroBatch], *, trainable: bool, scoring_passes: int = 0, capacity: float = math.inf
) -> bool:
    """Return whether `ImageFeatures` saves work, counted in passes of one image through the tower. Pure.

    Without it, an image costs 3 (forward, and twice that backward) in each micro-batch that it occurs in, or 1 where
    the tower is frozen, and 1 more for each scoring pass. With it, 4 or 1 altogether, and as much again each time that
    it comes back after it had to make room.
    """
    occurrences = sum(len(batch.image_hashes) for batch in batches)
    separate = occurrences * ((3 if trainable else 1) + scoring_passes)
    kept: OrderedDict[str, int] = OrderedDict()
    room = capacity
    cost = 0
    with_gradient = set[str]()
    for number in range(scoring_passes + 1):
        learns = trainable and number == scoring_passes
        for batch in batches:
            wanted = dict.fromkeys(batch.image_hashes)
            for name in wanted:
                if name in kept:
                    kept.move_to_end(name)
                    continue
                kept[name] = math.prod(batch.patches.grid(name))
                room -= kept[name]
                cost += 1
            for name in [name for name in kept if name not in wanted]:
                if room >= 0:
                    break
                room += kept.pop(name)
                cost += 3 if name in with_gradient else 0
                with_gradient.discard(name)
            with_gradient |= wanted.keys() if learns else set()
    return separate > cost + 3 * len(with_gradient)

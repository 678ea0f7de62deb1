"""Prefixes: what the prompts that were read last left in the decoder's cache, for prompts that begin with them.

A conversation's next prompt begins with its last one, so that only the newest screenshot is read. What is kept of a
prompt is its state at its end, since a recurrent memory cannot be cut; so a prompt is reused whole or not at all.
"""

from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor

from dart_agent.engines.embedded.decoder import DecodeState


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prompt's ids, the digests of its images, and by layer what `DecodeState` has of its L tokens."""

    ids: tuple[int, ...]
    images: tuple[bytes, ...]
    keys: list[Tensor]
    values: list[Tensor]

    @property
    def nbytes(self) -> int:
        """Of its tensors."""
        return sum(part.nbytes for part in (*self.keys, *self.values))

    def begins(self, ids: tuple[int, ...], images: tuple[bytes, ...]) -> bool:
        """Whether a longer prompt begins with this one; most are told apart by one id."""
        end = len(self.ids)
        return ids[end - 1] == self.ids[-1] and ids[:end] == self.ids and images[: len(self.images)] == self.images


class Prefixes:
    """Those used last, of at most so many bytes together."""

    def __init__(self, capacity: int) -> None:
        self._capacity, self._total = capacity, 0
        self._kept: OrderedDict[tuple[tuple[int, ...], tuple[bytes, ...]], Prefix] = OrderedDict()

    def clear(self) -> None:
        """Forget all, as other weights ask for."""
        self._kept.clear()
        self._total = 0

    def longest(self, ids: tuple[int, ...], images: tuple[bytes, ...]) -> Prefix | None:
        """The longest with which a prompt begins and after which something is left to read, if there is one."""
        fitting = (one for one in self._kept.values() if len(one.ids) < len(ids) and one.begins(ids, images))
        found = max(fitting, key=lambda one: len(one.ids), default=None)
        if found:
            self._kept.move_to_end((found.ids, found.images))
        return found

    def keep(self, ids: tuple[int, ...], images: tuple[bytes, ...], state: DecodeState, row: int) -> None:
        """Keep a row of a state that has read the prompt and nothing after it."""
        places = state.visible[row, 0, 0, : state.length].nonzero()[:, 0]
        keys, values = (
            [
                part[row][:, places] if long else part[row].clone()
                for part, long in zip(parts, state.attends, strict=True)
            ]
            for parts in (state.keys, state.values)
        )
        if old := self._kept.pop((ids, images), None):
            self._total -= old.nbytes
        self._kept[ids, images] = kept = Prefix(ids, images, keys, values)
        self._total += kept.nbytes
        while self._total > self._capacity:
            self._total -= self._kept.popitem(last=False)[1].nbytes

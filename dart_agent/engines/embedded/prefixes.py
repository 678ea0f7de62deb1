"""Prefixes: the decoder's cache of the prompts that were read last, for prompts that begin with one of them.

A conversation's next prompt begins with its last one, so that only the newest screenshot is read. Only the state at a
prompt's end is kept, since a recurrent memory cannot be cut; so a prompt is reused whole or not at all.
"""

from collections import OrderedDict

from torch import Tensor

from dart_agent.engines.embedded.decoder import DecodeState

Ids = tuple[int, ...]
Images = tuple[bytes, ...]
Cached = list[list[Tensor]]
"""Keys and values of one row by layer, as `DecodeState` has them, of a prompt's tokens only."""


class Prefixes:
    """Prompts by ids and digests of images, those used last, of at most `capacity` bytes together."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self._total = capacity, 0
        self._kept: OrderedDict[tuple[Ids, Images], Cached] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forget all, as other weights ask for."""
        self._kept.clear()
        self._total = 0

    def longest(self, ids: Ids, images: Images) -> tuple[int, int, Cached | None]:
        """Return tokens, images and cache of the longest kept prompt that is a proper prefix of this one."""
        known = (
            (len(key[0]), key)
            for key in self._kept
            if len(key[0]) < len(ids)
            and ids[len(key[0]) - 1] == key[0][-1]  # most are told apart by one id
            and ids[: len(key[0])] == key[0]
            and images[: len(key[1])] == key[1]
        )
        length, key = max(known, default=(0, ((), ())))
        if length:
            self._kept.move_to_end(key)
        return length, len(key[1]), self._kept.get(key)

    def keep(self, ids: Ids, images: Images, state: DecodeState, row: int) -> None:
        """Keep a row of a state that has read the prompt and nothing after it."""
        attends = [part.dim() == 4 for part in state.keys]
        places = state.visible[row, 0, 0, : state.length].nonzero()[:, 0]
        self._total -= _nbytes(self._kept.pop((ids, images), []))
        self._kept[ids, images] = cached = [
            [part[row][:, places] if long else part[row].clone() for part, long in zip(parts, attends, strict=True)]
            for parts in (state.keys, state.values)
        ]
        self._total += _nbytes(cached)
        while self._total > self.capacity:
            self._total -= _nbytes(self._kept.popitem(last=False)[1])


def _nbytes(cached: Cached) -> int:
    return sum(part.nbytes for parts in cached for part in parts)

"""An optimizer's moments in the host's memory while no step is made.

Invariant: results are the same, bit by bit. The moments come back as exact copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dart_train.trainer.weights.ranks import local_part


class HostMoments:
    """An optimizer whose moments are on the device in its steps only.

    Their tensors stay the same objects, also sharded ones: without memory while their values are in the host's.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._away: list[tuple[Tensor, Tensor]] = []
        self._copies: dict[int, Tensor] = {}
        for state in optimizer.state.values():
            for name, value in state.items():  # tensors that were read from a file may share memory
                if isinstance(value, Tensor) and not local_part(value).untyped_storage().resizable():
                    state[name] = value.clone()
        optimizer.register_step_pre_hook(lambda *_: self._fetch())
        optimizer.register_step_post_hook(lambda *_: self._put())
        self._put()

    @contextmanager
    def here(self) -> Iterator[None]:
        """Have the moments on the device within a `with` block, to read them."""
        self._fetch()
        try:
            yield
        finally:
            self._put()

    def _put(self) -> None:
        for moment in self._moments():
            copy = self._copies.get(id(moment))
            if copy is None:
                copy = torch.empty_like(moment, device="cpu", pin_memory=moment.is_cuda)
                self._copies[id(moment)] = copy
            copy.copy_(moment)
            moment.untyped_storage().resize_(0)
            self._away.append((moment, copy))

    def _fetch(self) -> None:
        for moment, copy in self._away:
            moment.untyped_storage().resize_(copy.nbytes)
            moment.copy_(copy)
        self._away = []

    def _moments(self) -> Iterator[Tensor]:
        """This rank's part of each tensor of the optimizer's state that has memory of its own; counters are left."""
        for state in self._optimizer.state.values():
            for value in state.values():
                part = local_part(value) if isinstance(value, Tensor) and value.numel() > 1 else None
                if part is not None and part.nbytes and part.untyped_storage().nbytes() == part.nbytes:
                    yield part

"""Which experts the routers of a mixture choose while an engine decodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class RoutingRecord:
    """Keeps what routers chose for the last token of each row, in passes after `begin`."""

    def __init__(self, text_model: Any) -> None:
        """Watch the routers of a text model; one without experts has none."""
        self._layers = len(text_model.layers)
        self._on = False
        self._chosen: dict[int, Tensor] = {}
        self.available = False
        for number, layer in enumerate(text_model.layers):
            if hasattr(layer.mlp, "experts"):
                self.available = True
                layer.mlp.gate.register_forward_hook(self._watch(number))

    def _watch(self, number: int) -> Any:
        def keep(module: Any, given: Any, found: tuple[Tensor, Tensor, Tensor]) -> None:
            if self._on:
                self._chosen[number] = found[2]

        return keep

    def begin(self, on: bool) -> None:
        """Keep what follows, or nothing."""
        self._on = on and self.available
        self._chosen = {}

    def last(self, rows: int) -> Tensor:
        """(rows, layers, k) experts of each row's last token in the pass before; 0 for layers without experts."""
        some = next(iter(self._chosen.values()))
        none = torch.zeros_like(some[:rows])
        parts = [
            self._chosen[number].view(rows, -1, some.shape[-1])[:, -1] if number in self._chosen else none
            for number in range(self._layers)
        ]
        return torch.stack(parts, 1).cpu()

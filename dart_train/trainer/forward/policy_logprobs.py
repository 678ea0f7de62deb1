"""Log-probabilities under one model: the one that is trained, or the reference of the KL term.

The reference is a second copy of the weights, or the model that is trained with its adapter switched off, which costs
no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from dart_train.trainer.batches.collator import MicroBatch
from dart_train.trainer.forward.forward_pass import ImageFeatures, features_pay, response_logprobs
from dart_train.trainer.weights.adapters import base_model, without_adapter
from dart_train.trainer.weights.sharding import through


class Policy:
    """A model as a function from micro-batches to log-probabilities.

    Args:
        model: on its device.
        suppressed_ids: tokens that the engine never samples.
        temperature: that it samples at.
        autocast: the context of mixed precision.
        cache_images: whether each image of an optimizer batch runs through the vision tower once, where that pays.
    """

    trained = True

    def __init__(
        self,
        model: Any,
        suppressed_ids: Sequence[int],
        *,
        temperature: float = 1.0,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        cache_images: bool = True,
    ) -> None:
        self.model = model
        self._suppressed = suppressed_ids
        self._temperature = temperature
        self._autocast = autocast
        self._cache_images = cache_images

    def features(self, batches: Sequence[MicroBatch], *, scoring_passes: int = 0) -> ImageFeatures | None:
        """Features of an optimizer batch's images with the weights as they are; None where that would not pay."""
        if not self._cache_images:
            return None
        visual = base_model(self.model).model.visual
        trainable = self.trained and any(parameter.requires_grad for parameter in visual.parameters())
        if not features_pay(batches, trainable=trainable, scoring_passes=scoring_passes):
            return None
        return ImageFeatures(self.model, trainable=trainable, autocast=self._autocast)

    def __call__(self, micro: MicroBatch, features: ImageFeatures | None) -> tuple[Tensor, Tensor]:
        """(S, T) log-probabilities and entropies of response tokens, float32."""

        def work() -> tuple[Tensor, Tensor]:
            return response_logprobs(
                self.model, micro, self._suppressed, temperature=self._temperature, features=features
            )

        with self._autocast():
            return through(self.model, work)


class Reference(Policy):
    """The policy that the KL term pulls towards; it never has a gradient.

    Args:
        model: a copy, or the trained model with an adapter.
        adapter_off: whether it is the latter.
        suppressed_ids: as `Policy`'s; `options` as well.
    """

    trained = False

    def __init__(self, model: Any, suppressed_ids: Sequence[int], *, adapter_off: bool, **options: Any) -> None:
        super().__init__(model, suppressed_ids, **options)
        self._adapter_off = adapter_off

    def __call__(self, micro: MicroBatch, features: ImageFeatures | None) -> tuple[Tensor, Tensor]:
        """As `Policy`'s, without gradient."""
        switch = without_adapter(self.model) if self._adapter_off else nullcontext()
        with torch.no_grad(), switch:
            return super().__call__(micro, features)

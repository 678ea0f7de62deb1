"""Log-probabilities of responses under a model, with the least work: the one that is trained, or the KL's reference.

The output layer runs on the positions that predict response tokens only, and the vision tower on each distinct image
once: of a micro-batch, or of a whole optimizer batch with `ImageFeatures`. Qwen's published classes are used by their
public parts: `get_image_features`, embeddings, `model`, `lm_head`. The reference is a second copy of the weights, or
the model that is trained with its adapter switched off, which costs no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dart_train.trainer.batches.collator import MicroBatch
from dart_train.trainer.weights.adapters import base_model, without_adapter
from dart_train.trainer.weights.sharding import through

LOGITS_AT_ONCE = 1 << 27
"""Most logits computed at a time (0.5 GiB in float32): 512 tokens of 500 steps with 152 000 words are 155 GiB."""
PATCHES_AT_ONCE = 1 << 16
"""Most patches in the vision tower at a time: six screenshots of 1932x1092."""


class Policy:
    """A model as a function from micro-batches to log-probabilities.

    Args:
        model: a `Qwen2_5_VLForConditionalGeneration` on its device, also inside a peft model, also sharded.
        suppressed_ids: tokens that the engine never samples.
        temperature: that the engine samples at.
        autocast: makes the context of mixed precision that passes run in.
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
        suppressed_ids: tokens that the engine never samples.
        adapter_off: whether the model is the trained one, whose adapter is switched off for each pass.
        options: those of `Policy`.
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


def response_logprobs(
    model: Any,
    batch: MicroBatch,
    suppressed_ids: Sequence[int],
    *,
    temperature: float = 1.0,
    features: ImageFeatures | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each response token.

    Args:
        model: a `Qwen2_5_VLForConditionalGeneration`, also inside a peft model.
        batch: a micro-batch on the model's device.
        suppressed_ids: tokens that the engine never samples.
        temperature: that the engine samples at.
        features: of the optimizer batch's images; None runs the micro-batch's own through the tower.

    Returns:
        log-probabilities and entropies, both (S, T) float32 with gradient; 0 where `batch.mask` is False.
    """
    model = base_model(model)
    hidden = model.model(
        inputs_embeds=_embeddings(model, batch, features),
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
    ).last_hidden_state
    predicting = hidden.flatten(0, 1)[batch.predict_index]
    logprobs, entropies = _score(model.lm_head, predicting, batch.response_ids, tuple(suppressed_ids), temperature)
    return _unflatten(logprobs, batch.mask), _unflatten(entropies, batch.mask)


class ImageFeatures:
    """Features of the distinct images of one optimizer batch, whichever micro-batches they occur in.

    An image of a sliding window occurs in as many rows as the window has places. Its features are computed once
    without a graph, and the rows' gradients gather in them; `backward` then runs each image once more and hands the
    gathered gradient to the tower. The gradient is that of running the tower in every row (up to rounding).

    Features are valid until the tower's weights change. They stay on the device: 2691 tokens of 3584 numbers are
    37 MiB in float32 per screenshot.

    Args:
        model: as in `response_logprobs`.
        trainable: whether the tower gets a gradient.
        autocast: the context that the tower runs in.
    """

    def __init__(
        self, model: Any, *, trainable: bool, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> None:
        self._model = base_model(model)
        self._trainable = trainable
        self._autocast = autocast
        self._features: dict[str, Tensor] = {}
        self._batches: dict[str, MicroBatch] = {}

    def of(self, batch: MicroBatch) -> list[Tensor]:
        """(tokens, hidden) float32 of each image of a micro-batch."""
        missing = [name for name in batch.image_hashes if name not in self._features]
        for names in self._chunks(dict.fromkeys(missing), batch):
            with torch.no_grad(), self._autocast():
                computed = _tower(self._model, batch, names)
            for name, features in zip(names, computed, strict=True):
                # float32: up to thirty rows add their gradients here.
                self._features[name] = features.float().requires_grad_(self._trainable)
                self._batches[name] = batch
        return [self._features[name] for name in batch.image_hashes]

    def backward(self) -> None:
        """Hand the gradients of all micro-batches to the tower, once, after the last of them."""
        pending = [name for name, features in self._features.items() if features.grad is not None]
        by_source: dict[int, list[str]] = {}
        for name in pending:
            by_source.setdefault(id(self._batches[name]), []).append(name)
        for group in by_source.values():
            source = self._batches[group[0]]
            for names in self._chunks(group, source):
                with self._autocast():
                    computed = _tower(self._model, source, names)
                gradients = [self._features[name].grad for name in names]
                torch.autograd.backward([item.float() for item in computed], gradients)
        for name in pending:
            self._features[name].grad = None

    @staticmethod
    def _chunks(names: Iterable[str], batch: MicroBatch) -> Iterable[list[str]]:
        """The images in parts that the tower can take at once."""
        part: list[str] = []
        size = 0
        for name in names:
            frames, height, width = batch.patches.grid(name)
            if part and size + frames * height * width > PATCHES_AT_ONCE:
                yield part
                part, size = [], 0
            part.append(name)
            size += frames * height * width
        if part:
            yield part


def features_pay(batches: Sequence[MicroBatch], *, trainable: bool, scoring_passes: int = 0) -> bool:
    """Whether `ImageFeatures` saves work, counted in passes of one image through the tower. Pure.

    Without it, an image costs 3 (forward, and twice that backward) in each micro-batch that it occurs in, or 1 where
    the tower is frozen, and 1 more for each scoring pass. With it, 4 or 1 altogether.

    Args:
        batches: of one optimizer batch.
        trainable: whether the tower gets a gradient.
        scoring_passes: forward passes with the same weights before.
    """
    occurrences = sum(len(batch.image_hashes) for batch in batches)
    distinct = len({name for batch in batches for name in batch.image_hashes})
    return occurrences * ((3 if trainable else 1) + scoring_passes) > distinct * (4 if trainable else 1)


def token_logprobs(
    logits: Tensor, ids: Tensor, suppressed_ids: Sequence[int] = (), *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each response token, and the entropy of the distribution that it was drawn from.

    log p(y) = z_y - logsumexp(z),  H = -sum_v p(v) log p(v),  z = logits / temperature, both over the tokens that are
    not suppressed: the distribution that the engine samples from.

    Args:
        logits: (M, V), any floating type.
        ids: (M,) sampled tokens.
        suppressed_ids: tokens that are never sampled (`ModelTokens.suppressed_ids`).
        temperature: that the engine samples at.

    Returns:
        log-probabilities (M,), differentiable; entropies (M,) in nats, differentiable.
    """
    if logits.dtype is not torch.float64:  # which only tests use
        logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    if len(suppressed_ids):
        suppressed = torch.as_tensor(suppressed_ids, device=logits.device)
        logits = logits.index_fill(-1, suppressed, torch.finfo(torch.float32).min)
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p.clamp(min=-1e4)).sum(-1)  # a suppressed token adds exp(-huge) * -1e4 = 0
    return log_p.gather(-1, ids[:, None]).squeeze(-1), entropy


def _embeddings(model: Any, batch: MicroBatch, features: ImageFeatures | None) -> Tensor:
    """(B, L, hidden) embeddings of tokens, those of images in place of their pads."""
    embeddings = model.get_input_embeddings()(batch.input_ids)
    if batch.image_order is None:
        return embeddings
    found = features.of(batch) if features is not None else _tower(model, batch, batch.image_hashes)
    in_order = torch.cat([found[place] for place in batch.image_order.tolist()])
    pads = batch.mm_token_type_ids.bool().unsqueeze(-1)
    return embeddings.masked_scatter(pads, in_order.to(embeddings.dtype))


def _tower(model: Any, batch: MicroBatch, names: Sequence[str]) -> Sequence[Tensor]:
    """(tokens, hidden) of each named image."""
    pixels, grids = batch.patches.tensors(names)
    device = batch.input_ids.device
    return model.model.get_image_features(pixels.to(device), grids.to(device), return_dict=True).pooler_output


def _score(
    head: Any, hidden: Tensor, ids: Tensor, suppressed_ids: tuple[int, ...], temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies (M,) of hidden states (M, hidden), the logits of a part of them at a time."""

    def score(part: Tensor, part_ids: Tensor) -> tuple[Tensor, Tensor]:
        return token_logprobs(head(part), part_ids, suppressed_ids, temperature=temperature)

    size = max(LOGITS_AT_ONCE // head.weight.shape[0], 1)
    if len(ids) <= size:
        return score(hidden, ids)
    # The logits of a part are computed again for its gradient: kept, they would be larger than the model.
    parts = [
        checkpoint(score, *part, use_reentrant=False) for part in zip(hidden.split(size), ids.split(size), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _unflatten(values: Tensor, mask: Tensor) -> Tensor:
    """(M,) values into the (S, T) places where `mask` is True."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)

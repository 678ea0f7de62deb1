"""Log-probabilities of responses under a model, with the least work: the one that is trained, or the KL's reference.

The output layer runs on the positions that predict response tokens only, and the vision tower on each distinct image
once: of a micro-batch, or of a whole optimizer batch with `ImageFeatures`. Qwen's published classes are used by their
public parts: `get_image_features`, embeddings, `language_model`, `lm_head`; what differs between families is in
`dart_agent.models.families`. The head runs in float32 regardless of the other layers, since a log-probability is a
difference of large numbers: rounded to bfloat16 it is up to 0.06 nats off. Where a prompt ends in <ACTOR>, the id that
follows is a patch, and the model's pointer head says how likely it is. A mixture's routers choose the experts that the
engine recorded, where a batch has them. The reference is a second copy of the weights, or the model that is trained
with its adapter switched off, which costs no memory.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dart_agent.models.families.family_table import family_of
from dart_agent.models.pointer_head import ATTRIBUTE, PointerHead
from dart_train.trainer.attention.context_group import ContextGroup
from dart_train.trainer.attention.kernels import Attention
from dart_train.trainer.attention.model_attention import take_over
from dart_train.trainer.attention.routing_replay import Replay
from dart_train.trainer.attention.segments import KernelName
from dart_train.trainer.batches.collator import MicroBatch
from dart_train.trainer.image_features import ImageFeatures, features_pay
from dart_train.trainer.memory.rank_memory import LOGITS_AT_ONCE
from dart_train.trainer.weights.adapters import base_model, without_adapter
from dart_train.trainer.weights.sharding import through


class Policy:
    """A model as a function from micro-batches to log-probabilities.

    Args:
        model: of a known family, on its device, also inside a peft model, also sharded.
        features_mb: most memory for the features of an optimizer batch's images and their gradients, in MiB; 0 runs the
            tower again in every micro-batch.
        context: the ranks that run slices of the same micro-batches; None where this one runs them whole.
    """

    trained = True

    def __init__(
        self,
        model: Any,
        suppressed_ids: Sequence[int],
        *,
        temperature: float = 1.0,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        features_mb: int = 4096,
        kernel: KernelName = "sdpa",
        context: ContextGroup | None = None,
    ) -> None:
        self.model = model
        self._kernel, self._context = kernel, context
        self._suppressed = suppressed_ids
        self._temperature, self._autocast = temperature, autocast
        self._features_bytes = features_mb << 20

    def features(self, batches: Sequence[MicroBatch], *, scoring_passes: int = 0) -> ImageFeatures | None:
        """Features of an optimizer batch's images with the weights as they are; None where that would not pay."""
        model = base_model(self.model)
        trainable = self.trained and self.trains_tower
        with self._autocast():
            number = 2 if torch.is_autocast_enabled(model.device.type) else 4
        text, vision = model.config.text_config, model.config.vision_config
        width = text.hidden_size * family_of(model.config).levels(vision)
        patch_bytes = (number + (4 if trainable else 0)) * width / vision.spatial_merge_size**2
        pays = features_pay(
            batches, trainable=trainable, scoring_passes=scoring_passes, capacity=self._features_bytes / patch_bytes
        )
        if not self._features_bytes or not pays:
            return None
        return ImageFeatures(
            partial(tower_features, model, kernel=self._kernel),
            trainable=trainable,
            budget_bytes=self._features_bytes,
            autocast=self._autocast,
        )

    @property
    def trains_tower(self) -> bool:
        """Return whether the vision tower's weights are trained."""
        return any(parameter.requires_grad for parameter in base_model(self.model).model.visual.parameters())

    def __call__(self, micro: MicroBatch, features: ImageFeatures | None) -> tuple[Tensor, Tensor]:
        """(S, T) log-probabilities and entropies of response tokens, float32."""

        def work() -> tuple[Tensor, Tensor]:
            return response_logprobs(
                self.model,
                micro,
                self._suppressed,
                temperature=self._temperature,
                features=features,
                kernel=self._kernel,
                context=self._context,
            )

        with self._autocast():
            return through(self.model, work)


class Reference(Policy):
    """The policy that the KL term pulls towards, without gradient; the trained one `adapter_off`, or a copy."""

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
    kernel: KernelName = "sdpa",
    context: ContextGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each response token.

    With a `context` the batch is this rank's slice, and all of its ranks call this together. Each returns the values of
    all tokens; their gradient goes to the rank whose slice a value came from.

    Returns:
        log-probabilities and entropies, both (S, T) float32 with gradient; 0 where `batch.mask` is False.
    """
    model = base_model(model)
    take_over(model)
    embeddings, deeper = _embeddings(model, batch, features, kernel)
    if context is not None and torch.is_grad_enabled() and not embeddings.requires_grad:
        embeddings.requires_grad_()  # all ranks take part in each exchange of a backward pass, or none
    replay = None
    if batch.routing is not None:
        replay = Replay.of(model.model.language_model, batch.predict_index, batch.routing)
    hidden = model.model.language_model(
        inputs_embeds=embeddings,
        position_ids=batch.position_ids,
        use_cache=False,
        segments=Attention(batch.layout, kernel, replay, context),
        **deeper,
    ).last_hidden_state
    predicting = hidden.flatten(0, 1)[batch.predict_index]
    logprobs, entropies = _score(model.lm_head, predicting, batch.response_ids, tuple(suppressed_ids), temperature)
    head: PointerHead | None = getattr(model, ATTRIBUTE, None)
    if head is not None and (pointing := batch.input_ids.flatten()[batch.predict_index] == head.actor_id).any():
        chosen = _score_patches(head, embeddings, hidden, batch, pointing, temperature)
        logprobs, entropies = (
            of_text.masked_scatter(pointing, of_patches)
            for of_text, of_patches in zip((logprobs, entropies), chosen, strict=True)
        )
    if context is not None and batch.part is not None:
        both = torch.stack([logprobs, entropies])
        logprobs, entropies = context.all_responses(both, batch.part.predicted, batch.part.responses).unbind(0)
    return _unflatten(logprobs, batch.mask), _unflatten(entropies, batch.mask)


def token_logprobs(
    logits: Tensor, ids: Tensor, suppressed_ids: Sequence[int] = (), *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each response token, and the entropy of the distribution that it was drawn from.

    log p(y) = z_y - logsumexp(z),  H = -sum_v p(v) log p(v),  z = logits / temperature, both over the tokens that are
    not suppressed: the distribution that the engine samples from.

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


def _embeddings(
    model: Any, batch: MicroBatch, features: ImageFeatures | None, kernel: KernelName
) -> tuple[Tensor, dict[str, Any]]:
    """(B, L, hidden) embeddings of tokens, those of images in place of their pads; what the text layers take beside."""
    embeddings = model.get_input_embeddings()(batch.input_ids)
    if batch.image_order is None:
        return embeddings, {}
    found = features.of(batch) if features is not None else tower_features(model, batch, batch.image_hashes, kernel)
    in_order = torch.cat([found[place] for place in batch.image_order.tolist()]).to(embeddings.dtype)
    if batch.part is not None:
        in_order = in_order[slice(*batch.part.features)]
    pads = batch.mm_token_type_ids.bool()
    embeddings = embeddings.masked_scatter(pads.unsqueeze(-1), in_order[:, 0])
    if not family_of(model.config).deepstack:
        return embeddings, {}
    return embeddings, {"visual_pos_masks": pads, "deepstack_visual_embeds": list(in_order[:, 1:].unbind(1))}


def tower_features(
    model: Any, batch: MicroBatch, names: Sequence[str], kernel: KernelName = "sdpa"
) -> Sequence[Tensor]:
    """(tokens, levels, hidden) of each named image: level 0 is the embedding, the others are added to text layers."""
    take_over(model)
    pixels, grids = batch.patches.tensors(names)
    device = batch.input_ids.device
    found = model.model.get_image_features(pixels.to(device), grids.to(device), return_dict=True, kernel=kernel)
    levels = [found.pooler_output]
    if family_of(model.config).deepstack:
        sizes = [len(of_image) for of_image in found.pooler_output]
        # Older transformers (5.16 is one) give these of all images in one tensor.
        levels += [part.split(sizes) if isinstance(part, Tensor) else part for part in found.deepstack_features]
    return [torch.stack(of_image, 1) for of_image in zip(*levels, strict=True)]


def _score(
    head: Any, hidden: Tensor, ids: Tensor, suppressed_ids: tuple[int, ...], temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies (M,) of hidden states (M, hidden), the logits of a part of them at a time."""
    half = head.weight.dtype in (torch.float16, torch.bfloat16)
    single = head.weight.float() if half else None  # once for all parts

    def score(part: Tensor, part_ids: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(part.device.type, enabled=False):
            if single is not None:
                logits = torch.nn.functional.linear(part.float(), single)
            else:
                logits = head(part.to(head.weight.dtype))
        return token_logprobs(logits, part_ids, suppressed_ids, temperature=temperature)

    size = max(LOGITS_AT_ONCE // head.weight.shape[0], 1)
    if len(ids) <= size:
        return score(hidden, ids)
    # The logits of a part are computed again for its gradient: kept, they would be larger than the model.
    parts = [
        checkpoint(score, *part, use_reentrant=False) for part in zip(hidden.split(size), ids.split(size), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _score_patches(
    head: PointerHead, embeddings: Tensor, hidden: Tensor, batch: MicroBatch, pointing: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """As `_score`, of the ids (P,) that are patches of the newest image before their <ACTOR>; equal prompts once."""
    edges = batch.mm_token_type_ids.flatten().bool().int()
    edges = torch.diff(edges, prepend=edges.new_zeros(1), append=edges.new_zeros(1))
    starts, ends = (edges == 1).nonzero()[:, 0].tolist(), (edges == -1).nonzero()[:, 0]
    places, which = batch.predict_index[pointing].unique(return_inverse=True)
    newest = (torch.searchsorted(ends, places, right=True) - 1).tolist()
    patches = [embeddings.flatten(0, 1)[starts[image] : int(ends[image])] for image in newest]
    with torch.autocast(hidden.device.type, enabled=False):
        scores = head.choices(patches, hidden.flatten(0, 1)[places])
    return token_logprobs(scores[which], batch.response_ids[pointing], temperature=temperature)


def _unflatten(values: Tensor, mask: Tensor) -> Tensor:
    """(M,) values into the (S, T) places where `mask` is True."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)

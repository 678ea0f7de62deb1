"""QwenRunner: prompts of a Qwen-VL model in, sampled ids and log-probabilities out. The effectful core of an engine.

It drives the model's own submodules (vision tower, decoder layers, head) without `generate()`, whose bookkeeping costs
more than a small model's arithmetic. Its results equal those of a plain forward pass of the same model over prompt and
response; a test holds the two together.

Invariants:
    - Rows are padded on the left; a row's result does not depend on what else is in the batch (up to rounding).
    - Every row has its own random stream, drawn by inverting the cumulative distribution.
    - Suppressed ids have probability zero, before the softmax.
    - Given ids go through the same steps as sampled ones, so that their log-probabilities are those of sampling them.
    - After a prompt that ends in a head's <ACTOR>, patch n of its newest image is drawn in the place of token n.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dart_agent.engines.base import expert_routing
from dart_agent.engines.base.engine import Prompt, RequestRefused, Sampling
from dart_agent.engines.embedded.decoder import Decoder
from dart_agent.engines.embedded.prefixes import Prefixes
from dart_agent.engines.embedded.routing_record import RoutingRecord
from dart_agent.engines.embedded.vision_tower import Tower
from dart_agent.models.expert_weights import in_memory, is_fused, is_swapped
from dart_agent.models.families.family_table import family_in, family_of, model_config
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.pointer_head import ATTRIBUTE, PointerHead, attach_head, head_weights
from dart_gym.core.errors import ConfigurationError

PREFIX_BYTES = 256 << 20
"""Size of the caches of prompts that are kept for prompts which continue them."""


@dataclass(frozen=True, slots=True)
class SampledRow:
    """One response."""

    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    entropy: float
    routing: bytes = b""


class QwenRunner:
    """A loaded model with its vision cache. Not thread-safe: one thread calls `sample` and `load_weights`."""

    def __init__(
        self, model: Any, vision: VisionSpec, *, vision_cache: int = 256, unreachable_ids: Sequence[int] = ()
    ) -> None:
        """Wrap a model of a known family in evaluation mode; of its head, `unreachable_ids` stand for no token."""
        self.model, self.vision = model, vision
        self.device = next(model.parameters()).device
        self._image_token = model.config.image_token_id
        self._head: PointerHead | None = getattr(model, ATTRIBUTE, None)
        self._max_length = model.config.text_config.max_position_embeddings
        self._vocab = model.config.text_config.vocab_size
        beyond = [one for one in unreachable_ids if one < self._vocab]
        self._beyond = torch.tensor(beyond, device=self.device) if beyond else None
        self.decoder = Decoder(model.model.language_model)
        self._routing = RoutingRecord(model.model.language_model)
        self.tower = Tower(model.model.visual, family_of(model.config))
        self.embeddings: OrderedDict[bytes, Tensor] = OrderedDict()
        self._cache_size = vision_cache
        self.prefixes = Prefixes(PREFIX_BYTES)
        self._stream = torch.Generator().manual_seed(torch.seed() % 2**63)

    @classmethod
    def load(
        cls,
        model_dir: str | Path,
        vision: VisionSpec,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        vision_cache: int = 256,
    ) -> QwenRunner:
        """Load a model directory."""
        from transformers import AutoModelForImageTextToText

        _check_config(Path(model_dir), vision)
        model = AutoModelForImageTextToText.from_pretrained(
            str(model_dir), dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
        model.eval().to(torch.device(device))
        attach_head(model, model_dir)
        tokens = ModelTokens.load(model_dir)
        return cls(model, vision, vision_cache=vision_cache, unreachable_ids=tokens.unreachable_ids)

    def check(self, prompt: Prompt, sampling: Sampling) -> None:
        """Raise `RequestRefused` for a request that cannot be served. Cheap, callable from any thread."""
        try:
            need = sum(self.vision.num_tokens(image) for image in prompt.images)
        except ValueError as error:
            raise RequestRefused(f"an image cannot be used: {error}") from None
        pads = prompt.token_ids.count(self._image_token)
        if pads != need:
            raise RequestRefused(f"the prompt has {pads} image pads, its {len(prompt.images)} images need {need}")
        if not prompt.token_ids or sampling.max_tokens < 1:
            raise RequestRefused("a request needs a prompt and max_tokens of at least 1")
        ids = (*prompt.token_ids, *sampling.stop_ids, *sampling.suppressed_ids, *sampling.given_ids)
        if not 0 <= min(ids) <= max(ids) < self._vocab:
            raise RequestRefused(f"the request has token ids outside [0, {self._vocab})")
        if self._points(prompt) and need > self._vocab:
            raise RequestRefused(f"{need} patches to choose among are more than the model's {self._vocab} tokens")
        if len(prompt.token_ids) + sampling.length > self._max_length:
            raise RequestRefused(
                f"prompt of {len(prompt.token_ids)} tokens and {sampling.length} new ones exceed the model's "
                f"{self._max_length} positions: keep fewer screenshots or texts"
            )
        if sampling.temperature < 0:
            raise RequestRefused(f"temperature must not be negative, got {sampling.temperature}")

    @torch.inference_mode()
    def sample(self, prompts: Sequence[Prompt], samplings: Sequence[Sampling]) -> list[SampledRow]:
        """Sample one response to each prompt, as one batch; equal prompts are run once."""
        draws = _Draws(samplings, self._vocab, self._stream, self.device)
        distinct, rows = _distinct(prompts)
        digests = [tuple(map(_image_key, prompt.images)) for prompt in distinct]
        known = [self.prefixes.longest(prompt.token_ids, keys) for prompt, keys in zip(distinct, digests, strict=True)]
        tokens, positions, mask = self._layout(distinct, [length for length, _, _ in known])
        embeds = self.model.model.language_model.embed_tokens(tokens)
        images = [im for prompt, (_, seen, _) in zip(distinct, known, strict=True) for im in prompt.images[seen:]]
        deep: list[Tensor] = []
        if images:
            places, features = tokens == self._image_token, self._embed(images).to(embeds.dtype)
            embeds[places] = features[:, 0]
            for level in range(1, self.tower.levels):
                deep.append(torch.zeros_like(embeds))
                deep[-1][places] = features[:, level]
        room = max(sampling.length for sampling in samplings)
        recorded = self._routing.available and any(sampling.routing for sampling in samplings)
        self._routing.begin(recorded)
        state, hidden = self.decoder.prefill(embeds, positions, mask, room, deep, [cached for _, _, cached in known])
        for row, (prompt, keys) in enumerate(zip(distinct, digests, strict=True)):
            self.prefixes.keep(prompt.token_ids, keys, state, row)
        if len(distinct) < len(prompts):
            taken = torch.tensor(rows, device=self.device)
            state, hidden = state.take(taken), hidden[taken]
        routes = [self._routing.last(len(distinct))[rows]] if recorded else []
        pointing = [row for row, prompt in enumerate(prompts) if self._points(prompt)]
        while True:
            logits = self.model.lm_head(hidden).float()
            if self._beyond is not None:
                logits[:, self._beyond] = -torch.inf
            if pointing:
                logits[pointing] = self._patch_logits([prompts[row] for row in pointing], hidden[pointing])
                pointing = []
            chosen = draws.take(logits)
            if draws.finished:
                return _with_routing(draws.rows(), samplings, routes)
            hidden = self.decoder.step(state, chosen)
            if recorded:
                routes.append(self._routing.last(len(prompts)))

    def _points(self, prompt: Prompt) -> bool:
        return self._head is not None and bool(prompt.images) and prompt.token_ids[-1] == self._head.actor_id

    def _patch_logits(self, prompts: Sequence[Prompt], states: Tensor) -> Tensor:
        """(B, vocabulary) log-probabilities of the patches of each prompt's newest image, -inf behind the last one."""
        assert self._head is not None  # for the type checker: these prompts point
        found = self._head.choices([self._embed(prompt.images[-1:])[:, 0] for prompt in prompts], states)
        return torch.nn.functional.pad(found, (0, self._vocab - found.shape[1]), value=-torch.inf)

    def load_weights(self, path: str | Path) -> None:
        """Copy a checkpoint's weights into the model, or none. Raises `FileNotFoundError`; `ValueError`: others."""
        loaded = _read_safetensors(Path(path)) | {f"{ATTRIBUTE}.{n}": t for n, t in head_weights(path).items()}
        # Published Qwen3.5 holds a head that predicts several tokens ("mtp."), which transformers does not load either.
        self.take_weights({_current_name(name): t for name, t in loaded.items() if not name.startswith("mtp.")})

    def take_weights(self, loaded: dict[str, Tensor]) -> None:
        """Copy tensors, by their names in the live model, into it, or none; the dictionary is emptied.

        Raises:
            ValueError: if they are not all tensors of this model.
        """
        own = self.model.state_dict()
        taken = in_memory(loaded, {name: tuple(tensor.shape) for name, tensor in own.items()})
        loaded.clear()
        self.check_shapes({name: tuple(tensor.shape) for name, tensor in taken.items()})
        with torch.no_grad():
            while taken:
                name, tensor = taken.popitem()
                own[name].copy_(tensor)
        self.embeddings.clear()
        self.prefixes.clear()

    def check_shapes(self, loaded: Mapping[str, tuple[int, ...]]) -> None:
        """Raise `ValueError` unless tensors of these names and shapes are all of this model's. Thread-safe."""
        own = self.model.state_dict()
        tied = {"lm_head.weight"} if self.model.config.tie_word_embeddings else set()
        missing, extra = own.keys() - loaded.keys() - tied, loaded.keys() - own.keys()
        both = {name: (tuple(own[name].shape), loaded[name]) for name in own.keys() & loaded.keys()}
        wrong = [
            name
            for name, (ours, theirs) in both.items()
            if ours != theirs and not (is_fused(name) and is_swapped(theirs, ours))
        ]
        if missing or extra or wrong:
            raise ValueError(
                f"not a checkpoint of this model: {len(missing)} tensors missing, {len(extra)} unknown, "
                f"{len(wrong)} of another shape, such as {sorted([*missing, *extra, *wrong])[0]}"
            )

    def _layout(self, prompts: Sequence[Prompt], starts: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """From a start on and left-padded: tokens (B, L), positions (3, B, L), mask (B, L), True for real tokens."""
        length = max(len(prompt.token_ids) - start for prompt, start in zip(prompts, starts, strict=True))
        tokens = np.zeros((len(prompts), length), np.int64)
        positions = np.zeros((3, len(prompts), length), np.int64)
        mask = np.zeros((len(prompts), length), bool)
        for row, (prompt, start) in enumerate(zip(prompts, starts, strict=True)):
            ids, left = np.asarray(prompt.token_ids), length - len(prompt.token_ids) + start
            grids = [self.vision.grid(image) for image in prompt.images]
            places = rope_positions(ids, grids, self._image_token, self.vision.merge_size)
            tokens[row, left:], positions[:, row, left:] = ids[start:], places[:, start:]
            mask[row, left:] = True
        return tuple(torch.from_numpy(array).to(self.device) for array in (tokens, positions, mask))  # type: ignore[return-value]

    def _embed(self, images: Sequence[NDArray[np.uint8]]) -> Tensor:
        """(tokens, levels, hidden) of all images in order; every distinct image goes through the tower once."""
        keys = [_image_key(image) for image in images]
        missing = {key: image for key, image in zip(keys, images, strict=True) if key not in self.embeddings}
        if missing:
            grids = [self.vision.grid(image) for image in missing.values()]
            patches = np.concatenate([self.vision.patchify(image) for image in missing.values()])
            embedded = self.tower.embed(torch.from_numpy(patches).to(self.device), grids)
            sizes = [rows * columns // self.vision.merge_size**2 for _, rows, columns in grids]
            self.embeddings.update(zip(missing, embedded.split(sizes), strict=True))
        for key in keys:
            self.embeddings.move_to_end(key)
        result = torch.cat([self.embeddings[key] for key in keys])
        while len(self.embeddings) > self._cache_size:
            self.embeddings.popitem(last=False)
        return result


class _Draws:
    """The state of sampling a batch: which rows are finished, and what was drawn."""

    def __init__(self, samplings: Sequence[Sampling], vocab: int, stream: torch.Generator, device: Any) -> None:
        count, steps = len(samplings), max(sampling.length for sampling in samplings)
        self._samplings = samplings
        self._uniform = torch.zeros(count, steps, dtype=torch.float64)
        self._given = torch.full((count, steps), -1)
        self._banned = torch.zeros(count, vocab, dtype=torch.bool)
        self._stops = torch.zeros(count, vocab, dtype=torch.bool)
        for row, sampling in enumerate(samplings):
            self._banned[row, list(sampling.suppressed_ids)] = True
            if sampling.given_ids:
                self._given[row, : sampling.length] = torch.tensor(sampling.given_ids)
                continue
            own = stream if sampling.seed is None else torch.Generator().manual_seed(sampling.seed)
            self._uniform[row, : sampling.max_tokens].uniform_(generator=own)
            self._stops[row, list(sampling.stop_ids)] = True
        self._any_given = bool((self._given >= 0).any())
        self._uniform, self._banned, self._given = (
            tensor.to(device) for tensor in (self._uniform, self._banned, self._given)
        )
        temperature = torch.tensor([sampling.temperature for sampling in samplings], device=device)
        self._greedy = temperature == 0
        self._scale = torch.where(self._greedy, 1.0, temperature)[:, None]
        self._any_greedy = bool(self._greedy.any())
        self._ids: list[Tensor] = []
        self._logprobs: list[Tensor] = []
        self._entropies: list[Tensor] = []
        self._done = torch.zeros(count, dtype=torch.bool)
        self._limits = torch.tensor([sampling.length for sampling in samplings])

    @property
    def finished(self) -> bool:
        """Return whether every row has ended."""
        return bool(self._done.all())

    def take(self, logits: Tensor) -> Tensor:
        """Draw the next token of every row from float32 logits (B, V); returns ids (B,)."""
        logprobs = (logits / self._scale).masked_fill(self._banned, -torch.inf).log_softmax(-1)
        probabilities = logprobs.double().exp_()
        self._entropies.append(-(probabilities * logprobs.clamp(min=-1e4)).sum(-1))  # a forbidden token adds 0
        cumulative = probabilities.cumsum_(-1)
        # The first entry above u * total: entries of probability zero are never the first.
        point = self._uniform[:, len(self._ids), None] * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, point, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
        if self._any_greedy:
            chosen = torch.where(self._greedy, logprobs.argmax(-1), chosen)
        if self._any_given:
            given = self._given[:, len(self._ids)]
            chosen = torch.where(given >= 0, given, chosen)
        self._logprobs.append(logprobs.gather(-1, chosen[:, None])[:, 0])
        self._ids.append(chosen)
        stopped = self._stops[torch.arange(len(self._done)), chosen.cpu()]
        self._done |= stopped | (self._limits <= len(self._ids))
        return chosen

    def rows(self) -> list[SampledRow]:
        """Return what was drawn, each row cut at its end."""
        columns = (torch.stack(drawn, 1).tolist() for drawn in (self._ids, self._logprobs, self._entropies))
        return [_cut(*row) for row in zip(*columns, self._samplings, strict=True)]


def _with_routing(found: list[SampledRow], samplings: Sequence[Sampling], routes: Sequence[Tensor]) -> list[SampledRow]:
    """Rows with the experts (B, layers, k) of each step, where they were asked for and recorded."""
    if not routes:
        return found
    chosen = torch.stack(list(routes), 1).numpy()
    return [
        replace(row, routing=expert_routing.pack(own[: len(row.response_ids)])) if sampling.routing else row
        for row, sampling, own in zip(found, samplings, chosen, strict=True)
    ]


def _cut(ids: list[int], logprobs: list[float], entropies: list[float], sampling: Sampling) -> SampledRow:
    count = len(sampling.given_ids)
    if count:
        reason = "stop" if ids[count - 1] in sampling.stop_ids else "length"
        return SampledRow(tuple(ids[:count]), tuple(logprobs[:count]), reason, sum(entropies[:count]) / count)
    stop = next((i for i, token in enumerate(ids) if token in sampling.stop_ids), None)
    stopped = stop is not None and stop < sampling.max_tokens
    end = stop + 1 if stop is not None and stopped else min(len(ids), sampling.max_tokens)
    reason = "stop" if stopped else "length"
    return SampledRow(tuple(ids[:end]), tuple(logprobs[:end]), reason, sum(entropies[:end]) / end)


def rope_positions(
    token_ids: NDArray[np.int64], grids: Sequence[tuple[int, int, int]], image_token: int, merge_size: int
) -> NDArray[np.int64]:
    """Three-dimensional rotary positions of one sequence, as the `get_rope_index` of all Qwen-VL models.

    Args:
        token_ids: (L,) ids with expanded image pads.
        grids: (frames, rows, columns) in patches of each image, in order.
        image_token: token id of the image pad.
        merge_size: patches a side per token.

    Returns:
        (3, L): time, height, width. Text counts up in all three; an image takes as many as its longer side.
    """
    out = np.empty((3, len(token_ids)), np.int64)
    pads = np.flatnonzero(token_ids == image_token)
    position = index = taken = 0
    for frames, rows, columns in grids:
        rows, columns = rows // merge_size, columns // merge_size
        start = int(pads[taken])
        out[:, index:start] = np.arange(position, position + start - index)
        position += start - index
        end = start + frames * rows * columns
        out[:, start:end] = position + np.indices((frames, rows, columns)).reshape(3, -1)
        position += max(rows, columns)
        index = end
        taken += end - start
    out[:, index:] = np.arange(position, position + len(token_ids) - index)
    return out


def _check_config(model_dir: Path, vision: VisionSpec) -> None:
    """Look at a model's `config.json` before its weights are loaded."""
    family_in(model_dir)
    config = model_config(model_dir)
    part = config.get("vision_config") or {}
    for name, other in (("patch_size", "patch_size"), ("merge_size", "spatial_merge_size")):
        if part.get(other, getattr(vision, name)) != getattr(vision, name):
            raise ConfigurationError(
                f"{model_dir}: preprocessor_config.json has {name} {getattr(vision, name)}, config.json has {other} "
                f"{part[other]}: the image processor is another model's"
            )


def _distinct(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[int]]:
    """The prompts without repetition, and which of them each is: the first ones of a task's rollouts are all equal."""
    found: dict[tuple[Any, ...], Prompt] = {}
    same = Counter(prompt.token_ids for prompt in prompts)
    keys = [
        (prompt.token_ids, *(map(_image_key, prompt.images) if same[prompt.token_ids] > 1 else ()))
        for prompt in prompts
    ]
    for key, prompt in zip(keys, prompts, strict=True):
        found.setdefault(key, prompt)
    places = {key: place for place, key in enumerate(found)}
    return list(found.values()), [places[key] for key in keys]


def _image_key(image: NDArray[np.uint8]) -> bytes:
    digest = hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16)
    digest.update(repr(image.shape).encode())
    return digest.digest()


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint directory, in one file or in shards."""
    from safetensors.torch import load_file

    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{path} holds no *.safetensors")
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors.update(load_file(str(file)))
    return tensors


def _current_name(name: str) -> str:
    """Name of a tensor in the live model: checkpoints keep Qwen's published names (`model.layers`, `visual`)."""
    if name.startswith("visual."):
        return f"model.{name}"
    if name.startswith("model.") and not name.startswith(("model.visual.", "model.language_model.")):
        return f"model.language_model.{name.removeprefix('model.')}"
    return name

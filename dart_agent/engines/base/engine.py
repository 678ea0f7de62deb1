"""The protocol of an engine: token ids and images in, token ids and log-probabilities out.

Invariants:
    - A prompt is token ids plus images, never a string: what was sampled is what is trained, nothing is
      re-tokenised. `Prompt.token_ids` already holds one `<|image_pad|>` per merged patch of each image.
    - Log-probabilities belong to the distribution that was sampled from: at the sampling temperature (at 1 where
      it is 0), with special tokens suppressed exactly as the trainer suppresses them (`Sampling.suppressed_ids`).
    - Sampling that biases log-probabilities is refused for training: there is no top_p, top_k or penalty here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dart_agent.models.model_tokens import ModelTokens


class EngineError(Exception):
    """The engine cannot answer now; another replica, or a later try, may. Base of what an engine raises."""


class EngineBusy(EngineError):
    """It is paused, restarting or overloaded: the same request can be sent again."""


class EngineTimeout(EngineError):
    """It did not answer in time."""


class RequestRefused(EngineError):
    """It understood the request and will not serve it: sending it again does not help."""


class EngineMismatch(EngineError):
    """It answered about another prompt, model or version, or no numbers: nothing to train on, look at the server."""


class UpdateNotBegun(EngineError):
    """New weights could not be prepared for it: it keeps serving the present ones."""


class BadResponse(EngineMismatch):
    """It returned a response that cannot be valid: an invalid id or probability, or the pad of an image.

    `dart_agent.engines.base.engine_replies` checks replies.
    """


@dataclass(frozen=True, slots=True)
class Prompt:
    """Input of a model: token ids, and the images that their pads stand for."""

    token_ids: tuple[int, ...]
    images: tuple[NDArray[np.uint8], ...] = ()


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings of sampling.

    Attributes:
        max_tokens: limit of new tokens, the end token included.
        temperature: 0 for greedy; log-probabilities are then taken at temperature 1.
        stop_ids: tokens that end the response (kept in the output).
        suppressed_ids: tokens never sampled and left out of the softmax.
        ids_below: number of ids that the tokenizer has: what the rows behind them in a model's head stand for is no
            token, and a response with one is refused. None where that is unknown.
        training: the response will be trained on: an engine that cannot give exact ids and log-probabilities refuses.
        given_ids: a response that is there already: the engine samples nothing and returns these ids with their
            log-probabilities. An engine that cannot refuses. () to sample.
        entropy: whether the mean entropy is wanted, also of engines that have to ask for it (vLLM).
        routing: whether the experts that computed each token are wanted, of a mixture of experts; an engine that does
            not report them has not answered.
    """

    max_tokens: int = 32
    temperature: float = 1.0
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    suppressed_ids: tuple[int, ...] = ()
    ids_below: int | None = None
    training: bool = False
    given_ids: tuple[int, ...] = ()
    entropy: bool = False
    routing: bool = False

    @property
    def length(self) -> int:
        """Most tokens of the response."""
        return len(self.given_ids) or self.max_tokens

    def completed(self, tokens: ModelTokens) -> Sampling:
        """Return these settings with the stop, suppressed and highest ids of a model, where they name none."""
        return replace(
            self,
            stop_ids=self.stop_ids or tokens.stop_ids,
            suppressed_ids=self.suppressed_ids or tokens.suppressed_ids,
            ids_below=self.ids_below or tokens.highest_id + 1,
        )


@dataclass(frozen=True, slots=True)
class Generation:
    """One response of an engine, with the facts that training needs.

    Attributes:
        response_ids: sampled ids, the stop token included.
        logprobs: natural log-probability of each id, same length; empty from engines for evaluation only.
        version: (oldest, newest) version of the weights that served it.
        seconds: (queued, computed).
        entropy: mean over the ids of the entropy that each was sampled with, in nats; None from engines that do not
            know it, or were not asked (vLLM).
        routing: experts that the routers of a mixture chose where each id was sampled, packed by `expert_routing.pack`;
            empty where they were not asked for.
    """

    text: str
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: tuple[int, int]
    finish_reason: str
    engine: str = ""
    seconds: tuple[float, float] = (0.0, 0.0)
    entropy: float | None = None
    routing: bytes = b""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The version that an engine serves, and its load.

    Attributes:
        waiting: requests of `in_flight` that it has not begun.
        capacity: requests that it computes at the same time; 0 if it does not say.
        kv_use: share of its cache of keys and values that is taken; 0 where there is no bound.
    """

    name: str
    model: str
    version: int
    in_flight: int = 0
    busy_s: float = 0.0
    requests: int = 0
    tokens: int = 0
    waiting: int = 0
    capacity: int = 0
    kv_use: float = 0.0


class Engine(Protocol):
    """Generates responses. Safe for many concurrent `generate` calls (they are batched)."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Sample one response. Raises `EngineError`."""


class ModelEngine(Engine, Protocol):
    """An engine that holds a model, here or behind a connection."""

    async def update_weights(self, path: str, version: int) -> None:
        """Load the weights of a checkpoint directory between two batches; later results carry `version`."""

    async def info(self) -> EngineInfo:
        """Current state."""

    async def close(self) -> None:
        """Let go of resources."""

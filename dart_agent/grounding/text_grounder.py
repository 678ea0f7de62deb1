"""EngineGrounder: any vision-language model behind an engine is asked for coordinates in text, or a head for a patch.

Invariant: nothing that a model wrote is evaluated: the first two numbers of its answer are its point.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dart_agent.engines.base.engine import BadResponse, Engine, Generation, Prompt, Sampling
from dart_agent.engines.base.engine_replies import checked
from dart_agent.formats import get_format
from dart_agent.formats.grammar.reasoning import split_reasoning
from dart_agent.grounding.candidate import Candidate, Grounding, Query
from dart_agent.grounding.pointer_prompt import PointerPrompt, has_head
from dart_agent.models.coordinates import CoordinateSpace
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.presets import get_preset
from dart_agent.prompting.conversation import Conversation, ConversationConfig

Point = tuple[int, int]
QUERY = "Query:{description}\nOutput only the coordinate of one point in your response.\n"
MAX_ANSWER = 4000
_NUMBER = re.compile(r"-?\d{1,7}(?:\.\d{1,6})?")


class EngineGrounder:
    """A `Grounder` of a vision-language model, asked as Agent-S asks its grounding model.

    The first candidate is the greedy answer, further ones are sampled; equal places are one. A score is the probability
    of the answer's tokens, which only engines for training know.

    Args:
        relative: the size of the model's coordinates (1000 for 0 to 1000); None where they are pixels of the image
            that it sees, or as the preset says.
        preset: how the model is asked, and what its coordinates mean; as Agent-S asks without one.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        tokens: ModelTokens,
        vision: VisionSpec,
        relative: int | None = None,
        preset: str | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        self._preset = get_preset(preset) if preset else None
        self._engine = engine
        self._vision = vision
        self._relative = relative
        self._sampling = (sampling or Sampling(max_tokens=64, temperature=0.0)).completed(tokens)
        self._tokens = tokens

    @classmethod
    def from_dir(
        cls, engine: Engine, model_dir: str | Path, *, relative: int | None = None, preset: str | None = None
    ) -> EngineGrounder:
        """With tokenizer and image processing read from a model directory."""
        tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
        return cls(engine, tokens=tokens, vision=vision, relative=relative, preset=preset)

    def around(self, engine: Engine) -> Self:
        """The same around another engine."""
        other = copy.copy(self)
        other._engine = engine
        return other

    async def locate(self, description: str, screenshot: NDArray[np.uint8], k: int = 1) -> list[Candidate]:
        """Ask the model k times, at the same time."""
        prompt = self.prompt(description, screenshot)
        asked = [self._sampling, *(dataclasses.replace(self._sampling, temperature=1.0, seed=n) for n in range(1, k))]
        answers = await asyncio.gather(*(self._ask(prompt, sampling) for sampling in asked))
        found: dict[Point, Candidate] = {}
        for answer in answers:
            for place in self._places(answer, screenshot):
                found.setdefault((place.x, place.y), place)
        return list(found.values())

    async def choose(
        self, description: str, screenshot: NDArray[np.uint8], seed: int
    ) -> tuple[Prompt, Generation, list[Candidate]]:
        """Ask once: what was asked and answered, by exact tokens with log-probabilities, and the place, or none."""
        prompt = self.prompt(description, screenshot)
        answer = await self._ask(prompt, dataclasses.replace(self._sampling, seed=seed))
        return prompt, answer, self._places(answer, screenshot)

    async def _ask(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """One response whose values are sound. Raises `EngineError`."""
        return checked(await self._engine.generate(prompt, sampling), sampling)

    def _places(self, answer: Generation, screenshot: NDArray[np.uint8]) -> list[Candidate]:
        point = self._point(answer, screenshot)
        score = math.exp(sum(answer.logprobs)) if answer.logprobs else math.nan
        return [Candidate(*point, score)] if point else []

    def _point(self, answer: Generation, screenshot: NDArray[np.uint8]) -> Point | None:
        return point_of(answer.text, self._space(screenshot))

    async def locate_batch(self, queries: Sequence[Query], k: int = 1) -> list[Grounding]:
        """Ask about all of them at the same time: the engine makes batches."""
        found = await asyncio.gather(*(self.locate(query.description, query.screenshot, k) for query in queries))
        return [Grounding(tuple(candidates)) for candidates in found]

    def prompt(self, description: str, screenshot: NDArray[np.uint8]) -> Prompt:
        """Return the model's prompt: a separate conversation for every question, so that many can be asked at once."""
        config = ConversationConfig(style="short", screenshots=1)
        if self._preset:
            config = ConversationConfig(preset=self._preset.name)
        conversation = Conversation(self._tokens, self._vision, config)
        conversation.begin(description if self._preset else QUERY.format(description=description))
        conversation.observe(screenshot)
        return conversation.prompt()

    def _space(self, screenshot: NDArray[np.uint8]) -> CoordinateSpace:
        height, width = screenshot.shape[:2]
        if self._relative is not None:
            return CoordinateSpace.relative((width, height), self._relative)
        space = self._vision.space(height, width)
        return get_format(self._preset.format).space(space) if self._preset else space


class EnginePointer(EngineGrounder):
    """The same of a pointer model: the engine answers with a patch instead of text, greedily unless told otherwise."""

    def __init__(self, engine: Engine, asked: PointerPrompt, sampling: Sampling | None = None) -> None:
        super().__init__(engine, tokens=asked.tokens, vision=asked.vision)
        sampling = sampling or Sampling(temperature=0.0)
        self._asked = asked
        self._sampling = dataclasses.replace(sampling, max_tokens=1, stop_ids=(), suppressed_ids=(), ids_below=None)

    def prompt(self, description: str, screenshot: NDArray[np.uint8]) -> Prompt:
        """The question that ends in <ACTOR>."""
        return self._asked.prompt(description, screenshot)

    def _point(self, answer: Generation, screenshot: NDArray[np.uint8]) -> Point | None:
        if not answer.response_ids:
            raise BadResponse("the engine answered with no patch of the screenshot")
        try:
            return self._asked.place(answer.response_ids[0], screenshot)
        except ValueError as error:
            raise BadResponse(f"the engine's answer is no place: {error}") from None


def grounder_in(model_dir: str | Path, sampling: Sampling) -> EngineGrounder:
    """The grounder of a model directory, by its head where it has one, still without an engine (`around`)."""
    nowhere: Any = None
    if has_head(model_dir):
        return EnginePointer(nowhere, PointerPrompt.load(model_dir), sampling)
    tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
    return EngineGrounder(nowhere, tokens=tokens, vision=vision, sampling=sampling)


def point_of(answer: str, space: CoordinateSpace) -> Point | None:
    """The pixel that the first two numbers of an answer mean; None without two, or off the screen. Pure.

    The answer's thoughts are left out; an answer that ends while thinking names no place.
    """
    split = split_reasoning(answer)
    numbers = [] if split.unfinished else _NUMBER.findall(split.answer[:MAX_ANSWER])
    if len(numbers) < 2:
        return None
    x, y = space.pixel(float(numbers[0]), float(numbers[1]))
    return (x, y) if 0 <= x < space.screen[0] and 0 <= y < space.screen[1] else None

"""Grounders: an element described in words -> its place on the screen.

Invariants:
    - Places are pixels of the real screen. A grounder that finds nothing says so (None), it never guesses.
    - Nothing that a model wrote is evaluated: the first two numbers of its answer are its point.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dart_agent.engines.base.engine import Engine, Sampling
from dart_agent.formats import get_format
from dart_agent.models.coordinates import CoordinateSpace
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.presets import get_preset
from dart_agent.prompting.conversation import Conversation, ConversationConfig

Point = tuple[int, int]
QUERY = "Query:{description}\nOutput only the coordinate of one point in your response.\n"
MAX_ANSWER = 4000
_NUMBER = re.compile(r"-?\d{1,7}(?:\.\d{1,6})?")


class Grounder(Protocol):
    """Finds elements."""

    async def locate(self, description: str, screenshot: NDArray[np.uint8]) -> Point | None:
        """An element's (x, y) on an (H, W, 3) screenshot; None if it is not seen. Raises `EngineError`."""


class EngineGrounder:
    """A `Grounder` that asks a vision-language model behind an engine, as Agent-S asks its grounding model.

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
        self._engine, self._vision, self._relative = engine, vision, relative
        sampling = sampling or Sampling(max_tokens=64, temperature=0.0)
        self._sampling = dataclasses.replace(
            sampling,
            stop_ids=sampling.stop_ids or tokens.stop_ids,
            suppressed_ids=sampling.suppressed_ids or tokens.suppressed_ids,
        )
        self._tokens = tokens

    @classmethod
    def from_dir(
        cls, engine: Engine, model_dir: str | Path, *, relative: int | None = None, preset: str | None = None
    ) -> EngineGrounder:
        """With tokenizer and image processing read from a model directory."""
        tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
        return cls(engine, tokens=tokens, vision=vision, relative=relative, preset=preset)

    async def locate(self, description: str, screenshot: NDArray[np.uint8]) -> Point | None:
        """Ask the model."""
        # A conversation of its own for every question, so that questions may be asked at the same time.
        config = ConversationConfig(style="short", screenshots=1)
        if self._preset:
            config = ConversationConfig(preset=self._preset.name)
        conversation = Conversation(self._tokens, self._vision, config)
        conversation.begin(description if self._preset else QUERY.format(description=description))
        conversation.observe(screenshot)
        generation = await self._engine.generate(conversation.prompt(), self._sampling)
        height, width = screenshot.shape[:2]
        space = self._vision.space(height, width)
        if self._preset and self._relative is None:
            space = get_format(self._preset.format).space(space)
        elif self._relative is not None:
            space = CoordinateSpace.relative((width, height), self._relative)
        return point_of(generation.text, space)


def point_of(answer: str, space: CoordinateSpace) -> Point | None:
    """The pixel that the first two numbers of an answer mean; None without two, or off the screen. Pure."""
    numbers = _NUMBER.findall(answer[:MAX_ANSWER])
    if len(numbers) < 2:
        return None
    x, y = space.pixel(float(numbers[0]), float(numbers[1]))
    return (x, y) if 0 <= x < space.screen[0] and 0 <= y < space.screen[1] else None

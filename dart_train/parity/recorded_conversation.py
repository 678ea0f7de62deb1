"""A conversation with several images, sampled by the engine that is compared, as the trainer is given it.

Two rollouts of one task on drawn screens of unlike sizes: they begin with the same prompt, so that rows get branches;
prompts extend one another until the window drops screenshots, so that rows get several spans, and there are several.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dart_agent.engines.base.engine import Engine, Sampling
from dart_agent.episodes.screenshots import image_hash
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from dart_train.trainer.batches.samples import Sample

ROLLOUTS = 2
INSTRUCTION = "Open the dialog, then click on the tab"


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the conversation is.

    Attributes:
        screen: (width, height) of the largest screenshot, in pixels.
    """

    screen: tuple[int, int] = (1280, 720)
    steps: int = 5
    tokens: int = 24
    screenshots: int = 3
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was sampled."""

    samples: list[Sample]
    screens: Mapping[str, NDArray[np.uint8]]


async def record(engine: Engine, model_dir: str | Path, shape: Shape) -> Recorded:
    """Let an engine answer, and return the conversation.

    Raises:
        EngineError: if it does not answer, or its answers cannot be trained on.
    """
    tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
    samples: list[Sample] = []
    screens: dict[str, NDArray[np.uint8]] = {}
    window = ConversationConfig(style="short", screenshots=shape.screenshots, block=max(1, shape.screenshots - 1))
    for rollout in range(ROLLOUTS):
        conversation = Conversation(tokens, vision, window)
        conversation.begin(INSTRUCTION)
        for step in range(shape.steps):
            # The first screen is that of the task, the same for all of its rollouts.
            conversation.observe(drawn_screen(step and 100 * rollout + step, *_size(shape.screen, step)))
            prompt = conversation.prompt()
            hashes = tuple(image_hash(image) for image in prompt.images)
            screens.update(zip(hashes, prompt.images, strict=True))
            answer = await engine.generate(
                prompt,
                Sampling(
                    max_tokens=shape.tokens,
                    temperature=shape.temperature,
                    seed=100 * rollout + step,
                    stop_ids=tokens.stop_ids,
                    suppressed_ids=tokens.suppressed_ids,
                    training=True,
                ),
            )
            samples.append(
                Sample(prompt.token_ids, hashes, answer.response_ids, answer.logprobs, trajectory=rollout, group=0)
            )
            conversation.respond(answer.response_ids)
    return Recorded(samples, screens)


def _size(screen: tuple[int, int], step: int) -> tuple[int, int]:
    """Unlike sizes one after the other, so that images in each other's places would be seen."""
    width, height = screen
    return (width, height) if step % 2 == 0 else (width * 3 // 4, height)


def drawn_screen(seed: int, width: int, height: int) -> NDArray[np.uint8]:
    """(height, width, 3) uint8: windows of plain colours with lines of small marks, as on a desktop."""
    rng = np.random.default_rng(seed)
    image = np.full((height, width, 3), rng.integers(60, 200, 3), np.uint8)
    for _ in range(6):
        left, top = rng.integers(0, width // 2), rng.integers(0, height // 2)
        right, bottom = left + rng.integers(8, max(9, width // 2)), top + rng.integers(8, max(9, height // 2))
        image[top:bottom, left:right] = rng.integers(0, 256, 3)
        image[top:bottom:6, left:right:3] = rng.integers(0, 256, 3)
    return image

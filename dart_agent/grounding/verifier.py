"""Verifier: a vision-language model is asked whether a circle on the screenshot is on what is described.

After GUI-Actor (arXiv 2506.03143): candidates are visited in their order, the first that is right with enough
probability is taken, and where none is, the likeliest. Its answer is P(True) / (P(True) + P(False)) of one token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from dart_agent.engines.base.engine import BadResponse, Engine, Prompt, Sampling
from dart_agent.engines.base.engine_replies import checked
from dart_agent.grounding.candidate import Candidate, Grounding, Query
from dart_agent.models.families.family_table import model_config
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens

RADIUS, MARGIN = 7, 500
"""Radius of the circle, and the margin around it on every side that is shown, in pixels."""
ACCEPTED = 0.95
"""Published for ScreenSpot-Pro; 0.8 for ScreenSpot and v2."""
_QUESTION = (
    "<|im_start|>user\n<|vision_start|>{image}<|vision_end|>Is the circle on {description}? Answer True or False."
    "<|im_end|>\n<|im_start|>assistant\n"
)


def marked(screenshot: NDArray[np.uint8], x: int, y: int, margin: int = MARGIN) -> NDArray[np.uint8]:
    """Return what of an (H, W, 3) screenshot lies around a point, with a hollow red circle around the point. Pure."""
    left, top = max(0, x - margin), max(0, y - margin)
    image = Image.fromarray(screenshot[top : y + margin, left : x + margin])
    x, y = x - left, y - top
    ImageDraw.Draw(image).ellipse((x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS), outline=(255, 0, 0), width=2)
    return np.asarray(image)


@dataclass(frozen=True)
class Verifier:
    """A judge of candidates behind an engine with log-probabilities.

    Attributes:
        vocabulary: number of ids that it can generate.
        margin: pixels of the screen that it sees on every side of the place, as when it learnt.
    """

    engine: Engine
    tokens: ModelTokens
    vision: VisionSpec
    vocabulary: int
    margin: int = MARGIN

    @classmethod
    def from_dir(cls, engine: Engine, model_dir: str | Path, margin: int = MARGIN) -> Self:
        """With tokenizer and image processing read from a model directory."""
        config = model_config(model_dir)
        ids = int((config.get("text_config") or config)["vocab_size"])
        return cls(engine, ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir), ids, margin)

    def answer(self, right: bool) -> int:
        """The token by which it says so."""
        return self.tokens.encode(str(right))[0]

    def prompt(self, description: str, screenshot: NDArray[np.uint8], x: int, y: int) -> Prompt:
        """The question about one place."""
        image = self.vision.resize(marked(screenshot, x, y, self.margin))
        pads = [self.tokens.image_pad_id] * self.vision.num_tokens(image)
        ids = self.tokens.encode_template(_QUESTION, {"description": description}, {"image": pads})
        return Prompt(tuple(ids), (image,))

    async def probability(self, description: str, screenshot: NDArray[np.uint8], x: int, y: int) -> float:
        """P(True) / (P(True) + P(False)): the engine may say nothing else.

        Raises:
            EngineError: if it does not answer, or answers something else or without a probability.
        """
        true, false = self.answer(True), self.answer(False)
        others = tuple(token for token in range(self.vocabulary) if token not in (true, false))
        sampling = Sampling(max_tokens=1, temperature=0.0, suppressed_ids=others)
        said = checked(await self.engine.generate(self.prompt(description, screenshot, x, y), sampling), sampling)
        if len(said.logprobs) != 1 or said.response_ids[0] not in (true, false):
            raise BadResponse("the judge answered neither True nor False with a log-probability")
        likely = math.exp(said.logprobs[0])
        return likely if said.response_ids[0] == true else 1 - likely


class VerifiedGrounder:
    """A `Grounder` whose candidates are judged; `score` is what the verifier says, and the first one is its choice."""

    def __init__(self, grounder: Any, verifier: Verifier, *, candidates: int = 20, accepted: float = ACCEPTED) -> None:
        self._grounder = grounder
        self._verifier = verifier
        self._candidates = candidates
        self._accepted = accepted

    async def locate(self, description: str, screenshot: NDArray[np.uint8], k: int = 1) -> list[Candidate]:
        """Judge candidates until one is accepted; the likeliest k of those that were judged."""
        judged: list[Candidate] = []
        for found in await self._grounder.locate(description, screenshot, self._candidates):
            likely = await self._verifier.probability(description, screenshot, found.x, found.y)
            judged.append(replace(found, score=likely))
            if likely >= self._accepted:
                break
        return sorted(judged, key=lambda candidate: -candidate.score)[:k]

    async def locate_batch(self, queries: Sequence[Query], k: int = 1) -> list[Grounding]:
        """One after the other."""
        return [Grounding(tuple(await self.locate(asked.description, asked.screenshot, k))) for asked in queries]

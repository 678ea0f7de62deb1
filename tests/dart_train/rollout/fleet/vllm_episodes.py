"""Episodes on vLLM servers that a pool started, and what a plain forward pass says of their steps."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pool_builders import until

from dart_agent.engines.base.engine import Generation, Prompt, Sampling
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from dart_train.rollout.fleet.engine_pool import EnginePool, EpisodeEngine
from dart_train.rollout.settings.rollout_config import EngineConfig
from tests.helpers.vllm_server import ENVIRONMENT, OPTIONS, START_S, program

STEPS = 6
EXACT = 1e-3


def settings(**changes) -> EngineConfig:
    options = {"program": [str(program())], "options": OPTIONS, "environment": ENVIRONMENT, "max_length": 2048}
    values = {"kind": "vllm", "replicas": 2, "options": options, "start_timeout_s": START_S, "request_timeout_s": 300.0}
    return EngineConfig(**{**values, "unavailable_timeout_s": START_S, "fingerprint_tolerance": EXACT, **changes})


@dataclasses.dataclass
class Played:
    prompt: Prompt
    generation: Generation
    replica: str
    at: float


class Episodes:
    """Episodes one after the other on the same screens, so that prompts come again over all versions."""

    def __init__(self, pool: EnginePool, model: Path) -> None:
        self._pool, self._tokens, self._vision = pool, ModelTokens.load(model), VisionSpec.from_dir(model)
        self.steps: list[Played] = []
        self.going = True

    @property
    def suppressed(self) -> tuple[int, ...]:
        return self._tokens.suppressed_ids

    async def play(self, number: int) -> None:
        rng = np.random.default_rng(number)
        screens = rng.integers(0, 256, (STEPS, 112, 84, 3), dtype=np.uint8)
        played = 0
        while self.going:
            engine = EpisodeEngine(self._pool)
            conversation = Conversation(self._tokens, self._vision, ConversationConfig(screenshots=3))
            conversation.begin(f"Click on button {number}")
            for screen in screens:
                if not self.going:
                    return
                conversation.observe(screen)
                prompt = conversation.prompt()
                played += 1
                sampling = Sampling(
                    8, seed=1000 * number + played, suppressed_ids=self.suppressed, stop_ids=(), training=True
                )
                generation = await engine.generate(prompt, sampling)
                self.steps.append(Played(prompt, generation, generation.engine, time.monotonic()))
                conversation.respond(generation.response_ids)

    async def until_steps(self, count: int) -> float:
        """Wait for so many more steps; return the seconds that it took."""
        started, goal = time.monotonic(), len(self.steps) + count
        await until(lambda: len(self.steps) >= goal, timeout=1200)
        return time.monotonic() - started


def plain(model: Any, vision: VisionSpec, step: Played, suppressed: tuple[int, ...]) -> np.ndarray:
    """Log-probabilities of a step's response by a fresh forward pass of the published weights."""
    prompt, response = step.prompt, step.generation.response_ids
    ids = torch.tensor([[*prompt.token_ids, *response]])
    with torch.no_grad():
        logits = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=torch.from_numpy(np.concatenate([vision.patchify(image) for image in prompt.images])),
            image_grid_thw=torch.tensor([vision.grid(image) for image in prompt.images]),
            mm_token_type_ids=(ids == model.config.image_token_id).int(),
        ).logits[0].float()  # fmt: skip
    logits[:, list(suppressed)] = -torch.inf
    start = len(prompt.token_ids)
    scores = logits[start - 1 : start - 1 + len(response)].log_softmax(-1)
    return scores.gather(1, torch.tensor(response)[:, None])[:, 0].numpy()

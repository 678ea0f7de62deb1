"""Prompts of the length and the images that tests of vLLM need."""

import numpy as np

from dart_agent.engines.base.engine import Prompt
from dart_agent.prompting.conversation import Conversation, ConversationConfig


def frame(seed: int, height: int = 56, width: int = 84) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def history(tokens, vision, steps: int, **settings) -> Prompt:
    """The prompt after so many steps of an episode, with images of different sizes."""
    conversation = Conversation(tokens, vision, ConversationConfig(**{"style": "short", **settings}))
    conversation.begin("Click on the button")
    for step in range(steps):
        conversation.observe(frame(step, 28 * (1 + step % 3), 56))
        conversation.respond(tokens.response(f"Action: click(start_box='({step},7)')"))
    conversation.observe(frame(steps))
    return conversation.prompt()

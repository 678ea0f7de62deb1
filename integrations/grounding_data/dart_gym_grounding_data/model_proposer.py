"""A vision-language model of any engine as a `Proposer`: shown the screen and what similar deeds did, it gives marks.

Invariant: nothing that it wrote is evaluated; where it gives no mark, the tree's proposal stays.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from dart_agent.engines.base.engine import Engine, Sampling
from dart_agent.engines.base.engine_replies import checked
from dart_agent.formats.grammar.reasoning import split_reasoning
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from dart_gym_grounding_data.exploration_graph import Node
from dart_gym_grounding_data.explorer import TreeProposer

QUESTION = """You explore an application to see as many different screens as you can. For each action below, answer
with a line "number: mark", from 0 (shows nothing new, or ends the application) to 10 (surely opens something new).
"""
_MARK = re.compile(r"^\W{0,3}(\d{1,3})\s*[:=]\s*(\d{1,2}(?:\.\d{1,3})?)", re.MULTILINE)
MOST, LONGEST, TOKENS = 40, 4000, 400


class ModelProposer:
    """Asks about the first `MOST` deeds of a screen at once."""

    def __init__(self, engine: Engine, model_dir: str | Path) -> None:
        self._engine, self._tokens, self._vision = engine, ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)

    async def propose(self, node: Node, told: Mapping[str, str]) -> Mapping[str, float]:
        """Marks out of ten as a worth. Raises `EngineError`."""
        keys = list(node.deeds)[:MOST]
        lines = [f"{n}: {key.replace('|', ' ')} {told.get(key, '')}" for n, key in enumerate(keys)]
        conversation = Conversation(self._tokens, self._vision, ConversationConfig(style="short", screenshots=1))
        conversation.begin(QUESTION + "\n".join(lines))
        conversation.observe(node.screen.image)
        stops, never = self._tokens.stop_ids, self._tokens.suppressed_ids
        sampling = Sampling(max_tokens=TOKENS, temperature=0.0, stop_ids=stops, suppressed_ids=never)
        answer = checked(await self._engine.generate(conversation.prompt(), sampling), sampling)
        return {**await TreeProposer().propose(node, told), **marks_of(answer.text, keys)}


def marks_of(answer: str, keys: list[str]) -> dict[str, float]:
    """The worth of deeds by the marks in an answer, without those that it only thinks of. Pure."""
    said = split_reasoning(answer).answer[:LONGEST]
    found = ((int(number), float(mark)) for number, mark in _MARK.findall(said))
    return {keys[number]: min(1.0, mark / 10) for number, mark in found if number < len(keys)}

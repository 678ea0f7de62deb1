"""VLMPolicy: a vision-language model behind an engine.

Invariants:
    - The decision holds the prompt and the generation exactly as the engine had them, parsable or not.
    - What a response thinks is never carried out, also where the prompt opened the thought; see `formats`.
    - A response without a valid action ends the episode as PARSE_ERROR, or with `patience` is a step that does nothing
      and whose error stands in the next prompt; an engine without an answer as MODEL_ERROR.
    - Every step of an episode samples with a seed of its own, derived from the episode's.
"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import numpy as np

from dart_agent.engines.base.engine import Engine, EngineError, Generation, Sampling
from dart_agent.engines.base.engine_replies import checked
from dart_agent.formats import get_format
from dart_agent.formats.grammar.action_format import ActionFormat
from dart_agent.formats.grammar.reasoning import split_reasoning
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.policies.policy import Decision, Episode
from dart_agent.prompting.conversation import Conversation, ConversationConfig, style_for
from dart_gym.core.actions import Wait
from dart_gym.core.outcomes import Observation, TerminalState

BIG_SCREEN = 500_000
"""Bytes of pixels from which on resizing takes milliseconds."""


class VLMPolicy:
    """A `Policy` that asks an engine."""

    def __init__(
        self,
        engine: Engine,
        *,
        tokens: ModelTokens,
        vision: VisionSpec,
        action_format: ActionFormat,
        conversation: ConversationConfig | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        """Put the parts together. Of `sampling` the seed is replaced at every step.

        The prompt is in the words of the action format by default; empty stop and suppressed ids are taken from
        `tokens`.
        """
        self._engine = engine
        self._vision = vision
        self._format = action_format
        self._sampling = (sampling or Sampling()).completed(tokens)
        if conversation is None:
            conversation = ConversationConfig(style=style_for(action_format))
        self._conversation = Conversation(tokens, vision, conversation, action_format)
        self._patience = conversation.patience
        self._seed = self._step = self._unread = 0
        self._problem = ""

    @classmethod
    def from_dir(
        cls,
        engine: Engine,
        model_dir: str | Path,
        *,
        action_format: str = "ui_tars",
        conversation: ConversationConfig | None = None,
        sampling: Sampling | None = None,
    ) -> VLMPolicy:
        """With tokenizer and image processing read from a model directory."""
        return cls(
            engine,
            tokens=ModelTokens.load(model_dir),
            vision=VisionSpec.from_dir(model_dir),
            action_format=get_format(action_format),
            conversation=conversation,
            sampling=sampling,
        )

    def reset(self, episode: Episode) -> None:
        """Forget the last episode."""
        self._conversation.begin(episode.instruction)
        self._seed = episode.seed
        self._step = 0
        self._unread = 0
        self._problem = ""

    async def act(self, observation: Observation) -> Decision:
        """Sample a response to the newest screenshot and read its actions."""
        await self._see(observation)
        prompt = self._conversation.prompt()
        sampling = dataclasses.replace(self._sampling, seed=step_seed(self._seed, self._step))
        self._step += 1
        try:
            generation = checked(await self._engine.generate(prompt, sampling), sampling)
            self._conversation.respond(generation.response_ids)
        except EngineError as error:
            return Decision(error=str(error), terminal=TerminalState.MODEL_ERROR, prompt=prompt)
        return dataclasses.replace(self._read(observation, generation), prompt=prompt, generation=generation)

    async def recall(self, observation: Observation, generation: Generation) -> Decision:
        """Take a recorded response to this screen as the policy's own, without asking the engine.

        Afterwards the next prompt and its sampling seed are the same as if the response had been sampled here.

        Returns:
            The decision, without prompt and generation: it is not trained on again.

        Raises:
            BadResponse: if the response is not of this policy's model.
        """
        await self._see(observation)
        self._step += 1
        self._conversation.respond(generation.response_ids)
        return self._read(observation, generation)

    async def _see(self, observation: Observation) -> None:
        screenshot = observation.screenshot
        if screenshot.nbytes > BIG_SCREEN:  # the episodes of a loop must not wait for one another's pixels
            screenshot = await asyncio.to_thread(self._vision.resize, screenshot)
        self._conversation.observe(screenshot, self._problem or observation.action_error)

    def _read(self, observation: Observation, generation: Generation) -> Decision:
        """Read the actions of a response; remember what the next prompt must say about the response."""
        space = self._vision.space(*observation.screenshot.shape[:2])
        response = self._format.parse(self._opening(generation) + generation.text, space)
        self._problem = response.problem
        self._unread = self._unread + 1 if response.errors else 0
        if response.errors:
            told = self._unread <= self._patience
            return Decision(
                (Wait(0.0),) if told else (),
                text=generation.text,
                thought=response.thought,
                error=response.problem,
                terminal=None if told else TerminalState.PARSE_ERROR,
            )
        return Decision(response.actions, generation.text, response.thought)

    def _opening(self, generation: Generation) -> str:
        """Return the thought's opening mark that belongs before a response, where the prompt wrote it.

        A server of chat messages opens responses by its own template, and gives no log-probabilities: its text has
        the marks, but where the model was cut off before it closed its thought.
        """
        cut_off = generation.finish_reason == "length" and split_reasoning(generation.text).reasoning == ""
        return self._conversation.opening if generation.logprobs or cut_off else ""


def step_seed(episode_seed: int, step: int) -> int:
    """The sampling seed of one step: unrelated for neighbouring episodes and steps, equal for equal ones."""
    state = np.random.SeedSequence([episode_seed & (2**64 - 1), step]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))

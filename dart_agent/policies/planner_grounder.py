"""PlannerGrounderPolicy: one model says what to do in words, another finds where that is. The way of Agent-S.

Invariants:
    - The planner never writes coordinates, the grounder never decides anything.
    - An element that is not found, or what makes a part of a response unreadable, is told to the planner with the next
      screenshot, and the desktop is left alone; after `patience` such steps in a row, or where nothing at all can be
      read, the episode ends as PARSE_ERROR.
    - What a grounder behind an engine chose is recorded as the step's prompt and response, so that it can be trained;
      but not where a step asks it more than once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dart_agent.engines.base.engine import EngineError, Generation, Prompt
from dart_agent.formats import ActionFormat, ParsedResponse, get_format
from dart_agent.formats.grammar.element_actions import ClickOn, Locator, ground
from dart_agent.policies.policy import Decision, Episode
from dart_agent.policies.vlm_policy import step_seed
from dart_gym.core.actions import Wait
from dart_gym.core.outcomes import Observation, TerminalState


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """An earlier step, as the planner is told about it: what it wrote, and why that could not be carried out, or ""."""

    text: str
    problem: str = ""


class Planner(Protocol):
    """Says what to do next."""

    async def plan(
        self, instruction: str, actions: str, history: Sequence[PlannedStep], screenshot: NDArray[np.uint8]
    ) -> str:
        """Return a response in the policy's action format.

        Raises:
            EngineError: if the model does not answer.
        """


class InstructionPlanner:
    """A `Planner` for tasks in which every step is a click on what the instruction names."""

    async def plan(
        self, instruction: str, actions: str, history: Sequence[PlannedStep], screenshot: NDArray[np.uint8]
    ) -> str:
        """The instruction as the description of an element."""
        return get_format("agent_s:s3").format((ClickOn(instruction),), (1, 1))


class _Choices:
    """A `Locator` around another one that keeps its question and its answer."""

    def __init__(self, grounder: Any, seed: int) -> None:
        self._grounder, self._seed = grounder, seed
        self.made: list[tuple[Prompt, Generation]] = []

    async def locate(self, description: str, screenshot: NDArray[np.uint8], k: int = 1) -> Sequence[Any]:
        if (choose := getattr(self._grounder, "choose", None)) is None:
            return list(await self._grounder.locate(description, screenshot, k))
        prompt, generation, places = await choose(description, screenshot, self._seed + len(self.made))
        self.made.append((prompt, generation))
        return list(places)


class PlannerGrounderPolicy:
    """A `Policy` of a planner and a grounder."""

    def __init__(
        self, planner: Planner, grounder: Locator, *, action_format: str = "agent_s:s3", patience: int = 3
    ) -> None:
        """Put the parts together; `patience`: limit of mistaken steps in a row."""
        self._planner = planner
        self._grounder = grounder
        self._patience = patience
        self._format: ActionFormat = get_format(action_format)
        self._instruction = ""
        self._history: list[PlannedStep] = []
        self._misses = self._seed = self._step = 0

    def reset(self, episode: Episode) -> None:
        """Forget the last episode."""
        self._instruction = episode.instruction
        self._history = []
        self._misses = 0
        self._seed, self._step = episode.seed, 0

    async def act(self, observation: Observation) -> Decision:
        """Ask the planner, then the grounder for every element that it names."""
        screenshot = observation.screenshot
        if observation.action_error and self._history:
            self._history[-1] = PlannedStep(self._history[-1].text, observation.action_error)
        try:
            text = await self._planner.plan(
                self._instruction, self._format.describe(), tuple(self._history), screenshot
            )
            height, width = screenshot.shape[:2]
            planned = self._format.parse(text, (width, height))
            choices = _Choices(self._grounder, step_seed(self._seed, self._step))
            self._step += 1
            grounded = await ground(planned, choices, screenshot)
        except EngineError as error:
            return Decision(error=str(error), terminal=TerminalState.MODEL_ERROR)
        self._history.append(PlannedStep(text, grounded.problem))
        prompt, generation = choices.made[0] if len(choices.made) == 1 else (None, None)
        return replace(self._decide(text, planned, grounded), prompt=prompt, generation=generation)

    def _decide(self, text: str, planned: ParsedResponse, grounded: ParsedResponse) -> Decision:
        if not grounded.errors:
            self._misses = 0
            return Decision(grounded.actions, text, grounded.thought)
        self._misses += 1
        if planned.actions and self._misses < self._patience:  # nothing is done; the planner sees why
            return Decision((Wait(0.0),), text, grounded.thought, error=grounded.problem)
        return Decision(text=text, thought=grounded.thought, error=grounded.problem, terminal=TerminalState.PARSE_ERROR)

"""PlannerGrounderPolicy: one model says what to do in words, another finds where that is. The way of Agent-S.

Invariants:
    - The planner never writes coordinates, the grounder never decides anything.
    - An element that is not found, or what makes a part of a response unreadable, is told to the planner with the next
      screenshot, and the desktop is left alone; after `patience` such steps in a row, or where nothing at all can be
      read, the episode ends as PARSE_ERROR.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dart_agent.engines.base.engine import EngineError
from dart_agent.formats import ActionFormat, ParsedResponse, get_format
from dart_agent.formats.grammar.element_actions import Locator, ground
from dart_agent.policies.hosted_calls import HostedCalls, Usage
from dart_agent.policies.hosted_models import OPENAI, connect, counted, fit_image
from dart_agent.policies.policy import Decision, Episode
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
        """A response in the policy's action format. Raises `EngineError`: the model does not answer."""


class PlannerGrounderPolicy:
    """A `Policy` of a planner and a grounder."""

    def __init__(
        self, planner: Planner, grounder: Locator, *, action_format: str = "agent_s:s3", patience: int = 3
    ) -> None:
        """Put the parts together; `patience`: so many steps in a row may be mistaken."""
        self._planner, self._grounder, self._patience = planner, grounder, patience
        self._format: ActionFormat = get_format(action_format)
        self._instruction = ""
        self._history: list[PlannedStep] = []
        self._misses = 0

    def reset(self, episode: Episode) -> None:
        """Forget the last episode."""
        self._instruction, self._history, self._misses = episode.instruction, [], 0

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
            grounded = await ground(planned, self._grounder, screenshot)
        except EngineError as error:
            return Decision(error=str(error), terminal=TerminalState.MODEL_ERROR)
        self._history.append(PlannedStep(text, grounded.problem))
        return self._decide(text, planned, grounded)

    def _decide(self, text: str, planned: ParsedResponse, grounded: ParsedResponse) -> Decision:
        if not grounded.errors:
            self._misses = 0
            return Decision(grounded.actions, text, grounded.thought)
        self._misses += 1
        if planned.actions and self._misses < self._patience:  # nothing is done; the planner sees why
            return Decision((Wait(0.0),), text, grounded.thought, error=grounded.problem)
        return Decision(text=text, thought=grounded.thought, error=grounded.problem, terminal=TerminalState.PARSE_ERROR)


class ChatPlanner:
    """A `Planner` behind a chat-completions API, OpenAI's or like it; without a `client` one for `base_url` is made."""

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        max_tokens: int = 1024,
        temperature: float = 0.0,
        calls: HostedCalls | None = None,
    ) -> None:
        self._calls = calls or HostedCalls(OPENAI)
        self._client = client or connect(OPENAI, base_url)
        self._model, self._max_tokens, self._temperature = model, max_tokens, temperature

    async def plan(
        self, instruction: str, actions: str, history: Sequence[PlannedStep], screenshot: NDArray[np.uint8]
    ) -> str:
        """Ask for a response to the newest screenshot; earlier steps are told in words."""
        steps = "\n\n".join(
            f"Step {n}:\n{step.text}" + (f"\nThis failed: {step.problem}" if step.problem else "")
            for n, step in enumerate(history, 1)
        )
        asked = f"Task: {instruction}\n\n{f'What you did so far:{chr(10)}{steps}' if steps else ''}\n\nWhat is next?"
        url = f"data:image/png;base64,{fit_image(screenshot).png}"
        content = [{"type": "text", "text": asked}, {"type": "image_url", "image_url": {"url": url}}]

        async def send() -> dict[str, Any]:
            answer = await self._client.chat.completions.create(
                model=self._model,
                messages=[
                    {"role": "system", "content": f"You use a computer to do a task.\n\n{actions}"},
                    {"role": "user", "content": content},
                ],
                max_completion_tokens=self._max_tokens,
                temperature=self._temperature,
            )
            return dict(answer.to_dict())

        found = await self._calls.ask(send, _usage, self._model)
        if isinstance(found, Decision):
            raise EngineError(found.error)
        choices = found[0].get("choices") or [{}]
        if not (said := (choices[0].get("message") or {}).get("content")):
            raise EngineError(f"the planner {self._model} answered nothing")
        return str(said)


def _usage(answer: dict[str, Any]) -> Usage:
    return counted(answer.get("usage"), input="prompt_tokens", output="completion_tokens")

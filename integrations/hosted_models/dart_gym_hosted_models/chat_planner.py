"""ChatPlanner: the planner of a `PlannerGrounderPolicy` as a model behind chat completions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dart_agent.engines.base.engine import EngineError
from dart_agent.formats.grammar.reasoning import message_text
from dart_agent.policies.planner_grounder import PlannedStep
from dart_agent.policies.policy import Decision
from dart_gym_hosted_models.hosted_calls import HostedCalls, Usage
from dart_gym_hosted_models.hosted_models import OPENAI, connect, counted, fit_image


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
        if not (said := message_text(choices[0].get("message") or {})):
            raise EngineError(f"the planner {self._model} answered nothing")
        return said


def _usage(answer: dict[str, Any]) -> Usage:
    return counted(answer.get("usage"), input="prompt_tokens", output="completion_tokens")

"""OpenAIPolicy: a model of OpenAI with its computer tool, through the official SDK and the Responses API.

The API keeps the conversation: a request names the response before it and adds what became of its calls.

Invariants:
    - Every `computer_call` of a response has its `computer_call_output`, a screenshot, in the next request.
    - A safety check is acknowledged only where `acknowledge_checks` says so; else it ends the episode.
"""

import json
from typing import Any, Literal

from dart_agent.formats import get_format
from dart_agent.policies.hosted_models import OPENAI, connect, decide, fit_image
from dart_agent.policies.policy import Decision, Episode
from dart_gym.core.outcomes import Observation, TerminalState

Tool = Literal["computer", "computer_use_preview"]


class OpenAIPolicy:
    """A `Policy` that asks OpenAI's Responses API."""

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        tool: Tool = "computer",
        max_tokens: int = 2048,
        acknowledge_checks: bool = False,
    ) -> None:
        """Put the parts together; without a `client` one is made, with the key in OPENAI_API_KEY.

        With `acknowledge_checks` it goes on where the API wants a person to look at what the model is about to do: for
        desktops that hold nothing of value and reach nothing.

        Raises:
            ConfigurationError: the key is missing.
            MissingDependencyError: the SDK is not installed.
        """
        self._sdk = OPENAI.sdk()
        self._client = client or connect(OPENAI, base_url)
        self._model, self._max_tokens, self._acknowledge = model, max_tokens, acknowledge_checks
        self._format: Any = get_format("openai", tool=tool)
        self._instruction = ""
        self._previous: dict[str, Any] = {}

    def reset(self, episode: Episode) -> None:
        """Forget the last episode."""
        self._instruction, self._previous = episode.instruction, {}

    async def act(self, observation: Observation) -> Decision:
        """Ask for the next actions. Raises `ConfigurationError`: the key is wrong, or there is no such model."""
        image = fit_image(observation.screenshot)
        url = f"data:image/png;base64,{image.png}"
        more = {"previous_response_id": self._previous["id"]} if self._previous else {}
        try:
            response = await self._client.responses.create(
                model=self._model,
                instructions=self._format.describe(),
                input=self._news(url, observation.action_error),
                tools=[self._format.tool_schema(image.space)],
                max_output_tokens=self._max_tokens,
                truncation="auto",
                **more,
            )
        except self._sdk.APIError as error:
            return OPENAI.failed(self._sdk, error, self._model)
        answer = response.to_dict()
        self._previous = answer
        text = readable(answer.get("output"))
        if (checks := pending_checks(answer)) and not self._acknowledge:
            said = "; ".join(str(check.get("message") or check.get("code")) for check in checks)
            return Decision(
                text=text,
                error=f"OpenAI wants a person to check this step ({said}): look at it, or set acknowledge_checks",
                terminal=TerminalState.MODEL_ERROR,
            )
        return decide(self._format.parse(answer, image.space), text)

    def _news(self, url: str, action_error: str) -> list[dict[str, Any]]:
        """What the next request adds: the instruction at first, then an output for each call."""
        if not self._previous:
            content = [
                {"type": "input_text", "text": self._instruction},
                {"type": "input_image", "image_url": url, "detail": "auto"},
            ]
            return [{"role": "user", "content": content}]
        news: list[dict[str, Any]] = []
        for call in _calls(self._previous):
            output = {"type": "computer_screenshot", "image_url": url}
            item = {"type": "computer_call_output", "call_id": call["call_id"], "output": output}
            if checks := call.get("pending_safety_checks"):
                item["acknowledged_safety_checks"] = checks
            news.append(item)
        if action_error:
            news.append({"role": "user", "content": f"The last action failed: {action_error}"})
        return news


def pending_checks(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The safety checks that a response asks for."""
    return [check for call in _calls(response) for check in call.get("pending_safety_checks") or []]


def readable(output: Any) -> str:
    """What a model wrote, for people: its words, and its calls as JSON."""
    lines = []
    for item in output or []:
        if item.get("type") == "computer_call":
            lines.append("computer " + json.dumps(item.get("actions") or item.get("action"), ensure_ascii=False))
        parts = item.get("content") if item.get("type") == "message" else item.get("summary")
        lines += [str(part.get("text") or part.get("refusal") or "") for part in parts or []]
    return "\n".join(line for line in lines if line)


def _calls(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in response.get("output") or [] if item.get("type") == "computer_call"]

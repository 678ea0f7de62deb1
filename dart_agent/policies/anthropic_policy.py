"""AnthropicPolicy: a model of Anthropic with its computer tool, through the official SDK.

Invariants:
    - Every `tool_use` of a response has its `tool_result` in the next request; the last one holds the screenshot.
    - What the model wrote is sent back as it came, signatures of its thoughts too.
"""

import json
from typing import Any, Literal

from dart_agent.formats import get_format
from dart_agent.policies.hosted_models import ANTHROPIC, connect, decide, drop_images, fit_image
from dart_agent.policies.policy import Decision, Episode
from dart_gym.core.outcomes import Observation

Version = Literal["2024-10", "2025-01", "2025-11"]
_BETAS = {
    "2024-10": "computer-use-2024-10-22",
    "2025-01": "computer-use-2025-01-24",
    "2025-11": "computer-use-2025-11-24",
}
DONE = "done"


class AnthropicPolicy:
    """A `Policy` that asks Anthropic's API."""

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        version: Version = "2025-01",
        screenshots: int = 5,
        max_tokens: int = 2048,
    ) -> None:
        """Put the parts together. Raises `ConfigurationError`: no key; `MissingDependencyError`: no SDK."""
        self._sdk = ANTHROPIC.sdk()
        self._client = client or connect(ANTHROPIC, base_url)
        self._model, self._screenshots, self._max_tokens = model, screenshots, max_tokens
        self._format: Any = get_format("anthropic", version=version)
        self._beta = _BETAS[version]
        self._instruction = ""
        self._messages: list[dict[str, Any]] = []

    def reset(self, episode: Episode) -> None:
        """Forget the last episode."""
        self._instruction, self._messages = episode.instruction, []

    async def act(self, observation: Observation) -> Decision:
        """Ask for the next actions. Raises `ConfigurationError`: the key is wrong, or there is no such model."""
        image = fit_image(observation.screenshot)
        shown = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image.png}}
        self._messages.append({"role": "user", "content": self._news(shown, observation.action_error)})
        drop_images(self._messages, self._screenshots)
        try:
            message = await self._client.beta.messages.create(
                model=self._model,
                max_tokens=self._max_tokens,
                system=self._format.describe(),
                messages=self._messages,
                tools=[self._format.tool_schema(image.space)],
                betas=[self._beta],
            )
        except self._sdk.APIError as error:
            return ANTHROPIC.failed(self._sdk, error, self._model)
        answer = message.to_dict()
        self._messages.append({"role": "assistant", "content": answer.get("content") or []})
        return decide(self._format.parse(answer, image.space), readable(answer.get("content")))

    def _news(self, shown: dict[str, Any], action_error: str) -> list[dict[str, Any]]:
        """What the next request adds: the instruction at first, then a result for each use of the tool."""
        if not self._messages:
            return [{"type": "text", "text": self._instruction}, shown]
        uses = [block for block in self._messages[-1]["content"] if block.get("type") == "tool_use"]
        results: list[dict[str, Any]] = [
            {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": DONE}]}
            for use in uses
        ]
        said = [{"type": "text", "text": f"The action failed: {action_error}"}] if action_error else []
        if not results:
            return [*said, shown]
        results[-1] |= {"content": [*said, shown], "is_error": bool(action_error)}
        return results


def readable(content: Any) -> str:
    """What a model wrote, for people: its words, and its uses of the tool as JSON."""
    lines = []
    for block in content or []:
        if block.get("type") == "tool_use":
            lines.append(f"{block.get('name')} {json.dumps(block.get('input'), ensure_ascii=False)}")
        else:
            lines.append(str(block.get("text") or block.get("thinking") or ""))
    return "\n".join(line for line in lines if line)

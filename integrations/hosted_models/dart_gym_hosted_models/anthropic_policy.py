"""AnthropicPolicy: a model of Anthropic with its computer tool, through the official SDK.

Invariants:
    - Every `tool_use` of a response has its `tool_result` in the next request; the last one holds the screenshot.
    - What the model wrote is sent back as it came, signatures of its thoughts too.
    - Requests begin alike as long as no screenshot is left out, and mark where: the tool, and the last two turns.
"""

import json
from typing import Any

from dart_agent.formats import get_format
from dart_gym_hosted_models.hosted_calls import CutStreamError, Usage
from dart_gym_hosted_models.hosted_models import ANTHROPIC, HostedPolicy, SentImage, counted, drop_images

_BETAS = {
    "2024-10": "computer-use-2024-10-22",
    "2025-01": "computer-use-2025-01-24",
    "2025-11": "computer-use-2025-11-24",
}
"""Of the versions of the tool; the toolset of 2026-08 is no beta."""
DONE = "done"
CACHED = {"cache_control": {"type": "ephemeral"}}


class AnthropicPolicy(HostedPolicy):
    """A `Policy` that asks Anthropic's API; see `HostedPolicy` for the other arguments.

    Args:
        model: name of the model.
        version: of its computer tool, see `anthropic_format`.
        screenshots: so many of a conversation stay at least.
    """

    def __init__(self, model: str, *, version: str = "2026-08", screenshots: int = 5, **shared: Any) -> None:
        super().__init__(ANTHROPIC, model, get_format("anthropic", version=version), **shared)
        self._screenshots, self._beta = screenshots, _BETAS.get(version)

    def _begin(self) -> None:
        self._messages: list[dict[str, Any]] = []

    async def _send(self, image: SentImage, failed: str) -> dict[str, Any]:
        shown = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image.png}}
        messages = [*self._messages, {"role": "user", "content": self._news(shown, failed)}]
        drop_images(messages, self._screenshots)
        whole = False
        request = self._client.beta.messages.stream(
            model=self._model,
            max_tokens=self._max_tokens,
            system=self._format.describe(),
            messages=_marked(messages),
            tools=[{**self._format.tool_schema(image.space), **CACHED}],
            **({"betas": [self._beta]} if self._beta else {}),
        )
        async with request as stream:
            async for event in stream:
                whole = whole or event.type == "message_stop"
            if not whole:
                raise CutStreamError("the stream ended before its message did")
            answer: dict[str, Any] = stream.current_message_snapshot.to_dict()
        self._messages = [*messages, {"role": "assistant", "content": _sent_back(answer.get("content"))}]
        return answer

    def _news(self, shown: dict[str, Any], failed: str) -> list[dict[str, Any]]:
        """What the next request adds: the instruction at first, then a result for each use of the tool."""
        if not self._messages:
            return [{"type": "text", "text": self._instruction}, shown]
        uses = [block for block in self._messages[-1]["content"] if block.get("type") == "tool_use"]
        results: list[dict[str, Any]] = [
            {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": DONE}]}
            | ({"toolset_name": use["toolset_name"]} if use.get("toolset_name") else {})
            for use in uses
        ]
        said = [{"type": "text", "text": failed}] if failed else []
        if not results:
            return [*said, shown]
        results[-1] |= {"content": [*said, shown], "is_error": bool(failed)}
        return results

    def _usage(self, answer: dict[str, Any]) -> Usage:
        return counted(
            answer.get("usage"), input="input_tokens", output="output_tokens", cached="cache_read_input_tokens",
            written="cache_creation_input_tokens",
        )  # fmt: skip

    def _readable(self, answer: dict[str, Any]) -> str:
        lines = []
        for block in answer.get("content") or []:
            if block.get("type") == "tool_use":
                lines.append(f"{block.get('name')} {json.dumps(block.get('input'), ensure_ascii=False)}")
            else:
                lines.append(str(block.get("text") or block.get("thinking") or ""))
        return "\n".join(line for line in lines if line)


def _sent_back(content: Any) -> list[dict[str, Any]]:
    """What the model wrote, as a request may hold it: an answer of no words at all may not be sent back."""
    return [block for block in content or [] if block.get("type") != "text" or block.get("text")] or [
        {"type": "text", "text": "(no answer)"}
    ]


def _marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with the places up to which it may be cached: the ends of the last two turns of ours."""
    ours = [place for place, message in enumerate(messages) if message["role"] == "user"][-2:]
    return [
        {**message, "content": [*message["content"][:-1], {**message["content"][-1], **CACHED}]}
        if place in ours
        else message
        for place, message in enumerate(messages)
    ]

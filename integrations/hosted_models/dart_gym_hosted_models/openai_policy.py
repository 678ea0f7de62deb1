"""OpenAIPolicy: a model of OpenAI with its computer tool, through the official SDK and the Responses API.

The API keeps the conversation: a request names the response before it and adds what became of its calls.

Invariants:
    - Every `computer_call` of a response has its `computer_call_output`, a screenshot, in the next request.
    - A safety check is acknowledged only where `acknowledge_checks` says so; else it ends the episode.
"""

import json
import uuid
from typing import Any

from dart_agent.formats import get_format
from dart_gym_hosted_models.hosted_calls import CutStreamError, Usage
from dart_gym_hosted_models.hosted_models import OPENAI, HostedPolicy, SentImage, counted

_ENDS = ("response.completed", "response.incomplete", "response.failed")


class OpenAIPolicy(HostedPolicy):
    """A `Policy` that asks OpenAI's Responses API; see `HostedPolicy` for the other arguments.

    Args:
        model: name of the model.
        tool: "computer" or "computer_use_preview".
        acknowledge_checks: go on where the API wants a person to look at what the model is about to do: for desktops
            that hold nothing of value and reach nothing.
    """

    def __init__(self, model: str, *, tool: str = "computer", acknowledge_checks: bool = False, **shared: Any) -> None:
        super().__init__(OPENAI, model, get_format("openai", tool=tool), **shared)
        self._acknowledge = acknowledge_checks

    def _begin(self) -> None:
        self._previous: dict[str, Any] = {}
        self._episode = uuid.uuid4().hex

    async def _send(self, image: SentImage, failed: str) -> dict[str, Any]:
        more = {"previous_response_id": self._previous["id"]} if self._previous else {}
        events = await self._client.responses.create(
            model=self._model,
            instructions=self._format.describe(),
            input=self._news(f"data:image/png;base64,{image.png}", failed),
            tools=[self._format.tool_schema(image.space)],
            max_output_tokens=self._max_tokens,
            truncation="auto",
            prompt_cache_key=self._episode,
            stream=True,
            **more,
        )
        last: Any = None
        async for event in events:
            last = event.response if event.type in _ENDS else last
        if last is None or last.status == "failed":
            said = "the stream ended before its response did" if last is None else f"it failed: {last.error}"
            raise CutStreamError(said)
        self._previous = last.to_dict()
        return self._previous

    def _news(self, url: str, failed: str) -> list[dict[str, Any]]:
        """What the next request adds: the instruction at first, then an output for each call."""
        shown = {"type": "input_image", "image_url": url, "detail": "auto"}
        if not self._previous:
            return [{"role": "user", "content": [{"type": "input_text", "text": self._instruction}, shown]}]
        news: list[dict[str, Any]] = []
        for call in _calls(self._previous):
            output = {"type": "computer_screenshot", "image_url": url}
            item = {"type": "computer_call_output", "call_id": call["call_id"], "output": output}
            if checks := call.get("pending_safety_checks"):
                item["acknowledged_safety_checks"] = checks
            news.append(item)
        if failed or not news:
            content = [{"type": "input_text", "text": failed or "Go on."}, *([] if news else [shown])]
            news.append({"role": "user", "content": content})
        return news

    def _usage(self, answer: dict[str, Any]) -> Usage:
        found = counted(
            answer.get("usage"), input="input_tokens", output="output_tokens",
            cached="input_tokens_details.cached_tokens",
        )  # fmt: skip
        found["input"] -= found["cached"]
        return found

    def _readable(self, answer: dict[str, Any]) -> str:
        lines = []
        for item in answer.get("output") or []:
            if item.get("type") == "computer_call":
                lines.append("computer " + json.dumps(item.get("actions") or item.get("action"), ensure_ascii=False))
            parts = item.get("content") if item.get("type") == "message" else item.get("summary")
            lines += [str(part.get("text") or part.get("refusal") or "") for part in parts or []]
        return "\n".join(line for line in lines if line)

    def _check(self, answer: dict[str, Any]) -> str:
        checks = [check for call in _calls(answer) for check in call.get("pending_safety_checks") or []]
        return "" if self._acknowledge else "; ".join(str(one.get("message") or one.get("code")) for one in checks)


def _calls(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in response.get("output") or [] if item.get("type") == "computer_call"]

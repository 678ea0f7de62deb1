"""GeminiPolicy: a model of Google with its computer use, through the official SDK.

Invariants:
    - Every function call of a response has its function response in the next request; the last holds the screenshot.
    - What the model wrote is sent back as it came, signatures of its thoughts too.
    - A safety decision is acknowledged only where `acknowledge_checks` says so; else it ends the episode.

Source: google-gemini/computer-use-preview, agent.py, for the shape of function responses.
"""

import copy
import json
from typing import Any

from dart_agent.formats import get_format
from dart_gym_hosted_models.hosted_calls import CutStreamError, Usage
from dart_gym_hosted_models.hosted_models import GEMINI, HostedPolicy, SentImage, counted, left_out


class GeminiPolicy(HostedPolicy):
    """A `Policy` that asks Gemini's API; see `HostedPolicy` for the other arguments.

    Args:
        model: name of the model.
        functions: that it is offered, see `gemini_format`.
        screenshots: so many of a conversation stay at least.
        acknowledge_checks: go on where the API wants a person to confirm what the model is about to do: for desktops
            that hold nothing of value and reach nothing.
    """

    def __init__(
        self, model: str, *, functions: str = "3.5", screenshots: int = 5, acknowledge_checks: bool = False,
        **shared: Any,
    ) -> None:  # fmt: skip
        super().__init__(GEMINI, model, get_format("gemini", functions=functions), **shared)
        self._screenshots, self._acknowledge = screenshots, acknowledge_checks

    def _begin(self) -> None:
        self._contents: list[dict[str, Any]] = []

    async def _send(self, image: SentImage, failed: str) -> dict[str, Any]:
        contents = [*self._contents, {"role": "user", "parts": self._news(image, failed)}]
        _drop_screens(contents, self._screenshots)
        chunks = await self._client.models.generate_content_stream(
            model=self._model,
            contents=contents,
            config={
                "system_instruction": self._format.describe(),
                "tools": [self._format.tool_schema(image.space)],
                "max_output_tokens": self._max_tokens,
            },
        )
        answer, parts = {}, []  # type: ignore[var-annotated]
        async for chunk in chunks:
            found = chunk.model_dump(mode="json", exclude_none=True)
            first = (found.get("candidates") or [{}])[0]
            parts += (first.get("content") or {}).get("parts") or []
            answer |= found
        content = {"role": "model", "parts": parts}
        ended = (answer.get("candidates") or [{}])[0].get("finish_reason")
        if ended is None and not (answer.get("prompt_feedback") or {}).get("block_reason"):
            raise CutStreamError("the stream ended before its response did")
        self._contents = [*contents, content] if parts else contents
        # Blocked before the first word, there is no candidate.
        answer["candidates"] = [{"content": content, "finish_reason": ended or "PROHIBITED_CONTENT"}]
        return answer

    def _parsed(self, answer: dict[str, Any]) -> dict[str, Any]:
        answer = copy.deepcopy(answer)
        for call in _calls(answer["candidates"][0]["content"]["parts"]):
            (call.get("args") or {}).pop("safety_decision", None)  # checked before
        return answer

    def _news(self, image: SentImage, failed: str) -> list[dict[str, Any]]:
        """What the next request adds: the instruction at first, then a response for each call."""
        shown = {"inline_data": {"mime_type": "image/png", "data": image.png}}
        if not self._contents:
            return [{"text": self._instruction}, shown]
        calls = _calls(self._contents[-1].get("parts"))
        news: list[dict[str, Any]] = []
        for call in calls:
            told = {"url": "", **({"error": failed} if failed else {})}
            if (call.get("args") or {}).get("safety_decision"):
                told["safety_acknowledgement"] = "true"
            named = {name: call[name] for name in ("id", "name") if call.get(name)}
            news.append({"function_response": {**named, "response": told}})
        if not news:
            return [*([{"text": failed}] if failed else []), shown]
        news[-1]["function_response"]["parts"] = [shown]
        return news

    def _usage(self, answer: dict[str, Any]) -> Usage:
        usage = answer.get("usage_metadata")
        found = counted(
            usage, input="prompt_token_count", output="candidates_token_count", cached="cached_content_token_count"
        )
        found["input"] -= found["cached"]
        found["output"] += counted(usage, thought="thoughts_token_count")["thought"]
        return found

    def _readable(self, answer: dict[str, Any]) -> str:
        parts = answer["candidates"][0]["content"]["parts"]
        lines = [str(part.get("text") or "") for part in parts]
        lines += [f"{call.get('name')} {json.dumps(call.get('args'), ensure_ascii=False)}" for call in _calls(parts)]
        return "\n".join(line for line in lines if line)

    def _check(self, answer: dict[str, Any]) -> str:
        calls = _calls(answer["candidates"][0]["content"]["parts"])
        checks = [check for call in calls if (check := (call.get("args") or {}).get("safety_decision"))]
        return "" if self._acknowledge else "; ".join(str(one.get("explanation") or one) for one in checks)


def _calls(parts: Any) -> list[dict[str, Any]]:
    return [part["function_call"] for part in parts or [] if part.get("function_call")]


def _drop_screens(contents: list[dict[str, Any]], keep: int) -> None:
    """Leave out the screenshots of old function responses, in place."""
    shown = [part["function_response"] for item in contents for part in item["parts"] if "function_response" in part]
    shown = [one for one in shown if one.get("parts")]
    for one in shown[: left_out(len(shown), keep)]:
        del one["parts"]

"""A server that answers like the APIs of Anthropic, OpenAI and Google, in the types of their own SDKs.

What it is asked is checked against the types of requests, what it answers is built from those of answers: a field that
the SDK does not know fails the test. Replies come in turn, or from a function; faults come in between.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from anthropic.types.beta import BetaRawMessageStreamEvent
from anthropic.types.beta.message_create_params import MessageCreateParamsStreaming
from google.genai import types as genai
from openai.types.responses import ResponseStreamEvent
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter

KEY = "key-of-a-test"


@dataclass(frozen=True)
class Status:
    """An HTTP status instead of an answer."""

    code: int
    body: Any = ""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cut:
    """A stream that ends before its last event, with the connection or, if `clean`, as if that were all."""

    reply: dict[str, Any]
    clean: bool = False


Reply = dict[str, Any] | Status | Cut


class HostedApi:
    """Answers in turn; keeps the requests.

    Attributes:
        replies: to come; when there are no more, `model` is asked.
        model: answers a request, whose number is given.
        requests: bodies so far, checked.
    """

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.model: Callable[[int], Awaitable[Reply]] | None = None
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        speaks = next(speech for part, speech in _SPEECHES.items() if part in request.path)
        speaks.check(body)
        self.requests.append(body)
        self.headers.append(request.headers)
        reply = self.replies.pop(0) if self.replies else await self._asked(len(self.requests) - 1)
        if isinstance(reply, Status):
            if isinstance(reply.body, str):
                return web.Response(status=reply.code, text=reply.body, headers=reply.headers)
            return web.json_response(reply.body, status=reply.code, headers=reply.headers)
        if not speaks.streams:
            return web.json_response(reply)
        cut = isinstance(reply, Cut)
        events = speaks.events(reply.reply if isinstance(reply, Cut) else reply)
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await stream.prepare(request)
        for event in events[:-1] if cut else events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            await stream.write(f"{name}data: {json.dumps(event)}\n\n".encode())
        if isinstance(reply, Cut) and not reply.clean and request.transport is not None:
            request.transport.abort()
        else:
            await stream.write_eof()
        return stream

    async def _asked(self, number: int) -> Reply:
        assert self.model is not None, "a request more than there are replies"
        return await self.model(number)


@asynccontextmanager
async def hosted_api() -> AsyncIterator[HostedApi]:
    """The server, while the context is open."""
    api, application = HostedApi(), web.Application(client_max_size=1 << 24)
    application.router.add_post("/{path:.*}", api.answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        await runner.cleanup()
        await asyncio.sleep(0)


@dataclass(frozen=True)
class _Speech:
    """How an API is spoken: whether a request is right, and the events of an answer."""

    check: Callable[[dict[str, Any]], Any]
    events: Callable[[dict[str, Any]], list[dict[str, Any]]]
    streams: bool = True


_ANTHROPIC: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)
_ANTHROPIC_ASKED: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsStreaming)
_OPENAI: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_OPENAI_ASKED: TypeAdapter[Any] = TypeAdapter(ResponseCreateParamsStreaming)


def _anthropic_events(message: dict[str, Any]) -> list[dict[str, Any]]:
    usage = {"input_tokens": 1, "output_tokens": 1, **message.get("usage", {})}
    start = {"stop_reason": None, "content": [], "usage": {**usage, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {**message, **start}}]
    for index, block in enumerate(message["content"]):
        empty, deltas = _anthropic_block(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": stop, "usage": usage})
    events.append({"type": "message_stop"})
    return [_ANTHROPIC.validate_python(event).to_dict() for event in events]


def _anthropic_block(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and what is then added to it."""
    if block["type"] == "tool_use":
        written = json.dumps(block["input"])
        parts = (written[:7], written[7:])
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in parts]
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
        deltas.append({"type": "signature_delta", "signature": block.get("signature", "")})
        return {"type": "thinking", "thinking": "", "signature": ""}, deltas
    return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]


def _openai_events(response: dict[str, Any]) -> list[dict[str, Any]]:
    begun = {**response, "status": "in_progress", "output": []}
    ended = response.get("status", "completed")
    events = [
        {"type": "response.created", "response": begun, "sequence_number": 0},
        {"type": f"response.{ended}", "response": response, "sequence_number": 1},
    ]
    return [_OPENAI.validate_python(event).to_dict() for event in events]


def _gemini_events(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Each part as a chunk of its own; what ends the response comes with the last."""
    (candidate,) = response["candidates"]
    parts = candidate["content"]["parts"] or [{"text": ""}]
    chunks = [{"candidates": [{"content": {"role": "model", "parts": [part]}}]} for part in parts[:-1]]
    last = {"content": {"role": "model", "parts": parts[-1:]}, "finishReason": candidate["finishReason"]}
    chunks.append({**response, "candidates": [last]})
    read = [genai.GenerateContentResponse.model_validate(chunk) for chunk in chunks]
    return [chunk.model_dump(mode="json", by_alias=True, exclude_none=True) for chunk in read]


def _check_gemini(body: dict[str, Any]) -> None:
    for content in body["contents"]:
        genai.Content.model_validate(content)
    for tool in body["tools"]:
        genai.Tool.model_validate(tool)


_SPEECHES = {
    "/v1/messages": _Speech(_ANTHROPIC_ASKED.validate_python, _anthropic_events),
    "/responses": _Speech(_OPENAI_ASKED.validate_python, _openai_events),
    ":streamGenerateContent": _Speech(_check_gemini, _gemini_events),
    "/chat/completions": _Speech(lambda body: None, lambda body: [body], streams=False),
}


def message(*content: dict[str, Any], stop: str = "tool_use", **usage: int) -> dict[str, Any]:
    """A message of Anthropic's."""
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": list(content),
        "stop_reason": stop, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1, **usage},
    }  # fmt: skip


def response(number: int, *output: dict[str, Any], **usage: int) -> dict[str, Any]:
    """A response of OpenAI's."""
    cached = usage.get("cached", 0)
    counts = {
        "input_tokens": usage.get("input", 1), "output_tokens": usage.get("output", 1), "total_tokens": 2,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    return {
        "id": f"resp_{number}", "object": "response", "created_at": 1, "model": "m", "status": "completed",
        "output": list(output), "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": counts,
    }  # fmt: skip


def candidate(*parts: dict[str, Any], finish: str = "STOP", **usage: int) -> dict[str, Any]:
    """A response of Gemini's."""
    counts = {
        "promptTokenCount": usage.get("input", 1), "candidatesTokenCount": usage.get("output", 1),
        "cachedContentTokenCount": usage.get("cached", 0), "thoughtsTokenCount": usage.get("thoughts", 0),
    }  # fmt: skip
    return {
        "candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": finish}],
        "usageMetadata": counts,
    }

"""A model's stand-in that solves the suite "fake" from what a model is shown: instruction and screen, nothing else."""

from __future__ import annotations

import base64
import io
import json
import re

import numpy as np
from aiohttp import web
from PIL import Image

from dart_gym.tasks.suites.fake_suite import COLORS


def target(instruction: str, png: bytes, step: int) -> tuple[int, int]:
    """Where to click at a step (from 0): the middle of the button whose color the instruction names."""
    color = COLORS[re.findall(r"the (\w+) button", instruction)[step]]
    pixels = np.array(Image.open(io.BytesIO(png)).convert("RGB"))
    rows, columns = np.nonzero((pixels == color).all(axis=2))
    return int(np.median(columns)), int(np.median(rows))


def images(messages: list[dict]) -> list[bytes]:
    """The PNGs that a chat shows, in their order."""
    parts = [part for m in messages if isinstance(m["content"], list) for part in m["content"]]
    return [base64.b64decode(p["image_url"]["url"].split(",", 1)[1]) for p in parts if p["type"] == "image_url"]


def reply(messages: list[dict]) -> str:
    """The oracle's next action, as `computer_13` writes it."""
    told = next(m for m in messages if m["role"] == "user")["content"]
    step = sum(m["role"] == "assistant" for m in messages)
    x, y = target(str([part["text"] for part in told if part["type"] == "text"]), images(messages)[-1], step)
    return f'I see it.\n```json\n{{"action_type": "CLICK", "parameters": {{"x": {x}, "y": {y}}}}}\n```'


def calling(messages: list[dict]) -> dict:
    """The oracle's next action, as a call of a tool."""
    told = str([part for m in messages if m["role"] == "user" for part in m["content"] if part["type"] == "text"])
    step = sum(m["role"] == "assistant" for m in messages)
    x, y = target(told, images(messages)[-1], step)
    return tool_call("click", json.dumps({"x": x, "y": y}))


def tool_call(name: str, arguments: str) -> dict:
    """An assistant's message that calls a tool."""
    function = {"name": name, "arguments": arguments}
    return {"content": None, "tool_calls": [{"id": "call", "type": "function", "function": function}]}


class StubModel:
    """An OpenAI server whose replies a function makes, a text or a message's fields; it keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[dict] = []
        self.answer = reply
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        said = self.answer(body["messages"])
        if hasattr(said, "__await__"):
            said = await said
        message = {"role": "assistant", **(said if isinstance(said, dict) else {"content": said})}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        ended = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": ended}
        made = {"id": "x", "object": "chat.completion", "created": 1, "model": body["model"], "usage": usage}
        return web.json_response({**made, "choices": [choice]})

    async def start(self) -> web.AppRunner:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)  # some answers never come
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
        return runner

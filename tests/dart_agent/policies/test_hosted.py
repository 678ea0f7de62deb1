"""Policies of hosted models, with the vendors' own SDKs against a server that answers like their APIs."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from PIL import Image
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.engines.base.engine import EngineError
from dart_agent.episodes.play import play
from dart_agent.policies.anthropic_policy import AnthropicPolicy
from dart_agent.policies.hosted_models import ANTHROPIC, LEFT_OUT, OPENAI, connect, drop_images, fit_image
from dart_agent.policies.hosted_policies import open_hosted
from dart_agent.policies.openai_policy import OpenAIPolicy
from dart_agent.policies.planner_grounder import ChatPlanner, PlannedStep
from dart_agent.policies.policy import Episode
from dart_gym.core.actions import Click, Done, Press, Type
from dart_gym.core.errors import ConfigurationError, MissingDependencyError
from dart_gym.core.outcomes import Observation, TerminalState
from dart_gym.sessions.session import Session

KEY = "key-of-a-test"
Reply = tuple[int, Any] | dict[str, Any]


class Api:
    """Answers in turn; keeps the requests."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        self.headers.append(request.headers)
        reply = self.replies.pop(0)
        status, body = reply if isinstance(reply, tuple) else (200, reply)
        if isinstance(body, str):
            return web.Response(status=status, text=body)
        return web.json_response(body, status=status)


@pytest.fixture
async def api(monkeypatch) -> AsyncIterator[Api]:
    monkeypatch.setenv(ANTHROPIC.key_variable, KEY)
    monkeypatch.setenv(OPENAI.key_variable, KEY)
    api, application = Api(), web.Application(client_max_size=1 << 24)
    application.router.add_post("/{path:.*}", api.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield api
    await runner.cleanup()


@asynccontextmanager
async def client(provider, api: Api, retries: int = 0):
    async with connect(provider, api.url, retries=retries) as made:
        yield made


def observation(error: str = "", width: int = 640, height: int = 400) -> Observation:
    return Observation(np.full((height, width, 3), 7, np.uint8), "Save the file", error)


def message(*content: dict[str, Any], stop: str = "tool_use") -> dict[str, Any]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": list(content),
        "stop_reason": stop, "stop_sequence": None, "usage": usage,
    }  # fmt: skip


def use(number: int, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "computer", "input": given}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def response(number: int, *output: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"resp_{number}", "object": "response", "created_at": 1, "model": "m", "status": "completed",
        "output": list(output), "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip


def call(number: int, *actions: dict[str, Any], checks: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "type": "computer_call", "id": f"cu_{number}", "call_id": f"call_{number}", "status": "completed",
        "actions": list(actions), "pending_safety_checks": checks or [],
    }  # fmt: skip


def said(words: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": words, "annotations": []}]
    return {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": content}


def size_of(png: str) -> tuple[int, int]:
    return Image.open(io.BytesIO(base64.b64decode(png))).size


@pytest.mark.thorough
async def test_an_episode_with_anthropic(api):
    api.replies = [
        message({"type": "thinking", "thinking": "look", "signature": "s1"}, text("The button."),
                use(1, action="left_click", coordinate=[320, 100]), use(2, action="key", text="ctrl+s")),
        message(use(3, action="type", text="ü")),
        message(text("It is saved."), stop="end_turn"),
    ]  # fmt: skip
    async with client(ANTHROPIC, api) as made:
        policy = AnthropicPolicy("m", client=made, screenshots=1)
        policy.reset(Episode("t/x", "Save the file"))
        first = await policy.act(observation(width=2560, height=1440))
        second = await policy.act(observation("off the screen", width=2560, height=1440))
        third = await policy.act(observation(width=2560, height=1440))
    assert first.actions == (Click(640, 200), Press(("ctrl", "s"))), "the model saw 1280x720"
    assert first.thought == "look\nThe button." and 'computer {"action": "left_click"' in first.text
    assert (second.actions, third.actions) == ((Type("ü"),), (Done("It is saved."),))
    sent = api.requests[0]
    assert sent["tools"][0]["display_width_px"] == 1280 and sent["messages"][0]["content"][0]["text"] == "Save the file"
    assert size_of(sent["messages"][0]["content"][1]["source"]["data"]) == (1280, 720)
    assert api.headers[0]["anthropic-beta"] == "computer-use-2025-01-24" and any(
        KEY in value for value in api.headers[0].values()
    )
    again = api.requests[1]["messages"]
    assert again[0]["content"][1] == {"type": "text", "text": LEFT_OUT}, "one screenshot is kept"
    assert again[1]["content"][0] == {"type": "thinking", "thinking": "look", "signature": "s1"}
    done, failed = again[2]["content"]
    assert (done["tool_use_id"], failed["tool_use_id"], failed["is_error"]) == ("toolu_1", "toolu_2", True)
    assert "off the screen" in failed["content"][0]["text"] and failed["content"][1]["type"] == "image"
    assert KEY not in json.dumps(api.requests) + repr([first, second, third])


@pytest.mark.thorough
async def test_an_episode_with_openai(api):
    check = [{"id": "sc_1", "code": "sensitive", "message": "a bank"}]
    api.replies = [
        response(1, call(1, {"type": "click", "x": 10, "y": 20, "button": "left"}, {"type": "type", "text": "hi"})),
        response(2, call(2, {"type": "keypress", "keys": ["CTRL", "S"]}, checks=check)),
        response(3, said("42")),
    ]
    async with client(OPENAI, api) as made:
        policy = OpenAIPolicy("m", client=made, acknowledge_checks=True)
        policy.reset(Episode("t/x", "Save the file"))
        decisions = [await policy.act(observation(error)) for error in ("", "off the screen", "")]
    assert [one.actions for one in decisions] == [
        (Click(10, 20), Type("hi")), (Press(("ctrl", "s")),), (Done("42"),),
    ]  # fmt: skip
    first, second, third = api.requests
    assert "previous_response_id" not in first and first["input"][0]["content"][0]["text"] == "Save the file"
    assert first["tools"][0]["type"] == "computer" and api.headers[0]["Authorization"] == f"Bearer {KEY}"
    output, failed = second["input"]
    assert (second["previous_response_id"], output["call_id"]) == ("resp_1", "call_1")
    assert size_of(output["output"]["image_url"].split(",")[1]) == (640, 400)
    assert "off the screen" in failed["content"]
    assert third["input"][0]["acknowledged_safety_checks"][0]["id"] == "sc_1"
    assert KEY not in json.dumps(api.requests)


@pytest.mark.thorough
async def test_a_safety_check_ends_the_episode_where_nobody_takes_it_on(api):
    api.replies = [response(1, call(1, {"type": "wait"}, checks=[{"id": "a", "code": "c", "message": "a bank"}]))]
    async with client(OPENAI, api) as made:
        policy = OpenAIPolicy("m", client=made)
        policy.reset(Episode("t/x", "Save the file"))
        decision = await policy.act(observation())
    assert decision.terminal is TerminalState.MODEL_ERROR
    assert "a bank" in decision.error and "acknowledge_checks" in decision.error


@pytest.mark.thorough
async def test_a_hosted_model_plays_a_whole_episode(api):
    async with open_hosted("anthropic", "m", base_url=api.url) as make, Session() as session:
        api.replies = [message(use(n, action="left_click", coordinate=[1, 1])) for n in range(4)]
        episode = await play(make(session), session, "fake/two-steps")
        assert (episode.terminal, episode.num_actions, episode.lost_by) == (TerminalState.STEP_LIMIT, 4, "")
        api.replies = [message(use(1, action="left_click", coordinate="here"))]
        episode = await play(make(session), session, "fake/two-steps")
        assert episode.terminal is TerminalState.PARSE_ERROR and "coordinate" in episode.error
        api.replies = [(500, "broken")] * 5
        async with client(ANTHROPIC, api) as made:
            episode = await play(AnthropicPolicy("m", client=made), session, "fake/two-steps")
        assert (episode.terminal, episode.lost_by) == (TerminalState.MODEL_ERROR, "engine")


MAKERS: list[tuple[Any, Callable[[Any], Any]]] = [
    (ANTHROPIC, lambda made: AnthropicPolicy("m", client=made)),
    (OPENAI, lambda made: OpenAIPolicy("m", client=made)),
]


@pytest.mark.parametrize(("provider", "make"), MAKERS, ids=["anthropic", "openai"])
async def test_what_a_person_must_mend_and_what_is_over_in_a_minute(api, provider, make):
    async with client(provider, api) as made:
        for status, says in ((401, provider.key_variable), (403, provider.key_variable), (404, "no model 'm'")):
            policy = make(made)
            policy.reset(Episode("t/x", "Save the file"))
            api.replies = [(status, {"error": {"type": "e", "message": "no"}})]
            with pytest.raises(ConfigurationError, match=says):
                await policy.act(observation())
        error = {"error": {"message": "slow down, or too long"}}
        for status, body in ((429, error), (500, "broken"), (400, error), (529, "")):
            policy = make(made)
            policy.reset(Episode("t/x", "Save the file"))
            api.replies = [(status, body)]
            decision = await policy.act(observation())
            assert decision.terminal is TerminalState.MODEL_ERROR and f"HTTP status {status}" in decision.error
            assert KEY not in decision.error


@pytest.mark.parametrize(("provider", "make"), MAKERS, ids=["anthropic", "openai"])
async def test_nobody_answers(monkeypatch, provider, make):
    monkeypatch.setenv(provider.key_variable, KEY)
    async with connect(provider, "http://127.0.0.1:9", retries=0) as made:
        policy = make(made)
        policy.reset(Episode("t/x", "Save the file"))
        decision = await policy.act(observation())
    assert decision.terminal is TerminalState.MODEL_ERROR and "Connection" in decision.error


async def test_a_server_that_is_tried_again(api):
    api.replies = [(500, "broken"), message(text("done"), stop="end_turn")]
    async with client(ANTHROPIC, api, retries=1) as made:
        policy = AnthropicPolicy("m", client=made)
        policy.reset(Episode("t/x", "Save the file"))
        assert (await policy.act(observation())).actions == (Done("done"),)


def test_a_missing_key_or_model_or_sdk_is_said(monkeypatch, capsys):
    for policy, variable in (("anthropic", "ANTHROPIC_API_KEY"), ("openai", "OPENAI_API_KEY")):
        for arguments, says in (((), "--model"), (("--model", "m"), f"environment variable {variable}")):
            monkeypatch.delenv(variable, raising=False)
            with pytest.raises(ConfigurationError, match=says):
                CliRunner().invoke(
                    agent_cli.app, ["run", "fake/two-steps", "--policy", policy, *arguments], catch_exceptions=False
                )
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(MissingDependencyError, match=r"dart-gui\[apis\]"):
        AnthropicPolicy("m")


def test_images_fit_and_keep_their_shape():
    sent = fit_image(np.zeros((1080, 1920, 3), np.uint8))
    assert size_of(sent.png) == sent.space.model == (1280, 720) and sent.space.screen == (1920, 1080)
    assert sent.space.pixel(640, 360) == (960, 540)
    small = fit_image(np.zeros((100, 50, 3), np.uint8))
    assert small.space.model == (50, 100)


def test_old_images_are_left_out():
    image = lambda n: {"type": "image", "n": n}  # noqa: E731
    messages = [
        {"role": "user", "content": [text("task"), image(0)]},
        {"role": "assistant", "content": [use(1)]},
        {"role": "user", "content": [{"type": "tool_result", "content": [text("done"), image(1)]}]},
        {"role": "user", "content": [image(2)]},
    ]
    drop_images(messages, 2)
    assert messages[0]["content"][1] == {"type": "text", "text": LEFT_OUT}
    assert messages[2]["content"][0]["content"][1] == image(1) and messages[3]["content"] == [image(2)]
    drop_images(messages, 0)
    assert "image" not in json.dumps(messages).replace(LEFT_OUT, "")


async def test_a_chat_model_plans(api):
    completion = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "```python\nagent.done()\n```"},
    }
    api.replies = [{**completion, "choices": [choice]}, {**completion, "choices": []}, (500, "broken")]
    async with client(OPENAI, api) as made:
        planner = ChatPlanner("m", client=made)
        history = [PlannedStep("agent.click('OK')", "there is no element 'OK' on the screen")]
        assert "agent.done()" in await planner.plan("Save", "the actions", history, observation().screenshot)
        for says in ("answered nothing", "HTTP status 500"):
            with pytest.raises(EngineError, match=says):
                await planner.plan("Save", "the actions", [], observation().screenshot)
    system, user = api.requests[0]["messages"]
    assert "the actions" in system["content"] and "This failed: there is no element" in user["content"][0]["text"]
    assert size_of(user["content"][1]["image_url"]["url"].split(",")[1]) == (640, 400)

"""Policies of hosted models, with the vendors' own SDKs against a server that answers like their APIs."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from dart_gym_hosted_models.anthropic_policy import CACHED, AnthropicPolicy
from dart_gym_hosted_models.chat_planner import ChatPlanner
from dart_gym_hosted_models.gemini_policy import GeminiPolicy
from dart_gym_hosted_models.hosted_calls import HostedCalls, Provider
from dart_gym_hosted_models.hosted_models import (
    ANTHROPIC,
    CORRECTIONS,
    GEMINI,
    LEFT_OUT,
    OPENAI,
    connect,
    drop_images,
    fit_image,
)
from dart_gym_hosted_models.hosted_policies import HOSTED, open_hosted
from dart_gym_hosted_models.openai_policy import OpenAIPolicy
from PIL import Image
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.engines.base.engine import EngineError
from dart_agent.episodes.play import play
from dart_agent.policies.planner_grounder import PlannedStep
from dart_agent.policies.policy import Episode
from dart_gym.core.actions import Click, Done, Press, Type
from dart_gym.core.errors import ConfigurationError, MissingDependencyError
from dart_gym.core.outcomes import Observation, TerminalState
from dart_gym.sessions.session import Session
from tests.helpers.hosted_api import KEY, HostedApi, Status, candidate, hosted_api, message, response

PROVIDERS = (ANTHROPIC, OPENAI, GEMINI)


@pytest.fixture
async def api(monkeypatch) -> AsyncIterator[HostedApi]:
    for provider in (ANTHROPIC, OPENAI, GEMINI):
        monkeypatch.setenv(provider.key_variable, KEY)
    async with hosted_api() as api:
        yield api


def observation(error: str = "", width: int = 640, height: int = 400) -> Observation:
    return Observation(np.full((height, width, 3), 7, np.uint8), "Save the file", error)


def use(number: int, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "computer", "input": given}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


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
    async with connect(ANTHROPIC, api.url) as made:
        policy = AnthropicPolicy("m", client=made, screenshots=1, version="2025-01")
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
    assert again[0]["content"][1] == {"type": "text", "text": LEFT_OUT, **CACHED}, "one screenshot is kept"
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
    async with connect(OPENAI, api.url) as made:
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
    assert "off the screen" in failed["content"][0]["text"]
    assert third["input"][0]["acknowledged_safety_checks"][0]["id"] == "sc_1"
    assert KEY not in json.dumps(api.requests)


@pytest.mark.thorough
async def test_a_safety_check_ends_the_episode_where_nobody_takes_it_on(api):
    api.replies = [response(1, call(1, {"type": "wait"}, checks=[{"id": "a", "code": "c", "message": "a bank"}]))]
    async with connect(OPENAI, api.url) as made:
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
        api.replies = [message(use(n, action="left_click", coordinate="here")) for n in range(1 + CORRECTIONS)]
        episode = await play(make(session), session, "fake/two-steps")
        assert episode.terminal is TerminalState.PARSE_ERROR and "coordinate" in episode.error
        api.replies = [Status(500, "broken")]
        async with connect(ANTHROPIC, api.url) as made:
            policy = AnthropicPolicy("m", client=made, calls=HostedCalls(ANTHROPIC, patience_s=0))
            episode = await play(policy, session, "fake/two-steps")
        assert (episode.terminal, episode.lost_by) == (TerminalState.MODEL_ERROR, "engine")


def impatient(provider: Provider, made: Any) -> Any:
    """A policy that tries once."""
    _, policy, _ = next(found for found in HOSTED.values() if found[0] is provider)
    return policy("m", client=made, calls=HostedCalls(provider, patience_s=0))


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda one: one.name)
async def test_what_a_person_must_mend_and_what_is_over_in_a_minute(api, provider):
    async with connect(provider, api.url) as made:
        for status, says in ((401, provider.key_variable), (403, provider.key_variable), (404, "no model 'm'")):
            policy = impatient(provider, made)
            policy.reset(Episode("t/x", "Save the file"))
            api.replies = [Status(status, {"error": {"type": "e", "message": "no"}})]
            with pytest.raises(ConfigurationError, match=says):
                await policy.act(observation())
        error = {"error": {"message": "slow down, or too long"}}
        for status, body in ((429, error), (500, "broken"), (400, error), (529, "")):
            policy = impatient(provider, made)
            policy.reset(Episode("t/x", "Save the file"))
            api.replies = [Status(status, body)]
            decision = await policy.act(observation())
            assert decision.terminal is TerminalState.MODEL_ERROR and f"HTTP status {status}" in decision.error
            assert KEY not in decision.error


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda one: one.name)
async def test_nobody_answers(monkeypatch, provider):
    monkeypatch.setenv(provider.key_variable, KEY)
    async with connect(provider, "http://127.0.0.1:9") as made:
        policy = impatient(provider, made)
        policy.reset(Episode("t/x", "Save the file"))
        decision = await policy.act(observation())
    said = "Connect call failed" if provider is GEMINI else "Connection"
    assert decision.terminal is TerminalState.MODEL_ERROR and said in decision.error


async def test_a_server_that_is_tried_again(api):
    api.replies = [Status(500, "broken"), message(text("done"), stop="end_turn")]
    async with connect(ANTHROPIC, api.url) as made:
        policy = AnthropicPolicy("m", client=made)
        policy.reset(Episode("t/x", "Save the file"))
        assert (await policy.act(observation())).actions == (Done("done"),)


def test_a_missing_key_or_model_or_sdk_is_said(monkeypatch, capsys):
    for policy, variable in (
        ("anthropic", "ANTHROPIC_API_KEY"), ("openai", "OPENAI_API_KEY"), ("gemini", "GEMINI_API_KEY"),
    ):  # fmt: skip
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


def test_old_images_are_left_out_as_many_at_once_as_stay():
    """Between two such times a request begins as the one before: the API has cached it."""
    image = lambda n: {"type": "image", "n": n}  # noqa: E731
    messages = [
        {"role": "user", "content": [text("task"), image(0)]},
        {"role": "assistant", "content": [use(1)]},
        {"role": "user", "content": [{"type": "tool_result", "content": [text("done"), image(1)]}]},
        {"role": "user", "content": [image(2)]},
    ]
    before = json.dumps(messages)
    drop_images(messages, 2)
    assert json.dumps(messages) == before, "a third is kept until there is a fourth"
    messages.append({"role": "user", "content": [image(3)]})
    drop_images(messages, 2)
    assert messages[0]["content"][1] == {"type": "text", "text": LEFT_OUT}
    assert messages[2]["content"][0]["content"][1] == {"type": "text", "text": LEFT_OUT}
    assert [message["content"] for message in messages[3:]] == [[image(2)], [image(3)]]
    drop_images(messages, 0)
    assert "image" not in json.dumps(messages).replace(LEFT_OUT, "")


async def test_a_chat_model_plans(api):
    completion = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "```python\nagent.done()\n```"},
    }
    api.replies = [{**completion, "choices": [choice]}, {**completion, "choices": []}, Status(500, "broken")]
    async with connect(OPENAI, api.url) as made:
        planner = ChatPlanner("m", client=made, calls=HostedCalls(OPENAI, patience_s=0))
        history = [PlannedStep("agent.click('OK')", "there is no element 'OK' on the screen")]
        assert "agent.done()" in await planner.plan("Save", "the actions", history, observation().screenshot)
        for says in ("answered nothing", "HTTP status 500"):
            with pytest.raises(EngineError, match=says):
                await planner.plan("Save", "the actions", [], observation().screenshot)
    system, user = api.requests[0]["messages"]
    assert "the actions" in system["content"] and "This failed: there is no element" in user["content"][0]["text"]
    assert size_of(user["content"][1]["image_url"]["url"].split(",")[1]) == (640, 400)


CHECK = {"safety_decision": {"decision": "require_confirmation", "explanation": "a bank"}}


async def test_geminis_confirmations_end_the_episode_or_are_given(api):
    click = candidate({"functionCall": {"name": "click_at", "args": {"x": 500, "y": 500, **CHECK}}})
    api.replies = [click, click, candidate({"text": "done"})]
    async with connect(GEMINI, api.url) as made:
        for acknowledges in (False, True):
            policy = GeminiPolicy("m", client=made, acknowledge_checks=acknowledges)
            policy.reset(Episode("t/x", "Save the file"))
            decision = await policy.act(observation())
            if not acknowledges:
                assert decision.terminal is TerminalState.MODEL_ERROR
                assert "a bank" in decision.error and "acknowledge_checks" in decision.error
        assert decision.actions == (Click(320, 200),)
        assert (await policy.act(observation("off"))).actions == (Done("done"),)
    (answer,) = api.requests[-1]["contents"][-1]["parts"]
    told = answer["functionResponse"]["response"]
    assert told["safety_acknowledgement"] == "true" and "off" in told["error"]
    assert api.requests[-1]["contents"][1]["parts"][0]["functionCall"]["args"]["safety_decision"]


async def test_what_cannot_be_read_is_told_to_the_model_and_nothing_of_it_is_done(api):
    """Unknown actions, a place that is none, an answer of nothing, one without an end; then it helps itself."""
    api.replies = [
        message(use(1, action="left_click", coordinate=[5, 5]), use(2, action="teleport")),
        message(use(3, action="left_click", coordinate="9000")),
        message(use(4, action="left_click", coordinate=[7, 5])),
        message(stop="end_turn"),
        message(text("and so on " * 1000), stop="max_tokens"),
        message(text("done"), stop="end_turn"),
    ]
    async with connect(ANTHROPIC, api.url) as made:
        policy = AnthropicPolicy("m", client=made)
        policy.reset(Episode("t/x", "Save the file"))
        decisions = [await policy.act(observation()) for _ in range(2)]
    assert [decision.actions for decision in decisions] == [(Click(7, 5),), (Done("done"),)]
    assert [decision.usage["requests"] for decision in decisions] == [3, 3]
    first, second = (request["messages"][-1]["content"] for request in api.requests[1:3])
    assert [result["tool_use_id"] for result in first] == ["toolu_1", "toolu_2"] and first[1]["is_error"]
    said = first[1]["content"][0]["text"]
    assert said.startswith("Nothing of this was carried out") and "teleport" in said
    assert "9000" in second[0]["content"][0]["text"]
    assert "max_tokens" in api.requests[5]["messages"][-1]["content"][0]["text"]


async def test_a_model_looks_closer_without_touching_the_desktop(api):
    zoom = {"type": "tool_use", "id": "toolu_1", "name": "zoom", "toolset_name": "computer"}
    screen = np.zeros((400, 640, 3), np.uint8)
    screen[100:150, 200:300] = 200
    api.replies = [
        message({**zoom, "input": {"region": [200, 100, 300, 150]}}),
        message({**zoom, "id": "toolu_2", "input": {"region": [600, 100, 700, 150]}}),
        message(
            {**zoom, "id": "toolu_4", "input": {"region": [0, 0, 9, 9]}}, use(5, action="left_click", coordinate=[1, 1])
        ),
        message(use(3, action="left_click", coordinate=[210, 120])),
    ]
    async with connect(ANTHROPIC, api.url) as made:
        policy = AnthropicPolicy("m", client=made)
        policy.reset(Episode("t/x", "Save the file"))
        decision = await policy.act(Observation(screen, "Save the file"))
    assert decision.actions == (Click(210, 120),), "coordinates are those of the whole screenshot"
    (closer,) = api.requests[1]["messages"][-1]["content"]
    assert (closer["toolset_name"], closer["is_error"]) == ("computer", False)
    crop = Image.open(io.BytesIO(base64.b64decode(closer["content"][0]["source"]["data"])))
    assert crop.size == (1280, 640) and np.asarray(crop).min() > 190
    (refused,) = api.requests[2]["messages"][-1]["content"]
    assert refused["is_error"] and "within the screen" in refused["content"][0]["text"]
    results = api.requests[3]["messages"][-1]["content"]
    assert [one["tool_use_id"] for one in results] == ["toolu_4", "toolu_5"]
    assert "zoom has to be the only action of a turn" in results[-1]["content"][0]["text"]

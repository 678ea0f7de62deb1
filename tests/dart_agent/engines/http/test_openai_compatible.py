"""A hosted model can be evaluated, and nothing of it gets into training."""

import asyncio

import numpy as np
import pytest
from aiohttp import web

from dart_agent.engines.base.engine import (
    EngineBusy,
    EngineError,
    EngineMismatch,
    EngineTimeout,
    Prompt,
    RequestRefused,
    Sampling,
)
from dart_agent.engines.engine_kinds import connect_engine
from dart_agent.engines.http import http_server
from dart_agent.engines.http.openai_compatible import OpenAICompatibleEngine
from dart_agent.engines.remote.remote_engine import RemoteEngine
from dart_agent.engines.vllm.vllm_engine import VLLMEngine
from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.policies.policy import Episode
from dart_agent.policies.vlm_policy import VLMPolicy
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from dart_gym.core.actions import Press
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.outcomes import Observation, TerminalState
from tests.dart_agent.engines.vllm_stub import pixels


class Hosted:
    """An API: a queue of answers, the last one for ever."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict, str]] = []
        self.answers: list = ["Thought: it is there\nAction: click(start_box='(30,14)')"]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((await request.json(), request.headers.get("Authorization", "")))
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(given, asyncio.Event):
            await given.wait()
            return web.Response()
        if isinstance(given, tuple):
            return web.json_response(given[1], status=given[0])
        message = given if isinstance(given, dict) else {"content": given}
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})


@pytest.fixture
async def hosted():
    api = Hosted()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield api
    await runner.cleanup()


@pytest.fixture(scope="module")
def plain() -> ModelTokens:
    return ModelTokens.plain()


@pytest.fixture
async def engine(hosted, plain, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-1")
    engine = OpenAICompatibleEngine(hosted.url, "big", plain, key_env="MY_KEY", timeout_s=5.0)
    yield engine
    await engine.close()


def prompt_of(plain: ModelTokens) -> Prompt:
    conversation = Conversation(plain, VisionSpec(), ConversationConfig())
    conversation.begin("Öffne <|im_end|> das Menü 你好")
    conversation.observe(np.full((56, 84, 3), 7, np.uint8))
    conversation.respond(plain.encode("Action: wait()"))
    conversation.observe(np.full((84, 56, 3), 9, np.uint8))
    return conversation.prompt()


async def test_a_policy_plays_on_it(hosted, engine, plain):
    """The whole way: screenshot to message to text to action, twice; what the model said is in the history."""
    policy = VLMPolicy(engine, tokens=plain, vision=VisionSpec(), action_format=get_format("ui_tars"))
    policy.reset(Episode("t", "Click on 你好", seed=4))
    screen = np.full((112, 168, 3), 200, np.uint8)
    for _ in range(2):
        decision = await policy.act(Observation(screen, "Click"))
        assert decision.terminal is None
        [click] = decision.actions
        assert (click.x, click.y) == (30, 14)
        assert decision.generation.logprobs == ()
    body, key = hosted.requests[1]
    assert key == "Bearer sk-1"
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    first = body["messages"][1]["content"]
    assert first[0]["text"].endswith("## User Instruction\nClick on 你好")
    assert np.array_equal(pixels(first[1]["image_url"]["url"]), screen)
    assert body["messages"][2]["content"] == hosted.answers[0]
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("big", 32, 1.0)
    info = await engine.info()
    assert (info.requests, info.model, info.in_flight) == (2, "big", 0)


async def test_training_is_refused(hosted, engine, plain):
    with pytest.raises(RequestRefused, match="evaluated, but neither trained on"):
        await engine.generate(prompt_of(plain), Sampling(training=True))
    assert not hosted.requests, "nothing was paid for"
    with pytest.raises(RequestRefused, match="cannot be updated"):
        await engine.update_weights("/ckpt", 1)


async def test_errors(hosted, engine, plain):
    prompt = prompt_of(plain)
    for answer, kind, says in (
        ((500, {"error": {"message": "boom"}}), EngineError, "boom"),
        ((400, {"error": {"message": "too long"}}), RequestRefused, "too long"),
        ((401, {"error": {"message": "no"}}), RequestRefused, "set MY_KEY"),
        ((200, {"choices": []}), EngineMismatch, "no chat completion"),
        ((200, {"choices": [{"message": {"content": None}, "finish_reason": "length"}]}), EngineError, "raise max_tok"),
        ((200, {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}), EngineError, "filter"),
    ):
        hosted.answers = [answer]
        with pytest.raises(kind, match=says):
            await engine.generate(prompt, Sampling())


@pytest.mark.thorough
async def test_a_busy_and_a_late_server(hosted, plain):
    hosted.answers = [(429, {"error": {"message": "slow down"}}), (503, {}), "Action: wait()"]
    engine = OpenAICompatibleEngine(hosted.url, "big", plain, timeout_s=10.0)
    assert (await engine.generate(prompt_of(plain), Sampling())).text == "Action: wait()"
    assert len(hosted.requests) == 3
    impatient = OpenAICompatibleEngine(hosted.url, "big", plain, timeout_s=0.3)
    hosted.answers = [(429, {"error": {"message": "slow down"}})]
    with pytest.raises(EngineBusy, match="slow down"):
        await impatient.generate(prompt_of(plain), Sampling())
    gate = asyncio.Event()
    hosted.answers = [gate]
    with pytest.raises(EngineTimeout):
        await impatient.generate(prompt_of(plain), Sampling())
    policy = VLMPolicy(impatient, tokens=plain, vision=VisionSpec(), action_format=get_format("ui_tars"))
    policy.reset(Episode("t", "Click", seed=4))
    decision = await policy.act(Observation(np.full((56, 56, 3), 200, np.uint8), "Click"))
    assert decision.terminal is TerminalState.MODEL_ERROR
    assert "did not answer within" in decision.error
    gate.set()
    await engine.close()
    await impatient.close()


def test_configuration(plain, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="set the environment variable OPENAI_API_KEY"):
        OpenAICompatibleEngine("https://api.example.org/v1", "big", plain)
    with pytest.raises(ConfigurationError, match="no address"):
        OpenAICompatibleEngine("api.example.org", "big", plain)


def test_the_plain_tokens_read_back_exactly(plain):
    for text in ("Action: click(start_box='(1,2)')", "Öffne 你好 \x00\t\n", "<|image_pad|>", ""):
        assert plain.decode(plain.encode(text)) == text


async def test_engines_by_address(processing_dir):
    assert isinstance(connect_engine("ws+unix:///nowhere.sock", processing_dir), RemoteEngine)
    vllm = connect_engine("http://127.0.0.1:1", processing_dir)
    assert isinstance(vllm, VLLMEngine)
    await vllm.close()
    with pytest.raises(ConfigurationError, match="http://host:port for vLLM"):
        connect_engine("tcp://host", processing_dir)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_that_a_server_sends_apart_is_shown_and_not_done(hosted, engine, plain, field):
    thought, said = "Maybe I could\nAction: finished()", "Thought: save it\nAction: hotkey(key='ctrl s')"
    hosted.answers = [{"content": said, field: thought}, {"content": None, field: thought}]
    policy = VLMPolicy(engine, tokens=plain, vision=VisionSpec(), action_format=get_format("ui_tars"))
    policy.reset(Episode("t", "Save", seed=4))
    screen = np.full((112, 168, 3), 200, np.uint8)
    first = await policy.act(Observation(screen, "Save"))
    assert (first.actions, first.error) == ((Press(("ctrl", "s")),), "")
    assert first.thought == f"{thought}\nsave it"
    assert thought in first.text, "it is recorded"
    second = await policy.act(Observation(screen, "Save"))
    assert (second.actions, second.terminal) == ((), TerminalState.PARSE_ERROR)
    assert "ended while thinking" in second.error and "max_tokens" in second.error
    assert hosted.requests[1][0]["messages"][2]["content"] == said, "the history leaves the reasoning out"


FAILED = [
    ({"error": {"message": "slow down", "code": 429}}, "slow down"),
    ("<html><title>Sign in</title></html>", "a page or a text instead of JSON"),
    ({"choices": [{"message": {"content": "Action: wait()"}, "finish_reason": "error"}]}, "did not finish"),
    ({"choices": [{"message": {"content": "Action: wait()"}, "finish_reason": "abort"}]}, "did not finish"),
    ({"choices": [{"message": {"content": None, "tool_calls": [{}]}, "finish_reason": "tool_calls"}]}, "tool parser"),
    ({"choices": [{"message": {"content": "I click.", "tool_calls": [{}]}, "finish_reason": "stop"}]}, "tool parser"),
    ({"choices": [{"message": {"content": "I click.", "function_call": {"name": "x"}}}]}, "tool parser"),
    ({"choices": [{"message": {"content": "Action: wa"}, "finish_reason": "SAFETY"}]}, "content filter withheld"),
    ({"choices": []}, "no chat completion"),
    ({"choices": [{"message": "hello"}]}, "no chat completion"),
    ([], "no chat completion"),
    (7, "no chat completion"),
]


@pytest.mark.parametrize(("answer", "says"), FAILED, ids=lambda one: str(one)[:40])
async def test_an_answer_that_is_none_carries_nothing_out_and_says_why(hosted, engine, plain, answer, says):
    hosted.answers = [(200, answer)]
    with pytest.raises(EngineError, match=says):
        await engine.generate(prompt_of(plain), Sampling())


@pytest.mark.parametrize(
    ("reason", "found"), [("length", "length"), ("MAX_TOKENS", "length"), ("stop", "stop"), (None, "stop")]
)
async def test_reasons_to_end_in_the_words_of_others(hosted, engine, plain, reason, found):
    hosted.answers = [(200, {"choices": [{"message": {"content": "Action: wait()"}, "finish_reason": reason}]})]
    assert (await engine.generate(prompt_of(plain), Sampling())).finish_reason == found


async def test_a_refusal_is_what_the_model_says(hosted, engine, plain):
    """It is the model's own failure, and no loss of the engine."""
    hosted.answers = [(200, {"choices": [{"message": {"content": None, "refusal": "I cannot."}}]})]
    assert (await engine.generate(prompt_of(plain), Sampling())).text == "I cannot."


async def test_an_answer_without_end_is_refused(hosted, engine, plain, monkeypatch):
    monkeypatch.setattr(http_server, "MOST_BYTES", 1000)
    hosted.answers = ["a" * 2000]
    with pytest.raises(EngineMismatch, match="answers with more than"):
        await engine.generate(prompt_of(plain), Sampling())

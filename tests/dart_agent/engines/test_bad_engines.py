"""An engine that is late, wrong, of another version, or repeats an image token ends the episode, with a reason."""

import asyncio
import math

import numpy as np
import pytest
from vllm_stub import VLLMStub

from dart_agent.engines.base.engine import Generation
from dart_agent.engines.vllm.vllm_engine import VLLMEngine
from dart_agent.policies.policy import Episode
from dart_agent.policies.vlm_policy import VLMPolicy
from dart_agent.prompting.conversation import ConversationConfig
from dart_gym.core.outcomes import Observation, TerminalState

SCREEN = Observation(np.full((56, 84, 3), 200, np.uint8), "Click")


@pytest.fixture
async def stub(tokens, vision):
    server = VLLMStub(tokens, vision)
    async with server.serving() as server.url:
        yield server


async def decide(engine, processing_dir, steps: int = 1):
    """The decision of the last of some steps; the ones before must be good."""
    policy = VLMPolicy.from_dir(engine, processing_dir, conversation=ConversationConfig(style="short"))
    policy.reset(Episode("t", "Click", seed=4))
    for _ in range(steps - 1):
        assert (await policy.act(SCREEN)).terminal is None
    return await policy.act(SCREEN)


def hold(stub):
    stub.hold = asyncio.Event()


def other_prompt(stub):
    stub.changes = [lambda answer: answer["prompt_token_ids"].append(7)]


def not_a_number(stub):
    content = {"content": [{"logprob": math.inf}]}
    stub.changes = [lambda answer: answer["choices"][0].update(token_ids=[7], logprobs=content)]


def other_version(stub):
    stub.label = "1"


def image_token(stub):
    stub.fixed = (stub.tokens.image_pad_id,) * 12


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (hold, "did not answer within"),
        (other_prompt, "used another prompt"),
        (not_a_number, "log-probability of token 0 is inf"),
        (other_version, "serves 2 since its last update"),
        (image_token, "which was forbidden"),
    ],
)
async def test_the_episode_ends_as_model_error(stub, processing_dir, fault, says):
    engine = VLLMEngine(stub.url, processing_dir, version=2, timeout_s=1.0)
    assert (await decide(engine, processing_dir)).terminal is None
    fault(stub)
    decision = await decide(engine, processing_dir)
    assert decision.terminal is TerminalState.MODEL_ERROR
    assert says in decision.error
    assert decision.actions == () and decision.generation is None and decision.prompt is not None
    await engine.close()


class Repeating:
    """An engine without any check of its own, whose model falls into repeating image pads at its second response."""

    def __init__(self, tokens) -> None:
        good = tuple(tokens.response("Action: wait()"))
        self._responses = [good, (*good[:-1], *[tokens.image_pad_id] * 9)]

    async def generate(self, prompt, sampling):
        response_ids = self._responses.pop(0)
        return Generation("Action: wait()", response_ids, (-1.0,) * len(response_ids), (0, 0), "stop")


async def test_an_image_token_never_gets_into_the_history(processing_dir, tokens):
    decision = await decide(Repeating(tokens), processing_dir, steps=2)
    assert decision.terminal is TerminalState.MODEL_ERROR
    assert str(tokens.image_pad_id) in decision.error and "suppressed_ids" in decision.error

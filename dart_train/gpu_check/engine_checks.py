"""How fast an engine samples: vLLM where it is installed and there is a GPU, and otherwise the embedded engine."""

from __future__ import annotations

import asyncio
import time

from dart_agent.engines.base.engine import Engine, Prompt, Sampling
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from dart_train.gpu_check.check_setting import CheckSetting
from dart_train.gpu_check.outcome import Outcome, Status
from dart_train.parity.check_model import open_engine
from dart_train.parity.recorded_conversation import Shape, drawn_screen

REQUESTS = {"cuda": 32, "cpu": 4}
TOKENS = {"cuda": 128, "cpu": 32}
SCREEN = {"cuda": (1280, 720), "cpu": (448, 336)}


def check_engine(setting: CheckSetting) -> list[Outcome]:
    """Send requests with a screenshot each at the same time, and count the sampled tokens."""
    kind = "vllm" if setting.vllm and setting.on_gpu else "transformers"
    return asyncio.run(_measure(setting, kind))


async def _measure(setting: CheckSetting, kind: str) -> list[Outcome]:
    dtype = "bfloat16" if setting.on_gpu else "float32"
    count, length = REQUESTS[setting.device], TOKENS[setting.device]
    prompts = _prompts(setting, count + 1)
    async with open_engine(str(setting.model_dir), kind, None, setting.device, dtype, Shape()) as engine:
        await _sampled(engine, prompts[:1], length)  # compiles, and fills the allocator
        started = time.perf_counter()
        tokens = await _sampled(engine, prompts[1:], length)
        seconds = time.perf_counter() - started
    model = "the named model" if setting.own_model else "a tiny model: a lower bound of the overhead only"
    found = f"{tokens / seconds:,.0f} tokens/s, {count} requests of a screenshot and {length} tokens ({model})"
    values = {"tokens_per_second": tokens / seconds, "requests": count, "seconds": seconds}
    name = f"engine {kind}"
    if tokens != count * length:
        advice = "the engine ended responses early although no stop token was set"
        return [Outcome(name, Status.FAILED, found, f"{count * length} tokens", advice, values)]
    return [Outcome(name, Status.OK, found, values=values)]


def _prompts(setting: CheckSetting, count: int) -> list[Prompt]:
    """Prompts with a screen of their own each."""
    tokens, vision = ModelTokens.load(setting.model_dir), VisionSpec.from_dir(setting.model_dir)
    prompts = []
    for number in range(count):
        conversation = Conversation(tokens, vision, ConversationConfig(style="short", screenshots=1))
        conversation.begin("Click on the button")
        conversation.observe(drawn_screen(number, *SCREEN[setting.device]))
        prompts.append(conversation.prompt())
    return prompts


async def _sampled(engine: Engine, prompts: list[Prompt], length: int) -> int:
    """Number of tokens of the responses to all prompts."""
    answers = await asyncio.gather(
        *(engine.generate(prompt, Sampling(max_tokens=length, seed=number)) for number, prompt in enumerate(prompts))
    )
    return sum(len(answer.response_ids) for answer in answers)

"""A real vLLM server gives the numbers of a plain forward pass, to the prompt that was meant, over weight updates."""

import asyncio
import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from plain_forward import make_prompt, plain_logprobs, screen, settings

from dart_agent.engines.base.engine import EngineError, EngineMismatch, Prompt
from dart_agent.engines.embedded.qwen_runner import QwenRunner
from dart_agent.engines.vllm.vllm_engine import VLLMEngine
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import build_tiny_model
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from tests.helpers.vllm_server import tiny_config, vllm_model, vllm_url

__all__ = ["vllm_model", "vllm_url"]
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
SIZES = ((112, 84), (56, 140), (64, 64), (168, 96), (90, 130))


@pytest.fixture(scope="module")
def tokens(vllm_model) -> ModelTokens:
    return ModelTokens.load(vllm_model)


@pytest.fixture(scope="module")
def vision(vllm_model) -> VisionSpec:
    return VisionSpec.from_dir(vllm_model)


@pytest.fixture(scope="module")
def runners(vllm_model, vision, tmp_path_factory) -> dict[int, QwenRunner]:
    """The same model with two sets of weights, by version; `path` of each is its checkpoint."""
    torch.set_num_threads(1)
    other = build_tiny_model(tmp_path_factory.mktemp("checkpoint"), seed=12, config=tiny_config())
    models = {1: QwenRunner.load(vllm_model, vision), 2: QwenRunner.load(other, vision)}
    models[1].path, models[2].path = vllm_model, other
    return models


@pytest.fixture(params=["generate", "chat"])
async def engine(request, vllm_url, vllm_model, runners):
    """An engine whose server holds version 1."""
    engine = VLLMEngine(vllm_url, vllm_model, route=request.param, timeout_s=600.0)
    await engine.update_weights(str(runners[1].path), 1)
    yield engine
    await engine.close()


def prompts_of(tokens, vision) -> list[Prompt]:
    """None to five images of different sizes, one of them twice, and a history with its responses."""
    frames = [vision.resize(screen(i, *size)) for i, size in enumerate(SIZES)]
    prompts = [make_prompt(tokens, vision, frames[:count], "go " * count) for count in range(6)]
    prompts.append(make_prompt(tokens, vision, [frames[0], frames[1], frames[0]]))
    conversation = Conversation(tokens, vision, ConversationConfig(screenshots=3, block=2))
    conversation.begin("Click on the button")
    for step in range(5):
        conversation.observe(screen(step))
        prompts.append(conversation.prompt())
        conversation.respond(tokens.response(f"Action: click(start_box='({step},7)')"))
    return prompts


def close_to(logprobs, expected: torch.Tensor) -> bool:
    return np.abs(np.asarray(logprobs) - expected.numpy()).max() < 1e-5


async def test_equals_a_plain_forward_pass_together_and_alone(engine, runners, tokens, vision):
    prompts = prompts_of(tokens, vision)
    samplings = [
        settings(tokens, max_tokens=8, seed=i, temperature=(0.0, 0.7, 1.0, 1.3)[i % 4]) for i in range(len(prompts))
    ]
    samplings = [dataclasses.replace(sampling, training=True) for sampling in samplings]
    together = await asyncio.gather(*(engine.generate(*pair) for pair in zip(prompts, samplings, strict=True)))
    for prompt, sampling, result in zip(prompts, samplings, together, strict=True):
        temperature = sampling.temperature or 1.0
        expected = plain_logprobs(runners[1], prompt, result.response_ids, tokens.suppressed_ids, temperature)
        assert close_to(result.logprobs, expected)
        assert result.version == (1, 1)
        assert not set(result.response_ids) & set(tokens.suppressed_ids)
        assert result.text == tokens.decode(result.response_ids)
        alone = await engine.generate(prompt, sampling)
        assert alone.response_ids == result.response_ids
        assert close_to(alone.logprobs, expected)


async def test_stopping(engine, tokens, vision):
    prompt = make_prompt(tokens, vision, [screen(0)])
    only_end = tuple(set(range(tokens.vocab_size)) - {tokens.im_end_id})
    stopped = await engine.generate(prompt, settings(tokens, suppressed_ids=only_end, seed=0))
    assert (stopped.response_ids, stopped.finish_reason) == ((tokens.im_end_id,), "stop")
    assert abs(stopped.logprobs[0]) < 1e-6
    cut = await engine.generate(prompt, settings(tokens, max_tokens=3, stop_ids=(), seed=0))
    assert (len(cut.response_ids), cut.finish_reason) == (3, "length")


async def test_an_update_reaches_prompts_that_were_seen_before(engine, runners, tokens, vision):
    """Keys and values of the old weights, and embeddings of the old tower, are not used again."""
    prompt, sampling = prompts_of(tokens, vision)[-1], settings(tokens, seed=3)
    for version in (1, 2, 1):
        await engine.update_weights(str(runners[version].path), version)
        engine._version = version  # going back is a test's privilege
        result = await engine.generate(prompt, sampling)
        assert result.version == (version, version)
        expected = plain_logprobs(runners[version], prompt, result.response_ids, tokens.suppressed_ids)
        assert close_to(result.logprobs, expected)
        assert (await engine.info()).version == version


@pytest.mark.parametrize("pause", ["keep", "abort"])
async def test_an_update_in_the_middle_of_a_response(vllm_url, vllm_model, runners, tokens, vision, pause):
    """Frozen or cut off and continued: every token has the log-probability of the weights that sampled it."""
    engine = VLLMEngine(vllm_url, vllm_model, route="generate", timeout_s=600.0, pause=pause)
    await engine.update_weights(str(runners[1].path), 1)
    prompt = make_prompt(tokens, vision, [screen(0), screen(1)])
    sampling = settings(tokens, max_tokens=1500, stop_ids=(), seed=6)
    running = asyncio.create_task(engine.generate(prompt, sampling))
    await _generated(vllm_url, 40)
    await engine.update_weights(str(runners[2].path), 2)
    result = await running
    assert (len(result.response_ids), result.version, result.finish_reason) == (1500, (1, 2), "length")
    old, new = (
        plain_logprobs(runners[version], prompt, result.response_ids, tokens.suppressed_ids).numpy()
        for version in (1, 2)
    )
    got = np.asarray(result.logprobs)
    change = int(np.argmax(np.abs(got - old) > 1e-3))
    assert 40 <= change < 1500
    assert np.abs(got[:change] - old[:change]).max() < 1e-4  # a response of 1500 tokens rounds more
    assert np.abs(got[change:] - new[change:]).max() < 1e-4
    await engine.close()


async def _generated(url: str, count: int) -> None:
    """Wait until the request that runs has sampled so many tokens, by the server's own counter."""
    import httpx

    async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(120):
        first = None
        while True:
            lines = (await client.get(f"{url}/metrics")).text.splitlines()
            total = sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total{"))
            first = total if first is None else first
            if total >= first + count:
                return
            await asyncio.sleep(0.01)


async def test_a_processor_of_other_settings_is_found_out(vllm_url, vllm_model, tokens, tmp_path):
    """The server resizes what the policy did not: its prompt has other pads, and nothing of it is used."""
    directory = Path(shutil.copytree(vllm_model, tmp_path / "other"))
    settings_file = directory / "preprocessor_config.json"
    settings_file.write_text(
        json.dumps(json.loads(settings_file.read_text()) | {"size": {"shortest_edge": 784, "longest_edge": 2**30}})
    )
    engine = VLLMEngine(vllm_url, directory, timeout_s=600.0)
    vision = VisionSpec.from_dir(directory)
    huge = make_prompt(tokens, vision, [vision.resize(screen(1, 1400, 840))])
    with pytest.raises(EngineMismatch, match="min_pixels and max_pixels"):
        await engine.generate(huge, settings(tokens, max_tokens=2))
    await engine.close()


async def test_weights_that_are_not_numbers(vllm_url, vllm_model, runners, tokens, vision, tmp_path):
    engine = VLLMEngine(vllm_url, vllm_model, timeout_s=600.0)
    await engine.update_weights(str(runners[1].path), 1)
    prompt, sampling = make_prompt(tokens, vision, [screen(0)]), settings(tokens, seed=1)
    poisoned = Path(shutil.copytree(vllm_model, tmp_path / "nan"))
    model = QwenRunner.load(poisoned, vision).model
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    model.save_pretrained(poisoned)
    await engine.update_weights(str(poisoned), 3)
    with pytest.raises(EngineError):
        await engine.generate(prompt, sampling)
    await engine.update_weights(str(runners[2].path), 4)
    result = await engine.generate(prompt, dataclasses.replace(sampling, seed=2))
    assert result.version == (4, 4)
    assert close_to(result.logprobs, plain_logprobs(runners[2], prompt, result.response_ids, tokens.suppressed_ids))
    await engine.close()


async def test_a_screenshot_that_the_server_has_is_named_only(vllm_url, vllm_model, runners, tokens, vision):
    """It answers the same to names as to pixels; images that it has lost are sent again, and nothing fails."""
    engine = VLLMEngine(vllm_url, vllm_model, route="generate", timeout_s=600.0)
    await engine.update_weights(str(runners[1].path), 1)
    sent: list[int] = []
    ask = engine.control.ask

    async def listening(method, path, **more):
        if more.get("content"):
            sent.append(more["content"].count(b"base64,"))
        return await ask(method, path, **more)

    engine.control.ask = listening
    prompt = prompts_of(tokens, vision)[3]
    sampling = settings(tokens, max_tokens=8, temperature=0.0)
    first = await engine.generate(prompt, sampling)
    again = await engine.generate(prompt, sampling)
    assert sent == [3, 0] and again.response_ids == first.response_ids
    assert again.logprobs == pytest.approx(first.logprobs, abs=1e-5)
    await engine.control.reset_image_caches()
    lost = await engine.generate(prompt, sampling)
    assert sent == [3, 0, 0, 3] and lost.response_ids == first.response_ids
    await engine.close()

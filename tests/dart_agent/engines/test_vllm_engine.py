"""The client of a vLLM server against one that is paused, late, wrong, torn or of another version."""

import asyncio
import base64
import dataclasses
import io
import math
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from vllm_prompts import frame, history
from vllm_stub import VLLMStub, pixels, runs

from dart_agent.engines.base import expert_routing
from dart_agent.engines.base.engine import (
    BadResponse,
    EngineBusy,
    EngineError,
    EngineMismatch,
    EngineTimeout,
    Prompt,
    RequestRefused,
    Sampling,
)
from dart_agent.engines.http.http_server import RouteMissing
from dart_agent.engines.vllm import vllm_wire as wire
from dart_agent.engines.vllm.vllm_engine import VLLMEngine
from dart_agent.prompting.conversation import Conversation, ConversationConfig


@pytest.fixture
async def stub(tokens, vision):
    server = VLLMStub(tokens, vision)
    async with server.serving() as server.url:
        yield server


@pytest.fixture
async def engine(stub, processing_dir):
    engine = VLLMEngine(stub.url, processing_dir, name="v0", version=3, timeout_s=5.0)
    yield engine
    await engine.close()


@pytest.fixture
def sampling(tokens) -> Sampling:
    return Sampling(24, seed=5, stop_ids=tokens.stop_ids, suppressed_ids=tokens.suppressed_ids)


@pytest.mark.parametrize("scale_out", [True, False])
async def test_both_routes(stub, engine, tokens, vision, sampling, scale_out):
    stub.scale_out = scale_out
    prompt = history(tokens, vision, 3)
    for _ in range(2):
        result = await engine.generate(prompt, sampling)
        assert result.response_ids == stub.fixed
        assert result.logprobs == tuple(-0.25 * (1 + index) for index in range(len(stub.fixed)))
        assert (result.text, result.finish_reason) == ("Action: wait()", "stop")
        assert (result.version, result.engine) == ((3, 3), "v0")
        assert result.seconds[1] > 0
    routes = [path for path, _ in stub.requests]
    generate, chat = "/inference/v1/generate", "/v1/chat/completions"
    assert routes == ([generate] * 2 if scale_out else [generate, chat, chat]), "an absent route is asked for once"


async def test_experts_are_those_of_the_places_that_the_response_was_sampled_from(
    stub, engine, tokens, vision, sampling
):
    """A server tells those of all places that it computed, the last token not being one; parts follow each other."""
    prompt, wanted, told = history(tokens, vision, 1), dataclasses.replace(sampling, routing=True), []

    def route(answer: dict[str, Any]) -> dict[str, Any]:
        choice = answer["choices"][0]
        places = len(prompt.token_ids) + len(choice["token_ids"]) - 1
        chosen = np.random.default_rng(len(told)).integers(0, 256, (places, 3, 2), np.uint8)
        told.append(chosen[-len(choice["token_ids"]) :])
        choice["routed_experts"] = wire_array(chosen)
        return answer

    def wire_array(values: np.ndarray) -> str:
        with io.BytesIO() as file:
            np.save(file, values)
            return base64.b64encode(file.getvalue()).decode()

    stub.abort_after, stub.changes = [1], [route, route]
    result = await engine.generate(prompt, wanted)
    assert len(told) == 2 and result.routing == expert_routing.pack(np.concatenate(told))
    stub.changes = [lambda answer: (answer["choices"][0].update(routed_experts=wire_array(np.zeros(3))), answer)[1]]
    with pytest.raises(EngineMismatch, match=r"routed_experts of shape \(3,\)"):
        await engine.generate(prompt, wanted)


@pytest.mark.parametrize("scale_out", [True, False])
async def test_the_entropy_is_asked_for_and_is_that_of_the_tokens_that_are_told(
    stub, engine, tokens, vision, sampling, scale_out
):
    stub.scale_out, prompt = scale_out, history(tokens, vision, 1)
    assert (await engine.generate(prompt, sampling)).entropy is None
    stub.abort_after = [1]  # the mean is that of all parts
    wanted = dataclasses.replace(sampling, entropy=True)
    result = await engine.generate(prompt, wanted)
    others = [-2.0 - place for place in range(wire.ENTROPY_TOKENS - 1)]
    expected = [wire.entropy_of([logprob, *others]) for logprob in result.logprobs]
    assert result.entropy == pytest.approx(sum(expected) / len(expected))

    def forget_one(answer: dict[str, Any]) -> dict[str, Any]:
        del answer["choices"][0]["logprobs"]["content"][1]["top_logprobs"]
        return answer

    stub.changes = [forget_one]
    assert (await engine.generate(prompt, wanted)).entropy is None, "of one token it is not known"


async def test_the_request(stub, engine, tokens, vision, sampling):
    prompt = history(tokens, vision, 2)
    await engine.generate(prompt, sampling)
    [(_, body)] = stub.requests
    assert runs(body["token_ids"], tokens.image_pad_id) == [1, 1, 1], "expanded pads would make another prompt"
    for part, image in zip(body["content_parts"], prompt.images, strict=True):
        assert np.array_equal(pixels(part["url"]), image)
    params = body["sampling_params"]
    assert (params["top_p"], params["top_k"], params["temperature"], params["seed"]) == (1.0, -1, 1.0, 5)
    assert params["logit_bias"] == {str(token_id): -100.0 for token_id in tokens.suppressed_ids}
    assert (params["stop_token_ids"], params["ignore_eos"]) == (list(tokens.stop_ids), True)
    assert body["cache_salt"] == "v3"
    neutral = {"min_p": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
    assert {name: params[name] for name in neutral} == neutral, "else the server takes the model's own"


def episode(tokens, vision, steps: int, screenshots: int = 5) -> list[Prompt]:
    """The prompts of an episode."""
    conversation = Conversation(tokens, vision, ConversationConfig(style="short", screenshots=screenshots))
    conversation.begin("Click on the button")
    prompts = []
    for step in range(steps):
        conversation.observe(frame(step))
        prompts.append(conversation.prompt())
        conversation.respond(tokens.response("Action: wait()"))
    return prompts


def sent(stub: VLLMStub) -> list[list[bool]]:
    """Of each request, which images came with their pixels."""
    bodies = [body for path, body in stub.requests if path == "/inference/v1/generate"]
    return [["url" in part for part in body.get("content_parts", [])] for body in bodies]


async def test_a_screenshot_is_sent_to_a_server_once(stub, engine, tokens, vision, sampling):
    prompts = episode(tokens, vision, 4, screenshots=3)
    for prompt in prompts:
        await engine.generate(prompt, sampling)
    assert sent(stub) == [[True], [False, True], [False, False, True], [False, False, True]]
    kept = list(stub.images.values())
    assert [any(np.array_equal(image, one) for one in kept) for image in prompts[-1].images] == [True] * 3
    await engine.update_weights("/weights/v4", 4)  # clears the server's caches
    await engine.generate(prompts[-1], sampling)
    assert sent(stub)[-1] == [True] * 3


async def test_a_server_that_no_longer_has_an_image_gets_all(stub, engine, tokens, vision, sampling):
    _, _, first, _, second = episode(tokens, vision, 5)
    await engine.generate(first, sampling)
    stub.images_kept = 1
    assert (await engine.generate(second, sampling)).response_ids == stub.fixed
    assert sent(stub)[1:] == [[False, False, False, True, True], [True] * 5]
    stub.images_kept = None
    await engine.generate(second, sampling)
    assert sent(stub)[3] == [False] * 5


async def test_a_server_that_knows_no_names_gets_all_images_from_then_on(stub, engine, tokens, vision, sampling):
    stub.images_kept, stub.refusal = 0, "url: none is not an allowed value"
    for prompt in episode(tokens, vision, 3):
        assert (await engine.generate(prompt, sampling)).response_ids == stub.fixed
    assert sent(stub) == [[True], [False, True], [True, True], [True, True, True]]


async def test_a_request_that_is_refused_for_itself_is_refused(stub, engine, tokens, vision, sampling):
    first, second = episode(tokens, vision, 2)
    await engine.generate(first, sampling)
    for _ in range(2):  # once for the request by names, once for the one with all images
        stub.changes.append(raw(status=400, text='{"error": {"message": "The prompt is too long"}}'))
    with pytest.raises(RequestRefused, match="too long"):
        await engine.generate(second, sampling)
    await engine.generate(second, sampling)
    assert sent(stub)[-1] == [False, True], "nothing was learnt from it about images"


def changed(**fields):
    """A fault: fields of the answer or of its only choice."""

    def change(answer):
        for name, value in fields.items():
            place = answer if name in answer else answer["choices"][0]
            place[name] = value(place[name]) if callable(value) else value

    return change


def raw(**response):
    return lambda answer: web.Response(**response)


WRONG = {
    "another prompt": (changed(prompt_token_ids=lambda ids: ids[:5] + [9] + ids[6:]), "other ones from place 5"),
    "pads of another size": (changed(prompt_token_ids=lambda ids: ids + ids[-1:]), "min_pixels and max_pixels"),
    "no prompt ids": (changed(prompt_token_ids=None), "return_token_ids"),
    "no ids": (changed(token_ids=None), "return_token_ids"),
    "another model": (changed(model="other"), "answered as model 'other'"),
    "NaN": (changed(logprobs=lambda old: {"content": old["content"][:-1] + [{"logprob": None}]}), "is nan"),
    "infinity": (changed(logprobs=lambda old: {"content": old["content"][:-1] + [{"logprob": -math.inf}]}), "-inf"),
    "a probability of 2": (
        changed(logprobs=lambda old: {"content": old["content"][:-1] + [{"logprob": 0.7}]}),
        "is 0.7",
    ),
    "too few numbers": (changed(logprobs=lambda old: {"content": old["content"][1:]}), "log-probabilities"),
    "no numbers": (changed(logprobs=None), "0 log-probabilities"),
    "nothing": (changed(token_ids=[], logprobs=None), "empty response"),
    "another reason": (changed(finish_reason="error"), "reason 'error'"),
    "two choices": (lambda answer: answer["choices"].append({}), "cannot be read"),
    "no object": (raw(text="[]", content_type="application/json"), "cannot be read"),
    "torn JSON": (raw(text='{"choices": [', content_type="application/json"), "broken JSON"),
    "a web page": (raw(text="<html>", content_type="text/html"), "a page or a text instead of JSON"),
    "an older version": (changed(weight_versions=[{"version": "2"}]), "restarted with older weights"),
    "no version": (changed(weight_versions=[{"version": "main"}]), "'main', which is no version"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_wrong_answers(stub, engine, tokens, vision, sampling, name):
    change, says = WRONG[name]
    stub.changes = [change]
    with pytest.raises(EngineMismatch, match=says):
        await engine.generate(history(tokens, vision, 1), sampling)
    assert (await engine.generate(history(tokens, vision, 1), sampling)).response_ids, "the engine goes on"


async def test_a_forbidden_token(stub, engine, tokens, vision, sampling):
    stub.fixed = (7, tokens.image_pad_id, tokens.image_pad_id, tokens.im_end_id)
    with pytest.raises(BadResponse, match="logit_bias"):
        await engine.generate(history(tokens, vision, 0), sampling)


@pytest.mark.parametrize("scale_out", [True, False])
async def test_a_server_with_raw_logprobs_is_found_out(
    stub, engine, tokens, vision, sampling, scale_out, processing_dir
):
    """Before anything is sampled for training; evaluation may go on."""
    stub.raw, stub.scale_out = True, scale_out
    prompt, training = history(tokens, vision, 0), dataclasses.replace(sampling, training=True)
    with pytest.raises(EngineMismatch, match="--logprobs-mode processed_logprobs"):
        await engine.generate(prompt, training)
    assert (await engine.generate(prompt, sampling)).response_ids
    stub.raw, stub.paused = False, True
    impatient = VLLMEngine(stub.url, processing_dir, timeout_s=0.2)
    with pytest.raises(EngineBusy):
        await impatient.generate(prompt, training)
    await impatient.close()
    stub.paused = False
    before = len(stub.requests)
    for _ in range(3):
        await asyncio.gather(*(engine.generate(prompt, training) for _ in range(2)))
    assert len(stub.requests) == before + 7, "one look for all"


async def test_errors_of_the_server(stub, engine, tokens, vision, sampling, processing_dir):
    prompt = history(tokens, vision, 1)
    for status, kind, says in (
        (500, EngineError, "answered 500: boom"),
        (400, RequestRefused, "answered 400: boom"),
        (422, RequestRefused, "boom"),
        (401, RequestRefused, "set VLLM_API_KEY"),
    ):
        stub.changes = [raw(status=status, text='{"error": {"message": "boom"}}', content_type="application/json")]
        with pytest.raises(kind, match=says):
            await engine.generate(prompt, sampling)
    other = VLLMEngine(stub.url, processing_dir, model="adapter-9")
    with pytest.raises(EngineMismatch, match="does not exist.*served-model-name"):
        await other.generate(prompt, sampling)
    with pytest.raises(EngineMismatch, match="serves policy, not 'adapter-9'"):
        await other.info()
    stub.scale_out = False
    strict = VLLMEngine(stub.url, processing_dir, route="generate")
    with pytest.raises(RouteMissing, match="start the server with --enable-scale-out"):
        await strict.generate(prompt, sampling)
    for bad in (Prompt(()), Prompt((1,))):
        with pytest.raises(RequestRefused):
            await strict.generate(bad, Sampling(max_tokens=0 if bad.token_ids else 1))
    await other.close()
    await strict.close()


async def test_no_server_and_a_late_one(stub, tokens, vision, sampling, processing_dir):
    prompt = history(tokens, vision, 0)
    nobody = VLLMEngine("http://127.0.0.1:9", processing_dir)
    with pytest.raises(EngineError, match="is it running"):
        await nobody.generate(prompt, sampling)
    await nobody.close()
    stub.hold = asyncio.Event()
    late = VLLMEngine(stub.url, processing_dir, timeout_s=0.2)
    with pytest.raises(EngineTimeout, match="did not answer within"):
        await late.generate(prompt, sampling)
    stub.hold.set()
    assert (await late.generate(prompt, sampling)).response_ids == stub.fixed
    await late.close()


async def test_a_client_that_was_closed(stub, engine, tokens, vision, sampling):
    await engine.generate(history(tokens, vision, 0), sampling)
    await engine.close()
    with pytest.raises(EngineError, match="was closed"):
        await engine.generate(history(tokens, vision, 0), sampling)


async def test_a_paused_server_is_waited_for(stub, engine, tokens, vision, sampling, processing_dir):
    prompt = history(tokens, vision, 1)
    await engine.control.pause("abort")
    assert stub.paused
    waiting = asyncio.create_task(engine.generate(prompt, sampling))
    async with asyncio.timeout(5):
        while sum(path.endswith("generate") for path, _ in stub.requests) < 2:
            await asyncio.sleep(0.01)
    await engine.control.resume()
    assert (await waiting).response_ids == stub.fixed
    stub.paused = True
    impatient = VLLMEngine(stub.url, processing_dir, timeout_s=0.2)
    with pytest.raises(EngineBusy, match="503.*paused"):
        await impatient.generate(prompt, sampling)
    await impatient.close()


async def test_an_aborted_response_is_continued(stub, engine, tokens, vision, sampling):
    """The rest is sampled after the ids that were sampled before; nothing is lost, nothing sampled twice."""
    prompt = history(tokens, vision, 2)
    stub.fixed = tuple(tokens.encode("click on the button and then on the link")) + (tokens.im_end_id,)
    stub.abort_after = [4, 0, 3]
    stub.changes = [lambda answer: setattr(stub, "label", "8")]
    result = await engine.generate(prompt, sampling)
    assert result.response_ids == stub.fixed
    assert result.logprobs == tuple(-0.25 * (1 + index) for index in range(len(stub.fixed)))
    assert (result.version, result.finish_reason) == ((3, 8), "stop")
    asked = [body for path, body in stub.requests if path.endswith("generate")]
    assert [body["sampling_params"]["max_tokens"] for body in asked] == [24, 20, 20, 17]
    assert [body["sampling_params"]["seed"] for body in asked] == [5, 9, 9, 12]
    stub.abort_after = [24]
    stub.fixed = (7,) * 30
    cut = await engine.generate(prompt, sampling)
    assert (len(cut.response_ids), cut.finish_reason) == (24, "length")


async def test_an_aborted_response_is_continued_over_chat(stub, engine, tokens, vision, sampling):
    """The server gets what was written as the beginning of its message; no pixels are blamed, no id is lost."""
    stub.scale_out = False
    prompt = history(tokens, vision, 1)
    stub.fixed = tuple(tokens.encode("click on the button and then on the link")) + (tokens.im_end_id,)
    stub.abort_after = [4, 0, 3]
    stub.changes = [lambda answer: setattr(stub, "label", "8")]
    result = await engine.generate(prompt, sampling)
    assert (result.response_ids, result.version, result.finish_reason) == (stub.fixed, (3, 8), "stop")
    asked = [body for path, body in stub.requests if path.endswith("completions")]
    assert [bool(body.get("continue_final_message")) for body in asked] == [False, True, True, True]
    assert [body["max_tokens"] for body in asked] == [24, 20, 20, 17]


async def test_a_response_that_chat_cannot_continue_is_begun_again(stub, engine, tokens, vision, sampling):
    """The server reads the text of the sampled ids as other ids: the whole response is of the new weights then."""
    stub.scale_out = False
    stub.fixed = tuple(tokens.encode("ok")) + (tokens.im_end_id,)
    stub.abort_after = [1]

    def other(answer):
        answer["prompt_token_ids"] = [*answer["prompt_token_ids"][:-1], 9]

    stub.changes = [lambda answer: setattr(stub, "label", "8"), other]
    result = await engine.generate(history(tokens, vision, 0), sampling)
    assert (result.response_ids, result.version) == (stub.fixed, (8, 8))
    assert len(result.logprobs) == len(stub.fixed)


async def test_an_endlessly_aborted_response_ends(stub, tokens, vision, sampling, processing_dir):
    stub.abort_after = [0] * 1000
    engine = VLLMEngine(stub.url, processing_dir, timeout_s=0.3)
    with pytest.raises(EngineBusy, match="again and again"):
        await engine.generate(history(tokens, vision, 0), sampling)
    await engine.close()


async def test_update_of_weights(stub, engine, tokens, vision, sampling):
    assert (await engine.info()).version == 3
    await engine.update_weights("/ckpt/v7", 7)
    steps = ["/pause?keep", "/collective_rpc", "/update_weight_version", "/reset_prefix_cache", "/resume"]
    assert stub.calls[-6:] == [*steps, "/weight_info"]
    info = await engine.info()
    assert (info.version, info.model, info.in_flight) == (7, "policy", 0)
    assert (await engine.generate(history(tokens, vision, 0), sampling)).version == (7, 7)
    assert stub.requests[-1][1]["cache_salt"] == "v7"


async def test_a_server_that_came_back_with_old_weights_is_found_out(stub, engine, tokens, vision, sampling):
    await engine.update_weights("/ckpt/v7", 7)
    stub.label = "default"
    with pytest.raises(EngineMismatch, match="version 3, but serves 7"):
        await engine.generate(history(tokens, vision, 0), sampling)


async def test_a_failed_update_lets_the_server_go_on(stub, engine, tokens, vision, sampling):
    stub.loads = set()
    with pytest.raises(EngineError, match="could not load /gone: .*no weights in /gone.*Restart the server"):
        await engine.update_weights("/gone", 4)
    assert not stub.paused
    assert (await engine.generate(history(tokens, vision, 0), sampling)).version == (3, 3)
    stub.dev = False
    with pytest.raises(RouteMissing, match="VLLM_SERVER_DEV_MODE=1"):
        await engine.update_weights("/ckpt/v4", 4)
    assert (await engine.info()).version == 3, "a server without control routes keeps what it was started with"


async def test_a_failed_update_that_ends_the_server(stub, engine):
    """The error names what was wrong with the checkpoint, not that nobody answers any more."""
    stub.loads, stub.mortal = set(), True
    with pytest.raises(EngineError, match="no weights in /gone.*ends itself"):
        await engine.update_weights("/gone", 4)
    with pytest.raises(EngineError, match="is it running|did the server end"):  # at once, or while it still answered
        await engine.info()


async def test_an_update_that_hangs(stub, processing_dir):
    engine = VLLMEngine(stub.url, processing_dir, update_timeout_s=0.2)
    gate = asyncio.Event()

    async def never(path, timeout_s):
        await gate.wait()

    engine.control.reload_weights = never
    with pytest.raises(EngineTimeout, match="did not load /ckpt within"):
        await engine.update_weights("/ckpt", 1)
    await engine.close()


class Deaf:
    """Workers that take whatever comes."""

    workers = 2

    def meet(self, init_info: dict[str, Any]) -> None:
        pass

    receive = meet

    def leave(self) -> None:
        pass


async def test_control_routes(stub, engine):
    control, stub.receiver = engine.control, Deaf()
    assert await control.world_size() == 2
    await control.init_weight_transfer({"master_port": 1})
    await control.start_weight_update()
    await control.update_weights({"names": []})
    await control.finish_weight_update("12")
    await control.reset_image_caches()
    await control.shutdown_weight_transfer()
    assert await control.weight_info() == "12"
    assert stub.calls == [
        "/get_world_size",
        "/init_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/shutdown_weight_transfer_engine",
        "/weight_info",
    ]


async def test_the_key(stub, tokens, vision, sampling, processing_dir, monkeypatch):
    stub.key = "secret"
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    without = VLLMEngine(stub.url, processing_dir)
    with pytest.raises(RequestRefused, match="set VLLM_API_KEY"):
        await without.generate(history(tokens, vision, 0), sampling)
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    engine = VLLMEngine(stub.url, processing_dir)
    assert (await engine.generate(history(tokens, vision, 0), sampling)).response_ids
    await without.close()
    await engine.close()


async def test_many_at_once(stub, engine, tokens, vision, sampling):
    prompts = [history(tokens, vision, step) for step in range(6)]
    results = await asyncio.gather(*(engine.generate(prompt, sampling) for prompt in prompts * 5))
    assert {result.response_ids for result in results} == {stub.fixed}
    info = await engine.info()
    assert (info.requests, info.in_flight, info.tokens) == (30, 0, 30 * len(stub.fixed))
    assert 0 < info.busy_s < 5


async def test_a_history_that_the_server_tokenises_otherwise(stub, engine, tokens, vision, sampling):
    """Over the chat route, sampled ids that are not the tokeniser's own choice are found out, never trained on."""
    stub.scale_out = False
    conversation = Conversation(tokens, vision, ConversationConfig(style="short"))
    conversation.begin("Do it")
    conversation.observe(frame(0))
    conversation.respond([*tokens.encode("8"), *tokens.encode("4")])
    conversation.observe(frame(1))
    with pytest.raises(EngineMismatch, match="another prompt"):
        await engine.generate(conversation.prompt(), sampling)
    with pytest.raises(RequestRefused, match="chat layout"):
        await engine.generate(Prompt((9, 9)), sampling)


async def test_given_tokens_are_judged(stub, engine, tokens, vision, sampling):
    """By the log-probabilities of a prompt that ends with them; images and ids are those of the prompt."""
    prompt = history(tokens, vision, 2)
    given = tuple(tokens.response("Action: wait()"))
    judged = await engine.generate(prompt, dataclasses.replace(sampling, given_ids=given))
    assert judged.response_ids == given and judged.logprobs == pytest.approx([-0.01 * token for token in given])
    route, body = stub.requests[-1]
    assert route == "/inference/v1/generate" and body["sampling_params"]["prompt_logprobs"] == 0
    assert body["token_ids"][-len(given) :] == list(given) and len(body["content_parts"]) == len(prompt.images)
    with pytest.raises(RequestRefused, match="at temperature 1"):
        await engine.generate(prompt, dataclasses.replace(sampling, given_ids=given, temperature=0.5))


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: answer.pop("prompt_logprobs"),
        lambda answer: answer["prompt_logprobs"].pop(),
        lambda answer: answer["prompt_logprobs"][-1].clear(),
        lambda answer: answer["prompt_logprobs"].__setitem__(-1, None),
        lambda answer: next(iter(answer["prompt_logprobs"][-1].values())).update(logprob="much"),
    ],
)
async def test_a_server_that_does_not_judge_is_told(stub, engine, tokens, vision, sampling, change):
    given = tuple(tokens.response("Action: wait()"))
    stub.changes.append(lambda answer: change(answer) and None)
    with pytest.raises(BadResponse):
        await engine.generate(history(tokens, vision, 2), dataclasses.replace(sampling, given_ids=given))

"""LoRA adapters on a vLLM server: which version answers, what is loaded and unloaded, and what goes wrong."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_prompts import history
from vllm_stub import VLLMStub

from dart_agent.engines.base.engine import EngineError, EngineMismatch, Sampling
from dart_agent.engines.vllm.adapter_names import RANKS, adapter_name, adapter_versions, rank_limit
from dart_agent.engines.vllm.vllm_engine import VLLMEngine
from dart_agent.models.model_directory import ADAPTER_CONFIG, adapter_base
from dart_gym.core.errors import ConfigurationError


@pytest.fixture
async def stub(tokens, vision):
    server = VLLMStub(tokens, vision)
    server.lora = True
    async with server.serving() as server.url:
        yield server


@pytest.fixture
async def engine(stub, processing_dir):
    engine = VLLMEngine(stub.url, processing_dir, name="v0", version=3, timeout_s=5.0, adapters=True)
    yield engine
    await engine.close()


@pytest.fixture
def sampling(tokens) -> Sampling:
    return Sampling(24, seed=5, stop_ids=tokens.stop_ids, suppressed_ids=tokens.suppressed_ids)


@pytest.fixture
def adapter(tmp_path):
    """Make a directory that holds an adapter, as far as its settings tell."""

    def make(version: int) -> str:
        path = tmp_path / f"v{version}"
        path.mkdir()
        (path / ADAPTER_CONFIG).write_text(json.dumps({"base_model_name_or_path": "/models/policy"}))
        return str(path)

    return make


@given(st.text(max_size=20), st.sets(st.integers(0, 10**18 - 1)), st.lists(st.text(max_size=20)))
def test_names_say_their_versions(model, versions, others):
    names = [adapter_name(model, version) for version in versions]
    strangers = [other for other in others if not other.startswith(f"{model}@")]
    assert adapter_versions(model, [*strangers, *names]) == sorted(versions)


@pytest.mark.parametrize(
    "name", ["policy", "policy@", "policy@-1", "policy@x", "policy@1²", "other@7", f"policy@{10**19}"]
)
def test_other_names_say_none(name):
    assert adapter_versions("policy", [name]) == []


@pytest.mark.parametrize(("rank", "limit"), [(1, 1), (4, 8), (16, 16), (24, 32), (512, 512)])
def test_the_limit_is_one_that_vllm_takes(rank, limit):
    assert rank_limit(rank) == limit and limit in RANKS


def test_a_rank_beyond_all_limits_is_refused():
    with pytest.raises(ValueError, match="up to rank 512, not 513"):
        rank_limit(513)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"base_model_name_or_path": null}', "\x00"])
def test_an_adapter_that_does_not_say_what_is_under_it_is_refused(tmp_path, content):
    (tmp_path / ADAPTER_CONFIG).write_text(content)
    with pytest.raises(ConfigurationError, match="adapter_config.json"):
        adapter_base(tmp_path)


async def test_a_new_adapter_is_asked_for_by_its_name_and_nothing_pauses(
    stub, engine, tokens, vision, sampling, adapter
):
    prompt = history(tokens, vision, 0)
    assert (await engine.generate(prompt, sampling)).version == (3, 3)
    await engine.update_weights(adapter(4), 4)
    assert stub.models == ["policy", "policy@4"] and not {"/pause", "/collective_rpc"} & set(stub.calls)
    assert (await engine.info()).version == 4
    stub.label = "9"  # of the weights under it: another program's, perhaps
    assert (await engine.generate(prompt, sampling)).version == (4, 4)
    asked = stub.requests[-1][1]
    assert (asked["model"], asked["cache_salt"]) == ("policy@4", "v4")


async def test_a_response_that_runs_keeps_its_version(stub, engine, tokens, vision, sampling, adapter):
    stub.hold = asyncio.Event()
    running = asyncio.create_task(engine.generate(history(tokens, vision, 0), sampling))
    while not any("generate" in path for path, _ in stub.requests):
        await asyncio.sleep(0)
    await engine.update_weights(adapter(4), 4)
    stub.hold.set()
    assert (await running).version == (3, 3)


async def test_the_newest_two_stay_loaded(stub, engine, adapter):
    for version in (4, 5, 6, 8):
        await engine.update_weights(adapter(version), version)
    assert stub.models == ["policy", "policy@6", "policy@8"]


async def test_a_later_one_of_another_run_is_not_taken_for_ours(stub, engine, tokens, vision, sampling, adapter):
    """A server that runs elsewhere may have served a run before this one."""
    stub.models += ["policy@3", "policy@9"]
    await engine.update_weights(adapter(4), 4)
    assert stub.models == ["policy", "policy@3", "policy@4"] and (await engine.info()).version == 4
    assert (await engine.generate(history(tokens, vision, 0), sampling)).version == (4, 4)


async def test_one_that_is_loaded_already_is_loaded_anew(stub, engine, adapter):
    """After an update that failed its proof: what the server has under this name may be another run's."""
    await engine.update_weights(path := adapter(4), 4)
    await engine.update_weights(path, 4)
    loads = [body["lora_name"] for path, body in stub.requests if path == "/v1/load_lora_adapter"]
    assert loads == ["policy@4"] * 2 and stub.models == ["policy", "policy@4"]


async def test_whole_weights_take_the_adapters_away(stub, engine, tokens, vision, sampling, adapter):
    await engine.update_weights(adapter(4), 4)
    await engine.update_weights("/ckpt/v7", 7)
    assert stub.models == ["policy"]
    assert (await engine.generate(history(tokens, vision, 0), sampling)).version == (7, 7)


async def test_an_adapter_that_another_client_loaded_is_found(stub, engine, tokens, vision, sampling):
    stub.models.append("policy@5")
    assert (await engine.info()).version == 5
    assert (await engine.generate(history(tokens, vision, 0), sampling)).version == (5, 5)


async def test_a_server_that_came_back_without_it_is_found_out(stub, engine, tokens, vision, sampling, adapter):
    await engine.update_weights(adapter(4), 4)
    stub.models.remove("policy@4")
    with pytest.raises(EngineMismatch, match="policy@4"):
        await engine.generate(history(tokens, vision, 0), sampling)


async def test_an_adapter_that_cannot_be_loaded_leaves_the_old_one(stub, engine, tokens, vision, sampling, adapter):
    await engine.update_weights(adapter(4), 4)
    stub.loads = set()
    with pytest.raises(EngineError, match="could not load the adapter .*No adapter found"):
        await engine.update_weights(adapter(5), 5)
    assert (await engine.generate(history(tokens, vision, 0), sampling)).version == (4, 4)


async def test_a_server_without_adapters_is_told(stub, engine, adapter):
    stub.lora = False
    with pytest.raises(EngineError, match="--enable-lora"):
        await engine.update_weights(adapter(4), 4)


async def test_a_client_without_adapters_loads_whole_weights(stub, processing_dir, adapter):
    engine = VLLMEngine(stub.url, processing_dir, name="v0", version=3, timeout_s=5.0)
    await engine.update_weights(adapter(4), 4)
    assert "/collective_rpc" in stub.calls and stub.models == ["policy"]
    await engine.close()

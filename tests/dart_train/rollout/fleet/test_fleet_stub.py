"""vLLM servers that somebody else started, behind a stand-in for their routes: first weights, updates."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from pool_builders import all_ready, until, update_some

from dart_agent.engines.base.engine import EngineError, EngineInfo, Prompt, Sampling
from dart_agent.engines.base.engine_kind import Launch
from dart_agent.engines.kinds.vllm_server import VLLMServer
from dart_agent.engines.vllm.vllm_engine import VLLMEngine
from dart_agent.models.families.family_table import FAMILIES
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, write_processing
from dart_train.config.run_config import parse_config
from dart_train.rollout.fleet.engine_pool import EnginePool
from dart_train.rollout.fleet.replica import ReplicaState
from dart_train.rollout.fleet.weight_files import Weights, different_shapes
from dart_train.rollout.fleet.weight_sync import WeightSync
from dart_train.rollout.settings.rollout_config import EngineConfig, EnginePlaces, SyncConfig
from tests.dart_agent.engines.stream_workers import Worker
from tests.dart_agent.engines.vllm_stub import VLLMStub


def checkpoint(directory: Path, version: int) -> Weights:
    """A directory that looks like a whole checkpoint of the tiny model."""
    directory.mkdir()
    write_processing(directory, TinyModelConfig())
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    return Weights(str(directory), version)


def real_checkpoint(directory: Path, version: int) -> Weights:
    """One with a tensor in it: two times its version."""
    from safetensors.numpy import save_file

    weights = checkpoint(directory, version)
    save_file({"weight": np.full(2, version, np.float32)}, directory / "model.safetensors")
    return weights


@pytest.fixture
def first(tmp_path) -> Weights:
    return checkpoint(tmp_path / "v3", 3)


@pytest.fixture
def request_of(first) -> tuple[Prompt, Sampling]:
    tokens = ModelTokens.load(first.path)
    sampling = Sampling(24, stop_ids=tokens.stop_ids, suppressed_ids=tokens.suppressed_ids, training=True)
    return Prompt((tokens.im_start_id, *tokens.encode("go"))), sampling


@contextlib.asynccontextmanager
async def stubs(first: Weights, count: int = 2) -> AsyncIterator[tuple[list[VLLMStub], list[str]]]:
    made = [VLLMStub(ModelTokens.load(first.path), VisionSpec.from_dir(first.path)) for _ in range(count)]
    async with contextlib.AsyncExitStack() as stack:
        yield made, [await stack.enter_async_context(stub.serving()) for stub in made]


def config_of(urls: list[str], **settings) -> EngineConfig:
    defaults = {"health_interval_s": 0.05, "max_backoff_s": 0.2, "request_timeout_s": 20.0}
    return EngineConfig(urls=tuple(urls), **{**defaults, **settings})


async def test_a_server_whose_weights_nobody_knows_is_given_the_published_ones(first, request_of, tmp_path):
    """It calls them "default": they may be any. One that names the right version is taken as it is."""
    async with stubs(first) as ([unknown, known], urls):
        known.label = "3"
        async with EnginePool(config_of(urls), first, directory=tmp_path) as pool:
            await until(all_ready(pool))
            assert unknown.label == "3" and "/collective_rpc" in unknown.calls and "/collective_rpc" not in known.calls
            await asyncio.gather(*(pool.generate(*request_of) for _ in range(6)))
            bodies = [body for stub in (unknown, known) for path, body in stub.requests if "generate" in path]
            assert {body["cache_salt"] for body in bodies} == {"v3"}


async def test_a_server_is_drained_before_its_update_and_another_serves_meanwhile(first, request_of, tmp_path):
    newer = checkpoint(tmp_path / "v4", 4)
    async with stubs(first) as ([one, _], urls):
        async with EnginePool(config_of(urls), first, directory=tmp_path) as pool:
            await until(all_ready(pool))
            await pool.generate(*request_of)  # the probe of both is over after two
            await pool.generate(*request_of)
            one.hold = asyncio.Event()
            held = asyncio.create_task(pool.generate_near(*request_of, "r0"))
            await until(lambda: pool.replicas[0].in_flight == 1)
            update = asyncio.create_task(pool.lives["r0"].update(newer))
            await until(lambda: pool.replicas[0].state is ReplicaState.DRAINING)
            generation, name = await pool.generate_near(*request_of, "r0")
            assert (name, generation.version) == ("r1", (3, 3))
            assert "/pause?abort" not in one.calls[-1:]
            one.hold.set()
            assert (await held)[0].version == (3, 3)
            await update
            assert (await pool.generate_near(*request_of, "r0"))[0].version == (4, 4)
            assert pool.reissued == 0 and not pool.fleet.faults


async def test_a_server_of_another_name_or_that_cannot_be_updated_is_told_with_what_to_do(first, tmp_path):
    async with stubs(first) as ([other, fixed], urls):
        other.models = ["gpt"]
        fixed.dev = False
        pool = EnginePool(config_of(urls, start_timeout_s=1.0), first, directory=tmp_path)
        with pytest.raises(EngineError, match=r"--served-model-name policy.*VLLM_SERVER_DEV_MODE=1"):
            await pool.start()


async def test_weights_that_end_a_server_never_reach_the_last_one(first, request_of, tmp_path):
    """Sound as files, but not for the server, which ends over them as vLLM does."""
    bad, good = checkpoint(tmp_path / "v4", 4), checkpoint(tmp_path / "v5", 5)
    newest = [bad]
    async with stubs(first) as (servers, urls):
        for stub in servers:
            stub.loads, stub.mortal = {first.path, good.path}, True
        async with EnginePool(config_of(urls), first, directory=tmp_path) as pool:
            await until(all_ready(pool))
            sync = WeightSync(lambda: newest[0], pool)
            assert await update_some(sync) == 1
            down = next(replica for replica in pool.replicas if not replica.usable)
            assert await update_some(sync) == 0, "the other one is the last that serves"
            assert (await pool.generate(*request_of)).version == (3, 3)
            for stub in servers:
                stub.dead = False  # somebody starts it again, with whatever weights
                stub.label = "default" if stub.dead else stub.label
            await until(all_ready(pool))
            assert down.verified == 3, "it was given the last good ones before it served again"
            assert await update_some(sync) == 1 and sync.failed == 2 and newest[0] in sync.skipped
            for stub in servers:
                stub.dead = False
            await until(all_ready(pool))
            newest[0] = good
            while await update_some(sync):
                pass
            assert {replica.verified for replica in pool.replicas} == {5}


async def test_a_server_that_answers_500s_is_replaced_by_the_others(first, request_of, tmp_path):
    async with stubs(first) as ([good, bad], urls):
        async with EnginePool(config_of(urls), first, directory=tmp_path) as pool:
            await until(all_ready(pool))
            assert {(await pool.generate_near(*request_of, f"r{index}"))[1] for index in (0, 1)} == {"r0", "r1"}
            bad.broken = True
            for _ in range(3):
                generation, name = await pool.generate_near(*request_of, "r1")
                assert (generation.version, name) == ((3, 3), "r0")
            await until(lambda: pool.fleet.faults["failed"] == 1)
            assert "500" in pool.replicas[1].why_down and pool.reissued >= 1
            bad.broken = False
            await until(all_ready(pool))
            assert (await pool.generate_near(*request_of, "r1"))[1] == "r1"


@pytest.mark.train
@pytest.mark.process
async def test_weights_are_streamed_into_servers_that_somebody_else_started(first, request_of, tmp_path):
    """Rolling, over TCP, first weights included; a version that cannot be sent harms no server and is given up."""
    versions = [real_checkpoint(tmp_path / f"w{number}", number) for number in (4, 5)]
    newest, sync_config = [versions[0]], SyncConfig(transfer="tcp", buffer_mib=0.001)
    async with stubs(first) as (servers, urls):
        for stub in servers:
            stub.receiver = Worker()
        async with EnginePool(config_of(urls), versions[0], directory=tmp_path, sync=sync_config) as pool:
            await until(all_ready(pool))
            sync = WeightSync(lambda: newest[0], pool)
            newest[0] = versions[1]
            while await update_some(sync):
                assert (await pool.generate(*request_of)).version[1] in (4, 5)
            assert {stub.label for stub in servers} == {"5"} and sync.updates == 2
            for stub in servers:
                assert "/collective_rpc" not in stub.calls
                assert stub.receiver.received["weight"].tolist() == [5.0, 5.0]
            pool.sender.argv = ("/bin/false",)  # its environment is broken from now on
            await pool.sender.close()
            newest[0] = real_checkpoint(tmp_path / "w6", 6)
            assert await update_some(sync) == 1 and await update_some(sync) == 1
            assert "cannot be sent" in sync.skipped[newest[0]] and sync.failed == 2
            assert all_ready(pool)() and not pool.fleet.faults
            assert (await pool.generate(*request_of)).version == (5, 5)


@pytest.mark.train
@pytest.mark.process
async def test_a_sender_reads_a_trainers_memory_and_files_where_the_trainer_has_ended(first, request_of, tmp_path):
    """Once for all servers, and before any of them is drained or paused."""
    import torch

    from dart_agent.engines.weight_stream.dart_weight_socket import TensorShape
    from dart_train.trainer.weights.weight_server import WeightServer

    server, sync_config = WeightServer(16), SyncConfig(transfer="tcp", buffer_mib=0.001)
    files = [first]
    offered: list[Weights | None] = [None]
    async with stubs(first) as (servers, urls):
        for stub in servers:
            stub.receiver, stub.label = Worker(), "3"
        async with EnginePool(config_of(urls), first, directory=tmp_path, sync=sync_config) as pool:
            await until(all_ready(pool))
            sync = WeightSync(lambda: files[0], pool, offered=lambda: offered[0])
            version = server.offer(4, [TensorShape("weight", "bfloat16", (9, 2)), TensorShape("step", "int64", ())])
            offered[0] = Weights(str(tmp_path / "w4"), 4, memory=f"{server.address}#4")
            updating = asyncio.create_task(update_some(sync))
            version.put(torch.full((9, 2), 4.0, dtype=torch.bfloat16))
            assert (await pool.generate(*request_of)).version == (3, 3)
            version.put(torch.tensor(7))
            assert not any("/pause" in call for stub in servers for call in stub.calls)
            version.finish(None)
            assert await updating == 1
            while await update_some(sync):
                pass
            assert {stub.label for stub in servers} == {"4"} and (sync.updates, sync.from_memory) == (2, 2)
            for stub in servers:
                assert stub.receiver.received["weight"].dtype == torch.bfloat16
                assert stub.receiver.received["weight"].tolist() == [[4.0, 4.0]] * 9
                assert stub.receiver.received["step"].item() == 7
            assert server.served == 1
            server.close()
            offered[0] = Weights(str(tmp_path / "w5"), 5, memory=f"{server.address}#5")
            assert await update_some(sync) == 1 and sync.failed == 1
            assert all_ready(pool)() and not pool.fleet.faults
            files[0] = real_checkpoint(tmp_path / "w5", 5)
            while await update_some(sync):
                pass
            assert {stub.label for stub in servers} == {"5"} and sync.from_memory == 2 and not sync.skipped
            assert servers[0].receiver.received["weight"].tolist() == [5.0, 5.0]


@pytest.mark.process
async def test_a_sender_that_cannot_start_is_told_at_once(first, tmp_path, caplog):
    config = SyncConfig(transfer="tcp", python="/bin/false")
    async with stubs(first, 1) as ((stub,), urls):
        stub.label = "3"
        async with EnginePool(config_of(urls), first, directory=tmp_path, sync=config) as pool:
            await until(lambda: "new weights will not get to the engines: the sender" in caplog.text)
            await until(all_ready(pool))


@pytest.mark.parametrize(
    ("transfer", "options", "path"),
    [
        ("files", "", ""),
        ("nccl", '--weight-transfer-config {"backend": "nccl"}', ""),
        (
            "tcp",
            '--weight-transfer-config {"backend": "dart_tcp"} --worker-extension-cls dart_weight_receiver.Receiver',
            "weight_stream",
        ),
    ],
)
def test_servers_are_started_for_the_way_weights_come(tmp_path, transfer, options, path):
    launch = Launch("r0", 0, "/weights/v1", 1, tmp_path, transfer=transfer)
    command = VLLMServer(options=("--last",)).command(launch)
    assert " ".join(command.argv).endswith(f" {options} --last".replace("  ", " "))
    assert Path(command.environment["PYTHONPATH"]).name == path
    directory = command.environment["PYTHONPATH"]
    if directory:
        assert sorted(file.stem for file in Path(directory).glob("*.py")) == [
            "__init__",
            "dart_token_guard",
            "dart_weight_receiver",
            "dart_weight_socket",
            "dart_weight_stream",
        ], "a server finds these modules of ours, and no other"


async def test_a_start_that_waits_for_engines_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("dart_train.rollout.fleet.engine_pool.WAIT_SAID_S", 0.1)
    config = EngineConfig(urls=[f"ws+unix://{tmp_path}/nobody.sock"], start_timeout_s=1.5)
    said: list[str] = []
    pool = EnginePool(config, Weights("/weights/v1", 1), directory=tmp_path, on_wait=said.append)
    with pytest.raises(EngineError, match="no engine replica answered within 2 s"):
        await pool.start()
    assert said and all(one.startswith("no engine answers since ") and " (r0: " in one for one in said)


def test_the_command_of_a_vllm_server():
    server = VLLMServer(options=("--enable-lora",), environment={"A": "b"})
    launch = Launch("r0", 0, "/weights/v1", 1, Path("/sockets"), gpus=(2, 3), gpu_memory=0.4)
    command = server.command(launch)
    line = " ".join(command.argv)
    assert line.startswith("vllm serve /weights/v1 --served-model-name policy --host 127.0.0.1 --port ")
    for option in ("--enable-scale-out", "--logprobs-mode processed_logprobs", "--generation-config vllm"):
        assert option in line
    assert "--tensor-parallel-size 2 --gpu-memory-utilization 0.4" in line and line.endswith(" --enable-lora")
    assert command.environment["CUDA_VISIBLE_DEVICES"] == "2,3" and command.environment["A"] == "b"
    assert command.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert command.url == f"http://127.0.0.1:{command.argv[command.argv.index('--port') + 1]}"


@pytest.mark.parametrize(
    ("family", "named", "told"),
    [
        ("qwen3_5_moe", ["self_attn.q_proj", "shared_expert.up_proj", "q_proj"], ("q_proj", "up_proj")),
        ("qwen3_5_moe", None, FAMILIES["qwen3_5_moe"].adapted),
        ("qwen3_5_moe", [r".*layers\.[01]\..*proj"], ()),  # it knows layers by the ends of their names
        ("qwen3_5", ["q_proj", "v_proj"], ()),  # no experts that it would keep places for
    ],
)
def test_a_server_of_a_mixture_is_told_which_layers_are_adapted(tmp_path, family, named, told):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    values = {"name": "run", "rollout": {"tasks": ["fake/two-steps"]}}
    values["trainer"] = {"use_peft": True, **({"lora_target_modules": named} if named else {})}
    values["rollout"] |= {"engine": {"kind": "vllm"}, "sync": {"transfer": "adapter"}}
    config = parse_config(values)
    (replica, *_) = EnginePool(
        config.rollout.engine, Weights(str(tmp_path), 1), directory=tmp_path, log_dir=tmp_path, sync=config.rollout.sync
    ).replicas
    argv = replica.spec.command(Weights(str(tmp_path), 1)).argv
    after = argv[argv.index("--lora-target-modules") + 1 :] if told else ()
    assert tuple(after[: len(told)]) == told and ("--lora-target-modules" in argv) == bool(told)


def test_one_server_for_each_entry_of_gpus(tmp_path):
    config = EngineConfig(kind="vllm", replicas=7)
    places = EnginePlaces.parse(["0,1", "2,3"], 0.5)
    pool = EnginePool(config, Weights("/weights/v1", 1), directory=tmp_path, log_dir=tmp_path, places=places)
    assert [(replica.name, replica.spec.owned) for replica in pool.replicas] == [("r0", True), ("r1", True)]
    assert pool.replicas[1].spec.log == tmp_path / "engine-1.log"
    command = pool.replicas[1].spec.command(Weights("/weights/v1", 1))
    assert command.environment["CUDA_VISIBLE_DEVICES"] == "2,3" and "--gpu-memory-utilization" in command.argv
    assert command.environment["TMPDIR"] == str(tmp_path), "what it leaves goes with the pool's sockets"


def test_tensors_of_other_shapes_do_not_fit_and_other_names_may():
    old = {"a": (2, 3), "b": (4,)}
    assert different_shapes(old, old) == different_shapes({"c": (9,), "b": (4,)}, old) == ""
    assert "1 tensors have other shapes, such as a: [3, 3] instead of [2, 3]" in different_shapes({"a": (3, 3)}, old)


@pytest.mark.parametrize("load", ["NaN", "+Inf", "-1", "1e300", "many"])
async def test_a_load_that_is_no_number_does_not_take_a_replica_out(load, first, request_of, tmp_path):
    async with stubs(first, 1) as ([stub], urls):
        stub.load_told = load
        async with EnginePool(config_of(urls), first, directory=tmp_path) as pool:
            await until(all_ready(pool))
            await pool.generate(*request_of)
            assert pool.replicas[0].info.waiting == 0 and not pool.fleet.faults


async def test_a_client_that_fails_in_its_own_way_is_tried_again(first, request_of, tmp_path, monkeypatch):
    """A plug-in's client may raise anything, or return something else than a state: no replica ends over that."""
    states = [ValueError("no"), {"version": 3}, EngineInfo("x", "m", "3")]  # type: ignore[arg-type]
    tell = VLLMEngine.info

    async def info(self):
        if states:
            state = states.pop(0)
            if isinstance(state, Exception):
                raise state
            return state
        return await tell(self)

    monkeypatch.setattr(VLLMEngine, "info", info)
    async with stubs(first, 1) as (_, urls):
        async with EnginePool(config_of(urls), first, directory=tmp_path) as pool:
            await until(all_ready(pool))
            assert not states
            await pool.generate(*request_of)

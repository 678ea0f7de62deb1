"""Weights streamed into servers: a real sender process, real workers over TCP, vLLM's routes over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dart_agent.engines.base.engine import EngineError, UpdateNotBegun
from dart_agent.engines.vllm.vllm_engine import VLLMEngine
from dart_agent.engines.vllm.weight_loading import FromSender, WeightSender
from dart_agent.engines.weight_stream.dart_weight_stream import cut
from tests.dart_agent.engines.stream_workers import Worker, WorkerProcesses
from tests.dart_agent.engines.vllm_stub import VLLMStub
from tests.helpers.vllm_server import program

pytestmark = [pytest.mark.train, pytest.mark.process]
MEETING = ["/get_world_size", "/init_weight_transfer_engine"]
LOADING = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
CACHES = ["/reset_mm_cache", "/reset_encoder_cache", "/reset_prefix_cache"]
UPDATE = [*MEETING, "/pause?keep", *LOADING, *CACHES, "/resume", "/shutdown_weight_transfer_engine"]


@pytest.fixture
async def stub(tokens, vision):
    server = VLLMStub(tokens, vision)
    server.receiver = Worker()
    async with server.serving() as server.url:
        yield server


def sender_of(**settings) -> WeightSender:
    return WeightSender("tcp", **{"buffer_bytes": 1 << 16, **settings})


@pytest.fixture
async def sender():
    sender = sender_of()
    yield sender
    await sender.close()


@pytest.fixture
async def engine(stub, sender, processing_dir):
    engine = VLLMEngine(stub.url, processing_dir, loading=FromSender(sender), update_timeout_s=60.0)
    yield engine
    await engine.close()


@pytest.fixture
def odd_dir(tmp_path) -> Path:
    """Two files; every dtype that a model has; scalars, nothing at all, and a length that ends amid a word."""
    torch.manual_seed(0)
    directory = tmp_path / "odd"
    directory.mkdir()
    save_file({"b.bytes": torch.arange(7, dtype=torch.uint8), "b.none": torch.empty(0, 4)}, directory / "2.safetensors")
    first = {
        "a.weight": torch.randn(33, 5),
        "a.half": torch.randn(3, dtype=torch.bfloat16),
        "a.scalar": torch.tensor(5),
        "z.turned": torch.randn(4, 6).T.contiguous(),
    }
    save_file(first, directory / "1.safetensors")
    return directory


def tensors_in(directory: Path) -> dict[str, torch.Tensor]:
    files = map(load_file, sorted(directory.glob("*.safetensors")))
    return {name: tensor for file in files for name, tensor in file.items()}


def same(received: dict[str, torch.Tensor], sent: dict[str, torch.Tensor]) -> bool:
    return received.keys() == sent.keys() and all(
        (each.dtype, each.shape) == (sent[name].dtype, sent[name].shape) and torch.equal(each, sent[name])
        for name, each in received.items()
    )


@given(st.lists(st.integers(0, 9)), st.integers(1, 20))
def test_a_buffer_is_closed_by_the_tensor_that_takes_it_over_the_limit(sizes, limit):
    parts = list(cut(sizes, lambda size: size, limit))
    assert [size for part in parts for size in part] == sizes
    assert all(sum(part[:-1]) <= limit for part in parts) and all(sum(part) > limit for part in parts[:-1])


@pytest.mark.thorough
async def test_every_worker_gets_names_dtypes_shapes_and_values_in_order(stub, engine, odd_dir, tmp_path):
    with contextlib.closing(WorkerProcesses(2, tmp_path)) as stub.receiver:
        await engine.update_weights(str(odd_dir), 7)
        workers = stub.receiver
    for index in range(2):
        assert same(load_file(workers.file(index)), tensors_in(odd_dir))
        with safe_open(workers.file(index), framework="pt") as file:
            order = json.loads(file.metadata()["order"])
        assert order == ["a.half", "a.scalar", "a.weight", "z.turned", "b.bytes", "b.none"]
    assert (await engine.info()).version == 7


@pytest.mark.thorough
async def test_a_model_arrives_whole_however_it_is_packed(stub, engine, sender, tiny_dir):
    """The pause begins when both sides have met, and the caches of the old weights are dropped before it ends."""
    sent = tensors_in(tiny_dir)
    for version, limit in enumerate((1, 1 << 14, 1 << 30), 1):
        sender.buffer_bytes = limit
        stub.calls.clear()
        await engine.update_weights(str(tiny_dir), version)
        assert same(stub.receiver.received, sent)
        assert stub.calls == [*UPDATE, "/weight_info"]
        assert (stub.label, stub.paused) == (str(version), False)
        parts = len(stub.receiver.parts)
        assert parts == {1: len(sent), 1 << 30: 1}.get(limit, parts) and sum(stub.receiver.parts) == len(sent)


@pytest.mark.thorough
async def test_one_sender_serves_its_servers_one_after_the_other(tokens, vision, sender, processing_dir, tiny_dir):
    stubs = [VLLMStub(tokens, vision) for _ in range(3)]
    held = 0

    class Counting(Worker):
        def meet(self, init_info):
            nonlocal held
            held += 1
            assert held == 1
            super().meet(init_info)

        def leave(self):
            nonlocal held
            held -= self._group is not None
            super().leave()

    async with asyncio.TaskGroup() as group, stubs[0].serving() as a, stubs[1].serving() as b, stubs[2].serving() as c:
        engines = []
        for stub, url in zip(stubs, (a, b, c), strict=True):
            stub.receiver = Counting()
            engines.append(VLLMEngine(url, processing_dir, loading=FromSender(sender)))
        updates = [group.create_task(engine.update_weights(str(tiny_dir), 4)) for engine in engines]
        await asyncio.gather(*updates)
        for engine in engines:
            await engine.close()
    assert all(same(stub.receiver.received, tensors_in(tiny_dir)) for stub in stubs)


@pytest.mark.thorough
async def test_what_cannot_be_sent_leaves_the_server_alone(stub, engine, processing_dir, tmp_path):
    for path, says in ((tmp_path / "nothing", "holds no"), (tmp_path / "cut", "header too small")):
        path.mkdir()
        if path.name == "cut":
            (path / "model.safetensors").write_bytes(b"\x20")
        with pytest.raises(UpdateNotBegun, match=f"{path} cannot be sent: .*failed to open: .*{says}"):
            await engine.update_weights(str(path), 1)
    assert stub.calls == []
    nobody = VLLMEngine(stub.url, processing_dir, loading=FromSender(sender_of(python=str(tmp_path / "python"))))
    with pytest.raises(UpdateNotBegun, match="the sender of weights cannot be started with .*python"):
        await nobody.update_weights(str(tmp_path), 1)
    wrong = VLLMEngine(stub.url, processing_dir, loading=FromSender(sender_of(python="/bin/false")))
    with pytest.raises(UpdateNotBegun, match="the sender of weights ended over 'open'.*needs torch"):
        await wrong.update_weights(str(tmp_path), 1)
    await nobody.close()
    await wrong.close()


@pytest.mark.slow
async def test_what_the_server_refuses_is_not_waited_for(stub, engine, tiny_dir):
    """Before any pause where it knows no weight transfer; amid the broadcast where it fails at the weights."""
    stub.failing = {"/init_weight_transfer_engine"}
    with pytest.raises(EngineError, match="not configured.*--weight-transfer-config"):
        await engine.update_weights(str(tiny_dir), 1)
    assert stub.calls == MEETING and not stub.paused
    stub.failing = {"/update_weights"}
    with pytest.raises(EngineError, match="could not load .*Restart the server"):
        await engine.update_weights(str(tiny_dir), 2)
    assert stub.label == "default" and not stub.paused
    stub.failing = set()
    await engine.update_weights(str(tiny_dir), 3)
    assert stub.label == "3" and same(stub.receiver.received, tensors_in(tiny_dir))


def sender_pids(sender: WeightSender) -> Iterator[int]:
    if sender.process is not None:
        yield sender.process.pid


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fatal", "server_first"),
    [
        (signal.SIGKILL, False),
        pytest.param(signal.SIGKILL, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, False, marks=pytest.mark.slow),
    ],
)
async def test_a_sender_that_dies_or_hangs_amid_an_update(stub, processing_dir, tiny_dir, fatal, server_first):
    """The update fails in time and names the sender, whoever notices first; the next one is another sender's."""
    sender = sender_of()
    engine = VLLMEngine(stub.url, processing_dir, loading=FromSender(sender), update_timeout_s=60.0)
    await engine.update_weights(str(tiny_dir), 1)
    hurt: list[int] = []

    class Fatal(Worker):
        def receive(self, update_info):
            if not hurt:
                hurt.extend(sender_pids(sender))
                os.kill(hurt[0], fatal)
                if server_first:
                    raise ConnectionResetError("the connection was reset")
            super().receive(update_info)

    stub.receiver = Fatal()
    hasty = VLLMEngine(stub.url, processing_dir, loading=FromSender(sender), update_timeout_s=5.0)
    with pytest.raises(EngineError, match="the sender of weights|did not load"):
        async with asyncio.timeout(60):
            await hasty.update_weights(str(tiny_dir), 2)
    assert not stub.paused and stub.label == "1"
    stub.receiver = Worker()
    await engine.update_weights(str(tiny_dir), 3)
    assert stub.label == "3" and [*sender_pids(sender)] != hurt
    (last,) = sender_pids(sender)
    for each in (engine, hasty, sender, sender):
        await each.close()
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


CONTRACT = """
import inspect, json, sys
import torch
from vllm.distributed.weight_transfer import nccl_common, nccl_engine, packed_tensor

init_info, tensors, sizes, limit = json.load(sys.stdin)
nccl_engine.NCCLWeightTransferEngine.init_info_cls(**init_info)
nccl_engine.NCCLWeightTransferEngine.update_info_cls(**tensors)
inspect.signature(nccl_common.trainer_init).bind({})
for name in ("master_address", "master_port", "world_size"):
    assert name in inspect.getsource(nccl_common.trainer_init)
inspect.signature(packed_tensor.packed_nccl_broadcast_producer).bind(
    iterator=None, group=None, src=0, post_iter_func=None, buffer_size_bytes=1, num_buffers=2
)
items = iter([(str(size), torch.zeros(size, dtype=torch.uint8)) for size in sizes])
parts = []
while (chunk := packed_tensor.pack_tensors(items, lambda item: item[1], limit)) is not None:
    parts.append(chunk.tensor_sizes)
json.dump(parts, sys.stdout)
"""


@pytest.mark.vllm
async def test_the_messages_are_those_that_vllm_takes_and_it_packs_as_we_do(stub, engine, odd_dir):
    """For NCCL, whose wire needs GPUs: its dataclasses take what we send, and its packing cuts where ours does."""
    await engine.update_weights(str(odd_dir), 1)
    bodies = dict(stub.requests)
    sizes = [int(size) for size in torch.randint(0, 50, (200,), generator=torch.Generator().manual_seed(0))]
    python = program().with_name("python")
    init_info = bodies["/init_weight_transfer_engine"]["init_info"]
    request = json.dumps([init_info, bodies["/update_weights"]["update_info"], sizes, 64])
    done = subprocess.run([python, "-c", CONTRACT], input=request, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [*cut(sizes, lambda size: size, 64)]

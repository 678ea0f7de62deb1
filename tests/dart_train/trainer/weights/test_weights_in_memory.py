"""Weights that engines read from a trainer's memory: real sockets, engines and ranks, killed at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from training_lives import forked

from dart_agent.engines.base.engine import Prompt, Sampling, UpdateNotBegun
from dart_agent.engines.embedded.memory_weights import staged_weights
from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.engines.weight_stream.dart_weight_socket import SCHEME, NotReadError, TensorShape, cut, read_facts
from dart_gym.utils.processes import free_port
from dart_train.core.train_errors import RankLostError
from dart_train.data.groups import checkpoint_rows
from dart_train.data.manager.data_manager import DataManager
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.adapters import LoraSettings, add_adapter
from dart_train.trainer.weights.model_loading import load_model
from dart_train.trainer.weights.publisher import Publisher
from dart_train.trainer.weights.snapshot import snapshot
from dart_train.trainer.weights.weight_server import GivenUpError, VersionInMemory, WeightServer
from tests.helpers.parameters import slow_but

pytestmark = [pytest.mark.train]

ODD = {
    "weight": torch.arange(35.0).view(7, 5),
    "half": torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(5),
    "none": torch.empty(0, 4),
    "bytes": torch.arange(7, dtype=torch.uint8),
}


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(1, 60))
def test_buckets_are_full_but_the_last_and_hold_every_byte_in_order(sizes, limit):
    buckets = [*cut(sizes, limit)]
    lengths = [sum(end - begin for _, begin, end in bucket) for bucket in buckets]
    assert all(length == limit for length in lengths[:-1]) and all(0 < length <= limit for length in lengths)
    parts = [part for bucket in buckets for part in bucket]
    found = [(index, place) for index, begin, end in parts for place in range(begin, end)]
    assert found == [(index, place) for index, size in enumerate(sizes) for place in range(size)]


def test_a_bucket_holds_a_byte_at_least():
    with pytest.raises(ValueError, match="hold nothing"):
        next(cut([1], 0))
    with pytest.raises(ValueError, match="bucket_bytes 0 must be at least 1"):
        WeightServer(0)


def shapes_of(tensors: dict[str, torch.Tensor]) -> list[TensorShape]:
    return [
        TensorShape(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors.items()
    ]


def offer(server: WeightServer, version: int, tensors: dict[str, torch.Tensor]) -> VersionInMemory:
    offered = server.offer(version, shapes_of(tensors))
    for tensor in tensors.values():
        offered.put(tensor)
    return offered


def read(server: WeightServer, version: int, check: Callable = lambda shapes: None) -> dict[str, torch.Tensor]:
    return staged_weights(f"{server.address}#{version}", check)


@pytest.fixture
def server() -> Iterator[WeightServer]:
    server = WeightServer()
    yield server
    server.close()


@pytest.mark.parametrize("bucket_bytes", [1, 13, 1 << 20])
def test_tensors_arrive_as_they_are_also_those_larger_than_a_bucket(bucket_bytes):
    server = WeightServer(bucket_bytes)
    offer(server, 4, ODD).finish(None)
    found = read(server, 4)
    assert list(found) == list(ODD)
    for name, tensor in ODD.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    assert read_facts(f"{server.address}#4") == {"fingerprint": None}
    place = Path(server.address.removeprefix(SCHEME))
    assert place.is_socket() and place.parent.stat().st_mode & 0o777 == 0o700
    server.close()
    server.close()
    assert not place.parent.exists()


def test_a_version_is_read_while_it_is_gathered_and_is_none_before_its_end(server):
    offered = server.offer(2, shapes_of(ODD))
    found: list[dict] = []
    reader = threading.Thread(target=lambda: found.append(read(server, 2)))
    reader.start()
    for tensor in ODD.values():
        offered.put(tensor)
    reader.join(0.2)
    assert reader.is_alive() and not found
    offered.finish(None)
    reader.join(30)
    assert torch.equal(found[0]["weight"], ODD["weight"]) and server.served == 1


def test_what_is_not_whole_is_no_version(server):
    with pytest.raises(UpdateNotBegun, match="version 1 is not in memory any more, the newest there is none"):
        read(server, 1)
    offered = server.offer(1, shapes_of(ODD))
    offered.put(ODD["weight"])
    offered.give_up("the GPU burned down")
    with pytest.raises(UpdateNotBegun, match="did not arrive whole: the trainer gave it up"):
        read(server, 1)
    with pytest.raises(NotReadError, match="the GPU burned down"):
        read_facts(f"{server.address}#1")
    offer(server, 2, {"weight": torch.tensor([1.0, torch.nan])}).finish(None)
    with pytest.raises(UpdateNotBegun, match="version 2 has weights that are not finite"):
        read(server, 2)
    with pytest.raises(UpdateNotBegun, match="version 1 is not in memory any more, the newest there is version 2"):
        read(server, 1)
    assert server.served == 0


def test_tensors_of_another_model_take_no_memory(server):
    offer(server, 1, ODD).finish(None)

    def check(shapes):
        assert shapes["weight"] == (7, 5)
        raise ValueError("not a checkpoint of this model")

    with pytest.raises(UpdateNotBegun, match="not a checkpoint of this model"):
        read(server, 1, check)


def test_a_version_stays_for_those_that_read_it_when_the_next_one_comes(server):
    offered = server.offer(1, shapes_of(ODD))
    found: list[dict] = []
    began = threading.Event()
    reader = threading.Thread(target=lambda: found.append(read(server, 1, lambda shapes: began.set())))
    reader.start()
    assert began.wait(30)
    offer(server, 2, ODD).finish(None)
    for tensor in ODD.values():
        offered.put(tensor)
    offered.finish(None)
    reader.join(30)
    assert found and read(server, 2).keys() == ODD.keys()


# Whole models


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    """A version's files, by the names in memory."""
    model = load_model(directory)
    weights = model.state_dict()
    for copy in model.all_tied_weights_keys or {}:
        del weights[copy]
    return weights


@pytest.mark.parametrize("adapter", [False, True], ids=["full", "adapter"])
def test_what_is_read_from_memory_is_what_is_written(adapter, model_dir, data, tmp_path, server):
    """An adapter is merged; the fingerprint comes along, and the row says when files are there as well."""
    model = load_model(model_dir)
    if adapter:
        model = add_adapter(model, LoraSettings(r=4))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    publisher = Publisher(data, tmp_path / "checkpoints", model_dir, every=1, keep=2, server=server)
    publisher.publish(model, None, 1)
    fact = data.fact(checkpoint_rows.IN_MEMORY)
    assert fact["address"] == server.address
    found, facts = read(server, fact["version"]), read_facts(f"{server.address}#{fact['version']}")
    publisher.settle()
    written = weights_of(Path(fact["path"]))
    assert found.keys() == written.keys()
    assert all(torch.equal(found[name], written[name]) for name in written)
    assert facts["fingerprint"]["response_ids"]
    publisher.close()
    with pytest.raises(UpdateNotBegun):
        read(server, fact["version"])


def test_a_gathering_that_fails_leaves_no_version(model_dir, data, tmp_path, server):
    def break_down(model, directory, ranks, offer):
        offer(shapes_of(ODD)).give_up("out of memory")
        raise RuntimeError("out of memory")

    publisher = Publisher(data, tmp_path / "c", model_dir, every=1, keep=2, server=server, take=break_down)
    with pytest.raises(RuntimeError):
        publisher.publish(object(), None, 1)
    assert [row.status for row in data.checkpoints()] == ["FAILED"]
    with pytest.raises(NotReadError, match="out of memory"):
        read_facts(f"{server.address}#0")


def offer_slowly(model_dir: str, tensors: int, pipe) -> None:
    """A trainer that has gathered a few tensors and hangs; ends with its parent."""
    torch.set_num_threads(1)
    server = WeightServer()
    model = load_model(model_dir)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)

    def begin(shapes: list[TensorShape]) -> VersionInMemory:
        offered = server.offer(7, shapes)
        put, count = offered.put, 0

        def counted(tensor: torch.Tensor) -> None:
            nonlocal count
            if count == tensors:
                pipe.send(server.address)
                pipe.recv()  # for ever, or until told to go on
            put(tensor)
            count += 1

        offered.put = counted  # type: ignore[method-assign]
        return offered

    snapshot(model, model_dir, offer=begin)
    pipe.recv()


@pytest.fixture
def slow_trainer(model_dir: Path) -> Iterator[tuple]:
    """(process, its address, a pipe on which anything lets it go on)."""
    context = forked()
    ours, theirs = context.Pipe()
    process = context.Process(target=offer_slowly, args=(str(model_dir), 5, theirs), daemon=True)
    process.start()
    theirs.close()
    yield process, ours.recv(), ours
    process.kill()
    process.join()


@pytest.mark.thorough
@pytest.mark.process
async def test_a_trainer_that_is_killed_amid_a_transfer_changes_no_engine(slow_trainer, model_dir, tokens):
    """The engine answers meanwhile and afterwards, with its old weights."""
    trainer, address, _ = slow_trainer
    engine = TransformersEngine(model_dir, threads=1)
    prompt = Prompt((tokens.im_start_id, *tokens.encode("Click")))
    sampling = Sampling(max_tokens=4, seed=3, suppressed_ids=tokens.suppressed_ids)
    before = await engine.generate(prompt, sampling)
    update = asyncio.create_task(engine.update_weights(f"{address}#7", 7))
    during = await engine.generate(prompt, sampling)
    done, _ = await asyncio.wait([update], timeout=0.5)
    assert not done
    os.kill(trainer.pid, signal.SIGKILL)
    with pytest.raises(UpdateNotBegun, match="did not arrive whole: the trainer gave it up, or has ended"):
        await update
    trainer.join()
    with pytest.raises(UpdateNotBegun, match="cannot be used: .*refused"):
        await engine.update_weights(f"{address}#7", 7)
    after = await engine.generate(prompt, sampling)
    assert before.logprobs == during.logprobs == after.logprobs
    assert before.version == during.version == after.version == (0, 0)
    await engine.close()


def read_in_process(address: str, pipe) -> None:
    staged_weights(f"{address}#7", lambda shapes: pipe.send("reading"))


@pytest.mark.slow
@pytest.mark.process
async def test_an_engine_that_is_killed_amid_a_transfer_costs_the_trainer_nothing(slow_trainer, model_dir, tokens):
    """Another engine reads the version whole, and answers differently from then on."""
    _, address, go_on = slow_trainer
    context = forked()
    ours, theirs = context.Pipe()
    reader = context.Process(target=read_in_process, args=(address, theirs))
    reader.start()
    assert await asyncio.to_thread(ours.recv) == "reading"
    reader.kill()
    reader.join()
    engine = TransformersEngine(model_dir, threads=1)
    prompt = Prompt((tokens.im_start_id, *tokens.encode("Click")))
    sampling = Sampling(max_tokens=4, seed=3, suppressed_ids=tokens.suppressed_ids)
    before = await engine.generate(prompt, sampling)
    update = asyncio.create_task(engine.update_weights(f"{address}#7", 7))
    go_on.send("on")
    await update
    after = await engine.generate(prompt, sampling)
    assert (before.version, after.version) == ((0, 0), (7, 7)) and before.logprobs != after.logprobs
    await engine.close()


HANGS_S = 5.0
"""Time limit of the process group of which a rank hangs."""


def ended_by(number: int, buckets: Callable) -> Callable:
    """Return `buckets`, after 50 of which a signal ends or stops this process."""
    left = iter(range(50))

    def of(*arguments):
        for bucket in buckets(*arguments):
            if next(left, None) is None:
                os.kill(os.getpid(), number)
            yield bucket

    return of


def publish_from_rank(rank: int, port: int, model_dir: str, root: str, pipe, end: int) -> None:
    """One of two ranks that hold parts of a model, and publish a version; the second may get a signal amid it."""
    os.environ |= {"LOCAL_WORLD_SIZE": "2"}
    import torch.distributed as dist

    from dart_train.trainer.weights import gathering
    from dart_train.trainer.weights.ranks import Ranks
    from dart_train.trainer.weights.sharding import Cut, load_sharded

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    ranks = Ranks.current()
    if end == signal.SIGSTOP:
        ranks = replace(ranks, group=dist.new_group(timeout=timedelta(seconds=HANGS_S), backend="gloo"))
    model = load_sharded(model_dir, Cut(torch.device("cpu"), ranks))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
    gathering.BUCKET_BYTES = 100  # smaller than one row of most tensors
    if end and rank == 1:
        gathering.bucket_bounds = ended_by(end, gathering.bucket_bounds)
    server = WeightServer(1 << 10) if ranks.is_main else None
    with DataManager.open(f"sqlite:///{root}/d.sqlite", root, "r") as data:
        publisher = Publisher(data, Path(root) / "c", Path(model_dir), every=1, keep=2, ranks=ranks, server=server)
        try:
            publisher.publish(model, None, 1)
        except RankLostError as error:
            pipe.send(str(error))
            raise
        publisher.settle()
        pipe.send(data.fact(checkpoint_rows.IN_MEMORY))
        pipe.recv()
        publisher.close()
    dist.destroy_process_group()


@contextlib.contextmanager
def two_ranks(model_dir: Path, root: Path, *, end: int = 0) -> Iterator[tuple[list, list]]:
    """Processes and the pipes to them; what is left of them at the end is killed."""
    context = forked()
    port, pipes, processes = free_port(), [], []
    for rank in range(2):
        ours, theirs = context.Pipe()
        target = (rank, port, str(model_dir), str(root), theirs, end)
        processes.append(context.Process(target=publish_from_rank, args=target, daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    yield processes, pipes
    for process in processes:
        process.kill()
        process.join()


@pytest.mark.process
@pytest.mark.scale
def test_two_ranks_send_their_parts_as_one_version(model_dir, tmp_path):
    with two_ranks(model_dir, tmp_path) as (processes, pipes):
        fact, other = (pipe.recv() for pipe in pipes)
        assert fact == other
        found = staged_weights(f"{fact['address']}#{fact['version']}", lambda shapes: None)
        for pipe in pipes:
            pipe.send("end")
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0, 0]
    (file,) = checkpoint.version_dir(tmp_path / "c", fact["version"]).glob("*.safetensors")
    assert len(load_file(file)) == len(found)
    written, original = weights_of(file.parent), weights_of(model_dir)
    assert found.keys() == written.keys()
    assert all(torch.equal(found[name], written[name]) for name in written)
    assert any(not torch.equal(found[name], original[name]) for name in original)


@pytest.mark.process
@pytest.mark.scale
@pytest.mark.parametrize("end", slow_but([signal.SIGKILL], [signal.SIGKILL, signal.SIGSTOP]))
def test_a_rank_that_dies_or_hangs_amid_the_gathering_leaves_no_version(end, model_dir, tmp_path):
    with two_ranks(model_dir, tmp_path, end=end) as (processes, pipes):
        assert pipes[0].recv().startswith("rank 1 ended, or did not answer in time, while weights were gathered")
        processes[0].join(60)
        assert processes[0].exitcode == 1
    with DataManager.open(f"sqlite:///{tmp_path}/d.sqlite", tmp_path, "r") as data:
        assert [row.status for row in data.checkpoints()] == ["FAILED"]


def test_nobody_waits_for_a_version_that_never_comes():
    version = VersionInMemory(1, shapes_of(ODD))
    version.give_up("no more")
    for wait in (version.facts, lambda: version.tensor(0)):
        with pytest.raises(GivenUpError, match="no more"):
            wait()

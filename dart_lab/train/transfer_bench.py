"""How new weights get from two ranks to two engines: by files and from memory, in paired rounds, and under kills.

The ranks are processes that hold halves of a model (FSDP2) and publish versions of it with `Publisher`, as the trainer
does. The engines are a real fleet (`EnginePool`, `WeightSync`) in this process, whose servers are processes. In each
round the same ranks publish once by each way. Times of one way, as the median of the rounds:

- `stopped_s`: for which training stands still: weights are gathered, and the fingerprint is made.
- `served_s`: from then until both engines serve the version and have shown its fingerprint.
- `written_s`: from then until its files are there.
- `peak_mib_rank0`, `peak_mib_rank1`: most memory of a rank beyond what it had before, until the files are there. Rank 0
  keeps a copy of the weights, from which the files are written.

Gathering alone, in buckets as now and tensor by tensor (`whole`) as `DTensor.full_tensor` does:

- `gather_s_buckets`, `gather_s_whole`: seconds for all weights.
- `gather_peak_mib_buckets`, `gather_peak_mib_whole`: most memory that the other rank took for it.

A LoRA adapter of rank 16, published by one process as merged weights and alone (`adapter`), in alternating rounds:

- `merged_publish_s`, `adapter_publish_s`: seconds until its files are there, the fingerprint included.
- `merged_mib`, `adapter_mib`: size of a version, tokenizer and processor files included.

Then an engine, and at last the main rank, are killed amid a transfer from memory while requests go on:

- `mixed_responses`: responses to one prompt that differ from the others of their version; weights were mixed there.
- `answers`, `versions_seen`: responses that were compared, and the versions that gave them.
- `version_gap_nats`: least difference between the answers of one version and of the next, so that mixed weights show.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dart_agent.engines.base.engine import EngineError, Prompt, Sampling
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model, write_processing
from dart_gym.utils.processes import die_with_parent, free_port
from dart_lab.gym.own_processes import module_command, own_environment
from dart_lab.reporting.report import Aim, Report, median
from dart_train.data.groups import checkpoint_rows
from dart_train.data.manager.data_manager import DataManager
from dart_train.rollout.fleet.engine_pool import EnginePool
from dart_train.rollout.fleet.replica import ReplicaState
from dart_train.rollout.fleet.weight_files import Weights, in_memory
from dart_train.rollout.fleet.weight_sync import WeightSync
from dart_train.rollout.settings.rollout_config import EngineConfig
from dart_train.trainer.weights.gathering import BUCKET_BYTES

RUN = "transfer"
RANKS, ENGINES = 2, 2
WAYS = ("files", "memory")
LIMIT_S = 900.0
SAME_NATS = 0.02
"""Log-probabilities of one version differ by less: in bfloat16, of batches of one request and of two."""
AIMS = {
    "transfer.mixed_responses": Aim(0, at_most=True),
    "transfer.version_gap_nats": Aim(5 * SAME_NATS, at_most=False),
    "transfer.memory_speedup": Aim(1.0, at_most=False),
    "transfer.gather_peak_mib_buckets": Aim(1.1 * BUCKET_BYTES / 2**20, at_most=True),
}
HALF_TEXT = {
    "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    "intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 32768, "use_sliding_window": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
    "tie_word_embeddings": True,
}  # fmt: skip
HALF_VISION = {
    "hidden_size": 128, "depth": 2, "num_heads": 4, "intermediate_size": 256, "patch_size": 14, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "window_size": 112, "fullatt_block_indexes": [1], "out_hidden_size": 896,
}  # fmt: skip
MODELS = ("tiny", "half")


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured.

    Attributes:
        model: "half" (half a billion weights, in bfloat16) or "tiny".
        rounds: publications by each way.
        kills: whether an engine and the main rank are killed at the end.
    """

    model: str = "half"
    rounds: int = 3
    kills: bool = True


async def measure(options: Options, progress: Callable[[str], None]) -> Report:
    """Measure both ways; the keys begin with "transfer."."""
    with tempfile.TemporaryDirectory(prefix="dart-transfer-") as name:
        folder = Path(name)
        progress(f"a model: {options.model}")
        model = build_model(options.model, folder / "v000000")
        with DataManager.open(f"sqlite:///{folder}/rows.sqlite", folder, RUN) as data:
            data.publish(0, model, "initial")
            async with _fleet(model, data, folder) as fleet, _ranks(model, folder) as ranks:
                found = await _gathering(ranks, progress)
                found |= await _rounds(options, fleet, ranks, progress)
                if options.kills:
                    found |= await _kills(fleet, ranks, progress)
        progress("an adapter, merged and alone")
        found |= await asyncio.to_thread(_adapters, model, folder, options.rounds)
        weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    found["memory_speedup"] = found["files_served_s"] / found["memory_served_s"]
    notes = [f"{weights / 2**20:.0f} MiB of weights, {RANKS} ranks, {ENGINES} engines, {options.rounds} rounds"]
    return Report("transfer", {f"transfer.{name}": value for name, value in found.items()}, AIMS, notes)


def build_model(name: str, directory: Path) -> Path:
    """Write a model of random weights."""
    if name == "tiny":
        return build_tiny_model(directory)
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    directory.mkdir(parents=True)
    write_processing(directory, TinyModelConfig(temporal_patch_size=2))
    tokens = ModelTokens.load(directory)
    config = Qwen2_5_VLConfig(
        text_config=HALF_TEXT,
        vision_config=HALF_VISION,
        image_token_id=tokens.image_pad_id,
        vision_start_token_id=tokens.vision_start_id,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=torch.bfloat16).save_pretrained(directory)
    write_processing(directory, TinyModelConfig(temporal_patch_size=2))  # its generation config has our end token
    return directory


# The engines


@dataclass(slots=True)
class Fleet:
    """The engines, and what their answers were.

    Attributes:
        answers: log-probabilities of one response by version.
        asked: responses that were compared.
        mixed: responses that differ from the first of their version.
    """

    pool: EnginePool
    sync: WeightSync
    prompt: Prompt
    sampling: Sampling
    answers: dict[int, tuple[float, ...]]
    asked: int = 0
    mixed: int = 0

    async def served(self, version: int) -> None:
        """Wait until all engines serve a version."""
        while not all(r.version == version and r.state is ReplicaState.READY for r in self.pool.replicas):
            await asyncio.sleep(0.01)

    async def agreed(self) -> None:
        """Wait until all engines serve one version."""
        replicas = self.pool.replicas
        while len({r.version for r in replicas}) > 1 or any(r.state is not ReplicaState.READY for r in replicas):
            await asyncio.sleep(0.01)

    async def ask(self) -> None:
        """Ask an engine, and compare its answer."""
        answer = await self.pool.generate(self.prompt, self.sampling)
        version = answer.version[0]
        first = self.answers.setdefault(version, answer.logprobs)
        same = answer.version[1] == version and all(
            abs(one - other) < SAME_NATS for one, other in zip(first, answer.logprobs, strict=True)
        )
        self.asked += 1
        self.mixed += not same

    @property
    def gap(self) -> float:
        """Least difference between the answers of one version and of the next that answered."""
        pairs = pairwise(answer for _, answer in sorted(self.answers.items()))
        return min(max(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in pairs)

    async def ask_on(self) -> None:
        """Ask again and again."""
        while True:
            with contextlib.suppress(EngineError):  # while none is there
                await self.ask()
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def _fleet(model: Path, data: DataManager, folder: Path) -> AsyncIterator[Fleet]:
    config = EngineConfig(replicas=ENGINES, start_timeout_s=LIMIT_S, request_timeout_s=LIMIT_S)
    tokens = ModelTokens.load(model)
    prompt = Prompt((tokens.im_start_id, *tokens.encode("user\nClick on the tab")))
    sampling = Sampling(max_tokens=2, temperature=0.0, suppressed_ids=tokens.suppressed_ids)

    def offered() -> Weights | None:
        return in_memory(data.fact(checkpoint_rows.IN_MEMORY))

    async with EnginePool(config, Weights(str(model), 0), directory=folder, log_dir=folder) as pool:
        sync = WeightSync(data.newest_here, pool, interval_s=0.05, offered=offered)
        fleet = Fleet(pool, sync, prompt, sampling, {})
        await fleet.served(0)
        running = asyncio.create_task(sync.run())
        try:
            yield fleet
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


# The ranks


class RankProcesses:
    """The ranks; the main one is asked by lines of JSON, and answers likewise."""

    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self.processes = processes

    async def ask(self, **request: Any) -> None:
        """Send a request to the main rank."""
        main = self.processes[0]
        assert main.stdin is not None
        main.stdin.write(json.dumps(request).encode() + b"\n")
        await main.stdin.drain()

    async def answer(self) -> dict[str, Any]:
        """Return the main rank's next answer."""
        main = self.processes[0]
        assert main.stdout is not None
        line = await main.stdout.readline()
        if not line:
            raise RuntimeError("a rank of the benchmark has ended; its error is above")
        return json.loads(line)


@contextlib.asynccontextmanager
async def _ranks(model: Path, folder: Path) -> AsyncIterator[RankProcesses]:
    group = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
    group |= {"MASTER_PORT": str(free_port()), "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in range(RANKS):
        processes.append(
            await asyncio.create_subprocess_exec(
                *module_command("dart_lab.train.transfer_bench", str(model), str(folder)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**own_environment(), **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                preexec_fn=die_with_parent(),
            )
        )
    ranks = RankProcesses(processes)
    try:
        await ranks.answer()
        yield ranks
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _gathering(ranks: RankProcesses, progress: Callable[[str], None]) -> dict[str, float]:
    found: dict[str, float] = {}
    for way in ("buckets", "whole"):
        progress(f"gathering: {way}")
        await ranks.ask(way=way)
        said = await ranks.answer()
        found |= {f"gather_s_{way}": said["seconds"], f"gather_peak_mib_{way}": said["peaks"][1] / 2**20}
    return found


async def _rounds(
    options: Options, fleet: Fleet, ranks: RankProcesses, progress: Callable[[str], None]
) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for number in range(options.rounds):
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            await ranks.ask(way=way)
            stopped = await ranks.answer()
            began = time.perf_counter()
            written = asyncio.create_task(ranks.answer())
            async with asyncio.timeout(LIMIT_S):
                await fleet.served(stopped["version"])
            served_s = time.perf_counter() - began
            done = await written
            await fleet.ask()
            values = {"stopped_s": stopped["seconds"], "served_s": served_s, "written_s": done["seconds"]}
            values |= {f"peak_mib_rank{rank}": peak / 2**20 for rank, peak in enumerate(done["peaks"])}
            shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
            progress(f"round {number + 1}: {way}: {shown}")
            for name, value in values.items():
                found.setdefault(f"{way}_{name}", []).append(value)
            while fleet.pool.fleet.weights.version != stopped["version"]:
                await asyncio.sleep(0.05)  # its digests are being compared
    if fleet.sync.from_memory < options.rounds:  # of a tiny model the files are there for the second engine
        raise RuntimeError(f"{fleet.sync.from_memory} updates came from memory; the engines' logs may say why")
    return {name: median(values) for name, values in found.items()}


async def _kills(fleet: Fleet, ranks: RankProcesses, progress: Callable[[str], None]) -> dict[str, float]:
    asking = asyncio.create_task(fleet.ask_on())
    try:
        for who in ("an engine", "the main rank"):
            progress(f"{who} is killed amid a transfer")
            await ranks.ask(way="memory")
            async with asyncio.timeout(LIMIT_S):
                while not (updating := [r for r in fleet.pool.replicas if r.state is ReplicaState.UPDATING]):
                    await asyncio.sleep(0.001)
                if who == "an engine":
                    process = updating[0].process
                    assert process is not None
                    process.kill_all()
                    version = (await ranks.answer())["version"]
                    await ranks.answer()
                    await fleet.served(version)
                else:
                    ranks.processes[0].kill()
                    await fleet.agreed()
                await fleet.ask()
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    seen = {"mixed_responses": fleet.mixed, "answers": fleet.asked, "versions_seen": len(fleet.answers)}
    return {name: float(count) for name, count in seen.items()} | {"version_gap_nats": fleet.gap}


# An adapter


def _adapters(model_dir: Path, folder: Path, rounds: int) -> dict[str, float]:
    """Publish an adapter by both ways in turn."""
    from dart_train.trainer.weights.adapters import LoraSettings, add_adapter
    from dart_train.trainer.weights.checkpoint import write_adapter, write_model
    from dart_train.trainer.weights.model_loading import load_model
    from dart_train.trainer.weights.snapshot import adapter_snapshot, published_dtype, snapshot

    model = add_adapter(load_model(model_dir, dtype=published_dtype(model_dir)), LoraSettings())
    seconds: dict[str, list[float]] = {"merged": [], "adapter": []}
    for _ in range(rounds):
        began = time.perf_counter()
        write_model(snapshot(model, model_dir), folder / "merged", model_dir)
        seconds["merged"].append(time.perf_counter() - began)
        began = time.perf_counter()
        write_adapter(adapter_snapshot(model, model_dir), folder / "adapter", model_dir)
        seconds["adapter"].append(time.perf_counter() - began)
    sizes = {way: sum(file.stat().st_size for file in (folder / way).iterdir()) / 2**20 for way in seconds}
    return {f"{way}_publish_s": median(found) for way, found in seconds.items()} | {
        f"{way}_mib": size for way, size in sizes.items()
    }


# One rank


def _gather(model: Any, ranks: Any, dtype: Any, *, whole: bool) -> dict[str, Any]:
    """Gather all weights, and keep none."""
    import torch
    from torch.distributed.tensor import DTensor

    from dart_train.trainer.memory.resident_memory import PeakMemory
    from dart_train.trainer.weights.gathering import gathered

    ranks.wait()
    with PeakMemory(torch.device("cpu")) as memory, torch.no_grad():
        began = time.perf_counter()
        for tensor in model.state_dict().values():
            if whole and isinstance(tensor, DTensor):
                tensor.full_tensor().to(dtype)
            else:
                gathered(tensor, dtype, ranks)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "peaks": ranks.gather(memory.peak)}


def main() -> None:
    """One rank: publishes a version for each line that the main rank gets."""
    import torch
    import torch.distributed as dist

    from dart_train.trainer.memory.resident_memory import PeakMemory
    from dart_train.trainer.weights.publisher import Publisher
    from dart_train.trainer.weights.ranks import Ranks
    from dart_train.trainer.weights.sharding import Cut, load_sharded
    from dart_train.trainer.weights.snapshot import published_dtype
    from dart_train.trainer.weights.weight_server import WeightServer

    model_dir, folder = map(Path, sys.argv[1:3])
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = Ranks.current()
    model = load_sharded(model_dir, Cut(torch.device("cpu"), ranks))
    server = WeightServer() if ranks.is_main else None

    def say(**values: Any) -> None:
        if ranks.is_main:
            print(json.dumps(values), file=replies)

    with DataManager.open(f"sqlite:///{folder}/rows.sqlite", folder, RUN) as data:
        shared: dict[str, Any] = {"every": 1, "keep": 3, "ranks": ranks}
        ways = {
            "files": Publisher(data, folder, model_dir, **shared),
            "memory": Publisher(data, folder, model_dir, server=server, **shared),
        }
        say()
        while way := ranks.share(json.loads(sys.stdin.readline() or "{}").get("way") if ranks.is_main else None):
            if way not in ways:
                say(**_gather(model, ranks, published_dtype(model_dir), whole=way == "whole"))
                continue
            with torch.no_grad():
                newest = max(publisher.version for publisher in ways.values())
                for parameter in model.parameters():  # no version answers as the one before
                    parameter.mul_(0.8 if newest % 2 else 1.25)
            if server is not None:
                server.offer(-1, ())  # lets go of the version before
            ways[way].served = ways[way].version  # older files are removed
            ranks.wait()
            with PeakMemory(torch.device("cpu")) as memory:
                began = time.perf_counter()
                ways[way].publish(model, None, 0)
                stopped = time.perf_counter()
                say(version=ways[way].version, seconds=stopped - began)
                ways[way].settle()
            say(seconds=time.perf_counter() - stopped, peaks=ranks.gather(memory.peak))
        if server is not None:
            server.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""One rollout service at scale: 1,000 drawn desktops on four servers, engines with a 7B's latencies, a trainer.

The rollout service is this process, whole: sessions, scheduler, the vLLM client, recorder, SQLite. Beside it, as
processes of their own: four servers of drawn desktops, stand-ins for vLLM servers (`engine_stub`), and a trainer that
leases, commits and publishes versions, which the engines take as they do in a run. An episode has two steps.

- `trajectories_per_min`: recorded and trainable, after the first seconds, which are left out.
- `control_ms_per_step`: processor time of this process over the steps that were played in it.
- `expired_share`: of the trajectories that were decided, those that became too old for the trainer.
- `memory_mb`, `memory_growth_mb`: of this process in the middle of the time, and from then to its end.
- `image_requests_per_s`, `image_cpu_ms`: of the client alone, with screenshots of 1932x1092; see `image_bench`.
- `image_cpu_vs_anew`: how much more processor time a request takes if its five screenshots are encoded for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from dart_agent.models.tiny_model import TinyModelConfig, write_processing
from dart_gym.utils.processes import follow_parent
from dart_lab.gym.cluster_server_process import BenchServer
from dart_lab.gym.own_processes import module_command, own_environment
from dart_lab.reporting.report import Aim, Report, median
from dart_lab.train.engine_stub import StubProcess
from dart_lab.train.image_bench import KINDS, measure_images
from dart_train.config.run_config import AgentConfig
from dart_train.core.data_states import RolloutState
from dart_train.core.garbage_collection import collect_rarely
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.insight.statistics import count_states
from dart_train.data.manager.data_manager import DataManager
from dart_train.processes.run_policy import make_policy
from dart_train.rollout.fleet.weight_files import Weights
from dart_train.rollout.service.rollout_service import RolloutService
from dart_train.rollout.settings.rollout_config import EngineConfig, RolloutConfig, SamplingConfig

RUN, TASK = "scale", "fake/click-button"
AIMS = {
    "scale.trajectories_per_min": Aim(10_000, at_most=False),  # OSGym reports 1,420 with 1,024 replicas
    "scale.expired_share": Aim(0.05, at_most=True),
    "scale.image_cpu_vs_anew": Aim(20.0, at_most=False),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement.

    Attributes:
        desktops: drawn ones, on all servers together.
        servers: of desktops.
        engines: stand-ins for vLLM servers.
        seconds: for which the service plays, after those that are left out.
        skip_s: until all desktops play.
        steps: of an episode.
        batch_groups: groups of eight that the trainer takes for a version.
        image_s: seconds of each measurement with screenshots; 0 leaves them out.
    """

    desktops: int = 1000
    servers: int = 4
    engines: int = 32
    seconds: float = 60.0
    skip_s: float = 20.0
    steps: int = 2
    batch_groups: int = 256
    image_s: float = 10.0


async def measure(sizes: Sizes, progress: Callable[[str], None]) -> Report:
    """Measure both; the keys begin with "scale."."""
    progress(f"{sizes.desktops} desktops for {sizes.seconds:g} s")
    keys = await measure_service(sizes, progress)
    if sizes.image_s:
        for kinds in (KINDS, *((kind,) for kind in KINDS)):
            progress(f"requests with screenshots: {', '.join(kinds)}")
            found = await measure_images(kinds, desktops=8, seconds=sizes.image_s)
            name = "" if kinds == KINDS else f"_{kinds[0]}"
            keys |= {f"image_{key}{name}": value for key, value in found.items()}
    notes = [
        f"{sizes.desktops} desktops on {sizes.servers} servers, {sizes.engines} engines, {sizes.steps} steps each, "
        f"{sizes.batch_groups * 8} trajectories a version; all of it on this machine"
    ]
    return Report("scale", {f"scale.{name}": value for name, value in keys.items()}, AIMS, notes)


async def measure_service(sizes: Sizes, progress: Callable[[str], None]) -> dict[str, float]:
    """Measure the throughput of one rollout service, and its use of resources."""
    async with _surroundings(sizes) as (folder, servers, engines):
        curation = CurationConfig(batch_groups=sizes.batch_groups)
        with DataManager.open(f"sqlite:///{folder}/rows.sqlite", folder / "data", RUN, config=curation) as data:
            data.publish(0, publishable(folder, 0), "initial")
            service = _service(sizes, folder, data, servers, engines)
            collect_rarely()  # as the process of a rollout service does
            running = asyncio.create_task(service.run())
            trainer = await _child("trainer", str(folder), str(sizes.batch_groups))
            try:
                found = await _watch(sizes, service, running, progress)
            finally:
                trainer.terminate()
                await trainer.wait()
                service.stop()
                await running
            states = data.read(count_states)
        decided = sum(states.get(state, 0) for state in DECIDED)
        return found | {"expired_share": states.get(RolloutState.EXPIRED, 0) / max(1, decided)}


DECIDED = (RolloutState.TRAINED, RolloutState.EXPIRED, RolloutState.REJECTED)


async def _watch(
    sizes: Sizes, service: RolloutService, running: asyncio.Task[object], progress: Callable[[str], None]
) -> dict[str, float]:
    """Let it play, and look at it now and then."""
    await _passes(sizes.skip_s, running)
    sums = service.gauges.totals.sums
    began = time.perf_counter()
    used = time.process_time()
    steps = sums["steps"]
    episodes = service.scheduler.completed
    memory: list[float] = []
    while (passed := time.perf_counter() - began) < sizes.seconds:
        await _passes(min(10.0, sizes.seconds - passed), running)
        memory.append(own_mb())
        progress(f"{passed:.0f} s: {service.scheduler.completed} trajectories, {memory[-1]:.0f} MB")
    passed, steps = time.perf_counter() - began, sums["steps"] - steps
    late = memory[len(memory) // 2 :]
    return {
        "trajectories_per_min": 60 * (service.scheduler.completed - episodes) / passed,
        "control_ms_per_step": 1e3 * (time.process_time() - used) / max(1.0, steps),
        "cores": (time.process_time() - used) / passed,
        "steps_per_s": steps / passed,
        "unrecorded": float(service.unrecorded),
        "memory_mb": median(late),
        "memory_growth_mb": late[-1] - late[0],
    }


async def _passes(seconds: float, running: asyncio.Task[object]) -> None:
    """Wait so long, unless the service ends, which it should not."""
    done, _ = await asyncio.wait({running}, timeout=seconds)
    for task in done:
        task.result()
        raise RuntimeError("the rollout service has ended by itself")


def own_mb() -> float:
    """Memory of this process in megabytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


# --- what is around the service


@contextlib.asynccontextmanager
async def _surroundings(sizes: Sizes) -> AsyncIterator[tuple[Path, list[str], list[str]]]:
    """A folder with a model's files, servers of desktops, engines."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dart-bench-")))
        publishable(folder, 0)
        each = -(-sizes.desktops // sizes.servers)
        servers = [await stack.enter_async_context(BenchServer(each)) for _ in range(sizes.servers)]
        stub = StubProcess(str(folder / "v0"), sizes.engines, latency=True, steps=sizes.steps)
        yield folder, [server.url for server in servers], await stack.enter_async_context(stub)


def publishable(folder: Path, version: int) -> Path:
    """A directory that looks like a whole checkpoint."""
    directory = folder / f"v{version}"
    if directory.is_dir():
        return directory
    if version:
        return shutil.copytree(folder / "v0", directory)
    directory.mkdir()
    write_processing(directory, TinyModelConfig())
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    return directory


def _service(sizes: Sizes, folder: Path, data: DataManager, servers: list[str], engines: list[str]) -> RolloutService:
    config = RolloutConfig(
        tasks=(TASK,),
        workers=sizes.desktops,
        max_steps=sizes.steps,
        sampling=SamplingConfig(max_tokens=500),
        engine=EngineConfig(kind="vllm", urls=tuple(engines)),
    )
    agent = AgentConfig(screenshots=5)
    return RolloutService(
        config,
        data,
        url=",".join(servers),
        weights=Weights(str(folder / "v0"), 0),
        make_policy=make_policy(folder / "v0", agent, config.sampling),
    )


async def _child(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(*module_command(__name__, *arguments), env=own_environment())


def train(folder: Path, batch_groups: int) -> None:
    """Be the trainer: lease a batch, commit it, publish a version; until SIGTERM."""
    follow_parent()
    curation = CurationConfig(batch_groups=batch_groups)
    with DataManager.open(f"sqlite:///{folder}/rows.sqlite", folder / "data", RUN, config=curation) as data:
        for version, leased in enumerate(data.leases("trainer", groups=batch_groups), 1):
            with leased:
                leased.commit(version)
            data.publish(version, publishable(folder, version))


if __name__ == "__main__":
    train(Path(sys.argv[2]), int(sys.argv[3]))

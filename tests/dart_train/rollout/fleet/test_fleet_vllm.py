"""Two real vLLM servers, started by the pool, through ten weight updates while episodes go on."""

import asyncio
import collections
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from pool_builders import until
from vllm_episodes import EXACT, Episodes, Played, plain, settings

from dart_agent.engines.embedded.qwen_runner import QwenRunner
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_gym.utils.processes import die_with_parent
from dart_train.data.files.object_storage import Storage, open_storage
from dart_train.data.files.shared_directories import place, share
from dart_train.nodes.program_host import RunOnNodes
from dart_train.nodes.ray_cluster import EnginesOnNodes
from dart_train.nodes.run_keys import AUTHORITY_ENV, RunKeys
from dart_train.rollout.fleet.engine_pool import EnginePool
from dart_train.rollout.fleet.replica import ReplicaState, Weights
from dart_train.rollout.fleet.weight_sync import WeightSync
from dart_train.rollout.settings.rollout_config import SyncConfig
from dart_train.trainer.weights.fingerprint_probe import fingerprint_of
from dart_train.trainer.weights.model_loading import load_model
from dart_train.trainer.weights.snapshot import snapshot
from dart_train.trainer.weights.weight_server import WeightServer
from tests.helpers.local_ray import local_ray
from tests.helpers.object_store import s3_bucket
from tests.helpers.vllm_server import START_S, vllm_model
from tests.helpers.waiting import wait_until

__all__ = ["vllm_model"]
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]
UPDATES = 10
EPISODES = 4
QUIET_STEPS = 60
CHECKED = 8


@dataclasses.dataclass
class Version:
    weights: Weights
    runner: QwenRunner


@pytest.fixture(scope="module")
def versions(vllm_model, tmp_path_factory) -> list[Version]:
    """Eleven published checkpoints, each a step of noise after the one before, with their fingerprints."""
    torch.set_num_threads(1)
    vision = VisionSpec.from_dir(vllm_model)
    root, made = tmp_path_factory.mktemp("versions"), []
    for number in range(UPDATES + 1):
        source = made[-1].weights.path if made else vllm_model
        runner = QwenRunner.load(source, vision)
        noise = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for tensor in runner.model.parameters():
                tensor += 0.1 * tensor.std(correction=0) * torch.randn(tensor.shape, generator=noise)
        path = Path(shutil.copytree(source, root / f"v{number:06d}"))
        runner.model.save_pretrained(path)
        fingerprint_of(runner.model, path).write(path)
        made.append(Version(Weights(str(path), number), runner))
    return made


def off(step: Played, version: Version, suppressed: tuple[int, ...]) -> np.ndarray:
    return np.abs(
        np.asarray(step.generation.logprobs) - plain(version.runner.model, version.runner.vision, step, suppressed)
    )


class Service:
    """Notes whether a replica serves, whenever a state changes."""

    def __init__(self, pool: EnginePool) -> None:
        self.least = len(pool.replicas)
        original: Callable[[], None] = pool.fleet.changed.wake

        def noted() -> None:
            original()
            self.least = min(self.least, sum(each.state is ReplicaState.READY for each in pool.replicas))

        pool.fleet.changed.wake = noted


async def test_ten_updates_under_two_replicas_while_episodes_go_on(versions, vllm_model, tmp_path, capsys):
    newest = [versions[0].weights]
    async with EnginePool(settings(), versions[0].weights, directory=tmp_path, log_dir=tmp_path) as pool:
        await until(lambda: all(replica.state is ReplicaState.READY for replica in pool.replicas), timeout=START_S)
        episodes, service = Episodes(pool, vllm_model), Service(pool)
        sync = WeightSync(lambda: newest[0], pool, interval_s=0.05)
        update = asyncio.create_task(sync.run())
        playing = [asyncio.create_task(episodes.play(number)) for number in range(EPISODES)]
        await episodes.until_steps(20)  # both have compiled what they compile
        quiet_s = busy_s = 0.0
        quiet_steps = busy_steps = 0
        during: list[tuple[float, int]] = []
        for version in versions[1:]:
            quiet_s += await episodes.until_steps(QUIET_STEPS)
            quiet_steps += QUIET_STEPS
            begun, before = time.monotonic(), len(episodes.steps)
            newest[0] = version.weights
            await until(lambda: all(r.verified == newest[0].version for r in pool.replicas), timeout=600)
            during.append((time.monotonic() - begun, len(episodes.steps) - before))
            await episodes.until_steps(max(0, QUIET_STEPS - (len(episodes.steps) - before)))
            busy_s += time.monotonic() - begun
            busy_steps += len(episodes.steps) - before
        await episodes.until_steps(10)
        episodes.going = False
        await asyncio.gather(*playing)  # a failed step would raise here
        update.cancel()
        await asyncio.gather(update, return_exceptions=True)
        assert sync.updates == 2 * UPDATES and sync.failed == 0 and not sync.skipped
        assert pool.reissued == 0 and not pool.fleet.faults
        assert service.least >= 1, "at every moment one replica was ready"

    worst, mixed = 0.0, 0
    by_version = collections.defaultdict(list)
    for step in episodes.steps:
        by_version[step.generation.version].append(step)
    assert {span for span in by_version if span[0] == span[1]} == {(v.weights.version,) * 2 for v in versions}
    for (oldest, latest), steps in sorted(by_version.items()):
        assert latest - oldest <= 1
        for step in steps[:CHECKED] + steps[-CHECKED:]:
            old, new = (off(step, versions[number], episodes.suppressed) for number in (oldest, latest))
            if oldest == latest:
                worst = max(worst, old.max())
                assert old.max() < EXACT
                assert off(step, versions[oldest - 1 if oldest else 1], episodes.suppressed).max() > EXACT
            else:
                mixed += 1
                change = int(np.argmax(old > EXACT))
                assert change > 0 and (old[:change] < EXACT).all() and (new[change:] < EXACT).all()
    ratio = (busy_steps / busy_s) / (quiet_steps / quiet_s)
    seconds, steps = map(sum, zip(*during, strict=True))
    quiet = quiet_steps / quiet_s
    with capsys.disabled():
        print(
            f"\n{len(episodes.steps)} steps, {mixed} of them over two versions; log-probabilities off by {worst:.1e}\n"
            f"{quiet:.1f} steps/s without updates, {ratio:.0%} of that with one every {QUIET_STEPS} steps, "
            f"{steps / seconds / quiet:.0%} within the updates of both, {seconds / UPDATES:.2f} s each"
        )
    assert ratio >= 0.8


@pytest.fixture
def nodes(tmp_path, monkeypatch) -> Iterator[tuple[EnginesOnNodes, Storage]]:
    """A Ray cluster on this machine, whose engines share nothing with us but an object store and the run's keys."""
    keys = RunKeys.of_run(tmp_path / "keys")
    for name, value in keys.environment(tmp_path / "keys" / "authority.pem").items():
        monkeypatch.setenv(name, value)
    (tmp_path / "runs" / "r").mkdir(parents=True)
    with s3_bucket() as bucket:
        access = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        run = RunOnNodes("r", str(tmp_path / "runs" / "r"), "no node", "name: r\n", keys, str(tmp_path), "", access)
        with local_ray(run, tmp_path / "node", cores=2):
            yield EnginesOnNodes(run), open_storage(f"{bucket}/{tmp_path.name}")


async def test_five_updates_through_an_object_store_on_a_ray_cluster(versions, vllm_model, nodes, tmp_path, capsys):
    """As on a cluster: TLS, the run's token on every route, versions fetched by the node and never read from here."""
    engines, store = nodes

    def published(version: Version) -> Weights:
        share(store, "versions", path := Path(version.weights.path))
        return dataclasses.replace(version.weights, url=place(store, "versions", path))

    updates, seconds = 5, 0.0
    newest = [published(versions[0])]
    pool = EnginePool(settings(), newest[0], directory=tmp_path, log_dir=tmp_path, nodes=engines)
    async with pool:
        await until(lambda: all(replica.state is ReplicaState.READY for replica in pool.replicas), timeout=START_S)
        episodes = Episodes(pool, vllm_model)
        sync = WeightSync(lambda: newest[0], pool, interval_s=0.05)
        update = asyncio.create_task(sync.run())
        playing = [asyncio.create_task(episodes.play(number)) for number in range(2)]
        for version in versions[1 : updates + 1]:
            await episodes.until_steps(20)
            newest[0] = published(version)
            seconds -= time.monotonic()
            await until(lambda: all(r.verified == newest[0].version for r in pool.replicas), timeout=600)
            seconds += time.monotonic()
        await episodes.until_steps(20)
        episodes.going = False
        await asyncio.gather(*playing)
        trust = ssl.create_default_context(cafile=os.environ[AUTHORITY_ENV])
        async with httpx.AsyncClient(verify=trust, trust_env=False) as stranger:
            for route in ("/health", "/v1/models", "/pause"):
                for replica in pool.replicas:
                    assert replica.url.startswith("https://")
                    assert (await stranger.get(f"{replica.url}{route}")).status_code == 401
        update.cancel()
        await asyncio.gather(update, return_exceptions=True)
        assert sync.updates == 2 * updates and sync.failed == 0 and not sync.skipped and not pool.fleet.faults
        assert pool.reissued == 0
    copies = tmp_path / "node" / "runs" / "r" / "engine-copies"
    assert Path(versions[updates].weights.path).name in {path.name for path in copies.iterdir()}
    assert all(str(copies) in (tmp_path / f"engine-{index}.log").read_text() for index in range(2))
    whole = [step for step in episodes.steps if len(set(step.generation.version)) == 1]
    assert {step.generation.version[0] for step in whole} == set(range(updates + 1))
    assert {step.replica for step in whole} == {"r0", "r1"}
    worst = max(off(step, versions[step.generation.version[0]], episodes.suppressed).max() for step in whole[::5])
    with capsys.disabled():
        print(f"\n{seconds / updates:.1f} s for an update of both; log-probabilities off by {worst:.1e}")
    assert worst < EXACT


async def test_a_killed_server_comes_back_with_the_newest_weights(versions, vllm_model, tmp_path):
    """-9 to one of two; meanwhile weights come that are cut off, and weights that do not fit: both would end vLLM."""
    newest = [versions[0].weights]
    async with EnginePool(settings(), versions[0].weights, directory=tmp_path, log_dir=tmp_path) as pool:
        await until(lambda: all(replica.state is ReplicaState.READY for replica in pool.replicas), timeout=START_S)
        episodes = Episodes(pool, vllm_model)
        sync = WeightSync(lambda: newest[0], pool, interval_s=0.05)
        update = asyncio.create_task(sync.run())
        playing = [asyncio.create_task(episodes.play(number)) for number in range(EPISODES)]
        await episodes.until_steps(20)
        newest[0] = versions[1].weights
        await until(lambda: all(r.verified == 1 for r in pool.replicas), timeout=600)
        victim = pool.replicas[0]
        os.kill(victim.process.pid, signal.SIGKILL)
        cut = Path(shutil.copytree(versions[2].weights.path, tmp_path / "cut"))
        os.truncate(cut / "model.safetensors", 5000)
        wide = build_tiny_model(tmp_path / "wide", config=TinyModelConfig(hidden_size=96, heads=4))
        newest[0] = Weights(str(cut), 2)
        await episodes.until_steps(20)
        newest[0] = Weights(str(wide), 3)
        await episodes.until_steps(20)
        await until(lambda: victim.state is ReplicaState.READY and victim.restarts == 1, timeout=START_S)
        assert {r.verified for r in pool.replicas} == {1}
        reasons = {weights.version: reason for weights, reason in sync.skipped.items()}
        assert "model.safetensors cannot be read" in reasons[2] and "does not fit the model" in reasons[3]
        await episodes.until_steps(20)
        episodes.going = False
        await asyncio.gather(*playing)
        update.cancel()
        await asyncio.gather(update, return_exceptions=True)
        assert pool.fleet.faults["died"] == 1 and sync.failed == 0
        assert {step.replica for step in episodes.steps[-20:]} == {"r0", "r1"}
        assert {step.generation.version for step in episodes.steps[-20:]} == {(1, 1)}


KEEPER = """
import asyncio, json, sys, time
from pathlib import Path
from dart_agent.engines.kinds.vllm_server import VLLMServer
from dart_train.rollout.fleet.replica import Replica, ReplicaSpec, Weights
model, directory, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
spec = ReplicaSpec(0, VLLMServer.parse(options), directory=directory, log=directory / "engine.log")
asyncio.run(Replica(spec).launch(Weights(model, 0)))
time.sleep(3600)
"""


def test_a_server_ends_with_all_that_it_started_when_its_keeper_is_killed(vllm_model, tmp_path):
    """What computes is a grandchild: were it left, it would hold the GPU's memory that the next server needs."""
    log = tmp_path / "engine.log"
    words = [str(vllm_model), str(tmp_path), json.dumps(settings().options)]
    keeper = subprocess.Popen([sys.executable, "-c", KEEPER, *words], preexec_fn=die_with_parent())

    def living() -> list[int]:
        mark, found = f"TMPDIR={tmp_path}\0".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    wait_until(lambda: log.exists() and "Application startup complete" in log.read_text(), START_S)
    assert len(living()) >= 3
    keeper.kill()
    keeper.wait()
    wait_until(lambda: not living(), 60, explain=lambda: f"left: {living()}")


def in_trainer(server: WeightServer, weights: Weights) -> Weights:
    """The weights of files in a trainer's memory, by the names that they have there."""
    taken = snapshot(load_model(weights.path), weights.path, offer=lambda shapes: server.offer(weights.version, shapes))
    assert taken.fingerprint is not None
    return Weights("nowhere", weights.version, memory=f"{server.address}#{weights.version}")


@pytest.mark.parametrize("source", ["files", "memory"])
async def test_streamed_weights(source, versions, vllm_model, tmp_path, capsys):
    """Over TCP into vLLM's own engine of weight transfers: log-probabilities of the new weights, image caches included.

    The same screens come again after each update, the vision tower is another one each time, and the directory that
    is served is never read by the server.
    """
    newest, server = [versions[0].weights], WeightServer()
    sync_config = SyncConfig(transfer="tcp", buffer_mib=0.25)

    def offered() -> Weights | None:
        return newest[0] if newest[0].memory else None

    def files() -> Weights:
        return versions[0].weights if newest[0].memory else newest[0]

    pool = EnginePool(settings(replicas=1), versions[0].weights, directory=tmp_path, log_dir=tmp_path, sync=sync_config)
    async with pool:
        episodes = Episodes(pool, vllm_model)
        sync = WeightSync(files, pool, interval_s=0.05, offered=offered)
        update = asyncio.create_task(sync.run())
        playing = [asyncio.create_task(episodes.play(number)) for number in range(2)]
        for version in versions[1:4]:
            await episodes.until_steps(20)
            newest[0] = version.weights if source == "files" else in_trainer(server, version.weights)
            await until(lambda: pool.replicas[0].verified == newest[0].version, timeout=600)
        await episodes.until_steps(20)
        episodes.going = False
        await asyncio.gather(*playing)
        update.cancel()
        await asyncio.gather(update, return_exceptions=True)
        assert sync.updates == 3 and sync.failed == 0 and not pool.fleet.faults
        assert sync.from_memory == (3 if source == "memory" else 0)
        assert pool.fleet.weights == (newest[0] if source == "files" else versions[0].weights)
    server.close()
    assert "weight transfer engine: TCPWeightTransferEngine" in (tmp_path / "engine-0.log").read_text()
    by_version = collections.defaultdict(list)
    for step in episodes.steps:
        by_version[step.generation.version].append(step)
    assert {span for span in by_version if span[0] == span[1]} == {(number, number) for number in range(4)}
    worst = 0.0
    for (oldest, latest), steps in by_version.items():
        for step in [step for step in steps[:CHECKED] + steps[-CHECKED:] if oldest == latest]:
            worst = max(worst, off(step, versions[oldest], episodes.suppressed).max())
            assert off(step, versions[oldest - 1 if oldest else 1], episodes.suppressed).max() > EXACT
    with capsys.disabled():
        print(f"\n{sync.update_s / sync.updates:.2f} s for an update by stream; log-probabilities off by {worst:.1e}")
    assert worst < EXACT

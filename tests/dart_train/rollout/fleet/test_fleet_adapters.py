"""A real vLLM server serves LoRA adapters beside its weights: exact, without a pause, and again after a kill."""

import asyncio
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pool_builders import until
from vllm_episodes import EXACT, Episodes, plain, settings

from dart_agent.models.families.family_table import family_in
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.tiny_model import build_tiny_model
from dart_train.rollout.fleet.engine_pool import EnginePool
from dart_train.rollout.fleet.replica import ReplicaState, Weights
from dart_train.rollout.fleet.weight_sync import WeightSync
from dart_train.rollout.settings.rollout_config import SyncConfig
from dart_train.trainer.weights.adapters import LoraSettings, add_adapter
from dart_train.trainer.weights.checkpoint import version_dir, write_adapter
from dart_train.trainer.weights.model_loading import load_model
from dart_train.trainer.weights.snapshot import adapter_snapshot
from tests.helpers.vllm_server import START_S, experts_on_cpu, tiny_config

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]
UPDATES = 4
EPISODES = 3
CHECKED = 6
RANK = 4  # vLLM takes no such limit: the server is started for the next larger one


@dataclass
class Version:
    weights: Weights
    model: Any


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl_moe"])
def vllm_model(request, tmp_path_factory) -> Path:
    """A tiny model of a family, with heads that vLLM takes on a CPU."""
    return build_tiny_model(tmp_path_factory.mktemp("base"), seed=11, config=tiny_config(request.param))


@pytest.fixture(scope="module")
def versions(vllm_model, tmp_path_factory) -> list[Version]:
    """The weights themselves, then adapters of them as the trainer publishes them, each a step of noise further."""
    torch.set_num_threads(1)
    root, noise = tmp_path_factory.mktemp("adapters"), torch.Generator().manual_seed(3)
    made = [Version(Weights(str(vllm_model), 0), load_model(vllm_model).eval())]
    for number in range(1, UPDATES + 1):
        model = add_adapter(load_model(vllm_model), LoraSettings(r=RANK, alpha=2 * RANK)).eval()
        model.load_state_dict(made[-1].model.state_dict(), strict=False)
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                if ".lora_B." in name:
                    tensor += 0.1 * torch.randn(tensor.shape, generator=noise)
        path = write_adapter(adapter_snapshot(model, vllm_model), version_dir(root, number), vllm_model)
        made.append(Version(Weights(str(path), number), model))
    return made


def test_a_version_is_a_small_part_of_the_weights(versions, vllm_model):
    adapter, whole = (
        sum(path.stat().st_size for path in Path(directory).glob("*.safetensors"))
        for directory in (versions[1].weights.path, vllm_model)
    )
    assert adapter < whole / 10


async def test_each_response_is_of_the_one_version_that_it_asked_for(versions, vllm_model, tmp_path, capsys):
    vision, newest = VisionSpec.from_dir(vllm_model), [versions[0].weights]
    served = settings(replicas=1)
    if family_in(vllm_model).mixture:
        (plugin := tmp_path / "plugin").mkdir()
        environment = {**served.options["environment"], **experts_on_cpu(plugin)}
        served = served.model_copy(update={"options": {**served.options, "environment": environment}})
    pool = EnginePool(
        served,
        versions[0].weights,
        directory=tmp_path,
        log_dir=tmp_path,
        sync=SyncConfig(transfer="adapter", lora_rank=RANK),
    )
    async with pool:
        [replica] = pool.replicas
        await until(lambda: replica.state is ReplicaState.READY, timeout=START_S)
        episodes = Episodes(pool, vllm_model)
        sync = WeightSync(lambda: newest[0], pool, interval_s=0.05)
        update = asyncio.create_task(sync.run())
        playing = [asyncio.create_task(episodes.play(number)) for number in range(EPISODES)]
        await episodes.until_steps(10)
        for version in versions[1:UPDATES]:
            newest[0] = version.weights
            await until(lambda: replica.verified == newest[0].version, timeout=600)
            await episodes.until_steps(15)
        cut = Path(shutil.copytree(versions[UPDATES].weights.path, tmp_path / "cut"))
        os.truncate(cut / "adapter_model.safetensors", 500)
        newest[0] = Weights(str(cut), UPDATES)
        await until(lambda: newest[0] in sync.skipped, timeout=600)
        assert replica.verified == UPDATES - 1 and replica.usable
        os.kill(replica.process.pid, signal.SIGKILL)
        newest[0] = versions[UPDATES].weights
        await until(lambda: replica.verified == UPDATES and replica.restarts == 1, timeout=START_S)
        await episodes.until_steps(15)
        episodes.going = False
        await asyncio.gather(*playing)
        update.cancel()
        await asyncio.gather(update, return_exceptions=True)
        assert sync.failed == 0 and pool.fleet.faults.total() == 1, "the kill"
        served = await replica.engine.control.models()
        assert served == ["policy", f"policy@{UPDATES - 1}", f"policy@{UPDATES}"], (
            "it came back with the version before"
        )

    spans = {step.generation.version for step in episodes.steps}
    assert spans == {(number, number) for number in range(UPDATES + 1)}, "none is of two versions"
    worst = 0.0
    for number, version in enumerate(versions):
        steps = [step for step in episodes.steps if step.generation.version[0] == number]
        for step in steps[:CHECKED] + steps[-CHECKED:]:
            told = np.asarray(step.generation.logprobs)
            worst = max(worst, np.abs(told - plain(version.model, vision, step, episodes.suppressed)).max())
            other = versions[number - 1 if number else 1].model
            assert np.abs(told - plain(other, vision, step, episodes.suppressed)).max() > EXACT
    with capsys.disabled():
        print(f"\n{len(episodes.steps)} steps; log-probabilities off by {worst:.1e}")
    assert worst < EXACT

"""One bad task, policy or disk never stops the rollout service: it is left out, ended, or waited for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import broken_suite
import pytest
import pytest_asyncio
from echo_engine import EchoEngine
from pool_builders import until
from service_parts import CLICK, TASKS, config_of, groups_of

from dart_agent.engines.base.engine import Engine
from dart_agent.engines.remote.engine_server import EngineServer
from dart_agent.policies.policy import Decision, Episode, Policy
from dart_gym.core.outcomes import Observation, TerminalState
from dart_train.core.train_errors import TasksFailedError
from dart_train.data.manager.data_manager import DataManager
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.service.rollout_service import RolloutService

pytestmark = pytest.mark.thorough


@pytest_asyncio.fixture
async def echo_url(sockets: Path):
    async with EngineServer(EchoEngine("echo", "", 0, 0.001, CLICK)).listening(
        f"ws+unix://{sockets / 'e.sock'}"
    ) as url:
        yield url


def service_of(config, data: DataManager, cluster_url: str, make_policy) -> RolloutService:
    return RolloutService(config, data, url=cluster_url, weights=Weights("", 0), make_policy=make_policy)


@pytest.mark.parametrize("task", [broken_suite.CRASH, broken_suite.SETUP, broken_suite.BUG, broken_suite.JUDGE])
async def test_a_task_that_loses_its_desktop_is_left_out_and_the_others_go_on(
    task, cluster_url, echo_url, data, make_policy, caplog
):
    config = config_of(echo_url, tasks=(*TASKS, task), budget_rollouts=64, breaker_losses=4, breaker_reset_s=600.0)
    service = service_of(config, data, cluster_url, make_policy)
    summary = await service.run()
    assert summary.rollouts == 64 and summary.terminals.get("env_error", 0) >= 4
    assert caplog.text.count(f"{task} is left out for a while") == 1
    shown = service.figures()["left_out"]
    assert set(shown) == {task} and ("gone" in shown[task] or "not running" in shown[task])
    scored = [t for group in groups_of(data).values() for t in group if t.terminal.trainable]
    assert len(scored) == 64 and task not in {t.task_id for t in scored}
    lost = [t for group in groups_of(data).values() for t in group if not t.terminal.trainable]
    assert all(t.score is None and t.task_id == task for t in lost)  # an error is never a reward


async def test_a_task_that_is_mended_comes_back(cluster_url, echo_url, data, make_policy, monkeypatch, caplog):
    monkeypatch.setitem(broken_suite.MENDED, broken_suite.HEALED, False)
    tasks = (*TASKS, broken_suite.HEALED)
    config = config_of(echo_url, tasks=tasks, breaker_losses=3, breaker_reset_s=0.05)
    service = service_of(config, data, cluster_url, make_policy)
    run = asyncio.create_task(service.run())
    await until(lambda: run.done() or "is left out for a while" in caplog.text)
    broken_suite.MENDED[broken_suite.HEALED] = True
    await until(lambda: run.done() or service.gauges.success.means()[broken_suite.HEALED] is not None)
    assert f"{broken_suite.HEALED} can be played again" in caplog.text and not service.figures()["left_out"]
    service.stop()
    await run


@pytest.mark.parametrize("task", [broken_suite.SETUP, broken_suite.BUG, broken_suite.JUDGE])
async def test_when_no_task_can_be_played_the_service_ends_with_the_reasons(
    task, cluster_url, echo_url, data, make_policy
):
    config = config_of(
        echo_url,
        tasks=(broken_suite.CRASH, task),
        breaker_losses=2,
        breaker_reset_s=0.2,
        unavailable_timeout_s=1.0,
    )
    with pytest.raises(TasksFailedError, match=f"{task}: .*is gone"):
        await asyncio.wait_for(service_of(config, data, cluster_url, make_policy).run(), 60)


class Thinker:
    """A policy that thinks for ever about some episodes, and does as the other one says in the rest."""

    def __init__(self, other: Policy) -> None:
        self._other, self._episodes, self._stuck = other, 0, False

    def reset(self, episode: Episode) -> None:
        self._episodes += 1
        self._stuck = self._episodes % 3 == 1
        self._other.reset(episode)

    async def act(self, observation: Observation) -> Decision:
        if self._stuck:
            await asyncio.Event().wait()
        return await self._other.act(observation)


async def test_a_policy_that_never_ends_its_turn_costs_its_episode_alone(
    cluster_url, echo_url, data, make_policy: Callable[[Engine], Policy]
):
    config = config_of(echo_url, budget_rollouts=32, turn_limit_s=0.3, max_attempts=20)
    service = service_of(config, data, cluster_url, lambda engine: Thinker(make_policy(engine)))
    summary = await asyncio.wait_for(service.run(), 90)
    assert summary.rollouts == 32 and summary.terminals["model_error"] >= 4 and summary.given_up == 0
    assert service.figures()["left_out"] == {}  # no task's fault


class Hesitant(Thinker):
    """Takes one step of each episode, and thinks for ever about the next one, once it is told to."""

    hesitates = False
    thinking = 0

    def reset(self, episode: Episode) -> None:
        self._steps = 0
        self._other.reset(episode)

    async def act(self, observation: Observation) -> Decision:
        self._steps += 1
        if self.hesitates and self._steps == 2:
            Hesitant.thinking += 1
            await asyncio.Event().wait()
        return await self._other.act(observation)


async def test_what_is_running_when_it_is_told_to_stop_is_recorded_as_such(
    cluster_url, sockets, data, make_policy, monkeypatch
):
    monkeypatch.setattr(Hesitant, "thinking", 0)
    monkeypatch.setattr(Hesitant, "hesitates", False)
    waits = EchoEngine("waits", "", 0, 0.001, "Action: hotkey(key='shift')")
    async with EngineServer(waits).listening(f"ws+unix://{sockets / 'w.sock'}") as url:
        config = config_of(url, tasks=("fake/two-steps",), max_steps=4, stop_grace_s=0.0)
        service = service_of(config, data, cluster_url, lambda engine: Hesitant(make_policy(engine)))
        run = asyncio.create_task(service.run())
        await until(lambda: run.done() or service.scheduler.completed >= 4)
        Hesitant.hesitates = True
        await until(lambda: run.done() or Hesitant.thinking == config.workers)
        service.stop()
        await asyncio.wait_for(run, 60)
    cut = [t for group in groups_of(data).values() for t in group if t.terminal is TerminalState.INTERRUPTED]
    assert len(cut) == config.workers
    assert all(t.score is None and len(t.steps) == 1 and t.instruction and t.task_hash for t in cut)
    assert all(t.timings["step"] > 0 for t in cut) and data.counts()["rejected"] == len(cut)


FULL_DISK = """
import asyncio, logging, shutil, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import numpy as np
from dart_agent.prompting.conversation import ConversationConfig
from dart_agent.engines.remote.engine_server import EngineServer
from dart_agent.formats import get_format
from dart_agent.engines.base.engine import Sampling
from dart_agent.policies.vlm_policy import VLMPolicy
from dart_agent.models.tiny_model import TinyModelConfig, build_tokenizer
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.image_patches import VisionSpec
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.manager.data_manager import DataManager
from dart_train.core.metrics_log import MetricsLog
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.service.rollout_service import RolloutService
from echo_engine import EchoEngine
from pool_builders import until
from service_parts import CLICK, assert_whole, config_of

async def main():
    disk, here = Path(sys.argv[1]), Path(tempfile.mkdtemp(prefix="dart-test-"))
    build_tokenizer(TinyModelConfig()).save(str(here / "tokenizer.json"))
    tokens = ModelTokens.load(here)
    vision = VisionSpec(temporal_patch_size=1, min_pixels=784, image_mean=(1.0,) * 3, image_std=(0.25,) * 3)
    def policy(engine):
        return VLMPolicy(engine, tokens=tokens, vision=vision, action_format=get_format("ui_tars"),
                         conversation=ConversationConfig(style="short", screenshots=1, texts=2),
                         sampling=Sampling(max_tokens=8))
    curation = CurationConfig(group_size=4, drop_no_signal=False, batches_ahead=None, max_staleness=None)
    gym = f"ws+unix://{here}/gym.sock"
    async with (ClusterServer(ServerSettings(listen=gym, desktops=4)),
                EngineServer(EchoEngine("echo", "", 0, 0.001, CLICK)).listening(f"ws+unix://{here}/e.sock") as url):
        with DataManager.open(f"sqlite:///{disk}/data/dart.sqlite", disk / "data", "run", config=curation) as data:
            service = RolloutService(config_of(url, metrics_interval_s=0.05), data, url=gym,
                                     weights=Weights("", 0), make_policy=policy,
                                     metrics=MetricsLog(disk / "metrics.jsonl"))
            run = asyncio.create_task(service.run())
            await until(lambda: run.done() or service.scheduler.completed >= 8)
            ballast = disk / "ballast"
            try:
                with ballast.open("wb", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))
            except OSError:
                pass
            await until(lambda: run.done() or service.dependencies.disk.away)
            await until(lambda: run.done() or service.scheduler.running == 0)
            assert not run.done(), run
            paused_at = service.scheduler.completed
            ballast.unlink()
            await until(lambda: run.done() or not service.dependencies.disk.away)
            budget = (service.scheduler.completed + service.scheduler.unfinished + 16) // 4 * 4
            service.scheduler.budget = budget
            await run
            assert budget > paused_at
            assert_whole(data, service, budget)
    shutil.rmtree(here)
    print("went on")

logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
asyncio.run(main())
"""


@pytest.mark.process
def test_a_full_disk_is_waited_for(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    here = str(Path(__file__).parents[1])
    command = ["bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--size", "6000000", "--tmpfs", str(disk)]
    command += [sys.executable, "-c", FULL_DISK, str(disk), here]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0 and done.stdout == "went on\n", done.stderr
    assert done.stderr.count("the disk is full, will go on trying") == 1
    assert done.stderr.count("the disk has space again") == 1

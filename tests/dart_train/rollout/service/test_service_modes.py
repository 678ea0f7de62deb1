"""The rollout service in each mode, with a trainer that leases, publishes and commits: who waits for whom."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from echo_engine import EchoEngine

from dart_agent.engines.remote.engine_server import EngineServer
from dart_gym.core.errors import ConfigurationError
from dart_lab.modes.waiting_schedulers import Mode
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.manager.data_manager import DataManager
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.service.rollout_service import RolloutService
from dart_train.rollout.settings.rollout_config import EngineConfig, RolloutConfig

BATCH_GROUPS, GROUP_SIZE, BATCHES = 2, 2, 4
CLICK = "Action: click(start_box='(42,56)')"


@pytest_asyncio.fixture
async def echo_urls(sockets: Path) -> AsyncIterator[tuple[str, str]]:
    """Two engines that always click at the same place."""
    first, second = (EngineServer(EchoEngine(name, "", 0, 0.001, CLICK)) for name in ("a", "b"))
    async with (
        first.listening(f"ws+unix://{sockets / 'a.sock'}") as a,
        second.listening(f"ws+unix://{sockets / 'b.sock'}") as b,
    ):
        yield a, b


@pytest.fixture
def open_data(tmp_path: Path) -> Iterator[Callable[..., DataManager]]:
    opened: list[DataManager] = []

    def build(**settings) -> DataManager:
        values = {"group_size": GROUP_SIZE, "batch_groups": BATCH_GROUPS, "drop_no_signal": False, **settings}
        url = f"sqlite:///{tmp_path / 'data' / 'dart.sqlite'}"
        opened.append(DataManager.open(url, tmp_path / "data", "run", config=CurationConfig(**values)))
        return opened[-1]

    yield build
    for manager in opened:
        manager.close()


def config_of(urls: tuple[str, ...], mode: str, **settings) -> RolloutConfig:
    return RolloutConfig(
        tasks=("fake/click-button", "fake/two-steps"),
        workers=4,
        group_size=GROUP_SIZE,
        budget_rollouts=BATCHES * BATCH_GROUPS * GROUP_SIZE,
        mode=mode,
        engine=EngineConfig(urls=urls),
        admission_interval_s=0.05,
        sync_interval_s=0.02,
        **settings,
    )


def train(data: DataManager, weights: Path, batches: int, seen: Callable[[], None], stop: threading.Event) -> list:
    """Lease batch after batch, publish a version after each; returns the trajectories of each batch."""
    trained: list = []
    while len(trained) < batches and not stop.is_set():
        leased = data.lease(BATCH_GROUPS, "test", timeout_s=0.2)
        if leased is None:
            continue
        seen()
        trained.append([trajectory for group in leased.groups for trajectory in group.trajectories])
        data.publish(len(trained), weights)
        leased.commit(len(trained))
    return trained


async def run(service: RolloutService, data: DataManager, weights: Path, seen: Callable[[], None]) -> list:
    stop = threading.Event()
    trainer = asyncio.create_task(asyncio.to_thread(train, data, weights, BATCHES, seen, stop))
    try:
        summary = await service.run()
        trained = await asyncio.wait_for(trainer, 20.0)
    finally:
        stop.set()
    assert summary.rollouts == BATCHES * BATCH_GROUPS * GROUP_SIZE and summary.lost == 0
    return trained


async def test_batch_wise_rollouts_are_on_policy(cluster_url, echo_urls, open_data, make_policy, weights_dir):
    data = open_data()
    service = RolloutService(
        config_of(echo_urls, Mode.BATCH), data, url=cluster_url, weights=Weights("", 0), make_policy=make_policy
    )
    running: list[int] = []
    trained = await run(service, data, weights_dir, lambda: running.append(service.scheduler.running))
    assert running == [0] * BATCHES  # nothing plays while a batch is trained on
    for number, batch in enumerate(trained):
        assert len(batch) == BATCH_GROUPS * GROUP_SIZE
        assert {step.version for trajectory in batch for step in trajectory.steps} == {(number, number)}


@pytest.mark.parametrize("mode", [Mode.TASK, Mode.ROLLOUT])
async def test_the_other_modes_do_not_wait_for_the_trainer(
    mode, cluster_url, echo_urls, open_data, make_policy, weights_dir
):
    data = open_data(max_staleness=None, batches_ahead=None)
    service = RolloutService(
        config_of(echo_urls, mode), data, url=cluster_url, weights=Weights("", 0), make_policy=make_policy
    )
    assert (await service.run()).rollouts == BATCHES * BATCH_GROUPS * GROUP_SIZE  # nobody trains
    assert data.ready()[0] == BATCHES * BATCH_GROUPS


async def test_an_over_provisioned_batch_goes_on_into_the_next(
    cluster_url, echo_urls, open_data, make_policy, weights_dir
):
    data = open_data(max_staleness=1)
    config = config_of(echo_urls, "batch-wise-1.5")
    service = RolloutService(config, data, url=cluster_url, weights=Weights("", 0), make_policy=make_policy)
    trained = await run(service, data, weights_dir, lambda: None)
    for number, batch in enumerate(trained):
        versions = {version for trajectory in batch for step in trajectory.steps for version in step.version}
        assert versions <= {number - 1, number}
    counts = data.counts()
    assert counts["trained"] == BATCHES * BATCH_GROUPS * GROUP_SIZE and counts["expired"] == 0


def test_a_surplus_that_could_not_be_carried_over_is_a_configuration_error(echo_urls, open_data, make_policy):
    config = config_of(echo_urls, "batch-wise-1.5")
    with pytest.raises(ConfigurationError, match="max_staleness: over_provision above 1"):
        RolloutService(
            config, open_data(max_staleness=0), url="ws://localhost:1", weights=Weights("", 0),
            make_policy=make_policy,
        )  # fmt: skip

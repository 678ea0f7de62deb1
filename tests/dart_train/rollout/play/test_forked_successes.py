"""Forks of the pool's successes: found for groups that failed, replayed, and played on as groups of their own."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from demonstrated_play import demonstrate
from forked_play import service_plays

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_gym.core.outcomes import TerminalState
from dart_train.core.train_errors import CorruptDataError
from dart_train.data.curation.fork_settings import ForkConfig
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.insight import statistics
from dart_train.data.manager.data_manager import DataManager
from dart_train.rollout.play.forked_successes import forks_of_successes
from dart_train.rollout.play.group_forks import GroupForks
from dart_train.rollout.schedule.scheduler import Scheduler
from dart_train.rollout.settings.rollout_config import TaskEntry

TASK = "fake/two-steps"
FORKS = ForkConfig(per_group=2, of="pool", rule="random", continuations=3, tolerance=0.001)


@pytest.fixture
def pool(tmp_path):
    config = CurationConfig(
        group_size=2, drop_no_signal=False, batches_ahead=None, max_staleness=None, pool_sources=["oracle"], forks=FORKS
    )
    with DataManager.open(f"sqlite:///{tmp_path}/dart.sqlite", tmp_path / "data", "run", config=config) as manager:
        yield manager


@pytest.fixture
async def demonstrated(pool, cluster_url, tokens, vision, short) -> DataManager:
    """The run with four demonstrations of a task of two steps."""
    await demonstrate(pool, cluster_url, {TASK: 4}, tokens=tokens, vision=vision, conversation=short)
    return pool


async def test_failed_groups_go_on_from_within_demonstrations(demonstrated, sockets, make_policy):
    data = demonstrated
    service = await service_plays(TASK, data, sockets, make_policy, 16)
    shown = {one.trajectory_id: one for one in data.trajectories(source="oracle")}
    forked = list(data.trajectories(source="fork"))
    assert service.forks.given_up == {} and service.forks.made >= 2 and len(forked) >= 6
    for child in forked:
        parent = shown[child.forked_from]
        assert (child.seed, child.fork_step, child.task_id) == (parent.seed, 1, parent.task_id)
        assert child.steps[0].prompt_ids == parent.steps[1].prompt_ids
        assert child.steps[0].image_hashes == parent.steps[1].image_hashes
        assert child.num_actions == 1 + len(child.steps)
    assert data.read(statistics.scored_forks) == len(forked)
    groups = {one.group_key for one in forked}
    assert all(len({one.forked_from for one in forked if one.group_key == key}) == 1 for key in groups)
    leased = data.lease(100, "trainer", at_least=1)
    assert groups <= {group.key for group in leased.groups}
    leased.commit(0)


async def test_a_task_without_a_success_is_played_without_forks(pool, sockets, make_policy):
    service = await service_plays(TASK, pool, sockets, make_policy, 8)
    assert service.forks.made == 0 and service.scheduler.completed == 8
    assert list(forks_of_successes(pool, TASK, "key")) == []


async def test_chance_is_drawn_from_the_groups_key_and_the_screen_at_the_fork_is_the_recorded_one(demonstrated):
    data = demonstrated
    found = list(forks_of_successes(data, TASK, "key"))
    assert len(found) == FORKS.per_group
    assert [fork.parent for _, fork in found] == [fork.parent for _, fork in forks_of_successes(data, TASK, "key")]
    assert len({fork.parent for key in range(20) for _, fork in forks_of_successes(data, TASK, str(key))}) == 4
    for seed, fork in found:
        parent = data.load_trajectory(fork.parent)
        assert seed == parent.seed and fork.step == 1 and fork.depth == 1
        (image,) = fork.recorded.pixels.prompt
        assert np.array_equal(image, data.load_image(parent.steps[1].image_hashes[0]))


async def test_a_success_that_cannot_be_read_costs_its_fork_and_nothing_else(caplog):
    asked = asyncio.Queue()

    def broken(task_id: str, key: str):
        loop.call_soon_threadsafe(asked.put_nowait, (task_id, key))
        raise CorruptDataError("t", OSError("a screenshot is missing"))

    loop = asyncio.get_running_loop()
    scheduler = Scheduler([TaskEntry(id="a")], group_size=1)
    forks = GroupForks(FORKS, scheduler, broken)
    running = asyncio.create_task(forks.run())
    for _ in range(2):
        first = scheduler.next(0)
        scheduler.complete(first)
        forks.ended(first, Trajectory("a", first.seed, terminal=TerminalState.DONE, score=0.0, steps=(Step(),)))
        async with asyncio.timeout(10):
            assert await asked.get() == ("a", first.group_key)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert "no success of a is forked: " in caplog.text and "a screenshot is missing" in caplog.text
    assert forks.made == 0 and scheduler.next(0).fork is None

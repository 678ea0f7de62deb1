from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_builders import all_ready, echo_pool, model_pool, pid_of, until

from dart_agent.engines.base.engine import EngineError, Prompt, Sampling
from dart_gym.utils.waits import said
from dart_train.rollout.fleet.engine_pool import EpisodeEngine
from dart_train.rollout.fleet.replica import ReplicaState
from dart_train.rollout.fleet.request_routing import route

READY, UPDATING, DOWN = ReplicaState.READY, ReplicaState.UPDATING, ReplicaState.DOWN
PROMPT = Prompt((1, 2, 3))


@dataclass
class Load:
    """A replica as routing sees it."""

    name: str
    state: ReplicaState
    in_flight: int
    limit: int = 2**31


loads = st.lists(st.tuples(st.sampled_from(list(ReplicaState)), st.integers(0, 9)), max_size=5)


@given(loads, st.sampled_from([None, "r0", "r1", "r9"]))
def test_route_takes_a_usable_replica_and_never_a_much_busier_one(items, sticky):
    pool = [Load(f"r{i}", state, count) for i, (state, count) in enumerate(items)]
    chosen = route(pool, sticky, slack=2)
    ready = [load for load in pool if load.state is READY]
    usable = ready or [load for load in pool if load.state is UPDATING]
    if chosen is None:
        assert not usable
        return
    assert chosen in usable
    least = min(load.in_flight for load in usable)
    assert chosen.in_flight <= least + (2 if chosen.name == sticky else 0)


def test_route_stays_with_the_replica_of_the_episode():
    pool = [Load("r0", READY, 0), Load("r1", READY, 2), Load("r2", DOWN, 0)]
    assert route(pool, None) is pool[0]
    assert route(pool, "r1") is pool[1]
    assert route(pool, "r2") is pool[0]
    assert route([Load("r0", READY, 0), Load("r1", READY, 3)], "r1").name == "r0"
    assert route([Load("r0", UPDATING, 0), Load("r1", READY, 3)], "r0").name == "r1"
    assert route([Load("r0", UPDATING, 0)], None).name == "r0"
    assert route([Load("r0", READY, 4, limit=4), Load("r1", READY, 5)], "r0").name == "r1"
    assert route([Load("r0", READY, 4, limit=4), Load("r1", UPDATING, 0)], None) is None
    assert route([], None) is None


@pytest.mark.thorough
@pytest.mark.train
async def test_no_request_is_lost_when_a_replica_is_killed_while_it_generates(model_dir, sockets, prompt, sampling):
    async with model_pool(2, model_dir, sockets) as pool:
        await until(all_ready(pool))
        victim, victim_pid = pool.replicas[0], pid_of(pool, 0)
        engines = [EpisodeEngine(pool) for _ in range(8)]
        killed = asyncio.Event()

        async def episode(engine: EpisodeEngine) -> set[tuple[int, ...]]:
            before = [(await engine.generate(prompt, sampling)).response_ids]
            while not killed.is_set():
                before.append((await engine.generate(prompt, sampling)).response_ids)
            return {*before, *[(await engine.generate(prompt, sampling)).response_ids for _ in range(3)]}

        work = asyncio.gather(*(episode(engine) for engine in engines))
        await until(lambda: victim.requests > 10)
        os.kill(victim_pid, signal.SIGSTOP)
        answered = -1
        while answered < victim.requests or not victim.in_flight:  # what it still answered has arrived; some never will
            answered = victim.requests
            await asyncio.sleep(0.05)
        os.kill(victim_pid, signal.SIGKILL)
        killed.set()
        answers = await work
        assert pool.reissued > 0
        assert len(set().union(*answers)) == 1  # the same seed gives the same on every replica
        await until(all_ready(pool))
        assert victim.restarts == 1 and pid_of(pool, 0) != victim_pid and victim.version == 3
        generation = await pool.generate(prompt, sampling)
        assert generation.version == (3, 3)


@pytest.mark.process
async def test_requests_wait_for_the_only_replica_to_come_back(weights_dir, sockets):
    async with echo_pool(1, weights_dir, sockets) as pool:
        os.kill(pid_of(pool, 0), signal.SIGKILL)
        generation = await pool.generate(PROMPT, Sampling())
        assert generation.version == (3, 3) and pool.reissued >= 1


@pytest.mark.process
async def test_requests_give_up_when_no_replica_comes_back(weights_dir, sockets):
    async with echo_pool(1, weights_dir, sockets, unavailable_timeout_s=1.5) as pool:
        (weights_dir / "config.json").unlink()
        os.kill(pid_of(pool, 0), signal.SIGKILL)
        with pytest.raises(EngineError, match=r"no engine replica for 2 s \(r0: "):
            await pool.generate(PROMPT, Sampling())


@pytest.mark.process
async def test_a_replica_that_stands_still_is_replaced(weights_dir, sockets):
    async with echo_pool(2, weights_dir, sockets, request_timeout_s=0.5) as pool:
        await until(all_ready(pool))
        os.kill(pid_of(pool, 0), signal.SIGSTOP)
        generation = await pool.generate(PROMPT, Sampling())
        assert generation.engine == "r1"
        await until(lambda: pool.replicas[0].restarts == 1 and all_ready(pool)())


@pytest.mark.process
async def test_a_request_that_is_wrong_fails_and_harms_no_replica(weights_dir, sockets):
    async with echo_pool(2, weights_dir, sockets) as pool:
        await until(all_ready(pool))
        with pytest.raises(EngineError, match="refused 3 times, at last by r.: negative token id"):
            await pool.generate(Prompt((-1,)), Sampling())
        assert all_ready(pool)() and all(replica.restarts == 0 for replica in pool.replicas)


@pytest.mark.process
async def test_while_an_engine_starts_nobody_is_told_that_its_time_is_over(weights_dir, sockets):
    told: list[str] = []
    with said(told.append):
        async with echo_pool(1, weights_dir, sockets) as pool:
            await until(all_ready(pool))
    assert told[0].startswith("engine r0 has not answered yet (limit ") and "; trying again" in told[0]
    assert not [line for line in told if "no answer within" in line]


@pytest.mark.process
async def test_a_pool_that_cannot_start_says_why_and_leaves_nothing(tmp_path, sockets):
    pool = echo_pool(1, tmp_path / "nothing", sockets)
    starting = asyncio.create_task(pool.start())
    await until(lambda: "its process ended with status 1; see " in pool.replicas[0].why_down)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await pool.close()
    assert pool.replicas[0].process is None
    assert [path.name for path in sockets.iterdir()] == ["engine-0.log"]


@pytest.mark.process
async def test_requests_of_an_episode_stay_with_one_replica_and_load_is_shared(weights_dir, sockets):
    async with echo_pool(2, weights_dir, sockets) as pool:
        await until(all_ready(pool))

        async def episode() -> set[str]:
            engine = EpisodeEngine(pool)
            return {(await engine.generate(PROMPT, Sampling())).engine for _ in range(10)}

        used = await asyncio.gather(*(episode() for _ in range(6)))
        assert all(len(names) == 1 for names in used) and set().union(*used) == {"r0", "r1"}


@pytest.mark.process
async def test_busy_share_and_load_are_reported(weights_dir, sockets):
    async with echo_pool(1, weights_dir, sockets) as pool:
        async with asyncio.timeout(20):
            while pool.replicas[0].busy_share <= 0.05:
                await asyncio.gather(*(pool.generate(PROMPT, Sampling()) for _ in range(4)))
        [replica] = pool.replicas
        assert replica.version == 3 and replica.requests >= 4 and replica.in_flight == 0

"""Replicas that are dead, hung, failing, stale or of another model: detected, replaced, counted; no wrong version."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from faulty_engine import FaultyEngine, served
from pool_builders import all_ready, echo_pool, make_weights, pid_of, until

from dart_agent.engines.base.engine import EngineBusy, EngineError, Prompt, RequestRefused, Sampling
from dart_gym.utils.backoff import backoff
from dart_train.core.fingerprint import Fingerprint
from dart_train.rollout.fleet.engine_pool import EnginePool
from dart_train.rollout.fleet.replica import ReplicaState, Weights
from dart_train.rollout.fleet.replica_life import FIRST_RESTART_S
from dart_train.rollout.settings.rollout_config import EngineConfig

pytestmark = pytest.mark.thorough
PROMPT = Prompt((1, 2, 3))
READY, DOWN = ReplicaState.READY, ReplicaState.DOWN


@contextlib.asynccontextmanager
async def fleet(sockets: Path, weights: Path, *engines: FaultyEngine, **settings) -> AsyncIterator[EnginePool]:
    async with served(sockets, *engines) as urls:
        defaults = {"health_interval_s": 0.05, "max_backoff_s": 0.2, "request_timeout_s": 20.0}
        config = EngineConfig(urls=urls, **{**defaults, **settings})
        async with EnginePool(config, Weights(str(weights), 3), directory=sockets) as pool:
            await until(all_ready(pool))
            yield pool


@contextlib.asynccontextmanager
async def load(pool: EnginePool, clients: int = 4) -> AsyncIterator[list[tuple[int, int]]]:
    """Requests all the time; each must be answered, and by the weights that it says. Yields their versions."""
    answered: list[tuple[int, int]] = []
    going = True

    async def client() -> None:
        while going:
            generation = await pool.generate(PROMPT, Sampling())
            assert generation.version == (int(generation.text),) * 2, "a response carries a wrong version"
            answered.append(generation.version)

    tasks = [asyncio.create_task(client()) for _ in range(clients)]
    try:
        yield answered
    finally:
        going = False
        await asyncio.gather(*tasks)


def more(items: list, count: int) -> Callable[[], bool]:
    goal = len(items) + count
    return lambda: len(items) >= goal


async def test_a_replica_that_answers_with_errors_gets_nothing_until_it_is_mended(weights_dir, sockets):
    good, bad = FaultyEngine("good", 3), FaultyEngine("bad", 3)
    async with fleet(sockets, weights_dir, good, bad) as pool, load(pool) as answered:
        await until(more(answered, 20))
        bad.error = EngineError("500")
        replica = pool.replicas[1]
        await until(lambda: replica.failures >= 3)  # connected to again and again, and found wanting
        assert pool.fleet.faults["failed"] == 1 and pool.fleet.faults["start"] >= 2
        assert "500" in replica.why_down
        await until(more(answered, 20))
        bad.error = None
        await until(lambda: replica.state is READY)
        before = replica.requests
        await until(lambda: replica.requests > before and replica.failures == 0)


async def test_a_response_that_no_engine_can_give_is_asked_of_another_and_counted(weights_dir, sockets):
    good, bad = FaultyEngine("good", 3), FaultyEngine("bad", 3)
    async with fleet(sockets, weights_dir, good, bad) as pool, load(pool) as answered:
        replica = pool.replicas[1]
        for wrong in (0.5, float("nan")):
            bad.logprob, counted = wrong, replica.bad_responses
            await until(lambda counted=counted: replica.bad_responses > counted)
            await until(more(answered, 20))
        bad.logprob = -1.0
        await until(lambda: replica.state is READY)


async def test_a_replica_whose_requests_hang_is_replaced(weights_dir, sockets):
    good, bad = FaultyEngine("good", 3), FaultyEngine("bad", 3)
    async with fleet(sockets, weights_dir, good, bad, request_timeout_s=1.0) as pool, load(pool) as answered:
        await until(more(answered, 10))
        bad.hangs = True
        await until(lambda: pool.fleet.faults["late"] >= 1)
        bad.hangs = False
        await until(lambda: pool.replicas[1].state is READY)
        await until(more(answered, 10))


async def test_an_idle_replica_that_says_nothing_any_more_is_found_out(weights_dir, sockets):
    bad = FaultyEngine("bad", 3)
    async with fleet(sockets, weights_dir, bad, FaultyEngine("good", 3), request_timeout_s=0.3) as pool:
        bad.deaf = True
        await until(lambda: pool.replicas[0].state is not READY)
        assert pool.fleet.faults["silent"] == 1
        bad.deaf = False
        await until(all_ready(pool))


async def test_a_replica_that_was_restarted_with_old_weights_is_given_the_new_ones(weights_dir, sockets):
    good, bad = FaultyEngine("good", 3), FaultyEngine("bad", 3)
    async with fleet(sockets, weights_dir, good, bad) as pool, load(pool) as answered:
        await until(more(answered, 10))
        bad.restarts_with(1)
        await until(lambda: bad.loads == [3])
        await until(all_ready(pool))
        assert pool.fleet.faults["stale"] == 1 and bad.real_version == 3
        await until(more(answered, 10))
    assert set(answered) == {(3, 3)}


async def test_a_response_of_another_version_is_thrown_away(weights_dir, sockets):
    """The replica claims the right version; its responses carry what they are of."""
    good, bad = FaultyEngine("good", 3), FaultyEngine("bad", 3)
    async with fleet(sockets, weights_dir, good, bad) as pool, load(pool) as answered:
        await until(more(answered, 10))
        bad.claims = 3
        bad.restarts_with(2)
        await until(lambda: bad.loads == [3] and all_ready(pool)())
        assert pool.fleet.faults["stale"] == 1 and pool.reissued >= 1
    assert set(answered) == {(3, 3)}


def give_fingerprint(weights: Path) -> None:
    Fingerprint(((1, 2, 3, 4),), ((1, 2, 3, 4),), ((-1.0,) * 4,), ()).write(weights)


async def test_a_replica_that_lies_about_its_weights_is_known_by_its_log_probabilities(weights_dir, sockets):
    give_fingerprint(weights_dir)
    good, liar = FaultyEngine("good", 3), FaultyEngine("liar", 3)
    liar.logprob = -1.5
    async with served(sockets, good, liar) as urls:
        config = EngineConfig(urls=urls, health_interval_s=0.05, max_backoff_s=0.2)
        async with EnginePool(config, Weights(str(weights_dir), 3), directory=sockets) as pool:
            await until(lambda: pool.replicas[1].failures >= 2)
            assert "0.5 off those of the weights" in pool.replicas[1].why_down
            assert {(await pool.generate(PROMPT, Sampling())).engine for _ in range(5)} == {"good"}
            liar.logprob = -1.1  # within rounding
            await until(all_ready(pool))


async def test_an_update_that_loads_nothing_is_found_out(weights_dir, sockets):
    good, bad = FaultyEngine("good", 3), FaultyEngine("bad", 3)
    async with fleet(sockets, weights_dir, good, bad) as pool:
        newer = make_weights(sockets / "v4")
        give_fingerprint(newer)
        bad.logprob = -3.0
        replica = pool.replicas[1]
        with pytest.raises(EngineError, match="other weights, or another model"):
            await pool.lives[replica.name].update(Weights(str(newer), 4))
        assert replica.state is DOWN and replica.tainted and pool.fleet.faults["update"] == 1
        assert pool.fleet.weights.version == 3
        await until(all_ready(pool))
        assert bad.loads == [4, 3], "what is left of the failed update is loaded over"
        assert (replica.verified, replica.tainted) == (3, False)


async def test_what_another_service_loaded_is_taken_as_it_is_and_nothing_older_is_brought_back(weights_dir, sockets):
    """Proved by the fingerprint; requests that were under way meanwhile are answered, and nobody is out of service."""
    engine = FaultyEngine("shared", 3)
    async with fleet(sockets, weights_dir, engine) as pool, load(pool) as answered:
        await until(more(answered, 10))
        newer = make_weights(sockets / "v4")
        give_fingerprint(newer)
        pool.fleet.published = Weights(str(newer), 4)
        await FaultyEngine.update_weights(engine, str(newer), 4)
        await until(lambda: (4, 4) in answered)
        assert pool.replicas[0].verified == 4 and pool.fleet.weights == pool.fleet.published and not pool.fleet.faults
        engine.logprob = -9.0  # what is loaded next is not what was published
        newest = make_weights(sockets / "v5")
        give_fingerprint(newest)
        pool.fleet.published = Weights(str(newest), 5)
        await FaultyEngine.update_weights(engine, str(newest), 5)
        await until(lambda: pool.fleet.faults["stale"] >= 1)
        engine.logprob = -1.0
        await until(lambda: pool.replicas[0].state is READY)
        await until(more(answered, 10))
    assert set(answered) <= {(3, 3), (4, 4), (5, 5)}


async def test_an_engine_of_another_model_or_at_no_address_ends_the_start_with_the_reason(weights_dir, sockets):
    give_fingerprint(weights_dir)
    other = FaultyEngine("other", 3)
    other.logprob = -9.0
    async with served(sockets, other) as urls:
        config = EngineConfig(urls=(*urls, f"ws+unix://{sockets}/nobody.sock"), start_timeout_s=1.5, max_backoff_s=0.2)
        pool = EnginePool(config, Weights(str(weights_dir), 3), directory=sockets)
        with pytest.raises(EngineError, match=r"r0: .*another model; r1: .*no engine at .*is it running"):
            await pool.start()


async def test_an_unreachable_engine_does_not_hold_up_the_others(weights_dir, sockets):
    async with served(sockets, FaultyEngine("good", 3)) as urls:
        config = EngineConfig(urls=(f"ws+unix://{sockets}/nobody.sock", *urls), max_backoff_s=0.2, start_timeout_s=0.5)
        async with EnginePool(config, Weights(str(weights_dir), 3), directory=sockets) as pool:
            assert (await pool.generate(PROMPT, Sampling())).engine == "good"
            await until(lambda: pool.replicas[0].failures >= 2)
            assert "is it running" in pool.replicas[0].why_down


@pytest.mark.process
async def test_a_request_that_no_replica_can_serve_harms_none(weights_dir, sockets):
    async with echo_pool(2, weights_dir, sockets) as pool:
        await until(all_ready(pool))
        await pool.generate(PROMPT, Sampling())
        for _ in range(3):  # as often as would open the breaker
            with pytest.raises(EngineError, match="refused 3 times, at last by r.: negative token id"):
                await pool.generate(Prompt((-1,)), Sampling())
        assert all_ready(pool)() and not pool.fleet.faults and all(replica.restarts == 0 for replica in pool.replicas)


@pytest.mark.process
async def test_a_replica_that_answers_its_probe_and_then_dies_is_started_less_and_less_often(weights_dir, sockets):
    async with echo_pool(2, weights_dir, sockets, max_backoff_s=30.0, health_interval_s=0.05) as pool:
        await until(all_ready(pool))
        await pool.generate(PROMPT, Sampling())  # what a replica must answer from now on before it serves
        bad, down_for = pool.replicas[1], []
        for deaths in (1, 2, 3):
            os.kill(pid_of(pool, 1), signal.SIGKILL)
            await until(lambda: bad.state is DOWN)
            since, restarts, probed = time.monotonic(), bad.restarts, bad.requests
            assert bad.failures == deaths, "its probe is no sign that it serves"
            await until(lambda restarts=restarts: bad.restarts > restarts)
            down_for.append(time.monotonic() - since)
            await until(lambda: bad.state is READY)
            assert bad.requests == probed + 1
        assert all(pause >= backoff(deaths, FIRST_RESTART_S) - 0.1 for deaths, pause in enumerate(down_for, 1))


async def test_what_no_replica_would_do_otherwise_fails_at_once(weights_dir, sockets):
    first, second = FaultyEngine("first", 3), FaultyEngine("second", 3)
    first.error = second.error = RequestRefused("too long")
    async with fleet(sockets, weights_dir, first, second) as pool:
        with pytest.raises(RequestRefused, match="too long"):
            await pool.generate(PROMPT, Sampling())
        assert pool.reissued == 0 and not pool.fleet.faults


async def test_a_busy_replica_is_given_less_and_is_not_to_blame(weights_dir, sockets):
    first, second = FaultyEngine("first", 3), FaultyEngine("second", 3)
    first.errors = [EngineBusy("503")]
    async with fleet(sockets, weights_dir, first, second) as pool:
        before = pool.replicas[0].concurrency.limit
        assert (await pool.generate(PROMPT, Sampling())).engine == "second"
        assert pool.replicas[0].concurrency.limit < before and not pool.fleet.faults and pool.reissued == 1


async def test_a_replica_gets_no_more_than_its_limit_and_less_when_its_cache_is_full(weights_dir, sockets):
    engine = FaultyEngine("only", 3, delay_s=0.02)
    async with (
        fleet(sockets, weights_dir, engine, least_requests=2, most_requests=8) as pool,
        load(pool, 16) as answered,
    ):
        await until(more(answered, 40))
        assert engine.most == 8 and pool.queued > 0
        engine.kv_use = 0.95
        await until(lambda: pool.replicas[0].concurrency.limit == 2)
        engine.kv_use = 0.2
        await until(lambda: pool.replicas[0].concurrency.limit == 8)


async def test_draining_lets_requests_end_before_the_update(weights_dir, sockets):
    engines = FaultyEngine("a", 3, delay_s=0.2), FaultyEngine("b", 3, delay_s=0.2)
    async with fleet(sockets, weights_dir, *engines, update="drain") as pool, load(pool) as answered:
        await until(lambda: engines[0].open_requests > 0)
        newer = Weights(str(make_weights(sockets / "v4")), 4)
        had: list[int] = []
        original = engines[0].update_weights

        async def update_weights(path: str, version: int) -> None:
            had.append(engines[0].open_requests)
            await original(path, version)

        engines[0].update_weights = update_weights
        await pool.lives["r0"].update(newer)
        assert had == [0], "its requests had ended"
        await until(lambda: (4, 4) in answered and (3, 3) in answered)

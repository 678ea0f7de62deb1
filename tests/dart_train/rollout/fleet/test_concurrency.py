from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dart_agent.engines.base.engine import EngineInfo
from dart_train.rollout.fleet.concurrency import REST_LOOKS, Concurrency, adapt, overloaded, patience, shrink


def info(in_flight: int = 0, waiting: int = 0, kv_use: float = 0.0, capacity: int = 0) -> EngineInfo:
    return EngineInfo("r", "m", 0, in_flight=in_flight, waiting=waiting, kv_use=kv_use, capacity=capacity)


looks = st.builds(info, st.integers(0, 300), st.integers(0, 300), st.floats(0, 1), st.integers(0, 64))


@given(st.lists(st.tuples(looks, st.integers(0, 300))), st.integers(1, 16), st.integers(16, 300))
def test_the_limit_stays_within_its_bounds(seen, least, most):
    state = Concurrency.begin(least, most)
    for look, in_flight in seen:
        state = adapt(state, look, in_flight)
        assert least <= state.limit <= most
        assert least <= shrink(state).limit <= state.limit


def test_it_grows_only_where_it_is_what_holds_back():
    state = Concurrency(limit=8, least=4, most=32)
    assert adapt(state, info(3), 3).limit == 8
    assert adapt(state, info(8), 8).limit == 9
    assert adapt(state, info(8, kv_use=0.8), 8).limit == 8, "the cache is filling"
    assert adapt(Concurrency(32, 4, 32), info(32), 32).limit == 32


def test_one_overload_is_one_cut():
    state = Concurrency(limit=40, least=4, most=64)
    limits = []
    for _ in range(REST_LOOKS + 2):
        state = adapt(state, info(40, kv_use=0.95), 40)
        limits.append(state.limit)
    assert limits == [28] * (REST_LOOKS + 1) + [19]


def test_a_queue_is_an_overload_only_where_it_is_longer_than_what_is_computed():
    assert not overloaded(info(10, waiting=5))
    assert overloaded(info(10, waiting=6))
    assert not overloaded(info(20, waiting=15, capacity=16)), "the next batch"
    assert overloaded(info(40, waiting=30, capacity=16))


def test_a_request_may_take_as_long_as_the_queue_before_it():
    assert patience(60.0, None, 300.0) == patience(60.0, info(50), 300.0) == 60.0
    assert patience(60.0, info(64, waiting=32), 300.0) == 120.0, "32 run, 32 go before it"
    assert patience(60.0, info(48, waiting=40, capacity=16), 300.0) == 210.0
    assert patience(60.0, info(100, waiting=99), 300.0) == 300.0
    assert patience(60.0, info(8, waiting=8), 30.0) == 60.0, "never less than a request by itself gets"

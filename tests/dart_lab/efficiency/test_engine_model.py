"""The simulated engine against arithmetic by hand: 100 tokens read a second, 0.1 s a token, 0.01 more per request."""

from __future__ import annotations

import pytest

from dart_lab.efficiency.engine_model import EngineModel
from dart_lab.efficiency.events import Clock
from dart_lab.efficiency.workload import ModelTimes

TIMES = ModelTimes(prefill_tokens_per_s=100.0, token_s=0.09, token_s_per_request=0.01, host_s_per_image=0.5)


def finish_times(requests: list[tuple[float, int, int, int]]) -> tuple[list[float], EngineModel]:
    """When requests of (sent at, images, prompt tokens, response tokens) are done."""
    clock = Clock()
    engine = EngineModel(clock, TIMES)
    done = [0.0] * len(requests)

    def send(number, at, images, prompt, response):
        yield at
        yield engine.submit(images, prompt, response)
        done[number] = clock.now

    for number, request in enumerate(requests):
        clock.start(send(number, *request))
    clock.run(until=1000.0)
    return done, engine


def test_one_request():
    done, engine = finish_times([(0.0, 1, 200, 10)])
    assert done == pytest.approx([0.5 + 2.0 + 10 * 0.1])
    assert engine.busy_s == pytest.approx(3.0) and engine.in_flight == 0


def test_two_share_the_decoding_and_wait_for_each_others_prompts():
    done, engine = finish_times([(0.0, 0, 100, 20), (1.5, 0, 100, 20)])
    # 1 s read, 0.5 s decoded alone (5 tokens), 1 s stopped by the other's prompt, then both at 0.11 s a token
    first = 2.5 + 15 * 0.11
    assert done == pytest.approx([first, first + 5 * 0.1])
    assert engine.busy_s == pytest.approx(done[1])


def test_idle_time_is_not_busy():
    done, engine = finish_times([(0.0, 0, 100, 10), (10.0, 0, 100, 10)])
    assert done == pytest.approx([2.0, 12.0]) and engine.busy_s == pytest.approx(4.0)

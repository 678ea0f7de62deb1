"""The planner: what it asks the data manager, and what the workers may begin then."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

from dart_train.core.availability import Availability
from dart_train.core.train_errors import DatabaseGoneError
from dart_train.data.curation.rules import CurationConfig
from dart_train.rollout.play.recorder import Recorder
from dart_train.rollout.schedule.circuit_breaker import CircuitBreakers
from dart_train.rollout.schedule.scheduler import Scheduler
from dart_train.rollout.service.planner import Planner
from dart_train.rollout.settings.rollout_config import RolloutConfig, TaskEntry
from tests.dart_train.rollout.play.test_recorder import Troubled, episode
from tests.helpers.waiting import wait_until


def test_what_waits_to_be_recorded_is_as_far_ahead_as_what_waits_to_be_trained_on(data):
    curation = CurationConfig(group_size=4, batch_groups=2, batches_ahead=2, max_staleness=None, drop_no_signal=False)
    slow = Troubled(data.store, data.files, data.run_id, curation)
    slow.trouble = lambda: DatabaseGoneError("so slow that nothing comes of it")
    config = RolloutConfig(tasks=("a",), group_size=4, workers=4)
    recorder, workers = Recorder(slow), SimpleNamespace(wake=lambda: None, breakers=CircuitBreakers("a"))
    workers.recorder = recorder
    planner = Planner(config, slow, Scheduler([TaskEntry(id="a")], group_size=4), workers, Availability("it", 60.0))

    def room() -> float:
        asyncio.run(planner.ask())
        return workers.room

    assert room() == 4
    for group in range(4):
        assert room() == 4 - group
        for n in range(4):
            recorder.put(replace(episode(n), group_key=f"a@{group}"), 4)
    assert room() == 0
    slow.trouble = None
    wait_until(lambda: recorder.pending == 0)
    assert room() == 0  # now they wait in the database
    slow.lease(2, "trainer")
    assert room() == 2
    recorder.close()

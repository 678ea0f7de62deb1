"""The recorder by itself: what waits, what is refused, and what is lost when it must end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dart_agent.engines.base.engine import Generation, Prompt
from dart_agent.episodes.play import make_step
from dart_agent.episodes.screenshots import prompt_bytes
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.policies.policy import Decision
from dart_gym.core.actions import Done
from dart_gym.core.outcomes import Observation, StepResult, TerminalState
from dart_train.core.train_errors import DatabaseGoneError, DataError, DiskFullError, InvalidTrajectoryError
from dart_train.data.manager.data_manager import DataManager
from dart_train.rollout.play.dependencies import Dependencies
from dart_train.rollout.play.recorder import BATCH, MAX_REFUSED, Recorder
from dart_train.rollout.play.rollouts import Rollout
from dart_train.rollout.schedule.scheduler import Assignment
from tests.helpers.waiting import wait_until


def episode(n: int = 0) -> Trajectory:
    frame = np.full((20, 10, 3), n, np.uint8)
    generation = Generation("text", (5, 6), (-0.5, -0.25), (1, 1), "stop", "r0", (0.1, 0.2))
    decision = Decision((Done(),), "text", prompt=Prompt((1, 2), (frame, frame)), generation=generation)
    observation = Observation(frame, "i")
    rollout = Rollout(Assignment("a", 1, "k", n, 0, 0))
    for _ in range(2):
        rollout.step(make_step(observation, decision, StepResult(observation), {"total": 0.1}))
    return replace(rollout.trajectory, task_hash="h", terminal=TerminalState.DONE, score=1.0, ended_at=1.0)


class Troubled(DataManager):
    """Raises what it is told to, as long as it is told so."""

    trouble: Callable[[], DataError] | None = None

    def keep(self, *args, **kwargs):
        if self.trouble is not None:
            raise self.trouble()
        return super().keep(*args, **kwargs)


@pytest.fixture
def troubled(data: DataManager) -> Troubled:
    return Troubled(data.store, data.files, data.run_id, data.config)


def test_it_is_full_when_too_many_or_too_large_episodes_wait(troubled):
    troubled.trouble = lambda: DatabaseGoneError("gone")
    assert prompt_bytes(episode()) == 600  # each frame counts once
    recorder = Recorder(troubled, most=3, most_bytes=1500)
    recorder.put(episode(0), 1)
    recorder.put(episode(1), 1)
    assert not recorder.full
    recorder.put(episode(2), 1)
    assert recorder.full and recorder.pending == 3
    small = Recorder(troubled, most=99, most_bytes=1200)
    small.put(episode(3), 1)
    small.put(episode(4), 1)
    assert small.full
    troubled.trouble = None
    for one, count in ((recorder, 3), (small, 2)):
        wait_until(lambda one=one: one.pending == 0)
        assert not one.full and one.recorded == count
        one.close()
    assert len(list(troubled.trajectories())) == 5


def test_a_full_disk_and_a_lost_database_are_told_apart(troubled):
    dependencies = Dependencies(60.0)
    troubled.trouble = lambda: DiskFullError("/x")
    recorder = Recorder(troubled, dependencies=dependencies)
    recorder.put(episode(), 1)
    wait_until(lambda: dependencies.disk.away)
    assert recorder.full and not dependencies.database.away
    troubled.trouble = lambda: DatabaseGoneError("gone")
    wait_until(lambda: dependencies.database.away and not dependencies.disk.away)
    assert not recorder.full
    troubled.trouble = None
    recorder.close()
    assert recorder.recorded == 1 and not dependencies.present()


def test_an_invalid_episode_is_left_out_and_many_in_a_row_are_an_error(troubled, caplog):
    troubled.trouble = lambda: InvalidTrajectoryError("no log-probabilities")
    failed = threading.Event()
    recorder = Recorder(troubled, on_failure=failed.set)
    recorder.put(episode(), 1)
    wait_until(lambda: recorder.pending == 0)
    troubled.trouble = None
    recorder.put(episode(1), 1)
    wait_until(lambda: recorder.recorded == 1)
    assert recorder.refused == 1 and recorder.failure is None and "an episode is left out" in caplog.text
    troubled.trouble = lambda: InvalidTrajectoryError("no log-probabilities")
    for n in range(MAX_REFUSED):
        recorder.put(episode(n), 1)
    assert failed.wait(60)
    assert isinstance(recorder.failure, InvalidTrajectoryError)
    recorder.close()


def test_what_cannot_be_recorded_before_the_end_is_counted_and_said(troubled, caplog):
    troubled.trouble = lambda: DatabaseGoneError("gone fishing")
    recorder = Recorder(troubled)
    for n in range(3):
        recorder.put(episode(n), 1)
    recorder.close(timeout_s=0.1)
    assert recorder.pending == 3
    assert "3 episodes were not recorded: the database is away: gone fishing" in caplog.text


def test_what_waits_is_recorded_together_and_one_bad_episode_costs_no_other(data: DataManager, monkeypatch, caplog):
    reached, begun, batches = threading.Event(), threading.Event(), []

    class Waiting(DataManager):
        def insert(self, kept):
            reached.set()
            assert begun.wait(60)
            batches.append([one.trajectory.trajectory_id for one in kept])
            return super().insert(kept)

    recorder = Recorder(Waiting(data.store, data.files, data.run_id, data.config))
    first = episode(0)
    recorder.put(first, 1)
    assert reached.wait(60)
    many = [episode(n) for n in range(1, 2 * BATCH)]
    bad = replace(episode(99), group_key="")
    for one in (*many[:BATCH], bad, *many[BATCH:]):
        recorder.put(one, 1)
    begun.set()
    recorder.close()
    names = [one.trajectory_id for one in many]
    assert batches[:2] == [[first.trajectory_id], names[:BATCH]], "the first alone, then as many as a transaction takes"
    assert batches[2:] == [[name] for name in names[BATCH:]], "the batch with the bad one, one by one"
    assert (recorder.recorded, recorder.refused, recorder.pending) == (2 * BATCH, 1, 0)
    stored = [trajectory.trajectory_id for trajectory in data.trajectories()]
    assert stored == [first.trajectory_id, *names], "in the order in which they ended"

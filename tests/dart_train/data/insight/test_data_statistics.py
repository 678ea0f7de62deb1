from __future__ import annotations

import pytest
from data_builders import Clock, fresh, make_step, make_trajectory, open_manager, publish, record_group
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dart_gym.core.outcomes import TerminalState
from dart_gym.utils.lru_cache import LRUCache
from dart_train.data.insight import statistics
from dart_train.data.insight.statistics import TaskStats

pytestmark = pytest.mark.usefixtures("database")  # everything here on each database

ROLLOUTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.none() | st.sampled_from([0.0, 0.5, 1.0]),
        st.integers(1, 5),
        st.sampled_from(["rollout", "rollout", "oracle"]),
    ),
    max_size=20,
)


def expected_stats(rollouts, window) -> dict[str, TaskStats]:
    stats = {}
    for task in sorted({task for task, reward, _, source in rollouts if reward is not None and source == "rollout"}):
        scored = [
            (reward, steps)
            for name, reward, steps, source in rollouts
            if name == task and reward is not None and source == "rollout"
        ]
        recent = scored[-window:]
        stats[task] = TaskStats(
            task,
            len(scored),
            len(recent),
            pytest.approx(sum(reward for reward, _ in recent) / len(recent)),
            pytest.approx(sum(steps for _, steps in recent) / len(recent)),
            max((steps for reward, steps in scored if reward == 1.0), default=None),
        )
    return stats


@pytest.mark.thorough
@given(ROLLOUTS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_task_records_are_right(tmp_path, rollouts):
    with open_manager(fresh(tmp_path)) as data:
        half = len(rollouts) // 2
        for index, (task, reward, steps, source) in enumerate(rollouts):
            if index == half:
                data.refresh_task_stats()
            many = tuple(make_step() for _ in range(steps))
            data.record(make_trajectory(f"t{index}", f"g{index}", reward, task_id=task, steps=many, source=source))
        data.refresh_task_stats()
        assert data.read(statistics.task_stats, 4) == expected_stats(rollouts, 4)
        assert data.read(statistics.saved_task_stats) == data.read(statistics.task_stats, 4)
        assert data.refresh_task_stats() == 0


def test_mean_steps_keep_their_digits(data):
    for index, steps in enumerate((1, 1, 2)):
        data.record(make_trajectory(f"t{index}", f"g{index}", 0.0, steps=(make_step(),) * steps))
    assert data.read(statistics.task_stats, 4)["fake/button"].mean_steps == pytest.approx(4 / 3, rel=1e-12)


def test_errors_are_not_failures_in_the_records(data):
    data.record(make_trajectory("ok", "a", 1.0))
    data.record(make_trajectory("lost", "b", 0.0, terminal=TerminalState.MODEL_ERROR))
    assert data.read(statistics.task_stats, 4)["fake/button"].success_rate == 1.0
    assert data.read(statistics.rollout_history) == [("fake/button", 1.0, 1, 2)]


def test_rewards_come_in_the_order_of_recording(data):
    for index, (at, reward) in enumerate([(105.0, 0.0), (109.9, 1.0), (110.0, 1.0), (135.0, 0.5)]):
        task = "fake/late" if at > 130 else "fake/button"
        steps = (make_step(),) * (index + 1)
        data.record(make_trajectory(f"t{index}", f"g{index}", reward, ended_at=at, task_id=task, steps=steps))
    assert data.read(statistics.rollout_history) == [
        ("fake/button", 0.0, 1, 2),
        ("fake/button", 1.0, 2, 2),
        ("fake/button", 1.0, 3, 2),
        ("fake/late", 0.5, 4, 2),
    ]


def test_staleness_of_what_was_trained(data):
    publish(data, 4)
    for index, version in enumerate((4, 3, 3)):
        record_group(data, f"g{index}", version=version)
    record_group(data, "waiting", version=4)
    leased = data.lease(3, "me")
    leased.commit(5)
    assert data.read(statistics.staleness_histogram) == {1: 2, 2: 4}


def test_utilisation_is_desktop_time_over_what_there_was(data):
    """Each trajectory takes 1 s of a desktop: reset 0.5, step 0.25, evaluate 0.25; generating does not count."""
    for index, at in enumerate((100.0, 101.0, 105.0, 110.0)):
        steps = (make_step(actions=({}, {})), make_step())
        data.record(make_trajectory(f"t{index}", f"g{index}", ended_at=at, steps=steps))
    data.record(make_trajectory("demo", "", ended_at=102.0, source="oracle"))
    throughput = data.read(statistics.throughput, 100.0, 110.0, workers=2)
    assert (throughput.trajectories, throughput.actions, throughput.env_seconds) == (3, 9, 3.0)
    assert throughput.utilisation == pytest.approx(3.0 / 20.0)
    assert throughput.actions_per_minute == pytest.approx(54.0)
    assert data.read(statistics.throughput, 100.0, 110.0).utilisation is None
    assert data.read(statistics.throughput, 0.0, 1.0, workers=2).utilisation == 0.0


def test_statistics_of_an_empty_run(data):
    assert data.read(statistics.task_stats, 4) == data.read(statistics.saved_task_stats) == {}
    assert data.read(statistics.staleness_histogram) == {}
    assert data.read(statistics.rollout_history) == data.checkpoints() == []
    assert set(data.counts().values()) == {0}


def test_the_cache_keeps_what_was_used_last():
    loaded: list[str] = []
    cache: LRUCache[str] = LRUCache(5, len)

    def load(key: str) -> str:
        loaded.append(key)
        return key * 2

    for key in ("a", "b", "a", "c", "a", "b"):
        assert cache.get(key, load) == key * 2
    assert loaded == ["a", "b", "c", "b"]
    assert cache.get("huge" * 10, load) == "huge" * 20
    assert cache.get("a", load) == "aa"
    assert loaded[-2:] == ["huge" * 10, "a"]


def test_time_of_recording_stands_in_for_a_missing_end(tmp_path):
    with open_manager(tmp_path, Clock(500.0)) as data:
        data.record(make_trajectory("t", ended_at=0.0))
        assert data.read(statistics.throughput, 500.0, 501.0).trajectories == 1


def test_rollouts_that_an_error_ended_are_counted_by_error_and_task(tmp_path):
    with open_manager(fresh(tmp_path)) as data:
        data.record(make_trajectory("fine", "a", 1.0))
        for number, task in enumerate(("x", "x", "y")):
            broken = {"terminal": TerminalState.ENV_ERROR, "task_id": task}
            data.record(make_trajectory(f"broken{number}", f"b{number}", None, **broken))
        data.record(make_trajectory("unsaid", "c", None, terminal=TerminalState.MODEL_ERROR, task_id="x"))
        assert data.read(statistics.untrainable_counts) == {"env_error": {"x": 2, "y": 1}, "model_error": {"x": 1}}

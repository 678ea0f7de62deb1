"""Rehearsal: whole episodes of every task alike, known from one step to the next, damage left out."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dart_train.core.data_states import SHOWN_MARK
from dart_train.data.manager.data_manager import DataManager
from dart_train.trainer.batches.rehearsal import (
    LESSONS,
    OWN_SUCCESSES,
    SHOWN_PAGES,
    EpisodesOfTask,
    Rehearsal,
    RehearsedEpisodes,
)
from tests.dart_train.data.data_builders import make_step, make_trajectory

pytestmark = pytest.mark.train


@pytest.fixture
def data(tmp_path) -> DataManager:
    return opened(tmp_path)


def opened(folder: Path) -> DataManager:
    return DataManager.open(f"sqlite:///{folder}/data/dart.sqlite", folder / "data", "run")


def own_successes(data: DataManager, steps: int, seed: int) -> RehearsedEpisodes:
    return RehearsedEpisodes(data, OWN_SUCCESSES, steps, seed)


def play(
    data: DataManager,
    name: str,
    task: str,
    reward: float = 1.0,
    steps: int = 2,
    *,
    taught: tuple[int, ...] = (),
    group: str = "",
    **fields: object,
) -> None:
    """Record an episode whose responses tell its number; a teacher answered `taught` of its steps with 100 more."""
    number = int(name.rpartition("-")[2])
    made = tuple(replace(make_step(0), image_hashes=(), response_ids=(number, place)) for place in range(steps))
    made = tuple(replace(step, logprobs=(-0.1,) * len(step.response_ids)) for step in made)
    made = tuple(
        replace(step, target_ids=(100 + number, place)) if place in taught else step for place, step in enumerate(made)
    )
    data.record(make_trajectory(name, group or name, reward, task_id=task, steps=made, **fields))


def episodes(drawn) -> list[list[int]]:
    """The responses of each drawn episode."""
    numbers = sorted({sample.trajectory for sample in drawn})
    return [[sample.response_ids[0] for sample in drawn if sample.trajectory == number] for number in numbers]


def test_whole_episodes_are_drawn_until_there_are_enough_steps(data):
    for number, task in enumerate(("fake/a", "fake/b", "fake/c")):
        play(data, f"t-{number}", task)
    drawn = own_successes(data, 3, 0).draw(1)
    assert [len(episode) for episode in episodes(drawn)] == [2, 2]
    assert all(len(set(episode)) == 1 for episode in episodes(drawn))
    assert len(episodes(own_successes(data, 99, 0).draw(1))) == 3
    assert own_successes(data, 0, 0).draw(1) == ()


def test_failures_and_partial_successes_are_not_imitated(data):
    play(data, "t-0", "fake/a", 0.0)
    play(data, "t-1", "fake/a", 0.5)
    own = own_successes(data, 9, 0)
    assert own.draw(1) == ()
    play(data, "t-2", "fake/a", 1.0)
    assert episodes(own.draw(2)) == [[2, 2]], "what has ended since the last step is known"


def test_a_success_behind_a_fork_is_imitated_and_a_demonstration_is_not(data):
    play(data, "t-0", "fake/a", source="fork", forked_from="t-9", fork_step=1)
    play(data, "t-1", "fake/b", source="oracle")
    assert episodes(own_successes(data, 9, 0).draw(1)) == [[0, 0]]


def test_each_task_counts_the_same_however_often_it_is_played(data):
    for number in range(20):
        play(data, f"t-{number}", "fake/often", steps=1)
    play(data, "t-99", "fake/seldom", steps=1)
    own = own_successes(data, 1, 0)
    counts = Counter(own.draw(serial)[0].response_ids[0] for serial in range(400))
    assert 160 < counts.pop(99) < 240
    assert set(counts) == set(range(20 - EpisodesOfTask.OF_A_SEED, 20)), "the newest of a task's seed"


def test_of_a_task_each_seed_counts_the_same(data):
    """A group's members begin from one screen: many successes there say no more about others than one."""
    for number in range(8):
        play(data, f"t-{number}", "fake/a", steps=1, seed=1)
    play(data, "t-99", "fake/a", steps=1, seed=2)
    own = own_successes(data, 1, 0)
    counts = Counter(own.draw(serial)[0].response_ids[0] for serial in range(400))
    assert 160 < counts.pop(99) < 240
    assert set(counts) == set(range(8))


def test_the_seeds_that_were_played_last_are_kept():
    task, rng = EpisodesOfTask(), random.Random(0)
    for seed in range(EpisodesOfTask.SEEDS):
        task.add(seed, f"first of {seed}")
    task.add(0, "second of 0")
    task.add(EpisodesOfTask.SEEDS, "a new one")
    drawn = {task.draw(rng) for _ in range(4000)}
    assert {"first of 0", "second of 0", "a new one"} <= drawn
    assert "first of 1" not in drawn and len(drawn) == EpisodesOfTask.SEEDS + 1
    for name in drawn:
        assert task
        task.remove(name)
    assert not task


def test_equal_serials_draw_the_same_and_others_do_not(data):
    for number in range(12):
        play(data, f"t-{number}", f"fake/{number}")
    own = own_successes(data, 4, 7)
    assert own.draw(3) == own_successes(data, 4, 7).draw(3)
    assert len({tuple(map(tuple, episodes(own.draw(serial)))) for serial in range(8)}) > 4


def test_what_is_damaged_is_left_out_and_said(data, tmp_path, caplog):
    play(data, "t-0", "fake/a")
    play(data, "t-1", "fake/b")
    for path in data.files.root.rglob("t-0*"):
        for file in [path] if path.is_file() else path.rglob("*"):
            file.write_bytes(b"damaged")
    own = own_successes(opened(tmp_path), 9, 0)
    assert episodes(own.draw(1)) == [[1, 1]]
    assert "a success is not imitated" in caplog.text and len(own.draw(2)) == 2


def test_lessons_are_what_the_teacher_said_in_the_states_of_failures(data):
    play(data, "t-0", "fake/a", 0.0, steps=3, taught=(0, 2))
    play(data, "t-1", "fake/b", 0.0)
    play(data, "t-2", "fake/c", 1.0)
    drawn = RehearsedEpisodes(data, LESSONS, 9, 0).draw(1)
    assert [sample.response_ids for sample in drawn] == [(100, 0), (100, 2)]
    assert all(sample.taught and sample.supervised and not sample.logprobs for sample in drawn)


def test_an_episode_of_which_nothing_is_imitated_is_drawn_once(data):
    """A teacher that says how likely something is leaves lessons without an answer."""
    step = replace(make_step(0), image_hashes=(), teacher_logprobs=(-0.1,) * len(make_step(0).response_ids))
    data.record(make_trajectory("t-0", "a", 0.0, task_id="fake/a", steps=(step,)))
    play(data, "t-1", "fake/b", 0.0, taught=(0,))
    assert [one.response_ids for one in RehearsedEpisodes(data, LESSONS, 9, 0).draw(1)] == [(101, 0)]


def test_pages_that_were_shown_are_drawn_and_other_demonstrations_are_not(data):
    play(data, "t-0", "fake/a", source="oracle", group=f"a{SHOWN_MARK}")
    play(data, "t-1", "fake/b", source="oracle", group="b#demo")
    play(data, "t-2", "fake/c")
    drawn = RehearsedEpisodes(data, SHOWN_PAGES, 9, 0).draw(1)
    assert episodes(drawn) == [[0, 0]] and not any(sample.taught or sample.logprobs for sample in drawn)
    assert episodes(Rehearsal(data, successes=1, shown=1).draw(1)) == [[2, 2], [0, 0]]


def test_episodes_of_both_kinds_keep_their_own_numbers(data):
    """Trajectories are dealt out to ranks whole."""
    for number in range(3):
        play(data, f"t-{number}", f"fake/{number}")
        play(data, f"t-{number + 10}", f"fake/{number}", 0.0, taught=(0, 1))
    drawn = Rehearsal(data, successes=4, lessons=5, seed=3).draw(2)
    assert [sample.trajectory for sample in drawn] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [sample.taught for sample in drawn] == [False] * 4 + [True] * 6
    assert Rehearsal(data).draw(2) == ()


@given(
    ended=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0]), st.booleans()), min_size=1, max_size=12
    ),
    successes=st.integers(0, 6),
    lessons=st.integers(0, 6),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_that_is_drawn_is_right_and_no_episode_twice(tmp_path_factory, ended, successes, lessons):
    data = opened(tmp_path_factory.mktemp("drawn"))
    rehearsal = Rehearsal(data, successes=successes, lessons=lessons)
    for number, (task, reward, taught) in enumerate(ended):
        play(data, f"t-{number}", f"fake/{task}", reward, steps=1, taught=(0,) if taught else ())
        drawn = rehearsal.draw(number)
        for kind, most in ((False, successes), (True, lessons)):
            names = [sample.response_ids[0] % 100 for sample in drawn if sample.taught is kind]
            known = {
                own for own, (_, reward, taught) in enumerate(ended[: number + 1]) if (taught if kind else reward == 1)
            }
            assert set(names) <= known and len(set(names)) == len(names) <= most
            tasks = {ended[name][0] for name in known}
            assert len(names) == min(most, len(known))
            assert len({ended[name][0] for name in names[: len(tasks)]}) == min(len(names), len(tasks)), (
                "one of each first"
            )
        assert len({sample.trajectory for sample in drawn}) == len(drawn)

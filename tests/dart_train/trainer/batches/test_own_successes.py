"""Own successes: whole episodes of every task alike, known from one step to the next, damage left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dart_train.data.manager.data_manager import DataManager
from dart_train.trainer.batches.own_successes import KEPT, OwnSuccesses
from tests.dart_train.data.data_builders import make_step, make_trajectory

pytestmark = pytest.mark.train


@pytest.fixture
def data(tmp_path) -> DataManager:
    return opened(tmp_path)


def opened(folder: Path) -> DataManager:
    return DataManager.open(f"sqlite:///{folder}/data/dart.sqlite", folder / "data", "run")


def play(data: DataManager, name: str, task: str, reward: float = 1.0, steps: int = 2) -> None:
    """Record an episode whose responses tell its number."""
    number = int(name.rpartition("-")[2])
    made = tuple(replace(make_step(0), image_hashes=(), response_ids=(number, place)) for place in range(steps))
    made = tuple(replace(step, logprobs=(-0.1,) * len(step.response_ids)) for step in made)
    data.record(make_trajectory(name, name, reward, task_id=task, steps=made))


def episodes(drawn) -> list[list[int]]:
    """The responses of each drawn episode."""
    numbers = sorted({sample.trajectory for sample in drawn})
    return [[sample.response_ids[0] for sample in drawn if sample.trajectory == number] for number in numbers]


def test_whole_episodes_are_drawn_until_there_are_enough_steps(data):
    for number, task in enumerate(("fake/a", "fake/b", "fake/c")):
        play(data, f"t-{number}", task)
    drawn = OwnSuccesses(data, 3, 0).draw(1)
    assert [len(episode) for episode in episodes(drawn)] == [2, 2]
    assert all(len(set(episode)) == 1 for episode in episodes(drawn))
    assert len(episodes(OwnSuccesses(data, 99, 0).draw(1))) == 3
    assert OwnSuccesses(data, 0, 0).draw(1) == ()


def test_failures_and_partial_successes_are_not_imitated(data):
    play(data, "t-0", "fake/a", 0.0)
    play(data, "t-1", "fake/a", 0.5)
    own = OwnSuccesses(data, 9, 0)
    assert own.draw(1) == ()
    play(data, "t-2", "fake/a", 1.0)
    assert episodes(own.draw(2)) == [[2, 2]], "what has ended since the last step is known"


def test_each_task_counts_the_same_however_often_it_is_played(data):
    for number in range(20):
        play(data, f"t-{number}", "fake/often", steps=1)
    play(data, "t-99", "fake/seldom", steps=1)
    own = OwnSuccesses(data, 1, 0)
    counts = Counter(own.draw(serial)[0].response_ids[0] for serial in range(400))
    assert 160 < counts.pop(99) < 240
    assert set(counts) == set(range(20 - KEPT, 20)), "the newest of a task"


def test_equal_serials_draw_the_same_and_others_do_not(data):
    for number in range(12):
        play(data, f"t-{number}", f"fake/{number}")
    own = OwnSuccesses(data, 4, 7)
    assert own.draw(3) == OwnSuccesses(data, 4, 7).draw(3)
    assert len({tuple(map(tuple, episodes(own.draw(serial)))) for serial in range(8)}) > 4


def test_what_is_damaged_is_left_out_and_said(data, tmp_path, caplog):
    play(data, "t-0", "fake/a")
    play(data, "t-1", "fake/b")
    for path in data.files.root.rglob("t-0*"):
        for file in [path] if path.is_file() else path.rglob("*"):
            file.write_bytes(b"damaged")
    own = OwnSuccesses(opened(tmp_path), 9, 0)
    assert episodes(own.draw(1)) == [[1, 1]]
    assert "a success is not imitated" in caplog.text and len(own.draw(2)) == 2

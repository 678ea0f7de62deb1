"""Names of trajectories are names of directories, whatever a task is called."""

import pytest

from dart_train.data.files.trajectory_files import TrajectoryFiles
from dart_train.rollout.play.rollouts import new_trajectory_id
from dart_train.rollout.schedule.scheduler import Assignment
from tests.helpers.stored_files import trajectory_path


@pytest.mark.parametrize(
    "task", ["miniwob/click-tab", "/tmp/tasks/own.json", "./own.json", "../naïve 任务.json", "任务", "x" * 300]
)
def test_an_id_is_a_directory_name(task, tmp_path):
    assignment = Assignment(task, seed=3, group_key="g", n=1, attempt=0, sampling_seed=5)
    first, second = new_trajectory_id(assignment), new_trajectory_id(assignment)
    assert first != second
    assert trajectory_path(TrajectoryFiles(tmp_path), first).name == first
    assert ".s3.1." in first

"""The pipeline as a part of somebody's own program."""

from __future__ import annotations

import errno
import signal
from pathlib import Path

import pytest

from dart_train.config.run_config import load_config
from dart_train.core.availability import Availability
from dart_train.launch import pipeline
from dart_train.run import run_directory
from dart_train.run.run_directory import RunDiskFullError, RunState


def test_the_program_has_its_signals_back_when_a_run_ends(tmp_path):
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    pipeline.execute(load_config(Path("configs/drawn.yaml")), tmp_path, plain=True, only=())
    assert [signal.getsignal(number) for number in numbers] == before


class _NoProcesses:
    """A supervisor without processes, with a disk that may be full."""

    def __init__(self, timeout_s: float) -> None:
        self.disk = Availability("the disk", timeout_s)
        self.processes: dict[str, object] = {}

    def check(self) -> None:
        """Nothing runs."""


@pytest.mark.parametrize("patient", [True, False])
def test_a_full_disk_is_waited_for_and_no_phase_is_forgotten(tmp_path, monkeypatch, patient):
    left = [4]
    real = run_directory.write_file

    def write_file(path: Path, text: str) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, text)

    class Line(pipeline.Pipeline):
        def __init__(self) -> None:
            self.state = RunState(tmp_path / "state.json")
            self.supervisor = _NoProcesses(60.0 if patient else 0.0)
            self.ticks = 0

        def tick(self) -> None:
            self.ticks += 1

    monkeypatch.setattr(run_directory, "write_file", write_file)
    line = Line()
    if not patient:
        with pytest.raises(RunDiskFullError):
            line.write_state(lambda: line.state.begin("rl"))
        return
    line.write_state(lambda: line.state.begin("rl"))
    assert line.ticks == 4 and line.supervisor.disk.count == 1 and not line.supervisor.disk.away
    left[0] = 1
    assert not line.state_written(lambda: line.state.touch("rl")), "what is only told is not waited for"
    left[0] = 2
    line.write_state(lambda: line.state.finish("rl"))
    found = RunState(tmp_path / "state.json")
    assert found.finished("rl") and len(found.values["phases"]["rl"]["spans"]) == 1

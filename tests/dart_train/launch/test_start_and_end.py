"""The order in which processes of a run start where they share a GPU, and the end of a run that trained nothing."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from dart_train.config.run_config import load_config
from dart_train.core.train_errors import TrainedNothing
from dart_train.launch.pipeline import Pipeline, say_result
from dart_train.placement.placement import Demand, Placement
from dart_train.report.gather import trained_steps
from dart_train.run.run_directory import RunDirectory, RunLock
from dart_train.run.supervisor import ProcessSpec
from dart_train.terminal.panel import Panel


def test_steps_without_a_gradient_trained_nothing():
    rows = [{"step": 1, "grad_norm": 0.0}, {"step": 2, "grad_norm": 0.3}, {"step": 3}, {"waiting": "x"}]
    assert trained_steps(rows) == 2 and trained_steps(rows[:1]) == 0 and trained_steps([]) == 0


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_that_trained_nothing_does_not_end_well(steps, tmp_path):
    run = RunDirectory(tmp_path / "r")
    run.create()
    run.figures.write_text(json.dumps({"success_before": 0.0, "success_after": 0.0, "trained_steps": steps}))
    if steps:
        return say_result(run, Console())
    with pytest.raises(TrainedNothing, match="trained nothing") as raised:
        say_result(run, Console())
    assert raised.value.hopeless


class Started:
    """A supervisor that only notes what it is to start. The trainer has finished at once."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.processes: dict[str, SimpleNamespace] = {}

    def start(self, spec: ProcessSpec) -> None:
        self.order.append(spec.name)
        self.processes[spec.name] = SimpleNamespace(finished=spec.name == "learn")

    def stop(self, name: str) -> None:
        del self.processes[name]

    def stop_all(self) -> None:
        self.processes.clear()


class Line(Pipeline):
    """A pipeline whose engines serve at the third look."""

    def tick(self) -> None:
        order = self.supervisor.order
        order.append("tick")
        if order.count("tick") == 3:
            served, later = self.run.metrics("rollout"), time.time() + 1
            served.write_text("{}\n")
            os.utime(served, (later, later))  # the clock of files is a little behind


@pytest.mark.parametrize("shared", [True, False])
def test_the_trainer_starts_after_the_engines_that_share_its_gpu(shared, tmp_path):
    config = load_config(Path("configs/drawn.yaml"), ["evaluation.monitor={}"])
    run = RunDirectory(tmp_path / "r")
    run.create()
    demand = Demand(replicas=1, engine_gpus=1, ranks=1, trainer_gpus=1, shared=shared, engine_memory=0.4)
    placement = Placement(demand, engines=((0,),), trainer=(0 if shared else 1,))
    panel = Panel(config, run, plain=True)
    with RunLock(run) as lock, Line(config, run, panel, lock, placement) as line:
        line.supervisor = Started()
        next(phase for phase in line.phases() if phase.name == "rl").run(line)
        assert line.supervisor.order == ["cluster", "data", "rollout", *(["tick"] * 3 if shared else []), "learn"]
        assert list(line.supervisor.processes) == ["cluster"]

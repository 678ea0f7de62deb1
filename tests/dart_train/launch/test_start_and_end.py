"""In which order a run's modules start where they share a GPU, and how a run ends that trained nothing."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from dart_train.core.train_errors import TrainedNothing
from dart_train.launch.pipeline import Pipeline, say_result
from dart_train.report.gather import trained_steps
from dart_train.run.run_directory import RunDirectory


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


@pytest.mark.parametrize("shared", [True, False])
def test_the_trainer_starts_after_the_engines_that_share_its_gpu(shared, tmp_path):
    run = RunDirectory(tmp_path / "r")
    run.create()
    order: list[str] = []
    pipeline = Pipeline.__new__(Pipeline)
    pipeline.run, pipeline.placement = run, SimpleNamespace(demand=SimpleNamespace(shared=shared))
    monitor = SimpleNamespace(every_rollouts=None)
    pipeline.config = SimpleNamespace(evaluation=SimpleNamespace(monitor=monitor))
    pipeline._cluster_url, pipeline._start_cluster = "ws://x", lambda: None
    pipeline._start = lambda name, *arguments, **options: order.append(name)
    pipeline._until_finished = lambda phase, *names: None
    rollout = SimpleNamespace(finished=False)
    pipeline.supervisor = SimpleNamespace(processes={"rollout": rollout}, stop=lambda name: None)
    ticks = iter(range(3))

    def tick() -> None:
        order.append("tick")
        if next(ticks) == 2:
            run.metrics("rollout").write_text("{}\n")

    pipeline.tick = tick
    pipeline._train()
    assert order == ["data", "rollout", *(["tick"] * 3 if shared else []), "learn"]

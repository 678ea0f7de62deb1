"""The real half of the efficiency benchmark: what is compared is equal but for the mode, and what is read is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from dart_lab.efficiency import real_bench
from dart_lab.modes.waiting_schedulers import Mode
from dart_train.commands.train_cli import app
from dart_train.config.run_config import dump_config, load_config, parse_config
from dart_train.core.metrics_log import MetricsLog
from dart_train.run.run_directory import RunDirectory

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "configs" / "efficiency.yaml"
DRAWN = [  # drawn desktops, in seconds
    "model={path: tiny}", "rollout.workers=4", "rollout.pacing=settle", "agent.texts=2",
    "rollout.metrics_interval_s=0.1",
    "rollout.tasks=[{id: fake/click-button, max_steps: 1}, {id: fake/two-steps, max_steps: 2}]",
]  # fmt: skip


def test_the_modes_are_one_run_but_for_the_mode():
    config = load_config(CONFIG)
    variants = {mode: real_bench.variant(config, mode, seed=3, rollouts=50) for mode in Mode}
    plain = [v.model_dump(exclude={"name": True, "rollout": {"mode"}}) for v in variants.values()]
    assert plain[0] == plain[1] == plain[2]
    assert {v.rollout.mode for v in variants.values()} == set(Mode)
    assert all(parse_config(yaml.safe_load(dump_config(v))) == v for v in variants.values())
    assert all(
        v.seed == v.rollout.seed == v.warmup.seed == 3 and v.rollout.budget_rollouts == 50 for v in variants.values()
    )


def write_run(
    root: Path, monkeypatch, steps: list[tuple[float, int]], lines: list[tuple[float, float]]
) -> RunDirectory:
    run = RunDirectory(root)
    trainer, rollout = MetricsLog(run.metrics("trainer")), MetricsLog(run.metrics("rollout"))
    for t, samples in steps:
        monkeypatch.setattr("time.time", lambda t=t: t)
        trainer.write(**{"batch/samples": samples})
    for t, share in lines:
        monkeypatch.setattr("time.time", lambda t=t: t)
        rollout.write(env_utilisation=share, engines=[{"busy_share": share / 2}, {"busy_share": share / 2}])
    for log in (trainer, rollout):
        log.close()
    return run


def test_measured_is_from_the_first_training_step_to_the_last(tmp_path, monkeypatch):
    steps = [(100.0, 99), (110.0, 10), (120.0, 20), (130.0, 30)]
    run = write_run(tmp_path, monkeypatch, steps, [(90.0, 1.0), (105.0, 0.4), (125.0, 0.6), (140.0, 1.0)])
    assert real_bench.read(run) == real_bench.Measured(0.5, 0.25, 60 * 60 / 30, 30.0, 3)


def test_a_run_that_is_too_short_says_so(tmp_path, monkeypatch):
    run = write_run(tmp_path, monkeypatch, [(100.0, 1), (101.0, 1)], [])
    with pytest.raises(
        real_bench.BenchmarkError, match="had 2 training steps, at least 4 are needed: use more --rollouts"
    ):
        real_bench.read(run)


def test_a_run_without_metrics_of_the_desktops_says_so(tmp_path, monkeypatch):
    run = write_run(tmp_path, monkeypatch, [(100.0, 1), (100.1, 1), (100.2, 1), (100.3, 1)], [(99.0, 0.5)])
    with pytest.raises(real_bench.BenchmarkError, match="between two lines of metrics"):
        real_bench.read(run)


def test_ratios_are_taken_repetition_by_repetition():
    def runs(*shares: float) -> list[real_bench.Measured]:
        return [real_bench.Measured(share, share, 100 * share, 60.0, 10) for share in shares]

    report = real_bench.report(
        {"coupled": runs(0.1, 0.2, 0.2), "task_wise": runs(0.3, 0.3, 0.3), "dart": runs(0.8, 0.7, 0.8)}
    )
    assert report.keys["real.env_utilisation_ratio"] == pytest.approx(4.0)
    assert report.keys["real.env_utilisation_ratio_least"] == pytest.approx(3.5)
    assert report.keys["real.throughput_ratio"] == pytest.approx(4.0)
    assert report.keys["real.dart.env_utilisation"] == 0.8 and len(report.notes) == 9
    assert set(report.aims) <= set(report.keys)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_both_loops_run_as_processes_on_drawn_desktops(monkeypatch):
    monkeypatch.setattr(real_bench, "MODES", {"coupled": Mode.BATCH, "dart": Mode.ROLLOUT})
    monkeypatch.setattr(real_bench, "LEAST_STEPS", 3)
    stages: list[str] = []
    # 96 rollouts are 12 batches, of which 3 may be ahead of the trainer: rollouts and training overlap on any machine
    report = real_bench.measure(load_config(CONFIG, DRAWN), rollouts=96, repeat=1, progress=stages.append)
    assert stages == ["coupled, 1 of 1", "dart, 1 of 1"]
    assert all(value > 0 for name, value in report.keys.items() if name.endswith("throughput"))


def test_the_command_measures_the_configuration_with_its_overrides(monkeypatch, tmp_path):
    seen = {}

    def measure(config, *, rollouts, repeat, progress):
        seen.update(workers=config.rollout.workers, rollouts=rollouts, repeat=repeat)
        return real_bench.Report("efficiency (real desktops)", {"real.x": 2.0})

    monkeypatch.setattr(real_bench, "measure", measure)
    path = tmp_path / "real.json"
    arguments = ["--real", "--repeat", "2", "--config", str(CONFIG), "--set", "rollout.workers=7", "--json", str(path)]
    result = CliRunner().invoke(app, ["bench", "efficiency", *arguments])
    assert result.exit_code == 0, result.output
    assert seen == {"workers": 7, "rollouts": 120, "repeat": 2}
    assert json.loads(path.read_text())["keys"] == {"real.x": 2.0}

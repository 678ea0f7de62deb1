"""`dart-train bench efficiency`: the aims hold in the published setting, and all tables, keys and pictures are made."""

from __future__ import annotations

import json
import math

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dart_lab.efficiency import efficiency_bench, study
from dart_lab.efficiency.simulation import COUPLED, DART
from dart_lab.efficiency.study import Length, Runner
from dart_lab.efficiency.workload import Setting
from dart_train.commands.train_cli import app

KEYS = {
    "sim.env_utilisation_ratio", "sim.throughput_ratio", "sim.rollout_utilisation_ratio", "sim.best_env_utilisation",
    "sim.april_batch_time_saved", "sim.april_expired", "sim.adds.rollout_wise", "sim.adds.rolling_update",
    "sim.adds.over_provisioning", "sim.adds.warm_pool", "sim.adds.prefix_reuse",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_published_setting_meets_the_aims_and_the_coupled_loop_is_near_the_papers():
    with Runner(Length(hours=5.0, skip_hours=0.5, seeds=(0, 1))) as runner:
        coupled, dart = runner.run([(Setting(), COUPLED), (Setting(), DART)])
    ratios = efficiency_bench.ratios(coupled, dart)
    assert all(aim.met(ratios[name]) for name, aim in efficiency_bench.RATIO_AIMS.items()), ratios
    paper_env, _, paper_actions = efficiency_bench.PAPER["coupled"]
    assert 0.75 < coupled.env_utilisation / paper_env < 1.25
    assert 0.67 < coupled.throughput / paper_actions < 1.7


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_everything_is_told(monkeypatch, tmp_path):
    for name, value in {
        "DESKTOPS": (8, 16), "TAILS": (0.5, 0.9), "ENGINES": (1, 2),
        "SEARCH_DESKTOPS": (4, 8), "SEARCH_ENGINES": (1, 2),
    }.items():  # fmt: skip
        monkeypatch.setattr(study, name, value)
    setting = Setting(desktops=8, engines=2, tasks=8, group_size=4, batch_groups=1, train_s_per_action=0.5)
    stages: list[str] = []
    length = Length(hours=1.0, skip_hours=0.1, seeds=(0,))
    found = efficiency_bench.simulate(length, stages.append, setting)
    report = efficiency_bench.report(found)
    assert KEYS <= set(report.keys) and all(math.isfinite(value) for value in report.keys.values())
    assert (found.best.desktops, found.best.engines) in found.best.table
    console = Console(width=140, record=True)
    efficiency_bench.print_tables(found, console)
    text = console.export_text()
    assert "DART in the paper" in text and "without warm pool" in text and "+ rolling update" in text
    for path in efficiency_bench.write_plots(found, tmp_path / "plots"):
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_the_search_leaves_out_what_starves_the_trainer(monkeypatch):
    monkeypatch.setattr(study, "SEARCH_DESKTOPS", (1, 30))
    monkeypatch.setattr(study, "SEARCH_ENGINES", (2,))
    setting = Setting(tasks=8, group_size=4, batch_groups=1, train_s_per_action=3.0, max_staleness=8)
    with Runner(Length(hours=1.0, skip_hours=0.5, seeds=(0,)), workers=1) as runner:
        best = study.search(runner, setting, DART)
    assert math.isnan(best.table[1, 2]) and best.desktops == 30


def test_misfit_is_zero_for_the_papers_own_figures():
    outcome = study.mean_outcome([_outcome(0.122, 0.296, 22.6)])
    assert study.misfit(outcome) == pytest.approx(0.0)
    assert study.misfit(_outcome(0.244, 0.296, 22.6)) == pytest.approx(math.log(2) ** 2)


def _outcome(env: float, engines: float, actions: float) -> study.Outcome:
    return study.Outcome(env, engines, actions, 0.0, 0.0, 1, 0, 0, 1, 0.0, 0.0, 0, 0.0)


def test_the_command_writes_its_json(monkeypatch, tmp_path):
    seen = {}

    def simulate(length, progress):
        seen["length"] = length
        return "found"

    monkeypatch.setattr(efficiency_bench, "simulate", simulate)
    monkeypatch.setattr(efficiency_bench, "print_tables", lambda found, console: None)
    monkeypatch.setattr(
        efficiency_bench, "report", lambda found: efficiency_bench.Report("efficiency (simulated)", {"sim.x": 1.0})
    )
    path = tmp_path / "found.json"
    result = CliRunner().invoke(app, ["bench", "efficiency", "--hours", "2", "--seeds", "4", "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert seen["length"] == Length(hours=2.0, seeds=(0, 1, 2, 3))
    assert json.loads(path.read_text())["keys"] == {"sim.x": 1.0}

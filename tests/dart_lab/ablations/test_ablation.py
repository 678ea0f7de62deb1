"""Ablations: what a switch sets, what contradicts, what the table says; and a real one, with a variant that crashes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from dart_lab.ablations import ablation, ablation_table
from dart_lab.ablations.ablation import BASE, SWITCHES, planned_runs, read_budget, variants_of
from dart_lab.ablations.ablation_table import Outcome, mean_of, outcome_of, summary
from dart_lab.ablations.shared_start import start_key
from dart_train.commands.train_cli import app
from dart_train.config.run_config import ConfigError
from dart_train.core.metrics_log import MetricsLog
from dart_train.data.groups.checkpoint_rows import list_checkpoints
from dart_train.run.run_directory import RunDirectory, write_json

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "tests" / "dart_train" / "e2e.yaml"
HARD = ROOT / "configs" / "drawn_hard.yaml"
LOSS = """
from dart_train.trainer import losses

class Failing(losses.Loss):
    aggregate = staticmethod(losses.token_mean)

    def __call__(self, terms):
        raise RuntimeError("made to fail")
"""
_, BUDGET = read_budget("96rollouts")


def test_variants_differ_from_the_base_by_one_switch_each_or_are_all_combinations_of_those_given_together():
    assert [one.name for one in variants_of(["pool=on,off", "staleness=1", "pool=off staleness=1"])] == [
        BASE, "pool=on", "pool=off", "staleness=1", "pool=off staleness=1",
    ]  # fmt: skip
    grid = variants_of(["pool=on,off  staleness=1,8"])
    assert [one.name for one in grid] == [
        BASE, "pool=on staleness=1", "pool=on staleness=8", "pool=off staleness=1", "pool=off staleness=8",
    ]  # fmt: skip
    assert grid[2].settings["data.curation.max_staleness"] == 8 and grid[2].settings["data.curation.experience_pool"]


def test_every_named_switch_makes_a_configuration():
    values = {"staleness": "3", "credit": "trajectory", "sampling": "success", "mini-batches": "2", "mode": "task-wise",
              "kl": "0.5"}  # fmt: skip
    for name, switch in SWITCHES.items():
        value = values.get(name) or ",".join(switch)
        runs = planned_runs(CONFIG, [], variants_of([f"{name}={value}"]), seeds=1, budget=BUDGET)
        assert len(runs) >= 2, f"{name} changes nothing"


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        (["pol=on"], "unknown switch 'pol'; did you mean 'pool'"),
        (["zzz=on"], "unknown switch 'zzz'; there are: pool, dynamic-number"),
        (["pool=maybe"], "switch 'pool' has no value 'maybe': it is on or off"),
        (["pool"], "not NAME=VALUE,VALUE"),
        (["staleness=abc"], "switch 'staleness' has no value 'abc'"),
        (["pool=on", "pool=off,on"], "--switch 'pool=on' is given twice"),
        (["pool=on pool=off"], "switch 'pool' is given twice"),
        (["staleness=1 data.curation.max_staleness=2"], "both set data.curation.max_staleness"),
        ([""], "not NAME=VALUE,VALUE"),
    ],
)
def test_switches_that_make_no_sense_are_one_line(switches, message):
    with pytest.raises(ConfigError, match=message) as caught:
        variants_of(switches)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("switch", "message"),
    [
        ("trainer.betta=1", "variant trainer.betta=1: .*unknown key; did you mean 'beta'"),
        ("trainer.mini_batches=2", "variant trainer.mini_batches=2: .*set old_logprobs='recompute'"),
        ("credit=best", "variant credit=best: .*advantage"),
    ],
)
def test_a_variant_that_contradicts_itself_is_named_before_anything_runs(switch, message):
    with pytest.raises(ConfigError, match=message) as caught:
        planned_runs(CONFIG, [], variants_of([switch]), seeds=2, budget=BUDGET)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "20", "3days", "0rollouts", "1.5rollouts", "-2minutes", "1.5actions"])
def test_a_budget_is_so_many_rollouts_minutes_or_actions(text):
    with pytest.raises(ConfigError, match="neither of the form 2000rollouts nor 20minutes nor 12000actions"):
        read_budget(text)
    others = {"rollout.budget_rollouts": None, "rollout.budget_minutes": None, "rollout.budget_actions": None}
    assert read_budget("1.5minutes") == ("minutes", {**others, "rollout.budget_minutes": 1.5})
    assert read_budget("900actions") == ("actions", {**others, "rollout.budget_actions": 900})


def test_forks_and_teachers_are_compared_at_equal_numbers_of_actions():
    """The measurement of docs/results/ablations.md: flat groups, forks, each teacher, and forks with a teacher."""
    _, budget = read_budget("2400actions")
    variants = variants_of(["forks=off,on,pool teacher=none,dagger-rehearsed,told-oracle"])
    runs = planned_runs(CONFIG, ["data.curation.forks.continuations=4"], variants, seeds=1, budget=budget)
    found = {}
    for one in runs:
        forks, teacher = one.config.data.curation.forks, one.config.teacher
        found[one.variant] = (
            (forks.per_group, forks.of, forks.continuations),
            (teacher.kind, teacher.rehearsed_rows, teacher.options.get("told")),
        )
    forked = {"off": (0, "group", 4), "on": (1, "group", 4), "pool": (1, "pool", 4)}
    taught = {
        "none": (None, 0, None), "dagger-rehearsed": ("dagger", 192, None),
        "told-oracle": ("distillation", 0, "oracle"),
    }  # fmt: skip
    names = {(a, b): f"forks={a} teacher={b}" for a in forked for b in taught} | {("off", "none"): BASE}
    assert found == {name: (forked[a], taught[b]) for (a, b), name in names.items()}
    for one in runs:
        assert one.config.rollout.budget_actions == 2400 and one.config.rollout.budget_rollouts is None
        assert one.config.evaluation.monitor.every_rollouts == 40


def test_a_variant_that_is_the_base_is_run_once_and_evaluations_are_alike():
    runs = planned_runs(CONFIG, [], variants_of(["pool=off,on"]), seeds=2, budget=BUDGET)
    assert [(run.variant, run.label) for run in runs] == [
        (BASE, "base/s0"), ("pool=off", "pool-off/s0"), (BASE, "base/s1"), ("pool=off", "pool-off/s1"),
    ]  # fmt: skip
    for run in runs:
        assert run.config.evaluation.monitor.every_rollouts == 9 and not run.config.controls.phases
        assert run.config.cluster.desktops == 4 and run.config.rollout.budget_rollouts == 96


def test_variants_share_a_start_unless_it_differs_in_what_is_played_before():
    switches = ["shown=on", "teacher=dagger-rehearsed", "forks=pool", "rewards=shuffled"]
    alike = planned_runs(HARD, [], variants_of(switches), seeds=1, budget=BUDGET)
    assert len(alike) == 5 and len({start_key(run.config) for run in alike}) == 1
    others = variants_of(["demonstrations.per_task=3", "warmup.max_steps=3", "evaluation.episodes=3", "agent.texts=2"])
    differ = planned_runs(HARD, [], others, seeds=1, budget=BUDGET)
    assert len({start_key(run.config) for run in differ}) == 5


def outcome(variant, seed, success, points=((0, 0.2), (100, 0.6)), crashed="", collapsed=False):
    curve = tuple((float(x), 2.0 * x, y) for x, y in points)
    return Outcome(variant, seed, success, curve, 1.0, collapsed, crashed)


@pytest.mark.parametrize(
    ("target", "runs"),
    [
        ("ablations", (11 * 5, 7 * 5, 2 * 5)),
        ("coupled", (2 * 3,)),
        ("coupled-paced", (2 * 3,)),
        ("forks-and-teachers", (4 * 5, 7 * 5, 6 * 5)),
    ],
)
def test_what_the_makefile_compares_can_be_run(monkeypatch, tmp_path, target, runs):
    """As far as the first process of a run: the commands are the Makefile's, to the letter."""
    planned: list[int] = []
    monkeypatch.setattr(ablation, "run_all", lambda all_of_them, *_, **__: planned.append(len(all_of_them)) or {})
    monkeypatch.chdir(ROOT)
    said = subprocess.run(["make", "-n", target], capture_output=True, text=True, check=True).stdout
    for line in said.replace("\\\n", " ").splitlines():
        if "dart-train ablate" in line:
            words = shlex.split(line.partition("dart-train ")[2])
            outcome = CliRunner().invoke(app, [*words, "--runs-dir", str(tmp_path)])
            assert outcome.exit_code == 0, outcome.output
    assert tuple(planned) == runs


def test_means_have_students_intervals_and_differences_are_paired_by_seed():
    runs = [outcome(BASE, seed, 0.5 + seed / 10) for seed in range(3)]
    runs += [outcome("pool=off", seed, 0.4 + seed / 10, ((0, 0.2), (50, 0.2), (100, 0.2))) for seed in range(3)]
    base, off = summary(runs, base=BASE, by="rollouts")
    assert base["success"] == pytest.approx(0.6) and base["success_interval"][0] == pytest.approx(
        0.6 - 4.30 * 0.1 / 3**0.5
    )
    assert off["difference"] == pytest.approx(-0.1) and off["difference_interval"] == pytest.approx((-0.1, -0.1))
    assert (base["area"], off["area"]) == (pytest.approx(0.4), pytest.approx(0.2))
    assert base["to_60"] == 100 and off["to_60"] is None and base["difference"] is None
    assert summary(runs, base=BASE, by="minutes")[0]["to_60"] == 200
    late = [outcome(BASE, seed, 0.6, ((0, 0.2), (100 * seed, 0.6 if seed else 0.2))) for seed in range(4)]
    assert summary(late, base=BASE, by="rollouts")[0]["to_60"] == 250  # 100, 200, 300 and never
    assert summary(late[:1] * 2 + late[1:2], base=BASE, by="rollouts")[0]["to_60"] is None
    assert mean_of([0.3]) == (0.3, None) and mean_of([None]) == (None, None)


def test_the_interval_of_a_share_ends_at_none_and_all():
    runs = [outcome(variant, seed, one) for variant in (BASE, "pool=off") for seed, one in enumerate((0.0, 1.0, 1.0))]
    table = ablation_table.markdown(summary(runs, base=BASE, by="rollouts"), by="rollouts")
    assert "| pool=off | 3 | 67 % (0 to 100) | +0 % (+0 to +0) |" in table


def test_a_run_that_crashed_or_ended_before_its_first_evaluation_is_in_the_table(tmp_path):
    empty = outcome_of("pool=off", 0, RunDirectory(tmp_path / "none"), "error: no space left")
    assert (empty.success, empty.curve, empty.area("rollouts")) == (None, (), None)
    table = ablation_table.write(tmp_path, [outcome(BASE, 0, 0.7), empty], base=BASE, by="rollouts")
    assert "| pool=off | 0 | – | – | – | – | – | – | – | 0 | 1 |" in table
    assert "- pool=off, seed 0: error: no space left" in table and "70 %" in table
    assert json.loads((tmp_path / "ablation.json").read_text())["runs"][1]["crashed"] == "error: no space left"
    assert "<svg" in (tmp_path / "ablation.svg").read_text()


@pytest.mark.parametrize(("last", "collapsed"), [(0.75, False), (0.5, True)])
def test_a_run_that_lost_what_it_had_has_collapsed(tmp_path, last, collapsed):
    run = RunDirectory(tmp_path / "run")
    run.create()
    log = MetricsLog(run.metrics("held_out"))
    for rollouts, success in ((0, 0.3), (100, 0.8)):
        log.write(rollouts=rollouts, success=success, version=1, tasks={}, actions=6 * rollouts)
    log.close()
    write_json(
        run.figures,
        {
            "success_before": 0.3,
            "success_after": last,
            "rollouts": 150,
            "actions": 930,
            "rl_wall_s": 60.0,
            "tasks_ever_succeeded": 1.0,
        },
    )
    found = outcome_of(BASE, 0, run)
    assert found.collapsed is collapsed and found.curve[-1][2] == last and len(found.curve) == 3
    assert found.points("actions") == [(0.0, 0.3), (600.0, 0.8), (930.0, last)] and found.reached(0.6, "actions") == 600


def versions_of(run):
    engine = sa.create_engine(run.database_url)
    with engine.connect() as connection:
        return list_checkpoints(connection, run.root.name)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(1200)
def test_an_ablation_runs_its_variants_names_the_one_that_crashes_and_goes_on_where_it_was(tmp_path):
    (tmp_path / "made_to_fail.py").write_text(LOSS)
    command = [
        sys.executable, "-m", "dart_train", "ablate", str(CONFIG), "--switch", "trainer.loss_type=made_to_fail:Failing",
        "--seeds", "1",
        "--switch", "trainer.learning_rate=0.0002", "--budget", "24rollouts", "--runs-dir", str(tmp_path),
        "--set", "demonstrations.per_task=8", "--set", "warmup.max_steps=8", "--name", "a",
    ]  # fmt: skip
    first = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert first.returncode == 1 and "made to fail" in first.stdout, first.stdout + first.stderr
    values = json.loads((tmp_path / "a" / "ablation.json").read_text())
    done, crashed, slower = values["runs"]
    for finished in (done, slower):
        assert finished["success"] is not None and len(finished["curve"]) >= 2 and not finished["crashed"]
    (start,) = (tmp_path / "a" / "starts").iterdir()  # played once for both, and still as it was laid
    runs = [start / "s0", *(tmp_path / "a" / name / "s0" for name in ("base", "trainer.learning_rate-0.0002"))]
    before = [RunDirectory(run).scores("before").read_bytes() for run in runs]
    assert before[0] == before[1] == before[2] and not RunDirectory(runs[0]).figures.exists()
    for run in runs:
        paths = [row.path for row in versions_of(RunDirectory(run))]
        assert len(paths) >= 2 and all(path.startswith(f"{run}/checkpoints/") for path in paths)
    assert crashed["success"] is None and "made to fail" in crashed["crashed"]
    assert (tmp_path / "a" / "base" / "s0" / "best" / "config.json").exists()
    again = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert "base/s0: done before" in again.stdout

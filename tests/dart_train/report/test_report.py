"""The report: figures from a run directory, and a page that shows them and nothing that it was not meant to."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_gym.core.outcomes import TerminalState
from dart_train.config.run_config import RunConfig, dump_config, parse_config
from dart_train.core.demo_models import DEMO_MODELS
from dart_train.core.metrics_log import MetricsLog
from dart_train.data.manager.data_manager import DataManager
from dart_train.processes import write_report as command
from dart_train.processes.process_context import ProcessContext
from dart_train.report.gather import NOTES_SHIPPED, curve_window, gather, notes, rate_of, turns_of, untrainable_notes
from dart_train.report.report_data import ReportData, TaskFigures, Turns, mean_rate, smooth
from dart_train.report.report_page import render
from dart_train.run.run_directory import RunDirectory, RunDirectoryError, write_json

TASKS = ("fake/click-button", "fake/two-steps")
HOSTILE = "Press <script>alert('x')</script> & \"quit\""


@pytest.fixture
def config() -> RunConfig:
    return parse_config(
        {
            "name": "r",
            "description": f"a <b>run</b> {HOSTILE}",
            "rollout": {"tasks": list(TASKS), "workers": 2, "group_size": 2},
            "data": {"curation": {"max_staleness": 9}},
            "evaluation": {"beside": ["fake/other"]},
        }
    )


@pytest.fixture
def run(tmp_path: Path, config: RunConfig) -> RunDirectory:
    run = RunDirectory(tmp_path / "r")
    run.create()
    run.config.write_text(dump_config(config))
    write_json(run.root / "state.json", {"phases": {}, "lives": 1})
    return run


@pytest.fixture
def data(run: RunDirectory) -> Iterator[DataManager]:
    with DataManager.open(url=run.database_url, root=run.data, run_id="r") as manager:
        yield manager


def trajectory(number: int, task: str, reward: float, ended_at: float) -> Trajectory:
    step = Step((1, 2), (), (7,), (-0.5,), version=(0, 0), actions=({"kind": "click", "x": 1, "y": 2},))
    return Trajectory(
        task, 10_000 + number // 2, "Press", "0" * 16, f"t{number}", "r", f"{task}@{number // 2}",
        terminal=TerminalState.DONE, score=reward, steps=(step,),
        timings={"reset": 0.5, "step": 0.5, "evaluate": 0.0}, ended_at=ended_at,
    )  # fmt: skip


def evaluation(run: RunDirectory, label: str, scores: dict[str, list[float | None]]) -> None:
    rows = [
        {"task_id": task, "seed": seed, "score": score}
        for task, values in scores.items()
        for seed, score in enumerate(values)
    ]
    run.scores(label).parent.mkdir()
    write_json(run.scores(label), {"label": label, "version": 1, "temperature": 1.0, "episodes": rows})


def fill(run: RunDirectory, data: DataManager) -> None:
    """A run that was trained for 100 seconds in two lives."""
    phases = {"warmup": {"spans": [[0.0, 50.0]]}, "rl": {"spans": [[1000.0, 1060.0], [2000.0, 2040.0]]}}
    write_json(run.root / "state.json", {"phases": phases, "lives": 2})
    evaluation(run, "before", {TASKS[0]: [0.0, 0.0, 1.0, None], TASKS[1]: [0.0, 1.0], "fake/other": [0.0]})
    evaluation(run, "after", {TASKS[0]: [1.0, 1.0, 1.0], TASKS[1]: [1.0, 0.0], "fake/other": [1.0]})
    constant = {TASKS[0]: {"rate": 0.25, "place": [1, 2], "episodes": 4}}
    run.scores("constant").parent.mkdir()
    write_json(run.scores("constant"), {"label": "constant", "tasks": constant})
    for number in range(8):
        data.record(trajectory(number, TASKS[number % 2], float(number > 3), 1000.0 + number), expected=2)
    (run.checkpoints / "v000001").mkdir()
    data.publish(1, run.checkpoints / "v000001")
    rollout, trainer = MetricsLog(run.metrics("rollout")), MetricsLog(run.metrics("trainer"))
    for _ in range(3):
        rollout.write(env_utilisation=0.5, engines=[{"busy_share": 0.25}, {"busy_share": 0.75}])
        trainer.write(step=1, **{"perf/step_s": 0.5, "loss": 0.1})
    rollout.close()
    trainer.close()
    with run.metrics("rollout").open("a") as file:
        file.write('{"t": 1, "env_util')


class Page(HTMLParser):
    """Collects tags, and refuses tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "img", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def test_figures_of_a_run(config, run, data):
    fill(run, data)
    report = gather(config, run, data)
    figures = report.figures
    assert figures["success_before"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert figures["success_after"] == pytest.approx((1.0 + 0.5) / 2)
    assert figures["success_before_ci_low"] < figures["success_before"] < figures["success_before_ci_high"]
    assert (figures["rl_wall_s"], figures["wall_s"], figures["lives"]) == (100.0, 150.0, 2)
    assert (figures["rollouts"], figures["weight_updates"]) == (8, 1)
    assert figures["rollout_utilisation"] == 0.5
    assert figures[f"task.{TASKS[0]}.constant_click"] == 0.25
    assert figures["task.fake/other.after"] == 1.0
    assert figures["staleness_mean"] is None  # nothing was trained on
    assert [task.trained for task in report.tasks] == [True, True, False]
    assert report.tasks[0].before.episodes == 3  # an episode without a score is no failure
    assert set(report.utilisation.values) == {"desktops", "engines", "trainer"}
    assert all(((0 <= values) & (values <= 1)).all() for values in report.utilisation.values.values())
    assert any("not trained" in note for note in report.notes)


def test_the_page_shows_everything_and_escapes_it(config, run, data):
    fill(run, data)
    page = render(gather(config, run, data))
    tags = Page(page).tags
    assert "script" not in tags and "i" not in tags
    assert "&lt;script&gt;" in page and "a &lt;b&gt;run&lt;/b&gt;" in page
    assert tags.count("svg") >= 3 and "dart-agent view" in page
    assert not re.findall(r'(?:src|href)="https?:', page)
    for title in ("Before and after", "Learning curves", "Utilisation", "How to read this", "Every episode"):
        assert title in page


def test_a_run_that_has_just_begun_has_a_report_too(config, run, data):
    report = gather(config, run, data)
    assert "success_before" not in report.figures
    assert report.figures["env_utilisation"] is None and report.utilisation is None and report.curves == []
    assert "Learning curves" not in render(report)
    Page(render(report))


def test_the_command_writes_page_and_figures(config, run, data):
    fill(run, data)
    command.main(ProcessContext(config, run))
    assert json.loads(run.figures.read_text())["rollouts"] == 8
    assert run.report.read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in run.root.iterdir() if path.name.startswith("report")) == [
        "report.html",
        "report.json",
    ]


def test_a_damaged_evaluation_is_named(config, run, data):
    run.scores("before").parent.mkdir()
    run.scores("before").write_text('{"label": "bef')
    with pytest.raises(RunDirectoryError, match=r"before/scores\.json is damaged .* leaves this evaluation out"):
        gather(config, run, data)


@pytest.mark.parametrize("name", DEMO_MODELS)
def test_a_report_says_what_a_shipped_model_had_learned_before(config, name):
    shipped = config.model_copy(update={"model": config.model.model_copy(update={"path": name})})
    assert NOTES_SHIPPED[name] in notes(shipped, {})


def test_turns_are_means_of_stretches_of_the_training():
    history = [("a", float(index >= 24), 3 + (index >= 24), 8) for index in range(48)]
    turns = turns_of(history)
    assert len(turns) == 12 and turns[0] == Turns("a", 4, 4, 0.0, 3.0, 8.0)
    assert turns[-1] == Turns("a", 48, 4, 1.0, 4.0, 8.0)
    assert turns_of(history[:20]) == []
    data = ReportData("n", "", "machine", [], [], {}, turns=turns, entropies={"first": [0.5, 0.4], "last": []})
    assert "success by mean steps" in render(data) and "held-out success beside training" not in render(data)
    assert "held-out success beside training" in render(dataclasses.replace(data, held_out=[(32, 0.5)]))


def test_a_page_of_little_data():
    task = TaskFigures("fake/x", True, before=rate_of([0.0, 1.0]))
    page = render(ReportData("n", "", "machine", [("rl", 1.0)], [task], {"success_before": None, "rollouts": None}))
    Page(page)
    assert "50 %" in page and "–" in page
    Page(render(ReportData("n", "", "machine", [], [], {})))


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=20), min_size=1, max_size=4))
def test_mean_rate_lies_in_its_interval(scores):
    rate = mean_rate(scores)
    assert -1e-9 <= rate.low <= rate.rate + 1e-9 and rate.rate - 1e-9 <= rate.high <= 1 + 1e-9
    assert rate.episodes == sum(map(len, scores))
    assert mean_rate(scores) == rate


@pytest.mark.parametrize("scores", [[], [[]], [[1.0], []]])
def test_mean_rate_of_nothing_is_an_error(scores):
    with pytest.raises(ValueError, match="at least one episode"):
        mean_rate(scores)


def test_tasks_weigh_the_same_in_the_mean_whatever_their_episodes():
    assert mean_rate([[1.0], [0.0] * 99]).rate == 0.5


@given(st.lists(st.floats(0, 1), max_size=80), st.integers(1, 40))
def test_smooth_stays_within_what_it_averages(rewards, window):
    xs, ys = smooth(range(len(rewards)), rewards, window)
    assert len(xs) == len(ys) and xs == sorted(xs)
    assert all(min(rewards) - 1e-9 <= y <= max(rewards) + 1e-9 for y in ys)
    assert bool(ys) == bool(rewards)


def test_smooth_averages_a_window():
    assert smooth([0, 1, 2, 3], [0.0, 1.0, 1.0, 1.0], 2) == ([0.5, 1.5, 2.5], [0.5, 1.0, 1.0])


@pytest.mark.parametrize(("rollouts", "window", "points"), [(1, 1, 1), (90, 22, 14), (640, 160, 13), (2000, 160, 47)])
def test_a_task_with_few_rollouts_has_a_curve_as_well(rollouts, window, points):
    assert curve_window(rollouts) == window
    assert len(smooth(range(rollouts), [1.0] * rollouts, window)[0]) == points


def test_the_report_names_tasks_whose_rollouts_an_error_ended():
    said = untrainable_notes({"model_error": {"b": 1}, "env_error": {"a": 2, "b": 57}})
    assert "ended as env_error and taught nothing: 59, by task b (57), a (2)." in said[0]
    assert "ended as model_error and taught nothing: 1, by task b (1)." in said[1] and len(said) == 2
    assert untrainable_notes({}) == []
